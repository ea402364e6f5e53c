"""A stress document as a section: the same bytes every time, and what compute-sanitizer found."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from refmoe.reports.bench import cell_text
from refmoe.reports.html.section import Limits, Section, Table, capped, columns, cut, facts_of
from refmoe.reports.stress import failures


def stress_section(name: str, document: Mapping[str, Any], limits: Limits) -> Section:
    """The section of one document of `refmoe stress`."""
    found = failures(document)
    good = bool(document["passed"]) and not found
    # Kernels whose outputs differ stand first.
    reruns = sorted(document["reruns"], key=lambda row: row["different_outputs"] == 1)
    steady = sum(row["different_outputs"] == 1 for row in reruns)
    head = columns(":verdict", "kernel:code", "runs:number", "different outputs:number", "case:code")
    rows = [
        (
            "same" if row["different_outputs"] == 1 else "UNSTEADY",
            row["kernel"],
            cell_text(row["runs"]),
            cell_text(row["different_outputs"]),
            row["case"],
        )
        for row in reruns
    ]
    tools = [(tool["verdict"], tool["tool"], cut(tool["summary"], limits.cell)) for tool in document["sanitizers"]]
    return Section(
        name,
        "stress",
        "PASS" if good else "FAIL",
        "good" if good else "bad",
        f"{steady} of {len(reruns)} kernels gave the same bytes in every run; "
        + ", ".join(f"{tool} {verdict}" for verdict, tool, _ in tools),
        facts_of(document, "passed"),
        reason=cut(found[0], limits.reason) if found else "",
        tables=[
            Table("compute-sanitizer", columns(":verdict", "tool", "summary"), tools),
            capped("Reruns", head, rows, limits, folded=good),
        ],
    )
