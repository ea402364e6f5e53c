"""What orders accesses, for many lanes in one call: the native forms of `RaceShadow.read` and of its writes.

    reads(context, row, at, who, count, flags) -> 0
    writes(context, row, at, who, count, flags) -> 0
    follows(context, row, records, who, count, flags) -> 0

Lane `who[i]` of the machine reads or writes the granule in slot `at[i]`, int64 [count] both; `flags` go into its
record, see `refmoe.ptx.state.records`. If nothing is wrong the accesses are recorded. Otherwise the result is 1 and no
record has changed: Python finds out what is wrong. `row` is the region's, see `Row`.
`follows` records nothing: what lane `who[i]` does must come after the access of `records[i]`, int64 [count].
"""

from __future__ import annotations

import ctypes
from enum import IntEnum
from functools import cache
from typing import Any

from llvmlite import ir

from refmoe.native.compiler import Native
from refmoe.native.expressions import I1, I32, I64, POINTER, Code, Value
from refmoe.ptx.native.context import FIELD_BYTES, Context, Row
from refmoe.ptx.state import records

_THREAD, _LANE, _MANY = int(records.THREAD), int(records.LANE), int(records.MANY)
_ASYNCHRONOUS, _BULK, _STRONG = int(records.ASYNCHRONOUS), int(records.BULK), int(records.STRONG)
_LANES = 32


class Functions:
    """The functions of the module, called with addresses."""

    def __init__(self) -> None:
        self._native = Native.of(_text, "order", level=2)
        pointer, number = ctypes.c_void_p, ctypes.c_int64
        call = ctypes.CFUNCTYPE(ctypes.c_int32, pointer, pointer, pointer, pointer, number, number)
        self.reads = call(self._native.address("reads"))
        self.writes = call(self._native.address("writes"))
        self.follows = call(self._native.address("follows"))


@cache
def functions() -> Functions:
    """The one instance, made when first asked for."""
    return Functions()


def _text() -> str:
    module = ir.Module()
    ordered = is_ordered(module)
    _reads(module, ordered)
    _writes(module, ordered)
    _follows(module, ordered)
    return str(module)


# (context, row, at, who, count, flags)
_ARGUMENTS = [POINTER, POINTER, POINTER, POINTER, I64, I64]


def _field(code: Code, table: Value, number: IntEnum) -> Value:
    return code.load(I64, table + int(number) * FIELD_BYTES, align=8)


def _pointer(code: Code, table: Value, number: IntEnum) -> Value:
    return code.load(POINTER, table + int(number) * FIELD_BYTES, align=8)


def _word(code: Code, base: Value, index: Value) -> Value:
    return code.load(I64, base + index * FIELD_BYTES, align=8)


def is_ordered(module: Any) -> Any:
    """`is_ordered(context, warp, record) -> i1`: `Clocks.ordered` for one lane of a warp of the machine."""
    code = Code(module, "is_ordered", [POINTER, I64, I64], inner=True, result=I1)
    context, warp, record = code.arguments
    warps, step = _field(code, context, Context.WARPS), record >> records.STEP_SHIFT
    thread = record & _THREAD
    other = thread >> 5
    row = _pointer(code, context, Context.SEEN) + warp * _field(code, context, Context.SEEN_COLUMNS) * FIELD_BYTES

    def reached(column: Value) -> Value:
        return (_word(code, row, column) < step) ^ True

    def has(bits: int) -> Value:
        return (record & bits).differs(0)

    def is_on(number: Context) -> Value:
        return _field(code, context, number).differs(0)

    found = code.variable(I1, 0)
    in_cta = Value(code, code.build.urem(thread.held, (warps * _LANES).held))
    own_cta = (warp + _field(code, context, Context.FIRST_WARP)).quotient(warps)
    with code.when(own_cta.equals(other.quotient(warps))):
        by_agent = is_on(Context.BULK) & has(_BULK)
        with code.when(by_agent):
            last = code.constant(I64, records.AGENTS - 1)
            found.set(reached(warps * 34 + code.min(in_cta, last)))
        with code.when(by_agent ^ True):
            found.set(reached((in_cta >> 5) + code.select(has(_ASYNCHRONOUS), warps, 0)))
            with code.when(is_on(Context.BY_LANE) & (has(_MANY | _ASYNCHRONOUS) ^ True)):
                found.set(found.get() | reached(warps * 2 + in_cta))
    with code.when(found.get() ^ True):
        published = _word(code, _pointer(code, context, Context.PUBLISHED), other)
        acquired = _word(code, _pointer(code, context, Context.ACQUIRED), warp)
        found.set(((published < step) | (acquired < step)) ^ True)
    code.done(found.get())
    return code.function


