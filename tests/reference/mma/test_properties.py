"""What must hold exactly whatever the data: each property with the place where it stops holding."""

from __future__ import annotations

from fractions import Fraction

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from support.selection.thinned import thinned
from support.tensor_cores.mma_operands import (
    CASES,
    DEFINED,
    Product,
    accumulators,
    code_dtype,
    finite_codes,
    near_codes,
    values_of,
)

from refmoe.reference.mma import ELEMENT_FORMATS, MODELS

SEEDS = st.integers(0, 2**32 - 1)
CHAINS = [case for case in CASES if case[0] != "sm100"]
FEW = settings(max_examples=10)


def product_of(rng, model, a_format, b_format, *, blocks=3, fill=finite_codes, m=3, n=4):
    k = 32 if MODELS[model].scaled else MODELS[model].instruction_k(a_format, b_format)
    a, b = fill(rng, a_format, (m, blocks * k)), fill(rng, b_format, (n, blocks * k))
    product = Product(a, b, accumulators(rng, (m, n), -10, 10), a_format, b_format)
    if not MODELS[model].scaled:
        return product
    scales = [rng.integers(115, 140, (rows, blocks)).astype(np.uint8) for rows in (m, n)]
    return product.of(a_scales=scales[0], b_scales=scales[1])


def sign_bit(name):
    return np.array(1 << (ELEMENT_FORMATS[name].bits - 1), code_dtype(name))


@pytest.mark.parametrize(("model", "a_format", "b_format"), thinned(CHAINS, 2))
@FEW
@given(seed=SEEDS)
def test_order_inside_a_block_does_not_matter(model, a_format, b_format, seed):
    if model == "sm90_mma_fp8":
        return  # its blocks are not aligned pieces of K: see below
    rng = np.random.default_rng(seed)
    product = product_of(rng, model, a_format, b_format)
    block = MODELS[model].pair(a_format, b_format).block
    order = np.concatenate([k + rng.permutation(block) for k in range(0, product.a.shape[1], block)])
    moved = product.of(a=product.a[:, order], b=product.b[:, order])
    assert (moved.fast(model) == product.fast(model)).all()


def test_order_across_blocks_does_matter():
    rng = np.random.default_rng(41)
    for model, a_format, b_format in (("sm120", "e4m3", "e2m1"), ("sm90_mma", "f16", "f16"), ("fp32", "e4m3", "e2m1")):
        product = product_of(rng, model, a_format, b_format, m=8, n=8).of(a_scales=None, b_scales=None)
        order = rng.permutation(product.a.shape[1])
        assert (product.of(a=product.a[:, order], b=product.b[:, order]).fast(model) != product.fast(model)).any(), (
            model
        )


def test_order_inside_32_does_matter_to_the_fp8_lowering_but_not_inside_its_passes():
    rng = np.random.default_rng(42)
    product = product_of(rng, "sm90_mma_fp8", "e4m3", "e5m2", m=8, n=8, blocks=1)
    order = rng.permutation(32)
    assert (
        product.of(a=product.a[:, order], b=product.b[:, order]).fast("sm90_mma_fp8") != product.fast("sm90_mma_fp8")
    ).any()
    within = np.arange(32)
    for part in MODELS["sm90_mma_fp8"].passes:
        within[list(part)] = rng.permutation(part)
    moved = product.of(a=product.a[:, within], b=product.b[:, within])
    assert (moved.fast("sm90_mma_fp8") == product.fast("sm90_mma_fp8")).all()


@pytest.mark.parametrize(("model", "a_format", "b_format"), thinned(CHAINS + DEFINED, 3))
@FEW
@given(seed=SEEDS)
def test_negation(model, a_format, b_format, seed):
    """-A and -C give -D, except that a zero stays +0."""
    product = product_of(np.random.default_rng(seed), model, a_format, b_format)
    found = product.fast(model)
    negated = product.of(a=product.a ^ sign_bit(a_format), c=-product.c).fast(model)
    zero = (found << 1) == 0
    assert (negated[~zero] == found[~zero] ^ np.uint32(1 << 31)).all()
    assert (negated[zero] << 1 == 0).all()
    if MODELS[model].align_bits is not None:
        assert not negated[zero].any()
    both = product.of(a=product.a ^ sign_bit(a_format), b=product.b ^ sign_bit(b_format)).fast(model)
    assert (both == found).all()


