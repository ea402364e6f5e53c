"""Any two options of a layer meet in a default case."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import pytest

from refmoe.families import FAMILIES, pairs

LAYERS = {
    "moe": (pairs.MOE, pairs.moe_agrees),
    "integer_moe": (pairs.INTEGER_MOE, pairs.integer_moe_agrees),
    "deepseek_moe": (pairs.DEEPSEEK_MOE, lambda _: True),
}
#: Words of an option that the tables leave out: limits of zero, scales that no layer lacks, what has no kernels here.
ELSEWHERE = {("params", "closed"), ("input_sf", "none"), ("model", "sm100"), ("policy", "trtllm")}


@pytest.mark.parametrize("name", LAYERS)
def test_any_two_options_meet_in_a_default_case(name: str) -> None:
    choices, agrees = LAYERS[name]
    met: set[pairs.Pair] = set()
    for case in FAMILIES[name].level("default"):
        met.update(pairs.pairs_of({each: getattr(case, each) for each in choices}, tuple(choices)))
    assert [pair for pair in pairs.allowed_pairs(choices, agrees) if pair not in met] == []


@pytest.mark.parametrize("name", LAYERS)
def test_the_tables_have_every_word_of_their_options(name: str) -> None:
    choices = LAYERS[name][0]
    options = {option.name: option for option in FAMILIES[name].options}
    for option in choices.keys() & options.keys():
        absent = {word for word in options[option].words if word not in choices[option]}
        assert {(option, word) for word in absent} <= ELSEWHERE


def test_few_sets_of_values_have_all_pairs() -> None:
    choices = {"a": (0, 1, 2), "b": (0, 1), "c": "xyz", "d": (0, 1)}

    def agrees(chosen: Mapping[str, Any]) -> bool:
        return (chosen.get("a"), chosen.get("b")) != (2, 1)

    made = list(pairs.pairwise(choices, agrees))
    met = {pair for each in made for pair in pairs.pairs_of(each, tuple(choices))}
    assert met == set(pairs.allowed_pairs(choices, agrees))
    assert (("a", 2), ("b", 1)) not in met
    assert 9 <= len(made) <= 13  # 9 pairs of `a` and `c`; 36 sets in all
    assert made == list(pairs.pairwise(choices, agrees))


def test_values_that_go_with_none_of_an_option_are_an_error() -> None:
    refused: Callable[[Mapping[str, Any]], bool] = lambda chosen: len(chosen) < 3  # noqa: E731
    with pytest.raises(ValueError, match="no c goes with"):
        list(pairs.pairwise({"a": (0,), "b": (0,), "c": (0,)}, refused))
