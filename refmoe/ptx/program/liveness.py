"""How many registers of an entry are live at once: a backward analysis of its PTX.

A register is live in front of an instruction if some way from there reads it before writing it. PTX has as many
registers as a compiler likes to name; those that live at one point need room at the same time. ptxas may order
instructions in another way, so that the number is no count of a chip's registers, but it says where they are many.
"""

from __future__ import annotations

from dataclasses import dataclass

from refmoe.ptx.program.blocks import Program
from refmoe.ptx.program.registers import operands_of
from refmoe.ptx.text.syntax import Instruction, Register

# Registers of 32 bits that a register takes; those of 8 and 16 bits take one.
_WORDS = {"pred": 0, "b64": 2, "b128": 4}


@dataclass(frozen=True)
class Live:
    """Where the most registers are live.

    Attributes:
        registers: of 32 bits; a register of 64 bits counts as two, a predicate not at all.
        line, source, text: of the first instruction at which that is so; line 0 where there is none.
        predicates: the most of them that are live at any point.
    """

    registers: int = 0
    line: int = 0
    source: str | None = None
    text: str = ""
    predicates: int = 0


def reads_unwritten(program: Program) -> bool:
    """Whether some way through an entry reads a register that nothing has written, as far as blocks tell."""
    bodies, _ = _bodies(program)
    return _live_into(program, bodies)[0] != 0


def most_live(program: Program) -> Live:
    """The most registers that are live at an instruction that can be reached: its results and what lives across it."""
    bodies, words = _bodies(program)
    into = _live_into(program, bodies)
    weights = {size: sum(1 << n for n, word in enumerate(words) if word == size) for size in set(words)}
    best, predicates = Live(), 0
    for place in sorted(bodies):
        live = 0
        for target in program.blocks[place].terminator.targets:
            live |= into[target]
        for instruction, written, read in reversed(bodies[place]):
            after = live | written
            live = live & ~written | read
            for point in (after, live):
                count = sum(size * (point & mask).bit_count() for size, mask in weights.items())
                predicates = max(predicates, (point & weights.get(0, 0)).bit_count())
                # Of equal counts the one that stands first in the text.
                if (count, -instruction.line) > (best.registers, -best.line if best.line else float("-inf")):
                    best = Live(count, instruction.line, instruction.source, instruction.text)
    return Live(best.registers, best.line, best.source, best.text, predicates)


# An instruction, the registers that it writes and those that it reads, a bit each.
_Body = list[tuple[Instruction, int, int]]


def _bodies(program: Program) -> tuple[dict[int, _Body], list[int]]:
    """The instructions of the blocks that can be reached, and of each register its 32-bit words."""
    numbers: dict[str, int] = {}
    words: list[int] = []

    def bits(registers: list[Register]) -> int:
        found = 0
        for register in registers:
            number = numbers.setdefault(register.name, len(numbers))
            if number == len(words):
                words.append(_WORDS.get(register.kind, 1))
            found |= 1 << number
        return found

    bodies: dict[int, _Body] = {}
    for place in _reached(program):
        block = program.blocks[place]
        bodies[place] = []
        for each in (*block.instructions, block.terminator.instruction):
            if each is not None:
                written, read = operands_of(each)
                bodies[place].append((each, bits(written), bits(read)))
    return bodies, words


def _reached(program: Program) -> set[int]:
    found, ahead = {0}, [0]
    while ahead:
        for target in program.blocks[ahead.pop()].terminator.targets:
            if target not in found:
                found.add(target)
                ahead.append(target)
    return found


def _live_into(program: Program, bodies: dict[int, _Body]) -> dict[int, int]:
    """The registers that are live at the start of each block, a bit each, from what its instructions write and read."""
    reads, writes = {}, {}
    for place, body in bodies.items():
        read = written = 0
        for _, out, into in body:
            read |= into & ~written
            written |= out
        reads[place], writes[place] = read, written
    live = dict.fromkeys(bodies, 0)
    changed = True
    while changed:
        changed = False
        for place in sorted(bodies, reverse=True):
            out = 0
            for target in program.blocks[place].terminator.targets:
                out |= live[target]
            found = reads[place] | out & ~writes[place]
            changed |= found != live[place]
            live[place] = found
    return live
