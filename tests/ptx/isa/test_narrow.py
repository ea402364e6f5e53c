"""The packed 8-, 6- and 4-bit conversions and E8M0, exhaustively where the source has 16 bits or fewer."""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Callable
from dataclasses import dataclass
from fractions import Fraction
from itertools import pairwise

import numpy as np
import pytest
from support.ptx_isa import BF16, F16, F32, Ieee, assert_lanes, float_rows, mismatches, pack, real, unpack
from support.selection.thinned import thinned

from refmoe.ptx import isa


@dataclass(frozen=True)
class Narrow:
    """A narrow format by its definition; `special` codes (without sign) are not finite numbers."""

    name: str
    exponent: int
    fraction: int
    bias: int
    special: dict[int, str]
    field: int
    of_nan: int

    def value(self, code: int) -> Fraction:
        exponent, fraction = code >> self.fraction, code & (1 << self.fraction) - 1
        significand = Fraction(fraction, 1 << self.fraction) + (exponent > 0)
        return significand * Fraction(2) ** (max(exponent, 1) - self.bias)

    @property
    def sign(self) -> int:
        return 1 << self.exponent + self.fraction

    def finite(self) -> list[int]:
        return [c for c in range(self.sign) if c not in self.special]


E4M3 = Narrow("e4m3", 4, 3, 7, {0x7F: "nan"}, 8, 0x7F)
E5M2 = Narrow("e5m2", 5, 2, 15, {0x7C: "inf", 0x7D: "nan", 0x7E: "nan", 0x7F: "nan"}, 8, 0x7F)
E2M3 = Narrow("e2m3", 2, 3, 1, {}, 8, 0x1F)
E3M2 = Narrow("e3m2", 3, 2, 3, {}, 8, 0x1F)
E2M1 = Narrow("e2m1", 2, 1, 1, {}, 4, 0x07)
POWERS = [Fraction(2) ** (code - 127) for code in range(255)]
ALL = (E4M3, E5M2, E2M3, E3M2, E2M1)


def encoder(f: Narrow, source: Ieee, relu: bool = False) -> Callable[[int], int]:
    """To the nearest code, ties to the even one, saturating; NaN as the manual says for the format."""
    grid = [f.value(c) for c in f.finite()]

    def lane(bits: int) -> int:
        x = unpack(bits, source)
        if x.nan:
            return f.of_nan
        if x.negative and relu:
            return 0
        sign = f.sign if x.negative else 0
        if x.infinite or abs(x.value) >= grid[-1]:
            return sign | len(grid) - 1
        magnitude = abs(x.value)
        above = bisect_left(grid, magnitude)
        if grid[above] == magnitude:
            return sign | above
        below = above - 1
        to_above, to_below = grid[above] - magnitude, magnitude - grid[below]
        if to_above == to_below:
            return sign | (above if above % 2 == 0 else below)
        return sign | (above if to_above < to_below else below)

    return lane


def boundary_rows(f: Narrow) -> list[int]:
    """float32 at every code and every midpoint between codes, and one unit to either side, in both signs."""
    grid = [f.value(c) for c in f.finite()]
    points = grid + [(a + b) / 2 for a, b in pairwise(grid)]
    points.append(grid[-1] + (grid[-1] - grid[-2]) / 2)
    rows = []
    for x in points:
        bits = pack(real(False, x), F32)
        rows += [s | (bits + d) for d in (-1, 0, 1) for s in (0, F32.sign) if bits + d >= 0]
    return rows + [row[0] for row in float_rows(F32, 1, 1)]


def paired(values: list[int]) -> list[tuple[int, int]]:
    return list(zip(values, values[7:] + values[:7], strict=True))


