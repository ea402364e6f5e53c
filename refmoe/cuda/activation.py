"""The activation kernel: SwiGLU of the first GEMM's output, quantized to MXFP8 in the second GEMM's layout."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from refmoe.cuda.arguments import (
    ATOM_BYTES,
    BF16,
    GROUP_BLOCKS,
    INT32_MAX,
    check_array,
    check_fill,
    check_int32,
    check_offsets,
    check_rows,
    expanded_scale_rows,
    k_groups,
    one_of,
)
from refmoe.cuda.device import Device
from refmoe.cuda.expand import EXPAND_LAYOUTS, ExpandedRows
from refmoe.cuda.launch import LANE_ELEMENTS, Buffer, Entry, LaunchPlan, row_plan
from refmoe.cuda.quantize import EDGES, MODES
from refmoe.errors import ArgumentError, describe
from refmoe.formats import MX_BLOCK
from refmoe.policy import EdgePolicy, ScaleMode

VARIANTS = ("gpt_oss", "silu")


def swiglu_kernel(variant: str, mode: str, edge: str, layout: str) -> Entry:
    """The kernel for a variant, a mode, an edge policy and a scale layout by name."""
    return Entry("activation", f"refmoe_swiglu_{variant}_{mode}_{edge}_{layout}")


def swiglu_quantize_plan(
    kernel: Entry,
    gate_up: Buffer,
    offsets: Buffer,
    bias: Buffer | None,
    parameters: tuple[Buffer | None, Buffer | None, Buffer | None],
    codes: Buffer,
    scales: Buffer,
    *,
    rows: int,
    width: int,
    experts: int,
    multiprocessors: int,
) -> LaunchPlan:
    """A launch over rows, see `row_plan`; 16 results a thread.

    Args:
        kernel: from `swiglu_kernel`.
        gate_up: BF16 [rows, 2 * width], in expert order.
        offsets: int64 [experts + 1].
        bias: BF16 [experts, 2 * width] or None.
        parameters: alpha, beta and limit, float32 [experts] each, or None for the figure of gpt-oss.
        codes: uint8 [rows, width], written.
        scales: uint8, written; as `expand` has them for this width.
        rows: of `gate_up`, those past the last expert's included.
        width: I, a multiple of 32.
        experts: of this rank.
        multiprocessors: of the device.
    """
    arguments = (
        *(gate_up, offsets, bias, *parameters, codes, scales),
        *(rows, experts, width // LANE_ELEMENTS, k_groups(width)),
    )
    return row_plan(kernel, arguments, rows=rows, width=width, multiprocessors=multiprocessors)


def swiglu_quantize(
    gate_up: npt.NDArray[Any],
    offsets: npt.NDArray[np.int64],
    *,
    device: Device,
    variant: str = "gpt_oss",
    mode: ScaleMode | str = ScaleMode.RCEIL,
    edge: EdgePolicy | str = EdgePolicy.EXACT,
    bias: npt.NDArray[Any] | None = None,
    swiglu_alpha: npt.NDArray[np.float32] | None = None,
    swiglu_beta: npt.NDArray[np.float32] | None = None,
    swiglu_limit: npt.NDArray[np.float32] | None = None,
    layout: str = "128x4",
    fill: int = 0,
) -> ExpandedRows:
    """SwiGLU of every row, quantized to MXFP8 from FP32, with the production kernel.

    Args:
        gate_up: BF16 [R, 2I] in expert order, C-contiguous, I a positive multiple of 32: for "gpt_oss" the gate in
            even columns and up in odd ones, for "silu" the gate in the first half and up in the second.
        offsets: int64 [E+1], first row of each of this rank's experts.
        device: where the kernel runs.
        variant: "gpt_oss" or "silu"; see `refmoe.reference.activation`.
        mode: "rceil" or "floor".
        edge: "exact" or "flashinfer".
        bias: BF16 [E, 2I], laid out as `gate_up` and added first in FP32, or None.
        swiglu_alpha: float32 [E], the sigmoid's factor; None is gpt-oss's 1.702. Of "gpt_oss" only, as the next two.
        swiglu_beta: float32 [E], what is added to up; None is 1.
        swiglu_limit: float32 [E], of the clamps, not negative and not NaN; None is 7.
        layout: of the scales, "128x4" or "8x4".
        fill: byte that the output buffers hold before the launch, 0..255; it stays in rows from offsets[E] on and in
            padded scale rows.

    Returns:
        Codes uint8 [R, I], and scales as `expand` writes them.

    Raises:
        ArgumentError: an argument is none of these; nothing has run.
    """
    variant_name = one_of("variant", variant, VARIANTS)
    mode_name = one_of("mode", mode, MODES)
    edge_name = one_of("edge", edge, EDGES)
    one_of("layout", layout, EXPAND_LAYOUTS)
    check_fill(fill)
    rows, width, experts = _check_rows(gate_up, offsets)
    parameters = {"swiglu_alpha": swiglu_alpha, "swiglu_beta": swiglu_beta, "swiglu_limit": swiglu_limit}
    _check_parameters(variant_name, parameters, experts)
    if bias is not None:
        check_array("bias", bias, BF16, (experts, 2 * width))
    scale_rows = expanded_scale_rows(rows, experts)
    check_int32("offsets", scale_rows, "padded scale rows")

    codes = device.output("codes", (rows, width), fill)
    scales = device.output("scales", (scale_rows * k_groups(width) * GROUP_BLOCKS,), fill)
    if rows:
        alpha, beta, limit = (
            None if array is None else device.upload(name, array) for name, array in parameters.items()
        )
        plan = swiglu_quantize_plan(
            swiglu_kernel(variant_name, mode_name, edge_name, layout),
            device.upload("gate_up", gate_up),
            device.upload("offsets", offsets),
            None if bias is None else device.upload("bias", bias),
            (alpha, beta, limit),
            codes,
            scales,
            rows=rows,
            width=width,
            experts=experts,
            multiprocessors=device.multiprocessors,
        )
        device.launch(plan)
    return ExpandedRows(device.download(codes), device.download(scales))


def _check_rows(gate_up: object, offsets: object) -> tuple[int, int, int]:
    """(R, I, E)."""
    if not isinstance(gate_up, np.ndarray) or gate_up.dtype != BF16 or gate_up.ndim != 2:
        raise ArgumentError("gate_up", describe(gate_up), "bfloat16 [R, 2I]")
    rows, columns = gate_up.shape
    if columns == 0 or columns % (2 * MX_BLOCK):
        raise ArgumentError("gate_up", f"2I = {columns}", f"I a positive multiple of {MX_BLOCK}")
    check_array("gate_up", gate_up, BF16, (rows, columns))
    check_rows("gate_up", rows)
    check_int32("gate_up", k_groups(columns // 2) * ATOM_BYTES, f"bytes of scale atoms, for I = {columns // 2}")
    if not isinstance(offsets, np.ndarray) or offsets.ndim != 1 or not 2 <= offsets.size <= INT32_MAX:
        raise ArgumentError("offsets", describe(offsets), "int64 [E+1] with at least one expert")
    check_array("offsets", offsets, np.dtype(np.int64), (offsets.size,))
    check_offsets(offsets, rows)
    return rows, columns // 2, offsets.size - 1


def _check_parameters(variant: str, parameters: dict[str, npt.NDArray[np.float32] | None], experts: int) -> None:
    for name, array in parameters.items():
        if array is None:
            continue
        if variant == "silu":
            raise ArgumentError(name, f"{describe(array)} with silu, which has none", "the gpt_oss variant")
        check_array(name, array, np.dtype(np.float32), (experts,))
    limit = parameters["swiglu_limit"]
    if limit is not None and not (limit >= 0).all():
        expert = int(np.flatnonzero(~(limit >= 0))[0])
        raise ArgumentError("swiglu_limit", f"{limit[expert]} for expert {expert}", "limits of at least 0")
