"""DeepSeek-V3 as ModelOpt stores it in NVFP4: names, values, which layers are quantized, and what is refused."""

from __future__ import annotations

import dataclasses
import json
import shutil
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from support.checkpoints import (
    TINY_DEEPSEEK,
    open_as,
    outcomes_of_damage,
    overwrite,
    read_header,
    refusal,
    rename_tensor,
)

from refmoe.models import (
    CheckpointError,
    DeepSeekConfig,
    DeepSeekNVFP4Checkpoint,
    NVFP4Linear,
    write_checkpoint,
)
from refmoe.models.modelopt import deepseek_excluded, quantizes
from refmoe.models.schema import deepseek_nvfp4_tensors
from refmoe.reference.layout import unpack_fp4
from refmoe.reference.scalar.nvfp4 import Block, dequantize_block

EXPERT = "model.layers.2.mlp.experts.3.down_proj"

opened = partial(open_as, DeepSeekNVFP4Checkpoint)


@pytest.fixture(scope="module")
def written(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_checkpoint(tmp_path_factory.mktemp("nvfp4") / "whole", TINY_DEEPSEEK, 3, "deepseek-nvfp4")


@pytest.fixture
def folder(written: Path, tmp_path: Path) -> Path:
    """A copy that a test may break."""
    return Path(shutil.copytree(written, tmp_path / "copy"))


def edit_json(path: Path, change: Callable[[dict[str, Any]], object]) -> None:
    content = json.loads(path.read_text())
    change(content)
    path.write_text(json.dumps(content))


def test_names_types_and_shapes_are_written_out(written: Path) -> None:
    """Since reader and writer share one table. Scalars have no dimension."""
    header, _ = read_header(written / "model.safetensors")
    found = {name: (entry["dtype"], entry["shape"]) for name, entry in header.items() if name.startswith(f"{EXPERT}.")}
    assert found == {
        f"{EXPERT}.weight": ("U8", [192, 80]),
        f"{EXPERT}.weight_scale": ("F8_E4M3", [192, 10]),
        f"{EXPERT}.weight_scale_2": ("F32", []),
        f"{EXPERT}.input_scale": ("F32", []),
    }
    others = {
        "model.layers.0.mlp.gate_proj.weight": ("U8", [320, 96]),
        "model.layers.1.mlp.shared_experts.up_proj.weight_scale": ("F8_E4M3", [160, 12]),
        "model.layers.1.mlp.gate.weight": ("BF16", [4, 192]),
        "model.layers.1.mlp.gate.e_score_correction_bias": ("F32", [4]),
        "model.layers.1.self_attn.o_proj.weight": ("BF16", [192, 32]),
        "lm_head.weight": ("BF16", [64, 192]),
        "model.embed_tokens.weight": ("BF16", [64, 192]),
    }
    assert {name: (header[name]["dtype"], header[name]["shape"]) for name in others} == others
    assert not any("self_attn" in name and "scale" in name for name in header)


def test_deepseek_r1_s_own_shapes() -> None:
    config = DeepSeekConfig()
    tensors = deepseek_nvfp4_tensors(config, quantizes(deepseek_excluded(config)))
    name = "model.layers.60.mlp.experts.255.gate_proj"
    found = {ending: (spec.dtype, spec.shape) for ending in ENDINGS for spec in [tensors[f"{name}.{ending}"]]}
    assert found == {
        "weight": ("U8", (2048, 3584)),
        "weight_scale": ("F8_E4M3", (2048, 448)),
        "weight_scale_2": ("F32", ()),
        "input_scale": ("F32", ()),
    }
    layers = 3 * 3 + 58 * 3 * 257
    assert sum(name.endswith(".weight_scale_2") for name in tensors) == layers


ENDINGS = ("weight", "weight_scale", "weight_scale_2", "input_scale")


def test_values_are_those_of_the_specification(written: Path) -> None:
    """Each code, scale and factor read from the file's bytes here, the product in exact rationals."""
    linear = opened(written).weight(EXPERT)
    assert isinstance(linear, NVFP4Linear)
    header, data = read_header(written / "model.safetensors")

    def raw(ending: str) -> bytes:
        begin, end = header[f"{EXPERT}.{ending}"]["data_offsets"]
        return data[begin:end]

    factor = int.from_bytes(raw("weight_scale_2"), "little")
    codes = unpack_fp4(np.frombuffer(raw("weight"), np.uint8)).reshape(-1, 16)
    scales = np.frombuffer(raw("weight_scale"), np.uint8)
    taken = slice(None, None, 13)  # a block of each row, in another column from row to row
    blocks = zip(scales[taken], codes[taken], strict=True)
    expected = [dequantize_block(Block(int(scale), tuple(map(int, block))), factor) for scale, block in blocks]
    values = linear.weight.dequantize()
    assert values.shape == linear.shape == (192, 160)
    np.testing.assert_array_equal(values.view(np.uint32).reshape(-1, 16)[taken], np.array(expected, np.uint32))
    assert linear.input_scale.tobytes() == raw("input_scale")
    assert 0.7 < values.std() * np.sqrt(160) < 1.4


def test_a_layer_reads_only_the_experts_that_are_asked_for(written: Path) -> None:
    checkpoint = opened(written)
    assert (checkpoint.layers, checkpoint.moe_layers) == (range(3), range(1, 3))
    asked: list[str] = []
    tensor = checkpoint.tensor
    checkpoint.tensor = lambda name: asked.append(name) or tensor(name)  # type: ignore[method-assign,func-returns-value]
    layer = checkpoint.moe_layer(2)
    assert len(layer.experts) == 4
    assert not [name for name in asked if ".experts." in name]
    expert = layer.experts[3]
    assert {name.rsplit(".", 2)[0] for name in asked if ".experts." in name} == {"model.layers.2.mlp.experts.3"}
    assert isinstance(expert.up, NVFP4Linear)
    for array, ending in ((expert.up.weight.codes, "weight"), (expert.up.weight.scales, "weight_scale")):
        assert np.shares_memory(array, tensor(f"model.layers.2.mlp.experts.3.up_proj.{ending}"))
        assert not array.flags.writeable
    with pytest.raises(IndexError):
        layer.experts[4]
    assert [part.up.shape for part in layer.experts[1:3]] == [(160, 192)] * 2
    assert layer.shared.down.shape == (192, 160)


def test_gate_and_up_of_an_expert_share_their_factors_as_modelopt_s_do(written: Path) -> None:
    """Servers multiply both in one GEMM, under one factor; of other layers no two are equal."""
    experts = [expert for layer in (1, 2) for expert in opened(written).moe_layer(layer).experts]
    factors = []
    for expert in experts:
        gate, up, down = expert.gate, expert.up, expert.down
        assert isinstance(gate, NVFP4Linear)
        assert isinstance(up, NVFP4Linear)
        assert isinstance(down, NVFP4Linear)
        assert gate.weight.global_decode_scale == up.weight.global_decode_scale
        assert gate.input_scale == up.input_scale
        factors += [gate.weight.global_decode_scale, down.weight.global_decode_scale, gate.input_scale]
    assert len(set(factors)) == len(factors)


def test_wildcards_say_what_is_quantized() -> None:
    said = quantizes(("lm_head", "model.layers.1*", "*.mlp.gate", "model.layers.?.self_attn.[qk]*"))
    expected = {
        "lm_head": False,
        "model.lm_head": True,
        "model.layers.1.mlp.down_proj": False,
        "model.layers.12.mlp.down_proj": False,
        "model.layers.2.mlp.gate": False,
        "model.layers.2.mlp.gate_proj": True,
        "model.layers.3.self_attn.q_a_proj": False,
        "model.layers.3.self_attn.o_proj": True,
        "model.layers.30.self_attn.q_a_proj": True,
    }
    assert {name: said(name) for name in expected} == expected
    assert quantizes(())("lm_head")


def exclude(folder: Path, change: Callable[[list[str]], list[str]]) -> None:
    def own(content: dict[str, Any]) -> None:
        content["quantization"]["exclude_modules"] = change(content["quantization"]["exclude_modules"])

    def config(content: dict[str, Any]) -> None:
        content["quantization_config"]["ignore"] = change(content["quantization_config"]["ignore"])

    edit_json(folder / "hf_quant_config.json", own)
    edit_json(folder / "config.json", config)


def test_a_list_that_excludes_less_or_more_calls_for_other_tensors(folder: Path) -> None:
    """As DeepSeek-R1-NVFP4-v2, which quantizes attention's output too."""
    exclude(folder, lambda names: [name for name in names if name != "model.layers.1.self_attn*"])
    error = refusal(folder)
    assert error.tensor == "model.layers.1.self_attn.q_a_proj.weight_scale"
    exclude(folder, lambda names: [*names, "model.layers.1.self_attn*", "model.layers.*.mlp.shared_experts*"])
    error = refusal(folder)
    assert error.tensor == "model.layers.1.mlp.shared_experts.gate_proj.weight"
    assert (error.found, error.needed) == ("U8 [160, 96]", "BF16 [160, 192], by config.json")


@pytest.mark.parametrize("kept", ["hf_quant_config.json", "config.json"])
def test_either_file_is_enough(folder: Path, kept: str) -> None:
    expected = opened(folder).excluded
    if kept == "config.json":
        (folder / "hf_quant_config.json").unlink()
    else:
        edit_json(folder / "config.json", lambda content: content.pop("quantization_config"))
    assert opened(folder).excluded == expected == tuple(sorted(deepseek_excluded(TINY_DEEPSEEK)))


OWN, CONFIG = "hf_quant_config.json", "config.json"
CONTRADICTIONS: list[tuple[str, Callable[[dict[str, Any]], object], str]] = [
    (OWN, lambda said: said.pop("quantization"), "no quantization"),
    (OWN, lambda said: said["quantization"].update(quant_algo="FP8"), "quantization.quant_algo: str 'FP8'"),
    (OWN, lambda said: said["quantization"].update(quant_algo="W4A16_NVFP4"), "quant_algo: str 'W4A16_NVFP4'"),
    (OWN, lambda said: said["quantization"].update(group_size=32), "quantization.group_size: int 32"),
    (OWN, lambda said: said["quantization"].pop("group_size"), "quantization.group_size: NoneType None"),
    (OWN, lambda said: said["quantization"].update(exclude_modules="lm_head"), "exclude_modules: str 'lm_head'"),
    (OWN, lambda said: said["quantization"].update(exclude_modules=[1]), "exclude_modules: list [1]"),
    (OWN, lambda said: said["quantization"]["exclude_modules"].remove("lm_head"), "'lm_head' excluded in one file"),
    (CONFIG, lambda said: said["quantization_config"].update(quant_method="fp8"), "quant_method: str 'fp8'"),
    (CONFIG, lambda said: said["quantization_config"].update(quant_algo="MIXED_PRECISION"), "str 'MIXED_PRECISION'"),
    (CONFIG, lambda said: said["quantization_config"].update(ignore={}), "quantization_config.ignore: dict {}"),
    (CONFIG, lambda said: said["quantization_config"].update(config_groups=[]), "config_groups..weights: NoneType"),
    (
        CONFIG,
        lambda said: said["quantization_config"]["config_groups"]["group_0"]["weights"].update(group_size=128),
        "config_groups.group_0.weights.group_size: int 128",
    ),
    (CONFIG, lambda said: said.update(hidden_size=200), "200 columns"),
    (CONFIG, lambda said: said.update(scoring_func="softmax"), "scoring_func: str 'softmax'"),
    (CONFIG, lambda said: said.update(n_routed_experts=1 << 30), "n_routed_experts 1073741824 over"),
    (CONFIG, lambda said: said.update(num_hidden_layers=1 << 30), "num_hidden_layers 1073741824 over"),
]


@pytest.mark.parametrize(("file", "change", "found"), CONTRADICTIONS, ids=[case[2] for case in CONTRADICTIONS])
def test_files_that_say_something_else(
    folder: Path, file: str, change: Callable[[dict[str, Any]], object], found: str
) -> None:
    edit_json(folder / file, change)
    assert found in refusal(folder).found


@pytest.mark.parametrize("ending", ENDINGS)
def test_a_missing_tensor_is_named(folder: Path, ending: str) -> None:
    """An expert that calibration never reached has no input_scale in some files; servers took it for 0."""
    rename_tensor(folder / "model.safetensors", f"{EXPERT}.{ending}")
    error = refusal(folder)
    assert error.tensor == f"{EXPERT}.{ending}"
    assert error.found.startswith("no such tensor among")


@pytest.mark.parametrize("ending", ["weight_scale_2", "input_scale"])
@pytest.mark.parametrize("value", [0.0, -1.0, float("nan"), float("inf")])
def test_a_factor_that_is_no_factor(folder: Path, ending: str, value: float) -> None:
    overwrite(folder / "model.safetensors", f"{EXPERT}.{ending}", np.float32(value).tobytes())
    experts = opened(folder).moe_layer(2).experts
    assert experts[2].down.shape == (192, 160)
    with pytest.raises(CheckpointError) as caught:
        experts[3]
    assert caught.value.tensor == f"{EXPERT}.{ending}"
    assert caught.value.needed == "a number above 0, finite"


@pytest.mark.parametrize("byte", [0x81, 0xB8, 0xFE])
def test_a_negative_scale_is_no_scale(folder: Path, byte: int) -> None:
    """The hardware's UE4M3 ignores the sign, readers of E4M3 multiply by it."""
    overwrite(folder / "model.safetensors", f"{EXPERT}.weight_scale", bytes([byte]), at=10 * 7 + 3)
    with pytest.raises(CheckpointError) as caught:
        opened(folder).weight(EXPERT)
    assert (caught.value.tensor, caught.value.found) == (
        f"{EXPERT}.weight_scale",
        f"the negative scale 0x{byte:02X} at [7, 3]",
    )


@pytest.mark.parametrize(("byte", "value"), [(0x00, 0.0), (0x80, 0.0), (0x7F, float("nan")), (0xFF, float("nan"))])
def test_zero_and_nan_scales_are_taken(folder: Path, byte: int, value: float) -> None:
    overwrite(folder / "model.safetensors", f"{EXPERT}.weight_scale", bytes([byte]), at=10 * 7 + 3)
    linear = opened(folder).weight(EXPERT)
    assert isinstance(linear, NVFP4Linear)
    np.testing.assert_array_equal(np.abs(linear.weight.dequantize()[7, 48:64]), value)


@pytest.mark.parametrize("victim", [OWN, CONFIG])
def test_any_damage_to_what_says_how_it_is_quantized_is_refused_in_words(folder: Path, victim: str) -> None:
    reach = (folder / victim).stat().st_size
    assert "refused" in outcomes_of_damage(folder / victim, folder, reach, 90)


def test_the_writer_makes_the_same_bytes_for_a_seed(tmp_path: Path) -> None:
    one, other = (write_checkpoint(tmp_path / name, TINY_DEEPSEEK, 7, "deepseek-nvfp4", shards=2) for name in "ab")
    for path in one.iterdir():
        assert path.read_bytes() == (other / path.name).read_bytes()
    assert opened(one).weight(EXPERT).shape == (192, 160)
    narrow = dataclasses.replace(TINY_DEEPSEEK, moe_intermediate_size=8)
    with pytest.raises(ValueError, match="8 columns; needed a multiple of 16 for NVFP4"):
        write_checkpoint(tmp_path / "c", narrow, 0, "deepseek-nvfp4")
