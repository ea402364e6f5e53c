"""Bulk copies of many lanes in one call: what happens to bytes and records at their issue, and when they land.

    poison(data, valid, target, count, span)
    land(data, valid, source, copies, count, words, width, fill)
    record(writes, states, first, records, count, span)
    ordered(tables, first, rows, threads, fine, count, span)

Copy i goes to `span` bytes from byte `target[i]` on of shared memory, int64 [count]. `valid` says which of its bytes
are initialised. `copies` are addresses, see `BoxPlaces`: word j of copy i, of `width` bytes, comes from byte
`begin[i] + offset[i * stride + j]` of `source`, and goes to byte `target[i] + place[j]`. Where `inside[i * words + j]`
is off it is `fill` instead, 8 bytes that repeat.

`record` makes `records[i]` the last write of all granules in the range from `first[i]` on, see `Granules.write`.

`ordered` enters into `fine`, a byte for each range, whether a bulk copy into it comes after all that lines of 128 bytes
have steps of, by row `rows[i]` of what lanes know: after all writes by lanes, with a proxy fence between, after their
reads and after the bulk copies before. `threads[i]` is the first thread of the copy's cluster. `tables` are numbers and
addresses, see `LineTables`. Of a range that is not fine nothing is said: Python looks at its granules.
"""

from __future__ import annotations

import ctypes
from enum import IntEnum
from functools import cache
from typing import Any

from llvmlite import ir

from refmoe.native.compiler import Native
from refmoe.native.expressions import I1, I8, I64, POINTER, Code, Value
from refmoe.ptx.state import records
from refmoe.ptx.state.pages import PAGE, PAGE_SHIFT, POISON

_FIELD_BYTES = 8
#: Bytes of a word.
WIDTHS = (1, 2, 4, 8, 16)
_LINE_SHIFT = 7
# Records that are written together.
_TOGETHER_SHIFT = 4
_TOGETHER = 1 << _TOGETHER_SHIFT
_THREAD, _KIND, _BULK = int(records.THREAD), int(records.ASYNCHRONOUS | records.BULK), int(records.BULK)


class BoxPlaces(IntEnum):
    """Where the tables of copies lie: fields of 8 bytes."""

    BEGIN = 0
    OFFSET = 1
    STRIDE = 2
    """Words between the offsets of two copies, 0 where all have the same."""
    INSIDE = 3
    """0 where all words are inside."""
    TARGET = 4
    PLACE = 5


class LineTables(IntEnum):
    """What lines know, and lanes: fields of 8 bytes."""

    BULK_WRITES = 0
    """int64 [lines], the record of the last bulk write."""
    READ_STEPS = 1
    """int64 [lines, `READ_COLUMNS`], of each warp, then of bulk copies and of warpgroups, the step of the last read."""
    READ_COLUMNS = 2
    WRITE_STEPS = 3
    """int64 [lines, `WARPS`]."""
    WARPS = 4
    """Of a cluster."""
    SEEN = 5
    """int64 [rows, `COLUMNS`], see `refmoe.ptx.engine.order.clocks`."""
    COLUMNS = 6
    AGENTS = 7
    """The first column of agents."""
    CROSSED = 8
    """The first column of what lies before a proxy fence."""
    THREADS = 9
    """Of a cluster."""


class BoxFunctions:
    """The functions of the module, called with addresses."""

    def __init__(self) -> None:
        self._native = Native.of(_text, "boxes", level=2, briefly=True)
        pointer, number = ctypes.c_void_p, ctypes.c_int64
        self.poison = self._function("poison", *[pointer] * 3, *[number] * 2)
        self.land = self._function("land", *[pointer] * 4, *[number] * 4)
        self.record = self._function("record", *[pointer] * 4, *[number] * 2)
        self.ordered = self._function("ordered", *[pointer] * 5, *[number] * 2)

    def _function(self, name: str, *arguments: Any) -> Any:
        return ctypes.CFUNCTYPE(None, *arguments)(self._native.address(name))


@cache
def functions() -> BoxFunctions:
    """The one instance, made when first asked for."""
    return BoxFunctions()


def _text() -> str:
    module = ir.Module()
    _poison(module)
    _land(module)
    _record(module)
    _ordered(module)
    return str(module)


def _word(code: Code, table: Value, index: Value | int) -> Value:
    return code.load(I64, table + index * _FIELD_BYTES, align=8)


def _pointer(code: Code, table: Value, number: IntEnum) -> Value:
    return code.load(POINTER, table + int(number) * _FIELD_BYTES, align=8)


def _number(code: Code, table: Value, number: IntEnum) -> Value:
    return code.load(I64, table + int(number) * _FIELD_BYTES, align=8)


def _poison(module: Any) -> None:
    code = Code(module, "poison", [POINTER, POINTER, POINTER, I64, I64])
    data, valid, target, count, span = code.arguments
    signature = ir.FunctionType(ir.VoidType(), [POINTER, I8, I64, I1])
    # The C library's, which is in every process.
    fill = ir.Function(module, signature, "llvm.memset.p0.i64")
    plain = code.constant(I1, 0)
    with code.range(count) as number:
        begin = _word(code, target, number)
        code.call(fill, data + begin, code.constant(I8, POISON), span, plain)
        code.call(fill, valid + begin, code.constant(I8, 0), span, plain)
    code.done()


