"""What is known of the value of a register: a signed interval, and bits that are always 0 or always 1.

A register that holds a float is held as its bits. A predicate is a set of truths: 1 may be false, 2 may be true, 3
both.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache

FALSE, TRUE, EITHER = 1, 2, 3


@dataclass(frozen=True)
class KnownWord:
    """A set of words of `bits` bits, which holds every word that the register may have.

    Attributes:
        bits: the width.
        low, high: the least and the greatest, read as signed integers.
        zeros, ones: masks of the bits that are 0, and that are 1, in each of them.
    """

    bits: int
    low: int
    high: int
    zeros: int
    ones: int

    @property
    def mask(self) -> int:
        """All bits."""
        return (1 << self.bits) - 1

    @property
    def constant(self) -> int | None:
        """The only word, unsigned, or None if there are several."""
        return self.low & self.mask if self.low == self.high else None

    @property
    def unsigned(self) -> bool:
        """Whether signed and unsigned readings agree."""
        return self.low >= 0


def _made(bits: int, low: int, high: int, zeros: int = 0, ones: int = 0) -> KnownWord:
    """A value of which each part tells the others what it knows."""
    sign, mask = 1 << (bits - 1), (1 << bits) - 1
    if low >= 0:
        # Above the highest bit in which the ends differ, all between them have the bits that these have.
        alike = mask & ~((1 << (low ^ high).bit_length()) - 1)
        zeros, ones = zeros | alike & ~low, ones | alike & low
    if zeros & sign:
        low, high = max(low, ones), min(high, mask & ~zeros)
    if ones & sign:
        low, high = max(low, (ones | sign) - (1 << bits)), min(high, (mask & ~zeros) - (1 << bits))
    if low == high:
        zeros, ones = mask & ~low, mask & low
    return KnownWord(bits, low, high, zeros, ones)


@cache
def anything(bits: int) -> KnownWord:
    """Every word."""
    return KnownWord(bits, -(1 << (bits - 1)), (1 << (bits - 1)) - 1, 0, 0)


def constant(bits: int, word: int) -> KnownWord:
    """One word, given modulo 2^bits."""
    word &= (1 << bits) - 1
    signed = word - (1 << bits) if word >> (bits - 1) else word
    return _made(bits, signed, signed)


def between(bits: int, low: int, high: int, zeros: int = 0, ones: int = 0) -> KnownWord:
    """The integers of an interval; anything if it does not fit into the width, where a result wraps around."""
    if low < -(1 << (bits - 1)) or high >= 1 << (bits - 1):
        return _made(bits, -(1 << (bits - 1)), (1 << (bits - 1)) - 1, zeros, ones)
    return _made(bits, low, high, zeros, ones)


def known_bits(bits: int, zeros: int, ones: int) -> KnownWord:
    """Words of which some bits are known."""
    return _made(bits, -(1 << (bits - 1)), (1 << (bits - 1)) - 1, zeros, ones)


def joined(one: KnownWord, other: KnownWord) -> KnownWord:
    """What may be either."""
    if one.bits != other.bits:
        return anything(max(one.bits, other.bits))
    low, high = min(one.low, other.low), max(one.high, other.high)
    return _made(one.bits, low, high, one.zeros & other.zeros, one.ones & other.ones)


def widened(before: KnownWord, after: KnownWord) -> KnownWord:
    """`after`, whose interval goes to the end of the width on each side on which it has grown."""
    if before.bits != after.bits:
        return anything(after.bits)
    least, greatest = -(1 << (after.bits - 1)), (1 << (after.bits - 1)) - 1
    low = after.low if after.low == before.low else 0 if after.low >= 0 else least
    high = after.high if after.high == before.high else greatest
    return _made(after.bits, low, high, after.zeros, after.ones)


def resized(value: KnownWord, bits: int, *, signed: bool) -> KnownWord:
    """A value extended by its sign, or by zeros, or cut."""
    if bits <= value.bits:
        mask = (1 << bits) - 1
        return between(bits, value.low, value.high, value.zeros & mask, value.ones & mask)
    if signed or value.unsigned:
        above = ((1 << bits) - 1) & ~value.mask
        sign = 1 << (value.bits - 1)
        zeros = value.zeros | (above if value.zeros & sign else 0)
        return between(bits, value.low, value.high, zeros, value.ones | (above if value.ones & sign else 0))
    return between(bits, 0, value.mask, value.zeros, value.ones)


def added(one: KnownWord, other: KnownWord) -> KnownWord:
    """The sum modulo 2^bits."""
    return between(one.bits, one.low + other.low, one.high + other.high, *_low_bits(one, other, one.ones + other.ones))


def subtracted(one: KnownWord, other: KnownWord) -> KnownWord:
    """The difference modulo 2^bits."""
    return between(one.bits, one.low - other.high, one.high - other.low, *_low_bits(one, other, one.ones - other.ones))


def multiplied(one: KnownWord, other: KnownWord, bits: int) -> KnownWord:
    """The product of signed words, modulo 2^bits."""
    corners = [left * right for left in (one.low, one.high) for right in (other.low, other.high)]
    zeros, ones = _low_bits(one, other, one.ones * other.ones)
    trailing = min(bits, _known_below(one, one.zeros) + _known_below(other, other.zeros))
    return between(bits, min(corners), max(corners), zeros | (1 << trailing) - 1, ones & -(1 << trailing))


def bitwise(name: str, one: KnownWord, other: KnownWord) -> KnownWord:
    """`and`, `or` or `xor`."""
    if name == "and":
        made = known_bits(one.bits, one.zeros | other.zeros, one.ones & other.ones)
        highs = [each.high for each in (one, other) if each.unsigned]
        return between(one.bits, max(made.low, 0), min(made.high, *highs), made.zeros, made.ones) if highs else made
    if name == "or":
        return known_bits(one.bits, one.zeros & other.zeros, one.ones | other.ones)
    known = (one.zeros | one.ones) & (other.zeros | other.ones)
    word = one.ones ^ other.ones
    return known_bits(one.bits, known & ~word, known & word)


def shifted(name: str, value: KnownWord, amount: int, *, signed: bool) -> KnownWord:
    """`shl` or `shr` by a constant; an amount beyond the width counts as the width."""
    bits, mask = value.bits, value.mask
    amount = min(amount, bits)
    if name == "shl":
        zeros = ((value.zeros << amount) | ((1 << amount) - 1)) & mask
        return between(bits, value.low << amount, value.high << amount, zeros, (value.ones << amount) & mask)
    if signed or value.unsigned:
        return between(bits, value.low >> amount, value.high >> amount)
    if not amount:
        return value
    above = mask & ~(mask >> amount)
    return known_bits(bits, (value.zeros >> amount) | above, value.ones >> amount)


def compared(relation: str, one: KnownWord, other: KnownWord, *, signed: bool) -> int:
    """The truths that a comparison of integers may have."""
    if relation in ("eq", "ne"):
        apart = one.high < other.low or other.high < one.low or bool(one.zeros & other.ones | one.ones & other.zeros)
        same = one.constant is not None and one.constant == other.constant
        truth = FALSE if apart else TRUE if same else EITHER
        return truth if relation == "eq" else {FALSE: TRUE, TRUE: FALSE, EITHER: EITHER}[truth]
    (low, high), (least, greatest) = _bounds(one, signed), _bounds(other, signed)
    if relation in ("gt", "ge", "hi", "hs"):
        (low, high), (least, greatest) = (least, greatest), (low, high)
        relation = {"gt": "lt", "hi": "lt"}.get(relation, "le")
    relation = {"lo": "lt", "ls": "le"}.get(relation, relation)
    if relation == "lt":
        return TRUE if high < least else FALSE if low >= greatest else EITHER
    return TRUE if high <= least else FALSE if low > greatest else EITHER


def _bounds(value: KnownWord, signed: bool) -> tuple[int, int]:
    if signed or value.unsigned:
        return value.low, value.high
    if value.high < 0:
        return value.low & value.mask, value.high & value.mask
    return 0, value.mask & ~value.zeros


def _low_bits(one: KnownWord, other: KnownWord, word: int) -> tuple[int, int]:
    """Zeros and ones of a sum or a product: of the lowest bits, as far as all of them are known in both operands."""
    known = min(_known_below(one, one.zeros | one.ones), _known_below(other, other.zeros | other.ones))
    mask = (1 << known) - 1
    return mask & ~word, mask & word


def _known_below(value: KnownWord, mask: int) -> int:
    """How many of the lowest bits are in a mask."""
    unknown = value.mask & ~mask
    return (unknown & -unknown).bit_length() - 1 if unknown else value.bits
