"""NVFP4 quantization: the fast reference against the specification, block by block, and what users may do with it."""

from __future__ import annotations

import ml_dtypes
import numpy as np
import pytest
from numpy.typing import NDArray
from support.selection.thinned import thinned

import refmoe
from refmoe.errors import ArgumentError
from refmoe.formats import E2M1, FP32, UE4M3
from refmoe.reference.layout import unpack_fp4
from refmoe.reference.nvfp4 import (
    NVFP4Tensor,
    dequantize_nvfp4,
    nvfp4_encode_scale,
    quantize_nvfp4,
    tensor_amax,
)
from refmoe.reference.scalar import nvfp4 as scalar

BF16 = np.dtype(ml_dtypes.bfloat16)


def floats(bits: object) -> NDArray[np.float32]:
    return np.asarray(bits, np.uint32).view(np.float32)


def bits_of(value: np.float32) -> int:
    return int(np.float32(value).view(np.uint32))


def check(x: NDArray[np.generic], g: np.float32) -> None:
    """Every byte of the fast result is the specification's."""
    made = quantize_nvfp4(x, global_encode_scale=g)
    wide = x.astype(np.float32).view(np.uint32).reshape(-1, 16)
    codes, scales = unpack_fp4(made.codes).reshape(-1, 16), made.scales.reshape(-1)
    for number, block in enumerate(wide.tolist()):
        expected = scalar.quantize_block(block, bits_of(g))
        assert (int(scales[number]), tuple(codes[number].tolist())) == tuple(expected), (number, block, g)


def adversarial(seed: int) -> NDArray[np.float32]:
    """Blocks whose maxima and elements lie at, and one ulp beside, everything that rounds: [n, 16]."""
    random = np.random.default_rng(seed)
    ties = np.array([0.25, 0.75, 1.25, 1.75, 2.5, 3.5, 5, 0.5, 1, 1.5, 2, 3, 4, 6, 0, 1e-3])
    scales = UE4M3.values()[:127]
    scales = np.concatenate([scales, (scales[:-1] + scales[1:]) / 2, [464.0, 480.0, 1e-4, 2.0**-10, 2.0**-11]])
    blocks = (scales[:, None] * ties).astype(np.float32)
    nudged = (blocks.view(np.uint32) + random.integers(-1, 2, blocks.shape)).astype(np.uint32)
    nudged[blocks == 0] = 0
    both = np.concatenate([blocks.view(np.uint32), nudged])
    return (both | (random.integers(0, 2, both.shape) << 31).astype(np.uint32)).view(np.float32)


@pytest.mark.parametrize("g", thinned([1.0, 1 / 32, 17.123, 3.0, 2688.0], 2))
def test_adversarial_blocks_are_those_of_the_specification(g: float) -> None:
    check(adversarial(3), np.float32(g))
    with np.errstate(over="ignore"):
        check((adversarial(4) / np.float32(g)).astype(np.float32), np.float32(g))


@pytest.mark.parametrize("dtype", [BF16, np.dtype(np.float16), np.dtype(np.float32)], ids=str)
@pytest.mark.parametrize("spread", [0, 8])
def test_random_blocks_are_those_of_the_specification(dtype: np.dtype[np.generic], spread: int) -> None:
    random = np.random.default_rng(7)
    x = (random.standard_normal((128, 16)) * np.exp2(random.integers(-spread, spread + 1, (128, 1)))).astype(dtype)
    check(x, nvfp4_encode_scale(tensor_amax(x)))


EXTREME = [0x00000001, 0x00400000, 0x007FFFFF, 0x00800000, 0x01000000, 0x7F000000, 0x7F7FFFFF, 0x3F800000, 0x80000001]


@pytest.mark.parametrize("g", [0x00400000, 0x00800000, 0x7F7FFFFF, 0x7E800000, 0x3F800000, 0x45280000])
def test_extremes_of_the_global_scale_and_of_elements(g: int) -> None:
    blocks = [[one] + [other] * 15 for one in EXTREME for other in (0, 1, 0x80000000, 0x807FFFFF, one)]
    check(floats(blocks), floats(g)[()])


def test_what_is_not_finite_poisons_its_block_and_no_other() -> None:
    x = np.ones((1, 96), np.float32)
    x[0, [3, 20, 37]] = np.nan, np.inf, -np.inf
    made = quantize_nvfp4(x)
    assert made.scales.tolist() == [[0x7F, 0x7F, 0x7F, 0x7E, 0x7E, 0x7E]]
    assert not unpack_fp4(made.codes)[0, :48].any()
    assert made.global_decode_scale == np.float32(1) / np.float32(2688)
    back = made.dequantize()
    assert np.isnan(back[0, :48]).all()
    # Code 6 under scale 448, times 1 / 2688 as FP32 has it: one rounding.
    assert (back[0, 48:] == np.float32(6 * 448) * made.global_decode_scale).all()
    check(x, np.float32(2688))


