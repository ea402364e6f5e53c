"""Somebody else's kernel is added by a folder, and nothing elsewhere: this drops one into the museum, and uses it.

The folder is tests/support/toy_exhibit/toy_finalize: a CUDA source, the kernel that answers for the family finalize
with its cases and a planted fault, and the exhibit.
"""

from __future__ import annotations

import pickle
import pkgutil
import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest
from typer.testing import CliRunner

from refmoe import museum
from refmoe.catalog import all_families, kernel_of, list_cases, parse_case, sound_kernel, source_sha256
from refmoe.cli import app
from refmoe.cuda import PtxDevice
from refmoe.errors import ArgumentError
from refmoe.families import FAMILIES
from refmoe.families.family import Case
from refmoe.verify.kernel import Devices, Kernel
from refmoe.verify.plant import plant_faults
from refmoe.verify.runner import run_case
from refmoe.verify.verdict import Verdict, exit_status

FOLDER = Path(__file__).resolve().parents[1] / "support" / "toy_exhibit"
#: What lies in the museum without it.
OURS = set(museum.exhibits())
FIRST = "toy_finalize:bf16:m5k64e4t3:gaussian:seed7@ptx"


def _forget() -> None:
    museum.exhibits.cache_clear()
    for name in [name for name in sys.modules if name.startswith("refmoe.museum.toy_finalize")]:
        del sys.modules[name]


@pytest.fixture(autouse=True)
def dropped(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """The folder lies in the museum."""
    monkeypatch.setattr(museum, "__path__", [*museum.__path__, str(FOLDER)])
    _forget()
    yield
    _forget()


def test_a_folder_without_the_exhibit_is_not_in_the_package() -> None:
    assert [each.name for each in pkgutil.iter_modules([str(FOLDER)])] == ["toy_finalize"]
    assert not (Path(museum.__file__).parent / "toy_finalize").exists()


def test_it_is_found_beside_the_family_that_it_answers_for() -> None:
    assert set(museum.exhibits()) == {*OURS, "toy_finalize"}
    names = list(all_families())
    assert names[names.index("finalize") + 1] == "toy_finalize"
    assert "toy_finalize" not in FAMILIES


def test_its_cases_are_listed_printed_and_parsed() -> None:
    listed = list_cases("quick", ["toy_finalize"], arch="sm_120a")
    assert len(listed) == 5
    assert str(listed[0]) == FIRST
    assert [parse_case(str(case)) for case in listed] == listed
    due = [kernel_of(case, Devices()).due_refusal(case, PtxDevice("sm_120a", 1)) for case in listed]
    assert due.count(None) == 3
    assert set(listed) <= set(list_cases("quick", arch="sm_120a"))


def test_it_runs_and_passes_and_its_refusals_are_expected(devices: Devices) -> None:
    listed = list_cases("quick", ["toy_finalize"], arch="sm_120a")
    results = [run_case(kernel_of(case, devices), case) for case in listed]
    assert [result.verdict for result in results] == [*[Verdict.PASS] * 3, *[Verdict.UNSUPPORTED] * 2]
    assert exit_status(results) == 0
    assert results[0].launches == ("toy_finalize 5 x 64",)
    assert results[0].made_of == "somebody's kernel, release 1"
    assert {result.source_sha256 for result in results} == {source_sha256("toy_finalize")}
    # The same inputs as our own kernel's: it is the same family.
    ours = run_case(kernel_of(ours_of(FIRST), devices), ours_of(FIRST))
    assert (ours.verdict, ours.input_sha256) == (Verdict.PASS, results[0].input_sha256)
    assert ours.source_sha256 != results[0].source_sha256


def ours_of(text: str) -> Case:
    return parse_case(text.replace("toy_finalize", "finalize"))


def test_a_kernel_without_its_own_run_or_hash_is_never_refmoes() -> None:
    case = parse_case(FIRST)
    bare = Kernel(case.family)
    with pytest.raises(ArgumentError, match="toy_finalize without a source_sha256 of its own"):
        bare.source_sha256()

    class Forgetful(Kernel):
        def source_sha256(self) -> str:
            return "0" * 64

    result = run_case(Forgetful(case.family), case)
    assert (result.verdict, result.fails) == (Verdict.UNSUPPORTED, True)
    assert "toy_finalize without a run of its own" in str(result.reason)
    with pytest.raises(ArgumentError, match="sources, host or run of refmoe's own kernel"):
        museum.Exhibit(replace(FAMILIES["finalize"], name="mine", base="finalize"), Kernel)


def test_its_fault_is_caught(devices: Devices) -> None:
    (found,) = plant_faults(museum.exhibits()["toy_finalize"].faults, sound_kernel)
    assert (found.caught, found.verdict) == (True, Verdict.MISMATCH)


def test_a_command_runs_its_case(devices: Devices) -> None:
    shown = CliRunner().invoke(app, ["repro", FIRST])
    assert shown.exit_code == 0, shown.output
    assert "PASS" in shown.output


def test_without_the_folder_nobody_knows_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.undo()
    _forget()
    assert set(museum.exhibits()) == OURS
    with pytest.raises(ArgumentError, match="toy_finalize"):
        parse_case(FIRST)


def test_faults_go_to_other_processes() -> None:
    """`refmoe parity --mutants --jobs 2` plants them there."""
    faults = [fault for exhibit in museum.exhibits().values() for fault in exhibit.faults]
    assert pickle.loads(pickle.dumps(faults)) == faults
