"""What the views of a scale layout show: a layout, a matrix, and who lives in each byte of the buffer."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from refmoe.errors import ArgumentError
from refmoe.reference.layout import (
    GROUPED_LAYOUTS,
    ScaleLayout,
    checked_count,
    checked_size,
    expert_scale_rows,
    grouped_scale_rows,
    layout_named,
)

__all__ = ["LINE_BYTES", "Plan", "counted", "plan_layout", "summary"]

#: A line of the buffer as both views show it, like a hex dump.
LINE_BYTES = 16


@dataclass(frozen=True, eq=False)
class Plan:
    """What is shown: a layout, its logical matrix and where each row of that lies."""

    layout: ScaleLayout
    rows: int
    blocks: int
    buffer_rows: int
    buffer_blocks: int
    scale_rows: NDArray[np.int64]
    offsets: NDArray[np.int64] | None

    @property
    def size(self) -> int:
        """Bytes of the buffer."""
        return self.buffer_rows * self.buffer_blocks

    def row_of(self, scale_row: int) -> int | None:
        """The row whose scales are in `scale_row`, None for padding."""
        at = int(np.searchsorted(self.scale_rows, scale_row))
        return at if at < self.rows and self.scale_rows[at] == scale_row else None

    def owners(self, first: int, last: int) -> list[tuple[int, int]]:
        """(scale row, K-block), padded ones included, of each byte from `first` up to `last`."""
        # Bytes first..last lie within these rows of tiles, so that a large buffer is not enumerated.
        per_tile_row = self.buffer_blocks * self.layout.row_atom
        start = first // per_tile_row * self.layout.row_atom
        stop = -(-last // per_tile_row) * self.layout.row_atom
        row, block = np.mgrid[start:stop, : self.buffer_blocks]
        offset = self.layout.offset(row, block, self.blocks).ravel()
        order = np.argsort(offset)[first - start // self.layout.row_atom * per_tile_row :][: last - first]
        return list(zip(row.ravel()[order].tolist(), block.ravel()[order].tolist(), strict=True))


def plan_layout(layout: str, rows: int, blocks: int, offsets: Sequence[int] | None) -> Plan:
    """The plan of a [rows, blocks] matrix; the arguments and errors are those of `render_text`."""
    rows, blocks = checked_count("rows", rows), checked_count("blocks", blocks)
    if offsets is None:
        chosen = layout_named(layout)
        buffer_rows, scale_rows, checked = chosen.padded_shape(rows, blocks)[0], np.arange(rows), None
    else:
        chosen = layout_named(layout, GROUPED_LAYOUTS)
        checked = np.array([checked_count("offsets", offset) for offset in offsets], np.int64)
        scale_rows = expert_scale_rows(checked)
        if checked[-1] != rows:
            raise ArgumentError("offsets", f"{checked[-1]} as the last", f"the number of rows, {rows}")
        buffer_rows = grouped_scale_rows(rows, checked.size - 1)
    checked_size("rows", chosen, buffer_rows, blocks)
    buffer_blocks = chosen.padded_shape(rows, blocks)[1]
    if not blocks or not buffer_rows:
        buffer_rows = buffer_blocks = 0
    return Plan(chosen, rows, blocks, buffer_rows, buffer_blocks, scale_rows, checked)


def summary(plan: Plan) -> str:
    """Sizes and the offset formula, in a few lines."""
    chosen = plan.layout
    grouped = "" if plan.offsets is None else f", grouped by {counted(plan.offsets.size - 1, 'expert')}"
    real = plan.rows * plan.blocks
    zero = plan.rows * (plan.buffer_blocks - plan.blocks) if plan.size else 0
    lines = [
        f"{chosen.name}: scales of {counted(plan.rows, 'row')} x {counted(plan.blocks, 'K-block')}{grouped}",
        f"buffer  {plan.size} bytes = {plan.buffer_rows} scale rows x {plan.buffer_blocks} K-blocks: {real} scales, "
        f"{zero} in padded columns (0x00), {plan.size - real - zero} in padded rows (not written)",
    ]
    if chosen.row_atom > 1:
        tiles = (plan.buffer_rows // chosen.row_atom, plan.buffer_blocks // chosen.column_atom)
        lines.append(
            f"tiles   {tiles[0]} x {tiles[1]} of {chosen.row_atom} rows x {chosen.column_atom} K-blocks, "
            f"{chosen.atom_bytes} bytes each, K first"
        )
    row = "row" if plan.offsets is None else "scale row"
    lines.append(f"offset  {_formula(chosen, plan.blocks)}    (m {row}, b K-block)")
    return "\n".join(lines)


def _formula(layout: ScaleLayout, blocks: int) -> str:
    per_tile_row = layout.offset(layout.row_atom, 0, blocks)
    if layout.row_atom == 1:
        return f"m*{per_tile_row} + b"
    terms = [f"m//{layout.row_atom}*{per_tile_row}", f"b//{layout.column_atom}*{layout.atom_bytes}"]
    step = 1
    for radix, stride in zip(layout.row_shape, layout.row_stride, strict=True):
        terms.append(f"m%{radix}*{stride}" if step == 1 else f"m//{step}%{radix}*{stride}")
        step *= radix
    return " + ".join([*terms, f"b%{layout.column_atom}"])


def counted(count: int, noun: str) -> str:
    """The count with its noun in the right number."""
    return f"{count} {noun}" if count == 1 else f"{count} {noun}s"
