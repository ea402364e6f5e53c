"""Where the bytes of block scales and packed FP4 codes lie in memory.

A scale layout is data: a tile of `row_atom` rows by `column_atom` K-blocks whose bytes are contiguous, and the tiles
one after another, K first. Within a tile a row's position splits into mixed-radix digits (`row_shape`), each with its
own byte stride (`row_stride`): the notation of CuTe, in which 128x4 is

    ((32,4,RB),(32,4,KB),L) : ((16,4,512*KB),(0,1,512),RB*KB*512)

so the one `ScaleLayout.offset` serves every layout. Sources: CUTLASS `Sm1xxBlockScaledConfig<32>` for 128x4,
TensorRT-LLM's low-latency kernels for 8x4 and for the base rows of experts.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any

import numpy as np
from numpy.typing import NDArray

from refmoe.errors import ArgumentError, describe

Bytes = NDArray[np.uint8]

INT32_MAX = 2**31 - 1

#: An expert's scales start at a multiple of this row count whatever the layout, so that a 128x4 tile has one owner.
EXPERT_ROW_ALIGNMENT = 128


@dataclass(frozen=True)
class ScaleLayout:
    """The byte order of a [rows, K-blocks] matrix of one-byte scales.

    Attributes:
        name: as on the command line.
        row_shape: radices of a row's position in its tile, fastest digit first; their product is `row_atom`.
        row_stride: bytes between neighbours along each of those digits.
        column_atom: K-blocks of a tile; in every layout they are consecutive bytes of one row.
    """

    name: str
    row_shape: tuple[int, ...]
    row_stride: tuple[int, ...]
    column_atom: int

    @property
    def row_atom(self) -> int:
        """Rows of a tile."""
        return math.prod(self.row_shape)

    @property
    def atom_bytes(self) -> int:
        """Bytes of a tile."""
        return self.row_atom * self.column_atom

    def padded_shape(self, rows: int, blocks: int) -> tuple[int, int]:
        """[rows, blocks] with both rounded up to whole tiles: what the buffer has room for."""
        return _round_up(rows, self.row_atom), _round_up(blocks, self.column_atom)

    def offset(self, row: Any, block: Any, blocks: int) -> Any:
        """Byte offset of the scale at (row, block) in a matrix that is `blocks` wide; integers or integer arrays.

        It is a sum of a part that only the row decides and one that only the block decides, so a whole matrix needs
        one evaluation per row and one per block.
        """
        position = row % self.row_atom
        inside = block % self.column_atom
        for radix, stride in zip(self.row_shape, self.row_stride, strict=True):
            inside = inside + position % radix * stride
            position = position // radix
        row_of_tiles = _round_up(blocks, self.column_atom) * self.row_atom
        return row // self.row_atom * row_of_tiles + block // self.column_atom * self.atom_bytes + inside


#: The layouts of a whole tensor's scales.
SCALE_LAYOUTS: Mapping[str, ScaleLayout] = MappingProxyType(
    {
        layout.name: layout
        for layout in (
            ScaleLayout("128x4", row_shape=(32, 4), row_stride=(16, 4), column_atom=4),
            ScaleLayout("8x4", row_shape=(8,), row_stride=(4,), column_atom=4),
            ScaleLayout("linear", row_shape=(1,), row_stride=(0,), column_atom=1),
        )
    }
)

#: The layouts of the scales of rows grouped by expert. K is padded to 128 there, so a linear row is whole words too.
GROUPED_LAYOUTS: Mapping[str, ScaleLayout] = MappingProxyType(
    {**SCALE_LAYOUTS, "linear": ScaleLayout("linear", row_shape=(1,), row_stride=(0,), column_atom=4)}
)


def scale_buffer_size(rows: int, blocks: int, layout: str = "128x4", *, batches: int = 1) -> int:
    """Bytes of the buffer that holds `batches` matrices of [rows, blocks] scales, padding included.

    Raises:
        ArgumentError: an unknown layout, a negative size, or a buffer past int32, which kernels cannot index.
    """
    chosen = layout_named(layout)
    batches = checked_count("batches", batches)
    return checked_size("rows", chosen, checked_count("rows", rows), checked_count("blocks", blocks), batches)


def swizzle_scales(scales: Bytes, layout: str = "128x4", fill: int = 0) -> Bytes:
    """Write linear scales in the byte order of `layout`.

    Args:
        scales: uint8 [M, B], one byte per row and K-block, or [L, M, B] for L matrices laid out one after another.
        layout: "128x4", "8x4" or "linear".
        fill: byte of the padded rows. Padded columns of real rows are 0x00: kernels write those.

    Returns:
        uint8 1-D of `scale_buffer_size(M, B, layout, batches=L)` bytes.

    Raises:
        ArgumentError: wrong dtype or rank, unknown layout, a fill that is no byte, or a buffer past int32.
    """
    _check_bytes("scales", scales)
    if scales.ndim not in (2, 3):
        raise ArgumentError("scales", describe(scales), "uint8 [M, B] or [L, M, B]")
    chosen = layout_named(layout)
    byte = checked_fill(fill)
    batches, rows, blocks = (1, *scales.shape)[-3:]
    size = checked_size("scales", chosen, rows, blocks, batches)

    padded_rows, padded_blocks = chosen.padded_shape(rows, blocks)
    buffer = np.full((batches, padded_rows * padded_blocks), byte, np.uint8)
    if size:
        write_scale_rows(buffer, chosen, np.arange(rows), scales.reshape(batches, rows, blocks))
    return buffer.reshape(-1)


def unswizzle_scales(buf: Bytes, shape: Sequence[int], layout: str = "128x4") -> Bytes:
    """Read linear scales back from a buffer in `layout`; padding is dropped, whatever it holds.

    Args:
        buf: uint8 1-D of `scale_buffer_size(M, B, layout, batches=L)` bytes.
        shape: (M, B), or (L, M, B) for L matrices laid out one after another.
        layout: "128x4", "8x4" or "linear".

    Returns:
        uint8 of `shape`, C-contiguous.

    Raises:
        ArgumentError: wrong dtype, rank or length of `buf`, a shape that is none, unknown layout, a size past int32.
    """
    _check_bytes("buf", buf)
    if not isinstance(shape, (tuple, list)) or len(shape) not in (2, 3):
        raise ArgumentError("shape", describe(shape), "(M, B) or (L, M, B)")
    chosen = layout_named(layout)
    batches, rows, blocks = (1, *(checked_count("shape", extent) for extent in shape))[-3:]
    size = checked_size("shape", chosen, rows, blocks, batches)
    if buf.shape != (size,):
        raise ArgumentError("buf", describe(buf), f"uint8 [{size}], the bytes of {list(shape)} scales in {layout}")
    if not size:
        return np.zeros((batches, rows, blocks), np.uint8).reshape(shape)

    unit = np.dtype(f"u{chosen.column_atom}")
    units = np.ascontiguousarray(buf).view(unit).reshape(batches, -1)
    padded = np.take(units, _unit_offsets(chosen, np.arange(rows), blocks), axis=1).view(np.uint8)
    return np.ascontiguousarray(padded[..., :blocks]).reshape(shape)


def swizzle_weight_scales(scales: Bytes, fill: int = 0) -> Bytes:
    """Write the scales of all experts' weights as the grouped GEMM reads them: one 128x4 buffer per expert, on end.

    Expert e starts at byte e * align128(N) * align4(K / 32), so a block finds it without a table.

    Args:
        scales: uint8 [E, N, K / 32], linear.
        fill: byte of the padded rows of each expert. Padded columns of real rows are 0x00.

    Returns:
        uint8 1-D of E * align128(N) * align4(K / 32) bytes. `unswizzle_scales(buffer, scales.shape)` reads it back.

    Raises:
        ArgumentError: wrong dtype or rank, a fill that is no byte, or a buffer past int32.
    """
    _check_bytes("scales", scales)
    if scales.ndim != 3:
        raise ArgumentError("scales", describe(scales), "uint8 [E, N, K / 32]")
    return swizzle_scales(scales, "128x4", fill)


def expert_base_rows(offsets: NDArray[np.int64]) -> NDArray[np.int64]:
    """The scale row at which each expert's scales start: align128(offsets[e] + 127 * e).

    Each expert before e can have wasted at most 127 rows, so this needs no prefix sum of aligned counts, and the
    regions never overlap (the rule of TensorRT-LLM and FlashInfer).

    Args:
        offsets: int64 [E + 1], the first row of each expert, then the number of rows.

    Returns:
        int64 [E].

    Raises:
        ArgumentError: `offsets` is no int64 [E + 1] that starts at 0 and never falls.
    """
    checked_offsets(offsets)
    checked_grouped_rows("offsets", int(offsets[-1]), offsets.size - 1)
    most_wasted = np.arange(offsets.size - 1) * (EXPERT_ROW_ALIGNMENT - 1)
    bases: NDArray[np.int64] = _round_up(offsets[:-1] + most_wasted, EXPERT_ROW_ALIGNMENT)
    return bases


def expert_scale_rows(offsets: NDArray[np.int64]) -> NDArray[np.int64]:
    """The scale row of each row: its expert's base row plus its place among that expert's rows.

    Args:
        offsets: int64 [E + 1], as in `expert_base_rows`.

    Returns:
        int64 [offsets[E]].

    Raises:
        ArgumentError: as `expert_base_rows`.
    """
    shift = expert_base_rows(offsets) - offsets[:-1]
    rows: NDArray[np.int64] = np.arange(offsets[-1]) + np.repeat(shift, np.diff(offsets))
    return rows


def grouped_scale_rows(rows: int, num_experts: int) -> int:
    """Scale rows that are enough for `rows` rows however `num_experts` share them: align128(rows + 127 * E).

    Raises:
        ArgumentError: a negative number of rows, no expert, or a result past int32.
    """
    return checked_grouped_rows("rows", checked_count("rows", rows), checked_count("num_experts", num_experts, least=1))


def pack_fp4(codes: Bytes, *, order: str = "even-low") -> Bytes:
    """Pack FP4 codes, one a byte, two to a byte.

    Args:
        codes: uint8 [..., K], values 0..15.
        order: "even-low" puts element 2i in the low nibble of byte i and 2i+1 in the high one (checkpoints, torchao,
            CUTLASS); "gguf" packs element i of a block of 32 (low) with element i + 16 (high).

    Returns:
        uint8 [..., K / 2].

    Raises:
        ArgumentError: wrong dtype, a scalar, a code above 15, K not a multiple of 2 (gguf: 32), unknown order.
    """
    pair, half = _nibble_order(order)
    _check_bytes("codes", codes)
    if codes.ndim < 1 or codes.shape[-1] % pair:
        raise ArgumentError("codes", describe(codes), f"uint8 [..., K] with K a multiple of {pair} for order {order!r}")
    if codes.size and codes.max() > 0xF:
        where = tuple(int(i) for i in np.argwhere(codes > 0xF)[0])
        raise ArgumentError("codes", f"{int(codes[where])} at {list(where)}", "FP4 codes 0..15")
    groups = codes.reshape(*codes.shape[:-1], codes.shape[-1] // pair, 2, half)
    packed: Bytes = groups[..., 0, :] | groups[..., 1, :] << np.uint8(4)
    return packed.reshape(*codes.shape[:-1], codes.shape[-1] // 2)


def unpack_fp4(packed: Bytes, *, order: str = "even-low") -> Bytes:
    """The inverse of `pack_fp4`.

    Args:
        packed: uint8 [..., K / 2].
        order: "even-low" or "gguf".

    Returns:
        uint8 [..., K], one code 0..15 a byte.

    Raises:
        ArgumentError: wrong dtype, a scalar, a row that is no whole number of gguf blocks, unknown order.
    """
    pair, half = _nibble_order(order)
    _check_bytes("packed", packed)
    if packed.ndim < 1 or packed.shape[-1] % half:
        needed = f"uint8 [..., n] with n a multiple of {half} for order {order!r}"
        raise ArgumentError("packed", describe(packed), needed)
    groups = packed.reshape(*packed.shape[:-1], packed.shape[-1] // half, 1, half)
    codes: Bytes = np.concatenate([groups & np.uint8(0xF), groups >> np.uint8(4)], axis=-2)
    return codes.reshape(*packed.shape[:-1], packed.shape[-1] // half * pair)


def layout_named(
    name: str, layouts: Mapping[str, ScaleLayout] = SCALE_LAYOUTS, argument: str = "layout"
) -> ScaleLayout:
    """The layout called `name`, or an `ArgumentError` that lists the names there are."""
    if not isinstance(name, str) or name not in layouts:
        raise ArgumentError(argument, describe(name), "one of " + ", ".join(layouts))
    return layouts[name]


def checked_fill(fill: int) -> int:
    """`fill` as an integer, or an `ArgumentError` if it is no byte value."""
    byte = checked_count("fill", fill)
    if byte > 0xFF:
        raise ArgumentError("fill", describe(fill), "a byte value 0..255")
    return byte


def checked_count(argument: str, value: object, least: int = 0) -> int:
    """`value` as a Python integer, or an `ArgumentError` if it is no integer of at least `least`."""
    if not isinstance(value, (int, np.integer)) or isinstance(value, bool) or value < least:
        raise ArgumentError(argument, describe(value), f"an integer of at least {least}")
    return int(value)


def checked_offsets(offsets: NDArray[np.int64]) -> NDArray[np.int64]:
    """`offsets`, or an `ArgumentError` if they are no int64 [E + 1] that start at 0 and never fall."""
    if not isinstance(offsets, np.ndarray) or offsets.dtype != np.int64 or offsets.ndim != 1 or offsets.size < 2:
        raise ArgumentError("offsets", describe(offsets), "int64 [E + 1] of at least one expert")
    if offsets[0] != 0:
        raise ArgumentError("offsets", f"offsets[0] = {offsets[0]}", "offsets that start at 0")
    falls = np.flatnonzero(offsets[1:] < offsets[:-1])
    if falls.size:
        expert = int(falls[0])
        found = f"offsets[{expert + 1}] = {offsets[expert + 1]} after {offsets[expert]}"
        raise ArgumentError("offsets", found, "offsets that never fall")
    return offsets


def checked_grouped_rows(argument: str, rows: int, num_experts: int) -> int:
    """`grouped_scale_rows`, or an `ArgumentError` on `argument` if int32 cannot number them."""
    capacity: int = _round_up(rows + (EXPERT_ROW_ALIGNMENT - 1) * num_experts, EXPERT_ROW_ALIGNMENT)
    if capacity > INT32_MAX:
        found = f"{rows} rows for {num_experts} experts, {capacity} scale rows"
        raise ArgumentError(argument, found, f"at most {INT32_MAX} scale rows (int32)")
    return capacity


def checked_size(argument: str, layout: ScaleLayout, rows: int, blocks: int, batches: int = 1) -> int:
    """Bytes of `batches` padded [rows, blocks] matrices, or an `ArgumentError` on `argument` if they are past int32."""
    size = batches * math.prod(layout.padded_shape(rows, blocks))
    if size > INT32_MAX:
        found = f"{size} bytes of scales, {batches} x {rows} rows x {blocks} blocks in {layout.name}"
        raise ArgumentError(argument, found, f"at most {INT32_MAX} bytes (int32)")
    return size


def write_scale_rows(buffer: Bytes, layout: ScaleLayout, rows: NDArray[np.int64], scales: Bytes) -> None:
    """Write `scales` [..., R, B] to the given rows of `buffer` [..., bytes], padded columns as 0x00.

    The column atom of a row is contiguous in every layout, so it moves as one word: four times fewer index entries.
    """
    blocks = scales.shape[-1]
    padded_blocks = _round_up(blocks, layout.column_atom)
    if padded_blocks != blocks:
        scales = np.pad(scales, [(0, 0)] * (scales.ndim - 1) + [(0, padded_blocks - blocks)])
    unit = np.dtype(f"u{layout.column_atom}")
    buffer.view(unit)[..., _unit_offsets(layout, rows, blocks)] = np.ascontiguousarray(scales).view(unit)


def _unit_offsets(layout: ScaleLayout, rows: NDArray[np.int64], blocks: int) -> NDArray[np.int64]:
    """Offsets [rows, column atoms] of the column atoms of the given rows, in units of a column atom."""
    columns = np.arange(0, blocks, layout.column_atom)
    by_row = layout.offset(rows, 0, blocks) // layout.column_atom
    by_column = layout.offset(0, columns, blocks) // layout.column_atom
    offsets: NDArray[np.int64] = by_row[:, None] + by_column[None, :]
    return offsets


def _nibble_order(order: str) -> tuple[int, int]:
    """Elements of a packing group, and the distance between the two that share a byte."""
    orders = {"even-low": (2, 1), "gguf": (32, 16)}
    if not isinstance(order, str) or order not in orders:
        raise ArgumentError("order", describe(order), "one of " + ", ".join(orders))
    return orders[order]


def _check_bytes(argument: str, value: object) -> None:
    if not isinstance(value, np.ndarray) or value.dtype != np.uint8:
        raise ArgumentError(argument, describe(value), "a uint8 array")


def _round_up(value: Any, multiple: int) -> Any:
    return -(-value // multiple) * multiple
