"""Where the records of accesses lie: by granules, whose size each page of 4096 bytes has for itself.

A granule of a page is the smallest access that the page has met: words of four bytes need a quarter of the records that
bytes need, and byte stores in one place do not make the records of a whole buffer byte-fine. Every page has room for
byte-fine records, of which only those in use become resident. Those of byte b, in page p with granules of 2^s bytes,
lie in *slot*

    4096 p + ((b mod 4096) >> s)

of each column: one column of last writes, some of last reads, and one of writes that a stronger write displaced. So
records never move to another page's room, and a page whose granules split keeps what it knows: each part of a granule
gets the records of the whole.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import numpy as np

from refmoe.native.addresses import address
from refmoe.ptx.native import boxes
from refmoe.ptx.native import pages as native
from refmoe.ptx.native.context import Row
from refmoe.ptx.state.pages import PAGE, PAGE_SHIFT, cleared, untouched
from refmoe.ptx.state.records import UNKNOWN_STEP

Array = Any
# Of `used`: it stands for all columns from here on.
_LAST_BIT = 63


class Granules:
    """The records of a region.

    Args:
        size: bytes of the region, a multiple of its widest access.
        columns: records of reads that a granule has.

    Where the columns of reads are of one warp each, a warp that knows all that another one did up to the last step of a
    page's column need not look at the records there.

    Attributes:
        states: int64 [pages], one more than the binary logarithm of the bytes of a granule; 0 for a page that nobody
            accessed.
        used: int64 [pages], a bit for each column in which a page may have records; the others need not be read. The
            last bit is that of all columns from the 63rd on.
        steps: int64 [pages, columns + 1], the last step of the records in a page, of each column but the first. It is
            `UNKNOWN_STEP` where it is not known, or a record may be of another warp's access.
        records: int64 [columns + 2, size].
        writes: the first column.
        others: all but the first, what a write has to come after besides the last one.
        reads: the columns between the first and the last.
        weaker: the last column, of the last write that a stronger write displaced.
        before_release: what is called before all of this is given back, or None.
    """

    def __init__(self, size: int, columns: int) -> None:
        self.size = size
        self.states = untouched((-(-size // PAGE),), np.int64)
        self.used = untouched((-(-size // PAGE),), np.int64)
        self.steps = untouched((-(-size // PAGE), columns + 1), np.int64)
        self.records = untouched((columns + 2, size), np.int64)
        self.writes, self.others = self.records[0], self.records[1:]
        self.reads, self.weaker = self.others[:-1], self.others[-1]
        self.before_release: Callable[[], None] | None = None

    def release(self) -> None:
        """Give memory back: nobody asks any more who accessed what."""
        if self.before_release is not None:
            self.before_release()
        row = np.zeros(len(Row), np.int64)
        self.enter(row)
        resident = native.functions().forget(address(row), len(self.states))
        for each in (self.states, self.used, self.steps):
            # What is known of a page takes less than its records.
            cleared(each, 2 * resident)
        cleared(self.records, resident)

    def enter(self, row: Array) -> None:
        """Write into a region's row where the records lie, see `Row`."""
        row[Row.PAGE_STATES], row[Row.PAGE_COLUMNS] = address(self.states), address(self.used)
        row[Row.PAGE_STEPS] = address(self.steps)
        row[Row.WRITES], row[Row.READS] = address(self.writes), address(self.others)
        row[Row.COLUMNS], row[Row.COLUMN_BYTES] = len(self.others), self.records.strides[0]

    def cover(self, index: Array, width: int) -> tuple[Array, Array | None]:
        """Slots of accesses of `width` bytes at byte `index` [n], one after another, and whose they are.

        Returns:
            slots [m], and the number of the access that each belongs to, or None where each access has one.
        """
        page = index >> PAGE_SHIFT
        held = self.states[page]
        own = width.bit_length()
        if not held.size:
            return held, None
        # Whoever asks may write records in any column.
        self.used[page], self.steps[page] = -1, UNKNOWN_STEP
        low, high = int(held.min()), int(held.max())
        if low == 0 or high > own:
            self.refine(page, own)
            held = self.states[page]
            low, high = int(held.min()), int(held.max())
        within = index & (PAGE - width)
        if low == high:
            first = (index & -PAGE) + (within >> low - 1)
            count = 1 << own - low
            if count == 1:
                return first, None
            return (first[:, None] + np.arange(count)).ravel(), np.repeat(np.arange(len(index)), count)
        first = (index & -PAGE) + (within >> held - 1)
        counts = np.int64(1) << own - held
        row = np.repeat(np.arange(len(index)), counts)
        begins = np.cumsum(counts) - counts
        return first[row] + np.arange(len(row)) - begins[row], row

    def refine(self, pages: Array, own: int) -> None:
        """Give pages [n] granules of at most 2^(own - 1) bytes."""
        held = self.states[pages]
        self.states[pages[held == 0]] = own
        for page in np.unique(pages[held > own]).tolist():
            self._split(page, own)

    def _split(self, page: int, own: int) -> None:
        begin, old = page << PAGE_SHIFT, int(self.states[page])
        room = min(PAGE, self.size - begin)
        for column in self.records:
            coarse = column[begin : begin + (room >> old - 1)]
            if coarse.any():
                held, fine = column[begin : begin + (room >> own - 1)], np.repeat(coarse, 1 << old - own)
                # Writing what is there would make pages resident that hold no record.
                changed = np.flatnonzero(fine != held)
                held[changed] = fine[changed]
        self.states[page] = own

    def prepare(self, first: Array, span: int, width: int, reads: int | None = None) -> None:
        """Ranges of `span` bytes from `first` [n] on get granules of at most `width` bytes.

        Somebody will enter records there who does not say so page by page: of writes, or into that column of `reads`.
        """
        if first.size:
            pages = _pages(first, span).ravel()
            column = 0 if reads is None else 1 + reads
            self.used[pages] |= np.int64(-1 << 63 if column >= _LAST_BIT else 1 << column)
            if reads is not None:
                self.steps[pages, reads] = UNKNOWN_STEP
            self.refine(pages, width.bit_length())

    def use_weaker(self, slots: Array) -> None:
        """There will be records of weaker writes in `slots` [n]."""
        pages, column = slots >> PAGE_SHIFT, len(self.others)
        self.used[pages] |= np.int64(-1 << 63 if column >= _LAST_BIT else 1 << column)
        self.steps[pages, column - 1] = UNKNOWN_STEP

    def write(self, first: Array, span: int, records: Array) -> None:
        """Each of `records` [n] is that of the last write of all granules in the range from `first` [n] on."""
        if not first.size:
            return
        first, records = np.ascontiguousarray(first, np.int64), np.ascontiguousarray(records, np.int64)
        # Native code does not ask where it writes.
        assert len(first) == len(records)
        assert 0 <= int(first.min()) <= int(first.max()) <= self.size - span
        boxes.functions().record(
            address(self.writes), address(self.states), address(first), address(records), len(first), span
        )

    def ranges(self, first: Array, span: int) -> Iterator[tuple[int, slice]]:
        """(number of the range, its slots in one page) of ranges of `span` bytes from `first` [n] on."""
        for number, begin in enumerate(first.tolist()):
            end = begin + span
            while begin < end:
                page = begin >> PAGE_SHIFT
                stop, shift = min(end, (page + 1) << PAGE_SHIFT), int(self.states[page]) - 1
                slot = (page << PAGE_SHIFT) + ((begin & PAGE - 1) >> shift)
                yield number, slice(slot, slot + (stop - begin >> shift))
                begin = stop

    def within(self, begin: int, end: int) -> tuple[Array, Array]:
        """(first byte of its granule [n], record [n]) of all records of the bytes from `begin` to `end`."""
        indices, found = [np.zeros(0, np.int64)], [np.zeros(0, np.int64)]
        for page in range(begin >> PAGE_SHIFT, (end - 1 >> PAGE_SHIFT) + 1):
            shift = int(self.states[page]) - 1
            if shift < 0:
                continue
            first, last = max(begin, page << PAGE_SHIFT), min(end, (page + 1) << PAGE_SHIFT)
            slot = (page << PAGE_SHIFT) + ((first & PAGE - 1) >> shift)
            held = self.records[:, slot : slot + (last - first >> shift)].reshape(-1)
            # Of two axes NumPy takes five times as long to find what is not zero.
            places = np.flatnonzero(held)
            indices.append(first + (places % (last - first >> shift) << shift))
            found.append(held[places])
        return np.concatenate(indices), np.concatenate(found)

    def touched(self) -> Iterator[tuple[int, Array, Array]]:
        """(page, which of its bytes were written, which were read) of pages that somebody accessed; bool [4096] both.

        A write forgets the reads that come before it: such a byte may count as written alone.
        """
        for page in np.flatnonzero(self.states).tolist():
            begin, shift = page << PAGE_SHIFT, int(self.states[page]) - 1
            held = self.records[:, begin : begin + (min(PAGE, self.size - begin) >> shift)] != 0
            bytes_ = np.zeros((2, PAGE), np.bool_)
            bytes_[:, : held.shape[1] << shift] = np.repeat([held[0], held[1:-1].any(axis=0)], 1 << shift, axis=1)
            yield page, bytes_[0], bytes_[1]

    @property
    def accessed(self) -> int:
        """How many bytes somebody accessed."""
        total = 0
        for page in np.flatnonzero(self.states).tolist():
            begin = page << PAGE_SHIFT
            slots = self.records[:, begin : begin + PAGE].any(axis=0)
            total += int(np.count_nonzero(slots)) << int(self.states[page]) - 1
        return total

    def byte(self, slot: int) -> int:
        """The first byte of a granule."""
        page = slot >> PAGE_SHIFT
        return (page << PAGE_SHIFT) + ((slot & PAGE - 1) << int(self.states[page]) - 1)


def _pages(first: Array, span: int) -> Array:
    """Pages [n, k] of ranges of `span` bytes from `first` [n] on; the last one several times where a range has less."""
    begin, last = first >> PAGE_SHIFT, (first + span - 1) >> PAGE_SHIFT
    count = int((last - begin).max()) + 1
    return np.minimum(begin[:, None] + np.arange(count), last[:, None])
