"""The layer's formula in float64, from the dequantized weights, with no rounding between the steps.

    logits = x Wr' + br;  the k largest;  w = softmax of those
    g, u = x Wgu' + bgu;  gpt_oss: g = min(g, 7), u = clamp(u, -7, 7), h = g sigmoid(1.702 g) (u + 1);  silu likewise
    y = sum over the k of w (h Wd' + bd)

That of a DeepSeek-V3 layer is `refmoe.reference.deepseek.float64`'s. It is what the paths of
`refmoe.reference.moe.pipeline` approximate, and what other implementations can be compared in.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from refmoe.errors import ArgumentError, describe
from refmoe.reference.activation import ALPHA, BETA, LIMIT
from refmoe.reference.deepseek.float64 import deepseek_float64
from refmoe.reference.deepseek.layer import DeepSeekMoELayer
from refmoe.reference.deepseek.nvfp4_layer import DeepSeekNVFP4Layer
from refmoe.reference.moe.layer import MoELayer
from refmoe.reference.tensor import MXTensor, NVFP4Experts

F64 = NDArray[np.float64]


def moe_float64(
    x: NDArray[Any],
    layer: MoELayer | DeepSeekMoELayer | DeepSeekNVFP4Layer,
    *,
    topk_ids: NDArray[np.int32] | None = None,
    topk_weights: NDArray[Any] | None = None,
    first_expert: int = 0,
) -> F64:
    """The output of a layer.

    Args:
        x: bfloat16, float32 or float64 [T, H].
        layer: the weights; one of DeepSeek has its shared expert added.
        topk_ids: int32 [T, k]; with `topk_weights` instead of routing.
        topk_weights: float32 or float64 [T, k].
        first_expert: the id of the layer's first expert; choices of others add nothing.

    Returns:
        float64 [T, H].

    Raises:
        ArgumentError: wrong shapes, ids without weights, or neither and no router.
    """
    if not isinstance(x, np.ndarray) or x.ndim != 2 or x.shape[1] != layer.hidden:
        raise ArgumentError("x", describe(x), f"[T, {layer.hidden}]")
    if (topk_ids is None) != (topk_weights is None):
        raise ArgumentError("topk_ids, topk_weights", "one of them", "both or neither")
    tokens = x.astype(np.float64)
    if isinstance(layer, (DeepSeekMoELayer, DeepSeekNVFP4Layer)):
        given = None if topk_weights is None else topk_weights.astype(np.float64)
        return deepseek_float64(tokens, layer, topk_ids, given, first_expert)
    if topk_ids is None or topk_weights is None:
        ids, weights = route_float64(tokens, layer)
    else:
        ids, weights = topk_ids, topk_weights.astype(np.float64)
    out = np.zeros(tokens.shape)
    for expert in range(layer.experts):
        token, rank = np.nonzero(ids == expert + first_expert)
        if token.size:
            out[token] += weights[token, rank, None] * expert_float64(tokens[token], layer, expert)
    return out


def route_float64(x: F64, layer: MoELayer) -> tuple[NDArray[np.int32], F64]:
    """Ids int32 [T, k] and weights float64 [T, k]; equal logits go to the lower index.

    Raises:
        ArgumentError: the layer has no router.
    """
    if layer.router_weight is None:
        raise ArgumentError("layer", "a layer without a router", "a router, or ids and weights")
    logits = x @ layer.router_weight.astype(np.float64).T
    if layer.router_bias is not None:
        logits = logits + layer.router_bias.astype(np.float64)
    ids = np.argsort(-logits, axis=1, kind="stable")[:, : layer.top_k]
    chosen = np.take_along_axis(logits, ids, axis=1)
    powers = np.exp(chosen - chosen[:, :1])
    return ids.astype(np.int32), powers / powers.sum(axis=1, keepdims=True)


def expert_float64(x: F64, layer: MoELayer, expert: int) -> F64:
    """One expert's rows, bias included, before they are weighted: float64 [R, H]."""
    gate_up = x @ _weights(layer.gate_up, expert).T
    if layer.gate_up_bias is not None:
        gate_up = gate_up + layer.gate_up_bias[expert].astype(np.float64)
    out = swiglu_float64(gate_up, layer, expert) @ _weights(layer.down, expert).T
    if layer.down_bias is not None:
        out = out + layer.down_bias[expert].astype(np.float64)
    return np.asarray(out)


def swiglu_float64(gate_up: F64, layer: MoELayer, expert: int) -> F64:
    """The activation of one expert: float64 [R, 2 I] to [R, I]."""
    if layer.variant == "silu":
        half = gate_up.shape[1] // 2
        return _times_sigmoid(gate_up[:, :half], 1.0) * gate_up[:, half:]
    alpha, beta, limit = swiglu_parameters(layer, expert)
    gate, up = np.minimum(gate_up[:, 0::2], limit), np.clip(gate_up[:, 1::2], -limit, limit)
    return _times_sigmoid(gate, alpha) * (up + beta)


def swiglu_parameters(layer: MoELayer, expert: int) -> tuple[float, float, float]:
    """Alpha, beta and limit of one expert of a gpt_oss layer."""
    given = (layer.swiglu_alpha, ALPHA), (layer.swiglu_beta, BETA), (layer.swiglu_limit, LIMIT)
    alpha, beta, limit = (default if values is None else float(values[expert]) for values, default in given)
    return alpha, beta, limit


def _times_sigmoid(gate: F64, alpha: float) -> F64:
    """g / (1 + exp(-alpha g))."""
    with np.errstate(over="ignore"):
        return np.asarray(gate / (1 + np.exp(-alpha * gate)))


def _weights(tensor: MXTensor | NVFP4Experts, expert: int) -> F64:
    return tensor.part(expert).dequantize().astype(np.float64)
