"""The benchmark of a layer: what it runs, and what it says when a target is missed."""

from __future__ import annotations

import pytest

from refmoe.bench import layer
from refmoe.cuda.toolchain import ToolchainError, find_toolchain

try:
    find_toolchain()
except ToolchainError as error:
    pytest.skip(str(error), allow_module_level=True)


@pytest.fixture
def small(monkeypatch: pytest.MonkeyPatch) -> None:
    """A layer of four experts that is run at once."""
    for name, value in {"_HIDDEN": 128, "_INTERMEDIATE": 128, "_EXPERTS": 4, "_TOP_K": 2}.items():
        monkeypatch.setattr(layer, name, value)
    monkeypatch.setattr(layer, "_TOKENS", {"one_token_s": 1, "all_experts_s": 6})


@pytest.mark.usefixtures("small")
def test_every_launch_of_the_layer_is_executed() -> None:
    document = layer.run(rounds=1)
    one, several = document["rows"]
    assert (one["tokens"], one["experts_reached"]) == (1, 2)
    assert (several["tokens"], several["experts_reached"]) == (6, 4)
    # Routing, expand, GEMM, activation, GEMM, finalize.
    assert one["launches"] == several["launches"] == 6
    assert 0 < one["lane_instructions"] < several["lane_instructions"]
    assert document["all_reached"]


@pytest.mark.usefixtures("small")
def test_a_target_that_is_missed_is_said(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(layer, "TARGETS", {"one_token_s": 60.0, "all_experts_s": 0.0})
    document = layer.run(rounds=1)
    assert document["reached"] == {"one_token_s": True, "all_experts_s": False}
    assert not document["all_reached"]
