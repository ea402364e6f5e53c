"""Number formats as data: what each code means, exactly, and how codes and scales make a block-scaled format.

Sources: OCP 8-bit Floating Point v1.0 (E4M3, E5M2), OCP Microscaling Formats v1.0 sections 5.2-5.4 (blocks, E2M1,
E8M0), IEEE 754-2019 (FP16, FP32), the PTX ISA's description of `.bf16`, `.tf32`, `.ue4m3` and `kind::mxf4nvf4`.
"""

from __future__ import annotations

import enum
import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from fractions import Fraction
from functools import cache, cached_property
from types import MappingProxyType
from typing import Any

import ml_dtypes
import numpy as np
from numpy.typing import NDArray

from refmoe.errors import ArgumentError, describe
from refmoe.printed_modules import prints_as


class Specials(enum.Enum):
    """Which codes of a format are not numbers."""

    NONE = "none"
    """Every code is a number (E2M1): a NaN has no code, so it has to be carried by the scale."""
    ALL_ONES_NAN = "all_ones_nan"
    """Exponent and mantissa all ones is NaN, there is no infinity (E4M3, E8M0): the top binade is usable."""
    IEEE = "ieee"
    """The top exponent holds the infinities and the NaNs."""


@dataclass(frozen=True)
class Format:
    """A binary floating-point format of at most 32 bits.

    A code is an unsigned integer of `bits` bits: sign (if `signed`), exponent, mantissa, then `unused_low_bits` that
    no operation reads. An unsigned format ignores whatever bits lie above its exponent.

    Attributes:
        name: lower-case name, as on the command line.
        bits: bits that one code is stored in.
        exponent_bits: width of the exponent field.
        mantissa_bits: width of the fraction field.
        bias: exponent bias: a normal number is 2^(field - bias) * (1 + fraction / 2^mantissa_bits).
        specials: which codes are NaN or infinite.
        nan_code: the NaN that refmoe writes, None if the format has none.
        signed: whether there is a sign bit.
        subnormals: whether exponent field 0 holds zero and the subnormals; if not it is one more binade (E8M0).
        unused_low_bits: low bits of the code that are ignored (TF32 lives in the top 19 bits of an FP32).
        dtype: the NumPy type of its values, None if NumPy and ml_dtypes have none. A value of E2M1 takes a byte there.
    """

    name: str
    bits: int
    exponent_bits: int
    mantissa_bits: int
    bias: int
    specials: Specials
    nan_code: int | None
    signed: bool = True
    subnormals: bool = True
    unused_low_bits: int = 0
    dtype: np.dtype[Any] | None = None

    @property
    def emin(self) -> int:
        """Exponent of the smallest normal number."""
        return (1 if self.subnormals else 0) - self.bias

    @cached_property
    def emax(self) -> int:
        """Exponent of the largest finite number."""
        top = (1 << self.exponent_bits) - 1
        # With the all-ones NaN the top binade keeps its other mantissas, unless it had only that one (E8M0).
        if self.specials is Specials.IEEE or (self.specials is Specials.ALL_ONES_NAN and self.mantissa_bits == 0):
            top -= 1
        return top - self.bias

    @cached_property
    def max(self) -> Fraction:
        """The largest finite number."""
        mantissa = (1 << self.mantissa_bits) - 1
        if self.specials is Specials.ALL_ONES_NAN and self.mantissa_bits > 0:
            mantissa -= 1
        return (1 + Fraction(mantissa, 1 << self.mantissa_bits)) * Fraction(2) ** self.emax

    @cached_property
    def min_normal(self) -> Fraction:
        """The smallest positive normal number."""
        return Fraction(2) ** self.emin

    @property
    def min(self) -> Fraction:
        """The smallest positive number."""
        return Fraction(2) ** (self.emin - self.mantissa_bits) if self.subnormals else self.min_normal

    @cached_property
    def max_code(self) -> int:
        """The code of the largest finite number."""
        return self.encode(self.max)

    @property
    def infinity_code(self) -> int | None:
        """The code of +infinity, None if the format has none."""
        if self.specials is not Specials.IEEE:
            return None
        return ((1 << self.exponent_bits) - 1) << (self.mantissa_bits + self.unused_low_bits)

    def is_negative(self, code: int) -> bool:
        """Whether the sign bit of `code` is set (of a zero or a NaN too)."""
        return self.signed and bool(self._checked(code) >> (self.bits - 1))

    def is_nan(self, code: int) -> bool:
        """Whether `code` is a NaN."""
        exponent, mantissa = self._fields(code)
        if self.specials is Specials.NONE or exponent != (1 << self.exponent_bits) - 1:
            return False
        return mantissa != 0 if self.specials is Specials.IEEE else mantissa == (1 << self.mantissa_bits) - 1

    def is_infinite(self, code: int) -> bool:
        """Whether `code` is an infinity of either sign."""
        exponent, mantissa = self._fields(code)
        return self.specials is Specials.IEEE and exponent == (1 << self.exponent_bits) - 1 and mantissa == 0

    def decode(self, code: int) -> Fraction:
        """The exact value of a finite code; the two zeros are both 0 (`is_negative` tells them apart).

        Raises:
            ArgumentError: `code` is a NaN, an infinity, or does not fit in `bits`.
        """
        exponent, mantissa = self._fields(code)
        if self.is_nan(code) or self.is_infinite(code):
            raise ArgumentError("code", f"{code:#x}, which is not a number in {self.name}", "the code of a number")
        if not (self.subnormals and exponent == 0):
            mantissa |= 1 << self.mantissa_bits
            exponent -= 1 if self.subnormals else 0
        # The mantissa counts steps of the binade, of 2^step. In integers: arithmetic of fractions reduces each result.
        step = exponent + self.emin - self.mantissa_bits
        signed = -mantissa if self.is_negative(code) else mantissa
        return Fraction(signed << step) if step >= 0 else Fraction(signed, 1 << -step)

    def encode(self, value: Fraction | int) -> int:
        """The code of a value that the format has exactly; 0 gives +0. Nothing is rounded here.

        Raises:
            ArgumentError: the format does not have `value`.
        """
        exact = value if isinstance(value, (Fraction, int)) else Fraction(value)
        code = self._magnitude_code(abs(exact.numerator), exact.denominator)
        if code is None or (exact < 0 and not self.signed):
            raise ArgumentError("value", f"{value}, which {self.name} does not have", "a value of the format")
        return (code << self.unused_low_bits) | (int(exact < 0) << (self.bits - 1) if self.signed else 0)

    def _magnitude_code(self, numerator: int, denominator: int) -> int | None:
        """Exponent and mantissa of a ratio in lowest terms, None if no code has it."""
        if numerator == 0:
            return 0 if self.subnormals else None
        if denominator & (denominator - 1):
            return None
        fraction_bits = denominator.bit_length() - 1
        exponent = max(numerator.bit_length() - 1 - fraction_bits, self.emin)
        # How many steps of the binade the value is: a whole number of them has a code.
        shift = self.mantissa_bits - exponent - fraction_bits
        steps = numerator << shift if shift >= 0 else numerator >> -shift
        if shift < 0 and steps << -shift != numerator:
            return None
        if not self.subnormals and steps < 1 << self.mantissa_bits:
            return None
        # Where field 0 is the subnormals, the implicit one of `steps` carries into the field of a normal number.
        implicit_one = 0 if self.subnormals else 1 << self.mantissa_bits
        code = ((exponent - self.emin) << self.mantissa_bits) + steps - implicit_one
        return code if code <= self._largest_magnitude_code else None

    @cached_property
    def _largest_magnitude_code(self) -> int:
        """Exponent and mantissa of the largest finite number."""
        codes = 1 << (self.exponent_bits + self.mantissa_bits)
        not_numbers = {Specials.NONE: 0, Specials.ALL_ONES_NAN: 1, Specials.IEEE: 1 << self.mantissa_bits}
        return codes - not_numbers[self.specials] - 1

    def values(self) -> NDArray[np.float64]:
        """The value of every code, in code order, as a read-only float64 array: NaN, infinity and -0 included.

        Raises:
            ArgumentError: the format has more than 2^16 codes.
        """
        return _value_table(self)

    def _checked(self, code: int) -> int:
        if not 0 <= code < 1 << self.bits:
            raise ArgumentError("code", describe(code), f"an integer in 0..{(1 << self.bits) - 1} ({self.name})")
        return code

    def _fields(self, code: int) -> tuple[int, int]:
        significant = self._checked(code) >> self.unused_low_bits
        exponent = (significant >> self.mantissa_bits) & ((1 << self.exponent_bits) - 1)
        return exponent, significant & ((1 << self.mantissa_bits) - 1)


