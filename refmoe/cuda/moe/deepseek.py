"""A whole DeepSeek-V3 layer in block FP8: which kernel, on which buffers, in which order, moving which bytes.

    route   permute   expand   gemm1   activation   gemm2   shared_gemm1   shared_activation   shared_gemm2   finalize

`route` starts from the router's logits; without it ids and weights are given. A rank without the shared expert has none
of its three launches. Nothing here depends on what a device buffer holds, so a plan can be made before the routing is
known, captured in a CUDA graph and replayed.

Ranks: this one has the experts [first_expert, first_expert + E), and of each the slice of the intermediate size that
its weights have (tensor parallelism cuts at multiples of 128, where scales begin). The sum of all ranks' outputs is the
layer's. One rank adds the shared expert, or each its slice of it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from refmoe.cuda.arguments import BF16, INT32_MAX, check_array, check_fill, check_int32, one_of
from refmoe.cuda.block_fp8 import LAYOUTS, POLICIES
from refmoe.cuda.deepseek.activation import deepseek_activation_kernel, deepseek_activation_plan
from refmoe.cuda.deepseek.expand import deepseek_expand_kernel, deepseek_expand_plan
from refmoe.cuda.deepseek.finalize import deepseek_finalize_kernel, deepseek_finalize_plan
from refmoe.cuda.deepseek.routing import deepseek_route_kernel, deepseek_route_plan
from refmoe.cuda.deepseek_gemm import (
    BLOCK,
    INSTRUCTIONS,
    GroupedShape,
    chosen_model,
    deepseek_gemm_plan,
    scale_strides,
)
from refmoe.cuda.device import Device
from refmoe.cuda.launch import Buffer, LaunchPlan
from refmoe.cuda.moe.launches import LaunchStep, Load, Traffic
from refmoe.cuda.routing import MAX_TOP_K, MapBuffers, permute_plan, refused_token, refused_word
from refmoe.errors import ArgumentError, describe
from refmoe.reference.deepseek.layer import DeepSeekMoELayer, DeepSeekRules, as_rules
from refmoe.reference.deepseek.routing import check_sizes
from refmoe.reference.moe.paths import path_steps

PATH = "deepseek_fp8"
DTYPES = {np.dtype(np.float32): "f32", BF16: "bf16"}
"""Of the router's logits."""

_BF16_BYTES, _INT32_BYTES, _INT64_BYTES, _FP32_BYTES = 2, 4, 8, 4

#: Intermediates of which launches read bytes that none wrote: a tile of a GEMM may end behind the last row that has an
#: expert here, and what it gets of rows that nobody has decides no row that anybody has.
READ_WHOLE = frozenset({"expand_codes", "expand_scales", "activation_codes", "activation_scales"})


