"""A layer's flow made visible: a table for the terminal, a document for programs, and two claims held against it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from rich.table import Table

from refmoe.chips import Product
from refmoe.views.flow import Flow, FlowStep, Saving

__all__ = ["claims", "flow_document", "flow_summary", "flow_table", "fusing_document", "fusing_lines", "fusing_table"]

#: What the design says of fusing the quantization into expand, from both of its ends.
RECOVERS, SAVES = "fusing recovers decode", "fusing saves 1-2 %"
_ONE_TO_TWO = (0.01, 0.02)


def flow_document(flow: Flow, bandwidth: float) -> dict[str, Any]:
    """Everything that the tables show, as JSON values."""
    planned = flow.launches > 0
    return {
        "path": flow.path,
        "quantization": flow.quantization,
        "model": vars(flow.model),
        "m": flow.m,
        "experts_with_rows": sum(rows > 0 for rows in flow.rows),
        "steps": [_step_document(step) for step in flow.steps],
        "conversions_to_first_gemm": list(flow.first_gemm),
        "conversions": list(flow.conversions),
        "launches": flow.launches if planned else None,
        "read": flow.read if planned else None,
        "written": flow.written if planned else None,
        "weights": flow.weights if planned else None,
        "bandwidth_gb_per_s": bandwidth,
        "floor_us": flow.floor(bandwidth) if planned else None,
        "weights_floor_us": flow.weights / bandwidth / 1e3 if planned else None,
    }


def _step_document(step: FlowStep) -> dict[str, Any]:
    traffic = step.traffic
    return {
        "stage": step.stage,
        "conversions": list(step.conversions),
        "entry": step.entry,
        "grid": step.grid,
        "block": step.block,
        "reads": dict(traffic.reads) if traffic else None,
        "writes": dict(traffic.writes) if traffic else None,
    }


def flow_table(flow: Flow) -> Table:
    """A line a step."""
    table = Table(box=None, pad_edge=False, header_style="bold")
    table.add_column("stage", no_wrap=True)
    table.add_column("conversions", overflow="fold")
    if flow.launches:
        table.add_column("launch", overflow="fold")
        for name in ("bytes read", "written"):
            table.add_column(name, justify="right", no_wrap=True)
    for step in flow.steps:
        cells = [step.stage, "; ".join(step.conversions) or "-"]
        if step.traffic is not None:
            entry = (step.entry or "").removeprefix("refmoe_")
            cells += [f"{entry} {step.grid} x {step.block}", f"{step.traffic.read:,}", f"{step.traffic.written:,}"]
        table.add_row(*cells)
    return table


def flow_summary(flow: Flow, bandwidth: float) -> str:
    """The totals, in a few lines."""
    active = sum(rows > 0 for rows in flow.rows)
    lines = [
        f"{len(flow.first_gemm)} conversions up to the first GEMM's output: {'; '.join(flow.first_gemm)}; "
        f"{len(flow.conversions)} in the layer"
    ]
    if not flow.launches:
        return f"{lines[0]}\n{flow.path} is a reference here: no launch of ours exists, so there is no traffic to count"
    total = flow.read + flow.written
    lines += [
        f"{flow.launches} launches, {total:,} bytes: {flow.read:,} read, {flow.written:,} written; {flow.weights:,} of "
        f"them are weights of {active} experts, {flow.weights / total:.2%}",
        f"at {bandwidth:g} GB/s all bytes take {flow.floor(bandwidth):.2f} us, the weights alone "
        f"{flow.weights / bandwidth / 1e3:.2f} us",
    ]
    return "\n".join(lines)


def fusing_lines(separate: Flow, fused: Flow) -> str:
    """What is saved, in a sentence."""
    before, after = (flow.read + flow.written for flow in (separate, fused))
    return (
        f"fused instead of separate: {separate.launches - fused.launches} launch less of {separate.launches}, "
        f"{before - after:,} bytes less of {before:,} ({(before - after) / before:.3%})"
    )


def fusing_table(savings: Sequence[Saving]) -> Table:
    """A line for each chip and cost of a launch."""
    table = Table(box=None, pad_edge=False, header_style="bold")
    for name in ("chip", "GB/s", "us a launch", "us saved", "us the layer", "share"):
        table.add_column(name, justify="left" if name == "chip" else "right", no_wrap=True)
    for saving in savings:
        table.add_row(
            saving.cost.product.name,
            f"{saving.cost.product.bandwidth:g}",
            f"{saving.launch:g}",
            f"{saving.saved:.2f}",
            f"{saving.layer:.1f}",
            f"{saving.share:.2%}",
        )
    return table


def claims(separate: Flow, fused: Flow, savings: Sequence[Saving]) -> list[str]:
    """The two claims of the design against these figures, a sentence each, and where each figure is from."""
    costs = tuple(dict.fromkeys(saving.cost for saving in savings))
    recovers, saves = [], []
    for cost in costs:
        product = cost.product
        mine = [saving for saving in savings if saving.cost == cost]
        shares = f"{_span([saving.share * 100 for saving in mine])} % of the layer on {product.name}"
        weights = separate.weights / product.bandwidth / 1e3
        recovers.append(f"{shares}, whose weights alone take {weights:.1f} us of its {_span([s.layer for s in mine])}")
        needed = _span([_launch_for(share, separate, fused, product) for share in _ONE_TO_TWO])
        given = "not known" if not cost.measured else f"measured as {_span(cost.microseconds)}"
        saves.append(f"on {product.name} if a launch costs {needed} us ({given})")
    return [
        f'"{RECOVERS}": it saves ' + "; ".join(recovers),
        f'"{SAVES}": true ' + "; ".join(saves),
        *(f"{cost.product.name}: {cost.product.source}; a launch: {cost.source}" for cost in costs),
    ]


def _launch_for(share: float, separate: Flow, fused: Flow, product: Product) -> float:
    """Microseconds of a launch with which fusing saves this share: saved + n L = share (bytes + N L)."""
    whole = separate.floor(product.bandwidth)
    less = separate.launches - fused.launches
    saved = whole - fused.floor(product.bandwidth)
    return max((share * whole - saved) / (less - share * separate.launches), 0.0)


def _span(values: Sequence[float]) -> str:
    low, high = f"{min(values):.2f}", f"{max(values):.2f}"
    return low if low == high else f"{low} to {high}"


def fusing_document(separate: Flow, fused: Flow, savings: Sequence[Saving]) -> dict[str, Any]:
    """The same as JSON values."""
    before, after = (flow.read + flow.written for flow in (separate, fused))
    return {
        "launches": {"separate": separate.launches, "fused": fused.launches},
        "bytes": {"separate": before, "fused": after, "saved": before - after},
        "chips": [
            {
                "chip": saving.cost.product.name,
                "bandwidth_gb_per_s": saving.cost.product.bandwidth,
                "bandwidth_source": saving.cost.product.source,
                "launch_us": saving.launch,
                "launch_source": saving.cost.source,
                "saved_us": saving.saved,
                "layer_us": saving.layer,
                "share": saving.share,
            }
            for saving in savings
        ],
        "claims": claims(separate, fused, savings)[:2],
    }
