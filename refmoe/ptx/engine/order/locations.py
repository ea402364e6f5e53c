"""What the CTAs of a launch pass to each other: at locations that are accessed strongly, and by fences `.sc`."""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from dataclasses import dataclass, field
from typing import Any

from refmoe.ptx.engine.order.by_cta import ByCta
from refmoe.ptx.engine.order.histories import History
from refmoe.ptx.engine.order.knowledge import Knowledge, Pool
from refmoe.ptx.engine.order.lessons import Lessons
from refmoe.ptx.engine.order.sequence import FenceSequence

Array = Any
# What a pattern reached: the strength of its first operation, and the CTA of its thread.
Reach = tuple[int, int]
# What is kept of the fences of all threads, in bytes, and how many are kept of each thread whatever they need.
_MOST_BYTES = 256 << 20
_ALWAYS_KEPT = 16


@dataclass(slots=True)
class Releases:
    """What releases of one location, or of some fences, pass on.

    Attributes:
        grid: what those that reach the whole grid pass on together.
        wide: what those of each CTA pass on, for who acquires in a narrower scope.
        near: what each of the others passes on.
    """

    grid: Knowledge | None = None
    wide: ByCta[Knowledge] = field(default_factory=ByCta)
    near: dict[Reach, Knowledge] = field(default_factory=dict)

    def copy(self) -> Releases:
        """The same, to be changed by itself."""
        return Releases(self.grid, self.wide, dict(self.near))


@dataclass(slots=True)
class Location:
    """A place that somebody wrote strongly.

    Attributes:
        width: bytes.
        record: of the last strong write; another one in memory means that a weak write came after it.
        cta, strength: of that write.
        releases: what its readers may acquire.
        own: by thread what its releases here pass on; one that was put off and overtaken is among them.
    """

    width: int
    record: int
    cta: int
    strength: int
    releases: Releases
    own: dict[int, dict[Reach, Knowledge]]


@dataclass(frozen=True, slots=True)
class FenceKnowledge:
    """What a lane knew at a fence."""

    row: Array
    beyond: Knowledge | None
    step: int


@dataclass(frozen=True, slots=True)
class SequentialFence:
    """A `fence.sc` of one thread.

    Attributes:
        fence: what it knew.
        strength, cta: of the fence.
    """

    fence: FenceKnowledge
    strength: int
    cta: int


class FenceLog:
    """The fences `.sc` of one thread, in the order of time.

    Another thread may come after an early one of them and not after a later one, so the last is no answer for all.
    """

    __slots__ = ("_fences", "_steps")

    def __init__(self) -> None:
        self._steps: list[int] = []
        self._fences: list[SequentialFence] = []

    def __len__(self) -> int:
        return len(self._steps)

    def add(self, fence: SequentialFence) -> None:
        """The thread executes a fence."""
        self._steps.append(fence.fence.step)
        self._fences.append(fence)

    def forget(self, count: int) -> None:
        """Forget the first `count` fences."""
        del self._steps[:count], self._fences[:count]

    def at(self, step: int) -> SequentialFence | None:
        """The fence of a step."""
        place = bisect_left(self._steps, step)
        return self._fences[place] if place < len(self._steps) and self._steps[place] == step else None

    def since(self, step: int) -> list[SequentialFence]:
        """The fences from a step on."""
        return self._fences[bisect_left(self._steps, step) :]

    def until(self, step: int) -> int:
        """The step of the last fence up to some step, 0 for none."""
        place = bisect_right(self._steps, step)
        return self._steps[place - 1] if place else 0


@dataclass(slots=True)
class Reached:
    """Fences `.sc` that came before strong accesses of a location: before its writes, and before all of them."""

    writes: Knowledge | None = None
    every: Knowledge | None = None


@dataclass(frozen=True, slots=True)
class ReachedAccess:
    """An access of a lane that fences of other clusters came before.

    Attributes:
        record: of the access.
        before: the fences.
    """

    record: int
    before: Knowledge


class Order:
    """What the CTAs of a launch pass to each other.

    Args:
        clusters: of the grid.

    Attributes:
        pool: rows of clocks.
        locations: by address; negative for shared memory.
        fences: by thread of the grid its fences `.sc`.
        reached: by location, fences that came before its strong accesses.
        histories: by location, writes that may still be seen; under a schedule.
        sequence: fences `.sc` in the order in which they were executed; under a schedule.
        forced: what fences `.sc` pass on whose order turned out later; under a schedule.
        told: what reads that happened late acquired; likewise.
    """

    def __init__(self, clusters: int) -> None:
        self.pool = Pool(clusters)
        self.locations: dict[int, Location] = {}
        self.fences: dict[int, FenceLog] = {}
        self._kept = 0
        self.reached: dict[int, Reached] = {}
        self.histories: dict[int, History] = {}
        self.sequence = FenceSequence(self.pool)
        self.forced, self.told = Lessons(self.pool), Lessons(self.pool)

    def remember(self, thread: int, fence: SequentialFence, size: int) -> None:
        """Keep a fence `.sc` of a thread of the grid, which needs `size` bytes.

        Where all of them would need too much, those that come last have the place of the thread's first ones.
        """
        log = self.fences.setdefault(thread, FenceLog())
        log.add(fence)
        self._kept += size
        if self._kept > _MOST_BYTES and len(log) > _ALWAYS_KEPT:
            count = len(log) - _ALWAYS_KEPT
            log.forget(count)
            self._kept -= count * size
