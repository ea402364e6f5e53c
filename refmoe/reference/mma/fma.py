"""A chain of FP32 FMAs over K, fast."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
from numpy.typing import NDArray

from refmoe.reference.chunks import for_each_chunk
from refmoe.reference.fp32 import add_to_odd
from refmoe.reference.mma.operands import Operand

_OUTPUTS_A_TILE = 1 << 15


def fma_chain(a: Operand, b: Operand, c: NDArray[np.float32]) -> NDArray[np.float64]:
    """acc = RN(a * b + acc) in FP32, k ascending, of P products [M, K] x [N, K] onto c [P, M, N]."""
    out = np.empty(c.shape, np.float64)

    def tile(start: int, stop: int) -> None:
        columns = slice(start, stop)
        for acc in fma_steps(a, b.part(rows=columns), c[:, :, columns]):
            last = acc
        out[:, :, columns] = last

    for_each_chunk(tile, c.shape[2], max(1, _OUTPUTS_A_TILE // max(1, c.shape[0] * c.shape[1])))
    return out


def fma_steps(a: Operand, b: Operand, c: NDArray[np.float32]) -> Iterator[NDArray[np.float32]]:
    """The accumulators [P, M, N] after each k.

    The product of two operands is exact in float64, so rounding the sum to odd there and then to FP32 rounds once.
    """
    acc = c
    a_values, b_values = (np.ascontiguousarray(x.values().transpose(2, 0, 1)) for x in (a, b))
    for a_column, b_column in zip(a_values, b_values, strict=True):
        with np.errstate(invalid="ignore", over="ignore", under="ignore"):
            products = a_column[:, :, None] * b_column[:, None, :]
            acc = add_to_odd(products, acc.astype(np.float64)).astype(np.float32)
        yield acc
