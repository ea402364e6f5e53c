"""The fast GEMM is the scalar specification, bit for bit, in every model, format, output and epilogue."""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import Any

import ml_dtypes
import numpy as np
import pytest
from support.gemm_problems import BF16_MODELS, OUTPUTS, SCALED, Problem, computed, draw, specified
from support.selection.thinned import thinned

from refmoe.reference import dense_gemm, grouped_gemm, plain_fp8
from refmoe.reference.tensor import MXTensor

GEMM = sys.modules["refmoe.reference.gemm"]
WEIGHTS = ("mxfp4", "mxfp8")


@pytest.mark.parametrize("kind", thinned(["normal", "wide", "specials"], 3))
@pytest.mark.parametrize("weights", WEIGHTS)
@pytest.mark.parametrize("model", SCALED + BF16_MODELS)
def test_sums(model: str, weights: str, kind: str) -> None:
    problem = draw(kind, weights)
    np.testing.assert_array_equal(computed(problem, model), specified(problem, model))


@pytest.mark.parametrize("model", [*SCALED, *BF16_MODELS, "sm90_wgmma_fp8"])
def test_plain_fp8_through_identity_scales(model: str) -> None:
    """FP8 x FP8 in every model, FP8 x FP4 in those that have the pair."""
    for weights in WEIGHTS if model != "sm90_wgmma_fp8" else ("mxfp8",):
        problem = draw("identity", weights)
        plain = Problem(plain_fp8(problem.activations.codes), problem.weights, problem.offsets)
        np.testing.assert_array_equal(computed(plain, model), specified(problem, model))


def test_an_identity_scale_one_off_halves_the_result() -> None:
    problem = draw("identity")
    halved = MXTensor(problem.activations.codes, problem.activations.scales - np.uint8(1), "mxfp8")
    right = grouped_gemm(problem.activations, problem.weights, problem.offsets, model="sm120")
    wrong = grouped_gemm(halved, problem.weights, problem.offsets, model="sm120")
    assert right[0].all()
    np.testing.assert_array_equal((wrong * np.float32(2)).view(np.uint32), right.view(np.uint32))


@pytest.mark.parametrize("out_dtype", OUTPUTS)
@pytest.mark.parametrize("epilogue", thinned(["none", "alpha", "bias", "both"], 3))
@pytest.mark.parametrize("kind", ["normal", "specials"])
def test_epilogue_and_output(out_dtype: type, epilogue: str, kind: str) -> None:
    for seed in range(2):
        problem = draw(kind, seed=seed)
        options = {
            "alpha": problem.alpha if epilogue in ("alpha", "both") else None,
            "bias": problem.bias if epilogue in ("bias", "both") else None,
            "out_dtype": out_dtype,
        }
        np.testing.assert_array_equal(computed(problem, "sm120", **options), specified(problem, "sm120", **options))


@pytest.mark.parametrize("dtype", [ml_dtypes.bfloat16, np.float16])
def test_bias_of_16_bits_is_widened(dtype: type) -> None:
    problem = draw("normal")
    assert problem.bias is not None
    bias = problem.bias.astype(dtype)
    np.testing.assert_array_equal(computed(problem, "sm120", bias=bias), specified(problem, "sm120", bias=bias))


def one_product(activation: int, weight: int, *, rows: int = 1) -> Problem:
    """One nonzero product a row: the sum is what the two codes (E4M3 each) say."""
    codes = np.zeros((rows, 32), np.uint8)
    codes[:, 0] = activation
    weights = np.zeros((1, 1, 32), np.uint8)
    weights[..., 0] = weight
    identity = np.full((1, 1, 1), 0x7F, np.uint8)
    return Problem(plain_fp8(codes), MXTensor(weights, identity, "mxfp8"), np.array([0, rows], np.int64))


def result(problem: Problem, **options: Any) -> int:
    return int(computed(problem, "sm120", **options)[0, 0])


ONE = 0x38  # E4M3


def test_product_is_rounded_before_the_bias_is_added() -> None:
    """3 * RN(1/3) is 1 after rounding and 1 + 2^-25 before: minus 1 that is 0, or 2^-25 in one FMA."""
    alpha, bias = np.array([1 / 3], np.float32), np.array([[-1]], np.float32)
    assert result(one_product(0x44, ONE), alpha=alpha, bias=bias) == 0  # 0x44 is 3


