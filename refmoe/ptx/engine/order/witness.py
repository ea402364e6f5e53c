"""Who looks at the accesses of one region once more, so that a race can name the instruction of its earlier access.

Records of accesses have a step and a thread, and no instruction. Launches are deterministic: one that ended with a race
is run again with a `Witness`, which takes down every access of that region. It also goes on behind the race, and counts
the bytes and threads that the same two instructions hit.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from refmoe.ptx.errors import RaceError
from refmoe.ptx.state.records import ASYNCHRONOUS, BULK, PENDING, STEP_SHIFT, THREAD
from refmoe.ptx.text.syntax import Instruction

Array = Any
# Instructions whose accesses an agent makes, see `refmoe.ptx.engine.order.clocks`.
_COPIES = ("cp.async.bulk", "cp.reduce.async.bulk", "st.async", "red.async", "wgmma.mma_async")
# Accesses that are kept; the oldest are forgotten.
_MOST = 1 << 22
# Races that are looked at before the launch ends.
_ENOUGH = 4096


@dataclass(frozen=True)
class Taken:
    """Accesses of one instruction in one step.

    Attributes:
        instruction: it.
        writes, reads: what it does to the bytes.
        step: see `refmoe.ptx.state.records`.
        begin: int64 [n], first bytes, among those of the whole launch.
        width: bytes of each.
        threads: int64 [n], of the launch.
    """

    instruction: Instruction
    writes: bool
    reads: bool
    step: int
    begin: Array
    width: int
    threads: Array


@dataclass
class RacingPair:
    """What two instructions hit.

    Attributes:
        error: the first race of both.
        bytes: offsets.
        threads: numbers of the threads of the later accesses.
        more: whether there may be more than were counted.
    """

    error: RaceError
    bytes: set[int] = field(default_factory=set)
    threads: set[int] = field(default_factory=set)
    more: bool = False


class Witness:
    """What happens to some regions.

    Args:
        regions: their names.

    Attributes:
        pairs: races by (kind, line of the later access, line of the earlier one).
    """

    def __init__(self, *regions: str) -> None:
        self.regions = frozenset(regions)
        self.pairs: dict[tuple[str, int, int], RacingPair] = {}
        self._taken: dict[str, list[Taken]] = {}
        self._kept = 0
        self._seen = 0

    def note(
        self, region: str, instruction: Instruction, step: int, begin: Array, width: int, threads: Array,
        writes: bool, reads: bool = False,
    ) -> None:  # fmt: skip
        """Take down accesses of `width` bytes at byte `begin` [n] by `threads` [n]."""
        held = self._taken.setdefault(region, [])
        held.append(Taken(instruction, writes, reads, step, begin.copy(), width, threads.copy()))
        self._kept += len(begin)
        while self._kept > _MOST and len(held) > 1:
            self._kept -= len(held.pop(0).begin)

    def earlier(self, region: str, byte: int, record: int, kind: str) -> Instruction | None:
        """The instruction of the access of a record, or None if it was not taken down."""
        step, thread = record >> STEP_SHIFT, record & int(THREAD)
        # An agent stands for the thread that issued its copies.
        agent = record & int(BULK | ASYNCHRONOUS) == int(BULK)
        wrote = kind not in ("read-write", "tensor map")
        best = (False, False, -1)
        found: Instruction | None = None
        for each in reversed(self._taken.get(region, [])):
            if (each.step > step and step != PENDING) or (agent and not each.instruction.opcode.startswith(_COPIES)):
                continue
            rank = (each.step == step, each.writes if wrote else each.reads, each.step)
            if rank <= best:
                continue
            here = (each.begin <= byte) & (byte < each.begin + each.width)
            if bool((here & (agent | (each.threads == thread))).any()):
                best, found = rank, each.instruction
                if rank[0] and rank[1]:
                    break
        return found

    def met(self, error: RaceError, byte: int, thread: int) -> None:
        """A race: the launch goes on, to count what else the same two instructions hit.

        Raises:
            RaceError: enough was seen; it is the first one.
        """
        earlier = 0 if error.earlier is None else error.earlier.line
        pair = self.pairs.setdefault((error.kind, error.line, earlier), RacingPair(error))
        pair.bytes.add(byte)
        pair.threads.add(thread)
        self._seen += 1
        if self._seen >= _ENOUGH:
            for each in self.pairs.values():
                each.more = True
            raise error
