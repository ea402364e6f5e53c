"""The expand kernel of a block FP8 layer: tokens quantized on their way to the rows of their experts."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from refmoe.cuda.arguments import BF16, check_array, check_fill, check_int32, check_rows, one_of
from refmoe.cuda.block_fp8 import LAYOUTS, POLICIES, SCALES
from refmoe.cuda.device import Device
from refmoe.cuda.launch import LANE_ELEMENTS, Buffer, Entry, LaunchPlan, row_plan
from refmoe.cuda.routing import MAX_TOP_K
from refmoe.errors import ArgumentError, describe
from refmoe.reference.deepseek.activation import TILE
from refmoe.reference.deepseek.expand import ExpandedBlockFP8
from refmoe.reference.deepseek.expand import check_rows as check_map

DTYPES = {BF16: "bf16", np.dtype(np.float32): "f32"}

_FP32_BYTES = 4


def deepseek_expand_kernel(dtype: str, policy: str, scales: str) -> Entry:
    """The kernel for tokens of "bf16" or "f32", a policy and scales by name."""
    return Entry("deepseek_expand", f"refmoe_deepseek_expand_{dtype}_{policy}_{scales}")


def deepseek_expand_plan(
    kernel: Entry,
    x: Buffer,
    unpermuted_to_permuted: Buffer,
    rows: tuple[Buffer, Buffer],
    as_they_are: tuple[Buffer, Buffer] | None,
    *,
    tokens: int,
    top_k: int,
    k: int,
    layout: str,
    multiprocessors: int,
) -> LaunchPlan:
    """A launch over tokens, see `row_plan`; 16 elements a thread.

    Args:
        kernel: from `deepseek_expand_kernel`.
        x: [tokens, k].
        unpermuted_to_permuted: int32 [tokens * top_k].
        rows: codes uint8 [tokens * top_k, k] and float32 scales, written where a choice has the row.
        as_they_are: codes uint8 [tokens, k] and float32 scales, written; None without a shared expert.
        tokens: T, at least 1.
        top_k: choices of a token, at most 32.
        k: a multiple of 128.
        layout: of all scales, "k_major" or "mn_major".
        multiprocessors: of the device.
    """
    tiles = k // TILE

    def strides(count: int) -> tuple[int, int]:
        return (tiles, 1) if layout == "k_major" else (1, count)

    sizes = (tokens, top_k, k // LANE_ELEMENTS, *strides(tokens * top_k), *strides(tokens))
    arguments = (x, unpermuted_to_permuted, *rows, *(as_they_are or (None, None)), *sizes)
    return row_plan(kernel, arguments, rows=tokens, width=k, multiprocessors=multiprocessors)


def expand_block_fp8(
    x: npt.NDArray[Any],
    unpermuted_to_permuted: npt.NDArray[np.int32],
    *,
    device: Device,
    policy: str = "deepgemm",
    scales: str = "fp32",
    layout: str = "k_major",
    fill: int = 0,
) -> ExpandedBlockFP8:
    """Quantize every token and copy it to its rows, with the production kernel.

    Args:
        x: BF16 or FP32 [T, K], C-contiguous, K a positive multiple of 128.
        unpermuted_to_permuted: int32 [T*k], row of (token + k_rank*T), no row twice; -1 for experts of other ranks; k
            at most 32.
        device: where the kernel runs.
        policy: "deepgemm" or "exact".
        scales: "fp32", or "ue8m0" for powers of two, stored as FP32.
        layout: of all scales, "k_major" or "mn_major".
        fill: byte that the output buffers hold before the launch; it stays in rows that no choice has.

    Raises:
        ArgumentError: an argument is none of these; nothing has run.
    """
    check_fill(fill)
    for argument, word, words in (
        ("policy", policy, POLICIES),
        ("scales", scales, SCALES),
        ("layout", layout, LAYOUTS),
    ):
        one_of(argument, word, words)
    if not isinstance(x, np.ndarray) or x.dtype not in DTYPES or x.ndim != 2:
        raise ArgumentError("x", describe(x), "bfloat16 or float32 [T, K]")
    tokens, k = x.shape
    if k == 0 or k % TILE:
        raise ArgumentError("x", f"K = {k}", f"K a positive multiple of {TILE}")
    check_array("x", x, x.dtype, (tokens, k))
    rows = check_map(unpermuted_to_permuted, tokens)
    check_array("unpermuted_to_permuted", unpermuted_to_permuted, np.dtype(np.int32), (rows,))
    top_k = rows // max(tokens, 1)
    if top_k > MAX_TOP_K or (tokens and not top_k):
        raise ArgumentError("unpermuted_to_permuted", f"{top_k} choices a token", f"1 to {MAX_TOP_K}")
    check_rows("x", tokens)
    check_int32("x", rows * (k // TILE), "scales of all rows")

    tiles = k // TILE
    codes = [device.output(name, (count, k), fill) for name, count in (("codes", rows), ("token_codes", tokens))]
    factors = [
        device.output(name, (count, tiles * _FP32_BYTES), fill)
        for name, count in (("scales", rows), ("token_scales", tokens))
    ]
    if tokens:
        plan = deepseek_expand_plan(
            deepseek_expand_kernel(DTYPES[x.dtype], policy, scales),
            device.upload("x", x),
            device.upload("unpermuted_to_permuted", unpermuted_to_permuted),
            (codes[0], factors[0]),
            (codes[1], factors[1]),
            **{"tokens": tokens, "top_k": top_k, "k": k},
            layout=layout,
            multiprocessors=device.multiprocessors,
        )
        device.launch(plan)
    found = []
    for count, code, factor in zip((rows, tokens), codes, factors, strict=True):
        shape = (count, tiles) if layout == "k_major" else (tiles, count)
        flat = np.ascontiguousarray(device.download(factor)).ravel().view(np.float32)
        found += [device.download(code), flat.reshape(shape)]
    return ExpandedBlockFP8(*found)
