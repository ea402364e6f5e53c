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
from refmoe.ptx.engine.cluster.meetings import ClusterMeetings
from refmoe.ptx.engine.lanes import Lanes
from refmoe.ptx.engine.order.knowledge import Knowledge
from refmoe.ptx.errors import MisuseError
from refmoe.ptx.state.pages import untouched
from refmoe.ptx.state.records import CLUSTER, CTA

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
        self._known = untouched((self._clusters, 2, columns), np.int64)
        self._beyond: dict[tuple[int, int], Knowledge] = {}
        # By cluster and phase, what relaxed arrivals pass on in their own block: (warp, row, of other clusters).
        self._near: dict[tuple[int, int], list[tuple[int, Array, Knowledge | None]]] = {}
        self._phase = np.zeros((self._clusters, 2), np.int64)
        # Whether a phase of each has been completed: then all its blocks have started.
        self.completed = np.zeros(self._clusters, bool)

    @cached_property
    def _place(self) -> Array:
        return np.full(self.machine.lanes, -1, np.int64)

    @cached_property
    def _arrivals(self) -> Array:
        return np.zeros(self.machine.lanes, np.int64)

    @cached_property
    def _waits(self) -> Array:
        return np.zeros(self.machine.lanes, np.int64)

    @cached_property
    def _apart(self) -> Array:
        """bool [warps], whether lanes of each came without a release, so that they do not learn of each other."""
        return np.zeros(self.machine.lanes // 32, bool)

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
        phases = living.reshape(self._clusters, -1).min(axis=1)
        self.completed |= phases > 0
        complete = np.repeat(phases, 32 * self._warps)
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
            relaxed = self._relaxed(lanes)
            self._apart[warps] = relaxed[warps]
            if relaxed.any():
                clocks.use_lanes()
            known, beyond = clocks.knowledge(warps, self.machine.alive, self.machine.exist)
            for number in np.flatnonzero(relaxed[warps]).tolist():
                known[number], beyond[number] = self._passed_on(np.flatnonzero(lanes), int(warps[number]), CLUSTER)
            phase = np.where(lanes, self._arrivals, 0).reshape(-1, 32).max(axis=1)[warps]
            owner, slot = warps // self._warps, phase % 2
            stale = self._phase[owner, slot] != phase
            self._known[owner[stale], slot[stale]] = 0
            for key in zip(owner[stale].tolist(), slot[stale].tolist(), strict=True):
                self._beyond.pop(key, None)
                self._near.pop(key, None)
            self._phase[owner, slot] = phase
            # `np.maximum.at` takes ten times as long for rows.
            for each in (0, 1):
                of_slot = np.flatnonzero(slot == each)
                if of_slot.size:
                    owners, first = np.unique(owner[of_slot], return_index=True)
                    theirs = np.maximum.reduceat(known[of_slot], first)
                    held = self._known[owners, each, : known.shape[1]]
                    self._known[owners, each, : known.shape[1]] = np.maximum(held, theirs)
            for key, each in zip(zip(owner.tolist(), slot.tolist(), strict=True), beyond, strict=True):
                if each is not None:
                    self._beyond[key] = clocks.pool.join(self._beyond.get(key), each)
            for warp, key in zip(warps.tolist(), zip(owner.tolist(), slot.tolist(), strict=True), strict=True):
                if relaxed[warp]:
                    self._near.setdefault(key, []).append((warp, *self._passed_on(np.flatnonzero(lanes), warp, CTA)))
            self.machine.tick(self.machine.launch.clock + 1)
        self._arrivals[lanes] += 1
        self._note(np.flatnonzero(lanes))
        self._send(lanes)

    def _note(self, lanes: Array) -> None:
        """Count for the launch how often `lanes` [n] have come."""
        machine, launch = self.machine, self.machine.launch
        if launch.meetings is None:
            threads = launch.grid.count * machine.warps * 32
            launch.meetings = ClusterMeetings(launch.grid, launch.block, machine.warps, untouched((threads,), np.int64))
        launch.meetings.counts[machine.first_thread + lanes] = self._arrivals[lanes]

    def _relaxed(self, lanes: Array) -> Array:
        """Whether a lane of each warp arrives without a release, bool [warps]."""
        places = [place for place in np.unique(self._place[lanes]).tolist() if not self._codes[place].releases]
        return np.asarray((lanes & np.isin(self._place, places)).reshape(-1, 32).any(axis=1))

    def _passed_on(self, lanes: Array, warp: int, strength: int) -> tuple[Array, Knowledge | None]:
        """What a warp brings whose lanes do not all release: those of `lanes` that do not pass on their fences alone.

        `strength`: of the fences that count.

        Returns:
            A row about the own cluster [used], and what it brings of other clusters.
        """
        machine, clocks, found = self.machine, self.machine.clocks, None
        for lane in lanes[lanes >> 5 == warp].tolist():
            releases = self._codes[int(self._place[lane])].releases
            mine = clocks.knowledge_of(lane) if releases else machine.strong.fenced(lane, strength)
            found = clocks.pool.join(found, mine)
        number = 0 if found is None else int(found.rows[clocks.cluster(warp)])
        return clocks.pool.rows[number, : clocks.used], found

    def _leave(self, lanes: Array) -> None:
        if not lanes.any():
            return
        clocks = self.machine.clocks
        warps = np.flatnonzero(lanes.reshape(-1, 32).any(axis=1))
        if clocks is not None:
            slot = np.where(lanes, self._waits, 0).reshape(-1, 32).max(axis=1)[warps] % 2
            owner = warps // self._warps
            keys = list(zip(owner.tolist(), slot.tolist(), strict=True))
            beyond = [self._beyond.get(key) for key in keys]
            apart = self._apart[warps]
            known = self._known[owner, slot]
            for number, (warp, key) in enumerate(zip(warps.tolist(), keys, strict=True)):
                for other, row, theirs in self._near.get(key, ()):
                    if other // self.machine.warps == warp // self.machine.warps:
                        np.maximum(known[number, : len(row)], row, out=known[number, : len(row)])
                        beyond[number] = clocks.pool.join(beyond[number], theirs)
            together = [theirs for theirs, one in zip(beyond, apart.tolist(), strict=True) if not one]
            clocks.learn(warps[~apart], known, np.flatnonzero(~apart), together)
            for number in np.flatnonzero(apart).tolist():
                warp = int(warps[number])
                knowledge = clocks.pool.knowledge(clocks.cluster(warp), known[number], beyond[number])
                mine = np.flatnonzero(lanes[warp * 32 : warp * 32 + 32]) + warp * 32
                clocks.learn_by_lane(mine, knowledge, self.machine.alive)
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
