"""IEEE arithmetic on bit patterns, one operation at a time in exact rationals, as a GPU has it: one NaN for all."""

from __future__ import annotations

from collections.abc import Sequence
from fractions import Fraction

from refmoe.formats import BF16, FP16, FP32, Format
from refmoe.reference.scalar.numbers import Number, NumberKind, decode

#: What the instructions give for every NaN: all ones but the sign.
NAN = {FP32: 0x7FFFFFFF, BF16: 0x7FFF, FP16: 0x7FFF}

_SIGN = 1 << 31
_NOT_A_NUMBER = Number(NumberKind.NAN, False, Fraction(0))


def add(x: int, y: int) -> int:
    """FP32 bits of the sum of two FP32 numbers given as bits, rounded to nearest."""
    return rounded(exact_total([decode(x, FP32), decode(y, FP32)]))


def multiply(x: int, y: int) -> int:
    """FP32 bits of the product of two FP32 numbers given as bits, rounded to nearest."""
    return rounded(exact_product(decode(x, FP32), decode(y, FP32)))


def fma(x: int, y: int, z: int) -> int:
    """FP32 bits of x * y + z, rounded to nearest once."""
    return rounded(exact_total([exact_product(decode(x, FP32), decode(y, FP32)), decode(z, FP32)]))


def divide(x: int, y: int) -> int:
    """FP32 bits of x / y, rounded to nearest."""
    dividend, divisor = decode(x, FP32), decode(y, FP32)
    negative = dividend.negative != divisor.negative
    zeros = [number.kind is NumberKind.FINITE and number.magnitude == 0 for number in (dividend, divisor)]
    infinities = [number.kind is NumberKind.INFINITE for number in (dividend, divisor)]
    if NumberKind.NAN in (dividend.kind, divisor.kind) or all(zeros) or all(infinities):
        return NAN[FP32]
    if infinities[0] or zeros[1]:
        return rounded(Number(NumberKind.INFINITE, negative, Fraction(0)))
    if infinities[1]:
        return rounded(Number(NumberKind.FINITE, negative, Fraction(0)))
    return rounded(Number(NumberKind.FINITE, negative, dividend.magnitude / divisor.magnitude))


def negate(x: int) -> int:
    """The FP32 number with its sign turned over."""
    return x ^ _SIGN


def cast(bits: int, fmt: Format) -> int:
    """The bits in FP32, BF16 or FP16 of an FP32 number given as bits, rounded to nearest."""
    return rounded(decode(bits, FP32), fmt)


def exact_product(x: Number, y: Number) -> Number:
    """The product; NaN for zero times infinity."""
    negative = x.negative != y.negative
    zero_times_infinity = NumberKind.INFINITE in (x.kind, y.kind) and any(
        number.kind is NumberKind.FINITE and number.magnitude == 0 for number in (x, y)
    )
    if NumberKind.NAN in (x.kind, y.kind) or zero_times_infinity:
        return _NOT_A_NUMBER
    if NumberKind.INFINITE in (x.kind, y.kind):
        return Number(NumberKind.INFINITE, negative, Fraction(0))
    return Number(NumberKind.FINITE, negative, x.magnitude * y.magnitude)


def exact_total(numbers: Sequence[Number]) -> Number:
    """The exact sum. A zero is negative only if every number is."""
    infinite = {number.negative for number in numbers if number.kind is NumberKind.INFINITE}
    if any(number.kind is NumberKind.NAN for number in numbers) or len(infinite) == 2:
        return _NOT_A_NUMBER
    if infinite:
        return Number(NumberKind.INFINITE, infinite.pop(), Fraction(0))
    total = Fraction(sum(-number.magnitude if number.negative else number.magnitude for number in numbers))
    negative = total < 0 or all(number.negative and number.magnitude == 0 for number in numbers)
    return Number(NumberKind.FINITE, negative, abs(total))


def rounded(number: Number, fmt: Format = FP32) -> int:
    """The bits nearest to a number, ties to even, infinity from half a unit above the largest finite one."""
    if number.kind is NumberKind.NAN:
        return NAN[fmt]
    sign = int(number.negative) << (fmt.bits - 1)
    assert fmt.infinity_code is not None
    if number.kind is NumberKind.INFINITE:
        return sign | fmt.infinity_code
    if number.magnitude == 0:
        return sign
    unit = Fraction(2) ** (max(floor_log2(number.magnitude), fmt.emin) - fmt.mantissa_bits)
    # Python rounds a fraction half to even.
    nearest = round(number.magnitude / unit) * unit
    return sign | (fmt.infinity_code if nearest > fmt.max else fmt.encode(nearest))


def floor_log2(value: Fraction) -> int:
    """The exponent of the largest power of two that is at most a positive `value`."""
    exponent = value.numerator.bit_length() - value.denominator.bit_length()
    return exponent if value >= Fraction(2) ** exponent else exponent - 1
