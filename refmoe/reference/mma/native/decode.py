"""Codes to numbers, many lanes at a time: float64 values and the exponents that align them."""

from __future__ import annotations

from dataclasses import dataclass

from refmoe.formats import E8M0, Format, Specials
from refmoe.native.expressions import F32, F64, I32, I64, Code, Value, vector

# Of float64 and of float32.
_FRACTION, _BIAS, _SPECIAL = 52, 1023, 0x7FF
_SINGLE_FRACTION, _SINGLE_BIAS, _SINGLE_SPECIAL = 23, 127, 0xFF

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

    @property
    def least_unit(self) -> int:
        """The exponent of the least positive number, of which all others are multiples."""
        return self.format.emin - self.format.mantissa_bits


def decode(code: Code, element: Element, stored: Value) -> tuple[Value, Value]:
    """Values, float64, and exponents, 32 bits, of stored elements, as integers of 32 bits.

    A zero keeps its sign. It, an infinity and a NaN have the exponent ABSENT. All elements are numbers of float32.
    """
    fmt, kind = element.format, stored.type
    singles = vector(F32, kind.count)
    top = fmt.bits - fmt.unused_low_bits - 1
    codes = stored >> element.shift
    magnitude = codes & ((1 << top) - 1)
    normal, infinite = 1 << fmt.mantissa_bits, ((1 << fmt.exponent_bits) - 1) << fmt.mantissa_bits
    # A subnormal is made as a normal number of the least exponent, which is then taken off again.
    subnormal = magnitude < normal
    least = (fmt.emin + _SINGLE_BIAS) << _SINGLE_FRACTION
    offset = code.select(subnormal, least, least - (1 << _SINGLE_FRACTION), kind)
    made = (magnitude << (_SINGLE_FRACTION - fmt.mantissa_bits)) + offset
    value = made.as_bits(singles) - code.select(subnormal, least, 0, kind).as_bits(singles)
    exponent = (made >> _SINGLE_FRACTION) - _SINGLE_BIAS
    if element.emin < fmt.emin:
        own = (value.as_bits(kind) >> _SINGLE_FRACTION) - _SINGLE_BIAS
        exponent = code.max(own, element.emin)
    absent = magnitude.equals(0)
    special = None
    if fmt.specials is Specials.IEEE:
        special = code.constant(kind, infinite - 1) < magnitude
        bits = code.select(magnitude.equals(infinite), _SINGLE_SPECIAL << 1, _SINGLE_SPECIAL << 1 | 1, kind)
    elif fmt.specials is Specials.ALL_ONES_NAN:
        special = magnitude.equals((1 << top) - 1)
        bits = code.constant(kind, _SINGLE_SPECIAL << 1 | 1)
    if special is not None:
        value = code.select(special, (bits << (_SINGLE_FRACTION - 1)).as_bits(singles), value)
        absent = absent | special
    sign = (codes >> top) << 31
    signed = (value.as_bits(kind) | sign).as_bits(singles)
    return signed.to(vector(F64, kind.count)), code.select(absent, ABSENT, exponent)


def decode_singles(code: Code, element: Element, stored: Value, has_avx512: bool) -> Value:
    """Values, float32, of stored elements, as integers of 32 bits."""
    fmt = element.format
    if has_avx512 and fmt.bits == 4 and stored.type.count == 1 << fmt.bits:
        table = [float(fmt.decode(each)) for each in range(8)]
        return code.look_up(table + [-value for value in table], stored >> element.shift)
    return decode(code, element, stored)[0].to(vector(F32, stored.type.count))


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


def widened(stored: Value) -> Value:
    """Stored elements as integers of 32 bits."""
    kind = vector(I32, stored.type.count)
    return stored if str(stored.type) == str(kind) else stored.to(kind, signed=False)
