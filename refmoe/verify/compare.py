"""Bit-for-bit comparison, stage by stage, and the first difference in the problem's own terms.

codes[5, 421]  block (5, 13) lane 5: kernel 0x6F (120) reference 0x70 (128), 1 ulp, scale 0x7B; 3 of 23040 differ
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from refmoe.families.fills import BLOCK
from refmoe.families.mismatch_map import MismatchMap, Plane, mismatch_map
from refmoe.reference.layout import (
    GROUPED_LAYOUTS,
    SCALE_LAYOUTS,
    ScaleLayout,
    expert_base_rows,
    expert_scale_rows,
)

__all__ = ["Codes", "Comparison", "GroupedScales", "Scales", "Stage", "compare"]

Bytes = NDArray[np.uint8]


class Stage(Protocol):
    """One output buffer: its name and the words for its elements."""

    @property
    def name(self) -> str:
        """The stage's name, "codes" or "scales"."""

    def describe(self, index: int, kernel: int, reference: int) -> tuple[str, str]:
        """Where element `index` is and what its two values mean; and what to add behind the count, or ""."""


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
    tile: tuple[int, int] | None = None,
) -> Comparison:
    """Compare the buffers of all stages bit by bit and describe the first difference of the first stage that has one.

    Args:
        stages: in the order in which the kernel computes them, so that a cause is named before its effects.
        kernel: by stage name, arrays of unsigned integers: bytes, or the bit patterns of elements.
        reference: likewise.
        tile: (weight rows, tokens) of the output tile of the GEMM that ran, for the maps; None for any other kernel.
    """
    first_stage = first_mismatch = None
    differing: dict[str, int] = {}
    maps: list[MismatchMap] = []
    compared = 0
    for stage in stages:
        ours, theirs = kernel[stage.name], reference[stage.name]
        count, text, places = _compare_stage(stage, ours, theirs)
        if places.size:
            maps.append(mismatch_map(stage.name, stage, theirs.shape, places, tile))
        differing[stage.name] = count
        compared += theirs.nbytes
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


def _byte(value: int) -> str:
    return f"0x{value:02X}"


def e4m3_text(code: int) -> str:
    """The value of an E4M3 code in decimal, exact: "120", "-0", "0.001953125", "NaN"."""
    sign, exponent, mantissa = "-" if code & 0x80 else "", code >> 3 & 0xF, code & 7
    if code & 0x7F == 0x7F:
        return "NaN"
    value = mantissa * 2.0**-9 if exponent == 0 else (8 + mantissa) * 2.0 ** (exponent - 10)
    return f"{sign}{value:.10g}"


def _ulps(kernel: int, reference: int) -> str:
    """The distance of two E4M3 codes in representable values, ", 1 ulp"; empty if one is NaN or they are the zeros."""
    if 0x7F in (kernel & 0x7F, reference & 0x7F):
        return ""
    first, second = (-(code & 0x7F) if code & 0x80 else code for code in (kernel, reference))
    return f", {abs(first - second)} ulp" if first != second else ", the sign of zero"


def e8m0_text(scale: int) -> str:
    """The value of an E8M0 scale: "2^-4" or "NaN"."""
    return "NaN" if scale == 0xFF else f"2^{scale - 127}"


