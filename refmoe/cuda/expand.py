"""The expand kernels: every token's row copied to its experts, quantized on the way, as the grouped GEMM reads it."""

from __future__ import annotations

from dataclasses import dataclass, replace
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
from refmoe.cuda.launch import LANE_ELEMENTS, Buffer, Entry, LaunchPlan, row_plan
from refmoe.cuda.nvfp4 import check_nvfp4_matrix, nvfp4_groups
from refmoe.cuda.quantize import EDGES, MODES
from refmoe.errors import ArgumentError, describe
from refmoe.formats import MX_BLOCK, NVFP4
from refmoe.policy import EdgePolicy, ScaleMode
from refmoe.reference.expand import EncodeScale, checked_factor, checked_output, checked_prescale

EXPAND_LAYOUTS = ("128x4", "8x4")
INPUT_SF_LAYOUTS = ("linear", "128x4")

UInt8Array = npt.NDArray[np.uint8]


@dataclass(frozen=True)
class ExpandedRows:
    """Expanded rows: E4M3 `codes` uint8 [T*k, K]; E8M0 `scales` uint8 1-D of align128(T*k + 127*E) swizzled rows."""

    codes: UInt8Array
    scales: UInt8Array


@dataclass(frozen=True)
class RowsAs:
    """Expanded rows of `expand_as`.

    Attributes:
        codes: uint8 [T*k, K/2] packed E2M1 or [T*k, K] E4M3; of a copy [T*k, K] of x's type.
        scales: of "nvfp4" uint8 1-D, swizzled; of "fp8_token" uint8 [4*T*k], the bytes of one FP32 a row; else None.
    """

    codes: npt.NDArray[Any]
    scales: UInt8Array | None


def expand_kernel(rows: str, layout: str) -> Entry:
    """The expand kernel for `rows` "<dtype>_<mode>_<edge>" or "mxfp8_<none|linear|128x4>"."""
    return Entry("expand", f"refmoe_expand_{rows}_{layout}")


def choice_kernel(kernel: Entry) -> Entry:
    """The one of `expand_kernel` for a token alone, of which each CTA takes one choice."""
    return replace(kernel, entry=kernel.entry.replace("refmoe_expand_", "refmoe_expand_choice_"))


def expand_as_kernel(
    dtype: str, output: str, prescaled: bool = False, layout: str = "128x4", *, by_expert: bool = False
) -> Entry:
    """The kernel of an output but MXFP8, for `dtype` "bf16" or "fp16"; a copy has one for every type.

    Args:
        dtype: of the rows.
        output: one of `refmoe.reference.expand.OUTPUTS`.
        prescaled: whether channels are multiplied first.
        layout: of NVFP4's scales.
        by_expert: whether each expert has a global scale of NVFP4.
    """
    if output == "copy":
        return Entry("expand", "refmoe_expand_copy")
    word = f"{dtype}_{output}{'_expert' if by_expert else ''}_{'prescaled' if prescaled else 'plain'}"
    return Entry("expand", f"refmoe_expand_{word}" + (f"_{layout}" if output == "nvfp4" else ""))


def expand_plan(
    kernel: Entry,
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
    """A launch over tokens, see `row_plan`; 16 elements a thread. A token alone has a CTA for each of its choices."""
    arguments = (
        *(x, input_sf, topk_ids, unpermuted_to_permuted, offsets, codes, scales),
        *(tokens, top_k, first_expert, k // LANE_ELEMENTS, k_groups(k)),
    )
    plan = row_plan(kernel, arguments, rows=tokens, width=k, multiprocessors=multiprocessors)
    return replace(plan, kernel=choice_kernel(kernel), grid=top_k) if tokens == 1 else plan


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


def expand_as(
    x: npt.NDArray[Any],
    topk_ids: npt.NDArray[np.int32],
    unpermuted_to_permuted: npt.NDArray[np.int32],
    offsets: npt.NDArray[np.int64],
    output: str,
    *,
    device: Device,
    encode_scale: EncodeScale | None = None,
    prescale: npt.NDArray[Any] | None = None,
    layout: str = "128x4",
    first_expert: int = 0,
    fill: int = 0,
) -> RowsAs:
    """Copy every token's row to its experts as NVFP4, as plain FP8, or as it is, with the production kernel.

    What each output is, see `refmoe.reference.expand.expand_as`.

    Args:
        x: [T, K] BF16 or FP16, for "copy" also uint8; C-contiguous, K a positive multiple of 16.
        topk_ids: int32 [T, k] global expert ids.
        unpermuted_to_permuted: int32 [T*k], row of (token + rank*T), -1 for experts of other ranks.
        offsets: int64 [E+1], first row of each of this rank's experts.
        output: "nvfp4", "fp8_tensor", "fp8_token" or "copy".
        device: where the kernel runs.
        encode_scale: the FP32 factor of "nvfp4" (its global encode scale) and of "fp8_tensor"; of "nvfp4" also float32
            [E], one for each of this rank's experts.
        prescale: [K] of x's type, what each channel is multiplied by first; not with "copy".
        layout: of NVFP4's scales, "128x4" or "8x4".
        first_expert: global id of this rank's first expert.
        fill: byte that the output buffers hold before the launch, 0..255; it stays where the kernel does not write.

    Raises:
        ArgumentError: an argument is none of these, or the maps contradict each other; nothing has run.
    """
    checked_output(output)
    one_of("layout", layout, EXPAND_LAYOUTS)
    check_fill(fill)
    ready = output == "copy" and isinstance(x, np.ndarray) and x.dtype == np.uint8
    dtype = "uint8" if ready else check_half_precision("x", x, also="or uint8 codes" if output == "copy" else "")
    tokens, k = check_nvfp4_matrix("x", x)
    if prescale is not None:
        checked_prescale(output, prescale, x)
    top_k, experts = check_permutation(topk_ids, unpermuted_to_permuted, offsets, tokens, first_expert)
    factor = checked_factor(output, encode_scale, experts)
    rows = tokens * top_k
    scale_rows = expanded_scale_rows(rows, experts)
    check_int32("offsets", scale_rows, "padded scale rows")
    groups = nvfp4_groups(k) if output == "nvfp4" else 0
    row_bytes = {"nvfp4": k // NVFP4.codes_a_byte, "copy": k * x.itemsize}.get(output, k)
    scale_bytes = {"nvfp4": scale_rows * groups * GROUP_BLOCKS, "fp8_token": 4 * rows}.get(output)

    codes = device.output("codes", (rows, row_bytes), fill)
    scales = None if scale_bytes is None else device.output("scales", (scale_bytes,), fill)
    if rows:
        # A thread has 16 elements of the row; of a copy 16 bytes.
        width = k * x.itemsize if output == "copy" else k
        arguments = (
            device.upload("x", x),
            None if factor is None else device.upload("encode_scale", np.ascontiguousarray(np.atleast_1d(factor))),
            None if prescale is None else device.upload("prescale", np.ascontiguousarray(prescale)),
            device.upload("topk_ids", topk_ids),
            device.upload("unpermuted_to_permuted", unpermuted_to_permuted),
            device.upload("offsets", offsets),
            codes,
            scales,
            *(tokens, top_k, first_expert, width // LANE_ELEMENTS, groups),
        )
        by_expert = isinstance(factor, np.ndarray)
        kernel = expand_as_kernel(dtype, output, prescale is not None, layout, by_expert=by_expert)
        device.launch(row_plan(kernel, arguments, rows=tokens, width=width, multiprocessors=device.multiprocessors))
    made = device.download(codes)
    return RowsAs(made.view(x.dtype) if output == "copy" else made, None if scales is None else device.download(scales))
