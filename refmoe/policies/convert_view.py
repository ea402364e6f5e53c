"""Conversions as tables for a terminal."""

from __future__ import annotations

import math
from collections.abc import Sequence

from rich.console import Group, RenderableType
from rich.text import Text

from refmoe.policies.convert import Conversion, PowerOfTwoLoss
from refmoe.policies.convert_inputs import Source
from refmoe.tables import plain_table

_LEGEND = (
    "errors are relative L2: of block FP8, of MXFP8 and of converted MXFP8 against the source; alone is the conversion "
    "against the block FP8.\ntimes is converted / block FP8; largest is the largest relative change of an element; the "
    "rest are shares of elements in %.\nleast is no policy: it takes the best scale of each block, below which no "
    "policy can go."
)


def conversion_view(found: Sequence[tuple[Source, Conversion]], losses: Sequence[PowerOfTwoLoss]) -> RenderableType:
    """A table for each tensor and kind of scales, and what power-of-two scales lose by mode."""
    parts: list[RenderableType] = []
    for source, conversion in found:
        rows, k = conversion.shape
        powers = f"{conversion.powers_of_two:,} of {conversion.tiles:,} scales are powers of two"
        head = f"{source.name} ({source.kind}): [{rows}, {k}], {conversion.block}, {conversion.scales} scales; {powers}"
        parts += [Text(f"{head}\n"), _table(conversion), Text("")]
    parts.append(Text(f"{_LEGEND}\n"))
    for loss in losses:
        told = "exact" if loss.exact else _told(loss)
        parts.append(Text(f"scales that are powers of two, {loss.mode}: {told}"))
    return Group(*parts)


def _told(loss: PowerOfTwoLoss) -> str:
    what = [f"the largest saturates in {loss.largest:,}"] if loss.largest else []
    what += [f"the other changes in {loss.smaller:,}"] if loss.smaller else []
    return f"{' and '.join(what)} of {loss.pairs:,} pairs of a largest code and one below"


def _table(conversion: Conversion) -> RenderableType:
    errors = (">block FP8", ">MXFP8", ">converted", ">times", ">alone", ">largest")
    table = plain_table("mode", *errors, ">codes %", ">values %", ">to zero %", ">saturated %", wrap=True)
    for each in conversion.modes:
        error, converted = conversion.block_error, each.converted.relative_l2
        table.add_row(
            each.mode,
            *(_number(value) for value in (error, each.direct.relative_l2, converted)),
            "" if math.isnan(converted) or not error else f"{converted / error:.2f}",
            *(_number(value) for value in (each.conversion.relative_l2, each.max_relative)),
            *(
                f"{100 * each.share(count):.3f}"
                for count in (each.codes_changed, each.values_changed, each.flushed, each.saturated)
            ),
        )
    return table


def _number(value: float) -> str:
    return "" if math.isnan(value) else f"{value:.5f}"
