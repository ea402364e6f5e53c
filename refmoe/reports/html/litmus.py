"""A document of litmus programs on a GPU as a section: outcomes that PTX does not allow, and those that were seen."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from refmoe.reports.bench import cell_text
from refmoe.reports.html.section import Limits, Section, capped, columns, cut, facts_of

_COUNTS = ("runs", "allowed", "seen")


def litmus_section(name: str, document: Mapping[str, Any], limits: Limits) -> Section:
    """The section of one document of `refmoe litmus --device cuda`."""
    # What PTX does not allow stands first.
    ordered = sorted(document["rows"], key=lambda row: not row["outside"])
    outside = [row for row in ordered if row["outside"]]
    good = bool(ordered) and not outside and not document["outside"]
    shapes: dict[str, list[Mapping[str, Any]]] = {}
    for row in ordered:
        shapes.setdefault(row["shape"], []).append(row)
    numbers = "runs:number", "allowed:number", "seen:number"
    by_shape = columns(":verdict", "shape:code", "programs:number", *numbers)
    programs = columns(":verdict", "shape:code", "cause", *numbers, "never seen:code", "outside:code", "program:code")
    return Section(
        name,
        "litmus",
        "PASS" if good else "FAIL" if ordered else "NOTHING RAN",
        "good" if good else "bad",
        f"{document['programs']:,} programs on an {document['gpu']}, {document['runs']:,} runs: "
        f"{document['outside']:,} left behind what PTX does not allow; {document['seen_outcomes']:,} of "
        f"{document['allowed_outcomes']:,} allowed outcomes were seen",
        facts_of(document),
        reason=cut(f"{outside[0]['shape']} / {outside[0]['cause']}: {_outcomes(outside[0]['outside'])}", limits.reason)
        if outside
        else "",
        tables=[
            capped("By shape", by_shape, [_shape_row(shape, rows) for shape, rows in shapes.items()], limits),
            capped(
                "Programs",
                programs,
                [_program_row(row, limits) for row in ordered],
                limits,
                note="An outcome lists what the registers and the cells hold at the end. One outside is followed by "
                "how often it was seen.",
                folded=good,
            ),
        ],
    )


def _word(outside: bool) -> str:
    return "OUTSIDE" if outside else "allowed"


def _shape_row(shape: str, rows: Sequence[Mapping[str, Any]]) -> tuple[str, ...]:
    sums = (cell_text(sum(row[count] for row in rows)) for count in _COUNTS)
    return _word(any(row["outside"] for row in rows)), shape, cell_text(len(rows)), *sums


def _program_row(row: Mapping[str, Any], limits: Limits) -> tuple[str, ...]:
    counts = (cell_text(row[count]) for count in _COUNTS)
    long = _outcomes(row["never_seen"]), _outcomes(row["outside"]), " | ".join(row["program"])
    return _word(bool(row["outside"])), row["shape"], row["cause"], *counts, *(cut(text, limits.cell) for text in long)


def _outcomes(outcomes: Sequence[Sequence[int]]) -> str:
    return "; ".join(" ".join(map(str, outcome)) for outcome in outcomes)
