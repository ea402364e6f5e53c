"""The largest exponent of the nonzero products of each output of a block."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from typing import Any

import numpy as np
from numpy.typing import NDArray

from refmoe.formats import Format
from refmoe.reference.mma.operands import ABSENT, Blocks, power_of_two, table

__all__ = ["LargestExponent", "largest_exponents"]

LargestExponent = Callable[[NDArray[np.intp], NDArray[np.intp]], NDArray[np.int64]]
"""f(rows [n], columns [n]) -> int64 [n]: the largest exponent of each output's nonzero products, -ABSENT or below if
all are zero."""

# A level is worth three bits of exponent more than a block of 32 equal products can add: 32 = 2^5 < 2^8.
_LEVEL = 3
_STEP = 1 << _LEVEL

_DTYPES = (np.dtype(np.float32), np.dtype(np.float64))


def largest_exponents(a: Blocks, b: Blocks, t: int) -> LargestExponent:
    """The look-up for block `t`."""
    last_level = 1 + sum(fmt.emax - fmt.emin for fmt in (a.format, b.format))
    for dtype in _DTYPES:
        if last_level < (1 << np.finfo(dtype).nexp) // _STEP:
            return _by_product(a, b, t, dtype)
    return _by_comparison(a, b, t)


def _by_product(a: Blocks, b: Blocks, t: int, dtype: np.dtype[np.floating[Any]]) -> LargestExponent:
    """Through BLAS: with 2^(8 e) for an exponent e, the sum over K has the exponent 8 max(ea + eb) + 0 .. 5."""
    info = np.finfo(dtype)
    # The least product gets level 1 in the biased exponent; no product at all is 0.
    offset = _STEP - (1 << (info.nexp - 1)) + 1
    a_powers = np.take(_powers(a.format, offset, dtype), a.codes[t], mode="clip")
    b_powers = np.take(_powers(b.format, 0, dtype), b.codes[t], mode="clip")
    sums = np.matmul(a_powers, b_powers.T)
    bits = sums.view(f"u{dtype.itemsize}")
    first = a.format.emin + b.format.emin - 1

    def look_up(rows: NDArray[np.intp], columns: NDArray[np.intp]) -> NDArray[np.int64]:
        level = (bits[rows, columns] >> (info.nmant + _LEVEL)).astype(np.int64)
        return np.asarray(np.where(level == 0, -ABSENT, level + first + a.scale[t][rows] + b.scale[t][columns]))

    return look_up


@cache
def _powers(fmt: Format, offset: int, dtype: np.dtype[np.floating[Any]]) -> NDArray[np.floating[Any]]:
    exponent = table(fmt).exponent.astype(np.int64)
    powers = power_of_two(np.where(exponent == -ABSENT, -ABSENT, _STEP * (exponent - fmt.emin) + offset))
    return powers.astype(dtype)


def _by_comparison(a: Blocks, b: Blocks, t: int) -> LargestExponent:
    """Product by product, for formats whose exponents are too far apart to add up."""
    a_exponents = np.take(table(a.format).exponent, a.codes[t], mode="clip")
    b_exponents = np.take(table(b.format).exponent, b.codes[t], mode="clip")

    def look_up(rows: NDArray[np.intp], columns: NDArray[np.intp]) -> NDArray[np.int64]:
        products = np.take(a_exponents, rows, axis=0) + np.take(b_exponents, columns, axis=0)
        return np.asarray(products.max(axis=1).astype(np.int64) + a.scale[t][rows] + b.scale[t][columns])

    return look_up
