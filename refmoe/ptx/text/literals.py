"""Small things that generated code is made of: literals as bits, widening, and a choice by a guard."""

from __future__ import annotations

import struct
from collections.abc import Callable
from typing import Any

import numpy as np

from refmoe.ptx.isa import DTYPES
from refmoe.ptx.text.syntax import Immediate

# Bits of each register kind but `pred`.
BITS = {"b8": 8, "b16": 16, "b32": 32, "b64": 64}


def select(guard: Any, value: Any, old: Any) -> Any:
    """`value` in the lanes whose guard is on, else `old`."""
    if not isinstance(guard, np.ndarray) or guard.ndim == 0:
        return value if guard else old
    return np.where(guard, value, old)


def widener(narrow: str, wide: str, signed: bool) -> Callable[[Any], Any]:
    """A function from registers of kind `narrow` to kind `wide`, by the sign or by zeros."""
    unsigned = np.dtype(DTYPES[wide])
    if not signed:
        return lambda value: value.astype(unsigned)
    small, large = np.dtype(f"i{BITS[narrow] // 8}"), np.dtype(f"i{BITS[wide] // 8}")
    return lambda value: value.view(small).astype(large).view(unsigned)


def literal_bits(literal: Immediate, kind: str) -> int:
    """The bits of a literal as an operand of a register kind.

    Raises:
        ValueError: a floating-point literal where the kind has no such format.
    """
    if literal.form == "int":
        # Integer literals are 64-bit; an instruction takes the low bits it needs (PTX ISA, "Constants").
        return literal.value
    if literal.form == "f32":
        if kind == "b64":
            return int(
                struct.unpack("<Q", struct.pack("<d", struct.unpack("<f", struct.pack("<I", literal.value))[0]))[0]
            )
        if kind == "b32":
            return literal.value
    elif kind == "b64":
        return literal.value
    elif kind == "b32":
        with np.errstate(all="ignore"):
            return int(np.uint64(literal.value).view(np.float64).astype(np.float32).view(np.uint32))
    raise ValueError("a floating-point literal where none fits")