class _Accesses:
    """The arguments of one of the functions."""

    def __init__(self, code: Code, ordered: Any) -> None:
        self.code, self.ordered = code, ordered
        self.context, self.row, self.slots, self.lanes, self.count, self.flags = code.arguments
        now = _field(code, self.context, Context.NOW) << records.STEP_SHIFT
        self.base = now + _field(code, self.context, Context.FIRST_THREAD) + self.flags

    def access(self, number: Value) -> tuple[Value, Value]:
        """(slot, lane) of one of them."""
        return _word(self.code, self.slots, number), _word(self.code, self.lanes, number)

    def refuse(self, record: Value, lane: Value) -> None:
        """Return 1 if an access with this record belongs to another lane and is not ordered before one of `lane`."""
        code, mine = self.code, self.base + lane
        other = ((record ^ mine) & _THREAD).differs(0) | (record & (_MANY | _ASYNCHRONOUS | _BULK)).differs(0)
        both_strong = (record & mine & _STRONG).differs(0)
        with code.when(record.differs(0) & other & (both_strong ^ True)):
            fine = code.call(self.ordered, self.context, lane >> 5, record)
            code.done_if(fine ^ True, code.constant(I32, 1))


def _begin(module: Any, name: str, ordered: Any) -> _Accesses:
    return _Accesses(Code(module, name, _ARGUMENTS, result=I32), ordered)


def _reads(module: Any, ordered: Any) -> None:
    of = _begin(module, "reads", ordered)
    code = of.code
    writes, reads = _pointer(code, of.row, Row.WRITES), _pointer(code, of.row, Row.READS)
    with code.range(of.count) as number:
        slot, lane = of.access(number)
        of.refuse(_word(code, writes, slot), lane)
    readers, stride = _field(code, of.row, Row.READERS), _field(code, of.row, Row.COLUMN_BYTES)
    warps, seen = _field(code, of.context, Context.WARPS), _pointer(code, of.context, Context.SEEN)
    columns = _field(code, of.context, Context.SEEN_COLUMNS)
    with code.range(of.count) as number:
        slot, lane = of.access(number)
        warp = lane >> 5
        own = Value(code, code.build.urem(warp.held, warps.held))
        place = reads + code.select(readers.equals(0), 0, own * stride) + slot * FIELD_BYTES
        previous, mine = code.load(I64, place, align=8), of.base + lane
        differs = previous ^ mine
        elsewhere = (differs & (_THREAD & ~_LANE)).differs(0)
        with code.when(readers.equals(0) & elsewhere & previous.differs(0)):
            code.store(previous, place + stride, align=8)
        # Another lane of the same warp read since the last warp-level sync: no single lane stands for both.
        later = (previous >> records.STEP_SHIFT) > _word(code, seen, warp * columns + own)
        together = later & (elsewhere ^ True) & (differs & (_LANE | _MANY)).differs(0)
        code.store(code.select(together, mine | _MANY, mine), place, align=8)
    code.done(code.constant(I32, 0))


def _follows(module: Any, ordered: Any) -> None:
    of = _begin(module, "follows", ordered)
    with of.code.range(of.count) as number:
        record, lane = of.access(number)
        of.refuse(record, lane)
    of.code.done(of.code.constant(I32, 0))


def _writes(module: Any, ordered: Any) -> None:
    of = _begin(module, "writes", ordered)
    code = of.code
    writes, reads = _pointer(code, of.row, Row.WRITES), _pointer(code, of.row, Row.READS)
    columns, stride = _field(code, of.row, Row.COLUMNS), _field(code, of.row, Row.COLUMN_BYTES)
    with code.range(of.count) as number:
        slot, lane = of.access(number)
        of.refuse(_word(code, writes, slot), lane)
        with code.range(columns) as column:
            of.refuse(_word(code, reads + column * stride, slot), lane)
    with code.range(of.count) as number:
        slot, lane = of.access(number)
        code.store(of.base + lane, writes + slot * FIELD_BYTES, align=8)
    code.done(code.constant(I32, 0))
