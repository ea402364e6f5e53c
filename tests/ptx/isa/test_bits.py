"""Logic, shifts, permutes, fields and searches against the manual's bit-by-bit pseudo code."""

from __future__ import annotations

import zlib
from collections.abc import Callable

import numpy as np
import pytest
from support.ptx_isa import assert_lanes, corners, mismatches, rows_of, to_signed

from refmoe.ptx import isa

WIDTH = {"pred": 1, "b8": 8, "b16": 16, "b32": 32, "b64": 64}
ALL = 0xFFFFFFFF


def check(opcode: str, lane: Callable[..., object], amounts: bool = False) -> None:
    """Compare on corners and random rows; `amounts` makes the operands after the first small numbers as well."""
    operation = isa.resolve(opcode)
    widths = [WIDTH[k] for k in operation.sources]
    rows = rows_of(widths, zlib.crc32(opcode.encode()))
    if amounts:
        rng = np.random.default_rng(2)
        values = [row[0] for row in rows[:: max(1, len(rows) // 40)]] + corners(widths[0])
        rows += [(x, *(int(v) for v in rng.integers(0, 72, len(widths) - 1))) for x in values for _ in range(40)]
    assert_lanes(operation, lane, rows)


@pytest.mark.parametrize("t", ["pred", "b16", "b32", "b64"])
def test_logic(t: str) -> None:
    mask = (1 << WIDTH[t]) - 1
    check(f"and.{t}", lambda a, b: a & b)
    check(f"or.{t}", lambda a, b: a | b)
    check(f"xor.{t}", lambda a, b: a ^ b)
    check(f"not.{t}", lambda a: ~a & mask)
    if t != "pred":
        check(f"cnot.{t}", lambda a: int(a == 0))


def test_lop3_every_table() -> None:
    operation = isa.resolve("lop3.b32")
    # These three hold all eight combinations of bits (PTX ISA, lop3).
    a, b, c = (np.full(4, x, np.uint32) for x in (0xF0, 0xCC, 0xAA))
    for table in range(256):
        for sources in ((a, b, c), (a[0], b[0], c[0]), (a[0], b, c[0]), (a, b[0], c[0])):
            result = operation.function(*sources, np.uint32(table))
            assert np.shape(result) == np.broadcast_shapes(*map(np.shape, sources))
            assert set(np.atleast_1d(result & 0xFF).tolist()) == {table}
            assert result.dtype == np.uint32


@pytest.mark.parametrize("name", ["or", "and"])
def test_lop3_with_a_predicate(name: str) -> None:
    operation = isa.resolve(f"lop3.{name}.b32")
    assert operation.sources[-1] == "pred"
    assert operation.destinations == ("b32", "pred")
    a = np.array([1, 0, 1, 0], np.uint32)
    q = np.array([True, True, False, False])
    d, p = operation.function(a, a, a, np.uint32(0xF0), q)
    assert d.tolist() == [1, 0, 1, 0]
    assert p.tolist() == ([True, True, True, False] if name == "or" else [True, False, False, False])


@pytest.mark.parametrize("bits", [16, 32, 64])
def test_shifts_clamp_at_the_width(bits: int) -> None:
    mask = (1 << bits) - 1
    check(f"shl.b{bits}", lambda a, n: a << min(n, bits) & mask, amounts=True)
    for t in ("b", "u"):
        check(f"shr.{t}{bits}", lambda a, n: a >> min(n, bits), amounts=True)
    check(f"shr.s{bits}", lambda a, n: to_signed(a, bits) >> min(n, bits) & mask, amounts=True)


@pytest.mark.parametrize("mode", ["clamp", "wrap"])
def test_funnel_shifts(mode: str) -> None:
    def n(c: int) -> int:
        return min(c, 32) if mode == "clamp" else c & 31

    check(f"shf.l.{mode}.b32", lambda a, b, c: (b << 32 | a) << n(c) >> 32 & ALL, amounts=True)
    check(f"shf.r.{mode}.b32", lambda a, b, c: (b << 32 | a) >> n(c) & ALL, amounts=True)


# Rows of the manual's table: selector value, then source bytes of result bytes 3, 2, 1, 0.
PRMT = {
    "f4e": [(3, 2, 1, 0), (4, 3, 2, 1), (5, 4, 3, 2), (6, 5, 4, 3)],
    "b4e": [(5, 6, 7, 0), (6, 7, 0, 1), (7, 0, 1, 2), (0, 1, 2, 3)],
    "rc8": [(0, 0, 0, 0), (1, 1, 1, 1), (2, 2, 2, 2), (3, 3, 3, 3)],
    "ecl": [(3, 2, 1, 0), (3, 2, 1, 1), (3, 2, 2, 2), (3, 3, 3, 3)],
    "ecr": [(0, 0, 0, 0), (1, 1, 1, 0), (2, 2, 1, 0), (3, 2, 1, 0)],
    "rc16": [(1, 0, 1, 0), (3, 2, 3, 2), (1, 0, 1, 0), (3, 2, 3, 2)],
}


def prmt(a: int, b: int, c: int) -> int:
    source = (b << 32 | a).to_bytes(8, "little")
    result = []
    for i in range(4):
        control = c >> 4 * i & 0xF
        byte = source[control & 7]
        result.append((0xFF if byte & 0x80 else 0) if control & 8 else byte)
    return int.from_bytes(bytes(result), "little")


def test_byte_permute() -> None:
    check("prmt.b32", prmt)
    # One selector for all lanes takes another way: every nibble value in every place.
    a, b = np.array([0x83020100], np.uint32), np.array([0x07868504], np.uint32)
    for place in range(4):
        for nibble in range(16):
            c = (0x3210 & ~(0xF << 4 * place)) | nibble << 4 * place
            result = isa.resolve("prmt.b32").function(a, b, np.uint32(c))
            assert result.tolist() == [prmt(int(a[0]), int(b[0]), c)], hex(c)
    shared = isa.resolve("prmt.b32").function(np.uint32(7), np.arange(3, dtype=np.uint32), np.uint32(0x3210))
    assert shared.tolist() == [7, 7, 7]


@pytest.mark.parametrize("mode", PRMT)
def test_byte_permute_modes(mode: str) -> None:
    def lane(a: int, b: int, c: int) -> int:
        source = (b << 32 | a).to_bytes(8, "little")
        return int.from_bytes(bytes(source[i] for i in PRMT[mode][c & 3]), "big")

    check(f"prmt.b32.{mode}", lane)


@pytest.mark.parametrize("t", ["u32", "s32", "u64", "s64"])
def test_bit_field_extract(t: str) -> None:
    msb = int(t[1:]) - 1

    def lane(a: int, b: int, c: int) -> int:
        position, length = b & 0xFF, c & 0xFF
        sign = 0 if t[0] == "u" or length == 0 else a >> min(position + length - 1, msb) & 1
        bits = [a >> position + i & 1 if i < length and position + i <= msb else sign for i in range(msb + 1)]
        return sum(bit << i for i, bit in enumerate(bits))

    check(f"bfe.{t}", lane, amounts=True)


@pytest.mark.parametrize("bits", [32, 64])
def test_bit_field_insert(bits: int) -> None:
    def lane(a: int, b: int, c: int, d: int) -> int:
        position, length = c & 0xFF, d & 0xFF
        for i in range(length):
            if position + i < bits:
                b = b & ~(1 << position + i) | (a >> i & 1) << position + i
        return b

    check(f"bfi.b{bits}", lane, amounts=True)


@pytest.mark.parametrize("mode", ["clamp", "wrap"])
def test_extend_and_mask(mode: str) -> None:
    def szext(a: int, b: int, is_signed: bool) -> int:
        b1 = b & 31
        too_large = b >= 32 and mode == "clamp"
        mask = 0 if too_large else ALL << b1 & ALL
        sign = not (b1 == 0 or too_large or not is_signed) and a >> (b1 - 1 & 31) & 1
        return a & ~mask | (mask if sign else 0)

    def bmsk(a: int, b: int) -> int:
        a1, b1 = a & 31, b & 31
        mask0, mask1 = ALL << a1 & ALL, ALL << a1 + b1 & ALL
        overflow = a1 + b1 >= 32
        if mode == "clamp":
            if a >= 32:
                overflow, mask0 = True, 0
            overflow = overflow or b >= 32
        if overflow:
            mask1 = 0
        elif b1 == 0:
            mask1 = ALL
        return mask0 & ~mask1

    check(f"szext.{mode}.u32", lambda a, b: szext(a, b, False), amounts=True)
    check(f"szext.{mode}.s32", lambda a, b: szext(a, b, True), amounts=True)
    check(f"bmsk.{mode}.b32", bmsk, amounts=True)


@pytest.mark.parametrize("bits", [32, 64])
def test_counts(bits: int) -> None:
    check(f"popc.b{bits}", lambda a: bin(a).count("1"))
    check(f"clz.b{bits}", lambda a: bits - a.bit_length())
    check(f"brev.b{bits}", lambda a: int(format(a, f"0{bits}b")[::-1], 2))
    for t in ("u", "s"):

        def find(a: int, t: str = t) -> int:
            if t == "s" and a >> bits - 1:
                a = ~a & (1 << bits) - 1
            return a.bit_length() - 1 & ALL

        check(f"bfind.{t}{bits}", find)
        check(f"bfind.shiftamt.{t}{bits}", lambda a, find=find: ALL if find(a) == ALL else bits - 1 - find(a))


def test_find_nth_set() -> None:
    def fns(mask: int, base: int, offset: int) -> int:
        n = to_signed(offset, 32)
        if n == 0:
            return base if mask >> base & 1 else ALL
        position, count, step = base, abs(n) - 1, 1 if n > 0 else -1
        while 0 <= position < 32:
            if mask >> position & 1:
                if count == 0:
                    return position
                count -= 1
            position += step
        return ALL

    rng = np.random.default_rng(8)
    rows = [
        (int(m), int(b), int(o) & ALL)
        for m, b, o in zip(
            rng.integers(0, 1 << 32, 1500), rng.integers(0, 32, 1500), rng.integers(-34, 35, 1500), strict=True
        )
    ]
    rows += [(m, b, o & ALL) for m in (0, ALL, 0xAAAAAAAA) for b in (0, 3, 31) for o in (-(2**31), -1, 0, 1, 32, 33)]
    assert_lanes(isa.resolve("fns.b32"), fns, rows)


@pytest.mark.parametrize(
    ("fault", "wrong"),
    [
        ("shift amount taken modulo the width", lambda a, n: a << (n & np.uint32(31))),
        ("shift by the width keeps the operand", lambda a, n: np.where(n == 32, a, a << n)),
    ],
)
def test_the_comparison_catches_a_wrong_shift(fault: str, wrong: Callable[..., np.ndarray]) -> None:
    rows = rows_of([32, 32], 5)
    assert mismatches(wrong, lambda a, n: a << min(n, 32) & ALL, ("b32", "b32"), rows), fault
