"""What the DP4A kernel's host side refuses and launches."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from support.launch_recorder import Recorder

from refmoe.cuda.dp4a import dp4a_gemv
from refmoe.errors import ArgumentError


def arguments(tokens: int = 2, k: int = 64, n: int = 20) -> dict[str, Any]:
    return {
        "codes": np.zeros((tokens, k), np.int8),
        "d": np.zeros((tokens, k // 32), np.float16),
        "weights": np.zeros((3, n, k // 2), np.uint8),
        "weight_scales": np.zeros((3, n, k // 32), np.uint8),
        "topk_ids": np.zeros((tokens, 2), np.int32),
    }


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"weights": np.zeros((3, 20, 24), np.uint8)}, "weights: found K = 48; needed K a positive multiple of 32"),
        ({"weights": np.zeros((1, 8, 65536), np.uint8)}, "weights: found K = 131072; needed .* at most 94432"),
        ({"weights": np.zeros((3, 20, 32), np.int8)}, r"weights: found int8 \[3, 20, 32\]; needed uint8"),
        ({"weights": np.zeros((20, 32), np.uint8)}, r"weights: found uint8 \[20, 32\]"),
        ({"weight_scales": np.zeros((3, 20, 3), np.uint8)}, r"weight_scales: .* needed uint8 \[3, 20, 2\]"),
        ({"codes": np.zeros((4, 64), np.int8)}, r"codes: found int8 \[4, 64\]; needed int8 \[2, 64\]"),
        ({"d": np.zeros((2, 2), np.float32)}, r"d: found float32 \[2, 2\]; needed float16"),
        ({"input_by_choice": True}, r"codes: found int8 \[2, 64\]; needed int8 \[4, 64\]"),
        ({"topk_ids": np.zeros((9, 1), np.int32)}, "topk_ids: found 9 tokens; needed at most 8"),
        ({"topk_ids": np.zeros((8, 33), np.int32)}, "topk_ids: found 264 choices; needed at most 256"),
        ({"topk_ids": np.zeros((2, 0), np.int32)}, "k at least 1"),
        ({"row_of_choice": np.array([0, 1, 2, 4], np.int32)}, "row_of_choice: found 4 at 3"),
        ({"row_of_choice": np.array([0, 1, 1, -1], np.int32)}, "row_of_choice: found a row twice"),
        ({"alpha": np.zeros(2, np.float32)}, r"alpha: found float32 \[2\]"),
        ({"bias": np.zeros((3, 20), np.float32)}, r"bias: found float32 \[3, 20\]; needed bfloat16"),
        ({"first_expert": -1}, "first_expert: found int -1"),
        ({"out_dtype": np.float16}, "out_dtype: .* needed ml_dtypes.bfloat16 or float32"),
        ({"fill": 300}, "fill: found int 300"),
    ],
)
def test_refused(changes: dict[str, Any], message: str) -> None:
    device = Recorder()
    with pytest.raises(ArgumentError, match=message):
        dp4a_gemv(device=device, **{**arguments(), **changes})
    assert device.launches == []


@pytest.mark.parametrize(("tokens", "warps"), [(1, 4), (4, 4), (5, 2), (8, 2)])
def test_a_cta_takes_sixteen_rows_of_a_choice(tokens: int, warps: int) -> None:
    device = Recorder()
    dp4a_gemv(device=device, **arguments(tokens, k=2880))
    (plan,) = device.launches
    assert (plan.grid, plan.block, plan.shared_bytes) == (tokens * 2 * 2, 128, 16 * (1440 + 90))
    assert plan.kernel.entry == f"refmoe_dp4a_gemv_{warps}_bf16_4_rows"


@pytest.mark.parametrize(("k", "rows"), [(3840, 16), (3872, 8)])
def test_a_cta_takes_half_as_many_rows_of_more_than_32_kilobytes(k: int, rows: int) -> None:
    device = Recorder()
    dp4a_gemv(device=device, **arguments(k=k))
    (plan,) = device.launches
    assert (plan.grid, plan.block, plan.shared_bytes) == (4 * -(-20 // rows), 128, rows * (k // 2 + k // 32))
    assert plan.kernel.entry == f"refmoe_dp4a_gemv_4_bf16_{rows // 4}_rows"


@pytest.mark.parametrize(("k", "warps"), [(23584, 4), (23616, 2), (47200, 2), (47232, 1), (94432, 1)])
def test_a_longer_k_has_fewer_rows_in_shared_memory(k: int, warps: int) -> None:
    device = Recorder()
    dp4a_gemv(device=device, **arguments(k=k))
    (plan,) = device.launches
    rows = 2 * warps
    assert (plan.grid, plan.block) == (4 * -(-20 // rows), 32 * warps)
    assert plan.shared_bytes == rows * (k // 2 + k // 32) <= 98 * 1024


def test_no_tokens_launch_nothing() -> None:
    device = Recorder()
    assert dp4a_gemv(device=device, **arguments(0)).shape == (0, 20)
    assert device.launches == []
