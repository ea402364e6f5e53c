"""Readers of checkpoints: what they give, and the sentence for each way in which one can be damaged."""

from __future__ import annotations

import json
import shutil
from functools import partial
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import pytest
from support.checkpoints import (
    TINY,
    open_as,
    outcomes_of_damage,
    read_header,
    refusal,
    rename_tensor,
    write_header,
)

from refmoe.errors import ArgumentError
from refmoe.models import CheckpointError, GptOssCheckpoint, GptOssConfig, open_checkpoint, write_checkpoint

BIAS = "model.layers.2.mlp.experts.down_proj_bias"

opened = partial(open_as, GptOssCheckpoint)


@pytest.fixture(scope="module")
def written(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("checkpoints")
    write_checkpoint(folder / "huggingface", TINY, 3)
    write_checkpoint(folder / "sharded", TINY, 3, shards=3)
    write_checkpoint(folder / "original", TINY, 3, "original")
    write_checkpoint(folder / "original-sharded", TINY, 3, "original", shards=2)
    return folder


@pytest.fixture
def damaged(written: Path, tmp_path: Path) -> Path:
    """Copies of the checkpoints that a test may break."""
    return Path(shutil.copytree(written, tmp_path / "copies"))


def edit_header(path: Path, name: str, **fields: Any) -> None:
    header, data = read_header(path)
    header[name].update(fields)
    write_header(path, header, data)


@pytest.mark.parametrize("form", ["huggingface", "sharded", "original", "original-sharded"])
def test_every_form_gives_the_same_model(written: Path, form: str) -> None:
    one, other = opened(written / "huggingface"), opened(written / form)
    assert other.config == TINY
    assert other.layers == range(4)
    for name in ("embedding", "final_norm", "unembedding"):
        assert getattr(one, name).tobytes() == getattr(other, name).tobytes()
    for layer in one.layers:
        ours, theirs = one.attention(layer), other.attention(layer)
        for name in ("q", "k", "v", "out"):
            assert getattr(ours, name).weight.tobytes() == getattr(theirs, name).weight.tobytes()
            assert getattr(ours, name).bias.tobytes() == getattr(theirs, name).bias.tobytes()
        assert ours.sinks.tobytes() == theirs.sinks.tobytes()
        assert ours.norm.tobytes() == theirs.norm.tobytes()
        assert one.mlp_norm(layer).tobytes() == other.mlp_norm(layer).tobytes()
        a, b = one.moe_layer(layer), other.moe_layer(layer)
        for part in ("gate_up", "down"):
            assert getattr(a, part).codes.tobytes() == getattr(b, part).codes.tobytes()
            assert getattr(a, part).scales.tobytes() == getattr(b, part).scales.tobytes()
        for part in ("gate_up_bias", "down_bias", "router_weight", "router_bias"):
            assert getattr(a, part).tobytes() == getattr(b, part).tobytes()


def test_an_experts_layer_has_its_shapes_and_lies_in_the_file(written: Path) -> None:
    checkpoint = opened(written / "huggingface")
    layer = checkpoint.moe_layer(1)
    assert layer.gate_up.shape == (8, 128, 96)
    assert layer.down.shape == (8, 96, 64)
    assert layer.top_k == 4
    raw = checkpoint.tensor("model.layers.1.mlp.experts.gate_up_proj_blocks")
    assert raw.shape == (8, 128, 3, 16)
    for array in (layer.gate_up.codes, layer.down.scales, layer.gate_up_bias):
        assert not array.flags.writeable
        assert not array.flags.owndata
    assert np.shares_memory(layer.gate_up.codes, raw)


def test_tensors_survive_release(written: Path) -> None:
    checkpoint = opened(written / "huggingface")
    codes = checkpoint.moe_layer(0).gate_up.codes
    before = codes.tobytes()
    checkpoint.release()
    assert codes.tobytes() == before


def test_values_are_those_in_the_file(written: Path) -> None:
    """The library, which shares nothing with our reader but the format, reads the same bytes."""
    from safetensors.numpy import load_file

    checkpoint = opened(written / "original")
    theirs = load_file(written / "original" / "model.safetensors")
    assert sorted(theirs) == checkpoint.names()
    for name, value in theirs.items():
        ours = checkpoint.tensor(name)
        assert (ours.dtype, ours.shape, ours.tobytes()) == (value.dtype, value.shape, value.tobytes())


def test_no_such_layer_and_no_such_tensor(written: Path) -> None:
    checkpoint = opened(written / "huggingface")
    with pytest.raises(ArgumentError, match="layer: found 4; needed 0 to 3"):
        checkpoint.moe_layer(4)
    with pytest.raises(CheckpointError, match=r"tensor lm_head\.bias: found no such tensor"):
        checkpoint.tensor("lm_head.bias")


def test_an_unaligned_tensor_is_read_all_the_same(damaged: Path) -> None:
    path = damaged / "huggingface" / "model.safetensors"
    expected = opened(damaged / "huggingface").final_norm.tobytes()
    header, data = read_header(path)
    text = json.dumps(header)
    write_header(path, text + " " * (1 - len(text) % 2), data)
    norm = opened(damaged / "huggingface").final_norm
    assert norm.flags.aligned
    assert norm.tobytes() == expected


def test_truncated(damaged: Path) -> None:
    path = damaged / "huggingface" / "model.safetensors"
    header, _ = read_header(path)
    last = max((name for name in header if name != "__metadata__"), key=lambda name: header[name]["data_offsets"][1])
    content = path.read_bytes()
    path.write_bytes(content[:-1])
    error = refusal(damaged / "huggingface")
    assert error.file == path
    assert error.tensor == last
    assert error.found == f"a file of {len(content) - 1} bytes"
    assert f"{len(content)} bytes" in error.needed


@pytest.mark.parametrize("size", [0, 5, 8, 100])
def test_cut_inside_the_header(damaged: Path, size: int) -> None:
    path = damaged / "huggingface" / "model.safetensors"
    path.write_bytes(path.read_bytes()[:size])
    assert refusal(damaged / "huggingface").file == path


def test_some_other_file(damaged: Path) -> None:
    path = damaged / "huggingface" / "model.safetensors"
    path.write_bytes(b"PK\x03\x04" + bytes(5000))
    assert "a header of" in refusal(damaged / "huggingface").found
    write_header(path, "[1, 2]", b"")
    assert "no JSON object" in refusal(damaged / "huggingface").found
    write_header(path, "{", b"")
    assert "no JSON" in refusal(damaged / "huggingface").found


def test_left_over_bytes_are_refused_by_the_library(damaged: Path) -> None:
    path = damaged / "huggingface" / "model.safetensors"
    path.write_bytes(path.read_bytes() + b"\0")
    assert "safetensors library refuses" in refusal(damaged / "huggingface").found


def test_wrong_dtype(damaged: Path) -> None:
    edit_header(damaged / "huggingface" / "model.safetensors", BIAS, dtype="F16")
    error = refusal(damaged / "huggingface")
    assert (error.tensor, error.found) == (BIAS, "F16 [8, 96]")
    assert error.needed == "BF16 [8, 96], by config.json"
    edit_header(damaged / "huggingface" / "model.safetensors", BIAS, dtype="F3")
    assert refusal(damaged / "huggingface").found == "dtype F3"


def test_wrong_shape(damaged: Path) -> None:
    edit_header(damaged / "huggingface" / "model.safetensors", BIAS, shape=[96, 8])
    error = refusal(damaged / "huggingface")
    assert (error.tensor, error.found, error.needed) == (BIAS, "BF16 [96, 8]", "BF16 [8, 96], by config.json")


def test_a_shape_that_its_bytes_do_not_fill(damaged: Path) -> None:
    edit_header(damaged / "huggingface" / "model.safetensors", BIAS, shape=[8, 97])
    error = refusal(damaged / "huggingface")
    assert error.tensor == BIAS
    assert "1536 bytes" in error.found
    assert "1552 bytes" in error.needed


@pytest.mark.parametrize("fields", [{"shape": [8, -96]}, {"shape": "8"}, {"data_offsets": [0]}, {"shape": [8.0, 96]}])
def test_a_header_entry_that_makes_no_sense(damaged: Path, fields: dict[str, Any]) -> None:
    edit_header(damaged / "huggingface" / "model.safetensors", BIAS, **fields)
    assert refusal(damaged / "huggingface").tensor == BIAS


def test_a_missing_tensor(damaged: Path) -> None:
    rename_tensor(damaged / "huggingface" / "model.safetensors", BIAS, "model.layers.2.extra")
    error = refusal(damaged / "huggingface")
    assert error.tensor == BIAS
    assert error.found.startswith("no such tensor among 79")
    assert error.needed == "BF16 [8, 96]"


def test_a_name_twice_in_one_header(damaged: Path) -> None:
    path = damaged / "huggingface" / "model.safetensors"
    header, data = read_header(path)
    text = json.dumps(header)
    write_header(path, text[:-1] + f', "{BIAS}": ' + json.dumps(header[BIAS]) + "}", data)
    error = refusal(damaged / "huggingface")
    assert (error.tensor, error.found) == (BIAS, "the name twice in the header")


def test_a_tensor_in_two_shards(damaged: Path) -> None:
    folder = damaged / "sharded"
    shutil.copy(folder / "model-00001-of-00003.safetensors", folder / "model-00004-of-00003.safetensors")
    open_checkpoint(folder)  # a file that the index does not name is no part of the checkpoint
    (folder / "model.safetensors.index.json").unlink()
    error = refusal(folder)
    assert error.file.name == "model-00004-of-00003.safetensors"
    assert error.found == "it in model-00001-of-00003.safetensors too"


def edit_index(folder: Path, **places: str | None) -> None:
    index = folder / "model.safetensors.index.json"
    content = json.loads(index.read_text())
    for name, place in places.items():
        if place is None:
            del content["weight_map"][name]
        else:
            content["weight_map"][name] = place
    index.write_text(json.dumps(content))


def test_an_index_that_names_a_missing_shard(damaged: Path) -> None:
    (damaged / "sharded" / "model-00002-of-00003.safetensors").unlink()
    error = refusal(damaged / "sharded")
    assert error.found == "shard model-00002-of-00003.safetensors, which is not there"
    assert error.file.name == "model.safetensors.index.json"


def test_an_index_that_names_a_missing_tensor(damaged: Path) -> None:
    edit_index(damaged / "sharded", **{"model.layers.9.x": "model-00001-of-00003.safetensors"})
    error = refusal(damaged / "sharded")
    assert (error.tensor, error.found) == ("model.layers.9.x", "no such tensor in model-00001-of-00003.safetensors")


def test_an_index_that_names_the_wrong_shard(damaged: Path) -> None:
    edit_index(damaged / "sharded", **{"lm_head.weight": "model-00003-of-00003.safetensors"})
    error = refusal(damaged / "sharded")
    assert (error.tensor, error.needed) == ("lm_head.weight", "it in model-00001-of-00003.safetensors")


def test_an_index_that_leaves_a_tensor_out(damaged: Path) -> None:
    edit_index(damaged / "sharded", **{"lm_head.weight": None})
    error = refusal(damaged / "sharded")
    assert (error.tensor, error.file.name) == ("lm_head.weight", "model-00001-of-00003.safetensors")


@pytest.mark.parametrize("place", ["../model.safetensors", "/etc/passwd", "", "a/b.safetensors"])
def test_an_index_that_leads_out_of_its_folder(damaged: Path, place: str) -> None:
    edit_index(damaged / "sharded", **{"lm_head.weight": place})
    assert refusal(damaged / "sharded").found == f"shard {place!r}"


@pytest.mark.parametrize("name", ["pytorch_model.bin", "model.pt", "consolidated.00.pth"])
def test_a_pickle_is_never_opened(damaged: Path, name: str) -> None:
    folder = damaged / "huggingface"
    (folder / "model.safetensors").rename(folder / name)
    for path in (folder, folder / name):
        error = refusal(path)
        assert error.file.name == name
        assert "runs whatever code is in it" in error.needed


def test_a_pickle_in_an_index(damaged: Path) -> None:
    edit_index(damaged / "sharded", **{"lm_head.weight": "pytorch_model.bin"})
    assert "pickle" in refusal(damaged / "sharded").found


def test_no_checkpoint_at_all(tmp_path: Path) -> None:
    assert refusal(tmp_path / "nowhere").found == "nothing"
    assert refusal(tmp_path).file.name == "config.json"
    (tmp_path / "config.json").write_text('{"model_type": "llama"}')
    assert refusal(tmp_path).found == "model_type 'llama'"
    (tmp_path / "config.json").write_text("{")
    assert "no JSON" in refusal(tmp_path).found


@pytest.mark.parametrize(
    ("key", "value", "found"),
    [
        ("hidden_size", 100, "hidden_size: 100"),
        ("num_local_experts", None, "num_local_experts: no such key"),
        ("num_experts_per_tok", 9, "num_experts_per_tok: 9"),
        ("num_key_value_heads", 3, "num_attention_heads: 8"),
        ("sliding_window", "16", "sliding_window: str '16'"),
        ("rms_norm_eps", float("nan"), "rms_norm_eps: float nan"),
        ("layer_types", ["full_attention"] * 4, "layer_types: list"),
        ("attention_bias", False, "attention_bias: bool False"),
        ("tie_word_embeddings", True, "tie_word_embeddings: bool True"),
        ("rope_scaling", {"rope_type": "linear", "factor": 2.0}, "rope_scaling.rope_type: str 'linear'"),
        ("hidden_size", 1 << 40, "hidden_size: int"),
        ("rope_scaling", "yarn", "rope_scaling: str 'yarn'"),
        ("rope_scaling", {**TINY.to_huggingface()["rope_scaling"], "mscale": 0.7}, "rope_scaling.mscale: float 0.7"),
        ("rope_theta", 1.0, "rope_theta: 1.0"),
        ("quantization_config", "mxfp4", "quantization_config: str 'mxfp4'"),
        ("quantization_config", {"quant_method": "fp8"}, "quantization_config.quant_method: str 'fp8'"),
    ],
)
def test_a_configuration_that_is_not_gpt_oss(damaged: Path, key: str, value: Any, found: str) -> None:
    path = damaged / "huggingface" / "config.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), key: value}))
    assert refusal(damaged / "huggingface").found.startswith(found)


def test_configurations_survive_both_forms() -> None:
    config = GptOssConfig(num_hidden_layers=36, num_local_experts=128)
    assert GptOssConfig.from_huggingface(config.to_huggingface()) == config
    assert GptOssConfig.from_original(config.to_original()) == config


def test_the_original_configuration_of_gpt_oss_20b() -> None:
    """As published in original/config.json."""
    published = {
        "num_hidden_layers": 24,
        "num_experts": 32,
        "experts_per_token": 4,
        "vocab_size": 201088,
        "hidden_size": 2880,
        "intermediate_size": 2880,
        "swiglu_limit": 7.0,
        "head_dim": 64,
        "num_attention_heads": 64,
        "num_key_value_heads": 8,
        "sliding_window": 128,
        "initial_context_length": 4096,
        "rope_theta": 150000,
        "rope_scaling_factor": 32.0,
        "rope_ntk_alpha": 1,
        "rope_ntk_beta": 32,
    }
    assert GptOssConfig.from_original(published) == GptOssConfig()
    assert GptOssConfig().to_original() == published


def test_the_newer_spelling_of_rope() -> None:
    """transformers 5 writes rope_parameters with the base inside."""
    config = TINY.to_huggingface()
    config["rope_parameters"] = {**config.pop("rope_scaling"), "rope_theta": config.pop("rope_theta")}
    assert GptOssConfig.from_huggingface(config) == TINY


def test_bfloat16_is_bfloat16(written: Path) -> None:
    assert opened(written / "huggingface").final_norm.dtype == ml_dtypes.bfloat16


@pytest.mark.parametrize("victim", ["model.safetensors", "config.json"])
def test_any_damage_to_what_is_read_first_is_refused_in_words(damaged: Path, victim: str) -> None:
    """Bytes changed, dropped or doubled anywhere in header or configuration: opened, or refused by our own error."""
    folder = damaged / "huggingface"
    path = folder / victim
    content = path.read_bytes()
    reach = 8 + int.from_bytes(content[:8], "little") if victim.endswith("safetensors") else len(content)
    assert "refused" in outcomes_of_damage(path, folder, reach, 150)
