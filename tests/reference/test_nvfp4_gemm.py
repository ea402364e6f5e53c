"""The NVFP4 GEMM's reference against its specification, against exact numbers, and what it refuses."""

from __future__ import annotations

from typing import Any

import ml_dtypes
import numpy as np
import pytest
from support.selection.thinned import thinned

from refmoe.errors import ArgumentError
from refmoe.formats import BF16, E2M1, FP16, FP32, UE4M3, Format
from refmoe.reference.layout import pack_fp4, unpack_fp4
from refmoe.reference.mma import within_bound
from refmoe.reference.nvfp4 import quantize_nvfp4
from refmoe.reference.nvfp4_gemm import nvfp4_alpha, nvfp4_grouped_gemm, nvfp4_product_bounds
from refmoe.reference.scalar.gemm import Row, grouped_gemm
from refmoe.reference.scalar.nvfp4_gemm import Grouped

T, N, E = 6, 5, 4
OFFSETS = np.array([0, 0, 2, 5, 5])  # the first and the last expert have no rows, the last row is nobody's
OUTPUTS = {
    "f32": (np.dtype(np.float32), FP32, np.uint32),
    "bf16": (np.dtype(ml_dtypes.bfloat16), BF16, np.uint16),
    "fp16": (np.dtype(np.float16), FP16, np.uint16),
}


