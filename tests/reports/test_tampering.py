"""Somebody damages a report, or what lies beside it, and signs it anew: every check of the gate sees what it is for.

Every damage begins with documents that pass. The digest is made again after it, so the contradiction itself has to be
seen. `DAMAGES` names the check that must refuse each; a check of which no damage is known is a check that cannot fail.
"""

from __future__ import annotations

import copy
import gzip
import json
import lzma
import os
import socket
import time
from collections.abc import Callable, Iterator
from dataclasses import asdict, replace
from functools import cache
from pathlib import Path
from typing import Any

import pytest
from click.testing import Result
from support.verify import CASE, COMMAND, STALE, result, write_document
from typer.testing import CliRunner

from refmoe import catalog
from refmoe.catalog import list_cases, parse_case
from refmoe.cli import app
from refmoe.families import FAMILIES
from refmoe.families.extents import extents_of
from refmoe.reports import reading
from refmoe.reports.baseline import write_baseline
from refmoe.reports.checks import CHECKS, NAMED, Refusal, first_and_count, one_line, table_text
from refmoe.reports.documents import digest_of
from refmoe.reports.gate import GateOutcome, check_reports
from refmoe.reports.parity import read_report
from refmoe.reports.planted import known_faults
from refmoe.reports.stress import RERUNS, TOOLS
from refmoe.verify.tolerances import TOLERANCES
from refmoe.verify.verdict import Verdict

ROOT = Path(__file__).resolve().parents[2]
OTHER = CASE.on("ptx", "sm_121a")
ON_GPU = CASE.on("cuda")
GEMM = parse_case("sm12x_gemm:bf16:m7k416n136e3:gaussian:seed7@ptx")
REFUSED, BECAUSE = next(iter(FAMILIES["sm12x_gemm"].refusals.items()))

Document = dict[str, Any]


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return tmp_path


def gate(*paths: Path, baseline: Path | None = None) -> GateOutcome:
    return check_reports(list(paths), baseline, catalog)


def sealed(path: Path, document: Document) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps({**document, "digest": digest_of(document)}))
    return path


def checks_of(outcome: GateOutcome) -> set[str]:
    assert all(refusal.text == one_line(refusal.text) and refusal.text for refusal in outcome.found)
    return {refusal.check for refusal in outcome.found}


