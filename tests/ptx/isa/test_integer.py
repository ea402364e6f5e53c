"""Integer arithmetic against Python integers, one lane at a time."""

from __future__ import annotations

import zlib
from collections.abc import Callable

import numpy as np
import pytest
from support.ptx_isa import DTYPES, assert_lanes, mismatches, rows_of, to_signed

from refmoe.ptx import isa

TYPES = ("u16", "u32", "u64", "s16", "s32", "s64")
WIDTH = {"pred": 1, "b8": 8, "b16": 16, "b32": 32, "b64": 64}


def check(opcode: str, lane: Callable[..., object]) -> None:
    operation = isa.resolve(opcode)
    rows = rows_of([WIDTH[k] for k in operation.sources], zlib.crc32(opcode.encode()))
    assert_lanes(operation, lane, rows)


def typed(name: str, lane: Callable[..., int], result_bits: int | None = None) -> Callable[..., int]:
    """A statement on mathematical integers of the type, its result cut to the type's width."""
    bits = int(name[1:])
    mask = (1 << (result_bits or bits)) - 1
    if name[0] == "s":
        return lambda *x: lane(*(to_signed(v, bits) for v in x)) & mask
    return lambda *x: lane(*x) & mask


def truncated_quotient(a: int, b: int) -> int:
    return abs(a) // abs(b) * (1 if (a < 0) == (b < 0) else -1)


def clamp(x: int, bits: int) -> int:
    return max(-(1 << bits - 1), min((1 << bits - 1) - 1, x))


@pytest.mark.parametrize("t", TYPES)
def test_arithmetic(t: str) -> None:
    bits = int(t[1:])
    check(f"add.{t}", typed(t, lambda a, b: a + b))
    check(f"sub.{t}", typed(t, lambda a, b: a - b))
    check(f"mul.lo.{t}", typed(t, lambda a, b: a * b))
    check(f"mul.hi.{t}", typed(t, lambda a, b: a * b >> bits))
    check(f"mad.lo.{t}", typed(t, lambda a, b, c: a * b + c))
    check(f"mad.hi.{t}", typed(t, lambda a, b, c: (a * b >> bits) + c))
    check(f"sad.{t}", typed(t, lambda a, b, c: c + abs(a - b)))
    check(f"min.{t}", typed(t, min))
    check(f"max.{t}", typed(t, max))
    if t[0] == "s":
        check(f"abs.{t}", typed(t, abs))
        check(f"neg.{t}", typed(t, lambda a: -a))


@pytest.mark.parametrize("t", ["u16", "u32", "s16", "s32"])
def test_wide_products(t: str) -> None:
    bits = int(t[1:])
    double = t[0] + str(2 * bits)
    check(f"mul.wide.{t}", typed(t, lambda a, b: a * b, 2 * bits))

    def mad(a: int, b: int, c: int) -> int:
        if t[0] == "s":
            a, b, c = to_signed(a, bits), to_signed(b, bits), to_signed(c, 2 * bits)
        return a * b + c & (1 << 2 * bits) - 1

    check(f"mad.wide.{t}", mad)
    assert isa.resolve(f"mad.wide.{t}").sources == (f"b{bits}", f"b{bits}", f"b{double[1:]}")


@pytest.mark.parametrize("t", TYPES)
def test_division_truncates_and_a_zero_divisor_is_not_claimed(t: str) -> None:
    bits = int(t[1:])
    rows = [row for row in rows_of([bits, bits], 7) if row[1]]
    for name, lane in (("div", truncated_quotient), ("rem", lambda a, b: a - b * truncated_quotient(a, b))):
        operation = isa.resolve(f"{name}.{t}")
        assert_lanes(operation, typed(t, lane), rows)
        assert operation.exact_when is not None
        word = DTYPES[operation.sources[0]]
        assert operation.exact_when(np.array([5, 5], word), np.array([0, 3], word)).tolist() == [False, True]


@pytest.mark.parametrize("name", ["div", "rem"])
@pytest.mark.parametrize("t", TYPES)
def test_a_zero_divisor_gives_all_ones(name: str, t: str) -> None:
    """PTX leaves the result open; this one, of every dividend, is an H200's (reports/bench/conformance.json)."""
    bits = int(t[1:])
    rows = [(dividend, 0) for dividend, _ in rows_of([bits, bits], 7)]
    assert_lanes(isa.resolve(f"{name}.{t}"), lambda a, b: (1 << bits) - 1, rows)


def test_saturating() -> None:
    check("add.sat.s32", typed("s32", lambda a, b: clamp(a + b, 32)))
    check("sub.sat.s32", typed("s32", lambda a, b: clamp(a - b, 32)))
    check("mad.hi.sat.s32", typed("s32", lambda a, b, c: clamp((a * b >> 32) + c, 32)))


@pytest.mark.parametrize("t", ["u32", "s32"])
def test_24_bit_products(t: str) -> None:
    def low24(x: int) -> int:
        return to_signed(x & 0xFFFFFF, 24) if t == "s32" else x & 0xFFFFFF

    mask = 0xFFFFFFFF
    check(f"mul24.lo.{t}", lambda a, b: low24(a) * low24(b) & mask)
    check(f"mul24.hi.{t}", lambda a, b: low24(a) * low24(b) >> 16 & mask)
    check(f"mad24.lo.{t}", lambda a, b, c: low24(a) * low24(b) + c & mask)
    check(f"mad24.hi.{t}", lambda a, b, c: (low24(a) * low24(b) >> 16) + c & mask)
    if t == "s32":
        check(
            "mad24.hi.sat.s32",
            lambda a, b, c: clamp(to_signed(low24(a) * low24(b) >> 16 & mask, 32) + to_signed(c, 32), 32) & mask,
        )


