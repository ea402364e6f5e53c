"""Whether lanes leave the shared variable that their address was made from, as native code."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from llvmlite import ir

from refmoe.ptx.native.scalar import WARP_MASK
from refmoe.ptx.ops.lanes import LaneBuilder, Value
from refmoe.ptx.program.provenance import Bounds
from refmoe.ptx.state.spaces import OWN_BASE, SHARED_WINDOW


def leaves(
    lanes: LaneBuilder, build: Any, address: Value, acting: Value, bounds: Bounds, space: str, width: int
) -> Value:
    """Whether an acting lane does: `address` is of `space`, shared or generic, and `width` bytes are accessed."""
    room = bounds.end - bounds.begin - width
    if room < 0:
        return build.icmp_unsigned("!=", build.bitcast(acting, WARP_MASK), ir.Constant(WARP_MASK, 0))
    base = OWN_BASE + bounds.begin + (SHARED_WINDOW if space == "generic" else 0)
    offset = build.sub(address, lanes.constant(base, 64))
    beyond = build.and_(build.icmp_unsigned(">", offset, lanes.constant(room, 64)), acting)
    return build.icmp_unsigned("!=", build.bitcast(beyond, WARP_MASK), ir.Constant(WARP_MASK, 0))


def either(build: Any, rare: Value, does: Callable[[], Value], otherwise: Callable[[], Value]) -> Value:
    """What one of two calls returns: the first where a condition holds, which is seldom."""
    with build.if_else(rare, likely=False) as (then, other):
        with then:
            one, after_one = does(), build.block
        with other:
            two, after_two = otherwise(), build.block
    result = build.phi(WARP_MASK)
    result.add_incoming(one, after_one)
    result.add_incoming(two, after_two)
    return result
