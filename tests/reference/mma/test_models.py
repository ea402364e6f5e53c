"""The models as data, single outputs worked out by hand, and what is refused."""

from __future__ import annotations

from dataclasses import replace
from fractions import Fraction

import numpy as np
import pytest
from support.tensor_cores.mma_operands import Product

from refmoe.errors import ArgumentError
from refmoe.formats import E2M1, E4M3, FP32
from refmoe.reference.mma import ELEMENT_FORMATS, MODELS, Evidence, as_model, split_k_sum, tensor_core_mma

NAMES = {
    "exact", "fp32", "sm120", "sm100", "sm90_wgmma_fp8", "sm90_mma", "sm90_wgmma", "sm90_mma_k4", "sm90_mma_k8",
    "sm90_mma_fp8", "sm90_mma_f16acc", "sm120_nvf4", "sm120_mxf4",
}  # fmt: skip

# L, F, m by instruction; the SM100 and SM120 rows are the published model's.
ROWS = {
    ("sm90_mma", "bf16", "bf16"): (16, 25, 23, Evidence.HARDWARE),
    ("sm90_mma", "f16", "f16"): (16, 25, 23, Evidence.HARDWARE),
    ("sm90_mma_f16acc", "f16", "f16"): (16, 25, 10, Evidence.HARDWARE),
    ("sm90_mma_k4", "tf32", "tf32"): (4, 25, 23, Evidence.HARDWARE),
    ("sm90_mma_k8", "bf16", "bf16"): (8, 25, 23, Evidence.HARDWARE),
    ("sm90_mma_k8", "f16", "f16"): (8, 25, 23, Evidence.HARDWARE),
    ("sm90_mma_k8", "tf32", "tf32"): (8, 25, 23, Evidence.HARDWARE),
    ("sm90_wgmma", "bf16", "bf16"): (16, 25, 23, Evidence.HARDWARE),
    ("sm90_wgmma", "tf32", "tf32"): (8, 25, 23, Evidence.HARDWARE),
    ("sm90_wgmma_fp8", "e5m2", "e4m3"): (32, 13, 13, Evidence.HARDWARE),
    ("sm90_mma_fp8", "e4m3", "e5m2"): (16, 25, 23, Evidence.HARDWARE),
    ("sm90_mma_fp8", "e5m2", "e4m3"): (16, 25, 23, Evidence.HARDWARE),
    ("sm100", "e4m3", "e2m1"): (32, 25, 23, Evidence.PUBLISHED),
    ("sm120", "e4m3", "e4m3"): (32, 25, 23, Evidence.PUBLISHED),
    ("sm120", "e4m3", "e2m1"): (32, 25, 23, Evidence.EXTRAPOLATED),
    ("sm120", "e2m1", "e4m3"): (32, 25, 23, Evidence.EXTRAPOLATED),
    ("sm120_nvf4", "e2m1", "e2m1"): (64, 35, 23, Evidence.PUBLISHED),
    ("sm120_mxf4", "e2m1", "e2m1"): (64, 35, 23, Evidence.PUBLISHED),
}


def test_names():
    assert set(MODELS) == NAMES
    assert all(model.name == name and as_model(name) is model is as_model(model) for name, model in MODELS.items())


@pytest.mark.parametrize("row", ROWS, ids="-".join)
def test_rows(row):
    name, a_format, b_format = row
    model, pair = MODELS[name], MODELS[name].pair(a_format, b_format)
    assert (pair.block, model.align_bits, model.result_bits, pair.evidence) == ROWS[row]
    assert model.floor == -133


def test_only_models_of_chips_with_block_scales_and_definitions_take_scales():
    assert {name for name, model in MODELS.items() if model.scaled} == {"exact", "fp32", "sm120", "sm100"}


def test_the_lowering_takes_every_element_once():
    first, second = MODELS["sm90_mma_fp8"].passes
    assert sorted(first + second) == list(range(32))
    assert first[:4] == (0, 1, 16, 17)
    assert second[:4] == (2, 3, 18, 19)


# Single outputs. a and b are lists of values, the rest of K is zero.


