"""E2M1 with UE4M3 or E8M0 scales: fast against the specification, numbers by hand, bounds, faults that have to show."""

from __future__ import annotations

from dataclasses import replace
from fractions import Fraction

import numpy as np
import pytest
from support.tensor_cores.mma_operands import Product

from refmoe.errors import ArgumentError
from refmoe.formats import E2M1, E8M0, FP32, UE4M3
from refmoe.reference.gemm import grouped_gemm
from refmoe.reference.mma import (
    MODELS,
    a_priori_bound,
    exact_sum,
    magnitude_sum,
    running_bound,
    tensor_core_mma,
    within_bound,
)
from refmoe.reference.scalar import mma as specification
from refmoe.reference.scalar.numbers import Number, NumberKind, decode
from refmoe.reference.tensor import MXTensor

NAME = "sm120_nvf4"
MODEL = MODELS[NAME]
NAN = 0x7FFFFFFF
M, N, K = 6, 7, 128


def draw(name, seed=1):
    rng = np.random.default_rng(seed)
    codes = [rng.integers(0, 16, (rows, K)).astype(np.uint8) for rows in (M, N)]
    low, high = {"normal": (0x28, 0x48), "subnormal": (0, 12), "special": (0, 256)}.get(name, (0, 0x7F))
    scales = [rng.integers(low, high, (rows, K // 16)).astype(np.uint8) for rows in (M, N)]
    exponents = {"c large": (24, 127), "c small": (-40, -10), "c tiny": (-149, -120), "overflow": (127, 127)}
    c = rng.uniform(1, 2, (M, N)) * np.exp2(rng.integers(*np.add(exponents.get(name, (-2, 12)), (0, 1)), (M, N)))
    c = (np.where(rng.random((M, N)) < 0.5, -c, c)).astype(np.float32)
    if name in ("zeros", "c tiny"):
        for operand, scale in zip(codes, scales, strict=True):
            operand[np.repeat(rng.random(scale.shape) < 0.4, 16, axis=1)] &= 8
            scale[rng.random(scale.shape) < 0.2] = 0
        c[rng.random(c.shape) < 0.3] = -0.0
    if name == "c tiny":
        codes[0][:3] &= 8
    if name == "cancelling":
        # Two groups with large scales take C away: what the alignment left of two with small ones is the result.
        # Neighbours share their scales, which makes them groups of 32 too.
        for scale in scales:
            scale[:, 4:] = 0
            scale[:, :4] = np.repeat(rng.integers((0x70, 0x01), (0x7F, 0x18), (len(scale), 2)), 2, axis=1)
        alone = [scale * (np.arange(K // 16) < 2).astype(np.uint8) for scale in scales]
        c = -Product(*codes, np.zeros((M, N), np.float32), "e2m1", "e2m1", *alone).fast(NAME).view(np.float32)
    if name == "special":
        c.flat[::5] = [np.inf, -np.inf, np.nan] * 3
        for scale in scales:
            scale[::2][scale[::2] & 0x7F == 0x7F] = 0x38
    return Product(*codes, c, "e2m1", "e2m1", *scales)


CLASSES = (
    "normal", "wide", "zeros", "subnormal", "cancelling", "special", "overflow", "c large", "c small", "c tiny"
)  # fmt: skip


@pytest.mark.parametrize("name", CLASSES)
@pytest.mark.parametrize("seed", [1, 2])
def test_fast_equals_specification(name, seed):
    given = draw(name, seed)
    found = given.fast(NAME)
    assert (found == given.slow(NAME)).all()
    assert not (found == 1 << 31).any()
    assert (found[np.isnan(found.view(np.float32))] == NAN).all()


def test_the_data_reaches_the_edges():
    results = {name: draw(name).fast(NAME).view(np.float32) for name in CLASSES}
    assert {"nan", "inf", "finite"} == {
        "nan" if np.isnan(x) else "inf" if np.isinf(x) else "finite" for x in results["special"].flat
    }
    assert ((np.abs(results["c tiny"]) < 2.0**-126) & (results["c tiny"] != 0)).any()
    assert (results["c tiny"] == 0).any()


def test_leading_dimensions():
    products = [draw("wide", seed) for seed in range(6)]
    stacked = [
        np.stack([getattr(p, name) for p in products]).reshape(2, 3, *getattr(products[0], name).shape)
        for name in ("a", "b", "c", "a_scales", "b_scales")
    ]
    found = Product(*stacked[:3], "e2m1", "e2m1", *stacked[3:]).fast(NAME)
    assert (found.reshape(6, M, N) == np.stack([product.fast(NAME) for product in products])).all()


def test_more_outputs_than_one_piece():
    given, columns = draw("wide"), np.arange(10_000) % N
    wide = given.of(b=given.b[columns], b_scales=given.b_scales[columns], c=given.c[:, columns])
    assert (wide.fast(NAME) == given.fast(NAME)[:, columns]).all()


def test_no_outputs():
    given = draw("wide")
    assert given.of(a=given.a[:0], a_scales=given.a_scales[:0], c=given.c[:0]).fast(NAME).shape == (0, N)


# Single outputs: scaled groups are (values of a, values of b, scale byte of a, scale byte of b).


def single(c, *groups):
    groups = [*groups, *[((), (), 0x38, 0x38)] * (-len(groups) % 4)] or [((), (), 0x38, 0x38)] * 4
    codes = [
        np.array([[E2M1.encode(Fraction(x)) for g in groups for x in [*g[side], *[0] * (16 - len(g[side]))]]], np.uint8)
        for side in (0, 1)
    ]
    scales = [np.array([[g[side] for g in groups]], np.uint8) for side in (2, 3)]
    c = np.array([[c]], np.uint32).view(np.float32) if isinstance(c, int) else np.array([[c]], np.float32)
    return Product(*codes, c, "e2m1", "e2m1", *scales)


def one(c, *groups, model=MODEL):
    product = single(c, *groups)
    assert product.fast(model) == product.slow(model)
    return int(product.fast(model)[0, 0])


def bits(value):
    return FP32.encode(Fraction(value))


ONE = 0x38  # 2^0


@pytest.mark.parametrize("c", [0.0, 0.25, -(2.0**30), -np.inf])
def test_every_scale_byte(c):
    rng = np.random.default_rng(3)
    a, b = (rng.integers(0, 16, (rows, 64)).astype(np.uint8) for rows in (256, 1))
    every = np.repeat(np.arange(256, dtype=np.uint8)[:, None], 4, axis=1)
    other = np.array([[0x01, 0x38, 0x7E, 0xB8]], np.uint8)
    given = Product(a, b, np.full((256, 1), c, np.float32), "e2m1", "e2m1", every, other)
    found = given.fast(NAME)
    assert (found == given.slow(NAME)).all()
    assert np.flatnonzero(found == NAN).tolist() == [0x7F, 0xFF]
    # The other side is the same.
    swapped = given.of(a=b, b=a, c=given.c.T, a_scales=other, b_scales=every)
    assert (swapped.fast(NAME) == found.T).all()


def test_every_scale_byte_alone():
    for byte in range(128):
        expected = NAN if byte == 0x7F else bits(6 * UE4M3.decode(byte))
        assert one(0.0, ((2,), (3,), byte, ONE)) == one(0.0, ((2,), (3,), byte | 0x80, ONE)) == expected


def test_a_group_is_summed_before_it_is_aligned():
    # C = 2^24 and its opposite, 2^8 * 2^16: E = 24, the unit is 2^-11. A product here is 2^-12, half of it.
    minus_c = ((-4,) * 16, (4,) * 16, 0x78, 0x78)
    half, two_halves = ((1,), (1,), 0x08, 0x08), ((1, 1), (1, 1), 0x08, 0x08)
    assert one(2.0**24, half, half, minus_c) == 0
    assert one(2.0**24, two_halves, minus_c) == bits(Fraction(1, 2**11))


def test_the_exponent_is_that_of_the_scales_alone():
    # s = 1/4 with the exponents 8 + 8: E = 16, the unit is 2^-19, and C = 2^-20 is lost.
    group = ((0.5,), (0.5,), 0x78, 0x78)
    away = ((-0.5,), (0.5,), 0x78, 0x78)
    assert one(2.0**-20, group, away) == 0
    assert one(2.0**-19, group, away) == bits(Fraction(1, 2**19))
    # A group whose sum is zero, or whose scale is zero, sets nothing.
    assert one(2.0**-20, ((1, -1), (1, 1), 0x78, 0x78)) == bits(Fraction(1, 2**20))
    assert one(2.0**-20, ((1, 1), (1, 1), 0x78, 0)) == bits(Fraction(1, 2**20))


def test_a_subnormal_scale_has_the_exponent_of_emin():
    # 2^-9 has the exponent -6: E = -6, the unit is 2^-41.
    pair = ((1,), (1,), 0x01, ONE), ((-1,), (1,), 0x01, ONE)
    assert one(2.0**-41, *pair) == bits(Fraction(1, 2**41))
    assert one(2.0**-42, *pair) == 0


def test_the_floor():
    # With E = -133 the unit is 2^-168: FP32 has nothing below it, and the floor of this model takes nothing away.
    for c in (1, 0x7FFFFF, 0x80000001):
        assert one(c) == c
    assert one(1, model=replace(MODEL, floor=-114)) == 1
    assert one(1, model=replace(MODEL, floor=-113)) == 0


def test_the_result_is_truncated_and_positive_when_zero():
    assert one(2.0**24, ((1,), (1,), ONE, ONE)) == bits(2**24)
    assert one(-(2.0**24), ((-1,), (1,), ONE, ONE)) == bits(-(2**24))
    assert one(2.0**24, ((-1,), (1,), ONE, ONE)) == bits(2**24 - 1)
    assert one(-0.0) == one(-1.0, ((1,), (1,), ONE, ONE)) == 0


def test_specials():
    assert one(np.nan) == one(0xFFC00001) == NAN
    assert one(np.inf, ((-6,) * 16, (6,) * 16, 0x7E, 0x7E)) == 0x7F800000
    assert one(-np.inf) == 0xFF800000
    # NaN, even times zero and against an infinity.
    assert one(np.inf, ((), (), 0x7F, 0)) == NAN
    assert one(float(FP32.max), ((6,) * 16, (6,) * 16, 0x7E, 0x7E)) == FP32.max_code


# From here on: one thing is wrong in the specification, and the fast chain has to differ from it.


@pytest.mark.parametrize("fault", [{"align_bits": 34}, {"align_bits": 36}, {"result_bits": 22}], ids=str)
def test_another_model_shows(fault):
    given, wrong = draw("cancelling" if "align_bits" in fault else "normal"), replace(MODEL, **fault)
    assert (given.slow(wrong) == given.fast(wrong)).all()
    assert (given.slow(wrong) != given.fast(NAME)).any()


def test_groups_of_32_show():
    given = draw("cancelling")
    halved = given.of(a_scales=given.a_scales[:, ::2], b_scales=given.b_scales[:, ::2])
    assert (np.repeat(halved.a_scales, 2, axis=1) == given.a_scales).all()
    assert (given.slow(NAME) == given.fast(NAME)).all()
    twice = replace(MODEL.scaling, block=32)
    assert (halved.slow(replace(MODEL, scaling=twice)) == halved.fast(replace(MODEL, scaling=twice))).all()
    assert (halved.slow(replace(MODEL, scaling=twice)) == given.fast(NAME)).all()
    assert (halved.slow(replace(MODEL, group=32, scaling=twice)) != given.fast(NAME)).any()


def test_zero_groups_that_set_the_exponent_show(monkeypatch):
    given = draw("zeros")
    tiny = given.of(c=(given.c * np.float32(2.0**-30)).astype(np.float32))
    assert (tiny.slow(NAME) == tiny.fast(NAME)).all()
    monkeypatch.setattr(specification, "_group_exponent", lambda term, exponents: sum(exponents))
    assert (tiny.slow(NAME) != tiny.fast(NAME)).any()


def test_a_scale_with_a_sign_shows(monkeypatch):
    given = draw("normal")
    given.a_scales[:, ::3] |= 0x80
    assert (given.slow(NAME) == given.fast(NAME)).all()
    assert (given.fast(NAME) == given.of(a_scales=given.a_scales & 0x7F).fast(NAME)).all()
    group = specification._group

    def signed(a, b, scales, fmt):
        term = group(a, b, scales, fmt)
        negative = term.number.negative != bool((scales[0] ^ scales[1]) & 0x80)
        return replace(term, number=Number(term.number.kind, negative, term.number.magnitude))

    monkeypatch.setattr(specification, "_group", signed)
    assert (given.slow(NAME) != given.fast(NAME)).any()


def test_renormalised_subnormal_scales_show(monkeypatch):
    given, exponent = single(2.0**-42, ((1,), (1,), 0x01, ONE), ((-1,), (1,), 0x01, ONE)), specification._exponent
    assert given.slow(NAME) == given.fast(NAME) == 0

    def renormalised(magnitude, fmt):
        return specification._floor_log2(magnitude) if fmt is UE4M3 and magnitude else exponent(magnitude, fmt)

    monkeypatch.setattr(specification, "_exponent", renormalised)
    assert given.slow(NAME) == bits(Fraction(1, 2**42))


def test_the_scales_of_the_specification_are_those_of_the_format():
    assert decode(0x7F, UE4M3).kind is NumberKind.NAN
    assert decode(0x7E, UE4M3).magnitude == 448
    assert decode(0x01, UE4M3).magnitude == Fraction(1, 512)


# E8M0 scales, one for 32 elements: what scale_vec::2X reads.

MX = "sm120_mxf4"


def mx(name, seed=1):
    """The data of a class with E8M0 scales instead, spread as far as the class's own."""
    given, rng = draw(name, seed), np.random.default_rng(seed + 100)
    reach = {"normal": (125, 130), "subnormal": (0, 8), "special": (0, 256), "overflow": (240, 255)}
    low, high = reach.get(name, (90, 165))
    scales = [rng.integers(low, high, (rows, K // 32)).astype(np.uint8) for rows in (M, N)]
    if name == "cancelling":
        # The huge scales of the first two groups of 16 are those of one group of 32.
        for scale in scales:
            scale[:] = rng.integers((140, 90, 60, 60), (150, 110, 70, 70), scale.shape)
    if name == "special":
        for scale in scales:
            scale[::2][scale[::2] == 0xFF] = 127
    return given.of(a_scales=scales[0], b_scales=scales[1])


@pytest.mark.parametrize("name", CLASSES)
@pytest.mark.parametrize("seed", [1, 2])
def test_fast_equals_specification_with_e8m0(name, seed):
    given = mx(name, seed)
    found = given.fast(MX)
    assert (found == given.slow(MX)).all()
    assert not (found == 1 << 31).any()


@pytest.mark.parametrize("c", [0.0, 0.25, -(2.0**30), np.inf])
def test_every_e8m0_byte(c):
    rng = np.random.default_rng(4)
    a, b = (rng.integers(0, 16, (rows, 64)).astype(np.uint8) for rows in (256, 1))
    every = np.repeat(np.arange(256, dtype=np.uint8)[:, None], 2, axis=1)
    other = np.array([[0x00, 0x80]], np.uint8)
    given = Product(a, b, np.full((256, 1), c, np.float32), "e2m1", "e2m1", every, other)
    found = given.fast(MX)
    assert (found == given.slow(MX)).all()
    assert np.flatnonzero(found == NAN).tolist() == [0xFF]


def test_a_scale_of_32_belongs_to_two_groups_of_16():
    # 16 * 2^20 from the first group takes C away; 2^-2 * 2^20 of the second is left.
    a, b = np.zeros((1, 64), np.uint8), np.zeros((1, 64), np.uint8)
    a[0, 0], b[0, 0] = E2M1.encode(Fraction(4)), E2M1.encode(Fraction(4))
    a[0, 16], b[0, 16] = E2M1.encode(Fraction(1, 2)), E2M1.encode(Fraction(1, 2))
    scales = np.array([[E8M0.bias + 10, E8M0.bias]], np.uint8)
    given = Product(a, b, np.array([[-(2.0**24)]], np.float32), "e2m1", "e2m1", scales, scales)
    assert given.fast(MX) == given.slow(MX) == bits(2**18)


def test_equal_scales_of_both_formats_give_equal_results():
    # 2^-6 .. 2^8 are normal in both; a power of two has no significand.
    rng = np.random.default_rng(5)
    given = draw("normal")
    exponents = [rng.integers(-6, 9, (rows, K // 32)) for rows in (M, N)]
    e8m0 = [(E8M0.bias + e).astype(np.uint8) for e in exponents]
    ue4m3 = [np.repeat(UE4M3.bias + e << 3, 2, axis=1).astype(np.uint8) for e in exponents]
    left = given.of(a_scales=e8m0[0], b_scales=e8m0[1]).fast(MX)
    assert (left == given.of(a_scales=ue4m3[0], b_scales=ue4m3[1]).fast(NAME)).all()


# The error bounds.


@pytest.mark.parametrize(("model", "data"), [(NAME, draw), (MX, mx)], ids=[NAME, MX])
@pytest.mark.parametrize("name", CLASSES)
def test_results_lie_inside_both_bounds(model, data, name):
    given = data(name)
    found = given.fast(model).view(np.float32)
    operands = (given.a, given.b, given.c)
    exact = exact_sum(*operands, model=model, **given.options)
    running = running_bound(*operands, model=model, **given.options)
    priori = a_priori_bound(*operands, model=model, **given.options)
    assert within_bound(found, exact, running).all()
    assert within_bound(found, exact, priori).all()
    assert (running <= priori).all()
    told = np.isfinite(running)
    assert told.any() or name == "overflow"
    # The sum of magnitudes is what nothing can exceed.
    total = magnitude_sum(*operands, model=model, **given.options)
    assert (np.abs(exact[told]) <= total[told] * (1 + 2.0**-50)).all()


def test_exact_sums_are_exact():
    given = draw("wide")
    exact = exact_sum(given.a, given.b, given.c, model=NAME, **given.options)
    scale = [UE4M3.values()[scales & 0x7F] for scales in (given.a_scales, given.b_scales)]
    left, right = (
        [[Fraction(v) for v in row] for row in E2M1.values()[codes] * np.repeat(scales, 16, axis=1)]
        for codes, scales in ((given.a, scale[0]), (given.b, scale[1]))
    )
    for m in range(M):
        for n in range(N):
            x = sum((p * q for p, q in zip(left[m], right[n], strict=True)), Fraction(float(given.c[m, n])))
            assert abs(Fraction(exact[m, n]) - x) <= abs(x) / 2**52


def test_the_running_bound_is_tight_where_one_bit_is_lost():
    # Scales of 2^8 on both sides make the unit 2^-19; a product of 2^-2 under two scales of 2^-9 is half of it.
    huge = ((1,), (1,), 0x78, 0x78), ((-1,), (1,), 0x78, 0x78)
    lost = ((0.5,), (0.5,), 0x01, 0x01)
    given = single(0.0, *huge, lost)
    found = given.fast(NAME).view(np.float32)
    exact = exact_sum(given.a, given.b, given.c, model=NAME, **given.options)
    bound = running_bound(given.a, given.b, given.c, model=NAME, **given.options)
    assert (found[0, 0], exact[0, 0]) == (0, 2.0**-20)
    assert exact[0, 0] <= bound[0, 0] <= 2.0**-18


# What is refused.


def refused(argument, found, **changes):
    with pytest.raises(ArgumentError, match=found) as error:
        draw("normal").of(**changes).fast(NAME)
    assert error.value.argument == argument


@pytest.mark.parametrize("argument", ["a_scales", "b_scales"])
def test_scales_are_needed_and_one_for_each_16(argument):
    rows = {"a_scales": M, "b_scales": N}[argument]
    needed = rf"needed uint8 \[{rows}, 8\], UE4M3"
    refused(argument, needed, **{argument: None})
    refused(argument, needed, **{argument: np.zeros((rows, K // 32), np.uint8)})
    refused(argument, needed, **{argument: np.zeros((rows + 1, K // 16), np.uint8)})
    refused(argument, needed, **{argument: np.zeros((rows, K // 16), np.int8)})


def test_other_formats_are_refused():
    refused("a_format, b_format", "e4m3 x e2m1", a_format="e4m3")
    refused("a_format, b_format", "e2m1 x e4m3", b_format="e4m3")
    refused("a", "code 16", a=np.full((M, K), 16, np.uint8))


@pytest.mark.parametrize("k", [0, 16, 32, 96])
def test_k_is_a_multiple_of_64(k):
    given = draw("normal")
    changes = {"a": given.a[:, :k], "b": given.b[:, :k]}
    scales = {"a_scales": given.a_scales[:, : k // 16], "b_scales": given.b_scales[:, : k // 16]}
    refused("a", "K a positive multiple of 64", **changes, **scales)


def test_a_grouped_gemm_is_refused():
    activations = MXTensor(np.zeros((2, 64), np.uint8), np.full((2, 2), 127, np.uint8), "mxfp8")
    weights = MXTensor(np.zeros((1, 8, 32), np.uint8), np.full((1, 8, 2), 127, np.uint8), "mxfp4")
    with pytest.raises(ArgumentError, match="e2m1 x e4m3 with sm120_nvf4"):
        grouped_gemm(activations, weights, np.array([0, 2], np.int64), model=NAME)


def test_inputs_are_left_as_they_are():
    given = draw("special")
    before = [x.copy() for x in (given.a, given.b, given.c.view(np.uint32), given.a_scales, given.b_scales)]
    tensor_core_mma(given.a, given.b, given.c, model=NAME, **given.options)
    after = (given.a, given.b, given.c.view(np.uint32), given.a_scales, given.b_scales)
    assert all((x == y).all() for x, y in zip(before, after, strict=True))
