"""A parity report as a section: verdict, summary by kernel, failing cases with their maps, and the tables."""

from __future__ import annotations

import itertools
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

from refmoe.reports import render
from refmoe.reports.documents import PresentHash
from refmoe.reports.html.heatmap import extent_text, heatmap_svg, key_text
from refmoe.reports.html.section import Limits, Section, ShownFinding, Table, capped, columns, cut
from refmoe.reports.parity import CaseRecord, MutantRecord, Report

SLOWEST = 12


def parity_section(name: str, report: Report, limits: Limits, present: PresentHash | None = None) -> Section:
    """The section of one report.

    Args:
        name: of its file.
        report: the report.
        limits: how much is shown.
        present: a kernel family's present source hash, to say whose evidence is stale; None to say nothing.
    """
    failing = [case for case in report.cases if case.fails]
    ordered = _spread(failing)
    survivors = [mutant for mutant in report.mutants if not mutant.caught]
    sources = _sources(report, present)
    stale = [source.kernel for source in sources if source.now in ("CHANGED", "GONE")]
    verdict, tone = _overall(report, failing, survivors, stale)
    tables = [
        *_failing_tables(ordered[limits.cards :], limits),
        *_idle_tables(report, limits),
        *_mutant_tables(report, limits),
        *_tolerance_tables(report, limits),
        *_slowest_tables(report, limits),
        _source_table(sources),
        _case_table(report, limits),
    ]
    return Section(
        name=name,
        kind="parity",
        verdict=verdict,
        tone=tone,
        headline=render.headline(report) + (f"; the sources of {', '.join(stale)} changed since" if stale else ""),
        facts=_facts(report),
        reason=_reason(ordered, survivors, limits),
        groups=render.groups(report),
        findings=[_finding(case, limits) for case in ordered[: limits.cards]],
        tables=tables,
        cases=report.cases,
        proves=report.proves if verdict == "PASS" else [],
    )


def _overall(
    report: Report, failing: Sequence[CaseRecord], survivors: Sequence[MutantRecord], stale: Sequence[str]
) -> tuple[str, str]:
    if failing or survivors:
        return "FAIL", "bad"
    if not any(case.verdict.ran for case in report.cases):
        return "NOTHING RAN", "warn"
    if stale:
        return "STALE", "warn"
    return "PASS", "good"


def _reason(failing: Sequence[CaseRecord], survivors: Sequence[MutantRecord], limits: Limits) -> str:
    """The first thing that is wrong, in a line."""
    if failing:
        first = failing[0]
        what = f"{render.verdict_words(first)} {first.kernel or first.family}: {first.finding.strip()}"
        return cut(what.split("\n", 1)[0], limits.reason)
    return f"not caught: {survivors[0].name}: {survivors[0].fault}" if survivors else ""


def _facts(report: Report) -> list[tuple[str, str]]:
    found = report.environment
    versions = f"refmoe {found.refmoe}, Python {found.python}, NumPy {found.numpy}, ml_dtypes {found.ml_dtypes}"
    return [
        ("command", report.command),
        ("made", f"{report.created.replace('T', ' ').replace('+00:00', ' UTC')}, in {report.seconds:.1f} s"),
        ("GPU", f"{found.gpu}, {found.driver}" if found.gpu else "none; the PTX was executed on the CPU"),
        ("machine", f"{found.platform}, {found.processors} processors"),
        ("versions", versions + (f", torch {found.torch}" if found.torch else "")),
        ("compiler", found.nvcc or "no nvcc"),
        ("digest", report.digest),
    ]


def _spread(failing: Sequence[CaseRecord]) -> list[CaseRecord]:
    """The first failing case of every kernel, device and arch, then the second of each, and so on."""
    by_group: dict[tuple[str, str, str], list[CaseRecord]] = {}
    for case in failing:
        by_group.setdefault((case.family, case.device, case.arch), []).append(case)
    rounds = itertools.zip_longest(*by_group.values())
    return [case for each in rounds for case in each if case is not None]


def _finding(case: CaseRecord, limits: Limits) -> ShownFinding:
    maps = case.maps or []
    facts = [("launched", launch) for launch in case.launches[:4]]
    facts += [("input SHA-256", case.input_sha256)] if case.input_sha256 else []
    facts += [("made of", case.made_of)] if case.made_of else []
    return ShownFinding(
        case.verdict.value,
        case.id,
        cut(case.finding, limits.message),
        case.repro,
        [(extent_text(record), heatmap_svg(record), key_text(record)) for record in maps[:4]],
        facts,
    )


