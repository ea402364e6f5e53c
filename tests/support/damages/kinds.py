"""What somebody may do to a document of another kind, and the check of the gate that must refuse it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from support.damages.parity import top_key
from support.damages.sound import (
    Document,
    bench,
    committed,
    compared,
    conformance,
    convert,
    drift,
    invariant,
    litmus,
    stress,
)
from support.verify import CASE, STALE

from refmoe.reports.invariant import count_cases


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


def thinned(name: str) -> Callable[[Document], None]:
    """A certificate of fewer batches and neighbours; its own count and the total know it."""

    def damage(document: Document) -> None:
        each = next(each for each in document["certificates"] if each["subject"] == name)
        every, before = each["bytes_compared"] // each["cases"], each["cases"]
        each |= {"sizes": [1, 2, 7], "neighbours": ["random"], "ways": each["ways"][:1], "probes": ["random"]}
        each["cases"] = count_cases(each["sizes"], each["neighbours"], each["ways"], each["probes"])
        each["bytes_compared"] = every * each["cases"]
        document["cases"] += each["cases"] - before

    return damage


def few_programs(document: Document) -> None:
    """A litmus run of one program, whose totals know it."""
    row = document["rows"][0]
    document["rows"] = [row]
    document |= {"programs": 1, "runs": row["runs"], "allowed_outcomes": row["allowed"], "seen_outcomes": row["seen"]}


def example(before: str, after: str) -> Callable[[Document], None]:
    """The first instruction's example says something else."""

    def damage(document: Document) -> None:
        row = document["rows"][0]
        row["examples"] = [text.replace(before, after) for text in row["examples"]]

    return damage


def report_of(name: str) -> Callable[[], Document]:
    """The committed report of a benchmark."""
    return lambda: committed(f"bench/{name}.json")


PAIR = ("runs", 0, "comparisons", 0)
UNEQUAL = ("runs", 0, "comparisons", 2)

