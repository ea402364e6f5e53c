"""Operand codes as the accumulation models see them: values, exponents, lowest set bits."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache
from typing import Any

import numpy as np
from numpy.typing import NDArray

from refmoe.formats import E8M0, MXFP8, UE4M3, Format, MXFormat, Specials

ABSENT = 1 << 13
"""Stands for the lowest bit of a zero (no bit is set) and, negated, for its exponent (it takes no part)."""


@dataclass(frozen=True)
class Table:
    """What each code of a format is; unused low bits of the code are shifted out first.

    Attributes:
        value: float64, the value.
        exponent: int16, the exponent, not below emin; -ABSENT for a zero and for what is not a number.
        low: int16, the exponent of the lowest set bit; ABSENT for a zero and for what is not a number.
    """

    value: NDArray[np.float64]
    exponent: NDArray[np.int16]
    low: NDArray[np.int16]


@cache
def table(fmt: Format) -> Table:
    """The table of a signed format with subnormals."""
    codes = np.arange(1 << (fmt.bits - fmt.unused_low_bits), dtype=np.int64)
    top_field = (1 << fmt.exponent_bits) - 1
    field = codes >> fmt.mantissa_bits & top_field
    fraction = codes & ((1 << fmt.mantissa_bits) - 1)
    significand = fraction | np.where(field > 0, 1 << fmt.mantissa_bits, 0)
    exponent = np.maximum(field, 1) - fmt.bias
    unit = exponent - fmt.mantissa_bits
    magnitude = significand * power_of_two(unit)
    if fmt.specials is Specials.IEEE:
        special = field == top_field
        magnitude[special] = np.where(fraction[special] == 0, np.inf, np.nan)
    elif fmt.specials is Specials.ALL_ONES_NAN:
        special = (field == top_field) & (fraction == (1 << fmt.mantissa_bits) - 1)
        magnitude[special] = np.nan
    else:
        special = np.zeros(codes.shape, bool)
    absent = special | (significand == 0)
    lowest = unit + np.frexp((significand & -significand).astype(np.float64))[1] - 1
    value = np.where(codes >> (fmt.bits - fmt.unused_low_bits - 1), -magnitude, magnitude)
    result = Table(
        value,
        np.where(absent, -ABSENT, exponent).astype(np.int16),
        np.where(absent, ABSENT, lowest).astype(np.int16),
    )
    for array in (result.value, result.exponent, result.low):
        array.setflags(write=False)
    return result


def power_of_two(exponent: NDArray[np.signedinteger[Any]]) -> NDArray[np.float64]:
    """2^exponent as float64: 0 below -1022, infinity above 1023."""
    field = np.clip(exponent.astype(np.int64) + 1023, 0, 2047)
    return np.asarray((field << 52).view(np.float64))


@dataclass(frozen=True)
class Blocks:
    """Some rows of an operand of P products, block by block along K: T blocks of L elements, R rows.

    Attributes:
        codes: table indices [T, P, R, L].
        format: what a code means.
        values: float64 [T, P, R, L], scales included.
        scale: int32 [T, P, R], the exponent of each block's scale; 0 without scales.
        top: int32 [T, P, R], the largest exponent of each block, scale included; around -ABSENT if nothing takes part.
        low: int32 [T, P, R], the exponent of the lowest bit set in each block, likewise; around ABSENT if none is.
    """

    codes: NDArray[np.unsignedinteger[Any]]
    format: Format
    values: NDArray[np.float64]
    scale: NDArray[np.int32]
    top: NDArray[np.int32]
    low: NDArray[np.int32]


@dataclass(frozen=True)
class Operand:
    """One side of P products.

    Attributes:
        codes: unsigned integers [P, R, K].
        format: what a code means.
        scales: uint8 [P, R, K/block], or None.
        scaling: what a scale means, and the `block` of elements that share it.
    """

    codes: NDArray[np.unsignedinteger[Any]]
    format: Format
    scales: NDArray[np.uint8] | None
    scaling: MXFormat = MXFP8

    def part(self, products: slice = slice(None), rows: slice = slice(None), k: slice = slice(None)) -> Operand:
        """A part of it; where there are scales, `k` starts and stops at multiples of their block."""
        scales = self.scales
        if scales is not None:
            blocks = slice(*(None if end is None else end // self.scaling.block for end in (k.start, k.stop)))
            scales = scales[products, rows, blocks]
        return Operand(self.codes[products, rows, k], self.format, scales, self.scaling)

    def values(self) -> NDArray[np.float64]:
        """The values [P, R, K], scales included, exactly."""
        values = np.take(table(self.format).value, self.indices(), mode="clip")
        if self.scales is not None:
            values *= np.repeat(scale_values(self.scaling.scale)[self.scales], self.scaling.block, axis=-1)
        return values

    def blocks(self, length: int) -> Blocks:
        """All of it in blocks of `length`, which is that of the scales where there are E8M0 scales; of no others."""
        look_up = table(self.format)
        products, rows, k = self.codes.shape
        in_rows = self.indices().reshape(products, rows, k // length, length)
        codes = np.ascontiguousarray(in_rows.transpose(2, 0, 1, 3))
        # Maxima and minima over this axis run over whole rows of the array at a time.
        columns = np.ascontiguousarray(in_rows.transpose(2, 3, 0, 1))
        top = np.take(look_up.exponent, columns, mode="clip").max(axis=1).astype(np.int32)
        low = np.take(look_up.low, columns, mode="clip").min(axis=1).astype(np.int32)
        values = np.take(look_up.value, codes, mode="clip")
        scale = np.zeros(top.shape, np.int32)
        if self.scales is not None:
            scales = np.ascontiguousarray(self.scales.transpose(2, 0, 1))
            scale = scales.astype(np.int32) - E8M0.bias
            values *= scale_values(E8M0)[scales][..., None]
            top += scale
            low += scale
        return Blocks(codes, self.format, values, scale, top, low)

    def indices(self) -> NDArray[np.unsignedinteger[Any]]:
        """The codes [P, R, K] as indices into the format's table."""
        if not self.format.unused_low_bits:
            return self.codes
        return np.asarray(self.codes >> self.format.unused_low_bits, self.codes.dtype)


def scale_codes(fmt: Format) -> NDArray[np.uint8]:
    """For each byte the code that it is as a scale: the sign bit of UE4M3 is ignored."""
    return np.asarray(np.arange(256, dtype=np.uint8) & np.uint8(0x7F if fmt is UE4M3 else 0xFF))


@cache
def scale_values(fmt: Format) -> NDArray[np.float64]:
    """The value of each byte as a scale, E8M0 or UE4M3, as float64."""
    if fmt is E8M0:
        values = power_of_two(np.arange(256) - E8M0.bias)
        values[fmt.nan_code] = np.nan
    else:
        values = np.array(
            [np.nan if fmt.is_nan(code) else float(fmt.decode(code)) for code in scale_codes(fmt).tolist()]
        )
    return values
