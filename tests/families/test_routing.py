"""Cases of routing: what their fills promise, what is refused, what a mismatch says."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from refmoe.catalog import parse_case
from refmoe.errors import ArgumentError
from refmoe.families.routing import ChoiceIds, ChoiceRows, FirstRows, RefusedToken, RowChoices, Weights
from refmoe.reference.routing import route_softmax_topk


def inputs(text: str) -> Any:
    case = parse_case(text)
    return case.family.inputs(case)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("routing:f32:m4k32e8t2:gaussian:seed1@ptx", "m<rows>e<experts>t<experts per token>"),
        ("routing:f32:m4e8t2:given:seed1@ptx", "fill: found 'given'; needed given for dtype ids"),
        ("routing:ids:m4e8t2:gaussian:seed1@ptx", "fill: found 'gaussian'; needed given for dtype ids"),
        ("routing:f32:m4e8t2:gaussian:routing=same-experts:seed1@ptx", "routing: .* logits choose for themselves"),
        ("routing:ids:m4e8t2:given:bias=distinct:seed1@ptx", "bias: found 'distinct'; needed logits with it"),
        ("routing:f32:m4e8t9:gaussian:seed1@ptx", "t of at most the 8 experts"),
    ],
)
def test_what_means_nothing_is_refused(text: str, message: str) -> None:
    with pytest.raises(ArgumentError, match=message):
        parse_case(text)


def test_ties_are_cut_by_k_and_the_last_of_equals_would_be_another() -> None:
    logits = inputs("routing:f32:m16e40t4:ties:seed7@ptx")["logits"]
    ids, _ = route_softmax_topk(logits, 4)
    last = np.take_along_axis(logits, ids, axis=1)[:, -1:]
    chosen = (np.take_along_axis(logits, ids, axis=1) == last).sum(axis=1)
    assert ((logits == last).sum(axis=1) > chosen).sum() >= 12  # equals of the last choice are left over


def test_zeros_of_both_signs_stand_at_the_cut() -> None:
    logits = inputs("routing:f32:m16e40t4:signed-zeros:seed7@ptx")["logits"]
    ids, _ = route_softmax_topk(logits, 4)
    negative = np.signbit(np.take_along_axis(logits, ids, axis=1)) & (np.take_along_axis(logits, ids, axis=1) == 0)
    left_over = [(token == 0).sum() > 4 and (np.signbit(token) & (token == 0)).any() for token in logits]
    assert negative.any()
    assert all(left_over)


def test_refused_tokens_are_of_every_kind_and_the_first_is_not_token_0() -> None:
    case = parse_case("routing:f32:m16e40t4:refused:seed7@ptx")
    given = case.family.inputs(case)
    logits = given["logits"]
    assert logits is not None
    assert {0x7FC00000, 0xFFC00000, 0x7F800000, 0xFF800000} <= set(logits.view(np.uint32).reshape(-1).tolist())
    expected = case.family.expect(case, given).outputs
    assert ~expected["refused"][0] == 1
    with pytest.raises(ArgumentError, match="token 1"):
        route_softmax_topk(logits, 4)


def test_what_a_mismatch_says() -> None:
    logits = np.array([[1.5, -2.0, 1.5]], np.float32)
    ids = np.array([[4, 9], [7, 2]], np.int32)
    none = 0xFFFFFFFF
    assert ChoiceIds("topk_ids", logits, 2).describe(1, 2, 0) == (
        "token 0 choice 1: kernel expert 2 (logit 0x3FC00000 (1.5)) reference expert 0 (logit 0x3FC00000 (1.5))",
        "",
    )
    assert "which does not exist" in ChoiceIds("topk_ids", logits, 2).describe(0, none, 0)[0]
    assert Weights("topk_weights", ids).describe(3, 0x3F000001, 0x3F000000)[0] == (
        "token 1 choice 1 (expert 2): kernel 0x3F000001 (0.50000006) reference 0x3F000000 (0.5), 1 ulp"
    )
    assert RefusedToken("refused").describe(0, 0, none - 3)[0].endswith("kernel no token reference token 3")
    assert FirstRows("offsets", 4).describe(4, 3, 2)[0] == "the rows in use: kernel 3 reference 2"
    assert FirstRows("offsets", 4).describe(1, 3, 2)[0].startswith("the first row of local expert 1:")
    assert (
        ChoiceRows("map", ids).describe(1, none, 5)[0] == "token 1 choice 0 (expert 7): kernel no row reference row 5"
    )
    assert RowChoices("map", 2).describe(0, 3, none)[0] == "row 0: kernel token 1 choice 1 reference nobody's"
