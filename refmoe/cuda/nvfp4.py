"""The NVFP4 quantize kernel: every row of a matrix to packed E2M1, UE4M3 scales in the layout that is asked for."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from refmoe.cuda.arguments import ATOM_BYTES, check_fill, check_half_precision, check_int32, check_rows, one_of
from refmoe.cuda.device import Device
from refmoe.cuda.launch import LANE_ELEMENTS, Buffer, Entry, LaunchPlan, row_plan
from refmoe.errors import ArgumentError, describe
from refmoe.formats import NVFP4
from refmoe.reference.layout import SCALE_LAYOUTS
from refmoe.reference.nvfp4 import checked_encode_scale

LAYOUTS = ("linear", "128x4")
GROUP_ELEMENTS = 4 * NVFP4.block  # what one scale word is for


@dataclass(frozen=True)
class QuantizedNVFP4:
    """NVFP4 of a matrix: packed `codes` uint8 [M, K/2], UE4M3 `scales` uint8 1-D in the layout that was asked for."""

    codes: npt.NDArray[np.uint8]
    scales: npt.NDArray[np.uint8]


def nvfp4_quantize_kernel(dtype: str, layout: str) -> Entry:
    """The quantize kernel for `dtype` "bf16" or "fp16", and a scale layout by name."""
    return Entry("nvfp4", f"refmoe_nvfp4_quantize_{dtype}_{layout}")


def nvfp4_groups(k: int) -> int:
    """Scale words of a row of k elements: groups of 64."""
    return -(-k // GROUP_ELEMENTS)


def nvfp4_quantize_plan(
    kernel: Entry,
    x: Buffer,
    global_scale: Buffer,
    codes: Buffer,
    scales: Buffer,
    *,
    rows: int,
    k: int,
    multiprocessors: int,
) -> LaunchPlan:
    """A launch over rows, see `row_plan`; a block of 16 elements a thread."""
    arguments = (x, global_scale, codes, scales, rows, k // LANE_ELEMENTS, nvfp4_groups(k))
    return row_plan(kernel, arguments, rows=rows, width=k, multiprocessors=multiprocessors)


def quantize_nvfp4(
    x: npt.NDArray[Any],
    *,
    global_encode_scale: np.float32 | float,
    device: Device,
    layout: str = "linear",
    fill: int = 0,
) -> QuantizedNVFP4:
    """Quantize a matrix to NVFP4 with the production kernel.

    Args:
        x: BF16 or FP16 [M, K], C-contiguous, K a positive multiple of 16; M may be 0.
        global_encode_scale: the tensor's FP32 factor g, see `refmoe.reference.nvfp4.nvfp4_encode_scale`.
        device: where the kernel runs.
        layout: of the scales, "linear" or "128x4".
        fill: byte that the output buffers hold before the launch, 0..255; it stays in padded scale rows.

    Raises:
        ArgumentError: an argument is none of these; nothing has run.
    """
    one_of("layout", layout, LAYOUTS)
    check_fill(fill)
    scale = checked_encode_scale(global_encode_scale)
    dtype = check_half_precision("x", x)
    rows, k = check_nvfp4_matrix("x", x)
    scale_bytes = math.prod(SCALE_LAYOUTS[layout].padded_shape(rows, k // NVFP4.block))

    codes = device.output("codes", (rows, k // NVFP4.codes_a_byte), fill)
    scales = device.output("scales", (scale_bytes,), fill)
    if rows:
        plan = nvfp4_quantize_plan(
            nvfp4_quantize_kernel(dtype, layout),
            device.upload("x", x),
            device.upload("global_scale", np.array([scale], np.float32)),
            codes,
            scales,
            rows=rows,
            k=k,
            multiprocessors=device.multiprocessors,
        )
        device.launch(plan)
    return QuantizedNVFP4(device.download(codes), device.download(scales))


def check_nvfp4_matrix(argument: str, array: npt.NDArray[Any]) -> tuple[int, int]:
    """(rows, K) of a C-contiguous matrix whose K is a positive multiple of 16; refuse anything else."""
    if array.ndim != 2:
        raise ArgumentError(argument, describe(array), "two dimensions, [rows, K]")
    rows, k = array.shape
    if k == 0 or k % NVFP4.block:
        raise ArgumentError(argument, f"K = {k}", f"K a positive multiple of {NVFP4.block}")
    check_rows(argument, rows)
    check_int32(argument, nvfp4_groups(k) * ATOM_BYTES, f"bytes of scale atoms, for K = {k}")
    if not array.flags.c_contiguous:
        raise ArgumentError(argument, f"strides {array.strides}", "a C-contiguous array")
    return rows, k
