"""Lanes that take their turns at one word, where each turn rounds or compares, so that no scan gives the same.

    turns(values, first, second, count)

`values` has count + 1 words, of which the first is what a word holds. Each of the next is the operation on the word
before and the operand at the same place of `first` (and of `second`, for an operation that has two). The arithmetic is
the native form of the instruction, which is held against its specification.
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from typing import Any

import numpy as np
from llvmlite import ir

from refmoe.native.compiler import Native
from refmoe.native.expressions import I64, POINTER, Code, Value
from refmoe.ptx import isa
from refmoe.ptx.ops.lanes import LANES, LaneBuilder, vector
from refmoe.ptx.ops.table import lowering
from refmoe.ptx.state.in_turn import scan_of

Array = Any
# What gives a new word for a word and the operands.
_Step = Callable[[Code, Value, list[Value]], Value]


@dataclass(frozen=True)
class TurnByTurn:
    """What a word holds before and after each turn.

    Attributes:
        opcode: of the instruction, as `isa.resolve` takes it; `""` for a comparison and exchange.
        bits: of the word.
    """

    opcode: str
    bits: int

    def __call__(self, first: Any, *operands: Array) -> Array:
        """`first`, and what each turn leaves.

        Args:
            first: what the word holds.
            operands: for each source of the operation an unsigned array [n] of the word's size.

        Returns:
            The words [n + 1].
        """
        given = [np.ascontiguousarray(each, f"u{self.bits // 8}") for each in operands]
        values = np.empty(len(given[0]) + 1, given[0].dtype)
        values[0] = first
        places = [each.ctypes.data for each in (values, *given)]
        _function(self.opcode, self.bits)[1](*places, *[0] * (3 - len(places)), len(given[0]))
        return values


@cache
def together(operation: str, kind: str, count: int = 1, flush: bool = False) -> Callable[..., Array] | None:
    """What does many turns of an atomic operation at one word together, or None if nothing does.

    The arguments are those of `isa.resolve_atomic`, and how many elements the instruction has: where several are
    compared as one, no single one has turns of its own.
    """
    if operation == "cas":
        return TurnByTurn("", int(kind[1:])) if count == 1 else None
    if operation not in ("add", "min", "max") or not kind.startswith(("f", "bf")):
        return scan_of(operation, kind)
    opcode = f"{operation}{'.rn' if operation == 'add' else ''}{'.ftz' if flush else ''}.{kind}"
    return None if lowering(opcode) is None else TurnByTurn(opcode, int(isa.resolve(opcode).sources[0][1:]))


@cache
def _function(opcode: str, bits: int) -> tuple[Native, Any]:
    """The module, which has to live on, and its function."""
    native = Native.of(lambda: _text(opcode, bits), "turns", opcode, str(bits), level=2)
    pointer = ctypes.c_void_p
    call = ctypes.CFUNCTYPE(None, pointer, pointer, pointer, ctypes.c_int64)
    return native, call(native.address("turns"))


def _text(opcode: str, bits: int) -> str:
    module = ir.Module()
    code = Code(module, "turns", [POINTER, POINTER, POINTER, I64])
    values, first, second, count = code.arguments
    kind, size = ir.IntType(bits), bits // 8
    held = code.variable(kind, code.load(kind, values, align=size))
    with code.range(count) as turn:
        at = turn * size
        operand = code.load(kind, first + at, align=size)
        if opcode:
            made = _in_a_lane(code, opcode, bits, held.get(), operand)
        else:
            made = code.select(held.get().equals(operand), code.load(kind, second + at, align=size), held.get())
        held.set(made)
        code.store(made, values + at + size, align=size)
    code.done()
    return str(module)


def _in_a_lane(code: Code, opcode: str, bits: int, word: Value, operand: Value) -> Value:
    """The operation on two words: in all lanes, of which one is looked at."""
    build, lower = code.build, lowering(opcode)
    assert lower is not None
    nothing, zero = ir.Constant(vector(bits), ir.Undefined), ir.Constant(ir.IntType(32), 0)
    sources = []
    for each in (word, operand):
        one = build.insert_element(nothing, each.held, zero)
        sources.append(build.shuffle_vector(one, nothing, ir.Constant(vector(32), [0] * LANES)))
    lanes = LaneBuilder(code.module, build, ir.Constant(vector(1), [1] * LANES))
    return Value(code, build.extract_element(lower(lanes, sources)[0], zero))
