"""A scale layout as a picture: the matrix, and the buffer byte by byte in the same colours. Sizes are inches."""

from __future__ import annotations

import os
from collections.abc import Sequence
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.colors import to_rgb
from matplotlib.patches import Patch, Rectangle

from refmoe.errors import ArgumentError
from refmoe.pictures import picture, picture_path
from refmoe.views.layout import LINE_BYTES, LayoutPlan, counted, layout_summary, plan_layout

#: The lines of one panel are a whole 128x4 tile.
PANEL_LINES = 32
PANELS = 4
CELL_WIDTH, CELL_HEIGHT = 0.31, 0.15
PANEL_WIDTH, PANEL_BYTES = LINE_BYTES * CELL_WIDTH, LINE_BYTES * PANEL_LINES
MATRIX_ROWS, GROUPED_MATRIX_ROWS, MATRIX_BLOCKS = 384, 1024, 16
STRIP_EXPERTS = 16
BANDS = ("#3b6ea8", "#d9772b", "#4a9a58", "#8a63ab", "#b5473f", "#3a9ba3", "#a0803a", "#c2659a")
PADDED_COLUMN, PADDED_ROW, INK, QUIET = "#e9e9e9", "#ffffff", "#222222", "#777777"
COLUMN_HATCH, ROW_HATCH = "....", "////"


