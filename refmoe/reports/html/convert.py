"""A conversion document as a section: what each tensor loses on its way from block FP8 to MXFP8, by scale mode."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from refmoe.reports.convert import LOSSLESS, failures
from refmoe.reports.html.section import Limits, Section, Table, capped, columns, cut, facts_of


def convert_section(name: str, document: Mapping[str, Any], limits: Limits) -> Section:
    """The section of one document of `refmoe policy convert`."""
    found = failures(document)
    good = bool(document["passed"]) and not found
    added = [
        one["added"]
        for tensor in document["tensors"]
        for one in tensor["modes"]
        if one["mode"] == LOSSLESS and one["added"] is not None and tensor["powers_of_two"] < tensor["tiles"]
    ]
    worst = f"; by {LOSSLESS} the error grows {min(added):.2f} to {max(added):.2f} times" if added else ""
    return Section(
        name,
        "convert",
        "PASS" if good else "FAIL",
        "good" if good else "bad",
        f"block FP8 to MXFP8, {len(document['tensors'])} tensors{worst}"
        if good
        else f"{len(found)} statements do not hold",
        facts_of(document, "passed"),
        reason=cut(found[0], limits.reason) if found else "",
        tables=[
            *([capped("Does not hold", columns("what"), [(line,) for line in found], limits)] if found else []),
            _losses(document, limits),
            _power_of_two(document, limits),
        ],
    )


def _losses(document: Mapping[str, Any], limits: Limits) -> Table:
    rows = []
    for tensor in document["tensors"]:
        for one in tensor["modes"]:
            rows.append(
                (
                    cut(tensor["name"], limits.cell),
                    tensor["layer"],
                    f"{tensor['block']}, {tensor['scales']}",
                    one["mode"],
                    *(_error(each) for each in (tensor["block_error"], one["direct_error"], one["converted_error"])),
                    "" if one["added"] is None else f"{one['added']:.2f}",
                    _error(one["conversion_error"]),
                    _error(one["max_relative"]),
                    *(_share(one, each) for each in ("codes_changed", "values_changed", "flushed", "saturated")),
                )
            )
    head = columns(
        *("tensor", "layer", "tile, scales", "mode", "block FP8:number", "MXFP8:number", "converted:number"),
        *("times:number", "conversion alone:number", "largest:number", "codes changed:number"),
        *("values changed:number", "to zero:number", "saturated:number"),
    )
    note = (
        "Relative L2 errors against the source: of block FP8, of MXFP8 made of the source, of MXFP8 made of the block "
        "FP8, and how many times the first the last one is. Conversion alone is against the block FP8; largest is the "
        "largest relative change of an element that does not become zero."
    )
    return capped("What each tensor loses", head, rows, limits, note=note)


def _power_of_two(document: Mapping[str, Any], limits: Limits) -> Table:
    rows = [
        (each["mode"], f"{each['pairs']:,}", f"{each['largest']:,}", f"{each['smaller']:,}")
        for each in document["power_of_two"]
    ]
    head = columns("mode", "pairs:number", "the largest saturates:number", "the other changes:number")
    note = "Every pair of a largest code and one below it, at a scale that is a power of two."
    return capped("Where scales are powers of two already", head, rows, limits, note=note, folded=True)


def _error(value: float | None) -> str:
    return "" if value is None else f"{value:.5f}"


def _share(one: Mapping[str, Any], key: str) -> str:
    return f"{100 * one[key] / one['elements']:.3f} %"
