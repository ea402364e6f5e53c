"""Video instructions: arithmetic on bytes and halves of registers, one, two (`vadd2`) or four (`vadd4`) at once.

The functions follow the pseudo-code of the PTX ISA, chapters "Scalar Video Instructions" and "SIMD Video Instructions".
Which parts of its operands an instruction takes stands behind the operands (`r1.b0`), not in the opcode: a `Selection`.

1368 forms were held against an H200, for which ptxas spells these instructions out in others. SIMD, comparisons and
plain arithmetic agree in every bit. It departs from the manual where a scalar instruction writes a part of its
destination, has `.min` or `.max` behind it, or saturates what 32 bits do not hold, and in `vmad.u32.u32` with `.sat`
or a scale. `exact_when` leaves those lanes out.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

import numpy as np

from refmoe.ptx.isa.operation import Array, Function, Operation
from refmoe.ptx.isa.spelling import Spelling

_TYPES = ("u32", "s32")
_SECONDARY = ("add", "min", "max")
_COMPARE: Mapping[str, Callable[[Array, Array], Array]] = {
    "eq": np.equal,
    "ne": np.not_equal,
    "lt": np.less,
    "le": np.less_equal,
    "gt": np.greater,
    "ge": np.greater_equal,
}
_ARITHMETIC: Mapping[str, Callable[[Array, Array], Array]] = {
    "vadd": np.add,
    "vsub": np.subtract,
    "vabsdiff": lambda a, b: np.abs(a - b),
    "vmin": np.minimum,
    "vmax": np.maximum,
}
# SIMD alone: rounds away from zero at a positive half and up at a negative one.
_AVERAGE = {"vavrg": lambda a, b: (a + b + (a + b >= 0)) >> 1}
_SHIFTS = ("vshl", "vshr")
MNEMONICS = frozenset((
    *_ARITHMETIC, *_SHIFTS, "vmad", "vset",
    *(f"{name}{parts}" for name in (*_ARITHMETIC, *_AVERAGE, "vset") for parts in (2, 4)),
))  # fmt: skip
_WORD = 0xFFFFFFFF


@dataclass(frozen=True)
class Selection:
    """What stands behind the operands.

    Attributes:
        d, a, b: the parts that are written and read, `"b0" .. "b3"`, `"h0"`, `"h1"`, for SIMD a mask `"h10"` and digits
            `"b7654"`; `""` for what holds where none is written.
        negated: whether a, b and c have a minus: `vmad` alone.
    """

    d: str = ""
    a: str = ""
    b: str = ""
    negated: tuple[bool, bool, bool] = (False, False, False)


def resolve_video(opcode: str, selection: Selection, sources: int) -> Operation:
    """What a video instruction computes.

    Args:
        opcode: its full spelling, `"vadd.s32.u32.s32.sat.add"`.
        selection: what stands behind its operands.
        sources: how many it is written with.

    Raises:
        NoSuchInstruction: there is no such spelling.
        ValueError: its operands have parts, or a number, that it does not take.
    """
    spelling = Spelling(opcode)
    name = spelling.mnemonic
    if any(selection.negated) and name != "vmad":
        raise ValueError("only vmad takes a negated operand")
    exact: Function | None = None
    if name == "vmad":
        needed, (function, exact) = 3, _multiply_add(spelling, selection)
    elif name[-1] in "24":
        needed, function = 3, _simd(spelling, selection, int(name[-1]))
    elif name in MNEMONICS:
        function, needed, exact = _scalar(spelling, selection)
    else:
        raise spelling.unknown()
    if sources != needed:
        raise ValueError(f"{needed} sources needed")
    return Operation(opcode, function, ("b32",) * needed, ("b32",), exact_when=exact)


def _nowhere(*sources: Array) -> Array:
    return np.zeros(np.broadcast_shapes(*map(np.shape, sources)), np.bool_)


# Parts


def _part(x: Array, signed: bool, first: int, bits: int) -> Array:
    """`bits` bits from `first` on, extended by the sign or by zeros: int64."""
    value = (x.astype(np.int64) >> first) & ((1 << bits) - 1)
    return value - ((value >> (bits - 1)) << bits) if signed else value


def _place(selector: str) -> tuple[int, int]:
    """(first bit, bits) of a part of a register.

    Raises:
        ValueError: it has no such part.
    """
    if not selector:
        return 0, 32
    bits = {"b": 8, "h": 16}.get(selector[0], 0)
    if len(selector) != 2 or not bits or not selector[1].isdigit() or int(selector[1]) * bits >= 32:
        raise ValueError(f"no part .{selector} of 32 bits")
    return int(selector[1]) * bits, bits


def _clamped(x: Array, signed: bool, bits: int) -> Array:
    low, high = (-(1 << (bits - 1)), (1 << (bits - 1)) - 1) if signed else (0, (1 << bits) - 1)
    return np.clip(x, low, high)


def _bits33(x: Array) -> Array:
    """The low 33 bits as a signed number: what goes from one stage of the manual's pseudo-code to the next."""
    return ((x + (1 << 32)) & ((1 << 33) - 1)) - (1 << 32)


