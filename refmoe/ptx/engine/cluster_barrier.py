"""`barrier.cluster`: arriving and waiting are two instructions.

Every lane arrives and then waits, in turns; a phase is complete when all lanes of the cluster that have not exited have
arrived. As
with the named barriers, a warp arrives, and goes on from a wait, with all its lanes that have not exited.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import cached_property
from typing import Any

import numpy as np

from refmoe.ptx.engine.barriers import BarrierCode, ranges
from refmoe.ptx.engine.lanes import Lanes
from refmoe.ptx.engine.order.knowledge import Knowledge
from refmoe.ptx.errors import MisuseError

Array = Any


class ClusterBarrier:
    """The barrier of each cluster, and the lanes parked at it."""

    def __init__(self, machine: Lanes, codes: Mapping[int, BarrierCode]) -> None:
        self.machine = machine
        self._codes = codes
        # Most kernels have no such barrier: what is as long as the lanes is made when one comes.
        self._met = False
        # What those who arrived know, of the phase under way and of the one before: a lane is never further ahead.
        columns = 0 if machine.clocks is None else machine.clocks.columns
        self._warps = machine.warps * machine.launch.grid.cluster_blocks
        self._clusters = machine.lanes // (32 * self._warps)
        self._known = np.zeros((self._clusters, 2, columns), np.int64)
        self._beyond: dict[tuple[int, int], Knowledge] = {}
        self._phase = np.zeros((self._clusters, 2), np.int64)

    @cached_property
    def _place(self) -> Array:
        return np.full(self.machine.lanes, -1, np.int64)

    @cached_property
    def _arrivals(self) -> Array:
        return np.zeros(self.machine.lanes, np.int64)

    @cached_property
    def _waits(self) -> Array:
        return np.zeros(self.machine.lanes, np.int64)

    def come(self, code: BarrierCode, place: int, mask: Array) -> None:
        """Lanes of `mask` come to the instruction that ends block `place`.

        Raises:
            MisuseError: a lane arrives twice without waiting, or waits without having arrived.
        """
        arrives = code.kind == "cluster.arrive"
        wrong = mask & ((self._arrivals == self._waits) != arrives)
        if wrong.any():
            what = "arrives a second time without a wait" if arrives else "waits without having arrived"
            raise self.machine.error(MisuseError, code.instruction, int(np.argmax(wrong)), what, link="")
        self._met = True
        self._place[mask] = place
        self.settle()

    def settle(self) -> None:
        """Count the warps that have arrived, and let those go on whose phase is complete."""
        if not self._met or not (self._place >= 0).any():
            return
        machine = self.machine
        self._arrive(self._whole_warps((self._place >= 0) & (self._arrivals == self._waits)))
        living = np.where(machine.alive, self._arrivals, np.iinfo(np.int64).max)
        complete = np.repeat(living.reshape(self._clusters, -1).min(axis=1), 32 * self._warps)
        waiting = (self._place >= 0) & (self._arrivals > self._waits)
        self._leave(self._whole_warps(waiting & (self._arrivals <= complete)))

    def _whole_warps(self, lanes: Array) -> Array:
        """Those of `lanes` in whose warp every lane is one of them or has exited."""
        whole = (lanes | ~self.machine.alive).reshape(-1, 32).all(axis=1)
        return lanes & np.repeat(whole, 32)

    def _arrive(self, lanes: Array) -> None:
        if not lanes.any():
            return
        clocks = self.machine.clocks
        warps = np.flatnonzero(lanes.reshape(-1, 32).any(axis=1))
        if clocks is not None:
            known, beyond = clocks.knowledge(warps)
            phase = np.where(lanes, self._arrivals, 0).reshape(-1, 32).max(axis=1)[warps]
            owner, slot = warps // self._warps, phase % 2
            stale = self._phase[owner, slot] != phase
            self._known[owner[stale], slot[stale]] = 0
            for key in zip(owner[stale].tolist(), slot[stale].tolist(), strict=True):
                self._beyond.pop(key, None)
            self._phase[owner, slot] = phase
            np.maximum.at(self._known[:, :, : known.shape[1]], (owner, slot), known)
            for key, each in zip(zip(owner.tolist(), slot.tolist(), strict=True), beyond, strict=True):
                if each is not None:
                    self._beyond[key] = clocks.pool.join(self._beyond.get(key), each)
            self.machine.tick(self.machine.launch.clock + 1)
        self._arrivals[lanes] += 1
        self._send(lanes)

    def _leave(self, lanes: Array) -> None:
        if not lanes.any():
            return
        clocks = self.machine.clocks
        warps = np.flatnonzero(lanes.reshape(-1, 32).any(axis=1))
        if clocks is not None:
            slot = np.where(lanes, self._waits, 0).reshape(-1, 32).max(axis=1)[warps] % 2
            owner = warps // self._warps
            beyond = [self._beyond.get(key) for key in zip(owner.tolist(), slot.tolist(), strict=True)]
            clocks.learn(warps, self._known[owner, slot], beyond)
        self._waits[lanes] += 1
        self._send(lanes)

    def _send(self, lanes: Array) -> None:
        origin = self._place.copy()
        self._place[lanes] = -1
        self.machine.resume_each(origin, lanes)

    def places(self) -> Array:
        """int64 [lanes], the block at whose end each lane waits, -1 for none."""
        return self._place

    def report(self) -> list[str]:
        """One sentence for each CTA whose lanes wait."""
        machine = self.machine
        lines: list[str] = []
        if not self._met:
            return lines
        for cta in np.unique(machine.lane_cta[self._place >= 0]):
            lanes = np.flatnonzero((machine.lane_cta == cta) & (self._place >= 0))
            block, _ = machine.place_of(int(lanes[0]))
            instruction = self._codes[int(self._place[lanes[0]])].instruction
            lines.append(
                f"the cluster barrier of block {block}: waiting are {ranges(machine, lanes)}; "
                f"{machine.describe(instruction)}"
            )
        return lines
