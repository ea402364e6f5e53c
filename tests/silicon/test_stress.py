"""The run that repeats and sanitizes the kernels on a GPU, without one: cases, verdicts, document, gate, command."""

from __future__ import annotations

import itertools
import json
import stat
from collections.abc import Callable, Mapping
from dataclasses import asdict, replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from typer.testing import CliRunner

from refmoe import catalog
from refmoe.catalog import list_cases, parse_case
from refmoe.cli import app
from refmoe.cuda import toolchain
from refmoe.cuda.device import DeviceUnavailable, open_device
from refmoe.families import FAMILIES
from refmoe.families.family import Case
from refmoe.recomputed.stress import first_cases
from refmoe.reports.consistency import entry_names
from refmoe.reports.documents import digest_of
from refmoe.reports.gate import check_reports
from refmoe.reports.stress import RERUNS, TOOLS
from refmoe.silicon import stress

CASE = parse_case("mxfp8_quantize:bf16:m2k64:gaussian:seed7@ptx")
SAME_KERNEL = parse_case("mxfp8_quantize:bf16:m3k96:gaussian:seed7@ptx")
OTHER_KERNEL = parse_case("mxfp8_quantize:bf16:m2k64:gaussian:layout=8x4:seed7@ptx")
REFUSED = parse_case("sm12x_gemm:f32:m5k416n136e3:wide-range:tile=128x128x64:seed7@ptx")
ENTRY = "refmoe_mxfp8_quantize_bf16_rceil_exact_linear"

needs_nvcc = pytest.mark.skipif(
    all(candidate.problem for candidate in toolchain.candidates()), reason="no usable nvcc on this machine"
)


@needs_nvcc
def test_one_case_of_every_kernel_is_chosen_and_refusals_are_none() -> None:
    chosen = stress.one_of_each([REFUSED, CASE, SAME_KERNEL, OTHER_KERNEL], open_device("ptx"))
    assert chosen == {ENTRY: CASE, ENTRY.replace("linear", "8x4"): OTHER_KERNEL}


def test_the_default_cases_that_a_gpu_runs_are_chosen_from_and_the_quick_come_first() -> None:
    every = list(stress.cases_of_every_kernel("sm_90a"))
    quick = [case for case in list_cases("quick", tuple(FAMILIES), "cuda") if case.wrong == "none"]
    quick = [case for case in quick if case.family.lacks(case, "sm_90a") is None]
    assert every[: len(quick)] == quick
    assert len(set(every)) == len(every)
    left_out = set(list_cases("default", tuple(FAMILIES), "cuda")) - set(every)
    words = {case.wrong != "none" or case.family.lacks(case, "sm_90a") is not None for case in left_out}
    assert words == {True}
    # What lies behind 4 GiB of rows runs on the executor alone.
    assert any(case.get("rows_before", 0) for case in left_out)
    assert not any(case.get("rows_before", 0) for case in every)


def test_kernels_that_no_quick_case_launches_are_chosen() -> None:
    quick = {str(case) for case in list_cases("quick", tuple(FAMILIES), "cuda")}
    kernels = first_cases("sm_90a", 132)
    assert len(kernels) > len(quick & set(kernels.values())) > 0
    assert kernels["refmoe_mxfp8_quantize_fp16_floor_exact_linear"] == (
        "mxfp8_quantize:fp16:m16k2880:gaussian:mode=floor:seed7@cuda"
    )


@needs_nvcc
def test_equal_runs_give_one_output() -> None:
    assert stress.rerun(open_device("ptx"), ENTRY, CASE, 3) == stress.Rerun(ENTRY, str(CASE), 3, 1)


def test_an_output_that_changes_is_counted() -> None:
    family, count = CASE.family, itertools.count()

    def unsteady(case: Case, inputs: Any, device: Any) -> Mapping[str, Any]:
        outputs = {name: array.copy() for name, array in family.expect(case, inputs).outputs.items()}
        outputs["scales"].flat[0] ^= next(count) == 2
        return outputs

    case = replace(CASE, family=replace(family, run=unsteady))
    found = stress.rerun(None, ENTRY, case, 5)  # type: ignore[arg-type]
    assert (found.runs, found.different_outputs) == (5, 2)


# --- the tools ------------------------------------------------------------------------------------------------------


def sanitizer(folder: Path, monkeypatch: pytest.MonkeyPatch, script: str) -> Path:
    """A compute-sanitizer that is alone on PATH and runs `script`; returns where it may write its arguments."""
    program = folder / "compute-sanitizer"
    program.write_text(f'#!/bin/sh\necho "$PYTORCH_NO_CUDA_MEMORY_CACHING $*" > {folder}/called\n{script}\n')
    program.chmod(program.stat().st_mode | stat.S_IXUSR)
    monkeypatch.setenv("PATH", f"{folder}:/bin:/usr/bin")
    return folder / "called"


