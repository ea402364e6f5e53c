"""Every schedule of a short launch, one after another: depth first through the tree of what PTX leaves open.

A schedule with a `Walk` decides nothing by chance. Wherever something is open the walk is asked, and takes the branch
that its path names, or the first one where the path has ended. `every_walk` gives the walks of all paths:

    for walk in every_walk(most=200):
        run the launch under Schedule(walk=walk)

The order of two steps of different threads matters only if both touch the same memory and one writes it, or if both are
`fence.sc`. Of paths that differ in the order of other steps alone, one is walked to its end (sleep sets: Godefroid,
"Partial-Order Methods for the Verification of Concurrent Systems", 1996); the others end early with `Redundant`.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

Array = Any


class Redundant(Exception):
    """Another walk shows all that this one could: what comes next has been taken first somewhere else."""


@dataclass(frozen=True)
class Footprint:
    """What a step of a thread touches.

    Attributes:
        space: of memory; `"everything"` for a step of which no more is known.
        owner: CTA whose shared memory it is; -1 for global memory.
        begin, end: addresses of the first byte, and of the first one behind.
        writes: whether it may write.
    """

    space: str
    owner: int = -1
    begin: int = 0
    end: int = 0
    writes: bool = True

    def depends(self, other: Footprint) -> bool:
        """Whether the order of two steps may matter."""
        if "everything" in (self.space, other.space):
            return True
        if not (self.writes or other.writes) or (self.space, self.owner) != (other.space, other.owner):
            return False
        return self.begin < other.end and other.begin < self.end


@dataclass(frozen=True)
class Move:
    """What may happen next: a step of a thread.

    Attributes:
        key: names it; what does not happen now has the same name later.
        footprint: what it touches.
    """

    key: Hashable
    footprint: Footprint


class Walk:
    """One path through the tree.

    Args:
        path: the branches that are taken first.

    Attributes:
        taken: (branch, how many there were) since `begin`.
    """

    def __init__(self, path: Sequence[int] = ()) -> None:
        self.path = tuple(path)
        self.begin()

    def begin(self) -> None:
        """The launch starts, perhaps once more."""
        self.taken: list[tuple[int, int]] = []
        self._asleep: dict[Hashable, Move] = {}

    def below(self, count: int) -> int:
        """0 to `count` - 1."""
        if count < 2:
            return 0
        place = len(self.taken)
        branch = self.path[place] if place < len(self.path) else 0
        self.taken.append((branch, count))
        return branch

    def word(self) -> int:
        """64 bits, of which nothing is known: those that draw by them draw the same each time."""
        return 0

    def order(self, count: int) -> Array:
        """A permutation, int64 [count]."""
        left = list(range(count))
        return np.array([left.pop(self.below(len(left))) for _ in range(count)], np.int64)

    def next(self, moves: Sequence[Move]) -> Move:
        """Which of several moves comes next.

        Raises:
            Redundant: whichever it were, another walk has been there.
        """
        awake = [move for move in moves if move.key not in self._asleep]
        if not awake:
            raise Redundant
        branch = self.below(len(awake))
        chosen = awake[branch]
        asleep = [*self._asleep.values(), *awake[:branch]]
        self._asleep = {move.key: move for move in asleep if not move.footprint.depends(chosen.footprint)}
        return chosen

    def following(self) -> Walk | None:
        """The walk that comes after this one, which has been walked; None if it was the last."""
        taken = list(self.taken)
        while taken:
            branch, count = taken.pop()
            if branch + 1 < count:
                return Walk([*(each for each, _ in taken), branch + 1])
        return None

    def __str__(self) -> str:
        return ".".join(str(branch) for branch, _ in self.taken) or "0"


def every_walk(most: int) -> Iterator[Walk]:
    """At most so many walks, each to be walked before the next one is asked for."""
    walk: Walk | None = Walk()
    for _ in range(most):
        if walk is None:
            return
        yield walk
        walk = walk.following()