def test_zero_blocks_keep_their_signs_and_underflown_ones_are_worth_zero() -> None:
    x = np.zeros((3, 16), np.float32)
    x[0, ::2] = -0.0
    x[1] = np.float32(1e-30)
    x[2, 0] = -1
    made = quantize_nvfp4(x)
    codes = unpack_fp4(made.codes)
    assert made.scales.ravel().tolist() == [0, 0, 0x7E]
    assert codes[0].tolist() == [8, 0] * 8
    assert codes[1].tolist() == [7] * 16
    assert not made.dequantize()[:2].any()


@pytest.mark.parametrize(
    ("amax", "g"),
    [
        (0x00000000, 0x3F800000),
        (0x00000001, 0x7F7FFFFF),
        (0x04800000, None),
        (0x7F7FFFFF, None),
        (0x3F800000, 0x45280000),
    ],
)
def test_the_global_scale_and_its_limits(amax: int, g: int | None) -> None:
    found = bits_of(nvfp4_encode_scale(floats(amax)[()]))
    assert found == scalar.global_scale(amax)
    assert g is None or found == g


def test_dequantized_values_are_those_of_the_specification() -> None:
    codes = np.tile(np.arange(256, dtype=np.uint8), (256, 1)).reshape(256, 32, 8)
    scales = np.broadcast_to(np.arange(256, dtype=np.uint8)[:, None, None], (256, 32, 1)).copy()
    for decode_scale in (1.0, 1 / 2688, 3e-38, 2.0**-149):
        factor = np.float32(decode_scale)
        values = dequantize_nvfp4(codes, scales, factor).view(np.uint32)
        for scale in (*range(0, 256, 5), 0x7E, 0x7F, 0xFF):
            for place in (0, 7, 31):
                block = scalar.Block(scale, tuple(unpack_fp4(codes)[scale, place].tolist()))
                assert values[scale, place].tolist() == scalar.dequantize_block(block, bits_of(factor))


def test_users_quantize_and_take_back() -> None:
    x = np.linspace(-3, 3, 64, dtype=np.float32).reshape(2, 32)
    made = refmoe.quantize(x, "nvfp4")
    assert isinstance(made, NVFP4Tensor)
    own = quantize_nvfp4(x)
    assert (made.codes.tobytes(), made.scales.tobytes()) == (own.codes.tobytes(), own.scales.tobytes())
    assert (made.shape, made.format, made.codes.shape, made.scales.shape) == ((2, 32), "nvfp4", (2, 16), (2, 2))
    assert np.array_equal(refmoe.dequantize(made), made.dequantize())
    assert np.abs(refmoe.dequantize(made) - x).max() <= 0.5 + 2**-4
    assert quantize_nvfp4(np.zeros((0, 32), BF16)).scales.shape == (0, 2)
    assert refmoe.quantize(x, "nvfp4", policy="transformer_engine").scales.tobytes() == own.scales.tobytes()
    with pytest.raises(ArgumentError, match="policy: found str 'ocp'; needed transformer_engine"):
        refmoe.quantize(x, "nvfp4", policy="ocp")


@pytest.mark.parametrize(
    ("x", "g", "message"),
    [
        (np.zeros((2, 24), np.float32), None, "a last dimension that is a multiple of 16"),
        (np.zeros((2, 16)), None, "an array of ml_dtypes.bfloat16, float16 or float32"),
        (np.zeros((16, 2), np.float32).T, None, "a C-contiguous array"),
        (np.zeros((2, 16), np.float32), 0.0, "global_encode_scale: found float 0.0; needed a float32 above 0, finite"),
        (np.zeros((2, 16), np.float32), float("nan"), "a float32 above 0, finite"),
        (np.zeros((2, 16), np.float32), -1.0, "a float32 above 0, finite"),
        (np.zeros((2, 16), np.float32), 1e39, "a float32 above 0, finite"),
        (np.zeros((2, 16), np.float32), 1e-40, "a float32 with a finite reciprocal"),
        (np.zeros((2, 16), np.float32), True, "a float32 above 0, finite"),
    ],
)
def test_what_is_refused(x: NDArray[np.generic], g: float | None, message: str) -> None:
    with pytest.raises(ArgumentError, match=message):
        quantize_nvfp4(x, global_encode_scale=g)


def test_a_tensor_whose_parts_do_not_belong_together_is_refused() -> None:
    codes, scales = np.zeros((2, 16), np.uint8), np.zeros((2, 2), np.uint8)
    with pytest.raises(ArgumentError, match=r"scales: .* one byte a block of 16"):
        NVFP4Tensor(codes, scales[:, :1], np.float32(1))
    with pytest.raises(ArgumentError, match=r"codes: .* a uint8 array"):
        NVFP4Tensor(codes.astype(np.int8), scales, np.float32(1))
    with pytest.raises(ArgumentError, match=r"global_decode_scale: .* a float32 above 0, finite"):
        NVFP4Tensor(codes, scales, np.float32(0))


def test_the_formats_have_the_constants_that_the_rule_writes() -> None:
    assert (UE4M3.max, E2M1.max, float(FP32.max)) == (448, 6, float(np.finfo(np.float32).max))
