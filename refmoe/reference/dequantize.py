"""MX dequantization: one look-up in a table of every (scale, code) pair.

The tables hold bit patterns made with integers, so a process that flushes subnormals to zero gets the same result.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cache

import numpy as np
from numpy.typing import NDArray

from refmoe.errors import ArgumentError, describe
from refmoe.formats import MXFP4, MXFP8, MXFormat
from refmoe.reference.chunks import chunks

_BLOCKS_A_CHUNK = 1 << 14
_NAN_BITS = np.uint32(0x7FC00000)


def dequantize_mxfp8(codes: NDArray[np.uint8], scales: NDArray[np.uint8]) -> NDArray[np.float32]:
    """The values of MXFP8: code * 2^(scale - 127) (OCP MX v1.0 section 5.1), exact in FP32.

    Args:
        codes: uint8 [..., K] E4M3, C-contiguous, K a multiple of 32.
        scales: uint8 [..., K/32] E8M0, C-contiguous.

    Returns:
        float32 [..., K]. A NaN scale or code gives 0x7FC00000, a product above FP32's range infinity.

    Raises:
        ArgumentError: wrong dtype or shape, or an array that is not C-contiguous.
    """
    return dequantize_codes(codes, scales, MXFP8)


def dequantize_mxfp4(
    codes: NDArray[np.uint8], scales: NDArray[np.uint8], *, order: str = "even-low"
) -> NDArray[np.float32]:
    """The values of MXFP4: code * 2^(scale - 127) (OCP MX v1.0 section 5.1), exact in FP32.

    Args:
        codes: uint8 [..., K/2], two E2M1 codes a byte, C-contiguous, K a multiple of 32.
        scales: uint8 [..., K/32] E8M0, C-contiguous.
        order: "even-low": byte i of a block holds elements 2i (low nibble) and 2i+1; "gguf": i (low) and i+16.

    Returns:
        float32 [..., K]. A NaN scale gives 0x7FC00000, a product above FP32's range infinity.

    Raises:
        ArgumentError: an unknown order, wrong dtype or shape, or an array that is not C-contiguous.
    """
    if order not in ("even-low", "gguf"):
        raise ArgumentError("order", describe(order), "even-low or gguf")
    return dequantize_codes(codes, scales, MXFP4, repack=even_low if order == "gguf" else None)


def dequantize_codes(
    codes: NDArray[np.uint8],
    scales: NDArray[np.uint8],
    mx: MXFormat,
    repack: Callable[[NDArray[np.uint8]], NDArray[np.uint8]] | None = None,
) -> NDArray[np.float32]:
    """The values of any MX format, float32 [..., K].

    Args:
        codes: uint8 [..., K / codes a byte], C-contiguous, K a multiple of the block.
        scales: uint8 [..., K / block], C-contiguous.
        mx: the format.
        repack: puts blocks of codes [n, bytes of a block] into the order "even-low".

    Raises:
        ArgumentError: wrong dtype or shape, or an array that is not C-contiguous.
    """
    _check(codes, scales, mx.block_bytes)
    out = np.empty((*codes.shape[:-1], codes.shape[-1] * mx.codes_a_byte), np.uint32)
    code_rows, row_scales = codes.reshape(-1, mx.block_bytes), scales.reshape(-1)
    # One look-up gives all the values of a byte.
    table = _value_bits(mx) if mx.codes_a_byte == 1 else _pair_bits(mx)
    out_rows = out.view(table.dtype).reshape(-1, mx.block_bytes)
    shift = np.uint16(mx.element.bits * mx.codes_a_byte)
    # What is in between stays in the cache. No threads: the time goes into writing memory, which they do not speed up.
    for chunk in chunks(row_scales.size, _BLOCKS_A_CHUNK):
        packed = code_rows[chunk] if repack is None else repack(code_rows[chunk])
        index = (row_scales[chunk, None].astype(np.uint16) << shift) | packed
        np.take(table, index, out=out_rows[chunk], mode="clip")
    return out.view(np.float32)


def even_low(gguf: NDArray[np.uint8]) -> NDArray[np.uint8]:
    """Blocks [n, 16] packed as element i with i + 16, repacked as 2i with 2i + 1.

    The low nibbles of two neighbouring bytes make one byte of the first half, the high ones one of the second. Moving
    packed bytes costs a fraction of what moving the decoded values would.
    """
    pair = gguf.view("<u2")
    # Little-endian: the earlier byte is the low one.
    low = (pair & np.uint16(0x0F)) | ((pair >> np.uint16(4)) & np.uint16(0xF0))
    high = ((pair >> np.uint16(4)) & np.uint16(0x0F)) | ((pair >> np.uint16(8)) & np.uint16(0xF0))
    out = np.empty((len(gguf), 2), np.uint64)
    out[:, 0] = low.astype(np.uint8).view(np.uint64)[:, 0]
    out[:, 1] = high.astype(np.uint8).view(np.uint64)[:, 0]
    return out.view(np.uint8)


def _check(codes: NDArray[np.uint8], scales: NDArray[np.uint8], bytes_a_block: int) -> None:
    for name, array in (("codes", codes), ("scales", scales)):
        if not isinstance(array, np.ndarray) or array.dtype != np.uint8 or array.ndim == 0:
            raise ArgumentError(name, describe(array), "a uint8 array of at least one dimension")
        if not array.flags.c_contiguous:
            raise ArgumentError(name, f"{describe(array)} that is not contiguous", "a C-contiguous array")
    *rows, width = codes.shape
    if width % bytes_a_block:
        raise ArgumentError("codes", describe(codes), f"a last dimension that is a multiple of {bytes_a_block}")
    if scales.shape != (*rows, width // bytes_a_block):
        raise ArgumentError("scales", describe(scales), f"shape {[*rows, width // bytes_a_block]}")


@cache
def _value_bits(mx: MXFormat) -> NDArray[np.uint32]:
    """FP32 bits of code * scale, index scale * 2^bits + code."""
    with np.errstate(over="ignore", invalid="ignore"):
        values = mx.scale.values()[:, None] * mx.element.values()
        magnitude = np.abs(values)
        bits = magnitude.astype(np.float32).view(np.uint32)
    # Subnormals as the integers that they are: a float64 to float32 conversion would obey flush-to-zero.
    subnormal = magnitude < 2.0**-126
    bits[subnormal] = (magnitude[subnormal] * 2.0**149).astype(np.uint32)
    bits |= np.signbit(values).astype(np.uint32) << np.uint32(31)
    bits[np.isnan(values)] = _NAN_BITS
    return bits.reshape(-1)


@cache
def _pair_bits(mx: MXFormat) -> NDArray[np.uint64]:
    """FP32 bits of both values of a packed byte, low nibble first in memory, index scale * 256 + byte."""
    values = _value_bits(mx).reshape(-1, 16)
    byte = np.arange(256)
    pairs = np.stack([values[:, byte & 15], values[:, byte >> 4]], axis=-1)
    return np.ascontiguousarray(pairs).view(np.uint64).reshape(-1)
