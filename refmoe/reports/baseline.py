"""A baseline: the ids of the cases that passed once and must still pass."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from refmoe.files import write_atomic
from refmoe.reports.checks import ReportError
from refmoe.reports.documents import digest_of, is_intact, version_text
from refmoe.reports.parity import Report, check_report
from refmoe.reports.reading import read_document, shown
from refmoe.verify.verdict import Verdict

KIND = "baseline"
SCHEMA_VERSION = "1"

_KEYS = {"kind", "schema_version", "cases", "digest"}


def read_baseline(path: Path) -> list[str]:
    """The case ids that a baseline holds, or the passed ones of a parity report.

    Raises:
        ReportError: it is neither, of another schema version, or edited.
    """
    document = read_document(path)
    name = shown(path)
    if document.get("kind") == "parity":
        return sorted(_passed([check_report(path, document)]))
    cases = document.get("cases")
    if document.get("kind") != KIND or not isinstance(cases, list):
        text = f"{name}: no baseline; write one with `refmoe gate --write-baseline`"
        raise ReportError(text, "baseline.content")
    if document.get("schema_version") != SCHEMA_VERSION:
        found = document.get("schema_version")
        raise ReportError(f"{name}: {version_text(found, SCHEMA_VERSION, 'baseline')}", "document.version")
    if not is_intact(document):
        text = f"{name}: edited after it was made; write it with `refmoe gate --write-baseline`"
        raise ReportError(text, "document.digest")
    if unknown := sorted(document.keys() - _KEYS):
        raise ReportError(f"{name}: no valid baseline: it has the key {unknown[0]!r}", "document.schema")
    others = [case for case in cases if not isinstance(case, str)]
    if others:
        raise ReportError(f"{name}: no valid baseline: {others[0]!r} is no case", "baseline.content")
    twice = [case for case, count in Counter(cases).items() if count > 1]
    if twice:
        raise ReportError(f"{name}: no valid baseline: case {twice[0]} is there twice", "baseline.content")
    if not cases:
        text = f"{name}: an empty baseline: it holds no case, so nothing must go on passing"
        raise ReportError(text, "baseline.content")
    return cases


def _passed(reports: Iterable[Report]) -> set[str]:
    return {case.id for report in reports for case in report.cases if case.verdict is Verdict.PASS}


def write_baseline(path: Path, reports: Iterable[Report]) -> int:
    """Make the passed cases of `reports` the baseline, and return how many they are."""
    passed = _passed(reports)
    document: dict[str, Any] = {"kind": KIND, "schema_version": SCHEMA_VERSION, "cases": sorted(passed)}
    document["digest"] = digest_of(document)
    write_atomic(path, json.dumps(document, indent=1, sort_keys=True) + "\n")
    return len(passed)
