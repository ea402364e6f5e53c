"""A document of `refmoe drift`: paths side by side over decode steps; `refmoe.drift.document` makes it."""

from __future__ import annotations

import itertools
from collections import Counter
from collections.abc import Iterator, Mapping
from typing import Any, Literal

from refmoe.chips import CHIPS
from refmoe.reference.mma import MODELS
from refmoe.reports.checks import GateRefusal, first_and_count
from refmoe.reports.documents import Count, Kind, Model, PresentHash, Seconds, Sha256, passed_refusals
from refmoe.reports.drawn import drawn_refusals
from refmoe.reports.environment import Environment
from refmoe.verify.source import python_sha256

SCHEMA_VERSION = "1"

#: What decides the bits of a path and the figures of a comparison.
SOURCES = (
    *("formats.py", "policy.py"),
    *(
        f"{room}/*.py"
        for room in ("reference", "reference/gguf", "reference/mma", "reference/moe", "models", "models/gguf", "drift")
    ),
    *(f"reference/{room}/*.py" for room in ("deepseek", "deepseek_gemm")),
)


class DifferenceRecord(Model):
    """Where two paths first differ."""

    step: Count
    layer: int | None
    stage: str
    array: str
    index: list[Count]
    text: str


class ComparisonRecord(Model):
    """Two paths side by side."""

    base: str
    path: str
    mode: str
    must_equal: bool
    bytes_compared: Count
    bytes_differing: Count
    first_difference: DifferenceRecord | None
    formats_part: dict[str, Any] | None
    diverged: list[Count | None]
    growth: dict[str, Any]
    curves: dict[str, dict[str, list[Any]]]


class BitsRecord(Model):
    """The hash of every sequence's bits."""

    path: str
    mode: str
    sha256: list[Sha256]


class RunRecord(Model):
    """One point of the sweep."""

    point: dict[str, Count | None]
    prompts: list[list[Count]]
    tokens: list[list[Count]]
    comparisons: list[ComparisonRecord]
    bits: list[BitsRecord]


class DriftDocument(Model):
    """The keys of a document."""

    kind: Literal["drift"]
    schema_version: Literal["1"]
    created: str
    command: str
    environment: Environment
    seconds: Seconds
    source_sha256: Sha256
    checkpoint: dict[str, Any]
    seed: Count
    steps: Count
    paths: list[dict[str, Any]]
    base: str
    growth_method: str
    runs: list[RunRecord]
    dependent: list[str]
    passed: bool
    digest: Sha256


def source_sha256() -> str:
    """Of the Python sources that decide the figures, without comments and docstrings."""
    return python_sha256(SOURCES)


def failures(document: Mapping[str, Any]) -> list[str]:
    """What must be equal and is not, a sentence each."""
    return [refusal.text for refusal in _failures(document)]


def _failures(document: Mapping[str, Any]) -> Iterator[GateRefusal]:
    for sentence in document["dependent"]:
        yield GateRefusal("drift.dependent", sentence)
    for run in document["runs"]:
        for one in run["comparisons"]:
            pair = _pair(one)
            if one["must_equal"] and one["bytes_differing"]:
                where = one["first_difference"]["text"] if one["first_difference"] else "in formats"
                text = f"{pair}: {one['bytes_differing']:,} bytes differ and none may: {where}"
                yield GateRefusal("drift.differs", text)
            if one["must_equal"] and not one["bytes_compared"]:
                yield GateRefusal("drift.differs", f"{pair}: must be equal, but nothing was compared")


def _judge(document: Mapping[str, Any], present: PresentHash) -> Iterator[GateRefusal]:
    if not document["runs"]:
        yield GateRefusal("drift.runs", f"an empty document: it holds no run, so it proves nothing; {DRIFT.again}")
        return
    found = list(_failures(document))
    yield from found
    yield from passed_refusals(document, bool(found), "all that must be equal is")
    if document["source_sha256"] != source_sha256():
        text = f"the Python sources that decide its figures changed since they were computed; {DRIFT.again}"
        yield GateRefusal("stale.figures", text)
    if not document["command"].startswith("refmoe drift") or not document["seconds"]:
        text = f"made by {document['command']!r} in {document['seconds']:g} s; needed refmoe drift, and a time"
        yield GateRefusal("drift.runs", text)
    yield from first_and_count("drift.drawn", (("what it drew", text) for text in drawn_refusals(document)))
    yield from first_and_count(
        "drift.runs", ((path["name"], wrong) for path in document["paths"] for wrong in _rests(path))
    )
    yield from _runs(document)
    for run in document["runs"]:
        yield from first_and_count("drift.counts", _counts(run))
        yield from first_and_count("drift.counts", _places(document, run))
    yield from _dependent(document)


