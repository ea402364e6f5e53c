"""Layers with random weights, and tokens for them."""

from __future__ import annotations

import numpy as np
from support.fp32_values import BF16

from refmoe.reference import MoELayer, MXTensor, quantize_mxfp4


def random_layer(
    rng: np.random.Generator,
    *,
    experts: int = 6,
    hidden: int = 64,
    intermediate: int = 96,
    top_k: int = 3,
    variant: str = "gpt_oss",
    spread: float = 0.0,
    local: tuple[int, int] | None = None,
) -> MoELayer:
    """Normal weights, blocks of them scaled by up to 2^spread either way; `local` = (first, count) of a rank."""

    def weights(*shape: int) -> MXTensor:
        x = rng.standard_normal(shape) / np.sqrt(shape[-1])
        x = x.reshape(*shape[:-1], -1, 32) * np.exp2(rng.uniform(-spread, spread, (*shape[:-1], shape[-1] // 32, 1)))
        return quantize_mxfp4(x.reshape(shape).astype(np.float32))

    def bias(*shape: int) -> np.ndarray:
        return (rng.standard_normal(shape) / 4).astype(BF16)

    gate_up, down = weights(experts, 2 * intermediate, hidden), weights(experts, hidden, intermediate)
    biases = bias(experts, 2 * intermediate), bias(experts, hidden)
    router = bias(experts, hidden), bias(experts)
    part = slice(None) if local is None else slice(local[0], sum(local))
    return MoELayer(
        MXTensor(gate_up.codes[part], gate_up.scales[part], "mxfp4"),
        MXTensor(down.codes[part], down.scales[part], "mxfp4"),
        top_k, biases[0][part], biases[1][part], *router, variant,
    )  # fmt: skip


def random_tokens(rng: np.random.Generator, tokens: int, hidden: int = 64, *, outliers: float = 1.0) -> np.ndarray:
    """BF16 [tokens, hidden], normal, every 17th channel `outliers` times larger."""
    x = rng.standard_normal((tokens, hidden))
    x[:, ::17] *= outliers
    return x.astype(BF16)
