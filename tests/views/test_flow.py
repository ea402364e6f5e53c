"""`refmoe flow`: conversions, launches and bytes, and what follows from them."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from support.checkpoints import BLOCK_FP8_DEEPSEEK, TINY, TINY_DEEPSEEK
from typer.testing import CliRunner

from refmoe.cli import app
from refmoe.errors import ArgumentError
from refmoe.models import write_checkpoint
from refmoe.reference.moe import path_steps
from refmoe.views.flow import FlowModel, flow, flow_summary
from refmoe.views.fusing import LAUNCH_COSTS, claims, fusing

GPU_REPORT = Path(__file__).resolve().parent.parent.parent / "reports" / "bench" / "gpu.json"


@pytest.mark.parametrize(
    ("path", "quantization", "count"),
    [
        ("cutlass", "separate", 3),
        ("cutlass", "fused", 3),
        ("cutlass", "ready", 2),
        ("trtllm_mxfp8", None, 3),
        ("marlin", None, 3),
        ("triton", None, 3),
        ("TRTLLM", None, 3),
        ("nvfp4", None, 3),
    ],
)
def test_conversions_of_one_gemm(path: str, quantization: str | None, count: int) -> None:
    assert len(flow(path, "gpt-oss-120b", 1, quantization=quantization).first_gemm) == count


@pytest.mark.parametrize("quantization", ["separate", "fused", "ready"])
def test_kernels_convert_what_the_reference_of_their_path_does(quantization: str) -> None:
    launched = flow("cutlass", "gpt-oss-20b", 3, quantization=quantization).conversions
    assert launched == tuple(word for step in path_steps("cutlass", quantization) for word in step.conversions)


@pytest.mark.parametrize(
    ("config", "format", "sizes", "router"),
    [(TINY, "nvfp4", (96, 64, 8, 4, 4), ()), (TINY_DEEPSEEK, "deepseek-nvfp4", (192, 160, 4, 2, 2), (160, 2, 1))],
)
def test_checkpoints_in_nvfp4(
    tmp_path: Path, config: Any, format: str, sizes: tuple[int, ...], router: tuple[int, ...]
) -> None:
    """Their sizes are taken, and paths that do not take their weights are refused."""
    path = str(write_checkpoint(tmp_path / "written", config, 1, format))
    found = flow("nvfp4", path, 3)
    assert found.model == FlowModel("written", *sizes, "nvfp4", *router)
    assert ("shared" in [step.stage for step in found.steps]) == bool(router)
    assert sum(found.rows) == 3 * sizes[3]
    assert found.first_gemm == ("BF16 -> NVFP4", "NVFP4 x NVFP4 -> FP32", "FP32 -> BF16")
    assert "nothing of ours launches a layer of them" in flow_summary(found, 273)
    with pytest.raises(
        ArgumentError, match="path: found cutlass with the nvfp4 weights of written; needed marlin, nvfp4"
    ):
        flow("cutlass", path, 3)


def test_one_token_of_gpt_oss_120b_by_hand() -> None:
    found = flow("cutlass", "gpt-oss-120b", 1, quantization="fused", arch="sm_121a")
    scales = 23 * 4  # bytes of a row of 2880 elements: 90 blocks, padded to 92
    gate_up, down = 5760 * (1440 + scales), 2880 * 1440 + 2944 * scales  # 2880 rows fill 23 atoms of 128
    assert found.rows.count(1) == 4
    assert sum(found.rows) == 4
    assert found.weights == 4 * (gate_up + down) == 52_969_472
    by_stage = {step.stage: step for step in found.steps}
    expand = by_stage["expand"].traffic
    assert expand is not None
    assert expand.reads == {"x": 5760, "topk_ids": 16, "unpermuted_to_permuted": 16, "offsets": 0}
    assert expand.writes == {"expand_codes": 4 * 2880, "expand_scales": 4 * scales}
    assert [step.stage for step in found.steps] == ["permute", "expand", "gemm1", "activation", "gemm2", "finalize"]


def test_fusing_saves_one_launch_and_one_round_trip_of_codes_and_scales() -> None:
    for m in (1, 64):
        separate, fused, _ = fusing("gpt-oss-120b", m)
        assert separate.launches - fused.launches == 1
        # Reads of x become reads of codes and scales, which a launch before has read x for and written.
        saved = separate.read + separate.written - fused.read - fused.written
        assert saved == m * 2 * (2880 + 90)
        assert separate.weights == fused.weights


def test_a_share_is_what_its_parts_are() -> None:
    separate, fused, savings = fusing("gpt-oss-120b", 1)
    for saving in savings:
        moved = [(flow.read + flow.written) / (saving.cost.product.bandwidth * 1e9) * 1e6 for flow in (separate, fused)]
        assert saving.layer == pytest.approx(moved[0] + 7 * saving.launch)
        assert saving.saved == pytest.approx(moved[0] - moved[1] + saving.launch)
    told = claims(separate, fused, savings)
    assert told[0].startswith(
        'refmoe\'s design claimed "fusing recovers decode". By these figures it saves 0.26 to 2.18 % of the layer on'
    )
    assert told[1].startswith(
        'refmoe\'s design also claimed "fusing saves 1-2 %". By these figures that is true on GB10'
    )
    assert "on GB10 if a launch costs 2.08 to 4.52 us (not known)" in told[1]


def test_the_cost_of_a_launch_is_what_the_committed_benchmark_measured() -> None:
    report = json.loads(GPU_REPORT.read_text())
    (cost,) = [cost for cost in LAUNCH_COSTS if cost.product.name.split()[0] in report["gpu"]]
    assert cost.measured
    measured = {round(row["microseconds"], 1) for row in report["rows"] if row["name"] == "an empty kernel"}
    assert measured
    assert min(cost.microseconds) <= min(measured) <= max(measured) <= max(cost.microseconds)


@pytest.mark.parametrize(
    ("arguments", "needed"),
    [
        ({"path": "exllama"}, "cutlass, marlin, triton, trtllm, trtllm_mxfp8"),
        ({"model": "gpt-5"}, "gpt-oss-20b, gpt-oss-120b"),
        ({"m": 0}, "at least 1 token"),
        ({"routing": "none"}, "uniform, same-experts"),
        ({"arch": "sm_100a"}, "sm_90a, sm_120a, sm_121a"),
        ({"quantization": "twice"}, "separate"),
        ({"path": "marlin", "quantization": "fused"}, "default"),
        ({"output": "q8_1"}, "the path llama_cpp"),
        ({"path": "llama_cpp", "quantization": "fused"}, "one of separate, ready"),
    ],
)
def test_what_is_not_known_is_refused_with_the_list(arguments: dict[str, object], needed: str) -> None:
    with pytest.raises(ArgumentError) as refused:
        flow(**{"path": "cutlass", "model": "gpt-oss-20b", "m": 1, **arguments})  # type: ignore[arg-type]
    assert needed in refused.value.needed


def test_the_command() -> None:
    runner = CliRunner()
    shown = runner.invoke(app, ["flow", "--m", "1"], env={"COLUMNS": "160"})
    assert shown.exit_code == 0
    assert "3 conversions up to the first GEMM's output" in shown.output
    assert "1 launch less of 7, 5,940 bytes less" in shown.output
    document = json.loads(runner.invoke(app, ["flow", "--bandwidth", "4800", "--json"]).stdout)
    total = sum(sum({**step["reads"]}.values()) + sum({**step["writes"]}.values()) for step in document["steps"])
    assert document["read"] + document["written"] == total
    assert document["floor_us"] == pytest.approx(total / 4.8e12 * 1e6)
    absent = runner.invoke(app, ["flow", "--path", "triton"])
    assert absent.exit_code == 0
    assert "no launch of ours exists" in absent.output
    assert json.loads(runner.invoke(app, ["flow", "--path", "triton", "--json"]).stdout)["fusing"] is None
    for wrong in (["--path", "x"], ["--model", "x"], ["--bandwidth", "0"], ["--m", "0"]):
        assert runner.invoke(app, ["flow", *wrong]).exit_code == 2


def test_the_command_says_what_staying_in_q8_1_saves() -> None:
    runner = CliRunner()
    staying = ["flow", "--path", "llama_cpp", "--quantization", "ready", "--output", "q8_1"]
    shown = runner.invoke(app, staying, env={"COLUMNS": "160"})
    assert shown.exit_code == 0
    assert "llama_cpp, ready, output q8_1: a layer of gpt-oss-120b" in shown.output
    assert "4 from one GEMM's output to the next one's" in shown.output
    assert "save 1 launch of 6, 1 conversion of 9 and 11,520 bytes" in " ".join(shown.output.split())
    document = json.loads(runner.invoke(app, [*staying, "--json"]).stdout)
    assert (document["output"], len(document["conversions_per_gemm"]), document["launches"]) == ("q8_1", 4, 5)
    many = runner.invoke(app, [*staying, "--m", "9"], env={"COLUMNS": "160"})
    assert many.exit_code == 0
    assert "save" not in many.output


def test_deepseek_in_fp8_is_planned_from_the_router_on(tmp_path: Path) -> None:
    found = flow("deepseek_fp8", "deepseek-v3", 1, arch="sm_90a")
    assert [step.stage for step in found.steps][:3] == ["route", "permute", "expand"]
    assert found.launches == 10
    assert found.first_gemm == ("BF16 -> FP8", "FP8 x FP8 -> FP32", "FP32 -> BF16")
    experts = sum(rows > 0 for rows in found.rows)
    one = 3 * 7168 * 2048
    assert found.weights == (experts + 1) * (one + one // 128 // 128 * 4)
    assert "weights of 8 experts and the shared one" in flow_summary(found, 4800)
    path = str(write_checkpoint(tmp_path / "written", BLOCK_FP8_DEEPSEEK, 1, "deepseek"))
    small = flow("deepseek_fp8", path, 5)
    assert small.model == FlowModel("written", 256, 128, 8, 3, 2, "block_fp8", 256, 4, 2)
    assert sum(small.rows) == 15
    with pytest.raises(ArgumentError, match="path: found cutlass with the block_fp8 weights of written; needed deepse"):
        flow("cutlass", path, 5)
    with pytest.raises(ArgumentError, match="path: found deepseek_fp8 with the mxfp4 weights of gpt-oss-20b"):
        flow("deepseek_fp8", "gpt-oss-20b", 1)
