"""A chain of FP32 FMAs over K, fast."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
from numpy.typing import NDArray

from refmoe.reference.chunks import for_each_chunk
from refmoe.reference.mma.odd import add_to_odd
from refmoe.reference.mma.operands import Operand

__all__ = ["fma_chain", "fma_steps"]

_OUTPUTS_A_TILE = 1 << 15


def fma_chain(a: Operand, b: Operand, c: NDArray[np.float32]) -> NDArray[np.float64]:
    """acc = RN(a * b + acc) in FP32, k ascending, of one [M, K] x [N, K] product onto c [M, N]."""
    out = np.empty(c.shape, np.float64)

    def tile(start: int, stop: int) -> None:
        for acc in fma_steps(a, b.rows(start, stop), c[:, start:stop]):
            last = acc
        out[:, start:stop] = last

    for_each_chunk(tile, c.shape[1], max(1, _OUTPUTS_A_TILE // max(1, c.shape[0])))
    return out


def fma_steps(a: Operand, b: Operand, c: NDArray[np.float32]) -> Iterator[NDArray[np.float32]]:
    """The accumulators [M, N] after each k.

    The product of two operands is exact in float64, so rounding the sum to odd there and then to FP32 rounds once.
    """
    acc = c
    for a_column, b_column in zip(a.values().T, np.ascontiguousarray(b.values().T), strict=True):
        with np.errstate(invalid="ignore", over="ignore", under="ignore"):
            acc = add_to_odd(a_column[:, None] * b_column, acc.astype(np.float64)).astype(np.float32)
        yield acc
