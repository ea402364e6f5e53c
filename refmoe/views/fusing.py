"""What fusing a layer's quantization into expand saves, on each product, and two claims held against that."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from rich.table import Table

from refmoe.chips import CHIPS, Product
from refmoe.tables import plain_table
from refmoe.views.flow import KERNEL_PATH, Flow, flow

#: Two claims that refmoe was begun with: what its own design said of fusing the quantization into expand. Nobody else
#: is quoted; the figures are held against both.
RECOVERS, SAVES = "fusing recovers decode", "fusing saves 1-2 %"
_ONE_TO_TWO = (0.01, 0.02)


@dataclass(frozen=True)
class LaunchCost:
    """What one more launch costs on a product.

    Attributes:
        product: the product.
        microseconds: of the launch; several where it is not known.
        source: of those.
        measured: whether they were measured on the product.
    """

    product: Product
    microseconds: tuple[float, ...]
    source: str
    measured: bool


_H200, _H100 = CHIPS["sm_90a"].products

LAUNCH_COSTS = (
    LaunchCost(
        CHIPS["sm_121a"].products[0],
        (0.5, 1.0, 2.0, 5.0),
        "nobody has measured it here: what follows if it were so",
        measured=False,
    ),
    LaunchCost(_H200, (0.8, 1.1), "an empty kernel as a node of a graph, in four runs 0.78 to 1.05", measured=True),
    LaunchCost(_H100, (1.0, 1.3), "an empty kernel as a node of a graph, in five runs 1.06 to 1.25", measured=True),
)


@dataclass(frozen=True)
class Saving:
    """What fusing saves on a product.

    Attributes:
        cost: of a launch on the product.
        launch: microseconds of one launch, one of the cost's.
        saved: microseconds of the launch and the bytes that are saved.
        layer: microseconds of the separate layer: its bytes at the product's bandwidth, and its launches.
    """

    cost: LaunchCost
    launch: float
    saved: float
    layer: float

    @property
    def share(self) -> float:
        """Of the layer."""
        return self.saved / self.layer


def fusing(model: str, m: int, *, routing: str = "uniform") -> tuple[Flow, Flow, tuple[Saving, ...]]:
    """The layer with its quantization separate, and fused, and what that saves on each product, launch by launch cost.

    Raises:
        ArgumentError: as `flow`.
    """
    separate, fused = (flow(KERNEL_PATH, model, m, quantization=way, routing=routing) for way in ("separate", "fused"))
    launches = separate.launches - fused.launches
    savings = tuple(
        Saving(
            cost,
            launch,
            separate.floor(cost.product.bandwidth) - fused.floor(cost.product.bandwidth) + launches * launch,
            separate.floor(cost.product.bandwidth) + separate.launches * launch,
        )
        for cost in LAUNCH_COSTS
        for launch in cost.microseconds
    )
    return separate, fused, savings


def fusing_summary(separate: Flow, fused: Flow) -> str:
    """What is saved, in a sentence."""
    before, less = separate.bytes, separate.bytes - fused.bytes
    return (
        f"fused instead of separate: {separate.launches - fused.launches} launch less of {separate.launches}, "
        f"{less:,} bytes less of {before:,} ({less / before:.3%})"
    )


def fusing_table(savings: Sequence[Saving]) -> Table:
    """A line for each chip and cost of a launch."""
    table = plain_table("chip", ">GB/s", ">us a launch", ">us saved", ">us the layer", ">share")
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
        given = f"measured as {_span(cost.microseconds)}" if cost.measured else "not known"
        saves.append(f"on {product.name} if a launch costs {needed} us ({given})")
    return [
        f'refmoe\'s design claimed "{RECOVERS}". By these figures it saves ' + "; ".join(recovers),
        f'refmoe\'s design also claimed "{SAVES}". By these figures that is true ' + "; ".join(saves),
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
    """Flows, savings and claims as JSON values."""
    return {
        "launches": {"separate": separate.launches, "fused": fused.launches},
        "bytes": {"separate": separate.bytes, "fused": fused.bytes, "saved": separate.bytes - fused.bytes},
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
