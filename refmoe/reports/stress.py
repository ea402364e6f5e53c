"""A document of `refmoe stress`: kernels run many times and under compute-sanitizer; `refmoe.silicon` makes it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from refmoe.families import FAMILIES
from refmoe.reports.documents import Kind, PresentHash

#: How often every kernel runs.
RERUNS = 100

#: The tools of compute-sanitizer that watch it.
TOOLS = ("memcheck", "racecheck", "synccheck", "initcheck")


def failures(document: Mapping[str, Any]) -> list[str]:
    """What is wrong with what a run found, a sentence each."""
    reruns, sanitized = document["reruns"], document["sanitizers"]
    found = [
        f"{result['different_outputs']} different outputs of {result['runs']} runs of {result['case']}"
        for result in reruns
        if result["different_outputs"] != 1
    ]
    found += [f"{row['tool']} found errors: {row['summary']}" for row in sanitized if row["verdict"] == "errors"]
    # Fewer runs would pass more easily, and a tool that is left out finds nothing.
    if not reruns or any(result["runs"] < RERUNS for result in reruns):
        found.append(f"needed {RERUNS} runs of every kernel")
    absent = [tool for tool in TOOLS if tool not in [row["tool"] for row in sanitized]]
    return found + [f"{tool} is neither run nor skipped for a reason" for tool in absent]


def _judge(document: Mapping[str, Any], present: PresentHash) -> list[str]:
    stated = document["source_sha256"]
    stale = [family for family in FAMILIES if stated.get(family) != present(family)]
    if stale:
        return [f"the source of {', '.join(stale)} changed since it ran on {document['gpu']}; {STRESS.again}"]
    return failures(document) or ([] if document["passed"] else ["says itself that it did not pass"])


STRESS = Kind(
    "stress",
    again="run `refmoe stress --device cuda` again",
    keys=frozenset(("gpu", "source_sha256", "reruns", "sanitizers", "passed")),
    judge=_judge,
)
