"""Finalize into Q8_1, an output at a time in exact rationals: the specification of `refmoe.reference.finalize_q8_1`."""

from __future__ import annotations

from collections.abc import Sequence

from refmoe.formats import FP32
from refmoe.reference.scalar.finalize import Matrix, finalize
from refmoe.reference.scalar.numbers import BLOCK
from refmoe.reference.scalar.q8_1 import Block, quantize_block


def finalize_blocks(
    rows: Matrix,
    unpermuted_to_permuted: Sequence[int],
    weights: Matrix,
    quantizer: str,
    topk_ids: Matrix | None = None,
    bias: Matrix | None = None,
    first_expert: int = 0,
) -> list[list[Block]]:
    """[T][H / 32] blocks. The sums are quantized as FP32 has them; the arguments are those of `finalize`."""
    sums = finalize(rows, unpermuted_to_permuted, weights, FP32, topk_ids, bias, first_expert)
    return [
        [quantize_block(token[start : start + BLOCK], quantizer) for start in range(0, len(token), BLOCK)]
        for token in sums
    ]
