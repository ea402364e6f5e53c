"""Order that was there all along, and that a launch shows when its threads have gone on.

A read that misses a write comes before it, and so do the fences `.sc` in front of the read come before those behind the
write. The thread of the write may have executed such a fence long ago: then it knows since that fence what it has not
learned. So does whoever has learned of it since then. Nobody is told. Who asks what comes before something asks here,
too, where all that he knows does not say so.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator

from refmoe.ptx.engine.order.clocks import LANES, Clocks
from refmoe.ptx.engine.order.knowledge import Knowledge
from refmoe.ptx.engine.order.locations import Lesson
from refmoe.ptx.state.records import SEVERAL, SEVERAL_SHIFT, THREAD, Several


class Hindsight:
    """What some CTAs know by the lessons of their launch.

    Args:
        clocks: theirs.
        lessons: of the launch; more come.
    """

    def __init__(self, clocks: Clocks, lessons: list[Lesson]) -> None:
        self._clocks, self._lessons = clocks, lessons

    def __call__(self, lane: int, record: int) -> bool:
        """Whether the access of a record comes before what a lane does now, by what it has learned since."""
        if not self._lessons:
            return False
        own = self._clocks.first_warp * LANES + lane

        def knows(known: int) -> bool:
            return known & int(THREAD) == own or self._clocks.knows(lane, known)

        return any(self.has(knowledge, record) for knowledge in self.learned(knows))

    def learned(self, knows: Callable[[int], bool]) -> Iterator[Knowledge]:
        """The lessons of whoever knows of some records, and of what these lessons tell."""
        left, found = self._lessons, list[Knowledge]()
        while left:
            new = [each for each in left if knows(each.record) or any(self.has(one, each.record) for one in found)]
            if not new:
                return
            yield from (each.knowledge for each in new)
            left = [each for each in left if each not in new]
            found += (each.knowledge for each in new)

    def has(self, knowledge: Knowledge, record: int) -> bool:
        """Whether somebody with that knowledge knows of the access of a record."""
        number = int(knowledge.rows[((record & int(THREAD)) >> 5) // self._clocks.warps])
        if not number or (record & int(SEVERAL)) >> SEVERAL_SHIFT == Several.CLUSTERS:
            return False
        return self._clocks.is_known(number, record)
