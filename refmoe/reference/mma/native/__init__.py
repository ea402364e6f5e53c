"""Chains of tensor-core blocks as native code, for big products; without llvmlite NumPy computes them."""

from __future__ import annotations

from functools import cache
from importlib.util import find_spec
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from refmoe.reference.mma.models import AccumulationModel, Kind

if TYPE_CHECKING:
    from refmoe.reference.mma.operands import Operand

# To load the compiler and a kernel takes what NumPy takes for about so many multiplications.
_MULTIPLICATIONS_TO_LOAD = 1 << 26
# Of K, where blocks do not say it: steps of a chain of FMAs.
_FMA_STEP = 16

# Multiplications asked for so far by (model, format of a, format of b, whether scaled); threads may lose some, which
# only delays the change to native code.
_asked_for: dict[tuple[str, str, str, bool], int] = {}


def native_product(
    a: Operand, b: Operand, c: NDArray[np.float32], model: AccumulationModel, block: int
) -> NDArray[np.float32] | None:
    """P products [M, K] x [N, K] onto c [P, M, N] by native code, or None where NumPy shall compute them.

    The bits are the same. NumPy's are the exact sums, chains of FMAs over a K that is not a multiple of 16, a process's
    first products of a kind until they add up to what is worth loading a compiler, and all where llvmlite is missing.
    """
    k = a.codes.shape[2]
    if model.kind is Kind.EXACT or (model.kind is Kind.FMA and k % _FMA_STEP):
        return None
    kind = model.name, a.format.name, b.format.name, a.scales is not None or b.scales is not None
    _asked_for[kind] = _asked_for.get(kind, 0) + c.size * k
    if _asked_for[kind] < _MULTIPLICATIONS_TO_LOAD or not _installed():
        return None
    from refmoe.reference.mma.native.product import native_chain

    return native_chain(a, b, c, model, block)


@cache
def _installed() -> bool:
    return find_spec("llvmlite") is not None
