"""The expand kernel: every token's row copied to its experts as MXFP8, scales in the grouped GEMM's layout."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from refmoe.cuda.arguments import (
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
from refmoe.cuda.launch import LANE_ELEMENTS, Buffer, Kernel, LaunchPlan, row_plan
from refmoe.cuda.quantize import EDGES, MODES
from refmoe.errors import ArgumentError, describe
from refmoe.formats import MX_BLOCK
from refmoe.policy import EdgePolicy, ScaleMode

EXPAND_LAYOUTS = ("128x4", "8x4")
INPUT_SF_LAYOUTS = ("linear", "128x4")

UInt8Array = npt.NDArray[np.uint8]


@dataclass(frozen=True)
class ExpandedRows:
    """Expanded rows: E4M3 `codes` uint8 [T*k, K]; E8M0 `scales` uint8 1-D of align128(T*k + 127*E) swizzled rows."""

    codes: UInt8Array
    scales: UInt8Array


def expand_kernel(rows: str, layout: str) -> Kernel:
    """The expand kernel for `rows` "<dtype>_<mode>_<edge>" or "mxfp8_<none|linear|128x4>"."""
    return Kernel("expand", f"refmoe_expand_{rows}_{layout}")


#: Every entry of the source.
EXPAND_KERNELS = tuple(
    expand_kernel(rows, layout)
    for rows in (
        *(f"mxfp8_{scales}" for scales in ("none", *INPUT_SF_LAYOUTS)),
        *(f"{dtype}_{mode}_{edge}" for dtype in ("bf16", "fp16") for mode in MODES for edge in EDGES),
    )
    for layout in EXPAND_LAYOUTS
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
    """A launch over tokens, see `row_plan`; 16 elements a thread."""
    arguments = (
        *(x, input_sf, topk_ids, unpermuted_to_permuted, offsets, codes, scales),
        *(tokens, top_k, first_expert, k // LANE_ELEMENTS, k_groups(k)),
    )
    return row_plan(kernel, arguments, rows=tokens, width=k, multiprocessors=multiprocessors)


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
        shape: tuple[int, ...] = (tokens, k // MX_BLOCK)
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
