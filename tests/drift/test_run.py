"""Paths side by side: what must be equal is, a planted fault is found where it is, and neighbours change nothing."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from support.checkpoints import open_as

from refmoe.drift import DriftPath, DriftPathError, DriftRun, PathComparison, drift_path, run_drift
from refmoe.drift.document import dependent_sequences
from refmoe.drift.inputs import draw_prompts, open_or_write, parse_prompts, parse_sweeps, sweep_points
from refmoe.drift.paths import DEFAULT_PATHS, NVFP4_PATHS, named_paths
from refmoe.errors import ArgumentError
from refmoe.models import GptOssCheckpoint, GptOssConfig, write_checkpoint
from refmoe.reference.fp32 import BF16
from refmoe.reference.moe.layer import MoELayer
from refmoe.reference.tensor import MXTensor

SMALL = GptOssConfig(
    num_hidden_layers=2,
    num_local_experts=4,
    num_experts_per_tok=2,
    vocab_size=64,
    hidden_size=32,
    intermediate_size=32,
    num_attention_heads=2,
    num_key_value_heads=1,
    head_dim=16,
    sliding_window=4,
    initial_context_length=256,
)
TEACHER, FREE = "teacher-forced", "free-running"


@pytest.fixture(scope="module")
def small(tmp_path_factory: pytest.TempPathFactory) -> GptOssCheckpoint:
    return open_as(GptOssCheckpoint, write_checkpoint(tmp_path_factory.mktemp("small"), SMALL, 3))


@pytest.fixture(scope="module")
def four(small: GptOssCheckpoint) -> DriftRun:
    """The default paths, in both modes."""
    return run_drift(small, named_paths(None, None, None)[0], draw_prompts(64, 2, 3, 1), steps=10)


def comparison(run: DriftRun, path: str, mode: str = TEACHER) -> PathComparison:
    return next(one for one in run.comparisons if (one.path, one.mode) == (path, mode))


@pytest.mark.parametrize("mode", [TEACHER, FREE])
def test_fused_is_separate_at_every_step(four: DriftRun, mode: str) -> None:
    one = comparison(four, "cutlass:fused", mode)
    assert one.must_equal
    assert one.passed
    assert one.bytes_differing == 0
    assert one.bytes_compared > 100_000
    assert one.first is None
    assert one.diverged == [None, None]
    assert one.growth.sentence == "does not grow: exactly zero at 10 steps"
    assert four.bits["cutlass:fused", mode] == four.bits["cutlass:separate", TEACHER]
    for place in ("moe", "hidden"):
        assert one.layers[place]["relative_l2"].shape == (2, 11, 2)
        assert not one.layers[place]["relative_l2"].any()
        assert (one.layers[place]["cosine"] == 1).all()
    assert (one.logits["top1"] == 1).all()


@pytest.mark.parametrize("path", ["marlin", "cutlass:separate:floor"])
def test_others_have_curves(four: DriftRun, path: str) -> None:
    one = comparison(four, path)
    assert not one.must_equal
    assert one.passed
    assert (one.layers["moe"]["relative_l2"][:, :, -1] > 0).mean() > 0.9
    assert (one.layers["moe"]["max_ulp"][:, :, -1] > 0).mean() > 0.9
    assert (one.logits["divergence"] > 0).mean() > 0.9
    assert one.first is not None
    assert (one.first.step, one.first.layer) == (0, 0)


def test_where_bits_and_formats_part(four: DriftRun) -> None:
    floor, marlin = comparison(four, "cutlass:separate:floor"), comparison(four, "marlin")
    assert floor.first is not None
    assert marlin.first is not None
    assert floor.first.stage == "quantize"
    assert floor.formats is None
    assert marlin.first.stage == "gemm1"
    assert "is sequence" in marlin.first.text
    assert marlin.formats is not None
    assert (marlin.formats.stage, marlin.formats.other) == ("expand", ("rows bfloat16",))


def test_free_running_is_teacher_forced_until_a_token_differs(four: DriftRun) -> None:
    for path in ("marlin", "cutlass:separate:floor"):
        forced, free = (comparison(four, path, mode) for mode in (TEACHER, FREE))
        assert forced.diverged == [None, None]
        for sequence, step in enumerate(free.diverged):
            end = 11 if step is None else step
            for name, values in forced.logits.items():
                assert values[sequence, :end].tobytes() == free.logits[name][sequence, :end].tobytes()
            # A token parts when, and only when, the most likely one did at the step before.
            parted = np.flatnonzero(forced.logits["top1"][sequence, :10] == 0)
            assert step == (parted[0] + 1 if parted.size else None)
        # Only steps before it count for the growth.
        counted = min(10 if step is None else step - 1 for step in free.diverged)
        assert free.growth.steps <= counted
        assert free.growth.steps + free.growth.left_out == 10


def test_after_other_tokens_the_figures_are_of_other_inputs(four: DriftRun) -> None:
    diverged = {(one.path, sequence): step for one in four.comparisons for sequence, step in enumerate(one.diverged)}
    assert any(step is not None for step in diverged.values())
    for path in ("marlin", "cutlass:separate:floor"):
        forced, free = (comparison(four, path, mode) for mode in (TEACHER, FREE))
        for sequence, step in enumerate(free.diverged):
            if step is not None:
                error = free.layers["hidden"]["relative_l2"][sequence, step, 0]
                assert error > 5 * forced.layers["hidden"]["relative_l2"][sequence, step, 0]


def test_the_tokens_are_the_base_s_own(small: GptOssCheckpoint, four: DriftRun) -> None:
    """Decoding them as a prompt, in one go, makes the base choose each of them again."""
    whole = np.concatenate([four.prompts, four.tokens], axis=1)
    paths = [drift_path(name) for name in DEFAULT_PATHS[:2]]
    for length in (3, 7, 12):
        run = run_drift(small, paths, whole[:, :length], steps=1, modes=(TEACHER,))
        assert run.tokens[:, 0].tolist() == whole[:, length].tolist()


def faulty(stage: str, layer: int, step: int) -> DriftPath:
    """The fused path, with the scales of one expert's weights doubled at one layer from one step on."""
    sound = drift_path("cutlass:fused")
    calls = 0

    def run(number: int, x: np.ndarray, weights: MoELayer) -> Mapping[str, Any]:
        nonlocal calls
        at, calls = calls // SMALL.num_hidden_layers, calls + 1
        stages = sound.run(number, x, weights)
        if number != layer or at < step:
            return stages
        expert = int(stages["routing"]["ids"][0, 0])
        name = {"gemm1": "gate_up", "gemm2": "down"}[stage]
        good: MXTensor = getattr(weights, name)
        scales = good.scales.copy()
        scales[expert] += 1
        bad = dataclasses.replace(weights, **{name: MXTensor(good.codes, scales, good.format)})
        return sound.run(number, x, bad)

    return DriftPath("faulty", run, sound.arithmetic)


