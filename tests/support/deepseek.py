"""Random DeepSeek-V3 layers in block FP8, and tokens for them."""

from __future__ import annotations

from typing import Any

import ml_dtypes
import numpy as np

from refmoe.reference.block_fp8 import BlockFP8Tensor, quantize_block_fp8
from refmoe.reference.deepseek.layer import BlockFP8Expert, DeepSeekMoELayer

BF16 = np.dtype(ml_dtypes.bfloat16)


def random_weight(rng: np.random.Generator, rows: int, columns: int) -> BlockFP8Tensor:
    """About 1 / sqrt(columns) large."""
    values = (rng.standard_normal((rows, columns)) / np.sqrt(columns)).astype(np.float32)
    return quantize_block_fp8(values, block="128x128")


def random_expert(rng: np.random.Generator, hidden: int, intermediate: int) -> BlockFP8Expert:
    return BlockFP8Expert(random_weight(rng, 2 * intermediate, hidden), random_weight(rng, hidden, intermediate))


def random_layer(
    rng: np.random.Generator,
    *,
    experts: int = 16,
    hidden: int = 256,
    intermediate: int = 128,
    shared: bool = True,
    local: tuple[int, int] | None = None,
    **sizes: Any,
) -> DeepSeekMoELayer:
    """A layer with a router over `experts`; `local` is the first expert of this rank and how many it has."""
    settings = {"top_k": 4, "groups": 4, "top_groups": 2, "scale": 2.5, **sizes}
    routed = [random_expert(rng, hidden, intermediate) for _ in range(experts)]
    router = (rng.standard_normal((experts, hidden)) / 8).astype(BF16)
    bias = (rng.standard_normal(experts) / 8).astype(np.float32)
    always = random_expert(rng, hidden, 2 * intermediate)
    first, count = local or (0, experts)
    return DeepSeekMoELayer(
        routed[first : first + count], hidden, intermediate, shared=always if shared else None,
        router_weight=router, correction_bias=bias, **settings,
    )  # fmt: skip


def random_tokens(rng: np.random.Generator, tokens: int, hidden: int = 256) -> np.ndarray:
    values = rng.standard_normal((tokens, hidden))
    values[:, 3::17] *= 12
    return values.astype(BF16)
