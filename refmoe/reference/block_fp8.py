"""Block FP8, fast: E4M3 codes with one FP32 scale for each tile of 1x128 or 128x128 (DeepSeek-V3, DeepGEMM).

Every step is one FP32 operation, rounded to nearest, so NumPy's own float32 arithmetic has the bits:

    amax = the largest magnitude of the tile          deepgemm: at least 1e-4
    sf   = amax / 448                                 exact: at least 2^-126; ue8m0: up to a power of two
    code = E4M3(x * (1 / sf)), ties to even

448 is the largest E4M3 number. Nothing saturates: amax * (1 / sf) is 448 but for three roundings of FP32.

The definition that it is held against is `refmoe.reference.scalar.block_fp8`.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache

import ml_dtypes
import numpy as np
from numpy.typing import NDArray

from refmoe.errors import ArgumentError, describe
from refmoe.formats import BLOCK_FP8, E4M3, TileFormat
from refmoe.policy import DEEPGEMM_FLOOR
from refmoe.reference.fp32 import BF16, NAN, divide, fp32_bits, multiply

POLICIES = ("deepgemm", "exact")
SCALES = ("fp32", "ue8m0")
LAYOUTS = ("k_major", "mn_major")

_MAX = np.float32(448)
_INFINITY = np.uint32(0x7F800000)
_MAGNITUDE = np.uint32(0x7FFFFFFF)
#: 2^-126, the least normal FP32 number: below it neither a scale nor its reciprocal keeps 24 bits.
_LEAST_SCALE = np.uint32(0x00800000)
_DEQUANTIZED_NAN = np.uint32(0x7FC00000)
_NAN_CODE = np.uint8(0x7F)
_BAND_ROWS = 128


@dataclass(frozen=True, eq=False)
class BlockFP8Tensor:
    """A matrix [M, K] in block FP8.

    Attributes:
        codes: uint8 [M, K], E4M3.
        scales: float32 [tile rows, tile columns], K-major. A code's value times its tile's scale is the element.
        block: "1x128" or "128x128".

    Raises:
        ArgumentError: an unknown tile, wrong dtypes, or shapes that do not belong together.
    """

    codes: NDArray[np.uint8]
    scales: NDArray[np.float32]
    block: str

    def __post_init__(self) -> None:
        codes, scales = self.codes, self.scales
        tile = as_tile(self.block)
        if not isinstance(codes, np.ndarray) or codes.dtype != np.uint8 or codes.ndim != 2:
            raise ArgumentError("codes", describe(codes), "uint8 [M, K]")
        rows, k = codes.shape
        needed = tile.scale_shape(rows, k)
        if not isinstance(scales, np.ndarray) or scales.dtype != np.float32 or scales.shape != needed:
            raise ArgumentError("scales", describe(scales), f"float32 {list(needed)}")

    @property
    def tile(self) -> TileFormat:
        """The record of the tile."""
        return BLOCK_FP8[self.block]

    def element_scales(self) -> NDArray[np.float32]:
        """The scale of every element, float32 [M, K]."""
        return spread(self.scales, self.tile, self.codes.shape)

    def dequantize(self) -> NDArray[np.float32]:
        """float32 [M, K]: each code's value times its tile's scale, rounded to nearest; any NaN is 0x7FC00000."""
        out = multiply(_values()[self.codes], self.element_scales())
        out.view(np.uint32)[np.isnan(out)] = _DEQUANTIZED_NAN
        return out


def quantize_block_fp8(
    x: NDArray[np.generic], *, block: str = "1x128", policy: str = "deepgemm", scales: str = "fp32"
) -> BlockFP8Tensor:
    """Quantize a matrix to block FP8.

    >>> import numpy as np
    >>> x = np.linspace(-2, 2, 256, dtype=np.float32).reshape(1, 256)
    >>> tensor = quantize_block_fp8(x)
    >>> tensor.codes.shape, tensor.scales.shape
    ((1, 256), (1, 2))

    Tiles start at the first row and column. A tile at the right or lower edge is what is left of it: its scale is
    decided by the elements that exist, which is the same as padding with zeros.

    Args:
        x: BF16 (ml_dtypes.bfloat16), FP16 or FP32 [M, K], C-contiguous; may be empty.
        block: "1x128", for activations, or "128x128", for weights.
        policy: "deepgemm" is DeepGEMM's published `per_token_cast_to_fp8` and `per_block_cast_to_fp8`, operation by
            operation: amax is at least 1e-4, and what is not finite goes through the same arithmetic. "exact" has no
            such floor: the scale is at least 2^-126, and a NaN or an infinity poisons its tile.
        scales: "fp32", or "ue8m0" for scales rounded up to a power of two, still stored as FP32.

    Returns:
        codes uint8 [M, K]; scales float32 [M, ceil(K/128)] or [ceil(M/128), ceil(K/128)].

    Raises:
        ArgumentError: wrong dtype or shape, an array that is not contiguous, an unknown word.
    """
    tile = as_tile(block)
    for name, word, words in (("policy", policy, POLICIES), ("scales", scales, SCALES)):
        if word not in words:
            raise ArgumentError(name, describe(word), " or ".join(words))
    if not isinstance(x, np.ndarray) or x.dtype not in (BF16, np.float16, np.float32) or x.ndim != 2:
        raise ArgumentError("x", describe(x), "bfloat16, float16 or float32 [M, K]")
    if not x.flags.c_contiguous:
        raise ArgumentError("x", f"{describe(x)} that is not contiguous", "a C-contiguous array")
    codes = np.empty(x.shape, np.uint8)
    factors = np.empty(tile.scale_shape(*x.shape), np.float32)
    for start in range(0, x.shape[0] if x.shape[1] else 0, _BAND_ROWS):
        part = slice(start, start + _BAND_ROWS)
        tiles = slice(start // tile.rows, -(-min(start + _BAND_ROWS, x.shape[0]) // tile.rows))
        bits = fp32_bits(x[part])
        factors[tiles] = _tile_scales(_tile_maxima(bits, tile), policy, scales)
        inverse = spread(divide(np.float32(1), factors[tiles]), tile, bits.shape)
        codes[part] = _encode(multiply(bits.view(np.float32), inverse))
    return BlockFP8Tensor(codes, factors, block)


def lay_out(scales: NDArray[np.float32], layout: str) -> NDArray[np.float32]:
    """K-major scales [tile rows, tile columns] in a layout: "k_major" as they are, "mn_major" [columns, rows].

    DeepGEMM's GEMM takes the scales of activations MN-major, rows padded to 16 bytes for the TMA; here they are not.

    Raises:
        ArgumentError: an unknown layout.
    """
    if layout not in LAYOUTS:
        raise ArgumentError("layout", describe(layout), " or ".join(LAYOUTS))
    return np.ascontiguousarray(scales if layout == "k_major" else scales.T)


def as_tile(block: object) -> TileFormat:
    """The entry of `refmoe.formats.BLOCK_FP8` with that name.

    Raises:
        ArgumentError: there is none.
    """
    if not isinstance(block, str) or block not in BLOCK_FP8:
        raise ArgumentError("block", describe(block), " or ".join(BLOCK_FP8))
    return BLOCK_FP8[block]


def spread(tiles: NDArray[np.float32], tile: TileFormat, shape: tuple[int, ...]) -> NDArray[np.float32]:
    """One number a tile as one an element, float32 of `shape` [M, K]."""
    wide = np.repeat(tiles, tile.columns, axis=1)[:, : shape[1]]
    return wide if tile.rows == 1 else np.repeat(wide, tile.rows, axis=0)[: shape[0]]


def _tile_maxima(bits: NDArray[np.uint32], tile: TileFormat) -> NDArray[np.uint32]:
    """Bits of the largest magnitude of each tile. As integers, NaN ranks above infinity above every number."""
    magnitudes = bits & _MAGNITUDE
    maxima = np.maximum.reduceat(magnitudes, np.arange(0, bits.shape[1], tile.columns), axis=1)
    if tile.rows > 1:
        maxima = np.maximum.reduceat(maxima, np.arange(0, bits.shape[0], tile.rows), axis=0)
    return np.asarray(maxima, np.uint32)


def _tile_scales(amax: NDArray[np.uint32], policy: str, scales: str) -> NDArray[np.float32]:
    bad = amax >= _INFINITY
    if policy == "deepgemm":
        amax = np.maximum(amax, np.uint32(DEEPGEMM_FLOOR))
    factors = divide(amax.view(np.float32), _MAX).view(np.uint32)
    if policy == "exact":
        factors = np.maximum(factors, _LEAST_SCALE)
    if scales == "ue8m0":
        factors = _power_of_two(factors)
    found = factors.view(np.float32)
    return np.where(bad, NAN, found) if policy == "exact" else found


def _power_of_two(bits: NDArray[np.uint32]) -> NDArray[np.uint32]:
    """FP32 bits rounded up to a power of two from 2^-126 to 2^127, NaN and infinity to the latter."""
    fields = (bits + np.uint32(0x7FFFFF)) >> np.uint32(23)
    return np.asarray(np.clip(fields, 1, 254) << np.uint32(23), np.uint32)


def _encode(values: NDArray[np.float32]) -> NDArray[np.uint8]:
    """E4M3 codes, to nearest even, saturating; every NaN is 0x7F."""
    # ml_dtypes gives NaN from 464 on.
    with np.errstate(invalid="ignore"):
        codes = np.clip(values, -_MAX, _MAX).astype(ml_dtypes.float8_e4m3fn).view(np.uint8)
    codes[np.isnan(values)] = _NAN_CODE
    return codes


@cache
def _values() -> NDArray[np.float32]:
    return E4M3.values().astype(np.float32)
