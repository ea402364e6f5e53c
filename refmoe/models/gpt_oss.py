"""gpt-oss in safetensors files: under the names of Hugging Face or OpenAI's own, or in NVFP4 as ModelOpt stores it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from numpy.typing import NDArray

from refmoe.formats import NVFP4
from refmoe.models.checkpoint import Attention, GptOssCheckpoint, Linear, check_counts, check_layer
from refmoe.models.config import GptOssConfig
from refmoe.models.modelopt import checked_experts, quantizes
from refmoe.models.schema import (
    Tensors,
    gpt_oss_nvfp4_tensors,
    huggingface_tensors,
    original_parts,
    original_tensors,
)
from refmoe.models.tensor_file import CheckpointError
from refmoe.models.tensor_set import TensorSet
from refmoe.reference.moe.layer import MoELayer
from refmoe.reference.tensor import MXTensor, NVFP4Experts

Array = NDArray[Any]


class GptOssFolder(GptOssCheckpoint):
    """A folder of safetensors files with gpt-oss under either set of names; everything is a view of them."""

    def __init__(self, folder: Path, config: GptOssConfig, *, original: bool) -> None:
        """Check the folder against `config`; `original` says under which names."""
        tensors = TensorSet(folder)
        check_counts(folder, tensors, num_hidden_layers=config.num_hidden_layers)
        super().__init__(folder, tensors, self._needed(config, original), config)
        self._places = _original_places(config) if original else {}

    def _needed(self, config: GptOssConfig, original: bool) -> Tensors:
        return original_tensors(config) if original else huggingface_tensors(config)

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
        return MoELayer(
            gate_up=self._weights(f"{prefix}experts.gate_up_proj"),
            down=self._weights(f"{prefix}experts.down_proj"),
            gate_up_bias=self._named(f"{prefix}experts.gate_up_proj_bias"),
            down_bias=self._named(f"{prefix}experts.down_proj_bias"),
            router_weight=self._named(f"{prefix}router.weight"),
            router_bias=self._named(f"{prefix}router.bias"),
            top_k=self.config.num_experts_per_tok,
            swiglu_limit=self._limits(),
        )

    def _prefix(self, layer: int) -> str:
        check_layer(layer, self.layers)
        return f"model.layers.{layer}."

    def _named(self, name: str) -> Array:
        """What Hugging Face calls `name`, whatever the file does."""
        stored, rows = self._places.get(name, (name, slice(None)))
        return self.tensor(stored)[rows]

    def _linear(self, name: str) -> Linear:
        return Linear(self._named(f"{name}.weight"), self._named(f"{name}.bias"))

    def _weights(self, name: str) -> MXTensor | NVFP4Experts:
        blocks = self._named(f"{name}_blocks")
        return MXTensor(blocks.reshape(*blocks.shape[:2], -1), self._named(f"{name}_scales"), "mxfp4")


class GptOssNVFP4Folder(GptOssFolder):
    """A folder of gpt-oss whose experts ModelOpt quantized to NVFP4; those of a layer are copied, K last.

    Attributes:
        excluded: wildcards of the modules that are BF16.
    """

    weights = NVFP4.name

    def __init__(self, folder: Path, config: GptOssConfig, excluded: tuple[str, ...]) -> None:
        """Check the folder against `config` and the list of modules that are not quantized."""
        quantized = quantizes(excluded)
        for layer in range(config.num_hidden_layers):
            prefix = f"model.layers.{layer}."
            dense = [*(f"{prefix}self_attn.{part}_proj" for part in "qkvo"), f"{prefix}mlp.router", "lm_head"]
            wrong = [f"{name}, which no wildcard excludes" for name in dense if quantized(name)]
            if not quantized(f"{prefix}mlp.experts"):
                wrong.append(f"{prefix}mlp.experts, which a wildcard excludes")
            if wrong:
                raise CheckpointError(folder, None, wrong[0], "NVFP4 in the experts, and nowhere else")
        super().__init__(folder, config, original=False)
        self.excluded = excluded

    def _needed(self, config: GptOssConfig, original: bool) -> Tensors:
        return gpt_oss_nvfp4_tensors(config)

    def _weights(self, name: str) -> NVFP4Experts:
        return checked_experts(self.path, name, self.tensor)


def _original_places(config: GptOssConfig) -> dict[str, tuple[str, slice]]:
    """By Hugging Face name OpenAI's, and which rows of that."""
    places = {}
    for original, parts in original_parts(config).items():
        end = 0
        for name, spec in parts.items():
            start, end = end, end + spec.shape[0]
            places[name] = original, slice(start, end)
    return places
