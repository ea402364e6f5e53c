"""A conformance document as a section: the executor's instructions against a GPU's."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from refmoe.reports.bench import cell_text
from refmoe.reports.html.section import Limits, Section, capped, columns, cut, facts_of

_COUNTS = ("lanes", "differing", "open_lanes", "open_differing")


def conformance_section(name: str, document: Mapping[str, Any], limits: Limits) -> Section:
    """The section of one document of `refmoe conformance`."""
    differing = int(document["differing_opcodes"])
    head = columns(
        "instruction:code", "lanes:number", "differ:number", "open lanes:number", "of these differ:number", "examples"
    )
    ordered = sorted(document["rows"], key=lambda row: -row["differing"])
    rows = [
        (row["opcode"], *(cell_text(row[count]) for count in _COUNTS), cut("; ".join(row["examples"][:2]), limits.cell))
        for row in ordered
    ]
    return Section(
        name,
        "conformance",
        "FAIL" if differing else "PASS",
        "bad" if differing else "good",
        f"{document['opcodes']:,} instructions on {document['lanes']:,} lanes of an {document['gpu']}: "
        f"{differing:,} differ where exactness is claimed",
        facts_of(document),
        reason=cut(f"{ordered[0]['opcode']}: {'; '.join(ordered[0]['examples'][:1])}", limits.reason)
        if differing and ordered
        else "",
        tables=[capped("Instructions with open or differing lanes", head, rows, limits, folded=not differing)],
    )
