"""Element codes at scales that are given, under any rounding: what remains to be asked once a scale rule is not.

A search of the format's own value table in float64, which holds every scaled input exactly. Shares nothing with
`refmoe.reference.quantize`.
"""

from __future__ import annotations

import enum
from functools import cache

import numpy as np
from numpy.typing import NDArray

from refmoe.formats import E8M0, Format


class Rounding(enum.Enum):
    """How a scaled element becomes a code; all of them saturate."""

    NEAREST_EVEN = "to nearest, ties to even"
    TOWARD_ZERO = "toward zero"
    HALF_AWAY = "to nearest, ties away from zero"
    HALF_TOWARD_ZERO = "to nearest, ties toward zero"


@cache
def signed_values(fmt: Format) -> NDArray[np.float64]:
    """The values of `fmt` by code, float64 [2^bits]; 0 for what is not finite."""
    values = fmt.values()
    return np.where(np.isfinite(values), values, 0.0)


def encode_at(
    x: NDArray[np.float64], scales: NDArray[np.integer], fmt: Format, rounding: Rounding = Rounding.NEAREST_EVEN
) -> NDArray[np.uint8]:
    """Codes of x * 2^(127 - scale).

    Args:
        x: float64 [n, 32], no NaN; an infinity saturates.
        scales: integers [n], the scale byte of each block.
        fmt: a signed format.
        rounding: of the elements.

    Returns:
        uint8 [n, 32], one code a byte, with the sign of `x`.
    """
    # The non-negative finite values by code, ascending.
    table = fmt.values()[: fmt.max_code + 1]
    scaled = np.ldexp(np.abs(x), E8M0.bias - scales.astype(np.int64)[:, None])
    if rounding is Rounding.TOWARD_ZERO:
        codes = np.searchsorted(table, scaled, side="right") - 1
    else:
        midpoints = (table[:-1] + table[1:]) / 2
        up, down = np.searchsorted(midpoints, scaled, "right"), np.searchsorted(midpoints, scaled, "left")
        # The two differ on a tie alone, and then by one.
        ties = {Rounding.HALF_AWAY: up, Rounding.HALF_TOWARD_ZERO: down}
        codes = ties.get(rounding, np.where(up % 2 == 0, up, down))
    sign = np.signbit(x).astype(np.uint8) << np.uint8(fmt.bits - 1)
    coded: NDArray[np.uint8] = codes.astype(np.uint8) | sign
    return coded
