"""Drift of a DeepSeek-V3 checkpoint: its layers with experts, without attention, by paths of deepseek_fp8."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest

from refmoe.drift import run_drift
from refmoe.drift.document import drift_document
from refmoe.drift.inputs import TINY_DEEPSEEK, draw_prompts, open_or_write
from refmoe.drift.paths import DEEPSEEK_PATHS, DriftPathError, drift_path, named_paths
from refmoe.drift.summary import drift_summary
from refmoe.errors import ArgumentError
from refmoe.models import DeepSeekCheckpoint, ExpertStack
from refmoe.models.dense import project, rms_norm
from refmoe.reference import moe_layer
from refmoe.reference.fp32 import add, bf16


@pytest.fixture(scope="module")
def checkpoint() -> Iterator[DeepSeekCheckpoint]:
    with open_or_write(None, 3, "block_fp8") as opened:
        assert isinstance(opened, DeepSeekCheckpoint)
        yield opened


def test_the_stack_is_norm_experts_and_residual(checkpoint: DeepSeekCheckpoint) -> None:
    """Written out again, layer by layer; a token alone gives what it gives among others."""
    tokens = np.array([[3, 7, 3], [9, 1, 200]])

    def moe(number: int, x: Any, layer: Any) -> Any:
        return moe_layer(x, layer, path="deepseek_fp8")

    stack = ExpertStack(checkpoint, moe=moe)
    state = stack.new_state(2)
    step = stack.prefill(tokens, state, stages=True)
    assert state.length == 3
    assert len(step.layers) == len(checkpoint.moe_layers) == 4
    hidden = checkpoint.tensor("model.embed_tokens.weight")[tokens].reshape(6, -1)
    for number, layer in enumerate(checkpoint.moe_layers):
        norm = checkpoint.tensor(f"model.layers.{layer}.post_attention_layernorm.weight")
        entered = bf16(rms_norm(hidden.astype(np.float32), norm, 1e-6))
        left = moe(number, entered, checkpoint.block_fp8_layer(layer))
        hidden = bf16(add(hidden.astype(np.float32), left.astype(np.float32)))
        assert step.layers[number].entered.tobytes() == entered.tobytes()
        assert step.layers[number].stages["residual"].tobytes() == hidden.tobytes()
    last = bf16(rms_norm(hidden[[2, 5]].astype(np.float32), checkpoint.tensor("model.norm.weight"), 1e-6))
    assert step.logits.tobytes() == project(last.astype(np.float32), checkpoint.tensor("lm_head.weight")).tobytes()
    alone = stack.prefill(tokens[1:, 2:], stack.new_state(1))
    assert alone.logits.tobytes() == step.logits[1:].tobytes()


@pytest.mark.parametrize(
    ("tokens", "message"),
    [
        (np.zeros((1, 2), np.int64), r"tokens: found int64 \[1, 2\]; needed integers \[2, S\]"),
        (np.zeros((2, 0), np.int64), "tokens: found"),
        (np.full((2, 1), 256), "tokens: found 256 to 256; needed 0 to 255"),
        (np.full((2, 1), -1), "tokens: found -1 to -1"),
    ],
)
def test_the_stack_refuses(checkpoint: DeepSeekCheckpoint, tokens: Any, message: str) -> None:
    stack = ExpertStack(checkpoint, moe=lambda number, x, layer: x)
    with pytest.raises(ArgumentError, match=message):
        stack.prefill(tokens, stack.new_state(2))


def test_the_stack_takes_bf16_of_its_experts_and_deepseek_alone(checkpoint: DeepSeekCheckpoint) -> None:
    stack = ExpertStack(checkpoint, moe=lambda number, x, layer: x.astype(np.float32))
    with pytest.raises(ArgumentError, match=r"moe: found float32 .* from layer 0; needed bfloat16"):
        stack.prefill(np.zeros((1, 1), np.int64), stack.new_state(1))
    with pytest.raises(ArgumentError, match="needed a DeepSeekCheckpoint or a DeepSeekNVFP4Checkpoint"):
        ExpertStack("folder", moe=lambda number, x, layer: x)  # type: ignore[arg-type]


def test_paths_side_by_side(checkpoint: DeepSeekCheckpoint) -> None:
    """Models part at the first product, TensorRT-LLM's rules at the weights; the formula at the output."""
    chosen, base = named_paths(None, None, None, DEEPSEEK_PATHS)
    prompts = draw_prompts(256, 1, 4, 5)
    run = run_drift(checkpoint, chosen, prompts, base=base, steps=2, modes=("teacher-forced",))
    first = {each.path: each.first for each in run.comparisons}
    assert (first["deepseek_fp8:sm_120a"].layer, first["deepseek_fp8:sm_120a"].stage) == (0, "gemm1")
    assert first["deepseek_fp8:trtllm:sm_100a"].stage == "routing"
    assert first["formula"].stage == "finalize"
    for each in run.comparisons:
        assert each.layers["hidden"]["relative_l2"].shape == (1, 3, 4)
        assert 0 < each.layers["moe"]["relative_l2"][0, 0, 0] < 0.1
    document = drift_document(
        [run], chosen, checkpoint, base=base, steps=2, seed=5, tiny=True, command="test", seconds=1.0
    )  # fmt: skip
    assert document["checkpoint"]["config"]["n_routed_experts"] == TINY_DEEPSEEK.n_routed_experts
    assert drift_summary(document) is not None


def test_one_arithmetic_must_be_equal(checkpoint: DeepSeekCheckpoint) -> None:
    """SM120 and SM121 have one model: no byte may differ, and bytes are compared."""
    chosen, base = named_paths(["deepseek_fp8:sm_120a", "deepseek_fp8:sm_121a"], None, None)
    run = run_drift(checkpoint, chosen, draw_prompts(256, 1, 3, 5), base=base, steps=1, top_k=3)
    assert all(each.must_equal and each.passed and each.bytes_compared for each in run.comparisons)


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("deepseek_fp8:fused", "fused with deepseek_fp8; needed the default"),
        ("deepseek_fp8:floor", "needed none of them, or a system: refmoe, trtllm"),
        ("deepseek_fp8:q8_1", "output: found q8_1|q8_1 with deepseek_fp8|none of them"),
        ("cutlass:trtllm", "cutlass with trtllm; needed a system of deepseek_fp8 alone"),
        ("deepseek_fp8:sglang", "trtllm of deepseek_fp8"),
    ],
)
def test_refused_names(name: str, message: str) -> None:
    with pytest.raises(DriftPathError, match=message):
        drift_path(name)


def test_weights_and_paths_have_to_go_together(checkpoint: DeepSeekCheckpoint) -> None:
    chosen, base = named_paths(["cutlass", "formula"], None, None)
    with pytest.raises(DriftPathError, match="cutlass:separate with block_fp8 weights; needed deepseek_fp8 or formula"):
        run_drift(checkpoint, chosen, draw_prompts(256, 1, 3, 5), base=base, steps=1)