@pytest.mark.parametrize(("stage", "layer", "step"), [("gemm1", 1, 3), ("gemm2", 0, 0), ("gemm2", 1, 5)])
def test_a_planted_fault_is_found_where_it_is(small: GptOssCheckpoint, stage: str, layer: int, step: int) -> None:
    paths = [drift_path("cutlass"), faulty(stage, layer, step)]
    run = run_drift(small, paths, draw_prompts(64, 1, 3, 1), steps=6, modes=(TEACHER,))
    (one,) = run.comparisons
    assert one.must_equal
    assert not one.passed
    assert one.first is not None
    assert (one.first.step, one.first.layer, one.first.stage, one.first.array) == (step, layer, stage, "out")
    assert one.first.text.startswith(f"step {step}, layer {layer}, {stage}.out[")
    assert not one.layers["hidden"]["relative_l2"][0, :step].any()
    assert one.layers["hidden"]["relative_l2"][0, step, layer] > 0
    assert not one.layers["hidden"]["relative_l2"][0, step, :layer].any()


def test_an_error_that_grows_is_said_to(small: GptOssCheckpoint) -> None:
    """The experts' output is off by 2^-6 at first, and by a fifth more at every step."""
    sound = drift_path("marlin")
    calls = 0

    def run(layer: int, x: np.ndarray, weights: MoELayer) -> Mapping[str, Any]:
        nonlocal calls
        at, calls = calls // SMALL.num_hidden_layers, calls + 1
        stages = sound.run(layer, x, weights)
        out = stages["finalize"]["out"]
        off = out.astype(np.float32) * np.float32(1 + 2.0**-6 * 1.2**at)
        return {**stages, "finalize": {"out": off.astype(out.dtype)}}

    paths = [sound, DriftPath("growing", run)]
    (one,) = run_drift(small, paths, draw_prompts(64, 1, 2, 1), steps=16, modes=(TEACHER,)).comparisons
    assert one.first is not None
    assert (one.first.step, one.first.layer, one.first.stage) == (0, 0, "finalize")
    assert one.growth.conclusion == "grows"
    assert one.growth.low is not None
    assert one.growth.high is not None
    assert one.growth.low < np.log(1.2) < one.growth.high


