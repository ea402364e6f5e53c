"""FP32 operations as the PTX ISA defines them: every result rounded to nearest even, every NaN 0x7FFFFFFF."""

from __future__ import annotations

from typing import Any

import ml_dtypes
import numpy as np
from numpy.typing import NDArray

from refmoe.reference.mma.odd import add_to_odd

__all__ = ["BF16", "BF16_NAN", "NAN", "add", "bf16", "divide", "fma", "multiply"]

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


def _one_nan(x: F32) -> F32:
    bad = np.isnan(x)
    if bad.any():
        x = np.where(bad, NAN, x)
    return x
