"""Values that go between the lanes of a warp, as native code: `shfl`, `vote`, `elect`, `activemask`, `redux`.

The lanes of a member mask have met when such an instruction runs: those of the step are those that take part. The
specification is `refmoe.ptx.engine.warp`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import cache
from typing import Any

from llvmlite import ir

from refmoe.ptx.native.scalar import WARP_MASK
from refmoe.ptx.ops.lanes import LANES, LaneBuilder, Value, vector
from refmoe.ptx.state.spaces import OWNER_SHIFT
from refmoe.ptx.text.syntax import Immediate, Instruction

_NUMBERS = ir.Constant(vector(32), list(range(LANES)))
_FIRST, _FIRST_EVERYWHERE = ir.Constant(WARP_MASK, 0), ir.Constant(vector(32), None)


def splat(lanes: LaneBuilder, value: Value) -> Value:
    """A scalar in every lane."""
    undefined = _undefined(value.type.width)
    one = lanes.build.insert_element(undefined, value, _FIRST)
    return lanes.build.shuffle_vector(one, undefined, _FIRST_EVERYWHERE)


@cache
def _undefined(bits: int) -> Value:
    # Constants belong to no module: their text is made once.
    return ir.Constant(vector(bits), ir.Undefined)


def owned(lanes: LaneBuilder, owners: Value) -> Value:
    """The upper bits of generic addresses in the local memory of `owners`, numbers of threads and one."""
    return lanes.build.shl(owners, lanes.constant(OWNER_SHIFT, 64))


def acting(lanes: LaneBuilder) -> Value:
    """A bit for each acting lane, 32 bits in every lane: `activemask.b32`."""
    return splat(lanes, lanes.build.bitcast(lanes.mask, WARP_MASK))


def present(lanes: LaneBuilder, member: Value) -> Value:
    """For each lane the members of its mask that take part; the others have exited."""
    return lanes.build.and_(acting(lanes), member)


def source_lane(lanes: LaneBuilder, mode: str, amount: Value, control: Value) -> tuple[Value, Value]:
    """`shfl`'s pseudo-code: (the lane that each lane reads, whether it lies within its segment)."""
    build = lanes.build
    low5 = lanes.constant(31, 32)
    amount = build.and_(amount, low5)
    segment = build.and_(build.lshr(control, lanes.constant(8, 32)), low5)
    clamp = build.and_(control, low5)
    outside = build.and_(build.not_(segment), low5)
    low = build.and_(_NUMBERS, segment)
    high = build.or_(low, build.and_(clamp, outside))
    if mode == "up":
        source = build.sub(_NUMBERS, amount)
        within = build.icmp_signed(">=", source, high)
    else:
        source = {
            "down": lambda: build.add(_NUMBERS, amount),
            "bfly": lambda: build.xor(_NUMBERS, amount),
            "idx": lambda: build.or_(low, build.and_(amount, outside)),
        }[mode]()
        within = build.icmp_signed("<=", source, high)
    return build.select(within, source, _NUMBERS), within


def known_source(instruction: Instruction, mode: str) -> tuple[list[int], list[int]] | None:
    """`source_lane` where amount and control are constants: lanes, and 1 for each that lies within its segment."""
    amount, control = instruction.operands[2:4]
    if not isinstance(amount, Immediate) or not isinstance(control, Immediate):
        return None
    by, segment, clamp = amount.value & 31, control.value >> 8 & 31, control.value & 31
    sources, within = [], []
    for lane in range(LANES):
        low = lane & segment
        high = low | (clamp & ~segment & 31)
        source = {"up": lane - by, "down": lane + by, "bfly": lane ^ by, "idx": low | (by & ~segment & 31)}[mode]
        fits = source >= high if mode == "up" else source <= high
        sources.append(source if fits else lane)
        within.append(int(fits))
    return sources, within


def permuted(lanes: LaneBuilder, scratch: Value, value: Value, source: Value) -> Value:
    """`value` [32 bits] of lane `source`, which is below 32, in each lane; `scratch` has room for the values."""
    build = lanes.build
    build.store(value, scratch, align=32)
    result: Value = ir.Constant(vector(32), ir.Undefined)
    for lane in range(LANES):
        number = build.extract_element(source, ir.Constant(WARP_MASK, lane))
        held = build.load(build.gep(scratch, [number], source_etype=WARP_MASK), typ=WARP_MASK)
        result = build.insert_element(result, held, ir.Constant(WARP_MASK, lane))
    return result


