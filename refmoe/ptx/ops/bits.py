"""Logic, lop3, shifts and byte permutes of a warp's lanes. The specification is `refmoe.ptx.isa.bits`."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

from llvmlite import ir

from refmoe.ptx.isa.spelling import Spelling
from refmoe.ptx.ops import shifts
from refmoe.ptx.ops.lanes import LANES, LaneBuilder, Lowering, Value, giving

_WORDS = ("b16", "b32", "b64")


# --- logic ----------------------------------------------------------------------------------------------------------


def _logic(name: str) -> Callable[[Spelling], Lowering]:
    def build(spelling: Spelling) -> Lowering:
        spelling.type("pred", *_WORDS)
        return giving(lambda lanes, a, b: getattr(lanes.build, name)(a, b))

    return build


def _not(spelling: Spelling) -> Lowering:
    spelling.type("pred", *_WORDS)
    return giving(lambda lanes, a: lanes.inverted(a))


def _cnot(spelling: Spelling) -> Lowering:
    _, bits = spelling.integer(*_WORDS)
    return giving(lambda lanes, a: lanes.resize(lanes.build.icmp_unsigned("==", a, lanes.constant(0, bits)), bits))


def _by_table(lanes: LaneBuilder, table: int, variables: Sequence[Value]) -> Value:
    """Each bit of the result is the bit of `table` whose number the variables' bits spell, the first the highest.

    f(a, rest) = f(0, rest) ^ a & (f(0, rest) ^ f(1, rest)), down to functions of nothing. LLVM makes and, or and not of
    it where these are fewer.
    """
    if not variables:
        return lanes.constant(-table, 32)
    first, *rest = variables
    size = 1 << len(rest)
    low, change = table & (1 << size) - 1, (table ^ table >> size) & (1 << size) - 1
    without = _by_table(lanes, low, rest)
    if not change:
        return without
    return lanes.build.xor(without, lanes.build.and_(first, _by_table(lanes, change, rest)))


def _lop3(spelling: Spelling) -> Lowering:
    """lop3.b32 d, a, b, c, table; with .or or .and also a predicate, (d != 0) BoolOp q."""
    combine = spelling.take("or", "and")
    spelling.type("b32")

    def lower(lanes: LaneBuilder, sources: Sequence[Value]) -> Sequence[Value]:
        table = lanes.known(sources[3])
        if table is None:
            raise ValueError("the table of lop3 must be a constant")
        d = _by_table(lanes, table & 0xFF, sources[:3])
        if not combine:
            return [d]
        some = lanes.build.icmp_unsigned("!=", d, lanes.constant(0, 32))
        return [d, (lanes.build.or_ if combine == "or" else lanes.build.and_)(some, sources[4])]

    return lower


# --- shifts ---------------------------------------------------------------------------------------------------------


def _shl(spelling: Spelling) -> Lowering:
    spelling.type(*_WORDS)
    return giving(shifts.left)


def _shr(spelling: Spelling) -> Lowering:
    is_signed, _ = spelling.integer(*_WORDS, "u16", "u32", "u64", "s16", "s32", "s64")
    return giving(lambda lanes, a, amount: shifts.right(lanes, a, amount, is_signed))


def _shf(spelling: Spelling) -> Lowering:
    """Funnel shift of [b:a]: left gives the upper word, right the lower one."""
    left = spelling.need("l", "r") == "l"
    clamp = spelling.need("clamp", "wrap") == "clamp"
    spelling.type("b32")

    def emit(lanes: LaneBuilder, a: Value, b: Value, amount: Value) -> Value:
        # LLVM's funnel shift takes the amount modulo 32. By 32 and more the other word is what arrives.
        moved = lanes.intrinsic("fshl" if left else "fshr", b, a, amount)
        if not clamp:
            return moved
        inside = lanes.build.icmp_unsigned("<", amount, lanes.constant(32, 32))
        return lanes.build.select(inside, moved, a if left else b)

    return giving(emit)


# --- byte permute ---------------------------------------------------------------------------------------------------

# The selectors of the general form that the modes stand for, by the two low bits of theirs (PTX ISA, prmt): forward and
# backward extracts move through the eight bytes, the others replicate a byte, clamp at one, or replicate a half.
_MODES: Mapping[str, tuple[int, int, int, int]] = {
    "f4e": (0x3210, 0x4321, 0x5432, 0x6543),
    "b4e": (0x5670, 0x6701, 0x7012, 0x0123),
    "rc8": (0x0000, 0x1111, 0x2222, 0x3333),
    "ecl": (0x3210, 0x3211, 0x3222, 0x3333),
    "ecr": (0x0000, 0x1110, 0x2210, 0x3210),
    "rc16": (0x1010, 0x3232, 0x1010, 0x3232),
}
_BYTES = ir.VectorType(ir.IntType(8), 4 * LANES)


def _shuffled(lanes: LaneBuilder, a: Value, b: Value, selector: int) -> Value:
    """With one selector, known beforehand: a shuffle of all bytes of a and b, the least byte of a register first."""
    build = lanes.build
    nibbles = [selector >> 4 * i & 0xF for i in range(4)]
    # Bytes are counted through a, 4 * LANES of them, and on through b.
    places = [4 * lane + (n & 3) + (n >> 2 & 1) * 4 * LANES for lane in range(LANES) for n in nibbles]
    indices = ir.Constant(ir.VectorType(ir.IntType(32), 4 * LANES), places)
    moved = build.bitcast(build.shuffle_vector(build.bitcast(a, _BYTES), build.bitcast(b, _BYTES), indices), a.type)
    ones = sum(1 << 8 * i for i, n in enumerate(nibbles) if n & 8)
    if not ones:
        return moved
    signs = build.and_(build.lshr(moved, lanes.constant(7, 32)), lanes.constant(ones, 32))
    # 255 times the sign bit of each of those bytes.
    filled = build.sub(build.shl(signs, lanes.constant(8, 32)), signs)
    return build.or_(build.and_(moved, lanes.constant(~(255 * ones), 32)), filled)


def _selected(lanes: LaneBuilder, a: Value, b: Value, selector: Value) -> Value:
    """With selectors of the lanes' own."""
    build = lanes.build
    zero = lanes.constant(0, 32)

    def bit(number: int) -> Value:
        return build.icmp_unsigned("!=", build.and_(selector, lanes.constant(1 << number, 32)), zero)

    result = zero
    for i in range(4):
        word = build.select(bit(4 * i + 2), b, a)
        place = build.and_(build.lshr(selector, lanes.constant(4 * i, 32)), lanes.constant(3, 32))
        byte = lanes.resize(build.lshr(word, build.shl(place, lanes.constant(3, 32))), 8)
        byte = build.select(bit(4 * i + 3), build.ashr(byte, lanes.constant(7, 8)), byte)
        result = build.or_(result, build.shl(lanes.resize(byte, 32), lanes.constant(8 * i, 32)))
    return result


