"""Programs on the executor against their verdicts: what counts as what, and the command."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from support.litmus.notation import program
from typer.testing import CliRunner

from refmoe import ptx
from refmoe.cli import app
from refmoe.litmus import run
from refmoe.litmus.axioms import judge
from refmoe.litmus.program import Program
from refmoe.litmus.run import (
    BATCH,
    ENOUGH_WALKS,
    LitmusReport,
    Observation,
    compare,
    judge_observation,
    observe,
    shows_all,
    table,
)
from refmoe.litmus.verdict import ModelVerdict

FREE = ModelVerdict(frozenset({(0, 1), (1, 1)}), (), "never", (), 2)
RIGHT = "0.0.0: st.weak x 7; st.release.gpu y 1 | 1.0.0: until ld.acquire.gpu r0 y == 1; ld.weak r1 x"
WRONG = "0.0.0: st.weak x 7 | 0.1.0: ld.weak r1 x"

#: Programs whose result no schedule changes, and that result.
RESULTS = [
    (RIGHT, (1, 7, 7, 1)),
    (RIGHT.replace("1.0.0", "0.1.0"), (1, 7, 7, 1)),
    ("[x=5] 0.0.0: copy a x 4; commit; waitgroup 0; ld.weak r0 a | 0.1.0: ld.weak r0 y", (5, 0, 5, 0)),
    ("[x=5] 0.0.0: expect 0 16; bulkload a x 0 | 0.1.0: wait 0 0; ld.weak r0 a", (5, 5, 0)),
    (
        "0.0.0: st.weak a 9; proxyfence; bulkstore x a; bulkcommit; bulkwait 0; ld.weak r0 x | 0.1.0: ld.weak r0 y",
        (9, 0, 9, 0, 0),
    ),
    (
        "[x=5] 0.0.0: st.weak a 9; st.weak b+8 4294967295; proxyfence; bulkadd x a; bulkcommit; bulkadd x b; "
        "bulkcommit; bulkwait 0; ld.weak r0 x; ld.weak r1 x+8 | 0.1.0: ld.weak r0 y",
        (14, 4294967295, 0, 14, 0, 4294967295, 0, 0),
    ),
    ("0.0.0: st.weak a 3; bar.sync 1 2 | 0.1.0: bar.sync 1 2; ld.weak r0 a; st.weak x r0", (3, 3)),
    ("0.0.0: st.weak a 3; warpsync 3 | 0.0.1: warpsync 3; ld.weak r0 a", (3,)),
    ("0.0.0: st.weak a 513; arrive 0 | 0.1.0: wait 0 0; ld.weak r0 a+1 :1", (2,)),
    (
        "0.0.0: atom.relaxed.gpu.cas r0 x 0 4; atom.relaxed.gpu.cas r1 x 0 5; atom.acq_rel.gpu.exch r2 x 6 | "
        "1.0.0: ld.nc r0 y",
        (0, 4, 4, 0, 6, 0),
    ),
    (
        "0.0.0: st.volatile x 1 :8; membar.gl; ld.volatile r0 x :8; if r0 == 1 { st.weak y 2 }; "
        "if r0 != 1 { st.weak y 3 } | 1.0.0: fence.sc.sys",
        (1, 1, 2),
    ),
]


@pytest.mark.parametrize(("text", "result"), RESULTS)
def test_results(text: str, result: tuple[int, ...]) -> None:
    found = program(text, mbarriers=(1, 1))
    (seen,) = observe([found])
    assert seen == Observation(frozenset({result}))
    verdict = judge(found)
    assert verdict.outcomes == {result}
    assert judge_observation(verdict, seen) == "agrees"


def test_programs_of_one_kernel_do_not_touch_each_other() -> None:
    found = [program(text, mbarriers=(1, 1)) for text, _ in RESULTS]
    assert [each.outcomes for each in observe(found)] == [{result} for _, result in RESULTS]


def test_a_race_is_seen() -> None:
    found = program(WRONG.replace(" x", " a"))
    (seen,) = observe([found])
    assert not seen.outcomes
    assert "race on byte 0" in str(seen.race)
    assert judge_observation(judge(found), seen) == "agrees"


@pytest.mark.parametrize(
    ("verdict", "observation", "kind"),
    [
        (FREE, Observation(frozenset({(1, 1)})), "agrees"),
        (FREE, Observation(frozenset({(1, 1), (2, 1)})), "outside the set"),
        (FREE, Observation(frozenset(), race="a race"), "false alarm"),
        (FREE, Observation(frozenset(), error="Deadlock"), "not ended"),
        (ModelVerdict(None, judge(program(WRONG)).races, "always", (), 1), Observation(frozenset({(1, 1)})), "missed"),
        (
            ModelVerdict(None, judge(program(WRONG)).races, "always", (), 1),
            Observation(frozenset(), race="a race"),
            "agrees",
        ),
        (ModelVerdict(FREE.outcomes, (), "never", ("unclear",), 2), Observation(frozenset(), race="a race"), "open"),
    ],
)
def test_what_counts_as_what(verdict: ModelVerdict, observation: Observation, kind: str) -> None:
    assert judge_observation(verdict, observation) == kind


def test_an_executor_that_is_wrong_is_found_out() -> None:
    found = program(RIGHT)

    def silent(module: Any, entry: str, grid: Any, block: Any, args: Any, **options: Any) -> None:
        """Leaves memory as it is."""

    def stale(module: Any, entry: str, grid: Any, block: Any, args: Any, **options: Any) -> None:
        """The flag is seen, and not the data."""
        ptx.launch(module, entry, grid, block, args, **options)
        args[1].array.view(np.uint64)[1] = 0

    def alarmed(*args: Any, **options: Any) -> None:
        raise ptx.RaceError("a race", block=(0, 0, 0))

    def stuck(*args: Any, **options: Any) -> None:
        raise ptx.Deadlock("nothing runs", waiting=())

    kinds = [
        judge_observation(judge(found), next(observe([found], launch=each))) for each in (silent, stale, alarmed, stuck)
    ]
    assert kinds == ["outside the set", "outside the set", "false alarm", "not ended"]


def test_a_report_counts_by_cause_and_shows_the_shortest() -> None:
    report = LitmusReport()
    long, short = program(WRONG + "; st.weak y 1; st.weak z 1"), program(WRONG)
    for each in (long, short):
        named = Program("shape", "cause", each.threads)
        report.add(named, judge(named), Observation(frozenset({(7, 7)})))
    free = Program("shape", "other", program(RIGHT).threads)
    report.add(free, judge(free), Observation(frozenset({(1, 7, 7, 1)})))
    assert not report.passed
    document = report.document()
    assert document["kinds"] == {
        "agrees": 1, "open": 0, "missed": 2, "false alarm": 0, "outside the set": 0, "not all seen": 0,
            "not ended": 0
    }  # fmt: skip
    assert document["missed_by_executions"] == {"always": 2}
    (worst,) = document["worst"]
    assert worst["program"] == short.key.splitlines()
    assert worst["races"] == [
        "thread 0: st.weak.b32 [x], 7 | thread 1: ld.weak.b32 r1, [x] | not both strong, and unordered"
    ]
    assert any("st.global.u32" in line for line in worst["ptx"])
    assert table(report)[1:] == [
        ["shape", "cause", "", "", "2", "", "", "", ""],
        ["shape", "all", "1", "", "2", "", "", "", ""],
        ["all", "", "1", "0", "2", "0", "0", "0", "0"],
    ]


def test_several_schedules_show_several_outcomes() -> None:
    found = program("0.0.0: atom.relaxed.gpu.add r0 x 1 | 1.0.0: atom.relaxed.gpu.add r0 x 1")
    allowed = {(0, 1, 2), (1, 0, 2)}
    once, often = (next(observe([found], schedules)) for schedules in (1, 16))
    assert judge(found).outcomes == allowed
    assert len(once.outcomes) == 1
    assert often.outcomes == allowed
    report = compare([(found, judge(found))], 16)
    assert (report.allowed, report.seen, report.passed) == (2, 2, True)


def test_right_programs_pass() -> None:
    found = [program(text, mbarriers=(1, 1)) for text, _ in RESULTS]
    report = compare((each, judge(each)) for each in found)
    assert report.passed
    assert report.kinds == {"agrees": len(RESULTS)}
    assert report.allowed == report.seen == len(RESULTS)


def test_the_command(tmp_path: Path) -> None:
    path = tmp_path / "litmus.json"
    result = CliRunner().invoke(app, ["litmus", "--programs", "12", "--seed", "5", "--report", str(path)])
    document = json.loads(path.read_text())
    assert (document["programs"], document["seed"]) == (12, 5)
    assert result.exit_code == (0 if document["passed"] else 1)
    assert result.stdout.splitlines()[0].split()[:3] == ["shape", "cause", "agrees"]


#: Two batches, in none of whose programs a race needs more than two schedules.
MANY = ["litmus", "--programs", str(BATCH + 2), "--schedules", "2", "--seed", "3"]


@pytest.mark.slow
def test_processes_find_what_one_finds(tmp_path: Path) -> None:
    documents = []
    for jobs in ("1", "2"):
        path = tmp_path / f"{jobs}.json"
        # Two kernels, so that both processes have one.
        arguments = [*MANY, "--jobs", jobs, "--report", str(path)]
        assert CliRunner().invoke(app, arguments).exit_code == 0
        documents.append(json.loads(path.read_text()))
    alone, together = documents
    assert alone == together
    assert alone["kinds"]["agrees"] == BATCH + 2


def test_the_command_goes_on_after_ctrl_c(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    whole, path = tmp_path / "whole.json", tmp_path / "litmus.json"
    command = MANY
    assert CliRunner().invoke(app, [*command, "--report", str(whole)]).exit_code == 0
    partial = tmp_path / "litmus.json.partial"
    observed, calls = run._observed, 0

    def interrupted(schedules: int, walks: int, batch: run.Batch) -> run.Observed:
        nonlocal calls
        calls += 1
        if calls == 2:
            raise KeyboardInterrupt
        return observed(schedules, walks, batch)

    monkeypatch.setattr(run, "_observed", interrupted)
    first = CliRunner().invoke(app, [*command, "--report", str(path)])
    assert (first.exit_code, path.exists()) == (130, False)
    assert f"batches of programs that are in {partial}: 1; the same command goes on" in " ".join(first.output.split())
    again = CliRunner().invoke(app, [*command, "--report", str(path)])
    assert (again.exit_code, calls, partial.exists()) == (0, 3, False)
    assert f"batches of programs that are in {partial}: 1" in " ".join(again.output.split())
    assert json.loads(path.read_text()) == json.loads(whole.read_text())


def test_a_folder_is_no_report(tmp_path: Path) -> None:
    refused = CliRunner().invoke(app, ["litmus", "--programs", "2", "--report", str(tmp_path)])
    assert refused.exit_code == 2
    assert "a folder; needed a file" in " ".join(refused.output.split())


def test_partial_results_of_another_command_are_refused(tmp_path: Path) -> None:
    path = tmp_path / "litmus.json"
    partial = tmp_path / "litmus.json.partial"
    partial.write_text('{"kind": "sweep", "of": "mutants"}\n')
    command = ["litmus", "--programs", "2", "--report", str(path)]
    refused = CliRunner().invoke(app, command)
    assert (refused.exit_code, path.exists(), partial.exists()) == (2, False, True)
    assert "made from other sources or settings" in " ".join(refused.output.split())
    assert CliRunner().invoke(app, [*command, "--fresh"]).exit_code == 0
    assert (path.exists(), partial.exists()) == (True, False)


#: Store buffering, whose four outcomes few schedules show together.
BUFFERS = "0.0.0: st.relaxed.gpu x 1; ld.relaxed.gpu r0 y | 1.0.0: st.relaxed.gpu y 1; ld.relaxed.gpu r0 x"
#: A fence that synchronises with nobody, behind a read: no engine that goes forward lets the read pass it.
PASSES = (
    "0.0.0: ld.relaxed.gpu r0 x; fence.acq_rel.cta; st.relaxed.gpu y 1 | "
    "1.0.0: ld.relaxed.gpu r0 y; fence.acq_rel.cta; st.relaxed.gpu x 1"
)
ATOMIC_PASSES = (
    "0.0.0: atom.relaxed.gpu.add r0 x 1; fence.acq_rel.cta; st.relaxed.gpu y 1 | "
    "1.0.0: atom.relaxed.gpu.add r0 y 1; fence.acq_rel.cta; st.relaxed.gpu x 1"
)
LOAD_PASSES_IN_ORDER = (
    "0.0.0: ld.relaxed.gpu r0 x; fence.sc.gpu; st.relaxed.gpu y 1 | "
    "1.0.0: ld.relaxed.gpu r0 y; fence.sc.cta; st.relaxed.gpu x 1"
)
ATOMIC_PASSES_IN_ORDER = (
    "0.0.0: atom.relaxed.gpu.add r0 x 1; fence.sc.gpu; st.relaxed.gpu y 1 | "
    "1.0.0: ld.relaxed.gpu r0 y; st.relaxed.gpu x r0"
)


def test_a_program_without_a_race_shows_every_outcome() -> None:
    found = program(BUFFERS)
    verdict = judge(found)
    assert verdict.outcomes is not None
    assert shows_all(verdict)
    few = Observation(frozenset(list(verdict.outcomes)[:1]))
    assert judge_observation(verdict, few) == "agrees"
    assert judge_observation(verdict, few, whole=True) == "not all seen"
    assert judge_observation(verdict, Observation(verdict.outcomes), whole=True) == "agrees"
    report = compare([(found, verdict)], schedules=2, walks=ENOUGH_WALKS)
    assert (report.passed, report.document()["equal"], report.document()["subset"]) == (True, 1, 0)
    assert report.verdict_on_outcomes == "equal in all 1 programs without a race"
    # So few schedules need not show all, and the report says so.
    once = compare([(found, verdict)])
    assert once.passed
    assert once.document()["subset_by_shape"] == {found.shape: 1}
    assert once.verdict_on_outcomes == ("equal in 0 programs without a race, and a part in 1: 1 of 4 outcomes")
    late = LitmusReport(whole=True)
    assert late.add(found, verdict, few) == "not all seen"
    assert not late.passed


@pytest.mark.parametrize("passing", [PASSES, ATOMIC_PASSES, LOAD_PASSES_IN_ORDER, ATOMIC_PASSES_IN_ORDER])
def test_what_a_read_passes_has_to_show(passing: str) -> None:
    found = program(passing)
    verdict = judge(found)
    assert (verdict.racy, shows_all(verdict)) == (False, True)
    report = compare([(found, verdict)], schedules=4, walks=ENOUGH_WALKS)
    assert (report.passed, report.verdict_on_outcomes) == (True, "equal in all 1 programs without a race")
