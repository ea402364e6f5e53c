"""The gate: may this merge? Every refusal is one sentence that says what is wrong and what to do."""

from __future__ import annotations

import os
import re
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType
from typing import Any

from refmoe.errors import ArgumentError
from refmoe.reports import baseline as baselines
from refmoe.reports.bench import BENCH, targets_of
from refmoe.reports.checks import GateRefusal, ReportError, first_and_count
from refmoe.reports.conformance import CONFORMANCE
from refmoe.reports.consistency import Catalog, Record, two_stories
from refmoe.reports.convert import CONVERT
from refmoe.reports.documents import well_formed
from refmoe.reports.drift import DRIFT
from refmoe.reports.exhaustive import EXHAUSTIVE
from refmoe.reports.invariant import INVARIANT
from refmoe.reports.judge import refusals_of
from refmoe.reports.litmus import LITMUS
from refmoe.reports.mutation import MUTATION
from refmoe.reports.parity import CaseRecord, Report, check_report
from refmoe.reports.probe import BUNDLE
from refmoe.reports.reading import find_documents, read_document, shown
from refmoe.reports.stress import STRESS, against_parity
from refmoe.verify.verdict import Verdict

#: Name of the baseline in a folder of reports.
BASELINE = "baseline.json"

#: The kinds of documents that may lie beside parity reports. Another kind is refused.
KINDS = {
    kind.name: kind
    for kind in (STRESS, CONFORMANCE, LITMUS, BENCH, DRIFT, CONVERT, MUTATION, INVARIANT, EXHAUSTIVE, BUNDLE)
}

#: Checks that refuse a document whose insides cannot be relied on to be there.
_FORM = frozenset(("document.version", "document.digest", "document.schema", "bench.content"))


@dataclass(frozen=True)
class GateOutcome:
    """What the gate found.

    Attributes:
        reports: the parity reports that were read.
        documents: the documents of other kinds that were read.
        unread: files in the checked folders that are no report by name and look.
        found: why it does not pass; none if it does.
        passed: cases with the verdict PASS.
        missed: targets that reports of benchmarks say they missed, a line each. None of them is a refusal: a target is
            what the project wants, and its report says truly how far it is.
    """

    reports: tuple[Path, ...]
    documents: tuple[Path, ...]
    unread: tuple[Path, ...]
    found: tuple[GateRefusal, ...]
    passed: int
    missed: tuple[str, ...] = ()

    @property
    def refusals(self) -> tuple[str, ...]:
        """Why it does not pass, a sentence each."""
        return tuple(refusal.text for refusal in self.found)


#: What computes the figures of a document anew, see `refmoe.recomputed`, which stands on a floor above.
Recompute = Callable[[Mapping[str, Any]], Iterable[GateRefusal]]


def check_reports(
    paths: Sequence[Path],
    baseline: Path | None,
    catalog: Catalog,
    *,
    renewed: Path | None = None,
    recomputed: Mapping[str, Recompute] = MappingProxyType({}),
) -> GateOutcome:
    """Check documents against themselves, each other, the present sources, and the baseline.

    If the baseline's own folder is checked, all that it holds must pass, since a whole report may be what is gone.
    Otherwise it speaks for the devices that the reports cover, and not for a kernel of which no case ran and cases were
    SKIPPED: on a clean machine somebody else's kernel is not built. A case that passed and is refused now counts even
    there, and a kernel that is not even listed is gone.

    Args:
        paths: files, and folders of them.
        baseline: a baseline or a parity report, whose passed cases must pass; or None for no comparison with the past.
        catalog: what the sources say now: the module `refmoe.catalog`.
        renewed: a baseline that is about to be written anew, so that nothing is held against it.
        recomputed: by the kind of a document what computes its figures anew, once it passed all else.
    """
    found = find_documents(paths)
    refusals = list(found.refusals)
    reports: dict[Path, Report] = {}
    written: dict[Path, Mapping[str, Any]] = {}
    others: dict[Path, Mapping[str, Any]] = {}
    stressed: dict[Path, Mapping[str, Any]] = {}
    broken: set[Path] = set()
    evidence = False
    for path in found.files:
        if any(_same(path, each) for each in (baseline, renewed)) and not _is_report(path):
            continue
        try:
            document = read_document(path)
            name = document.get("kind", "parity")
            if name == "parity":
                reports[path], written[path] = check_report(path, document), document
            elif name == baselines.KIND:
                refusals.append(_elsewhere(path, baseline))
            elif isinstance(name, str) and name in KINDS:
                others[path] = document
                refused = KINDS[name].check(path, document, catalog.source_sha256)
                refusals += refused
                if {each.check for each in refused} & _FORM:
                    broken.add(path)
                elif name == STRESS.name:
                    stressed[path] = document
                if not refused and name in recomputed:
                    refusals += _anew(path, document, recomputed[name])
                evidence |= KINDS[name].evidence
            else:
                text = f"{shown(path)}: of kind {name!r}; needed one of parity, {', '.join(KINDS)}"
                raise ReportError(text, "document.kind")
        except ReportError as error:
            refusals.append(error.refusal)
            broken.add(path)
    records = {path: [Record(case, catalog) for case in report.cases] for path, report in reports.items()}
    for path, report in reports.items():
        refused = [refusal.at(shown(path)) for refusal in refusals_of(path, report, records[path], catalog)]
        if not refused and "parity" in recomputed:
            refused = _anew(path, written[path], recomputed["parity"])
        refusals += refused
    refusals += _twice({**{path: report.digest for path, report in reports.items()}, **_digests(others)})
    refusals += two_stories(records)
    refusals += against_parity(stressed, reports, catalog)
    if not reports and not evidence and not refusals:
        named = ", ".join(shown(path) for path in paths)
        text = f"no report in {named}: make one with `refmoe parity --report PATH`"
        refusals.append(GateRefusal("document.none", text))
    cases = [record for report in reports.values() for record in report.cases]
    if baseline is not None:
        whole = any(path.is_dir() and _below(baseline, path) for path in paths)
        refusals += vanished(baseline, cases, catalog, whole=whole)
    passed = sum(record.verdict is Verdict.PASS for record in cases)
    missed = [
        f"{shown(path)}: {target.line}"
        for path, document in others.items()
        if document.get("kind") == BENCH.name and path not in broken
        for target in targets_of(document)
        if not target.reached
    ]
    return GateOutcome(tuple(reports), tuple(others), found.unread, tuple(refusals), passed, tuple(missed))


