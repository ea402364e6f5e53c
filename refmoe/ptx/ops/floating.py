"""Floating-point arithmetic of a warp's lanes. The specification is `refmoe.ptx.isa.floating`.

To nearest FP32 and FP64 are LLVM's own operations. Halves are computed in a wider format that rounds them right, FP32
in the other modes in FP64; FP64 in those modes compares the nearest number with the exact result.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial

from refmoe.ptx.isa.floats import BF16, F32, F64, FLOATS, Float
from refmoe.ptx.isa.spelling import Spelling
from refmoe.ptx.ops.directed import compare, odd_sum, step, to_single, two_sum, zero_down
from refmoe.ptx.ops.ieee import (
    DOUBLE,
    canonical,
    constant,
    flush,
    is_nan,
    lift,
    narrow,
    rectify,
    saturate,
    single,
    zeroed,
)
from refmoe.ptx.ops.lanes import LaneBuilder, Lowering, Value

_ROUNDINGS = ("rn", "rz", "rm", "rp")
_PACKED = ("f16x2", "bf16x2", "f32x2")
# A power of two that takes results near the least normal number of FP32 away from it, and no operand of theirs out of
# FP32: where a product, a sum with a product or a quotient of normal numbers is near 2^-126, dividends and one factor
# are below 2^3, and addends below 2^-77, because a sum can lose no more than the 48 bits of a product.
_RAISED = 2.0**64

# An operation on bit patterns of its format, rounded, NaN as LLVM has it.
_Rounded = Callable[..., Value]


def _operation(lanes: LaneBuilder, name: str, *x: Value) -> Value:
    """One of LLVM's operations on floats, to nearest."""
    if name in ("fma", "sqrt"):
        return lanes.intrinsic(name, *x)
    return {"add": lanes.build.fadd, "sub": lanes.build.fsub, "mul": lanes.build.fmul, "div": lanes.build.fdiv}[name](
        *x
    )


def _nearest(name: str, ftz: bool, lanes: LaneBuilder, *bits: Value) -> Value:
    """FP32 and FP64 to nearest."""
    x = [lanes.float_of(each) for each in bits]
    result = lanes.bits_of(_operation(lanes, name, *x))
    if not ftz:
        return result
    if name in ("add", "sub", "sqrt"):  # exact where they are subnormal
        return flush(lanes, result, F32)
    # What is tiny is tiny after rounding to 24 bits by an exponent without an end, as that of the raised result.
    raised = constant(lanes, _RAISED, 32)
    x[0] = lanes.build.fmul(x[0], raised)
    if name == "fma":
        x[2] = lanes.build.fmul(x[2], raised)
    return zeroed(lanes, _tiny(lanes, _operation(lanes, name, *x)), result, F32)


def _tiny(lanes: LaneBuilder, raised: Value) -> Value:
    """Lanes in which a raised FP32 result is below the least normal number, raised."""
    return lanes.build.fcmp_ordered("<", lanes.intrinsic("fabs", raised), constant(lanes, 2.0**-126 * _RAISED, 32))


def _directed(name: str, rounding: str, ftz: bool, lanes: LaneBuilder, *bits: Value) -> Value:
    """FP32 in the other modes."""
    build = lanes.build
    if name == "sub":
        bits = (bits[0], build.xor(bits[1], lanes.constant(F32.sign, 32)))
    x = [build.fpext(lanes.float_of(each), DOUBLE) for each in bits]
    error = None
    if name in ("add", "sub"):
        value, error = two_sum(lanes, *x)
    elif name == "fma":
        value, error = two_sum(lanes, build.fmul(x[0], x[1]), x[2])  # the product is exact
    else:
        value = _operation(lanes, name, *x)
    result = to_single(lanes, value, error, rounding)
    if rounding == "rm" and name in ("add", "sub", "fma"):
        zero = build.fcmp_ordered("==", value, constant(lanes, 0.0))
        result = zero_down(lanes, result, zero, _terms(lanes, name, bits), F32)
    if not ftz:
        return result
    if name in ("add", "sub", "sqrt"):
        return flush(lanes, result, F32)
    up = constant(lanes, _RAISED)
    error = None if error is None else build.fmul(error, up)
    raised = to_single(lanes, build.fmul(value, up), error, rounding)
    return zeroed(lanes, _tiny(lanes, lanes.float_of(raised)), result, F32)


def _terms(lanes: LaneBuilder, name: str, bits: Sequence[Value]) -> Sequence[Value]:
    """Two integers with the signs of the terms of a sum."""
    return (lanes.build.xor(bits[0], bits[1]), bits[2]) if name == "fma" else bits


