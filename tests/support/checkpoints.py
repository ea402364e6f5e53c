"""Small checkpoints for the tests of refmoe.models, and safetensors files written byte by byte."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from refmoe.models import DeepSeekConfig, GptOssConfig

#: Four layers, a window that a short prompt outgrows, and a context so short that YaRN keeps, blends and slows pairs.
TINY = GptOssConfig(
    num_hidden_layers=4,
    num_local_experts=8,
    num_experts_per_tok=4,
    vocab_size=256,
    hidden_size=96,
    intermediate_size=64,
    num_attention_heads=8,
    num_key_value_heads=2,
    head_dim=16,
    sliding_window=16,
    initial_context_length=256,
)

#: No width is a multiple of 128, so blocks at the edges are narrower.
TINY_DEEPSEEK = DeepSeekConfig(
    num_hidden_layers=3,
    first_k_dense_replace=1,
    vocab_size=64,
    hidden_size=192,
    intermediate_size=320,
    moe_intermediate_size=160,
    n_routed_experts=4,
    num_experts_per_tok=2,
    n_group=2,
    topk_group=1,
    num_attention_heads=2,
    q_lora_rank=48,
    kv_lora_rank=32,
    qk_nope_head_dim=16,
    qk_rope_head_dim=8,
    v_head_dim=16,
)

#: Widths that a layer in block FP8 can have: multiples of 128.
BLOCK_FP8_DEEPSEEK = DeepSeekConfig(
    num_hidden_layers=3,
    first_k_dense_replace=1,
    vocab_size=64,
    hidden_size=256,
    intermediate_size=384,
    moe_intermediate_size=128,
    n_routed_experts=8,
    n_shared_experts=2,
    num_experts_per_tok=3,
    n_group=4,
    topk_group=2,
    num_attention_heads=2,
    q_lora_rank=48,
    kv_lora_rank=32,
    qk_nope_head_dim=16,
    qk_rope_head_dim=8,
    v_head_dim=16,
)


def read_header(path: Path) -> tuple[dict[str, Any], bytes]:
    """The JSON header of a safetensors file and the bytes after it."""
    content = path.read_bytes()
    length = int.from_bytes(content[:8], "little")
    return json.loads(content[8 : 8 + length]), content[8 + length :]


def write_header(path: Path, header: dict[str, Any] | str, data: bytes) -> None:
    """A safetensors file of this header and data, right or wrong."""
    text = (header if isinstance(header, str) else json.dumps(header)).encode()
    path.write_bytes(len(text).to_bytes(8, "little") + text + data)
