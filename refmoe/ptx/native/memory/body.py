"""One access from its checks to its bytes."""

from __future__ import annotations

from llvmlite import ir

from refmoe.ptx.native.context import (
    Context,
    Row,
)
from refmoe.ptx.native.memory.lanes import lowest
from refmoe.ptx.native.memory.order import OrderedLanes
from refmoe.ptx.native.scalar import (
    WARP_MASK,
    at,
    field,
    leave_if,
    word,
)
from refmoe.ptx.ops.lanes import Value, vector
from refmoe.ptx.state.pages import PAGE_SHIFT, POISON


class AccessBody(OrderedLanes):
    """The body of one variant."""

    def build(self) -> None:
        """Region after region, until all lanes are served."""
        build, lanes, variant = self.build_, self.lanes, self.variant
        address = build.load(self.addresses, typ=vector(64), align=32)
        if not variant.stores:
            for element in range(variant.count):
                build.store(lanes.constant(0, variant.size * 8), self.element(element), align=32)
        loop, done = (build.append_basic_block(name) for name in ("region", "done"))
        before = build.block
        build.branch(loop)
        build.position_at_end(loop)
        left = build.phi(WARP_MASK)
        left.add_incoming(self.mask, before)
        first = build.extract_element(address, lowest(build, left))
        row = self.row(first)
        if variant.space == "generic":
            address = self.without_owner(address, first)
        here = self._inside(row, address, left)
        self._access(row, build.sub(address, self.splat(self.base(row))), here)
        rest = build.and_(left, build.not_(build.bitcast(here, WARP_MASK)))
        left.add_incoming(rest, build.block)
        build.cbranch(build.icmp_unsigned("!=", rest, ir.Constant(WARP_MASK, 0)), loop, done)
        build.position_at_end(done)
        self.finish()

    def finish(self) -> None:
        """Return, after an access."""
        build = self.build_
        if self.variant.stores:
            field = Context.STORED if self.variant.space == "shared" else Context.CHANGED
            build.store(word(1), at(build, self.context, field * 8))
        build.ret(ir.Constant(WARP_MASK, 0))

    def _access(self, row: Value, offset: Value, here: Value) -> None:
        build, variant = self.build_, self.variant
        index = self._index(row, offset)
        if variant.stores:
            leave_if(build, build.icmp_unsigned("==", field(build, row, Row.WRITABLE), word(0)), 1)
        if not variant.stores:
            self._check_written(row, index, here)
        watched = build.icmp_unsigned("!=", field(build, row, Row.WRITES), word(0))
        with build.if_then(watched):
            (self._order_store if variant.stores else self._order_load)(row, index, here)
        if variant.stores:
            self._keep_pages(row, index, here)
        data = field(build, row, Row.DATA)
        bits = variant.size * 8
        for element in range(variant.count):
            place = build.add(index, self.lanes.constant(element * variant.size, 64))
            at_ = self.element(element)
            if variant.stores:
                self._scatter(data, place, build.load(at_, typ=vector(bits), align=32), here)
            else:
                old = build.load(at_, typ=vector(bits), align=32)
                build.store(build.select(here, self._gather(data, place, bits, here), old), at_, align=32)
        if variant.stores:
            self._mark_written(row, index, here)
            self._check_kept(data, index, here, watched)
        elif variant.space == "generic":
            self._poison_unwritten(row, index, here)

    def _poison_unwritten(self, row: Value, index: Value, here: Value) -> None:
        build, bits = self.build_, self.variant.size * 8
        valid = field(build, row, Row.POISONED)
        poison = self.lanes.constant(int.from_bytes(bytes([POISON]) * self.variant.size, "little"), bits)
        with build.if_then(build.icmp_unsigned("!=", valid, word(0))):
            for element in range(self.variant.count):
                at_ = self.element(element)
                place = build.add(index, self.lanes.constant(element * self.variant.size, 64))
                # The other lanes may have values of another region.
                written = self._gather(valid, place, bits, here, otherwise=-1)
                found = build.and_(build.load(at_, typ=vector(bits), align=32), written)
                build.store(build.or_(found, build.and_(poison, build.not_(written))), at_, align=32)

    def _keep_pages(self, row: Value, index: Value, here: Value) -> None:
        """Keep the bytes of pages that a store is the first to write."""
        build, lanes = self.build_, self.lanes
        kept = field(build, row, Row.KEPT)
        with build.if_then(build.icmp_unsigned("!=", kept, word(0))):
            page = build.lshr(index, lanes.constant(PAGE_SHIFT, 64))
            held = self._gather(kept, build.shl(page, lanes.constant(3, 64)), 64, here, otherwise=1)
            self._each_page(row, page, build.icmp_unsigned("==", held, lanes.constant(0, 64)), self.keep)

    def _check_written(self, row: Value, index: Value, here: Value) -> None:
        build, bits = self.build_, self.variant.size * 8
        valid = field(build, row, Row.VALID)
        wanted = build.icmp_unsigned("!=", field(build, self.context, Context.REFUSE_UNWRITTEN), word(0))
        with build.if_then(build.and_(wanted, build.icmp_unsigned("!=", valid, word(0)))):
            for element in range(self.variant.count):
                place = build.add(index, self.lanes.constant(element * self.variant.size, 64))
                held = self._gather(valid, place, bits, here, otherwise=-1)
                leave_if(build, self.any(build.icmp_unsigned("!=", held, self.lanes.constant(-1, bits))), 1)

    def _mark_written(self, row: Value, index: Value, here: Value) -> None:
        build, bits = self.build_, self.variant.size * 8
        valid = field(build, row, Row.VALID)
        with build.if_then(build.icmp_unsigned("!=", valid, word(0))):
            for element in range(self.variant.count):
                place = build.add(index, self.lanes.constant(element * self.variant.size, 64))
                self._scatter(valid, place, self.lanes.constant(-1, bits), here)

    def _check_kept(self, data: Value, index: Value, here: Value, watched: Value) -> None:
        """Lanes that met at one place must have written the same there."""
        build, bits = self.build_, self.variant.size * 8
        with build.if_then(watched):
            for element in range(self.variant.count):
                place = build.add(index, self.lanes.constant(element * self.variant.size, 64))
                mine = build.load(self.element(element), typ=vector(bits), align=32)
                differs = build.icmp_unsigned("!=", self._gather(data, place, bits, here), mine)
                leave_if(build, self.any(build.and_(differs, here)), 1)
