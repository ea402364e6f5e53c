"""Q8_1: activations as int8 in blocks of 32, each block with its scale d and the sum s of its elements in FP16.

    llama_cpp_mmvq:  d = RN(amax / 127);  code = roundf(RN(x / d)), 0 if amax = 0
                     s = the 32 elements by a butterfly: x[i] + x[i ^ 16], then ^ 8, ^ 4, ^ 2, ^ 1
    llama_cpp_mmq:   r = RN(127 / amax);  code = roundf(RN(x * r));  d = RN(1 / r)
                     s = ((x[0] + x[1]) + x[2]) + x[3] of each four, and the eight sums by a butterfly ^ 4, ^ 2, ^ 1

All in FP32, rounded to nearest, without FMA and without a flush to zero; roundf takes halves away from zero. d and s
are then rounded to FP16. The sum is that of the elements, not of the codes. Source: llama.cpp,
ggml/src/ggml-cuda/quantize.cu; its own build divides approximately (`-use_fast_math`), which is not defined to the bit.

What a code is if the quotient is no integer of 8 bits follows from the instructions: to int32, which saturates and
makes 0 of a NaN, and its low byte.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from refmoe.errors import ArgumentError, describe
from refmoe.formats import Q8_1
from refmoe.reference import fp32

VARIANTS = ("llama_cpp_mmvq", "llama_cpp_mmq")
"""The two quantizers of llama.cpp: for its vector kernels, and for its matrix kernels."""

FP16_NAN = 0x7FFF
"""The one NaN of a conversion to FP16."""

_DTYPES = (np.dtype(np.float32), np.dtype(np.float16), fp32.BF16)
_LARGEST_CODE, _ONE = np.float32(Q8_1.max_code), np.float32(1)
_QUAD = 4  # elements of a thread of the mmq kernel


@dataclass(frozen=True, eq=False)
class Q8Tensor:
    """A matrix in Q8_1.

    Codes, scales and sums lie apart, unlike in llama.cpp, whose blocks of 36 bytes admit only loads of 4 bytes. A dot
    product with MXFP4 reads codes in pieces of 16 bytes, and of the rest the scales alone.

    Attributes:
        codes: int8 [M, K].
        d: float16 [M, K/32], the scale of each block.
        s: float16 [M, K/32], the sum of the elements of each block.
    """

    codes: NDArray[np.int8]
    d: NDArray[np.float16]
    s: NDArray[np.float16]

    @property
    def shape(self) -> tuple[int, ...]:
        """[M, K], of the matrix."""
        return self.codes.shape


def quantize_q8_1(x: NDArray[Any], *, variant: str = "llama_cpp_mmvq") -> Q8Tensor:
    """A matrix as Q8_1.

    Args:
        x: bfloat16, float16 or float32 [M, K], K a multiple of 32.
        variant: "llama_cpp_mmvq" or "llama_cpp_mmq", see the head of this module.

    Raises:
        ArgumentError: another dtype or shape, or an unknown variant.
    """
    if not isinstance(x, np.ndarray) or x.dtype not in _DTYPES or x.ndim != 2:
        raise ArgumentError("x", describe(x), "bfloat16, float16 or float32 [M, K]")
    if x.shape[1] % Q8_1.block:
        raise ArgumentError("x", describe(x), f"K a multiple of {Q8_1.block}")
    if not isinstance(variant, str) or variant not in VARIANTS:
        raise ArgumentError("variant", describe(variant), f"one of {', '.join(VARIANTS)}")
    m, k = x.shape
    blocks = fp32.fp32_bits(x).view(np.float32).reshape(m, k // Q8_1.block, Q8_1.block)
    largest = _largest_magnitudes(blocks)
    if variant == "llama_cpp_mmvq":
        d = fp32.divide(largest, _LARGEST_CODE)
        codes = _codes(fp32.divide(blocks, d[..., None]))
        codes[largest == 0] = 0
        s = _butterfly(blocks)
    else:
        inverse = fp32.divide(_LARGEST_CODE, largest)
        codes = _codes(fp32.multiply(blocks, inverse[..., None]))
        d = fp32.divide(_ONE, inverse)
        quads = blocks.reshape(*blocks.shape[:2], Q8_1.block // _QUAD, _QUAD)  # -1 has no answer for no rows
        sums = quads[..., 0]
        for place in range(1, _QUAD):
            sums = fp32.add(sums, quads[..., place])
        s = _butterfly(sums)
    return Q8Tensor(codes.reshape(m, k), half(d), half(s))


def dequantize_q8_1(tensor: Q8Tensor) -> NDArray[np.float32]:
    """RN(code * d) in FP32 [M, K]. An infinite d gives NaN for code 0."""
    m, k = tensor.codes.shape
    codes = tensor.codes.astype(np.float32).reshape(m, k // Q8_1.block, Q8_1.block)
    return fp32.multiply(codes, tensor.d.astype(np.float32)[..., None]).reshape(m, k)


def packed_blocks(tensor: Q8Tensor) -> NDArray[np.uint8]:
    """The bytes of llama.cpp's `block_q8_1`, uint8 [M, K/32, 36]: d, s, then the 32 codes."""
    m, k = tensor.codes.shape
    blocks = k // Q8_1.block
    sized = ((tensor.d, 2), (tensor.s, 2), (tensor.codes, Q8_1.block))
    return np.concatenate([each.view(np.uint8).reshape(m, blocks, size) for each, size in sized], axis=2)


def half(x: NDArray[np.float32]) -> NDArray[np.float16]:
    """x rounded to FP16, ties to even, infinity from 65520 on; a NaN is 0x7FFF."""
    with np.errstate(all="ignore"):
        out = x.astype(np.float16)
    out.view(np.uint16)[np.isnan(x)] = FP16_NAN
    return out


def _largest_magnitudes(blocks: NDArray[np.float32]) -> NDArray[np.float32]:
    """max |x| of each block; a NaN gives way to a number."""
    magnitudes = np.abs(blocks)
    nan = np.isnan(magnitudes)
    # Not np.fmax: on processors with AVX-512 it loses numbers beside a signalling NaN (NumPy 2.4.6).
    largest = np.where(nan, np.float32(0), magnitudes).max(axis=-1)
    return np.where(nan.all(axis=-1), fp32.NAN, largest).astype(np.float32)


def _codes(quotients: NDArray[np.float32]) -> NDArray[np.int8]:
    """roundf, to int32, and the low byte of that. Float64 holds each step exactly."""
    wide = quotients.astype(np.float64)
    with np.errstate(invalid="ignore"):
        rounded = np.trunc(wide + np.copysign(0.5, wide))
    bounds = np.iinfo(np.int32)
    integers = np.clip(np.where(np.isnan(wide), 0.0, rounded), bounds.min, bounds.max).astype(np.int64)
    return (integers & 0xFF).astype(np.uint8).view(np.int8)


def _butterfly(values: NDArray[np.float32]) -> NDArray[np.float32]:
    """The sum along the last axis, a power of two long: the halves added, and the halves of that, down to one."""
    while values.shape[-1] > 1:
        middle = values.shape[-1] // 2
        values = fp32.add(values[..., :middle], values[..., middle:])
    return values[..., 0]
