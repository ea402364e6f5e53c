"""The bounds hold for every model, against the exact sum in rationals, and are small enough to fail."""

from __future__ import annotations

from fractions import Fraction

import numpy as np
import pytest
from support.selection.thinned import thinned
from support.tensor_cores.mma_operands import (
    CASES,
    DEFINED,
    Product,
    accumulators,
    every_code,
    finite_codes,
    near_codes,
)

from refmoe.errors import ArgumentError
from refmoe.formats import BF16, E8M0, FP16
from refmoe.reference.mma import (
    ELEMENT_FORMATS,
    MODELS,
    a_priori_bound,
    exact_sum,
    magnitude_sum,
    output_bound,
    running_bound,
    split_k_bound,
    split_k_sum,
    tensor_core_mma,
    within_bound,
)
from refmoe.reference.mma.bounds import _running_fused
from refmoe.reference.mma.fused import fused_chain
from refmoe.reference.mma.operands import Operand

FILLS = {
    "any number": finite_codes,
    "around 1": lambda rng, name, shape: near_codes(rng, name, shape, 3),
    "wide": lambda rng, name, shape: near_codes(rng, name, shape, 9),
}
BOUNDS = {"running": running_bound, "a priori": a_priori_bound}


def bound_of(bound, product, model):
    return bound(product.a, product.b, product.c, model=model, **product.options)


