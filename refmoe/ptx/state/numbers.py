"""Which small numbers occur in an array, and which of its elements are among some: barriers, objects, places of lanes.

NumPy has functions for both, which hash or sort whatever they are given. They take ten times as long for the arrays
that a step has: a few numbers of few lanes, or one number for each lane of a machine.
"""

from __future__ import annotations

from typing import Any

import numpy as np

Array = Any
# Elements up to which a set of Python's is made faster than an array is sorted.
_FEW = 64
# Numbers that are so near to one another are looked up in a table.
_NEAR = 1 << 14


def different(values: Array) -> Array:
    """The values of an array of integers, each once, in order: mostly it has one."""
    if not len(values) or np.count_nonzero(values == values[0]) == len(values):
        return values[:1]
    if len(values) <= _FEW:
        return np.array(sorted(set(values.tolist())), values.dtype)
    low, high = int(values.min()), int(values.max())
    if high - low >= _NEAR:
        return np.unique(values)
    table = np.zeros(high - low + 1, np.bool_)
    table[values - low] = True
    return table.nonzero()[0].astype(values.dtype) + values.dtype.type(low)


def among(values: Array, some: Array) -> Array:
    """Which of `values` [n] are in `some` [m], none of which is negative; bool [n]. Mostly one has a single element."""
    if len(some) == 1:
        return values == some[0]
    if len(values) == 1:
        return np.array([(some == values[0]).any()])
    if not len(values) or not len(some):
        return np.zeros(len(values), np.bool_)
    table = np.zeros(max(int(values.max()), int(some.max())) + 1, np.bool_)
    table[some] = True
    found: Array = table[values]
    return found
