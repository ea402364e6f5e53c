"""The grouped GEMM of an MoE layer, MXFP4 weights by MXFP8 tokens: what it accepts and how it is launched."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from refmoe.cuda.arguments import (
    BF16,
    GROUP_BLOCKS,
    check_array,
    check_fill,
    check_int32,
    check_offsets,
    expanded_scale_rows,
    k_groups,
    one_of,
    scale_buffer_bytes,
)
from refmoe.cuda.device import Device
from refmoe.cuda.gemm.choice import choose_tile, most_tokens
from refmoe.cuda.gemm.tile import (
    BARRIER_BYTES,
    SCALE_LAYOUT,
    SCALE_ROWS,
    TILES,
    Tile,
    check_tile,
    parse_tile,
    stage_bytes,
)
from refmoe.cuda.launch import WARP_LANES, Buffer, Kernel, LaunchPlan
from refmoe.errors import ArgumentError, describe
from refmoe.formats import MX_BLOCK

OUT_DTYPES = {"bf16": BF16, "f32": np.dtype(np.float32)}
WARP_ROWS = 32  # weight rows of a warp, kWarpM
WIDE_TILE = 64  # tokens from which two warps share the tokens of a tile, see Tile::kWarpsN
SCRATCH_BYTES = 512  # of a warp, kScratch
ROW_ELEMENTS = 8  # 16-byte stores of BF16

UInt8Array = npt.NDArray[np.uint8]


@dataclass(frozen=True)
class GemmShape:
    """Rows of tokens, experts, weight rows of an expert, and elements of a row."""

    rows: int
    experts: int
    n: int
    k: int


def grouped_gemm_kernel(tile: Tile, out_dtype: str) -> Kernel:
    """The GEMM kernel of a tile, writing `out_dtype` "bf16" or "f32"."""
    return Kernel("gemm", f"refmoe_sm12x_gemm_{tile}_{out_dtype}")


GEMM_KERNELS = tuple(grouped_gemm_kernel(tile, out_dtype) for tile in TILES for out_dtype in OUT_DTYPES)


def grouped_gemm_plan(
    tile: Tile,
    out_dtype: str,
    stages: int,
    operands: tuple[Buffer | None, ...],
    out: Buffer,
    shape: GemmShape,
    *,
    multiprocessors: int,
) -> LaunchPlan:
    """One CTA a multiprocessor, or fewer where there cannot be as many tiles; each walks over its share of the tiles.

    Args:
        tile: one of `refmoe.cuda.gemm.tile.TILES`.
        out_dtype: "bf16" or "f32".
        stages: of the ring in shared memory.
        operands: weights, weight scales, token codes, token scales, offsets, alpha or None, bias or None.
        out: the output buffer.
        shape: of the problem, on this rank.
        multiprocessors: of the device.
    """
    warps = tile.m // WARP_ROWS * (2 if tile.n >= WIDE_TILE else 1)
    most_tiles = -(-shape.n // tile.m) * (shape.rows // tile.n + min(shape.experts, shape.rows))
    return LaunchPlan(
        grouped_gemm_kernel(tile, out_dtype),
        grid=min(most_tiles, multiprocessors),
        block=warps * WARP_LANES,
        arguments=(*operands, out, shape.experts, shape.n, shape.k, k_groups(shape.k), stages),
        shared_bytes=BARRIER_BYTES + stages * stage_bytes(tile) + warps * SCRATCH_BYTES,
    )


def grouped_gemm(
    codes: UInt8Array,
    scales: UInt8Array,
    weights: UInt8Array,
    weight_scales: UInt8Array,
    offsets: npt.NDArray[np.int64],
    *,
    device: Device,
    tile: Tile | str | None = None,
    stages: int | None = None,
    alpha: npt.NDArray[np.float32] | None = None,
    bias: npt.NDArray[Any] | None = None,
    out_dtype: str = "bf16",
    fill: int = 0,
) -> npt.NDArray[Any]:
    """out[t, n] = RN(RN(alpha[e] * sum_k tokens[t, k] * weights[e, n, k]) + bias[e, n]) for the tokens t of expert e.

    Args:
        codes: uint8 [T, K] E4M3 tokens in expert order, K a positive multiple of 32.
        scales: uint8 1-D, as `expand` writes them in the layout 128x4.
        weights: uint8 [E, N, K/2] packed E2M1, N a multiple of 8.
        weight_scales: uint8 1-D, for each expert whole 128x4 atoms of [N, K/32]; padded columns hold 0x00.
        offsets: int64 [E+1], first row of each expert.
        device: where the kernel runs.
        tile: one of `refmoe.cuda.gemm.tile.TILES` or its name; None chooses by the most tokens of any expert.
        stages: of the ring in shared memory; None takes all that fit.
        alpha: float32 [E] or None.
        bias: bfloat16 [E, N] or None.
        out_dtype: "bf16" or "f32".
        fill: byte that the output holds before the launch; it stays in rows past offsets[E].

    Returns:
        BF16 or FP32 [T, N].

    Raises:
        TileRefused: a tile or stages that cannot be had; the sentence says why, and what can.
        ArgumentError: an argument is none of these. Nothing has run then.
    """
    one_of("out_dtype", out_dtype, tuple(OUT_DTYPES))
    check_fill(fill)
    shape = check_gemm_operands(codes, scales, weights, weight_scales, offsets, alpha)
    if bias is not None:
        check_array("bias", bias, BF16, (shape.experts, shape.n))
    chosen = _tile(tile, offsets, device.arch)
    depth = check_tile(chosen, arch=device.arch, stages=stages)

    dtype = OUT_DTYPES[out_dtype]
    out = device.output("out", (shape.rows, shape.n * dtype.itemsize), fill)
    if shape.rows:
        operands = (
            device.upload("weights", weights),
            device.upload("weight_scales", weight_scales),
            device.upload("codes", codes),
            device.upload("scales", scales),
            device.upload("offsets", offsets),
            None if alpha is None else device.upload("alpha", alpha),
            None if bias is None else device.upload("bias", bias),
        )
        device.launch(
            grouped_gemm_plan(chosen, out_dtype, depth, operands, out, shape, multiprocessors=device.multiprocessors)
        )
    return device.download(out).view(dtype)


def check_gemm_operands(
    codes: UInt8Array,
    scales: UInt8Array,
    weights: UInt8Array,
    weight_scales: UInt8Array,
    offsets: npt.NDArray[np.int64],
    alpha: npt.NDArray[np.float32] | None,
) -> GemmShape:
    """The shape of a grouped GEMM whose operands fit each other, as `grouped_gemm` describes them.

    Raises:
        ArgumentError: one of them does not.
    """
    if not isinstance(codes, np.ndarray) or codes.ndim != 2 or codes.shape[1] == 0 or codes.shape[1] % MX_BLOCK:
        raise ArgumentError("codes", describe(codes), f"uint8 [T, K], K a positive multiple of {MX_BLOCK}")
    rows, k = codes.shape
    if not isinstance(weights, np.ndarray) or weights.ndim != 3 or weights.shape[0] == 0 or weights.shape[1] == 0:
        raise ArgumentError("weights", describe(weights), f"uint8 [E, N, {k // 2}] with at least one expert and row")
    experts, n, _ = weights.shape
    if n % ROW_ELEMENTS:
        raise ArgumentError(
            "weights", f"N = {n}", f"N a multiple of {ROW_ELEMENTS}: rows are stored 16 bytes at a time"
        )
    byte = np.dtype(np.uint8)
    check_array("codes", codes, byte, (rows, k))
    check_array("weights", weights, byte, (experts, n, k // 2))
    check_int32("codes", rows, "rows")
    check_int32("weights", experts * -(-n // SCALE_ROWS) * SCALE_ROWS, "padded rows of scales")
    check_array("weight_scales", weight_scales, byte, (experts * scale_buffer_bytes(n, k, SCALE_LAYOUT),))
    check_array("scales", scales, byte, (expanded_scale_rows(rows, experts) * k_groups(k) * GROUP_BLOCKS,))
    check_array("offsets", offsets, np.dtype(np.int64), (experts + 1,))
    check_offsets(offsets, rows)
    if alpha is not None:
        check_array("alpha", alpha, np.dtype(np.float32), (experts,))
    return GemmShape(rows, experts, n, k)


def _tile(tile: Tile | str | None, offsets: npt.NDArray[np.int64], arch: str) -> Tile:
    if tile is None:
        return choose_tile(max(most_tokens(offsets), 1), arch=arch).tile
    if isinstance(tile, str):
        return parse_tile(tile)
    if isinstance(tile, Tile):
        return tile
    raise ArgumentError("tile", describe(tile), "one of " + ", ".join(map(str, TILES)))
