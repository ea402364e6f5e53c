"""A document of `refmoe stress`: kernels run many times and under compute-sanitizer; `refmoe.silicon` makes it."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, Literal

from refmoe.errors import ArgumentError
from refmoe.families import FAMILIES
from refmoe.families.case import Fields
from refmoe.reports.checks import GateRefusal, first_and_count
from refmoe.reports.consistency import Catalog, entry_names
from refmoe.reports.documents import Count, Kind, Model, PresentHash, Sha256, passed_refusals
from refmoe.reports.environment import Environment
from refmoe.reports.parity import Report
from refmoe.reports.reading import shown
from refmoe.verify.verdict import Verdict

#: How often every kernel runs.
RERUNS = 100

#: The tools of compute-sanitizer that watch it.
TOOLS = ("memcheck", "racecheck", "synccheck", "initcheck")

#: Why a tool is skipped: see `refmoe.silicon.stress.sanitize`.
NO_TOOL = "no compute-sanitizer on PATH"
_SKIPPED = re.compile(rf"{NO_TOOL}|not done after \d+ s|exit status -?\d+: .*", re.DOTALL)


class RerunRecord(Model):
    """A case run many times."""

    kernel: str
    case: str
    runs: Count
    different_outputs: Count


class SanitizedRecord(Model):
    """A tool over the cases."""

    tool: str
    verdict: Literal["clean", "errors", "skipped"]
    summary: str


class StressDocument(Model):
    """The keys of a document."""

    kind: Literal["stress"]
    gpu: str
    arch: str
    environment: Environment
    source_sha256: dict[str, Sha256]
    reruns: list[RerunRecord]
    sanitizers: list[SanitizedRecord]
    passed: bool
    digest: Sha256


def failures(document: Mapping[str, Any]) -> list[str]:
    """What is wrong with what a run found, a sentence each."""
    return [refusal.text for refusal in _failures(document)]


def _failures(document: Mapping[str, Any]) -> Iterator[GateRefusal]:
    reruns, sanitized = document["reruns"], document["sanitizers"]
    for result in reruns:
        if result["different_outputs"] != 1:
            found = f"{result['different_outputs']} different outputs of {result['runs']} runs of {result['case']}"
            yield GateRefusal("stress.runs", found)
    for row in sanitized:
        if row["verdict"] == "errors":
            yield GateRefusal("stress.tools", f"{row['tool']} found errors: {row['summary']}")
    # Fewer runs would pass more easily, and a tool that is left out finds nothing.
    if not reruns or any(result["runs"] < RERUNS for result in reruns):
        yield GateRefusal("stress.runs", f"needed {RERUNS} runs of every kernel")
    for tool in TOOLS:
        if tool not in [row["tool"] for row in sanitized]:
            yield GateRefusal("stress.tools", f"{tool} is neither run nor skipped for a reason")


def _judge(document: Mapping[str, Any], present: PresentHash) -> Iterator[GateRefusal]:
    stated = document["source_sha256"]
    stale = [family for family in FAMILIES if stated.get(family) != present(family)]
    if stale:
        text = f"the source of {', '.join(stale)} changed since it ran on {document['gpu']}; {STRESS.again}"
        yield GateRefusal("stale.kernel", text)
    for family in stated.keys() - FAMILIES.keys():
        yield GateRefusal("stale.family", f"has the source of {family}, which is no kernel family; {STRESS.again}")
    found = list(_failures(document))
    yield from found
    yield from passed_refusals(document, bool(found), "nothing in it failed")
    yield from _tools(document["sanitizers"])
    yield from _reruns(document)


def _tools(rows: list[Mapping[str, Any]]) -> Iterator[GateRefusal]:
    for tool, count in Counter(row["tool"] for row in rows).items():
        if tool not in TOOLS:
            yield GateRefusal("stress.tools", f"{tool} is no tool of compute-sanitizer that watches kernels here")
        elif count > 1:
            yield GateRefusal("stress.tools", f"{tool} is there {count} times")
    for row in rows:
        if not row["summary"].strip():
            yield GateRefusal("stress.tools", f"{row['tool']} is {row['verdict']}, without a summary or a reason")
        counted = [int(count) for count in re.findall(r"(\d+) (?:errors?|hazards?|warnings?)\b", row["summary"])]
        if row["verdict"] == "clean" and (any(counted) or not counted):
            text = f"{row['tool']} is said to be clean, and its summary is: {row['summary']}"
            yield GateRefusal("stress.tools", text)
        if row["verdict"] == "skipped" and not _SKIPPED.fullmatch(row["summary"]):
            text = f"{row['tool']} is skipped, for what is no reason of `refmoe stress`: {row['summary']}"
            yield GateRefusal("stress.tools", text)
    ran = [row["tool"] for row in rows if row["verdict"] != "skipped"]
    if rows and not ran:
        text = f"no tool of compute-sanitizer watched the kernels: {rows[0]['tool']} {rows[0]['summary']}"
        yield GateRefusal("stress.tools", f"{text}; needed one that ran")
    for row in rows:
        if ran and row["verdict"] == "skipped" and row["summary"] == NO_TOOL:
            yield GateRefusal("stress.tools", f"{row['tool']} is skipped for {NO_TOOL}, and {ran[0]} ran")


def _reruns(document: Mapping[str, Any]) -> Iterator[GateRefusal]:
    reruns = document["reruns"]
    wrong = []
    for row in reruns:
        try:
            fields = Fields.read(row["case"])
            case = FAMILIES[fields.family].read(fields)
        except (ArgumentError, KeyError) as error:
            wrong.append((f"rerun of {row['kernel']}", f"{row['case']} is no case: {error}"))
            continue
        if not row["kernel"].startswith(entry_names(case.family.name)):
            wrong.append((f"rerun of {row['kernel']}", f"no such kernel is launched by {fields.family}"))
        if case.device != "cuda" or case.arch not in ("", document["arch"]):
            wrong.append((f"rerun of {row['kernel']}", f"{row['case']} does not run on {document['gpu']}"))
    yield from first_and_count("stress.cases", wrong)
    twice = [name for name, count in Counter(row["kernel"] for row in reruns).items() if count > 1]
    yield from first_and_count("stress.cases", ((f"kernel {name}", "is there twice") for name in twice))
    ran = {row["case"].partition(":")[0] for row in reruns}
    for family in _single() - ran:
        yield GateRefusal("stress.cases", f"no kernel of {family} ran again and again; {STRESS.again}")
    more = [row for row in reruns if row["different_outputs"] > row["runs"]]
    yield from first_and_count(
        "stress.runs",
        ((row["kernel"], f"{row['different_outputs']} different outputs of {row['runs']} runs") for row in more),
    )


def against_parity(
    documents: Mapping[Path, Mapping[str, Any]], reports: Mapping[Path, Report], catalog: Catalog
) -> Iterator[GateRefusal]:
    """Where documents and parity reports of one chip tell of different kernels.

    A document has each kernel that the cases of the default level launch. A parity report says which those are.

    Args:
        documents: of this kind, by file; each of the form of `StressDocument`.
        reports: parity reports, by file.
        catalog: what the sources say now.
    """
    if not documents or not any(case.device == "cuda" for report in reports.values() for case in report.cases):
        return
    default = {str(case) for case in catalog.list_cases("default", tuple(FAMILIES), "cuda", None)}
    for path, document in documents.items():
        arch, sources = document["arch"], document["source_sha256"]
        ran = {row["kernel"] for row in document["reruns"]}
        by_case: dict[str, set[str]] = {}
        for row in document["reruns"]:
            by_case.setdefault(row["case"], set()).add(row["kernel"])
        lacking: dict[str, str] = {}
        wrong = []
        for where, report in reports.items():
            for case in report.cases:
                if case.device != "cuda" or case.kernel is not None or case.verdict is not Verdict.PASS:
                    continue
                # Other sources launch other kernels.
                if case.arch != arch or sources.get(case.family) != case.source_sha256:
                    continue
                launched = {launch.partition(" ")[0] for launch in case.launches}
                if case.id in default:
                    for kernel in launched - ran:
                        text = f"{case.id} launches it in {shown(where)}; {STRESS.again}"
                        lacking.setdefault(f"{shown(path)}: the kernel {kernel} did not run again and again", text)
                for kernel in by_case.get(case.id, set()) - launched:
                    found = ", ".join(sorted(launched)) or "nothing"
                    text = f"{case.id} is said to launch it, and launches {found} in {shown(where)}"
                    wrong.append((f"{shown(path)}: the kernel {kernel}", text))
        yield from first_and_count("stress.cases", sorted(lacking.items()))
        yield from first_and_count("stress.cases", wrong)


def _single() -> set[str]:
    """The families that launch kernels of their own: a whole layer launches those of others."""
    sources = {name: set(family.sources) for name, family in FAMILIES.items()}
    return {name for name, own in sources.items() if not any(other < own for other in sources.values())}


STRESS = Kind("stress", again="run `refmoe stress --device cuda` again", judge=_judge, model=StressDocument)
