"""From documents to the page's text, which stays below its size whatever they hold."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from refmoe.errors import RefmoeError
from refmoe.reports.documents import EDITED, PresentHash, ReportError, is_intact, read_document, well_formed
from refmoe.reports.html.baseline import baseline_section
from refmoe.reports.html.bench import bench_section
from refmoe.reports.html.conformance import conformance_section
from refmoe.reports.html.convert import convert_section
from refmoe.reports.html.drift import drift_section
from refmoe.reports.html.exhaustive import exhaustive_section
from refmoe.reports.html.invariant import invariant_section
from refmoe.reports.html.litmus import litmus_section
from refmoe.reports.html.mutation import mutation_section
from refmoe.reports.html.parity import parity_section
from refmoe.reports.html.probe import probe_section
from refmoe.reports.html.section import Limits, Section
from refmoe.reports.html.stress import stress_section
from refmoe.reports.parity import Report, check_report
from refmoe.reports.render import cases_text

#: A page is opened from a mail or a CI's artifacts, so it stays below this.
MAX_BYTES = 5_000_000

TEMPLATES = Path(__file__).resolve().parent / "templates"

#: What makes a section of each kind of document beside parity reports.
SECTIONS: Mapping[str, Callable[[str, Mapping[str, Any], Limits], Section]] = {
    "stress": stress_section,
    "conformance": conformance_section,
    "bench": bench_section,
    "drift": drift_section,
    "convert": convert_section,
    "invariant": invariant_section,
    "exhaustive": exhaustive_section,
    "litmus": litmus_section,
    "mutation": mutation_section,
    "probe": probe_section,
    "baseline": baseline_section,
}

#: Order of the sections on the page: what is wrong comes first.
_TONES = ("bad", "warn", "good", "plain")

#: Reasons that the banner gives, the first of each failing document; the others are in the sections.
_REASONS = 5


@dataclass(frozen=True)
class Source:
    """A document.

    Attributes:
        path: where it came from.
        kind: "parity", or one of those in `SECTIONS`.
        document: its JSON.
        report: the report that a parity document is, else None.
    """

    path: Path
    kind: str
    document: Mapping[str, Any]
    report: Report | None = None


@dataclass(frozen=True)
class Banner:
    """What stands on top of the page and speaks for all its documents.

    Attributes:
        verdict, tone: of the worst document.
        headline: how many documents there are of each verdict, and how many cases.
        reasons: the first finding of each document that fails.
    """

    verdict: str
    tone: str
    headline: str
    reasons: Sequence[str]


def read_source(path: Path) -> Source:
    """A document from a file.

    Raises:
        ReportError: it cannot be read, is of no kind that a page can show, of another schema version, or was edited.
    """
    document = read_document(path)
    kind = str(document.get("kind", "parity"))
    if kind == "parity":
        return Source(path, kind, document, check_report(path, document))
    if kind not in SECTIONS:
        raise ReportError(f"{path}: of kind {kind!r}; a page shows parity, {', '.join(SECTIONS)}")
    if "digest" in document and not is_intact(document):
        raise ReportError(f"{path}: {EDITED}")
    return Source(path, kind, document)


def page_text(sources: Sequence[Source], present: PresentHash | None = None) -> str:
    """The page of some documents, those that fail first.

    If it would be larger than MAX_BYTES, it shows less of what is long and says how much it left out.

    Args:
        sources: what to show.
        present: a kernel family's present source hash, to say whose evidence is stale; None to say nothing.

    Raises:
        ReportError: a document lacks what its kind has.
    """
    limits = Limits()
    while True:
        text = _page([_section(source, limits, present) for source in sources])
        if len(text.encode()) < MAX_BYTES:
            return text
        if limits == limits.smaller():
            raise RefmoeError(f"the page of {len(sources)} documents is larger than {MAX_BYTES:,} bytes; show fewer")
        limits = limits.smaller()


def page_of(report: Report) -> str:
    """The page of one report that has no file yet."""
    return page_text([Source(Path("parity"), "parity", {}, report)])


def _section(source: Source, limits: Limits, present: PresentHash | None) -> Section:
    name = source.path.name
    if source.report is not None:
        return parity_section(name, source.report, limits, present)
    with well_formed(source.path, source.kind):
        return SECTIONS[source.kind](name, source.document, limits)


def _banner(sections: Sequence[Section]) -> Banner:
    """The banner of sections that are in the page's order."""
    first = sections[0]
    if len(sections) == 1:
        return Banner(first.verdict, first.tone, first.headline, [first.reason] if first.reason else [])
    verdicts = Counter(section.verdict for section in sections)
    counts = ", ".join(f"{count} {verdict}" for verdict, count in verdicts.items())
    cases = [case for section in sections for case in section.cases]
    headline = f"{len(sections)} documents: {counts}" + (f"; {cases_text(cases)}" if cases else "")
    failing = [section for section in sections if section.tone == "bad"]
    reasons = [f"{section.name}: {section.reason or section.headline}" for section in failing[:_REASONS]]
    if more := len(failing) - _REASONS:
        reasons += [f"{more} more documents fail"] if more > 0 else []
    return Banner(first.verdict, first.tone, headline, reasons)


def _page(sections: Sequence[Section]) -> str:
    from jinja2 import Environment, FileSystemLoader, StrictUndefined

    loaded = Environment(
        loader=FileSystemLoader(TEMPLATES),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    ordered = sorted(sections, key=lambda section: _TONES.index(section.tone))
    text = loaded.get_template("page.html").render(sections=ordered, banner=_banner(ordered))
    # Compiler output may hold control characters, which HTML does not allow.
    return re.sub(r"[\x00-\x08\x0b\x0c\x0e-\x1f\x7f]|[\ud800-\udfff]", "?", text)
