"""What the host side of tokens on their way to the rows of their experts refuses and launches."""

from __future__ import annotations

from typing import Any

import ml_dtypes
import numpy as np
import pytest
from support.launch_recorder import Recorder

from refmoe.cuda.deepseek.expand import expand_block_fp8
from refmoe.errors import ArgumentError

BF16 = ml_dtypes.bfloat16


def given(tokens: int = 2, k: int = 128, top_k: int = 2) -> dict[str, Any]:
    return {"x": np.zeros((tokens, k), BF16), "unpermuted_to_permuted": np.arange(tokens * top_k, dtype=np.int32)}


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"x": np.zeros((2, 128), np.float16)}, "x: found float16 .* needed bfloat16 or float32"),
        ({"x": np.zeros((2, 192), np.float32)}, "x: found K = 192; needed K a positive multiple of 128"),
        ({"x": np.zeros((128, 2), np.float32).T}, "x: found strides"),
        ({"unpermuted_to_permuted": np.arange(3, dtype=np.int32)}, "unpermuted_to_permuted: found int32"),
        ({"unpermuted_to_permuted": np.arange(4, dtype=np.int64)}, "unpermuted_to_permuted: found int64"),
        ({"unpermuted_to_permuted": np.zeros(4, np.int32)}, "found row 0 twice"),
        ({"unpermuted_to_permuted": np.zeros(0, np.int32)}, "found 0 choices a token; needed 1 to 32"),
        ({"unpermuted_to_permuted": np.arange(66, dtype=np.int32)}, "found 33 choices a token"),
        ({"policy": "ocp"}, "policy: found 'ocp'"),
        ({"scales": "e8m0"}, "scales: found 'e8m0'"),
        ({"layout": "linear"}, "layout: found 'linear'"),
        ({"fill": -1}, "fill: found int -1"),
    ],
)
def test_refused(changes: dict[str, Any], message: str) -> None:
    device = Recorder()
    with pytest.raises(ArgumentError, match=message):
        expand_block_fp8(device=device, **{**given(), **changes})
    assert device.launches == []


@pytest.mark.parametrize(("layout", "strides"), [("k_major", (16, 1, 16, 1)), ("mn_major", (1, 8, 1, 4))])
def test_a_token_is_a_cta_and_sixteen_elements_a_thread(layout: str, strides: tuple[int, ...]) -> None:
    device = Recorder()
    expand_block_fp8(device=device, layout=layout, **given(4, 2048))
    (plan,) = device.launches
    assert plan.kernel.entry == "refmoe_deepseek_expand_bf16_deepgemm_fp32"
    assert (plan.grid, plan.block, plan.arguments[-7:]) == (4, 128, (4, 2, 128, *strides))


def test_no_tokens_launch_nothing() -> None:
    device = Recorder()
    made = expand_block_fp8(device=device, **given(0))
    assert device.launches == []
    assert (made.codes.shape, made.scales.shape) == ((0, 128), (0, 1))
