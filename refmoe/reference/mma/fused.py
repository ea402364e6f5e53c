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
from refmoe.reference.mma.alignment import LargestExponent, largest_exponents
from refmoe.reference.mma.models import AccumulationModel
from refmoe.reference.mma.operands import ABSENT, Blocks, Operand, power_of_two

__all__ = ["FusedChain", "fused_chain"]

_OUTPUTS_A_TILE = 12288
_ROWS_A_TILE = 64
_GATHERED = 8192


def fused_chain(
    a: Operand, b: Operand, c: NDArray[np.float32], model: AccumulationModel, block: int
) -> NDArray[np.float64]:
    """The chain of one [M, K] x [N, K] product onto c [M, N], as float64 that holds FP32 values; NaN is any NaN."""
    m, n = c.shape
    out = np.empty(c.shape, np.float64)
    columns = max(1, _OUTPUTS_A_TILE // max(1, min(m, _ROWS_A_TILE)))
    for top in range(0, m, _ROWS_A_TILE):
        bottom = min(top + _ROWS_A_TILE, m)
        a_blocks = a.rows(top, bottom).blocks(block)

        def tile(start: int, stop: int, rows: slice = slice(top, bottom), a_blocks: Blocks = a_blocks) -> None:
            chain = FusedChain(a_blocks, b.rows(start, stop).blocks(block), model)
            out[rows, start:stop] = chain.run(c[rows, start:stop])

        for_each_chunk(tile, n, columns)
    return out


@dataclass(frozen=True)
class FusedChain:
    """The chain of one tile of outputs.

    Attributes:
        a: the rows, T blocks.
        b: the columns, T blocks.
        model: a model whose blocks are fused.
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
        gathered, more = np.empty(acc.shape, bool), np.empty(acc.shape, bool)
        # |C| from which on C sets an E at which a product of these blocks could be truncated.
        a_high, b_high = power_of_two(a.low + (bits + 1)), power_of_two(b.low)
        # E is not only C's: the products themselves set it, the exponent of a subnormal C, the floor.
        a_spread, b_spread = a.top - a.low, b.top - b.low
        least = max(FP32.emin, self.model.floor) - bits
        spread = a_spread.max(axis=1) + b_spread.max(axis=1) > bits
        spread |= a.low.min(axis=1) + b.low.min(axis=1) < least
        edges = self._may_leave_range(acc)
        c_bits = FP32.mantissa_bits
        with np.errstate(invalid="ignore", over="ignore"):
            for t in range(a.values.shape[0]):
                # C has at most c_bits below its exponent, so it is whole as long as E exceeds that by no more than:
                spare = bits - c_bits
                c_bits = self.model.result_bits
                np.abs(acc, out=magnitude)
                np.multiply(power_of_two(a.top[t] - spare)[:, None], power_of_two(b.top[t]), out=threshold)
                np.less(magnitude, threshold, out=gathered)
                np.multiply(a_high[t][:, None], b_high[t], out=threshold)
                np.greater_equal(magnitude, threshold, out=more)
                gathered |= more
                if spare < 0:
                    gathered |= magnitude > 0
                if spread[t]:
                    gathered |= a_spread[t][:, None] + b_spread[t] > bits
                    gathered |= a.low[t][:, None] + b.low[t] < least
                np.matmul(a.values[t], b.values[t].T, out=total)
                total += acc
                self._replace(t, total, acc, np.flatnonzero(gathered))
                acc, total = self.rounded(total, edges=edges), acc
        # A zero result is +0.
        return acc + 0.0

    def aligned_terms(
        self,
        t: int,
        rows: NDArray[np.intp],
        columns: NDArray[np.intp],
        c: NDArray[np.float64],
        largest: LargestExponent,
    ) -> tuple[NDArray[np.float64], NDArray[np.float64], NDArray[np.int64]]:
        """The terms of block `t` of the outputs (rows [n], columns [n]), in units of 2^(E - F), not yet truncated.

        Returns:
            The products [n, L], C [n], and E [n].
        """
        products = np.take(self.a.values[t], rows, axis=0)
        products *= np.take(self.b.values[t], columns, axis=0)
        c_exponent = np.maximum((c.view(np.int64) >> 52 & 0x7FF) - 1023, FP32.emin)
        c_exponent[c == 0] = -ABSENT
        exponent = np.maximum(np.maximum(largest(rows, columns), c_exponent), self.model.floor)
        units = power_of_two(self.align_bits - exponent)
        products *= units[:, None]
        return products, c * units, exponent

    def rounded(self, total: NDArray[np.float64], *, edges: bool = True) -> NDArray[np.float64]:
        """`total` truncated to the model's result, in place; without `edges` only right in FP32's normal range."""
        bits = total.view(np.int64)
        bits &= np.int64(-1 << (52 - self.model.result_bits))
        if edges:
            magnitude = np.abs(total)
            tiny = magnitude < 2.0**FP32.emin
            unit = 2.0 ** (FP32.emin - self.model.result_bits)
            total[tiny] = np.trunc(total[tiny] / unit) * unit
            huge = magnitude >= 2.0 ** (FP32.emax + 1)
            total[huge] = np.copysign(np.inf, total[huge])
        return total

    def _replace(self, t: int, total: NDArray[np.float64], acc: NDArray[np.float64], outputs: NDArray[np.intp]) -> None:
        """Put the sums of truncated terms of block `t` into `total`, at those indices of the flattened outputs."""
        if not outputs.size:
            return
        flat_acc, flat_total, ones = acc.reshape(-1), total.reshape(-1), np.ones(self.a.values.shape[2])
        largest = largest_exponents(self.a, self.b, t)
        for start in range(0, outputs.size, _GATHERED):
            part = outputs[start : start + _GATHERED]
            rows, columns = np.divmod(part, acc.shape[1])
            products, c, exponent = self.aligned_terms(t, rows, columns, np.take(flat_acc, part), largest)
            # Integers below 2^(F + 2): a product with ones adds them exactly.
            sums = np.matmul(np.trunc(products, out=products), ones) + np.trunc(c)
            flat_total[part] = sums * power_of_two(exponent - self.align_bits)

    def _may_leave_range(self, c: NDArray[np.float64]) -> bool:
        """Whether a partial result could be subnormal and inexact, or overflow."""
        a, b = self.a, self.b
        low = int((a.low.min(axis=1) + b.low.min(axis=1)).min())
        terms = a.values.shape[0] * a.values.shape[2]
        high = int((a.top.max(axis=1) + b.top.max(axis=1)).max()) + 2 + terms.bit_length()
        return low < FP32.emin - self.model.result_bits or high >= FP32.emax or not (np.abs(c) < 2.0**126).all()
