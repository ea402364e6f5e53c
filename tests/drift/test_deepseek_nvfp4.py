"""Drift of a DeepSeek checkpoint of ModelOpt, from Python and as a user types it."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from support.checkpoints import read_header, write_header
from typer.testing import CliRunner, Result

from refmoe import catalog
from refmoe.cli import app
from refmoe.drift import run_drift
from refmoe.drift.inputs import TINY_DEEPSEEK, draw_prompts, open_or_write
from refmoe.drift.paths import NVFP4_PATHS, DriftPathError, named_paths
from refmoe.models import DeepSeekNVFP4Checkpoint, ExpertStack, write_checkpoint
from refmoe.models.dense import project, rms_norm
from refmoe.reference import moe_layer
from refmoe.reference.fp32 import add, bf16
from refmoe.reports.documents import digest_of
from refmoe.reports.drift import DRIFT
from refmoe.reports.gate import check_reports

SMALL = ("--steps", "2", "--batch", "1", "--prompt-length", "2")
STAGES = ["routing", "expand", "gemm1", "activation", "gemm2", "shared", "finalize"]


def drift(*arguments: str) -> Result:
    return CliRunner().invoke(app, ["drift", *arguments])


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_checkpoint(tmp_path_factory.mktemp("drift") / "r1", TINY_DEEPSEEK, 3, "deepseek-nvfp4")


def test_the_stack_is_norm_experts_and_residual(folder: Path) -> None:
    """Written out again, layer by layer, by both paths."""
    tokens = np.array([[3, 7], [9, 1]])
    with open_or_write(folder, 3) as checkpoint:
        assert isinstance(checkpoint, DeepSeekNVFP4Checkpoint)
        for path in ("nvfp4", "marlin"):
            stack = ExpertStack(checkpoint, moe=lambda number, x, layer, path=path: moe_layer(x, layer, path=path))
            step = stack.prefill(tokens, stack.new_state(2), stages=True)
            hidden = checkpoint.tensor("model.embed_tokens.weight")[tokens].reshape(4, -1)
            for number, layer in enumerate(checkpoint.moe_layers):
                norm = checkpoint.tensor(f"model.layers.{layer}.post_attention_layernorm.weight")
                entered = bf16(rms_norm(hidden.astype(np.float32), norm, 1e-6))
                left = moe_layer(entered, checkpoint.nvfp4_layer(layer), path=path)
                hidden = bf16(add(hidden.astype(np.float32), left.astype(np.float32)))
                assert step.layers[number].stages["residual"].tobytes() == hidden.tobytes()
            norm = checkpoint.tensor("model.norm.weight")
            last = bf16(rms_norm(hidden[1::2].astype(np.float32), norm, 1e-6)).astype(np.float32)
            assert step.logits.tobytes() == project(last, checkpoint.tensor("lm_head.weight")).tobytes()


def test_paths_side_by_side(folder: Path) -> None:
    with open_or_write(folder, 3) as checkpoint:
        chosen, base = named_paths(None, None, None, NVFP4_PATHS)
        run = run_drift(checkpoint, chosen, draw_prompts(256, 2, 3, 1), base=base, steps=2, modes=("teacher-forced",))
        found = {each.path: each for each in run.comparisons}
        assert (found["marlin"].first.layer, found["marlin"].first.stage) == (0, "gemm1")  # type: ignore[union-attr]
        assert found["marlin"].formats.stage == "expand"  # type: ignore[union-attr]
        assert found["formula"].first.stage == "finalize"  # type: ignore[union-attr]
        for each in found.values():
            assert each.layers["hidden"]["relative_l2"].shape == (2, 3, 4)
        # BF16 tokens are nearer to the formula than four bits are.
        near = run_drift(checkpoint, chosen[1:], draw_prompts(256, 2, 3, 1), steps=2, modes=("teacher-forced",))
        errors = [each.layers["moe"]["relative_l2"][:, 0, 0].max() for each in (*near.comparisons, found["formula"])]
        assert 0 < errors[0] < 0.02 < errors[1] < 0.3
        # SM120 and SM121 have one model: no byte may differ, whatever k is.
        twins, first = named_paths(["nvfp4", "nvfp4:sm_121a"], None, None)
        same = run_drift(checkpoint, twins, draw_prompts(256, 1, 3, 5), base=first, steps=1, top_k=3, in_flight=1)
        assert all(each.must_equal and each.passed and each.bytes_compared for each in same.comparisons)
        refused, first = named_paths(["cutlass", "formula"], None, None)
        with pytest.raises(
            DriftPathError, match="cutlass:separate with nvfp4 weights; needed marlin, nvfp4 or formula"
        ):
            run_drift(checkpoint, refused, draw_prompts(256, 1, 3, 5), base=first, steps=1)


def test_the_command_from_end_to_end(folder: Path, tmp_path: Path) -> None:
    """Exit status, the document's schema, digest and steps, and that the gate takes it."""
    report = tmp_path / "drift.json"
    found = drift("--checkpoint", str(folder), *SMALL, "--report", str(report))
    assert found.exit_code == 0, found.output
    assert "base nvfp4" in found.output
    document: dict[str, Any] = json.loads(report.read_text())
    assert document["passed"] is True
    assert document["digest"] == digest_of({key: value for key, value in document.items() if key != "digest"})
    assert DRIFT.model.model_validate(document).kind == "drift"
    assert [path["name"] for path in document["paths"]] == ["nvfp4", "marlin", "formula"]
    assert [path.get("evidence") for path in document["paths"]] == ["published", "hardware-checked", None]
    assert [path.get("steps") for path in document["paths"]] == [STAGES, STAGES, None]
    assert document["paths"][0]["conversions"][:3] == ["BF16 -> NVFP4", "NVFP4 x NVFP4 -> FP32", "FP32 -> BF16"]
    assert document["checkpoint"]["config"]["n_routed_experts"] == 8
    assert [each["base"] for each in document["runs"][0]["comparisons"]] == ["nvfp4"] * 4
    assert len(document["runs"][0]["comparisons"][0]["curves"]["hidden"]["relative_l2"][0][0]) == 4
    refusals = check_reports([report], None, catalog).refusals
    assert [refusal for refusal in refusals if not refusal.startswith("no report in")] == []
    edited = {**document, "passed": False}
    report.write_text(json.dumps({**edited, "digest": digest_of(edited)}))
    assert any("says itself that it did not pass" in each for each in check_reports([report], None, catalog).refusals)


