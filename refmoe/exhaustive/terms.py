"""Values that a kernel computes from its input, as terms: what was computed of which input word, each term once.

A term is a number. Two values with the same number are the same function of the input, whatever the input holds. Input
words are named relative to a block: (0, 3) is word 3 of it, (1, 3) word 3 of its right neighbour. So the lanes of a
launch, each in its own block, have the same terms.

    (0, 3)                              two elements of BF16
    and.b32 (0, 3) 0xffff0000           the second one as FP32
    mul.rn.f32 of that and the factor   scaled

What bits of a term depend on is asked by a mask. `needs` follows the mask through shifts, masks and packing, and finds
an amax where the maximum of all 32 magnitudes of a block was taken. `shape` is the term of one output byte without its
place: the same for two bytes if they are the same function of (amax, element).
"""

from __future__ import annotations

from collections.abc import Hashable
from functools import cached_property
from typing import Any

from refmoe.formats import MX_BLOCK

#: Elements of an input word, and words of a block.
WORD_ELEMENTS = 2
BLOCK_WORDS = MX_BLOCK // WORD_ELEMENTS

_FULL = 0xFFFFFFFF
_MOST = 0x7FFFFFFF  # of a signed number of 32 bits
_MAGNITUDES = 0x7FFF7FFF
#: Maxima of two halves. Each is associative and commutative on magnitudes: as integers, or of floats where a NaN gives
#: way to a number. So the order in which a block's elements meet does not matter.
_MAXIMA = ("max.u16x2", "max.bf16x2", "max.f16x2")

#: What a term needs: (block, word, half), or ("amax", the opcode of its maximum).
Need = tuple[Any, ...]
AMAX = "amax"


