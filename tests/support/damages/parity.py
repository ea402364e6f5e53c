"""What somebody may do to a parity report, and the check of the gate that must refuse it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from support.damages.sound import ON_GPU, REFUSED, Document, gpu, listed, parity, planted
from support.verify import CASE, COMMAND, STALE

from refmoe.reports.consistency import entry_names
from refmoe.verify.tolerances import TOLERANCES


def case_key(**changes: Any) -> Callable[[Document], None]:
    """A damage of the first case."""
    return lambda document: document["cases"][0].update(changes)


def top_key(**changes: Any) -> Callable[[Document], None]:
    return lambda document: document.update(changes)


def fault_key(**changes: Any) -> Callable[[Document], None]:
    return lambda document: document["mutants"][0].update(changes)


def environment_key(**changes: Any) -> Callable[[Document], None]:
    return lambda document: document["environment"].update(changes)


def bytes_say(finding: str) -> Callable[[Document], None]:
    """The first fault is caught by the bytes of a case of expand, and its finding says this."""
    return fault_key(case=str(CASE), verdict="MISMATCH", check="bytes", finding=finding)


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
        kernel = str(changes.pop("kernel", "tests/support/damages/parity.py::mine"))
        case = document["cases"][0]
        inner = case["id"].replace("@ptx", "@host")
        file = kernel.partition("::")[0]
        given = {"sources": [f"{file}::users"], "source_sha256": STALE, "repro": "pytest 'x.py::t'"} | changes
        case.update(kernel=kernel, id=f"{kernel}/{inner}", device="host", arch="x", lane_instructions=0, **given)
        document["evidence"]["host"] = "bit-exact on the processor"

    return damage


#: A kernel of the first case.
ENTRY = entry_names("expand")[0]

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
    ("document.time", "before there were reports", parity, top_key(created="1970-01-01T00:00:00+00:00")),
    ("document.time", "the future", parity, top_key(created="2999-01-01T00:00:00+00:00")),
    ("document.chip", "a GPU without a name", gpu, lambda document: document["environment"].update(gpu=None)),
    ("document.chip", "another chip's arch", gpu, lambda document: document["environment"].update(gpu="NVIDIA GB10")),
    ("document.chip", "an arch of another chip", gpu, lambda document: document["cases"][0].update(arch="sm_120a")),
    ("parity.empty", "no case", parity, top_key(cases=[], summary={})),
    ("parity.summary", "a summary that is not the sum", parity, top_key(summary={"PASS": 4})),
    ("parity.summary", "a summary of nothing", parity, top_key(summary={})),
    ("parity.command", "no command", parity, top_key(command="true")),
    ("parity.command", "empty", parity, top_key(command="")),
    ("parity.command", "of another device", parity, top_key(command="refmoe parity --device cuda --case ...")),
    ("parity.command", "of another arch", parity, top_key(command=f"{COMMAND[:-8]}--arch=sm_90a --case ...")),
    ("parity.command", "an option that there is not", listed, lambda d: d.update(command=f"{d['command']} --lenient")),
    ("parity.command", "a level and a case", listed, lambda d: d.update(command=f"{d['command']} --case ...")),
    ("parity.command", "schedules that it does not ask for", parity, case_key(schedules=64)),
    ("parity.command", "an unknown level", parity, top_key(command="refmoe parity --device ptx --level most")),
    ("parity.level", "a case that is left out", listed, without_case),
    ("parity.level", "a deeper level", listed, top_key(command="refmoe parity --device ptx --level full")),
    ("parity.level", "another suite", listed, lambda d: d.update(command=d["command"].replace("finalize", "expand"))),
    ("parity.environment", "no driver", gpu, lambda document: document["environment"].update(driver=None)),
    ("parity.environment", "a GPU without a case", parity, lambda d: d["environment"].update(gpu="NVIDIA H200")),
    ("document.schema", "no version of refmoe", parity, lambda d: d["environment"].update(refmoe="")),
    ("parity.environment", "another compiler", parity, case_key(compiler="Build cuda_12.9")),
    ("document.time", "a run of thirty years", parity, top_key(seconds=1e9)),
    ("document.environment", "a numpy to come", parity, environment_key(numpy="99.0")),
    ("document.environment", "an old Python", parity, environment_key(python="2.7.18")),
    ("document.environment", "a compiler that is none", parity, environment_key(nvcc="gcc 12")),
    ("document.environment", "a compiler to come", parity, environment_key(
        nvcc="Build cuda_40.0.r40.0/compiler.36424714_0"
    )),
    ("document.environment", "no system", parity, environment_key(platform="Potato")),
    ("document.environment", "a million processors", parity, environment_key(processors=10**6)),
    ("document.environment", "a driver to come", gpu, environment_key(driver="CUDA 99.0")),
    ("parity.evidence", "nothing of the device", parity, lambda document: document["evidence"].pop("ptx")),
    ("parity.evidence", "nothing of the model", parity, lambda document: document["evidence"].popitem()),
    ("parity.evidence", "a device that nothing ran on", parity, lambda d: d["evidence"].update(cuda="bit-exact")),
    ("parity.evidence", "stronger words", parity, lambda d: d["evidence"].update(ptx="bit-exact on ptx: all")),
    ("parity.seconds", "no time", parity, top_key(seconds=0.0)),
    ("document.version", "a refmoe to come", parity, lambda d: d["environment"].update(refmoe="0.1.1")),
    ("document.chip", "a driver of no GPU", parity, lambda d: d["environment"].update(driver="CUDA 13.0")),
    ("document.schema", "a driver that is none", gpu, lambda d: d["environment"].update(driver="banana")),
    ("document.schema", "a Python that is none", parity, lambda d: d["environment"].update(python="three")),
    ("parity.seconds", "no time for any case", parity, lambda d: [case.update(seconds=0.0) for case in d["cases"]]),
    ("parity.instructions", "faster than any machine", parity, case_key(lane_instructions=10**30)),
    ("case.schedules", "fewer than the command asks for", parity, lambda d: d.update(
        command=f"{d['command']} --schedules 16"
    )),
    ("parity.command", "no schedules", parity, lambda d: d.update(command=f"{d['command']} --schedules some")),
    ("parity.command", "a count of no end", parity, lambda d: d.update(command=f"{COMMAND} --schedules {'9' * 9999}")),
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
    ("case.launches", "another family's", parity, case_key(launches=["refmoe_dp4a_gemv_4_bf16_4_rows 1 x 32"])),
    ("case.launches", "no launch", parity, case_key(launches=["hello"])),
    ("case.launches", "fewer instructions than threads", parity, case_key(lane_instructions=1)),
    ("case.launches", "warnings of a GPU", gpu, case_key(warnings=["race"])),
    ("case.evidence", "made of another's", parity, case_key(made_of="CUTLASS 4.2")),
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
    ("case.launches", "a CTA of 5,000 threads", gpu, case_key(launches=[f"{ENTRY} 1 x 5000"])),
    ("case.launches", "no thread", gpu, case_key(launches=[f"{ENTRY} 1 x 0"])),
    ("case.launches", "a grid of no end", gpu, case_key(launches=[f"{ENTRY} {10**30} x 32"])),
    ("case.schedules", "on a GPU", gpu, case_key(schedules=16)),
    ("case.schedules", "fewer than the case says", parity, renamed(":seed7", ":schedules=4:seed7")),
    ("case.kernel", "ours with sources", parity, case_key(sources=["a.py"])),
    ("case.kernel", "sources without its own file", parity, users(sources=["README.md"])),
    ("case.kernel", "no source at all", parity, users(sources=None)),
    ("case.kernel", "a source outside of the project", parity, users(
        sources=["tests/support/damages/parity.py", "../x.py"]
    )),
    ("case.kernel", "a source at the root", parity, users(sources=["tests/support/damages/parity.py", "/dev/zero"])),
    ("stale.kernel", "another source", parity, case_key(source_sha256=STALE)),
    ("stale.family", "no family", parity, case_key(family="reduce")),
    ("stale.inputs", "other inputs", parity, case_key(input_sha256=STALE)),
    ("stale.user", "another source", parity, users()),
    ("stale.user", "a source that is gone", parity, users(kernel="tests/gone.py::mine")),
    ("stale.user", "a source that never ends", parity, users(
        sources=["tests/support/damages/parity.py", "/dev/zero"]
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
    ("fault.case", "after a billion cases", planted, fault_key(cases=10**9)),
    ("fault.caught", "by no case", planted, fault_key(case=None)),
    ("fault.caught", "without a finding", planted, fault_key(finding=None)),
    ("fault.caught", "where nothing differs", planted, fault_key(finding="codes[0]  x, 0 of 100 differ")),
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
    ("fault.finding", "no place", planted, bytes_say("it is wrong")),
    ("fault.finding", "another stage", planted, bytes_say("out[0]  kernel 0x00 (0) reference 0x01 (1); 1 of 8 differ")),
    ("fault.finding", "the same of both", planted, bytes_say("codes[0, 0]  kernel 0x01 (1) reference 0x01 (1)")),
    ("fault.finding", "more than there are", planted, bytes_say("codes[0, 0]  x; 4,000 of 1,000 differ")),
    ("fault.finding", "another size", planted, bytes_say("codes[0, 0]  x; 1 of 1,001 differ")),
    ("fault.finding", "beyond the end", planted, bytes_say("codes[90000, 90000]  x; 1 of 416 differ")),
    ("fault.tolerance", "an unknown one", planted, fault_key(accepted_by=["mine"])),
    ("fault.tolerance", "of no GEMM", planted, fault_key(accepted_by=[TOLERANCES[0].name])),
    ("fault.tolerance", "other rules", planted, lambda document: document["tolerances"].pop()),
    ("fault.tolerance", "of no fault", parity, lambda document: document.update(tolerances=planted()["tolerances"])),
]  # fmt: skip
