"""Accesses of whole warps to consecutive places: the most common ones, which need no gathers.

        lane    0      1      2           31
    memory   |width |width |width | ... |width |      in one page, whose granules are as wide as the access

The rules are those of `refmoe.ptx.native.memory`; here lane i has the element i of each vector that lies in memory, of
data, of their validity and of their records.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Protocol

from llvmlite import ir

from refmoe.ptx.native.context import Context, Row
from refmoe.ptx.native.scalar import POINTER, WARP_MASK, WORD, at, column_bit, counted, field, leave_if, word
from refmoe.ptx.ops.lanes import LANES, vector
from refmoe.ptx.state.pages import PAGE, PAGE_SHIFT

Value = Any
_RECORD_SHIFT = 3
_LINE_SHIFT = 7


@dataclass(frozen=True)
class Reads:
    """Where the reads of a warp are recorded.

    Attributes:
        apart: whether each warp has a column of its own.
        number: of that column.
        column: address of the warp's, or of the last reads.
        next: address of the column behind: without columns of their own, the last reads of other warps.
    """

    apart: Value
    number: Value
    column: Value
    next: Value


class Kind(Protocol):
    """What is accessed; see `refmoe.ptx.native.memory.Variant`."""

    @property
    def stores(self) -> bool:
        """Else it loads."""
        ...

    @property
    def size(self) -> int:
        """Bytes of an element."""
        ...

    @property
    def count(self) -> int:
        """Elements."""
        ...

    @property
    def width(self) -> int:
        """Bytes."""
        ...


class Whole(Protocol):
    """The code for one variant: what it shares with that for consecutive places.

    Attributes:
        build_: what appends its instructions.
        context: address of the tables, see `Context`.
        state: where the state of the page of an access is kept.
        refine, keep: functions of `refmoe.ptx.native.pages`.
    """

    build_: Any
    context: Value
    state: Value
    refine: Any
    keep: Any

    @property
    def variant(self) -> Kind:
        """What is accessed."""
        ...

    def splat(self, value: Value) -> Value:
        """A scalar of 64 bits in every lane."""
        ...

    def any(self, lanes: Value) -> Value:
        """Whether a condition holds in some lane."""
        ...

    def element(self, number: int) -> Value:
        """Where the values of an element lie, one for each lane."""
        ...

    def mine(self) -> Value:
        """The record of an access by each lane now."""
        ...

    def refuse_unordered(self, previous: Value, mine: Value, here: Value) -> None:
        """Leave if a record of somebody else's access is not ordered before this one."""
        ...

    def columns_of_loads(self, reads: Reads) -> Value:
        """The columns that loads of this warp write, a bit each."""
        ...

    def own_reads(self, row: Value) -> Reads:
        """Where the reads of this warp are recorded."""
        ...

    def reader(self, previous: Value, mine: Value) -> tuple[Value, Value]:
        """(the lanes before whom a lane of another warp read, the record of their read)."""
        ...

    def line_columns(self, row: Value, steps: Row) -> tuple[Value, Value]:
        """(column of this warp in a table of lines, columns of that table)."""
        ...


