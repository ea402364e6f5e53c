"""The formula of a DeepSeek-V3 layer in float64, from the dequantized weights, with no rounding between the steps.

s = 1 / (1 + exp(-x Wr'));  the top_k largest s + bias of the best groups;  w = scale s / sum s
y = sum over the top_k of w E(x), plus the shared expert's;  E(x) = (silu(x Wg') (x Wu')) Wd'
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from refmoe.errors import ArgumentError
from refmoe.reference.deepseek.layer import BlockFP8Expert, DeepSeekMoELayer
from refmoe.reference.deepseek.nvfp4_layer import BF16Expert, DeepSeekNVFP4Layer, NVFP4Expert

F64 = NDArray[np.float64]


def deepseek_float64(
    tokens: F64,
    layer: DeepSeekMoELayer | DeepSeekNVFP4Layer,
    topk_ids: NDArray[np.int32] | None = None,
    topk_weights: F64 | None = None,
    first_expert: int = 0,
) -> F64:
    """The output of a layer, float64 [T, H]; an expert is looked up only if a token goes to it.

    Args:
        tokens: [T, H].
        layer: the weights.
        topk_ids: int32 [T, k]; with `topk_weights` instead of routing.
        topk_weights: [T, k].
        first_expert: the id of the layer's first expert; choices of others add nothing.

    Raises:
        ArgumentError: no ids, and a layer without a router.
    """
    if topk_ids is None or topk_weights is None:
        topk_ids, topk_weights = route_grouped_float64(tokens, layer)
    out = np.zeros(tokens.shape)
    for number in range(layer.experts):
        token, rank = np.nonzero(topk_ids == number + first_expert)
        if token.size:
            out[token] += topk_weights[token, rank, None] * _expert(tokens[token], layer.expert(number))
    return out if layer.shared is None else out + _expert(tokens, layer.shared)


def route_grouped_float64(tokens: F64, layer: DeepSeekMoELayer | DeepSeekNVFP4Layer) -> tuple[NDArray[np.int32], F64]:
    """Ids int32 [T, k] and weights float64 [T, k]; equal scores go to the lower index.

    Raises:
        ArgumentError: the layer has no router.
    """
    if layer.router_weight is None:
        raise ArgumentError("layer", "a layer without a router", "a router, or ids and weights")
    scores = _sigmoid(tokens @ layer.router_weight.astype(np.float64).T)
    biased = scores if layer.correction_bias is None else scores + layer.correction_bias.astype(np.float64)
    by_group = biased.reshape(len(tokens), layer.groups, -1)
    sums = np.sort(by_group, axis=2)[:, :, -2:].sum(axis=2)
    kept = np.zeros(sums.shape, bool)
    np.put_along_axis(kept, np.argsort(-sums, axis=1, kind="stable")[:, : layer.top_groups], True, axis=1)
    masked = np.where(kept[:, :, None], by_group, -np.inf).reshape(biased.shape)
    ids = np.argsort(-masked, axis=1, kind="stable")[:, : layer.top_k]
    chosen = np.take_along_axis(scores, ids, axis=1)
    return ids.astype(np.int32), layer.scale * chosen / (chosen.sum(axis=1, keepdims=True) + 1e-20)


def _expert(x: F64, expert: BlockFP8Expert | NVFP4Expert | BF16Expert) -> F64:
    gate_up = x @ _values(expert.gate_up).T
    half = gate_up.shape[1] // 2
    gate, up = gate_up[:, :half], gate_up[:, half:]
    return np.asarray((gate * _sigmoid(gate) * up) @ _values(expert.down).T)


def _values(tensor: Any) -> F64:
    values = tensor if isinstance(tensor, np.ndarray) else tensor.dequantize()
    return np.asarray(values.astype(np.float64))


def _sigmoid(x: F64) -> F64:
    with np.errstate(over="ignore"):
        return np.asarray(1 / (1 + np.exp(-x)))
