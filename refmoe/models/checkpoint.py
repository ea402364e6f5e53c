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
from refmoe.models.schema import TensorSpec, deepseek_tensors, huggingface_tensors, original_tensors
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


class _Checkpoint:
    """What checkpoints have in common: tensors by name."""

    def __init__(self, folder: Path, needed: Mapping[str, TensorSpec]) -> None:
        self.folder = folder
        self._tensors = TensorSet(folder)
        self._tensors.require(needed)

    def names(self) -> list[str]:
        """Every tensor's name, sorted."""
        return self._tensors.names()

    def tensor(self, name: str) -> Array:
        """A tensor as a read-only view of the file: BF16 as ml_dtypes.bfloat16, FP8 codes as uint8.

        Raises:
            CheckpointError: there is no such tensor.
        """
        return self._tensors.view(name)

    def release(self) -> None:
        """Give back the memory of what was read; views stay valid and read it again when used."""
        self._tensors.release()


class GptOssCheckpoint(_Checkpoint):
    """A gpt-oss checkpoint under either set of names.

    Attributes:
        folder: where it lies.
        config: its sizes.
        layers: the numbers of its layers, each with attention and experts.
    """

    def __init__(self, folder: Path, config: GptOssConfig, *, original: bool) -> None:
        """Check the folder against `config`; `original` says under which names."""
        super().__init__(folder, original_tensors(config) if original else huggingface_tensors(config))
        self.config = config
        self.layers = range(config.num_hidden_layers)
        self._original = original

    @property
    def embedding(self) -> Array:
        """BF16 [V, H], a row a token."""
        return self.tensor("embedding.weight" if self._original else "model.embed_tokens.weight")

    @property
    def final_norm(self) -> Array:
        """BF16 [H], of the RMSNorm before the logits."""
        return self.tensor("norm.scale" if self._original else "model.norm.weight")

    @property
    def unembedding(self) -> Array:
        """BF16 [V, H], to the logits."""
        return self.tensor("unembedding.weight" if self._original else "lm_head.weight")

    def attention(self, layer: int) -> Attention:
        """The attention weights of a layer.

        Raises:
            ArgumentError: there is no such layer.
        """
        prefix = self._prefix(layer)
        if not self._original:
            q, k, v, out = (self._linear(f"{prefix}self_attn.{name}_proj") for name in "qkvo")
            norm, sinks = (self.tensor(prefix + name) for name in ("input_layernorm.weight", "self_attn.sinks"))
            return Attention(norm, q, k, v, out, sinks)
        joined, sizes = self._linear(f"{prefix}attn.qkv"), self.config.qkv_rows
        ends = np.cumsum(sizes)
        q, k, v = (
            Linear(joined.weight[end - size : end], joined.bias[end - size : end])
            for size, end in zip(sizes, ends, strict=True)
        )
        norm, sinks = (self.tensor(prefix + name) for name in ("attn.norm.scale", "attn.sinks"))
        return Attention(norm, q, k, v, self._linear(f"{prefix}attn.out"), sinks)

    def mlp_norm(self, layer: int) -> Array:
        """BF16 [H], of the RMSNorm before the experts.

        Raises:
            ArgumentError: there is no such layer.
        """
        return self.tensor(
            self._prefix(layer) + ("mlp.norm.scale" if self._original else "post_attention_layernorm.weight")
        )

    def moe_layer(self, layer: int) -> MoELayer:
        """Router and experts of a layer; codes, scales and biases are views of the file.

        Raises:
            ArgumentError: there is no such layer.
        """
        prefix = self._prefix(layer) + "mlp."
        up, down = ("mlp1", "mlp2") if self._original else ("experts.gate_up_proj", "experts.down_proj")
        router, limit = self._linear(prefix + ("gate" if self._original else "router")), self.config.swiglu_limit
        return MoELayer(
            gate_up=self._mxfp4(prefix + up),
            down=self._mxfp4(prefix + down),
            gate_up_bias=self.tensor(f"{prefix}{up}_bias"),
            down_bias=self.tensor(f"{prefix}{down}_bias"),
            router_weight=router.weight,
            router_bias=router.bias,
            top_k=self.config.num_experts_per_tok,
            swiglu_limit=None if limit == LIMIT else np.full(self.config.num_local_experts, limit, np.float32),
        )

    def _prefix(self, layer: int) -> str:
        _check_layer(layer, self.layers)
        return f"block.{layer}." if self._original else f"model.layers.{layer}."

    def _linear(self, name: str) -> Linear:
        return Linear(self.tensor(f"{name}.weight"), self.tensor(f"{name}.bias"))

    def _mxfp4(self, name: str) -> MXTensor:
        joint = "_weight." if self._original else "_"
        blocks = self.tensor(f"{name}{joint}blocks")
        codes = blocks.reshape(*blocks.shape[:2], -1)
        return MXTensor(codes, self.tensor(f"{name}{joint}scales"), "mxfp4")


class DeepSeekCheckpoint(_Checkpoint):
    """A DeepSeek-V3 or R1 checkpoint.

    Attributes:
        folder: where it lies.
        config: its sizes.
        layers: the numbers of all its layers.
        moe_layers: those that have experts.
    """

    def __init__(self, folder: Path, config: DeepSeekConfig) -> None:
        """Check the folder against `config`."""
        super().__init__(folder, deepseek_tensors(config))
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


def _check_layer(layer: int, layers: range) -> None:
    if layer not in layers:
        raise ArgumentError("layer", str(layer), f"{layers.start} to {layers.stop - 1}")
