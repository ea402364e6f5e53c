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

FP8 on SM90's `mma.sync` has no instruction of its own: ptxas widens it to FP16 and chains fused blocks of that.

The definition that it is held against is `refmoe.reference.scalar.mma`.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from refmoe.formats import FP16
from refmoe.reference.chunks import for_each_chunk
from refmoe.reference.mma.alignment import Outputs, largest_exponents
from refmoe.reference.mma.models import AccumulationModel
from refmoe.reference.mma.operands import ABSENT, Blocks, Operand, power_of_two, table

# OpenBLAS puts its own threads on more than this many multiplications, and they would get in the way of ours.
_MULTIPLICATIONS = 1 << 18
_ROWS_A_TILE = 32

# With few columns, so many that a tile's work exceeds what it costs to start.
_MOST_ROWS_A_TILE = 512

# Of several small products.
_OUTPUTS_A_TILE = 1 << 15

_GATHERED = 8192

# Of K at a time, so that what is looked up for it is still in the cache when it is multiplied.
_BLOCKS_A_PIECE = 16


def fused_chain(
    a: Operand, b: Operand, c: NDArray[np.float32], model: AccumulationModel, block: int
) -> NDArray[np.float64]:
    """The chains of P products [M, K] x [N, K] onto c [P, M, N], results as float64; NaN is any NaN."""
    out = np.empty(c.shape, np.float64)
    if not out.size:
        return out
    tiles = list(_tiles(c.shape, _MULTIPLICATIONS // block))

    def run(first: int, last: int) -> None:
        for products, rows, columns in tiles[first:last]:
            x, y = a.part(products, rows), b.part(products, columns)
            with np.errstate(invalid="ignore"):
                acc = c[products, rows, columns].astype(np.float64)
            bits, piece = model.accumulator.mantissa_bits, _BLOCKS_A_PIECE * block
            for start in range(0, x.codes.shape[2], piece):
                k = slice(start, min(start + piece, x.codes.shape[2]))
                chain = FusedChain(x.part(k=k).blocks(block), y.part(k=k).blocks(block), model)
                acc, bits = chain.run(acc, bits), model.result_bits
            # A zero result is +0.
            out[products, rows, columns] = acc + 0.0

    for_each_chunk(run, len(tiles), 1)
    return out


def unpacked_chain(
    a: Operand, b: Operand, c: NDArray[np.float32], model: AccumulationModel, block: int
) -> NDArray[np.float64]:
    """The chains of an UNPACKED model, otherwise as `fused_chain`."""
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


def _tiles(shape: tuple[int, ...], outputs: int) -> Iterator[tuple[slice, slice, slice]]:
    """Parts of [P, M, N]: of one product, at most that many outputs of it, or several whole products."""
    count, m, n = shape
    rows = min(m, max(_ROWS_A_TILE, min(_MOST_ROWS_A_TILE, outputs // max(n, 1))))
    columns = min(n, max(1, outputs // rows))
    products = max(1, _OUTPUTS_A_TILE // (rows * columns)) if (rows, columns) == (m, n) else 1
    for p in range(0, count, products):
        for row in range(0, m, rows):
            for column in range(0, n, columns):
                yield slice(p, p + products), slice(row, row + rows), slice(column, column + columns)


@dataclass(frozen=True)
class FusedChain:
    """The chains of one tile of outputs, of P products, over one piece of K.

    Attributes:
        a: the rows, T blocks of [P, M].
        b: the columns, T blocks of [P, N].
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

    def run(self, acc: NDArray[np.float64], c_bits: int) -> NDArray[np.float64]:
        """The chain on the accumulators [P, M, N], values of its format that have at most `c_bits` fraction bits.

        The array is overwritten; a zero result may have either sign.
        """
        a, b, bits = self.a, self.b, self.align_bits
        total, products, magnitude, threshold = (np.empty_like(acc) for _ in range(4))
        gathered, more = np.empty(acc.shape, bool), np.empty(acc.shape, bool)
        # |C| from which on C sets an E at which a product of these blocks could be truncated.
        a_high, b_high = power_of_two(a.low + (bits + 1)), power_of_two(b.low)
        # |C| below which products could set an E at which a C of as many bits as F would be truncated.
        a_low, b_low = power_of_two(a.top), power_of_two(b.top)
        # E is not only C's: the products themselves set it, the exponent of a subnormal C, the floor.
        a_spread, b_spread = a.top - a.low, b.top - b.low
        least = max(self.model.accumulator.emin, self.model.floor) - bits
        spread = a_spread.max(axis=(1, 2)) + b_spread.max(axis=(1, 2)) > bits
        spread |= a.low.min(axis=(1, 2)) + b.low.min(axis=(1, 2)) < least
        edges = self._may_leave_range(acc)
        with np.errstate(invalid="ignore", over="ignore"):
            for t in range(a.values.shape[0]):
                # C has at most c_bits below its exponent, so it is whole as long as E exceeds that by no more than:
                spare = bits - c_bits
                c_bits = self.model.result_bits
                np.abs(acc, out=magnitude)
                np.multiply((a_low[t] * 2.0**-spare)[:, :, None], b_low[t][:, None], out=threshold)
                np.less(magnitude, threshold, out=gathered)
                np.multiply(a_high[t][:, :, None], b_high[t][:, None], out=threshold)
                np.greater_equal(magnitude, threshold, out=more)
                gathered |= more
                if spare < 0:
                    gathered |= magnitude > 0
                if spread[t]:
                    gathered |= a_spread[t][:, :, None] + b_spread[t][:, None] > bits
                    gathered |= a.low[t][:, :, None] + b.low[t][:, None] < least
                np.matmul(a.values[t], b.values[t].swapaxes(1, 2), out=products)
                np.add(acc, products, out=total)
                self._replace(t, total, products, acc, Outputs.at(np.flatnonzero(gathered), acc.shape))
                acc, total = self.rounded(total, edges=edges), acc
        return acc

    def alignment(self, t: int, outputs: Outputs, c: NDArray[np.float64]) -> NDArray[np.int64]:
        """E [n] of block `t` of those outputs with the accumulators c [n]."""
        c_exponent = np.maximum((c.view(np.int64) >> 52 & 0x7FF) - 1023, self.model.accumulator.emin)
        c_exponent[c == 0] = -ABSENT
        products = largest_exponents(self.a, self.b, t, outputs)
        return np.asarray(np.maximum(np.maximum(products, c_exponent), self.model.floor))

    def terms(self, t: int, outputs: Outputs, units: NDArray[np.float64]) -> NDArray[np.float64]:
        """The products [n, L] of block `t` of those outputs times `units` [n], powers of two: 2^(F - E)."""
        length = self.a.values.shape[3]
        products = np.take(self.a.values[t].reshape(-1, length), outputs.rows, axis=0)
        products *= np.take(self.b.values[t].reshape(-1, length), outputs.columns, axis=0)
        products *= units[:, None]
        return products

    def rounded(self, total: NDArray[np.float64], *, edges: bool = True) -> NDArray[np.float64]:
        """`total` rounded to the model's result, in place; without `edges` only right in its format's normal range."""
        accumulator = self.model.accumulator
        if self.model.to_nearest:
            # NumPy rounds float64 to FP16 in one step; the sum is exact in float64.
            assert accumulator is FP16
            with np.errstate(over="ignore", under="ignore", invalid="ignore"):
                total[...] = total.astype(np.float16)
            return total
        bits = total.view(np.int64)
        bits &= np.int64(-1 << (52 - self.model.result_bits))
        if edges:
            magnitude = np.abs(total)
            tiny = magnitude < 2.0**accumulator.emin
            unit = 2.0 ** (accumulator.emin - self.model.result_bits)
            total[tiny] = np.trunc(total[tiny] / unit) * unit
            huge = magnitude >= 2.0 ** (accumulator.emax + 1)
            total[huge] = np.copysign(np.inf, total[huge])
        return total

    def _replace(
        self,
        t: int,
        total: NDArray[np.float64],
        products: NDArray[np.float64],
        acc: NDArray[np.float64],
        outputs: Outputs,
    ) -> None:
        """Put what block `t` adds up to with its terms truncated into those outputs of `total`."""
        if not outputs.flat.size:
            return
        c = np.take(acc, outputs.flat)
        exponent = self.alignment(t, outputs, c)
        units = power_of_two(self.align_bits - exponent)
        whole_c = np.trunc(c * units)
        sums = np.take(products, outputs.flat) * units + whole_c
        # Mostly it is only C that is cut.
        low = self.a.low[t].reshape(-1)[outputs.rows] + self.b.low[t].reshape(-1)[outputs.columns]
        cut = np.flatnonzero(low < exponent - self.align_bits)
        ones = np.ones(self.a.values.shape[3])
        for start in range(0, cut.size, _GATHERED):
            which = cut[start : start + _GATHERED]
            terms = self.terms(t, outputs.part(which), units[which])
            # Integers below 2^(F + 2): a product with ones adds them exactly.
            sums[which] = np.matmul(np.trunc(terms, out=terms), ones) + whole_c[which]
        total.reshape(-1)[outputs.flat] = sums * power_of_two(exponent - self.align_bits)

    def _may_leave_range(self, c: NDArray[np.float64]) -> bool:
        """Whether a partial result could be subnormal and inexact, or overflow."""
        a, b, accumulator = self.a, self.b, self.model.accumulator
        low = int((a.low.min(axis=(1, 2)) + b.low.min(axis=(1, 2))).min())
        terms = a.values.shape[0] * a.values.shape[3]
        high = int((a.top.max(axis=(1, 2)) + b.top.max(axis=(1, 2))).max()) + 2 + terms.bit_length()
        if low < accumulator.emin - self.model.result_bits or high >= accumulator.emax:
            return True
        return not (np.abs(c) < 2.0 ** (accumulator.emax - 1)).all()
