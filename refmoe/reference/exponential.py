"""exp(x) in FP32 as one written sequence of operations, the same in every kernel and here, so that bits can be equal.

    t = fma(x, LOG2E, MAGIC)                 its last bits are n, x / ln 2 rounded to an integer
    n = t - MAGIC                            exact
    r = fma(n, -LN2_HIGH, x)                 exact: a multiple of 2^-25 below 1/2
    r = fma(n, -LN2_LOW, r)
    p = P6; p = fma(p, r, c) for c in P5, P4, P3, P2, 1, 1
    y = (p * 2^floor(n / 2)) * 2^(n - floor(n / 2))

Every operation is rounded to nearest, without flush to zero. Both factors of y are normal numbers, the first product
is exact, and the second rounds once, also into subnormals. x above OVERFLOW gives +Inf and x below UNDERFLOW
+0, as correct rounding would; a NaN gives 0x7FFFFFFF.

P2 to P6 make the relative error of 1 + r + r^2 (P2 + r P3 + ... + r^4 P6) least over |r| <= ln 2 / 2 + 10^-5 (Remez
exchange in 120 bits; each coefficient was rounded to FP32 in turn, P2 first, and the rest fitted again). That error is
3.19e-9; most of the sequence's error comes from the roundings of r and of the last two FMAs. On every FP32 input
(`refmoe bench exponential`) the result is within 0.8914 units in the last place of exp(x), and it is correctly rounded
on all but 10,566,599 inputs, a share of 0.25 %.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from refmoe.errors import ArgumentError, describe
from refmoe.reference.chunks import for_each_chunk
from refmoe.reference.fp32 import NAN, add, fma, multiply


def _fp32(text: str) -> np.float32:
    value: np.float32 = np.float32(float.fromhex(text))
    return value


LOG2E = _fp32("0x1.715476p+0")
"""1 / ln 2."""
MAGIC = _fp32("0x1.8p+23")
"""1.5 * 2^23: in its binade a unit is 1, so adding it rounds to an integer."""
LN2_HIGH = _fp32("0x1.62e430p-1")
"""ln 2, rounded to nearest."""
LN2_LOW = _fp32("-0x1.05c610p-29")
"""ln 2 - LN2_HIGH, rounded to nearest."""
COEFFICIENTS = tuple(
    _fp32(text)
    for text in (
        "0x1.6ac74cp-10",  # P6
        "0x1.123de0p-7",  # P5
        "0x1.555858p-5",  # P4
        "0x1.55548cp-3",  # P3
        "0x1.fffffcp-2",  # P2
        "0x1p+0",
        "0x1p+0",
    )
)
"""Of the polynomial, highest power first."""
OVERFLOW = _fp32("0x1.62e42ep+6")
"""The largest FP32 whose exponential rounds to a finite number, 88.72283."""
UNDERFLOW = _fp32("-0x1.9fe368p+6")
"""The least FP32 whose exponential does not round to zero, -103.97207."""

MAX_ULP = 0.8914
"""Every result is within this many units in the last place of exp(x); the worst, 0.89132, is at -0x1.765026p+2."""

_INPUTS_A_CHUNK = 1 << 14
_BIAS, _MANTISSA_BITS = 127, 23


def exponential(x: NDArray[np.float32]) -> NDArray[np.float32]:
    """exp(x) by the sequence of this module.

    Args:
        x: float32, any shape, any value.

    Returns:
        float32 of the shape of `x`.

    Raises:
        ArgumentError: `x` is no float32 array.
    """
    if not isinstance(x, np.ndarray) or x.dtype != np.float32:
        raise ArgumentError("x", describe(x), "a float32 array")
    flat, out = x.reshape(-1), np.empty(x.size, np.float32)

    def run(start: int, stop: int) -> None:
        out[start:stop] = _sequence(flat[start:stop])

    for_each_chunk(run, flat.size, _INPUTS_A_CHUNK)
    return out.reshape(x.shape)


def _sequence(x: NDArray[np.float32]) -> NDArray[np.float32]:
    in_range = (x >= UNDERFLOW) & (x <= OVERFLOW)
    inside = np.where(in_range, x, np.float32(0))
    t = fma(inside, LOG2E, MAGIC)
    exponent = t.view(np.int32) - MAGIC.view(np.int32)
    n = add(t, -MAGIC)
    r = fma(n, -LN2_LOW, fma(n, -LN2_HIGH, inside))
    p = np.full(x.shape, COEFFICIENTS[0])
    for coefficient in COEFFICIENTS[1:]:
        p = fma(p, r, coefficient)
    half = exponent >> 1
    y = multiply(multiply(p, _power_of_two(half)), _power_of_two(exponent - half))
    outside = np.where(x > OVERFLOW, np.float32(np.inf), np.float32(0))
    return np.where(in_range, y, np.where(np.isnan(x), NAN, outside))


def _power_of_two(exponent: NDArray[np.int32]) -> NDArray[np.float32]:
    """2^exponent of a normal number, built from its bits."""
    return np.asarray((exponent + _BIAS) << _MANTISSA_BITS, np.int32).view(np.float32)
