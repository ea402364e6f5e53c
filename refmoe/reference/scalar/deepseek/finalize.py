"""Finalize with a shared expert, one output at a time: the specification of `refmoe.reference.deepseek.finalize`."""

from __future__ import annotations

from collections.abc import Sequence

from refmoe.formats import BF16, FP32, Format
from refmoe.reference.scalar.arithmetic import add, cast, multiply
from refmoe.reference.scalar.finalize import Matrix, finalize


def finalize_shared(
    rows: Matrix,
    unpermuted_to_permuted: Sequence[int],
    weights: Matrix,
    shared: Matrix | None,
    output: Format,
    scale: int,
    order: str = "fp32",
) -> list[list[int]]:
    """Bits [T][H] of `output`.

    Args:
        rows: FP32 bits [T * k][H], in the order of the experts.
        unpermuted_to_permuted: the row of token + k_rank * T, or -1.
        weights: FP32 bits [T][k].
        shared: FP32 bits [T][H], or None.
        output: FP32 or BF16.
        scale: FP32 bits.
        order: "fp32", or "bf16": what is routed is rounded to BF16 before the shared expert is added.
    """
    out = []
    for token, sums in enumerate(finalize(rows, unpermuted_to_permuted, weights, FP32)):
        line = []
        for column, routed in enumerate(sums):
            total = multiply(routed, scale)
            if order == "bf16":
                total = cast(total, BF16) << 16
            result = total if shared is None else add(total, shared[token][column])
            # A BF16 NaN made wider is no NaN of FP32 arithmetic: its bits stay.
            line.append(result if output is FP32 else cast(result, output))
        out.append(line)
    return out
