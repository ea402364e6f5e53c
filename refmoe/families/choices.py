"""The experts that the tokens of a case go to: ids int32 [T, k], and the options that decide them.

Experts are numbered over all ranks.
"""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType

import numpy as np
from numpy.typing import NDArray

from refmoe.draw import Draw
from refmoe.families.case import number, refused, word
from refmoe.families.family import Case

#: Where tokens go.
ROUTINGS: Mapping[str, str] = MappingProxyType(
    {
        "uniform": "each token picks different experts at random",
        "all-one-token": "every expert gets exactly one row",
        "same-experts": "every token picks the same experts: with t = 1 one expert takes all",
        "empty-experts": "two experts of three get nothing, the first and the last among them",
        "elsewhere": "every row belongs to an expert of another rank",
        "padded": "as uniform, but the last third of the tokens pads the batch: its experts do not exist",
        "unset": "as padded, but the ids are negative; a layer is given -1 for all of them",
    }
)

ROUTING = word("routing", *ROUTINGS)

#: Where a token may have an expert twice: every second choice is the one before it again.
TWICE = "twice"

#: Experts are numbered over all `ranks`, `e` on each, and the kernel's own start at `first_expert`.
RANKS = (number("first_expert"), number("ranks", 1))

#: What a kernel is told of them, as `Contract.settings` has it.
ROUTED = {"num_experts": "e", "first_expert": "first_expert", "top_k": "t"}


def check_choices(case: Case) -> None:
    """Refuse ranks and routings that leave a token without enough experts.

    Raises:
        ArgumentError: experts that are too few, or a first expert beyond them.
    """
    shape, total, picks = case.shape, case.shape.e * case.ranks, max(case.shape.t, 1)
    if picks > total:
        raise refused("shape", str(shape), f"t of at most the {total} experts of all ranks")
    if not 0 <= case.first_expert <= max(total - shape.e, 0):
        found = f"{case.first_expert} with ranks={case.ranks}"
        raise refused("first_expert", found, f"0 to {max(total - shape.e, 0)}, and ranks of at least 1")
    if case.routing == "all-one-token" and shape.rows != total:
        raise refused("routing", case.routing, f"as many rows as the {total} experts")
    if case.routing == "empty-experts" and total // 3 < picks:
        raise refused("routing", case.routing, f"at least {3 * picks} experts")
    if case.routing == "elsewhere" and total - shape.e < picks:
        raise refused("routing", case.routing, f"ranks with at least {picks} experts elsewhere")


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
        return np.tile(same, (m, 1)).astype(np.int32)
    if case.routing == "empty-experts":
        experts = experts[1::3][: total // 3]
    elif case.routing == "elsewhere":
        experts = experts[(experts < case.first_expert) | (experts >= case.first_expert + case.shape.e)]
    chosen = _shuffled(case, np.tile(experts, (m, 1)))[:, :t]
    if case.routing == TWICE:
        chosen[:, 1::2] = chosen[:, : t // 2 * 2 : 2]
    if case.routing in ("padded", "unset"):
        chosen[m - m // 3 :] = -1 - np.arange(t) if case.routing == "unset" else total + np.arange(t)
    return np.ascontiguousarray(chosen).astype(np.int32)


def padding_ids(case: Case, ids: NDArray[np.int32]) -> NDArray[np.int32]:
    """One id for every expert that does not exist: layers take such an id, as a server has it, twice in a token."""
    return np.clip(ids, -1, case.shape.e * case.ranks).astype(np.int32)


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
