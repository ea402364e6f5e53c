"""The gate: may this merge? Every refusal is one sentence that says what is wrong and what to do."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from refmoe.errors import ArgumentError
from refmoe.reports.baseline import read_baseline
from refmoe.reports.bench import BENCH
from refmoe.reports.conformance import CONFORMANCE
from refmoe.reports.convert import CONVERT
from refmoe.reports.documents import PresentHash, ReportError, read_document
from refmoe.reports.drift import DRIFT
from refmoe.reports.parity import CaseRecord, Report, check_report, refusals_of
from refmoe.reports.stress import STRESS
from refmoe.verify.verdict import Verdict

#: Name of the baseline in a folder of reports.
BASELINE = "baseline.json"

#: The kinds of documents that may lie beside parity reports. Another kind is refused.
KINDS = {kind.name: kind for kind in (STRESS, CONFORMANCE, BENCH, DRIFT, CONVERT)}


@dataclass(frozen=True)
class GateOutcome:
    """What the gate found.

    Attributes:
        reports: the parity reports that were read.
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


def check_reports(paths: Sequence[Path], baseline: Path | None, present: PresentHash) -> GateOutcome:
    """Check documents against themselves, the kernels' present sources, and the baseline.

    If the baseline's own folder is checked, all that it holds must pass, since a whole report may be what is gone.
    Otherwise it speaks for the devices that the reports cover, and not for a kernel of which no case ran and cases were
    SKIPPED: on a clean machine somebody else's kernel is not built. A case that passed and is refused now counts even
    there, and a kernel that is not even listed is gone.

    Args:
        paths: files, and folders of them.
        baseline: a baseline or a parity report, whose passed cases must pass; or None for no comparison with the past.
        present: gives a kernel family's present source hash.
    """
    refusals: list[str] = []
    reports: dict[Path, Report] = {}
    evidence = False
    for path in find_reports(paths):
        try:
            document = read_document(path)
            name = str(document.get("kind", "parity"))
            if name == "parity":
                reports[path] = check_report(path, document)
                refusals += refusals_of(path, reports[path], present)
            elif name in KINDS:
                refusals += KINDS[name].check(path, document, present)
                evidence |= KINDS[name].evidence
            else:
                raise ReportError(f"{path}: of kind {name!r}; needed one of parity, {', '.join(KINDS)}")
        except ReportError as error:
            refusals.append(str(error))
    if not reports and not evidence and not refusals:
        refusals.append(f"no report in {', '.join(map(str, paths))}: make one with `refmoe parity --report PATH`")
    records = [record for report in reports.values() for record in report.cases]
    if baseline is not None:
        whole = any(path.is_dir() and baseline.resolve().is_relative_to(path.resolve()) for path in paths)
        refusals += vanished(baseline, records, present, whole=whole)
    passed = sum(record.verdict is Verdict.PASS for record in records)
    return GateOutcome(tuple(reports), tuple(refusals), passed)


def vanished(path: Path, records: Sequence[CaseRecord], present: PresentHash, *, whole: bool) -> list[str]:
    """A sentence for each reason why cases of the baseline at `path` are not among those that ran.

    Args:
        path: the baseline, or a parity report.
        records: the cases of the reports.
        present: the present source hashes.
        whole: whether the reports are all that there are. Otherwise the baseline speaks for the devices that they
            cover, and not for the skipped cases of a kernel of which none ran.
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
    # No case of such a kernel ran, since this machine lacks what it needs. What it refuses, it refuses anyway.
    skipped = {(_kernel(record.id), record.device) for record in records if record.verdict is Verdict.SKIPPED}
    idle_kernels = skipped - {(_kernel(record.id), record.device) for record in records if record.verdict.ran}
    gone: dict[str, list[str]] = {}
    idle: dict[tuple[str, str | None], list[str]] = {}
    for name in expected:
        device = name.rpartition("@")[2].partition(".")[0]
        if families[name] in absent or (not whole and device not in devices):
            continue
        record = by_id.get(name)
        unseen = record is None or record.verdict is Verdict.SKIPPED
        if not whole and unseen and (_kernel(name), device) in idle_kernels:
            continue
        if record is None:
            gone.setdefault(device, []).append(name)
        elif not record.verdict.ran:
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
    own = re.match(r".*?::[^/]*/", name)  # as refmoe.testing.cases.cases_of cuts it: paths of options hold slashes, too
    return name[: name.index(":", own.end() if own else 0)]


def _has_source(family: str, present: PresentHash) -> bool:
    try:
        present(family)
    except (ArgumentError, OSError):
        return False
    return True


def _and_more(names: Sequence[str], whose: str = "") -> str:
    return f" and {len(names) - 1:,} more{whose}" if len(names) > 1 else ""