def one(model, c, a=(), b=(), a_format="e4m3", b_format="e2m1", scales=None, k=32):
    def codes(values, name):
        fmt = ELEMENT_FORMATS[name]
        return np.array([[fmt.encode(Fraction(x)) for x in values] + [0] * (k - len(values))], np.uint8)

    a_scales, b_scales = (None, None) if scales is None else (np.array([[s]], np.uint8) for s in scales)
    accumulator = np.array([[c]], np.float32)
    product = Product(codes(a, a_format), codes(b, b_format), accumulator, a_format, b_format, a_scales, b_scales)
    fast, slow = int(product.fast(model)[0, 0]), int(product.slow(model)[0, 0])
    assert fast == slow
    return fast


def bits(value):
    return FP32.encode(Fraction(value))


def test_a_term_is_truncated_toward_zero():
    # E = 20, so terms are multiples of 2^-5; 15 * 2^-10 vanishes, of either sign. Rounded down, -15 * 2^-10 would not.
    for sign in (1, -1):
        assert one("sm120", 2.0**20, [Fraction(15, 512)], [sign * Fraction(1, 2)]) == bits(2**20)


def test_the_result_is_truncated_toward_zero():
    # E = 23, terms are multiples of 1/4: 3/4 is kept in the sum and lost in the 23 fraction bits.
    assert one("sm120", 2.0**23, [Fraction(3, 4)], [1]) == bits(2**23)
    assert one("sm120", -(2.0**23), [Fraction(3, 4)], [-1]) == bits(-(2**23))
    assert one("sm120", 2.0**23, [Fraction(3, 4)], [-1]) == bits(2**23 - 1)


def test_a_block_adds_exactly_a_chain_of_fmas_does_not():
    # 32 times 3/4: 24 in one block; each alone rounds up to 1 in FP32.
    arguments = (2.0**23, [Fraction(3, 4)] * 32, [1] * 32)
    assert one("sm120", *arguments) == bits(2**23 + 24)
    assert one("exact", *arguments) == bits(2**23 + 24)
    assert one("fp32", *arguments) == bits(2**23 + 32)


def test_blocks_are_chained_in_k_order():
    # One small product in a block of its own, and two blocks of 32 * 1024 that cancel C: first it meets |C| = 2^16 and
    # is lost, last it meets 0.
    small_a, small_b = [Fraction(1, 512)] + [0] * 31, [Fraction(1, 2)] + [0] * 31
    large_a, large_b = [2**8] * 64, [4] * 64
    assert one("sm120", -(2.0**16), small_a + large_a, small_b + large_b, k=96) == 0
    assert one("sm120", -(2.0**16), large_a + small_a, large_b + small_b, k=96) == bits(Fraction(1, 1024))


def test_overflow_is_decided_after_truncation():
    largest = float(FP32.max)
    # 2^103 = 2^(230 - 127) * 2^0
    assert one("sm120", largest, [1], [1], scales=(230, 127)) == FP32.max_code
    assert one("sm120", largest, [1], [1], scales=(231, 127)) == FP32.infinity_code
    assert one("sm120", -largest, [1], [-1], scales=(231, 127)) == FP32.infinity_code | 1 << 31
    # Rounded to nearest, half an ulp is enough.
    assert one("exact", largest, [1], [1], scales=(230, 127)) == FP32.infinity_code


def test_a_zero_result_is_positive():
    assert one("sm120", -0.0) == 0
    assert one("sm120", -0.0, [-1], [0]) == 0
    assert one("sm120", 1.0, [-1], [1]) == 0
    # Below the smallest subnormal too.
    assert one("sm120", 0.0, [-1], [1], scales=(0, 50)) == 0
    # IEEE 754 has it otherwise.
    assert one("fp32", -0.0, [-1] * 32, [0] * 32) == 1 << 31


def test_the_result_underflows_gradually():
    # 1.75 * 2^-149, with 2^-149 = 2^(51 - 127) * 2^(54 - 127)
    assert one("sm120", 0.0, [Fraction(7, 4)], [1], scales=(51, 54)) == 1
    assert one("exact", 0.0, [Fraction(7, 4)], [1], scales=(51, 54)) == 2
    # A subnormal C is not flushed.
    assert one("sm120", 2.0**-149) == 1


