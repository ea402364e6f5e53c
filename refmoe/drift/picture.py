"""A drift document as a picture: how far paths are apart, and whether that grows. Sizes are inches."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import FuncFormatter, LogLocator, NullFormatter, PercentFormatter

from refmoe.drift.run import FREE, TEACHER, Point
from refmoe.drift.summary import experts_of
from refmoe.pictures import picture, picture_path

WIDTH, HEIGHT = 15.0, 7.2
#: Okabe and Ito's colours, which colour-blind readers can tell apart, without the yellow that white paper swallows.
COLOURS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#56B4E9", "#E69F00", "#000000")
INK, QUIET = "#222222", "#707070"
LIGHT, STRONG = 0.30, 1.9
#: Of more paths than this the strong lines are thinner, so that one does not hide those below it.
FEW, LESS_STRONG = 5, 1.1
#: Steps over which shares are averaged.
WINDOW = 8
LEFT = 0.05
DPI = 120

Comparisons = Sequence[Mapping[str, Any]]
#: The numbers [sequences, steps, layers] of a comparison that a panel draws.
Curve = Callable[[Mapping[str, Any]], Any]


def draw_drift(document: Mapping[str, Any], path: str | os.PathLike[str]) -> Path:
    """Draw a drift document to a .png or .svg file, replaced atomically; the same document gives the same bytes.

    The curves are those of the first point of a sweep, but for one panel over its points. Layers are thin lines, the
    last one is strong; of several sequences the geometric mean is drawn.

    Args:
        document: as `drift_document` makes it.
        path: the file.

    Raises:
        ArgumentError: another suffix.
        OSError: the file cannot be written.
    """
    target = picture_path(path)
    run = document["runs"][0]
    modes = {one["mode"] for one in run["comparisons"]}
    # Free-running alone has no teacher-forced curves to show.
    shown = [one for one in run["comparisons"] if one["mode"] == (TEACHER if TEACHER in modes else FREE)]
    free = [one for one in run["comparisons"] if one["mode"] == FREE]
    with picture(target, WIDTH, HEIGHT, dpi=DPI, style={"font.size": 8.5}) as figure:
        grid = figure.add_gridspec(2, 4, left=LEFT, right=0.985, top=0.825, bottom=0.075, hspace=0.38, wspace=0.3)
        _title(figure, document, run, shown)
        axes = [figure.add_subplot(grid[row, column]) for row in range(2) for column in range(4)]
        _layer_curves(axes[0], shown, _curve("hidden", "relative_l2"), "Hidden state, error", "relative L2")
        if len(document["runs"]) > 1:
            _points(axes[1], document["runs"], shown)
        else:
            _layer_curves(axes[1], shown, _turn, "Hidden state, direction", "1 - cosine")
        _layer_curves(axes[2], shown, _curve("moe", "relative_l2"), "What experts give, error", "relative L2")
        _layer_curves(
            axes[3], shown, _curve("moe", "max_ulp"), "What experts give, farthest value", "BF16 ulp", dots=True
        )
        _divergence(axes[4], shown)
        _tokens(axes[5], shown, free)
        _rerouted(axes[6], shown)
        _growth(axes[7], shown)
        for ax in axes:
            for side in ("top", "right"):
                ax.spines[side].set_visible(False)
    return target


def _title(figure: Figure, document: Mapping[str, Any], run: Mapping[str, Any], shown: Comparisons) -> None:
    config = document["checkpoint"]["config"]
    model, left = "DeepSeek" if "n_routed_experts" in config else "gpt-oss", LEFT
    figure.text(left, 0.955, f"Drift from {document['base']} over decode steps", fontsize=14, weight="bold", color=INK)
    facts = (
        f"{document['checkpoint']['name']} {model}, {config['num_hidden_layers']} layers, "
        f"{experts_of(config)} experts; {Point(**run['point'])}; {shown[0]['mode']} but for dashes; "
        "thin lines: layers, strong: the last"
    )
    figure.text(left, 0.928, facts, color=QUIET)
    place = left
    for index, one in enumerate(shown):
        same = one["bytes_differing"] == 0
        note = f": all {one['bytes_compared']:,} bytes the same, at every step" if same else ""
        against = "" if one["base"] == document["base"] else f" against {one['base']}"
        text = figure.text(place, 0.893, f"{one['path']}{against}{note}", color=_colour(index), weight="bold")
        place += text.get_window_extent().width / figure.bbox.width + 0.03


def _curve(place: str, metric: str) -> Curve:
    return lambda one: np.array(one["curves"][place][metric], np.float64)


def _turn(one: Mapping[str, Any]) -> Any:
    return 1 - np.array(one["curves"]["hidden"]["cosine"], np.float64)


def _layer_curves(ax: Axes, shown: Comparisons, curve: Curve, title: str, label: str, *, dots: bool = False) -> None:
    """A metric over the steps, on a log scale; a path that is zero throughout has no line there."""
    for index, one in enumerate(shown):
        values = _logged(curve(one))
        for layer in range(values.shape[1]):
            last = layer == values.shape[1] - 1
            line = {"linestyle": "", "marker": "o", "markersize": 3.2 if last else 1.6, "markeredgewidth": 0}
            ax.plot(
                values[:, layer],
                color=_colour(index),
                alpha=1.0 if last else LIGHT,
                zorder=3 if last else 2,
                **(line if dots else {"linewidth": _strong(shown) if last else 0.8}),
            )
    _step_axis(ax, title, label, shown)
    _log_scale(ax)


def _points(ax: Axes, runs: Sequence[Mapping[str, Any]], shown: Comparisons) -> None:
    """The median error of the hidden state at every point of a sweep."""
    for index, one in enumerate(shown):
        key = (one["path"], one["base"], one["mode"])
        medians = []
        for run in runs:
            twin = next(other for other in run["comparisons"] if (other["path"], other["base"], other["mode"]) == key)
            medians.append(np.nanmedian(_curve("hidden", "relative_l2")(twin)[..., -1]))
        ax.plot(np.where(np.array(medians) > 0, medians, np.nan), "o-", color=_colour(index), linewidth=STRONG)
    points = [run["point"] for run in runs]
    varied = [name for name in points[0] if len({point[name] for point in points}) > 1]
    labels = ["\n".join(f"{name.replace('_', ' ')} {point[name]}" for name in varied) for point in points]
    ax.set_xticks(range(len(points)), labels, fontsize=7)
    ax.set_title("Hidden state, median error over the sweep", loc="left", fontsize=9)
    ax.set_ylabel("relative L2")
    _log_scale(ax)


def _divergence(ax: Axes, shown: Comparisons) -> None:
    for index, one in enumerate(shown):
        values = _logged(np.array(one["curves"]["logits"]["divergence"], np.float64)[..., None])
        ax.plot(values[:, 0], color=_colour(index), linewidth=_strong(shown))
    _step_axis(ax, "Next token, divergence", "KL(base, path), nats", shown)
    _log_scale(ax)


def _tokens(ax: Axes, shown: Comparisons, free: Comparisons) -> None:
    """Agreement on the most likely token; dashed, the sequences that still say what the base says."""
    for index, one in enumerate(shown):
        share = np.array(one["curves"]["logits"]["top1"], np.float64).mean(axis=0)
        ax.plot(_smoothed(share), color=_colour(index), linewidth=_strong(shown))
        twin = next((other for other in free if (other["path"], other["base"]) == (one["path"], one["base"])), None)
        if twin is not None:
            steps = np.arange(len(share))
            alive = [steps < (np.inf if step is None else step) for step in twin["diverged"]]
            ax.step(steps, np.mean(alive, axis=0), color=_colour(index), linestyle="--", linewidth=1.2, where="mid")
    _step_axis(ax, "Same most likely token; dashed: same text", f"share, mean of {WINDOW} steps", shown)
    ax.yaxis.set_major_formatter(PercentFormatter(1.0, decimals=0))
    ax.set_ylim(-0.04, 1.06)


def _rerouted(ax: Axes, shown: Comparisons) -> None:
    """How many tokens go to other experts than in the base: the jumps in the errors."""
    for index, one in enumerate(shown):
        share = np.array(one["curves"]["routing"]["rerouted"], np.float64).mean(axis=0)
        for layer in range(share.shape[1]):
            last = layer == share.shape[1] - 1
            width, alpha = (_strong(shown), 1.0) if last else (0.8, LIGHT)
            ax.plot(_smoothed(share[:, layer]), color=_colour(index), linewidth=width, alpha=alpha)
    _step_axis(ax, "Tokens sent to other experts", f"share, mean of {WINDOW} steps", shown)
    ax.yaxis.set_major_formatter(PercentFormatter(1.0, decimals=0))
    ax.set_ylim(bottom=-0.01)


def _smoothed(share: Any) -> Any:
    """The mean of each step and those before it, `WINDOW` of them where there are as many."""
    sums = np.cumsum(np.concatenate([[0.0], share]))
    ends = np.arange(1, len(sums))
    starts = np.maximum(ends - WINDOW, 0)
    return (sums[ends] - sums[starts]) / (ends - starts)


def _log_scale(ax: Axes) -> None:
    """Labels at 1 and 3 times powers of ten, also where an axis spans less than one."""
    drawn = [line.get_ydata() for line in ax.lines]
    if not any(np.isfinite(values).any() for values in drawn):
        return
    ax.set_yscale("log")
    ax.yaxis.set_major_locator(LogLocator(subs=(1.0, 3.0)))
    ax.yaxis.set_major_formatter(FuncFormatter(lambda value, place: f"{value:g}"))
    ax.yaxis.set_minor_formatter(NullFormatter())


def _growth(ax: Axes, shown: Comparisons) -> None:
    """By how much the error changes a step, with its interval, and what follows."""
    ax.axvline(0, color=QUIET, linewidth=0.8)
    for index, one in enumerate(shown):
        growth, colour = one["growth"], _colour(index)
        height = -index
        if growth["rate"] is not None:
            low, rate, high = (100 * np.expm1(growth[name]) for name in ("low", "rate", "high"))
            ax.plot([low, high], [height, height], color=colour, linewidth=STRONG, solid_capstyle="butt")
            ax.plot([rate], [height], "o", color=colour, markersize=6)
        words = f"{one['path']}: {growth['conclusion']}"
        if growth["rate"] is None and growth["conclusion"] == "does not grow":
            words += " (exactly zero)"
            ax.plot([0], [height], "o", color=colour, markersize=6)
        ax.text(0.02, height + 0.28, words, color=colour, transform=ax.get_yaxis_transform())
    ax.set_ylim(-len(shown) + 0.4, 0.75)
    ax.set_yticks([])
    ax.spines["left"].set_visible(False)
    ax.set_title("Does the hidden state's error grow?", loc="left", fontsize=9)
    ax.set_xlabel("change of the error, % a step, 95 % interval")
    # Zero in the middle, so that to the right of it means growth at a glance.
    reach = max(abs(limit) for limit in ax.get_xlim())
    ax.set_xlim(-reach, reach)


def _logged(curve: Any) -> Any:
    """[sequences, steps, layers] to the geometric mean over sequences, NaN where one of them is zero or undefined."""
    values = np.array(curve, np.float64)
    with np.errstate(divide="ignore", invalid="ignore"):
        mean = np.exp(np.log(values).mean(axis=0))
    mean[~(mean > 0)] = np.nan
    return mean


def _step_axis(ax: Axes, title: str, label: str, shown: Comparisons) -> None:
    ax.set_title(title, loc="left", fontsize=9)
    ax.set_xlabel("decode step (0: the prompt)")
    ax.set_ylabel(label)
    ax.set_xlim(0, max(len(shown[0]["curves"]["logits"]["top1"][0]) - 1, 1))
    ax.grid(axis="y", color="#e6e6e6", linewidth=0.6)
    ax.set_axisbelow(True)


def _strong(shown: Comparisons) -> float:
    """The width of the line of the last layer."""
    return STRONG if len(shown) <= FEW else LESS_STRONG


def _colour(index: int) -> str:
    return COLOURS[index % len(COLOURS)]
