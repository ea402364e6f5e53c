"""Whether two entries load or store at one place, since that of the sound one lies within its array.

A place is a pointer among the arguments, and a distance from it. The sound entry goes beyond no array, which the
executor holds each run of it against. So the distance is at least 0, and below the array's size. This tells of a
number in the distance what no instruction says: that it is not negative, or that it fits 32 bits. It holds where the
act is, and is used for nothing but the operand of this act.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

from refmoe.mutation.proofs.bounds import bounds_of
from refmoe.mutation.proofs.flow import Act
from refmoe.mutation.proofs.nodes import Node, Nodes
from refmoe.mutation.proofs.ranges import Ranges

_ACCESS = re.compile(r"(?:ld|st)\.global(?:\.nc)?(?:\.v[24])?\.[usfb](?:8|16|32|64)$")
_WORD = 64
#: No array has so many bytes.
_MOST_BYTES = 1 << 62

_Terms = dict[Node, int]


@dataclass
class ArrayPlaces:
    """ArrayPlaces of acts.

    Attributes:
        nodes: of both entries.
        ranges: what their values may be.
    """

    nodes: Nodes
    ranges: Ranges

    def same(self, one: Act, other: Act) -> bool:
        """Whether the place of an act of the other entry is that of one of the sound entry, wherever this one is.

        Args:
            one: the act of the sound entry.
            other: that of the other one, of the same opcode, under the same guard.
        """
        if not _ACCESS.match(one.opcode) or one.opcode != other.opcode:
            return False
        (constant, terms), (offset, others) = (self._parts(each.operands[0]) for each in (one, other))
        pointers = [each for each in terms if self._pointer(each) is not None]
        if constant != offset or len(pointers) != 1 or terms[pointers[0]] != 1:
            return False
        sizes = bounds_of(self.ranges.entry).sizes
        most = next((size for place, size in sizes.items() if place == self._pointer(pointers[0])), _MOST_BYTES)
        distance = {each: factor for each, factor in terms.items() if each != pointers[0]}
        left = {each: factor for each, factor in terms.items() if others.get(each) != factor}
        right = {each: factor for each, factor in others.items() if terms.get(each) != factor}
        if len(left) != 1 or len(right) != 1 or [*left.values()] != [*right.values()]:
            return False
        (mine, its) = (*left, *right)
        if mine not in distance:
            return False  # one is behind another pointer
        found = self._within(mine, constant, distance, most)
        return found is not None and self._same_number(mine, its, *found)

    def _parts(self, address: Node) -> tuple[int, _Terms]:
        """The constant of an address, signed, and what it is the sum of, times factors."""
        shape = self.nodes.shapes[address]
        if shape[0] != "sum" or shape[1] != _WORD:
            return 0, {address: 1}
        found: _Terms = {}
        for each, factor in shape[3:]:
            number, times = self._multiple(each)
            found[number] = found.get(number, 0) + times * _signed(factor)
        return _signed(shape[2]), found

    def _multiple(self, node: Node) -> tuple[Node, int]:
        """A wide product of a word and a constant as a word that is extended, times that constant."""
        nodes, shape = self.nodes, self.nodes.shapes[node]
        match = re.fullmatch(r"mul\.wide\.([su])32", str(shape[1])) if shape[0] == "op" else None
        if match is not None and all(nodes.widths[each] == _WORD // 2 for each in shape[2:]):
            for constant, number in (shape[2:], shape[:1:-1]):
                if (word := nodes.word(constant)) is not None and word < 1 << 31:
                    return nodes.of(("op", f"cvt.u64.{match[1]}32", number), _WORD), word
        return node, 1

    def _pointer(self, node: Node) -> int | None:
        """The number of the parameter that a node is, if it is a pointer."""
        nodes = self.nodes
        shape = nodes.shapes[node]
        while shape[0] == "op" and shape[1] in ("cvta.to.global.u64", "mov.u64", "mov.b64"):
            shape = nodes.shapes[shape[2]]
        if shape[:3] != ("atom", "parameter", "u64"):
            return None
        return int(str(shape[3]).rstrip("]").rpartition("_")[2])

    def _within(self, term: Node, constant: int, terms: _Terms, most: int) -> tuple[int, int] | None:
        """The ends of what one term may be, if the whole distance is 0 to `most`; None if this may wrap around."""
        factor = terms[term]
        low = high = constant
        whole = [constant, constant]
        for each, times in terms.items():
            word = self.ranges.of(each)
            ends = sorted((word.low * times, word.high * times))
            if word.bits != _WORD:
                return None
            whole = [end + more for end, more in zip(whole, ends, strict=True)]
            if each != term:
                low, high = low + ends[0], high + ends[1]
        # The sum of all is the distance itself, not one that has left 64 bits: that would be larger than any array.
        if factor <= 0 or whole[1] >= 1 << _WORD or whole[0] + (1 << _WORD) <= most:
            return None
        word = self.ranges.of(term)
        return max(word.low, -(high // factor)), min(word.high, (most - low) // factor)

    def _same_number(self, mine: Node, its: Node, low: int, high: int) -> bool:
        """Whether two numbers of 64 bits are the same, if the first one is within bounds."""
        nodes = self.nodes
        one, other = nodes.shapes[mine], nodes.shapes[its]
        if one[0] != "op" or other[0] != "op":
            return False
        extended = re.fullmatch(r"cvt\.u64\.([su])32", str(other[1]))
        if extended is None or nodes.widths[other[2]] != _WORD // 2:
            return False
        if re.fullmatch(r"cvt\.u64\.[su]32", str(one[1])):
            # One number extended by its sign, and by zeros.
            return bool(one[2] == other[2]) and low >= 0 and high < 1 << 31
        # A product of words, and the same one cut to 32 bits and extended.
        inner = nodes.shapes[other[2]]
        if not re.fullmatch(r"mul\.wide\.[su]32", str(one[1])) or inner[:2] != ("op", "mul.lo.u32"):
            return False
        least, most = (-(1 << 31), 1 << 31) if extended[1] == "s" else (0, 1 << 32)
        return low >= least and high < most and sorted(one[2:]) == sorted(inner[2:])


def _signed(word: int) -> int:
    return word - (1 << _WORD) if word >> (_WORD - 1) else word