@pytest.mark.parametrize("relu", [False, True])
@pytest.mark.parametrize("f", ALL, ids=lambda f: f.name)
def test_f32_at_every_boundary(f: Narrow, relu: bool) -> None:
    lane = encoder(f, F32, relu)
    operation = isa.resolve(f"cvt.rn.satfinite{'.relu' if relu else ''}.{f.name}x2.f32")
    assert operation.destinations == ("b8" if f.field == 4 else "b16",)
    # The first operand is the upper element.
    assert_lanes(operation, lambda a, b: lane(a) << f.field | lane(b), paired(boundary_rows(f)))


# The values of a type: every seventh, which has all last bits, and all of them by `make slow`.
each_step = pytest.mark.parametrize("step", thinned([7, 1], 2))


@each_step
@pytest.mark.parametrize("f", ALL, ids=lambda f: f.name)
def test_every_bf16(f: Narrow, step: int) -> None:
    lane = encoder(f, BF16)
    codes = np.array([lane(b) for b in range(0, 1 << 16, step)], np.uint16)
    x = np.arange(0, 1 << 16, step, dtype=np.uint32) << 16
    low = isa.resolve(f"cvt.rn.satfinite.{f.name}x2.f32").function(np.zeros_like(x), x)
    high = isa.resolve(f"cvt.rn.satfinite.{f.name}x2.f32").function(x, np.zeros_like(x))
    assert np.array_equal(low, codes)
    assert np.array_equal(high, codes << f.field)


@each_step
@pytest.mark.parametrize("f", [E4M3, E5M2, E2M1], ids=lambda f: f.name)
def test_every_f16(f: Narrow, step: int) -> None:
    lane = encoder(f, F16)
    codes = np.array([lane(b) for b in range(0, 1 << 16, step)], np.uint16)
    x = np.arange(0, 1 << 16, step, dtype=np.uint32)
    result = isa.resolve(f"cvt.rn.satfinite.{f.name}x2.f16x2").function(x | x[::-1] << 16)
    assert np.array_equal(result, codes | codes[::-1] << f.field)


@pytest.mark.parametrize("relu", thinned([False, True], 3))
@pytest.mark.parametrize("f", ALL, ids=lambda f: f.name)
def test_every_code_decodes(f: Narrow, relu: bool) -> None:
    def lane(code: int) -> int:
        magnitude = code & f.sign - 1
        kind = f.special.get(magnitude)
        if kind == "nan":
            return F16.nan
        negative = bool(code & f.sign)
        if negative and relu:
            return 0
        if kind == "inf":
            return F16.infinity | F16.sign * negative
        return pack(real(negative, f.value(magnitude) * (-1 if negative else 1)), F16)

    codes = range(2 * f.sign)
    rows = [(high << f.field | low,) for high in codes for low in codes][:: 1 if f.sign < 64 else 11]
    operation = isa.resolve(f"cvt.rn{'.relu' if relu else ''}.f16x2.{f.name}x2")
    mask = (1 << f.field) - 1
    assert_lanes(operation, lambda a: lane(a >> f.field) << 16 | lane(a & mask), rows)


@pytest.mark.parametrize("relu", [False, True])
@pytest.mark.parametrize("f", ALL, ids=lambda f: f.name)
def test_pairs_of_bf16(f: Narrow, relu: bool) -> None:
    lane = encoder(f, BF16, relu)
    every = np.arange(1 << 16, dtype=np.uint32)
    operation = isa.resolve(f"cvt.rn.satfinite{'.relu' if relu else ''}.{f.name}x2.bf16x2")
    result = operation.function(every | every[::-1] << 16)
    for i in range(0, 1 << 16, 37):
        assert int(result[i]) == lane((1 << 16) - 1 - i) << f.field | lane(i), hex(i)


