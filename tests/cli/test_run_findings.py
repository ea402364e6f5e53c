"""`refmoe run` on kernels that race: what it prints, what JSON has, and the exit status."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from support.findings.plain import CELLS, ROWS
from support.ptx_kernel import text
from typer.testing import CliRunner, Result

from refmoe.cli import app

ROW = {row.name: row for row in ROWS}


@pytest.fixture(autouse=True)
def _in_a_folder_of_its_own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    monkeypatch.chdir(tmp_path)
    np.save("data.npy", np.zeros(256, np.uint32))


def run(name: str, *options: str, twin: bool = False) -> Result:
    row = ROW[name]
    Path("row.ptx").write_text(row.twin if twin else row.text)
    arguments = ["--args", "out:out.npy:u32:256:fill=0 inout:data.npy i32:0"]
    size = ["--grid", str(row.grid), "--block", str(row.threads)]
    return CliRunner().invoke(app, ["run", "row.ptx", *size, *arguments, *options])


def test_a_fault_names_both_accesses() -> None:
    result = run("two lanes in a loop")
    assert result.exit_code == 1
    lines = [line.strip() for line in result.stdout.splitlines()]
    assert lines[0].startswith("RaceError: read-write race on byte ")
    said = [line for line in lines if line.startswith(("this access:", "the earlier one:", "missing:", "what orders"))]
    assert [line.split(":")[0] for line in said] == ["this access", "the earlier one", "missing", "what orders them"]
    assert "see https://github.com/refmoe/refmoe/blob/main/docs/guides/races.md#two-lanes-of-a-warp" in lines
    assert lines.count("no output was written") == 1
    assert not Path("out.npy").exists()
    assert run("two lanes in a loop", twin=True).exit_code == 0


def test_a_read_that_comes_too_early_has_its_race() -> None:
    body = """
        mov.u32 %r3, cell; mad.lo.u32 %r4, %r1, 4, %r3; xor.b32 %r5, %r1, 32; mad.lo.u32 %r6, %r5, 4, %r3;
        st.shared.u32 [%r4], %r1; ld.shared.u32 %r7, [%r6]; st.global.u32 [%d2], %r7; ret;
    """
    Path("early.ptx").write_text(text(body, CELLS))
    asked = ["run", "early.ptx", "--block", "64", "--args", "out:out.npy:u32:64 null i32:0"]
    found = CliRunner().invoke(app, asked)
    assert found.exit_code == 1
    lines = [line.strip() for line in found.stdout.splitlines()]
    assert lines[0].startswith("MemoryFault: uninitialised: shared read of 4 bytes")
    first = lines.index("another thread writes these bytes, and nothing orders the two")
    assert lines[first + 1].startswith("this access: ")
    fault = json.loads(CliRunner().invoke(app, [*asked, "--json"]).stdout)["fault"]
    assert (fault["kind"], fault["race"]["space"]) == ("MemoryFault", "shared")
    assert "__syncthreads()" in fault["race"]["finding"]["remedy"]


def test_a_fault_as_json() -> None:
    result = run("two lanes in a loop", "--json")
    assert result.exit_code == 1
    fault = json.loads(result.stdout)["fault"]
    assert "\n" not in fault["message"]
    race = fault["race"]
    assert (race["kind"], race["warning"], race["space"]) == ("read-write", "", "shared")
    finding = race["finding"]
    assert finding["earlier"]["kind"] == "plain load"
    assert finding["later"]["kind"] == "plain store"
    assert finding["later"]["line"] == fault["line"]
    assert finding["tried"] is finding["clean"] is True
    assert "bar.warp.sync" in finding["remedy"]
    assert race["said"][-1] == f"see {finding['link']}"


def test_a_warning_is_listed() -> None:
    result = run("relaxed poll")
    assert result.exit_code == 0
    assert "warning        missing acquire: write-read race on byte 0" in result.stdout
    assert "what orders them: ld.acquire.gpu" in result.stdout
    assert np.load("out.npy")[0] == 42
    document = json.loads(run("relaxed poll", "--json").stdout)
    (warning,) = document["result"]["warnings"]
    assert warning["warning"] == "missing acquire"
    assert document["checks"] == ["bounds", "uninitialised", "alignment", "races", "undefined"]
    assert json.loads(run("relaxed poll", "--json", twin=True).stdout)["result"]["warnings"] == []


def test_strict() -> None:
    Path("out.npy").unlink(missing_ok=True)
    result = run("relaxed poll", "--strict")
    assert result.exit_code == 1
    assert "RaceError: write-read race" in result.stdout
    assert not Path("out.npy").exists()
    assert run("relaxed poll", "--strict", twin=True).exit_code == 0


@pytest.mark.parametrize("name", ["in", "1", "data.npy"])
def test_the_grid_before(name: str) -> None:
    row = "no wait for the grid before"
    result = run(row, "--previous-grid-writes", name)
    assert result.exit_code == 1
    assert "previous grid race on byte 0" in result.stdout
    assert run(row, "--previous-grid-writes", name, twin=True).exit_code == 0
    assert run(row).exit_code == 0


def test_an_array_that_is_none() -> None:
    result = run("no wait for the grid before", "--previous-grid-writes", "n")
    assert result.exit_code == 2
    assert "--previous-grid-writes: found 'n'; needed NAME of an array: out, in" in " ".join(result.output.split())


def test_a_value_that_nobody_uses_is_listed() -> None:
    result = run("a value that nobody uses")
    assert result.exit_code == 0
    assert "warning        unused value: read-write race on byte" in result.stdout
    assert "nothing depends on the value that was read" in result.stdout
    assert "races.md#values-that-nobody-uses" in result.stdout
    (warning,) = json.loads(run("a value that nobody uses", "--json").stdout)["result"]["warnings"]
    assert warning["warning"] == "unused value"
    strict = run("a value that nobody uses", "--strict")
    assert strict.exit_code == 1
    assert strict.stdout.startswith("RaceError: read-write race")
    assert run("a value that nobody uses", twin=True).exit_code == 0


def test_a_fault_says_what_its_value_reaches() -> None:
    said = "the value that was read reaches an output byte (byte "
    assert said in run("two warps in a loop").stdout
    race = json.loads(run("two warps in a loop", "--json").stdout)["fault"]["race"]
    assert race["use"].startswith("reaches an output byte")
    assert race["said"][0].startswith(said)
