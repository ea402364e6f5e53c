"""The approximate instructions of FP64: `rcp.approx.ftz.f64`, `rsqrt.approx.ftz.f64` and `rsqrt.approx.f64`.

The first two are the chip's seeds for Newton's method. They read the high word of their operand and give a high word,
with zeros below. An H200 gave for 93 % of all mantissas the true value's high word cut off, and else one unit more (for
roots also, rarely, one less). Which of them is not known here. `rsqrt.approx.f64` is a seed and one step of a method of
third order, as ptxas spells it out: the seed's last unit moves its result in one lane of 4,500.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from refmoe.ptx.isa.floating import rounded
from refmoe.ptx.isa.floats import FLOATS
from refmoe.ptx.isa.operation import Array, Operation
from refmoe.ptx.isa.spelling import Spelling

_HIGH = np.uint64(0xFFFFFFFF << 32)
_SIGN = np.uint64(1 << 63)
_INFINITY = np.uint64(0x7FF << 52)
_SMALLEST = np.uint64(1 << 52)
_QUIET = np.uint64(1 << 51)
_SEED_NAN = np.uint64(0x7FFFFFFF << 32)
_SQUARE_ROOT_NAN = np.uint64(0xFFF8 << 48)
_ONE, _HALF = np.float64(1.0), np.float64(0.5)
_THREE_EIGHTHS = np.float64(0.375)
_UP, _DOWN = np.float64(2.0**54), np.float64(2.0**27)

_fused = rounded("fma", FLOATS["f64"], "rn")
_VALUES: dict[str, Callable[[Array], Array]] = {"rcp": lambda x: _ONE / x, "rsqrt": lambda x: _ONE / np.sqrt(x)}


def estimate(spelling: Spelling, name: str, ftz: bool) -> Operation:
    """`rcp.approx.ftz.f64`, `rsqrt.approx.ftz.f64` or `rsqrt.approx.f64`.

    Raises:
        NoSuchInstruction: another spelling.
    """
    spelling.type("f64")

    def seeded(a: Array) -> Array:
        return _seed(name, a)

    return Operation(spelling.opcode, seeded if ftz else _rsqrt, ("b64",), ("b64",), exact_when=_exact)


def _exact(a: Array) -> Array:
    """Where the result is a zero, an infinity, a NaN, or a power of two: these were the same on an H200."""
    magnitude = a & ~_SIGN
    fraction = a & np.uint64((1 << 52) - 1)
    power = (fraction == 0) & ((magnitude >> np.uint64(52)) & np.uint64(1) == 1)
    return power | (magnitude == 0) | (magnitude >= _INFINITY)


def _seed(name: str, a: Array) -> Array:
    high = a & _HIGH
    # The operand's high word decides what is subnormal, an infinity or a NaN.
    high = np.where(high & ~_SIGN < _SMALLEST, high & _SIGN, high)
    result = _VALUES[name](high.view(np.float64)).view(np.uint64)
    nan = result & ~_SIGN > _INFINITY
    result = np.where(result & ~_SIGN < _SMALLEST, result & _SIGN, result & _HIGH)
    return np.where(nan, _SEED_NAN, result)[()]


def _rsqrt(a: Array) -> Array:
    magnitude = a & ~_SIGN
    subnormal = (magnitude < _SMALLEST) & (magnitude != 0)
    x = np.where(subnormal, (a.view(np.float64) * _UP).view(np.uint64), a)
    seed = _seed("rsqrt", x)
    square = _product(seed, seed)
    error = _fused(x, square ^ _SIGN, _bits(_ONE, x))
    slope = _fused(error, _bits(_THREE_EIGHTHS, x), _bits(_HALF, x))
    result = _fused(slope, _product(seed, error), seed)
    result = np.where(subnormal, (result.view(np.float64) * _DOWN).view(np.uint64), result)
    result = np.where(magnitude == 0, (a & _SIGN) | _INFINITY, result)
    result = np.where(a == _INFINITY, np.uint64(0), result)
    result = np.where((a >= _SIGN) & (magnitude != 0), _SQUARE_ROOT_NAN, result)
    return np.where(magnitude > _INFINITY, a | _QUIET, result)[()]


def _product(a: Array, b: Array) -> Array:
    return np.asarray(a.view(np.float64) * b.view(np.float64)).view(np.uint64)[()]


def _bits(value: np.float64, like: Array) -> Array:
    """A number as bits, in the shape of other operands."""
    return np.full(np.shape(like), value.view(np.uint64))[()]
