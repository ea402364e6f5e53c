"""The production kernels: which source and entry, what they accept, how they are launched.

Every function here takes and returns NumPy arrays, checks them before anything runs, and launches the same plan on
whatever `Device` it is given. Plans are functions of their own, for callers who keep their tensors on a GPU.
"""

from __future__ import annotations

import enum
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import ml_dtypes
import numpy as np
import numpy.typing as npt

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
    "scale_buffer_bytes",
]

BLOCK_ELEMENTS = 32
LANE_ELEMENTS = 16  # of one thread
GROUP_BLOCKS = 4  # scale columns are padded to a multiple of this
WARP_LANES = 32
MAX_ROW_THREADS = 512  # kMaxRowThreads
# Rows up to this many a multiprocessor get a CTA each: on an H200 that is 3 % faster than 8 resident CTAs that loop.
CTAS_PER_MULTIPROCESSOR = 64
EXPERT_ROW_ALIGNMENT = 128
INT32_MAX = 2**31 - 1

MODES = ("rceil", "floor")
EDGES = ("exact", "flashinfer")
QUANTIZE_LAYOUTS = ("linear", "128x4", "8x4")
EXPAND_LAYOUTS = ("128x4", "8x4")
INPUT_SF_LAYOUTS = ("linear", "128x4")
ATOM_ROWS = {"linear": 1, "128x4": 128, "8x4": 8}

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
    return Kernel("mxfp8_quantize", f"refmoe_mxfp8_quantize_{dtype}_{mode}_{edge}_{layout}")


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


