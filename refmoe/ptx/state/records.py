"""Records of accesses: what memory keeps of the last ones of each granule, in 64 bits.

    step << 33 | several << 31 | bulk << 30 | asynchronous << 29 | strength << 27 | thread of the launch

"Several" says of how many threads a record is the last, see `Several`. "Bulk": by a bulk copy, into shared memory if it
is not asynchronous too, and then the thread is the agent's number in place of one in the CTA. "Asynchronous": by a copy
that the thread issued. "Strength" is 0 for a weak access, and else says with whom a strong one is morally strong (PTX
ISA, "Morally strong operations"): 1 with its CTA, 2 with its cluster, 3 with the grid and beyond.
"""

from __future__ import annotations

from enum import IntEnum
from typing import Any

import numpy as np

Array = Any
MAX_THREADS = 1 << 27
THREAD = np.int64(MAX_THREADS - 1)
# Of a thread: the lane of its warp.
LANE = np.int64(31)
STRENGTH_SHIFT = 27
STRENGTH: np.int64 = np.int64(3 << STRENGTH_SHIFT)
ASYNCHRONOUS = np.int64(1 << 29)
BULK = np.int64(1 << 30)
SEVERAL_SHIFT = 31
SEVERAL = np.int64(3 << SEVERAL_SHIFT)
STEP_SHIFT = 33
WEAK: np.int64 = np.int64(0)
# Barriers on which bulk copies complete, and warpgroups that multiply, in one cluster: for more a launch runs again.
AGENTS = 128
# The step of a bulk copy that has not landed: nothing is ordered after it. Steps are below.
PENDING = 1 << 29
# In the place of the last write of bytes that nobody may write: nothing is ordered after it, so that native code leaves
# each access of them to Python.
GUARDED: np.int64 = np.int64(PENDING << STEP_SHIFT) | ASYNCHRONOUS

#: Of a page whose records nobody knows the last step of. No lane knows anything up to it.
UNKNOWN_STEP = 1 << 62

#: Strength of an access by its scope; of a weak one it is 0.
STRENGTHS = {"cta": 1, "cluster": 2, "gpu": 3, "sys": 3}
#: Strength that both of two accesses need so that threads of one CTA, or of one cluster, are morally strong.
CTA, CLUSTER = 1, 2
#: Strength that both of two accesses need so that threads of a grid are morally strong whatever their CTAs.
GRID = 3


class Several(IntEnum):
    """Whose accesses one record stands for."""

    ONE = 0
    """One thread's."""
    LANES = 1
    """Some of the warp's."""
    WARPS = 2
    """Some of the cluster's: of the CTA's where clusters have one."""
    CLUSTERS = 3
    """Some of the grid's."""


def is_weaker(record: int, other: int) -> bool:
    """Whether an access is morally strong with fewer threads than another one, or with none."""
    return record & int(STRENGTH) < other & int(STRENGTH)


def excused(record: Array, mine: Array, cta_threads: int, cluster_threads: int) -> Array:
    """Whether the accesses of two records, int64 [n] each, are morally strong; `mine` is of the generic proxy."""
    strength = np.minimum(record & STRENGTH, mine & STRENGTH) >> STRENGTH_SHIFT
    several = (record & SEVERAL) >> SEVERAL_SHIFT
    one, other = record & THREAD, mine & THREAD
    same_cta = (one // cta_threads == other // cta_threads) & (
        (several < Several.WARPS) | (cta_threads == cluster_threads)
    )
    same_cluster = one // cluster_threads == other // cluster_threads
    needed = np.where(same_cta, 1, np.where(same_cluster, 2, GRID))
    needed = np.where(several == Several.CLUSTERS, GRID, needed)
    # A bulk copy is of another proxy.
    return (strength != 0) & (strength >= needed) & (record & BULK == 0)


def never(record: Any) -> Any:
    """The record of a read that may happen at any time: not even what its own thread does comes after it."""
    return record & ~(np.int64(-1) << STEP_SHIFT) | np.int64(PENDING << STEP_SHIFT) | ASYNCHRONOUS
