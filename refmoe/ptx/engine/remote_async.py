"""`st.async` and `red.async`: a lane writes shared memory of its cluster, and an mbarrier there counts the bytes.

The bytes are there at once. For races they belong to an asynchronous copy of the lane: nobody may touch them before a
wait for the phase of the mbarrier that they complete, the lane itself neither.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from refmoe.ptx.engine.atomics import Atomic
from refmoe.ptx.engine.frame import Frame
from refmoe.ptx.engine.loads_and_stores import Access, Store
from refmoe.ptx.engine.mbarrier import Mbarriers
from refmoe.ptx.engine.races import shadow_of
from refmoe.ptx.state.memory import Region

Array = Any


@dataclass(frozen=True)
class WriteAsync:
    """A store, or an atomic without a result, in shared memory that completes on an mbarrier.

    Attributes:
        access: what is done.
        barrier: the access of the mbarrier, which lies in the same block as the bytes.
    """

    access: Store | Atomic
    barrier: Access

    def __call__(
        self, frame: Frame, address: Array, values: tuple[Array, ...], barrier: Array, guard: Array | None
    ) -> None:
        """Write `values`, one for each element, and count their bytes off.

        Raises:
            MemoryFault, MisuseError, RaceError: bytes that cannot be written, or an mbarrier that cannot count them.
        """
        where, lanes, chosen = frame.select(address, guard)
        if not lanes.size:
            return
        machine, access = frame.machine, self.access
        _, _, bars = frame.select(barrier, guard)
        ((region, _, index),) = access._parts(frame, chosen, lanes)
        mbarriers = machine.part(Mbarriers)
        ids = mbarriers.objects(frame, self.barrier, bars, lanes)
        apart = mbarriers.slot[ids] * 8 // region.stride != index // region.stride
        if apart.any():
            bad = int(np.argmax(apart))
            block, _ = machine.place_of(int(index[bad]) // region.stride * machine.warps * 32)
            what = f"bytes of block {block}, which complete on {mbarriers.name(int(mbarriers.slot[ids[bad]]))}"
            raise machine.misuse(access.instruction, lanes[bad], what)
        self._write(frame, region, index, lanes, [frame.acting(where, value) for value in values])
        machine.progress()
        mbarriers.complete_bytes(frame, self.barrier, bars, lanes, access.width, index % region.stride)

    def _write(self, frame: Frame, region: Region, index: Array, lanes: Array, values: list[Array]) -> None:
        access = self.access
        if isinstance(access, Store):
            words = access.words(values, len(lanes))
            if region.shadow is not None:
                shadow_of(region).copy(frame, access, region, index, lanes)
            region.write(access.width, index // access.width, words)
            if region.shadow is not None:
                shadow_of(region).after_write(frame, access, region, index, lanes, words)
            return
        access._check_valid(frame, region, index, lanes)
        if region.shadow is not None:
            shadow_of(region).copy(frame, access, region, index, lanes, strong=True)
        access.reduce(frame, region, index, lanes, values)
