"""What strong reads take and where strong writes come, under a schedule.

A history says which writes a read may take, see `refmoe.ptx.engine.order.histories`. Here is what follows from its
choice: what the thread learns, which fences `.sc` that puts in order, and what the location passes on from then on.

An atomic, too, may read a write that is not the last one. Then it comes right behind that, unless another atomic does
already: nothing comes between the two. One that compares, and finds something else, is a read.
"""

from __future__ import annotations

import weakref
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import Any

import numpy as np

from refmoe.ptx.engine.order.clocks import LANES, Clocks
from refmoe.ptx.engine.order.deferred import Acquiring, Deferred
from refmoe.ptx.engine.order.hindsight import Hindsight
from refmoe.ptx.engine.order.histories import Choosing, History, NotedAccess, RecordedWrite, common_record
from refmoe.ptx.engine.order.knowledge import Knowledge
from refmoe.ptx.engine.order.lessons import Lessons
from refmoe.ptx.engine.order.locations import FenceKnowledge, Location, Order, Reach, Reached, Releases
from refmoe.ptx.engine.order.strong import Strong, StrongAccess, index_of
from refmoe.ptx.state.memory import Region
from refmoe.ptx.state.records import SEVERAL, STEP_SHIFT, STRENGTH_SHIFT, THREAD

Array = Any
# Warps whose accesses are remembered one by one, and so many of each lane: more than it has as long as threads take
# single steps.
_FEW_WARPS, _NOTED = 8, 512
# Reads that miss one last write in a launch of more warps: each has to be held against all others of that location.
_MOST_STALE = 32
#: The record of a location where nothing has been written that passes anything on.
NOBODY = -1


