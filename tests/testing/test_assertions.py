"""assert_bit_exact and assert_within_bound: what they tell apart, what they say, what they refuse; DLPack."""

from __future__ import annotations

from typing import Any

import ml_dtypes
import numpy as np
import pytest

from refmoe.errors import ArgumentError
from refmoe.families.stages import Codes
from refmoe.reference import grouped_gemm, quantize_mxfp4, quantize_mxfp8
from refmoe.testing import assert_bit_exact, assert_within_bound, gemm_bound
from refmoe.testing.arrays import to_numpy

BF16 = np.dtype(ml_dtypes.bfloat16)


def bits(*patterns: int, dtype: Any = np.float32) -> np.ndarray:
    chosen = np.dtype(dtype)
    return np.array(patterns, f"u{chosen.itemsize}").view(chosen)


def message(ours: object, theirs: object, **named: Any) -> str:
    with pytest.raises(AssertionError) as caught:
        assert_bit_exact(ours, theirs, **named)
    return str(caught.value)


@pytest.mark.parametrize("dtype", [np.float32, BF16, np.float16, np.int64, np.bool_, np.complex64, np.float64])
def test_equal_bytes_pass(dtype: Any) -> None:
    array = np.arange(6).reshape(2, 3).astype(dtype)
    assert_bit_exact(array, array.copy())
    assert_bit_exact(array[:0], array[:0].copy())
    assert_bit_exact(array[0, 0], array[0, 0])


def test_zero_is_not_minus_zero() -> None:
    assert message(bits(0), bits(0x80000000)) == (
        "MISMATCH result[0]  kernel 0x00000000 (0) reference 0x80000000 (-0), the sign of zero; 1 of 1 differ"
    )


def test_nan_payloads_differ() -> None:
    assert "kernel 0x7FC00001 (NaN) reference 0x7FC00000 (NaN), another NaN" in message(
        bits(0x7FC00001), bits(0x7FC00000)
    )
    assert_bit_exact(bits(0x7FC00001), bits(0x7FC00001))


@pytest.mark.parametrize(
    ("dtype", "ours", "theirs", "text"),
    [
        (BF16, 0x3F80, 0x3F81, "kernel 0x3F80 (1) reference 0x3F81 (1.0078125), 1 ulp"),
        (np.float32, 0x80000001, 0x00000001, "2 ulp"),
        (np.float64, 0x3FF0000000000000, 0x3FF0000000000002, "2 ulp"),
        (ml_dtypes.float8_e8m0fnu, 0x7F, 0x7E, "kernel 0x7F (1) reference 0x7E (0.5), +1 in the exponent"),
        (np.int32, 3, 5, "kernel 0x00000003 (3) reference 0x00000005 (5), -2"),
    ],
)
def test_the_distance_is_said_in_the_types_own_terms(dtype: Any, ours: int, theirs: int, text: str) -> None:
    assert text in message(bits(ours, dtype=dtype), bits(theirs, dtype=dtype))


def test_shape_and_type_have_sentences_of_their_own() -> None:
    assert message(np.zeros((2, 3)), np.zeros((3, 2)), what="out") == (
        "out: the shapes differ: kernel [2, 3] reference [3, 2]"
    )
    assert message(np.zeros(2, np.float32), np.zeros(2)) == (
        "result: the element types differ: kernel float32 reference float64"
    )


def test_a_stage_tells_the_place_in_the_problems_terms_and_a_map_where_the_rest_is() -> None:
    x = np.random.default_rng(3).standard_normal((16, 128)).astype(BF16)
    expected = quantize_mxfp8(x)
    wrong = expected.codes.copy()
    wrong[5, 40:48] ^= 1
    stage = Codes("codes", wrong.shape, expected.scales, written_rows=16)
    first, head, *lines = message(wrong, expected.codes, stage=stage).splitlines()
    assert first.startswith("MISMATCH codes[5, 40]  block (5, 1) lane 8: kernel 0x")
    assert first.endswith("8 of 2048 differ")
    assert head == "codes map: rows 16 down, K-blocks 4 across, 2 x 1 a cell; 9 = 8 elements differ"
    assert [line.split()[1] for line in lines] == ["....", "....", ".9..", "....", "....", "....", "....", "...."]
    single = expected.codes.copy()
    single[5, 40] ^= 1
    assert message(single, expected.codes, stage=stage).splitlines()[1].endswith("a cell; 9 = 1 element differs")


