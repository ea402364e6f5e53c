"""A number as the specification sees it, and its way from and to the codes of a format."""

from __future__ import annotations

import enum
from bisect import bisect_left
from dataclasses import dataclass
from fractions import Fraction
from functools import cache, lru_cache
from itertools import pairwise

from refmoe.formats import Format

BLOCK = 32
"""Elements of K that share an E8M0 scale. Written here again, since the specification takes no such fact from what is
held against it."""


class NumberKind(enum.Enum):
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

    kind: NumberKind
    negative: bool
    magnitude: Fraction

    def times(self, factor: Fraction) -> Number:
        """The number times a positive rational, exactly."""
        return Number(self.kind, self.negative, self.magnitude * factor)


@lru_cache(1 << 17)  # exhaustive comparisons ask for the same codes again and again
def decode(code: int, fmt: Format) -> Number:
    """The number that `code` stands for in `fmt`."""
    if fmt.is_nan(code):
        return Number(NumberKind.NAN, False, Fraction(0))
    if fmt.is_infinite(code):
        return Number(NumberKind.INFINITE, fmt.is_negative(code), Fraction(0))
    return Number(NumberKind.FINITE, fmt.is_negative(code), abs(fmt.decode(code)))


def encode(number: Number, fmt: Format) -> int:
    """The code nearest to a finite number in a signed format; ties go to the even code, what is above max to max.

    The sign is kept, also where the magnitude rounds to zero.
    """
    assert number.kind is NumberKind.FINITE
    sign = int(number.negative) << (fmt.bits - 1)
    midpoints = _midpoints(fmt)
    code = bisect_left(midpoints, number.magnitude)
    tie = code < fmt.max_code and midpoints[code] == number.magnitude
    return sign | (code + code % 2 if tie else code)


@cache
def _midpoints(fmt: Format) -> list[Fraction]:
    """Half way from each code 0 .. max_code - 1 to the next; values ascend with their codes."""
    values = [fmt.decode(code) for code in range(fmt.max_code + 1)]
    return [(below + above) / 2 for below, above in pairwise(values)]
