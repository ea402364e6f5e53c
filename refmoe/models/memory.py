"""What decoding needs in memory, by arithmetic: what stays, and the largest of the moments that come and go.

The decoder keeps no weights. A layer's are mapped while it runs and given back after it, so of the weights only the
largest single part counts, never their sum. What is written here are upper bounds: every expert of a layer is taken as
used, every page of the embedding rows' neighbourhood as read.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import numpy as np

from refmoe.errors import ArgumentError, describe
from refmoe.formats import MXFP4
from refmoe.models.attention import QUERIES_A_CHUNK
from refmoe.models.config import GptOssConfig
from refmoe.models.schema import huggingface_tensors
from refmoe.models.tensor_file import DTYPES

#: Python, NumPy and the other libraries, with the stacks and buffers of their threads.
_PROCESS = 256 << 20
#: What the kernel maps around a page that is read from a file.
_FAULT_AROUND = 64 << 10
_BF16, _FP32, _FP64 = 2, 4, 8


@dataclass(frozen=True)
class MemoryPlan:
    """Bytes that decoding needs at most.

    Attributes:
        checkpoint: all weights, as they lie in the files.
        process: the interpreter and its libraries.
        caches: keys and values, old and new at once while a step runs.
        activations: the residual stream and what goes through the experts of every layer (without `stages`).
        attention: the attention of a layer: weights in the map, one sequence's cache and its products.
        experts: the experts of a layer: all weights in the map, and what computes with them.
        logits: the unembedding in the map, and the logits.
    """

    checkpoint: int
    process: int
    caches: int
    activations: int
    attention: int
    experts: int
    logits: int

    @property
    def peak(self) -> int:
        """What stays, and the largest of the moments."""
        return self.process + self.caches + self.activations + max(self.attention, self.experts, self.logits)


def memory_plan(
    config: GptOssConfig,
    *,
    sequences: int = 1,
    positions: int = 4096,
    prompt: int = 1,
    dtype: type[np.floating[Any]] = np.float32,
) -> MemoryPlan:
    """The memory of a `Decoder` over a checkpoint of this configuration.

    Args:
        config: the sizes.
        sequences: decoded together, B.
        positions: of the longest sequence, its prompt included.
        prompt: positions that one call decodes, S.
        dtype: of the decoder, float32 or float64.

    Raises:
        ArgumentError: a count below 1, or a prompt longer than the sequence.
    """
    for name, value in (("sequences", sequences), ("positions", positions), ("prompt", prompt)):
        if type(value) is not int or value < 1:
            raise ArgumentError(name, describe(value), "an integer of at least 1")
    if prompt > positions:
        raise ArgumentError("prompt", str(prompt), f"at most {positions}, the positions of the sequence")
    return MemoryPlan(
        checkpoint=_checkpoint(config),
        process=_PROCESS,
        caches=2 * _caches(config, sequences, positions, dtype),
        activations=_activations(config, sequences * prompt, dtype),
        attention=_attention_moment(config, positions, sequences * prompt, dtype),
        experts=_experts_moment(config, sequences * prompt),
        logits=_vocabulary(config) + sequences * config.vocab_size * np.dtype(dtype).itemsize,
    )


def _checkpoint(config: GptOssConfig) -> int:
    return sum(math.prod(spec.shape) * DTYPES[spec.dtype].itemsize for spec in huggingface_tensors(config).values())


def _caches(config: GptOssConfig, sequences: int, positions: int, dtype: type[np.floating[Any]]) -> int:
    """Keys and values of all layers; a windowed one keeps what the next query sees."""
    item = _FP64 if dtype is np.float64 else _BF16
    windows = [config.window(layer) for layer in range(config.num_hidden_layers)]
    kept = sum(positions if window is None else min(window, positions) for window in windows)
    return 2 * sequences * kept * config.num_key_value_heads * config.head_dim * item


def _activations(config: GptOssConfig, tokens: int, dtype: type[np.floating[Any]]) -> int:
    """What entered and left the experts of every layer, and twelve such arrays in use; pages around the embeddings."""
    item = np.dtype(dtype).itemsize
    widest = max(config.hidden_size, config.num_attention_heads * config.head_dim)
    return tokens * (widest * item * (2 * config.num_hidden_layers + 12) + 2 * _FAULT_AROUND)


def _attention_moment(config: GptOssConfig, positions: int, tokens: int, dtype: type[np.floating[Any]]) -> int:
    item, heads, dim = np.dtype(dtype).itemsize, config.num_attention_heads, config.head_dim
    weights = config.hidden_size * dim * 2 * (heads + config.num_key_value_heads) * _BF16
    cache = 2 * positions * config.num_key_value_heads * dim * item
    products = positions * heads // config.num_key_value_heads * dim * item
    # Scores, joined, and their exponentials.
    scores = 3 * min(QUERIES_A_CHUNK, tokens) * (positions + 1) * heads * item
    return weights + cache + products + scores


def _experts_moment(config: GptOssConfig, tokens: int) -> int:
    """All experts in the map; one matrix of one expert in FP32 and FP64, which is what the paths here take at once."""
    width, inner, experts = config.hidden_size, config.intermediate_size, config.num_local_experts
    weights = 3 * width * inner
    mapped = experts * (weights // MXFP4.codes_a_byte + weights // MXFP4.block + (2 * inner + width) * _BF16)
    rows = tokens * config.num_experts_per_tok * (2 * width + 3 * inner) * _FP64
    return mapped + 2 * width * inner * (_FP32 + _FP64) + rows


def _vocabulary(config: GptOssConfig) -> int:
    return config.vocab_size * config.hidden_size * _BF16
