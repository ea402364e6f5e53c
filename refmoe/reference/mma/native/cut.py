"""The products of one block in units of its alignment, each truncated: their sums, and how many lost a fraction.

This is the definition of a fused block, term by term, for bounds. It knows nothing of how the native chains find
the same sums.
"""

from __future__ import annotations

import ctypes
from functools import cache
from typing import Any

import numpy as np
from llvmlite import ir
from numpy.typing import NDArray

from refmoe.native.compiler import Native
from refmoe.native.expressions import F64, I64, POINTER, Code, vector

#: Columns that are added up at a time.
COLUMNS = 8
_BYTES = 8  # of float64 and int64
_DOUBLES, _WORDS = vector(F64, COLUMNS), vector(I64, COLUMNS)


def cut_products(
    a: NDArray[np.float64], b: NDArray[np.float64], units: NDArray[np.float64]
) -> tuple[NDArray[np.float64], NDArray[np.int64]]:
    """The sums of trunc(a * b * units) over K, none of which rounds, and how many of the products were no integers.

    Args:
        a: float64 [M, K].
        b: float64 [N, K], N at least `COLUMNS`.
        units: float64 [M, N], contiguous; powers of two.

    Returns:
        float64 [M, N] and int64 [M, N].
    """
    (m, k), n = a.shape, b.shape[0]
    assert n >= COLUMNS, f"{n} columns"
    a, columns = np.ascontiguousarray(a), np.ascontiguousarray(b.T)
    sums, cuts = np.empty((m, n), np.float64), np.empty((m, n), np.int64)
    _, run = _native()
    run(*(each.ctypes.data for each in (a, columns, units, sums, cuts)), m, n, k)
    return sums, cuts


@cache
def _native() -> tuple[Native, Any]:
    native = Native.of(_module, "cut products", level=2)
    kind = ctypes.CFUNCTYPE(None, *[ctypes.c_void_p] * 5, *[ctypes.c_int64] * 3)
    # The code lives as long as what is cached here.
    return native, kind(native.address("run"))


def _module() -> str:
    module = ir.Module()
    code = Code(module, "run", [POINTER] * 5 + [I64] * 3)
    a, b, units, sums, cuts, m, n, k = code.arguments
    with code.range(m) as row, code.range((n + (COLUMNS - 1)).quotient(code.constant(I64, COLUMNS))) as step:
        # The last columns overlap those before, and get the same results again.
        column = code.min(step * COLUMNS, n - COLUMNS)
        output = (row * n + column) * _BYTES
        unit = code.load(_DOUBLES, units + output)
        total, lost = code.variable(_DOUBLES, 0.0), code.variable(_WORDS, 0)
        with code.range(k) as at:
            left = code.load(F64, a + (row * k + at) * _BYTES).lanes(COLUMNS)
            product = left * code.load(_DOUBLES, b + (at * n + column) * _BYTES) * unit
            whole = code.intrinsic("trunc", product)
            total.set(total.get() + whole)
            lost.set(lost.get() + code.select(whole.differs(product), 1, 0, _WORDS))
        code.store(total.get(), sums + output)
        code.store(lost.get(), cuts + output)
    code.done()
    return str(module)
