"""What flows through a layer: conversions, launches, and bytes, taken from the very steps that its path runs.

A path with kernels here is planned on symbolic buffers, so nothing is computed and no GPU is asked; what each launch
moves is what the executor was seen to touch. Other paths are references: their conversions are those of the
reference's steps, and there is no launch to count.

Not counted is the router, which servers run on their own: the layer starts from expert ids, that of DeepSeek-V3 from
the router's logits.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType
from typing import Any

import numpy as np
from rich.table import Table

from refmoe.chips import Chip, kernel_chip
from refmoe.cuda.moe.deepseek import PATH as DEEPSEEK_PATH
from refmoe.cuda.moe.deepseek import (
    DeepSeekBuffers,
    DeepSeekOptions,
    DeepSeekShape,
    deepseek_steps,
    deepseek_workspace_bytes,
)
from refmoe.cuda.moe.integer import OUTPUTS, integer_steps, integer_workspace_bytes
from refmoe.cuda.moe.launches import (
    LaunchStep,
    LayerBuffers,
    LayerOptions,
    LayerShape,
    Traffic,
    layer_steps,
    workspace_bytes,
)
from refmoe.errors import ArgumentError, describe
from refmoe.families.case import Shape
from refmoe.families.choices import expert_ids
from refmoe.families.routing import ROUTE
from refmoe.formats import NVFP4
from refmoe.models import DeepSeekCheckpoint, DeepSeekNVFP4Checkpoint, open_checkpoint
from refmoe.reference.backends import BACKENDS, choose_backend
from refmoe.reference.deepseek.layer import DeepSeekRules
from refmoe.reference.dp4a import MAX_TOKENS
from refmoe.reference.moe import path_steps
from refmoe.reference.moe.deepseek_nvfp4 import deepseek_nvfp4_steps
from refmoe.reference.moe.paths import quantizations_of
from refmoe.tables import plain_table

#: How tokens choose; the functions are in refmoe.families.choices.
ROUTINGS = ("uniform", "same-experts", "empty-experts")

_WEIGHTS = ("gate_up", "gate_up_scales", "down", "down_scales")
_SHARED_WEIGHTS = tuple(f"shared_{name}" for name in _WEIGHTS)
_SHARED_SIZES = ("shared", "groups", "top_groups")
_GEMM1, _GEMM2 = "gemm1", "gemm2"
NVFP4_PATH = "nvfp4"
KERNEL_PATH = "cutlass"
"""The backend that has kernels here for any number of tokens; those of `OUTPUTS` have them for up to 8."""


@dataclass(frozen=True)
class FlowModel:
    """Sizes of a model's layer: hidden, intermediate, experts, experts a token; how many layers with experts it has.

    `weights` is their format, "mxfp4", "nvfp4" or "block_fp8". `shared` is the intermediate size of the shared expert,
    0 without one; `groups` and `top_groups` are those of a router over groups, which of block FP8 is the first launch.
    """

    name: str
    hidden: int
    intermediate: int
    experts: int
    top_k: int
    layers: int
    weights: str = "mxfp4"
    shared: int = 0
    groups: int = 1
    top_groups: int = 1


FLOW_MODELS: Mapping[str, FlowModel] = MappingProxyType(
    {
        "gpt-oss-20b": FlowModel("gpt-oss-20b", 2880, 2880, 32, 4, 24),
        "gpt-oss-120b": FlowModel("gpt-oss-120b", 2880, 2880, 128, 4, 36),
        "deepseek-v3": FlowModel("deepseek-v3", 7168, 2048, 256, 8, 58, "block_fp8", 2048, 8, 4),
    }
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
        quantization: who quantizes the tokens, None on a path where there is no choice.
        output: "bf16", or "q8_1" where the next layer takes it as it is.
        model: the sizes.
        m: tokens.
        rows: of each expert.
        steps: in order.
    """

    path: str
    quantization: str | None
    output: str
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
    def per_gemm(self) -> tuple[str, ...]:
        """In a chain of layers like this one, conversions from one GEMM's output to the next one's: the activation and
        the second GEMM. It says as much of the next layer's first GEMM only if the output is what that takes."""
        stages = [step.stage for step in self.steps]
        between = self.steps[stages.index(_GEMM1) + 1 : stages.index(_GEMM2) + 1]
        return tuple(word for step in between for word in step.conversions)

    @property
    def stays(self) -> bool:
        """Whether the layer takes what a layer like it gives, so that nothing is converted between them."""
        return (self.quantization, self.output) == ("ready", "q8_1")

    @property
    def read(self) -> int:
        """Bytes read by all launches."""
        return sum(step.traffic.read for step in self.steps if step.traffic)

    @property
    def written(self) -> int:
        """Bytes written by all launches."""
        return sum(step.traffic.written for step in self.steps if step.traffic)

    @property
    def bytes(self) -> int:
        """Bytes read and written by all launches."""
        return self.read + self.written

    @property
    def weights(self) -> int:
        """Bytes of weights and their scales, of all that is read."""
        names = (*_WEIGHTS, *_SHARED_WEIGHTS)
        return sum(step.traffic.reads.get(name, 0) for step in self.steps if step.traffic for name in names)

    def floor(self, bandwidth: float) -> float:
        """Microseconds that all its bytes take at so many GB/s."""
        return self.bytes / bandwidth / 1e3


