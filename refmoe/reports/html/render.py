"""From documents to the page's text, which stays below its size whatever they hold."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from pathlib import Path

from refmoe.errors import RefmoeError
from refmoe.reports.html.bench import bench_section, conformance_section, stress_section
from refmoe.reports.html.drift import drift_section
from refmoe.reports.html.parity import parity_section
from refmoe.reports.html.section import Limits, Section
from refmoe.reports.html.sources import Source
from refmoe.reports.parity import Report, ReportError

__all__ = ["MAX_BYTES", "page_of", "page_text"]

#: A page is opened from a mail or a CI's artifacts, so it stays below this.
MAX_BYTES = 5_000_000

TEMPLATES = Path(__file__).resolve().parent / "templates"

_SECTIONS = {
    "stress": stress_section,
    "conformance": conformance_section,
    "bench": bench_section,
    "drift": drift_section,
}

#: Order of the sections' verdicts on the page: what is wrong comes first.
_TONES = ("bad", "warn", "good", "plain")


def page_text(sources: Sequence[Source], source_sha256: Callable[[str], str] | None = None) -> str:
    """The page of some documents, those that fail first.

    If it would be larger than MAX_BYTES, it shows less of what is long and says how much it left out.

    Args:
        sources: what to show.
        source_sha256: a kernel family's present source hash, to say whose evidence is stale; None to say nothing.

    Raises:
        ReportError: a document lacks what its kind has.
    """
    limits = Limits()
    while True:
        text = _page([_section(source, limits, source_sha256) for source in sources])
        if len(text.encode()) < MAX_BYTES:
            return text
        if limits == limits.smaller():
            raise RefmoeError(f"the page of {len(sources)} documents is larger than {MAX_BYTES:,} bytes; show fewer")
        limits = limits.smaller()


def page_of(report: Report) -> str:
    """The page of one report that has no file yet."""
    return page_text([Source(Path("parity"), "parity", {}, report)])


def _section(source: Source, limits: Limits, source_sha256: Callable[[str], str] | None) -> Section:
    name = source.path.name
    if source.report is not None:
        return parity_section(name, source.report, limits, source_sha256)
    make = _SECTIONS[source.kind]
    try:
        return make(name, source.document, limits)
    except (KeyError, TypeError, AttributeError, ValueError, IndexError, ArithmeticError) as error:
        raise ReportError(f"{source.path}: says it is of kind {source.kind}, but lacks or spoils {error}") from error


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
    failing = sum(section.tone == "bad" for section in ordered)
    text = loaded.get_template("page.html").render(sections=ordered, failing=failing)
    # Compiler output may hold control characters, which HTML does not allow.
    return re.sub(r"[\x00-\x08\x0b\x0c\x0e-\x1f\x7f]|[\ud800-\udfff]", "?", text)