def _low(x: Array) -> Array:
    return (x & _WORD).astype(np.uint32)


# One operation


def _scalar(spelling: Spelling, selection: Selection) -> tuple[Function, int, Function | None]:
    """(function, number of sources, where it is exact) of everything but vmad and SIMD."""
    name = spelling.mnemonic
    signed = False if name == "vset" else spelling.need(*_TYPES) == "s32"
    a_signed = spelling.need(*_TYPES) == "s32"
    b_signed = spelling.need(*(("u32",) if name in _SHIFTS else _TYPES)) == "s32"
    operate: Callable[[Array, Array], Array]
    saturate = False
    if name == "vset":
        compare = _COMPARE[spelling.need(*_COMPARE)]

        def operate(a: Array, b: Array) -> Array:
            return compare(a, b).astype(np.int64)
    else:
        saturate = spelling.flag("sat")
        operate = _shift(name, spelling.need("clamp", "wrap") == "wrap") if name in _SHIFTS else _ARITHMETIC[name]
    secondary = spelling.take(*_SECONDARY)
    spelling.end()
    if secondary and selection.d:
        raise ValueError("a second operation and a part of the destination")
    a_place, b_place, d_place = _place(selection.a), _place(selection.b), _place(selection.d)

    def raw(a: Array, b: Array) -> Array:
        return operate(_part(a, a_signed, *a_place), _part(b, b_signed, *b_place))

    def fits(a: Array, b: Array, *c: Array) -> Array:
        result = raw(a, b)
        return (result >= -(1 << 31)) & (result <= _WORD)

    def two(a: Array, b: Array) -> Array:
        result = raw(a, b)
        return _bits33(_clamped(result, signed, d_place[1]) if saturate else result)

    def with_secondary(a: Array, b: Array, c: Array) -> Array:
        combine = {"add": np.add, "min": np.minimum, "max": np.maximum}[secondary]
        return _low(combine(two(a, b), _part(c, signed, 0, 32)))

    def merged(a: Array, b: Array, c: Array) -> Array:
        first, bits = d_place
        mask = ((1 << bits) - 1) << first
        return _low(((two(a, b) << first) & mask) | (c.astype(np.int64) & ~mask))

    exact = fits if saturate else None
    if secondary:
        return with_secondary, 3, exact if secondary == "add" else _nowhere
    if selection.d:
        return merged, 3, _nowhere
    return (lambda a, b: _low(two(a, b))), 2, exact


def _shift(name: str, wraps: bool) -> Callable[[Array, Array], Array]:
    def shifted(a: Array, b: Array) -> Array:
        amount = b & 31 if wraps else np.minimum(b, 32)
        if name == "vshr":
            return a >> amount
        # 33 bits and 32 more do not fit into 64: above 2^31 every limit is passed, and the low 33 bits still count.
        far = amount == 32
        high = np.clip(a, -(1 << 30), 1 << 30)
        return np.where(far, (high - ((high - a) & 1)) << 32, a << np.where(far, 0, amount))

    return shifted


# Multiply and add


def _exact(x: Array) -> Array:
    """Integers of Python."""
    return np.asarray(x).astype(object)[()]


