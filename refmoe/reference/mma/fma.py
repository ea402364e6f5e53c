"""A chain of FP32 FMAs over K, fast."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from refmoe.reference.chunks import for_each_chunk
from refmoe.reference.mma.odd import add_to_odd
from refmoe.reference.mma.operands import Operand

__all__ = ["fma_chain"]

_OUTPUTS_A_TILE = 1 << 15


def fma_chain(a: Operand, b: Operand, c: NDArray[np.float32]) -> NDArray[np.float64]:
    """acc = RN(a * b + acc) in FP32, k ascending, of one [M, K] x [N, K] product onto c [M, N].

    The product of two operands is exact in float64, so rounding the sum to odd there and then to FP32 rounds once.
    """
    a_values = np.ascontiguousarray(a.values().T)
    out = np.empty(c.shape, np.float64)

    def tile(start: int, stop: int) -> None:
        acc = c[:, start:stop].astype(np.float32)
        with np.errstate(invalid="ignore", over="ignore", under="ignore"):
            for a_row, b_row in zip(a_values, np.ascontiguousarray(b.rows(start, stop).values().T), strict=True):
                acc = add_to_odd(a_row[:, None] * b_row, acc.astype(np.float64)).astype(np.float32)
        out[:, start:stop] = acc

    for_each_chunk(tile, c.shape[1], max(1, _OUTPUTS_A_TILE // max(1, c.shape[0])))
    return out
