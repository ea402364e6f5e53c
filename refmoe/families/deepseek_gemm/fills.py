"""Fills of the block FP8 GEMM: seeded generators of operands, each chosen so that certain wrong kernels must fail.

What decides such a kernel: which rows are an expert's, which scale a block has, what is rounded when a partial sum is
promoted, and in which order. Scales are FP32 numbers of all 24 significant bits unless a fill says otherwise, so that
each rounding shows.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import Any, NamedTuple

import ml_dtypes
import numpy as np
from numpy.typing import NDArray

from refmoe.draw import Draw
from refmoe.families.family import Fill, needs_k
from refmoe.families.gemm.fills import OperandSize, one_hot, real_operands
from refmoe.families.vacuity import Limits
from refmoe.formats import E4M3
from refmoe.reference.block_fp8 import quantize_block_fp8
from refmoe.reference.deepseek_gemm import BLOCK, WEIGHT_TILE

Bytes = NDArray[np.uint8]
Codes = NDArray[np.int64]
Floats = NDArray[np.float32]

SIGN = 0x80
NAN_CODE, LARGEST_CODE = 0x7F, E4M3.max_code
#: More codes than these repeat: a prime, so that neighbouring rows and experts of any model are at different places.
_DRAWN_CODES = 1_000_003


class Size(OperandSize):
    """Extents of the operands, and of their scales."""

    @property
    def token_blocks(self) -> tuple[int, int]:
        """Shape of the tokens' scales."""
        return self.rows, self.k // BLOCK

    @property
    def weight_blocks(self) -> tuple[int, int, int]:
        """Shape of the weights' scales."""
        return self.experts, self.n // WEIGHT_TILE.rows, self.k // BLOCK


class Operands(NamedTuple):
    """E4M3 codes and FP32 scales of both sides, by row.

    Attributes:
        tokens: uint8 [rows, k].
        token_scales: float32 [rows, k/128].
        weights: uint8 [experts, n, k].
        weight_scales: float32 [experts, n/128, k/128].
    """

    tokens: Bytes
    token_scales: Floats
    weights: Bytes
    weight_scales: Floats


