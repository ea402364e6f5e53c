"""Bit fields, counts and searches in a warp's lanes. The specification is `refmoe.ptx.isa.fields`."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from llvmlite import ir

from refmoe.ptx.isa.spelling import Spelling
from refmoe.ptx.ops import shifts
from refmoe.ptx.ops.lanes import LaneBuilder, Lowering, Value, giving

_FALSE = ir.Constant(ir.IntType(1), False)
_NOTHING = 0xFFFFFFFF


# --- fields ---------------------------------------------------------------------------------------------------------


def _low_byte(lanes: LaneBuilder, x: Value) -> Value:
    """A position or a length, of which eight bits count."""
    return lanes.build.and_(x, lanes.constant(0xFF, 32))


def _extended(lanes: LaneBuilder, x: Value, count: Value, is_signed: bool) -> Value:
    """The low `count` bits, extended to the register: none of them is 0, and the width or more of them is all of x."""
    bits = x.type.element.width
    if not is_signed:
        return lanes.build.and_(x, shifts.ones(lanes, count, bits))
    width = lanes.constant(bits, 32)
    rest = lanes.build.sub(width, lanes.intrinsic("umin", count, width))
    return shifts.right(lanes, shifts.left(lanes, x, rest), rest, signed=True)


def _bfe(spelling: Spelling) -> Lowering:
    is_signed, _ = spelling.integer("u32", "u64", "s32", "s64")

    def emit(lanes: LaneBuilder, a: Value, position: Value, length: Value) -> Value:
        # Beyond the register's end a signed field goes on with the register's sign, as the shift fills it.
        moved = shifts.right(lanes, a, _low_byte(lanes, position), is_signed)
        return _extended(lanes, moved, _low_byte(lanes, length), is_signed)

    return giving(emit)


def _bfi(spelling: Spelling) -> Lowering:
    _, bits = spelling.integer("b32", "b64")

    def emit(lanes: LaneBuilder, a: Value, b: Value, position: Value, length: Value) -> Value:
        build = lanes.build
        position = _low_byte(lanes, position)
        field = shifts.left(lanes, shifts.ones(lanes, _low_byte(lanes, length), bits), position)
        inside = build.and_(shifts.left(lanes, a, position), field)
        return build.or_(build.and_(b, lanes.inverted(field)), inside)

    return giving(emit)


def _modulo_32(lanes: LaneBuilder, x: Value) -> Value:
    return lanes.build.and_(x, lanes.constant(31, 32))


def _szext(spelling: Spelling) -> Lowering:
    clamp = spelling.need("clamp", "wrap") == "clamp"
    is_signed, _ = spelling.integer("u32", "s32")

    def emit(lanes: LaneBuilder, a: Value, count: Value) -> Value:
        return _extended(lanes, a, count if clamp else _modulo_32(lanes, count), is_signed)

    return giving(emit)


def _bmsk(spelling: Spelling) -> Lowering:
    clamp = spelling.need("clamp", "wrap") == "clamp"
    spelling.type("b32")

    def emit(lanes: LaneBuilder, position: Value, count: Value) -> Value:
        if not clamp:
            position, count = _modulo_32(lanes, position), _modulo_32(lanes, count)
        return shifts.left(lanes, shifts.ones(lanes, count, 32), position)

    return giving(emit)


# --- counts and searches --------------------------------------------------------------------------------------------


def _popc(spelling: Spelling) -> Lowering:
    spelling.type("b32", "b64")
    return giving(lambda lanes, a: lanes.resize(lanes.intrinsic("ctpop", a), 32))


def _leading_zeros(lanes: LaneBuilder, a: Value) -> Value:
    """As many as the register has bits if it is zero."""
    return lanes.resize(lanes.intrinsic("ctlz", a, _FALSE), 32)


def _clz(spelling: Spelling) -> Lowering:
    spelling.type("b32", "b64")
    return giving(_leading_zeros)


def _bfind(spelling: Spelling) -> Lowering:
    """Place of the highest bit that is no sign, or (shiftamt) the left shift that brings it up; all ones if none."""
    shift_amount = spelling.flag("shiftamt")
    is_signed, bits = spelling.integer("u32", "u64", "s32", "s64")

    def emit(lanes: LaneBuilder, a: Value) -> Value:
        if is_signed:
            a = lanes.build.xor(a, lanes.build.ashr(a, lanes.constant(bits - 1, bits)))
        up = _leading_zeros(lanes, a)
        if not shift_amount:
            return lanes.build.sub(lanes.constant(bits - 1, 32), up)
        none = lanes.build.icmp_unsigned("==", a, lanes.constant(0, bits))
        return lanes.build.select(none, lanes.constant(_NOTHING, 32), up)

    return giving(emit)


def _brev(spelling: Spelling) -> Lowering:
    spelling.type("b32", "b64")
    return giving(lambda lanes, a: lanes.intrinsic("bitreverse", a))


def _fns(spelling: Spelling) -> Lowering:
    """Place of the n-th set bit of the mask from `base` on, downward if n < 0; n = 0 asks for `base` itself."""
    spelling.type("b32")
    return giving(_find_nth_set)


def _find_nth_set(lanes: LaneBuilder, mask: Value, base: Value, n: Value) -> Value:
    build = lanes.build
    zero, one, top = lanes.constant(0, 32), lanes.constant(1, 32), lanes.constant(31, 32)
    # Downward is upward in the mirror.
    down = build.icmp_signed("<", n, zero)
    mask = build.select(down, lanes.intrinsic("bitreverse", mask), mask)
    start = build.select(down, build.sub(top, base), base)
    itself = build.icmp_unsigned("==", n, zero)
    # A base above 31 leaves no bit: its mirror is above 31 as well.
    reach = build.select(itself, one, lanes.constant(-1, 32))
    rest = build.and_(mask, shifts.left(lanes, reach, start))
    left = build.select(itself, one, lanes.intrinsic("abs", n, _FALSE))
    found = build.icmp_unsigned("<=", left, lanes.intrinsic("ctpop", rest))
    # The bit is in the lower half of what is left, or that half's bits are counted off.
    place = zero
    for half in (16, 8, 4, 2, 1):
        below = lanes.intrinsic("ctpop", build.and_(rest, lanes.constant((1 << half) - 1, 32)))
        above = build.icmp_unsigned(">", left, below)
        left = build.select(above, build.sub(left, below), left)
        rest = build.select(above, build.lshr(rest, lanes.constant(half, 32)), rest)
        place = build.select(above, build.add(place, lanes.constant(half, 32)), place)
    place = build.select(down, build.sub(top, place), place)
    return build.select(found, place, lanes.constant(_NOTHING, 32))


BUILDERS: Mapping[str, Callable[[Spelling], Lowering | None]] = {
    "bfe": _bfe,
    "bfi": _bfi,
    "bfind": _bfind,
    "bmsk": _bmsk,
    "brev": _brev,
    "clz": _clz,
    "fns": _fns,
    "popc": _popc,
    "szext": _szext,
}
