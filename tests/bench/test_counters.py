"""The counters of a GPU: what ncu prints, joined with what was launched, and what it means; without a GPU."""

from __future__ import annotations

import csv
import io
from collections.abc import Mapping
from typing import Any

import pytest

from refmoe.bench.counters import join
from refmoe.bench.counters.launches import launch
from refmoe.bench.counters.ncu import METRICS, STALLS, parse
from refmoe.bench.counters.reading import sentence
from refmoe.bench.gpu.timing import Calls, contender
from refmoe.cuda.launch import Entry, LaunchPlan
from refmoe.errors import RefmoeError

COUNTED = dict.fromkeys((*METRICS.values(), *STALLS.values()), "0") | {
    METRICS["nanoseconds"]: "181,664",
    METRICS["instructions"]: "142,824,900",
    METRICS["issue_share"]: "78.917",
    METRICS["memory_share"]: "69.949",
    STALLS["its turn"]: "3.0",
    STALLS["memory"]: "0.9",
    STALLS["a fence"]: "0.1",
}


def printed(*launches: Mapping[str, str], before: str = "==PROF== Connected to process 7\n") -> str:
    """What ncu prints for launches, each a name and its counters: heads, units, then a row for each."""
    heads = ["ID", "Kernel Name", *COUNTED]
    text = io.StringIO()
    table = csv.DictWriter(text, heads, quoting=csv.QUOTE_ALL)
    table.writeheader()
    table.writerow({"ID": "", **dict.fromkeys(COUNTED, "%")})
    for at, each in enumerate(launches):
        table.writerow({"ID": str(at), **each})
    return before + text.getvalue()


def test_a_row_has_its_counters_and_the_causes_of_waiting_in_order() -> None:
    (row,) = parse(printed({"Kernel Name": "refmoe_swiglu(const unsigned int *, int)", **COUNTED}))
    assert (row["entry"], row["microseconds"], row["instructions"]) == ("refmoe_swiglu", 181.66, 142_824_900)
    assert (row["issue_share"], row["memory_share"]) == (78.92, 69.95)
    assert list(row["waits"].items()) == [("its turn", 75.0), ("memory", 22.5)], "2.5 % of the waiting is left out"


def test_a_counter_that_the_chip_lacks_is_named() -> None:
    lacking = {**COUNTED, METRICS["xu_share"]: ""}
    with pytest.raises(RefmoeError, match=r"pipe_xu.*the chip may lack this counter"):
        parse(printed({"Kernel Name": "k", **lacking}))


def test_what_ncu_says_instead_of_a_table_is_the_error() -> None:
    with pytest.raises(RefmoeError, match="ERR_NVGPUCTRPERM"):
        parse("==ERROR== ERR_NVGPUCTRPERM - The user does not have permission to access the counters\n")
    with pytest.raises(RefmoeError, match="counted nothing"):
        parse("")


@pytest.mark.parametrize("counted", [["a"], ["a", "b", "c"], ["b", "a"], []])
def test_counts_of_other_launches_are_refused(counted: list[str]) -> None:
    ours, theirs = ([{"entry": entry} for entry in side] for side in (["a", "b"], counted))
    with pytest.raises(RefmoeError, match=r"ncu counted .* as launch"):
        join(ours, theirs)


def test_counts_of_the_same_launches_are_joined() -> None:
    assert join([{"entry": "a", "name": "row"}], [{"entry": "a", "waves": 2}]) == [
        {"entry": "a", "name": "row", "waves": 2}
    ]


def test_a_sentence_names_what_is_busy_or_what_the_warps_wait_for() -> None:
    (row,) = parse(printed({"Kernel Name": "k", **COUNTED}))
    assert sentence(row) == "busy, of their peaks: issue of instructions 79 %"
    idle = {**row, "issue_share": 40.0}
    assert sentence(idle) == (
        "nothing is busy: memory, the busiest, has 70 % of its peak; warps wait most for its turn (75 %) and "
        "memory (22 %)"
    )


class _Recorder:
    """Stands for a GPU: keeps what was put on its stream."""

    def __init__(self) -> None:
        self.entries: list[str] = []

    def enqueue(self, plan: LaunchPlan) -> None:
        self.entries.append(plan.kernel.entry)


def test_each_contender_is_launched_once_in_order_and_makes_one_set_of_buffers() -> None:
    device: Any = _Recorder()
    made = []

    def pair(seed: int) -> list[LaunchPlan]:
        made.append(seed)
        return [LaunchPlan(Entry("q", entry), 1, 32, ()) for entry in ("first", "second")]

    floor, ours = contender(device, "floor", 10**9, pair), contender(device, "pair", 1, pair)
    rows = launch([(floor, Calls("of torch", 1, ()), ours)])
    assert device.entries == [row["entry"] for row in rows] == ["first", "second", "first", "second"]
    assert made == [0, 0]
    assert [row["name"] for row in rows] == ["floor", "floor", "pair", "pair"]
    assert {row["floor"] for row in rows} == {"floor"}
