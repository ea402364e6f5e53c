"""A document of every pair as a section: what was swept, and what each entry's bytes depend on."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from refmoe.reports.exhaustive import failures
from refmoe.reports.html.section import Limits, Section, capped, columns, cut, facts_of


def exhaustive_section(name: str, document: Mapping[str, Any], limits: Limits) -> Section:
    """The section of one document of `refmoe parity --level exhaustive`."""
    found = failures(document)
    good = bool(document["passed"]) and not found
    total = document["summary"]
    rows = [
        (
            "DIFFERS" if row["differing"] else "equal",
            f"{row['subject']}:{row['dtype']}:{row['mode']}/{row['edge']}",
            f"{row['pairs']:,}",
            f"{row['bytes']:,}",
            f"{row['differing']:,}",
        )
        for row in sorted(document["rows"], key=lambda row: not row["differing"])
    ]
    proofs = [
        (
            "REFUSED" if proof["refusals"] else "proven",
            proof["entry"],
            f"{proof['bytes']:,}",
            cut(proof["refusals"][0], limits.cell) if proof["refusals"] else "",
        )
        for proof in sorted(document["proofs"], key=lambda proof: not proof["refusals"])
    ]
    head = columns(":verdict", "subject:code", "pairs:number", "bytes:number", "differing:number")
    entries = columns(":verdict", "entry:code", "bytes:number", "why")
    return Section(
        name,
        "exhaustive",
        "PASS" if good else "FAIL",
        "good" if good else "bad",
        f"{total['differing']:,} of {total['bytes']:,} bytes differ over {total['pairs']:,} pairs (amax, element); "
        f"{total['proofs'] - total['refused']} of {total['proofs']} entries proven",
        facts_of(document, "passed"),
        reason=cut(found[0], limits.reason) if found else "",
        tables=[
            capped("Subjects", head, rows, limits, folded=good),
            capped("What a byte depends on", entries, proofs, limits, folded=good),
        ],
    )
