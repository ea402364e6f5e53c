"""The fast chains against the specification, bit for bit."""

from __future__ import annotations

import numpy as np
import pytest
from support.selection.thinned import thinned
from support.tensor_cores.mma_operands import (
    CASES,
    DEFINED,
    Product,
    accumulators,
    code_dtype,
    every_code,
    finite_codes,
    near_codes,
)

from refmoe.formats import FP32
from refmoe.reference.mma import ELEMENT_FORMATS, MODELS, split_k_sum
from refmoe.reference.mma.alignment import Outputs
from refmoe.reference.mma.fused import FusedChain, fused_chain
from refmoe.reference.mma.operands import Operand, table
from refmoe.reference.scalar.mma import round_to_nearest
from refmoe.reference.scalar.numbers import Number, NumberKind

FILLS = {
    "every code": every_code,
    "any number": finite_codes,
    "around 1": lambda rng, name, shape: near_codes(rng, name, shape, 3),
    "wide": lambda rng, name, shape: near_codes(rng, name, shape, 9),
}


def operands(rng, fill, model, a_format, b_format, *, m=3, n=4):
    k = MODELS[model].instruction_k(a_format, b_format)
    k = 32 if k == 1 else 2 * k
    return FILLS[fill](rng, a_format, (m, k)), FILLS[fill](rng, b_format, (n, k))


@pytest.mark.parametrize("fill", thinned(FILLS, 2))
@pytest.mark.parametrize(("model", "a_format", "b_format"), [case for case in CASES if case[0] != "sm100"] + DEFINED)
def test_fast_equals_specification(model, a_format, b_format, fill):
    rng = np.random.default_rng(11)
    a, b = operands(rng, fill, model, a_format, b_format)
    for c in (accumulators(rng, (3, 4), -10, 10), every_code(rng, "tf32", (3, 4)).view(np.float32)):
        product = Product(a, b, c, a_format, b_format)
        assert (product.fast(model) == product.slow(model)).all()


def test_sm100_and_sm120_have_one_arithmetic():
    for a_format, b_format in MODELS["sm100"].pairs:
        rng = np.random.default_rng(12)
        a, b = every_code(rng, a_format, (8, 64)), finite_codes(rng, b_format, (8, 64))
        product = Product(a, b, accumulators(rng, (8, 8), -10, 10), a_format, b_format)
        assert (product.fast("sm100") == product.fast("sm120")).all()


@pytest.mark.parametrize("model", ["sm120", "exact", "fp32"])
def test_all_scale_bytes(model):
    """Each of the 256 bytes on either side: 0x00 is 2^-127, 0xFF is NaN even over zeros."""
    rng = np.random.default_rng(13)
    a, b = finite_codes(rng, "e4m3", (16, 32)), finite_codes(rng, "e2m1", (16, 32))
    every = rng.permutation(256).astype(np.uint8).reshape(16, 16)
    for row in every:
        a_scales, b_scales = row[:, None], rng.permutation(row)[:, None]
        c = accumulators(rng, (1, 1), -149, 127)
        for i in range(16):
            product = Product(a[i : i + 1], b[i : i + 1], c, "e4m3", "e2m1", a_scales[i : i + 1], b_scales[i : i + 1])
            assert product.fast(model) == product.slow(model), (a_scales[i], b_scales[i])
    zeros = Product(np.zeros((1, 32), np.uint8), b[:1], c, "e4m3", "e2m1", np.full((1, 1), 255, np.uint8))
    assert zeros.fast(model) == 0x7FFFFFFF


@pytest.mark.parametrize("spread", [2, 12, 60])
@pytest.mark.parametrize("model", ["sm120", "exact", "fp32"])
def test_scales_that_differ_from_block_to_block(model, spread):
    rng = np.random.default_rng(14)
    a, b = finite_codes(rng, "e4m3", (3, 128)), finite_codes(rng, "e2m1", (3, 128))
    scales = rng.integers(127 - spread, 128 + spread, (2, 3, 4)).astype(np.uint8)
    product = Product(a, b, accumulators(rng, (3, 3), -20, 20), "e4m3", "e2m1", scales[0], scales[1])
    assert (product.fast(model) == product.slow(model)).all()


def gaussian(rng, name, shape):
    """Codes nearest below normally distributed values, in the upper binades of the format."""
    fmt = ELEMENT_FORMATS[name]
    values = table(fmt).value
    order = np.argsort(values, kind="stable")
    order = order[np.isfinite(values[order])]
    index = np.searchsorted(values[order], rng.standard_normal(shape) * 2.0 ** min(fmt.emax - 1, 6), "right") - 1
    return (order[np.maximum(index, 0)] << fmt.unused_low_bits).astype(code_dtype(name))


