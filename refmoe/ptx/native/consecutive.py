"""Accesses of whole warps to places at equal distances: the most common ones, which need no gathers.

        lane    0      1      2           31
    memory   |width |width |width | ... |width |      in one page, whose granules are as wide as the access, or finer

The rules are those of `refmoe.ptx.native.memory`; here lane i has the element i of each vector that lies in memory, of
data, of their validity and of their records. Of a page with finer granules a lane has several records that follow each
other, and vectors of 32 records are looked at one after another:

        lane    0   0   0   0   1   1   1   1       7       8   8   8   8   9
    records   | 0 | 1 | 2 | 3 | 4 | 5 | 6 | 7 | ... | 31 | | 0 | 1 | 2 | 3 | ...      words in a page of single bytes

At other distances (two loads of 16 bytes by each lane, or all lanes at one place) this loads where there is nothing to
look up: from buffers that nobody writes.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from llvmlite import ir

from refmoe.native.compiler import has_feature
from refmoe.ptx.native.context import Context, Row
from refmoe.ptx.native.scalar import POINTER, WARP_MASK, WORD, at, column_bit, counted, field, leave_if, word
from refmoe.ptx.ops.lanes import LANES, vector
from refmoe.ptx.state.pages import PAGE, PAGE_SHIFT

Value = Any
_RECORD_SHIFT = 3
_LINE_SHIFT = 7
_LANES_SHIFT = 5
_CACHE_LINE = 64
_PREFETCH, _KEPT_NEAR, _DATA = "llvm.prefetch.p0", 3, 1


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


@dataclass(frozen=True)
class Spread:
    """Whose the elements of a vector are: element i is of lane `first + i >> shift` of the warp.

    Attributes:
        first: 64 bits, elements of this warp in front of the vector.
        shift: 64 bits, binary logarithm of how many each lane has.
    """

    first: Value
    shift: Value


#: Each lane has one.
BY_LANE = Spread(word(0), word(0))


@dataclass(frozen=True)
class Records:
    """32 records that follow each other, in each column.

    Attributes:
        slot: bytes in front of them.
        here: those of lanes that act.
        spread: whose they are.
    """

    slot: Value
    here: Value
    spread: Spread


class AccessKind(Protocol):
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
        function: of the variant, whose arguments are `context`, the warp, `mask`, `addresses` and the values.
        context: address of the tables, see `Context`.
        mask: the acting lanes, a bit each.
        addresses: where the addresses of all lanes lie.
        state: where the state of the page of an access is kept.
        refine, keep: functions of `refmoe.ptx.native.pages`.
    """

    build_: Any
    function: Any
    context: Value
    mask: Value
    addresses: Value
    state: Value
    refine: Any
    keep: Any

    @property
    def variant(self) -> AccessKind:
        """What is accessed."""
        ...

    def row(self, address: Value) -> Value:
        """The row of the region that an address lies in; leaves if there is none."""
        ...

    def base(self, row: Value) -> Value:
        """The address of a region's first byte in the space of the access."""
        ...

    def of_cta(self, row: Value) -> Value:
        """Where the CTA's shared memory begins in the data, if that is what the row is of; else 0."""
        ...

    def finish(self) -> None:
        """Return, after an access."""
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

    def mine(self, spread: Spread = BY_LANE) -> Value:
        """The record of an access now, by the lane of each element."""
        ...

    def refuse_unordered(self, previous: Value, mine: Value, here: Value, spread: Spread = BY_LANE) -> None:
        """Leave if a record of somebody else's access is not ordered before this one."""
        ...

    def columns_of_loads(self, reads: Reads) -> Value:
        """The columns that loads of this warp write, a bit each."""
        ...

    def note_step(self, row: Value, page: Value, reads: Reads) -> None:
        """Enter this as the last step of the reads of this warp in a page, if they are kept apart."""
        ...

    def knows_reads(self, row: Value, page: Value, column: Value) -> Value:
        """Whether all reads of a column in a page come before what this warp does, as far as that is known of pages."""
        ...

    def own_reads(self, row: Value) -> Reads:
        """Where the reads of this warp are recorded."""
        ...

    def reader(self, row: Value, previous: Value, mine: Value, spread: Spread = BY_LANE) -> tuple[Value, Value]:
        """(the lanes before whom a lane of another warp, or a copy, read; the record of their read)."""
        ...

    def displaced(self, others: Value, previous: Value, elsewhere: Value, spread: Spread = BY_LANE) -> Value:
        """The records of the readers but the last one of each granule, of which `previous` was one."""
        ...

    def line_columns(self, row: Value, steps: Row) -> tuple[Value, Value]:
        """(column of this warp in a table of lines, columns of that table)."""
        ...


