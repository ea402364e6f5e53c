"""What fusing a layer's quantization into expand saves, on each chip, and two claims held against that."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from rich.table import Table

from refmoe.tables import plain_table
from refmoe.views.flow import KERNEL_PATH, Flow, flow

__all__ = ["CHIPS", "Chip", "Saving", "claims", "fusing", "fusing_document", "fusing_summary", "fusing_table"]

#: What the design says of fusing the quantization into expand, from both of its ends.
RECOVERS, SAVES = "fusing recovers decode", "fusing saves 1-2 %"
_ONE_TO_TWO = (0.01, 0.02)


@dataclass(frozen=True)
class Chip:
    """What a saving is weighed against.

    Attributes:
        name: of the chip.
        bandwidth: of its memory in GB/s, nominal.
        source: of that figure.
        launch: microseconds of one more launch; several where it is not known.
        launch_source: of those.
        launch_measured: whether they were measured on the chip.
    """

    name: str
    bandwidth: float
    source: str
    launch: tuple[float, ...]
    launch_source: str
    launch_measured: bool


CHIPS = (
    Chip(
        "GB10",
        273.0,
        "NVIDIA, DGX Spark: LPDDR5x, 273 GB/s",
        (0.5, 1.0, 2.0, 5.0),
        "nobody has measured it here: what follows if it were so",
        launch_measured=False,
    ),
    Chip(
        "H200",
        4800.0,
        "NVIDIA, H200 data sheet: HBM3e, 4.8 TB/s",
        (0.8, 1.0),  # two runs: 0.78 to 1.04
        "an empty kernel as a node of a graph, reports/bench/gpu.json",
        launch_measured=True,
    ),
)


@dataclass(frozen=True)
class Saving:
    """What fusing saves on a chip.

    Attributes:
        chip: the chip.
        launch: microseconds of one launch.
        saved: microseconds of the launch and the bytes that are saved.
        layer: microseconds of the separate layer: its bytes at the chip's bandwidth, and its launches.
    """

    chip: Chip
    launch: float
    saved: float
    layer: float

    @property
    def share(self) -> float:
        """Of the layer."""
        return self.saved / self.layer


def fusing(model: str, m: int, *, routing: str = "uniform", seed: int = 7) -> tuple[Flow, Flow, tuple[Saving, ...]]:
    """The layer with its quantization separate, and fused, and what that saves on each chip, launch by launch cost.

    Raises:
        ArgumentError: as `flow`.
    """
    separate, fused = (
        flow(KERNEL_PATH, model, m, quantization=way, routing=routing, seed=seed) for way in ("separate", "fused")
    )
    launches = separate.launches - fused.launches
    savings = tuple(
        Saving(
            chip,
            launch,
            separate.floor(chip.bandwidth) - fused.floor(chip.bandwidth) + launches * launch,
            separate.floor(chip.bandwidth) + separate.launches * launch,
        )
        for chip in CHIPS
        for launch in chip.launch
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
            saving.chip.name,
            f"{saving.chip.bandwidth:g}",
            f"{saving.launch:g}",
            f"{saving.saved:.2f}",
            f"{saving.layer:.1f}",
            f"{saving.share:.2%}",
        )
    return table


def claims(separate: Flow, fused: Flow, savings: Sequence[Saving]) -> list[str]:
    """The two claims of the design against these figures, a sentence each, and where each figure is from."""
    chips = tuple(dict.fromkeys(saving.chip for saving in savings))
    recovers, saves = [], []
    for chip in chips:
        mine = [saving for saving in savings if saving.chip == chip]
        shares = f"{_span([saving.share * 100 for saving in mine])} % of the layer on {chip.name}"
        weights = separate.weights / chip.bandwidth / 1e3
        recovers.append(f"{shares}, whose weights alone take {weights:.1f} us of its {_span([s.layer for s in mine])}")
        needed = _span([_launch_for(share, separate, fused, chip) for share in _ONE_TO_TWO])
        given = "not known" if not chip.launch_measured else f"measured as {_span(list(chip.launch))}"
        saves.append(f"on {chip.name} if a launch costs {needed} us ({given})")
    return [
        f'"{RECOVERS}": it saves ' + "; ".join(recovers),
        f'"{SAVES}": true ' + "; ".join(saves),
        *(f"{chip.name}: {chip.source}; a launch: {chip.launch_source}" for chip in chips),
    ]


def _launch_for(share: float, separate: Flow, fused: Flow, chip: Chip) -> float:
    """Microseconds of a launch with which fusing saves this share: saved + n L = share (bytes + N L)."""
    whole = separate.floor(chip.bandwidth)
    less = separate.launches - fused.launches
    saved = whole - fused.floor(chip.bandwidth)
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
                "chip": saving.chip.name,
                "bandwidth_gb_per_s": saving.chip.bandwidth,
                "bandwidth_source": saving.chip.source,
                "launch_us": saving.launch,
                "launch_source": saving.chip.launch_source,
                "saved_us": saving.saved,
                "layer_us": saving.layer,
                "share": saving.share,
            }
            for saving in savings
        ],
        "claims": claims(separate, fused, savings)[:2],
    }
