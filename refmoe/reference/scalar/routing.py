"""Softmax top-k routing of one token, in plain Python: the specification of `refmoe.reference.routing`."""

from __future__ import annotations

from collections.abc import Sequence
from fractions import Fraction
from typing import NamedTuple

from refmoe.formats import FP32
from refmoe.reference.scalar.arithmetic import add, divide, negate
from refmoe.reference.scalar.exponential import exponential
from refmoe.reference.scalar.numbers import NumberKind, decode


class Chosen(NamedTuple):
    """The experts of a token by rank, and their weights as FP32 bits."""

    ids: list[int]
    weights: list[int]


def route_softmax_topk(logits: Sequence[int], k: int, bias: Sequence[int] | None = None) -> Chosen:
    """Take the largest k times, the first of equals; then the softmax of what was taken.

    Args:
        logits: FP32 bits of one token, one for each expert.
        k: how many to choose.
        bias: FP32 bits, one for each expert.

    Raises:
        ValueError: a NaN, a +Inf, or fewer than k finite values.
    """
    values = list(logits) if bias is None else [add(x, b) for x, b in zip(logits, bias, strict=True)]
    numbers = [decode(x, FP32) for x in values]
    if any(n.kind is NumberKind.NAN or (n.kind is NumberKind.INFINITE and not n.negative) for n in numbers):
        raise ValueError("NaN or +Inf")
    left = {
        i: -n.magnitude if n.negative else n.magnitude for i, n in enumerate(numbers) if n.kind is NumberKind.FINITE
    }
    if len(left) < k:
        raise ValueError("fewer than k finite values")
    ids: list[int] = []
    for _ in range(k):
        best = _first_largest(left)
        ids.append(best)
        del left[best]
    powers = [exponential(add(values[i], negate(values[ids[0]]))) for i in ids]
    total = powers[0]
    for power in powers[1:]:
        total = add(total, power)
    return Chosen(ids, [divide(power, total) for power in powers])


def _first_largest(values: dict[int, Fraction]) -> int:
    best = min(values)
    for i in sorted(values):
        if values[i] > values[best]:
            best = i
    return best
