"""The 8-, 6- and 4-bit formats and the E8M0 scale, as tables.

A narrow result depends on no more than the top 16 bits of a float32 and on whether any bit below them is set. So each
conversion is one look-up in a table of 65,536 entries, made from the format's definition on first use.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache

import numpy as np

from refmoe.ptx.isa.floats import BF16, F16, Float, decode
from refmoe.ptx.isa.operation import Array


@dataclass(frozen=True)
class Narrow:
    """A floating-point format of at most 8 bits.

    Attributes:
        name: PTX type name of one element.
        exponent: exponent bits.
        mantissa: fraction bits.
        bias: exponent bias.
        largest: code of the largest finite number.
        nan: code of the NaN that conversions produce; formats without NaN give their largest number.
        field: bits that one element takes up in a packed register.
    """

    name: str
    exponent: int
    mantissa: int
    bias: int
    largest: int
    nan: int
    field: int

    @property
    def sign(self) -> int:
        """The sign bit of a code."""
        return 1 << (self.exponent + self.mantissa)


NARROW: dict[str, Narrow] = {
    f.name: f
    for f in (
        Narrow("e4m3", 4, 3, 7, 0x7E, 0x7F, 8),
        Narrow("e5m2", 5, 2, 15, 0x7B, 0x7F, 8),
        Narrow("e2m3", 2, 3, 1, 0x1F, 0x1F, 8),
        Narrow("e3m2", 3, 2, 3, 0x1F, 0x1F, 8),
        Narrow("e2m1", 2, 1, 1, 0x07, 0x07, 4),
    )
}


def values(format: Narrow) -> Array:
    """The value of every code without its sign, float64; codes above the largest number are Inf and NaN."""
    code = np.arange(format.sign)
    exponent, fraction = code >> format.mantissa, code & ((1 << format.mantissa) - 1)
    significand = np.where(exponent > 0, fraction + (1 << format.mantissa), fraction)
    value = np.ldexp(significand.astype(np.float64), np.maximum(exponent, 1) - format.bias - format.mantissa)
    value[format.largest + 1 :] = np.nan
    if format.name == "e5m2":
        value[format.largest + 1] = np.inf
    return value


def sticky16(x: Array) -> Array:
    """The top 16 bits of a float32 bit pattern, the last one also set if any bit below is: an index into the tables."""
    # Adding 0xFFFF carries into bit 16 exactly if a lower bit is set.
    return (((x & 0xFFFF) + 0xFFFF) | x) >> 16


@cache
def encode_table(format: Narrow, source: Float, relu: bool) -> Array:
    """Codes of all 65,536 bit patterns of a 16-bit format: to nearest even, saturating; uint8.

    With `source` BF16 the index may be `sticky16` of a float32: its last bit lies below every midpoint.
    """
    with np.errstate(invalid="ignore"):  # signalling NaN
        x = decode(np.arange(1 << 16).astype(np.uint16), source)
    magnitude = np.abs(x)
    grid = values(format)[: format.largest + 1]
    midpoints = (grid[:-1] + grid[1:]) / 2
    # Ties go to the even code: from an even code the midpoint itself still belongs to it.
    code = np.searchsorted(midpoints, magnitude, side="left")
    tie = code < len(midpoints)
    tie &= midpoints[np.minimum(code, len(midpoints) - 1)] == magnitude
    code = code + (tie & (code % 2 == 1))
    negative = np.signbit(x)
    result = np.where(negative, code | format.sign, code)
    if relu:
        result = np.where(negative, 0, result)
    table = np.where(np.isnan(x), format.nan, result).astype(np.uint8)
    table.flags.writeable = False
    return table


@cache
def decode_table(format: Narrow, relu: bool, target: Float = F16) -> Array:
    """The bit pattern in F16 or BF16 of all 256 bytes, exact; bits above the code are ignored; uint16."""
    code = np.arange(256)
    value = values(format)[code & (format.sign - 1)]
    negative = (code & format.sign) != 0
    signed = np.where(negative, -value, value)
    if target is BF16:
        bits = (signed.astype(np.float32).view(np.uint32) >> 16).astype(np.uint16)
    else:
        bits = signed.astype(np.float16).view(np.uint16)
    if relu:
        bits = np.where(negative, np.uint16(0), bits)
    table = np.where(np.isnan(value), target.word(target.nan), bits)
    table.flags.writeable = False
    return table


@cache
def e8m0_table(rounding: str, satfinite: bool) -> Array:
    """E8M0 codes of all 65,536 BF16 bit patterns, of which the last bit may be sticky; uint8.

    The sign is ignored. Toward zero or up to a power of two; below 2^-127 the code is 0; NaN gives 0xFF. Infinity, and
    what rounds up past 2^127, give 0xFE with `satfinite` and 0xFF without.
    """
    bits = np.arange(1 << 16) & 0x7FFF
    exponent, fraction = bits >> 7, bits & 0x7F
    code = exponent.copy()
    if rounding == "rp":
        # Subnormals: 2^-127 is exponent field 0 with fraction 0x40; above it the next power is 2^-126.
        code += np.where(exponent > 0, fraction > 0, fraction > 0x40)
    code = np.where((exponent == 255) & (fraction == 0), 255, np.minimum(code, 255))
    if satfinite:
        code = np.minimum(code, 254)
    table = np.where(bits > 0x7F80, 0xFF, code).astype(np.uint8)
    table.flags.writeable = False
    return table
