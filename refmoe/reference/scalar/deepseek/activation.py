"""SwiGLU of one row into block FP8, in exact rationals: the specification of `refmoe.reference.deepseek.activation`."""

from __future__ import annotations

from collections.abc import Sequence

from refmoe.reference.scalar.activation import silu
from refmoe.reference.scalar.block_fp8 import COLUMNS, QuantizedTile, quantize_tile


def swiglu_tiles(gate_up: Sequence[int], policy: str = "deepgemm", scales: str = "fp32") -> list[QuantizedTile]:
    """One row of I gates and I ups, given as FP32 bits: I / 128 tiles of the second product's input.

    Args:
        gate_up: 2 I values.
        policy: "deepgemm" or "exact".
        scales: "fp32" or "ue8m0".
    """
    half = len(gate_up) // 2
    values = [silu(gate_up[i], gate_up[half + i]) for i in range(half)]
    return [quantize_tile(values[i : i + COLUMNS], policy, scales) for i in range(0, half, COLUMNS)]
