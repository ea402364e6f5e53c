"""The finalize kernel whose sums are Q8_1: the last step of a layer whose output the next product takes as it is."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from refmoe.cuda.arguments import check_fill, check_int32, one_of
from refmoe.cuda.device import Device
from refmoe.cuda.finalize import DTYPES, check_sums
from refmoe.cuda.launch import Buffer, Entry, LaunchPlan
from refmoe.cuda.q8_1 import HALF_BYTES, QUAD_ELEMENTS
from refmoe.errors import ArgumentError
from refmoe.formats import Q8_1
from refmoe.reference.q8_1 import VARIANTS, Q8Tensor

THREADS = 128  # kThreads, of 4 columns each: the slice of a row that is a CTA's
CTAS_PER_MULTIPROCESSOR = 16  # more of them loop


def finalize_q8_1_kernel(rows: str, quantizer: str) -> Entry:
    """The kernel for rows of "bf16" or "f32" and a variant of Q8_1, by name."""
    return Entry("finalize_q8_1", f"refmoe_finalize_q8_1_{rows}_{quantizer}")


def finalize_q8_1_plan(
    kernel: Entry,
    rows: Buffer,
    unpermuted_to_permuted: Buffer,
    weights: Buffer,
    topk_ids: Buffer | None,
    bias: Buffer | None,
    codes: Buffer,
    d: Buffer,
    s: Buffer,
    *,
    tokens: int,
    top_k: int,
    width: int,
    first_expert: int,
    multiprocessors: int,
) -> LaunchPlan:
    """A launch over slices of 512 columns of all tokens; 4 columns a thread.

    Args:
        kernel: from `finalize_q8_1_kernel`.
        rows: BF16 or FP32 [tokens * top_k, width], in expert order.
        unpermuted_to_permuted: int32 [tokens * top_k].
        weights: float32 [tokens, top_k].
        topk_ids: int32 [tokens, top_k]; None without a bias.
        bias: BF16 [experts, width] or None.
        codes: int8 [tokens, width], written.
        d: FP16 [tokens, width/32], written: the scales.
        s: FP16 [tokens, width/32], written: the sums of blocks.
        tokens: T, at least 1.
        top_k: choices of a token, at most 32.
        width: H, a multiple of 32.
        first_expert: id of the first expert of `bias`.
        multiprocessors: of the device.
    """
    quads = width // QUAD_ELEMENTS
    slices = tokens * -(-quads // THREADS)
    grid = min(slices, CTAS_PER_MULTIPROCESSOR * multiprocessors)
    arguments = (
        *(rows, unpermuted_to_permuted, weights, topk_ids, bias, codes, d, s),
        *(tokens, top_k, first_expert, quads),
    )
    return LaunchPlan(kernel, grid, THREADS, arguments)


def finalize_q8_1(
    rows: npt.NDArray[Any],
    unpermuted_to_permuted: npt.NDArray[np.int32],
    weights: npt.NDArray[np.float32],
    *,
    device: Device,
    topk_ids: npt.NDArray[np.int32] | None = None,
    bias: npt.NDArray[Any] | None = None,
    first_expert: int = 0,
    quantizer: str = "llama_cpp_mmvq",
    fill: int = 0,
) -> Q8Tensor:
    """The weighted sum of every token's rows, quantized to Q8_1 from FP32, with the production kernel.

    Args:
        rows: BF16 or FP32 [T*k, H] in expert order, C-contiguous, H a positive multiple of 32.
        unpermuted_to_permuted: int32 [T*k], row of (token + k_rank*T), -1 for experts of other ranks.
        weights: float32 [T, k], k at most 32.
        device: where the kernel runs.
        topk_ids: int32 [T, k] global expert ids; with `bias` only.
        bias: BF16 [E, H], added to the row before the weight, or None.
        first_expert: global id of the first expert of `bias`.
        quantizer: "llama_cpp_mmvq" or "llama_cpp_mmq", see `refmoe.reference.q8_1`.
        fill: byte that the output buffers hold before the launch, 0..255; the kernel writes all of them.

    Returns:
        Q8_1 [T, H]; blocks of zeros for a token none of whose experts are here.

    Raises:
        ArgumentError: an argument is none of these, or the maps contradict each other; nothing has run.
    """
    check_fill(fill)
    chosen = one_of("quantizer", quantizer, VARIANTS)
    tokens, top_k, width = check_sums(rows, unpermuted_to_permuted, weights, topk_ids, bias, first_expert)
    if width % Q8_1.block:
        raise ArgumentError("rows", f"H = {width}", f"H a positive multiple of {Q8_1.block}")
    check_int32("rows", tokens * width, "elements of the output")

    codes = device.output("codes", (tokens, width), fill)
    d, s = (device.output(each, (tokens, width // Q8_1.block * HALF_BYTES), fill) for each in ("d", "s"))
    if tokens:
        plan = finalize_q8_1_plan(
            finalize_q8_1_kernel(DTYPES[rows.dtype], chosen),
            device.upload("rows", rows),
            device.upload("unpermuted_to_permuted", unpermuted_to_permuted),
            device.upload("weights", weights),
            None if topk_ids is None else device.upload("topk_ids", topk_ids),
            None if bias is None else device.upload("bias", bias),
            codes,
            d,
            s,
            tokens=tokens,
            top_k=top_k,
            width=width,
            first_expert=first_expert,
            multiprocessors=device.multiprocessors,
        )
        device.launch(plan)
    halves = (device.download(each).view(np.float16) for each in (d, s))
    return Q8Tensor(device.download(codes).view(np.int8), *halves)
