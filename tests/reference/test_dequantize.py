from __future__ import annotations

import numpy as np
import pytest

from refmoe.formats import E2M1, E4M3
from refmoe.reference import dequantize_mxfp4, dequantize_mxfp8
from refmoe.reference.scalar import QuantizedBlock, dequantize_block


def test_every_mxfp8_scale_and_code() -> None:
    """All 65,536 pairs: NaN scale, NaN codes, -0, results down to 2^-136 and up past FP32's range."""
    scales = np.repeat(np.arange(256), 8).astype(np.uint8)
    codes = np.tile(np.arange(256), 256).reshape(-1, 32).astype(np.uint8)
    got = dequantize_mxfp8(codes, scales[:, None]).view(np.uint32)
    wanted = [
        dequantize_block(QuantizedBlock(int(scale), tuple(row)))
        for scale, row in zip(scales, codes.tolist(), strict=True)
    ]
    np.testing.assert_array_equal(got, np.array(wanted, np.uint32))


@pytest.mark.parametrize("order", ["even-low", "gguf"])
def test_every_mxfp4_scale_and_byte(order: str) -> None:
    scales = np.repeat(np.arange(256), 16).astype(np.uint8)
    packed = np.tile(np.random.default_rng(0).permutation(256), 256).reshape(-1, 16).astype(np.uint8)
    got = dequantize_mxfp4(packed, scales[:, None], order=order).view(np.uint32)
    for row, scale, values in zip(packed.tolist(), scales.tolist(), got, strict=True):
        low, high = [byte & 15 for byte in row], [byte >> 4 for byte in row]
        # The two packings, written out: neighbours in a byte, or the two halves of the block.
        codes = [code for pair in zip(low, high, strict=True) for code in pair] if order == "even-low" else low + high
        assert values.tolist() == _decoded(scale, tuple(codes))


def _decoded(scale: int, codes: tuple[int, ...]) -> list[int]:
    table = _TABLE.setdefault(scale, dequantize_block(QuantizedBlock(scale, tuple(range(16))), E2M1))
    return [table[code] for code in codes]


_TABLE: dict[int, list[int]] = {}


def test_boundaries_by_hand() -> None:
    """2^-127 is an FP32 subnormal, 448 * 2^127 is past FP32, and -0 stays what it is."""
    codes = np.zeros((1, 32), np.uint8)
    codes[0, :6] = [E4M3.encode(1), 0x80, 0x7E, 0xFE, 0x01, 0xFF]
    assert dequantize_mxfp8(codes, np.array([[0]], np.uint8)).view(np.uint32)[0, :6].tolist() == [
        0x00400000,
        0x80000000,
        0x04600000,
        0x84600000,
        1 << (149 - 136),
        0x7FC00000,
    ]
    top = dequantize_mxfp8(codes, np.array([[0xFE]], np.uint8)).view(np.uint32)[0, :6].tolist()
    assert top == [0x7F000000, 0x80000000, 0x7F800000, 0xFF800000, (127 - 9 + 127) << 23, 0x7FC00000]


def test_gguf_order_of_more_blocks_than_a_chunk() -> None:
    packed = np.random.default_rng(1).integers(0, 256, (40_000, 16), dtype=np.uint8)
    scales = np.random.default_rng(2).integers(100, 140, (40_000, 1), dtype=np.uint8)
    low, high = packed & 15, packed >> 4
    as_even_low = np.concatenate([low[:, 0::2] | low[:, 1::2] << 4, high[:, 0::2] | high[:, 1::2] << 4], axis=1)
    np.testing.assert_array_equal(
        dequantize_mxfp4(packed, scales, order="gguf").view(np.uint32),
        dequantize_mxfp4(as_even_low, scales).view(np.uint32),
    )
