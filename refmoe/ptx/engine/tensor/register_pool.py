"""`setmaxnreg`: all warps of a warpgroup execute it (PTX ISA, "setmaxnreg": else the behaviour is undefined).

How many registers a warp owns changes no result here. The warps of a role may have one in each branch, as those of
CUTLASS's kernels do; so what is compared is how many a warp has executed when its warpgroup has exited.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from refmoe.ptx.engine.frame import Frame
from refmoe.ptx.engine.lanes import Lanes
from refmoe.ptx.engine.tensor.matrix import whole_warps
from refmoe.ptx.errors import WarpError
from refmoe.ptx.text.syntax import Instruction
from refmoe.ptx.text.wgmma import WARPS

Array = Any


class RegisterPool:
    """Which warps of some CTAs have executed `setmaxnreg` how often.

    Args:
        machine: their lanes.
    """

    def __init__(self, machine: Lanes) -> None:
        self._machine = machine
        self._counts = np.zeros(machine.lanes // 32, np.int64)
        self._last: dict[int, Instruction] = {}

    def executed(self, instruction: Instruction, mask: Array) -> None:
        """The warps of some lanes execute one."""
        warps = np.flatnonzero(mask.reshape(-1, 32).any(axis=1))
        self._counts[warps] += 1
        self._last.update(dict.fromkeys(warps.tolist(), instruction))

    def leave(self) -> None:
        """Lanes have exited.

        Raises:
            WarpError: all of a warpgroup have, and some of its warps have executed fewer than the others.
        """
        if not self._last:
            return
        machine, counts = self._machine, self._counts
        firsts = (np.arange(0, len(counts), machine.warps)[:, None] + np.arange(0, machine.warps, WARPS)).ravel()
        uneven = np.minimum.reduceat(counts, firsts) != np.maximum.reduceat(counts, firsts)
        if not np.count_nonzero(uneven):
            return
        alive: Array = machine.alive.reshape(-1, 32).any(axis=1)
        gone = np.flatnonzero(uneven & ~np.logical_or.reduceat(alive, firsts))
        if not gone.size:
            return
        first = int(firsts[gone[0]])
        counts = counts[first : min(first + WARPS, (first // machine.warps + 1) * machine.warps)]
        most = first + int(np.argmax(counts))
        block, thread = machine.place_of((first + int(np.argmin(counts))) * 32)
        what = (
            f"not all warps of its warpgroup execute it: that of block {block} thread {thread} has executed "
            f"setmaxnreg {counts.min()} times, this one {counts.max()} times"
        )
        raise machine.error(WarpError, self._last[most], most * 32, what)


@dataclass(frozen=True)
class SetRegisters:
    """`setmaxnreg`."""

    instruction: Instruction

    def __call__(self, frame: Frame) -> None:
        """Raises WarpError: not all lanes of a warp are here."""
        whole_warps(frame, self.instruction)
        frame.machine.part(RegisterPool).executed(self.instruction, frame.mask)
