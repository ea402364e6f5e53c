"""Sigmoid top-k routing over groups of experts, as DeepSeek-V3 has it.

    s_e  = RN(1 / RN(1 + exp(-l_e)))                    exp by `refmoe.reference.exponential`
    b_e  = RN(s_e + bias_e)                             what experts are chosen by
    g    = RN(first + second)                           of a group of neighbouring experts: its two largest b
    kept : the `top_groups` largest g, equal ones by ascending index; b of all other groups is -Inf
    chosen: the k largest b in descending order, equal ones (-0 == +0) by ascending index

and the weight of the chosen expert i, from its s without the bias, by one of two rules:

    deepseek   S = RN(((s_0 + s_1) + s_2 + ...) + 1e-20)     each sum rounded
               w_i = RN(RN(s_i / S) * scale)
    trtllm     S = the sum of 32 lanes that hold s_0 .. s_k-1 and zeros: lane + lane^16, then ^8, ^4, ^2, ^1
               w_i = RN(RN(s_i * scale) / S)

`deepseek` is the order of DeepSeek's inference code and of transformers, whose sum torch leaves open; `trtllm` that of
TensorRT-LLM's and FlashInfer's routing kernel for SM100 (`scoreNorm * mRouteScale / redNorm`). Nothing depends on
another token.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from refmoe.errors import ArgumentError, describe
from refmoe.reference import fp32
from refmoe.reference.arrays import check_optional, checked_array
from refmoe.reference.exponential import exponential
from refmoe.reference.layout import checked_count

RULES = ("deepseek", "trtllm")
MAX_EXPERTS = 512
MAX_GROUPS = 32
MAX_TOP_K = 32
#: Whose two largest scores decide its rank, so that a group has at least as many experts.
GROUP_SCORES = 2
#: Keeps a sum of zeros from dividing.
EPSILON = np.float32(1e-20)

_ONE = np.float32(1)
_WARP_LANES = 32

F32 = NDArray[np.float32]


def sigmoid(x: F32) -> F32:
    """RN(1 / RN(1 + exp(-x))), of any shape; 1 for +Inf, +0 for -Inf, 0x7FFFFFFF for a NaN."""
    return fp32.divide(_ONE, fp32.add(_ONE, exponential(-x)))


def route_sigmoid_grouped_topk(
    logits: NDArray[Any],
    bias: NDArray[np.float32] | None,
    k: int,
    groups: int,
    top_groups: int,
    scale: float,
    *,
    rule: str = "deepseek",
) -> tuple[NDArray[np.int32], F32]:
    """Choose k experts for every token out of its best groups, and weigh them.

    >>> import numpy as np
    >>> logits = np.array([[9, 0, 5, 4, 1, 1, 3, 3]], np.float32)
    >>> ids, weights = route_sigmoid_grouped_topk(logits, None, k=2, groups=4, top_groups=2, scale=2.5)
    >>> ids.tolist()  # the group of 0 and 1 is dropped: its sigmoids are nearly 1 and 0.5
    [[2, 3]]

    Args:
        logits: float32 or bfloat16 [T, E], E at most 512. An infinite logit has a sigmoid of 0 or 1.
        bias: float32 [E], added to the sigmoids for the choice alone; -Inf says "never". None adds nothing.
        k: experts a token, 1 to 32 and at most as many as the groups that are kept have.
        groups: 1 to 32, of E / groups neighbouring experts each, at least 2.
        top_groups: how many are kept, 1 to `groups`.
        scale: the factor on the weights, rounded to FP32; finite.
        rule: of the weights, "deepseek" or "trtllm".

    Returns:
        ids int32 [T, k] in descending order of their biased scores, and weights float32 [T, k].

    Raises:
        ArgumentError: wrong dtype or shape, a number out of range, an unknown rule; or a token with a biased score that
            is NaN or +Inf, or with fewer than k finite ones in the groups that are kept.
    """
    count = check_sizes(logits, bias, k, groups, top_groups, scale, rule)
    tokens, experts = logits.shape
    scores = sigmoid(logits.astype(np.float32))
    biased = scores if bias is None else fp32.add(scores, bias)
    by_group = biased.reshape(tokens, groups, experts // groups)
    kept = np.zeros((tokens, groups), bool)
    np.put_along_axis(kept, _descending(_group_scores(by_group))[:, :top_groups], True, axis=1)
    candidates = np.where(kept[:, :, None], by_group, np.float32(-np.inf)).reshape(tokens, experts)
    ids = _descending(candidates)[:, :count]
    _refuse_special(biased, np.take_along_axis(candidates, ids, axis=1))
    chosen = np.take_along_axis(scores, ids, axis=1)
    return ids.astype(np.int32), _weights(chosen, np.float32(scale), rule)


def _group_scores(by_group: F32) -> F32:
    """The sum of each group's two largest scores, [T, G]; NaN, which sorts last, counts as the largest."""
    two = np.sort(by_group, axis=2)[:, :, -GROUP_SCORES:]
    return fp32.add(two[:, :, 1], two[:, :, 0])


