"""Generic addresses of local memory: they say whose it is, because each thread has its own.

`cvta.local` gives an address that belongs to the thread that executes it (PTX ISA, "Local State Space": local memory is
private). The executor writes the thread into its upper bits, so that another thread that uses it is found out: on a GPU
that one would read or write its own local memory at the same place.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from refmoe.ptx.engine.frame import Frame
from refmoe.ptx.engine.lanes import Lanes
from refmoe.ptx.state.spaces import LOCAL_WINDOW, OWNER_SHIFT

Array = Any


def own_windows(machine: Lanes, lanes: Array) -> Array:
    """Where in generic addresses the local memory of each of `lanes` [n] begins, uint64 [n]."""
    owners = (lanes + np.int64(machine.first_thread + 1)).astype(np.uint64)
    windows: Array = (owners << np.uint64(OWNER_SHIFT)) + np.uint64(LOCAL_WINDOW)
    return windows


def to_generic(frame: Frame, address: Array) -> Array:
    """`cvta.local`: generic addresses of the lanes' own local memory."""
    found: Array = frame.spread(address) + own_windows(frame.machine, frame.lanes())
    return found


def to_local(frame: Frame, address: Array) -> Array:
    """`cvta.to.local`."""
    found: Array = frame.spread(address) - own_windows(frame.machine, frame.lanes())
    return found


def owner_of(machine: Lanes, address: int) -> int | None:
    """The thread of the launch whose local memory an address is in; None for no thread."""
    thread = ((address - LOCAL_WINDOW) >> OWNER_SHIFT) - 1
    threads = machine.warps * 32 * machine.launch.grid.count
    return thread if 0 <= thread < threads else None
