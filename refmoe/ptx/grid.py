"""How the blocks of a grid are numbered, and which of them a launch runs.

Blocks are numbered in the order in which they start, cluster after cluster, so that those of a cluster follow one
another. Clusters start x first, then y, then z, unless a schedule says otherwise.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from refmoe.errors import describe
from refmoe.ptx.errors import ArgumentMismatch, Index3
from refmoe.ptx.schedule import BlockOrder, element_at

Array = Any


def index_in(number: int, size: Index3) -> Index3:
    """The (x, y, z) of element `number` of a box, x first."""
    return number % size[0], number // size[0] % size[1], number // (size[0] * size[1])


def number_in(index: Index3, size: Index3) -> int:
    """The inverse of `index_in`."""
    return index[0] + size[0] * (index[1] + size[1] * index[2])


@dataclass(frozen=True)
class Grid:
    """The blocks of a launch.

    Attributes:
        size: blocks, (x, y, z).
        cluster: blocks of a cluster, (x, y, z); `size` is a multiple of it along every axis.
        explicit: whether the launch, or the kernel, names a cluster.
        order: in which the clusters start; None for x first, then y, then z.
    """

    size: Index3
    cluster: Index3 = (1, 1, 1)
    explicit: bool = False
    order: BlockOrder | None = None

    @property
    def count(self) -> int:
        """Blocks."""
        return math.prod(self.size)

    @property
    def cluster_blocks(self) -> int:
        """Blocks of a cluster."""
        return math.prod(self.cluster)

    @property
    def clusters(self) -> Index3:
        """Clusters, (x, y, z)."""
        x, y, z = (whole // part for whole, part in zip(self.size, self.cluster, strict=True))
        return x, y, z

    def cluster_at(self, position: Array) -> Array:
        """The clusters that start as the ones of these positions, counted x first, then y, then z; int64."""
        return position if self.order is None else self.order.at(position)

    def index(self, number: int) -> Index3:
        """The index of block `number`."""
        position, rank = divmod(number, self.cluster_blocks)
        cluster = position if self.order is None else element_at(self.order, position)
        corner, inside = index_in(cluster, self.clusters), index_in(rank, self.cluster)
        x, y, z = (c * size + i for c, size, i in zip(corner, self.cluster, inside, strict=True))
        return x, y, z

    def number(self, index: Index3) -> int:
        """The number of the block at an index."""
        x, y, z = (i // size for i, size in zip(index, self.cluster, strict=True))
        a, b, c = (i % size for i, size in zip(index, self.cluster, strict=True))
        position = number_in((x, y, z), self.clusters)
        if self.order is not None:
            position = int(self.order.where(position))
        return position * self.cluster_blocks + number_in((a, b, c), self.cluster)

    def ranges(self, blocks: Sequence[int | Sequence[int]] | None) -> list[range]:
        """Numbers of the blocks that a launch runs, in ascending order: all, or those at the indices `blocks`.

        Raises:
            ArgumentMismatch: an index outside the grid, one that is there twice, or a part of a cluster.
        """
        if blocks is None:
            return [range(self.count)]
        numbers = np.array(sorted(map(self.number, map(self._checked, blocks))), np.int64)
        if not numbers.size:
            raise ArgumentMismatch("blocks: none is given; at least one is needed")
        again = np.flatnonzero(np.diff(numbers) == 0)
        if again.size:
            raise ArgumentMismatch(f"blocks: {self.index(int(numbers[again[0]]))} is given twice")
        clusters, given = np.unique(numbers // self.cluster_blocks, return_counts=True)
        if (given != self.cluster_blocks).any():
            part = int(np.argmax(given != self.cluster_blocks))
            corner = self.index(int(clusters[part]) * self.cluster_blocks)
            found = f"{int(given[part])} of the {self.cluster_blocks} blocks of the cluster at {corner}"
            raise ArgumentMismatch(f"blocks: {found}; a cluster runs as a whole")
        ends = np.flatnonzero(np.diff(numbers) != 1)
        firsts, lasts = numbers[np.r_[0, ends + 1]], numbers[np.r_[ends, len(numbers) - 1]]
        return [range(first, last + 1) for first, last in zip(firsts.tolist(), lasts.tolist(), strict=True)]

    def _checked(self, block: int | Sequence[int]) -> Index3:
        given = (block, 0, 0) if isinstance(block, int | np.integer) else tuple(block)
        if len(given) != 3 or not all(isinstance(each, int | np.integer) for each in given):
            raise ArgumentMismatch(f"blocks: {describe(block)}; a number or (x, y, z) needed")
        x, y, z = map(int, given)
        if not all(0 <= each < size for each, size in zip((x, y, z), self.size, strict=True)):
            raise ArgumentMismatch(f"blocks: {(x, y, z)} is outside the grid {self.size}")
        return x, y, z


class BlockQueue:
    """Blocks that have not started, in the order in which they start."""

    def __init__(self, ranges: Sequence[range]) -> None:
        self._ranges = list(ranges)

    def __len__(self) -> int:
        return sum(map(len, self._ranges))

    def __iter__(self) -> Iterator[int]:
        return (number for part in self._ranges for number in part)

    def take(self, most: int) -> range:
        """At most `most` blocks that follow one another; they are gone from here."""
        part = self._ranges.pop(0)
        if len(part) > most:
            self._ranges.insert(0, part[most:])
        return part[:most]
