"""Finalize with a shared expert: the weighted sum of a token's routed rows, and the shared expert's row added to it.

    acc = +0;  for rank = 0 .. k - 1 with a row on this rank:  acc = RN(acc + RN(w * row))
    acc = RN(acc * scale)
    acc = FP32(BF16(acc))                          with the order "bf16" alone
    out = RN(acc + shared)                         without a shared expert: acc

in FP32, then one rounding to the output. `scale` is for a router whose weights do not have DeepSeek-V3's factor in
them; it is 1 where they do, and then changes nothing. The order "bf16" is what separate launches compute whose routed
output is BF16: transformers, vLLM and TensorRT-LLM add the shared expert's BF16 to it.
"""

from __future__ import annotations

from typing import Any

import ml_dtypes
import numpy as np
import numpy.typing as npt
from numpy.typing import NDArray

from refmoe.errors import ArgumentError, describe
from refmoe.reference import fp32
from refmoe.reference.arrays import checked_array, checked_output
from refmoe.reference.finalize import finalize

ORDERS = ("fp32", "bf16")


def finalize_shared(
    rows: NDArray[Any],
    unpermuted_to_permuted: NDArray[np.int32],
    weights: NDArray[np.float32],
    shared: NDArray[Any] | None,
    *,
    scale: float = 1.0,
    order: str = "fp32",
    out_dtype: npt.DTypeLike = ml_dtypes.bfloat16,
) -> NDArray[Any]:
    """The output of every token.

    Args:
        rows: bfloat16 or float32 [T * k, H], of the second product, in the order of the experts.
        unpermuted_to_permuted: int32 [T * k], the row of token + k_rank * T; -1 for an expert of another rank, skipped.
        weights: float32 [T, k].
        shared: [T, H] of the dtype of `rows`, the shared expert's; None adds nothing: another rank adds it.
        scale: a factor on the routed sum, rounded to FP32; finite.
        order: "fp32", or "bf16" to round what is routed to BF16 before the shared expert is added.
        out_dtype: bfloat16 or float32.

    Returns:
        [T, H] of `out_dtype`. A NaN is 0x7FFFFFFF, 0x7FFF in BF16, and 0x7FFF0000 where FP32 is a BF16 made wider: in
        the order "bf16" without a shared expert.

    Raises:
        ArgumentError: wrong dtypes or shapes, a map entry that is no row, a scale that is not finite, an unknown order.
    """
    dtype = checked_output(out_dtype, (np.dtype(np.float32), fp32.BF16), "ml_dtypes.bfloat16 or float32")
    check_scale(scale)
    if order not in ORDERS:
        raise ArgumentError("order", describe(order), " or ".join(ORDERS))
    routed = finalize(rows, unpermuted_to_permuted, weights, out_dtype=np.float32)
    if shared is not None:
        checked_array("shared", shared, routed.shape, rows.dtype)
    out = fp32.multiply(routed, np.float32(scale))
    if order == "bf16":
        out = fp32.bf16(out).astype(np.float32)
    if shared is not None:
        out = fp32.add(out, shared.astype(np.float32))
    if dtype == fp32.BF16:
        return fp32.bf16(out)
    # A sum has the one NaN of FP32 arithmetic, a BF16 that becomes wider keeps its bits.
    return out if order == "bf16" and shared is None else _one_nan(out)


def check_scale(scale: object) -> None:
    """Refuse a factor that is no finite number in FP32.

    Raises:
        ArgumentError: it is none.
    """
    if isinstance(scale, (int, float, np.floating)) and not isinstance(scale, bool):
        with np.errstate(over="ignore"):
            if np.isfinite(np.float32(scale)):
                return
    raise ArgumentError("scale", describe(scale), "a finite number")


def _one_nan(values: NDArray[np.float32]) -> NDArray[np.float32]:
    return np.where(np.isnan(values), fp32.NAN, values)
