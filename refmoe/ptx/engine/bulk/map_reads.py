"""Tensor maps that copies under way go by: nobody may rewrite one before they are done with it.

A tensor copy reads its map in the course of the copy (PTX ISA, "cp.async.bulk.wait_group": "reading from the
tensormap" is part of a bulk operation, and of what `.read` waits for). So the map belongs to a load until whoever
rewrites it comes after the end of the load: by its mbarrier, or because the thread that issued it has since committed
and waited for its bulk group, as CUTLASS does with its loads. It belongs to a store until its thread has waited for its
group, `.read` or not.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import numpy as np

from refmoe.ptx.engine.frame import Frame
from refmoe.ptx.engine.lanes import Lanes
from refmoe.ptx.engine.races import RaceShadow
from refmoe.ptx.errors import RaceError
from refmoe.ptx.state.memory import Region
from refmoe.ptx.state.records import STEP_SHIFT
from refmoe.ptx.state.spaces import WINDOW_BITS
from refmoe.ptx.state.tensormap import MAP_BYTES
from refmoe.ptx.text.syntax import Instruction

Array = Any
_LANES = 32
# Reads of one map that are kept before those that others stand for are forgotten.
_MANY = 128


@dataclass(slots=True)
class MapRead:
    """A copy of one thread that goes by a map.

    Attributes:
        instruction: of the copy.
        thread: of the launch.
        group: the bulk group that its next commit closes.
        done: records of its end: who comes after one of them comes after the read.
    """

    instruction: Instruction
    thread: int
    group: int
    done: list[int] = field(default_factory=list)


class MapReads:
    """The reads of one launch, in so far as somebody may write the maps."""

    def __init__(self) -> None:
        self._reads: dict[int, list[MapRead]] = {}
        # Where they are, as long as there are no others.
        self._addresses: Array = np.zeros(0, np.uint64)
        # Of those that no wait for a group has covered, by thread.
        self._open: dict[int, list[MapRead]] = {}

    def begin(
        self, frame: Frame, instruction: Instruction, address: Array, lanes: Array, groups: Array
    ) -> tuple[MapRead | None, ...]:
        """Copies of `lanes` [n] that go by the maps at `address` [n] are issued; None for maps that nobody writes."""
        machine, found = frame.machine, list[MapRead | None]()
        # By window: whether somebody may write there, and looks for races.
        kept: dict[int, bool] = {}
        threads = (lanes + machine.first_thread).tolist()
        for at, thread, group in zip(address.tolist(), threads, groups.tolist(), strict=True):
            keeps = kept.get(at >> WINDOW_BITS)
            if keeps is None:
                keeps = kept[at >> WINDOW_BITS] = self._keeps(machine, at)
            if not keeps:
                found.append(None)
                continue
            read = MapRead(instruction, thread, group)
            held = self._reads.get(at)
            if held is None:
                held = self._reads[at] = []
            elif len(held) > _MANY:
                held[:] = _latest(held)
            held.append(read)
            opened = self._open.get(thread)
            if opened is None:
                opened = self._open[thread] = []
            opened.append(read)
            found.append(read)
        return tuple(found)

    def _keeps(self, machine: Lanes, address: int) -> bool:
        region = machine.arena.window(address)
        if machine.clocks is None or region is None or not isinstance(region.shadow, RaceShadow):
            return False
        if region.shadow.maps is None:
            region.shadow.maps = self
            machine.refresh(region)
        return True

    @staticmethod
    def landed(reads: tuple[MapRead | None, ...], records: Array) -> None:
        """Copies have landed: `records` [n] are those of the agents on whose barriers they complete."""
        for read, record in zip(reads, records.tolist(), strict=True):
            if read is not None:
                read.done.append(record)

    def waited(self, frame: Frame, lanes: Array, limit: Array) -> None:
        """`lanes` [n] have waited for their groups before `limit` [n]."""
        machine = frame.machine
        if not self._open:
            return
        now = machine.clocks.now << STEP_SHIFT
        for lane, before in zip(lanes.tolist(), limit.tolist(), strict=True):
            thread = lane + machine.first_thread
            left = []
            for read in self._open.get(thread, ()):
                if read.group < before:
                    read.done.append(now + thread)
                else:
                    left.append(read)
            if thread in self._open:
                self._open[thread] = left

    def check(
        self, frame: Frame, instruction: Instruction, region: Region, index: Array, lanes: Array, width: int
    ) -> None:
        """`lanes` [n] are about to write `width` bytes each at byte `index` [n] of a region.

        Raises:
            RaceError: a copy goes by a map there, and its end is not ordered before the write.
        """
        for address in self._near(region, index, width):
            first, reads = address - region.base, self._reads[address]
            hit = np.flatnonzero((index < first + MAP_BYTES) & (index + width > first))
            if not hit.size or not 0 <= first < region.size:
                continue
            # Lanes that do as well or as badly as one another are asked for once.
            for lane in dict.fromkeys(_asked(instruction, int(lanes[row])) for row in hit.tolist()):
                late = _first_open(frame, instruction, reads, lane)
                if late is not None:
                    who = next(int(lanes[row]) for row in hit if _asked(instruction, int(lanes[row])) == lane)
                    self._report(frame, instruction, region, first, who, late)
                    break

    def _near(self, region: Region, index: Array, width: int) -> list[int]:
        """The maps, at each of which one of `width` bytes from byte `index` [n] of a region on may lie."""
        if self._addresses.size != len(self._reads):
            self._addresses = np.array(list(self._reads), np.uint64)
        first = (self._addresses - np.uint64(region.base)).view(np.int64)
        begins = np.sort(index)
        after = np.searchsorted(begins, first - width, "right")
        near = begins[np.minimum(after, len(begins) - 1)] < first + MAP_BYTES
        found: list[int] = self._addresses[near & (after < len(begins))].tolist()
        return found

    def _report(
        self, frame: Frame, instruction: Instruction, region: Region, first: int, lane: int, read: MapRead
    ) -> None:
        machine, shadow = frame.machine, region.shadow
        assert isinstance(shadow, RaceShadow)
        fields = machine.at(lane, instruction)
        other_block, other_thread = machine.place_of_thread(read.thread)
        what = "nothing orders its end before" if read.done else "it is not known to be complete"
        shadow.found(
            machine,
            RaceError(
                f"tensor map race on byte {first} of {region.name} ({region.space}): block {fields['block']} thread "
                f"{fields['thread']} writes the tensor map there, by which a copy of thread {other_thread} of block "
                f"{other_block} goes, and {what}; {machine.describe(instruction)}",
                kind="tensor map",
                space=region.space,
                buffer=region.name,
                offset=first,
                other_block=other_block,
                other_thread=other_thread,
                warning="",
                certain=True,
                earlier=read.instruction,
                among=other_thread,
                **fields,
            ),
            first,
            lane,
        )


def reads_of(machine: Lanes) -> MapReads:
    """Those of the launch of some lanes."""
    launch = machine.launch
    if launch.map_reads is None:
        launch.map_reads = MapReads()
    assert isinstance(launch.map_reads, MapReads)
    return launch.map_reads


def _whole(instruction: Instruction) -> bool:
    """Whether it is the whole warp's: `tensormap.cp_fenceproxy` comes after what any of its lanes has waited for."""
    return instruction.opcode.startswith("tensormap.cp_fenceproxy")


