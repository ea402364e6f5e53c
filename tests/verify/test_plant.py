"""Planted faults: what is caught, what survives, what proves nothing, and which families a fault is held against."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from support.verify import CASE, result
from typer.testing import CliRunner

from refmoe.catalog import list_cases, parse_case, sound_kernel
from refmoe.cli import app
from refmoe.cuda.toolchain import CSRC, ToolchainError, find_toolchain, with_includes
from refmoe.errors import RefmoeError
from refmoe.families import FAMILIES
from refmoe.families.family import Case
from refmoe.families.moe import MOE
from refmoe.museum import exhibits
from refmoe.verify import plant
from refmoe.verify.kernel import Devices, Kernel
from refmoe.verify.patches import PatchError
from refmoe.verify.plant import FaultResult, Patch, load_patches, plant_faults
from refmoe.verify.verdict import Verdict

QUANTIZE = parse_case("mxfp8_quantize:bf16:m4k416:boundary-mantissas:seed7@ptx")
LAYER = parse_case("moe:bf16:m3k96n64e4t2:gaussian:bias=distinct:poison=0x7F:seed7@ptx")
(_STEM,) = QUANTIZE.family.sources
SOURCE = f"{_STEM}.cu"


@pytest.fixture(autouse=True)
def _few_cases(monkeypatch: pytest.MonkeyPatch) -> None:
    # Two cases instead of the lists: what is tested here is the hunt, not the lists.
    monkeypatch.setattr(plant, "_listed", lambda: (CASE, QUANTIZE))


@pytest.fixture
def compiler() -> None:
    try:
        find_toolchain()
    except ToolchainError as error:
        pytest.skip(str(error))


def patch(folder: Path, name: str, old: str, new: str, file: str = SOURCE) -> None:
    """A mutant that changes the one line of `file` that holds `old`."""
    (line,) = [line for line in (CSRC / file).read_text().splitlines() if old in line]
    head = f"Fault: {name}.\nClass: test\n\n--- a/{file}\n+++ b/{file}\n"
    (folder / f"{name}.patch").write_text(f"{head}@@ -1,1 +1,1 @@\n-{line}\n+{line.replace(old, new)}\n")


def hunted(folder: Path, sound: Callable[[Case], Kernel] = sound_kernel) -> list[FaultResult]:
    return list(plant_faults(load_patches(folder), sound))


ZEROS = ("zeros", "codes[row_start + lane] = encoded.codes", "codes[row_start + lane] = uint4{}")


def test_a_fault_is_caught_by_a_case_that_the_unpatched_kernel_passes(tmp_path: Path, compiler: None) -> None:
    patch(tmp_path, *ZEROS)
    (found,) = hunted(tmp_path)
    assert (found.caught, found.control, found.verdict) == (True, True, Verdict.MISMATCH)
    assert found.case == str(QUANTIZE)
    assert str(found.finding).startswith("codes[0, 0]  block (0, 0) lane 0: kernel 0x00 (0)")
    # Only the quantize source was touched, so no expand case was run for it.
    assert found.cases == 1


def test_what_the_executor_faults_on_is_caught_too(tmp_path: Path, compiler: None) -> None:
    patch(tmp_path, "past-the-end", "const bool inside = lane < lanes;", "const bool inside = true;")
    (found,) = hunted(tmp_path)
    assert (found.caught, found.verdict, found.check) == (True, Verdict.ERROR, "out of bounds")
    assert "out of bounds" in str(found.finding)


def test_a_store_to_an_input_is_caught_though_every_output_is_right(tmp_path: Path, compiler: None) -> None:
    """What a GPU would not show: the executor's input buffers are read only."""
    store = "if (inside) const_cast<uint4*>(x)[2 * (row_start + lane)] = first;"
    write = ("input-written", "if (inside) codes[row_start + lane] = encoded.codes;")
    patch(tmp_path, *write, f"{write[1]} {store}")
    (found,) = hunted(tmp_path)
    assert (found.caught, found.verdict, found.check) == (True, Verdict.ERROR, "read only")
    assert "of x (" in str(found.finding)


def harmless(folder: Path) -> None:
    patch(folder, "harmless", "const bool inside = lane < lanes;", "const bool inside = lanes > lane;")


