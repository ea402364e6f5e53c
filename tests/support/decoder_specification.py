"""The decoder's dense arithmetic, one value at a time: the specification that the fast one is held against.

It shares no code with refmoe.models: a sum is a recursion over a list, BF16 rounding is done on bits, attention is a
loop over positions. FP32 scalars of NumPy are IEEE single, each operation rounded to nearest.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import numpy as np

from refmoe.models import GptOssConfig
from refmoe.reference.scalar.exponential import exponential

F = np.float32
Vector = list[np.float32]
Weights = Mapping[str, np.ndarray]


def fold(terms: Vector) -> np.float32:
    """Each of the first half takes its partner half a length on; an odd middle one waits."""
    if len(terms) == 1:
        return terms[0]
    half = math.ceil(len(terms) / 2)
    return fold([terms[i] + terms[i + half] if i + half < len(terms) else terms[i] for i in range(half)])


def to_bf16(x: np.float32) -> np.float32:
    """Round to BF16, ties to even, on the bits of a finite number."""
    bits = int(x.view(np.uint32))
    bits += 0x7FFF + (bits >> 16 & 1)
    return np.uint32(bits & 0xFFFF0000).view(np.float32)


def exp(x: np.float32) -> np.float32:
    return np.uint32(exponential(int(x.view(np.uint32)))).view(np.float32)


def dot(x: Vector, weights: np.ndarray) -> np.float32:
    return fold([a * F(b) for a, b in zip(x, weights, strict=True)])


def linear(x: Vector, weights: Weights, name: str) -> Vector:
    rows, bias = weights[f"{name}.weight"], weights[f"{name}.bias"]
    return [to_bf16(dot(x, row) + F(b)) for row, b in zip(rows, bias, strict=True)]


def norm(x: Vector, weight: np.ndarray, eps: float) -> Vector:
    mean = fold([value * value for value in x]) / F(len(x))
    scale = F(1) / np.sqrt(mean + F(eps))
    return [to_bf16(F(w) * (value * scale)) for w, value in zip(weight, x, strict=True)]


def turn(config: GptOssConfig, position: int, pair: int) -> tuple[np.float32, np.float32]:
    """Cosine and sine of YaRN, from its definition by wavelengths."""
    half = config.head_dim // 2
    frequency = config.rope_theta ** (-pair / half)

    def border(turns: float) -> float:
        """The pair that turns so often in the initial context: theta^(-pair/half) L = 2 pi turns."""
        return -half * math.log(2 * math.pi * turns / config.initial_context_length) / math.log(config.rope_theta)

    low, high = border(config.rope_beta_fast), border(config.rope_beta_slow)
    slow = min(1.0, max(0.0, (pair - low) / (high - low)))
    angle = position * (frequency * (1 - slow) + frequency / config.rope_factor * slow)
    concentration = 1 + 0.1 * math.log(config.rope_factor)
    return F(math.cos(angle) * concentration), F(math.sin(angle) * concentration)


def rotated(head: Vector, config: GptOssConfig, position: int) -> Vector:
    half = config.head_dim // 2
    out = list(head)
    for pair in range(half):
        cosine, sine = turn(config, position, pair)
        first, second = head[pair], head[pair + half]
        out[pair] = to_bf16(first * cosine - second * sine)
        out[pair + half] = to_bf16(second * cosine + first * sine)
    return out


def heads(x: Vector, dim: int) -> list[Vector]:
    return [x[i : i + dim] for i in range(0, len(x), dim)]


def attend(q: Vector, keys: list[Vector], values: list[Vector], sink: np.float32) -> Vector:
    scale = F(1 / math.sqrt(len(q)))
    scores = [fold([a * b for a, b in zip(q, key, strict=True)]) * scale for key in keys]
    largest = max([*scores, sink])
    powers = [exp(score - largest) for score in scores]
    total = fold(powers) + exp(sink - largest)
    shares = [power / total for power in powers]
    return [
        to_bf16(fold([share * value[i] for share, value in zip(shares, values, strict=True)])) for i in range(len(q))
    ]


def decode(config: GptOssConfig, weights: Weights, tokens: list[int], moe: Any) -> tuple[Vector, list[list[Vector]]]:
    """Logits of the last token, and what entered the experts of every layer at every position.

    Args:
        config: the sizes.
        weights: every tensor by its Hugging Face name, as float32.
        tokens: of one sequence.
        moe: from layer and vector to vector.
    """
    stream = [[F(value) for value in weights["model.embed_tokens.weight"][token]] for token in tokens]
    entered = []
    for layer in range(config.num_hidden_layers):
        prefix = f"model.layers.{layer}."
        normed = [norm(x, weights[f"{prefix}input_layernorm.weight"], config.rms_norm_eps) for x in stream]
        q, k, v = (
            [heads(linear(x, weights, f"{prefix}self_attn.{part}_proj"), config.head_dim) for x in normed]
            for part in "qkv"
        )
        q, k = ([[rotated(head, config, p) for head in at] for p, at in enumerate(part)] for part in (q, k))
        for p, x in enumerate(stream):
            first = max(0, p - config.sliding_window + 1) if layer % 2 == 0 else 0
            joined: Vector = []
            for head, query in enumerate(q[p]):
                shared = head * config.num_key_value_heads // config.num_attention_heads
                seen = range(first, p + 1)
                sink = F(weights[f"{prefix}self_attn.sinks"][head])
                joined += attend(query, [k[at][shared] for at in seen], [v[at][shared] for at in seen], sink)
            out = linear(joined, weights, f"{prefix}self_attn.o_proj")
            stream[p] = [to_bf16(a + b) for a, b in zip(x, out, strict=True)]
        normed = [norm(x, weights[f"{prefix}post_attention_layernorm.weight"], config.rms_norm_eps) for x in stream]
        entered.append(normed)
        for p, x in enumerate(normed):
            stream[p] = [to_bf16(a + b) for a, b in zip(stream[p], moe(layer, x), strict=True)]
    last = norm(stream[-1], weights["model.norm.weight"], config.rms_norm_eps)
    return [dot(last, row) for row in weights["lm_head.weight"]], entered
