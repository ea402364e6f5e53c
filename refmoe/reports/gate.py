"""The gate: may this merge? Every refusal is one sentence that says what is wrong and what to do."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from refmoe.reports.baseline import vanished
from refmoe.reports.bench import BENCH
from refmoe.reports.conformance import CONFORMANCE
from refmoe.reports.documents import PresentHash, ReportError, read_document
from refmoe.reports.drift import DRIFT
from refmoe.reports.parity import Report, check_report, refusals_of
from refmoe.reports.stress import STRESS
from refmoe.verify.verdict import Verdict

#: Name of the baseline in a folder of reports.
BASELINE = "baseline.json"

#: The kinds of documents that may lie beside parity reports. Another kind is refused.
KINDS = {kind.name: kind for kind in (STRESS, CONFORMANCE, BENCH, DRIFT)}


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
    Otherwise it speaks for the devices that the reports cover, and not for a kernel of which no case ran there: on a
    clean machine somebody else's kernel is not built, and all its cases are SKIPPED.

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
