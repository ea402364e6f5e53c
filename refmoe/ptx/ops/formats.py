"""Floating-point formats of 4 to 64 bits: a number of one as a number of another, by integer arithmetic on its bits.

The bits without the sign grow with the number, through the subnormals and on to infinity. So a carry out of a rounded
fraction moves to the next binade by itself, and an overflow is a comparison.

Numbers of one format may lie in wider registers. No step here depends on the processor's own half precision, which not
every one has, and no step has a subnormal operand, with which some are slow.
"""

from __future__ import annotations

from dataclasses import dataclass

from refmoe.ptx.ops.words import Word, every


@dataclass(frozen=True)
class BitFormat:
    """A sign, an exponent and a fraction, from the top; the exponent's bias is half its range.

    Attributes:
        exponent: bits of the exponent.
        mantissa: bits of the fraction.
        specials: codes above the largest number, without the sign; the last of them is the NaN that conversions make.
            Where there is none, the largest number stands for NaN.
    """

    exponent: int
    mantissa: int
    specials: int

    @property
    def sign(self) -> int:
        """The sign bit."""
        return 1 << (self.exponent + self.mantissa)

    @property
    def bias(self) -> int:
        """The exponent field of 1."""
        return (1 << (self.exponent - 1)) - 1

    @property
    def largest(self) -> int:
        """The largest number."""
        return self.sign - 1 - self.specials

    @property
    def infinity(self) -> int:
        """Infinity, in a format that has one: the code above the largest number."""
        return self.largest + 1

    @property
    def last(self) -> int:
        """The largest code that is not NaN: infinity, or the largest number of a format that has none."""
        return self.infinity if self.specials > 1 else self.largest

    @property
    def nan(self) -> int:
        """What an instruction makes of NaN."""
        return self.sign - 1

    @property
    def quiet(self) -> int:
        """The bit of a quiet NaN."""
        return 1 << (self.mantissa - 1)


def _ieee(exponent: int, mantissa: int) -> BitFormat:
    """A format whose highest exponent is that of infinity and NaN."""
    return BitFormat(exponent, mantissa, 1 << mantissa)


F16, BF16, TF32, F32, F64 = _ieee(5, 10), _ieee(8, 7), _ieee(8, 10), _ieee(8, 23), _ieee(11, 52)
E5M2 = _ieee(5, 2)
E4M3 = BitFormat(4, 3, 1)
E3M2, E2M3, E2M1 = BitFormat(3, 2, 0), BitFormat(2, 3, 0), BitFormat(2, 1, 0)


def is_nan(x: Word, format: BitFormat) -> Word:
    """Where a word holds NaN; what lies above the number is ignored."""
    return (x & (format.sign - 1)) > format.last


def canonical(x: Word, format: BitFormat) -> Word:
    """Every NaN replaced by the format's own."""
    return is_nan(x, format).choose(format.nan, x)


def flushed(x: Word, format: BitFormat) -> Word:
    """Subnormal numbers replaced by zeros of their sign."""
    return (x & format.infinity).equals(0).choose(x & format.sign, x)


def finite(magnitude: Word, of: BitFormat, to: BitFormat) -> Word:
    """Finite numbers of `of`, without sign, as numbers of F32 or F64, which hold them exactly.

    The registers are as wide as `to`.
    """
    moved = magnitude << (to.mantissa - of.mantissa)
    rebias = (to.bias - of.bias) << to.mantissa
    # What is below the least normal number is a fraction of that number's binade: with the exponent, too large by one.
    least = rebias + (1 << to.mantissa)
    beside, one = (moved + least).as_float(), every(moved.lanes, least, moved.bits).as_float()
    below = moved.from_float(moved.lanes.build.fsub(beside, one))
    return (magnitude < 1 << of.mantissa).choose(below, moved + rebias)


def widened(x: Word, of: BitFormat, to: BitFormat) -> Word:
    """Numbers of F16, BF16 or F32 as numbers of F32 or F64, exactly; the registers are as wide as `to`.

    BF16 has the exponents of F32: its bits only move, so that NaN stays what it is, a signalling one too.
    """
    if of.bias == to.bias:
        return x << (to.mantissa - of.mantissa)
    magnitude = x & (of.sign - 1)
    fraction = magnitude << (to.mantissa - of.mantissa)
    special = (magnitude > of.infinity).choose(fraction | (to.infinity | to.quiet), to.infinity)
    result = (magnitude < of.infinity).choose(finite(magnitude, of, to), special)
    result = result | ((x & of.sign) << (to.exponent + to.mantissa - of.exponent - of.mantissa))
    return result if to is F64 else canonical(result, to)


