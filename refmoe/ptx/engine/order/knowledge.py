"""What threads of a launch may know of other clusters: a row of clocks for each cluster of the grid.

Rows lie in one pool and never change, so that what many threads know is kept once. `Knowledge` names one row for each
cluster of the grid; joining two of them makes new rows only where both know of a cluster, and neither knows it all.
"""

from __future__ import annotations

import weakref
from typing import Any

import numpy as np

from refmoe.ptx.state.pages import untouched

Array = Any
_FIRST_ROWS = 64
# A full pool gets so many times the room. Rows that nobody has written yet lie in no memory.
_GROWTH = 8
# Rows that nobody refers to any more are looked for when the pool is full and has at least so many bytes.
_WORTH_SWEEPING = 32 << 20
# So many are not looked through for those that are gone.
_FEW = 1024
# Rows that are compared in one call.
_ROWS_AT_ONCE = 64


class Knowledge:
    """One row of a pool for each cluster of the grid.

    Attributes:
        rows: int32 [clusters], row of the pool, 0 for a cluster of which nothing is known. Never changed once made.
        count: clusters of which something is known.
        address: of the rows, for native code. Each lane that learns asks for it, and NumPy takes longer than to learn.
    """

    __slots__ = ("__weakref__", "address", "count", "rows")

    def __init__(self, rows: Array, count: int) -> None:
        self.rows, self.count = rows, count
        self.address = int(rows.__array_interface__["data"][0])


class Pool:
    """The rows of a launch.

    Args:
        clusters: of the grid.

    Attributes:
        rows: int64 [n, columns], see `Clocks.seen`; the first is empty.
    """

    def __init__(self, clusters: int) -> None:
        self.clusters = clusters
        self.rows = np.zeros((1, 0), np.int64)
        self._count = 1
        self._free: list[int] = []
        # Whatever was made, but for what is known to be gone. A set that forgets by itself takes longer than to learn.
        self._made: list[weakref.ref[Knowledge]] = []
        self._most = _FEW

    def fit(self, columns: int) -> None:
        """Rows have so many columns; the first call decides."""
        if not self.rows.shape[1]:
            self.rows = np.zeros((_FIRST_ROWS, columns), np.int64)

    def add(self, row: Array) -> int:
        """Keep a row [columns]; returns its number."""
        if self._count == len(self.rows) and not self._free:
            self._make_room()
        if self._free:
            number = self._free.pop()
        else:
            number = self._count
            self._count += 1
        self.rows[number] = row
        return number

    def _make_room(self) -> None:
        if self.rows.nbytes >= _WORTH_SWEEPING:
            used = np.zeros(len(self.rows), bool)
            used[0] = True
            for knowledge in self._living():
                used[knowledge.rows] = True
            self._free = np.flatnonzero(~used).tolist()
        if 2 * len(self._free) < len(self.rows):
            grown = untouched((_GROWTH * len(self.rows), self.rows.shape[1]), np.int64)
            grown[: len(self.rows)] = self.rows
            self.rows = grown

    def knowledge(self, cluster: int, row: Array, beyond: Knowledge | None) -> Knowledge:
        """What somebody knows: `row` [columns] of the own cluster, and of other clusters what `beyond` has."""
        rows = np.zeros(self.clusters, np.int32) if beyond is None else beyond.rows.copy()
        count = (0 if beyond is None else beyond.count) + (not rows[cluster])
        rows[cluster] = self.add(row)
        return self._new(rows, count)

    def _new(self, rows: Array, count: int) -> Knowledge:
        made = Knowledge(rows, count)
        self._made.append(weakref.ref(made))
        if len(self._made) > self._most:
            self._made = [weakref.ref(each) for each in self._living()]
            self._most = 2 * len(self._made) + _FEW
        return made

    def _living(self) -> list[Knowledge]:
        """What somebody refers to."""
        return [each for one in self._made if (each := one()) is not None]

    def join(self, one: Knowledge | None, other: Knowledge | None) -> Knowledge | None:
        """What both know together."""
        if one is None or other is None or one is other:
            return other if one is None else one
        mine, theirs = one.rows, other.rows
        # That of each cluster of which the one or the other knows.
        rows: Array = np.maximum(mine, theirs)
        count = int(np.count_nonzero(rows))
        if count == one.count + other.count:
            return self._new(rows, count)
        both = np.flatnonzero((mine != theirs) & (mine != 0) & (theirs != 0))
        held = self._new(rows, count)
        for begin in range(0, len(both), _ROWS_AT_ONCE):
            some = both[begin : begin + _ROWS_AT_ONCE]
            first, second = self.rows[mine[some]], self.rows[theirs[some]]
            learns, knows_more = (first < second).any(axis=1), (second < first).any(axis=1)
            rows[some] = np.where(learns, theirs[some], mine[some])
            for number in np.flatnonzero(learns & knows_more).tolist():
                # A sweep in between spares the rows of `one` and `other`, which somebody holds.
                rows[some[number]] = self.add(np.maximum(first[number], second[number]))
        return one if np.array_equal(rows, mine) else other if np.array_equal(rows, theirs) else held
