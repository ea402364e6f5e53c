"""What a step may tell threads that have put accesses off: asked before it comes.

An access that was put off has not happened, but what its thread has done since then has. So nobody may learn of that
yet, nor may a step make it impossible that the access happens, see `refmoe.ptx.engine.thread_steps`.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import partial

from refmoe.ptx.engine.order.clocks import LANES
from refmoe.ptx.engine.order.deferred import Acquiring, Deferred
from refmoe.ptx.engine.order.knowledge import Knowledge
from refmoe.ptx.engine.order.locations import Location, Releases
from refmoe.ptx.engine.order.outcomes import NOBODY, Outcomes
from refmoe.ptx.state.records import CLUSTER


class Foresight(Outcomes):
    """Outcomes, and what is asked of them before a step comes."""

    def may_learn_nothing(
        self, lane: int, strength: int, keys: Sequence[int], writes: bool, deferred: Deferred | None
    ) -> bool:
        """Whether a lane may read a write of some places by which it acquires nothing in some scope.

        `writes`: whether it also writes, right behind it, so that nobody else may have done so.
        `deferred`: of an access that it has put off.
        """
        if not strength:
            return True
        history, told = self._history_at(keys[0]), partial(self._told, lane, strength)
        read = self._pending.get(lane, {})
        with self._putting_off(deferred):
            # An acquire acquires by what its thread has read there before, too.
            if any(self._is_news(lane, each, strength) for key in keys for each in read.get(key, ())):
                return False
            if history is not None and history.width == len(keys):
                readable = history.readable(self._knows_in_order(lane), self._before_own(lane, history))
                return any(told(each) is None for each in readable if not (writes and each.followed))
            written = (write for each in map(self._history_at, keys) if each is not None for write in each.writes)
            locations = filter(None, map(self._order.locations.get, keys))
            news = any(self._is_news(lane, each.releases, strength) for each in locations)
            return not news and all(told(each) is None for each in written)

    def may_hear_of(self, lane: int, strength: int, keys: Iterable[int] | None, since: Mapping[int, int]) -> bool:
        """Whether a lane may acquire something that other lanes have done from some step on, each from its own.

        By an access of some places, or with None by a fence.
        """
        if keys is None:
            found = list(self._acquirable(lane))
        else:
            read, held = self._pending.get(lane, {}), list[Location | None]()
            for key in keys:
                history = self._history_at(key)
                held += [self._order.locations.get(key), *(() if history is None else history.passed())]
            found = [each.releases for each in held if each is not None]
            found += [each for key in keys for each in read.get(key, ())]
        return any(self._tells_of(self._usable(each, self._cta(lane), strength), since) for each in found)

    def tells(self, lane: int, releases: int, keys: Iterable[int], other: int, acquired: int) -> bool:
        """Whether another lane that acquires in a scope may learn something by a write of a lane at some places.

        `releases`: the scope in which the write releases by itself. What an atomic has read is not asked for.
        """
        scopes = [releases, *self._fences_of(lane), *([CLUSTER] if lane in self._inits else [])]
        locations = filter(None, map(self._order.locations.get, keys))
        scopes += [strength for location in locations for mine in location.own.values() for strength, _ in mine]
        return self.reach_each_other(lane, max(scopes), other, acquired)

    def may_be_told(self, lane: int, deferred: Deferred, teller: int, keys: Iterable[int], releases: bool) -> bool:
        """Whether what another lane passes on, and what it finds at some places, may come before what a lane has done.

        `releases`: whether what the other lane does there releases by itself.
        """
        acquiring = self._acquires_of(lane, deferred, teller)
        told = self._tells_at_most(lane, acquiring, teller, keys, releases)
        return told is None or self._agrees_with(lane, acquiring.clock, told)

    def be_told(self, lane: int, deferred: Deferred, teller: int, keys: Iterable[int], releases: bool) -> None:
        """What a lane has put off may have to come behind another one's atomic, and knows what that passes on.

        That is more than it need know, if it comes before. So no race that depends on that order is reported.
        """
        acquiring = self._acquires_of(lane, deferred, teller)
        told = self._tells_at_most(lane, acquiring, teller, keys, releases)
        if told is not None:
            self._teach(lane, acquiring, told)

    def _acquires_of(self, lane: int, deferred: Deferred, teller: int) -> Acquiring:
        """The first place where a lane may acquire something of another one."""
        reaching = (each for each in deferred.acquires if self.reach_each_other(lane, each.scope, teller, each.scope))
        return next(reaching)

    def _tells_at_most(
        self, lane: int, acquiring: Acquiring, teller: int, keys: Iterable[int], releases: bool
    ) -> Knowledge | None:
        """What a lane may acquire of another one's write to some places, see `Strong._put`; None for nothing."""
        clocks, thread = self._clocks, self._clocks.first_warp * LANES + teller
        # What it knows now, it passes on by a release alone; by a fence, what it knew there.
        passed: list[Knowledge | None] = [
            clocks.passed_on(teller, each.row, each.beyond, each.step) for each in self._fences_of(teller).values()
        ]
        passed.append(self._known_inits(teller))
        for location in filter(None, map(self._order.locations.get, keys)):
            releases = releases or thread in location.own
            passed.append(self._usable(location.releases, self._cta(lane), acquiring.scope))
        if releases:
            passed.append(self._known(teller))
        told: Knowledge | None = None
        for each in passed:
            told = self._order.pool.join(told, each)
        return told

    def expect(self, lane: int, keys: Iterable[int], clock: int) -> None:
        """An atomic that a lane has put off at a step, and that passes a fence `.sc`, may come behind what is there.

        So the lane knows what it may have to know once that is certain.
        """
        for key in keys:
            held = self._order.reached.get(key)
            if held is not None and held.every is not None:
                super()._come_behind(lane, key, held.every)
                self._came_behind(self._clocks.first_warp * LANES + lane, clock, held.every)

    def release_early(self, lane: int, keys: Iterable[int], unit: int, strength: int, deferred: Deferred) -> None:
        """A lane will release at some places by an atomic that it has put off, and stores there first.

        Who reads that store acquires what the atomic passes on: at least what its thread knew when it came to it.
        """
        thread, cta = self._clocks.first_warp * LANES + lane, self._cta(lane)
        for key in keys:
            location = self._order.locations.get(key)
            if location is None:
                location = self._order.locations[key] = Location(unit, NOBODY, cta, strength, Releases(), {})
            mine = location.own.get(thread, {})
            with self._putting_off(deferred):
                location.own = {**location.own, thread: self._having_released(mine, (strength, cta), deferred.known)}

    @contextlib.contextmanager
    def _putting_off(self, deferred: Deferred | None) -> Iterator[None]:
        """What is asked now is asked for an access that was put off."""
        before, self.deferred = self.deferred, deferred
        try:
            yield
        finally:
            self.deferred = before
