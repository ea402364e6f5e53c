from __future__ import annotations

import dataclasses
import json
from pathlib import Path

import pytest
from support.verify import CASE
from typer.testing import CliRunner

from refmoe.cli import app
from refmoe.cuda.toolchain import CSRC, ToolchainError, find_toolchain
from refmoe.families.case import Case, parse_case
from refmoe.verify import plant as mutate
from refmoe.verify.patches import PatchError
from refmoe.verify.plant import MutantResult, load_mutants, run_mutants
from refmoe.verify.runner import Devices
from refmoe.verify.verdict import Result, Verdict

QUANTIZE = parse_case("mxfp8_quantize:bf16:m4k416:boundary-mantissas:seed7@ptx")


@pytest.fixture(autouse=True)
def _compiler(monkeypatch: pytest.MonkeyPatch) -> None:
    try:
        find_toolchain()
    except ToolchainError as error:
        pytest.skip(str(error))
    # Two cases instead of the lists: what is tested here is the hunt, not the lists.
    monkeypatch.setattr(mutate, "list_cases", lambda level, arch: [CASE, QUANTIZE])


def patch(folder: Path, name: str, old: str, new: str, file: str = "quantize.cu") -> None:
    """A mutant that changes the one line of `file` that holds `old`."""
    (line,) = [line for line in (CSRC / file).read_text().splitlines() if old in line]
    head = f"Fault: {name}.\nClass: test\n\n--- a/{file}\n+++ b/{file}\n"
    (folder / f"{name}.patch").write_text(f"{head}@@ -1,1 +1,1 @@\n-{line}\n+{line.replace(old, new)}\n")


def hunted(folder: Path) -> list[MutantResult]:
    return list(run_mutants(load_mutants(folder), []))


def test_a_fault_is_caught_by_a_case_that_the_unpatched_kernel_passes(tmp_path: Path) -> None:
    patch(tmp_path, "zeros", "codes[row_start + lane] = encoded.codes", "codes[row_start + lane] = uint4{}")
    (found,) = hunted(tmp_path)
    assert (found.caught, found.control, found.verdict) == (True, True, Verdict.MISMATCH)
    assert found.case == str(QUANTIZE)
    assert str(found.finding).startswith("codes[0, 0]  block (0, 0) lane 0: kernel 0x00 (0)")
    # Only the quantize source was touched, so no expand case was run for it.
    assert found.cases == 1


def test_what_the_executor_faults_on_is_caught_too(tmp_path: Path) -> None:
    patch(tmp_path, "past-the-end", "const bool inside = lane < lanes;", "const bool inside = true;")
    (found,) = hunted(tmp_path)
    assert (found.caught, found.verdict) == (True, Verdict.ERROR)
    assert "out of bounds" in str(found.finding)


def test_a_change_without_a_fault_survives_and_fails_the_command(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    patch(tmp_path, "harmless", "const bool inside = lane < lanes;", "const bool inside = lanes > lane;")
    (found,) = hunted(tmp_path)
    assert (found.caught, found.case, found.cases) == (False, None, 1)
    assert found.line == "SURVIVED harmless: harmless. (1 cases passed)"

    monkeypatch.setattr("refmoe.cli.session.load_mutants", lambda: load_mutants(tmp_path))
    shown = CliRunner().invoke(app, ["parity", "--case", str(QUANTIZE), "--mutants"])
    assert shown.exit_code == 1
    assert "SURVIVED harmless" in shown.output
    assert "mutants: 0 of 1 caught" in shown.output
    listed = CliRunner().invoke(app, ["parity", "--case", str(QUANTIZE), "--mutants", "--json"])
    assert json.loads(listed.stdout)["mutants"][0]["caught"] is False


def test_a_case_that_fails_without_the_patch_proves_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    patch(tmp_path, "zeros", "codes[row_start + lane] = encoded.codes", "codes[row_start + lane] = uint4{}")
    real = mutate.run_case

    def broken(case: Case, devices: Devices) -> Result:
        found = real(case, devices)
        return found if devices.csrc is not None else dataclasses.replace(found, verdict=Verdict.MISMATCH)

    monkeypatch.setattr(mutate, "run_case", broken)
    monkeypatch.setattr(mutate, "_passes", mutate._passes.__wrapped__)  # neither what was remembered, nor remembering
    (found,) = hunted(tmp_path)
    assert (found.caught, found.control) == (False, False)
    assert found.line.startswith("UNPROVEN zeros")


def test_a_patch_that_no_longer_fits_says_which(tmp_path: Path) -> None:
    patch(tmp_path, "old", "const bool inside = lane < lanes;", "const bool inside = true;")
    path = tmp_path / "old.patch"
    path.write_text(path.read_text().replace("-            const bool", "-            static const bool"))
    with pytest.raises(PatchError, match=r"mutant old: quantize.cu: the hunk of line 1 fits nowhere"):
        hunted(tmp_path)


def test_a_mutant_that_does_not_compile_is_an_error_not_a_catch(tmp_path: Path) -> None:
    patch(tmp_path, "typo", "const bool inside = lane < lanes;", "const bool inside = lane < lanez;")
    with pytest.raises(ToolchainError, match="lanez"):
        hunted(tmp_path)
