"""Fractions as quick as Python 3.12's: the oracles' own arithmetic took a tenth of the tests' time before it.

Until then a comparison asks an abstract class what the other operand is, and a new fraction looks for its base class.
Operands that are integers or fractions, as nearly all are, are asked by type here; what else there is goes to the
methods of the standard library. tests/test_quick_fractions.py holds both against each other.
"""

from __future__ import annotations

import math
import operator
import sys
from fractions import Fraction
from typing import Any


def install() -> None:
    """Give `fractions.Fraction` these methods where Python is older."""
    if sys.version_info < (3, 12):
        give(Fraction)


def give(cls: Any) -> None:
    """Give a class that is `fractions.Fraction`, or a copy of it, the quick methods."""
    new, equal, compared, power = cls.__new__, cls.__eq__, cls._richcmp, cls.__pow__
    bare, gcd = object.__new__, math.gcd

    def __new__(kind: Any, numerator: Any = 0, denominator: Any = None, *, _normalize: bool = True) -> Any:
        if type(numerator) is not int or not (denominator is None or (type(denominator) is int and denominator)):
            return new(kind, numerator, denominator, _normalize=_normalize)
        if denominator is None:
            denominator = 1
        elif _normalize:
            divisor = gcd(numerator, denominator)
            if denominator < 0:
                divisor = -divisor
            if divisor != 1:
                numerator //= divisor
                denominator //= divisor
        made = bare(kind)
        made._numerator = numerator
        made._denominator = denominator
        return made

    def __eq__(one: Any, other: Any) -> Any:
        if type(other) is cls:
            return one._numerator == other._numerator and one._denominator == other._denominator
        return equal(one, other)

    def _richcmp(one: Any, other: Any, op: Any) -> Any:
        if type(other) is cls:
            return op(one._numerator * other._denominator, one._denominator * other._numerator)
        if type(other) is int:
            return op(one._numerator, one._denominator * other)
        return compared(one, other, op)

    def __pow__(one: Any, other: Any) -> Any:
        if type(other) is int and one._numerator > 0:
            if other >= 0:
                return cls(one._numerator**other, one._denominator**other, _normalize=False)
            return cls(one._denominator**-other, one._numerator**-other, _normalize=False)
        return power(one, other)

    cls.__new__, cls.__eq__, cls._richcmp, cls.__pow__ = __new__, __eq__, _richcmp, __pow__
    cls.numerator = property(operator.attrgetter("_numerator"))
    cls.denominator = property(operator.attrgetter("_denominator"))
