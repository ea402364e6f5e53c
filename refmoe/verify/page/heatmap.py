"""A mismatch map as a picture: cells as a tiny PNG, axes and borders as SVG in the page's own colours.

  weight row 0 ................ 575
token 0 +--------+--------+-----    a thin line where a tile begins,
        |########|        |         a thick one where an expert's rows begin;
expert 1+========+========+=====    a cell is the redder the larger the share of
        |        |        |         its elements that differ
"""

from __future__ import annotations

import base64
import io
import itertools

import numpy as np
from markupsafe import Markup

from refmoe.verify.report import MismatchMapRecord

__all__ = ["extent_text", "heatmap_svg"]

#: Pixels: of the whole picture at most, and of a cell.
WIDTH, HEIGHT, LARGEST_CELL = 440, 260, 18

#: Borders nearer than this, in pixels, would hide what they border.
NEAREST_BORDER = 5

#: From few to many, readable on black and on white.
_FEW, _MANY = np.array([247, 183, 51]), np.array([190, 18, 60])


def extent_text(record: MismatchMapRecord) -> str:
    """ "codes: 3,168 differ, all within rows 0-4 of 5 and K-blocks 6-89 of 90"."""
    total = sum(map(sum, record.counts))
    rows = _span(record.row_axis, record.first_row, record.last_row, record.rows)
    columns = _span(record.column_axis, record.first_column, record.last_column, record.columns)
    return f"{record.stage}: {total:,} differ, all within {rows} and {columns}"


def _span(axis: str, first: int, last: int, size: int) -> str:
    where = f"{axis} {first:,}" if first == last else f"{axis}s {first:,}\u2013{last:,}"
    return f"{where} of {size:,}"


def heatmap_svg(record: MismatchMapRecord) -> Markup:
    """The map of one stage as an SVG element."""
    cells = len(record.counts[0]), len(record.counts)
    width = max(min(WIDTH, cells[0] * LARGEST_CELL), 40)
    height = max(min(HEIGHT, cells[1] * LARGEST_CELL), 16)
    tiles = _tile_lines(record, width, height)
    experts = _expert_lines(record, height)
    title = f"{extent_text(record)}; a cell spans {record.row_step} x {record.column_step}"
    # Labels lie left of the picture and above it.
    parts = [
        Markup('<svg class="map" viewBox="{} {} {} {}" width="{}" height="{}" role="img"><title>{}</title>').format(
            -62, -22, width + 70, height + 40, width + 70, height + 40, title
        ),
        Markup('<rect class="ground" width="{}" height="{}"/>').format(width, height),
        Markup('<image href="{}" width="{}" height="{}" preserveAspectRatio="none"/>').format(
            _png(record), width, height
        ),
        *(Markup('<path class="tile" d="{}"/>').format(line) for line in tiles),
        *(Markup('<path class="expert" d="M0 {0}H{1}"/>').format(_number(y), width) for y in experts),
        Markup('<rect class="frame" width="{}" height="{}"/>').format(width, height),
        Markup('<text x="0" y="-7">{} 0</text>').format(record.column_axis),
        Markup('<text x="{}" y="-7" text-anchor="end">{:,}</text>').format(width, record.columns - 1),
        Markup('<text x="-5" y="9" text-anchor="end">{} 0</text>').format(record.row_axis),
    ]
    if record.rows > 1 and height >= 24:
        parts.append(Markup('<text x="-5" y="{}" text-anchor="end">{:,}</text>').format(height, record.rows - 1))
    parts.append(Markup('<text class="key" x="0" y="{}">{}</text>').format(height + 14, _key(record, bool(tiles))))
    return Markup("").join([*parts, Markup("</svg>")])


def _key(record: MismatchMapRecord, drawn: bool) -> str:
    words = [record.stage]
    if record.tile is not None:
        note = "" if drawn else ", too small to draw"
        words.append(f"tile {record.tile[1]} x {record.tile[0]} {record.row_axis}s{note}")
    if len(record.expert_rows) > 1:
        words.append("thick line: next expert")
    return "; ".join(words)


def _png(record: MismatchMapRecord) -> str:
    """The cells as a data URL: transparent where nothing differs, else by the share that does, in steps of log2."""
    from matplotlib.image import imsave

    counts = np.array(record.counts, np.float64)
    share = np.log2(1 + counts) / np.log2(1 + max(float(counts.max()), 1.0))
    pixels = np.zeros((*counts.shape, 4), np.uint8)
    pixels[..., :3] = _FEW + share[..., None] * (_MANY - _FEW)
    pixels[..., 3] = np.where(counts > 0, 255, 0)
    buffer = io.BytesIO()
    imsave(buffer, pixels, format="png", metadata={"Software": None})
    return "data:image/png;base64," + base64.b64encode(buffer.getvalue()).decode()


def _expert_lines(record: MismatchMapRecord, height: float) -> list[float]:
    starts = sorted({row for row in record.expert_rows if 0 < row < record.rows})
    return _apart([row / record.rows * height for row in starts])


def _tile_lines(record: MismatchMapRecord, width: float, height: float) -> list[str]:
    """SVG paths of the borders of tiles; tiles begin anew at every expert's first row."""
    if record.tile is None:
        return []
    rows, columns = record.tile
    across = [column / record.columns * width for column in range(columns, record.columns, columns)]
    starts = [*sorted({*record.expert_rows}), record.rows]
    down = [
        row / record.rows * height
        for first, end in itertools.pairwise(starts)
        for row in range(first + rows, end, rows)
    ]
    lines = [f"M{_number(x)} 0V{_number(height)}" for x in across] if _fits(across) else []
    return lines + ([f"M0 {_number(y)}H{_number(width)}" for y in down] if _fits(down) else [])


def _fits(places: list[float]) -> bool:
    return len(_apart(places)) == len(places)


def _apart(places: list[float]) -> list[float]:
    """Those of ascending places that are far enough from the one before."""
    kept: list[float] = []
    for place in places:
        if not kept or place - kept[-1] >= NEAREST_BORDER:
            kept.append(place)
    return kept


def _number(value: float) -> str:
    return f"{value:.1f}".removesuffix(".0")
