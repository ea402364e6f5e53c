"""Loads and stores of one warp as native code, with every check that finds nothing.

A function does an access only if all of it is in order: addresses inside one buffer each, aligned, initialised, and
ordered after whatever touched the bytes before. Otherwise it returns 1 and the warp does the whole access in Python, by
`refmoe.ptx.engine.access`, which knows what to report. What is left behind then is what that access writes again.

The race rules are those of `refmoe.ptx.engine.races`, whose records these functions read and write.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache
from typing import Any

from llvmlite import ir

from refmoe.native.compiler import Native
from refmoe.native.expressions import I32, I64, Code
from refmoe.ptx.native.consecutive import Consecutive, Reads
from refmoe.ptx.native.context import (
    FIRST_BUFFER_ROW,
    LOCAL_ROW,
    ROW_BYTES,
    SHARED_ROW,
    Context,
    Row,
)
from refmoe.ptx.native.exchange import owned
from refmoe.ptx.native.order import displaced, is_ordered, merged
from refmoe.ptx.native.pages import keep, refine
from refmoe.ptx.native.rows import FORMS, RowLoads
from refmoe.ptx.native.scalar import (
    POINTER,
    WARP_MASK,
    WORD,
    at,
    call_pointer,
    column_bit,
    counted,
    field,
    leave_if,
    room,
    word,
)
from refmoe.ptx.ops.lanes import LANES, LaneBuilder, Value, vector
from refmoe.ptx.state import records
from refmoe.ptx.state.pages import PAGE, PAGE_SHIFT, POISON
from refmoe.ptx.state.spaces import LOCAL_WINDOW, OWN_BASE, SHARED_WINDOW, WINDOW_BITS

# The bits of records, as Python integers.
_THREAD, _LANE, _SEVERAL = int(records.THREAD), int(records.LANE), int(records.SEVERAL)
_APART, _STEP_SHIFT = int(records.ASYNCHRONOUS | records.BULK | records.SEVERAL), records.STEP_SHIFT
_LANES_OF_A_WARP = int(records.Several.LANES) << records.SEVERAL_SHIFT
_LINE_SHIFT = 7
_POINTERS = ir.VectorType(POINTER, LANES)
_BOOL = ir.IntType(1)
# (context, warp, mask, addresses, values) -> 0, or 1 where Python must do it.
SIGNATURE = ir.FunctionType(WARP_MASK, [POINTER, WORD, WARP_MASK, POINTER, POINTER])


@dataclass(frozen=True)
class Variant:
    """A function for one kind of access.

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

    @property
    def name(self) -> str:
        """Of the function."""
        verb = "store" if self.stores else "load" if self.coherent else "load_nc"
        return f"{verb}_{self.space}_{self.count}x{self.size}"

    @property
    def address(self) -> int:
        """Of the function, which lives as long as the process."""
        return _compiled(self).address(self.name)


@cache
def _compiled(variant: Variant) -> Native:
    return Native.of(lambda: _text(variant), "memory", variant.name, level=2)


def _text(variant: Variant) -> str:
    module = ir.Module()
    one = is_ordered(module)
    rules = Rules(_ordered(module, one), _displace(module, displaced(module, one, merged(module))))
    pages = refine(module, variant.width), keep(module)
    built = ir.Function(module, SIGNATURE, variant.name)
    if variant.space == "local":
        # Neighbouring lanes have different bytes of it.
        AccessBody(variant, built, rules, *pages).build()
        return str(module)
    anywhere = ir.Function(module, SIGNATURE, "anywhere")
    anywhere.linkage = "internal"
    # The short way has few registers to save, and nothing to prepare.
    anywhere.attributes.add("noinline")
    AccessBody(variant, anywhere, rules, *pages).build()
    if not variant.stores and variant.coherent:
        for number, form in enumerate(FORMS.get((variant.size, variant.count), ())):
            rows = ir.Function(module, SIGNATURE, f"rows_{number}")
            rows.linkage = "internal"
            rows.attributes.add("noinline")
            RowLoads(AccessBody(variant, rows, rules, *pages), *form).build(anywhere)
            anywhere = rows
    Consecutive(AccessBody(variant, built, rules, *pages)).build(anywhere)
    return str(module)


