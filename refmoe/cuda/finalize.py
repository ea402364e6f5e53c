"""The finalize kernel: each token's rows gathered from its experts, biased, weighted and summed in rank order."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from refmoe.cuda.arguments import BF16, INT32_MAX, check_array, check_fill, check_int32, check_rows
from refmoe.cuda.device import Device
from refmoe.cuda.launch import WARP_LANES, Buffer, Entry, LaunchPlan
from refmoe.cuda.routing import MAX_TOP_K
from refmoe.errors import ArgumentError, describe

COLUMNS = 8  # of one lane
SLICE_COLUMNS = COLUMNS * WARP_LANES  # kSliceColumns, of a warp
WARPS = 4  # kWarps, of a CTA
CTAS = 8  # kCtas of BF16 rows, on a multiprocessor

FP32 = np.dtype(np.float32)
DTYPES = {BF16: "bf16", FP32: "f32"}


def finalize_kernel(rows: str, out: str) -> Entry:
    """The kernel for rows and outputs of "bf16" or "f32"."""
    return Entry("finalize", f"refmoe_finalize_{rows}_{out}")


def finalize_plan(
    kernel: Entry,
    rows: Buffer,
    unpermuted_to_permuted: Buffer,
    weights: Buffer,
    topk_ids: Buffer | None,
    bias: Buffer | None,
    out: Buffer,
    *,
    tokens: int,
    top_k: int,
    width: int,
    first_expert: int,
    multiprocessors: int,
) -> LaunchPlan:
    """A launch over tokens and slices of 256 columns: as many CTAs as are resident, each of one slice, walk the tokens.

    Args:
        kernel: from `finalize_kernel`.
        rows: BF16 or FP32 [tokens * top_k, width], in expert order.
        unpermuted_to_permuted: int32 [tokens * top_k].
        weights: float32 [tokens, top_k].
        topk_ids: int32 [tokens, top_k]; None without a bias.
        bias: BF16 [experts, width] or None.
        out: BF16 or FP32 [tokens, width], written.
        tokens: T.
        top_k: choices of a token, at most 32.
        width: H, a multiple of 8.
        first_expert: id of the first expert of `bias`.
        multiprocessors: of the device.

    Raises:
        ArgumentError: more tokens than the kernel's int32 can step past.
    """
    check_rows("rows", tokens)
    slices = -(-width // SLICE_COLUMNS)
    ctas_of_slice = min(-(-tokens // WARPS), max(1, CTAS * multiprocessors // slices))
    arguments = (
        *(rows, unpermuted_to_permuted, weights, topk_ids, bias, out),
        *(tokens, top_k, first_expert, width, slices),
    )
    return LaunchPlan(kernel, slices * ctas_of_slice, WARPS * WARP_LANES, arguments)


def finalize(
    rows: npt.NDArray[Any],
    unpermuted_to_permuted: npt.NDArray[np.int32],
    weights: npt.NDArray[np.float32],
    *,
    device: Device,
    topk_ids: npt.NDArray[np.int32] | None = None,
    bias: npt.NDArray[Any] | None = None,
    first_expert: int = 0,
    out_dtype: npt.DTypeLike = BF16,
    fill: int = 0,
) -> npt.NDArray[Any]:
    """The output of every token: the weighted sum of its experts' rows, with the production kernel.

    Args:
        rows: BF16 or FP32 [T*k, H] in expert order, C-contiguous, H a positive multiple of 8.
        unpermuted_to_permuted: int32 [T*k], row of (token + k_rank*T), -1 for experts of other ranks.
        weights: float32 [T, k], k at most 32.
        device: where the kernel runs.
        topk_ids: int32 [T, k] global expert ids; with `bias` only.
        bias: BF16 [E, H], added to the row before the weight, or None.
        first_expert: global id of the first expert of `bias`.
        out_dtype: bfloat16 or float32.
        fill: byte that the output holds before the launch, 0..255; the kernel writes all of it.

    Returns:
        [T, H] of `out_dtype`; +0 for a token none of whose experts are here.

    Raises:
        ArgumentError: an argument is none of these, or the maps contradict each other; nothing has run.
    """
    check_fill(fill)
    out_type = _output_type(out_dtype)
    tokens, top_k, width = check_sums(rows, unpermuted_to_permuted, weights, topk_ids, bias, first_expert)

    out = device.output("out", (tokens, width * out_type.itemsize), fill)
    if tokens:
        plan = finalize_plan(
            finalize_kernel(DTYPES[rows.dtype], DTYPES[out_type]),
            device.upload("rows", rows),
            device.upload("unpermuted_to_permuted", unpermuted_to_permuted),
            device.upload("weights", weights),
            None if topk_ids is None else device.upload("topk_ids", topk_ids),
            None if bias is None else device.upload("bias", bias),
            out,
            tokens=tokens,
            top_k=top_k,
            width=width,
            first_expert=first_expert,
            multiprocessors=device.multiprocessors,
        )
        device.launch(plan)
    return device.download(out).view(out_type)


def check_sums(
    rows: npt.NDArray[Any],
    unpermuted_to_permuted: npt.NDArray[np.int32],
    weights: npt.NDArray[np.float32],
    topk_ids: npt.NDArray[np.int32] | None,
    bias: npt.NDArray[Any] | None,
    first_expert: int,
) -> tuple[int, int, int]:
    """(T, k, H) of arguments that fit together, as `finalize` describes them.

    Raises:
        ArgumentError: an argument is none of these, or the maps contradict each other.
    """
    if not isinstance(weights, np.ndarray) or weights.ndim != 2 or not 1 <= weights.shape[1] <= MAX_TOP_K:
        raise ArgumentError("weights", describe(weights), f"float32 [T, k] with k from 1 to {MAX_TOP_K}")
    tokens, top_k = weights.shape
    check_array("weights", weights, FP32, (tokens, top_k))
    width = _check_rows(rows, tokens * top_k)
    check_array("unpermuted_to_permuted", unpermuted_to_permuted, np.dtype(np.int32), (tokens * top_k,))
    _check_map(unpermuted_to_permuted)
    _check_bias(bias, topk_ids, unpermuted_to_permuted, (tokens, top_k, width), first_expert)
    return tokens, top_k, width


def _output_type(out_dtype: npt.DTypeLike) -> np.dtype[Any]:
    try:
        found = np.dtype(out_dtype)
    except TypeError:
        found = np.dtype(object)
    if out_dtype is None or found not in DTYPES:
        raise ArgumentError("out_dtype", describe(out_dtype), "ml_dtypes.bfloat16 or float32")
    return found


def _check_rows(rows: object, count: int) -> int:
    """H."""
    if not isinstance(rows, np.ndarray) or rows.dtype not in DTYPES or rows.ndim != 2:
        raise ArgumentError("rows", describe(rows), "bfloat16 or float32 [T*k, H]")
    width = rows.shape[1]
    if width == 0 or width % COLUMNS:
        raise ArgumentError("rows", f"H = {width}", f"H a positive multiple of {COLUMNS}")
    check_array("rows", rows, rows.dtype, (count, width))
    check_int32("rows", count, "rows")
    check_int32("rows", width + SLICE_COLUMNS, "columns and those of one more slice")
    return int(width)


def _check_map(rows: npt.NDArray[np.int32]) -> None:
    stray = np.flatnonzero((rows < -1) | (rows >= rows.size))
    if stray.size:
        found = f"{rows[stray[0]]} at {stray[0]}"
        raise ArgumentError("unpermuted_to_permuted", found, f"-1, or a row below {rows.size}")


def _check_bias(
    bias: npt.NDArray[Any] | None,
    topk_ids: npt.NDArray[np.int32] | None,
    rows: npt.NDArray[np.int32],
    sizes: tuple[int, int, int],
    first_expert: object,
) -> None:
    tokens, top_k, width = sizes
    if not isinstance(first_expert, (int, np.integer)) or not 0 <= first_expert <= INT32_MAX:
        raise ArgumentError("first_expert", describe(first_expert), "the global id of this rank's first expert")
    if bias is None:
        if topk_ids is not None:
            raise ArgumentError("topk_ids", describe(topk_ids), "None without a bias")
        return
    if not isinstance(bias, np.ndarray) or bias.ndim != 2 or bias.shape[0] == 0:
        raise ArgumentError("bias", describe(bias), f"bfloat16 [E, {width}] with at least one expert")
    check_array("bias", bias, BF16, (bias.shape[0], width))
    if topk_ids is None:
        raise ArgumentError("topk_ids", "None with a bias", f"int32 [{tokens}, {top_k}]")
    check_array("topk_ids", topk_ids, np.dtype(np.int32), (tokens, top_k))
    local = topk_ids.T.ravel().astype(np.int64) - int(first_expert)
    stray = np.flatnonzero((rows >= 0) & ((local < 0) | (local >= bias.shape[0])))
    if stray.size:
        rank, token = divmod(int(stray[0]), tokens)
        needed = f"experts {first_expert} to {int(first_expert) + bias.shape[0] - 1} where the map has a row"
        raise ArgumentError("topk_ids", f"expert {topk_ids[token, rank]} of token {token}", needed)
