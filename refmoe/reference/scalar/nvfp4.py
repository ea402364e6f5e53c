"""NVFP4 quantization of one block, one FP32 operation at a time in exact rationals: the specification.

Numbers are FP32 bit patterns, operations those of `refmoe.reference.scalar.arithmetic`: each is rounded to nearest even
once, none is fused, none flushes a subnormal.
"""

from __future__ import annotations

from collections.abc import Sequence
from fractions import Fraction
from typing import NamedTuple

from refmoe.formats import E2M1, E4M3, FP32, Format
from refmoe.reference.scalar.arithmetic import divide, multiply, rounded
from refmoe.reference.scalar.numbers import Number, NumberKind, decode, encode

BLOCK = 16
_ZERO, _ONE = 0x00000000, 0x3F800000
_LARGEST = 0x7F7FFFFF
_NAN_SCALE = 0x7F
_NAN_VALUE = 0x7FC00000


class Block(NamedTuple):
    """The UE4M3 byte of a block, and its E2M1 codes, one an element, not packed."""

    scale: int
    codes: tuple[int, ...]


def global_scale(amax: int) -> int:
    """g of a tensor whose largest finite magnitude is `amax`: 448 * 6 / amax, at most FLT_MAX; 1 for a zero tensor."""
    if amax == _ZERO:
        return _ONE
    return _smaller(divide(_bits(Fraction(448 * 6)), amax), _LARGEST)


def quantize_block(block: Sequence[int], g: int) -> Block:
    """Quantize the FP32 elements of a block under the global encode scale `g`."""
    numbers = [decode(bits, FP32) for bits in block]
    if any(number.kind is not NumberKind.FINITE for number in numbers):
        return Block(_NAN_SCALE, (0,) * len(block))
    amax = _bits(max(number.magnitude for number in numbers))
    sixth = _bits(Fraction(1, 6))
    scale = _encoded(multiply(amax, multiply(g, sixth)), E4M3)
    if amax == _ZERO:
        factor = _ZERO
    else:
        value = _bits(decode(scale, E4M3).magnitude)
        factor = _smaller(divide(_ONE, multiply(value, divide(_ONE, g))), _LARGEST)
    return Block(scale, tuple(_encoded(multiply(bits, factor), E2M1) for bits in block))


def dequantize_block(block: Block, decode_scale: int) -> list[int]:
    """FP32 bits of (code * scale) * global decode scale; 0x7FC00000 under a NaN scale."""
    scale = decode(block.scale & 0x7F, E4M3)
    if scale.kind is NumberKind.NAN:
        return [_NAN_VALUE] * len(block.codes)
    elements = [decode(code, E2M1) for code in block.codes]
    return [multiply(rounded(number.times(scale.magnitude)), decode_scale) for number in elements]


def _bits(value: Fraction) -> int:
    return rounded(Number(NumberKind.FINITE, False, value))


def _smaller(x: int, y: int) -> int:
    """The smaller of two magnitudes, whose bits have their order; infinity is the largest."""
    return min(x, y)


def _encoded(bits: int, fmt: Format) -> int:
    """The code of a finite or infinite FP32 number, nearest, ties to even, saturating."""
    number = decode(bits, FP32)
    if number.kind is NumberKind.INFINITE:
        number = Number(NumberKind.FINITE, number.negative, FP32.max)
    return encode(number, fmt)
