"""How far a model's result can be from the exact sum: a running bound and one known beforehand.

x is the exact C + sum of a b, G = |C| + sum |a||b|, scales included; T blocks of L products each. Truncation never
enlarges a magnitude, so no partial result of a truncating chain exceeds G. Every bound is computed in float64 and
then enlarged by 2^-30 of itself, far more than its own rounding. Where the accumulators overflow, or an operand is
not finite, the bound is infinite: nothing is promised there.

Of grouped blocks a term is a group of products, whose sum is exact: a block cuts at most its groups and C. Their
alignment comes from the scales alone. A term that is not zero is at least 2^-2 in its elements, whose products are
quarters, and 2^-s in its two significands, s the leading zeros of subnormal scales: 2^E is at most 2^(2 + s) times it.
"""

from __future__ import annotations

import itertools
from typing import Any

import numpy as np
from numpy.typing import NDArray

from refmoe.errors import ArgumentError, describe
from refmoe.formats import FP32, Format
from refmoe.reference.mma.alignment import Outputs
from refmoe.reference.mma.exact import exact_sums
from refmoe.reference.mma.fma import fma_steps
from refmoe.reference.mma.fused import FusedChain, widened_blocks
from refmoe.reference.mma.grouped import add_block, align_block, grouped_terms
from refmoe.reference.mma.models import ELEMENT_FORMATS, AccumulationModel, Kind, as_model
from refmoe.reference.mma.native import native_cuts
from refmoe.reference.mma.operands import ABSENT, Operand, scale_values, table
from refmoe.reference.mma.product import checked_operands

Codes = NDArray[np.unsignedinteger[Any]]

_ENLARGED = 1 + 2.0**-30
_HALF_ULP = 2.0 ** -(FP32.mantissa_bits + 1)
_HALF_SUBNORMAL = 2.0 ** (FP32.emin - FP32.mantissa_bits - 1)
_OUTPUTS_A_TILE = 8192
_COLUMNS_A_TILE = 128
_QUARTER = 2  # E2M1 products are multiples of 2^-2


