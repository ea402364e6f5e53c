"""Which bits of a result are undefined, given those of the operands: for instructions of the instruction table.

A bit of a result is undefined if it depends on the undefined bits of the operands. A rule may call a bit undefined that
does not vary, but never the other way round. Exact, where the undefined bits of operands are independent, are those of
logic, `lop3`, shifts and fields with known amounts, `prmt`, `selp`, conversions between integers, integer addition and
subtraction with their carries, and integer comparisons. For packed formats each element counts by itself. Of all other
instructions every bit of the result is undefined if any bit of an operand is.

A *mask* is an array of the operand's kind with a 1 for each undefined bit: bool for a predicate.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from refmoe.ptx.isa import DTYPES, Operation

Array = Any
# (operation, values of the operands, their masks) -> masks of the results.
Rule = Callable[[Operation, Sequence[Array], Sequence[Array]], tuple[Array, ...]]

_PACKED = {"f16x2": 16, "bf16x2": 16, "f32x2": 32}
_INTEGER_TYPES = frozenset(f"{sign}{bits}" for sign in "usb" for bits in (8, 16, 32, 64))
# Bits of the elements that a packed format has in a register.
_ELEMENTS = {
    **_PACKED, "e4m3x2": 8, "e5m2x2": 8, "e2m3x2": 8, "e3m2x2": 8, "ue8m0x2": 8, "e2m1x2": 4,
}  # fmt: skip


def undefined_results(operation: Operation, values: Sequence[Array], masks: Sequence[Array]) -> tuple[Array, ...]:
    """The masks of an instruction's results.

    Args:
        operation: what it computes.
        values: of its operands [lanes], of the kinds that the operation names, the carry last if it takes one. What
            undefined bits hold does not matter.
        masks: of each operand, likewise.

    Returns:
        For each destination its mask [lanes], the carry's last if there is one.
    """
    rule = _rule(operation)
    return rule(operation, values, masks)


def everything(kind: str, where: Array) -> Array:
    """The mask of a register of some kind that is undefined in the lanes `where`, bool [lanes]."""
    dtype = np.dtype(DTYPES[kind])
    if kind == "pred":
        return where.copy()
    return np.where(where, dtype.type(np.iinfo(dtype).max), dtype.type(0))


def kinds_of(operation: Operation) -> tuple[str, ...]:
    """The kinds of an operation's results, the carry included."""
    return (*operation.destinations, *(("pred",) if operation.carry_out else ()))


def anywhere(masks: Sequence[Array]) -> Array:
    """bool [lanes]: some bit of some operand is undefined."""
    found: Array = masks[0] != 0
    for mask in masks[1:]:
        found = found | (mask != 0)
    return found


def upward(mask: Array) -> Array:
    """All bits from the lowest one of a mask on."""
    # -m has the lowest 1 of m and, above it, the complement.
    return mask | (np.zeros_like(mask) - mask)


def _downward(mask: Array) -> Array:
    """All bits up to the highest one of a mask."""
    step = 1
    while step < mask.dtype.itemsize * 8:
        mask = mask | (mask >> mask.dtype.type(step))
        step *= 2
    return mask


def _all(operation: Operation, values: Sequence[Array], masks: Sequence[Array]) -> tuple[Array, ...]:
    """Any undefined bit makes all undefined."""
    where = anywhere(masks)
    return tuple(everything(kind, where) for kind in kinds_of(operation))


# Logic


def conjunction(a: Array, b: Array, ma: Array, mb: Array) -> Array:
    """The mask of `a & b`: a known 0 defines the bit."""
    return (ma | mb) & (a | ma) & (b | mb)


def disjunction(a: Array, b: Array, ma: Array, mb: Array) -> Array:
    """The mask of `a | b`: a known 1 defines the bit."""
    return (ma | mb) & (~a | ma) & (~b | mb)


def _and(operation: Operation, values: Sequence[Array], masks: Sequence[Array]) -> tuple[Array, ...]:
    return (conjunction(*values, *masks),)


def _or(operation: Operation, values: Sequence[Array], masks: Sequence[Array]) -> tuple[Array, ...]:
    return (disjunction(*values, *masks),)


def _xor(operation: Operation, values: Sequence[Array], masks: Sequence[Array]) -> tuple[Array, ...]:
    return (masks[0] | masks[1],)


def _same(operation: Operation, values: Sequence[Array], masks: Sequence[Array]) -> tuple[Array, ...]:
    return (masks[0],)


def _cnot(operation: Operation, values: Sequence[Array], masks: Sequence[Array]) -> tuple[Array, ...]:
    """1 or 0: known where a bit is known to be 1."""
    (a,), (mask,) = values, masks
    open_ = (mask != 0) & (a & ~mask == 0)
    return (open_.astype(mask.dtype),)


