"""SwiGLU between the two products of a DeepSeek-V3 expert, quantized to block FP8 for the second.

    v    = (g * (1 / (1 + exp(-g)))) * u           FP32, as `refmoe.reference.activation` has silu
    sf   = of 128 neighbouring v, as `refmoe.reference.block_fp8` has 1x128
    code = E4M3(v * (1 / sf))

No 16-bit format lies between v and its code. Rows come in BF16, or in FP32 from a product that does not round to 16
bits. They are in the order of the experts, and either one expert's follow the other's (*contiguous*) or each expert has
room for M rows, of which the first `masked_m[e]` count (*masked*). Rows of no expert are not read, and nothing of
theirs is written.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from refmoe.errors import ArgumentError, describe
from refmoe.formats import BLOCK_FP8
from refmoe.reference import fp32
from refmoe.reference.activation import swiglu
from refmoe.reference.arrays import checked_array
from refmoe.reference.block_fp8 import LAYOUTS, quantize_block_fp8
from refmoe.reference.layout import checked_fill, checked_offsets

TILE = BLOCK_FP8["1x128"].columns
"""Results that share a scale."""


@dataclass(frozen=True, eq=False)
class BlockFP8Rows:
    """Rows as the second product reads them.

    Attributes:
        codes: uint8 [R, I], or masked [E, M, I]: E4M3.
        scales: float32, K-major [R, I/128] or MN-major [I/128, R]; masked [E, M, I/128] or [E, I/128, M].
    """

    codes: NDArray[np.uint8]
    scales: NDArray[np.float32]


def swiglu_block_fp8(
    gate_up: NDArray[Any],
    offsets: NDArray[np.int64],
    *,
    policy: str = "deepgemm",
    scales: str = "fp32",
    layout: str = "k_major",
    fill: int = 0,
) -> BlockFP8Rows:
    """SwiGLU of rows of which one expert's follow the other's, in block FP8.

    Args:
        gate_up: bfloat16 or float32 [R, 2 I]: I gates, then I ups; I a positive multiple of 128.
        offsets: int64 [E + 1], first row of each expert, then the rows in use, at most R.
        policy: "deepgemm" or "exact", as in `refmoe.reference.block_fp8.quantize_block_fp8`.
        scales: "fp32", or "ue8m0" for powers of two.
        layout: of the scales, "k_major" or "mn_major".
        fill: byte of codes and scales of rows from offsets[E] on.

    Raises:
        ArgumentError: wrong dtype or shape, offsets that do not fit, or an unknown word.
    """
    checked_array("gate_up", gate_up, ("R", "2 I"), fp32.BF16, np.float32)
    used = int(checked_offsets(offsets)[-1])
    if used > len(gate_up):
        raise ArgumentError("offsets", f"{used} rows in use", f"at most the {len(gate_up)} rows of gate_up")
    counts = np.array([used], np.int32)
    rows = swiglu_block_fp8_masked(gate_up[None], counts, policy=policy, scales=scales, layout=layout, fill=fill)
    return BlockFP8Rows(rows.codes[0], rows.scales[0])


def swiglu_block_fp8_masked(
    gate_up: NDArray[Any],
    masked_m: NDArray[np.int32],
    *,
    policy: str = "deepgemm",
    scales: str = "fp32",
    layout: str = "k_major",
    fill: int = 0,
) -> BlockFP8Rows:
    """SwiGLU of the first `masked_m[e]` of each expert's M rows, in block FP8.

    Args:
        gate_up: bfloat16 or float32 [E, M, 2 I].
        masked_m: int32 [E], 0 to M.
        policy: likewise, as the next three in `swiglu_block_fp8`.
        scales: likewise.
        layout: likewise.
        fill: likewise, of rows from masked_m[e] on.

    Raises:
        ArgumentError: wrong dtype or shape, a number of rows that is not 0 to M, or an unknown word.
    """
    experts, capacity, columns = checked_array("gate_up", gate_up, ("E", "M", "2 I"), fp32.BF16, np.float32).shape
    if columns == 0 or columns % (2 * TILE):
        raise ArgumentError("gate_up", describe(gate_up), f"I a positive multiple of {TILE}")
    checked_array("masked_m", masked_m, (experts,), np.int32)
    if experts and not 0 <= masked_m.min() <= masked_m.max() <= capacity:
        raise ArgumentError(
            "masked_m", f"{masked_m.min()} to {masked_m.max()}", f"0 to the {capacity} rows of an expert"
        )
    if layout not in LAYOUTS:
        raise ArgumentError("layout", describe(layout), " or ".join(LAYOUTS))
    byte, width = checked_fill(fill), columns // 2
    present = np.arange(capacity) < masked_m[:, None]
    values = swiglu(np.ascontiguousarray(gate_up[present]), variant="silu")
    quantized = quantize_block_fp8(values, policy=policy, scales=scales)
    codes = np.full((experts, capacity, width), byte, np.uint8)
    factors = np.full((experts, capacity, width // TILE, 4), byte, np.uint8).view(np.float32)[..., 0]
    codes[present], factors[present] = quantized.codes, quantized.scales
    if layout == "mn_major":
        factors = factors.transpose(0, 2, 1)
    return BlockFP8Rows(codes, np.ascontiguousarray(factors))
