"""Loads of whole rows by one warp: those of `ldmatrix`, and of fragments that lie in swizzled chunks of 16 bytes.

    words, all lanes         lane 0  1  2  3 | 4  5  6  7 | ... | 28 29 30 31     8 rows of 16 bytes
    words, lanes 0 2 4 ...   lane 0  2 | 4  6 | ... | 28 30                       8 rows of 8 bytes: packed FP4
    pairs of words           lane 0  1 | 2  3 | ... | 30 31                       16 rows of 16 bytes

A row is in one piece and aligned to its size, all rows lie in one page, and its granules are as wide as the access, or
half as wide. The rules are those of `refmoe.ptx.native.memory`. Vectors take the place of gathers and scatters, of
data, of their validity and of their records.
"""

from __future__ import annotations

from typing import Any

from llvmlite import ir

from refmoe.ptx.native.consecutive import Whole
from refmoe.ptx.native.context import Context, Row
from refmoe.ptx.native.scalar import POINTER, WARP_MASK, WORD, at, field, leave_if, word
from refmoe.ptx.ops.lanes import LANES, vector
from refmoe.ptx.state.pages import PAGE, PAGE_SHIFT

Value = Any
_RECORD_BYTES = 8
_LINE_SHIFT = 7
_NOTHING: Any = ir.Undefined

_QUADS = tuple(range(lane, lane + 4) for lane in range(0, LANES, 4))
_EVEN = tuple(range(lane, lane + 4, 2) for lane in range(0, LANES, 4))
_PAIRS = tuple(range(lane, lane + 2) for lane in range(0, LANES, 2))

#: By the bytes of an element and how many a lane loads: of each form the lanes of the rows, row after row, and the
#: granules of an access.
FORMS: dict[tuple[int, int], tuple[tuple[tuple[range, ...], int], ...]] = {
    (4, 1): ((_QUADS, 1), (_EVEN, 1)),
    (4, 2): ((_PAIRS, 1), (_PAIRS, 2)),
}


