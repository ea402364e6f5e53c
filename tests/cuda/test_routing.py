"""What the routing kernels' host side refuses and launches, and that tokens without an answer are told of."""

from __future__ import annotations

from typing import Any

import ml_dtypes
import numpy as np
import pytest
from support.launch_recorder import Recorder
from support.toolchain import NVCC

from refmoe.cuda import open_device, routing
from refmoe.errors import ArgumentError
from refmoe.reference import build_permutation
from refmoe.reference.routing import route_softmax_topk

needs_nvcc = pytest.mark.skipif(NVCC is None, reason="no nvcc on this machine")


def logits(tokens: int = 3, experts: int = 8) -> Any:
    return np.random.default_rng(tokens).standard_normal((tokens, experts), np.float32)


@pytest.fixture
def device() -> Recorder:
    return Recorder()


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        (
            {"logits": logits().astype(np.float64)},
            r"logits: found float64 \[3, 8\]; needed float32 or bfloat16 \[T, exp",
        ),
        ({"logits": [[0.0]]}, "logits: found list .*; needed float32 or bfloat16"),
        ({"logits": logits()[0]}, r"logits: found float32 \[8\]; needed"),
        ({"logits": logits().T}, r"logits: found strides"),
        ({"logits": np.zeros((2, 1025), np.float32)}, "logits: found 1025 experts; needed 1 to 1024"),
        ({"logits": np.zeros((2, 0), np.float32)}, "logits: found 0 experts; needed 1 to 1024"),
        ({"k": 9}, "k: found int 9 for 8 experts; needed 1 to 8"),
        ({"k": 0}, "k: found int 0 for 8 experts; needed 1 to 8"),
        ({"k": 2.0}, "k: found float 2.0 for 8 experts"),
        ({"logits": logits(2, 64), "k": 33, "num_experts_local": 64}, "k: found int 33 for 64 experts; needed 1 to 32"),
        ({"num_experts_local": 9}, "num_experts_local: found int 9 of 8 experts; needed 1 to 8"),
        ({"num_experts_local": 0}, "num_experts_local: found int 0"),
        ({"first_expert": 1}, "first_expert: found int 1; needed 0 to 0"),
        ({"first_expert": -1, "num_experts_local": 4}, "first_expert: found int -1; needed 0 to 4"),
        ({"bias": np.zeros(7, np.float32)}, r"bias: found float32 \[7\]; needed float32 \[8\]"),
        ({"bias": np.zeros(8, ml_dtypes.bfloat16)}, r"bias: found bfloat16 \[8\]; needed float32 \[8\]"),
        ({"fill": -1}, "fill: found int -1; needed a byte"),
    ],
)
def test_route_refuses(device: Recorder, changes: dict[str, Any], message: str) -> None:
    arguments = {"logits": logits(), "k": 2, "num_experts_local": 8, **changes}
    with pytest.raises(ArgumentError, match=message):
        routing.route(device=device, **arguments)
    assert device.launches == []


@pytest.mark.parametrize(
    ("ids", "changes", "message"),
    [
        (np.zeros((2, 2), np.int64), {}, r"topk_ids: found int64 \[2, 2\]; needed int32 \[2, 2\]"),
        (np.zeros(4, np.int32), {}, r"topk_ids: found int32 \[4\]; needed int32 \[T, k\]"),
        (np.zeros((2, 0), np.int32), {}, "topk_ids: found int 0 ids a token; needed 1 to 32"),
        (np.zeros((2, 33), np.int32), {}, "topk_ids: found int 33 ids a token; needed 1 to 32"),
        (np.array([[0, 1], [5, 5]], np.int32), {}, "topk_ids: found expert 5 twice in token 1; needed 2 different"),
        (np.array([[0, 1]], np.int32), {"num_experts_local": 0}, "num_experts_local: found int 0"),
        (
            np.array([[0, 1]], np.int32),
            {"num_experts_local": 1 << 21},
            "topk_ids: found 2147483650 rows",
        ),
        (np.array([[0, 1]], np.int32), {"first_expert": -1}, "first_expert: found int -1"),
        (np.array([[0, 1]], np.int32), {"fill": 256}, "fill: found int 256"),
    ],
)
def test_permute_refuses(device: Recorder, ids: Any, changes: dict[str, Any], message: str) -> None:
    with pytest.raises(ArgumentError, match=message):
        routing.permute(ids, device=device, **{"num_experts_local": 4, **changes})
    assert device.launches == []


