"""What a document of `refmoe drift` must say for the gate; `refmoe.drift.document` makes it."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from refmoe.reports.parity import is_intact

__all__ = ["KIND", "SCHEMA_VERSION", "check_document", "failures"]

KIND = "drift"
SCHEMA_VERSION = "1"

#: Keys that the gate reads.
_CHECKED = ("schema_version", "runs", "dependent", "passed")


def check_document(path: Path, document: Mapping[str, Any]) -> list[str]:
    """Why the gate refuses the document, a sentence each."""
    again = "run `refmoe drift` again"
    if missing := [key for key in _CHECKED if key not in document]:
        return [f"{path}: says that it is of kind {KIND}, but has no {missing[0]}; {again}"]
    if document["schema_version"] != SCHEMA_VERSION:
        found = document["schema_version"]
        return [f"{path}: schema version {found!r}; this refmoe reads version {SCHEMA_VERSION!r} of drift"]
    if not is_intact(document):
        return [f"{path}: edited after it was made; {again}"]
    if not document["runs"]:
        return [f"{path}: an empty document: it holds no run, so it proves nothing; {again}"]
    found = failures(document)
    if not found and not document["passed"]:
        found = ["says itself that it did not pass"]
    return [f"{path}: {failure}" for failure in found]


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
