"""gpt-oss in GGUF: keys of the metadata, and names, types and shapes of every tensor.

Sources: `GptOssModel` in llama.cpp's converter says how the tensors come from the Hugging Face ones. The table of
MODEL_ARCH.GPT_OSS in the package gguf has their names. Logs of llama.cpp show the keys of published files, and how many
tensors these have: gpt-oss-20b 459; gpt-oss-120b 433 in F32, 146 in BF16 and 108 in MXFP4. The tables here have the
same. No published file was read.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from refmoe.errors import ArgumentError, describe
from refmoe.models.config import GptOssConfig
from refmoe.models.gguf.header import GgufTensorInfo
from refmoe.models.schema import Tensors, TensorSpec
from refmoe.models.tensor_file import CheckpointError

ARCHITECTURE = "gpt-oss"
EMBEDDING = "token_embd.weight"

#: What llama.cpp has built in and the files leave out: the clamp of SwiGLU, and where YaRN's ramp begins and ends.
_SWIGLU_LIMIT, _BETA_FAST, _BETA_SLOW = 7.0, 32.0, 1.0

_INTEGERS = {
    "block_count": "num_hidden_layers",
    "expert_count": "num_local_experts",
    "expert_used_count": "num_experts_per_tok",
    "embedding_length": "hidden_size",
    "expert_feed_forward_length": "intermediate_size",
    "attention.head_count": "num_attention_heads",
    "attention.head_count_kv": "num_key_value_heads",
    "attention.key_length": "head_dim",
    "attention.sliding_window": "sliding_window",
    "rope.scaling.original_context_length": "initial_context_length",
}
_NUMBERS = {
    "attention.layer_norm_rms_epsilon": "rms_norm_eps",
    "rope.freq_base": "rope_theta",
    "rope.scaling.factor": "rope_factor",
}


def config_of(path: Path, metadata: Mapping[str, Any], embedding: GgufTensorInfo | None) -> GptOssConfig:
    """What the metadata of the file `path` says, in the words of config.json.

    A number that the file has in FP32 becomes the shortest decimal that rounds to it: 1e-05, as config.json has it. The
    size of the vocabulary is that of `embedding`.

    Raises:
        CheckpointError: another architecture, a key that is missing, of another type, or says something that this
            decoder does not compute.
    """

    def value(key: str) -> Any:
        name = f"{ARCHITECTURE}.{key}"
        if name not in metadata:
            raise CheckpointError(path, None, f"no {name} in the metadata", "one")
        return metadata[name]

    def checked(key: str, needed: object, found: object) -> None:
        if found != needed:
            raise CheckpointError(path, None, f"{key} {found!r}", repr(needed))

    checked("general.architecture", ARCHITECTURE, metadata.get("general.architecture"))
    said = {ours: value(key) for key, ours in _INTEGERS.items()}
    said |= {ours: _decimal(path, key, value(key)) for key, ours in _NUMBERS.items()}
    if embedding is None:
        raise CheckpointError(path, EMBEDDING, "no such tensor", "the embedding, [V, H]")
    said["vocab_size"] = embedding.shape[0]
    checked(f"{ARCHITECTURE}.rope.scaling.type", "yarn", value("rope.scaling.type"))
    # Files differ in which of these they have; one that contradicts is another model.
    for key, needed in (
        ("attention.value_length", said["head_dim"]),
        ("feed_forward_length", said["intermediate_size"]),
        ("vocab_size", said["vocab_size"]),
        ("rope.dimension_count", said["head_dim"]),
        ("rope.freq_base_swa", said["rope_theta"]),
        ("rope.scaling.attn_factor", 1.0),
        ("rope.scaling.yarn_attn_factor", 1.0),
        ("rope.scaling.yarn_ext_factor", 1.0),
        ("rope.scaling.yarn_beta_fast", _BETA_FAST),
        ("rope.scaling.yarn_beta_slow", _BETA_SLOW),
    ):
        name = f"{ARCHITECTURE}.{key}"
        if name in metadata:
            checked(name, needed, metadata[name])
    try:
        return GptOssConfig(**said, swiglu_limit=_SWIGLU_LIMIT, rope_beta_fast=_BETA_FAST, rope_beta_slow=_BETA_SLOW)
    except ArgumentError as error:
        raise CheckpointError(path, None, f"{error.argument}: {error.found}", error.needed) from error


def metadata_of(config: GptOssConfig) -> dict[str, Any]:
    """The metadata that says `config`: integers are u32, other numbers FP32.

    Raises:
        ArgumentError: a clamp or a ramp of YaRN that has no place in these files.
    """
    for name, needed in (
        ("swiglu_limit", _SWIGLU_LIMIT),
        ("rope_beta_fast", _BETA_FAST),
        ("rope_beta_slow", _BETA_SLOW),
    ):
        if getattr(config, name) != needed:
            raise ArgumentError(name, str(getattr(config, name)), f"{needed} in GGUF, which does not store it")
    said: dict[str, Any] = {key: getattr(config, ours) for key, ours in _INTEGERS.items()}
    said |= {key: float(getattr(config, ours)) for key, ours in _NUMBERS.items()}
    said |= {
        "attention.value_length": config.head_dim,
        "context_length": int(config.initial_context_length * config.rope_factor),
        "feed_forward_length": config.intermediate_size,
        "rope.scaling.type": "yarn",
    }
    return {f"{ARCHITECTURE}.{key}": value for key, value in said.items()}


def gguf_tensors(config: GptOssConfig) -> Tensors:
    """The tensors of gpt-oss under llama.cpp's names; shapes have the innermost dimension last, as NumPy has them."""
    heads, kv_heads, _ = config.qkv_rows
    width, inner, experts = config.hidden_size, config.intermediate_size, config.num_local_experts
    tensors = {
        EMBEDDING: _dense(config.vocab_size, width),
        "output_norm.weight": _f32(width),
        "output.weight": _dense(config.vocab_size, width),
    }
    for layer in range(config.num_hidden_layers):
        prefix = f"blk.{layer}."
        tensors |= {
            f"{prefix}attn_norm.weight": _f32(width),
            **_linear(f"{prefix}attn_q", heads, width),
            **_linear(f"{prefix}attn_k", kv_heads, width),
            **_linear(f"{prefix}attn_v", kv_heads, width),
            **_linear(f"{prefix}attn_output", width, heads),
            f"{prefix}attn_sinks.weight": _f32(config.num_attention_heads),
            f"{prefix}post_attention_norm.weight": _f32(width),
            f"{prefix}ffn_gate_inp.weight": _f32(experts, width),
            f"{prefix}ffn_gate_inp.bias": _f32(experts),
            **_experts(f"{prefix}ffn_gate_exps", experts, inner, width),
            **_experts(f"{prefix}ffn_up_exps", experts, inner, width),
            **_experts(f"{prefix}ffn_down_exps", experts, width, inner),
        }
    return tensors


def _decimal(path: Path, key: str, value: object) -> float:
    if type(value) not in (int, float):
        raise CheckpointError(path, None, f"{ARCHITECTURE}.{key}: {describe(value)}", "a number")
    with np.errstate(over="ignore"):
        return float(str(np.float32(value)))  # type: ignore[arg-type]


def _f32(*shape: int) -> TensorSpec:
    return TensorSpec("F32", shape)


def _dense(rows: int, columns: int) -> TensorSpec:
    return TensorSpec("BF16", (rows, columns), also=("Q8_0", "F16", "F32"))


def _linear(name: str, rows: int, columns: int) -> Tensors:
    return {f"{name}.weight": _dense(rows, columns), f"{name}.bias": _f32(rows)}


def _experts(name: str, experts: int, rows: int, columns: int) -> Tensors:
    return {f"{name}.weight": TensorSpec("MXFP4", (experts, rows, columns)), f"{name}.bias": _f32(experts, rows)}