class RowLoads:
    """The code for loads of rows; `of` has what it shares with the code for scattered places.

    Args:
        of: the code of the variant.
        rows: the lanes of each row.
        parts: granules of an access.
    """

    def __init__(self, of: Whole, rows: tuple[range, ...], parts: int) -> None:
        self.of, self.build_, self.rows, self.parts = of, of.build_, rows, parts
        self.size, self.count, self.width = of.variant.size, of.variant.count, of.variant.width
        self.granule = self.width // parts
        self.in_row = len(rows[0])
        self.acting = [lane for row in rows for lane in row]
        self.here = ir.Constant(vector(1), [int(lane in self.acting) for lane in range(LANES)])

    def build(self, anywhere: Any) -> None:
        """Do the access if it is of this kind; else call `anywhere`, with the same arguments, which does any."""
        build, of = self.build_, self.of
        self.anywhere = anywhere
        mask = ir.Constant(WARP_MASK, sum(1 << lane for lane in self.acting))
        with build.if_then(build.icmp_unsigned("==", of.mask, mask)):
            addresses = build.load(of.addresses, typ=vector(64), align=32)
            with build.if_then(self._are_rows(addresses)):
                self.row = of.row(build.extract_element(addresses, ir.Constant(WARP_MASK, 0)))
                index = build.add(build.sub(addresses, of.splat(of.base(self.row))), of.splat(of.of_cta(self.row)))
                self.begins = [build.extract_element(index, ir.Constant(WARP_MASK, row[0])) for row in self.rows]
                with build.if_then(self._lie_in_one_page(addresses, index)):
                    self._do(build.lshr(self.begins[0], word(PAGE_SHIFT)))
        build.ret(build.call(anywhere, of.function.args))

    def _are_rows(self, addresses: Value) -> Value:
        """Whether the lanes of each row are side by side in an aligned one."""
        build, of = self.build_, self.of
        first, offset = list(range(LANES)), [0] * LANES
        for row in self.rows:
            for number, lane in enumerate(row):
                first[lane], offset[lane] = row[0], number * self.width
        begins = build.shuffle_vector(addresses, ir.Constant(vector(64), _NOTHING), ir.Constant(vector(32), first))
        apart = build.icmp_unsigned("!=", addresses, build.add(begins, ir.Constant(vector(64), offset)))
        low = build.and_(begins, of.splat(word(self.in_row * self.width - 1)))
        crooked = build.icmp_unsigned("!=", low, of.splat(word(0)))
        return build.not_(self._any(build.or_(apart, crooked)))

    def _lie_in_one_page(self, addresses: Value, index: Value) -> Value:
        """Whether all lies inside one region, in a page whose granules are of the form's width."""
        build, of, row = self.build_, self.of, self.row
        size, last = field(build, row, Row.SIZE), word(self.width - 1)
        offset = build.sub(addresses, of.splat(of.base(row)))
        room = build.select(build.icmp_unsigned("<=", size, last), word(0), build.sub(size, last))
        outside = build.icmp_unsigned(">=", offset, of.splat(room))
        elsewhere = build.xor(index, of.splat(self.begins[0]))
        elsewhere = build.icmp_unsigned(">=", elsewhere, of.splat(word(PAGE)))
        fine = build.not_(self._any(build.or_(outside, elsewhere)))
        apart = build.icmp_unsigned("!=", field(build, row, Row.READERS), word(0))
        watched = build.icmp_unsigned("!=", field(build, row, Row.WRITES), word(0))
        known = build.icmp_unsigned("!=", field(build, row, Row.VALID), word(0))
        plain = build.or_(field(build, row, Row.STRIDE), field(build, row, Row.POISONED))
        fine = build.and_(build.and_(fine, build.and_(apart, watched)), known)
        build.store(word(0), of.state)
        with build.if_then(build.and_(fine, build.icmp_unsigned("==", plain, word(0)))):
            states = build.inttoptr(field(build, row, Row.PAGE_STATES), POINTER)
            page = build.lshr(self.begins[0], word(PAGE_SHIFT))
            build.store(build.load(build.gep(states, [page], source_etype=WORD), typ=WORD), of.state)
        return build.icmp_unsigned("==", build.load(of.state, typ=WORD), word(self.granule.bit_length()))

    def _do(self, page: Value) -> None:
        build, of = self.build_, self.of
        wanted = build.icmp_unsigned("!=", field(build, of.context, Context.REFUSE_UNWRITTEN), word(0))
        bits = 8 * self.size
        with build.if_then(wanted):
            valid = self._load(field(build, self.row, Row.VALID), self.begins, bits, self.count)
            ones = ir.Constant(valid.type, [(1 << bits) - 1] * valid.type.count)
            missing = build.icmp_unsigned("!=", valid, ones)
            packed = ir.IntType(valid.type.count)
            leave_if(build, build.icmp_unsigned("!=", build.bitcast(missing, packed), ir.Constant(packed, 0)), 1)
        # Slots are granules from the beginning of the page on, of eight bytes each.
        slots = []
        for begin in self.begins:
            within = build.lshr(build.and_(begin, word(PAGE - 1)), word(self.granule.bit_length() - 1))
            slots.append(build.shl(build.or_(build.and_(begin, word(-PAGE)), within), word(3)))
        self._order(page, slots)
        held = self._load(field(build, self.row, Row.DATA), self.begins, bits, self.count)
        for element in range(self.count):
            build.store(self._dealt(held, self.count, element), of.element(element), align=32)
        of.finish()

    def _order(self, page: Value, slots: list[Value]) -> None:
        build, of = self.build_, self.of
        mine, reads = of.mine(), of.own_reads(self.row)
        pages = build.inttoptr(field(build, self.row, Row.PAGE_COLUMNS), POINTER)
        used = build.gep(pages, [page], source_etype=WORD)
        columns = build.load(used, typ=WORD)
        with build.if_then(build.trunc(columns, ir.IntType(1))):
            for held in self._records(field(build, self.row, Row.WRITES), slots):
                of.refuse_unordered(held, mine, self.here)
        own = of.columns_of_loads(reads)
        made = [of.reader(self.row, held, mine)[1] for held in self._records(reads.column, slots)]
        # Side by side, so that a row's can be taken from one vector: of part p of lane i, element 32 p + i.
        record = made[0] if self.parts == 1 else self._joined(*made)
        for row, slot in zip(self.rows, slots, strict=True):
            order = [part * LANES + lane for lane in row for part in range(self.parts)]
            lanes = ir.Constant(ir.VectorType(ir.IntType(32), len(order)), order)
            part = build.shuffle_vector(record, ir.Constant(record.type, _NOTHING), lanes)
            build.store(part, build.inttoptr(build.add(reads.column, slot), POINTER), align=_RECORD_BYTES)
        build.store(build.or_(columns, own), used)
        of.note_step(self.row, page, reads)
        self._note_lines()
        # Of rows at one place the last one's lanes are there: the others enter theirs one by one.
        for held, wanted in zip(self._records(reads.column, slots), made, strict=True):
            differs = build.icmp_unsigned("!=", held, wanted)
            with build.if_then(self._any(differs), likely=False):
                build.ret(build.call(self.anywhere, of.function.args))

    def _note_lines(self) -> None:
        """Where bulk copies look whole lines up: this warp accessed these lines now."""
        build, of = self.build_, self.of
        table = field(build, self.row, Row.READ_STEPS)
        with build.if_then(build.icmp_unsigned("!=", table, word(0))):
            own, columns = of.line_columns(self.row, Row.READ_STEPS)
            for begin in self.begins:
                slot = build.add(build.mul(build.lshr(begin, word(_LINE_SHIFT)), columns), own)
                place = at(build, build.inttoptr(table, POINTER), build.shl(slot, word(3)))
                build.store(field(build, of.context, Context.NOW), place)

    def _any(self, lanes: Value) -> Value:
        """Whether a condition holds for a lane that acts."""
        return self.of.any(self.build_.and_(lanes, self.here))

    def _records(self, column: Value, slots: list[Value]) -> list[Value]:
        """Those of the rows' granules in a column, part by part, in the lanes that act; 0 in the others."""
        held = self._load(column, slots, 64, self.parts)
        return [self._dealt(held, self.parts, part) for part in range(self.parts)]

    def _dealt(self, held: Value, count: int, element: int) -> Value:
        """What lies in the rows, to the lanes that act: of each access of `count` elements that of a number."""
        zero = ir.Constant(held.type, [0] * held.type.count)
        places = [held.type.count] * LANES
        for number, lane in enumerate(self.acting):
            places[lane] = number * count + element
        return self.build_.shuffle_vector(held, zero, ir.Constant(vector(32), places))

    def _load(self, base: Value, offsets: list[Value], bits: int, count: int) -> Value:
        """What lies at each row's offset, `count` elements an access, one row behind the other."""
        build, kind = self.build_, ir.VectorType(ir.IntType(bits), self.in_row * count)
        parts = [
            build.load(build.inttoptr(build.add(base, offset), POINTER), typ=kind, align=bits // 8)
            for offset in offsets
        ]
        while len(parts) > 1:
            parts = [self._joined(*parts[number : number + 2]) for number in range(0, len(parts), 2)]
        return parts[0]

    def _joined(self, one: Value, other: Value) -> Value:
        size = 2 * one.type.count
        order = ir.Constant(ir.VectorType(ir.IntType(32), size), list(range(size)))
        return self.build_.shuffle_vector(one, other, order)