#: What stands for a model where sums are exact integers.
_EXACT = "exact", "definition"


def _rests(path: Mapping[str, Any]) -> Iterator[str]:
    """A model, an evidence or an arch that a path cannot rest on. A path of the user's own rests on none."""
    if "backend" not in path:
        return
    if path["arch"] not in {chip.arch for chip in CHIPS.values()}:
        yield f"is of {path['arch']!r}, which is the arch of no chip that is known"
    model, evidence = path["model"], path["evidence"]
    if (model, evidence) == _EXACT:
        return
    known = MODELS[model].words if model in MODELS else frozenset()
    if evidence not in known:
        needed = " or ".join(sorted(known)) or "a model that there is"
        yield f"rests on the model {model}, {evidence}; needed {needed}"


def _pair(one: Mapping[str, Any]) -> str:
    return f"{one['path']} and {one['base']}, {one['mode']}"


def _runs(document: Mapping[str, Any]) -> Iterator[GateRefusal]:
    """Whether every run has every pair of paths once in every mode, and as many tokens as steps."""
    paths = {path["name"]: path for path in document["paths"]}
    if len(paths) != len(document["paths"]):
        yield GateRefusal("drift.runs", "a path is listed twice")
    if document["base"] not in paths:
        yield GateRefusal("drift.runs", f"the base {document['base']} is none of its paths")
    points = Counter(tuple(sorted(run["point"].items(), key=str)) for run in document["runs"])
    for point, count in points.items():
        if count > 1:
            said = ", ".join(f"{name} {value}" for name, value in point)
            yield GateRefusal("drift.runs", f"the run of {said} is there {count} times")
    modes = {one["mode"] for run in document["runs"] for one in run["comparisons"]}
    for run in document["runs"]:
        where = f"the run of batch {run['point'].get('batch')}"
        held = Counter((one["path"], one["mode"]) for one in run["comparisons"])
        wanted = {(path, mode) for path in paths if path != document["base"] for mode in modes}
        for path, mode in sorted(wanted - held.keys()):
            yield GateRefusal("drift.runs", f"{where} lacks {path}, {mode}")
        for (path, mode), count in held.items():
            if path not in paths or count > 1:
                said = "is none of its paths" if path not in paths else "is there twice"
                yield GateRefusal("drift.runs", f"{where}: {path}, {mode}, {said}")
        for one in run["comparisons"]:
            first, base = paths.get(one["path"]), paths.get(one["base"])
            if first and base and (first["arithmetic"] == base["arithmetic"]) and not one["must_equal"]:
                yield GateRefusal("drift.runs", f"{where}: {_pair(one)} have one arithmetic, and need not be equal")
        if any(len(row) != document["steps"] for row in run["tokens"]):
            found = f"{where} decoded {len(run['tokens'][0])} tokens, and the document says {document['steps']} steps"
            yield GateRefusal("drift.runs", found)
        lengths = {len(row) for row in run["prompts"]}
        if lengths != {run["point"].get("prompt")}:
            found = ", ".join(map(str, sorted(lengths))) or "no"
            text = f"{where} has prompts of {found} tokens, and its point says {run['point'].get('prompt')}"
            yield GateRefusal("drift.runs", text)
        if not len(run["prompts"]) == len(run["tokens"]) == run["point"].get("batch"):
            yield GateRefusal(
                "drift.runs", f"{where} has {len(run['prompts'])} prompts and {len(run['tokens'])} answers"
            )


