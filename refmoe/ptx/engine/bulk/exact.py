"""Shared memory of which everything is kept, bulk copies and products of warpgroups too.

See `refmoe.ptx.engine.exact_races`.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from refmoe.ptx.engine.bulk.races import (
    CHUNK,
    BulkShadow,
    agent_records,
    pending_records,
    refuse_unfenced,
    that_know_alone,
)
from refmoe.ptx.engine.exact_races import ExactShadow
from refmoe.ptx.engine.frame import Frame
from refmoe.ptx.engine.order.accessing import Accessing
from refmoe.ptx.state.memory import Region
from refmoe.ptx.state.records import PENDING, STEP_SHIFT, WEAK

Array = Any
_PENDING_BITS = np.int64(PENDING << STEP_SHIFT)


class ExactBulkShadow(BulkShadow, ExactShadow):
    """`BulkShadow` of a launch that runs again because a race was suspected."""

    def fill(
        self, frame: Frame, access: Accessing, region: Region, first: Array, span: int, lanes: Array, own: Array,
        flags: np.int64 = WEAK, element: int = 0,
    ) -> None:  # fmt: skip
        """See `BulkShadow.fill`."""
        self.note(frame, access, region, first, lanes, span, "write")
        records = agent_records(frame, lanes, own) + (_PENDING_BITS | flags)
        for begin, lane, record in zip(first.tolist(), lanes.tolist(), records.tolist(), strict=True):
            index, who = _chunks(begin, span, lane)
            self.begin(frame, access, region, index, who, np.full(len(index), record), CHUNK, True, element)
            at, whose = self._cover(index, who, CHUNK)
            refuse_unfenced(self, frame, access, region, at, whose, frame.machine.clocks.has_crossed, flags)
            self._writes[at] = record

    def filled(self, frame: Frame, first: Array, span: int, lanes: Array, own: Array, flags: np.int64 = WEAK) -> None:
        """See `BulkShadow.filled`."""
        agents = agent_records(frame, lanes, own) + flags
        landed = agents + np.int64(frame.machine.clocks.now << STEP_SHIFT)
        self.end(first, span, agents + _PENDING_BITS, landed, writes=True)
        for begin, record in zip(first.tolist(), landed.tolist(), strict=True):
            self._writes[self.granules.cover(_chunks(begin, span, 0)[0], CHUNK)[0]] = record

    def drain(
        self, frame: Frame, access: Accessing, region: Region, first: Array, span: int, lanes: Array, used: Array
    ) -> None:
        """See `BulkShadow.drain`."""
        self.note(frame, access, region, first, lanes, span, "read")
        for index, lane in zip(used, lanes.tolist(), strict=True):
            who = np.full(len(index), lane)
            self.begin(
                frame, access, region, index, who, pending_records(frame, who), access.width, writes=False
            )  # fmt: skip
            at, whose = self._cover(index, who, access.width)
            refuse_unfenced(self, frame, access, region, at, whose, frame.machine.clocks.has_crossed)

    def still_draining(self, frame: Frame, first: Array, span: int, lanes: Array) -> None:
        """See `BulkShadow.still_draining`: here copies are counted."""

    def drained(
        self, frame: Frame, access: Accessing, first: Array, span: int, lanes: Array, used: Array,
        own: Array | None = None,
    ) -> None:  # fmt: skip
        """See `BulkShadow.drained`."""
        after = self._mine(frame, lanes, np.int64(0))
        if own is not None:
            after = agent_records(frame, lanes, own) + np.int64(frame.machine.clocks.now << STEP_SHIFT)
        for index, before, landed in zip(used, pending_records(frame, lanes), after, strict=True):
            every = np.ones(len(index), np.int64)
            self.end(index, access.width, before * every, landed * every, writes=False)

    def multiply(
        self, frame: Frame, access: Accessing, region: Region, index: Array, lanes: Array, group: int, agent: int
    ) -> None:
        """See `BulkShadow.multiply`."""
        self.note(frame, access, region, index, np.full(len(index), lanes[0]), CHUNK, "read")
        record = agent_records(frame, lanes[:1], np.array([agent])) + _PENDING_BITS
        for lane in that_know_alone(frame.machine.clocks, lanes).tolist():
            who = np.full(len(index), lane)
            self.begin(frame, access, region, index, who, np.full(len(index), record[0]), CHUNK, writes=False)
            at, whose = self._cover(index, who, CHUNK)
            refuse_unfenced(self, frame, access, region, at, whose, frame.machine.clocks.has_crossed, multiplies=True)
        self._multiplying[group] = agent

    def _note_products(self, frame: Frame, index: Array, lanes: Array, group: int, step: int) -> None:
        agent = agent_records(frame, lanes, self._multiplying[group : group + 1])
        record = agent + (np.int64(step) << np.int64(STEP_SHIFT))
        self.put(index, np.full(len(index), record[0]), CHUNK)


def _chunks(begin: int, span: int, lane: int) -> tuple[Array, Array]:
    """(first bytes, lanes) of the chunks of a copy."""
    index = np.arange(begin, begin + span, CHUNK)
    return index, np.full(len(index), lane)
