"""What threads of a launch may know of other clusters: a row of clocks for each cluster of the grid.

Rows lie in one pool and never change, so that what many threads know is kept once. `Knowledge` names one row for each
cluster of the grid; joining two of them makes new rows only where both know of a cluster, and neither knows it all.
"""

from __future__ import annotations

import weakref
from typing import Any

import numpy as np

from refmoe.native.addresses import address
from refmoe.ptx.native.clocks import clear_rows
from refmoe.ptx.state.pages import cleared, untouched

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

    Args:
        clusters: of the grid.
        rows: see below; None where something is known of a single cluster, `alone`.
        count: clusters of which something is known.
        alone: that cluster and its row.

    Attributes:
        count: as above.
        alone: as above, or None.
    """

    __slots__ = ("__weakref__", "_clusters", "_rows", "alone", "count")

    def __init__(self, clusters: int, rows: Array, count: int, alone: tuple[int, int] | None = None) -> None:
        self._clusters, self._rows, self.count, self.alone = clusters, rows, count, alone

    @property
    def rows(self) -> Array:
        """int32 [clusters], row of the pool, 0 for a cluster of which nothing is known. Never changed once made."""
        if self._rows is None:
            # Most of what somebody releases is joined with more at once, and nobody asks for it.
            assert self.alone is not None
            self._rows = np.zeros(self._clusters, np.int32)
            self._rows[self.alone[0]] = self.alone[1]
        return self._rows

    @property
    def address(self) -> int:
        """Of the rows, for native code."""
        return address(self.rows)


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
        # Columns that rows may hold something in.
        self._width = 0
        self._free: list[int] = []
        # Whatever was made, but for what is known to be gone. A set that forgets by itself takes longer than to learn.
        self._made: list[weakref.ref[Knowledge]] = []
        self._most = _FEW

    def fit(self, columns: int) -> None:
        """Rows have so many columns; the first call decides."""
        if not self.rows.shape[1]:
            self.rows = untouched((_FIRST_ROWS, columns), np.int64)

    def release(self) -> None:
        """Give memory back: nobody asks any more what anybody knew."""
        self._give(self.rows)
        self.rows, self._count, self._free = np.zeros((1, 0), np.int64), 1, []

    def _give(self, rows: Array) -> None:
        numbers = np.arange(1, self._count)
        clear_rows(rows, numbers, np.array([[0, self._width]], np.int64))
        cleared(rows, len(numbers) * rows.strides[0])

    def add(self, row: Array, at: int = 0, step: int = 0) -> int:
        """Keep a row [columns], or its first columns where the others are zero; returns its number.

        `step`: what it has in column `at`, if not 0.
        """
        if self._count == len(self.rows) and not self._free:
            self._make_room()
        if self._free:
            number = self._free.pop()
            self.rows[number, len(row) :] = 0
        else:
            number = self._count
            self._count += 1
        held, self._width = self.rows[number], max(self._width, len(row), at + 1)
        held[: len(row)] = row
        if step:
            held[at] = step
        return number

    def _make_room(self) -> None:
        if self.rows.nbytes >= _WORTH_SWEEPING:
            used = np.zeros(len(self.rows), bool)
            used[0] = True
            for knowledge in self._living():
                used[knowledge.rows if knowledge.alone is None else knowledge.alone[1]] = True
            self._free = np.flatnonzero(~used).tolist()
        if 2 * len(self._free) < len(self.rows):
            grown = untouched((_GROWTH * len(self.rows), self.rows.shape[1]), np.int64)
            grown[: len(self.rows), : self._width] = self.rows[:, : self._width]
            before, self.rows = self.rows, grown
            self._give(before)

    def knowledge(self, cluster: int, row: Array, beyond: Knowledge | None) -> Knowledge:
        """What somebody knows: `row` [columns] of the own cluster, and of other clusters what `beyond` has."""
        return self.with_row(cluster, self.add(row), beyond)

    def with_row(self, cluster: int, number: int, beyond: Knowledge | None) -> Knowledge:
        """`knowledge`, of a row that has just been added."""
        if beyond is None:
            return self._new(None, 1, (cluster, number))
        rows = beyond.rows.copy()
        count = beyond.count + (not rows[cluster])
        rows[cluster] = number
        return self._new(rows, count)

    def _new(self, rows: Array, count: int, alone: tuple[int, int] | None = None) -> Knowledge:
        made = Knowledge(self.clusters, rows, count, alone)
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
        for more, single in ((one, other.alone), (other, one.alone)):
            if single is not None and not more.rows[single[0]]:
                return self.with_row(*single, more)
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