KINDS: list[tuple[str, str, Callable[[], Document], Callable[[Document], None]]] = [
    ("document.schema", "stress: an unknown key", stress, top_key(approved=True)),
    ("document.schema", "stress: a negative count", stress, at("reruns", 0, runs=-100)),
    ("document.schema", "stress: an unknown word of a tool", stress, at("sanitizers", 0, verdict="fine")),
    ("document.chip", "stress: no name", stress, top_key(gpu="")),
    ("document.chip", "stress: another chip", stress, top_key(arch="sm_120a")),
    ("document.chip", "stress: another environment", stress, at("environment", gpu=None)),
    ("document.chip", "stress: no driver", stress, at("environment", driver=None)),
    ("document.chip", "stress: no torch", stress, at("environment", torch=None)),
    ("document.chip", "drift: a driver of no GPU", drift, at("environment", driver="CUDA 13.0")),
    ("document.schema", "stress: a driver that is none", stress, at("environment", driver="banana")),
    ("document.schema", "drift: a numpy that is none", drift, at("environment", numpy="the newest")),
    ("document.schema", "bench: a torch that is none", bench, top_key(environment={"torch": "yes"})),
    ("document.version", "drift: a refmoe to come", drift, at("environment", refmoe="9.9")),
    ("document.version", "drift: a refmoe of no end", drift, at("environment", refmoe="9" * 9999)),
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
    ("stress.tools", "skipped for a reason that is none", stress, at(
        "sanitizers", 0, verdict="skipped", summary="the weather"
    )),
    ("stress.tools", "all skipped", stress, lambda d: [
        row.update(verdict="skipped", summary="not done after 9 s") for row in d["sanitizers"]
    ]),
    ("stress.tools", "one not there, and others ran", stress, at(
        "sanitizers", 0, verdict="skipped", summary="no compute-sanitizer on PATH"
    )),
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
    ("conformance.rows", "one instruction", conformance, top_key(opcodes=2)),
    ("conformance.rows", "a billion of them", conformance, top_key(opcodes=10**9, lanes=10**18)),
    ("conformance.rows", "an unknown one", conformance, at("rows", 0, opcode="frobnicate.f32")),
    ("conformance.rows", "an unknown one that ptxas refused", conformance, top_key(refused_by_ptxas=["moo.u32"])),
    ("conformance.counts", "one lane of each", conformance, top_key(lanes=2_400)),
    ("conformance.examples", "words", conformance, at("rows", 0, examples=["it was close"])),
    ("conformance.examples", "another result", conformance, example("executor 0xf", "executor 0x7")),
    ("conformance.examples", "an operand too few", conformance, example(" 0xfff0000000000002", "")),
    ("conformance.examples", "a larger operand", conformance, example("0x7ff0", "0x17ff0")),
    ("conformance.examples", "the same of both", conformance, example("0002, ex", "0000, ex")),
    ("conformance.examples", "a lane that is claimed", conformance, at(
        "rows", 0, examples=["operands 0x0 0x0: GPU 0x1, executor 0x0"]
    )),
    ("conformance.examples", "open lanes of an exact one", conformance, at("rows", 0, opcode="add.u64")),
    ("conformance.counts", "no example", conformance, at("rows", 0, examples=[])),
    ("document.chip", "conformance: an arch that there is not", conformance, top_key(gpu="Potato", arch="sm_7")),
    ("stress.cases", "another family's kernel", stress, at("reruns", 0, kernel="refmoe_dp4a_gemv_4_bf16_4_rows")),
    ("document.schema", "stress: no version of Python", stress, at("environment", python="")),
    ("document.schema", "litmus: a negative count", litmus, top_key(runs=-5)),
    ("document.schema", "litmus: no cause", litmus, lambda d: d["rows"][0].pop("cause")),
    ("document.passed", "litmus: other sources", litmus, top_key(litmus_sha256=STALE)),
    ("document.passed", "litmus: an outcome that PTX does not allow", litmus, at("rows", 0, outside=[[1, 1]])),
    ("document.passed", "litmus: too few runs", litmus, at("rows", 0, runs=999_999)),
    ("document.chip", "litmus: another chip", litmus, top_key(arch="sm_120a")),
    ("litmus.counts", "fewer rows than programs", litmus, pop("rows")),
    ("litmus.counts", "more runs than the rows have", litmus, top_key(runs=10**30)),
    ("litmus.counts", "more outcomes than PTX allows", litmus, at("rows", 0, seen=99, never_seen=[])),
    ("litmus.counts", "outcomes that are not named", litmus, at("rows", 0, allowed=99)),
    ("litmus.programs", "few", litmus, few_programs),
    ("litmus.programs", "one twice", litmus, append("rows")),
    ("litmus.programs", "no program", litmus, at("rows", 0, program=["nonsense"])),
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
    ("drift.runs", "another command", drift, top_key(command="echo")),
    ("drift.runs", "no time", drift, top_key(seconds=0.0)),
    ("drift.runs", "evidence that a model does not have", drift, at("paths", 0, evidence="hardware-checked")),
    ("drift.runs", "a model that there is not", drift, at("paths", 0, model="magic")),
    ("drift.runs", "an arch that there is not", drift, at("paths", 0, arch="sm_1")),
    ("drift.runs", "a run twice", drift, append("runs")),
    ("drift.runs", "another length of prompts", drift, at("runs", 0, "point", prompt=9)),
    ("drift.counts", "a step that there is not", drift, at(*UNEQUAL, "first_difference", step=65)),
    ("drift.counts", "a layer that there is not", drift, at(*UNEQUAL, "first_difference", layer=4)),
    ("drift.counts", "a layer below the first", drift, at(*UNEQUAL, "first_difference", layer=-1)),
    ("drift.counts", "diverged behind the end", drift, at(*UNEQUAL, diverged=[65, None])),
    ("drift.counts", "no curves", drift, at(*UNEQUAL, curves={})),
    ("drift.drawn", "another seed", drift, top_key(seed=8)),
    ("drift.drawn", "another seed in the command", drift, top_key(command="refmoe drift --seed 8")),
    ("drift.drawn", "another seed in both", drift, top_key(command="refmoe drift --seed=8", seed=8)),
    ("drift.drawn", "other steps in the command", drift, top_key(command="refmoe drift --steps 63")),
    ("drift.drawn", "no command", drift, top_key(command="refmoe drift 'x")),
    ("drift.drawn", "another prompt", drift, lambda d: d["runs"][0]["prompts"][1].reverse()),
    ("drift.drawn", "a token that there is not", drift, lambda d: d["runs"][0]["tokens"][1].__setitem__(3, 256)),
    ("drift.drawn", "the name of a model", drift, at("checkpoint", name="gpt-oss-120b")),
    ("drift.drawn", "a checkpoint that its command names", drift, top_key(command="refmoe drift --checkpoint x")),
    ("drift.drawn", "other weights", drift, at("checkpoint", sha256=STALE)),
    ("drift.drawn", "other sizes", drift, at("checkpoint", "config", hidden_size=2880)),
    ("drift.drawn", "more bytes", drift, at("checkpoint", bytes=10**12)),
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
    ("convert.counts", "pairs of one mode", convert, at("power_of_two", 0, pairs=10**12)),
    ("convert.tensors", "another command", convert, top_key(command="echo")),
    ("convert.tensors", "no time", convert, top_key(seconds=0.0)),
    ("convert.tensors", "a hash of no data", convert, at("tensors", 0, data_sha256="0" * 64)),
    ("convert.tensors", "no origin", convert, at("tensors", 0, origin="")),
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
    ("invariant.counts", "a byte a case", invariant, lambda d: [
        each.update(bytes_compared=each["cases"]) for each in d["certificates"]
    ]),
    ("invariant.counts", "one path's bytes", invariant, proof("layer/dp4a", bytes_compared=20 * 5761)),
    ("invariant.paths", "no such kernel", invariant, proof("kernel/expand-copy", subject="kernel/expand-x")),
    ("invariant.counts", "batches of one alone", invariant, proof("kernel/finalize", sizes=[1])),
    ("invariant.counts", "no neighbour", invariant, proof("kernel/finalize", neighbours=[], cases=0)),
    ("invariant.counts", "no time", invariant, top_key(seconds=0.0)),
    ("invariant.paths", "thinned", invariant, thinned("kernel/finalize")),
    ("invariant.paths", "a level that it is not", invariant, top_key(level="quick")),
    ("invariant.paths", "a seed that its command does not say", invariant, top_key(seed=8)),
    ("invariant.paths", "another command", invariant, top_key(command="echo hello")),
    ("invariant.paths", "it rests on more", invariant, proof("kernel/finalize", rests_on="on every chip")),
    ("invariant.paths", "another source", invariant, proof("kernel/finalize", source="expand")),
    ("invariant.paths", "a neighbour that there is not", invariant, proof("kernel/finalize", neighbours=["kind"])),
    ("invariant.paths", "a probe twice", invariant, proof("kernel/finalize", probes=["random", "random"])),
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
    ("invariant.difference", "bytes that are none", invariant, lambda d: [
        each["difference"].update(first="zz", second="yy") for each in d["certificates"] if each["difference"]
    ]),
    ("invariant.difference", "more elements than bytes", invariant, lambda d: [
        each["difference"].update(elements=10**30) for each in d["certificates"] if each["difference"]
    ]),
    ("invariant.paths", "a command of one subject", invariant, top_key(
        command="refmoe invariant --level default --seed 7 --subject kernel/finalize"
    )),
    ("invariant.difference", "more elements than there are", invariant, lambda d: [
        each["difference"].update(differing=10**9) for each in d["certificates"] if each["difference"]
    ]),
    ("bench.content", "no such benchmark", bench, top_key(name="cheating")),
    ("bench.content", "a path for a name", bench, top_key(name="../bench/gpu")),
    ("bench.content", "nothing timed", bench, top_key(rows=[])),
    ("bench.figures", "a negative time", bench, top_key(b_s=-2.0)),
    ("bench.figures", "a time that is a word", bench, at("rows", 0, microseconds="fast")),
    ("bench.figures", "another rate", bench, at("rows", 0, terabytes_per_second=4.7)),
    ("bench.figures", "a median of other times", bench, at("rows", 0, repetitions=[1.0, 1.0, 1.0])),
    ("bench.figures", "a spread of other times", bench, at("rows", 0, spread=[18.84, 18.84])),
    ("bench.figures", "no spread", bench, at("rows", 0, spread=None)),
    ("bench.figures", "times below zero", bench, at("rows", 0, repetitions=[-1.0])),
    ("bench.figures", "milliseconds", bench, at("rows", 0, microseconds=0.01884, terabytes_per_second=3796.0)),
    ("bench.figures", "another speed", bench, at("one", "lane_instructions_per_s", all=2e5)),
    ("bench.figures", "a speed without a time", bench, at("one", "medians_s", all=0.0)),
    ("bench.content", "a list of comparisons", bench, top_key(comparisons=[])),
    ("bench.content", "a row that is a number", bench, top_key(rows=[7])),
    ("bench.content", "a word for whether all is reached", bench, top_key(all_reached="yes")),
    ("bench.targets", "reached and it is not", bench, at("reached", b_s=True)),
    ("bench.targets", "all reached", bench, top_key(all_reached=True)),
    ("bench.targets", "bytes that differ", bench, top_key(
        targets={}, reached={}, all_reached=True, rows=[{"stage": "gemm1", "seconds": 1.0, "bytes": 8, "differing": 3}]
    )),
    ("bench.targets", "a rate that is missed", bench, top_key(a_per_s=3.0)),
    ("bench.targets", "another ratio", compared, at("comparisons", "quantize", ratio=8.0)),
    ("bench.targets", "a target that is missed", compared, at("comparisons", "quantize", target=8.0)),
    ("bench.figures", "another ratio to the floor", report_of("gpu"), at("rows", 1, ratio_to_floor=0.5)),
    ("bench.figures", "a row twice in its group", report_of("gpu"), lambda d: d["rows"].insert(2, d["rows"][1])),
    ("bench.figures", "no floor", report_of("gpu"), lambda d: d["rows"].pop(0)),
    ("bench.figures", "beyond the memory", report_of("gpu"), lambda d: d["rows"][1].update(
        traffic_bytes=d["rows"][1]["traffic_bytes"] * 10, terabytes_per_second=37.19
    )),
    ("bench.figures", "a copy of more bytes", report_of("gpu"), at("rows", 0, name="copy, reads 1, 99.0 MB")),
    ("bench.figures", "another ratio of problems", report_of("deepseek_gemm"), at("targets", 0, ratio=0.9)),
    ("bench.figures", "DeepGEMM slower", report_of("deepseek_gemm"), at("rows", 3, deepgemm_over_this=1.2)),
    ("bench.figures", "more TFLOP/s", report_of("deepseek_gemm"), at("rows", 3, teraflops=1900.0)),
    ("bench.figures", "a target of no problem", report_of("deepseek_gemm"), at("targets", 0, name="copy over ours, x")),
    ("bench.figures", "torch slower", report_of("deepseek_routing"), top_key(torch_over_ours=[20.0, 7.0])),
    ("bench.figures", "more weights differ than there are", report_of("deepseek_routing"), top_key(weights=1)),
    ("bench.figures", "busier than its peak", report_of("counters"), at("rows", 1, issue_share=140.0)),
    ("bench.figures", "warps that wait twice", report_of("counters"), at("rows", 1, waits={"a": 90, "b": 60})),
    ("bench.figures", "no instructions", report_of("counters"), at("rows", 1, instructions=-1)),
    ("bench.figures", "a time of nothing", report_of("counters"), at("rows", 1, microseconds=0)),
    ("bench.figures", "a share less", report_of("counters"), lambda d: d["rows"][1].pop("issue_share")),
    ("bench.figures", "more registers than there are", report_of("counters"), at("rows", 1, registers=5000)),
    ("bench.figures", "the floor of nobody", report_of("counters"), at("rows", 1, floor="a kernel")),
    ("bench.figures", "waiting in no order", report_of("counters"), at("rows", 1, waits={"a": 10, "b": 60})),
    ("bench.figures", "another floor", report_of("sweep"), at("rows", 1, ratio_to_floor=1.0)),
    ("bench.figures", "the floor of another", report_of("sweep"), at("rows", 0, of="refmoe")),
    ("bench.figures", "an operation twice", report_of("sweep"), lambda d: d["rows"].append(dict(d["rows"][0]))),
    ("bench.figures", "more bytes differ than there are", report_of("sweep"), top_key(
        differing={"gpt-oss-120b, route": [7, 6]})),
    ("bench.figures", "nothing compared", report_of("sweep"), top_key(differing={})),
    ("bench.figures", "torch left out", report_of("sweep"), lambda d: d.update(
        rows=[row for row in d["rows"] if row["of"] != "torch.compile"])),
    ("bench.figures", "a number of tokens left out", report_of("sweep"), lambda d: d.update(
        rows=[row for row in d["rows"] if row["tokens"] != 512])),
    ("bench.figures", "another number of tokens", report_of("sweep"), lambda d: next(
        row for row in d["rows"] if row["name"].endswith("M = 512")).update(tokens=128)),
    ("bench.figures", "torch's time as ours", report_of("sweep"), lambda d: next(
        row for row in d["rows"] if row["of"] == "torch.compile").update(of="refmoe")),
    ("bench.figures", "DeepGEMM absent and there", report_of("sweep"), top_key(absent=["DeepGEMM"])),
    ("bench.figures", "more TFLOP/s of a GEMM", report_of("sweep"), lambda d: next(
        row for row in d["rows"] if row.get("teraflops")).update(teraflops=9e3)),
    ("bench.figures", "a faster product", report_of("models"), at("rows", 0, gflops=400.0)),
    ("bench.figures", "fewer bytes kept", report_of("memory"), at("rows", 0, kept=1)),
    ("bench.figures", "no launch as bad as all", report_of("memory"), at("rows", 2, most_of_a_launch=0.5)),
    ("bench.figures", "another average", report_of("memory"), top_key(bytes_per_byte_touched=1.0)),
    ("bench.figures", "less resident than touched", report_of("memory"), top_key(resident_bytes=1)),
    ("bench.figures", "another share", report_of("exponential"), top_key(share_not_correctly_rounded=0.0)),
    ("bench.figures", "reached beyond what is stated", report_of("exponential"), top_key(max_ulp=0.9)),
    ("bench.figures", "a part of the worst", report_of("exponential"), at("rows", 3, max_ulp=7.0)),
    ("bench.figures", "other bits of the worst", report_of("exponential"), at("rows", 0, worst_bits="0x0")),
    ("bench.figures", "an input more", report_of("exponential"), at("rows", 0, inputs=1)),
    ("bench.figures", "not reached and it is", report_of("deepseek"), top_key(all_reached=False)),
    ("bench.figures", "another target of a row", report_of("layer"), at("rows", 0, target="all_experts_s")),
    ("bench.figures", "another contender", report_of("cutlass"), at("rows", 0, contender="few checks")),
    ("bench.figures", "a time without its speed", report_of("executor"), lambda d: (
        d["lane_instructions_per_s"].pop("no checks")
    )),
    ("bench.figures", "a prediction of no kernel", report_of("tiles"), at("predictions", 0, tile="1x1x1")),
    ("bench.figures", "a prediction twice", report_of("tiles"), lambda d: d["predictions"].append(d["predictions"][0])),
    ("bench.figures", "a larger share", report_of("tiles"), at("rows", 0, tensor_share=0.9)),
    ("bench.figures", "faster launches", report_of("deepseek"), top_key(launches_s=1.0)),
    ("bench.figures", "more bytes differ than there are", report_of("deepseek"), at("rows", 0, differing=-1)),
    ("bench.figures", "another prediction", report_of("tiles"), at("predictions", 0, predicted_microseconds=1.0)),
    ("bench.figures", "another bound", report_of("tiles"), at("predictions", 0, bound="issue")),
    ("bench.figures", "spills that are not listed", report_of("tiles"), at("rows", 0, spill_bytes=8)),
    ("document.environment", "bench: a torch to come", bench, top_key(versions={"torch": "9.0"})),
    ("document.environment", "bench: no version", bench, top_key(versions={"torch": "2.13x"})),
    ("bench.figures", "constants of no number", report_of("exponential"), top_key(constant_inputs=1)),
    ("document.environment", "bench: no core", bench, top_key(cores=0)),
]  # fmt: skip
