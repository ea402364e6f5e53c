"""Arguments of `fused_moe` for the tests of the layer, as NumPy arrays and as torch tensors."""

from __future__ import annotations

from typing import Any

import numpy as np
from support.fp32_values import BF16
from support.moe import random_layer, random_tokens

from refmoe.reference.layout import swizzle_weight_scales
from refmoe.reference.moe.layer import MoELayer

__all__ = ["as_torch", "case_of", "keywords", "positional", "random_choices"]


def random_choices(rng: np.random.Generator, tokens: int, top_k: int, experts: int) -> tuple[np.ndarray, np.ndarray]:
    """Ids, different within a token, and weights."""
    ids = np.argsort(rng.random((tokens, experts)), axis=1)[:, :top_k].astype(np.int32)
    return np.ascontiguousarray(ids), rng.random((tokens, top_k), np.float32)


def case_of(seed: int, tokens: int, **sizes: Any) -> tuple[MoELayer, np.ndarray, np.ndarray, np.ndarray]:
    """(layer, x, ids, weights)."""
    rng = np.random.default_rng(seed)
    layer = random_layer(rng, **sizes)
    x = random_tokens(rng, tokens, layer.hidden, outliers=8)
    return layer, x, *random_choices(rng, tokens, layer.top_k, layer.experts)


def positional(layer: MoELayer, x: np.ndarray, ids: np.ndarray, weights: np.ndarray) -> list[Any]:
    """The arguments without names."""
    scales = [swizzle_weight_scales(layer.gate_up.scales), None, swizzle_weight_scales(layer.down.scales), None]
    return [x, ids, weights, layer.gate_up.codes, layer.down.codes, BF16, scales]


def keywords(layer: MoELayer) -> dict[str, Any]:
    """Those with names."""
    return {
        "fc1_expert_biases": layer.gate_up_bias,
        "fc2_expert_biases": layer.down_bias,
        "activation": layer.variant,
    }


def as_torch(value: Any, device: str = "cpu") -> Any:
    """The same with tensors on `device` for arrays, and torch's dtype for NumPy's."""
    import torch

    if isinstance(value, np.ndarray):
        if value.dtype == BF16:
            return torch.from_numpy(value.view(np.uint16).copy()).view(torch.bfloat16).to(device)
        return torch.from_numpy(value.copy()).to(device)
    if isinstance(value, list):
        return [as_torch(item, device) for item in value]
    if isinstance(value, dict):
        return {name: as_torch(item, device) for name, item in value.items()}
    return torch.bfloat16 if value is BF16 else value
