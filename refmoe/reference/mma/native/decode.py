"""Codes to numbers, many lanes at a time: float64 values and the exponents that align them."""

from __future__ import annotations

from dataclasses import dataclass

from refmoe.formats import E8M0, Format, Specials
from refmoe.native.expressions import F64, I16, I32, I64, Code, Value, vector

# Of float64.
_FRACTION, _BIAS, _SPECIAL = 52, 1023, 0x7FF
# Integers of 32 bits are enough for a sign, an exponent and the first bits of a fraction: the upper half of a float64.
_UPPER_FRACTION = _FRACTION - 32

ABSENT = -(1 << 13)
"""The exponent of what takes no part in an alignment: two of them, and two exponents more, still fit 16 bits."""


@dataclass(frozen=True)
class Element:
    """How the elements of an operand are stored, and aligned.

    Attributes:
        format: of the code.
        width: bits that an element takes, 8, 16 or 32.
        shift: bits below the code.
        emin: the least exponent that the alignment gives an element.
    """

    format: Format
    width: int
    shift: int
    emin: int

    @property
    def bytes(self) -> int:
        """That an element takes."""
        return self.width // 8


def decode(code: Code, element: Element, stored: Value) -> tuple[Value, Value]:
    """Values, float64, and exponents, 16 bits, of stored elements, as integers of 32 bits.

    A zero keeps its sign. It, an infinity and a NaN have the exponent ABSENT.
    """
    fmt, count = element.format, stored.type.count
    words, doubles = vector(I64, count), vector(F64, count)
    bits = fmt.bits - fmt.unused_low_bits
    codes = stored >> element.shift
    fraction = codes & ((1 << fmt.mantissa_bits) - 1)
    top = (1 << fmt.exponent_bits) - 1
    field = (codes >> fmt.mantissa_bits) & top
    # A subnormal is made as a normal number of the least exponent, which is then taken off again.
    subnormal = field.equals(0)
    upper = (code.max(field, 1) + (_BIAS - fmt.bias)) << _UPPER_FRACTION
    upper = upper | (fraction << (_UPPER_FRACTION - fmt.mantissa_bits))
    if fmt.specials is Specials.IEEE:
        special = code.select(fraction.equals(0), _SPECIAL << 1, _SPECIAL << 1 | 1, fraction.type)
        upper = code.select(field.equals(top), special << (_UPPER_FRACTION - 1), upper)
    elif fmt.specials is Specials.ALL_ONES_NAN:
        ones = (1 << (bits - 1)) - 1
        upper = code.select((codes & ones).equals(ones), (_SPECIAL << 1 | 1) << (_UPPER_FRACTION - 1), upper)
    excess = code.select(subnormal, (fmt.emin + _BIAS) << _UPPER_FRACTION, 0, fraction.type)

    def double(half: Value) -> Value:
        return (half.to(words, signed=False) << 32).as_bits(doubles)

    magnitude = (double(upper) - double(excess)).as_bits(words)
    sign = ((codes >> (bits - 1)) & 1) << 31
    value = (magnitude | (sign.to(words, signed=False) << 32)).as_bits(doubles)
    binade = (magnitude >> _FRACTION).to(vector(I32, count)).to(vector(I16, count))
    # A zero's is 0.
    absent = binade.equals(0) | binade.equals(_SPECIAL)
    return value, code.select(absent, ABSENT, code.max(binade - _BIAS, element.emin))


def decode_scale(code: Code, fmt: Format, stored: Value) -> tuple[Value, Value]:
    """Values, float64, and exponents, 64 bits, of scales, as integers of 32 bits; the sign bit of UE4M3 is ignored."""
    count = stored.type.count
    words = vector(I64, count)
    if fmt is not E8M0:
        value, exponent = decode(code, Element(fmt, 8, 0, fmt.emin), stored & ((1 << (fmt.bits - 1)) - 1))
        return value, exponent.to(words)
    exponent = stored.to(words) - fmt.bias
    value = code.select(stored.equals(fmt.nan_code or 0), _SPECIAL << 1 | 1, (stored + (_BIAS - fmt.bias)) << 1)
    return (value.to(words) << (_FRACTION - 1)).as_bits(vector(F64, count)), exponent


def power_of_two(exponent: Value) -> Value:
    """2^exponent as float64, of exponents of 64 bits from -1022 to 1023."""
    return ((exponent + _BIAS) << _FRACTION).as_bits(vector(F64, exponent.type.count))


def exponent_of(value: Value) -> Value:
    """The exponents, 64 bits, of float64 values: -1023 of a zero, 1024 of what is not finite."""
    return ((value.as_bits(vector(I64, value.type.count)) >> _FRACTION) & _SPECIAL) - _BIAS
