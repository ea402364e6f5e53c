"""Fills of the NVFP4 GEMM: seeded generators of operands, each chosen so that certain wrong kernels must fail."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from fractions import Fraction
from types import MappingProxyType
from typing import Any, NamedTuple

import ml_dtypes
import numpy as np
from numpy.typing import NDArray

from refmoe.draw import Draw
from refmoe.families.family import Fill, needs_k
from refmoe.families.gemm.epilogue import (
    FloatArray,
)
from refmoe.families.gemm.fills import OperandSize, one_hot, real_operands
from refmoe.families.vacuity import Limits
from refmoe.formats import MX_BLOCK, NVFP4, UE4M3
from refmoe.reference.layout import pack_fp4
from refmoe.reference.nvfp4 import NVFP4Tensor, quantize_nvfp4
from refmoe.reference.nvfp4_gemm import nvfp4_alpha

BLOCK = NVFP4.block
SIGN, _ONE = 8, 0x38
NAN_SCALE, _LARGEST_SCALE, SCALE_SIGN = 0x7F, UE4M3.max_code, 0x80
#: Elements of one instruction, and its groups.
_STEP, _GROUPS = 64, 4
#: Elements at the end of K that the fill `zero-padded` leaves zero, as 2880 is padded to 2944.
PADDED_K = 64

Codes = NDArray[np.int64]
Bytes = NDArray[np.uint8]


class Size(OperandSize):
    """Extents of the operands, and of their scales."""

    @property
    def token_blocks(self) -> tuple[int, int]:
        """Shape of the tokens' scales."""
        return self.rows, self.k // BLOCK

    @property
    def weight_blocks(self) -> tuple[int, int, int]:
        """Shape of the weights' scales."""
        return self.experts, self.n, self.k // BLOCK


class Operands(NamedTuple):
    """Packed codes and linear scales of both sides.

    Attributes:
        tokens: uint8 [rows, k/2].
        token_scales: uint8 [rows, k/16].
        weights: uint8 [experts, n, k/2].
        weight_scales: uint8 [experts, n, k/16].
        alpha: float32 [experts], what the global decode scales multiply to; None where nothing was quantized.
    """

    tokens: Bytes
    token_scales: Bytes
    weights: Bytes
    weight_scales: Bytes
    alpha: FloatArray | None = None


def _operands(tokens: Codes, token_scales: Codes, weights: Codes, weight_scales: Codes) -> Operands:
    """From one code a byte."""
    return Operands(
        pack_fp4(tokens.astype(np.uint8)),
        token_scales.astype(np.uint8),
        pack_fp4(weights.astype(np.uint8)),
        weight_scales.astype(np.uint8),
    )


def _any(draw: Draw, shape: tuple[int, ...]) -> Codes:
    return draw.integers(16, shape)


def _nonzero(draw: Draw, shape: tuple[int, ...]) -> Codes:
    return 1 + draw.integers(7, shape) | draw.integers(2, shape) << 3


def _between(draw: Draw, shape: tuple[int, ...], low: int, high: int) -> Codes:
    """Scale bytes low .. high."""
    return low + draw.integers(high - low + 1, shape)


_FINITE = (0x00, _LARGEST_SCALE)
#: Bytes of 2^-2 .. 2^2.
_ORDINARY = (0x28, 0x48)


def _wide_range(draw: Draw, size: Size) -> Operands:
    """All codes under all finite scales."""
    return _operands(
        _any(draw, size.tokens),
        _between(draw, size.token_blocks, *_FINITE),
        _any(draw, size.weights),
        _between(draw, size.weight_blocks, *_FINITE),
    )


_WHOLE = np.array([2, 4, 5, 6, 7])  # codes of 1, 2, 3, 4, 6
_SUM_BITS = 24  # a chain of FP32 blocks is exact while the magnitudes sum to at most 2^24 units
_LARGEST_PRODUCT = 6 * 6
_LARGEST_WHOLE_SCALE = 15  # all whole numbers up to it have a byte


