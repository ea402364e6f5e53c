"""The pictures of docs/BENCHMARK_RESULTS.md, drawn from reports. Sizes are inches."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from matplotlib.figure import Figure
from matplotlib.ticker import NullFormatter
from PIL import Image

from refmoe.bench.page import PICTURES, whole_rows
from refmoe.pictures import picture, picture_path

#: The keyword of the text in a picture's file.
REPORT = "Report"
DPI, WIDTH, LINE = 110, 11.0, 0.27
#: Okabe and Ito's colours, which colour-blind readers can tell apart.
OURS, FLOOR, OTHER = "#0072B2", "#707070", "#D55E00"


def draw(name: str, document: Mapping[str, Any], folder: Path) -> Path:
    """Draw one picture of `PICTURES` into a folder; the same report and matplotlib give the same bytes.

    The file says which report it was drawn from: its text `Report` is that report's digest.

    Raises:
        KeyError: no such picture.
        OSError: the file cannot be written.
    """
    assert PICTURES[name]
    target = picture_path(folder / name)
    rows, draws = _PICTURES[name](document)
    with picture(
        target, WIDTH, 1.2 + LINE * rows, dpi=DPI, style={"font.size": 9}, texts={REPORT: document["digest"]}
    ) as figure:
        draws(figure)
    return target


def drawn_from(path: Path) -> str | None:
    """The digest of the report that a picture of `draw` was drawn from; None if its file does not say it.

    Raises:
        OSError: no such file, or no picture.
    """
    with Image.open(path) as image:
        found: str | None = getattr(image, "text", {}).get(REPORT)
    return found


def _gpu(document: Mapping[str, Any]) -> tuple[int, Callable[[Figure], None]]:
    rows = [row for row in whole_rows(document) if row["ratio_to_floor"] != 1.0]

    def draws(figure: Figure) -> None:
        axes = figure.subplots()
        colours = [OTHER if row["name"].startswith("torch") else OURS for row in rows]
        axes.barh(range(len(rows)), [row["ratio_to_floor"] for row in rows], color=colours)
        axes.set_yticks(range(len(rows)), [row["name"] for row in rows])
        axes.invert_yaxis()
        axes.axvline(1.0, color=FLOOR)
        for place, row in enumerate(rows):
            axes.text(row["ratio_to_floor"], place, f" {row['ratio_to_floor']:.2f}", va="center")
        axes.set_xlabel(
            "time / floor of the same group: a copy of as many bytes, a pure read, or an empty kernel (line at 1)"
        )
        axes.set_title(f"{document['gpu']}: refmoe's kernels, and torch in orange; shorter is better", loc="left")
        axes.set_xlim(0, 1.08 * max(row["ratio_to_floor"] for row in rows))
        axes.spines[["top", "right"]].set_visible(False)
        figure.tight_layout()

    return len(rows), draws


def _tiles(document: Mapping[str, Any]) -> tuple[int, Callable[[Figure], None]]:
    rows = [row for row in document["rows"] if "instructions_a_byte" in row]

    def draws(figure: Figure) -> None:
        left, right = figure.subplots(1, 2, sharey=True)
        colours = [OTHER if row["kernel"].startswith("CUTLASS") else OURS for row in rows]
        panels = ((left, "instructions_a_byte", 1.0, "{:.3f}"), (right, "tensor_share", 100.0, "{:.1f} %"))
        for axes, key, scale, form in panels:
            values = [scale * row[key] for row in rows]
            axes.barh(range(len(rows)), values, color=colours)
            for place, value in enumerate(values):
                axes.text(value, place, " " + form.format(value), va="center")
            axes.set_xlim(0, 1.18 * max(values))
            axes.spines[["top", "right"]].set_visible(False)
        left.set_yticks(range(len(rows)), [f"{row['kernel']}, {row['tile']}" for row in rows])
        left.invert_yaxis()
        left.set_title("instructions for each byte of operands\n(shorter is better)", loc="left")
        right.set_title("tensor-core share of the instructions\n(longer is better)", loc="left")
        figure.tight_layout()

    return len(rows), draws


def _between(value: float, limits: tuple[float, float]) -> bool:
    return limits[0] <= value <= limits[1]


def _sweep(document: Mapping[str, Any]) -> tuple[int, Callable[[Figure], None]]:
    held = [row for row in document["rows"] if not row["operation"].startswith(("layer", "GEMM"))]
    models = list(dict.fromkeys(row["model"] for row in held))
    # What has one launch and two is one operation.
    operations = list(dict.fromkeys(row["operation"].partition(" in ")[0] for row in held))
    lines = (
        ("refmoe", "", {"color": OURS, "marker": "o"}),
        ("refmoe", " in two launches", {"color": OURS, "linestyle": ":"}),
        ("torch.compile", "", {"color": OTHER, "linestyle": "--", "marker": "x"}),
    )

    def draws(figure: Figure) -> None:
        panels = figure.subplots(len(models), len(operations), sharex=True, squeeze=False)
        for axes_of, model in zip(panels, models, strict=True):
            for axes, operation in zip(axes_of, operations, strict=True):
                for of, more, style in lines:
                    rows = [
                        row
                        for row in sorted(held, key=lambda row: row["tokens"])
                        if (row["model"], row["operation"], row["of"]) == (model, operation + more, of)
                    ]
                    if not rows:
                        continue
                    tokens = [row["tokens"] for row in rows]
                    axes.plot(tokens, [row["microseconds"] for row in rows], label=of + more, markersize=3, **style)
                    if of + more == "refmoe":
                        floors = [row["microseconds"] / row["ratio_to_floor"] for row in rows]
                        axes.plot(tokens, floors, label="floor", color=FLOOR)
                if not axes.lines:
                    axes.set_visible(False)
                    continue
                axes.set(xscale="log", yscale="log", title=operation)
                axes.set_xticks((1, 16, 128, 4096))
                for scale in (axes.xaxis, axes.yaxis):
                    scale.set_major_formatter("{x:,.0f}")
                    scale.set_minor_formatter(NullFormatter())
                axes.set_yticks([tick for tick in (2, 5, 10, 20, 50, 100) if _between(tick, axes.get_ylim())])
                axes.grid(alpha=0.3)
                axes.spines[["top", "right"]].set_visible(False)
        for axes_of, model in zip(panels, models, strict=True):
            first = next(axes for axes in axes_of if axes.get_visible())
            first.set_ylabel(f"{model}\nmicroseconds")
        for column in panels.T:
            lowest = [axes for axes in column if axes.get_visible()][-1]
            lowest.set_xlabel("tokens")
            lowest.tick_params(labelbottom=True)
        # The panel with most lines names them all.
        most = max(panels.flat, key=lambda axes: len(axes.lines))
        figure.suptitle(f"{document['gpu']}: time over the number of tokens; lower is better", x=0.01, ha="left")
        figure.legend(*most.get_legend_handles_labels(), loc="upper right", ncols=4, frameon=False)
        figure.tight_layout()

    return 8 * len(models), draws


_PICTURES = {"bench_gpu.png": _gpu, "bench_sweep.png": _sweep, "bench_tiles.png": _tiles}