# --- parity reports --------------------------------------------------------------------------------------------------


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
    document = copy.deepcopy(parity())
    mutants = []
    for fault in known_faults({"expand"}).values():
        case = fault.case or str(CASE)
        mutants.append(
            {
                "name": fault.name,
                "fault": fault.fault,
                "kind": fault.kind,
                "caught": True,
                "case": case,
                "verdict": "MISMATCH",
                "finding": "codes[0]  x",
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


def case_key(**changes: Any) -> Callable[[Document], None]:
    """A damage of the first case."""
    return lambda document: document["cases"][0].update(changes)


def top_key(**changes: Any) -> Callable[[Document], None]:
    return lambda document: document.update(changes)


def fault_key(**changes: Any) -> Callable[[Document], None]:
    return lambda document: document["mutants"][0].update(changes)


def verdict(word: str, **changes: Any) -> Callable[[Document], None]:
    """The verdict of the first case is another one, and the summary knows it."""

    def damage(document: Document) -> None:
        document["cases"][0].update(verdict=word, **changes)
        words = [case["verdict"] for case in document["cases"]]
        document["summary"] = {each: words.count(each) for each in dict.fromkeys(words)}

    return damage


def without_case(document: Document) -> None:
    """A case is gone, and the summary knows it."""
    document["cases"].pop()
    document["summary"]["PASS"] -= 1


def twice(document: Document) -> None:
    document["cases"].append(document["cases"][0])
    document["summary"]["PASS"] += 1


def renamed(old: str, new: str) -> Callable[[Document], None]:
    def damage(document: Document) -> None:
        case = document["cases"][0]
        case.update(id=case["id"].replace(old, new), repro=case["repro"].replace(old, new))

    return damage


def wrong_stage(document: Document) -> None:
    document["cases"][0]["differing"]["out"] = document["cases"][0]["differing"].pop("scales")


def mapped(document: Document) -> None:
    drawn = {"stage": "codes", "row_axis": "row", "column_axis": "K-block", "rows": 1, "columns": 1, "row_step": 1}
    drawn |= {"column_step": 1, "expert_rows": [], "tile": None, "counts": [[5]]}
    drawn |= {"first_row": 0, "last_row": 0, "first_column": 0, "last_column": 0}
    verdict("MISMATCH", stage="codes", first_mismatch="codes[0]", maps=[drawn])(document)
    document["cases"][0]["differing"]["codes"] = 1


def users(**changes: Any) -> Callable[[Document], None]:
    """The first case is one of a user's kernel, whose sources are this file."""

    def damage(document: Document) -> None:
        kernel = str(changes.pop("kernel", "tests/reports/test_tampering.py::mine"))
        case = document["cases"][0]
        inner = case["id"].replace("@ptx", "@host")
        file = kernel.partition("::")[0]
        given = {"sources": [f"{file}::users"], "source_sha256": STALE, "repro": "pytest 'x.py::t'"} | changes
        case.update(kernel=kernel, id=f"{kernel}/{inner}", device="host", arch="x", lane_instructions=0, **given)
        document["evidence"]["host"] = "bit-exact on the processor"

    return damage


PARITY: list[tuple[str, str, Callable[[], Document], Callable[[Document], None]]] = [
    ("document.kind", "no schema version", parity, lambda document: document.pop("schema_version")),
    ("document.version", "from the past", parity, top_key(schema_version="0")),
    ("document.version", "from the future", parity, top_key(schema_version="2")),
    ("document.version", "a number for a word", parity, top_key(schema_version=1)),
    ("document.schema", "an unknown key", parity, top_key(approved=True)),
    ("document.schema", "an unknown key of a case", parity, case_key(approved=True)),
    ("document.schema", "an unknown verdict", parity, case_key(verdict="GOOD")),
    ("document.schema", "a verdict in small letters", parity, case_key(verdict="pass")),
    ("document.schema", "a negative time", parity, case_key(seconds=-1.0)),
    ("document.schema", "a negative count of bytes", parity, case_key(compared=-19712)),
    ("document.schema", "a negative count of elements", parity, case_key(differing={"codes": -1, "scales": 1})),
    ("document.schema", "a count in a string", parity, case_key(compared="19712")),
    ("document.schema", "a count that is true", parity, case_key(compared=True)),
    ("document.schema", "a missing key of a case", parity, lambda document: document["cases"][0].pop("repro")),
    ("document.schema", "no schedule at all", parity, case_key(schedules=0)),
    ("document.time", "no time", parity, top_key(created="yesterday")),
    ("document.time", "no time zone", parity, top_key(created="2026-01-01T00:00:00")),
    ("document.time", "the future", parity, top_key(created="2999-01-01T00:00:00+00:00")),
    ("document.chip", "a GPU without a name", gpu, lambda document: document["environment"].update(gpu=None)),
    ("document.chip", "another chip's arch", gpu, lambda document: document["environment"].update(gpu="NVIDIA GB10")),
    ("document.chip", "an arch of another chip", gpu, lambda document: document["cases"][0].update(arch="sm_120a")),
    ("parity.empty", "no case", parity, top_key(cases=[], summary={})),
    ("parity.summary", "a summary that is not the sum", parity, top_key(summary={"PASS": 4})),
    ("parity.summary", "a summary of nothing", parity, top_key(summary={})),
    ("parity.command", "no command", parity, top_key(command="true")),
    ("parity.command", "an unknown level", parity, top_key(command="refmoe parity --device ptx --level most")),
    ("parity.level", "a case that is left out", listed, without_case),
    ("parity.level", "a deeper level", listed, top_key(command="refmoe parity --device ptx --level full")),
    ("parity.level", "another suite", listed, lambda d: d.update(command=d["command"].replace("finalize", "expand"))),
    ("parity.environment", "no driver", gpu, lambda document: document["environment"].update(driver=None)),
    ("parity.environment", "another compiler", parity, case_key(compiler="Build cuda_12.9")),
    ("parity.evidence", "nothing of the device", parity, lambda document: document["evidence"].pop("ptx")),
    ("parity.evidence", "nothing of the model", parity, lambda document: document["evidence"].popitem()),
    ("parity.evidence", "a device that nothing ran on", parity, lambda d: d["evidence"].update(cuda="bit-exact")),
    ("parity.evidence", "stronger words", parity, lambda d: d["evidence"].update(ptx="bit-exact on ptx: all")),
    ("parity.seconds", "longer than the run", parity, case_key(seconds=1e6)),
    ("case.id", "no case", parity, case_key(id="expand")),
    ("case.id", "a shape that the family does not have", parity, renamed("k416", "k417")),
    ("case.id", "an option that the family does not have", parity, renamed(":seed7", ":speed=high:seed7")),
    ("case.id", "another family", parity, case_key(family="sm12x_gemm")),
    ("case.id", "another seed", parity, case_key(seed=8)),
    ("case.id", "another device", parity, case_key(device="cuda", lane_instructions=0)),
    ("case.id", "another arch", parity, case_key(arch="sm_121a")),
    ("case.id", "written otherwise", parity, renamed(":seed7", ":layout=128x4:seed7")),
    ("case.twice", "a case twice", parity, twice),
    ("case.repro", "another case", parity, case_key(repro="refmoe repro 'expand:bf16:m4k416e8t2:real:seed7@ptx'")),
    ("case.repro", "another command", parity, case_key(repro=f"echo refmoe repro '{CASE}'")),
    ("case.repro", "a command behind it", parity, case_key(repro=f"refmoe repro '{CASE}' --schedules 1; rm x")),
    ("case.verdict", "bytes differ", parity, verdict("MISMATCH", stage="codes", first_mismatch="codes[0]")),
    ("case.verdict", "MISTRUSTED", parity, verdict("MISTRUSTED", reason="zeros")),
    ("case.pass", "elements differ", parity, case_key(differing={"codes": 3, "scales": 0})),
    ("case.pass", "a first mismatch", parity, case_key(first_mismatch="codes[0]")),
    ("case.pass", "a stage", parity, case_key(stage="codes")),
    ("case.pass", "a reason", parity, case_key(reason="it looked right")),
    ("case.nothing", "0 bytes compared", parity, case_key(compared=0, evidence="none", differing={})),
    ("case.bytes", "a byte too few", parity, case_key(compared=19711)),
    ("case.bytes", "ten times as many", parity, case_key(compared=197120)),
    ("case.stages", "a stage that is left out", parity, case_key(differing={"codes": 0}, compared=3328)),
    ("case.stages", "another family's stage", parity, wrong_stage),
    ("case.mismatch", "no place", parity, verdict("MISMATCH")),
    ("case.mismatch", "nothing differs", parity, verdict("MISMATCH", stage="codes", first_mismatch="codes[0]")),
    ("case.maps", "a map of other counts", parity, mapped),
    ("case.reason", "a refusal without one", parity, lambda d: d["cases"][3].update(reason=None)),
    ("case.reason", "a reason of blanks", parity, verdict("ERROR", reason=" ")),
    ("case.refusal", "it says nothing", parity, lambda document: document["cases"][3].update(expected=None)),
    ("case.refusal", "in other words", parity, lambda document: document["cases"][3].update(reason="no")),
    ("case.refusal", "a mismatch as a refusal", parity, verdict(
        "UNSUPPORTED", expected=True, reason="no", compared=0, evidence="none", launches=[], lane_instructions=0,
        differing={},
    )),
    ("case.skipped", "a mismatch as SKIPPED", parity, verdict(
        "SKIPPED", reason="no GPU", compared=0, evidence="none", launches=[], lane_instructions=0, differing={},
    )),
    ("case.skipped", "bytes of a run that was none", parity, verdict("SKIPPED", reason="no GPU")),
    ("case.evidence", "of nothing", parity, lambda document: document["cases"][3].update(evidence="bit-exact")),
    ("case.evidence", "proven", parity, case_key(evidence="proven")),
    ("case.launches", "none", parity, case_key(launches=[])),
    ("case.launches", "no instruction", parity, case_key(lane_instructions=0)),
    ("case.launches", "instructions of a GPU", gpu, case_key(lane_instructions=32)),
    ("case.hash", "no source", parity, case_key(source_sha256=None)),
    ("case.hash", "no hash", parity, case_key(source_sha256="main")),
    ("case.hash", "capital letters", parity, lambda d: d["cases"][0].update(
        input_sha256=d["cases"][0]["input_sha256"].upper()
    )),
    ("case.hash", "zeros", parity, case_key(input_sha256="0" * 64)),
    ("case.hash", "no inputs", parity, case_key(input_sha256=None)),
    ("case.model", "stronger evidence", parity, lambda d: d["cases"][2].update(model_evidence="hardware-checked")),
    ("case.model", "no evidence", parity, lambda document: document["cases"][2].update(model_evidence=None)),
    ("case.model", "an unknown model", parity, lambda document: document["cases"][2].update(model="sm130")),
    ("case.schedules", "on a GPU", gpu, case_key(schedules=16)),
    ("case.kernel", "ours with sources", parity, case_key(sources=["a.py"])),
    ("case.kernel", "sources without its own file", parity, users(sources=["README.md"])),
    ("case.kernel", "no source at all", parity, users(sources=None)),
    ("case.kernel", "a source outside of the project", parity, users(
        sources=["tests/reports/test_tampering.py", "../x.py"]
    )),
    ("case.kernel", "a source at the root", parity, users(sources=["tests/reports/test_tampering.py", "/dev/zero"])),
    ("stale.kernel", "another source", parity, case_key(source_sha256=STALE)),
    ("stale.family", "no family", parity, case_key(family="reduce")),
    ("stale.inputs", "other inputs", parity, case_key(input_sha256=STALE)),
    ("stale.user", "another source", parity, users()),
    ("stale.user", "a source that is gone", parity, users(kernel="tests/gone.py::mine")),
    ("stale.user", "a source that never ends", parity, users(
        sources=["tests/reports/test_tampering.py", "/dev/zero"]
    )),
    ("fault.none", "none though they were asked for", planted, top_key(mutants=[], tolerances=[])),
    ("fault.none", "nobody asked for them", planted, top_key(command=COMMAND)),
    ("fault.survived", "one survived", planted, fault_key(
        caught=False, case=None, verdict=None, finding=None, check=None
    )),
    ("fault.list", "one left out", planted, lambda document: document["mutants"].pop()),
    ("fault.list", "one twice", planted, lambda document: document["mutants"].append(document["mutants"][0])),
    ("fault.list", "one that there is not", planted, fault_key(name="999-x")),
    ("fault.list", "a harmless one", planted, fault_key(fault="A comment is changed.")),
    ("fault.caught", "by no case", planted, fault_key(case=None)),
    ("fault.caught", "without a finding", planted, fault_key(finding=None)),
    ("fault.caught", "by a pass", planted, fault_key(verdict="PASS")),
    ("fault.caught", "MISTRUSTED", planted, fault_key(verdict="MISTRUSTED")),
    ("fault.caught", "after no case", planted, fault_key(cases=0)),
    ("fault.case", "no case", planted, fault_key(case="expand")),
    ("fault.case", "on a GPU", planted, fault_key(case=str(ON_GPU))),
    ("fault.case", "one that the kernel refuses", planted, fault_key(case=str(REFUSED.on("ptx")))),
    ("fault.case", "another kernel's", planted, fault_key(case="routing:f32:m1e4t1:gaussian:seed7@ptx")),
    ("fault.case", "one that fails anyway", planted, lambda d: (
        verdict("ERROR", reason="x")(d), d["mutants"][0].update(case=str(CASE))
    )),
    ("fault.check", "a check that found nothing", planted, fault_key(check="race")),
    ("fault.tolerance", "an unknown one", planted, fault_key(accepted_by=["mine"])),
    ("fault.tolerance", "of no GEMM", planted, fault_key(accepted_by=[TOLERANCES[0].name])),
    ("fault.tolerance", "other rules", planted, lambda document: document["tolerances"].pop()),
    ("fault.tolerance", "of no fault", parity, lambda document: document.update(tolerances=planted()["tolerances"])),
]  # fmt: skip


@pytest.mark.parametrize(("check", "what", "made", "damage"), PARITY, ids=[f"{row[0]}: {row[1]}" for row in PARITY])
def test_a_damaged_parity_report_is_refused_for_what_was_done_to_it(
    check: str,
    what: str,
    made: Callable[[], Document],
    damage: Callable[[Document], None],
    folder: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.chdir(ROOT)
    document = copy.deepcopy(made())
    damage(document)
    assert digest_of(document) != digest_of(made())
    assert check in checks_of(gate(sealed(folder / "a.json", document)))


@pytest.mark.parametrize("made", [parity, planted, listed, gpu])
def test_the_reports_pass_before_they_are_damaged(made: Callable[[], Document], folder: Path) -> None:
    assert gate(sealed(folder / "a.json", made())).refusals == ()


# --- the other kinds -------------------------------------------------------------------------------------------------


@cache
def stress() -> Document:
    from refmoe.silicon.stress import Rerun, Sanitized, document_of

    cases = {name: str(next(iter(list_cases("quick", (name,), "cuda")))) for name in FAMILIES}
    reruns = [Rerun(f"refmoe_{name}", case, RERUNS, 1) for name, case in cases.items()]
    tools = [Sanitized(tool, "clean", "ERROR SUMMARY: 0 errors") for tool in TOOLS]
    made = document_of(reruns, tools, gpu="NVIDIA H200", arch="sm_90a")
    made["environment"]["gpu"] = "NVIDIA H200"
    return made


@cache
def conformance() -> Document:
    from refmoe.silicon.conformance import Outcome, document_of

    made = [Outcome("add.u32", 8, 0, 0, 0, ()), Outcome("add.f64", 8, 0, 3, 2, ("x",))]
    return document_of(made, ["add.f32x2"], gpu="NVIDIA H200", arch="sm_90a")


@cache
def committed(name: str) -> Document:
    document: Document = json.loads((ROOT / "reports" / name).read_text())
    return document


def drift() -> Document:
    return committed("drift.json")


def convert() -> Document:
    return committed("convert.json")


def invariant() -> Document:
    return committed("invariant.json")


def proof(name: str, **changes: Any) -> Callable[[Document], None]:
    """A damage of the certificate of one subject."""

    def damage(document: Document) -> None:
        next(each for each in document["certificates"] if each["subject"] == name).update(changes)

    return damage


def without_path(name: str) -> Callable[[Document], None]:
    """A subject is left out, and the total knows it."""

    def damage(document: Document) -> None:
        document["certificates"] = [each for each in document["certificates"] if not each["subject"].startswith(name)]
        document["cases"] = sum(each["cases"] for each in document["certificates"])
        used = {"layer", *(each["source"] for each in document["certificates"])}
        document["source_sha256"] = {key: value for key, value in document["source_sha256"].items() if key in used}

    return damage


@cache
def bench() -> Document:
    targets = {"a_per_s": 4.0, "b_s": 1.0}
    row = {"name": "copy", "microseconds": 18.84, "traffic_bytes": 71516160, "terabytes_per_second": 3.796}
    figures = {
        "rows": [row],
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


def at(*keys: Any, **changes: Any) -> Callable[[Document], None]:
    """A damage of what lies under some keys."""

    def damage(document: Document) -> None:
        inside: Any = document
        for key in keys:
            inside = inside[key]
        inside.update(changes)

    return damage


def append(*keys: Any) -> Callable[[Document], None]:
    """The first entry of a list is there twice."""

    def damage(document: Document) -> None:
        inside: Any = document
        for key in keys:
            inside = inside[key]
        inside.append(inside[0])

    return damage


def pop(*keys: Any) -> Callable[[Document], None]:
    def damage(document: Document) -> None:
        inside: Any = document
        for key in keys:
            inside = inside[key]
        inside.pop()

    return damage


PAIR = ("runs", 0, "comparisons", 0)
UNEQUAL = ("runs", 0, "comparisons", 2)

KINDS: list[tuple[str, str, Callable[[], Document], Callable[[Document], None]]] = [
    ("document.schema", "stress: an unknown key", stress, top_key(approved=True)),
    ("document.schema", "stress: a negative count", stress, at("reruns", 0, runs=-100)),
    ("document.schema", "stress: an unknown word of a tool", stress, at("sanitizers", 0, verdict="fine")),
    ("document.chip", "stress: no name", stress, top_key(gpu="")),
    ("document.chip", "stress: another chip", stress, top_key(arch="sm_120a")),
    ("document.chip", "stress: another environment", stress, at("environment", gpu=None)),
    ("document.passed", "stress: did not pass", stress, top_key(passed=False)),
    ("stale.kernel", "stress: another source", stress, at("source_sha256", expand=STALE)),
    ("stale.kernel", "stress: no source", stress, lambda document: document["source_sha256"].pop("expand")),
    ("stale.family", "stress: no family", stress, at("source_sha256", reduce=STALE)),
    ("stress.cases", "no case", stress, at("reruns", 0, case="expand")),
    ("stress.cases", "on the executor", stress, at("reruns", 0, case=str(CASE))),
    ("stress.cases", "a kernel twice", stress, append("reruns")),
    ("stress.cases", "a source left out", stress, lambda d: d.update(
        reruns=[row for row in d["reruns"] if "routing" not in row["case"].partition(":")[0]]
    )),
    ("stress.runs", "different outputs", stress, at("reruns", 0, different_outputs=2)),
    ("stress.runs", "no output", stress, at("reruns", 0, different_outputs=0)),
    ("stress.runs", "too few", stress, at("reruns", 0, runs=99)),
    ("stress.tools", "one left out", stress, pop("sanitizers")),
    ("stress.tools", "one twice", stress, append("sanitizers")),
    ("stress.tools", "unknown", stress, at("sanitizers", 0, tool="lint")),
    ("stress.tools", "clean with errors", stress, at("sanitizers", 0, summary="ERROR SUMMARY: 3 errors")),
    ("stress.tools", "errors", stress, at("sanitizers", 0, verdict="errors")),
    ("stress.tools", "skipped without a reason", stress, at("sanitizers", 0, verdict="skipped", summary="")),
    ("document.schema", "conformance: an unknown key", conformance, at("rows", 0, ok=True)),
    ("document.schema", "conformance: a negative count", conformance, top_key(differing_opcodes=-1)),
    ("document.chip", "conformance: another chip", conformance, top_key(arch="sm_121a")),
    ("stale.executor", "other sources", conformance, top_key(isa_sha256=STALE)),
    ("conformance.differs", "an instruction", conformance, at("rows", 0, differing=1)),
    ("conformance.counts", "hidden in the totals", conformance, at("rows", 0, differing=1)),
    ("conformance.counts", "open lanes", conformance, top_key(open_lanes=0)),
    ("conformance.counts", "more than compared", conformance, at("rows", 0, open_lanes=9)),
    ("conformance.counts", "more open ones differ", conformance, at("rows", 0, open_differing=4)),
    ("conformance.counts", "fewer instructions than rows", conformance, top_key(opcodes=0)),
    ("conformance.rows", "twice", conformance, append("rows")),
    ("conformance.rows", "run and refused", conformance, top_key(refused_by_ptxas=["add.f64"])),
    ("conformance.rows", "none", conformance, top_key(opcodes=0, rows=[], lanes=0, open_lanes=0)),
    ("document.schema", "drift: an unknown key", drift, at(*PAIR, fine=True)),
    ("document.passed", "drift: did not pass", drift, top_key(passed=False)),
    ("stale.figures", "drift: other sources", drift, top_key(source_sha256=STALE)),
    ("drift.differs", "bytes that must be equal", drift, at(*PAIR, bytes_differing=3)),
    ("drift.differs", "nothing compared", drift, at(*PAIR, bytes_compared=0)),
    ("drift.counts", "no first difference", drift, at(*UNEQUAL, first_difference=None, formats_part=None)),
    ("drift.counts", "curves that differ", drift, at(*UNEQUAL, bytes_differing=0)),
    ("drift.counts", "more than compared", drift, at(*UNEQUAL, bytes_compared=1)),
    ("drift.counts", "a sequence too few", drift, at(*PAIR, diverged=[None])),
    ("drift.runs", "no run", drift, top_key(runs=[])),
    ("drift.runs", "a pair that is left out", drift, pop("runs", 0, "comparisons")),
    ("drift.runs", "a pair twice", drift, append("runs", 0, "comparisons")),
    ("drift.runs", "a pair that need not be equal", drift, at(*PAIR, must_equal=False)),
    ("drift.runs", "an unknown base", drift, top_key(base="mine")),
    ("drift.runs", "a path twice", drift, append("paths")),
    ("drift.runs", "fewer tokens than steps", drift, pop("runs", 0, "tokens", 0)),
    ("drift.dependent", "it says so", drift, top_key(dependent=["marlin: sequence 0"])),
    ("drift.dependent", "other bits", drift, at("runs", 0, "bits", 0, sha256=[STALE, STALE])),
    ("drift.dependent", "no bits", drift, lambda document: document["runs"][0].update(bits=[])),
    ("document.schema", "convert: a negative count", convert, at("tensors", 0, "modes", 0, flushed=-1)),
    ("document.passed", "convert: did not pass", convert, top_key(passed=False)),
    ("stale.figures", "convert: other sources", convert, top_key(source_sha256=STALE)),
    ("convert.loss", "powers of two", convert, at("power_of_two", 0, largest=1)),
    ("convert.loss", "saturated", convert, at("tensors", 0, "modes", 0, saturated=1)),
    ("convert.counts", "more than the tensor has", convert, at("tensors", 0, "modes", 0, codes_changed=10**9)),
    ("convert.counts", "other elements", convert, at("tensors", 0, "modes", 0, elements=1)),
    ("convert.counts", "other tiles", convert, at("tensors", 0, tiles=7)),
    ("convert.counts", "another ratio", convert, at("tensors", 0, "modes", 0, added=1.1)),
    ("convert.counts", "an error of no change", convert, at("tensors", 0, "modes", 0, values_changed=0)),
    ("convert.counts", "pairs", convert, at("power_of_two", 1, pairs=0)),
    ("convert.tensors", "none", convert, top_key(tensors=[])),
    ("convert.tensors", "one twice", convert, append("tensors")),
    ("convert.tensors", "a mode left out", convert, pop("tensors", 0, "modes")),
    ("convert.tensors", "a mode of no table", convert, pop("power_of_two")),
    ("document.schema", "invariant: an unknown verdict", invariant, proof("kernel/finalize", verdict="fine")),
    ("document.passed", "invariant: did not pass", invariant, top_key(passed=False)),
    ("stale.kernel", "invariant: another source", invariant, at("source_sha256", finalize=STALE)),
    ("stale.kernel", "invariant: no source", invariant, lambda d: d["source_sha256"].pop("finalize")),
    ("stale.figures", "invariant: other sources", invariant, at("source_sha256", layer=STALE)),
    ("invariant.paths", "a path left out", invariant, without_path("layer/marlin")),
    ("invariant.paths", "a kernel left out", invariant, without_path("kernel/routing")),
    ("invariant.paths", "one twice", invariant, append("certificates")),
    ("invariant.paths", "an unknown name", invariant, proof("kernel/finalize", subject="mine")),
    ("invariant.counts", "no case", invariant, proof("kernel/finalize", cases=0)),
    ("invariant.counts", "fewer cases", invariant, proof("kernel/finalize", cases=1)),
    ("invariant.counts", "more cases", invariant, top_key(cases=10**6)),
    ("invariant.counts", "no byte", invariant, proof("kernel/finalize", bytes_compared=0)),
    ("invariant.counts", "batches of one alone", invariant, proof("kernel/finalize", sizes=[1])),
    ("invariant.counts", "no neighbour", invariant, proof("kernel/finalize", neighbours=[], cases=0)),
    ("invariant.verdict", "invariant, and it is known to differ", invariant, proof(
        "layer/llama_cpp", verdict="invariant", difference=None
    )),
    ("invariant.verdict", "an excuse", invariant, proof("kernel/finalize", depends="it is fast", verdict="depends")),
    ("invariant.verdict", "a pair that differs", invariant, lambda d: proof(
        "kernel/finalize", difference=next(each["difference"] for each in d["certificates"] if each["difference"])
    )(d)),
    ("invariant.verdict", "no pair that differs", invariant, proof("layer/dp4a", difference=None)),
    ("invariant.difference", "another subject's pair", invariant, lambda d: proof(
        "layer/dp4a", difference={**next(each["difference"] for each in d["certificates"] if each["difference"]),
                                  "alone": "layer/x:random:b1p0:none:seed7"}
    )(d)),
    ("invariant.difference", "equal bytes", invariant, lambda d: [
        each["difference"].update(first=each["difference"]["second"])
        for each in d["certificates"] if each["difference"]
    ]),
    ("invariant.difference", "more elements than there are", invariant, lambda d: [
        each["difference"].update(differing=10**9) for each in d["certificates"] if each["difference"]
    ]),
    ("bench.content", "no such benchmark", bench, top_key(name="cheating")),
    ("bench.content", "a path for a name", bench, top_key(name="../bench/gpu")),
    ("bench.content", "nothing timed", bench, top_key(rows=[])),
    ("bench.figures", "a negative time", bench, top_key(b_s=-2.0)),
    ("bench.figures", "a time that is a word", bench, at("rows", 0, microseconds="fast")),
    ("bench.figures", "another rate", bench, at("rows", 0, terabytes_per_second=4.7)),
    ("bench.targets", "reached and it is not", bench, at("reached", b_s=True)),
    ("bench.targets", "all reached", bench, top_key(all_reached=True)),
    ("bench.targets", "a rate that is missed", bench, top_key(a_per_s=3.0)),
    ("bench.targets", "another ratio", compared, at("comparisons", "quantize", ratio=8.0)),
    ("bench.targets", "a target that is missed", compared, at("comparisons", "quantize", target=8.0)),
]  # fmt: skip


@pytest.mark.parametrize(("check", "what", "made", "damage"), KINDS, ids=[f"{row[0]}: {row[1]}" for row in KINDS])
def test_a_damaged_document_is_refused_for_what_was_done_to_it(
    check: str, what: str, made: Callable[[], Document], damage: Callable[[Document], None], folder: Path
) -> None:
    document = copy.deepcopy(made())
    damage(document)
    assert digest_of(document) != digest_of(made())
    assert check in checks_of(gate(sealed(folder / "a.json", document)))


@pytest.mark.parametrize("made", [stress, conformance, drift, convert, invariant, bench, compared])
def test_the_documents_pass_before_they_are_damaged(made: Callable[[], Document], folder: Path) -> None:
    sealed(folder / "good.json", parity())
    assert gate(folder / "good.json", sealed(folder / "a.json", made())).refusals == ()


# --- files -----------------------------------------------------------------------------------------------------------


def written(content: bytes, name: str = "a.json") -> Callable[[Path], None]:
    return lambda folder: (folder / name).write_bytes(content) and None


def good_bytes() -> bytes:
    document = parity()
    return json.dumps({**document, "digest": digest_of(document)}).encode()


def fifo(folder: Path) -> None:
    os.mkfifo(folder / "a.json")


def bound_socket(folder: Path) -> None:
    here = os.getcwd()
    os.chdir(folder)  # the name of a socket has at most 107 bytes
    try:
        with socket.socket(socket.AF_UNIX) as made:
            made.bind("a.json")
    finally:
        os.chdir(here)


def huge(folder: Path) -> None:
    with open(folder / "a.json", "wb") as file:
        file.truncate(10 << 30)  # ten gigabytes of nothing, which take no room


def loop(folder: Path) -> None:
    (folder / "a.json").symlink_to(folder / "b.json")
    (folder / "b.json").symlink_to(folder / "a.json")


def unread(name: str) -> Callable[[Path], None]:
    return written(good_bytes(), name)


FILES: list[tuple[str, str, Callable[[Path], Any]]] = [
    ("file.link", "a link to nothing", lambda folder: (folder / "a.json").symlink_to(folder / "nothing")),
    ("file.link", "links in a circle", loop),
    ("file.folder", "a folder", lambda folder: (folder / "a.json").mkdir()),
    ("file.linked-folder", "a linked folder", lambda folder: (folder / "more").symlink_to("/proc/self/fdinfo")),
    ("file.special", "a pipe", fifo),
    ("file.special", "a socket", bound_socket),
    ("file.special", "a device", lambda folder: (folder / "a.json").symlink_to("/dev/zero")),
    ("file.large", "ten gigabytes", huge),
    ("file.empty", "empty", written(b"")),
    ("file.empty", "blanks", written(b" \n\n")),
    ("file.compressed", "gzip", written(gzip.compress(b"{}"))),
    ("file.compressed", "xz", written(lzma.compress(b"{}"))),
    ("file.encoding", "latin-1", written(b'{"kind": "\xe9"}')),
    ("file.encoding", "UTF-8 with a mark", written(b"\xef\xbb\xbf{}")),
    ("file.encoding", "UTF-16", written('{"kind": "parity"}'.encode("utf-16"))),
    ("file.truncated", "half", lambda folder: (folder / "a.json").write_bytes(good_bytes()[:-40])),
    ("file.truncated", "half a word", written(b'{"kind": "par')),
    ("file.json", "words", written(b"PASS")),
    ("file.json", "a list", written(b"[]")),
    ("file.json", "two objects", written(b"{} {}")),
    ("file.json", "nested too deeply", written(b'{"a":' + b"[" * 200_000)),
    ("file.number", "NaN", written(b'{"seconds": NaN}')),
    ("file.number", "minus infinity", written(b'{"seconds": -Infinity}')),
    ("file.number", "beyond float64", written(b'{"seconds": 1e999}')),
    ("file.number", "9" * 8, written(b'{"seconds": ' + b"9" * 5000 + b"}")),
    ("file.repeated-key", "the first is read by others", written(b'{"kind": "parity", "kind": "bench"}')),
    ("file.repeated-key", "within", written(b'{"cases": [{"verdict": "MISMATCH", "verdict": "PASS"}]}')),
    ("file.unread", "another suffix", unread("a.txt")),
    ("file.unread", "a backup", unread("a.json~")),
    ("file.unread", "a hidden one", unread(".a")),
    ("file.unread", "compressed", written(gzip.compress(b"{}"), "a.json.gz")),
    ("document.digest", "edited", lambda f: (f / "a.json").write_bytes(good_bytes().replace(b"sm_120a", b"sm_121a"))),
    ("document.kind", "unknown", written(b'{"kind": "diary"}')),
    ("document.kind", "no word", written(b'{"kind": ["parity"]}')),
    ("document.kind", "nothing", written(b"{}")),
    ("document.twice", "a copy", lambda f: [(f / name).write_bytes(good_bytes()) for name in ("a.json", "b.json")]),
    ("document.twice", "a link to it", lambda f: (
        (f / "a.json").write_bytes(good_bytes()), (f / "b.json").symlink_to(f / "a.json")
    )),
    ("document.none", "nothing", lambda folder: None),
    ("document.none", "only figures", lambda folder: sealed(folder / "a.json", bench())),
    ("parity.facts", "other inputs", lambda folder: [
        sealed(folder / "a.json", parity()),
        sealed(folder / "b.json", {**gpu(), "cases": [
            {**case, "input_sha256": STALE} for case in gpu()["cases"]
        ]}),
    ]),
    ("baseline.elsewhere", "another", lambda f: (
        sealed(f / "a.json", parity()), write_baseline(f / "deep" / "baseline.json", [read_report(f / "a.json")])
    )),
]  # fmt: skip


@pytest.mark.parametrize(("check", "what", "make"), FILES, ids=[f"{row[0]}: {row[1]}" for row in FILES])
def test_a_damaged_file_ends_in_a_sentence_and_quickly(
    check: str, what: str, make: Callable[[Path], Any], folder: Path
) -> None:
    (folder / "reports").mkdir()
    make(folder / "reports")
    begun = time.process_time()
    found = gate(folder / "reports")
    assert check in checks_of(found)
    assert time.process_time() - begun < 10


def test_a_report_may_hide_nowhere(folder: Path) -> None:
    """Hidden files, deeper folders, hidden folders, capital letters: each is read."""
    bad = copy.deepcopy(parity())
    verdict("ERROR", reason="x")(bad)
    for place in (".a.json", "A.JSON", ".hidden/a.json", "one/two/three/a.json", "baseline.json/a.json", "a b/ü.json"):
        reports = folder / place.replace("/", "-")
        sealed(reports / place, bad)
        assert "case.verdict" in checks_of(gate(reports)), place
    # Under the name of the baseline as well, unless it is the one in use.
    assert "case.verdict" in checks_of(gate(sealed(folder / "x" / "baseline.json", bad).parent))


def test_what_is_no_report_by_name_and_look_is_named_as_not_read(folder: Path) -> None:
    sealed(folder / "a.json", parity())
    (folder / "README.md").write_text("# Reports\n")
    os.mkfifo(folder / "pipe")
    found = gate(folder)
    assert found.refusals == ()
    assert {path.name for path in found.unread} == {"README.md", "pipe"}


def test_a_file_that_may_not_be_read_is_named(folder: Path) -> None:
    path = sealed(folder / "a.json", parity())
    path.chmod(0)
    user = os.geteuid()
    if user == 0:
        os.seteuid(65534)  # root may read all
    try:
        with pytest.raises(reading.ReportError, match=r"a\.json: cannot be read: Permission denied") as caught:
            reading.read_document(path)
    finally:
        os.seteuid(user)
        path.chmod(0o644)
    assert caught.value.check == "file.permission"


def test_a_file_that_is_not_there_is_named(folder: Path) -> None:
    assert checks_of(gate(folder / "gone.json")) == {"file.absent"}


def test_a_file_that_changes_while_it_is_read_is_refused(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = sealed(folder / "a.json", parity())
    read = os.read

    def slow(descriptor: int, size: int) -> bytes:
        piece = read(descriptor, size)
        if not piece:
            with open(path, "ab") as file:
                file.write(b" ")
        return piece

    monkeypatch.setattr(os, "read", slow)
    assert checks_of(gate(path)) == {"file.changed"}


def test_a_file_that_grows_without_end_is_not_read_to_its_end() -> None:
    """A file of /proc states no size."""
    with pytest.raises(reading.ReportError, match="more than 10 bytes"):
        reading.read_bytes(Path("/proc/self/maps"), 10)


def test_a_report_cannot_write_a_line_of_its_own(folder: Path) -> None:
    """Nor an escape code of a terminal, nor half of a surrogate pair, in whatever it says."""
    document = copy.deepcopy(parity())
    verdict("ERROR", reason="x\ngate passed: 1 report\x1b[2J\u202e\x85y")(document)
    (found,) = [each for each in gate(sealed(folder / "a.json", document)).found if each.check == "case.verdict"]
    assert "; gate passed" in found.text
    assert "\\x1b" in found.text
    assert not set(found.text) & set("\n\x1b\u202e\x85\u2028")
    odd = folder / os.fsdecode(b"a\xff\n.json")
    odd.write_text("{}")
    (refusal,) = gate(odd).refusals
    assert refusal.startswith(f"{folder}/a\\xff")
    assert refusal.encode()


def test_ten_thousand_wrong_cases_are_a_few_sentences() -> None:
    found = list(first_and_count("case.id", ((f"case {number}", "is none") for number in range(10_000))))
    assert len(found) == NAMED + 1
    assert found[-1].text == "9,995 more like this, the last case 9999"


# --- the baseline ----------------------------------------------------------------------------------------------------


def sealed_baseline(path: Path, *cases: Any, **changes: Any) -> Path:
    return sealed(path, {"kind": "baseline", "schema_version": "1", "cases": list(cases), **changes})


@pytest.mark.parametrize(
    ("check", "cases", "changes"),
    [
        ("baseline.content", (), {}),
        ("baseline.content", (str(CASE), str(CASE)), {}),
        ("baseline.content", (str(CASE), 7), {}),
        ("baseline.content", (str(CASE), "expand"), {}),
        ("baseline.content", (str(CASE),), {"kind": "list"}),
        ("baseline.content", (str(CASE),), {"cases": "all"}),
        ("baseline.vanished", (str(CASE), str(replace(CASE, seed=99))), {}),
        ("baseline.family", (str(CASE), "reduce:bf16:m1k32:gaussian:seed7@ptx"), {}),
        ("document.version", (str(CASE),), {"schema_version": "2"}),
        ("document.schema", (str(CASE),), {"but": []}),
    ],
)
def test_a_damaged_baseline_is_refused(check: str, cases: Any, changes: Document, folder: Path) -> None:
    baseline = sealed_baseline(folder / "baseline.json", *cases, **changes)
    assert check in checks_of(gate(sealed(folder / "a.json", parity()), baseline=baseline))


def test_a_baseline_that_is_missing_or_elsewhere_fails_by_name(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refmoe_gate(where: Path, *arguments: str) -> Result:
        monkeypatch.chdir(where)
        return CliRunner().invoke(app, ["gate", *arguments])

    report = sealed(folder / "reports" / "a.json", parity())
    found = refmoe_gate(folder)
    assert found.exit_code == 1
    assert found.stdout.startswith("GATE no baseline: found no reports/baseline.json, so nobody would see")
    outcome = json.loads(refmoe_gate(folder, "--json").stdout)
    assert outcome["checks"] == ["baseline.missing"]
    assert refmoe_gate(folder, "--no-baseline").exit_code == 0
    assert refmoe_gate(folder, "reports", "--baseline", "gone.json").exit_code == 2
    assert refmoe_gate(folder, "reports", "--no-baseline", "--baseline", "reports/a.json").exit_code == 2
    # From another folder it is another one.
    assert "found no ../reports/baseline.json" in refmoe_gate(folder / "reports", "../reports").stdout
    assert refmoe_gate(folder, "--write-baseline").exit_code == 0
    assert refmoe_gate(folder).stdout.strip() == "gate passed: 1 report, 3 passed cases, against reports/baseline.json"
    # One in a folder that is checked and not in use is named, and so is one that is a link to nothing.
    other = sealed_baseline(folder / "mine.json", str(CASE))
    found = refmoe_gate(folder, "reports", "--baseline", str(other))
    assert "reports/baseline.json: a baseline, and the one in use is " in found.stdout
    (folder / "reports" / "baseline.json").unlink()
    (folder / "reports" / "baseline.json").symlink_to("gone.json")
    assert "reports/baseline.json: cannot be read: a link to gone.json" in refmoe_gate(folder).stdout
    assert report.is_file()


# --- the table -------------------------------------------------------------------------------------------------------

#: Checks that a test with a name of its own sees.
ELSEWHERE = {"file.permission", "file.absent", "file.changed", "baseline.missing", "baseline.content"}
ELSEWHERE |= {"baseline.vanished", "baseline.family"}


def seen() -> Iterator[str]:
    yield from (row[0] for row in (*PARITY, *KINDS, *FILES))
    yield from ELSEWHERE


def test_every_check_has_a_damage_that_it_sees() -> None:
    assert set(CHECKS) - set(seen()) == set()
    assert set(seen()) <= set(CHECKS)
    assert len(PARITY) + len(KINDS) + len(FILES) >= 40


def test_the_guide_has_the_table_of_the_code() -> None:
    guide = (ROOT / "docs/guides/gate.md").read_text()
    assert table_text() in guide, "renew it: refmoe gate --checks"


def test_a_refusal_names_a_check_that_there_is() -> None:
    with pytest.raises(KeyError, match="no check of the gate"):
        Refusal("parity.sumary", "x")
    assert asdict(Refusal("parity.summary", "a\nb"))["text"] == "a; b"


def test_every_family_says_how_many_bytes_a_case_compares() -> None:
    assert [name for name, family in FAMILIES.items() if extents_of(next(family.level("quick"))) is None] == []
