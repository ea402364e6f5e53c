"""What reports say, computed anew: the committed ones hold, and what somebody changes and signs anew is refused."""

from __future__ import annotations

import itertools
import json
import sys
from collections.abc import Callable, Iterator
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import typer
from support.damages.parity import top_key
from support.damages.recomputed import DAMAGES, mutation, small_cases, swept
from support.damages.sound import Document, committed, copied, sealed
from support.selection.thinned import thinned
from typer.testing import CliRunner

from refmoe import catalog
from refmoe.cli import app
from refmoe.litmus.program import Program
from refmoe.litmus.verdict import ModelVerdict
from refmoe.recomputed import KINDS, SLOW, convert, drift, litmus, recompute, refusals
from refmoe.recomputed.values import partings
from refmoe.reports.checks import GateRefusal
from refmoe.reports.gate import check_reports

#: A run of drift that takes a second.
SHORT = "refmoe drift --steps 2 --paths cutlass:separate,cutlass:fused,dp4a --batch 1"


def checks(found: list[GateRefusal]) -> set[str]:
    return {refusal.check for refusal in found}


JUDGED = litmus.judged


@cache
def sources(seed: int) -> list[Iterator[tuple[Program, ModelVerdict]]]:
    return [JUDGED(sys.maxsize, seed)]


def judged_once(count: int, seed: int) -> Iterator[tuple[Program, ModelVerdict]]:
    source = sources(seed)
    source[0], programs = itertools.tee(source[0])
    # How many are asked for says where they end, and not which ones they are.
    return itertools.islice(programs, count)


@pytest.fixture(autouse=True)
def programs_are_judged_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """The programs of a seed are the same in every test, and to judge them takes seconds."""
    monkeypatch.setattr(litmus, "judged", judged_once)


@pytest.fixture
def known_tensors(monkeypatch: pytest.MonkeyPatch) -> None:
    """To convert all tensors takes seconds; a slow test does."""
    monkeypatch.setattr(convert, "built_in", lambda: committed("convert.json")["tensors"])


@pytest.mark.parametrize(
    "name",
    ["stress.json", "litmus.json", "exhaustive.json", "convert.json", "bench/conformance.json", "bench/executor.json"],
)
def test_committed_reports_come_out_again(name: str, known_tensors: None) -> None:
    document = committed(name)
    assert refusals(document["kind"], document) == []


@pytest.mark.parametrize(
    ("check", "what", "made", "damage"), thinned(DAMAGES, 3), ids=[f"{row[0]}: {row[1]}" for row in DAMAGES]
)
def test_figures_that_do_not_come_out_again_are_refused(
    check: str,
    what: str,
    made: Callable[[], Document],
    damage: Callable[[Document], None],
    known_tensors: None,
) -> None:
    document = copied(made())
    damage(document)
    found = refusals(document["kind"], document)
    assert checks(found) == {check}
    if made in (mutation, small_cases):  # the others are whole reports, see above
        assert refusals(document["kind"], made()) == []


def short_drift() -> Document:
    return {**copied(drift.again(SHORT)), "kind": "drift", "command": SHORT}


@pytest.mark.parametrize(
    "damage",
    [
        lambda run: run["comparisons"][0].update(bytes_compared=run["comparisons"][0]["bytes_compared"] + 1),
        lambda run: run["comparisons"][2].update(bytes_differing=run["comparisons"][2]["bytes_differing"] - 1),
        lambda run: run["bits"][2].update(sha256=["5a1e" * 16]),
        lambda run: run["tokens"][0].reverse(),
        lambda run: run["comparisons"][2]["first_difference"].update(layer=3),
        lambda run: run["comparisons"][2]["curves"]["hidden"].update(relative_l2=[]),
    ],
)
def test_a_run_of_drift_whose_figures_were_changed_is_refused(damage: Callable[[Document], Any]) -> None:
    document = short_drift()
    assert refusals("drift", document) == []
    damage(document["runs"][0])
    assert checks(refusals("drift", document)) == {"drift.recomputed"}


def test_a_command_of_drift_that_cannot_run_is_a_sentence() -> None:
    for command in ("refmoe drift --paths mine", "refmoe drift --speed 3", "refmoe drift --steps many"):
        (found,) = refusals("drift", {**short_drift(), "command": command})
        assert "which cannot run" in found.text
    # A checkpoint of the user's own is elsewhere.
    assert refusals("drift", {**short_drift(), "command": "refmoe drift --checkpoint x"}) == []


def test_a_command_of_drift_is_read_as_the_command_line_reads_it() -> None:
    commands: Any = vars(typer.main.get_command(app))["commands"]
    read = {option.opts[0]: option.default for option in commands["drift"].params}
    # A checkpoint of the user's own is not read.
    assert read.pop("--checkpoint") is None
    ours = {option.option_strings[0]: option.default for option in drift._options()._actions}
    assert ours.keys() == read.keys()
    assert {name: ours[name] for name, default in read.items() if default is not None} == {
        name: default for name, default in read.items() if default is not None
    }


@pytest.mark.slow
def test_the_committed_runs_of_drift_and_convert_come_out_again() -> None:
    for name in ("drift", "convert"):
        assert refusals(name, committed(f"{name}.json")) == []


def test_quick_leaves_out_what_takes_long() -> None:
    assert set(recompute()) == set(KINDS)
    assert set(recompute(quick=True)) == set(KINDS) - SLOW


def test_the_gate_computes_anew_what_passed_all_else(tmp_path: Path) -> None:
    stress = copied(committed("stress.json"))
    stress["reruns"].pop()
    path = sealed(tmp_path / "stress.json", stress)
    found = check_reports([path], None, catalog, recomputed=recompute())
    assert checks(list(found.found)) == {"stress.recomputed"}
    outcome = CliRunner().invoke(app, ["gate", str(path), "--no-baseline", "--json"])
    assert outcome.exit_code == 1
    assert json.loads(outcome.stdout)["checks"] == ["stress.recomputed"]
    # What cannot be true is not computed at all.
    top_key(passed=False)(stress)
    found = check_reports([sealed(path, stress)], None, catalog, recomputed=recompute())
    assert "stress.recomputed" not in checks(list(found.found))


def test_a_sweep_of_one_subject_has_its_rows_alone() -> None:
    assert refusals("exhaustive", swept("--suite expand --dtype bf16")) == []


def test_floats_may_part_in_the_last_of_six_digits() -> None:
    assert list(partings({"a": [1.00001]}, {"a": [1.0]})) == []
    assert list(partings({"a": [1.0001]}, {"a": [1.0]})) == [("a.0", "says 1.0001, and computed anew it is 1.0")]
    assert list(partings({"a": 1}, {"a": True})) == [("a", "says 1, and computed anew it is True")]
    assert [where for where, _ in partings({"b": [1, 2]}, {"a": 1, "b": [1]})] == ["a", "b"]
