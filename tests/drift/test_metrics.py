"""The distances and the growth of drift, against slow computations that share nothing with them."""

from __future__ import annotations

import math
import statistics
import warnings
from fractions import Fraction

import ml_dtypes
import mpmath
import numpy as np
import pytest

from refmoe.drift import fit_growth
from refmoe.drift.growth import student_quantile
from refmoe.drift.metrics import agrees, cosine, differing, divergence, max_ulp, relative_l2, rerouted
from refmoe.errors import ArgumentError

BF16 = np.dtype(ml_dtypes.bfloat16)


def bf16(*rows: list[float]) -> np.ndarray:
    return np.array(rows, np.float32).astype(BF16)


def patterns(*rows: list[int]) -> np.ndarray:
    return np.array(rows, np.uint16).view(BF16)


def wide(x: np.ndarray) -> np.ndarray:
    """In float64; a signalling NaN would warn."""
    with np.errstate(invalid="ignore"):
        return x.astype(np.float64)


def drawn(seed: int, scale: float = 1.0) -> tuple[np.ndarray, np.ndarray]:
    rng = np.random.default_rng(seed)
    a = (rng.standard_normal((3, 4, 24)) * scale).astype(np.float32)
    return a.astype(BF16), (a + 0.05 * scale * rng.standard_normal(a.shape)).astype(BF16)


@pytest.mark.parametrize("scale", [1.0, 1e-38, 1e37])
def test_distances_against_exact_fractions(scale: float) -> None:
    base, other = drawn(1, scale)
    found = relative_l2(base, other), cosine(base, other)
    for b in range(3):
        x, y = ([Fraction(float(value)) for value in array[b].ravel()] for array in (base, other))
        norm, distance = sum(v * v for v in x), sum((v - w) ** 2 for v, w in zip(x, y, strict=True))
        dot = sum(v * w for v, w in zip(x, y, strict=True))
        with mpmath.workdps(40):
            ratio = mpmath.sqrt(mpmath.mpf(distance.numerator) / distance.denominator / norm * 1)
            square = dot * dot / (norm * sum(w * w for w in y))
            angle = mpmath.sqrt(mpmath.mpf(square.numerator) / square.denominator)
        assert found[0][b] == pytest.approx(float(ratio), rel=1e-13)
        assert found[1][b] == pytest.approx(float(angle), rel=1e-13)


def test_ulps_by_counting_every_value_between() -> None:
    finite = wide(np.arange(1 << 16, dtype=np.uint16).view(BF16))
    values = sorted({value for value in finite if not math.isnan(value)})
    place = {value: index for index, value in enumerate(values)}  # -0.0 and 0.0 are one key
    rng = np.random.default_rng(2)
    a, b = (rng.integers(0, 1 << 16, (200, 1), dtype=np.uint16).view(BF16) for _ in range(2))
    for x, y, found in zip(wide(a)[:, 0], wide(b)[:, 0], max_ulp(a, b), strict=True):
        if math.isnan(x) or math.isnan(y):
            assert found == 0 if math.isnan(x) and math.isnan(y) else math.isnan(found)
        else:
            assert found == abs(place[x] - place[y])


def test_divergence_and_agreement_in_forty_digits() -> None:
    rng = np.random.default_rng(3)
    base = (rng.standard_normal((4, 50)) * 8).astype(np.float32)
    other = (base + rng.standard_normal(base.shape) * 0.3).astype(np.float32)
    for b, found in enumerate(divergence(base, other)):
        with mpmath.workdps(40):
            p, q = ([mpmath.exp(mpmath.mpf(float(v))) for v in array[b]] for array in (base, other))
            p, q = ([v / mpmath.fsum(row) for v in row] for row in (p, q))
            exact = mpmath.fsum(v * mpmath.log(v / w) for v, w in zip(p, q, strict=True))
        assert found == pytest.approx(float(exact), rel=1e-10)
    assert divergence(base, base).tolist() == [0, 0, 0, 0]
    assert agrees(
        np.array([[1.0, 2.0, 2.0], [3.0, 1.0, 0.0]]), np.array([[1.0, 5.0, 0.0], [0.0, 1.0, 0.0]])
    ).tolist() == [
        True,
        False,
    ]


