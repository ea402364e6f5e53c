"""Tokens quantized to block FP8 on their way to the rows of their experts, and once more as they are.

A token is quantized once, by 1x128 as `refmoe.reference.block_fp8` has it, and copied to one row of each of its experts
on this rank. Its codes as they are feed the shared expert, which every token goes to. Rows that no choice has are not
written.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from refmoe.errors import ArgumentError, describe
from refmoe.reference import fp32
from refmoe.reference.arrays import checked_array
from refmoe.reference.block_fp8 import LAYOUTS, lay_out, quantize_block_fp8
from refmoe.reference.deepseek.activation import TILE
from refmoe.reference.layout import checked_fill


@dataclass(frozen=True, eq=False)
class ExpandedBlockFP8:
    """Tokens in block FP8, in the rows of their experts and as they are.

    Attributes:
        codes: uint8 [T * k, K], E4M3.
        scales: float32, K-major [T * k, K/128] or MN-major [K/128, T * k].
        token_codes: uint8 [T, K].
        token_scales: float32 [T, K/128] or [K/128, T].
    """

    codes: NDArray[np.uint8]
    scales: NDArray[np.float32]
    token_codes: NDArray[np.uint8]
    token_scales: NDArray[np.float32]


def expand_block_fp8(
    x: NDArray[Any],
    unpermuted_to_permuted: NDArray[np.int32],
    *,
    policy: str = "deepgemm",
    scales: str = "fp32",
    layout: str = "k_major",
    fill: int = 0,
) -> ExpandedBlockFP8:
    """Quantize every token and copy it to its rows.

    Args:
        x: bfloat16 or float32 [T, K], C-contiguous, K a positive multiple of 128.
        unpermuted_to_permuted: int32 [T * k], the row of token + k_rank * T, no row twice; -1 for an expert of another
            rank.
        policy: "deepgemm" or "exact".
        scales: "fp32", or "ue8m0" for powers of two.
        layout: of all scales, "k_major" or "mn_major".
        fill: byte of codes and scales of rows that no choice has.

    Raises:
        ArgumentError: wrong dtype or shape, a row that does not exist or is named twice, or an unknown word.
    """
    tokens, k = checked_array("x", x, ("T", "K"), fp32.BF16, np.float32).shape
    if k == 0 or k % TILE:
        raise ArgumentError("x", describe(x), f"K a positive multiple of {TILE}")
    rows = check_rows(unpermuted_to_permuted, tokens)
    byte = checked_fill(fill)
    if layout not in LAYOUTS:
        raise ArgumentError("layout", describe(layout), " or ".join(LAYOUTS))
    made = quantize_block_fp8(x, policy=policy, scales=scales)
    codes = np.full((rows, k), byte, np.uint8)
    factors = np.full((rows, k // TILE, 4), byte, np.uint8).view(np.float32)[..., 0]
    present = np.flatnonzero(unpermuted_to_permuted >= 0)
    where = unpermuted_to_permuted[present]
    codes[where], factors[where] = made.codes[present % max(tokens, 1)], made.scales[present % max(tokens, 1)]
    return ExpandedBlockFP8(codes, lay_out(factors, layout), made.codes, lay_out(made.scales, layout))


def check_rows(unpermuted_to_permuted: object, tokens: int) -> int:
    """The number of rows of a map that names no row twice.

    Raises:
        ArgumentError: it is no int32 array of whole ranks, or names a row that does not exist or is another choice's.
    """
    entries = checked_array("unpermuted_to_permuted", unpermuted_to_permuted, ("T * k",), np.int32)
    if (tokens and entries.size % tokens) or (not tokens and entries.size):
        raise ArgumentError("unpermuted_to_permuted", describe(entries), f"int32 [k * {tokens}]")
    stray = np.flatnonzero((entries < -1) | (entries >= entries.size))
    if stray.size:
        found = f"{entries[stray[0]]} at {stray[0]}"
        raise ArgumentError("unpermuted_to_permuted", found, f"-1, or a row below {entries.size}")
    named, counts = np.unique(entries[entries >= 0], return_counts=True)
    if (counts > 1).any():
        raise ArgumentError("unpermuted_to_permuted", f"row {named[counts > 1][0]} twice", "each row once at most")
    return int(entries.size)
