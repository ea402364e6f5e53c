"""What a texture fetch gives, one sample at a time, in exact arithmetic.

From the CUDA Programming Guide, "Texture Fetching", and from what Hopper answers (docs/guides/textures.md). It shares
nothing with `refmoe.ptx.engine.textures`: coordinates, weights and texels are fractions.
"""

from __future__ import annotations

import itertools
import math
from fractions import Fraction
from typing import Any

import numpy as np

from refmoe import ptx

HALF = Fraction(1, 2)


def in_texels(x: float, size: int, mode: str, normalized: bool) -> Fraction:
    """A coordinate in texels."""
    if math.isnan(x) or abs(x) < 2.0**-126:
        return Fraction(0)
    if math.isinf(x):
        if normalized and mode in ("wrap", "mirror"):
            return Fraction(0)
        return Fraction(-9 * size if x < 0 else 9 * size)
    return Fraction(math.floor(Fraction(x) * 2**21), 2**21) * size if normalized else Fraction(x)


def neighbour(index: int, size: int, mode: str, normalized: bool) -> int | None:
    """The texel that stands for an index; None for the border's colour."""
    if 0 <= index < size:
        return index
    if mode == "border":
        return None
    if mode == "wrap" and normalized:
        return index % size
    if mode == "mirror" and normalized:
        return index % (2 * size) if index % (2 * size) < size else 2 * size - 1 - index % (2 * size)
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
        return [0x7FFFFFFF if math.isnan(each) else int(np.float32(each).view(np.uint32)) for each in whole]
    return [each & 0xFFFFFFFF for each in whole]


def sample(
    texture: ptx.TextureObject, data: np.ndarray[Any, Any], coordinates: list[float], layer: int | None = None
) -> list[int]:
    """Four registers of a fetch at (x, y, z), FP32 numbers; `data` has the texels [layer][z][y][x]([channel])."""
    sizes = data.shape[: data.ndim - (texture.resource.channels > 1)][::-1]
    front = () if layer is None else (min(layer, data.shape[0] - 1),)
    modes, normalized = texture.address_mode, texture.normalized_coords
    along = [
        in_texels(float(x), size, mode, normalized) for x, size, mode in zip(coordinates, sizes, modes, strict=False)
    ]
    if texture.filter_mode == "point":
        place = [
            neighbour(math.floor(x), size, mode, normalized) for x, size, mode in zip(along, sizes, modes, strict=False)
        ]
        return bits(texture, colour(texture, data, (*front, *place[::-1])))
    axes = []
    for x, size, mode in zip(along, sizes, modes, strict=False):
        if mode == "clamp" or (not normalized and mode != "border"):
            x = min(max(x, HALF), size - HALF)
        axes.append(pair(x))
    terms: dict[int, list[tuple[int, list[Any]]]] = {0: [], 1: []}
    for corner in itertools.product((0, 1), repeat=len(axes)):
        weight = weight_of(corner, [part for _, part in axes])
        place = [
            neighbour(lower + upper, size, mode, normalized)
            for (lower, _), upper, size, mode in zip(axes, corner, sizes, modes, strict=False)
        ]
        if weight:
            terms[sum(corner[2:])].append((weight, raw(texture, data, (*front, *place[::-1]))))
    channels = range(texture.resource.channels)
    mix = mixed_floats if texture.resource.texels.dtype.kind == "f" else mixed_integers
    slices = [each for each in terms.values() if each]
    return bits(
        texture,
        [
            mix([[(w, t[channel]) for w, t in each] for each in slices], texture.resource.texels.dtype)
            for channel in channels
        ],
    )


def raw(texture: ptx.TextureObject, data: np.ndarray[Any, Any], place: tuple[int | None, ...]) -> list[Any]:
    """The components of a texel as they are stored, or of the border as such numbers."""
    dtype, channels = texture.resource.texels.dtype, texture.resource.channels
    if None in place:
        most = 1 if dtype.kind == "f" else int(np.iinfo(dtype).max)
        return [Fraction(each) * most for each in texture.border_color][:channels]
    return [each.item() for each in np.atleast_1d(data[place])]


def half_up(x: Fraction) -> int:
    return math.floor(x + HALF)


def weight_of(corner: tuple[int, ...], parts: list[int]) -> int:
    """The weight of a corner in 256ths: z is split first, then x, then y."""
    whole = 256
    if len(corner) == 3:
        whole = parts[2] if corner[2] else 256 - parts[2]
    upper = half_up(Fraction(parts[0] * whole, 256))
    whole = upper if corner[0] else whole - upper
    if len(corner) == 1:
        return whole
    if corner[0]:
        upper = half_up(Fraction(parts[1] * whole, 256))
    else:
        upper = whole - half_up(Fraction((256 - parts[1]) * whole, 256))
    return upper if corner[1] else whole - upper


def mixed_floats(slices: list[list[tuple[int, Any]]], dtype: np.dtype[Any]) -> float:
    """A weighted sum of texels, those with one z together, rounded to their type."""
    every = [float(texel) for terms in slices for _, texel in terms]
    if any(math.isnan(each) for each in every) or {math.inf, -math.inf} <= {*every}:
        return math.nan
    for each in every:
        if math.isinf(each):
            return each
    digits, least = (23, -126) if dtype.itemsize == 4 else (10, -14)
    total, negative = Fraction(0), True
    for terms in slices:
        held = [(weight, Fraction(texel)) for weight, texel in terms]
        if dtype.itemsize == 4:
            held = [(weight, texel if abs(texel) >= Fraction(2) ** least else Fraction(0)) for weight, texel in held]
        top = max((exponent_of(texel) for _, texel in held if texel), default=0)
        unit = Fraction(2) ** (top - digits - 4)
        total += sum((weight * math.trunc(texel / unit) * unit for weight, texel in held), Fraction(0))
        negative &= all(math.copysign(1.0, float(texel)) < 0 for _, texel in terms)
    total /= 256
    if not total:
        return -0.0 if negative else 0.0
    unit = Fraction(2) ** (max(exponent_of(total), least) - digits)
    value = half_up(abs(total) / unit) * unit  # ties away from zero
    if dtype.itemsize == 4 and value < Fraction(2) ** least:
        value = Fraction(0)
    return math.copysign(float(value), float(total))


def exponent_of(x: Fraction) -> int:
    """Of the largest power of two that is not above |x|."""
    found = abs(x).numerator.bit_length() - x.denominator.bit_length()
    return found if Fraction(2) ** found <= abs(x) else found - 1


def mixed_integers(slices: list[list[tuple[int, Any]]], dtype: np.dtype[Any]) -> float:
    """A weighted sum of integers, as a fraction of 16 bits."""
    most = 65535 if dtype.kind == "u" else 32767
    total = sum((weight * Fraction(texel) for terms in slices for weight, texel in terms), Fraction(0))
    whole = max(half_up(total * most / (int(np.iinfo(dtype).max) * 256)), -most)
    return float(np.float32(whole) / np.float32(most))


def pair(x: Fraction) -> tuple[int, int]:
    """(the lower texel, the weight of the upper one in 256ths) of linear filtering."""
    return divmod(half_up((x - HALF) * 256), 256)


def gathered(texture: ptx.TextureObject, data: np.ndarray[Any, Any], x: float, y: float, component: int) -> list[int]:
    """Four registers of `tld4`: counter-clockwise from the lower left."""
    height, width = data.shape[:2]
    mode_x, mode_y, _ = texture.address_mode
    normalized = texture.normalized_coords
    left, _ = pair(in_texels(x, width, mode_x, normalized))
    top, _ = pair(in_texels(y, height, mode_y, normalized))
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
