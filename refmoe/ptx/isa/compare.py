"""Comparisons and selections: setp, set, selp, slct, testp, and mov."""

from __future__ import annotations

from collections.abc import Callable, Mapping

import numpy as np

from refmoe.ptx.isa.floats import F32, FLOATS, Float, decode, flush, kind_of
from refmoe.ptx.isa.lanes import UNSIGNED, signed
from refmoe.ptx.isa.operation import Array, Function, Operation, kind
from refmoe.ptx.isa.spelling import Spelling

_ORDERED: dict[str, Function] = {
    "eq": np.equal,
    "ne": np.not_equal,
    "lt": np.less,
    "le": np.less_equal,
    "gt": np.greater,
    "ge": np.greater_equal,
}
# Unsigned comparisons have names of their own, for bit-size types too.
_UNSIGNED: dict[str, Function] = {
    "lo": np.less,
    "ls": np.less_equal,
    "hi": np.greater,
    "hs": np.greater_equal,
}
# True on NaN: the complement of the opposite ordered comparison, which is false on NaN.
_UNORDERED: dict[str, Function] = {
    "equ": lambda a, b: ~((a < b) | (a > b)),
    "neu": np.not_equal,
    "ltu": lambda a, b: ~np.greater_equal(a, b),
    "leu": lambda a, b: ~np.greater(a, b),
    "gtu": lambda a, b: ~np.less_equal(a, b),
    "geu": lambda a, b: ~np.less(a, b),
    "num": lambda a, b: (a == a) & (b == b),
    "nan": lambda a, b: (a != a) | (b != b),
}
_BOOLEAN: dict[str, Function] = {"and": np.logical_and, "or": np.logical_or, "xor": np.logical_xor}

_INTEGER_TYPES = ("b16", "b32", "b64", "u16", "u32", "u64", "s16", "s32", "s64")
_FLOAT_TYPES = ("f32", "f64", "f16", "bf16")
_PACKED_TYPES = ("f16x2", "bf16x2")


def _not_equal(a: Array, b: Array) -> Array:
    """The ordered `ne`: false if either is NaN, unlike IEEE's."""
    return (a < b) | (a > b)


def _value(x: Array, format: Float, ftz: bool) -> Array:
    """Bit patterns as numbers that NumPy compares."""
    if ftz:
        x = flush(x, format)
    return decode(x, format) if format.real is None else x.view(format.real)


def _comparison(spelling: Spelling) -> tuple[str, str, bool]:
    """Take CmpOp, BoolOp and .ftz, and leave the types: (CmpOp, BoolOp or "", ftz)."""
    name = spelling.need(*_ORDERED, *_UNSIGNED, *_UNORDERED)
    boolean = spelling.take(*_BOOLEAN)
    return name, boolean, spelling.flag("ftz")


def _comparator(spelling: Spelling, name: str, ftz: bool, type_name: str) -> Function:
    """The comparison `name` on registers of a type."""
    if type_name in FLOATS:
        if name in _UNSIGNED or (ftz and type_name in ("f64", "bf16")):
            raise spelling.unknown()
        format = FLOATS[type_name]
        compare = _not_equal if name == "ne" else _ORDERED.get(name) or _UNORDERED[name]
        return lambda a, b: compare(_value(a, format, ftz), _value(b, format, ftz))
    if ftz or name in _UNORDERED:
        raise spelling.unknown()
    if type_name[0] == "b" and name not in ("eq", "ne"):
        raise spelling.unknown()
    if type_name[0] == "s":
        if name in _UNSIGNED:
            raise spelling.unknown()
        compare = _ORDERED[name]
        return compare if name in ("eq", "ne") else lambda a, b: compare(signed(a), signed(b))
    return _ORDERED.get(name) or _UNSIGNED[name]


def setp(spelling: Spelling, destinations: int) -> Operation:
    """setp p[|q], a, b[, c]: p = BoolOp(t, c), q = BoolOp(not t, c) for t = a CmpOp b.

    setp.f16x2 and .bf16x2 compare the low halves into p and the high halves into q.
    """
    name, boolean, ftz = _comparison(spelling)
    type_name = spelling.type(*_INTEGER_TYPES, *_FLOAT_TYPES, *_PACKED_TYPES)
    compare = _comparator(spelling, name, ftz, type_name.removesuffix("x2"))
    sources = (kind_of(type_name), kind_of(type_name), *(("pred",) if boolean else ()))
    combine = _BOOLEAN[boolean] if boolean else None

    def both(first: Array, second: Array, c: tuple[Array, ...]) -> tuple[Array, Array]:
        return (combine(first, *c), combine(second, *c)) if combine else (first, second)

    if type_name.endswith("x2"):

        def halves(a: Array, b: Array, *c: Array) -> tuple[Array, Array]:
            low, high = (compare((a >> s).astype(np.uint16), (b >> s).astype(np.uint16)) for s in (0, 16))
            return both(low, high, c)

        return Operation(spelling.opcode, halves, sources, ("pred", "pred"))
    if destinations == 2:

        def pair(a: Array, b: Array, *c: Array) -> tuple[Array, Array]:
            t = compare(a, b)
            return both(t, ~t, c)

        return Operation(spelling.opcode, pair, sources, ("pred", "pred"))
    if combine is None:
        # The hottest predicate instruction: no wrapper around it.
        return Operation(spelling.opcode, compare, sources, ("pred",))
    return Operation(spelling.opcode, lambda a, b, c: combine(compare(a, b), c), sources, ("pred",))


