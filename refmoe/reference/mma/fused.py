"""Chains of fused truncating blocks, fast.

How it works. Nearly always no term of a block is truncated: then every term is a multiple of 2^(E - F) and below
2^(E + 2), so a float64 matrix product adds them exactly whatever its order, and the block is one BLAS call, one
addition and one bit mask. Whether a term of an output could be truncated is decided from bounds that are products of
one number a row and one a column:

- a product could be if the lowest bit set in its row block times the lowest in its column block lies below 2^(E - F),
- C could be if the largest exponents of both blocks add up to more than C's own, plus the bits that C is short of F.

Only the outputs for which one of these holds are gathered and added up term by term. Both tests are conservative and
both ways are exact, so that the result does not depend on which was taken. Infinities and NaNs follow float64
arithmetic on either.

The definition that it is held against is `refmoe.reference.scalar.mma`.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from refmoe.formats import FP32
from refmoe.reference.chunks import for_each_chunk
from refmoe.reference.mma.models import AccumulationModel
from refmoe.reference.mma.operands import ABSENT, Blocks, Operand, power_of_two

__all__ = ["FusedChain", "fused_chain"]

_OUTPUTS_A_TILE = 12288
_ROWS_A_TILE = 64
_GATHERED = 1024
_C_BITS = FP32.mantissa_bits


def fused_chain(
    a: Operand, b: Operand, c: NDArray[np.float32], model: AccumulationModel, block: int
) -> NDArray[np.float64]:
    """The chain of one [M, K] x [N, K] product onto c [M, N], as float64 that holds FP32 values; NaN is any NaN."""
    out = np.empty(c.shape, np.float64)
    columns = max(1, _OUTPUTS_A_TILE // min(max(c.shape[0], 1), _ROWS_A_TILE))
    for row in range(0, c.shape[0], _ROWS_A_TILE):
        rows = slice(row, min(row + _ROWS_A_TILE, c.shape[0]))
        a_blocks = a.blocks(rows.start, rows.stop, block)

        def tile(start: int, stop: int, rows: slice = rows, a_blocks: Blocks = a_blocks) -> None:
            chain = FusedChain(a_blocks, b.blocks(start, stop, block), model)
            out[rows, start:stop] = chain.run(c[rows, start:stop])

        for_each_chunk(tile, c.shape[1], columns)
    return out


@dataclass(frozen=True)
class FusedChain:
    """The chain of one tile of outputs.

    Attributes:
        a: the rows, T blocks.
        b: the columns, T blocks.
        model: a FUSED model.
    """

    a: Blocks
    b: Blocks
    model: AccumulationModel

    @property
    def align_bits(self) -> int:
        """F."""
        assert self.model.align_bits is not None
        return self.model.align_bits

    def run(self, c: NDArray[np.float32]) -> NDArray[np.float64]:
        """The result of the whole chain on c [M, N]."""
        a, b, bits = self.a, self.b, self.align_bits
        with np.errstate(invalid="ignore"):
            acc = c.astype(np.float64)
        total, magnitude, threshold = np.empty_like(acc), np.empty_like(acc), np.empty_like(acc)
        gathered, other = np.empty(acc.shape, bool), np.empty(acc.shape, bool)
        # |C| from which on a product could be truncated, because C sets E.
        a_high, b_high = power_of_two(a.low + (bits + 1)), power_of_two(b.low)
        # What sets E without C: the products themselves; a subnormal C, whose exponent is above its leading bit; the floor.
        a_spread, b_spread = a.top - a.low, b.top - b.low
        least = max(FP32.emin, self.model.floor) - bits
        any_spread = a_spread.max(axis=1) + b_spread.max(axis=1) > bits
        any_spread |= a.low.min(axis=1) + b.low.min(axis=1) < least
        c_bits = _C_BITS
        with np.errstate(invalid="ignore", over="ignore"):
            for t in range(a.values.shape[0]):
                # |C| below which C could be truncated; its bits below its exponent are at most c_bits.
                spare = bits - c_bits
                a_low, b_low = power_of_two(a.top[t] - spare), power_of_two(b.top[t])
                np.matmul(a.values[t], b.values[t].T, out=total)
                np.abs(acc, out=magnitude)
                np.multiply(a_low[:, None], b_low, out=threshold)
                np.less(magnitude, threshold, out=gathered)
                np.multiply(a_high[t][:, None], b_high[t], out=threshold)
                np.greater_equal(magnitude, threshold, out=other)
                gathered |= other
                if spare < 0:
                    gathered |= magnitude > 0
                if any_spread[t]:
                    gathered |= a_spread[t][:, None] + b_spread[t] > bits
                    gathered |= a.low[t][:, None] + b.low[t] < least
                total += acc
                rows, columns = gathered.nonzero()
                for start in range(0, rows.size, _GATHERED):
                    at = rows[start : start + _GATHERED], columns[start : start + _GATHERED]
                    total[at] = self.aligned_sums(t, *at, acc[at])[0]
                acc, total = self.rounded(total), acc
                c_bits = self.model.result_bits
        # A zero result is +0.
        return acc + 0.0

    def aligned_sums(
        self, t: int, rows: NDArray[np.intp], columns: NDArray[np.intp], c: NDArray[np.float64]
    ) -> tuple[NDArray[np.float64], NDArray[np.int64]]:
        """Block `t` of the outputs (rows, columns), each [n], term by term: the sum before the last rounding, and E."""
        terms = np.take(self.a.values[t], rows, axis=0)
        terms *= np.take(self.b.values[t], columns, axis=0)
        exponents = np.take(self.a.exponents[t], rows, axis=0)
        exponents += np.take(self.b.exponents[t], columns, axis=0)
        c_exponent = np.where(c == 0, -ABSENT, np.maximum(np.frexp(c)[1] - 1, FP32.emin))
        top = np.maximum(np.maximum(exponents.max(axis=1), c_exponent), self.model.floor).astype(np.int64)
        terms *= power_of_two(self.align_bits - top)[:, None]
        np.trunc(terms, out=terms)
        sums = terms.sum(axis=1) + np.trunc(c * power_of_two(self.align_bits - top))
        return sums * power_of_two(top - self.align_bits), top

    def rounded(self, total: NDArray[np.float64]) -> NDArray[np.float64]:
        """`total` truncated toward zero to the model's result, in place."""
        bits = total.view(np.int64)
        bits &= np.int64(-1 << (52 - self.model.result_bits))
        magnitude = np.abs(total)
        tiny = magnitude < 2.0**FP32.emin
        if tiny.any():
            unit = 2.0 ** (FP32.emin - self.model.result_bits)
            total[tiny] = np.trunc(total[tiny] / unit) * unit
        huge = magnitude >= 2.0 ** (FP32.emax + 1)
        if huge.any():
            total[huge] = np.copysign(np.inf, total[huge])
        return total
