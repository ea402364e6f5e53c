"""cvt between register types against exact rationals."""

from __future__ import annotations

import zlib
from collections.abc import Callable
from fractions import Fraction

import numpy as np
import pytest
from support.ptx_isa import (
    BF16,
    F16,
    F32,
    F64,
    FORMATS,
    Ieee,
    assert_lanes,
    corners,
    float_rows,
    flushed,
    mismatches,
    moved_nan,
    pack,
    pack_flushed,
    real,
    round_to_integer,
    to_signed,
    unpack,
)
from support.selection.thinned import thinned

from refmoe.ptx import isa

INTEGERS = ("u8", "s8", "u16", "s16", "u32", "s32", "u64", "s64")
MODES = ("rn", "rz", "rm", "rp")


def limits(t: str) -> tuple[int, int]:
    bits = int(t[1:])
    return (-(1 << bits - 1), (1 << bits - 1) - 1) if t[0] == "s" else (0, (1 << bits) - 1)


def value(bits: int, t: str) -> int:
    return to_signed(bits, int(t[1:])) if t[0] == "s" else bits


def integer_rows(t: str, seed: int) -> list[tuple[int, ...]]:
    """Corners, and numbers with few significant bits next to powers of two, where rounding decides."""
    bits = int(t[1:])
    rng = np.random.default_rng(seed)
    near = [
        (1 << k) + int(offset) & (1 << bits) - 1
        for k in range(bits)
        for offset in (
            -1,
            0,
            1,
            1 << max(k - 24, 0),
            1 << max(k - 53, 0),
            3 << max(k - 25, 0),
            (1 << max(k - 8, 0)) + 1,
        )
    ]
    random = [int.from_bytes(rng.bytes(bits // 8), "little") for _ in range(200)]
    return [(x,) for x in dict.fromkeys(corners(bits) + near + random)]


@pytest.mark.parametrize("of", INTEGERS)
@pytest.mark.parametrize("to", INTEGERS)
def test_integer_to_integer(to: str, of: str) -> None:
    mask = (1 << int(to[1:])) - 1
    rows = integer_rows(of, 1)
    operation = isa.resolve(f"cvt.{to}.{of}")
    assert operation.sign_extend == (to[0] == "s")
    assert_lanes(operation, lambda a: value(a, of) & mask, rows)
    (low, high), (from_low, from_high) = limits(to), limits(of)
    if from_low < low or from_high > high:
        assert_lanes(isa.resolve(f"cvt.sat.{to}.{of}"), lambda a: max(low, min(high, value(a, of))) & mask, rows)
    else:
        with pytest.raises(isa.NoSuchInstruction):
            isa.resolve(f"cvt.sat.{to}.{of}")


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("f", FORMATS.values(), ids=FORMATS)
@pytest.mark.parametrize("of", INTEGERS)
def test_integer_to_float(of: str, f: Ieee, mode: str) -> None:
    def lane(a: int) -> int:
        x = value(a, of)
        return pack(real(x < 0, x), f, mode[1])

    assert_lanes(isa.resolve(f"cvt.{mode}.{f.name}.{of}"), lane, integer_rows(of, 2))


def float_to_integer(to: str, f: Ieee, mode: str, ftz: bool = False) -> Callable[[int], int]:
    bits = int(to[1:])
    low, high = limits(to)

    def lane(a: int) -> int:
        x = unpack(flushed(a, f) if ftz else a, f)
        if x.nan:
            return 1 << bits - 1 if f is F64 or bits == 64 else 0
        if x.infinite:
            result = low if x.negative else high
        else:
            assert x.value is not None
            result = max(low, min(high, round_to_integer(x.value, mode)))
        return result & (1 << bits) - 1

    return lane


def rows_near_integers(f: Ieee, seed: int) -> list[tuple[int, ...]]:
    """Halves, and the neighbours of every power of two: where integers round and where they saturate."""
    rows = float_rows(f, 1, seed, 150)
    for k in range(-2, 65):
        for offset in (Fraction(-1), Fraction(-1, 2), Fraction(0), Fraction(1, 2), Fraction(1)):
            for sign in (1, -1):
                x = sign * (Fraction(2) ** k + offset)
                bits = pack(real(x < 0, x), f)
                rows += [(bits + d,) for d in (-1, 0, 1) if 0 <= bits + d < 1 << f.bits]
    return rows


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("f", thinned(FORMATS.values(), 3), ids=FORMATS)
def test_float_to_integer(f: Ieee, mode: str) -> None:
    rows = rows_near_integers(f, 3)
    for to in INTEGERS:
        lane = float_to_integer(to, f, mode[1])
        assert_lanes(isa.resolve(f"cvt.{mode}i.{to}.{f.name}"), lane, rows)
        if f is F32:
            assert_lanes(isa.resolve(f"cvt.{mode}i.ftz.{to}.f32"), float_to_integer(to, f, mode[1], True), rows)
            assert_lanes(isa.resolve(f"cvt.{mode}i.sat.{to}.f32"), lane, rows)


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("f", FORMATS.values(), ids=FORMATS)
def test_float_to_integral_float(f: Ieee, mode: str) -> None:
    def lane(a: int) -> int:
        x = unpack(a, f)
        if x.nan and f is F64:
            return moved_nan(a, f, f)
        if x.nan or x.infinite:
            return pack(x, f)
        assert x.value is not None
        return pack(real(x.negative, round_to_integer(x.value, mode[1])), f)

    assert_lanes(isa.resolve(f"cvt.{mode}i.{f.name}.{f.name}"), lane, rows_near_integers(f, 4))


def tie_rows(of: Ieee, to: Ieee, seed: int) -> list[tuple[int, ...]]:
    """Numbers of `of` at, and one unit beside, the midpoints of `to`, its subnormals and its overflow edge included."""
    rng = np.random.default_rng(seed)
    rows = float_rows(of, 1, seed, 150)
    codes = [0, 1, 2, 3, (1 << to.fraction) - 1, 1 << to.fraction, to.infinity - 1, to.infinity - 2]
    codes += [int(c) for c in rng.integers(0, to.infinity, 200)]
    for code in codes:
        low = unpack(code, to).value
        step = Fraction(2) ** (max(code >> to.fraction, 1) - to.bias - to.fraction)
        assert low is not None
        bits = pack(real(False, low + step / 2), of)
        rows += [(s | (bits + d),) for d in (-1, 0, 1) for s in (0, of.sign) if bits + d >= 0]
    return rows


PAIRS = [(to, of) for to in FORMATS.values() for of in FORMATS.values() if to is not of]


@pytest.mark.parametrize(("to", "of"), thinned(PAIRS, 3), ids=lambda f: f.name)
def test_float_to_float(to: Ieee, of: Ieee) -> None:
    narrowing = to.fraction < of.fraction or to.bits == of.bits
    rows = tie_rows(of, to, 5) if narrowing else float_rows(of, 1, 5)
    for mode in MODES if narrowing else ("",):
        opcode = f"cvt{'.' + mode if mode else ''}.{to.name}.{of.name}"

        def lane(a: int, mode: str = mode) -> int:
            x = unpack(a, of)
            if x.nan and (to, of) == (F32, BF16):
                return a << 16
            if x.nan and F64 in (to, of):
                return moved_nan(a, of, to)
            return pack(x, to, mode[1:] or "n")

        assert_lanes(isa.resolve(opcode), lane, rows)
    if narrowing:
        with pytest.raises(isa.NoSuchInstruction):
            isa.resolve(f"cvt.{to.name}.{of.name}")


def test_float_to_float_flush_and_saturate() -> None:
    def saturated(bits: int, f: Ieee) -> int:
        x = unpack(bits, f)
        return 0 if x.nan or x.negative else min(bits, f.bias << f.fraction)

    rows = float_rows(F32, 1, 6)
    assert_lanes(isa.resolve("cvt.ftz.f32.f32"), lambda a: pack(unpack(flushed(a, F32), F32), F32), rows)
    assert_lanes(isa.resolve("cvt.sat.f32.f32"), lambda a: saturated(a, F32), rows)
    assert_lanes(
        isa.resolve("cvt.rn.ftz.sat.f16.f32"),
        lambda a: saturated(pack(unpack(flushed(a, F32), F32), F16), F16),
        tie_rows(F32, F16, 7),
    )
    doubles = [row for row in tie_rows(F64, F32, 8) if not unpack(row[0], F64).nan]
    # From 2^-126 * (1 - 2^-23) up to 2^-126 in steps of its 2^-26th part.
    doubles += [(sign | 0x380FFFFF_C0000000 + (i << 27),) for i in range(9) for sign in (0, F64.sign)]
    # Away from zero, all above 2^-126 * (1 - 2^-24) reach the least normal number; it itself needs no rounding, and the
    # H200 flushes it: 0x380FFFFFE0000000 .rp gives 0, 0xB80FFFFFE0000000 .rm gives 0x80000000.
    assert {(0x380FFFFF_E0000000,), (0xB80FFFFF_E0000000,)} <= set(doubles)
    doubles += [(sign | 0x380FFFFF_E0000001,) for sign in (0, F64.sign)]
    for mode in MODES:
        assert_lanes(
            isa.resolve(f"cvt.{mode}.ftz.f32.f64"),
            lambda a, mode=mode: flushed(pack_flushed(unpack(a, F64), F32, mode[1]), F32),
            doubles,
        )
    # A half is no f32: its subnormals survive .ftz.
    assert_lanes(isa.resolve("cvt.ftz.f32.f16"), lambda a: pack(unpack(a, F16), F32), float_rows(F16, 1, 9))


def half_lane(f: Ieee, mode: str, relu: bool, satfinite: bool) -> Callable[[int], int]:
    def lane(a: int) -> int:
        result = pack(unpack(a, F32), f, mode[1])
        if satfinite and result & ~f.sign == f.infinity:
            result -= 1
        if relu and result & f.sign:
            result = 0
        return result

    return lane


@pytest.mark.parametrize("mode", ["rn", "rz"])
@pytest.mark.parametrize("f", [F16, BF16], ids=lambda f: f.name)
def test_f32_to_halves(f: Ieee, mode: str) -> None:
    rows = tie_rows(F32, f, zlib.crc32(mode.encode()))
    pairs = [(a[0], b[0]) for a, b in zip(rows, rows[1:] + rows[:1], strict=True)]
    for relu in (False, True):
        for satfinite in (False, True):
            lane = half_lane(f, mode, relu, satfinite)
            modifiers = mode + (".relu" if relu else "") + (".satfinite" if satfinite else "")
            assert_lanes(isa.resolve(f"cvt.{modifiers}.{f.name}.f32"), lane, rows)
            # The first operand is the upper half.
            assert_lanes(
                isa.resolve(f"cvt.{modifiers}.{f.name}x2.f32"), lambda a, b, lane=lane: lane(a) << 16 | lane(b), pairs
            )


@pytest.mark.parametrize("mode", ["rn", "rz", "rna"])
def test_tf32(mode: str) -> None:
    tf32 = Ieee("tf32", 19, 8, 10, 0x3FFFF)

    def lane(a: int, relu: bool = False, satfinite: bool = False) -> int:
        x = unpack(a, F32)
        if x.nan and mode == "rna":
            result = a & ~0x1FFF
            return result - (0x2000 if satfinite else 0)
        if x.nan:
            return 0x7FFFE000
        result = pack(x, tf32, {"rn": "n", "rz": "z", "rna": "a"}[mode])
        if satfinite and result & ~tf32.sign == tf32.infinity:
            result -= 1
        if relu and result & tf32.sign:
            result = 0
        return result << 13

    rows = tie_rows(F32, tf32, 10)
    assert_lanes(isa.resolve(f"cvt.{mode}.tf32.f32"), lane, rows)
    assert_lanes(isa.resolve(f"cvt.{mode}.satfinite.tf32.f32"), lambda a: lane(a, satfinite=True), rows)
    if mode != "rna":
        assert_lanes(isa.resolve(f"cvt.{mode}.relu.tf32.f32"), lambda a: lane(a, relu=True), rows)


@pytest.mark.parametrize("t", ["u16", "s16", "u8", "s8", "u4", "s4", "u2", "s2"])
def test_pack(t: str) -> None:
    size = int(t[1:])
    low, high = limits(t)

    def lane(a: int, b: int, c: int = 0) -> int:
        a, b = (max(low, min(high, to_signed(x, 32))) & (1 << size) - 1 for x in (a, b))
        return (c << 2 * size | a << size | b) & 0xFFFFFFFF

    firsts = [0, 1, 2, 7, 8, 127, 128, 255, 256, 32767, 32768, 65535, 65536, 0x7FFFFFFF, 0x80000000, 0xFFFFFFFF]
    rows = [(a, b, 0x89ABCDEF) for a in firsts for b in firsts] + [(x ^ 0xFFFFFFFF, 1, 7) for x in firsts]
    if size == 16:
        assert_lanes(isa.resolve(f"cvt.pack.sat.{t}.s32"), lane, [row[:2] for row in rows])
    else:
        assert_lanes(isa.resolve(f"cvt.pack.sat.{t}.s32.b32"), lane, rows)


@pytest.mark.parametrize("fault", ["ties away", "truncation", "double rounding"])
def test_the_comparison_catches_a_wrong_bf16(fault: str) -> None:
    def wrong(a: np.ndarray) -> np.ndarray:
        if fault == "ties away":
            return ((a + np.uint32(0x8000)) >> 16).astype(np.uint16)
        if fault == "truncation":
            return (a >> 16).astype(np.uint16)
        half_way = (a + np.uint32(0x7F) + ((a >> 8) & 1)) >> 8 << 8  # first to 16 fraction bits
        return ((half_way + 0x7FFF + ((half_way >> 16) & 1)) >> 16).astype(np.uint16)

    rows = [row for row in tie_rows(F32, BF16, 1) if not unpack(row[0], F32).nan]
    assert mismatches(wrong, half_lane(BF16, "rn", False, False), ("b32",), rows)
