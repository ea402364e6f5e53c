"""A family is added by the files of its name and by a line in the list of families; this adds one, and uses it.

The files lie in tests/support/toy as they would in the repository: a specification and a reference, a CUDA source, its
launch, a family, a planted fault, a page, a test. They are laid over a copy of the package and of docs, which another
Python then uses.
"""

from __future__ import annotations

import copy
import json
import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

import refmoe
from refmoe.cuda.toolchain import ToolchainError, find_toolchain
from refmoe.reports.documents import digest_of

PACKAGE = Path(refmoe.__file__).parent
ROOT = Path(__file__).resolve().parents[2]
TOY = Path(__file__).resolve().parents[1] / "support" / "toy"
#: The line that the list of families gets, and the one that it is put behind.
LINE = "from refmoe.families.toy import TOY\n"
BEHIND = "from refmoe.families.finalize import FINALIZE\n"

SCRIPT = """
import json
from pathlib import Path

import numpy as np

import refmoe
from refmoe.catalog import kernel_of, list_cases, parse_case, sound_kernel, source_sha256
from refmoe.families import FAMILIES
from refmoe.reference.toy import toy
from refmoe.verify.plant import load_patches, plant_faults
from refmoe.verify.runner import run_cases


def right(x, sign):
    return toy(x, sign)


def wrong(x, out):
    out[...] = x[:, ::2]


toys = list_cases("default", ["toy"], arch="sm_120a")
results = list(run_cases(toys, kernel_of))
faults = [fault for fault in load_patches() if fault.name.endswith("toy-first-of-pair")]
checked = {
    function.__name__: refmoe.check(function, "toy", arrays="numpy") for function in (right, wrong)
}
print(json.dumps({
    "package": refmoe.__file__,
    "family": str(FAMILIES["toy"]),
    "cases": [str(case) for case in toys],
    "parsed": [str(parse_case(str(case))) for case in toys],
    "archs": sorted({case.arch for case in list_cases("quick", ["toy"])}),
    "listed": sum(case.family.name == "toy" for case in list_cases("default", arch="sm_120a")),
    "verdicts": [result.verdict.value for result in results],
    "launches": [list(result.launches) for result in results],
    "sha256": sorted({str(result.source_sha256) for result in results}),
    "own": source_sha256("toy"),
    "planted": [[kernel.family.name for kernel in fault.plant(Path("planted"))] for fault in faults],
    "faults": [fault.line for fault in plant_faults(faults, sound_kernel)],
    "caught": [fault.caught for fault in plant_faults(faults, sound_kernel)],
    "checked": {name: [found.passed, [each.line for each in found.results]] for name, found in checked.items()},
}))
"""