def _anew(path: Path, document: Mapping[str, Any], recompute: Recompute) -> list[GateRefusal]:
    """Why the figures of a document are not those that come out again."""
    with well_formed(path, document.get("kind", "parity")):
        return [refusal.at(shown(path)) for refusal in recompute(document)]


def _same(path: Path, other: Path | None) -> bool:
    """Whether two paths name one file."""
    return other is not None and os.path.realpath(path) == os.path.realpath(other)


def _below(path: Path, folder: Path) -> bool:
    return Path(os.path.realpath(path)).is_relative_to(os.path.realpath(folder))


def _is_report(path: Path) -> bool:
    """Whether the baseline is a parity report, which is checked like any other."""
    try:
        return read_document(path).get("kind") == "parity"
    except ReportError:
        return False  # whoever reads it as the baseline says why


def _elsewhere(path: Path, baseline: Path | None) -> GateRefusal:
    used = f"and the one in use is {shown(baseline)}" if baseline is not None else "and none is in use"
    text = f"{shown(path)}: a baseline, {used}: name it with --baseline, or take it away"
    return GateRefusal("baseline.elsewhere", text)


def _digests(documents: Mapping[Path, Mapping[str, Any]]) -> dict[Path, str]:
    return {path: document["digest"] for path, document in documents.items() if isinstance(document.get("digest"), str)}


def _twice(digests: Mapping[Path, str]) -> Iterator[GateRefusal]:
    first: dict[str, Path] = {}
    for path, digest in digests.items():
        other = first.setdefault(digest, path)
        if other is not path:
            text = f"{shown(path)}: the same report as {shown(other)}; each counts once, so take one away"
            yield GateRefusal("document.twice", text)


def vanished(path: Path, records: Sequence[CaseRecord], catalog: Catalog, *, whole: bool) -> list[GateRefusal]:
    """A sentence for each reason why cases of the baseline at `path` are not among those that ran.

    Args:
        path: the baseline, or a parity report.
        records: the cases of the reports.
        catalog: what the sources say now.
        whole: whether the reports are all that there are. Otherwise the baseline speaks for the devices that they
            cover, and not for the skipped cases of a kernel of which none ran.
    """
    try:
        expected = baselines.read_baseline(path)
    except ReportError as error:
        return [error.refusal]
    refusals = list(first_and_count("baseline.content", _no_cases(path, expected)))
    expected = [name for name in expected if re.search(_CASE, name)]
    families = {name: _family(name) for name in expected}
    absent = {family for family in set(families.values()) if not _has_source(family, catalog)}
    for family, count in Counter(families.values()).items():
        if family in absent:
            lost = f"kernel family {family} passed {count:,} cases in {path} and is gone"
            refusals.append(GateRefusal("baseline.family", f"{lost}; bring it back, or renew the baseline"))
    # A case that one report skipped and another one ran was run.
    by_id = {record.id: record for record in sorted(records, key=lambda record: record.verdict is not Verdict.SKIPPED)}
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
        text = f"case {names[0]}{_and_more(names)} passed in {path} and is now {verdict}: {reason}"
        refusals.append(GateRefusal("baseline.vanished", text))
    for device, names in gone.items():
        more = _and_more(names, f" of the device {device}")
        text = f"case {names[0]}{more} passed in {path} and is gone; run it, or renew the baseline"
        refusals.append(GateRefusal("baseline.vanished", text))
    return refusals


#: What every case ends with: a seed, and where it ran.
_CASE = r":seed\d+@[a-z]+(\.\w+)?$"


def _no_cases(path: Path, names: Sequence[str]) -> Iterator[tuple[str, str]]:
    for name in names:
        if not re.search(_CASE, name):
            yield shown(path), f"{name!r} is no case; write it with `refmoe gate --write-baseline`"


def _family(name: str) -> str:
    """The kernel family of a case id."""
    return _kernel(name).rpartition("/")[2]


def _kernel(name: str) -> str:
    """The kernel of a case id: its family, and before that, of a user's kernel, FILE::NAME and a slash."""
    own = re.match(r".*?::[^/]*/", name)  # as refmoe.testing.cases.cases_of cuts it: paths of options hold slashes, too
    return name[: name.index(":", own.end() if own else 0)]


def _has_source(family: str, catalog: Catalog) -> bool:
    try:
        catalog.source_sha256(family)
    except (ArgumentError, OSError):
        return False
    return True


def _and_more(names: Sequence[str], whose: str = "") -> str:
    return f" and {len(names) - 1:,} more{whose}" if len(names) > 1 else ""
