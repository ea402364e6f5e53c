"""The shared exponential, one input at a time: the specification of `refmoe.reference.exponential`.

Its constants are data and shared; the sequence is written again, on bits in exact rationals.
"""

from __future__ import annotations

from fractions import Fraction
from typing import SupportsFloat

from refmoe.formats import FP32
from refmoe.reference import exponential as constants
from refmoe.reference.scalar.arithmetic import NAN, add, fma, multiply, negate, rounded
from refmoe.reference.scalar.numbers import Number, NumberKind, decode

_ONE, _INFINITY, _ZERO = 0x3F800000, 0x7F800000, 0


def exponential(x: int) -> int:
    """FP32 bits of exp(x) by the written sequence, x given as bits."""
    number = decode(x, FP32)
    if number.kind is NumberKind.NAN:
        return NAN[FP32]
    value = float(number.magnitude) * (-1 if number.negative else 1)
    if number.kind is NumberKind.INFINITE or not float(constants.UNDERFLOW) <= value <= float(constants.OVERFLOW):
        return _ZERO if number.negative else _INFINITY
    magic = _bits(constants.MAGIC)
    t = fma(x, _bits(constants.LOG2E), magic)
    n = add(t, negate(magic))
    r = fma(n, negate(_bits(constants.LN2_HIGH)), x)
    r = fma(n, negate(_bits(constants.LN2_LOW)), r)
    p, *rest = [_bits(coefficient) for coefficient in constants.COEFFICIENTS]
    for coefficient in rest:
        p = fma(p, r, coefficient)
    exponent = t - magic
    half = exponent // 2
    return multiply(multiply(p, _power_of_two(half)), _power_of_two(exponent - half))


def _bits(value: SupportsFloat) -> int:
    """The bits of an FP32 constant."""
    number = Fraction(float(value))
    return rounded(Number(NumberKind.FINITE, number < 0, abs(number)))


def _power_of_two(exponent: int) -> int:
    assert FP32.emin <= exponent <= FP32.emax
    return (exponent + FP32.bias) << FP32.mantissa_bits
