"""DeepGEMM's published formula of a block-scaled product, restated on torch, and the measure of its own tests.

`impls/sm90_fp8_gemm_1d2d.cuh` has, for each block of 128 of K and each output: the product of both scales as a number
of its own (`scale_a_0 * scale_b_0`), and `final_accum += scale * accum`, which its build contracts to one FMA. Below is
what that computes. `testing/numeric.py` has the measure: 1 - 2<x, y> / (<x, x> + <y, y>), below 0.001 in its tests.


What differs on purpose is listed in docs/families/deepseek_gemm.md. None of it decides a bit of a row in use.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from refmoe.reference.block_fp8 import quantize_block_fp8
from refmoe.reference.deepseek_gemm import BLOCK, deepseek_gemm
from refmoe.reference.mma import tensor_core_mma

torch = pytest.importorskip("torch")

MODEL_NAMES = ("sm120", "sm90_mma_fp8", "sm90_wgmma_fp8")
M, N, K = 40, 256, 1024


def quantized(seed: int) -> tuple[Any, ...]:
    """BF16 rows and weights as torch has them, and both sides in block FP8 by DeepGEMM's casts."""
    torch.manual_seed(seed)
    x, w = torch.randn(M, K).bfloat16(), torch.randn(N, K).bfloat16()
    left = quantize_block_fp8(x.float().numpy())
    right = quantize_block_fp8(w.float().numpy(), block="128x128")
    return x, w, left, right


def contracted(factor: Any, partial: Any, total: Any) -> Any:
    """factor * partial + total with one rounding to FP32: float64 has the product, and here the sum to 2^-52."""
    return (factor.double() * partial.double() + total.double()).float()


@pytest.mark.parametrize("model", MODEL_NAMES)
def test_the_published_chain_gives_the_same_bits(model: str) -> None:
    _, _, left, right = quantized(1)
    total = torch.zeros(M, N)
    for block in range(K // BLOCK):
        part = slice(block * BLOCK, (block + 1) * BLOCK)
        operands = [np.ascontiguousarray(side.codes[:, part]) for side in (left, right)]
        partial = tensor_core_mma(
            *operands, np.zeros((M, N), np.float32), model=model, a_format="e4m3", b_format="e4m3"
        )
        scale_a = torch.from_numpy(left.scales[:, block].copy())
        scale_b = torch.from_numpy(right.scales[:, block].copy()).repeat_interleave(BLOCK)
        total = contracted(scale_a[:, None] * scale_b[None, :], torch.from_numpy(partial), total)
    found = deepseek_gemm(left.codes, left.scales, right.codes[None], right.scales[None], np.array([0, M]), model=model)
    wanted = total.bfloat16().view(torch.int16).numpy().view(np.uint16)
    # Twice rounded, in float64 and then in FP32: of 10,240 sums few can differ, and in BF16 none does.
    np.testing.assert_array_equal(found.view(np.uint16), wanted)


@pytest.mark.parametrize("model", MODEL_NAMES)
def test_the_measure_of_its_tests_is_met(model: str) -> None:
    x, w, left, right = quantized(2)
    found = deepseek_gemm(
        left.codes,
        left.scales,
        right.codes[None],
        right.scales[None],
        np.array([0, M]),
        model=model,
        out_dtype=np.float32,
    )
    ours, exact = torch.from_numpy(found).double(), x.double() @ w.double().T
    difference = 1 - 2 * (ours * exact).sum() / (ours * ours + exact * exact).sum()
    assert 0 < difference < 0.001


def test_the_measure_lets_a_zeroed_column_pass() -> None:
    """Why bytes are compared here: with 1 of 2,048 columns left out the measure is below 0.001."""
    exact = torch.randn(64, 2048, dtype=torch.float64)
    wrong = exact.clone()
    wrong[:, 77] = 0
    difference = 1 - 2 * (wrong * exact).sum() / (wrong * wrong + exact * exact).sum()
    assert difference < 0.001
