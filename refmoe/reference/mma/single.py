"""Many single instructions at once, fast: one fused block for each of a batch of small operands.

The way is that of `fused`, arranged for thousands of 16 x 8 outputs rather than for long chains: one batched float64
matrix product on unscaled values, which is exact unless a term is truncated, and the few outputs in which one could be
are added up term by term. Whether one could be is decided twice, from bounds that cost nothing (the format's lowest
bit), and where these do not suffice from the operands (the lowest bit set in a row).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from refmoe.formats import E8M0, FP32, Format
from refmoe.reference.mma.models import AccumulationModel
from refmoe.reference.mma.operands import ABSENT, power_of_two, scale_values, table

__all__ = ["fused_instructions"]

_GATHERED = 4096
_FRACTION = np.uint32((1 << FP32.mantissa_bits) - 1)


@dataclass(frozen=True)
class Side:
    """One operand of all instructions.

    Attributes:
        codes: unsigned integers [B, R, L].
        format: what a code means.
        scales: uint8 [B, R] E8M0, or None.
    """

    codes: NDArray[np.unsignedinteger[Any]]
    format: Format
    scales: NDArray[np.uint8] | None

    def shift(self) -> NDArray[np.int32]:
        """The exponent of each scale [B, R]."""
        if self.scales is None:
            return np.zeros(self.codes.shape[:2], np.int32)
        return self.scales.astype(np.int32) - E8M0.bias

    def index(self) -> NDArray[np.unsignedinteger[Any]]:
        """Codes without unused low bits [B, R, L]."""
        unused = self.format.unused_low_bits
        return np.asarray(self.codes >> unused, self.codes.dtype) if unused else self.codes

    def top(self) -> NDArray[np.int32]:
        """The largest exponent of each row [B, R], scales left out; of a zero, its format's least."""
        fmt = self.format
        index = self.index()
        mask = index.dtype.type((1 << (fmt.bits - fmt.unused_low_bits - 1)) - 1)
        field = _by_element(index & mask).max(axis=0) >> index.dtype.type(fmt.mantissa_bits)
        top = np.maximum(field, 1).astype(np.int32) - np.int32(fmt.bias)
        return np.asarray(top.reshape(self.codes.shape[:2]))

    def low(self) -> NDArray[np.int32]:
        """The exponent of the lowest bit set in each row [B, R], scales left out."""
        low = table(self.format).low[_by_element(self.index())].min(axis=0)
        return np.asarray(low.astype(np.int32).reshape(self.codes.shape[:2]))

    def lowest(self) -> int:
        """The exponent of the lowest bit that a value of the format can have."""
        return self.format.emin - self.format.mantissa_bits

    def rows(
        self, batch: NDArray[np.intp], row: NDArray[np.intp]
    ) -> tuple[NDArray[np.float64], NDArray[np.int32], NDArray[np.float64], NDArray[np.int32]]:
        """The rows of some outputs: values and exponents [n, L], values and exponents of the scales [n, 1]."""
        look_up, index = table(self.format), self.index()[batch, row]
        scales = np.full((batch.size, 1), E8M0.bias) if self.scales is None else self.scales[batch, row][:, None]
        return (
            look_up.value[index],
            look_up.exponent[index].astype(np.int32),
            scale_values()[scales],
            scales.astype(np.int32) - E8M0.bias,
        )


def _by_element(array: NDArray[np.unsignedinteger[Any]]) -> NDArray[np.unsignedinteger[Any]]:
    """[B, R, L] to [L, B * R]: reductions over whole vectors are many times faster than over short rows."""
    return np.ascontiguousarray(array.reshape(-1, array.shape[2]).T)


def fused_instructions(a: Side, b: Side, c: NDArray[np.float32], model: AccumulationModel) -> NDArray[np.float64]:
    """One block of each of B instructions onto c [B, M, N], as float64 that holds FP32 values; NaN is any NaN."""
    with np.errstate(invalid="ignore"):
        total = np.matmul(table(a.format).value[a.index()], table(b.format).value[b.index()].transpose(0, 2, 1))
        for side, axis in ((a, 2), (b, 1)):
            if side.scales is not None:
                total *= np.expand_dims(scale_values()[side.scales], axis)
        total += c
        at = _maybe_truncated(a, b, c, model).nonzero()
        for start in range(0, at[0].size, _GATHERED):
            some = tuple(index[start : start + _GATHERED] for index in at)
            total[some] = _term_by_term(a, b, c, model, *some)
        return _truncated(total, model)


