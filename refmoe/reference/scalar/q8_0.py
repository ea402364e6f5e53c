"""Dequantization of one Q8_0 block in exact rationals: the specification.

A block is 34 bytes: an FP16 number d, little-endian, and 32 two's-complement bytes q. An element is worth q * d. Every
such product of finite numbers is an FP32 number, so nothing is rounded. A zero has the sign that IEEE gives a product:
that of d where q is 0, since an integer 0 has no minus.
"""

from __future__ import annotations

from fractions import Fraction

from refmoe.formats import FP16, FP32
from refmoe.reference.scalar.arithmetic import rounded
from refmoe.reference.scalar.numbers import Number, NumberKind, decode

_BLOCK = 32
_NAN_VALUE = 0x7FC00000


def dequantize_block(block: bytes) -> list[int]:
    """FP32 bits of the 32 elements of a block; 0x7FC00000 for a NaN, as from a NaN d, or an infinite d times 0."""
    assert len(block) == 2 + _BLOCK
    scale = decode(block[0] | block[1] << 8, FP16)
    return [_element(scale, byte - 256 if byte > 127 else byte) for byte in block[2:]]


def _element(scale: Number, integer: int) -> int:
    if scale.kind is NumberKind.NAN or (scale.kind is NumberKind.INFINITE and integer == 0):
        return _NAN_VALUE
    negative = scale.negative != (integer < 0)
    value = Number(scale.kind, negative, scale.magnitude * abs(integer))
    bits = rounded(value)
    assert value.kind is NumberKind.INFINITE or abs(Fraction(FP32.decode(bits))) == value.magnitude
    return bits
