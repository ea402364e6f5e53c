"""`ldmatrix` of one warp in one call, with the checks that its accesses have.

    matrix       0         1         2         3
    lane       0 ... 7 | 8 ... 15 | 16 .. 23 | 24 .. 31     passes the address of a row of 16 bytes, or 8 of packed FP4
    its words  lane 4r + t loads word t of row r, 4 bytes; of packed rows lanes 4r and 4r + 2 load two words

All rows at once are looked at where they lie in one page or in two, whose granules are words, where one warp or one
copy wrote them all, and where nobody but this warp read them since it last met. Otherwise each matrix is an access of
its own: see `refmoe.ptx.native.matrix`. The rules are those of `refmoe.ptx.native.memory.order`.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache, reduce
from typing import Any

from llvmlite import ir

from refmoe.native.builder import TextBuilder
from refmoe.native.compiler import Native
from refmoe.ptx.native import matrix
from refmoe.ptx.native.context import Context, Row
from refmoe.ptx.native.memory.body import AccessBody
from refmoe.ptx.native.memory.variants import SIGNATURE, Variant, parts_of, write_access
from refmoe.ptx.native.scalar import POINTER, WARP_MASK, WORD, at, field, leave_if, word
from refmoe.ptx.ops.lanes import LANES, LaneBuilder, Value, vector
from refmoe.ptx.state.pages import PAGE, PAGE_SHIFT

_ROWS = 8
_WORD_BYTES, _WORD_SHIFT, _RECORD_BYTES, _RECORD_SHIFT = 4, 2, 8, 3
_LINE_SHIFT = 7
_ONE, _ALL = ir.Constant(WARP_MASK, 1), ir.Constant(WARP_MASK, 0xFFFFFFFF)


@dataclass(frozen=True)
class MatrixLoad:
    """The function for one form of `ldmatrix`, without `.trans`.

    Its arguments are those of an access, `addresses` those of the rows, and all lanes act. Register m of lane l becomes
    word 32 m + l of `values`.

    Attributes:
        count: matrices: 1, 2 or 4.
        packed: whether rows hold sixteen elements of 4 bits in their first 8 bytes.
        space: see `AccessForm`.
    """

    count: int
    packed: bool
    space: str

    @property
    def name(self) -> str:
        """Of the function."""
        return f"matrices_{self.space}_{self.count}{'_packed' if self.packed else ''}"

    @property
    def address(self) -> int:
        """Of the function, which lives as long as the process."""
        return _compiled(self).address(self.name)


@cache
def _compiled(form: MatrixLoad) -> Native:
    return Native.of(lambda: _text(form), "memory", form.name, level=2, briefly=True)


def _text(form: MatrixLoad) -> str:
    """The module: all rows at once, the access that a matrix alone is, and the function that calls them."""
    module = ir.Module()
    variant = Variant(False, _WORD_BYTES, 1, form.space)
    parts = parts_of(module, variant)
    each = write_access(module, variant, *parts)
    each.linkage = "internal"
    whole = ir.Function(module, SIGNATURE, "all_rows")
    whole.linkage = "internal"
    _AllRows(AccessBody(variant, whole, *parts), form).build()
    function = ir.Function(module, SIGNATURE, form.name)
    context, warp, bits, addresses, values = function.args
    build = TextBuilder(function)
    lanes = LaneBuilder(module, build, build.bitcast(bits, vector(1)))
    places = build.alloca(vector(64))
    places.align = 64

    def access(where: Value, mask: int, held: Value) -> Value:
        build.store(where, places, align=32)
        return build.call(each, [context, warp, ir.Constant(WARP_MASK, mask), places, held])

    left = build.call(whole, list(function.args))
    with build.if_then(build.icmp_unsigned("!=", left, ir.Constant(WARP_MASK, 0)), likely=False):
        address = build.load(addresses, typ=vector(64), align=32)
        status = matrix.load_rows(lanes, access, address, values, form.count, form.packed)
        leave_if(build, build.icmp_unsigned("!=", status, ir.Constant(WARP_MASK, 0)), 1)
    if form.packed:
        matrix.unpack(lanes, values, form.count)
    build.ret(ir.Constant(WARP_MASK, 0))
    return str(module)


class _AllRows:
    """The code for all rows; `of` has what it shares with the code of other accesses. Returns 1 if it did nothing."""

    def __init__(self, of: AccessBody, form: MatrixLoad) -> None:
        self.of, self.build_, self.form = of, of.build_, form
        self.bytes = 8 if form.packed else 16
        self.words = self.bytes // _WORD_BYTES
        self.rows = range(_ROWS * form.count)
        self.used = ir.Constant(vector(1), [int(lane in self.rows) for lane in range(LANES)])

    def build(self) -> None:
        """The whole function."""
        build, of = self.build_, self.of
        addresses = build.load(of.addresses, typ=vector(64), align=32)
        self.row = of.row(build.extract_element(addresses, ir.Constant(WARP_MASK, 0)))
        offsets = build.sub(addresses, of.splat(of.base(self.row)))
        index = build.add(offsets, of.splat(of.of_cta(self.row)))
        self.begins = self._scalars(index)
        self.pages = [build.lshr(self.begins[each], word(PAGE_SHIFT)) for each in (0, -1)]
        page = build.lshr(index, self._constant(PAGE_SHIFT))
        # Where the granules of a row have their records, in each column.
        within = build.lshr(build.and_(index, self._constant(PAGE - 1)), self._constant(_WORD_SHIFT))
        slots = build.or_(build.shl(page, self._constant(PAGE_SHIFT)), within)
        self.slots = self._scalars(build.shl(slots, self._constant(_RECORD_SHIFT)))
        reads = of.own_reads(self.row)
        # What a warp read long ago is in no near cache, and is asked for last.
        for slot in self.slots:
            self._prefetch(build.add(reads.column, slot))
        self._leave_unless_words(offsets, page)
        self._leave_unless_written()
        self._leave_unless_known()
        self._enter(reads)
        data = field(build, self.row, Row.DATA)
        for number, begin in enumerate(self.begins):
            self._load(data, begin, at(build, of.values, 16 * number))
        build.ret(ir.Constant(WARP_MASK, 0))

    def _leave_unless_words(self, offsets: Value, page: Value) -> None:
        """All rows lie in the region and in two pages, whose granules are words, and need no more than is done here."""
        build, of, row = self.build_, self.of, self.row
        size = field(build, row, Row.SIZE)
        wrong = build.icmp_unsigned("<", size, word(self.bytes))
        needed = [build.icmp_unsigned("==", field(build, row, each), word(0)) for each in
                  (Row.READERS, Row.WRITES, Row.VALID)]  # fmt: skip
        unlike = [build.icmp_unsigned("!=", field(build, row, each), word(0)) for each in (Row.STRIDE, Row.POISONED)]
        leave_if(build, reduce(build.or_, [wrong, *needed, *unlike]), 1)
        outside = build.icmp_unsigned(">", offsets, of.splat(build.sub(size, word(self.bytes))))
        elsewhere = [build.icmp_unsigned("!=", page, of.splat(each)) for each in self.pages]
        wrong = build.and_(build.or_(outside, build.and_(*elsewhere)), self.used)
        leave_if(build, of.any(wrong), 1)
        states = [self._of_page(Row.PAGE_STATES, each)[1] for each in self.pages]
        other = [build.icmp_unsigned("!=", each, word(_WORD_BYTES.bit_length())) for each in states]
        leave_if(build, build.or_(*other), 1)

    def _leave_unless_written(self) -> None:
        build, of = self.build_, self.of
        wanted = build.icmp_unsigned("!=", field(build, of.context, Context.REFUSE_UNWRITTEN), word(0))
        with build.if_then(wanted):
            valid = field(build, self.row, Row.VALID)
            held = reduce(build.and_, [self._held(valid, begin, self._data) for begin in self.begins])
            ones = ir.Constant(self._data, [0xFFFFFFFF] * self.words)
            leave_if(build, self._any(build.icmp_unsigned("!=", held, ones)), 1)

    def _leave_unless_known(self) -> None:
        """One warp, or one copy, wrote all words last, and this warp comes after it."""
        build, of = self.build_, self.of
        columns = [self._of_page(Row.PAGE_COLUMNS, each)[1] for each in self.pages]
        leave_if(build, build.trunc(build.xor(*columns), ir.IntType(1)), 1)
        with build.if_then(build.trunc(columns[0], ir.IntType(1))):
            writes = field(build, self.row, Row.WRITES)
            first = self._held(writes, self.slots[0], WORD)
            expected = self._splat(first)
            differs = [build.xor(self._held(writes, slot, self._records), expected) for slot in self.slots]
            apart = build.and_(reduce(build.or_, differs), self._splat(build.not_(of.same_to_warps(first))))
            leave_if(build, self._any(build.icmp_unsigned("!=", apart, self._nothing)), 1)
            with build.if_then(build.icmp_unsigned("!=", first, word(0))):
                leave_if(build, build.not_(of.knows_one(first)), 1)

    def _enter(self, reads: Any) -> None:
        """This warp reads all words, if nobody else did since it last met."""
        build, of = self.build_, self.of
        first = build.extract_element(of.mine(), ir.Constant(WARP_MASK, 0))
        lanes = [[_ROWS // 2 * row + word_ * 4 // self.words for word_ in range(self.words)] for row in range(_ROWS)]
        mine = [build.add(self._splat(first), ir.Constant(self._records, each)) for each in lanes]
        met = self._splat(of.met())
        strange = [
            of.is_strange(self._held(reads.column, slot, self._records), mine[number % _ROWS], met)
            for number, slot in enumerate(self.slots)
        ]
        leave_if(build, self._any(reduce(build.or_, strange)), 1)
        for number, slot in enumerate(self.slots):
            place = build.inttoptr(build.add(reads.column, slot), POINTER)
            build.store(mine[number % _ROWS], place, align=_RECORD_BYTES)
        own = of.columns_of_loads(reads)
        for page in self.pages:
            place, held = self._of_page(Row.PAGE_COLUMNS, page)
            build.store(build.or_(held, own), place)
            of.note_step(self.row, page, reads)
        self._note_lines()
        # Of rows at one place the last one's lanes are there now: each matrix by itself enters the others too.
        others = [
            build.xor(self._held(reads.column, slot, self._records), mine[number % _ROWS])
            for number, slot in enumerate(self.slots)
        ]
        leave_if(build, self._any(build.icmp_unsigned("!=", reduce(build.or_, others), self._nothing)), 1)

    def _note_lines(self) -> None:
        """Where bulk copies look whole lines up: this warp accessed these lines now."""
        build, of = self.build_, self.of
        table = field(build, self.row, Row.READ_STEPS)
        with build.if_then(build.icmp_unsigned("!=", table, word(0))):
            own, columns = of.line_columns(self.row, Row.READ_STEPS)
            begin, now = build.add(table, build.shl(own, word(3))), field(build, of.context, Context.NOW)
            stride = build.shl(columns, word(3))
            for each in self.begins:
                slot = build.mul(build.lshr(each, word(_LINE_SHIFT)), stride)
                build.store(now, build.inttoptr(build.add(begin, slot), POINTER))

    def _load(self, data: Value, begin: Value, place: Value) -> None:
        """A row to its lanes: words of packed ones to two lanes each."""
        build = self.build_
        held = self._held(data, begin, self._data)
        if self.form.packed:
            order = ir.Constant(ir.VectorType(ir.IntType(32), 4), [0, 0, 1, 1])
            held = build.shuffle_vector(held, ir.Constant(self._data, ir.Undefined), order)
        build.store(held, place, align=16)

    # What lies where

    def _of_page(self, number: Row, page: Value) -> tuple[Value, Value]:
        """(place, what is there) of a table of words by page."""
        build = self.build_
        place = build.gep(field(build, self.row, number, POINTER), [page], source_etype=WORD)
        return place, build.load(place, typ=WORD)

    def _held(self, base: Value, offset: Value, kind: Any) -> Value:
        """What lies behind an address. Data may lie at any place, as the arrays of callers do."""
        build = self.build_
        align = _RECORD_BYTES if kind in (WORD, self._records) else 1
        return build.load(build.inttoptr(build.add(base, offset), POINTER), typ=kind, align=align)

    def _prefetch(self, place: Value) -> None:
        module, name = self.of.function.module, "llvm.prefetch.p0"
        function = module.globals.get(name)
        if function is None:
            kinds = [POINTER, WARP_MASK, WARP_MASK, WARP_MASK]
            function = ir.Function(module, ir.FunctionType(ir.VoidType(), kinds), name)
        # For writing, into the nearest cache, data.
        flags = [ir.Constant(WARP_MASK, each) for each in (1, 3, 1)]
        self.build_.call(function, [self.build_.inttoptr(place, POINTER), *flags])

    @property
    def _data(self) -> Any:
        return ir.VectorType(ir.IntType(32), self.words)

    @property
    def _records(self) -> Any:
        return ir.VectorType(WORD, self.words)

    @property
    def _nothing(self) -> Value:
        return ir.Constant(self._records, [0] * self.words)

    def _splat(self, value: Value) -> Value:
        """A word for each of a row's."""
        build, kind = self.build_, self._records
        one = build.insert_element(ir.Constant(kind, ir.Undefined), value, ir.Constant(WARP_MASK, 0))
        order = ir.Constant(ir.VectorType(ir.IntType(32), self.words), [0] * self.words)
        return build.shuffle_vector(one, ir.Constant(kind, ir.Undefined), order)

    def _any(self, words: Value) -> Value:
        packed = ir.IntType(self.words)
        return self.build_.icmp_unsigned("!=", self.build_.bitcast(words, packed), ir.Constant(packed, 0))

    def _constant(self, value: int) -> Value:
        return self.of.lanes.constant(value, 64)

    def _scalars(self, value: Value) -> list[Value]:
        """Those of the rows."""
        return [self.build_.extract_element(value, ir.Constant(WARP_MASK, row)) for row in self.rows]
