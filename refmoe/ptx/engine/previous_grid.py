"""The grid before this one, as a writer that is still under way (programmatic dependent launch).

A grid that is launched with programmatic stream serialization may start before the grid in front of it has ended. What
that one writes may be used only behind `griddepcontrol.wait`, by the thread that executed it, or by one that comes
after it. (PTX ISA, "griddepcontrol": `.wait` waits until all prerequisite grids have completed and their memory
operations are visible.) `griddepcontrol.launch_dependents` of that grid lets this one start, and makes nothing visible:
a grid that is started so has to wait, whatever the other did before. So it changes nothing here.

`ld.global.nc` is for bytes that nobody writes as long as this grid runs. This one runs since before the wait, so bytes
of the grid before are none of these, not even behind the wait. On a chip nobody has seen such a load go wrong that
stays behind the wait: it is a warning.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from refmoe.ptx.engine.frame import Frame
from refmoe.ptx.engine.races import shadow_of
from refmoe.ptx.errors import RaceError
from refmoe.ptx.state.memory import Region
from refmoe.ptx.state.records import STEP_SHIFT
from refmoe.ptx.text.syntax import Instruction

Array = Any
# By the warning; a fault has none.
_SENTENCES = {
    "": "accesses what the grid before this one may still be writing, and no griddepcontrol.wait comes before",
    "non-coherent": (
        "reads, through the non-coherent cache (ld.global.nc), what the grid before this one wrote while this one was "
        "already running: griddepcontrol.wait comes before, but such a load is for bytes that nobody writes as long as "
        "its grid runs"
    ),
}

_WARP_SHIFT, _LANE = 5, 31


class PreviousGrid:
    """What threads of a launch know of the end of the grid before it.

    Args:
        warps: of the launch.

    Attributes:
        knows: uint32 [warps], the lanes that know that it has ended, a bit each. Native code reads it.
    """

    def __init__(self, warps: int) -> None:
        self.knows = np.zeros(warps, np.uint32)
        # One for each thread that has waited.
        self._waits: Array = np.empty(0, np.int64)

    @property
    def known(self) -> bool:
        """Whether a thread has waited for its end."""
        return bool(self._waits.size)

    def waited(self, frame: Frame, lanes: Array) -> None:
        """`lanes` have executed `griddepcontrol.wait`."""
        machine = frame.machine
        threads = lanes + machine.first_thread
        new = threads[~self._known(threads)]
        self._waits = np.append(self._waits, (machine.clocks.now << STEP_SHIFT) + new)
        self._learn(new)
        machine.tick(machine.launch.clock + 1)

    def check(self, frame: Frame, instruction: Instruction, region: Region, index: Array, lanes: Array) -> None:
        """`lanes` [n] access bytes at `index` [n] of a region that the grid before writes.

        Raises:
            RaceError: one of them does not come after a wait; under strict checks, it comes after one but is `.nc`.
        """
        self._check_order(frame, instruction, region, index, lanes)
        if len(lanes) and "nc" in instruction.opcode.split("."):
            self._report(frame, instruction, region, int(index[0]), int(lanes[0]), "non-coherent")

    def _check_order(self, frame: Frame, instruction: Instruction, region: Region, index: Array, lanes: Array) -> None:
        machine = frame.machine
        threads = lanes + machine.first_thread
        rows = np.flatnonzero(~self._known(threads))
        if not rows.size:
            return
        waits = self._waits
        for row in rows.tolist():
            lane = int(lanes[row])
            if waits.size and machine.clocks.ordered(np.full(len(waits), lane), waits).any():
                self._learn(threads[row : row + 1])
            else:
                self._report(frame, instruction, region, int(index[row]), lane)

    def _known(self, threads: Array) -> Array:
        return (self.knows[threads >> _WARP_SHIFT] >> (threads & _LANE).astype(np.uint32)) & 1 != 0

    def _learn(self, threads: Array) -> None:
        np.bitwise_or.at(self.knows, threads >> _WARP_SHIFT, np.uint32(1) << (threads & _LANE).astype(np.uint32))

    def _report(
        self, frame: Frame, instruction: Instruction, region: Region, offset: int, lane: int, warning: str = ""
    ) -> None:
        machine, shadow = frame.machine, shadow_of(region)
        fields = machine.at(lane, instruction)
        error = RaceError(
            f"previous grid race on byte {offset} of {region.name} ({region.space}): block {fields['block']} thread "
            f"{fields['thread']} {_SENTENCES[warning]}; {machine.describe(instruction)}",
            kind="previous grid",
            space=region.space,
            buffer=region.name,
            offset=offset,
            other_block=fields["block"],
            other_thread=None,
            warning=warning,
            certain=True,
            **fields,
        )
        shadow.found(machine, error, offset, lane)


@dataclass(frozen=True)
class GridWait:
    """`griddepcontrol.wait`."""

    def __call__(self, frame: Frame, guard: Array | None) -> None:
        """The acting lanes know that the grid before this one has ended."""
        previous = frame.machine.launch.previous
        if previous is None or frame.machine.clocks is None:
            return
        where = frame.where(guard)
        lanes = frame.lanes() if where is None else frame.lanes()[where]
        previous.waited(frame, lanes)
