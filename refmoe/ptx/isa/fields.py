"""Bit fields, counts and searches: bfe, bfi, szext, bmsk, popc, clz, bfind, fns, brev."""

from __future__ import annotations

from collections.abc import Callable, Mapping

import numpy as np

from refmoe.ptx.isa.lanes import SIGNED, UNSIGNED, signed
from refmoe.ptx.isa.operation import Array, Operation, kind
from refmoe.ptx.isa.spelling import Spelling

# --- fields ---------------------------------------------------------------------------------------------------------


def _ones(length: Array, bits: int) -> Array:
    """A mask of `length` ones from bit 0 up; all of them from `bits` up."""
    return ~(UNSIGNED[bits](2**bits - 1) << length)


def _in_range(*x: Array) -> Array:
    """Lanes whose position and length, the last two operands, are at most 255.

    The manual takes their low 8 bits. ptxas builds the 64-bit forms of shifts that take all 32 (H200: nearly every lane
    with more differs, none with less); the 32-bit forms do as the manual says.
    """
    return ((x[-2] | x[-1]) <= 0xFF) & np.ones_like(x[0], dtype=np.bool_)


def _bfe(spelling: Spelling) -> Operation:
    """Bits pos..pos+len-1 of a; a signed field is filled with its top bit, of those inside the register."""
    is_signed, bits = spelling.integer("u32", "u64", "s32", "s64")
    dtype = UNSIGNED[bits]

    def unsigned(a: Array, position: Array, length: Array) -> Array:
        position = (position & 0xFF).astype(dtype)
        length = (length & 0xFF).astype(dtype)
        return (a >> position) & _ones(length, bits)

    def with_sign(a: Array, position: Array, length: Array) -> Array:
        position = position & 0xFF
        length = length & 0xFF
        # The field's top bit goes to bit `bits`-1 and back again; past the register's end it is the register's sign.
        end = np.minimum(position + length, np.uint32(bits))
        up = (bits - end).astype(dtype)
        down = np.minimum(bits - end + position, np.uint32(bits - 1)).astype(SIGNED[bits])
        field = (signed(a << up) >> down).view(dtype)
        return np.where(length == 0, dtype(0), field)

    function = with_sign if is_signed else unsigned
    sources = (kind(bits), "b32", "b32")
    return Operation(spelling.opcode, function, sources, (kind(bits),), exact_when=_in_range if bits == 64 else None)


def _bfi(spelling: Spelling) -> Operation:
    """b with the low `len` bits of a put at `pos`."""
    _, bits = spelling.integer("b32", "b64")
    dtype = UNSIGNED[bits]

    def function(a: Array, b: Array, position: Array, length: Array) -> Array:
        position = (position & 0xFF).astype(dtype)
        length = (length & 0xFF).astype(dtype)
        mask = _ones(length, bits) << position
        return (b & ~mask) | ((a << position) & mask)

    sources = (kind(bits), kind(bits), "b32", "b32")
    return Operation(spelling.opcode, function, sources, (kind(bits),), exact_when=_in_range if bits == 64 else None)


def _szext(spelling: Spelling) -> Operation:
    """The low N = b bits of a, extended. N = 32 and more: all of a (.clamp), or N mod 32 (.wrap)."""
    clamp = spelling.need("clamp", "wrap") == "clamp"
    is_signed = spelling.type("u32", "s32") == "s32"

    def function(a: Array, b: Array) -> Array:
        n = np.minimum(b, np.uint32(32)) if clamp else b & 31
        if not is_signed:
            return a & _ones(n, 32)
        # N = 0 moves everything out; an arithmetic shift by 32 would leave the sign.
        up = np.uint32(32) - n
        return (signed(a << up) >> up.view(np.int32)).view(np.uint32)

    return Operation(spelling.opcode, function, ("b32",) * 2, ("b32",))


