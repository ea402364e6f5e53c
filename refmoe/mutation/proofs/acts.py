"""Acts of two entries that differ in what PTX does not use: bits of a descriptor, an order of nothing."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass

from refmoe.mutation.proofs.flow import Act, SideBySide
from refmoe.mutation.proofs.nodes import Node
from refmoe.mutation.proofs.ranges import Ranges

#: Products of bytes, whose matrices are K-major.
_OF_BYTES = re.compile(r"wgmma\.mma_async\.sync\.aligned\.m64n\d+k32\.f32\.e[45]m[23]\.e[45]m[23]$")
#: In a descriptor, how lines are swizzled, and how far columns are apart, which is not used where they are.
_SWIZZLE, _LEADING, _DESCRIPTOR = 62, 0x3FFF << 16, 64
_ARRIVES = re.compile(r"barrier\.cluster\.arrive\.release(?P<aligned>\.aligned)?$")
_INITIALISES = re.compile(r"mbarrier\.init\.shared(?:::cta)?\.b64$")
_FENCE = "fence.mbarrier_init.release.cluster"

_Equal = Callable[[Node, Node], bool]


@dataclass
class UnusedParts:
    """Whether two acts are the same but for what PTX does not use.

    Attributes:
        side: both entries.
        ranges: what their values may be.
        equal: tells whether two nodes always have one value.
    """

    side: SideBySide
    ranges: Ranges
    equal: _Equal

    def same(self, number: int, one: Act, other: Act) -> bool:
        """Whether an act of the other entry does what one of the sound entry does.

        Args:
            number: the pair of paths that they are acts of.
            one: of the sound entry.
            other: of the other one.
        """
        if not self.equal(one.guard, other.guard) or len(one.operands) != len(other.operands):
            return False
        if one.opcode != other.opcode:
            return self._same_arrival(number, one, other)
        return _OF_BYTES.match(one.opcode) is not None and self._same_descriptors(one, other)

    def _same_descriptors(self, one: Act, other: Act) -> bool:
        """Whether what differs is descriptors of swizzled matrices, in their leading distance alone."""
        nodes = self.side.nodes
        places = [place for place, each in enumerate(one.spelled) if not each.startswith("{")]
        # Behind the sums come the descriptors of both matrices.
        before = len(one.operands) - len(one.spelled)
        described = {before + place for place in places[:2]}
        for place, (mine, its) in enumerate(zip(one.operands, other.operands, strict=True)):
            if place not in described or nodes.widths[mine] != _DESCRIPTOR or nodes.widths[its] != _DESCRIPTOR:
                if not self.equal(mine, its):
                    return False
                continue
            if self.equal(mine, its):
                continue
            mask = ~_LEADING & ((1 << _DESCRIPTOR) - 1)
            used = [
                nodes.computed("and.b64", [each, nodes.integer(mask, _DESCRIPTOR)], _DESCRIPTOR) for each in (mine, its)
            ]
            words = [self.ranges.of(each) for each in (mine, its)]
            if any(not word.ones >> _SWIZZLE for word in words) or not self.equal(*used):
                return False
        return True

    def _same_arrival(self, number: int, one: Act, other: Act) -> bool:
        """Whether an arrival at a barrier of a cluster orders nothing that a fence has not ordered.

        In front of it there are initialisations of barriers alone, and behind the last of them their fence, which
        orders them before what the thread does next. What is read acquires at the wait.
        """
        match = _ARRIVES.match(one.opcode)
        if match is None or other.opcode != one.opcode.replace(".release", ".relaxed"):
            return False
        acts = self.side.acts[number][0]
        rest = acts[: next(at for at, each in enumerate(acts) if each is one)][::-1]
        seen, waiting = set[int](), list[tuple[list[Act], int]]([(rest, number)])
        while waiting:
            held, path = waiting.pop()
            fenced = False
            for each in held:
                if each.opcode == _FENCE and self.side.nodes.word(each.guard) == 1:
                    fenced = True
                elif not _INITIALISES.match(each.opcode) or not fenced:
                    return False
            if held and not fenced:
                return False
            for before in self.side.before[path]:
                if before not in seen:
                    seen.add(before)
                    waiting.append((self.side.acts[before][0][::-1], before))
        return number not in seen
