"""The benchmark of a whole DeepSeek-V3 layer, at small sizes: what it compares, and that a wrong byte fails it."""

from __future__ import annotations

import dataclasses
from typing import Any

import pytest
from support.toolchain import NVCC

from refmoe.bench import deepseek

pytestmark = pytest.mark.skipif(NVCC is None, reason="no nvcc on this machine")

SMALL = {"hidden": 256, "intermediate": 128, "experts": 16, "top_k": 3, "groups": 4, "top_groups": 2}


@pytest.mark.slow
def test_every_launch_is_compared_whole() -> None:
    found = deepseek.run(**SMALL)
    assert found["all_reached"]
    assert [row["stage"] for row in found["rows"]] == [
        *("route", "permute", "expand", "gemm1", "activation", "gemm2"),
        *("shared_gemm1", "shared_activation", "shared_gemm2", "finalize"),
    ]
    assert {row["stage"]: row["bytes"] for row in found["rows"]} == {
        "route": 3 * 8,
        "permute": 17 * 8 + 3 * 8,
        "expand": 4 * (256 + 8),
        "gemm1": 3 * 256 * 2,
        "activation": 3 * (128 + 4),
        "gemm2": 3 * 256 * 2,
        "shared_gemm1": 256 * 2,
        "shared_activation": 128 + 4,
        "shared_gemm2": 256 * 2,
        "finalize": 256 * 2,
    }
    assert found["experts_drawn"] == 3


@pytest.mark.parametrize(
    ("stage", "array", "launch"), [("gemm1", "out", "gemm1"), ("shared", "codes", "shared_activation")]
)
def test_a_wrong_byte_of_the_reference_fails_it(
    monkeypatch: pytest.MonkeyPatch, stage: str, array: str, launch: str
) -> None:
    right = deepseek.moe_layer

    def wrong(*arguments: Any, **options: Any) -> Any:
        found = right(*arguments, **options)
        stages = {name: dict(arrays) for name, arrays in found.stages.items()}
        changed = stages[stage][array].copy()
        changed.view("u1").reshape(-1)[5] ^= 1
        stages[stage][array] = changed
        return dataclasses.replace(found, stages=stages)

    monkeypatch.setattr(deepseek, "moe_layer", wrong)
    found = deepseek.run(**SMALL)
    assert not found["all_reached"]
    assert [row["stage"] for row in found["rows"] if row["differing"]] == [launch]
