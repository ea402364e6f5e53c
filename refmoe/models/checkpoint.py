"""Checkpoints of gpt-oss and DeepSeek-V3: open a folder, check it, read its tensors where they lie.

Opening reads config.json, the index and the header of every file, and holds all of it against the tables of
`refmoe.models.schema`. Weights are views of memory maps: nothing of them is read before it is used.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from refmoe.errors import ArgumentError
from refmoe.models.block_scaled import BlockScaledWeight
from refmoe.models.config import DeepSeekConfig, GptOssConfig
from refmoe.models.schema import deepseek_tensors, huggingface_tensors, original_parts, original_tensors
from refmoe.models.tensor_file import CheckpointError, refuse_pickle
from refmoe.models.tensor_set import TensorSet, read_json
from refmoe.reference.activation import LIMIT
from refmoe.reference.moe.layer import MoELayer
from refmoe.reference.tensor import MXTensor

Array = NDArray[Any]


@dataclass(frozen=True, eq=False)
class Linear:
    """A dense layer: weight BF16 [N, K] and bias BF16 [N]."""

    weight: Array
    bias: Array


@dataclass(frozen=True, eq=False)
class Attention:
    """The attention weights of a gpt-oss layer.

    Attributes:
        norm: BF16 [H], of the RMSNorm before it.
        q: to all query heads.
        k: to all key heads.
        v: to all value heads.
        out: back to the residual stream.
        sinks: BF16 [query heads], a logit that takes part in the softmax and has no value.
    """

    norm: Array
    q: Linear
    k: Linear
    v: Linear
    out: Linear
    sinks: Array


@dataclass(frozen=True, eq=False)
class DeepSeekExpert:
    """A feed-forward network: down(silu(gate x) * up x)."""

    gate: BlockScaledWeight
    up: BlockScaledWeight
    down: BlockScaledWeight


@dataclass(frozen=True, eq=False)
class DeepSeekLayer:
    """The mixture of experts of a DeepSeek-V3 layer.

    Attributes:
        experts: the routed experts.
        shared: the expert that every token goes to.
        router_weight: BF16 [E, H].
        correction_bias: float32 [E] (exact if the file has BF16), added to the sigmoids for the choice alone.
        config: top-k, groups and the factor on the weights.
    """

    experts: tuple[DeepSeekExpert, ...]
    shared: DeepSeekExpert
    router_weight: Array
    correction_bias: Array
    config: DeepSeekConfig


class GptOssCheckpoint(TensorSet):
    """A gpt-oss checkpoint under either set of names.

    Attributes:
        folder: where it lies.
        config: its sizes.
        layers: the numbers of its layers, each with attention and experts.
    """

    def __init__(self, folder: Path, config: GptOssConfig, *, original: bool) -> None:
        """Check the folder against `config`; `original` says under which names."""
        super().__init__(folder)
        self.require(original_tensors(config) if original else huggingface_tensors(config))
        self.config = config
        self.layers = range(config.num_hidden_layers)
        self._places = _original_places(config) if original else {}

    @property
    def embedding(self) -> Array:
        """BF16 [V, H], a row a token."""
        return self._named("model.embed_tokens.weight")

    @property
    def final_norm(self) -> Array:
        """BF16 [H], of the RMSNorm before the logits."""
        return self._named("model.norm.weight")

    @property
    def unembedding(self) -> Array:
        """BF16 [V, H], to the logits."""
        return self._named("lm_head.weight")

    def attention(self, layer: int) -> Attention:
        """The attention weights of a layer.

        Raises:
            ArgumentError: there is no such layer.
        """
        prefix = self._prefix(layer)
        q, k, v, out = (self._linear(f"{prefix}self_attn.{name}_proj") for name in "qkvo")
        norm, sinks = (self._named(prefix + name) for name in ("input_layernorm.weight", "self_attn.sinks"))
        return Attention(norm, q, k, v, out, sinks)

    def mlp_norm(self, layer: int) -> Array:
        """BF16 [H], of the RMSNorm before the experts.

        Raises:
            ArgumentError: there is no such layer.
        """
        return self._named(f"{self._prefix(layer)}post_attention_layernorm.weight")

    def moe_layer(self, layer: int) -> MoELayer:
        """Router and experts of a layer; codes, scales and biases are views of the file.

        Raises:
            ArgumentError: there is no such layer.
        """
        prefix = f"{self._prefix(layer)}mlp."
        router, limit = self._linear(f"{prefix}router"), self.config.swiglu_limit
        return MoELayer(
            gate_up=self._mxfp4(f"{prefix}experts.gate_up_proj"),
            down=self._mxfp4(f"{prefix}experts.down_proj"),
            gate_up_bias=self._named(f"{prefix}experts.gate_up_proj_bias"),
            down_bias=self._named(f"{prefix}experts.down_proj_bias"),
            router_weight=router.weight,
            router_bias=router.bias,
            top_k=self.config.num_experts_per_tok,
            swiglu_limit=None if limit == LIMIT else np.full(self.config.num_local_experts, limit, np.float32),
        )

    def _prefix(self, layer: int) -> str:
        _check_layer(layer, self.layers)
        return f"model.layers.{layer}."

    def _named(self, name: str) -> Array:
        """What Hugging Face calls `name`, whatever the file does."""
        stored, rows = self._places.get(name, (name, slice(None)))
        return self.tensor(stored)[rows]

    def _linear(self, name: str) -> Linear:
        return Linear(self._named(f"{name}.weight"), self._named(f"{name}.bias"))

    def _mxfp4(self, name: str) -> MXTensor:
        blocks = self._named(f"{name}_blocks")
        return MXTensor(blocks.reshape(*blocks.shape[:2], -1), self._named(f"{name}_scales"), "mxfp4")


class DeepSeekCheckpoint(TensorSet):
    """A DeepSeek-V3 or R1 checkpoint.

    Attributes:
        folder: where it lies.
        config: its sizes.
        layers: the numbers of all its layers.
        moe_layers: those that have experts.
    """

    def __init__(self, folder: Path, config: DeepSeekConfig) -> None:
        """Check the folder against `config`."""
        super().__init__(folder)
        self.require(deepseek_tensors(config))
        self.config = config
        self.layers = range(config.num_hidden_layers)
        self.moe_layers = range(config.first_k_dense_replace, config.num_hidden_layers)

    def weight(self, name: str) -> BlockScaledWeight:
        """The codes `name`.weight with their scales.

        Raises:
            CheckpointError: there is no such weight, or it has no scales.
        """
        return BlockScaledWeight(self.tensor(f"{name}.weight"), self.tensor(f"{name}.weight_scale_inv"))

    def moe_layer(self, layer: int) -> DeepSeekLayer:
        """Router and experts of a layer, as views of the file.

        Raises:
            ArgumentError: there is no such layer, or it has no experts.
        """
        _check_layer(layer, self.moe_layers)
        prefix = f"model.layers.{layer}.mlp."
        return DeepSeekLayer(
            experts=tuple(self._expert(f"{prefix}experts.{expert}.") for expert in range(self.config.n_routed_experts)),
            shared=self._expert(f"{prefix}shared_experts."),
            router_weight=self.tensor(f"{prefix}gate.weight"),
            correction_bias=self.tensor(f"{prefix}gate.e_score_correction_bias").astype(np.float32, copy=False),
            config=self.config,
        )

    def _expert(self, prefix: str) -> DeepSeekExpert:
        return DeepSeekExpert(*(self.weight(f"{prefix}{name}_proj") for name in ("gate", "up", "down")))


def open_checkpoint(path: str | os.PathLike[str]) -> GptOssCheckpoint | DeepSeekCheckpoint:
    """Open the checkpoint in a folder and check it whole, without loading a weight.

    Args:
        path: the folder with config.json and the safetensors files.

    Returns:
        A GptOssCheckpoint, from Hugging Face or original names, or a DeepSeekCheckpoint.

    Raises:
        CheckpointError: a pickle; a model of another kind; a file, shard or tensor that is missing, damaged, truncated,
            there twice, or of another dtype or shape than config.json calls for. It names file and tensor.
    """
    folder = Path(path)
    if not folder.is_dir():
        refuse_pickle(folder)
        raise CheckpointError(folder, None, "a file" if folder.exists() else "nothing", "the folder of a checkpoint")
    file = folder / "config.json"
    raw = read_json(file)
    kind = raw.get("model_type", "original" if "num_experts" in raw and "rope_ntk_alpha" in raw else None)
    if kind == "gpt_oss":
        return GptOssCheckpoint(folder, _read(file, GptOssConfig.from_huggingface, raw), original=False)
    if kind == "original":
        return GptOssCheckpoint(folder, _read(file, GptOssConfig.from_original, raw), original=True)
    if kind == "deepseek_v3":
        return DeepSeekCheckpoint(folder, _read(file, DeepSeekConfig.from_huggingface, raw))
    needed = "model_type gpt_oss or deepseek_v3, or the keys of gpt-oss's original configuration"
    raise CheckpointError(file, None, f"model_type {kind!r}", needed)


def _read(file: Path, read: Callable[[Mapping[str, Any]], Any], raw: Mapping[str, Any]) -> Any:
    try:
        return read(raw)
    except ArgumentError as error:
        raise CheckpointError(file, None, f"{error.argument}: {error.found}", error.needed) from error


def _original_places(config: GptOssConfig) -> dict[str, tuple[str, slice]]:
    """By Hugging Face name OpenAI's, and which rows of that."""
    places = {}
    for original, parts in original_parts(config).items():
        end = 0
        for name, spec in parts.items():
            start, end = end, end + spec.shape[0]
            places[name] = original, slice(start, end)
    return places


def _check_layer(layer: int, layers: range) -> None:
    if layer not in layers:
        raise ArgumentError("layer", str(layer), f"{layers.start} to {layers.stop - 1}")
