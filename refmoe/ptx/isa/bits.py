"""Bitwise logic, lop3, shifts, funnel shifts and byte permutes."""

from __future__ import annotations

from collections.abc import Callable, Mapping

import numpy as np

from refmoe.ptx.isa.lanes import SIGNED, UNSIGNED, signed, spread
from refmoe.ptx.isa.operation import Array, Function, Operation, kind
from refmoe.ptx.isa.spelling import Spelling

_LOGIC = ("pred", "b16", "b32", "b64")


# --- logic ----------------------------------------------------------------------------------------------------------


def _logic(function: Function, sources: int) -> Callable[[Spelling], Operation]:
    def build(spelling: Spelling) -> Operation:
        register = spelling.type(*_LOGIC)
        return Operation(spelling.opcode, function, (register,) * sources, (register,))

    return build


def _cnot(spelling: Spelling) -> Operation:
    _, bits = spelling.integer("b16", "b32", "b64")
    return Operation(spelling.opcode, lambda a: (a == 0).astype(UNSIGNED[bits]), (kind(bits),), (kind(bits),))


# All 16 functions of two variables; index: bit 2*b + c of it is f(b, c).
_TWO: tuple[Function, ...] = (
    lambda b, c: (b & c) & 0,
    lambda b, c: ~(b | c),
    lambda b, c: ~b & c,
    lambda b, c: ~b,
    lambda b, c: b & ~c,
    lambda b, c: ~c,
    lambda b, c: b ^ c,
    lambda b, c: ~(b & c),
    lambda b, c: b & c,
    lambda b, c: ~(b ^ c),
    lambda b, c: c,
    lambda b, c: ~b | c,
    lambda b, c: b,
    lambda b, c: b | ~c,
    lambda b, c: b | c,
    lambda b, c: ~((b & c) & 0),
)


def _lop3_value(a: Array, b: Array, c: Array, table: Array) -> Array:
    """Bit i of the result is bit (4*a_i + 2*b_i + c_i) of the table."""
    low, high = int(table) & 0xF, int(table) >> 4 & 0xF
    # f = f(a=0) ^ (a & (f(a=0) ^ f(a=1))): at most six operations.
    change = low ^ high
    if change == 0:
        result = _TWO[low](b, c)
    else:
        result = a if change == 0xF else a & _TWO[change](b, c)
        if low:
            result = result ^ _TWO[low](b, c)
    return spread(result, a, b, c)


def _lop3(spelling: Spelling) -> Operation:
    """lop3.b32 d, a, b, c, immLut and lop3.{or,and}.b32 d|p, a, b, c, immLut, q: p = (d != 0) BoolOp q."""
    combine = {"or": np.logical_or, "and": np.logical_and, "": None}[spelling.take("or", "and")]
    spelling.type("b32")
    words = ("b32",) * 4
    if combine is None:
        return Operation(spelling.opcode, _lop3_value, words, ("b32",))

    def function(a: Array, b: Array, c: Array, table: Array, q: Array) -> tuple[Array, Array]:
        d = _lop3_value(a, b, c, table)
        return d, combine(d != 0, q)

    return Operation(spelling.opcode, function, (*words, "pred"), ("b32", "pred"))


# --- shifts ---------------------------------------------------------------------------------------------------------


def _shift(spelling: Spelling) -> Operation:
    """shl.b, shr.b/u (zero fill), shr.s (sign fill). The amount is a b32; more than the width counts as the width."""
    left = spelling.mnemonic == "shl"
    types = ("b16", "b32", "b64") if left else ("b16", "b32", "b64", "u16", "u32", "u64", "s16", "s32", "s64")
    keeps_sign, bits = spelling.integer(*types)
    shift = np.left_shift if left else np.right_shift
    amount_dtype = (SIGNED if keeps_sign else UNSIGNED)[bits]

    def function(a: Array, amount: Array) -> Array:
        # NumPy defines shifts by the width and more as the fill, as PTX does; only the cast must not lose bits.
        if bits < 32:
            amount = np.minimum(amount, np.uint32(bits))
        amount = amount.astype(amount_dtype, copy=False) if bits != 32 else amount.view(amount_dtype)
        if keeps_sign:
            return shift(signed(a), amount).view(a.dtype)
        return shift(a, amount)

    return Operation(spelling.opcode, function, (kind(bits), "b32"), (kind(bits),))


