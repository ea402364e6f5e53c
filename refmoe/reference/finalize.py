"""Finalize: the rows of a token's experts gathered, weighted and added up in the order of their rank.

    acc = +0;  for rank = 0 .. k - 1 with a row on this rank:  acc = RN(acc + RN(w * RN(row + bias[expert])))

in FP32, then one rounding to the output. The order is fixed, so a token's output does not depend on the others.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt
from numpy.typing import NDArray

from refmoe.errors import ArgumentError, describe
from refmoe.reference import fp32
from refmoe.reference.arrays import checked_array, checked_output
from refmoe.reference.layout import checked_count


def finalize(
    rows: NDArray[Any],
    unpermuted_to_permuted: NDArray[np.int32],
    weights: NDArray[np.float32],
    *,
    topk_ids: NDArray[np.int32] | None = None,
    bias: NDArray[Any] | None = None,
    first_expert: int = 0,
    out_dtype: npt.DTypeLike = fp32.BF16,
) -> NDArray[Any]:
    """The output of every token.

    Args:
        rows: bfloat16 or float32 [T * k, H], of the second GEMM, in expert order. Rows that no map entry names are not
            read.
        unpermuted_to_permuted: int32 [T * k], the row of token + k_rank * T; -1 for an expert of another rank, skipped.
        weights: float32 [T, k].
        topk_ids: int32 [T, k], the experts; needed with `bias` only.
        bias: bfloat16 or float32 [E, H], added before the weight, in FP32.
        first_expert: id of the first expert of `bias`.
        out_dtype: bfloat16 or float32.

    Returns:
        [T, H] of `out_dtype`; +0 for a token none of whose experts are here. A NaN is 0x7FFFFFFF, 0x7FFF in BF16.

    Raises:
        ArgumentError: wrong dtypes or shapes, a map entry that is no row, a bias without ids or ids without it, an id
            with a row here but no bias.
    """
    first_expert = checked_count("first_expert", first_expert)
    dtype = checked_output(out_dtype, (np.dtype(np.float32), fp32.BF16), "ml_dtypes.bfloat16 or float32")
    _check(rows, unpermuted_to_permuted, weights)
    tokens, k = weights.shape
    by_rank = unpermuted_to_permuted.reshape(k, tokens)
    experts = None if bias is None else _bias_rows(rows, by_rank, topk_ids, bias, first_expert)
    if bias is None and topk_ids is not None:
        raise ArgumentError("topk_ids", describe(topk_ids), "None without a bias")

    out = np.zeros((tokens, rows.shape[1]), np.float32)
    for rank in range(k):
        present = np.flatnonzero(by_rank[rank] >= 0)
        values = rows[by_rank[rank, present]].astype(np.float32)
        if bias is not None and experts is not None:
            values = fp32.add(values, bias[experts[rank, present]].astype(np.float32))
        weighted = fp32.multiply(values, weights[present, rank, None])
        out[present] = fp32.add(out[present], weighted)
    return fp32.bf16(out) if dtype == fp32.BF16 else out


def _bias_rows(
    rows: NDArray[Any], by_rank: NDArray[np.int32], topk_ids: object, bias: NDArray[Any], first_expert: int
) -> NDArray[np.int64]:
    """The row of `bias` of each choice [k, T]; of no meaning where the choice has no row."""
    checked_array("bias", bias, ("E", "H"), fp32.BF16, np.float32)
    if bias.shape[1] != rows.shape[1]:
        raise ArgumentError("bias", describe(bias), f"the H of rows, {rows.shape[1]}")
    if not isinstance(topk_ids, np.ndarray) or topk_ids.dtype != np.int32 or topk_ids.shape != by_rank.T.shape:
        raise ArgumentError("topk_ids", describe(topk_ids), f"int32 {list(by_rank.T.shape)}, which a bias needs")
    experts: NDArray[np.int64] = topk_ids.T.astype(np.int64) - first_expert
    stray = (by_rank >= 0) & ((experts < 0) | (experts >= bias.shape[0]))
    if stray.any():
        rank, token = (int(index) for index in np.argwhere(stray)[0])
        needed = f"experts {first_expert} to {first_expert + bias.shape[0] - 1} where the map has a row"
        raise ArgumentError("topk_ids", f"expert {topk_ids[token, rank]} of token {token}", needed)
    return experts


def _check(rows: NDArray[Any], entries: NDArray[np.int32], weights: object) -> None:
    if not isinstance(weights, np.ndarray) or weights.dtype != np.float32 or weights.ndim != 2 or not weights.shape[1]:
        raise ArgumentError("weights", describe(weights), "float32 [T, k] with at least one expert a token")
    checked_array("rows", rows, ("T * k", "H"), fp32.BF16, np.float32)
    if rows.shape[0] != weights.size:
        raise ArgumentError("rows", describe(rows), f"the T * k = {weights.size} rows of weights")
    checked_array("unpermuted_to_permuted", entries, (weights.size,), np.int32)
    stray = np.flatnonzero((entries < -1) | (entries >= weights.size))
    if stray.size:
        found = f"{entries[stray[0]]} at {stray[0]}"
        raise ArgumentError("unpermuted_to_permuted", found, f"-1, or a row below {weights.size}")