def _set(spelling: Spelling) -> Operation:
    """set d, a, b[, c]: all ones (1.0 for a float destination) where setp would be true, else 0.

    Packed sources give packed results; an integer destination then holds two 16-bit masks.
    """
    name, boolean, ftz = _comparison(spelling)
    to = spelling.need("u16", "s16", "u32", "s32", "f16", "bf16", "f32", *_PACKED_TYPES)
    of = spelling.type(*_INTEGER_TYPES, *_FLOAT_TYPES, *_PACKED_TYPES)
    is_packed = of.endswith("x2")
    # 16-bit integer destinations are for the half-precision types only.
    if (to.endswith("x2") and to != of) or (to[1:] == "16" and to[0] in "us" and of not in ("f16", "bf16")):
        raise spelling.unknown()
    if is_packed and to not in (of, "u32", "s32"):
        raise spelling.unknown()
    if (of in ("f16", "bf16") and to == "f32") or (to, of) == ("f16", "bf16") or (ftz and to == "bf16"):
        raise spelling.unknown()
    compare = _comparator(spelling, name, ftz, of.removesuffix("x2"))
    format = FLOATS.get(to.removesuffix("x2"))
    bits = 16 if is_packed else format.bits if format else int(to[1:])
    true = UNSIGNED[bits](format.one if format else (1 << bits) - 1)

    def function(a: Array, b: Array, *c: Array) -> Array:
        t = compare(a, b)
        return (_BOOLEAN[boolean](t, *c) if boolean else t) * true

    def halves(a: Array, b: Array, *c: Array) -> Array:
        low, high = (function((a >> s).astype(np.uint16), (b >> s).astype(np.uint16), *c) for s in (0, 16))
        return low | (high.astype(np.uint32) << 16)

    sources = (kind_of(of), kind_of(of), *(("pred",) if boolean else ()))
    return Operation(spelling.opcode, halves if is_packed else function, sources, (kind_of(to),))


def _selp(spelling: Spelling) -> Operation:
    """selp d, a, b, p: a where p."""
    type_name = spelling.type(*_INTEGER_TYPES, "f32", "f64")
    width = kind_of(type_name)
    return Operation(spelling.opcode, lambda a, b, p: np.where(p, a, b), (width, width, "pred"), (width,))


def _slct(spelling: Spelling) -> Operation:
    """slct d, a, b, c: a where c >= 0, else b; -0 counts as 0 and NaN selects b."""
    ftz = spelling.flag("ftz")
    type_name = spelling.need(*_INTEGER_TYPES, "f32", "f64")
    by = spelling.type(*(("f32",) if ftz else ("s32", "f32")))
    width = kind_of(type_name)

    def function(a: Array, b: Array, c: Array) -> Array:
        chosen = signed(c) >= 0 if by == "s32" else _value(c, F32, ftz) >= 0
        return np.where(chosen, a, b)

    return Operation(spelling.opcode, function, (width, width, "b32"), (width,))


def _testp(spelling: Spelling) -> Operation:
    """testp p, a: a property of the bit pattern. Infinities and NaN are not normal."""
    test = spelling.need("finite", "infinite", "number", "notanumber", "normal", "subnormal")
    format = FLOATS[spelling.type("f32", "f64")]
    infinity, smallest_normal = format.word(format.infinity), format.word(1 << format.mantissa)
    magnitude_mask = format.word(format.sign - 1)
    tests: dict[str, Function] = {
        "finite": lambda m: m < infinity,
        "infinite": lambda m: m == infinity,
        "number": lambda m: m <= infinity,
        "notanumber": lambda m: m > infinity,
        "normal": lambda m: (m >= smallest_normal) & (m < infinity),
        "subnormal": lambda m: (m != 0) & (m < smallest_normal),
    }
    check = tests[test]
    return Operation(spelling.opcode, lambda a: check(a & magnitude_mask), (kind(format.bits),), ("pred",))


def _mov(spelling: Spelling) -> Operation:
    """mov d, a between registers of one width; the result may alias the source."""
    name = spelling.type("pred", *_INTEGER_TYPES, "f32", "f64")
    register = "pred" if name == "pred" else kind_of(name)
    return Operation(spelling.opcode, lambda a: a, (register,), (register,))


BUILDERS: Mapping[str, Callable[[Spelling], Operation]] = {
    "mov": _mov,
    "selp": _selp,
    "set": _set,
    "slct": _slct,
    "testp": _testp,
}
