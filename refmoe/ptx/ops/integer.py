"""Integer arithmetic of a warp's lanes. The specification is `refmoe.ptx.isa.integer`."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

from llvmlite import ir

from refmoe.ptx.isa.spelling import Spelling
from refmoe.ptx.ops.lanes import LANES, Emit, LaneBuilder, Lowering, Value, giving

_TYPES = ("u16", "u32", "u64", "s16", "s32", "s64")
_PACKED = ("u16x2", "s16x2")
_CHAINED = ("u32", "s32", "u64", "s64")


def _in_halves(emit: Emit) -> Emit:
    """The same on registers of two 16-bit integers, seen as twice as many lanes."""

    def both(lanes: LaneBuilder, *sources: Value) -> Value:
        halves = (lanes.build.bitcast(source, ir.VectorType(ir.IntType(16), 2 * LANES)) for source in sources)
        return lanes.build.bitcast(emit(lanes, *halves), sources[0].type)

    return both


# --- add, sub and the carry chain -----------------------------------------------------------------------------------


def _add(lanes: LaneBuilder, a: Value, b: Value) -> Value:
    return lanes.build.add(a, b)


def _sub(lanes: LaneBuilder, a: Value, b: Value) -> Value:
    return lanes.build.sub(a, b)


def _saturating_add(lanes: LaneBuilder, a: Value, b: Value) -> Value:
    return lanes.intrinsic("sadd.sat", a, b)


def _saturating_sub(lanes: LaneBuilder, a: Value, b: Value) -> Value:
    return lanes.intrinsic("ssub.sat", a, b)


# From two terms, and the carry where one comes in, to the sum and the carry out.
_Step = Callable[..., Sequence[Value]]


def _add_carry(lanes: LaneBuilder, a: Value, b: Value, carry: Value = None) -> Sequence[Value]:
    total = lanes.build.add(a, b)
    out = lanes.build.icmp_unsigned("<", total, a)
    if carry is None:
        return total, out
    # Only one of the two additions can wrap: a total that did is at least one below all ones.
    result = lanes.build.add(total, lanes.resize(carry, a.type.element.width))
    return result, lanes.build.or_(out, lanes.build.icmp_unsigned("<", result, total))


def _sub_carry(lanes: LaneBuilder, a: Value, b: Value, carry: Value = None) -> Sequence[Value]:
    """The flag is 1 where nothing is borrowed: it is the carry of a + ~b + 1."""
    if carry is None:
        return lanes.build.sub(a, b), lanes.build.icmp_unsigned(">=", a, b)
    return _add_carry(lanes, a, lanes.inverted(b), carry)


def _link(step: _Step, carry_out: bool) -> Lowering:
    """One link of a carry chain; the carry that comes in is the last source."""

    def lower(lanes: LaneBuilder, sources: Sequence[Value]) -> Sequence[Value]:
        result, carry = step(lanes, *sources)
        return [result, carry] if carry_out else [result]

    return lower


def _sum(plain: Emit, saturating: Emit, step: _Step, types: Sequence[str]) -> Callable[[Spelling], Lowering]:
    def build(spelling: Spelling) -> Lowering:
        if spelling.flag("sat"):
            spelling.type("s32")
            return giving(saturating)
        if spelling.flag("cc"):
            spelling.type(*_CHAINED)
            return _link(step, carry_out=True)
        return giving(_in_halves(plain) if spelling.type(*types) in _PACKED else plain)

    return build


def _sum_with_carry(step: _Step) -> Callable[[Spelling], Lowering]:
    def build(spelling: Spelling) -> Lowering:
        carry_out = spelling.flag("cc")
        spelling.type(*_CHAINED)
        return _link(step, carry_out)

    return build


# --- mul, mad -------------------------------------------------------------------------------------------------------


def _product(part: str, is_signed: bool) -> Emit:
    """The low half of the product, its high half, or all of it: `part` is "lo", "hi" or "wide"."""

    def emit(lanes: LaneBuilder, a: Value, b: Value) -> Value:
        if part == "lo":
            return lanes.build.mul(a, b)
        twice = 2 * a.type.element.width
        whole = lanes.build.mul(lanes.resize(a, twice, is_signed), lanes.resize(b, twice, is_signed))
        return whole if part == "wide" else lanes.halves(whole)[1]

    return emit


def _product24(part: str, is_signed: bool) -> Emit:
    """Bits 0..31 of the product of the low 24 bits, or bits 16..47."""
    high = _product("hi", is_signed)

    def emit(lanes: LaneBuilder, a: Value, b: Value) -> Value:
        eight = lanes.constant(8, 32)
        # 24 bits at the top of a register are 256 times their value, with its sign: the product is 2^16 times the one
        # that is wanted, and bit 16 of that stands at bit 32.
        a, b = (lanes.build.shl(x, eight) for x in (a, b))
        if part == "hi":
            return high(lanes, a, b)
        down = lanes.build.ashr if is_signed else lanes.build.lshr
        return lanes.build.mul(down(a, eight), down(b, eight))

    return emit


def _plus(product: Emit, add: Emit = _add) -> Emit:
    return lambda lanes, a, b, c: add(lanes, product(lanes, a, b), c)


def _chained_plus(product: Emit) -> _Step:
    def step(lanes: LaneBuilder, a: Value, b: Value, c: Value, carry: Value = None) -> Sequence[Value]:
        return _add_carry(lanes, product(lanes, a, b), c, carry)

    return step


def _mul(spelling: Spelling) -> Lowering:
    part = spelling.need("lo", "hi", "wide")
    is_signed, _ = spelling.integer(*_TYPES)
    return giving(_product(part, is_signed))


def _mad(spelling: Spelling) -> Lowering:
    part = spelling.need("lo", "hi", "wide")
    if spelling.flag("cc"):
        is_signed, _ = spelling.integer(*_CHAINED)
        return _link(_chained_plus(_product(part, is_signed)), carry_out=True)
    add = _saturating_add if spelling.flag("sat") else _add
    is_signed, _ = spelling.integer(*_TYPES)
    return giving(_plus(_product(part, is_signed), add))


def _madc(spelling: Spelling) -> Lowering:
    part = spelling.need("lo", "hi")
    carry_out = spelling.flag("cc")
    is_signed, _ = spelling.integer(*_CHAINED)
    return _link(_chained_plus(_product(part, is_signed)), carry_out)


def _mul24(spelling: Spelling) -> Lowering:
    part = spelling.need("lo", "hi")
    is_signed, _ = spelling.integer("u32", "s32")
    return giving(_product24(part, is_signed))


def _mad24(spelling: Spelling) -> Lowering:
    part = spelling.need("lo", "hi")
    add = _saturating_add if spelling.flag("sat") else _add
    is_signed, _ = spelling.integer("u32", "s32")
    return giving(_plus(_product24(part, is_signed), add))


# --- div, rem, abs, neg, sad, min, max ------------------------------------------------------------------------------


def _quotient(lanes: LaneBuilder, a: Value, b: Value, is_signed: bool) -> Value:
    """a / b toward zero, for divisors other than 0, and other than -1 of the least number.

    CPUs divide vectors of doubles, but no vectors of integers. Up to 32 bits the double's quotient truncates to the
    right integer q: the exact one is at least 1/|b| below q + 1, which is more than the 2^-53 (q + 1) that rounding may
    add, as |b| (q + 1) <= |a| + |b| < 2^33.
    """
    build, bits = lanes.build, a.type.element.width
    if bits > 32:
        return (build.sdiv if is_signed else build.udiv)(a, b)
    doubles = ir.VectorType(ir.DoubleType(), LANES)
    x, y = ((build.sitofp if is_signed else build.uitofp)(each, doubles) for each in (a, b))
    return (build.fptosi if is_signed else build.fptoui)(build.fdiv(x, y), a.type)


def _division(remainder: bool) -> Callable[[Spelling], Lowering]:
    def build(spelling: Spelling) -> Lowering:
        is_signed, bits = spelling.integer(*_TYPES)

        def emit(lanes: LaneBuilder, a: Value, b: Value) -> Value:
            build = lanes.build
            one, ones = (lanes.constant(value, bits) for value in (1, -1))
            by_zero = build.icmp_unsigned("==", b, lanes.constant(0, bits))
            undefined = by_zero
            if is_signed:
                least = build.icmp_unsigned("==", a, lanes.constant(1 << bits - 1, bits))
                undefined = build.or_(by_zero, build.and_(least, build.icmp_unsigned("==", b, ones)))
            # LLVM leaves these undefined, and x86 stops the program, so every lane divides by something else: by 1,
            # which gives what -1 should, the least number again and no remainder.
            divisor = build.select(undefined, one, b)
            quotient = _quotient(lanes, a, divisor, is_signed)
            result = build.sub(a, build.mul(quotient, divisor)) if remainder else quotient
            # What an H200 gives, as quotient and as remainder.
            return build.select(by_zero, ones, result)

        return giving(emit)

    return build


def _abs(spelling: Spelling) -> Lowering:
    spelling.type("s16", "s32", "s64")
    # The least number, which has no positive counterpart, stays.
    return giving(lambda lanes, a: lanes.intrinsic("abs", a, ir.Constant(ir.IntType(1), False)))


def _neg(spelling: Spelling) -> Lowering:
    _, bits = spelling.integer("s16", "s32", "s64")
    return giving(lambda lanes, a: lanes.build.sub(lanes.constant(0, bits), a))


def _sad(spelling: Spelling) -> Lowering:
    is_signed, _ = spelling.integer(*_TYPES)
    sign = "s" if is_signed else "u"

    def emit(lanes: LaneBuilder, a: Value, b: Value, c: Value) -> Value:
        # The distance may need one bit more than a signed number has: as an unsigned one it is right.
        largest, least = (lanes.intrinsic(sign + pick, a, b) for pick in ("max", "min"))
        return lanes.build.add(c, lanes.build.sub(largest, least))

    return giving(emit)


def _extremum(pick: str) -> Callable[[Spelling], Lowering]:
    def build(spelling: Spelling) -> Lowering:
        relu = spelling.flag("relu")
        name = spelling.type(*_TYPES, *_PACKED)

        def emit(lanes: LaneBuilder, a: Value, b: Value) -> Value:
            result = lanes.intrinsic(name[0] + pick, a, b)
            return lanes.intrinsic("smax", result, ir.Constant(a.type, [0] * a.type.count)) if relu else result

        return giving(_in_halves(emit) if name in _PACKED else emit)

    return build


# --- dot products ---------------------------------------------------------------------------------------------------


def _field(lanes: LaneBuilder, x: Value, low: int, bits: int, is_signed: bool) -> Value:
    """Bits low..low+bits-1 of a register, extended to 32 bits."""
    down = lanes.build.ashr if is_signed else lanes.build.lshr
    return down(lanes.build.shl(x, lanes.constant(32 - low - bits, 32)), lanes.constant(32 - bits, 32))


def _dot(a_bits: int, b_base: int, a_signed: bool, b_signed: bool) -> Lowering:
    """c + the products of the fields of a, from bit 0 up, and of the bytes of b, from bit `b_base` up."""

    def emit(lanes: LaneBuilder, a: Value, b: Value, c: Value) -> Value:
        for i in range(32 // a_bits):
            x = _field(lanes, a, a_bits * i, a_bits, a_signed)
            y = _field(lanes, b, b_base + 8 * i, 8, b_signed)
            c = lanes.build.add(c, lanes.build.mul(x, y))
        return c

    return giving(emit)


def _dot_types(spelling: Spelling) -> tuple[bool, bool]:
    return spelling.need("u32", "s32") == "s32", spelling.type("u32", "s32") == "s32"


def _dp4a(spelling: Spelling) -> Lowering:
    return _dot(8, 0, *_dot_types(spelling))


def _dp2a(spelling: Spelling) -> Lowering:
    base = 16 if spelling.need("lo", "hi") == "hi" else 0
    return _dot(16, base, *_dot_types(spelling))


def has_divisor(lanes: LaneBuilder, sources: Sequence[Value]) -> Sequence[Value]:
    """The lanes in which a quotient or a remainder is defined."""
    divisor = sources[1]
    return [lanes.build.icmp_unsigned("!=", divisor, lanes.constant(0, divisor.type.element.width))]


BUILDERS: Mapping[str, Callable[[Spelling], Lowering | None]] = {
    "abs": _abs,
    "add": _sum(_add, _saturating_add, _add_carry, (*_TYPES, *_PACKED)),
    "addc": _sum_with_carry(_add_carry),
    "div": _division(remainder=False),
    "dp2a": _dp2a,
    "dp4a": _dp4a,
    "mad": _mad,
    "mad24": _mad24,
    "madc": _madc,
    "max": _extremum("max"),
    "min": _extremum("min"),
    "mul": _mul,
    "mul24": _mul24,
    "neg": _neg,
    "rem": _division(remainder=True),
    "sad": _sad,
    "sub": _sum(_sub, _saturating_sub, _sub_carry, _TYPES),
    "subc": _sum_with_carry(_sub_carry),
}
