"""A DeepSeek-V3 layer as launches: bytes of the reference, what is refused, and the traffic that the executor sees."""

from __future__ import annotations

import dataclasses
from typing import Any

import numpy as np
import pytest
from support.deepseek import random_layer, random_tokens
from support.launch_recorder import Recorder
from support.toolchain import NVCC
from support.traffic_meter import Meter, meter  # noqa: F401

from refmoe.cuda import open_device
from refmoe.cuda.moe.deepseek import (
    DeepSeekArguments,
    DeepSeekOptions,
    DeepSeekShape,
    deepseek_launches,
    deepseek_moe,
    deepseek_workspace_bytes,
)
from refmoe.errors import ArgumentError
from refmoe.reference import moe_layer
from refmoe.reference.deepseek.layer import DeepSeekMoELayer, DeepSeekRules
from refmoe.reference.routing import router_logits

needs_nvcc = pytest.mark.skipif(NVCC is None, reason="no nvcc on this machine")


def arguments_of(layer: DeepSeekMoELayer, tokens: np.ndarray, **changes: Any) -> DeepSeekArguments:
    """The arrays of a layer and its router's logits."""
    shared = layer.shared
    given: dict[str, Any] = {
        "x": tokens,
        "gate_up": np.stack([each.gate_up.codes for each in layer.routed]),
        "gate_up_scales": np.stack([each.gate_up.scales for each in layer.routed]),
        "down": np.stack([each.down.codes for each in layer.routed]),
        "down_scales": np.stack([each.down.scales for each in layer.routed]),
        "top_k": layer.top_k,
        "logits": router_logits(tokens, layer.router_weight),
        "correction_bias": layer.correction_bias,
        "groups": layer.groups,
        "top_groups": layer.top_groups,
        "scale": layer.scale,
        "shared": None
        if shared is None
        else (shared.gate_up.codes, shared.gate_up.scales, shared.down.codes, shared.down.scales),
    }
    return DeepSeekArguments(**{**given, **changes})


@needs_nvcc
@pytest.mark.parametrize(
    ("rules", "layout", "tokens"),
    [
        (DeepSeekRules(), "k_major", 5),
        (DeepSeekRules("trtllm", "exact", "ue8m0", "bf16"), "mn_major", 3),
        (None, "mn_major", 1),
        (None, "k_major", 0),
    ],
)
def test_bytes_are_those_of_the_reference(rules: DeepSeekRules | None, layout: str, tokens: int) -> None:
    """From tokens to the output; the reference routes by itself."""
    rng = np.random.default_rng(tokens)
    layer, x = random_layer(rng), random_tokens(rng, tokens)
    device = open_device("ptx")
    found = deepseek_moe(arguments_of(layer, x), device=device, rules=rules, layout=layout, fill=0x7F)
    wanted = moe_layer(x, layer, path="deepseek_fp8", arch=device.arch, rules=rules)
    assert found.tobytes() == wanted.tobytes()


@needs_nvcc
def test_given_ids_a_rank_in_the_middle_and_no_shared_expert() -> None:
    whole = random_layer(np.random.default_rng(4), shared=False)
    x = random_tokens(np.random.default_rng(5), 6)
    routing = moe_layer(x, whole, path="deepseek_fp8", stages=True).stages["routing"]
    part = dataclasses.replace(whole, routed=whole.routed[4:12])
    given = {"topk_ids": routing["ids"], "topk_weights": routing["weights"]}
    absent = {"logits": None, "correction_bias": None, "groups": 1, "top_groups": 1}
    device = open_device("ptx")
    found = deepseek_moe(arguments_of(part, x, **given, **absent, first_expert=4), device=device)
    wanted = moe_layer(x, part, path="deepseek_fp8", arch=device.arch, first_expert=4, **given)
    assert found.tobytes() == wanted.tobytes()
    assert [launch.kernel.source for launch in device.launches] == [
        *("routing", "deepseek_expand", "deepseek_gemm", "deepseek_activation", "deepseek_gemm", "deepseek_finalize")
    ]


@needs_nvcc
@pytest.mark.parametrize("token", [0, 2])
def test_a_token_without_an_answer_is_named(token: int) -> None:
    rng = np.random.default_rng(6)
    layer, x = random_layer(rng), random_tokens(rng, 4)
    logits = router_logits(x, layer.router_weight)
    logits[token, 3] = np.nan
    with pytest.raises(ArgumentError, match=rf"logits: found a score of NaN or \+Inf, .* in token {token}"):
        deepseek_moe(arguments_of(layer, x, logits=logits), device=open_device("ptx"))


