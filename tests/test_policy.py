from __future__ import annotations

import pytest

from refmoe.errors import ArgumentError
from refmoe.policy import (
    EDGE_FORMATS,
    POLICIES,
    EdgePolicy,
    Policy,
    ScaleMode,
    as_edge_policy,
    as_policy,
    as_scale_mode,
)


def test_members_are_named_by_their_lower_case_name() -> None:
    assert [mode.value for mode in ScaleMode] == ["rceil", "floor", "ceil", "even", "round_log2", "floor_ratio"]
    names = ["exact", "flashinfer", "transformer_engine", "deepgemm", "llama_cpp_cuda"]
    assert [edge.value for edge in EdgePolicy] == names
    for mode in ScaleMode:
        assert as_scale_mode(mode) is as_scale_mode(mode.value) is mode
        assert mode.value == mode.name.lower()
    for edge in EdgePolicy:
        assert as_edge_policy(edge) is as_edge_policy(edge.value) is edge
        assert edge.value == edge.name.lower()


@pytest.mark.parametrize("wrong", ["RCEIL", "", "ceiling", None, 0, EdgePolicy.EXACT])
def test_unknown_mode_is_refused_with_the_list(wrong: object) -> None:
    with pytest.raises(ArgumentError, match=r"mode: found .* needed one of rceil, floor, ceil, even") as caught:
        as_scale_mode(wrong)  # type: ignore[arg-type]
    assert caught.value.argument == "mode"


@pytest.mark.parametrize("wrong", ["fast", None, ScaleMode.FLOOR])
def test_unknown_edge_is_refused_with_the_list(wrong: object) -> None:
    with pytest.raises(ArgumentError, match=r"edge: found .* needed one of exact, flashinfer"):
        as_edge_policy(wrong)  # type: ignore[arg-type]


def test_policies_are_found_by_name_and_by_themselves() -> None:
    for name, policy in POLICIES.items():
        assert policy.name == name
        assert as_policy(name) is as_policy(policy) is policy
    own = Policy("own", ScaleMode.CEIL)
    assert as_policy(own) is own
    with pytest.raises(ArgumentError, match=r"policy: found .*torchao.*one of ocp, flashinfer"):
        as_policy("torchao")


def test_policies_produce_only_formats_that_their_edges_are_defined_for() -> None:
    assert set(EDGE_FORMATS) == set(EdgePolicy)
    for policy in POLICIES.values():
        assert policy.formats
        if policy.edge is not None:
            assert set(policy.formats) <= set(EDGE_FORMATS[policy.edge])
