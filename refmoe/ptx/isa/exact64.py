"""Double precision where NumPy has no instruction: fma, and the directed roundings.

One lane at a time in Python integers, exactly; the fused multiply-add to nearest of ordinary operands is vectorised.
"""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np

from refmoe.ptx.isa.floats import F64, canonical
from refmoe.ptx.isa.operation import Array, Function
from refmoe.ptx.isa.rounding import add_to_odd, two_sum

#: Operations that NumPy rounds to nearest as hardware does.
NATIVE = {"add": np.add, "sub": np.subtract, "mul": np.multiply, "div": np.divide, "sqrt": np.sqrt}
_SIGN = 1 << 63
_INFINITY = 0x7FF << 52


def _parts(bits: int) -> tuple[int, int]:
    """A finite number as (significand, exponent): value = significand * 2^exponent."""
    exponent = bits >> 52 & 0x7FF
    significand = bits & ((1 << 52) - 1)
    if exponent:
        significand |= 1 << 52
    return (-significand if bits & _SIGN else significand), max(exponent, 1) - 1075


def _round(significand: int, exponent: int, sticky: bool, negative: bool, rounding: str) -> int:
    """The double nearest to +-(significand + (0 < fraction < 1 if sticky)) * 2^exponent, as bits.

    A sticky significand has at least 55 bits, so that the fraction lies below the last two bits that count.
    """
    sign = _SIGN if negative else 0
    # Drop what does not fit: to 53 bits, or to a multiple of the smallest subnormal.
    drop = max(significand.bit_length() - 53, -1074 - exponent)
    if drop > 0:
        kept, rest = significand >> drop, significand & ((1 << drop) - 1)
        half = 1 << (drop - 1)
        exponent += drop
    else:
        kept, rest, half = significand, 0, 1
    if rest or sticky:
        if rounding == "rn":
            up = rest > half or (rest == half and (sticky or bool(kept & 1)))
        else:
            up = (rounding == "rp" and not negative) or (rounding == "rm" and negative)
        kept += up
    if kept == 0:
        return sign
    shift = 53 - kept.bit_length()
    if shift > 0:  # an exact result with fewer bits: normalise as far as the format goes
        shift = min(shift, exponent + 1074)
        kept, exponent = kept << shift, exponent - shift
    elif shift < 0:  # rounding carried into a new bit
        kept, exponent = kept >> 1, exponent + 1
    if kept < 1 << 52:
        return sign | kept
    biased = exponent + 1075
    if biased >= 0x7FF:
        away = rounding == "rn" or (rounding == "rp" and not negative) or (rounding == "rm" and negative)
        return sign | (_INFINITY if away else _INFINITY - 1)
    return sign | biased << 52 | (kept & ((1 << 52) - 1))


def _fma_lane(a: int, b: int, c: int, rounding: str) -> int:
    (a_value, a_exponent), (b_value, b_exponent), (c_value, c_exponent) = _parts(a), _parts(b), _parts(c)
    product, exponent = a_value * b_value, a_exponent + b_exponent
    base = min(exponent, c_exponent)
    total = (product << (exponent - base)) + (c_value << (c_exponent - base))
    if total == 0:
        signs = ((a ^ b) & _SIGN, c & _SIGN)
        # Terms of one sign keep it; otherwise the zero is -0 only toward -Inf.
        return signs[0] if signs[0] == signs[1] else (_SIGN if rounding == "rm" else 0)
    return _round(abs(total), base, False, total < 0, rounding)


def _add_lane(a: int, b: int, rounding: str) -> int:
    return _fma_lane(a, 0x3FF << 52, b, rounding)


def _sub_lane(a: int, b: int, rounding: str) -> int:
    return _add_lane(a, b ^ _SIGN, rounding)


def _mul_lane(a: int, b: int, rounding: str) -> int:
    (a_value, a_exponent), (b_value, b_exponent) = _parts(a), _parts(b)
    return _round(abs(a_value * b_value), a_exponent + b_exponent, False, bool((a ^ b) & _SIGN), rounding)


