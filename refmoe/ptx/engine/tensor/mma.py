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

E2M1 elements sit in bits 2..5 of a byte each, but in kind::mxf4 and kind::mxf4nvf4, which pack two. With
block scales a 32-bit register holds four bytes, of which `byte` chooses one E8M0, or with scale_vec::2X two neighbours,
one for every 32 of K, of which `byte`, 0 or 2, is the first; all four are UE4M3 scales, one for every 16 of K, with
scale_vec::4X. A's scales come from two lanes of each quad, B's from one, which `thread` chooses:

    A  thread 0:  lane 4g holds row g, lane 4g+1 row g+8          B  thread i:  lane 4g+i holds column g
       thread 1:  lane 4g+2        row g, lane 4g+3 row g+8

(PTX ISA, "Matrix fragments for mma.m16n8k32" and its neighbours, "Block scaling".)

Where a tile is larger than its problem, most instructions multiply zeros: D is then C, and nothing is taken apart.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache, reduce
from typing import Any

import numpy as np

from refmoe.formats import Specials
from refmoe.ptx.engine.frame import Frame
from refmoe.ptx.engine.tensor.matrix import whole_warps
from refmoe.ptx.text.syntax import Instruction
from refmoe.reference.mma import ELEMENT_FORMATS, as_model, tensor_core_mma
from refmoe.reference.mma.product import NAN_BITS

Array = Any
ROWS, COLUMNS, QUADS, QUAD = 16, 8, 8, 4
_LANES = 32
# Of FP32, which C and D are.
_MANTISSA_BITS = 23


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


def _of_warps(lanes: Array, warps: Array) -> Array:
    """The values [lanes] of the lanes of those warps."""
    return lanes if warps.size * _LANES == lanes.size else lanes.reshape(-1, _LANES)[warps].reshape(-1)


def _unchanged(registers: Array) -> Array:
    """D where nothing is added to C: uint32 [4, lanes]. A zero is +0 there, and there is one NaN."""
    with np.errstate(invalid="ignore"):
        result = registers.view(np.float32) + np.float32(0)
    nan = np.isnan(result)
    bits: Array = result.view(np.uint32)
    if nan.any():
        bits[nan] = NAN_BITS
    return bits


@cache
def _keeps_c(name: str) -> bool:
    """Whether a model's result is C, of any exponent, where all products are zero."""
    model = as_model(name)
    aligned = model.align_bits is None or model.align_bits >= _MANTISSA_BITS
    return aligned and model.result_bits == _MANTISSA_BITS


@cache
def _magnitude(name: str, bits: int, packed: bool) -> tuple[np.uint32, int | None]:
    fmt = ELEMENT_FORMATS[name]
    if fmt.specials is Specials.NONE:
        # E2M1 is the one; it has its place in a byte.
        element, least = (0x7 if packed else 0x7 << 2), None
    else:
        element = (1 << (bits - 1)) - (1 << fmt.unused_low_bits)
        infinite = ((1 << fmt.exponent_bits) - 1) << (fmt.mantissa_bits + fmt.unused_low_bits)
        least = infinite if fmt.specials is Specials.IEEE else element
    return np.uint32(sum(element << at for at in range(0, _LANES, bits))), least


