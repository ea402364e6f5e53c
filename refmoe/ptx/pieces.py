"""Blocks cut where native code ends: runs of instructions that become machine code, and those in between.

A register that is read in another piece than the one that wrote it has a home in the machine's registers; the others
live and die in their piece.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from refmoe.ptx.program import Block, Program
from refmoe.ptx.registers import Usage, operands_of, usage_of
from refmoe.ptx.syntax import Instruction, Register


@dataclass(frozen=True)
class Piece:
    """Some neighbouring instructions of a block.

    Attributes:
        block: index of the block.
        number: of the piece in it.
        instructions: of which the last may be the block's terminator.
        native: whether they become machine code.
        usage: the registers that they read and write.
    """

    block: int
    number: int
    instructions: tuple[Instruction, ...]
    native: bool
    usage: Usage


@dataclass(frozen=True)
class Homes:
    """Where registers that leave their piece live: name to (number, kind), and the pieces of each block."""

    pieces: tuple[tuple[Piece, ...], ...]
    registers: dict[str, tuple[int, str]]


def cut(program: Program, is_native: Callable[[Instruction], bool], alone: bool = False) -> Homes:
    """The pieces of every block, and the registers that live across pieces.

    `alone`: each instruction is a piece, and all registers have homes.
    """
    pieces = tuple(_pieces(block, is_native, alone) for block in program.blocks)
    return Homes(pieces, _homes(program, pieces, alone))


def _pieces(block: Block, is_native: Callable[[Instruction], bool], alone: bool) -> tuple[Piece, ...]:
    runs: list[tuple[bool, list[Instruction]]] = []
    for instruction in block.instructions:
        native = is_native(instruction)
        if not runs or alone or runs[-1][0] != native:
            runs.append((native, []))
        runs[-1][1].append(instruction)
    last = block.terminator.instruction
    if last is not None:
        # What the terminator reads is read by the scheduler, and what a barrier gives arrives when it completes.
        if not runs or alone or runs[-1][0]:
            runs.append((False, []))
        runs[-1][1].append(last)
    return tuple(
        Piece(block.index, number, tuple(run), native, usage_of(run, last)) for number, (native, run) in enumerate(runs)
    )


def _homes(program: Program, pieces: tuple[tuple[Piece, ...], ...], every: bool) -> dict[str, tuple[int, str]]:
    homes: dict[str, tuple[int, str]] = {}
    writers: dict[str, tuple[int, int]] = {}

    def settle(register: Register) -> None:
        homes.setdefault(register.name, (len(homes), register.kind))

    for of_block in pieces:
        for piece in of_block:
            for register in piece.usage.loads.values():
                settle(register)
            for register in piece.usage.writes.values():
                place = (piece.block, piece.number)
                if writers.setdefault(register.name, place) != place or every:
                    settle(register)
    for block in program.blocks:
        if block.terminator.kind == "barrier" and block.terminator.instruction is not None:
            for register in operands_of(block.terminator.instruction)[0]:
                settle(register)
    return homes