def test_a_fault_between_two_paths_that_are_not_the_base(small: GptOssCheckpoint) -> None:
    paths = [drift_path("marlin"), drift_path("cutlass"), faulty("gemm1", 0, 1)]
    run = run_drift(small, paths, draw_prompts(64, 1, 2, 1), steps=2, modes=(TEACHER,))
    pairs = {(one.base, one.path): one for one in run.comparisons}
    assert list(pairs) == [
        ("marlin", "cutlass:separate"),
        ("marlin", "faulty"),
        ("cutlass:separate", "faulty"),
    ]
    assert [one.passed for one in run.comparisons] == [True, True, False]


def test_sequences_in_flight_do_not_see_each_other(small: GptOssCheckpoint) -> None:
    paths = [drift_path(name) for name in ("cutlass:fused", "marlin")]
    runs = [
        run_drift(small, paths, draw_prompts(64, batch, 3, 1), steps=4, in_flight=in_flight)
        for batch, in_flight in ((3, 3), (3, 1), (2, 2))
    ]
    assert dependent_sequences(runs) == []
    assert runs[0].tokens.tobytes() == runs[1].tokens.tobytes()
    for whole, alone in zip(runs[0].comparisons, runs[1].comparisons, strict=True):
        for place, metrics in whole.layers.items():
            for name, values in metrics.items():
                assert values.tobytes() == alone.layers[place][name].tobytes()


def test_a_path_that_looks_at_its_neighbours_is_told(small: GptOssCheckpoint) -> None:
    def run(layer: int, x: np.ndarray, weights: MoELayer) -> Mapping[str, Any]:
        stages = drift_path("marlin").run(layer, x, weights)
        out = stages["finalize"]["out"]
        return {**stages, "finalize": {"out": out if len(out) < 4 else out + out[-1]}}

    paths = [drift_path("marlin"), DriftPath("curious", run)]
    runs = [run_drift(small, paths, draw_prompts(64, b, 1, 1), steps=2, modes=(TEACHER,)) for b in (2, 4)]
    (sentence,) = dependent_sequences(runs)
    assert sentence == (
        "curious, teacher-forced: sequence 0 has other bits with batch 4, prompt 1, 4 in flight "
        "than with batch 2, prompt 1, 2 in flight"
    )


def test_what_is_no_checkpoint(small: GptOssCheckpoint) -> None:
    paths, prompts = [drift_path("cutlass"), drift_path("formula")], draw_prompts(64, 1, 1, 5)
    with pytest.raises(ArgumentError, match="needed a GptOssCheckpoint, whose decoder is here, or one of DeepSeek"):
        run_drift(small.path, paths, prompts, steps=1)  # type: ignore[arg-type]


