"""Approximate instructions are let through for the opcodes of the sources whose bytes do not depend on them."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from refmoe.cuda.launch import Entry
from refmoe.cuda.toolchain import CSRC
from refmoe.verify.certified import CERTIFIED, uncertified

EX2, RCP, TANH = ("ex2.approx.ftz.f32", 7), ("rcp.approx.ftz.f32", 8), ("tanh.approx.f32", 9)


def record(source: str, *approximate: tuple[str, int]) -> Any:
    return SimpleNamespace(kernel=Entry(source, "entry"), result=SimpleNamespace(approximate=approximate))


@pytest.mark.parametrize(
    ("source", "approximate", "left"),
    [
        ("activation", (), ()),
        ("activation", (EX2, RCP), ()),
        ("activation", (EX2, TANH), (TANH,)),
        ("activation", (("ex2.approx.f32", 7),), (("ex2.approx.f32", 7),)),
        ("swiglu_q8_1", (EX2, RCP), (EX2, RCP)),
    ],
)
def test_what_is_left(source: str, approximate: tuple[tuple[str, int], ...], left: tuple[tuple[str, int], ...]) -> None:
    assert uncertified(record(source, *approximate)) == left


def test_a_gpu_does_not_say_what_it_approximates() -> None:
    assert uncertified(SimpleNamespace(kernel=Entry("expand", "entry"), result=None)) == ()  # type: ignore[arg-type]


def test_each_source_with_a_certificate_has_it() -> None:
    for source in CERTIFIED:
        assert "swiglu_estimate.cuh" in (CSRC / f"{source}.cu").read_text()
