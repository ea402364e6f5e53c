"""The Q8_1 reference: equal to the specification, its special values, what it refuses, llama.cpp's bytes."""

from __future__ import annotations

from typing import Any

import ml_dtypes
import numpy as np
import pytest
from support.selection.thinned import thinned

from refmoe.errors import ArgumentError
from refmoe.families.q8_1 import DTYPES, Q8_1_QUANTIZE
from refmoe.formats import Q8_1
from refmoe.reference import fp32
from refmoe.reference.q8_1 import VARIANTS, Q8Tensor, dequantize_q8_1, packed_blocks, quantize_q8_1
from refmoe.reference.scalar.q8_1 import quantize_block

each_variant = pytest.mark.parametrize("variant", VARIANTS)


def specified(x: Any, variant: str) -> Q8Tensor:
    rows, k = x.shape
    blocks = [quantize_block(block.tolist(), variant) for block in fp32.fp32_bits(x).reshape(-1, 32)]
    shape = (rows, k // 32)
    halves = (np.array([getattr(block, name) for block in blocks], np.uint16) for name in "ds")
    codes = np.array([block.codes for block in blocks], np.int8).reshape(rows, k)
    return Q8Tensor(codes, *(half.reshape(shape).view(np.float16) for half in halves))


def assert_equal(left: Q8Tensor, right: Q8Tensor) -> None:
    for name in ("codes", "d", "s"):
        assert getattr(left, name).tobytes() == getattr(right, name).tobytes(), name


@each_variant
@pytest.mark.parametrize("dtype", thinned(DTYPES, 4))
@pytest.mark.parametrize("fill", Q8_1_QUANTIZE.fills)
def test_every_fill_is_as_specified(fill: str, dtype: str, variant: str) -> None:
    from refmoe.families.case import Shape

    x = Q8_1_QUANTIZE.inputs(Q8_1_QUANTIZE.case(fill, Shape(1, 256), dtype, 11))["x"]
    assert_equal(quantize_q8_1(x, variant=variant), specified(x, variant))


@each_variant
def test_any_bits_are_as_specified(variant: str) -> None:
    bits = np.random.default_rng(5).integers(0, 1 << 32, (16, 64), np.uint32)
    assert_equal(quantize_q8_1(bits.view(np.float32), variant=variant), specified(bits.view(np.float32), variant))


def block(*values: float) -> Any:
    return np.concatenate([np.array(values, np.float32), np.zeros(32 - len(values), np.float32)])[None]


@pytest.mark.parametrize(
    ("values", "variant", "codes", "d", "s"),
    [
        ((127.0, 2.5, -2.5, 0.5), "llama_cpp_mmvq", [127, 3, -3, 1], 0x3C00, 0x57F8),  # halves away from zero
        ((127.0, 2.5, -2.5, 0.5), "llama_cpp_mmq", [127, 3, -3, 1], 0x3C00, 0x57F8),
        ((0.0, -0.0), "llama_cpp_mmvq", [0, 0], 0x0000, 0x0000),
        ((0.0, -0.0), "llama_cpp_mmq", [0, 0], 0x0000, 0x0000),  # r is infinite, 0 * r a NaN, its code 0
        ((np.inf, 1.0), "llama_cpp_mmvq", [0, 0], 0x7C00, 0x7C00),  # Inf / Inf is a NaN, 1 / Inf is 0
        ((np.inf, 1.0), "llama_cpp_mmq", [0, 0], 0x7C00, 0x7C00),  # r = 0
        ((np.nan, 127.0), "llama_cpp_mmvq", [0, 127], 0x3C00, 0x7FFF),  # the maximum drops it, the sum does not
        ((1e7, -1e7), "llama_cpp_mmvq", [127, -127], 0x7C00, 0x0000),  # d past FP16's largest number
        ((190 * 2.0**-149, 3 * 2.0**-149), "llama_cpp_mmvq", [-66, 3], 0, 0),  # d is one unit: 190 wraps
        ((2.0**-149, -(2.0**-149)), "llama_cpp_mmvq", [-1, 0], 0, 0),  # d = 0: Inf is 2^31 - 1, its low byte -1
        ((1e-37, -1e-37), "llama_cpp_mmq", [-1, 0], 0, 0),  # 127 / amax overflows
    ],
)
def test_what_becomes_of_edges(values: Any, variant: str, codes: list[int], d: int, s: int) -> None:
    found = quantize_q8_1(block(*values), variant=variant)
    assert found.codes[0, : len(codes)].tolist() == codes
    assert (int(found.d.view(np.uint16)[0, 0]), int(found.s.view(np.uint16)[0, 0])) == (d, s)


def test_nans_alone_poison_their_scale() -> None:
    for variant in VARIANTS:
        found = quantize_q8_1(np.full((1, 32), np.nan, np.float32), variant=variant)
        assert not found.codes.any()
        assert found.d.view(np.uint16).tolist() == found.s.view(np.uint16).tolist() == [[0x7FFF]]


def test_on_ordinary_data_the_variants_differ_in_codes_and_sums_and_rarely_in_scales() -> None:
    x = np.random.default_rng(1).standard_normal((2048, 2048)).astype(np.float32)
    left, right = (quantize_q8_1(x, variant=variant) for variant in VARIANTS)
    assert 0 < (left.s != right.s).mean() < 0.5
    assert 0 < (left.codes != right.codes).mean() < 1e-5  # five of four million
    assert (left.d != right.d).mean() < 1e-3  # FP16 hides nearly all of their FP32 difference


def test_the_format_and_its_bytes() -> None:
    assert (Q8_1.max_code, Q8_1.block_bytes) == (127, 36)
    x = np.random.default_rng(2).standard_normal((3, 64)).astype(np.float32)
    found = quantize_q8_1(x)
    packed = packed_blocks(found)
    assert packed.shape == (3, 2, 36)
    assert packed[1, 1].tobytes() == found.d[1, 1:].tobytes() + found.s[1, 1:].tobytes() + found.codes[1, 32:].tobytes()
    assert np.abs(dequantize_q8_1(found) - x).max() < np.abs(x).max() / 200


@each_variant
@pytest.mark.parametrize("dtype", DTYPES)
def test_no_rows(dtype: str, variant: str) -> None:
    found = quantize_q8_1(np.zeros((0, 64), DTYPES[dtype]), variant=variant)
    assert [getattr(found, name).shape for name in ("codes", "d", "s")] == [(0, 64), (0, 2), (0, 2)]
    assert dequantize_q8_1(found).shape == (0, 64)
    assert packed_blocks(found).shape == (0, 2, 36)


@pytest.mark.parametrize(
    ("x", "variant", "message"),
    [
        (np.zeros((1, 32)), "llama_cpp_mmvq", r"x: found float64 \[1, 32\]; needed bfloat16, float16 or float32"),
        (np.zeros(32, np.float32), "llama_cpp_mmvq", r"x: found float32 \[32\]"),
        (np.zeros((1, 48), ml_dtypes.bfloat16), "llama_cpp_mmvq", "needed K a multiple of 32"),
        (np.zeros((1, 32), np.float32), "q8_0", "variant: found str 'q8_0'"),
    ],
)
def test_refused(x: Any, variant: str, message: str) -> None:
    with pytest.raises(ArgumentError, match=message):
        quantize_q8_1(x, variant=variant)
