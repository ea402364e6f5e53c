"""Random checkpoints: the formats' own names, the same bytes for a seed, weights of a sensible size."""

from __future__ import annotations

import hashlib
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from support.checkpoints import SMALLEST, TINY, TINY_DEEPSEEK, open_as, read_header

from refmoe.errors import ArgumentError
from refmoe.models import GptOssCheckpoint, GptOssConfig, open_checkpoint, write_checkpoint
from refmoe.models.schema import deepseek_tensors, huggingface_tensors, original_tensors


def test_huggingface_names_and_shapes(tmp_path: Path) -> None:
    """Written out, since reader and writer share one table."""
    write_checkpoint(tmp_path, SMALLEST, 0)
    header, _ = read_header(tmp_path / "model.safetensors")
    layer, experts = "model.layers.0.", "model.layers.0.mlp.experts."
    assert {name: (entry["dtype"], entry["shape"]) for name, entry in header.items() if name != "__metadata__"} == {
        "model.embed_tokens.weight": ("BF16", [4, 32]),
        "model.norm.weight": ("BF16", [32]),
        "lm_head.weight": ("BF16", [4, 32]),
        f"{layer}input_layernorm.weight": ("BF16", [32]),
        f"{layer}post_attention_layernorm.weight": ("BF16", [32]),
        f"{layer}self_attn.q_proj.weight": ("BF16", [8, 32]),
        f"{layer}self_attn.q_proj.bias": ("BF16", [8]),
        f"{layer}self_attn.k_proj.weight": ("BF16", [4, 32]),
        f"{layer}self_attn.k_proj.bias": ("BF16", [4]),
        f"{layer}self_attn.v_proj.weight": ("BF16", [4, 32]),
        f"{layer}self_attn.v_proj.bias": ("BF16", [4]),
        f"{layer}self_attn.o_proj.weight": ("BF16", [32, 8]),
        f"{layer}self_attn.o_proj.bias": ("BF16", [32]),
        f"{layer}self_attn.sinks": ("BF16", [2]),
        f"{layer}mlp.router.weight": ("BF16", [2, 32]),
        f"{layer}mlp.router.bias": ("BF16", [2]),
        f"{experts}gate_up_proj_blocks": ("U8", [2, 128, 1, 16]),
        f"{experts}gate_up_proj_scales": ("U8", [2, 128, 1]),
        f"{experts}gate_up_proj_bias": ("BF16", [2, 128]),
        f"{experts}down_proj_blocks": ("U8", [2, 32, 2, 16]),
        f"{experts}down_proj_scales": ("U8", [2, 32, 2]),
        f"{experts}down_proj_bias": ("BF16", [2, 32]),
    }


def test_original_names_and_shapes(tmp_path: Path) -> None:
    write_checkpoint(tmp_path, SMALLEST, 0, "original")
    header, _ = read_header(tmp_path / "model.safetensors")
    assert {name: (entry["dtype"], entry["shape"]) for name, entry in header.items() if name != "__metadata__"} == {
        "embedding.weight": ("BF16", [4, 32]),
        "norm.scale": ("BF16", [32]),
        "unembedding.weight": ("BF16", [4, 32]),
        "block.0.attn.norm.scale": ("BF16", [32]),
        "block.0.attn.qkv.weight": ("BF16", [16, 32]),
        "block.0.attn.qkv.bias": ("BF16", [16]),
        "block.0.attn.out.weight": ("BF16", [32, 8]),
        "block.0.attn.out.bias": ("BF16", [32]),
        "block.0.attn.sinks": ("BF16", [2]),
        "block.0.mlp.norm.scale": ("BF16", [32]),
        "block.0.mlp.gate.weight": ("BF16", [2, 32]),
        "block.0.mlp.gate.bias": ("BF16", [2]),
        "block.0.mlp.mlp1_weight.blocks": ("U8", [2, 128, 1, 16]),
        "block.0.mlp.mlp1_weight.scales": ("U8", [2, 128, 1]),
        "block.0.mlp.mlp1_bias": ("BF16", [2, 128]),
        "block.0.mlp.mlp2_weight.blocks": ("U8", [2, 32, 2, 16]),
        "block.0.mlp.mlp2_weight.scales": ("U8", [2, 32, 2]),
        "block.0.mlp.mlp2_bias": ("BF16", [2, 32]),
    }
    dtypes = json.loads((tmp_path / "dtypes.json").read_text())
    assert {dtypes[name] for name in dtypes if name.endswith("blocks")} == {"FP4"}
    assert {dtypes[name] for name in dtypes if name.endswith("scales")} == {"UE8"}


