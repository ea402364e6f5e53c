"""Proxy fences for global memory (`fence.proxy.async`, alone or of `.global`), and what lies before each.

Between a write of lanes and a bulk copy of the same bytes lies a fence if the write comes before it, and it before the
copy, whoever executed it. Of shared memory that is in the clocks themselves; global memory is written in every CTA, so
each fence keeps what its thread knew of the threads of all of them.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np

from refmoe.ptx.engine.order.clocks import LANES, Clocks
from refmoe.ptx.engine.order.knowledge import Knowledge
from refmoe.ptx.state.records import SEVERAL, SEVERAL_SHIFT, STEP_SHIFT, THREAD, Several

Array = Any
# Fences of the same threads that are remembered. A copy may be ordered after an early one alone.
_MOST = 4096


@dataclass(frozen=True, slots=True)
class _Fence:
    """A fence of threads that knew the same.

    Attributes:
        step: of the fence.
        threads: of the grid, int64 [n].
        known: of their own cluster, int32: the columns of warps and of lanes of their row.
        beyond: of other clusters.
    """

    step: int
    threads: Array
    known: Array
    beyond: Knowledge | None


class ProxyFences:
    """The fences of a launch, by warp of the grid and by their threads, in the order of time."""

    def __init__(self) -> None:
        self._fences: dict[int, dict[bytes, list[_Fence]]] = {}

    def add(self, clocks: Clocks, lanes: Array) -> None:
        """`lanes` execute a fence now."""
        rows = clocks.rows(lanes)
        for row in np.unique(rows).tolist():
            threads = lanes[rows == row] + clocks.first_warp * LANES
            known = clocks.seen[row, : clocks.copy].astype(np.int32)
            held = self._fences.setdefault(int(threads[0]) // LANES, {}).setdefault(threads.tobytes(), [])
            held.append(_Fence(clocks.now, threads, known, clocks.beyond.get(row)))
            del held[:-_MOST]

    def between(self, clocks: Clocks, lanes: Array, records: Array) -> Array:
        """Whether one lies between the write of each of `records` [n] and what `lanes` [n] do now; bool [n]."""
        found = np.zeros(len(records), np.bool_)
        pairs, which = np.unique(np.stack([lanes, records], axis=1), axis=0, return_inverse=True)
        reached: dict[tuple[int, int], list[tuple[_Fence, Array]]] = {}

        def covered(lane: int, warp: int, record: int) -> bool:
            if (lane, warp) not in reached:
                reached[lane, warp] = list(self._known(clocks, lane, warp))
            return any(self._covers(clocks, warp, *one, record) for one in reached[lane, warp])

        for number, (lane, record) in enumerate(pairs.tolist()):
            near = dict.fromkeys((clocks.first_warp + lane // LANES, (record & int(THREAD)) // LANES))
            found[which.ravel() == number] = any(covered(lane, warp, record) for warp in (*near, *self._fences))
        return found

    def _known(self, clocks: Clocks, lane: int, warp: int) -> Iterator[tuple[_Fence, Array]]:
        """The fences of a warp that come before what a lane does now, and whose they are.

        Those of the same threads come one after another, the last first. An earlier one knows no more than one that
        comes before by all of its threads.
        """
        me = clocks.first_warp * LANES + lane
        for held in self._fences.get(warp, {}).values():

            def before(fence: _Fence) -> Array:
                records = (np.int64(fence.step) << np.int64(STEP_SHIFT)) + fence.threads
                return (fence.threads == me) | clocks.ordered(np.full(len(records), lane), records)

            # Whoever knows one of a thread's fences knows the earlier ones.
            end = bisect_left(held, True, key=lambda fence: not before(fence).any())
            for fence in reversed(held[:end]):
                known = before(fence)
                yield fence, fence.threads[known]
                if known.all():
                    break

    def _covers(self, clocks: Clocks, warp: int, fence: _Fence, threads: Array, record: int) -> bool:
        """Whether the write of a record comes before the fence of some of its threads.

        Of a record that stands for several writes it is asked of all of them.
        """
        thread, step = record & int(THREAD), record >> STEP_SHIFT
        several = (record & int(SEVERAL)) >> SEVERAL_SHIFT
        if several == Several.CLUSTERS:
            # No fence is known to come after all that these threads did.
            return False
        if not several and step <= fence.step and bool((threads == thread).any()):
            return True
        cluster = thread // LANES // clocks.warps
        if cluster == warp // clocks.warps:
            return clocks.reaches(fence.known, record)
        return (
            fence.beyond is not None
            and bool(fence.beyond.rows[cluster])
            and clocks.is_known(int(fence.beyond.rows[cluster]), record)
        )
