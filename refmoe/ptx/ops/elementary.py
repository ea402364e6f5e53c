"""Elementary functions of FP64 vectors, as good as estimates that are then rounded to FP32 need to be.

NumPy has them from a library of its host, whose last bits are its own. Rounded to FP32 the results are nevertheless
determined. An exhaustive search found those FP32 arguments whose true result lies within 4 units of the last place of
FP64 of a point half way between two FP32 numbers: 50 of all five functions, which tests/ptx/ops/test_approximate.py
lists. Of every other argument any estimate within 4 units gives the same FP32 number. At those 50 any within 0.56 units
gives that of the FP64 number nearest to the true result. NumPy and glibc are nearer, and so are the functions here.
"""

from __future__ import annotations

from collections.abc import Sequence

from refmoe.ptx.isa.floats import F64
from refmoe.ptx.ops.directed import two_sum
from refmoe.ptx.ops.ieee import constant
from refmoe.ptx.ops.lanes import LaneBuilder, Value, vector

_LN2, _LN2_LOW = 0.6931471805599453, 2.3190468138462996e-17
_LOG2_E, _LOG2_E_LOW = 1.4426950408889634, 2.0355273740931033e-17
# Polynomials of least error, found by Remez' exchange; the error is that of the function, relative.
# (2^f - 1 - f ln 2) / f^2 for |f| <= 1/2, 2^-64.
_EXP2 = (
    0.24022650695910072,
    0.05550410866482164,
    0.00961812910762849,
    0.001333355814640191,
    0.00015403530393347933,
    1.5252733846922358e-05,
    1.321548682850496e-06,
    1.0178054631942171e-07,
    7.05488967409772e-09,
    4.4562066405343455e-10,
    2.5740113039844295e-11,
)
# (2 atanh(s) / s - 2) / s^2 as a polynomial of s^2, for 1+s over 1-s between the roots of 1/2 and of 2; 2^-65.
_ATANH = (
    0.6666666666666666,
    0.40000000000006286,
    0.28571428569072893,
    0.22222222648755136,
    0.1818177550845406,
    0.1538709764501499,
    0.13249962299620388,
    0.1325275142633815,
)
# (sin(x) / x - 1) / x^2 and (cos(x) - 1 + x^2 / 2) / x^4 as polynomials of x^2, for |x| <= pi/4; 2^-68 and 2^-75.
_SIN = (
    -0.16666666666666666,
    0.008333333333333323,
    -0.00019841269841255064,
    2.7557319214188275e-06,
    -2.505210491101962e-08,
    1.6058366553896022e-10,
    -7.578694151307783e-13,
)
_COS = (
    0.041666666666666664,
    -0.0013888888888888874,
    2.480158730157146e-05,
    -2.755731921536007e-07,
    2.0876754362512004e-09,
    -1.147029284181308e-11,
    4.738089429007826e-14,
)
_HALF_PI, _HALF_PI_LOW = 1.5707963267948966, 6.123233995736766e-17
# A word of zeros and the first 256 bits of 2/pi after the point.
_TWO_OVER_PI = (
    0,
    0xA2F9836E4E441529,
    0xFC2757D1F534DDC0,
    0xDB6295993C439041,
    0xFE5163ABDEBBC561,
)


def _polynomial(lanes: LaneBuilder, x: Value, coefficients: Sequence[float]) -> Value:
    """The sum of coefficients[i] * x^i."""
    result = constant(lanes, coefficients[-1])
    for coefficient in reversed(coefficients[:-1]):
        result = lanes.intrinsic("fma", result, x, constant(lanes, coefficient))
    return result


def _at_most(lanes: LaneBuilder, x: Value, bound: float) -> Value:
    """x between -bound and bound; NaN stays."""
    build = lanes.build
    for sign, order in ((1.0, ">"), (-1.0, "<")):
        limit = constant(lanes, sign * bound)
        x = build.select(build.fcmp_ordered(order, x, limit), limit, x)
    return x


def _to_integer(lanes: LaneBuilder, x: Value) -> tuple[Value, Value]:
    """The integer nearest to x, below 2^51: as FP64, and as 2 to its power where that is a normal number."""
    build = lanes.build
    # The last bit of this number counts ones.
    magic = constant(lanes, 1.5 * 2.0**52)
    moved = build.fadd(x, magic)
    field = build.shl(build.add(lanes.bits_of(moved), lanes.constant(1023, 64)), lanes.constant(52, 64))
    return build.fsub(moved, magic), lanes.float_of(field)


