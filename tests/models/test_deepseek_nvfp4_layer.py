"""A DeepSeek checkpoint of ModelOpt as the paths nvfp4 and marlin take it, and those that they cannot take."""

from __future__ import annotations

import json
from functools import partial
from pathlib import Path

import numpy as np
import pytest
from support.checkpoints import BLOCK_FP8_DEEPSEEK, TINY_DEEPSEEK, open_as, overwrite
from support.deepseek import random_tokens

from refmoe.errors import ArgumentError
from refmoe.models import CheckpointError, DeepSeekNVFP4Checkpoint, write_checkpoint
from refmoe.reference import BF16Expert, NVFP4Expert, moe_float64, moe_layer

CONFIG = BLOCK_FP8_DEEPSEEK
SHARED = "*.mlp.shared_experts*"

opened = partial(open_as, DeepSeekNVFP4Checkpoint)


@pytest.fixture(scope="module")
def written(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_checkpoint(tmp_path_factory.mktemp("nvfp4") / "whole", CONFIG, 5, "deepseek-nvfp4", shards=3)


@pytest.fixture(scope="module")
def checkpoint(written: Path) -> DeepSeekNVFP4Checkpoint:
    return opened(written)


def test_tensors_are_those_of_the_file(checkpoint: DeepSeekNVFP4Checkpoint) -> None:
    layer, prefix = checkpoint.nvfp4_layer(1), "model.layers.1.mlp."
    assert (layer.hidden, layer.intermediate, layer.experts, layer.top_k) == (256, 128, 8, 3)
    assert (layer.groups, layer.top_groups, layer.scale) == (4, 2, 2.5)
    assert checkpoint.weights == layer.weights == "nvfp4"
    always = layer.shared
    assert isinstance(always, NVFP4Expert)
    assert always.intermediate == 256
    for name, expert in ((f"{prefix}experts.7.", layer.expert(7)), (f"{prefix}shared_experts.", always)):
        half = expert.intermediate

        def read(part: str, name: str = name) -> bytes:
            return checkpoint.tensor(f"{name}{part}").tobytes()

        for part, rows in (("gate_proj", slice(half)), ("up_proj", slice(half, None))):
            assert expert.gate_up.codes[rows].tobytes() == read(f"{part}.weight")
            assert expert.gate_up.scales[rows].tobytes() == read(f"{part}.weight_scale")
            assert expert.gate_up.global_decode_scale.tobytes() == read(f"{part}.weight_scale_2")
            assert expert.gate_up_input_scale.tobytes() == read(f"{part}.input_scale")
        assert expert.down.codes.tobytes() == read("down_proj.weight")
        assert expert.down.scales.tobytes() == read("down_proj.weight_scale")
        assert expert.down.global_decode_scale.tobytes() == read("down_proj.weight_scale_2")
        assert expert.down_input_scale.tobytes() == read("down_proj.input_scale")
    assert layer.router_weight is not None
    assert layer.router_weight.tobytes() == checkpoint.tensor(f"{prefix}gate.weight").tobytes()


@pytest.mark.parametrize("path", ["nvfp4", "marlin"])
def test_only_experts_with_tokens_are_read(
    checkpoint: DeepSeekNVFP4Checkpoint, path: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    read: list[str] = []
    tensor, layer = checkpoint.tensor, checkpoint.nvfp4_layer(2)
    monkeypatch.setattr(checkpoint, "tensor", lambda name: read.append(name) or tensor(name))
    found = moe_layer(random_tokens(np.random.default_rng(1), 1), layer, path=path, stages=True)
    chosen = {f"model.layers.2.mlp.experts.{number}." for number in found.stages["routing"]["ids"].reshape(-1)}
    assert len(chosen) == 3
    assert {name[: name.index(".", name.index("experts.") + 8) + 1] for name in read} == chosen


@pytest.mark.parametrize("layer", [1, 2])
def test_the_random_checkpoint_is_calibrated(checkpoint: DeepSeekNVFP4Checkpoint, layer: int) -> None:
    """No token is above what its global scale can say, and the path is where four bits are: no test of noise."""
    weights, x = checkpoint.nvfp4_layer(layer), random_tokens(np.random.default_rng(2), 5)
    x = (x.astype(np.float32) / 12).astype(x.dtype)
    found = moe_layer(x, weights, path="nvfp4", stages=True)
    assert found.stages["routing"]["offsets"][-1] == 15
    assert max(found.stages["shared"]["token_scales"].max(), found.stages["shared"]["scales"].max()) < 0x7E
    routing = found.stages["routing"]
    exact = moe_float64(x, weights, topk_ids=routing["ids"], topk_weights=routing["weights"])
    assert 0.05 < np.linalg.norm(found.output.astype(np.float64) - exact) / np.linalg.norm(exact) < 0.3


def test_a_shared_expert_that_is_excluded_is_bf16(tmp_path: Path, checkpoint: DeepSeekNVFP4Checkpoint) -> None:
    found = opened(write_checkpoint(tmp_path / "bf16", CONFIG, 5, "deepseek-nvfp4", excluded=[SHARED]))
    assert set(found.excluded) - set(checkpoint.excluded) == {SHARED}
    layer, other = found.nvfp4_layer(1), checkpoint.nvfp4_layer(1)
    assert isinstance(layer.shared, BF16Expert)
    name = "model.layers.1.mlp.shared_experts."
    gate_up = b"".join(found.tensor(f"{name}{part}_proj.weight").tobytes() for part in ("gate", "up"))
    assert layer.shared.gate_up.tobytes() == gate_up
    assert layer.shared.down.tobytes() == found.tensor(f"{name}down_proj.weight").tobytes()
    assert layer.expert(3).gate_up.codes.tobytes() == other.expert(3).gate_up.codes.tobytes()


def test_a_rank_has_some_of_the_experts(checkpoint: DeepSeekNVFP4Checkpoint) -> None:
    whole, part = checkpoint.nvfp4_layer(1), checkpoint.nvfp4_layer(1, first_expert=2, experts=3)
    assert part.experts == 3
    assert part.expert(1).down.codes.tobytes() == whole.expert(3).down.codes.tobytes()
    assert [one.down.codes.tobytes() for one in part.routed[0:2]] == [
        whole.expert(number).down.codes.tobytes() for number in (2, 3)
    ]
    for layer, options, message in (
        (0, {}, "layer: found 0; needed 1 to 2"),
        (1, {"first_expert": 6, "experts": 3}, "first_expert: found 3 experts from 6 on; needed some of the 8"),
    ):
        with pytest.raises(ArgumentError, match=message):
            checkpoint.nvfp4_layer(layer, **options)


@pytest.mark.parametrize("factor", ["weight_scale_2", "input_scale"])
@pytest.mark.parametrize("expert", ["experts.2", "shared_experts"])
def test_gate_and_up_under_different_factors_are_refused(tmp_path: Path, factor: str, expert: str) -> None:
    """Of a routed expert only when a token goes to it; of the shared one at once."""
    folder = write_checkpoint(tmp_path / "whole", TINY_DEEPSEEK, 3, "deepseek-nvfp4")
    name = f"model.layers.1.mlp.{expert}.up_proj.{factor}"
    overwrite(folder / "model.safetensors", name, np.float32(0.5).tobytes())
    broken = opened(folder)
    with pytest.raises(CheckpointError) as caught:
        broken.nvfp4_layer(1).expert(2)
    gate = broken.tensor(f"model.layers.1.mlp.{expert}.gate_proj.{factor}")[()]
    assert (caught.value.tensor, caught.value.found) == (name, "0.5")
    assert caught.value.needed == f"{gate}, the {factor} of gate_proj: one product multiplies both"
    assert broken.nvfp4_layer(2).expert(2).intermediate == 160
    if expert == "experts.2":
        assert broken.nvfp4_layer(1).expert(1).intermediate == 160


def test_an_expert_of_which_a_part_is_quantized_is_refused(tmp_path: Path) -> None:
    folder = write_checkpoint(
        tmp_path / "part", TINY_DEEPSEEK, 3, "deepseek-nvfp4", excluded=["*.shared_experts.down_proj"]
    )
    with pytest.raises(CheckpointError) as caught:
        opened(folder).nvfp4_layer(1)
    assert caught.value.tensor == "model.layers.1.mlp.shared_experts"
    assert caught.value.found == "gate_proj in NVFP4, up_proj in NVFP4, down_proj in BF16"
    assert caught.value.needed == "all three in NVFP4, or all three in BF16"


def test_a_routed_expert_in_bf16_is_refused_when_a_token_goes_to_it(tmp_path: Path) -> None:
    folder = write_checkpoint(tmp_path / "odd", TINY_DEEPSEEK, 3, "deepseek-nvfp4", excluded=["*.mlp.experts.3.*"])
    layer = opened(folder).nvfp4_layer(2)
    assert layer.expert(2).hidden == 192
    with pytest.raises(CheckpointError) as caught:
        layer.expert(3)
    assert (caught.value.tensor, caught.value.found) == ("model.layers.2.mlp.experts.3", "a routed expert in BF16")


def test_only_one_format_has_more_exclusions(tmp_path: Path) -> None:
    for format in ("deepseek", "nvfp4", "gguf", "huggingface"):
        with pytest.raises(ArgumentError, match=rf"excluded: found \['a'\] with the format {format}; needed none"):
            write_checkpoint(tmp_path / "x.gguf", CONFIG, 3, format, excluded=["a"])
    path = write_checkpoint(tmp_path / "more", TINY_DEEPSEEK, 3, "deepseek-nvfp4", excluded=[SHARED])
    said = json.loads((path / "hf_quant_config.json").read_text())["quantization"]["exclude_modules"]
    assert said == json.loads((path / "config.json").read_text())["quantization_config"]["ignore"]
    assert SHARED in said
