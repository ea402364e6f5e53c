"""Random gpt-oss models in GGUF, written by the package gguf itself from the tensors that the other formats have."""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from refmoe.errors import ArgumentError
from refmoe.files import write_atomic
from refmoe.formats import MXFP4
from refmoe.models.config import GptOssConfig
from refmoe.models.gguf.header import MISSING
from refmoe.models.gguf.names import ARCHITECTURE, gguf_tensors, metadata_of
from refmoe.models.random_weights import random_tensor
from refmoe.models.schema import huggingface_tensors
from refmoe.reference.layout import pack_fp4, unpack_fp4

Array = NDArray[Any]

_TOP = {
    "token_embd.weight": "model.embed_tokens.weight",
    "output_norm.weight": "model.norm.weight",
    "output.weight": "lm_head.weight",
}
#: Of a layer, without .weight or .bias.
_IN_LAYER = {
    "attn_norm": "input_layernorm",
    "attn_q": "self_attn.q_proj",
    "attn_k": "self_attn.k_proj",
    "attn_v": "self_attn.v_proj",
    "attn_output": "self_attn.o_proj",
    "post_attention_norm": "post_attention_layernorm",
    "ffn_gate_inp": "mlp.router",
}
#: The joint matrix that an expert's lies in elsewhere, and its rows there: gate rows are even, up rows odd.
_EXPERTS = {
    "ffn_gate_exps": ("gate_up_proj", slice(0, None, 2)),
    "ffn_up_exps": ("gate_up_proj", slice(1, None, 2)),
    "ffn_down_exps": ("down_proj", slice(None)),
}

#: How GGUFWriter adds a value of the metadata.
_ADDERS: Mapping[type, Callable[[Any, str, Any], None]] = {
    int: lambda writer, key, value: writer.add_uint32(key, value),
    float: lambda writer, key, value: writer.add_float32(key, value),
    str: lambda writer, key, value: writer.add_string(key, value),
}


def write_gguf(path: Path, config: GptOssConfig, seed: int, *, dense: str) -> Path:
    """Write a random model whose values are those of `write_checkpoint` in the other formats for the same seed.

    Args:
        path: the file, made with its folder.
        config: the sizes.
        seed: what the weights are drawn from.
        dense: the type of dense matrices, "BF16" or "Q8_0"; gguf's own quantizer makes the latter.

    Raises:
        ArgumentError: a config that GGUF has no place for, a width that Q8_0 cannot hold, or no package gguf.
        OSError: the file cannot be written.
    """
    try:
        import gguf
    except ImportError as error:
        raise ArgumentError("format", "gguf, and no package to write it with", MISSING) from error
    types = gguf.GGMLQuantizationType
    metadata, tensors = metadata_of(config), gguf_tensors(config)
    with tempfile.TemporaryDirectory(prefix="refmoe-gguf-") as folder:
        file = Path(folder) / path.name
        writer = gguf.GGUFWriter(file, ARCHITECTURE)
        for key, value in metadata.items():
            _ADDERS[type(value)](writer, key, value)
        for name, spec in tensors.items():
            values = _values(name, config, seed)
            if spec.dtype == "MXFP4":
                writer.add_tensor(name, values, raw_dtype=types.MXFP4)
            elif spec.dtype == "F32":
                writer.add_tensor(name, values.astype(np.float32))
            elif dense == "BF16":
                writer.add_tensor(name, values.view(np.uint8), raw_dtype=types.BF16)
            else:
                if spec.shape[-1] % gguf.GGML_QUANT_SIZES[types.Q8_0][0]:
                    raise ArgumentError(
                        "config", f"{name} {list(spec.shape)}", "columns that are a multiple of 32 for Q8_0"
                    )
                quantized = gguf.quants.quantize(values.astype(np.float32), types.Q8_0)
                writer.add_tensor(name, quantized, raw_dtype=types.Q8_0)
        writer.write_header_to_file()
        writer.write_kv_data_to_file()
        writer.write_tensors_to_file()
        writer.close()
        return write_atomic(path, file.read_bytes())


def _values(name: str, config: GptOssConfig, seed: int) -> Array:
    """A tensor as the Hugging Face form has it; MXFP4 in GGUF's bytes, uint8 [E, rows, K/32 * 17]."""
    specs = huggingface_tensors(config)

    def drawn(theirs: str) -> Array:
        return random_tensor(theirs, specs[theirs], seed)

    if name in _TOP:
        return drawn(_TOP[name])
    _, layer, part, ending = name.split(".")
    prefix = f"model.layers.{layer}."
    if part == "attn_sinks":
        return drawn(f"{prefix}self_attn.sinks")
    if part in _IN_LAYER:
        return drawn(f"{prefix}{_IN_LAYER[part]}.{ending}")
    joint, rows = _EXPERTS[part]
    if ending == "bias":
        return drawn(f"{prefix}mlp.experts.{joint}_bias")[:, rows]
    codes, scales = (drawn(f"{prefix}mlp.experts.{joint}_{kind}")[:, rows] for kind in ("blocks", "scales"))
    packed = pack_fp4(unpack_fp4(codes), order="gguf")
    blocks = np.concatenate([scales[..., None], packed], axis=-1)
    return blocks.reshape(*blocks.shape[:2], -1, 1 + MXFP4.block_bytes).reshape(*blocks.shape[:2], -1)
