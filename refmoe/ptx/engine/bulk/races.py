"""Races of bulk copies: whole ranges of shared memory at a time, and the proxy rule.

A bulk copy touches thousands of granules, so shared memory also keeps, for every line of 128 bytes, the step of the
last plain read and write of each warp and the last bulk write. A range all of whose lines are ordered before a copy
has no race; only where a line is not are its granules looked at.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import numpy as np

from refmoe.native.addresses import address
from refmoe.ptx.engine.exact_races import ExactShadow
from refmoe.ptx.engine.frame import Frame
from refmoe.ptx.engine.order.accessing import Accessing
from refmoe.ptx.engine.order.clocks import LANES, Clocks
from refmoe.ptx.engine.order.combined import Combined
from refmoe.ptx.engine.races import RaceShadow, merge, shadow_of
from refmoe.ptx.native import boxes
from refmoe.ptx.native.boxes import LineTables
from refmoe.ptx.native.context import Row
from refmoe.ptx.state.memory import Region
from refmoe.ptx.state.numbers import different
from refmoe.ptx.state.pages import untouched
from refmoe.ptx.state.records import (
    ASYNCHRONOUS,
    BULK,
    GRID,
    PENDING,
    STEP_SHIFT,
    STRENGTH,
    STRENGTH_SHIFT,
    THREAD,
    WEAK,
)

Array = Any
_LINE_SHIFT = 7
_LINE = 1 << _LINE_SHIFT
_PENDING_BITS = PENDING << STEP_SHIFT
# Records that are remembered for a warpgroup.
_MOST_BEHIND = 256
# Records of copies that are remembered to be of copies; of those that are forgotten a proxy fence is asked.
_MOST_COPIED = 1 << 20
# The narrowest bulk copy, and what a product of a warpgroup reads of a line of its operand.
CHUNK = 16


class BulkShadow(RaceShadow):
    """Shared memory of a kernel with bulk copies.

    Args:
        size: bytes.
        warps: of a CTA. Reads by bulk copies have a column of their own behind those of the warps.
        groups: warpgroups of a CTA that multiply from here, each of which has a column behind that.
    """

    def __init__(self, size: int, warps: int, groups: int = 0) -> None:
        super().__init__(size, warps, warps + 1 + groups)
        lines = -(-size // _LINE)
        self._read_steps = untouched((lines, warps + 1 + groups), np.int64)
        # Of each warpgroup the agent that its products are.
        self._multiplying = np.zeros(groups, np.int64)
        # And records of copies that come before its products.
        self._behind: dict[int, set[int]] = {}
        self._write_steps = untouched((lines, warps), np.int64)
        self._bulk_writes = untouched((lines,), np.int64)

    @property
    def tables(self) -> tuple[Array, ...]:
        """See `RaceShadow.tables`."""
        return *super().tables, self._read_steps, self._write_steps, self._bulk_writes

    def enter(self, row: Array) -> None:
        """See `RaceShadow.enter`."""
        super().enter(row)
        row[Row.READ_STEPS], row[Row.WRITE_STEPS] = address(self._read_steps), address(self._write_steps)
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
        self,
        frame: Frame,
        access: Accessing,
        region: Region,
        first: Array,
        span: int,
        lanes: Array,
        own: Array,
        flags: np.int64 = WEAK,
        element: int = 0,
    ) -> None:
        """Copies into ranges are issued; they complete on the agents `own` [n]. `flags` go into their records.

        `element`: bytes of each of the elements that they combine, 0 where they combine nothing.

        Raises:
            RaceError: somebody else's access is not ordered before one of them, or a write lacks a proxy fence.
        """
        self.note(frame, access, region, first, lanes, span, "write")
        self.granules.prepare(first, span, CHUNK)
        clocks = frame.machine.clocks
        doubtful = np.flatnonzero(~self._lines_come_first(frame, first, span, lanes))
        if doubtful.size:
            doubtful = doubtful[~self._lines_are_ordered(frame, first[doubtful], span, lanes[doubtful])]
        for row in doubtful:
            index = np.arange(first[row], first[row] + span, CHUNK)
            who = np.full(len(index), lanes[row])
            with self.doubting(bool(element)):
                at, who = self._refuse_write(frame, access, region, index, who, CHUNK, WEAK, bool(flags & STRENGTH))
                refuse_unfenced(self, frame, access, region, at, who, clocks.has_crossed, flags)
        order = np.argsort(first)
        overlaps = np.flatnonzero(np.diff(first[order]) < span)
        if overlaps.size and not flags & STRENGTH:
            one, other = order[overlaps[0]], order[overlaps[0] + 1]
            record = pending_records(frame, lanes[one : one + 1])[0]
            self._report(frame, access, region, int(first[other]), lanes[other], record, "write-write")
        records = agent_records(frame, lanes, own) + (np.int64(_PENDING_BITS) | flags)
        apart = overlaps[own[order[overlaps]] != own[order[overlaps + 1]]]
        if apart.size and flags & STRENGTH:
            # One record cannot say of copies that complete on two barriers for which of them somebody has waited. A
            # strong one is but suspected, so that all accesses will be kept.
            one, other = order[apart[0]], order[apart[0] + 1]
            self._report(frame, access, region, int(first[other]), lanes[other], int(records[one]), "write-write")
        self._set_writes(first, span, records)

    def _lines_come_first(self, frame: Frame, first: Array, span: int, lanes: Array) -> Array:
        """`_lines_are_ordered` at once; where it gives False, that one may give True."""
        machine, clocks = frame.machine, frame.machine.clocks
        first, fine = np.ascontiguousarray(first, np.int64), np.zeros(len(first), np.bool_)
        threads = LANES * clocks.warps
        rows = np.ascontiguousarray(clocks.rows(lanes), np.int64)
        begins = np.ascontiguousarray(machine.first_thread + lanes // threads * threads, np.int64)
        tables = np.zeros(len(LineTables), np.int64)
        tables[LineTables.BULK_WRITES] = address(self._bulk_writes)
        tables[LineTables.READ_STEPS] = address(self._read_steps)
        tables[LineTables.READ_COLUMNS] = self._read_steps.shape[1]
        tables[LineTables.WRITE_STEPS] = address(self._write_steps)
        tables[LineTables.WARPS] = self.readers
        tables[LineTables.SEEN] = address(clocks.seen)
        tables[LineTables.COLUMNS] = clocks.columns
        tables[LineTables.AGENTS] = clocks.agents
        tables[LineTables.CROSSED] = clocks.crossed
        tables[LineTables.THREADS] = threads
        assert first.size
        assert 0 <= int(first.min()) <= int(first.max()) <= self.granules.size - span
        boxes.functions().ordered(
            address(tables), address(first), address(rows), address(begins), address(fine), len(first), span
        )
        return fine

    def _lines_are_ordered(self, frame: Frame, first: Array, span: int, lanes: Array) -> Array:
        """Whether copies by `lanes` [n] into ranges come after all that is known of the lines there."""
        clocks, lines = frame.machine.clocks, self._lines(first, span)
        seen = clocks.seen[clocks.rows(lanes), : self.readers]
        fine = self._bulk_ordered(frame, lines, lanes)
        reads = self._read_steps[lines].max(axis=1)
        fine &= (reads[:, : self.readers] <= seen).all(axis=1) & (reads[:, self.readers] == 0)
        products = clocks.seen[clocks.rows(lanes)[:, None], clocks.agents + self._multiplying]
        fine &= (reads[:, self.readers + 1 :] <= products).all(axis=1)
        half = clocks.crossed
        crossed = np.minimum(seen, clocks.seen[clocks.rows(lanes), half : half + self.readers])
        fine &= (self._write_steps[lines].max(axis=1) <= crossed).all(axis=1)
        return fine

    def filled(self, frame: Frame, first: Array, span: int, lanes: Array, own: Array, flags: np.int64 = WEAK) -> None:
        """Those copies have landed."""
        now = np.int64(frame.machine.clocks.now << STEP_SHIFT)
        self._set_writes(first, span, agent_records(frame, lanes, own) + (now | flags))

    def drain(
        self, frame: Frame, access: Accessing, region: Region, first: Array, span: int, lanes: Array, used: Array
    ) -> None:
        """Copies out of ranges are issued; of copy i they read the words of `access` at `used[i]`.

        Raises:
            RaceError: a write that is not ordered before them, or one without a proxy fence between.
        """
        self.note(frame, access, region, first, lanes, span, "read")
        self.granules.prepare(first, span, CHUNK, self.readers)
        clocks, lines = frame.machine.clocks, self._lines(first, span)
        row, half = clocks.rows(lanes), clocks.crossed
        known = np.minimum(clocks.seen[row, : self.readers], clocks.seen[row, half : half + self.readers])
        fine = self._bulk_ordered(frame, lines, lanes) & (self._write_steps[lines].max(axis=1) <= known).all(axis=1)
        for one in np.flatnonzero(~fine):
            index = used[one]
            _refuse_read(self, frame, access, region, index, np.full(len(index), lanes[one]), clocks.has_crossed)
        self._read_steps[lines, self.readers] = PENDING
        record, column = pending_records(frame, lanes), self._reads[self.readers]
        for row, slots in self.granules.ranges(first, span):
            column[slots] = self._beside(frame, column[slots], int(record[row]), int(lanes[row]))

    def still_draining(self, frame: Frame, first: Array, span: int, lanes: Array) -> None:
        """Copies out of ranges have not read yet, where others of the same lanes, which have the same records, have."""
        if self.combined is None:
            self.combined = Combined()
        record, column = pending_records(frame, lanes), self._reads[self.readers]
        for row, slots in self.granules.ranges(first, span):
            column[slots] = self.combined.beside(column[slots], np.full(slots.stop - slots.start, record[row]))

    def _beside(self, frame: Frame, held: Array, mine: int, lane: int) -> Array | int:
        """What stands for a read of a lane, and for those of `held` [n] that do not come before it."""
        others = different(held[(held != 0) & (held != mine)]).tolist()
        if all(self._comes_before(frame, lane, each) for each in others):
            return mine
        if self.combined is None:
            self.combined = Combined()
        mines, who = np.full(len(held), mine), np.full(len(held), lane)
        return self.combined.with_each(held, mines, who, self.ordering(frame))

    def _comes_before(self, frame: Frame, lane: int, record: int) -> bool:
        members = (record,) if self.combined is None else self.combined.members(record)
        ordered = self.ordering(frame)
        return all(ordered(lane, each) for each in members)

    def drained(
        self, frame: Frame, access: Accessing, first: Array, span: int, lanes: Array, used: Array,
        own: Array | None = None,
    ) -> None:  # fmt: skip
        """Those copies, see `drain`, have read.

        The reads count as their threads', which have waited, or as those of the agents `own` [n].
        """
        mine = self._mine(frame, lanes, np.int64(0))
        if own is not None:
            mine = agent_records(frame, lanes, own) + np.int64(frame.machine.clocks.now << STEP_SHIFT)
        pending = pending_records(frame, lanes)
        for row, slots in self.granules.ranges(first, span):
            column = self._reads[self.readers, slots]
            if self.combined is None:
                column[column == pending[row]] = mine[row]
            else:
                waiting, done = np.full(len(column), pending[row]), np.full(len(column), mine[row])
                column[:] = self.combined.completed(column, waiting, done)

    # Products of a warpgroup, whose reads are those of an agent: whoever waits for a product comes after all of them

    def multiply(
        self, frame: Frame, access: Accessing, region: Region, index: Array, lanes: Array, group: int, agent: int
    ) -> None:
        """A warpgroup, `lanes` one of each of its warps, will read the chunks at `index` [n].

        Raises:
            RaceError: a write that is not ordered before them, or one without a proxy fence between.
        """
        self.note(frame, access, region, index, np.full(len(index), lanes[0]), CHUNK, "read")
        clocks, lines, half = frame.machine.clocks, index >> _LINE_SHIFT, frame.machine.clocks.crossed
        lanes = that_know_alone(clocks, lanes)
        row = clocks.rows(lanes)
        known = np.minimum(clocks.seen[row, : self.readers], clocks.seen[row, half : half + self.readers])
        fine = bool((self._write_steps[lines].max(axis=0) <= known).all())
        # What comes before a product of the warpgroup comes before its later ones, too.
        behind = self._behind.setdefault(group, {0})
        copied = set(self._bulk_writes[lines].tolist()) - behind
        if copied:
            who, records = (
                each.ravel() for each in np.broadcast_arrays(lanes[:, None], np.array(sorted(copied), np.int64))
            )
            fine &= bool(clocks.ordered(who, records).all())
        if not fine:
            for lane in lanes:
                _refuse_read(
                    self, frame, access, region, index, np.full(len(index), lane), clocks.has_crossed, multiplies=True
                )
        elif copied:
            self._behind[group] = behind | copied if len(behind) < _MOST_BEHIND else {0} | copied
        self._multiplying[group] = agent
        self.multiplying(frame, index, lanes[:1], group)

    def multiplying(self, frame: Frame, index: Array, lanes: Array, group: int) -> None:
        """The chunks at `index` [n] are being read by products of the warpgroup of `lanes` [1]."""
        self._note_products(frame, index, lanes, group, PENDING)

    def multiplied(self, frame: Frame, index: Array, lanes: Array, group: int) -> None:
        """The products that read the chunks at `index` [n] are complete."""
        self._note_products(frame, index, lanes, group, frame.machine.clocks.now)

    def wait_for_products(self, frame: Frame, lanes: Array, group: int) -> None:
        """The warps of `lanes` have waited for products of their warpgroup: its reads come before what they do next."""
        clocks = frame.machine.clocks
        clocks.use_lanes()
        row = clocks.rows(that_know_alone(clocks, lanes))
        clocks.seen[row, clocks.agents_of(self._multiplying[group : group + 1])] = clocks.now

    def _note_products(self, frame: Frame, index: Array, lanes: Array, group: int, step: int) -> None:
        column = self.readers + 1 + group
        at, _ = self.granules.cover(index, CHUNK)
        agent = agent_records(frame, lanes, self._multiplying[group : group + 1])
        self._reads[column, at] = agent + (np.int64(step) << np.int64(STEP_SHIFT))
        self._read_steps[index >> _LINE_SHIFT, column] = step

    def _lines(self, first: Array, span: int) -> Array:
        """Lines [n, k] of each range."""
        offset = int((first & (_LINE - 1)).max())
        lines = (first >> _LINE_SHIFT)[:, None] + np.arange(-(-(span + offset) // _LINE))
        return np.minimum(lines, len(self._bulk_writes) - 1)

    def _bulk_ordered(self, frame: Frame, lines: Array, lanes: Array) -> Array:
        records = self._bulk_writes[lines]
        who = np.broadcast_to(lanes[:, None], lines.shape)
        ordered = (records == 0) | frame.machine.clocks.ordered(who.ravel(), records.ravel()).reshape(records.shape)
        every: Array = ordered.all(axis=1)
        return every

    def _set_writes(self, first: Array, span: int, records: Array) -> None:
        self.granules.write(first, span, records)
        lines = self._lines(first, span)
        whole = span % _LINE == 0 and not (first & (_LINE - 1)).any()
        # A line of which a copy writes a part has no one record: it is looked at by granules ever after.
        self._bulk_writes[lines] = records[:, None] if whole else records[:, None] | np.int64(_PENDING_BITS)


def that_know_alone(clocks: Clocks, lanes: Array) -> Array:
    """Of the warps of `lanes`, the first of each, one lane for each row of what they know."""
    if not clocks.apart[lanes >> 5].any():
        return lanes
    every = (lanes[:, None] + np.arange(LANES)).ravel()
    found: Array = every[np.unique(clocks.rows(every), return_index=True)[1]]
    return found


def agent_records(frame: Frame, lanes: Array, own: Array) -> Array:
    """Records, without a step, of the agents `own` [n] in the clusters of `lanes` [n]."""
    threads = frame.machine.clocks.warps * 32
    return frame.machine.first_thread + lanes // threads * threads + own + int(BULK)


def pending_records(frame: Frame, lanes: Array) -> Array:
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
    multiplies: bool = False,
) -> tuple[Array, Array]:
    """Report a write that is not ordered before bulk reads at `index` [n], or lacks a proxy fence.

    `fenced(lanes, records)` says where there is one. Returns (the reads' slots, the lane of each).
    """
    at, who = shadow._cover(index, lanes, access.width)
    previous = shadow.written(at)
    mine = shadow._mine(frame, who, np.int64(0))
    bad = shadow._conflicts(frame, who, previous, mine)
    if bad.size:
        shadow._report_granules(frame, access, region, at, who, mine, bad, previous[bad], "write-read")
    refuse_unfenced(shadow, frame, access, region, at, who, fenced, multiplies=multiplies)
    return at, who


def refuse_unfenced(
    shadow: RaceShadow,
    frame: Frame,
    access: Accessing,
    region: Region,
    at: Array,
    who: Array,
    fenced: Callable[[Array, Array], Array],
    flags: np.int64 = WEAK,
    multiplies: bool = False,
) -> None:
    """Report a write through the generic proxy, of slots `at` [n], without a proxy fence before bulk copies of `who`.

    The order of two accesses through different proxies needs such a fence (PTX ISA, "Causality order": proxy-preserved
    base causality order), be the copy a read of what was written or a write over it. Where `cp.async` brought what a
    product reads, CUTLASS and Triton go without the fence: it is but a warning.
    """
    if isinstance(shadow, ExactShadow):
        at, who, previous = shadow.every_write(at, who)
    else:
        at, who, previous = _apart(shadow, at, who, shadow.written(at))
    plain = (previous != 0) & (previous & BULK == 0) & ~_copied(shadow, frame, previous, who, flags)
    at, who, previous = at[plain], who[plain], previous[plain]
    bad = np.flatnonzero(~fenced(who, previous))
    if bad.size:
        mine = shadow._mine(frame, who, np.int64(0))
        # What a barrier has counted has the record of its copy, and what its own lane has waited for that of the wait.
        milder = np.isin(previous[bad] >> STEP_SHIFT, list(shadow.delivered)) | (previous[bad] & ASYNCHRONOUS != 0)
        milder &= multiplies
        for chosen, warning in ((bad[~milder], ""), (bad[milder], "copied operand")):
            if chosen.size:
                shadow._report_granules(
                    frame, access, region, at, who, mine, chosen, previous[chosen], "proxy", warning
                )


def _apart(shadow: RaceShadow, at: Array, who: Array, records: Array) -> tuple[Array, Array, Array]:
    """Records of slots `at` [n] and of copies of `who` [n]; in the place of sets a row for each of their records."""
    combined = shadow.combined
    if combined is None or not (sets := combined.are_sets(records)).any():
        return at, who, records
    # Most slots of a copy have one set, so that each set is taken apart once for a lane.
    where = np.flatnonzero(sets)
    _, first = np.unique(np.stack([who, records], axis=1)[where], axis=0, return_index=True)
    members = [(row, member) for row in where[first].tolist() for member in combined.members(int(records[row]))]
    which = np.array([*np.flatnonzero(~sets).tolist(), *(row for row, _ in members)], np.int64)
    found = np.array([*records[~sets].tolist(), *(member for _, member in members)], np.int64)
    return at[which], who[which], found


def _copied(shadow: RaceShadow, frame: Frame, records: Array, who: Array, flags: np.int64) -> Array:
    """Which writes of `records` [n] need no proxy fence before bulk copies of `who` [n], being of copies themselves.

    Both are then in the asynchronous proxy: of one CTA ("Causality order": the same proxy, and the same thread block),
    or both combine what they bring, and need no order.
    """
    found = np.zeros(len(records), np.bool_)
    if not shadow.copied:
        return found
    for record in np.unique(records).tolist():
        if record in shadow.copied:
            found |= records == record
    per_cta = frame.machine.warps * LANES
    near = (records & THREAD) // per_cta == (who + frame.machine.first_thread) // per_cta
    if not flags & STRENGTH:
        return found & near
    combine = records & STRENGTH != 0 if shadow.combined is None else shadow.combined.are_copies(records)
    return found & (near | combine)


def _fenced_in_global_memory(frame: Frame) -> Callable[[Array, Array], Array]:
    """Whether a proxy fence lies between the write of a record and what a lane does now."""
    machine = frame.machine

    def fenced(lanes: Array, record: Array) -> Array:
        return machine.launch.proxied.between(machine.clocks, lanes, record)

    return fenced


# Global memory


def global_read(frame: Frame, access: Accessing, region: Region, index: Array, lanes: Array) -> None:
    """Words at `index` [n] will be read by bulk copies of `lanes` [n].

    Raises:
        RaceError: a write that is not ordered before them, or one without a proxy fence between.
    """
    shadow = shadow_of(region)
    shadow.note(frame, access, region, index, lanes, access.width, "read")
    fenced = _fenced_in_global_memory(frame)
    if isinstance(shadow, ExactShadow):
        shadow.begin(frame, access, region, index, lanes, pending_records(frame, lanes), access.width, writes=False)
        refuse_unfenced(shadow, frame, access, region, *shadow._cover(index, lanes, access.width), fenced)
        return
    for at, who in _in_turns(*_refuse_read(shadow, frame, access, region, index, lanes, fenced)):
        last = shadow._reads[0, at]
        known = np.flatnonzero(last)
        shadow._reads[1, at[known]] = _displaced(frame, shadow, shadow._reads[1, at[known]], last[known], who[known])
        shadow._reads[0, at] = pending_records(frame, who)


def _in_turns(at: Array, who: Array) -> Iterator[tuple[Array, Array]]:
    """Slots `at` [n] and the lanes `who` [n] that read each, in up to three parts, none of which has a slot twice.

    Of the lanes that one slot has three are enough: what stands for two copies under way stands for any more.
    """
    if len(np.unique(at)) == len(at):
        yield at, who
        return
    width = int(who.max()) + 1
    slots, lanes = np.divmod(np.unique(at * width + who), width)
    first = np.r_[True, slots[1:] != slots[:-1]]
    last = np.r_[first[1:], True]
    second = np.r_[False, first[:-1]] & ~first & ~last
    for part in (first, second, last & ~first):
        if part.any():
            yield slots[part], lanes[part]


def _displaced(frame: Frame, shadow: RaceShadow, others: Array, last: Array, who: Array) -> Array:
    """What stands for `others` [n] and for the last readers `last` [n], whose place copies of `who` [n] take."""
    found: Array = last.copy()
    # Two copies of one lane may be under way, and have one record.
    apart = np.flatnonzero((others != 0) & ((others != last) | (last >> STEP_SHIFT == PENDING)))
    table, which = np.unique(np.stack([others, last, who], axis=1)[apart], axis=0, return_inverse=True)
    ordered = shadow.ordering(frame)
    for number, (other, one, lane) in enumerate(table.tolist()):
        if not ordered(lane, other):
            found[apart[which.ravel() == number]] = merge(other, one, frame.machine.clocks)
    return found


def global_read_done(frame: Frame, access: Accessing, region: Region, index: Array, lanes: Array, own: Array) -> None:
    """Those copies have read and landed: who waits for their agents `own` [n] comes after the reads."""
    shadow = shadow_of(region)
    if isinstance(shadow, ExactShadow):
        after = agent_records(frame, lanes, own) + np.int64(frame.machine.clocks.now << STEP_SHIFT)
        shadow.end(index, access.width, pending_records(frame, lanes), after, writes=False)
        return
    at, row = shadow.granules.cover(index, access.width)
    who, own = (lanes, own) if row is None else (lanes[row], own[row])
    landed = agent_records(frame, who, own) + np.int64(frame.machine.clocks.now << STEP_SHIFT)
    pending = pending_records(frame, who)
    # Where two copies of one lane are under way, one of both columns is of the other one.
    found = shadow._reads[:, at] == pending
    for column, mine in ((1, found[1]), (0, found[0] & ~found[1])):
        shadow._reads[column, at[mine]] = landed[mine]


def combining(region: Region, index: Array, width: int, element: int) -> np.int64:
    """Flags of the records of copies that combine elements of so many bytes in words of `width` bytes at `index` [n].

    Each element is an atomic of its own: it does not race with others of the very same bytes.
    """
    shadow = shadow_of(region)
    flags = np.int64(GRID << STRENGTH_SHIFT)
    return flags if isinstance(shadow, ExactShadow) else shadow.strength(index, width, element, GRID)


def global_write(
    frame: Frame, access: Accessing, region: Region, index: Array, lanes: Array, flags: np.int64 = WEAK,
    element: int = 0,
) -> None:  # fmt: skip
    """Words at `index` [n] will be written by bulk copies of `lanes` [n]. `flags` go into their records.

    `element`: bytes of each of the elements that they combine, 0 where they combine nothing.

    Raises:
        RaceError: an access that is not ordered before them, or a write without a proxy fence between.
    """
    shadow = shadow_of(region)
    shadow.note(frame, access, region, index, lanes, access.width, "write")
    with shadow.doubting(bool(element)):
        _begin_write(shadow, frame, access, region, index, lanes, flags, element)


def _begin_write(
    shadow: RaceShadow, frame: Frame, access: Accessing, region: Region, index: Array, lanes: Array, flags: np.int64,
    element: int,
) -> None:  # fmt: skip
    """See `global_write`."""
    if isinstance(shadow, ExactShadow):
        records = pending_records(frame, lanes) | flags
        shadow.begin(frame, access, region, index, lanes, records, access.width, True, element)
        at, who = shadow._cover(index, lanes, access.width)
    else:
        at, who = shadow._refuse_write(frame, access, region, index, lanes, access.width, WEAK, bool(flags & STRENGTH))
    refuse_unfenced(shadow, frame, access, region, at, who, _fenced_in_global_memory(frame), flags)
    pending = pending_records(frame, who) | flags
    if isinstance(shadow, ExactShadow):
        shadow._writes[at] = pending
        return
    if flags & STRENGTH:
        _combine(frame, shadow, at, who, pending)
        return
    shadow._writes[at] = pending
    lost = np.flatnonzero(shadow._writes[at] != pending)
    if lost.size:
        found = shadow._writes[at]
        shadow._report_granules(frame, access, region, at, who, pending, lost, found[lost], "write-write")


def warn_of_twins(
    frame: Frame, access: Accessing, region: Region, twins: tuple[Array, Array], index: Array, lanes: Array
) -> None:
    """Copies that write what those of `lanes` [n] write at `index` [n], from the same bytes and by one instruction.

    Args:
        frame: where they are.
        access: of one word.
        region: where they write.
        twins: (byte index, lane) of each of their words.
        index: bytes of the words of the other copies.
        lanes: theirs.
    """
    places, who = twins
    if not places.size:
        return
    place = int(places[0])
    other = lanes[np.flatnonzero(index == place)[:1]]
    mine, held = pending_records(frame, np.array([who[0], *other])).tolist()
    shadow_of(region)._report(frame, access, region, place, who[0], held, "write-write", "same value", mine)


def _combine(frame: Frame, shadow: RaceShadow, at: Array, who: Array, pending: Array) -> None:
    """Copies of `who` [n] will combine what they bring with what is at slots `at` [n], as others may."""
    if shadow.combined is None:
        shadow.combined = Combined()
    # One after another where copies of one instruction meet.
    alone = len(np.unique(at)) == len(at)
    for mine in [np.arange(len(at))] if alone else [np.flatnonzero(who == lane) for lane in different(who)]:
        slots = at[mine]
        last = shadow._writes[slots]
        copies = shadow.combined.are_copies(last)
        # What the generic proxy wrote does not race with what this copy does not race with.
        shadow.keep(frame, slots, last, (last != 0) & ~copies)
        previous = np.where(copies, last, 0)
        shadow._writes[slots] = shadow.combined.with_each(previous, pending[mine], who[mine], shadow.ordering(frame))


def global_write_done(
    frame: Frame, access: Accessing, region: Region, index: Array, lanes: Array, flags: np.int64 = WEAK
) -> None:
    """Those copies are complete, and their threads have waited for them.

    They count as accesses of their threads from now on, at a step at which these do nothing else.
    """
    shadow = shadow_of(region)
    at, who = shadow._cover(index, lanes, access.width)
    exact = isinstance(shadow, ExactShadow)
    found, pending = shadow._writes[at], pending_records(frame, who) | flags
    # As a plain write it excuses no atomic.
    done = shadow._mine(frame, who, flags if exact else WEAK)
    if len(shadow.copied) > _MOST_COPIED:
        shadow.copied.clear()
    shadow.copied.update(np.unique(done).tolist())
    if isinstance(shadow, ExactShadow):
        before, after = pending_records(frame, lanes) | flags, shadow._mine(frame, lanes, flags)
        shadow.end(index, access.width, before, after, writes=True)
    if shadow.combined is None:
        shadow._writes[at] = np.where(found == pending, done, found)
        return
    if flags & STRENGTH:
        shadow.combined.complete(done)
    for lane in np.unique(who).tolist():
        mine = np.flatnonzero(who == lane)
        held = shadow._writes[at[mine]]
        shadow._writes[at[mine]] = shadow.combined.completed(held, pending[mine], done[mine])


def global_write_goes_on(
    frame: Frame, access: Accessing, region: Region, index: Array, lanes: Array, flags: np.int64
) -> None:
    """Copies that combine are not complete, where others of the same lanes, which have the same records, may be."""
    shadow = shadow_of(region)
    if isinstance(shadow, ExactShadow):
        # It counts them.
        return
    at, who = shadow._cover(index, lanes, access.width)
    assert shadow.combined is not None
    shadow._writes[at] = shadow.combined.beside(shadow._writes[at], pending_records(frame, who) | flags)
