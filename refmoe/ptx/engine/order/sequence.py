"""The order of fences `.sc` as a launch has them, which the choices of its strong accesses must not contradict.

Two fences `.sc` are in order only if each has the other's thread in its scope ("Fence-SC", "Morally strong operations"
of the PTX ISA); then the earlier one synchronises with the later one. A launch under a schedule takes one such order:
that in which its threads come to their fences. So a read behind a fence may not miss a write in front of an earlier
fence that is in order with it. It may miss every other write: of a thread without a fence, or with a fence whose scope
leaves one of the two out.

    grid, clusters, ctas: what those know together that may be in order with a fence to come, by how far they reach

What is in order here is not concluded for races: there another order is as legal, see `Strong`.
"""

from __future__ import annotations

import weakref
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass

from refmoe.ptx.engine.order.knowledge import Knowledge, Pool
from refmoe.ptx.state.records import CLUSTER, GRID, STEP_SHIFT

# Fences that are remembered one by one: those that reach the grid, and of each thread those that do not.
_WIDE, _NARROW = 512, 16


@dataclass(frozen=True, slots=True)
class _Placed:
    """A fence that has been executed.

    Attributes:
        record: of its thread and step, as of an access.
        knowledge: what comes before it, by all that is in order.
    """

    record: int
    knowledge: Knowledge


class FenceSequence:
    """The fences `.sc` of a launch, in the order in which they were executed.

    Args:
        pool: of the launch.

    Attributes:
        every: what comes before some of them; None before the first one.
    """

    def __init__(self, pool: Pool) -> None:
        self._pool = pool
        self._grid: Knowledge | None = None
        self._clusters: dict[int, Knowledge | None] = {}
        self._ctas: dict[int, Knowledge | None] = {}
        # What came before some fence that reaches the grid: the next one has it from `_grid`.
        self._in_grid: weakref.WeakSet[Knowledge] = weakref.WeakSet()
        self.every: Knowledge | None = None
        self._wide: deque[_Placed] = deque(maxlen=_WIDE)
        self._narrow: dict[int, deque[_Placed]] = {}

    def before(self, knows: Callable[[int], bool], wide: bool = True) -> Knowledge | None:
        """What comes before the fences that somebody knows of.

        Args:
            knows: whether somebody knows of the access of a record.
            wide: whether fences that reach the grid are asked for.
        """
        found: Knowledge | None = None
        if wide:
            for number, placed in enumerate(reversed(self._wide), 1):
                # Each knows what those before it do. Of those that are forgotten the last one is still known.
                if knows(placed.record) or number == _WIDE:
                    found = placed.knowledge
                    break
        for fences in self._narrow.values():
            for number, placed in enumerate(reversed(fences), 1):
                if knows(placed.record) or number == _NARROW:
                    found = self._pool.join(found, placed.knowledge)
                    break
        return found

    def add(
        self,
        threads: list[int],
        step: int,
        strength: int,
        cta: int,
        cluster: int,
        own: Knowledge,
        knows: Callable[[int], bool],
    ) -> None:
        """Threads of a CTA, which together know `own`, execute a fence of some strength at a step.

        Args:
            threads: their numbers in the launch.
            step: see `refmoe.ptx.state.records`.
            strength: of the fence.
            cta: theirs.
            cluster: theirs.
            own: what they know.
            knows: see `before`.
        """
        join = self._pool.join
        knowledge = join(own, self.before(knows, wide=strength < GRID))
        near, nearest = self._clusters.get(cluster), self._ctas.get(cta)
        if strength >= GRID:
            knowledge = join(knowledge, self._grid)
        if strength >= CLUSTER and near is not None and not (strength >= GRID and near in self._in_grid):
            knowledge = join(knowledge, near)
        if nearest is not None and not (strength >= GRID and nearest in self._in_grid):
            knowledge = join(knowledge, nearest)
        assert knowledge is not None
        # What comes before this one has all that came before the others of the same scope.
        alone = self.every is None or self.every is self._grid
        self.every = knowledge if strength >= GRID and alone else join(self.every, knowledge)
        self._ctas[cta] = knowledge
        if strength >= CLUSTER:
            self._clusters[cluster] = knowledge
        if strength >= GRID:
            self._grid = knowledge
            self._in_grid.add(knowledge)
        for thread in threads:
            placed = _Placed((step << STEP_SHIFT) | thread, knowledge)
            if strength >= GRID:
                self._wide.append(placed)
            else:
                self._narrow.setdefault(thread, deque(maxlen=_NARROW)).append(placed)
