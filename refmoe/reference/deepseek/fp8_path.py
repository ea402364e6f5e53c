"""The steps of a DeepSeek-V3 layer in block FP8. `refmoe.reference.moe.paths` makes the path `deepseek_fp8` of them.

routing      logits = x Wr', or given ids and weights; sigmoid, groups, top-k; the maps of rows
expand       each token in block FP8, in the rows of its experts and as it is
gemm1        BF16(promoted sums), the rows of each expert with its gates and ups
activation   SwiGLU of those, block FP8
gemm2        BF16(promoted sums)
shared       the same three of the shared expert, on all tokens as they are
finalize     the routed rows weighted and summed in FP32, the shared expert's added, BF16
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from refmoe.reference import fp32
from refmoe.reference.activation import swiglu
from refmoe.reference.block_fp8 import BlockFP8Tensor, quantize_block_fp8
from refmoe.reference.deepseek.activation import TILE
from refmoe.reference.deepseek.finalize import finalize_shared
from refmoe.reference.deepseek.layer import BlockFP8Expert, DeepSeekMoELayer, DeepSeekRules
from refmoe.reference.deepseek.routing import route_sigmoid_grouped_topk
from refmoe.reference.deepseek.trtllm import quantize_activation, quantize_tokens
from refmoe.reference.deepseek_gemm import deepseek_gemm
from refmoe.reference.expand import build_permutation
from refmoe.reference.mma import AccumulationModel
from refmoe.reference.routing import router_logits

Arrays = Mapping[str, NDArray[Any]]


@dataclass(frozen=True, eq=False)
class DeepSeekRun:
    """One pass through the steps: what `moe_layer` was called with, and the arrays of each stage that is done."""

    tokens: NDArray[Any]
    layer: DeepSeekMoELayer
    model: AccumulationModel
    topk_ids: NDArray[np.int32] | None
    topk_weights: NDArray[np.float32] | None
    first_expert: int
    rules: DeepSeekRules
    stages: dict[str, Arrays] = field(default_factory=dict)


def route(run: DeepSeekRun) -> Arrays:
    """Ids and weights, given or computed, and where each choice's row goes."""
    layer, routed = run.layer, dict[str, NDArray[Any]]()
    if run.topk_ids is not None and run.topk_weights is not None:
        ids, weights = run.topk_ids, run.topk_weights
    else:
        assert layer.router_weight is not None
        routed["logits"] = router_logits(run.tokens, layer.router_weight)
        ids, weights = route_sigmoid_grouped_topk(
            routed["logits"],
            layer.correction_bias,
            layer.top_k,
            layer.groups,
            layer.top_groups,
            layer.scale,
            rule=run.rules.weights,
        )
    return {**routed, "ids": ids, "weights": weights, **vars(build_permutation(ids, layer.experts, run.first_expert))}


def expand(run: DeepSeekRun) -> Arrays:
    """Tokens quantized once and copied to their rows; rows of no expert are zeros."""
    made = _quantized_tokens(run)
    source = run.stages["routing"]["permuted_to_unpermuted"]
    used, tokens = int(run.stages["routing"]["offsets"][-1]), max(len(run.tokens), 1)
    codes = np.zeros((source.size, made.codes.shape[1]), np.uint8)
    scales = np.zeros((source.size, made.scales.shape[1]), np.float32)
    codes[:used], scales[:used] = made.codes[source[:used] % tokens], made.scales[source[:used] % tokens]
    return {"codes": codes, "scales": scales, "token_codes": made.codes, "token_scales": made.scales}


def gemm1(run: DeepSeekRun) -> Arrays:
    """BF16 of the promoted sums."""
    return {"out": _multiplied(run, "expand", 2 * run.layer.intermediate, lambda expert: expert.gate_up)}


def activate(run: DeepSeekRun) -> Arrays:
    """SwiGLU of the rows in use, in block FP8; rows of no expert are zeros."""
    gate_up, used = run.stages["gemm1"]["out"], int(run.stages["routing"]["offsets"][-1])
    codes = np.zeros((len(gate_up), run.layer.intermediate), np.uint8)
    scales = np.zeros((len(gate_up), run.layer.intermediate // TILE), np.float32)
    made = _activated(run, gate_up[:used])
    codes[:used], scales[:used] = made.codes, made.scales
    return {"codes": codes, "scales": scales}


def gemm2(run: DeepSeekRun) -> Arrays:
    """BF16 of the promoted sums."""
    return {"out": _multiplied(run, "activation", run.layer.hidden, lambda expert: expert.down)}


def shared(run: DeepSeekRun) -> Arrays:
    """Both products and the activation of the shared expert, on every token; nothing without one."""
    expert = run.layer.shared
    if expert is None:
        return {}
    tokens = run.stages["expand"]
    gate_up = _product(tokens["token_codes"], tokens["token_scales"], expert.gate_up, run.model)
    made = _activated(run, gate_up)
    out = _product(made.codes, made.scales, expert.down, run.model)
    return {"gate_up": gate_up, "codes": made.codes, "scales": made.scales, "out": out}


def finalize(run: DeepSeekRun) -> Arrays:
    """The routed rows weighted and summed, and the shared expert's added."""
    routing = run.stages["routing"]
    out = finalize_shared(
        run.stages["gemm2"]["out"],
        routing["unpermuted_to_permuted"],
        routing["weights"],
        run.stages["shared"].get("out"),
        order=run.rules.order,
    )
    return {"out": out}


def _quantized_tokens(run: DeepSeekRun) -> BlockFP8Tensor:
    if run.rules.quantizer == "trtllm":
        return quantize_tokens(run.tokens)
    return quantize_block_fp8(run.tokens, policy=run.rules.quantizer, scales=run.rules.scales)


def _activated(run: DeepSeekRun, gate_up: NDArray[Any]) -> BlockFP8Tensor:
    values = swiglu(np.ascontiguousarray(gate_up), variant="silu")
    if run.rules.quantizer == "trtllm":
        return quantize_activation(values)
    return quantize_block_fp8(values, policy=run.rules.quantizer, scales=run.rules.scales)


def _multiplied(
    run: DeepSeekRun, stage: str, n: int, weights_of: Callable[[BlockFP8Expert], BlockFP8Tensor]
) -> NDArray[Any]:
    """Every expert's rows by its weights, of which no more than one expert's are held at a time."""
    codes, scales = run.stages[stage]["codes"], run.stages[stage]["scales"]
    offsets = run.stages["routing"]["offsets"]
    out = np.zeros((len(codes), n), fp32.BF16)
    for number in np.flatnonzero(np.diff(offsets)):
        rows = slice(int(offsets[number]), int(offsets[number + 1]))
        out[rows] = _product(codes[rows], scales[rows], weights_of(run.layer.expert(int(number))), run.model)
    return out


def _product(
    codes: NDArray[np.uint8], scales: NDArray[np.float32], weights: BlockFP8Tensor, model: AccumulationModel
) -> NDArray[Any]:
    rows = np.array([0, len(codes)], np.int64)
    return deepseek_gemm(codes, scales, weights.codes[None], weights.scales[None], rows, model=model)
