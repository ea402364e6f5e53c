"""From coordinates to texels: CUDA Programming Guide, "Texture Fetching".

Published are the address modes, tex(x) = T[floor(x)] of point filtering, and of linear filtering, with xb = x - 0.5,
i = floor(xb) and a = frac(xb), tex(x) = (1 - a) T[i] + a T[i + 1], where `a` has 8 bits behind the point, so that 1.0
is representable.

Extrapolated are:
- how `a` is rounded to 8 bits: here to nearest, ties up;
- which texel stands for i and i + 1 outside of the array: here the address mode decides for each;
- how normalized coordinates are rounded when they are multiplied: here not at all;
- coordinates that are no numbers: here they are 0.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

Array = Any
#: Weights are multiples of 1 / ONE.
ONE = 256


@dataclass(frozen=True)
class Axis:
    """How coordinates along one axis become texels.

    Attributes:
        size: texels.
        mode: the address mode.
        normalized: whether coordinates go from 0 to 1.
    """

    size: int
    mode: str
    normalized: bool = False

    def scaled(self, x: Array) -> Array:
        """Coordinates float64 [n] in texels, remapped where the guide says so before they are looked at."""
        x = np.where(np.isnan(x), 0.0, x)
        if self.normalized and self.mode in ("wrap", "mirror"):
            # Further away FP32 has no fractions, and the integers do not matter.
            x = np.where(np.isfinite(x), x, 0.0)
            whole = np.floor(x)
            odd = (self.mode == "mirror") & (np.mod(whole, 2.0) == 1.0)
            x = np.where(odd, whole + 1.0 - x, x - whole)
        return x * self.size if self.normalized else x

    def texel(self, index: Array) -> tuple[Array, Array]:
        """(texel int64 [n], whether it is inside [n]) for integers as float64 [n] that may lie outside."""
        inside = (index >= 0) & (index < self.size)
        if self.mode == "border":
            return np.where(inside, index, 0.0).astype(np.int64), inside
        if self.normalized and self.mode == "wrap":
            return np.mod(index, self.size).astype(np.int64), np.ones_like(inside)
        # Mirrored texels next to the edge are those at the edge.
        return np.clip(index, 0, self.size - 1).astype(np.int64), np.ones_like(inside)

    def nearest(self, x: Array) -> tuple[Array, Array]:
        """(texel, whether it is inside) of point filtering."""
        index = np.floor(self.scaled(x))
        if self.mode == "wrap" and self.normalized:
            # Less than 1 as a fraction, whatever rounding says.
            index = np.minimum(index, self.size - 1)
        return self.texel(index)

    def pair(self, x: Array) -> tuple[Array, Array]:
        """(lower texel as float64 [n], weight of the upper one in 1 / ONE, int64 [n]) of linear filtering."""
        moved = self.scaled(x) - 0.5
        if self.mode != "border":
            # So far away all texels are that at the edge.
            moved = np.clip(moved, -1.0, float(self.size))
        moved = np.where(np.isfinite(moved), moved, -2.0)
        lower = np.floor(moved)
        return lower, np.floor((moved - lower) * ONE + 0.5).astype(np.int64)


def face(direction: Array) -> tuple[Array, Array, Array]:
    """(face int64 [n], normalized coordinates on it) of directions float64 [3, n].

    Faces and signs are those of the guide, "Cubemap Textures". A direction of which two components are as long goes to
    the first of x, y and z. How a chip rounds the quotients is not published.
    """
    x, y, z = direction
    ax, ay, az = np.abs(direction)
    by_x, by_y = (ax >= ay) & (ax >= az), (ay > ax) & (ay >= az)
    along = np.where(by_x, x, np.where(by_y, y, z))
    negative = along < 0
    m = np.abs(along)
    s = np.where(by_x, np.where(negative, z, -z), np.where(by_y, x, np.where(negative, -x, x)))
    t = np.where(by_y, np.where(negative, -z, z), -y)
    number = np.where(by_x, 0, np.where(by_y, 2, 4)) + negative
    return number.astype(np.int64), (s / m + 1.0) / 2.0, (t / m + 1.0) / 2.0
