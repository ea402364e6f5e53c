"""The sum of linear filtering, bit for bit as Hopper makes it.

The CUDA Programming Guide publishes (1 - a) T[i] + a T[i + 1] alone. The rest was found from answers of an H100, and
20,000 answers of an H200 are held against it: `tests/ptx/textures/test_recorded.py`.

Weights are whole 256ths, also of eight texels: z is split first, then x, then y, and what one side of a split gets is
rounded to nearest, ties up. Of y it is the upper side where x is, and the lower side where x is the lower one.

    z  256 ---- c : 256 - c
    x    W ---- floor(a W / 256 + 1/2) : the rest
    y    W ---- floor(b W / 256 + 1/2) : the rest              where x is the upper one
         W ---- the rest : floor((256 - b) W / 256 + 1/2)      where x is the lower one

Texels of floating point that have a weight are cut toward zero to multiples of 2^(e - p - 4), where e is the largest
exponent of those with the same z, and p are the bits behind the point of a significand: 23 or 10. Their weighted sum is
exact, and it is rounded to the texels' own type: to nearest, ties away from zero. Subnormal numbers of FP32 are 0.

Of integers that are read as fractions the weighted sum becomes a fixed-point number of 16 bits, 0 to 65535 or -32767 to
32767: to nearest, ties up.

Two things do not hold for all samples: of int8 an H200 gives the fixed-point number next to this in one of twenty, and
between two z the FP32 number next to this in one of five hundred. Extrapolated is that subnormal numbers of FP16 are
kept, and that a result of FP32 that would be subnormal is 0.
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import product
from typing import Any

import numpy as np

Array = Any
#: Weights are multiples of 1 / ONE.
ONE = 256
NAN_BITS = 0x7FFFFFFF


def weights_of(parts: tuple[Array, ...]) -> dict[tuple[int, ...], Array]:
    """The weight, int64 [n], of each corner, by its steps along x, y and z.

    Args:
        parts: along each axis the weight of the upper texel, 0 to ONE - 1.
    """
    a, b, c = (*parts, None, None)[:3]
    found = {}
    for steps in product((0, 1), repeat=len(parts)):
        whole = np.full_like(parts[0], ONE)
        if c is not None:
            whole = c if steps[2] else ONE - c
        upper = (a * whole + ONE // 2) // ONE
        whole = upper if steps[0] else whole - upper
        if b is not None:
            part = b if steps[0] else ONE - b
            near = (part * whole + ONE // 2) // ONE
            whole = near if steps[0] == steps[1] else whole - near
        found[steps] = whole
    return found


@dataclass(frozen=True)
class _Significand:
    """A type of texels of floating point.

    Attributes:
        bits: behind the point.
        least: the least exponent of a normal number.
        flushes: whether subnormal numbers are 0.
    """

    bits: int
    least: int
    flushes: bool


_FLOATS = {"f4": _Significand(23, -126, True), "f2": _Significand(10, -14, False)}
_GUARD_BITS = 4


def filtered_floats(texels: Array, weights: dict[tuple[int, ...], Array], kind: str) -> Array:
    """FP32 numbers, uint32 [channels, n].

    Args:
        texels: float64 [corners, channels, n]; those without a weight do not count.
        weights: of the corners.
        kind: "f4" or "f2".
    """
    form = _FLOATS[kind]
    weight = np.stack([*weights.values()])[:, None]
    counts = np.broadcast_to(weight > 0, texels.shape)
    texels = np.where(counts, texels, 0.0)
    special = np.where(np.isfinite(texels), 0.0, texels)
    with np.errstate(invalid="ignore"):
        lost = special.sum(axis=0)  # infinite, or a NaN
    texels = np.where(np.isfinite(texels), texels, 0.0)
    if form.flushes:
        texels = np.where(np.abs(texels) < 2.0**form.least, np.copysign(0.0, texels), texels)
    exponent = np.where(texels == 0.0, -500, np.frexp(texels)[1] - 1)
    # Texels with one z are cut to one unit.
    slices = [np.array([steps[2:] == z for steps in weights])[:, None, None] for z in {steps[2:] for steps in weights}]
    units = [np.ldexp(1.0, np.where(each, exponent, -500).max(axis=0) - form.bits - _GUARD_BITS) for each in slices]
    unit = np.maximum.reduce(units)
    total = sum(
        (np.trunc(np.where(each, texels, 0.0) / own) * weight).sum(axis=0) * (own / unit)
        for each, own in zip(slices, units, strict=True)
    )
    value = _rounded(total, unit / ONE, form)
    # A sum of zeros is negative if all of them are.
    negative = np.where(counts, np.signbit(texels), True).all(axis=0)
    value = np.where((total == 0.0) & negative, -0.0, value)
    if form.flushes:
        value = np.where(np.abs(value) < 2.0**form.least, np.copysign(0.0, value), value)
    bits = np.where(lost == 0.0, value, lost).astype(np.float32).view(np.uint32)
    return np.where(np.isnan(lost), np.uint32(NAN_BITS), bits)


def _rounded(total: Array, unit: Array, form: _Significand) -> Array:
    """Numbers of units to the numbers of a form, ties away from zero."""
    _, exponent = np.frexp(total)
    _, place = np.frexp(unit)
    # Bits of `total` below those that the form keeps; fewer than none where it has more bits than it needs.
    excess = np.maximum(exponent - 1 - form.bits, form.least - form.bits - (place - 1))
    step = np.ldexp(1.0, excess)
    return np.copysign(np.floor(np.abs(total) / step + 0.5) * step * unit, total)


def filtered_fractions(texels: Array, weights: dict[tuple[int, ...], Array], dtype: np.dtype[Any]) -> Array:
    """Texels of integers, read as fractions, to FP32 numbers, uint32 [channels, n].

    Args:
        texels: float64 [corners, channels, n], whole numbers but for a border's colour.
        weights: of the corners.
        dtype: of the texels.
    """
    most = 2.0 ** (16 - (dtype.kind == "i")) - 1
    total = (texels * np.stack([*weights.values()])[:, None]).sum(axis=0)
    whole = np.floor(total * most / (np.iinfo(dtype).max * float(ONE)) + 0.5)
    return (np.maximum(whole, -most).astype(np.float32) / np.float32(most)).view(np.uint32)
