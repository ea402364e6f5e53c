"""Asynchronous copies from global to shared memory (`cp.async`), which land as late as the manual allows.

A copy is issued: its addresses are checked, its destination is poisoned and counts as uninitialised. It lands when its
thread waits for the group that it is in, or when somebody needs the phase of a barrier that it arrives on. Only then
are its bytes read and written, so that a kernel which does not wait, or writes the source too early, computes garbage
or is stopped, whatever the hardware's timing would have made of it.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any, Protocol, TypeVar

import numpy as np

from refmoe.ptx.engine.access import Access, Store
from refmoe.ptx.engine.frame import Frame
from refmoe.ptx.engine.lanes import Lanes
from refmoe.ptx.engine.races import shadow_of
from refmoe.ptx.errors import MisuseError
from refmoe.ptx.state.memory import Region
from refmoe.ptx.state.pages import POISON
from refmoe.ptx.text.syntax import Instruction

Array = Any
# A word with the value 1 in each byte.
_ONES = {4: np.uint32(0x01010101), 8: np.uint64(0x0101010101010101)}


@dataclass(frozen=True)
class Flight:
    """Copies of some lanes by one instruction, with as many bytes each, out of one buffer.

    Attributes:
        work: the instruction.
        number: in the order of issue.
        step: when it was issued.
        lanes: int64 [n].
        groups: int64 [n], the group of each, counted by lane.
        target: int64 [n], byte index into shared memory.
        size: bytes that are read; the rest is filled with zeros.
        source: the buffer, or None where nothing is read.
        index: int64 [n], byte index into it.
    """

    work: CopyAsync
    number: int
    step: int
    lanes: Array
    groups: Array
    target: Array
    size: int
    source: Region | None
    index: Array

    def some(self, which: Array) -> Flight:
        """The copies at which bool [n] is on."""
        return replace(
            self,
            lanes=self.lanes[which],
            groups=self.groups[which],
            target=self.target[which],
            index=self.index[which],
        )


class Divisible(Protocol):
    """Copies of several lanes."""

    def some(self: F, which: Array) -> F:
        """The copies at which bool [n] is on."""
        ...


F = TypeVar("F", bound=Divisible)


def split(flights: list[F], chosen: Callable[[F], Array]) -> tuple[list[F], list[F]]:
    """The copies that are chosen, bool [n] for each flight, and the others."""
    taken, left = [], []
    for flight in flights:
        which = chosen(flight)
        if which.any():
            taken.append(flight if which.all() else flight.some(which))
        if not which.all():
            left.append(flight.some(~which) if which.any() else flight)
    return taken, left


class Copies:
    """The copies of some CTAs that have not landed."""

    def __init__(self, machine: Lanes) -> None:
        self.machine = machine
        self.issued = 0
        self._flights: list[Flight] = []

    @cached_property
    def group(self) -> Array:
        """int64 [lanes], the group that each lane's next copy is in."""
        return np.zeros(self.machine.lanes, np.int64)

    @cached_property
    def _announced(self) -> Array:
        """int64 [lanes], issue of the last copy of each lane that landed because a barrier needed it."""
        return np.zeros(self.machine.lanes, np.int64)

    def add(self, flight: Flight) -> None:
        """A copy is issued."""
        self._flights.append(flight)

    def covers(self, byte: int) -> bool:
        """Whether a copy to byte `byte` of shared memory, that of all CTAs, is under way."""
        return any(bool(((f.target <= byte) & (byte < f.target + f.work.target.width)).any()) for f in self._flights)

    def wait(self, frame: Frame, lanes: Array, keep: int) -> None:
        """`lanes` wait for all their groups but the last `keep`."""
        limit = np.zeros(self.machine.lanes, np.int64)
        limit[lanes] = self.group[lanes] - keep
        landed, self._flights = split(self._flights, lambda flight: flight.groups < limit[flight.lanes])
        for flight in landed:
            self._land(frame, flight)
        clocks = self.machine.clocks
        if clocks is None:
            return
        shadow = shadow_of(self.machine.shared)
        for flight in landed:
            shadow.waited(frame, flight.work.target, flight.target, flight.lanes)
            if flight.source is not None and flight.source.shadow is not None:
                access, index, who = flight.work.reading(flight.size, flight.index, flight.lanes)
                shadow_of(flight.source).waited(frame, access, index, who)
        announced = self._announced[lanes]
        if announced.any():
            clocks.copies_seen(lanes, announced)

    def announce(self, frame: Frame, before: Array) -> None:
        """A barrier needs what each lane issued before number `before` [lanes of the machine]."""
        landed, self._flights = split(self._flights, lambda flight: flight.number < before[flight.lanes])
        for flight in landed:
            self._announced[flight.lanes] = np.maximum(self._announced[flight.lanes], flight.step)
            self._land(frame, flight)

    def _land(self, frame: Frame, flight: Flight) -> None:
        shared, work = self.machine.shared, flight.work
        width = work.target.width
        self.machine.tracer.copies("land", work.instruction, flight.lanes, flight.size)
        if flight.source is not None and flight.size == width:
            work.source._check_valid(frame, flight.source, flight.index, flight.lanes)
            words = flight.source.read(width, flight.index // width)
        else:
            block = np.zeros((len(flight.lanes), width), np.uint8)
            if flight.source is not None:
                access, index, who = work.reading(flight.size, flight.index, flight.lanes)
                access._check_valid(frame, flight.source, index, who)
                block[:, : flight.size] = flight.source.read(1, index).reshape(-1, flight.size)
            words = block.view(np.dtype(f"u{min(width, 8)}"))
            words = words[:, 0] if width <= 8 else words
        shared.write(width, flight.target // width, words)
        if shared.shadow is not None:
            shadow_of(shared).after_write(frame, work.target, shared, flight.target, flight.lanes, words)
        self.machine.progress()


@dataclass(frozen=True)
class CopyAsync:
    """`cp.async`: `target` and `source` are the accesses of whole copies."""

    instruction: Instruction
    target: Store
    source: Access

    def __call__(self, frame: Frame, target: Array, source: Array, size: Array, guard: Array | None) -> None:
        """Issue copies.

        Args:
            frame: the lanes.
            target: shared addresses.
            source: global addresses.
            size: bytes to read of each; the others are filled with zeros.
            guard: who acts.

        Raises:
            MemoryFault: an address out of bounds or misaligned.
            MisuseError: a size above that of the copy.
            RaceError: somebody may still be using the destination.
        """
        where, lanes, to = frame.select(target, guard)
        if not lanes.size:
            return
        machine, width = frame.machine, self.target.width
        _, _, origin = frame.select(source, guard)
        sizes = frame.acting(where, size)
        beyond = sizes > width
        if beyond.any():
            what = f"copies {int(sizes.max())} of {width} bytes"
            raise machine.error(MisuseError, self.instruction, lanes[np.argmax(beyond)], what, link="")
        machine.progress()
        machine.tracer.copies("copy", self.instruction, lanes, sizes)
        region, _, index = next(self.target._parts(frame, to, lanes))
        if region.shadow is not None:
            shadow_of(region).copy(frame, self.target, region, index, lanes)
        region.words(width)[index // width] = np.uint8(POISON) * _ONES[min(width, 8)]
        region.words(width, of_valid=True)[index // width] = 0
        copies = machine.part(Copies)
        groups = copies.group[lanes]
        for count in np.unique(sizes):
            part = np.flatnonzero(sizes == count)
            for buffer, which, begin in self._sources(frame, int(count), origin[part], lanes[part]):
                some = part if which is None else part[which]
                copies.add(
                    Flight(
                        self, copies.issued, frame.machine.launch.clock, lanes[some], groups[some], index[some],
                        int(count), buffer, begin,
                    )
                )  # fmt: skip
        copies.issued += 1

    def _sources(
        self, frame: Frame, count: int, address: Array, lanes: Array
    ) -> list[tuple[Region | None, Array | None, Array]]:
        """(buffer, which lanes or None for all, byte index) of reads of `count` bytes, bounds checked."""
        if not count:
            # The address of nothing may be anything.
            return [(None, None, address.view(np.int64))]
        width = self.target.width
        whole = self.source if count == width else replace(self.source, size=1, count=count, align=width)
        parts: list[tuple[Region | None, Array | None, Array]] = []
        for region, which, index in whole._parts(frame, address, lanes):
            parts.append((region, which, index))
            if region.shadow is not None:
                access, at, who = self.reading(count, index, lanes if which is None else lanes[which])
                shadow_of(region).read(frame, access, region, at, who, asynchronous=True)
        return parts

    def reading(self, size: int, index: Array, lanes: Array) -> tuple[Access, Array, Array]:
        """The accesses that read `size` bytes at `index`: one, or byte by byte where that is less than a copy."""
        if size == self.target.width:
            return self.source, index, lanes
        at = (index[:, None] + np.arange(size)).ravel()
        return replace(self.source, size=1, count=1), at, np.repeat(lanes, size)


@dataclass(frozen=True)
class CopyCommit:
    """`cp.async.commit_group`: what a lane issued since the last one is a group."""

    def __call__(self, frame: Frame, guard: Array | None) -> None:
        """Close the group of each lane."""
        _, lanes, _ = frame.select(np.uint64(0), guard)
        frame.machine.part(Copies).group[lanes] += 1


@dataclass(frozen=True)
class CopyWait:
    """`cp.async.wait_group keep`, or, with `everything`, `cp.async.wait_all`."""

    keep: int
    everything: bool = False

    def __call__(self, frame: Frame, guard: Array | None) -> None:
        """Land the groups that are waited for."""
        _, lanes, _ = frame.select(np.uint64(0), guard)
        if self.everything:
            frame.machine.part(Copies).group[lanes] += 1
        frame.machine.part(Copies).wait(frame, lanes, self.keep)