@pytest.mark.parametrize(
    ("tokens", "experts", "launched"),
    [
        (1, 128, [("refmoe_route_few_f32_4", 1, 160)]),  # a thread for each of 129 offsets
        (16, 129, [("refmoe_route_few_f32_8", 1, 512)]),
        (17, 128, [("refmoe_route_choose_f32_4", 3, 256), ("refmoe_route_sort_chosen", 128, 32)]),
        (33, 128, [("refmoe_route_choose_f32_4", 5, 256), ("refmoe_route_sort_chosen", 128, 32)]),
        (1100, 1024, [("refmoe_route_choose_f32_32", 138, 256), ("refmoe_route_sort_chosen", 1024, 288)]),
        (0, 4, [("refmoe_route_few_f32_4", 1, 32)]),
    ],
)
def test_few_tokens_are_one_launch_and_many_two(tokens: int, experts: int, launched: list[Any]) -> None:
    def buffer(name: str) -> Any:
        return name

    maps = routing.MapBuffers(*map(buffer, ("offsets", "to_unpermuted", "to_permuted")))
    sizes = {"tokens": tokens, "all_experts": experts, "top_k": 2, "experts": experts, "first_expert": 0}
    plans = routing.route_plans("f32", "logits", None, "ids", "weights", "refused", "chosen", maps, **sizes)
    assert [(plan.kernel.entry, plan.grid, plan.block) for plan in plans] == launched


@needs_nvcc
@pytest.mark.parametrize("tokens", [1, 16, 17, 33])
def test_bytes_are_those_of_the_references(tokens: int) -> None:
    values, bias = logits(tokens, 24), logits(1, 24)[0]
    found = routing.route(values, 3, 8, device=open_device("ptx"), bias=bias, first_expert=8, fill=0x7F)
    ids, weights = route_softmax_topk(values, 3, bias=bias)
    maps = build_permutation(ids, 8, 8)
    assert found.topk_ids.tobytes() == ids.tobytes()
    assert found.topk_weights.tobytes() == weights.tobytes()
    assert found.offsets.tobytes() == maps.offsets.tobytes()
    assert found.permuted_to_unpermuted.tobytes() == maps.permuted_to_unpermuted.tobytes()
    assert found.unpermuted_to_permuted.tobytes() == maps.unpermuted_to_permuted.tobytes()


@needs_nvcc
@pytest.mark.parametrize("tokens", [5, 20])
@pytest.mark.parametrize("bad", [np.nan, -np.nan, np.inf])
def test_a_token_without_an_answer_is_named_and_harms_no_other(tokens: int, bad: float) -> None:
    device, values = open_device("ptx"), logits(tokens)
    clean = routing.route(values, 2, 8, device=device)
    values[[2, 4], [7, 0]] = bad
    with pytest.raises(ArgumentError, match=r"logits: found NaN, .* in token 2; needed at least k = 2 finite"):
        routing.route(values, 2, 8, device=device)
    routed, refused = routing.try_route(values, 2, 8, device=device)
    assert refused == 2
    assert routed.topk_ids[[2, 4]].tolist() == [[0, 1], [0, 1]]
    assert (routed.topk_weights.view(np.uint32)[[2, 4]] == 0x7FFFFFFF).all()
    others = np.setdiff1d(np.arange(tokens), [2, 4])
    assert routed.topk_ids[others].tobytes() == clean.topk_ids[others].tobytes()
    assert routed.topk_weights[others].tobytes() == clean.topk_weights[others].tobytes()


@needs_nvcc
def test_never_is_no_answer_only_where_it_would_be_chosen() -> None:
    device, values = open_device("ptx"), np.full((1, 8), -np.inf, np.float32)
    values[0, [6, 3]] = -4, -3
    assert routing.route(values, 2, 8, device=device).topk_ids.tolist() == [[3, 6]]
    with pytest.raises(ArgumentError, match="fewer than 3 finite values in token 0"):
        routing.route(values, 3, 8, device=device)


def test_the_word_for_a_refused_token() -> None:
    assert routing.refused_token(0) is None
    assert routing.refused_token(0xFFFFFFFF) == 0
    assert routing.refused_token(0xFFFFFFFF - 41) == 41
    assert routing.refused_token(0xFFFFFFFF - 70_000) == 70_000
    assert routing.refused_token(1) == 0xFFFFFFFE