def test_a_change_without_a_fault_survives(tmp_path: Path, compiler: None) -> None:
    harmless(tmp_path)
    (found,) = hunted(tmp_path)
    assert (found.caught, found.case, found.cases) == (False, None, 1)
    assert found.line == "SURVIVED harmless: harmless. (1 cases passed)"


def test_a_change_without_a_fault_survives_and_fails_the_command(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, compiler: None
) -> None:
    harmless(tmp_path)
    monkeypatch.setattr("refmoe.cli.session.load_patches", lambda: load_patches(tmp_path))
    shown = CliRunner().invoke(app, ["parity", "--case", str(QUANTIZE), "--mutants"])
    assert shown.exit_code == 1
    assert "SURVIVED harmless" in shown.output
    assert "mutants: 0 of 1 caught" in shown.output
    listed = CliRunner().invoke(app, ["parity", "--case", str(QUANTIZE), "--mutants", "--json"])
    assert json.loads(listed.stdout)["mutants"][0]["caught"] is False


def test_a_case_that_fails_without_the_patch_proves_nothing(tmp_path: Path, compiler: None) -> None:
    patch(tmp_path, *ZEROS)
    (fault,) = load_patches(tmp_path)
    (broken,) = (kernel for kernel in fault.plant(tmp_path / "broken") if kernel.family is QUANTIZE.family)
    (found,) = hunted(tmp_path, lambda case: broken)
    assert (found.caught, found.control) == (False, False)
    assert found.line.startswith("UNPROVEN zeros")


def test_the_sound_kernel_runs_on_as_many_multiprocessors_as_the_faulty_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    @dataclass(frozen=True)
    class OnFew:
        name: str = "on-few"
        fault: str = "Nothing."
        kind: str = "test"
        case: str = str(QUANTIZE)

        def plant(self, scratch: Path) -> list[Kernel]:
            return [Kernel(QUANTIZE.family, Devices(csrc=scratch, multiprocessors=2))]

        def cases(self) -> list[Case]:
            return [QUANTIZE]

    chips: list[tuple[bool, int | None]] = []

    def run(kernel: Kernel, case: Case) -> Any:
        faulty = kernel.devices.csrc != CSRC
        chips.append((faulty, kernel.devices.multiprocessors))
        return result(case, Verdict.MISMATCH if faulty else Verdict.PASS)

    monkeypatch.setattr(plant, "run_case", run)
    (found,) = plant_faults([OnFew()], sound_kernel)
    assert found.caught
    assert chips == [(True, 2), (False, 2)]


def test_a_patch_that_no_longer_fits_says_which(tmp_path: Path) -> None:
    patch(tmp_path, "old", "const bool inside = lane < lanes;", "const bool inside = true;")
    path = tmp_path / "old.patch"
    path.write_text(path.read_text().replace("-            const bool", "-            static const bool"))
    with pytest.raises(PatchError, match=rf"mutant old: {re.escape(SOURCE)}: the hunk of line 1 fits nowhere"):
        hunted(tmp_path)


@pytest.mark.parametrize("cases", [(CASE, QUANTIZE), (LAYER,)], ids=["its own family", "a layer"])
def test_a_mutant_that_does_not_compile_is_an_error_not_a_catch(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, cases: tuple[Case, ...], compiler: None
) -> None:
    monkeypatch.setattr(plant, "_listed", lambda: cases)
    patch(tmp_path, "typo", "const bool inside = lane < lanes;", "const bool inside = lane < lanez;")
    with pytest.raises(ToolchainError, match="lanez"):
        hunted(tmp_path)


