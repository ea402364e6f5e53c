"""The quantize kernel: every row of a matrix to MXFP8, scales in the layout that is asked for."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from refmoe.cuda.arguments import (
    check_fill,
    check_half_precision,
    check_matrix,
    k_groups,
    one_of,
    scale_buffer_bytes,
)
from refmoe.cuda.device import Device
from refmoe.cuda.launch import LANE_ELEMENTS, Buffer, Entry, LaunchPlan, row_plan
from refmoe.policy import EdgePolicy, ScaleMode

MODES = ("rceil", "floor")
EDGES = ("exact", "flashinfer")
LAYOUTS = ("linear", "128x4", "8x4")


@dataclass(frozen=True)
class Quantized:
    """MXFP8 of a matrix: E4M3 `codes` uint8 [M, K], E8M0 `scales` uint8 1-D in the layout that was asked for."""

    codes: npt.NDArray[np.uint8]
    scales: npt.NDArray[np.uint8]


def mxfp8_quantize_kernel(dtype: str, mode: str, edge: str, layout: str) -> Entry:
    """The quantize kernel for `dtype` "bf16" or "fp16", and a mode, edge policy and scale layout by name."""
    return Entry("quantize", f"refmoe_mxfp8_quantize_{dtype}_{mode}_{edge}_{layout}")


def mxfp8_quantize_plan(
    kernel: Entry, x: Buffer, codes: Buffer, scales: Buffer, *, rows: int, k: int, multiprocessors: int
) -> LaunchPlan:
    """A launch over rows, see `row_plan`; 16 elements a thread."""
    arguments = (x, codes, scales, rows, k // LANE_ELEMENTS, k_groups(k))
    return row_plan(kernel, arguments, rows=rows, width=k, multiprocessors=multiprocessors)


def quantize_mxfp8(
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
    one_of("layout", layout, LAYOUTS)
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
