"""Sigmoid routing over groups: equal to its specification, ties, groups, refusals, and what must hold exactly."""

from __future__ import annotations

import itertools
from fractions import Fraction
from typing import Any

import numpy as np
import pytest
from support.fp32_values import BF16, CORNERS, FINITE, bits, same_bytes
from support.selection.thinned import thinned

from refmoe.errors import ArgumentError
from refmoe.reference.deepseek.routing import RULES, route_sigmoid_grouped_topk, sigmoid
from refmoe.reference.scalar.deepseek.routing import route_sigmoid_grouped_topk as specified
from refmoe.reference.scalar.deepseek.routing import sigmoid as specified_sigmoid

V3 = {"k": 8, "groups": 8, "top_groups": 4}


def held_against_specification(
    logits: np.ndarray, bias: np.ndarray | None, k: int, groups: int, top_groups: int, scale: float = 2.5
) -> None:
    for rule in RULES:
        ids, weights = route_sigmoid_grouped_topk(logits, bias, k, groups, top_groups, scale, rule=rule)
        factor = bits(np.array([scale], np.float32))[0]
        offsets = None if bias is None else bits(bias)
        wanted = [specified(row, offsets, k, groups, top_groups, factor, rule) for row in bits(logits)]
        assert ids.dtype == np.int32
        assert ids.tolist() == [list(row.ids) for row in wanted]
        assert same_bytes(weights, [row.weights for row in wanted])


@pytest.mark.parametrize(
    ("tokens", "experts", "k", "groups", "top_groups"),
    [(1, 256, 8, 8, 4), (1, 160, 6, 8, 3), (1, 384, 8, 1, 1), (5, 16, 3, 4, 2), (4, 12, 5, 4, 2), (3, 2, 1, 1, 1),
     (1, 512, 32, 32, 7), (2, 64, 32, 32, 16)],
)  # fmt: skip
@pytest.mark.parametrize("dtype", thinned([pytest.param(np.float32, id="fp32"), pytest.param(BF16, id="bf16")], 4))
def test_random_logits(tokens: int, experts: int, k: int, groups: int, top_groups: int, dtype: np.dtype) -> None:
    rng = np.random.default_rng([experts, groups])
    logits = (rng.standard_normal((tokens, experts)) * 2).astype(dtype)
    held_against_specification(logits, None, k, groups, top_groups)
    held_against_specification(logits, rng.standard_normal(experts, np.float32), k, groups, top_groups, 1.0 / 3)


@pytest.mark.parametrize("seed", range(8))
def test_ties_corners_and_subnormals(seed: int) -> None:
    """Few different logits and biases, so that groups and experts tie; sums that overflow, scores that cancel to 0."""
    rng = np.random.default_rng(seed)
    few = rng.choice(np.concatenate([CORNERS[~np.isnan(CORNERS)], np.float32([0, -0.0, 1, -1])]), 4)
    biases = rng.choice(np.concatenate([FINITE, np.float32([-np.inf, -0.5, 0, -0.0, 2.0**-30, 3e38])]), 3)
    biases[0] = 0.0
    logits = rng.choice(few, (6, 24)).astype(np.float32)
    bias = rng.choice(biases, 24).astype(np.float32)
    # Of every group an expert or two are finite: a token needs k of them.
    bias[::3] = rng.choice(biases[np.isfinite(biases) & (np.abs(biases) < 1e38)], 8)
    held_against_specification(logits, bias, 4, 6, 3)


def test_the_sigmoid_is_its_sequence_on_corners_and_at_its_edges() -> None:
    edges = np.float32([-104, -103.97, -88.7228, -87.3, -17.33, -16.7, 0, 16.6, 17.4, 88.72, 88.73, 103.98])
    near = np.concatenate([np.nextafter(edges, np.float32(side)) for side in (-np.inf, np.inf)])
    values = np.concatenate([edges, near, CORNERS])
    assert same_bytes(sigmoid(values), [specified_sigmoid(x) for x in bits(values)])
    assert sigmoid(np.float32([-np.inf, np.inf, np.nan])).view(np.uint32).tolist() == [0, 0x3F800000, 0x7FFFFFFF]


