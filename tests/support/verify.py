"""Results and reports without a kernel: what the tests of the harness plant their faults in."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from functools import cache
from pathlib import Path
from typing import Any

import pytest
from numpy.typing import NDArray

from refmoe.catalog import parse_case, source_sha256
from refmoe.families import FAMILIES
from refmoe.families.family import Case, Expectation, Inputs, Outputs
from refmoe.museum.cute_kernel import CuteKernel
from refmoe.museum.cutlass.kernel import Cutlass
from refmoe.recomputed.parity import made
from refmoe.reports.documents import digest_of
from refmoe.reports.environment import Environment
from refmoe.reports.parity import make_report, report_text
from refmoe.verify.kernel import Devices, Kernel
from refmoe.verify.runner import input_sha256
from refmoe.verify.verdict import Result, Verdict

ENVIRONMENT = Environment(
    refmoe="0",
    python="3.11.7",
    numpy="2.4.6",
    ml_dtypes="0.6.0",
    nvcc=None,
    torch=None,
    gpu=None,
    driver=None,
    platform="Linux x86_64",
    processors=1,
)
#: What there is where a GPU is.
GPU = {"torch": "2", "gpu": "NVIDIA H200", "driver": "CUDA 13.0"}
#: A hash of no source.
STALE = "5a1e" * 16
#: A run of chosen cases, of which no level says which they are.
COMMAND = "refmoe parity --device ptx --case ..."
CASE = parse_case("expand:bf16:m4k416e8t2:fingerprint:seed7@ptx")


Change = Callable[[Case, dict[str, NDArray[Any]]], None]


@dataclass
class StandInDevice:
    """A device whose "kernel" is the reference, so that a test can change its outputs or raise from it."""

    name: str = "ptx"
    arch: str = "sm_120a"
    launches: list[Any] = field(default_factory=list)


def stand_in(monkeypatch: pytest.MonkeyPatch, change: Change) -> None:
    """Make every kernel the reference with `change(case, outputs)` applied; `change` may also raise."""
    run_by_family = Kernel.run

    def run(self: Kernel, case: Case, inputs: Inputs, expected: Expectation, place: Any) -> Outputs:
        def changed(case: Case, inputs: Inputs, device: Any) -> Mapping[str, NDArray[Any]]:
            outputs = {name: buffer.copy() for name, buffer in expected.outputs.items()}
            change(case, outputs)
            return outputs

        return run_by_family(Kernel(replace(self.family, run=changed), self.devices), case, inputs, expected, place)

    for kernel in (Kernel, Cutlass, CuteKernel):
        monkeypatch.setattr(kernel, "run", run)
        monkeypatch.setattr(kernel, "missing", lambda self, case, place: None)
    monkeypatch.setattr(Devices, "get", lambda self, case: StandInDevice(case.device, case.arch or "sm_90a"))


def result(case: Case = CASE, verdict: Verdict = Verdict.PASS, **fields: Any) -> Result:
    """A result as the runner would make it: what the gate asks of it holds, but for `fields`."""
    known: dict[str, Any] = {
        "id": str(case), "device": case.device, "repro": f"refmoe repro '{case}'",
        "arch": case.arch or ("sm_90a" if verdict.ran else ""),
    }  # fmt: skip
    if verdict is not Verdict.SKIPPED:
        made = {"source_sha256": source_sha256(case.family.name), "input_sha256": inputs_sha256(case.data)}
        known |= {**made, "compiler": ENVIRONMENT.nvcc}
    if verdict.ran and verdict is not Verdict.ERROR:
        extents = case.family.extents(case)
        compared = sum(extents.values())
        known |= {"compared": compared, "differing": tuple((stage, 0) for stage in extents), "evidence": "bit-exact"}
        launches = launches_in_report(str(case), known["arch"]) if case.family.name in FAMILIES else ("kernel 1 x 32",)
        threads = max((int(launch.rpartition(" ")[2]) for launch in launches), default=0)
        lanes = threads if case.device == "ptx" else 0
        known |= {"launches": launches, "lane_instructions": lanes, "seconds": 0.01}
    if verdict is Verdict.MISMATCH:
        stage = known["differing"][0][0]
        known |= {"stage": stage, "first_mismatch": f"{stage}[0]", "differing": ((stage, 1), *known["differing"][1:])}
    if "compared" in fields and "evidence" not in fields:
        known["evidence"] = "bit-exact" if fields["compared"] else "none"
    return Result(case, verdict, **{**known, **fields})


@cache
def launches_in_report(case: str, arch: str) -> tuple[str, ...]:
    """What the kernel of a case launches, as a report writes it."""
    return made(case, arch or "sm_120a")[1]


@cache
def inputs_sha256(case: Case) -> str:
    """The hash of a case's inputs."""
    return input_sha256(case.family.inputs(case))


def write_document(path: Path, results: list[Result], **changes: Any) -> Path:
    """A report file; `changes` are made to its keys and signed with a new digest."""
    on_gpu = any(result.device == "cuda" and result.verdict.ran for result in results)
    environment = ENVIRONMENT.model_copy(update=GPU) if on_gpu else ENVIRONMENT
    own = [result.device for result in results if result.kernel is None]
    command = COMMAND.replace("ptx", own[0]) if own else COMMAND
    report = make_report(results, command=command, environment=environment, seconds=1.0)
    document = {**json.loads(report_text(report)), **changes}
    document["digest"] = changes.get("digest", digest_of(document))
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(document))
    return path
