"""Results and reports without a kernel: what the tests of the harness plant their faults in."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from refmoe.families.case import Case, parse_case
from refmoe.families.family import Inputs
from refmoe.families.quantize_expand import RUNS
from refmoe.reports.documents import digest_of
from refmoe.reports.environment import Environment
from refmoe.reports.parity import make_report, report_text
from refmoe.verify import runner
from refmoe.verify.runner import source_sha256
from refmoe.verify.verdict import Result, Verdict

ENVIRONMENT = Environment(
    refmoe="0",
    python="3",
    numpy="2",
    ml_dtypes="0",
    nvcc=None,
    torch=None,
    gpu=None,
    driver=None,
    platform="x",
    processors=1,
)
CASE = parse_case("expand:bf16:m4k416e8t2:fingerprint:seed7@ptx")


@dataclass
class StandInDevice:
    """A device whose "kernel" is the reference, so that a test can change its outputs or raise from it."""

    arch: str = "sm_120a"
    launches: list[Any] = field(default_factory=list)


def stand_in(monkeypatch: pytest.MonkeyPatch, change: Any) -> None:
    """Make every kernel the reference with `change(case, outputs)` applied; `change` may also raise."""

    def run(case: Case, inputs: Inputs, device: Any) -> Mapping[str, NDArray[np.uint8]]:
        outputs = {name: buffer.copy() for name, buffer in RUNS[case.family].expect(case, inputs).outputs.items()}
        change(case, outputs)
        return outputs

    runs = {name: replace(family, run=run, missing=lambda case, device: None) for name, family in RUNS.items()}
    monkeypatch.setattr(runner, "RUNS", runs)
    monkeypatch.setattr(runner.Devices, "get", lambda self, case: StandInDevice(case.arch or "sm_90a"))


def result(case: Case = CASE, verdict: Verdict = Verdict.PASS, **fields: Any) -> Result:
    """A result as the runner would make it."""
    known = {"evidence": "bit-exact", "arch": case.arch, "source_sha256": source_sha256(case.family), "compared": 10}
    return Result(case, verdict, **{**known, **fields})


def write_document(path: Path, results: list[Result], **changes: Any) -> Path:
    """A report file; `changes` are made to its keys and signed with a new digest."""
    report = make_report(results, command="test", environment=ENVIRONMENT, seconds=1.0)
    document = {**json.loads(report_text(report)), **changes}
    document["digest"] = changes.get("digest", digest_of(document))
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(document))
    return path
