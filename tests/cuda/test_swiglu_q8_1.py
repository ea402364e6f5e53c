"""What the host side of SwiGLU into Q8_1 refuses and launches."""

from __future__ import annotations

from typing import Any

import ml_dtypes
import numpy as np
import pytest
from support.launch_recorder import Recorder

from refmoe.cuda.swiglu_q8_1 import swiglu_q8_1
from refmoe.errors import ArgumentError


def arguments(rows: int = 2, width: int = 32) -> dict[str, Any]:
    return {"gate_up": np.zeros((rows, 2 * width), ml_dtypes.bfloat16), "offsets": np.array([0, rows], np.int64)}


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"gate_up": np.zeros((2, 64), np.float16)}, "gate_up: found float16 .* needed bfloat16 or float32"),
        ({"gate_up": np.zeros((2, 96), np.float32)}, "gate_up: found 2I = 96; needed I a positive multiple of 32"),
        ({"offsets": np.array([0, 3], np.int64)}, "offsets: found 0 .. 3"),
        ({"variant": "relu"}, "variant: found 'relu'"),
        ({"quantizer": "q8_0"}, "quantizer: found 'q8_0'"),
        ({"swiglu_alpha": np.zeros(2, np.float32)}, "swiglu_alpha: found float32"),
        ({"swiglu_limit": np.array([-1], np.float32)}, "swiglu_limit: found -1"),
        ({"variant": "silu", "swiglu_beta": np.zeros(1, np.float32)}, "swiglu_beta: .* with silu, which has none"),
        ({"fill": -1}, "fill: found int -1"),
    ],
)
def test_refused(changes: dict[str, Any], message: str) -> None:
    device = Recorder()
    with pytest.raises(ArgumentError, match=message):
        swiglu_q8_1(device=device, **{**arguments(), **changes})
    assert device.launches == []


def test_a_slice_of_512_results_is_a_cta_and_four_results_a_thread() -> None:
    device = Recorder()
    swiglu_q8_1(device=device, **arguments(4, 2880))
    (plan,) = device.launches
    assert (plan.grid, plan.block, plan.arguments[-1]) == (24, 128, 720)
    assert plan.kernel.entry == "refmoe_swiglu_q8_1_gpt_oss_bf16_llama_cpp_mmvq"
