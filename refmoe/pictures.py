"""Pictures in .png or .svg files; the same drawing gives the same bytes.

Imported only when a picture is asked for, so that nobody else waits for matplotlib.
"""

from __future__ import annotations

import contextlib
import io
import os
from collections.abc import Iterator, Mapping
from pathlib import Path
from types import MappingProxyType
from typing import Any

import matplotlib
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure

from refmoe.errors import ArgumentError, describe
from refmoe.files import write_atomic

NO_TEXTS: Mapping[str, str] = MappingProxyType({})
FORMATS = (".png", ".svg")


def picture_path(path: str | os.PathLike[str]) -> Path:
    """`path`, whose suffix says the format.

    Raises:
        ArgumentError: it ends in neither .png nor .svg.
    """
    target = Path(path)
    if target.suffix.lower() not in FORMATS:
        raise ArgumentError("path", describe(str(path)), "a name that ends in " + " or ".join(FORMATS))
    return target


@contextlib.contextmanager
def picture(
    target: Path,
    width: float,
    height: float,
    *,
    dpi: int,
    style: dict[str, Any],
    texts: Mapping[str, str] = NO_TEXTS,
) -> Iterator[Figure]:
    """A white figure to draw on; when the block ends it replaces the file `target` atomically.

    Args:
        target: as `picture_path` returns it.
        width: inches.
        height: inches.
        dpi: pixels an inch of a .png file.
        style: matplotlib's parameters while drawing, the font size for example.
        texts: what a .png file says of itself, by keyword; of an .svg file, keywords that matplotlib knows.

    Raises:
        OSError: the file cannot be written.
    """
    # No date in the file, and no random SVG ids.
    fixed: dict[Any, Any] = {"font.family": "DejaVu Sans", "svg.hashsalt": "refmoe", **style}
    with matplotlib.rc_context(fixed):
        figure = Figure(figsize=(width, height), facecolor="white")
        FigureCanvasAgg(figure)
        yield figure
        stream = io.BytesIO()
        suffix = target.suffix.lower()[1:]
        metadata = {**({"Date": None} if suffix == "svg" else {"Software": None}), **texts}
        figure.savefig(stream, format=suffix, dpi=dpi, metadata=metadata)
    write_atomic(target, stream.getvalue())
