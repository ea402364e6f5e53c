"""Where undefined values came from: numbers that travel with them, and what each stands for.

A register that nothing wrote, bytes that nobody wrote, and a shuffle that read a lane which does not take part make
undefined values. Reads that race give values that are followed likewise. Each makes them for many threads at once, so
a number stands for a thread as well.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from refmoe.ptx.engine.lanes import Lanes
from refmoe.ptx.engine.loads_and_stores import Access
from refmoe.ptx.engine.order.racing_reads import Read
from refmoe.ptx.errors import RaceError
from refmoe.ptx.state.memory import Region
from refmoe.ptx.text.syntax import Instruction

Array = Any
# What is defined has no origin.
NOWHERE = 0


@dataclass(frozen=True)
class Unwritten:
    """A register that nothing wrote. `register`: its name in the PTX text."""

    register: str


@dataclass(frozen=True)
class Uninitialised:
    """Bytes that nobody wrote.

    Attributes:
        machine: who loaded them.
        access: the load.
        region: what was read.
        index: int64 [n], the first byte that each thread loaded.
        missing: int64 [n], the first of them that nobody wrote.
        lanes: int64 [n], of the machine.
    """

    machine: Lanes
    access: Access
    region: Region
    index: Array
    missing: Array
    lanes: Array


@dataclass(frozen=True)
class Absent:
    """A shuffle read lanes that do not take part. `sources`: int64 [n], which lane of the warp each thread read."""

    instruction: Instruction
    sources: Array


@dataclass(frozen=True)
class Raced:
    """Reads that race.

    Attributes:
        errors: what that of each thread raced with.
        region: name of the memory.
        begin: int64 [n], the first byte that each thread read, among those of the whole launch.
        width: bytes of each.
        reads: that of each thread.
    """

    errors: Sequence[RaceError]
    region: str
    begin: Array
    width: int
    reads: Sequence[Read]


@dataclass(frozen=True)
class Stored:
    """An undefined value was stored. `instruction` did it; `before`: int64 [n], where each value came from."""

    instruction: Instruction
    before: Array


Event = Unwritten | Uninitialised | Absent | Raced | Stored


@dataclass(frozen=True)
class Origin:
    """One number: what happened, the place in the event's arrays, and the thread of the launch, in whole warps."""

    event: Event
    place: int
    thread: int


class Origins:
    """The numbers of one launch."""

    def __init__(self) -> None:
        self._next = NOWHERE + 1
        self._firsts: list[int] = []
        self._events: list[tuple[Event, Array | None]] = []
        self._registers: dict[str, int] = {}

    def of_register(self, name: str, threads: int) -> int:
        """The number of thread 0 for a register that nothing wrote; those of others follow in their order."""
        if name not in self._registers:
            self._registers[name] = self._begin(Unwritten(name), None, threads)
        return self._registers[name]

    def add(self, event: Event, threads: Array) -> Array:
        """Numbers int64 [n] for something that happened to `threads` int64 [n]."""
        first = self._begin(event, threads, len(threads))
        return np.arange(first, first + len(threads))

    def _begin(self, event: Event, threads: Array | None, count: int) -> int:
        first, self._next = self._next, self._next + count
        self._firsts.append(first)
        self._events.append((event, threads))
        return first

    def find(self, number: int) -> Origin:
        """What a number stands for."""
        at = bisect_right(self._firsts, number) - 1
        (event, threads), place = self._events[at], number - self._firsts[at]
        return Origin(event, place, place if threads is None else int(threads[place]))

    def cause(self, number: int) -> tuple[int, str]:
        """What values have in common that are one finding: lines of the store, and of what made them or a register."""
        stored, made = self.find(number).event, self.root(number).event
        line = stored.instruction.line if isinstance(stored, Stored) else 0
        match made:
            case Unwritten():
                return line, made.register
            case Uninitialised():
                return line, str(made.access.instruction.line)
            case Raced():
                return line, made.region
            case _:
                return line, str(made.instruction.line)

    def root(self, number: int) -> Origin:
        """Where a value that may have gone through memory came from at first."""
        found = self.find(number)
        while isinstance(found.event, Stored):
            found = self.find(int(found.event.before[found.place]))
        return found
