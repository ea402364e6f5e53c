"""Loads of `ldmatrix`: eight rows of four words by one warp, each row in one piece.

        lane       0  1  2  3     4  5  6  7          28 29 30 31
    memory   row 0 |  |  |  |   row 1 |  |  |  |  ...  row 7 |  |  |  |     in one page, whose granules are words

The rules are those of `refmoe.ptx.native.memory`. Vectors of four take the place of gathers and scatters, of data, of
their validity and of their records.
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
_WORD = 4
_IN_ROW = 4
_ROW_BYTES = _WORD * _IN_ROW
_STARTS = range(0, LANES, _IN_ROW)
_RECORD_BYTES = 8
_LINE_SHIFT = 7


class WordLoads:
    """The code for loads of single words; `of` has what it shares with the code for scattered places."""

    def __init__(self, of: Whole) -> None:
        self.of, self.build_ = of, of.build_
        self.here = ir.Constant(vector(1), [1] * LANES)

    def build(self, anywhere: Any) -> None:
        """Do the access if it is of this kind; else call `anywhere`, with the same arguments, which does any."""
        build, of = self.build_, self.of
        self.anywhere = anywhere
        addresses = build.load(of.addresses, typ=vector(64), align=32)
        with build.if_then(self._are_rows(addresses)):
            self.row = of.row(build.extract_element(addresses, ir.Constant(WARP_MASK, 0)))
            index = build.add(build.sub(addresses, of.splat(of.base(self.row))), of.splat(of.of_cta(self.row)))
            self.begins = [build.extract_element(index, ir.Constant(WARP_MASK, lane)) for lane in _STARTS]
            with build.if_then(self._lie_in_one_page(addresses, index)):
                self._do(build.lshr(self.begins[0], word(PAGE_SHIFT)))
        build.ret(build.call(anywhere, of.function.args))

    def _are_rows(self, addresses: Value) -> Value:
        """Whether all lanes act, four by four at the words of an aligned row."""
        build, of = self.build_, self.of
        first = ir.Constant(vector(32), [lane - lane % _IN_ROW for lane in range(LANES)])
        begins = build.shuffle_vector(addresses, ir.Constant(vector(64), ir.Undefined), first)
        words = ir.Constant(vector(64), [_WORD * (lane % _IN_ROW) for lane in range(LANES)])
        apart = build.icmp_unsigned("!=", addresses, build.add(begins, words))
        low = build.and_(begins, of.splat(word(_ROW_BYTES - 1)))
        crooked = build.icmp_unsigned("!=", low, of.splat(word(0)))
        whole = build.icmp_unsigned("==", of.mask, ir.Constant(WARP_MASK, 0xFFFFFFFF))
        return build.and_(whole, build.not_(of.any(build.or_(apart, crooked))))

    def _lie_in_one_page(self, addresses: Value, index: Value) -> Value:
        """Whether all lies inside one region, in a page of which records are kept by the word."""
        build, of, row = self.build_, self.of, self.row
        size = field(build, row, Row.SIZE)
        offset = build.sub(addresses, of.splat(of.base(row)))
        room = build.select(build.icmp_unsigned("<", size, word(_WORD)), word(0), build.sub(size, word(_WORD - 1)))
        outside = build.icmp_unsigned(">=", offset, of.splat(room))
        elsewhere = build.xor(index, of.splat(self.begins[0]))
        elsewhere = build.icmp_unsigned(">=", elsewhere, of.splat(word(PAGE)))
        fine = build.not_(of.any(build.or_(outside, elsewhere)))
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
        return build.icmp_unsigned("==", build.load(of.state, typ=WORD), word(_WORD.bit_length()))

    def _do(self, page: Value) -> None:
        build, of = self.build_, self.of
        wanted = build.icmp_unsigned("!=", field(build, of.context, Context.REFUSE_UNWRITTEN), word(0))
        with build.if_then(wanted):
            valid = self._load(field(build, self.row, Row.VALID), self.begins, 32)
            missing = build.icmp_unsigned("!=", valid, ir.Constant(vector(32), [0xFFFFFFFF] * LANES))
            leave_if(build, of.any(missing), 1)
        # Slots are words from the beginning of the page on.
        slots = []
        for begin in self.begins:
            within = build.shl(build.and_(begin, word(PAGE - 1)), word(1))
            slots.append(build.add(build.shl(build.and_(begin, word(-PAGE)), word(3)), within))
        self._order(page, slots)
        build.store(self._load(field(build, self.row, Row.DATA), self.begins, 32), of.element(0), align=32)
        of.finish()

    def _order(self, page: Value, slots: list[Value]) -> None:
        build, of = self.build_, self.of
        mine, reads = of.mine(), of.own_reads(self.row)
        pages = build.inttoptr(field(build, self.row, Row.PAGE_COLUMNS), POINTER)
        used = build.gep(pages, [page], source_etype=WORD)
        columns = build.load(used, typ=WORD)
        with build.if_then(build.trunc(columns, ir.IntType(1))):
            of.refuse_unordered(self._load(field(build, self.row, Row.WRITES), slots, 64), mine, self.here)
        own = of.columns_of_loads(reads)
        _, record = of.reader(self._load(reads.column, slots, 64), mine)
        for number, slot in enumerate(slots):
            lanes = ir.Constant(ir.VectorType(ir.IntType(32), _IN_ROW), list(_lanes_of(number)))
            part = build.shuffle_vector(record, ir.Constant(vector(64), ir.Undefined), lanes)
            build.store(part, build.inttoptr(build.add(reads.column, slot), POINTER), align=_RECORD_BYTES)
        build.store(build.or_(columns, own), used)
        of.note_step(self.row, page, reads)
        self._note_lines()
        # Of rows at one place the last one's lanes are there: the others enter theirs one by one.
        differs = build.icmp_unsigned("!=", self._load(reads.column, slots, 64), record)
        with build.if_then(of.any(differs), likely=False):
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

    def _load(self, base: Value, offsets: list[Value], bits: int) -> Value:
        """What lies at each row's offset, four elements a row, a lane each."""
        build, kind = self.build_, ir.VectorType(ir.IntType(bits), _IN_ROW)
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


def _lanes_of(row: int) -> range:
    return range(row * _IN_ROW, (row + 1) * _IN_ROW)
