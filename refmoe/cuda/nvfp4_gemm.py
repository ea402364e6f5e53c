"""The grouped GEMM of an MoE layer in NVFP4 on both sides: its tiles, what it accepts and how it is launched.

Both operands are packed E2M1 with a UE4M3 scale for every 16 elements; each expert's alpha is the product of the global
decode scales of its weights and of the tokens. A tile counts elements along K, half a byte each on both sides.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from refmoe.chips import Chip, kernel_chip
from refmoe.cuda.arguments import (
    ATOM_BYTES,
    BF16,
    GROUP_BLOCKS,
    check_array,
    check_fill,
    check_int32,
    check_offsets,
    expanded_scale_rows,
    one_of,
)
from refmoe.cuda.device import Device
from refmoe.cuda.gemm.choice import most_tokens, tiles_needed
from refmoe.cuda.gemm.kernel import OUT_DTYPES, ROW_ELEMENTS, SCRATCH_BYTES, WARP_ROWS, WIDE_TILE, GemmShape
from refmoe.cuda.gemm.tile import (
    BARRIER_BYTES,
    MIN_STAGES,
    SCALE_ROWS,
    Tile,
    TileRefused,
    k_bytes,
    parse_tile,
    stage_capacity,
)
from refmoe.cuda.launch import WARP_LANES, Buffer, Kernel, LaunchPlan
from refmoe.errors import ArgumentError, describe
from refmoe.formats import E2M1, NVFP4
from refmoe.reference.layout import checked_count

UInt8Array = npt.NDArray[np.uint8]

#: The tiles that the kernel is built in: one a width, what the choice is among, then a shallow one for a short K.
TILES: tuple[Tile, ...] = (
    Tile(128, 8, 512),
    Tile(128, 16, 256),
    Tile(128, 32, 256),
    Tile(128, 64, 256),
    Tile(128, 128, 256),
    Tile(128, 8, 128),
)
DYNAMIC_TILES = TILES[:5]

#: Elements of one word of scales, which are those of one instruction.
WORD_ELEMENTS = GROUP_BLOCKS * NVFP4.block
#: Elements of a copy of 16 bytes: rows have to start at multiples of it.
COPY_ELEMENTS = 32
#: Elements of K of two instructions, whose tokens one ldmatrix brings: the step of a tile's depth.
K_STEP = 2 * WORD_ELEMENTS


def nvfp4_groups(k: int) -> int:
    """Scale words of a row of k elements."""
    return -(-k // WORD_ELEMENTS)


def stage_bytes(tile: Tile) -> int:
    """Shared memory of one stage: packed FP4 of both sides, and the scales of both by whole atoms of 128 rows."""
    scales = (tile.m + max(tile.n, SCALE_ROWS)) * tile.k // NVFP4.block
    return (tile.m + tile.n) * k_bytes(tile.k, E2M1) + scales


def tile_warps(tile: Tile) -> int:
    """Warps of a block, see TileShape."""
    return tile.m // WARP_ROWS * (2 if tile.n >= WIDE_TILE else 1)


def max_stages(tile: Tile, arch: Chip | str) -> int:
    """The most stages that fit beside the barriers and the warps' own bytes; fewer than two cannot run."""
    return _room(tile, kernel_chip(arch)) // stage_bytes(tile)


def check_tile(tile: Tile, *, arch: Chip | str, stages: int | None = None) -> int:
    """The number of stages that the kernel runs `tile` with: `stages`, or the most that fit.

    Raises:
        TileRefused: the tile or its stages cannot be had there; the sentence says why and what can.
        ArgumentError: an unknown arch, or no number of stages.
    """
    chip = kernel_chip(arch)
    fault = _fault(tile, chip)
    if fault is not None:
        raise TileRefused("tile", f"{tile} on {chip.arch}, but {fault}", f"one of {', '.join(map(str, TILES))}")
    most = max_stages(tile, chip)
    if stages is None:
        return most
    if not MIN_STAGES <= checked_count("stages", stages) <= most:
        needed = f"{most} stages" if most == MIN_STAGES else f"{MIN_STAGES} to {most} stages"
        raise TileRefused("stages", _stage_fault(tile, stages, chip), needed)
    return stages


def choose_tile(m: int, arch: Chip | str) -> Tile:
    """The tile for experts with at most `m` tokens: of one a width the fewest tiles, and of those the narrowest."""
    fitting = [tile for tile in DYNAMIC_TILES if max_stages(tile, arch) >= MIN_STAGES]
    return min(fitting, key=lambda tile: (tiles_needed(tile, m), tile.n))


def nvfp4_gemm_kernel(tile: Tile, out_dtype: str) -> Kernel:
    """The GEMM kernel of a tile, writing `out_dtype` "bf16" or "f32"."""
    return Kernel("nvfp4_gemm", f"refmoe_sm12x_nvfp4_gemm_{tile}_{out_dtype}")


NVFP4_GEMM_KERNELS = tuple(nvfp4_gemm_kernel(tile, out_dtype) for tile in TILES for out_dtype in OUT_DTYPES)


