"""Integer arithmetic: add, sub, mul, mad, mul24, sad, div, rem, abs, neg, min, max, dp4a, dp2a and the carry chain."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

import numpy as np

from refmoe.ptx.isa.lanes import SIGNED, UNSIGNED, packed, signed
from refmoe.ptx.isa.operation import Array, Function, Operation, kind
from refmoe.ptx.isa.spelling import Spelling

_TYPES = ("u16", "u32", "u64", "s16", "s32", "s64")


def _same(spelling: Spelling, function: Function, bits: int, sources: int, **properties: Any) -> Operation:
    """An operation whose operands all have `bits` bits."""
    return Operation(spelling.opcode, function, (kind(bits),) * sources, (kind(bits),), **properties)


# --- add, sub -------------------------------------------------------------------------------------------------------


def _saturating(ufunc: np.ufunc, a: Array, b: Array) -> Array:
    """The sum or difference of two s32, clamped to their range."""
    wide = ufunc(signed(a), signed(b), dtype=np.int64)
    return np.clip(wide, -(2**31), 2**31 - 1).astype(np.int32).view(np.uint32)


def _add_sub(ufunc: np.ufunc) -> Callable[[Spelling], Operation]:
    def build(spelling: Spelling) -> Operation:
        if spelling.flag("sat"):
            spelling.type("s32")
            return _same(spelling, partial(_saturating, ufunc), 32, 2)
        if spelling.flag("cc"):
            return _carry(spelling, subtract=ufunc is np.subtract, carry_in=False, carry_out=True)
        if spelling.last in ("u16x2", "s16x2"):
            if ufunc is np.subtract:
                raise spelling.unknown()
            spelling.type("u16x2", "s16x2")
            return _same(spelling, packed(ufunc), 32, 2)
        _, bits = spelling.integer(*_TYPES)
        return _same(spelling, ufunc, bits, 2)

    return build


# --- the carry chain ------------------------------------------------------------------------------------------------


def _add_carry(a: Array, b: Array, carry: Array) -> tuple[Array, Array]:
    total = a + b
    result = total + carry
    return result, (total < a) | (result < total)


def _sub_carry(a: Array, b: Array, carry: Array) -> tuple[Array, Array]:
    """a + ~b + carry: CC.CF is 1 where nothing is borrowed.

    The manual calls CC.CF the borrow and leaves its sense open. What add.cc hands to subc, and sub.cc to addc, shows it
    (H200, all of 8,192 lanes of each type).
    """
    return _add_carry(a, ~b, carry)


def _carry(spelling: Spelling, *, subtract: bool, carry_in: bool, carry_out: bool) -> Operation:
    _, bits = spelling.integer("u32", "s32", "u64", "s64")
    step = _sub_carry if subtract else _add_carry
    dtype = UNSIGNED[bits]
    # Where a chain starts there is nothing to add, and nothing borrowed.
    first = np.bool_(subtract)

    def function(a: Array, b: Array, carry: Array = first) -> Array:
        result, out = step(a, b, carry.astype(dtype))
        return (result, out) if carry_out else result

    return _same(spelling, function, bits, 2, carry_in=carry_in, carry_out=carry_out)


def _carry_builder(subtract: bool) -> Callable[[Spelling], Operation]:
    def build(spelling: Spelling) -> Operation:
        return _carry(spelling, subtract=subtract, carry_in=True, carry_out=spelling.flag("cc"))

    return build


# --- mul, mad -------------------------------------------------------------------------------------------------------


def _mul_high_u64(a: Array, b: Array) -> Array:
    """Upper 64 bits of the unsigned 128-bit product, by 32-bit halves."""
    a_low, a_high = a & 0xFFFFFFFF, a >> 32
    b_low, b_high = b & 0xFFFFFFFF, b >> 32
    cross = a_high * b_low + ((a_low * b_low) >> 32)
    return a_high * b_high + (cross >> 32) + (((cross & 0xFFFFFFFF) + a_low * b_high) >> 32)


def _mul_high_s64(a: Array, b: Array) -> Array:
    """Upper 64 bits of the signed product: the unsigned one less each operand whose partner is negative."""
    a_sign, b_sign = (signed(x) >> 63 for x in (a, b))
    return _mul_high_u64(a, b) - (a_sign.view(np.uint64) & b) - (b_sign.view(np.uint64) & a)


def _mul_function(part: str, is_signed: bool, bits: int) -> Function:
    """The product's low half, high half, or all of it (`part` "lo", "hi", "wide") as unsigned bit patterns."""
    if part == "lo":
        return np.multiply
    if bits == 64:
        return _mul_high_s64 if is_signed else _mul_high_u64

    double = (SIGNED if is_signed else UNSIGNED)[2 * bits]

    def wide(a: Array, b: Array) -> Array:
        if is_signed:
            return np.multiply(signed(a), signed(b), dtype=double).view(UNSIGNED[2 * bits])
        return np.multiply(a, b, dtype=double)

    if part == "wide":
        return wide
    return lambda a, b: (wide(a, b) >> bits).astype(UNSIGNED[bits])


