"""Memory that costs nothing until it is touched, and what its pages held before a launch wrote them."""

from __future__ import annotations

import math
import mmap
import sys
import threading
from typing import Any

import numpy as np

Array = Any
# What memory that nobody has written holds, where reading it is not refused.
POISON = 0xCD
PAGE_SHIFT = 12
PAGE = 1 << PAGE_SHIFT
# Of a journal: a page held one byte over and over, which is added to this.
ONE_BYTE = 2
# Of Linux's pagemap (Documentation/admin-guide/mm/pagemap.rst): a page is present, and mapped by nobody else.
_ENTRY = np.dtype(np.uint64)
_RESIDENT = np.uint64(1 << 63 | 1 << 56)
# Pages of a buffer that are looked at together.
_TOGETHER = 512
# Entries that are read together.
_ENTRIES = 1 << 17
# What a heap hands out faster than the system does.
_SMALL = 64 << 10
# Python names these since 3.13 and 3.8. Without the first, Linux refuses more address space than there is memory.
_LINUX = sys.platform == "linux"
_NO_RESERVE = getattr(mmap, "MAP_NORESERVE", 0x4000 if _LINUX else 0)
_NO_HUGE_PAGES = getattr(mmap, "MADV_NOHUGEPAGE", None)
# So many resident bytes are kept for later, of each kind, and at most a quarter more.
_MOST_SPARE = 192 << 20
# The system reads an entry for each page of address space, resident or not: 7 ms a gigabyte, again and again.
_MOST_ASKED = 2 << 30


class Spare:
    """Memory of launches that have ended, for whoever asks for as much: its pages are resident already.

    Of an array as much may be resident as all that had it have made so together. They may have meant the same pages:
    when the sum is beyond the limit the system is asked, but not again before a quarter of the limit was given back.
    Several threads may launch at a time.
    """

    def __init__(self) -> None:
        self._held: dict[int, list[tuple[Array, int]]] = {}
        self._resident = 0
        # What was resident of arrays when they were taken, by address.
        self._lent: dict[int, int] = {}
        self._since = 0
        # Whoever collects garbage inside may give back what that holds.
        self._lock = threading.RLock()

    def take(self, size: int) -> Array | None:
        """So many bytes, or None if there are none of that size."""
        with self._lock:
            if not (held := self._held.get(size)):
                return None
            array, resident = held.pop()
            self._resident -= resident
            self._lent[array.ctypes.data] = resident
            return array

    def give(self, array: Array, resident: int) -> None:
        """Keep an array that nobody else uses any more; whoever had it made at most `resident` bytes resident."""
        if array.nbytes <= _SMALL:
            return
        array = array.reshape(-1).view(np.uint8)
        with self._lock:
            self._since += resident
            resident = min(resident + self._lent.pop(array.ctypes.data, 0), array.nbytes)
            if self._resident + resident > _MOST_SPARE and self._since >= _MOST_SPARE // 4:
                resident = _counted(array, resident)
                if resident > _MOST_SPARE:
                    return
                self._count()
                if self._resident + resident > _MOST_SPARE:
                    self._held.clear()
                    self._resident = 0
            self._resident += resident
            self._held.setdefault(array.nbytes, []).append((array, resident))

    def _count(self) -> None:
        """Ask the system how much is resident."""
        self._since = 0
        for held in list(self._held.values()):
            held[:] = [(array, _counted(array, resident)) for array, resident in held]
        self._resident = sum(resident for held in list(self._held.values()) for _, resident in held)


def _counted(array: Array, most: int) -> int:
    """How many bytes of an array are resident, or `most` where the system does not say, or says it too slowly."""
    if array.nbytes > _MOST_ASKED:
        return most
    try:
        return min(resident_bytes(array), most)
    except OSError:
        return most


# All zeros; and whatever was there before.
_ZEROS, _SCRATCH = Spare(), Spare()


def untouched(shape: tuple[int, ...], kind: Any = np.uint8) -> Array:
    """Zeros of which each page of the system's becomes resident when it is first written.

    `np.zeros` does not promise that: it clears memory of the heap, and asks for huge pages.

    Raises:
        MemoryError: the system gives no such range of addresses.
    """
    dtype = np.dtype(kind)
    size = math.prod(shape) * dtype.itemsize
    if size <= _SMALL or not hasattr(mmap, "MAP_ANONYMOUS"):
        return np.zeros(shape, dtype)
    if (spare := _ZEROS.take(size)) is not None:
        return spare.view(dtype).reshape(shape)
    try:
        pages = mmap.mmap(-1, size, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS | _NO_RESERVE)
    except OSError as error:
        limits = "see the limits of the process (ulimit -v) and vm.overcommit_memory"
        raise MemoryError(f"{size} bytes of address space needed, of which few become resident; {limits}") from error
    if _NO_HUGE_PAGES is not None:
        # Records lie far apart: of a huge page most would be empty.
        pages.madvise(_NO_HUGE_PAGES)
    return np.frombuffer(pages, dtype).reshape(shape)


