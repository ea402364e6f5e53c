"""The gate: may this merge? Every refusal is one sentence that says what is wrong and what to do."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from refmoe.errors import ArgumentError
from refmoe.files import write_atomic
from refmoe.reports import drift as drift_report
from refmoe.reports.parity import (
    SCHEMA_VERSION,
    CaseRecord,
    Report,
    ReportError,
    check_report,
    digest_of,
    is_intact,
    read_document,
)
from refmoe.reports.user_kernels import stale_user_kernels
from refmoe.silicon import conformance, stress
from refmoe.verify.verdict import Verdict

__all__ = ["BASELINE", "NAMED_CASES", "GateOutcome", "check_reports", "find_reports", "read_baseline", "write_baseline"]

#: Name of the baseline in a folder of reports.
BASELINE = "baseline.json"

#: Cases that are refused with a sentence of their own, of each verdict in each report; the rest is counted.
NAMED_CASES = 5

#: What a verdict means for whoever wants to merge.
_REFUSED = {
    Verdict.MISMATCH: "bytes differ",
    Verdict.OUT_OF_BOUND: "values differ more than any rounding explains",
    Verdict.MISTRUSTED: "equal on data that could not have failed, which proves nothing",
    Verdict.ERROR: "the kernel did not run to its end",
}


@dataclass(frozen=True)
class GateOutcome:
    """What the gate found.

    Attributes:
        reports: the reports that were read.
        refusals: why it does not pass, a sentence each; none if it does.
        passed: cases with the verdict PASS.
    """

    reports: tuple[Path, ...]
    refusals: tuple[str, ...]
    passed: int


def find_reports(paths: Sequence[Path]) -> list[Path]:
    """The files to check: those named, and every .json file below the folders named, the baseline left out."""
    files: list[Path] = []
    for path in paths:
        if path.is_dir():
            files += sorted(file for file in path.rglob("*.json") if file.name != BASELINE)
        else:
            files.append(path)
    return list(dict.fromkeys(files))


def check_reports(paths: Sequence[Path], baseline: Path | None, source_sha256: Callable[[str], str]) -> GateOutcome:
    """Check reports against themselves, the kernels' present sources, and the baseline.

    If the baseline's own folder is checked, all that it holds must pass, since a whole report may be what is gone.
    Otherwise it speaks for the devices that the reports cover, and not for a kernel of which no case ran there: on a
    clean machine somebody else's kernel is not built, and all its cases are SKIPPED.

    Args:
        paths: report files, and folders of them.
        baseline: a baseline or a parity report, whose passed cases must pass; or None for no comparison with the past.
        source_sha256: gives a kernel family's present source hash.
    """
    refusals: list[str] = []
    reports: dict[Path, Report] = {}
    others = 0
    for path in find_reports(paths):
        try:
            document = read_document(path)
            if (judged := _check_other(path, document, source_sha256)) is not None:
                refusals += judged
                others += 1
                continue
            if "kind" in document and document["kind"] != "parity":
                _check_bench(path, document)
                continue
            reports[path] = check_report(path, document)
        except ReportError as error:
            refusals.append(str(error))
    if not reports and not others and not refusals:
        refusals.append(f"no report in {', '.join(map(str, paths))}: make one with `refmoe parity --report PATH`")
    for path, report in reports.items():
        refusals += _check_cases(path, report.cases)
        refusals += [
            f"{path}: the planted fault {mutant.name} was not caught: {mutant.fault}"
            for mutant in report.mutants
            if not mutant.caught
        ]
        refusals += _check_sources(path, report.cases, source_sha256)
    records = [record for report in reports.values() for record in report.cases]
    if baseline is not None:
        whole = any(path.is_dir() and baseline.resolve().is_relative_to(path.resolve()) for path in paths)
        refusals += _check_baseline(baseline, records, source_sha256, whole=whole)
    passed = sum(record.verdict is Verdict.PASS for record in records)
    return GateOutcome(tuple(reports), tuple(refusals), passed)


def _check_other(path: Path, document: Mapping[str, Any], source_sha256: Callable[[str], str]) -> list[str] | None:
    """Why a document that is evidence, but no parity report, is refused; None if it is no such document."""
    kind = document.get("kind")
    try:
        if kind == conformance.KIND:
            return conformance.check_document(path, document)
        if kind == stress.KIND:
            return stress.check_document(path, document, source_sha256)
        if kind == drift_report.KIND:
            return drift_report.check_document(path, document)
    except (KeyError, TypeError, AttributeError, IndexError) as error:
        raise ReportError(f"{path}: says it is of kind {kind}, but lacks or spoils {error}") from error
    return None


def _check_bench(path: Path, document: Mapping[str, Any]) -> None:
    """Other documents may lie beside reports only if they are what they say."""
    if document["kind"] != "bench":
        raise ReportError(f"{path}: of kind {document['kind']!r}; needed a parity report or a bench document")
    timed = document.get("rows") or document.get("comparisons") or document.get("medians_s")
    if not isinstance(document.get("name"), str) or not isinstance(timed, (list, dict)):
        raise ReportError(f"{path}: says it is a bench document, but has no name, or no rows, comparisons or medians")


def _check_cases(path: Path, cases: Sequence[CaseRecord]) -> list[str]:
    if not cases:
        return [f"{path}: an empty report: it holds no case, so it proves nothing"]
    twice = [name for name, count in Counter(case.id for case in cases).items() if count > 1]
    refusals = [f"{path}: case {name} is there twice" for name in twice[:NAMED_CASES]]
    if len(twice) > NAMED_CASES:
        refusals.append(f"{path}: {len(twice) - NAMED_CASES:,} more cases are there twice")
    if not any(case.verdict.ran for case in cases):
        refusals.append(f"{path}: no case ran: {cases[0].verdict.value}: {cases[0].reason}")
    for verdict, meaning in _REFUSED.items():
        refusals += _check_verdict(path, [case for case in cases if case.verdict is verdict], meaning)
    unexpected = [case for case in cases if case.fails and not case.verdict.fails]
    return refusals + _check_verdict(path, unexpected, "a refusal that the case list does not expect")


def _check_verdict(path: Path, failing: Sequence[CaseRecord], meaning: str) -> list[str]:
    """A sentence for each of the first cases, and one for all the others."""
    refusals = [
        f"{path}: {case.verdict.value}, {meaning}: {case.first_mismatch or case.reason}; run: {case.repro}"
        for case in failing[:NAMED_CASES]
    ]
    if rest := failing[NAMED_CASES:]:
        kernels = ", ".join(f"{count:,} of {name}" for name, count in Counter(case.family for case in rest).items())
        refusals.append(
            f"{path}: {len(rest):,} more cases {rest[0].verdict.value}: {kernels}; see them all: "
            f"refmoe report {path} --html out/report.html"
        )
    return refusals


def _check_sources(path: Path, cases: Sequence[CaseRecord], now: Callable[[str], str]) -> list[str]:
    """One sentence a family: a changed header makes all its cases stale at once."""
    refusals = []
    for family in sorted({case.family for case in cases if case.kernel is None}):
        ran = [case for case in cases if case.family == family and case.kernel is None and case.verdict.ran]
        try:
            present = now(family)
        except (ArgumentError, OSError) as error:
            refusals.append(f"{path}: kernel family {family} has no source any more: {error}")
            continue
        stale = [case for case in ran if case.source_sha256 != present]
        if stale:
            refusals.append(
                f"{path}: the source of {family} changed since {len(stale)} of its cases ran on {stale[0].device} "
                f"({stale[0].arch}), so they say nothing about it: run them again"
            )
    return refusals + stale_user_kernels(path, cases)


def _check_baseline(path: Path, records: Sequence[CaseRecord], now: Callable[[str], str], *, whole: bool) -> list[str]:
    try:
        expected = read_baseline(path)
    except ReportError as error:
        return [str(error)]
    families = {name: _family(name) for name in expected}
    absent = {family for family in set(families.values()) if not _has_source(family, now)}
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


def _has_source(family: str, now: Callable[[str], str]) -> bool:
    try:
        now(family)
    except (ArgumentError, OSError):
        return False
    return True


def _and_more(names: Sequence[str], whose: str = "") -> str:
    return f" and {len(names) - 1:,} more{whose}" if len(names) > 1 else ""


def read_baseline(path: Path) -> list[str]:
    """The case ids that a baseline holds, or the passed ones of a parity report.

    Raises:
        ReportError: it is neither, of another schema version, or edited.
    """
    document = read_document(path)
    if document.get("kind") == "parity":
        return sorted(_passed([check_report(path, document)]))
    if document.get("kind") != "baseline" or not isinstance(document.get("cases"), list):
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
    document: dict[str, Any] = {"kind": "baseline", "schema_version": SCHEMA_VERSION, "cases": sorted(passed)}
    document["digest"] = digest_of(document)
    write_atomic(path, json.dumps(document, indent=1, sort_keys=True) + "\n")
    return len(passed)
