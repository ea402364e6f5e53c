"""What the manual and CUTLASS say of `wgmma`, one element at a time; nothing here is the executor's.

A warpgroup's lane of number 32 w + 4 g + t has of A [64, 32 bytes] in register i the four bytes from 4t + 16 (i / 2) on
of row 16 w + g + 8 (i % 2), and of D [64, N] in element i row 16 w + g + 8 (i / 2 % 2), column 8 (i / 4) + 2t + i % 2.
"""

from __future__ import annotations

import numpy as np

LANES = 128

# Strides in chunks of 16 bytes, by bytes of a swizzled line, 0 for none: "S" and "L" are those of the descriptor. The
# canonical layouts of mma_sm90_desc.hpp, as ((size, stride) ...) of the rows or columns and of K: what lies side by
# side is in chunks.
_ALONG_K = {
    0: (((8, 1), (None, "S")), ((None, "L"),)),
    # A column of a sparse product has four chunks: on an H200 the next two are where the leading offset says.
    32: (((8, 2), (None, "S")), ((2, 1), (None, "L"))),
    64: (((8, 4), (None, "S")), ((None, 1),)),
    128: (((8, 8), (None, "S")), ((None, 1),)),
}
_ACROSS_K = {
    0: (((1, 0), (None, "S")), ((8, 1), (None, "L"))),
    32: (((2, 1), (None, "L")), ((8, 2), (None, "S"))),
    64: (((4, 1), (None, "L")), ((8, 4), (None, "S"))),
    128: (((8, 1), (None, "L")), ((8, 8), (None, "S"))),
}
_SWIZZLE_BITS = {0: 0, 32: 1, 64: 2, 128: 3}


def fields(bits: int) -> dict[str, int]:
    """The fields of a matrix descriptor: bytes, but for `base`; `swizzle` 0, 32, 64 or 128."""
    text = format(bits, "064b")[::-1]

    def number(first: int, last: int) -> int:
        return int(text[first : last + 1][::-1], 2)

    return {
        "start": number(0, 13) * 16,
        "leading": number(16, 29) * 16,
        "stride": number(32, 45) * 16,
        "base": number(49, 51),
        "swizzle": (0, 128, 64, 32)[number(62, 63)],
    }


def address(bits: int, outer: int, byte_or_k: int, across: bool, width: int = 2) -> int:
    """Where an element lies in shared memory.

    Args:
        bits: the matrix descriptor.
        outer: row of A, or column of B.
        byte_or_k: byte of its row or column; across K, the step of K.
        across: whether rows of A, or columns of B, lie side by side.
        width: bytes of an element; matters across K alone.
    """
    found = fields(bits)
    strides = {"S": found["stride"] // 16, "L": found["leading"] // 16}
    outer_modes, k_modes = (_ACROSS_K if across else _ALONG_K)[found["swizzle"]]
    chunk, inner = divmod(outer * width, 16) if across else divmod(byte_or_k, 16)
    places = (chunk, byte_or_k) if across else (outer, chunk)
    total = 0
    for place, modes in zip(places, (outer_modes, k_modes), strict=True):
        for size, stride in modes:
            place, here = (0, place) if size is None else divmod(place, size)
            total += here * (strides[stride] if isinstance(stride, str) else stride)
    return swizzled(found["start"] + total * 16, _SWIZZLE_BITS[found["swizzle"]], found["base"]) + inner


def swizzled(place: int, count: int, base: int = 0) -> int:
    """CuTe's Swizzle<count, 4, 3> of an address, whose pattern begins `base` rows of 128 bytes further on."""
    for bit in range(count):
        if (place - base * 128) >> 7 + bit & 1:
            place ^= 1 << 4 + bit
    return place


def stored_rows(image: np.ndarray, bits: int, outer: int, row_bytes: int) -> np.ndarray:
    """Rows or columns that lie along K, uint8 [outer, row_bytes]."""
    found = np.zeros((outer, row_bytes), np.uint8)
    for row in range(outer):
        for byte in range(row_bytes):
            found[row, byte] = image[address(bits, row, byte, False)]
    return found


def stored_columns(image: np.ndarray, bits: int, outer: int, k: int) -> np.ndarray:
    """Rows or columns of 16-bit elements that lie across K, uint8 [outer, 2 K]."""
    found = np.zeros((outer, 2 * k), np.uint8)
    for row in range(outer):
        for step in range(k):
            place = address(bits, row, step, True)
            found[row, 2 * step : 2 * step + 2] = image[place : place + 2]
    return found


def a_registers(rows: np.ndarray) -> np.ndarray:
    """Rows of A, uint8 [64, 32], as registers uint32 [4, 128]."""
    found = np.zeros((4, LANES), np.uint32)
    for lane in range(LANES):
        warp, g, t = lane // 32, lane % 32 // 4, lane % 4
        for i in range(4):
            row, byte = 16 * warp + g + 8 * (i % 2), 4 * t + 16 * (i // 2)
            found[i, lane] = int.from_bytes(rows[row, byte : byte + 4].tobytes(), "little")
    return found


def _elements(n: int) -> list[tuple[int, int, int, int]]:
    """(element, lane, row, column) of D."""
    return [
        (i, lane, 16 * (lane // 32) + lane % 32 // 4 + 8 * (i // 2 % 2), 8 * (i // 4) + 2 * (lane % 4) + i % 2)
        for i in range(n // 2)
        for lane in range(LANES)
    ]


def d_registers(matrix: np.ndarray) -> np.ndarray:
    """D [64, N], uint32 or uint16, as registers uint32 [N / 2, 128] or [N / 4, 128]."""
    n = matrix.shape[1]
    halves = matrix.dtype == np.uint16
    found = np.zeros((n // 2 // (2 if halves else 1), LANES), np.uint32)
    for i, lane, row, column in _elements(n):
        if halves:
            found[i // 2, lane] |= np.uint32(int(matrix[row, column]) << 16 * (i % 2))
        else:
            found[i, lane] = matrix[row, column]
    return found


def d_matrix(registers: np.ndarray, n: int, halves: bool) -> np.ndarray:
    """The reverse of `d_registers`."""
    found = np.zeros((64, n), np.uint16 if halves else np.uint32)
    for i, lane, row, column in _elements(n):
        word = int(registers[i // 2 if halves else i, lane])
        found[row, column] = word >> 16 * (i % 2) & 0xFFFF if halves else word
    return found


def sparse_places(metadata: np.ndarray, row: int, width: int, selector: int) -> list[int]:
    """Which elements of a column the stored elements of a row are multiplied by.

    Args:
        metadata: uint32 [128], one register of each lane.
        row: of A.
        width: bytes of an element.
        selector: whose lanes' metadata count, where not all do.
    """
    warp, g, upper = row // 16, row % 8, row % 16 // 8
    first = 32 * warp + 4 * g
    if width == 1:
        # A lane has eight groups of four bits.
        nibbles = [int(metadata[first + 2 * half + upper]) >> 4 * i & 15 for half in range(2) for i in range(8)]
    else:
        nibbles = [
            int(metadata[first + 2 * selector + half]) >> 16 * upper + 4 * i & 15 for half in range(2) for i in range(4)
        ]
    if width == 4:
        return [2 * group + {0x4: 0, 0xE: 1}[nibble] for group, nibble in enumerate(nibbles)]
    return [4 * group + place for group, nibble in enumerate(nibbles) for place in (nibble & 3, nibble >> 2)]
