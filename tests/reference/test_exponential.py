"""The shared exponential: equal to its specification, as near to exp(x) as stated, and right where it branches."""

from __future__ import annotations

import itertools
import json
from pathlib import Path

import mpmath
import numpy as np
import pytest
from support.fp32_values import CORNERS, bits, mixed, same_bytes

import refmoe
from refmoe.bench import exponential as bench
from refmoe.errors import ArgumentError
from refmoe.reference import exponential as module
from refmoe.reference import fp32
from refmoe.reference.exponential import MAX_ULP, OVERFLOW, UNDERFLOW, exponential
from refmoe.reference.scalar.arithmetic import fma as specified_fma
from refmoe.reference.scalar.exponential import exponential as specified


@pytest.mark.parametrize("seed", range(3))
def test_equals_the_specification(seed: int) -> None:
    rng = np.random.default_rng(seed)
    x = np.concatenate([CORNERS, mixed(rng, (150,)), rng.uniform(-105, 90, 400).astype(np.float32)])
    assert same_bytes(exponential(x), [specified(b) for b in bits(x)])


def test_every_branch_has_its_bits() -> None:
    up, down = np.nextafter(OVERFLOW, np.float32(np.inf)), np.nextafter(UNDERFLOW, np.float32(-np.inf))
    x = np.array([np.nan, -np.nan, np.inf, -np.inf, OVERFLOW, up, UNDERFLOW, down, 0.0, -0.0], np.float32)
    inf, one = 0x7F800000, 0x3F800000
    assert same_bytes(exponential(x), [0x7FFFFFFF, 0x7FFFFFFF, inf, 0, 0x7F7FFF84, inf, 1, 0, one, one])


def test_nothing_that_is_argued_instead_of_evaluated_differs() -> None:
    """The bench evaluates 2^-25 <= |x|: below, the result is 1 at both ends of every binade and in between."""
    rng = np.random.default_rng(0)
    exponents = np.arange(1, (127 - 25)) << 23
    magnitudes = np.concatenate([exponents, exponents - 1, rng.integers(0, exponents[-1], 20000)]).astype(np.uint32)
    x = np.concatenate([magnitudes, magnitudes | 0x80000000]).astype(np.uint32).view(np.float32)
    assert (exponential(x) == 1).all()
    beyond = rng.integers(int(OVERFLOW.view(np.uint32)) + 1, 0x7F800000, 20000).astype(np.uint32)
    assert np.isposinf(exponential(beyond.view(np.float32))).all()
    beyond = rng.integers(int(UNDERFLOW.view(np.uint32)) + 1, 0xFF800000, 20000).astype(np.uint32)
    assert (exponential(beyond.view(np.float32)).view(np.uint32) == 0).all()


def test_error_is_as_stated_against_mpmath() -> None:
    """With results in every binade, subnormal ones included."""
    rng = np.random.default_rng(1)
    x = np.concatenate([rng.uniform(float(UNDERFLOW), float(OVERFLOW), 4000), rng.uniform(-0.5, 0.5, 4000)])
    x = np.concatenate([x.astype(np.float32), np.array([0xC0BB2813], np.uint32).view(np.float32)])
    found = exponential(x)
    errors = []
    with mpmath.workprec(120):
        for value, result in zip(x.tolist(), found.tolist(), strict=True):
            exact = mpmath.exp(mpmath.mpf(value))
            unit = mpmath.mpf(2) ** (max(int(mpmath.floor(mpmath.log(exact, 2))), -126) - 23)
            errors.append(float(abs(mpmath.mpf(result) - exact) / unit))
    assert max(errors) <= MAX_ULP
    assert errors[-1] > MAX_ULP - 0.001, "the worst input is the one that the module names"


def test_bench_covers_every_input_once() -> None:
    """2^32 inputs less the NaNs are the evaluated ones and those that follow; a thin run sees it."""
    document = bench.run(stride=4099)
    ranges = [(first, last) for first, last in bench._binades()]
    assert sum(last - first + 1 for first, last in ranges) + document["constant_inputs"] == 2**32 - 2 * (2**23 - 1)
    assert all(b[0] == a[1] + 1 for a, b in itertools.pairwise(ranges) if a[0] >> 31 == b[0] >> 31)
    assert document["reached"]
    assert 0.8 < document["max_ulp"] <= MAX_ULP
    assert document["not_correctly_rounded"] > 0


def test_committed_report_is_of_this_sequence() -> None:
    """Its constants are ours, it left nothing out, its worst input is as bad as it says, and that is what we state."""
    text = (Path(refmoe.__file__).parent.parent / "reports" / "bench" / "exponential.json").read_text(encoding="utf-8")
    report = json.loads(text)
    assert report["constants"] == bench.constants()
    assert report["stride"] == 1
    assert report["inputs"] + report["constant_inputs"] == 2**32 - 2 * (2**23 - 1)
    worst = np.array([int(report["worst_bits"], 16)], np.uint32).view(np.float32)
    assert bench._errors(worst)[0][0] == report["max_ulp"]
    assert MAX_ULP - 1e-4 < report["max_ulp"] <= MAX_ULP
    assert f"{report['not_correctly_rounded']:,}" in str(module.__doc__)


def test_bench_sees_a_wrong_coefficient(monkeypatch: pytest.MonkeyPatch) -> None:
    p2 = module.COEFFICIENTS[4] + np.float32(2.0**-21)
    wrong = (*module.COEFFICIENTS[:4], p2, *module.COEFFICIENTS[5:])
    monkeypatch.setattr(module, "COEFFICIENTS", wrong)
    assert not bench.run(stride=40099)["reached"]


def test_refusals() -> None:
    with pytest.raises(ArgumentError, match="x: found float64"):
        exponential(np.zeros(3))  # type: ignore[arg-type]
    with pytest.raises(ArgumentError, match="stride"):
        bench.run(stride=0)


def test_fma_rounds_once() -> None:
    """1 + 2^-24 + 2^-60: rounded to float64 first it would be a tie, and 1. And any FP32 numbers."""
    x, y = np.float32(4097 * 2.0**-30), np.float32((2**24 - 2**12 + 1) * 2.0**-30)
    one = np.ones(1, np.float32)
    assert float(x) * float(y) == 2.0**-24 + 2.0**-60
    assert fp32.fma(one * x, y, one)[0] == np.float32(1 + 2.0**-23)
    rng = np.random.default_rng(3)
    operands = [mixed(rng, (300,)) for _ in range(3)]
    wanted = [specified_fma(*triple) for triple in zip(*(bits(operand) for operand in operands), strict=True)]
    assert same_bytes(fp32.fma(*operands), wanted)