@dataclass(frozen=True)
class Scales:
    """One scale operand: which lanes of a quad hold the scales of `rows` rows (A: 16, B: 8), `count` of a row."""

    rows: int
    count: int = 1

    def check(self, byte: Array, thread: Array) -> None:
        """ValueError names a selector out of its range."""
        # A row's scales are an aligned part of the register.
        for name, value, allowed in (
            ("byte-id", byte, range(0, 4, self.count)),
            ("thread-id", thread, range(QUAD * QUADS // self.rows)),
        ):
            for found in [int(value)] if np.ndim(value) == 0 else np.unique(value).tolist():
                if found not in allowed:
                    words = {1: "0", 2: f"0 or {allowed[-1]}"}.get(len(allowed), f"0 to {allowed[-1]}")
                    raise ValueError(f"a {name} of {found}, not {words}")

    def __call__(self, word: Array, byte: Array, thread: Array) -> Array:
        """uint8 [warps, rows, count] of registers [lanes].

        Selectors are the same in all lanes of a warp: [lanes], or one for all warps.
        """
        lanes = self.rows // QUADS
        first_byte = np.ascontiguousarray(word >> (np.asarray(byte, np.uint32) * np.uint32(8)))
        quads = first_byte.view(np.uint8).reshape(-1, QUADS, QUAD, 4)[..., : self.count]
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
        scale_format: of the scales, "ue8m0" or "ue4m3".
    """

    instruction: Instruction
    model: str
    a_format: str
    b_format: str
    scales: int
    packed: bool
    scale_format: str

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
        if self.scales:
            self.check_selectors(frame, scales)
        result = np.stack([frame.spread(value) for value in c])
        warps = self._working(frame, a, b, scales)
        if warps.size < frame.count // _LANES:
            result = _unchanged(result)
        if not warps.size:
            return tuple(result)

        def working(values: tuple[Array, ...]) -> tuple[Array, ...]:
            return tuple(_of_warps(frame.spread(value), warps) for value in values)

        a_scales, b_scales = None, None
        if self.scales:
            # Selectors are constants as a rule, and then need no place for each lane.
            words = [value if np.ndim(value) == 0 and i % 3 else working((value,))[0] for i, value in enumerate(scales)]
            a_scales, b_scales = Scales(ROWS, self.scales)(*words[:3]), Scales(COLUMNS, self.scales)(*words[3:])
        product = tensor_core_mma(
            self._codes(a_matrix(working(a), self._bits(self.a_format)), self.a_format),
            self._codes(b_matrix(working(b), self._bits(self.b_format)), self.b_format),
            c_matrix(working(c)),
            model=self.model,
            a_format=self.a_format,
            b_format=self.b_format,
            a_scales=a_scales,
            b_scales=b_scales,
        )
        result.reshape(4, -1, _LANES)[:, warps] = c_registers(product).reshape(4, -1, _LANES)
        return tuple(result)

    def _working(self, frame: Frame, a: tuple[Array, ...], b: tuple[Array, ...], scales: tuple[Array, ...]) -> Array:
        """The acting warps [n] of which D may differ from C."""
        where = frame.where(None)
        acting = np.ones(frame.count // _LANES, bool) if where is None else where[::_LANES].copy()
        if not _keeps_c(self.model):
            return np.flatnonzero(acting)
        idle = acting & (self._only_zeros(frame, a, self.a_format) | self._only_zeros(frame, b, self.b_format))
        warps = np.flatnonzero(idle)
        if warps.size:
            # No zero makes a number of them.
            lost = self._special(frame, a, self.a_format, warps) | self._special(frame, b, self.b_format, warps)
            for word in scales[::3]:
                lost |= self._nan_scale(frame, word, warps)
            acting[warps[~lost]] = False
        return np.flatnonzero(acting)

    def _only_zeros(self, frame: Frame, registers: tuple[Array, ...], name: str) -> Array:
        """bool [warps]: all elements of an operand are zero."""
        word = reduce(np.bitwise_or, registers)
        return ~(frame.spread(word & self._magnitude(name)[0])).reshape(-1, _LANES).any(axis=1)

    def _special(self, frame: Frame, registers: tuple[Array, ...], name: str, warps: Array) -> Array:
        """bool [n] of those warps: an element of an operand is infinite or no number."""
        mask, least = self._magnitude(name)
        found = np.zeros(warps.size, bool)
        if least is None:
            return found
        dtype = np.dtype(f"u{self._bits(name) // 8}")
        for register in registers:
            words = _of_warps(frame.spread(register) & mask, warps).view(dtype)
            found |= words.reshape(warps.size, -1).max(axis=1) >= least
        return found

    def _nan_scale(self, frame: Frame, word: Array, warps: Array) -> Array:
        """bool [n] of those warps: a byte of the scales' register is NaN, whether it is chosen or not."""
        held = np.ascontiguousarray(_of_warps(frame.spread(word), warps)).view(np.uint8).reshape(warps.size, -1)
        found: Array = ((held | np.uint8(0x80) if self.scale_format == "ue4m3" else held) == 0xFF).any(axis=1)
        return found

    def _magnitude(self, name: str) -> tuple[np.uint32, int | None]:
        """(bits of a register that make elements other than zero, the least such of what is no finite number)."""
        return _magnitude(name, self._bits(name), self.packed)

    def check_selectors(self, frame: Frame, operands: tuple[Array, ...]) -> None:
        """Raises MisuseError: a selector of scales out of its range, or not the same in the whole warp."""
        where = frame.where(None)
        try:
            for rows, (_, byte, thread) in ((ROWS, operands[:3]), (COLUMNS, operands[3:])):
                for selector in (byte, thread):
                    if np.ndim(selector) == 0:
                        continue
                    of_warps = selector.reshape(-1, _LANES)
                    of_warps = of_warps if where is None else of_warps[where[::_LANES]]
                    if (of_warps != of_warps[:, :1]).any():
                        raise ValueError("a selector of scales that differs between the lanes of a warp")
                acting = [value if where is None or np.ndim(value) == 0 else value[where] for value in (byte, thread)]
                Scales(rows, self.scales).check(*acting)
        except ValueError as error:
            raise frame.machine.misuse(self.instruction, int(np.argmax(frame.mask)), str(error)) from error

    def _bits(self, name: str) -> int:
        """Bits that an element takes in a register."""
        return {"bf16": 16, "f16": 16, "tf32": 32}.get(name, 4 if self.packed else 8)

    def _codes(self, elements: Array, name: str) -> Array:
        """Codes of elements as they stand in a register."""
        return elements >> np.uint8(2) & np.uint8(15) if name == "e2m1" and not self.packed else elements
