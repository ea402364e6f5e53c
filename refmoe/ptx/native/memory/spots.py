"""Loads of one warp where some lanes each have one place: the bytes of scales that `mma` takes.

    the lanes of a quad     0  1  2  3 | 4  5  6  7 | ...                8 places
    every other of a quad   0  2 | 4  6 | ... | 1  3 | 5  7 | ...        16 places

In this order each place is behind the one before. All lie in one page, whose granules are as wide as the access. One
warp or one copy wrote them all, and nobody but this warp read them since it last met. Each place is looked at once, and
not once for each of its lanes. The rules are those of `refmoe.ptx.native.memory.order`.
"""

from __future__ import annotations

from functools import reduce
from typing import Any

from llvmlite import ir

from refmoe.ptx.native.context import Context, Row
from refmoe.ptx.native.memory.body import AccessBody
from refmoe.ptx.native.scalar import POINTER, WARP_MASK, WORD, field, leave_if, word
from refmoe.ptx.ops.lanes import LANES, Value, vector
from refmoe.ptx.state.pages import PAGE, PAGE_SHIFT

_RECORD_BYTES, _RECORD_SHIFT = 8, 3

#: The lanes of each place.
FORMS: tuple[tuple[tuple[int, ...], ...], ...] = (
    tuple((quad + odd, quad + odd + 2) for odd in (0, 1) for quad in range(0, LANES, 4)),
    tuple((quad, quad + 1, quad + 2, quad + 3) for quad in range(0, LANES, 4)),
)


