"""What a page is made of: sections with facts, tables, findings and pictures, as plain data for the template."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from markupsafe import Markup

from refmoe.reports.bench import cell_text
from refmoe.reports.parity import CaseRecord
from refmoe.reports.render import Group


@dataclass(frozen=True)
class Limits:
    """How much a page shows of what may be endless; what is left out is counted in words.

    Attributes:
        cards: failing cases shown with message, repro line and maps.
        failing: further failing cases, a line each.
        cases: lines of the list of all cases.
        rows: lines of any other table.
        message: characters of a message in a card.
        cell: characters of a cell.
        reason: characters of the first finding, under a headline.
    """

    cards: int = 40
    failing: int = 3000
    cases: int = 4000
    rows: int = 400
    message: int = 4000
    cell: int = 400
    reason: int = 300

    def smaller(self) -> Limits:
        """A quarter of each count, and half of the characters, but never nothing."""
        cards, failing, cases, rows = (max(n // 4, 1) for n in (self.cards, self.failing, self.cases, self.rows))
        return Limits(cards, failing, cases, rows, max(self.message // 2, 200), max(self.cell // 2, 100))


def cut(text: str, length: int) -> str:
    """The first `length` characters, and how many more there are."""
    more = len(text) - length
    return text if more <= 0 else f"{text[:length]} ... {more:,} more characters"


@dataclass(frozen=True)
class Column:
    """A table's column; `kind` is "text", "number", "code" or "verdict"."""

    name: str
    kind: str = "text"


def columns(*words: str) -> tuple[Column, ...]:
    """Columns from "name" or "name:kind"."""
    return tuple(Column(name, kind or "text") for name, _, kind in (word.partition(":") for word in words))


@dataclass(frozen=True)
class Table:
    """A table.

    Attributes:
        title: what it is about.
        columns: its columns.
        rows: cells as text.
        note: what the reader should know of it, or "".
        folded: whether it opens only on a click.
        more: what was left out, in words, or "".
    """

    title: str
    columns: Sequence[Column]
    rows: Sequence[Sequence[str]]
    note: str = ""
    folded: bool = False
    more: str = ""


def capped(
    title: str,
    columns: Sequence[Column],
    rows: Sequence[Sequence[str]],
    limits: Limits,
    *,
    note: str = "",
    folded: bool = False,
) -> Table:
    """A table of the first rows that says how many more there are."""
    more = len(rows) - limits.rows
    left_out = f"{more:,} more lines are in the JSON document" if more > 0 else ""
    return Table(title, columns, rows[: limits.rows], note, folded, left_out)


@dataclass(frozen=True)
class ShownFinding:
    """A failing case.

    Attributes:
        verdict, case, message, repro: as the report has them.
        maps: (extent of what differs, SVG picture, what its lines are) of each stage.
        facts: launches, hashes.
    """

    verdict: str
    case: str
    message: str
    repro: str
    maps: Sequence[tuple[str, Markup, str]] = ()
    facts: Sequence[tuple[str, str]] = ()


@dataclass(frozen=True)
class Section:
    """One document on the page.

    Attributes:
        name: of its file.
        kind: "parity", or a key of `refmoe.reports.html.page.SECTIONS`.
        verdict: "PASS", "FAIL", or what else there is to say in a word or two.
        tone: "good", "bad", "warn" or "plain".
        headline: the verdict in figures.
        reason: the first finding in a line, or "".
        facts: what ran, when and where.
        groups: the summary by kernel.
        findings: failing cases, the first of them.
        tables: everything else.
        pictures: SVG pictures with their titles.
        cases: of a parity report.
        proves: what its passing proves and assumes; nothing unless it passes.
    """

    name: str
    kind: str
    verdict: str
    tone: str
    headline: str
    facts: Sequence[tuple[str, str]]
    reason: str = ""
    groups: Sequence[Group] = ()
    findings: Sequence[ShownFinding] = ()
    tables: Sequence[Table] = ()
    pictures: Sequence[tuple[str, Markup]] = ()
    cases: Sequence[CaseRecord] = ()
    proves: Sequence[str] = ()


def facts_of(document: Mapping[str, Any], *left_out: str) -> list[tuple[str, str]]:
    """The document's plain values, by their keys."""
    skipped = {"kind", "name", "digest", *left_out}
    return [
        (key.replace("_", " "), cell_text(value))
        for key, value in document.items()
        if key not in skipped and not isinstance(value, (list, Mapping))
    ]