def _directed64(name: str, rounding: str, lanes: LaneBuilder, *bits: Value) -> Value:
    """FP64 in the other modes."""
    build = lanes.build
    sign = lanes.constant(F64.sign, 64)
    if name == "sub":
        name, bits = "add", (bits[0], build.xor(bits[1], sign))
    elif name == "div":  # by a positive number
        bits = (build.xor(bits[0], build.and_(bits[1], sign)), build.and_(bits[1], lanes.constant(F64.sign - 1, 64)))
    x = [lanes.float_of(each) for each in bits]
    nearest = _operation(lanes, name, *x)
    negated, zero = build.fneg(nearest), constant(lanes, 0.0)
    # The exact result less the nearest number, times the divisor or the root.
    if name == "add":
        above, below = compare(lanes, x[0], constant(lanes, 1.0), x[1], negated)
    elif name in ("mul", "fma"):
        above, below = compare(lanes, *x, negated)
    else:
        above, below = compare(lanes, negated, x[1] if name == "div" else nearest, x[0])
    result = lanes.bits_of(nearest)
    # Infinity is exact unless ordinary numbers overflowed.
    infinity = constant(lanes, float("inf"))
    magnitudes = [lanes.intrinsic("fabs", each) for each in (*x, nearest)]
    ordinary = build.fcmp_unordered("!=", x[-1], zero) if name == "div" else lanes.constant(1, 1)
    for magnitude in magnitudes[:-1]:
        ordinary = build.and_(ordinary, build.fcmp_ordered("<", magnitude, infinity))
    overflow = build.fcmp_ordered("==", magnitudes[-1], infinity)
    above = build.and_(ordinary, build.select(overflow, build.fcmp_ordered(">", nearest, zero), above))
    below = build.and_(ordinary, build.select(overflow, build.fcmp_ordered("<", nearest, zero), below))
    moved = step(lanes, result, above, below, rounding)
    if rounding == "rm" and name in ("add", "fma"):
        exact = build.and_(build.not_(build.or_(above, below)), build.fcmp_ordered("==", nearest, zero))
        moved = zero_down(lanes, moved, exact, _terms(lanes, name, bits), F64)
    return moved


def _halved(name: str, format: Float, ftz: bool, lanes: LaneBuilder, *bits: Value) -> Value:
    """F16 and BF16, to nearest.

    FP32 has more than twice their significant bits and two: sums rounded to it and then again are rounded right
    (Figueroa 1995), and sums that are subnormal are exact. It holds products exactly but for those of BF16 below
    2^-134, half the least BF16 number: of them it makes at most 2^-134, which is rounded to zero as they are. For a sum
    with such a product that is not enough.
    """
    build = lanes.build
    x = [single(lanes, each, format) for each in bits]
    if name == "fma" and format is BF16:
        x = [build.fpext(each, DOUBLE) for each in x]
        value, error = two_sum(lanes, build.fmul(x[0], x[1]), x[2])
        result = lanes.float_of(to_single(lanes, value, error, "odd"))
    elif name == "fma":
        result = odd_sum(lanes, build.fmul(x[0], x[1]), x[2])
    else:
        result = _operation(lanes, name, *x)
    rounded = narrow(lanes, result, format)
    if not ftz:
        return rounded
    # Tiny is what stays below the least normal number 2^-14 rounded to 11 bits: less than half a unit of them below it
    # gives 2^-14, and so does the tie.
    limit = constant(lanes, 2.0**-14 - 2.0**-26, 32)
    return zeroed(lanes, build.fcmp_ordered("<", lanes.intrinsic("fabs", result), limit), rounded, format)


def _rounded(name: str, format: Float, rounding: str, ftz: bool) -> _Rounded:
    """The operation on bit patterns, rounded, its inputs and its result flushed where `ftz` says so."""
    if format.bits == 16:
        rounded: _Rounded = partial(_halved, name, format, ftz)
    elif rounding == "rn":
        rounded = partial(_nearest, name, ftz)
    elif format is F64:
        rounded = partial(_directed64, name, rounding)
    else:
        rounded = partial(_directed, name, rounding, ftz)

    def function(lanes: LaneBuilder, *bits: Value) -> Value:
        if ftz:
            bits = tuple(flush(lanes, each, format) for each in bits)
        return canonical(lanes, rounded(lanes, *bits), format)

    return function


def _arithmetic(spelling: Spelling) -> Lowering | None:
    """add, sub, mul, fma and mad; div, rcp and sqrt but for their approximate forms."""
    name = spelling.mnemonic
    rounding = spelling.take(*_ROUNDINGS) or "rn"
    ftz = spelling.flag("ftz")
    clamp = spelling.take("sat", "relu")
    type_name = spelling.need(*FLOATS, *_PACKED)
    narrow_type = spelling.take("f16", "bf16")
    spelling.end()
    format = FLOATS[type_name.removesuffix("x2")]
    compute = _rounded({"mad": "fma", "rcp": "div"}.get(name, name), format, rounding, ftz)
    # The operands that may be of a narrow type: all but the addend.
    narrowed = 2 if name == "fma" else 1

    def function(lanes: LaneBuilder, *bits: Value) -> Value:
        if narrow_type:
            few = FLOATS[narrow_type]
            wide = (lanes.bits_of(single(lanes, each, few)) for each in bits[:narrowed])
            bits = (*wide, *bits[narrowed:])
        if name == "rcp":
            bits = (lanes.constant(format.one, format.bits), *bits)
        result = compute(lanes, *bits)
        if clamp:
            result = (saturate if clamp == "sat" else rectify)(lanes, result, format)
        return result

    return lift(function, format, type_name in _PACKED)


