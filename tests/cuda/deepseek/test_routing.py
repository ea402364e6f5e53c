"""What the host side of the grouped router refuses and launches, and that tokens without an answer are told of."""

from __future__ import annotations

from typing import Any

import ml_dtypes
import numpy as np
import pytest
from support.launch_recorder import Recorder
from support.toolchain import NVCC

from refmoe.cuda import open_device
from refmoe.cuda.deepseek.routing import deepseek_route_kernel, route_grouped, try_route_grouped
from refmoe.errors import ArgumentError
from refmoe.reference import build_permutation
from refmoe.reference.deepseek.routing import route_sigmoid_grouped_topk

needs_nvcc = pytest.mark.skipif(NVCC is None, reason="no nvcc on this machine")

SIZES: dict[str, Any] = {"k": 2, "groups": 4, "top_groups": 2, "scale": 2.5, "num_experts_local": 16}


def logits(tokens: int = 3, experts: int = 16) -> Any:
    return np.random.default_rng(tokens).standard_normal((tokens, experts), np.float32)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"logits": logits().astype(np.float64)}, r"logits: found float64 \[3, 16\]; needed float32 or bfloat16"),
        ({"logits": logits(16, 3).T}, "logits: found strides"),
        ({"logits": np.zeros((2, 516), np.float32)}, r"logits: found float32 \[2, 516\]; needed 2 to 512 experts"),
        ({"bias": np.zeros(16, ml_dtypes.bfloat16)}, r"bias: found bfloat16 \[16\]; needed float32 \[16\]"),
        ({"k": 9}, "k: found 9; needed at most 8, for 2 groups of 4 experts"),
        ({"groups": 3}, "groups: found 3 of 16 experts; needed 1 to 32 groups of one size"),
        ({"groups": 16}, "groups: found 16 of 16 experts"),
        ({"top_groups": 5}, "top_groups: found 5; needed at most 4"),
        ({"scale": float("nan")}, "scale: found float nan; needed a finite number"),
        ({"rule": "vllm"}, "rule: found str 'vllm'; needed deepseek or trtllm"),
        ({"num_experts_local": 17}, "num_experts_local: found int 17 of 16 experts; needed 1 to 16"),
        ({"num_experts_local": 0}, "num_experts_local: found int 0"),
        ({"num_experts_local": 4, "first_expert": 13}, "first_expert: found int 13; needed 0 to 12"),
        ({"fill": -1}, "fill: found int -1; needed a byte"),
    ],
)
def test_refused(changes: dict[str, Any], message: str) -> None:
    device = Recorder()
    arguments = {"logits": logits(), "bias": None, **SIZES, **changes}
    with pytest.raises(ArgumentError, match=message):
        route_grouped(device=device, **arguments)
    assert device.launches == []


@pytest.mark.parametrize(
    ("experts", "entry"),
    [(16, "f32_8_deepseek"), (256, "f32_8_deepseek"), (257, "f32_16_deepseek"), (512, "f32_16_deepseek")],
)
def test_the_kernel_has_room_for_the_experts(experts: int, entry: str) -> None:
    assert deepseek_route_kernel("f32", experts, "deepseek").entry == f"refmoe_deepseek_route_{entry}"


@needs_nvcc
@pytest.mark.parametrize("tokens", [0, 1, 17])
@pytest.mark.parametrize("rule", ["deepseek", "trtllm"])
def test_bytes_are_those_of_the_references(tokens: int, rule: str) -> None:
    values, bias = logits(tokens, 48), logits(1, 48)[0] / 8
    sizes = {"k": 5, "groups": 6, "top_groups": 3, "scale": 2.5}
    found = route_grouped(
        values, bias, **sizes, num_experts_local=16, device=open_device("ptx"), rule=rule, first_expert=16, fill=0x7F
    )
    ids, weights = route_sigmoid_grouped_topk(values, bias, **sizes, rule=rule)
    maps = build_permutation(ids, 16, 16)
    assert found.topk_ids.tobytes() == ids.tobytes()
    assert found.topk_weights.tobytes() == weights.tobytes()
    assert found.offsets.tobytes() == maps.offsets.tobytes()
    assert found.permuted_to_unpermuted.tobytes() == maps.permuted_to_unpermuted.tobytes()
    assert found.unpermuted_to_permuted.tobytes() == maps.unpermuted_to_permuted.tobytes()


@needs_nvcc
@pytest.mark.parametrize("bad", [np.nan, -np.nan])
def test_a_token_without_an_answer_is_named_and_harms_no_other(bad: float) -> None:
    device, values = open_device("ptx"), logits(9)
    clean = route_grouped(values, None, **SIZES, device=device)
    values[[2, 4], [7, 0]] = bad
    with pytest.raises(ArgumentError, match=r"logits: found a score of NaN or \+Inf, .* in token 2; needed at least"):
        route_grouped(values, None, **SIZES, device=device)
    routed, refused = try_route_grouped(values, None, **SIZES, device=device)
    assert refused == 2
    assert routed.topk_ids[[2, 4]].tolist() == [[0, 1], [0, 1]]
    assert (routed.topk_weights.view(np.uint32)[[2, 4]] == 0x7FFFFFFF).all()
    others = np.setdiff1d(np.arange(9), [2, 4])
    assert routed.topk_ids[others].tobytes() == clean.topk_ids[others].tobytes()
    assert routed.topk_weights[others].tobytes() == clean.topk_weights[others].tobytes()