@dataclass(frozen=True)
class Rules:
    """Functions of the module that say what orders accesses.

    Attributes:
        ordered: see `_ordered`.
        displace: see `_displace`.
    """

    ordered: Any
    displace: Any


def _lane(build: Any, mask: Value) -> Value:
    """The lowest lane of a mask of 32 bits that is not 0."""
    return build.cttz(mask, ir.Constant(_BOOL, 1))


def _ordered(module: Any, one: Any) -> Any:
    """`ordered(context, warp, lanes, records) -> lanes` that are not ordered: `is_ordered`, one after another."""
    code = Code(module, "ordered", [POINTER, I64, I32, POINTER], inner=True, result=I32)
    context, warp, lanes, held = code.arguments
    unordered = code.variable(I32, 0)
    with code.each_bit(lanes) as bit:
        lane = bit.to(I64, signed=False)
        record = code.load(I64, held + lane * 8, align=8)
        fine = code.call(one, context, (warp << 5) + lane, record)
        with code.when(fine ^ True):
            unordered.set(unordered.get() | (code.constant(I32, 1) << bit))
    code.done(unordered.get())
    return code.function


def _displace(module: Any, one: Any) -> Any:
    """`displace(context, warp, lanes, others, previous)`: `displaced`, one after another, into `others`."""
    code = Code(module, "displace", [POINTER, I64, I32, POINTER, POINTER], inner=True)
    context, warp, lanes, others, previous = code.arguments
    with code.each_bit(lanes) as bit:
        lane = bit.to(I64, signed=False)
        place = others + lane * 8
        last = code.load(I64, previous + lane * 8, align=8)
        kept = code.call(one, context, (warp << 5) + lane, code.load(I64, place, align=8), last)
        code.store(kept, place, align=8)
    code.done()
    return code.function


def call_slow(build: Any, context: Value, arguments: list[Value]) -> Value:
    """Call Python: (site, warp, mask, addresses, values) -> 0, or 1 if it raised."""
    slow = build.inttoptr(field(build, context, Context.SLOW), POINTER)
    signature = ir.FunctionType(WARP_MASK, [WORD, WORD, WARP_MASK, POINTER, POINTER])
    return call_pointer(build, slow, signature, arguments)


def access_function(module: Any) -> Any:
    """`access(context, warp, mask, addresses, values, site, native)`: by that function or by Python; 1 if it raised."""
    function = ir.Function(module, ir.FunctionType(WARP_MASK, [*SIGNATURE.args, WORD, POINTER]), "access")
    function.linkage = "internal"
    function.attributes.add("noinline")
    context, warp, bits, places, values, site, native = function.args
    build = ir.IRBuilder(function.append_basic_block())
    zero = ir.Constant(WARP_MASK, 0)
    with build.if_then(build.icmp_unsigned("==", bits, zero)):
        build.ret(zero)
    status = call_pointer(build, native, SIGNATURE, [context, warp, bits, places, values])
    with build.if_then(build.icmp_unsigned("==", status, zero), likely=True):
        build.ret(zero)
    build.ret(call_slow(build, context, [site, warp, bits, places, values]))
    return function


