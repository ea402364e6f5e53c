"""What flows through a layer: conversions, launches, and bytes, taken from the very steps that its path runs.

A path with kernels here is planned on symbolic buffers, so nothing is computed and no GPU is asked; what each launch
moves is what the executor was seen to touch. Other paths are references: their conversions are those of the
reference's steps, and there is no launch to count.

Not counted is the router, which servers run on their own: the layer starts from expert ids.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType

import numpy as np

from refmoe.chips import CHIPS, Chip, Product, kernel_chip
from refmoe.cuda.moe.launches import (
    LayerBuffers,
    LayerOptions,
    LayerShape,
    Step,
    Traffic,
    layer_steps,
    workspace_bytes,
)
from refmoe.errors import ArgumentError, describe
from refmoe.families.case import Case, Shape
from refmoe.families.choices import expert_ids
from refmoe.reference.backends import choose_backend
from refmoe.reference.moe import path_steps

__all__ = [
    "FLOW_MODELS",
    "LAUNCH_COSTS",
    "ROUTINGS",
    "Flow",
    "FlowModel",
    "FlowStep",
    "LaunchCost",
    "Saving",
    "flow",
    "fusing",
]

#: How tokens choose; the functions are in refmoe.families.choices.
ROUTINGS = ("uniform", "same-experts", "empty-experts")

_WEIGHTS = ("gate_up", "gate_up_scales", "down", "down_scales")
_GEMM1 = "gemm1"
_KERNEL_PATH = "cutlass"


@dataclass(frozen=True)
class FlowModel:
    """Sizes of a model's layer: hidden, intermediate, experts, experts a token; and how many layers it has."""

    name: str
    hidden: int
    intermediate: int
    experts: int
    top_k: int
    layers: int


FLOW_MODELS: Mapping[str, FlowModel] = MappingProxyType(
    {
        "gpt-oss-20b": FlowModel("gpt-oss-20b", 2880, 2880, 32, 4, 24),
        "gpt-oss-120b": FlowModel("gpt-oss-120b", 2880, 2880, 128, 4, 36),
    }
)


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


LAUNCH_COSTS = (
    LaunchCost(
        CHIPS["sm_121a"].products[0],
        (0.5, 1.0, 2.0, 5.0),
        "nobody has measured it here: what follows if it were so",
        measured=False,
    ),
    LaunchCost(
        CHIPS["sm_90a"].products[0],
        (0.8, 1.0),  # two runs: 0.78 to 1.04
        "an empty kernel as a node of a graph, reports/bench/gpu.json",
        measured=True,
    ),
)


@dataclass(frozen=True)
class FlowStep:
    """One step: a launch of ours, or of a reference's path only what it does to the numbers.

    Attributes:
        stage: its name.
        conversions: in order.
        entry: of the kernel, None without one.
        grid, block: of the launch, 0 without one.
        traffic: bytes by buffer, None without a launch.
    """

    stage: str
    conversions: tuple[str, ...]
    entry: str | None = None
    grid: int = 0
    block: int = 0
    traffic: Traffic | None = None


@dataclass(frozen=True)
class Flow:
    """A layer.

    Attributes:
        path: the backend.
        quantization: who quantizes the tokens, None on a path where nobody does.
        model: the sizes.
        m: tokens.
        rows: of each expert.
        steps: in order.
    """

    path: str
    quantization: str | None
    model: FlowModel
    m: int
    rows: tuple[int, ...]
    steps: tuple[FlowStep, ...]

    @property
    def launches(self) -> int:
        """Launches of ours."""
        return sum(step.entry is not None for step in self.steps)

    @property
    def first_gemm(self) -> tuple[str, ...]:
        """Conversions up to the first GEMM's output, how paths are usually counted."""
        stages = [step.stage for step in self.steps]
        return tuple(word for step in self.steps[: stages.index(_GEMM1) + 1] for word in step.conversions)

    @property
    def conversions(self) -> tuple[str, ...]:
        """All of the layer."""
        return tuple(word for step in self.steps for word in step.conversions)

    @property
    def read(self) -> int:
        """Bytes read by all launches."""
        return sum(step.traffic.read for step in self.steps if step.traffic)

    @property
    def written(self) -> int:
        """Bytes written by all launches."""
        return sum(step.traffic.written for step in self.steps if step.traffic)

    @property
    def weights(self) -> int:
        """Bytes of weights and their scales, of all that is read."""
        return sum(step.traffic.reads.get(name, 0) for step in self.steps if step.traffic for name in _WEIGHTS)

    def floor(self, bandwidth: float) -> float:
        """Microseconds that all its bytes take at so many GB/s."""
        return (self.read + self.written) / bandwidth / 1e3


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