def flow(
    path: str,
    model: str,
    m: int,
    *,
    quantization: str | None = None,
    output: str = "bf16",
    routing: str = "uniform",
    seed: int = 7,
    arch: str = "sm_121a",
) -> Flow:
    """The steps of a layer for `m` tokens.

    Args:
        path: a backend's name, in upper or lower case.
        model: a key of `FLOW_MODELS`, or a checkpoint of gpt-oss or of DeepSeek, whose sizes are taken.
        m: tokens, at least 1.
        quantization: of cutlass "separate", "fused" or "ready", of llama_cpp "separate" or "ready"; None takes fused of
            cutlass, and separate elsewhere.
        output: "bf16", or of llama_cpp "q8_1".
        routing: one of `ROUTINGS`.
        seed: of the routing.
        arch: that the launches are planned for, one of `refmoe.chips.KERNEL_ARCHS`.

    Raises:
        ArgumentError: an argument is none of these, a checkpoint that cannot be read, or a path that does not take its
            weights.
    """
    backend = choose_backend(path)
    if not isinstance(m, int) or m < 1:
        raise ArgumentError("m", describe(m), "at least 1 token")
    if routing not in ROUTINGS:
        raise ArgumentError("routing", describe(routing), f"one of {', '.join(ROUTINGS)}")
    chip = kernel_chip(arch)
    sizes = flow_model(model)
    if sizes.weights not in backend.weights:
        taking = ", ".join(name for name, other in BACKENDS.items() if sizes.weights in other.weights)
        raise ArgumentError("path", f"{backend.name} with the {sizes.weights} weights of {sizes.name}", taking)
    rows = _rows(sizes, m, routing, seed)
    # Of NVFP4 weights only a layer of DeepSeek has a shared expert.
    steps_of = deepseek_nvfp4_steps if sizes.weights == NVFP4.name and sizes.shared else path_steps
    reference = steps_of(backend.name, quantization or "separate", output)
    if backend.name == KERNEL_PATH:
        way = quantization or "fused"
        steps = tuple(_launched(step, rows) for step in _plan(sizes, m, way, chip))
        return Flow(backend.name, way, output, sizes, m, rows, steps)
    if backend.name == DEEPSEEK_PATH:
        steps = tuple(_launched(step, rows) for step in _deepseek_plan(sizes, m, chip))
        return Flow(backend.name, None, output, sizes, m, rows, steps)
    choice = None if quantizations_of(backend.name) == (None,) else quantization or "separate"
    if backend.name in OUTPUTS and m <= MAX_TOKENS:
        options = {"quantization": quantization or "separate", "output": output}
        steps = tuple(_launched(step, rows) for step in _integer_plan(sizes, m, backend.name, chip, **options))
        return Flow(backend.name, choice, output, sizes, m, rows, steps)
    steps = tuple(FlowStep(step.stage, step.conversions) for step in reference)
    return Flow(backend.name, choice, output, sizes, m, rows, steps)


