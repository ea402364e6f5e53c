"""Asynchronous copies from global to shared memory (`cp.async`), which land as late as the manual allows.

A copy is issued: its addresses are checked, its destination is poisoned and counts as uninitialised. It lands when its
thread waits for the group that it is in, or when somebody needs the phase of a barrier that it arrives on. Only then
are its bytes read and written, so that a kernel which does not wait, or writes the source too early, computes garbage
or is stopped, whatever the hardware's timing would have made of it.

Under a schedule some copies read and write at once instead, and those of one group land in any order. For races and
for waits that changes nothing.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any, Protocol, TypeVar

import numpy as np

from refmoe.ptx.engine.frame import Frame
from refmoe.ptx.engine.lanes import Lanes
from refmoe.ptx.engine.loads_and_stores import Access, Store
from refmoe.ptx.engine.races import shadow_of
from refmoe.ptx.errors import MisuseError
from refmoe.ptx.native import copies as native
from refmoe.ptx.state.memory import Region
from refmoe.ptx.state.numbers import among, different
from refmoe.ptx.state.pages import untouched
from refmoe.ptx.text.syntax import Instruction

Array = Any
# Bytes of the least that native code copies.
_WORD = 4
# Groups of a lane of which a barrier counted copies, and that are kept apart: a wait leaves fewer open.
_MOST_GROUPS = 64


@dataclass
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
        landed: whether its bytes are there already, though nobody has waited for them.
        raced: what raced of what it reads, uint8 [n, bytes of a copy], and where it came from, int64 [n], see
            `UndefinedFollower.raced`; None for nothing.
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
    landed: bool = False
    raced: tuple[Array, Array] | None = None

    def some(self, which: Array) -> Flight:
        """The copies at which bool [n] is on."""
        return replace(
            self,
            lanes=self.lanes[which],
            groups=self.groups[which],
            target=self.target[which],
            index=self.index[which],
            raced=None if self.raced is None else (self.raced[0][which], self.raced[1][which]),
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
        count = int(np.count_nonzero(which))
        if count:
            taken.append(flight if count == len(which) else flight.some(which))
        if count < len(which):
            left.append(flight.some(~which) if count else flight)
    return taken, left


@dataclass(frozen=True)
class CountedArrivals:
    """Arrivals of `lanes` [n] on barriers `ids` [n], once all that they copied before `number` has landed.

    `step`: when they were announced.
    """

    number: int
    step: int
    lanes: Array
    ids: Array

    def some(self, which: Array) -> CountedArrivals:
        """Those at which bool [n] is on."""
        return replace(self, lanes=self.lanes[which], ids=self.ids[which])


def completing(
    arrivals: list[CountedArrivals], ready: Array, pending: Array, announced: Array
) -> tuple[list[CountedArrivals], list[CountedArrivals]]:
    """(those that complete the phases of barriers `ready` [k], the others).

    By barrier, its phase expects so many that are `pending`, and so many are `announced`. If that is more, the oldest
    are of this phase.
    """
    left = {
        number: int(pending[number]) for number in ready.tolist() if announced[number] > pending[number]
    }  # fmt: skip

    def chosen(arrival: CountedArrivals) -> Array:
        which = among(arrival.ids, ready)
        for number in set(arrival.ids.tolist()) & left.keys() if left else ():
            mine = np.flatnonzero(arrival.ids == number)
            which[mine[left[number] :]] = False
            left[number] -= min(left[number], len(mine))
        return which

    return split(arrivals, chosen)


class _Counted:
    """Copies that a barrier counts: their accesses come before what their lanes do once these have waited for them.

    Of each of the last groups of a lane the step of its last copy is kept.

    Args:
        lanes: of the machine.
    """

    def __init__(self, lanes: int) -> None:
        # By a group's number, modulo how many are kept, and by lane: that number and 1, 0 for none, and the step.
        self._groups = untouched((_MOST_GROUPS, lanes), np.int64)
        self._steps = untouched((_MOST_GROUPS, lanes), np.int64)
        # The same of the last group of each lane.
        self._last = np.zeros((2, lanes), np.int64)

    def append(self, lanes: Array, groups: Array, step: int) -> None:
        """Copies of `lanes` [n], in their groups [n], were issued at a step."""
        place = groups % _MOST_GROUPS, lanes
        self._steps[place] = np.where(
            self._groups[place] == groups + 1, np.maximum(self._steps[place], step), step
        )  # fmt: skip
        self._groups[place] = groups + 1
        later = groups + 1 >= self._last[0, lanes]
        self._last[:, lanes[later]] = groups[later] + 1, self._steps[place][later]

    def before(self, lanes: Array, limit: Array) -> Array:
        """The step of the last copy of each of `lanes` [n] in a group before `limit` [n], int64 [n]; 0 for none."""
        last, steps = self._last[:, lanes]
        found: Array = np.where(last <= limit, steps, 0)
        left = np.flatnonzero(last > limit)
        for back in range(_MOST_GROUPS):
            if not left.size:
                break
            number = limit[left] - back
            left, number = left[number > 0], number[number > 0]
            place = (number - 1) % _MOST_GROUPS, lanes[left]
            held = self._groups[place] == number
            found[left[held]] = self._steps[place][held]
            left = left[~held]
        return found


class Copies:
    """The copies of some CTAs that have not landed.

    Args:
        machine: the lanes.
        counting: whether some barrier may count them. Who comes after that barrier comes after every copy that its lane
            issued before, those included for which the lane has waited.
    """

    def __init__(self, machine: Lanes, counting: bool) -> None:
        self.machine = machine
        self.issued = 0
        self._flights: list[Flight] = []
        self._counted = _Counted(machine.lanes) if counting else None
        self._addresses: dict[int, tuple[Array, Array | None, tuple[int, int | None]]] = {}

    @cached_property
    def group(self) -> Array:
        """int64 [lanes], the group that each lane's next copy is in."""
        return np.zeros(self.machine.lanes, np.int64)

    def arrive(self) -> None:
        """A barrier counts an arrival of lanes once what they have issued so far has landed."""
        # What is issued from now on is of another step.
        self.machine.tick(self.machine.launch.clock + 1)

    def add(self, frame: Frame, flight: Flight) -> None:
        """A copy is issued."""
        if self.machine.lands_at_once():
            self._land(frame, flight)
            flight.landed = True
        self._flights.append(flight)

    def covers(self, byte: int) -> bool:
        """Whether a copy to byte `byte` of shared memory, that of all CTAs, is under way."""
        return any(
            bool(((f.target <= byte) & (byte < f.target + f.work.target.width)).any())
            for f in self._flights
            if not f.landed
        )

    def wait(self, frame: Frame, lanes: Array, keep: int) -> None:
        """`lanes` wait for all their groups but the last `keep`."""
        limit = np.zeros(self.machine.lanes, np.int64)
        limit[lanes] = self.group[lanes] - keep
        landed, self._flights = split(self._flights, lambda flight: flight.groups < limit[flight.lanes])
        for flight in self._in_any_order(landed):
            self._land(frame, flight)
        clocks = self.machine.clocks
        if clocks is None:
            return
        shadow = shadow_of(self.machine.shared)
        if landed:
            # No store is of the same step, see `RaceShadow.delivered`.
            self.machine.tick(self.machine.launch.clock + 1)
        for flight in landed:
            if self._counted is not None:
                # Whoever comes after the barrier comes after the copy, and not after this wait.
                self._counted.append(flight.lanes, flight.groups, flight.step)
                continue
            shadow.waited(frame, flight.work.target, flight.target, flight.lanes)
            if flight.source is not None and flight.source.shadow is not None:
                access, index, who = flight.work.reading(flight.size, flight.index, flight.lanes)
                shadow_of(flight.source).waited(frame, access, index, who)
        if self._counted is not None:
            steps = self._counted.before(lanes, limit[lanes])
            if steps.any():
                clocks.copies_seen(lanes, steps, self.machine.alive)

    def announce(self, frame: Frame, before: Array) -> None:
        """A barrier needs what each lane issued before number `before` [lanes of the machine]."""
        # Copies of the next rounds of a pipeline are under way too: of those no lane need be looked at.
        last = int(before.max())
        due = [flight for flight in self._flights if flight.number < last]
        landed, left = split(due, lambda flight: flight.number < before[flight.lanes])
        # Flights are in the order of their numbers.
        self._flights = left + self._flights[len(due) :]
        for flight in self._in_any_order(landed):
            if self._counted is not None:
                self._counted.append(flight.lanes, flight.groups, flight.step)
            self._land(frame, flight)

    def _in_any_order(self, flights: list[Flight]) -> list[Flight]:
        """Copies of one group may land in any order, those of an earlier one come first."""
        order = self.machine.any_order(len(flights))
        if order is None:
            return flights
        return sorted((flights[number] for number in order), key=lambda flight: int(flight.groups.min()))

    def _land(self, frame: Frame, flight: Flight) -> None:
        if flight.landed:
            return
        shared, work = self.machine.shared, flight.work
        width = work.target.width
        self.machine.tracer.copies("land", work.instruction, flight.lanes, flight.size)
        if self._land_natively(flight):
            self.machine.progress()
            return
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
        if flight.raced is not None:
            self.machine.undefined.write_bytes(shared, flight.target, *flight.raced)
        self.machine.progress()

    def _land_natively(self, flight: Flight) -> bool:
        """Land copies that have nothing to report; False where Python has to do it, from the beginning."""
        machine, width = self.machine, flight.work.target.width
        if flight.size % _WORD or machine.undefined is not None:
            return False
        # Copies of nothing write zeros and read no source.
        source = machine.shared if flight.source is None else flight.source
        asked = flight.size and source.valid is not None and (machine.checks.uninitialised or source.poisoned)
        target, origin = np.ascontiguousarray(flight.target, np.int64), np.ascontiguousarray(flight.index, np.int64)
        data, valid = self.address_of(source)
        wrong = native.functions().land(
            *self.address_of(machine.shared), target.ctypes.data, data, valid if asked else None, origin.ctypes.data,
            len(target), width, flight.size,
        )  # fmt: skip
        return not wrong

    def address_of(self, region: Region) -> tuple[int, int | None]:
        """Where the bytes of a region lie, and the marks of those that are initialised, for native code.

        NumPy takes as long to say that as native code does to copy.
        """
        data, valid = region.data, region.valid
        held = self._addresses.get(id(region))
        if held is None or held[0] is not data or held[1] is not valid:
            found = data.ctypes.data, None if valid is None else valid.ctypes.data
            held = self._addresses[id(region)] = data, valid, found
        return held[2]


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
        # Mostly one size is written in the instruction.
        sizes = frame.acting(where, size) if isinstance(size, np.ndarray) and size.ndim else np.array([size])
        counts = different(sizes).tolist()
        if max(counts) > width:
            what = f"copies {max(counts)} of {width} bytes"
            bad = lanes[np.argmax(sizes > width)]
            raise machine.error(MisuseError, self.instruction, bad, what, link="")
        machine.progress()
        machine.tracer.copies("copy", self.instruction, lanes, sizes if len(sizes) > 1 else counts[0])
        region, _, index = next(self.target._parts(frame, to, lanes))
        if region.shadow is not None:
            shadow_of(region).copy(frame, self.target, region, index, lanes, in_group=True)
        index = np.ascontiguousarray(index, np.int64)
        copies = machine.part(Copies)
        native.functions().poison(*copies.address_of(region), index.ctypes.data, len(index), width)
        groups = copies.group[lanes]
        whole = Flight(self, copies.issued, machine.launch.clock, lanes, groups, index, width, None, index)
        for count in counts:
            flight, origins = whole, origin
            if len(counts) > 1:
                chosen = sizes == count
                flight, origins = whole.some(chosen), origin[chosen]
            for buffer, which, begin, raced in self._sources(frame, count, origins, flight.lanes):
                mine = flight if which is None else flight.some(which)
                part = Flight(self, mine.number, mine.step, mine.lanes, mine.groups, mine.target, count, buffer, begin)
                part.raced = raced
                copies.add(frame, part)
        copies.issued += 1

    def _sources(
        self, frame: Frame, count: int, address: Array, lanes: Array
    ) -> list[tuple[Region | None, Array | None, Array, tuple[Array, Array] | None]]:
        """(buffer, which lanes or None for all, byte index, what raced) of reads of `count` bytes, bounds checked."""
        if not count:
            # The address of nothing may be anything.
            return [(None, None, address.view(np.int64), None)]
        width = self.target.width
        whole = self.source if count == width else replace(self.source, size=1, count=count, align=width)
        parts: list[tuple[Region | None, Array | None, Array, tuple[Array, Array] | None]] = []
        for region, which, index in whole._parts(frame, address, lanes):
            theirs, raced = lanes if which is None else lanes[which], None
            if region.shadow is not None:
                access, at, who = self.reading(count, index, theirs)
                shadow_of(region).read(frame, access, region, at, who, asynchronous=True)
                if frame.machine.undefined is not None:
                    raced = frame.machine.undefined.raced(whole, region, index, theirs)
            if raced is not None:
                raced = np.pad(raced[0], ((0, 0), (0, width - count))), raced[1]
            parts.append((region, which, index, raced))
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
        machine = frame.machine
        machine.part(Copies).group[lanes] += 1
        if machine.clocks is not None and machine.clocks.by_lane:
            # Who has waited for the group knows its copies by their step, and none of the next one.
            machine.tick(machine.launch.clock + 1)


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
