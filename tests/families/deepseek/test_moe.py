"""A whole layer of DeepSeek-V3 as a family: its true sizes, its shared expert, and TensorRT-LLM's rules on SM100."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import refmoe
from refmoe.catalog import parse_case
from refmoe.draw import Draw
from refmoe.errors import ArgumentError
from refmoe.families.deepseek.moe import DEEPSEEK_MOE
from refmoe.reference.block_fp8 import BlockFP8Tensor
from refmoe.reference.deepseek.layer import BlockFP8Expert, DeepSeekMoELayer
from refmoe.reference.deepseek.routing import route_sigmoid_grouped_topk
from refmoe.reference.moe import moe_layer

CASES = [
    "deepseek_moe:bf16:m3k128n256e8t2:gaussian:model=sm100:router=given:rule=trtllm:policy=trtllm:order=bf16:seed7",
    "deepseek_moe:bf16:m2k256n128e4t2:fingerprint:model=sm100:router=given:rule=trtllm:policy=trtllm:order=bf16"
    ":shared=one:seed7",
]
TRTLLM: dict[str, Any] = {
    "model": "sm100",
    "policy": "trtllm",
    "rule": "trtllm",
    "scales": "fp32",
    "order": "bf16",
    "arrays": "numpy",
}


def layer_of(experts: list[Any], shared: list[Any], x: Any, top_k: int) -> DeepSeekMoELayer:
    def expert(gate_up: Any, gate_up_scales: Any, down: Any, down_scales: Any) -> BlockFP8Expert:
        return BlockFP8Expert(
            *(BlockFP8Tensor(*each, "128x128") for each in ((gate_up, gate_up_scales), (down, down_scales)))
        )

    routed = [expert(*each) for each in zip(*experts, strict=True)]
    return DeepSeekMoELayer(routed, x.shape[1], experts[2].shape[2], top_k, expert(*shared))


def trtllm(
    x: Any, topk_ids: Any, topk_weights: Any, gate_up: Any, gate_up_scales: Any, down: Any, down_scales: Any,
    shared_gate_up: Any, shared_gate_up_scales: Any, shared_down: Any, shared_down_scales: Any,
) -> Any:  # fmt: skip
    """Somebody's layer: by the name of the system."""
    weights = [gate_up, gate_up_scales, down, down_scales]
    shared = [shared_gate_up, shared_gate_up_scales, shared_down, shared_down_scales]
    layer = layer_of(weights, shared, x, topk_ids.shape[1])
    chosen = {"topk_ids": topk_ids, "topk_weights": topk_weights}
    return moe_layer(x, layer, path="deepseek_fp8", arch="sm_100a", rules="trtllm", **chosen)


def one_bit_off(
    x: Any, topk_ids: Any, topk_weights: Any, gate_up: Any, gate_up_scales: Any, down: Any, down_scales: Any,
    shared_gate_up: Any, shared_gate_up_scales: Any, shared_down: Any, shared_down_scales: Any,
) -> Any:  # fmt: skip
    weights = gate_up, gate_up_scales, down, down_scales
    shared = shared_gate_up, shared_gate_up_scales, shared_down, shared_down_scales
    made = trtllm(x, topk_ids, topk_weights, *weights, *shared)
    made.view(np.uint16)[-1, -1] ^= 1
    return made


def test_a_layer_is_held_to_trtllms_rules_on_sm100() -> None:
    cases = [f"{case}@ptx" for case in CASES]
    found = refmoe.check(trtllm, "deepseek_moe", cases=cases, **TRTLLM)
    assert {result.verdict.value for result in found.results} == {"PASS"}
    wrong = refmoe.check(one_bit_off, "deepseek_moe", cases=cases[:1], **TRTLLM)
    assert [result.verdict.value for result in wrong.results] == ["MISMATCH"]


@pytest.mark.parametrize(("options", "words"), [({"scales": "ue8m0"}, "fp32"), ({}, "finite numbers")])
def test_what_trtllms_quantizers_do_not_say_is_no_case(options: dict[str, str], words: str) -> None:
    fill = "gaussian" if options else "specials"
    case = next(each for each in DEEPSEEK_MOE.level("default") if each.fill == fill and each.scales == "fp32")
    with pytest.raises(ArgumentError, match=words):
        case.having(policy="trtllm", **options)


def test_no_kernel_of_refmoes_has_them() -> None:
    for text in CASES:
        case = parse_case(f"{text}@ptx")
        assert "is for a kernel of yours" in (DEEPSEEK_MOE.lacks(case, "sm_120a") or "")


def test_the_full_level_has_deepseek_v3s_own_layer() -> None:
    cases = [each for each in DEEPSEEK_MOE.level("full") if each.shared == "one" and each.shape.k == 7168]
    assert {each.model for each in cases} == {"sm120", "sm90_mma_fp8", "sm90_wgmma_fp8"}
    for case in cases:
        shape = case.shape
        assert (shape.m, shape.n, shape.t, shape.e * case.ranks, case.groups, case.top_groups) == (
            1,
            2048,
            8,
            256,
            8,
            4,
        )

    # As the family draws them: of the token's choices some lie on this rank.
    draw = Draw("router", case.seed)
    logits, bias = (draw.normal((1, 256)) * 2).astype(np.float32), (draw.normal((256,)) / 7).astype(np.float32)
    ids, _ = route_sigmoid_grouped_topk(logits, bias, k=8, groups=8, top_groups=4, scale=2.5, rule=case.rule)
    assert ((ids >= case.first_expert) & (ids < case.first_expert + shape.e)).sum() >= 3
