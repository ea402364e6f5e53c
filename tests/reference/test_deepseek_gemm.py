"""The block FP8 GEMM's reference against its specification under every model, against exact numbers, and refusals."""

from __future__ import annotations

from functools import partial
from typing import Any

import ml_dtypes
import numpy as np
import pytest
from support.selection.thinned import thinned

from refmoe.errors import ArgumentError
from refmoe.formats import BF16, E4M3, FP32, Format
from refmoe.reference.block_fp8 import quantize_block_fp8
from refmoe.reference.deepseek_gemm import (
    contiguous_groups,
    deepseek_gemm,
    deepseek_gemm_bounds,
    deepseek_gemm_masked,
    grouped,
    promoted_bounds,
    promoted_sums,
    promotion,
)
from refmoe.reference.mma import MODELS, within_bound
from refmoe.reference.scalar import deepseek_gemm as scalar
from refmoe.reference.scalar.arithmetic import add, multiply
from refmoe.reference.scalar.mma import accumulate

MODEL_NAMES = ("sm120", "sm90_mma_fp8", "sm90_wgmma_fp8")
OUTPUTS: dict[str, tuple[np.dtype[Any], Format, Any]] = {
    "bf16": (np.dtype(ml_dtypes.bfloat16), BF16, np.uint16),
    "f32": (np.dtype(np.float32), FP32, np.uint32),
}
M, N, E = 6, 128, 3
INDPTR = np.array([0, 2, 2, 5])  # the second expert has no rows, the last row is nobody's
MASKED = np.array([2, 0, 3], np.int32)
#: Weight rows that are held against the specification, which takes a second for ten outputs.
COLUMNS = (0, 1, 77, 127)


def any_codes(rng: np.random.Generator, shape: tuple[int, ...]) -> np.ndarray:
    codes = rng.integers(0, 256, shape).astype(np.uint8)
    return np.where(codes & 0x7F == 0x7F, np.uint8(0x38), codes)


