"""Documents of every kind that pass the gate: what damages begin with. And how one is signed and held against it."""

from __future__ import annotations

import json
import pickle
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any

import pytest
from support.verify import CASE, COMMAND, GPU, result, write_document

from refmoe import catalog
from refmoe.catalog import list_cases, parse_case
from refmoe.families import FAMILIES
from refmoe.reports.checks import one_line
from refmoe.reports.consistency import entry_names
from refmoe.reports.documents import digest_of
from refmoe.reports.gate import GateOutcome, check_reports
from refmoe.reports.planted import known_faults
from refmoe.reports.stress import RERUNS, TOOLS
from refmoe.verify.tolerances import TOLERANCES
from refmoe.verify.verdict import Verdict

ROOT = Path(__file__).resolve().parents[3]
OTHER = CASE.on("ptx", "sm_121a")
ON_GPU = CASE.on("cuda")
GEMM = parse_case("sm12x_gemm:bf16:m7k416n136e3:gaussian:seed7@ptx")
REFUSED, BECAUSE = next(iter(FAMILIES["sm12x_gemm"].refusals.items()))

Document = dict[str, Any]


def gate(*paths: Path, baseline: Path | None = None) -> GateOutcome:
    return check_reports(list(paths), baseline, catalog)


def copied(document: Document) -> Document:
    """A copy of all of it, to be damaged; `deepcopy` takes ten times as long."""
    made: Document = pickle.loads(pickle.dumps(document))
    return made


def sealed(path: Path, document: Document) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps({**document, "digest": digest_of(document)}))
    return path


def checks_of(outcome: GateOutcome) -> set[str]:
    assert all(refusal.text == one_line(refusal.text) and refusal.text for refusal in outcome.found)
    return {refusal.check for refusal in outcome.found}


@cache
def parity() -> Document:
    """A report that passes: two archs, a product with an accumulation model, a refusal."""
    from refmoe.families.gemm.family import ASSUMPTION

    results = [
        result(),
        result(OTHER),
        result(GEMM),
        result(REFUSED.on("ptx", "sm_121a"), Verdict.UNSUPPORTED, reason=f"x {BECAUSE} y", expected=True),
    ]
    import tempfile

    with tempfile.TemporaryDirectory() as scratch:
        document: Document = json.loads(write_document(Path(scratch) / "a.json", results).read_text())
    for case in document["cases"]:
        if case["family"] == "sm12x_gemm" and case["verdict"] == "PASS":
            case |= {"model": ASSUMPTION.model, "model_evidence": ASSUMPTION.evidence}
    document["evidence"][ASSUMPTION.model] = ASSUMPTION.text
    return document


@cache
def planted() -> Document:
    """A report whose faults are all caught, each as its patch says."""
    document = copied(parity())
    mutants = []
    for fault in known_faults({"expand"}).values():
        case = fault.case or str(CASE)
        stages = parse_case(case).family.extents(parse_case(case))
        mutants.append(
            {
                "name": fault.name,
                "fault": fault.fault,
                "kind": fault.kind,
                "caught": True,
                "case": case,
                "verdict": "MISMATCH",
                "finding": f"{next(iter(stages))}[0]  x",
                "cases": 1,
                "check": "bytes",
                "accepted_by": None,
            }
        )
    tolerances = [{"name": each.name, "source": each.source, "rule": each.rule} for each in TOLERANCES]
    return {**document, "mutants": mutants, "tolerances": tolerances, "command": f"{COMMAND} --mutants"}


@cache
def listed() -> Document:
    """A report of a level: finalize at the quick level."""
    import tempfile

    cases = list_cases("quick", ["finalize"], "ptx", None)
    with tempfile.TemporaryDirectory() as scratch:
        path = write_document(Path(scratch) / "a.json", [result(case) for case in cases])
        document: Document = json.loads(path.read_text())
    return {**document, "command": "refmoe parity --device ptx --level quick --suite=finalize"}


@cache
def gpu() -> Document:
    """A report of a GPU."""
    import tempfile

    with tempfile.TemporaryDirectory() as scratch:
        path = write_document(Path(scratch) / "a.json", [result(ON_GPU), result(replace(ON_GPU, seed=8))])
        document: Document = json.loads(path.read_text())
    return {**document, "command": "refmoe parity --device cuda --case ..."}


@cache
def stress() -> Document:
    from refmoe.silicon.stress import Rerun, Sanitized, document_of

    cases = {name: str(next(iter(list_cases("quick", (name,), "cuda")))) for name in FAMILIES}
    # Under the name of a group, moe for example, the first case may be of another family.
    entries = {name: entry_names(case.partition(":")[0])[0] for name, case in cases.items()}
    reruns = [Rerun(f"{entries[name]}_{name}", case, RERUNS, 1) for name, case in cases.items()]
    tools = [Sanitized(tool, "clean", "ERROR SUMMARY: 0 errors") for tool in TOOLS]
    made = document_of(reruns, tools, gpu="NVIDIA H200", arch="sm_90a")
    made["environment"] |= GPU
    return made


@cache
def conformance() -> Document:
    from refmoe.silicon.conformance import Outcome, document_of

    # A NaN whose payload the executor does not claim.
    lane = "operands 0x7ff0000000000000 0xfff0000000000002: GPU 0xfff8000000000002, executor 0xfff8000000000000"
    made = [Outcome("add.u32", 8, 0, 0, 0, ()), Outcome("add.f64", 8, 0, 3, 2, (lane,))]
    document = document_of(made, ["add.f32x2"], gpu="NVIDIA H200", arch="sm_90a")
    # Instructions in which no lane differs or is open have no row.
    return {**document, "opcodes": 2_400, "lanes": 2_400 * 32_768}


#: Reports that only a GPU makes, and how. README says where one is to be made again.
_ON_A_GPU = {
    "stress.json": "refmoe stress --device cuda",
    "exhaustive.json": "refmoe parity --level exhaustive --device cuda",
}


@cache
def _read(name: str) -> Document:
    document: Document = json.loads((ROOT / "reports" / name).read_text())
    return document


def committed(name: str) -> Document:
    """A committed report; without one that only a GPU makes, the test is skipped."""
    if name in _ON_A_GPU and not (ROOT / "reports" / name).exists():
        pytest.skip(f"reports/{name} is to be made again: {_ON_A_GPU[name]}")
    return _read(name)


def drift() -> Document:
    return committed("drift.json")


def convert() -> Document:
    return committed("convert.json")


def invariant() -> Document:
    return committed("invariant.json")


def litmus() -> Document:
    return committed("litmus.json")


@cache
def bench() -> Document:
    targets = {"a_per_s": 4.0, "b_s": 1.0}
    times = {"repetitions": [18.8, 18.9, 18.841], "spread": [18.8, 18.9]}
    row = {**times, "name": "copy", "microseconds": 18.84, "traffic_bytes": 71516160, "terabytes_per_second": 3.796}
    figures = {
        "rows": [row],
        "one": {"lane_instructions": 100, "medians_s": {"all": 0.5}, "lane_instructions_per_s": {"all": 200.0}},
        "a_per_s": 5.0,
        "b_s": 2.0,
        "targets": targets,
        "reached": {"a_per_s": True, "b_s": False},
    }
    return {"kind": "bench", "name": "executor", **figures, "all_reached": False}


@cache
def compared() -> Document:
    medians = {"refmoe": 1.0, "torchao": 6.0}
    each = {"medians_s": medians, "ratio": 6.0, "target": 4.0, "reached": True}
    return {"kind": "bench", "name": "quantize", "comparisons": {"quantize": each}, "reached": True}