def flow(
    path: str,
    model: str,
    m: int,
    *,
    quantization: str | None = None,
    routing: str = "uniform",
    seed: int = 7,
    arch: str = "sm_121a",
) -> Flow:
    """The steps of a layer for `m` tokens.

    Args:
        path: a backend's name, in upper or lower case.
        model: a key of `FLOW_MODELS`.
        m: tokens, at least 1.
        quantization: of cutlass "separate", "fused" or "ready"; None takes fused there, and the path's own elsewhere.
        routing: one of `ROUTINGS`.
        seed: of the routing.
        arch: that the launches are planned for, one of `refmoe.chips.KERNEL_ARCHS`.

    Raises:
        ArgumentError: an argument is none of these.
    """
    backend = choose_backend(path)
    if model not in FLOW_MODELS:
        raise ArgumentError("model", describe(model), f"one of {', '.join(FLOW_MODELS)}")
    if not isinstance(m, int) or m < 1:
        raise ArgumentError("m", describe(m), "at least 1 token")
    if routing not in ROUTINGS:
        raise ArgumentError("routing", describe(routing), f"one of {', '.join(ROUTINGS)}")
    chip = kernel_chip(arch)
    sizes = FLOW_MODELS[model]
    rows = _rows(sizes, m, routing, seed)
    if backend.name == _KERNEL_PATH:
        way = quantization or "fused"
        steps = tuple(_launched(step, rows) for step in _plan(sizes, m, way, chip))
        return Flow(backend.name, way, sizes, m, rows, steps)
    reference = path_steps(backend.name, quantization or "separate")
    steps = tuple(FlowStep(step.stage, step.conversions) for step in reference)
    return Flow(backend.name, "separate" if backend.activations == "mxfp8" else None, sizes, m, rows, steps)


def fusing(model: str, m: int, *, routing: str = "uniform", seed: int = 7) -> tuple[Flow, Flow, tuple[Saving, ...]]:
    """The layer with its quantization separate, and fused, and what that saves on each product, launch by launch cost.

    Raises:
        ArgumentError: as `flow`.
    """
    separate, fused = (
        flow(_KERNEL_PATH, model, m, quantization=way, routing=routing, seed=seed) for way in ("separate", "fused")
    )
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


def _rows(model: FlowModel, m: int, routing: str, seed: int) -> tuple[int, ...]:
    """Rows of each expert."""
    case = Case("routing", "ids", Shape(m, e=model.experts, t=model.top_k), "given", seed, routing=routing)
    counts = np.bincount(expert_ids(case).reshape(-1), minlength=model.experts)
    return tuple(int(count) for count in counts)


def _plan(model: FlowModel, m: int, quantization: str, chip: Chip) -> Sequence[Step]:
    """The launches, on buffers that are their own names."""
    options = LayerOptions(quantization, "mxfp8" if quantization == "ready" else "bf16")
    shape = LayerShape(m, model.top_k, model.experts, model.hidden, model.intermediate)
    given = ("x", "topk_ids", "topk_weights", *_WEIGHTS, "gate_up_bias", "down_bias", "out")
    absent = ("gate_up_alpha", "down_alpha", "swiglu_alpha", "swiglu_beta", "swiglu_limit")
    buffers = LayerBuffers(
        **{name: name for name in given},
        **dict.fromkeys(absent),
        input_sf="input_sf" if quantization == "ready" else None,
        workspace={name: name for name in workspace_bytes(shape, options)},
    )
    return layer_steps(shape, options, buffers, multiprocessors=chip.multiprocessors, arch=chip.arch)


def _launched(step: Step, rows: tuple[int, ...]) -> FlowStep:
    plan = step.plan
    return FlowStep(step.stage, step.conversions, plan.kernel.entry, plan.grid, plan.block, step.traffic(rows))
