"""Groups: what may not change a result, and what is refused."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from support.gemm_problems import computed, draw

from refmoe.errors import ArgumentError
from refmoe.reference import MXTensor, dense_gemm, grouped_gemm, plain_fp8
from refmoe.reference.mma import MODELS

MODEL_NAMES = ["exact", "fp32", "sm120", "sm90_mma"]


def rows_of(tensor: MXTensor, index: Any) -> MXTensor:
    return MXTensor(tensor.codes[index], tensor.scales[index], tensor.format)


def bits(out: np.ndarray) -> np.ndarray:
    return out.view(np.uint32)


@pytest.mark.parametrize("model", MODEL_NAMES)
def test_a_row_does_not_depend_on_its_neighbours(model: str) -> None:
    problem = draw("wide", tokens=9)
    together = computed(problem, model)
    for t in range(8):
        expert = 0 if t < 2 else 2
        alone = dense_gemm(rows_of(problem.activations, [t]), rows_of(problem.weights, expert), model=model)
        np.testing.assert_array_equal(bits(alone)[0], together[t])


def test_rows_of_no_expert_are_positive_zero_and_empty_experts_shift_nobody() -> None:
    problem = draw("normal", tokens=8)
    out = grouped_gemm(problem.activations, problem.weights, np.array([0, 0, 3, 3], np.int64), model="sm120")
    assert (bits(out)[3:] == 0).all()
    middle = dense_gemm(rows_of(problem.activations, slice(0, 3)), rows_of(problem.weights, 1), model="sm120")
    np.testing.assert_array_equal(bits(out)[:3], bits(middle))
    nothing = grouped_gemm(problem.activations, problem.weights, np.zeros(4, np.int64), model="sm120")
    assert nothing.shape == (8, 3)
    assert (bits(nothing) == 0).all()


def test_rows_of_no_expert_are_zero_whatever_they_hold() -> None:
    """NaN codes and scales past the last row in use, as a kernel's padding may have them."""
    problem = draw("normal", tokens=8)
    problem.activations.codes[7] = 0x7F
    problem.activations.scales[7] = 0xFF
    assert (computed(problem, "sm120", bias=problem.bias)[7] == 0).all()


@given(st.lists(st.integers(0, 4), min_size=1, max_size=6), st.integers(0, 2**32 - 1), st.sampled_from(MODEL_NAMES))
def test_relabelling_experts_and_permuting_tokens_moves_rows_and_nothing_else(
    counts: list[int], seed: int, model: str
) -> None:
    random = np.random.default_rng(seed)
    experts, tokens = len(counts), sum(counts)
    codes = random.integers(0, 0x7F, (tokens, 32), dtype=np.uint8)
    activations = MXTensor(codes, random.integers(110, 140, (tokens, 1), dtype=np.uint8), "mxfp8")
    weights = MXTensor(
        random.integers(0, 256, (experts, 2, 16), dtype=np.uint8),
        random.integers(110, 140, (experts, 2, 1), dtype=np.uint8),
        "mxfp4",
    )
    offsets = np.concatenate([[0], np.cumsum(counts)]).astype(np.int64)
    alpha = random.standard_normal(experts).astype(np.float32)
    out = grouped_gemm(activations, weights, offsets, model=model, alpha=alpha)

    order = random.permutation(experts)
    rows = [offsets[e] + random.permutation(counts[e]) for e in order]
    moved = np.concatenate([np.zeros(0, np.int64), *rows]).astype(np.int64)
    new_offsets = np.concatenate([[0], np.cumsum([counts[e] for e in order])]).astype(np.int64)
    again = grouped_gemm(
        rows_of(activations, moved), rows_of(weights, order), new_offsets, model=model, alpha=alpha[order]
    )
    np.testing.assert_array_equal(bits(again), bits(out)[moved])


def test_scale_up_by_a_power_of_two_is_exact() -> None:
    problem = draw("normal")
    larger = MXTensor(problem.activations.codes, problem.activations.scales + np.uint8(5), "mxfp8")
    for model in MODEL_NAMES:
        shifted = grouped_gemm(larger, problem.weights, problem.offsets, model=model)
        plain = grouped_gemm(problem.activations, problem.weights, problem.offsets, model=model)
        np.testing.assert_array_equal(bits(shifted), bits(plain * np.float32(32)))