@dataclass(frozen=True)
class DeepSeekShape:
    """Sizes of a layer on one rank.

    Attributes:
        tokens: T.
        top_k: routed experts of a token, at most 32.
        experts: E, the routed experts of this rank.
        hidden: H, a multiple of 128.
        intermediate: I of a routed expert, a multiple of 128; of this rank's slice under tensor parallelism.
        shared_intermediate: that of the shared expert; 0 without one.
        first_expert: the id of the first of this rank's experts.
        all_experts: of all ranks; 0 where ids are given.
        groups, top_groups: of them.

    Raises:
        ArgumentError: a size that is none of these.
    """

    tokens: int
    top_k: int
    experts: int
    hidden: int
    intermediate: int
    shared_intermediate: int
    first_expert: int
    all_experts: int
    groups: int
    top_groups: int

    def __post_init__(self) -> None:
        for name, least in (("tokens", 0), ("top_k", 1), ("experts", 1), ("first_expert", 0)):
            if getattr(self, name) < least:
                raise ArgumentError(name, str(getattr(self, name)), f"at least {least}")
        if self.top_k > MAX_TOP_K:
            raise ArgumentError("top_k", str(self.top_k), f"at most {MAX_TOP_K}")
        for name in ("hidden", "intermediate", "shared_intermediate"):
            size = getattr(self, name)
            if size % BLOCK or size < (0 if name == "shared_intermediate" else 1):
                raise ArgumentError(name, str(size), f"a positive multiple of {BLOCK}, which share a scale")
        check_int32("tokens", self.rows * (self.hidden // BLOCK), "scales of all rows")

    @property
    def rows(self) -> int:
        """Rows of the expanded tokens, those that stay unused on this rank included."""
        return self.tokens * self.top_k


@dataclass(frozen=True)
class DeepSeekOptions:
    """What is computed, where there is a choice.

    Attributes:
        rules: as in `refmoe.reference.moe_layer`; the kernels quantize by "deepgemm" or "exact".
        logits: of the router, "f32" or "bf16".
        layout: of the activations' scales, "k_major" or "mn_major".
        scale: the factor on the normalised weights.

    Raises:
        ArgumentError: any other word.
    """

    rules: DeepSeekRules
    logits: str
    layout: str
    scale: float

    def __post_init__(self) -> None:
        if self.rules.quantizer not in POLICIES:
            found = f"the quantizer {self.rules.quantizer}"
            needed = f"{' or '.join(POLICIES)}: others are references here, refmoe.reference.moe_layer(rules=...)"
            raise ArgumentError("rules", found, needed)
        one_of("logits", self.logits, tuple(DTYPES.values()))
        one_of("layout", self.layout, LAYOUTS)


@dataclass(frozen=True)
class DeepSeekBuffers:
    """Every buffer of a layer, each from a multiple of 16 bytes on; of tensor maps from a multiple of 128.

    Attributes:
        x: BF16 [T, H].
        logits: [T, all experts], or None where ids are given.
        correction_bias: float32 [all experts], or None.
        topk_ids, topk_weights: int32 and float32 [T, k]; written where there are logits.
        refused: uint32 [1], 0 before the launches, see `refmoe.cuda.routing.refused_token`; None where ids are given.
        gate_up, gate_up_scales: E4M3 [E, 2 I, H] and float32 [E, 2 I / 128, H / 128].
        down, down_scales: E4M3 [E, H, I] and float32 [E, H / 128, I / 128].
        shared_gate_up, shared_gate_up_scales, shared_down, shared_down_scales: of the shared expert, or None.
        token_rows: int64 [2], 0 and T: the rows of the shared expert; None without one.
        out: BF16 [T, H].
        workspace: by name, of `deepseek_workspace_bytes`.
    """

    x: Buffer
    logits: Buffer | None
    correction_bias: Buffer | None
    topk_ids: Buffer
    topk_weights: Buffer
    refused: Buffer | None
    gate_up: Buffer
    gate_up_scales: Buffer
    down: Buffer
    down_scales: Buffer
    shared_gate_up: Buffer | None
    shared_gate_up_scales: Buffer | None
    shared_down: Buffer | None
    shared_down_scales: Buffer | None
    token_rows: Buffer | None
    out: Buffer
    workspace: Mapping[str, Buffer]


def deepseek_workspace_bytes(shape: DeepSeekShape) -> Mapping[str, int]:
    """Bytes of each intermediate buffer, by name; they may hold anything before the first launch."""
    rows, hidden, inner = shape.rows, shape.hidden, shape.intermediate
    sizes = {
        "offsets": (shape.experts + 1) * _INT64_BYTES,
        "permuted_to_unpermuted": rows * _INT32_BYTES,
        "unpermuted_to_permuted": rows * _INT32_BYTES,
        **_quantized("expand", rows * hidden),
        "gemm1_out": rows * 2 * inner * _BF16_BYTES,
        **_quantized("activation", rows * inner),
        "gemm2_out": rows * hidden * _BF16_BYTES,
    }
    if always := shape.shared_intermediate:
        sizes |= {
            **_quantized("expand_token", shape.tokens * hidden),
            "shared_gemm1_out": shape.tokens * 2 * always * _BF16_BYTES,
            **_quantized("shared_activation", shape.tokens * always),
            "shared_gemm2_out": shape.tokens * hidden * _BF16_BYTES,
        }
    return sizes


def _quantized(name: str, elements: int) -> dict[str, int]:
    return {f"{name}_codes": elements, f"{name}_scales": elements // BLOCK * _FP32_BYTES}


def deepseek_steps(
    shape: DeepSeekShape,
    options: DeepSeekOptions,
    buffers: DeepSeekBuffers,
    *,
    multiprocessors: int,
    arch: str,
    model: str | None = None,
) -> tuple[LaunchStep, ...]:
    """The launches of a layer in order; none for no tokens.

    Args:
        shape: sizes.
        options: what is computed.
        buffers: with `deepseek_workspace_bytes(shape)` in its workspace.
        multiprocessors: of the device.
        arch: of the device.
        model: the accumulation model that names the products' instruction, one of
            `refmoe.cuda.deepseek_gemm.accumulation_models(arch)`; None for the first.

    Raises:
        ArgumentError: a model that `arch` does not have, or an `arch` without any.
    """
    chosen = chosen_model(model, arch)
    if shape.tokens == 0:
        return ()
    return tuple(_Planner(shape, options, buffers, multiprocessors, chosen).steps())


@dataclass(frozen=True)
class _Planner:
    shape: DeepSeekShape
    options: DeepSeekOptions
    buffers: DeepSeekBuffers
    multiprocessors: int
    model: str

    def steps(self) -> Iterator[LaunchStep]:
        shape = self.shape
        if self.buffers.logits is not None:
            yield self._route()
        yield self._permute()
        yield self._expand()
        yield self._product("gemm1", "expand", "gate_up", 2 * shape.intermediate, shape.hidden)
        yield self._activation("activation", "gemm1", shape.intermediate)
        yield self._product("gemm2", "activation", "down", shape.hidden, shape.intermediate)
        if always := shape.shared_intermediate:
            yield self._product("shared_gemm1", "expand_token", "shared_gate_up", 2 * always, shape.hidden)
            yield self._activation("shared_activation", "shared_gemm1", always)
            yield self._product("shared_gemm2", "shared_activation", "shared_down", shape.hidden, always)
        yield self._finalize()

    def _step(
        self,
        stage: str,
        plan: LaunchPlan,
        reads: Callable[[Load], dict[str, int]],
        writes: Callable[[Load], dict[str, int]],
    ) -> LaunchStep:
        known = {step.stage: step.conversions for step in path_steps(PATH)}
        conversions = known.get(stage.removeprefix("shared_"), ())
        return LaunchStep(
            stage, plan, conversions, tuple(writes(Load(()))), lambda load: Traffic(reads(load), writes(load))
        )

    def _route(self) -> LaunchStep:
        shape, buffers, options = self.shape, self.buffers, self.options
        plan = deepseek_route_plan(
            deepseek_route_kernel(options.logits, shape.all_experts, options.rules.weights),
            buffers.logits,
            buffers.correction_bias,
            buffers.topk_ids,
            buffers.topk_weights,
            buffers.refused,
            **{"tokens": shape.tokens, "experts": shape.all_experts, "top_k": shape.top_k},
            **{"groups": shape.groups, "top_groups": shape.top_groups},
            scale=options.scale,
        )
        reads = {"logits": shape.tokens * shape.all_experts * (_FP32_BYTES if options.logits == "f32" else _BF16_BYTES)}
        if buffers.correction_bias is not None:
            reads["correction_bias"] = shape.all_experts * _FP32_BYTES
        size = shape.rows * _INT32_BYTES
        return self._step("route", plan, lambda load: reads, lambda load: {"topk_ids": size, "topk_weights": size})

    def _permute(self) -> LaunchStep:
        shape, space = self.shape, self.buffers.workspace
        maps = MapBuffers(space["offsets"], space["permuted_to_unpermuted"], space["unpermuted_to_permuted"])
        sizes = {"tokens": shape.tokens, "top_k": shape.top_k, "experts": shape.experts}
        plan = permute_plan(self.buffers.topk_ids, maps, **sizes, first_expert=shape.first_expert)
        size = shape.rows * _INT32_BYTES
        writes = {
            "offsets": (shape.experts + 1) * _INT64_BYTES,
            "permuted_to_unpermuted": size,
            "unpermuted_to_permuted": size,
        }
        return self._step("permute", plan, lambda load: {"topk_ids": size}, lambda load: writes)

    def _expand(self) -> LaunchStep:
        shape, space, rules = self.shape, self.buffers.workspace, self.options.rules
        shared = bool(shape.shared_intermediate)
        plan = deepseek_expand_plan(
            deepseek_expand_kernel("bf16", rules.quantizer, rules.scales),
            self.buffers.x,
            space["unpermuted_to_permuted"],
            (space["expand_codes"], space["expand_scales"]),
            (space["expand_token_codes"], space["expand_token_scales"]) if shared else None,
            **{"tokens": shape.tokens, "top_k": shape.top_k, "k": shape.hidden},
            layout=self.options.layout,
            multiprocessors=self.multiprocessors,
        )
        reads = {
            "x": shape.tokens * shape.hidden * _BF16_BYTES,
            "unpermuted_to_permuted": shape.rows * _INT32_BYTES,
        }
        tokens = _quantized("expand_token", shape.tokens * shape.hidden) if shared else {}
        return self._step(
            "expand",
            plan,
            lambda load: reads,
            lambda load: {**_quantized("expand", load.used * shape.hidden), **tokens},
        )

    def _product(self, stage: str, source: str, weights: str, n: int, k: int) -> LaunchStep:
        """A grouped GEMM: of the routed experts, or of the shared one as a group of one."""
        shape, space, buffers = self.shape, self.buffers.workspace, self.buffers
        shared = stage.startswith("shared_")
        rows, experts = (shape.tokens, 1) if shared else (shape.rows, shape.experts)
        grouped = GroupedShape(rows, experts, n, k)
        width = k // BLOCK if self.options.layout == "k_major" else rows
        instruction = INSTRUCTIONS[self.model]
        plan = deepseek_gemm_plan(
            self.model,
            instruction.choose_tile_m(-(-rows // experts)),
            "bf16",
            (
                getattr(buffers, weights),
                getattr(buffers, f"{weights}_scales"),
                space[f"{source}_codes"],
                space[f"{source}_scales"],
            ),
            buffers.token_rows if shared else space["offsets"],
            None,
            space[f"{stage}_out"],
            grouped,
            scale_strides(self.options.layout, width, grouped),
            multiprocessors=self.multiprocessors,
        )

        def reads(load: Load) -> dict[str, int]:
            used, active = (shape.tokens, 1) if shared else (load.used, load.active)
            return {
                weights: active * n * k,
                f"{weights}_scales": active * (n // BLOCK) * (k // BLOCK) * _FP32_BYTES,
                **_quantized(source, used * k),
                "token_rows" if shared else "offsets": (experts + 1) * _INT64_BYTES,
            }

        def writes(load: Load) -> dict[str, int]:
            return {f"{stage}_out": (shape.tokens if shared else load.used) * n * _BF16_BYTES}

        return self._step(stage, plan, reads, writes)

    def _activation(self, stage: str, source: str, width: int) -> LaunchStep:
        shape, space, rules = self.shape, self.buffers.workspace, self.options.rules
        shared = stage.startswith("shared_")
        rows, experts = (shape.tokens, 1) if shared else (shape.rows, shape.experts)
        plan = deepseek_activation_plan(
            deepseek_activation_kernel("bf16", rules.quantizer, rules.scales),
            space[f"{source}_out"],
            self.buffers.token_rows if shared else space["offsets"],
            space[f"{stage}_codes"],
            space[f"{stage}_scales"],
            masked=False,
            **{"rows": rows, "experts": experts, "width": width},
            layout=self.options.layout,
            multiprocessors=self.multiprocessors,
        )

        def used(load: Load) -> int:
            return shape.tokens if shared else load.used

        def reads(load: Load) -> dict[str, int]:
            return {
                f"{source}_out": used(load) * 2 * width * _BF16_BYTES,
                "token_rows" if shared else "offsets": _INT64_BYTES,  # the rows in use
            }

        return self._step(stage, plan, reads, lambda load: _quantized(stage, used(load) * width))

    def _finalize(self) -> LaunchStep:
        shape, space, buffers = self.shape, self.buffers.workspace, self.buffers
        shared = bool(shape.shared_intermediate)
        plan = deepseek_finalize_plan(
            deepseek_finalize_kernel("bf16", "bf16", self.options.rules.order),
            space["gemm2_out"],
            space["unpermuted_to_permuted"],
            buffers.topk_weights,
            space["shared_gemm2_out"] if shared else None,
            buffers.out,
            **{"tokens": shape.tokens, "top_k": shape.top_k, "width": shape.hidden},
            scale=1.0,
            multiprocessors=self.multiprocessors,
        )
        row, tokens = shape.hidden * _BF16_BYTES, shape.tokens

        def reads(load: Load) -> dict[str, int]:
            maps = {"unpermuted_to_permuted": shape.rows * _INT32_BYTES, "topk_weights": shape.rows * _FP32_BYTES}
            return {"gemm2_out": load.used * row, **maps, **({"shared_gemm2_out": tokens * row} if shared else {})}

        return self._step("finalize", plan, reads, lambda load: {"out": tokens * row})


# --- NumPy arrays ---------------------------------------------------------------------------------------------------


@dataclass(frozen=True, eq=False)
class DeepSeekArguments:
    """The arrays of a call.

    Attributes:
        x: BF16 [T, H], C-contiguous as all of them.
        gate_up, gate_up_scales: uint8 E4M3 [E, 2 I, H], gates first, and float32 [E, 2 I / 128, H / 128].
        down, down_scales: uint8 [E, H, I] and float32 [E, H / 128, I / 128].
        top_k: routed experts of a token.
        logits: float32 or BF16 [T, experts of all ranks]; or `topk_ids` and `topk_weights`.
        correction_bias: float32 [experts of all ranks], or None; with logits.
        groups, top_groups, scale: of the router; with logits.
        topk_ids, topk_weights: int32 and float32 [T, k].
        shared: gate_up, its scales, down and its scales of the shared expert, [2 S, H] and so on; or None.
        first_expert: the id of this rank's first expert.
    """

    x: npt.NDArray[Any]
    gate_up: npt.NDArray[np.uint8]
    gate_up_scales: npt.NDArray[np.float32]
    down: npt.NDArray[np.uint8]
    down_scales: npt.NDArray[np.float32]
    top_k: int
    logits: npt.NDArray[Any] | None = None
    correction_bias: npt.NDArray[np.float32] | None = None
    groups: int = 1
    top_groups: int = 1
    scale: float = 1.0
    topk_ids: npt.NDArray[np.int32] | None = None
    topk_weights: npt.NDArray[np.float32] | None = None
    shared: tuple[npt.NDArray[Any], ...] | None = None
    first_expert: int = 0


def layer_arguments(
    layer: DeepSeekMoELayer,
    x: npt.NDArray[Any],
    ids: npt.NDArray[np.int32],
    *,
    first_expert: int = 0,
    **given: Any,
) -> DeepSeekArguments:
    """The arrays of a call of a layer whose experts are looked up one by one, for tokens that go to `ids`.

    Only experts that a token goes to are looked up and written. The others are pages of zeros, which take no memory
    until they are read, and no launch reads them: 8 of DeepSeek-V3's 256 experts are 0.35 GB of 11.3.

    Args:
        layer: the weights.
        x: BF16 [T, H].
        ids: int32 [T, k], the choices that the kernels will make or are given.
        first_expert: the id of the layer's first expert.
        given: logits, or topk_ids and topk_weights, of `DeepSeekArguments`.
    """
    sizes = {
        "gate_up": (layer.experts, 2 * layer.intermediate, layer.hidden),
        "down": (layer.experts, layer.hidden, layer.intermediate),
    }
    arrays: dict[str, Any] = {}
    for name, (experts, rows, columns) in sizes.items():
        arrays[name] = np.zeros((experts, rows, columns), np.uint8)
        arrays[f"{name}_scales"] = np.zeros((experts, rows // BLOCK, columns // BLOCK), np.float32)
    local = np.unique(ids) - first_expert
    for number in local[(local >= 0) & (local < layer.experts)]:
        expert = layer.expert(int(number))
        for name, tensor in (("gate_up", expert.gate_up), ("down", expert.down)):
            arrays[name][number], arrays[f"{name}_scales"][number] = tensor.codes, tensor.scales
    shared = None
    if (always := layer.shared) is not None:
        shared = (always.gate_up.codes, always.gate_up.scales, always.down.codes, always.down.scales)
    if "logits" in given:
        router = {"correction_bias": layer.correction_bias, "groups": layer.groups, "top_groups": layer.top_groups}
        given = {**router, "scale": layer.scale, **given}
    return DeepSeekArguments(x, **arrays, top_k=layer.top_k, shared=shared, first_expert=first_expert, **given)


def deepseek_moe(
    arguments: DeepSeekArguments,
    *,
    device: Device,
    rules: DeepSeekRules | str | None = None,
    layout: str = "k_major",
    model: str | None = None,
    fill: int = 0,
) -> npt.NDArray[Any]:
    """A whole layer with the production kernels: `refmoe.reference.moe_layer(path="deepseek_fp8")` of the same logits.

    Args:
        arguments: the arrays.
        device: where the kernels run.
        rules: what systems do differently; None for refmoe's own.
        layout: of the activations' scales between the launches, "k_major" or "mn_major"; it decides no result.
        model: the accumulation model that names the products' instruction; None for the device's first.
        fill: byte that every buffer which is written holds before the first launch.

    Returns:
        BF16 [T, H].

    Raises:
        ArgumentError: an argument that does not fit, and nothing has run; or a token without an answer, which the
            kernels find.
    """
    written, steps = deepseek_launches(arguments, device=device, rules=rules, layout=layout, model=model, fill=fill)
    for step in steps:
        device.launch(step.plan)
    if "refused" in written:
        token = refused_token(int(np.ascontiguousarray(device.download(written["refused"])).view(np.uint32)[0]))
        if token is not None:
            found = f"a score of NaN or +Inf, or too few finite ones, in token {token}"
            raise ArgumentError("logits", found, f"at least {arguments.top_k} finite scores and none above")
    out: npt.NDArray[Any] = device.download(written["out"]).view(BF16).reshape(arguments.x.shape)
    return out


def deepseek_launches(
    arguments: DeepSeekArguments,
    *,
    device: Device,
    rules: DeepSeekRules | str | None = None,
    layout: str = "k_major",
    model: str | None = None,
    fill: int = 0,
) -> tuple[dict[str, Buffer], tuple[LaunchStep, ...]]:
    """As `deepseek_moe`, but nothing is launched yet: the buffers that are written, by name, and the launches in order.

    Raises:
        ArgumentError: an argument that does not fit.
    """
    check_fill(fill)
    shape, logits = checked_shape(arguments)
    options = DeepSeekOptions(as_rules(rules), logits, layout, arguments.scale)
    given = arguments
    written = {
        name: device.output(name, (size,), fill, initialised=name in READ_WHOLE)
        for name, size in deepseek_workspace_bytes(shape).items()
    }
    out = device.output("out", (shape.tokens, shape.hidden * BF16.itemsize), fill)

    def uploaded(name: str, array: npt.NDArray[Any] | None) -> Buffer | None:
        return None if array is None else device.upload(name, array.ravel())

    routed: dict[str, Buffer] = {}
    if given.logits is not None:
        sizes = {"topk_ids": shape.rows * _INT32_BYTES, "topk_weights": shape.rows * _FP32_BYTES}
        routed = {name: device.output(name, (size,), fill) for name, size in sizes.items()}
        routed["refused"] = refused_word(device)
    names = ("shared_gate_up", "shared_gate_up_scales", "shared_down", "shared_down_scales")
    buffers = DeepSeekBuffers(
        x=device.upload("x", given.x.ravel()),
        logits=uploaded("logits", given.logits),
        correction_bias=uploaded("correction_bias", given.correction_bias),
        topk_ids=routed.get("topk_ids", uploaded("topk_ids", given.topk_ids)),
        topk_weights=routed.get("topk_weights", uploaded("topk_weights", given.topk_weights)),
        refused=routed.get("refused"),
        **{name: uploaded(name, getattr(given, name)) for name in ("gate_up", "gate_up_scales", "down", "down_scales")},
        **{name: uploaded(name, array) for name, array in zip(names, given.shared or (None,) * 4, strict=True)},
        token_rows=None if given.shared is None else uploaded("token_rows", np.array([0, shape.tokens], np.int64)),
        out=out,
        workspace=written,
    )
    steps = deepseek_steps(
        shape, options, buffers, multiprocessors=device.multiprocessors, arch=device.arch, model=model
    )
    return {**routed, **written, "out": out}, steps


def checked_shape(given: DeepSeekArguments) -> tuple[DeepSeekShape, str]:
    """The sizes of a call that fits together, and the type of its logits.

    Raises:
        ArgumentError: the first argument that does not fit.
    """
    if not isinstance(given.x, np.ndarray) or given.x.dtype != BF16 or given.x.ndim != 2:
        raise ArgumentError("x", describe(given.x), "bfloat16 [T, H]")
    tokens, hidden = given.x.shape
    check_array("x", given.x, BF16, (tokens, hidden))
    if not isinstance(given.down, np.ndarray) or given.down.ndim != 3 or not given.down.shape[0]:
        raise ArgumentError("down", describe(given.down), f"uint8 [E, {hidden}, I] with at least one expert")
    experts, _, intermediate = given.down.shape
    always = 0
    if given.shared is not None:
        if len(given.shared) != 4 or not isinstance(given.shared[2], np.ndarray) or given.shared[2].ndim != 2:
            raise ArgumentError("shared", describe(given.shared), "gate_up, its scales, down [H, S] and its scales")
        always = given.shared[2].shape[1]
    all_experts, logits = 0, "f32"
    if given.logits is not None:
        if given.topk_ids is not None or given.topk_weights is not None:
            raise ArgumentError("topk_ids", "ids or weights beside logits", "logits alone, or ids and weights")
        check_sizes(
            given.logits, given.correction_bias, given.top_k, given.groups, given.top_groups, given.scale, "deepseek"
        )
        all_experts, logits = given.logits.shape[1], DTYPES[given.logits.dtype]
        check_array("logits", given.logits, given.logits.dtype, (tokens, all_experts))
        if not 0 <= given.first_expert <= all_experts - experts:
            needed = f"0 to {all_experts - experts}: the id of the first of {experts} experts"
            raise ArgumentError("first_expert", describe(given.first_expert), needed)
    else:
        if given.correction_bias is not None:
            raise ArgumentError("correction_bias", describe(given.correction_bias), "None without logits")
        check_array("topk_ids", given.topk_ids, np.dtype(np.int32), (tokens, given.top_k))
        check_array("topk_weights", given.topk_weights, np.dtype(np.float32), (tokens, given.top_k))
        _check_ids(given, experts)
    shape = DeepSeekShape(
        *(tokens, given.top_k, experts, hidden, intermediate, always, given.first_expert),
        *(all_experts, given.groups, given.top_groups),
    )
    _check_weights("gate_up", given.gate_up, given.gate_up_scales, (experts, 2 * intermediate, hidden))
    _check_weights("down", given.down, given.down_scales, (experts, hidden, intermediate))
    if given.shared is not None:
        _check_weights("shared gate_up", *given.shared[:2], (2 * always, hidden))
        _check_weights("shared down", *given.shared[2:], (hidden, always))
    return shape, logits


def _check_weights(name: str, codes: object, scales: object, shape: tuple[int, ...]) -> None:
    check_array(name, codes, np.dtype(np.uint8), shape)
    tiles = (*shape[:-2], shape[-2] // BLOCK, shape[-1] // BLOCK)
    check_array(f"{name}_scales", scales, np.dtype(np.float32), tiles)


def _check_ids(given: DeepSeekArguments, experts: int) -> None:
    """An expert of this rank twice in a token has no row for one of the two."""
    assert given.topk_ids is not None
    if not 0 <= given.first_expert <= INT32_MAX - experts:
        raise ArgumentError("first_expert", describe(given.first_expert), "the global id of this rank's first expert")
    ordered = np.sort(given.topk_ids, axis=1)
    own = (ordered >= given.first_expert) & (ordered < given.first_expert + experts)
    token, rank = np.nonzero((ordered[:, 1:] == ordered[:, :-1]) & own[:, 1:])
    if token.size:
        found = f"expert {ordered[token[0], rank[0]]} twice in token {token[0]}"
        raise ArgumentError("topk_ids", found, f"{given.top_k} different experts in each token")
