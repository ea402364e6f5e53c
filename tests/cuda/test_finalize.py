"""What the finalize kernel's host side refuses and launches; that a token depends on no other."""

from __future__ import annotations

from typing import Any

import ml_dtypes
import numpy as np
import pytest
from support.launch_recorder import Recorder
from support.toolchain import NVCC

from refmoe.cuda import open_device
from refmoe.cuda.finalize import finalize
from refmoe.errors import ArgumentError
from refmoe.reference import build_permutation
from refmoe.reference.finalize import finalize as reference

BF16 = ml_dtypes.bfloat16
IDS = np.array([[0, 2], [1, 0], [2, 3]], np.int32)
needs_nvcc = pytest.mark.skipif(NVCC is None, reason="no nvcc on this machine")


def arguments(ids: Any = IDS, experts: int = 4, first_expert: int = 0, width: int = 32) -> dict[str, Any]:
    rng = np.random.default_rng(0)
    return {
        "rows": rng.standard_normal((ids.size, width)).astype(BF16),
        "unpermuted_to_permuted": build_permutation(ids, experts, first_expert).unpermuted_to_permuted,
        "weights": rng.random(ids.shape, np.float32),
        "topk_ids": ids,
        "bias": rng.standard_normal((experts, width)).astype(BF16),
        "first_expert": first_expert,
    }


def edited(index: int, value: int) -> Any:
    maps = arguments()["unpermuted_to_permuted"].copy()
    maps[index] = value
    return maps


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"rows": np.zeros((6, 32), np.float16)}, r"rows: found float16 \[6, 32\]; needed bfloat16 or float32"),
        ({"rows": np.zeros((6, 12), BF16)}, "rows: found H = 12; needed H a positive multiple of 8"),
        ({"rows": np.zeros((6, 0), BF16)}, "rows: found H = 0"),
        ({"rows": np.zeros((5, 32), BF16)}, r"rows: found bfloat16 \[5, 32\]; needed bfloat16 \[6, 32\]"),
        ({"rows": np.zeros((6, 64), BF16)[:, ::2]}, "rows: found strides"),
        ({"weights": np.zeros((3, 2))}, r"weights: found float64 \[3, 2\]; needed float32 \[3, 2\]"),
        ({"weights": np.zeros((3, 33), np.float32)}, r"weights: found float32 \[3, 33\]; .* k from 1 to 32"),
        ({"weights": np.zeros((3, 0), np.float32)}, "weights: .* k from 1 to 32"),
        ({"unpermuted_to_permuted": np.zeros(5, np.int32)}, r"unpermuted_to_permuted: found int32 \[5\]; needed int32"),
        ({"unpermuted_to_permuted": edited(2, 6)}, "unpermuted_to_permuted: found 6 at 2; needed -1, or a row below 6"),
        ({"unpermuted_to_permuted": edited(4, -2)}, "unpermuted_to_permuted: found -2 at 4"),
        ({"topk_ids": None}, r"topk_ids: found None with a bias; needed int32 \[3, 2\]"),
        ({"bias": None}, r"topk_ids: found int32 \[3, 2\]; needed None without a bias"),
        ({"bias": np.zeros((4, 31), BF16)}, r"bias: found bfloat16 \[4, 31\]; needed bfloat16 \[4, 32\]"),
        ({"bias": np.zeros((4, 32), np.float32)}, r"bias: found float32 \[4, 32\]; needed bfloat16 \[4, 32\]"),
        ({"bias": np.zeros((3, 32), BF16)}, "topk_ids: found expert 3 of token 2; needed experts 0 to 2 where the map"),
        ({"first_expert": -1}, "first_expert: found int -1"),
        ({"out_dtype": np.float64}, "out_dtype: .* needed ml_dtypes.bfloat16 or float32"),
        ({"out_dtype": None}, "out_dtype: found NoneType None"),
        ({"fill": "x"}, "fill: found str 'x'"),
    ],
)
def test_refused(changes: dict[str, Any], message: str) -> None:
    device = Recorder()
    with pytest.raises(ArgumentError, match=message):
        finalize(device=device, **{**arguments(), **changes})
    assert device.launches == []


def test_a_warp_is_a_token_and_a_cta_a_slice_of_256_columns() -> None:
    device = Recorder()
    finalize(device=device, **arguments(width=2880))
    (plan,) = device.launches
    # 12 slices; the 3 tokens are fewer than the 4 warps of a CTA.
    assert (plan.grid, plan.block) == (12, 128)


def test_no_tokens_launch_nothing() -> None:
    device = Recorder()
    found = finalize(device=device, **arguments(np.zeros((0, 2), np.int32)))
    assert found.shape == (0, 32)
    assert device.launches == []


@needs_nvcc
@pytest.mark.parametrize("rows", [BF16, np.float32])
@pytest.mark.parametrize("out", [BF16, np.float32])
def test_bytes_are_those_of_the_reference(rows: Any, out: Any) -> None:
    given = arguments(first_expert=0)
    given["rows"] = given["rows"].astype(rows)
    found = finalize(device=open_device("ptx"), out_dtype=out, **given)
    assert found.dtype == out
    assert found.tobytes() == reference(out_dtype=out, **given).tobytes()


@needs_nvcc
def test_a_token_none_of_whose_experts_are_here_is_zero() -> None:
    given = arguments(np.array([[0, 1], [4, 5]], np.int32), experts=2, first_expert=4)
    found = finalize(device=open_device("ptx"), fill=0xFF, **given)
    assert found[0].tobytes() == bytes(64)
    assert found[1].tobytes() == reference(**given)[1].tobytes()


@needs_nvcc
def test_a_token_does_not_depend_on_its_batch() -> None:
    device, given = open_device("ptx"), arguments()
    together = finalize(device=device, **given)
    for token, ids in enumerate(IDS):
        rows = given["rows"][given["unpermuted_to_permuted"].reshape(2, 3)[:, token]]
        order = np.argsort(ids, kind="stable")
        alone = finalize(
            np.ascontiguousarray(rows[order]),
            np.argsort(order).astype(np.int32),
            given["weights"][token : token + 1],
            device=device,
            topk_ids=ids[None, :],
            bias=given["bias"],
        )
        assert alone.tobytes() == together[token : token + 1].tobytes()