def test_a_step_that_is_not_asked_for_is_not_done() -> None:
    """-1 * 0 is -0; adding a bias of 0 makes it +0, adding none leaves it."""
    alpha, zero = np.array([-1], np.float32), np.zeros((1, 1), np.float32)
    assert result(one_product(0, ONE)) == 0
    assert result(one_product(0, ONE), alpha=alpha) == 0x80000000
    assert result(one_product(0, ONE), alpha=alpha, bias=zero) == 0
    assert result(one_product(0, ONE), alpha=alpha, bias=-zero) == 0x80000000


@pytest.mark.parametrize(
    ("bias", "out_dtype", "bits"),
    [
        # 1 + half a unit: ties to even, down and up.
        (2.0**-8, ml_dtypes.bfloat16, 0x3F80),
        (3 * 2.0**-8, ml_dtypes.bfloat16, 0x3F82),
        (2.0**-8 + 2.0**-20, ml_dtypes.bfloat16, 0x3F81),
        (2.0**-11, np.float16, 0x3C00),
        (3 * 2.0**-11, np.float16, 0x3C02),
        # The last number below infinity and the first that rounds to it.
        (65518.0, np.float16, 0x7BFF),
        (65519.0, np.float16, 0x7C00),
        (float(np.finfo(np.float32).max), ml_dtypes.bfloat16, 0x7F80),
        (-np.inf, ml_dtypes.bfloat16, 0xFF80),
        # Subnormals of the output are kept.
        (-1 + 2.0**-24, np.float16, 0x0001),
        (-1 + 2.0**-24, ml_dtypes.bfloat16, 0x3380),
    ],
)
def test_cast_rounds_to_nearest_even(bias: float, out_dtype: type, bits: int) -> None:
    problem = one_product(ONE, ONE)
    assert result(problem, bias=np.array([[bias]], np.float32), out_dtype=out_dtype) == bits


def test_nans_have_the_bits_of_the_instructions() -> None:
    """Whatever the payload and sign that went in; infinity minus infinity and 0 * infinity too."""
    nan, infinity = np.array([0xFFC12345], np.uint32).view(np.float32), np.array([np.inf], np.float32)
    for out_dtype, bits in ((np.float32, 0x7FFFFFFF), (np.float16, 0x7FFF), (ml_dtypes.bfloat16, 0x7FFF)):
        assert result(one_product(0xFF, ONE), out_dtype=out_dtype) == bits
        assert result(one_product(ONE, ONE), alpha=nan, out_dtype=out_dtype) == bits
        assert result(one_product(ONE, ONE), bias=nan[None], out_dtype=out_dtype) == bits
        assert result(one_product(ONE, ONE), alpha=infinity, bias=-infinity[None], out_dtype=out_dtype) == bits
        assert result(one_product(0, ONE), alpha=infinity, out_dtype=out_dtype) == bits


@pytest.mark.parametrize(
    ("model", "weights"),
    [*((model, weights) for model in (*SCALED, *BF16_MODELS) for weights in WEIGHTS)]
    + [(model, "mxfp8") for model in ("sm90_wgmma_fp8", "sm90_mma_fp8")],
)
def test_integer_lattice_is_the_integer_product(model: str, weights: str) -> None:
    """Normal operands, multiples of 1 with sums below 2^14: every order and every model is exact."""
    random = np.random.default_rng(5)
    fp8 = np.array([0x38, 0x40, 0x44, 0x48, 0xB8, 0xC0, 0xC4, 0xC8], np.uint8)  # 1 2 3 4 and negatives
    values8 = np.array([1, 2, 3, 4, -1, -2, -3, -4])
    fp4, values4 = np.array([2, 4, 5, 6, 7, 10, 12, 15], np.uint8), np.array([1, 2, 3, 4, 6, -1, -2, -6])
    a = random.integers(0, 8, (9, 128))
    b = random.integers(0, 8, (4, 10, 128))
    table, values = (fp8, values8) if weights == "mxfp8" else (fp4, values4)
    codes = table[b] if weights == "mxfp8" else table[b][..., 0::2] | table[b][..., 1::2] << np.uint8(4)
    tensor = MXTensor(codes, np.full((4, 10, 4), 0x7F, np.uint8), weights)
    offsets = np.array([0, 0, 3, 8, 9], np.int64)
    got = grouped_gemm(plain_fp8(fp8[a]), tensor, offsets, model=model)
    for expert in range(4):
        rows = slice(offsets[expert], offsets[expert + 1])
        wanted = values8[a[rows]] @ values[b[expert]].T
        np.testing.assert_array_equal(got[rows].view(np.uint32), wanted.astype(np.float32).view(np.uint32))