def _asked(instruction: Instruction, lane: int) -> int:
    """The lane that stands for one that rewrites a map: the first of its warp where the warp acts as one."""
    return lane & -_LANES if _whole(instruction) else lane


def _first_open(frame: Frame, instruction: Instruction, reads: list[MapRead], lane: int) -> MapRead | None:
    """The first copy whose end does not come before what a lane does now; None if there is none."""
    lanes = lane + np.arange(_LANES) if _whole(instruction) else np.array([lane])
    ends = np.array([record for read in reads for record in read.done], np.int64)
    whose = np.repeat(np.arange(len(reads)), [len(read.done) for read in reads])
    # Many ends are the same record: of copies by one thread that it waited for at once, or on one barrier.
    ends_once, again = np.unique(ends, return_inverse=True)
    done, who = np.repeat(ends_once, len(lanes)), np.tile(lanes, len(ends_once))
    own = (done >> STEP_SHIFT << STEP_SHIFT) + frame.machine.first_thread + who == done
    comes_after = (own | frame.machine.clocks.ordered(who, done)).reshape(-1, len(lanes)).any(axis=1)
    over = np.zeros(len(reads), bool)
    over[whose[comes_after[again]]] = True
    return None if over.all() else reads[int(np.argmin(over))]


def _latest(reads: list[MapRead]) -> list[MapRead]:
    """Reads without those that a later one, of the same thread with the same kinds of ends, stands for."""
    kept: dict[tuple[Any, ...], MapRead] = {}
    low = (1 << STEP_SHIFT) - 1
    for number, read in enumerate(reads):
        key = (read.thread, *(record & low for record in read.done)) if read.done else (read.thread, "open", number)
        kept[key] = read
    return list(kept.values())
