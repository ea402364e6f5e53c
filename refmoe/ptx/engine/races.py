"""Who accessed which byte when, and which accesses of different threads race.

Two accesses of one byte, one of them a write, race unless one happens before the other, see
`refmoe.ptx.engine.order.clocks`, or both are morally strong: strong, in scopes that have each other's thread, and of
the very same bytes.

Memory keeps the last write and some last reads of each granule. Where one record has to stand for the accesses of
several threads it is checked against all that these may have done. So what is kept here misses no race, but may suspect
one where there is none; a race that is not certain is looked for again by a launch that keeps everything.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from typing import Any, Protocol

import numpy as np

from refmoe.ptx.engine.cluster.memory import whose
from refmoe.ptx.engine.frame import Frame
from refmoe.ptx.engine.lanes import Lanes
from refmoe.ptx.engine.order.accessing import Accessing, Guarding
from refmoe.ptx.engine.order.clocks import LANES, Clocks
from refmoe.ptx.engine.order.combined import Combined
from refmoe.ptx.engine.order.granules import Granules
from refmoe.ptx.engine.order.polls import Poll
from refmoe.ptx.engine.order.witness import RaceWitness
from refmoe.ptx.engine.order.wording import sentence, whose_access
from refmoe.ptx.errors import RaceError
from refmoe.ptx.native import order
from refmoe.ptx.native.context import Row
from refmoe.ptx.native.order import OrderStatus
from refmoe.ptx.state.memory import Region
from refmoe.ptx.state.pages import PAGE_SHIFT, untouched
from refmoe.ptx.state.records import (
    ASYNCHRONOUS,
    BULK,
    GRID,
    GUARDED,
    LANE,
    PENDING,
    SEVERAL,
    SEVERAL_SHIFT,
    STEP_SHIFT,
    STRENGTH,
    STRENGTH_SHIFT,
    THREAD,
    WEAK,
    Several,
    excused,
    is_weaker,
    never,
)
from refmoe.ptx.text.syntax import Instruction

Array = Any
# (byte index, lane) of the words of rows, from those of the rows.
Words = Callable[[Array, Array], tuple[Array, Array]]

_OTHER_WARP = THREAD & ~LANE
_AGENTS = ASYNCHRONOUS | BULK
# Of global memory: the last reader, and the others.
_LAST_READERS = 2


class Rewriting(Protocol):
    """What knows of tensor maps in a region, see `refmoe.ptx.engine.bulk.map_reads`."""

    def check(
        self, frame: Frame, instruction: Instruction, region: Region, index: Array, lanes: Array, width: int
    ) -> None:
        """`lanes` [n] are about to write `width` bytes each at byte `index` [n] of a region."""
        ...


class Previous(Protocol):
    """What knows of the grid before this one, see `refmoe.ptx.engine.previous_grid`."""

    knows: Array

    def check(
        self, frame: Frame, instruction: Instruction, region: Region, index: Array, lanes: Array, width: int, does: str
    ) -> None:
        """`lanes` [n] access `width` bytes at `index` [n] of a region that it uses: `"read"`, `"write"` or `"both"`."""
        ...


def merge(before: int, mine: int, clocks: Clocks) -> int:
    """A record that stands for the accesses of two others, the later of which is `mine`.

    If one of them is of a copy nothing is known to come after it, so that all accesses will be kept.
    """
    cluster_threads = clocks.warps * LANES
    different = (before ^ mine) & int(THREAD)
    several = int(Several.LANES)
    if different & ~int(LANE):
        same = (before & int(THREAD)) // cluster_threads == (mine & int(THREAD)) // cluster_threads
        several = Several.WARPS if same else Several.CLUSTERS
    several = max(several, (before & int(SEVERAL)) >> SEVERAL_SHIFT)
    strength = min(before & int(STRENGTH), mine & int(STRENGTH))
    step = max(before >> STEP_SHIFT, mine >> STEP_SHIFT)
    rest = mine & int(THREAD | _AGENTS)
    if before & int(_AGENTS) or mine & int(BULK):
        rest |= int(ASYNCHRONOUS)
    return (step << STEP_SHIFT) | (several << SEVERAL_SHIFT) | strength | rest


class RaceShadow:
    """The last write, and reads, of each granule of a region, see `Granules`.

    Shared memory remembers the last read of every warp of its CTA, global memory only the last read of all, and one
    record for the others that are not ordered before it.

    Args:
        size: bytes.
        readers: warps of a CTA whose reads are kept apart; 0 keeps the last two only.
        columns: records of reads that a granule has, where that is not what `readers` needs.

    Attributes:
        witness: who takes down every access, or None.
        maps: what is asked before a write, if there are tensor maps in the region that copies go by; else None.
        guard: what is asked before a write, once there are objects in the region that nobody may overwrite; else None.
        previous: what is asked before an access, if the grid before this one uses the region; else None.
        combined: who combines what the region has, once bulk copies do; else None.
        copied: records of writes that bulk copies made, and that count as their threads' since these waited for them.
        delivered: steps in which lanes waited for `cp.async`, whose writes count as theirs from then on.
    """

    def __init__(self, size: int, readers: int, columns: int | None = None) -> None:
        self.readers = readers
        self.granules = Granules(size, columns or readers or _LAST_READERS)
        self._writes, self._reads = self.granules.writes, self.granules.reads
        # Of bytes that were accessed strongly, the widths of each scalar: bit n is set for 2^n bytes.
        self._widths: Array | None = None
        self.witness: RaceWitness | None = None
        self.maps: Rewriting | None = None
        self.guard: Guarding | None = None
        self.previous: Previous | None = None
        self.combined: Combined | None = None
        self._doubts = False
        self.copied: set[int] = set()
        self.delivered: set[int] = set()

    @property
    def tables(self) -> tuple[Array, ...]:
        """All memory of this."""
        widths = () if self._widths is None else (self._widths,)
        return self.granules.states, self.granules.used, self.granules.steps, self.granules.records, *widths

    @property
    def told(self) -> bool:
        """Whether somebody is told of every access, so that Python has to do it."""
        return self.witness is not None or self.maps is not None

    def admitted(self, warp: int) -> int:
        """Where it is kept which lanes may access the region, from a warp of the launch on, or 0 where all may."""
        return 0 if self.previous is None else self.previous.knows[warp:].ctypes.data

    def enter(self, row: Array) -> None:
        """Write into a region's row where the records lie, see `Row`."""
        self.granules.enter(row)
        row[Row.READERS] = self.readers
        if self.told:
            # For native code the region has no bytes, so that Python does every access.
            row[Row.SIZE] = 0

    def touched(self) -> Iterator[tuple[int, Array, Array]]:
        """See `Granules.touched`."""
        return self.granules.touched()

    def release(self) -> None:
        """Give memory back: nobody asks any more who accessed what."""
        self.granules.release()

    def _cover(self, index: Array, lanes: Array, width: int) -> tuple[Array, Array]:
        """Slots of the granules touched, and the lane of each."""
        at, row = self.granules.cover(index, width)
        return at, lanes if row is None else lanes[row]

    def _mine(self, frame: Frame, lanes: Array, flags: np.int64) -> Array:
        base = (frame.machine.clocks.now << STEP_SHIFT) + frame.machine.first_thread
        return lanes + np.int64(base + int(flags))

    def _flags(self, access: Accessing, index: Array) -> np.int64:
        """Those of an access."""
        return self.strength(index, access.width, access.unit, access.strength) if access.strength else WEAK

    def strength(self, index: Array, width: int, unit: int, strength: int) -> np.int64:
        """Flags of strong accesses of `width` bytes at `index` [n], each made of scalar ones of `unit` bytes.

        One of bytes that others accessed strongly in other widths is weak.
        """
        self._widths = untouched((self.granules.size,), np.uint8) if self._widths is None else self._widths
        places = index[:, None] + np.arange(width)
        held = self._widths[places] | np.uint8(unit)
        self._widths[places] = held
        # An access of one width may race with one before the last, which was of another.
        overlaps = bool((held != unit).any())
        return WEAK if overlaps else np.int64(strength << STRENGTH_SHIFT)

    def _in_order(
        self, frame: Frame, function: Any, region: Region, index: Array, lanes: Array, access: Accessing,
        flags: np.int64,
    ) -> bool:  # fmt: skip
        """Record accesses by a function of `refmoe.ptx.native.order`; False if something is wrong with one."""
        machine, width = frame.machine, access.width
        status = machine.orders(function, region, index, lanes, width, flags)
        if status == OrderStatus.COARSE:
            self.granules.refine(index >> PAGE_SHIFT, width.bit_length())
            status = machine.orders(function, region, index, lanes, width, flags)
        return status == OrderStatus.DONE

    def _conflicts(self, frame: Frame, lanes: Array, previous: Array, mine: Array, combines: bool = False) -> Array:
        """Positions whose previous access belongs to another lane and races with this one.

        `combines`: this one is of a bulk copy that combines what it brings with what is there, as others may.
        """
        machine = frame.machine
        other = ((previous ^ mine) & THREAD != 0) | (previous & (SEVERAL | _AGENTS) != 0)
        per_cta, per_cluster = machine.warps * LANES, machine.clocks.warps * LANES
        suspects = np.flatnonzero((previous != 0) & other & ~excused(previous, mine, per_cta, per_cluster))
        if not suspects.size:
            return suspects
        suspects = suspects[~machine.clocks.ordered(lanes[suspects], previous[suspects])]
        if self.combined is None or not suspects.size:
            return suspects
        # Accesses of one lane mostly find one set.
        pairs = np.stack([lanes[suspects], previous[suspects]], axis=1)
        each, which = np.unique(pairs, axis=0, return_inverse=True)
        fine = [self._is_fine(frame, lane, record, combines) for lane, record in each.tolist()]
        return suspects[~np.array(fine, np.bool_)[which.ravel()]]

    def note(
        self, frame: Frame, access: Accessing, region: Region, index: Array, lanes: Array, width: int, does: str
    ) -> None:
        """There will be accesses of `width` bytes at `index` [n] that do `"read"`, `"write"` or `"both"`."""
        if self.previous is not None:
            self.previous.check(frame, access.instruction, region, index, lanes, width, does)
        if self.maps is not None and does != "read":
            self.maps.check(frame, access.instruction, region, index, lanes, width)
        if self.guard is not None and does != "read":
            self.guard.check(access.instruction, index, lanes, width)
        if self.witness is not None:
            machine = frame.machine
            first = machine.first_cta * region.stride
            self.witness.note(
                region.name, access.instruction, machine.clocks.now, index + first, width, lanes + machine.first_thread,
                writes=does != "read", reads=does != "write",
            )  # fmt: skip

    def read(
        self, frame: Frame, access: Accessing, region: Region, index: Array, lanes: Array, asynchronous: bool = False
    ) -> None:
        """A load, or the load of a copy that is issued: it must not race with an earlier write."""
        self.note(frame, access, region, index, lanes, access.width, "read")
        flags = ASYNCHRONOUS if asynchronous else self._flags(access, index)
        if access.coherent and self._in_order(frame, order.functions().reads, region, index, lanes, access, flags):
            return
        at, who = self._cover(index, lanes, access.width)
        mine = self._mine(frame, who, flags)
        previous = self.written(at)
        # A strong read need not come after the strong write that took the place of a weaker one.
        for records in (previous, self.granules.weaker[at]) if flags & STRENGTH else (previous,):
            bad = self._conflicts(frame, who, records, mine)
            if bad.size:
                self._report_granules(frame, access, region, at, who, mine, bad, records[bad], "write-read")
        if not access.coherent:
            stale = np.flatnonzero(previous)
            if stale.size:
                self._report_granules(frame, access, region, at, who, mine, stale, previous[stale], "non-coherent")
            # Nothing comes after a read that may happen at any time.
            mine = never(mine)
        for place, lane, record in zip(at.tolist(), who.tolist(), mine.tolist(), strict=True):
            self._record_read(frame, place, lane, record)

    def texture_read(self, frame: Frame, access: Accessing, region: Region, index: Array, lanes: Array) -> None:
        """A read through the texture cache: of nothing that the grid wrote, in whatever order."""
        records = self.last_writes(index, access.width)
        if (written := np.flatnonzero(records)).size:
            first = written[0]
            self._report(frame, access, region, int(index[first]), lanes[first], records[first], "texture")

    def read_rows(
        self, frame: Frame, access: Accessing, region: Region, index: Array, lanes: Array, words: Words
    ) -> None:
        """Loads of rows at `index` [n], whose addresses `lanes` pass: `read` of the words `words(index, lanes)`.

        A row's words belong to lanes of one warp.
        """
        self.read(frame, access, region, *words(index, lanes))

    def _record_read(self, frame: Frame, at: int, lane: int, mine: int) -> None:
        """Enter the read of granule `at` by a lane: what `refmoe.ptx.native.order` does for many."""
        clocks = frame.machine.clocks
        column = (lane >> 5) % self.readers if self.readers else 0
        previous = int(self._reads[column, at])
        differs = (previous ^ mine) & int(_OTHER_WARP if not previous & int(_AGENTS) else THREAD | _AGENTS)
        if not self.readers and previous and differs:
            others = int(self._reads[1, at])
            if others and (is_weaker(others, mine) or not self._ordered(frame, lane, others)):
                previous = merge(others, previous, clocks)
            self._reads[1, at] = previous
        else:
            mine = self._last(frame, lane, previous, mine, by_read=True)
        self._reads[column, at] = mine

    def _ordered(self, frame: Frame, lane: int, record: int) -> bool:
        if self.combined is not None and self.combined.is_set(record):
            return self.combined.unordered(lane, record, self.ordering(frame)) is None
        return bool(frame.machine.clocks.is_ordered(lane, record))

    def _is_fine(self, frame: Frame, lane: int, record: int, combines: bool) -> bool:
        """Whether an access of a lane races with nobody of a record, which may be a set."""
        if self.combined is None or not combines:
            return self._ordered(frame, lane, record)
        ordered = self.ordering(frame)
        return all(self.combined.combines(each) or ordered(lane, each) for each in self.combined.members(record))

    def ordering(self, frame: Frame) -> Callable[[int, int], bool]:
        """Whether the access of a record comes before what a lane does now, or is its own."""
        clocks, first = frame.machine.clocks, frame.machine.first_thread

        def ordered(lane: int, record: int) -> bool:
            own = record & int(THREAD) == first + lane and not record & int(SEVERAL | _AGENTS)
            return own or bool(clocks.is_ordered(lane, record))

        return ordered

    def _last(self, frame: Frame, lane: int, previous: int, mine: int, by_read: bool = False) -> int:
        """The record that takes the place of another one of the same warp's reads, or of the writes."""
        if not previous:
            return mine
        other = (previous ^ mine) & int(THREAD) or previous & int(SEVERAL | _AGENTS)
        if other and not self._ordered(frame, lane, previous):
            return merge(previous, mine, frame.machine.clocks)
        if by_read and is_weaker(previous, mine):
            # A write that does not race with the strong read may race with the weak one before it.
            return merge(previous, mine, frame.machine.clocks)
        return mine

    def _unordered(
        self, frame: Frame, at: Array, who: Array, mine: Array, combines: bool = False
    ) -> list[tuple[Array, Array, str]]:
        """Conflicts of a write: (positions, their previous records, kind of race); `combines`: see `_conflicts`."""
        previous = self.written(at)
        bad = self._conflicts(frame, who, previous, mine, combines)
        found = [(bad, previous[bad], "write-write")]
        previous = self.granules.weaker[at]
        bad = self._conflicts(frame, who, previous, mine, combines)
        found.append((bad, previous[bad], "write-write"))
        previous = self._reads[:, at]
        columns, rows = np.nonzero(previous)
        if rows.size:
            records = previous[columns, rows]
            bad = self._conflicts(frame, who[rows], records, mine[rows])
            bad = bad[np.argsort(rows[bad], kind="stable")]
            found.append((rows[bad], records[bad], "read-write"))
        return [item for item in found if item[0].size]

    def _record_writes(self, frame: Frame, at: Array, who: Array, mine: Array) -> None:
        """Enter writes of granules `at`: what `refmoe.ptx.native.order` does for many."""
        self.keep_weaker(frame, at, mine)
        for place, lane, record in zip(at.tolist(), who.tolist(), mine.tolist(), strict=True):
            self._writes[place] = self._last(frame, lane, int(self._writes[place]), record)

    def keep_weaker(self, frame: Frame, at: Array, mine: Array) -> None:
        """Writes `mine` [n] take the place of the last ones of slots `at` [n], of which the weaker ones are kept."""
        last = self._writes[at]
        self.keep(frame, at, last, (last != 0) & (last & STRENGTH < mine & STRENGTH))

    def keep(self, frame: Frame, at: Array, last: Array, which: Array) -> None:
        """Of the last writes `last` [n] of slots `at` [n], whose place others take, keep some beside these."""
        kept, weaker = self.granules.weaker, np.flatnonzero(which)
        if weaker.size:
            places, records = at[weaker], last[weaker]
            # What comes before a weak write comes before whatever comes after it.
            for row in np.flatnonzero((kept[places] != 0) & (records & STRENGTH != 0)).tolist():
                records[row] = self._together(frame, int(kept[places[row]]), int(records[row]))
            self.granules.use_weaker(places)
            kept[places] = records

    @contextmanager
    def doubting(self, doubts: bool) -> Iterator[None]:
        """Races in a `with` block are but suspected: one of both may count as weak for what was done to other bytes."""
        before, self._doubts = self._doubts, doubts
        try:
            yield
        finally:
            self._doubts = before

    def _together(self, frame: Frame, before: int, mine: int) -> int:
        """A record that stands for the accesses of two others."""
        if self.combined is not None and (self.combined.is_set(before) or self.combined.is_set(mine)):
            return self.combined.together(before, mine)
        return merge(before, mine, frame.machine.clocks)

    def before_write(
        self, frame: Frame, access: Accessing, region: Region, index: Array, lanes: Array, words: Array
    ) -> None:
        """A store: it must not race with an earlier access. One that writes what is there already is a warning."""
        self.note(frame, access, region, index, lanes, access.width, "write")
        self._refuse_among(frame, access, region, index, lanes)
        flags = self._flags(access, index)
        if self._in_order(frame, order.functions().writes, region, index, lanes, access, flags):
            return
        at, rows = self.granules.cover(index, access.width)
        who = lanes if rows is None else lanes[rows]
        mine = self._mine(frame, who, flags)
        for bad, previous, kind in self._unordered(frame, at, who, mine):
            row = bad if rows is None else rows[bad]
            differs = region.words(access.width)[index[row] // access.width] != words[row]
            differs = differs if differs.ndim == 1 else differs.any(axis=1)
            for which, warning in ((differs, ""), (~differs, "same value")):
                self._report_granules(frame, access, region, at, who, mine, bad[which], previous[which], kind, warning)
        self._record_writes(frame, at, who, mine)

    def after_write(
        self, frame: Frame, access: Accessing, region: Region, index: Array, lanes: Array, words: Array
    ) -> None:
        """Two lanes of one step must not have written different values to one place."""
        differs = region.words(access.width)[index // access.width] != words
        differs = differs if differs.ndim == 1 else differs.any(axis=1)
        if differs.any() and not access.strength:
            row = int(np.argmax(differs))
            at, _ = self.granules.cover(index[row : row + 1], access.width)
            self._report(frame, access, region, int(index[row]), lanes[row], self._writes[at[0]], "write-write")

    def atomic(self, frame: Frame, access: Accessing, region: Region, index: Array, lanes: Array) -> None:
        """An atomic: it must not race with an earlier access that is not morally strong with it."""
        self.note(frame, access, region, index, lanes, access.width, "both")
        self._refuse_among(frame, access, region, index, lanes)
        self._modify(frame, access, region, index, lanes, self._flags(access, index))

    def _refuse_among(self, frame: Frame, access: Accessing, region: Region, index: Array, lanes: Array) -> None:
        """Lanes that write one place in one step need scopes that have each other."""
        if not 0 < access.strength < GRID:
            return
        order = np.argsort(index, kind="stable")
        again = np.flatnonzero(index[order[1:]] == index[order[:-1]])
        one, other = order[again], order[again + 1]
        machine, mine = frame.machine, self._mine(frame, lanes, np.int64(access.strength << STRENGTH_SHIFT))
        per_cta, per_cluster = machine.warps * LANES, machine.clocks.warps * LANES
        for row in np.flatnonzero(~excused(mine[one], mine[other], per_cta, per_cluster)).tolist():
            at = int(other[row])
            self._report(frame, access, region, int(index[at]), lanes[at], mine[one[row]], "write-write")

    def copy(
        self, frame: Frame, access: Accessing, region: Region, index: Array, lanes: Array, strong: bool = False,
        in_group: bool = False,
    ) -> None:  # fmt: skip
        """A copy to here is issued: it must not race with an earlier access. What it will write is not known yet.

        `strong`: it is an atomic, which does not race with others. `in_group`: its lane will have `waited` for it.
        """
        self.note(frame, access, region, index, lanes, access.width, "write")
        flags = self._flags(access, index) if strong else WEAK
        self._modify(frame, access, region, index, lanes, ASYNCHRONOUS | flags)

    def _modify(
        self, frame: Frame, access: Accessing, region: Region, index: Array, lanes: Array, flags: np.int64
    ) -> None:
        writes = order.functions().writes
        # Native code knows nothing of sets, and would take one record for all of them.
        if self.combined is None and self._in_order(frame, writes, region, index, lanes, access, flags):
            return
        at, who = self._refuse_write(frame, access, region, index, lanes, access.width, flags)
        mine = self._mine(frame, who, flags)
        if flags & ASYNCHRONOUS and not flags & STRENGTH:
            # Copies of one step into one place come in any order.
            sorted_at = np.argsort(at, kind="stable")
            for row in np.flatnonzero(at[sorted_at[1:]] == at[sorted_at[:-1]])[:1].tolist():
                one, other = sorted_at[row], sorted_at[row + 1]
                offset = self.granules.byte(int(at[other]))
                self._report(frame, access, region, offset, who[other], mine[one], "write-write")
        self._record_writes(frame, at, who, mine)

    def _refuse_write(
        self, frame: Frame, access: Accessing, region: Region, index: Array, lanes: Array, width: int, flags: np.int64,
        combines: bool = False,
    ) -> tuple[Array, Array]:  # fmt: skip
        """Report an access that is not ordered before writes of `width` bytes: (their slots, the lane of each).

        `combines`: they are of bulk copies, see `_conflicts`.
        """
        at, who = self._cover(index, lanes, width)
        mine = self._mine(frame, who, flags)
        for bad, previous, kind in self._unordered(frame, at, who, mine, combines):
            self._report_granules(frame, access, region, at, who, mine, bad, previous, kind)
        return at, who

    def ordered_after(
        self, frame: Frame, access: Accessing, region: Region, index: Array, lanes: Array, records: Array,
        kind: str = "write-read",
    ) -> None:  # fmt: skip
        """Each lane's use of an object must come after `records` [n]: the write that made it, or earlier uses."""
        asked = frame.machine.orders(order.functions().follows, region, records, lanes, access.width, WEAK)
        if asked == OrderStatus.DONE:
            return
        mine = self._mine(frame, lanes, WEAK)
        bad = self._conflicts(frame, lanes, records, mine)
        if bad.size:
            first = bad[0]
            self._report(frame, access, region, int(index[first]), lanes[first], records[first], kind)

    def written(self, at: Array) -> Array:
        """The records of the last writes of slots `at` [n], also of what is guarded."""
        held: Array = self._writes[at]
        guard = self.guard
        if guard is not None:
            for place in np.flatnonzero(held == GUARDED).tolist():
                held[place] = guard.made(self.granules.byte(int(at[place])))
        return held

    def mark(self, index: Array, width: int, records: Array) -> None:
        """`records` [n] take the place of those of the last writes of `width` bytes at `index` [n]."""
        at, row = self.granules.cover(index, width)
        self._writes[at] = records if row is None else records[row]

    def last_writes(self, index: Array, width: int) -> Array:
        """The record of the last write of each access at `index` [n]; 0 where nothing wrote."""
        at, row = self.granules.cover(index, width)
        latest = np.zeros(len(index), np.int64)
        np.maximum.at(latest, np.arange(len(index)) if row is None else row, self._writes[at])
        return latest

    def written_by_one(self, index: Array, width: int) -> Array:
        """The record of the last write of each access at `index` [n], 0 where its bytes have several."""
        at, row = self.granules.cover(index, width)
        found = self._writes[at]
        if row is None:
            return found
        first = np.flatnonzero(np.r_[True, row[1:] != row[:-1]])
        same = np.minimum.reduceat(found, first) == np.maximum.reduceat(found, first)
        return np.where(same, found[first], 0)

    def records(self, begin: int, end: int) -> tuple[Array, Array]:
        """(byte index [n], record [n]) of all that is known of the bytes from `begin` to `end`."""
        return self.granules.within(begin, end)

    @staticmethod
    def thread_of(record: int) -> int:
        """The thread of the launch in a record."""
        return int(record & int(THREAD))

    def waited(self, frame: Frame, access: Accessing, index: Array, lanes: Array) -> None:
        """`lanes` have waited for their copies, which from now on count as accesses of their own."""
        at, who = self._cover(index, lanes, access.width)
        mine = self._mine(frame, who, WEAK)
        self.delivered.add(frame.machine.clocks.now)
        columns = [who // LANES % self.readers] if self.readers else range(len(self._reads))
        for records, place in ((self._writes, (at,)), *((self._reads, (column, at)) for column in columns)):
            held = records[place]
            copied = (held & ASYNCHRONOUS != 0) & ((held ^ mine) & THREAD == 0) & (held >> STEP_SHIFT != PENDING)
            # One that stands for the copies of other threads too says nothing of theirs: all accesses will be kept.
            copied &= held & SEVERAL == 0
            if copied.any():
                # Of copies of the same bytes only some are of those who wait.
                mine_alone = tuple(each[copied] if isinstance(each, np.ndarray) else each for each in place)
                records[mine_alone] = mine[copied]

    def _report_granules(
        self, frame: Frame, access: Accessing, region: Region, at: Array, who: Array, mine: Array, bad: Array,
        records: Array, kind: str, warning: str = "",
    ) -> None:  # fmt: skip
        """`_report` of granules at slots `at[bad]`, accessed by lanes `who[bad]`.

        It is of one of them, unless a witness counts: of the first that is a fault, if there is one.
        """
        pairs = list(zip(bad.tolist(), records.tolist(), strict=True))
        if self.witness is None and len(pairs) > 1:
            pairs = [self._worst(frame, access, who, mine, pairs, kind, warning)]
        for position, record in pairs:
            offset = self.granules.byte(int(at[position]))
            self._report(frame, access, region, offset, who[position], record, kind, warning, int(mine[position]))

    def _worst(
        self, frame: Frame, access: Accessing, who: Array, mine: Array, pairs: list[tuple[int, int]], kind: str,
        warning: str,
    ) -> tuple[int, int]:  # fmt: skip
        """The first (position, record) that is a fault, or else the first."""
        if warning:
            return pairs[0]
        seen: set[tuple[int, int]] = set()
        for position, record in pairs:
            lane = int(who[position])
            if (lane, record) in seen:
                continue
            seen.add((lane, record))
            if self._poll(frame, access, lane, record, int(mine[position]), kind) is None:
                return position, record
        return pairs[0]

    def unfenced_init(
        self, frame: Frame, access: Accessing, region: Region, offset: int, lane: int, made: int
    ) -> None:  # fmt: skip
        """A copy is to complete on the mbarrier at a byte, and no proxy fence lies behind its `mbarrier.init`."""
        self._report(frame, access, region, offset, lane, made, "proxy", "unfenced init")

    def _poll(self, frame: Frame, access: Accessing, lane: int, record: int, mine: int, kind: str) -> Poll | None:
        """The poll without an acquire that makes a race but a warning, or None."""
        if kind not in ("write-read", "read-write", "write-write"):
            return None
        if not self._is_certain(frame, lane, access, record, mine, kind):
            return None
        strong, one = frame.machine.strong, record & ~int(SEVERAL)
        poll = strong.unacquired(lane, one)
        return poll if poll is not None and poll.softens(kind) and not strong.fenced_in_vain(poll, one) else None

    def _report(
        self, frame: Frame, access: Accessing, region: Region, offset: int, lane: Any, record: Any, kind: str,
        warning: str = "", mine: int = 0, width: int = 1,
    ) -> None:  # fmt: skip
        """Raise the error of a race on byte `offset` of all owners' bytes, or keep it where it is but a warning."""
        machine = frame.machine
        if self.combined is not None and self.combined.is_set(int(record)):
            member = self.combined.unordered(int(lane), int(record), self.ordering(frame))
            record = record if member is None else member
        owner, earlier = whose(machine, region, offset), None
        byte = offset + machine.first_cta * region.stride
        if self.witness is not None:
            earlier = self.witness.earlier(region.name, byte, int(record), kind)
        if region.stride:
            offset %= region.stride
        fields = machine.at(lane, access.instruction)
        record = int(record)
        other_block, other_thread = machine.place_of_thread(record & int(THREAD))
        several = bool(record & int(SEVERAL))
        certain = self._is_certain(frame, int(lane), access, record, mine, kind)
        poll = None if warning else self._poll(frame, access, int(lane), record, mine, kind)
        if poll is not None:
            warning = "missing acquire"
        verb, missing = sentence(kind, warning)
        whom = whose_access(record, other_thread, machine.agent_name)
        error = RaceError(
            f"{kind} race on byte {offset} of {region.name} ({region.space}){owner}: block {fields['block']} thread "
            f"{fields['thread']} {verb} {whom} of block {other_block}, and {missing}; "
            f"{machine.describe(access.instruction)}",
            kind=kind,
            space=region.space,
            buffer=region.name,
            offset=offset,
            other_block=other_block,
            other_thread=None if several or (record & int(_AGENTS) == int(BULK)) else other_thread,
            warning=warning,
            certain=certain,
            earlier=earlier,
            among=None if record & int(_AGENTS) == int(BULK) else other_thread,
            poll=None if poll is None else poll.instruction,
            **fields,
        )
        self.found(machine, error, byte, int(lane), width)

    def found(self, machine: Lanes, error: RaceError, byte: int, lane: int, width: int = 1) -> None:
        """Raise an error, or keep what is but a warning; a witness goes on behind both.

        A warning that is but suspected is raised too, so that a launch that keeps every access says whether it is one.
        """
        if self.witness is not None:
            ordered = partial(_ordered_before, machine, lane)
            self.witness.met(error, byte, lane + machine.first_thread, width, ordered)
        milder = error.warning and not machine.checks.strict
        if milder and (self.witness is not None or error.certain or error.cause in machine.launch.warnings):
            machine.launch.warn(error)
        elif self.witness is None:
            raise error

    def _is_certain(self, frame: Frame, lane: int, access: Accessing, record: int, mine: int, kind: str) -> bool:
        """Whether an access races with one by the thread of a record, not only with others that it may stand for.

        A strong write may come before by having been observed, which is not kept here.
        """
        if self._doubts:
            return False
        if record & int(STRENGTH) and kind != "read-write":
            return False
        if access.strength and (record & int(SEVERAL) or not mine & int(STRENGTH)):
            return False
        alone = record & ~int(SEVERAL)
        if not record & int(SEVERAL):
            return True
        if record & int(ASYNCHRONOUS):
            # Which of the copies have been waited for is not kept here.
            return False
        own = alone & int(THREAD) == frame.machine.first_thread + lane
        return not own and not self._ordered(frame, lane, alone)


def _ordered_before(machine: Lanes, lane: int, records: list[int]) -> list[bool]:
    """Which records come before what a lane does now."""
    found: list[bool] = machine.clocks.ordered(np.full(len(records), lane), np.array(records, np.int64)).tolist()
    return found


def shadow_of(region: Region) -> RaceShadow:
    """Who accessed what in a region where races are looked for."""
    shadow = region.shadow
    assert isinstance(shadow, RaceShadow)
    return shadow
