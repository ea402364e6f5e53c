"""Lanes of one access: which region each is in, where its bytes lie, and gathers and scatters of them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from llvmlite import ir

from refmoe.native.builder import TextBuilder
from refmoe.ptx.native.consecutive import BY_LANE, Spread
from refmoe.ptx.native.context import (
    FIRST_BUFFER_ROW,
    LOCAL_ROW,
    ROW_BYTES,
    SHARED_ROW,
    Context,
    Row,
)
from refmoe.ptx.native.exchange import owned
from refmoe.ptx.native.scalar import (
    POINTER,
    WARP_MASK,
    WORD,
    at,
    field,
    leave_if,
    room,
    word,
)
from refmoe.ptx.ops.lanes import LANES, LaneBuilder, Value, vector
from refmoe.ptx.state.spaces import LOCAL_WINDOW, OWN_BASE, SHARED_WINDOW, WINDOW_BITS

_POINTERS = ir.VectorType(POINTER, LANES)
_BOOL = ir.IntType(1)
_BYTE_BITS = 8
# Of what is gathered for bytes.
_WORD_BYTES = 4


@dataclass(frozen=True)
class AccessForm:
    """A kind of access.

    Attributes:
        stores: else it loads.
        size: bytes of an element: 1, 2, 4 or 8.
        count: elements.
        space: `"shared" "local" "generic"`; all buffers are "generic", their addresses tell them apart.
        coherent: False for `ld.global.nc`, which must not read what the grid writes.
    """

    stores: bool
    size: int
    count: int
    space: str
    coherent: bool = True

    @property
    def width(self) -> int:
        """Bytes."""
        return self.size * self.count


@dataclass(frozen=True)
class Rules:
    """Functions of the module that say what orders accesses.

    Attributes:
        ordered: see `ordering` in `refmoe.ptx.native.memory.order`.
        displace: see `displacing` there.
    """

    ordered: Any
    displace: Any


def lowest(build: Any, mask: Value) -> Value:
    """The lowest lane of a mask of 32 bits that is not 0."""
    return build.cttz(mask, ir.Constant(_BOOL, 1))


def highest(build: Any, mask: Value) -> Value:
    """The highest lane of a mask of 32 bits that is not 0."""
    return build.sub(ir.Constant(WARP_MASK, LANES - 1), build.ctlz(mask, ir.Constant(_BOOL, 1)))


class AccessLanes:
    """All lanes of one variant. Values of all lanes are vectors; `here` is the mask of the lanes of one region."""

    def __init__(self, variant: AccessForm, function: Any, rules: Rules, refine: Any, keep: Any) -> None:
        self.variant = variant
        self.rules, self.refine, self.keep = rules, refine, keep
        self.context, self.warp, self.mask, self.addresses, self.values = function.args
        self.function = function
        build = self.build_ = TextBuilder(function)
        self.lanes = LaneBuilder(function.module, build, build.bitcast(self.mask, vector(1)))
        self.records, self.others, self.state = room(build, vector(64)), room(build, vector(64)), room(build, WORD)

    def splat(self, value: Value) -> Value:
        """A scalar of 64 bits in every lane."""
        build = self.build_
        one = build.insert_element(ir.Constant(vector(64), ir.Undefined), value, ir.Constant(WARP_MASK, 0))
        return build.shuffle_vector(one, ir.Constant(vector(64), ir.Undefined), ir.Constant(vector(32), [0] * LANES))

    def any(self, lanes: Value) -> Value:
        """Whether a condition holds in some lane."""
        return self.build_.icmp_unsigned("!=", self.build_.bitcast(lanes, WARP_MASK), ir.Constant(WARP_MASK, 0))

    def _pointers(self, base: Value, offset: Value) -> Value:
        """Addresses of all lanes."""
        return self.build_.inttoptr(self.build_.add(self.splat(base), offset), _POINTERS)

    def _gather(self, base: Value, offset: Value, bits: int, here: Value, otherwise: int = 0) -> Value:
        """What lies `offset` [lanes] bytes behind the address `base`, `otherwise` in the other lanes."""
        if bits == _BYTE_BITS:
            return self._gather_bytes(base, offset, here, otherwise)
        return self._gather_from(self._pointers(base, offset), bits, here, otherwise)

    def _gather_bytes(self, base: Value, offset: Value, here: Value, otherwise: int) -> Value:
        """Of no processor's gathers: the aligned words that the bytes lie in, no byte of which is in another page."""
        build, lanes = self.build_, self.lanes
        address = build.add(self.splat(base), offset)
        words = build.inttoptr(build.and_(address, lanes.constant(-_WORD_BYTES, 64)), _POINTERS)
        held = self._gather_from(words, _WORD_BYTES * _BYTE_BITS, here, 0)
        within = build.trunc(build.and_(address, lanes.constant(_WORD_BYTES - 1, 64)), held.type)
        shift = build.shl(within, lanes.constant(3, _WORD_BYTES * _BYTE_BITS))
        found = build.trunc(build.lshr(held, shift), vector(_BYTE_BITS))
        return build.select(here, found, lanes.constant(otherwise, _BYTE_BITS))

    def _gather_from(self, pointers: Value, bits: int, here: Value, otherwise: int) -> Value:
        kind = vector(bits)
        name = f"llvm.masked.gather.v{LANES}i{bits}.v{LANES}p0"
        function = self.function.module.globals.get(name)
        if function is None:
            signature = ir.FunctionType(kind, [_POINTERS, WARP_MASK, vector(1), kind])
            function = ir.Function(self.function.module, signature, name)
        arguments = [
            pointers,
            ir.Constant(WARP_MASK, bits // 8),
            here,
            self.lanes.constant(otherwise, bits),
        ]
        return self.build_.call(function, arguments)

    def _scatter(self, base: Value, offset: Value, value: Value, here: Value) -> None:
        bits = value.type.element.width
        name = f"llvm.masked.scatter.v{LANES}i{bits}.v{LANES}p0"
        function = self.function.module.globals.get(name)
        if function is None:
            signature = ir.FunctionType(ir.VoidType(), [vector(bits), _POINTERS, WARP_MASK, vector(1)])
            function = ir.Function(self.function.module, signature, name)
        self.build_.call(function, [value, self._pointers(base, offset), ir.Constant(WARP_MASK, bits // 8), here])

    def element(self, number: int) -> Value:
        """Where the values of an element lie, one for each lane."""
        return at(self.build_, self.values, number * LANES * self.variant.size)

    def row(self, address: Value) -> Value:
        """The row of the region that an address lies in."""
        build = self.build_
        regions = build.inttoptr(field(build, self.context, Context.REGIONS), POINTER)
        if self.variant.space != "generic":
            return at(build, regions, {"shared": SHARED_ROW, "local": LOCAL_ROW}[self.variant.space] * ROW_BYTES)
        number = build.add(build.lshr(address, word(WINDOW_BITS)), word(FIRST_BUFFER_ROW - 1))
        top = build.lshr(address, word(56))
        number = build.select(build.icmp_unsigned("==", top, word(SHARED_WINDOW >> 56)), word(SHARED_ROW), number)
        number = build.select(build.icmp_unsigned("==", top, word(LOCAL_WINDOW >> 56)), word(LOCAL_ROW), number)
        low = build.icmp_unsigned("<", address, word(1 << WINDOW_BITS))
        beyond = build.icmp_unsigned(">=", number, field(build, self.context, Context.REGION_COUNT))
        leave_if(build, build.or_(low, beyond), 1)
        row = at(build, regions, build.mul(number, word(ROW_BYTES)))
        self._leave_where_a_lane_may_not(row)
        return row

    def _leave_where_a_lane_may_not(self, row: Value) -> None:
        """The grid before this one may still write the region, and a lane has not waited for its end."""
        build, admitted = self.build_, field(self.build_, row, Row.ADMITTED)
        with build.if_then(build.icmp_unsigned("!=", admitted, word(0)), likely=False):
            if not self.variant.coherent:
                build.ret(ir.Constant(WARP_MASK, 1))
                return
            masks = build.inttoptr(admitted, POINTER)
            admitted = build.load(build.gep(masks, [self.warp], source_etype=WARP_MASK), typ=WARP_MASK)
            missing = build.and_(self.mask, build.not_(admitted))
            leave_if(build, build.icmp_unsigned("!=", missing, ir.Constant(WARP_MASK, 0)), 1)

    def without_owner(self, address: Value, first: Value) -> Value:
        """Addresses without the upper bits of those in the lanes' own local memory, if the first one lies in such."""
        build = self.build_
        local = build.icmp_unsigned("==", build.lshr(first, word(56)), word(LOCAL_WINDOW >> 56))
        before = build.block
        with build.if_then(local, likely=False):
            threads = self._threads(build.add(field(build, self.context, Context.FIRST_THREAD), word(1)))
            moved, inner = build.sub(address, owned(self.lanes, threads)), build.block
        found = build.phi(vector(64))
        found.add_incoming(address, before)
        found.add_incoming(moved, inner)
        return found

    def base(self, row: Value) -> Value:
        """The address of a region's first byte in the space of the access."""
        return word(OWN_BASE) if self.variant.space != "generic" else field(self.build_, row, Row.BASE)

    def _inside(self, row: Value, address: Value, left: Value) -> Value:
        """The lanes of `left` whose access lies in this region; leaves if there is none, or one is misaligned."""
        build, width = self.build_, self.variant.width
        size = field(build, row, Row.SIZE)
        leave_if(build, build.icmp_unsigned("<", size, word(width)), 1)
        offset = build.sub(address, self.splat(self.base(row)))
        fits = build.icmp_unsigned("<=", offset, self.splat(build.sub(size, word(width))))
        here = build.and_(fits, build.bitcast(left, vector(1)))
        wrong = build.not_(self.any(here))
        if width > 1:
            low = build.and_(offset, self.lanes.constant(width - 1, 64))
            crooked = build.icmp_unsigned("!=", low, self.lanes.constant(0, 64))
            wrong = build.or_(wrong, self.any(build.and_(crooked, here)))
        leave_if(build, wrong, 1)
        return here

    def _index(self, row: Value, offset: Value) -> Value:
        """Bytes into the data of a region: those of all CTAs, or of all lanes, lie one behind the other."""
        build = self.build_
        if self.variant.space == "shared":
            return build.add(offset, self.splat(self.of_cta(row)))
        own = build.mul(self._threads(word(0)), self.splat(field(build, row, Row.STRIDE)))
        if self.variant.space == "local":
            return build.add(offset, own)
        return build.add(build.add(offset, own), self.splat(self.of_cta(row)))

    def of_cta(self, row: Value) -> Value:
        """Where the CTA's shared memory begins in the data, if that is what the row is of; else 0."""
        build = self.build_
        shared = build.inttoptr(field(build, self.context, Context.SHARED_OFFSET), POINTER)
        begin = build.load(build.gep(shared, [self.warp], source_etype=WORD), typ=WORD)
        if self.variant.space == "shared":
            return begin
        regions = field(build, self.context, Context.REGIONS)
        is_shared = build.icmp_unsigned(
            "==", build.ptrtoint(row, WORD), build.add(regions, word(SHARED_ROW * ROW_BYTES))
        )
        return build.select(is_shared, begin, word(0))

    def _threads(self, first: Value, spread: Spread = BY_LANE) -> Value:
        """`first` plus the number, among all lanes of the machine, of the lane of each element."""
        build = self.build_
        return build.add(self.splat(build.add(first, build.mul(self.warp, word(LANES)))), self.of_lane(spread))

    def of_lane(self, spread: Spread) -> Value:
        """The lane of the warp that each element is of."""
        build, numbers = self.build_, ir.Constant(vector(64), list(range(LANES)))
        if spread is BY_LANE:
            return numbers
        return build.lshr(build.add(self.splat(spread.first), numbers), self.splat(spread.shift))

    def _each_page(self, row: Value, page: Value, wanted: Value, function: Any) -> None:
        """Call `function(row, page)` for the lanes `wanted`, if there are any."""
        build = self.build_
        before = build.bitcast(wanted, WARP_MASK)
        with build.if_then(build.icmp_unsigned("!=", before, ir.Constant(WARP_MASK, 0)), likely=False):
            above, loop, after = build.block, build.append_basic_block(), build.append_basic_block()
            build.branch(loop)
            build.position_at_end(loop)
            left = build.phi(WARP_MASK)
            left.add_incoming(before, above)
            build.call(function, [row, build.extract_element(page, lowest(build, left))])
            rest = build.and_(left, build.sub(left, ir.Constant(WARP_MASK, 1)))
            left.add_incoming(rest, loop)
            build.cbranch(build.icmp_unsigned("!=", rest, ir.Constant(WARP_MASK, 0)), loop, after)
            build.position_at_end(after)
