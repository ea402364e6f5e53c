"""A kernel that always goes the long way fails on ordinary data, though its bytes are right."""

from __future__ import annotations

from dataclasses import replace

import pytest

from refmoe.catalog import parse_case
from refmoe.cuda.launch import Entry, LaunchPlan
from refmoe.errors import RefmoeError
from refmoe.families.extents import work
from refmoe.families.extents.work import check_work
from refmoe.ptx import LaunchResult
from refmoe.verify.kernel import Devices, Kernel
from refmoe.verify.runner import run_case
from refmoe.verify.verdict import Verdict

#: 1000 rows of 32 lanes, of one group of scales each, without a bias.
PLAN = LaunchPlan(Entry("activation", "entry"), 100, 32, (*[None] * 8, 1000, 3, 20, 1))
MOST = 1000 * 32 * 16 * 40


def result(count: int) -> LaunchResult:
    return LaunchResult(count, 0, (), (), 0.0)


def test_so_many_instructions_and_no_more() -> None:
    check_work(PLAN, result(MOST))
    check_work(PLAN, None)
    check_work(replace(PLAN, kernel=Entry("quantize", "entry")), result(2 * MOST))
    with pytest.raises(RefmoeError, match="on ordinary data"):
        check_work(PLAN, result(MOST + 1))


def test_few_rows_of_a_cta_each_and_a_sample_say_nothing() -> None:
    few = replace(PLAN, grid=256, arguments=(*[None] * 8, 256, 3, 20, 1))
    check_work(few, result(MOST))
    check_work(replace(PLAN, blocks=(0, 1)), result(2 * MOST))
    with pytest.raises(RefmoeError):
        check_work(replace(few, grid=255), result(MOST))


@pytest.mark.parametrize("fill", ["gaussian", "scale-edges:variant=silu:mode=floor:bias=distinct"])
def test_a_case_of_ordinary_data_is_held_against_it(fill: str, monkeypatch: pytest.MonkeyPatch) -> None:
    case = parse_case(f"activation:bf16:m80k96e3:{fill}:multiprocessors=1:seed7@ptx")
    kernel = Kernel(case.family, Devices())
    assert run_case(kernel, case).verdict is Verdict.PASS
    monkeypatch.setattr(work, "_ESTIMATED", 20)
    found = run_case(kernel, case)
    assert found.verdict is Verdict.ERROR
    assert "its short way takes" in str(found.reason)
