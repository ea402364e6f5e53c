"""Finalize, one output at a time in exact rationals: the specification of `refmoe.reference.finalize`."""

from __future__ import annotations

from collections.abc import Sequence

from refmoe.formats import Format
from refmoe.reference.scalar.arithmetic import add, cast, multiply

Matrix = Sequence[Sequence[int]]


def finalize(
    rows: Matrix,
    unpermuted_to_permuted: Sequence[int],
    weights: Matrix,
    output: Format,
    topk_ids: Matrix | None = None,
    bias: Matrix | None = None,
    first_expert: int = 0,
) -> list[list[int]]:
    """Bits [T][H] of `output`.

    Args:
        rows: FP32 bits [T * k][H], in expert order.
        unpermuted_to_permuted: the row of token + k_rank * T, or -1.
        weights: FP32 bits [T][k].
        output: FP32 or BF16.
        topk_ids: [T][k], with a bias.
        bias: FP32 bits [E][H].
        first_expert: id of the first expert of `bias`.
    """
    tokens = len(weights)
    out = []
    for token in range(tokens):
        total = [0] * len(rows[0])
        for rank, weight in enumerate(weights[token]):
            row = unpermuted_to_permuted[token + rank * tokens]
            if row == -1:
                continue
            for column, value in enumerate(rows[row]):
                if bias is not None and topk_ids is not None:
                    value = add(value, bias[topk_ids[token][rank] - first_expert][column])
                total[column] = add(total[column], multiply(weight, value))
        out.append([cast(x, output) for x in total])
    return out
