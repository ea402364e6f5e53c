"""What of a bundle is not an answer: its environment, what it leaves out, its parity report and its benchmarks.

The reports inside are held to what `refmoe gate` holds them to. That bytes differ, or that sources have changed since,
contradicts nothing: it is told, and refuses no bundle.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from refmoe import catalog
from refmoe.probe.bundle import PARTS, left_out_of
from refmoe.recomputed import recompute
from refmoe.reports.bench import BENCH
from refmoe.reports.checks import ReportError
from refmoe.reports.consistency import Record
from refmoe.reports.documents import gpu_refusals, refmoe_refusals
from refmoe.reports.environment import impossible
from refmoe.reports.judge import refusals_of
from refmoe.reports.parity import Report, check_report

#: Checks of the gate whose refusals say something of the kernels, and nothing of the bundle.
_FINDINGS = ("case.verdict", "stale.", "parity.empty")


def check_parts(document: Mapping[str, Any]) -> tuple[list[str], list[str]]:
    """Hold all of a bundle of valid form that is no answer against itself, the answers, and what can be.

    Returns:
        Why it cannot be true, and what its parity report says of the kernels where it is not that all is well: a
        sentence each.
    """
    wrong = [*_environment(document), *_left_out(document), *_seconds(document)]
    parity = list(_parity(document)) if document["parity"] is not None else []
    wrong += [f"its parity report: {each}" for each, finding in parity if not finding]
    if document["benchmarks"] is not None:
        wrong += [f"its benchmarks: {each}" for each in _benchmarks(document)]
    return wrong, [each for each, finding in parity if finding]


def _environment(document: Mapping[str, Any]) -> Iterator[str]:
    environment, on_gpu = document["environment"], document["device"] == "cuda"
    yield from (f"its environment names {each}" for each in impossible(environment))
    yield from (each.text for each in refmoe_refusals(environment["refmoe"]))
    if on_gpu and environment["driver"] is None:
        yield f"its answers are those of {document['gpu']}, and its environment names no driver"
    if not on_gpu and environment["driver"] is not None:
        yield f"its answers are the executor's, and its environment names the driver {environment['driver']}"


def _left_out(document: Mapping[str, Any]) -> Iterator[str]:
    given = document["left_out"]
    names = [each["name"] for each in given]
    for name in sorted({name for name in names if names.count(name) > 1}):
        yield f"it says {names.count(name)} times that it leaves out {name}"
    reasons = {each["name"]: each["reason"] for each in given}
    absent = left_out_of(document["arch"], {record["name"] for record in document["instructions"]})
    made = {"probes": bool(document["instructions"]), **{part: document[part] is not None for part in PARTS[1:]}}
    due = {**absent, **dict.fromkeys(part for part in PARTS if not made[part])}
    for name in due.keys() - reasons.keys():
        yield f"{name} is not there, and nothing says why"
    for name, reason in reasons.items():
        if name not in due:
            yield f"it says that it leaves out {name}, which it holds or which there is not"
        elif not reason.strip():
            yield f"it leaves out {name} without a reason"
        elif due[name] not in (None, reason):
            yield f"it leaves out {name} because {reason!r}; needed {due[name]!r}"


def _seconds(document: Mapping[str, Any]) -> Iterator[str]:
    held = {"probes": bool(document["instructions"]), **{part: document[part] is not None for part in PARTS[1:]}}
    for part, seconds in document["seconds"].items():
        if held[part] and not seconds:
            yield f"it holds {part}, and says that they took {seconds} seconds"
        elif not held[part] and seconds is not None:
            yield f"it says that {part} took {seconds:g} seconds, and holds none"


def _parity(document: Mapping[str, Any]) -> Iterator[tuple[str, bool]]:
    """Sentences, and whether each is a finding about the kernels."""
    path = Path("parity")
    try:
        report = check_report(path, document["parity"])
    except ReportError as error:
        yield _without(path, str(error)), False
        return
    yield from ((each, False) for each in _elsewhere(document, report))
    found = list(refusals_of(path, report, [Record(case, catalog) for case in report.cases], catalog))
    if not found:
        found += recompute()["parity"](document["parity"])
    for each in found:
        yield each.text, each.check.startswith(_FINDINGS)


def _elsewhere(document: Mapping[str, Any], report: Report) -> Iterator[str]:
    """A report of another machine than the bundle's."""
    for case in report.cases:
        if (case.device, case.arch) != (document["device"], document["arch"]):
            where = f"{case.device} for {case.arch}"
            yield f"{case.id} ran on {where}, and the bundle is of {document['device']}, {document['arch']}"
            return
    if report.seconds > document["seconds"]["parity"]:
        yield f"took {report.seconds:g} seconds, and the whole command {document['seconds']['parity']:g}"
    yield from _machine(document, report.environment.model_dump())


def _machine(document: Mapping[str, Any], environment: Mapping[str, Any]) -> Iterator[str]:
    names = ("refmoe", "python", "numpy", "platform", *(("driver",) if document["device"] == "cuda" else ()))
    for name in names:
        if environment[name] != (due := document["environment"][name]):
            yield f"its environment names {name} {environment[name]}, and the bundle's {due}"
    if document["device"] == "cuda" and environment["gpu"] != document["gpu"]:
        yield f"its GPU is {environment['gpu']}, and the bundle's {document['gpu']}"


def _benchmarks(document: Mapping[str, Any]) -> Iterator[str]:
    given, path = document["benchmarks"], Path("benchmarks")
    due = "gpu" if document["device"] == "cuda" else "quantize"
    if given.get("kind") != BENCH.name or given.get("name") != due:
        yield f"of kind {given.get('kind')!r} and name {given.get('name')!r}; needed 'bench' and {due!r}"
        return
    try:
        found = BENCH.check(path, given, catalog.source_sha256)
        found = found or list(recompute()["bench"](given))
    except ReportError as error:
        found = [error.refusal]
    yield from (_without(path, each.text) for each in found)
    if found or document["device"] != "cuda":
        return
    yield from (each.text for each in gpu_refusals(given["gpu"], given["arch"]))
    if (given["gpu"], given["arch"]) != (document["gpu"], document["arch"]):
        yield f"of {given['gpu']}, {given['arch']}, and the bundle is of {document['gpu']}, {document['arch']}"
        return
    yield from _machine(document, given["environment"])


def _without(path: Path, text: str) -> str:
    return text.removeprefix(f"{path}: ")
