"""Cases of routing, activation and finalize: what their fills promise, what is refused, what a mismatch says."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from refmoe.errors import ArgumentError
from refmoe.families.case import parse_case
from refmoe.families.quantize_expand import RUNS
from refmoe.families.step_stages import ChoiceIds, ChoiceRows, FirstRows, RefusedToken, RowChoices, TokenSums, Weights
from refmoe.families.suites import GROUPS, LEVELS, list_cases
from refmoe.reference.activation import swiglu
from refmoe.reference.routing import route_softmax_topk

FAMILIES = ("routing", "activation", "finalize")


def inputs(text: str) -> Any:
    case = parse_case(text)
    return RUNS[case.family].inputs(case)


@pytest.mark.parametrize("level", LEVELS)
def test_the_group_lists_its_families_and_every_case_is_its_string(level: str) -> None:
    cases = list_cases(level, ["moe"], arch="sm_120a")
    assert {case.family for case in cases} >= set(FAMILIES)
    assert set(FAMILIES) <= set(GROUPS["moe"])
    assert all(parse_case(str(case)) == case for case in cases)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("routing:f32:m4k32e8t2:gaussian:seed1@ptx", "m<rows>e<experts>t<experts per token>"),
        ("routing:f32:m4e8t2:given:seed1@ptx", "fill: found 'given'; needed given for dtype ids"),
        ("routing:ids:m4e8t2:gaussian:seed1@ptx", "fill: found 'gaussian'; needed given for dtype ids"),
        ("routing:f32:m4e8t2:gaussian:routing=same-experts:seed1@ptx", "routing: .* logits choose for themselves"),
        ("routing:ids:m4e8t2:given:bias=distinct:seed1@ptx", "bias: found 'distinct'; needed logits with it"),
        ("routing:f32:m4e8t9:gaussian:seed1@ptx", "t of at most the 8 experts"),
        ("activation:bf16:m4k32e2:gaussian:variant=gelu:seed1@ptx", "variant: found 'gelu'; needed one of gpt_oss"),
        ("activation:bf16:m4k32e2:gaussian:variant=silu:params=distinct:seed1@ptx", "params: .* silu has none"),
        ("activation:bf16:m4k32e2:midpoints:seed1@ptx", "fill: found 'midpoints'; needed params=distinct"),
        ("finalize:bf16:m4k32e8t2:cancelling:seed1@ptx", "t of at least 3 for the fill cancelling"),
        ("finalize:bf16:m4k32e8t2:gaussian:layout=128x4:seed1@ptx", "option: found 'layout=128x4'"),
        ("expand:bf16:m4k64e8t2:gaussian:out=f32:seed1@ptx", "option: found 'out=f32'"),
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
    given = RUNS["routing"].inputs(case)
    logits = given["logits"]
    assert logits is not None
    assert {0x7FC00000, 0xFFC00000, 0x7F800000, 0xFF800000} <= set(logits.view(np.uint32).reshape(-1).tolist())
    expected = RUNS["routing"].expect(case, given).outputs
    assert ~expected["refused"][0] == 1
    with pytest.raises(ArgumentError, match="token 1"):
        route_softmax_topk(logits, 4)


def test_midpoints_lie_within_a_unit_of_halfway_between_two_codes() -> None:
    given = inputs("activation:bf16:m64k32e64:midpoints:params=distinct:routing=all-one-token:seed7@ptx")
    values = swiglu(given["gate_up"], alpha=given["alpha"], beta=given["beta"], limit=given["limit"])
    beyond = (values.view(np.uint32) & 0xFFFFF).astype(np.int64) - 0x80000  # bits that E4M3 cuts off, less one half
    assert (np.abs(beyond) <= 1).all()
    assert np.unique(beyond).size == 3  # on either side, and exactly halfway


def test_clamps_are_met_exactly_and_by_one_unit_on_either_side() -> None:
    given = inputs("activation:bf16:m12k160e6:clamps:params=distinct:routing=all-one-token:ranks=2:seed7@ptx")
    values = given["gate_up"].astype(np.float32)
    for limit in (7.0, 0.5, 5.5, 3.0):
        near = values[np.abs(np.abs(values) - limit) < limit / 64]
        assert np.unique(np.abs(near)).size == 3


def test_rows_of_no_choice_hold_a_nan() -> None:
    given = inputs("finalize:bf16:m9k32e4t3:gaussian:first_expert=4:ranks=3:seed7@ptx")
    used = (given["unpermuted_to_permuted"] >= 0).sum()
    assert 0 < used < 27
    assert np.isnan(given["rows"][used:].astype(np.float32)).all()
    assert not np.isnan(given["rows"][:used].astype(np.float32)).any()


def test_what_a_mismatch_says() -> None:
    logits = np.array([[1.5, -2.0, 1.5]], np.float32)
    ids = np.array([[4, 9], [7, 2]], np.int32)
    none = 0xFFFFFFFF
    assert ChoiceIds("topk_ids", logits, 2).describe(1, 2, 0) == (
        "token 0 rank 1: kernel expert 2 (logit 0x3FC00000 (1.5)) reference expert 0 (logit 0x3FC00000 (1.5))",
        "",
    )
    assert "which does not exist" in ChoiceIds("topk_ids", logits, 2).describe(0, none, 0)[0]
    assert Weights("topk_weights", ids).describe(3, 0x3F000001, 0x3F000000)[0] == (
        "token 1 rank 1 (expert 2): kernel 0x3F000001 (0.50000006) reference 0x3F000000 (0.5), 1 ulp"
    )
    assert RefusedToken("refused").describe(0, 0, none - 3)[0].endswith("kernel no token reference token 3")
    assert FirstRows("offsets", 4).describe(4, 3, 2)[0] == "the rows in use: kernel 3 reference 2"
    assert FirstRows("offsets", 4).describe(1, 3, 2)[0].startswith("the first row of local expert 1:")
    assert ChoiceRows("map", ids).describe(1, none, 5)[0] == "token 1 rank 0 (expert 7): kernel no row reference row 5"
    assert RowChoices("map", 2).describe(0, 3, none)[0] == "row 0: kernel token 1 rank 1 reference nobody's"
    where, tail = TokenSums("out", "bf16", 8, np.array([1, -1, 0, 2], np.int32), ids).describe(9, 0x3F80, 0x3F81)
    assert where == "token 1 column 1: kernel 0x3F80 (1) reference 0x3F81 (1.0078125), 1 ulp"
    assert tail == "; token 1: rank 0 from nowhere of expert 7, rank 1 from row 2 of expert 2"
