"""Statements of the tensor-core instructions: `ldmatrix`, `stmatrix`, `mma`."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

import numpy as np

from refmoe.ptx import isa
from refmoe.ptx.access import Load, Store
from refmoe.ptx.matrix import LoadMatrix, StoreMatrix
from refmoe.ptx.syntax import Instruction, Operand, Register, Vector

if TYPE_CHECKING:
    from refmoe.ptx.emit import Emitter

__all__ = ["load_matrix", "multiply", "store_matrix"]

_MATRIX = re.compile(
    r"(ld|st)matrix\.sync\.aligned\.m8n8\.x(?P<count>[124])(?P<trans>\.trans)?(?P<space>\.shared(::cta)?)?\.b16"
)


def load_matrix(emitter: Emitter, instruction: Instruction) -> None:
    """`ldmatrix` of 8 x 8 cells of 16 bits.

    Raises:
        isa.UnknownOpcode: another spelling.
        ValueError: its operands do not fit.
    """
    match = _matrix(instruction)
    destinations = _registers(instruction.operands[0], int(match["count"]))
    address, space = emitter.address(instruction.operands[1], "shared" if match["space"] else "generic")
    load = Load(instruction, space, 2, 8, signed=False, dtypes=(np.dtype(np.uint16),) * 8)
    work = LoadMatrix(load, len(destinations), match["trans"] is not None)
    temporaries = [f"v{i}" for i in range(len(destinations))]
    emitter.lines.append(f"{', '.join(temporaries)}, = {emitter.bind('m', work)}(F, {address})")
    for register, temporary in zip(destinations, temporaries, strict=True):
        emitter.assign(instruction, register, temporary, "b32")


def store_matrix(emitter: Emitter, instruction: Instruction) -> None:
    """`stmatrix` of 8 x 8 cells of 16 bits.

    Raises:
        isa.UnknownOpcode: another spelling.
        ValueError: its operands do not fit.
    """
    match = _matrix(instruction)
    address, space = emitter.address(instruction.operands[0], "shared" if match["space"] else "generic")
    sources = _registers(instruction.operands[1], int(match["count"]))
    work = StoreMatrix(Store(instruction, space, 8, 2), len(sources), match["trans"] is not None)
    values = ", ".join(emitter.value(register, "b32") for register in sources)
    emitter.lines.append(f"{emitter.bind('m', work)}(F, {address}, ({values},))")


def _matrix(instruction: Instruction) -> re.Match[str]:
    match = _MATRIX.fullmatch(instruction.opcode)
    if match is None or not instruction.opcode.startswith(("ldmatrix", "stmatrix")):
        raise isa.UnknownOpcode(instruction.opcode)
    if len(instruction.operands) != 2:
        raise ValueError("two operands needed")
    return match


def _registers(operand: Operand, count: int) -> tuple[Operand, ...]:
    elements = operand.elements if isinstance(operand, Vector) else (operand,)
    if len(elements) != count or not all(isinstance(e, Register) and e.kind == "b32" for e in elements):
        raise ValueError(f"{count} registers of 32 bits needed")
    return elements


def multiply(emitter: Emitter, instruction: Instruction) -> None:
    """`mma`."""
    raise isa.UnknownOpcode(instruction.opcode)
