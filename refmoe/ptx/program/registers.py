"""Which registers instructions read and write."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field

from refmoe.ptx.text.syntax import Address, Instruction, Operand, Pair, Register, Vector, parts
from refmoe.ptx.text.wgmma import is_product, registers_in_use

# The condition code register of add.cc and its kin.
CARRY = Register("%cc.cf", "pred")
# Instructions whose first operand is not a destination.
_NO_DESTINATION = frozenset((
    "st", "red", "bra", "brx", "bar", "barrier", "membar", "fence", "prefetch", "prefetchu", "nanosleep",
    "pmevent", "applypriority", "setmaxnreg", "griddepcontrol", "ret", "exit", "trap", "brkpt", "discard", "cp",
))  # fmt: skip


def destinations_and_sources(instruction: Instruction) -> tuple[tuple[Operand, ...], tuple[Operand, ...]]:
    """The operands that an instruction writes, flattened, and those it reads, as written."""
    operands = instruction.operands
    stem = instruction.opcode.split(".")[0]
    takes_result = stem not in _NO_DESTINATION or (stem in ("bar", "barrier") and ".red." in instruction.opcode)
    if not operands or not takes_result or (stem == "wgmma" and not is_product(instruction)):
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
    """Registers of some neighbouring instructions.

    Attributes:
        loads: read before they are written there, in order of first use.
        writes: written there, in order.
    """

    loads: dict[str, Register] = field(default_factory=dict)
    writes: dict[str, Register] = field(default_factory=dict)


def _registers(operands: Iterable[Operand]) -> list[Register]:
    found: list[Register] = []
    for operand in operands:
        # Most operands are registers themselves.
        if isinstance(operand, Register):
            found.append(operand)
        else:
            found += [part for part in parts(operand) if isinstance(part, Register)]
    return found


def names_written(instruction: Instruction) -> frozenset[str]:
    """The registers that an instruction writes where its guard is on."""
    return frozenset(each.name for each in _registers(destinations_and_sources(instruction)[0]))


def names_read(instruction: Instruction) -> frozenset[str]:
    """The registers of the operands that an instruction reads. Its guard is none of them."""
    return frozenset(each.name for each in _registers(destinations_and_sources(instruction)[1]))


def operands_of(instruction: Instruction) -> tuple[list[Register], list[Register]]:
    """The registers that an instruction writes, and those that it reads, its guard and the carry included."""
    written, read = results_and_uses(instruction)
    if instruction.guard is not None:
        # Lanes whose guard is off keep the old value.
        read += written
    return written, read


def results_and_uses(instruction: Instruction) -> tuple[list[Register], list[Register]]:
    """The same, but a register that only keeps its value, where the guard is off, is not read."""
    destinations, sources = destinations_and_sources(instruction)
    read, written = _registers(sources), _registers(destinations)
    stem = instruction.opcode.split(".")[0]
    if stem in ("addc", "subc", "madc"):
        read.append(CARRY)
    if stem in ("add", "sub", "mad", "addc", "subc", "madc") and "cc" in instruction.opcode.split("."):
        written.append(CARRY)
    if is_product(instruction):
        read += written
    if instruction.guard is not None:
        read.append(instruction.guard)
    return written, read


def names_at_home(instruction: Instruction) -> frozenset[str]:
    """The registers that a product of a warpgroup uses until it is waited for; none of any other instruction."""
    if not is_product(instruction):
        return frozenset()
    return frozenset(register.name for registers in registers_in_use(instruction) for register in registers)


def usage_of(instructions: Iterable[Instruction], terminator: Instruction | None) -> Usage:
    """What instructions of one block read before they write it, and what they write.

    Results of a barrier, which is a `terminator`, arrive when it completes: nothing here writes them. What a product of
    a warpgroup uses while it runs it takes from, and leaves in, the homes of registers.
    """
    usage = Usage()
    for instruction in instructions:
        written, read = operands_of(instruction)
        at_home = names_at_home(instruction)
        for register in read:
            if register.name not in usage.writes and register.name not in at_home:
                usage.loads.setdefault(register.name, register)
        if instruction is not terminator and not at_home:
            for register in written:
                usage.writes.setdefault(register.name, register)
    return usage
