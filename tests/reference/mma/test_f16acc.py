"""FP16 accumulators: the fast chain against the specification, the numbers by hand, and faults that have to show."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from support.tensor_cores.f16_accumulator_data import CLASSES, draw
from support.tensor_cores.mma_operands import Product

from refmoe.errors import ArgumentError
from refmoe.formats import FP32
from refmoe.reference.mma import MODELS, a_priori_bound, exact_sum, running_bound, within_bound
from refmoe.reference.scalar import mma as specification

NAME = "sm90_mma_f16acc"
MODEL = MODELS[NAME]


def product(name, seed=1, k=32):
    a, b, c = draw(name, seed, 1, k)
    return Product(a[0], b[0], c[0], "f16", "f16")


@pytest.mark.parametrize("name", CLASSES)
def test_fast_equals_specification(name):
    given = product(name)
    found = given.fast(NAME)
    assert (found == given.slow(NAME)).all()
    # It is FP16 in float32, NaN is the GPU's, and no zero is negative.
    values = found.view(np.float32)
    nan = np.isnan(values)
    assert (values[~nan].astype(np.float16).astype(np.float32) == values[~nan]).all()
    assert (found[nan] == 0x7FFFFFFF).all()
    assert not (found == 1 << 31).any()


def test_every_code_of_fp16():
    rng = np.random.default_rng(2)
    a, b = (rng.integers(0, 1 << 16, (rows, 32)).astype(np.uint16) for rows in (4, 4))
    c = rng.integers(0, 1 << 16, (4, 4)).astype(np.uint16).view(np.float16).astype(np.float32)
    assert (Product(a, b, c, "f16", "f16").fast(NAME) == Product(a, b, c, "f16", "f16").slow(NAME)).all()


def test_the_data_reaches_the_edges():
    results = {name: product(name).fast(NAME).view(np.float32) for name in CLASSES}
    assert 0 < np.isinf(results["overflow"]).mean() < 1
    assert np.isnan(results["special"]).any()
    assert np.isfinite(results["special"]).any()
    for name in ("subnormal", "tiny"):
        assert ((np.abs(results[name]) < 2.0**-14) & (results[name] != 0)).any(), name
    assert (results["tiny"] == 0).any()


# From here on: one thing is wrong in the specification, and the fast chain has to differ from it.


@pytest.mark.parametrize(
    "fault", [{"align_bits": 24}, {"align_bits": 26}, {"to_nearest": False}, {"result_bits": 9}], ids=str
)
def test_another_model_shows(fault):
    wrong, differing = replace(MODEL, **fault), 0
    for name in ("cancelling", "normal", "tiny"):
        given = product(name)
        differing += (given.slow(wrong) != given.fast(NAME)).sum()
        if "result_bits" not in fault:
            assert (given.slow(wrong) == given.fast(wrong)).all()
    assert differing > 0


def test_a_c_that_is_not_clamped_shows(monkeypatch):
    given, c_of = product("clamped", k=16), specification._c_term
    assert (given.slow(NAME) == given.fast(NAME)).all()
    monkeypatch.setattr(specification, "_c_term", lambda c, fmt: c_of(c, FP32))
    assert (given.slow(NAME) != given.fast(NAME)).any()


# Single outputs. a and b are lists of values, the rest of K is zero.


def one(c, a=(), b=(), k=16):
    x, y = (
        np.array([[*map(float, values)] + [0.0] * (k - len(values))], np.float16).view(np.uint16) for values in (a, b)
    )
    given = Product(x, y, np.array([[c]], np.float32), "f16", "f16")
    assert given.fast(NAME) == given.slow(NAME)
    return float(given.fast(NAME).view(np.float32)[0, 0])


def test_one_rounding_to_nearest_even_for_a_block():
    assert one(2048, [1], [1]) == 2048
    assert one(2050, [1], [1]) == 2052
    # Two ones in a block are added before it rounds; in two blocks each is lost.
    assert one(2048, [1, 1], [1, 1]) == 2050
    assert one(2048, [1, *[0] * 15, 1], [1] * 17, k=32) == 2048
    # Above a tie, by a bit that float32 does not hold next to 2048, but F = 25 does not lose: 2^(11 - 25).
    assert one(2048, [1, 2.0**-7], [1, 2.0**-7]) == 2050
    assert one(2048, [1, 2.0**-7], [1, 2.0**-8]) == 2048


def test_overflow_is_rounded():
    assert one(65504, [15.9921875], [1]) == 65504
    assert one(65504, [16], [1]) == np.inf
    assert one(-65504, [-16], [1]) == -np.inf
    assert one(65504, [32768, -32768], [2, 2]) == 65504


def test_a_subnormal_c_has_the_exponent_of_emin():
    smallest = 2.0**-24
    # A tie, and 2^-39 more: a unit of the alignment. 2^-40 is lost, and the tie goes to even.
    assert one(smallest * 2, [2.0**-12, 2.0**-24], [2.0**-13, 2.0**-15]) == smallest * 3
    assert one(smallest * 2, [2.0**-12, 2.0**-24], [2.0**-13, 2.0**-16]) == smallest * 2


def test_a_result_below_half_the_smallest_is_positive_zero():
    assert np.copysign(1, one(0.0, [-(2.0**-13)], [2.0**-13])) == 1
    assert np.copysign(1, one(-0.0, [-1.0], [0.0])) == 1


@pytest.mark.parametrize("value", [65520.0, 1 + 2.0**-11, 2.0**-25, 1e30])
def test_a_c_that_fp16_cannot_hold_is_refused(value):
    with pytest.raises(ArgumentError, match="accumulators of sm90_mma_f16acc are FP16") as error:
        one(value)
    assert error.value.argument == "c"


@pytest.mark.parametrize("name", [name for name in CLASSES if name != "special"])
def test_the_bounds_hold(name):
    given = product(name, k=128)
    values = given.fast(NAME).view(np.float32)
    exact = exact_sum(given.a, given.b, given.c, **given.options)
    running, before = (
        f(given.a, given.b, given.c, model=NAME, **given.options) for f in (running_bound, a_priori_bound)
    )
    assert within_bound(values, exact, running).all()
    assert within_bound(values, exact, before).all()
    if name == "normal":
        assert (running <= before).all()
        assert (np.abs(values - exact) / running).max() > 0.1