def running_bound(
    a: Codes,
    b: Codes,
    c: NDArray[np.float32],
    *,
    model: AccumulationModel | str,
    a_format: str,
    b_format: str,
    a_scales: NDArray[np.uint8] | None = None,
    b_scales: NDArray[np.uint8] | None = None,
) -> NDArray[np.float64]:
    """The bound on |D - x| that follows the chain.

    A fused block adds n 2^(E - F) + 2^-m |C_t| + 2^(emin - m): n terms that were inexact, C among them, each by less
    than a unit of the alignment, and the truncated or rounded result C_t; emin is the accumulators'. An addition or
    FMA rounded to nearest adds half an ulp of its result.

    Args and errors are those of `tensor_core_mma`; returns float64 [..., M, N].
    """
    model = as_model(model)
    x, y, z = checked_operands(a, b, c, model, a_format, b_format, a_scales, b_scales)
    block = model.pair(a_format, b_format).block
    bound = np.empty(z.shape, np.float64)
    # Not more outputs at a time than fit the cache, term by term; NumPy's loops are over the columns.
    width = max(1, min(z.shape[2], _COLUMNS_A_TILE))
    height = max(1, min(z.shape[1], _OUTPUTS_A_TILE // width))
    deep = max(1, _OUTPUTS_A_TILE // (width * height))
    for first, top, left in itertools.product(*map(range, (0, 0, 0), z.shape, (deep, height, width))):
        product, rows, columns = slice(first, first + deep), slice(top, top + height), slice(left, left + width)
        with np.errstate(invalid="ignore", over="ignore", under="ignore"):
            bound[product, rows, columns] = _running(
                x.part(product, rows), y.part(product, columns), z[product, rows, columns], model, block
            )
    return _enlarged(bound.reshape(c.shape))


def a_priori_bound(
    a: Codes,
    b: Codes,
    c: NDArray[np.float32],
    *,
    model: AccumulationModel | str,
    a_format: str,
    b_format: str,
    a_scales: NDArray[np.uint8] | None = None,
    b_scales: NDArray[np.uint8] | None = None,
) -> NDArray[np.float64]:
    """The bound on |D - x| that needs no more of the operands than G and how subnormal they are.

    Fused chains: T ((L + 1) 2^(s - F) + 2^-m) G + T ((L + 1) 2^(emin - F) + 2^(emin - m)), with s the leading zeros of
    the most subnormal operands of both sides: a product that sets E is at least 2^(E - s). Grouped chains: the same
    with the groups of a block for L, and 2 + the leading zeros of the scales for s. Where results are rounded to
    nearest a partial result can exceed G, and G here is (G + T 2^(emin - m)) (1 + 2^-m)^T. Chains rounded to nearest:
    gamma_n G + n 2^-150, gamma_n = n u / (1 - n u), u = 2^-24 (Higham, Accuracy and Stability, section 3.1).

    Args and errors are those of `tensor_core_mma`; returns float64 [..., M, N].
    """
    model = as_model(model)
    total = magnitude_sum(
        a, b, c, a_format=a_format, b_format=b_format, a_scales=a_scales, b_scales=b_scales, model=model
    )
    pair = model.pair(a_format, b_format)
    k = a.shape[-1]
    if model.kind is Kind.EXACT:
        factor, constant = _HALF_ULP, _HALF_SUBNORMAL
    elif model.kind is Kind.FMA:
        factor, constant = _gamma(k), k * _HALF_SUBNORMAL
    else:
        assert model.align_bits is not None
        steps, emin, bits = k // pair.block, model.accumulator.emin, model.result_bits
        if model.group is not None:
            assert model.scaling is not None
            subnormal = [_scale_zeros(scales, model.scaling.scale) for scales in (a_scales, b_scales)]
            zeros, addends = _QUARTER + sum(subnormal), pair.block // model.group + 1
        else:
            zeros, addends = _leading_zeros(a, a_format) + _leading_zeros(b, b_format), pair.block + 1
        factor = steps * (addends * 2.0 ** (zeros - model.align_bits) + 2.0**-bits)
        constant = steps * (addends * 2.0 ** (emin - model.align_bits) + 2.0 ** (emin - bits))
        if model.to_nearest:
            factor *= (1 + 2.0**-bits) ** steps
            constant += factor * steps * 2.0 ** (emin - bits)
        if model.kind is Kind.UNPACKED:
            additions = k // model.instruction_k(a_format, b_format)
            factor = factor * (1 + _gamma(additions)) + _gamma(additions)
            constant *= 1 + _gamma(additions)
    with np.errstate(invalid="ignore", over="ignore"):
        bound = factor * total + constant
        # Rounded to nearest, some sums below 2^(emax + 1) overflow too.
        largest = float(model.accumulator.max) if model.to_nearest else 2.0 ** (model.accumulator.emax + 1)
        bound[~(total + bound < largest)] = np.inf
    return _enlarged(bound)


def exact_sum(
    a: Codes,
    b: Codes,
    c: NDArray[np.float32],
    *,
    a_format: str,
    b_format: str,
    a_scales: NDArray[np.uint8] | None = None,
    b_scales: NDArray[np.uint8] | None = None,
    model: AccumulationModel | str = "exact",
) -> NDArray[np.float64]:
    """x as float64 [..., M, N], rounded to odd: within 2^-52 |x|, and as good as x to be rounded to anything shorter.

    `model` only decides what is refused, and what a scale means. Args and errors are those of `tensor_core_mma`.
    """
    x, y, z = checked_operands(a, b, c, as_model(model), a_format, b_format, a_scales, b_scales)
    return exact_sums(x, y, z).reshape(c.shape)


def magnitude_sum(
    a: Codes,
    b: Codes,
    c: NDArray[np.float32],
    *,
    a_format: str,
    b_format: str,
    a_scales: NDArray[np.uint8] | None = None,
    b_scales: NDArray[np.uint8] | None = None,
    model: AccumulationModel | str = "exact",
) -> NDArray[np.float64]:
    """G as float64 [..., M, N], within 2^-52 of itself; `model` is as in `exact_sum`.

    Args and errors are those of `tensor_core_mma`.
    """
    x, y, z = checked_operands(a, b, c, as_model(model), a_format, b_format, a_scales, b_scales)
    return exact_sums(x, y, z, magnitudes=True).reshape(c.shape)


def split_k_bound(bounds: NDArray[np.float64], magnitudes: NDArray[np.float64]) -> NDArray[np.float64]:
    """The bound of `split_k_sum`: the parts' bounds [S, ...] added, and the S - 1 additions to nearest.

    Args:
        bounds: float64 [S, ...], of the parts.
        magnitudes: float64 [...], G of the whole sum.

    Raises:
        ArgumentError: the shapes do not belong together.
    """
    if bounds.ndim == 0 or bounds.shape[0] == 0 or bounds.shape[1:] != magnitudes.shape:
        raise ArgumentError("bounds", describe(bounds), f"float64 [S, ...] over magnitudes {list(magnitudes.shape)}")
    additions = bounds.shape[0] - 1
    parts = bounds.sum(axis=0)
    # What is added is at most G and the parts' errors.
    return _enlarged(parts + _gamma(additions) * (magnitudes + parts) + additions * _HALF_SUBNORMAL)


def output_bound(bound: NDArray[np.float64], values: NDArray[np.float32], fmt: Format) -> NDArray[np.float64]:
    """The bound after `values`, float32, were rounded to nearest in a shorter format: half an ulp more.

    Half an ulp is at most 2^-(p + 1) of the value, p the fraction bits, or half the smallest subnormal; for BF16
    2^-8 and 2^-134.
    """
    half_ulp = np.maximum(
        2.0 ** -(fmt.mantissa_bits + 1) * np.abs(values.astype(np.float64)),
        2.0 ** (fmt.emin - fmt.mantissa_bits - 1),
    )
    return _enlarged(np.where(np.abs(values) > float(fmt.max), np.inf, bound + half_ulp))


def within_bound(
    values: NDArray[np.generic], exact: NDArray[np.float64], bound: NDArray[np.float64]
) -> NDArray[np.bool_]:
    """Whether each value lies within `bound` of the exact sum, as `exact_sum` gives it.

    A value that is not finite has to be the exact sum's own; where the bound is infinite everything finite is within.
    """
    found = values.astype(np.float64)
    with np.errstate(invalid="ignore"):
        near = np.abs(found - exact) <= bound + 2.0**-52 * np.abs(exact)
    same = (found == exact) | (np.isnan(found) & np.isnan(exact))
    return np.asarray(np.where(np.isfinite(exact) & np.isfinite(bound), near, same | np.isinf(bound)))


def _running(
    a: Operand, b: Operand, c: NDArray[np.float32], model: AccumulationModel, block: int
) -> NDArray[np.float64]:
    if model.kind is Kind.EXACT:
        return _half_ulp(exact_sums(a, b, c).astype(np.float32))
    if model.kind is Kind.FMA:
        bound = np.zeros(c.shape)
        for acc in fma_steps(a, b, c):
            bound += _half_ulp(acc)
        return bound
    if model.kind is Kind.FUSED:
        return _running_fused(a, b, c, model, block)[1]
    if model.kind is Kind.GROUPED:
        return _running_grouped(a, b, c, model, block)
    bound, acc = np.zeros(c.shape), c
    for x, y in widened_blocks(a, b, model):
        partial, of_partial = _running_fused(x, y, np.zeros_like(acc), model, block)
        acc = acc + partial.astype(np.float32)
        bound += of_partial + _half_ulp(acc)
    return bound


def _running_fused(
    a: Operand, b: Operand, c: NDArray[np.float32], model: AccumulationModel, block: int
) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """The result of a fused chain, term by term, and its bound."""
    chain = FusedChain(a.blocks(block), b.blocks(block), model)
    outputs = Outputs.at(np.arange(c.size), c.shape)
    acc, bound = c.astype(np.float64).reshape(-1), np.zeros(c.size)
    for t in range(chain.a.values.shape[0]):
        exponent = chain.alignment(t, outputs, acc)
        units = np.ldexp(1.0, chain.align_bits - exponent)
        total = np.trunc(c_units := acc * units)
        inexact = (total != c_units).astype(np.int64)
        _add_whole_products(chain, t, units, total, inexact)
        unit = np.ldexp(1.0, exponent - chain.align_bits)
        acc = chain.rounded(total * unit) + 0.0
        smallest = 2.0 ** (model.accumulator.emin - model.result_bits)
        bound += inexact * unit + 2.0**-model.result_bits * np.abs(acc) + smallest
    return acc.reshape(c.shape), bound.reshape(c.shape)


def _add_whole_products(
    chain: FusedChain, t: int, units: NDArray[np.float64], total: NDArray[np.float64], inexact: NDArray[np.int64]
) -> None:
    """Add the products of block `t` in `units` [n], each truncated, to `total` [n], and how many were cut to `inexact`.

    Sums of integers, in any order: none of them rounds.
    """
    a, b = chain.a.values[t], chain.b.values[t]
    shape = a.shape[0], a.shape[1] * b.shape[1]
    for x, y, in_units, of_total, of_cuts in zip(
        a, b, *(each.reshape(shape) for each in (units, total, inexact)), strict=True
    ):
        place = in_units.reshape(x.shape[0], y.shape[0])
        sums, cuts = native_cuts(x, y, place) or _cut_products(x, y, place)
        of_total += sums.reshape(-1)
        of_cuts += cuts.reshape(-1)


def _cut_products(
    a: NDArray[np.float64], b: NDArray[np.float64], units: NDArray[np.float64]
) -> tuple[NDArray[np.float64], NDArray[np.int64]]:
    """Sums over K of a [M, K] * b [N, K] * units [M, N], each truncated, and how many of them were no integers.

    One product of all outputs at a time: what is read and written stays in the cache.
    """
    total, cuts = np.zeros(units.shape), np.zeros(units.shape, np.int64)
    product, whole, cut = np.empty(units.shape), np.empty(units.shape), np.empty(units.shape, bool)
    for column, row in zip(a.T, np.ascontiguousarray(b.T), strict=True):
        np.multiply(column[:, None], row, out=product)
        product *= units
        np.trunc(product, out=whole)
        np.not_equal(whole, product, out=cut)
        cuts += cut
        total += whole
    return total, cuts


def _running_grouped(
    a: Operand, b: Operand, c: NDArray[np.float32], model: AccumulationModel, block: int
) -> NDArray[np.float64]:
    acc, bound = c.astype(np.float64), np.zeros(c.shape)
    smallest = 2.0 ** (model.accumulator.emin - model.result_bits)
    for significands, exponents in grouped_terms(a, b, model, block):
        terms, c_units, unit = align_block(significands, exponents, acc, model)
        inexact = (np.trunc(terms) != terms).sum(axis=0) + (np.trunc(c_units) != c_units)
        acc = add_block(significands, exponents, acc, model)
        bound += inexact * unit + 2.0**-model.result_bits * np.abs(acc) + smallest
    return bound


def _half_ulp(values: NDArray[np.float32]) -> NDArray[np.float64]:
    """At least half an ulp of values that were rounded to FP32."""
    return np.asarray(_HALF_ULP * np.abs(values.astype(np.float64)) + _HALF_SUBNORMAL)


def _gamma(roundings: int) -> float:
    return roundings * _HALF_ULP / (1 - roundings * _HALF_ULP)


def _leading_zeros(codes: Codes, name: str) -> int:
    """How many bits the leading bit of the smallest element lies below its exponent."""
    operand = Operand(codes.reshape(1, -1, codes.shape[-1]), ELEMENT_FORMATS[name], None)
    look_up = table(operand.format)
    leading = np.frexp(look_up.value)[1] - 1
    zeros = np.where(look_up.exponent == -ABSENT, 0, look_up.exponent - leading)
    return int(zeros[operand.indices()].max(initial=0))


def _scale_zeros(scales: NDArray[np.uint8] | None, fmt: Format) -> int:
    """Likewise of the smallest scale that is not zero; E8M0 has no subnormal."""
    assert scales is not None
    values = scale_values(fmt)[scales]
    leading = np.frexp(values[values > 0])[1] - 1
    return max(0, fmt.emin - int(leading.min(initial=fmt.emin)))


def _enlarged(bound: NDArray[np.float64]) -> NDArray[np.float64]:
    """Rounded up; what is not a number promises nothing."""
    return np.asarray(np.where(np.isnan(bound), np.inf, bound * _ENLARGED))
