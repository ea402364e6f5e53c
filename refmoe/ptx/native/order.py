"""What orders accesses, for many lanes in one call: the native forms of `RaceShadow.read` and of its writes.

    reads(context, row, index, who, count, width, flags) -> Status
    writes(context, row, index, who, count, width, flags) -> Status
    follows(context, row, records, who, count, width, flags) -> Status

Lane `who[i]` of the machine reads or writes `width` bytes from byte `index[i]` on, int64 [count] both; `flags` go into
its record, see `refmoe.ptx.state.records`. If nothing is wrong the accesses are recorded. Otherwise no record has
changed, unless copies of one step are into one place. `row` is the region's, see `Row`.
`follows` records nothing: what lane `who[i]` does must come after the access of `records[i]`, int64 [count].

A record that would push another one out that is not ordered before it stands for both threads from then on, see
`Several`.
"""

from __future__ import annotations

import ctypes
from collections.abc import Iterator
from contextlib import contextmanager
from enum import IntEnum
from functools import cache
from typing import Any

from llvmlite import ir

from refmoe.native.compiler import Native
from refmoe.native.expressions import I1, I32, I64, POINTER, Code, Value, vector
from refmoe.ptx.native.context import FIELD_BYTES, Context, Row
from refmoe.ptx.native.scalar import column_bit
from refmoe.ptx.state import records
from refmoe.ptx.state.pages import PAGE, PAGE_SHIFT
from refmoe.ptx.state.records import Several

_THREAD, _LANE, _SEVERAL = int(records.THREAD), int(records.LANE), int(records.SEVERAL)
_SOME_LANES = int(Several.LANES) << records.SEVERAL_SHIFT
_ASYNCHRONOUS, _BULK, _STRENGTH = int(records.ASYNCHRONOUS), int(records.BULK), int(records.STRENGTH)
_LANES = 32
# Of what names a row of the pool, see `Knowledge`.
_NAME_BYTES = 4
# Granules of an access that are looked at together: words of the copies and vectors of 16 bytes.
_TOGETHER = 4
# Columns of reads that have a bit of their own in a page's word.
_EACH_ITS_BIT = 62


class OrderStatus(IntEnum):
    """How a call ended."""

    DONE = 0
    WRONG = 1
    """An access is not in order: Python finds out what is wrong."""
    COARSE = 2
    """A page has granules that are wider than the accesses, or none: see `Granules.refine`."""


class OrderFunctions:
    """The functions of the module, called with addresses."""

    def __init__(self) -> None:
        self._native = Native.of(_text, "order", level=2, briefly=True)
        pointer, number = ctypes.c_void_p, ctypes.c_int64
        call = ctypes.CFUNCTYPE(ctypes.c_int32, pointer, pointer, pointer, pointer, number, number, number)
        self.reads = call(self._native.address("reads"))
        self.writes = call(self._native.address("writes"))
        self.follows = call(self._native.address("follows"))


@cache
def functions() -> OrderFunctions:
    """The one instance, made when first asked for."""
    return OrderFunctions()


def _text() -> str:
    module = ir.Module()
    ordered = is_ordered(module)
    merge = merged(module)
    _reads(module, ordered, merge)
    _writes(module, ordered, merge)
    _follows(module, ordered)
    return str(module)


# (context, row, index or records, who, count, width, flags)
_ARGUMENTS = [POINTER, POINTER, POINTER, POINTER, I64, I64, I64]


def _field(code: Code, table: Value, number: IntEnum) -> Value:
    return code.load(I64, table + int(number) * FIELD_BYTES, align=8)


def _pointer(code: Code, table: Value, number: IntEnum) -> Value:
    return code.load(POINTER, table + int(number) * FIELD_BYTES, align=8)


def _word(code: Code, base: Value, index: Value) -> Value:
    return code.load(I64, base + index * FIELD_BYTES, align=8)


def _rest(code: Code, dividend: Value, divisor: Value) -> Value:
    return Value(code, code.build.urem(dividend.held, divisor.held))


