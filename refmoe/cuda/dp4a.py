"""The DP4A kernel: MXFP4 weights times Q8_1 activations for up to 8 tokens, each with its own experts."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from refmoe.cuda.arguments import BF16, INT32_MAX, check_array, check_fill, check_int32
from refmoe.cuda.device import Device
from refmoe.cuda.launch import WARP_LANES, Buffer, Entry, LaunchPlan
from refmoe.errors import ArgumentError, describe
from refmoe.formats import Q8_1

DTYPES = {BF16: "bf16", np.dtype(np.float32): "f32"}
MAX_TOKENS = 8
MAX_CHOICES = 256
#: Weight rows of a warp: four while those of four warps take at most `FOUR_ROWS_BYTES`, so that some CTAs fit a
#: multiprocessor together, else two.
FOUR_ROWS, TWO_ROWS = 4, 2
FOUR_ROWS_BYTES = 32 * 1024
#: Warps of a CTA, the most first: it takes as many as have their weights and scales in shared memory together.
WARPS = (4, 2, 1)
#: Of a CTA's weights and scales: 1 KB less than the smallest shared memory of the chips.
SHARED_BYTES = 98 * 1024
#: The longest K of which the rows of one warp fit.
MAX_K = SHARED_BYTES // (TWO_ROWS * (Q8_1.block // 2 + 1)) * Q8_1.block
INVERSE_ONE = 65536  # the kernel divides by top_k by a multiplication and a shift by 16


def dp4a_gemv_kernel(tokens: int, dtype: str, warp_rows: int) -> Entry:
    """The kernel for a number of tokens, an output "bf16" or "f32", and 2 or 4 weight rows of a warp.

    Its name has the warps of the order of summation, llama.cpp's rule: 4 up to 4 tokens, 2 up to 8.
    """
    return Entry("dp4a", f"refmoe_dp4a_gemv_{4 if tokens <= 4 else 2}_{dtype}_{warp_rows}_rows")


@dataclass(frozen=True)
class GemvSize:
    """Sizes of a launch: tokens, choices of each, experts here and the first one's id, weight rows, K."""

    tokens: int
    top_k: int
    experts: int
    first_expert: int
    n: int
    k: int


