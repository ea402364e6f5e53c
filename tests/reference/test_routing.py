"""Routing: equal to its specification, ties and signed zeros, refusals, and what must hold exactly."""

from __future__ import annotations

import numpy as np
import pytest
from support.fp32_values import BF16, FINITE, bits, same_bytes
from support.selection.thinned import thinned

from refmoe.errors import ArgumentError
from refmoe.reference import route_softmax_topk, router_logits
from refmoe.reference.scalar.arithmetic import add, fma
from refmoe.reference.scalar.routing import route_softmax_topk as specified


def held_against_specification(logits: np.ndarray, k: int, bias: np.ndarray | None = None) -> None:
    ids, weights = route_softmax_topk(logits, k, bias=bias)
    wanted = [specified(row, k, None if bias is None else bits(bias)) for row in bits(logits)]
    assert ids.dtype == np.int32
    assert ids.tolist() == [list(row.ids) for row in wanted]
    assert same_bytes(weights, [row.weights for row in wanted])


@pytest.mark.parametrize(
    ("tokens", "experts", "k"), thinned([(1, 32, 4), (6, 128, 4), (5, 8, 8), (3, 1, 1), (2, 1024, 32)], 3)
)
@pytest.mark.parametrize("dtype", [np.float32, BF16], ids=["fp32", "bf16"])
def test_random_logits(tokens: int, experts: int, k: int, dtype: np.dtype) -> None:
    rng = np.random.default_rng(experts)
    logits = (rng.standard_normal((tokens, experts)) * 2).astype(dtype)
    held_against_specification(logits, k)
    held_against_specification(logits, k, rng.standard_normal(experts, np.float32))


@pytest.mark.parametrize("seed", range(6))
def test_ties_zeros_and_corners(seed: int) -> None:
    """Few different values, so that most choices are between equals; -Inf says never; subnormals and huge spreads."""
    rng = np.random.default_rng(seed)
    values = np.concatenate([FINITE, np.array([-np.inf, 0.0, -0.0, 0.0, -0.0], np.float32)])
    few = rng.choice(values, 5)
    few[0] = 1.0
    logits = rng.choice(few, (8, 24)).astype(np.float32)
    logits[:, :6] = np.float32(-0.0) if seed % 2 else np.float32(1.0)
    held_against_specification(logits, 4)


def test_equal_values_go_to_the_lower_index() -> None:
    logits = np.array([[-0.0, 0.0, -0.0, 1.0, 1.0], [-3.0, -3.0, -3.0, -3.0, -3.0]], np.float32)
    ids, weights = route_softmax_topk(logits, 4)
    assert ids.tolist() == [[3, 4, 0, 1], [0, 1, 2, 3]]
    assert (weights[1] == 0.25).all()


def test_a_token_does_not_depend_on_its_neighbours() -> None:
    rng = np.random.default_rng(3)
    logits = rng.standard_normal((9, 40)).astype(np.float32)
    ids, weights = route_softmax_topk(logits, 4)
    for token in range(9):
        alone = route_softmax_topk(logits[token : token + 1], 4)
        assert alone[0].tobytes() == ids[token].tobytes()
        assert alone[1].tobytes() == weights[token].tobytes()


def test_relabelling_experts_permutes_the_ids() -> None:
    """Without ties: the weights stay byte for byte."""
    rng = np.random.default_rng(4)
    logits, names = rng.standard_normal((7, 33)).astype(np.float32), rng.permutation(33)
    relabelled = np.empty_like(logits)
    relabelled[:, names] = logits
    ids, weights = route_softmax_topk(logits, 5)
    new_ids, new_weights = route_softmax_topk(relabelled, 5)
    assert (names[ids] == new_ids).all()
    assert weights.tobytes() == new_weights.tobytes()


def test_one_expert_has_weight_one_and_no_token_is_fine() -> None:
    assert (route_softmax_topk(np.full((3, 5), -1e30, np.float32), 1)[1] == 1).all()
    ids, weights = route_softmax_topk(np.zeros((0, 5), np.float32), 2)
    assert (ids.shape, weights.shape) == ((0, 2), (0, 2))