def test_k_is_what_was_asked_for(small: GptOssCheckpoint) -> None:
    paths = [drift_path(name) for name in ("cutlass", "formula")]
    runs = [
        run_drift(small, paths, draw_prompts(64, 1, 2, 1), steps=1, top_k=k, modes=(TEACHER,)) for k in (None, 2, 1)
    ]
    assert runs[0].bits == runs[1].bits
    assert runs[0].bits != runs[2].bits
    assert np.isnan(runs[0].comparisons[0].layers["routing"]["rerouted"]).all()
    with pytest.raises(ArgumentError, match=r"k: found 5; needed 1 to 4"):
        run_drift(small, paths, draw_prompts(64, 1, 2, 1), steps=1, top_k=5)


@pytest.mark.parametrize(
    ("name", "canonical"),
    [
        ("CUTLASS", "cutlass:separate"),
        ("cutlass:rceil", "cutlass:separate"),
        ("cutlass:sm_120a:flashinfer:fused", "cutlass:fused:rceil/flashinfer"),
        ("cutlass:ocp", "cutlass:separate:floor"),
        ("cutlass:sm_100a", "cutlass:separate:sm_100a"),
        ("marlin:sm_121a", "marlin:sm_121a"),
        ("LLAMA_CPP:Q8_1", "llama_cpp:q8_1"),
        ("llama_cpp:sm_120a:q8_1", "llama_cpp:q8_1:sm_120a"),
        ("formula", "formula"),
    ],
)
def test_names_of_paths(name: str, canonical: str) -> None:
    assert drift_path(name).name == canonical
    assert drift_path(canonical).name == canonical


def test_which_paths_must_be_equal() -> None:
    same = [
        drift_path(name).arithmetic for name in ("cutlass", "cutlass:fused", "cutlass:sm_121a", "cutlass:torchao_rceil")
    ]
    assert len(set(same)) == 1
    assert drift_path("trtllm_mxfp8").arithmetic == drift_path("cutlass:sm_100a").arithmetic != same[0]
    assert drift_path("marlin").arithmetic != drift_path("triton").arithmetic
    assert drift_path("formula").arithmetic is None
    assert drift_path("llama_cpp").arithmetic != drift_path("llama_cpp:q8_1").arithmetic


def test_an_output_in_q8_1_is_what_the_decoder_adds(small: GptOssCheckpoint) -> None:
    """Nothing differs before finalize of the first layer, where the codes stand for what comes out."""
    paths = [drift_path(name) for name in ("llama_cpp", "llama_cpp:q8_1")]
    run = run_drift(small, paths, draw_prompts(64, 1, 3, 1), steps=1, modes=(TEACHER,))
    (comparison,) = run.comparisons
    assert comparison.first is not None
    assert (comparison.first.layer, comparison.first.stage, comparison.first.array) == (0, "finalize", "out")
    assert 0 < comparison.layers["moe"]["relative_l2"][0, 0, 0] < 0.02
    weights = small.moe_layer(0)
    x = np.random.default_rng(3).standard_normal((4, weights.hidden)).astype(BF16)
    finalize = paths[1].run(0, x, weights)["finalize"]
    numbers = finalize["codes"] * np.repeat(finalize["d"], 32, axis=1).astype(np.float32)
    assert finalize["out"].tobytes() == numbers.astype(BF16).tobytes()