@needs_nvcc
@pytest.mark.parametrize(
    ("tokens", "layout", "sizes", "changes"),
    [
        (3, "k_major", {}, {}),
        (2, "k_major", {"shared": False, "hidden": 384}, {"correction_bias": None}),
        (9, "mn_major", {"experts": 4, "groups": 2, "top_groups": 1, "top_k": 2}, {}),
    ],
)
def test_declared_traffic_is_what_the_executor_sees(
    tokens: int,
    layout: str,
    sizes: dict[str, Any],
    changes: dict[str, Any],
    meter: Meter,  # noqa: F811
) -> None:
    rng = np.random.default_rng(7)
    layer = random_layer(rng, **sizes)
    x = random_tokens(rng, tokens, layer.hidden)
    written, steps = deepseek_launches(arguments_of(layer, x, **changes), device=meter, layout=layout, fill=0x7F)
    for step in steps:
        meter.launch(step.plan)
    rows = np.diff(written["offsets"].array.view(np.int64)).tolist()
    assert len(steps) == len(meter.touched) == (10 if layer.shared else 7)
    for step, (reads, writes) in zip(steps, meter.touched, strict=True):
        traffic = step.traffic(rows)
        stated = tuple({name: size for name, size in side.items() if size} for side in (traffic.reads, traffic.writes))
        assert stated == (reads, writes), step.stage
        assert set(writes) <= set(step.outputs)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"x": np.zeros((2, 256), np.float32)}, "x: found float32"),
        ({"down": np.zeros((16, 256), np.uint8)}, "down: found uint8"),
        ({"down": np.zeros((16, 256, 64), np.uint8)}, "intermediate: found 64; needed a positive multiple of 128"),
        ({"gate_up": np.zeros((16, 128, 256), np.uint8)}, "gate_up: found uint8"),
        ({"gate_up_scales": np.zeros((16, 2, 1), np.float32)}, "gate_up_scales: found float32"),
        ({"shared": (1, 2)}, "shared: found"),
        ({"logits": np.zeros((2, 16))}, "logits: found float64"),
        ({"logits": None, "correction_bias": None}, "topk_ids: found NoneType"),
        ({"logits": None}, "correction_bias: found float32"),
        ({"topk_ids": np.zeros((2, 4), np.int32)}, "topk_ids: found ids or weights beside logits"),
        ({"first_expert": 1}, "first_expert: found int 1; needed 0 to 0"),
        ({"top_k": 9}, "k: found 9"),
        (
            {
                **{"logits": None, "correction_bias": None, "topk_weights": np.zeros((2, 4), np.float32)},
                "topk_ids": np.array([[0, 1, 2, 3], [4, 5, 4, 6]], np.int32),
            },
            "topk_ids: found expert 4 twice in token 1; needed 4 different experts",
        ),
    ],
)
def test_refused(changes: dict[str, Any], message: str) -> None:
    rng = np.random.default_rng(8)
    layer, x = random_layer(rng), random_tokens(rng, 2)
    device = Recorder()
    with pytest.raises(ArgumentError, match=message):
        deepseek_moe(arguments_of(layer, x, **changes), device=device)
    assert device.launches == []


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"rules": "trtllm"}, "rules: found the quantizer trtllm; needed deepgemm or exact: others are references"),
        ({"layout": "128x4"}, "layout: found '128x4'"),
        ({"model": "sm100"}, "model: found str 'sm100' on sm_120a"),
        ({"fill": -1}, "fill: found int -1"),
    ],
)
def test_refused_options(options: dict[str, Any], message: str) -> None:
    rng = np.random.default_rng(9)
    layer, x = random_layer(rng), random_tokens(rng, 1)
    with pytest.raises(ArgumentError, match=message):
        deepseek_moe(arguments_of(layer, x), device=open_device("ptx"), **options)


#: A layer without a shared expert, whose experts are all here, and whose choices are given.
ALONE = {"shared_intermediate": 0, "first_expert": 0, "all_experts": 0, "groups": 1, "top_groups": 1}


def test_shapes_and_workspace() -> None:
    sizes = {"tokens": 1, "top_k": 8, "experts": 4, "hidden": 256, "intermediate": 128, **ALONE}
    for wrong in ({"hidden": 200}, {"top_k": 33}, {"experts": 0}, {"shared_intermediate": 100}, {"tokens": -1}):
        with pytest.raises(ArgumentError):
            DeepSeekShape(**{**sizes, **wrong})
    sizes = deepseek_workspace_bytes(DeepSeekShape(1, 8, 256, 7168, 2048, **{**ALONE, "shared_intermediate": 2048}))
    assert sizes["gemm1_out"] == 8 * 4096 * 2
    assert sizes["expand_token_scales"] == 56 * 4
    assert not any("shared" in name for name in deepseek_workspace_bytes(DeepSeekShape(1, 8, 4, 256, 128, **ALONE)))
    with pytest.raises(ArgumentError, match="logits"):
        DeepSeekOptions(DeepSeekRules(), logits="fp16", layout="k_major", scale=1.0)