def vote(lanes: LaneBuilder, mode: str, predicate: Value, member: Value) -> Value:
    """`vote.sync`: 32 bits for a ballot, else a predicate."""
    build = lanes.build
    here = present(lanes, member)
    yes = build.and_(splat(lanes, build.bitcast(build.and_(predicate, lanes.mask), WARP_MASK)), here)
    if mode == "ballot":
        return yes
    every = build.icmp_unsigned("==", yes, here)
    some = build.icmp_unsigned("!=", yes, lanes.constant(0, 32))
    return {"all": every, "any": some, "uni": build.or_(every, build.not_(some))}[mode]


def elect(lanes: LaneBuilder, member: Value, begin: Value) -> tuple[Value, Value]:
    """(lane of the first member from lane `begin` on, 32 bits [32], and round; whether this lane is it)."""
    build = lanes.build
    here = present(lanes, member)
    turned = lanes.intrinsic("fshr", here, here, begin)
    count = lanes.intrinsic("ctpop", build.and_(build.not_(turned), build.sub(turned, lanes.constant(1, 32))))
    lane = build.and_(build.add(count, begin), lanes.constant(31, 32))
    nobody = build.icmp_unsigned("==", here, lanes.constant(0, 32))
    leader = build.select(nobody, lanes.constant(0, 32), lane)
    return leader, build.icmp_unsigned("==", leader, _NUMBERS)


_FOLDS: Mapping[str, tuple[str, Callable[[int], int]]] = {
    # The reduction of LLVM, and what the lanes that take no part stand for.
    "add.u32": ("add", lambda bits: 0),
    "add.s32": ("add", lambda bits: 0),
    "and.b32": ("and", lambda bits: (1 << bits) - 1),
    "or.b32": ("or", lambda bits: 0),
    "xor.b32": ("xor", lambda bits: 0),
    "min.u32": ("umin", lambda bits: (1 << bits) - 1),
    "max.u32": ("umax", lambda bits: 0),
    "min.s32": ("smin", lambda bits: (1 << (bits - 1)) - 1),
    "max.s32": ("smax", lambda bits: 1 << (bits - 1)),
}


def redux(lanes: LaneBuilder, scratch: Value, what: str, value: Value, member: Value) -> Value:
    """`redux.sync`: in each lane the values of its members, folded; groups of one mask are folded one after another."""
    build = lanes.build
    name, neutral = _FOLDS[what]
    here = present(lanes, member)
    build.store(lanes.constant(0, 32), scratch, align=32)
    left_at_begin = build.bitcast(lanes.mask, WARP_MASK)
    before = build.block
    loop, done = build.append_basic_block(), build.append_basic_block()
    build.branch(loop)
    build.position_at_end(loop)
    left = build.phi(WARP_MASK)
    left.add_incoming(left_at_begin, before)
    lane = build.cttz(left, ir.Constant(ir.IntType(1), 1))
    group = build.extract_element(here, lane)
    inside = build.bitcast(group, vector(1))
    folded = _fold(lanes, name, build.select(inside, value, lanes.constant(neutral(32), 32)))
    alike = build.and_(build.icmp_unsigned("==", here, splat(lanes, group)), build.bitcast(left, vector(1)))
    old = build.load(scratch, typ=vector(32), align=32)
    build.store(build.select(alike, splat(lanes, folded), old), scratch, align=32)
    rest = build.and_(left, build.not_(build.bitcast(alike, WARP_MASK)))
    left.add_incoming(rest, build.block)
    build.cbranch(build.icmp_unsigned("!=", rest, ir.Constant(WARP_MASK, 0)), loop, done)
    build.position_at_end(done)
    return build.load(scratch, typ=vector(32), align=32)


def _fold(lanes: LaneBuilder, name: str, value: Value) -> Value:
    function_name = f"llvm.vector.reduce.{name}.v{LANES}i32"
    function: Any = lanes.module.globals.get(function_name)
    if function is None:
        function = ir.Function(lanes.module, ir.FunctionType(WARP_MASK, [value.type]), function_name)
    return lanes.build.call(function, [value])