def _lop3(operation: Operation, values: Sequence[Array], masks: Sequence[Array]) -> tuple[Array, ...]:
    """A bit is undefined if the operands' bits that are possible there give both results."""
    table = int(np.ravel(values[3])[0])
    ones, zeros = np.zeros_like(masks[0]), np.zeros_like(masks[0])
    for number in range(8):
        possible = ~np.zeros_like(masks[0])
        for value, mask, place in zip(values[:3], masks[:3], (4, 2, 1), strict=True):
            possible &= (value if number & place else ~value) | mask
        if table >> number & 1:
            ones |= possible
        else:
            zeros |= possible
    mask = ones & zeros
    if len(operation.destinations) == 1:
        return (mask,)
    known, open_ = ones & ~zeros != 0, mask != 0
    combine = conjunction if ".and." in operation.opcode else disjunction
    return mask, combine(known, values[4], open_ & ~known, masks[4])


# Shifts, fields, bytes: a result's bit is an operand's bit, or a constant


def _moved(amounts: Sequence[int]) -> Rule:
    """The function of the instruction moves masks as it moves bits, if the operands `amounts` are known."""

    def rule(operation: Operation, values: Sequence[Array], masks: Sequence[Array]) -> tuple[Array, ...]:
        pairs = enumerate(zip(values, masks, strict=True))
        chosen = [value if number in amounts else mask for number, (value, mask) in pairs]
        moved = operation.function(*chosen)
        if not amounts:
            return (moved,)
        unknown = anywhere([masks[number] for number in amounts])
        return (moved | everything(operation.destinations[0], unknown),)

    return rule


def _prmt(operation: Operation, values: Sequence[Array], masks: Sequence[Array]) -> tuple[Array, ...]:
    """A byte whose selector is undefined is undefined; the mode chooses by the two lowest bits for all bytes."""
    moved = operation.function(masks[0], masks[1], values[2])
    selector = masks[2]
    if operation.opcode != "prmt.b32":
        return (moved | everything("b32", selector & np.uint32(3) != 0),)
    for byte in range(4):
        unknown = selector >> np.uint32(4 * byte) & np.uint32(15) != 0
        moved = moved | np.where(unknown, np.uint32(0xFF << 8 * byte), np.uint32(0))
    return (moved,)


def _count(operation: Operation, values: Sequence[Array], masks: Sequence[Array]) -> tuple[Array, ...]:
    """`popc` and `clz` give at most the width: the bits above are 0."""
    most = 2 * values[0].dtype.itemsize * 8 - 1
    return (everything("b32", anywhere(masks)) & np.uint32(most),)


# Integer arithmetic


def sum_mask(a: Array, b: Array, ma: Array, mb: Array, carry: Array, mc: Array) -> tuple[Array, Array]:
    """(mask of `a + b + carry`, mask of the carry out, bool).

    Carries only grow with the operands: one that is the same for the least and for the greatest operands is known.
    """
    dtype = ma.dtype
    low = carry & ~mc
    high = carry | mc
    least, low_out = _added(a & ~ma, b & ~mb, low.astype(dtype))
    most, high_out = _added(a | ma, b | mb, high.astype(dtype))
    # A sum's bit is a's, b's and the carry into it: the carries differ where the rest does not explain the sums.
    carries = (least ^ (a & ~ma) ^ (b & ~mb)) ^ (most ^ (a | ma) ^ (b | mb))
    return ma | mb | carries, low_out != high_out


def _added(a: Array, b: Array, carry: Array) -> tuple[Array, Array]:
    total = a + b
    result = total + carry
    return result, (total < a) | (result < total)


def _add(operation: Operation, values: Sequence[Array], masks: Sequence[Array]) -> tuple[Array, ...]:
    """`add`, `addc` and their `.cc`."""
    nothing = np.zeros(masks[0].shape, bool)
    carry, mc = (values[2], masks[2]) if operation.carry_in else (nothing, nothing)
    result, out = sum_mask(values[0], values[1], masks[0], masks[1], carry, mc)
    return (result, out) if operation.carry_out else (result,)


def _sub(operation: Operation, values: Sequence[Array], masks: Sequence[Array]) -> tuple[Array, ...]:
    """a - b is a + ~b + 1, and with `subc` the carry takes the place of the 1."""
    shape = masks[0].shape
    carry, mc = (values[2], masks[2]) if operation.carry_in else (np.ones(shape, bool), np.zeros(shape, bool))
    result, out = sum_mask(values[0], ~values[1], masks[0], masks[1], carry, mc)
    return (result, out) if operation.carry_out else (result,)


def _neg(operation: Operation, values: Sequence[Array], masks: Sequence[Array]) -> tuple[Array, ...]:
    return (_negated(values[0], masks[0]),)