class SpotLoads:
    """The code for loads of one element; `of` has what it shares with the code for scattered places.

    Args:
        of: the code of the variant.
        lanes: of each place.
    """

    def __init__(self, of: AccessBody, lanes: tuple[tuple[int, ...], ...]) -> None:
        self.of, self.build_, self.lanes = of, of.build_, lanes
        self.width = of.variant.width
        self.kind = ir.VectorType(WORD, len(lanes))

    def build(self, anywhere: Any) -> None:
        """Do the access if it is of this kind; else call `anywhere`, with the same arguments, which does any."""
        build, of = self.build_, self.of
        self.anywhere = anywhere
        with build.if_then(build.icmp_unsigned("==", of.mask, ir.Constant(WARP_MASK, 0xFFFFFFFF))):
            addresses = build.load(of.addresses, typ=vector(64), align=32)
            first = list(range(LANES))
            for lanes in self.lanes:
                for lane in lanes:
                    first[lane] = lanes[0]
            apart = build.icmp_unsigned("!=", addresses, self._dealt(addresses, first))
            with build.if_then(build.not_(of.any(apart))):
                self._do(self._dealt(addresses, [lanes[0] for lanes in self.lanes]))
        self._give_up()

    def _give_up(self) -> None:
        self.build_.ret(self.build_.call(self.anywhere, self.of.function.args))

    def _unless(self, condition: Value) -> None:
        """Another way does the access where a condition does not hold."""
        with self.build_.if_then(self.build_.not_(condition), likely=False):
            self._give_up()

    def _do(self, addresses: Value) -> None:
        build, of = self.build_, self.of
        self.row = of.row(build.extract_element(addresses, ir.Constant(WARP_MASK, 0)))
        offsets = build.sub(addresses, self._splat(of.base(self.row)))
        index = build.add(offsets, self._splat(of.of_cta(self.row)))
        page = build.lshr(build.extract_element(index, ir.Constant(WARP_MASK, 0)), word(PAGE_SHIFT))
        self._unless_odd(offsets, index, page)
        # A granule for each access, so that its number in the page is that of the bytes in front of it.
        within = build.lshr(build.and_(index, self._constant(PAGE - 1)), self._constant(self.width.bit_length() - 1))
        slots = build.or_(build.and_(index, self._constant(-PAGE)), within)
        slots = build.shl(slots, self._constant(_RECORD_SHIFT))
        begins = self._scalars(index)
        self._unless_unwritten(begins)
        self._order(page, slots, index)
        data = field(build, self.row, Row.DATA)
        held: Value = ir.Constant(ir.VectorType(ir.IntType(8 * self.width), len(self.lanes)), ir.Undefined)
        for number, begin in enumerate(begins):
            element = self._held(data, begin, ir.IntType(8 * self.width), self.width)
            held = build.insert_element(held, element, ir.Constant(WARP_MASK, number))
        place = [0] * LANES
        for number, lanes in enumerate(self.lanes):
            for lane in lanes:
                place[lane] = number
        build.store(self._dealt(held, place), of.element(0), align=32)
        of.finish()

    def _unless_odd(self, offsets: Value, index: Value, page: Value) -> None:
        """All places lie in the region, one behind another, in a page whose granules are as wide as an access."""
        build, row = self.build_, self.row
        size = field(build, row, Row.SIZE)
        fine = build.icmp_unsigned(">=", size, word(self.width))
        for each in (Row.READERS, Row.WRITES, Row.VALID):
            fine = build.and_(fine, build.icmp_unsigned("!=", field(build, row, each), word(0)))
        for each in (Row.STRIDE, Row.POISONED):
            fine = build.and_(fine, build.icmp_unsigned("==", field(build, row, each), word(0)))
        self._unless(fine)
        wrong = build.icmp_unsigned(">", offsets, self._splat(build.sub(size, word(self.width))))
        pages = build.lshr(index, self._constant(PAGE_SHIFT))
        wrong = build.or_(wrong, build.icmp_unsigned("!=", pages, self._splat(page)))
        # No two of them are one.
        following = self._dealt(offsets, [*range(1, len(self.lanes)), 0])
        behind = build.icmp_unsigned("<", offsets, following)
        last = ir.Constant(ir.VectorType(ir.IntType(1), len(self.lanes)), [0] * (len(self.lanes) - 1) + [1])
        wrong = build.or_(wrong, build.not_(build.or_(behind, last)))
        crooked = build.and_(offsets, self._constant(self.width - 1))
        wrong = build.or_(wrong, build.icmp_unsigned("!=", crooked, self._constant(0)))
        self._unless(build.not_(self._any(wrong)))
        state = build.load(build.gep(field(build, row, Row.PAGE_STATES, POINTER), [page], source_etype=WORD), typ=WORD)
        self._unless(build.icmp_unsigned("==", state, word(self.width.bit_length())))

    def _unless_unwritten(self, begins: list[Value]) -> None:
        build, kind = self.build_, ir.IntType(8 * self.width)
        wanted = build.icmp_unsigned("!=", field(build, self.of.context, Context.REFUSE_UNWRITTEN), word(0))
        with build.if_then(wanted):
            valid = field(build, self.row, Row.VALID)
            held = reduce(build.and_, [self._held(valid, begin, kind, self.width) for begin in begins])
            leave_if(build, build.icmp_unsigned("!=", held, ir.Constant(kind, (1 << 8 * self.width) - 1)), 1)

    def _order(self, page: Value, slots: Value, index: Value) -> None:
        build, of = self.build_, self.of
        reads = of.own_reads(self.row)
        used = build.gep(field(build, self.row, Row.PAGE_COLUMNS, POINTER), [page], source_etype=WORD)
        columns = build.load(used, typ=WORD)
        # Many are long gone from the near caches, and are asked for last.
        previous = self._gather(reads.column, slots)
        with build.if_then(build.trunc(columns, ir.IntType(1))):
            writes = self._gather(field(build, self.row, Row.WRITES), slots)
            first = build.extract_element(writes, ir.Constant(WARP_MASK, 0))
            apart = build.xor(writes, self._splat(first))
            apart = build.and_(apart, self._splat(build.not_(of.same_to_warps(first))))
            self._unless(build.not_(self._any(build.icmp_unsigned("!=", apart, self._constant(0)))))
            with build.if_then(build.icmp_unsigned("!=", first, word(0))):
                self._unless(of.knows_one(first))
        base = build.extract_element(of.mine(), ir.Constant(WARP_MASK, 0))
        # Of the lanes at one place the last one's record stays where it was written last, and is then joined by that of
        # the lane before.
        made = [build.add(base, word(lanes[-2] | of.SEVERAL_LANES)) for lanes in self.lanes]
        strange = of.is_strange_to_several(previous, self._splat(base), self._splat(of.met()))
        self._unless(build.not_(self._any(strange)))
        places = [build.inttoptr(build.add(reads.column, slot), POINTER) for slot in self._scalars(slots)]
        for record, place in zip(made, places, strict=True):
            build.store(record, place, align=_RECORD_BYTES)
        build.store(build.or_(columns, of.columns_of_loads(reads)), used)
        of.note_step(self.row, page, reads)
        everywhere = [next(n for n, lanes in enumerate(self.lanes) if lane in lanes) for lane in range(LANES)]
        of.note_line(self.row, Row.READ_STEPS, self._dealt(index, everywhere), ir.Constant(vector(1), [1] * LANES))

    # Vectors of an element for each place

    def _dealt(self, value: Value, source: list[int]) -> Value:
        order = ir.Constant(ir.VectorType(ir.IntType(32), len(source)), source)
        return self.build_.shuffle_vector(value, ir.Constant(value.type, ir.Undefined), order)

    def _splat(self, value: Value) -> Value:
        one = self.build_.insert_element(ir.Constant(self.kind, ir.Undefined), value, ir.Constant(WARP_MASK, 0))
        return self._dealt(one, [0] * len(self.lanes))

    def _constant(self, value: int) -> Value:
        return ir.Constant(self.kind, [value & ((1 << 64) - 1)] * len(self.lanes))

    def _any(self, condition: Value) -> Value:
        packed = ir.IntType(len(self.lanes))
        return self.build_.icmp_unsigned("!=", self.build_.bitcast(condition, packed), ir.Constant(packed, 0))

    def _scalars(self, value: Value) -> list[Value]:
        return [self.build_.extract_element(value, ir.Constant(WARP_MASK, n)) for n in range(len(self.lanes))]

    def _held(self, base: Value, offset: Value, kind: Any, align: int) -> Value:
        return self.build_.load(self.build_.inttoptr(self.build_.add(base, offset), POINTER), typ=kind, align=align)

    def _gather(self, base: Value, offsets: Value) -> Value:
        """Words at these distances behind an address."""
        build, count = self.build_, len(self.lanes)
        pointers, module = ir.VectorType(POINTER, count), self.of.function.module
        name, mask = f"llvm.masked.gather.v{count}i64.v{count}p0", ir.VectorType(ir.IntType(1), count)
        function = module.globals.get(name)
        if function is None:
            signature = ir.FunctionType(self.kind, [pointers, WARP_MASK, mask, self.kind])
            function = ir.Function(module, signature, name)
        places = build.inttoptr(build.add(self._splat(base), offsets), pointers)
        rest = [ir.Constant(WARP_MASK, _RECORD_BYTES), ir.Constant(mask, [1] * count), self._constant(0)]
        return build.call(function, [places, *rest])
