"""Shifts by any amount, and masks of any length.

LLVM makes poison of a shift by the register's width and more; PTX fills with zeros or with the sign. A `select` may be
given poison on the side that it does not choose, lane by lane, and CPUs whose vector shifts fill as PTX does need
nothing but the shift for the two together.
"""

from __future__ import annotations

from collections.abc import Callable

from refmoe.ptx.ops.lanes import LaneBuilder, Value


def left(lanes: LaneBuilder, value: Value, amount: Value) -> Value:
    """Shifted up; 0 by the width and more. The amount is an unsigned register of any width."""
    return _shifted(lanes, lanes.build.shl, value, amount)


def right(lanes: LaneBuilder, value: Value, amount: Value, signed: bool = False) -> Value:
    """Shifted down and filled with zeros, or with the sign."""
    if signed:
        bits = value.type.element.width
        amount = lanes.intrinsic("umin", amount, lanes.constant(bits - 1, amount.type.element.width))
        return lanes.build.ashr(value, lanes.resize(amount, bits))
    return _shifted(lanes, lanes.build.lshr, value, amount)


def ones(lanes: LaneBuilder, count: Value, bits: int) -> Value:
    """Registers of `bits` bits with ones in the low `count` of them."""
    return lanes.inverted(left(lanes, lanes.constant(-1, bits), count))


def _shifted(lanes: LaneBuilder, shift: Callable[[Value, Value], Value], value: Value, amount: Value) -> Value:
    bits = value.type.element.width
    if (known := lanes.known(amount)) is not None:
        # Of most shifts the amount stands in the text.
        return shift(value, lanes.constant(known, bits)) if known < bits else lanes.constant(0, bits)
    inside = lanes.build.icmp_unsigned("<", amount, lanes.constant(bits, amount.type.element.width))
    return lanes.build.select(inside, shift(value, lanes.resize(amount, bits)), lanes.constant(0, bits))
