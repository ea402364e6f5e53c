"""SwiGLU of one row and its Q8_1 blocks, in exact rationals: the specification of `refmoe.reference.swiglu_q8_1`."""

from __future__ import annotations

from collections.abc import Sequence

from refmoe.reference.scalar.activation import swiglu
from refmoe.reference.scalar.numbers import BLOCK
from refmoe.reference.scalar.q8_1 import Block, quantize_block


def swiglu_blocks(
    gate_up: Sequence[int], variant: str, quantizer: str, alpha: int, beta: int, limit: int
) -> list[Block]:
    """One row of 2 I values in FP32 bits: I / 32 blocks. The results are quantized as FP32 has them."""
    values = swiglu(gate_up, variant, None, alpha, beta, limit)
    return [quantize_block(values[start : start + BLOCK], quantizer) for start in range(0, len(values), BLOCK)]