def away(rounding: str, negative: Word) -> Word:
    """1 where "rz", "rm" or "rp" rounds a number away from zero, else 0; `negative` is 1 where the number is."""
    if rounding == "rz":
        return every(negative.lanes, 0, negative.bits)
    return negative if rounding == "rm" else negative ^ 1


def _shifted(x: Word, places: Word | int, rounding: str, negative: Word) -> Word:
    """x / 2^places, rounded; `places` is at least 1."""
    unit = every(x.lanes, 1, x.bits) << places
    if rounding == "rn":
        return (x + (((unit >> 1) - 1) + ((x >> places) & 1))) >> places
    if rounding == "rna":
        return (x + (unit >> 1)) >> places
    return (x + ((unit - 1) & -away(rounding, negative))) >> places


def _below_normal(magnitude: Word, of: BitFormat, to: BitFormat) -> Word:
    """Numbers below the least normal one of `to` as its codes, to nearest even; the registers are as wide as `of`.

    Beside a power of two whose unit is the least subnormal of `to`, an addition rounds to that unit. A sum that reaches
    the least normal number is its code.
    """
    unit = of.bias - to.bias + 1 - to.mantissa
    # All that is below half a unit becomes 0. So is what stands for it here, which is no subnormal number of `of`.
    operand = magnitude.signed_at_least((unit - 2) << of.mantissa)
    beside = every(magnitude.lanes, (unit + of.mantissa) << of.mantissa, magnitude.bits)
    total = magnitude.lanes.build.fadd(operand.as_float(), beside.as_float())
    return magnitude.from_float(total) - beside


def rounded(
    x: Word, of: BitFormat, to: BitFormat, rounding: str, *, flush: bool = False, satfinite: bool = False
) -> Word:
    """Numbers of F16, F32 or F64 as numbers of a format with a shorter fraction.

    Args:
        x: in registers of 32 or 64 bits, with zeros above the number.
        of: their format.
        to: the format wanted; its range of exponents is that of `of` or smaller.
        rounding: "rn" to nearest even, "rna" to nearest with ties away from zero, "rz", "rm", "rp".
        flush: replace what is below the least normal number, after rounding as if the exponent had no end, by zero.
        satfinite: replace infinity by the largest number. The formats without infinity have no other way.

    Returns:
        Words of the width of `x`. NaN is the format's own, or quiet with sign and fraction if `of` is F64.
    """
    negative = x >> (of.exponent + of.mantissa)
    magnitude = x & (of.sign - 1)
    drop = of.mantissa - to.mantissa
    rebias = (of.bias - to.bias) << of.mantissa
    least = rebias + (1 << of.mantissa)
    if rebias == 0:
        kept = _shifted(magnitude, drop, rounding, negative)
    elif flush:
        kept = _shifted(magnitude, drop, rounding, negative)
        kept = (kept < least >> drop).choose(0, kept - (rebias >> drop))
    elif rounding == "rn" and x.bits == of.exponent + of.mantissa + 1 >= 32:
        small = _below_normal(magnitude, of, to)
        kept = (magnitude < least).choose(small, _shifted(magnitude - rebias, drop, rounding, negative))
    else:
        # Below the least normal number of `to` the unit no longer shrinks with the number: more places are dropped, of
        # a fraction with its leading one. The subnormals of `of` have none, and 0 must not get one. How many places
        # they lose does not count: all lie below half a unit.
        hidden = 1 << of.mantissa
        significand = (magnitude & (hidden - 1)) | (magnitude & of.infinity).at_most(hidden)
        further = every(x.lanes, least >> of.mantissa, x.bits).less(magnitude >> of.mantissa)
        places = (further + drop).at_most(x.bits - 1)
        field = (magnitude < least).choose(significand, magnitude - rebias)
        kept = _shifted(field, places, rounding, negative)
    if satfinite:
        kept = kept.at_most(to.largest)
    elif rounding in ("rn", "rna"):
        kept = kept.at_most(to.infinity)
    else:
        # Infinity is no overflow: it stays, whatever the direction.
        within = kept.at_most(away(rounding, negative) + to.largest)
        kept = magnitude.equals(of.infinity).choose(to.infinity, within)
    sign = negative << (to.exponent + to.mantissa)
    nan = magnitude > of.infinity
    if of is F64:
        return nan.choose((magnitude >> drop & (to.quiet - 1)) | (to.infinity | to.quiet), kept) | sign
    return nan.choose(to.nan, kept | sign)
