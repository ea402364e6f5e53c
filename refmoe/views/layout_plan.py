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
    expert_base_rows,
    grouped_scale_rows,
    layout_named,
)

__all__ = ["LINE_BYTES", "Plan", "counted", "plan_layout", "summary"]

#: A line of the buffer as both views show it, like a hex dump.
LINE_BYTES = 16


@dataclass(frozen=True, eq=False)
class Plan:
    """What is shown: a layout, its logical matrix, and where the rows of that lie.

    Attributes:
        layout: of the scales.
        rows: rows of the matrix.
        blocks: K-blocks of a row.
        buffer_rows: scale rows that the buffer has room for; 0 if it is empty.
        buffer_blocks: K-blocks that the buffer has room for; 0 if it is empty.
        grouped: whether the rows are grouped by expert. Rows that are not are shown as those of one expert.
        offsets: int64 [E + 1], first row of each expert, then `rows`.
        bases: int64 [E], first scale row of each expert.
    """

    layout: ScaleLayout
    rows: int
    blocks: int
    buffer_rows: int
    buffer_blocks: int
    grouped: bool
    offsets: NDArray[np.int64]
    bases: NDArray[np.int64]

    @property
    def size(self) -> int:
        """Bytes of the buffer."""
        return self.buffer_rows * self.buffer_blocks

    def expert_of(self, scale_row: int) -> int:
        """The expert in whose region a scale row lies."""
        return int(np.searchsorted(self.bases, scale_row, side="right")) - 1

    def row_of(self, scale_row: int) -> int | None:
        """The row whose scales are in `scale_row`, None for padding."""
        expert = self.expert_of(scale_row)
        row = int(self.offsets[expert] + scale_row - self.bases[expert])
        return row if row < self.offsets[expert + 1] else None

    def scale_row_of(self, row: int) -> int:
        """The scale row that holds the scales of `row`."""
        expert = int(np.searchsorted(self.offsets, row, side="right")) - 1
        return int(self.bases[expert] + row - self.offsets[expert])

    def owners(self, first: int, last: int) -> list[tuple[int, int]]:
        """(scale row, K-block), padded ones included, of each byte from `first` up to `last`, both whole tiles."""
        tile = self.layout
        across = self.buffer_blocks // tile.column_atom
        found = {}
        for index in range(first // tile.atom_bytes, last // tile.atom_bytes):
            for row in range(index // across * tile.row_atom, (index // across + 1) * tile.row_atom):
                for block in range(index % across * tile.column_atom, (index % across + 1) * tile.column_atom):
                    found[tile.offset(row, block, self.blocks)] = (row, block)
        return [found[byte] for byte in range(first, last)]


def plan_layout(layout: str, rows: int, blocks: int, offsets: Sequence[int] | None) -> Plan:
    """The plan of a [rows, blocks] matrix; the arguments and errors are those of `render_text`."""
    rows, blocks = checked_count("rows", rows), checked_count("blocks", blocks)
    if offsets is None:
        chosen = layout_named(layout)
        buffer_rows, starts, bases = chosen.padded_shape(rows, blocks)[0], np.array([0, rows]), np.zeros(1, np.int64)
    else:
        chosen = layout_named(layout, GROUPED_LAYOUTS)
        starts = np.array([checked_count("offsets", offset) for offset in offsets], np.int64)
        bases = expert_base_rows(starts)
        if starts[-1] != rows:
            raise ArgumentError("offsets", f"{starts[-1]} as the last", f"the number of rows, {rows}")
        buffer_rows = grouped_scale_rows(rows, bases.size)
    buffer_blocks = chosen.padded_shape(rows, blocks)[1]
    if not checked_size("rows", chosen, buffer_rows, blocks):
        buffer_rows = buffer_blocks = 0
    return Plan(chosen, rows, blocks, buffer_rows, buffer_blocks, offsets is not None, starts, bases)


def summary(plan: Plan) -> str:
    """Sizes and the offset formula, in a few lines."""
    chosen = plan.layout
    grouped = f", grouped by {counted(plan.bases.size, 'expert')}" if plan.grouped else ""
    real = plan.rows * plan.blocks
    zero = plan.rows * (plan.buffer_blocks - plan.blocks) if plan.size else 0
    pads = f"{zero} bytes in padded columns (0x00), {plan.size - real - zero} in padded rows (not written)"
    buffer = f"{counted(plan.buffer_rows, 'scale row')} x {counted(plan.buffer_blocks, 'K-block')}"
    lines = [
        f"{chosen.name}: scales of {counted(plan.rows, 'row')} x {counted(plan.blocks, 'K-block')}{grouped}",
        f"buffer  {plan.size} bytes = {buffer}",
        f"holds   {counted(real, 'scale')}, {pads}",
    ]
    if chosen.row_atom > 1:
        tiles = (plan.buffer_rows // chosen.row_atom, plan.buffer_blocks // chosen.column_atom)
        lines.append(
            f"tiles   {tiles[0]} x {tiles[1]} of {chosen.row_atom} rows x {chosen.column_atom} K-blocks, "
            f"{chosen.atom_bytes} bytes each, K first"
        )
    row = "scale row" if plan.grouped else "row"
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
