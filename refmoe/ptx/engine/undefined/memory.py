"""Undefined bits of memory: a table beside a region, in use from the first undefined value that is stored there.

A byte with undefined bits counts as one that nobody wrote, so that whoever reads it asks here, native code included. A
store of what is defined makes it one that somebody wrote, and what the table says of it no longer counts.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np

from refmoe.ptx.state.memory import Region, padded
from refmoe.ptx.state.pages import PAGE_SHIFT, untouched

Array = Any


class UndefinedBytes:
    """The table of a region.

    Attributes:
        bits: uint8 [n], the undefined bits of each byte.
        marked: uint8 [n], 0xFF for each byte that was stored with undefined bits.
        origins: int64 [n], where they came from.
        made_valid: whether the region had no record of which bytes are initialised before.
        pages: numbers of the pages that have had such bytes.
    """

    def __init__(self, size: int, made_valid: bool) -> None:
        self.bits = untouched((size,))
        self.marked = untouched((size,))
        self.origins = untouched((size,), np.int64)
        self.made_valid = made_valid
        self.pages: set[int] = set()

    def held(self, width: int, place: Array) -> Array:
        """Words of `width` bytes, numbers `place` [n], with 0xFF for each byte whose value was stored."""
        words = self.marked.view(np.dtype(f"u{min(width, 8)}"))
        whole = words if width <= 8 else words.reshape(-1, width // 8)
        return whole.take(place, axis=0)


def table_of(region: Region) -> UndefinedBytes:
    """The table of a region, made when it is first needed."""
    held = region.undefined
    if not isinstance(held, UndefinedBytes):
        made_valid = region.valid is None
        if made_valid:
            region.validate()
        held = region.undefined = UndefinedBytes(padded(region.data.size), made_valid)
    return held


def store(region: Region, index: Array, bits: Array, origins: Array) -> None:
    """Values with undefined bits have been stored.

    Args:
        region: where.
        index: int64 [n], the first byte of each.
        bits: uint8 [n, width], the undefined bits; nothing is said of bytes without any.
        origins: int64 [n].
    """
    table = table_of(region)
    assert region.valid is not None
    at = index[:, None] + np.arange(bits.shape[1])
    which = bits != 0
    table.pages.update(np.unique(at[which] >> PAGE_SHIFT).tolist())
    table.bits[at[which]] = bits[which]
    table.marked[at[which]] = 0xFF
    table.origins[at[which]] = np.broadcast_to(origins[:, None], at.shape)[which]
    region.valid[at[which]] = 0


def load(region: Region, index: Array, width: int) -> tuple[Array, Array, Array]:
    """What is undefined of values that are read.

    Args:
        region: where.
        index: int64 [n], the first byte of each.
        width: bytes of each.

    Returns:
        uint8 [n, width], the undefined bits; int64 [n], where they came from, `NOWHERE` for bytes that nobody wrote and
        for what is defined; int64 [n], the first byte of each that nobody wrote, -1 for none.
    """
    count = len(index)
    if region.valid is None:
        return np.zeros((count, width), np.uint8), np.zeros(count, np.int64), np.full(count, -1)
    at = index[:, None] + np.arange(width)
    open_ = region.valid[at] == 0
    table = region.undefined
    marked = np.zeros(open_.shape, bool)
    bits = np.where(open_, np.uint8(0xFF), np.uint8(0))
    origins = np.zeros(count, np.int64)
    if isinstance(table, UndefinedBytes):
        marked = open_ & (table.marked[at] != 0)
        bits = np.where(marked, table.bits[at], bits)
        some = marked.any(axis=1)
        first = at[np.arange(count), np.argmax(marked, axis=1)]
        origins = np.where(some, table.origins[first], 0)
    unwritten = open_ & ~marked
    missing = np.where(unwritten.any(axis=1), at[np.arange(count), np.argmax(unwritten, axis=1)], -1)
    return bits, origins, missing


def each_left(region: Region) -> Iterator[tuple[int, int, int]]:
    """(byte, its undefined bits, where they came from) of the first byte of each origin that a buffer was left with."""
    table = region.undefined
    if not isinstance(table, UndefinedBytes) or region.valid is None:
        return
    told: set[int] = set()
    for page in sorted(table.pages):
        # Of a buffer of gigabytes hardly any byte is looked at.
        part = slice(page << PAGE_SHIFT, min(page + 1 << PAGE_SHIFT, region.size))
        left = (table.marked[part] != 0) & (region.valid[part] == 0) & (table.bits[part] != 0)
        for at in (np.flatnonzero(left) + part.start).tolist():
            origin = int(table.origins[at])
            if origin not in told:
                told.add(origin)
                yield at, int(table.bits[at]), origin


def forget(region: Region, *, stays_open: bool) -> None:
    """The launch has ended.

    Args:
        region: no undefined value is left in it, or it is a workspace.
        stays_open: it is one, and what is undefined in it counts as bytes that nobody wrote from now on.
    """
    table = region.undefined
    if isinstance(table, UndefinedBytes) and table.made_valid and not stays_open:
        region.invalidate()
    region.undefined = None
