"""Which strong accesses may happen after later ones of their own thread.

PTX keeps relaxed accesses of one thread in order only where something says so: a fence or a barrier between them, an
acquire before or a release behind, a dependency, or one location ("Causality order", "Coherence", "No Thin Air"). So
of two threads that each read what the other writes after its own read, both may see the write ("load buffering").

A relaxed access may be put off as long as its thread does nothing that one of these orders behind it: its *window*. In
there its thread neither uses nor overwrites the registers of the access, and its other accesses are of other bytes.

A window is over at every fence and every acquire or release, although the axioms of PTX let an access pass a fence that
synchronises with nobody. Then what such an access reads could order accesses that were done long ago, as no engine does
that goes forward; nor does any chip.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

from refmoe.ptx.program.blocks import Block, Program, communicates
from refmoe.ptx.program.registers import operands_of
from refmoe.ptx.text.memory_ops import MemoryOpcode, memory_opcode
from refmoe.ptx.text.syntax import Address, Instruction

# Instructions that do nothing but compute.
_COMPUTES = frozenset((
    "mov", "add", "sub", "mul", "mad", "mul24", "mad24", "fma", "div", "rem", "abs", "neg", "min", "max", "setp", "set",
    "selp", "and", "or", "xor", "not", "cnot", "shl", "shr", "shf", "cvt", "cvta", "prmt", "bfe", "bfi", "lop3", "bra",
))  # fmt: skip
_RELAXED = ("relaxed", "volatile")


@dataclass(frozen=True)
class _Use:
    """Names of the registers that a block writes, and of those that it reads."""

    written: frozenset[str]
    read: frozenset[str]


class Windows:
    """The windows of the accesses of an entry, by place."""

    def __init__(self, program: Program) -> None:
        self._blocks = program.blocks
        self._made: dict[int, frozenset[int]] = {}
        self._uses: dict[int, _Use] = {}

    @cached_property
    def worth(self) -> frozenset[int]:
        """The places of accesses that may be put off, and in whose window is a strong write."""
        places = range(len(self._blocks))
        return frozenset(
            place
            for place in places
            if self.access(place) is not None
            and any((held := self.access(other)) is not None and held.stem != "ld" for other in self.window(place))
        )

    def access(self, place: int) -> MemoryOpcode | None:
        """The relaxed access that alone is the block at a place; None if something else is there."""
        block = self._blocks[place]
        if len(block.instructions) != 1 or block.terminator.kind != "jump" or block.gathers or block.waits:
            return None
        return _relaxed(block.instructions[0])

    def window(self, place: int) -> frozenset[int]:
        """The places that the thread of an access at `place` may run before that happens."""
        if place not in self._made:
            blocks = self._blocks
            (access,) = blocks[place].instructions
            found: set[int] = set()
            ahead = list(blocks[place].terminator.targets)
            while ahead:
                here = ahead.pop()
                if here not in found and here != place and self._passes(access, here):
                    found.add(here)
                    ahead += blocks[here].terminator.targets
            self._made[place] = frozenset(found)
        return self._made[place]

    def _use(self, place: int) -> _Use:
        if place not in self._uses:
            block = self._blocks[place]
            own = [*block.instructions, *([block.terminator.instruction] if block.terminator.instruction else [])]
            operands = [operands_of(each) for each in own]
            self._uses[place] = _Use(
                frozenset(register.name for written, _ in operands for register in written),
                frozenset(register.name for _, read in operands for register in read),
            )
        return self._uses[place]

    def _passes(self, access: Instruction, place: int) -> bool:
        """Whether a thread may run the block at a place before its access."""
        block, use = self._blocks[place], self._use(place)
        if block.terminator.kind not in ("jump", "branch") or block.gathers or block.waits:
            return False
        written, read = operands_of(access)
        results, sources = ({register.name for register in each} for each in (written, read))
        if results & (use.written | use.read) or sources & use.written:
            return False
        return all(_is_apart(access, each, block) for each in block.instructions)


def _relaxed(instruction: Instruction) -> MemoryOpcode | None:
    opcode = memory_opcode(instruction.opcode)
    if opcode is None or not opcode.strong or opcode.space not in ("global", "shared"):
        return None
    relaxed = opcode.semantics in _RELAXED or (opcode.stem in ("atom", "red") and opcode.semantics == "")
    return opcode if relaxed else None


def _is_apart(access: Instruction, other: Instruction, block: Block) -> bool:
    """Whether nothing orders an instruction behind an access of the same thread."""
    if other.opcode.split(".")[0] in _COMPUTES:
        return True
    opcode = memory_opcode(other.opcode)
    if opcode is None:
        return False
    if opcode.space in ("param", "const", "local"):
        return True
    if communicates(other):
        # Whether it is of other bytes is asked when its thread comes to it.
        return _relaxed(other) is not None and len(block.instructions) == 1
    return _lie_apart(access, other)


def _lie_apart(one: Instruction, other: Instruction) -> bool:
    """Whether two accesses are certainly of different bytes, as the text has them."""
    opcodes = memory_opcode(one.opcode), memory_opcode(other.opcode)
    places = [next((each for each in held.operands if isinstance(each, Address)), None) for held in (one, other)]
    first, second = places
    if opcodes[0] is None or opcodes[1] is None or first is None or second is None:
        return False
    spaces = {opcodes[0].space, opcodes[1].space}
    if spaces == {"global", "shared"}:
        return True
    if len(spaces) > 1 or first.base != second.base:
        return False
    widths = [opcode.size * opcode.count for opcode in opcodes if opcode is not None]
    return first.offset + widths[0] <= second.offset or second.offset + widths[1] <= first.offset