def test_the_real_models_have_as_many_tensors_and_bytes() -> None:
    """459 tensors of 13,761,264,768 bytes and 363 are published for gpt-oss-20b."""
    sizes = {"BF16": 2, "U8": 1}
    huggingface = huggingface_tensors(GptOssConfig())
    original = original_tensors(GptOssConfig())
    assert (len(huggingface), len(original)) == (459, 363)
    for table in (huggingface, original):
        assert sum(int(np.prod(spec.shape)) * sizes[spec.dtype] for spec in table.values()) == 13_761_264_768
    large = huggingface_tensors(GptOssConfig(num_hidden_layers=36, num_local_experts=128))
    assert large["model.layers.35.mlp.experts.gate_up_proj_blocks"].shape == (128, 5760, 90, 16)


@pytest.mark.parametrize(
    ("config", "format", "digest"),
    [
        (TINY, "huggingface", "cde98e3dc5367c23"),
        (TINY, "original", "56f3874acc530fd4"),
        (TINY_DEEPSEEK, "deepseek", "0c7588c34f0e347e"),
        (TINY_DEEPSEEK, "deepseek-nvfp4", "b21a65c9f3f5b4ea"),
    ],
)
def test_a_seed_decides_every_byte(tmp_path: Path, config: Any, format: str, digest: str) -> None:
    """The digests were made on x86_64; another machine or NumPy has to give them too."""
    one, other = (write_checkpoint(tmp_path / name, config, 7, format, shards=2) for name in "ab")
    hashed = hashlib.sha256()
    for path in sorted(one.iterdir()):
        assert path.read_bytes() == (other / path.name).read_bytes()
        if path.suffix == ".safetensors":
            # The library decides the order of tensors, which is no part of the format.
            header, data = read_header(path)
            for name in sorted(header.keys() - {"__metadata__"}):
                begin, end = header[name]["data_offsets"]
                hashed.update(name.encode() + data[begin:end])
    assert hashed.hexdigest()[:16] == digest
    third = write_checkpoint(tmp_path / "c", config, 8, format)
    assert (third / "model.safetensors").stat().st_size > 0
    first = open_checkpoint(one), open_checkpoint(third)
    assert all(first[0].tensor(name).tobytes() != first[1].tensor(name).tobytes() for name in first[0].names())


def test_shards_and_their_index(tmp_path: Path) -> None:
    write_checkpoint(tmp_path, TINY, 1, shards=3)
    index = json.loads((tmp_path / "model.safetensors.index.json").read_text())
    assert set(index["weight_map"].values()) == {f"model-0000{i}-of-00003.safetensors" for i in (1, 2, 3)}
    assert index["weight_map"].keys() == huggingface_tensors(TINY).keys()
    data = sum(len(read_header(path)[1]) for path in tmp_path.glob("*.safetensors"))
    assert index["metadata"]["total_size"] == data


