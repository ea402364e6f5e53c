"""Weak outcomes: what strong reads may see, and where strong writes may come, other than last.

PTX is weaker than any interleaving: of two threads that each write one location and then read the other's, both may
read what was there before. So under a schedule each location that is accessed strongly keeps its last writes in
coherence order. A read takes any of them that its thread does not know to be overwritten, and a write may come before
others that its thread does not know of ("Coherence", "Causality" of the PTX ISA). Memory holds the last one.

    knows of a write:   it, or somebody's read of it, happens before now, or this thread read it or a later one

An atomic comes right behind the write that it reads, and nothing comes between the two. What a thread knows by the
order of fences `.sc` counts as known, see `refmoe.ptx.engine.order.sequence`.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, Protocol

from refmoe.ptx.state.records import THREAD

# Writes of a location that are remembered.
_LAST = 8
# Reads of one location by one thread that may miss its last write, one after another: whoever polls gets on.
_STALE = 6

Array = Any
Knows = Callable[[int], bool]


class Choosing(Protocol):
    """Where choices come from."""

    def below(self, count: int) -> int:
        """0 to `count` - 1."""
        ...


@dataclass(slots=True, eq=False)
class RecordedWrite:
    """A write of a location.

    Attributes:
        value: its bytes.
        record: of the access; 0 for what was there before.
        passed: what each element of the strong access passes on, see `Location`.
        reached: of each element, the fences `.sc` that come before it, or an access before it, see `Reached`.
        observed: of each element, likewise of what comes before the next write; empty for the last one.
        readers: by thread the record of its first read of it: who knows of a later one knows of that.
        followed: whether the next write is an atomic that read it, so that nothing comes between.
    """

    value: bytes
    record: int
    passed: Any = ()
    reached: Any = ()
    observed: Any = ()
    readers: dict[int, int] = field(default_factory=dict)
    followed: bool = False

    def is_known(self, knows: Knows) -> bool:
        """Whether a thread knows of it."""
        return not self.record or knows(self.record) or any(map(knows, self.readers.values()))

    def is_read(self, record: int) -> None:
        """Somebody reads it."""
        thread = record & int(THREAD)
        self.readers[thread] = min(record, self.readers.get(thread, record))


class History:
    """The last writes of a location, in coherence order.

    Args:
        width: bytes.
        first: what is there.
        most_stale: reads that may miss one last write; None for any number.
    """

    def __init__(self, width: int, first: RecordedWrite, most_stale: int | None = None) -> None:
        self.width = width
        self.writes = [first]
        self._most_stale = most_stale
        # The last write, as long as it is, and how many reads have missed it.
        self._missed, self._misses = first, 0
        # What memory has of the last write that came, wherever it was put.
        self.record = first.record
        self._stale: dict[int, int] = {}

    @property
    def last(self) -> RecordedWrite:
        """What memory holds."""
        return self.writes[-1]

    def _oldest(self, knows: Knows) -> int:
        """The first write that a thread may still see: the last one that it knows of."""
        for place in range(len(self.writes) - 1, 0, -1):
            if self.writes[place].is_known(knows):
                return place
        return 0

    def readable(self, knows: Knows, count: int) -> list[RecordedWrite]:
        """The writes that a thread may read, of the first `count` ones."""
        oldest, newest = self._range(knows, count)
        return self.writes[oldest : newest + 1]

    def passed(self) -> list[Any]:
        """What the elements of all writes pass on, see `Location`; None for nothing."""
        return [each for write in self.writes for each in write.passed]

    def behind(self, write: RecordedWrite) -> list[RecordedWrite]:
        """The writes that come after one."""
        return self.writes[self._place(write) + 1 :]

    def in_front(self, write: RecordedWrite) -> RecordedWrite | None:
        """The write that comes right before one, None if that is forgotten."""
        place = self._place(write)
        return self.writes[place - 1] if place else None

    def _place(self, write: RecordedWrite) -> int:
        return next(number for number, each in enumerate(self.writes) if each is write)

    def read(
        self, lane: int, record: int, knows: Knows, choices: Choosing, count: int,
        admits: Callable[[RecordedWrite], bool] | None = None,
    ) -> RecordedWrite:  # fmt: skip
        """The write that a lane's read takes, of the first `count` ones.

        With `admits` it is one that it admits, or the oldest if it admits none.
        """
        oldest, newest = self._range(knows, count)
        place = newest
        if admits is not None:
            places = [place for place in range(oldest, newest + 1) if admits(self.writes[place])] or [oldest]
            place = places[choices.below(len(places)) if len(places) > 1 else 0]
        elif oldest < newest and self._stale.get(lane, 0) < _STALE and self._may_miss():
            place = oldest + choices.below(newest - oldest + 1)
            self._misses += place < newest
        self._stale[lane] = self._stale.get(lane, 0) + 1 if place < newest else 0
        chosen = self.writes[place]
        chosen.is_read(record)
        return chosen

    def _may_miss(self) -> bool:
        """Whether one read more may miss the last write."""
        if self._missed is not self.last:
            self._missed, self._misses = self.last, 0
        return self._most_stale is None or self._misses < self._most_stale

    def _range(self, knows: Knows, count: int) -> tuple[int, int]:
        """The places of the oldest and of the newest of the first `count` writes that a thread may read."""
        newest = max(count - 1, 0)
        return min(self._oldest(knows), newest), newest

    def write(
        self, made: RecordedWrite, knows: Knows, choices: Choosing, keep: bool = False, last: bool = False
    ) -> bool:
        """Put a write where it may come, or with `last` behind all others. Returns whether it is the last.

        `keep`: whether the first ones are kept however many there are: somebody may read them late.
        """
        oldest, end = self._oldest(knows), len(self.writes)
        places = [place for place in range(oldest + 1, end) if not self.writes[place - 1].followed]
        # What was there before a launch's writes is its own start.
        place = end if last else [*places, end][choices.below(len(places) + 1)]
        self.writes.insert(place, made)
        self._trim(keep, place)
        return place == end

    def take(
        self, lane: int, record: int, knows: Knows, choices: Choosing, count: int, writes: Callable[[bytes], bool],
        admits: Callable[[RecordedWrite], bool] | None = None,
    ) -> RecordedWrite:  # fmt: skip
        """The write that a lane's atomic reads, behind which there is room if it writes; for the others see `read`."""
        oldest, newest = self._range(knows, count)
        places = [
            place
            for place in range(oldest, newest + 1)
            if not (self.writes[place].followed and writes(self.writes[place].value))
        ]
        if admits is not None:
            # Who has put it off keeps a place for it, see `refmoe.ptx.engine.order.foresight`.
            places = [place for place in places if admits(self.writes[place])] or [newest]
        elif self._stale.get(lane, 0) >= _STALE or not self._may_miss():
            places = [newest]
        place = places[choices.below(len(places)) if len(places) > 1 else 0]
        self._misses += place < newest
        self._stale[lane] = self._stale.get(lane, 0) + 1 if place < newest else 0
        chosen = self.writes[place]
        chosen.is_read(record)
        return chosen

    def follow(self, chosen: RecordedWrite, made: RecordedWrite, keep: bool = False) -> RecordedWrite:
        """An atomic that read a write comes right behind it; `keep` see `write`."""
        chosen.followed = True
        place = self._place(chosen) + 1
        self.writes.insert(place, made)
        self._trim(keep, place)
        return made

    def _trim(self, keep: bool, place: int) -> None:
        """Forget the first writes, but none from a place on: there may be more since some were kept."""
        if not keep:
            del self.writes[: max(min(len(self.writes) - _LAST, place), 0)]


@dataclass(frozen=True)
class NotedAccess:
    """A strong access of a lane.

    Attributes:
        clock: the step of the launch.
        keys: of its elements.
        history: of the first one.
        write: that it read, or made.
        writes: whether it made it.
    """

    clock: int
    keys: tuple[int, ...]
    history: History
    write: RecordedWrite
    writes: bool


def common_record(elements: list[int]) -> int:
    """The record of the one write that the elements of an access have in common, or 0."""
    first = elements[0]
    return first if len(elements) == 1 or elements.count(first) == len(elements) else 0
