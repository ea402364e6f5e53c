"""A scale layout made visible: as text for the terminal, as a picture for people."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path

from refmoe.errors import ArgumentError, describe
from refmoe.files import write_atomic
from refmoe.views.layout_plan import LINE_BYTES, Plan, plan_layout, summary

__all__ = ["render_picture", "render_text"]

#: What fits a terminal of 120 columns.
TEXT_BLOCKS = 12
TEXT_ROWS = 24
TEXT_EXPERTS = 12
PICTURE_FORMATS = (".png", ".svg")


def render_text(layout: str, rows: int, blocks: int, *, offsets: Sequence[int] | None = None) -> str:
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
    parts = [summary(plan)]
    if plan.grouped:
        parts.append(_expert_table(plan))
    if plan.size:
        parts += [_offset_table(plan), _byte_table(plan)]
    return "\n\n".join(parts) + "\n"


def render_picture(
    layout: str, rows: int, blocks: int, path: str | os.PathLike[str], *, offsets: Sequence[int] | None = None
) -> Path:
    """Draw the matrix and the buffer side by side in the same colours; PNG or SVG by the suffix of `path`.

    Args:
        layout: "128x4", "8x4" or "linear".
        rows: rows of the matrix, at least 1.
        blocks: K-blocks of a row, at least 1.
        path: the file, replaced atomically.
        offsets: as for `render_text`.

    Returns:
        The path written.

    Raises:
        ArgumentError: as `render_text`, nothing to draw, or another suffix.
        OSError: the file cannot be written.
    """
    plan = plan_layout(layout, rows, blocks, offsets)
    target = Path(path)
    if target.suffix.lower() not in PICTURE_FORMATS:
        raise ArgumentError("path", describe(str(path)), "a name that ends in " + " or ".join(PICTURE_FORMATS))
    for argument, count in (("rows", plan.rows), ("blocks", plan.blocks)):
        if not count:
            raise ArgumentError(argument, "0, an empty picture", "at least 1")
    # matplotlib takes a second to import: only now.
    from refmoe.views.layout_picture import draw

    return write_atomic(target, draw(plan, target.suffix.lower()[1:]))


def _expert_table(plan: Plan) -> str:
    bases, offsets = plan.bases.tolist(), plan.offsets.tolist()
    ends = [*bases[1:], plan.buffer_rows]
    header = ["expert", "first row", "rows", "base row", "scale rows", "padding up to the next base"]
    table = []
    for e in _sample(len(bases), TEXT_EXPERTS, ()):
        if e is None:
            table.append(["..."] * len(header))
            continue
        count = offsets[e + 1] - offsets[e]
        used, free = bases[e] + count, ends[e]
        ranges = [
            f"{start}..{stop - 1}" if start < stop else "none" for start, stop in ((bases[e], used), (used, free))
        ]
        table.append([str(e), str(offsets[e]), str(count), str(bases[e]), *ranges])
    title = "base row of expert e = align128(first row + 127*e); the buffer ends at align128(rows + 127*experts)"
    return title + "\n" + _table([header, *table])


def _range_text(start: int, stop: int) -> str:
    return f"{start}..{stop - 1}" if start < stop else "none"


def _offset_table(plan: Plan) -> str:
    """Byte offset of every (row, K-block), padded columns in parentheses."""
    # Offsets of large buffers are long: fewer columns.
    blocks = _sample(plan.buffer_blocks, min(TEXT_BLOCKS, 100 // (len(str(plan.size)) + 4)), ())
    label = ["row", "scale row"] if plan.grouped else ["row"]
    header = label + ["..." if b is None else f"b={b}" for b in blocks]
    lines = [header]
    for m in _sample(plan.rows, TEXT_ROWS, _landmarks(plan)):
        if m is None:
            lines.append(["..."] * len(header))
            continue
        scale_row = plan.scale_row_of(m)
        cells = [str(m), str(scale_row)] if plan.grouped else [str(m)]
        for b in blocks:
            if b is None:
                cells.append("...")
                continue
            offset = plan.layout.offset(scale_row, b, plan.blocks)
            cells.append(f"({offset})" if b >= plan.blocks else str(offset))
        lines.append(cells)
    note = "" if plan.buffer_blocks == plan.blocks else "; (n) is a padded column, 0x00"
    return f"byte offset of the scale of (row, K-block){note}\n" + _table(lines)


def _landmarks(plan: Plan) -> list[int]:
    """Rows on both sides of every place where the order of bytes changes its step, and of every expert's start."""
    if plan.grouped:
        edges = plan.offsets[1:-1].tolist()
    else:
        step, edges = 1, []
        for radix in plan.layout.row_shape:
            step *= radix
            edges.append(step)
    return [row for edge in edges for row in (edge - 1, edge)]


def _byte_table(plan: Plan) -> str:
    """The (row, K-block) that lives in each byte of the first tile, LINE_BYTES a line."""
    size = min(plan.size, max(plan.layout.atom_bytes, 4 * LINE_BYTES))
    owners = plan.owners(0, size)
    lines = [["byte", *(f"+{i}" for i in range(min(LINE_BYTES, size)))]]
    for line in _sample(-(-size // LINE_BYTES), 8, ()):
        if line is None:
            lines.append(["..."] * len(lines[0]))
            continue
        here = owners[line * LINE_BYTES : (line + 1) * LINE_BYTES]
        lines.append([str(line * LINE_BYTES), *(_owner(plan, *owner) or "-" for owner in here)])
    what = f"the first {size} of {plan.size} bytes" if size < plan.size else "the buffer"
    return f"row.K-block in each byte of {what}; 0 padded column, - padded row\n" + _table(lines)


def _owner(plan: Plan, scale_row: int, block: int) -> str | None:
    """The label of a byte: row.K-block, 0 for a padded column, None for a padded row."""
    row = plan.row_of(scale_row)
    if row is None:
        return None
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


def _table(lines: Sequence[Sequence[str]]) -> str:
    """Right-aligned columns."""
    columns = max(len(line) for line in lines)
    widths = [max(len(line[c]) for line in lines if c < len(line)) for c in range(columns)]
    return "\n".join("  " + "  ".join(cell.rjust(widths[c]) for c, cell in enumerate(line)) for line in lines)
