"""Rounding to odd in float64: an inexact result takes the neighbour whose last bit is 1.

No later rounding to at most 51 bits can notice that it was rounded before (Boldo and Melquiond, 2008), so what is
computed like this and then converted to FP32 is rounded once.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

__all__ = ["add_to_odd"]


def add_to_odd(x: NDArray[np.float64], y: NDArray[np.float64]) -> NDArray[np.float64]:
    """x + y rounded to odd; infinities and NaNs as in an ordinary addition. No overflow of float64 is expected."""
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
