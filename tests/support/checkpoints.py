"""Small checkpoints for the tests of refmoe.models, and safetensors files written byte by byte."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
import pytest

from refmoe.models import CheckpointError, DeepSeekConfig, GptOssConfig, open_checkpoint

Kind = TypeVar("Kind")

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

#: One layer, whose tensors a test can write out.
SMALLEST = GptOssConfig(
    num_hidden_layers=1,
    num_local_experts=2,
    num_experts_per_tok=1,
    vocab_size=4,
    hidden_size=32,
    intermediate_size=64,
    num_attention_heads=2,
    num_key_value_heads=1,
    head_dim=4,
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


def open_as(kind: type[Kind], path: Path) -> Kind:
    """The checkpoint there, which has to be of this kind."""
    checkpoint = open_checkpoint(path)
    assert isinstance(checkpoint, kind)
    return checkpoint


def refusal(path: Path) -> CheckpointError:
    """The error that opening it ends in."""
    with pytest.raises(CheckpointError) as caught:
        open_checkpoint(path)
    return caught.value


def rename_tensor(file: Path, name: str, new: str = "elsewhere") -> None:
    """Give a tensor of a safetensors file another name."""
    header, data = read_header(file)
    header[new] = header.pop(name)
    write_header(file, header, data)


def overwrite(file: Path, name: str, content: bytes, at: int = 0) -> None:
    """Other bytes in a tensor of a safetensors file, from its byte `at` on."""
    header, data = read_header(file)
    begin = header[name]["data_offsets"][0] + at
    write_header(file, header, data[:begin] + content + data[begin + len(content) :])


def outcomes_of_damage(path: Path, checkpoint: Path, reach: int, trials: int) -> set[str]:
    """Whether `checkpoint` is opened or refused by our own error, after each of some damages to its file `path`.

    A bit is flipped, bytes are dropped or doubled, or the file is cut, within its first `reach` bytes.
    """
    content, random, outcomes = path.read_bytes(), np.random.default_rng(0), set()
    for trial in range(trials):
        at, some, broken = int(random.integers(reach)), int(random.integers(1, 40)), bytearray(content)
        match trial % 4:
            case 0:
                broken[at] ^= 1 << some % 8
            case 1:
                del broken[at : at + some]
            case 2:
                broken[at:at] = broken[at : at + some]
            case 3:
                del broken[at:]
        path.write_bytes(broken)
        try:
            open_checkpoint(checkpoint)
            outcomes.add("opened")
        except CheckpointError:
            outcomes.add("refused")
    return outcomes
