"""A number as the specification sees it, and its way from and to the codes of a format."""

from __future__ import annotations

import enum
from bisect import bisect_right
from dataclasses import dataclass
from fractions import Fraction
from functools import cache

from refmoe.formats import Format

__all__ = ["Kind", "Number", "decode", "encode"]


class Kind(enum.Enum):
    """What a number is."""

    FINITE = "finite"
    INFINITE = "infinite"
    NAN = "nan"


@dataclass(frozen=True)
class Number:
    """A signed rational, a signed infinity, or NaN.

    Attributes:
        kind: which of the three.
        negative: the sign, of a zero too; False for a NaN, whose sign means nothing.
        magnitude: the absolute value; 0 unless finite.
    """

    kind: Kind
    negative: bool
    magnitude: Fraction

    def times(self, factor: Fraction) -> Number:
        """The number times a positive rational, exactly."""
        return Number(self.kind, self.negative, self.magnitude * factor)


def decode(code: int, fmt: Format) -> Number:
    """The number that `code` stands for in `fmt`."""
    if fmt.is_nan(code):
        return Number(Kind.NAN, False, Fraction(0))
    if fmt.is_infinite(code):
        return Number(Kind.INFINITE, fmt.is_negative(code), Fraction(0))
    return Number(Kind.FINITE, fmt.is_negative(code), abs(fmt.decode(code)))


def encode(number: Number, fmt: Format) -> int:
    """The code nearest to a finite number in a signed format; ties go to the even code, what is above max to max.

    The sign is kept, also where the magnitude rounds to zero.
    """
    assert number.kind is Kind.FINITE
    sign = int(number.negative) << (fmt.bits - 1)
    magnitudes = _magnitudes(fmt)
    if number.magnitude >= magnitudes[-1]:
        return sign | fmt.max_code
    above = bisect_right(magnitudes, number.magnitude)
    below = above - 1
    to_below = number.magnitude - magnitudes[below]
    to_above = magnitudes[above] - number.magnitude
    if to_below == to_above:
        return sign | (below if below % 2 == 0 else above)
    return sign | (below if to_below < to_above else above)


@cache
def _magnitudes(fmt: Format) -> list[Fraction]:
    """The values of the codes 0 .. max_code: ascending, and code = index."""
    return [fmt.decode(code) for code in range(fmt.max_code + 1)]
