"""Where the scales of a matrix lie in a layout: who lives in each byte of the buffer, and that as text."""

from __future__ import annotations

from collections.abc import Callable, Sequence
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

#: A line of the buffer as both views show it, like a hex dump.
LINE_BYTES = 16
#: What fits a terminal of 120 columns.
TEXT_BLOCKS = 12
TEXT_ROWS = 24
TEXT_EXPERTS = 12


@dataclass(frozen=True, eq=False)
class LayoutPlan:
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


def plan_layout(layout: str, rows: int, blocks: int, offsets: Sequence[int] | None) -> LayoutPlan:
    """The plan of a [rows, blocks] matrix; the arguments and errors are those of `layout_text`."""
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
    return LayoutPlan(chosen, rows, blocks, buffer_rows, buffer_blocks, offsets is not None, starts, bases)


def layout_summary(plan: LayoutPlan) -> str:
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


def layout_text(layout: str, rows: int, blocks: int, *, offsets: Sequence[int] | None = None) -> str:
    """Describe where the scales of a [rows, blocks] matrix lie: size, formula, and two tables, cut short where long.

    Args:
        layout: "128x4", "8x4" or "linear".
        rows: rows of the matrix.
        blocks: K-blocks of a row, one scale each.
        offsets: for rows grouped by expert, the first row of each expert and then `rows`. Every expert then starts at
            a 128-aligned scale row and a linear row is whole words, as the grouped GEMM reads them.

    Raises:
        ArgumentError: an unknown layout, a negative size, offsets that do not describe `rows` rows, sizes past int32.
    """
    plan = plan_layout(layout, rows, blocks, offsets)
    parts = [layout_summary(plan)]
    if plan.grouped:
        parts.append(_expert_table(plan))
    if plan.size:
        parts += [_offset_table(plan), _byte_table(plan)]
    return "\n\n".join(parts) + "\n"


def _expert_table(plan: LayoutPlan) -> str:
    bases, offsets = plan.bases.tolist(), plan.offsets.tolist()
    ends = [*bases[1:], plan.buffer_rows]
    header = ["expert", "first row", "rows", "base row", "scale rows", "padding up to the next base"]

    def line(e: int) -> list[str]:
        count = offsets[e + 1] - offsets[e]
        used, free = bases[e] + count, ends[e]
        regions = ((bases[e], used), (used, free))
        ranges = [f"{start}..{stop - 1}" if start < stop else "none" for start, stop in regions]
        return [str(e), str(offsets[e]), str(count), str(bases[e]), *ranges]

    title = "base row of expert e = align128(first row + 127*e); the buffer ends at align128(rows + 127*experts)"
    return title + "\n" + _table(header, _sample(len(bases), TEXT_EXPERTS, ()), line)


def _offset_table(plan: LayoutPlan) -> str:
    """Byte offset of every (row, K-block), padded columns in parentheses."""
    # Offsets of large buffers are long: fewer columns.
    blocks = _sample(plan.buffer_blocks, min(TEXT_BLOCKS, 100 // (len(str(plan.size)) + 4)), ())
    label = ["row", "scale row"] if plan.grouped else ["row"]
    header = label + ["..." if b is None else f"b={b}" for b in blocks]

    def cell(scale_row: int, b: int | None) -> str:
        if b is None:
            return "..."
        offset = plan.layout.offset(scale_row, b, plan.blocks)
        return f"({offset})" if b >= plan.blocks else str(offset)

    def line(m: int) -> list[str]:
        scale_row = plan.scale_row_of(m)
        place = [str(m), str(scale_row)] if plan.grouped else [str(m)]
        return [*place, *(cell(scale_row, b) for b in blocks)]

    note = "" if plan.buffer_blocks == plan.blocks else "; (n) is a padded column, 0x00"
    rows = _sample(plan.rows, TEXT_ROWS, _landmarks(plan))
    return f"byte offset of the scale of (row, K-block){note}\n" + _table(header, rows, line)


def _landmarks(plan: LayoutPlan) -> list[int]:
    """Rows on both sides of every place where the order of bytes changes its step, and of every expert's start."""
    if plan.grouped:
        edges = plan.offsets[1:-1].tolist()
    else:
        step, edges = 1, []
        for radix in plan.layout.row_shape:
            step *= radix
            edges.append(step)
    return [row for edge in edges for row in (edge - 1, edge)]


def _byte_table(plan: LayoutPlan) -> str:
    """The (row, K-block) that lives in each byte of the first tile, LINE_BYTES a line."""
    size = min(plan.size, max(plan.layout.atom_bytes, 4 * LINE_BYTES))
    owners, shown = plan.owners(0, size), _sample(-(-size // LINE_BYTES), 8, ())
    header = ["byte", *(f"+{i}" for i in range(min(LINE_BYTES, size)))]

    def line(index: int) -> list[str]:
        first = index * LINE_BYTES
        return [str(first), *(_owner(plan, *owner) for owner in owners[first : first + LINE_BYTES])]

    what = f"the first {size} of {plan.size} bytes" if size < plan.size else "the buffer"
    return f"row.K-block in each byte of {what}; 0 padded column, - padded row\n" + _table(header, shown, line)


def _owner(plan: LayoutPlan, scale_row: int, block: int) -> str:
    """The label of a byte: row.K-block, 0 for a padded column, - for a padded row."""
    row = plan.row_of(scale_row)
    if row is None:
        return "-"
    return f"{row}.{block}" if block < plan.blocks else "0"


def _sample(count: int, limit: int, landmarks: Sequence[int]) -> list[int | None]:
    """All of range(count), or its ends and the first landmarks, with None where something is left out."""
    if count <= limit:
        return list(range(count))
    kept = {*range(3), *range(count - 2, count)}
    for index in landmarks or range(3, limit - 2):
        if len(kept) < limit and index < count:
            kept.add(index)
    shown: list[int | None] = []
    for index in sorted(kept):
        if shown and shown[-1] is not None and index != shown[-1] + 1:
            shown.append(None)
        shown.append(index)
    return shown


def _table(header: list[str], shown: Sequence[int | None], cells: Callable[[int], list[str]]) -> str:
    """Right-aligned columns: the header, and a line for each index shown, dots for None."""
    lines = [header, *(["..."] * len(header) if index is None else cells(index) for index in shown)]
    columns = max(len(line) for line in lines)
    widths = [max(len(line[c]) for line in lines if c < len(line)) for c in range(columns)]
    return "\n".join("  " + "  ".join(cell.rjust(widths[c]) for c, cell in enumerate(line)) for line in lines)
