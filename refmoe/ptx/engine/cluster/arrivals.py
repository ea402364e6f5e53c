"""Arrivals of other blocks at the mbarriers of a block, and bytes that they add or take: over before it exits.

An arrival is over once somebody has seen the phase complete that it counts for. `mbarrier.expect_tx` and `complete_tx`
are no arrivals: a phase may complete without them. They are over once a later arrival of their thread is.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from refmoe.ptx.engine.lanes import Lanes
from refmoe.ptx.text.syntax import Instruction

Array = Any


@dataclass(frozen=True)
class RemoteArrival:
    """The last arrival of a lane at an object of another block, or its last change of the bytes that are owed.

    Attributes:
        record: of the arrival as an access, see `refmoe.ptx.state.records`.
        phase: that it counted for; if it does not count, in which it came.
        instruction: for messages.
        counts: whether it is an arrival.
    """

    record: int
    phase: int
    instruction: Instruction
    counts: bool


class RemoteArrivals:
    """The last arrivals that nobody of the object's block has been told of.

    Whoever has seen a phase complete knows that all its arrivals have come, whatever these release.
    """

    def __init__(self) -> None:
        # By object, then by lane.
        self._last: dict[int, dict[int, RemoteArrival]] = {}

    def note(
        self, machine: Lanes, instruction: Instruction, ids: Array, lanes: Array, phases: Array, counts: bool = True
    ) -> None:
        """Lanes arrive at objects of other blocks, or, not `counts`, change what is owed there; int64 [n]."""
        if not lanes.size:
            return
        assert machine.clocks is not None
        records = machine.clocks.record(lanes).tolist()
        for number, lane, record, phase in zip(ids.tolist(), lanes.tolist(), records, phases.tolist(), strict=True):
            self._last.setdefault(number, {})[lane] = RemoteArrival(record, phase, instruction, counts)

    def seen(self, ids: Array, phases: Array) -> None:
        """A lane has seen the phases before `phases` of these objects complete; int64 [n]."""
        for number, phase in zip(ids.tolist(), phases.tolist(), strict=True) if self._last else ():
            for lane, each in list(self._last.get(number, {}).items()):
                if each.counts and each.phase < phase:
                    del self._last[number][lane]

    def unordered(self, machine: Lanes, cta: int, places: Array) -> tuple[int, RemoteArrival] | None:
        """(byte in shared memory of the CTA, an arrival there) of which no thread of the CTA knows, or None.

        Args:
            machine: the lanes.
            cta: of the machine.
            places: int64 [objects], the byte of all shared memory where each object lies.
        """
        assert machine.clocks is not None
        width, begin = machine.warps * 32, cta * machine.shared.stride
        warps = np.arange(cta * machine.warps, (cta + 1) * machine.warps) * 32
        for number, arrivals in self._last.items():
            byte = int(places[number]) - begin
            if not 0 <= byte < machine.shared.stride:
                continue
            for lane, each in arrivals.items():
                known = machine.clocks.ordered(warps, np.full(len(warps), each.record))
                if lane // width != cta and not known.any():
                    return byte, each
        return None