def test_a_zero_takes_no_part_in_the_alignment():
    # Were C = 0 to count as 2^-126 and the zero operand as 2^-6 * 448, the product would be cut.
    smallest = one("sm120", 0.0, [Fraction(1, 512), 0], [Fraction(1, 2), 6], scales=(51, 64))
    assert smallest == 1


def floor_probe(model, scales):
    """30 terms of 1.875 * 2^-159 and two others that add up to 2^-149 - 28 * 2^-159, times 2^(scales - 50 - 51)."""
    a = [15, Fraction(9, 16), *[Fraction(15, 512)] * 30]
    return one(model, 0.0, a, [1] * 32, scales=scales)


def test_the_exponent_has_a_floor():
    # At -133 terms are multiples of 2^-158, and the 30 vanish; at -134 each leaves 2^-159, and the sum reaches 2^-149.
    assert floor_probe("sm120", (50, 51)) == 0
    assert floor_probe(replace(MODELS["sm120"], floor=-134), (50, 51)) == 1
    # Twice that: each leaves 2^-158, and the sum reaches 2^-148; at -132 it does not.
    assert floor_probe("sm120", (51, 51)) == 2
    assert floor_probe(replace(MODELS["sm120"], floor=-132), (51, 51)) == 1


def test_hopper_fp8_cuts_the_accumulator_too():
    options = {"a_format": "e4m3", "b_format": "e4m3"}
    assert one("sm90_wgmma_fp8", 1 + 2.0**-14, **options) == bits(1)
    assert one("sm90_wgmma_fp8", 1 + 2.0**-13, **options) == bits(1 + Fraction(1, 2**13))
    assert one("sm90_mma_fp8", 1 + 2.0**-14, **options) == bits(1 + Fraction(1, 2**14))


def test_a_subnormal_operand_is_left_unnormalised():
    # 2^-9 counts as 2^-6: with 448 it makes E = 2 out of 0.875, and 2^-12 lies below 2^(2 - 13).
    a, b = [Fraction(1, 512), Fraction(1, 64)], [448, Fraction(1, 64)]
    options = {"a_format": "e4m3", "b_format": "e4m3"}
    assert one("sm90_wgmma_fp8", 0.0, a, b, **options) == bits(Fraction(7, 8))
    assert one("sm90_mma_fp8", 0.0, a, b, **options) == bits(Fraction(7, 8) + Fraction(1, 2**12))


@pytest.mark.parametrize("model", ["sm120", "sm100", "exact", "fp32"])
def test_the_formats_of_mxfp4_and_mxfp8_hold_no_infinity(model):
    assert E4M3.infinity_code is None
    assert E2M1.nan_code is None
    nan = Product(
        np.full((1, 32), 0x7F, np.uint8), np.zeros((1, 32), np.uint8), np.zeros((1, 1), np.float32), "e4m3", "e2m1"
    )
    assert nan.fast(model) == nan.slow(model) == 0x7FFFFFFF


@pytest.mark.parametrize("model", ["sm120", "sm90_wgmma_fp8", "sm90_mma_fp8", "exact", "fp32"])
def test_infinities(model):
    infinity, one_code, zero = 0x7C, 0x3C, 0x00

    def result(pairs, c=0.0):
        a, b = np.zeros((1, 32), np.uint8), np.zeros((1, 32), np.uint8)
        for k, (x, y) in enumerate(pairs):
            a[0, k], b[0, k] = x, y
        product = Product(a, b, np.array([[c]], np.float32), "e5m2", "e5m2")
        assert product.fast(model) == product.slow(model)
        return int(product.fast(model)[0, 0])

    negative = one_code | 0x80
    assert result([(infinity, one_code)]) == FP32.infinity_code
    assert result([(infinity, negative)]) == FP32.infinity_code | 1 << 31
    assert result([(infinity, one_code), (one_code, infinity)]) == FP32.infinity_code
    assert result([(infinity, one_code), (infinity, negative)]) == 0x7FFFFFFF
    assert result([(infinity, zero)]) == 0x7FFFFFFF
    assert result([(infinity, one_code)], c=-np.inf) == 0x7FFFFFFF
    assert result([], c=-np.inf) == FP32.infinity_code | 1 << 31
    assert result([], c=np.nan) == 0x7FFFFFFF