def scale_buffer_bytes(rows: int, k: int, layout: str) -> int:
    """Bytes of the scales of [rows, k] in a layout: whole atoms for a swizzled one, rows * k/32 for "linear"."""
    if layout == "linear":
        return rows * (k // BLOCK_ELEMENTS)
    atom = ATOM_ROWS[layout]
    return -(-rows // atom) * atom * _groups(k) * GROUP_BLOCKS


def mxfp8_quantize_plan(
    kernel: Kernel, x: Buffer, codes: Buffer, scales: Buffer, *, rows: int, k: int, multiprocessors: int
) -> LaunchPlan:
    """One CTA a row up to 64 a multiprocessor, which then take several rows each; 16 elements a thread."""
    return LaunchPlan(
        kernel,
        grid=min(rows, CTAS_PER_MULTIPROCESSOR * multiprocessors),
        block=_row_threads(k),
        arguments=(x, codes, scales, rows, k // LANE_ELEMENTS, _groups(k)),
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
        block=_row_threads(k),
        arguments=(
            *(x, input_sf, topk_ids, unpermuted_to_permuted, offsets, codes, scales),
            *(tokens, top_k, first_expert, k // LANE_ELEMENTS, _groups(k)),
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
    mode_name = _one_of("mode", mode, MODES)
    edge_name = _one_of("edge", edge, EDGES)
    _one_of("layout", layout, QUANTIZE_LAYOUTS)
    _check_fill(fill)
    dtype = _check_half_precision("x", x)
    rows, k = _check_matrix("x", x)
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
    mode_name = _one_of("mode", mode, MODES)
    edge_name = _one_of("edge", edge, EDGES)
    _one_of("layout", layout, EXPAND_LAYOUTS)
    _one_of("input_sf_layout", input_sf_layout, INPUT_SF_LAYOUTS)
    _check_fill(fill)
    ready = isinstance(x, np.ndarray) and x.dtype == np.uint8
    dtype = "mxfp8" if ready else _check_half_precision("x", x, also="or uint8 E4M3 codes")
    tokens, k = _check_matrix("x", x)
    top_k, experts = _check_permutation(topk_ids, unpermuted_to_permuted, offsets, tokens, first_expert)
    if input_sf is not None:
        if not ready:
            raise ArgumentError("input_sf", f"{describe(input_sf)} with {x.dtype} rows", "None: x is not quantized yet")
        shape: tuple[int, ...] = (tokens, k // BLOCK_ELEMENTS)
        if input_sf_layout != "linear":
            shape = (scale_buffer_bytes(tokens, k, input_sf_layout),)
        _check_array("input_sf", input_sf, np.dtype(np.uint8), shape)

    rows = tokens * top_k
    scale_rows = -(-(rows + (EXPERT_ROW_ALIGNMENT - 1) * experts) // EXPERT_ROW_ALIGNMENT) * EXPERT_ROW_ALIGNMENT
    _check_int32("x", rows, "rows after expansion")
    _check_int32("offsets", scale_rows, "padded scale rows")
    codes = device.output("codes", (rows, k), fill)
    scales = device.output("scales", (scale_rows * _groups(k) * GROUP_BLOCKS,), fill)
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


def _groups(k: int) -> int:
    return -(-k // (GROUP_BLOCKS * BLOCK_ELEMENTS))


def _row_threads(k: int) -> int:
    whole_warps = -(-k // (LANE_ELEMENTS * WARP_LANES)) * WARP_LANES
    return min(whole_warps, MAX_ROW_THREADS)


def _one_of(argument: str, value: object, allowed: tuple[str, ...]) -> str:
    name = value.name.lower() if isinstance(value, enum.Enum) else value
    if name not in allowed:
        raise ArgumentError(argument, repr(name), "one of " + ", ".join(map(repr, allowed)))
    return str(name)


def _check_fill(fill: int) -> None:
    if not isinstance(fill, (int, np.integer)) or not 0 <= fill <= 255:
        raise ArgumentError("fill", describe(fill), "a byte, 0..255")


def _check_half_precision(argument: str, array: object, also: str = "") -> str:
    names = {np.dtype(ml_dtypes.bfloat16): "bf16", np.dtype(np.float16): "fp16"}
    if not isinstance(array, np.ndarray) or array.dtype not in names:
        raise ArgumentError(argument, describe(array), f"a bfloat16 or float16 array {also}".rstrip())
    return names[array.dtype]


def _check_matrix(argument: str, array: npt.NDArray[Any]) -> tuple[int, int]:
    if array.ndim != 2:
        raise ArgumentError(argument, describe(array), "two dimensions, [rows, K]")
    rows, k = array.shape
    if k == 0 or k % BLOCK_ELEMENTS:
        raise ArgumentError(argument, f"K = {k}", f"K a positive multiple of {BLOCK_ELEMENTS}")
    _check_int32(argument, rows, "rows")
    _check_int32(argument, k, "columns")
    if not array.flags.c_contiguous:
        raise ArgumentError(argument, f"strides {array.strides}", "a C-contiguous array")
    return rows, k


def _check_int32(argument: str, count: int, what: str) -> None:
    if count > INT32_MAX:
        raise ArgumentError(argument, f"{count} {what}", f"at most {INT32_MAX}: kernels count in int32")


def _check_array(argument: str, array: object, dtype: np.dtype[Any], shape: tuple[int, ...]) -> None:
    needed = f"{dtype} {list(shape)}"
    if not isinstance(array, np.ndarray) or array.dtype != dtype or array.shape != shape:
        raise ArgumentError(argument, describe(array), needed)
    if not array.flags.c_contiguous:
        raise ArgumentError(argument, f"strides {array.strides}", f"{needed}, C-contiguous")


def _check_permutation(
    topk_ids: npt.NDArray[np.int32],
    unpermuted_to_permuted: npt.NDArray[np.int32],
    offsets: npt.NDArray[np.int64],
    tokens: int,
    first_expert: int,
) -> tuple[int, int]:
    """(k, E) of maps that agree with each other: the kernel trusts them and would write out of bounds otherwise."""
    if not isinstance(topk_ids, np.ndarray) or topk_ids.ndim != 2 or topk_ids.shape[1] == 0:
        raise ArgumentError("topk_ids", describe(topk_ids), f"int32 [{tokens}, k] with k at least 1")
    top_k = topk_ids.shape[1]
    _check_array("topk_ids", topk_ids, np.dtype(np.int32), (tokens, top_k))
    _check_int32("topk_ids", tokens * top_k, "rows after expansion")
    _check_array("unpermuted_to_permuted", unpermuted_to_permuted, np.dtype(np.int32), (tokens * top_k,))
    if not isinstance(offsets, np.ndarray) or offsets.ndim != 1 or offsets.size < 2:
        raise ArgumentError("offsets", describe(offsets), "int64 [E+1] with at least one expert")
    _check_array("offsets", offsets, np.dtype(np.int64), (offsets.size,))
    experts = offsets.size - 1
    if not isinstance(first_expert, (int, np.integer)) or not 0 <= first_expert <= INT32_MAX - experts:
        raise ArgumentError("first_expert", describe(first_expert), "the global id of this rank's first expert")
    if offsets[0] != 0 or np.any(np.diff(offsets) < 0) or offsets[-1] > tokens * top_k:
        raise ArgumentError(
            "offsets",
            f"{offsets[0]} .. {offsets[-1]}{'' if np.all(np.diff(offsets) >= 0) else ', decreasing'}",
            f"0 first, never decreasing, at most T*k = {tokens * top_k} last",
        )
    local = topk_ids.T.reshape(-1).astype(np.int64) - first_expert  # expert of each (token + rank*T)
    ours = (local >= 0) & (local < experts)
    widest = int(ours.reshape(top_k, tokens).sum(axis=0).max(initial=0))
    if widest > experts:
        raise ArgumentError("topk_ids", f"a token with {widest} of this rank's experts", f"at most E = {experts}")
    rows = unpermuted_to_permuted
    if np.any((rows == -1) == ours):
        place = int(np.flatnonzero((rows == -1) == ours)[0])
        needed = "a row, since the expert is this rank's" if ours[place] else "-1, since the expert is another rank's"
        raise ArgumentError("unpermuted_to_permuted", f"{rows[place]} at {place}", needed)
    expert, mapped = local[ours], rows[ours]
    outside = (mapped < offsets[expert]) | (mapped >= offsets[expert + 1])
    if np.any(outside):
        worst = int(np.flatnonzero(outside)[0])
        span = f"[{offsets[expert[worst]]}, {offsets[expert[worst] + 1]})"
        raise ArgumentError(
            "unpermuted_to_permuted", f"row {mapped[worst]} for expert {expert[worst] + first_expert}", f"one in {span}"
        )
    if mapped.size != offsets[-1] or np.unique(mapped).size != mapped.size:
        raise ArgumentError(
            "unpermuted_to_permuted",
            f"{np.unique(mapped).size} different rows for {mapped.size} entries",
            f"each of the offsets' {offsets[-1]} rows once",
        )
    return top_k, experts