class Outcomes(Strong):
    """The strong accesses of some CTAs with their outcomes.

    All elements of a vector are one access here: `elements` are the records that memory has of the last write of each.

    Args:
        spaces: in which the kernel may see what an atomic replaced, see `refmoe.ptx.emit.builder.Builder`.

    The others are those of `Strong`.

    Attributes:
        deferred: what the access was put off with that happens now; None for another one.
        notes: whether strong accesses are remembered, one by one.
    """

    def __init__(
        self, clocks: Clocks, order: Order, warps: int, first_cta: int, blocks: int, choices: Choosing | None,
        spaces: frozenset[str],
    ) -> None:  # fmt: skip
        self._spaces = spaces
        self.notes = choices is not None and clocks.all_warps <= _FEW_WARPS
        self.deferred: Deferred | None = None
        super().__init__(clocks, order, warps, first_cta, blocks, choices)
        # No choice contradicts the order of fences, so that what they tell matters to races alone.
        self._told_late = Hindsight(clocks, order.told)
        if choices is not None:
            clocks.hindsight = Hindsight(clocks, order.told, order.forced)

    def restart(self, first_cta: int) -> None:
        """See `Strong`."""
        super().restart(first_cta)
        # Shared memory goes with its CTAs.
        self._in_shared: dict[int, History] = {}
        # What lanes have done last, in a small launch; and when somebody did what leaves no history.
        self._noted: dict[int, deque[NotedAccess]] = {}
        self._learned: weakref.WeakKeyDictionary[Knowledge, Knowledge | None] = weakref.WeakKeyDictionary()
        self._unknown: dict[int, int] = {}
        # When lanes put something off that has not happened yet: the first of it.
        self._open: dict[int, int] = {}
        # Lanes whose next store comes behind all others.
        self._lasts: set[int] = set()

    def _histories(self, region: Region) -> dict[int, History]:
        return self._in_shared if region.stride else self._order.histories

    def _history_at(self, key: int) -> History | None:
        return (self._in_shared if key < 0 else self._order.histories).get(key)

    def _history(self, access: StrongAccess, region: Region, key: int, index: int, record: int) -> History:
        """The writes of a location; those before a weak write, or of other bytes, count no more."""
        histories = self._histories(region)
        held = histories.get(key)
        value = region.data[index : index + access.width].tobytes()
        # Bytes of a vector that several wrote have no record of one write, which would tell that another has come.
        if held is None or held.width != access.width or held.record != record or held.last.value != value:
            first = RecordedWrite(value, record, self._passed(access, region, index))
            first.reached = self._reached_by_writes(access, region, index)
            held = histories[key] = History(access.width, first, None if self.notes else _MOST_STALE)
            held.record = record
        return held

    def _passed(self, access: StrongAccess, region: Region, index: int) -> tuple[Location | None, ...]:
        """The locations of the elements of an access."""
        locations = self._order.locations
        if access.unit == access.width:
            return (locations.get(self.key(region, index)),)
        return tuple(locations.get(self.key(region, at)) for at in range(index, index + access.width, access.unit))

    def _reached_by_writes(self, access: StrongAccess, region: Region, index: int) -> tuple[Knowledge | None, ...]:
        """The fences `.sc` that come before the last write of each element of an access."""
        return tuple(None if each is None else each.writes for each in self._reached_there(access, region, index))

    def _reached_so_far(self, access: StrongAccess, region: Region, index: int) -> tuple[Knowledge | None, ...]:
        """The fences `.sc` that come before some access of each element of an access."""
        return tuple(None if each is None else each.every for each in self._reached_there(access, region, index))

    def _reached_there(self, access: StrongAccess, region: Region, index: int) -> list[Reached | None]:
        places = range(index, index + access.width, access.unit)
        return [self._order.reached.get(self.key(region, at)) for at in places]

    # Accesses that were put off: they are where their thread came to them, whatever it has done since then

    def defer(self, lane: int, scope: int) -> Deferred:
        """What an access of a lane has in front of it now, which acquires in some scope; 0 for none."""
        sequential = self._fences_before(lane) if self._clocks.sequential else None
        self._open.setdefault(lane, self._clocks.now)
        acquires = (self.acquiring(scope),) if scope else ()
        return Deferred(self._clocks.now, self._known(lane), dict(self._fences_of(lane)), sequential, acquires)

    def acquiring(self, scope: int) -> Acquiring:
        """Somebody comes to what acquires in a scope what an access reads that was put off."""
        return Acquiring(scope, self._clocks.now)

    def happened(self, lane: int) -> None:
        """A lane has nothing put off any more."""
        self._open.pop(lane, None)

    def forget(self) -> None:
        """Nothing is put off any more."""
        self._open.clear()

    def come_last(self, lane: int) -> None:
        """The next store of a lane comes behind all that there are of its location."""
        self._lasts.add(lane)

    def _before_own(self, lane: int, history: History) -> int:
        """How many writes, the first ones, an access of a lane may read.

        Behind these is what the lane has written there since it came to the access, if that was put off.
        """
        writes, deferred = history.writes, self.deferred
        if deferred is None:
            return len(writes)
        own = self._clocks.first_warp * LANES + lane
        later = (
            place
            for place, each in enumerate(writes)
            if each.record & int(THREAD) == own and each.record >> STEP_SHIFT > deferred.clock
        )
        return next(later, len(writes))

    def _note(
        self, access: StrongAccess, region: Region, index: int, lane: int, write: RecordedWrite, writes: bool
    ) -> None:
        """A lane has read a write, or made one."""
        if self.notes:
            keys = tuple(self.key(region, at) for at in range(index, index + access.width, access.unit))
            noted = NotedAccess(self._clocks.now, keys, self._histories(region)[keys[0]], write, writes)
            self._noted.setdefault(lane, deque(maxlen=_NOTED)).append(noted)

    def _noted_since(self, lane: int, clock: int) -> list[NotedAccess]:
        """What a lane has done from a step on."""
        return [each for each in self._noted.get(lane, ()) if each.clock >= clock]

    def _having_released(self, mine: dict[Reach, Knowledge], reach: Reach, known: Knowledge) -> dict[Reach, Knowledge]:
        held = None if self.deferred is None else mine.get(reach)
        joined = self._order.pool.join(held, known)
        assert joined is not None
        return super()._having_released(mine, reach, joined)

    def _released_before(
        self, access: StrongAccess, lane: int, mine: dict[Reach, Knowledge]
    ) -> Iterable[tuple[Reach, Knowledge]]:
        if self.deferred is None:
            return super()._released_before(access, lane, mine)
        # Its thread may have released there since it came to the access.
        known = self._known(lane)
        found = [(reach, each) for reach, each in mine.items() if self._order.pool.join(known, each) is known]
        return [*found, ((access.strength, self._cta(lane)), known)] if access.releases else found

    def _known(self, lane: int) -> Knowledge:
        return super()._known(lane) if self.deferred is None else self.deferred.known

    def _fences_of(self, lane: int) -> dict[int, FenceKnowledge]:
        return super()._fences_of(lane) if self.deferred is None else self.deferred.fences

    def _fences_before(self, lane: int) -> Knowledge | None:
        found = super()._fences_before(lane) if self.deferred is None else self.deferred.sequential
        for lessons in self._order.told, self._order.forced:
            if lessons:
                for knowledge in self._lessons_of(lane, lessons):
                    found = self._order.pool.join(found, self._fences_learned(knowledge))
        return found

    def _lessons_of(self, lane: int, lessons: Lessons) -> list[Knowledge]:
        """What lessons tell a lane; in a launch that is not short those of its own steps."""
        if not self.notes:
            own = lessons.by_thread.get(self._clocks.first_warp * LANES + lane)
            return [] if own is None else [own]
        knows = self._knows_itself(lane)
        return [knowledge for record, knowledge in lessons.by_record.items() if knows(record)]

    def _fences_learned(self, knowledge: Knowledge) -> Knowledge | None:
        """`_fences_in`, which is asked for again at each access."""
        if knowledge not in self._learned:
            self._learned[knowledge] = self._fences_in(knowledge)
        return self._learned[knowledge]

    def _come_behind(self, lane: int, key: int, before: Knowledge) -> None:
        super()._come_behind(lane, key, before)
        if self.deferred is not None:
            # So do those that its thread has executed since it came to its access.
            self._came_behind(self._clocks.first_warp * LANES + lane, self.deferred.clock, before)

    def _knows(self, lane: int) -> Callable[[int], bool]:
        return self._with_lessons(self._knows_itself(lane))

    def _knows_itself(self, lane: int) -> Callable[[int], bool]:
        """`_knows` without hindsight."""
        deferred, clocks = self.deferred, self._clocks
        if deferred is None:
            return super()._knows(lane)
        thread = clocks.first_warp * LANES + lane

        def knew(record: int) -> bool:
            if not record & int(SEVERAL) and record & int(THREAD) == thread:
                return record >> STEP_SHIFT <= deferred.clock
            return self._is_in(deferred.known, record)

        return knew

    def _with_lessons(self, knows: Callable[[int], bool]) -> Callable[[int], bool]:
        """The same, by what has turned out since, too."""
        if not self._order.told:
            return knows

        def knows_now(record: int) -> bool:
            return knows(record) or self._told_late.tells(knows, record)

        return knows_now

    def _knows_in_order(self, lane: int) -> Callable[[int], bool]:
        """`_knows`, with the order in which fences `.sc` were executed: what a choice of a lane must not contradict."""
        knows, sequence = self._knows(lane), self._order.sequence
        if sequence.every is None:
            return knows
        before: list[Knowledge | None] = []

        def knows_in_order(record: int) -> bool:
            if knows(record):
                return True
            if not self._is_in(sequence.every, record):
                return False
            if not before:
                before.append(sequence.before(knows))
            return self._is_in(before[0], record)

        return self._with_lessons(knows_in_order)

    def _is_in(self, knowledge: Knowledge | None, record: int) -> bool:
        return knowledge is not None and self._told_late.has(knowledge, record & ~int(SEVERAL))

    def _own(self, access: StrongAccess, lane: int) -> int:
        return int(self._clocks.record(np.array([lane]))[0]) | access.strength << STRENGTH_SHIFT

    def see(
        self, access: StrongAccess, region: Region, index: int, lane: int, elements: list[int], alive: Array
    ) -> bytes:
        """What a strong load of a lane reads, under a schedule."""
        assert self.choices is not None
        key = self.key(region, index)
        history = self._history(access, region, key, index, common_record(elements))
        chosen = history.read(
            lane, self._own(access, lane), self._knows_in_order(lane), self.choices, self._before_own(lane, history),
            self._admitted(lane, history),
        )  # fmt: skip
        self._learn_since(lane, chosen)
        self.seen(access, region, index, lane, elements, chosen, alive)
        return chosen.value

    def _admitted(self, lane: int, history: History | None) -> Callable[[RecordedWrite], bool] | None:
        """Which writes an access of a lane may read that was put off; None for every one.

        `history`: of what only reads.
        """
        deferred = self.deferred
        if deferred is None or not deferred.acquires:
            return None
        agrees = partial(self._agrees, lane, deferred)
        if history is None or not deferred.makes_room:
            return agrees
        count = self._before_own(lane, history)
        free = [number for number, each in enumerate(history.writes[:count]) if not each.followed and agrees(each)]
        behind = free[-1] + 1 if free else count
        return lambda write: agrees(write) and write in history.writes[:behind]

    def _agrees(self, lane: int, deferred: Deferred, write: RecordedWrite) -> bool:
        """Whether all that a lane did since it acquires by reading a write may come behind what that tells it."""
        told = ((each, self._told(lane, each.scope, write)) for each in deferred.acquires)
        return all(found is None or self._agrees_with(lane, each.clock, found) for each, found in told)

    def _agrees_with(self, lane: int, clock: int, told: Knowledge) -> bool:
        """Whether what a lane did from a step on may come behind what somebody knew."""
        # Who has put an access off may still read what the lane has done.
        if self._tells_of(told, {other: step for other, step in self._open.items() if other != lane}):
            return False
        knows = self._with_lessons(partial(self._is_in, told))
        if self._unknown.get(lane, 0) >= clock:
            return False
        for each in self._noted_since(lane, clock):
            if not self._is_whole(each):
                return False
            later = each.history.behind(each.write)
            if any(one.is_known(knows) for one in (*later, *([each.write] if each.writes else []))):
                return False
        return True

    def _is_whole(self, noted: NotedAccess) -> bool:
        """Whether a history tells all of an access: no other one is of some of its bytes, nor has begun since."""
        mine, history = noted.keys[0], noted.history
        histories = self._in_shared if mine < 0 else self._order.histories
        if histories.get(mine) is not history or noted.write not in history.writes:
            return False
        begin = index_of(mine)
        return not any(
            index_of(key) < begin + history.width and begin < index_of(key) + other.width
            for key, other in histories.items()
            if key != mine
        )

    def _learn_since(self, lane: int, chosen: RecordedWrite) -> None:
        """What a lane acquires that has read a write late, it has known since it acquires it."""
        for each in () if self.deferred is None else self.deferred.acquires:
            told = self._told(lane, each.scope, chosen)
            if told is not None:
                self._teach(lane, each, told)

    def _teach(self, lane: int, acquiring: Acquiring, told: Knowledge) -> None:
        """A lane has known something since some step: what it did since then comes behind the fences `.sc` in it."""
        if self._order.told.add(acquiring.clock << STEP_SHIFT | self._clocks.first_warp * LANES + lane, told):
            self._reach_further(lane, acquiring.clock, told)

    def _came_behind(self, thread: int, step: int, before: Knowledge) -> list[tuple[int, Knowledge]]:
        learned = super()._came_behind(thread, step, before)
        for clock, knowledge in learned:
            self._reach_further(thread - self._clocks.first_warp * LANES, clock, knowledge)
        return learned

    def _reach_further(self, lane: int, clock: int, learned: Knowledge) -> None:
        """What a lane did from a step on comes behind the fences `.sc` in what it has learned since."""
        before = self._fences_in(learned) if self._clocks.sequential else None
        if before is None:
            return
        for each in self._noted_since(lane, clock):
            if each.write in each.history.writes:
                behind = [*([each.write] if each.writes else []), *self._others(lane, each.history.behind(each.write))]
                self._precede(each.keys, before, behind, each.write if each.writes else None)

    def seen(
        self, access: StrongAccess, region: Region, index: int, lane: int, elements: list[int], chosen: RecordedWrite,
        alive: Array,
    ) -> None:  # fmt: skip
        """A lane has read a write and writes nothing."""
        history = self._histories(region)[self.key(region, index)]
        self._note(access, region, index, lane, chosen, writes=False)
        if chosen is history.last:
            places = np.arange(index, index + access.width, access.unit)
            self.read(access, region, places, np.full(len(places), lane), np.array(elements), alive)
            return
        for key, location in self._missing(access, region, index, lane, history, chosen, writes=False):
            if location is not None and self._is_observed(access, location, self._cta(lane)):
                self._learn(access, key, location.releases, [lane], alive)
            elif access.acquires:
                self._acquire_read(access, key, lane, alive)

    def _missing(
        self, access: StrongAccess, region: Region, index: int, lane: int, history: History, chosen: RecordedWrite,
        writes: bool,
    ) -> Iterator[tuple[int, Location | None]]:  # fmt: skip
        """A lane has read a write that is not the last: of each element its key, and what the write passes on.

        `writes`: whether it is an atomic that writes, too.
        """
        self._come_between(access, region, index, lane, history, chosen, chosen.observed if writes else chosen.reached)
        if not writes:
            chosen.observed = self._behind(lane, chosen.observed)
        for number, location in enumerate(chosen.passed):
            yield self.key(region, index + number * access.unit), location

    def _come_between(
        self, access: StrongAccess, region: Region, index: int, lane: int, history: History, front: RecordedWrite,
        before: Sequence[Knowledge | None],
    ) -> None:  # fmt: skip
        """A lane's access comes behind a write and some fences `.sc` of each element, and in front of other writes."""
        if not self._clocks.sequential:
            return
        keys = tuple(self.key(region, at) for at in range(index, index + access.width, access.unit))
        for key, reached in zip(keys, before, strict=bool(before)):
            if reached is not None:
                self._come_behind(lane, key, reached)
        mine = self._fences_before(lane)
        if mine is not None:
            self._precede(keys, mine, self._others(lane, history.behind(front)))

    def _others(self, lane: int, writes: list[RecordedWrite]) -> list[RecordedWrite]:
        """Those that are not the lane's own."""
        own = self._clocks.first_warp * LANES + lane
        return [each for each in writes if each.record & int(THREAD) != own]

    def _precede(
        self, keys: Sequence[int], fences: Knowledge, behind: list[RecordedWrite], own: RecordedWrite | None = None
    ) -> None:
        """Some fences `.sc` come before some writes of a history, and before who has read these.

        `own`: that of them which the thread of the fences has made: it comes before it anyway.
        """
        records = [at for each in behind for at in (*([] if each is own else [each.record]), *each.readers.values())]
        for key in keys:
            self._come_before(key, fences, records, writes=bool(behind))
        for each in behind:
            each.reached = tuple(self._order.pool.join(one, fences) for one in each.reached)
            each.observed = tuple(self._order.pool.join(one, fences) for one in each.observed)

    def _behind(self, lane: int, reached: tuple[Knowledge | None, ...]) -> tuple[Knowledge | None, ...]:
        """Fences `.sc` of each element, and those before what a lane does now."""
        mine = self._fences_before(lane) if self._clocks.sequential else None
        return reached if mine is None else tuple(self._order.pool.join(each, mine) for each in reached)

    def _tells_of(self, told: Knowledge | None, since: Mapping[int, int]) -> bool:
        """Whether who knows something knows what lanes have done from some step on."""
        if told is None:
            return False
        knows, first = self._with_lessons(partial(self._is_in, told)), self._clocks.first_warp * LANES
        return any(knows(step << STEP_SHIFT | first + lane) for lane, step in since.items())

    def _told(self, lane: int, strength: int, write: RecordedWrite) -> Knowledge | None:
        """What a lane acquires by reading a write before a fence of some scope; None for nothing that is new to it."""
        found: Knowledge | None = None
        for location in write.passed:
            if location is not None and self._is_news(lane, location.releases, strength):
                found = self._order.pool.join(found, self._usable(location.releases, self._cta(lane), strength))
        return found

    def _is_news(self, lane: int, releases: Releases, strength: int) -> bool:
        """Whether a lane that acquires in a scope learns something: what it has released itself is nothing new."""
        usable = self._usable(releases, self._cta(lane), strength)
        if usable is None:
            return False
        known = self._known(lane)
        return self._order.pool.join(known, usable) is not known

    def put(
        self, access: StrongAccess, region: Region, index: int, lane: int, value: bytes, elements: list[int]
    ) -> bool:
        """Where a strong store of a lane comes, under a schedule. Returns whether memory is to hold it."""
        assert self.choices is not None
        history = self._history(access, region, self.key(region, index), index, common_record(elements))
        made = RecordedWrite(value, self._own(access, lane))
        last = lane in self._lasts
        self._lasts.discard(lane)
        return history.write(made, self._knows_in_order(lane), self.choices, bool(self._open), last)

    def written(
        self, access: StrongAccess, region: Region, index: int, lane: int, elements: list[int], last: bool
    ) -> None:
        """A strong store has come, as `put` said."""
        history = self._histories(region)[self.key(region, index)]
        own = self._own(access, lane)
        made = next(write for write in history.writes if write.record == own)
        self._note(access, region, index, lane, made, writes=True)
        front, held = history.in_front(made), self._passed(access, region, index)
        places = range(index, index + access.width, access.unit)
        if last:
            if front is not None:
                front.observed = self._reached_so_far(access, region, index)
            self.write(access, region, np.array(places), np.full(len(places), lane), np.array(elements))
            self._enter(access, region, index, lane, elements, history, made)
            return
        self._come_between(access, region, index, lane, history, made, () if front is None else front.observed)
        for at, record in zip(places, elements, strict=True):
            location = self._order.locations.get(self.key(region, at))
            own_releases = {} if location is None else location.own
            self._put(access, self.key(region, at), lane, record, Releases(), own_releases)
        self._enter(access, region, index, lane, elements, history, made)
        self._give_back(access, region, index, elements, held)

    def _enter(
        self, access: StrongAccess, region: Region, index: int, lane: int, elements: list[int], history: History,
        made: RecordedWrite,
    ) -> None:  # fmt: skip
        """What a write passes on, now that the locations of its elements are as it makes them."""
        made.passed = self._passed(access, region, index)
        made.reached = self._reached_by_writes(access, region, index)
        history.record = common_record(elements)
        if made is history.last:
            return
        # Other writes come behind it, whatever fences are before those.
        front = history.in_front(made)
        earlier = front.observed if front is not None and front.observed else (None,) * len(made.reached)
        made.reached = made.observed = self._behind(lane, earlier)

    def _give_back(
        self, access: StrongAccess, region: Region, index: int, elements: list[int],
        held: tuple[Location | None, ...],
    ) -> None:  # fmt: skip
        """The locations of an access are still what their last writes made them: another one has come before these.

        But its thread has released there, if it did, whatever it writes there next.
        """
        for number, (location, found) in enumerate(zip(held, elements, strict=True)):
            key = self.key(region, index + number * access.unit)
            made = self._order.locations.pop(key, None)
            if location is not None:
                location.record = found
                # `made` has what the location has, and more.
                location.own = location.own if made is None else made.own
                self._order.locations[key] = location
            elif made is not None and made.own:
                self._order.locations[key] = replace(made, record=NOBODY, releases=Releases())

    # Atomics

    def is_seen(self, region: Region) -> bool:
        """Whether the kernel may tell which write an atomic read, or made."""
        return self.choices is not None and region.space in self._spaces

    def chooses(self, access: StrongAccess, region: Region, index: Array) -> bool:
        """Whether it is open which write atomics at byte `index` [n] read, or one lane's has to be asked for alone.

        Where atomics alone have written, each comes behind the one before it.
        """
        if not self.is_seen(region):
            return False
        histories = self._histories(region)
        if len(index) == 1 or not histories:
            return len(index) == 1
        return any(
            not all(write.followed for write in histories[key].writes[:-1])
            for key in {self.key(region, at) for at in index.tolist()} & histories.keys()
        )

    def remember(
        self, access: StrongAccess, region: Region, index: Array, lanes: Array,
        records: Callable[[Array, Array], Array],
    ) -> None:  # fmt: skip
        """Atomics of `lanes` [n] at byte `index` [n] are to come: what is there now may be read after them.

        `records(index, lanes)` gives the records of the last writes.
        """
        if not self.is_seen(region):
            self._unknown.update(dict.fromkeys(lanes.tolist(), self._clocks.now) if self.notes else {})
        else:
            places = np.unique(index)
            elements = records(places, np.zeros(len(places), np.int64)).reshape(len(places), -1)
            for at, each in zip(places.tolist(), elements.tolist(), strict=True):
                self._history(access, region, self.key(region, at), at, common_record(each))

    def modified(
        self, access: StrongAccess, region: Region, index: Array, lanes: Array, records: Array, values: Array
    ) -> None:
        """Atomics have come, one behind the other: `records` and `values` [n, elements] are theirs."""
        rows = zip(index.tolist(), lanes.tolist(), records.tolist(), values, strict=True)
        for at, lane, elements, value in rows:
            history = self._histories(region)[self.key(region, at)]
            chosen, own = history.last, self._own(access, lane)
            chosen.is_read(own)
            made = history.follow(chosen, RecordedWrite(value.tobytes(), own), bool(self._open))
            self._note(access, region, at, lane, made, writes=True)
            self._enter(access, region, at, lane, elements, history, made)

    def take(
        self, access: StrongAccess, region: Region, index: int, lane: int, elements: list[int],
        writes: Callable[[bytes], bool],
    ) -> tuple[RecordedWrite, bool]:  # fmt: skip
        """The write that a lane's atomic reads, and whether it is the last; `writes` says of a value if it writes."""
        assert self.choices is not None
        history = self._history(access, region, self.key(region, index), index, common_record(elements))
        knows, count = self._knows_in_order(lane), self._before_own(lane, history)
        admits = self._admitted(lane, None)
        chosen = history.take(lane, self._own(access, lane), knows, self.choices, count, writes, admits)
        self._learn_since(lane, chosen)
        return chosen, chosen is history.last

    def replaced(
        self, access: StrongAccess, region: Region, index: int, lane: int, chosen: RecordedWrite, value: bytes,
        before: Array, after: Array, changes: bool, alive: Array,
    ) -> None:  # fmt: skip
        """An atomic has read a write and puts `value` right behind it.

        `before`, `after`: the records of the elements that memory had, and has now.
        """
        history = self._histories(region)[self.key(region, index)]
        last = chosen is history.last
        # A history forgets its first writes as others come.
        passing = [] if last else list(self._missing(access, region, index, lane, history, chosen, writes=True))
        if last:
            chosen.observed = self._reached_so_far(access, region, index)
        made = history.follow(chosen, RecordedWrite(value, self._own(access, lane)), bool(self._open))
        self._note(access, region, index, lane, made, writes=True)
        places = np.arange(index, index + access.width, access.unit)
        if last:
            theirs = np.full(len(places), lane)
            self.modify(access, region, places, theirs, before, after, np.full(len(places), changes), alive)
            self._enter(access, region, index, lane, after.tolist(), history, made)
            return
        held = self._passed(access, region, index)
        for (key, location), record in zip(passing, after.tolist(), strict=True):
            releases = Releases()
            if location is not None and self._is_observed(access, location, self._cta(lane)):
                if access.observes:
                    self._learn(access, key, location.releases, [lane], alive, changes)
                releases = location.releases.copy()
            elif access.acquires:
                self._acquire_read(access, key, lane, alive)
            there = self._order.locations.get(key)
            self._put(access, key, lane, record, releases, {} if there is None else there.own)
        self._enter(access, region, index, lane, after.tolist(), history, made)
        self._give_back(access, region, index, after.tolist(), held)