def halves(t: str, lane: Callable[..., int]) -> Callable[..., int]:
    scalar = typed(t, lane)
    return lambda *x: scalar(*(v & 0xFFFF for v in x)) | scalar(*(v >> 16 for v in x)) << 16


def test_packed_halves_and_relu() -> None:
    for t in ("u16", "s16"):
        check(f"add.{t}x2", halves(t, lambda a, b: a + b))
        check(f"min.{t}x2", halves(t, min))
        check(f"max.{t}x2", halves(t, max))
    for name, pick in (("min", min), ("max", max)):
        check(f"{name}.relu.s32", typed("s32", lambda a, b, pick=pick: max(pick(a, b), 0)))
        check(f"{name}.relu.s16x2", halves("s16", lambda a, b, pick=pick: max(pick(a, b), 0)))


def part(x: int, low: int, bits: int, is_signed: bool) -> int:
    field = x >> low & (1 << bits) - 1
    return to_signed(field, bits) if is_signed else field


@pytest.mark.parametrize("b", ["u32", "s32"])
@pytest.mark.parametrize("a", ["u32", "s32"])
def test_dot_products(a: str, b: str) -> None:
    x, y = a == "s32", b == "s32"
    mask = 0xFFFFFFFF
    check(
        f"dp4a.{a}.{b}",
        lambda p, q, c: c + sum(part(p, 8 * i, 8, x) * part(q, 8 * i, 8, y) for i in range(4)) & mask,
    )
    for mode, base in (("lo", 0), ("hi", 2)):
        check(
            f"dp2a.{mode}.{a}.{b}",
            lambda p, q, c, base=base: (
                c + sum(part(p, 16 * i, 16, x) * part(q, 8 * (base + i), 8, y) for i in range(2)) & mask
            ),
        )


@pytest.mark.parametrize("t", ["u32", "s32", "u64", "s64"])
def test_carry_chain(t: str) -> None:
    bits = int(t[1:])
    mask = (1 << bits) - 1
    rows = rows_of([bits, bits], 11)
    with_carry = [(*row, i & 1) for i, row in enumerate(rows)] + [(*row, 1) for row in rows[:64]]

    def high(a: int, b: int) -> int:
        return (to_signed(a, bits) * to_signed(b, bits) if t[0] == "s" else a * b) >> bits & mask

    statements: dict[str, Callable[..., tuple[int, int]]] = {
        "add": lambda a, b, k=0: (a + b + k & mask, a + b + k >> bits),
        # The flag is 1 where nothing is borrowed.
        "sub": lambda a, b, k=1: (a - b - (1 - k) & mask, a - b - (1 - k) >= 0),
    }
    for name, lane in statements.items():
        first, last, middle = (isa.resolve(o.format(name, t)) for o in ("{}.cc.{}", "{}c.{}", "{}c.cc.{}"))
        assert (first.carry_in, first.carry_out) == (False, True)
        assert (middle.carry_in, middle.carry_out) == (True, True)
        assert (last.carry_in, last.carry_out) == (True, False)
        kinds = (f"b{bits}", f"b{bits}")
        assert not mismatches(first.function, lane, kinds, rows)
        assert not mismatches(middle.function, lane, (*kinds, "pred"), with_carry)
        assert not mismatches(last.function, lambda *x, lane=lane: lane(*x)[0], (*kinds, "pred"), with_carry)
    triples = rows_of([bits, bits, bits], 12)
    carried = [(*row, i & 1) for i, row in enumerate(triples)]
    for part_name, product in (("lo", lambda a, b: a * b & mask), ("hi", high)):

        def mad(a: int, b: int, c: int, k: int = 0, product: Callable[[int, int], int] = product) -> tuple[int, int]:
            total = product(a, b) + c + k
            return total & mask, total >> bits

        kinds = (f"b{bits}",) * 3
        assert not mismatches(isa.resolve(f"mad.{part_name}.cc.{t}").function, mad, kinds, triples)
        assert not mismatches(isa.resolve(f"madc.{part_name}.cc.{t}").function, mad, (*kinds, "pred"), carried)
        assert not mismatches(
            isa.resolve(f"madc.{part_name}.{t}").function, lambda *x, mad=mad: mad(*x)[0], (*kinds, "pred"), carried
        )


@pytest.mark.parametrize(
    ("opcode", "wrong"),
    [
        ("mul.hi.u64", lambda a, b: (a >> 32) * (b >> 32)),  # the cross products dropped
        ("mul.hi.s32", lambda a, b: (a.astype(np.uint64) * b >> np.uint64(32)).astype(np.uint32)),  # unsigned
        ("div.s32", lambda a, b: (a.view(np.int32) // b.view(np.int32)).view(np.uint32)),  # floor, not truncate
        ("add.sat.s32", np.add),
    ],
)
def test_the_comparison_catches_planted_faults(opcode: str, wrong: Callable[..., np.ndarray]) -> None:
    t = opcode[-3:]
    bits = int(t[1:])
    lanes = {
        "mul.hi": lambda a, b: a * b >> bits,
        "div": truncated_quotient,
        "add.sat": lambda a, b: clamp(a + b, 32),
    }
    rows = [row for row in rows_of([bits, bits], 3) if row[1]]
    assert mismatches(wrong, typed(t, lanes[opcode[:-4]]), (f"b{bits}",) * 2, rows)
