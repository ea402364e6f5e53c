"""The instructions and lanes of a run of `refmoe conformance`: its probes and operands are those of the package."""

from __future__ import annotations

import functools
from collections.abc import Iterator, Mapping
from types import MappingProxyType
from typing import Any

import numpy as np

from refmoe.reports.checks import GateRefusal, first_and_count
from refmoe.reports.conformance import CONFORMANCE
from refmoe.silicon.operands import EXHAUSTIVE, LANES, operands
from refmoe.silicon.probes import all_probes
from refmoe.silicon.wgmma import TARGET, all_draws


def refusals(document: Mapping[str, Any]) -> Iterator[GateRefusal]:
    """Instructions, lanes and open lanes that are not those that a run compares."""
    yield from first_and_count("conformance.recomputed", _wrong(document))


def _wrong(document: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    lanes, still_open = _probed()
    refused = set(document["refused_by_ptxas"])
    for name in sorted(refused - lanes.keys()):
        yield f"the instruction {name}", f"is said to be refused, and no run asks for it; {CONFORMANCE.again}"
    ran: dict[str, int] = {name: count for name, count in lanes.items() if name not in refused}
    ran.update(_products() if document["arch"] == TARGET else {})
    for what, said, found in (
        ("instructions", document["opcodes"], len(ran)),
        ("lanes", document["lanes"], sum(ran.values())),
    ):
        if said != found:
            yield f"its {what}", f"says {said:,}, and a run without those that ptxas refused has {found:,}"
    rows = {row["opcode"]: row for row in document["rows"]}
    for name, row in rows.items():
        if row["lanes"] != ran.get(name):
            yield f"the instruction {name}", f"says {row['lanes']:,} lanes, and a run compares {ran.get(name, 0):,}"
    for name in sorted(rows.keys() | still_open.keys()):
        found = still_open.get(name, 0) if name in ran else 0
        said = rows[name]["open_lanes"] if name in rows else 0
        if said != found:
            text = f"says {said:,} open lanes, and of its operands the executor leaves {found:,} open"
            yield f"the instruction {name}", text


@functools.cache
def _probed() -> tuple[Mapping[str, int], Mapping[str, int]]:
    """By probe its lanes; and of those with a lane that the executor does not claim, how many."""
    lanes, still_open = {}, {}
    for probe in all_probes():
        # Operands are drawn where some may be open alone: to draw all takes most of the time.
        lanes[probe.name] = EXHAUSTIVE if tuple(probe.sources) == ("b16",) else LANES
        if probe.exact_when is None:
            continue
        sources = operands(probe.name, probe.sources)
        with np.errstate(all="ignore"):
            claimed = np.broadcast_to(probe.exact_when(*sources), sources[0].shape)
        if not claimed.all():
            still_open[probe.name] = int((~claimed).sum())
    return MappingProxyType(lanes), MappingProxyType(still_open)


@functools.cache
def _products() -> Mapping[str, int]:
    """By product of warpgroups the registers that are compared, over all of its draws."""
    return MappingProxyType({str(entry): sum(draw.sums.size for draw in draws) for entry, draws in all_draws().items()})
