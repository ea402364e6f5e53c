"""Changes are tried for a while only; what was found then is told, and is the same race."""

from __future__ import annotations

import time
from typing import Any

import pytest
from support.findings.bulk import BULK_ROWS, BulkRow
from support.findings.plain import ROWS, Row

from refmoe import ptx
from refmoe.ptx import launcher
from refmoe.ptx.findings import trials
from refmoe.ptx.schedules import agree

EVERY: tuple[Row | BulkRow, ...] = (*ROWS, *BULK_ROWS)
LOOP = next(row for row in ROWS if row.name == "two warps in a loop")


class Clock:
    """Processor time that goes on by some seconds whenever somebody looks at it."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, by: float) -> None:
        self.now, self.by = 0.0, by
        monkeypatch.setattr(time, "process_time", self)

    def __call__(self) -> float:
        """What time it is."""
        self.now += self.by
        return self.now


def found(row: Row | BulkRow) -> ptx.RaceError:
    """The race of a row, whether it is a fault or a warning."""
    try:
        result, _ = row.launch(row.text)
    except ptx.RaceError as error:
        return error
    return result.warnings[0]


@pytest.mark.parametrize("row", [LOOP, *(row for row in EVERY if row.warning)], ids=str)
def test_a_race_is_what_it_is_without_time(row: Row | BulkRow, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(trials, "_SECONDS", 0.0)
    race = found(row)
    finding = race.finding
    assert (race.kind, race.warning) == (row.kind, row.warning)
    assert finding is not None
    # What the grid before did is no access of this launch.
    assert (finding.earlier is None) == (row.kind == "previous grid")
    if row.warning != "warp-collective":
        assert (finding.remedy, finding.tried) == ("", False)
        assert finding.why == "the search ended after 0 changes, because it took longer than 0 seconds"


def test_a_launch_with_a_change_ends_when_time_is_over(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(trials, "_SECONDS", 4.0)
    Clock(monkeypatch, 1.0)
    finding = found(LOOP).finding
    assert finding is not None
    assert finding.remedy == ""
    assert finding.why == "the search ended after 1 change, because it took longer than 4 seconds"
    assert f"what orders them: not known: {finding.why}" in finding.lines()


def test_the_search_for_a_warning_is_a_short_one(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(trials, "_SECONDS", 100.0)
    monkeypatch.setattr(trials, "_WARNING_SECONDS", 4.0)
    Clock(monkeypatch, 1.0)
    warned = next(row for row in ROWS if row.warning == "same value")
    finding = found(warned).finding
    assert finding is not None
    assert finding.why.endswith("because it took longer than 4 seconds")
    fault = found(LOOP).finding
    assert fault is not None
    assert fault.why.endswith("because it took longer than 100 seconds") or fault.tried


def test_a_change_is_told_that_was_tried_under_few_schedules(monkeypatch: pytest.MonkeyPatch) -> None:
    clock = Clock(monkeypatch, 0.0)

    def late(*arguments: Any) -> tuple[bool, int]:
        clock.now += trials._SECONDS
        return agree(*arguments)

    monkeypatch.setattr(launcher, "agree", late)
    finding = found(LOOP).finding
    assert finding is not None
    assert (finding.tried, finding.clean, finding.schedules) == (True, True, 0)
    assert LOOP.remedy in finding.remedy
    assert "under this schedule alone" in str(finding.lines())
    assert f"not all was tried: {finding.why}" in finding.lines()


def test_who_has_time_is_told_nothing_of_it() -> None:
    finding = found(LOOP).finding
    assert finding is not None
    assert finding.tried
    assert finding.why == ""
