"""Compare bit for bit, stage by stage: the first difference in words, and a map of all differences.

A map is small enough for a report. A stage's elements lie on a plane, rows by K-blocks or tokens by weight rows. The
plane is cut into at most 64 x 64 equal cells, and each cell counts its elements that differ. So one wrong tile, a wrong
K-block, a forgotten tail and a transposed fragment each look like what they are.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any

import numpy as np
from numpy.typing import NDArray

from refmoe.families.stages import HasPlane, Indices, Stage, matrix_plane

#: Cells of a map along either axis, at most.
CELLS = 64


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


@dataclass(frozen=True)
class Comparison:
    """The outcome of comparing all stages.

    Attributes:
        stage: name of the first stage that differs, None if none does.
        first_mismatch: the description of its first difference.
        differing: elements that differ, by stage; codes and scales are bytes.
        compared: bytes compared in all stages.
        maps: where elements differ, of each stage that differs; none of one whose shape is another.
    """

    stage: str | None
    first_mismatch: str | None
    differing: Mapping[str, int]
    compared: int
    maps: tuple[MismatchMap, ...] = ()


def compare(
    stages: Sequence[Stage],
    kernel: Mapping[str, NDArray[Any]],
    reference: Mapping[str, NDArray[Any]],
    *,
    answers: Mapping[str, str] = MappingProxyType({}),
    ignored: Mapping[str, NDArray[np.bool_]] = MappingProxyType({}),
    tile: tuple[int, int] | None = None,
) -> Comparison:
    """Compare the buffers of all stages bit by bit and describe the first difference of the first stage that has one.

    Args:
        stages: in the order in which the kernel computes them, so that a cause is named before its effects.
        kernel: by name, arrays of unsigned integers: bytes, or the bit patterns of elements. A stage whose buffer is
            not there is left out: whoever asks for a verdict has checked which may be.
        reference: by stage name, likewise.
        answers: the kernel's buffer that a stage is held against, where it has another name.
        ignored: bool of a buffer's shape: elements that are not compared.
        tile: (weight rows, tokens) of the output tile of the GEMM that ran, for the maps; None for any other kernel.
    """
    first_stage = first_mismatch = None
    differing: dict[str, int] = {}
    maps: list[MismatchMap] = []
    compared = 0
    for stage in stages:
        buffer = answers.get(stage.name, stage.name)
        if buffer not in kernel:
            continue
        ours, theirs, mask = kernel[buffer], reference[stage.name], ignored.get(buffer)
        compared += theirs.nbytes
        if mask is not None:
            ours = np.where(mask, theirs, ours)
            compared -= int(mask.sum()) * theirs.itemsize
        count, text, places = _compare_stage(stage, ours, theirs)
        if places.size:
            maps.append(mismatch_map(stage.name, stage, theirs.shape, places, tile))
        differing[stage.name] = count
        if count and first_stage is None:
            first_stage, first_mismatch = stage.name, text
    return Comparison(first_stage, first_mismatch, differing, compared, tuple(maps))


def _compare_stage(stage: Stage, kernel: NDArray[Any], reference: NDArray[Any]) -> tuple[int, str, NDArray[np.int64]]:
    """How many elements differ, the first in words, and the flat indices of all."""
    if kernel.shape != reference.shape or kernel.dtype != reference.dtype:
        sides = f"kernel {kernel.dtype} {list(kernel.shape)} reference {reference.dtype} {list(reference.shape)}"
        return max(kernel.size, reference.size, 1), f"{stage.name}: {sides}", np.zeros(0, np.int64)
    places = np.flatnonzero(kernel.reshape(-1) != reference.reshape(-1))
    if not places.size:
        return 0, "", places
    index = int(places[0])
    position = ", ".join(str(int(axis)) for axis in np.unravel_index(index, kernel.shape))
    where, tail = stage.describe(index, int(kernel.reshape(-1)[index]), int(reference.reshape(-1)[index]))
    return places.size, f"{stage.name}[{position}]  {where}; {places.size} of {kernel.size} differ" + tail, places


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