def test_equal_scores_go_to_the_lower_group_and_the_lower_expert() -> None:
    logits = np.zeros((1, 16), np.float32)
    ids, weights = route_sigmoid_grouped_topk(logits, None, 3, 4, 2, 2.5)
    assert ids.tolist() == [[0, 1, 2]]
    assert weights.tolist() == [[np.float32(np.float32(1 / 3) * 2.5)] * 3]
    # The second half ties above the first: its two groups are kept, of its experts the lowest.
    bias = np.repeat(np.float32([0, 1]), 8)
    assert route_sigmoid_grouped_topk(logits, bias, 5, 4, 2, 2.5)[0].tolist() == [[8, 9, 10, 11, 12]]


def test_the_best_expert_is_dropped_with_its_group() -> None:
    """One outstanding expert does not save its group: the two largest count."""
    logits = np.float32([[20, -20, -20, 1, 1, 0, 1, 1, 0]])
    ids, _ = route_sigmoid_grouped_topk(logits, None, 2, 3, 2, 1.0)
    assert ids.tolist() == [[3, 4]]
    # Of a larger group too, the two largest alone: a third does not count.
    third = np.float32([[1, 1, 1, 1, 2, 2, -9, -9]])
    assert route_sigmoid_grouped_topk(third, None, 2, 2, 1, 1.0)[0].tolist() == [[4, 5]]


def test_a_dropped_group_is_below_any_number() -> None:
    """Scores that the bias makes negative still beat those of a dropped group, which are not set to 0."""
    bias = np.float32([-3, -3, -5, -5])
    ids, weights = route_sigmoid_grouped_topk(np.float32([[1, 0, 2, 2]]), bias, 2, 2, 1, 1.0)
    assert ids.tolist() == [[0, 1]]
    assert weights[0, 0] > weights[0, 1] > 0


def test_weights_are_those_of_the_unbiased_scores() -> None:
    logits, bias = np.float32([[0, 0, 0, 0]]), np.float32([9, 4, 2, 0])
    ids, weights = route_sigmoid_grouped_topk(logits, bias, 4, 1, 1, 2.5)
    assert ids.tolist() == [[0, 1, 2, 3]]
    assert (weights == np.float32(0.625)).all()


def test_all_scores_zero_weigh_nothing_by_one_rule_and_are_nan_by_the_other() -> None:
    logits = np.full((1, 8), -200, np.float32)
    assert (route_sigmoid_grouped_topk(logits, None, 2, 2, 1, 2.5)[1] == 0).all()
    weights = route_sigmoid_grouped_topk(logits, None, 2, 2, 1, 2.5, rule="trtllm")[1]
    assert (weights.view(np.uint32) == 0x7FFFFFFF).all()


def test_the_rules_differ_and_agree_to_three_units() -> None:
    """The number of roundings is the same; their places are not."""
    logits = np.random.default_rng(1).standard_normal((64, 256), np.float32)
    ids, ours = route_sigmoid_grouped_topk(logits, None, **V3, scale=2.5)
    same, theirs = route_sigmoid_grouped_topk(logits, None, **V3, scale=2.5, rule="trtllm")
    assert ids.tobytes() == same.tobytes()
    distance = np.abs(ours.view(np.int32) - theirs.view(np.int32))
    assert 0 < distance.max() <= 3
    # The exact weight of the rounded scores: each rule is k + 1 roundings at most from it.
    scores = np.take_along_axis(sigmoid(logits), ids, axis=1)
    for token, rank in itertools.product(range(4), range(8)):
        exact = Fraction(5, 2) * Fraction(float(scores[token, rank])) / sum(Fraction(float(s)) for s in scores[token])
        for weights in (ours, theirs):
            assert abs(Fraction(float(weights[token, rank])) / exact - 1) < Fraction(11, 2**24)


def test_a_token_does_not_depend_on_its_neighbours() -> None:
    logits = np.random.default_rng(3).standard_normal((9, 40)).astype(np.float32)
    ids, weights = route_sigmoid_grouped_topk(logits, None, 4, 5, 2, 2.5)
    for token in range(9):
        alone = route_sigmoid_grouped_topk(logits[token : token + 1], None, 4, 5, 2, 2.5)
        assert alone[0].tobytes() == ids[token].tobytes()
        assert alone[1].tobytes() == weights[token].tobytes()


