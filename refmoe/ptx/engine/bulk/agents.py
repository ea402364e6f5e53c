"""Who bulk copies and products are for the search for races: a number inside their cluster for each.

An mbarrier on which bulk copies complete is an agent, and so is a warpgroup that multiplies. A record of an access by
an agent has its number in the place of a thread's number in its cluster, so a cluster has as many agents as threads at
most. Were one number given to two barriers, who waits for one of them would count as ordered after the copies of the
other. So a launch that needs more agents runs again, with room for them: each block gets warps that have no lanes, as
many as the largest launch leaves for a grid of its size. A launch under a debugger has the room from the start: whoever
stops at lines cannot see them twice.
"""

from __future__ import annotations

from refmoe.ptx.engine.lanes import Lanes
from refmoe.ptx.errors import PtxError
from refmoe.ptx.grid import Grid
from refmoe.ptx.state.records import MAX_THREADS

_LANES = 32
#: Of a cluster, at most: every row of clocks has a column for each.
MOST_AGENTS = 1024


def most_agents(grid: Grid) -> int:
    """Of a cluster of a grid: threads are numbered through it, those of warps without lanes too."""
    return min(MOST_AGENTS, MAX_THREADS // (grid.count * _LANES) * grid.cluster_blocks * _LANES)


class MoreAgents(Exception):
    """A cluster needs more agents than the launch has room for. Attributes: `agents`, which would be enough for now."""

    def __init__(self, agents: int) -> None:
        super().__init__(agents)
        self.agents = agents


class Agents:
    """The agents of a machine's clusters.

    Args:
        machine: the lanes.
    """

    def __init__(self, machine: Lanes) -> None:
        self._machine = machine
        # Barriers by byte of shared memory, and warpgroups that multiply by -1 and below.
        self._numbers: dict[int, int] = {}

    def number(self, key: int) -> int:
        """The agent of the barrier at a byte of the cluster's shared memory, or, from -1 down, of a warpgroup.

        Raises:
            MoreAgents: the launch has to run again.
            PtxError: no run has room for so many.
        """
        found = self._numbers.setdefault(key, len(self._numbers))
        clocks = self._machine.clocks
        if clocks is not None and found >= clocks.room:
            grid = self._machine.launch.grid
            most = most_agents(grid)
            if found >= most:
                of_this = "" if most == MOST_AGENTS else f" in a grid of {grid.count} blocks"
                raise PtxError(
                    f"{self._machine.launch.name}: bulk copies complete on more than {most} mbarriers of a cluster, "
                    f"and the search for races tells no more apart{of_this}; Checks(races=False) runs the launch "
                    "without that search"
                )
            raise MoreAgents(min(4 * clocks.room, most))
        return found

    def name(self, thread: int) -> str:
        """For messages: what an agent does, by the number in a race record."""
        machine = self._machine
        number = thread % (machine.clocks.warps * 32)
        found = [key for key, agent in self._numbers.items() if agent == number]
        if not found:
            return "a bulk copy that completes on an mbarrier"
        if found[0] < 0:
            first = 4 * (-1 - found[0])
            return f"a wgmma of warps {first} to {first + 3}"
        byte = found[0] % machine.shared.stride
        return f"a bulk copy that completes on the mbarrier at byte {byte} of shared memory"