@dataclass(frozen=True, eq=False)
class Codes:
    """E4M3 codes [rows, K] with their blocks' scales.

    Attributes:
        name: of the stage.
        shape: [rows, K].
        scales: the reference's linear scales uint8 [written rows, K/32].
        written_rows: rows from here on are not written by the kernel.
        poison: the byte that those hold.
        offsets: int64 [E+1] of rows grouped by expert, else None.
        sources: int32 [rows], the unpermuted row (token + rank * tokens) of each grouped row, or None if it has none.
        tokens: how many there are.
    """

    name: str
    shape: tuple[int, ...]
    scales: Bytes
    written_rows: int
    poison: int
    offsets: NDArray[np.int64] | None = None
    sources: NDArray[np.int32] | None = None
    tokens: int = 0

    def describe(self, index: int, kernel: int, reference: int) -> tuple[str, str]:
        """See `Stage`."""
        row, column = divmod(index, self.shape[1])
        block, lane = divmod(column, BLOCK)
        if row >= self.written_rows:
            where = f"row {row} belongs to no token of this rank and must not be written"
            return f"{where}: kernel {_byte(kernel)} instead of the poison {_byte(reference)}", ""
        values = f"kernel {_byte(kernel)} ({e4m3_text(kernel)}) reference {_byte(reference)} ({e4m3_text(reference)})"
        scale = f"scale {_byte(int(self.scales[row, block]))}"
        return f"block ({row}, {block}) lane {lane}: {values}{_ulps(kernel, reference)}, {scale}", self._origin(row)

    def plane(self, shape: tuple[int, ...]) -> Plane:
        """Rows by K-blocks; see `refmoe.families.mismatch_map.HasPlane`."""
        rows, k = shape

        def place(indices: NDArray[np.int64]) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
            row, column = np.divmod(indices, k)
            return row, column // BLOCK

        experts = () if self.offsets is None else tuple(self.offsets[:-1].tolist())
        return Plane("row", "K-block", rows, -(-k // BLOCK), place, experts)

    def _origin(self, row: int) -> str:
        if self.offsets is None:
            return ""
        expert = int(np.searchsorted(self.offsets, row, side="right")) - 1
        if self.sources is None:
            return f"; row {row} is row {row - int(self.offsets[expert])} of expert {expert}"
        rank, token = divmod(int(self.sources[row]), self.tokens)
        return f"; row {row} is token {token} rank {rank} at expert {expert}"


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


def _scale_values(kernel: int, reference: int) -> str:
    text = f"kernel {_byte(kernel)} ({e8m0_text(kernel)}) reference {_byte(reference)} ({e8m0_text(reference)})"
    return text if 0xFF in (kernel, reference) else f"{text}, {kernel - reference:+d} in the exponent"


@dataclass(frozen=True, eq=False)
class Scales:
    """E8M0 scales of a whole matrix in a layout.

    Attributes:
        name: of the stage.
        layout: "linear", "128x4" or "8x4".
        rows, blocks: of the matrix.
        poison: what padded rows hold.
    """

    name: str
    layout: str
    rows: int
    blocks: int
    poison: int

    def describe(self, index: int, kernel: int, reference: int) -> tuple[str, str]:
        """See `Stage`."""
        row, column = map(int, _locate(SCALE_LAYOUTS[self.layout], index, self.blocks))
        if row >= self.rows:
            return _unwritten(f"padding row {row}", column, kernel, reference), ""
        if column >= self.blocks:
            return _padding_column(f"row {row}", column, kernel, reference), ""
        return f"block ({row}, {column}): {_scale_values(kernel, reference)}", ""

    def plane(self, shape: tuple[int, ...]) -> Plane:
        """Rows by K-blocks, padding included; see `refmoe.families.mismatch_map.HasPlane`."""
        return _scale_plane(SCALE_LAYOUTS[self.layout], math.prod(shape), self.blocks)


def _unwritten(row: str, column: int, kernel: int, reference: int) -> str:
    return (
        f"{row}, column {column}, must not be written: kernel {_byte(kernel)} instead of the poison {_byte(reference)}"
    )


def _padding_column(row: str, column: int, kernel: int, reference: int) -> str:
    return f"padding column {column} of {row} must be {_byte(reference)}: kernel {_byte(kernel)}"


@dataclass(frozen=True, eq=False)
class GroupedScales:
    """E8M0 scales of rows grouped by expert, every expert's from a row multiple of 128 on.

    Attributes:
        name: of the stage.
        layout: "128x4" or "8x4".
        offsets: int64 [E+1], first row of each expert.
        blocks: K/32.
        poison: what padded rows hold.
    """

    name: str
    layout: str
    offsets: NDArray[np.int64]
    blocks: int
    poison: int

    def describe(self, index: int, kernel: int, reference: int) -> tuple[str, str]:
        """See `Stage`."""
        row, column = map(int, _locate(GROUPED_LAYOUTS[self.layout], index, self.blocks))
        bases = expert_base_rows(self.offsets)
        # Experts without rows may share a base row with the next; the last of them owns it.
        expert = int(np.searchsorted(bases, row, side="right")) - 1
        local = row - int(bases[expert])
        count = int(self.offsets[expert + 1] - self.offsets[expert])
        if local >= count:
            where = (
                f"padding row {local} of expert {expert}, which has {count} rows"
                if count
                else f"expert {expert} has no rows"
            )
            return _unwritten(f"{where}; scale row {row}", column, kernel, reference), ""
        real = int(self.offsets[expert]) + local
        if column >= self.blocks:
            return _padding_column(f"row {real} (row {local} of expert {expert})", column, kernel, reference), ""
        where = f"block ({real}, {column}), row {local} of expert {expert}"
        return f"{where}: {_scale_values(kernel, reference)}", ""

    def plane(self, shape: tuple[int, ...]) -> Plane:
        """Scale rows by K-blocks, padding included; see `refmoe.families.mismatch_map.HasPlane`."""
        bases = tuple(expert_base_rows(self.offsets)[: self.offsets.size - 1].tolist())
        return _scale_plane(GROUPED_LAYOUTS[self.layout], math.prod(shape), self.blocks, bases)

    def linear(self, buffer: Bytes) -> Bytes:
        """The scales of real rows, uint8 [rows, blocks], out of a buffer in this layout."""
        rows = expert_scale_rows(self.offsets)
        places = GROUPED_LAYOUTS[self.layout].offset(rows[:, None], np.arange(self.blocks)[None, :], self.blocks)
        linear: Bytes = buffer[places]
        return linear
