"""A stage is an output buffer with words for its elements: place and values in the problem's own terms.

codes[5, 421]  block (5, 13) lane 5: kernel 0x6F (120) reference 0x70 (128), 1 ulp, scale 0x7B; 3 of 23040 differ
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Protocol, runtime_checkable

import numpy as np
from numpy.typing import NDArray

from refmoe.formats import E4M3, E8M0, MX_BLOCK, Format
from refmoe.numbers_as_text import compared_text
from refmoe.reference.layout import (
    GROUPED_LAYOUTS,
    SCALE_LAYOUTS,
    ScaleLayout,
    expert_base_rows,
    expert_scale_rows,
    grouped_scale_rows,
    scale_buffer_size,
    write_scale_rows,
)

Bytes = NDArray[np.uint8]
Indices = NDArray[np.int64]


class Stage(Protocol):
    """One output buffer: its name and the words for its elements."""

    @property
    def name(self) -> str:
        """The stage's name, "codes" or "scales"."""

    def describe(self, index: int, kernel: int, reference: int) -> tuple[str, str]:
        """Two texts: where element `index` is with its two values, and what to add behind the count, or ""."""


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
    """A stage that names its axes. The axes of any other stage are those of its array."""

    def plane(self, shape: tuple[int, ...]) -> Plane:
        """The plane of this stage's buffer of `shape`."""


def matrix_plane(shape: tuple[int, ...], row_axis: str = "row", column_axis: str = "column") -> Plane:
    """The plane of a plain array: its last axis by all the others."""
    columns = shape[-1] if shape else 1
    rows = int(np.prod(shape[:-1], dtype=np.int64))

    def place(indices: Indices) -> tuple[Indices, Indices]:
        row, column = np.divmod(indices, columns)
        return row, column

    return Plane(row_axis, column_axis, rows, columns, place)


def _byte(value: int) -> str:
    return f"0x{value:02X}"


