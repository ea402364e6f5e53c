"""The floating-point register formats as data, and their bit patterns as float64 values."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from refmoe.ptx.isa.lanes import UNSIGNED
from refmoe.ptx.isa.operation import Array, kind


@dataclass(frozen=True)
class Float:
    """A binary interchange format.

    Attributes:
        name: PTX type name.
        bits: width of the register.
        mantissa: stored fraction bits.
        nan: the bit pattern of every NaN that an instruction makes: the canonical NaN of PTX for f32, f16 and bf16. For
            f64 the manual names none; this one is what NumPy's host gives on x86.
        real: the NumPy type with these bits, None where NumPy has none.
    """

    name: str
    bits: int
    mantissa: int
    nan: int
    real: type[np.floating] | None

    @property
    def sign(self) -> int:
        """The sign bit."""
        return 1 << (self.bits - 1)

    @property
    def infinity(self) -> int:
        """+Inf, which is also the mask of the exponent field."""
        return self.sign - (1 << self.mantissa)

    @property
    def quiet(self) -> int:
        """The fraction's top bit, which makes a NaN a quiet one."""
        return 1 << (self.mantissa - 1)

    @property
    def one(self) -> int:
        """1.0."""
        return (self.infinity >> (self.mantissa + 1)) << self.mantissa

    @property
    def word(self) -> type[np.unsignedinteger]:
        """The register's dtype."""
        return UNSIGNED[self.bits]


F16 = Float("f16", 16, 10, 0x7FFF, np.float16)
BF16 = Float("bf16", 16, 7, 0x7FFF, None)
F32 = Float("f32", 32, 23, 0x7FFFFFFF, np.float32)
F64 = Float("f64", 64, 52, 0xFFF8000000000000, np.float64)
FLOATS: dict[str, Float] = {f.name: f for f in (F16, BF16, F32, F64)}


def kind_of(type_name: str) -> str:
    """Register kind of a type of one element, or of two halves: `kind_of("f16x2") == "b32"`."""
    if type_name.endswith("x2"):
        return "b32"
    return kind(FLOATS[type_name].bits if type_name in FLOATS else int(type_name[1:]))


def decode(x: Array, format: Float) -> Array:
    """Bit patterns as float64 values; exact."""
    if format is F64:
        return x.view(np.float64)
    if format is BF16:
        return (x.astype(np.uint32) << 16).view(np.float32).astype(np.float64)
    return x.view(format.real).astype(np.float64)


def is_nan(x: Array, format: Float) -> Array:
    """Lanes that hold a NaN."""
    return (x & format.word(format.sign - 1)) > format.word(format.infinity)


def canonical(x: Array, format: Float) -> Array:
    """Bit patterns with every NaN replaced by the format's own."""
    if format in (F32, F64):
        value = x.view(format.real)
        nan = value != value
    else:
        nan = is_nan(x, format)
    # Two cheap passes in the common case instead of one slow one.
    return np.where(nan, format.word(format.nan), x) if nan.any() else x


def quieted(x: Array, format: Float) -> Array:
    """Bit patterns with every NaN made quiet; its sign and the rest of its payload stay."""
    return np.where(is_nan(x, format), x | format.word(format.quiet), x)


def flush(x: Array, format: Float) -> Array:
    """Subnormal numbers replaced by zeros of their sign (.ftz)."""
    small = (x & format.word(format.infinity)) == 0
    return np.where(small, x & format.word(format.sign), x) if small.any() else x
