"""`clusterlaunchcontrol`: a cluster takes over the work of one that has not started.

A request takes the cluster that would start next off the queue, and answers with the index of its first block. It fails
where none is left. PTX lets it fail for other reasons too, and so it does at times under a schedule that is not the
default one. The answer of 16 bytes is opaque; here its four words are

    x, y, z, 1                      the first block of a cluster that will not start
    0xFFFFFFFF three times, 0       nothing was cancelled

The bytes are there at once, as those of `st.async` are, and complete on an mbarrier as those do.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from refmoe.ptx.engine.frame import Frame
from refmoe.ptx.engine.remote_async import WriteAsync
from refmoe.ptx.state.spaces import RANK_SHIFT, SHARED_WINDOW
from refmoe.ptx.text.syntax import Instruction

Array = Any
_OFFSET = np.uint64((1 << RANK_SHIFT) - 1)
_LOW, _HALF = np.uint64(0xFFFFFFFF), np.uint64(32)
_FAILED = (0xFFFFFFFF, 0xFFFFFFFF, 0xFFFFFFFF, 0)


def granted(low: Array, high: Array) -> Array:
    """Whether a cluster was cancelled, of the two halves of an answer."""
    return np.asarray(high >> _HALF != 0)


def _clusters(frame: Frame, lanes: Array) -> Array:
    """The numbers of the clusters that lanes are of."""
    machine = frame.machine
    return (machine.first_cta + machine.lane_cta[lanes]) // machine.launch.grid.cluster_blocks


@dataclass(frozen=True)
class Cancel:
    """`clusterlaunchcontrol.try_cancel`.

    Attributes:
        write: how the answer comes to the shared memory of a block; to all blocks it comes by generic addresses.
        multicast: whether all blocks of the cluster get it.
    """

    instruction: Instruction
    write: WriteAsync
    multicast: bool

    def __call__(self, frame: Frame, address: Array, barrier: Array, guard: Array | None) -> None:
        """One request of each lane.

        Raises:
            MemoryFault, MisuseError, RaceError: an answer that cannot be written, or a request by a cluster that has
                seen one of its requests fail.
        """
        where, lanes, addresses = frame.select(address, guard)
        if not lanes.size:
            return
        machine = frame.machine
        seen = np.isin(_clusters(frame, lanes), list(machine.launch.refused))
        if seen.any():
            what = "a request after one whose failure its cluster has seen"
            raise machine.misuse(self.instruction, lanes[np.argmax(seen)], what)
        _, _, barriers = frame.select(barrier, guard)
        whole = slice(None) if where is None else where
        answers = np.zeros((4, frame.count), np.uint32)
        answers[:, whole] = np.array([self._answer(frame) for _ in lanes], np.uint32).T
        places, bars = np.zeros((2, frame.count), np.uint64)
        for rank in range(machine.launch.grid.cluster_blocks) if self.multicast else (None,):
            for whose, held in ((places, addresses), (bars, barriers)):
                whose[whole] = (
                    held if rank is None else held & _OFFSET | np.uint64(SHARED_WINDOW | (rank + 1) << RANK_SHIFT)
                )
            self.write(frame, places, tuple(answers), bars, guard)

    def _answer(self, frame: Frame) -> tuple[int, int, int, int]:
        launch, choices = frame.machine.launch, frame.machine.choices
        declined = choices is not None and choices.below(4) == 0
        if declined or launch.queue is None or not len(launch.queue):
            return _FAILED
        first = launch.queue.take(launch.grid.cluster_blocks).start
        return *launch.grid.index(first), 1


@dataclass(frozen=True)
class IsCancelled:
    """`clusterlaunchcontrol.query_cancel.is_canceled`."""

    def __call__(self, frame: Frame, low: Array, high: Array, guard: Array | None) -> Array:
        """bool, one for each vector element."""
        answer = np.broadcast_to(granted(low, high), (frame.count,))
        where = frame.where(guard)
        failed = ~answer if where is None else ~answer & where
        frame.machine.launch.refused.update(_clusters(frame, frame.lanes()[failed]).tolist())
        return answer


@dataclass(frozen=True)
class FirstBlock:
    """`clusterlaunchcontrol.query_cancel.get_first_ctaid`: what a failed answer gives is open."""

    def __call__(self, frame: Frame, low: Array, high: Array) -> tuple[Array, ...]:
        """x, y, z and what stands behind them, uint32 each."""
        halves = (low & _LOW, low >> _HALF, high & _LOW, _LOW)
        return tuple(np.broadcast_to(each, (frame.count,)).astype(np.uint32) for each in halves)