def _bmsk(spelling: Spelling) -> Operation:
    """b ones from bit a up, those that fit; past 31, a and b count modulo 32 (.wrap) or as they are (.clamp)."""
    clamp = spelling.need("clamp", "wrap") == "clamp"
    spelling.type("b32")

    def function(a: Array, b: Array) -> Array:
        if clamp:
            return _ones(b, 32) << a
        return _ones(b & 31, 32) << (a & 31)

    return Operation(spelling.opcode, function, ("b32",) * 2, ("b32",))


# --- counts and searches --------------------------------------------------------------------------------------------


def _fns(spelling: Spelling) -> Operation:
    """Place of the n-th set bit of the mask from `base` on, downward if n < 0; n = 0 asks for `base` itself.

    A base above 31 is undefined; it finds nothing here, and on an H200 unless n is -2^31.
    """
    spelling.type("b32")

    def function(mask: Array, base: Array, offset: Array) -> Array:
        n = signed(offset).astype(np.int64)
        down = n < 0
        left = np.abs(n) + (n == 0)
        found = np.uint32(0xFFFFFFFF) | (mask & 0)
        for step in range(32):
            at = np.where(down, base.astype(np.int64) - step, base.astype(np.int64) + step)
            inside = (at >= 0) & (at < 32) & ((n != 0) | (step == 0)) & (base < 32)
            place = np.where(inside, at, 0).astype(np.uint32)
            hit = inside & (((mask >> place) & 1) != 0)
            left = left - hit
            found = np.where(hit & (left == 0), place, found)
        return found

    def exact_when(mask: Array, base: Array, offset: Array) -> Array:
        return (base < 32) & (offset != 0x80000000) & np.ones_like(mask, dtype=np.bool_)

    return Operation(spelling.opcode, function, ("b32",) * 3, ("b32",), exact_when=exact_when)


def _smear(a: Array) -> Array:
    """Every bit below the highest one set as well."""
    step = 1
    while step < a.dtype.itemsize * 8:
        a = a | (a >> step)
        step *= 2
    return a


def _popc(spelling: Spelling) -> Operation:
    _, bits = spelling.integer("b32", "b64")
    return Operation(spelling.opcode, lambda a: np.bitwise_count(a).astype(np.uint32), (kind(bits),), ("b32",))


def _clz(spelling: Spelling) -> Operation:
    _, bits = spelling.integer("b32", "b64")

    def function(a: Array) -> Array:
        return np.uint32(bits) - np.bitwise_count(_smear(a)).astype(np.uint32)

    return Operation(spelling.opcode, function, (kind(bits),), ("b32",))


def _bfind(spelling: Spelling) -> Operation:
    """Place of the highest bit that is no sign, or (shiftamt) the left shift that brings it up; 0xFFFFFFFF if none."""
    shift_amount = spelling.flag("shiftamt")
    is_signed, bits = spelling.integer("u32", "u64", "s32", "s64")

    def function(a: Array) -> Array:
        if is_signed:
            a = a ^ (signed(a) >> (bits - 1)).view(a.dtype)
        # No bit at all counts 0 and so wraps to 0xFFFFFFFF.
        place = np.bitwise_count(_smear(a)).astype(np.uint32) - np.uint32(1)
        if not shift_amount:
            return place
        return np.where(a == 0, np.uint32(0xFFFFFFFF), np.uint32(bits - 1) - place)

    return Operation(spelling.opcode, function, (kind(bits),), ("b32",))


def _brev(spelling: Spelling) -> Operation:
    _, bits = spelling.integer("b32", "b64")

    def function(a: Array) -> Array:
        everything = 2**bits - 1
        a = a.byteswap()
        for step, mask in ((4, 0x0F), (2, 0x33), (1, 0x55)):
            low = a.dtype.type(everything // 0xFF * mask)
            a = ((a >> step) & low) | ((a & low) << step)
        return a

    return Operation(spelling.opcode, function, (kind(bits),), (kind(bits),))


BUILDERS: Mapping[str, Callable[[Spelling], Operation]] = {
    "bfe": _bfe,
    "bfi": _bfi,
    "bfind": _bfind,
    "bmsk": _bmsk,
    "brev": _brev,
    "clz": _clz,
    "fns": _fns,
    "popc": _popc,
    "szext": _szext,
}
