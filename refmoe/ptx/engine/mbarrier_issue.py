"""The `mbarrier` instructions, each a call on the objects of its CTAs (`refmoe.ptx.engine.mbarrier`)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from refmoe.ptx.engine.access import Access
from refmoe.ptx.engine.mbarrier import MOST

if TYPE_CHECKING:
    from refmoe.ptx.engine.frame import Frame

Array = Any


@dataclass(frozen=True)
class Create:
    """`mbarrier.init`."""

    access: Access

    def __call__(self, frame: Frame, address: Array, count: Array, guard: Array | None) -> None:
        """Initialise the objects of the acting lanes."""
        where, lanes, chosen = frame.select(address, guard)
        if lanes.size:
            counts = frame.acting(where, count).astype(np.int64)
            frame.machine.mbarriers.create(frame, self.access, chosen, lanes, counts)


@dataclass(frozen=True)
class Destroy:
    """`mbarrier.inval`."""

    access: Access

    def __call__(self, frame: Frame, address: Array, guard: Array | None) -> None:
        """End the objects of the acting lanes."""
        _, lanes, chosen = frame.select(address, guard)
        if lanes.size:
            frame.machine.mbarriers.destroy(frame, self.access, chosen, lanes)


@dataclass(frozen=True)
class Arrive:
    """`mbarrier.arrive`, `arrive_drop`, with `.expect_tx` or `.noComplete`.

    Attributes:
        access: the object.
        releases: not `.relaxed`.
        drops: the arrivals are missing from all later phases too.
        completes: the phase may end here.
    """

    access: Access
    releases: bool = True
    drops: bool = False
    completes: bool = True

    def __call__(self, frame: Frame, address: Array, count: Array, owed: Array, guard: Array | None) -> Array:
        """Arrive `count` times, after adding `owed` bytes. The states before, uint64 [lanes of the frame]."""
        where, lanes, chosen = frame.select(address, guard)
        result = np.zeros(frame.count, np.uint64)
        if lanes.size:
            counts, bytes_ = (frame.acting(where, value).astype(np.int64) for value in (count, owed))
            states = frame.machine.mbarriers.arrive(frame, self, chosen, lanes, counts, bytes_)
            result[slice(None) if where is None else where] = states
        return result


@dataclass(frozen=True)
class Expect:
    """`mbarrier.expect_tx`, and with `sign` -1 `mbarrier.complete_tx`."""

    access: Access
    sign: int

    def __call__(self, frame: Frame, address: Array, owed: Array, guard: Array | None) -> None:
        """Change what transactions owe."""
        where, lanes, chosen = frame.select(address, guard)
        if lanes.size:
            owed = frame.acting(where, owed).astype(np.int64) * self.sign
            frame.machine.mbarriers.expect(frame, self, chosen, lanes, owed)


@dataclass(frozen=True)
class CopyArrive:
    """`cp.async.mbarrier.arrive`; `increments`: not `.noinc`, the phase expects one arrival more."""

    access: Access
    increments: bool

    def __call__(self, frame: Frame, address: Array, guard: Array | None) -> None:
        """Announce the arrivals."""
        _, lanes, chosen = frame.select(address, guard)
        if lanes.size:
            frame.machine.mbarriers.announce(frame, self, chosen, lanes)


@dataclass(frozen=True)
class Wait:
    """`mbarrier.test_wait` and `try_wait`; `parity`: for a parity, not for a state. `acquires`: not `.relaxed`."""

    access: Access
    parity: bool
    acquires: bool = True

    def __call__(self, frame: Frame, address: Array, asked: Array, guard: Array | None) -> Array:
        """Whether the phase is complete, bool [lanes of the frame]."""
        where, lanes, chosen = frame.select(address, guard)
        result = np.zeros(frame.count, bool)
        if lanes.size:
            mbarriers = frame.machine.mbarriers
            ids, ready = mbarriers.look(frame, self, chosen, lanes, frame.acting(where, asked).astype(np.uint64))
            frame.machine.tracer.mbarrier("pass", self.access.instruction, lanes[ready], ids[ready])
            if self.acquires:
                mbarriers.acquire(ids[ready], lanes[ready])
            result[slice(None) if where is None else where] = ready
        return result


def pending_count(state: Array) -> Array:
    """`mbarrier.pending_count`: of the state that an arrival found."""
    return (state & np.uint64(MOST)).astype(np.uint32)