def dp4a_gemv_plan(
    dtype: str,
    codes: Buffer,
    d: Buffer,
    weights: Buffer,
    weight_scales: Buffer,
    topk_ids: Buffer,
    row_of_choice: Buffer | None,
    alpha: Buffer | None,
    bias: Buffer | None,
    out: Buffer,
    *,
    size: GemvSize,
    input_by_choice: bool,
) -> LaunchPlan:
    """A launch: for each choice a CTA for each 16 weight rows, fewer for a long K, which it holds in shared memory.

    Args:
        dtype: of `out`, "bf16" or "f32".
        codes: int8 [tokens, k], or [tokens * top_k, k] with `input_by_choice`.
        d: FP16, the scales of `codes`.
        weights: uint8 [experts, n, k/2].
        weight_scales: uint8 [experts, n, k/32].
        topk_ids: int32 [tokens, top_k].
        row_of_choice: int32 [top_k * tokens] or None.
        alpha: float32 [experts] or None.
        bias: BF16 [experts, n] or None.
        out: [tokens * top_k, n], written.
        size: of all of them.
        input_by_choice: whether a choice has an activation of its own.
    """
    warps, warp_rows = _warps_and_rows(size.k)
    tiles = -(-size.n // (warps * warp_rows))
    arguments = (
        *(codes, d, weights, weight_scales, topk_ids, row_of_choice, alpha, bias, out),
        *(size.tokens, size.top_k, size.experts, size.first_expert, size.n, size.k // Q8_1.block),
        *(int(input_by_choice), tiles, INVERSE_ONE // size.top_k + 1),
    )
    kernel = dp4a_gemv_kernel(size.tokens, dtype, warp_rows)
    grid = size.tokens * size.top_k * tiles
    return LaunchPlan(kernel, grid, warps * WARP_LANES, arguments, _shared_bytes(warps * warp_rows, size.k))


def _warps_and_rows(k: int) -> tuple[int, int]:
    """Warps of a CTA, the most whose rows fit shared memory, and the rows of each."""
    if _shared_bytes(WARPS[0] * FOUR_ROWS, k) <= FOUR_ROWS_BYTES:
        return WARPS[0], FOUR_ROWS
    return next(warps for warps in WARPS if _shared_bytes(warps * TWO_ROWS, k) <= SHARED_BYTES), TWO_ROWS


def _shared_bytes(rows: int, k: int) -> int:
    """Weights and scales of a CTA's rows."""
    return rows * (k // 2 + k // Q8_1.block)


def dp4a_gemv(
    codes: npt.NDArray[np.int8],
    d: npt.NDArray[np.float16],
    weights: npt.NDArray[np.uint8],
    weight_scales: npt.NDArray[np.uint8],
    topk_ids: npt.NDArray[np.int32],
    *,
    device: Device,
    row_of_choice: npt.NDArray[np.int32] | None = None,
    input_by_choice: bool = False,
    alpha: npt.NDArray[np.float32] | None = None,
    bias: npt.NDArray[Any] | None = None,
    first_expert: int = 0,
    out_dtype: npt.DTypeLike = BF16,
    fill: int = 0,
) -> npt.NDArray[Any]:
    """The product of each choice of a token with its expert's weights, with the production kernel.

    Args:
        codes: int8 [M, K] of Q8_1, M from 0 to 8, or [M*k, K] with `input_by_choice`; K a positive multiple of 32,
            at most `MAX_K`: 2 weight rows fit shared memory.
        d: float16 [.., K/32], the scales of `codes`.
        weights: packed FP4 codes, uint8 [E, N, K/2], the even element in the low nibble.
        weight_scales: E8M0, uint8 [E, N, K/32].
        topk_ids: int32 [M, k], global ids of experts, M*k at most 256; those of other ranks are left out.
        device: where the kernel runs.
        row_of_choice: int32 [k*M], the output row of choice token + rank*M, -1 for none; None is that number itself.
        input_by_choice: whether a choice has an activation of its own, in the row of its output; else a token has one.
        alpha: float32 [E] or None.
        bias: BF16 [E, N] or None.
        first_expert: the global id of this rank's first expert.
        out_dtype: ml_dtypes.bfloat16 or float32.
        fill: byte that the output holds before the launch, 0..255; it stays in rows that no choice has.

    Returns:
        [M*k, N] of `out_dtype`. The order of the sum is in `refmoe.reference.dp4a`; it depends on M.

    Raises:
        ArgumentError: an argument is none of these; nothing has run.
    """
    check_fill(fill)
    out_type = _output_type(out_dtype)
    size = check_sizes(weights, topk_ids, first_expert)
    check_array("weights", weights, np.dtype(np.uint8), (size.experts, size.n, size.k // 2))
    blocks, choices = size.k // Q8_1.block, size.tokens * size.top_k
    check_array("weight_scales", weight_scales, np.dtype(np.uint8), (size.experts, size.n, blocks))
    rows = choices if input_by_choice else size.tokens
    check_array("codes", codes, np.dtype(np.int8), (rows, size.k))
    check_array("d", d, np.dtype(np.float16), (rows, blocks))
    if row_of_choice is not None:
        check_array("row_of_choice", row_of_choice, np.dtype(np.int32), (choices,))
        _check_rows(row_of_choice)
    if alpha is not None:
        check_array("alpha", alpha, np.dtype(np.float32), (size.experts,))
    if bias is not None:
        check_array("bias", bias, BF16, (size.experts, size.n))

    out = device.output("out", (choices, size.n * out_type.itemsize), fill)
    if choices:
        optional = {"row_of_choice": row_of_choice, "alpha": alpha, "bias": bias}
        rows_buffer, alpha_buffer, bias_buffer = (
            None if array is None else device.upload(name, array) for name, array in optional.items()
        )
        plan = dp4a_gemv_plan(
            DTYPES[out_type],
            device.upload("codes", codes),
            device.upload("d", d),
            device.upload("weights", weights),
            device.upload("weight_scales", weight_scales),
            device.upload("topk_ids", topk_ids),
            rows_buffer,
            alpha_buffer,
            bias_buffer,
            out,
            size=size,
            input_by_choice=input_by_choice,
        )
        device.launch(plan)
    return device.download(out).view(out_type)


def _output_type(out_dtype: npt.DTypeLike) -> np.dtype[Any]:
    try:
        found = np.dtype(out_dtype)
    except TypeError:
        found = np.dtype(object)
    if out_dtype is None or found not in DTYPES:
        raise ArgumentError("out_dtype", describe(out_dtype), "ml_dtypes.bfloat16 or float32")
    return found


def check_sizes(weights: object, topk_ids: object, first_expert: object) -> GemvSize:
    """The sizes of a product.

    Args:
        weights: uint8 [E, N, K/2].
        topk_ids: int32 [M, k].
        first_expert: number of the first of the E experts.

    Raises:
        ArgumentError: arrays of other dtypes or shapes, or sizes that the kernel does not take.
    """
    if not isinstance(weights, np.ndarray) or weights.ndim != 3 or not weights.shape[0] or not weights.shape[1]:
        raise ArgumentError("weights", describe(weights), "uint8 [E, N, K/2] with at least one expert and one row")
    experts, n, half = weights.shape
    k = 2 * half
    if k == 0 or k % Q8_1.block or k > MAX_K:
        needed = f"K a positive multiple of {Q8_1.block}, at most {MAX_K}"
        raise ArgumentError("weights", f"K = {k}", needed)
    if not isinstance(topk_ids, np.ndarray) or topk_ids.ndim != 2 or not topk_ids.shape[1]:
        raise ArgumentError("topk_ids", describe(topk_ids), "int32 [M, k] with k at least 1")
    tokens, top_k = topk_ids.shape
    check_array("topk_ids", topk_ids, np.dtype(np.int32), (tokens, top_k))
    if tokens > MAX_TOKENS:
        raise ArgumentError("topk_ids", f"{tokens} tokens", f"at most {MAX_TOKENS}: more are for a GEMM")
    if tokens * top_k > MAX_CHOICES:
        raise ArgumentError("topk_ids", f"{tokens * top_k} choices", f"at most {MAX_CHOICES}")
    check_int32("weights", tokens * top_k * -(-n // TWO_ROWS), "CTAs")
    if not isinstance(first_expert, (int, np.integer)) or not 0 <= first_expert <= INT32_MAX - experts:
        raise ArgumentError("first_expert", describe(first_expert), "the global id of this rank's first expert")
    return GemvSize(tokens, top_k, experts, int(first_expert), n, k)


def _check_rows(rows: npt.NDArray[np.int32]) -> None:
    stray = np.flatnonzero((rows < -1) | (rows >= rows.size))
    if stray.size:
        found = f"{rows[stray[0]]} at {stray[0]}"
        raise ArgumentError("row_of_choice", found, f"-1, or a row below {rows.size}")
    used = rows[rows >= 0]
    if np.unique(used).size != used.size:
        raise ArgumentError("row_of_choice", "a row twice", "each row at most once")