def draw_layout(
    layout: str, rows: int, blocks: int, path: str | os.PathLike[str], *, offsets: Sequence[int] | None = None
) -> Path:
    """Draw the matrix and the buffer side by side in the same colours; PNG or SVG by the suffix of `path`.

    Args:
        layout: "128x4", "8x4" or "linear".
        rows: rows of the matrix, at least 1.
        blocks: K-blocks of a row, at least 1.
        path: the file, replaced atomically.
        offsets: as for `layout_text`.

    Returns:
        The path written.

    Raises:
        ArgumentError: as `layout_text`, nothing to draw, or another suffix.
        OSError: the file cannot be written.
    """
    plan = plan_layout(layout, rows, blocks, offsets)
    target = picture_path(path)
    for argument, count in (("rows", plan.rows), ("blocks", plan.blocks)):
        if not count:
            raise ArgumentError(argument, "0, an empty picture", "at least 1")
    panels = _chosen_panels(plan)
    across = min(2, len(panels))
    down = -(-len(panels) // across)
    lines = layout_summary(plan).split("\n")
    left, gap, head, foot = 0.75, 0.75, 0.75 + 0.16 * len(lines), 1.05
    strip = 1.0 if plan.grouped else 0.0
    matrix_width = max(1.5, 0.26 * min(plan.buffer_blocks, MATRIX_BLOCKS))
    panel_height = CELL_HEIGHT * _panel_lines(plan)
    body = down * panel_height + (down - 1) * gap
    width = max(left + matrix_width + across * (gap + PANEL_WIDTH) + 0.3, 9.0)
    height = head + body + foot + strip
    style = {"font.size": 8, "hatch.linewidth": 0.4}
    with picture(target, width, height, dpi=150, style=style) as figure:

        def axes(x: float, y: float, w: float, h: float) -> Axes:
            return figure.add_axes((x / width, 1 - (y + h) / height, w / width, h / height))

        figure.text(left / width, 1 - 0.18 / height, lines[0], fontsize=13, weight="bold", va="top", color=INK)
        details = "\n".join(lines[1:])
        figure.text(left / width, 1 - 0.42 / height, details, fontsize=8, va="top", color=QUIET, linespacing=1.35)
        _draw_matrix(plan, axes(left, head, matrix_width, body))
        for index, panel in enumerate(panels):
            x = left + matrix_width + gap + index % across * (PANEL_WIDTH + gap)
            y = head + index // across * (panel_height + gap)
            _draw_panel(plan, panel, axes(x, y, PANEL_WIDTH, panel_height))
        if plan.grouped:
            _draw_strip(plan, axes(left, head + body + 0.6, width - left - 0.3, 0.3))
        _draw_legend(plan, axes(left, height - 0.72, width - left - 0.3, 0.62))
    return target


def _panel_lines(plan: LayoutPlan) -> int:
    """Lines that a panel has room for."""
    return min(PANEL_LINES, max(-(-plan.size // LINE_BYTES), 8))


def _chosen_panels(plan: LayoutPlan) -> list[int]:
    """The panels that show most: the first tile and its neighbours of the matrix, or of each expert in use."""
    tile = plan.layout
    rows = np.diff(plan.offsets)
    wanted: list[int] = []
    for row, block in ((0, 0), (0, tile.column_atom), (tile.row_atom, 0), (tile.row_atom, tile.column_atom)):
        inside = plan.bases[rows > row] + row if block < plan.buffer_blocks else plan.bases[:0]
        wanted += (tile.offset(inside, block, plan.blocks) // PANEL_BYTES).tolist()
    # Small tiles share a panel; then the panels that follow are shown as well.
    following = range(0 if plan.grouped else -(-plan.size // PANEL_BYTES))
    return sorted(list(dict.fromkeys([*wanted, *following[:PANELS]]))[:PANELS])


def _colour(plan: LayoutPlan, scale_row: int, block: int) -> tuple[float, float, float]:
    """Hue by the part of the tile that the row is in, lighter with each K-block of the tile."""
    row_shape = plan.layout.row_shape
    band = scale_row % plan.layout.row_atom // (plan.layout.row_atom // row_shape[-1])
    if plan.layout.row_atom == 1:
        band = scale_row % 4
    light = 0.16 * (block % 4)
    red, green, blue = (value + (1 - value) * light for value in to_rgb(BANDS[band]))
    return red, green, blue


def _draw_matrix(plan: LayoutPlan, ax: Axes) -> None:
    """The logical matrix, one pixel a scale."""
    rows = min(plan.buffer_rows, GROUPED_MATRIX_ROWS if plan.grouped else MATRIX_ROWS)
    blocks = min(plan.buffer_blocks, MATRIX_BLOCKS)
    real = np.array([plan.row_of(row) is not None for row in range(rows)])
    image = np.empty((rows, blocks, 3))
    image[:] = to_rgb(PADDED_ROW)
    for row in np.flatnonzero(real).tolist():
        for block in range(blocks):
            padded = block >= plan.blocks
            image[row, block] = to_rgb(PADDED_COLUMN) if padded else _colour(plan, row, block)
    ax.imshow(image, aspect="auto", interpolation="nearest", extent=(0, blocks, rows, 0))

    # Runs of real and of padded rows, hatched as wholes: a hatch in each cell would be a grey blur.
    edges = [0, *(np.flatnonzero(np.diff(real)) + 1).tolist(), rows]
    for start, stop in pairwise(edges):
        if not real[start]:
            ax.add_patch(Rectangle((0, start), blocks, stop - start, fill=False, hatch=ROW_HATCH, ec="#b0b0b0", lw=0))
        elif plan.blocks < blocks:
            place, extent = (plan.blocks, start), (blocks - plan.blocks, stop - start)
            ax.add_patch(Rectangle(place, *extent, fill=False, hatch=COLUMN_HATCH, ec="#909090", lw=0))

    tile = plan.layout
    if tile.row_atom > 1:
        weight = 0.9 if tile.row_atom >= 32 else 0.4
        # More lines than this would hide the matrix.
        for row in range(0, rows + 1, tile.row_atom) if rows <= 64 * tile.row_atom else ():
            ax.axhline(row, color=INK, lw=weight)
        for block in range(0, blocks + 1, tile.column_atom):
            ax.axvline(block, color=INK, lw=weight)
    if plan.grouped:
        bases = [int(base) for base in plan.bases if base < rows]
        ax.hlines(bases, 0, blocks, color=INK, lw=0.9)
        ax.set_yticks(bases, [f"expert {e}\nbase {base}" for e, base in enumerate(bases)], fontsize=6)
    else:
        step = next(step for step in (1, 4, 8, 32) if rows <= 16 * step or step == 32)
        ax.set_yticks(range(0, rows + 1, step), [str(row) for row in range(0, rows + 1, step)], fontsize=7)
    step = 1 if blocks <= 8 else 4
    ax.set_xticks(np.arange(0, blocks, step) + 0.5, [f"b={b}" for b in range(0, blocks, step)], fontsize=6)
    ax.xaxis.tick_top()
    ax.set_title("matrix, row by K-block", fontsize=9, weight="bold", pad=6)
    if rows < plan.buffer_rows or blocks < plan.buffer_blocks:
        cut = f"the first {rows} of {plan.buffer_rows} rows,\n{blocks} of {plan.buffer_blocks} K-blocks"
        ax.set_xlabel(cut, fontsize=7, color=QUIET)
    _plain(ax)


def _draw_panel(plan: LayoutPlan, panel: int, ax: Axes) -> None:
    """A stretch of the buffer, one labelled cell a byte."""
    first = panel * PANEL_BYTES
    last = min(plan.size, first + PANEL_BYTES)
    room = _panel_lines(plan)
    image = np.ones((room, LINE_BYTES, 3))
    size: dict[str, Any] = {"fontsize": 5.2, "ha": "center", "va": "center"}
    for index, (scale_row, block) in enumerate(plan.owners(first, last)):
        line, column = divmod(index, LINE_BYTES)
        row = plan.row_of(scale_row)
        if row is None:
            ax.add_patch(Rectangle((column, line), 1, 1, fill=False, hatch=ROW_HATCH, ec="#c4c4c4", lw=0))
        elif block >= plan.blocks:
            image[line, column] = to_rgb(PADDED_COLUMN)
            ax.add_patch(Rectangle((column, line), 1, 1, fill=False, hatch=COLUMN_HATCH, ec="#b8b8b8", lw=0))
            ax.text(column + 0.5, line + 0.5, "0", color=QUIET, **size)
        else:
            image[line, column] = _colour(plan, scale_row, block)
            ink = "white" if block % 4 < 2 else INK
            ax.text(column + 0.5, line + 0.5, f"{row}.{block}", color=ink, **size)
    ax.imshow(image, aspect="auto", interpolation="nearest", extent=(0, LINE_BYTES, room, 0))

    lines = -(-(last - first) // LINE_BYTES)
    ax.vlines(range(1, LINE_BYTES), 0, lines, color="white", lw=0.5)
    ax.hlines(range(1, lines), 0, LINE_BYTES, color="white", lw=0.5)
    if plan.layout.column_atom == 4:
        ax.vlines(range(0, LINE_BYTES, 4), 0, lines, color=INK, lw=0.4)
    if plan.layout.row_atom > 1:
        tile_lines = plan.layout.atom_bytes // LINE_BYTES
        ax.hlines(range(0, lines + 1, tile_lines), 0, LINE_BYTES, color=INK, lw=0.9, clip_on=False)
    ax.set_ylim(room, 0)
    ax.set_xlim(0, LINE_BYTES)
    ax.set_xticks(np.arange(LINE_BYTES) + 0.5, [f"+{i}" for i in range(LINE_BYTES)], fontsize=6)
    ax.xaxis.tick_top()
    marks = range(0, lines, 4)
    ax.set_yticks([mark + 0.5 for mark in marks], [str(first + mark * LINE_BYTES) for mark in marks], fontsize=6)
    ax.set_title(f"buffer, bytes {first}..{last - 1}{_panel_owner(plan, first)}", fontsize=9, weight="bold", pad=6)
    _plain(ax)


def _panel_owner(plan: LayoutPlan, first: int) -> str:
    """The expert to whom the byte belongs, for the title of a panel."""
    if not plan.grouped:
        return ""
    expert = plan.expert_of(plan.owners(first, first + plan.layout.atom_bytes)[0][0])
    return f"  expert {expert}, base row {plan.bases[expert]}"


def _draw_strip(plan: LayoutPlan, ax: Axes) -> None:
    """All scale rows in one line: where each expert starts, what it uses, what is padding."""
    bases, offsets = plan.bases.tolist(), plan.offsets.tolist()
    shown = min(len(bases), STRIP_EXPERTS)
    end = plan.buffer_rows if shown == len(bases) else bases[shown]
    ax.add_patch(Rectangle((0, 0), end, 1, fill=False, hatch=ROW_HATCH, ec="#b0b0b0", lw=0))
    for expert in range(shown):
        count = offsets[expert + 1] - offsets[expert]
        colour = BANDS[expert % len(BANDS)]
        ax.add_patch(Rectangle((bases[expert], 0), count, 1, color=colour, lw=0))
        ax.axvline(bases[expert], color=INK, lw=1)
        label = f"{expert}: {counted(count, 'row')}"
        ax.text(bases[expert], 1.12, label, fontsize=6.5, ha="left", va="bottom", color=colour if count else QUIET)
    ax.set_xlim(0, end)
    ax.set_ylim(0, 1)
    ax.set_yticks([])
    ax.set_xticks([*bases[:shown], end])
    ax.tick_params(labelsize=6)
    more = "" if shown == len(bases) else f", {len(bases) - shown} more experts follow"
    ax.set_xlabel(f"scale rows by expert: base = align128(first row + 127*expert){more}", fontsize=7.5, labelpad=2)
    _plain(ax)


def _draw_legend(plan: LayoutPlan, ax: Axes) -> None:
    tile = plan.layout
    if tile.row_atom == 1:
        names = [f"m%4 = {band}" for band in range(4)]
    elif len(tile.row_shape) == 1:
        names = [f"m%{tile.row_atom} = {band}" for band in range(tile.row_atom)]
    else:
        part = tile.row_atom // tile.row_shape[-1]
        names = [f"m%{tile.row_atom} in {part * i}..{part * i + part - 1}" for i in range(tile.row_shape[-1])]
    padding = [
        Patch(fc=PADDED_COLUMN, hatch=COLUMN_HATCH, ec="#909090", lw=0.4, label="padded column, 0x00"),
        Patch(fc=PADDED_ROW, hatch=ROW_HATCH, ec="#909090", lw=0.4, label="padded row, not written"),
    ]
    hues = [Patch(color=BANDS[band], label=name) for band, name in enumerate(names)]
    look: dict[str, Any] = {"frameon": False, "fontsize": 7.5, "borderpad": 0, "borderaxespad": 0, "handlelength": 1.8}
    ax.add_artist(ax.legend(handles=hues, loc="upper left", ncols=len(hues), columnspacing=1.3, **look))
    ax.legend(handles=padding, loc="center left", ncols=2, columnspacing=1.3, **look)
    cell = "a cell is one byte, labelled row.K-block; hue: the row's place in its tile; lighter: the next K-block"
    ax.text(0, 0, cell, fontsize=7.5, color=QUIET, va="bottom", transform=ax.transAxes)
    ax.axis("off")


def _plain(ax: Any) -> None:
    ax.tick_params(length=0, pad=2, colors=QUIET)
    for spine in ax.spines.values():
        spine.set_visible(False)