CLEAN = "echo '========= COMPUTE-SANITIZER'; echo '1 PASS'; echo '========= ERROR SUMMARY: 0 errors'"
FOUND = (
    "echo '========= COMPUTE-SANITIZER'; echo '========= Invalid __global__ read of size 4 bytes'; "
    "echo '=========     at refmoe_expand+0x10'; echo '========= ERROR SUMMARY: 1 error'; exit 86"
)
RACES = (
    "echo '========= COMPUTE-SANITIZER'; echo '========= Error: Race reported between Write and Read access'; "
    "echo '========= RACECHECK SUMMARY: 1 hazard displayed (1 error, 0 warnings)'; exit 86"
)


def test_a_tool_without_findings_is_clean(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    called = sanitizer(tmp_path, monkeypatch, CLEAN)
    found = stress.sanitize("memcheck", [CASE.on("cuda"), OTHER_KERNEL.on("cuda")], 60)
    assert found == stress.Sanitized("memcheck", "clean", "ERROR SUMMARY: 0 errors")
    words = called.read_text().split()
    assert words[0] == "1"  # every buffer is an allocation of its own
    assert words[1:6] == ["--tool", "memcheck", "--report-api-errors", "no", "--kernel-name"]
    assert words[-4:] == ["--case", str(CASE.on("cuda")), "--case", str(OTHER_KERNEL.on("cuda"))]


@pytest.mark.parametrize(
    ("tool", "script", "words"),
    [("memcheck", FOUND, "Invalid __global__ read of size 4"), ("racecheck", RACES, "Race reported between")],
)
def test_a_tool_with_findings_says_what_it_found(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, tool: str, script: str, words: str
) -> None:
    sanitizer(tmp_path, monkeypatch, script)
    found = stress.sanitize(tool, [CASE], 60)
    assert found.verdict == "errors"
    assert words in found.summary
    assert "SUMMARY: 1" in found.summary


def test_a_case_that_fails_under_a_tool_is_no_clean_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    sanitizer(tmp_path, monkeypatch, f"{CLEAN}; echo MISMATCH scales; exit 1")
    found = stress.sanitize("racecheck", [CASE], 60)
    assert found.verdict == "errors"
    assert "MISMATCH scales" in found.summary


@pytest.mark.parametrize(
    ("script", "reason"),
    [
        (
            "echo '========= Error: Device not supported'; echo '========= ERROR SUMMARY: 1 error'; exit 86",
            "Device not",
        ),
        ("echo '========= COMPUTE-SANITIZER'; echo '========= Internal Sanitizer Error: no GPU'; exit 1", "Internal"),
        (f"{CLEAN}; echo SKIPPED torch sees no CUDA device; exit 3", "torch sees no CUDA device"),
        ("echo sh: no; exit 127", "exit status 127: sh: no"),
    ],
)
def test_a_tool_that_cannot_work_here_is_skipped_with_its_reason(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, script: str, reason: str
) -> None:
    sanitizer(tmp_path, monkeypatch, script)
    found = stress.sanitize("initcheck", [CASE], 60)
    assert found.verdict == "skipped"
    assert reason in found.summary


def test_a_machine_without_the_tools_and_a_slow_tool_are_skipped(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    assert stress.sanitize("synccheck", [CASE], 60).summary == "no compute-sanitizer on PATH"
    sanitizer(tmp_path, monkeypatch, "sleep 60 & echo $! > child; wait".replace("child", f"{tmp_path}/child"))
    assert stress.sanitize("synccheck", [CASE], 1) == stress.Sanitized("synccheck", "skipped", "not done after 1 s")
    child = Path("/proc") / (tmp_path / "child").read_text().strip() / "stat"
    assert not child.exists() or child.read_text().rpartition(")")[2].split()[0] == "Z"  # dead, perhaps unreaped


def test_a_tool_has_the_time_that_those_before_it_left(monkeypatch: pytest.MonkeyPatch) -> None:
    given: dict[str, float] = {}

    def at_once(tool: str, cases: Any, seconds: float) -> stress.Sanitized:
        given[tool] = seconds
        return stress.Sanitized(tool, "clean", "")

    gpu = SimpleNamespace(gpu_name="a GPU", arch="sm_90a")
    monkeypatch.setattr(stress, "CudaDevice", lambda: gpu)
    monkeypatch.setattr(stress, "one_of_each", lambda cases, device: {ENTRY: CASE})
    monkeypatch.setattr(stress, "rerun", lambda device, kernel, case, runs: stress.Rerun(kernel, str(case), runs, 1))
    monkeypatch.setattr(stress, "sanitize", at_once)
    assert stress.run()["passed"]
    assert list(given) == list(TOOLS)
    assert [round(seconds, -1) for seconds in given.values()] == [120, 160, 240, 480]


# --- the document, the gate, the command ----------------------------------------------------------------------------


#: A rerun of every family's first case.
FIRST = {name: next(iter(list_cases("quick", (name,), "cuda"))) for name in FAMILIES}
OTHERS = [
    stress.Rerun(f"{entry_names(case.family.name)[0]}_{name}", str(case), RERUNS, 1) for name, case in FIRST.items()
]

OTHER_TOOLS = [stress.Sanitized(tool, "clean", "ERROR SUMMARY: 0 errors") for tool in list(TOOLS)[1:]]


def document(different: int = 1, runs: int = RERUNS, errors: bool = False, **changes: Any) -> dict[str, Any]:
    reruns = [stress.Rerun(ENTRY, str(CASE.on("cuda")), runs, different), *OTHERS]
    skipped = ("skipped", "exit status 1: not supported")
    first = stress.Sanitized("memcheck", *(("errors", "1 error") if errors else skipped))
    made = stress.document_of(reruns, [first, *OTHER_TOOLS], gpu="a GPU", arch="sm_90a")
    machine = {"gpu": "a GPU", "torch": "2", "driver": "CUDA 13.0"}
    changed = {**made, "environment": {**made["environment"], **machine}, **changes}
    return {**changed, "digest": digest_of(changed)}


def refusals(tmp_path: Path, content: dict[str, Any]) -> list[str]:
    path = tmp_path / "stress.json"
    path.write_text(json.dumps(content))
    found = check_reports([path], None, catalog).refusals
    return [text for text in found if not text.startswith("no report in")]


def test_the_gate_takes_a_good_run(tmp_path: Path) -> None:
    assert document()["passed"]
    assert refusals(tmp_path, document()) == []


@pytest.mark.parametrize(
    ("fault", "words"),
    [
        ({"different": 2}, f"2 different outputs of 100 runs of {CASE.on('cuda')}"),
        ({"errors": True}, "memcheck found errors: 1 error"),
        ({"runs": 99}, "needed 100 runs of every kernel"),
        ({"reruns": []}, "needed 100 runs of every kernel"),
        ({"sanitizers": [asdict(tool) for tool in OTHER_TOOLS]}, "memcheck is neither run nor skipped"),
        ({"passed": False}, "says itself that it did not pass"),
    ],
)
def test_the_gate_refuses_a_run_that_did_not_pass(tmp_path: Path, fault: dict[str, Any], words: str) -> None:
    assert words in refusals(tmp_path, document(**fault))[0]


def test_the_gate_refuses_a_run_of_other_sources(tmp_path: Path) -> None:
    hashes = {**document()["source_sha256"], "sm12x_gemm": "5a1e" * 16}
    (sentence,) = refusals(tmp_path, document(source_sha256=hashes))
    assert "the source of sm12x_gemm changed since it ran on a GPU" in sentence


def test_the_gate_refuses_an_edited_run(tmp_path: Path) -> None:
    (sentence,) = refusals(tmp_path, {**document(different=2), "passed": True})
    assert "edited after it was made" in sentence


def test_the_gate_refuses_a_run_that_lacks_a_key(tmp_path: Path) -> None:
    without = {key: value for key, value in document().items() if key not in ("sanitizers", "digest")}
    (sentence,) = refusals(tmp_path, {**without, "digest": digest_of(without)})
    assert "has no sanitizers" in sentence


def invoke(monkeypatch: pytest.MonkeyPatch, run: Callable[..., Any], *arguments: str) -> Any:
    monkeypatch.setattr(stress, "run", run)
    return CliRunner().invoke(app, ["stress", *arguments])


def test_the_command_says_what_differs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "s.json"
    found = invoke(monkeypatch, lambda progress: document(different=2), "--report", str(path))
    assert found.exit_code == 1
    assert f"FAILED 2 different outputs of 100 runs of {CASE.on('cuda')}" in found.output
    assert json.loads(path.read_text()) == document(different=2)
    found = invoke(monkeypatch, lambda progress: document())
    assert found.exit_code == 0
    assert "memcheck: skipped: exit status 1: not supported" in found.output
    count = len(FAMILIES) + 1
    assert f"{count} kernels on a GPU (sm_90a), 100 runs each: {count} gave the same bytes every time" in found.output


def test_the_command_without_a_gpu_ran_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    def absent(progress: Any) -> Any:
        raise DeviceUnavailable("torch sees no CUDA device")

    found = invoke(monkeypatch, absent)
    assert (found.exit_code, found.output) == (3, "SKIPPED torch sees no CUDA device\n")
    assert invoke(monkeypatch, absent, "--device", "ptx").exit_code == 2
