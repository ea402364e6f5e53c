"""A DeepSeek-V3 checkpoint as the path deepseek_fp8 takes it: only experts with tokens are put together."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from support.checkpoints import BLOCK_FP8_DEEPSEEK, TINY_DEEPSEEK, open_as
from support.deepseek import random_tokens
from support.toolchain import NVCC

from refmoe.cuda import open_device
from refmoe.cuda.moe.deepseek import deepseek_moe, layer_arguments
from refmoe.errors import ArgumentError
from refmoe.models import DeepSeekCheckpoint, write_checkpoint
from refmoe.reference import moe_float64, moe_layer

CONFIG = BLOCK_FP8_DEEPSEEK


@pytest.fixture(scope="module")
def checkpoint(tmp_path_factory: pytest.TempPathFactory) -> DeepSeekCheckpoint:
    folder = write_checkpoint(tmp_path_factory.mktemp("fp8") / "tiny", CONFIG, 5, "deepseek", shards=3)
    return open_as(DeepSeekCheckpoint, folder)


def test_tensors_are_those_of_the_file(checkpoint: DeepSeekCheckpoint) -> None:
    layer = checkpoint.block_fp8_layer(1)
    prefix = "model.layers.1.mlp."
    assert (layer.hidden, layer.intermediate, layer.experts, layer.top_k) == (256, 128, 8, 3)
    assert (layer.groups, layer.top_groups, layer.scale) == (4, 2, 2.5)
    for number in (0, 7):
        expert = layer.expert(number)
        name = f"{prefix}experts.{number}."
        for part, row in (("gate", 0), ("up", 128)):
            codes = checkpoint.tensor(f"{name}{part}_proj.weight")
            scales = checkpoint.tensor(f"{name}{part}_proj.weight_scale_inv")
            assert expert.gate_up.codes[row : row + 128].tobytes() == codes.tobytes()
            assert expert.gate_up.scales[row // 128 : row // 128 + 1].tobytes() == scales.tobytes()
        assert expert.down.codes.tobytes() == checkpoint.tensor(f"{name}down_proj.weight").tobytes()
        assert expert.down.scales.tobytes() == checkpoint.tensor(f"{name}down_proj.weight_scale_inv").tobytes()
    assert layer.shared is not None
    assert layer.shared.intermediate == 256
    assert layer.router_weight.tobytes() == checkpoint.tensor(f"{prefix}gate.weight").tobytes()
    assert layer.correction_bias.shape == (8,)


def test_only_experts_with_tokens_are_read(checkpoint: DeepSeekCheckpoint, monkeypatch: pytest.MonkeyPatch) -> None:
    read = []
    tensor = checkpoint.tensor
    layer = checkpoint.block_fp8_layer(2)
    monkeypatch.setattr(checkpoint, "tensor", lambda name: read.append(name) or tensor(name))
    x = random_tokens(np.random.default_rng(1), 1)
    found = moe_layer(x, layer, path="deepseek_fp8", stages=True)
    chosen = {f"model.layers.2.mlp.experts.{number}." for number in found.stages["routing"]["ids"].reshape(-1)}
    assert len(chosen) == 3
    assert {name[: name.index(".", name.index("experts.") + 8) + 1] for name in read} == chosen


def test_near_the_formula_of_the_dequantized_weights(checkpoint: DeepSeekCheckpoint) -> None:
    layer, x = checkpoint.block_fp8_layer(1), random_tokens(np.random.default_rng(2), 5)
    found = moe_layer(x, layer, path="deepseek_fp8", stages=True)
    routing = found.stages["routing"]
    exact = moe_float64(x, layer, topk_ids=routing["ids"], topk_weights=routing["weights"])
    assert 0.01 < np.linalg.norm(found.output.astype(np.float64) - exact) / np.linalg.norm(exact) < 0.08


@pytest.mark.skipif(NVCC is None, reason="no nvcc on this machine")
def test_kernels_run_a_layer_of_which_only_chosen_experts_are_written(checkpoint: DeepSeekCheckpoint) -> None:
    layer, x = checkpoint.block_fp8_layer(1), random_tokens(np.random.default_rng(3), 2)
    device = open_device("ptx")
    found = moe_layer(x, layer, path="deepseek_fp8", arch=device.arch, stages=True)
    routing = found.stages["routing"]
    arguments = layer_arguments(layer, x, routing["ids"], logits=routing["logits"])
    missing = np.setdiff1d(np.arange(8), routing["ids"])
    assert missing.size
    assert not arguments.gate_up[missing].any()
    assert deepseek_moe(arguments, device=device).tobytes() == found.output.tobytes()


def test_a_rank_has_some_of_the_experts(checkpoint: DeepSeekCheckpoint) -> None:
    whole, part = checkpoint.block_fp8_layer(1), checkpoint.block_fp8_layer(1, first_expert=2, experts=3)
    assert part.experts == 3
    assert part.expert(1).down.codes.tobytes() == whole.expert(3).down.codes.tobytes()
    assert len(part.routed[0:2]) == 2
    x = random_tokens(np.random.default_rng(4), 4)
    routing = moe_layer(x, whole, path="deepseek_fp8", stages=True).stages["routing"]
    given = {"topk_ids": routing["ids"], "topk_weights": routing["weights"]}
    rank = moe_layer(x, part, path="deepseek_fp8", first_expert=2, **given, stages=True)
    assert int(rank.stages["routing"]["offsets"][-1]) == int(((routing["ids"] >= 2) & (routing["ids"] < 5)).sum())


@pytest.mark.parametrize(
    ("layer", "options", "message"),
    [
        (0, {}, "layer: found 0; needed 1 to 2"),
        (1, {"first_expert": 8}, "first_expert: found 0 experts from 8 on; needed some of the 8"),
        (1, {"first_expert": 6, "experts": 3}, "first_expert: found 3 experts from 6 on"),
        (1, {"first_expert": -1}, "first_expert: found 9 experts from -1 on"),
    ],
)
def test_refused(checkpoint: DeepSeekCheckpoint, layer: int, options: dict[str, int], message: str) -> None:
    with pytest.raises(ArgumentError, match=message):
        checkpoint.block_fp8_layer(layer, **options)


def test_widths_that_are_no_multiple_of_128_are_refused(tmp_path: Path) -> None:
    found = open_as(DeepSeekCheckpoint, write_checkpoint(tmp_path / "narrow", TINY_DEEPSEEK, 3, "deepseek"))
    with pytest.raises(ArgumentError, match=r"found \[160, 192\]; needed multiples of 128, which share a scale"):
        found.block_fp8_layer(1)