def test_where_no_case_can_run_no_fault_survives(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def absent(self: Devices, case: Case) -> Any:
        raise ToolchainError("no usable nvcc")

    monkeypatch.setattr(Devices, "get", absent)
    patch(tmp_path, *ZEROS)
    with pytest.raises(RefmoeError, match="fault zeros: cannot be planted here: no usable nvcc"):
        hunted(tmp_path)


# --- whom a fault is held against -----------------------------------------------------------------------------------


def families_of(fault: Patch, scratch: Path) -> set[str]:
    return {kernel.family.name for kernel in fault.plant(scratch)}


def launchers(file: str) -> set[str]:
    """The families that launch a source which is or includes that file."""
    return {
        family.name
        for family in FAMILIES.values()
        if any(CSRC / file in with_includes(CSRC / f"{source}.cu") for source in family.sources)
    }


def test_faults_of_each_source_are_held_against_every_family_that_launches_its_source_and_so_against_layers(
    tmp_path: Path,
) -> None:
    seen = set()
    # Which families a fault reaches follows from the files that it changes: one fault for each set of files.
    by_files = {tuple(sorted(change.file for change in fault.patches)): fault for fault in load_patches()}
    for files, fault in by_files.items():
        found = families_of(fault, tmp_path)
        assert found == set().union(*map(launchers, files)), fault.name
        layers = {f"{source}.cu" for source in MOE.sources}
        assert "moe" in found or not any(CSRC / file in with_includes(CSRC / each) for file in files for each in layers)
        seen |= set(files)
    # No source of a layer goes without a fault.
    assert seen >= {f"{source}.cu" for source in MOE.sources}


def test_a_fault_in_a_header_is_held_against_every_family_that_includes_it(tmp_path: Path) -> None:
    patch(tmp_path, "header", "#pragma once", "#pragma once  // and a change", "warp.cuh")
    (fault,) = load_patches(tmp_path)
    assert families_of(fault, tmp_path) == launchers("warp.cuh") >= {"mxfp8_quantize", "expand", "moe"}


def test_the_cases_of_a_fault_are_of_every_family_and_refusals_are_none_of_them(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.undo()
    (fault, *_) = load_patches()
    cases = fault.cases()
    assert {case.family.name for case in cases} == set(FAMILIES)
    assert not any(case.refusal for case in cases)
    assert any(case.family is MOE and case.shape.k == 2880 for case in cases)  # the default level, too


def test_a_layer_catches_a_fault_of_one_of_its_launches(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, compiler: None
) -> None:
    monkeypatch.setattr(plant, "_listed", lambda: (LAYER,))
    patch(tmp_path, *ZEROS)
    (found,) = hunted(tmp_path)
    assert (found.caught, found.case) == (True, str(LAYER))
    assert str(found.finding).startswith("quantize.codes[0, 0]")


def test_the_case_that_is_known_to_catch_a_fault_runs_first(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    known = QUANTIZE.having(fill="gaussian")
    monkeypatch.setattr(plant, "_listed", lambda: (CASE, QUANTIZE, LAYER, known))
    patch(tmp_path, *ZEROS)
    path = tmp_path / "zeros.patch"
    path.write_text(path.read_text().replace("Class: test\n", f"Class: test\nCase: {known}\n"))
    (fault,) = load_patches(tmp_path)
    kernels = {kernel.family.name: kernel for kernel in fault.plant(tmp_path)}
    assert plant._ordered(fault, kernels) == [known, QUANTIZE, LAYER]  # and none of expand, which is not touched


# --- that none is lost ----------------------------------------------------------------------------------------------

REPORTS = Path(__file__).resolve().parents[2] / "reports"


def lost_faults(reports: Path, present: set[str]) -> dict[str, list[str]]:
    """By report the faults that it says were caught and that are not `present`."""
    found = {}
    for path in sorted(reports.glob("*.json")):
        document = json.loads(path.read_text())
        names = [each["name"] for each in document["mutants"]] if document.get("kind") == "parity" else []
        if gone := [name for name in names if name not in present]:
            found[path.name] = gone
    return found


def test_every_fault_that_a_committed_report_lists_is_still_there() -> None:
    """A fault that is deleted leaves the list that is planted and the count that is expected of it alike."""
    patches = {fault.name for fault in load_patches()}
    others = {fault.name for exhibit in exhibits().values() for fault in exhibit.faults}
    assert lost_faults(REPORTS, patches | others) == {}
    # And the reports list some of each, so that this says something.
    first = min(patches)
    assert lost_faults(REPORTS, (patches | others) - {first}) == {"ptx.json": [first]}
    assert "cutlass.json" in lost_faults(REPORTS, patches)


def test_the_case_that_a_fault_names_is_in_the_default_level() -> None:
    named = {fault.name: parse_case(fault.case) for fault in load_patches() if fault.case}
    families = dict.fromkeys(case.family.name for case in named.values())
    # On whichever arch: a list has a case once, and a fault names the arch that shows it.
    listed = {str(case).partition("@")[0] for case in list_cases("default", list(families))}
    assert [name for name, case in named.items() if str(case).partition("@")[0] not in listed] == []
