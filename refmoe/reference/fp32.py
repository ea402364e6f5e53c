"""FP32 operations as the PTX ISA defines them: every result rounded to nearest even, every NaN 0x7FFFFFFF.

Below them, what exact arithmetic on FP32 numbers is made of: their bits, their values in float64, and a sum in float64
that a later rounding cannot tell from the exact one.
"""

from __future__ import annotations

from typing import Any

import ml_dtypes
import numpy as np
from numpy.typing import NDArray

BF16 = np.dtype(ml_dtypes.bfloat16)

#: The one NaN that FP32 arithmetic of a GPU gives, and that of a conversion to BF16.
NAN = np.array(0x7FFFFFFF, np.uint32).view(np.float32)[()]
BF16_NAN = 0x7FFF

F32 = NDArray[np.float32]


def add(x: F32, y: F32) -> F32:
    """RN(x + y)."""
    with np.errstate(all="ignore"):
        return _one_nan(np.add(x, y, dtype=np.float32))


def multiply(x: F32, y: F32 | np.float32) -> F32:
    """RN(x * y), with gradual underflow."""
    with np.errstate(all="ignore"):
        return _one_nan(np.multiply(x, y, dtype=np.float32))


def divide(x: F32, y: F32) -> F32:
    """RN(x / y)."""
    with np.errstate(all="ignore"):
        return _one_nan(np.divide(x, y, dtype=np.float32))


def minimum(x: F32, y: F32) -> F32:
    """The lesser, as min.NaN.f32 has it: -0 is less than +0, and a NaN stays one.

    NumPy leaves open which of two zeros it returns.
    """
    return np.where(x == y, np.where(np.signbit(x), x, y), np.minimum(x, y))


def maximum(x: F32, y: F32) -> F32:
    """The greater, as max.NaN.f32 has it: +0 is greater than -0, and a NaN stays one."""
    return np.where(x == y, np.where(np.signbit(x), y, x), np.maximum(x, y))


def fma(x: F32, y: F32 | np.float32, z: F32 | np.float32) -> F32:
    """RN(x * y + z), rounded once.

    The product is exact in float64; the sum is rounded to odd there, which the rounding to FP32 cannot notice.
    """
    with np.errstate(all="ignore"):
        product = np.multiply(x, y, dtype=np.float64)
        return _one_nan(add_to_odd(product, np.asarray(z, np.float64)).astype(np.float32))


def bf16(x: F32) -> NDArray[Any]:
    """x rounded to BF16, ties to even; a NaN is 0x7FFF."""
    with np.errstate(all="ignore"):
        out = x.astype(BF16)
    out.view(np.uint16)[np.isnan(x)] = BF16_NAN
    return out


def fp32_bits(x: NDArray[np.generic]) -> NDArray[np.uint32]:
    """The FP32 bits of BF16, FP16 or FP32 numbers, exact."""
    if x.dtype == BF16:
        wide: NDArray[np.uint32] = x.view(np.uint16).astype(np.uint32) << np.uint32(16)
        return wide
    return x.astype(np.float32, copy=False).view(np.uint32)


def magnitude_values(magnitude: NDArray[np.uint32]) -> NDArray[np.float64]:
    """The float64 values of finite FP32 bits without sign, exact.

    A subnormal is converted as an integer, which no flush to zero can reach.
    """
    normal = (magnitude.astype(np.uint64) << np.uint64(29)) + np.uint64((1023 - 127) << 52)
    return np.where(magnitude < 1 << 23, magnitude * 2.0**-149, normal.view(np.float64))


def add_to_odd(x: NDArray[np.float64], y: NDArray[np.float64]) -> NDArray[np.float64]:
    """x + y in float64 rounded to odd: an inexact result takes the neighbour whose last bit is 1.

    No later rounding to at most 51 bits can notice that it was rounded before (Boldo and Melquiond, 2008), so what is
    computed like this and then converted to FP32 is rounded once. Infinities and NaNs are those of an ordinary
    addition. No overflow of float64 is expected.
    """
    with np.errstate(invalid="ignore"):
        total = x + y
        # Knuth's two-sum: x + y == total + error, exactly.
        part = total - x
        error = (x - (total - part)) + (y - part)
        inexact = np.isfinite(total) & (error != 0)
    bits = total.view(np.int64)
    # Where the nearest is even, the odd neighbour lies on the side of the error: away from zero if it has total's sign.
    step = np.where((error > 0) == (total > 0), 1, -1)
    bits += np.where(inexact & (bits & 1 == 0), step, 0)
    return total


def _one_nan(x: F32) -> F32:
    bad = np.isnan(x)
    if bad.any():
        x = np.where(bad, NAN, x)
    return x
