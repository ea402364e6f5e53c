"""A level that is interrupted or killed: what passed does not run again, and the report is that of one run."""

from __future__ import annotations

import dataclasses
import errno
import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest
from support.verify import CASE, result, stand_in
from typer.testing import CliRunner, Result

from refmoe.catalog import list_cases, parse_case
from refmoe.cli import app
from refmoe.families.family import Assumption
from refmoe.files import partial_of
from refmoe.verify import kept, kernel
from refmoe.verify.kept import KeptRun
from refmoe.verify.plant import FaultResult, Patch
from refmoe.verify.sweep import Ledger
from refmoe.verify.verdict import Verdict

REPORT = Path("found.json")
ASKED = ("parity", "--suite", "mxfp8_quantize", "--level", "quick", "--arch", "sm_120a", "--report", str(REPORT))
COMMAND = "refmoe parity --device ptx --arch=sm_120a --level quick --suite=mxfp8_quantize"
PARTIAL = partial_of(REPORT, COMMAND)


@pytest.fixture(autouse=True)
def _in_a_folder_of_its_own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    monkeypatch.chdir(tmp_path)
    kernel._problem.cache_clear()
    yield
    kernel._problem.cache_clear()


def refmoe(*arguments: str) -> Result:
    return CliRunner().invoke(app, list(arguments))


class Ran:
    """Cases that ran; Ctrl-C comes after so many of them."""

    def __init__(self) -> None:
        self.start()

    def start(self, most: int = 1 << 30, wrong: frozenset[str] = frozenset()) -> None:
        """Count anew."""
        self.cases: list[str] = []
        self.most, self.wrong = most, wrong

    def __call__(self, case: Any, outputs: Any) -> None:
        if len(self.cases) == self.most:
            raise KeyboardInterrupt
        self.cases.append(str(case))
        if str(case) in self.wrong:
            outputs["codes"][0, 0] ^= 1


@pytest.fixture
def ran(monkeypatch: pytest.MonkeyPatch) -> Ran:
    made = Ran()
    stand_in(monkeypatch, made)
    return made


def compared(path: Path) -> dict[str, Any]:
    """A report without its times."""
    document = json.loads(path.read_text())
    for name in ("created", "digest", "seconds"):
        del document[name]
    for case in document["cases"]:
        del case["seconds"]
    return document


def listed() -> list[str]:
    return [str(case) for case in list_cases("quick", ["mxfp8_quantize"], arch="sm_120a")]


def test_the_same_command_goes_on_and_its_report_is_that_of_one_run(ran: Ran) -> None:
    ran.start(4)
    assert refmoe(*ASKED).exit_code == 130
    ran.start()
    found = refmoe(*ASKED)
    assert found.exit_code == 0
    assert f"4 cases are in {PARTIAL}: they do not run again" in found.output
    assert ran.cases == listed()[4:]
    assert not PARTIAL.exists()
    went_on = compared(REPORT)
    ran.start()
    assert refmoe(*ASKED).exit_code == 0
    assert ran.cases == listed()
    assert compared(REPORT) == went_on


def test_a_case_that_failed_runs_again(ran: Ran) -> None:
    ran.start(4, frozenset(listed()[1:2]))
    assert refmoe(*ASKED).exit_code == 130
    ran.start(wrong=frozenset(listed()[1:2]))
    found = refmoe(*ASKED)
    assert found.exit_code == 1
    assert ran.cases == [listed()[1], *listed()[4:]]
    assert not PARTIAL.exists()


@pytest.mark.parametrize("other", [("--schedules", "2"), ("--suite", "finalize"), ("--level", "full")])
def test_another_command_leaves_the_results_of_this_one(ran: Ran, other: tuple[str, ...]) -> None:
    ran.start(4)
    assert refmoe(*ASKED).exit_code == 130
    before = PARTIAL.read_text()
    ran.start(0)
    assert refmoe(*ASKED, *other).exit_code == 130
    assert PARTIAL.read_text() == before


def test_results_of_other_sources_are_dropped(monkeypatch: pytest.MonkeyPatch, ran: Ran) -> None:
    ran.start(4)
    assert refmoe(*ASKED).exit_code == 130
    monkeypatch.setattr(kept, "installation", lambda: {"refmoe": "other", "compiler": "none", "numpy": "2"})
    ran.start()
    found = refmoe(*ASKED)
    assert "dropped: " in found.output
    assert "made from other sources" in " ".join(found.output.split())
    assert len(ran.cases) == len(listed())


@pytest.mark.parametrize("content", [b"", b"half a li"])
def test_what_a_lost_machine_left_of_a_line_is_cut_off(ran: Ran, content: bytes) -> None:
    ran.start(4)
    assert refmoe(*ASKED).exit_code == 130
    PARTIAL.write_bytes(PARTIAL.read_bytes() + content)
    ran.start()
    assert refmoe(*ASKED).exit_code == 0
    assert len(ran.cases) == len(listed()) - 4


def test_a_file_that_is_no_ledger_is_refused_and_left(ran: Ran) -> None:
    PARTIAL.write_text("my notes\n")
    found = refmoe(*ASKED)
    assert found.exit_code == 2
    assert str(PARTIAL) in found.output.replace("\n", "")
    assert PARTIAL.read_text() == "my notes\n"


def test_a_result_whose_fields_somebody_changed_is_none(ran: Ran) -> None:
    ran.start(4)
    assert refmoe(*ASKED).exit_code == 130
    changed = PARTIAL.read_text().replace('"verdict": "PASS"', '"verdict": "FINE"', 1)
    PARTIAL.write_text(changed)
    ran.start()
    assert refmoe(*ASKED).exit_code == 0
    assert len(ran.cases) == len(listed()) - 3


