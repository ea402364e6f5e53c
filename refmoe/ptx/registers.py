"""Which registers each block reads and writes, and which never leave their block."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field

from refmoe.ptx.program import Block, Program
from refmoe.ptx.syntax import Address, Instruction, Operand, Pair, Register, Vector, parts

# The condition code register of add.cc and its kin.
CARRY = Register("%cc.cf", "pred")
# Instructions whose first operand is not a destination.
_NO_DESTINATION = frozenset((
    "st", "red", "bra", "brx", "bar", "barrier", "membar", "fence", "prefetch", "prefetchu", "nanosleep",
    "applypriority", "setmaxnreg", "griddepcontrol", "ret", "exit", "trap", "cp",
))  # fmt: skip


def destinations_and_sources(instruction: Instruction) -> tuple[tuple[Operand, ...], tuple[Operand, ...]]:
    """The operands that an instruction writes, flattened, and those it reads, as written."""
    operands = instruction.operands
    stem = instruction.opcode.split(".")[0]
    takes_result = stem not in _NO_DESTINATION or (stem in ("bar", "barrier") and ".red." in instruction.opcode)
    if not operands or not takes_result:
        return (), operands
    first = operands[0]
    if isinstance(first, Address):
        # What is written there is memory.
        return (), operands
    if isinstance(first, Pair):
        return (first.first, first.second), operands[1:]
    if isinstance(first, Vector):
        return first.elements, operands[1:]
    return (first,), operands[1:]


@dataclass
class Usage:
    """Registers of one block.

    Attributes:
        loads: read before the block writes them, in order of first use.
        writes: written by the block, in order.
    """

    loads: dict[str, Register] = field(default_factory=dict)
    writes: dict[str, Register] = field(default_factory=dict)


def _registers(operands: Iterable[Operand]) -> list[Register]:
    return [part for operand in operands for part in parts(operand) if isinstance(part, Register)]


def _usage(block: Block) -> Usage:
    usage = Usage()

    def read(register: Register) -> None:
        if register.name not in usage.writes:
            usage.loads.setdefault(register.name, register)

    instructions = list(block.instructions)
    if block.terminator.instruction is not None:
        instructions.append(block.terminator.instruction)
    for instruction in instructions:
        destinations, sources = destinations_and_sources(instruction)
        for register in _registers(sources):
            read(register)
        written = _registers(destinations)
        stem = instruction.opcode.split(".")[0]
        if stem in ("addc", "subc", "madc"):
            read(CARRY)
        if stem in ("add", "sub", "mad", "addc", "subc", "madc") and ".cc." in instruction.opcode:
            written.append(CARRY)
        if instruction.guard is not None:
            read(instruction.guard)
            for register in written:
                # Lanes whose guard is off keep the old value.
                read(register)
        if block.terminator.instruction is instruction:
            # Results of a barrier arrive when it completes, not in this block.
            continue
        for register in written:
            usage.writes.setdefault(register.name, register)
    return usage


def analyse(program: Program) -> tuple[list[Usage], dict[str, tuple[int, str]]]:
    """Usage of each block, and (number, kind) of the registers that live across blocks."""
    usages = [_usage(block) for block in program.blocks]
    shared: dict[str, tuple[int, str]] = {}

    def share(register: Register) -> None:
        shared.setdefault(register.name, (len(shared), register.kind))

    homes: dict[str, int] = {}
    for index, usage in enumerate(usages):
        for register in usage.loads.values():
            share(register)
        for register in usage.writes.values():
            if homes.setdefault(register.name, index) != index:
                share(register)
    for block in program.blocks:
        if block.terminator.kind == "barrier" and block.terminator.instruction is not None:
            for register in _registers(destinations_and_sources(block.terminator.instruction)[0]):
                share(register)
    return usages, shared
