"""What is kept of a strong access that its thread has put off, see `refmoe.ptx.engine.thread_steps`."""

from __future__ import annotations

from dataclasses import dataclass

from refmoe.ptx.engine.order.knowledge import Knowledge
from refmoe.ptx.engine.order.locations import FenceKnowledge


@dataclass(frozen=True)
class Acquiring:
    """Where a thread acquires what an access reads that it has put off.

    Attributes:
        scope: in which.
        clock: the step of the launch.
    """

    scope: int
    clock: int


@dataclass(frozen=True)
class Deferred:
    """What the thread of an access had in front of it, which then was put off.

    Attributes:
        clock: the step of the launch in which it was.
        known: what the thread knew.
        fences: those of the thread, by scope, see `Strong`.
        sequential: the fences `.sc` that came before.
        acquires: what acquires what it reads: itself, a fence that it passes, or an access of the same bytes behind it.
        makes_room: whether behind it an atomic acquires, which has to find a place behind what it reads.
    """

    clock: int
    known: Knowledge
    fences: dict[int, FenceKnowledge]
    sequential: Knowledge | None
    acquires: tuple[Acquiring, ...] = ()
    makes_room: bool = False

    @property
    def acquired(self) -> int:
        """The widest scope in which it acquires what it reads; 0 for none."""
        return max((each.scope for each in self.acquires), default=0)