def _counts(run: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    """Comparisons whose bytes, first difference and curves tell different stories."""
    for one in run["comparisons"]:
        compared, differing = one["bytes_compared"], one["bytes_differing"]
        curves = [values for place in one["curves"].values() for name, values in place.items() if name == "differing"]
        in_curves = any(_any_nonzero(values) for values in curves)
        if differing > compared:
            yield _pair(one), f"{differing:,} of {compared:,} bytes differ"
        if not differing and one["first_difference"]:
            yield _pair(one), f"no byte differs, and the first difference is {one['first_difference']['text']}"
        if differing and not one["first_difference"] and not one["formats_part"]:
            yield _pair(one), f"{differing:,} bytes differ, and no first difference is shown"
        if in_curves and not differing:
            yield _pair(one), "no byte differs, and its curves show elements that do"
        if len(one["diverged"]) != len(run["prompts"]):
            yield _pair(one), f"{len(one['diverged'])} sequences that diverged or not, of {len(run['prompts'])}"
        if not differing and any(step is not None for step in one["diverged"]):
            yield _pair(one), "no byte differs, and a sequence diverged"


def _places(document: Mapping[str, Any], run: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    """Steps and layers that a run does not have. Step 0 is the prompt; after it come those of the document."""
    steps, layers = document["steps"], document["checkpoint"]["config"]["num_hidden_layers"]
    for one in run["comparisons"]:
        first = one["first_difference"]
        if first and first["step"] > steps:
            yield _pair(one), f"first differs in step {first['step']:,} of {steps:,}"
        if first and first["layer"] is not None and not 0 <= first["layer"] < layers:
            yield _pair(one), f"first differs in layer {first['layer']:,}, and the checkpoint has {layers:,}"
        for step in one["diverged"]:
            if step is not None and step > steps:
                yield _pair(one), f"a sequence diverged in step {step:,} of {steps:,}"
        if one["bytes_differing"] and not one["curves"]:
            yield _pair(one), f"{one['bytes_differing']:,} bytes differ, and it has no curves"


def _any_nonzero(values: Any) -> bool:
    return any(map(_any_nonzero, values)) if isinstance(values, list) else bool(values)


def _dependent(document: Mapping[str, Any]) -> Iterator[GateRefusal]:
    """Sequences whose bits depend on the batch, from the hashes that the document holds itself."""
    said = set(document["dependent"])
    paths = {path["name"] for path in document["paths"]}
    for run in document["runs"]:
        for each in run["bits"]:
            if len(each["sha256"]) != len(run["prompts"]):
                text = (
                    f"{each['path']}, {each['mode']}: {len(each['sha256'])} hashes of {len(run['prompts'])} sequences"
                )
                yield GateRefusal("drift.dependent", text)
        for path in paths - {each["path"] for each in run["bits"]}:
            yield GateRefusal("drift.dependent", f"{path}: no hashes of the bits of its sequences")
        yield from _equal_bits(run)
    for first, second in itertools.combinations(document["runs"], 2):
        shared = min(len(first["prompts"]), len(second["prompts"]))
        alike = first["prompts"][:shared] == second["prompts"][:shared]
        if first["point"].get("k") != second["point"].get("k") or not alike:
            continue
        others = {(each["path"], each["mode"]): each["sha256"] for each in second["bits"]}
        for each in first["bits"]:
            other = others.get((each["path"], each["mode"]), [])
            if other[:shared] != each["sha256"][:shared] and not any(each["path"] in sentence for sentence in said):
                text = (
                    f"{each['path']}, {each['mode']}: its sequences have other bits in another batch, and it is silent"
                )
                yield GateRefusal("drift.dependent", text)


def _equal_bits(run: Mapping[str, Any]) -> Iterator[GateRefusal]:
    """Pairs whose hashes tell whether they are equal, and that say otherwise."""
    bits = {(each["path"], each["mode"]): each["sha256"] for each in run["bits"]}
    for one in run["comparisons"]:
        ours, theirs = bits.get((one["path"], one["mode"])), bits.get((one["base"], one["mode"]))
        if one["must_equal"] and ours and theirs and ours != theirs and not one["bytes_differing"]:
            yield GateRefusal("drift.dependent", f"{_pair(one)}: no byte differs, and the hashes of their bits do")


DRIFT = Kind("drift", again="run `refmoe drift` again", judge=_judge, model=DriftDocument, version=SCHEMA_VERSION)
