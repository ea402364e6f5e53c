"""Comparisons and selections in a warp's lanes, and mov. The specification is `refmoe.ptx.isa.compare`."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

from llvmlite import ir

from refmoe.ptx.isa.floats import BF16, F16, FLOATS, Float
from refmoe.ptx.isa.spelling import Spelling
from refmoe.ptx.ops.lanes import Emit, LaneBuilder, Lowering, Value, giving

_INTEGERS = ("b16", "b32", "b64", "u16", "u32", "u64", "s16", "s32", "s64")
_FLOATS = ("f32", "f64", "f16", "bf16")
_PACKED = ("f16x2", "bf16x2")
_RELATIONS = {"eq": "==", "ne": "!=", "lt": "<", "le": "<=", "gt": ">", "ge": ">="}
# Names of their own for unsigned integers.
_UNSIGNED = {"lo": "<", "ls": "<=", "hi": ">", "hs": ">="}
# Whether either operand is NaN, and the relations that are true if one is: `ne` itself is false.
_NAN_TESTS = {"num": "ord", "nan": "uno"}
_UNORDERED = {f"{name}u": relation for name, relation in _RELATIONS.items()}
_BOOLEANS = {"and": "and_", "or": "or_", "xor": "xor"}


# --- comparisons ----------------------------------------------------------------------------------------------------


def _comparison(spelling: Spelling) -> tuple[str, str, bool]:
    """Take CmpOp, BoolOp and .ftz: (CmpOp, BoolOp or "", ftz)."""
    name = spelling.need(*_RELATIONS, *_UNSIGNED, *_UNORDERED, *_NAN_TESTS)
    return name, spelling.take(*_BOOLEANS), spelling.flag("ftz")


def _comparator(name: str, type_name: str, ftz: bool) -> Emit:
    """The comparison `name` of two registers of a type that is not packed."""
    if type_name not in FLOATS:
        return _integers(name, type_name[0] == "s")
    if type_name == "f16":
        return _halves(name, ftz)
    return _floats(name, FLOATS[type_name], ftz)


def _integers(name: str, is_signed: bool) -> Emit:
    relation = _RELATIONS.get(name) or _UNSIGNED[name]

    def emit(lanes: LaneBuilder, a: Value, b: Value) -> Value:
        return (lanes.build.icmp_signed if is_signed else lanes.build.icmp_unsigned)(relation, a, b)

    return emit


def _floats(name: str, format: Float, ftz: bool) -> Emit:
    bits = format.bits

    def number(lanes: LaneBuilder, x: Value) -> Value:
        if ftz:
            # Any zero does: comparisons do not see its sign.
            exponent = lanes.build.and_(x, lanes.constant(format.infinity, bits))
            zero = lanes.constant(0, bits)
            x = lanes.build.select(lanes.build.icmp_unsigned("==", exponent, zero), zero, x)
        if format is BF16:
            # The upper half of the FP32 number of the same value.
            x = lanes.build.shl(lanes.resize(x, 32), lanes.constant(16, 32))
        return lanes.float_of(x)

    def emit(lanes: LaneBuilder, a: Value, b: Value) -> Value:
        x, y = number(lanes, a), number(lanes, b)
        if name in _UNORDERED:
            return lanes.build.fcmp_unordered(_UNORDERED[name], x, y)
        return lanes.build.fcmp_ordered(_NAN_TESTS.get(name) or _RELATIONS[name], x, y)

    return emit


def _halves(name: str, ftz: bool) -> Emit:
    """FP16, as integers: not every CPU compares it, and where one does not even widen it LLVM calls a library."""

    def number(lanes: LaneBuilder, x: Value) -> tuple[Value, Value]:
        """An integer in the order of the numbers, 0 for both zeros; and whether it is a NaN."""
        build, zero = lanes.build, lanes.constant(0, 16)
        magnitude = build.and_(x, lanes.constant(F16.sign - 1, 16))
        nan = build.icmp_unsigned(">", magnitude, lanes.constant(F16.infinity, 16))
        if ftz:
            tiny = build.icmp_unsigned("<", magnitude, lanes.constant(1 << F16.mantissa, 16))
            magnitude = build.select(tiny, zero, magnitude)
        return build.select(build.icmp_signed("<", x, zero), build.sub(zero, magnitude), magnitude), nan

    def emit(lanes: LaneBuilder, a: Value, b: Value) -> Value:
        (x, x_nan), (y, y_nan) = number(lanes, a), number(lanes, b)
        unordered = lanes.build.or_(x_nan, y_nan)
        if name in _NAN_TESTS:
            return unordered if name == "nan" else lanes.inverted(unordered)
        if name in _UNORDERED:
            return lanes.build.or_(unordered, lanes.build.icmp_signed(_UNORDERED[name], x, y))
        return lanes.build.and_(lanes.inverted(unordered), lanes.build.icmp_signed(_RELATIONS[name], x, y))

    return emit


def setp(spelling: Spelling, destinations: int) -> Lowering:
    """setp p[|q], a, b[, c]: p = BoolOp(t, c), q = BoolOp(not t, c) for t = a CmpOp b.

    Packed types compare the low halves into p and the high halves into q.
    """
    name, boolean, ftz = _comparison(spelling)
    type_name = spelling.type(*_INTEGERS, *_FLOATS, *_PACKED)
    compare = _comparator(name, type_name.removesuffix("x2"), ftz)

    def lower(lanes: LaneBuilder, sources: Sequence[Value]) -> Sequence[Value]:
        a, b, *c = sources
        if type_name in _PACKED:
            tests = [compare(lanes, x, y) for x, y in zip(lanes.halves(a), lanes.halves(b), strict=True)]
        else:
            test = compare(lanes, a, b)
            tests = [test, lanes.inverted(test)][:destinations]
        return [getattr(lanes.build, _BOOLEANS[boolean])(test, *c) for test in tests] if boolean else tests

    return lower


def _set(spelling: Spelling) -> Lowering:
    """set d, a, b[, c]: all ones, or 1.0 in a float, where setp would be true, else 0; packed types by halves."""
    name, boolean, ftz = _comparison(spelling)
    to = spelling.need("u16", "s16", "u32", "s32", "f16", "bf16", "f32", *_PACKED)
    of = spelling.type(*_INTEGERS, *_FLOATS, *_PACKED)
    compare = _comparator(name, of.removesuffix("x2"), ftz)
    format = FLOATS.get(to.removesuffix("x2"))
    bits = 16 if of in _PACKED else format.bits if format else int(to[1:])

    def one(lanes: LaneBuilder, a: Value, b: Value, *c: Value) -> Value:
        test = compare(lanes, a, b)
        if boolean:
            test = getattr(lanes.build, _BOOLEANS[boolean])(test, *c)
        true = lanes.constant(format.one if format else -1, bits)
        return lanes.build.select(test, true, lanes.constant(0, bits))

    def emit(lanes: LaneBuilder, a: Value, b: Value, *c: Value) -> Value:
        if of not in _PACKED:
            return one(lanes, a, b, *c)
        low, high = (one(lanes, x, y, *c) for x, y in zip(lanes.halves(a), lanes.halves(b), strict=True))
        return lanes.joined(low, high)

    return giving(emit)


# Classes of `llvm.is.fpclass`, of both signs.
_NAN, _INFINITE, _NORMAL, _SUBNORMAL, _ZERO = 0x003, 0x204, 0x108, 0x090, 0x060
_FINITE = _NORMAL | _SUBNORMAL | _ZERO
_TESTS = {
    "finite": _FINITE,
    "infinite": _INFINITE,
    "number": _FINITE | _INFINITE,
    "notanumber": _NAN,
    "normal": _NORMAL,
    "subnormal": _SUBNORMAL,
}


def _testp(spelling: Spelling) -> Lowering:
    classes = ir.Constant(ir.IntType(32), _TESTS[spelling.need(*_TESTS)])
    spelling.type("f32", "f64")

    def emit(lanes: LaneBuilder, a: Value) -> Value:
        return lanes.intrinsic("is.fpclass", lanes.float_of(a), classes, result=lanes.mask.type)

    return giving(emit)


# --- selections -----------------------------------------------------------------------------------------------------


def _selp(spelling: Spelling) -> Lowering:
    spelling.type(*_INTEGERS, "f32", "f64")
    return giving(lambda lanes, a, b, p: lanes.build.select(p, a, b))


def _slct(spelling: Spelling) -> Lowering:
    """slct d, a, b, c: a where c >= 0, else b; -0 counts as 0 and NaN selects b."""
    ftz = spelling.flag("ftz")
    spelling.need(*_INTEGERS, "f32", "f64")
    at_least = _comparator("ge", spelling.type("s32", "f32"), ftz)

    def emit(lanes: LaneBuilder, a: Value, b: Value, c: Value) -> Value:
        return lanes.build.select(at_least(lanes, c, lanes.constant(0, 32)), a, b)

    return giving(emit)


def _mov(spelling: Spelling) -> Lowering:
    spelling.type("pred", *_INTEGERS, "f32", "f64")
    return giving(lambda lanes, a: a)


BUILDERS: Mapping[str, Callable[[Spelling], Lowering | None]] = {
    "mov": _mov,
    "selp": _selp,
    "set": _set,
    "slct": _slct,
    "testp": _testp,
}
