"""Correct rounding: a float64 that stands for an exact result, to a narrower format, in any of the four modes.

Narrow results are computed in float64 and rounded twice. That is exact when the first step is *faithful*: rounding to
odd (Boldo and Melquiond, "Emulation of FMA and correctly rounded sums", IEEE TC 57(4), 2008), or to nearest for
quotients and square roots of the format's numbers, which can come no closer to a midpoint than 2p+1 bits.
"""

from __future__ import annotations

import numpy as np

from refmoe.ptx.isa.floats import BF16, F64, Float, canonical
from refmoe.ptx.isa.operation import Array

# To nearest even, toward zero, toward -Inf, toward +Inf.
ROUNDINGS = ("rn", "rz", "rm", "rp")


def two_sum(a: Array, b: Array) -> tuple[Array, Array]:
    """a + b rounded to nearest, and its error, exactly (Knuth)."""
    total = a + b
    b_seen = total - a
    return total, (a - (total - b_seen)) + (b - b_seen)


def add_to_odd(a: Array, b: Array) -> Array:
    """a + b in float64, rounded to odd: truncated, and the last bit set if that lost something.

    Needs |a + b| far from the ends of float64's range, which sums of narrower formats' products are.
    """
    total, error = two_sum(a, b)
    # Not `error != 0`: the error of an infinite sum is NaN, and there is nothing to repair.
    lost = ((error > 0) | (error < 0)).astype(np.int64)
    bits = total.view(np.int64)
    # -1 where the error points toward zero: one step back is the truncated sum. Then the last bit.
    back = (error.view(np.int64) ^ bits) >> 63
    return ((bits + (back & -lost)) | lost).view(np.float64)


def step(bits: Array, nearest: Array, exact: Array, rounding: str) -> Array:
    """Move a result rounded to nearest to the neighbour that a directed mode wants.

    Args:
        bits: results rounded to nearest (unsigned bit patterns).
        nearest: the values of `bits`, float64.
        exact: faithful values of the exact results, float64.
        rounding: "rz", "rm" or "rp".

    Returns:
        Bit patterns. Counting in bit patterns goes through the subnormals and to infinity without a special case.
    """
    above = nearest > exact
    below = nearest < exact
    negative = np.signbit(exact)
    if rounding == "rz":
        down, up = np.where(negative, below, above), np.False_
    elif rounding == "rm":
        down, up = above & ~negative, above & negative
    else:
        down, up = below & negative, below & ~negative
    dtype = bits.dtype
    return bits - down.astype(dtype) + up.astype(dtype)


def _encode_bf16(x: Array) -> Array:
    """float64 to bf16, to nearest even, by way of float32 rounded to odd."""
    single = x.astype(np.float32)
    bits = single.view(np.uint32)
    back = single.astype(np.float64)
    larger = np.abs(back) > np.abs(x)
    # Toward zero, then odd if anything was lost; Inf from a finite value becomes FLT_MAX, which is odd as it is.
    bits = (bits - larger.astype(np.uint32)) | ((back != x) & (x == x)).astype(np.uint32)
    return ((bits + 0x7FFF + ((bits >> 16) & 1)) >> 16).astype(np.uint16)


def encode(x: Array, format: Float, rounding: str = "rn") -> Array:
    """Round faithful float64 values to bit patterns of `format`; NaN becomes the format's own.

    Args:
        x: float64 values, exact or rounded to odd.
        format: F16, BF16 or F32 (F64: the value itself, whatever the mode).
        rounding: one of `ROUNDINGS`.
    """
    if format is F64:
        return canonical(x.view(np.uint64), F64)
    nan = np.isnan(x)
    if format is BF16:
        bits = _encode_bf16(x)
        nearest = (bits.astype(np.uint32) << 16).view(np.float32)
    else:
        assert format.real is not None
        nearest = x.astype(format.real)
        bits = nearest.view(format.word)
    if rounding != "rn":
        bits = step(bits, nearest.astype(np.float64), x, rounding)
    return np.where(nan, format.word(format.nan), bits) if nan.any() else bits
