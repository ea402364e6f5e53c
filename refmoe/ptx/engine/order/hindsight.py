"""Order that was there all along, and that a launch shows when its threads have gone on.

A read that misses a write comes before it, and so do the fences `.sc` in front of the read come before those behind the
write. The thread of the write may have executed such a fence long ago: then it knows since that fence what it has not
learned. So does whoever has learned of it since then. A read that happens late, and acquires something then, teaches
its thread since the step of the read, or of the fence that acquires.

Nobody is told. Who asks what comes before something asks here, too, where all that he knows does not say so.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator

from refmoe.ptx.engine.order.clocks import LANES, Clocks
from refmoe.ptx.engine.order.knowledge import Knowledge
from refmoe.ptx.engine.order.lessons import Lessons
from refmoe.ptx.state.records import SEVERAL, SEVERAL_SHIFT, THREAD, Several


class Hindsight:
    """What some CTAs know by the lessons of their launch.

    Args:
        clocks: theirs.
        lessons: of the launch, in some parts; more come.
    """

    def __init__(self, clocks: Clocks, *lessons: Lessons) -> None:
        self._clocks, self._lessons = clocks, lessons

    def __bool__(self) -> bool:
        return any(self._lessons)

    def __call__(self, lane: int, record: int) -> bool:
        """Whether the access of a record comes before what a lane does now, by what it has learned since."""
        own = self._clocks.first_warp * LANES + lane

        def knows(known: int) -> bool:
            return known & int(THREAD) == own or self._clocks.knows(lane, known)

        return self.tells(knows, record)

    def tells(self, knows: Callable[[int], bool], record: int) -> bool:
        """Whether the lessons of whoever knows of some records tell of another one."""
        every = (each.every for each in self._lessons)
        # Most of what nobody knows no lesson tells either.
        if not any(each is not None and self.has(each, record) for each in every):
            return False
        return any(self.has(knowledge, record) for knowledge in self._learned(knows))

    def _learned(self, knows: Callable[[int], bool]) -> Iterator[Knowledge]:
        """The lessons of whoever knows of some records, and of what these lessons tell."""
        left = [lesson for each in self._lessons for lesson in each.by_record.items()]
        found = list[Knowledge]()
        while left:
            known = [knows(record) or any(self.has(each, record) for each in found) for record, _ in left]
            if not any(known):
                return
            new = [knowledge for (_, knowledge), learned in zip(left, known, strict=True) if learned]
            yield from new
            found += new
            left = [lesson for lesson, learned in zip(left, known, strict=True) if not learned]

    def has(self, knowledge: Knowledge, record: int) -> bool:
        """Whether somebody with that knowledge knows of the access of a record."""
        number = int(knowledge.rows[((record & int(THREAD)) >> 5) // self._clocks.warps])
        if not number or (record & int(SEVERAL)) >> SEVERAL_SHIFT == Several.CLUSTERS:
            return False
        return self._clocks.is_known(number, record)
