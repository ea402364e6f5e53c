"""Parts of floating-point instructions: NaN, .ftz and clamps on bit patterns, halves as wider floats and back.

LLVM's own `half` and `bfloat` are not used: what a processor lacks of them becomes calls of a runtime library, or a
fused multiply-add that rounds twice. Both formats are widened by integer arithmetic and an exact product of FP32, and
narrowed by integer arithmetic and a sum of FP32 that rounds where the narrow format does.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Sequence

from llvmlite import ir

from refmoe.ptx.isa.floats import BF16, F16, F32, Float
from refmoe.ptx.ops.lanes import LANES, LaneBuilder, Lowering, Value

DOUBLE = ir.VectorType(ir.DoubleType(), LANES)
SINGLE = ir.VectorType(ir.FloatType(), LANES)


def is_nan(lanes: LaneBuilder, bits: Value, format: Float) -> Value:
    """Lanes that hold a NaN."""
    if format.bits >= 32 and lanes.known(bits) is None:
        number = lanes.float_of(bits)
        return lanes.build.fcmp_unordered("uno", number, number)
    # Formats that LLVM is not trusted with, see above.
    magnitude = lanes.build.and_(bits, lanes.constant(format.sign - 1, format.bits))
    return lanes.build.icmp_unsigned(">", magnitude, lanes.constant(format.infinity, format.bits))


def canonical(lanes: LaneBuilder, bits: Value, format: Float) -> Value:
    """Bit patterns with every NaN replaced by the format's own."""
    return lanes.build.select(is_nan(lanes, bits, format), lanes.constant(format.nan, format.bits), bits)


def zeroed(lanes: LaneBuilder, where: Value, bits: Value, format: Float) -> Value:
    """Zeros of the same sign in some lanes."""
    return lanes.build.select(where, lanes.build.and_(bits, lanes.constant(format.sign, format.bits)), bits)


def flush(lanes: LaneBuilder, bits: Value, format: Float) -> Value:
    """Subnormal numbers replaced by zeros of their sign."""
    exponent = lanes.build.and_(bits, lanes.constant(format.infinity, format.bits))
    return zeroed(lanes, lanes.build.icmp_unsigned("==", exponent, lanes.constant(0, format.bits)), bits, format)


def saturate(lanes: LaneBuilder, bits: Value, format: Float) -> Value:
    """Clamped to [+0, 1]; NaN gives +0. As signed integers all negative patterns lie below +0."""
    zero, one = lanes.constant(0, format.bits), lanes.constant(format.one, format.bits)
    clamped = lanes.intrinsic("smin", lanes.intrinsic("smax", bits, zero), one)
    return lanes.build.select(is_nan(lanes, bits, format), zero, clamped)


def rectify(lanes: LaneBuilder, bits: Value, format: Float) -> Value:
    """Negative numbers and -0 as +0, NaN as the format's own, which has no sign."""
    return lanes.intrinsic("smax", canonical(lanes, bits, format), lanes.constant(0, format.bits))


def lift(function: Callable[..., Value], format: Float, packed: bool) -> Lowering:
    """A function of registers of a format as the native form of an instruction, on both halves where it is packed."""

    def lower(lanes: LaneBuilder, sources: Sequence[Value]) -> Sequence[Value]:
        if not packed:
            return [function(lanes, *sources)]
        low, high = zip(*(lanes.halves(source) for source in sources), strict=True)
        return [lanes.joined(function(lanes, *low), function(lanes, *high))]

    return lower


def constant(lanes: LaneBuilder, value: float, bits: int = 64) -> Value:
    """One number, as a float of 32 or 64 bits, in every lane."""
    code = {32: "f", 64: "d"}[bits]
    return lanes.float_of(lanes.constant(int.from_bytes(struct.pack("<" + code, value), "little"), bits))


def single(lanes: LaneBuilder, bits: Value, format: Float) -> Value:
    """Bit patterns of F16, BF16 or F32 as FP32 numbers; exact."""
    build = lanes.build
    if format is F32:
        return lanes.float_of(bits)
    word = lanes.resize(bits, 32)
    if format is BF16:
        return lanes.float_of(build.shl(word, lanes.constant(16, 32)))
    # Exponent and fraction at their places, a bias of 15 instead of 127: a product makes up for it, also of subnormals.
    magnitude = build.shl(build.and_(word, lanes.constant(0x7FFF, 32)), lanes.constant(13, 32))
    scaled = lanes.bits_of(build.fmul(lanes.float_of(magnitude), constant(lanes, 2.0**112, 32)))
    endless = build.icmp_unsigned(">=", magnitude, lanes.constant(F16.infinity << 13, 32))
    scaled = build.select(endless, build.or_(scaled, lanes.constant(F32.infinity, 32)), scaled)
    sign = build.shl(build.and_(word, lanes.constant(0x8000, 32)), lanes.constant(16, 32))
    return lanes.float_of(build.or_(scaled, sign))


def narrow(lanes: LaneBuilder, value: Value, format: Float) -> Value:
    """FP32 numbers to bit patterns of F16, BF16 or F32, to nearest even; NaN becomes the format's own."""
    build = lanes.build
    bits = lanes.bits_of(value)
    if format is F32:
        return canonical(lanes, bits, F32)
    drop = F32.mantissa - format.mantissa
    magnitude = build.and_(bits, lanes.constant(F32.sign - 1, 32))
    # Half a unit less one, and one more where the last bit that stays is odd.
    odd = build.and_(build.lshr(magnitude, lanes.constant(drop, 32)), lanes.constant(1, 32))
    up = build.add(magnitude, build.add(odd, lanes.constant((1 << (drop - 1)) - 1, 32)))
    result = build.lshr(up, lanes.constant(drop, 32))
    if format is F16:
        result = build.sub(result, lanes.constant(112 << 10, 32))
        result = lanes.intrinsic("umin", result, lanes.constant(F16.infinity, 32))
        # Below 2^-14 the unit is 2^-24, which is that of FP32 from 0.5 to 1: this sum rounds to it.
        half = constant(lanes, 0.5, 32)
        units = build.sub(lanes.bits_of(build.fadd(lanes.float_of(magnitude), half)), lanes.bits_of(half))
        small = build.icmp_unsigned("<", magnitude, lanes.constant(113 << 23, 32))
        result = build.select(small, units, result)
    sign = build.and_(build.lshr(bits, lanes.constant(16, 32)), lanes.constant(0x8000, 32))
    nan = build.icmp_unsigned(">", magnitude, lanes.constant(F32.infinity, 32))
    result = build.select(nan, lanes.constant(format.nan, 32), build.or_(result, sign))
    return lanes.resize(result, 16)
