"""Which columns of rows of clocks may hold something: the others are passed over where rows are raised.

    columns    warps of the cluster | its lanes | copies of its lanes | agents

Mostly whole warps synchronise, a few lanes of others, and a few barriers: of a thousand columns a hundred hold
something. What has held something once counts ever after.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

Array = Any
_LANES = 32
# Words that are raised together; more of them than there are cost nothing where they are zero.
_TOGETHER = 8


@dataclass(frozen=True)
class ColumnPlaces:
    """Where the columns of a row lie, see `refmoe.ptx.engine.order.clocks`.

    Attributes:
        warps: of a cluster; their columns come first.
        lane, copy, agents, crossed, fence, init, columns: as those of `Clocks`.
        by_lane: whether there are columns behind those of warps.
        bulk: whether there is a second half.
    """

    warps: int
    lane: int
    copy: int
    agents: int
    crossed: int
    fence: int
    init: int
    columns: int
    by_lane: bool
    bulk: bool


class Filled:
    """The columns that may hold something.

    Args:
        layout: of the rows.

    Attributes:
        warps: int64 [n], of a cluster those of whose lanes columns may hold something.
    """

    def __init__(self, layout: ColumnPlaces) -> None:
        self._layout = layout
        # Of each warp of the cluster whether lanes of it may have columns that hold something.
        self._lanes = np.zeros(layout.warps, np.bool_)
        self._copies = self._inits = False
        self._agents = 0
        # By width; none where something has changed since.
        self._spans: dict[int, Array] = {}
        self.warps: Array = np.zeros(0, np.int64)

    def lanes(self, warps: Array) -> None:
        """Columns of lanes of `warps` [n], numbered inside their cluster, are about to be written."""
        if np.count_nonzero(self._lanes[warps]) < len(warps):
            self._lanes[warps] = True
            self.warps = np.flatnonzero(self._lanes)
            self._spans.clear()

    def lane(self, warp: int) -> None:
        """Those of one warp."""
        if not self._lanes[warp]:
            self.lanes(np.array([warp]))

    def copies(self) -> None:
        """Columns of copies are about to be written."""
        if not self._copies:
            self._copies = True
            self._spans.clear()

    def inits(self) -> None:
        """Columns of fences of `mbarrier.init` are about to be written."""
        if not self._inits:
            self._inits = True
            self._spans.clear()

    def agents(self, count: int) -> None:
        """Columns of the first `count` agents are about to be written."""
        if count > self._agents:
            self._agents = count
            self._spans.clear()

    def spans(self, width: int) -> Array:
        """int64 [n, 2]: (begin, columns) of the parts of rows of `width` columns that may hold something."""
        if width not in self._spans:
            self._spans[width] = np.array(_rounded(self._parts(), width), np.int64).reshape(-1, 2)
        return self._spans[width]

    @property
    def end(self) -> int:
        """Columns in front of which all that may hold something are: all of them where there are fences `.sc`.

        What is kept of such fences is compared, and is to have one width.
        """
        of = self._layout
        return of.columns if of.fence < of.init else int(self.spans(of.columns)[-1].sum())

    def _parts(self) -> list[tuple[int, int]]:
        """(begin, end) of all, in order."""
        of = self._layout
        if not of.by_lane:
            return [(0, of.columns)]
        parts = [(0, of.lane)]
        edges = np.flatnonzero(np.diff(np.concatenate([[False], self._lanes, [False]])))
        parts += [(of.lane + _LANES * begin, of.lane + _LANES * end) for begin, end in edges.reshape(-1, 2).tolist()]
        if self._copies:
            parts.append((of.copy, of.agents))
        if of.bulk:
            parts.append((of.agents, of.agents + self._agents))
            parts += [(of.crossed + begin, of.crossed + end) for begin, end in parts]
        parts.append((of.fence, of.columns if self._inits else of.init))
        return parts


def whole_warps(rows: Array, lanes: Array) -> tuple[Array, Array]:
    """Which of pairs of a row [n] and a lane [n], no pair twice, are of warps all of whose lanes come to one row.

    Returns:
        of each such warp the place of its first lane, and the places of all other lanes, int64 both.
    """
    if len(lanes) < _LANES:
        return np.zeros(0, np.int64), np.arange(len(lanes))
    warps = lanes >> 5
    starts = np.concatenate([[0], np.flatnonzero((warps[1:] != warps[:-1]) | (rows[1:] != rows[:-1])) + 1])
    sizes = np.diff(starts, append=len(lanes))
    whole = sizes == _LANES
    return starts[whole], np.flatnonzero(np.repeat(~whole, sizes))


def _rounded(parts: list[tuple[int, int]], width: int) -> list[tuple[int, int]]:
    """(begin, columns) of parts in order, cut to rows of `width` columns, which end with whole vectors if they can."""
    found = list[tuple[int, int]]()
    for begin, end in parts:
        end = min(begin + -(-(end - begin) // _TOGETHER) * _TOGETHER, width)
        if begin >= end:
            continue
        if found and begin <= sum(found[-1]):
            begin, _ = found.pop()
        found.append((begin, end - begin))
    return found
