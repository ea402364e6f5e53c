"""setp, set, selp, slct, testp and mov against plain statements on exact values."""

from __future__ import annotations

import math
from collections.abc import Callable
from fractions import Fraction

import numpy as np
import pytest
from support.ptx_isa import (
    F16,
    FORMATS,
    Ieee,
    assert_lanes,
    float_rows,
    flushed,
    mismatches,
    rows_of,
    to_signed,
    unpack,
)
from support.selection.thinned import thinned

from refmoe.ptx import isa

ORDERED: dict[str, Callable[[object, object], bool]] = {
    "eq": lambda a, b: a == b,
    "ne": lambda a, b: a != b,
    "lt": lambda a, b: a < b,
    "le": lambda a, b: a <= b,
    "gt": lambda a, b: a > b,
    "ge": lambda a, b: a >= b,
}
UNSIGNED = {"lo": "lt", "ls": "le", "hi": "gt", "hs": "ge"}
BOOLEAN: dict[str, Callable[[bool, bool], bool]] = {
    "and": lambda t, c: t and c,
    "or": lambda t, c: t or c,
    "xor": lambda t, c: t != c,
}
FLOAT_COMPARISONS = (*ORDERED, *(c + "u" for c in ORDERED), "num", "nan")


def number(bits: int, f: Ieee) -> Fraction | float:
    x = unpack(bits, f)
    if x.nan:
        return math.nan
    return x.value if x.value is not None else (-math.inf if x.negative else math.inf)


def compare_floats(name: str, a: int, b: int, f: Ieee, ftz: bool = False) -> bool:
    """The manual: ordered comparisons are false on NaN, unordered ones true."""
    if ftz:
        a, b = flushed(a, f), flushed(b, f)
    x, y = number(a, f), number(b, f)
    unordered = x != x or y != y
    if name in ("num", "nan"):
        return unordered == (name == "nan")
    if unordered:
        return name.endswith("u") and name not in ORDERED
    return ORDERED[name[:2]](x, y)


@pytest.mark.parametrize("t", ["u16", "u32", "u64", "s16", "s32", "s64", "b16", "b32", "b64"])
def test_integers(t: str) -> None:
    bits = int(t[1:])
    rows = rows_of([bits, bits], 1, 100)
    names = ("eq", "ne") if t[0] == "b" else (*ORDERED, *UNSIGNED) if t[0] == "u" else tuple(ORDERED)
    for name in names:

        def lane(a: int, b: int, name: str = name) -> bool:
            if t[0] == "s":
                a, b = to_signed(a, bits), to_signed(b, bits)
            return ORDERED[UNSIGNED.get(name, name)](a, b)

        assert_lanes(isa.resolve(f"setp.{name}.{t}"), lane, rows)


@pytest.mark.parametrize("f", FORMATS.values(), ids=FORMATS)
@pytest.mark.parametrize("name", thinned(FLOAT_COMPARISONS, 3))
def test_floats(name: str, f: Ieee) -> None:
    rows = float_rows(f, 2, 2, 60)[::3]
    assert_lanes(isa.resolve(f"setp.{name}.{f.name}"), lambda a, b: compare_floats(name, a, b, f), rows)
    if f.name in ("f32", "f16"):
        flush = isa.resolve(f"setp.{name}.ftz.{f.name}")
        assert_lanes(flush, lambda a, b: compare_floats(name, a, b, f, True), rows)


@pytest.mark.parametrize("boolean", BOOLEAN)
def test_a_predicate_source_and_two_destinations(boolean: str) -> None:
    rows = [(*row, i & 1) for i, row in enumerate(rows_of([32, 32], 3, 100))]

    def p(a: int, b: int, c: int) -> bool:
        return BOOLEAN[boolean](to_signed(a, 32) < to_signed(b, 32), bool(c))

    def p_and_q(a: int, b: int, c: int) -> tuple[bool, bool]:
        return p(a, b, c), BOOLEAN[boolean](not to_signed(a, 32) < to_signed(b, 32), bool(c))

    opcode = f"setp.lt.{boolean}.s32"
    assert_lanes(isa.resolve(opcode), p, rows)
    assert_lanes(isa.resolve(opcode, destinations=2), p_and_q, rows)
    assert isa.resolve(opcode, destinations=2).destinations == ("pred", "pred")
    plain = isa.resolve("setp.lt.s32", destinations=2)
    assert_lanes(plain, lambda a, b: p_and_q(a, b, 0 if boolean != "and" else 1), [row[:2] for row in rows])