class Consecutive:
    """The code for one variant; `of` has what it shares with the code for scattered places."""

    def __init__(self, of: Whole) -> None:
        self.of = of
        self.build_, self.variant = of.build_, of.variant
        self.bits, self.count = of.variant.size * 8, of.variant.count
        # Some first lanes may act, where vectors can be loaded and stored in part; else all must.
        self.in_part = has_feature("avx512bw")
        self.here = ir.Constant(vector(1), [1] * LANES)
        self.acting = word(LANES)

    @property
    def _all_bytes(self) -> int:
        """What 32 lanes access."""
        return LANES * self.variant.width

    def build(self, anywhere: Any) -> None:
        """Do the access if it is of this kind; else call `anywhere`, with the same arguments, which does any."""
        build, of, own = self.build_, self.of, self.variant.width.bit_length()
        with build.if_then(self._is_regular()):
            self.row = of.row(self._address)
            if not self.variant.stores:
                apart = build.icmp_unsigned("!=", self._distance, word(self.variant.width))
                with build.if_then(build.and_(apart, self._is_only_read())):
                    self._load_apart()
                    of.finish()
            with build.if_then(self._lies_in_one_page()):
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
                self._do(page, watched)
                of.finish()
        build.ret(build.call(anywhere, of.function.args))

    def _is_regular(self) -> Value:
        """Whether the lanes that act are the first ones, each as far from the lane before as the others."""
        build, of = self.build_, self.of
        whole = build.icmp_unsigned("==", of.mask, ir.Constant(WARP_MASK, 0xFFFFFFFF))
        if self.in_part:
            following = build.add(of.mask, ir.Constant(WARP_MASK, 1))
            first_ones = build.icmp_unsigned("==", build.and_(of.mask, following), ir.Constant(WARP_MASK, 0))
            whole = build.and_(first_ones, build.trunc(of.mask, ir.IntType(1)))
            self.here = build.bitcast(of.mask, vector(1))
            self.acting = build.zext(build.ctpop(of.mask), WORD)
        addresses = build.load(of.addresses, typ=vector(64), align=32)
        self._address, second = (build.extract_element(addresses, ir.Constant(WARP_MASK, each)) for each in (0, 1))
        self._distance = word(self.variant.width)
        expected = _lanes_times(self.variant.width)
        if not self.variant.stores:
            alone = build.icmp_unsigned("==", of.mask, ir.Constant(WARP_MASK, 1))
            self._distance = build.select(alone, self._distance, build.sub(second, self._address))
            expected = build.mul(of.splat(self._distance), _lanes_times(1))
        differs = build.icmp_unsigned("!=", addresses, build.add(of.splat(self._address), expected))
        return build.and_(whole, build.not_(of.any(build.and_(differs, self.here))))

    def _is_only_read(self) -> Value:
        """Whether all lies inside a region, aligned, of whose bytes nothing has to be known: all are initialised, and
        nobody looks for races."""
        build, of, row, width = self.build_, self.of, self.row, self.variant.width
        size, offset = field(build, row, Row.SIZE), build.sub(self._address, of.base(row))
        span = build.add(build.mul(self._distance, build.sub(self.acting, word(1))), word(width))
        fine = build.icmp_unsigned("<=", self._distance, word(PAGE))
        fine = build.and_(fine, build.icmp_unsigned(">=", size, span))
        fine = build.and_(fine, build.icmp_unsigned("<=", offset, build.sub(size, span)))
        low = build.and_(build.or_(offset, self._distance), word(width - 1))
        known = build.or_(field(build, row, Row.WRITES), field(build, row, Row.VALID))
        nothing = build.or_(build.or_(known, field(build, row, Row.STRIDE)), low)
        self.first = build.add(offset, of.of_cta(row))
        return build.and_(fine, build.icmp_unsigned("==", nothing, word(0)))

    def _load_apart(self) -> None:
        """Load each lane's elements, and give each vector its own; lanes that do not act get those of the last one."""
        build = self.build_
        begin = build.add(field(build, self.row, Row.DATA), self.first)
        # Two loads of 16 bytes by each lane lie in the same lines: the first one asks for all of them.
        self._expect(build.add(begin, build.mul(self._distance, word(LANES))), 2 * self._all_bytes)
        if not self.in_part:
            self._deal_apart(begin, whole=True)
            return
        everyone = build.icmp_unsigned("==", self.acting, word(LANES))
        with build.if_else(everyone) as (whole, first_ones):
            with whole:
                self._deal_apart(begin, whole=True)
            with first_ones:
                self._deal_apart(begin, whole=False)

    def _deal_apart(self, begin: Value, *, whole: bool) -> None:
        """`_load_apart` from an address, for a whole warp or its first lanes."""
        build, last = self.build_, self.build_.sub(self.acting, word(1))
        kind = ir.VectorType(ir.IntType(self.bits), self.count)
        parts, place = [], begin
        for lane in range(LANES):
            if lane:
                after = build.add(place, self._distance)
                place = after if whole else build.select(build.icmp_unsigned(">", word(lane), last), place, after)
            parts.append(build.load(build.inttoptr(place, POINTER), typ=kind, align=self.variant.width))
        if self.count == 4 and self.bits == 32:
            self._deal_words(parts)
            return
        while len(parts) > 1:
            parts = [self._joined(*parts[number : number + 2]) for number in range(0, len(parts), 2)]
        self._deal(parts[0])

    def _deal_words(self, parts: Sequence[Value]) -> None:
        """Four words of each lane as four vectors, by transposing squares of 4 x 4 words.

            of 16 lanes   row k:  | k   | k+4 | k+8 | k+12 |      four words of each
            1. words of rows 0 and 1, and of 2 and 3, by turns    2. pairs of words of these by turns

        An instruction does a step of four squares: their words stay in the same 128 bits.
        """
        halves = []
        for first in range(0, LANES, 16):
            rows = []
            for row in range(first, first + 4):
                left, right = self._joined(parts[row], parts[row + 4]), self._joined(parts[row + 8], parts[row + 12])
                rows.append(self._joined(left, right))
            low, high = (
                [self._by_turns(rows[number], rows[number + 1], begin, 1) for number in (0, 2)] for begin in (0, 2)
            )
            halves.append([self._by_turns(one, other, begin, 2) for one, other in (low, high) for begin in (0, 2)])
        for element, (one, other) in enumerate(zip(*halves, strict=True)):
            self.build_.store(self._joined(one, other), self.of.element(element), align=32)

    def _by_turns(self, one: Value, other: Value, begin: int, words: int) -> Value:
        """Of each 128 bits two words from word `begin` on: `words` of the one vector, as many of the other."""
        size, order = one.type.count, []
        for square in range(0, size, 4):
            for place in range(square + begin, square + begin + 2, words):
                for source in (0, size):
                    order += [source + each for each in range(place, place + words)]
        return self.build_.shuffle_vector(one, other, ir.Constant(ir.VectorType(ir.IntType(32), size), order))

    def _joined(self, one: Value, other: Value) -> Value:
        """Two vectors, one behind the other."""
        size = 2 * one.type.count
        order = ir.Constant(ir.VectorType(ir.IntType(32), size), list(range(size)))
        return self.build_.shuffle_vector(one, other, order)

    def _lies_in_one_page(self) -> Value:
        """Whether all lies inside the region of the first lane, aligned, in one page, and may be accessed here."""
        build, of, row, width = self.build_, self.of, self.row, self.variant.width
        size, offset = field(build, row, Row.SIZE), build.sub(self._address, of.base(row))
        all_bytes = build.mul(self.acting, word(width))
        fine = build.icmp_unsigned("==", self._distance, word(width))
        fine = build.and_(fine, build.icmp_unsigned(">=", size, all_bytes))
        fine = build.and_(fine, build.icmp_unsigned("<=", offset, build.sub(size, all_bytes)))
        # Local memory: neighbouring lanes have different bytes of it.
        fine = build.and_(fine, build.icmp_unsigned("==", field(build, row, Row.STRIDE), word(0)))
        fine = build.and_(fine, build.icmp_unsigned("==", build.and_(offset, word(width - 1)), word(0)))
        self.first = build.add(offset, of.of_cta(row))
        within = build.and_(self.first, word(PAGE - 1))
        fine = build.and_(fine, build.icmp_unsigned("<=", within, build.sub(word(PAGE), all_bytes)))
        if self.variant.stores:
            return build.and_(fine, build.icmp_unsigned("!=", field(build, row, Row.WRITABLE), word(0)))
        return build.and_(fine, build.icmp_unsigned("==", field(build, row, Row.POISONED), word(0)))

    def _do(self, page: Value, watched: Value) -> None:
        build, of = self.build_, self.of
        valid = field(build, self.row, Row.VALID)
        has_valid = build.icmp_unsigned("!=", valid, word(0))
        if not self.variant.stores:
            wanted = build.icmp_unsigned("!=", field(build, of.context, Context.REFUSE_UNWRITTEN), word(0))
            with build.if_then(build.and_(has_valid, wanted)):
                missing = build.icmp_unsigned("!=", self._load(valid, otherwise=-1), self._constant(-1))
                kind = ir.IntType(LANES * self.count)
                leave_if(build, build.icmp_unsigned("!=", build.bitcast(missing, kind), ir.Constant(kind, 0)), 1)
        with build.if_then(watched):
            self._order()
        data, next_warp = field(build, self.row, Row.DATA), build.add(self.first, word(self._all_bytes))
        if not self.variant.stores:
            self._expect(build.add(data, next_warp), self._all_bytes)
            self._deal(self._load(data))
            return
        self._expect(build.add(data, next_warp), self._all_bytes)
        kept = field(build, self.row, Row.KEPT)
        with build.if_then(build.icmp_unsigned("!=", kept, word(0))):
            held = build.load(build.inttoptr(build.add(kept, build.shl(page, word(3))), POINTER), typ=WORD)
            with build.if_then(build.icmp_unsigned("==", held, word(0)), likely=False):
                build.call(of.keep, [self.row, page])
        self._store(self._collected(), data)
        with build.if_then(has_valid):
            self._expect(build.add(valid, next_warp), self._all_bytes)
            self._store(self._constant(-1), valid)

    # Data: elements of all lanes as they lie in memory

    @property
    def _kind(self) -> Any:
        return ir.VectorType(ir.IntType(self.bits), LANES * self.count)

    def _constant(self, value: int) -> Value:
        return ir.Constant(self._kind, [value & ((1 << self.bits) - 1)] * (LANES * self.count))

    def _place(self, base: Value) -> Value:
        return self.build_.inttoptr(self.build_.add(base, self.first), POINTER)

    def _load(self, base: Value, otherwise: int = 0) -> Value:
        """What lies there, `otherwise` for lanes that do not act."""
        return self._loaded(self._place(base), self._kind, self.variant.width, otherwise)

    def _store(self, value: Value, base: Value) -> None:
        self._stored(value, self._place(base), self.variant.width)

    def _loaded(self, place: Value, kind: Any, align: int, otherwise: int = 0, here: Value = None) -> Value:
        if not self.in_part:
            return self.build_.load(place, typ=kind, align=align)
        bits = kind.element.width
        rest = ir.Constant(kind, [otherwise & ((1 << bits) - 1)] * kind.count)
        function = self._masked("load", kind, [POINTER, WARP_MASK, _mask_of(kind), kind], kind)
        some = self._some(kind) if here is None else here
        return self.build_.call(function, [place, ir.Constant(WARP_MASK, align), some, rest])

    def _stored(self, value: Value, place: Value, align: int, here: Value = None) -> None:
        if not self.in_part:
            self.build_.store(value, place, align=align)
            return
        kind = value.type
        function = self._masked("store", kind, [kind, POINTER, WARP_MASK, _mask_of(kind)], ir.VoidType())
        some = self._some(kind) if here is None else here
        self.build_.call(function, [value, place, ir.Constant(WARP_MASK, align), some])

    def _masked(self, verb: str, kind: Any, arguments: list[Any], result: Any) -> Any:
        module, name = self.of.function.module, f"llvm.masked.{verb}.v{kind.count}i{kind.element.width}.p0"
        held = module.globals.get(name)
        return ir.Function(module, ir.FunctionType(result, arguments), name) if held is None else held

    def _some(self, kind: Any) -> Value:
        """The elements of a vector that belong to lanes that act: each has as many."""
        if kind.count == LANES:
            return self.here
        build, narrow = self.build_, ir.IntType(16)
        numbers = ir.VectorType(narrow, kind.count)
        end = build.trunc(build.mul(self.acting, word(kind.count // LANES)), narrow)
        one = build.insert_element(ir.Constant(numbers, ir.Undefined), end, ir.Constant(WARP_MASK, 0))
        everywhere = ir.Constant(ir.VectorType(ir.IntType(32), kind.count), [0] * kind.count)
        ends = build.shuffle_vector(one, ir.Constant(numbers, ir.Undefined), everywhere)
        return build.icmp_unsigned("<", ir.Constant(numbers, list(range(kind.count))), ends)

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

    def _expect(self, place: Value, size: int) -> None:
        """Ask for bytes that the next warp is likely to want: neighbouring warps mostly access neighbouring memory.

        A warp is over before the processor sees a stream in its accesses. Nothing happens where there is no memory.
        """
        build, module, number = self.build_, self.of.function.module, ir.IntType(32)
        function = module.globals.get(_PREFETCH)
        if function is None:
            function = ir.Function(module, ir.FunctionType(ir.VoidType(), [POINTER, number, number, number]), _PREFETCH)
        how = [ir.Constant(number, each) for each in (int(self.variant.stores), _KEPT_NEAR, _DATA)]
        for begin in range(0, size, _CACHE_LINE):
            build.call(function, [build.inttoptr(build.add(place, word(begin)), POINTER), *how])

    # Races

    def _records(self, column: Value, slot: Value) -> Value:
        """Where the records of a column lie."""
        return self.build_.inttoptr(self.build_.add(column, slot), POINTER)

    def _order(self) -> None:
        """Hold the accesses against the records of their granules, which they change."""
        build, own = self.build_, self.variant.width.bit_length()
        state = build.load(self.of.state, typ=WORD)
        within = build.lshr(build.and_(self.first, word(PAGE - 1)), build.sub(state, word(1)))
        slot = build.shl(build.or_(build.and_(self.first, word(-PAGE)), within), word(_RECORD_SHIFT))
        used = self._used()
        columns = build.load(used, typ=WORD)
        reads = self.of.own_reads(self.row)
        own_columns = word(1) if self.variant.stores else self.of.columns_of_loads(reads)
        # Before anything is written there: what is refused halfway has left records behind.
        build.store(build.or_(columns, own_columns), used)
        order = self._order_store if self.variant.stores else self._order_load
        with build.if_else(build.icmp_unsigned("==", state, word(own)), likely=True) as (alike, finer):
            with alike:
                if self.variant.stores:
                    behind = build.add(slot, word(LANES << _RECORD_SHIFT))
                    self._expect(build.add(field(build, self.row, Row.WRITES), behind), LANES << _RECORD_SHIFT)
                order(Records(slot, self.here, BY_LANE), columns)
            with finer:
                self._order_parts(slot, build.sub(word(own), state), columns)
        if self.variant.stores:
            self._note_lines(Row.WRITE_STEPS)
            return
        self.of.note_step(self.row, build.lshr(self.first, word(PAGE_SHIFT)), reads)
        self._note_lines(Row.READ_STEPS)

    def _order_parts(self, slot: Value, shift: Value, columns: Value) -> None:
        """`_order` where each lane has 2^shift granules."""
        build = self.build_
        every = build.shl(self.acting, shift)
        vectors = build.lshr(build.add(every, word(LANES - 1)), word(_LANES_SHIFT))
        steps = (self._refuse_store, self._enter_store) if self.variant.stores else (self._order_load,)
        # Whoever is refused has changed no record: a store looks at all of them first.
        for step in steps:
            with counted(build, vectors) as number:
                first = build.shl(number, word(_LANES_SHIFT))
                element = build.add(self.of.splat(first), _lanes_times(1))
                here = build.icmp_unsigned("<", element, self.of.splat(every))
                place = build.add(slot, build.shl(first, word(_RECORD_SHIFT)))
                step(Records(place, here, Spread(first, shift)), columns)

    def _order_load(self, held: Records, columns: Value) -> None:
        build, of = self.build_, self.of
        mine, reads = of.mine(held.spread), of.own_reads(self.row)
        with build.if_then(build.trunc(columns, ir.IntType(1))):
            writes = self._held(field(build, self.row, Row.WRITES), held)
            of.refuse_unordered(writes, mine, held.here, held.spread)
        first = build.icmp_unsigned("==", build.and_(columns, of.columns_of_loads(reads)), word(0))
        with build.if_else(first) as (nobody_read, somebody_read):
            with nobody_read:
                self._enter(mine, reads.column, held)
            with somebody_read:
                previous = self._held(reads.column, held)
                elsewhere, record = of.reader(self.row, previous, mine, held.spread)
                with build.if_then(build.and_(build.not_(reads.apart), of.any(elsewhere))):
                    kept = self._held(reads.next, held)
                    others = of.displaced(kept, previous, elsewhere, held.spread)
                    self._enter(build.select(elsewhere, others, kept), reads.next, held)
                self._enter(record, reads.column, held)

    def _order_store(self, held: Records, columns: Value) -> None:
        self._refuse_store(held, columns)
        self._enter_store(held, columns)

    def _refuse_store(self, held: Records, columns: Value) -> None:
        build, of = self.build_, self.of
        mine = of.mine(held.spread)
        with build.if_then(build.trunc(columns, ir.IntType(1))):
            writes = self._held(field(build, self.row, Row.WRITES), held)
            of.refuse_unordered(writes, mine, held.here, held.spread)
        reads, stride = field(build, self.row, Row.READS), field(build, self.row, Row.COLUMN_BYTES)
        somebody_read = build.icmp_unsigned("!=", build.lshr(columns, word(1)), word(0))
        with build.if_then(somebody_read), counted(build, field(build, self.row, Row.COLUMNS)) as column:
            in_use = build.and_(columns, column_bit(build, build.add(column, word(1))))
            known = of.knows_reads(self.row, build.lshr(self.first, word(PAGE_SHIFT)), column)
            with build.if_then(build.and_(build.icmp_unsigned("!=", in_use, word(0)), build.not_(known))):
                readers = self._held(build.add(reads, build.mul(column, stride)), held)
                of.refuse_unordered(readers, mine, held.here, held.spread)

    def _enter_store(self, held: Records, _: Value) -> None:
        mine = self.of.mine(held.spread)
        self._enter(mine, field(self.build_, self.row, Row.WRITES), held)

    def _held(self, column: Value, held: Records) -> Value:
        """The records of a column, 0 for lanes that do not act."""
        return self._loaded(self._records(column, held.slot), vector(64), 8, here=held.here)

    def _enter(self, made: Value, column: Value, held: Records) -> None:
        self._stored(made, self._records(column, held.slot), 8, here=held.here)

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
            width = build.mul(self.acting, word(self.variant.width))
            last = build.lshr(build.add(self.first, build.sub(width, word(1))), word(_LINE_SHIFT))
            with counted(build, build.add(build.sub(last, line), word(1))) as number:
                slot = build.add(build.mul(build.add(line, number), columns), own)
                place = at(build, build.inttoptr(table, POINTER), build.shl(slot, word(3)))
                build.store(field(build, of.context, Context.NOW), place)


def _mask_of(kind: Any) -> Any:
    """The type of a condition for each element of a vector."""
    return ir.VectorType(ir.IntType(1), kind.count)


def _lanes_times(factor: int) -> Value:
    """The number of each lane, times a factor."""
    return ir.Constant(vector(64), [lane * factor for lane in range(LANES)])
