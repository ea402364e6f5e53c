"""Records of accesses: what memory keeps of the last ones of each granule, in 64 bits.

    step << 32 | many << 31 | strong << 30 | asynchronous << 29 | bulk << 28 | thread of the launch

"Many": several lanes of that warp read. "Asynchronous": by a copy that the thread issued. "Bulk": by a bulk copy, into
shared memory if it is not asynchronous too, and then the thread is the agent's number in place of one in the CTA.
"""

from __future__ import annotations

from typing import Any

import numpy as np

Array = Any
MAX_THREADS = 1 << 28
THREAD = np.int64(MAX_THREADS - 1)
# Of a thread: the lane of its warp.
LANE = np.int64(31)
BULK = np.int64(1 << 28)
ASYNCHRONOUS = np.int64(1 << 29)
STRONG: np.int64 = np.int64(1 << 30)
MANY = np.int64(1 << 31)
STEP_SHIFT = 32
# Barriers on which bulk copies complete, in one CTA; those beyond are taken for one. (Not more than a CTA has threads.)
AGENTS = 32
# The step of a bulk copy that has not landed: nothing is ordered after it.
PENDING = 1 << 30


def raise_rows(table: Array, keys: Array, rows: Array) -> None:
    """`np.maximum.at(table, keys, rows)`, which takes ten times as long.

    Args:
        table: int64 [n, ...], raised in place.
        keys: int64 [m], rows of the table; each may come several times.
        rows: int64 [m, ...].
    """
    if not keys.size:
        return
    if (keys[1:] < keys[:-1]).any():
        order = np.argsort(keys, kind="stable")
        keys, rows = keys[order], rows[order]
    starts = np.flatnonzero(np.r_[True, keys[1:] != keys[:-1]])
    raised = keys[starts]
    table[raised] = np.maximum(table[raised], np.maximum.reduceat(rows, starts, axis=0))