def _div_lane(a: int, b: int, rounding: str) -> int:
    (a_value, a_exponent), (b_value, b_exponent) = _parts(a), _parts(b)
    quotient, rest = divmod(abs(a_value) << 110, abs(b_value))
    return _round(quotient, a_exponent - b_exponent - 110, rest != 0, bool((a ^ b) & _SIGN), rounding)


def _sqrt_lane(a: int, rounding: str) -> int:
    value, exponent = _parts(a)
    up = 112 + (exponent & 1)
    root = math.isqrt(value << up)
    return _round(root, (exponent - up) // 2, root * root != value << up, bool(a & _SIGN), rounding)


_LANES: dict[str, Callable[..., int]] = {
    "add": _add_lane,
    "sub": _sub_lane,
    "mul": _mul_lane,
    "div": _div_lane,
    "sqrt": _sqrt_lane,
    "fma": _fma_lane,
}


def _nearest(name: str, x: tuple[Array, ...]) -> Array:
    """The operation in NumPy: right for NaN, infinities and division by zero, whose results need no rounding."""
    values = [v.view(np.float64) for v in x]
    if name == "fma":
        # An overflowing product of finite numbers must not look like an infinite one.
        return np.where(
            np.isinf(values[2]) & np.isfinite(values[0]) & np.isfinite(values[1]),
            values[2],
            values[0] * values[1] + values[2],
        )
    return NATIVE[name](*values)


def function(name: str, rounding: str) -> Function:
    """The correctly rounded double-precision operation on bit patterns.

    Args:
        name: "add", "sub", "mul", "div", "sqrt" or "fma".
        rounding: "rn", "rz", "rm" or "rp".
    """
    lane = _LANES[name]

    def slow(*x: Array) -> Array:
        arrays = np.broadcast_arrays(*x)
        flat = np.array(
            [lane(*lanes, rounding) for lanes in zip(*(a.ravel().tolist() for a in arrays), strict=True)],
            dtype=np.uint64,
        )
        return flat.reshape(arrays[0].shape)

    def whole(*x: Array) -> Array:
        values = [v.view(np.float64) for v in x]
        finite = np.logical_and.reduce([np.isfinite(v) for v in np.broadcast_arrays(*values)])
        if name == "div":
            finite = finite & (values[1] != 0)
        if name == "sqrt":
            finite = finite & ((values[0] > 0) | (values[0] == 0))
        special = canonical(_nearest(name, x).view(np.uint64), F64)
        if name == "fma" and rounding == "rn":
            fast, sure = _fma_vector(*values)
            special = np.where(sure, fast.view(np.uint64), special)
            finite = finite & ~sure
        if not finite.any():
            return special
        chosen = [np.broadcast_to(v, finite.shape)[finite] for v in x]
        result = np.array(np.broadcast_to(special, finite.shape))
        result[finite] = slow(*chosen)
        return result

    return whole


def _split(x: Array) -> tuple[Array, Array]:
    """Veltkamp's split into two halves of 26 bits."""
    scaled = x * 134217729.0
    high = scaled - (scaled - x)
    return high, x - high


def _fma_vector(a: Array, b: Array, c: Array) -> tuple[Array, Array]:
    """a*b + c to nearest (Boldo and Melquiond 2008), and the lanes in which no step can over- or underflow."""
    product = a * b
    a_high, a_low = _split(a)
    b_high, b_low = _split(b)
    product_low = ((a_high * b_high - product) + a_high * b_low + a_low * b_high) + a_low * b_low
    upper, upper_low = two_sum(c, product_low)
    top, top_low = two_sum(product, upper)
    result = top + add_to_odd(top_low, upper_low)
    # Dekker's product needs room for its error above the subnormals, Veltkamp's factor room below overflow; c = 0
    # is left out for the sign of an exact zero.
    sure = np.ones_like(result, dtype=np.bool_)
    for value, low, high in ((a, -450, 450), (b, -450, 450), (c, -900, 900)):
        magnitude = np.abs(value)
        sure = sure & (magnitude > 2.0**low) & (magnitude < 2.0**high)
    return result, sure & (result != 0)
