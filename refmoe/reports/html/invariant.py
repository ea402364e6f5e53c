"""A document of batch invariance as a section: what does not depend on the batch, and the pairs that differ."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from refmoe.reports.bench import cell_text
from refmoe.reports.html.section import Limits, Section, capped, columns, cut, facts_of
from refmoe.reports.invariant import failures


def invariant_section(name: str, document: Mapping[str, Any], limits: Limits) -> Section:
    """The section of one document of `refmoe invariant`."""
    found = failures(document)
    good = bool(document["passed"]) and not found
    # What depends on its batch stands first.
    certificates = sorted(document["certificates"], key=lambda each: each["verdict"] == "invariant")
    held = sum(each["verdict"] == "invariant" for each in certificates)
    head = columns(
        ":verdict", "subject:code", "cases:number", "bytes compared:number", "a pair that differs:code", "why"
    )
    rows = [
        (
            "same" if each["verdict"] == "invariant" else "DEPENDS",
            each["subject"],
            cell_text(each["cases"]),
            cell_text(each["bytes_compared"]),
            cut(each["difference"]["batched"] if each["difference"] else "", limits.cell),
            cut(each["depends"], limits.cell),
        )
        for each in certificates
    ]
    return Section(
        name,
        "invariant",
        "PASS" if good else "FAIL",
        "good" if good else "bad",
        f"{held} of {len(certificates)} paths and kernels do not depend on the batch, over {document['cases']:,} cases",
        facts_of(document, "passed"),
        reason=cut(found[0], limits.reason) if found else "",
        tables=[capped("Batch invariance", head, rows, limits, folded=good)],
    )
