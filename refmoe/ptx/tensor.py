"""`mma.sync`: fragments of a warp's registers to matrices and back, the arithmetic by an accumulation model.

D [16, 8] = A [16, K] * B [K, 8] + C [16, 8]. With g = lane / 4, t = lane % 4, and p elements in a 32-bit register
(2 of 16 bits, 4 of 8 bits, 8 of 4 bits, 1 of TF32), the element in the low bits first:

         k   0 .. p-1 | p .. 2p-1 | 2p .. 3p-1 | 3p .. 4p-1 | 4p .. 5p-1 | ...
    lane t:      0          1           2            3            0        ...
    A  row g     a[0]                                              a[2]
       row g+8   a[1]                                              a[3]
    B  column g  b[0]                                              b[1]

    C  row g    columns 2t, 2t+1:  c[0], c[1]     FP32, a register each
       row g+8  columns 2t, 2t+1:  c[2], c[3]

E2M1 elements sit in bits 2..5 of a byte each, but in kind::mxf4nvf4, which packs two. With block scales a 32-bit
register holds four bytes, of which `byte` chooses one E8M0; all four are UE4M3 scales, one for every 16 of K, with
scale_vec::4X. A's scales come from two lanes of each quad, B's from one, which `thread` chooses:

    A  thread 0:  lane 4g holds row g, lane 4g+1 row g+8          B  thread i:  lane 4g+i holds column g
       thread 1:  lane 4g+2        row g, lane 4g+3 row g+8

(PTX ISA, "Matrix fragments for mma.m16n8k32" and its neighbours, "Block scaling".)
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from refmoe.ptx.errors import MisuseError
from refmoe.ptx.matrix import whole_warps
from refmoe.ptx.syntax import Instruction
from refmoe.reference.mma import tensor_core_mma

if TYPE_CHECKING:
    from refmoe.ptx.frame import Frame

__all__ = ["Mma", "Scales"]

Array = Any
ROWS, COLUMNS, QUADS, QUAD = 16, 8, 8, 4


def a_matrix(registers: tuple[Array, ...], bits: int) -> Array:
    """Fragments uint32 [lanes] of A to [warps, 16, K] unsigned integers of `bits`."""
    elements = _elements(registers, bits)
    warps, halves, per_register = elements.shape[0], len(registers) // 2, 32 // bits
    # [warp, g, t, half of K, upper or lower row, element] -> [warp, row, k]
    split = elements.reshape(warps, QUADS, QUAD, halves, 2, per_register)
    return split.transpose(0, 4, 1, 3, 2, 5).reshape(warps, ROWS, -1)


def b_matrix(registers: tuple[Array, ...], bits: int) -> Array:
    """Fragments uint32 [lanes] of B to [warps, 8, K], column by column."""
    elements = _elements(registers, bits)
    warps, per_register = elements.shape[0], 32 // bits
    split = elements.reshape(warps, QUADS, QUAD, len(registers), per_register)
    return split.transpose(0, 1, 3, 2, 4).reshape(warps, COLUMNS, -1)


def c_matrix(registers: tuple[Array, ...]) -> Array:
    """Four FP32 registers uint32 [lanes] to float32 [warps, 16, 8]."""
    held = np.stack(registers, axis=1).view(np.float32).reshape(-1, QUADS, QUAD, 2, 2)
    return np.ascontiguousarray(held.transpose(0, 3, 1, 2, 4)).reshape(-1, ROWS, COLUMNS)


def c_registers(matrix: Array) -> Array:
    """The reverse of `c_matrix`: uint32 [4, lanes]."""
    held = matrix.view(np.uint32).reshape(-1, 2, QUADS, QUAD, 2).transpose(1, 4, 0, 2, 3)
    return held.reshape(4, -1)


def _elements(registers: tuple[Array, ...], bits: int) -> Array:
    """[warps, 32, elements] of the registers of each lane, in their order."""
    if bits == 4:
        pairs = np.stack(registers, axis=1).view(np.uint8)
        return np.stack([pairs & np.uint8(15), pairs >> np.uint8(4)], axis=-1).reshape(-1, 32, len(registers) * 8)
    return np.stack(registers, axis=1).view(np.dtype(f"u{bits // 8}")).reshape(-1, 32, len(registers) * 32 // bits)


@dataclass(frozen=True)
class Scales:
    """One scale operand: which lanes of a quad hold the scales of `rows` rows (A: 16, B: 8), `count` of a row."""

    rows: int
    count: int = 1

    def __call__(self, word: Array, byte: Array, thread: Array) -> Array:
        """uint8 [warps, rows, count] of registers [lanes]; ValueError names a selector out of its range.

        Selectors are the same in all lanes of a warp: [lanes], or one for all warps.
        """
        lanes = self.rows // QUADS
        for name, value, most in (("byte-id", byte, 5 - self.count), ("thread-id", thread, QUAD // lanes)):
            if np.max(value) >= most:
                raise ValueError(f"a {name} of {int(np.max(value))}, not {f'0 to {most - 1}' if most > 1 else '0'}")
        if self.count == 1:
            chosen = (word >> (np.asarray(byte, np.uint32) * np.uint32(8))).astype(np.uint8)
        else:
            chosen = np.ascontiguousarray(word).view(np.uint8)
        quads = chosen.reshape(-1, QUADS, QUAD, self.count)
        if np.ndim(thread) == 0:
            held = quads[:, :, int(thread) * lanes : (int(thread) + 1) * lanes]
        else:
            first = thread.reshape(-1, 32)[:, :1, None, None].astype(np.int64) * lanes
            held = np.take_along_axis(quads, first + np.arange(lanes)[:, None], axis=2)
        return held.transpose(0, 2, 1, 3).reshape(-1, self.rows, self.count)


@dataclass(frozen=True)
class Mma:
    """One `mma` spelling with FP32 accumulators.

    Attributes:
        instruction: for messages.
        model: the name of the accumulation model.
        a_format, b_format: names of element formats.
        scales: block scales of a row that follow, 0 for none.
        packed: whether a byte holds two elements of 4 bits.
    """

    instruction: Instruction
    model: str
    a_format: str
    b_format: str
    scales: int
    packed: bool

    def __call__(
        self,
        frame: Frame,
        a: tuple[Array, ...],
        b: tuple[Array, ...],
        c: tuple[Array, ...],
        scales: tuple[Array, ...],
    ) -> tuple[Array, ...]:
        """The registers of D.

        Args:
            frame: whole warps.
            a: registers of A.
            b: registers of B.
            c: registers of C.
            scales: A's register, byte and thread, then B's; empty without scales.

        Raises:
            WarpError: not all lanes of a warp are here.
            MisuseError: a selector out of its range, or not the same in the whole warp.
        """
        whole_warps(frame, self.instruction)
        where = frame.where(None)

        def acting(values: tuple[Array, ...]) -> tuple[Array, ...]:
            spread = [frame.spread(value) for value in values]
            return tuple(spread if where is None else [value[where] for value in spread])

        a_scales, b_scales = None, None
        if self.scales:
            # Selectors are constants as a rule, and then nothing needs to be compared.
            a_scales, b_scales = self._scales(
                frame,
                tuple(
                    value if position % 3 and np.ndim(value) == 0 else acting((value,))[0]
                    for position, value in enumerate(scales)
                ),
            )
        result = c_registers(
            tensor_core_mma(
                self._codes(a_matrix(acting(a), self._bits(self.a_format)), self.a_format),
                self._codes(b_matrix(acting(b), self._bits(self.b_format)), self.b_format),
                c_matrix(acting(c)),
                model=self.model,
                a_format=self.a_format,
                b_format=self.b_format,
                a_scales=a_scales,
                b_scales=b_scales,
            )
        )
        if where is None:
            return tuple(result)
        whole = np.zeros((4, frame.count), np.uint32)
        whole[:, where] = result
        return tuple(whole)

    def _scales(self, frame: Frame, operands: tuple[Array, ...]) -> tuple[Array, Array]:
        a_word, a_byte, a_thread, b_word, b_byte, b_thread = operands
        try:
            for selector in (a_byte, a_thread, b_byte, b_thread):
                if np.ndim(selector) == 0:
                    continue
                of_warps = selector.reshape(-1, 32)
                if (of_warps != of_warps[:, :1]).any():
                    raise ValueError("a selector of scales that differs between the lanes of a warp")
            a_scales = Scales(ROWS, self.scales)(a_word, a_byte, a_thread)
            return a_scales, Scales(COLUMNS, self.scales)(b_word, b_byte, b_thread)
        except ValueError as error:
            machine, instruction = frame.machine, self.instruction
            block, thread = machine.place_of(int(np.argmax(frame.mask)))
            raise MisuseError(
                f"block {block} thread {thread}: {error}; {machine.describe(instruction)}",
                block=block,
                thread=thread,
                line=instruction.line,
                source=instruction.source,
                text=instruction.text,
            ) from error

    def _bits(self, name: str) -> int:
        """Bits that an element takes in a register."""
        return {"bf16": 16, "f16": 16, "tf32": 32}.get(name, 4 if self.packed else 8)

    def _codes(self, elements: Array, name: str) -> Array:
        """Codes of elements as they stand in a register."""
        return elements >> np.uint8(2) & np.uint8(15) if name == "e2m1" and not self.packed else elements