def rationals(product, magnitudes=False):
    """x, or G, of every output."""

    def values(codes, name, scales):
        fmt = ELEMENT_FORMATS[name]
        rows = [[fmt.decode(code) for code in row] for row in codes.tolist()]
        if scales is None:
            return rows
        return [
            [x * E8M0.decode(scale[k // 32]) for k, x in enumerate(row)]
            for row, scale in zip(rows, scales.tolist(), strict=True)
        ]

    a = values(product.a, product.a_format, product.a_scales)
    b = values(product.b, product.b_format, product.b_scales)
    size = abs if magnitudes else Fraction
    return [
        [
            size(Fraction(float(product.c[m, n]))) + sum(size(x * y) for x, y in zip(row, column, strict=True))
            for n, column in enumerate(b)
        ]
        for m, row in enumerate(a)
    ]


def sample(rng, fill, model, a_format, b_format, scaled=False):
    k = MODELS[model].instruction_k(a_format, b_format)
    k = 64 if k == 1 else 4 * k
    a, b = FILLS[fill](rng, a_format, (4, k)), FILLS[fill](rng, b_format, (5, k))
    scales = [rng.integers(117, 137, (rows, k // 32)).astype(np.uint8) if scaled else None for rows in (4, 5)]
    return Product(a, b, accumulators(rng, (4, 5), -8, 8), a_format, b_format, *scales)


@pytest.mark.parametrize("fill", thinned(FILLS, 4))
@pytest.mark.parametrize(("model", "a_format", "b_format"), thinned(CASES + DEFINED, 2))
def test_no_result_leaves_its_bounds(model, a_format, b_format, fill):
    rng = np.random.default_rng(31)
    for scaled in {False, MODELS[model].scaled}:
        product = sample(rng, fill, model, a_format, b_format, scaled)
        found = product.fast(model).view(np.float32)
        exact = rationals(product)
        for bound in BOUNDS.values():
            allowed = bound_of(bound, product, model)
            for at in np.ndindex(found.shape):
                if np.isfinite(found[at]) and np.isfinite(allowed[at]):
                    assert abs(Fraction(float(found[at])) - exact[at[0]][at[1]]) <= Fraction(float(allowed[at]))
                else:
                    assert np.isinf(allowed[at])


@pytest.mark.parametrize("model", ["sm120", "sm90_wgmma_fp8", "fp32", "exact"])
def test_the_running_bound_is_the_smaller(model):
    rng = np.random.default_rng(32)
    product = sample(rng, "around 1", model, "e4m3", "e4m3")
    assert (bound_of(running_bound, product, model) <= bound_of(a_priori_bound, product, model)).all()


@pytest.mark.parametrize(
    ("model", "closest"), [("sm120", 0.1), ("sm90_wgmma_fp8", 0.1), ("fp32", 0.05), ("exact", 0.5)]
)
def test_the_running_bound_is_not_vacuous(model, closest):
    """Some error takes up a good part of it, and one block of eight left out is seen nearly everywhere."""
    rng = np.random.default_rng(33)
    a, b = near_codes(rng, "e4m3", (16, 256), 9), near_codes(rng, "e4m3", (64, 256), 9)
    product = Product(a, b, rng.standard_normal((16, 64)).astype(np.float32), "e4m3", "e4m3")
    exact, bound = exact_sum(a, b, product.c, **product.options), bound_of(running_bound, product, model)
    found = product.fast(model).view(np.float32)
    assert within_bound(found, exact, bound).all()
    assert (np.abs(found - exact) / bound).max() > closest
    dropped = a.copy()
    dropped[:, 96:128] = 0
    wrong = product.of(a=dropped).fast(model).view(np.float32)
    assert within_bound(wrong, exact, bound).mean() < 0.1


def test_a_chain_under_another_model_leaves_the_bound():
    """Hopper's 14 bits are outside what 24 bits promise: the bound tells the two accumulators apart."""
    rng = np.random.default_rng(34)
    a, b = near_codes(rng, "e4m3", (16, 256), 3), near_codes(rng, "e4m3", (16, 256), 3)
    product = Product(a, b, np.zeros((16, 16), np.float32), "e4m3", "e4m3")
    exact, bound = exact_sum(a, b, product.c, **product.options), bound_of(running_bound, product, "sm120")
    assert within_bound(product.fast("sm120").view(np.float32), exact, bound).all()
    assert within_bound(product.fast("sm90_wgmma_fp8").view(np.float32), exact, bound).mean() < 0.05


def test_positive_data_is_never_above_the_exact_sum():
    rng = np.random.default_rng(35)
    a, b = finite_codes(rng, "e4m3", (8, 128)) & 0x7F, finite_codes(rng, "e2m1", (8, 128)) & 7
    product = Product(a, b, np.zeros((8, 8), np.float32), "e4m3", "e2m1")
    assert (product.fast("sm120").view(np.float32) <= exact_sum(a, b, product.c, **product.options)).all()


@pytest.mark.parametrize(("model", "a_format", "b_format"), [case for case in CASES if case[0] != "sm90_mma_fp8"])
def test_the_bound_follows_the_chain_itself(model, a_format, b_format):
    """What the running bound takes for the chain's partial results is the chain: its last one is the result."""
    rng = np.random.default_rng(36)
    product = sample(rng, "any number", model, a_format, b_format)
    block = MODELS[model].pair(a_format, b_format).block
    a = Operand(product.a[None], ELEMENT_FORMATS[a_format], None)
    b, c = Operand(product.b[None], ELEMENT_FORMATS[b_format], None), product.c[None]
    with np.errstate(all="ignore"):
        last = _running_fused(a, b, c, MODELS[model], block)[0]
    assert (last.view(np.uint64) == fused_chain(a, b, c, MODELS[model], block).view(np.uint64)).all()


@pytest.mark.parametrize("spread", [0, 3, 100])
def test_exact_and_magnitude_sums(spread):
    """Without scales and accumulators one matrix product is exact."""
    rng = np.random.default_rng(37)
    a, b = finite_codes(rng, "e4m3", (3, 64)), finite_codes(rng, "e2m1", (4, 64))
    scales = [rng.integers(127 - spread, 127 + spread, (rows, 2)).astype(np.uint8) for rows in (3, 4) if spread]
    c = accumulators(rng, (3, 4), -5, 5) if spread else np.zeros((3, 4), np.float32)
    product = Product(a, b, c, "e4m3", "e2m1", *(scales or (None, None)))
    for found, wanted in (
        (exact_sum(a, b, product.c, **product.options), rationals(product)),
        (magnitude_sum(a, b, product.c, **product.options), rationals(product, magnitudes=True)),
    ):
        for at in np.ndindex(found.shape):
            value, x = Fraction(float(found[at])), wanted[at[0]][at[1]]
            assert abs(value - x) <= abs(x) * Fraction(1, 2**52)
            # Rounded to odd: inexact only where the last bit is 1.
            assert value == x or int(found[at].view(np.uint64)) & 1


def test_where_nothing_is_promised_the_bound_is_infinite():
    rng = np.random.default_rng(38)
    for fill in (every_code, finite_codes):
        a, b = fill(rng, "e5m2", (4, 64)), fill(rng, "e5m2", (4, 64))
        c = np.full((4, 4), 3e38, np.float32)
        scales = np.full((4, 2), 200, np.uint8)
        product = Product(a, b, c, "e5m2", "e5m2", scales, scales)
        for model in ("sm120", "fp32", "exact"):
            found = product.fast(model).view(np.float32)
            for bound in BOUNDS.values():
                assert np.isinf(bound_of(bound, product, model)[~np.isfinite(found)]).all()


def test_split_k_bound():
    rng = np.random.default_rng(39)
    a, b = near_codes(rng, "e4m3", (8, 256), 3), near_codes(rng, "e2m1", (8, 256), 1)
    zeros = np.zeros((8, 8), np.float32)
    options = {"model": "sm120", "a_format": "e4m3", "b_format": "e2m1"}
    parts = [(a[:, k : k + 64], b[:, k : k + 64], zeros) for k in range(0, 256, 64)]
    found = split_k_sum(np.stack([tensor_core_mma(*part, **options) for part in parts]))
    formats = {"a_format": "e4m3", "b_format": "e2m1"}
    bound = split_k_bound(
        np.stack([running_bound(*part, **options) for part in parts]), magnitude_sum(a, b, zeros, **formats)
    )
    assert within_bound(found, exact_sum(a, b, zeros, **formats), bound).all()
    # Where all parts are exact what is left is the additions': nothing for one part.
    assert (split_k_bound(np.zeros((1, 3)), np.ones(3)) == 0).all()
    assert (split_k_bound(np.zeros((3, 3)), np.ones(3)) >= 2 * 2.0**-24).all()
    with pytest.raises(ArgumentError, match="bounds"):
        split_k_bound(np.zeros((2, 4)), np.ones(3))


@pytest.mark.parametrize(("fmt", "ulp", "smallest"), [(BF16, 2.0**-7, 2.0**-133), (FP16, 2.0**-10, 2.0**-24)])
def test_output_bound_is_half_an_ulp(fmt, ulp, smallest):
    values = np.array([1.0, -4.0, 0.0, 3.4e38], np.float32)
    found = output_bound(np.zeros(4), values, fmt)
    assert found[0] >= ulp / 2 > found[0] / 2
    assert found[1] >= 2 * ulp > found[1] / 2
    assert found[2] >= smallest / 2 > found[2] / 2
    assert np.isinf(found[3])


def test_within_bound_of_what_is_not_finite():
    nan, inf = np.nan, np.inf
    values = np.array([nan, inf, inf, -inf, 1.0, inf, nan], np.float32)
    exact = np.array([nan, inf, -inf, 1e39, nan, 1e39, 1.0])
    bound = np.array([1.0, 1.0, 1.0, inf, 1.0, 1.0, 1.0])
    assert within_bound(values, exact, bound).tolist() == [True, True, False, True, False, False, False]