@pytest.mark.parametrize("relu", [False, True])
@pytest.mark.parametrize("f", ALL, ids=lambda f: f.name)
def test_every_code_decodes_to_bf16(f: Narrow, relu: bool) -> None:
    def lane(code: int) -> int:
        special = f.special.get(code & f.sign - 1)
        if special == "nan":
            return BF16.nan
        if relu and code & f.sign:
            return 0
        if special == "inf":
            return BF16.infinity | (code & f.sign) << 8
        return pack(real(bool(code & f.sign), f.value(code & f.sign - 1)), BF16)

    mask = (1 << f.field) - 1
    rows = [(code << f.field | (7 * code + 3 & mask),) for code in range(mask + 1)]
    operation = isa.resolve(f"cvt.rn{'.relu' if relu else ''}.bf16x2.{f.name}x2")
    # Bits above a code of 6 bits are ignored.
    keep = 2 * f.sign - 1
    assert_lanes(operation, lambda a: lane(a >> f.field & keep) << 16 | lane(a & mask & keep), rows)


@pytest.mark.parametrize("satfinite", [False, True])
@pytest.mark.parametrize("mode", ["rz", "rp"])
def test_e8m0(mode: str, satfinite: bool) -> None:
    def lane(bits: int, f: Ieee) -> int:
        x = unpack(bits & ~f.sign, f)  # the sign plays no part
        if x.nan:
            return 0xFF
        if x.infinite:
            return 0xFE if satfinite else 0xFF
        assert x.value is not None
        # The last power of two that is no larger; there is none below 2^-127, and rounding up ends there too.
        below = bisect_right(POWERS, x.value) - 1
        exact = below < 0 or POWERS[below] == x.value
        below = max(below, 0)
        up = below + (mode == "rp" and not exact)
        return min(up, 0xFE) if satfinite else up

    opcode = f"cvt.{mode}{'.satfinite' if satfinite else ''}.ue8m0x2"
    edges = [pack(real(False, Fraction(2) ** k), F32) for k in (-149, -128, -127, -126, -1, 0, 1, 127)]
    values = sorted(
        {b + d for b in edges for d in (-1, 0, 1) if b + d >= 0} | {F32.infinity - 1, F32.infinity, F32.nan}
    )
    values += [v | F32.sign for v in values]
    operation = isa.resolve(f"{opcode}.f32")
    assert_lanes(operation, lambda a, b: lane(a, F32) << 8 | lane(b, F32), paired(values))
    every = np.arange(1 << 16, dtype=np.uint32)
    chosen = range(0, 1 << 16, 61)
    result = isa.resolve(f"{opcode}.bf16x2").function(every | every[::-1] << 16)
    for i in chosen:
        assert int(result[i]) == lane((1 << 16) - 1 - i, BF16) << 8 | lane(i, BF16), hex(i)


def test_every_e8m0_decodes() -> None:
    def lane(code: int) -> int:
        return BF16.nan if code == 0xFF else pack(real(False, Fraction(2) ** (code - 127)), BF16)

    rows = [(a << 8 | (a * 7 + 3) % 256,) for a in range(256)]
    assert_lanes(isa.resolve("cvt.rn.bf16x2.ue8m0x2"), lambda a: lane(a >> 8) << 16 | lane(a & 0xFF), rows)


@pytest.mark.parametrize("fault", ["truncated", "overflow is NaN", "swapped", "ties away", "no subnormals"])
def test_the_comparison_catches_a_wrong_e4m3(fault: str) -> None:
    right = isa.resolve("cvt.rn.satfinite.e4m3x2.f32").function
    lane = encoder(E4M3, F32)

    def wrong(a: np.ndarray, b: np.ndarray) -> np.ndarray:
        if fault == "truncated":
            return right(a & np.uint32(0xFFF00000), b)
        if fault == "overflow is NaN":
            return right(np.where((a & 0x7FFFFFFF) > 0x43E80000, np.uint32(0x7FC00000), a), b)
        if fault == "swapped":
            return right(b, a)
        if fault == "ties away":
            return right(np.where((a & 0xFFFFF) == 0x80000, a + np.uint32(1), a), b)
        return right(np.where((a & 0x7FFFFFFF) < 0x3C800000, a & np.uint32(0x80000000), a), b)

    rows = paired(boundary_rows(E4M3))
    assert mismatches(wrong, lambda a, b: lane(a) << 8 | lane(b), ("b32", "b32"), rows)