def _mul(spelling: Spelling) -> Operation:
    part = spelling.need("lo", "hi", "wide")
    is_signed, bits = spelling.integer(*_TYPES)
    if part == "wide" and bits == 64:
        raise spelling.unknown()
    result = 2 * bits if part == "wide" else bits
    return Operation(spelling.opcode, _mul_function(part, is_signed, bits), (kind(bits), kind(bits)), (kind(result),))


def _mad(spelling: Spelling) -> Operation:
    part = spelling.need("lo", "hi", "wide")
    if part != "wide" and spelling.flag("cc"):
        return _mad_carry(spelling, part, carry_in=False, carry_out=True)
    if part == "hi" and spelling.flag("sat"):
        spelling.type("s32")
        high = _mul_function("hi", True, 32)
        return _same(spelling, lambda a, b, c: _saturating(np.add, high(a, b), c), 32, 3)
    is_signed, bits = spelling.integer(*_TYPES)
    if part == "wide" and bits == 64:
        raise spelling.unknown()
    product = _mul_function(part, is_signed, bits)
    result = kind(2 * bits if part == "wide" else bits)
    return Operation(spelling.opcode, lambda a, b, c: product(a, b) + c, (kind(bits), kind(bits), result), (result,))


def _mad_carry(spelling: Spelling, part: str, *, carry_in: bool, carry_out: bool) -> Operation:
    is_signed, bits = spelling.integer("u32", "s32", "u64", "s64")
    product = _mul_function(part, is_signed, bits)
    dtype = UNSIGNED[bits]

    def function(a: Array, b: Array, c: Array, carry: Array = np.False_) -> Array:
        result, out = _add_carry(product(a, b), c, carry.astype(dtype))
        return (result, out) if carry_out else result

    return _same(spelling, function, bits, 3, carry_in=carry_in, carry_out=carry_out)


def _madc(spelling: Spelling) -> Operation:
    part = spelling.need("lo", "hi")
    return _mad_carry(spelling, part, carry_in=True, carry_out=spelling.flag("cc"))


def _mul24_function(part: str, is_signed: bool) -> Function:
    """Product of the low 24 bits: bits 0..31 of it, or bits 16..47."""
    shift = 0 if part == "lo" else 16

    def low24(x: Array) -> Array:
        # Shifting the upper byte out and back extends bit 23.
        return (signed(x << 8) >> 8).astype(np.int64) if is_signed else (x & 0xFFFFFF).astype(np.int64)

    return lambda a, b: ((low24(a) * low24(b)) >> shift).astype(np.uint32)


def _mul24(spelling: Spelling) -> Operation:
    part = spelling.need("lo", "hi")
    is_signed, _ = spelling.integer("u32", "s32")
    return _same(spelling, _mul24_function(part, is_signed), 32, 2)


def _mad24(spelling: Spelling) -> Operation:
    part = spelling.need("lo", "hi")
    saturate = part == "hi" and spelling.flag("sat")
    is_signed, _ = spelling.integer(*(("s32",) if saturate else ("u32", "s32")))
    product = _mul24_function(part, is_signed)
    if saturate:
        return _same(spelling, lambda a, b, c: _saturating(np.add, product(a, b), c), 32, 3)
    return _same(spelling, lambda a, b, c: product(a, b) + c, 32, 3)


# --- div, rem, abs, neg, sad, min, max ------------------------------------------------------------------------------


def _negate_where(negative: Array, x: Array) -> Array:
    """-x in the lanes where `negative`, else x (unsigned bit patterns)."""
    mask = -negative.astype(x.dtype)
    return (x ^ mask) - mask


def _magnitude(x: Array) -> Array:
    return _negate_where(signed(x) < 0, x)


def _divisor_not_zero(a: Array, b: Array) -> Array:
    """Division by zero yields an unspecified, machine-specific value (PTX ISA, div and rem)."""
    return (b != 0) & np.ones_like(a, dtype=np.bool_)


def _unless_by_zero(result: Array, b: Array) -> Array:
    """What an H200 gives where the divisor is 0, of quotients and of remainders alike: all ones."""
    return np.where(b != 0, result, ~np.zeros_like(result))


