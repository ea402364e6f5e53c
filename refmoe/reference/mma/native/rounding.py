"""Exact sums, float64, rounded to the values of an accumulator."""

from __future__ import annotations

from refmoe.native.expressions import F32, I32, Code, Value, vector
from refmoe.reference.mma.native.decode import exponent_of, power_of_two
from refmoe.reference.mma.native.shape import DOUBLES, F64_FRACTION, WORDS, Rule

NAN_BITS = 0x7FFFFFFF
"""The NaN that every chain writes."""


def own_exponent(code: Code, rule: Rule, c: Value) -> Value:
    """What C alone aligns to: its exponent where it is not zero, and at least the floor."""
    # An infinite C must not align to a unit so large that a product times its inverse is 0: another is infinite.
    exponent = code.min(code.max(exponent_of(c), rule.accumulator.emin), rule.accumulator.emax + 1)
    return code.max(code.select(c.equals(0.0), rule.floor, exponent), rule.floor)


def rounded(code: Code, rule: Rule, total: Value) -> Value:
    """The accumulator's value of an exact sum: every zero is +0."""
    accumulator = rule.accumulator
    exponent = exponent_of(total)
    if rule.to_nearest:
        return _rounded_anywhere(code, rule, total, exponent)
    # A normal number that is no infinity loses its last bits.
    kept = -1 << (F64_FRACTION - rule.result_bits)
    result = code.variable(DOUBLES, (total.as_bits(WORDS) & kept).as_bits(DOUBLES))
    unusual = (exponent < accumulator.emin) | (exponent > accumulator.emax)
    with code.when(code.any(unusual), likely=False):
        result.set(_rounded_anywhere(code, rule, total, exponent))
    return result.get()


def _rounded_anywhere(code: Code, rule: Rule, total: Value, exponent: Value) -> Value:
    unit = code.max(exponent, rule.accumulator.emin) - rule.result_bits
    whole = code.intrinsic("roundeven" if rule.to_nearest else "trunc", total * power_of_two(-unit))
    value = whole * power_of_two(unit) + 0.0
    infinity = code.intrinsic("copysign", code.constant(DOUBLES, float("inf")), value)
    return code.select(code.intrinsic("fabs", value) > float(rule.accumulator.max), infinity, value)


def canonical(code: Code, value: Value) -> Value:
    """The bits of float64 values that float32 has: every NaN becomes 0x7FFFFFFF."""
    count = value.type.count
    bits = value.to(vector(F32, count)).as_bits(vector(I32, count))
    return code.select(value.differs(value), NAN_BITS, bits)
