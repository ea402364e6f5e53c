"""Values that were read in a race, and that a CAS of the very same bytes compares with what is there.

    old = *place;
    do { assumed = old; old = atomicCAS(place, assumed, changed(assumed)); } while (assumed != old);

The CUDA C++ Programming Guide builds its atomics so. The plain read races with the atomics of others, and gives any
value. But nothing is stored unless the value is the one that is there: then it was right. Else the loop takes what the
CAS found. So a CAS is no use of such a value, nor of what was computed of it and would take its place. Behind one that
has stored, the value and all that was computed of it are right. Behind one that has not, neither is. But that the value
differs from what the CAS found is certain, so that the comparison of the two, which ends the loop, is no use either.

That holds for a thread's own read of the bytes that it compares. If other values that nobody knows may be in what it
compares or stores, the comparison stays a use: of several that meet in one register only one is told.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from refmoe.ptx.engine.order.racing_reads import Read
from refmoe.ptx.engine.undefined.origins import Origin, Origins, Raced
from refmoe.ptx.program.blocks import Block, Program
from refmoe.ptx.program.registers import results_and_uses
from refmoe.ptx.text.memory_ops import memory_opcode
from refmoe.ptx.text.syntax import Instruction, Register

Array = Any
#: Which operand of a CAS is compared.
COMPARED = 2
_EQUALITY = re.compile(r"setp\.(?:eq|ne)\.[bus](\d+)")


@dataclass(frozen=True)
class Swap:
    """A CAS: the names of the registers with what it found and with what it compared, and the bits of both."""

    found: str
    own: str
    bits: int


def decided_by_swaps(program: Program) -> frozenset[Instruction]:
    """The instructions that compare what a CAS before them has compared with what it found.

    The CAS has told the result: whether the two are equal. Every way to them comes from the CAS, and copies of what it
    compared count as that does.
    """
    ways = Counter(target for block in program.blocks for target in block.terminator.targets)
    decided = set[Instruction]()
    for block in program.blocks:
        for number, each in enumerate(block.instructions):
            parts = memory_opcode(each.opcode)
            if parts is None or parts.operation != "cas" or parts.count > 1 or each.guard is not None:
                continue
            found, own = each.operands[0], each.operands[COMPARED]
            if isinstance(found, Register) and isinstance(own, Register) and found.name != own.name:
                decided |= _decided_behind(program, ways, block, number + 1, Swap(found.name, own.name, 8 * parts.size))
    return frozenset(decided)


def _decided_behind(
    program: Program, ways: Mapping[int, int], block: Block, begin: int, swap: Swap
) -> set[Instruction]:
    """The comparisons behind a CAS, up to where lanes may come from elsewhere. `ways`: how many lead to each block."""
    decided = set[Instruction]()
    left = [(block, begin, frozenset((swap.own,)), True)]
    while left:
        block, begin, own, kept = left.pop()
        for each in block.instructions[begin:]:
            names = [operand.name if isinstance(operand, Register) else "" for operand in each.operands]
            equality = _EQUALITY.fullmatch(each.opcode)
            if kept and equality is not None and each.guard is None and len(names) == 3:
                first, second = names[1:]
                both = (first == swap.found and second in own) or (first in own and second == swap.found)
                if both and int(equality[1]) == swap.bits:
                    decided.add(each)
            written = frozenset(register.name for register in results_and_uses(each)[0])
            copied = each.opcode.startswith("mov.") and each.guard is None and names[1:] and names[1] in own
            kept = kept and swap.found not in written
            own = own - written | (written if copied else frozenset())
        if kept and own:
            # Block 0 is where lanes start, besides. A block with one way into it is met once on each way.
            behind = (target for target in block.terminator.targets if ways[target] == 1 and target != 0)
            left += [(program.blocks[target], 0, own, True) for target in behind]
    return decided


class Compared:
    """What a CAS compares in some lanes.

    Args:
        origins: of the launch.
        region: name of the memory.
        begin: int64 [n], the first byte that each lane compares, among those of the whole launch.
        width: bytes.
        threads: int64 [n], whose.
        held: int64 [n], where the value to compare with came from; 0 for one that is known.

    Attributes:
        reads: the read of each lane whose value the CAS checks, or None.
    """

    def __init__(self, origins: Origins, region: str, begin: Array, width: int, threads: Array, held: Array) -> None:
        self._origins = origins
        self.reads: list[Origin | None] = []
        for first, thread, number in zip(begin.tolist(), threads.tolist(), held.tolist(), strict=True):
            root = origins.root(number) if number else None
            same = root is not None and root.thread == thread and _bytes_of(root) == (region, first, width)
            self.reads.append(root if same else None)

    @property
    def racing(self) -> list[Read]:
        """What the CAS checks."""
        return [each.event.reads[each.place] for each in self.reads if each and isinstance(each.event, Raced)]

    @property
    def checked(self) -> Array:
        """bool [n], the lanes whose value the CAS checks."""
        return np.array([each is not None for each in self.reads], np.bool_)

    def differ(self, numbers: Array) -> Array:
        """bool [n], the lanes in which a value came from elsewhere; `numbers` is int64 [n], 0 where it is known."""
        return np.array(
            [bool(number) and not self._is_of(number, read) for number, read in self._pairs(numbers)], np.bool_
        )

    def of_reads(self, numbers: Array) -> Array:
        """bool [n], the lanes in which a value came from their read; `numbers` as for `differ`."""
        return np.array([bool(number) and self._is_of(number, read) for number, read in self._pairs(numbers)], np.bool_)

    def _pairs(self, numbers: Array) -> list[tuple[int, Origin | None]]:
        return list(zip(numbers.tolist(), self.reads, strict=True))

    def _is_of(self, number: int, read: Origin | None) -> bool:
        if read is None:
            return False
        root = self._origins.root(number)
        return root.event is read.event and root.place == read.place


def _bytes_of(read: Origin) -> tuple[str, int, int] | None:
    """(memory, first byte, width) of a read that races; None for another origin."""
    event = read.event
    return (event.region, int(event.begin[read.place]), event.width) if isinstance(event, Raced) else None
