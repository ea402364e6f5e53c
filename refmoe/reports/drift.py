"""A document of `refmoe drift`: paths side by side over decode steps; `refmoe.drift.document` makes it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from refmoe.reports.documents import Kind, PresentHash

SCHEMA_VERSION = "1"


def failures(document: Mapping[str, Any]) -> list[str]:
    """What must be equal and is not, a sentence each."""
    sentences = list(document["dependent"])
    for run in document["runs"]:
        for one in run["comparisons"]:
            pair = f"{one['path']} and {one['base']}, {one['mode']}"
            if one["must_equal"] and one["bytes_differing"]:
                where = one["first_difference"]["text"] if one["first_difference"] else "in formats"
                sentences.append(f"{pair}: {one['bytes_differing']:,} bytes differ and none may: {where}")
            if one["must_equal"] and not one["bytes_compared"]:
                sentences.append(f"{pair}: must be equal, but nothing was compared")
    return sentences


def _judge(document: Mapping[str, Any], present: PresentHash) -> list[str]:
    if not document["runs"]:
        return [f"an empty document: it holds no run, so it proves nothing; {DRIFT.again}"]
    return failures(document) or ([] if document["passed"] else ["says itself that it did not pass"])


DRIFT = Kind(
    "drift",
    again="run `refmoe drift` again",
    keys=frozenset(("runs", "dependent", "passed")),
    judge=_judge,
    version=SCHEMA_VERSION,
)
