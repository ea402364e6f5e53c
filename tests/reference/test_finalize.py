"""Finalize: equal to its specification, the order of ranks, skipped experts, refusals, and what must hold exactly."""

from __future__ import annotations

import numpy as np
import pytest
from support.fp32_values import BF16, bits, mixed, same_bytes

from refmoe.errors import ArgumentError
from refmoe.formats import BF16 as BF16_FORMAT
from refmoe.formats import FP32
from refmoe.reference import build_permutation, finalize
from refmoe.reference.scalar.finalize import finalize as specified


def chosen(rng: np.random.Generator, tokens: int, experts: int, k: int) -> np.ndarray:
    return np.array([rng.permutation(experts)[:k] for _ in range(tokens)], np.int32).reshape(tokens, k)


@pytest.mark.parametrize("out", [BF16, np.dtype(np.float32)], ids=["bf16", "fp32"])
@pytest.mark.parametrize("dtype", [BF16, np.dtype(np.float32)], ids=["rows-bf16", "rows-fp32"])
@pytest.mark.parametrize(("k", "first", "local"), [(4, 0, 12), (1, 0, 12), (4, 3, 5)])
@pytest.mark.parametrize("with_bias", [False, True])
def test_equals_the_specification(
    out: np.dtype, dtype: np.dtype, k: int, first: int, local: int, with_bias: bool
) -> None:
    rng = np.random.default_rng([k, first])
    ids = chosen(rng, 6, 12, k)
    maps = build_permutation(ids, local, first).unpermuted_to_permuted
    with np.errstate(over="ignore", invalid="ignore"):
        rows = mixed(rng, (6 * k, 9)).astype(dtype)
        bias = mixed(rng, (local, 9), finite=True).astype(BF16) if with_bias else None
    weights = mixed(rng, (6, k), finite=True)
    given = {"topk_ids": ids, "bias": bias} if with_bias else {}
    found = finalize(rows, maps, weights, **given, first_expert=first, out_dtype=out)
    wanted = specified(
        bits(rows), maps.tolist(), bits(weights), FP32 if out == np.float32 else BF16_FORMAT,
        ids.tolist(), None if bias is None else bits(bias), first,
    )  # fmt: skip
    assert same_bytes(found, wanted)


def test_ranks_are_added_in_order_from_plus_zero() -> None:
    """2^24 + 1 + 1 - 2^24 in FP32: 0 from rank 0 up, 2 from rank 3 down."""
    rows = np.array([[2.0**24], [1], [1], [-(2.0**24)]], np.float32)
    ones = np.ones((1, 4), np.float32)
    order = np.arange(4, dtype=np.int32)
    assert finalize(rows, order, ones, out_dtype=np.float32)[0, 0] == 0
    assert finalize(rows, order[[1, 2, 0, 3]], ones, out_dtype=np.float32)[0, 0] == 2
    minus_zero = np.full((1, 1), -0.0, np.float32)
    found = finalize(minus_zero, order[:1], ones[:, :1], out_dtype=np.float32)
    assert found.view(np.uint32)[0, 0] == 0, "(+0) + (-0)"


def test_bias_comes_before_the_weight() -> None:
    found = finalize(
        np.zeros((1, 2), BF16), np.zeros(1, np.int32), np.full((1, 1), 0.5, np.float32),
        topk_ids=np.array([[7]], np.int32), bias=np.array([[4, 6]], np.float32), first_expert=7,
    )  # fmt: skip
    assert found.astype(np.float32).tolist() == [[2, 3]]


def test_nan_and_overflow_bits() -> None:
    rows = np.array([[np.nan, 3e38, np.inf]], np.float32)
    two = np.full((1, 1), 2, np.float32)
    order = np.zeros(1, np.int32)
    assert finalize(rows, order, two).view(np.uint16).tolist() == [[0x7FFF, 0x7F80, 0x7F80]]
    assert finalize(rows, order, two, out_dtype=np.float32).view(np.uint32)[0, 0] == 0x7FFFFFFF


def test_a_token_depends_neither_on_its_neighbours_nor_on_unused_rows() -> None:
    rng = np.random.default_rng(2)
    ids = chosen(rng, 7, 9, 3)
    permutation = build_permutation(ids, 5)
    maps, used = permutation.unpermuted_to_permuted, int(permutation.offsets[-1])
    rows = rng.standard_normal((21, 33)).astype(BF16)
    weights = rng.random((7, 3), np.float32)
    found = finalize(rows, maps, weights)
    rows[used:] = np.nan
    assert finalize(rows, maps, weights).tobytes() == found.tobytes()
    for token in range(7):
        mine = maps.reshape(3, 7)[:, token]
        alone = np.where(mine >= 0, np.arange(3), -1).astype(np.int32)
        result = finalize(rows[np.maximum(mine, 0)], alone, weights[token : token + 1])
        assert result.tobytes() == found[token].tobytes()


def test_no_token_and_no_local_expert() -> None:
    empty = finalize(np.zeros((0, 4), BF16), np.zeros(0, np.int32), np.zeros((0, 2), np.float32))
    assert (empty.shape, empty.dtype) == ((0, 4), BF16)
    nowhere = finalize(np.full((2, 4), np.nan, BF16), np.full(2, -1, np.int32), np.ones((1, 2), np.float32))
    assert not nowhere.view(np.uint16).any()


@pytest.mark.parametrize(
    ("arguments", "argument"),
    [
        ({"rows": np.zeros((4, 3))}, "rows"),
        ({"rows": np.zeros((5, 3), BF16)}, "rows"),
        ({"unpermuted_to_permuted": np.zeros(4, np.int64)}, "unpermuted_to_permuted"),
        ({"unpermuted_to_permuted": np.zeros(3, np.int32)}, "unpermuted_to_permuted"),
        ({"unpermuted_to_permuted": np.array([0, 1, 2, 4], np.int32)}, "unpermuted_to_permuted"),
        ({"unpermuted_to_permuted": np.array([0, 1, 2, -2], np.int32)}, "unpermuted_to_permuted"),
        ({"weights": np.zeros((2, 2), BF16)}, "weights"),
        ({"weights": np.zeros((4, 0), np.float32)}, "weights"),
        ({"out_dtype": np.float16}, "out_dtype"),
        ({"bias": np.zeros((2, 3), np.float32)}, "topk_ids"),
        ({"topk_ids": np.zeros((2, 2), np.int32)}, "topk_ids"),
        ({"topk_ids": np.array([[0, 1], [0, 2]], np.int32), "bias": np.zeros((2, 3), np.float32)}, "topk_ids"),
        ({"topk_ids": np.array([[0, 1], [0, 1]], np.int32), "bias": np.zeros((2, 4), np.float32)}, "bias"),
        ({"first_expert": -1}, "first_expert"),
    ],
)
def test_refused_arguments(arguments: dict, argument: str) -> None:
    good = {
        "rows": np.zeros((4, 3), BF16),
        "unpermuted_to_permuted": np.arange(4, dtype=np.int32),
        "weights": np.ones((2, 2), np.float32),
    }
    with pytest.raises(ArgumentError) as refused:
        finalize(**{**good, **arguments})
    assert refused.value.argument == argument
