"""Chains of tensor-core blocks as native code, for big products; without llvmlite NumPy computes them."""

from __future__ import annotations

from importlib.util import find_spec
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from refmoe.reference.mma.models import AccumulationModel, Kind

if TYPE_CHECKING:
    from refmoe.reference.mma.operands import Operand

_KINDS = (Kind.FUSED, Kind.UNPACKED, Kind.GROUPED)

# To load the compiler and its code takes what NumPy takes for about so many multiplications; a process that does fewer
# never loads it.
_MULTIPLICATIONS_TO_LOAD = 1 << 26
# Below this the calls around a product take longer than the product.
_SMALLEST = 1 << 14


class _Done:
    """Multiplications that NumPy did and native code could have done."""

    multiplications = 0


def native_product(
    a: Operand, b: Operand, c: NDArray[np.float32], model: AccumulationModel, block: int
) -> NDArray[np.float32] | None:
    """P products [M, K] x [N, K] onto c [P, M, N] by native code, or None where NumPy shall compute them.

    The bits are the same. NumPy's are the models without blocks, a process's first products, and all of them where
    llvmlite is not installed.
    """
    if model.kind not in _KINDS:
        return None
    multiplications = c.size * a.codes.shape[2]
    if multiplications < _SMALLEST and _Done.multiplications < _MULTIPLICATIONS_TO_LOAD:
        _Done.multiplications += multiplications
        return None
    if _Done.multiplications < _MULTIPLICATIONS_TO_LOAD:
        _Done.multiplications += multiplications
    if _Done.multiplications < _MULTIPLICATIONS_TO_LOAD or find_spec("llvmlite") is None:
        return None
    from refmoe.reference.mma.native.product import native_chain

    return native_chain(a, b, c, model, block)