def _descending(values: F32) -> NDArray[np.int64]:
    """The order of each row from its largest value down; a stable sort keeps equals in the order of their indices.

    A NaN comes first: it can only be the score of a group whose token is refused, or that has one -Inf and one +Inf.
    """
    keys = np.where(np.isnan(values), np.float32(-np.inf), -values)
    return np.argsort(keys, axis=1, kind="stable")


def _weights(chosen: F32, scale: np.float32, rule: str) -> F32:
    if rule == "trtllm":
        lanes = np.zeros((len(chosen), _WARP_LANES), np.float32)
        lanes[:, : chosen.shape[1]] = chosen
        for distance in (16, 8, 4, 2, 1):
            lanes = fp32.add(lanes, lanes[:, np.arange(_WARP_LANES) ^ distance])
        return fp32.divide(fp32.multiply(chosen, scale), lanes[:, :1])
    total = chosen[:, 0]
    for rank in range(1, chosen.shape[1]):
        total = fp32.add(total, chosen[:, rank])
    total = fp32.add(total, np.full_like(total, EPSILON))
    return fp32.multiply(fp32.divide(chosen, total[:, None]), scale)


def _refuse_special(biased: F32, chosen: F32) -> None:
    bad = np.isnan(biased) | (biased == np.inf)
    if bad.any():
        token, expert = (int(index) for index in np.argwhere(bad)[0])
        found = f"a score of {biased[token, expert]} for expert {expert} of token {token}"
        raise ArgumentError("logits", found, "scores below +Inf, bias included")
    short = ~np.isfinite(chosen).all(axis=1)
    if short.any():
        token = int(np.flatnonzero(short)[0])
        found = f"{int(np.isfinite(chosen[token]).sum())} finite scores in the groups that token {token} keeps"
        raise ArgumentError("logits", found, f"at least k = {chosen.shape[1]}")


def check_sizes(
    logits: object, bias: object, k: object, groups: object, top_groups: object, scale: object, rule: object
) -> int:
    """k of arguments of `route_sigmoid_grouped_topk` that fit together; elements are not looked at.

    Raises:
        ArgumentError: an argument that does not fit.
    """
    experts = checked_array("logits", logits, ("T", "E"), np.float32, fp32.BF16).shape[1]
    if not GROUP_SCORES <= experts <= MAX_EXPERTS:
        raise ArgumentError("logits", describe(logits), f"{GROUP_SCORES} to {MAX_EXPERTS} experts")
    check_optional("bias", bias, (experts,), np.float32)
    many = checked_count("groups", groups, least=1)
    if many > MAX_GROUPS or experts % many or experts // many < GROUP_SCORES:
        needed = f"1 to {MAX_GROUPS} groups of one size, of at least {GROUP_SCORES} experts"
        raise ArgumentError("groups", f"{many} of {experts} experts", needed)
    kept = checked_count("top_groups", top_groups, least=1)
    if kept > many:
        raise ArgumentError("top_groups", str(kept), f"at most {many}, the number of groups")
    count, limit = checked_count("k", k, least=1), min(kept * (experts // many), MAX_TOP_K)
    if count > limit:
        raise ArgumentError("k", str(count), f"at most {limit}, for {kept} groups of {experts // many} experts")
    if not isinstance(scale, (int, float, np.floating)) or isinstance(scale, bool) or not np.isfinite(scale):
        raise ArgumentError("scale", describe(scale), "a finite number")
    if rule not in RULES:
        raise ArgumentError("rule", describe(rule), " or ".join(RULES))
    return count
