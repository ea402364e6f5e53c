"""What a texture fetch gives, one sample at a time, in exact arithmetic: CUDA Programming Guide, "Texture Fetching".

It shares nothing with `refmoe.ptx.engine.textures`. Coordinates are fractions. What the guide does not publish is as
`refmoe/ptx/engine/textures/coordinates.py` and `fetch.py` say.
"""

from __future__ import annotations

import math
from fractions import Fraction
from typing import Any

import numpy as np

from refmoe import ptx

HALF = Fraction(1, 2)


def remapped(x: Fraction, size: int, mode: str, normalized: bool) -> Fraction:
    """A coordinate in texels, brought into [0, size) where the mode does so."""
    if not normalized:
        mode = "border" if mode == "border" else "clamp"
    if normalized:
        if mode == "wrap":
            x = x - math.floor(x)
        if mode == "mirror":
            fraction = x - math.floor(x)
            x = fraction if math.floor(x) % 2 == 0 else 1 - fraction
        x = x * size
    return x


def neighbour(index: int, size: int, mode: str, normalized: bool) -> int | None:
    """The texel that stands for an index; None for the border's colour."""
    if 0 <= index < size:
        return index
    if mode == "border":
        return None
    if mode == "wrap" and normalized:
        return index % size
    return 0 if index < 0 else size - 1


def colour(texture: ptx.TextureObject, data: np.ndarray[Any, Any], place: tuple[int | None, ...]) -> list[Any]:
    """The components of a texel, `place` outermost first, or of the border, as numbers of Python."""
    dtype, channels = texture.resource.texels.dtype, texture.resource.channels
    floats = dtype.kind == "f" or texture.read_mode == "normalized_float"
    if None in place:
        return [float(each) if floats else int(each) for each in texture.border_color][:channels]
    held = np.atleast_1d(data[place])
    if dtype.kind == "f":
        return [float(each) for each in held]
    if floats:
        most = np.iinfo(dtype).max
        return [float(np.float32(max(Fraction(int(each), int(most)), Fraction(-1)))) for each in held]
    return [int(each) for each in held]


def bits(texture: ptx.TextureObject, components: list[Any]) -> list[int]:
    """Four registers: what is missing is 0, and 1 for the fourth."""
    floats = texture.resource.texels.dtype.kind == "f" or texture.read_mode == "normalized_float"
    whole = [*components, *(0, 0, 0, 1)[len(components) :]]
    if floats:
        return [int(np.float32(each).view(np.uint32)) for each in whole]
    return [each & 0xFFFFFFFF for each in whole]


def sample(
    texture: ptx.TextureObject, data: np.ndarray[Any, Any], coordinates: list[float], layer: int | None = None
) -> list[int]:
    """Four registers of a fetch at (x, y, z), FP32 numbers; `data` has the texels [layer][z][y][x]([channel])."""
    sizes = data.shape[: data.ndim - (texture.resource.channels > 1)][::-1]
    front = () if layer is None else (min(layer, data.shape[0] - 1),)
    modes, normalized = texture.address_mode, texture.normalized_coords
    along = [
        remapped(Fraction(float(x)), size, mode, normalized)
        for x, size, mode in zip(coordinates, sizes, modes, strict=False)
    ]
    if texture.filter_mode == "point":
        place = [
            neighbour(math.floor(x), size, mode, normalized) for x, size, mode in zip(along, sizes, modes, strict=False)
        ]
        return bits(texture, colour(texture, data, (*front, *place[::-1])))
    total = [0.0] * texture.resource.channels
    axes = [pair(x) for x in along]
    for corner in range(1 << len(axes)):
        weight, place = Fraction(1), []
        for number, (lower, part) in enumerate(axes):
            upper = corner >> number & 1
            weight *= part if upper else 1 - part
            place.append(neighbour(lower + upper, sizes[number], modes[number], normalized))
        if weight:
            texel = colour(texture, data, (*front, *place[::-1]))
            total = [so_far + float(weight) * each for so_far, each in zip(total, texel, strict=True)]
    return bits(texture, total)


def pair(x: Fraction) -> tuple[int, Fraction]:
    """(the lower texel, the weight of the upper one in 256ths) of linear filtering."""
    lower = math.floor(x - HALF)
    return lower, Fraction(math.floor((x - HALF - lower) * 256 + HALF), 256)


def gathered(texture: ptx.TextureObject, data: np.ndarray[Any, Any], x: float, y: float, component: int) -> list[int]:
    """Four registers of `tld4`: counter-clockwise from the lower left."""
    height, width = data.shape[:2]
    mode_x, mode_y, _ = texture.address_mode
    normalized = texture.normalized_coords
    left = math.floor(remapped(Fraction(float(x)), width, mode_x, normalized) - HALF)
    top = math.floor(remapped(Fraction(float(y)), height, mode_y, normalized) - HALF)
    found = []
    for column, row in ((left, top + 1), (left + 1, top + 1), (left + 1, top), (left, top)):
        place = (neighbour(row, height, mode_y, normalized), neighbour(column, width, mode_x, normalized))
        found.append(bits(texture, colour(texture, data, place))[component])
    return found


def on_cube(direction: tuple[float, float, float]) -> tuple[int, float, float]:
    """(face, s, t in [0, 1]) of a direction: the table of the guide, "Cubemap Textures"."""
    x, y, z = direction
    longest = max(abs(x), abs(y), abs(z))
    if abs(x) == longest:
        face, m, s, t = (0, x, -z, -y) if x >= 0 else (1, -x, z, -y)
    elif abs(y) == longest:
        face, m, s, t = (2, y, x, z) if y >= 0 else (3, -y, x, -z)
    else:
        face, m, s, t = (4, z, x, -y) if z >= 0 else (5, -z, -x, -y)
    return face, (s / m + 1) / 2, (t / m + 1) / 2
