"""A drift document as text for the terminal."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

import numpy as np
from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from refmoe.drift.growth import LEAST_STEPS
from refmoe.drift.run import Point
from refmoe.reports.drift import failures
from refmoe.tables import plain_table


def experts_of(config: Mapping[str, Any]) -> int:
    """The experts of a layer that a model's configuration has, of gpt-oss or of DeepSeek."""
    return int(config["n_routed_experts"] if "n_routed_experts" in config else config["num_local_experts"])


def drift_summary(document: Mapping[str, Any]) -> RenderableType:
    """What was compared, a table for each point, where bits part, what grows, and what is wrong."""
    parts: list[RenderableType] = []
    config, steps = document["checkpoint"]["config"], document["steps"]
    parts.append(
        Text(
            f"{document['checkpoint']['name']}: {config['num_hidden_layers']} layers, {experts_of(config)} "
            f"experts, hidden {config['hidden_size']}; {steps} step{'s' if steps > 1 else ''}; "
            f"base {document['base']}\n"
        )
    )
    for run in document["runs"]:
        parts += [Text(f"{Point(**run['point'])}\n"), _table(run["comparisons"])]
        parts += [Text(line) for line in _lines(run["comparisons"])]
        parts.append(Text(""))
    found = failures(document)
    parts += [Text(f"FAILED {failure}", style="bold red") for failure in found]
    if not found:
        parts.append(Text(_passed(document)))
    parts.append(Text(f"{document['seconds']:.1f} s"))
    return Group(*parts)


def _table(comparisons: Iterable[Mapping[str, Any]]) -> Table:
    """Figures of steps with the same input: the last layer's hidden state, all layers' ulps, the logits."""
    error = (">rel. L2 median", ">max", ">cosine min", ">ulp max", ">rerouted %")
    table = plain_table("path", "against", "mode", *error, ">KL mean, nats", ">KL max", ">top-1 %")
    for one in comparisons:
        hidden, logits = one["curves"]["hidden"], one["curves"]["logits"]
        error, divergence = _counted(one, hidden["relative_l2"])[..., -1], _counted(one, logits["divergence"])
        table.add_row(
            one["path"],
            one["base"],
            one["mode"],
            *(_number(_of(f, error)) for f in (np.median, np.max)),
            _number(_of(np.min, _counted(one, hidden["cosine"])[..., -1]), digits=5),
            _number(_of(np.max, _counted(one, hidden["max_ulp"])), digits=6),
            _number(100 * _of(np.mean, _counted(one, one["curves"]["routing"]["rerouted"]))),
            *(_number(_of(f, divergence)) for f in (np.mean, np.max)),
            _number(100 * _of(np.mean, _counted(one, logits["top1"]))),
        )
    return table


def _lines(comparisons: Iterable[Mapping[str, Any]]) -> list[str]:
    lines = []
    for one in comparisons:
        name = f"{one['path']}, {one['mode']}"
        if one["first_difference"] is None:
            lines.append(f"{name}: all {one['bytes_compared']:,} bytes are the same")
            continue
        lines.append(f"{name}: does the error grow? {one['growth']['sentence']}")
        lines += _rerouting(one)
        if one["formats_part"]:
            part = one["formats_part"]
            lines.append(f"  formats part at {part['stage']}: {', '.join(part['base'])} | {', '.join(part['path'])}")
        lines.append(f"  bits part at {one['first_difference']['text']}")
        if any(step is not None for step in one["diverged"]):
            when = ", ".join("never" if step is None else str(step) for step in one["diverged"])
            tokens = f"other tokens from step {when} (by sequence)"
            lines.append(f"  {tokens}: what follows has other inputs and is not counted")
    return ["", *lines]


def _rerouting(one: Mapping[str, Any]) -> list[str]:
    """How much larger the error is at steps whose tokens went to other experts, in any layer."""
    error = _counted(one, one["curves"]["hidden"]["relative_l2"])[..., -1]
    with np.errstate(invalid="ignore"):
        elsewhere = (_counted(one, one["curves"]["routing"]["rerouted"]) > 0).any(axis=-1)
    there, here = (error[part & np.isfinite(error)] for part in (elsewhere, ~elsewhere))
    if min(there.size, here.size) < LEAST_STEPS:
        return []
    return [
        f"  its median is {np.median(there):.3g} where a token went to other experts in some layer ({there.size} of "
        f"{there.size + here.size} steps of a sequence), {np.median(here):.3g} elsewhere"
    ]


def _passed(document: Mapping[str, Any]) -> str:
    exact = [one for run in document["runs"] for one in run["comparisons"] if one["must_equal"]]
    if not exact:
        return "no two of these paths have one arithmetic, so none had to be equal"
    compared = sum(one["bytes_compared"] for one in exact)
    pairs = sorted({f"{one['path']} = {one['base']}" for one in exact})
    return f"EXACT: {'; '.join(pairs)}: {compared:,} bytes of {document['steps']} steps compared, 0 differ"


def _counted(comparison: Mapping[str, Any], curve: Any) -> Any:
    """A curve [sequences, steps, ...] with NaN where it is undefined or the input is another one."""
    values = np.array(curve, np.float64)
    for sequence, step in enumerate(comparison["diverged"]):
        if step is not None:
            values[sequence, step:] = np.nan
    return values


def _of(function: Any, values: Any) -> float:
    defined = values[np.isfinite(values)]
    return float(function(defined)) if defined.size else float("nan")


def _number(value: Any, digits: int = 3) -> str:
    return "-" if np.isnan(value) else f"{value:.{digits}g}"
