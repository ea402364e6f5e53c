"""A baseline as a section: how many cases of each family must go on passing, on each device."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from typing import Any

from refmoe.reports.bench import cell_text
from refmoe.reports.html.section import Limits, Section, capped, columns, facts_of


def baseline_section(name: str, document: Mapping[str, Any], limits: Limits) -> Section:
    """The section of one baseline of `refmoe gate --write-baseline`."""
    counts = Counter((case.partition(":")[0], case.rpartition("@")[2]) for case in document["cases"])
    rows = [(family, device, cell_text(count)) for (family, device), count in sorted(counts.items())]
    return Section(
        name,
        "baseline",
        "MUST PASS",
        "plain",
        f"{len(document['cases']):,} cases must go on passing",
        facts_of(document),
        tables=[capped("Cases", columns("family:code", "device:code", "cases:number"), rows, limits)],
    )
