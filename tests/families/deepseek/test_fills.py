"""What the fills of the DeepSeek families promise, what their cases refuse, and what a mismatch says."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from refmoe.catalog import parse_case
from refmoe.errors import ArgumentError
from refmoe.families.deepseek.activation import RowScales
from refmoe.families.deepseek.moe import drawn_weight
from refmoe.families.deepseek.routing import ChosenIds
from refmoe.reference.activation import swiglu
from refmoe.reference.deepseek.routing import route_sigmoid_grouped_topk, sigmoid

#: Fills of the default level that the quick one leaves out.
AT_THE_ENDS = {
    "deepseek_routing": {
        "equal",
        "twins",
        "bias-alone",
        "infinite",
        "negative-ties",
        "largest",
        "roundings",
        "positive-ties",
        "sigmoid-steps",
    },
    "deepseek_finalize": {"subnormal", "zeros", "overflow", "sum-ties"},
}


def inputs(text: str) -> Any:
    case = parse_case(text)
    return case.family.inputs(case)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("deepseek_routing:f32:m4e16t2:gaussian:groups=5:top_groups=2:seed1@ptx", "groups: found 5 of 16 experts"),
        ("deepseek_routing:f32:m4e16t2:gaussian:groups=16:top_groups=2:seed1@ptx", "of at least 2 experts"),
        ("deepseek_routing:f32:m4e16t2:gaussian:groups=4:top_groups=5:seed1@ptx", "top_groups: found '5'"),
        ("deepseek_routing:f32:m4e16t9:gaussian:groups=4:top_groups=2:seed1@ptx", "t of at most 8, for 2 groups"),
        (
            "deepseek_routing:f32:m4e16t2:never:groups=4:top_groups=2:bias=none:seed1@ptx",
            "case bias: found 'none'; needed bias=distinct for the fill",
        ),
        ("deepseek_routing:f32:m4e600t2:gaussian:seed1@ptx", "2 to 512 experts of all ranks"),
        ("deepseek_routing:f32:m4e16t2:gaussian:groups=4:first_expert=1:seed1@ptx", "first_expert: found '1'"),
        (
            "deepseek_activation:bf16:m4k128e2:ties:seed1@ptx",
            "case dtype: found 'bf16'; needed dtype f32 for the fill ties",
        ),
        ("deepseek_activation:bf16:m4k64e2:gaussian:seed1@ptx", "a k that is a multiple of 128"),
        (
            "deepseek_activation:bf16:m4k128e6:gaussian:rows=masked:routing=empty-experts:seed1@ptx",
            "rows=masked, whose",
        ),
        ("deepseek_finalize:bf16:m4k128e2t1:midway:seed1@ptx", "a t of at least 2 for the fill midway"),
        ("deepseek_moe:bf16:m4k128n64e2t1:gaussian:seed1@ptx", "n that is a multiple of 128"),
        ("deepseek_moe:bf16:m4k128n128e6t2:gaussian:routing=empty-experts:seed1@ptx", "router=given with it"),
        ("deepseek_moe:bf16:m4k128n128e4t3:gaussian:groups=2:seed1@ptx", "groups that have as many experts"),
        ("deepseek_moe:bf16:m4k128n128e6t2:gaussian:groups=4:seed1@ptx", "groups: found 4 of 6 experts"),
    ],
)
def test_what_means_nothing_is_refused(text: str, message: str) -> None:
    with pytest.raises(ArgumentError, match=message):
        parse_case(text)


def test_groups_would_be_kept_by_another_rule() -> None:
    """By the largest score, by the mean, or by none: another choice for most tokens, and by three for some."""
    given = inputs("deepseek_routing:f32:m40e64t4:groups:groups=8:top_groups=3:seed7@ptx")
    ids, _ = route_sigmoid_grouped_topk(given["logits"], given["bias"], 4, 8, 3, 2.5)
    scores = sigmoid(given["logits"]) + given["bias"]
    by_group = np.sort(scores.reshape(40, 8, 8), axis=2)
    right = np.argsort(-by_group[:, :, -2:].sum(axis=2), axis=1, kind="stable")[:, :3]
    for count, least in ((1, 30), (8, 30), (3, 1)):
        other = np.argsort(-by_group[:, :, -count:].sum(axis=2), axis=1, kind="stable")[:, :3]
        assert (np.sort(other, axis=1) != np.sort(right, axis=1)).any(axis=1).sum() >= least
    assert (np.sort(ids) != np.sort(np.argsort(-scores, axis=1)[:, :4])).any(axis=1).sum() >= 20


def test_the_sums_of_tiny_scores_are_of_the_size_of_1e_20() -> None:
    given = inputs("deepseek_routing:f32:m32e48t4:tiny:groups=6:top_groups=3:seed7@ptx")
    ids, _ = route_sigmoid_grouped_topk(given["logits"], given["bias"], 4, 6, 3, 2.5)
    sums = np.take_along_axis(sigmoid(given["logits"]), ids, axis=1).sum(axis=1)
    assert (sums < 1e-24).any()
    assert ((sums > 1e-21) & (sums < 1e-19)).any()
    assert (sums > 1e-12).any()


def test_negative_scores_stay_below_zero_and_never_leaves_enough() -> None:
    given = inputs("deepseek_routing:f32:m9e48t4:negative:groups=6:top_groups=3:seed7@ptx")
    assert (sigmoid(given["logits"]) + given["bias"] < 0).all()
    never = inputs("deepseek_routing:f32:m9e48t4:never:groups=6:top_groups=3:seed7@ptx")
    assert (np.isfinite(never["bias"]).reshape(6, 8).sum(axis=1) == 2).all()


def test_activation_ties_lie_beside_the_middle_of_two_codes() -> None:
    given = inputs("deepseek_activation:f32:m6k256e2:ties:seed7@ptx")
    values = swiglu(given["gate_up"], variant="silu")
    tiles = np.abs(values.reshape(6, 2, 128))
    scale = tiles[:, :, :1] / 448
    assert (np.log2(scale) % 1 == 0).all()
    fraction = np.frexp((tiles / scale)[:, :, 1:])[0] * 32 % 2
    assert (np.abs(fraction - 1) < 2.0**-13).all()
    assert len(np.unique(np.sign(fraction - 1))) == 3


def test_weights_of_a_layer_have_no_nan_and_a_scale_each() -> None:
    tensor = drawn_weight("down", 7, 3, 256, 384)
    assert not (tensor.codes & 0x7F == 0x7F).any()
    assert np.unique(tensor.scales).size == tensor.scales.size
    assert np.isfinite(tensor.dequantize()).all()
    assert drawn_weight("down", 7, 4, 256, 384).codes.tobytes() != tensor.codes.tobytes()


def test_what_a_mismatch_says() -> None:
    scores = np.array([[1.5, -2.0, 1.5, 0.25]], np.float32)
    assert ChosenIds("topk_ids", scores, 2, 2).describe(1, 3, 0)[0] == (
        "token 0 choice 1: kernel expert 3 of group 1 (score 0x3E800000 (0.25)) "
        "reference expert 0 of group 0 (score 0x3FC00000 (1.5))"
    )
    assert "which does not exist" in ChosenIds("topk_ids", scores, 2, 2).describe(0, 9, 0)[0]
    one, two = 0x3F800000, 0x40000000
    assert RowScales("scales", "k_major", 4, 3).describe(7, one, two)[0].startswith("row 2 K-tile 1: kernel 0x3F800000")
    assert RowScales("scales", "mn_major", 4, 3).describe(7, one, two)[0].startswith("row 3 K-tile 1:")
    assert RowScales("scales", "mn_major", 4, 3).describe(12 + 6, one, two)[0].startswith("row 6 K-tile 1:")


@pytest.mark.parametrize(
    "name", ["deepseek_routing", "deepseek_expand", "deepseek_activation", "deepseek_finalize", "deepseek_moe"]
)
def test_every_fill_is_used(name: str) -> None:
    """By the default level each; by the quick one all but those that stand for the ends of a range."""
    from refmoe.families import FAMILIES

    family = FAMILIES[name]
    assert {case.fill for case in family.level("default")} == set(family.fills)
    assert {case.fill for case in family.level("quick")} == set(family.fills) - AT_THE_ENDS.get(name, set())
    assert all(str(parse_case(str(case))) == str(case) for case in family.level("default"))