@cache
def _value_table(fmt: Format) -> NDArray[np.float64]:
    if fmt.bits > 16:
        raise ArgumentError("format", f"{fmt.name} of {fmt.bits} bits", "a format of at most 16 bits")
    table = np.empty(1 << fmt.bits, np.float64)
    for code in range(table.size):
        if fmt.is_nan(code):
            table[code] = math.nan
        elif fmt.is_infinite(code):
            table[code] = -math.inf if fmt.is_negative(code) else math.inf
        else:
            # Exact: no format here has more than 11 significant bits or leaves float64's normal range.
            table[code] = math.copysign(float(abs(fmt.decode(code))), -1 if fmt.is_negative(code) else 1)
    table.setflags(write=False)
    return table


E4M3 = Format("e4m3", 8, 4, 3, 7, Specials.ALL_ONES_NAN, nan_code=0x7F, dtype=np.dtype(ml_dtypes.float8_e4m3fn))
E5M2 = Format("e5m2", 8, 5, 2, 15, Specials.IEEE, nan_code=0x7F, dtype=np.dtype(ml_dtypes.float8_e5m2))
E2M1 = Format("e2m1", 4, 2, 1, 1, Specials.NONE, nan_code=None, dtype=np.dtype(ml_dtypes.float4_e2m1fn))
E8M0 = Format(
    "e8m0",
    8,
    8,
    0,
    127,
    Specials.ALL_ONES_NAN,
    nan_code=0xFF,
    signed=False,
    subnormals=False,
    dtype=np.dtype(ml_dtypes.float8_e8m0fnu),
)
UE4M3 = Format("ue4m3", 8, 4, 3, 7, Specials.ALL_ONES_NAN, nan_code=0x7F, signed=False)
BF16 = Format("bf16", 16, 8, 7, 127, Specials.IEEE, nan_code=0x7FC0, dtype=np.dtype(ml_dtypes.bfloat16))
FP16 = Format("fp16", 16, 5, 10, 15, Specials.IEEE, nan_code=0x7E00, dtype=np.dtype(np.float16))
FP32 = Format("fp32", 32, 8, 23, 127, Specials.IEEE, nan_code=0x7FC00000, dtype=np.dtype(np.float32))
TF32 = Format("tf32", 32, 8, 10, 127, Specials.IEEE, nan_code=0x7FC00000, unused_low_bits=13)

