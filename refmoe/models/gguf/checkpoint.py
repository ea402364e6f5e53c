"""A gpt-oss model in a GGUF file, as what the decoder takes.

Dense matrices, norms, biases and sinks are views of the file, Q8_0 among them. What kernels take in another form is
copied when it is asked for. MXFP4 codes go from GGUF's order (elements i and i + 16 in a byte, scale and codes side by
side, gate and up apart) into that of kernels. The router and the biases of experts go from F32 to BF16, which they were
before they were converted.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from refmoe.errors import ArgumentError
from refmoe.formats import MXFP4
from refmoe.models.checkpoint import Attention, GptOssCheckpoint, Linear, Weight, check_counts, check_layer
from refmoe.models.gguf.file import GgufSet
from refmoe.models.gguf.names import EMBEDDING, config_of, gguf_tensors
from refmoe.models.tensor_file import CheckpointError
from refmoe.reference.chunks import chunks
from refmoe.reference.dequantize import even_low
from refmoe.reference.fp32 import BF16
from refmoe.reference.gguf.q8_0 import Q8_0Tensor
from refmoe.reference.moe.layer import MoELayer
from refmoe.reference.tensor import MXTensor

Array = NDArray[Any]

_BLOCKS_A_CHUNK = 1 << 13


@dataclass(frozen=True, eq=False)
class GptOssExpert:
    """One expert of gpt-oss.

    Attributes:
        gate: mxfp4 [I, H].
        up: mxfp4 [I, H].
        down: mxfp4 [H, I].
        gate_bias: F32 [I].
        up_bias: F32 [I].
        down_bias: F32 [H].
    """

    gate: MXTensor
    up: MXTensor
    down: MXTensor
    gate_bias: Array
    up_bias: Array
    down_bias: Array


class GgufCheckpoint(GptOssCheckpoint):
    """A gpt-oss model in a GGUF file.

    Attributes:
        path: the file, the first if it was split.
        config: its sizes.
        layers: the numbers of its layers.
    """

    def __init__(self, path: Path) -> None:
        """Check the header of the file and hold it against its own metadata.

        Raises:
            CheckpointError: see `open_checkpoint`.
        """
        self._gguf = GgufSet(path)
        embedding = self._gguf.info(EMBEDDING) if EMBEDDING in self._gguf.names() else None
        config = config_of(path, self._gguf.metadata, embedding)
        check_counts(path, self._gguf, num_hidden_layers=config.num_hidden_layers)
        super().__init__(path, self._gguf, gguf_tensors(config), config)

    @property
    def files(self) -> list[Path]:
        """The file, or its parts."""
        return [file.path for file in self._gguf.files]

    @property
    def embedding(self) -> Weight:
        """BF16, Q8_0, F16 or F32 [V, H], a row a token."""
        return self._dense(EMBEDDING)

    @property
    def final_norm(self) -> Array:
        """F32 [H], of the RMSNorm before the logits."""
        return self.tensor("output_norm.weight")

    @property
    def unembedding(self) -> Weight:
        """BF16, Q8_0, F16 or F32 [V, H], to the logits."""
        return self._dense("output.weight")

    def attention(self, layer: int) -> Attention:
        """The attention weights of a layer, views of the file; norm, biases and sinks are F32.

        Raises:
            ArgumentError: there is no such layer.
        """
        prefix = self._prefix(layer)
        q, k, v, out = (self._linear(f"{prefix}attn_{name}") for name in ("q", "k", "v", "output"))
        norm, sinks = (self.tensor(f"{prefix}{name}.weight") for name in ("attn_norm", "attn_sinks"))
        return Attention(norm, q, k, v, out, sinks)

    def mlp_norm(self, layer: int) -> Array:
        """F32 [H], of the RMSNorm before the experts.

        Raises:
            ArgumentError: there is no such layer.
        """
        return self.tensor(f"{self._prefix(layer)}post_attention_norm.weight")

    def moe_layer(self, layer: int) -> MoELayer:
        """Router and experts of a layer, copied into the form of kernels: all experts are read, one after another.

        Raises:
            ArgumentError: there is no such layer.
            CheckpointError: a value of the router or of a bias that is no BF16 number.
        """
        prefix = self._prefix(layer)
        experts, inner, width = (
            getattr(self.config, name) for name in ("num_local_experts", "intermediate_size", "hidden_size")
        )
        gate_up, down = _empty(experts, 2 * inner, width), _empty(experts, width, inner)
        for expert in range(experts):
            for first, name in enumerate(("gate", "up")):
                _repack(
                    self.tensor(f"{prefix}ffn_{name}_exps.weight")[expert], gate_up, (expert, slice(first, None, 2))
                )
            _repack(self.tensor(f"{prefix}ffn_down_exps.weight")[expert], down, (expert, slice(None)))
        biases = [self._bf16(f"{prefix}ffn_{name}_exps.bias") for name in ("gate", "up")]
        return MoELayer(
            gate_up=gate_up,
            down=down,
            gate_up_bias=np.stack(biases, axis=-1).reshape(experts, 2 * inner),
            down_bias=self._bf16(f"{prefix}ffn_down_exps.bias"),
            router_weight=self._bf16(f"{prefix}ffn_gate_inp.weight"),
            router_bias=self._bf16(f"{prefix}ffn_gate_inp.bias"),
            top_k=self.config.num_experts_per_tok,
            swiglu_limit=self._limits(),
        )

    def expert(self, layer: int, expert: int) -> GptOssExpert:
        """One expert of a layer: its codes copied, its biases views. Nothing of another expert is read.

        Raises:
            ArgumentError: there is no such layer or expert.
        """
        prefix = self._prefix(layer)
        if expert not in range(self.config.num_local_experts):
            raise ArgumentError("expert", str(expert), f"0 to {self.config.num_local_experts - 1}")
        names = ("gate", "up", "down")
        gate, up, down = (self._mxfp4(f"{prefix}ffn_{name}_exps.weight", expert) for name in names)
        biases = (self.tensor(f"{prefix}ffn_{name}_exps.bias")[expert] for name in names)
        return GptOssExpert(gate, up, down, *biases)

    def _prefix(self, layer: int) -> str:
        check_layer(layer, self.layers)
        return f"blk.{layer}."

    def _linear(self, name: str) -> Linear:
        return Linear(self._dense(f"{name}.weight"), self.tensor(f"{name}.bias"))

    def _dense(self, name: str) -> Weight:
        content = self.tensor(name)
        return Q8_0Tensor.of_bytes(content) if self._gguf.info(name).type == "Q8_0" else content

    def _mxfp4(self, name: str, expert: int) -> MXTensor:
        blocks = self.tensor(name)[expert]
        tensor = _empty(*blocks.shape[:-2], blocks.shape[-2] * MXFP4.block)
        _repack(blocks, tensor, slice(None))
        return tensor

    def _bf16(self, name: str) -> Array:
        """A tensor in F32 as BF16, decided on bits."""
        bits = np.ascontiguousarray(self.tensor(name)).view(np.uint32)
        if (bits & np.uint32(0xFFFF)).any():
            where = tuple(int(i) for i in np.argwhere(bits & np.uint32(0xFFFF))[0])
            found = f"{bits.view(np.float32)[where]!r} at {list(where)}, which is no BF16 number"
            raise CheckpointError(self.path, name, found, "values that were BF16: kernels take these in BF16")
        narrow: Array = (bits >> np.uint32(16)).astype(np.uint16).view(BF16)
        return narrow


def _empty(*shape: int) -> MXTensor:
    *rows, k = shape
    codes, scales = (np.empty((*rows, k // part), np.uint8) for part in (MXFP4.codes_a_byte, MXFP4.block))
    return MXTensor(codes, scales, MXFP4.name)


def _repack(blocks: NDArray[np.uint8], tensor: MXTensor, where: Any) -> None:
    """Put blocks [rows, K/32, 17] of GGUF, the scale first, into a part of `tensor`."""
    # Views, since `where` is made of numbers and slices.
    codes, scales = tensor.codes[where], tensor.scales[where]
    scales[...] = blocks[..., 0]
    # What is in between stays in the cache: three times as fast as whole matrices.
    for rows in chunks(len(blocks), max(1, _BLOCKS_A_CHUNK // blocks.shape[1])):
        packed = np.ascontiguousarray(blocks[rows, :, 1:])
        codes[rows] = even_low(packed.reshape(-1, MXFP4.block_bytes)).reshape(len(packed), -1)
