"""MXFP4 as gguf's Python package writes it (`gguf.quants.MXFP4`), decided on bits.

    scale = floor(log2(amax)) - 2, the logarithm rounded to float32 first
    code  = the nearest of the 16 values by float32 distance, the first of them in the order of the table

That logarithm rounds up to an integer for an amax just below a power of two, the more of them the farther the power is
from 1: such a block gets the scale of the next binade. The table begins with the positive values, so a tie goes toward
zero and no code is -0. The distances decide as exact ones would (next to a midpoint both are exact by Sterbenz,
elsewhere a rounding cannot change their order) but for values that overflow float32 and so are infinitely far away.
"""

from __future__ import annotations

from functools import cache

import numpy as np
from numpy.typing import NDArray

from refmoe.errors import ArgumentError
from refmoe.formats import E2M1, E8M0, MXFP4
from refmoe.reference.fp32 import fp32_bits, magnitude_values

_INFINITY = 0x7F800000
# The scale of an amax that rounds to 2^128, under which 4 and 6 overflow and 3 (code 5) is the largest value.
_TOP_SCALE = 253
_LARGEST_CODE = np.uint8(5)
_SIGN_CODE = np.uint8(1 << (E2M1.bits - 1))


def quantize_gguf_blocks(
    x: NDArray[np.generic], codes: NDArray[np.uint8], scales: NDArray[np.uint8], first: int
) -> None:
    """Quantize blocks to E2M1 by the policy `gguf`.

    Args:
        x: BF16, FP16 or FP32 [n, 32].
        codes: uint8 [n, 32], written, one code a byte.
        scales: uint8 [n], written.
        first: the number of the first block, for an error.

    Raises:
        ArgumentError: a NaN or an infinity, on which gguf's Python and C disagree, or a block whose largest magnitude
            is not 0 but below 2^-125: gguf then converts a negative number to uint8, which C and NumPy leave undefined.
    """
    bits = fp32_bits(x)
    magnitude = bits & np.uint32(0x7FFFFFFF)
    amax = magnitude.max(axis=1)
    bad = "finite values: gguf's Python and C disagree on such a block"
    _refuse(amax >= _INFINITY, first, "a NaN or an infinity", bad)
    bytes_ = scale_bytes(amax)
    small = "a larger one or zeros: gguf's scale is undefined below"
    _refuse(bytes_ < 0, first, "a largest magnitude below 2^-125", small)

    # Exact in float64, subnormals and all.
    scaled = magnitude_values(magnitude) * np.ldexp(1.0, E8M0.bias - bytes_)[:, None]
    codes[:] = 0
    for midpoint in _midpoints():
        codes += scaled > midpoint
    np.minimum(codes, _LARGEST_CODE, out=codes, where=(bytes_ == _TOP_SCALE)[:, None])
    codes[(codes > 0) & (bits >> np.uint32(31) == 1)] |= _SIGN_CODE
    scales[:] = bytes_


def scale_bytes(amax: NDArray[np.uint32]) -> NDArray[np.int32]:
    """The scale byte for finite FP32 bits: 0 for zero, negative where gguf has none."""
    field = (amax >> np.uint32(23)).astype(np.int32)
    carry = (amax & np.uint32(0x7FFFFF)) >= _first_carries()[field]
    # No subnormal comes near a byte of 0, whatever its mantissa.
    scales: NDArray[np.int32] = np.where(amax == 0, 0, field - E2M1.emax + carry).astype(np.int32)
    return scales


@cache
def _first_carries() -> NDArray[np.uint32]:
    """By exponent field: the first mantissa whose log2 rounds up, in float32, to the next integer n."""
    n = np.arange(256, dtype=np.float32) - np.float32(126)
    to_midpoint = (n.astype(np.float64) - np.nextafter(n, np.float32(-np.inf))) / 2
    # n - log2(amax) < to_midpoint, where amax = 2^n * (1 - j * 2^-24). No j makes it an equality: log2 is irrational.
    below = -np.expm1(-to_midpoint * np.log(2)) * 2**24
    j = np.ceil(below).astype(np.uint32) - np.uint32(1)
    first: NDArray[np.uint32] = np.uint32(1 << 23) - j
    return first


@cache
def _midpoints() -> NDArray[np.float64]:
    values = E2M1.values()[: E2M1.max_code + 1]
    midpoints: NDArray[np.float64] = (values[:-1] + values[1:]) / 2
    return midpoints


def _refuse(undefined: NDArray[np.bool_], first: int, what: str, needed: str) -> None:
    if undefined.any():
        block = first + int(np.flatnonzero(undefined)[0])
        raise ArgumentError("x", f"{what} in block {block} of {MXFP4.block} elements", needed)
