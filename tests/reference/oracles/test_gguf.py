"""gguf 0.19.0's MXFP4 against ours: every value, and codes where its rounding can be told from nearest even."""

from __future__ import annotations

import numpy as np
import pytest

from refmoe.formats import E2M1
from refmoe.policy import ScaleMode
from refmoe.reference import dequantize_mxfp4, quantize_mxfp4
from refmoe.reference.layout import unpack_fp4

gguf = pytest.importorskip("gguf")
from gguf.quants import dequantize, quantize  # noqa: E402

MXFP4 = gguf.GGMLQuantizationType.MXFP4


def test_every_scale_and_byte_decodes_alike_but_for_code_8_and_scale_255() -> None:
    scales = np.repeat(np.arange(256), 16).astype(np.uint8)[:, None]
    packed = np.tile(np.arange(256), 256).reshape(-1, 16).astype(np.uint8)
    with np.errstate(over="ignore"):
        theirs = dequantize(np.concatenate([scales, packed], axis=1), MXFP4).view(np.uint32)
    ours = dequantize_mxfp4(packed, scales, order="gguf").view(np.uint32)
    code = np.concatenate([packed & 15, packed >> 4], axis=1)
    # gguf keeps its table in int8, where -0 is 0.
    minus_zero = (code == 8) & (scales != 255)
    # gguf has no NaN scale: it reads 255 as 2^128, applied as 2^127 to doubled values.
    no_nan = np.broadcast_to(scales == 255, code.shape)
    np.testing.assert_array_equal(ours != theirs, minus_zero | no_nan)
    assert (ours[minus_zero] == 0x80000000).all()
    assert (theirs[minus_zero] == 0).all()
    assert (ours[no_nan] == 0x7FC00000).all()


def test_gguf_has_no_quantizer_of_q8_1() -> None:
    with pytest.raises(NotImplementedError, match="Q8_1"):
        quantize(np.zeros((1, 32), np.float32), gguf.GGMLQuantizationType.Q8_1)


def quantized(x: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]:
    """Codes and scales of gguf, then ours in its scale mode, FLOOR."""
    blocks = quantize(x, MXFP4)
    packed = np.ascontiguousarray(blocks[:, 1:])
    ours = quantize_mxfp4(x, mode=ScaleMode.FLOOR)
    return unpack_fp4(packed, order="gguf"), blocks[:, 0], unpack_fp4(ours.codes), ours.scales[:, 0]


def test_quantize_differs_only_in_ties_and_negative_zeros() -> None:
    random = np.random.default_rng(11)
    x = (random.standard_normal((4096, 32)) * np.exp2(random.integers(-30, 30, (4096, 1)))).astype(np.float32)
    # Half of the elements on the grid of 1/16 of the scale, so that ties and zeros of both signs are common.
    x[:2048] = np.round(x[:2048] * 2 ** (3 - np.floor(np.log2(np.abs(x[:2048]).max(axis=1, keepdims=True))))) * 0.125
    theirs, their_scales, ours, our_scales = quantized(x)
    np.testing.assert_array_equal(our_scales, their_scales)

    scaled = np.abs(x.astype(np.float64)) * np.exp2(127.0 - our_scales[:, None])
    midpoints = (E2M1.values()[:7] + E2M1.values()[1:8]) / 2
    tie = np.isin(scaled, midpoints)
    # gguf takes the first of two equally near values in its table: the smaller magnitude. Nearest even does so at
    # .25, 1.25, 2.5 and 5 and goes up at .75, 1.75 and 3.5.
    tie_up = tie & np.isin(scaled, midpoints[1::2])
    to_minus_zero = np.signbit(x) & (scaled <= 0.25)
    np.testing.assert_array_equal(ours != theirs, tie_up | to_minus_zero)
    assert tie_up.any()
    np.testing.assert_array_equal(theirs[tie_up] + 1, ours[tie_up])
    assert (theirs[to_minus_zero] == 0).all()
    assert (ours[to_minus_zero] == 8).all()


@pytest.mark.parametrize("mantissa", [0x7FFFFD, 0x7FFFFE, 0x7FFFFF])
def test_float32_log2_rounds_up_just_below_a_power_of_two(mantissa: int) -> None:
    """FP32 log2 of such an amax is an integer wherever its ulp is too coarse: gguf's scale is then one too large."""
    exponents = np.arange(40, 215)
    x = np.zeros((exponents.size, 32), np.uint32)
    x[:, 0] = exponents << 23 | mantissa
    _, theirs, _, ours = quantized(x.view(np.float32))
    log2 = np.log2(x[:, 0].view(np.float32).astype(np.float64)).astype(np.float32)
    np.testing.assert_array_equal(ours, exponents - 2)
    np.testing.assert_array_equal(theirs, np.floor(log2) + 127 - 2)
    assert (theirs != ours).any()
