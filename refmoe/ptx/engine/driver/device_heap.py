"""`malloc` and `free` in device code: the heap that all threads share.

The heap is one buffer. Its first 16 bytes hold two numbers, and so do the 16 bytes in front of each allocation:

    heap          where the next allocation begins      bytes that are allocated now
    allocation    its size                              1 while it is allocated, 2 once it was freed

They lie in the memory itself, so that whatever undoes a launch undoes them, and nothing says that they were written, so
that a kernel that reads them does not go unnoticed. An address is never given twice, so a read of freed memory finds
bytes that nobody wrote. Lanes that allocate in one step do so in lane order.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from refmoe.ptx.engine.frame import Frame
from refmoe.ptx.errors import UnknownOpcode
from refmoe.ptx.state.memory import Region
from refmoe.ptx.state.spaces import HEAP_BYTES, HEAP_LIMIT
from refmoe.ptx.text.syntax import Instruction

Array = Any
_HEADER = 16
_LIVE, _FREED = 1, 2


@dataclass(frozen=True)
class Allocate:
    """`malloc`, and `__nv_aligned_device_malloc` with an alignment: the address, or 0 where there is no room."""

    instruction: Instruction

    def __call__(self, frame: Frame, size: Array, *rest: Array) -> Array:
        """Raises UnknownOpcode where more was allocated and freed than the executor has addresses for."""
        guard = rest[-1]
        where, lanes, sizes = frame.select(size, guard)
        alignments = frame.acting(where, rest[0] if len(rest) > 1 else np.uint64(_HEADER))
        found = np.zeros(len(lanes), np.uint64)
        for number, (wanted, alignment) in enumerate(zip(sizes, alignments, strict=True)):
            found[number] = self._one(frame, int(lanes[number]), int(wanted), max(int(alignment), _HEADER))
        if where is None:
            return found
        result = np.zeros(frame.count, np.uint64)
        result[where] = found
        return result

    def _one(self, frame: Frame, lane: int, size: int, alignment: int) -> int:
        heap = _heap(frame)
        following, allocated = _pair(heap, 0)
        if not 0 < size <= HEAP_LIMIT - allocated:
            return 0
        begin = -(-(max(following, _HEADER) + _HEADER) // alignment) * alignment
        end = -(-(begin + size) // _HEADER) * _HEADER
        if end > heap.size:
            block, thread = frame.machine.place_of(lane)
            what = f"cannot execute malloc (more than {HEAP_BYTES >> 20} MiB in all, and no address is given twice)"
            message = f"block {block} thread {thread}: {what}; {frame.machine.describe(self.instruction)}"
            raise UnknownOpcode.of(self.instruction, message, block, thread)
        _set_pair(heap, 0, end, allocated + size)
        _set_pair(heap, begin - _HEADER, size, _LIVE)
        return heap.base + begin


@dataclass(frozen=True)
class Free:
    """`free`: of a null pointer it does nothing."""

    instruction: Instruction

    def __call__(self, frame: Frame, address: Array, guard: Array | None) -> None:
        """Raises MisuseError where no allocation begins, or one that was freed."""
        heap = _heap(frame)
        _, lanes, addresses = frame.select(address, guard)
        for lane, place in zip(lanes, addresses, strict=True):
            begin = int(place) - heap.base
            if int(place) == 0:
                continue
            known = _HEADER < begin < heap.size and begin % _HEADER == 0
            size, state = _pair(heap, begin - _HEADER) if known and _unwritten(heap, begin - _HEADER) else (0, 0)
            if state not in (_LIVE, _FREED):
                what = f"free of 0x{int(place):X}, where no allocation of malloc begins"
                raise frame.machine.misuse(self.instruction, int(lane), what)
            if state == _FREED:
                what = f"free of 0x{int(place):X}, which was freed before"
                raise frame.machine.misuse(self.instruction, int(lane), what)
            following, allocated = _pair(heap, 0)
            _set_pair(heap, 0, following, allocated - size)
            _set_pair(heap, begin - _HEADER, size, _FREED)
            heap.forget(begin, size)


def _heap(frame: Frame) -> Region:
    heap: Region | None = frame.machine.launch.heap
    assert heap is not None
    return heap


def _unwritten(heap: Region, begin: int) -> bool:
    return heap.valid is None or not heap.valid[begin : begin + _HEADER].any()


def _pair(heap: Region, begin: int) -> tuple[int, int]:
    first, second = heap.words(8)[begin // 8 : begin // 8 + 2]
    return int(first), int(second)


def _set_pair(heap: Region, begin: int, first: int, second: int) -> None:
    heap.write(8, np.arange(begin // 8, begin // 8 + 2), np.array([first, second], np.uint64))
    heap.forget(begin, _HEADER)
