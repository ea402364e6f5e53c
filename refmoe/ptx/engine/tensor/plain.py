"""`mma.sync` that needs no accumulation model of its own: of integers, bits, FP64, and of FP16 with FP16 accumulators.

D [M, 8] = A [M, K] * B [K, 8] + C [M, 8], M 8 or 16. With g = lane / 4, t = lane % 4, and p elements in a register (8
of 4 bits, 4 of 8, 32 single bits, 2 of FP16, one of FP64), the element in the low bits first, register i holds

    A, M = 16   row g + 8 (i % 2), columns p (t + 4 (i / 2)) ..       C, M = 16   row g + 8 (i / 2), column 2t + i % 2
    A, M = 8    row g, columns p (t + 4 i) ..                         C, M = 8    row g, column 2t + i
    B           rows p (t + 4 i) .., column g

(PTX ISA, "Matrix fragments for mma.m8n8k4" and its neighbours.) C of FP16 packs two neighbouring columns in a register.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from refmoe.ptx import isa
from refmoe.ptx.engine.frame import Frame
from refmoe.ptx.engine.tensor.matrix import whole_warps
from refmoe.ptx.engine.tensor.mma import a_matrix, b_matrix
from refmoe.ptx.text.syntax import Instruction
from refmoe.reference.mma import tensor_core_mma

Array = Any
_QUADS, _QUAD, _COLUMNS = 8, 4, 8
_FP16_NAN = 0x7FFF


def spread_matrix(held: Array, rows: int) -> Array:
    """Elements [registers, lanes, p] of A, or of B with `rows` 8, to [warps, rows, K]; B column by column."""
    registers, lanes, each = held.shape
    upper = rows // _QUADS
    split = held.reshape(registers // upper, upper, lanes // 32, _QUADS, _QUAD, each)
    return split.transpose(2, 1, 3, 0, 4, 5).reshape(lanes // 32, rows, -1)


def sums_matrix(held: Array) -> Array:
    """Registers [n, lanes] of C to [warps, M, 8]; n is 2 for M = 8, and 4 for M = 16."""
    registers, lanes = held.shape
    split = held.reshape(registers // 2, 2, lanes // 32, _QUADS, _QUAD)
    return split.transpose(2, 0, 3, 4, 1).reshape(lanes // 32, -1, _COLUMNS)


def sums_registers(matrix: Array) -> Array:
    """The reverse of `sums_matrix`."""
    split = matrix.reshape(matrix.shape[0], -1, _QUADS, _QUAD, 2)
    return split.transpose(1, 4, 0, 2, 3).reshape(-1, matrix.shape[0] * 32)


def integers(registers: Array, bits: int, *, signed: bool) -> Array:
    """float64 [registers, lanes, p]: the integers of `bits` bits in registers uint32 [registers, lanes]."""
    held = np.ascontiguousarray(registers)
    if bits == 1:
        split = np.unpackbits(held.view(np.uint8).reshape(*held.shape, 4), axis=2, bitorder="little")
    elif bits == 4:
        pairs = held.view(np.uint8).reshape(*held.shape, 4)
        split = np.stack([pairs & np.uint8(15), pairs >> np.uint8(4)], axis=-1).reshape(*held.shape, 8)
    else:
        split = held.view(np.uint8).reshape(*held.shape, 4)
    values = split.astype(np.float64)
    # Two's complement: from half of the range on, numbers are negative.
    return np.where(values >= 1 << (bits - 1), values - (1 << bits), values) if signed else values


@dataclass(frozen=True)
class IntegerMma:
    """`mma` of integers or of bits with 32-bit accumulators: exact, and then wrapped or clamped to 32 bits.

    Attributes:
        instruction: for messages.
        rows: M.
        bits: of an element: 8, 4 or 1.
        a_signed, b_signed: whether elements are in two's complement.
        saturates: `.satfinite`.
        exclusive: of single bits, whether a product is their difference (`.xor`), and not their conjunction.
    """

    instruction: Instruction
    rows: int
    bits: int
    a_signed: bool = False
    b_signed: bool = False
    saturates: bool = False
    exclusive: bool = False

    def __call__(
        self, frame: Frame, a: tuple[Array, ...], b: tuple[Array, ...], c: tuple[Array, ...]
    ) -> tuple[Array, ...]:
        """D's registers uint32 [lanes] of those of A, B and C.

        Raises:
            WarpError: not all lanes of a warp are here.
        """
        whole_warps(frame, self.instruction)
        x = spread_matrix(integers(_stacked(frame, a), self.bits, signed=self.a_signed), self.rows)
        y = spread_matrix(integers(_stacked(frame, b), self.bits, signed=self.b_signed), _COLUMNS)
        # A sum of at most 256 products of 16 bits is exact in FP64.
        total = (x @ y.transpose(0, 2, 1)).astype(np.int64)
        if self.exclusive:
            ones = x.sum(axis=2)[:, :, None] + y.sum(axis=2)[:, None, :]
            total = ones.astype(np.int64) - 2 * total
        total += sums_matrix(_stacked(frame, c).view(np.int32))
        if self.saturates:
            total = np.clip(total, -(1 << 31), (1 << 31) - 1)
        return tuple(sums_registers(total.astype(np.uint32)))


@dataclass(frozen=True)
class DoubleMma:
    """`mma` of FP64: fused multiply-adds onto C, k ascending, each rounded.

    PTX leaves the order open, and this one is not checked on a chip.

    Attributes:
        instruction: for messages.
        rows: M.
        rounding: of each step, `"rn"`, `"rz"`, `"rm"` or `"rp"`.
    """

    instruction: Instruction
    rows: int
    rounding: str

    def __call__(
        self, frame: Frame, a: tuple[Array, ...], b: tuple[Array, ...], c: tuple[Array, ...]
    ) -> tuple[Array, ...]:
        """D's registers uint64 [lanes] of those of A, B and C.

        Raises:
            WarpError: not all lanes of a warp are here.
        """
        whole_warps(frame, self.instruction)
        fma = isa.resolve(f"fma.{self.rounding}.f64").function
        x = spread_matrix(_stacked(frame, a)[:, :, None], self.rows)
        y = spread_matrix(_stacked(frame, b)[:, :, None], _COLUMNS)
        total = np.ascontiguousarray(sums_matrix(_stacked(frame, c)))
        for k in range(x.shape[2]):
            left, right = np.broadcast_arrays(x[:, :, k, None], y[:, None, :, k])
            total = fma(np.ascontiguousarray(left), np.ascontiguousarray(right), total)
        return tuple(sums_registers(total))


@dataclass(frozen=True)
class HalfMma:
    """`mma.m16n8k16` of FP16 with FP16 accumulators.

    Attributes:
        instruction: for messages.
        model: name of the accumulation model.
    """

    instruction: Instruction
    model: str

    def __call__(
        self, frame: Frame, a: tuple[Array, ...], b: tuple[Array, ...], c: tuple[Array, ...]
    ) -> tuple[Array, ...]:
        """D's registers uint32 [lanes] of those of A, B and C.

        Raises:
            WarpError: not all lanes of a warp are here.
        """
        whole_warps(frame, self.instruction)
        x = a_matrix(tuple(_stacked(frame, a)), 16)
        y = b_matrix(tuple(_stacked(frame, b)), 16)
        pairs = np.ascontiguousarray(_stacked(frame, c)).view(np.float16).reshape(len(c), -1, 2)
        held = pairs.transpose(0, 2, 1).reshape(2 * len(c), -1).astype(np.float32)
        sums = np.ascontiguousarray(sums_matrix(held))
        product = tensor_core_mma(x, y, sums, model=self.model, a_format="f16", b_format="f16")
        codes = product.astype(np.float16).view(np.uint16)
        codes[np.isnan(product)] = _FP16_NAN
        low_and_high = sums_registers(codes).reshape(len(c), 2, -1).transpose(0, 2, 1)
        return tuple(np.ascontiguousarray(low_and_high).view(np.uint32).reshape(len(c), -1))


def _stacked(frame: Frame, registers: tuple[Array, ...]) -> Array:
    """Registers of an operand as one array [registers, lanes]."""
    return np.stack([frame.spread(register) for register in registers])
