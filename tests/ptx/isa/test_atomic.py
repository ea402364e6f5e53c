"""The arithmetic of atom, red and redux."""

from __future__ import annotations

import numpy as np
import pytest
from support.ptx_isa import (
    BF16,
    F16,
    F32,
    F64,
    Ieee,
    exact_add,
    float_rows,
    flushed,
    mismatches,
    pack,
    rows_of,
    to_signed,
    unpack,
)

from refmoe.ptx import isa


@pytest.mark.parametrize("t", ["u32", "s32", "u64", "s64"])
def test_integers(t: str) -> None:
    bits = int(t[1:])
    mask = (1 << bits) - 1
    rows = rows_of([bits, bits], 1)
    kinds = (f"b{bits}",) * 2

    def value(x: int) -> int:
        return to_signed(x, bits) if t[0] == "s" else x

    assert not mismatches(isa.resolve_atomic("add", t), lambda a, b: a + b & mask, kinds, rows)
    assert not mismatches(isa.resolve_atomic("min", t), lambda a, b: min(a, b, key=value), kinds, rows)
    assert not mismatches(isa.resolve_atomic("max", t), lambda a, b: max(a, b, key=value), kinds, rows)


def test_wrapping_counters() -> None:
    rows = rows_of([32, 32], 2)
    kinds = ("b32", "b32")
    assert not mismatches(isa.resolve_atomic("inc", "u32"), lambda r, s: 0 if r >= s else r + 1, kinds, rows)
    assert not mismatches(isa.resolve_atomic("dec", "u32"), lambda r, s: s if r == 0 or r > s else r - 1, kinds, rows)
    assert mismatches(isa.resolve_atomic("inc", "u32"), lambda r, s: 0 if r > s else r + 1, kinds, rows)


@pytest.mark.parametrize("bits", [32, 64])
def test_bits(bits: int) -> None:
    rows = rows_of([bits, bits], 3)
    kinds = (f"b{bits}",) * 2
    for name, lane in (("and", int.__and__), ("or", int.__or__), ("xor", int.__xor__), ("exch", lambda a, b: b)):
        assert not mismatches(isa.resolve_atomic(name, f"b{bits}"), lane, kinds, rows)
    triples = [(a, c, b) for a, b in rows for c in (a, b)]
    swap = isa.resolve_atomic("cas", f"b{bits}")
    assert not mismatches(swap, lambda old, c, v: v if old == c else old, (*kinds, kinds[0]), triples)


@pytest.mark.parametrize("f", [F32, F64, F16, BF16], ids=lambda f: f.name)
def test_floating_point_addition(f: Ieee) -> None:
    rows = float_rows(f, 2, 4, 100)

    def lane(a: int, b: int) -> int:
        return pack(exact_add(unpack(a, f), unpack(b, f), "n"), f)

    kinds = (f"b{f.bits}",) * 2
    assert not mismatches(isa.resolve_atomic("add", f.name), lane, kinds, rows)
    if f is F32:
        # Global memory flushes, shared memory does not.
        assert not mismatches(
            isa.resolve_atomic("add", "f32", flush=True),
            lambda a, b: flushed(lane(flushed(a, f), flushed(b, f)), f),
            kinds,
            rows,
        )
    if f.bits == 16:
        pairs = [(a | b << 16, b | a << 16) for a, b in rows]
        both = isa.resolve_atomic("add", f"{f.name}x2")
        assert not mismatches(
            both,
            lambda x, y: lane(x & 0xFFFF, y & 0xFFFF) | lane(x >> 16, y >> 16) << 16,
            ("b32", "b32"),
            pairs,
        )


def test_a_nan_loses_to_a_number() -> None:
    nan, one = np.uint32(0x7FFFFFFF), np.uint32(0x3F800000)
    for name in ("min", "max"):
        assert int(isa.resolve_atomic(name, "f32")(nan, one)) == one
        assert int(isa.resolve_atomic(name, "f16x2")(np.uint32(0x7FFF3C00), np.uint32(0x3C007E00))) == 0x3C003C00


@pytest.mark.parametrize(
    ("operation", "t"),
    [("add", "b32"), ("inc", "s32"), ("and", "u32"), ("cas", "f32"), ("min", "f64"), ("nand", "b32")],
)
def test_unknown(operation: str, t: str) -> None:
    with pytest.raises(isa.NoSuchInstruction):
        isa.resolve_atomic(operation, t)
