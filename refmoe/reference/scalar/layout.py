"""Scale layouts and FP4 packing, one byte at a time: the specification of `refmoe.reference.layout`.

Plain Python on nested lists (or anything indexed like them), written from the published formulas. It checks nothing
and hurries nowhere.
"""

from __future__ import annotations

from collections.abc import Sequence

Matrix = Sequence[Sequence[int]]


def scale_offset(layout: str, m: int, b: int, blocks: int) -> int:
    """Byte of the scale of row m and K-block b in a matrix `blocks` wide; kt counts tiles of four blocks."""
    kt = (blocks + 3) // 4
    if layout == "128x4":
        return (m // 128) * kt * 512 + (b // 4) * 512 + (m % 32) * 16 + ((m % 128) // 32) * 4 + b % 4
    if layout == "8x4":
        return (m // 8) * kt * 32 + (b // 4) * 32 + (m % 8) * 4 + b % 4
    if layout == "linear":
        return m * blocks + b
    raise ValueError(layout)


def scale_size(layout: str, rows: int, blocks: int) -> int:
    """Bytes of a [rows, blocks] matrix: one more than the offset of its last byte, padding included."""
    if rows == 0 or blocks == 0:
        return 0
    if layout == "linear":
        return rows * blocks
    tile = {"128x4": 128, "8x4": 8}[layout]
    while rows % tile:
        rows += 1
    while blocks % 4:
        blocks += 1
    return scale_offset(layout, rows - 1, blocks - 1, blocks) + 1


def swizzle_scales(scales: Matrix, layout: str, fill: int = 0) -> bytes:
    """The bytes of `scales` in `layout`; padded rows hold `fill`, padded columns of real rows 0x00."""
    rows = len(scales)
    blocks = len(scales[0]) if rows else 0
    buffer = bytearray([fill]) * scale_size(layout, rows, blocks)
    for m in range(rows):
        if layout != "linear":
            for b in range(blocks, (blocks + 3) // 4 * 4):
                buffer[scale_offset(layout, m, b, blocks)] = 0x00
        for b in range(blocks):
            buffer[scale_offset(layout, m, b, blocks)] = scales[m][b]
    return bytes(buffer)


def unswizzle_scales(buffer: Sequence[int], rows: int, blocks: int, layout: str) -> list[list[int]]:
    """The [rows, blocks] scales that `buffer` holds in `layout`."""
    return [[int(buffer[scale_offset(layout, m, b, blocks)]) for b in range(blocks)] for m in range(rows)]


def base_row(first_row: int, expert: int) -> int:
    """First scale row of an expert whose rows start at `first_row`: align128(first_row + 127 * expert)."""
    row = first_row + 127 * expert
    while row % 128:
        row += 1
    return row


def pack_fp4(codes: Sequence[int], order: str) -> bytes:
    """One row of FP4 codes, two to a byte; the two orders are those of checkpoints and of GGUF blocks."""
    packed = bytearray(len(codes) // 2)
    for k, code in enumerate(codes):
        byte, high = _nibble(k, order)
        packed[byte] |= code << 4 if high else code
    return bytes(packed)


def unpack_fp4(packed: Sequence[int], order: str) -> list[int]:
    """One row of FP4 codes out of its packed bytes."""
    codes = []
    for k in range(2 * len(packed)):
        byte, high = _nibble(k, order)
        codes.append(int(packed[byte]) >> 4 if high else int(packed[byte]) & 15)
    return codes


def _nibble(k: int, order: str) -> tuple[int, bool]:
    """The byte of element k, and whether it is the high nibble."""
    if order == "even-low":
        return k // 2, k % 2 == 1
    if order == "gguf":
        block, i = divmod(k, 32)
        return 16 * block + i % 16, i >= 16
    raise ValueError(order)
