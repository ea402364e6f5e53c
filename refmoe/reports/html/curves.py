"""Curves over steps as SVG in the page's own colours: a logarithmic axis, a line for each path."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

from markupsafe import Markup

#: Pixels of the plot itself.
WIDTH, HEIGHT = 520, 200

#: Colours that the colour-blind tell apart (Okabe and Ito), readable on black and on white.
_COLOURS = ("#0080c8", "#e08a00", "#009e73", "#cc5fa0", "#d55e00", "#7f7f7f", "#56b4e9", "#a08a00")


def curves_svg(title: str, curves: Mapping[str, Sequence[float | None]]) -> Markup:
    """Curves by name over steps 0, 1, ...; None is a gap, and what is exactly zero lies on the line at the bottom."""
    positive = [value for curve in curves.values() for value in curve if value]
    low = math.floor(math.log10(min(positive))) if positive else -1
    high = max(math.ceil(math.log10(max(positive))), low + 1) if positive else 0
    steps = max([len(curve) for curve in curves.values()], default=1)
    # One more decade below the smallest value is where zero lies.
    zero, legend = HEIGHT, HEIGHT + 34

    def place(step: int, value: float) -> str:
        x = step / max(steps - 1, 1) * WIDTH
        y = zero if value == 0 else (high - math.log10(value)) / (high - low + 1) * HEIGHT
        return f"{x:.1f} {y:.1f}"

    height = legend + 16 * len(curves)
    parts = [
        Markup(
            '<svg class="map plot" viewBox="-62 -8 {} {}" width="{}" height="{}" role="img"><title>{}</title>'
        ).format(WIDTH + 74, height + 8, WIDTH + 74, height + 8, title),
        Markup('<rect class="ground" width="{}" height="{}"/>').format(WIDTH, HEIGHT),
    ]
    for decade in range(low, high + 1):
        y = (high - decade) / (high - low + 1) * HEIGHT
        parts.append(Markup('<path class="rule" d="M0 {0:.1f}H{1}"/>').format(y, WIDTH))
        parts.append(Markup('<text x="-6" y="{:.1f}" text-anchor="end">1e{}</text>').format(y + 3, decade))
    parts.append(Markup('<text x="-6" y="{}" text-anchor="end">exactly 0</text>').format(zero + 3))
    parts.append(Markup('<text x="0" y="{}">step 0</text>').format(HEIGHT + 14))
    parts.append(Markup('<text x="{}" y="{}" text-anchor="end">{}</text>').format(WIDTH, HEIGHT + 14, steps - 1))
    for number, (name, curve) in enumerate(curves.items()):
        colour = _COLOURS[number % len(_COLOURS)]
        for run in _runs(curve):
            points = "L".join(place(step, value) for step, value in run)
            # A point alone has no length; a closed path of no length is a dot.
            kind, end = ("dot", "z") if len(run) == 1 else ("curve", "")
            parts.append(Markup('<path class="{}" stroke="{}" d="M{}{}"/>').format(kind, colour, points, end))
        y = legend + 16 * number
        parts.append(Markup('<path class="curve" stroke="{}" d="M0 {}h18"/>').format(colour, y))
        parts.append(Markup('<text x="24" y="{}">{}</text>').format(y + 3, name))
    parts.append(Markup('<rect class="frame" width="{}" height="{}"/></svg>').format(WIDTH, HEIGHT))
    return Markup("").join(parts)


def _runs(curve: Sequence[float | None]) -> list[list[tuple[int, float]]]:
    """The stretches of a curve between its gaps."""
    runs: list[list[tuple[int, float]]] = [[]]
    for step, value in enumerate(curve):
        if value is None:
            runs.append([])
        else:
            runs[-1].append((step, value))
    return [run for run in runs if run]