@pytest.mark.parametrize(("model", "a_format", "b_format"), thinned(CHAINS + DEFINED, 3))
@FEW
@given(seed=SEEDS)
def test_swapping_the_operands_transposes(model, a_format, b_format, seed):
    if (b_format, a_format) not in MODELS[model].pairs:
        return
    product = product_of(np.random.default_rng(seed), model, a_format, b_format)
    swapped = Product(product.b, product.a, product.c.T.copy(), b_format, a_format, product.b_scales, product.a_scales)
    assert (swapped.fast(model) == product.fast(model).T).all()


@pytest.mark.parametrize("model", ["sm120", "exact", "fp32"])
@settings(max_examples=30)
@given(seed=SEEDS, shift=st.integers(-40, 40))
def test_a_scale_shift_is_a_power_of_two(model, seed, shift):
    """All scales of one side and C times 2^shift: D times 2^shift, where nothing over- or underflows."""
    rng = np.random.default_rng(seed)
    product = product_of(rng, model, "e4m3", "e2m1", fill=lambda r, name, shape: near_codes(r, name, shape, 9))
    factor = np.float32(2.0**shift)
    shifted = product.of(c=product.c * factor, a_scales=(product.a_scales.astype(int) + shift).astype(np.uint8))
    assert (shifted.fast(model) == (product.fast(model).view(np.float32) * factor).view(np.uint32)).all()
    # Moving it from one side to the other changes nothing.
    moved = product.of(
        a_scales=(product.a_scales.astype(int) + shift).astype(np.uint8),
        b_scales=(product.b_scales.astype(int) - shift).astype(np.uint8),
    )
    assert (moved.fast(model) == product.fast(model)).all()


@pytest.mark.parametrize(("model", "a_format", "b_format"), thinned(CHAINS + DEFINED, 3))
@FEW
@given(seed=SEEDS)
def test_zero_padding_of_k_is_exact(model, a_format, b_format, seed):
    """Zeros of either sign, at the end or the start, over any scale; Hopper's FP8 cuts a C that has more bits."""
    rng = np.random.default_rng(seed)
    product = product_of(rng, model, a_format, b_format)
    if model == "sm90_wgmma_fp8":
        product = product.of(c=(product.c.view(np.uint32) & np.uint32(0xFFFFFC00)).view(np.float32))
    m, k = product.a.shape
    pad = k // 3
    zeros = np.where(rng.random((m, pad)) < 0.5, sign_bit(a_format), 0).astype(product.a.dtype)
    columns = finite_codes(rng, b_format, (product.b.shape[0], pad))
    for parts in ((slice(None), slice(0, 0)), (slice(0, 0), slice(None))):
        padded = product.of(
            a=np.hstack([zeros[:, parts[0]], product.a, zeros[:, parts[1]]]),
            b=np.hstack([columns[:, parts[0]], product.b, columns[:, parts[1]]]),
        )
        if product.a_scales is not None:
            added = rng.integers(0, 255, (2, 8, 1)).astype(np.uint8)
            padded = padded.of(
                a_scales=np.hstack([added[0, :m, parts[0]], product.a_scales, added[0, :m, parts[1]]]),
                b_scales=np.hstack(
                    [added[1, : columns.shape[0], parts[0]], product.b_scales, added[1, : columns.shape[0], parts[1]]]
                ),
            )
        assert (padded.fast(model) == product.fast(model)).all()