def nvfp4_gemm_plan(
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

    Args are those of `refmoe.cuda.gemm.kernel.grouped_gemm_plan`.
    """
    warps = tile_warps(tile)
    most_tiles = -(-shape.n // tile.m) * (shape.rows // tile.n + min(shape.experts, shape.rows))
    return LaunchPlan(
        nvfp4_gemm_kernel(tile, out_dtype),
        grid=min(most_tiles, multiprocessors),
        block=warps * WARP_LANES,
        arguments=(*operands, out, shape.experts, shape.n, shape.k, nvfp4_groups(shape.k), stages),
        shared_bytes=BARRIER_BYTES + stages * stage_bytes(tile) + warps * SCRATCH_BYTES,
    )


def nvfp4_grouped_gemm(
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
        codes: uint8 [T, K/2] packed E2M1 tokens in expert order, K a positive multiple of 32.
        scales: uint8 1-D, UE4M3 in the layout 128x4, every expert from a row multiple of 128 on; padded columns of
            real rows hold 0x00.
        weights: uint8 [E, N, K/2] packed E2M1, N a multiple of 8.
        weight_scales: uint8 1-D, for each expert whole 128x4 atoms of UE4M3 [N, K/16]; padded columns hold 0x00.
        offsets: int64 [E+1], first row of each expert.
        device: where the kernel runs.
        tile: one of `TILES` or its name, K in elements; None chooses by the most tokens of any expert.
        stages: of the ring in shared memory; None takes all that fit.
        alpha: float32 [E], the product of the global decode scales of both sides; None for 1.
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
    shape = check_nvfp4_operands(codes, scales, weights, weight_scales, offsets, alpha)
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
            nvfp4_gemm_plan(chosen, out_dtype, depth, operands, out, shape, multiprocessors=device.multiprocessors)
        )
    return device.download(out).view(dtype)


def check_nvfp4_operands(
    codes: UInt8Array,
    scales: UInt8Array,
    weights: UInt8Array,
    weight_scales: UInt8Array,
    offsets: npt.NDArray[np.int64],
    alpha: npt.NDArray[np.float32] | None,
) -> GemmShape:
    """The shape of a grouped GEMM whose operands fit each other, as `nvfp4_grouped_gemm` describes them.

    Raises:
        ArgumentError: one of them does not.
    """
    row_bytes = COPY_ELEMENTS // NVFP4.codes_a_byte
    if not isinstance(codes, np.ndarray) or codes.ndim != 2 or codes.shape[1] == 0 or codes.shape[1] % row_bytes:
        needed = f"uint8 [T, K/2], K a positive multiple of {COPY_ELEMENTS}: rows are copied 16 bytes at a time"
        raise ArgumentError("codes", describe(codes), needed)
    rows, k = codes.shape[0], codes.shape[1] * NVFP4.codes_a_byte
    if not isinstance(weights, np.ndarray) or weights.ndim != 3 or weights.shape[0] == 0 or weights.shape[1] == 0:
        raise ArgumentError("weights", describe(weights), f"uint8 [E, N, {k // 2}] with at least one expert and row")
    experts, n, _ = weights.shape
    if n % ROW_ELEMENTS:
        needed = f"N a multiple of {ROW_ELEMENTS}: rows are stored 16 bytes at a time"
        raise ArgumentError("weights", f"N = {n}", needed)
    byte = np.dtype(np.uint8)
    check_array("codes", codes, byte, (rows, k // 2))
    check_array("weights", weights, byte, (experts, n, k // 2))
    padded_n, columns = -(-n // SCALE_ROWS) * SCALE_ROWS, nvfp4_groups(k) * GROUP_BLOCKS
    check_int32("codes", rows, "rows")
    check_int32("codes", nvfp4_groups(k) * ATOM_BYTES, f"bytes of scale atoms, for K = {k}")
    check_int32("weights", experts * padded_n, "padded rows of scales")
    check_array("weight_scales", weight_scales, byte, (experts * padded_n * columns,))
    check_array("scales", scales, byte, (expanded_scale_rows(rows, experts) * columns,))
    check_array("offsets", offsets, np.dtype(np.int64), (experts + 1,))
    check_offsets(offsets, rows)
    if alpha is not None:
        check_array("alpha", alpha, np.dtype(np.float32), (experts,))
    return GemmShape(rows, experts, n, k)


def _room(tile: Tile, chip: Chip) -> int:
    return stage_capacity(chip) - tile_warps(tile) * SCRATCH_BYTES


def _fault(tile: Tile, chip: Chip) -> str | None:
    """Why `tile` cannot run on `chip`."""
    if tile.k % K_STEP:
        return f"a K of {tile.k} elements is no whole number of steps of {K_STEP}, two instructions"
    if tile.m % SCALE_ROWS:
        return f"{tile.m} weight rows are no whole number of atoms of the scale layout, {SCALE_ROWS} rows"
    if max_stages(tile, chip) < MIN_STAGES:
        return f"a stage takes {stage_bytes(tile):,} bytes and {MIN_STAGES} of them must fit in {_room(tile, chip):,}"
    return None if tile in TILES else "the kernel is not built for it"


def _stage_fault(tile: Tile, stages: int, chip: Chip) -> str:
    count = "1 stage" if stages == 1 else f"{stages} stages"
    if stages < MIN_STAGES:
        return f"{count} of {tile}, with which nothing can be loaded while the tile is computed"
    total = stages * stage_bytes(tile)
    return f"{count} of {tile} on {chip.arch}, {total:,} bytes where a block has {_room(tile, chip):,} for stages"


def _tile(tile: Tile | str | None, offsets: npt.NDArray[np.int64], arch: str) -> Tile:
    if tile is None:
        return choose_tile(max(most_tokens(offsets), 1), arch)
    if isinstance(tile, str):
        return parse_tile(tile)
    if isinstance(tile, Tile):
        return tile
    raise ArgumentError("tile", describe(tile), "one of " + ", ".join(map(str, TILES)))
