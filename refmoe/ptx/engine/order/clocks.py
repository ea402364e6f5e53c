"""What each lane knows of what others did: the vector clocks of race detection.

Time is the launch's step counter. It ticks wherever accesses before and after have to be told apart: after every
instruction that releases, and after every barrier. `seen[row, column]` is the step up to which everything that the
column did happens before what the lanes of the row do next. A warp whose lanes know the same has one row; a lane that
has synchronised by itself has a row of its own until it meets the other lanes of its warp again.

    columns    warps of the cluster | its lanes | copies of its lanes | agents

The last three are there where lanes synchronise by themselves. With `fence.sc` there is a part behind them, by lane:
the step of the last such fence of the lane that must have come before now, see `refmoe.ptx.engine.order.strong`. With
`fence.mbarrier_init` there is one more, by lane: the step of the last such fence of the lane that is known. It orders
each `mbarrier.init` of that lane in front of it, and nothing else.

An asynchronous copy is an agent of its own: what it writes or reads is ordered after its issue, but before nothing
until its thread has waited for it (from then on it counts as that thread's access) or a barrier in memory has
announced it. Bulk copies into shared memory complete on a barrier, so there each barrier is an agent, whose accesses
are ordered before what follows a wait for its phase.

Bulk copies also work in another proxy: what they read must have been written through the same one, or lie before a
proxy fence. So with bulk copies every row goes on with a second half, of the same columns: the step up to which what
that column did lies before a proxy fence that is ordered before now.

What lanes know of other clusters is a `Knowledge` for each row.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from refmoe.ptx.engine.order.filled import ColumnPlaces, Filled, whole_warps
from refmoe.ptx.engine.order.knowledge import Knowledge, Pool
from refmoe.ptx.native.clocks import clear_rows, copy_rows, raise_rows, raise_whole
from refmoe.ptx.state.pages import PAGE, cleared, untouched
from refmoe.ptx.state.records import (
    AGENTS,
    ASYNCHRONOUS,
    BULK,
    PENDING,
    SEVERAL,
    SEVERAL_SHIFT,
    STEP_SHIFT,
    THREAD,
    Several,
)

Array = Any
LANES = 32
# Compared with an array, an enum's member is asked for a handful of attributes first, each time.
_ONE, _SOME_LANES, _SOME_WARPS, _SOME_CLUSTERS = (
    np.int64(each.value) for each in (Several.ONE, Several.LANES, Several.WARPS, Several.CLUSTERS)
)

# Of records as plain integers.
_THREAD, _SEVERAL, _AGENTS = int(THREAD), int(SEVERAL), int(ASYNCHRONOUS | BULK)


class Clocks:
    """What the lanes of some clusters know.

    Args:
        warps: of a cluster.
        clusters: that run together.
        first_cluster: number of the first of them in the grid.
        pool: of the launch.
        by_lane: whether single lanes may synchronise: by barriers in memory, strong accesses, fences, or in a part of
            a warp.
        bulk: whether there are bulk copies; only with `by_lane`.
        sequential: whether there are fences `.sc`; only with `by_lane`.
        inits: whether there are `fence.mbarrier_init`; only with `by_lane`.
        leave: whether lanes that have accessed memory may exit while others of their warp go on; only with `by_lane`.
        agents: columns for agents.
        absent: numbers of the warps of a cluster that have no lanes, int64 [n]; None for none.

    Attributes:
        columns: of a row.
        lane, copy, agents, crossed, fence, init: the first column of lanes, of their copies, of agents, of the second
            half, of fences `.sc`, and of fences of `mbarrier.init`.
        room: agents of a cluster that can be told apart.
        last_fence: int64 [lanes], step of the last `fence.sc` of each lane, 0 for none.
        now: the step.
        seen: int64 [warps + lanes here, columns]: rows of warps, then rows of lanes.
        apart: int64 [warps here], a bit for each lane that has a row of its own.
        beyond: by row, what is known of other clusters.
        foreign: int64 [rows], the address of the rows of that `Knowledge`, or 0.
        hindsight: what tells of a lane and a record what was only found later; None where nothing is.
    """

    def __init__(
        self, warps: int, clusters: int, first_cluster: int, pool: Pool, by_lane: bool = False, bulk: bool = False,
        sequential: bool = False, inits: bool = False, leave: bool = False, agents: int = AGENTS,
        absent: Array | None = None,
    ) -> None:  # fmt: skip
        self.warps, self.pool = warps, pool
        self.by_lane, self.bulk = by_lane, bulk
        self.lane, self.copy = warps, warps * (1 + LANES)
        self.agents = warps * (1 + 2 * LANES)
        self.crossed = self.agents + agents
        self.room = min(agents, LANES * warps)
        self._absent = absent
        self.fence = 2 * self.crossed if bulk else self.agents if by_lane else warps
        self.init = self.fence + (LANES * warps if sequential else 0)
        self.columns = self.init + (LANES * warps if inits else 0)
        self.sequential, self._inits, self._leave = sequential, inits, leave
        places = self.lane, self.copy, self.agents, self.crossed, self.fence, self.init, self.columns
        self.filled = Filled(ColumnPlaces(warps, *places, by_lane, bulk))
        self.last_fence = np.zeros(clusters * warps * LANES, np.int64)
        pool.fit(self.columns)
        self.all_warps = clusters * warps
        rows = self.all_warps * (1 + LANES) if by_lane else self.all_warps
        self.seen = untouched((rows, self.columns), np.int64)
        self.foreign = np.zeros(rows, np.int64)
        self.apart = np.zeros(self.all_warps, np.int64)
        # Lanes whose rows have been written.
        self._had_row = np.zeros(len(self.last_fence), np.bool_)
        self.beyond: dict[int, Knowledge] = {}
        self.hindsight: Callable[[int, int], bool] | None = None
        self.now = 0
        # Whether columns behind those of warps, or rows of lanes, have ever held something.
        self._wide = False
        # Nothing of `seen` is written: it is zeros, and most of its pages need never become resident.
        self._begin(first_cluster)

    def restart(self, first_cluster: int) -> None:
        """Become the clocks of as many other clusters, whose lanes know nothing yet."""
        # Rows of lanes are written whenever a lane gets one.
        self._wide = self._wide or self.used > self.warps
        self.seen[: self.all_warps, : self.columns if self._wide else self.warps] = 0
        for each in (self.foreign, self.apart, *((self.last_fence,) if self.sequential else ())):
            each[:] = 0
        self.beyond.clear()
        self._begin(first_cluster)

    def _begin(self, first_cluster: int) -> None:
        """Be the clocks of these clusters; every row is zeros."""
        self.first_cluster, self.first_warp = first_cluster, first_cluster * self.warps
        if self._absent is not None:
            # They do nothing, so that whoever asks knows all that they did.
            self.seen[: self.all_warps, self._absent] = PENDING
        # Columns that may hold something, see `spans`: those of warps, until somebody synchronises by itself.
        self.used = self.warps
        # By warp, lanes that others have met at `bar.warp.sync` before they executed theirs.
        self._met: dict[int, int] = {}

    def release(self) -> None:
        """Give memory back: no lane of these clusters runs any more."""
        if not self._wide and self.used == self.warps:
            known = self.seen[: self.all_warps, : self.warps]
            known[:] = 0
            cleared(self.seen, max(known.nbytes, len(known) * PAGE))
            return
        rows = np.concatenate([np.arange(self.all_warps), self.all_warps + np.flatnonzero(self._had_row)])
        clear_rows(self.seen, rows, self.filled.spans(self.columns))
        cleared(self.seen, len(rows) * self.columns * self.seen.itemsize)

    # Rows

    def rows(self, lanes: Array) -> Array:
        """The row of each of `lanes` [n]."""
        warps = lanes >> 5
        if not np.count_nonzero(self.apart):
            return warps
        own = self.apart[warps] >> (lanes & 31) & 1
        return np.where(own != 0, self.all_warps + lanes, warps)

    @property
    def most_used(self) -> int:
        """What `used` may be behind the next barrier."""
        return self.columns if self.sequential or self._leave else self.used

    def cluster(self, row: int) -> int:
        """The cluster of a row, in the grid."""
        return self.first_cluster + (row if row < self.all_warps else row - self.all_warps >> 5) // self.warps

    def use_lanes(self) -> None:
        """Columns behind those of warps may hold something from now on."""
        self.used = self.columns

    def own_row(self, lane: int) -> int:
        """The row of a lane, which has one of its own from now on."""
        warp, row = lane >> 5, self.all_warps + lane
        self.used = self.columns
        if not self.apart[warp] >> (lane & 31) & 1:
            for begin, columns in self.filled.spans(self.columns).tolist():
                self.seen[row, begin : begin + columns] = self.seen[warp, begin : begin + columns]
            self._know(row, self.beyond.get(warp))
            self._had_row[lane] = True
            self.apart[warp] |= np.int64(1) << (lane & 31)
        return row

    def _own_rows(self, lanes: Array) -> Array:
        """The rows of `lanes` [n], each once, which have rows of their own from now on."""
        self.used = self.columns
        rows = self.all_warps + lanes
        new = np.flatnonzero((self.apart[lanes >> 5] >> (lanes & 31) & 1) == 0)
        if new.size:
            warps = lanes[new] >> 5
            copy_rows(self.seen, rows[new], self.seen, warps, self.filled.spans(self.columns))
            self.foreign[rows[new]], self._had_row[lanes[new]] = 0, True
            if self.beyond:
                for row, warp in zip(rows[new].tolist(), warps.tolist(), strict=True):
                    self._know(row, self.beyond.get(warp))
            np.bitwise_or.at(self.apart, warps, np.int64(1) << (lanes[new] & 31))
        return rows

    def _know(self, row: int, beyond: Knowledge | None) -> None:
        self.foreign[row] = 0 if beyond is None else beyond.address
        if beyond is None:
            self.beyond.pop(row, None)
        else:
            self.beyond[row] = beyond

    def _lanes_apart(self, warp: int) -> list[int]:
        """Rows of the lanes of a warp that have their own."""
        bits, first = int(self.apart[warp]), self.all_warps + warp * LANES
        return [first + lane for lane in range(LANES) if bits >> lane & 1]

    # What lanes pass on, and learn

    def column_of(self, lanes: Array) -> Array:
        """The column of each of `lanes` [n] in a row."""
        return self.lane + lanes % (LANES * self.warps)

    def copy_of(self, lanes: Array) -> Array:
        """The column of the copies of each of `lanes` [n] in a row; from now on they may hold something."""
        self.filled.copies()
        return self.copy + lanes % (LANES * self.warps)

    def agents_of(self, numbers: Array) -> Array:
        """The columns of agents, numbered in their cluster; from now on they may hold something."""
        self.filled.agents(int(numbers.max()) + 1)
        return self.agents + numbers

    def mark(self, table: Array, rows: Array, lanes: Array, step: int) -> None:
        """Each of `lanes` [n] is known until `step` in the row of `table` at the same place of `rows` [n].

        No pair of a row and a lane comes twice.
        """
        self.used = self.columns
        first, alone = whole_warps(rows, lanes)
        if first.size:
            table[rows[first], (lanes[first] >> 5) % self.warps] = step
        if first.size * LANES < len(lanes):
            self.filled.lanes((lanes[alone] >> 5) % self.warps)
            table[rows[alone], self.column_of(lanes[alone])] = step
        if self.sequential:
            self.mark_met_fences(table, rows, lanes >> 5)
            column = self.fence + lanes % (LANES * self.warps)
            np.maximum.at(table, (rows, column), self.last_fence[lanes])

    def mark_met_fences(self, table: Array, rows: Array, warps: Array) -> None:
        """The last fences of lanes of `warps` [n] that the same of `rows` [n] of `table` knows come before it.

        At a `bar.warp.sync` of a whole warp native code says that the warp is known, and nothing of its fences.
        """
        lanes = warps[:, None] * LANES + np.arange(LANES)
        within = lanes % (LANES * self.warps)
        known = np.maximum(table[rows[:, None], self.lane + within], table[rows, warps % self.warps][:, None])
        last = self.last_fence[lanes]
        np.maximum.at(table, (rows[:, None], self.fence + within), np.where(last <= known, last, 0))

    def settle_fences(self, lanes: Array) -> None:
        """`lanes` are about to execute a fence: the one before it is marked wherever their warps know of it."""
        if not self.last_fence[lanes].any():
            return
        self.used = self.columns
        for warp in np.unique(lanes >> 5).tolist():
            rows = np.array([warp, *self._lanes_apart(warp)])
            self.mark_met_fences(self.seen, rows, np.full(len(rows), warp))

    def knowledge_of(self, lane: int) -> Knowledge:
        """What a lane would pass on now."""
        row = int(self.rows(np.array([lane]))[0])
        return self.passed_on(lane, self.seen[row, : self.filled.end], self.beyond.get(row), self.now)

    def passed_on(self, lane: int, row: Array, beyond: Knowledge | None, step: int) -> Knowledge:
        """What a lane passes on that knew `row` [columns] and `beyond` when it released at `step`."""
        self.used = self.columns
        self.filled.lane((lane >> 5) % self.warps)
        number = self.pool.add(row, self.lane + lane % (LANES * self.warps), step)
        if self.sequential:
            self.mark(self.pool.rows, np.array([number]), np.array([lane]), step)
        return self.pool.with_row(self.first_cluster + (lane >> 5) // self.warps, number, beyond)

    def learn_by_lane(self, lanes: Array, knowledge: Knowledge | None, alive: Array) -> None:
        """`lanes` [n], each once, come to know something; `alive` are the lanes that have not exited, bool [all]."""
        if knowledge is None:
            return
        by_warp: dict[int, list[int]] = {}
        for lane in lanes.tolist():
            by_warp.setdefault(lane >> 5, []).append(lane)
        for warp, mine in by_warp.items():
            number = int(knowledge.rows[self.first_cluster + warp // self.warps])
            for row in self._rows_for(warp, mine, alive):
                if number:
                    np.maximum(self.seen[row], self.pool.rows[number], out=self.seen[row])
                    self._raise_whole(np.array([row]))
                self._know(row, self.pool.join(self.beyond.get(row), knowledge))

    def _rows_for(self, warp: int, lanes: list[int], alive: Array) -> list[int]:
        """The rows of some lanes of one warp, which may know more than its others from now on."""
        self.used = self.columns
        if not self.apart[warp] and len(lanes) == np.count_nonzero(alive[warp * LANES : (warp + 1) * LANES]):
            return [warp]
        return [self.own_row(lane) for lane in lanes]

    def _raise_whole(self, rows: Array) -> None:
        """In `rows` [n], each once, a warp all of whose lanes are known is known as a whole."""
        raise_whole(self.seen, rows, self.lane, self.filled.warps)

    def learn_rows(
        self, lanes: Array, numbers: Array, known: Array, beyond: Mapping[int, Knowledge], alive: Array
    ) -> None:
        """`lanes` [n], each once, come to know of their own cluster the rows `numbers` [n] of `known` [m, columns].

        `beyond` has what those rows know of other clusters, by number.
        """
        if not lanes.size:
            return
        # Of copies and agents too.
        self._wide = True
        warps = lanes >> 5
        parts = np.flatnonzero((warps[1:] != warps[:-1]) | (numbers[1:] != numbers[:-1])) + 1
        starts, ends = np.append(0, parts), np.append(parts, len(lanes))
        sizes = ends - starts
        # Whether the lanes of a run are all those that live in their warp, which learn as one.
        whole = self._are_whole(warps[starts], sizes, alive)
        if np.count_nonzero(whole) == len(whole):
            rows, numbers = warps[starts], numbers[starts]
        else:
            some = np.repeat(~whole, sizes)
            rows = np.concatenate([warps[starts[whole]], self._own_rows(lanes[some])])
            numbers = np.concatenate([numbers[starts[whole]], numbers[some]])
        raise_rows(self.seen, rows, known, numbers, self.filled.spans(self.columns))
        if self.by_lane:
            self._raise_whole(rows)
        if beyond:
            for row, number in zip(rows.tolist(), numbers.tolist(), strict=True):
                if number in beyond:
                    self._know(row, self.pool.join(self.beyond.get(row), beyond[number]))

    def _are_whole(self, warps: Array, counts: Array, alive: Array) -> Array:
        """Whether `counts` [n] lanes of each of `warps` [n] are all its living ones, and know the same; bool [n]."""
        living = np.count_nonzero(alive.reshape(-1, LANES)[warps], axis=1)
        return (self.apart[warps] == 0) & (counts == living)

    def copies_seen(self, lanes: Array, step: Array, alive: Array) -> None:
        """Lanes have waited for their own copies up to `step` [n]."""
        self.used = self.columns
        known = np.zeros((len(lanes), self.columns), np.int64)
        known[np.arange(len(lanes)), self.copy_of(lanes)] = step
        self.learn_rows(lanes, np.arange(len(lanes)), known, {}, alive)

    # Fences `.sc` that must have come before, without what they pass on being known

    def known_threads(self, row: int) -> Array:
        """int64 [threads of a cluster]: the step up to which a row knows each of them."""
        known = self.seen[row]
        return np.maximum(known[self.lane : self.copy], np.repeat(known[: self.warps], LANES))

    def learn_reached(self, lane: int, known: Array) -> None:
        """The fences of a row come before what a lane does from now on."""
        row = int(self.rows(np.array([lane]))[0])
        fences = slice(self.fence, self.init)
        if (self.seen[row, fences] < known[fences]).any():
            part = self.seen[self.own_row(lane), fences]
            np.maximum(part, known[fences], out=part)

    def forced(self, rows: Array, known: Array) -> Array:
        """(row, thread in the cluster, step) [n, 3] of fences that `rows` have before now, and `known` do not know.

        `rows` and `known` are [m, columns], those of the same number of one cluster.
        """
        steps = rows[:, self.fence : self.init]
        some = np.flatnonzero(steps.any(axis=1))
        if not some.size:
            return np.zeros((0, 3), np.int64)
        steps, known = steps[some], known[some]
        theirs = np.maximum(known[:, self.lane : self.copy], np.repeat(known[:, : self.warps], LANES, axis=1))
        at, threads = np.nonzero(steps > theirs)
        return np.stack([some[at], threads, steps[at, threads]], axis=1)

    def knows_block(self, lanes: Array, owners: Array, warps: int) -> Array:
        """Whether something that CTA `owners` [n] did, of `warps` warps, comes before what `lanes` [n] do now."""
        own, first = self.rows(lanes), owners * warps % self.warps
        found = np.zeros(len(lanes), bool)
        for number, (row, begin) in enumerate(zip(own.tolist(), first.tolist(), strict=True)):
            end = begin + warps
            found[number] = self.seen[row, begin:end].any()
            if self.by_lane:
                found[number] |= self.seen[row, self.lane + LANES * begin : self.lane + LANES * end].any()
        return found

    # Fences of `mbarrier.init`

    def fenced_init(self, lane: int, step: int) -> Array:
        """The row that a `fence.mbarrier_init` of a lane at some step passes on."""
        made = np.zeros(self.columns, np.int64)
        self.filled.inits()
        made[self.init + lane % (LANES * self.warps)] = step
        return made

    def knows_init(self, lanes: Array, record: Array) -> Array:
        """Whether each of `lanes` [n] knows of a fence behind the `mbarrier.init` of `record` [n] in its cluster."""
        if not self._inits:
            return np.zeros(len(lanes), bool)
        column = self.init + (record & THREAD) % (LANES * self.warps)
        return np.asarray(self.seen[self.rows(lanes), column] >= record >> STEP_SHIFT)

    # Barriers, at which whole warps meet

    def bring(
        self, table: Array, rows: Array, warps: Array, alive: Array, exist: Array
    ) -> list[Knowledge | None] | None:
        """Warps, all of whose living lanes are here, come to a barrier; returns what they know of other clusters, [n],
        or None where nobody knows of others.

        Args:
            table: int64 [m, columns], what was brought to barriers before, raised by what these bring.
            rows: int64 [n], of the table: the barrier of each warp.
            warps: int64 [n].
            alive: bool [all lanes], see `knowledge`.
            exist: likewise.
        """
        apart = self.apart[warps]
        if self.sequential or (self._leave and not alive.reshape(-1, LANES)[warps].all()):
            known, of_others = self.knowledge(warps, alive, exist)
            raise_rows(table[:, : known.shape[1]], rows, known, spans=self.filled.spans(known.shape[1]))
            return of_others if self.beyond else None
        spans = self.filled.spans(self.used)
        raise_rows(table[:, : self.used], rows, self.seen[:, : self.used], warps, spans)
        beyond = [self.beyond.get(warp) for warp in warps.tolist()] if self.beyond else []
        own, theirs = list[int](), list[int]()
        for number in np.flatnonzero(apart).tolist():
            lanes = self._lanes_apart(int(warps[number]))
            own += lanes
            theirs += [int(rows[number])] * len(lanes)
            for row in lanes if beyond else ():
                beyond[number] = self.pool.join(beyond[number], self.beyond.get(row))
        raise_rows(
            table[:, : self.used], np.array(theirs, np.int64), self.seen[:, : self.used], np.array(own, np.int64), spans
        )
        # Nobody knows a later step of them.
        table[rows, warps % self.warps] = self.now
        return beyond or None

    def knowledge(self, warps: Array, alive: Array, exist: Array) -> tuple[Array, list[Knowledge | None]]:
        """What warps, all of whose living lanes are here, bring to a barrier now: [n, used], and beyond [n].

        `alive` and `exist` are bool [all lanes]. A lane that has exited executes no barrier: what it did since the last
        one is ordered before nothing.
        """
        here = alive.reshape(-1, LANES)[warps]
        left = np.zeros(len(warps), np.bool_)
        if self._leave:
            left = (exist.reshape(-1, LANES)[warps] & ~here).any(axis=1)
        if left.any() or (self.sequential and self.last_fence.any()):
            self.used = self.columns
        known = self.seen[warps, : self.used]
        beyond: list[Knowledge | None] = [None] * len(warps)
        if self.beyond:
            beyond = [self.beyond.get(warp) for warp in warps.tolist()]
        for number in np.flatnonzero(self.apart[warps]).tolist():
            for row in self._lanes_apart(int(warps[number])):
                if left[number] and not alive[row - self.all_warps]:
                    continue
                np.maximum(known[number], self.seen[row, : self.used], out=known[number])
                beyond[number] = self.pool.join(beyond[number], self.beyond.get(row))
        known[np.flatnonzero(~left), warps[~left] % self.warps] = self.now
        for number in np.flatnonzero(left).tolist():
            self.filled.lane(int(warps[number]) % self.warps)
            known[number, self.column_of(warps[number] * LANES + np.flatnonzero(here[number]))] = self.now
        if self.sequential and self.used == self.columns:
            for number, warp in enumerate(warps.tolist()):
                self._mark_fences(known[number], warp)
        return known, beyond

    def _mark_fences(self, row: Array, warp: int) -> None:
        """The last fences of a warp's lanes come before what a row will know."""
        if self.sequential:
            column = self.fence + warp % self.warps * LANES
            part = row[column : column + LANES]
            np.maximum(part, self.last_fence[warp * LANES : (warp + 1) * LANES], out=part)

    def learn(self, warps: Array, known: Array, numbers: Array, beyond: list[Knowledge | None] | None) -> None:
        """`warps` [n] leave a barrier with what all participants, they among them, brought.

        `known` [m, used], of which each has row `numbers` [n], is about their own cluster, `beyond` [n] about others;
        None where nobody knows of others.
        """
        raise_rows(self.seen[:, : known.shape[1]], warps, known, numbers, self.filled.spans(known.shape[1]))
        self.apart[warps] = 0
        if beyond is None:
            return
        learned, addresses = list[int](), list[int]()
        for warp, theirs in zip(warps.tolist(), beyond, strict=True):
            if theirs is None:
                continue
            mine = self.beyond.get(warp)
            together = theirs if mine is None or mine is theirs else self.pool.join(mine, theirs)
            assert together is not None
            if together is not mine:
                self.beyond[warp] = together
                learned.append(warp)
                addresses.append(together.address)
        self.foreign[learned] = addresses

    def meet(self, lanes: Array, members: Array, alive: Array, exist: Array) -> None:
        """`lanes` [n] execute `bar.warp.sync` with member masks, uint32 [n]; `alive` and `exist` are bool [all lanes].

        All members are at such an instruction, not all of them at this one: those who come to it when others have
        passed theirs have met already. A warp that lost a lane does not meet as a whole: what that lane did is ordered
        before nothing.
        """
        groups: dict[tuple[int, int], int] = {}
        for lane, member in zip(lanes.tolist(), members.tolist(), strict=True):
            key = (lane >> 5, member)
            groups[key] = groups.get(key, 0) | 1 << (lane & 31)
        for (warp, member), here in groups.items():
            met = self._met.get(warp, 0)
            if here & ~met == 0:
                self._met[warp] = met & ~here
                continue
            every = member & _bits(alive, warp)
            self._met[warp] = met & ~here | every & ~here
            if every == _bits(exist if self.by_lane else alive, warp):
                if self.apart[warp]:
                    self._unite(self._lanes_apart(warp), [warp])
                    self.apart[warp] = 0
                self.seen[warp, warp % self.warps] = self.now
                self._mark_fences(self.seen[warp], warp)
                continue
            whom = warp * LANES + np.array([lane for lane in range(LANES) if every >> lane & 1])
            rows = [self.own_row(lane) for lane in whom.tolist()]
            for row in rows:
                self.mark(self.seen, np.full(len(whom), row), whom, self.now)
            self._unite(rows, rows)

    def _unite(self, rows: list[int], targets: list[int]) -> None:
        """`targets` come to know what `rows` and they themselves do."""
        every = [*targets, *rows]
        self.seen[targets] = self.seen[every].max(axis=0)
        beyond: Knowledge | None = None
        for row in every:
            beyond = self.pool.join(beyond, self.beyond.get(row))
        for row in targets:
            self._know(row, beyond)

    # Proxies

    def cross(self, lanes: Array, alive: Array) -> None:
        """`lanes` executed a proxy fence: what is ordered before it may be used through the other proxy."""
        half = self.crossed
        present, which, counts = np.unique(lanes >> 5, return_inverse=True, return_counts=True)
        whole = self._are_whole(present, counts, alive)
        alone, warps = lanes[~whole[which]], present[whole]
        rows = np.r_[warps, self._own_rows(alone)]
        raise_rows(self.seen[:, half : 2 * half], rows, self.seen[:, :half], rows, self.filled.spans(half))
        self.seen[warps, half + warps % self.warps] = self.now
        self.filled.lanes((alone >> 5) % self.warps)
        self.seen[self.all_warps + alone, half + self.column_of(alone)] = self.now

    def has_crossed(self, lanes: Array, record: Array) -> Array:
        """Whether a proxy fence lies between the plain write of `record` in the cluster and each of `lanes`; int64 [n].

        Of a record that stands for several threads, whether one lies behind the writes of all that these may be.
        """
        half, nobody = self.seen[:, self.crossed : 2 * self.crossed], np.full(len(lanes), -1)
        known = (record & SEVERAL) >> SEVERAL_SHIFT != _SOME_CLUSTERS
        return known & self._in_rows(half, self.rows(lanes), record, nobody)

    # Order

    def record(self, lanes: Array) -> Array:
        """A plain access by `lanes` now, in the form that `ordered` takes."""
        return (self.now << STEP_SHIFT) + self.first_warp * LANES + lanes

    def ordered(self, lanes: Array, record: Array) -> Array:
        """Whether the access of `record` happens before what each of `lanes` does now; both int64 [n].

        A record that stands for several threads is, if all that these may have done is.
        """
        found, hindsight = self.known(lanes, record), self.hindsight
        if hindsight is not None:
            for each in np.flatnonzero(~found).tolist():
                found[each] = hindsight(int(lanes[each]), int(record[each]))
        return found

    def known(self, lanes: Array, record: Array) -> Array:
        """`ordered` without hindsight."""
        cluster = ((record & THREAD) >> 5) // self.warps
        rows = self.rows(lanes)
        own = (lanes >> 5) // self.warps + self.first_cluster
        found, inside = np.zeros(len(record), bool), np.flatnonzero(own == cluster)
        found[inside] = self._in_rows(self.seen, rows[inside], record[inside], lanes[inside] % (LANES * self.warps))
        everywhere = (record & SEVERAL) >> SEVERAL_SHIFT == _SOME_CLUSTERS
        elsewhere = np.flatnonzero((own != cluster) & ~everywhere)
        # Most rows know nothing of other clusters, however many records there are.
        for row in set(rows[elsewhere].tolist()) & self.beyond.keys():
            whose = elsewhere[rows[elsewhere] == row]
            numbers = self.beyond[row].rows[cluster[whose]]
            for each in np.flatnonzero(numbers).tolist():
                found[whose[each]] = self.is_known(int(numbers[each]), int(record[whose[each]]))
        for each in np.flatnonzero(everywhere).tolist():
            found[each] = self._everywhere(int(rows[each]), int(own[each]), int(record[each] >> STEP_SHIFT))
        return found

    def is_ordered(self, lane: int, record: int) -> bool:
        """`ordered` of one lane and one record."""
        return self.knows(lane, record) or (self.hindsight is not None and self.hindsight(lane, record))

    def knows(self, lane: int, record: int) -> bool:
        """`known` of one lane and one record; arrays of one element take ten times as long."""
        thread, several, step = record & _THREAD, (record & _SEVERAL) >> SEVERAL_SHIFT, record >> STEP_SHIFT
        warp, cluster = thread >> 5, (lane >> 5) // self.warps + self.first_cluster
        row = self.all_warps + lane if int(self.apart[lane >> 5]) >> (lane & 31) & 1 else lane >> 5
        if several == Several.CLUSTERS:
            return self._everywhere(row, cluster, step)
        if warp // self.warps != cluster:
            beyond = self.beyond.get(row)
            number = 0 if beyond is None else int(beyond.rows[warp // self.warps])
            return number != 0 and self.is_known(number, record)
        known, width = self.seen[row], LANES * self.warps
        if several or record & _AGENTS:
            return bool(self._in_rows(self.seen, np.array([row]), np.array([record]), np.array([lane % width]))[0])
        if known[warp % self.warps] >= step:
            return True
        return self.by_lane and bool(known[self.lane + thread % width] >= step)

    def is_known(self, number: int, record: int) -> bool:
        """Whether a row of the pool, about the cluster of a record, has reached it."""
        if not record & (_AGENTS | _SEVERAL):
            # Polls ask this for each store that they might read, and arrays of one element take ten times as long.
            known, thread, step = self.pool.rows[number], record & _THREAD, record >> STEP_SHIFT
            if known[(thread >> 5) % self.warps] >= step:
                return True
            return self.by_lane and bool(known[self.column_of(thread)] >= step)
        return bool(self._in_rows(self.pool.rows, np.array([number]), np.array([record]), np.array([-1]))[0])

    def reaches(self, known: Array, record: int) -> bool:
        """Whether the first columns of a row, about the cluster of a record, have reached it."""
        row = np.pad(known, (0, self.columns - len(known)))[np.newaxis]
        return bool(self._in_rows(row, np.array([0]), np.array([record]), np.array([-1]))[0])

    def _in_rows(self, table: Array, rows: Array, record: Array, own: Array) -> Array:
        """`ordered` by rows of `table` about the cluster of each record, but for records of several clusters.

        `own` are the threads of the rows in the cluster, which need not know themselves, -1 for none.
        """
        step, thread = record >> STEP_SHIFT, record & THREAD
        several = (record & SEVERAL) >> SEVERAL_SHIFT
        plain = record & (ASYNCHRONOUS | BULK) == 0
        found = plain & (table[rows, (thread >> 5) % self.warps] >= step)
        if self.by_lane:
            one = plain & (several == _ONE)
            found |= one & (table[rows, self.column_of(thread)] >= step)
            copied = (record & (ASYNCHRONOUS | BULK) == ASYNCHRONOUS) & (several == _ONE)
            found |= copied & (table[rows, self.copy + thread % (LANES * self.warps)] >= step)
        if self.bulk:
            bulk = record & (ASYNCHRONOUS | BULK) == BULK
            agent = np.where(bulk, thread % (LANES * self.warps), 0)
            found |= bulk & (table[rows, self.agents + agent] >= step)
        if not several.any():
            return found
        for each in np.flatnonzero(plain & (several == _SOME_WARPS)).tolist():
            row = table[rows[each]]
            missing = np.flatnonzero(row[: self.warps] < step[each]).tolist()
            found[each] = all(self._knows_lanes(row, warp, int(step[each]), int(own[each])) for warp in missing)
        for each in np.flatnonzero(plain & (several == _SOME_LANES) & ~found).tolist():
            warp = int(thread[each] >> 5) % self.warps
            found[each] = self._knows_lanes(table[rows[each]], warp, int(step[each]), int(own[each]))
        return found

    def _knows_lanes(self, row: Array, warp: int, step: int, own: int) -> bool:
        """Whether a row knows all threads of a warp one by one."""
        if not self.by_lane:
            return False
        first = warp * LANES
        known = row[self.lane + first : self.lane + first + LANES] >= step
        if first <= own < first + LANES:
            known[own - first] = True
        return bool(known.all())

    def _everywhere(self, row: int, cluster: int, step: int) -> bool:
        """Whether all that the grid did until a step happens before what the lanes of a row do now."""
        beyond = self.beyond.get(row)
        if not bool((self.seen[row, : self.warps] >= step).all()):
            return False
        if beyond is None or self.pool.clusters == 1:
            return self.pool.clusters == 1
        others = np.delete(beyond.rows, cluster)
        return bool(others.all() and (self.pool.rows[others, : self.warps] >= step).all())


def _bits(lanes: Array, warp: int) -> int:
    """The lanes of a warp, of bool [all lanes], as bits."""
    return int(np.packbits(lanes[warp * LANES : (warp + 1) * LANES], bitorder="little").view(np.uint32)[0])