def test_padding_k_with_zeros_changes_nothing() -> None:
    """Zero codes under any finite scale take no part in an alignment."""
    problem = draw("wide")

    def padded(tensor: MXTensor) -> MXTensor:
        code_shape = (*tensor.codes.shape[:-1], tensor.codes.shape[-1] // 3)
        scale_shape = (*tensor.scales.shape[:-1], 1)
        return MXTensor(
            np.concatenate([tensor.codes, np.zeros(code_shape, np.uint8)], axis=-1),
            np.concatenate([tensor.scales, np.full(scale_shape, 254, np.uint8)], axis=-1),
            tensor.format,
        )

    for model in MODEL_NAMES:
        out = grouped_gemm(padded(problem.activations), padded(problem.weights), problem.offsets, model=model)
        np.testing.assert_array_equal(bits(out), computed(problem, model))


def test_a_model_is_as_good_as_its_name() -> None:
    problem = draw("normal")
    for name in MODEL_NAMES:
        by_model = grouped_gemm(problem.activations, problem.weights, problem.offsets, model=MODELS[name])
        np.testing.assert_array_equal(bits(by_model), computed(problem, name))


def test_no_rows_and_no_features() -> None:
    problem = draw("normal")
    none = rows_of(problem.activations, slice(0, 0))
    assert grouped_gemm(none, problem.weights, np.zeros(4, np.int64), model="sm120").shape == (0, 3)
    narrow = MXTensor(problem.weights.codes[:, :0], problem.weights.scales[:, :0], "mxfp4")
    assert grouped_gemm(problem.activations, narrow, problem.offsets, model="sm120").shape == (6, 0)


P = draw("normal")
FP8 = draw("normal", "mxfp8")
EMPTY_K = MXTensor(np.zeros((6, 0), np.uint8), np.zeros((6, 0), np.uint8), "mxfp8")
EMPTY_K_WEIGHTS = MXTensor(np.zeros((3, 3, 0), np.uint8), np.zeros((3, 3, 0), np.uint8), "mxfp4")


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (
            {"activations": P.activations.codes},
            "activations: found uint8 [6, 96]; needed an MXTensor [rows, K] in mxfp8",
        ),
        ({"activations": rows_of(P.weights, 0)}, "activations: found mxfp4 [3, 96]; needed an MXTensor [rows, K]"),
        ({"activations": rows_of(P.activations, None)}, "activations: found mxfp8 [1, 6, 96]"),
        ({"activations": EMPTY_K, "weights": EMPTY_K_WEIGHTS}, "activations: found K = 0; needed at least one block"),
        ({"weights": rows_of(P.weights, 0)}, "weights: found mxfp4 [3, 96]; needed an MXTensor [E, N, K]"),
        ({"weights": draw("normal", k=64).weights}, "weights: found K = 64; needed the K of activations, 96"),
        ({"offsets": np.array([0, 2, 4], np.int64)}, "offsets: found int64 [3]; needed int64 [4] for 3 experts"),
        ({"offsets": np.array([0, 2, 2, 5], np.int32)}, "offsets: found int32 [4]"),
        ({"offsets": [0, 2, 2, 5]}, "offsets: found list"),
        ({"offsets": np.array([1, 2, 2, 5], np.int64)}, "offsets: found offsets[0] = 1"),
        ({"offsets": np.array([0, 3, 2, 5], np.int64)}, "offsets: found offsets[2] = 2 after 3"),
        ({"offsets": np.array([0, 2, 2, 7], np.int64)}, "offsets: found 7 rows in use; needed at most the 6 rows"),
        ({"model": "sm99"}, "model: found str 'sm99'"),
        ({"model": None}, "model: found NoneType"),
        (
            {"model": "sm90_wgmma_fp8"},
            "weights: found e2m1 x e4m3 with sm90_wgmma_fp8; needed operands that it has: e4m3",
        ),
        ({"model": "sm90_wgmma_fp8", "weights": FP8.weights}, "activations: found scale"),
        ({"model": "sm90_mma_fp8", "weights": FP8.weights}, "activations: found scale"),
        (
            {"bias": np.zeros((3, 4), np.float32)},
            "bias: found float32 [3, 4]; needed float32 or bfloat16 or float16 [3, 3]",
        ),
        ({"bias": np.zeros((3, 3))}, "bias: found float64 [3, 3]"),
        ({"bias": 1.0}, "bias: found float 1.0"),
        ({"alpha": np.ones(2, np.float32)}, "alpha: found float32 [2]; needed float32 [3]"),
        ({"alpha": np.ones(3)}, "alpha: found float64 [3]"),
        ({"alpha": 2.0}, "alpha: found float 2.0"),
        ({"out_dtype": np.float64}, "out_dtype: found type <class 'numpy.float64'>; needed float32, float16 or"),
        ({"out_dtype": None}, "out_dtype: found NoneType"),
        ({"out_dtype": "bf17"}, "out_dtype: found str 'bf17'"),
    ],
)
def test_refusals(change: dict[str, Any], words: str) -> None:
    arguments = {"activations": P.activations, "weights": P.weights, "offsets": P.offsets, "model": "sm120", **change}
    with pytest.raises(ArgumentError) as caught:
        grouped_gemm(**arguments)
    assert str(caught.value).startswith(words)


def test_a_scale_that_a_model_has_no_place_for_is_named() -> None:
    problem = draw("identity", "mxfp8")
    problem.activations.scales[4, 1] = 0x7E
    with pytest.raises(ArgumentError) as caught:
        grouped_gemm(problem.activations, problem.weights, problem.offsets, model="sm90_wgmma_fp8")
    assert str(caught.value) == (
        "activations: found scale 0x7e at [4, 1] with sm90_wgmma_fp8, whose instruction has no scales; "
        "needed identity scales, 0x7f, or a model with scales"
    )


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"weights": P.weights}, "weights: found mxfp4 [3, 3, 96]; needed an MXTensor [rows, K] in mxfp4 or mxfp8"),
        ({"alpha": 0.1}, "alpha: found float 0.1; needed a number that FP32 has"),
        ({"alpha": 1e300}, "alpha: found float 1e+300"),
        ({"alpha": np.ones(1, np.float32)}, "alpha: found float32 [1]"),
        ({"bias": [0, 0, 0]}, "bias: found list [0, 0, 0]; needed an array [N]"),
        ({"bias": np.zeros(4, np.float32)}, "bias: found float32 [1, 4]"),
    ],
)
def test_dense_refusals(change: dict[str, Any], words: str) -> None:
    arguments = {"activations": P.activations, "weights": rows_of(P.weights, 0), "model": "sm120", **change}
    with pytest.raises(ArgumentError) as caught:
        dense_gemm(**arguments)
    assert str(caught.value).startswith(words)


@pytest.mark.parametrize("codes", [np.zeros((2, 33), np.uint8), np.zeros((2, 32), np.int8), [0] * 32])
def test_plain_fp8_refuses(codes: Any) -> None:
    with pytest.raises(ArgumentError, match="codes: found"):
        plain_fp8(codes)
