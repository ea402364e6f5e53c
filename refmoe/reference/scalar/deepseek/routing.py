"""Sigmoid routing over groups of one token, in plain Python: the specification of `refmoe.reference.deepseek.routing`.

The words are those of DeepSeek-V3's own inference code (`Gate.forward`) and of TensorRT-LLM's routing kernel, one
operation of them at a time.
"""

from __future__ import annotations

from collections.abc import Sequence
from fractions import Fraction

from refmoe.formats import FP32
from refmoe.reference.scalar.arithmetic import add, divide, multiply, negate, rounded
from refmoe.reference.scalar.exponential import exponential
from refmoe.reference.scalar.numbers import Number, NumberKind, decode
from refmoe.reference.scalar.routing import Chosen

_ONE = FP32.encode(Fraction(1))
_EPSILON = rounded(Number(NumberKind.FINITE, False, Fraction(1, 10**20)))
_WARP_LANES = 32


def sigmoid(x: int) -> int:
    """FP32 bits of RN(1 / RN(1 + exp(-x))), x given as bits."""
    return divide(_ONE, add(_ONE, exponential(negate(x))))


def route_sigmoid_grouped_topk(
    logits: Sequence[int],
    bias: Sequence[int] | None,
    k: int,
    groups: int,
    top_groups: int,
    scale: int,
    rule: str = "deepseek",
) -> Chosen:
    """Keep the best groups, take the largest k of theirs, weigh them by their sigmoids.

    Args:
        logits: FP32 bits of one token, one for each expert.
        bias: FP32 bits, one for each expert; None for none.
        k: how many to choose.
        groups: of neighbouring experts, all of one size.
        top_groups: how many are kept.
        scale: FP32 bits.
        rule: of the weights, "deepseek" or "trtllm".

    Raises:
        ValueError: a biased score is NaN or +Inf, or fewer than k in the groups that are kept are finite.
    """
    scores = [sigmoid(x) for x in logits]
    biased = scores if bias is None else [add(s, b) for s, b in zip(scores, bias, strict=True)]
    if any(_rank(b) is None or _rank(b) == _infinite(1) for b in biased):
        raise ValueError("NaN or +Inf")
    size = len(logits) // groups
    members = [range(group * size, (group + 1) * size) for group in range(groups)]
    sums = [add(*_best([biased[i] for i in group], 2)) for group in members]
    kept = _first_largest(sums, range(groups), top_groups)
    candidates = [i for group in sorted(kept) for i in members[group] if _rank(biased[i]) != _infinite(-1)]
    if len(candidates) < k:
        raise ValueError("fewer than k finite values")
    ids = _first_largest(biased, candidates, k)
    chosen = [scores[i] for i in ids]
    if rule == "trtllm":
        total = _butterfly(chosen)
        return Chosen(ids, [divide(multiply(s, scale), total) for s in chosen])
    total = chosen[0]
    for s in chosen[1:]:
        total = add(total, s)
    total = add(total, _EPSILON)
    return Chosen(ids, [multiply(divide(s, total), scale) for s in chosen])


#: What numbers are compared by: infinities lie beyond every number.
_Rank = tuple[int, Fraction]


def _infinite(sign: int) -> _Rank:
    return sign, Fraction(0)


def _rank(bits: int) -> _Rank | None:
    """What a number is compared by, -0 as +0; None for a NaN."""
    number = decode(bits, FP32)
    if number.kind is NumberKind.NAN:
        return None
    if number.kind is NumberKind.INFINITE:
        return _infinite(-1 if number.negative else 1)
    return 0, -number.magnitude if number.negative else number.magnitude


def _above_all(bits: int) -> tuple[int, Fraction]:
    """As `_rank`; a NaN, the sum of both infinities, stands above all."""
    rank = _rank(bits)
    return (2, Fraction(0)) if rank is None else rank


def _best(values: Sequence[int], count: int) -> list[int]:
    """The largest `count` values."""
    return sorted(values, key=_above_all, reverse=True)[:count]


def _first_largest(values: Sequence[int], candidates: Sequence[int], count: int) -> list[int]:
    """The places of the `count` largest values among the candidates, in descending order, the first of equals first."""
    left = list(candidates)
    found: list[int] = []
    for _ in range(count):
        best = left[0]
        for place in left[1:]:
            if _above_all(values[place]) > _above_all(values[best]):
                best = place
        found.append(best)
        left.remove(best)
    return found


def _butterfly(values: Sequence[int]) -> int:
    """The sum over a warp of one value a lane, +0 for lanes without one: halves are added to each other."""
    lanes = [*values, *[0] * (_WARP_LANES - len(values))]
    distance = _WARP_LANES // 2
    while distance:
        lanes = [add(lanes[lane], lanes[lane ^ distance]) for lane in range(_WARP_LANES)]
        distance //= 2
    return lanes[0]
