"""The grouped GEMM in block FP8, one output at a time in exact rationals: what `refmoe.reference.deepseek_gemm` is.

Written from the words of the definition on plain lists. What a tensor core adds up to is given from outside, as a
function of two rows of 128 codes, for example `refmoe.reference.scalar.mma.accumulate` under a model.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NamedTuple

from refmoe.formats import BF16, Format
from refmoe.reference.scalar.arithmetic import cast, fma, multiply

BLOCK = 128
"""Elements of K between two promotions, and weight rows that share a scale."""

#: FP32 bits of what the tensor core makes of 128 codes of a token and 128 of a weight row, from a zero accumulator.
Accumulate = Callable[[Sequence[int], Sequence[int]], int]


class Row(NamedTuple):
    """A row of E4M3 codes, and the FP32 bits of its scales, one for every 128 codes."""

    codes: Sequence[int]
    scales: Sequence[int]


class Expert(NamedTuple):
    """The weights [N][K] of an expert as E4M3 codes, and FP32 bits of their scales [N / 128][K / 128]."""

    codes: Sequence[Sequence[int]]
    scales: Sequence[Sequence[int]]


def promoted_sum(token: Row, weight: Row, accumulate: Accumulate) -> int:
    """FP32 bits of an output before it is cast: each block's sum is scaled as it is added, with one rounding.

    The factor is the product of both scales, rounded. The accumulator begins at +0.
    """
    total = 0
    for block in range(len(token.codes) // BLOCK):
        part = slice(block * BLOCK, (block + 1) * BLOCK)
        factor = multiply(token.scales[block], weight.scales[block])
        total = fma(factor, accumulate(token.codes[part], weight.codes[part]), total)
    return total


def output_row(token: Row, expert: Expert, accumulate: Accumulate, output: Format = BF16) -> list[int]:
    """Bits [N] of a token's outputs at an expert."""
    return [
        cast(promoted_sum(token, Row(codes, expert.scales[n // BLOCK]), accumulate), output)
        for n, codes in enumerate(expert.codes)
    ]


def contiguous(
    tokens: Sequence[Row],
    experts: Sequence[Expert],
    m_indptr: Sequence[int],
    accumulate: Accumulate,
    output: Format = BF16,
) -> list[list[int]]:
    """Bits [M][N]: the rows m_indptr[e] to m_indptr[e + 1] are those of expert e; rows of no expert are zeros."""
    rows = [[0] * len(experts[0].codes) for _ in tokens]
    for e, expert in enumerate(experts):
        for m in range(m_indptr[e], m_indptr[e + 1]):
            rows[m] = output_row(tokens[m], expert, accumulate, output)
    return rows


def masked(
    tokens: Sequence[Sequence[Row]],
    experts: Sequence[Expert],
    masked_m: Sequence[int],
    accumulate: Accumulate,
    output: Format = BF16,
) -> list[list[list[int]]]:
    """Bits [E][R][N]: of expert e's R rows the first masked_m[e] are in use; the others are zeros."""
    return [
        [
            output_row(token, expert, accumulate, output) if row < masked_m[e] else [0] * len(expert.codes)
            for row, token in enumerate(tokens[e])
        ]
        for e, expert in enumerate(experts)
    ]
