"""How often each thread has come to the barrier of its cluster.

The barrier has no number and asks nobody where in the text he comes: the n-th arrival of each thread meets the n-th of
the others, and those who have exited count as having come. So of two threads that came differently often one has met
somebody else's last barrier, or the exit of a thread.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from refmoe.ptx.errors import Index3
from refmoe.ptx.grid import Grid, number_in

Array = Any
#: (block, thread).
Where = tuple[Index3, Index3]


@dataclass(frozen=True)
class ClusterMeetings:
    """The counts of a launch.

    Attributes:
        grid: its blocks.
        block: threads of a block, (x, y, z).
        warps: of a block.
        counts: int64, of each thread of the launch, counted in whole warps.
    """

    grid: Grid
    block: Index3
    warps: int
    counts: Array

    def of(self, where: Where) -> int:
        """How often a thread came."""
        block, thread = where
        number = self.grid.number(block) * self.warps * 32 + number_in(thread, self.block)
        return int(self.counts[number])
