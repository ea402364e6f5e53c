"""A document of mutants as a section: the part that the cases catch, and what survived."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from refmoe.reports.bench import cell_text
from refmoe.reports.html.section import Column, Limits, Section, capped, columns, cut, facts_of
from refmoe.reports.mutation import contradictions, failures

_COUNTS = (
    "mutants", "does_not_build", "same_code", "proven_by_machine", "tried_on_every_value", "argued_equivalent",
    "caught", "timed_out", "survived", "share", "share_unargued",
)  # fmt: skip


def mutation_section(name: str, document: Mapping[str, Any], limits: Limits) -> Section:
    """The section of one document of `refmoe mutate`."""
    found = contradictions(document) or failures(document)
    good = bool(document["passed"]) and not found
    total, sample = document["summary"], document["sample"]
    survivors = [
        (each["verdict"], cut(each["id"], limits.cell), cell_text(each["cases"]), cut(each["reason"], limits.cell))
        for each in document["survivors"]
    ]
    mutants = [
        (
            each["outcome"],
            *(cut(str(each[key]), limits.cell) for key in ("id", "floor", "kernel", "operator")),
            cut(each["case"] or "", limits.cell),
            each["check"] or "",
            cell_text(each["cases"]),
        )
        for each in sorted(document["mutants"], key=lambda each: each["outcome"] != "survived")
    ]
    head = columns(
        ":verdict", "mutant:code", "floor", "kernel", "operator", "caught by the case:code", "check", "cases run:number"
    )
    runs = [
        (
            cut(each["id"], limits.cell),
            cell_text(run["inputs"]),
            cut("; ".join(_part(number, part) for number, part in enumerate(run["domain"])), limits.cell),
            cut("; ".join(run["where"]), limits.cell),
            cell_text(run["steps"]),
        )
        for each in document["every_value"]
        for run in each["runs"]
    ]
    return Section(
        name,
        "mutation",
        "PASS" if good else "FAIL",
        "good" if good else "bad",
        f"{total['caught'] + total['timed_out']:,} of {sample['tried']:,} mutants caught, {total['survived']:,} "
        f"survived, "
        f"{total['proven_by_machine'] + total['tried_on_every_value'] + total['same_code']:,} are equivalent, "
        f"{total['argued_equivalent']:,} more by an argument in words, {total['does_not_build']:,} do not build; "
        f"{sample['of']:,} were there to draw from",
        [*facts_of(document, "passed"), *((f"sample, {key}", cell_text(value)) for key, value in sample.items())],
        reason=cut(found[0], limits.reason) if found else "",
        tables=[
            capped("Survivors", columns(":verdict", "mutant:code", "cases run:number", "reason"), survivors, limits),
            capped(
                "Tried on every value",
                columns("mutant:code", "values:number", "of", "where", "steps:number"),
                runs,
                limits,
                folded=True,
            ),
            *(
                capped(f"By {group[:-1]}", _head(group), _rows(document[group], group), limits)
                for group in ("kernels", "operators")
            ),
            capped("Mutants", head, mutants, limits, folded=True),
        ],
    )


def _part(number: int, part: Mapping[str, Any]) -> str:
    beside = "".join(f" or {word}" for word in part["beside"])
    return f"v{number}: {part['made_by']}, {part['width']} bits, any of {part['mask']}{beside}"


def _head(group: str) -> Sequence[Column]:
    return columns("floor", f"{group[:-1]}:code", *(f"{count.replace('_', ' ')}:number" for count in _COUNTS))


def _rows(rows: Sequence[Mapping[str, Any]], group: str) -> list[tuple[str, ...]]:
    return [(row["floor"], row[group[:-1]], *(cell_text(row[count]) for count in _COUNTS)) for row in rows]
