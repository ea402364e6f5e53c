"""Whole MoE layers, router to output, along the paths that servers take, to the last bit.

Between the steps: GEMM1 gives BF16 of RN(acc + bias); the activation is FP32 on those BF16 values and is requantized
from FP32 (in BF16 paths rounded to BF16); GEMM2 gives BF16 without bias; finalize adds the bias before it weights, in
FP32, in the order of the ranks, and rounds to BF16 once. `refmoe.reference.moe.paths` lists each path's steps;
`refmoe.reference.moe.float64` is the same formula without any rounding between them.

A backend's path is its formats, its roundings and the accumulation model of its instruction. A kernel that splits K, or
that keeps FP32 between GEMM1 and the activation, differs there from the path of its name. Of the paths
`llama_cpp` alone does: there the rows of both GEMMs are FP32.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal, overload

import numpy as np
from numpy.typing import NDArray

from refmoe.errors import ArgumentError, describe
from refmoe.policy import EdgePolicy, ScaleMode, as_edge_policy, as_scale_mode
from refmoe.reference import fp32
from refmoe.reference.arrays import checked_array
from refmoe.reference.backends import BACKENDS, Accumulation, Backend, choose_backend
from refmoe.reference.deepseek.fp8_path import DeepSeekRun
from refmoe.reference.deepseek.layer import DeepSeekMoELayer, DeepSeekRules, as_rules
from refmoe.reference.deepseek.nvfp4_layer import BF16Expert, DeepSeekNVFP4Layer
from refmoe.reference.deepseek.nvfp4_path import DeepSeekNVFP4Run, check_rules
from refmoe.reference.layout import checked_count
from refmoe.reference.mma import AccumulationModel, Evidence, Kind, as_model
from refmoe.reference.moe.deepseek_nvfp4 import deepseek_nvfp4_steps, evidence_with_bf16
from refmoe.reference.moe.layer import MoELayer
from refmoe.reference.moe.paths import Arrays, Run, accumulation, path_steps
from refmoe.reference.q8_1 import Q8Tensor

AnyLayer = MoELayer | DeepSeekMoELayer | DeepSeekNVFP4Layer
"""What `moe_layer` computes."""


@dataclass(frozen=True, eq=False)
class MoEStages:
    """Every intermediate of one layer.

    Attributes:
        path: the backend.
        arch: the architecture whose arithmetic was taken.
        model: of the GEMMs.
        evidence: what the model rests on there.
        stages: by stage name, in the order in which they ran: the arrays by name. `routing` has ids, weights, offsets,
            the two maps, and logits if it computed them; `quantize` codes and linear scales, or Q8_1's codes, d and s;
            `expand` codes and scales in 128x4 (of NVFP4 nvfp4_codes and nvfp4_scales), or rows in BF16; `gemm1` and
            `gemm2` out, BF16, of llama_cpp FP32; `activation` as `expand`, or Q8_1; `finalize` out, or Q8_1. Of
            deepseek_fp8 scales are FP32, [rows, K/128]; `expand` has token_codes and token_scales too; `shared`
            gate_up, codes, scales and out, or nothing. Of a DeepSeek layer in NVFP4 `shared` has its own
            token_codes and token_scales, linear, or of BF16 tokens gate_up, rows and out.
    """

    path: str
    arch: str
    model: str
    evidence: Evidence
    stages: Mapping[str, Arrays]

    @property
    def output(self) -> NDArray[Any]:
        """The layer's output, bfloat16 [T, H].

        Raises:
            ArgumentError: it is Q8_1.
        """
        if "out" not in self.stages["finalize"]:
            raise ArgumentError("output", "a layer whose output is Q8_1", "its q8_1, or a layer with output=bf16")
        return self.stages["finalize"]["out"]

    @property
    def q8_1(self) -> Q8Tensor:
        """The layer's output in Q8_1 [T, H].

        Raises:
            ArgumentError: it is BF16.
        """
        if "out" in self.stages["finalize"]:
            raise ArgumentError("q8_1", "a layer whose output is BF16", "its output, or a layer with output=q8_1")
        return Q8Tensor(**self.stages["finalize"])


@overload
def moe_layer(
    x: NDArray[Any] | Q8Tensor,
    layer: AnyLayer,
    *,
    path: str = ...,
    quantization: str = ...,
    output: Literal["bf16"] = ...,
    topk_ids: NDArray[np.int32] | None = ...,
    topk_weights: NDArray[np.float32] | None = ...,
    arch: str | None = ...,
    input_sf: NDArray[np.uint8] | None = ...,
    first_expert: int = ...,
    model: AccumulationModel | str | None = ...,
    mode: ScaleMode | str = ...,
    edge: EdgePolicy | str = ...,
    rules: DeepSeekRules | str | None = ...,
    stages: Literal[False] = ...,
) -> NDArray[Any]: ...


@overload
def moe_layer(
    x: NDArray[Any] | Q8Tensor,
    layer: AnyLayer,
    *,
    path: str = ...,
    quantization: str = ...,
    output: Literal["q8_1"],
    topk_ids: NDArray[np.int32] | None = ...,
    topk_weights: NDArray[np.float32] | None = ...,
    arch: str | None = ...,
    input_sf: NDArray[np.uint8] | None = ...,
    first_expert: int = ...,
    model: AccumulationModel | str | None = ...,
    mode: ScaleMode | str = ...,
    edge: EdgePolicy | str = ...,
    rules: DeepSeekRules | str | None = ...,
    stages: Literal[False] = ...,
) -> Q8Tensor: ...


@overload
def moe_layer(
    x: NDArray[Any] | Q8Tensor,
    layer: AnyLayer,
    *,
    path: str = ...,
    quantization: str = ...,
    output: str = ...,
    topk_ids: NDArray[np.int32] | None = ...,
    topk_weights: NDArray[np.float32] | None = ...,
    arch: str | None = ...,
    input_sf: NDArray[np.uint8] | None = ...,
    first_expert: int = ...,
    model: AccumulationModel | str | None = ...,
    mode: ScaleMode | str = ...,
    edge: EdgePolicy | str = ...,
    rules: DeepSeekRules | str | None = ...,
    stages: Literal[True],
) -> MoEStages: ...


def moe_layer(
    x: NDArray[Any] | Q8Tensor,
    layer: AnyLayer,
    *,
    path: str = "cutlass",
    quantization: str = "separate",
    output: str = "bf16",
    topk_ids: NDArray[np.int32] | None = None,
    topk_weights: NDArray[np.float32] | None = None,
    arch: str | None = None,
    input_sf: NDArray[np.uint8] | None = None,
    first_expert: int = 0,
    model: AccumulationModel | str | None = None,
    mode: ScaleMode | str = ScaleMode.RCEIL,
    edge: EdgePolicy | str = EdgePolicy.EXACT,
    rules: DeepSeekRules | str | None = None,
    stages: bool = False,
) -> NDArray[Any] | Q8Tensor | MoEStages:
    """One MoE layer.

    Args:
        x: bfloat16 [T, H], C-contiguous; for "ready" uint8 [T, H], E4M3 codes, and on llama_cpp Q8_1 [T, H].
        layer: the weights; of deepseek_fp8 a `DeepSeekMoELayer`, of nvfp4 and marlin a `MoELayer` or a
            `DeepSeekNVFP4Layer`.
        path: a backend's name, in upper or lower case, see `refmoe.reference.backends`.
        quantization: of a cutlass path: "separate", "fused" or "ready"; all three give the same bytes. Of llama_cpp
            "separate", or "ready" for the Q8_1 output of another layer.
        output: "bf16", or of llama_cpp "q8_1": the sums of finalize quantized as FP32 has them.
        topk_ids: int32 [T, k], experts by rank, all different within a token; with `topk_weights` instead of routing.
        topk_weights: float32 [T, k].
        arch: whose arithmetic; None takes the backend's first.
        input_sf: scales of ready codes, uint8 [T, H / 32], linear; None for Q8_1, which has its own.
        first_expert: the id of the layer's first expert; choices of others are skipped.
        model: another accumulation model than the architecture's.
        mode: how the scales of activations are chosen; a `ScaleMode` or its lower-case name.
        edge: what zeros, NaN and Inf become; an `EdgePolicy` or its lower-case name.
        rules: of deepseek_fp8 what systems do differently, or the name of one: "trtllm". `mode` and `edge` are not its.
            Of a DeepSeek layer in NVFP4 `DeepSeekRules` with other weights or another order.
        stages: give every intermediate.

    Returns:
        bfloat16 [T, H], or Q8_1, or `MoEStages`.

    Raises:
        ArgumentError: a wrong dtype or shape; an unknown path, quantization, arch or model, or one that does not go
            with another; ids without weights; no ids and no router (ready codes are not routed on); what the steps
            refuse.
    """
    of_deepseek = isinstance(layer, DeepSeekNVFP4Layer)
    steps = (deepseek_nvfp4_steps if of_deepseek else path_steps)(path, quantization, output)
    backend = choose_backend(path, arch)
    chosen_arch, adds = accumulation(path, arch)
    chosen = as_model(adds.model if model is None else model)
    _check_tokens(x, layer, backend, quantization, input_sf)
    if layer.weights not in backend.weights:
        taking = ", ".join(name for name, other in BACKENDS.items() if layer.weights in other.weights)
        needed = f"{' or '.join(backend.weights)} weights, or one of the paths {taking}"
        raise ArgumentError("layer", f"{layer.weights} weights with {backend.name}", needed)
    _check_routing(x, layer, topk_ids, topk_weights)
    if backend.activations == "q8_1" and model is not None:
        raise ArgumentError("model", f"{chosen.name} with {backend.name}", "None: its sums of a block are integers")
    if backend.activations == "nvfp4" and model is not None:
        raise ArgumentError("model", f"{chosen.name} with {backend.name}", "None: one instruction multiplies NVFP4")
    if backend.activations == "bf16" and chosen.kind is Kind.FUSED and chosen.scaled:
        raise ArgumentError("model", f"{chosen.name} with {backend.name}", "a model with BF16 operands")
    first = checked_count("first_expert", first_expert)
    run: Run | DeepSeekRun | DeepSeekNVFP4Run
    if isinstance(layer, DeepSeekNVFP4Layer):
        assert not isinstance(x, Q8Tensor)
        _check_no_policy(f"{backend.name} and a DeepSeek layer", "its activations are not MXFP8", mode, edge)
        checked = as_rules(rules)
        check_rules(checked)
        run = DeepSeekNVFP4Run(x, layer, chosen, topk_ids, topk_weights, first, checked)
    elif isinstance(layer, DeepSeekMoELayer):
        assert not isinstance(x, Q8Tensor)
        _check_deepseek(chosen, mode, edge)
        run = DeepSeekRun(x, layer, chosen, topk_ids, topk_weights, first, as_rules(rules))
    else:
        if rules is not None:
            raise ArgumentError("rules", f"{describe(rules)} with {backend.name}", "None, or the path deepseek_fp8")
        modes = as_scale_mode(mode), as_edge_policy(edge)
        run = Run(x, layer, chosen, input_sf, topk_ids, topk_weights, first, *modes)
    for step in steps:
        run.stages[step.stage] = step.function(run)
    evidence = _evidence(backend, chosen, adds)
    if isinstance(layer, DeepSeekNVFP4Layer) and isinstance(layer.shared, BF16Expert):
        evidence = evidence_with_bf16(evidence, chosen)
    found = MoEStages(backend.name, chosen_arch, chosen.name, evidence, run.stages)
    if stages:
        return found
    return found.output if output == "bf16" else found.q8_1


def _evidence(backend: Backend, model: AccumulationModel, adds: Accumulation) -> Evidence:
    """Of the model that ran: another one than the architecture's brings its own."""
    if model.name == adds.model:
        return adds.evidence
    # With NVFP4 activations there is no other model.
    pair = {"bf16": ("bf16", "bf16"), "block_fp8": ("e4m3", "e4m3")}.get(backend.activations, ("e2m1", "e4m3"))
    return model.pair(*pair).evidence if pair in model.pairs else Evidence.EXTRAPOLATED


