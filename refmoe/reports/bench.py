"""A document of `refmoe bench`: what was timed. It proves nothing, so the gate only asks that it is what it says."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from refmoe.reports.documents import Kind, PresentHash


def _judge(document: Mapping[str, Any], present: PresentHash) -> list[str]:
    timed = document.get("rows") or document.get("comparisons") or document.get("medians_s")
    if isinstance(document["name"], str) and isinstance(timed, (list, dict)):
        return []
    return ["says it is a bench document, but has no name, or no rows, comparisons or medians"]


BENCH = Kind("bench", again="run `refmoe bench` again", keys=frozenset(("name",)), judge=_judge, evidence=False)


def columns_of(rows: Sequence[Mapping[str, Any]]) -> dict[str, bool]:
    """The keys of some rows, in their order, and whether all their values are numbers."""
    keys = dict.fromkeys(key for row in rows for key in row)
    return {key: all(isinstance(row.get(key, 0), (int, float)) for row in rows) for key in keys}


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
