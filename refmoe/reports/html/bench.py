"""Documents other than parity reports as sections: stress, conformance, benchmarks."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from refmoe.reports.html.section import Column, Limits, Section, Table, cut

__all__ = ["bench_section", "cell_text", "conformance_section", "facts_of", "stress_section"]


#: Lines from which on a benchmark's table opens on a click.
LONG = 30


def cell_text(value: Any) -> str:
    """A JSON value as a reader wants it: grouped digits, four significant ones, lists by commas."""
    if value is None:
        return ""
    if isinstance(value, bool):
        return "yes" if value else "NO"
    if isinstance(value, float):
        return f"{value:,.4g}" if abs(value) < 1e7 else f"{value:.4g}"
    if isinstance(value, int):
        return f"{value:,}"
    if isinstance(value, (list, tuple)):
        return ", ".join(map(cell_text, value))
    if isinstance(value, Mapping):
        return ", ".join(f"{name} {cell_text(item)}" for name, item in value.items())
    return str(value)


def facts_of(document: Mapping[str, Any], *left_out: str) -> list[tuple[str, str]]:
    """The document's plain values, by their keys."""
    skipped = {"kind", "name", *left_out}
    return [
        (key.replace("_", " "), cell_text(value))
        for key, value in document.items()
        if key not in skipped and not isinstance(value, (list, Mapping))
    ]


def stress_section(name: str, document: Mapping[str, Any], limits: Limits) -> Section:
    """Reruns and compute-sanitizer: the same bytes every time, and what the tools found."""
    good = bool(document["passed"])
    reruns = document["reruns"]
    unsteady = [row for row in reruns if row["different_outputs"] != 1]
    columns = (
        Column("", "verdict"),
        Column("kernel", "code"),
        Column("runs", "number"),
        Column("different outputs", "number"),
        Column("case", "code"),
    )
    ordered = unsteady + [row for row in reruns if row["different_outputs"] == 1]
    rows = [
        (
            "same" if row["different_outputs"] == 1 else "UNSTEADY",
            row["kernel"],
            cell_text(row["runs"]),
            cell_text(row["different_outputs"]),
            row["case"],
        )
        for row in ordered
    ]
    tools = [(tool["verdict"], tool["tool"], cut(tool["summary"], limits.cell)) for tool in document["sanitizers"]]
    return Section(
        name,
        "stress",
        "PASS" if good else "FAIL",
        "good" if good else "bad",
        f"{len(reruns) - len(unsteady)} of {len(reruns)} kernels gave the same bytes in every run; "
        + ", ".join(f"{tool} {verdict}" for verdict, tool, _ in tools),
        facts_of(document, "passed"),
        tables=[
            Table("compute-sanitizer", (Column("", "verdict"), Column("tool"), Column("summary")), tools),
            _capped("Reruns", columns, rows, limits, folded=good),
        ],
    )


def conformance_section(name: str, document: Mapping[str, Any], limits: Limits) -> Section:
    """The executor's instructions against a GPU's."""
    differing = int(document["differing_opcodes"])
    columns = (
        Column("instruction", "code"),
        Column("lanes", "number"),
        Column("differ", "number"),
        Column("open lanes", "number"),
        Column("of these differ", "number"),
        Column("examples"),
    )
    rows = [
        (
            row["opcode"],
            cell_text(row["lanes"]),
            cell_text(row["differing"]),
            cell_text(row["open_lanes"]),
            cell_text(row["open_differing"]),
            cut("; ".join(row["examples"][:2]), limits.cell),
        )
        for row in sorted(document["rows"], key=lambda row: -row["differing"])
    ]
    return Section(
        name,
        "conformance",
        "FAIL" if differing else "PASS",
        "bad" if differing else "good",
        f"{document['opcodes']:,} instructions on {document['lanes']:,} lanes of an {document['gpu']}: "
        f"{differing:,} differ where exactness is claimed",
        facts_of(document),
        tables=[_capped("Instructions with open or differing lanes", columns, rows, limits, folded=not differing)],
    )


def bench_section(name: str, document: Mapping[str, Any], limits: Limits) -> Section:
    """A benchmark: its rows as they are, and whether its targets were reached."""
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
            _capped(title, *_rows_table(rows, limits), limits, folded=len(rows) > LONG)
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
    keys = list(dict.fromkeys(key for row in rows for key in row))
    numeric = {key for key in keys if all(isinstance(row.get(key, 0), (int, float)) for row in rows)}
    columns = [Column(key.replace("_", " "), "number" if key in numeric else "text") for key in keys]
    return columns, [[cut(cell_text(row.get(key)), limits.cell) for key in keys] for row in rows]


def _capped(title: str, columns: Any, rows: Any, limits: Limits, *, folded: bool = False) -> Table:
    more = len(rows) - limits.rows
    note = f"{more:,} more lines are in the JSON document" if more > 0 else ""
    return Table(title, columns, rows[: limits.rows], folded=folded, more=note)