def test_weights_have_the_size_of_trained_ones(tmp_path: Path) -> None:
    checkpoint = open_as(GptOssCheckpoint, write_checkpoint(tmp_path, TINY, 5))
    for layer in checkpoint.layers:
        experts = checkpoint.moe_layer(layer)
        for weights in (experts.gate_up.dequantize(), experts.down.dequantize()):
            assert 0.7 < weights.std() * np.sqrt(weights.shape[-1]) < 1.5
        assert 0.9 < checkpoint.attention(layer).q.weight.astype(np.float64).std() * np.sqrt(96) < 1.1
        codes = np.bincount(experts.gate_up.codes.reshape(-1) & 15, minlength=16)
        assert codes.min() > 0.8 * codes.mean()
        assert len(np.unique(experts.gate_up.scales)) == 3


@pytest.mark.parametrize(
    ("config", "arguments", "sentence"),
    [
        (
            TINY,
            {"format": "gptq"},
            "format: found str 'gptq'; needed one of huggingface, original, gguf, gguf-q8_0, deepseek",
        ),
        (TINY, {"format": "gguf"}, "path: found "),
        (
            TINY_DEEPSEEK,
            {"format": "gguf"},
            "config: found a DeepSeekConfig for the format gguf; needed a GptOssConfig",
        ),
        (TINY, {"format": "deepseek-nvfp4"}, "config: found a GptOssConfig for the format deepseek-nvfp4"),
        (TINY, {"format": "deepseek"}, "config: found a GptOssConfig for the format deepseek"),
        (TINY_DEEPSEEK, {"format": "original"}, "config: found a DeepSeekConfig for the format original"),
        (TINY, {"shards": 0}, "shards: found int 0; needed 1 to 79"),
        (TINY, {"shards": 80}, "shards: found int 80; needed 1 to 79"),
    ],
)
def test_refusals(tmp_path: Path, config: Any, arguments: dict[str, Any], sentence: str) -> None:
    with pytest.raises(ArgumentError) as caught:
        write_checkpoint(tmp_path, config, 0, **arguments)
    assert str(caught.value).startswith(sentence)
    assert not list(tmp_path.iterdir())


def test_the_original_form_has_one_epsilon(tmp_path: Path) -> None:
    with pytest.raises(ArgumentError, match="rms_norm_eps: found 1e-06"):
        write_checkpoint(tmp_path, GptOssConfig(rms_norm_eps=1e-6), 0, "original")


def test_deepseek_has_the_published_names() -> None:
    """Of DeepSeek-V3's 61 layers, without multi-token prediction."""
    from refmoe.models import DeepSeekConfig

    tensors = deepseek_tensors(DeepSeekConfig())
    expected = {
        "model.layers.0.mlp.gate_proj.weight": ("F8_E4M3", (18432, 7168)),
        "model.layers.0.mlp.gate_proj.weight_scale_inv": ("F32", (144, 56)),
        "model.layers.3.mlp.experts.255.down_proj.weight": ("F8_E4M3", (7168, 2048)),
        "model.layers.3.mlp.experts.255.down_proj.weight_scale_inv": ("F32", (56, 16)),
        "model.layers.60.mlp.shared_experts.up_proj.weight": ("F8_E4M3", (2048, 7168)),
        "model.layers.60.mlp.gate.weight": ("BF16", (256, 7168)),
        "model.layers.60.mlp.gate.e_score_correction_bias": ("F32", (256,)),
        "model.layers.60.self_attn.kv_a_proj_with_mqa.weight": ("F8_E4M3", (576, 7168)),
        "model.layers.60.self_attn.kv_a_proj_with_mqa.weight_scale_inv": ("F32", (5, 56)),
        "model.layers.60.self_attn.kv_b_proj.weight": ("F8_E4M3", (32768, 512)),
        "model.layers.60.self_attn.q_b_proj.weight": ("F8_E4M3", (24576, 1536)),
        "model.layers.60.self_attn.o_proj.weight": ("F8_E4M3", (7168, 16384)),
    }
    assert {name: (tensors[name].dtype, tensors[name].shape) for name in expected} == expected
    assert "model.layers.2.mlp.gate.weight" not in tensors
