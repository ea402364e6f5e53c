"""The approximate instructions of a warp's lanes. The specification is `refmoe.ptx.isa.approximate`.

Their results are FP64 estimates rounded to nearest: see `elementary` for why those bits do not depend on a host. Where
the estimate is a quotient or a root of FP32 numbers, rounding it again changes nothing, and FP32's own is the same.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

from refmoe.ptx.isa.floats import F32, FLOATS, Float
from refmoe.ptx.isa.spelling import Spelling
from refmoe.ptx.ops import elementary, floating
from refmoe.ptx.ops.directed import to_single
from refmoe.ptx.ops.ieee import DOUBLE, SINGLE, constant, flush, lift, narrow, single
from refmoe.ptx.ops.lanes import LaneBuilder, Lowering, Value


def _rsqrt(lanes: LaneBuilder, x: Value) -> Value:
    """Rounded twice, as the specification has it."""
    return lanes.build.fdiv(constant(lanes, 1.0), lanes.intrinsic("sqrt", x))


# Of FP64.
_ESTIMATES: dict[str, Callable[[LaneBuilder, Value], Value]] = {
    "ex2": elementary.exp2,
    "lg2": elementary.log2,
    "rsqrt": _rsqrt,
    "sin": elementary.sin,
    "cos": elementary.cos,
    "tanh": elementary.tanh,
}
_ALL = (*_ESTIMATES, "rcp", "sqrt", "div")


def _estimate(name: str, format: Float, lanes: LaneBuilder, *bits: Value) -> Value:
    """The estimate rounded to the format."""
    build = lanes.build
    if name in _ESTIMATES:
        value = _ESTIMATES[name](lanes, build.fpext(single(lanes, bits[0], format), DOUBLE))
        if format is F32:
            return narrow(lanes, build.fptrunc(value, SINGLE), F32)
        return narrow(lanes, lanes.float_of(to_single(lanes, value, None, "odd")), format)
    x = [lanes.float_of(each) for each in bits]
    if name == "sqrt":
        result = lanes.intrinsic("sqrt", x[0])
    else:
        result = build.fdiv(*([constant(lanes, 1.0, 32), *x] if name == "rcp" else x))
    return narrow(lanes, result, F32)


def _parse(spelling: Spelling) -> tuple[bool, Float, bool]:
    """(.ftz, format, whether two are packed) of an approximate instruction."""
    spelling.need("approx", "full")
    ftz = spelling.flag("ftz")
    type_name = spelling.type("f16", "f16x2", "bf16", "bf16x2", "f32")
    return ftz, FLOATS[type_name.removesuffix("x2")], type_name.endswith("x2")


def _approximate(spelling: Spelling) -> Lowering | None:
    ftz, format, packed = _parse(spelling)

    def function(lanes: LaneBuilder, *bits: Value) -> Value:
        if ftz:
            bits = tuple(flush(lanes, each, format) for each in bits)
        result = _estimate(spelling.mnemonic, format, lanes, *bits)
        return flush(lanes, result, format) if ftz else result

    return lift(function, format, packed)


def _between(lanes: LaneBuilder, x: Value, low: float, high: float) -> Value:
    """Lanes with low <= x <= high."""
    build = lanes.build
    above = build.fcmp_ordered(">=", x, constant(lanes, low, 32))
    return build.and_(above, build.fcmp_ordered("<=", x, constant(lanes, high, 32)))


def _exact_ex2(lanes: LaneBuilder, bits: Value, ftz: bool) -> Value:
    """Integers with a normal result; without .ftz also those with a subnormal one but for -127, and all subnormals."""
    build = lanes.build
    x = lanes.float_of(bits)
    integer = build.fcmp_ordered("==", lanes.intrinsic("rint", x), x)
    exact = build.and_(integer, _between(lanes, x, -126.0, 127.0))
    if ftz:
        return build.or_(exact, build.fcmp_ordered("<=", x, constant(lanes, -127.0, 32)))
    subnormal = build.fcmp_ordered("<", lanes.intrinsic("fabs", x), constant(lanes, 2.0**-126, 32))
    return build.or_(build.or_(exact, subnormal), build.and_(integer, _between(lanes, x, -149.0, -128.0)))


def _exact_rcp(lanes: LaneBuilder, bits: Value, ftz: bool) -> Value:
    """Powers of two, subnormal ones too, and 448."""
    build = lanes.build
    zero, one = lanes.constant(0, 32), lanes.constant(1, 32)
    magnitude = build.and_(bits, lanes.constant(F32.sign - 1, 32))
    fraction = build.and_(bits, lanes.constant((1 << F32.mantissa) - 1, 32))
    normal = build.icmp_unsigned("==", fraction, zero)
    lowest = build.icmp_unsigned("==", build.and_(magnitude, build.sub(magnitude, one)), zero)
    subnormal = build.and_(build.icmp_unsigned("==", magnitude, fraction), lowest)
    largest_e4m3 = build.fcmp_ordered("==", lanes.float_of(bits), constant(lanes, 448.0, 32))
    return build.or_(build.or_(normal, subnormal), largest_e4m3)


def _negative(lanes: LaneBuilder, bits: Value, ftz: bool) -> Value:
    """Arguments below zero, whose result is NaN."""
    return lanes.build.icmp_signed("<", bits, lanes.constant(0, 32))


_KNOWN: dict[str, Callable[[LaneBuilder, Value, bool], Value]] = {
    "ex2": _exact_ex2,
    "rcp": _exact_rcp,
    "lg2": _negative,
    "sqrt": _negative,
    "rsqrt": _negative,
}


def _exact(spelling: Spelling) -> Lowering | None:
    """The lanes in which the result is certain."""
    if not spelling.has("approx", "full"):
        return floating.certain(spelling)
    name = spelling.mnemonic
    ftz, format, _ = _parse(spelling)

    def lower(lanes: LaneBuilder, sources: Sequence[Value]) -> Sequence[Value]:
        build = lanes.build
        if format is not F32 or name == "div":
            return [lanes.constant(0, 1)]
        bits = flush(lanes, sources[0], F32) if ftz else sources[0]
        # Zeros, infinities and NaN: every instruction's table gives their results.
        infinite = build.and_(bits, lanes.constant(F32.infinity, 32))
        special = build.icmp_unsigned("==", infinite, lanes.constant(F32.infinity, 32))
        special = build.or_(special, build.fcmp_ordered("==", lanes.float_of(bits), constant(lanes, 0.0, 32)))
        return [build.or_(special, _KNOWN[name](lanes, bits, ftz)) if name in _KNOWN else special]

    return lower


BUILDERS: Mapping[str, Callable[[Spelling], Lowering | None]] = dict.fromkeys(_ALL, _approximate)

# Where the result is exactly that of hardware, as `Operation.exact_when`; always, where there is no entry or None.
EXACT: Mapping[str, Callable[[Spelling], Lowering | None]] = dict.fromkeys(_ALL, _exact)
