"""`ldmatrix` and `stmatrix`: 8 x 8 matrices of 16-bit cells between shared memory and the lanes of a warp.

Lane 8 j + r passes the address of row r of matrix j, 16 bytes. With g = lane / 4 and t = lane % 4, register j of a lane
holds of matrix j

    row g, cells 2t and 2t + 1                 as stored
    rows 2t and 2t + 1, cell g                 .trans

the first of the two in the low half.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from refmoe.ptx.access import Load, Store
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


@dataclass(frozen=True)
class LoadMatrix:
    """`ldmatrix`, `count` matrices."""

    load: Load
    count: int
    transposed: bool

    def __call__(self, frame: Frame, address: Array) -> tuple[Array, ...]:
        """The registers of each lane, uint32.

        Raises:
            WarpError: not all lanes of a warp are here.
        """
        whole_warps(frame, self.load.instruction)
        where, lanes, chosen = frame.select(address, None)
        # Lanes beyond the last matrix pass addresses that are not used.
        used = lanes % 32 < _ROWS * self.count
        cells = self.load._read(frame, chosen[used], lanes[used])
        warps = len(lanes) // 32
        # [cell of the row, warp, matrix, row] -> [matrix, warp, row, cell]
        matrices = cells.reshape(8, warps, self.count, _ROWS).transpose(2, 1, 3, 0)
        if self.transposed:
            matrices = matrices.transpose(0, 1, 3, 2)
        # Two neighbouring cells are a register, and registers in rows are in the order of lanes.
        registers = np.ascontiguousarray(matrices).view(np.uint32).reshape(self.count, warps * 32)
        if where is None:
            return tuple(registers)
        result = np.zeros((self.count, frame.count), np.uint32)
        result[:, where] = registers
        return tuple(result)


@dataclass(frozen=True)
class StoreMatrix:
    """`stmatrix`, `count` matrices."""

    store: Store
    count: int
    transposed: bool

    def __call__(self, frame: Frame, address: Array, registers: tuple[Array, ...]) -> None:
        """Store the matrices that the lanes hold.

        Raises:
            WarpError: not all lanes of a warp are here.
        """
        whole_warps(frame, self.store.instruction)
        held = np.stack([np.broadcast_to(register, (frame.count,)) for register in registers])
        warps = frame.count // 32
        matrices = held.view(np.uint16).reshape(self.count, warps, _ROWS, 8)
        if self.transposed:
            matrices = matrices.transpose(0, 1, 3, 2)
        # [warp, matrix, row, cell] -> a row for each lane
        rows = np.zeros((warps, 32, 8), np.uint16)
        rows[:, : _ROWS * self.count] = matrices.transpose(1, 0, 2, 3).reshape(warps, -1, 8)
        words = rows.view(np.uint64).reshape(frame.count, 2)
        used = np.arange(frame.count) % 32 < _ROWS * self.count
        spread = np.broadcast_to(address, (frame.count,))
        self.store(frame, spread, None if used.all() else used, (words[:, 0], words[:, 1]))
