"""The grouped GEMM of an MoE layer, MXFP4 weights by MXFP8 tokens: what it accepts and how it is launched."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from refmoe.cuda.device import Device
from refmoe.cuda.gemm.choice import choose_tile
from refmoe.cuda.gemm.grouped import GroupedGemm
from refmoe.cuda.gemm.tile import TILES, Tile, check_tile, stage_bytes
from refmoe.formats import MX_BLOCK

UInt8Array = npt.NDArray[np.uint8]

GEMM = GroupedGemm(
    source="gemm",
    prefix="refmoe_sm12x_gemm",
    tiles=TILES,
    block=MX_BLOCK,
    byte_tokens=1,
    k_step=MX_BLOCK,
    k_words=f"uint8 [T, K], K a positive multiple of {MX_BLOCK}",
    stage_bytes=stage_bytes,
    check_tile=check_tile,
    choose_tile=lambda m, arch: choose_tile(m, arch)[0],
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
    return GEMM.run(
        *(codes, scales, weights, weight_scales, offsets),
        device=device,
        tile=tile,
        stages=stages,
        alpha=alpha,
        bias=bias,
        out_dtype=out_dtype,
        fill=fill,
    )
