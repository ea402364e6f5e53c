"""A comparison as a picture: where the policies part, how often, and what it costs. Sizes are inches."""

from __future__ import annotations

import os
from pathlib import Path

import numpy as np
from matplotlib.axes import Axes

from refmoe.pictures import picture, picture_path
from refmoe.policies.compare import MANTISSA_BINS, PolicyComparison, PolicyFigures, same_bytes

WIDTH, HEIGHT = 11.0, 8.2
COLOURS = ("#3b6ea8", "#d9772b", "#4a9a58", "#8a63ab", "#b5473f", "#3a9ba3", "#a0803a", "#c2659a", "#5b6770", "#9aa53b")
INK, QUIET, BARS = "#222222", "#777777", "#d5dbe3"
#: Between one policy's line and the next, so that equal scales do not hide each other.
NUDGE = 0.035


def draw_comparison(comparison: PolicyComparison, source: str, path: str | os.PathLike[str]) -> Path:
    """Draw a comparison to a .png or .svg file, replaced atomically; the same comparison gives the same bytes.

    Policies that gave the same bytes are drawn once.

    Args:
        comparison: what to draw.
        source: what the input is called.
        path: the file.

    Raises:
        ArgumentError: another suffix.
        OSError: the file cannot be written.
    """
    target = picture_path(path)
    groups = same_bytes(comparison)
    by_name = {figures.rule.name: figures for figures in comparison.figures}
    shown = [by_name[group[0]] for group in groups]
    labels = [_label(group) for group in groups]
    with picture(target, WIDTH, HEIGHT, dpi=150, style={"font.size": 8}) as figure:
        grid = figure.add_gridspec(2, 2, left=0.08, right=0.94, top=0.88, bottom=0.16, hspace=0.44, wspace=0.3)
        m, k = comparison.shape
        blocks = sum(comparison.kinds.values())
        title = f"Scale policies of {comparison.format.upper()}"
        figure.text(0.08, 0.955, title, fontsize=13, weight="bold", color=INK)
        figure.text(0.08, 0.93, f"{source}, [{m}, {k}], {blocks:,} blocks of 32", color=QUIET)
        _draw_scales(comparison, shown, labels, figure.add_subplot(grid[0, :]))
        _draw_pairs(comparison, shown, labels, figure.add_subplot(grid[1, 0]))
        _draw_errors(shown, labels, figure.add_subplot(grid[1, 1]))
        alike = [f"{label}: {', '.join(group)}" for label, group in zip(labels, groups, strict=True) if len(group) > 1]
        figure.text(0.08, 0.02, "\n".join(alike), color=QUIET, fontsize=7)
    return target


def _label(group: list[str]) -> str:
    """One policy of a group, and how many more there are; `exact` goes without saying."""
    first = group[0].removesuffix("/exact")
    return first if len(group) == 1 else f"{first} + {len(group) - 1}"


def _draw_scales(comparison: PolicyComparison, shown: list[PolicyFigures], labels: list[str], ax: Axes) -> None:
    """The scale that each policy decides on, over the mantissa of amax; behind it, how many blocks are there."""
    mantissa = 1 + (np.arange(MANTISSA_BINS) + 0.5) / MANTISSA_BINS
    counts = ax.twinx()
    counts.bar(mantissa, comparison.mantissas, width=1 / MANTISSA_BINS, color=BARS)
    counts.set_ylabel("blocks", color=QUIET)
    counts.tick_params(colors=QUIET)
    ax.set_zorder(counts.get_zorder() + 1)
    ax.patch.set_visible(False)
    for index, (figures, label) in enumerate(zip(shown, labels, strict=True)):
        nudged = figures.offsets + NUDGE * (index - (len(shown) - 1) / 2)
        colour = COLOURS[index % len(COLOURS)]
        ax.plot(mantissa, nudged, drawstyle="steps-mid", color=colour, label=label, linewidth=1.6)
    ax.set_xlim(1, 2)
    ax.set_yticks([-1, 0, 1], ["half", "FLOOR's", "twice"])
    ax.set_ylim(-1.5, 1.5)
    ax.set_title("Where they part: the scale chosen, by the mantissa of the block's largest magnitude", loc="left")
    ax.set_xlabel("amax / 2^floor(log2 amax)")
    ax.legend(loc="upper center", bbox_to_anchor=(0.5, -0.13), ncols=6, frameon=False)


def _draw_pairs(comparison: PolicyComparison, shown: list[PolicyFigures], labels: list[str], ax: Axes) -> None:
    """The share of scale bytes in which each pair differs."""
    names = [figures.rule.name for figures in shown]
    shares = np.array([[100 * comparison.between(a, b).scale_share for b in names] for a in names])
    ax.imshow(shares, cmap="Blues", vmin=0, vmax=100)
    for (row, column), share in np.ndenumerate(shares):
        if row != column:
            colour = "white" if share > 55 else INK
            ax.text(column, row, f"{share:.1f}", ha="center", va="center", fontsize=7, color=colour)
    ax.set_xticks(range(len(names)), labels, rotation=40, ha="right", rotation_mode="anchor")
    ax.set_yticks(range(len(names)), labels)
    ax.set_title("How often: scale bytes that differ, %", loc="left")


def _draw_errors(shown: list[PolicyFigures], labels: list[str], ax: Axes) -> None:
    """Relative L2 error against the input."""
    errors = [figures.relative_l2 for figures in shown]
    places = range(len(shown))
    ax.barh(places, np.nan_to_num(errors), color=[COLOURS[i % len(COLOURS)] for i in places])
    for place, error in zip(places, errors, strict=True):
        ax.text(0 if np.isnan(error) else error, place, f" {error:.4f}", va="center", color=INK)
    ax.set_yticks(places, labels)
    ax.invert_yaxis()
    ax.margins(x=0.18)
    ax.set_title("What it costs: relative L2 error against the input", loc="left")
    for side in ("top", "right"):
        ax.spines[side].set_visible(False)