def is_ordered(module: Any) -> Any:
    """`is_ordered(context, lane, record) -> i1`: `Clocks.ordered` for one lane of the machine.

    False for records of several clusters too, which Python looks at.
    """
    known = _known(module)
    code = Code(module, "is_ordered", [POINTER, I64, I64], inner=True, result=I1)
    context, lane, record = code.arguments
    # The thread of one that stands for several clusters may be the number of a set, and that of no thread.
    several = (record >> records.SEVERAL_SHIFT) & 3
    code.done_if(several.equals(Several.CLUSTERS), code.constant(I1, 0))
    warp, warps = lane >> 5, _field(code, context, Context.WARPS)
    columns = _field(code, context, Context.SEEN_COLUMNS)
    cluster = ((record & _THREAD) >> 5).quotient(warps)
    row = code.variable(I64, warp)
    with code.when(_field(code, context, Context.BY_LANE).differs(0)):
        bits = _word(code, _pointer(code, context, Context.APART), warp)
        own = ((bits >> (lane & 31)) & 1).differs(0)
        row.set(code.select(own, lane + _field(code, context, Context.ALL_WARPS), warp))
    found = code.variable(I1, 0)
    inside = (warp + _field(code, context, Context.FIRST_WARP)).quotient(warps).equals(cluster)
    with code.when(inside):
        mine = _pointer(code, context, Context.SEEN) + row.get() * columns * FIELD_BYTES
        found.set(code.call(known, context, mine, record, _rest(code, lane, warps * _LANES)))
    with code.when(inside ^ True):
        beyond = _word(code, _pointer(code, context, Context.FOREIGN), row.get())
        with code.when(beyond.differs(0)):
            names = Value(code, code.build.inttoptr(beyond.held, POINTER))
            number = code.load(I32, names + cluster * _NAME_BYTES, align=_NAME_BYTES).to(I64)
            with code.when(number.differs(0)):
                theirs = _pointer(code, context, Context.POOL) + number * columns * FIELD_BYTES
                found.set(code.call(known, context, theirs, record, code.constant(I64, -1)))
    code.done(found.get())
    return code.function


def _known(module: Any) -> Any:
    """`known(context, row, record, own) -> i1`: whether a row of clocks about the record's cluster has reached it.

    `own` is the thread of the row in the cluster, which need not know itself, or -1.
    """
    code = Code(module, "known", [POINTER, POINTER, I64, I64], inner=True, result=I1)
    context, row, record, own = code.arguments
    warps, step = _field(code, context, Context.WARPS), record >> records.STEP_SHIFT
    thread = _rest(code, record & _THREAD, warps * _LANES)
    several = (record >> records.SEVERAL_SHIFT) & 3
    agents = record & (_ASYNCHRONOUS | _BULK)

    def reached(column: Value) -> Value:
        return (_word(code, row, column) < step) ^ True

    def need_lanes(first: Value) -> None:
        """Return 0 unless all threads of a warp are known one by one."""
        with code.range(_LANES) as lane:
            code.done_if((reached(warps + first + lane) | own.equals(first + lane)) ^ True, no)

    no = code.constant(I1, 0)
    by_lane = _field(code, context, Context.BY_LANE).differs(0)
    with code.when(agents.equals(0)):
        code.done_if(several > Several.WARPS, no)
        with code.when(several.equals(Several.WARPS)):
            with code.range(warps) as warp, code.when(reached(warp) ^ True):
                code.done_if(by_lane ^ True, no)
                need_lanes(warp * _LANES)
            code.done_if(code.constant(I1, 1), code.constant(I1, 1))
        code.done_if(reached(thread >> 5), code.constant(I1, 1))
        code.done_if(by_lane ^ True, no)
        code.done_if(several.equals(Several.ONE), reached(warps + thread))
        need_lanes(thread & -_LANES)
        code.done_if(code.constant(I1, 1), code.constant(I1, 1))
    with code.when(agents.equals(_ASYNCHRONOUS)):
        code.done_if(by_lane ^ True, no)
        code.done_if(several.differs(0), no)
        code.done_if(code.constant(I1, 1), reached(warps * (1 + _LANES) + thread))
    by_agent = agents.equals(_BULK) & _field(code, context, Context.BULK).differs(0)
    code.done_if(by_agent ^ True, no)
    code.done(reached(warps * (1 + 2 * _LANES) + thread))
    return code.function


