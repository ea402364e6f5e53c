"""A drift document as a section: what must be equal, where bits part, and how the error goes over the steps."""

from __future__ import annotations

import statistics
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from markupsafe import Markup

from refmoe.reports.drift import failures
from refmoe.reports.html.curves import curves_svg
from refmoe.reports.html.section import Limits, Section, Table, capped, columns, cut, facts_of


def drift_section(name: str, document: Mapping[str, Any], limits: Limits) -> Section:
    """The section of one document of `refmoe drift`."""
    found = failures(document)
    good = bool(document["passed"]) and not found
    compared = [one for run in document["runs"] for one in run["comparisons"]]
    exact = [one for one in compared if one["must_equal"]]
    same = sum(one["bytes_compared"] for one in exact)
    pairs = sorted({f"{one['path']} = {one['base']}" for one in exact})
    equal = f"{'; '.join(pairs)}: {same:,} bytes, 0 differ" if pairs else "no two paths had to be equal"
    return Section(
        name,
        "drift",
        "PASS" if good else "FAIL",
        "good" if good else "bad",
        equal if good else f"{len(found)} of what must be equal is not",
        [*facts_of(document, "passed"), ("weights", f"{document['checkpoint']['name']}")],
        reason=cut(found[0], limits.reason) if found else "",
        tables=[
            *([capped("Not equal", columns("what"), [(line,) for line in found], limits)] if found else []),
            _comparisons(document, limits),
        ],
        pictures=list(_pictures(document, limits)),
    )


def _point(run: Mapping[str, Any]) -> str:
    point = run["point"]
    k = "" if point["k"] is None else f", k {point['k']}"
    return f"batch {point['batch']}, prompt {point['prompt']}{k}, {point['in_flight']} in flight"


def _comparisons(document: Mapping[str, Any], limits: Limits) -> Table:
    rows = []
    for run in document["runs"]:
        for one in run["comparisons"]:
            first = one["first_difference"]
            verdict = ("FAIL" if one["bytes_differing"] else "PASS") if one["must_equal"] else ""
            rows.append(
                (
                    verdict,
                    one["path"],
                    one["mode"],
                    _point(run),
                    f"{one['bytes_differing']:,}" if first or one["must_equal"] else "",
                    cut(first["text"], limits.cell) if first else "nowhere",
                    one["growth"]["sentence"],
                )
            )
    head = columns(
        "must equal:verdict", "path", "mode", "of", "bytes that differ:number", "bits part at", "does the error grow?"
    )
    return capped(f"Against {document['base']}, {document['steps']} steps", head, rows, limits)


def _pictures(document: Mapping[str, Any], limits: Limits) -> Iterator[tuple[str, Markup]]:
    """For each point and mode the error of the last layer's hidden state and the divergence of the logits."""
    for run in document["runs"][: limits.cards]:
        for mode in dict.fromkeys(one["mode"] for one in run["comparisons"]):
            shown = [one for one in run["comparisons"] if one["mode"] == mode]
            what = f"{mode}, {_point(run)}"
            error = {
                one["path"]: _median(one, one["curves"]["hidden"]["relative_l2"], last_layer=True) for one in shown
            }
            title = f"Relative L2 error of the last layer's hidden state, median over sequences: {what}"
            yield title, curves_svg(what, error)
            divergence = {one["path"]: _median(one, one["curves"]["logits"]["divergence"]) for one in shown}
            yield f"KL divergence of the logits in nats, median over sequences: {what}", curves_svg(what, divergence)


def _median(one: Mapping[str, Any], curve: Sequence[Any], *, last_layer: bool = False) -> list[float | None]:
    """By step the median over the sequences whose inputs are still the base's."""
    medians: list[float | None] = []
    for step in range(max(map(len, curve), default=0)):
        values = []
        for sequence, diverged in zip(curve, one["diverged"], strict=True):
            if diverged is None or step < diverged:
                value = sequence[step][-1] if last_layer else sequence[step]
                values += [] if value is None else [float(value)]
        medians.append(statistics.median(values) if values else None)
    return medians
