"""`ldmatrix` and `stmatrix`: 8 x 8 matrices of 16-bit cells between shared memory and the lanes of a warp.

Lane 8 j + r passes the address of row r of matrix j, 16 bytes. With g = lane / 4 and t = lane % 4, register j of a lane
holds of matrix j

    row g, cells 2t and 2t + 1                 as stored
    rows 2t and 2t + 1, cell g                 .trans

the first of the two in the low half. For races, the lane that a word of four bytes goes to, or comes from, is the one
that reads or writes it, not the one that passes its address; with .trans two lanes share a word, and the first of them
stands for both.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from refmoe.ptx.access import Access, Store
from refmoe.ptx.errors import WarpError
from refmoe.ptx.syntax import Instruction

if TYPE_CHECKING:
    from refmoe.ptx.frame import Frame

__all__ = ["LoadMatrix", "StoreMatrix", "whole_warps"]

Array = Any
_ROWS = 8


def whole_warps(frame: Frame, instruction: Instruction) -> None:
    """Raise WarpError unless all lanes of each warp take part, as `.sync.aligned` demands."""
    lanes = frame.mask.reshape(-1, 32).sum(axis=1)
    broken = (lanes != 0) & (lanes != 32)
    if broken.any():
        machine = frame.machine
        warp = int(np.argmax(broken))
        block, thread = machine.place_of(warp * 32 + int(np.argmax(frame.mask.reshape(-1, 32)[warp])))
        raise WarpError(
            f"block {block} thread {thread}: {int(lanes[warp])} lanes of its warp take part, 32 must; "
            f"{machine.describe(instruction)}",
            block=block,
            thread=thread,
            line=instruction.line,
            source=instruction.source,
            text=instruction.text,
        )


def _words(lanes: Array, index: Array, transposed: bool) -> tuple[Array, Array]:
    """The words of the rows at byte `index` [n], whose addresses `lanes` [n] pass: (byte index, lane), each [4 n]."""
    row, word = lanes % _ROWS, np.arange(4)
    holder = word * 8 + (row // 2)[:, None] if transposed else row[:, None] * 4 + word
    return (index[:, None] + word * 4).ravel(), ((lanes & ~31)[:, None] + holder).ravel()


@dataclass(frozen=True)
class LoadMatrix:
    """`ldmatrix`, `count` matrices. `row`, `word`: the accesses of a row and of a word of it."""

    row: Access
    word: Access
    count: int
    transposed: bool

    def __call__(self, frame: Frame, address: Array) -> tuple[Array, ...]:
        """The registers of each lane, uint32.

        Raises:
            WarpError: not all lanes of a warp are here.
        """
        whole_warps(frame, self.row.instruction)
        where, lanes, chosen = frame.select(address, None)
        # Lanes beyond the last matrix pass addresses that are not used.
        used = lanes % 32 < _ROWS * self.count
        rows = self._read(frame, chosen[used], lanes[used])
        matrices = rows.reshape(-1, self.count, _ROWS, 8).transpose(1, 0, 2, 3)
        if self.transposed:
            matrices = matrices.transpose(0, 1, 3, 2)
        # Two neighbouring cells are a register, and the registers of a matrix are in the order of lanes.
        registers = np.ascontiguousarray(matrices).view(np.uint32).reshape(self.count, -1)
        if where is None:
            return tuple(registers)
        result = np.zeros((self.count, frame.count), np.uint32)
        result[:, where] = registers
        return tuple(result)

    def _read(self, frame: Frame, address: Array, lanes: Array) -> Array:
        """The cells of each row, uint16 [n, 8]."""
        rows = np.empty((len(lanes), 2), np.uint64)
        for region, which, index in self.row._parts(frame, address, lanes):
            theirs = lanes if which is None else lanes[which]
            self.row._check_valid(frame, region, index, theirs)
            if region.shadow is not None:
                region.shadow.read(frame, self.word, region, *_words(theirs, index, self.transposed))
            rows[slice(None) if which is None else which] = region.words(16).take(index // 16, axis=0)
        return rows.view(np.uint16)


@dataclass(frozen=True)
class StoreMatrix:
    """`stmatrix`, `count` matrices. `row`, `word`: the accesses of a row and of a word of it."""

    row: Store
    word: Store
    count: int
    transposed: bool

    def __call__(self, frame: Frame, address: Array, registers: tuple[Array, ...]) -> None:
        """Store the matrices that the lanes hold.

        Raises:
            WarpError: not all lanes of a warp are here.
        """
        whole_warps(frame, self.row.instruction)
        where, lanes, chosen = frame.select(address, None)
        spread = [frame.spread(register) for register in registers]
        held = np.stack(spread if where is None else [register[where] for register in spread])
        matrices = held.view(np.uint16).reshape(self.count, -1, _ROWS, 8)
        if self.transposed:
            matrices = matrices.transpose(0, 1, 3, 2)
        rows = np.ascontiguousarray(matrices.transpose(1, 0, 2, 3)).view(np.uint64).reshape(-1, 2)
        used = lanes % 32 < _ROWS * self.count
        self._write(frame, chosen[used], lanes[used], rows)

    def _write(self, frame: Frame, address: Array, lanes: Array, rows: Array) -> None:
        frame.machine.progress()
        for region, which, index in self.row._parts(frame, address, lanes):
            theirs, mine = (lanes, rows) if which is None else (lanes[which], rows[which])
            self.row._check_writable(frame, region, index, theirs)
            at, who = _words(theirs, index, self.transposed)
            words = mine.view(np.uint32).ravel()
            if region.shadow is not None:
                region.shadow.before_write(frame, self.word, region, at, who, words)
            region.words(16)[index // 16] = mine
            if region.shadow is not None:
                region.shadow.after_write(frame, self.word, region, at, who, words)
            if region.valid is not None:
                region.words(16, of_valid=True)[index // 16] = np.iinfo(np.uint64).max