def _shf(spelling: Spelling) -> Operation:
    """Funnel shift of [b:a]: left gives the upper word, right the lower one."""
    direction = spelling.need("l", "r")
    clamp = spelling.need("clamp", "wrap") == "clamp"
    spelling.type("b32")

    def function(a: Array, b: Array, c: Array) -> Array:
        n = np.minimum(c, np.uint32(32)) if clamp else c & 31
        if direction == "l":
            return (b << n) | (a >> (32 - n))
        return (b << (32 - n)) | (a >> n)

    return Operation(spelling.opcode, function, ("b32",) * 3, ("b32",))


# --- byte permute ---------------------------------------------------------------------------------------------------

# What each mode does for selector values 0..3, as selectors of the general form: nibble i names the source of byte i
# (PTX ISA, prmt).
_PERMUTE_MODES: dict[str, tuple[int, int, int, int]] = {
    "f4e": (0x3210, 0x4321, 0x5432, 0x6543),
    "b4e": (0x5670, 0x6701, 0x7012, 0x0123),
    "rc8": (0x0000, 0x1111, 0x2222, 0x3333),
    "ecl": (0x3210, 0x3211, 0x3222, 0x3333),
    "ecr": (0x0000, 0x1110, 0x2210, 0x3210),
    "rc16": (0x1010, 0x3232, 0x1010, 0x3232),
}


def _prmt_value(a: Array, b: Array, selector: Array) -> Array:
    """Byte i of the result is the byte of [b:a] that nibble i names, or its sign where the nibble's bit 3 is set."""
    source = (b.astype(np.uint64) << 32) | a
    selector = selector.astype(np.uint64)
    result = np.uint64(0)
    for i in range(4):
        nibble = (selector >> (4 * i)) & 0xF
        byte = (source >> ((nibble & 7) << 3)) & 0xFF
        sign = (byte >> 7) * 0xFF
        result = result | (np.where(nibble & 8, sign, byte) << (8 * i))
    return result.astype(np.uint32)


def _prmt_fixed(a: Array, b: Array, selector: int) -> Array:
    """The same for a selector that all lanes share: each byte is two shifts and a mask."""
    result = None
    for i in range(4):
        nibble = selector >> (4 * i) & 0xF
        word, low = (b if nibble & 4 else a), (nibble & 3) * 8
        if nibble & 8:
            byte = (signed(word << (24 - low)) >> 31).view(np.uint32) & np.uint32(0xFF << 8 * i)
        else:
            move = 8 * i - low
            byte = word << move if move > 0 else word >> -move if move < 0 else word
            byte = byte & np.uint32(0xFF << 8 * i)
        result = byte if result is None else result | byte
    return spread(result, a, b)


def _prmt(spelling: Spelling) -> Operation:
    spelling.need("b32")
    mode = spelling.take(*_PERMUTE_MODES)
    spelling.end()
    selectors = np.array(_PERMUTE_MODES[mode] if mode else (), dtype=np.uint32)

    def function(a: Array, b: Array, selector: Array) -> Array:
        if mode:
            selector = selectors[selector & 3]
        if np.ndim(selector) == 0:
            return _prmt_fixed(a, b, int(selector))
        return _prmt_value(a, b, selector)

    return Operation(spelling.opcode, function, ("b32",) * 3, ("b32",))


BUILDERS: Mapping[str, Callable[[Spelling], Operation]] = {
    "and": _logic(np.bitwise_and, 2),
    "cnot": _cnot,
    "lop3": _lop3,
    "not": _logic(np.invert, 1),
    "or": _logic(np.bitwise_or, 2),
    "prmt": _prmt,
    "shf": _shf,
    "shl": _shift,
    "shr": _shift,
    "xor": _logic(np.bitwise_xor, 2),
}