def exp2(lanes: LaneBuilder, x: Value) -> Value:
    """2^x, within 0.54 units."""
    build = lanes.build
    whole, power = _to_integer(lanes, x := _at_most(lanes, x, 1000.0))
    f = build.fsub(x, whole)
    tail = build.fmul(build.fmul(f, f), _polynomial(lanes, f, _EXP2))
    # 1 + f ln 2 in two parts, so that only the last sum rounds.
    ln2 = constant(lanes, _LN2)
    linear = build.fmul(f, ln2)
    low = lanes.intrinsic("fma", f, ln2, build.fneg(linear))
    low = lanes.intrinsic("fma", f, constant(lanes, _LN2_LOW), low)
    total, error = two_sum(lanes, constant(lanes, 1.0), linear)
    return build.fmul(build.fadd(total, build.fadd(error, build.fadd(low, tail))), power)


def log2(lanes: LaneBuilder, x: Value) -> Value:
    """The logarithm to base 2 of a number that is neither zero nor below 2^-1022, within 0.6 units.

    Zero gives -Inf, infinity itself; below zero it is NaN.
    """
    build = lanes.build
    bits = lanes.bits_of(x)
    # x = m * 2^k with m from the root of 1/2 to that of 2.
    root = lanes.constant(0x3FE6A09E667F3BCD, 64)
    k = build.ashr(build.sub(bits, root), lanes.constant(52, 64))
    m = lanes.float_of(build.sub(bits, build.shl(k, lanes.constant(52, 64))))
    # ln(1 + u) = u - u^2/2 + s (u^2/2 + R) with s = u / (2 + u) and R = 2 atanh(s) / s - 2.
    u = build.fsub(m, constant(lanes, 1.0))
    half = build.fmul(u, constant(lanes, 0.5))
    square = build.fmul(u, half)
    square_low = lanes.intrinsic("fma", u, half, build.fneg(square))
    s = build.fdiv(u, build.fadd(u, constant(lanes, 2.0)))
    z = build.fmul(s, s)
    rest = build.fmul(s, build.fadd(square, build.fmul(z, _polynomial(lanes, z, _ATANH))))
    high, low = two_sum(lanes, u, build.fneg(square))
    low = build.fadd(build.fsub(low, square_low), rest)
    # Times 1/ln 2, plus k.
    scale = constant(lanes, _LOG2_E)
    product = build.fmul(high, scale)
    error = lanes.intrinsic("fma", high, scale, build.fneg(product))
    error = build.fadd(error, lanes.intrinsic("fma", high, constant(lanes, _LOG2_E_LOW), build.fmul(low, scale)))
    total, low = two_sum(lanes, build.sitofp(k, x.type), product)
    result = build.fadd(total, build.fadd(low, error))
    zero, infinity = constant(lanes, 0.0), constant(lanes, float("inf"))
    result = build.select(build.fcmp_ordered("<", x, infinity), result, x)
    result = build.select(build.fcmp_ordered("==", x, zero), build.fneg(infinity), result)
    nan = lanes.float_of(lanes.constant(F64.nan, 64))
    return build.select(build.fcmp_ordered("<", x, zero), nan, result)


def tanh(lanes: LaneBuilder, x: Value) -> Value:
    """The hyperbolic tangent, within 3 units."""
    build = lanes.build
    magnitude = _at_most(lanes, lanes.intrinsic("fabs", x), 30.0)
    # e = exp(-2 |x|) - 1, by powers of 2: 2^k - 1 is exact, and p = 2^f - 1 has no other term to cancel with.
    exponent = build.fmul(magnitude, constant(lanes, -2.0 * _LOG2_E))
    whole, power = _to_integer(lanes, exponent)
    f = build.fsub(exponent, whole)
    p = build.fmul(f, lanes.intrinsic("fma", f, _polynomial(lanes, f, _EXP2), constant(lanes, _LN2)))
    e = lanes.intrinsic("fma", power, p, build.fsub(power, constant(lanes, 1.0)))
    result = build.fdiv(build.fneg(e), build.fadd(e, constant(lanes, 2.0)))
    sign = build.and_(lanes.bits_of(x), lanes.constant(F64.sign, 64))
    return lanes.float_of(build.or_(lanes.bits_of(lanes.intrinsic("fabs", result)), sign))


def sin(lanes: LaneBuilder, x: Value) -> Value:
    """The sine of FP32 numbers given in FP64, within 0.7 units."""
    quadrant, high, low = _reduced(lanes, x)
    return _sine(lanes, x, quadrant, high, low, lanes.bits_of(x))


def cos(lanes: LaneBuilder, x: Value) -> Value:
    """The cosine of FP32 numbers given in FP64, within 0.7 units: the sine of what is a quadrant further."""
    quadrant, high, low = _reduced(lanes, x)
    further = lanes.build.add(quadrant, lanes.constant(1, 64))
    return _sine(lanes, x, further, high, low, lanes.constant(0, 64))


