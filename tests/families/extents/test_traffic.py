"""What a plan says of bytes is held against the count of a family. tests/cuda/moe/test_traffic.py measures them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import pytest

from refmoe.catalog import parse_case
from refmoe.cuda.device import PtxDevice, open_device
from refmoe.cuda.moe.launches import LaunchStep, Traffic
from refmoe.errors import RefmoeError
from refmoe.families.extents.traffic import LayerTraffic

CASES = (
    "moe:bf16:m3k96n64e6t4:gaussian:bias=distinct:params=distinct:global_scales=distinct:seed7@ptx",
    "moe:fp16:m3k96n64e4t2:gaussian:path=fused:first_expert=4:ranks=2:seed7@ptx",
    "moe:bf16:m3k96n64e4t2:gaussian:path=ready:seed7@ptx",
    "integer_moe:bf16:m3k64n32e4t2:gaussian:bias=distinct:params=distinct:seed7@ptx",
    "integer_moe:q8_1:m3k96n32e6t2:gaussian:path=llama_cpp:output=q8_1:seed7@ptx",
    "deepseek_moe:bf16:m3k256n128e8t3:gaussian:seed7@ptx",
    "deepseek_moe:bf16:m3k256n128e8t3:gaussian:shared=none:router=given:seed7@ptx",
)


def checked(text: str, monkeypatch: pytest.MonkeyPatch) -> tuple[LayerTraffic, tuple[LaunchStep, ...]]:
    """The count and the plan of a case; nothing is launched."""
    found: list[tuple[LayerTraffic, tuple[LaunchStep, ...]]] = []
    original = LayerTraffic.check

    def check(self: LayerTraffic, steps: Sequence[Any]) -> None:
        original(self, steps)
        found.append((self, tuple(steps)))

    monkeypatch.setattr(LayerTraffic, "check", check)
    monkeypatch.setattr(PtxDevice, "launch", lambda self, plan: None)
    case = parse_case(text)
    case.family.run(case, case.family.inputs(case), open_device("ptx", case.arch))
    monkeypatch.undo()
    ((traffic, steps),) = found
    return traffic, steps


@pytest.mark.parametrize("text", CASES)
def test_every_figure_of_a_plan_counts(text: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """A byte more of any buffer of any launch, and a buffer that is not touched, are found."""
    traffic, steps = checked(text, monkeypatch)
    for place, step in enumerate(steps):
        known = step.traffic(traffic.loads()[-1])

        def off(load: Any, side: str, buffer: str, step: LaunchStep = step) -> Traffic:
            said = step.moves(load)
            changed = {**getattr(said, side), buffer: getattr(said, side).get(buffer, 0) + 1}
            return replace(said, **{side: changed})

        for side in ("reads", "writes"):
            for buffer in (*getattr(known, side), "gate_up_alpha"):
                wrong = replace(step, moves=lambda load, side=side, buffer=buffer: off(load, side, buffer))
                with pytest.raises(RefmoeError, match=f"a plan says that {step.stage} {side} .* bytes of {buffer}"):
                    traffic.check((*steps[:place], wrong, *steps[place + 1 :]))
        with pytest.raises(RefmoeError, match=f"{step.stage} says that its outputs are"):
            traffic.check((*steps[:place], replace(step, outputs=()), *steps[place + 1 :]))
        with pytest.raises(RefmoeError, match=f"{step.stage} says that its conversions are"):
            traffic.check((*steps[:place], replace(step, conversions=("BF16",)), *steps[place + 1 :]))
    with pytest.raises(RefmoeError, match=r"the launches are .*; due are"):
        traffic.check(steps[:1])


def test_the_loads_differ_in_what_a_plan_depends_on(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing here, rows of the first expert or none, experts without rows, as many rows as there are."""
    traffic, _ = checked(CASES[0], monkeypatch)
    assert traffic.loads() == ((0,) * 6, (3, 0, 0, 0, 0, 0), (0, 0, 0, 0, 0, 3), (2,) * 6)


def test_no_tokens_make_no_launch(monkeypatch: pytest.MonkeyPatch) -> None:
    traffic, steps = checked("moe:bf16:m0k96n64e4t2:gaussian:seed7@ptx", monkeypatch)
    assert steps == ()
    more = checked(CASES[0], monkeypatch)[1]
    with pytest.raises(RefmoeError, match="due are none"):
        traffic.check(more)