def draw(k: int, seed: int, scales: str = "any") -> list[np.ndarray]:
    """Tokens, their scales, weights, their scales; `scales` are any bytes, any finite ones, or cancel in pairs."""
    rng = np.random.default_rng(seed)
    codes = [rng.integers(0, 16, shape).astype(np.uint8) for shape in ((T, k), (E, N, k))]
    bytes_ = [rng.integers(0, 256, (*c.shape[:-1], k // 16)).astype(np.uint8) for c in codes]
    if scales != "any":
        bytes_ = [np.where(b & 0x7F == 0x7F, np.uint8(0x38), b) for b in bytes_]
    if scales == "cancel":
        for b in bytes_:
            b[..., ::4] = rng.integers(0x70, 0x7F, b[..., ::4].shape)
            b[..., 1::4] = b[..., ::4][..., : b[..., 1::4].shape[-1]]
            b[..., 2::4] %= 0x18
            b[..., 3::4] %= 0x18
        for first in range(0, k - 31, 64):
            codes[0][:, first + 16 : first + 32] = codes[0][:, first : first + 16]
            codes[1][..., first + 16 : first + 32] = codes[1][..., first : first + 16] ^ 8
    return [pack_fp4(codes[0]), bytes_[0], pack_fp4(codes[1]), bytes_[1]]


def specified(
    arrays: list[np.ndarray],
    output: Format,
    alpha: np.ndarray | None,
    bias: np.ndarray | None,
    accumulate: Grouped | None = None,
) -> np.ndarray:
    tokens, token_scales, weights, weight_scales = arrays

    def row(codes: np.ndarray, scales: np.ndarray) -> Row:
        return Row(unpack_fp4(codes).tolist(), scales.tolist(), E2M1)

    return np.array(
        grouped_gemm(
            [row(*pair) for pair in zip(tokens, token_scales, strict=True)],
            [[row(*pair) for pair in zip(w, s, strict=True)] for w, s in zip(weights, weight_scales, strict=True)],
            OFFSETS.tolist(),
            accumulate or Grouped(),
            output,
            None if alpha is None else alpha.view(np.uint32).tolist(),
            None if bias is None else bias.astype(np.float32).view(np.uint32).tolist(),
        )
    )


@pytest.mark.parametrize("k", thinned([48, 16, 208, 64], 4))
@pytest.mark.parametrize("scales", ["any", "finite", "cancel"])
@pytest.mark.parametrize("output", OUTPUTS)
def test_fast_equals_specification(k: int, scales: str, output: str) -> None:
    arrays = draw(k, k, scales)
    rng = np.random.default_rng(k)
    alpha = (rng.normal(size=E) * 2.0 ** rng.integers(-9, 9, E)).astype(np.float32)
    bias = (rng.normal(size=(E, N)) * 100).astype(ml_dtypes.bfloat16)
    dtype, fmt, bits = OUTPUTS[output]
    for factor, addend in ((None, None), (alpha, None), (None, bias), (alpha, bias)):
        found = nvfp4_grouped_gemm(*arrays, OFFSETS, alpha=factor, bias=addend, out_dtype=dtype)
        assert found.dtype == dtype
        np.testing.assert_array_equal(found.view(bits), specified(arrays, fmt, factor, addend))
        assert not found[OFFSETS[-1] :].any()


@pytest.mark.parametrize(
    "fault", [{"align_bits": 34}, {"align_bits": 36}, {"result_bits": 22}, {"block": 32}, {"block": 128}], ids=str
)
def test_another_adder_shows(fault: dict[str, int]) -> None:
    arrays = draw(256, 3, "finite" if "result_bits" in fault else "cancel")
    found = nvfp4_grouped_gemm(*arrays, OFFSETS).view(np.uint32)
    assert (found != specified(arrays, FP32, None, None, Grouped(**fault))).any()


def test_whole_numbers_are_summed_exactly() -> None:
    rng = np.random.default_rng(5)
    whole = np.array([2, 4, 5, 6, 7])
    left, right = (whole[rng.integers(0, 5, shape)] | rng.integers(0, 2, shape) << 3 for shape in ((T, 96), (E, N, 96)))
    scales = [np.array([UE4M3.encode(v) for v in range(1, 16)])[rng.integers(0, 15, s)] for s in ((T, 6), (E, N, 6))]
    exact = np.zeros((T, N), np.int64)
    values = [
        (E2M1.values()[c] * np.repeat(UE4M3.values()[s], 16, axis=-1)).astype(np.int64)
        for c, s in zip((left, right), scales, strict=True)
    ]
    for e in range(E):
        rows = slice(OFFSETS[e], OFFSETS[e + 1])
        exact[rows] = values[0][rows] @ values[1][e].T
    packed = [pack_fp4(c.astype(np.uint8)) for c in (left, right)]
    bytes_ = [s.astype(np.uint8) for s in scales]
    found = nvfp4_grouped_gemm(packed[0], bytes_[0], packed[1], bytes_[1], OFFSETS)
    np.testing.assert_array_equal(found, exact.astype(np.float32))


def test_results_lie_inside_the_bound_and_it_says_something() -> None:
    arrays = draw(416, 6, "finite")
    exact, bound = nvfp4_product_bounds(*arrays, OFFSETS)
    found = nvfp4_grouped_gemm(*arrays, OFFSETS)
    assert within_bound(found[:5], exact[:5], bound[:5]).all()
    assert np.median(bound[:5] / np.abs(exact[:5])) < 2.0**-15
    assert np.isinf(bound[5:]).all()


def test_quantized_numbers_multiply_to_about_their_product() -> None:
    """Codes, block scales and alpha together are the tensors' values: against float64 of the dequantized ones."""
    rng = np.random.default_rng(7)
    x = rng.normal(size=(T, 128)).astype(ml_dtypes.bfloat16)
    w = [(rng.normal(size=(N, 128)) * 3.0**e).astype(ml_dtypes.bfloat16) for e in range(E)]
    tokens, weights = quantize_nvfp4(x), [quantize_nvfp4(each) for each in w]
    alpha = nvfp4_alpha(
        tokens.global_decode_scale, np.array([each.global_decode_scale for each in weights], np.float32)
    )
    found = nvfp4_grouped_gemm(
        tokens.codes,
        tokens.scales,
        np.stack([each.codes for each in weights]),
        np.stack([each.scales for each in weights]),
        OFFSETS,
        alpha=alpha,
    )
    left = tokens.dequantize().astype(np.float64)
    for e in range(E):
        rows = slice(OFFSETS[e], OFFSETS[e + 1])
        right = weights[e].dequantize().astype(np.float64)
        # Of FP32: each element of both sides is rounded once more when it is dequantized, the result twice and cut.
        slack = (np.abs(left[rows]) @ np.abs(right).T) * 2.0**-20
        assert (np.abs(found[rows] - left[rows] @ right.T) <= slack).all()


def test_alpha() -> None:
    scales = np.array([1.5, 2.0**-140, 2.0**100], np.float32)
    np.testing.assert_array_equal(
        nvfp4_alpha(np.float32(2.0**100), scales), np.array([1.5 * 2.0**100, 2.0**-40, np.inf], np.float32)
    )
    with pytest.raises(ArgumentError, match=r"weight_scales: .*needed float32 \[E\]"):
        nvfp4_alpha(1.0, np.ones(3))


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"tokens": np.zeros((T, 12), np.uint8)}, "tokens: found uint8 [6, 12]; needed uint8 [T, K/2]"),
        ({"tokens": np.zeros((T, 0), np.uint8)}, "K a positive multiple of 16"),
        ({"tokens": np.zeros((T, 32), np.int8)}, "tokens: "),
        ({"weights": np.zeros((N, 32), np.uint8)}, "weights: "),
        ({"weights": np.zeros((E, N, 64), np.uint8)}, "weights: found K = 128; needed the K of tokens, 64"),
        ({"token_scales": np.zeros((T, 2), np.uint8)}, "token_scales: found uint8 [6, 2]; needed uint8 [6, 4]"),
        ({"weight_scales": np.zeros((E, N, 4), np.int8)}, "one UE4M3 byte for every 16 elements"),
        ({"offsets": np.array([0, 6])}, "offsets: "),
        ({"offsets": np.array([0, 1, 2, 3, 7])}, "offsets: found 7 rows in use; needed at most the 6 rows"),
        ({"alpha": np.ones(E)}, "alpha: "),
        ({"bias": np.ones((E, N + 1), np.float32)}, "bias: "),
        ({"out_dtype": np.float64}, "out_dtype: "),
    ],
)
def test_refusals(changes: dict[str, Any], words: str) -> None:
    tokens, token_scales, weights, weight_scales = draw(64, 1)
    right: dict[str, Any] = {
        "tokens": tokens,
        "token_scales": token_scales,
        "weights": weights,
        "weight_scales": weight_scales,
        "offsets": OFFSETS,
    }
    with pytest.raises(ArgumentError) as caught:
        nvfp4_grouped_gemm(**right | changes)
    assert words in str(caught.value)
