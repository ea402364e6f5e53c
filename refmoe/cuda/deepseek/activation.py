"""The SwiGLU kernel whose results are block FP8: the activation between the two products of a DeepSeek-V3 expert."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from refmoe.cuda.arguments import BF16, INT32_MAX, check_array, check_fill, check_int32, check_offsets, one_of
from refmoe.cuda.block_fp8 import LAYOUTS, POLICIES, SCALES
from refmoe.cuda.device import Device
from refmoe.cuda.launch import LANE_ELEMENTS, Buffer, Entry, LaunchPlan, row_plan
from refmoe.errors import ArgumentError, describe
from refmoe.reference.deepseek.activation import TILE, BlockFP8Rows

DTYPES = {BF16: "bf16", np.dtype(np.float32): "f32"}

_FP32_BYTES = 4


def deepseek_activation_kernel(dtype: str, policy: str, scales: str) -> Entry:
    """The kernel for rows of "bf16" or "f32", a policy and scales by name."""
    return Entry("deepseek_activation", f"refmoe_deepseek_activation_{dtype}_{policy}_{scales}")


def deepseek_activation_plan(
    kernel: Entry,
    gate_up: Buffer,
    rows_in_use: Buffer,
    codes: Buffer,
    scales: Buffer,
    *,
    masked: bool,
    rows: int,
    experts: int,
    width: int,
    layout: str,
    multiprocessors: int,
) -> LaunchPlan:
    """A launch over rows, see `row_plan`; 16 results a thread.

    Args:
        kernel: from `deepseek_activation_kernel`.
        gate_up: [rows, 2 * width], in the order of the experts.
        rows_in_use: int64 [experts + 1], first row of each expert, then the rows in use; masked int32 [experts].
        codes: uint8 [rows, width], written.
        scales: float32, width / 128 a row, written.
        masked: whether each expert has rows / experts rows, of which some are in use.
        rows: of `gate_up`, those that are not in use included; at least 1.
        experts: of this rank.
        width: I, a multiple of 128.
        layout: of the scales, "k_major" or "mn_major"; of each expert by itself if masked.
        multiprocessors: of the device.
    """
    capacity = rows // experts if masked else rows
    strides = (width // TILE, 1) if layout == "k_major" else (1, capacity)
    choice = (None, rows_in_use) if masked else (rows_in_use, None)
    sizes = (rows, experts, capacity, width // LANE_ELEMENTS, *strides)
    arguments = (gate_up, *choice, codes, scales, *sizes)
    return row_plan(kernel, arguments, rows=rows, width=width, multiprocessors=multiprocessors)


def swiglu_block_fp8(
    gate_up: npt.NDArray[Any],
    offsets: npt.NDArray[np.int64],
    *,
    device: Device,
    policy: str = "deepgemm",
    scales: str = "fp32",
    layout: str = "k_major",
    fill: int = 0,
) -> BlockFP8Rows:
    """SwiGLU of rows of which one expert's follow the other's, in block FP8, with the production kernel.

    Args:
        gate_up: BF16 or FP32 [R, 2I] in the order of the experts, C-contiguous: I gates, then I ups; I a positive
            multiple of 128.
        offsets: int64 [E+1], first row of each of this rank's experts.
        device: where the kernel runs.
        policy: "deepgemm" or "exact".
        scales: "fp32", or "ue8m0" for powers of two, stored as FP32.
        layout: of the scales, "k_major" [R, I/128] or "mn_major" [I/128, R].
        fill: byte that the output buffers hold before the launch; it stays in rows from offsets[E] on.

    Raises:
        ArgumentError: an argument is none of these; nothing has run.
    """
    rows, width = _check_rows(gate_up, ("R", "2I"))
    if not isinstance(offsets, np.ndarray) or offsets.ndim != 1 or not 2 <= offsets.size <= INT32_MAX:
        raise ArgumentError("offsets", describe(offsets), "int64 [E+1] with at least one expert")
    check_array("offsets", offsets, np.dtype(np.int64), (offsets.size,))
    check_offsets(offsets, rows)
    return _launched(gate_up, "offsets", offsets, offsets.size - 1, width, device, policy, scales, layout, fill)


def swiglu_block_fp8_masked(
    gate_up: npt.NDArray[Any],
    masked_m: npt.NDArray[np.int32],
    *,
    device: Device,
    policy: str = "deepgemm",
    scales: str = "fp32",
    layout: str = "k_major",
    fill: int = 0,
) -> BlockFP8Rows:
    """SwiGLU of the first `masked_m[e]` of each expert's M rows, in block FP8, with the production kernel.

    Args:
        gate_up: BF16 or FP32 [E, M, 2I], C-contiguous.
        masked_m: int32 [E], 0 to M.
        device: where the kernel runs.
        policy: likewise, as the next three in `swiglu_block_fp8`.
        scales: likewise.
        layout: of the scales, "k_major" [E, M, I/128] or "mn_major" [E, I/128, M].
        fill: likewise; it stays in rows from masked_m[e] on.

    Raises:
        ArgumentError: an argument is none of these; nothing has run.
    """
    _, width = _check_rows(gate_up, ("E", "M", "2I"))
    experts, capacity = gate_up.shape[:2]
    if not experts:
        raise ArgumentError("gate_up", describe(gate_up), "at least one expert")
    check_array("masked_m", masked_m, np.dtype(np.int32), (experts,))
    if not 0 <= masked_m.min() <= masked_m.max() <= capacity:
        needed = f"0 to the {capacity} rows of an expert"
        raise ArgumentError("masked_m", f"{masked_m.min()} to {masked_m.max()}", needed)
    return _launched(gate_up, "masked_m", masked_m, experts, width, device, policy, scales, layout, fill)


def _launched(
    gate_up: npt.NDArray[Any],
    name: str,
    rows_in_use: npt.NDArray[Any],
    experts: int,
    width: int,
    device: Device,
    policy: str,
    scales: str,
    layout: str,
    fill: int,
) -> BlockFP8Rows:
    check_fill(fill)
    for argument, word, words in (
        ("policy", policy, POLICIES),
        ("scales", scales, SCALES),
        ("layout", layout, LAYOUTS),
    ):
        one_of(argument, word, words)
    lead, rows, tiles = gate_up.shape[:-2], gate_up[..., 0].size, width // TILE
    shape = (*lead, *((gate_up.shape[-2], tiles) if layout == "k_major" else (tiles, gate_up.shape[-2])))
    codes = device.output("codes", (rows, width), fill)
    factors = device.output("scales", (rows, tiles * _FP32_BYTES), fill)
    if rows:
        plan = deepseek_activation_plan(
            deepseek_activation_kernel(DTYPES[gate_up.dtype], policy, scales),
            device.upload("gate_up", gate_up),
            device.upload(name, rows_in_use),
            codes,
            factors,
            masked=name == "masked_m",
            rows=rows,
            experts=experts,
            width=width,
            layout=layout,
            multiprocessors=device.multiprocessors,
        )
        device.launch(plan)
    found = device.download(factors).ravel().view(np.float32).reshape(shape)
    return BlockFP8Rows(device.download(codes).reshape(*gate_up.shape[:-1], width), found)


def _check_rows(gate_up: object, sizes: tuple[str, ...]) -> tuple[int, int]:
    """Rows of all experts, and I."""
    if not isinstance(gate_up, np.ndarray) or gate_up.dtype not in DTYPES or gate_up.ndim != len(sizes):
        raise ArgumentError("gate_up", describe(gate_up), f"bfloat16 or float32 [{', '.join(sizes)}]")
    columns = gate_up.shape[-1]
    if columns == 0 or columns % (2 * TILE):
        raise ArgumentError("gate_up", f"2I = {columns}", f"I a positive multiple of {TILE}")
    check_array("gate_up", gate_up, gate_up.dtype, gate_up.shape)
    check_int32("gate_up", gate_up.size, "elements")
    return gate_up.size // columns, columns // 2
