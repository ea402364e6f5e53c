"""Conversions as a picture: what they cost by tensor and by mode, and why. Sizes are inches."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path

import numpy as np
from matplotlib.axes import Axes

from refmoe.pictures import picture, picture_path
from refmoe.policies.convert import Conversion, loss_by_significand
from refmoe.policies.convert_inputs import Source

WIDTH, HEIGHT = 11.0, 9.0
BLOCK, DIRECT, CONVERTED = "#5b6770", "#3b6ea8", "#d9772b"
INK, QUIET = "#222222", "#777777"
#: Errors and ratios above these are written, not drawn to scale.
MOST_ERROR, MOST_RATIO = 0.062, 3.0

Found = Sequence[tuple[Source, Conversion]]


def draw_conversions(found: Found, path: str | os.PathLike[str]) -> Path:
    """Draw conversions to a .png or .svg file, replaced atomically; the same figures give the same bytes.

    Args:
        found: tensors with their conversions; drawn are those that have a source and FP32 scales.
        path: the file.

    Raises:
        ArgumentError: another suffix.
        OSError: the file cannot be written.
    """
    target = picture_path(path)
    shown = [(source, each) for source, each in found if each.scales == "fp32"]
    with picture(target, WIDTH, HEIGHT, dpi=150, style={"font.size": 8}) as figure:
        grid = figure.add_gridspec(
            2, 2, left=0.22, right=0.97, top=0.88, bottom=0.07, hspace=0.3, wspace=0.22, height_ratios=(1.7, 1)
        )
        figure.text(0.03, 0.955, "From block FP8 to MXFP8", fontsize=13, weight="bold", color=INK)
        figure.text(
            0.03,
            0.93,
            "E4M3 with an FP32 scale for 128 (1x128 or 128x128), converted to E4M3 with an E8M0 scale for 32",
            color=QUIET,
        )
        _draw_errors(shown, figure.add_subplot(grid[0, 0]))
        _draw_modes(shown, figure.add_subplot(grid[0, 1]))
        _draw_significands(figure.add_subplot(grid[1, :]))
    return target


def _draw_errors(shown: Found, ax: Axes) -> None:
    """For each tensor three errors under RCEIL."""
    names, height = [_label(source, each) for source, each in shown], 0.26
    bars = (
        ("block FP8", BLOCK, [each.block_error for _, each in shown]),
        ("MXFP8 of the source, rceil", DIRECT, [each.mode("rceil").direct.relative_l2 for _, each in shown]),
        ("block FP8 converted, rceil", CONVERTED, [each.mode("rceil").converted.relative_l2 for _, each in shown]),
    )
    for index, (label, colour, errors) in enumerate(bars):
        places = np.arange(len(shown)) + (index - 1) * height
        ax.barh(places, np.minimum(errors, MOST_ERROR), height * 0.9, color=colour, label=label)
        for place, error in zip(places, errors, strict=True):
            ax.text(min(error, MOST_ERROR), place, f" {error:.4f}", va="center", fontsize=6, color=INK)
    ax.set_yticks(range(len(names)), names)
    ax.invert_yaxis()
    ax.margins(x=0.14, y=0.02)
    ax.set_title("What it costs: relative L2 error against the source", loc="left")
    ax.legend(loc="upper center", bbox_to_anchor=(0.35, -0.05), ncols=3, frameon=False, fontsize=7)
    for side in ("top", "right"):
        ax.spines[side].set_visible(False)


def _draw_modes(shown: Found, ax: Axes) -> None:
    """How many times the error of block FP8 the converted error is, by tensor and mode."""
    modes = [figures.mode for figures in shown[0][1].modes]
    ratios = np.array(
        [[each.mode(mode).converted.relative_l2 / each.block_error for mode in modes] for _, each in shown]
    )
    ax.imshow(ratios, cmap="Oranges", vmin=1, vmax=MOST_RATIO, aspect="auto")
    for (row, column), ratio in np.ndenumerate(ratios):
        ax.text(
            column, row, f"{ratio:.2f}", ha="center", va="center", fontsize=7, color="white" if ratio > 2.3 else INK
        )
    ax.set_xticks(range(len(modes)), modes, rotation=30, ha="right", rotation_mode="anchor")
    ax.set_yticks([])
    ax.set_title("Converted, in errors of block FP8, by scale mode", loc="left")


def _draw_significands(ax: Axes) -> None:
    """The error of the conversion alone over the significand of the tile's scale."""
    significands, errors = loss_by_significand()
    ax.plot(significands, errors, color=CONVERTED, linewidth=1.4)
    ax.plot(significands[:1], errors[:1], "o", color=DIRECT, markersize=6)
    ax.annotate(
        "a power of two: nothing is lost",
        (1, 0),
        (1.03, 0.004),
        color=INK,
        arrowprops={"arrowstyle": "-", "color": QUIET},
    )
    ax.set_xlim(0.99, 2)
    ax.set_ylim(-0.001, None)
    ax.set_xlabel("significand of the tile's FP32 scale, scale / 2^floor(log2 scale)")
    ax.set_title(
        "Why: relative L2 error of converting the codes of the top seven binades, once each, by rceil", loc="left"
    )
    for side in ("top", "right"):
        ax.spines[side].set_visible(False)


def _label(source: Source, conversion: Conversion) -> str:
    name = source.name.replace("all-MiniLM-L6-v2 ", "MiniLM ")
    return f"{name}\n{conversion.block}"
