"""The fractions that the tests compute with, held against those of the standard library as it is."""

from __future__ import annotations

import importlib.util
import itertools
import math
import operator
from decimal import Decimal
from fractions import Fraction
from types import ModuleType
from typing import Any

import pytest
from support.quick_fractions import give

VALUES = [
    *[(n,) for n in (0, 1, -1, 2, 7, -12, 2**200, True, 0.5, -0.0, math.inf, math.nan, "3/7", "x", None)],
    (Decimal("0.25"),),
    *[(n, d) for n in (0, 1, -3, 8, 6 * 2**120) for d in (1, -1, 2, -6, 3**50, 0)],
    (Fraction(3, 4), Fraction(-5, 6)), (0.5, 2), (True, 3), (3, True),
]  # fmt: skip
OTHERS = [0, 1, -1, 3, -2, True, 0.5, -1.5, math.inf, math.nan, 1j, "1", None, (1, 2), (-3, 4), (1, 3), (2, 1), (0, 1)]
OPERATORS = [
    operator.add, operator.sub, operator.mul, operator.truediv, operator.floordiv, operator.mod, operator.pow,
    operator.eq, operator.ne, operator.lt, operator.le, operator.gt, operator.ge,
]  # fmt: skip


def copied() -> ModuleType:
    """`fractions` once more, as it comes."""
    found = importlib.util.find_spec("fractions")
    assert found is not None
    assert found.loader is not None
    module = importlib.util.module_from_spec(found)
    found.loader.exec_module(module)
    return module


PLAIN, QUICK = copied().Fraction, copied().Fraction
give(QUICK)


def told(kind: Any, compute: Any) -> Any:
    """What a computation gives, so that results of both classes can be compared."""
    try:
        value = compute()
    except Exception as error:
        return type(error).__name__, str(error)
    return (type(value).__name__, value.numerator, value.denominator) if isinstance(value, kind) else repr(value)


def test_the_same_fractions_are_made() -> None:
    for arguments in VALUES:
        assert told(PLAIN, lambda: PLAIN(*arguments)) == told(QUICK, lambda: QUICK(*arguments)), arguments  # noqa: B023


@pytest.mark.parametrize("op", OPERATORS, ids=lambda op: op.__name__)
def test_operators_give_the_same(op: Any) -> None:
    for first, other in itertools.product([(0, 1), (1, 2), (-1, 2), (7, 3), (-9, 1), (2, 1), (1, 2**70)], OTHERS):
        results = []
        for kind in (PLAIN, QUICK):
            one, two = kind(*first), kind(*other) if isinstance(other, tuple) else other
            results.append((told(kind, lambda: op(one, two)), told(kind, lambda: op(two, one))))  # noqa: B023
        assert results[0] == results[1], (op, first, other)


def test_the_rest_is_the_same() -> None:
    for first in ((0, 1), (5, 2), (-7, 3)):
        one, two = PLAIN(*first), QUICK(*first)
        for read in (hash, abs, bool, float, round, math.floor, math.trunc, str, operator.neg):
            assert told(PLAIN, lambda: read(one)) == told(QUICK, lambda: read(two))  # noqa: B023
        with pytest.raises(AttributeError):
            two.numerator = 1