def _div(spelling: Spelling) -> Operation:
    is_signed, bits = spelling.integer(*_TYPES)

    def function(a: Array, b: Array) -> Array:
        if not is_signed:
            return _unless_by_zero(a // b, b)
        return _unless_by_zero(_negate_where(signed(a ^ b) < 0, _magnitude(a) // _magnitude(b)), b)

    return _same(spelling, function, bits, 2, exact_when=_divisor_not_zero)


def _rem(spelling: Spelling) -> Operation:
    is_signed, bits = spelling.integer(*_TYPES)

    def function(a: Array, b: Array) -> Array:
        if not is_signed:
            return _unless_by_zero(a % b, b)
        # The quotient truncates, so the remainder has the sign of the dividend.
        return _unless_by_zero(_negate_where(signed(a) < 0, _magnitude(a) % _magnitude(b)), b)

    return _same(spelling, function, bits, 2, exact_when=_divisor_not_zero)


def _abs(spelling: Spelling) -> Operation:
    _, bits = spelling.integer("s16", "s32", "s64")
    return _same(spelling, _magnitude, bits, 1)


def _neg(spelling: Spelling) -> Operation:
    _, bits = spelling.integer("s16", "s32", "s64")
    return _same(spelling, np.negative, bits, 1)


def _sad(spelling: Spelling) -> Operation:
    is_signed, bits = spelling.integer(*_TYPES)

    def function(a: Array, b: Array, c: Array) -> Array:
        less = signed(a) < signed(b) if is_signed else a < b
        return c + _negate_where(less, a - b)

    return _same(spelling, function, bits, 3)


def _extremum(ufunc: np.ufunc) -> Callable[[Spelling], Operation]:
    def function_of(is_signed: bool, relu: bool) -> Function:
        def function(a: Array, b: Array) -> Array:
            if not is_signed:
                return ufunc(a, b)
            result = ufunc(signed(a), signed(b))
            return (np.maximum(result, 0) if relu else result).view(a.dtype)

        return function

    def build(spelling: Spelling) -> Operation:
        relu = spelling.flag("relu")
        name = spelling.type(*(("s32", "s16x2") if relu else (*_TYPES, "u16x2", "s16x2")))
        function = function_of(name[0] == "s", relu)
        if name.endswith("x2"):
            return _same(spelling, packed(function), 32, 2)
        return _same(spelling, function, int(name[1:]), 2)

    return build


# --- dot products ---------------------------------------------------------------------------------------------------


def _dot_types(spelling: Spelling) -> tuple[bool, bool]:
    return spelling.need("u32", "s32") == "s32", spelling.type("u32", "s32") == "s32"


def _field(x: Array, low: int, bits: int, is_signed: bool) -> Array:
    """Bits low..low+bits-1 of a 32-bit register, zero- or sign-extended to 32 bits."""
    up = 32 - bits - low
    moved = x << up if up else x
    return (signed(moved) >> (32 - bits)).view(np.uint32) if is_signed else moved >> (32 - bits)


def _dp4a(spelling: Spelling) -> Operation:
    a_signed, b_signed = _dot_types(spelling)

    def function(a: Array, b: Array, c: Array) -> Array:
        for low in (0, 8, 16, 24):
            c = c + _field(a, low, 8, a_signed) * _field(b, low, 8, b_signed)
        return c

    return _same(spelling, function, 32, 3)


def _dp2a(spelling: Spelling) -> Operation:
    base = 0 if spelling.need("lo", "hi") == "lo" else 16
    a_signed, b_signed = _dot_types(spelling)

    def function(a: Array, b: Array, c: Array) -> Array:
        for index in (0, 1):
            c = c + _field(a, 16 * index, 16, a_signed) * _field(b, base + 8 * index, 8, b_signed)
        return c

    return _same(spelling, function, 32, 3)


BUILDERS: Mapping[str, Callable[[Spelling], Operation]] = {
    "abs": _abs,
    "add": _add_sub(np.add),
    "addc": _carry_builder(subtract=False),
    "div": _div,
    "dp2a": _dp2a,
    "dp4a": _dp4a,
    "mad": _mad,
    "mad24": _mad24,
    "madc": _madc,
    "max": _extremum(np.maximum),
    "min": _extremum(np.minimum),
    "mul": _mul,
    "mul24": _mul24,
    "neg": _neg,
    "rem": _rem,
    "sad": _sad,
    "sub": _add_sub(np.subtract),
    "subc": _carry_builder(subtract=True),
}
