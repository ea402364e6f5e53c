"""Softmax top-k routing: which experts a token goes to, and with what weight.

    l = RN(FP32(logit) + bias)
    chosen: the k largest l in descending order, equal ones (-0 == +0) by ascending index
    e_i = exp(RN(l_i - l_0)) by `refmoe.reference.exponential`, i the rank
    S = (e_0 + e_1) + e_2 + ..., each sum rounded;  w_i = RN(e_i / S)

The softmax is over the chosen alone, as in gpt-oss; subtracting the largest first keeps every e_i in 0..1. Nothing
depends on another token.
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
from refmoe.reference.mma import AccumulationModel, tensor_core_mma

MAX_EXPERTS = 1024
MAX_TOP_K = 32


def router_logits(
    x: NDArray[Any], weight: NDArray[Any], bias: NDArray[Any] | None = None, *, model: AccumulationModel | str = "fp32"
) -> NDArray[np.float32]:
    """The router's projection, a definition: RN(acc + bias), acc the sum of x * weight under `model`; kept in FP32.

    Servers differ here: in the order of the sum, and in rounding the logits to BF16 before the choice. Whoever holds a
    kernel against another system's routing takes that system's logits.

    Args:
        x: bfloat16 [T, H].
        weight: bfloat16 [E, H].
        bias: bfloat16 or float32 [E], or None.
        model: an accumulation model with BF16 operands; "fp32" is a chain of FMAs, H ascending.

    Returns:
        float32 [T, E].

    Raises:
        ArgumentError: wrong dtypes or shapes, or a model without BF16.
    """
    for name, array in (("x", x), ("weight", weight)):
        checked_array(name, array, ("rows", "H"), fp32.BF16)
    if x.shape[1] != weight.shape[1]:
        raise ArgumentError("weight", describe(weight), f"the H of x, {x.shape[1]}")
    experts = weight.shape[0]
    check_optional("bias", bias, (experts,), fp32.BF16, np.float32)
    start = np.zeros((experts, x.shape[0]), np.float32)
    rows, columns = (np.ascontiguousarray(array).view(np.uint16) for array in (weight, x))
    sums = tensor_core_mma(rows, columns, start, model=model, a_format="bf16", b_format="bf16")
    logits = np.ascontiguousarray(sums.T)
    return logits if bias is None else fp32.add(logits, bias.astype(np.float32))


def route_softmax_topk(
    logits: NDArray[Any], k: int, *, bias: NDArray[np.float32] | None = None
) -> tuple[NDArray[np.int32], NDArray[np.float32]]:
    """Choose k experts for every token and weight them.

    Args:
        logits: float32 or bfloat16 [T, E], E at most 1024. -Inf says "never"; a token needs k finite values.
        k: experts a token, 1 to min(E, 32).
        bias: float32 [E], added to the logits first; None adds nothing.

    Returns:
        ids int32 [T, k] by rank, and weights float32 [T, k], which are all positive or zero and sum to about 1.

    Raises:
        ArgumentError: wrong dtype or shape, a k out of range, or a token with a NaN, a +Inf or fewer than k finite
            values (after the bias).
    """
    _check(logits, bias)
    count = checked_count("k", k, least=1)
    limit = min(logits.shape[1], MAX_TOP_K)
    if count > limit:
        raise ArgumentError("k", str(count), f"at most {limit}, for {logits.shape[1]} experts")
    values = logits.astype(np.float32)
    if bias is not None:
        values = fp32.add(values, bias)
    # A stable sort keeps equal values in the order of their indices; -0 and +0 compare equal.
    ids = np.argsort(-values, axis=1, kind="stable")[:, :count]
    chosen = np.take_along_axis(values, ids, axis=1)
    _refuse_special(values, chosen)
    return ids.astype(np.int32), _softmax(chosen)


def _softmax(chosen: NDArray[np.float32]) -> NDArray[np.float32]:
    powers = exponential(fp32.add(chosen, -chosen[:, :1]))
    total = powers[:, 0]
    for rank in range(1, powers.shape[1]):
        total = fp32.add(total, powers[:, rank])
    return fp32.divide(powers, total[:, None])


def _refuse_special(values: NDArray[np.float32], chosen: NDArray[np.float32]) -> None:
    bad = np.isnan(values) | (values == np.inf)
    if bad.any():
        token, expert = (int(index) for index in np.argwhere(bad)[0])
        found = f"{values[token, expert]} for expert {expert} of token {token}"
        raise ArgumentError("logits", found, "numbers below +Inf, bias included")
    short = ~np.isfinite(chosen).all(axis=1)
    if short.any():
        token = int(np.flatnonzero(short)[0])
        found = f"{int(np.isfinite(values[token]).sum())} finite values in token {token}"
        raise ArgumentError("logits", found, f"at least k = {chosen.shape[1]}")


def _check(logits: object, bias: object) -> None:
    experts = checked_array("logits", logits, ("T", "E"), np.float32, fp32.BF16).shape[1]
    if not 1 <= experts <= MAX_EXPERTS:
        raise ArgumentError("logits", describe(logits), f"1 to {MAX_EXPERTS} experts")
    check_optional("bias", bias, (experts,), np.float32)
