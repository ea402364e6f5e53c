"""The block FP8 kernel: a matrix to E4M3 codes with one FP32 scale for each tile of 1x128 or 128x128."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from refmoe.cuda.arguments import BF16, check_fill, check_int32, check_matrix, one_of
from refmoe.cuda.device import Device
from refmoe.cuda.launch import LANE_ELEMENTS, Buffer, Entry, LaunchPlan, row_plan
from refmoe.errors import ArgumentError, describe
from refmoe.formats import BLOCK_FP8

DTYPES = {BF16: "bf16", np.dtype(np.float16): "fp16", np.dtype(np.float32): "f32"}
BLOCKS = tuple(BLOCK_FP8)
POLICIES = ("deepgemm", "exact")
SCALES = ("fp32", "ue8m0")
LAYOUTS = ("k_major", "mn_major")
TILE_ROWS = 128  # kTileRows
TILE_THREADS = 256  # kTileThreads
# Registers let two or three be resident at a time. More tiles than these are taken in a loop.
TILE_CTAS_PER_MULTIPROCESSOR = 8


@dataclass(frozen=True)
class BlockQuantized:
    """Block FP8 of a matrix.

    Attributes:
        codes: uint8 [M, K], E4M3.
        scales: float32, K-major [tile rows, tile columns] or MN-major [tile columns, tile rows].
    """

    codes: npt.NDArray[np.uint8]
    scales: npt.NDArray[np.float32]


def block_fp8_kernel(block: str, dtype: str, policy: str, scales: str) -> Entry:
    """The kernel for tiles of "1x128" or "128x128" of "bf16", "fp16" or "f32", a policy and scales by name."""
    return Entry("block_fp8", f"refmoe_block_fp8_{block}_{dtype}_{policy}_{scales}")


def block_fp8_plan(
    kernel: Entry,
    x: Buffer,
    codes: Buffer,
    scales: Buffer,
    *,
    block: str,
    rows: int,
    k: int,
    layout: str,
    multiprocessors: int,
) -> LaunchPlan:
    """A launch over rows (`row_plan`), or over tiles of 128x128: a CTA each, up to 8 a multiprocessor, which loop.

    Args:
        kernel: from `block_fp8_kernel`, for `block`.
        x: [rows, k].
        codes: uint8 [rows, k], written.
        scales: float32, one a tile, written.
        block: "1x128" or "128x128".
        rows: at least 1.
        k: a multiple of 32.
        layout: "k_major" or "mn_major".
        multiprocessors: of the device.
    """
    tile_rows, tile_columns = BLOCK_FP8[block].scale_shape(rows, k)
    strides = (tile_columns, 1) if layout == "k_major" else (1, tile_rows)
    arguments = (x, codes, scales, rows, k // LANE_ELEMENTS, *strides)
    if block == "1x128":
        return row_plan(kernel, arguments, rows=rows, width=k, multiprocessors=multiprocessors)
    grid = min(tile_rows * tile_columns, TILE_CTAS_PER_MULTIPROCESSOR * multiprocessors)
    return LaunchPlan(kernel, grid, TILE_THREADS, arguments)


def quantize_block_fp8(
    x: npt.NDArray[Any],
    *,
    device: Device,
    block: str = "1x128",
    policy: str = "deepgemm",
    scales: str = "fp32",
    layout: str = "k_major",
    fill: int = 0,
) -> BlockQuantized:
    """Quantize a matrix to block FP8 with the production kernel.

    Args:
        x: BF16, FP16 or FP32 [M, K], C-contiguous, K a positive multiple of 32; M may be 0.
        device: where the kernel runs.
        block: "1x128" or "128x128"; a tile at the edge is what is left of it.
        policy: "deepgemm" or "exact", see `refmoe.reference.block_fp8.quantize_block_fp8`.
        scales: "fp32", or "ue8m0" for powers of two, stored as FP32.
        layout: of the scales: "k_major" [tile rows, tile columns], or for 1x128 also "mn_major", its transpose.
        fill: byte that the output buffers hold before the launch, 0..255; the kernel writes all of them.

    Raises:
        ArgumentError: an argument is none of these; nothing has run.
    """
    for name, word, words in (
        *(("block", block, BLOCKS), ("policy", policy, POLICIES)),
        *(("scales", scales, SCALES), ("layout", layout, LAYOUTS)),
    ):
        one_of(name, word, words)
    if block == "128x128" and layout != "k_major":
        raise ArgumentError("layout", f"{layout!r} with block 128x128", "'k_major': weights have no other")
    check_fill(fill)
    if not isinstance(x, np.ndarray) or x.dtype not in DTYPES:
        raise ArgumentError("x", describe(x), "a bfloat16, float16 or float32 array")
    check_int32("x", (x.shape[0] if x.ndim else 0) + TILE_ROWS, "rows and those of one more tile")
    rows, k = check_matrix("x", x)
    shape = BLOCK_FP8[block].scale_shape(rows, k)
    check_int32("x", shape[0] * shape[1] * 2, "tiles, counted twice")
    shape = shape if layout == "k_major" else shape[::-1]

    codes = device.output("codes", (rows, k), fill)
    factors = device.output("scales", (shape[0], shape[1] * 4), fill)
    if rows:
        plan = block_fp8_plan(
            block_fp8_kernel(block, DTYPES[x.dtype], policy, scales),
            device.upload("x", x),
            codes,
            factors,
            block=block,
            rows=rows,
            k=k,
            layout=layout,
            multiprocessors=device.multiprocessors,
        )
        device.launch(plan)
    return BlockQuantized(device.download(codes), device.download(factors).view(np.float32))
