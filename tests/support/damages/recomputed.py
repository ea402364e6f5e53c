"""What somebody may do to figures that are computed anew, and the check of the gate that must refuse it."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from typing import Any

from support.damages.kinds import at
from support.damages.parity import top_key
from support.damages.sound import Document, committed, copied

from refmoe.catalog import parse_case
from refmoe.mutation.sites import sampled
from refmoe.recomputed.mutation import sites_of_sources
from refmoe.recomputed.parity import LARGEST, size_of
from refmoe.reports.exhaustive import summary


def report(name: str) -> Callable[[], Document]:
    return lambda: committed(name)


CONFORMANCE, LITMUS, STRESS = (report(name) for name in ("bench/conformance.json", "litmus.json", "stress.json"))
CONVERT, EXHAUSTIVE, EXECUTOR = (report(name) for name in ("convert.json", "exhaustive.json", "bench/executor.json"))
MODELS, QUANTIZE, TILES = (report(f"bench/{name}.json") for name in ("models", "quantize", "tiles"))
GEMM = report("bench/deepseek_gemm.json")


@cache
def mutation() -> Document:
    """Twelve mutants of host code, as the default seed draws them; only what is computed anew is there."""
    sites = [site for site in sites_of_sources() if site.floor == "host"]
    drawn = sampled(sites, 12, 7)
    mutants = [{"id": one.id, "floor": one.floor, "kernel": one.kernel, "operator": one.operator} for one in drawn]
    return {
        "kind": "mutation",
        "command": "refmoe mutate --floor host --sample 12",
        "sample": {"of": len(sites), "tried": 12, "seed": 7},
        "mutants": mutants,
        "survivors": [{"id": mutants[0]["id"], "verdict": "open", "reason": "nobody has looked yet"}],
    }


def swept(options: str) -> Document:
    """The committed sweep as a command with these options would have made it."""
    document = copied(committed("exhaustive.json"))
    words = options.split()
    document["command"] = f"{document['command']} {options}"
    rows = [
        row
        for row in document["rows"]
        if row["subject"].partition(".")[0] == words[1] and (len(words) < 4 or row["dtype"] == words[3])
    ]
    return {**document, "rows": rows}


def without_open_lanes(document: Document) -> None:
    """The instruction with most open lanes says that it has one, and the total knows it."""
    row = max(document["rows"], key=lambda row: row["open_lanes"])
    document["open_lanes"] -= row["open_lanes"] - 1
    row.update(open_lanes=1, open_differing=min(row["open_differing"], 1))


def without_a_row(document: Document) -> None:
    """An instruction with open lanes is left out, and the total knows it."""
    row = document["rows"].pop()
    document["open_lanes"] -= row["open_lanes"]


def without_subject(document: Document) -> None:
    """A subject of the sweep is left out, and the summary knows it."""
    document["rows"] = [row for row in document["rows"] if row["subject"] != "expand.8x4"]
    entries = {row["entry"] for row in document["rows"]}
    document["proofs"] = [each for each in document["proofs"] if each["entry"] in entries]
    document["summary"] = summary(document["rows"], document["proofs"])


def swap(key: str, *keys: Any) -> Callable[[Document], None]:
    """The first two entries of a list change what they have under a key."""

    def damage(document: Document) -> None:
        inside: Any = document
        for each in keys:
            inside = inside[each]
        inside[0][key], inside[1][key] = inside[1][key], inside[0][key]

    return damage


def without(key: str, of: str) -> Callable[[Document], None]:
    """The first entry of a list, and all others that have the same under a key, are left out."""

    def damage(document: Document) -> None:
        gone = document[of][0][key]
        document[of] = [each for each in document[of] if each[key] != gone]

    return damage


def other_text(document: Document) -> None:
    """A program stores another value."""
    row = next(row for row in document["rows"] if any(", 7" in line for line in row["program"]))
    row["program"] = [line.replace(", 7", ", 9", 1) for line in row["program"]]


def another_of_its_kind(document: Document) -> None:
    """Instead of a mutant, one of the same kernel and operator that the seed passes over."""
    drawn = {each["id"] for each in document["mutants"]}
    for each in document["mutants"]:
        key = each["kernel"], each["operator"]
        for site in sites_of_sources():
            if (site.floor, site.kernel, site.operator) == ("host", *key) and site.id not in drawn:
                each["id"] = site.id
                return
    raise AssertionError("each mutant is the only one of its kind")


@cache
def small_cases() -> Document:
    """Of the committed report of the executor a product, a layer, an expansion and an exhibit, all small."""
    whole = committed("ptx.json")
    families = {"expand", "sm12x_gemm", "moe", "cute_deepseek_activation"}
    cases = []
    for case in whole["cases"]:
        if case["family"] in families and case["verdict"] == "PASS" and size_of(parse_case(case["id"])) <= LARGEST:
            families.remove(case["family"])
            cases.append(case)
    cases.sort(key=lambda case: case["family"].startswith("cute_"))
    return {"kind": "parity", "environment": whole["environment"], "cases": cases}


def launch(before: str, after: str) -> Callable[[Document], None]:
    """The first launch of the first case is another one."""

    def damage(document: Document) -> None:
        first = document["cases"][0]["launches"]
        assert before in first[0]
        first[0] = first[0].replace(before, after)

    return damage


def another_seed(document: Document) -> None:
    """Of a few programs: what another seed draws has to be judged anew, which takes seconds for all."""
    document["seed"] = 1
    del document["rows"][8:]


Row = tuple[str, str, Callable[[], Document], Callable[[Document], None]]

DAMAGES: list[Row] = [
    ("conformance.recomputed", "open lanes hidden", CONFORMANCE, without_open_lanes),
    ("conformance.recomputed", "an open row left out", CONFORMANCE, without_a_row),
    ("conformance.recomputed", "an instruction fewer", CONFORMANCE, lambda d: d.update(opcodes=d["opcodes"] - 1)),
    ("conformance.recomputed", "lanes more", CONFORMANCE, lambda d: d.update(lanes=d["lanes"] + 1)),
    ("conformance.recomputed", "refused that ran", CONFORMANCE, lambda d: d["refused_by_ptxas"].append("add.u32")),
    ("conformance.recomputed", "lanes of a row", CONFORMANCE, lambda d: d["rows"][0].update(lanes=40_000)),
    ("litmus.recomputed", "another text", LITMUS, other_text),
    ("litmus.recomputed", "another cause", LITMUS, at("rows", 3, cause="in order, surely")),
    ("litmus.recomputed", "programs out of order", LITMUS, lambda d: d["rows"].reverse()),
    ("litmus.recomputed", "one left out", LITMUS, lambda d: d["rows"].pop(7)),
    ("litmus.recomputed", "another seed", LITMUS, another_seed),
    ("litmus.recomputed", "more allowed", LITMUS, lambda d: d["rows"][0].update(allowed=2, seen=2)),
    ("litmus.recomputed", "an outcome that PTX does not allow", LITMUS, lambda d: next(
        row for row in d["rows"] if row["never_seen"]
    )["never_seen"][0].append(7)),
    ("stress.recomputed", "a kernel left out", STRESS, lambda d: d["reruns"].pop()),
    ("stress.recomputed", "a kernel that there is not", STRESS, at("reruns", 0, kernel="refmoe_expand_x")),
    ("stress.recomputed", "by another case", STRESS, swap("case", "reruns")),
    ("convert.recomputed", "a tensor left out", CONVERT, without("name", "tensors")),
    ("convert.recomputed", "one kind of scales left out", CONVERT, without("scales", "tensors")),
    ("convert.recomputed", "another layer", CONVERT, at("tensors", 0, layer="ffn down")),
    ("convert.recomputed", "another error", CONVERT, at("tensors", 0, "modes", 0, direct_error=0.01)),
    ("convert.recomputed", "one value more", CONVERT, lambda d: d["tensors"][0]["modes"][1].update(
        values_changed=d["tensors"][0]["modes"][1]["values_changed"] + 1
    )),
    ("convert.recomputed", "another hash", CONVERT, at("tensors", 0, data_sha256="5a1e" * 16)),
    ("convert.recomputed", "pairs that change", CONVERT, at("power_of_two", 1, largest=7)),
    ("convert.recomputed", "a file's tensors", CONVERT, top_key(command="refmoe policy convert --input x.npy")),
    ("exhaustive.recomputed", "a subject left out", EXHAUSTIVE, without_subject),
    ("exhaustive.recomputed", "one block more", EXHAUSTIVE, lambda d: d["rows"][0].update(
        blocks=d["rows"][0]["blocks"] + 1
    )),
    ("exhaustive.recomputed", "one byte more", EXHAUSTIVE, lambda d: d["rows"][0].update(
        bytes=d["rows"][0]["bytes"] + 1
    )),
    ("exhaustive.recomputed", "another policy's row", EXHAUSTIVE, at("rows", 0, mode="even")),
    ("exhaustive.recomputed", "a suite that there is not", EXHAUSTIVE, lambda d: d.update(
        command=f"{d['command']} --suite routing"
    )),
    ("exhaustive.recomputed", "rows beyond the command", EXHAUSTIVE, lambda d: d.update(
        command=f"{d['command']} --suite expand"
    )),
    ("bench.recomputed", "a target moved", EXECUTOR, at("targets", lane_instructions_per_s=1.0)),
    ("bench.recomputed", "a target dropped", EXECUTOR, lambda d: [
        d[key].pop("gemm_s") for key in ("targets", "reached")
    ]),
    ("bench.recomputed", "no word of one", EXECUTOR, lambda d: d["reached"].pop("gemm_s")),
    ("bench.recomputed", "no word of all", EXECUTOR, lambda d: d.pop("all_reached")),
    ("bench.recomputed", "a row's target", MODELS, at("rows", 0, target=1.0)),
    ("bench.recomputed", "a missed row left out", MODELS, lambda d: d["rows"].pop()),
    ("bench.recomputed", "a comparison left out", QUANTIZE, lambda d: d["comparisons"].popitem()),
    ("bench.recomputed", "a lower target", GEMM, at("targets", 0, target=0.1)),
    ("bench.recomputed", "another bandwidth", TILES, at("sources", "RTX 5090", bandwidth_gb_per_second=1.0)),
    ("case.recomputed", "other inputs", small_cases, at("cases", 0, input_sha256="5a1e" * 16)),
    ("case.recomputed", "other inputs of an exhibit", small_cases, at("cases", -1, input_sha256="5a1e" * 16)),
    ("case.recomputed", "inputs of another case", small_cases, swap("input_sha256", "cases")),
    ("case.recomputed", "launches of another case", small_cases, swap("launches", "cases")),
    ("case.recomputed", "another grid", small_cases, launch(" x ", "0 x ")),
    ("case.recomputed", "another block", small_cases, launch(" x ", " x 1")),
    ("case.recomputed", "another kernel", small_cases, launch("_bf16", "_fp16")),
    ("case.recomputed", "a launch left out", small_cases, lambda d: [case["launches"].pop() for case in d["cases"]]),
    ("bench.recomputed", "another size", QUANTIZE, top_key(size=64)),
    ("bench.recomputed", "a key that there is not", EXECUTOR, top_key(approved=True)),
    ("bench.recomputed", "a key that is left out", EXECUTOR, lambda d: d.pop("one_row_s")),
    ("bench.recomputed", "more evidence", MODELS, top_key(evidence="hardware-checked")),
    ("bench.recomputed", "fewer bytes of a problem", GEMM, at("rows", 2, traffic_bytes=7)),
    ("bench.recomputed", "operations of another problem", GEMM, at("rows", 2, teraflops=1.0)),
    ("bench.recomputed", "operations of a copy", GEMM, at("rows", 0, teraflops=7.0)),
    ("bench.recomputed", "an arch that there is not", report("bench/deepseek.json"), top_key(arch="sm_1")),
    ("bench.recomputed", "no version", MODELS, lambda d: d["versions"].pop("numpy")),
    ("bench.recomputed", "another product", EXECUTOR, at("gemm", tile="256x8x256")),
    ("bench.recomputed", "fewer weights", report("bench/deepseek_routing.json"), top_key(weights=65535)),
    ("bench.recomputed", "checked more", MODELS, at("rows", 0, checked=2400)),
    ("bench.recomputed", "a prediction left out", TILES, lambda d: d["predictions"].pop()),
    ("bench.recomputed", "a prediction for more tokens", TILES, at("predictions", 0, tokens=5)),
    ("bench.recomputed", "bits of a copy", GEMM, at("rows", 0, bits_are_deepgemms=True)),
    ("convert.recomputed", "another command", CONVERT, top_key(command="refmoe policy converted")),
    ("mutation.recomputed", "a huge number of mutants", mutation, lambda d: d["sample"].update(of=10**9)),
    ("mutation.recomputed", "one mutant more", mutation, lambda d: d["sample"].update(of=d["sample"]["of"] + 1)),
    ("mutation.recomputed", "another seed", mutation, lambda d: d["sample"].update(seed=8)),
    ("mutation.recomputed", "a mutant that there is not", mutation, lambda d: d["mutants"][0].update(
        id=d["mutants"][0]["id"] + " x"
    )),
    ("mutation.recomputed", "one that the seed does not draw", mutation, another_of_its_kind),
    ("mutation.recomputed", "another floor's", mutation, at("mutants", 0, floor="ptx")),
    ("mutation.recomputed", "an excuse of nobody's", mutation, at("survivors", 0, verdict="equivalent")),
]  # fmt: skip
