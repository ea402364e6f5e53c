"""Chains of tensor-core blocks as native code, for big products; without llvmlite NumPy computes them."""

from __future__ import annotations

import sys
from collections.abc import Hashable
from functools import cache
from importlib.util import find_spec
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from refmoe.reference.mma.models import MODELS, AccumulationModel, Kind

if TYPE_CHECKING:
    from refmoe.reference.mma.operands import Operand

# To load the compiler and a kernel takes what NumPy takes for about so many multiplications.
_MULTIPLICATIONS_TO_LOAD = 1 << 26
# And to load a kernel alone, where the executor has loaded the compiler.
_MULTIPLICATIONS_TO_LOAD_A_KERNEL = 1 << 20
# Of K, where blocks do not say it: steps of a chain of FMAs.
_FMA_STEP = 16

_COLUMNS_A_CUT = 8

# Multiplications asked for so far by what native code would be compiled for; threads may lose some, which only delays
# the change to native code.
_asked_for: dict[Hashable, int] = {}


def native_product(
    a: Operand, b: Operand, c: NDArray[np.float32], model: AccumulationModel, block: int
) -> NDArray[np.float32] | None:
    """P products [M, K] x [N, K] onto c [P, M, N] by native code, or None where NumPy shall compute them.

    The bits are the same. NumPy's are the exact sums, chains of FMAs over a K that is not a multiple of 16, models that
    are none of `MODELS`, a process's first products of a kind until they add up to what is worth loading a compiler,
    and all where llvmlite is missing.
    """
    k = a.codes.shape[2]
    if model.kind is Kind.EXACT or (model.kind is Kind.FMA and k % _FMA_STEP):
        return None
    # Native code takes for granted what holds of these, such as which bits a floor can cut.
    if MODELS.get(model.name) != model:
        return None
    kind = model.name, a.format.name, b.format.name, a.scales is not None or b.scales is not None
    if not _worth_loading(kind, c.size * k):
        return None
    from refmoe.reference.mma.native.product import native_chain

    return native_chain(a, b, c, model, block)


def native_cuts(
    a: NDArray[np.float64], b: NDArray[np.float64], units: NDArray[np.float64]
) -> tuple[NDArray[np.float64], NDArray[np.int64]] | None:
    """See `cut.cut_products`; None where NumPy shall compute them: where there is little to do, or no llvmlite."""
    # So many columns at least the native code takes at a time.
    if b.shape[0] < _COLUMNS_A_CUT or not _worth_loading("cuts", units.size * a.shape[1]):
        return None
    from refmoe.reference.mma.native.cut import cut_products

    return cut_products(a, b, units)


def _worth_loading(kind: Hashable, multiplications: int) -> bool:
    """Whether a process has asked for enough of a kind, this time included, and there is a compiler."""
    _asked_for[kind] = _asked_for.get(kind, 0) + multiplications
    least = _MULTIPLICATIONS_TO_LOAD_A_KERNEL if _loaded() else _MULTIPLICATIONS_TO_LOAD
    return _asked_for[kind] >= least and _installed()


def _loaded() -> bool:
    return "llvmlite.binding" in sys.modules


@cache
def _installed() -> bool:
    return find_spec("llvmlite") is not None
