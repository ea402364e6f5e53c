"""Grouped blocks: groups of K with their scales, each summed exactly, then aligned once; all of it exact in float64."""

from __future__ import annotations

from collections.abc import Iterator
from functools import cache

import numpy as np
from numpy.typing import NDArray

from refmoe.formats import FP32, Format
from refmoe.reference.chunks import chunks, for_each_chunk
from refmoe.reference.mma.models import AccumulationModel
from refmoe.reference.mma.operands import ABSENT, Operand, power_of_two, scale_codes, table

_OUTPUTS_A_PIECE = 1 << 15


def grouped_chain(
    a: Operand, b: Operand, c: NDArray[np.float32], model: AccumulationModel, block: int
) -> NDArray[np.float64]:
    """The chains of P products [M, K] x [N, K] onto c [P, M, N], as float64 that holds FP32 values; NaN is any NaN.

    Operands are E2M1 with scales [P, M, K/block] and [P, N, K/block], as the model's `scaling` has them.
    """
    with np.errstate(invalid="ignore"):
        out = c.astype(np.float64)
    if not out.size:
        return out
    tiles = list(_tiles(*c.shape))

    def run(first: int, last: int) -> None:
        for products, rows in tiles[first:last]:
            acc = out[products, rows]
            for significands, exponents in grouped_terms(a.part(products, rows), b.part(products), model, block):
                acc = add_block(significands, exponents, acc, model)
            out[products, rows] = acc

    for_each_chunk(run, len(tiles), 1)
    return out


def _tiles(products: int, rows: int, columns: int) -> Iterator[tuple[slice, slice]]:
    """Products and rows of about as many outputs as fit the cache: several small products, or rows of one."""
    together, height = max(1, _OUTPUTS_A_PIECE // (rows * columns)), max(1, _OUTPUTS_A_PIECE // columns)
    for product in chunks(products, together):
        for row in chunks(rows, height):
            yield product, row


def grouped_terms(
    a: Operand, b: Operand, model: AccumulationModel, block: int
) -> Iterator[tuple[NDArray[np.float64], NDArray[np.int64]]]:
    """The terms significand * 2^exponent [groups, P, M, N] of each block of P products, k ascending."""
    assert model.group is not None
    (x, x_scale, x_exponent), (y, y_scale, y_exponent) = (_grouped(operand, model.group) for operand in (a, b))
    groups = block // model.group
    for start in range(0, x.shape[0], groups):
        part = slice(start, start + groups)
        # Of a group of 16, a sum is below 2^12 quarters and a significand below 2^4 eighths: below 2^20 units.
        sums = np.matmul(x[part], y[part].swapaxes(2, 3))
        significands = sums * x_scale[part, ..., None] * y_scale[part, :, None, :]
        yield significands, x_exponent[part, ..., None] + y_exponent[part, :, None, :]


def _grouped(operand: Operand, group: int) -> tuple[NDArray[np.float64], NDArray[np.float64], NDArray[np.int64]]:
    """The elements [K/group, P, R, group], and the significands and exponents of their scales [K/group, P, R]."""
    assert operand.scales is not None
    products, rows, _ = operand.codes.shape
    scales = np.repeat(operand.scales.transpose(2, 0, 1), operand.scaling.block // group, axis=0)
    codes = operand.codes.reshape(products, rows, -1, group).transpose(2, 0, 1, 3)
    significand, exponent = _scale_parts(operand.scaling.scale)
    return np.take(table(operand.format).value, codes), significand[scales], exponent[scales]


@cache
def _scale_parts(fmt: Format) -> tuple[NDArray[np.float64], NDArray[np.int64]]:
    """The significand and the exponent of each byte as a scale: a subnormal keeps its leading zeros."""
    codes = scale_codes(fmt).astype(np.int64)
    field = codes >> fmt.mantissa_bits
    fraction = (codes % (1 << fmt.mantissa_bits)) / (1 << fmt.mantissa_bits)
    least = 1 if fmt.subnormals else 0
    significand = fraction + (field >= least)
    significand[codes == fmt.nan_code] = np.nan
    return significand, np.maximum(field, least) - fmt.bias


def add_block(
    significands: NDArray[np.float64],
    exponents: NDArray[np.int64],
    acc: NDArray[np.float64],
    model: AccumulationModel,
) -> NDArray[np.float64]:
    """One block: the terms significands * 2^exponents [groups, P, M, N] onto acc [P, M, N]."""
    terms, c, unit = align_block(significands, exponents, acc, model)
    with np.errstate(invalid="ignore"):
        return _truncated((np.trunc(terms).sum(axis=0) + np.trunc(c)) * unit, model.result_bits)


def align_block(
    significands: NDArray[np.float64],
    exponents: NDArray[np.int64],
    acc: NDArray[np.float64],
    model: AccumulationModel,
) -> tuple[NDArray[np.float64], NDArray[np.float64], NDArray[np.float64]]:
    """The terms and C in units of their alignment, still with what it cuts, and the unit [P, M, N]."""
    assert model.align_bits is not None
    c_exponent = np.where(acc == 0, -ABSENT, np.maximum(np.frexp(acc)[1] - 1, FP32.emin))
    # Infinity and NaN have no exponent, and whatever they are aligned to they come out as they are.
    c_exponent[~np.isfinite(acc)] = -ABSENT
    largest = np.where(significands == 0, -ABSENT, exponents).max(axis=0)
    alignment = np.maximum(np.maximum(largest, c_exponent), model.floor)
    # Exact: FP32's range and 2^(F - E) stay far inside float64's, and each term is below 2^(F + 12) units: five of
    # them are below 2^53.
    units = power_of_two(model.align_bits - alignment)
    with np.errstate(invalid="ignore"):
        return significands * power_of_two(exponents) * units, acc * units, power_of_two(alignment - model.align_bits)


def _truncated(total: NDArray[np.float64], bits: int) -> NDArray[np.float64]:
    """Toward zero to FP32 with `bits` fraction bits: gradual underflow, infinity from 2^128, every zero +0."""
    unit = power_of_two(np.maximum(np.frexp(total)[1] - 1, FP32.emin) - bits)
    with np.errstate(invalid="ignore"):
        result = np.trunc(total / unit) * unit + 0.0
    result[np.isinf(total)] = total[np.isinf(total)]
    huge = np.abs(result) >= 2.0 ** (FP32.emax + 1)
    result[huge] = np.copysign(np.inf, result[huge])
    return np.asarray(result)
