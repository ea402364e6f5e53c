"""The mixtures of experts of a DeepSeek-V3 checkpoint, one after another in a residual stream.

    h = embedding row
    h = h + experts(norm(h))        for each layer that has experts
    logits = lm_head(norm(h))

in the arithmetic of `refmoe.models.decoder`'s float32: what a GPU would store is BF16. Latent attention and the dense
layers in front are left out, so a position depends on its own token alone. It is no language model. It is what carries
one layer's error into the next layer's routing, which is what drift shows.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
from numpy.typing import NDArray

from refmoe.errors import ArgumentError, describe
from refmoe.models.decoder import LayerStep, Step
from refmoe.models.deepseek import DeepSeekCheckpoint, DeepSeekNVFP4Checkpoint
from refmoe.models.dense import project, rms_norm
from refmoe.models.state import State
from refmoe.reference.deepseek.layer import DeepSeekMoELayer
from refmoe.reference.deepseek.nvfp4_layer import DeepSeekNVFP4Layer
from refmoe.reference.fp32 import BF16, add, bf16

Array = NDArray[Any]

AnyDeepSeek = DeepSeekCheckpoint | DeepSeekNVFP4Checkpoint
"""What the stack takes: DeepSeek's own FP8, or NVFP4 of ModelOpt."""
AnyDeepSeekLayer = DeepSeekMoELayer | DeepSeekNVFP4Layer

EPSILON = 1e-6
"""Of DeepSeek-V3's norms."""


class ExpertStack:
    """The layers that have experts, numbered from 0; weights are read as they are needed and none is kept."""

    def __init__(self, checkpoint: AnyDeepSeek, *, moe: Callable[[int, Array, Any], Array]) -> None:
        """A stack over `checkpoint`.

        Args:
            checkpoint: the weights.
            moe: the mixture of experts: number, BF16 [T, H] and weights, a DeepSeekMoELayer or a DeepSeekNVFP4Layer as
                the checkpoint has them, to BF16 [T, H].

        Raises:
            ArgumentError: a checkpoint of another model.
        """
        if not isinstance(checkpoint, AnyDeepSeek):
            raise ArgumentError("checkpoint", describe(checkpoint), "a DeepSeekCheckpoint or a DeepSeekNVFP4Checkpoint")
        self.checkpoint = checkpoint
        self._moe = moe

    def new_state(self, sequences: int) -> State:
        """The state of `sequences` sequences: how many positions were decoded, and no cache."""
        return State(sequences)

    def prefill(self, tokens: NDArray[np.integer[Any]], state: State, *, stages: bool = False) -> Step:
        """Decode S more positions of every sequence.

        Args:
            tokens: integers [B, S], S at least 1, of the vocabulary.
            state: of B sequences, from `new_state`.
            stages: keep the residual after each layer.

        Raises:
            ArgumentError: tokens of another shape or out of the vocabulary, or a path that gives something other than
                BF16 [T, H].
        """
        vocabulary = self.checkpoint.config.vocab_size
        if tokens.ndim != 2 or len(tokens) != state.sequences or not tokens.size:
            raise ArgumentError("tokens", describe(tokens), f"integers [{state.sequences}, S] with S at least 1")
        if tokens.min() < 0 or tokens.max() >= vocabulary:
            raise ArgumentError("tokens", f"{tokens.min()} to {tokens.max()}", f"0 to {vocabulary - 1}")
        residual = np.asarray(self.checkpoint.tensor("model.embed_tokens.weight")[tokens], BF16)
        layers = []
        for number, layer in enumerate(self.checkpoint.moe_layers):
            entered = self._norm(residual, f"model.layers.{layer}.post_attention_layernorm.weight")
            rows = entered.reshape(-1, entered.shape[-1])
            left = self._moe(number, rows, self._weights(layer))
            if not isinstance(left, np.ndarray) or left.dtype != BF16 or left.shape != rows.shape:
                raise ArgumentError("moe", f"{describe(left)} from layer {number}", f"bfloat16 {list(rows.shape)}")
            left = left.reshape(entered.shape)
            residual = bf16(add(residual.astype(np.float32), left.astype(np.float32)))
            layers.append(LayerStep(entered, left, {"residual": residual} if stages else {}))
            self.checkpoint.release()
        normed = self._norm(residual[:, -1:], "model.norm.weight")[:, 0]
        logits = project(normed.astype(np.float32), self.checkpoint.tensor("lm_head.weight"))
        self.checkpoint.release()
        state.length += tokens.shape[1]
        return Step(logits, tuple(layers))

    def _weights(self, layer: int) -> AnyDeepSeekLayer:
        if isinstance(self.checkpoint, DeepSeekCheckpoint):
            return self.checkpoint.block_fp8_layer(layer)
        return self.checkpoint.nvfp4_layer(layer)

    def _norm(self, x: Array, name: str) -> Array:
        rows = x.reshape(-1, x.shape[-1]).astype(np.float32)
        return bf16(rms_norm(rows, self.checkpoint.tensor(name), EPSILON)).reshape(x.shape)