def _integer(draw: Draw, size: Size) -> Operands:
    """Whole numbers, none zero, under whole scales so small that every sum of magnitudes is exact in FP32."""
    reach = int(((1 << _SUM_BITS) // (_LARGEST_PRODUCT * size.k)) ** 0.5)
    scales = np.array([UE4M3.encode(value) for value in range(1, min(reach, _LARGEST_WHOLE_SCALE) + 1)])

    def codes(shape: tuple[int, ...]) -> Codes:
        return np.asarray(_WHOLE[draw.integers(_WHOLE.size, shape)] | draw.integers(2, shape) << 3)

    return _operands(
        codes(size.tokens),
        scales[draw.integers(scales.size, size.token_blocks)],
        codes(size.weights),
        scales[draw.integers(scales.size, size.weight_blocks)],
    )


#: A prime, so that no stride of a layout divides it.
_FINGERPRINTS = 113


def _fingerprints(shape: tuple[int, ...]) -> Codes:
    """Scale bytes [..., rows, blocks] of which neighbours along every axis, and at every stride of 128x4, differ."""
    steps = (29, 13, 7)[-len(shape) :]
    return np.asarray(1 + sum(step * axis for step, axis in zip(steps, np.indices(shape), strict=True)) % _FINGERPRINTS)


def _one_hot_tokens(draw: Draw, size: Size) -> Operands:
    """Each token has one element: every result is one weight times it, under the scales of one block of each side."""
    return _operands(
        one_hot(_nonzero(draw, size.tokens)),
        _fingerprints(size.token_blocks),
        _nonzero(draw, size.weights),
        _fingerprints(size.weight_blocks),
    )


def _one_hot_weights(draw: Draw, size: Size) -> Operands:
    """Each weight row has one element, all K taken in turn: every result is one token element times it."""
    return _operands(
        _nonzero(draw, size.tokens),
        _fingerprints(size.token_blocks),
        one_hot(_nonzero(draw, size.weights)),
        _fingerprints(size.weight_blocks),
    )


def _scale_bytes(draw: Draw, size: Size) -> Operands:
    """Every byte as the scale of a whole row, NaN and bytes with a sign included; each token has one byte as well."""
    experts, n, blocks = size.weight_blocks
    weight_scales = np.arange(experts * n).reshape(experts, n, 1) % 256
    token_scales = _between(draw, (size.rows, 1), 1, _LARGEST_SCALE)
    return _operands(
        _nonzero(draw, size.tokens),
        np.repeat(token_scales, blocks, axis=1),
        _nonzero(draw, size.weights),
        np.repeat(weight_scales, blocks, axis=2),
    )


#: Scale bytes of at least 2^7, and of at most 2^-4.
_HUGE, _TINY = (0x70, _LARGEST_SCALE), (0x01, 0x18)


def _cancelling(draw: Draw, size: Size) -> Operands:
    """In each 64 of K two groups under huge scales cancel; what is left of two small ones is the result."""
    tokens, weights = _any(draw, size.tokens), _nonzero(draw, size.weights)
    token_scales = _between(draw, size.token_blocks, *_TINY)
    weight_scales = _between(draw, size.weight_blocks, *_TINY)
    for block in range(0, size.k // BLOCK - 1, _GROUPS):
        first, second = (slice(b * BLOCK, (b + 1) * BLOCK) for b in (block, block + 1))
        tokens[:, second] = tokens[:, first]
        weights[..., second] = weights[..., first] ^ SIGN
        for scales in (token_scales, weight_scales):
            shape = scales.shape[:-1]
            scales[..., block] = _between(draw, shape, *_HUGE)
            scales[..., block + 1] = scales[..., block]
    return _operands(tokens, token_scales, weights, weight_scales)


def _positive(draw: Draw, size: Size) -> Operands:
    """Nothing cancels, so truncation toward zero can only lose: no result may exceed the exact sum."""
    return _operands(
        1 + draw.integers(7, size.tokens),
        _between(draw, size.token_blocks, *_ORDINARY),
        1 + draw.integers(7, size.weights),
        _between(draw, size.weight_blocks, *_ORDINARY),
    )


def _specials(draw: Draw, size: Size) -> Operands:
    """By row: a NaN scale in one block, with or without its sign; scales of zero, subnormal, signed, the largest."""
    token_scales = _between(draw, size.token_blocks, *_ORDINARY)
    weight_scales = _between(draw, size.weight_blocks, *_ORDINARY)
    for scales, kinds in ((token_scales, 7), (weight_scales.reshape(-1, size.k // BLOCK), 8)):
        row = np.arange(scales.shape[0])
        kind, block = row % kinds, draw.integers(scales.shape[1], row.shape)
        for of_kind, byte in ((1, NAN_SCALE), (2, NAN_SCALE | SCALE_SIGN)):
            chosen = row[kind == of_kind]
            scales[chosen, block[chosen]] = byte
        scales[kind == 3] = np.where(row[kind == 3, None] % 2, 0x00, SCALE_SIGN)
        scales[kind == 4] = _between(draw, scales[kind == 4].shape, 1, 7)
        scales[kind == 5] |= SCALE_SIGN
        scales[kind == 6] = _LARGEST_SCALE
    return _operands(_any(draw, size.tokens), token_scales, _any(draw, size.weights), weight_scales)


def _zero_specials(draw: Draw, size: Size) -> Operands:
    """In one block of K zeros beside NaN scales, in each pair of which some row is.

    What is not a number stays none if all that it is multiplied with is zero.
    """
    codes, scales = _any(draw, size.tokens), _between(draw, size.token_blocks, *_ORDINARY)
    weights, weight_scales = _any(draw, size.weights), _between(draw, size.weight_blocks, *_ORDINARY)
    block = int(draw.integers(size.k // BLOCK, ()))
    within = slice(block * BLOCK, (block + 1) * BLOCK)
    kind = np.arange(codes.shape[0]) % 4
    codes[(kind == 1) | (kind == 2), within] &= 0x8
    scales[kind >= 2, block] = NAN_SCALE
    kind = np.arange(weights.shape[1]) % 4
    weights[:, (kind == 1) | (kind == 2), within] &= 0x8
    weight_scales[:, kind >= 2, block] = NAN_SCALE
    return _operands(codes, scales, weights, weight_scales)


def _shared_weights(draw: Draw, size: Size) -> Operands:
    """Every expert has the same weights, so that all groups together are one group."""
    one = _wide_range(draw, size._replace(experts=1))
    codes, scales = (np.repeat(part, size.experts, axis=0) for part in (one.weights, one.weight_scales))
    return one._replace(weights=codes, weight_scales=scales)


def _zero_padded(draw: Draw, size: Size) -> Operands:
    """The tokens' last 64 elements are zeros of both signs, under the largest scale."""
    data = _wide_range(draw, size)
    tokens, scales = data.tokens.copy(), data.token_scales.copy()
    tokens[:, -PADDED_K // 2 :] &= SIGN << 4 | SIGN
    scales[:, -PADDED_K // BLOCK :] = _LARGEST_SCALE
    return data._replace(tokens=tokens, token_scales=scales)


def _quantized(tokens: NDArray[Any], weights: NDArray[Any]) -> Operands:
    """BF16 rows, and weights of each expert under a global scale of its own."""
    left = quantize_nvfp4(tokens)
    right: list[NVFP4Tensor] = [quantize_nvfp4(expert) for expert in weights]
    globals_ = np.array([tensor.global_decode_scale for tensor in right], np.float32)
    return Operands(
        left.codes,
        left.scales,
        np.stack([tensor.codes for tensor in right]),
        np.stack([tensor.scales for tensor in right]),
        nvfp4_alpha(left.global_decode_scale, globals_),
    )


def _gaussian(draw: Draw, size: Size) -> Operands:
    # Rows of different size, so that block scales take many bytes.
    spread = np.exp2(-draw.integers(6, (size.rows, 1)))
    return _quantized(
        (draw.normal(size.tokens) * spread).astype(ml_dtypes.bfloat16),
        draw.normal(size.weights).astype(ml_dtypes.bfloat16),
    )


def _zero_rows(draw: Draw, size: Size) -> Operands:
    """Every third token is zeros of either sign, and so is every fifth row of weights: sums that are exactly zero."""
    data = _wide_range(draw, size)
    tokens, weights = data.tokens.copy(), data.weights.copy()
    tokens[::3] &= SIGN << 4 | SIGN
    weights[:, ::5] &= SIGN << 4 | SIGN
    return data._replace(tokens=tokens, weights=weights)


#: Pairs of code and scale of 96, 24, 6 and 1.5, whose sum times 2^121 is the largest BF16 number.
_LARGEST_BF16 = ((7, 16.0), (7, 4.0), (7, 1.0), (3, 1.0))
#: Those of 0.1875, 0.25 and 0.3125 (below, on and above half a unit of its last place), and of 24.
_HALF_UNITS = ((3, 0.125), (1, 0.5), (1, 0.625), (7, 4.0))


def _overflow(draw: Draw, size: Size) -> Operands:
    """Sums that a factor of 2^121 takes to the middle of the largest BF16 number and Inf, to either side and beyond."""
    tokens = np.zeros(size.tokens, np.int64)
    scales = np.full(size.token_blocks, _ONE, np.int64)
    for row in range(size.rows):
        pairs = (*_LARGEST_BF16, _HALF_UNITS[row % len(_HALF_UNITS)])
        for block, (code, scale) in enumerate(pairs):
            tokens[row, block * BLOCK + int(draw.integers(BLOCK, (1,))[0])] = code
            scales[row, block] = UE4M3.encode(Fraction(scale))
    ones = np.broadcast_to(2 | draw.integers(2, (*size.weights[:2], 1)) << 3, size.weights)  # of one sign along K
    made = _operands(tokens, scales, ones, np.full(size.weight_blocks, _ONE))
    return made._replace(alpha=np.full(size.experts, 2.0**121, np.float32))


def _real(draw: Draw, size: Size) -> Operands:
    return _quantized(*real_operands(draw, size))


def _fill(
    name: str, catches: str, make: Callable[[Draw, Size], Operands], reason: str, least_k: int = MX_BLOCK, **limits: Any
) -> Fill:
    """A fill that needs at least `least_k`; `make(draw, size)` gives the operands."""
    usual = {"zeros": 0.02, "reason": reason}

    return Fill(name, catches, make, Limits(**{**usual, **limits}), needs_k(least_k))


_MANY_SCALES = "scales are drawn from all bytes"

#: The generators by name.
FILLS: Mapping[str, Fill] = MappingProxyType(
    {
        fill.name: fill
        for fill in (
            _fill(
                "gaussian",
                "the data of published tests, for comparison with them",
                _gaussian,
                "sums of many random products are neither zero nor small against their terms",
            ),
            _fill(
                "integer",
                "anything but the sum: every order and every model is exact here, and so is int64",
                _integer,
                "few sums of many small integers cancel",
                zeros=0.05,
            ),
            _fill(
                "one-hot-tokens",
                "scales ignored, shifted, permuted or of the wrong expert; swapped nibbles; wrong rows of weights",
                _one_hot_tokens,
                "each result is one product of nonzero codes",
                zeros=0.0,
                scales=16,
            ),
            _fill(
                "one-hot-weights",
                "the same on the tokens' side; any element of K left out or taken twice",
                _one_hot_weights,
                "each result is one product of nonzero codes",
                zeros=0.0,
                scales=16,
            ),
            _fill(
                "wide-range", "another order of K; another rounding of the sum", _wide_range, _MANY_SCALES, scales=16
            ),
            _fill(
                "cancelling",
                "another alignment; groups of another size; terms aligned by their values and not by their scales",
                _cancelling,
                "small terms survive the alignment to large ones that cancel",
                zeros=0.05,
                scales=16,
                bound=0.1,
            ),
            _fill(
                "scale-bytes",
                "a scale byte read as another format; the sign of a scale taken; NaN taken for 480",
                _scale_bytes,
                "one row in 128 has a scale of zero, and one in 128 NaN",
                zeros=0.05,
                nans=0.05,
            ),
            _fill(
                "positive",
                "rounding to nearest or away in the accumulator; a dropped part of K",
                _positive,
                "positive terms sum to no zero",
                zeros=0.0,
                scales=8,
            ),
            _fill(
                "specials",
                "NaN lost or spread, zero and subnormal scales, the sign of a scale, results flushed to zero",
                _specials,
                "every seventh token and every eighth weight row has a scale of each special kind",
                zeros=0.5,
                nans=0.9,
                bound=1.0,
            ),
            _fill(
                "zero-specials",
                "a NaN lost beside zeros: in a block that is skipped since its codes are zeros",
                _zero_specials,
                "half of the tokens and of the weight rows have a NaN scale",
                zeros=0.5,
                nans=0.9,
                bound=1.0,
            ),
            _fill(
                "shared-weights",
                "an expert's rows that depend on how rows are grouped",
                _shared_weights,
                _MANY_SCALES,
                scales=16,
            ),
            _fill(
                "zero-padded",
                "zeros that take part in the alignment; padding of K that is not inert",
                _zero_padded,
                _MANY_SCALES,
                least_k=PADDED_K + MX_BLOCK,
                scales=16,
            ),
            _fill(
                "zero-rows",
                "the sign of a zero lost or made up in the epilogue",
                _zero_rows,
                "the sums are zero, whose sign is asked for",
                zeros=1.0,
                nans=0.5,
                scales=16,
            ),
            _fill(
                "overflow",
                "BF16 that saturates, or overflows too early or too late",
                _overflow,
                "three of four sums round to Inf",
                least_k=(len(_LARGEST_BF16) + 1) * BLOCK,
                nans=0.8,
                scales=1,
            ),
            _fill(
                "real",
                "what only real weights and outlier channels show",
                _real,
                "a model's hidden states times its weights are ordinary numbers",
            ),
        )
    }
)