def _failing_tables(cases: Sequence[CaseRecord], limits: Limits) -> list[Table]:
    if not cases:
        return []
    shown, hidden = cases[: limits.failing], cases[limits.failing :]
    counts = Counter(f"{case.family} {case.verdict.value}" for case in hidden)
    more = ", ".join(f"{count:,} {what}" for what, count in counts.items())
    return [
        Table(
            f"{len(cases):,} more failing cases",
            columns("verdict:verdict", "what", "run:code"),
            [(case.verdict.value, cut(case.finding, limits.cell), case.repro) for case in shown],
            more=f"{len(hidden):,} more failing cases are in the JSON report: {more}" if hidden else "",
        )
    ]


def _idle_tables(report: Report, limits: Limits) -> list[Table]:
    """Cases that did not run, by their reason."""
    reasons: dict[tuple[str, str, str], list[str]] = {}
    for case in report.cases:
        if not case.verdict.ran:
            reasons.setdefault((case.verdict.value, case.family, case.reason or ""), []).append(case.id)
    rows = [
        (verdict, family, str(len(ids)), cut(reason, limits.cell), ids[0])
        for (verdict, family, reason), ids in reasons.items()
    ]
    head = columns("verdict:verdict", "kernel", "cases:number", "why", "first:code")
    return [capped("Did not run", head, rows, limits)] if rows else []


def _mutant_tables(report: Report, limits: Limits) -> list[Table]:
    if not report.mutants:
        return []
    ordered = sorted(report.mutants, key=lambda mutant: mutant.caught)
    rows = [
        (
            "caught" if mutant.caught else "SURVIVED",
            mutant.fault,
            mutant.check or "",
            cut((mutant.finding or "").strip(), limits.cell),
            mutant.case or "",
        )
        for mutant in ordered
    ]
    caught = sum(mutant.caught for mutant in report.mutants)
    head = columns(":verdict", "planted fault", "by", "finding", "case:code")
    title = f"Planted faults: {caught} of {len(rows)} caught"
    note = "Each is a patch to the kernels; a case that the unpatched kernel passes fails on it."
    return [capped(title, head, rows, limits, note=note, folded=caught == len(rows))]


def _tolerance_tables(report: Report, limits: Limits) -> list[Table]:
    weighed = render.weighed_mutants(report)
    if not weighed:
        return []
    counts = render.accepted_counts(report)
    rows = [(rule.source, rule.rule, f"{counts[rule.name]} of {len(weighed)}") for rule in report.tolerances]
    head = columns("tolerance", "accepts, d = kernel - reference", "faults it lets through:number")
    note = (
        "Each planted fault of the GEMM, judged on Gaussian data by tolerances of other projects. No verdict uses one."
    )
    return [capped("What tolerances let through", head, rows, limits, note=note)]


def _slowest_tables(report: Report, limits: Limits) -> list[Table]:
    ran = [case for case in report.cases if case.verdict.ran]
    slowest = sorted(ran, key=lambda case: case.seconds, reverse=True)[: min(SLOWEST, limits.rows)]
    rows = [(f"{case.seconds:.2f}", f"{case.lane_instructions:,}", case.id) for case in slowest]
    head = columns("seconds:number", "lane instructions:number", "case:code")
    return [Table("Slowest cases", head, rows, folded=True)] if rows else []


@dataclass(frozen=True)
class _Source:
    """A kernel's sources as they were when cases ran; `now` is "same", "CHANGED", "GONE" or, if unknown, ""."""

    kernel: str
    sha256: str
    cases: int
    now: str


def _sources(report: Report, present: PresentHash | None) -> list[_Source]:
    """What was proven: the hash of each kernel's sources, and whether they still have it."""
    found = Counter((case.family, case.kernel, case.source_sha256) for case in report.cases if case.source_sha256)
    return [
        _Source(kernel or family, str(digest), count, "" if kernel else _now(family, str(digest), present))
        for (family, kernel, digest), count in found.items()
    ]


def _source_table(sources: Sequence[_Source]) -> Table:
    head = columns("kernel", "SHA-256 of its sources:code", "cases:number", "sources now:verdict")
    rows = [(source.kernel, source.sha256, f"{source.cases:,}", source.now) for source in sources]
    return Table("Sources", head, rows, note="A result says nothing about a kernel whose sources changed since.")


def _now(family: str, digest: str, present: PresentHash | None) -> str:
    if present is None:
        return ""
    try:
        return "same" if present(family) == digest else "CHANGED"
    except (ValueError, OSError):
        return "GONE"


def _case_table(report: Report, limits: Limits) -> Table:
    shown = report.cases[: limits.cases]
    rows = [(case.verdict.value, case.id, f"{case.compared:,}", f"{case.seconds:.3f}") for case in shown]
    head = columns("verdict:verdict", "case:code", "bytes compared:number", "seconds:number")
    hidden = report.cases[limits.cases :]
    counts = Counter(case.verdict.value for case in hidden)
    words = ", ".join(f"{count:,} {verdict}" for verdict, count in counts.items())
    more = f"{len(hidden):,} more cases are in the JSON report: {words}" if hidden else ""
    return Table(f"All {len(report.cases):,} cases", head, rows, folded=True, more=more)