def merged(module: Any) -> Any:
    """`merged(context, before, mine) -> record` that stands for both: `merge` of `refmoe.ptx.engine.races`."""
    code = Code(module, "merged", [POINTER, I64, I64], inner=True, result=I64)
    context, before, mine = code.arguments
    width = _field(code, context, Context.WARPS) * _LANES
    elsewhere = ((before ^ mine) & (_THREAD & ~_LANE)).differs(0)
    same = (before & _THREAD).quotient(width).equals((mine & _THREAD).quotient(width))
    apart = code.select(same, int(Several.WARPS), int(Several.CLUSTERS), I64)
    several = code.max(code.select(elsewhere, apart, int(Several.LANES), I64), (before >> records.SEVERAL_SHIFT) & 3)
    strength = code.min(before & _STRENGTH, mine & _STRENGTH)
    step = code.max(before >> records.STEP_SHIFT, mine >> records.STEP_SHIFT)
    of_agent = code.select(((before | mine) & _BULK).differs(0), _ASYNCHRONOUS, 0, I64)
    rest = mine & (_THREAD | _ASYNCHRONOUS | _BULK) | before & _ASYNCHRONOUS | of_agent
    code.done((step << records.STEP_SHIFT) | (several << records.SEVERAL_SHIFT) | strength | rest)
    return code.function


def displaced(module: Any, ordered: Any, merge: Any) -> Any:
    """`displaced(context, lane, others, previous) -> record` of the readers but the last, of which `previous` was."""
    code = Code(module, "displaced", [POINTER, I64, I64, I64], inner=True, result=I64)
    context, lane, others, previous = code.arguments
    with code.when(others.differs(0)):
        stale = code.call(ordered, context, lane, others)
        code.done_if(stale ^ True, code.call(merge, context, others, previous))
    code.done(previous)
    return code.function


class _Access:
    """One of the accesses.

    Attributes:
        first: bytes from the start of a column of records to its first.
        parts: granules.
        used: address of the word that says in which columns its page has records.
        steps: address of the last steps of its page's columns of reads.
        lane: who does it.
    """

    def __init__(self, first: Value, parts: Value, used: Value, steps: Value, lane: Value) -> None:
        self.first, self.parts, self.used, self.steps, self.lane = first, parts, used, steps, lane


class _Granule:
    """A granule of one of the accesses.

    Attributes:
        place: bytes from the start of a column of records to its own.
        used: address of the word that says in which columns its page has records.
        steps: address of the last steps of its page's columns of reads.
        lane: who accesses it.
    """

    def __init__(self, place: Value, used: Value, steps: Value, lane: Value) -> None:
        self.place, self.used, self.steps, self.lane = place, used, steps, lane