@pytest.mark.parametrize(("model", "a_format", "b_format"), [case for case in CHAINS + DEFINED if case[0] != "exact"])
def test_a_chain_may_be_cut_into_calls(model, a_format, b_format):
    """A first call's result is the second's C, wherever the fast chain cuts K itself."""
    rng = np.random.default_rng(43)
    product = product_of(rng, model, a_format, b_format, blocks=40)
    whole, k = product.fast(model), product.a.shape[1]
    acc = product.c
    for part in (slice(0, k // 40 * 7), slice(k // 40 * 7, k)):
        blocks = slice(part.start // 32, part.stop // 32)
        scales = [None if x is None else x[:, blocks] for x in (product.a_scales, product.b_scales)]
        piece = product.of(a=product.a[:, part], b=product.b[:, part], c=acc, a_scales=scales[0], b_scales=scales[1])
        acc = piece.fast(model).view(np.float32)
    assert (acc.view(np.uint32) == whole).all()
    few = product.of(a=product.a[:1], b=product.b[:1], c=product.c[:1, :1])
    if product.a_scales is not None:
        few = few.of(a_scales=product.a_scales[:1], b_scales=product.b_scales[:1])
    assert few.slow(model) == whole[0, 0]


def lattice_codes(rng, name, shape, largest):
    """Codes of normal numbers that are integers of magnitude 1..largest."""
    values, fmt = values_of(name), ELEMENT_FORMATS[name]
    magnitude = np.abs(values)
    whole = (magnitude >= float(fmt.min_normal)) & (magnitude <= largest) & (np.floor(magnitude) == magnitude)
    return (rng.choice(np.flatnonzero(whole), shape) << fmt.unused_low_bits).astype(code_dtype(name))


def integers(codes, name):
    fmt = ELEMENT_FORMATS[name]
    return values_of(name)[codes >> fmt.unused_low_bits].astype(np.int64)


@pytest.mark.parametrize(("model", "a_format", "b_format"), thinned([*CASES, *DEFINED], 3))
@FEW
@given(seed=SEEDS)
def test_the_integer_lattice_is_exact_under_every_model(model, a_format, b_format, seed):
    """Terms that are integers, sum |a b| + |C| at most 2^(min(m, F) + 1): equal to int64."""
    rng = np.random.default_rng(seed)
    data = MODELS[model]
    limit = 2 ** (min(data.result_bits, data.align_bits or data.result_bits) + 1)
    product = product_of(rng, model, a_format, b_format, fill=lambda r, name, shape: lattice_codes(r, name, shape, 6))
    a, b = integers(product.a, a_format), integers(product.b, b_format)
    magnitudes = np.abs(a) @ np.abs(b).T
    c = rng.integers(-(limit - magnitudes), limit - magnitudes + 1)
    flat = product.of(c=c.astype(np.float32), a_scales=None, b_scales=None)
    assert (np.abs(c) + magnitudes <= limit).all()
    assert (flat.fast(model).view(np.float32).astype(np.int64) == a @ b.T + c).all()


def test_the_lattice_ends_where_it_is_said_to():
    """On Hopper FP8, 2^14 is the last sum up to which every integer is there: 2^14 + 1 is not."""
    code = {x: ELEMENT_FORMATS["e4m3"].encode(Fraction(x)) for x in (0, 1)}
    a = np.array([[code[1]] + [code[0]] * 31], np.uint8)
    for c, wanted in ((2**14 - 1, 2**14), (2**14, 2**14)):
        product = Product(a, a, np.array([[c]], np.float32), "e4m3", "e4m3")
        assert product.fast("sm90_wgmma_fp8").view(np.float32) == wanted
        assert product.fast("sm120").view(np.float32) == c + 1


@pytest.mark.parametrize("model", ["sm120", "fp32", "exact", "sm90_wgmma_fp8"])
@FEW
@given(seed=SEEDS)
def test_rows_and_columns_do_not_see_their_neighbours(model, seed):
    rng = np.random.default_rng(seed)
    a, b = finite_codes(rng, "e4m3", (9, 64)), finite_codes(rng, "e5m2", (11, 64))
    product = Product(a, b, accumulators(rng, (9, 11), -10, 10), "e4m3", "e5m2")
    rows, columns = rng.permutation(9), rng.permutation(11)[:4]
    part = product.of(a=a[rows], b=b[columns], c=product.c[np.ix_(rows, columns)])
    assert (part.fast(model) == product.fast(model)[np.ix_(rows, columns)]).all()
    # A row of NaNs stays in its row.
    poisoned = a.copy()
    poisoned[rows[0]] = 0x7F
    found = product.of(a=poisoned).fast(model)
    assert (found[rows[0]] == 0x7FFFFFFF).all()
    others = np.delete(np.arange(9), rows[0])
    assert (found[others] == product.fast(model)[others]).all()
