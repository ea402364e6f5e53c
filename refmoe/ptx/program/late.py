"""Which strong accesses may happen after later ones of their own thread.

PTX keeps relaxed accesses of one thread in order only where something says so: a fence or a barrier between them, an
acquire before or a release behind, a dependency, or one location ("Causality order", "Coherence", "No Thin Air"). So
of two threads that each read what the other writes after its own read, both may see the write ("load buffering").

An access may be put off as long as its thread does nothing that one of these orders behind it: its *window*. In there
its thread neither uses nor overwrites the registers of the access. What it does to the same bytes waits, is put off,
too, or is a store that overtakes the access, see `refmoe.ptx.engine.thread_steps`.

A fence, an acquire or a release orders nothing by itself: the axioms of PTX let an access pass one that synchronises
with nobody yet. So a read has a wider window behind those that it passes. As long as it is open no other thread may
learn what its thread passes on, see `refmoe.ptx.engine.thread_steps`.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property

from refmoe.ptx.program.blocks import Block, Program, communicates
from refmoe.ptx.program.registers import operands_of
from refmoe.ptx.state.records import GRID, STRENGTHS
from refmoe.ptx.text.memory_ops import MemoryOpcode, memory_opcode
from refmoe.ptx.text.syntax import Address, Instruction

# Instructions that do nothing but compute.
_COMPUTES = frozenset((
    "mov", "add", "sub", "mul", "mad", "mul24", "mad24", "fma", "div", "rem", "abs", "neg", "min", "max", "setp", "set",
    "selp", "and", "or", "xor", "not", "cnot", "shl", "shr", "shf", "cvt", "cvta", "prmt", "bfe", "bfi", "lop3", "bra",
))  # fmt: skip
_RELAXED = ("relaxed", "volatile")
_ORDERS = ("acquire", "release", "acq_rel")


@dataclass(frozen=True)
class Wider:
    """How far a read may be put off that passes fences, acquires and releases of its own thread.

    Attributes:
        crossings: the places of those.
        behind: the places that the thread may run behind one of them.
    """

    crossings: frozenset[int] = frozenset()
    behind: frozenset[int] = frozenset()


@dataclass(frozen=True)
class _Use:
    """Names of the registers that a block writes, and of those that it reads."""

    written: frozenset[str]
    read: frozenset[str]


class Windows:
    """The windows of the accesses of an entry, by place.

    Args:
        program: the entry.
    """

    def __init__(self, program: Program) -> None:
        self._blocks = program.blocks
        self._made: dict[int, tuple[frozenset[int], Wider]] = {}
        self._uses: dict[int, _Use] = {}

    @cached_property
    def worth(self) -> frozenset[int]:
        """The places of accesses that may be put off, and in whose window is a strong write."""
        places = range(len(self._blocks))
        return frozenset(
            place
            for place in places
            if self.access(place) is not None and any(self._is_strong_write(other) for other in self._all_within(place))
        )

    def _all_within(self, place: int) -> frozenset[int]:
        wider = self.wider(place)
        return self.window(place) | wider.crossings | wider.behind

    def _is_strong_write(self, place: int) -> bool:
        opcodes = map(memory_opcode, (each.opcode for each in self._blocks[place].instructions))
        return any(opcode is not None and opcode.strong and opcode.stem != "ld" for opcode in opcodes)

    def access(self, place: int) -> MemoryOpcode | None:
        """The access that alone is the block at a place and may be put off; None if something else is there."""
        block = self._blocks[place]
        if len(block.instructions) != 1 or block.terminator.kind != "jump" or block.gathers or block.waits:
            return None
        return _deferrable(block.instructions[0])

    def window(self, place: int) -> frozenset[int]:
        """The places that the thread of an access at `place` may run before that happens."""
        return self._found(place)[0]

    def wider(self, place: int) -> Wider:
        """How far the thread of an access at `place` may go if that passes fences, acquires and releases."""
        return self._found(place)[1]

    def _found(self, place: int) -> tuple[frozenset[int], Wider]:
        if place not in self._made:
            blocks = self._blocks
            (access,) = blocks[place].instructions
            reads = not access.opcode.startswith("st.")
            within, crossings, behind = set[int](), set[int](), set[int]()
            ahead = [(target, within) for target in blocks[place].terminator.targets]
            while ahead:
                here, found = ahead.pop()
                if here in found or here == place:
                    continue
                if self._passes(access, here, _is_apart):
                    found.add(here)
                elif reads and here not in crossings and self._passes(access, here, self._is_crossed):
                    crossings.add(here)
                    found = behind
                else:
                    continue
                ahead += [(target, found) for target in blocks[here].terminator.targets]
            self._made[place] = frozenset(within), Wider(frozenset(crossings), frozenset(behind))
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

    def _passes(self, access: Instruction, place: int, is_apart: _Apart) -> bool:
        """Whether a thread may run the block at a place before its access."""
        block, use = self._blocks[place], self._use(place)
        if block.terminator.kind not in ("jump", "branch") or block.gathers or block.waits:
            return False
        written, read = operands_of(access)
        results, sources = ({register.name for register in each} for each in (written, read))
        if results & (use.written | use.read) or sources & use.written:
            return False
        return all(is_apart(access, each, block) for each in block.instructions)

    def _is_crossed(self, access: Instruction, other: Instruction, block: Block) -> bool:
        """`_is_apart`, but for a fence, an acquire or a release."""
        if not communicates(other):
            return _is_apart(access, other, block)
        return _is_passed(other)


def _relaxed(instruction: Instruction) -> MemoryOpcode | None:
    opcode = memory_opcode(instruction.opcode)
    if opcode is None or not opcode.strong or opcode.space not in ("global", "shared"):
        return None
    relaxed = opcode.semantics in _RELAXED or (opcode.stem in ("atom", "red") and opcode.semantics == "")
    return opcode if relaxed else None


def _deferrable(instruction: Instruction) -> MemoryOpcode | None:
    """An access that may be put off: a relaxed one, or one that reads."""
    opcode = memory_opcode(instruction.opcode)
    if opcode is None or opcode.stem == "st" or not opcode.strong or opcode.space not in ("global", "shared"):
        return _relaxed(instruction)
    return opcode


# Whether an instruction, of a block, may come before an access of the same thread.
_Apart = Callable[[Instruction, Instruction, Block], bool]


def _is_passed(instruction: Instruction) -> bool:
    """Whether it is a fence, an acquire or a release, which a read may pass: it orders nothing by itself."""
    stem, *parts = instruction.opcode.split(".")
    if sequential_scope(instruction):
        return True
    if stem == "fence":
        return len(parts) == 2 and parts[0] in _ORDERS
    opcode = memory_opcode(instruction.opcode)
    return opcode is not None and opcode.strong and opcode.semantics in _ORDERS


def sequential_scope(instruction: Instruction) -> int:
    """The scope, see `refmoe.ptx.state.records`, of a fence `.sc`; 0 of anything else."""
    stem, *parts = instruction.opcode.split(".")
    if (stem == "membar" and "proxy" not in parts) or (stem == "fence" and "sc" in parts):
        return scope_of(instruction)
    return 0


def scope_of(instruction: Instruction) -> int:
    """The scope, see `refmoe.ptx.state.records`, of a strong access or a fence."""
    return next((STRENGTHS[part] for part in instruction.opcode.split(".") if part in STRENGTHS), GRID)


def acquiring_scope(instruction: Instruction) -> int:
    """The scope, see `refmoe.ptx.state.records`, in which its thread may learn something by it; 0 if in none."""
    if _relaxed(instruction) is not None or "release" in instruction.opcode.split("."):
        return 0
    return scope_of(instruction)


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
        # Whether it is of the same bytes is asked when its thread comes to it.
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