def cleared(array: Array, resident: int) -> None:
    """Give memory back that came from `untouched` and is all zeros again: at most `resident` bytes became resident."""
    _ZEROS.give(array, min(resident, array.nbytes))


def resident_bytes(array: Array) -> int:
    """Bytes of the system's pages that hold a part of a contiguous array and are resident for this process alone.

    A page that was only read is not: until it is written it is the system's page of zeros.

    Raises:
        OSError: the system has no /proc/self/pagemap.
    """
    size = mmap.PAGESIZE
    first, last = array.ctypes.data // size, -(-(array.ctypes.data + array.nbytes) // size)
    total = 0
    with open("/proc/self/pagemap", "rb", buffering=0) as pagemap:
        for begin in range(first, last, _ENTRIES):
            pagemap.seek(begin * _ENTRY.itemsize)
            entries = np.frombuffer(pagemap.read(min(_ENTRIES, last - begin) * _ENTRY.itemsize), _ENTRY)
            total += int(np.count_nonzero(entries & _RESIDENT == _RESIDENT))
    return total * size


def _split(pages: Array, breaks: Array) -> list[Array]:
    """Pages [n] in parts; `breaks` [n - 1] says behind which one a part ends."""
    return np.split(pages, np.flatnonzero(breaks) + 1) if pages.size else []


class Journal:
    """What a buffer held before a launch, of the pages that the launch has written.

    Args:
        data: uint8 [n], the buffer, which is written in place.

    Attributes:
        kept: int64 [pages], 1 for each page whose bytes lie in `before`, `ONE_BYTE` and a byte for each page that held
            that byte alone, 0 for the others.
        before: uint8 [n], the bytes of pages.
    """

    def __init__(self, data: Array) -> None:
        self.data = data
        self.kept = untouched((-(-data.size // PAGE),), np.int64)
        spare = _SCRATCH.take(data.size)
        self.before = untouched((data.size,)) if spare is None else spare

    def keep(self, index: Array) -> None:
        """Words at byte `index` [n], none of which lies in two pages, are about to be written."""
        pages = index >> PAGE_SHIFT
        for page in np.unique(pages[self.kept[pages] == 0]).tolist():
            place = slice(page << PAGE_SHIFT, (page + 1) << PAGE_SHIFT)
            self.before[place] = self.data[place]
            self.kept[page] = 1

    @property
    def written(self) -> list[tuple[int, int]]:
        """(first byte, byte behind the last) of runs of pages that may have been written, in order."""
        pages = self._pages()
        return [self._place(run) for run in _split(pages, np.diff(pages) != 1)]

    def release(self) -> None:
        """Give memory back: nobody asks any more what was there before."""
        held = self._pages()
        self.kept[held] = 0
        cleared(self.kept, self.kept.nbytes)
        _SCRATCH.give(self.before, held.size << PAGE_SHIFT)
        # Objects of the launch refer to each other, and would keep the caller's array until somebody collects garbage.
        self.data = self.before = self.kept = np.zeros(0, np.uint8)

    def restore(self) -> None:
        """Put back what was there before the launch; which pages it wrote stays known."""
        for run in self._runs():
            begin, end = self._place(run)
            how = int(self.kept[run[0]])
            self.data[begin:end] = self.before[begin:end] if how < ONE_BYTE else how - ONE_BYTE

    def undo(self) -> None:
        """Put back what was there before the launch."""
        self.restore()
        self.kept[self._pages()] = 0

    def _runs(self) -> list[Array]:
        """Pages whose bytes are kept, in order, those together that follow each other and are kept alike."""
        pages = self._pages()
        return _split(pages, (np.diff(pages) != 1) | (np.diff(self.kept[pages]) != 0))

    def _place(self, run: Array) -> tuple[int, int]:
        """The first byte of pages that follow each other, and the byte behind the last."""
        return int(run[0]) << PAGE_SHIFT, min((int(run[-1]) + 1) << PAGE_SHIFT, self.data.size)

    def _pages(self) -> Array:
        """Those whose bytes are kept, in order.

        Of a buffer of gigabytes they are few. NumPy takes a third of the time to find which hundreds have some.
        """
        if self.kept.size < _TOGETHER * _TOGETHER:
            return np.flatnonzero(self.kept)
        whole = self.kept.size // _TOGETHER * _TOGETHER
        some = np.flatnonzero(np.bitwise_or.reduce(self.kept[:whole].reshape(-1, _TOGETHER), axis=1))
        places = (some[:, None] * _TOGETHER + np.arange(_TOGETHER)).ravel()
        return np.concatenate([places[self.kept[places] != 0], whole + np.flatnonzero(self.kept[whole:])])