@pytest.mark.parametrize("line", ["3", '"text"', '{"run": "run 1"}', '{"run": "run 1", "seconds": "x", "cases": {}}'])
def test_a_line_that_is_no_result_is_passed_over(ran: Ran, line: str) -> None:
    ran.start(4)
    assert refmoe(*ASKED).exit_code == 130
    PARTIAL.write_text(f'{PARTIAL.read_text()}{{"piece": "x", "result": {line}}}\n')
    ran.start()
    assert refmoe(*ASKED).exit_code == 0
    assert len(ran.cases) == len(listed()) - 4


def test_two_runs_at_once_do_not_write_one_file(ran: Ran) -> None:
    other = KeptRun(PARTIAL, COMMAND)
    found = refmoe(*ASKED)
    assert found.exit_code == 2
    assert f"{PARTIAL}, which another run writes; needed another --report" in " ".join(found.output.split())
    other.close()
    assert refmoe(*ASKED).exit_code == 0


def test_every_field_of_a_result_comes_back(tmp_path: Path) -> None:
    whole = dataclasses.replace(
        result(),
        id="one",
        assumption=Assumption("sm120", "published", "a text"),
        differing=(("out", 0),),
        sources=("a.cu", "b.py"),
        launches=("entry 1 x 32",),
        policies=("rceil/exact",),
        warnings=("a warning",),
        schedules=16,
    )
    refused = dataclasses.replace(whole, case=parse_case(f"{CASE}.sm_90a"), verdict=Verdict.UNSUPPORTED, expected=True)
    failed = dataclasses.replace(whole, case=parse_case(f"{CASE}.sm_121a"), verdict=Verdict.MISMATCH)
    caught = FaultResult("7-name", "wrong", "a class", str(CASE), Verdict.ERROR, "a race", 3, True, ("all",))
    survived = dataclasses.replace(caught, name="8-name", case=None)

    def source(family: str) -> str:
        assert whole.source_sha256
        return whole.source_sha256

    written = KeptRun(tmp_path / "kept", "command")
    written.keep([whole, refused, failed])
    written.keep_fault(caught)
    written.keep_fault(survived)
    written.close()
    read = KeptRun(tmp_path / "kept", "command")
    assert (read.cases, read.faults, read.dropped) == (2, 1, None)
    assert [read.result(each.case, source) for each in (whole, refused, failed)] == [whole, refused, None]
    assert read.result(whole.case, lambda family: "other") is None
    faults = [Patch(name, "wrong", "a class", "", ()) for name in ("7-name", "8-name")]
    assert [read.fault(each) for each in faults] == [caught, None]
    read.close()


@pytest.mark.slow
def test_a_run_that_is_killed_goes_on_with_what_all_of_its_processes_found(tmp_path: Path) -> None:
    asked = ["parity", "--suite", "routing", "--arch", "sm_120a", "--jobs", "2", "--report", str(REPORT)]
    command = [sys.executable, "-m", "refmoe", *asked]
    process = subprocess.Popen(command, cwd=tmp_path, start_new_session=True, stdout=subprocess.DEVNULL)
    partial = tmp_path / partial_of(REPORT, "refmoe parity --device ptx --arch=sm_120a --level default --suite=routing")
    while process.poll() is None and (not partial.exists() or len(partial.read_text().splitlines()) < 3):
        time.sleep(0.02)
    os.killpg(process.pid, signal.SIGKILL)
    process.wait()
    assert len(partial.read_text().splitlines()) >= 3
    ended = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=True)
    assert "they do not run again" in ended.stdout
    assert not partial.exists()
    assert len(compared(tmp_path / REPORT)["cases"]) == len(list_cases("default", ["routing"], arch="sm_120a"))


def test_the_file_of_a_report_that_cannot_be_written_stays(ran: Ran) -> None:
    REPORT.mkdir()
    assert refmoe(*ASKED).exit_code != 0
    assert len(PARTIAL.read_text().splitlines()) > 1


def test_a_run_that_went_on_took_the_time_of_all_its_parts(ran: Ran) -> None:
    ran.start(4)
    assert refmoe(*ASKED).exit_code == 130
    lines = [json.loads(line) for line in PARTIAL.read_text().splitlines()]
    for line in lines[1:]:
        line["result"]["seconds"] += 300
    PARTIAL.write_text("".join(json.dumps(line, sort_keys=True) + "\n" for line in lines))
    ran.start()
    assert refmoe(*ASKED).exit_code == 0
    assert json.loads(REPORT.read_text())["seconds"] > 300


def test_a_full_disk_costs_what_is_kept_and_not_the_run(ran: Ran, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(ledger: Any, line: str) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    kept_run = KeptRun(Path("kept"), "command")
    monkeypatch.setattr(Ledger, "_append", full)
    kept_run.keep([result()])
    assert kept_run.lost is not None
    assert "No space left" in kept_run.lost
    kept_run.close()


def test_a_fault_that_was_planted_in_other_sources_is_not_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    caught = FaultResult("7-name", "wrong", "a class", str(CASE), Verdict.ERROR, "a race", 3, True)
    kept_run = KeptRun(Path("kept"), "command")
    monkeypatch.setattr(kept, "installed", lambda: {"refmoe": "edited meanwhile"})
    kept_run.keep_fault(caught)
    kept_run.close()
    assert len(Path("kept").read_text().splitlines()) == 1