def test_fp8_without_a_stage_is_told_by_block_and_lane() -> None:
    codes = np.zeros((2, 64), ml_dtypes.float8_e4m3fn)
    wrong = codes.copy()
    wrong[1, 33] = 1
    assert "result[1, 33]  block (1, 1) lane 1: kernel 0x38 (1) reference 0x00 (0), 56 ulp" in message(wrong, codes)


@pytest.mark.parametrize("name", ["bfloat16", "float8_e4m3fn", "float8_e5m2", "float8_e8m0fnu", "float32", "int64"])
def test_torch_tensors_of_every_type_keep_their_bits(name: str) -> None:
    torch = pytest.importorskip("torch")
    size = torch.empty(0, dtype=getattr(torch, name)).element_size()
    raw = np.random.default_rng(1).integers(0, 256, 24 * size, dtype=np.uint8)
    tensor = torch.from_numpy(raw.copy()).view(getattr(torch, name)).reshape(4, 6)
    array = to_numpy(tensor)
    assert (array.dtype.name, array.shape, array.tobytes()) == (name, (4, 6), raw.tobytes())
    assert_bit_exact(tensor.t(), array.T)  # strides are no part of the value
    assert to_numpy(tensor[:0]).shape == (0, 6)


def test_torch_packed_fp4_is_bytes_and_sparse_is_refused() -> None:
    torch = pytest.importorskip("torch")
    packed = torch.arange(8, dtype=torch.uint8).view(torch.float4_e2m1fn_x2)
    assert_bit_exact(packed, np.arange(8, dtype=np.uint8))
    with pytest.raises(ArgumentError, match=r"actual: found a torch tensor of layout torch\.sparse_coo"):
        assert_bit_exact(torch.eye(2).to_sparse(), np.eye(2))


class Foreign:
    """An array of a framework that nobody here knows, which speaks DLPack alone."""

    def __init__(self, array: Any) -> None:
        self.array = array

    def __dlpack__(self, **named: Any) -> Any:
        return self.array.__dlpack__()

    def __dlpack_device__(self) -> tuple[int, int]:
        return (1, 0)


def test_dlpack_of_another_framework() -> None:
    assert_bit_exact(Foreign(np.arange(4.0)), np.arange(4.0))
    torch = pytest.importorskip("torch")  # NumPy takes no BF16 and no FP8 through DLPack, torch does
    for name in ("bfloat16", "float8_e4m3fn"):
        tensor = torch.arange(4).to(getattr(torch, name))
        assert_bit_exact(Foreign(tensor), tensor)


def test_jax_arrays_keep_their_bits() -> None:
    jnp = pytest.importorskip("jax.numpy", reason="jax is not installed")
    for dtype in (jnp.bfloat16, jnp.float8_e4m3fn, jnp.float32):
        array = np.array([0.0, -0.0, 1.5, np.nan], np.float32).astype(dtype)
        assert_bit_exact(jnp.asarray(array), array)
    assert "the sign of zero" in message(jnp.array([0.0]), np.array([-0.0], np.float32))


def test_what_is_no_array_is_refused() -> None:
    for value in ([1.0], "text", None):
        with pytest.raises(ArgumentError, match="actual: found"):
            assert_bit_exact(value, np.zeros(1))
    with pytest.raises(ArgumentError, match="expected: found elements of type object; needed numbers"):
        assert_bit_exact(np.zeros(1), np.array([object()]))


# --- bounds ---------------------------------------------------------------------------------------------------------


