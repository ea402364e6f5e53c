"""Fills of the grouped GEMM: named, seeded generators of operands, each chosen so that certain wrong kernels must fail.

Most fills make codes and scales directly. `gaussian` and `real` quantize numbers with `refmoe.reference`.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, NamedTuple, TypeVar

import ml_dtypes
import numpy as np
from numpy.typing import NDArray

from refmoe.draw import Draw
from refmoe.families.case import Shape
from refmoe.families.family import Case, Fill, Lack, needs_k
from refmoe.families.real_data import FFN, FFN_INPUT, read_activations, tile_rows
from refmoe.families.vacuity import Limits
from refmoe.formats import MX_BLOCK
from refmoe.reference.quantize import quantize_mxfp4, quantize_mxfp8
from refmoe.reference.tensor import MXTensor

Codes = NDArray[np.int64]
C = TypeVar("C", bound=np.integer[Any])

#: Elements at the end of K that the fill `zero-padded` leaves zero, as 2880 is padded to 2944.
PADDED_K = 64

_IDENTITY = 127
_E4M3_NAN, _SCALE_NAN = 0x7F, 0xFF


class OperandSize(NamedTuple):
    """Extents of the operands: `rows` tokens and `experts` times `n` weight rows, `k` elements each."""

    rows: int
    k: int
    n: int
    experts: int

    @property
    def tokens(self) -> tuple[int, int]:
        """Shape of the tokens' elements."""
        return self.rows, self.k

    @property
    def weights(self) -> tuple[int, int, int]:
        """Shape of the weights' elements."""
        return self.experts, self.n, self.k


@dataclass(frozen=True)
class GemmData:
    """The operands.

    Attributes:
        tokens: mxfp8 [rows, k], in expert order.
        weights: mxfp4 [experts, n, k].
    """

    tokens: MXTensor
    weights: MXTensor


def _fill(
    name: str,
    catches: str,
    make: Callable[[Draw, Shape], GemmData],
    limits: Limits,
    least_k: int = MX_BLOCK,
    unscaled: bool = False,
) -> Fill:
    """A fill that needs at least `least_k`; `make(draw, size)` gives the operands.

    An `unscaled` one is refused with factors of experts, which would move its sums away from the end of a range.
    """

    def lack(case: Case) -> Lack | str | None:
        if unscaled and case.alpha == "distinct":
            return Lack("alpha", f"alpha=none for the fill {name}")
        return needs_k(least_k)(case)

    return Fill(name, catches, make, limits, lack)


def _data(token_codes: Codes, token_scales: Codes, weight_codes: Codes, weight_scales: Codes) -> GemmData:
    """Operands from one code a byte and linear scales."""
    return GemmData(
        MXTensor.of_elements(token_codes.astype(np.uint8), token_scales.astype(np.uint8), "mxfp8"),
        MXTensor.of_elements(weight_codes.astype(np.uint8), weight_scales.astype(np.uint8), "mxfp4"),
    )


def _shapes(size: Shape) -> tuple[tuple[int, int], tuple[int, int, int], tuple[int, int], tuple[int, int, int]]:
    """Shapes of token codes, weight codes, token scales, weight scales."""
    blocks = size.k // MX_BLOCK
    return (size.m, size.k), (size.e, size.n, size.k), (size.m, blocks), (size.e, size.n, blocks)


def _e4m3(draw: Draw, shape: tuple[int, ...]) -> NDArray[np.int64]:
    """Every E4M3 code but NaN, equally often."""
    return draw.integers(127, shape) | draw.integers(2, shape) << 7


def _e2m1(draw: Draw, shape: tuple[int, ...]) -> NDArray[np.int64]:
    return draw.integers(16, shape)


def _around(draw: Draw, shape: tuple[int, ...], reach: int) -> NDArray[np.int64]:
    """Scale bytes of 2^-reach .. 2^reach."""
    return _IDENTITY - reach + draw.integers(2 * reach + 1, shape)


_ONE_TO_FOUR = np.array([0x38, 0x40, 0x44, 0x48])  # E4M3 codes of 1, 2, 3, 4
_WHOLE_E2M1 = np.array([2, 4, 5, 6, 7])  # E2M1 codes of 1, 2, 3, 4, 6
_LATTICE_BITS = 24  # a chain of FP32 blocks is exact while the magnitudes sum to at most 2^24 units
_LARGEST_PRODUCT = 4 * 6


