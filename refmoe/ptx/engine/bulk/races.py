"""Races of bulk copies: whole ranges of shared memory at a time, and the proxy rule.

A bulk copy touches thousands of granules, so shared memory also keeps, for every line of 128 bytes, the step of the
last plain read and write of each warp and the last bulk write. A range all of whose lines are ordered before a copy
has no race; only where a line is not are its granules looked at.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from refmoe.ptx.engine.frame import Frame
from refmoe.ptx.engine.races import Accessing, RaceShadow, shadow_of
from refmoe.ptx.native.context import Row
from refmoe.ptx.state.memory import Region
from refmoe.ptx.state.pages import untouched
from refmoe.ptx.state.records import ASYNCHRONOUS, BULK, PENDING, STEP_SHIFT, THREAD

Array = Any
_LINE_SHIFT = 7
_LINE = 1 << _LINE_SHIFT
_PENDING_BITS = PENDING << STEP_SHIFT
# The narrowest bulk copy.
_CHUNK = 16


class BulkShadow(RaceShadow):
    """Shared memory of a kernel with bulk copies.

    Args:
        size: bytes.
        warps: of a CTA. Reads by bulk copies have a column of their own behind those of the warps.
    """

    def __init__(self, size: int, warps: int) -> None:
        super().__init__(size, warps, warps + 1)
        lines = -(-size // _LINE)
        self._read_steps = untouched((lines, warps + 1), np.int64)
        self._write_steps = untouched((lines, warps), np.int64)
        self._bulk_writes = untouched((lines,), np.int64)

    @property
    def tables(self) -> tuple[Array, ...]:
        """See `RaceShadow.tables`."""
        return *super().tables, self._read_steps, self._write_steps, self._bulk_writes

    def enter(self, row: Array) -> None:
        """See `RaceShadow.enter`."""
        super().enter(row)
        row[Row.READ_STEPS], row[Row.WRITE_STEPS] = self._read_steps.ctypes.data, self._write_steps.ctypes.data
        row[Row.READ_STEP_COLUMNS] = self._read_steps.shape[1]

    # Accesses of lanes, and copies of theirs

    def read(
        self, frame: Frame, access: Accessing, region: Region, index: Array, lanes: Array, asynchronous: bool = False
    ) -> None:
        """See `RaceShadow.read`."""
        super().read(frame, access, region, index, lanes, asynchronous)
        self._read_steps[index >> _LINE_SHIFT, (lanes >> 5) % self.readers] = frame.machine.clocks.now

    def before_write(
        self, frame: Frame, access: Accessing, region: Region, index: Array, lanes: Array, words: Array
    ) -> None:
        """See `RaceShadow.before_write`."""
        super().before_write(frame, access, region, index, lanes, words)
        self._write_steps[index >> _LINE_SHIFT, (lanes >> 5) % self.readers] = frame.machine.clocks.now

    def _modify(
        self, frame: Frame, access: Accessing, region: Region, index: Array, lanes: Array, flags: np.int64
    ) -> None:
        super()._modify(frame, access, region, index, lanes, flags)
        # What a copy writes is not ordered by what its warp does: a step of the far future sends it to the granules.
        step = PENDING if flags & ASYNCHRONOUS else frame.machine.clocks.now
        self._write_steps[index >> _LINE_SHIFT, (lanes >> 5) % self.readers] = step

    # Bulk copies of n ranges, each of `span` bytes from index `first` [n]

    def fill(
        self, frame: Frame, access: Accessing, region: Region, first: Array, span: int, lanes: Array, own: Array
    ) -> None:
        """Copies into ranges are issued; they complete on the agents `own` [n].

        Raises:
            RaceError: somebody else's access is not ordered before one of them.
        """
        self.granules.prepare(first, span, _CHUNK)
        clocks, lines = frame.machine.clocks, self._lines(first, span)
        seen = clocks.seen[lanes >> 5, : self.readers]
        fine = self._bulk_ordered(frame, lines, lanes)
        reads = self._read_steps[lines].max(axis=1)
        fine &= (reads[:, : self.readers] <= seen).all(axis=1) & (reads[:, self.readers] == 0)
        fine &= (self._write_steps[lines].max(axis=1) <= seen).all(axis=1)
        for row in np.flatnonzero(~fine):
            index = np.arange(first[row], first[row] + span, _CHUNK)
            self._refuse_write(frame, access, region, index, np.full(len(index), lanes[row]), _CHUNK, np.int64(0))
        order = np.argsort(first)
        overlaps = np.flatnonzero(np.diff(first[order]) < span)
        if overlaps.size:
            one, other = order[overlaps[0]], order[overlaps[0] + 1]
            record = _pending(frame, lanes[one : one + 1])[0]
            self._report(frame, access, region, int(first[other]), lanes[other], record, "write-write")
        self._set_writes(first, span, agent_records(frame, lanes, own) + np.int64(_PENDING_BITS))

    def filled(self, frame: Frame, first: Array, span: int, lanes: Array, own: Array) -> None:
        """Those copies have landed."""
        now = np.int64(frame.machine.clocks.now << STEP_SHIFT)
        self._set_writes(first, span, agent_records(frame, lanes, own) + now)

    def drain(
        self, frame: Frame, access: Accessing, region: Region, first: Array, span: int, lanes: Array, used: Array
    ) -> None:
        """Copies out of ranges are issued; of copy i they read the words of `access` at `used[i]`.

        Raises:
            RaceError: a write that is not ordered before them, or one without a proxy fence between.
        """
        self.granules.prepare(first, span, _CHUNK)
        clocks, lines = frame.machine.clocks, self._lines(first, span)
        row, half = lanes >> 5, clocks.crossed
        known = np.minimum(clocks.seen[row, : self.readers], clocks.seen[row, half : half + self.readers])
        fine = self._bulk_ordered(frame, lines, lanes) & (self._write_steps[lines].max(axis=1) <= known).all(axis=1)
        for one in np.flatnonzero(~fine):
            index = used[one]
            _refuse_read(self, frame, access, region, index, np.full(len(index), lanes[one]), clocks.has_crossed)
        self._read_steps[lines, self.readers] = PENDING
        record = _pending(frame, lanes)
        for row, slots in self.granules.ranges(first, span):
            self._reads[self.readers, slots] = record[row]

    def drained(self, frame: Frame, first: Array, span: int, lanes: Array, own: Array | None = None) -> None:
        """Those copies have read: the reads count as their threads', which have waited, or as those of agents `own`."""
        mine = self._mine(frame, lanes, np.int64(0))
        if own is not None:
            mine = agent_records(frame, lanes, own) + np.int64(frame.machine.clocks.now << STEP_SHIFT)
        pending = _pending(frame, lanes)
        for row, slots in self.granules.ranges(first, span):
            column = self._reads[self.readers, slots]
            column[column == pending[row]] = mine[row]

    def _lines(self, first: Array, span: int) -> Array:
        """Lines [n, k] of each range."""
        offset = int((first & (_LINE - 1)).max())
        lines = (first >> _LINE_SHIFT)[:, None] + np.arange(-(-(span + offset) // _LINE))
        return np.minimum(lines, len(self._bulk_writes) - 1)

    def _bulk_ordered(self, frame: Frame, lines: Array, lanes: Array) -> Array:
        records = self._bulk_writes[lines]
        who = np.broadcast_to(lanes[:, None], lines.shape)
        ordered: Array = (records == 0) | frame.machine.clocks.ordered(who, records)
        return ordered.all(axis=1)

    def _set_writes(self, first: Array, span: int, records: Array) -> None:
        for row, slots in self.granules.ranges(first, span):
            self._writes[slots] = records[row]
        lines = self._lines(first, span)
        whole = span % _LINE == 0 and not (first & (_LINE - 1)).any()
        # A line of which a copy writes a part has no one record: it is looked at by granules ever after.
        self._bulk_writes[lines] = records[:, None] if whole else records[:, None] | np.int64(_PENDING_BITS)


def agent_records(frame: Frame, lanes: Array, own: Array) -> Array:
    """Records, without a step, of the agents `own` [n] in the clusters of `lanes` [n]."""
    threads = frame.machine.clocks.warps * 32
    return frame.machine.first_thread + lanes // threads * threads + own + int(BULK)


def _pending(frame: Frame, lanes: Array) -> Array:
    """Records of bulk copies that wait for their group."""
    return lanes + np.int64(_PENDING_BITS + frame.machine.first_thread + int(BULK | ASYNCHRONOUS))


def _refuse_read(
    shadow: RaceShadow,
    frame: Frame,
    access: Accessing,
    region: Region,
    index: Array,
    lanes: Array,
    fenced: Callable[[Array, Array], Array],
) -> tuple[Array, Array]:
    """Report a write that is not ordered before bulk reads at `index` [n], or lacks a proxy fence.

    `fenced(lanes, records)` says where there is one. Returns (the reads' slots, the lane of each).
    """
    at, who = shadow._cover(index, lanes, access.width)
    previous = shadow._writes[at]
    bad = shadow._conflicts(frame, who, previous, shadow._mine(frame, who, np.int64(0)))
    if bad.size:
        shadow._report_granule(frame, access, region, at, who, bad[0], previous[bad[0]], "write-read")
    plain = (previous != 0) & (previous & (BULK | ASYNCHRONOUS) == 0)
    bad = np.flatnonzero(plain & ~fenced(who, previous))
    if bad.size:
        shadow._report_granule(frame, access, region, at, who, bad[0], previous[bad[0]], "proxy")
    return at, who


# Global memory


def global_read(frame: Frame, access: Accessing, region: Region, index: Array, lanes: Array) -> None:
    """Words at `index` [n] will be read by bulk copies of `lanes` [n].

    Raises:
        RaceError: a write that is not ordered before them, or one without a proxy fence between.
    """
    shadow, machine = shadow_of(region), frame.machine
    fences = machine.launch.proxied

    def fenced(lanes: Array, record: Array) -> Array:
        step = record >> STEP_SHIFT
        reader, writer = (lanes >> 5) + machine.clocks.first_warp, (record & THREAD) >> 5
        return (fences[reader] >= step) | (fences[writer] >= step)

    at, who = _refuse_read(shadow, frame, access, region, index, lanes, fenced)
    last = shadow._reads[0, at]
    known = np.flatnonzero(last)
    shadow._reads[1, at[known]] = last[known]
    shadow._reads[0, at] = _pending(frame, who)


def global_read_done(frame: Frame, access: Accessing, region: Region, index: Array, lanes: Array, own: Array) -> None:
    """Those copies have read and landed: who waits for their agents `own` [n] comes after the reads."""
    shadow = shadow_of(region)
    at, row = shadow.granules.cover(index, access.width)
    who, own = (lanes, own) if row is None else (lanes[row], own[row])
    landed = agent_records(frame, who, own) + np.int64(frame.machine.clocks.now << STEP_SHIFT)
    pending = _pending(frame, who)
    for column in shadow._reads:
        mine = np.flatnonzero(column[at] == pending)
        column[at[mine]] = landed[mine]


def global_write(frame: Frame, access: Accessing, region: Region, index: Array, lanes: Array) -> None:
    """Words at `index` [n] will be written by bulk copies of `lanes` [n].

    Raises:
        RaceError: an access that is not ordered before them.
    """
    shadow = shadow_of(region)
    at, who = shadow._refuse_write(frame, access, region, index, lanes, access.width, np.int64(0))
    pending = _pending(frame, who)
    shadow._writes[at] = pending
    lost = np.flatnonzero(shadow._writes[at] != pending)
    if lost.size:
        shadow._report_granule(frame, access, region, at, who, lost[0], shadow._writes[at[lost[0]]], "write-write")


def global_write_done(frame: Frame, access: Accessing, region: Region, index: Array, lanes: Array) -> None:
    """Those copies are complete, and their threads have waited for them."""
    shadow = shadow_of(region)
    at, who = shadow._cover(index, lanes, access.width)
    found = shadow._writes[at]
    shadow._writes[at] = np.where(found == _pending(frame, who), shadow._mine(frame, who, np.int64(0)), found)