class Terms:
    """All terms of a proof. Term 0 stands for no term, a value that does not depend on the input."""

    def __init__(self) -> None:
        self._nodes: list[tuple[Any, ...]] = [("none",)]
        self._number: dict[tuple[Any, ...], int] = {}
        self._moved: dict[tuple[int, int], int] = {}
        self._highest: dict[int, int] = {}
        self._needs: dict[tuple[int, int], frozenset[Need]] = {}
        self._shapes: dict[Hashable, Hashable] = {}
        self._amax: dict[int, str | None] = {}

    def __len__(self) -> int:
        return len(self._nodes)

    def node(self, term: int) -> tuple[Any, ...]:
        """What a term is: ("word", block, word), ("value", bits), or an opcode and its operands."""
        return self._nodes[term]

    def make(self, *node: Any) -> int:
        """The term of a node."""
        number = self._number.get(node)
        if number is None:
            number = self._number[node] = len(self._nodes)
            self._nodes.append(node)
        return number

    def word(self, block: int, word: int) -> int:
        """An input word."""
        return self.make("word", block, word)

    def value(self, bits: int) -> int:
        """A value that is known."""
        return self.make("value", bits)

    @cached_property
    def undefined(self) -> int:
        """What a register holds that nothing wrote."""
        return self.make("undefined")

    def either(self, condition: int, yes: int, no: int) -> int:
        """`yes` where the predicate is true."""
        return yes if yes == no else self.make("either", yes, no, condition)

    def unless(self, condition: int, term: int) -> int:
        """The term where the predicate is false."""
        kind, *operands = self._nodes[term]
        return self.unless(condition, operands[1]) if kind == "either" and operands[2] == condition else term

    def moved(self, term: int, blocks: int) -> int:
        """The same function of the blocks `blocks` further to the right."""
        if not blocks:
            return term
        found = self._moved.get((term, blocks))
        if found is None:
            # The terms of a proof are moved millions of times.
            node = self._nodes[term]
            kind = node[0]
            if kind == "word":
                found = self.word(node[1] + blocks, node[2])
            elif kind in ("value", "undefined", "none"):
                found = term
            else:
                known, moved = self._moved, [kind]
                for each in node[1:]:
                    if isinstance(each, int):
                        there = known.get((each, blocks))
                        each = self.moved(each, blocks) if there is None else there
                    moved.append(each)
                found = self.make(*moved)
            self._moved[term, blocks] = found
        return found

    # What is known of a value

    def highest(self, term: int) -> int:
        """A bound on the value as an unsigned number of 32 bits; of 64 bits nothing is known."""
        found = self._highest.get(term)
        if found is None:
            found = self._highest[term] = min(self._bound(*self._nodes[term]), _FULL)
        return found

    def _bound(self, kind: str, *operands: Any) -> int:
        stem = kind.split(".")[0]
        if kind == "value":
            return int(operands[0])
        if kind.endswith("64"):
            return _FULL
        if stem == "and":
            return min(self._bits(operands[0]) & self._bits(operands[1]), *map(self.highest, operands))
        if stem in ("or", "xor"):
            return (1 << max(self.highest(each).bit_length() for each in operands)) - 1
        if stem in ("either", "selp"):
            return max(map(self.highest, operands[:2]))
        if kind in ("shr.u32", "shl.b32", "shr.b32"):
            return self._shifted_bound(kind, *operands)
        if kind == "max.u32":
            return max(map(self.highest, operands))
        if kind == "min.u32":
            return min(map(self.highest, operands))
        if kind in ("add.s32", "add.u32"):
            return self._sum_bound(*operands)
        if kind in ("max.s32", "min.s32"):
            least, most = self._between(kind, *operands)
            return most if least >= 0 else _FULL
        if kind in _MAXIMA:
            high = max(self.highest(each) >> 16 for each in operands)
            # Of two NaNs the maximum is 0x7FFF.
            high = high if kind == "max.u16x2" else max(high, 0x7FFF)
            return high << 16 | 0xFFFF
        if kind in ("cvt.u32.u16", "cvt.u16.u32", "cvt.rn.satfinite.e4m3x2.f32"):
            return min(self._low_half(operands[0]) if kind != "cvt.rn.satfinite.e4m3x2.f32" else 0xFFFF, 0xFFFF)
        if kind == "pack.b32":
            return self._low_half(operands[1]) << 16 | self._low_half(operands[0])
        if kind == "cvt.f32.f16":
            return 0x7FFFFFFF if self._low_half(operands[0]) <= 0x7FFF else _FULL
        return _FULL

    def _bits(self, term: int) -> int:
        """The bits that a term may have, of 32."""
        kind, *operands = self._nodes[term]
        if kind == "value":
            return int(operands[0]) & _FULL
        if kind == "and.b32":
            return self._bits(operands[0]) & self._bits(operands[1])
        if kind in ("shr.u32", "shr.b32") and self._nodes[operands[1]][0] == "value":
            return self._bits(operands[0]) >> int(self._nodes[operands[1]][1])
        highest = (1 << self.highest(term).bit_length()) - 1
        if kind in _MAXIMA:
            return highest & 0xFFFF0000 | (1 << self._low_half(term).bit_length()) - 1
        return highest

    def _shifted_bound(self, kind: str, operand: int, amount: int) -> int:
        by, *bits = self._nodes[amount]
        if by != "value":
            return _FULL
        highest = self.highest(operand)
        if kind != "shl.b32":
            return highest >> int(bits[0])
        # The upper half leaves a register that is shifted by 16.
        return self._low_half(operand) << 16 if bits[0] == 16 else highest << bits[0]

    def _sum_bound(self, left: int, right: int) -> int:
        kind, *bits = self._nodes[right]
        if kind == "value" and bits[0] >> 31:
            # Something is taken away: no less is there where a maximum says so.
            less = (1 << 32) - bits[0]
            return self.highest(left) - less if self._lowest(left) >= less else _FULL
        total = self.highest(left) + self.highest(right)
        return total if total <= _FULL else _FULL

    def _signed(self, term: int) -> tuple[int, int]:
        """The least and the largest value as a signed number of 32 bits."""
        kind, *operands = self._nodes[term]
        if kind == "value":
            bits = int(operands[0])
            number = bits - (bits >> 31 << 32)
            return number, number
        if kind in ("add.s32", "max.s32", "min.s32"):
            return self._between(kind, *operands)
        highest = self.highest(term)
        return (0, highest) if highest <= _MOST else (-_MOST - 1, _MOST)

    def _between(self, kind: str, left: int, right: int) -> tuple[int, int]:
        """The same of a sum, a maximum or a minimum."""
        pairs = list(zip(self._signed(left), self._signed(right), strict=True))
        if kind != "add.s32":
            least, most = map(max if kind == "max.s32" else min, pairs)
            return least, most
        least, most = map(sum, pairs)
        return (least, most) if least >= -_MOST - 1 and most <= _MOST else (-_MOST - 1, _MOST)

    def _lowest(self, term: int) -> int:
        kind, *operands = self._nodes[term]
        if kind == "value":
            return int(operands[0])
        return max(map(self._lowest, operands)) if kind == "max.u32" else 0

    def _low_half(self, term: int) -> int:
        """A bound on the lower 16 bits."""
        kind, *operands = self._nodes[term]
        if kind in _MAXIMA:
            low = max(map(self._low_half, operands))
            return low if kind == "max.u16x2" else max(low, 0x7FFF)
        if kind == "and.b32" and any(self._nodes[each][0] == "value" for each in operands):
            return min(int(self._nodes[each][1]) & 0xFFFF for each in operands if self._nodes[each][0] == "value")
        if kind in ("cvt.u16.u32", "cvt.u32.u16", "pack.b32"):
            return self._low_half(operands[0])
        if kind == "shr.u32" and self._nodes[operands[1]] == ("value", 16):
            return self.highest(operands[0]) >> 16
        return min(self.highest(term), 0xFFFF)

    # What bits of a value depend on

    def needs(self, term: int, mask: int = _FULL) -> frozenset[Need]:
        """The input that the bits `mask` of a term may depend on; of 64 bits the full mask stands for all."""
        mask &= (1 << self.highest(term).bit_length()) - 1
        if not mask or not term:
            return frozenset()
        found = self._needs.get((term, mask))
        if found is None:
            found = self._needs[term, mask] = self._find_needs(term, mask)
        return found

    def _find_needs(self, term: int, mask: int) -> frozenset[Need]:
        kind, *operands = self._nodes[term]
        if kind == "word":
            block, word = operands
            return frozenset((block, word, half) for half in range(WORD_ELEMENTS) if mask >> 16 * half & 0xFFFF)
        if kind in ("value", "undefined"):
            return frozenset()
        if mask <= 0xFFFF and (maximum := self._amax_of(term)) is not None:
            return frozenset({(0, AMAX, maximum)})
        asked = self.asked(kind, operands, mask)
        return frozenset().union(*(self.needs(each, part) for each, part in asked))

    def asked(self, kind: str, operands: list[Any], mask: int) -> list[tuple[int, int]]:
        """Which bits of its operands, (term, mask) each, decide the bits `mask` of a term."""
        stem = kind.split(".")[0]
        first = operands[0]
        if kind.endswith("64"):
            # No mask is followed through 64 bits.
            return [(each, _FULL) for each in operands if isinstance(each, int)]
        if stem in ("or", "xor", "mov"):
            return [(each, mask) for each in operands]
        if stem == "and":
            known = [self._nodes[each][1] for each in operands if self._nodes[each][0] == "value"]
            for bits in known:
                mask &= bits
            return [(each, mask) for each in operands]
        if stem in ("either", "selp"):
            return [(first, mask), (operands[1], mask), (operands[2], _FULL)]
        if kind in ("shl.b32", "shr.u32", "shr.b32") and self._nodes[operands[1]][0] == "value":
            by = self._nodes[operands[1]][1]
            return [(first, mask >> by if kind == "shl.b32" else mask << by & _FULL)]
        if kind in ("cvt.u32.u16", "cvt.u16.u32"):
            return [(first, mask & 0xFFFF)]
        if kind == "pack.b32":
            return [(first, mask & 0xFFFF), (operands[1], mask >> 16)]
        if kind == "part":
            return [(first, mask << 16 * int(operands[1][1:]) & _FULL)]
        if kind == "cvt.rn.satfinite.e4m3x2.f32":
            return [(operands[0], _FULL if mask & 0xFF00 else 0), (operands[1], _FULL if mask & 0xFF else 0)]
        if kind in _MAXIMA:
            halves = (0xFFFF0000 if mask >> 16 else 0) | (0xFFFF if mask & 0xFFFF else 0)
            return [(each, halves) for each in operands]
        return [(each, _FULL) for each in operands if isinstance(each, int)]

    def _amax_of(self, term: int) -> str | None:
        """The opcode of the maximum, if the lower half of a term is the largest of all 32 magnitudes of block 0."""
        if term not in self._amax:
            self._amax[term] = self._find_amax(term)
        return self._amax[term]

    def _find_amax(self, term: int) -> str | None:
        kind, *operands = self._nodes[term]
        if kind not in _MAXIMA:
            return None
        both, upper = operands
        if self._nodes[upper] != ("shr.u32", both, self.value(16)):
            return None
        words = self._maximum_of(kind, both)
        every = {self.make("and.b32", self.word(0, word), self.value(_MAGNITUDES)) for word in range(BLOCK_WORDS)}
        return kind if words == every else None

    def _maximum_of(self, kind: str, term: int) -> set[int]:
        node, *operands = self._nodes[term]
        if node != kind:
            return {term}
        return set().union(*(self._maximum_of(kind, each) for each in operands))

    # Functions without their places

    def shape(self, term: int, byte: int, element: Need) -> Hashable:
        """Byte `byte` of a term as a function of amax and of the element at (block, word, half), without its place."""
        zero = ("value", 0)
        if self.highest(term) >> 8 * byte == 0:
            return zero
        kind, *operands = self._nodes[term]
        if kind == "value":
            return ("value", operands[0] >> 8 * byte & 0xFF)
        if kind == "or.b32":
            parts = [each for each in (self.shape(one, byte, element) for one in operands) if each != zero]
            return parts[0] if len(parts) == 1 else ("or", *parts) if parts else zero
        if kind == "shl.b32" and self._nodes[operands[1]][0] == "value" and self._nodes[operands[1]][1] % 8 == 0:
            lower = byte - self._nodes[operands[1]][1] // 8
            return self.shape(operands[0], lower, element) if lower >= 0 else zero
        if kind == "either":
            yes, no = (self.shape(each, byte, element) for each in operands[:2])
            return yes if yes == no else ("either", yes, no, self._whole(operands[2], element))
        if kind == "cvt.u32.u16":
            return self.shape(operands[0], byte, element) if byte < 2 else zero
        if kind == "pack.b32":
            return self.shape(operands[byte // 2], byte % 2, element)
        if kind == "cvt.rn.satfinite.e4m3x2.f32":
            return ("e4m3", self._whole(operands[1 - byte], element))
        return (f"byte {byte}", self._whole(term, element))

    def _whole(self, term: int, element: Need) -> Hashable:
        """A term as a function of amax and of one element."""
        key = (term, element)
        if key not in self._shapes:
            self._shapes[key] = self._find_whole(term, element)
        return self._shapes[key]

    def _find_whole(self, term: int, element: Need) -> Hashable:
        kind, *operands = self._nodes[term]
        if kind in ("value", "undefined"):
            return self._nodes[term]
        if (kind == "shl.b32" and self._nodes[operands[1]] == ("value", 16)) or kind == "cvt.u16.u32":
            maximum = self._amax_of(operands[0])
            if maximum is not None:
                return (kind, AMAX, maximum)
        # Some bits of amax, taken out of the register in which another maximum stands above it.
        if kind == "and.b32" and self._nodes[operands[1]][0] == "value":
            bits = self._nodes[operands[1]][1]
            node, *inner = self._nodes[operands[0]]
            if node == "shr.u32" and self._nodes[inner[1]][0] == "value":
                by = self._nodes[inner[1]][1]
                maximum = self._amax_of(inner[0]) if bits << by <= 0xFFFF else None
                if maximum is not None:
                    return ("bits", AMAX, maximum, by, bits)
        found = self._element(kind, operands)
        if found is not None:
            what, *where = found
            return (what, "element" if tuple(where) == element else tuple(where))
        return (kind, *(self._whole(each, element) if isinstance(each, int) else each for each in operands))

    def _element(self, kind: str, operands: list[Any]) -> tuple[Any, ...] | None:
        """("fp32" or "u16", block, word, half) if a term is one element of an input word."""
        # Compilers take an element out of its word in several ways.
        fp32 = {"shl.b32": (0, ("value", 16)), "and.b32": (1, ("value", 0xFFFF0000))}
        if kind not in (*fp32, "cvt.u16.u32", "part"):
            return None
        first, half = operands[0], 0
        if kind == "cvt.u16.u32" and self._nodes[first][0] == "shr.u32" and self._nodes[first][2] == self.value(16):
            first, half = self._nodes[first][1], 1
        if self._nodes[first][0] != "word":
            return None
        place = self._nodes[first][1:]
        if kind in fp32:
            half, by = fp32[kind]
            return ("fp32", *place, half) if self._nodes[operands[1]] == by else None
        return ("u16", *place, int(operands[1][1:]) if kind == "part" else half)
