"""Approximate instructions are let through where a header proves what it makes of them, and nowhere else."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from refmoe.cuda.launch import Entry
from refmoe.cuda.toolchain import CSRC
from refmoe.verify.certified import CERTIFIED, uncertified

EX2, RCP, TANH = ("ex2.approx.ftz.f32", 7), ("rcp.approx.ftz.f32", 8), ("tanh.approx.f32", 9)
PLAIN = ("ex2.approx.f32", 7)
INSIDE, OUTSIDE = "/any/folder/swiglu_estimate.cuh:58", "/any/folder/swiglu.cuh:71"
PROVEN = (INSIDE, INSIDE)
Place = tuple[str | None, str | None]


def record(source: str, approximate: tuple[tuple[str, int], ...], places: tuple[Place, ...]) -> Any:
    result = SimpleNamespace(approximate=approximate, approximate_at=places)
    return SimpleNamespace(kernel=Entry(source, "entry"), result=result)


@pytest.mark.parametrize(
    ("source", "approximate", "places", "left"),
    [
        ("activation", (), (), ()),
        ("activation", (EX2, RCP), (PROVEN, PROVEN), ()),
        ("activation", (EX2,), ((INSIDE, None),), ()),
        ("activation", (EX2, TANH), (PROVEN, PROVEN), (TANH,)),
        ("activation", (PLAIN,), (PROVEN,), (PLAIN,)),
        ("activation", (EX2, RCP), ((INSIDE, OUTSIDE), PROVEN), (EX2,)),
        ("activation", (EX2, RCP), (PROVEN, (OUTSIDE, None)), (RCP,)),
        ("activation", (EX2,), ((None, None),), (EX2,)),
        ("swiglu_q8_1", (EX2, RCP), (PROVEN, PROVEN), (EX2, RCP)),
    ],
)
def test_what_is_left(
    source: str,
    approximate: tuple[tuple[str, int], ...],
    places: tuple[Place, ...],
    left: tuple[tuple[str, int], ...],
) -> None:
    assert uncertified(record(source, approximate, places)) == left


def test_a_gpu_does_not_say_what_it_approximates() -> None:
    assert uncertified(SimpleNamespace(kernel=Entry("expand", "entry"), result=None)) == ()  # type: ignore[arg-type]


def test_each_source_with_a_certificate_has_it() -> None:
    for source, header in CERTIFIED.items():
        assert header in (CSRC / f"{source}.cu").read_text()