def test_edges() -> None:
    zero, one, nan = bf16([0, 0]), bf16([1, 0]), bf16([np.nan, 0])
    assert (relative_l2(zero, zero), cosine(zero, zero), max_ulp(zero, zero)) == (0, 1, 0)
    assert (relative_l2(zero, one), relative_l2(one, zero)) == (np.inf, 1)
    assert np.isnan(cosine(zero, one))
    for metric in (relative_l2, cosine, divergence):
        assert np.isnan(metric(nan, one))
        assert np.isnan(metric(one, nan))
        assert np.isnan(metric(bf16([np.inf, 0]), one))
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            assert np.isnan(metric(bf16([np.inf, 0]), bf16([np.inf, 0])))
    assert np.isnan(max_ulp(nan, one))
    assert max_ulp(nan, nan) == 0
    # The zeros are no ulp apart, but their bytes differ.
    assert max_ulp(patterns([0]), patterns([0x8000])) == 0
    assert differing(patterns([0, 1]), patterns([0x8000, 1])).tolist() == [1]
    assert max_ulp(patterns([0x0001]), patterns([0x8001])) == 2
    # One bad sequence does not spoil the others.
    assert np.isnan(relative_l2(np.concatenate([nan, one]), np.concatenate([one, one]))).tolist() == [True, False]
    with pytest.raises(ArgumentError, match="needed bfloat16"):
        max_ulp(np.zeros((1, 2)), np.zeros((1, 2)))
    with pytest.raises(ArgumentError, match="the shape of base"):
        relative_l2(zero, bf16([0, 0, 0]))


def test_rerouted_counts_sets_not_ranks() -> None:
    base = np.array([[0, 1], [2, 3], [4, 5], [6, 7]], np.int32)
    other = np.array([[1, 0], [2, 3], [4, 6], [6, 7]], np.int32)
    assert rerouted(base, other, 2).tolist() == [0, 0.5]


@pytest.mark.parametrize("freedom", [1, 2, 3, 6, 11, 40])
@pytest.mark.parametrize("probability", [0.5, 0.75, 0.975, 0.999])
def test_quantiles_of_student(freedom: int, probability: float) -> None:
    found = student_quantile(probability, freedom)
    # The distribution by the incomplete beta function.
    tail = mpmath.betainc(freedom / 2, 0.5, 0, freedom / (freedom + found**2), regularized=True) / 2
    assert 1 - float(tail) == pytest.approx(probability, abs=1e-9)


def test_a_slope_is_that_of_the_standard_library() -> None:
    errors = np.exp(np.random.default_rng(4).standard_normal((1, 30)) * 0.1 + 0.05 * np.arange(30))
    growth = fit_growth(errors)
    line = statistics.linear_regression(range(30), np.log(errors[0]).tolist())
    assert growth.rate == pytest.approx(line.slope, rel=1e-12)
    assert growth.conclusion == "grows"
    assert growth.sentence.startswith("grows: x 4.")


@pytest.mark.parametrize(("correlation", "least"), [(0.0, 0.93), (0.5, 0.91)])
def test_intervals_hold_as_often_as_they_say(correlation: float, least: float) -> None:
    """Of 600 errors without any trend; an interval of independent residuals would hold 75 % of the correlated ones."""
    rng = np.random.default_rng(5)
    inside = 0
    for _ in range(600):
        noise = rng.standard_normal(64 + 50)
        for step in range(1, noise.size):
            noise[step] += correlation * noise[step - 1]
        growth = fit_growth(np.exp(0.2 * noise[None, 50:]))
        assert growth.low is not None
        assert growth.high is not None
        inside += growth.low <= 0 <= growth.high
    assert least <= inside / 600 <= 0.98


def test_conclusions() -> None:
    steps = np.arange(40)
    wobble = 1 + 0.01 * np.cos(steps * 2.1)
    assert fit_growth(np.zeros((2, 40))).sentence == "does not grow: exactly zero at 40 steps"
    assert fit_growth((0.1 * wobble)[None]).conclusion == "does not grow"
    assert fit_growth((0.1 * wobble * np.exp(-0.1 * steps))[None]).conclusion == "does not grow"
    assert fit_growth((1e-3 * wobble * np.exp(0.1 * steps))[None]).conclusion == "grows"
    wild = np.exp(np.random.default_rng(6).standard_normal((1, 12)) * 3)
    assert fit_growth(wild).conclusion == "cannot tell"


def test_what_is_left_out_of_a_fit() -> None:
    errors = np.full((2, 20), 0.1)
    errors[0, 3], errors[1, 5], errors[0, 7] = 0, np.nan, np.inf
    growth = fit_growth(errors)
    assert (growth.steps, growth.left_out) == (17, 3)
    same = np.ones((2, 20), bool)
    same[1, 5:] = False
    short = fit_growth(errors, same)
    assert (short.conclusion, short.steps, short.rate) == ("cannot tell", 4, None)
    one = fit_growth(np.array([[0.5]]))
    assert one.sentence == "cannot tell: 1 step with an error of the same input, 8 are needed"
    assert fit_growth(np.array([[np.nan]])).conclusion == "cannot tell"
    with pytest.raises(ArgumentError, match="none below zero"):
        fit_growth(np.array([[-1.0]]))
    with pytest.raises(ArgumentError, match=r"numbers \[sequences, steps\]"):
        fit_growth(np.zeros(3))
