"""What native code knows of the machine that it runs for: one table of 64-bit fields, and one row for each region.

Python writes these tables as NumPy arrays, native code reads them by the field numbers below.
"""

from __future__ import annotations

import ctypes
from collections.abc import Sequence
from enum import IntEnum, auto


class Context(IntEnum):
    """Fields of the context, each of 64 bits; a pointer is an address."""

    REGISTERS = 0
    """Pointer to the registers: for each warp its homes, of 32 values each."""
    WARP_BYTES = auto()
    """From the registers of a warp to those of the next."""
    NOW = auto()
    """The step, as race records have it."""
    CHANGED = auto()
    """Set to one by every store."""
    SLOW = auto()
    """Pointer to the function that does an access, or an instruction, for one warp in Python."""
    FUNCTIONS = auto()
    """Pointer to the addresses of the functions for memory, in the order of the kernel's list."""
    SYMBOLS = auto()
    """Pointer to the addresses of module variables, in the order of the kernel's list."""
    APPROXIMATE = auto()
    """Pointer to one byte for each approximate instruction, set where a result was not provably exact."""
    REGIONS = auto()
    """Pointer to the rows of regions: shared, local, then buffers by window."""
    REGION_COUNT = auto()
    SHARED_OFFSET = auto()
    """Pointer to int64 by warp: where its CTA's shared memory begins in that of all."""
    REFUSE_UNWRITTEN = auto()
    """Whether reads of bytes that nobody wrote are looked for."""
    FIRST_THREAD = auto()
    """Of the grid, counted in whole warps: the thread of lane 0."""
    FIRST_WARP = auto()
    WARPS = auto()
    """Of a cluster: those that have columns of their own in what `Clocks` holds."""
    SEEN = auto()
    """Pointers to what `Clocks` holds."""
    SEEN_COLUMNS = auto()
    PUBLISHED = auto()
    ACQUIRED = auto()
    BY_LANE = auto()
    BULK = auto()


class Row(IntEnum):
    """Fields of a region's row."""

    BASE = 0
    """Generic address of its first byte."""
    SIZE = auto()
    DATA = auto()
    VALID = auto()
    """Pointer, or 0 where every byte is initialised."""
    WRITABLE = auto()
    """Whether native code may store here: not where somebody watches."""
    STRIDE = auto()
    """Local memory: bytes from one lane's to the next; else 0."""
    WRITES = auto()
    """Pointer to the records of last writes, or 0 where races are not looked for."""
    READS = auto()
    SHIFT = auto()
    """Binary logarithm of the bytes of a granule; -1 before the first access."""
    COLUMNS = auto()
    """Records of reads of a granule."""
    READERS = auto()
    """Warps whose reads are kept apart, 0 for none."""
    READ_STEPS = auto()
    """Pointers to the steps of the last accesses of a line by each warp, or 0."""
    WRITE_STEPS = auto()
    READ_STEP_COLUMNS = auto()


SHARED_ROW, LOCAL_ROW, FIRST_BUFFER_ROW = 0, 1, 2
FIELD_BYTES = 8
ROW_BYTES = len(Row) * FIELD_BYTES
# (site, warp, mask, addresses, values) -> 0, or 1 if it raised.
SLOW = ctypes.CFUNCTYPE(
    ctypes.c_int32, ctypes.c_int64, ctypes.c_int64, ctypes.c_uint32, ctypes.c_void_p, ctypes.c_void_p
)

# Bytes of a lane's value in a home.
HOME_BYTES = {"pred": 1, "b8": 1, "b16": 2, "b32": 4, "b64": 8}


def starts(kinds: Sequence[str]) -> list[int]:
    """Bytes of a lane's values before each home, and of all."""
    result = [0]
    for kind in kinds:
        result.append(result[-1] + HOME_BYTES[kind])
    return result
