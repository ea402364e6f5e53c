"""What every checkpoint is, and what the decoder takes from one of gpt-oss, whatever the format of its files.

Weights are views of memory maps: nothing of them is read before it is used.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from refmoe.errors import ArgumentError
from refmoe.formats import MXFP4
from refmoe.models.config import GptOssConfig
from refmoe.models.schema import TensorSpec
from refmoe.models.tensor_file import CheckpointError
from refmoe.reference.activation import LIMIT
from refmoe.reference.gguf.q8_0 import Q8_0Tensor
from refmoe.reference.moe.layer import MoELayer

Array = NDArray[Any]

Weight = Array | Q8_0Tensor
"""A dense matrix [N, K] as the file has it."""


@dataclass(frozen=True, eq=False)
class Linear:
    """A dense layer: weight BF16 [N, K], bias BF16 [N]. GGUF has weights in Q8_0, F16 or F32 too, and biases in F32."""

    weight: Weight
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


class Tensors(Protocol):
    """Tensors by name, checked and mapped: a `TensorSet` of safetensors files, or a `GgufSet`."""

    def require(self, needed: Mapping[str, TensorSpec]) -> None:
        """Check that every tensor of `needed` is there with its type and shape."""

    def names(self) -> list[str]:
        """Every tensor's name, sorted."""

    def tensor(self, name: str) -> Array:
        """A tensor as a read-only view of the file."""

    def release(self) -> None:
        """Give back the memory of the pages that were read."""


class Checkpoint:
    """What checkpoints have in common: tensors by name.

    Attributes:
        path: the folder, or the GGUF file.
    """

    def __init__(self, path: Path, tensors: Tensors, needed: Mapping[str, TensorSpec]) -> None:
        """Check that `tensors` has what is `needed`."""
        self.path = path
        self._tensors = tensors
        tensors.require(needed)

    @property
    def files(self) -> list[Path]:
        """The files that it is made of, sorted."""
        return sorted(file for file in self.path.iterdir() if file.suffix in (".json", ".safetensors"))

    def names(self) -> list[str]:
        """Every tensor's name, sorted."""
        return self._tensors.names()

    def tensor(self, name: str) -> Array:
        """A tensor as a read-only view of the file: BF16 as ml_dtypes.bfloat16, FP8 codes as uint8.

        GGUF's blocks are uint8 [..., blocks, bytes of a block].

        Raises:
            CheckpointError: there is no such tensor.
        """
        return self._tensors.tensor(name)

    def release(self) -> None:
        """Give back the memory of what was read; views stay valid and read it again when used."""
        self._tensors.release()


class GptOssCheckpoint(Checkpoint, ABC):
    """A gpt-oss checkpoint: what the decoder and `refmoe drift` take.

    Attributes:
        path: the folder, or the GGUF file.
        config: its sizes.
        layers: the numbers of its layers, each with attention and experts.
        weights: the format of the experts' weights, "mxfp4" or "nvfp4".
    """

    weights = MXFP4.name

    def __init__(self, path: Path, tensors: Tensors, needed: Mapping[str, TensorSpec], config: GptOssConfig) -> None:
        """Check that `tensors` has what is `needed`."""
        super().__init__(path, tensors, needed)
        self.config = config
        self.layers = range(config.num_hidden_layers)

    @property
    @abstractmethod
    def embedding(self) -> Weight:
        """BF16 [V, H], a row a token."""

    @property
    @abstractmethod
    def final_norm(self) -> Array:
        """BF16 [H], of the RMSNorm before the logits; F32 from GGUF."""

    @property
    @abstractmethod
    def unembedding(self) -> Weight:
        """BF16 [V, H], to the logits."""

    @abstractmethod
    def attention(self, layer: int) -> Attention:
        """The attention weights of a layer.

        Raises:
            ArgumentError: there is no such layer.
        """

    @abstractmethod
    def mlp_norm(self, layer: int) -> Array:
        """BF16 [H], of the RMSNorm before the experts; F32 from GGUF.

        Raises:
            ArgumentError: there is no such layer.
        """

    @abstractmethod
    def moe_layer(self, layer: int) -> MoELayer:
        """Router and experts of a layer; views of the files where these have them as kernels take them.

        Raises:
            ArgumentError: there is no such layer.
        """

    def _limits(self) -> NDArray[np.float32] | None:
        """What a MoELayer says of the clamp: None for gpt-oss's own."""
        limit = self.config.swiglu_limit
        return None if limit == LIMIT else np.full(self.config.num_local_experts, limit, np.float32)


def check_counts(path: Path, tensors: Tensors, **counts: int) -> None:
    """Refuse layers or experts by the billion before a table of their tensors is made."""
    there = len(tensors.names())
    for name, count in counts.items():
        if count > there:
            raise CheckpointError(path, None, f"{name} {count} over {there} tensors", "a tensor of each at least")


def check_layer(layer: int, layers: range) -> None:
    """Refuse a layer that a checkpoint does not have."""
    if layer not in layers:
        raise ArgumentError("layer", str(layer), f"{layers.start} to {layers.stop - 1}")