def _any(draw: Draw, shape: tuple[int, ...]) -> Bytes:
    """Any code but NaN, zeros of both signs among them; past `_DRAWN_CODES` of them they repeat."""
    size = int(np.prod(shape))
    drawn = draw.words(-(-min(size, _DRAWN_CODES) // 8)).view(np.uint8)[: min(size, _DRAWN_CODES)].copy()
    drawn[drawn & 0x7F == NAN_CODE] ^= 0x40
    return np.resize(drawn, shape)


def _ordinary(draw: Draw, shape: tuple[int, ...]) -> Bytes:
    """Codes of 2^-2 .. 2^2 of either sign, none zero."""
    codes = 0x28 + draw.integers(0x21, shape) | draw.integers(2, shape) << 7
    return codes.astype(np.uint8)


def _scales(draw: Draw, shape: tuple[int, ...], low: int, high: int) -> Floats:
    """Positive FP32 numbers of all mantissas, with exponents low .. high."""
    bits = 127 + low + draw.integers(high - low + 1, shape) << 23 | draw.integers(1 << 23, shape)
    return bits.astype(np.uint32).view(np.float32)


def _wide_range(draw: Draw, size: Size) -> Operands:
    """All codes, under scales whose products span 48 binades."""
    return Operands(
        _any(draw, size.tokens),
        _scales(draw, size.token_blocks, -12, 12),
        _any(draw, size.weights),
        _scales(draw, size.weight_blocks, -12, 12),
    )


def _near(draw: Draw, size: Size) -> Operands:
    """All codes, under scales of one binade, so that every block's rounding counts."""
    return Operands(
        _any(draw, size.tokens),
        _scales(draw, size.token_blocks, 0, 0),
        _any(draw, size.weights),
        _scales(draw, size.weight_blocks, 0, 0),
    )


#: Codes of 1 .. 8. A block sums to at most 2^13, which every model has exactly.
_WHOLE = np.array([E4M3.encode(value) for value in range(1, 9)])
#: The product of two scales is at most 36, and 2^13 * 36 * 56 blocks of K = 7168 stays below 2^24.
_LARGEST_WHOLE_SCALE = 6


def _integer(draw: Draw, size: Size) -> Operands:
    """Whole numbers, none zero, under whole scales so small that every sum of magnitudes is exact in FP32."""

    def codes(shape: tuple[int, ...]) -> Bytes:
        return np.asarray(_WHOLE[draw.integers(_WHOLE.size, shape)] | draw.integers(2, shape) << 7).astype(np.uint8)

    def scales(shape: tuple[int, ...]) -> Floats:
        return (1 + draw.integers(_LARGEST_WHOLE_SCALE, shape)).astype(np.float32)

    return Operands(codes(size.tokens), scales(size.token_blocks), codes(size.weights), scales(size.weight_blocks))


def _fingerprints(shape: tuple[int, ...]) -> Floats:
    """Scales [..., rows, blocks] that are all different along every axis, and whose products tell which two they are.

    The exponents of neighbours differ by steps that no tile divides.
    """
    numbers = np.arange(int(np.prod(shape))).reshape(shape)
    steps = sum(step * axis for step, axis in zip((29, 13, 7)[-len(shape) :], np.indices(shape), strict=True))
    bits = (112 + steps % 31) << 23 | numbers * 7919 % (1 << 23)
    return np.asarray(bits).astype(np.uint32).view(np.float32)


def _one_hot_tokens(draw: Draw, size: Size) -> Operands:
    """Each token has one element: every result is one weight times it, under the scales of one block of each side."""
    return Operands(
        one_hot(_ordinary(draw, size.tokens)),
        _fingerprints(size.token_blocks),
        _ordinary(draw, size.weights),
        _fingerprints(size.weight_blocks),
    )


def _one_hot_weights(draw: Draw, size: Size) -> Operands:
    """Each weight row has one element, all K taken in turn: every result is one token element times it."""
    return Operands(
        _ordinary(draw, size.tokens),
        _fingerprints(size.token_blocks),
        one_hot(_ordinary(draw, size.weights)),
        _fingerprints(size.weight_blocks),
    )


def _cancelling(draw: Draw, size: Size) -> Operands:
    """Blocks in pairs that cancel under equal scales: what the one rounding of the first of them lost is left.

    A product that is rounded before it is added leaves nothing, and in another order something else is left.
    """
    data = _near(draw, size)
    tokens, weights = data.tokens.copy(), data.weights.copy()
    token_scales, weight_scales = data.token_scales.copy(), data.weight_scales.copy()
    for block in range(0, size.k // BLOCK - 1, 2):
        first, second = (slice(b * BLOCK, (b + 1) * BLOCK) for b in (block, block + 1))
        tokens[:, second] = tokens[:, first]
        weights[..., second] = weights[..., first] ^ SIGN
        for scales in (token_scales, weight_scales):
            scales[..., block + 1] = scales[..., block]
    return Operands(tokens, token_scales, weights, weight_scales)


def _aligned(draw: Draw, size: Size) -> Operands:
    """In each 32 of K two large products cancel beside 30 small ones: the alignment of a model decides what is left."""
    tokens, weights = _ordinary(draw, size.tokens), _ordinary(draw, size.weights)
    # Small ones are 2^-9 .. 2 of either side, large ones 8 .. 448: what is cut of the small ones differs from 32 to 32.
    for codes in (tokens, weights):
        codes[:] = codes & SIGN | 1 + draw.integers(0x3F, codes.shape).astype(np.uint8)
    for first in range(0, size.k, 32):
        for codes, turn in ((tokens, 0), (weights, SIGN)):
            large = (0x50 + draw.integers(0x2F, codes.shape[:-1])).astype(np.uint8)
            codes[..., first + 3] = large
            codes[..., first + 17] = large ^ turn
    return Operands(tokens, _scales(draw, size.token_blocks, -1, 1), weights, _scales(draw, size.weight_blocks, -1, 1))


def _overflow(draw: Draw, size: Size) -> Operands:
    """One product a result, around the largest BF16 and FP32 numbers: infinities, and FP32 numbers that BF16 lacks."""
    powers = np.array([0x28, 0x30, 0x38, 0x40, 0x48])  # 2^-2 .. 2^2
    drawn = powers[draw.integers(powers.size, size.tokens)] | draw.integers(2, size.tokens) << 7
    tokens = one_hot(drawn.astype(np.uint8))
    weights = np.full(size.weights, 0x38, np.uint8)
    token_scales = _scales(draw, size.token_blocks, 62, 63)
    weight_scales = _scales(draw, size.weight_blocks, 62, 63)
    # Half of the factors have mantissas just below 2, where BF16 rounds up to infinity and FP32 does not.
    weight_scales.view(np.uint32)[:] |= np.uint32(0x7FFF00)
    token_scales.view(np.uint32)[::2] |= np.uint32(0x7FE000)
    return Operands(tokens, token_scales, weights, weight_scales)


def _tiny(draw: Draw, size: Size) -> Operands:
    """Factors and sums from below the least subnormal number to a few binades above the least normal one.

    Every fourth token has one element, a subnormal one in the last block: there a rounding may leave nothing of a
    product but its sign, and no later block adds to it.
    """
    tokens = _any(draw, size.tokens)
    lone = tokens[3::4]
    lone[:] = 0
    lone[:, -1] = 1 + draw.integers(7, lone.shape[:1]) | draw.integers(2, lone.shape[:1]) << 7
    return Operands(
        tokens,
        _scales(draw, size.token_blocks, -84, -62),
        _any(draw, size.weights),
        _scales(draw, size.weight_blocks, -84, -62),
    )


#: FP32 bits of scales: zeros, subnormals, infinities, NaN, the largest number, a negative number.
_SPECIAL_SCALES = np.array(
    [0x00000000, 0x80000000, 1, 0x007FFFFF, 0x80000003, 0x7F800000, 0xFF800000, 0x7FC00000, 0xFFABCDEF, 0x7F7FFFFF,
     0xBFC00001], np.uint32,
)  # fmt: skip
#: Codes: NaN of both signs, zeros, the largest, the least subnormal.
_SPECIAL_CODES = np.array([0x7F, 0xFF, 0x00, 0x80, 0x7E, 0xFE, 0x01, 0x81], np.uint8)


def _specials(draw: Draw, size: Size) -> Operands:
    """By row a special scale in one block, a special code, a row of zeros of either sign, or nothing special."""
    data = _near(draw, size)
    tokens, weights = data.tokens.copy(), data.weights.copy()
    token_scales, weight_scales = data.token_scales.copy(), data.weight_scales.copy()
    row = np.arange(size.rows)
    block = draw.integers(size.k // BLOCK, row.shape)
    chosen = row[row % 4 == 1]
    token_scales.view(np.uint32)[chosen, block[chosen]] = np.resize(_SPECIAL_SCALES, chosen.size)
    chosen = row[row % 4 == 2]
    tokens[chosen, draw.integers(size.k, chosen.shape)] = np.resize(_SPECIAL_CODES, chosen.size)
    tokens[row % 16 == 3] &= SIGN
    # Of the weights few, since a tile's scale reaches 128 columns.
    flat = weight_scales.view(np.uint32).reshape(-1)
    flat[7::23] = np.resize(np.roll(_SPECIAL_SCALES, 3), flat[7::23].size)
    codes = weights.reshape(-1, size.k)
    rows = np.arange(5, codes.shape[0], 29)
    codes[rows, draw.integers(size.k, rows.shape)] = np.resize(_SPECIAL_CODES, rows.size)
    return Operands(tokens, token_scales, weights, weight_scales)


def _shared_weights(draw: Draw, size: Size) -> Operands:
    """Every expert has the same weights, so that all groups together are one group."""
    one = _wide_range(draw, size._replace(experts=1))
    return one._replace(
        weights=np.repeat(one.weights, size.experts, axis=0),
        weight_scales=np.repeat(one.weight_scales, size.experts, axis=0),
    )


def _quantized(tokens: NDArray[Any], weights: NDArray[Any]) -> Operands:
    """BF16 rows and weights [E, N, K], by DeepGEMM's own quantization."""
    left = quantize_block_fp8(tokens)
    right = [quantize_block_fp8(expert, block=WEIGHT_TILE.name) for expert in weights]
    return Operands(
        left.codes,
        left.scales,
        np.stack([tensor.codes for tensor in right]),
        np.stack([tensor.scales for tensor in right]),
    )


def _gaussian(draw: Draw, size: Size) -> Operands:
    # Rows of different size, so that scales differ.
    spread = np.exp2(-draw.integers(6, (size.rows, 1)))
    return _quantized(
        (draw.normal(size.tokens) * spread).astype(ml_dtypes.bfloat16),
        draw.normal(size.weights).astype(ml_dtypes.bfloat16),
    )


def _real(draw: Draw, size: Size) -> Operands:
    return _quantized(*real_operands(draw, size))


def _fill(
    name: str, catches: str, make: Callable[[Draw, Size], Operands], reason: str, least_k: int = BLOCK, **limits: Any
) -> Fill:
    """A fill that needs at least `least_k`; `make(draw, size)` gives the operands."""
    usual = {"zeros": 0.02, "bound": 2.0**-5, "reason": reason}

    return Fill(name, catches, make, Limits(**{**usual, **limits}), needs_k(least_k))


def _least_ties(draw: Draw, size: Size) -> Operands:
    """Results of half the least BF16 number or three halves, ties that go to even; and zeros times 2^56.

    With anything above 0 in a sum before it begins the former go the other way. In a partial sum the latter show it.
    """
    tokens = np.zeros(size.tokens, np.uint8)
    token_scales = np.full(size.token_blocks, 2.0**120, np.float32)
    rows = np.arange(0, size.rows, 2)
    tokens[rows, draw.integers(BLOCK, rows.shape)] = E4M3.encode(1)
    token_scales[rows] = 2.0**-70
    weights = np.array([E4M3.encode(1), E4M3.encode(3)], np.uint8)[draw.integers(2, size.weights)]
    weight_scales = np.full(size.weight_blocks, 2.0**-63, np.float32)
    weight_scales[..., 0] = 2.0**-64  # of the block where the codes are
    return Operands(tokens, token_scales, weights, weight_scales)


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
                "scales ignored, shifted, permuted or of the wrong expert; wrong rows of weights",
                _one_hot_tokens,
                "each result is one product of nonzero codes",
                zeros=0.0,
            ),
            _fill(
                "one-hot-weights",
                "the same on the tokens' side; any element of K left out or taken twice",
                _one_hot_weights,
                "each result is one product of nonzero codes",
                zeros=0.0,
            ),
            _fill(
                "wide-range",
                "a scale of another row, block or expert; another order of blocks",
                _wide_range,
                "scales are drawn from 25 binades",
            ),
            _fill(
                "near",
                "another rounding of the factor or of the sum; a promotion after other than 128 of K",
                _near,
                "all blocks count alike",
            ),
            _fill(
                "cancelling",
                "a product that is rounded before it is added; another order of blocks",
                _cancelling,
                "what one rounding lost is left, and where it lost nothing, zero",
                least_k=2 * BLOCK,
                zeros=0.5,
                bound=64.0,
            ),
            _fill(
                "aligned",
                "another alignment in the tensor core; partial sums that are chained over more than 128 of K",
                _aligned,
                "small products survive the alignment to large ones that cancel",
                zeros=0.2,
                bound=64.0,
            ),
            _fill(
                "overflow",
                "BF16 that saturates or is truncated; FP32 results that overflow too early or too late",
                _overflow,
                "results lie around the largest BF16 number",
                nans=0.9,
            ),
            _fill(
                "tiny",
                "subnormal factors or sums flushed to zero; the sign of a zero lost",
                _tiny,
                "half of the results lie below the least normal number",
                zeros=0.5,
                bound=64.0,
            ),
            _fill(
                "specials",
                "NaN lost or spread; infinities, zeros and subnormal numbers as scales; zeros with a sign",
                _specials,
                "every second token has something special",
                zeros=0.5,
                nans=0.9,
                bound=1.0,
            ),
            _fill(
                "shared-weights",
                "an expert's rows that depend on how rows are grouped",
                _shared_weights,
                "scales are drawn from 25 binades",
            ),
            _fill(
                "real",
                "what only real weights and outlier channels show",
                _real,
                "a model's hidden states times its weights are ordinary numbers",
            ),
            _fill(
                "least-ties",
                "a sum, or a partial sum, that begins with another number than 0",
                _least_ties,
                "every second token is zeros, and half of the other ones' results go to zero",
                zeros=0.9,
                bound=64.0,
            ),
        )
    }
)
