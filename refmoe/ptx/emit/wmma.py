"""Statements of `wmma.load` and `wmma.store`: each register of a lane is one access, or one for each of its elements.

That addresses are aligned as PTX asks is not checked beyond the words that a lane touches.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from refmoe.ptx import isa
from refmoe.ptx.emit.builder import Builder
from refmoe.ptx.engine.frame import Frame
from refmoe.ptx.engine.loads_and_stores import Load, Store
from refmoe.ptx.engine.tensor.matrix import WholeWarp
from refmoe.ptx.text.syntax import Immediate, Instruction, Operand, Register, Sink, Vector
from refmoe.ptx.text.wmma import Transfer, transfer

Array = Any
_QUAD, _LANES = 4, 32


@dataclass(frozen=True)
class FirstElements:
    """Where the first element of each lane lies. The attributes are those of `Transfer`."""

    lines_along_g: bool
    apart: int
    bits: int

    def __call__(self, frame: Frame, address: Array, pitch: Array) -> Array:
        """Addresses uint64 [lanes] of a matrix that begins at `address`, its lines `pitch` bytes apart."""
        lane = frame.lanes() % _LANES
        g, t = lane // _QUAD, lane % _QUAD * self.apart
        lines, elements = (g, t) if self.lines_along_g else (t, g)
        start: Array = frame.spread(address).astype(np.uint64) + lines.astype(np.uint64) * pitch
        return start + (elements * self.bits // 8).astype(np.uint64)


@dataclass(frozen=True)
class PitchInBytes:
    """A pitch in bytes: one in elements of `bits` bits."""

    bits: int

    def __call__(self, frame: Frame, elements: Array) -> Array:
        """uint64."""
        return frame.spread(elements).astype(np.uint64) * np.uint64(self.bits) // np.uint64(8)


def move(emitter: Builder, instruction: Instruction) -> None:
    """`wmma.load` and `wmma.store`; what is left of `wmma.mma` has a spelling that is not known.

    Raises:
        isa.NoSuchInstruction: another spelling.
        ValueError: its operands do not fit.
    """
    form = transfer(instruction.opcode)
    if form is None:
        raise isa.NoSuchInstruction(instruction.opcode)
    operands = instruction.operands
    if not 2 <= len(operands) <= 3:
        raise ValueError("a fragment, an address and perhaps a pitch needed")
    where, held = (operands[1], operands[0]) if form.loads else operands[:2]
    address, space = emitter.address(where, form.space or "generic")
    elements = held.elements if isinstance(held, Vector) else (held,)
    kind = "b64" if form.bits == 64 else "b32"
    fits = [isinstance(each, Register) and each.kind == kind for each in elements if not isinstance(each, Sink)]
    if len(elements) != form.registers or not all(fits) or (not form.loads and len(fits) != len(elements)):
        raise ValueError(f"a vector of {form.registers} registers of {kind[1:]} bits needed")
    pitch = emitter.value(operands[2] if len(operands) == 3 else Immediate(form.pitch), "b32")
    emitter.run(WholeWarp(instruction))
    # Read before a register that the address is made of may be written.
    emitter.lines.append(f"v0 = {emitter.call(PitchInBytes(form.bits), pitch)}")
    emitter.lines.append(
        f"v1 = {emitter.call(FirstElements(form.lines_along_g, form.apart, form.bits), address, 'v0')}"
    )
    (_load if form.loads else _store)(emitter, instruction, form, space, elements)


def _place(emitter: Builder, form: Transfer, u: int, v: int) -> str:
    """Expression for the addresses of what lies `u` along g and `v` along t from each lane's first element."""
    line, element = (u, v) if form.lines_along_g else (v, u)
    offset = emitter.constant(element * form.bits // 8, "b64")
    return f"(v1 + v0 * {emitter.constant(line, 'b64')} + {offset})"


def _load(
    emitter: Builder, instruction: Instruction, form: Transfer, space: str, elements: tuple[Operand, ...]
) -> None:
    kind = "b64" if form.bits == 64 else "b32"
    dtypes = (np.dtype(isa.DTYPES[kind]),)
    whole = form.lines_along_g or form.count == 1
    size = form.bits * (form.count if whole else 1) // 8
    for number, (u, v) in enumerate(form.places):
        values = []
        for each in range(1 if whole else form.count):
            work = Load(instruction, space, size, 1, signed=False, dtypes=dtypes)
            call = f"{emitter.call(work, _place(emitter, form, u, v + each), 'None')}[0]"
            values.append(f"({call} << {emitter.constant(each * form.bits, kind)})" if each else call)
        emitter.lines.append(f"v{number + 2} = {' | '.join(values)}")
    for number, element in enumerate(elements):
        if not isinstance(element, Sink):
            emitter.assign(instruction, element, f"v{number % len(form.places) + 2}", kind)


def _store(
    emitter: Builder, instruction: Instruction, form: Transfer, space: str, elements: tuple[Operand, ...]
) -> None:
    kind = "b64" if form.bits == 64 else "b32"
    whole = form.lines_along_g or form.count == 1
    size = form.bits * (form.count if whole else 1) // 8
    for element, (u, v) in zip(elements, form.places, strict=True):
        for each in range(1 if whole else form.count):
            value = emitter.value(element, kind)
            if not whole:
                part = emitter.bind("t", np.dtype(f"u{size}"))
                value = f"({value} >> {emitter.constant(each * form.bits, kind)}).astype({part})"
            work = Store(instruction, space, size, 1)
            emitter.run(work, _place(emitter, form, u, v + each), "None", f"({value},)")
