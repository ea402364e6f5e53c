"""gpt-oss in safetensors files, under the names of Hugging Face or OpenAI's own."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from refmoe.models.checkpoint import Attention, GptOssCheckpoint, Linear, check_counts, check_layer
from refmoe.models.config import GptOssConfig
from refmoe.models.schema import huggingface_tensors, original_tensors
from refmoe.models.tensor_set import TensorSet
from refmoe.reference.moe.layer import MoELayer
from refmoe.reference.tensor import MXTensor

Array = NDArray[Any]


class GptOssFolder(GptOssCheckpoint):
    """A folder of safetensors files with gpt-oss under either set of names; everything is a view of them."""

    def __init__(self, folder: Path, config: GptOssConfig, *, original: bool) -> None:
        """Check the folder against `config`; `original` says under which names."""
        tensors = TensorSet(folder)
        check_counts(folder, tensors, num_hidden_layers=config.num_hidden_layers)
        needed = original_tensors(config) if original else huggingface_tensors(config)
        super().__init__(folder, tensors, needed, config)
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
        weight, bias = (self.tensor(f"{prefix}attn.qkv.{part}") for part in ("weight", "bias"))
        sizes = self.config.qkv_rows
        q, k, v = (
            Linear(weight[end - size : end], bias[end - size : end])
            for size, end in zip(sizes, np.cumsum(sizes), strict=True)
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
        router = prefix + ("gate" if self._original else "router")
        return MoELayer(
            gate_up=self._mxfp4(prefix + up),
            down=self._mxfp4(prefix + down),
            gate_up_bias=self.tensor(f"{prefix}{up}_bias"),
            down_bias=self.tensor(f"{prefix}{down}_bias"),
            router_weight=self.tensor(f"{router}.weight"),
            router_bias=self.tensor(f"{router}.bias"),
            top_k=self.config.num_experts_per_tok,
            swiglu_limit=self._limits(),
        )

    def _prefix(self, layer: int) -> str:
        check_layer(layer, self.layers)
        return f"block.{layer}." if self._original else f"model.layers.{layer}."

    def _linear(self, name: str) -> Linear:
        return Linear(self.tensor(f"{name}.weight"), self.tensor(f"{name}.bias"))

    def _mxfp4(self, name: str) -> MXTensor:
        joint = "_weight." if self._original else "_"
        blocks = self.tensor(f"{name}{joint}blocks")
        codes = blocks.reshape(*blocks.shape[:2], -1)
        return MXTensor(codes, self.tensor(f"{name}{joint}scales"), "mxfp4")
