"""DeepSeek-V3 checkpoints and their block-scaled weights."""

from __future__ import annotations

from fractions import Fraction
from pathlib import Path

import ml_dtypes
import numpy as np
import pytest
from support.checkpoints import TINY_DEEPSEEK, open_as, read_header, refusal, rename_tensor, write_header

from refmoe.errors import ArgumentError
from refmoe.formats import E4M3
from refmoe.models import (
    BlockScaledWeight,
    DeepSeekCheckpoint,
    DeepSeekConfig,
    write_checkpoint,
)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_checkpoint(tmp_path_factory.mktemp("deepseek"), TINY_DEEPSEEK, 3, "deepseek", shards=2)


def nearest_fp32(value: Fraction) -> np.float32:
    """The FP32 next to `value`, ties to the even one, found among the neighbours of a first guess."""
    guess = np.float32(float(value))
    near = [np.nextafter(guess, np.float32(-np.inf)), guess, np.nextafter(guess, np.float32(np.inf))]
    return min(near, key=lambda x: (abs(Fraction(float(x)) - value), int(x.view(np.uint32)) & 1))


def test_a_weight_is_its_codes_times_the_scale_of_their_block(folder: Path) -> None:
    """Element by element in exact rationals, edges of blocks included."""
    checkpoint = open_as(DeepSeekCheckpoint, folder)
    weight = checkpoint.weight("model.layers.0.mlp.gate_proj")
    assert weight.shape == (320, 192)
    assert weight.scale_inv.shape == (3, 2)
    values = weight.dequantize()
    for row in (0, 127, 128, 255, 256, 319):
        for column in (0, 1, 127, 128, 191):
            code, scale = int(weight.codes[row, column]), weight.scale_inv[row // 128, column // 128]
            exact = E4M3.decode(code) * Fraction(float(scale))
            assert values[row, column].tobytes() == nearest_fp32(exact).tobytes()


def test_every_code_and_awkward_scales() -> None:
    codes = np.tile(np.arange(256, dtype=np.uint8), (2, 1))
    scales = np.array([[2.0**-140, 3e38]], np.float32)
    values = BlockScaledWeight(codes, scales).dequantize()
    for column in range(256):
        if E4M3.is_nan(column):
            assert values[0, column : column + 1].view(np.uint32)[0] == 0x7FC00000
            continue
        scale = Fraction(float(scales[0, column // 128]))
        exact = E4M3.decode(column) * scale
        if abs(exact) > Fraction(float(np.finfo(np.float32).max)):
            assert values[0, column] == (-np.inf if column > 127 else np.inf)
        else:
            assert values[0, column] == nearest_fp32(exact)
            assert np.signbit(values[0, column]) == (column > 127)


def test_a_layer(folder: Path) -> None:
    checkpoint = open_as(DeepSeekCheckpoint, folder)
    assert checkpoint.config == TINY_DEEPSEEK
    assert (checkpoint.layers, checkpoint.moe_layers) == (range(3), range(1, 3))
    layer = checkpoint.moe_layer(1)
    assert len(layer.experts) == 4
    assert [part.shape for part in (layer.experts[3].gate, layer.experts[3].up)] == [(160, 192)] * 2
    assert layer.experts[3].down.shape == (192, 160)
    assert layer.shared.gate.shape == (160, 192)
    assert (layer.router_weight.shape, layer.correction_bias.dtype) == ((4, 192), np.dtype(np.float32))
    raw = checkpoint.tensor("model.layers.1.mlp.experts.3.up_proj.weight")
    assert np.shares_memory(layer.experts[3].up.codes, raw)
    assert 0.7 < layer.experts[0].gate.dequantize().std() * np.sqrt(192) < 1.3
    with pytest.raises(ArgumentError, match="layer: found 0; needed 1 to 2"):
        checkpoint.moe_layer(0)


def test_a_missing_scale_names_the_tensor(tmp_path: Path) -> None:
    whole = write_checkpoint(tmp_path, TINY_DEEPSEEK, 3, "deepseek")
    name = "model.layers.2.mlp.experts.1.up_proj.weight_scale_inv"
    rename_tensor(whole / "model.safetensors", name)
    error = refusal(whole)
    assert (error.tensor, error.needed) == (name, "F32 [2, 2]")


def test_the_correction_bias_may_be_bf16(tmp_path: Path) -> None:
    whole = write_checkpoint(tmp_path, TINY_DEEPSEEK, 3, "deepseek")
    path, name = whole / "model.safetensors", "model.layers.2.mlp.gate.e_score_correction_bias"
    header, data = read_header(path)
    begin, end = header[name]["data_offsets"]
    values = np.frombuffer(data[begin:end], np.float32).astype(ml_dtypes.bfloat16)
    header[name].update(dtype="BF16", data_offsets=[begin, begin + 8])
    for other, entry in header.items():
        if other != "__metadata__" and entry["data_offsets"][0] >= end:
            entry["data_offsets"] = [offset - 8 for offset in entry["data_offsets"]]
    write_header(path, header, data[:begin] + values.tobytes() + data[end:])
    bias = open_as(DeepSeekCheckpoint, whole).moe_layer(2).correction_bias
    assert bias.dtype == np.float32
    assert bias.tobytes() == values.astype(np.float32).tobytes()


def test_refusals() -> None:
    codes, scales = np.zeros((129, 128), np.uint8), np.ones((2, 1), np.float32)
    BlockScaledWeight(codes, scales)
    with pytest.raises(ArgumentError, match=r"scale_inv: found float32 \[1, 1\]; needed float32 \[2, 1\]"):
        BlockScaledWeight(codes, scales[:1])
    with pytest.raises(ArgumentError, match=r"codes: found float32"):
        BlockScaledWeight(codes.astype(np.float32), scales)  # type: ignore[arg-type]
    config = DeepSeekConfig().to_huggingface()
    assert DeepSeekConfig.from_huggingface(config) == DeepSeekConfig()
    with pytest.raises(ArgumentError, match=r"scoring_func: found str 'softmax'; needed 'sigmoid'"):
        DeepSeekConfig.from_huggingface({**config, "scoring_func": "softmax"})
    with pytest.raises(ArgumentError, match="quantization_config: found str 'fp8'; needed a JSON object"):
        DeepSeekConfig.from_huggingface({**config, "quantization_config": "fp8"})
    config["quantization_config"]["weight_block_size"] = [64, 64]
    with pytest.raises(ArgumentError, match=r"weight_block_size: found list \[64, 64\]; needed \[128, 128\]"):
        DeepSeekConfig.from_huggingface(config)
