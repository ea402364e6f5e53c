"""Bulk copies under way (`cp.async.bulk`), which land as late as the manual allows.

A load into shared memory is issued: its destination is poisoned, counts as uninitialised, and belongs to the copy. It
lands when somebody needs the phase of the barrier on which it completes, and only if with it that phase can end: when
all arrivals have come and bytes are still owed. A store reads its source when its thread waits for its group, and its
bytes reach global memory when the thread waits for more than the reading, or exits. So a kernel that does not wait,
that waits for something else, or that overwrites a source too early computes garbage or is stopped.

Under a schedule some copies do at once what they else do late: a load lands and its bytes count as soon as it is
issued; a store reads its source at once, and perhaps writes at once too. For races and for waits of the thread that
changes nothing.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import compress
from typing import Any

import numpy as np

from refmoe.native.addresses import address
from refmoe.ptx.engine.bulk import races
from refmoe.ptx.engine.bulk.agents import Agents
from refmoe.ptx.engine.bulk.map_reads import MapRead, MapReads, reads_of
from refmoe.ptx.engine.bulk.races import BulkShadow
from refmoe.ptx.engine.bulk.reduce import Reduction
from refmoe.ptx.engine.copies import split
from refmoe.ptx.engine.frame import Frame
from refmoe.ptx.engine.lanes import Lanes
from refmoe.ptx.engine.loads_and_stores import Access, tell_watch
from refmoe.ptx.engine.mbarrier import Mbarriers
from refmoe.ptx.native import boxes
from refmoe.ptx.native.boxes import BoxPlaces
from refmoe.ptx.state.memory import Region
from refmoe.ptx.state.numbers import different
from refmoe.ptx.state.records import STEP_SHIFT, WEAK
from refmoe.ptx.text.syntax import Instruction

Array = Any
_BARRIER_BYTES = 8
_EVERY_16_BITS = 0x0001_0001_0001_0001


@dataclass(frozen=True)
class Cut:
    """Words of n copies between a buffer in global memory and shared memory.

    Attributes:
        access: of one word in global memory.
        region: the buffer, or None where no word lies in its tensor.
        begin: int64 [n], bytes into the buffer.
        offset: of words from there, int64 [m] of every copy, or [n, m].
        inside: bool [n, m], the words that lie in the tensor, or None for all.
        place: int64 [m], bytes from the begin of each copy in shared memory.
        fill: what every 16 bits outside the tensor are loaded as.
    """

    access: Access
    region: Region | None
    begin: Array
    offset: Array
    inside: Array | None
    place: Array
    fill: int = 0

    @cached_property
    def index(self) -> Array:
        """int64 [n, m], bytes of all words into the buffer."""
        return self.begin[:, None] + self.offset

    def some(self, which: Array) -> Cut:
        """The copies at which bool [n] is on."""
        offset = self.offset if self.offset.ndim == 1 else self.offset[which]
        inside = None if self.inside is None else self.inside[which]
        return replace(self, begin=self.begin[which], offset=offset, inside=inside)

    def chosen(self, lanes: Array) -> tuple[Array, Array]:
        """(byte index, lane) of every word in the tensor, one after another."""
        who = np.broadcast_to(lanes[:, None], self.index.shape)
        if self.inside is None:
            return self.index.ravel(), who.ravel()
        return self.index[self.inside], who[self.inside]

    def targets(self, begin: Array) -> Array:
        """Word numbers [n * m] in shared memory of copies that begin at bytes `begin` [n]."""
        return ((begin[:, None] + self.place) // self.access.width).ravel()


@dataclass(frozen=True)
class BulkLoads:
    """Loads of some lanes by one instruction.

    Attributes:
        instruction: it.
        lanes: int64 [n].
        ids: int64 [n], barriers on which they complete.
        target: int64 [n], byte index into shared memory.
        span: bytes of shared memory of each.
        bytes: what each counts as in its transaction.
        cut: their words.
        reduction: how they are combined with what is there, or None where they replace it.
        maps: their reads of tensor maps that somebody may write, or empty.
        flags: of the records of their writes.
    """

    instruction: Instruction
    lanes: Array
    ids: Array
    target: Array
    span: int
    bytes: int
    cut: Cut
    reduction: Reduction | None = None
    maps: tuple[MapRead | None, ...] = ()
    flags: np.int64 = WEAK

    def reads(self, shared: Region) -> tuple[Array, Array, int]:
        """(lanes [n], first bytes [n], bytes) of what is read of shared memory."""
        if self.cut.region is not shared:
            return self.lanes[:0], self.target[:0], 0
        return self.lanes, self.cut.index[:, 0], self.span

    def some(self, which: Array) -> BulkLoads:
        """The loads at which bool [n] is on."""
        return replace(
            self,
            lanes=self.lanes[which],
            ids=self.ids[which],
            target=self.target[which],
            cut=self.cut.some(which),
            maps=tuple(compress(self.maps, which)),
        )


@dataclass(frozen=True)
class BulkStores:
    """Stores of some lanes by one instruction.

    Attributes:
        instruction: it.
        access: of one word in shared memory.
        lanes: int64 [n].
        groups: int64 [n], the bulk group of each, counted by lane.
        source: int64 [n], byte index into shared memory.
        span: bytes of shared memory of each.
        cut: their words.
        data: the words [n, m, ...] once they are read, or None.
        written: whether they are in global memory already, though nobody has waited for that.
        reduction: how they are combined with what is there, or None where they replace it.
        flags: of the records of their writes.
    """

    instruction: Instruction
    access: Access
    lanes: Array
    groups: Array
    source: Array
    span: int
    cut: Cut
    data: Array = None
    written: bool = False
    reduction: Reduction | None = None
    flags: np.int64 = WEAK

    def firsts(self) -> Array:
        """Bool [n]: off where an earlier lane stores the very same bytes of shared memory to the same places."""
        inside = np.ones(self.cut.index.shape, bool) if self.cut.inside is None else self.cut.inside
        rows = np.column_stack([self.source, np.where(inside, self.cut.index, -1).reshape(len(self.source), -1)])
        first = np.zeros(len(rows), bool)
        first[np.unique(rows, axis=0, return_index=True)[1]] = True
        return first

    def reads(self, shared: Region) -> tuple[Array, Array, int]:
        """See `BulkLoads.reads`."""
        return self.lanes, self.source, self.span

    def used(self) -> list[Array]:
        """Byte indices of the words of shared memory that each reads: of a box those that lie in the tensor."""
        every, inside = self.source[:, None] + self.cut.place, self.cut.inside
        return list(every) if inside is None else [row[on] for row, on in zip(every, inside, strict=True)]

    def some(self, which: Array) -> BulkStores:
        """The stores at which bool [n] is on."""
        return replace(
            self,
            lanes=self.lanes[which],
            groups=self.groups[which],
            source=self.source[which],
            cut=self.cut.some(which),
            data=None if self.data is None else self.data[which],
        )

    def read(self) -> tuple[Array, Array]:
        """(byte index in shared memory, lane) of every word that is read."""
        index = self.source[:, None] + self.cut.place
        who = np.broadcast_to(self.lanes[:, None], index.shape)
        inside = self.cut.inside
        return (index.ravel(), who.ravel()) if inside is None else (index[inside], who[inside])


class Bulk:
    """The bulk copies of some CTAs that are not complete."""

    def __init__(self, machine: Lanes) -> None:
        self.machine = machine
        self.loads: list[BulkLoads] = []
        # Stores that have not read their source, and those that have, but are not known to be complete.
        self._unread: list[BulkStores] = []
        self._unwritten: list[BulkStores] = []
        self._agents = Agents(machine)

    @cached_property
    def group(self) -> Array:
        """int64 [lanes], the bulk group that each lane's next store is in."""
        return np.zeros(self.machine.lanes, np.int64)

    @property
    def _shadow(self) -> BulkShadow:
        shadow = self.machine.shared.shadow
        assert isinstance(shadow, BulkShadow)
        return shadow

    @property
    def pending(self) -> bool:
        """Whether there are loads that have not landed."""
        return bool(self.loads)

    # Agents

    def agents(self, ids: Array) -> Array:
        """The agent of each barrier, numbered inside its cluster."""
        machine = self.machine
        span = machine.shared.stride * machine.launch.grid.cluster_blocks
        offsets = machine.part(Mbarriers).slot[ids] * _BARRIER_BYTES % span
        numbers = {offset: self._agents.number(offset) for offset in different(offsets).tolist()}
        return np.array([numbers[offset] for offset in offsets.tolist()], np.int64)

    def multiplying_agent(self, group: int) -> int:
        """The agent that the products of a warpgroup are, by its number in its cluster."""
        return self._agents.number(-1 - group)

    def agent_name(self, thread: int) -> str:
        """For messages: what an agent does, by the number in a race record."""
        return self._agents.name(thread)

    # Loads

    def load(self, frame: Frame, flight: BulkLoads, access: Access) -> None:
        """Loads are issued; `access` is that of a whole one's destination."""
        machine, shared = self.machine, self.machine.shared
        machine.progress()
        machine.tracer.copies("copy", flight.instruction, flight.lanes, flight.bytes)
        self._check_beside(flight)
        machine.part(Mbarriers).check_published(frame, access, flight.lanes, flight.ids)
        region = flight.cut.region
        if region is shared:
            flight.cut.access._check_valid(frame, shared, *flight.cut.chosen(flight.lanes))
        if machine.clocks is not None:
            if region is shared:
                begin = flight.cut.index[:, 0]
                self._shadow.drain(frame, flight.cut.access, shared, begin, flight.span, flight.lanes, flight.cut.index)
            element = 0
            if flight.reduction is not None:
                element = flight.reduction.bytes
                flags = races.combining(shared, flight.target, flight.span, element)
                flight = replace(flight, flags=flags)
            self._shadow.fill(
                frame, access, shared, flight.target, flight.span, flight.lanes, self.agents(flight.ids), flight.flags,
                element,
            )  # fmt: skip
            if region is not None and region is not shared and region.shadow is not None:
                races.global_read(frame, flight.cut.access, region, *flight.cut.chosen(flight.lanes))
        if flight.reduction is not None:
            # What is there is one of the operands.
            cut = flight.cut
            cut.access._check_valid(
                frame, shared, cut.targets(flight.target) * cut.access.width, np.repeat(flight.lanes, len(cut.place))
            )
        else:
            _poison(shared, flight.target, flight.span)
        if machine.lands_at_once():
            self._land(frame, flight)
            self._still_reading(frame, [flight])
            machine.part(Mbarriers).landed(frame, flight.ids, flight.bytes, flight.instruction)
        else:
            self.loads.append(flight)

    def _check_beside(self, flight: BulkLoads) -> None:
        """A barrier must lie in the block into which is copied, and shared memory that is read in the lane's own."""
        machine = self.machine
        stride = machine.shared.stride
        apart = machine.part(Mbarriers).slot[flight.ids] * _BARRIER_BYTES // stride != flight.target // stride
        if apart.any():
            bad = int(np.argmax(apart))
            block, _ = machine.place_of(int(flight.target[bad]) // stride * machine.warps * 32)
            name = machine.part(Mbarriers).name(int(machine.part(Mbarriers).slot[flight.ids[bad]]))
            what = f"a copy into shared memory of block {block}, which completes on {name}"
            raise machine.misuse(flight.instruction, flight.lanes[bad], what)
        if flight.cut.region is machine.shared:
            foreign = flight.cut.index[:, 0] // stride != machine.lane_cta[flight.lanes]
            if foreign.any():
                what = "a copy out of shared memory of another block, which only that block can copy"
                raise machine.misuse(flight.instruction, flight.lanes[np.argmax(foreign)], what)

    def owed(self, ids: Array) -> Array:
        """Bytes under way to each barrier."""
        total = np.zeros(self.machine.part(Mbarriers).count, np.int64)
        for flight in self.loads:
            np.add.at(total, flight.ids, flight.bytes)
        return total[ids]

    def land(self, frame: Frame, ids: Array, transactions: Array) -> Array:
        """Land loads, in the order of their issue, as long as their barriers are owed bytes.

        Args:
            frame: the step.
            ids: barriers [k] whose phase somebody needs.
            transactions: int64, by barrier: bytes that it is owed; those that land are taken off.

        Returns:
            bool [barriers], those on which something landed.
        """
        wanted = np.zeros(len(transactions), bool)
        wanted[ids] = True
        touched = np.zeros(len(transactions), bool)
        left, landed = [], []
        for flight in self.loads:
            which = wanted[flight.ids] & (transactions[flight.ids] > 0)
            if not which.any():
                left.append(flight)
                continue
            part = flight
            if not which.all():
                left.append(flight.some(~which))
                part = flight.some(which)
            self._land(frame, part)
            np.add.at(transactions, part.ids, -part.bytes)
            touched[part.ids] = True
            landed.append(part)
        self.loads = left
        self._still_reading(frame, landed)
        return touched

    def _land(self, frame: Frame, flight: BulkLoads) -> None:
        machine, cut, shared = self.machine, flight.cut, self.machine.shared
        machine.tracer.copies("land", flight.instruction, flight.lanes, flight.bytes)
        machine.tracer.mbarrier("expect", flight.instruction, flight.lanes, flight.ids, -flight.bytes)
        width = cut.access.width
        if not (flight.reduction is None and _bring_at_once(frame, cut, flight.lanes, shared, flight.target)):
            brought = _fetch(frame, cut, flight.lanes)
            _bring(shared, width, cut.targets(flight.target), brought, len(flight.lanes), flight.reduction)
        if machine.clocks is not None:
            own = self.agents(flight.ids)
            if flight.maps:
                landed = races.agent_records(frame, flight.lanes, own) + np.int64(machine.clocks.now << STEP_SHIFT)
                MapReads.landed(flight.maps, landed)
            self._shadow.filled(frame, flight.target, flight.span, flight.lanes, own, flight.flags)
            if cut.region is shared:
                used = list(cut.index)
                self._shadow.drained(frame, cut.access, cut.index[:, 0], flight.span, flight.lanes, used, own)
            elif cut.region is not None and cut.region.shadow is not None:
                agents = cut.chosen(own)[1]
                races.global_read_done(frame, cut.access, cut.region, *cut.chosen(flight.lanes), agents)
        machine.progress()

    def covers(self, byte: int) -> bool:
        """Whether a load to byte `byte` of shared memory, that of all CTAs, is under way."""
        return any(bool(((f.target <= byte) & (byte < f.target + f.span)).any()) for f in self.loads)

    # Stores

    def store(self, frame: Frame, flight: BulkStores) -> None:
        """Stores are issued.

        Raises:
            MemoryFault: their source is not initialised.
        """
        machine, shared = self.machine, self.machine.shared
        machine.progress()
        machine.tracer.copies("copy", flight.instruction, flight.lanes, flight.span)
        index, who = flight.read()
        flight.access._check_valid(frame, shared, index, who)
        if machine.clocks is not None:
            self._shadow.drain(frame, flight.access, shared, flight.source, flight.span, flight.lanes, flight.used())
            region = flight.cut.region
            if region is not None and region.shadow is not None:
                many = flight.reduction is None and flight.lanes.size > 1
                first = flight.firsts() if many else np.ones(flight.lanes.size, bool)
                alone = flight if first.all() else flight.some(first)
                index, who = alone.cut.chosen(alone.lanes)
                element = 0
                if flight.reduction is not None:
                    element = flight.reduction.bytes
                    flags = races.combining(region, index, flight.cut.access.width, element)
                    flight = replace(flight, flags=flags)
                races.global_write(frame, flight.cut.access, region, index, who, flight.flags, element)
                if not first.all():
                    twins = flight.some(~first)
                    races.warn_of_twins(frame, flight.cut.access, region, twins.cut.chosen(twins.lanes), index, who)
        if flight.reduction is not None and flight.cut.region is not None and flight.cut.region.valid is not None:
            # What is there is one of the operands.
            flight.cut.access._check_valid(frame, flight.cut.region, *flight.cut.chosen(flight.lanes))
        if machine.lands_at_once():
            flight = replace(flight, data=self._words(frame, flight))
            if machine.lands_at_once():
                self._put(flight)
                flight = replace(flight, written=True)
        self._unread.append(flight)

    def wait(self, frame: Frame, lanes: Array, keep: int, reads_only: bool) -> None:
        """`lanes` wait for all their groups but the last `keep`, to have read their sources or to be complete."""
        limit = np.full(self.machine.lanes, -1, np.int64)
        limit[lanes] = self.group[lanes] - keep
        if self.machine.clocks is not None:
            reads_of(self.machine).waited(frame, lanes, limit[lanes])
        reading, self._unread = _split(self._unread, limit)
        for flight in self._in_any_order(reading):
            self._unwritten.append(self._read(frame, flight))
        self._still_reading(frame, reading)
        if reads_only:
            return
        writing, self._unwritten = _split(self._unwritten, limit)
        if writing:
            # What the threads do before and after the wait has other steps than what they have waited for.
            self.machine.tick(self.machine.launch.clock + 1)
        for flight in self._in_any_order(writing):
            self._write(flight)
            region = flight.cut.region
            if region is not None and region.shadow is not None:
                index, who = flight.cut.chosen(flight.lanes)
                races.global_write_done(frame, flight.cut.access, region, index, who, flight.flags)
        self._still_combining(frame, writing)
        if writing:
            self.machine.tick(self.machine.launch.clock + 1)

    def _still_reading(self, frame: Frame, done: Sequence[BulkLoads | BulkStores]) -> None:
        """Some copies have read shared memory: others of the same threads have not, be it the same bytes."""
        if self.machine.clocks is None:
            return
        shared = self.machine.shared
        under_way: list[BulkLoads | BulkStores] = [*self._unread, *self.loads]
        for lanes, source, span in (each.reads(shared) for each in done):
            # Most loads read global memory.
            for left, theirs, width in (each.reads(shared) for each in under_way if lanes.size):
                apart = theirs[:, None] - source
                which = ((left[:, None] == lanes) & (apart < span) & (-apart < width)).any(axis=1)
                if which.any():
                    self._shadow.still_draining(frame, theirs[which], width, left[which])

    def _still_combining(self, frame: Frame, done: list[BulkStores]) -> None:
        """Some stores are complete: others of the same threads, in later groups, are not, be it the same bytes.

        Only those that combine may be under way beside one another.
        """
        if self.machine.clocks is None:
            return
        for left in (*self._unread, *self._unwritten):
            region = left.cut.region
            if left.reduction is None or region is None or region.shadow is None:
                continue
            beside = [other.lanes for other in done if other.reduction is not None and other.cut.region is region]
            if beside and (which := np.isin(left.lanes, np.concatenate(beside))).any():
                part = left.some(which)
                races.global_write_goes_on(frame, part.cut.access, region, *part.cut.chosen(part.lanes), part.flags)

    def _in_any_order(self, flights: list[BulkStores]) -> list[BulkStores]:
        """Stores of one group may be carried out in any order, those of an earlier one come first."""
        order = self.machine.any_order(len(flights))
        if order is None:
            return flights
        return sorted((flights[number] for number in order), key=lambda flight: int(flight.groups.min()))

    def _read(self, frame: Frame, flight: BulkStores) -> BulkStores:
        if flight.data is None:
            flight = replace(flight, data=self._words(frame, flight))
        if self.machine.clocks is not None:
            used = flight.used()
            self._shadow.drained(frame, flight.access, flight.source, flight.span, flight.lanes, used)
        return flight

    def _words(self, frame: Frame, flight: BulkStores) -> Array:
        """The words that a store finds in shared memory."""
        machine, shared = self.machine, self.machine.shared
        machine.tracer.copies("land", flight.instruction, flight.lanes, flight.span)
        flight.access._check_valid(frame, shared, *flight.read())
        data = shared.words(flight.access.width).take(flight.cut.targets(flight.source), axis=0)
        return data.reshape(*flight.cut.index.shape, *data.shape[1:])

    def _write(self, flight: BulkStores) -> None:
        if not flight.written:
            self._put(flight)

    def _put(self, flight: BulkStores) -> None:
        """Write the words of a store into global memory."""
        cut = flight.cut
        if cut.region is None:
            return
        width = cut.access.width
        index, data = cut.index, flight.data
        if cut.inside is not None:
            index, data = index[cut.inside], data[cut.inside]
        _bring(cut.region, width, index // width, data, 1 if cut.inside is not None else len(index), flight.reduction)
        if cut.region.watch is not None:
            places, lanes = cut.chosen(flight.lanes)
            tell_watch(self.machine, flight.instruction, cut.region, places, width, lanes)
        self.machine.progress()

    # The end

    def leave(self, lanes: Array) -> None:
        """`lanes` (bool of all lanes) exit.

        Shared memory is another CTA's once a CTA has ended, and nobody but the thread that issued a store can wait for
        its group (PTX ISA, `cp.async.bulk.wait_group`). If it exits without, nothing orders the read before that end.

        Raises:
            MisuseError: a store of theirs has not read its source, if races are looked for, or a load into a CTA that
                ends is under way.
        """
        if not (self._unread or self._unwritten or self.loads):
            return
        limit = np.where(lanes, np.iinfo(np.int64).max, -1)
        reading, self._unread = _split(self._unread, limit)
        if reading and self.machine.checks.races:
            flight = reading[0]
            what = "the thread exits without having waited until its bulk copy has read shared memory"
            raise self.machine.misuse(flight.instruction, flight.lanes[np.argmax(lanes[flight.lanes])], what)
        # Where nobody looks for a missing order, the copy reads what is there before the memory is another CTA's.
        frame = Frame(self.machine, lanes, int(np.count_nonzero(lanes)), False)
        self._unwritten += [self._read(frame, flight) for flight in reading]
        writing, self._unwritten = _split(self._unwritten, limit)
        for flight in self._in_any_order(writing):
            self._write(flight)
        machine = self.machine
        alive: Array = machine.alive.reshape(machine.ctas, -1).any(axis=1)
        for load in self.loads:
            if load.cut.region is machine.shared:
                lost = ~alive[load.cut.index[:, 0] // machine.shared.stride]
                if lost.any():
                    what = "the block exits while its shared memory is read by a bulk copy that nobody has waited for"
                    raise machine.misuse(load.instruction, load.lanes[np.argmax(lost)], what)
            over = ~alive[load.target // machine.shared.stride]
            if over.any():
                row = int(np.argmax(over))
                name = machine.part(Mbarriers).name(int(machine.part(Mbarriers).slot[load.ids[row]]))
                what = f"the block ends while {load.bytes} bytes are under way to it, which complete on {name}"
                raise machine.misuse(load.instruction, load.lanes[row], what)


def _split(flights: list[BulkStores], limit: Array) -> tuple[list[BulkStores], list[BulkStores]]:
    """Stores of groups below the limit of their lane, and the others."""
    return split(flights, lambda flight: flight.groups < limit[flight.lanes])


def _bring(region: Region, width: int, place: Array, words: Array, copies: int, reduction: Reduction | None) -> None:
    """Write words at word numbers `place`, or combine them, one of so many equal copies after another."""
    if reduction is None:
        region.write(width, place, words)
        return
    flat = place.reshape(copies, -1)
    for here, brought in zip(flat, words.reshape(copies, flat.shape[1], *words.shape[place.ndim :]), strict=True):
        region.write(width, here, reduction(region.read(width, here), brought))


def _poison(shared: Region, target: Array, span: int) -> None:
    """`span` bytes of shared memory from each of `target` [n] on are not written any more."""
    assert shared.valid is not None
    assert 0 <= int(target.min()) <= int(target.max()) <= min(shared.data.size, shared.valid.size) - span
    target = np.ascontiguousarray(target, np.int64)
    boxes.functions().poison(address(shared.data), address(shared.valid), address(target), len(target), span)


def _bring_at_once(frame: Frame, cut: Cut, lanes: Array, shared: Region, target: Array) -> bool:
    """Write the words of loads into shared memory, from bytes `target` [n] on, if nothing about them is special."""
    width, region = cut.access.width, cut.region
    if region is None or region is shared or region.poisoned or width not in boxes.WIDTHS:
        return False
    if shared.journal is not None or shared.valid is None:
        return False
    if region.valid is not None:
        cut.access._check_valid(frame, region, *cut.chosen(lanes))
    begin, offset, target, place = (
        np.ascontiguousarray(each, np.int64) for each in (cut.begin, cut.offset, target, cut.place)
    )
    inside = None if cut.inside is None else np.ascontiguousarray(cut.inside)
    # Native code does not ask where it writes; where it reads was checked at the issue.
    low, high = int(target.min() + place.min()), int(target.max() + place.max()) + width
    assert 0 <= low < high <= min(shared.data.size, shared.valid.size)
    copies = np.zeros(len(BoxPlaces), np.int64)
    copies[BoxPlaces.BEGIN] = address(begin)
    copies[BoxPlaces.OFFSET] = address(offset)
    copies[BoxPlaces.STRIDE] = 0 if offset.ndim == 1 else offset.shape[1]
    copies[BoxPlaces.INSIDE] = 0 if inside is None else address(inside)
    copies[BoxPlaces.TARGET] = address(target)
    copies[BoxPlaces.PLACE] = address(place)
    boxes.functions().land(
        address(shared.data), address(shared.valid), address(region.data), address(copies), len(begin),
        len(place), width, cut.fill * _EVERY_16_BITS,
    )  # fmt: skip
    return True


def _fetch(frame: Frame, cut: Cut, lanes: Array) -> Array:
    """The words of a load [n * m, ...], the fill outside the tensor."""
    width, region = cut.access.width, cut.region
    dtype = np.dtype(f"u{min(width, 8)}")
    fill = dtype.type(cut.fill * (_EVERY_16_BITS & np.iinfo(dtype).max))
    if region is None:
        return np.full((cut.index.size, 2) if width > 8 else cut.index.size, fill, dtype)
    if region.valid is not None:
        cut.access._check_valid(frame, region, *cut.chosen(lanes))
    if cut.inside is None:
        return region.read(width, (cut.index // width).ravel())
    found = region.read(width, (np.where(cut.inside, cut.index, 0) // width).ravel())
    found[~cut.inside.ravel()] = fill
    return found
