"""Comparisons and detections made visible: tables for the terminal, documents for programs."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from refmoe.formats import MX_BLOCK
from refmoe.policies.compare import PolicyComparison, PolicyFigures
from refmoe.policies.detect import Detection
from refmoe.policies.evidence import Place, Score

__all__ = ["comparison_document", "comparison_view", "detection_document", "detection_view", "same_bytes"]


def comparison_document(comparison: PolicyComparison, source: str) -> dict[str, Any]:
    """Every figure of a comparison as JSON values; shares as fractions of 1."""
    return {
        "input": source,
        "shape": list(comparison.shape),
        "format": comparison.format,
        "blocks": dict(comparison.kinds),
        "base": comparison.base.name,
        "policies": [_figures_document(figures) for figures in comparison.figures],
        "pairs": [
            {
                "policies": list(pair),
                "scale_share": difference.scale_share,
                "code_share": difference.code_share,
                "blocks": difference.blocks,
            }
            for pair, difference in comparison.pairs.items()
        ],
    }


def comparison_view(comparison: PolicyComparison, source: str) -> RenderableType:
    """What was compared, a table of figures, and a matrix of what differs."""
    names = [figures.rule.name for figures in comparison.figures]
    parts: list[RenderableType] = [
        Text(f"{source}: {_input(comparison.format, comparison.shape, comparison.kinds)}\n"),
        _figures_table(comparison),
    ]
    groups = same_bytes(comparison)
    for group in groups:
        if len(group) > 1:
            parts.append(Text(f"\nthe same bytes here: {', '.join(group)}"))
    if len(groups) > 1:
        parts.append(Text("\ndiffer, %: scale bytes above the diagonal, codes below\n"))
        parts.append(_matrix(comparison, [group[0] for group in groups]))
    aliases = [str(figures.rule) for figures in comparison.figures if figures.rule.aliases]
    if aliases and names:
        parts.append(Text(f"\n{'; '.join(aliases)}"))
    return Group(*parts)


def same_bytes(comparison: PolicyComparison) -> list[list[str]]:
    """The names of the policies, those together that gave the same bytes wherever both are defined."""
    groups: list[list[str]] = []
    for figures in comparison.figures:
        name = figures.rule.name
        for group in groups:
            if all(_equal(comparison, name, other) for other in group):
                group.append(name)
                break
        else:
            groups.append([name])
    return groups


def detection_document(detection: Detection, source: str) -> dict[str, Any]:
    """Everything that was found as JSON values."""
    return {
        "input": source,
        "shape": list(detection.shape),
        "format": detection.format,
        "blocks": dict(detection.kinds),
        "verdict": detection.verdict,
        "names": list(detection.names),
        "matches": [_score_document(match) for match in detection.matches],
        "not_told_apart": [
            {
                "policies": [ambiguity.first.name, ambiguity.second.name],
                "block": None if ambiguity.witness is None else ambiguity.witness.description,
                "gives": None if ambiguity.witness is None else [ambiguity.witness.first, ambiguity.witness.second],
            }
            for ambiguity in detection.ambiguities
        ],
        "nearest": [_score_document(score) for score in detection.nearest],
        "ordinary_blocks_exact": [rule.name for rule in detection.ordinary],
        "hypotheses": [
            {"fault": each.fault, "policies": list(each.names), "blocks_left": each.left, "blocks": each.blocks}
            for each in detection.hypotheses
        ],
    }


def detection_view(detection: Detection, source: str) -> str:
    """The verdict first, then what it rests on."""
    lines = [f"{source}: {_input(detection.format, detection.shape, detection.kinds)}"]
    lines += _matched(detection) if detection.matches else _unmatched(detection)
    return "\n".join(lines)


def _matched(detection: Detection) -> list[str]:
    undefined = detection.matches[0].undefined
    but = f" but those of {undefined} blocks that it leaves undefined" if undefined else ""
    lines = [f"{detection.verdict.upper()}: every byte{but} is what this gives"]
    for match in detection.matches:
        rest = f"; {match.undefined} blocks are undefined by it" if match.undefined > undefined else ""
        lines.append(f"  {match.rule}{rest}")
    if detection.ambiguities:
        first = detection.ambiguities[0].first.name
        lines.append(f"This data cannot tell them apart. Blocks that can, {first} against")
    for ambiguity in detection.ambiguities:
        witness = ambiguity.witness
        if witness is None:
            lines.append(f"  {ambiguity.second.name}: none known")
        else:
            lines.append(f"  {ambiguity.second.name}: {witness.description}")
            lines.append(f"      {witness.first} | {witness.second}")
    return lines


def _unmatched(detection: Detection) -> list[str]:
    lines = ["MISMATCH: no policy gives these bytes. The nearest"]
    for score in detection.nearest:
        kinds = ", ".join(f"{count:,} {name}" for name, count in score.by_kind.items())
        undefined = f", {score.undefined:,} more are undefined" if score.undefined else ""
        lines.append(
            f"  {score.rule}: {score.differing:,} of {score.blocks:,} blocks differ ({kinds}){undefined}; "
            f"{_percent(score.scales, score.blocks)} of scale bytes, "
            f"{_percent(score.codes, score.blocks * MX_BLOCK)} of codes"
        )
    lines += [
        f"    {place.text}" for place in (detection.nearest[0].first_scale, detection.nearest[0].first_code) if place
    ]
    if detection.ordinary:
        lines.append(f"On ordinary blocks every byte is what this gives: {', '.join(map(str, detection.ordinary))}")
    if detection.hypotheses:
        lines.append("It would be explained by")
    for each in detection.hypotheses:
        left = f"all but {each.left:,} of {each.blocks:,} blocks" if each.left else f"all {each.blocks:,} blocks"
        lines.append(f"  {each.fault} ({left}), with {', '.join(each.names)}")
    return lines


def _input(format: str, shape: tuple[int, int], kinds: Mapping[str, int]) -> str:
    counts = ", ".join(f"{count:,} {name}" for name, count in kinds.items() if count)
    return f"[{shape[0]}, {shape[1]}] to {format}; blocks: {counts}"


def _figures_table(comparison: PolicyComparison) -> Table:
    table = Table(box=None, pad_edge=False, header_style="bold")
    headings = ("scales %", "codes %", "relative L2", "max error", "saturated", "to zero", "0xFF", "NaN", "undefined")
    table.add_column("policy", no_wrap=True)
    for heading in (*headings, "scale bytes"):
        table.add_column(heading, justify="right")
    for figures in comparison.figures:
        base = figures.rule is comparison.base
        difference = figures.from_base
        table.add_row(
            figures.rule.name,
            "base" if base else f"{100 * difference.scale_share:.2f}",
            "base" if base else f"{100 * difference.code_share:.2f}",
            f"{figures.relative_l2:.5f}",
            f"{figures.max_error:.4g}",
            f"{figures.saturated:,}",
            f"{figures.underflowed:,}",
            f"{figures.poisoned:,}",
            f"{figures.nan_codes:,}",
            f"{figures.undefined:,}",
            str(figures.scale_bytes),
        )
    return table


def _matrix(comparison: PolicyComparison, names: list[str]) -> Table:
    table = Table(box=None, pad_edge=False, header_style="bold")
    table.add_column("")
    for name in names:
        table.add_column(name.replace("/exact", ""), justify="right")
    for row, first in enumerate(names):
        cells = []
        for column, second in enumerate(names):
            difference = comparison.between(first, second)
            share = difference.scale_share if column > row else difference.code_share
            cells.append("-" if row == column else f"{100 * share:.2f}")
        table.add_row(first.replace("/exact", ""), *cells)
    return table


def _equal(comparison: PolicyComparison, first: str, second: str) -> bool:
    difference = comparison.between(first, second)
    return difference.scales == difference.codes == 0


def _figures_document(figures: PolicyFigures) -> dict[str, Any]:
    return {
        "policy": figures.rule.name,
        "aliases": list(figures.rule.aliases),
        "scale_share": figures.from_base.scale_share,
        "code_share": figures.from_base.code_share,
        # JSON has no NaN.
        "relative_l2": None if math.isnan(figures.relative_l2) else figures.relative_l2,
        "max_error": figures.max_error,
        "max_error_at": list(figures.max_error_at),
        "saturated": figures.saturated,
        "underflowed": figures.underflowed,
        "poisoned_blocks": figures.poisoned,
        "nan_codes": figures.nan_codes,
        "undefined_blocks": figures.undefined,
        "scale_bytes": figures.scale_bytes,
    }


def _score_document(score: Score) -> dict[str, Any]:
    return {
        "policy": score.rule.name,
        "aliases": list(score.rule.aliases),
        "blocks": score.blocks,
        "undefined_blocks": score.undefined,
        "differing_blocks": score.differing,
        "differing_by_kind": dict(score.by_kind),
        "differing_scales": score.scales,
        "differing_codes": score.codes,
        "first_scale": _place_document(score.first_scale),
        "first_code": _place_document(score.first_code),
    }


def _place_document(place: Place | None) -> dict[str, Any] | None:
    return None if place is None else dict(vars(place))


def _percent(part: int, whole: int) -> str:
    return f"{100 * part / whole:.3g} %" if whole else "0 %"
