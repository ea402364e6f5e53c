"""The toy operation, one output at a time in exact rationals: the specification of `refmoe.reference.toy`."""

from __future__ import annotations

from collections.abc import Sequence

from refmoe.reference.scalar.arithmetic import add

__all__ = ["toy"]

_SIGN = 1 << 31


def toy(x: Sequence[Sequence[int]], sign: str = "plus") -> list[list[int]]:
    """FP32 bits [M][K/2] of neighbours of FP32 bits [M][K], added or subtracted and rounded to nearest."""
    turned = 0 if sign == "plus" else _SIGN
    return [[add(row[i], row[i + 1] ^ turned) for i in range(0, len(row), 2)] for row in x]
