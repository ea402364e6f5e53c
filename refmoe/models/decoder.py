"""The gpt-oss transformer with a pluggable mixture of experts, in one stated arithmetic.

The formula is that of transformers' `GptOssForCausalLM`. With dtype float64 nothing is rounded between the operations
and the weights' BF16 values are taken as they are. With dtype float32 every operation is FP32, rounded to nearest
(`refmoe.models.dense`, `attention`, `rope`), and what a GPU would store is rounded to BF16, ties to even:

    embedding row                                       BF16 as it is; rounded to it if a GGUF file has another type
    RMSNorm's output                                    BF16
    q, k, v                                             BF16 after the bias; q and k again after rotation
    cached keys and values                              those BF16 values
    attention's output, and that of `out`, bias added   BF16
    residual + attention, residual + experts            one FP32 addition, BF16
    what enters and leaves the experts                  BF16; what happens between is the path's own
    logits                                              FP32, not rounded further

No bit of a sequence depends on its neighbours or on how its prompt was cut into pieces, as long as the path keeps to
that too. In float32 none depends on the machine either, but for the cosines and sines, which are the libm's in float64
rounded once; in float64 the exponentials are the libm's too.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from refmoe.errors import ArgumentError, describe
from refmoe.models.attention import attend
from refmoe.models.checkpoint import GptOssCheckpoint
from refmoe.models.dense import linear, project, rms_norm, values
from refmoe.models.rope import rotate, rotation
from refmoe.models.state import State
from refmoe.reference.fp32 import BF16, bf16
from refmoe.reference.moe.float64 import moe_float64
from refmoe.reference.moe.layer import MoELayer

Array = NDArray[Any]

MoEPath = Callable[[int, Array, MoELayer], Array]
"""A mixture of experts: layer number, BF16 [T, H] and the layer's weights to BF16 [T, H]. Row b S + s is position s of
sequence b."""


@dataclass(frozen=True, eq=False)
class LayerStep:
    """What went through the experts of one layer.

    Attributes:
        entered: [B, S, H] as the experts got it: BF16, or float64 where nothing is rounded.
        left: [B, S, H] as they gave it, before the residual.
        stages: what the dense part computed before, by name in order, if it was asked for: "attention_norm", "q", "k",
            "v", "attention", "attention_out", "attention_residual", and the layer's output "residual". All [B, S, ...].
    """

    entered: Array
    left: Array
    stages: Mapping[str, Array]


@dataclass(frozen=True, eq=False)
class Step:
    """The result of `prefill` or `step`.

    Attributes:
        logits: float32 or float64 [B, V], of the last position.
        layers: what went through the experts, layer by layer.
    """

    logits: Array
    layers: tuple[LayerStep, ...]


class Decoder:
    """A gpt-oss model that reads its weights from the checkpoint as it needs them and keeps none."""

    def __init__(
        self,
        checkpoint: GptOssCheckpoint,
        *,
        moe: MoEPath | None = None,
        dtype: type[np.float32] | type[np.float64] = np.float32,
    ) -> None:
        """A decoder over `checkpoint`.

        Args:
            checkpoint: the weights.
            moe: the mixture of experts; it gets BF16 whatever `dtype` is. None computes the formula without rounding
                (`moe_float64`); a float32 decoder rounds its result to FP32 and then to BF16.
            dtype: float32 or float64, the arithmetic of everything else.

        Raises:
            ArgumentError: a checkpoint of another model, or another dtype.
        """
        if not isinstance(checkpoint, GptOssCheckpoint):
            raise ArgumentError("checkpoint", describe(checkpoint), "a GptOssCheckpoint")
        if dtype not in (np.float32, np.float64):
            raise ArgumentError("dtype", describe(dtype), "numpy.float32 or numpy.float64")
        self.checkpoint = checkpoint
        self._moe = moe
        self._dtype = dtype
        #: What is kept between operations.
        self._stored: np.dtype[Any] = np.dtype(np.float64) if dtype is np.float64 else BF16

    def new_state(self, sequences: int) -> State:
        """The state of `sequences` sequences of which nothing has been decoded.

        Raises:
            ArgumentError: fewer than one sequence.
        """
        if type(sequences) is not int or sequences < 1:
            raise ArgumentError("sequences", describe(sequences), "an integer of at least 1")
        config = self.checkpoint.config
        empty = np.empty((sequences, 0, config.num_key_value_heads, config.head_dim), self._stored)
        layers = len(self.checkpoint.layers)
        return State(sequences, 0, [empty] * layers, [empty] * layers)

    def prefill(self, tokens: NDArray[np.integer[Any]], state: State, *, stages: bool = False) -> Step:
        """Decode S more positions of every sequence; `state` then holds them too.

        Args:
            tokens: integers [B, S], S at least 1.
            state: of B sequences, from `new_state` of a decoder of this checkpoint and dtype. It is changed once all
                layers are done, so an error leaves it as it was.
            stages: keep the intermediate results of the dense part.

        Raises:
            ArgumentError: tokens of the wrong shape or dtype, or out of the vocabulary; a state of another decoder; a
                path that gives something other than BF16 [T, H].
        """
        self._check(tokens, state)
        positions = np.arange(state.length, state.length + tokens.shape[1])
        turned = rotation(self.checkpoint.config, positions, self._dtype)
        ahead = state.copy()
        residual = values(self.checkpoint.embedding[tokens]).astype(self._stored)
        layers = []
        for layer in self.checkpoint.layers:
            kept: dict[str, Array] = {}
            residual = self._attention(layer, residual, turned, ahead, kept)
            entered, left = self._experts(layer, residual)
            residual = kept["residual"] = self._sum(residual, left)
            layers.append(LayerStep(entered, left, kept if stages else {}))
            self.checkpoint.release()
        logits = self._logits(residual[:, -1])
        state.keys, state.values, state.length = ahead.keys, ahead.values, ahead.length + len(positions)
        return Step(logits, tuple(layers))

    def step(self, tokens: NDArray[np.integer[Any]], state: State, *, stages: bool = False) -> Step:
        """Decode one more position of every sequence: `prefill` of tokens [B, 1].

        Args:
            tokens: integers [B].
            state: as for `prefill`.
            stages: as for `prefill`.

        Raises:
            ArgumentError: as for `prefill`.
        """
        if not isinstance(tokens, np.ndarray) or tokens.ndim != 1:
            raise ArgumentError("tokens", describe(tokens), f"integers [{state.sequences}]")
        return self.prefill(tokens[:, None], state, stages=stages)

    def _attention(
        self, layer: int, residual: Array, turned: tuple[Array, Array], state: State, kept: dict[str, Array]
    ) -> Array:
        config, weights = self.checkpoint.config, self.checkpoint.attention(layer)
        window = config.window(layer)

        def heads(x: Array) -> Array:
            return x.reshape(*residual.shape[:2], -1, config.head_dim)

        normed = kept["attention_norm"] = self._norm(residual, weights.norm)
        rows = self._rows(normed)
        q, k, v = (heads(self._store(linear(rows, part))) for part in (weights.q, weights.k, weights.v))
        q, k = (self._store(rotate(self._wide(x), *turned)) for x in (q, k))
        kept |= {"q": q, "k": k, "v": v}
        keys, values = state.append(layer, k, v, window)
        # One sequence at a time: a cache in FP32 for all of them would be most of the memory.
        attended = [
            attend(self._wide(q[b]), self._wide(keys[b]), self._wide(values[b]), self._wide(weights.sinks), window)
            for b in range(len(q))
        ]
        attention = kept["attention"] = self._store(np.stack(attended))
        projected = self._store(linear(self._rows(attention.reshape(*residual.shape[:2], -1)), weights.out))
        out = kept["attention_out"] = projected.reshape(residual.shape)
        total = kept["attention_residual"] = self._sum(residual, out)
        return total

    def _experts(self, layer: int, residual: Array) -> tuple[Array, Array]:
        entered = self._norm(residual, self.checkpoint.mlp_norm(layer))
        weights = self.checkpoint.moe_layer(layer)
        rows = entered.reshape(-1, entered.shape[-1])
        if self._moe is None:
            # A row at a time: a BLAS may add up a row differently when there are others.
            left = self._store(np.concatenate([moe_float64(row[None], weights) for row in rows]))
        else:
            entered = entered.astype(BF16)
            left = self._moe(layer, entered.reshape(rows.shape), weights)
            if not isinstance(left, np.ndarray) or left.dtype != BF16 or left.shape != rows.shape:
                raise ArgumentError("moe", f"{describe(left)} from layer {layer}", f"bfloat16 {list(rows.shape)}")
        return entered, left.reshape(entered.shape)

    def _logits(self, last: Array) -> Array:
        normed = self._norm(last[:, None], self.checkpoint.final_norm)
        logits = project(self._rows(normed), self.checkpoint.unembedding)
        self.checkpoint.release()
        return logits

    def _norm(self, x: Array, weight: Array) -> Array:
        return self._store(rms_norm(self._rows(x), weight, self.checkpoint.config.rms_norm_eps)).reshape(x.shape)

    def _sum(self, residual: Array, x: Array) -> Array:
        return self._store(self._wide(residual) + self._wide(x))

    def _rows(self, x: Array) -> Array:
        return self._wide(x.reshape(-1, x.shape[-1]))

    def _wide(self, x: Array) -> Array:
        return x.astype(self._dtype, copy=False)

    def _store(self, x: Array) -> Array:
        return x if self._stored == np.float64 else bf16(x.astype(np.float32, copy=False))

    def _check(self, tokens: object, state: object) -> None:
        config = self.checkpoint.config
        if not isinstance(state, State):
            raise ArgumentError("state", describe(state), "a State, from new_state")
        layers, heads = len(self.checkpoint.layers), (config.num_key_value_heads, config.head_dim)
        needed = f"{layers} of {self._stored} [{state.sequences}, positions, {heads[0]}, {heads[1]}]"
        caches = [(cache.dtype, len(cache), cache.shape[2:]) for cache in state.keys]
        first = f", the first {describe(state.keys[0])}" if caches else ""
        if caches != [(self._stored, state.sequences, heads)] * layers:
            raise ArgumentError("state", f"{len(caches)} caches{first}", needed)
        needed = f"integers [{state.sequences}, S] with S at least 1"
        if not isinstance(tokens, np.ndarray) or tokens.dtype.kind not in "iu" or tokens.ndim != 2:
            raise ArgumentError("tokens", describe(tokens), needed)
        if tokens.shape[0] != state.sequences or tokens.shape[1] < 1:
            raise ArgumentError("tokens", describe(tokens), needed)
        if tokens.min() < 0 or tokens.max() >= config.vocab_size:
            bad = tokens[(tokens < 0) | (tokens >= config.vocab_size)][0]
            raise ArgumentError("tokens", f"token {bad}", f"0 to {config.vocab_size - 1}")
