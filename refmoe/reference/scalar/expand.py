"""The expand step, one byte at a time: the specification of `refmoe.reference.expand`.

Plain Python on nested lists, written from the text: row = token + k_rank * T, experts in order, that order within an
expert, scales from row align128(first row + 127 * expert) on. Tokens come ready quantized, so that this says where a
byte goes and `refmoe.reference.scalar.quantize` what it is.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from refmoe.reference.scalar.layout import base_row, scale_offset, scale_size
from refmoe.reference.scalar.numbers import BLOCK

Matrix = Sequence[Sequence[int]]


class Permuted(NamedTuple):
    """First row of each expert and the number of rows in use; the two maps, -1 where there is no counterpart."""

    offsets: list[int]
    permuted_to_unpermuted: list[int]
    unpermuted_to_permuted: list[int]


class Rows(NamedTuple):
    """Codes, T * k rows of K bytes on end, and scales in the layout of the grouped GEMM."""

    codes: bytes
    scales: bytes


def build_permutation(topk_ids: Matrix, num_experts: int, first_expert: int = 0) -> Permuted:
    """Hand out rows expert by expert; choices outside [first_expert, first_expert + num_experts) get none."""
    tokens = len(topk_ids)
    k = len(topk_ids[0]) if tokens else 0
    offsets = [0]
    to_unpermuted = [-1] * (tokens * k)
    to_permuted = [-1] * (tokens * k)
    row = 0
    for expert in range(first_expert, first_expert + num_experts):
        for k_rank in range(k):
            for token in range(tokens):
                if topk_ids[token][k_rank] == expert:
                    to_unpermuted[row] = token + k_rank * tokens
                    to_permuted[token + k_rank * tokens] = row
                    row += 1
        offsets.append(row)
    return Permuted(offsets, to_unpermuted, to_permuted)


def expand_rows(codes: Matrix, scales: Matrix, permuted: Permuted, layout: str, fill: int = 0) -> Rows:
    """Copy each token's codes [T][K] and scales [T][K / 32] to its rows; bytes that belong to no row hold `fill`."""
    tokens = len(codes)
    rows = len(permuted.permuted_to_unpermuted)
    width = len(codes[0]) if tokens else 0
    # K is padded to 128, which makes the scale columns a multiple of 4 in every layout.
    columns = (width + 127) // 128 * 4
    experts = len(permuted.offsets) - 1
    out_codes = bytearray([fill]) * (rows * width)
    out_scales = bytearray([fill]) * scale_size(layout, base_row(rows, experts), columns)
    for expert in range(experts):
        first = permuted.offsets[expert]
        for row in range(first, permuted.offsets[expert + 1]):
            token = permuted.permuted_to_unpermuted[row] % tokens
            for column in range(width):
                out_codes[row * width + column] = codes[token][column]
            scale_row = base_row(first, expert) + row - first
            for block in range(columns):
                scale = scales[token][block] if block < width // BLOCK else 0x00
                out_scales[scale_offset(layout, scale_row, block, columns)] = scale
    return Rows(bytes(out_codes), bytes(out_scales))