def test_bias_counts_in_the_choice_and_in_the_weight() -> None:
    logits, bias = np.zeros((1, 3), np.float32), np.array([0, 2, 1], np.float32)
    ids, weights = route_softmax_topk(logits, 2, bias=bias)
    assert ids.tolist() == [[1, 2]]
    assert weights[0, 0] > weights[0, 1]


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({(1, 2): np.nan}, "logits: found nan for expert 2 of token 1"),
        ({(2, 0): np.inf}, "logits: found inf for expert 0 of token 2"),
        (
            {(1, 1): -np.inf, (1, 2): -np.inf, (1, 3): -np.inf},
            "found 1 finite values in token 1; needed at least k = 2",
        ),
    ],
)
def test_refused_tokens_are_named(change: dict, message: str) -> None:
    logits = np.zeros((3, 4), np.float32)
    for where, value in change.items():
        logits[where] = value
    with pytest.raises(ArgumentError, match=message):
        route_softmax_topk(logits, 2)


def test_a_bias_can_make_a_token_refused() -> None:
    logits = np.full((1, 2), 3e38, np.float32)
    with pytest.raises(ArgumentError, match="inf for expert 1 of token 0"):
        route_softmax_topk(logits, 1, bias=np.array([0, 3e38], np.float32))


@pytest.mark.parametrize(
    ("logits", "k", "bias", "argument"),
    [
        (np.zeros((2, 4)), 1, None, "logits"),
        (np.zeros(4, np.float32), 1, None, "logits"),
        (np.zeros((2, 0), np.float32), 1, None, "logits"),
        (np.zeros((2, 1025), np.float32), 1, None, "logits"),
        (np.zeros((2, 4), np.float32), 0, None, "k"),
        (np.zeros((2, 4), np.float32), 5, None, "k"),
        (np.zeros((2, 64), np.float32), 33, None, "k"),
        (np.zeros((2, 4), np.float32), 1.5, None, "k"),
        (np.zeros((2, 4), np.float32), 1, np.zeros(4), "bias"),
        (np.zeros((2, 4), np.float32), 1, np.zeros(3, np.float32), "bias"),
    ],
)
def test_refused_arguments(logits: np.ndarray, k: int, bias: np.ndarray | None, argument: str) -> None:
    with pytest.raises(ArgumentError) as refused:
        route_softmax_topk(logits, k, bias=bias)
    assert refused.value.argument == argument


def test_projection_is_a_chain_of_fmas_and_one_addition() -> None:
    rng = np.random.default_rng(12)
    x, weight = (rng.standard_normal((rows, 40)).astype(BF16) for rows in (3, 5))
    bias = rng.standard_normal(5).astype(BF16)
    found = router_logits(x, weight, bias)
    for token in range(3):
        for expert in range(5):
            acc = 0
            for a, b in zip(bits(x)[token], bits(weight)[expert], strict=True):
                acc = fma(a, b, acc)
            assert found.view(np.uint32)[token, expert] == add(acc, bits(bias)[expert])
    assert router_logits(x, weight).tobytes() == router_logits(x, weight, np.zeros(5, np.float32)).tobytes()
    exact = x.astype(np.float64) @ weight.astype(np.float64).T
    assert router_logits(x, weight, model="exact").tobytes() == exact.astype(np.float32).tobytes()


@pytest.mark.parametrize(
    ("arguments", "argument"),
    [
        ({"x": np.zeros((2, 8), np.float32)}, "x"),
        ({"weight": np.zeros((3, 8), np.float32)}, "weight"),
        ({"weight": np.zeros((3, 4), BF16)}, "weight"),
        ({"bias": np.zeros(4, BF16)}, "bias"),
        ({"bias": np.zeros(3)}, "bias"),
        ({"model": "bf16"}, "model"),
        ({"model": "sm120"}, "a_format, b_format"),
    ],
)
def test_refused_arguments_of_the_projection(arguments: dict, argument: str) -> None:
    with pytest.raises(ArgumentError) as refused:
        router_logits(**{"x": np.zeros((2, 8), BF16), "weight": np.zeros((3, 8), BF16), **arguments})
    assert refused.value.argument == argument