FORMATS: dict[str, Format] = {fmt.name: fmt for fmt in (E4M3, E5M2, E2M1, E8M0, UE4M3, BF16, FP16, FP32, TF32)}
"""Every format by its name."""

MX_BLOCK = 32
"""Elements along K that share a scale in every MX format (OCP MX v1.0 section 5.2)."""


@dataclass(frozen=True)
class MXFormat:
    """A block-scaled format: `block` neighbours along K are codes that share one scale.

    The value of an element is its code's value times its block's scale (OCP MX v1.0 section 5.1). Codes of 4 bits are
    packed two a byte, the even element in the low nibble.

    Attributes:
        name: lower-case name, as on the command line.
        element: what a code means.
        scale: what a scale means; a scale takes one byte.
        block: elements of K that share a scale.
        tensor_scale: the format of one factor more, which all blocks of a tensor share; None if there is none.
    """

    name: str
    element: Format
    scale: Format = E8M0
    block: int = MX_BLOCK
    tensor_scale: Format | None = None

    @property
    def codes_a_byte(self) -> int:
        """2 for elements of 4 bits, else 1."""
        return 8 // self.element.bits

    @property
    def block_bytes(self) -> int:
        """Bytes of a block's codes."""
        return self.block // self.codes_a_byte


MXFP8 = MXFormat("mxfp8", E4M3)
MXFP4 = MXFormat("mxfp4", E2M1)
NVFP4 = MXFormat("nvfp4", E2M1, UE4M3, 16, tensor_scale=FP32)
"""What the `kind::mxf4nvf4` instructions take; see `refmoe.reference.nvfp4.NVFP4Tensor`."""

BLOCK_FORMATS: Mapping[str, MXFormat] = MappingProxyType({each.name: each for each in (MXFP8, MXFP4, NVFP4)})
"""Every block-scaled format by its name."""

MX_FORMATS: Mapping[str, MXFormat] = MappingProxyType(
    {name: each for name, each in BLOCK_FORMATS.items() if each.scale is E8M0}
)
"""Those whose scales are powers of two, which a scale mode chooses. Any other one has a rule, `quantize_NAME`, and
its one policy, `POLICY`, in the module of its name in `refmoe.reference`."""


