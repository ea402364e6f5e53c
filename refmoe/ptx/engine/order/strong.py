"""Strong accesses and fences: what they pass from thread to thread (PTX ISA, "Synchronizes").

A location remembers what a thread that reads it may learn: a release pattern is a release, or a fence before a strong
write, and what it passes on travels through atomics, until another write takes its place. An acquire pattern is an
acquire, or a fence behind a strong read. Both ends have scopes, and they synchronise if each scope has the other's
thread. So a fence of `.cta` orders nothing between CTAs, and an acquire of one location says nothing of another.
Each element of a vector is a location by itself, see `Access.unit`: it does not matter how the other end is spelled.

Fences `.sc` have one order, and synchronise in it. Between two of them that order is known if one must have come before
the other: if it happens before, or strong accesses say so, by what they read from, read before it was overwritten, or
overwrote ("Causality", "Fence-SC"). Otherwise either order is legal, and nothing is concluded from that of this launch.

Of two strong writes that nothing orders, the one that overwrote the other in this launch counts as the later one. So a
race that only their other order has is found under the schedules that have it. To conclude nothing from their order
would be a false alarm: a third thread that reads the one and then the other knows it, and may pass that on.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import Any, Protocol

import numpy as np

from refmoe.ptx.engine.order.clocks import LANES, Clocks
from refmoe.ptx.engine.order.histories import Choosing
from refmoe.ptx.engine.order.knowledge import Knowledge
from refmoe.ptx.engine.order.locations import (
    FenceKnowledge,
    Location,
    Order,
    Reach,
    Reached,
    ReachedAccess,
    Releases,
    SequentialFence,
)
from refmoe.ptx.engine.order.polls import Poll, Polls
from refmoe.ptx.state.memory import Region
from refmoe.ptx.state.numbers import different
from refmoe.ptx.state.records import CLUSTER, GRID, SEVERAL, STEP_SHIFT, THREAD
from refmoe.ptx.text.syntax import Instruction

Array = Any
# Writes of one location that one lane has read, and acquires by a fence or an acquire that comes.
_READ_BEFORE = 8
# Accesses of one location by one lane that are remembered, of those that more fences came before than the last one.
_LAST_REACHED = 4


class StrongAccess(Protocol):
    """What is asked of a strong access."""

    @property
    def instruction(self) -> Instruction:
        """It."""
        ...

    @property
    def width(self) -> int:
        """Bytes."""
        ...

    @property
    def unit(self) -> int:
        """Bytes of each of the scalar accesses that it is made of."""
        ...

    @property
    def strength(self) -> int:
        """See `refmoe.ptx.state.records`."""
        ...

    @property
    def acquires(self) -> bool:
        """Whether it is an acquire operation."""
        ...

    @property
    def releases(self) -> bool:
        """Whether it is a release operation."""
        ...

    @property
    def observes(self) -> bool:
        """Whether an atomic gives its thread what it read: `red` is in no acquire pattern."""
        ...


class Strong:
    """The strong accesses and fences of some CTAs.

    Args:
        clocks: theirs.
        order: of the launch.
        warps: of a CTA.
        first_cta: number of the first of them in the grid.
        blocks: CTAs of a cluster.
        choices: what decides which of several writes a read takes; None for the last one.
    """

    def __init__(
        self, clocks: Clocks, order: Order, warps: int, first_cta: int, blocks: int, choices: Choosing | None
    ) -> None:
        self._clocks, self._order, self.choices = clocks, order, choices
        self._lanes_of_cta, self._blocks = warps * LANES, blocks
        self.restart(first_cta)

    def restart(self, first_cta: int) -> None:
        """Become those of other CTAs."""
        self._first_cta = first_cta
        self.polls = Polls(self._clocks, self._lanes_of_cta)
        self._fences: dict[int, dict[int, FenceKnowledge]] = {}
        # Step of the last `fence.mbarrier_init` of lanes, and what it passes on, once somebody has asked.
        self._inits: dict[int, int] = {}
        self._initialised: dict[int, Knowledge] = {}
        # What lanes have read strongly, and acquire with a fence: by location.
        self._pending: dict[int, dict[int, tuple[Releases, ...]]] = {}
        # What lanes know of phases of barriers in memory that they saw complete without an acquire: by location.
        self._signals: dict[int, dict[int, Releases]] = {}
        # By cluster, fences of other clusters that came before accesses of its own: by lane and location.
        self._reached: dict[int, dict[tuple[int, int], list[ReachedAccess]]] = {}

    @property
    def is_busy(self) -> bool:
        """Whether somebody has released something, or may by its next strong write."""
        return bool(self._order.locations or self._fences or self._inits or self._order.reached or self._pending)

    def _cta(self, lane: int) -> int:
        return self._first_cta + lane // self._lanes_of_cta

    def _needed(self, cta: int, other: int) -> int:
        """The strength that two accesses of those CTAs need to be morally strong."""
        if cta == other:
            return 1
        return CLUSTER if cta // self._blocks == other // self._blocks else GRID

    def reach_each_other(self, lane: int, strength: int, other: int, others: int) -> bool:
        """Whether what a lane does in one scope, and another lane in another, have each other's thread in these."""
        return min(strength, others) >= self._needed(self._cta(lane), self._cta(other))

    def key(self, region: Region, index: int) -> int:
        """The name of a byte of a region: its address, or a negative number in shared memory."""
        if region.stride:
            return -1 - (index + self._first_cta * region.stride)
        return region.base + index

    # Scalar accesses, one after another: `records` [n] are those that memory has of the last write

    def read(
        self, access: StrongAccess, region: Region, index: Array, lanes: Array, records: Array, alive: Array
    ) -> None:
        """Strong loads have read what the writes of `records` left."""
        if not self.is_busy:
            return
        found: dict[int, tuple[Location, list[int]]] = {}
        for at, lane, record in zip(index.tolist(), lanes.tolist(), records.tolist(), strict=True):
            key = self.key(region, at)
            self._communicate(lane, key, writes=False)
            location = self._observed(access, key, self._cta(lane), record)
            if location is not None:
                found.setdefault(key, (location, []))[1].append(lane)
            elif access.acquires:
                self._acquire_read(access, key, lane, alive)
        for key, (location, readers) in found.items():
            self._learn(access, key, location.releases, readers, alive)

    def _observed(self, access: StrongAccess, key: int, cta: int, record: int) -> Location | None:
        """The location whose last write an access observes, if the two are morally strong."""
        location = self._order.locations.get(key)
        if location is None or location.record != record:
            return None
        return location if self._is_observed(access, location, cta) else None

    def _is_observed(self, access: StrongAccess, location: Location, cta: int) -> bool:
        """Whether an access by a CTA and the last write of a location are morally strong."""
        if location.width != access.unit:
            return False
        return min(location.strength, access.strength) >= self._needed(location.cta, cta)

    def _learn(
        self, access: StrongAccess, key: int, releases: Releases, readers: list[int], alive: Array,
        changes: bool = False,
    ) -> None:  # fmt: skip
        for lane in readers:
            if access.acquires:
                self._acquire_read(access, key, lane, alive)
            held = self._pending.setdefault(lane, {})
            before = tuple(each for each in held.get(key, ()) if each is not releases)
            held[key] = (*before[1 - _READ_BEFORE :], releases)
            self.polls.saw(lane, key, releases, access.instruction, changes)
        if not access.acquires:
            return
        by_cta: dict[int, list[int]] = {}
        for lane in readers:
            by_cta.setdefault(self._cta(lane), []).append(lane)
        for cta, lanes in by_cta.items():
            self._acquire(np.array(lanes), self._usable(releases, cta, access.strength), alive)

    def _acquire_read(self, access: StrongAccess, key: int, lane: int, alive: Array) -> None:
        """An acquire of a lane: a strong read of the location before it is the begin of an acquire pattern, too."""
        for releases in self._pending.get(lane, {}).get(key, ()):
            self._acquire(np.array([lane]), self._usable(releases, self._cta(lane), access.strength), alive)

    def _acquire(self, lanes: Array, knowledge: Knowledge | None, alive: Array) -> None:
        self._clocks.learn_by_lane(lanes, knowledge, alive)

    def _usable(self, releases: Releases, cta: int, strength: int) -> Knowledge | None:
        """What a thread of a CTA acquires that has the other end of the pattern in that scope."""
        pool = self._order.pool
        found = releases.grid if strength == GRID else None
        for (reach, origin), knowledge in releases.near.items():
            if self._needed(origin, cta) <= min(reach, strength):
                found = pool.join(found, knowledge)
        if strength < GRID and releases.wide:
            # Every block of the grid may have one that reaches the grid.
            first, count = (cta, 1) if strength < CLUSTER else (cta - cta % self._blocks, self._blocks)
            for each in map(releases.wide.get, range(first, first + count)):
                found = found if each is None else pool.join(found, each)
        return found

    def write(self, access: StrongAccess, region: Region, index: Array, lanes: Array, records: Array) -> None:
        """Strong stores have written; `records` are theirs."""
        locations = self._order.locations
        if not (access.releases or self.is_busy):
            return
        for at, lane, record in zip(index.tolist(), lanes.tolist(), records.tolist(), strict=True):
            key = self.key(region, at)
            self._communicate(lane, key, writes=True)
            before = locations.get(key)
            own = {} if before is None else before.own
            self._put(access, key, lane, record, Releases(), own)

    def modify(
        self, access: StrongAccess, region: Region, index: Array, lanes: Array, before: Array, records: Array,
        changes: Array, alive: Array,
    ) -> None:  # fmt: skip
        """Atomics have taken their turns: `before` are the records that they found, `records` theirs.

        `changes` [n]: whether they leave another value than they found.
        """
        locations = self._order.locations
        if not (access.releases or self.is_busy):
            return
        last: dict[int, int] = {}
        rows = (each.tolist() for each in (index, lanes, before, records, changes))
        for at, lane, found, record, changed in zip(*rows, strict=True):
            key = self.key(region, at)
            self._communicate(lane, key, writes=True)
            location = self._observed(access, key, self._cta(lane), last.get(key, found))
            releases = Releases()
            if location is not None:
                if access.observes:
                    self._learn(access, key, location.releases, [lane], alive, changed)
                releases = location.releases.copy()
            elif access.acquires:
                self._acquire_read(access, key, lane, alive)
            held = locations.get(key)
            self._put(access, key, lane, record, releases, {} if held is None else held.own)
            last[key] = record

    def _put(
        self, access: StrongAccess, key: int, lane: int, record: int, releases: Releases,
        own: dict[int, dict[Reach, Knowledge]],
    ) -> None:  # fmt: skip
        """A lane's write passes on what its release patterns have, and what came with `releases`."""
        clocks, cta = self._clocks, self._cta(lane)
        thread = clocks.first_warp * LANES + lane
        if access.releases:
            own = {**own, thread: self._having_released(own.get(thread, {}), (access.strength, cta), self._known(lane))}
        for reached, knowledge in self._released_before(access, lane, own.get(thread, {})):
            self._add(releases, reached, knowledge)
        for reach, fence in self._fences_of(lane).items():
            knowledge = clocks.passed_on(lane, fence.row, fence.beyond, fence.step)
            self._add(releases, (reach, cta), knowledge)
        initialised = self._known_inits(lane)
        if initialised is not None:
            self._add(releases, (CLUSTER, cta), initialised)
        if releases.near or releases.grid is not None or own:
            self._order.locations[key] = Location(access.unit, record, cta, access.strength, releases, own)
        else:
            self._order.locations.pop(key, None)

    def _having_released(self, mine: dict[Reach, Knowledge], reach: Reach, known: Knowledge) -> dict[Reach, Knowledge]:
        """What a thread's releases of a location pass on, with one more: it knows no less than it knew."""
        return {**mine, reach: known}

    def _released_before(
        self, access: StrongAccess, lane: int, mine: dict[Reach, Knowledge]
    ) -> Iterable[tuple[Reach, Knowledge]]:
        """What a lane's write passes on by its releases of the location, itself included."""
        return mine.items()

    def _known(self, lane: int) -> Knowledge:
        """What a lane knows at what it does."""
        return self._clocks.knowledge_of(lane)

    def _fences_of(self, lane: int) -> dict[int, FenceKnowledge]:
        """The fences before what a lane does, by scope."""
        return self._fences.get(lane, {})

    def _add(self, releases: Releases, reach: Reach, knowledge: Knowledge) -> None:
        pool, (strength, cta) = self._order.pool, reach
        before = releases.wide.get(cta) if strength == GRID else releases.near.get(reach)
        together = pool.join(before, knowledge)
        assert together is not None
        if strength < GRID:
            releases.near[reach] = together
            return
        releases.grid = pool.join(releases.grid, knowledge)
        if together is not before:
            releases.wide = releases.wide.having(cta, together)

    def _knows(self, lane: int) -> Callable[[int], bool]:
        """Whether a write or a read comes before what a lane does now."""
        clocks = self._clocks
        thread = clocks.first_warp * LANES + lane

        def knows(record: int) -> bool:
            if not record & int(SEVERAL) and record & int(THREAD) == thread:
                return True
            return clocks.knows(lane, record)

        return knows

    # Fences

    def fence(self, lanes: Array, strength: int, sequential: bool, alive: Array, order: str = "both") -> None:
        """A fence of some scope: it acquires what was read strongly before, and releases to what is written after.

        `order`: `"acquire"` or `"release"` does the one and not the other.
        """
        clocks = self._clocks
        learning = order != "release" and (self._pending or self._signals)
        for lane in lanes.tolist() if learning else ():
            for releases in self._acquirable(lane):
                self._acquire(np.array([lane]), self._usable(releases, self._cta(lane), strength), alive)
            if strength == GRID:
                # What a lane knows it keeps, so that no fence behind this one finds more in what it read before.
                self._pending.pop(lane, None)
                self._signals.pop(lane, None)
        if order != "release":
            self.polls.fence(lanes, strength)
        if sequential:
            self._follow_fences(lanes, strength, alive)
            clocks.settle_fences(lanes)
            clocks.last_fence[lanes] = clocks.now
        rows = clocks.rows(lanes)
        different_rows = different(rows)
        known = dict(zip(different_rows.tolist(), clocks.seen[:, : clocks.filled.end][different_rows], strict=True))
        if sequential and self.choices is not None:
            for row in known:
                self._come_next(lanes[rows == row], row, strength)
        if order == "acquire":
            return
        # Lanes that know the same have one of each: nobody changes it.
        made = {row: FenceKnowledge(each, clocks.beyond.get(row), clocks.now) for row, each in known.items()}
        for lane, row in zip(lanes.tolist(), rows.tolist(), strict=True):
            held = self._fences.setdefault(lane, {})
            for narrower in [reach for reach in held if reach < strength]:
                del held[narrower]
            held[strength] = made[row]
        if sequential:
            one_of = dict(zip(rows.tolist(), lanes.tolist(), strict=True))
            placed = {row: SequentialFence(each, strength, self._cta(one_of[row])) for row, each in made.items()}
            # Each thread has its own: the lanes of a warp may come to the fence one after another.
            for lane, row in zip(lanes.tolist(), rows.tolist(), strict=True):
                size = known[row].nbytes * len(known) // len(lanes)
                self._order.remember(clocks.first_warp * LANES + lane, placed[row], size)

    def fence_inits(self, lanes: Array) -> None:
        """`fence.mbarrier_init`: it releases what the thread initialised to what it writes strongly after.

        Whole CTAs execute it, and next to none of their threads then writes strongly: a row of clocks is made for those
        alone.
        """
        clocks = self._clocks
        clocks.use_lanes()
        self._inits.update(dict.fromkeys(lanes.tolist(), clocks.now))
        for lane in self._initialised.keys() & set(lanes.tolist()) if self._initialised else ():
            del self._initialised[lane]

    def _known_inits(self, lane: int) -> Knowledge | None:
        """What the last `fence.mbarrier_init` of a lane passes on; None where there was none."""
        step, found = self._inits.get(lane), self._initialised.get(lane)
        if step is not None and found is None:
            clocks = self._clocks
            cluster = clocks.first_cluster + (lane >> 5) // clocks.warps
            found = self._initialised[lane] = clocks.pool.knowledge(cluster, clocks.fenced_init(lane, step), None)
        return found

    def observe(self, lane: int, key: int, knowledge: Knowledge) -> None:
        """A lane learned without an acquire that others in its cluster have signalled: a fence behind it acquires."""
        cta = self._cta(lane)
        self._signals.setdefault(lane, {})[key] = Releases(near={(CLUSTER, cta): knowledge})

    def fenced(self, lane: int, strength: int) -> Knowledge | None:
        """What fences of a lane, of that scope or a wider one, pass on to whom it signals without a release."""
        clocks, found = self._clocks, self._known_inits(lane)
        for reach, fence in self._fences.get(lane, {}).items():
            if reach >= strength:
                found = clocks.pool.join(found, clocks.passed_on(lane, fence.row, fence.beyond, fence.step))
        return found

    def _acquirable(self, lane: int) -> Iterator[Releases]:
        """What a fence of a lane may acquire."""
        for read in self._pending.get(lane, {}).values():
            yield from read
        yield from self._signals.get(lane, {}).values()

    # The order of fences `.sc`

    def _come_next(self, lanes: Array, row: int, strength: int) -> None:
        """`lanes`, all of which know a row, come to a fence behind all that have been executed before."""
        clocks = self._clocks
        known = clocks.seen[row : row + 1].copy()
        clocks.mark(known, np.zeros(len(lanes), np.int64), lanes, clocks.now)
        cluster = clocks.cluster(row)
        own = clocks.pool.knowledge(cluster, known[0], clocks.beyond.get(row))
        first = int(lanes[0])
        threads = (clocks.first_warp * LANES + lanes).tolist()
        self._order.sequence.add(threads, clocks.now, strength, self._cta(first), cluster, own, self._knows(first))

    def _come_before(self, key: int, mine: Knowledge, missed: list[int], writes: bool) -> None:
        """An access behind some fences comes before those of some records: so do its fences before those of the others.

        A fence of theirs that had come first would not have let it. `writes`: whether the last write is among them.
        """
        clocks = self._clocks
        held = self._order.reached.setdefault(key, Reached())
        held.every = self._order.pool.join(held.every, mine)
        if writes:
            held.writes = self._order.pool.join(held.writes, mine)
        lanes = len(clocks.last_fence)
        for record in missed:
            thread = record & int(THREAD)
            self._came_behind(thread, record >> STEP_SHIFT, mine)
            if 0 <= thread - clocks.first_warp * LANES < lanes:
                self._come_behind(thread - clocks.first_warp * LANES, key, mine)

    def _came_behind(self, thread: int, step: int, before: Knowledge) -> list[tuple[int, Knowledge]]:
        """Some fences come before those that a thread of the grid has executed from a step on.

        Returns the steps of those that learn something by it, and what.
        """
        learned = list[tuple[int, Knowledge]]()
        order, widest = self._order, 0
        log = order.fences.get(thread)
        for fence in () if log is None else log.since(step):
            # What comes after a later one comes after this one.
            if fence.strength <= widest:
                continue
            widest, found = fence.strength, list[tuple[int, int, int]]()
            for cluster in np.flatnonzero(before.rows).tolist():
                steps = order.pool.rows[before.rows[cluster]][np.newaxis]
                known = self._known_at(fence.fence, thread, cluster)
                found += [(cluster, *each[1:]) for each in self._clocks.forced(steps, known).tolist()]
            record = fence.fence.step << STEP_SHIFT | thread
            for each in self._passed_on_by(found, fence.strength, fence.cta):
                if order.forced.add(record, each):
                    learned.append((fence.fence.step, each))
        return learned

    def _known_at(self, fence: FenceKnowledge, thread: int, cluster: int) -> Array:
        """What a thread knew of a cluster at a fence of its own, [1, columns]."""
        clocks = self._clocks
        known = np.zeros((1, clocks.columns), np.int64)
        if cluster == (thread >> 5) // clocks.warps:
            known[0, : len(fence.row)] = fence.row
        elif fence.beyond is not None:
            known[0] = clocks.pool.rows[fence.beyond.rows[cluster]]
        return known

    def _come_behind(self, lane: int, key: int, before: Knowledge) -> None:
        """Some fences come before those that a lane executes from now on, and before what comes after that."""
        clocks = self._clocks
        cluster = clocks.first_cluster + (lane >> 5) // clocks.warps
        if before.rows[cluster]:
            clocks.learn_reached(lane, self._order.pool.rows[before.rows[cluster]])
        if np.count_nonzero(before.rows) > (before.rows[cluster] != 0):
            held = self._reached.setdefault(cluster, {}).setdefault((lane, key), [])
            joined = self._order.pool.join(held[-1].before if held else None, before)
            assert joined is not None
            if not held or joined is not held[-1].before:
                held.append(ReachedAccess(int(clocks.record(np.array([lane]))[0]), joined))
                del held[:-_LAST_REACHED]

    def _fences_before(self, lane: int) -> Knowledge | None:
        """The fences that happen before what a lane does now, whatever the order of fences is.

        A fence that only reached the lane is none of them: of what comes after the lane's next access another thread
        may know before it comes to its own fence.
        """
        clocks, fences = self._clocks, self._order.fences
        row = int(clocks.rows(np.array([lane]))[0])
        cluster, beyond = clocks.cluster(row), clocks.beyond.get(row)
        part = clocks.seen[row, clocks.fence : clocks.init]
        own = clocks.last_fence[lane]
        if not fences:
            return None
        clocks.mark_met_fences(clocks.seen, np.array([row]), np.array([lane >> 5]))
        if not own and not part.any():
            return beyond
        made = np.zeros(clocks.columns, np.int64)
        steps, known = made[clocks.fence : clocks.init], clocks.known_threads(row)
        steps[:] = part
        first = cluster * clocks.warps * LANES
        for thread in np.flatnonzero(steps > known).tolist():
            log = fences.get(first + thread)
            steps[thread] = 0 if log is None else log.until(int(known[thread]))
        steps[lane % len(steps)] = own
        return self._order.pool.knowledge(cluster, made, beyond)

    def _fences_in(self, knowledge: Knowledge) -> Knowledge | None:
        """The fences that happen before what somebody does who knows something."""
        clocks, pool, found = self._clocks, self._order.pool, None
        for cluster in np.flatnonzero(knowledge.rows).tolist():
            row = pool.rows[knowledge.rows[cluster]]
            known = np.maximum(row[clocks.lane : clocks.copy], np.repeat(row[: clocks.warps], LANES))
            made = np.zeros(clocks.columns, np.int64)
            first = cluster * clocks.warps * LANES
            logs = ((thread, self._order.fences.get(first + thread)) for thread in np.flatnonzero(known).tolist())
            for thread, log in logs:
                made[clocks.fence + thread] = 0 if log is None else log.until(int(known[thread]))
            if made.any():
                found = pool.join(found, pool.knowledge(cluster, made, None))
        return found

    def _communicate(self, lane: int, key: int, writes: bool) -> None:
        """A lane accesses a location strongly: fences before its writes, or all accesses, come before what it does."""
        clocks, pool = self._clocks, self._order.pool
        if not clocks.sequential:
            return
        held = self._order.reached.get(key)
        before = None if held is None else held.every if writes else held.writes
        if before is not None:
            self._come_behind(lane, key, before)
        mine = self._fences_before(lane)
        if mine is not None:
            held = self._order.reached.setdefault(key, Reached())
            held.every = pool.join(held.every, mine)
        if writes and held is not None:
            # Reads come before the write that they did not see, and so before whoever reads that.
            held.writes = held.every

    def _follow_fences(self, lanes: Array, strength: int, alive: Array) -> None:
        """What fences pass on that must have come before one of `lanes`."""
        clocks, oldest = self._clocks, dict[int, Array]()
        for row in np.unique(clocks.rows(lanes)).tolist():
            mine = lanes[clocks.rows(lanes) == row]
            cluster = clocks.cluster(row)
            own = clocks.seen[row : row + 1]
            found = [(cluster, thread, step) for _, thread, step in clocks.forced(own, own).tolist()]
            knows = self._knows(int(mine[0]))
            for accesses in self._reached_known(cluster, int(mine[0]), oldest):
                reached = next((each.before for each in reversed(accesses) if knows(each.record)), None)
                if reached is not None:
                    found += self._forced_elsewhere(row, cluster, reached)
            for knowledge in self._passed_on_by(found, strength, self._cta(int(mine[0]))):
                self._acquire(mine, knowledge, alive)

    def _passed_on_by(self, fences: list[tuple[int, int, int]], strength: int, cta: int) -> Iterator[Knowledge]:
        """What a fence of a CTA, of some strength, learns of those before it: (cluster, thread in it, step) of each."""
        clocks = self._clocks
        # Fences whose threads knew the same of other clusters make one: what each passes on, together.
        together: dict[tuple[int, int], tuple[FenceKnowledge, Array]] = {}
        taken: set[int] = set()
        for other, thread, step in fences:
            log = self._order.fences.get(other * clocks.warps * LANES + thread)
            one = None if log is None else log.at(step)
            if one is None or min(strength, one.strength) < self._needed(one.cta, cta):
                continue
            held, column = one.fence, clocks.lane + thread
            known = together.get((other, id(held.beyond)))
            if known is None:
                known = together[other, id(held.beyond)] = held, held.row.copy()
            elif id(held) not in taken:
                np.maximum(known[1], held.row, out=known[1])
            taken.add(id(held))
            known[1][column] = max(step, int(known[1][column]))
        for (other, _), (held, row) in together.items():
            yield self._order.pool.knowledge(other, row, held.beyond)

    def _reached_known(self, cluster: int, lane: int, oldest: dict[int, Array]) -> list[list[ReachedAccess]]:
        """Of what lanes of a cluster reached, that of which a lane knows at least the oldest access.

        `oldest` keeps the records of these for the next lane.
        """
        every = list(self._reached.get(cluster, {}).values())
        if not every:
            return []
        if cluster not in oldest:
            oldest[cluster] = np.array([accesses[0].record for accesses in every])
        records, clocks = oldest[cluster], self._clocks
        known = clocks.known(np.full(len(records), lane), records)
        known |= (records & int(THREAD)) == clocks.first_warp * LANES + lane
        return [every[number] for number in np.flatnonzero(known).tolist()]

    def _forced_elsewhere(self, row: int, cluster: int, reached: Knowledge) -> list[tuple[int, int, int]]:
        """(cluster, thread in it, step) of fences of other clusters that must have come before, and are not known."""
        clocks, pool = self._clocks, self._order.pool
        beyond = clocks.beyond.get(row)
        others = np.flatnonzero(reached.rows)
        others = others[others != cluster]
        held = np.zeros(len(others), np.int64) if beyond is None else beyond.rows[others]
        forced = clocks.forced(pool.rows[reached.rows[others]], pool.rows[held])
        return [(int(others[at]), thread, step) for at, thread, step in forced.tolist()]

    # What only lacks an acquire

    def unacquired(self, lane: int, record: int) -> Poll | None:
        """The poll with an acquire of which the access of a record would come before what a lane does now."""
        return next((poll for poll in self.polls.before(lane) if self._orders(poll, record, GRID)), None)

    def fenced_in_vain(self, poll: Poll, record: int) -> bool:
        """Whether fences behind a poll are all of too narrow a scope for the access of a record to come before them."""
        strength = self.polls.fenced(poll)
        return strength != 0 and not self._orders(poll, record, strength)

    def _orders(self, poll: Poll, record: int, strength: int) -> bool:
        """Whether the access of a record comes before an acquire at a poll in a scope."""
        cluster = ((record & int(THREAD)) >> 5) // self._clocks.warps
        knowledge = self._usable(poll.releases, self._cta(poll.lane), strength)
        if knowledge is None or not knowledge.rows[cluster]:
            return False
        return bool(self._clocks.is_known(int(knowledge.rows[cluster]), record))


def index_of(key: int) -> int:
    """Where a byte lies among others of its space, of its name, see `Strong.key`."""
    return key if key >= 0 else -1 - key