@pytest.mark.parametrize(
    ("name", "sentence"),
    [
        ("cutlas", "paths: found 'cutlas'; needed formula, or BACKEND"),
        (
            "cutlass:fast",
            "paths: found 'fast' in cutlass:fast; needed separate or fused; q8_1 of llama_cpp; trtllm of deepseek_fp8; "
            "one of sm_90a",
        ),
        ("cutlass:fused:separate", "separate is a second quantization; needed one quantization"),
        ("marlin:floor", "needed neither: its activations are BF16"),
        ("marlin:separate", "needed neither: its activations are BF16"),
        ("triton:sm_120a", "needed one that serves sm_120a: cutlass, marlin"),
        ("trtllm_mxfp8:fused", "needed one of separate"),
        ("cutlass:gguf", "found 'gguf' in cutlass:gguf"),
        ("dp4a:q8_1", "q8_1 with dp4a; needed bf16, or the path llama_cpp"),
        ("marlin:q8_1", "q8_1 with marlin; needed bf16, or the path llama_cpp"),
        ("llama_cpp:q8_1:q8_1", "q8_1 is a second output; needed one output"),
        ("llama_cpp:separate", "needed neither: its activations are Q8_1"),
    ],
)
def test_names_that_are_refused(name: str, sentence: str) -> None:
    with pytest.raises(DriftPathError) as caught:
        drift_path(name)
    assert sentence in str(caught.value)


def test_what_is_set_side_by_side() -> None:
    def names(*given: Any) -> tuple[list[str], int]:
        paths, base = named_paths(*given)
        return [path.name for path in paths], base

    assert names(None, None, None) == (list(DEFAULT_PATHS), 0)
    assert names(None, None, "cutlass:fused") == (list(DEFAULT_PATHS), 1)
    assert names(["marlin", "cutlass"], None, "formula") == (["formula", "marlin", "cutlass:separate"], 0)
    floor_and_even = ["cutlass:fused", "cutlass:fused:floor", "cutlass:fused:even/flashinfer"]
    assert names(None, ["floor", "even/flashinfer"], "cutlass:fused") == (floor_and_even, 0)
    assert names(["marlin", "trtllm_mxfp8"], ["even"], "trtllm_mxfp8")[0][-1] == "trtllm_mxfp8:separate:even"
    for given, sentence in (
        ((["cutlass", "cutlass:rceil"], None, None), "cutlass:separate twice"),
        ((["cutlass"], None, None), "cutlass:separate alone"),
        ((["marlin"], ["floor"], None), "floor with marlin"),
        ((None, ["rceil"], None), "cutlass:separate twice"),
    ):
        with pytest.raises(DriftPathError, match=sentence):
            named_paths(*given)


def test_nvfp4_beside_the_others(four: DriftRun) -> None:
    """On MXFP4 weights of the same values: other bits from the first stage that is computed on."""
    one = comparison(four, "nvfp4")
    assert not one.must_equal
    assert one.formats is not None
    assert (one.formats.stage, one.formats.other) == ("expand", ("nvfp4_codes uint8", "nvfp4_scales uint8"))
    assert one.first is not None
    assert (one.first.step, one.first.layer, one.first.stage) == (0, 0, "gemm1")
    # Four bits lie further off than eight do.
    errors = {name: np.median(comparison(four, name).layers["hidden"]["relative_l2"][..., -1]) for name in PATHS}
    assert max(errors, key=lambda name: errors[name]) == "nvfp4"
    facts = drift_path("nvfp4").facts
    assert (facts["model"], facts["evidence"], facts["arch"]) == ("sm120_nvf4", "published", "sm_120a")
    assert facts["conversions"][:3] == ["BF16 -> NVFP4", "NVFP4 x NVFP4 -> FP32", "FP32 -> BF16"]


PATHS = ("marlin", "dp4a", "llama_cpp", "cutlass:separate:floor", "nvfp4")


