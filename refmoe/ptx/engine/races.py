"""Who accessed which byte when, and what orders the accesses of different lanes.

The clock is the launch's step counter. `seen[w, v]` is the step up to which everything that warp `v` did happens before
what warp `w` does next: barriers raise it, `bar.warp.sync` raises a warp's view of its own lanes. Between CTAs, and
between warps that synchronise through memory, an access is ordered if its warp published it (a fence, then an atomic or
another strong write; barriers pass on what they ordered) and the later warp has since executed a strong read. That is
generous (it does not ask for the same location), so that no ordered pair is ever reported.

An asynchronous copy is an agent of its own: what it writes or reads is ordered after its issue, but before nothing
until its thread has waited for it (from then on it counts as that thread's access) or a barrier has announced it.
Barriers in memory join single lanes, so where a kernel has them `seen` also tells the lanes of a warp apart.

Bulk copies into shared memory complete on a barrier, so there each barrier is an agent, whose accesses are ordered
before what follows a wait for its phase. Bulk copies also work in another proxy: what they read must have been written
through the same one, or lie before a proxy fence. So with bulk copies every row of `seen` goes on with a second half,
of the same columns: the step up to which what that column did lies before a proxy fence that is ordered before now.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Protocol

import numpy as np

from refmoe.ptx.engine.cluster import whose
from refmoe.ptx.engine.frame import Frame
from refmoe.ptx.engine.granules import Granules
from refmoe.ptx.engine.lanes import Lanes
from refmoe.ptx.errors import RaceError
from refmoe.ptx.native import order
from refmoe.ptx.native.context import Row
from refmoe.ptx.state.memory import Region
from refmoe.ptx.state.records import AGENTS, ASYNCHRONOUS, BULK, LANE, MANY, PENDING, STEP_SHIFT, STRONG, THREAD
from refmoe.ptx.text.syntax import Instruction

Array = Any
# (byte index, lane) of the words of rows, from those of the rows.
Words = Callable[[Array, Array], tuple[Array, Array]]

_OTHER_WARP = THREAD & ~LANE
_WEAK: np.int64 = np.int64(0)
# Of global memory: the last reader and the last one of another warp.
_LAST_READERS = 2


class Clocks:
    """What each warp of some CTAs knows about the others.

    Args:
        warps: of one CTA. What is said of CTAs here holds for whole clusters, where they have several: all their warps
            can synchronise with each other.
        ctas: that run together.
        first_cta: number of the first of them in the grid.
        published: int64 [warps of the grid], shared by all CTAs of the launch.
        by_lane: whether single lanes may synchronise, as with mbarriers.
        bulk: whether there are bulk copies; only with `by_lane`.

    Attributes:
        seen: int64 [warps here, columns], see the module. Columns are the warps of the CTA, then the copies of each
            warp, then, with `by_lane`, each lane, then, with `bulk`, the agents, and all of these again.
        acquired: int64 [warps here], the step of the last strong read.
    """

    def __init__(
        self, warps: int, ctas: int, first_cta: int, published: Array, by_lane: bool = False, bulk: bool = False
    ) -> None:
        self.warps = warps
        self.by_lane = by_lane
        self.bulk = bulk
        self.agents = warps * 34
        # Where the second half begins.
        self.crossed = self.agents + AGENTS
        self.columns = 2 * self.crossed if bulk else warps * (34 if by_lane else 2)
        self.first_warp = first_cta * warps
        self.published = published
        self.now = 0
        self.seen = np.zeros((ctas * warps, self.columns), np.int64)
        self.acquired = np.zeros(ctas * warps, np.int64)
        self._fenced = np.zeros_like(self.seen)

    def restart(self, first_cta: int) -> None:
        """Become the clocks of as many other CTAs, whose warps know nothing yet."""
        self.first_warp = first_cta * self.warps
        self.seen[:], self.acquired[:], self._fenced[:] = 0, 0, 0

    def acquire(self, lanes: Array) -> None:
        """The warps of `lanes` read what others may have published."""
        self.acquired[np.unique(lanes >> 5)] = self.now

    def fence(self, lanes: Array) -> None:
        """The warps of `lanes` executed a fence: what they know may be published."""
        warps = np.unique(lanes >> 5)
        self._fenced[warps] = self.seen[warps]
        self._fenced[warps, warps % self.warps] = self.now

    def cross(self, lanes: Array, alive: Array) -> None:
        """`lanes` executed a proxy fence: what is ordered before it may be used through the other proxy."""
        half, warps = self.crossed, np.unique(lanes >> 5)
        self.seen[warps, half:] = np.maximum(self.seen[warps, half:], self.seen[warps, :half])
        self.seen[lanes >> 5, half + 2 * self.warps + lanes % (32 * self.warps)] = self.now
        acting = np.zeros(len(alive), bool)
        acting[lanes] = True
        whole = warps[(acting | ~alive).reshape(-1, 32)[warps].all(axis=1)]
        self.seen[whole, half + whole % self.warps] = self.now

    def release(self, lanes: Array, by_itself: bool) -> None:
        """The warps of `lanes` wrote strongly: what their last fence covers is published."""
        if by_itself:
            self.fence(lanes)
        warps = np.unique(lanes >> 5)
        rows = self.published.reshape(-1, self.warps)
        np.maximum.at(rows, (warps + self.first_warp) // self.warps, self._fenced[warps, : self.warps])

    def warp_sync(self, mask: Array) -> None:
        """Lanes of one warp meet, memory included."""
        warps = np.flatnonzero(mask.reshape(-1, 32).any(axis=1))
        self.seen[warps, warps % self.warps] = self.now - 1

    def copies_seen(self, lanes: Array, step: Array) -> None:
        """The warps of `lanes` have waited for their own copies up to `step` [n]."""
        warps = lanes >> 5
        np.maximum.at(self.seen, (warps, self.warps + warps % self.warps), step)

    def record(self, lanes: Array) -> Array:
        """A plain access by `lanes` now, in the form that `ordered` takes."""
        return (self.now << STEP_SHIFT) + self.first_warp * 32 + lanes

    def knowledge(self, warps: Array) -> tuple[Array, Array]:
        """What warps, all of whose lanes are here, bring to a barrier now: ([n, columns], acquired [n])."""
        known = self.seen[warps].copy()
        known[np.arange(len(warps)), warps % self.warps] = self.now
        return known, self.acquired[warps]

    def learn(self, warps: Array, known: Array, acquired: Array) -> None:
        """Warps leave a barrier with what all participants brought: `known` [n, columns], `acquired` [n]."""
        self.seen[warps] = np.maximum(self.seen[warps], known)
        self.acquired[warps] = np.maximum(self.acquired[warps], acquired)

    def ordered(self, lanes: Array, record: Array) -> Array:
        """Whether the access of `record` happens before what each of `lanes` does now; both int64 [n]."""
        step = record >> STEP_SHIFT
        warp = lanes >> 5
        thread = record & THREAD
        other = thread >> 5
        own_cta = (warp + self.first_warp) // self.warps == other // self.warps
        asynchronous = record & ASYNCHRONOUS != 0
        ordered = self.seen[warp, other % self.warps + asynchronous * self.warps] >= step
        if self.by_lane:
            one = (record & (MANY | ASYNCHRONOUS)) == 0
            ordered |= one & (self.seen[warp, 2 * self.warps + thread % (32 * self.warps)] >= step)
        if self.bulk:
            agent = np.minimum(thread % (32 * self.warps), AGENTS - 1)
            ordered = np.where(record & BULK != 0, self.seen[warp, self.agents + agent] >= step, ordered)
        ordered &= own_cta
        return ordered | ((self.published[other] >= step) & (self.acquired[warp] >= step))

    def has_crossed(self, lanes: Array, record: Array) -> Array:
        """Whether a proxy fence lies between the plain write of `record` in the CTA and each of `lanes`; int64 [n]."""
        step, thread = record >> STEP_SHIFT, record & THREAD
        row, half = lanes >> 5, self.crossed
        by_warp = self.seen[row, half + (thread >> 5) % self.warps] >= step
        return by_warp | (self.seen[row, half + 2 * self.warps + thread % (32 * self.warps)] >= step)


class Accessing(Protocol):
    """What records need of an access."""

    @property
    def instruction(self) -> Instruction:
        """For messages."""
        ...

    @property
    def width(self) -> int:
        """Bytes."""
        ...

    @property
    def strong(self) -> bool:
        """Whether it does not race with other strong ones."""
        ...


class RaceShadow:
    """The last write, and reads, of each granule of a region, see `Granules`.

    Shared memory remembers the last read of every warp of its CTA, global memory only the last read of all and the last
    of another warp.

    Args:
        size: bytes.
        readers: warps of a CTA whose reads are kept apart; 0 keeps the last two only.
        columns: records of reads that a granule has, where that is not what `readers` needs.
    """

    def __init__(self, size: int, readers: int, columns: int | None = None) -> None:
        self.readers = readers
        self.granules = Granules(size, columns or readers or _LAST_READERS)
        self._writes, self._reads = self.granules.writes, self.granules.reads

    @property
    def tables(self) -> tuple[Array, ...]:
        """All memory of this."""
        return self.granules.states, self.granules.used, self.granules.records

    def enter(self, row: Array) -> None:
        """Write into a region's row where the records lie, see `Row`."""
        self.granules.enter(row)
        row[Row.READERS] = self.readers

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

    def _conflicts(self, frame: Frame, lanes: Array, previous: Array, mine: Array) -> Array:
        """Positions whose previous access belongs to another lane and is not ordered before this one."""
        other = ((previous ^ mine) & THREAD != 0) | (previous & (MANY | ASYNCHRONOUS | BULK) != 0)
        suspects = np.flatnonzero((previous != 0) & other & (previous & mine & STRONG == 0))
        if not suspects.size:
            return suspects
        return suspects[~frame.machine.clocks.ordered(lanes[suspects], previous[suspects])]

    def read(
        self, frame: Frame, access: Accessing, region: Region, index: Array, lanes: Array, asynchronous: bool = False
    ) -> None:
        """A load, or the load of a copy that is issued: it must not race with an earlier write."""
        at, who = self._cover(index, lanes, access.width)
        flags = ASYNCHRONOUS if asynchronous else _strong(access)
        if frame.machine.orders(order.functions().reads, region, at, who, flags):
            return
        mine = self._mine(frame, who, flags)
        previous = self._writes[at]
        bad = self._conflicts(frame, who, previous, mine)
        if bad.size:
            self._report_granule(frame, access, region, at, who, bad[0], previous[bad[0]], "write-read")
        warp = who >> 5
        clocks = frame.machine.clocks
        known = clocks.seen[warp, warp % clocks.warps]
        self._record_reads(at, who, mine, known)

    def read_rows(
        self, frame: Frame, access: Accessing, region: Region, index: Array, lanes: Array, words: Words
    ) -> None:
        """Loads of rows at `index` [n], whose addresses `lanes` pass: `read` of the words `words(index, lanes)`.

        A row's words belong to lanes of one warp.
        """
        self.read(frame, access, region, *words(index, lanes))

    def _record_reads(self, at: Array, who: Array, mine: Array, known: Array) -> None:
        """Enter reads of granules `at` by lanes `who`; `known` is what each one's warp knows of its own lanes."""
        warp = who >> 5
        column = warp % self.readers if self.readers else np.zeros(len(who), np.int64)
        previous = self._reads[column, at]
        if not self.readers:
            elsewhere = np.flatnonzero((previous != 0) & ((previous ^ mine) & _OTHER_WARP != 0))
            self._reads[1, at[elsewhere]] = previous[elsewhere]
        # Another lane of the same warp read since the last warp-level sync: no single lane stands for both.
        differs = previous ^ mine
        shared = (previous >> STEP_SHIFT > known) & (differs & _OTHER_WARP == 0) & (differs & (LANE | MANY) != 0)
        record = np.where(shared, mine | MANY, mine)
        self._reads[column, at] = record
        differs = self._reads[column, at] ^ record
        lost = np.flatnonzero((differs & _OTHER_WARP == 0) & (differs & LANE != 0))
        self._reads[column[lost], at[lost]] |= MANY
        if not self.readers:
            # Of several warps in this step one is now the last reader; another comes before it.
            others = np.flatnonzero(differs & _OTHER_WARP != 0)
            self._reads[1, at[others]] = record[others]

    def _unordered(self, frame: Frame, at: Array, who: Array, mine: Array) -> list[tuple[Array, Array, str]]:
        """Conflicts of a write: (positions, their previous records, kind of race)."""
        previous = self._writes[at]
        bad = self._conflicts(frame, who, previous, mine)
        found = [(bad, previous[bad], "write-write")]
        previous = self._reads[:, at]
        columns, rows = np.nonzero(previous)
        if rows.size:
            records = previous[columns, rows]
            bad = self._conflicts(frame, who[rows], records, mine[rows])
            bad = bad[np.argsort(rows[bad], kind="stable")]
            found.append((rows[bad], records[bad], "read-write"))
        return [item for item in found if item[0].size]

    def before_write(
        self, frame: Frame, access: Accessing, region: Region, index: Array, lanes: Array, words: Array
    ) -> None:
        """A store: it must not race with an earlier access, unless it writes what is there already."""
        at, rows = self.granules.cover(index, access.width)
        who = lanes if rows is None else lanes[rows]
        if frame.machine.orders(order.functions().writes, region, at, who, _strong(access)):
            return
        mine = self._mine(frame, who, _strong(access))
        for bad, previous, kind in self._unordered(frame, at, who, mine):
            row = bad if rows is None else rows[bad]
            differs = region.words(access.width)[index[row] // access.width] != words[row]
            differs = differs if differs.ndim == 1 else differs.any(axis=1)
            if differs.any():
                first = int(np.argmax(differs))
                self._report_granule(frame, access, region, at, who, bad[first], previous[first], kind)
        self._writes[at] = mine

    def after_write(
        self, frame: Frame, access: Accessing, region: Region, index: Array, lanes: Array, words: Array
    ) -> None:
        """Two lanes of one step must not have written different values to one place."""
        differs = region.words(access.width)[index // access.width] != words
        differs = differs if differs.ndim == 1 else differs.any(axis=1)
        if differs.any():
            row = int(np.argmax(differs))
            at, _ = self.granules.cover(index[row : row + 1], access.width)
            self._report(frame, access, region, int(index[row]), lanes[row], self._writes[at[0]], "write-write")

    def atomic(self, frame: Frame, access: Accessing, region: Region, index: Array, lanes: Array) -> None:
        """An atomic: it must not race with an earlier plain access."""
        self._modify(frame, access, region, index, lanes, STRONG)

    def copy(
        self, frame: Frame, access: Accessing, region: Region, index: Array, lanes: Array, strong: bool = False
    ) -> None:
        """A copy to here is issued: it must not race with an earlier access. What it will write is not known yet.

        `strong`: it is an atomic, which does not race with others.
        """
        self._modify(frame, access, region, index, lanes, ASYNCHRONOUS | STRONG if strong else ASYNCHRONOUS)

    def _modify(
        self, frame: Frame, access: Accessing, region: Region, index: Array, lanes: Array, flags: np.int64
    ) -> None:
        at, who = self._cover(index, lanes, access.width)
        if frame.machine.orders(order.functions().writes, region, at, who, flags):
            return
        self._refuse_write(frame, access, region, index, lanes, access.width, flags)
        self._writes[at] = self._mine(frame, who, flags)

    def _refuse_write(
        self, frame: Frame, access: Accessing, region: Region, index: Array, lanes: Array, width: int, flags: np.int64
    ) -> tuple[Array, Array]:
        """Report an access that is not ordered before writes of `width` bytes: (their slots, the lane of each)."""
        at, who = self._cover(index, lanes, width)
        for bad, previous, kind in self._unordered(frame, at, who, self._mine(frame, who, flags)):
            self._report_granule(frame, access, region, at, who, bad[0], previous[0], kind)
        return at, who

    def ordered_after(
        self, frame: Frame, access: Accessing, region: Region, index: Array, lanes: Array, records: Array
    ) -> None:
        """Each lane's use of an object must come after the write `records` [n] that made it."""
        if frame.machine.orders(order.functions().follows, region, records, lanes, _WEAK):
            return
        mine = self._mine(frame, lanes, _WEAK)
        bad = self._conflicts(frame, lanes, records, mine)
        if bad.size:
            first = bad[0]
            self._report(frame, access, region, int(index[first]), lanes[first], records[first], "write-read")

    def last_writes(self, index: Array, width: int) -> Array:
        """The record of the last write of each access at `index` [n]; 0 where nothing wrote."""
        at, row = self.granules.cover(index, width)
        latest = np.zeros(len(index), np.int64)
        np.maximum.at(latest, np.arange(len(index)) if row is None else row, self._writes[at])
        return latest

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
        mine = self._mine(frame, who, _WEAK)
        columns = [who // 32 % self.readers] if self.readers else range(len(self._reads))
        for records, place in ((self._writes, at), *((self._reads, (column, at)) for column in columns)):
            held = records[place]
            copied = (held & ASYNCHRONOUS != 0) & ((held ^ mine) & THREAD == 0)
            if copied.all():
                records[place] = mine
            elif copied.any():
                records[place] = np.where(copied, mine, held)

    def _report_granule(
        self,
        frame: Frame,
        access: Accessing,
        region: Region,
        at: Array,
        who: Array,
        position: int,
        record: Any,
        kind: str,
    ) -> None:
        """`_report` of the granule at slot `at[position]`, which lane `who[position]` accesses."""
        offset = self.granules.byte(int(at[position]))
        self._report(frame, access, region, offset, who[position], record, kind)

    def _report(
        self, frame: Frame, access: Accessing, region: Region, offset: int, lane: Any, record: Any, kind: str
    ) -> None:
        """Raise the error of a race on byte `offset` of all owners' bytes."""
        machine = frame.machine
        owner = whose(machine, region, offset)
        if region.stride:
            offset %= region.stride
        fields = machine.at(lane, access.instruction)
        record = np.int64(record)
        other_block, other_thread = machine.place_of_thread(int(record & THREAD))
        many = bool(record & MANY)
        verbs = {
            "write-write": "writes after a write by",
            "read-write": "writes after a read by",
            "write-read": "reads after a write by",
            "proxy": "copies, through the asynchronous proxy, what was written through the generic one by",
        }
        missing = "no fence.proxy.async lies between" if kind == "proxy" else "nothing orders the two"
        whom = f"several threads of the warp of thread {other_thread}" if many else f"thread {other_thread}"
        if record & ASYNCHRONOUS:
            whom = f"an asynchronous {'bulk ' if record & BULK else ''}copy of {whom}"
        elif record & BULK:
            whom = f"a bulk copy that completes on {machine.agent_name(int(record & THREAD))}"
        if record >> STEP_SHIFT == PENDING:
            whom += ", not known to be complete,"
        raise RaceError(
            f"{kind} race on byte {offset} of {region.name} ({region.space}){owner}: block {fields['block']} thread "
            f"{fields['thread']} {verbs[kind]} {whom} of block {other_block}, and {missing}; "
            f"{machine.describe(access.instruction)}",
            kind=kind,
            space=region.space,
            buffer=region.name,
            offset=offset,
            other_block=other_block,
            other_thread=None if many or (record & BULK and not record & ASYNCHRONOUS) else other_thread,
            **fields,
        )


def _strong(access: Accessing) -> np.int64:
    return STRONG if access.strong else _WEAK


def shadow_of(region: Region) -> RaceShadow:
    """Who accessed what in a region where races are looked for."""
    shadow = region.shadow
    assert isinstance(shadow, RaceShadow)
    return shadow


def refuse_early_exit(machine: Lanes, instruction: Instruction | None, leaving: Array) -> None:
    """Blocks whose last lanes are `leaving` (bool of all lanes) must not take away what others still use.

    Raises:
        RaceError: an access of another block to their shared memory is not ordered before any of their exits.
    """
    clocks = machine.clocks
    if clocks is None or instruction is None:
        return
    shadow = shadow_of(machine.shared)
    per_cta = machine.warps * 32
    staying = (machine.alive & ~leaving).reshape(machine.ctas, per_cta).any(axis=1)
    ended = leaving.reshape(machine.ctas, per_cta).any(axis=1) & ~staying
    for cta in np.flatnonzero(ended).tolist():
        begin = cta * machine.shared.stride
        index, records = shadow.records(begin, begin + machine.shared.stride)
        # Copies that have not landed are for the bulk copies' own check to find.
        landed = records >> STEP_SHIFT != PENDING
        agents = records & (BULK | ASYNCHRONOUS) == BULK
        foreign = landed & (agents | ((records & THREAD) // per_cta != machine.first_cta + cta))
        index, records = index[foreign], records[foreign]
        unordered = np.ones(len(records), bool)
        for warp in range(cta * machine.warps, (cta + 1) * machine.warps):
            unordered &= ~clocks.ordered(np.full(len(records), warp * 32), records)
        if not unordered.any():
            continue
        bad = int(np.argmax(unordered))
        record, byte = records[bad], int(index[bad]) - begin
        lane = int(np.flatnonzero(leaving & (machine.lane_cta == cta))[-1])
        other_block, other_thread = machine.place_of_thread(int(record & THREAD))
        fields = machine.at(lane, instruction)
        agent, many = bool(agents[foreign][bad]), bool(record & MANY)
        whom = f"thread {other_thread} of block {other_block}"
        if agent:
            whom = f"a bulk copy that completes on {machine.agent_name(int(record & THREAD))}"
        raise RaceError(
            f"exit race on byte {byte} of shared memory (shared): block {fields['block']} exits, and nothing orders an "
            f"access to its shared memory by {whom} before that; {machine.describe(instruction)}",
            kind="exit",
            space="shared",
            buffer=machine.shared.name,
            offset=byte,
            other_block=other_block,
            other_thread=None if many or agent else other_thread,
            **fields,
        )
