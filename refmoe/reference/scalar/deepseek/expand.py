"""Tokens in block FP8 in the rows of their experts, one token at a time: the specification of
`refmoe.reference.deepseek.expand`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from refmoe.reference.scalar.block_fp8 import COLUMNS, QuantizedTile, quantize_tile


def expand_tokens(
    x: Sequence[Sequence[int]],
    unpermuted_to_permuted: Sequence[int],
    policy: str = "deepgemm",
    scales: str = "fp32",
) -> tuple[list[list[QuantizedTile]], Mapping[int, list[QuantizedTile]]]:
    """The tiles of every token, and those of every row that a choice has.

    Args:
        x: FP32 bits [T][K].
        unpermuted_to_permuted: the row of token + k_rank * T, or -1.
        policy: "deepgemm" or "exact".
        scales: "fp32" or "ue8m0".
    """
    tokens = [[quantize_tile(row[i : i + COLUMNS], policy, scales) for i in range(0, len(row), COLUMNS)] for row in x]
    placed = {row: tokens[choice % len(x)] for choice, row in enumerate(unpermuted_to_permuted) if row != -1}
    return tokens, placed