def _reduced(lanes: LaneBuilder, x: Value) -> tuple[Value, Value, Value]:
    """|x| as (quadrant, high, low): quadrant * pi/2 + high + low but for whole turns, |high| <= pi/4.

    Payne and Hanek's: of 2/pi only those bits count that do not make whole turns times x. A significand of 24 bits
    times 128 of them leaves 102 right ones below the point, of which no FP32 number cancels more than 30.
    """
    build = lanes.build
    magnitude = lanes.intrinsic("fabs", x)
    bits = lanes.bits_of(magnitude)
    fraction = build.and_(bits, lanes.constant((1 << 52) - 1, 64))
    significand = build.lshr(build.or_(fraction, lanes.constant(1 << 52, 64)), lanes.constant(29, 64))
    # |x| = significand * 2^exponent, with an exponent from -62 where the result is used. The first bit is worth 2.
    exponent = build.sub(build.lshr(bits, lanes.constant(52, 64)), lanes.constant(1023 + 23, 64))
    first = lanes.intrinsic("smax", build.add(exponent, lanes.constant(62, 64)), lanes.constant(0, 64))
    word, offset = (build.lshr(first, lanes.constant(6, 64)), build.and_(first, lanes.constant(63, 64)))
    held = []
    for start in range(3):
        chosen = lanes.constant(_TWO_OVER_PI[start], 64)
        for number in (1, 2):
            here = build.icmp_unsigned("==", word, lanes.constant(number, 64))
            chosen = build.select(here, lanes.constant(_TWO_OVER_PI[start + number], 64), chosen)
        held.append(chosen)
    upper, lower = (lanes.intrinsic("fshl", held[i], held[i + 1], offset) for i in range(2))
    # Two words of the product, of whole turns in units of 2^-64 and 2^-128.
    turns_low = build.mul(lower, significand)
    turns = build.add(build.mul(upper, significand), _upper_product(lanes, lower, significand))
    quadrant = build.lshr(build.add(turns, lanes.constant(1 << 61, 64)), lanes.constant(62, 64))
    rest = build.sub(turns, build.shl(quadrant, lanes.constant(62, 64)))
    # In two parts, times pi/2: rest is below 2^61, so that its nearest FP64 number is an integer of 64 bits again.
    high = build.sitofp(rest, x.type)
    low = build.sitofp(build.sub(rest, build.fptosi(high, rest.type)), x.type)
    low = build.fadd(low, build.fmul(build.uitofp(turns_low, x.type), constant(lanes, 2.0**-64)))
    unit, unit_low = constant(lanes, _HALF_PI * 2.0**-62), constant(lanes, _HALF_PI_LOW * 2.0**-62)
    angle = build.fmul(high, unit)
    error = lanes.intrinsic("fma", high, unit, build.fneg(angle))
    error = build.fadd(error, lanes.intrinsic("fma", high, unit_low, build.fmul(low, unit)))
    small = build.fcmp_ordered("<", magnitude, constant(lanes, 0.78))
    zero = lanes.constant(0, 64)
    return (
        build.select(small, zero, quadrant),
        build.select(small, magnitude, angle),
        build.select(small, lanes.float_of(zero), error),
    )


def _upper_product(lanes: LaneBuilder, word: Value, significand: Value) -> Value:
    """The product of 64 bits and 24 without its low 64 bits."""
    build = lanes.build
    half = lanes.constant(32, 64)
    below = build.lshr(build.mul(build.and_(word, lanes.constant(0xFFFFFFFF, 64)), significand), half)
    return build.lshr(build.add(build.mul(build.lshr(word, half), significand), below), half)


def _sine(lanes: LaneBuilder, x: Value, quadrant: Value, high: Value, low: Value, sign: Value) -> Value:
    """sin(quadrant * pi/2 + high + low) with the sign of another number; NaN where x is not finite."""
    build = lanes.build
    one = constant(lanes, 1.0)
    square = build.fmul(high, high)
    square_low = lanes.intrinsic("fma", high, high, build.fneg(square))
    half = build.fmul(square, constant(lanes, 0.5))
    rest = build.fsub(one, half)
    tail = build.fmul(build.fmul(square, high), _polynomial(lanes, square, _SIN))
    sine = build.fadd(high, lanes.intrinsic("fma", low, rest, tail))
    # 1 - x^2/2 in two parts.
    tail = build.fmul(build.fmul(square, square), _polynomial(lanes, square, _COS))
    lost = build.fsub(build.fsub(one, rest), half)
    lost = build.fsub(lost, lanes.intrinsic("fma", high, low, build.fmul(square_low, constant(lanes, 0.5))))
    cosine = build.fadd(rest, build.fadd(lost, tail))
    odd = build.trunc(quadrant, vector(1))
    result = lanes.bits_of(build.select(odd, cosine, sine))
    back = build.shl(build.lshr(quadrant, lanes.constant(1, 64)), lanes.constant(63, 64))
    result = build.xor(build.xor(result, back), build.and_(sign, lanes.constant(F64.sign, 64)))
    finite = build.fcmp_ordered("<", lanes.intrinsic("fabs", x), constant(lanes, float("inf")))
    return lanes.float_of(build.select(finite, result, lanes.constant(F64.nan, 64)))
