"""A baseline: the ids of the cases that passed once and must still pass."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

from refmoe.errors import ArgumentError
from refmoe.files import write_atomic
from refmoe.reports.documents import PresentHash, ReportError, digest_of, is_intact, read_document
from refmoe.reports.parity import CaseRecord, Report, check_report
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
        raise ReportError(f"{path}: schema version {found!r}; this refmoe reads version {SCHEMA_VERSION!r}")
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


def vanished(path: Path, records: Sequence[CaseRecord], present: PresentHash, *, whole: bool) -> list[str]:
    """A sentence for each reason why cases of the baseline at `path` are not among those that ran.

    Args:
        path: the baseline, or a parity report.
        records: the cases of the reports.
        present: the present source hashes.
        whole: whether the reports are all that there are. Otherwise the baseline speaks for the devices that they
            cover, and not for a kernel of which no case ran there.
    """
    try:
        expected = read_baseline(path)
    except ReportError as error:
        return [str(error)]
    families = {name: _family(name) for name in expected}
    absent = {family for family in set(families.values()) if not _has_source(family, present)}
    refusals = [
        f"kernel family {family} passed {count:,} cases in {path} and is gone; bring it back, or renew the baseline"
        for family, count in Counter(families.values()).items()
        if family in absent
    ]
    by_id = {record.id: record for record in records}
    devices = {record.device for record in records}
    ran = {(_kernel(record.id), record.device) for record in records if record.verdict.ran}
    gone: dict[str, list[str]] = {}
    idle: dict[tuple[str, str | None], list[str]] = {}
    for name in expected:
        device = name.rpartition("@")[2].partition(".")[0]
        if families[name] in absent or (not whole and device not in devices):
            continue
        record = by_id.get(name)
        if record is None:
            gone.setdefault(device, []).append(name)
        elif not record.verdict.ran and (whole or (_kernel(name), device) in ran):
            idle.setdefault((record.verdict.value, record.reason), []).append(name)
    for (verdict, reason), names in idle.items():
        refusals.append(f"case {names[0]}{_and_more(names)} passed in {path} and is now {verdict}: {reason}")
    for device, names in gone.items():
        more = _and_more(names, f" of the device {device}")
        refusals.append(f"case {names[0]}{more} passed in {path} and is gone; run it, or renew the baseline")
    return refusals


def _family(name: str) -> str:
    """The kernel family of a case id."""
    return _kernel(name).rpartition("/")[2]


def _kernel(name: str) -> str:
    """The kernel of a case id: its family, and before that, of a user's kernel, FILE::NAME and a slash."""
    return name[: name.index(":", name.rindex("/") if "::" in name else 0)]


def _has_source(family: str, present: PresentHash) -> bool:
    try:
        present(family)
    except (ArgumentError, OSError):
        return False
    return True


def _and_more(names: Sequence[str], whose: str = "") -> str:
    return f" and {len(names) - 1:,} more{whose}" if len(names) > 1 else ""
