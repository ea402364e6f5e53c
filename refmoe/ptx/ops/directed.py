"""Rounding toward zero, down, up and to odd: the nearest number, and one step from it where it is on the wrong side.

Results of FP32 and of halves are known as a sum of two FP64 (or FP32) numbers, the first of them next to the result.
For FP64 there is no wider format: `compare` finds the sign of what rounding to nearest took away, in three parts that
are exact.
"""

from __future__ import annotations

from collections.abc import Sequence

from refmoe.ptx.isa.floats import F64, Float
from refmoe.ptx.ops.ieee import DOUBLE, SINGLE, constant
from refmoe.ptx.ops.lanes import LaneBuilder, Value


def two_sum(lanes: LaneBuilder, a: Value, b: Value) -> tuple[Value, Value]:
    """a + b to nearest, and its error, exactly (Knuth)."""
    build = lanes.build
    total = build.fadd(a, b)
    seen = build.fsub(total, a)
    return total, build.fadd(build.fsub(a, build.fsub(total, seen)), build.fsub(b, seen))


def step(lanes: LaneBuilder, bits: Value, above: Value, below: Value, rounding: str) -> Value:
    """Faithful results moved to the neighbour that a mode wants.

    Args:
        lanes: where to build.
        bits: a neighbour of the exact result, or that itself. An exact result that is not zero has its sign.
        above: lanes in which it lies above the exact result.
        below: lanes in which it lies below.
        rounding: "rz", "rm", "rp", or "odd": toward zero, and the last bit set if that lost something.

    Returns:
        Bit patterns. Counting in them goes through the subnormals and to infinity without a special case.
    """
    build = lanes.build
    width = bits.type.element.width
    negative = build.icmp_signed("<", bits, lanes.constant(0, width))
    if rounding in ("rz", "odd"):
        outside = lanes.resize(build.select(negative, below, above), width)
        result = build.sub(bits, outside)
        return build.or_(result, lanes.resize(build.or_(above, below), width)) if rounding == "odd" else result
    # One up in value is one up in a positive pattern, one down in a negative one.
    up = build.select(negative, lanes.constant(-1, width), lanes.constant(1, width))
    none = lanes.constant(0, width)
    if rounding == "rp":
        return build.add(bits, build.select(below, up, none))
    return build.sub(bits, build.select(above, up, none))


def odd_sum(lanes: LaneBuilder, a: Value, b: Value) -> Value:
    """a + b rounded to odd in their own format.

    Rounded again, to a format with two significant bits less or fewer, that is a + b rounded once (Boldo and
    Melquiond, IEEE TC 57(4), 2008).
    """
    build = lanes.build
    total, error = two_sum(lanes, a, b)
    zero = lanes.float_of(lanes.constant(0, 32))
    # The error of an infinite sum is NaN: it lies on neither side.
    above, below = build.fcmp_ordered("<", error, zero), build.fcmp_ordered(">", error, zero)
    return lanes.float_of(step(lanes, lanes.bits_of(total), above, below, "odd"))


def to_single(lanes: LaneBuilder, value: Value, error: Value | None, rounding: str) -> Value:
    """Bit patterns of FP32 for value + error.

    Args:
        lanes: where to build.
        value: FP64; nearest to the sum, or the quotient or root of FP32 numbers to nearest. Those are FP32 numbers
            only if they are exact: where x = a/b or x * x = a has no solution x in FP32, the true value is at least
            2^-49 of itself away from every FP32 number, because a and b have at most 24 significant bits.
        error: FP64, at most half a unit of `value`; None for none.
        rounding: as in `step`.
    """
    build = lanes.build
    near = build.fptrunc(value, SINGLE)
    back = build.fpext(near, DOUBLE)
    above, below = build.fcmp_ordered(">", back, value), build.fcmp_ordered("<", back, value)
    if error is not None:
        # `back` is a number of FP64 too: only if it is `value` does the error decide.
        zero, same = constant(lanes, 0.0), build.fcmp_ordered("==", back, value)
        above = build.or_(above, build.and_(same, build.fcmp_ordered("<", error, zero)))
        below = build.or_(below, build.and_(same, build.fcmp_ordered(">", error, zero)))
    return step(lanes, lanes.bits_of(near), above, below, rounding)


