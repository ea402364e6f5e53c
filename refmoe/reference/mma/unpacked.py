"""FP8 through FP16 blocks: what ptxas makes of an FP8 `mma.sync` on SM90."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
from numpy.typing import NDArray

from refmoe.formats import FP16
from refmoe.reference.mma.fused import fused_chain
from refmoe.reference.mma.models import AccumulationModel
from refmoe.reference.mma.operands import Operand, table

__all__ = ["unpacked_chain", "widened_blocks"]


def unpacked_chain(
    a: Operand, b: Operand, c: NDArray[np.float32], model: AccumulationModel, block: int
) -> NDArray[np.float64]:
    """The chains of P products [M, K] x [N, K] onto c [P, M, N], as float64 that holds FP32 values; NaN is any NaN."""
    acc = c
    for x, y in widened_blocks(a, b, model):
        partial = fused_chain(x, y, np.zeros_like(acc), model, block)
        with np.errstate(invalid="ignore", over="ignore"):
            acc = acc + partial.astype(np.float32)
    return acc.astype(np.float64)


def widened_blocks(a: Operand, b: Operand, model: AccumulationModel) -> Iterator[tuple[Operand, Operand]]:
    """What each instruction takes of K, widened to FP16, in the order in which the fused blocks take it."""
    order = np.concatenate([np.asarray(part) for part in model.passes])
    for k in range(0, a.codes.shape[2], order.size):
        yield _widened(a, k + order), _widened(b, k + order)


def _widened(operand: Operand, columns: NDArray[np.intp]) -> Operand:
    # FP16 has every FP8 value.
    codes = table(operand.format).value.astype(np.float16).view(np.uint16)
    return Operand(codes[operand.codes[..., columns]], FP16, None)
