"""`ldmatrix` and `stmatrix`: small matrices between shared memory and the lanes of a warp.

Lane 8 j + r passes the address of row r of matrix j, 16 bytes. With g = lane / 4 and t = lane % 4, register j of a lane
holds of matrix j, the first in the low bits,

    m8n8, 16-bit cells      row g, cells 2t and 2t + 1             as stored
                            rows 2t and 2t + 1, cell g             .trans
    m8n16, bytes            row g, bytes 4t .. 4t + 3              (ldmatrix, of a packed row: see `Packing`)
    m16n16, bytes           rows 4t .. 4t + 3, byte g              .trans (ldmatrix, packed or not), register 2j
                            rows 4t .. 4t + 3, byte g + 8          register 2j + 1
    m16n8, bytes            rows 2t and 2t + 1, byte g             .trans (stmatrix)
                            rows 2t and 2t + 1, byte g + 8

where the rows are those in shared memory, so that the register of m16n8, whose matrix has 16 rows and is stored by
columns, is a fragment C of `mma.m16n8`: cells (g, 2t), (g, 2t + 1), (g + 8, 2t), (g + 8, 2t + 1). A matrix of m16n16
has 16 rows: lane 16 j + r passes the address of row r. Its registers are fragments B of `mma.m16n8k32`.

For races, the lane that a word of four bytes goes to, or comes from, is the one that reads or writes it, not the one
that passes its address; where lanes share a word, the first of them stands for all.

(PTX ISA, "ldmatrix" and "stmatrix"; m16n8 as in CuTe's copy_traits_sm100.hpp, SM100_U8x4_STSM_T, and m16n16 as in
SM100_U8x8_LDSM_T there, whose code puts the two registers in another order before its layout holds.)
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from refmoe.ptx.engine.frame import Frame
from refmoe.ptx.engine.loads_and_stores import Access, Store
from refmoe.ptx.engine.races import shadow_of
from refmoe.ptx.errors import WarpError
from refmoe.ptx.text.syntax import Instruction

Array = Any
_ROWS = 8


def whole_warps(frame: Frame, instruction: Instruction) -> None:
    """Raise WarpError unless all lanes of each warp take part, as `.sync.aligned` demands."""
    lanes = frame.mask.reshape(-1, 32).sum(axis=1)
    broken = (lanes != 0) & (lanes != 32)
    if broken.any():
        warp = int(np.argmax(broken))
        lane = warp * 32 + np.argmax(frame.mask.reshape(-1, 32)[warp])
        what = f"{int(lanes[warp])} lanes of its warp take part, 32 must"
        raise frame.machine.error(WarpError, instruction, lane, what)


@dataclass(frozen=True)
class WholeWarp:
    """What an instruction asks that all lanes of a warp run: `wmma.load` and `wmma.store`."""

    instruction: Instruction

    def __call__(self, frame: Frame) -> None:
        """Raises WarpError: not all lanes of a warp are here."""
        whole_warps(frame, self.instruction)


def transposed(words: Array) -> Array:
    """Of each warp, 32 words, a matrix of 8x8 halves: lane 4 r + c has elements 2 c and 2 c + 1 of row r."""
    matrices = np.ascontiguousarray(words, np.uint32).view("<u2").reshape(-1, 8, 8)
    return np.ascontiguousarray(matrices.transpose(0, 2, 1)).view("<u4").ravel()


@dataclass(frozen=True)
class MoveMatrix:
    """`movmatrix.sync.aligned.m8n8.trans.b16`."""

    instruction: Instruction

    def __call__(self, frame: Frame, a: Array) -> Array:
        """Raises WarpError: not all lanes of a warp are here."""
        whole_warps(frame, self.instruction)
        return frame.from_all(transposed(frame.to_all(a)))


@dataclass(frozen=True)
class Packing:
    """Sixteen elements of `bits` bits at the start of a row, the first in the lowest bits, then padding to 16 bytes.

    ldmatrix makes a byte of each, the element in its low bits and zeros above, and never reads the padding.
    """

    bits: int

    @property
    def words(self) -> int:
        """Words of four bytes that hold elements."""
        return self.bits // 2

    def unpack(self, rows: Array) -> Array:
        """uint8 [n, 16] of rows as they are in memory, uint8 [n, 16]."""
        if self.bits == 4:
            low, high = rows[:, :8] & np.uint8(15), rows[:, :8] >> np.uint8(4)
            return np.stack([low, high], axis=2).reshape(-1, 16)
        # Four elements of 6 bits are three bytes.
        three = rows[:, :12].astype(np.uint32).reshape(-1, 4, 3)
        whole = three[:, :, 0] | three[:, :, 1] << np.uint32(8) | three[:, :, 2] << np.uint32(16)
        shifts = np.arange(4, dtype=np.uint32) * np.uint32(6)
        return (whole[:, :, None] >> shifts & np.uint32(63)).astype(np.uint8).reshape(-1, 16)


PACKINGS = {"b4x16_p64": Packing(4), "b6x16_p32": Packing(6)}


def _words(
    lanes: Array, index: Array, transposed: bool, packing: Packing | None = None, square: bool = False
) -> tuple[Array, Array]:
    """The words of the rows at byte `index` [n], whose addresses `lanes` [n] pass: (byte index, lane), each [w n]."""
    row, word = lanes % (2 * _ROWS if square else _ROWS), np.arange(4 if packing is None else packing.words)
    # The lane of a packed word is that of the first element with a bit in it.
    first = word * 32 // (8 if packing is None else packing.bits)
    if square:
        holder = first % 8 * 4 + (row // 4)[:, None]
    else:
        holder = word * 8 + (row // 2)[:, None] if transposed else row[:, None] * 4 + first // 4
    return (index[:, None] + word * 4).ravel(), ((lanes & ~31)[:, None] + holder).ravel()


@dataclass(frozen=True)
class LoadMatrix:
    """`ldmatrix`, `count` matrices.

    Attributes:
        row, word: the accesses of a row and of a word of it.
        count: matrices.
        transposed: `.trans`.
        packing: of packed rows, or None.
        square: m16n16 of bytes, which is always transposed, instead of m8n8 or m8n16.
    """

    row: Access
    word: Access
    count: int
    transposed: bool
    packing: Packing | None = None
    square: bool = False

    @property
    def addresses(self) -> int:
        """Lanes of a warp that pass the address of a row."""
        return (2 * _ROWS if self.square else _ROWS) * self.count

    @property
    def registers(self) -> int:
        """Registers that a lane gets."""
        return 2 * self.count if self.square else self.count

    def __call__(self, frame: Frame, address: Array) -> tuple[Array, ...]:
        """The registers of each lane, uint32.

        Raises:
            WarpError: not all lanes of a warp are here.
        """
        whole_warps(frame, self.row.instruction)
        where, lanes, chosen = frame.select(address, None)
        # Lanes beyond the last matrix pass addresses that are not used.
        used = lanes % 32 < self.addresses
        registers = self.deal(self._read(frame, chosen[used], lanes[used]))
        if where is None:
            return tuple(registers)
        result = np.zeros((self.registers, frame.count), np.uint32)
        result[:, where] = registers
        return tuple(result)

    def deal(self, rows: Array) -> Array:
        """The registers uint32 [registers, lanes] of whole warps, of the rows as they are in memory, uint16 [n, 8]."""
        if self.packing is not None:
            rows = self.packing.unpack(rows.view(np.uint8)).view(np.uint16)
        if self.square:
            # [warp, matrix, t, row 4t + i, byte g or g + 8] -> [matrix, register, warp, g, t, i]
            split = rows.view(np.uint8).reshape(-1, self.count, 4, 4, 2, 8)
            return np.ascontiguousarray(split.transpose(1, 4, 0, 5, 2, 3)).view(np.uint32).reshape(self.registers, -1)
        matrices = rows.reshape(-1, self.count, _ROWS, 8).transpose(1, 0, 2, 3)
        if self.transposed:
            matrices = matrices.transpose(0, 1, 3, 2)
        # Two neighbouring cells are a register, and the registers of a matrix are in the order of lanes.
        return np.ascontiguousarray(matrices).view(np.uint32).reshape(self.count, -1)

    def _read(self, frame: Frame, address: Array, lanes: Array) -> Array:
        """The cells of each row, uint16 [n, 8]."""
        rows = np.empty((len(lanes), 2), np.uint64)
        for region, which, index in self.row._parts(frame, address, lanes):
            theirs = lanes if which is None else lanes[which]
            if self.packing is None:
                self.row._check_valid(frame, region, index, theirs)
            else:
                at, _ = self._words(index, theirs)
                self.word._check_valid(frame, region, at, np.repeat(theirs, self.packing.words))
            if region.shadow is not None:
                shadow_of(region).read_rows(frame, self.word, region, index, theirs, self._words)
            if frame.machine.undefined is not None:
                frame.machine.undefined.loaded(self.row, region, index, theirs, which, len(lanes))
            rows[slice(None) if which is None else which] = region.read(16, index // 16)
        return rows.view(np.uint16)

    def _words(self, index: Array, lanes: Array) -> tuple[Array, Array]:
        return _words(lanes, index, self.transposed, self.packing, self.square)


@dataclass(frozen=True)
class StoreMatrix:
    """`stmatrix`, `count` matrices.

    Attributes:
        row, word: the accesses of a row and of a word of it.
        count: matrices.
        transposed: `.trans`.
        of_bytes: m16n8 of bytes, which is always transposed, instead of m8n8.
    """

    row: Store
    word: Store
    count: int
    transposed: bool
    of_bytes: bool = False

    @property
    def addresses(self) -> int:
        """Lanes of a warp that pass the address of a row."""
        return _ROWS * self.count

    @property
    def registers(self) -> int:
        """Registers that a lane gives."""
        return self.count

    def __call__(self, frame: Frame, address: Array, registers: tuple[Array, ...]) -> None:
        """Store the matrices that the lanes hold.

        Raises:
            WarpError: not all lanes of a warp are here.
        """
        whole_warps(frame, self.row.instruction)
        where, lanes, chosen = frame.select(address, None)
        spread = [frame.spread(register) for register in registers]
        rows = self.gather(np.stack(spread if where is None else [register[where] for register in spread]))
        used = lanes % 32 < self.addresses
        self._write(frame, chosen[used], lanes[used], rows)

    def gather(self, held: Array) -> Array:
        """The rows uint64 [n, 2] as they are in memory, of the registers uint32 [count, lanes] of whole warps."""
        if self.of_bytes:
            # [matrix, warp, g, t, byte g or g + 8, row 2t or 2t + 1] -> [matrix, warp, row, byte]
            split = held.view(np.uint8).reshape(self.count, -1, 8, 4, 2, 2)
            matrices = split.transpose(0, 1, 3, 5, 4, 2).reshape(self.count, -1, _ROWS, 16)
        else:
            matrices = held.view(np.uint16).reshape(self.count, -1, _ROWS, 8)
            if self.transposed:
                matrices = matrices.transpose(0, 1, 3, 2)
        return np.ascontiguousarray(matrices.transpose(1, 0, 2, 3)).view(np.uint64).reshape(-1, 2)

    def _write(self, frame: Frame, address: Array, lanes: Array, rows: Array) -> None:
        frame.machine.progress()
        for region, which, index in self.row._parts(frame, address, lanes):
            theirs, mine = (lanes, rows) if which is None else (lanes[which], rows[which])
            self.row._check_writable(frame, region, index, theirs)
            at, who = _words(theirs, index, self.transposed)
            words = mine.view(np.uint32).ravel()
            if region.shadow is not None:
                shadow_of(region).before_write(frame, self.word, region, at, who, words)
            region.write(16, index // 16, mine)
            if frame.machine.undefined is not None:
                frame.machine.undefined.stored(self.row, region, index, theirs, which)
            if region.shadow is not None:
                shadow_of(region).after_write(frame, self.word, region, at, who, words)
