"""Shifts by any amount, and masks of any length.

LLVM makes poison of a shift by the register's width and more; PTX fills with zeros or with the sign. A `select` may be
given poison on the side that it does not choose, lane by lane, and CPUs whose vector shifts fill as PTX does need
nothing but the shift for the two together.
"""

from __future__ import annotations

from refmoe.ptx.ops.lanes import LaneBuilder, Value


def left(lanes: LaneBuilder, value: Value, amount: Value) -> Value:
    """Shifted up; 0 by the width and more. The amount is an unsigned register of any width."""
    bits = value.type.element.width
    moved = lanes.build.shl(value, lanes.resize(amount, bits))
    return lanes.build.select(_within(lanes, amount, bits), moved, lanes.constant(0, bits))


def right(lanes: LaneBuilder, value: Value, amount: Value, signed: bool = False) -> Value:
    """Shifted down and filled with zeros, or with the sign."""
    bits = value.type.element.width
    if signed:
        amount = lanes.intrinsic("umin", amount, lanes.constant(bits - 1, amount.type.element.width))
        return lanes.build.ashr(value, lanes.resize(amount, bits))
    moved = lanes.build.lshr(value, lanes.resize(amount, bits))
    return lanes.build.select(_within(lanes, amount, bits), moved, lanes.constant(0, bits))


def ones(lanes: LaneBuilder, count: Value, bits: int) -> Value:
    """Registers of `bits` bits with ones in the low `count` of them."""
    return lanes.inverted(left(lanes, lanes.constant(-1, bits), count))


def _within(lanes: LaneBuilder, amount: Value, bits: int) -> Value:
    return lanes.build.icmp_unsigned("<", amount, lanes.constant(bits, amount.type.element.width))