@dataclass(frozen=True)
class TileFormat:
    """A block-scaled format of matrices: a tile of `rows` by `columns` codes shares one scale, which multiplies them.

    Tiles start at the matrix's first row and column. Those at its right and lower edge are what is left of it.

    Attributes:
        name: lower-case name, "ROWSxCOLUMNS".
        rows: of a tile.
        columns: of a tile, along K.
        element: what a code means.
        scale: what a scale means.
    """

    name: str
    rows: int
    columns: int
    element: Format = E4M3
    scale: Format = FP32

    def scale_shape(self, rows: int, k: int) -> tuple[int, int]:
        """The scales [tile rows, tile columns] of a matrix [rows, k]."""
        return -(-rows // self.rows), -(-k // self.columns)


BLOCK_FP8: Mapping[str, TileFormat] = MappingProxyType(
    {each.name: each for each in (TileFormat("1x128", 1, 128), TileFormat("128x128", 128, 128))}
)
"""Block FP8 by the shape of its tiles: 1x128 for activations, 128x128 for weights (DeepSeek-V3's technical report,
section 3.3.2). Checkpoints call the scale `weight_scale_inv`; what it does is multiply."""


@dataclass(frozen=True)
class IntegerBlockFormat:
    """A block-scaled format of integers: `block` neighbours along K are codes in two's complement with one scale.

    The value of an element is its code times its block's scale. A block also stores the sum of its elements, which a
    dot product needs where the other operand's blocks have a zero point.

    Attributes:
        name: lower-case name, as on the command line.
        bits: of a code.
        scale: the format of a block's scale.
        total: the format of a block's sum.
        block: elements of K that share a scale.
    """

    name: str
    bits: int
    scale: Format
    total: Format
    block: int = MX_BLOCK

    @property
    def max_code(self) -> int:
        """The largest code, and the magnitude that a block's largest element gets: 127 for 8 bits."""
        return (1 << self.bits - 1) - 1

    @property
    def block_bytes(self) -> int:
        """Bytes of a block with its scale and its sum: 36 for Q8_1."""
        return (self.block * self.bits + self.scale.bits + self.total.bits) // 8


Q8_1 = IntegerBlockFormat("q8_1", 8, scale=FP16, total=FP16)
"""Activations of llama.cpp's integer dot products: ggml-common.h, `block_q8_1`."""


def as_mx_format(format: object) -> MXFormat:
    """The entry of `MX_FORMATS` with that name.

    Raises:
        ArgumentError: there is none.
    """
    if not isinstance(format, str) or format not in MX_FORMATS:
        raise ArgumentError("format", describe(format), " or ".join(MX_FORMATS))
    return MX_FORMATS[format]


def as_tensor_format(format: object) -> MXFormat:
    """The entry of `BLOCK_FORMATS` with that name, of those whose codes and block scales alone are a tensor.

    Raises:
        ArgumentError: there is none.
    """
    alone = {name: each for name, each in BLOCK_FORMATS.items() if each.tensor_scale is None}
    if not isinstance(format, str) or format not in alone:
        raise ArgumentError("format", describe(format), " or ".join(alone))
    return alone[format]


def _listed() -> Iterator[str]:
    heads = f"{'element':<8}{'bits':>5}{'exponent':>10}{'mantissa':>10}{'bias':>6}"
    yield f"{heads}  {'largest':<14}{'smallest':<14}not a number"
    for fmt in FORMATS.values():
        sizes = f"{fmt.bits:>5}{fmt.exponent_bits:>10}{fmt.mantissa_bits:>10}{fmt.bias:>6}"
        limits = "".join(f"{float(number):<14.6g}" for number in (fmt.max, fmt.min))
        yield f"{fmt.name:<8}{sizes}  {limits}{_NOT_NUMBERS[fmt.specials]}"
    yield ""
    for mx in BLOCK_FORMATS.values():
        codes = f"{mx.element.name} codes, {mx.codes_a_byte} a byte; {mx.block} share a scale of {mx.scale.name}"
        yield f"{mx.name:<8} {codes}{f', and all of a tensor one of {mx.tensor_scale.name}' if mx.tensor_scale else ''}"
    for tile in BLOCK_FP8.values():
        codes = f"{tile.element.name} codes; {tile.name} of them share a scale of {tile.scale.name}"
        yield f"{tile.name:<8} {codes}: block FP8"
    shared = f"{Q8_1.block} share a scale of {Q8_1.scale.name} and their sum in {Q8_1.total.name}"
    codes = f"integers of {Q8_1.bits} bits; {shared}"
    yield f"{Q8_1.name:<8} {codes}"


_NOT_NUMBERS = {Specials.NONE: "none", Specials.ALL_ONES_NAN: "NaN, all ones", Specials.IEEE: "infinities and NaN"}

prints_as(__name__, lambda: "\n".join(_listed()))