class Consecutive:
    """The code for one variant; `of` has what it shares with the code for scattered places."""

    def __init__(self, of: Whole, row: Value, index: Value, here: Value) -> None:
        self.of, self.row, self.here = of, row, here
        self.build_, self.variant = of.build_, of.variant
        self.bits, self.count = of.variant.size * 8, of.variant.count
        self.first = self.build_.extract_element(index, ir.Constant(WARP_MASK, 0))
        self.index = index

    def build(self, done: Any) -> None:
        """Do the access and go on at the block `done`, if it is of this kind; else go on behind this."""
        build, of, own = self.build_, self.of, self.variant.width.bit_length()
        with build.if_then(self._is_of_this_kind()):
            watched = build.icmp_unsigned("!=", field(build, self.row, Row.WRITES), word(0))
            page = build.lshr(self.first, word(PAGE_SHIFT))
            build.store(word(own), of.state)
            with build.if_then(watched):
                states = build.inttoptr(field(build, self.row, Row.PAGE_STATES), POINTER)
                state = build.gep(states, [page], source_etype=WORD)
                before = build.sub(build.load(state, typ=WORD), word(1))
                with build.if_then(build.icmp_unsigned(">=", before, word(own)), likely=False):
                    build.call(of.refine, [self.row, page])
                build.store(build.load(state, typ=WORD), of.state)
            fits = build.icmp_unsigned("==", build.load(of.state, typ=WORD), word(own))
            with build.if_then(fits):
                self._do(page, watched)
                build.branch(done)

    def _is_of_this_kind(self) -> Value:
        build, width = self.build_, self.variant.width
        expected = build.add(self.of.splat(self.first), _lanes_times(width))
        apart = self.of.any(build.icmp_unsigned("!=", self.index, expected))
        whole = build.icmp_unsigned("==", build.bitcast(self.here, WARP_MASK), ir.Constant(WARP_MASK, 0xFFFFFFFF))
        within = build.and_(self.first, word(PAGE - 1))
        fits = build.icmp_unsigned("<=", within, word(PAGE - LANES * width))
        kind = build.and_(build.and_(whole, fits), build.not_(apart))
        if self.variant.stores:
            return kind
        return build.and_(kind, build.icmp_unsigned("==", field(build, self.row, Row.POISONED), word(0)))

    def _do(self, page: Value, watched: Value) -> None:
        build, of = self.build_, self.of
        valid = field(build, self.row, Row.VALID)
        has_valid = build.icmp_unsigned("!=", valid, word(0))
        if not self.variant.stores:
            wanted = build.icmp_unsigned("!=", field(build, of.context, Context.REFUSE_UNWRITTEN), word(0))
            with build.if_then(build.and_(has_valid, wanted)):
                missing = build.icmp_unsigned("!=", self._load(valid), self._constant(-1))
                kind = ir.IntType(LANES * self.count)
                leave_if(build, build.icmp_unsigned("!=", build.bitcast(missing, kind), ir.Constant(kind, 0)), 1)
        with build.if_then(watched):
            within = build.lshr(build.and_(self.first, word(PAGE - 1)), word(self.variant.width.bit_length() - 1))
            slot = build.shl(build.or_(build.and_(self.first, word(-PAGE)), within), word(_RECORD_SHIFT))
            (self._order_store if self.variant.stores else self._order_load)(slot)
        data = field(build, self.row, Row.DATA)
        if not self.variant.stores:
            self._deal(self._load(data))
            return
        kept = field(build, self.row, Row.KEPT)
        with build.if_then(build.icmp_unsigned("!=", kept, word(0))):
            held = build.load(build.inttoptr(build.add(kept, build.shl(page, word(3))), POINTER), typ=WORD)
            with build.if_then(build.icmp_unsigned("==", held, word(0)), likely=False):
                build.call(of.keep, [self.row, page])
        self._store(self._collected(), data)
        with build.if_then(has_valid):
            self._store(self._constant(-1), valid)

    # Data: elements of all lanes as they lie in memory

    @property
    def _kind(self) -> Any:
        return ir.VectorType(ir.IntType(self.bits), LANES * self.count)

    def _constant(self, value: int) -> Value:
        return ir.Constant(self._kind, [value & ((1 << self.bits) - 1)] * (LANES * self.count))

    def _place(self, base: Value) -> Value:
        return self.build_.inttoptr(self.build_.add(base, self.first), POINTER)

    def _load(self, base: Value) -> Value:
        return self.build_.load(self._place(base), typ=self._kind, align=self.variant.width)

    def _store(self, value: Value, base: Value) -> None:
        self.build_.store(value, self._place(base), align=self.variant.width)

    def _deal(self, whole: Value) -> None:
        """Give each lane its elements."""
        for element in range(self.count):
            part = whole
            if self.count > 1:
                chosen = ir.Constant(vector(32), [lane * self.count + element for lane in range(LANES)])
                part = self.build_.shuffle_vector(whole, ir.Constant(self._kind, ir.Undefined), chosen)
            self.build_.store(part, self.of.element(element), align=32)

    def _collected(self) -> Value:
        """The elements of all lanes in the order of memory."""
        kind = vector(self.bits)
        parts = [self.build_.load(self.of.element(number), typ=kind, align=32) for number in range(self.count)]
        while len(parts) > 1:
            half = len(parts) // 2
            parts = [self._interleaved(parts[number], parts[number + half]) for number in range(half)]
        return parts[0]

    def _interleaved(self, even: Value, odd: Value) -> Value:
        size = even.type.count
        order = [place // 2 + place % 2 * size for place in range(2 * size)]
        return self.build_.shuffle_vector(even, odd, ir.Constant(ir.VectorType(ir.IntType(32), 2 * size), order))

    # Races: record i is that of lane i

    def _records(self, column: Value, slot: Value) -> Value:
        """Where the records of a column lie."""
        return self.build_.inttoptr(self.build_.add(column, slot), POINTER)

    def _order_load(self, slot: Value) -> None:
        build, of = self.build_, self.of
        mine, used, reads = of.mine(), self._used(), of.own_reads(self.row)
        columns = build.load(used, typ=WORD)
        with build.if_then(build.trunc(columns, ir.IntType(1))):
            writes = build.load(self._records(field(build, self.row, Row.WRITES), slot), typ=vector(64), align=8)
            of.refuse_unordered(writes, mine, self.here)
        place = self._records(reads.column, slot)
        own = of.columns_of_loads(reads)
        first = build.icmp_unsigned("==", build.and_(columns, own), word(0))
        with build.if_else(first) as (nobody_read, somebody_read):
            with nobody_read:
                build.store(mine, place, align=8)
                build.store(build.or_(columns, own), used)
            with somebody_read:
                previous = build.load(place, typ=vector(64), align=8)
                elsewhere, record = of.reader(previous, mine)
                with build.if_then(build.and_(build.not_(reads.apart), of.any(elsewhere))):
                    other = self._records(reads.next, slot)
                    kept = build.load(other, typ=vector(64), align=8)
                    build.store(build.select(elsewhere, previous, kept), other, align=8)
                build.store(record, place, align=8)
        self._note_lines(Row.READ_STEPS)

    def _order_store(self, slot: Value) -> None:
        build, of = self.build_, self.of
        mine, used = of.mine(), self._used()
        columns = build.load(used, typ=WORD)
        place = self._records(field(build, self.row, Row.WRITES), slot)
        with build.if_then(build.trunc(columns, ir.IntType(1))):
            of.refuse_unordered(build.load(place, typ=vector(64), align=8), mine, self.here)
        reads, stride = field(build, self.row, Row.READS), field(build, self.row, Row.COLUMN_BYTES)
        somebody_read = build.icmp_unsigned("!=", build.lshr(columns, word(1)), word(0))
        with build.if_then(somebody_read), counted(build, field(build, self.row, Row.COLUMNS)) as column:
            in_use = build.and_(columns, column_bit(build, build.add(column, word(1))))
            with build.if_then(build.icmp_unsigned("!=", in_use, word(0))):
                held = self._records(build.add(reads, build.mul(column, stride)), slot)
                of.refuse_unordered(build.load(held, typ=vector(64), align=8), mine, self.here)
        build.store(mine, place, align=8)
        build.store(build.or_(columns, word(1)), used)
        self._note_lines(Row.WRITE_STEPS)

    def _used(self) -> Value:
        """Where the columns in use of the page are noted."""
        build = self.build_
        used = build.inttoptr(field(build, self.row, Row.PAGE_COLUMNS), POINTER)
        return build.gep(used, [build.lshr(self.first, word(PAGE_SHIFT))], source_etype=WORD)

    def _note_lines(self, steps: Row) -> None:
        """Where bulk copies look whole lines up: this warp accessed these lines now."""
        build, of = self.build_, self.of
        table = field(build, self.row, steps)
        with build.if_then(build.icmp_unsigned("!=", table, word(0))):
            own, columns = of.line_columns(self.row, steps)
            line = build.lshr(self.first, word(_LINE_SHIFT))
            last = build.lshr(build.add(self.first, word(LANES * self.variant.width - 1)), word(_LINE_SHIFT))
            with counted(build, build.add(build.sub(last, line), word(1))) as number:
                slot = build.add(build.mul(build.add(line, number), columns), own)
                place = at(build, build.inttoptr(table, POINTER), build.shl(slot, word(3)))
                build.store(field(build, of.context, Context.NOW), place)


def _lanes_times(factor: int) -> Value:
    """The number of each lane, times a factor."""
    return ir.Constant(vector(64), [lane * factor for lane in range(LANES)])
