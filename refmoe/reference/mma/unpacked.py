"""FP8 through FP16 blocks: what ptxas makes of an FP8 `mma.sync` on SM90."""

from __future__ import annotations

import dataclasses

import numpy as np
from numpy.typing import NDArray

from refmoe.formats import FP16
from refmoe.reference.mma.fused import fused_chain
from refmoe.reference.mma.models import AccumulationModel
from refmoe.reference.mma.operands import Operand, table

__all__ = ["unpacked_chain"]


def unpacked_chain(
    a: Operand, b: Operand, c: NDArray[np.float32], model: AccumulationModel, block: int
) -> NDArray[np.float64]:
    """The chain of one [M, K] x [N, K] product onto c [M, N], as float64 that holds FP32 values; NaN is any NaN."""
    order = np.concatenate([np.asarray(part) for part in model.passes])
    acc = c.astype(np.float32)
    for k in range(0, a.codes.shape[1], order.size):
        partial = fused_chain(_widened(a, k + order), _widened(b, k + order), np.zeros_like(acc), model, block)
        with np.errstate(invalid="ignore", over="ignore"):
            acc = acc + partial.astype(np.float32)
    return acc.astype(np.float64)


def _widened(operand: Operand, columns: NDArray[np.intp]) -> Operand:
    """Those columns as FP16, which has every FP8 value."""
    return dataclasses.replace(operand, codes=_as_fp16(operand)[operand.codes[:, columns]], format=FP16)


def _as_fp16(operand: Operand) -> NDArray[np.uint16]:
    return table(operand.format).value.astype(np.float16).view(np.uint16)