def test_packed_halves_compare_into_two_predicates() -> None:
    rows = rows_of([32, 32], 4)
    for ftz in (False, True):
        opcode = f"setp.geu{'.ftz' if ftz else ''}.f16x2"
        assert_lanes(
            isa.resolve(opcode),
            lambda a, b, ftz=ftz: tuple(
                compare_floats("geu", a >> s & 0xFFFF, b >> s & 0xFFFF, F16, ftz) for s in (0, 16)
            ),
            rows,
        )


def test_set_writes_all_ones_or_one() -> None:
    floats = float_rows(FORMATS["f32"], 2, 5, 60)[::3]
    for to, true in (("u32", 0xFFFFFFFF), ("s32", 0xFFFFFFFF), ("f32", 0x3F800000), ("f16", 0x3C00), ("bf16", 0x3F80)):
        f = FORMATS["f32"]
        assert_lanes(
            isa.resolve(f"set.ltu.{to}.f32"),
            lambda a, b, true=true, f=f: true * compare_floats("ltu", a, b, f),
            floats,
        )
    with_c = [(*row, i & 1) for i, row in enumerate(floats)]
    assert_lanes(
        isa.resolve("set.eq.xor.ftz.u32.f32"),
        lambda a, b, c: 0xFFFFFFFF * (compare_floats("eq", a, b, FORMATS["f32"], True) != c),
        with_c,
    )
    pairs = [(a | b << 16, c | d << 16) for (a, b), (c, d) in zip(*[iter(float_rows(F16, 2, 6, 60))] * 2, strict=True)]
    for to, true in (("u32", 0xFFFF), ("f16x2", 0x3C00)):
        assert_lanes(
            isa.resolve(f"set.gt.{to}.f16x2"),
            lambda a, b, true=true: sum(
                (true * compare_floats("gt", a >> s & 0xFFFF, b >> s & 0xFFFF, F16)) << s for s in (0, 16)
            ),
            pairs,
        )


@pytest.mark.parametrize("t", ["b16", "u32", "f32", "s64", "f64"])
def test_selp_and_mov(t: str) -> None:
    bits = int(t[1:])
    rows = [(*row, i & 1) for i, row in enumerate(rows_of([bits, bits], 6, 50))]
    assert_lanes(isa.resolve(f"selp.{t}"), lambda a, b, p: a if p else b, rows)
    assert_lanes(isa.resolve(f"mov.{t}"), lambda a: a, [row[:1] for row in rows])
    assert_lanes(isa.resolve("mov.pred"), lambda a: a, [(0,), (1,)])


def test_slct_tests_the_third_operand_against_zero() -> None:
    rows = rows_of([64, 64, 32], 7, 100)
    assert_lanes(isa.resolve("slct.u64.s32"), lambda a, b, c: a if to_signed(c, 32) >= 0 else b, rows)
    thirds = [row[0] for row in float_rows(FORMATS["f32"], 1, 8, 60)]
    rows = [(1, 2, c) for c in thirds]
    for ftz in (False, True):
        opcode = f"slct{'.ftz' if ftz else ''}.b32.f32"
        # -0 counts as 0 and selects a; NaN selects b (PTX ISA, slct).
        assert_lanes(isa.resolve(opcode), lambda a, b, c, ftz=ftz: a if at_least_zero(c, ftz) else b, rows)


def at_least_zero(bits: int, ftz: bool) -> bool:
    f = FORMATS["f32"]
    return number(flushed(bits, f) if ftz else bits, f) >= 0


@pytest.mark.parametrize("t", ["f32", "f64"])
def test_testp(t: str) -> None:
    f = FORMATS[t]

    def kind(bits: int) -> str:
        x = unpack(bits, f)
        if x.nan:
            return "nan"
        if x.infinite:
            return "infinite"
        if x.zero:
            return "zero"
        return "normal" if bits & f.infinity else "subnormal"

    accepted = {
        "finite": {"zero", "normal", "subnormal"},
        "infinite": {"infinite"},
        "number": {"zero", "normal", "subnormal", "infinite"},
        "notanumber": {"nan"},
        "normal": {"normal"},
        "subnormal": {"subnormal"},
    }
    for name, kinds in accepted.items():
        assert_lanes(isa.resolve(f"testp.{name}.{t}"), lambda a, kinds=kinds: kind(a) in kinds, float_rows(f, 1, 9, 60))


def test_the_comparison_catches_an_ordered_ne() -> None:
    def wrong(a: np.ndarray, b: np.ndarray) -> np.ndarray:
        return a.view(np.float32) != b.view(np.float32)  # true on NaN, as IEEE's is

    f = FORMATS["f32"]
    rows = float_rows(f, 2, 2, 60)
    assert mismatches(wrong, lambda a, b: compare_floats("ne", a, b, f), ("b32", "b32"), rows)