def _integer(draw: Draw, size: Shape) -> GemmData:
    """Whole normal numbers, none zero, times powers of two so small that every sum of magnitudes is exact in FP32."""
    tokens, weights, token_blocks, weight_blocks = _shapes(size)
    spread = max(_LATTICE_BITS - (_LARGEST_PRODUCT * size.k - 1).bit_length(), 0)
    return _data(
        _ONE_TO_FOUR[draw.integers(4, tokens)] | draw.integers(2, tokens) << 7,
        _IDENTITY + draw.integers(spread // 2 + 1, token_blocks),
        _WHOLE_E2M1[draw.integers(5, weights)] | draw.integers(2, weights) << 3,
        _IDENTITY + draw.integers(spread - spread // 2 + 1, weight_blocks),
    )


_FINGERPRINT_REACH = 40


def _fingerprints(shape: tuple[int, ...]) -> NDArray[np.int64]:
    """Scale bytes [..., rows, blocks] of which neighbours along every axis, and at every stride of 128x4, differ."""
    steps = (29, 13, 7)[-len(shape) :]
    number = sum(step * axis for step, axis in zip(steps, np.indices(shape), strict=True))
    return np.asarray(_IDENTITY - _FINGERPRINT_REACH + number % (2 * _FINGERPRINT_REACH + 1), np.int64)


_ONE_HOT_STRIDE = 37  # of K from row to row: neighbours fall into different blocks, and no K of a model divides it


def one_hot(codes: NDArray[C]) -> NDArray[C]:
    """`codes` [..., K] but for one element a row, which moves through K with the row; the others are zeros."""
    rows = codes.reshape(-1, codes.shape[-1])
    row = np.arange(rows.shape[0])
    place = row * _ONE_HOT_STRIDE % codes.shape[-1]
    kept = np.zeros_like(rows)
    kept[row, place] = rows[row, place]
    return kept.reshape(codes.shape)


def _nonzero(draw: Draw, size: Shape) -> tuple[Codes, Codes, Codes, Codes]:
    """Operands for `_data`: no code is zero, and the scales are fingerprints."""
    tokens, weights, token_blocks, weight_blocks = _shapes(size)
    token_codes = 1 + draw.integers(126, tokens) | draw.integers(2, tokens) << 7
    weight_codes = 1 + draw.integers(7, weights) | draw.integers(2, weights) << 3
    return token_codes, _fingerprints(token_blocks), weight_codes, _fingerprints(weight_blocks)


def _one_hot_tokens(draw: Draw, size: Shape) -> GemmData:
    """Each token has one element: every result is one weight times it, under the scales of one block of each side."""
    tokens, token_scales, weights, weight_scales = _nonzero(draw, size)
    return _data(one_hot(tokens), token_scales, weights, weight_scales)


def _one_hot_weights(draw: Draw, size: Shape) -> GemmData:
    """Each weight row has one element, all K taken in turn: every result is one token element times it."""
    tokens, token_scales, weights, weight_scales = _nonzero(draw, size)
    return _data(tokens, token_scales, one_hot(weights), weight_scales)


def _wide_range(draw: Draw, size: Shape) -> GemmData:
    """All codes under scales of 2^-20 .. 2^20: in every chain terms are cut, and cut again by later blocks."""
    tokens, weights, token_blocks, weight_blocks = _shapes(size)
    return _data(
        _e4m3(draw, tokens), _around(draw, token_blocks, 20), _e2m1(draw, weights), _around(draw, weight_blocks, 20)
    )


def _gaussian(draw: Draw, size: Shape) -> GemmData:
    tokens, weights, _, _ = _shapes(size)
    return GemmData(
        quantize_mxfp8(draw.normal(tokens).astype(ml_dtypes.bfloat16)),
        quantize_mxfp4(draw.normal(weights).astype(ml_dtypes.bfloat16)),
    )


def _positive(draw: Draw, size: Shape) -> GemmData:
    """Nothing cancels, so truncation toward zero can only lose: no result may exceed the exact sum."""
    tokens, weights, token_blocks, weight_blocks = _shapes(size)
    return _data(
        1 + draw.integers(126, tokens),
        _around(draw, token_blocks, 6),
        1 + draw.integers(7, weights),
        _around(draw, weight_blocks, 6),
    )


#: Binades by which those rows of both sides are small whose products sum to subnormal numbers. Their largest exponents
#: lie about -133, the floor of the alignment.
_TINY = 73


def _specials(draw: Draw, size: Shape) -> GemmData:
    """By row: NaN codes, NaN scales, scale 0x00, scales that overflow, and scales whose products underflow."""
    tokens, weights, token_blocks, weight_blocks = _shapes(size)
    codes, scales = _e4m3(draw, tokens), _around(draw, token_blocks, 3)
    weight_scales = _around(draw, weight_blocks, 3)
    row, blocks = np.arange(size.m), token_blocks[-1]
    element, block = draw.integers(size.k, (size.m,)), draw.integers(blocks, (size.m,))
    _put(codes, row[row % 6 == 1], element, _E4M3_NAN | 0x80)
    _put(scales, row[row % 6 == 2], block, _SCALE_NAN)
    scales[row % 6 == 3] = 0x00
    _put(scales, row[row % 6 == 4], block, 0xFE)
    scales[row % 6 == 5] -= _TINY

    flat = weight_scales.reshape(-1, blocks)
    row = np.arange(flat.shape[0])
    block = draw.integers(blocks, (row.size,))
    _put(flat, row[row % 7 == 1], block, _SCALE_NAN)
    flat[row % 7 == 2] = 0x00
    _put(flat, row[row % 7 == 3], block, 0xFE)
    flat[row % 7 == 4] -= _TINY
    return _data(codes, scales, _e2m1(draw, weights), weight_scales)


def _put(array: NDArray[np.int64], rows: NDArray[np.int64], columns: NDArray[np.int64], value: int) -> None:
    """Set one element of each of `rows`; `columns` has one for every row of the array."""
    array[rows, columns[rows]] = value


def _zero_specials(draw: Draw, size: Shape) -> GemmData:
    """In one block of K zeros on either side, NaN codes and NaN scales, in each pair of which some row is.

    What is not a number stays none if all that it is multiplied with is zero.
    """
    tokens, weights, token_blocks, weight_blocks = _shapes(size)
    codes, scales = _e4m3(draw, tokens), _around(draw, token_blocks, 3)
    weight_codes, weight_scales = _e2m1(draw, weights), _around(draw, weight_blocks, 3)
    block = int(draw.integers(token_blocks[-1], ()))
    within = slice(block * MX_BLOCK, (block + 1) * MX_BLOCK)
    kind = np.arange(size.m) % 5
    codes[(kind == 1) | (kind == 2), within] &= 0x80
    codes[kind == 3, block * MX_BLOCK + 1] = _E4M3_NAN
    scales[(kind == 2) | (kind == 4), block] = _SCALE_NAN
    kind = np.arange(size.n) % 4
    weight_codes[:, (kind == 1) | (kind == 2), within] &= 0x8
    weight_scales[:, kind >= 2, block] = _SCALE_NAN
    return _data(codes, scales, weight_codes, weight_scales)


def _shared_weights(draw: Draw, size: Shape) -> GemmData:
    """Every expert has the same weights, so that all groups together are one group."""
    one = _wide_range(draw, dataclasses.replace(size, e=1))
    codes, scales = (np.repeat(part, size.e, axis=0) for part in (one.weights.codes, one.weights.scales))
    return GemmData(one.tokens, MXTensor(codes, scales, "mxfp4"))


def _zero_padded(draw: Draw, size: Shape) -> GemmData:
    """The tokens' last 64 elements are zeros of both signs, whatever their scales and the weights there are."""
    data = _wide_range(draw, size)
    codes, scales = data.tokens.codes.copy(), data.tokens.scales.copy()
    codes[:, -PADDED_K:] &= 0x80
    scales[:, -PADDED_K // MX_BLOCK :] = 0xFE
    return GemmData(MXTensor(codes, scales, "mxfp8"), data.weights)


#: Scales of a token or of a weight row: two of the larger take a product past FP32's largest number.
_CANCELLING = np.array([_IDENTITY + 20, _IDENTITY + 76])


def _cancelling(draw: Draw, size: Shape) -> GemmData:
    """In every block the second 16 products cancel the first, but one for every third token.

    Where both scales are the larger ones, terms that no FP32 can hold add up to exactly zero.
    """
    tokens, weights, token_blocks, weight_blocks = _shapes(size)
    codes, weight_codes = _e4m3(draw, tokens), _e2m1(draw, weights)
    half = MX_BLOCK // 2
    for start in range(0, size.k, MX_BLOCK):
        first, second = slice(start, start + half), slice(start + half, start + MX_BLOCK)
        codes[:, second] = codes[:, first]
        weight_codes[..., second] = weight_codes[..., first] ^ 8
    row = np.arange(size.m)
    codes[row % 3 == 1, MX_BLOCK - 1 :: MX_BLOCK] ^= 0x80
    token_scales = _CANCELLING[(row % 3 == 0).astype(np.int64)]
    weight_scales = _CANCELLING[(np.arange(size.n) % 2 == 0).astype(np.int64)]
    return _data(
        codes,
        np.broadcast_to(token_scales[:, None], token_blocks),
        weight_codes,
        np.broadcast_to(weight_scales[:, None], weight_blocks),
    )


def _zero_rows(draw: Draw, size: Shape) -> GemmData:
    """Every third token is zeros of either sign, and so is every fifth row of weights: sums that are exactly zero."""
    data = _wide_range(draw, size)
    codes = data.tokens.codes.copy()
    codes[::3] &= 0x80
    weights = data.weights.codes.copy()
    weights[:, ::5] &= 0x88
    return GemmData(MXTensor(codes, data.tokens.scales, "mxfp8"), MXTensor(weights, data.weights.scales, "mxfp4"))


#: Codes of 112, 12 and 3.5, whose sum is the largest BF16 number times 2^-120.
_LARGEST_BF16 = np.array([0x6E, 0x54, 0x46])
#: Codes of 0.21875, 0.25 and 0.28125, which are below, on and above half a unit of its last place; and of 16.
_HALF_UNITS = np.array([0x26, 0x28, 0x29, 0x58])


def _overflow(draw: Draw, size: Shape) -> GemmData:
    """Sums a little below, on and above the middle of the largest BF16 number and Inf, and beyond FP32's largest."""
    tokens, weights, token_blocks, weight_blocks = _shapes(size)
    codes = np.zeros(tokens, np.int64)
    row = np.arange(size.m)
    places = (draw.integers(size.k, (size.m, 1)) + np.arange(4) * 7) % MX_BLOCK
    codes[row[:, None], places] = np.concatenate(
        [np.tile(_LARGEST_BF16, (size.m, 1)), _HALF_UNITS[row % _HALF_UNITS.size][:, None]], axis=1
    )
    ones = np.broadcast_to(2 | draw.integers(2, (*weights[:2], 1)) << 3, weights)  # of one sign along K
    return _data(codes, np.full(token_blocks, _IDENTITY + 60), ones, np.full(weight_blocks, _IDENTITY + 61))


def _scale_bytes(draw: Draw, size: Shape) -> GemmData:
    """Every scale byte in turn as that of a whole token and of a whole weight row, each of them with every code.

    The other side's scales run through the same bytes in other steps, so that for each byte some product is a number.
    """
    _, _, token_blocks, weight_blocks = _shapes(size)
    element = np.arange(size.k) * 37
    codes = (element + 11 * np.arange(size.m)[:, None]) % 256
    codes = np.where(codes & 0x7F == _E4M3_NAN, codes ^ 0x40, codes)
    number = np.arange(size.e * size.n).reshape(size.e, size.n, 1)
    few = size.m < size.n
    token_scales = np.arange(size.m)[:, None] * (51 if few else 1) % 256
    weight_scales = number * (1 if few else 36) % 256
    return _data(
        codes,
        np.broadcast_to(token_scales, token_blocks),
        (element * 5 + 3 * number) % 16,
        np.broadcast_to(weight_scales, weight_blocks),
    )


_WIDTH_OF_UP = 384


def real_operands(draw: Draw, size: OperandSize) -> tuple[NDArray[Any], NDArray[Any]]:
    """A model's own activations and weights, cut into experts: of its up projection, past K = 384 of its down one.

    Returns:
        Tokens BF16 [rows, K], weights BF16 [experts, N, K].
    """
    up = size.k <= _WIDTH_OF_UP
    weights = read_activations(FFN, "layer2.ffn_up.weight" if up else "layer2.ffn_down.weight")
    tokens = read_activations(FFN_INPUT) if up else read_activations(FFN, "layer2.ffn_mid")
    first = int(draw.integers(tokens.patterns.shape[0], (1,))[0])
    rows = tile_rows(tokens.patterns, size.rows, size.k, first)
    cut = tile_rows(weights.patterns, size.experts * size.n, size.k).reshape(size.weights)
    return rows.view(ml_dtypes.bfloat16), cut.view(ml_dtypes.bfloat16)


def _real(draw: Draw, size: Shape) -> GemmData:
    tokens, weights = real_operands(draw, OperandSize(size.m, size.k, size.n, size.e))
    return GemmData(quantize_mxfp8(tokens), quantize_mxfp4(weights))


_RANDOM_SUMS = "sums of many random products are neither zero nor small against their terms"
_ONE_PRODUCT = Limits(zeros=0.0, scales=16, reason="each result is one product of nonzero codes")
_WIDE_SCALES = Limits(zeros=0.02, scales=16, reason="scales are drawn from 41 binades")

#: The generators by name.
FILLS = Fill.by_name(
    _fill(
        "gaussian",
        "what published tests catch, whose data this is",
        _gaussian,
        # Its blocks have one or two scales, so it shows no permutation of scales; other fills do.
        Limits(zeros=0.02, scales=1, reason=_RANDOM_SUMS),
    ),
    _fill(
        "integer",
        "anything but the sum: every order and every model is exact here, and so is int64",
        _integer,
        Limits(zeros=0.05, reason="few sums of many small integers cancel"),
    ),
    _fill(
        "one-hot-tokens",
        "scales ignored, shifted, permuted or of the wrong expert; swapped nibbles; wrong rows of weights",
        _one_hot_tokens,
        _ONE_PRODUCT,
    ),
    _fill(
        "one-hot-weights",
        "the same on the tokens' side; any element of K left out or taken twice",
        _one_hot_weights,
        _ONE_PRODUCT,
    ),
    _fill("wide-range", "another order of K; another alignment or rounding of the sum", _wide_range, _WIDE_SCALES),
    _fill(
        "positive",
        "rounding to nearest or away in the accumulator; a dropped part of K",
        _positive,
        Limits(zeros=0.0, scales=8, reason="positive terms sum to no zero"),
    ),
    _fill(
        "specials",
        "NaN or infinity lost or spread, scale byte 0x00 taken for zero, results flushed to zero",
        _specials,
        Limits(zeros=0.5, nans=0.9, bound=1.0, reason="a third of its tokens and a quarter of its weights are so"),
    ),
    _fill(
        "zero-specials",
        "a NaN lost beside zeros: in a block that is skipped since its codes are zeros",
        _zero_specials,
        Limits(zeros=0.5, nans=0.9, bound=1.0, reason="three of five tokens and half of the weight rows have a NaN"),
    ),
    _fill("shared-weights", "an expert's rows that depend on how rows are grouped", _shared_weights, _WIDE_SCALES),
    _fill(
        "zero-padded",
        "zeros that take part in the alignment; padding of K that is not inert",
        _zero_padded,
        _WIDE_SCALES,
        least_k=PADDED_K + MX_BLOCK,
    ),
    _fill(
        "zero-rows",
        "the sign of a zero lost or made up in the epilogue",
        _zero_rows,
        Limits(zeros=1.0, nans=0.5, scales=16, reason="the sums are zero, whose sign is asked for"),
    ),
    _fill(
        "cancelling",
        "products of another alignment that cancel; a sum of zero taken for infinity",
        _cancelling,
        Limits(zeros=0.9, nans=0.9, scales=2, bound=1.0, reason="two of three tokens have sums of exactly zero"),
    ),
    _fill(
        "overflow",
        "BF16 that saturates, or overflows too early or too late",
        _overflow,
        Limits(nans=0.8, scales=1, reason="three of four sums round to Inf"),
        unscaled=True,
    ),
    _fill(
        "scale-bytes",
        "a scale byte that is flushed, clamped or taken for NaN; a code of another format",
        _scale_bytes,
        Limits(zeros=0.96, nans=0.6, scales=5, bound=1.0, reason="products of the ends of E8M0 overflow or vanish"),
    ),
    _fill(
        "real",
        "what only real weights and outlier channels show",
        _real,
        Limits(zeros=0.02, reason="a model's hidden states times its weights are ordinary numbers"),
    ),
)