def flow_model(model: str) -> FlowModel:
    """The sizes of a model by name, or those of a checkpoint by its path, a folder or a .gguf file.

    A checkpoint is one of gpt-oss, or one of DeepSeek, in FP8 or as ModelOpt quantizes it to NVFP4.

    Raises:
        ArgumentError: neither.
    """
    if isinstance(model, str) and model in FLOW_MODELS:
        return FLOW_MODELS[model]
    if not isinstance(model, str) or not Path(model).exists():
        needed = f"one of {', '.join(FLOW_MODELS)}, or a checkpoint of gpt-oss or DeepSeek"
        raise ArgumentError("model", describe(model), needed)
    checkpoint = open_checkpoint(model)
    if isinstance(checkpoint, (DeepSeekCheckpoint, DeepSeekNVFP4Checkpoint)):
        said = checkpoint.config
        sizes = (said.hidden_size, said.moe_intermediate_size, said.n_routed_experts, said.num_experts_per_tok)
        shared = said.moe_intermediate_size * said.n_shared_experts
        router = (shared, said.n_group, said.topk_group)
        return FlowModel(checkpoint.path.name, *sizes, len(checkpoint.moe_layers), checkpoint.weights, *router)
    config = checkpoint.config
    return FlowModel(
        checkpoint.path.name,
        config.hidden_size,
        config.intermediate_size,
        config.num_local_experts,
        config.num_experts_per_tok,
        config.num_hidden_layers,
        checkpoint.weights,
    )


def _rows(model: FlowModel, m: int, routing: str, seed: int) -> tuple[int, ...]:
    """Rows of each expert."""
    case = ROUTE.case("given", Shape(m, e=model.experts, t=model.top_k), "ids", seed, routing=routing)
    counts = np.bincount(expert_ids(case).reshape(-1), minlength=model.experts)
    return tuple(int(count) for count in counts)


def _plan(model: FlowModel, m: int, quantization: str, chip: Chip) -> Sequence[LaunchStep]:
    """The launches, on buffers that are their own names."""
    options = LayerOptions(quantization, "mxfp8" if quantization == "ready" else "bf16")
    shape = _shape(model, m)
    buffers = _buffers(quantization, workspace_bytes(shape, options))
    return layer_steps(shape, options, buffers, multiprocessors=chip.multiprocessors, arch=chip.arch)


def _integer_plan(
    model: FlowModel, m: int, path: str, chip: Chip, *, quantization: str, output: str
) -> Sequence[LaunchStep]:
    """Likewise of a layer by integer products."""
    shape = _shape(model, m)
    buffers = _buffers(quantization, integer_workspace_bytes(shape, path, quantization=quantization, output=output))
    return integer_steps(
        shape, path, buffers, quantization=quantization, output=output, multiprocessors=chip.multiprocessors
    )


def _shape(model: FlowModel, m: int) -> LayerShape:
    return LayerShape(m, model.top_k, model.experts, model.hidden, model.intermediate)


def _buffers(quantization: str, workspace: Iterable[str]) -> LayerBuffers:
    """Buffers that are their own names: no scale of the second kind, and of SwiGLU the usual parameters."""
    given = ("x", "topk_ids", "topk_weights", *_WEIGHTS, "gate_up_bias", "down_bias", "out")
    absent = ("gate_up_alpha", "down_alpha", "swiglu_alpha", "swiglu_beta", "swiglu_limit")
    return LayerBuffers(
        **{name: name for name in given},
        **dict.fromkeys(absent),
        input_sf="input_sf" if quantization == "ready" else None,
        workspace={name: name for name in workspace},
    )