def test_relabelling_groups_and_experts_within_a_group_permutes_the_ids() -> None:
    """Without ties: the weights stay byte for byte."""
    rng = np.random.default_rng(4)
    logits = rng.standard_normal((7, 40)).astype(np.float32)
    names = (rng.permutation(5)[:, None] * 8 + np.stack([rng.permutation(8) for _ in range(5)])).reshape(-1)
    relabelled = np.empty_like(logits)
    relabelled[:, names] = logits
    ids, weights = route_sigmoid_grouped_topk(logits, None, 6, 5, 3, 2.5)
    new_ids, new_weights = route_sigmoid_grouped_topk(relabelled, None, 6, 5, 3, 2.5)
    assert (names[ids] == new_ids).all()
    assert weights.tobytes() == new_weights.tobytes()


def test_one_group_is_no_group() -> None:
    logits = np.random.default_rng(5).standard_normal((6, 48)).astype(np.float32)
    ids, _ = route_sigmoid_grouped_topk(logits, None, 6, 1, 1, 1.0)
    all_kept, _ = route_sigmoid_grouped_topk(logits, None, 6, 8, 8, 1.0)
    assert ids.tobytes() == all_kept.tobytes()
    assert ids.tolist() == np.argsort(-sigmoid(logits), axis=1, kind="stable")[:, :6].tolist()


@pytest.mark.parametrize(
    ("change", "bias", "message"),
    [
        ({(1, 2): np.nan}, {}, "logits: found a score of nan for expert 2 of token 1; needed scores below"),
        ({(1, 2): -np.nan}, {}, "logits: found a score of nan for expert 2 of token 1"),
        ({}, {5: np.inf}, "logits: found a score of inf for expert 5 of token 0"),
        ({}, {5: np.nan}, "logits: found a score of nan for expert 5 of token 0"),
        (
            {(2, 0): 5, (2, 1): 5},
            {2: -np.inf, 3: -np.inf, 4: -np.inf, 5: -np.inf},
            "found 2 finite scores in the groups that token 0 keeps; needed at least k = 3",
        ),
    ],
)
def test_refused_tokens_are_named(change: dict, bias: dict, message: str) -> None:
    logits, biases = np.zeros((3, 8), np.float32), np.zeros(8, np.float32)
    for where, value in change.items():
        logits[where] = value
    for expert, value in bias.items():
        biases[expert] = value
    with pytest.raises(ArgumentError, match=message):
        route_sigmoid_grouped_topk(logits, biases, 3, 2, 1, 2.5)


def test_an_infinite_logit_and_an_infinite_group_have_an_answer() -> None:
    logits = np.float32([[np.inf, -np.inf, 0, 0]])
    assert route_sigmoid_grouped_topk(logits, None, 2, 2, 1, 1.0)[0].tolist() == [[0, 1]]
    bias = np.float32([2e38, 2e38, 3e38, 3e38])  # both groups overflow to +Inf: the lower one is kept
    assert route_sigmoid_grouped_topk(np.zeros((1, 4), np.float32), bias, 2, 2, 1, 1.0)[0].tolist() == [[0, 1]]


@pytest.mark.parametrize(
    ("change", "argument"),
    [
        ({"logits": np.zeros((2, 8))}, "logits"),
        ({"logits": np.zeros(8, np.float32)}, "logits"),
        ({"logits": np.zeros((2, 1), np.float32), "groups": 1, "k": 1}, "logits"),
        ({"logits": np.zeros((2, 514), np.float32)}, "logits"),
        ({"bias": np.zeros(8)}, "bias"),
        ({"bias": np.zeros(7, np.float32)}, "bias"),
        ({"groups": 3}, "groups"),
        ({"groups": 8}, "groups"),
        ({"groups": 0}, "groups"),
        ({"logits": np.zeros((2, 66), np.float32), "groups": 33}, "groups"),
        ({"top_groups": 0}, "top_groups"),
        ({"top_groups": 3}, "top_groups"),
        ({"k": 0}, "k"),
        ({"k": 5}, "k"),
        ({"k": 2.0}, "k"),
        ({"scale": np.inf}, "scale"),
        ({"scale": "2.5"}, "scale"),
        ({"rule": "softmax"}, "rule"),
    ],
)
def test_refused_arguments(change: dict[str, Any], argument: str) -> None:
    arguments: dict[str, Any] = {
        **{"logits": np.zeros((2, 8), np.float32), "bias": None},
        **{"k": 2, "groups": 2, "top_groups": 1, "scale": 2.5},
    }
    with pytest.raises(ArgumentError) as refused:
        route_sigmoid_grouped_topk(**{**arguments, **change})
    assert refused.value.argument == argument
