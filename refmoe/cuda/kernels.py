"""The production kernels: which source and entry, what they accept, how they are launched.

Every function here takes and returns NumPy arrays, checks them before anything runs, and launches the same plan on
whatever `Device` it is given. Plans are functions of their own, for callers who keep their tensors on a GPU.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from refmoe.cuda.checks import (
    BLOCK_ELEMENTS,
    GROUP_BLOCKS,
    check_array,
    check_fill,
    check_half_precision,
    check_int32,
    check_matrix,
    check_permutation,
    expanded_scale_rows,
    k_groups,
    one_of,
    scale_buffer_bytes,
)
from refmoe.cuda.device import Device
from refmoe.cuda.launch import Buffer, Kernel, LaunchPlan
from refmoe.errors import ArgumentError, describe
from refmoe.policy import EdgePolicy, ScaleMode

__all__ = [
    "KERNELS",
    "ExpandedRows",
    "Quantized",
    "expand",
    "expand_kernel",
    "expand_plan",
    "mxfp8_quantize",
    "mxfp8_quantize_kernel",
    "mxfp8_quantize_plan",
    "row_threads",
]

LANE_ELEMENTS = 16  # of one thread
WARP_LANES = 32
MAX_ROW_THREADS = 512  # kMaxRowThreads
# Rows up to this many a multiprocessor get a CTA each: on an H200 that is 3 % faster than 8 resident CTAs that loop.
CTAS_PER_MULTIPROCESSOR = 64

MODES = ("rceil", "floor")
EDGES = ("exact", "flashinfer")
QUANTIZE_LAYOUTS = ("linear", "128x4", "8x4")
EXPAND_LAYOUTS = ("128x4", "8x4")
INPUT_SF_LAYOUTS = ("linear", "128x4")

UInt8Array = npt.NDArray[np.uint8]


@dataclass(frozen=True)
class Quantized:
    """MXFP8 of a matrix: E4M3 `codes` uint8 [M, K], E8M0 `scales` uint8 1-D in the layout that was asked for."""

    codes: UInt8Array
    scales: UInt8Array


@dataclass(frozen=True)
class ExpandedRows:
    """Expanded rows: E4M3 `codes` uint8 [T*k, K]; E8M0 `scales` uint8 1-D of align128(T*k + 127*E) swizzled rows."""

    codes: UInt8Array
    scales: UInt8Array


def mxfp8_quantize_kernel(dtype: str, mode: str, edge: str, layout: str) -> Kernel:
    """The quantize kernel for `dtype` "bf16" or "fp16", and a mode, edge policy and scale layout by name."""
    return Kernel("quantize", f"refmoe_mxfp8_quantize_{dtype}_{mode}_{edge}_{layout}")


def expand_kernel(rows: str, layout: str) -> Kernel:
    """The expand kernel for `rows` "<dtype>_<mode>_<edge>" or "mxfp8_<none|linear|128x4>"."""
    return Kernel("expand", f"refmoe_expand_{rows}_{layout}")


def _all_kernels() -> Iterator[Kernel]:
    rows = [f"mxfp8_{scales}" for scales in ("none", *INPUT_SF_LAYOUTS)]
    for dtype in ("bf16", "fp16"):
        for mode in MODES:
            for edge in EDGES:
                rows.append(f"{dtype}_{mode}_{edge}")
                for layout in QUANTIZE_LAYOUTS:
                    yield mxfp8_quantize_kernel(dtype, mode, edge, layout)
    for kind in rows:
        for layout in EXPAND_LAYOUTS:
            yield expand_kernel(kind, layout)


KERNELS = tuple(_all_kernels())


def mxfp8_quantize_plan(
    kernel: Kernel, x: Buffer, codes: Buffer, scales: Buffer, *, rows: int, k: int, multiprocessors: int
) -> LaunchPlan:
    """One CTA a row up to 64 a multiprocessor, which then take several rows each; 16 elements a thread."""
    return LaunchPlan(
        kernel,
        grid=min(rows, CTAS_PER_MULTIPROCESSOR * multiprocessors),
        block=row_threads(k),
        arguments=(x, codes, scales, rows, k // LANE_ELEMENTS, k_groups(k)),
    )


def expand_plan(
    kernel: Kernel,
    x: Buffer,
    input_sf: Buffer | None,
    topk_ids: Buffer,
    unpermuted_to_permuted: Buffer,
    offsets: Buffer,
    codes: Buffer,
    scales: Buffer,
    *,
    tokens: int,
    top_k: int,
    k: int,
    first_expert: int,
    multiprocessors: int,
) -> LaunchPlan:
    """One CTA a token up to 64 a multiprocessor, which then take several tokens each; 16 elements a thread."""
    return LaunchPlan(
        kernel,
        grid=min(tokens, CTAS_PER_MULTIPROCESSOR * multiprocessors),
        block=row_threads(k),
        arguments=(
            *(x, input_sf, topk_ids, unpermuted_to_permuted, offsets, codes, scales),
            *(tokens, top_k, first_expert, k // LANE_ELEMENTS, k_groups(k)),
        ),
    )


def mxfp8_quantize(
    x: npt.NDArray[Any],
    *,
    device: Device,
    mode: ScaleMode | str = ScaleMode.RCEIL,
    edge: EdgePolicy | str = EdgePolicy.EXACT,
    layout: str = "linear",
    fill: int = 0,
) -> Quantized:
    """Quantize a matrix to MXFP8 with the production kernel.

    Args:
        x: BF16 or FP16 [M, K], C-contiguous, K a positive multiple of 32; M may be 0.
        device: where the kernel runs.
        mode: "rceil" or "floor".
        edge: "exact" or "flashinfer".
        layout: of the scales, "linear", "128x4" or "8x4".
        fill: byte that the output buffers hold before the launch, 0..255; it stays in padded scale rows.

    Raises:
        ArgumentError: an argument is none of these; nothing has run.
    """
    mode_name = one_of("mode", mode, MODES)
    edge_name = one_of("edge", edge, EDGES)
    one_of("layout", layout, QUANTIZE_LAYOUTS)
    check_fill(fill)
    dtype = check_half_precision("x", x)
    rows, k = check_matrix("x", x)
    scale_bytes = scale_buffer_bytes(rows, k, layout)

    codes = device.output("codes", (rows, k), fill)
    scales = device.output("scales", (scale_bytes,), fill)
    if rows:
        kernel = mxfp8_quantize_kernel(dtype, mode_name, edge_name, layout)
        source = device.upload("x", x)
        device.launch(
            mxfp8_quantize_plan(kernel, source, codes, scales, rows=rows, k=k, multiprocessors=device.multiprocessors)
        )
    return Quantized(device.download(codes), device.download(scales))


def expand(
    x: npt.NDArray[Any],
    topk_ids: npt.NDArray[np.int32],
    unpermuted_to_permuted: npt.NDArray[np.int32],
    offsets: npt.NDArray[np.int64],
    *,
    device: Device,
    mode: ScaleMode | str = ScaleMode.RCEIL,
    edge: EdgePolicy | str = EdgePolicy.EXACT,
    layout: str = "128x4",
    input_sf: UInt8Array | None = None,
    input_sf_layout: str = "linear",
    first_expert: int = 0,
    fill: int = 0,
) -> ExpandedRows:
    """Copy every token's row to its experts as MXFP8, scales in the grouped GEMM's layout, with the production kernel.

    Args:
        x: [T, K] BF16 or FP16, quantized on the way, or uint8 E4M3 codes; C-contiguous, K a positive multiple of 32.
        topk_ids: int32 [T, k] global expert ids.
        unpermuted_to_permuted: int32 [T*k], row of (token + rank*T), -1 for experts of other ranks.
        offsets: int64 [E+1], first row of each of this rank's experts.
        device: where the kernel runs.
        mode: "rceil" or "floor"; of no effect on rows that are MXFP8 already.
        edge: "exact" or "flashinfer"; likewise.
        layout: of the scales written, "128x4" or "8x4".
        input_sf: uint8 scales of MXFP8 rows, [T, K/32] if linear, 1-D whole atoms if 128x4; None writes 0x00 scales.
        input_sf_layout: "linear" or "128x4".
        first_expert: global id of this rank's first expert.
        fill: byte that the output buffers hold before the launch, 0..255; it stays where the kernel does not write.

    Raises:
        ArgumentError: an argument is none of these, or the maps contradict each other; nothing has run.
    """
    mode_name = one_of("mode", mode, MODES)
    edge_name = one_of("edge", edge, EDGES)
    one_of("layout", layout, EXPAND_LAYOUTS)
    one_of("input_sf_layout", input_sf_layout, INPUT_SF_LAYOUTS)
    check_fill(fill)
    ready = isinstance(x, np.ndarray) and x.dtype == np.uint8
    dtype = "mxfp8" if ready else check_half_precision("x", x, also="or uint8 E4M3 codes")
    tokens, k = check_matrix("x", x)
    top_k, experts = check_permutation(topk_ids, unpermuted_to_permuted, offsets, tokens, first_expert)
    if input_sf is not None:
        if not ready:
            raise ArgumentError("input_sf", f"{describe(input_sf)} with {x.dtype} rows", "None: x is not quantized yet")
        shape: tuple[int, ...] = (tokens, k // BLOCK_ELEMENTS)
        if input_sf_layout != "linear":
            shape = (scale_buffer_bytes(tokens, k, input_sf_layout),)
        check_array("input_sf", input_sf, np.dtype(np.uint8), shape)

    rows = tokens * top_k
    scale_rows = expanded_scale_rows(rows, experts)
    check_int32("x", rows, "rows after expansion")
    check_int32("offsets", scale_rows, "padded scale rows")
    codes = device.output("codes", (rows, k), fill)
    scales = device.output("scales", (scale_rows * k_groups(k) * GROUP_BLOCKS,), fill)
    if rows:
        scales_word = "none" if input_sf is None else input_sf_layout
        kind = f"mxfp8_{scales_word}" if ready else f"{dtype}_{mode_name}_{edge_name}"
        plan = expand_plan(
            expand_kernel(kind, layout),
            device.upload("x", x),
            None if input_sf is None else device.upload("input_sf", input_sf),
            device.upload("topk_ids", topk_ids),
            device.upload("unpermuted_to_permuted", unpermuted_to_permuted),
            device.upload("offsets", offsets),
            codes,
            scales,
            tokens=tokens,
            top_k=top_k,
            k=k,
            first_expert=first_expert,
            multiprocessors=device.multiprocessors,
        )
        device.launch(plan)
    return ExpandedRows(device.download(codes), device.download(scales))


def row_threads(k: int) -> int:
    """Threads of a CTA for rows of k elements: whole warps, 16 elements a thread, at most 512."""
    whole_warps = -(-k // (LANE_ELEMENTS * WARP_LANES)) * WARP_LANES
    return min(whole_warps, MAX_ROW_THREADS)
