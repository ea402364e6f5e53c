"""The benchmarks of an earlier commit's cases and faults: which they are, and what is timed."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from refmoe.bench import faults, parity
from refmoe.catalog import list_cases, parse_case
from refmoe.cli import app
from refmoe.cuda.toolchain import ToolchainError, find_toolchain
from refmoe.errors import RefmoeError
from refmoe.reports.bench import BENCH

CASE = "mxfp8_quantize:bf16:m5k2880:fingerprint:layout=128x4:seed7@ptx"


@pytest.fixture
def compiler() -> None:
    try:
        find_toolchain()
    except ToolchainError as error:
        pytest.skip(str(error))


def test_the_cases_of_the_earlier_commit_are_cases_of_the_default_level() -> None:
    cases = parity.earlier("cases")
    assert len(cases) == len(set(cases)) == 1304
    assert [str(parse_case(text)) for text in cases] == cases
    assert set(cases) <= {str(case) for case in list_cases()}


def test_the_faults_of_the_earlier_commit_can_be_planted() -> None:
    names = parity.earlier("faults")
    assert len(names) == len(set(names)) == 157
    assert [fault.name for fault in faults._named(names)] == names
    # Each names the case that catches it: that one runs on the sound kernel before.
    assert all(fault.case for fault in faults._named(names))
    with pytest.raises(RefmoeError, match="no fault is called 999-none"):
        faults._named(["999-none"])


@pytest.mark.usefixtures("compiler")
@pytest.mark.slow
def test_a_run_of_parity_is_timed_and_judged(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(parity, "TARGETS", {"again_s": 0.001})
    monkeypatch.setattr(parity, "earlier", lambda what: [CASE])
    monkeypatch.chdir(tmp_path)
    found = CliRunner().invoke(app, ["bench", "parity", "--report", "parity.json"])
    assert found.exit_code == 1, found.output
    document = json.loads(Path("parity.json").read_text())
    assert [row["run"] for row in document["rows"]] == ["first", "again", "again"]
    assert document["again_s"] == min(row["seconds"] for row in document["rows"][1:])
    assert (document["cases"], document["reached"]) == (1, {"again_s": False})
    assert list(BENCH.check(Path("parity.json"), document, lambda family: "")) == []


def test_a_case_that_does_not_pass_is_no_time(monkeypatch: pytest.MonkeyPatch) -> None:
    def skipped(command: list[str], **_: Any) -> subprocess.CompletedProcess[str]:
        record = {"id": CASE, "verdict": "SKIPPED", "reason": "not built"}
        Path(command[command.index("--report") + 1]).write_text(json.dumps({"cases": [record]}))
        return subprocess.CompletedProcess(command, 0, "", "")

    monkeypatch.setattr(subprocess, "run", skipped)
    with pytest.raises(RefmoeError, match=f"bench parity: {CASE}: SKIPPED: not built"):
        parity.run(cases=[CASE])
    monkeypatch.setattr(subprocess, "run", lambda command, **_: subprocess.CompletedProcess(command, 3, "", "a\nb"))
    with pytest.raises(RefmoeError, match="bench parity: b"):
        parity.run(cases=[CASE])


@pytest.mark.slow
@pytest.mark.usefixtures("compiler")
def test_faults_are_planted_on_a_cache_without_them() -> None:
    document = faults.run(names=["01-floor-for-rceil"])
    assert [row["step"] for row in document["rows"]] == ["sound", "planted"]
    assert document["planted_s"] == document["rows"][1]["seconds"] > 0
    assert document["reached"] == {"planted_s": document["planted_s"] <= 200}


def test_a_fault_that_nobody_knows_is_refused() -> None:
    with pytest.raises(RefmoeError, match="no fault is called 999-none"):
        faults.run(names=["999-none"])
