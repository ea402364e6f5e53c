"""A mismatch map as a picture: cells as a tiny PNG, axes and borders as SVG in the page's own colours.

  weight row 0 ................ 575
token 0 +--------+--------+-----    a thin line where a tile begins,
        |########|        |         a thick one where an expert's rows begin;
expert 1+========+========+=====    a cell is the redder the larger the share of
        |        |        |         its elements that differ
"""

from __future__ import annotations

import base64
import itertools
import struct
import zlib

import numpy as np
import numpy.typing as npt
from markupsafe import Markup

from refmoe.reports.parity import MismatchMapRecord

#: Pixels: of the whole picture at most, and of a cell.
WIDTH, HEIGHT, LARGEST_CELL = 440, 260, 18

#: Of the picture at least, so that the labels of its ends do not meet.
NARROWEST = 120

#: Of the mark that stands for a line, in pixels, where lines would hide what they border.
MARK = 7

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
    width, height = _size(record)
    tiles = _drawn_tiles(record, width, height)
    experts = _expert_lines(record, height)
    reach = width if _fits(experts) else MARK
    # Labels lie left of the picture and above it.
    parts = [
        Markup('<svg class="map" viewBox="{} {} {} {}" width="{}" height="{}" role="img"><title>{}</title>').format(
            -82, -22, width + 90, height + 28, width + 90, height + 28, extent_text(record)
        ),
        Markup('<rect class="ground" width="{}" height="{}"/>').format(width, height),
        Markup('<image href="{}" width="{}" height="{}" preserveAspectRatio="none"/>').format(
            _png(record), width, height
        ),
        *(Markup('<path class="tile" d="{}"/>').format(line) for line in tiles),
        *(Markup('<path class="expert" d="M0 {0}H{1}"/>').format(_number(y), reach) for y in experts),
        Markup('<rect class="frame" width="{}" height="{}"/>').format(width, height),
        Markup('<text x="0" y="-7">{} 0</text>').format(record.column_axis),
        Markup('<text x="{}" y="-7" text-anchor="end">{:,}</text>').format(width, record.columns - 1),
        Markup('<text x="-5" y="9" text-anchor="end">{} 0</text>').format(record.row_axis),
    ]
    if record.rows > 1 and height >= 24:
        parts.append(Markup('<text x="-5" y="{}" text-anchor="end">{:,}</text>').format(height, record.rows - 1))
    return Markup("").join([*parts, Markup("</svg>")])


def key_text(record: MismatchMapRecord) -> str:
    """What the lines of the picture are, and how much a cell spans; "" if there is nothing to say."""
    words = []
    if record.row_step * record.column_step > 1:
        words.append(f"a cell is {_area(record, record.row_step, record.column_step)}")
    if record.tile is not None:
        lines = _tile_lines(record, *_size(record))
        note = "" if all(map(_fits, lines)) else ", partly too small to draw"
        words.append(f"a tile is {_area(record, *record.tile)}{note}")
    if experts := _expert_lines(record, _size(record)[1]):
        words.append(f"a thick {'line' if _fits(experts) else 'mark'} is where an expert begins")
    return "; ".join(words)


def _area(record: MismatchMapRecord, rows: int, columns: int) -> str:
    """ "8 tokens x 256 weight rows"."""
    plural = ("" if count == 1 else "s" for count in (rows, columns))
    return f"{rows} {record.row_axis}{next(plural)} x {columns} {record.column_axis}{next(plural)}"


def _size(record: MismatchMapRecord) -> tuple[int, int]:
    """Width and height of the picture in pixels, axes left out."""
    cells = len(record.counts[0]), len(record.counts)
    return max(min(WIDTH, cells[0] * LARGEST_CELL), NARROWEST), max(min(HEIGHT, cells[1] * LARGEST_CELL), 16)


def _png(record: MismatchMapRecord) -> str:
    """The cells as a data URL: transparent where nothing differs, else by the share that does."""
    counts = np.array(record.counts, np.float64)
    # The last cells may span fewer rows or columns.
    rows = np.minimum(record.row_step, record.rows - np.arange(counts.shape[0]) * record.row_step)
    columns = np.minimum(record.column_step, record.columns - np.arange(counts.shape[1]) * record.column_step)
    density = counts / (rows[:, None] * columns[None, :])
    share = np.sqrt(density / max(float(density.max()), 1e-300))
    pixels = np.zeros((*counts.shape, 4), np.uint8)
    pixels[..., :3] = _FEW + share[..., None] * (_MANY - _FEW)
    pixels[..., 3] = np.where(counts > 0, 255, 0)
    return "data:image/png;base64," + base64.b64encode(_png_file(pixels)).decode()


def _png_file(pixels: npt.NDArray[np.uint8]) -> bytes:
    """A PNG of (height, width, 4) pixels: red, green, blue, opacity."""
    height, width, _ = pixels.shape
    rows = np.zeros((height, 1 + 4 * width), np.uint8)  # each begins with its filter: 0, none
    rows[:, 1:] = pixels.reshape(height, -1)
    header = struct.pack(">IIBBBBB", width, height, 8, 6, 0, 0, 0)  # 8 bits each, of four colours; not interlaced
    chunks = ((b"IHDR", header), (b"IDAT", zlib.compress(rows.tobytes(), 9)), (b"IEND", b""))
    return b"\x89PNG\r\n\x1a\n" + b"".join(
        struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data)) for kind, data in chunks
    )


def _expert_lines(record: MismatchMapRecord, height: float) -> list[float]:
    starts = sorted({row for row in record.expert_rows if 0 < row < record.rows})
    return [row / record.rows * height for row in starts]


def _tile_lines(record: MismatchMapRecord, width: float, height: float) -> tuple[list[float], list[float]]:
    """Where borders of tiles lie, across and down; tiles begin anew at every expert's first row."""
    if record.tile is None:
        return [], []
    rows, columns = record.tile
    across = [column / record.columns * width for column in range(columns, record.columns, columns)]
    starts = [*sorted({*record.expert_rows}), record.rows]
    tops = [row for first, end in itertools.pairwise(starts) for row in range(first + rows, end, rows)]
    return across, [row / record.rows * height for row in tops]


def _drawn_tiles(record: MismatchMapRecord, width: float, height: float) -> list[str]:
    """SVG paths of the borders of tiles that are far enough apart to be seen."""
    across, down = _tile_lines(record, width, height)
    lines = [f"M{_number(x)} 0V{_number(height)}" for x in across] if _fits(across) else []
    return lines + ([f"M0 {_number(y)}H{_number(width)}" for y in down] if _fits(down) else [])


def _fits(places: list[float]) -> bool:
    """Whether ascending places are far enough apart for lines."""
    return all(right - left >= NEAREST_BORDER for left, right in itertools.pairwise(places))


def _number(value: float) -> str:
    return f"{value:.1f}".removesuffix(".0")