def _sign(spelling: Spelling) -> Lowering | None:
    """abs and neg."""
    absolute = spelling.mnemonic == "abs"
    ftz = spelling.flag("ftz")
    type_name = spelling.type(*FLOATS, *_PACKED)
    format = FLOATS[type_name.removesuffix("x2")]

    def function(lanes: LaneBuilder, bits: Value) -> Value:
        build = lanes.build
        value = flush(lanes, bits, format) if ftz else bits
        if absolute:
            value = build.and_(value, lanes.constant(format.sign - 1, format.bits))
        else:
            value = build.xor(value, lanes.constant(format.sign, format.bits))
        if format is not F64:
            return canonical(lanes, value, format)
        # A double that is NaN keeps its sign and payload, but signals no more.
        quiet = build.or_(bits, lanes.constant(format.quiet, 64))
        return build.select(is_nan(lanes, bits, format), quiet, value)

    return lift(function, format, type_name in _PACKED)


def _copysign(spelling: Spelling) -> Lowering | None:
    """copysign d, a, b: b with the sign of a."""
    format = FLOATS[spelling.type("f32", "f64")]

    def function(lanes: LaneBuilder, a: Value, b: Value) -> Value:
        build = lanes.build
        sign = build.and_(a, lanes.constant(format.sign, format.bits))
        return build.or_(sign, build.and_(b, lanes.constant(format.sign - 1, format.bits)))

    return lift(function, format, False)


def _extremum(spelling: Spelling) -> Lowering | None:
    """min and max, of three where there are three sources.

    Compared are integers in numeric order, -0 below +0. NaN is an integer beyond all numbers: on the far side where it
    wins, on the near side where it loses.
    """
    largest = spelling.mnemonic == "max"
    ftz = spelling.flag("ftz")
    nan_wins = spelling.flag("NaN")
    xor_sign = spelling.flag("xorsign")
    magnitudes = spelling.flag("abs")
    type_name = spelling.type(*FLOATS, *_PACKED)
    format = FLOATS[type_name.removesuffix("x2")]
    width = format.bits
    nan_key = format.sign - 1 if largest == nan_wins else format.sign

    def key(lanes: LaneBuilder, bits: Value) -> Value:
        if ftz:
            bits = flush(lanes, bits, format)
        if magnitudes:
            bits = lanes.build.and_(bits, lanes.constant(format.sign - 1, width))
        nan = is_nan(lanes, bits, format)
        return lanes.build.select(nan, lanes.constant(nan_key, width), _ordered(lanes, bits, format))

    def function(lanes: LaneBuilder, *bits: Value) -> Value:
        build = lanes.build
        picked = key(lanes, bits[0])
        for each in bits[1:]:
            picked = lanes.intrinsic("smax" if largest else "smin", picked, key(lanes, each))
        result = _ordered(lanes, picked, format)
        if xor_sign:
            sign = build.and_(build.xor(*bits), lanes.constant(format.sign, width))
            result = build.or_(result, sign)
        nan = build.icmp_unsigned("==", picked, lanes.constant(nan_key, width))
        return build.select(nan, lanes.constant(format.nan, width), result)

    return lift(function, format, type_name in _PACKED)


def _ordered(lanes: LaneBuilder, bits: Value, format: Float) -> Value:
    """Bit patterns as signed integers in numeric order, and back."""
    build = lanes.build
    negative = build.ashr(bits, lanes.constant(format.bits - 1, format.bits))
    return build.xor(bits, build.and_(negative, lanes.constant(format.sign - 1, format.bits)))


def certain(spelling: Spelling) -> Lowering | None:
    """The lanes in which a result in FP64 is certain: all but NaN, of which the manual does not say which it is."""
    arithmetic = (_extremum if spelling.mnemonic in ("min", "max") else _arithmetic)(spelling)
    if arithmetic is None or not spelling.opcode.endswith("f64"):
        return None

    def lower(lanes: LaneBuilder, sources: Sequence[Value]) -> Sequence[Value]:
        (result,) = arithmetic(lanes, sources)
        return [lanes.build.not_(is_nan(lanes, result, F64))]

    return lower


_ARITHMETIC = ("add", "sub", "mul", "fma", "mad", "div", "rcp", "sqrt")

BUILDERS: Mapping[str, Callable[[Spelling], Lowering | None]] = {
    **dict.fromkeys(_ARITHMETIC, _arithmetic),
    "abs": _sign,
    "copysign": _copysign,
    "max": _extremum,
    "min": _extremum,
    "neg": _sign,
}

# Where the result is exactly that of hardware, as `Operation.exact_when`; always, where there is no entry or None.
EXACT: Mapping[str, Callable[[Spelling], Lowering | None]] = dict.fromkeys((*_ARITHMETIC, "max", "min"), certain)
