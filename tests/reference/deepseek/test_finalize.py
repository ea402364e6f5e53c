"""Finalize with a shared expert: equal to its specification, the order of the additions, refusals."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from support.fp32_values import BF16, bits, mixed, same_bytes
from support.selection.thinned import thinned

from refmoe.errors import ArgumentError
from refmoe.formats import BF16 as BF16_FORMAT
from refmoe.formats import FP32
from refmoe.reference import build_permutation, finalize
from refmoe.reference.deepseek.finalize import ORDERS, finalize_shared
from refmoe.reference.scalar.deepseek.finalize import finalize_shared as specified

FP32_DTYPE = np.dtype(np.float32)


@pytest.mark.parametrize("out", [BF16, FP32_DTYPE], ids=["bf16", "fp32"])
@pytest.mark.parametrize("dtype", [BF16, FP32_DTYPE], ids=["rows-bf16", "rows-fp32"])
@pytest.mark.parametrize(("k", "first", "local"), thinned([(8, 0, 12), (1, 0, 12), (4, 3, 5)], 3))
@pytest.mark.parametrize("with_shared", [False, True])
@pytest.mark.parametrize("order", ORDERS)
def test_equals_the_specification(
    out: np.dtype, dtype: np.dtype, k: int, first: int, local: int, with_shared: bool, order: str
) -> None:
    rng = np.random.default_rng([k, first])
    ids = np.array([rng.permutation(12)[:k] for _ in range(6)], np.int32)
    maps = build_permutation(ids, local, first).unpermuted_to_permuted
    with np.errstate(over="ignore", invalid="ignore"):
        rows, shared = mixed(rng, (6 * k, 9)).astype(dtype), mixed(rng, (6, 9)).astype(dtype)
    weights = mixed(rng, (6, k), finite=True)
    given = shared if with_shared else None
    for scale in (1.0, 1 / 3):
        found = finalize_shared(rows, maps, weights, given, scale=scale, order=order, out_dtype=out)
        wanted = specified(
            bits(rows), maps.tolist(), bits(weights), bits(shared) if with_shared else None,
            FP32 if out == np.float32 else BF16_FORMAT, bits(np.float32([scale]))[0], order,
        )  # fmt: skip
        assert same_bytes(found, wanted)


def test_without_a_shared_expert_and_a_factor_it_is_finalize() -> None:
    rng = np.random.default_rng(2)
    maps, weights = rng.permutation(12).astype(np.int32), rng.random((3, 4), np.float32)
    for rows in (rng.standard_normal((12, 16)).astype(BF16), rng.standard_normal((12, 16), np.float32)):
        assert finalize_shared(rows, maps, weights, None).tobytes() == finalize(rows, maps, weights).tobytes()


def test_the_shared_row_comes_last() -> None:
    """1 and -1 cancel before 2^-30 is added; begun with 2^-30, the sum of FP32 would lose it."""
    rows, order = np.float32([[1], [-1]]), np.arange(2, dtype=np.int32)
    shared = np.full((1, 1), 2.0**-30, np.float32)
    found = finalize_shared(rows, order, np.ones((1, 2), np.float32), shared, out_dtype=np.float32)
    assert found[0, 0] == 2.0**-30


def test_the_factor_is_on_the_routed_sum_alone() -> None:
    rows, shared = np.full((1, 1), 3, np.float32), np.full((1, 1), 1, np.float32)
    found = finalize_shared(rows, np.zeros(1, np.int32), np.ones((1, 1), np.float32), shared, scale=2.5)
    assert found.astype(np.float32)[0, 0] == 8.5


def test_the_bf16_order_rounds_twice() -> None:
    """1 + 2^-8 rounds to 1 in BF16 and then gains 2^-9: 1. In FP32 it is past the middle: 1 + 2^-7."""
    rows, shared = np.full((1, 1), 1 + 2.0**-8, np.float32), np.full((1, 1), 2.0**-9, np.float32)
    given = (rows, np.zeros(1, np.int32), np.ones((1, 1), np.float32), shared)
    assert finalize_shared(*given).astype(np.float32)[0, 0] == 1 + 2.0**-7
    assert finalize_shared(*given, order="bf16").astype(np.float32)[0, 0] == 1


@pytest.mark.parametrize(
    ("changes", "argument"),
    [
        ({"rows": np.zeros((2, 8), np.float16)}, "rows"),
        ({"shared": np.zeros((2, 8), BF16)}, "shared"),
        ({"shared": np.zeros((1, 8), np.float32)}, "shared"),
        ({"scale": np.inf}, "scale"),
        ({"scale": 1e39}, "scale"),
        ({"scale": "1"}, "scale"),
        ({"order": "first"}, "order"),
        ({"out_dtype": np.float16}, "out_dtype"),
        ({"unpermuted_to_permuted": np.array([0, 2], np.int32)}, "unpermuted_to_permuted"),
    ],
)
def test_refused(changes: dict[str, Any], argument: str) -> None:
    given: dict[str, Any] = {
        "rows": np.zeros((2, 8), BF16),
        "unpermuted_to_permuted": np.arange(2, dtype=np.int32),
        "weights": np.ones((1, 2), np.float32),
        "shared": np.zeros((1, 8), BF16),
    }
    with pytest.raises(ArgumentError) as refused:
        finalize_shared(**{**given, **changes})
    assert refused.value.argument == argument