@pytest.mark.parametrize(("model", "a_format", "b_format"), [case for case in CASES if case[0] != "sm90_mma_fp8"])
def test_the_route_does_not_matter(model, a_format, b_format, monkeypatch):
    """Whole blocks through BLAS give what every output taken term by term gives, on data where most go through BLAS."""
    rng = np.random.default_rng(15)
    block = MODELS[model].pair(a_format, b_format).block
    a = Operand(gaussian(rng, a_format, (1, 16, 8 * block)), ELEMENT_FORMATS[a_format], None)
    b = Operand(gaussian(rng, b_format, (1, 50, 8 * block)), ELEMENT_FORMATS[b_format], None)
    c = rng.standard_normal((1, 16, 50)).astype(np.float32)
    outputs, replace = [], FusedChain._replace

    def count(self, t, total, products, acc, at):
        outputs.append(at.flat.size)
        replace(self, t, total, products, acc, at)

    def every_output(self, t, total, products, acc, at):
        replace(self, t, total, products, acc, Outputs.at(np.arange(acc.size), acc.shape))

    monkeypatch.setattr(FusedChain, "_replace", count)
    usual = fused_chain(a, b, c, MODELS[model], block)
    monkeypatch.setattr(FusedChain, "_replace", every_output)
    term_by_term = fused_chain(a, b, c, MODELS[model], block)
    assert (usual.view(np.uint64) == term_by_term.view(np.uint64)).all()
    assert 0 < sum(outputs) < 8 * c.size


def test_many_tiles_are_one_product():
    """More rows and columns than a tile has: neither the place in a tile nor the number of threads shows."""
    rng = np.random.default_rng(16)
    a, b = finite_codes(rng, "e4m3", (70, 32)), finite_codes(rng, "e2m1", (400, 32))
    product = Product(a, b, np.zeros((70, 400), np.float32), "e4m3", "e2m1")
    whole = product.fast("sm120")
    for rows, columns in ((slice(60, 70), slice(180, 200)), (slice(0, 3), slice(390, 400))):
        assert (
            product.of(a=a[rows], b=b[columns], c=product.c[rows, columns]).fast("sm120") == whole[rows, columns]
        ).all()


def test_leading_dimensions_are_separate_products():
    rng = np.random.default_rng(17)
    a, b = finite_codes(rng, "e4m3", (2, 3, 4, 64)), finite_codes(rng, "e2m1", (2, 3, 5, 64))
    scales = rng.integers(120, 135, (2, 3, 5, 2)).astype(np.uint8)
    c = accumulators(rng, (2, 3, 4, 5), -3, 3)
    whole = Product(a, b, c, "e4m3", "e2m1", b_scales=scales)
    for model in ("sm120", "exact", "fp32"):
        found = whole.fast(model)
        for at in np.ndindex(2, 3):
            assert (found[at] == whole.of(a=a[at], b=b[at], c=c[at], b_scales=scales[at]).fast(model)).all()


@pytest.mark.parametrize("model", ["sm120", "sm90_wgmma_fp8", "sm90_mma_fp8"])
def test_single_instructions_in_a_batch(model):
    """As a simulator of warps has them: more than are taken at a time, each with data of its own."""
    rng = np.random.default_rng(19)
    a, b = near_codes(rng, "e4m3", (600, 8, 32), 9), near_codes(rng, "e4m3", (600, 8, 32), 9)
    whole = Product(a, b, accumulators(rng, (600, 8, 8), -10, 10), "e4m3", "e4m3")
    found = whole.fast(model)
    for at in (0, 511, 512, 599):
        single = whole.of(a=a[at], b=b[at], c=whole.c[at])
        assert (found[at] == single.fast(model)).all()
        assert (found[at, :2, :2] == single.of(a=a[at, :2], b=b[at, :2], c=whole.c[at, :2, :2]).slow(model)).all()


@pytest.mark.parametrize("model", ["sm120", "exact", "fp32", "sm90_wgmma_fp8", "sm90_mma_fp8"])
def test_no_rows_or_no_columns_is_no_output(model):
    a, b = np.zeros((0, 64), np.uint8), np.zeros((4, 64), np.uint8)
    assert Product(a, b, np.zeros((0, 4), np.float32), "e4m3", "e4m3").fast(model).shape == (0, 4)
    assert Product(b, a, np.zeros((4, 0), np.float32), "e4m3", "e4m3").fast(model).shape == (4, 0)


def test_split_k_adds_its_parts_in_order_to_nearest():
    rng = np.random.default_rng(18)
    parts = accumulators(rng, (5, 64), -12, 12)
    found = split_k_sum(parts).view(np.uint32)
    for i, column in enumerate(parts.T):
        bits = int(column[:1].view(np.uint32)[0])
        for part in column[1:]:
            total = FP32.decode(bits) + FP32.decode(int(part.view(np.uint32)))
            bits = round_to_nearest(Number(NumberKind.FINITE, total < 0, abs(total)), FP32)
        assert found[i] == bits
    two = np.array([[2.0**24], [1.0], [1.0]], np.float32)
    # To nearest even, one at a time: both ones are lost; the other way round they are not.
    assert split_k_sum(two)[0] == 2.0**24
    assert split_k_sum(two[::-1].copy())[0] == 2.0**24 + 2
    assert split_k_sum(np.array([[np.inf], [-np.inf]], np.float32)).view(np.uint32)[0] == 0x7FFFFFFF