class _Accesses:
    """The arguments of one of the functions."""

    def __init__(self, code: Code, ordered: Any, merge: Any = None) -> None:
        self.code, self.ordered, self.merge = code, ordered, merge
        self.context, self.row, self.index, self.lanes, self.count, self.width, self.flags = code.arguments
        now = _field(code, self.context, Context.NOW) << records.STEP_SHIFT
        self.base = now + _field(code, self.context, Context.FIRST_THREAD) + self.flags
        self._known: tuple[Value, Value, Value] | None = None
        # What `unknown_columns` found last, and of which page for which row of clocks.
        self._page, self._row = code.variable(I64, 0), code.variable(I64, 0)
        self._unknown = code.variable(I64, -1)

    def access(self, number: Value) -> tuple[Value, Value]:
        """(what lies at that number of the third argument, lane) of one of them."""
        return _word(self.code, self.index, number), _word(self.code, self.lanes, number)

    @contextmanager
    def accesses(self) -> Iterator[_Access]:
        """Code for each access; returns where the granules of a page are too coarse."""
        code = self.code
        states, pages = _pointer(code, self.row, Row.PAGE_STATES), _pointer(code, self.row, Row.PAGE_COLUMNS)
        steps, columns = _pointer(code, self.row, Row.PAGE_STEPS), _field(code, self.row, Row.COLUMNS)
        with code.range(self.count) as number:
            index, lane = self.access(number)
            page = index >> PAGE_SHIFT
            shift = _word(code, states, page) - 1
            parts = self.width >> (shift & 63)
            fine = (shift > -1) & (parts > 0)
            code.done_if(fine ^ True, code.constant(I32, OrderStatus.COARSE))
            # Where alignment is not looked for, an access counts as one of the word that it begins in.
            within = index & (code.constant(I64, PAGE) - self.width)
            first = (index & -PAGE) + (within >> shift)
            self._known = self._row_of(lane)
            last = steps + page * columns * FIELD_BYTES
            yield _Access(first * FIELD_BYTES, parts, pages + page * FIELD_BYTES, last, lane)
            self._known = None

    @contextmanager
    def granules(self) -> Iterator[_Granule]:
        """Code for each granule of each access; returns where a page's are too coarse."""
        with self.accesses() as access, self.code.range(access.parts) as part:
            yield _Granule(access.first + part * FIELD_BYTES, access.used, access.steps, access.lane)

    def refuse_column(self, column: Value, access: _Access) -> None:
        """Return 1 if an access races with one that a column has a record of.

        Mostly the granules of an access were accessed together: what is known of one of them is known of all.
        """
        code, place = self.code, column + access.first
        with code.loop() as once:
            with code.when(access.parts.equals(_TOGETHER)):
                held = code.load(vector(I64, _TOGETHER), place, align=8)
                first = code.load(I64, place, align=8)
                differs = held ^ first.lanes(_TOGETHER)
                with code.when(code.any(differs.differs(0)) ^ True):
                    self.refuse(first, access.lane)
                    once.leave_if(code.constant(I1, 1))
                same_warp = code.any((differs & ~_LANE).differs(0)) ^ True
                once.leave_if(same_warp & self._is_known(first))
            with code.range(access.parts) as part:
                self.refuse(_word(code, place, part), access.lane)
            once.leave_if(code.constant(I1, 1))

    def replace_together(self, column: Value, access: _Access) -> Value:
        """Write the records of an access into a column, where nothing that is there has to be kept: whether it did."""
        code, place = self.code, column + access.first
        done = code.variable(I1, 0)
        with code.when(access.parts.equals(_TOGETHER) & (self.flags & _STRENGTH).equals(0)):
            held = code.load(vector(I64, _TOGETHER), place, align=8)
            mine = (self.base + access.lane).lanes(_TOGETHER)
            same_step = code.any(((held ^ mine) >> records.STEP_SHIFT).equals(0))
            with code.when(same_step ^ True):
                code.store(mine, place, align=8)
                done.set(code.constant(I1, 1))
        return done.get()

    def _row_of(self, lane: Value) -> tuple[Value, Value, Value]:
        """(what the lane knows of the warps of its cluster, the cluster's first thread, its threads)."""
        code, context = self.code, self.context
        warp, warps = lane >> 5, _field(code, context, Context.WARPS)
        row = code.variable(I64, warp)
        with code.when(_field(code, context, Context.BY_LANE).differs(0)):
            bits = _word(code, _pointer(code, context, Context.APART), warp)
            own = ((bits >> (lane & 31)) & 1).differs(0)
            row.set(code.select(own, lane + _field(code, context, Context.ALL_WARPS), warp))
        columns = _field(code, context, Context.SEEN_COLUMNS)
        seen = _pointer(code, context, Context.SEEN) + row.get() * columns * FIELD_BYTES
        first = _field(code, context, Context.FIRST_WARP) + warp.quotient(warps) * warps
        return seen, first << 5, warps << 5

    def unknown_columns(self, access: _Access, used: Value) -> Value:
        """Of the columns of reads in `used`, a bit each, those in which a record of the page may race with the lane.

        The accesses of a warp mostly lie in one page, so that the last answer is kept.
        """
        code = self.code
        assert self._known is not None
        seen = self._known[0]
        left = code.variable(I64, used)
        with code.when(_field(code, self.row, Row.READERS).differs(0)):
            page, row = (Value(code, code.build.ptrtoint(each.held, I64)) for each in (access.steps, seen))
            with code.when(page.differs(self._page.get()) | row.differs(self._row.get())):
                self._page.set(page)
                self._row.set(row)
                self._unknown.set(code.constant(I64, -1))
                with code.range(code.min(_field(code, self.row, Row.READERS), _EACH_ITS_BIT)) as column:
                    known = (_word(code, seen, column) < _word(code, access.steps, column)) ^ True
                    bit = code.select(known, code.constant(I64, 1) << column, 0, I64)
                    self._unknown.set(self._unknown.get() & (bit ^ -1))
            left.set(left.get() & self._unknown.get())
        return left.get()

    def _is_known(self, record: Value) -> Value:
        """Whether the lane knows a record's whole warp, or the copies of its thread: the most common answers, without a
        call."""
        code = self.code
        found = code.variable(I1, 0)
        if self._known is not None:
            seen, first, threads = self._known
            thread = (record & _THREAD) - first
            # Who knows a warp knows some of its lanes.
            kind = record & (_ASYNCHRONOUS | _BULK | _SEVERAL & ~_SOME_LANES)
            copied = (record & (_ASYNCHRONOUS | _BULK | _SEVERAL)).equals(_ASYNCHRONOUS)
            copied = copied & _field(code, self.context, Context.BY_LANE).differs(0)
            with code.when((kind.equals(0) | copied) & (thread > -1) & (thread < threads)):
                # Behind the columns of warps, a 32nd of the threads, and of threads come those of copies.
                column = code.select(copied, thread + threads + (threads >> 5), thread >> 5)
                found.set((_word(code, seen, column) < record >> records.STEP_SHIFT) ^ True)
        return found.get()

    def in_order(self, lane: Value, record: Value) -> Value:
        """Whether the access of a record comes before what the lane does now."""
        code = self.code
        fine = code.variable(I1, self._is_known(record))
        with code.when(fine.get() ^ True):
            fine.set(code.call(self.ordered, self.context, lane, record))
        return fine.get()

    def _others(self, record: Value, mine: Value) -> Value:
        """Whether a record is of somebody else's access."""
        apart = _ASYNCHRONOUS | _BULK | _SEVERAL
        other = ((record ^ mine) & _THREAD).differs(0) | (record & apart).differs(0)
        return record.differs(0) & other

    def refuse(self, record: Value, lane: Value) -> None:
        """Return 1 if an access with this record races with one of `lane`."""
        code, mine = self.code, self.base + lane
        with code.when(self._others(record, mine) & (self._excused(record, mine) ^ True)):
            code.done_if(self.in_order(lane, record) ^ True, code.constant(I32, OrderStatus.WRONG))

    def _excused(self, record: Value, mine: Value) -> Value:
        """Whether two accesses are morally strong, see `excused` of `refmoe.ptx.state.records`."""
        code = self.code
        strength = code.min(record & _STRENGTH, mine & _STRENGTH) >> records.STRENGTH_SHIFT
        found = code.variable(I1, 0)
        with code.when(strength.differs(0) & (record & _BULK).equals(0)):
            warps, per_cta = _field(code, self.context, Context.WARPS), _field(code, self.context, Context.CTA_WARPS)
            one, other = (record & _THREAD) >> 5, (mine & _THREAD) >> 5
            several = (record >> records.SEVERAL_SHIFT) & 3
            same_cta = one.quotient(per_cta).equals(other.quotient(per_cta))
            same_cta = same_cta & ((several < Several.WARPS) | warps.equals(per_cta))
            same_cluster = one.quotient(warps).equals(other.quotient(warps))
            needed = code.select(same_cluster, code.select(same_cta, 1, 2, I64), records.GRID, I64)
            needed = code.select(several.equals(Several.CLUSTERS), records.GRID, needed, I64)
            found.set((strength < needed) ^ True)
        return found.get()

    def replaced(self, record: Value, lane: Value, *, by_read: bool) -> Value:
        """The record that takes the place of another one: of an earlier read of the warp's, or of the last write."""
        code, mine = self.code, self.base + lane
        made = code.variable(I64, mine)
        others = self._others(record, mine)
        if not by_read:
            # Whatever else is not ordered before a weak write has been refused.
            same_step = ((record ^ mine) >> records.STEP_SHIFT).equals(0)
            others = others & ((self.flags & _STRENGTH).differs(0) | same_step)
        with code.when(others), code.when(self.in_order(lane, record) ^ True):
            made.set(code.call(self.merge, self.context, record, mine))
        return made.get()

    def was_weaker(self, record: Value) -> Value:
        """Whether a record is of a weaker access."""
        return record.differs(0) & ((record & _STRENGTH) < (self.flags & _STRENGTH))


