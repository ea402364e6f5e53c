from __future__ import annotations

import numpy as np
from hypothesis import example, given
from hypothesis import strategies as st
from support.mx_blocks import INPUTS, fast

from refmoe.formats import E2M1, E4M3, Format
from refmoe.policy import EdgePolicy, ScaleMode
from refmoe.reference import MXTensor, dequantize_mxfp8, quantize_mxfp8

MODES = st.sampled_from(list(ScaleMode))
EXACT = EdgePolicy.EXACT


def bf16_bits(lowest_exponent: int, highest_exponent: int) -> st.SearchStrategy[np.ndarray]:
    """Blocks [1, 32] of finite BF16 bits with exponent fields in a range, and zeros."""
    value = st.builds(
        lambda sign, exponent, mantissa: sign << 15 | exponent << 7 | mantissa,
        st.integers(0, 1),
        st.integers(lowest_exponent, highest_exponent),
        st.integers(0, 127),
    )
    element = st.one_of(st.sampled_from([0, 0x8000]), value)
    return st.lists(element, min_size=32, max_size=32).map(lambda bits: np.array([bits], np.uint16))


@given(bf16_bits(0, 254), MODES, st.sampled_from([E4M3, E2M1]))
def test_negating_the_input_negates_every_code(bits: np.ndarray, mode: ScaleMode, element: Format) -> None:
    codes, scales = fast(bits, "bf16", element, mode, EXACT)
    negated, same_scales = fast(bits ^ 0x8000, "bf16", element, mode, EXACT)
    np.testing.assert_array_equal(negated, codes ^ (1 << (element.bits - 1)))
    np.testing.assert_array_equal(same_scales, scales)


@given(bf16_bits(100, 140), MODES, st.integers(-60, 100))
def test_a_power_of_two_moves_the_scale_and_nothing_else(bits: np.ndarray, mode: ScaleMode, shift: int) -> None:
    """Scale bytes stay within 31..240 here, so neither end of E8M0 nor of BF16 clips."""
    codes, scales = fast(bits, "bf16", E4M3, mode, EXACT)
    moved = np.where(bits & 0x7FFF, bits + np.uint16(shift * 128 % 65536), bits).astype(np.uint16)
    moved_codes, moved_scales = fast(moved, "bf16", E4M3, mode, EXACT)
    np.testing.assert_array_equal(moved_codes, codes)
    if (bits & 0x7FFF).any():
        np.testing.assert_array_equal(moved_scales.astype(int), scales.astype(int) + shift)


@given(bf16_bits(0, 254), MODES, st.permutations(range(32)))
def test_the_order_within_a_block_does_not_matter(bits: np.ndarray, mode: ScaleMode, order: list[int]) -> None:
    codes, scales = fast(bits, "bf16", E4M3, mode, EXACT)
    permuted, same_scales = fast(bits[:, order], "bf16", E4M3, mode, EXACT)
    np.testing.assert_array_equal(permuted, codes[:, order])
    np.testing.assert_array_equal(same_scales, scales)


@given(bf16_bits(0, 253), MODES)
def test_quantizing_a_quantized_block_changes_no_value(bits: np.ndarray, mode: ScaleMode) -> None:
    """Modes that fill the top binade come back to the same bytes. In BF16's last binade a code rounded up means 2^128.

    Under the others the maximum may round down to a power of two, which a scale one lower represents as well.
    """
    first = quantize_mxfp8(bits.view(INPUTS["bf16"][1]), mode=mode)
    second = quantize_mxfp8(first.dequantize(), mode=mode)
    np.testing.assert_array_equal(second.dequantize().view(np.uint32), first.dequantize().view(np.uint32))
    if mode in (ScaleMode.FLOOR, ScaleMode.EVEN, ScaleMode.FLOOR_RATIO):
        np.testing.assert_array_equal(second.codes, first.codes)
        np.testing.assert_array_equal(second.scales, first.scales)


@given(bf16_bits(0, 254), MODES)
def test_bf16_and_fp32_of_the_same_values_quantize_alike(bits: np.ndarray, mode: ScaleMode) -> None:
    narrow = fast(bits, "bf16", E4M3, mode, EXACT)
    wide = fast(bits.astype(np.uint32) << 16, "fp32", E4M3, mode, EXACT)
    np.testing.assert_array_equal(narrow[0], wide[0])
    np.testing.assert_array_equal(narrow[1], wide[1])


@given(bf16_bits(0, 254), bf16_bits(0, 254), MODES)
def test_a_block_does_not_see_its_neighbour(one: np.ndarray, other: np.ndarray, mode: ScaleMode) -> None:
    alone, _ = fast(one, "bf16", E4M3, mode, EXACT)
    beside, _ = fast(np.concatenate([other, one]), "bf16", E4M3, mode, EXACT)
    np.testing.assert_array_equal(beside[1:], alone)


@given(bf16_bits(0, 254))
@example(np.array([[0] * 31 + [0x7F78]], np.uint16))
def test_rceil_never_saturates(bits: np.ndarray) -> None:
    """The largest code has a magnitude of at most max by choice of scale: dequantized, it is within half a step."""
    x = bits.view(INPUTS["bf16"][1])
    tensor = quantize_mxfp8(x)
    half_step = np.ldexp(1.0, int(tensor.scales[0, 0]) - 127 + 4)
    largest = np.abs(x.astype(np.float64)).max()
    # Not by dequantize(): at the top of BF16 the rounded code times its scale is 2^128, which overflows float32.
    code = np.abs(E4M3.values()[tensor.codes]).max()
    assert np.abs(np.ldexp(code, int(tensor.scales[0, 0]) - 127) - largest) <= half_step


@given(st.integers(0, 255), st.integers(0, 255))
def test_dequantize_has_one_nan(code: int, scale: int) -> None:
    values = dequantize_mxfp8(np.full((1, 32), code, np.uint8), np.full((1, 1), scale, np.uint8))
    nan = scale == 0xFF or code & 0x7F == 0x7F
    assert (values.view(np.uint32) == 0x7FC00000).all() == nan
    assert np.isnan(values).all() == nan


@given(st.integers(0, 3), st.integers(0, 3), st.integers(0, 3))
def test_any_shape_is_its_rows(a: int, b: int, blocks: int) -> None:
    x = np.random.default_rng(a * 16 + b * 4 + blocks).standard_normal((a, b, 32 * blocks)).astype(np.float16)
    tensor = quantize_mxfp8(x)
    assert isinstance(tensor, MXTensor)
    assert tensor.codes.shape == tensor.shape == x.shape
    assert tensor.scales.shape == (a, b, blocks)
    for row in np.ndindex(a, b):
        np.testing.assert_array_equal(tensor.codes[row], quantize_mxfp8(x[row]).codes)
