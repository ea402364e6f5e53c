"""Who looks at the accesses of one region once more, so that a race can name the instruction of its earlier access.

Records of accesses have a step and a thread, and no instruction. Launches are deterministic: one that ended with a race
is run again with a `RaceWitness`, which takes down every access of that region. It also goes on behind the race, and
counts the bytes and threads that the same two instructions hit.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from refmoe.ptx.engine.order.taken import Sought, TakenAccesses
from refmoe.ptx.errors import Index3, RaceError
from refmoe.ptx.state.records import ASYNCHRONOUS, BULK, STEP_SHIFT, THREAD
from refmoe.ptx.text.syntax import Instruction

Array = Any
# Accesses of a region that are kept; the oldest are forgotten.
_MOST = 1 << 22
# Races that are looked at before the launch ends.
_ENOUGH = 4096


@dataclass
class RacingPair:
    """What two instructions hit.

    Attributes:
        error: the first race of both.
        bytes: offsets.
        threads: numbers of the threads of the later accesses.
        sides: (block, thread) of the later access and of the earlier one, where both are known.
        more: whether there may be more than were counted.
    """

    error: RaceError
    bytes: set[int] = field(default_factory=set)
    threads: set[int] = field(default_factory=set)
    sides: set[tuple[tuple[Index3, Index3], tuple[Index3, Index3]]] = field(default_factory=set)
    more: bool = False


class RaceWitness:
    """What happens to some regions.

    Args:
        regions: their names.

    Attributes:
        pairs: races by (kind, line of the later access, line of the earlier one).
    """

    def __init__(self, *regions: str) -> None:
        self.regions = frozenset(regions)
        self.pairs: dict[tuple[str, int, int], RacingPair] = {}
        self._taken = {region: TakenAccesses(_MOST) for region in regions}
        self._seen = 0

    def note(
        self, region: str, instruction: Instruction, step: int, begin: Array, width: int, threads: Array,
        writes: bool, reads: bool = False,
    ) -> None:  # fmt: skip
        """Take down accesses of `width` bytes at byte `begin` [n] by `threads` [n]."""
        self._taken[region].add(instruction, step, begin, width, threads, writes, reads)

    def lines(self, region: str) -> frozenset[int]:
        """The lines of the instructions that touched a region."""
        return self._taken[region].lines()

    def earlier(self, region: str, byte: int, record: int, kind: str) -> Instruction | None:
        """The instruction of the access of a record, or None if it was not taken down."""
        # An agent stands for the thread that issued its copies.
        agent = record & int(BULK | ASYNCHRONOUS) == int(BULK)
        thread = None if agent else record & int(THREAD)
        wrote = kind not in ("read-write", "tensor map")
        return self._taken[region].find(Sought(byte, thread, record >> STEP_SHIFT, wrote))

    def met(
        self, error: RaceError, byte: int, thread: int, width: int = 1,
        ordered: Callable[[list[int]], list[bool]] | None = None,
    ) -> None:  # fmt: skip
        """A race: the launch goes on, to count what else the same two instructions hit.

        Args:
            error: of it.
            byte: the first one, among those of the whole launch.
            thread: of the later access.
            width: bytes.
            ordered: which records come before what the lane of the later access does now.

        Raises:
            RaceError: enough was seen; it is the first one.
        """
        earlier = 0 if error.earlier is None else error.earlier.line
        pair = self.pairs.setdefault((error.kind, error.line, earlier), RacingPair(error))
        pair.bytes.add(byte)
        pair.threads.add(thread)
        if error.certain and error.among is not None:
            pair.sides.add(((error.block, error.thread), (error.other_block, error.among)))
        self._seen += 1
        if self._seen >= _ENOUGH:
            for each in self.pairs.values():
                each.more = True
            raise error