def _begin(module: Any, name: str, ordered: Any, merge: Any = None) -> _Accesses:
    return _Accesses(Code(module, name, _ARGUMENTS, result=I32), ordered, merge)


def _at(code: Code, column: Value, granule: _Granule) -> Value:
    return code.load(I64, column + granule.place, align=8)


def _used(code: Code, granule: _Granule) -> Value:
    return code.load(I64, granule.used, align=8)


def _use(code: Code, granule: _Granule, columns: Value) -> None:
    code.store(_used(code, granule) | columns, granule.used, align=8)


def _bit(code: Code, column: Value) -> Value:
    """The bit of a column of records in a page's word."""
    return Value(code, column_bit(code.build, column.held))


def _reads(module: Any, ordered: Any, merge: Any) -> None:
    others_of = displaced(module, ordered, merge)
    of = _begin(module, "reads", ordered, merge)
    code = of.code
    writes, reads = _pointer(code, of.row, Row.WRITES), _pointer(code, of.row, Row.READS)
    with of.granules() as granule, code.when((_used(code, granule) & 1).differs(0)):
        of.refuse(_at(code, writes, granule), granule.lane)
    readers, stride = _field(code, of.row, Row.READERS), _field(code, of.row, Row.COLUMN_BYTES)
    columns = _field(code, of.row, Row.COLUMNS)
    # A strong read need not come after the strong write that took the place of a weaker one.
    with (
        code.when((of.flags & _STRENGTH).differs(0)),
        of.granules() as granule,
        code.when((_used(code, granule) & _bit(code, columns)).differs(0)),
    ):
        of.refuse(_at(code, reads + (columns - 1) * stride, granule), granule.lane)
    warps = _field(code, of.context, Context.WARPS)
    with of.granules() as granule:
        lane = granule.lane
        own = _rest(code, lane >> 5, warps)
        # A first column of last reads, and a second one of other warps' reads.
        _use(code, granule, code.select(readers.equals(0), 2 | 4, _bit(code, own + 1)))
        with code.when(readers.differs(0)):
            by_thread = (of.flags & (_ASYNCHRONOUS | _BULK)).equals(0)
            step = code.select(by_thread, of.base >> records.STEP_SHIFT, records.UNKNOWN_STEP, I64)
            place = granule.steps + own * FIELD_BYTES
            # What is not known stays so.
            code.store(code.max(step, code.load(I64, place, align=8)), place, align=8)
        place = reads + code.select(readers.equals(0), 0, own * stride) + granule.place
        previous, mine = code.load(I64, place, align=8), of.base + lane
        # The number of an agent is no thread's, and what a copy reads comes before nothing that its thread does.
        agents = _ASYNCHRONOUS | _BULK
        agent = (previous & agents).differs(0) & ((previous ^ mine) & (_THREAD | agents)).differs(0)
        elsewhere = (((previous ^ mine) & (_THREAD & ~_LANE)).differs(0) | agent) & previous.differs(0)
        made = code.variable(I64, mine)
        with code.when(readers.equals(0) & elsewhere):
            # The last reader, and the others.
            others = code.load(I64, place + stride, align=8)
            kept = code.variable(I64, code.call(others_of, of.context, lane, others, previous))
            # A write that does not race with this strong read may race with a weak one before it.
            with code.when(of.was_weaker(others)):
                kept.set(code.call(merge, of.context, others, previous))
            code.store(kept.get(), place + stride, align=8)
        with code.when((readers.equals(0) & elsewhere) ^ True):
            made.set(of.replaced(previous, lane, by_read=True))
            # Nor is what was read weakly before by the same warp.
            with code.when(of.was_weaker(previous)):
                made.set(code.call(merge, of.context, previous, mine))
        code.store(made.get(), place, align=8)
    code.done(code.constant(I32, OrderStatus.DONE))