def test_the_random_one_is_the_same_layer_by_layer() -> None:
    """--weights writes one; the same seed gives the same tokens."""
    options = ("--weights", "deepseek-nvfp4", "--paths", "marlin,formula", *SMALL, "--json")
    first, second = (json.loads(drift(*options).stdout) for _ in range(2))
    assert first["checkpoint"]["name"] == "tiny, random"
    assert first["checkpoint"]["sha256"] == second["checkpoint"]["sha256"]
    assert first["runs"][0]["bits"] == second["runs"][0]["bits"]


def damaged(folder: Path, into: Path, name: str, content: bytes | None) -> Path:
    """A copy in which a tensor begins with other bytes, or for None is missing."""
    into.mkdir()
    for file in folder.iterdir():
        (into / file.name).write_bytes(file.read_bytes())
    header, data = read_header(into / "model.safetensors")
    if content is None:
        header["elsewhere"] = header.pop(name)
    else:
        begin = header[name]["data_offsets"][0]
        data = data[:begin] + content + data[begin + len(content) :]
    write_header(into / "model.safetensors", header, data)
    return into


@pytest.mark.parametrize(
    ("name", "content", "words"),
    [
        ("shared_experts.up_proj.input_scale", np.float32(2).tobytes(), "found 2.0; needed"),
        ("shared_experts.down_proj.input_scale", np.float32(0).tobytes(), "found 0.0; needed a number above 0, finite"),
        ("shared_experts.down_proj.weight_scale", b"\xb8", "found the negative scale 0xB8 at [0, 0]"),
        ("shared_experts.gate_proj.weight_scale_2", None, "found no such tensor among"),
        ("experts.0.down_proj.input_scale", None, "found no such tensor among"),
    ],
)
def test_a_damaged_checkpoint_is_exit_status_2(
    folder: Path, tmp_path: Path, name: str, content: bytes | None, words: str
) -> None:
    broken = damaged(folder, tmp_path / "broken", f"model.layers.1.mlp.{name}", content)
    found = drift("--checkpoint", str(broken), *SMALL)
    assert found.exit_code == 2
    text = " ".join(found.output.split())
    assert f"model.layers.1.mlp.{name}" in text
    assert words in text


def test_a_shared_expert_in_bf16_is_taken(tmp_path: Path) -> None:
    path = write_checkpoint(
        tmp_path / "bf16", TINY_DEEPSEEK, 3, "deepseek-nvfp4", excluded=["model.layers.*.mlp.shared_experts*"]
    )
    found = drift("--checkpoint", str(path), *SMALL, "--json")
    assert found.exit_code == 0, found.output
    document = json.loads(found.stdout)
    assert document["passed"] is True
    assert [path.get("evidence") for path in document["paths"]] == ["extrapolated", "hardware-checked", None]
