"""What one instruction computes, as a value: a function on register arrays and the kinds of its operands.

Registers are unsigned integer bit patterns. The five kinds and their NumPy dtypes are in `DTYPES`.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np

# A register over all lanes of a launch (ndarray), or one value that all lanes share (NumPy scalar).
Array = Any
Function = Callable[..., Any]

DTYPES: dict[str, type[np.generic]] = {
    "pred": np.bool_,
    "b8": np.uint8,
    "b16": np.uint16,
    "b32": np.uint32,
    "b64": np.uint64,
}


@dataclass(frozen=True)
class Operation:
    """What one opcode computes.

    `function` takes arrays of one shape, or NumPy scalars, of the dtypes that `sources` names, and returns an array
    (a tuple of arrays for several destinations) of those that `destinations` names. It never writes its inputs; a
    result may alias one. It may divide by zero or overflow inside: run it under `np.errstate(all="ignore")`.

    Attributes:
        opcode: the full spelling, `"cvt.rn.satfinite.e4m3x2.f32"`.
        function: what it computes.
        sources: register kind of each source operand as the instruction lists them. A register wider than its kind
            (8-bit values live in 16-bit registers) is truncated to the kind first.
        destinations: register kind of each destination.
        contractible: an FP mul, add or sub without a rounding suffix: ptxas may fuse it with its neighbour.
        exact_when: None if the result is always exactly what hardware gives; else `f(*sources) -> bool array`, the
            lanes in which it provably is.
        sign_extend: a destination register wider than its kind receives the sign-extended value, else the
            zero-extended one (cvt.s8.s32 into a 16-bit register).
        carry_in: the function takes the carry flag CC.CF as one more, last, bool argument.
        carry_out: the function returns a tuple whose last element is the new CC.CF (bool).
    """

    opcode: str
    function: Function
    sources: tuple[str, ...]
    destinations: tuple[str, ...]
    contractible: bool = False
    exact_when: Function | None = None
    sign_extend: bool = False
    carry_in: bool = False
    carry_out: bool = False


def kind(bits: int) -> str:
    """Register kind of an untyped register of `bits` bits: `kind(32) == "b32"`."""
    return f"b{bits}"