def test_dense_is_grouped_with_one_expert() -> None:
    problem = draw("normal")
    assert problem.bias is not None
    weights = MXTensor(problem.weights.codes[0], problem.weights.scales[0], "mxfp4")
    one = MXTensor(problem.weights.codes[:1], problem.weights.scales[:1], "mxfp4")
    dense = dense_gemm(problem.activations, weights, model="sm120", alpha=0.75, bias=problem.bias[0])
    alone = Problem(problem.activations, one, np.array([0, 6], np.int64))
    wanted = specified(alone, "sm120", alpha=np.array([0.75], np.float32), bias=problem.bias[:1])
    np.testing.assert_array_equal(dense.view(np.uint32), wanted)


def test_strided_operands_are_read_right() -> None:
    problem = draw("normal", n=4)
    every_second = MXTensor(problem.weights.codes[:, ::2], problem.weights.scales[:, ::2], "mxfp4")
    got = grouped_gemm(problem.activations, every_second, problem.offsets, model="sm120")
    np.testing.assert_array_equal(got.view(np.uint32), computed(problem, "sm120")[:, ::2])


Patch = pytest.MonkeyPatch


def _finish_as(change: Callable[..., np.ndarray]) -> Callable[[Patch], None]:
    def plant(patch: Patch) -> None:
        original = GEMM.finish_sums
        patch.setattr(GEMM, "finish_sums", lambda sums, alpha, bias, dtype: change(original, sums, alpha, bias, dtype))

    plant.__name__ = change.__name__
    return plant


@_finish_as
def bias_dropped(finish: Any, sums: Any, alpha: Any, bias: Any, dtype: Any) -> Any:
    return finish(sums, alpha, None, dtype)


@_finish_as
def alpha_dropped(finish: Any, sums: Any, alpha: Any, bias: Any, dtype: Any) -> Any:
    return finish(sums, None, bias, dtype)


@_finish_as
def alpha_applied_to_the_bias_too(finish: Any, sums: Any, alpha: Any, bias: Any, dtype: Any) -> Any:
    return finish(finish(sums, None, bias, np.dtype(np.float32)), alpha, None, dtype)


@_finish_as
def fused_multiply_add(finish: Any, sums: Any, alpha: Any, bias: Any, dtype: Any) -> Any:
    exact = sums.astype(np.float64) * np.float64(alpha) + bias.astype(np.float64)
    return exact.astype(np.float32).astype(dtype)


@_finish_as
def cast_toward_zero(finish: Any, sums: Any, alpha: Any, bias: Any, dtype: Any) -> Any:
    bits = finish(sums, alpha, bias, np.dtype(np.float32)).view(np.uint32) & np.uint32(0xFFFF0000)
    return bits.view(np.float32).astype(dtype)


def scales_of_the_next_row(patch: Patch) -> None:
    original = GEMM._operand

    def operand(tensor: MXTensor, index: Any, model: Any) -> Any:
        return original(MXTensor(tensor.codes, np.roll(tensor.scales, 1, axis=-2), tensor.format), index, model)

    patch.setattr(GEMM, "_operand", operand)


def nibbles_swapped(patch: Patch) -> None:
    patch.setattr("refmoe.reference.tensor.unpack_fp4", _swap)


def _swap(codes: np.ndarray) -> np.ndarray:
    return np.stack([codes >> 4, codes & 15], axis=-1).reshape(*codes.shape[:-1], -1)


def weights_of_the_first_expert(patch: Patch) -> None:
    original = GEMM._operand

    def operand(tensor: MXTensor, index: Any, model: Any) -> Any:
        return original(tensor, 0 if isinstance(index, int) else index, model)

    patch.setattr(GEMM, "_operand", operand)


FAULTS = [
    *(bias_dropped, alpha_dropped, alpha_applied_to_the_bias_too, fused_multiply_add, cast_toward_zero),
    *(scales_of_the_next_row, nibbles_swapped, weights_of_the_first_expert),
]


@pytest.mark.parametrize("plant", FAULTS, ids=lambda plant: plant.__name__)
def test_planted_fault_is_caught(plant: Callable[[Patch], None], monkeypatch: Patch) -> None:
    problem = draw("normal", tokens=12, n=8)
    options: dict[str, Any] = {"alpha": problem.alpha, "bias": problem.bias}
    if plant is cast_toward_zero:
        options["out_dtype"] = ml_dtypes.bfloat16
    wanted = specified(problem, "sm120", **options)
    np.testing.assert_array_equal(computed(problem, "sm120", **options), wanted)
    plant(monkeypatch)
    assert (computed(problem, "sm120", **options) != wanted).any()