def _negated(a: Array, mask: Array) -> Array:
    zero, one = np.zeros_like(mask), np.ones(mask.shape, bool)
    return sum_mask(zero, ~a, zero, mask, one, ~one)[0]


def _abs(operation: Operation, values: Sequence[Array], masks: Sequence[Array]) -> tuple[Array, ...]:
    """The number or its negative; both where the sign is undefined."""
    (a,), (mask,) = values, masks
    sign = mask.dtype.type(1 << (mask.dtype.itemsize * 8 - 1))
    known = np.where(a & sign != 0, _negated(a, mask), mask)
    return (known | everything(operation.destinations[0], mask & sign != 0),)


def _product(values: Sequence[Array], masks: Sequence[Array], wide: bool, signed: bool) -> Array:
    """From the lowest bit on that can vary: an undefined bit of one operand times the lowest 1 of the other."""
    dtype = np.dtype(f"u{masks[0].dtype.itemsize * (2 if wide else 1)}")

    def extended(value: Array) -> Array:
        if not wide:
            return value
        if not signed:
            return value.astype(dtype)
        return value.view(value.dtype.str.replace("u", "i")).astype(dtype.str.replace("u", "i")).view(dtype)

    a, b = (extended(value | mask) for value, mask in zip(values[:2], masks[:2], strict=True))
    ma, mb = (extended(mask) for mask in masks[:2])
    # The lowest 1 of each: a power of two, or 0.
    low = [each & (np.zeros_like(each) - each) for each in (a, b, ma, mb)]
    return upward(low[2] * low[1] | low[3] * low[0])


def _mul(operation: Operation, values: Sequence[Array], masks: Sequence[Array]) -> tuple[Array, ...]:
    parts = operation.opcode.split(".")
    return (_product(values, masks, parts[1] == "wide", parts[-1].startswith("s")),)


def _mad(operation: Operation, values: Sequence[Array], masks: Sequence[Array]) -> tuple[Array, ...]:
    parts = operation.opcode.split(".")
    product = _product(values, masks, parts[1] == "wide", parts[-1].startswith("s"))
    return (upward(product | masks[2]),)


def _ordered(value: Array, kind: str) -> Array:
    """A map of a register of an integer type that keeps its order, to unsigned integers."""
    if not kind.startswith("s"):
        return value
    return value ^ value.dtype.type(1 << (value.dtype.itemsize * 8 - 1))


def _range(value: Array, mask: Array, kind: str) -> tuple[Array, Array]:
    """The least and the greatest that a value can be, in the order of `_ordered`."""
    # The sign bit is turned round, whatever it is; its mask stays.
    turned = _ordered(value, kind)
    return turned & ~mask, turned | mask


def _extremum(operation: Operation, values: Sequence[Array], masks: Sequence[Array]) -> tuple[Array, ...]:
    """One of both operands: known which, or not."""
    kind = operation.opcode.split(".")[-1]
    (a, b), (ma, mb) = values, masks
    a_low, a_high = _range(a, ma, kind)
    b_low, b_high = _range(b, mb, kind)
    first = (a_high <= b_low) if operation.opcode.startswith("min") else (a_low >= b_high)
    second = (b_high <= a_low) if operation.opcode.startswith("min") else (b_low >= a_high)
    either = ma | mb | (a ^ b)
    return (np.where(first, ma, np.where(second, mb, either)),)


# Choices and comparisons


def chosen(p: Array, mp: Array, a: Array, b: Array, ma: Array, mb: Array) -> Array:
    """The mask of `p ? a : b`."""
    return np.where(mp, ma | mb | (a ^ b), np.where(p, ma, mb))


def _selp(operation: Operation, values: Sequence[Array], masks: Sequence[Array]) -> tuple[Array, ...]:
    return (chosen(values[2], masks[2], values[0], values[1], masks[0], masks[1]),)


def _slct(operation: Operation, values: Sequence[Array], masks: Sequence[Array]) -> tuple[Array, ...]:
    """By the sign of an integer, which may be all that is known of it; by an FP32 number as a whole."""
    a, b, c = values
    integer = operation.opcode.endswith(".s32")
    open_ = masks[2] & np.uint32(1 << 31 if integer else 0xFFFFFFFF) != 0
    nothing = np.zeros_like(masks[0])
    takes_a = operation.function(~nothing, nothing, c) != 0
    return (chosen(takes_a, open_, a, b, masks[0], masks[1]),)


def compared(name: str, kind: str, a: Array, b: Array, ma: Array, mb: Array) -> Array:
    """The mask, bool, of a comparison of integers: `"eq"`, `"lt"`, `"lo"` and so on."""
    if name in ("eq", "ne"):
        # Known where a bit is known to differ.
        differs = (a ^ b) & ~(ma | mb) != 0
        return ((ma | mb) != 0) & ~differs
    a_low, a_high = _range(a, ma, kind)
    b_low, b_high = _range(b, mb, kind)
    if name in ("lt", "lo", "ge", "hs"):
        return (a_high >= b_low) & (a_low < b_high)
    return (b_high >= a_low) & (b_low < a_high)