def _multiply_add(spelling: Spelling, selection: Selection) -> tuple[Function, Function | None]:
    """(function, where it is exact)."""
    spelling.need(*_TYPES)
    a_signed, b_signed = spelling.need(*_TYPES) == "s32", spelling.need(*_TYPES) == "s32"
    plus_one = spelling.flag("po")
    saturate = spelling.flag("sat")
    shift = {"shr7": 7, "shr15": 15}.get(spelling.take("shr7", "shr15"), 0)
    spelling.end()
    a_negated, b_negated, c_negated = selection.negated
    negated = a_negated != b_negated
    if selection.d or (plus_one and any(selection.negated)) or (negated and c_negated):
        raise ValueError("operands that vmad does not take")
    signed = a_signed or b_signed or negated or c_negated
    a_place, b_place = _place(selection.a), _place(selection.b)

    def function(a: Array, b: Array, c: Array) -> Array:
        # Exact integers of Python: the product of two words and more does not fit into 64 bits.
        product = _exact(_part(a, a_signed, *a_place)) * _exact(_part(b, b_signed, *b_place))
        third = _exact(_part(~c if c_negated else c, signed, 0, 32))
        result = (-product - 1 if negated else product) + third + int(plus_one or negated or c_negated)
        result = (result >> shift) & ((1 << 64) - 1)
        if signed:
            result = (result ^ (1 << 63)) - (1 << 63)
        if saturate:
            low, high = (-(1 << 31), (1 << 31) - 1) if signed else (0, _WORD)
            result = np.minimum(np.maximum(result, low), high)
        return np.asarray(result & _WORD, object).astype(np.uint32)[()]

    return function, _nowhere if (saturate or shift) and not (a_signed or b_signed) else None


# Two halves or four bytes


def _simd(spelling: Spelling, selection: Selection, count: int) -> Function:
    name = spelling.mnemonic[:-1]
    bits = 32 // count
    signed = False if name == "vset" else spelling.need(*_TYPES) == "s32"
    a_signed, b_signed = spelling.need(*_TYPES) == "s32", spelling.need(*_TYPES) == "s32"
    operate: Callable[[Array, Array], Array]
    saturate = False
    if name == "vset":
        compare = _COMPARE[spelling.need(*_COMPARE)]

        def operate(a: Array, b: Array) -> Array:
            return compare(a, b).astype(np.int64)
    else:
        operate = {**_ARITHMETIC, **_AVERAGE}[name]
        saturate = spelling.flag("sat")
    adds = not saturate and spelling.flag("add")
    spelling.end()
    letter = "h" if count == 2 else "b"
    mask = _mask(selection.d, letter, count)
    a_parts = _digits(selection.a, letter, count, range(count))
    b_parts = _digits(selection.b, letter, count, range(count, 2 * count))

    def taken(number: int, a: Array, b: Array, signed: bool) -> Array:
        return _part(a if number < count else b, signed, number % count * bits, bits)

    def function(a: Array, b: Array, c: Array) -> Array:
        result = c.astype(np.int64)
        for number in range(count):
            if not mask[number]:
                continue
            one = operate(taken(a_parts[number], a, b, a_signed), taken(b_parts[number], a, b, b_signed))
            if adds:
                result = result + one
                continue
            if saturate:
                one = _clamped(one, signed, bits)
            place = ((1 << bits) - 1) << (number * bits)
            result = (result & ~place) | ((one << (number * bits)) & place)
        return _low(result)

    return function


def _mask(selector: str, letter: str, count: int) -> tuple[bool, ...]:
    """Which parts of the destination are computed: `h10`, or bytes with the highest first, `b310`."""
    digits = selector[1:] if selector else "".join(str(number) for number in reversed(range(count)))
    numbers = [int(digit) for digit in digits if digit.isdigit()]
    falling = numbers == sorted(set(numbers), reverse=True)
    if (selector and selector[0] != letter) or not digits.isdigit() or not falling or numbers[0] >= count:
        raise ValueError(f"no mask .{selector} of {count} parts")
    return tuple(number in numbers for number in range(count))


def _digits(selector: str, letter: str, count: int, default: range) -> tuple[int, ...]:
    """Which of the parts of a and, behind them, b each part of an operand is, the lowest first."""
    if not selector:
        return tuple(default)
    digits = selector[1:]
    if selector[0] != letter or len(digits) != count or not digits.isdigit() or int(max(digits)) >= 2 * count:
        raise ValueError(f"no parts .{selector} of two registers")
    return tuple(int(digit) for digit in reversed(digits))