def _check_deepseek(model: AccumulationModel, mode: ScaleMode | str, edge: EdgePolicy | str) -> None:
    if ("e4m3", "e4m3") not in model.pairs:
        raise ArgumentError("model", f"{model.name} with deepseek_fp8", "a model with E4M3 on both sides")
    _check_no_policy("deepseek_fp8", "its scales are FP32, and `rules` says how they are chosen", mode, edge)


def _check_no_policy(path: str, because: str, mode: ScaleMode | str, edge: EdgePolicy | str) -> None:
    """Refuse a policy of MXFP8 where nothing is MXFP8."""
    for name, found, usual in (
        ("mode", as_scale_mode(mode), ScaleMode.RCEIL),
        ("edge", as_edge_policy(edge), EdgePolicy.EXACT),
    ):
        if found is not usual:
            raise ArgumentError(name, f"{found.value} with {path}", f"the default: {because}")


def _check_tokens(x: object, layer: AnyLayer, backend: Backend, quantization: str, input_sf: object) -> None:
    if not isinstance(layer, (MoELayer, DeepSeekMoELayer, DeepSeekNVFP4Layer)):
        raise ArgumentError("layer", describe(layer), "a MoELayer, a DeepSeekMoELayer or a DeepSeekNVFP4Layer")
    ready = quantization == "ready"
    if ready and backend.activations == "q8_1":
        if not isinstance(x, Q8Tensor) or len(x.shape) != 2 or x.shape[1] != layer.hidden:
            found = f"Q8_1 {list(x.shape)}" if isinstance(x, Q8Tensor) else describe(x)
            raise ArgumentError("x", found, f"Q8_1 [T, {layer.hidden}] for ready activations of {backend.name}")
        if input_sf is not None:
            raise ArgumentError("input_sf", describe(input_sf), "None: Q8_1 has its scales with it")
        return
    dtype = np.dtype(np.uint8) if ready else fp32.BF16
    if not isinstance(x, np.ndarray) or x.dtype != dtype or x.ndim != 2 or x.shape[1] != layer.hidden:
        raise ArgumentError("x", describe(x), f"{dtype} [T, {layer.hidden}] for {quantization} activations")
    if ready and input_sf is None:
        raise ArgumentError("input_sf", "None with ready activations", "their scales")
    if not ready and input_sf is not None:
        raise ArgumentError("input_sf", describe(input_sf), "None: x is quantized by the path, if at all")


def _check_routing(x: NDArray[Any] | Q8Tensor, layer: AnyLayer, topk_ids: object, topk_weights: object) -> None:
    if (topk_ids is None) != (topk_weights is None):
        missing = "topk_ids" if topk_ids is None else "topk_weights"
        raise ArgumentError(missing, "None", "both of topk_ids and topk_weights, or neither")
    if topk_ids is None:
        if layer.router_weight is None:
            raise ArgumentError("topk_ids", "None for a layer without a router", "ids and weights")
        if isinstance(x, Q8Tensor) or x.dtype != fp32.BF16:
            raise ArgumentError("topk_ids", "None with ready activations", "ids and weights: codes are not routed on")
        return
    shape = (x.shape[0], layer.top_k)
    checked_array("topk_ids", topk_ids, shape, np.int32)
    checked_array("topk_weights", topk_weights, shape, np.float32)
