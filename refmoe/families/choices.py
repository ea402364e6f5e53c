"""Which experts a case's tokens go to: int32 [T, k] ids over the experts of all ranks."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from refmoe.draw import Draw
from refmoe.families.case import Case

__all__ = ["expert_ids", "expert_offsets"]


def expert_ids(case: Case) -> NDArray[np.int32]:
    """The ids of `case`, int32 [m, t], different within a token; `case.routing` says how they are chosen.

    A GEMM's rows have one expert each.
    """
    m, t, total = case.shape.m, max(case.shape.t, 1), case.shape.e * case.ranks
    experts = np.arange(total)
    if case.routing == "all-one-token":
        return _shuffled(case, experts[None, :]).reshape(m, t).astype(np.int32)
    if case.routing == "same-experts":
        # From the last local expert down, so that the experts with nothing come first and shift nobody.
        same = (case.first_expert + case.shape.e - 1 - np.arange(t)) % total
        ids: NDArray[np.int32] = np.tile(same, (m, 1)).astype(np.int32)
        return ids
    if case.routing == "empty-experts":
        experts = experts[1::3][: total // 3]
    elif case.routing == "elsewhere":
        experts = experts[(experts < case.first_expert) | (experts >= case.first_expert + case.shape.e)]
    chosen = _shuffled(case, np.tile(experts, (m, 1)))[:, :t]
    if case.routing == "padded":
        chosen[m - m // 3 :] = total + np.arange(t)
    return np.ascontiguousarray(chosen).astype(np.int32)


def expert_offsets(case: Case) -> NDArray[np.int64]:
    """int64 [E+1], from how many rows pick each local expert; rows of other ranks' experts come last."""
    local = expert_ids(case).reshape(-1).astype(np.int64) - case.first_expert
    counts = np.bincount(local[(local >= 0) & (local < case.shape.e)], minlength=case.shape.e)
    return np.concatenate([[0], np.cumsum(counts)]).astype(np.int64)


def _shuffled(case: Case, rows: NDArray[np.int64]) -> NDArray[np.int64]:
    """Each row in an order of its own."""
    draw = Draw("routing", case.routing, case.seed)
    keys = draw.words(rows.size).reshape(rows.shape)
    return np.take_along_axis(rows, np.argsort(keys, axis=1, kind="stable"), axis=1)
