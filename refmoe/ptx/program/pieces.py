"""Blocks cut where native code ends: runs of instructions that become machine code, and those in between.

A register that is read in another piece than the one that wrote it has a home in the machine's registers; the others
live and die in their piece.
"""

from __future__ import annotations

from collections.abc import Callable, Container
from dataclasses import dataclass

from refmoe.ptx.program.blocks import Block, Program
from refmoe.ptx.program.registers import Usage, names_at_home, operands_of, usage_of
from refmoe.ptx.text.syntax import Instruction, Register

# How a block of machine code may end.
_NATIVE_ENDS = ("jump", "branch", "exit")


@dataclass(frozen=True)
class Piece:
    """Some neighbouring instructions of a block.

    Attributes:
        block: index of the block.
        number: of the piece in it.
        instructions: of which the last may be the block's terminator, unless they are native.
        native: whether they become machine code.
        usage: the registers that they read and write.
        branch: the block's conditional branch, where it is part of machine code.
    """

    block: int
    number: int
    instructions: tuple[Instruction, ...]
    native: bool
    usage: Usage
    branch: Instruction | None = None


@dataclass(frozen=True)
class Homes:
    """Where registers that leave their piece live, and the pieces of each block.

    Attributes:
        pieces: of each block.
        registers: name to (number, kind).
        native: of each block, whether all of it is one piece of machine code, its end included.
    """

    pieces: tuple[tuple[Piece, ...], ...]
    registers: dict[str, tuple[int, str]]
    native: tuple[bool, ...]


def cut(
    program: Program,
    is_native: Callable[[Instruction], bool],
    refused: Container[Instruction] = (),
    alone: bool = False,
) -> Homes:
    """The pieces of every block, and the registers that live across pieces.

    Args:
        program: the blocks.
        is_native: whether an instruction that is not refused has native code.
        refused: instructions that are errors where they are reached.
        alone: each instruction is a piece, and all registers have homes.
    """

    def native_here(instruction: Instruction) -> bool:
        return instruction not in refused and is_native(instruction)

    native = tuple(
        not alone
        and block.terminator.kind in _NATIVE_ENDS
        and block.terminator.instruction not in refused
        and all(map(native_here, block.instructions))
        for block in program.blocks
    )
    pieces = tuple(
        (_whole(block),) if whole else _pieces(block, native_here, alone)
        for block, whole in zip(program.blocks, native, strict=True)
    )
    return Homes(pieces, _homes(program, pieces, alone), native)


def _whole(block: Block) -> Piece:
    """A block as one piece of machine code."""
    branch = block.terminator.instruction if block.terminator.kind == "branch" else None
    run = (*block.instructions, *(() if branch is None else (branch,)))
    return Piece(block.index, 0, block.instructions, True, usage_of(run, branch), branch)


def _pieces(block: Block, is_native: Callable[[Instruction], bool], alone: bool) -> tuple[Piece, ...]:
    runs: list[tuple[bool, list[Instruction]]] = []
    for instruction in block.instructions:
        native = is_native(instruction)
        # What runs on after `wgmma` uses the homes of registers, which pieces take in and give back.
        apart = alone or _is_of_warpgroup(instruction) or (runs and _is_of_warpgroup(runs[-1][1][-1]))
        if not runs or apart or runs[-1][0] != native:
            runs.append((native, []))
        runs[-1][1].append(instruction)
    last = block.terminator.instruction
    if last is not None:
        # What the terminator reads is read by the scheduler, and what a barrier gives arrives when it completes.
        if not runs or alone or runs[-1][0] or _is_of_warpgroup(runs[-1][1][-1]):
            runs.append((False, []))
        runs[-1][1].append(last)
    return tuple(
        Piece(block.index, number, tuple(run), native, usage_of(run, last)) for number, (native, run) in enumerate(runs)
    )


def _is_of_warpgroup(instruction: Instruction) -> bool:
    return instruction.opcode.startswith("wgmma.")


def _homes(program: Program, pieces: tuple[tuple[Piece, ...], ...], every: bool) -> dict[str, tuple[int, str]]:
    homes: dict[str, tuple[int, str]] = {}
    writers: dict[str, tuple[int, int]] = {}

    def settle(register: Register) -> None:
        homes.setdefault(register.name, (len(homes), register.kind))

    for of_block in pieces:
        for piece in of_block:
            for register in piece.usage.loads.values():
                settle(register)
            for instruction in piece.instructions:
                at_home = names_at_home(instruction)
                for register in operands_of(instruction)[1] if at_home else ():
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
