"""A benchmark's document as a section: its rows as they are, and whether its targets were reached."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from refmoe.reports.bench import cell_text, columns_of
from refmoe.reports.html.section import Column, Limits, Section, capped, cut, facts_of

#: Lines from which on a benchmark's table opens on a click.
LONG = 30


def bench_section(name: str, document: Mapping[str, Any], limits: Limits) -> Section:
    """The section of one document of `refmoe bench`."""
    reached = document.get("all_reached", document.get("reached"))
    missed = reached is not None and not _all_true(reached)
    flat = [
        (key.replace("_", " "), cell_text(value))
        for key, value in document.items()
        if isinstance(value, Mapping) and not _nested(value)
    ]
    return Section(
        name,
        "bench",
        "TARGET MISSED" if missed else "MEASURED",
        "warn" if missed else "plain",
        f"benchmark {document.get('name', '')}",
        [*facts_of(document), *flat],
        tables=[
            capped(title, *_rows_table(rows, limits), limits, folded=len(rows) > LONG)
            for title, rows in _lists(document)
        ],
    )


def _all_true(value: Any) -> bool:
    return all(map(_all_true, value.values())) if isinstance(value, Mapping) else bool(value)


def _lists(document: Mapping[str, Any]) -> Iterator[tuple[str, Sequence[Mapping[str, Any]]]]:
    """Every table that a benchmark holds, a mapping of mappings taken as rows with a name."""
    for key, value in document.items():
        title = key.replace("_", " ")
        if isinstance(value, list) and value and isinstance(value[0], Mapping):
            yield title, value
        elif isinstance(value, Mapping) and _nested(value):
            yield title, [{"": name, **item} for name, item in value.items()]


def _nested(value: Mapping[str, Any]) -> bool:
    return bool(value) and all(isinstance(item, Mapping) for item in value.values())


def _rows_table(rows: Sequence[Mapping[str, Any]], limits: Limits) -> tuple[list[Column], list[list[str]]]:
    kinds = columns_of(rows)
    columns = [Column(key.replace("_", " "), "number" if numeric else "text") for key, numeric in kinds.items()]
    return columns, [[cut(cell_text(row.get(key)), limits.cell) for key in kinds] for row in rows]