def _follows(module: Any, ordered: Any) -> None:
    of = _begin(module, "follows", ordered)
    with of.code.range(of.count) as number:
        record, lane = of.access(number)
        of.refuse(record, lane)
    of.code.done(of.code.constant(I32, OrderStatus.DONE))


def _writes(module: Any, ordered: Any, merge: Any) -> None:
    of = _begin(module, "writes", ordered, merge)
    code = of.code
    writes, reads = _pointer(code, of.row, Row.WRITES), _pointer(code, of.row, Row.READS)
    columns, stride = _field(code, of.row, Row.COLUMNS), _field(code, of.row, Row.COLUMN_BYTES)
    with of.accesses() as access:
        used = code.load(I64, access.used, align=8)
        with code.when((used & 1).differs(0)):
            of.refuse_column(writes, access)
        with code.when((used >> 1).differs(0)):
            left = of.unknown_columns(access, used >> 1)
            with (
                code.when(left.differs(0)),
                code.range(columns) as column,
                code.when((left & (_bit(code, column + 1) >> 1)).differs(0)),
            ):
                of.refuse_column(reads + column * stride, access)
    copies = (of.flags & _ASYNCHRONOUS).differs(0) & (of.flags & _STRENGTH).equals(0)
    status = code.variable(I32, OrderStatus.DONE)
    with of.accesses() as access:
        lane = access.lane
        code.store(code.load(I64, access.used, align=8) | 1, access.used, align=8)
        with code.when(of.replace_together(writes, access) ^ True), code.range(access.parts) as part:
            granule = _Granule(access.first + part * FIELD_BYTES, access.used, access.steps, lane)
            place = writes + granule.place
            previous = code.load(I64, place, align=8)
            weaker = (previous & _STRENGTH) < (of.flags & _STRENGTH)
            with code.when(weaker & previous.differs(0)):
                # A weaker write is kept: it may race with what the strong one does not race with.
                _use(code, granule, _bit(code, columns))
                kept = reads + (columns - 1) * stride + granule.place
                held, both = code.load(I64, kept, align=8), code.variable(I64, previous)
                # What comes before a weak write comes before whatever comes after it.
                with code.when(held.differs(0) & (previous & _STRENGTH).differs(0)):
                    both.set(code.call(merge, of.context, held, previous))
                code.store(both.get(), kept, align=8)
            same_step = ((previous ^ (of.base + lane)) >> records.STEP_SHIFT).equals(0)
            with code.when(copies & same_step & ((previous ^ (of.base + lane)) & _THREAD).differs(0)):
                status.set(code.constant(I32, OrderStatus.WRONG))
            code.store(of.replaced(previous, lane, by_read=False), place, align=8)
    code.done(status.get())