def _land(module: Any) -> None:
    code = Code(module, "land", [*[POINTER] * 4, *[I64] * 4])
    data, valid, source, copies, count, words, width, fill = code.arguments
    begins, offsets = (_pointer(code, copies, each) for each in (BoxPlaces.BEGIN, BoxPlaces.OFFSET))
    targets, places = (_pointer(code, copies, each) for each in (BoxPlaces.TARGET, BoxPlaces.PLACE))
    inside, stride = _pointer(code, copies, BoxPlaces.INSIDE), _number(code, copies, BoxPlaces.STRIDE)
    clipped = Value(code, code.build.ptrtoint(inside.held, I64)).differs(0)
    outside = code.space(max(WIDTHS))
    for part in range(max(WIDTHS) // _FIELD_BYTES):
        code.store(fill, outside + part * _FIELD_BYTES)
    for each in WIDTHS:
        kind = ir.IntType(8 * each)
        with code.when(width.equals(each)), code.range(count) as number:
            origin = source + _word(code, begins, number)
            target = _word(code, targets, number)
            own = offsets + number * stride * _FIELD_BYTES
            # Twice, so that boxes that lie in their tensor, which are the most, ask nothing of each word.
            with code.when(clipped ^ True), code.range(words) as word:
                place = target + _word(code, places, word)
                code.store(code.load(kind, origin + _word(code, own, word)), data + place)
                code.store(code.constant(kind, -1), valid + place)
            with code.when(clipped), code.range(words) as word:
                place = target + _word(code, places, word)
                taken = code.load(I8, inside + (number * words + word)).differs(0)
                here = code.build.select(taken.held, (origin + _word(code, own, word)).held, outside.held)
                code.store(code.load(kind, Value(code, here)), data + place)
                code.store(code.constant(kind, -1), valid + place)
    code.done()


def _record(module: Any) -> None:
    code = Code(module, "record", [*[POINTER] * 4, *[I64] * 2])
    writes, states, first, made, count, span = code.arguments
    with code.range(count) as number:
        record = _word(code, made, number)
        begin = code.variable(I64, _word(code, first, number))
        end = begin.get() + span
        with code.loop() as pages:
            here = begin.get()
            pages.leave_if((here < end) ^ True)
            stop = code.min((here & -PAGE) + PAGE, end)
            shift = _word(code, states, here >> PAGE_SHIFT) - 1
            slot = (here & -PAGE) + ((here & (PAGE - 1)) >> shift)
            granules, place = (stop - here) >> shift, writes + slot * _FIELD_BYTES
            with code.range(granules >> _TOGETHER_SHIFT) as some:
                code.store(record.lanes(_TOGETHER), place + some * (_TOGETHER * _FIELD_BYTES), align=8)
            whole = granules & -_TOGETHER
            with code.range(granules & (_TOGETHER - 1)) as granule:
                code.store(record, place + (whole + granule) * _FIELD_BYTES, align=8)
            begin.set(stop)
    code.done()


def _ordered(module: Any) -> None:
    code = Code(module, "ordered", [*[POINTER] * 5, *[I64] * 2])
    tables, first, rows, threads, fine, count, span = code.arguments
    bulk_writes, reads, writes, seen = (
        _pointer(code, tables, each)
        for each in (LineTables.BULK_WRITES, LineTables.READ_STEPS, LineTables.WRITE_STEPS, LineTables.SEEN)
    )
    columns, warps = _number(code, tables, LineTables.READ_COLUMNS), _number(code, tables, LineTables.WARPS)
    agents = _number(code, tables, LineTables.AGENTS)
    all_threads = _number(code, tables, LineTables.THREADS)
    with code.range(count) as number:
        known = seen + _word(code, rows, number) * _number(code, tables, LineTables.COLUMNS) * _FIELD_BYTES
        crossed = known + _number(code, tables, LineTables.CROSSED) * _FIELD_BYTES
        begin, own = _word(code, first, number), _word(code, threads, number)
        line = code.variable(I64, begin >> _LINE_SHIFT)
        last = (begin + span - 1) >> _LINE_SHIFT
        wrong = code.variable(I1, 0)
        with code.loop() as lines:
            here = line.get()
            lines.leave_if((last < here) | wrong.get())
            record = _word(code, bulk_writes, here)
            with code.when(record.differs(0)):
                thread = (record & _THREAD) - own
                inside = (thread > -1) & (thread < all_threads) & (record & _KIND).equals(_BULK)
                agent = agents + code.select(inside, thread, 0)
                reached = _word(code, known, agent) < record >> records.STEP_SHIFT
                wrong.set(wrong.get() | (inside ^ True) | reached)
            read, written = reads + here * columns * _FIELD_BYTES, writes + here * warps * _FIELD_BYTES
            with code.range(warps) as warp:
                knows = _word(code, known, warp)
                fenced = code.min(knows, _word(code, crossed, warp))
                late = (knows < _word(code, read, warp)) | (fenced < _word(code, written, warp))
                wrong.set(wrong.get() | late)
            # Bulk copies and products: mostly nobody reads by these.
            with code.range(columns - warps) as other:
                wrong.set(wrong.get() | _word(code, read, warps + other).differs(0))
            line.set(here + 1)
        code.store(code.select(wrong.get(), code.constant(I8, 0), code.constant(I8, 1)), fine + number)
    code.done()
