"""The grouped GEMM of an MoE layer in NVFP4 on both sides: its tiles, what it accepts and how it is launched.

Both operands are packed E2M1 with a UE4M3 scale for every 16 elements; each expert's alpha is the product of the global
decode scales of its weights and of the tokens. A tile counts elements along K, half a byte each on both sides.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from refmoe.chips import Chip, kernel_chip
from refmoe.cuda.arguments import GROUP_BLOCKS
from refmoe.cuda.device import Device
from refmoe.cuda.gemm.choice import tiles_needed
from refmoe.cuda.gemm.grouped import SCRATCH_BYTES, GroupedGemm, tile_warps
from refmoe.cuda.gemm.tile import (
    MAX_STAGES,
    MIN_STAGES,
    SCALE_ROWS,
    Tile,
    TileRefused,
    k_bytes,
    stage_capacity,
    stage_fault,
    stage_range,
)
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


def stage_bytes(tile: Tile) -> int:
    """Shared memory of one stage: packed FP4 of both sides, and the scales of both by whole atoms of 128 rows."""
    scales = (tile.m + max(tile.n, SCALE_ROWS)) * tile.k // NVFP4.block
    return (tile.m + tile.n) * k_bytes(tile.k, E2M1) + scales


def max_stages(tile: Tile, arch: Chip | str) -> int:
    """The most stages that fit beside the barriers and the warps' bytes, with one each; fewer than two cannot run."""
    return min(_room(tile, kernel_chip(arch)) // stage_bytes(tile), MAX_STAGES)


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
        size, room = stage_bytes(tile), _room(tile, chip)
        raise TileRefused("stages", stage_fault(tile, stages, chip, size, room), stage_range(most))
    return stages


def choose_tile(m: int, arch: Chip | str) -> Tile:
    """The tile for experts with at most `m` tokens: of one a width the fewest tiles, and of those the narrowest."""
    fitting = [tile for tile in DYNAMIC_TILES if max_stages(tile, arch) >= MIN_STAGES]
    return min(fitting, key=lambda tile: (tiles_needed(tile, m), tile.n))


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


NVFP4_GEMM = GroupedGemm(
    source="nvfp4_gemm",
    prefix="refmoe_sm12x_nvfp4_gemm",
    tiles=TILES,
    block=NVFP4.block,
    byte_tokens=NVFP4.codes_a_byte,
    k_step=COPY_ELEMENTS,
    k_words=f"uint8 [T, K/2], K a positive multiple of {COPY_ELEMENTS}: rows are copied 16 bytes at a time",
    stage_bytes=stage_bytes,
    check_tile=check_tile,
    choose_tile=choose_tile,
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
    return NVFP4_GEMM.run(
        *(codes, scales, weights, weight_scales, offsets),
        device=device,
        tile=tile,
        stages=stages,
        alpha=alpha,
        bias=bias,
        out_dtype=out_dtype,
        fill=fill,
    )