def draw(k: int, seed: int, scales: str = "near") -> list[np.ndarray]:
    """Tokens, their scales, weights, their scales; scales are near one, tiny, huge, or special."""
    rng = np.random.default_rng(seed)
    tokens, weights = any_codes(rng, (M, k)), any_codes(rng, (E, N, k))
    found = [rng.random(shape, np.float32) + np.float32(0.5) for shape in ((M, k // 128), (E, 1, k // 128))]
    if scales == "tiny":
        found = [np.float32(2.0) ** -73 * each for each in found]
    if scales == "huge":
        found = [np.float32(2.0) ** 56 * each for each in found]
    if scales == "special":
        bits = np.array([0x7F7FFFFF, 1 << 31, 1, 0x7F800000, 0xFF800000, 0x7FC00000], np.uint32)
        found[0][np.arange(M), np.arange(M) % (k // 128)] = bits.view(np.float32)
        found[1].view(np.uint32)[2, 0, 1] = 0xBFC00001
        tokens[0, 5], tokens[2] = 0xFF, 0x80
    return [tokens, found[0], weights, found[1]]


def specified(arrays: list[np.ndarray], model: str, output: Format) -> np.ndarray:
    """Bits [M, columns] of the outputs in some columns, zeros in the row of no expert."""
    tokens, token_scales, weights, weight_scales = arrays
    add_up = partial(accumulate, c=0, model=MODELS[model], a_format="e4m3", b_format="e4m3")
    rows = [
        scalar.Row(codes.tolist(), s.view(np.uint32).tolist()) for codes, s in zip(tokens, token_scales, strict=True)
    ]
    experts = [
        scalar.Expert(weights[e, list(COLUMNS)].tolist(), weight_scales[e].view(np.uint32).tolist()) for e in range(E)
    ]
    found = scalar.contiguous(rows, experts, INDPTR.tolist(), lambda a, b: add_up(a, b), output)
    return np.array(found)


@pytest.mark.parametrize("model", MODEL_NAMES)
@pytest.mark.parametrize(
    ("k", "scales"), thinned([(384, "near"), (256, "tiny"), (256, "huge"), (512, "special"), (128, "near")], 4)
)
def test_fast_equals_specification(model: str, k: int, scales: str) -> None:
    arrays = draw(k, k, scales)
    for dtype, fmt, bits in OUTPUTS.values():
        found = deepseek_gemm(*arrays, INDPTR, model=model, out_dtype=dtype)
        assert found.dtype == dtype
        np.testing.assert_array_equal(found.view(bits)[:, list(COLUMNS)], specified(arrays, model, fmt))


def test_every_kind_of_result_is_among_them() -> None:
    """The data of the test above: NaN, both infinities, and subnormal numbers."""
    special = deepseek_gemm(*draw(512, 512, "special"), INDPTR, model="sm120", out_dtype=np.float32)[:5]
    tiny = deepseek_gemm(*draw(256, 256, "tiny"), INDPTR, model="sm120", out_dtype=np.float32)[:5]
    huge = deepseek_gemm(*draw(256, 256, "huge"), INDPTR, model="sm120", out_dtype=np.float32)[:5]
    assert np.isnan(special).any()
    assert np.isinf(special).any()
    assert {1.0, -1.0} <= set(np.sign(huge[np.isinf(huge)]).tolist())
    assert ((tiny != 0) & (np.abs(tiny) < 2.0**-126)).any()


def test_negative_zero_is_a_rounded_product_and_no_sum_of_zeros() -> None:
    """2^-149 times -0.25 rounds to -0; a factor of -1 times a sum of 0 is added to +0."""
    ones = np.full((1, 128, 128), 0x38, np.uint8)
    token = np.zeros((1, 128), np.uint8)
    one = np.ones((1, 1, 1), np.float32)

    def bits(code: int, scale: float, weight_scale: float = 1.0) -> int:
        token[0, 0] = code
        scales = np.array([[scale]], np.float32)
        out = deepseek_gemm(
            token, scales, ones, one * np.float32(weight_scale), np.array([0, 1]), model="sm120", out_dtype=np.float32
        )
        return int(out.view(np.uint32)[0, 0])

    quarter = 0x28
    assert bits(0x80 | quarter, 2.0**-149) == 1 << 31
    assert bits(0, -1.0) == 0
    assert bits(0x80, 1.0) == 0
    assert bits(quarter, -0.0) == 0


@pytest.mark.parametrize(
    ("name", "wrong"),
    [
        ("added after rounding", lambda f, p, t: add(multiply(f, p), t)),
        ("not scaled at all", lambda f, p, t: add(p, t)),
    ],
)
def test_another_promotion_shows(name: str, wrong: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    arrays = draw(512, 3)
    right = deepseek_gemm(*arrays, INDPTR, model="sm120", out_dtype=np.float32).view(np.uint32)[:, list(COLUMNS)]
    np.testing.assert_array_equal(right, specified(arrays, "sm120", FP32))
    monkeypatch.setattr(scalar, "fma", wrong)
    assert (right != specified(arrays, "sm120", FP32)).any(), name


def test_models_give_other_bits() -> None:
    arrays = draw(384, 4)
    found = [deepseek_gemm(*arrays, INDPTR, model=model, out_dtype=np.float32)[:5] for model in MODEL_NAMES]
    for one, other in ((0, 1), (0, 2), (1, 2)):
        assert (found[one].view(np.uint32) != found[other].view(np.uint32)).mean() > 0.05


@pytest.mark.parametrize("model", MODEL_NAMES)
def test_results_lie_inside_the_bound_and_it_says_something(model: str) -> None:
    for scales in ("near", "tiny"):
        arrays = draw(640, 6, scales)
        groups = contiguous_groups(*arrays, INDPTR, "k_major")
        exact, bound = deepseek_gemm_bounds(groups, arrays[2], arrays[3], (M, N), model)
        found = deepseek_gemm(*arrays, INDPTR, model=model, out_dtype=np.float32)
        assert within_bound(found[:5], exact[:5], bound[:5]).all()
        assert np.isinf(bound[5:]).all()
        if scales == "near":
            assert np.median(bound[:5] / np.abs(exact[:5])) < (2.0**-6 if model == "sm90_wgmma_fp8" else 2.0**-14)


def test_the_exact_sum_is_that_of_float64() -> None:
    """With few blocks and codes, float64 has the sum of the dequantized numbers to 2^-40 of its terms."""
    arrays = draw(256, 9)
    groups = contiguous_groups(*arrays, INDPTR, "k_major")
    exact, _ = deepseek_gemm_bounds(groups, arrays[2], arrays[3], (M, N), "sm120")
    values = E4M3.values()
    left = values[arrays[0]] * np.repeat(arrays[1].astype(np.float64), 128, axis=1)
    for e in range(E):
        right = values[arrays[2][e]] * np.repeat(arrays[3][e].astype(np.float64), 128, axis=1)
        rows = slice(INDPTR[e], INDPTR[e + 1])
        slack = np.abs(left[rows]) @ np.abs(right).T * 2.0**-40
        assert (np.abs(left[rows] @ right.T - exact[rows]) <= slack).all()


@pytest.mark.parametrize("layout", ["k_major", "mn_major"])
def test_batches_are_their_experts_rows(layout: str) -> None:
    tokens, scales, weights, weight_scales = draw(256, 5)
    batch, batch_scales = np.full((E, 4, 256), 0x7F, np.uint8), np.full((E, 4, 2), np.nan, np.float32)
    for e, (first, count) in enumerate(((0, 2), (2, 0), (2, 3))):
        batch[e, :count], batch_scales[e, :count] = tokens[first : first + count], scales[first : first + count]
    laid_out = batch_scales if layout == "k_major" else batch_scales.swapaxes(1, 2)
    padded = np.ascontiguousarray(np.pad(laid_out, [(0, 0), (0, 0), (0, 3)], constant_values=np.nan))
    kinds = {"model": "sm120", "out_dtype": np.float32}
    found = deepseek_gemm_masked(batch, padded, weights, weight_scales, MASKED, scale_layout=layout, **kinds)
    whole = deepseek_gemm(tokens, scales, weights, weight_scales, INDPTR, **kinds)
    np.testing.assert_array_equal(found[0, :2].view(np.uint32), whole[:2].view(np.uint32))
    np.testing.assert_array_equal(found[2, :3].view(np.uint32), whole[2:5].view(np.uint32))
    assert not found[0, 2:].any()
    assert not found[1].any()
    assert not found[2, 3:].any()


def test_quantized_numbers_multiply_to_about_their_product() -> None:
    rng = np.random.default_rng(7)
    x, w = rng.normal(size=(M, 256)).astype(np.float32), rng.normal(size=(E, N, 256)).astype(np.float32)
    left, right = quantize_block_fp8(x), [quantize_block_fp8(each, block="128x128") for each in w]
    codes, scales = np.stack([each.codes for each in right]), np.stack([each.scales for each in right])
    found = deepseek_gemm(left.codes, left.scales, codes, scales, INDPTR, model="sm120", out_dtype=np.float32)
    for e in range(E):
        rows = slice(INDPTR[e], INDPTR[e + 1])
        there, here = left.dequantize().astype(np.float64)[rows], right[e].dequantize().astype(np.float64)
        # Of FP32: both sides are rounded once more when they are dequantized, and sums are cut and rounded.
        assert (np.abs(found[rows] - there @ here.T) <= np.abs(there) @ np.abs(here).T * 2.0**-20).all()


REFUSED: list[tuple[dict[str, Any], str]] = [
    ({"tokens": np.zeros((M, 200), np.uint8)}, "K a positive multiple of 128, which share a scale"),
    ({"tokens": np.zeros((M, 0), np.uint8)}, "K a positive multiple of 128"),
    ({"tokens": np.zeros((M, 256), np.int8)}, "tokens: found int8"),
    ({"weights": np.zeros((E, N, 384), np.uint8)}, "weights: found K = 384; needed the K of tokens, 256"),
    ({"weights": np.zeros((E, 100, 256), np.uint8)}, "N a positive multiple of 128, which share a scale"),
    (
        {"weight_scales": np.zeros((E, 2, 2), np.float32)},
        "weight_scales: found float32 [3, 2, 2]; needed float32 [3, 1, 2]",
    ),
    (
        {"token_scales": np.zeros((M, 1), np.float32)},
        "token_scales: found float32 [6, 1]; needed float32 [6, at least 2]",
    ),
    ({"token_scales": np.zeros((M, 2), np.float64)}, "token_scales: found float64"),
    ({"scale_layout": "mn_major"}, "needed float32 [2, at least 6] in the layout mn_major"),
    ({"scale_layout": "tiled"}, "scale_layout: found str 'tiled'; needed k_major or mn_major"),
    ({"m_indptr": np.array([0, 2, 5])}, "needed int64 [4] for 3 experts"),
    ({"m_indptr": np.array([0, 2, 5, 7])}, "7 rows in use; needed at most the 6 rows of tokens"),
    ({"m_indptr": np.array([0, 3, 2, 5])}, "offsets that never fall"),
    ({"model": "sm90_mma"}, "model: found sm90_mma; needed one that has e4m3 x e4m3"),
    ({"model": "none"}, "model: found str 'none'"),
    ({"out_dtype": np.float16}, "needed ml_dtypes.bfloat16 or float32"),
]


@pytest.mark.parametrize(("changes", "words"), REFUSED)
def test_refusals(changes: dict[str, Any], words: str) -> None:
    names = ("tokens", "token_scales", "weights", "weight_scales", "m_indptr")
    arguments = dict(zip(names, (*draw(256, 1), INDPTR), strict=True)) | {"model": "sm120"} | changes
    with pytest.raises(ArgumentError) as refusal:
        deepseek_gemm(**arguments)
    assert words in str(refusal.value)


@pytest.mark.parametrize(
    ("masked", "words"),
    [
        (np.array([1, 2], np.int32), "masked_m: found int32 [2]; needed int32 [3]"),
        (np.array([1, 2, 3]), "masked_m: found int64 [3]; needed int32 [3]"),
        (np.array([1, 5, 3], np.int32), "masked_m: found 1 .. 5; needed 0 to the 4 rows of an expert"),
        (np.array([1, -1, 3], np.int32), "masked_m: found -1 .. 3"),
    ],
)
def test_refusals_of_batches(masked: np.ndarray, words: str) -> None:
    tokens, scales = np.zeros((E, 4, 256), np.uint8), np.zeros((E, 4, 2), np.float32)
    _, _, weights, weight_scales = draw(256, 1)
    with pytest.raises(ArgumentError) as refusal:
        deepseek_gemm_masked(tokens, scales, weights, weight_scales, masked, model="sm120")
    assert words in str(refusal.value)
    with pytest.raises(ArgumentError, match="2 experts; needed the 3 of tokens"):
        deepseek_gemm_masked(tokens, scales, weights[:2], weight_scales[:2], MASKED, model="sm120")


@pytest.mark.parametrize("model", MODEL_NAMES)
def test_products_together_are_those_one_by_one(model: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Experts of as many rows, and blocks of K, in one product and in parts: sums and bounds, bit for bit."""
    tokens, token_scales, weights, weight_scales = draw(640, 9, "special")
    arrays = (
        tokens[:, None],
        token_scales[:, None],
        *(np.concatenate([each, each]) for each in (weights, weight_scales)),
    )
    together = [promoted_sums(*arrays, MODELS[model]), *promoted_bounds(*arrays, MODELS[model])]
    for outputs in (1, 2 * M * N):  # a block at a time, and two
        monkeypatch.setattr(promotion, "_OUTPUTS_AT_ONCE", outputs)
        for expert in range(M):
            one = [each[expert] for each in arrays]
            alone = [promoted_sums(*one, MODELS[model]), *promoted_bounds(*one, MODELS[model])]
            for found, wanted in zip(alone, together, strict=True):
                assert found.tobytes() == wanted[expert].tobytes()


def test_groups_of_as_many_rows_come_together_as_far_as_a_cache_holds_their_weights(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    tokens, token_scales, weights, weight_scales = draw(256, 4)
    operands = tokens, token_scales, weights, weight_scales, np.array([0, 2, 3, 5])
    calls: list[int] = []
    counted = promotion.promoted_sums
    monkeypatch.setattr(grouped, "promoted_sums", lambda *given: calls.append(len(given[0])) or counted(*given))
    found = []
    for most in (1, 2 * N * 256):
        monkeypatch.setattr(grouped, "_WEIGHTS_AT_ONCE", most)
        found.append(deepseek_gemm(*operands, model="sm120").tobytes())
    assert sorted(calls) == [1, 1, 1, 1, 2]
    assert found[0] == found[1]