def _term_by_term(
    a: Side,
    b: Side,
    c: NDArray[np.float32],
    model: AccumulationModel,
    batch: NDArray[np.intp],
    row: NDArray[np.intp],
    column: NDArray[np.intp],
) -> NDArray[np.float64]:
    """The sums [n] of some outputs with every term truncated, before the last rounding."""
    assert model.align_bits is not None
    a_values, a_exponents, a_scale, a_shift = a.rows(batch, row)
    b_values, b_exponents, b_scale, b_shift = b.rows(batch, column)
    addend = c[batch, row, column].astype(np.float64)
    c_exponent = np.where(addend == 0, -ABSENT, np.maximum(np.frexp(addend)[1] - 1, FP32.emin))
    top = (a_exponents + b_exponents).max(axis=1) + (a_shift + b_shift)[:, 0]
    top = np.maximum(np.maximum(top, c_exponent), model.floor)
    units = power_of_two(model.align_bits - top)
    terms = a_values * b_values * a_scale * b_scale * units[:, None]
    sums = np.trunc(terms).sum(axis=1) + np.trunc(addend * units)
    return np.asarray(sums * power_of_two(top - model.align_bits))


def _truncated(total: NDArray[np.float64], model: AccumulationModel) -> NDArray[np.float64]:
    """`total` truncated toward zero to the model's result, in place; a zero becomes +0."""
    bits = total.view(np.int64)
    bits &= np.int64(-1 << (52 - model.result_bits))
    magnitude = np.abs(total)
    tiny = (magnitude < 2.0**FP32.emin) & (magnitude > 0)
    if tiny.any():
        unit = 2.0 ** (FP32.emin - model.result_bits)
        total[tiny] = np.trunc(total[tiny] / unit) * unit
    huge = magnitude >= 2.0 ** (FP32.emax + 1)
    if huge.any():
        total[huge] = np.copysign(np.inf, total[huge])
    return np.add(total, 0.0, out=total)


def _maybe_truncated(a: Side, b: Side, c: NDArray[np.float32], model: AccumulationModel) -> NDArray[np.bool_]:
    """Outputs in which a term could be truncated, all that are and few more."""
    bits = model.align_bits
    assert bits is not None
    a_shift, b_shift, a_top, b_top = a.shift(), b.shift(), a.top(), b.top()
    # C, because a product sets E.
    found = _lowest_bit(c) < _outer(a_top + a_shift - bits, b_top + b_shift)
    low, spread = a.lowest() + b.lowest(), int(a_top.max()) + int(b_top.max())
    magnitude = np.abs(c)
    least = max(FP32.emin, model.floor) - bits
    bound = _outer(a_shift + (low + bits + 1), b_shift)
    plain = spread - low <= bits and int(a_shift.min()) + int(b_shift.min()) + low >= least
    if plain and not (magnitude >= bound).any():
        return found
    # A product: because C sets E, because another product does, or because a subnormal C or the floor does.
    a_low, b_low = a.low() + a_shift, b.low() + b_shift
    found |= magnitude >= _outer(a_low + (bits + 1), b_low)
    found |= (a_top + a_shift - a_low)[:, :, None] + (b_top + b_shift - b_low)[:, None, :] > bits
    found |= a_low[:, :, None] + b_low[:, None, :] < least
    return found


def _outer(a: NDArray[np.int32], b: NDArray[np.int32]) -> NDArray[np.float64]:
    """2^(a + b) of each row and column: [B, M], [B, N] to [B, M, N]."""
    return power_of_two(a)[:, :, None] * power_of_two(b)[:, None, :]


def _lowest_bit(c: NDArray[np.float32]) -> NDArray[np.float32]:
    """The value of the lowest bit set in each number, infinity for a zero."""
    magnitude = c.view(np.uint32) & np.uint32(0x7FFFFFFF)
    without = (magnitude & (magnitude - np.uint32(1))).view(np.float32)
    value = magnitude.view(np.float32)
    # A power of two has no fraction to take the bit from.
    low: NDArray[np.float32] = np.where(magnitude & _FRACTION, value - without, value)
    low[magnitude == 0] = np.inf
    return low
