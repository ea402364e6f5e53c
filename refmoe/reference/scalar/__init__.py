"""The specification: one value at a time in exact rationals, slow and obviously right.

Nothing here is shared with the fast references beyond the format constants and the policy enums, so that the two can
be held against each other.
"""

from __future__ import annotations

from refmoe.reference.scalar.numbers import Number, decode, encode
from refmoe.reference.scalar.quantize import QuantizedBlock, dequantize_block, quantize_block, scale_byte

__all__ = [
    "Number",
    "QuantizedBlock",
    "decode",
    "dequantize_block",
    "encode",
    "quantize_block",
    "scale_byte",
]