@dataclass(frozen=True, eq=False)
class Codes:
    """Codes [rows, K] with their blocks' scales. Codes of 4 bits are packed: [rows, K/2], the even one low.

    Attributes:
        name: of the stage.
        shape: [rows, K], or [rows, K/2] of packed codes.
        scales: the reference's linear scales uint8 [written rows, K/block]; None if the codes have none.
        written_rows: rows from here on are not written by the kernel.
        offsets: int64 [E+1] of rows grouped by expert, else None.
        sources: int32 [rows], the unpermuted row (token + rank * tokens) of each grouped row, or None if it has none.
        tokens: how many there are.
        element: what a code means.
        block: elements that share a scale.
    """

    name: str
    shape: tuple[int, ...]
    scales: Bytes | None
    written_rows: int
    offsets: NDArray[np.int64] | None = None
    sources: NDArray[np.int32] | None = None
    tokens: int = 0
    element: Format = E4M3
    block: int = MX_BLOCK

    def describe(self, index: int, kernel: int, reference: int) -> tuple[str, str]:
        """See `Stage`."""
        row, column = divmod(index, self.shape[1])
        if row >= self.written_rows:
            where = f"row {row} belongs to no token of this rank and must not be written"
            return f"{where}: kernel {_byte(kernel)} instead of the poison {_byte(reference)}", ""
        if self._packed:
            high = (kernel ^ reference) & 0xF == 0
            kernel, reference = (byte >> 4 if high else byte & 0xF for byte in (kernel, reference))
            column = 2 * column + high
        block, lane = divmod(column, self.block)
        scale = "" if self.scales is None else f", scale {_byte(int(self.scales[row, block]))}"
        values = compared_text(kernel, reference, self.element)
        return f"block ({row}, {block}) lane {lane}: {values}{scale}", self._origin(row)

    def plane(self, shape: tuple[int, ...]) -> Plane:
        """Rows by K-blocks; see `HasPlane`."""
        rows, width = shape
        step = self.block // 2 if self._packed else self.block

        def place(indices: Indices) -> tuple[Indices, Indices]:
            row, column = np.divmod(indices, width)
            return row, column // step

        experts = () if self.offsets is None else tuple(self.offsets[:-1].tolist())
        return Plane("row", "K-block", rows, -(-width // step), place, experts)

    @property
    def _packed(self) -> bool:
        return self.element.bits == 4

    def _origin(self, row: int) -> str:
        if self.offsets is None:
            return ""
        expert = int(np.searchsorted(self.offsets, row, side="right")) - 1
        if self.sources is None:
            return f"; row {row} is row {row - int(self.offsets[expert])} of expert {expert}"
        choice, token = divmod(int(self.sources[row]), self.tokens)
        return f"; row {row} is token {token} choice {choice} at expert {expert}"


def _locate(layout: ScaleLayout, indices: Any, blocks: int) -> tuple[Any, Any]:
    """The (row, column) of bytes: `ScaleLayout.offset` turned round, for an index or an array of them."""
    tiles_wide = -(-blocks // layout.column_atom)
    tile, inside = np.divmod(indices, layout.atom_bytes)
    tile_row, tile_column = np.divmod(tile, tiles_wide)
    local_rows = np.arange(layout.row_atom)[:, None]
    local_columns = np.arange(layout.column_atom)[None, :]
    # A tile's offsets are a permutation of its bytes; sorting its places by them turns it round.
    places = np.argsort(layout.offset(local_rows, local_columns, layout.column_atom), axis=None)
    row, column = np.divmod(places[inside], layout.column_atom)
    return tile_row * layout.row_atom + row, tile_column * layout.column_atom + column


def _scale_plane(layout: ScaleLayout, size: int, blocks: int, expert_rows: tuple[int, ...] = ()) -> Plane:
    """A buffer of `size` scales by its rows and K-blocks, those of padding included."""
    _, columns = layout.padded_shape(1, blocks)
    rows = -(-size // columns)
    return Plane("scale row", "K-block", rows, columns, lambda indices: _locate(layout, indices, blocks), expert_rows)


@dataclass(frozen=True, eq=False)
class Scales:
    """Scales of a whole matrix in a layout.

    Attributes:
        name: of the stage.
        layout: "linear", "128x4" or "8x4".
        rows, blocks: of the matrix.
        scale: what a scale means.
    """

    name: str
    layout: str
    rows: int
    blocks: int
    scale: Format = E8M0

    def describe(self, index: int, kernel: int, reference: int) -> tuple[str, str]:
        """See `Stage`."""
        row, column = map(int, _locate(SCALE_LAYOUTS[self.layout], index, self.blocks))
        if row >= self.rows:
            return _unwritten(f"padding row {row}", column, kernel, reference), ""
        if column >= self.blocks:
            return _padding_column(f"row {row}", column, kernel, reference), ""
        return f"block ({row}, {column}): {compared_text(kernel, reference, self.scale)}", ""

    def plane(self, shape: tuple[int, ...]) -> Plane:
        """Rows by K-blocks, padding included; see `HasPlane`."""
        return _scale_plane(SCALE_LAYOUTS[self.layout], math.prod(shape), self.blocks)


def _unwritten(row: str, column: int, kernel: int, reference: int) -> str:
    return (
        f"{row}, column {column}, must not be written: kernel {_byte(kernel)} instead of the poison {_byte(reference)}"
    )


def _padding_column(row: str, column: int, kernel: int, reference: int) -> str:
    return f"padding column {column} of {row} must be {_byte(reference)}: kernel {_byte(kernel)}"


@dataclass(frozen=True, eq=False)
class GroupedScales:
    """Scales of rows grouped by expert, every expert's from a row multiple of 128 on.

    Attributes:
        name: of the stage.
        layout: "128x4" or "8x4".
        offsets: int64 [E+1], first row of each expert.
        blocks: of a row.
        scale: what a scale means.
    """

    name: str
    layout: str
    offsets: NDArray[np.int64]
    blocks: int
    scale: Format = E8M0

    def describe(self, index: int, kernel: int, reference: int) -> tuple[str, str]:
        """See `Stage`."""
        row, column = map(int, _locate(GROUPED_LAYOUTS[self.layout], index, self.blocks))
        bases = expert_base_rows(self.offsets)
        # Experts without rows may share a base row with the next; the last of them owns it.
        expert = int(np.searchsorted(bases, row, side="right")) - 1
        local = row - int(bases[expert])
        count = int(self.offsets[expert + 1] - self.offsets[expert])
        if local >= count:
            where = f"padding row {local} of expert {expert}, which has {count} rows"
            if not count:
                where = f"expert {expert} has no rows"
            return _unwritten(f"{where}; scale row {row}", column, kernel, reference), ""
        real = int(self.offsets[expert]) + local
        if column >= self.blocks:
            return _padding_column(f"row {real} (row {local} of expert {expert})", column, kernel, reference), ""
        where = f"block ({real}, {column}), row {local} of expert {expert}"
        return f"{where}: {compared_text(kernel, reference, self.scale)}", ""

    def plane(self, shape: tuple[int, ...]) -> Plane:
        """Scale rows by K-blocks, padding included; see `HasPlane`."""
        bases = tuple(expert_base_rows(self.offsets)[: self.offsets.size - 1].tolist())
        return _scale_plane(GROUPED_LAYOUTS[self.layout], math.prod(shape), self.blocks, bases)

    def linear(self, buffer: Bytes) -> Bytes:
        """The scales of real rows, uint8 [rows, blocks], out of a buffer in this layout."""
        rows = expert_scale_rows(self.offsets)
        places = GROUPED_LAYOUTS[self.layout].offset(rows[:, None], np.arange(self.blocks)[None, :], self.blocks)
        linear: Bytes = buffer[places]
        return linear

    def buffer(self, linear: Bytes, rows: int, poison: int) -> Bytes:
        """The buffer for `rows` rows, those of no expert included: scales of real rows, poison all around.

        `linear` turned round; padded columns of real rows hold 0x00.
        """
        size = scale_buffer_size(grouped_scale_rows(rows, self.offsets.size - 1), self.blocks)
        buffer = np.full(size, poison, np.uint8)
        if linear.size:
            write_scale_rows(buffer, GROUPED_LAYOUTS[self.layout], expert_scale_rows(self.offsets), linear)
        return buffer