def _prmt(spelling: Spelling) -> Lowering:
    spelling.need("b32")
    mode = spelling.take(*_MODES)
    spelling.end()

    def emit(lanes: LaneBuilder, a: Value, b: Value, selector: Value) -> Value:
        known = lanes.known(selector)
        if known is not None:
            return _shuffled(lanes, a, b, _MODES[mode][known & 3] if mode else known)
        if mode:
            selector = _of_mode(lanes, _MODES[mode], selector)
        return _selected(lanes, a, b, selector)

    return giving(emit)


def _of_mode(lanes: LaneBuilder, choices: Sequence[int], number: Value) -> Value:
    """One of four selectors, by the two low bits of a register."""
    build = lanes.build
    zero, one, two = (lanes.constant(i, 32) for i in range(3))
    odd, upper = (build.icmp_unsigned("!=", build.and_(number, mask), zero) for mask in (one, two))
    pairs = [build.select(odd, lanes.constant(choices[i + 1], 32), lanes.constant(choices[i], 32)) for i in (0, 2)]
    return build.select(upper, pairs[1], pairs[0])


BUILDERS: Mapping[str, Callable[[Spelling], Lowering | None]] = {
    "and": _logic("and_"),
    "cnot": _cnot,
    "lop3": _lop3,
    "not": _not,
    "or": _logic("or_"),
    "prmt": _prmt,
    "shf": _shf,
    "shl": _shl,
    "shr": _shr,
    "xor": _logic("xor"),
}