def test_within_and_outside_a_bound() -> None:
    exact, bound = np.array([1.0, 2.0, 3.0]), np.array([0.0, 0.5, 0.25])
    assert_within_bound(np.array([1.0, 2.5, 2.75], np.float32), exact, bound)
    with pytest.raises(AssertionError) as caught:
        assert_within_bound(np.array([1.0, 2.75, 1.0], np.float32), exact, bound, what="out")
    assert str(caught.value).splitlines() == [
        "OUT_OF_BOUND out[1]  kernel 2.75, exact 2: 0.75 apart, bound 0.5, 1.5 times the bound; 2 of 3 are",
        "furthest out: out[2]  kernel 1, exact 3: 2 apart, bound 0.25, 8 times the bound",
    ]


def test_what_is_not_finite_has_to_be_the_exact_values_own() -> None:
    exact, bound = np.array([np.inf, 1.0, 1.0]), np.array([0.0, 0.1, 0.1])
    assert_within_bound(np.array([np.inf, 1.0, 1.0]), exact, bound)
    for wrong in (np.nan, -np.inf, 1e30):
        with pytest.raises(AssertionError, match="OUT_OF_BOUND"):
            assert_within_bound(np.array([wrong, 1.0, 1.0]), exact, bound)
    with pytest.raises(AssertionError, match="kernel nan, exact 1"):
        assert_within_bound(np.array([np.inf, np.nan, 1.0]), exact, bound)


@pytest.mark.parametrize(
    ("bound", "sentence"),
    [
        (None, "bound: found None; needed float64 of the result's shape, derived"),
        (1e-3, "one number for all is a tolerance"),
        (np.float64(1e-3), "one number for all is a tolerance"),
        (np.zeros(3, np.float32), r"bound: found float32 \[3\]; needed float64 \[3\]"),
        (np.zeros(2), r"bound: found float64 \[2\]; needed float64 \[3\]"),
        (np.array([0.0, np.nan, 0.0]), r"bound: found a NaN at \[1\]"),
        (np.array([0.0, 0.0, -1e-300]), r"bound: found a negative number at \[2\]"),
        (np.array([1.0, 2.0, 0.0]), "2 of 3 elements for which 0 would be within it.*vacuous"),
        (np.full(3, np.inf), "vacuous"),
    ],
)
def test_a_bound_that_is_none_is_refused(bound: Any, sentence: str) -> None:
    with pytest.raises(ArgumentError, match=sentence):
        assert_within_bound(np.ones(3), np.ones(3), bound)


@pytest.mark.parametrize("out_dtype", ["f32", "bf16"])
def test_the_bound_of_a_gemm_holds_for_its_model_and_not_for_a_wrong_kernel(out_dtype: str) -> None:
    random = np.random.default_rng(5)
    tokens = quantize_mxfp8(random.standard_normal((7, 256)).astype(np.float32))
    weights = quantize_mxfp4(random.standard_normal((3, 24, 256)).astype(np.float32))
    offsets = np.array([0, 3, 3, 7])
    dtype = {"f32": np.dtype(np.float32), "bf16": BF16}[out_dtype]
    for model in ("sm120", "fp32"):
        exact, bound = gemm_bound(tokens, weights, offsets, model=model, out_dtype=out_dtype)
        result = grouped_gemm(tokens, weights, offsets, model=model, out_dtype=dtype)
        assert_within_bound(result, exact, bound)
        assert np.median(bound / np.abs(exact)) < 0.05
    quarter_dropped = quantize_mxfp8(tokens.dequantize() * (np.arange(256) < 192).astype(np.float32))
    with pytest.raises(AssertionError, match="OUT_OF_BOUND"):
        assert_within_bound(
            grouped_gemm(quarter_dropped, weights, offsets, model="sm120", out_dtype=dtype), exact, bound
        )


def test_operands_that_do_not_belong_together_are_refused() -> None:
    tokens = quantize_mxfp8(np.ones((2, 64), np.float32))
    weights = quantize_mxfp4(np.ones((1, 8, 64), np.float32))
    with pytest.raises(ArgumentError, match="weights: found MXTensor"):
        gemm_bound(tokens, tokens, np.array([0, 2]))
    with pytest.raises(ArgumentError, match="offsets"):
        gemm_bound(tokens, weights, np.array([0, 3]))
    with pytest.raises(ArgumentError, match="out_dtype: found str 'fp8'"):
        gemm_bound(tokens, weights, np.array([0, 2]), out_dtype="fp8")