def zero_down(lanes: LaneBuilder, total: Value, zero: Value, terms: Sequence[Value], format: Float) -> Value:
    """Bit patterns of sums of two terms, -0 where they are exactly zero and a term is negative: as rounded down."""
    build = lanes.build
    signed = build.icmp_signed("<", build.or_(*terms), lanes.constant(0, format.bits))
    return build.select(build.and_(zero, signed), lanes.constant(format.sign, format.bits), total)


def compare(lanes: LaneBuilder, x: Value, y: Value, *terms: Value) -> tuple[Value, Value]:
    """Lanes in which x * y + terms is below zero, and those in which it is above, for any finite FP64 numbers.

    All are scaled by one power of two, so that the largest of the product and the terms is near 1. A factor or term
    that would fall below 2^-300 is put there: its sign alone counts. Either the others, of which none lies below
    2^-300, cancel exactly, or, as two of them cancel at most 106 bits, they leave more than 2^-110.
    """
    build = lanes.build
    (x, x_power), (y, y_power), *others = (_split(lanes, value) for value in (x, y, *terms))
    power = build.add(x_power, y_power)
    largest = power
    for _, other in others:
        largest = lanes.intrinsic("smax", largest, other)
    x = build.fmul(x, _power(lanes, build.sub(power, largest)))
    product = build.fmul(x, y)
    # From the least part to the largest; none overlaps the next (Shewchuk's expansions, growing by a term at a time).
    parts = [lanes.intrinsic("fma", x, y, build.fneg(product)), product]
    for value, other in others:
        carried, grown = build.fmul(value, _power(lanes, build.sub(other, largest))), []
        for part in parts:
            carried, rest = two_sum(lanes, carried, part)
            grown.append(rest)
        parts = [*grown, carried]
    zero = constant(lanes, 0.0)
    leading = parts[0]
    for part in parts[1:]:
        leading = build.select(build.fcmp_ordered("==", part, zero), leading, part)
    return build.fcmp_ordered("<", leading, zero), build.fcmp_ordered(">", leading, zero)


def _split(lanes: LaneBuilder, value: Value) -> tuple[Value, Value]:
    """A finite number as (significand, exponent): 1 <= |significand| < 2, or zero with an exponent below all others."""
    build = lanes.build
    exponent_of = F64.infinity
    subnormal = build.fcmp_ordered("<", lanes.intrinsic("fabs", value), constant(lanes, 2.0**-1022))
    bits = lanes.bits_of(build.select(subnormal, build.fmul(value, constant(lanes, 2.0**54)), value))
    field = build.lshr(build.and_(bits, lanes.constant(exponent_of, 64)), lanes.constant(52, 64))
    below = build.select(subnormal, lanes.constant(1023 + 54, 64), lanes.constant(1023, 64))
    rest = build.and_(bits, lanes.constant(~exponent_of, 64))
    significand = lanes.float_of(build.or_(rest, lanes.constant(F64.one, 64)))
    zero = build.fcmp_ordered("==", value, constant(lanes, 0.0))
    exponent = build.select(zero, lanes.constant(-9999, 64), build.sub(field, below))
    return build.select(zero, constant(lanes, 0.0), significand), exponent


def _power(lanes: LaneBuilder, exponent: Value) -> Value:
    """2^exponent, or 2^-300 where that is less; the exponent is not above zero."""
    build = lanes.build
    kept = lanes.intrinsic("smax", exponent, lanes.constant(-300, 64))
    return lanes.float_of(build.shl(build.add(kept, lanes.constant(1023, 64)), lanes.constant(52, 64)))
