"""What orders an access before those that touched its bytes, by the records of `refmoe.ptx.engine.races`."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from llvmlite import ir

from refmoe.native.expressions import I32, I64, Code
from refmoe.ptx.native.consecutive import BY_LANE, Reads, Spread
from refmoe.ptx.native.context import (
    Context,
    Row,
)
from refmoe.ptx.native.memory.lanes import AccessLanes, highest, lowest
from refmoe.ptx.native.scalar import (
    POINTER,
    WARP_MASK,
    WORD,
    at,
    column_bit,
    counted,
    field,
    leave_if,
    word,
)
from refmoe.ptx.ops.lanes import LANES, Value, vector
from refmoe.ptx.state import records
from refmoe.ptx.state.pages import PAGE, PAGE_SHIFT

# The bits of records, as Python integers.
_THREAD, _LANE, _SEVERAL = int(records.THREAD), int(records.LANE), int(records.SEVERAL)
_AGENTS = int(records.ASYNCHRONOUS | records.BULK)
_APART, _STEP_SHIFT = int(records.ASYNCHRONOUS | records.BULK | records.SEVERAL), records.STEP_SHIFT
_LANES_OF_A_WARP = int(records.Several.LANES) << records.SEVERAL_SHIFT
_LINE_SHIFT = 7


def ordering(module: Any, one: Any) -> Any:
    """`ordered(context, warp, granules, records, first, shift) -> granules` that are not ordered, see `is_ordered`.

    Whose the granules are is a `Spread`.
    """
    code = Code(module, "ordered", [POINTER, I64, I32, POINTER, I64, I64], inner=True, result=I32)
    context, warp, granules, held, first, shift = code.arguments
    unordered = code.variable(I32, 0)
    with code.each_bit(granules) as bit:
        number = bit.to(I64, signed=False)
        record = code.load(I64, held + number * 8, align=8)
        fine = code.call(one, context, (warp << 5) + ((number + first) >> shift), record)
        with code.when(fine ^ True):
            unordered.set(unordered.get() | (code.constant(I32, 1) << bit))
    code.done(unordered.get())
    return code.function


def displacing(module: Any, one: Any) -> Any:
    """`displace(context, warp, granules, others, previous, first, shift)`: `displaced`, into `others`.

    Whose the granules are is a `Spread`.
    """
    code = Code(module, "displace", [POINTER, I64, I32, POINTER, POINTER, I64, I64], inner=True)
    context, warp, granules, others, previous, first, shift = code.arguments
    with code.each_bit(granules) as bit:
        number = bit.to(I64, signed=False)
        place = others + number * 8
        last = code.load(I64, previous + number * 8, align=8)
        lane = (warp << 5) + ((number + first) >> shift)
        kept = code.call(one, context, lane, code.load(I64, place, align=8), last)
        code.store(kept, place, align=8)
    code.done()
    return code.function


def _alike(kind: Any, number: int) -> Value:
    """One number in each element of a vector of 64 bits."""
    return ir.Constant(kind, [number & ((1 << 64) - 1)] * kind.count)


@dataclass(frozen=True)
class Pages:
    """The pages of an access.

    Attributes:
        first: that of the lowest lane.
        several: whether there are others.
    """

    first: Value
    several: Value


class OrderedLanes(AccessLanes):
    """Lanes whose accesses are held against the records of their granules, which they then change."""

    #: The bits of a record that stands for several lanes of one warp.
    SEVERAL_LANES = _LANES_OF_A_WARP

    def _granules(self, row: Value, index: Value, here: Value) -> tuple[Value, Value, Value, Pages]:
        """(slot of the first granule of each lane, how many each access has, most of all, pages), see `Granules`."""
        build, lanes, own = self.build_, self.lanes, self.variant.width.bit_length()
        states = field(build, row, Row.PAGE_STATES)
        page = build.lshr(index, lanes.constant(PAGE_SHIFT, 64))
        first = build.extract_element(page, lowest(build, build.bitcast(here, WARP_MASK)))
        elsewhere = self.any(build.and_(build.icmp_unsigned("!=", page, self.splat(first)), here))
        with build.if_else(elsewhere, likely=False) as (several, one):
            with several:
                place = build.shl(page, lanes.constant(3, 64))
                held = self._gather(states, place, 64, here, otherwise=own)
                known = build.sub(held, lanes.constant(1, 64))
                self._each_page(row, page, build.icmp_unsigned(">=", known, lanes.constant(own, 64)), self.refine)
                # The others' have as many granules as one of these.
                held = self._gather(states, place, 64, here, otherwise=own)
                shifts = build.sub(held, lanes.constant(1, 64))
                fewest = self._least(shifts)
                end_of_several = build.block
            with one:
                slot = build.inttoptr(build.add(states, build.shl(first, word(3))), POINTER)
                known = build.sub(build.load(slot, typ=WORD), word(1))
                with build.if_then(build.icmp_unsigned(">=", known, word(own)), likely=False):
                    build.call(self.refine, [row, first])
                shift = build.sub(build.load(slot, typ=WORD), word(1))
                same = self.splat(shift)
                end_of_one = build.block
        vectors, scalar = build.phi(vector(64)), build.phi(WORD)
        for phi, values in ((vectors, (shifts, same)), (scalar, (fewest, shift))):
            for value, block in zip(values, (end_of_several, end_of_one), strict=True):
                phi.add_incoming(value, block)
        within = build.lshr(build.and_(index, lanes.constant(PAGE - 1, 64)), vectors)
        slots = build.or_(build.and_(index, lanes.constant(-PAGE, 64)), within)
        counts = build.lshr(lanes.constant(self.variant.width, 64), vectors)
        return slots, counts, build.lshr(word(self.variant.width), scalar), Pages(first, elsewhere)

    def _least(self, value: Value) -> Value:
        """The least of the lanes' values of 64 bits, without signs."""
        return self._reduced("umin", value)

    def _reduced(self, operation: str, value: Value) -> Value:
        """The lanes' values of 64 bits, made one by an operation."""
        name = f"llvm.vector.reduce.{operation}.v{LANES}i64"
        function = self.function.module.globals.get(name)
        if function is None:
            function = ir.Function(self.function.module, ir.FunctionType(WORD, [vector(64)]), name)
        return self.build_.call(function, [value])

    def _with(self, number: Value, counts: Value, here: Value) -> Value:
        """The lanes whose access has a granule of that number."""
        return self.build_.and_(here, self.build_.icmp_unsigned(">", counts, self.splat(number)))

    def mine(self, spread: Spread = BY_LANE) -> Value:
        """The record of an access now, or at any time where it is not coherent, by the lane of each element."""
        build = self.build_
        # Of `never` in `refmoe.ptx.engine.races`.
        step = word((records.PENDING << _STEP_SHIFT) | int(records.ASYNCHRONOUS))
        if self.variant.coherent:
            step = build.shl(field(build, self.context, Context.NOW), word(_STEP_SHIFT))
        return self._threads(build.add(step, field(build, self.context, Context.FIRST_THREAD)), spread)

    def refuse_unordered(self, previous: Value, mine: Value, here: Value, spread: Spread = BY_LANE) -> None:
        """Leave if a record of somebody else's access is not ordered before this one."""
        build, lanes = self.build_, self.lanes
        other = build.or_(self._has(build.xor(previous, mine), _THREAD), self._has(previous, _APART))
        some = build.icmp_unsigned("!=", previous, lanes.constant(0, 64))
        if not self.variant.coherent:
            leave_if(build, self.any(build.and_(some, here)), 1)
            return
        suspects = build.and_(build.and_(some, other), here)
        with build.if_then(self.any(suspects)), build.if_then(build.not_(self._knows_the_one(previous, suspects))):
            left = build.bitcast(build.and_(suspects, build.not_(self._known(previous, suspects, spread))), WARP_MASK)
            with build.if_then(build.icmp_unsigned("!=", left, ir.Constant(WARP_MASK, 0))):
                build.store(previous, self.records, align=32)
                arguments = [self.context, self.warp, left, self.records, spread.first, spread.shift]
                found = build.call(self.rules.ordered, arguments)
                leave_if(build, build.icmp_unsigned("!=", found, ir.Constant(WARP_MASK, 0)), 1)

    def _knows_the_one(self, record: Value, asked: Value) -> Value:
        """Whether all elements of `asked`, one at least, have one record, which `_known` would say is known.

        Mostly one copy, or one warp, wrote all that an access finds.
        """
        build = self.build_
        first = build.extract_element(record, lowest(build, build.bitcast(asked, WARP_MASK)))
        others = self.any(build.and_(build.icmp_unsigned("!=", record, self.splat(first)), asked))
        return build.and_(self.knows_one(first), build.not_(others))

    def knows_one(self, record: Value) -> Value:
        """Whether all lanes know what a record is of, as far as `_known` would say so. One record, 64 bits."""
        build = self.build_
        # Lanes with rows of their own know what the warp's row knows, and more.
        warps = field(build, self.context, Context.WARPS)
        own = build.add(self.warp, field(build, self.context, Context.FIRST_WARP))
        begin = build.shl(build.sub(own, build.urem(own, warps)), word(5))
        thread = build.sub(build.and_(record, word(_THREAD)), begin)
        inside = build.icmp_unsigned("<", thread, build.shl(warps, word(5)))
        kind = build.and_(record, word(_APART))
        column, fine = build.lshr(thread, word(5)), build.icmp_unsigned("==", kind, word(0))
        for flag, context, parts in self._kinds_apart():
            kept = build.icmp_unsigned("!=", field(build, self.context, context), word(0))
            such = build.and_(build.icmp_unsigned("==", kind, word(flag)), kept)
            column = build.select(such, build.add(thread, build.mul(warps, word(parts))), column)
            fine = build.or_(fine, such)
        fine = build.and_(inside, fine)
        place = build.add(build.mul(self.warp, field(build, self.context, Context.SEEN_COLUMNS)), column)
        seen = build.inttoptr(field(build, self.context, Context.SEEN), POINTER)
        place = build.select(fine, place, word(0))
        reached = build.load(build.gep(seen, [place], source_etype=WORD), typ=WORD)
        known = build.icmp_signed(">=", reached, build.lshr(record, word(_STEP_SHIFT)))
        return build.and_(fine, known)

    def same_to_warps(self, record: Value) -> Value:
        """The bits in which other records may differ from one, 64 bits, and `knows_one` says the same of all.

        A warp that is known is known with all of its lanes.
        """
        build = self.build_
        plain = build.icmp_unsigned("==", build.and_(record, word(_APART)), word(0))
        return build.select(plain, word(_LANE), word(0))

    @staticmethod
    def _kinds_apart() -> tuple[tuple[int, Context, int], ...]:
        """(flag of records, field that says whether they have columns, how many of a warp's lie in front of these)."""
        return (
            (int(records.ASYNCHRONOUS), Context.BY_LANE, 1 + LANES),
            (int(records.BULK), Context.BULK, 1 + 2 * LANES),
        )

    def _known(self, record: Value, asked: Value, spread: Spread) -> Value:
        """The elements of `asked` whose lanes know the whole warp of a record, the copies of its thread, or the barrier
        on which its bulk copy completes: the most common records, all at once. What `is_ordered` says of the others is
        not known here."""
        build, lanes = self.build_, self.lanes
        # A lane may have a row of its own.
        apart = build.inttoptr(field(build, self.context, Context.APART), POINTER)
        bits = build.load(build.gep(apart, [self.warp], source_etype=WORD), typ=WORD)
        theirs = self._threads(field(build, self.context, Context.ALL_WARPS), spread)
        if spread is BY_LANE:
            has_row = build.bitcast(build.trunc(bits, WARP_MASK), vector(1))
        else:
            has_row = self._has(build.lshr(self.splat(bits), self.of_lane(spread)), 1)
        row = build.select(has_row, theirs, self.splat(self.warp))
        # Threads of the own cluster, from 0 on: others are beyond its width.
        warps = field(build, self.context, Context.WARPS)
        own = build.add(self.warp, field(build, self.context, Context.FIRST_WARP))
        first = build.shl(build.sub(own, build.urem(own, warps)), word(5))
        thread = build.sub(build.and_(record, lanes.constant(_THREAD, 64)), self.splat(first))
        inside = build.icmp_unsigned("<", thread, self.splat(build.shl(warps, word(5))))
        kind = build.and_(record, lanes.constant(_APART, 64))
        # Columns are of the cluster's warps, its threads, their copies, and its agents.
        column = build.lshr(thread, lanes.constant(5, 64))
        fine = build.icmp_unsigned("==", kind, lanes.constant(0, 64))
        for flag, context, parts in self._kinds_apart():
            kept = build.icmp_unsigned("!=", field(build, self.context, context), word(0))
            such = build.icmp_unsigned("==", kind, lanes.constant(flag, 64))
            such = build.and_(such, build.bitcast(build.sext(kept, WARP_MASK), vector(1)))
            column = build.select(such, build.add(thread, self.splat(build.mul(warps, word(parts)))), column)
            fine = build.or_(fine, such)
        fine = build.and_(build.and_(asked, inside), fine)
        columns = self.splat(field(build, self.context, Context.SEEN_COLUMNS))
        place = build.shl(build.add(build.mul(row, columns), column), lanes.constant(3, 64))
        reached = self._gather(field(build, self.context, Context.SEEN), place, 64, fine)
        step = build.lshr(record, lanes.constant(_STEP_SHIFT, 64))
        return build.and_(fine, build.icmp_signed(">=", reached, step))

    def _order_load(self, row: Value, index: Value, here: Value) -> None:
        build, lanes = self.build_, self.lanes
        first, counts, most, pages = self._granules(row, index, here)
        mine = self.mine()
        writes, reads = field(build, row, Row.WRITES), self.own_reads(row)
        self._use_columns(row, index, here, self.columns_of_loads(reads), pages)
        with build.if_else(pages.several, likely=False) as (several, one):
            with several:
                self._note_steps(row, index, here, reads)
            with one:
                self.note_step(row, pages.first, reads)
        eight = lanes.constant(3, 64)
        with counted(build, most) as number:
            active = self._with(number, counts, here)
            slot = build.shl(build.add(first, self.splat(number)), eight)
            self.refuse_unordered(self._gather(writes, slot, 64, active), mine, active)
            previous = self._gather(reads.column, slot, 64, active)
            elsewhere, record = self.reader(row, previous, mine)
            elsewhere = build.and_(elsewhere, active)
            with build.if_then(build.and_(build.not_(reads.apart), self.any(elsewhere))):
                others = self._gather(reads.next, slot, 64, elsewhere)
                self._scatter(reads.next, slot, self.displaced(others, previous, elsewhere), elsewhere)
            self._scatter(reads.column, slot, record, active)
            differs = build.xor(self._gather(reads.column, slot, 64, active), record)
            lost = build.and_(self._has(differs, _LANE), active)
            with build.if_then(self.any(lost)):
                joined = build.or_(mine, lanes.constant(self.SEVERAL_LANES, 64))
                self._scatter(reads.column, slot, joined, lost)
        self.note_line(row, Row.READ_STEPS, index, here)

    def columns_of_loads(self, reads: Reads) -> Value:
        """The columns that loads of this warp write, a bit each."""
        build = self.build_
        # A first column of last reads, and a second one of other warps' reads.
        return build.select(reads.apart, column_bit(build, build.add(reads.number, word(1))), word(2 | 4))

    def _use_columns(self, row: Value, index: Value, here: Value, columns: Value, pages: Pages) -> Value:
        """Say that these pages have records in some columns. Returns those that any of them had, a bit each."""
        build = self.build_
        with build.if_else(pages.several, likely=False) as (several, one):
            with several:
                of_several = self._use_columns_of_several(row, index, here, columns)
                end_of_several = build.block
            with one:
                used = build.inttoptr(field(build, row, Row.PAGE_COLUMNS), POINTER)
                place = build.gep(used, [pages.first], source_etype=WORD)
                held = build.load(place, typ=WORD)
                build.store(build.or_(held, columns), place)
                end_of_one = build.block
        found = build.phi(WORD)
        found.add_incoming(of_several, end_of_several)
        found.add_incoming(held, end_of_one)
        return found

    def _use_columns_of_several(self, row: Value, index: Value, here: Value, columns: Value) -> Value:
        build, lanes = self.build_, self.lanes
        used = field(build, row, Row.PAGE_COLUMNS)
        place = build.shl(build.lshr(index, lanes.constant(PAGE_SHIFT, 64)), lanes.constant(3, 64))
        held = self._gather(used, place, 64, here, otherwise=-1)
        more = build.or_(held, self.splat(columns))
        with build.if_then(self.any(build.icmp_unsigned("!=", held, more)), likely=False):
            self._scatter(used, place, more, here)
        nothing = lanes.constant(0, 64)
        return self._reduced("or", build.select(here, held, nothing))

    def _note_steps(self, row: Value, index: Value, here: Value, reads: Reads) -> None:
        """`note_step`, for the pages of all lanes."""
        build, lanes = self.build_, self.lanes
        with build.if_then(reads.apart):
            page = build.lshr(index, lanes.constant(PAGE_SHIFT, 64))
            place = build.add(build.mul(page, self.splat(field(build, row, Row.COLUMNS))), self.splat(reads.number))
            place, steps = build.shl(place, lanes.constant(3, 64)), field(build, row, Row.PAGE_STEPS)
            old = self._gather(steps, place, 64, here, otherwise=records.UNKNOWN_STEP)
            mine = self.splat(self._step())
            later = build.icmp_signed(">", mine, old)
            with build.if_then(self.any(later)):
                self._scatter(steps, place, mine, later)

    def note_step(self, row: Value, page: Value, reads: Reads) -> None:
        """Enter this as the last step of the reads of this warp in a page, if they are kept apart."""
        build = self.build_
        with build.if_then(reads.apart):
            steps = build.inttoptr(field(build, row, Row.PAGE_STEPS), POINTER)
            place = build.add(build.mul(page, field(build, row, Row.COLUMNS)), reads.number)
            place, mine = build.gep(steps, [place], source_etype=WORD), self._step()
            old = build.load(place, typ=WORD)
            # What is not known stays so: the column may have a record of a copy's read, or of another warp's.
            build.store(build.select(build.icmp_signed(">", mine, old), mine, old), place)

    def _step(self) -> Value:
        """What a lane has to know of this warp, so that these reads come before what it does."""
        if not self.variant.coherent:
            return word(records.UNKNOWN_STEP)
        return field(self.build_, self.context, Context.NOW)

    def knows_reads(self, row: Value, page: Value, column: Value) -> Value:
        """Whether all reads of a column in a page come before what this warp does, as far as that is known of pages."""
        build = self.build_
        # Columns of warps come first.
        by_warp = build.icmp_unsigned("<", column, field(build, row, Row.READERS))
        seen = build.inttoptr(field(build, self.context, Context.SEEN), POINTER)
        # Lanes with rows of their own know what the warp's row knows, and more.
        own = build.select(by_warp, column, word(0))
        place = build.add(build.mul(self.warp, field(build, self.context, Context.SEEN_COLUMNS)), own)
        known = build.load(build.gep(seen, [place], source_etype=WORD), typ=WORD)
        steps = build.inttoptr(field(build, row, Row.PAGE_STEPS), POINTER)
        place = build.add(build.mul(page, field(build, row, Row.COLUMNS)), column)
        last = build.load(build.gep(steps, [place], source_etype=WORD), typ=WORD)
        return build.and_(by_warp, build.icmp_signed(">=", known, last))

    def own_reads(self, row: Value) -> Reads:
        """Where the reads of this warp are recorded."""
        build = self.build_
        reads, column_bytes = field(build, row, Row.READS), field(build, row, Row.COLUMN_BYTES)
        apart = build.icmp_unsigned("!=", field(build, row, Row.READERS), word(0))
        own = build.urem(self.warp, field(build, self.context, Context.WARPS))
        column = build.add(reads, build.mul(build.select(apart, own, word(0)), column_bytes))
        return Reads(apart, own, column, build.add(column, column_bytes))

    def _has(self, value: Value, bits: int) -> Value:
        build = self.build_
        return build.icmp_unsigned("!=", build.and_(value, _alike(value.type, bits)), _alike(value.type, 0))

    def is_strange(self, previous: Value, mine: Value, met: Value) -> Value:
        """Whether records are of somebody else's reads, or of those of other lanes since this warp met at step `met`.

        Vectors of 64 bits, of any length.
        """
        build = self.build_
        differs = build.xor(previous, mine)
        # Mostly nobody but this warp read here, before it met: any of its lanes stands for all of them.
        strange = build.and_(self._has(differs, _LANE | _SEVERAL), self._is_later(previous, met))
        strange = build.or_(strange, self._has(differs, _THREAD & ~_LANE | _AGENTS))
        return build.and_(strange, self._has(previous, -1))

    def is_strange_to_several(self, previous: Value, mine: Value, met: Value) -> Value:
        """The same for several lanes of this warp at each place, of which `mine` is a record of any one."""
        build = self.build_
        others = self._has(build.xor(previous, mine), _THREAD & ~_LANE | _AGENTS)
        return build.and_(build.or_(others, self._is_later(previous, met)), self._has(previous, -1))

    def _is_later(self, record: Value, step: Value) -> Value:
        build = self.build_
        return build.icmp_signed(">", build.lshr(record, _alike(record.type, _STEP_SHIFT)), step)

    def reader(self, row: Value, previous: Value, mine: Value, spread: Spread = BY_LANE) -> tuple[Value, Value]:
        """(the lanes before whom a lane of another warp, or a copy, read; the record of their read)."""
        build = self.build_
        strange = self.is_strange(previous, mine, self.splat(self.met()))
        with build.if_else(self.any(strange), likely=False) as (somebody, nobody):
            with somebody:
                found = self._reader_of_others(row, previous, mine, spread)
                end_of_somebody = build.block
            with nobody:
                end_of_nobody = build.block
        elsewhere, record = build.phi(vector(1)), build.phi(vector(64))
        for phi, one, other in ((elsewhere, found[0], self.lanes.constant(0, 1)), (record, found[1], mine)):
            phi.add_incoming(one, end_of_somebody)
            phi.add_incoming(other, end_of_nobody)
        return elsewhere, record

    def met(self) -> Value:
        """The step of the last meeting of this warp."""
        build = self.build_
        own = build.urem(self.warp, field(build, self.context, Context.WARPS))
        seen = build.inttoptr(field(build, self.context, Context.SEEN), POINTER)
        place = build.add(build.mul(self.warp, field(build, self.context, Context.SEEN_COLUMNS)), own)
        return build.load(build.gep(seen, [place], source_etype=WORD), typ=WORD)

    def _reader_of_others(self, row: Value, previous: Value, mine: Value, spread: Spread) -> tuple[Value, Value]:
        """`reader`, whoever read before."""
        build, lanes, known = self.build_, self.lanes, self.splat(self.met())
        differs = build.xor(previous, mine)
        # The number of an agent is no lane's, and what a copy reads comes before nothing that its lane does.
        agent = build.and_(self._has(previous, _AGENTS), self._has(differs, _THREAD | _AGENTS))
        apart = build.icmp_unsigned("!=", field(build, row, Row.READERS), word(0))
        leave_if(build, build.and_(apart, self.any(agent)), 1)
        elsewhere = build.or_(self._has(differs, _THREAD & ~_LANE), agent)
        # Another lane of the same warp read since the last warp-level sync: no single lane stands for both.
        later = build.icmp_signed(">", build.lshr(previous, lanes.constant(_STEP_SHIFT, 64)), known)
        together = build.and_(build.and_(later, build.not_(elsewhere)), self._has(differs, _LANE | _SEVERAL))
        together = build.bitcast(build.and_(together, self._has(previous, -1)), WARP_MASK)
        by_lane = build.icmp_unsigned("!=", field(build, self.context, Context.BY_LANE), word(0))
        some = build.icmp_unsigned("!=", together, ir.Constant(WARP_MASK, 0))
        with build.if_else(build.and_(by_lane, some), likely=False) as (then, otherwise):
            with then:
                # Where lanes synchronise by themselves one may well come after the other.
                build.store(previous, self.records, align=32)
                arguments = [self.context, self.warp, together, self.records, spread.first, spread.shift]
                apart = build.call(self.rules.ordered, arguments)
                end_of_then = build.block
            with otherwise:
                end_of_otherwise = build.block
        left = build.phi(WARP_MASK)
        left.add_incoming(apart, end_of_then)
        left.add_incoming(together, end_of_otherwise)
        together = build.bitcast(left, vector(1))
        record = build.select(together, build.or_(mine, lanes.constant(self.SEVERAL_LANES, 64)), mine)
        return build.and_(elsewhere, self._has(previous, -1)), record

    def displaced(self, others: Value, previous: Value, elsewhere: Value, spread: Spread = BY_LANE) -> Value:
        """The records of the readers but the last one of each granule, of which `previous` was one."""
        build = self.build_
        somebody = build.bitcast(build.and_(elsewhere, self._has(others, -1)), WARP_MASK)
        kept = build.select(self._has(others, -1), others, previous)
        build.store(kept, self.others, align=32)
        with build.if_then(build.icmp_unsigned("!=", somebody, ir.Constant(WARP_MASK, 0))):
            build.store(previous, self.records, align=32)
            arguments = [self.context, self.warp, somebody, self.others, self.records, spread.first, spread.shift]
            build.call(self.rules.displace, arguments)
        return build.load(self.others, typ=vector(64), align=32)

    def _order_store(self, row: Value, index: Value, here: Value) -> None:
        build, lanes = self.build_, self.lanes
        first, counts, most, pages = self._granules(row, index, here)
        mine = self.mine()
        writes, reads = field(build, row, Row.WRITES), field(build, row, Row.READS)
        columns, column_bytes = field(build, row, Row.COLUMNS), field(build, row, Row.COLUMN_BYTES)
        used = self._use_columns(row, index, here, word(1), pages)
        somebody_read = build.icmp_unsigned("!=", build.lshr(used, word(1)), word(0))
        eight = lanes.constant(3, 64)
        with counted(build, most) as number:
            active = self._with(number, counts, here)
            slot = build.shl(build.add(first, self.splat(number)), eight)
            self.refuse_unordered(self._gather(writes, slot, 64, active), mine, active)
            with build.if_then(somebody_read), counted(build, columns) as column:
                in_use = build.and_(used, column_bit(build, build.add(column, word(1))))
                known = self.knows_reads(row, pages.first, column)
                known = build.and_(known, build.not_(pages.several))
                with build.if_then(build.and_(build.icmp_unsigned("!=", in_use, word(0)), build.not_(known))):
                    begin = build.add(reads, build.mul(column, column_bytes))
                    self.refuse_unordered(self._gather(begin, slot, 64, active), mine, active)
        with counted(build, most) as number:
            slot = build.shl(build.add(first, self.splat(number)), eight)
            self._scatter(writes, slot, mine, self._with(number, counts, here))
        self.note_line(row, Row.WRITE_STEPS, index, here)

    def note_line(self, row: Value, steps: Row, index: Value, here: Value) -> None:
        """Where bulk copies look whole lines up: this warp accessed these lines now."""
        build, lanes = self.build_, self.lanes
        table = field(build, row, steps)
        with build.if_then(build.icmp_unsigned("!=", table, word(0))):
            own, columns = self.line_columns(row, steps)
            lines = build.lshr(index, lanes.constant(_LINE_SHIFT, 64))
            mask, now = build.bitcast(here, WARP_MASK), field(build, self.context, Context.NOW)
            # The lines of the first lane and of the last one: mostly there are no others.
            others = here
            for lane in (lowest(build, mask), highest(build, mask)):
                line = build.extract_element(lines, lane)
                place = build.shl(build.add(build.mul(line, columns), own), word(3))
                build.store(now, at(build, build.inttoptr(table, POINTER), place))
                others = build.and_(others, build.icmp_unsigned("!=", lines, self.splat(line)))
            with build.if_then(self.any(others)):
                line = build.mul(lines, self.splat(columns))
                slot = build.shl(build.add(line, self.splat(own)), lanes.constant(3, 64))
                self._scatter(table, slot, self.splat(now), others)

    def line_columns(self, row: Value, steps: Row) -> tuple[Value, Value]:
        """(column of this warp in a table of lines, columns of that table)."""
        build = self.build_
        warps = field(build, self.context, Context.WARPS)
        columns = field(build, row, Row.READ_STEP_COLUMNS) if steps is Row.READ_STEPS else warps
        return build.urem(self.warp, warps), columns
