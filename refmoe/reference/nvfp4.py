"""NVFP4 quantization, fast: a few FP32 operations a block, one look-up an element.

NVFP4 scales twice. Every 16 neighbours along K share a UE4M3 scale, and the whole tensor shares one FP32 number, which
brings the block scales into UE4M3's range. The tensor's number has two sides, each with its name here:

    global encode scale    g, what the quantizer multiplies by: 448 * 6 / (largest magnitude of the tensor)
    global decode scale    1 / g, what a reader multiplies by: value = code * block scale * global decode scale

The steps are those of TransformerEngine's quantizer (Apache-2.0, `transformer_engine/common/cast/nvfp4`), all in FP32,
each rounded to nearest even, none fused:

    block scale = E4M3(amax * (g * fp32(1/6)))         saturating at 448
    encode      = min(1 / (block scale * (1/g)), FLT_MAX)
    code        = E2M1(x * encode)                     saturating at 6

An element is so rounded twice on its way: the product to FP32, then to E2M1. The definition that this is held against
is `refmoe.reference.scalar.nvfp4`.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache
from itertools import pairwise

import numpy as np
from numpy.typing import NDArray

from refmoe.errors import ArgumentError, describe
from refmoe.formats import FP32, NVFP4, UE4M3, Format
from refmoe.reference import fp32
from refmoe.reference.chunks import for_each_chunk
from refmoe.reference.fp32 import BF16, fp32_bits
from refmoe.reference.layout import pack_fp4, unpack_fp4

#: The one policy of NVFP4.
POLICY = "transformer_engine"

_BLOCKS_A_CHUNK = 1 << 14
_INFINITY = 0x7F800000
_NAN_SCALE = 0x7F
_FLT_MAX = np.float32(FP32.max)
_ONE: np.float32 = np.float32(1)
_SIXTH = np.float32(1) / np.float32(6)
#: 448 * 6: what the tensor's largest magnitude is brought to before the blocks are scaled.
_RANGE = np.float32(UE4M3.max * NVFP4.element.max)


@dataclass(frozen=True, eq=False)
class NVFP4Tensor:
    """An NVFP4 tensor of logical shape [..., K]: value = code * block scale * global decode scale.

    Attributes:
        codes: uint8 [..., K/2] packed E2M1 codes, the even element in the low nibble.
        scales: uint8 [..., K/16] UE4M3 bytes, linear.
        global_decode_scale: FP32, one for the tensor; a checkpoint stores it beside the scales (ModelOpt's
            `weight_scale_2`).

    Raises:
        ArgumentError: a dtype other than uint8, shapes that do not belong together, or a global scale that is not
            above 0 and finite.
    """

    codes: NDArray[np.uint8]
    scales: NDArray[np.uint8]
    global_decode_scale: np.float32

    def __post_init__(self) -> None:
        for name, array in (("codes", self.codes), ("scales", self.scales)):
            if not isinstance(array, np.ndarray) or array.dtype != np.uint8 or array.ndim == 0:
                raise ArgumentError(name, describe(array), "a uint8 array of at least one dimension")
        *rows, k = self.shape
        if k % NVFP4.block or self.scales.shape != (*rows, k // NVFP4.block):
            needed = f"one byte a block of {NVFP4.block} of the logical shape {[*rows, k]}"
            raise ArgumentError("scales", describe(self.scales), needed)
        object.__setattr__(self, "global_decode_scale", checked_scale("global_decode_scale", self.global_decode_scale))

    @property
    def format(self) -> str:
        """ "nvfp4"."""
        return NVFP4.name

    @property
    def shape(self) -> tuple[int, ...]:
        """The logical shape [..., K]."""
        return (*self.codes.shape[:-1], self.codes.shape[-1] * NVFP4.codes_a_byte)

    @property
    def elements(self) -> NDArray[np.uint8]:
        """The codes one a byte, uint8 [..., K]."""
        return unpack_fp4(self.codes)

    def dequantize(self) -> NDArray[np.float32]:
        """The values, float32 [..., K]; see `dequantize_nvfp4`."""
        return dequantize_nvfp4(self.codes, self.scales, self.global_decode_scale)


def tensor_amax(x: NDArray[np.generic]) -> np.float32:
    """The largest magnitude among the finite elements of BF16, FP16 or FP32 `x`, exact; 0 if there is none.

    Raises:
        ArgumentError: another dtype.
    """
    if not isinstance(x, np.ndarray) or x.dtype not in (BF16, np.float16, np.float32):
        raise ArgumentError("x", describe(x), "an array of ml_dtypes.bfloat16, float16 or float32")
    magnitude = fp32_bits(x) & np.uint32(0x7FFFFFFF)
    finite = np.where(magnitude < _INFINITY, magnitude, np.uint32(0))
    amax: np.float32 = np.array([finite.max(initial=0)], np.uint32).view(np.float32)[0]
    return amax


def nvfp4_encode_scale(amax: np.float32 | float) -> np.float32:
    """The global encode scale of a tensor with that largest magnitude: min(RN(448 * 6 / amax), FLT_MAX), 1 for 0.

    Both limits are TransformerEngine's (`compute_global_encode_scaling_factor_FP4`).

    Raises:
        ArgumentError: `amax` is negative or not finite.
    """
    value: np.float32 = np.float32(amax)
    if not np.isfinite(value) or value < 0:
        raise ArgumentError("amax", describe(amax), "a finite magnitude")
    with np.errstate(over="ignore", divide="ignore"):
        scale: np.float32 = min(np.float32(_RANGE / value), _FLT_MAX) if value else _ONE
    return scale


def quantize_nvfp4(x: NDArray[np.generic], *, global_encode_scale: np.float32 | float | None = None) -> NVFP4Tensor:
    """Quantize to NVFP4: E2M1 codes, one UE4M3 scale for every 16 elements of the last axis, one FP32 for all.

    Finite blocks follow TransformerEngine's published formula. A block of zeros has scale 0 and its elements' signs. A
    block whose scale rounds to 0 is encoded with FLT_MAX, so its codes are 6 with its elements' signs, worth 0.
    What is not finite is refmoe's policy `exact`: a NaN or an infinity poisons its block, scale 0x7F (NaN) and codes
    0. It reaches no other block: the tensor's largest magnitude is that of its finite elements.

    Args:
        x: BF16 (ml_dtypes.bfloat16), FP16 or FP32 [..., K], C-contiguous, K a multiple of 16; may be empty.
        global_encode_scale: the tensor's FP32 factor g; None for that of `x` itself, see `nvfp4_encode_scale`.

    Returns:
        NVFP4Tensor with codes uint8 [..., K/2], scales uint8 [..., K/16] and the global decode scale RN(1/g).

    Raises:
        ArgumentError: wrong dtype or shape, an array that is not contiguous, or a global scale that is not above 0 and
            finite with a finite reciprocal.
    """
    encode_scale = _own_scale(x) if global_encode_scale is None else checked_encode_scale(global_encode_scale)
    rows = _checked_blocks(x)
    codes = np.empty(x.shape, np.uint8)
    scales = np.empty((*x.shape[:-1], x.shape[-1] // NVFP4.block), np.uint8)
    code_rows, row_scales = codes.reshape(rows.shape), scales.reshape(-1)

    def run(start: int, stop: int) -> None:
        part = slice(start, stop)
        _quantize_blocks(fp32_bits(rows[part]), encode_scale, code_rows[part], row_scales[part])

    for_each_chunk(run, row_scales.size, _BLOCKS_A_CHUNK)
    return NVFP4Tensor(pack_fp4(codes), scales, _ONE / encode_scale)


def dequantize_nvfp4(
    codes: NDArray[np.uint8], scales: NDArray[np.uint8], global_decode_scale: np.float32 | float = _ONE
) -> NDArray[np.float32]:
    """The values of NVFP4: RN((code * block scale) * global decode scale). The product in brackets is exact in FP32.

    Args:
        codes: uint8 [..., K/2], two E2M1 codes a byte, the even element in the low nibble, K a multiple of 16.
        scales: uint8 [..., K/16] UE4M3; the top bit is ignored, 0x7F is NaN.
        global_decode_scale: the tensor's FP32 factor. 1 gives code * block scale.

    Returns:
        float32 [..., K]. A NaN scale gives 0x7FC00000, a product above FP32's range infinity.

    Raises:
        ArgumentError: wrong dtype or shape, or a global scale that is not above 0 and finite.
    """
    factor = checked_scale("global_decode_scale", global_decode_scale)
    NVFP4Tensor(codes, scales, factor)  # checks that they belong together
    elements = np.take(NVFP4.element.values().astype(np.float32), unpack_fp4(codes))
    factors = np.take(NVFP4.scale.values().astype(np.float32), scales)
    blocks = elements.reshape(*scales.shape, NVFP4.block)
    values = fp32.multiply(fp32.multiply(blocks, factors[..., None]), factor)
    values[np.isnan(values)] = np.nan
    return values.reshape(elements.shape)


def checked_scale(name: str, value: object) -> np.float32:
    """`value` as FP32, or an `ArgumentError` if it is no number above 0, or infinite."""
    if isinstance(value, bool) or not isinstance(value, (int, float, np.floating, np.integer)):
        raise ArgumentError(name, describe(value), "a float32 above 0, finite")
    with np.errstate(over="ignore"):
        scale: np.float32 = np.float32(value)
    if not 0 < scale < np.inf:
        raise ArgumentError(name, describe(value), "a float32 above 0, finite")
    return scale


def checked_encode_scale(value: object) -> np.float32:
    """A global encode scale as FP32, or an `ArgumentError` if it or its reciprocal is not above 0 and finite."""
    scale = checked_scale("global_encode_scale", value)
    with np.errstate(over="ignore"):
        if not np.isfinite(_ONE / scale):
            raise ArgumentError("global_encode_scale", describe(value), "a float32 with a finite reciprocal")
    return scale


def _own_scale(x: NDArray[np.generic]) -> np.float32:
    return nvfp4_encode_scale(tensor_amax(x))


def _checked_blocks(x: object) -> NDArray[np.generic]:
    """`x` as blocks [n, 16], without a copy."""
    if not isinstance(x, np.ndarray) or x.dtype not in (BF16, np.float16, np.float32):
        raise ArgumentError("x", describe(x), "an array of ml_dtypes.bfloat16, float16 or float32")
    if x.ndim == 0 or x.shape[-1] % NVFP4.block:
        raise ArgumentError("x", describe(x), f"a last dimension that is a multiple of {NVFP4.block}")
    if not x.flags.c_contiguous:
        raise ArgumentError("x", f"{describe(x)} that is not contiguous", "a C-contiguous array")
    return x.reshape(-1, NVFP4.block)


def _quantize_blocks(
    bits: NDArray[np.uint32], encode_scale: np.float32, codes: NDArray[np.uint8], scales: NDArray[np.uint8]
) -> None:
    """Quantize blocks of FP32 bits [n, 16] into `codes` [n, 16], one a byte, and `scales` [n]."""
    amax = (bits & np.uint32(0x7FFFFFFF)).max(axis=1, initial=0)
    bad = amax >= _INFINITY
    amax[bad] = 0
    with np.errstate(all="ignore"):
        wanted = amax.view(np.float32) * np.float32(encode_scale * _SIXTH)
        np.take(_code_table(UE4M3), _round_to_odd(wanted.view(np.uint32)), out=scales)
        values = np.take(UE4M3.values().astype(np.float32), scales)
        encode = np.minimum(_ONE / (values * np.float32(_ONE / encode_scale)), _FLT_MAX)
        # 0 for a block of zeros: FLT_MAX would give the same codes, signed zeros.
        encode[amax == 0] = 0
        scaled = bits.view(np.float32) * encode[:, None]
    np.take(_code_table(NVFP4.element), _round_to_odd(scaled.view(np.uint32)), out=codes)
    codes[bad] = 0
    scales[bad] = _NAN_SCALE


def _round_to_odd(wide: NDArray[np.uint32]) -> NDArray[np.uint16]:
    """BF16 bits of FP32 bits, truncated, the last bit set if anything was cut off: no later rounding can notice."""
    odd: NDArray[np.uint16] = (wide >> np.uint32(16)).astype(np.uint16) | ((wide & np.uint32(0xFFFF)) != 0)
    return odd


@cache
def _code_table(fmt: Format) -> NDArray[np.uint8]:
    """The code of every BF16 bit pattern, rounded to nearest even and saturated. A NaN's entry is never used."""
    bits = np.arange(1 << 15, dtype=np.uint32) << np.uint32(16)
    with np.errstate(invalid="ignore"):
        values = bits.view(np.float32).astype(np.float64)
    steps = [float(fmt.decode(code)) for code in range(fmt.max_code + 1)]
    middles = np.array([(low + high) / 2 for low, high in pairwise(steps)])
    code = np.searchsorted(middles, np.nan_to_num(values, posinf=1e9), side="left")
    tie = np.isin(values, middles)
    code[tie] += code[tie] % 2
    sign = (1 << (fmt.bits - 1)) if fmt.signed else 0
    return np.concatenate([code, code | sign]).astype(np.uint8)
