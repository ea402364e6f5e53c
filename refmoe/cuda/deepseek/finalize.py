"""The finalize kernel of a layer with a shared expert: routed rows weighted and summed, the shared row added."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from refmoe.cuda.arguments import BF16, check_array, check_fill, one_of
from refmoe.cuda.device import Device
from refmoe.cuda.finalize import COLUMNS, DTYPES, check_sums
from refmoe.cuda.launch import Buffer, Entry, LaunchPlan, row_plan
from refmoe.errors import ArgumentError, describe
from refmoe.reference.deepseek.finalize import ORDERS, check_scale


def deepseek_finalize_kernel(rows: str, out: str, order: str) -> Entry:
    """The kernel for rows and outputs of "bf16" or "f32" and the order "fp32" or "bf16"."""
    return Entry("deepseek_finalize", f"refmoe_deepseek_finalize_{rows}_{out}_{order}")


def deepseek_finalize_plan(
    kernel: Entry,
    rows: Buffer,
    unpermuted_to_permuted: Buffer,
    weights: Buffer,
    shared: Buffer | None,
    out: Buffer,
    *,
    tokens: int,
    top_k: int,
    width: int,
    scale: float,
    multiprocessors: int,
) -> LaunchPlan:
    """A launch over tokens, see `row_plan`; 8 columns a thread.

    Args:
        kernel: from `deepseek_finalize_kernel`.
        rows: BF16 or FP32 [tokens * top_k, width], in the order of the experts.
        unpermuted_to_permuted: int32 [tokens * top_k].
        weights: float32 [tokens, top_k].
        shared: as `rows`, [tokens, width], or None.
        out: BF16 or FP32 [tokens, width], written.
        tokens: T, at least 1.
        top_k: choices of a token, at most 32.
        width: H, a multiple of 8.
        scale: a factor on the routed sum, rounded to FP32.
        multiprocessors: of the device.
    """
    factor = int(np.float32(scale).view(np.int32))
    arguments = (rows, unpermuted_to_permuted, weights, shared, out, tokens, top_k, width, factor)
    return row_plan(kernel, arguments, rows=tokens, width=width, multiprocessors=multiprocessors, lane_elements=COLUMNS)


def finalize_shared(
    rows: npt.NDArray[Any],
    unpermuted_to_permuted: npt.NDArray[np.int32],
    weights: npt.NDArray[np.float32],
    shared: npt.NDArray[Any] | None,
    *,
    device: Device,
    scale: float = 1.0,
    order: str = "fp32",
    out_dtype: npt.DTypeLike = BF16,
    fill: int = 0,
) -> npt.NDArray[Any]:
    """The output of every token: the weighted sum of its experts' rows and the shared row, with the production kernel.

    Args:
        rows: BF16 or FP32 [T*k, H] in the order of the experts, C-contiguous, H a positive multiple of 8.
        unpermuted_to_permuted: int32 [T*k], row of (token + k_rank*T), -1 for experts of other ranks.
        weights: float32 [T, k], k at most 32.
        shared: [T, H] of the dtype of `rows`, or None.
        device: where the kernel runs.
        scale: a factor on the routed sum, rounded to FP32; finite.
        order: "fp32", or "bf16" to round what is routed to BF16 before the shared row is added.
        out_dtype: bfloat16 or float32.
        fill: byte that the output holds before the launch, 0..255; the kernel writes all of it.

    Returns:
        [T, H] of `out_dtype`.

    Raises:
        ArgumentError: an argument is none of these; nothing has run.
    """
    check_fill(fill)
    check_scale(scale)
    chosen = one_of("order", order, ORDERS)
    out_type = np.dtype(out_dtype) if out_dtype in DTYPES else None
    if out_type is None:
        raise ArgumentError("out_dtype", describe(out_dtype), "ml_dtypes.bfloat16 or float32")
    tokens, top_k, width = check_sums(rows, unpermuted_to_permuted, weights, None, None, 0)
    if shared is not None:
        check_array("shared", shared, rows.dtype, (tokens, width))

    out = device.output("out", (tokens, width * out_type.itemsize), fill)
    if tokens:
        plan = deepseek_finalize_plan(
            deepseek_finalize_kernel(DTYPES[rows.dtype], DTYPES[out_type], chosen),
            device.upload("rows", rows),
            device.upload("unpermuted_to_permuted", unpermuted_to_permuted),
            device.upload("weights", weights),
            None if shared is None else device.upload("shared", shared),
            out,
            **{"tokens": tokens, "top_k": top_k, "width": width},
            scale=scale,
            multiprocessors=device.multiprocessors,
        )
        device.launch(plan)
    return device.download(out).view(out_type)