def test_a_checkpoint_in_nvfp4_and_what_its_paths_are(tmp_path: Path) -> None:
    checkpoint = open_as(GptOssCheckpoint, write_checkpoint(tmp_path / "nvfp4", SMALL, 3, "nvfp4"))
    paths, base = named_paths(None, None, None, NVFP4_PATHS)
    prompts = draw_prompts(64, 2, 3, 1)
    run = run_drift(checkpoint, paths, prompts, base=base, steps=2, modes=[TEACHER])
    found = {one.path: one for one in run.comparisons}
    assert found.keys() == {"marlin", "formula"}
    assert all(one.base == "nvfp4" and one.first is not None for one in found.values())
    # Both have BF16 tokens, or better, so they are nearer to each other than to the base.
    near = run_drift(checkpoint, paths[1:], prompts, steps=2, modes=[TEACHER]).comparisons[0]
    assert near.layers["hidden"]["relative_l2"].max() < found["marlin"].layers["hidden"]["relative_l2"].min()
    # A sequence's bits depend on no neighbour: the tokens' factor is the checkpoint's.
    alone = run_drift(checkpoint, paths, prompts, steps=2, modes=[TEACHER], in_flight=1)
    assert alone.bits == run.bits
    with pytest.raises(DriftPathError, match="cutlass:fused with nvfp4 weights; needed marlin, nvfp4 or formula"):
        run_drift(checkpoint, [paths[0], drift_path("cutlass:fused")], prompts, steps=1)


def test_the_random_checkpoint_is_written_in_either_format() -> None:
    for weights in ("mxfp4", "nvfp4"):
        with open_or_write(None, 5, weights) as checkpoint:
            assert checkpoint.weights == checkpoint.moe_layer(0).weights == weights


def test_prompts_and_sweeps() -> None:
    drawn = draw_prompts(64, 3, 9, 5)
    assert draw_prompts(64, 2, 4, 5).tolist() == drawn[:2, :4].tolist()
    assert draw_prompts(64, 3, 9, 6).tolist() != drawn.tolist()
    assert parse_prompts("3, 1,4;1,5,9").tolist() == [[3, 1, 4], [1, 5, 9]]
    points = sweep_points(parse_sweeps(["batch=1,4", "in-flight=1"]), 2, 8)
    assert [str(point) for point in points] == ["batch 1, prompt 8, 1 in flight", "batch 4, prompt 8, 1 in flight"]
    assert sweep_points({}, 2, 8)[0].in_flight == 2
    for texts, sentence in (
        (["depth=1"], "found 'depth=1'"),
        (["batch=1", "batch=2"], "each once"),
        (["k=0"], "positive integers"),
        (["k=1,1"], "different"),
        (["k="], "positive"),
    ):
        with pytest.raises(ArgumentError, match=sentence):
            parse_sweeps(texts)
    with pytest.raises(ArgumentError, match="3 in flight of a batch of 2"):
        sweep_points({"in-flight": [3]}, 2, 8)
    for text in ("a,b", "1;2,3", ""):
        with pytest.raises(ArgumentError, match="prompt"):
            parse_prompts(text)


def test_refusals(small: GptOssCheckpoint, tmp_path: Path) -> None:
    two, prompts = [drift_path("cutlass"), drift_path("marlin")], draw_prompts(64, 2, 3, 1)
    for options, sentence in (
        ({"steps": 0}, "steps: found int 0; needed at least 1"),
        ({"modes": ()}, "modes"),
        ({"modes": ("forced",)}, "one or both of teacher-forced, free-running"),
        ({"base": 2}, "base: found 2; needed 0 to 1"),
        ({"in_flight": 3}, "1 to 2, the sequences"),
    ):
        with pytest.raises(ArgumentError, match=sentence):
            run_drift(small, two, prompts, **options)
    with pytest.raises(ArgumentError, match="at least two, of different names"):
        run_drift(small, two[:1], prompts)
    with pytest.raises(ArgumentError, match=r"integers \[sequences, prompt\]"):
        run_drift(small, two, prompts[0])
    with pytest.raises(ArgumentError, match="token 64"):
        run_drift(small, two, prompts * 0 + 64, steps=1)
    bad = DriftPath("empty", lambda layer, x, weights: {})
    with pytest.raises(ArgumentError, match="empty with the stages"):
        run_drift(small, [two[0], bad], prompts, steps=1)
