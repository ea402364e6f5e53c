"""From coordinates to texels: CUDA Programming Guide, "Texture Fetching", and what Hopper answers.

Published are the address modes, tex(x) = T[floor(x)] of point filtering, and of linear filtering, with xb = x - 0.5,
i = floor(xb) and a = frac(xb), tex(x) = (1 - a) T[i] + a T[i + 1], where `a` has 8 bits behind the point.

An H100 and an H200 add to that, see `refmoe.ptx.engine.textures.filtering` for the recording:
- xb is rounded to 8 bits behind the point, ties up, before it is split into i and `a`; "clamp" clamps it to
  0 .. size - 1 before;
- a normalized coordinate loses what is below 2^-21, and is then multiplied exactly;
- the address mode decides for i and for i + 1 which texel stands for it; "mirror" repeats a texel at each edge;
- subnormal coordinates are 0, and so are NaNs; infinite ones are 0 where they wrap or mirror.

Extrapolated is where a coordinate on a cube's face lies.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from refmoe.ptx.engine.textures.filtering import ONE

Array = Any
# Of normalized coordinates, bits behind the point.
_NORMALIZED_BITS = 21
_LEAST_NORMAL = 2.0**-126


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
        """Coordinates float64 [n] in texels."""
        x = np.where(np.isnan(x) | (np.abs(x) < _LEAST_NORMAL), 0.0, x)
        if not self.normalized:
            return x
        if self.mode in ("wrap", "mirror"):
            x = np.mod(np.where(np.isfinite(x), x, 0.0), 2.0)
        return np.floor(x * 2.0**_NORMALIZED_BITS) / 2.0**_NORMALIZED_BITS * self.size

    def texel(self, index: Array) -> tuple[Array, Array]:
        """(texel int64 [n], whether it is inside [n]) for integers as float64 [n] that may lie outside."""
        inside = (index >= 0) & (index < self.size)
        if self.mode == "border":
            return np.where(inside, index, 0.0).astype(np.int64), inside
        if self.normalized and self.mode == "wrap":
            index = np.mod(index, self.size)
        if self.normalized and self.mode == "mirror":
            index = np.mod(index, 2 * self.size)
            index = np.minimum(index, 2 * self.size - 1 - index)
        return np.clip(index, 0, self.size - 1).astype(np.int64), np.ones_like(inside)

    def nearest(self, x: Array) -> tuple[Array, Array]:
        """(texel, whether it is inside) of point filtering."""
        return self.texel(np.floor(self.scaled(x)))

    def pair(self, x: Array) -> tuple[Array, Array]:
        """(lower texel as float64 [n], weight of the upper one in 1 / ONE, int64 [n]) of linear filtering."""
        moved = self.scaled(x) - 0.5
        if self.mode == "clamp" or not (self.normalized or self.mode == "border"):
            moved = np.clip(moved, 0.0, self.size - 1.0)
        place = self._split(moved)
        lower = np.floor(place / ONE)
        return lower, (place - lower * ONE).astype(np.int64)

    def lower(self, x: Array) -> Array:
        """The lower texel as float64 [n] of those that `tld4` gathers, which clamps each of them by itself."""
        return np.floor(self._split(self.scaled(x) - 0.5) / ONE)

    def _split(self, moved: Array) -> Array:
        """Coordinates float64 [n] in 1 / ONE; farther outside of the array they are next to it."""
        if not (self.normalized and self.mode in ("wrap", "mirror")):
            moved = np.clip(moved, -2.0, self.size + 1.0)
        return np.floor(moved * ONE + 0.5)


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
