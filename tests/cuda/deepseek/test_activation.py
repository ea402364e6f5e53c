"""What the host side of SwiGLU into block FP8 refuses and launches."""

from __future__ import annotations

from typing import Any

import ml_dtypes
import numpy as np
import pytest
from support.launch_recorder import Recorder

from refmoe.cuda.deepseek.activation import swiglu_block_fp8, swiglu_block_fp8_masked
from refmoe.errors import ArgumentError

BF16 = ml_dtypes.bfloat16


def contiguous(rows: int = 2, width: int = 128) -> dict[str, Any]:
    return {"gate_up": np.zeros((rows, 2 * width), BF16), "offsets": np.array([0, rows], np.int64)}


def masked(experts: int = 2, rows: int = 3, width: int = 128) -> dict[str, Any]:
    return {"gate_up": np.zeros((experts, rows, 2 * width), BF16), "masked_m": np.full(experts, rows, np.int32)}


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"gate_up": np.zeros((2, 256), np.float16)}, "gate_up: found float16 .* needed bfloat16 or float32"),
        ({"gate_up": np.zeros((2, 192), np.float32)}, "gate_up: found 2I = 192; needed I a positive multiple of 128"),
        ({"gate_up": np.zeros((256, 2), np.float32).T}, "gate_up: found strides"),
        ({"offsets": np.array([0, 3], np.int64)}, "offsets: found 0 .. 3"),
        ({"offsets": np.array([0], np.int64)}, "offsets: found int64"),
        ({"offsets": np.array([0, 2], np.int32)}, "offsets: found int32"),
        ({"policy": "ocp"}, "policy: found 'ocp'"),
        ({"scales": "e8m0"}, "scales: found 'e8m0'"),
        ({"layout": "linear"}, "layout: found 'linear'"),
        ({"fill": -1}, "fill: found int -1"),
    ],
)
def test_refused(changes: dict[str, Any], message: str) -> None:
    device = Recorder()
    with pytest.raises(ArgumentError, match=message):
        swiglu_block_fp8(device=device, **{**contiguous(), **changes})
    assert device.launches == []


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"gate_up": np.zeros((2, 256), BF16)}, r"needed bfloat16 or float32 \[E, M, 2I\]"),
        ({"gate_up": np.zeros((0, 3, 256), BF16)}, "needed at least one expert"),
        ({"masked_m": np.zeros(2, np.int64)}, "masked_m: found int64"),
        ({"masked_m": np.array([0, 4], np.int32)}, "masked_m: found 0 to 4; needed 0 to the 3 rows"),
    ],
)
def test_masked_refused(changes: dict[str, Any], message: str) -> None:
    device = Recorder()
    with pytest.raises(ArgumentError, match=message):
        swiglu_block_fp8_masked(device=device, **{**masked(), **changes})
    assert device.launches == []


def test_a_row_is_a_cta_and_sixteen_results_a_thread() -> None:
    device = Recorder()
    swiglu_block_fp8(device=device, **contiguous(4, 2048))
    (plan,) = device.launches
    assert plan.kernel.entry == "refmoe_deepseek_activation_bf16_deepgemm_fp32"
    assert (plan.grid, plan.block, plan.arguments[-6:]) == (4, 128, (4, 1, 4, 128, 16, 1))


def test_masked_rows_are_stretches() -> None:
    device = Recorder()
    swiglu_block_fp8_masked(device=device, layout="mn_major", policy="exact", scales="ue8m0", **masked(5, 7, 256))
    (plan,) = device.launches
    assert plan.kernel.entry == "refmoe_deepseek_activation_bf16_exact_ue8m0"
    assert (plan.grid, plan.block, plan.arguments[-6:]) == (35, 32, (35, 5, 7, 16, 1, 7))


def test_no_row_is_no_launch() -> None:
    device = Recorder()
    swiglu_block_fp8(device=device, **contiguous(0))
    swiglu_block_fp8_masked(device=device, **masked(2, 0))
    assert device.launches == []
