"""Where elements differ, small enough for a report: counts on a grid over the problem's own axes.

A stage's elements lie on a plane: rows by K-blocks, tokens by weight rows. The plane is cut into at most 64 x 64 equal
cells, and every cell counts the elements in it that differ. One wrong tile, a wrong K-block, a forgotten tail or a
transposed fragment each look like what they are.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Protocol, runtime_checkable

import numpy as np
from numpy.typing import NDArray

__all__ = ["CELLS", "HasPlane", "MismatchMap", "Plane", "matrix_plane", "mismatch_map"]

#: Cells of a map along either axis, at most.
CELLS = 64

Indices = NDArray[np.int64]


@dataclass(frozen=True, eq=False)
class Plane:
    """The plane on which a stage's elements lie.

    Attributes:
        row_axis, column_axis: what the axes count, "token" and "weight row", say.
        rows, columns: how long they are.
        place: int64 element indices -> their rows and columns.
        expert_rows: the first row of each expert, where rows are grouped by expert.
        tiled: whether a GEMM's output tile [columns, rows] lies on this plane.
    """

    row_axis: str
    column_axis: str
    rows: int
    columns: int
    place: Callable[[Indices], tuple[Indices, Indices]]
    expert_rows: tuple[int, ...] = ()
    tiled: bool = False


@runtime_checkable
class HasPlane(Protocol):
    """A stage that knows what its axes are; any other is taken by the shape of its array."""

    def plane(self, shape: tuple[int, ...]) -> Plane:
        """The plane of this stage's buffer of `shape`."""


@dataclass(frozen=True)
class MismatchMap:
    """Elements that differ, counted in cells.

    Attributes:
        stage: the stage's name.
        row_axis, column_axis: what the axes count.
        rows, columns: how long they are.
        row_step, column_step: how many of them a cell spans; the last cell may span fewer.
        expert_rows: the first row of each expert, where rows are grouped by expert.
        tile: [rows, columns] of the kernel's output tile, None where none lies on this plane; tiles begin anew at the
            first row of every expert.
        counts: differing elements by cell.
        first_row, last_row, first_column, last_column: the smallest rectangle that holds all that differs.
    """

    stage: str
    row_axis: str
    column_axis: str
    rows: int
    columns: int
    row_step: int
    column_step: int
    expert_rows: tuple[int, ...]
    tile: tuple[int, int] | None
    counts: tuple[tuple[int, ...], ...]
    first_row: int
    last_row: int
    first_column: int
    last_column: int


def matrix_plane(shape: tuple[int, ...], row_axis: str = "row", column_axis: str = "column") -> Plane:
    """The plane of a plain array: its last axis by all the others."""
    columns = shape[-1] if shape else 1
    rows = int(np.prod(shape[:-1], dtype=np.int64))

    def place(indices: Indices) -> tuple[Indices, Indices]:
        row, column = np.divmod(indices, columns)
        return row, column

    return Plane(row_axis, column_axis, rows, columns, place)


def _step(size: int) -> int:
    """The smallest power of two by which at most CELLS cells span `size`; cells then end where tiles do."""
    step: int = 1 << (-(-size // CELLS) - 1).bit_length()
    return step


def mismatch_map(
    name: str, stage: Any, shape: tuple[int, ...], places: Indices, tile: tuple[int, int] | None = None
) -> MismatchMap:
    """The map of one stage.

    Args:
        name: the stage's name.
        stage: the stage; a `HasPlane` gives its axes.
        shape: of its buffer.
        places: int64, flat indices of the elements that differ, at least one.
        tile: (weight rows, tokens) of the output tile of the GEMM that ran, None for any other kernel.
    """
    plane = stage.plane(shape) if isinstance(stage, HasPlane) else matrix_plane(shape)
    rows, columns = plane.place(places)
    row_step, column_step = _step(plane.rows), _step(plane.columns)
    counts = np.zeros((-(-plane.rows // row_step), -(-plane.columns // column_step)), np.int64)
    np.add.at(counts, (rows // row_step, columns // column_step), 1)
    return MismatchMap(
        name,
        plane.row_axis,
        plane.column_axis,
        plane.rows,
        plane.columns,
        row_step,
        column_step,
        plane.expert_rows,
        (tile[1], tile[0]) if tile is not None and plane.tiled else None,
        tuple(tuple(line) for line in counts.tolist()),
        *(int(end) for end in (rows.min(), rows.max(), columns.min(), columns.max())),
    )
