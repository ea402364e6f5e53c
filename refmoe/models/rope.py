"""Rotary position embeddings with YaRN (Peng et al., 2023, "NTK-by-parts"), as gpt-oss has them."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
from numpy.typing import NDArray

from refmoe.models.config import GptOssConfig

Array = NDArray[Any]


def inverse_frequencies(config: GptOssConfig) -> tuple[NDArray[np.float64], float]:
    """The angle a position turns each pair of a head, and the factor on cosine and sine.

    Pair i of D/2 turns by theta^(-2i/D) a position. One that turns more than `rope_beta_fast` times in the initial
    context keeps its angle, one that turns less than `rope_beta_slow` times is slowed by `rope_factor`, and between
    the two the weight of the one or the other goes linearly in i.

    Returns:
        float64 [D/2], radians a position, and the concentration 0.1 ln(factor) + 1.
    """
    pairs = np.arange(config.head_dim // 2)
    frequencies: NDArray[np.float64] = config.rope_theta ** (-2.0 * pairs / config.head_dim)
    if config.rope_factor == 1:
        return frequencies, 1.0

    def pair_that_turns(times: float) -> float:
        turns = math.log(config.initial_context_length / (times * 2 * math.pi))
        return config.head_dim * turns / (2 * math.log(config.rope_theta))

    low = max(pair_that_turns(config.rope_beta_fast), 0.0)
    high = min(pair_that_turns(config.rope_beta_slow), config.head_dim - 1.0)
    slowed = np.clip((pairs - low) / max(high - low, 1e-3), 0, 1)
    blended = frequencies * (1 - slowed) + frequencies / config.rope_factor * slowed
    return blended, 0.1 * math.log(config.rope_factor) + 1


def rotation(config: GptOssConfig, positions: NDArray[np.int64], dtype: type[np.floating[Any]]) -> tuple[Array, Array]:
    """Cosines and sines of `positions`, computed in float64 and rounded to `dtype` once.

    Returns:
        Two arrays [positions, D/2].
    """
    frequencies, concentration = inverse_frequencies(config)
    angles = positions[:, None] * frequencies
    return (np.cos(angles) * concentration).astype(dtype), (np.sin(angles) * concentration).astype(dtype)


def rotate(x: Array, cosine: Array, sine: Array) -> Array:
    """Turn each pair (x[i], x[i + D/2]) of every head: every product, then the difference or sum, rounded.

    Args:
        x: [..., S, heads, D].
        cosine: [S, D/2], in the dtype of `x`.
        sine: likewise.

    Returns:
        An array of the shape and dtype of `x`.
    """
    first, second = np.split(x, 2, axis=-1)
    cosine, sine = cosine[:, None], sine[:, None]
    return np.concatenate([first * cosine - second * sine, second * cosine + first * sine], axis=-1)
