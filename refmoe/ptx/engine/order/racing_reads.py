"""Reads that race, of a launch that runs again: which they are, and whether anything depends on what they read.

A race of a plain read changes nothing where the value that was read changes nothing. So the launch goes on behind such
a race, and the value is followed, as undefined ones are, see `refmoe.ptx.engine.undefined`. A read that came before
the write has given its value away by then. It is taken down, and its value is followed in the next run from the start.
A use ends the run. A run without one, in which every read that races was followed, makes warnings of these races.

A read is known again by its instruction, its thread, and how many reads by that instruction the thread has made before.
Whatever is not certain stays a fault: a race without such a read, and a read that was not followed to the end.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import cache
from typing import Any, NamedTuple

import numpy as np

from refmoe.ptx.engine.order.witness import RaceWitness
from refmoe.ptx.errors import LaneError, RaceError
from refmoe.ptx.state.records import ASYNCHRONOUS, STEP_SHIFT, THREAD, never
from refmoe.ptx.text.memory_ops import memory_opcode
from refmoe.ptx.text.syntax import Instruction

Array = Any
UNUSED = "unused value"
# Reads that are taken down; a launch with more of them is not followed.
_MOST = 1 << 21
_MATRICES = ("ldmatrix.", "wmma.load.")
_COPIES = ("cp.async.ca.", "cp.async.cg.")
_LANES = 32


class ReadBy(NamedTuple):
    """An instruction, as it reads one region."""

    region: str
    line: int
    text: str


class Read(NamedTuple):
    """One read: by which instruction and thread, and how many reads by both came before."""

    place: ReadBy
    thread: int
    number: int


@dataclass
class RacedWith:
    """What a read raced with. `bytes`: those of the read that raced, counted as those of the whole launch."""

    error: RaceError
    bytes: set[int] = field(default_factory=set)


@dataclass(frozen=True)
class _Now:
    """The reads that are being made. `numbers`: by thread; `racing`: of each thread that is known to race."""

    place: ReadBy
    numbers: Mapping[int, int]
    racing: dict[int, tuple[Read, RacedWith]]


class ReadsFound(Exception):
    """Reads that came before a write race with it: in the next run they can be followed."""


@cache
def is_followed(opcode: str) -> bool:
    """Whether an instruction is a plain read whose value can be followed: by a lane, or by `cp.async`."""
    if opcode.startswith((*_MATRICES, *_COPIES)):
        return True
    parts = memory_opcode(opcode)
    return parts is not None and parts.stem in ("ld", "ldu") and not parts.strong and parts.coherent


class RacingReads(RaceWitness):
    """The racing reads of some regions in one run.

    Args:
        regions: their names; every access of theirs is kept.
        known: what earlier runs found, whose values are followed in this one.
        first: with what the launch ended at first: a race, or a read of what a copy is under way to.
        stops: whether the run ends as soon as it has found a read that came before a write.

    Attributes:
        found: what this run found.
        fault: the first race that is not of a plain read alone, or whose value was used, or None.
        gives_up: whether there are more reads than are taken down.
    """

    def __init__(
        self, regions: frozenset[str], known: Mapping[Read, RacedWith], first: LaneError, stops: bool = False
    ) -> None:
        super().__init__(*regions)
        self.known, self.first, self.stops = known, first, stops
        self.found: dict[Read, RacedWith] = {}
        self.fault: RaceError | None = None
        self.gives_up = False
        self._checked: set[Read] = set()
        self._by_place: dict[ReadBy, dict[tuple[int, int], tuple[Read, RacedWith]]] = defaultdict(dict)
        for read, raced in known.items():
            self._by_place[read.place][read.thread, read.number] = read, raced
        self._counts: dict[ReadBy, dict[int, int]] = defaultdict(dict)
        self._now: _Now | None = None
        # Of each region by first byte: (bytes, the read, or None for one that nobody follows, its record).
        self._reads: dict[str, dict[int, list[tuple[int, Read | None, int]]]] = {
            each: defaultdict(list) for each in regions
        }
        self._widest = self._count = 0
        self._followed: dict[Read, set[int]] = defaultdict(set)
        # The first race of each kind and later instruction.
        self._errors: dict[tuple[str, ReadBy], RaceError] = {}

    @property
    def places(self) -> frozenset[tuple[int, str]]:
        """Line and text of the instructions whose values are followed."""
        read = ((each.place.line, each.place.text) for each in self.known)
        return frozenset(((self.first.line, self.first.text), *read))

    def note(
        self, region: str, instruction: Instruction, step: int, begin: Array, width: int, threads: Array,
        writes: bool, reads: bool = False,
    ) -> None:  # fmt: skip
        """See `RaceWitness.note`; of earlier accesses only the reads are kept."""
        self._now = None
        if ".nc." in instruction.opcode:
            # Nobody follows what it read, and nothing comes after it.
            self._widest = max(self._widest, width)
            for first, thread in zip(begin.tolist(), threads.tolist(), strict=True):
                self._reads[region][first].append((width, None, never(thread)))
        if writes or not is_followed(instruction.opcode):
            return
        place = ReadBy(region, instruction.line, instruction.text)
        counts, marked = self._counts[place], self._by_place.get(place, {})
        numbers = {thread: counts.get(thread, 0) for thread in threads.tolist()}
        counts.update((thread, number + 1) for thread, number in numbers.items())
        racing = {each: marked[each, number] for each, number in numbers.items() if (each, number) in marked}
        self._now = _Now(place, numbers, racing)
        self._widest, self._count = max(self._widest, width), self._count + len(begin)
        if self._count > _MOST:
            self.gives_up = True
            return
        flags = step << STEP_SHIFT | (int(ASYNCHRONOUS) if instruction.opcode.startswith(_COPIES) else 0)
        held = self._reads[region]
        for first, thread in zip(begin.tolist(), threads.tolist(), strict=True):
            held[first].append((width, Read(place, thread, numbers[thread]), flags | thread))

    def earlier(self, region: str, byte: int, record: int, kind: str) -> Instruction | None:
        """None: whoever explains a race looks for its earlier access."""
        return None

    def like(self, kind: str, region: str, instruction: Instruction) -> RaceError | None:
        """A race that was met before, of the same kind and later instruction; thousands are told as one."""
        return self._errors.get((kind, ReadBy(region, instruction.line, instruction.text)))

    def met(
        self, error: RaceError, byte: int, thread: int, width: int = 1,
        ordered: Callable[[list[int]], list[bool]] | None = None,
    ) -> None:  # fmt: skip
        """A race: the launch goes on behind it. See `RaceWitness.met`."""
        if error.warning:
            return
        racing: list[Read] = []
        if error.kind == "write-read" and self._now is not None:
            place, numbers = self._now.place, self._now.numbers
            if place == (error.buffer, error.line, error.text) and thread in numbers:
                racing = [Read(place, thread, numbers[thread])]
        elif error.kind == "read-write" and ordered is not None:
            racing = self._before(error.buffer, byte, width, thread, ordered)
        if not racing:
            self.fault = self.fault or error
        else:
            self._errors.setdefault((error.kind, ReadBy(error.buffer, error.line, error.text)), error)
        for read in racing:
            found = self.found.setdefault(read, RacedWith(self._told(error, read)))
            found.bytes.update(range(byte, byte + width))
            if error.kind == "write-read" and self._now is not None:
                # What is known of it already is of the same bytes, or it is followed in the next run.
                self._now.racing.setdefault(read.thread, (read, found))
        if racing and self.stops and error.kind == "read-write":
            raise ReadsFound(error.text)

    def _told(self, error: RaceError, read: Read) -> RaceError:
        """The race of a read as the first run met it, if it is by that instruction: threads may come in any order."""
        first = self.first
        if isinstance(first, RaceError) and first.kind == "write-read":
            same = read.place == ReadBy(first.buffer, first.line, first.text)
            return first if same else error
        return error

    def _before(
        self, region: str, byte: int, width: int, thread: int, ordered: Callable[[list[int]], list[bool]]
    ) -> list[Read]:
        """The reads of some bytes that are not known to come before what a lane of `thread` does now.

        Empty if one of them is a read that nobody follows: then the race is a fault.
        """
        held = self._reads[region]
        found = [
            (read, record)
            for first in range(byte - self._widest + 1, byte + width)
            for size, read, record in held.get(first, ())
            if first + size > byte and record & int(THREAD) != thread
        ]
        asked = ordered([record for _, record in found]) if found else []
        racing = [read for (read, _), before in zip(found, asked, strict=True) if not before]
        followed = [read for read in racing if read is not None]
        return followed if len(followed) == len(racing) else []

    def raced(
        self, region: str, instruction: Instruction, begin: Array, width: int, threads: Array
    ) -> tuple[Array, list[RaceError], list[Read]] | None:
        """What is to be followed of the reads that are being made.

        Args:
            region: what is read.
            instruction: which reads.
            begin: int64 [n], the first byte of each read, among those of the whole launch.
            width: bytes of each.
            threads: int64 [n], who reads. Rows of a matrix are those of all lanes of a warp.

        Returns:
            bool [n, width], the bytes that raced, and of each row that has some what they raced with and the read; or
            None.
        """
        now = self._now
        if now is None or not now.racing or now.place != (region, instruction.line, instruction.text):
            return None
        of = {thread: [each] for thread, each in now.racing.items()}
        if instruction.opcode.startswith(_MATRICES):
            warps: dict[int, list[tuple[Read, RacedWith]]] = defaultdict(list)
            for thread, each in now.racing.items():
                warps[thread // _LANES].append(each)
            of = {thread: warps[thread // _LANES] for thread in threads.tolist()}
        mask, errors, reads = np.zeros((len(begin), width), np.bool_), list[RaceError](), list[Read]()
        for row, (first, thread) in enumerate(zip(begin.tolist(), threads.tolist(), strict=True)):
            for read, raced in of.get(thread, ()):
                inside = [byte for byte in raced.bytes if first <= byte < first + width]
                if inside and not mask[row].any():
                    errors.append(raced.error)
                    reads.append(read)
                mask[row, [byte - first for byte in inside]] = True
                self._followed[read].update(inside)
        return (mask, errors, reads) if errors else None

    def check(self, reads: list[Read]) -> None:
        """A CAS has compared what was read with what is there, see `refmoe.ptx.engine.undefined.compared`."""
        self._checked.update(reads)

    @property
    def checks_all(self) -> bool:
        """Whether a CAS has checked the value of every read that races."""
        return self.found.keys() <= self._checked

    def refuse(self, error: RaceError) -> None:
        """The value of a read that raced is used, see `RaceError.use`.

        The race that was met first is told first, so that the launch goes on behind another one.

        Raises:
            RaceError: it is that race.
        """
        if (error.line, error.text) == (self.first.line, self.first.text):
            raise error
        self.fault = self.fault or error

    def new(self) -> dict[Read, RacedWith]:
        """What this run found without following it, and no earlier one knew."""
        return {
            read: raced
            for read, raced in self._unfollowed()
            if read not in self.known or not raced.bytes <= self.known[read].bytes
        }

    def lost(self) -> RaceError | None:
        """The error of a read that raced, and that was not followed although it was known to."""
        return next((raced.error for _, raced in self._unfollowed()), None)

    def _unfollowed(self) -> list[tuple[Read, RacedWith]]:
        return [(read, raced) for read, raced in self.found.items() if not raced.bytes <= self._followed[read]]

    def warnings(self) -> tuple[RaceError, ...]:
        """The races of reads whose values nobody used, one for each cause."""
        causes: dict[Any, RaceError] = {}
        for read, raced in reversed(self.found.items()):
            causes[raced.error.cause] = raced.error.unused(read in self._checked)
        return tuple(reversed(causes.values()))