def _setp(operation: Operation, values: Sequence[Array], masks: Sequence[Array]) -> tuple[Array, ...]:
    """p = BoolOp(a CmpOp b, c), q = BoolOp(not (a CmpOp b), c)."""
    parts = operation.opcode.split(".")
    if parts[-1] not in _INTEGER_TYPES:
        return _all(operation, values, masks)
    (a, b), (ma, mb) = values[:2], masks[:2]
    open_ = compared(parts[1], parts[-1], a, b, ma, mb)
    if len(values) == 2:
        return (open_,) * len(operation.destinations)
    boolean, c, mc = parts[2], values[2], masks[2]
    if boolean == "xor":
        return (open_ | mc,) * len(operation.destinations)
    # What the comparison is, with c such that it alone decides.
    neutral = np.full(c.shape, boolean == "and")
    results = operation.function(a, b, neutral)
    combine = conjunction if boolean == "and" else disjunction
    held = results if isinstance(results, tuple) else (results,)
    return tuple(combine(result, c, open_, mc) for result in held)


# Conversions and packed formats


def _elementwise(bits: int, sources: Sequence[int]) -> Rule:
    """The result has elements of `bits`; element i depends on those of the operands, of as many bits as `sources` says.

    An operand of 0 bits is a single number: the first of two gives the upper element, the second the lower one.
    """

    def rule(operation: Operation, values: Sequence[Array], masks: Sequence[Array]) -> tuple[Array, ...]:
        (kind,) = operation.destinations
        dtype = np.dtype(DTYPES[kind])
        result: Array = np.zeros(masks[0].shape, dtype)
        for element in range(2):
            open_ = np.zeros(masks[0].shape, bool)
            for number, (mask, size) in enumerate(zip(masks, sources, strict=True)):
                if not size:
                    open_ |= (mask != 0) & (number != element)
                else:
                    part = mask >> mask.dtype.type(size * element) & mask.dtype.type((1 << size) - 1)
                    open_ |= part != 0
            whole = dtype.type(((1 << bits) - 1) << bits * element)
            result = result | np.where(open_, whole, dtype.type(0))
        return (result,)

    return rule


def _cvt(operation: Operation, parts: list[str]) -> Rule:
    to, of = parts[-2], parts[-1]
    if to in _INTEGER_TYPES and of in _INTEGER_TYPES and "sat" not in parts:
        return _moved(())
    if to not in _ELEMENTS or "pack" in parts or (of != "f32" and of not in _ELEMENTS):
        return _all
    if of == "f32" and len(operation.sources) != 2:
        return _all
    return _elementwise(_ELEMENTS[to], [_ELEMENTS.get(of, 0)] * len(operation.sources))


_BY_STEM: dict[str, Rule] = {
    "and": _and, "or": _or, "xor": _xor, "not": _same, "mov": _same, "cnot": _cnot, "lop3": _lop3,
    "shl": _moved((1,)), "shr": _moved((1,)), "shf": _moved((2,)), "bfe": _moved((1, 2)), "bfi": _moved((2, 3)),
    "szext": _moved((1,)), "brev": _moved(()), "prmt": _prmt, "popc": _count, "clz": _count,
    "selp": _selp, "slct": _slct, "setp": _setp, "copysign": _moved(()),
}  # fmt: skip
_ARITHMETIC: dict[str, Rule] = {
    "add": _add, "addc": _add, "sub": _sub, "subc": _sub, "neg": _neg, "abs": _abs, "min": _extremum, "max": _extremum,
    "mul": _mul, "mad": _mad,
}  # fmt: skip


def _rule(operation: Operation) -> Rule:
    stem, *parts = operation.opcode.split(".")
    if stem == "cvt":
        return _cvt(operation, parts)
    if stem in _BY_STEM:
        return _BY_STEM[stem]
    if stem in _ARITHMETIC and parts[-1] in _INTEGER_TYPES:
        if "sat" in parts or "relu" in parts:
            return _all
        if stem in ("mul", "mad") and ("hi" in parts or "cc" in parts):
            return _all
        return _ARITHMETIC[stem]
    # A comparison has a result of another shape.
    if parts[-1] in _PACKED and stem != "set" and len(operation.destinations) == 1 and not operation.carry_in:
        bits = _PACKED[parts[-1]]
        wide = [DTYPES[kind]().itemsize * 8 == 2 * bits for kind in operation.sources]
        if all(wide) and DTYPES[operation.destinations[0]]().itemsize * 8 == 2 * bits:
            return _elementwise(bits, [bits] * len(operation.sources))
    return _all