def _deepseek_plan(model: FlowModel, m: int, chip: Chip) -> Sequence[LaunchStep]:
    """Likewise of a DeepSeek-V3 layer in block FP8, from the router's logits on."""
    shape = DeepSeekShape(
        *(m, model.top_k, model.experts, model.hidden, model.intermediate, model.shared),
        **{"first_expert": 0, "all_experts": model.experts, "groups": model.groups, "top_groups": model.top_groups},
    )
    given = ("x", "logits", "correction_bias", "topk_ids", "topk_weights", "refused", *_WEIGHTS, "out")
    shared = (*_SHARED_WEIGHTS, "token_rows")
    buffers = DeepSeekBuffers(
        **{name: name for name in given},
        **{name: name if model.shared else None for name in shared},
        workspace={name: name for name in deepseek_workspace_bytes(shape)},
    )
    options = DeepSeekOptions(DeepSeekRules(), logits="f32", layout="k_major", scale=2.5)
    return deepseek_steps(shape, options, buffers, multiprocessors=chip.multiprocessors, arch=chip.arch)


def _launched(step: LaunchStep, rows: tuple[int, ...]) -> FlowStep:
    plan = step.plan
    return FlowStep(step.stage, step.conversions, plan.kernel.entry, plan.grid, plan.block, step.traffic(rows))


def flow_document(flow: Flow, bandwidth: float) -> dict[str, Any]:
    """Everything that the tables show, as JSON values."""
    planned = flow.launches > 0
    return {
        "path": flow.path,
        "quantization": flow.quantization,
        "output": flow.output,
        "model": _model_document(flow.model),
        "m": flow.m,
        "experts_with_rows": sum(rows > 0 for rows in flow.rows),
        "steps": [_step_document(step) for step in flow.steps],
        "conversions_to_first_gemm": list(flow.first_gemm),
        "conversions": list(flow.conversions),
        "conversions_per_gemm": list(flow.per_gemm) if flow.stays else None,
        "launches": flow.launches if planned else None,
        "read": flow.read if planned else None,
        "written": flow.written if planned else None,
        "weights": flow.weights if planned else None,
        "bandwidth_gb_per_s": bandwidth,
        "floor_us": flow.floor(bandwidth) if planned else None,
        "weights_floor_us": flow.weights / bandwidth / 1e3 if planned else None,
    }


def _model_document(model: FlowModel) -> dict[str, Any]:
    """The sizes; what only a model with groups and a shared expert has is left out of others."""
    sizes = dict(vars(model))
    return sizes if model.shared else {name: sizes[name] for name in sizes if name not in _SHARED_SIZES}


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
    launch = ("~launch", ">bytes read", ">written") if flow.launches else ()
    table = plain_table("stage", "~conversions", *launch)
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
    shared = " and the shared one" if flow.model.shared else ""
    lines = [
        f"{len(flow.first_gemm)} conversions up to the first GEMM's output: {'; '.join(flow.first_gemm)}; "
        f"{len(flow.conversions)} in the layer"
    ]
    if flow.stays:
        lines[0] += f", {len(flow.per_gemm)} from one GEMM's output to the next one's: {'; '.join(flow.per_gemm)}"
    if not flow.launches:
        here = f"{flow.path} is a reference here for {flow.m} tokens"
        missing = "no launch of ours exists"
        if flow.path == NVFP4_PATH:
            missing = "its expand and its GEMM are kernels, but nothing of ours launches a layer of them"
        return f"{lines[0]}\n{here}: {missing}, so there is no traffic to count"
    lines += [
        f"{flow.launches} launches, {flow.bytes:,} bytes: {flow.read:,} read, {flow.written:,} written; "
        f"{flow.weights:,} of them are weights of {active} experts{shared}, {flow.weights / flow.bytes:.2%}",
        f"at {bandwidth:g} GB/s all bytes take {flow.floor(bandwidth):.2f} us, the weights alone "
        f"{flow.weights / bandwidth / 1e3:.2f} us",
    ]
    return "\n".join(lines)


def staying_summary(converting: Flow, staying: Flow) -> str:
    """What a layer in a chain saves if its activations stay Q8_1, against one that takes and gives BF16."""
    launches = converting.launches - staying.launches
    conversions = len(converting.conversions) - len(staying.conversions)
    saved = converting.bytes - staying.bytes
    return (
        f"activations that stay Q8_1 save {launches} launch of {converting.launches}, {conversions} conversion of "
        f"{len(converting.conversions)} and {saved:,} bytes of {converting.bytes:,} ({saved / converting.bytes:.2%}), "
        "if nothing but the next layer's first GEMM reads the output: no residual, no norm, no router"
    )