@pytest.fixture(scope="module")
def overlaid(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a copy of refmoe that has the toy family."""
    try:
        find_toolchain()
    except ToolchainError as error:
        pytest.skip(str(error))
    root = tmp_path_factory.mktemp("overlaid")
    shutil.copytree(PACKAGE, root / "refmoe")
    shutil.copytree(ROOT / "docs", root / "docs", ignore=shutil.ignore_patterns("*.png"))
    for name in ("tests/test_docs.py", "tools/families.py", "mkdocs.yml"):
        (root / name).parent.mkdir(exist_ok=True)
        shutil.copy(ROOT / name, root / name)
    shutil.copytree(TOY, root, dirs_exist_ok=True)
    # The one line elsewhere.
    path = root / "refmoe" / "families" / "__init__.py"
    text = path.read_text()
    assert text.count(BEHIND) == 1
    path.write_text(text.replace(BEHIND, f"{BEHIND}{LINE}"))
    # `make readme` brings the lists of families up to date.
    python(root, "tools/families.py")
    return root


def python(root: Path, *arguments: str) -> str:
    environment = {**os.environ, "PYTHONPATH": str(root), "COLUMNS": "200"}
    # Of a plugin that pytest finds by itself, as refmoe's, it rewrites the asserts of the whole package.
    environment["PYTEST_DISABLE_PLUGIN_AUTOLOAD"] = "1"
    run = subprocess.run([sys.executable, *arguments], cwd=root, env=environment, capture_output=True, text=True)
    assert run.returncode == 0, run.stdout + run.stderr
    return run.stdout


@pytest.fixture(scope="module")
def found(overlaid: Path) -> dict[str, Any]:
    """What the other Python says of the family."""
    (overlaid / "script.py").write_text(SCRIPT)
    said: dict[str, Any] = json.loads(python(overlaid, "script.py"))
    assert Path(said["package"]).is_relative_to(overlaid)
    return said


def test_its_files_are_those_of_the_rule_and_nothing_else() -> None:
    files = {path.relative_to(TOY).as_posix() for path in TOY.rglob("*") if path.is_file() and path.suffix != ".pyc"}
    assert files == {
        "refmoe/reference/scalar/toy.py", "refmoe/reference/toy.py", "refmoe/cuda/toy.py", "refmoe/cuda/csrc/toy.cu",
        "refmoe/families/toy.py", "refmoe/families/mutants/toy/01-toy-first-of-pair.patch",
        "docs/families/toy.md", "tests/reference/test_toy.py",
    }  # fmt: skip
    assert not any((ROOT / file).exists() for file in files)


def test_its_cases_are_listed_printed_and_parsed(found: dict[str, Any]) -> None:
    assert found["cases"][0] == "toy:f32:m5k96:gaussian:seed7@ptx"
    assert "toy:f32:m5k96:cancelling:sign=minus:seed7@ptx" in found["cases"]
    assert found["parsed"] == found["cases"]
    assert found["listed"] == len(found["cases"]) == 6
    assert found["archs"] == ["sm_120a", "sm_121a", "sm_90a"]
    assert "option   sign=plus   (plus | minus)" in found["family"]


def test_its_kernel_runs_on_the_executor_and_passes(found: dict[str, Any]) -> None:
    assert set(found["verdicts"]) == {"PASS"}
    assert found["launches"][0] == ["refmoe_toy_plus 4 x 64"]
    assert found["sha256"] == [found["own"]]


def test_its_planted_fault_is_caught(found: dict[str, Any]) -> None:
    assert found["planted"] == [["toy"]]
    assert found["caught"] == [True]
    (line,) = found["faults"]
    assert line.startswith("caught   01-toy-first-of-pair: The second of a pair is never read. [bytes]")
    assert "MISMATCH out[0, 0]  row 0 pair 0: kernel 0x" in line


def test_a_users_function_is_held_against_its_contract(found: dict[str, Any]) -> None:
    passed, lines = found["checked"]["right"]
    assert passed
    assert all(line.startswith("PASS") for line in lines)
    passed, lines = found["checked"]["wrong"]
    assert not passed
    assert all(line.startswith("MISMATCH out[0, 0]  row 0 pair 0:") for line in lines)


def test_a_command_runs_its_case(overlaid: Path) -> None:
    said = python(overlaid, "-m", "refmoe", "repro", "toy:f32:m5k96:gaussian:seed7@ptx")
    assert "PASS" in said


def test_its_reference_is_its_specification_and_its_page_holds(overlaid: Path) -> None:
    quiet = "-m", "pytest", "-q", "-p", "no:cacheprovider"
    assert "2 passed" in python(overlaid, *quiet, "tests/reference/test_toy.py")
    said = python(overlaid, *quiet, "tests/test_docs.py", "-k", "a_family_page and toy")
    assert "7 passed" in said, said


def test_it_is_in_every_list_of_families(overlaid: Path) -> None:
    lists = "navigation or index or lists_of_families or every_family or every_contract"
    said = python(overlaid, "-m", "pytest", "-q", "-p", "no:cacheprovider", "tests/test_docs.py", "-k", lists)
    assert "passed" in said, said
    for page in ("docs/index.md", "docs/guides/testing.md", "mkdocs.yml"):
        assert "families/toy.md" in (overlaid / page).read_text()


def test_a_certificate_of_batch_invariance_may_do_without_it(overlaid: Path) -> None:
    shutil.copy(ROOT / "reports" / "invariant.json", overlaid)
    command = [sys.executable, "-m", "refmoe", "gate", "invariant.json", "--no-baseline", "--json"]
    environment = {**os.environ, "PYTHONPATH": str(overlaid)}
    run = subprocess.run(command, cwd=overlaid, env=environment, capture_output=True, text=True)
    # The reference has a file more, so the certificate is stale. It lacks nothing else.
    assert json.loads(run.stdout)["checks"] == ["stale.figures"], run.stdout


@pytest.fixture(scope="module")
def reported(overlaid: Path) -> dict[str, Any]:
    """The report of its cases."""
    python(overlaid, "-m", "refmoe", "parity", "--suite", "toy", "--arch", "sm_120a", "--report", "toy.json")
    report: dict[str, Any] = json.loads((overlaid / "toy.json").read_text())
    return report


def gate(overlaid: Path, report: dict[str, Any]) -> dict[str, Any]:
    """What the gate says of a report with the digest that its content has."""
    path = overlaid / "held.json"
    path.write_text(json.dumps({**report, "digest": digest_of(report)}))
    environment = {**os.environ, "PYTHONPATH": str(overlaid)}
    command = [sys.executable, "-m", "refmoe", "gate", str(path), "--no-baseline", "--json"]
    run = subprocess.run(command, cwd=overlaid, env=environment, capture_output=True, text=True)
    found: dict[str, Any] = json.loads(run.stdout)
    assert run.returncode == (1 if found["refusals"] else 0)
    return found


def test_the_gate_refuses_a_report_with_too_few_bytes_or_another_stage(
    overlaid: Path, reported: dict[str, Any]
) -> None:
    assert gate(overlaid, reported)["refusals"] == []

    few = copy.deepcopy(reported)
    case = next(case for case in few["cases"] if case["compared"])
    case["compared"] -= 4
    (refusal,) = gate(overlaid, few)["refusals"]
    assert "956 bytes compared, and its shape has 960" in refusal

    other = copy.deepcopy(reported)
    case = next(case for case in other["cases"] if case["compared"])
    case["differing"] = {"half": 0}
    assert {"case.bytes", "case.stages"} <= set(gate(overlaid, other)["checks"])
