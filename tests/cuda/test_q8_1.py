"""What the Q8_1 kernel's host side refuses and launches."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from support.launch_recorder import Recorder

from refmoe.cuda.q8_1 import quantize_q8_1
from refmoe.errors import ArgumentError


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"x": np.zeros((1, 32))}, r"x: found float64 \[1, 32\]; needed a bfloat16, float16 or float32"),
        ({"x": np.zeros((1, 48), np.float32)}, "x: found K = 48; needed K a positive multiple of 32"),
        ({"x": np.zeros((2, 64), np.float32)[:, ::2]}, "x: found strides"),
        ({"variant": "mmvq"}, "variant: found 'mmvq'; needed one of 'llama_cpp_mmvq'"),
        ({"fill": 256}, "fill: found int 256"),
    ],
)
def test_refused(changes: dict[str, Any], message: str) -> None:
    device = Recorder()
    with pytest.raises(ArgumentError, match=message):
        quantize_q8_1(**{"x": np.zeros((1, 32), np.float32), "device": device, **changes})
    assert device.launches == []


def test_a_thread_takes_four_elements() -> None:
    device = Recorder()
    quantize_q8_1(np.zeros((1, 2880), np.float16), device=device)
    (plan,) = device.launches
    assert (plan.grid, plan.block, plan.arguments[-1]) == (3, 256, 720)
    assert plan.kernel.entry == "refmoe_q8_1_quantize_fp16_llama_cpp_mmvq"


def test_no_rows_launch_nothing() -> None:
    device = Recorder()
    found = quantize_q8_1(np.zeros((0, 64), np.float32), device=device)
    assert (found.codes.shape, found.d.shape) == ((0, 64), (0, 2))
    assert device.launches == []
