"""A baseline: the ids of the cases that passed once and must still pass."""

from __future__ import annotations

import json
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from refmoe.files import write_atomic
from refmoe.reports.documents import ReportError, digest_of, is_intact, read_document, version_text
from refmoe.reports.parity import Report, check_report
from refmoe.verify.verdict import Verdict

KIND = "baseline"
SCHEMA_VERSION = "1"


def read_baseline(path: Path) -> list[str]:
    """The case ids that a baseline holds, or the passed ones of a parity report.

    Raises:
        ReportError: it is neither, of another schema version, or edited.
    """
    document = read_document(path)
    if document.get("kind") == "parity":
        return sorted(_passed([check_report(path, document)]))
    if document.get("kind") != KIND or not isinstance(document.get("cases"), list):
        raise ReportError(f"{path}: no baseline; write one with `refmoe gate --write-baseline`")
    if document.get("schema_version") != SCHEMA_VERSION:
        found = document.get("schema_version")
        raise ReportError(f"{path}: {version_text(found, SCHEMA_VERSION, 'baseline')}")
    if not is_intact(document):
        raise ReportError(f"{path}: edited after it was made; write it with `refmoe gate --write-baseline`")
    return [str(name) for name in document["cases"]]


def _passed(reports: Iterable[Report]) -> set[str]:
    return {case.id for report in reports for case in report.cases if case.verdict is Verdict.PASS}


def write_baseline(path: Path, reports: Iterable[Report]) -> int:
    """Make the passed cases of `reports` the baseline, and return how many they are."""
    passed = _passed(reports)
    document: dict[str, Any] = {"kind": KIND, "schema_version": SCHEMA_VERSION, "cases": sorted(passed)}
    document["digest"] = digest_of(document)
    write_atomic(path, json.dumps(document, indent=1, sort_keys=True) + "\n")
    return len(passed)