# What is refused.


def arguments(**changes):
    given = {
        "a": np.zeros((2, 64), np.uint8),
        "b": np.zeros((3, 64), np.uint8),
        "c": np.zeros((2, 3), np.float32),
        "model": "sm120",
        "a_format": "e4m3",
        "b_format": "e2m1",
    } | changes
    return (given.pop("a"), given.pop("b"), given.pop("c")), given


def bf16(*shape):
    return np.zeros(shape, np.uint16)


@pytest.mark.parametrize(
    ("argument", "changes"),
    [
        ("model", {"model": "sm130"}),
        ("model", {"model": None}),
        ("a_format", {"a_format": "e3m2"}),
        ("b_format", {"b_format": "fp16"}),
        ("a_format, b_format", {"a_format": "bf16", "b_format": "bf16", "a": bf16(2, 64), "b": bf16(3, 64)}),
        ("a_format, b_format", {"model": "sm90_wgmma_fp8"}),
        ("a_format, b_format", {"model": "sm90_mma", "a_format": "tf32", "b_format": "tf32"}),
        ("a_format, b_format", {"model": "sm90_wgmma", "a_format": "bf16", "b_format": "f16"}),
        ("a", {"a": np.zeros((2, 64), np.int8)}),
        ("a", {"a": np.zeros(64, np.uint8)}),
        ("a", {"a": np.zeros((2, 48), np.uint8), "b": np.zeros((3, 48), np.uint8)}),
        ("a", {"a": np.zeros((2, 0), np.uint8), "b": np.zeros((3, 0), np.uint8)}),
        ("a", {"a": [[0] * 64]}),
        ("b", {"b": np.zeros((3, 32), np.uint8)}),
        ("b", {"b": np.zeros((1, 3, 64), np.uint8)}),
        ("b", {"b": np.full((3, 64), 16, np.uint8)}),
        ("b", {"b": bf16(3, 64)}),
        ("c", {"c": np.zeros((3, 2), np.float32)}),
        ("c", {"c": np.zeros((2, 3), np.float64)}),
        ("a_scales", {"a_scales": np.zeros((2, 1), np.uint8)}),
        ("a_scales", {"a_scales": np.zeros((2, 2), np.int8)}),
        ("b_scales", {"b_scales": np.zeros((2, 2), np.uint8)}),
        ("b_scales", {"model": "sm90_wgmma_fp8", "b_format": "e4m3", "b_scales": np.full((3, 2), 127, np.uint8)}),
        ("a_scales", {"model": "sm90_mma_fp8", "b_format": "e5m2", "a_scales": np.full((2, 2), 127, np.uint8)}),
    ],
)
def test_refusals(argument, changes):
    positional, named = arguments(**changes)
    with pytest.raises(ArgumentError) as error:
        tensor_core_mma(*positional, **named)
    assert error.value.argument == argument


def test_a_refusal_says_what_the_model_has():
    positional, named = arguments(model="sm90_mma_k8")
    with pytest.raises(ArgumentError, match="found e4m3 x e2m1; needed a pair that sm90_mma_k8 has: bf16 x bf16"):
        tensor_core_mma(*positional, **named)


@pytest.mark.parametrize("parts", [np.zeros((0, 3), np.float32), np.zeros(3), [1.0]])
def test_split_k_refusals(parts):
    with pytest.raises(ArgumentError, match="parts"):
        split_k_sum(parts)


def test_inputs_are_left_alone_and_may_be_read_only():
    rng = np.random.default_rng(21)
    arrays = [rng.integers(0, 16, (4, 64)).astype(np.uint8) for _ in range(2)]
    arrays += [rng.integers(120, 130, (4, 2)).astype(np.uint8) for _ in range(2)]
    c = rng.standard_normal((4, 4)).astype(np.float32)
    for array in (*arrays, c):
        array.setflags(write=False)
    a, b, a_scales, b_scales = arrays
    for model in ("sm120", "exact", "fp32"):
        Product(a, b, c, "e4m3", "e2m1", a_scales, b_scales).fast(model)
