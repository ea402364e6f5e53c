"""Scalar LLVM code: fields of tables, loops, and conditions that leave a function."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from enum import IntEnum
from typing import Any

from llvmlite import ir

from refmoe.ptx.native.context import FIELD_BYTES

Value = Any
WORD, WARP_MASK, POINTER, BYTE = ir.IntType(64), ir.IntType(32), ir.PointerType(), ir.IntType(8)
# (context, warp, mask, table) -> the place whose end was reached (PLACE_SHIFT) and the lanes that take its branch, or
# FAILED.
PIECE = ir.FunctionType(WORD, [POINTER, WORD, WARP_MASK, POINTER])
PLACE_SHIFT = 32
FAILED = 1 << 62


def word(value: int) -> Value:
    """A constant of 64 bits."""
    return ir.Constant(WORD, value)


def at(build: Any, base: Value, offset: Value | int) -> Value:
    """The address `offset` bytes behind a pointer."""
    if not isinstance(offset, int):
        return build.gep(base, [offset], source_etype=BYTE)
    return build.gep(base, [word(offset)], source_etype=BYTE) if offset else base


def field(build: Any, table: Value, number: IntEnum | int, kind: Any = WORD) -> Value:
    """A field of a table of 64-bit fields."""
    return build.load(at(build, table, int(number) * FIELD_BYTES), typ=kind)


def column_bit(build: Any, column: Value) -> Value:
    """The bit of a page's word that says whether a column of records is in use: the last one is of all from 63 on."""
    last = word(63)
    return build.shl(word(1), build.select(build.icmp_unsigned("<", column, last), column, last))


def room(build: Any, kind: Any) -> Value:
    """Memory of the function's own for a value of some type; vectors need 32 bytes of alignment."""
    held = build.alloca(kind)
    held.align = 64
    return held


@contextmanager
def counted(build: Any, count: Value) -> Iterator[Value]:
    """A loop over 0 .. count - 1, 64 bits; `count` is at least one."""
    before = build.block
    body = build.append_basic_block()
    after = build.append_basic_block()
    build.branch(body)
    build.position_at_end(body)
    number = build.phi(WORD)
    number.add_incoming(word(0), before)
    yield number
    following = build.add(number, word(1))
    number.add_incoming(following, build.block)
    build.cbranch(build.icmp_unsigned("<", following, count), body, after)
    build.position_at_end(after)


def leave_if(build: Any, condition: Value, result: int) -> None:
    """Return `result`, 32 bits, where a condition holds."""
    with build.if_then(condition, likely=False):
        build.ret(ir.Constant(WARP_MASK, result))


class _Callee:
    """A pointer that is called as a function of a given type, which an opaque pointer does not say."""

    def __init__(self, pointer: Value, signature: Any) -> None:
        self.function_type, self.type = signature, pointer.type
        self.get_reference = pointer.get_reference


def call_pointer(build: Any, pointer: Value, signature: Any, arguments: list[Value], tail: str = "") -> Value:
    """Call what a pointer points to; `tail` is LLVM's word for calls that end a function, such as `musttail`."""
    return build.call(_Callee(pointer, signature), arguments, tail=tail)