class AccessBody:
    """The body of one variant. Values of all lanes are vectors; `here` is the mask of the lanes of one region."""

    def __init__(self, variant: Variant, function: Any, rules: Rules, refine: Any, keep: Any) -> None:
        self.variant = variant
        self.rules, self.refine, self.keep = rules, refine, keep
        self.context, self.warp, self.mask, self.addresses, self.values = function.args
        self.function = function
        build = self.build_ = ir.IRBuilder(function.append_basic_block("entry"))
        self.lanes = LaneBuilder(function.module, build, build.bitcast(self.mask, vector(1)))
        self.records, self.others, self.state = room(build, vector(64)), room(build, vector(64)), room(build, WORD)

    def build(self) -> None:
        """Region after region, until all lanes are served."""
        build, lanes, variant = self.build_, self.lanes, self.variant
        address = build.load(self.addresses, typ=vector(64), align=32)
        if not variant.stores:
            for element in range(variant.count):
                build.store(lanes.constant(0, variant.size * 8), self.element(element), align=32)
        loop, done = (self.function.append_basic_block(name) for name in ("region", "done"))
        before = build.block
        build.branch(loop)
        build.position_at_end(loop)
        left = build.phi(WARP_MASK)
        left.add_incoming(self.mask, before)
        first = build.extract_element(address, _lane(build, left))
        row = self.row(first)
        if variant.space == "generic":
            address = self._without_owner(address, first)
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
            build.store(word(1), at(build, self.context, Context.CHANGED * 8))
        build.ret(ir.Constant(WARP_MASK, 0))

    # Vectors

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
        kind = vector(bits)
        name = f"llvm.masked.gather.v{LANES}i{bits}.v{LANES}p0"
        function = self.function.module.globals.get(name)
        if function is None:
            signature = ir.FunctionType(kind, [_POINTERS, WARP_MASK, vector(1), kind])
            function = ir.Function(self.function.module, signature, name)
        arguments = [
            self._pointers(base, offset),
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

    # Where

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
        return at(build, regions, build.mul(number, word(ROW_BYTES)))

    def _without_owner(self, address: Value, first: Value) -> Value:
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

    def _threads(self, first: Value) -> Value:
        """`first` plus the lane number among all lanes of the machine."""
        build = self.build_
        lane = ir.Constant(vector(64), list(range(LANES)))
        return build.add(self.splat(build.add(first, build.mul(self.warp, word(LANES)))), lane)

    # The access

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
            build.call(function, [row, build.extract_element(page, _lane(build, left))])
            rest = build.and_(left, build.sub(left, ir.Constant(WARP_MASK, 1)))
            left.add_incoming(rest, loop)
            build.cbranch(build.icmp_unsigned("!=", rest, ir.Constant(WARP_MASK, 0)), loop, after)
            build.position_at_end(after)

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

    # Races

    def _granules(self, row: Value, index: Value, here: Value) -> tuple[Value, Value, Value]:
        """(slot of the first granule of each lane, how many each access has, and most of all), see `Granules`."""
        build, lanes, own = self.build_, self.lanes, self.variant.width.bit_length()
        states = field(build, row, Row.PAGE_STATES)
        page = build.lshr(index, lanes.constant(PAGE_SHIFT, 64))
        first = build.extract_element(page, _lane(build, build.bitcast(here, WARP_MASK)))
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
        return slots, counts, build.lshr(word(self.variant.width), scalar)

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

    def mine(self) -> Value:
        """The record of an access by each lane now, or at any time where it is not coherent."""
        build = self.build_
        # Of `never` in `refmoe.ptx.engine.races`.
        step = word((records.PENDING << _STEP_SHIFT) | int(records.ASYNCHRONOUS))
        if self.variant.coherent:
            step = build.shl(field(build, self.context, Context.NOW), word(_STEP_SHIFT))
        return self._threads(build.add(step, field(build, self.context, Context.FIRST_THREAD)))

    def refuse_unordered(self, previous: Value, mine: Value, here: Value) -> None:
        """Leave if a record of somebody else's access is not ordered before this one."""
        build, lanes = self.build_, self.lanes
        other = build.or_(self._has(build.xor(previous, mine), _THREAD), self._has(previous, _APART))
        some = build.icmp_unsigned("!=", previous, lanes.constant(0, 64))
        if not self.variant.coherent:
            leave_if(build, self.any(build.and_(some, here)), 1)
            return
        suspects = build.and_(build.and_(some, other), here)
        with build.if_then(self.any(suspects)):
            left = build.bitcast(build.and_(suspects, build.not_(self._known(previous, suspects))), WARP_MASK)
            with build.if_then(build.icmp_unsigned("!=", left, ir.Constant(WARP_MASK, 0))):
                build.store(previous, self.records, align=32)
                found = build.call(self.rules.ordered, [self.context, self.warp, left, self.records])
                leave_if(build, build.icmp_unsigned("!=", found, ir.Constant(WARP_MASK, 0)), 1)

    def _known(self, record: Value, asked: Value) -> Value:
        """The lanes of `asked` that know the whole warp of a record, the copies of its thread, or the barrier on which
        its bulk copy completes: the most common records, all at once. What `is_ordered` says of the others is not known
        here."""
        build, lanes = self.build_, self.lanes
        # A lane may have a row of its own.
        apart = build.inttoptr(field(build, self.context, Context.APART), POINTER)
        bits = build.trunc(build.load(build.gep(apart, [self.warp], source_etype=WORD), typ=WORD), WARP_MASK)
        theirs = self._threads(field(build, self.context, Context.ALL_WARPS))
        row = build.select(build.bitcast(bits, vector(1)), theirs, self.splat(self.warp))
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
        behind_threads = build.add(thread, self.splat(build.mul(warps, word(1 + LANES))))
        agent = build.select(
            build.icmp_unsigned("<", thread, lanes.constant(records.AGENTS - 1, 64)),
            thread,
            lanes.constant(records.AGENTS - 1, 64),
        )
        behind_copies = build.add(agent, self.splat(build.mul(warps, word(1 + 2 * LANES))))
        for flag, context, place in (
            (records.ASYNCHRONOUS, Context.BY_LANE, behind_threads),
            (records.BULK, Context.BULK, behind_copies),
        ):
            kept = build.icmp_unsigned("!=", field(build, self.context, context), word(0))
            such = build.icmp_unsigned("==", kind, lanes.constant(int(flag), 64))
            such = build.and_(such, build.bitcast(build.sext(kept, WARP_MASK), vector(1)))
            column = build.select(such, place, column)
            fine = build.or_(fine, such)
        fine = build.and_(build.and_(asked, inside), fine)
        columns = self.splat(field(build, self.context, Context.SEEN_COLUMNS))
        place = build.shl(build.add(build.mul(row, columns), column), lanes.constant(3, 64))
        reached = self._gather(field(build, self.context, Context.SEEN), place, 64, fine)
        step = build.lshr(record, lanes.constant(_STEP_SHIFT, 64))
        return build.and_(fine, build.icmp_signed(">=", reached, step))

    def _order_load(self, row: Value, index: Value, here: Value) -> None:
        build, lanes = self.build_, self.lanes
        first, counts, most = self._granules(row, index, here)
        mine = self.mine()
        writes, reads = field(build, row, Row.WRITES), self.own_reads(row)
        self._use_columns(row, index, here, self.columns_of_loads(reads))
        self._note_steps(row, index, here, reads)
        eight = lanes.constant(3, 64)
        with counted(build, most) as number:
            active = self._with(number, counts, here)
            slot = build.shl(build.add(first, self.splat(number)), eight)
            self.refuse_unordered(self._gather(writes, slot, 64, active), mine, active)
            previous = self._gather(reads.column, slot, 64, active)
            elsewhere, record = self.reader(previous, mine)
            elsewhere = build.and_(elsewhere, active)
            with build.if_then(build.and_(build.not_(reads.apart), self.any(elsewhere))):
                others = self._gather(reads.next, slot, 64, elsewhere)
                self._scatter(reads.next, slot, self.displaced(others, previous, elsewhere), elsewhere)
            self._scatter(reads.column, slot, record, active)
            differs = build.xor(self._gather(reads.column, slot, 64, active), record)
            lost = build.and_(self._has(differs, _LANE), active)
            with build.if_then(self.any(lost)):
                several = build.or_(mine, lanes.constant(_LANES_OF_A_WARP, 64))
                self._scatter(reads.column, slot, several, lost)
        self._note_line(row, Row.READ_STEPS, index, here)

    def columns_of_loads(self, reads: Reads) -> Value:
        """The columns that loads of this warp write, a bit each."""
        build = self.build_
        # A first column of last reads, and a second one of other warps' reads.
        return build.select(reads.apart, column_bit(build, build.add(reads.number, word(1))), word(2 | 4))

    def _use_columns(self, row: Value, index: Value, here: Value, columns: Value) -> Value:
        """Say that these pages have records in some columns. Returns those that any of them had, a bit each."""
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
        by_warp = build.icmp_unsigned("!=", field(build, row, Row.READERS), word(0))
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
        build, lanes = self.build_, self.lanes
        return build.icmp_unsigned("!=", build.and_(value, lanes.constant(bits, 64)), lanes.constant(0, 64))

    def reader(self, previous: Value, mine: Value) -> tuple[Value, Value]:
        """(the lanes before whom a lane of another warp read, the record of their read)."""
        build, lanes = self.build_, self.lanes
        own = build.urem(self.warp, field(build, self.context, Context.WARPS))
        seen = build.inttoptr(field(build, self.context, Context.SEEN), POINTER)
        place = build.add(build.mul(self.warp, field(build, self.context, Context.SEEN_COLUMNS)), own)
        known = self.splat(build.load(build.gep(seen, [place], source_etype=WORD), typ=WORD))
        differs = build.xor(previous, mine)
        elsewhere = self._has(differs, _THREAD & ~_LANE)
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
                apart = build.call(self.rules.ordered, [self.context, self.warp, together, self.records])
                end_of_then = build.block
            with otherwise:
                end_of_otherwise = build.block
        left = build.phi(WARP_MASK)
        left.add_incoming(apart, end_of_then)
        left.add_incoming(together, end_of_otherwise)
        together = build.bitcast(left, vector(1))
        record = build.select(together, build.or_(mine, lanes.constant(_LANES_OF_A_WARP, 64)), mine)
        return build.and_(elsewhere, self._has(previous, -1)), record

    def displaced(self, others: Value, previous: Value, elsewhere: Value) -> Value:
        """The records of the readers but the last one of each granule, of which `previous` was one."""
        build = self.build_
        somebody = build.bitcast(build.and_(elsewhere, self._has(others, -1)), WARP_MASK)
        kept = build.select(self._has(others, -1), others, previous)
        build.store(kept, self.others, align=32)
        with build.if_then(build.icmp_unsigned("!=", somebody, ir.Constant(WARP_MASK, 0))):
            build.store(previous, self.records, align=32)
            build.call(self.rules.displace, [self.context, self.warp, somebody, self.others, self.records])
        return build.load(self.others, typ=vector(64), align=32)

    def _order_store(self, row: Value, index: Value, here: Value) -> None:
        build, lanes = self.build_, self.lanes
        first, counts, most = self._granules(row, index, here)
        mine = self.mine()
        writes, reads = field(build, row, Row.WRITES), field(build, row, Row.READS)
        columns, column_bytes = field(build, row, Row.COLUMNS), field(build, row, Row.COLUMN_BYTES)
        used = self._use_columns(row, index, here, word(1))
        somebody_read = build.icmp_unsigned("!=", build.lshr(used, word(1)), word(0))
        eight = lanes.constant(3, 64)
        with counted(build, most) as number:
            active = self._with(number, counts, here)
            slot = build.shl(build.add(first, self.splat(number)), eight)
            self.refuse_unordered(self._gather(writes, slot, 64, active), mine, active)
            with build.if_then(somebody_read), counted(build, columns) as column:
                in_use = build.and_(used, column_bit(build, build.add(column, word(1))))
                with build.if_then(build.icmp_unsigned("!=", in_use, word(0))):
                    begin = build.add(reads, build.mul(column, column_bytes))
                    self.refuse_unordered(self._gather(begin, slot, 64, active), mine, active)
        with counted(build, most) as number:
            slot = build.shl(build.add(first, self.splat(number)), eight)
            self._scatter(writes, slot, mine, self._with(number, counts, here))
        self._note_line(row, Row.WRITE_STEPS, index, here)

    def _note_line(self, row: Value, steps: Row, index: Value, here: Value) -> None:
        """Where bulk copies look whole lines up: this warp accessed these lines now."""
        build, lanes = self.build_, self.lanes
        table = field(build, row, steps)
        with build.if_then(build.icmp_unsigned("!=", table, word(0))):
            own, columns = self.line_columns(row, steps)
            line = build.mul(build.lshr(index, lanes.constant(_LINE_SHIFT, 64)), self.splat(columns))
            slot = build.shl(build.add(line, self.splat(own)), lanes.constant(3, 64))
            self._scatter(table, slot, self.splat(field(build, self.context, Context.NOW)), here)

    def line_columns(self, row: Value, steps: Row) -> tuple[Value, Value]:
        """(column of this warp in a table of lines, columns of that table)."""
        build = self.build_
        warps = field(build, self.context, Context.WARPS)
        columns = field(build, row, Row.READ_STEP_COLUMNS) if steps is Row.READ_STEPS else warps
        return build.urem(self.warp, warps), columns
