"""The largest exponent of the nonzero products of each output of a block."""

from __future__ import annotations

from functools import cache
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from refmoe.formats import Format
from refmoe.reference.mma.operands import ABSENT, Blocks, power_of_two, table


class Outputs(NamedTuple):
    """Some outputs of P products of M rows and N columns.

    Attributes:
        flat: int64 [n], their places among the P M N outputs.
        rows: int64 [n], their rows among the P M.
        columns: int64 [n], their columns among the P N.
    """

    flat: NDArray[np.intp]
    rows: NDArray[np.intp]
    columns: NDArray[np.intp]

    @classmethod
    def at(cls, flat: NDArray[np.intp], shape: tuple[int, ...]) -> Outputs:
        """The outputs at those places of [P, M, N]."""
        rows, column = np.divmod(flat, shape[2])
        return cls(flat, rows, rows // shape[1] * shape[2] + column)

    def part(self, which: NDArray[np.intp]) -> Outputs:
        """Those of them."""
        return Outputs(self.flat[which], self.rows[which], self.columns[which])


# A level is worth three bits of exponent more than a block of 32 equal products can add: 32 = 2^5 < 2^8.
_LEVEL = 3
_STEP = 1 << _LEVEL

_DTYPES = (np.dtype(np.float32), np.dtype(np.float64))


def largest_exponents(a: Blocks, b: Blocks, t: int, outputs: Outputs) -> NDArray[np.int64]:
    """The largest exponent [n] of each output's nonzero products in block `t`; around -ABSENT if all are zero."""
    last_level = 1 + sum(fmt.emax - fmt.emin for fmt in (a.format, b.format))
    wide_enough = [dtype for dtype in _DTYPES if last_level < (1 << np.finfo(dtype).nexp) // _STEP]
    exponents = _by_product(a, b, t, outputs, wide_enough[0]) if wide_enough else _by_comparison(a, b, t, outputs)
    scales = a.scale[t].reshape(-1)[outputs.rows] + b.scale[t].reshape(-1)[outputs.columns]
    return np.asarray(exponents + scales)


def _by_product(a: Blocks, b: Blocks, t: int, outputs: Outputs, dtype: np.dtype[np.floating[Any]]) -> NDArray[np.int64]:
    """Through BLAS: with 2^(8 e) for an exponent e, the sum over K has the exponent 8 max(ea + eb) + 0 .. 5."""
    info = np.finfo(dtype)
    # The least product gets level 1 in the biased exponent; no product at all is 0.
    offset = _STEP - (1 << (info.nexp - 1)) + 1
    a_powers = np.take(_powers(a.format, offset, dtype), a.codes[t], mode="clip")
    b_powers = np.take(_powers(b.format, 0, dtype), b.codes[t], mode="clip")
    sums = np.take(np.matmul(a_powers, b_powers.swapaxes(1, 2)), outputs.flat)
    level = (sums.view(f"u{dtype.itemsize}") >> (info.nmant + _LEVEL)).astype(np.int64)
    return np.asarray(np.where(level == 0, -ABSENT, level + (a.format.emin + b.format.emin - 1)))


@cache
def _powers(fmt: Format, offset: int, dtype: np.dtype[np.floating[Any]]) -> NDArray[np.floating[Any]]:
    exponent = table(fmt).exponent.astype(np.int64)
    powers = power_of_two(np.where(exponent == -ABSENT, -ABSENT, _STEP * (exponent - fmt.emin) + offset))
    return powers.astype(dtype)


def _by_comparison(a: Blocks, b: Blocks, t: int, outputs: Outputs) -> NDArray[np.int64]:
    """Product by product, for formats whose exponents are too far apart to add up."""
    length = a.codes.shape[-1]
    a_exponents = np.take(table(a.format).exponent, a.codes[t].reshape(-1, length), mode="clip")
    b_exponents = np.take(table(b.format).exponent, b.codes[t].reshape(-1, length), mode="clip")
    products = np.take(a_exponents, outputs.rows, axis=0) + np.take(b_exponents, outputs.columns, axis=0)
    return np.asarray(products.max(axis=1).astype(np.int64))
