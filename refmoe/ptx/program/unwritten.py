"""Registers that may be read before anything has written them: where, and which.

A guarded write does not count as one, because lanes whose guard is off keep what was there; nor does that count as a
read. What is found may not happen: the branches of the ways that lead there may exclude each other.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

from refmoe.ptx.program.blocks import Block, Program
from refmoe.ptx.program.registers import names_at_home, results_and_uses
from refmoe.ptx.text.syntax import Instruction, Register

# What a register holds until something writes it, by its kind: one that holds this may be unwritten. A predicate has no
# value that others have not.
CANARIES = {"b8": 0xB5, "b16": 0xB5C7, "b32": 0xB5C70F9D, "b64": 0xB5C70F9D2E68A341}


@dataclass(frozen=True)
class UnwrittenReads:
    """What is known of an entry.

    Attributes:
        registers: names of registers that some instruction may read unwritten, products of warpgroups included.
        reads: by (block, number of the instruction in it, its terminator last) the names of those that it may read so,
            in the order of its operands; the others are not listed. Without what a product of a warpgroup uses while
            others run, which the product itself looks at: whether it adds to its sums is known only then.
    """

    registers: frozenset[str] = frozenset()
    reads: dict[tuple[int, int], tuple[str, ...]] = field(default_factory=dict)


def unwritten(program: Program) -> UnwrittenReads:
    """The reads of an entry that something may reach before a write: a forward analysis of its blocks."""
    bodies = {block.index: _body(block) for block in program.blocks}
    names = dict.fromkeys(name for body in bodies.values() for step in body for held in step for name in held)
    # A set of registers is an integer, a bit each: a kernel of thousands of blocks has thousands of registers.
    bits = {name: 1 << number for number, name in enumerate(names)}
    kept = {index: ~_bits(bits, (name for *_, writes in body for name in writes)) for index, body in bodies.items()}
    # Registers that may be unwritten at the start of each block that can be reached.
    before = {0: (1 << len(bits)) - 1}
    ahead = [0]
    while ahead:
        index = ahead.pop()
        after = before[index] & kept[index]
        for target in program.blocks[index].terminator.targets:
            known = before.get(target)
            if known is None or after & ~known:
                before[target] = after | (known or 0)
                ahead.append(target)
    reads: dict[tuple[int, int], tuple[str, ...]] = {}
    of_products: set[str] = set()
    for index, maybe in before.items():
        for number, (uses, held, writes) in enumerate(bodies[index]):
            of_products.update(name for name in held if maybe & bits[name])
            if found := tuple(dict.fromkeys(name for name in uses if maybe & bits[name])):
                reads[index, number] = found
            maybe &= ~_bits(bits, writes)
    return UnwrittenReads(frozenset(of_products.union(*reads.values())), reads)


def _bits(bits: Mapping[str, int], names: Iterable[str]) -> int:
    found = 0
    for name in names:
        found |= bits[name]
    return found


def instructions_of(block: Block) -> tuple[Instruction, ...]:
    """The instructions of a block, its terminator last if there is one."""
    end = block.terminator.instruction
    return block.instructions if end is None else (*block.instructions, end)


def uses_of(instruction: Instruction) -> list[Register]:
    """The registers that an instruction reads when it runs, its guard included.

    Those that a product of a warpgroup uses while others run are not among them, its sums and its fragments.
    """
    at_home = names_at_home(instruction)
    return [register for register in results_and_uses(instruction)[1] if register.name not in at_home]


def _body(block: Block) -> list[tuple[list[str], frozenset[str], list[str]]]:
    """Of each instruction the registers that it uses, those that it uses as a product, and those that it writes.

    It writes them in every lane.
    """
    body = []
    for instruction in instructions_of(block):
        written, _ = results_and_uses(instruction)
        kept = instruction.guard is not None
        body.append((
            [each.name for each in uses_of(instruction)],
            names_at_home(instruction),
            [] if kept else [each.name for each in written],
        ))  # fmt: skip
    return body
