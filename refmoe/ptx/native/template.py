"""Pieces without what is their entry's own: two pieces that compute the same are one template.

A template has registers and variables by numbers in the order in which they appear. Where they lie, and by which
numbers Python knows its instructions, stands in a table that native code is given with each call: `Slot` says what a
place of it holds. A kernel that is compiled for three architectures, and the hundred versions of it in which one thing
was changed, have most templates in common, and each is compiled once.

    add.s32 %r7, %r3, %r5;  st.shared.u32 [%r9+16], %r7;      add.s32 %r2, %r8, %r1;  st.shared.u32 [%r4+16], %r2;

are both `add.s32 r0, r1, r2; st.shared.u32 [r3+n], r0`, with the homes of r1, r2 and r3, of r0 if another piece reads
it, and 16 in the table. Most numbers stand there: the parts of an unrolled loop differ in nothing else. Those that may
make shorter code are the template's.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass, replace
from enum import Enum, auto
from typing import NamedTuple

from refmoe.ptx.native.mma import WarpMma
from refmoe.ptx.program.blocks import Block, Program
from refmoe.ptx.program.layout import Layout
from refmoe.ptx.program.pieces import Homes, Piece
from refmoe.ptx.program.provenance import Bounds
from refmoe.ptx.program.registers import CARRY
from refmoe.ptx.program.unwritten import UnwrittenReads
from refmoe.ptx.text.syntax import Address, Immediate, Instruction, Register, Symbol, mapped

_ACCESSES = ("ld.", "st.", "ldmatrix.", "stmatrix.")
# Those of whole warps, whose last operand says which lanes execute them.
_MASKED = ("shfl.sync.", "vote.sync.", "redux.sync.")
_ALL_LANES = 0xFFFFFFFF
# Instructions whose code is as long whatever number an operand is, and the last of the operands that may be one.
_NUMBERED = {
    "add": 2, "sub": 2, "mul": 2, "mad": 3, "and": 2, "or": 2, "xor": 2, "min": 2, "max": 2, "mov": 1, "setp": 2,
    "selp": 2,
}  # fmt: skip
_NUMBERED_TYPES = frozenset(("b16", "b32", "b64", "u16", "u32", "u64", "s16", "s32", "s64", "f32"))


class Kind(Enum):
    """What a slot of a piece's table holds, 64 bits; `of` is what the slot says more."""

    BLOCK = auto()
    """The number of its block, in the bits above those of lanes."""
    HOME = auto()
    """Bytes from a warp's registers to the home of register `of`, a name in the template."""
    SPECIAL = auto()
    """The same, of the predefined register `of`."""
    SYMBOL = auto()
    """Bytes from the begin of the table of module variables' addresses to that of variable `of`."""
    FUNCTION = auto()
    """The address of a function: `of` is a `Variant`, a `MatrixLoad` or a `WarpMma`."""
    APPROXIMATE = auto()
    """The number of instruction `of` of the piece among the entry's approximate ones."""
    SITE = auto()
    """The number by which Python knows instruction `of` of the piece."""
    SUSPECT = auto()
    """The number by which Python knows a look at the registers that instruction `of` of the piece reads."""
    NUMBER = auto()
    """The bits of a number that is an operand; `of` is the instruction, the operand, and the kind of register."""
    OFFSET = auto()
    """What instruction `of` adds to the register in its address."""
    TARGET = auto()
    """The address of the code of the piece at target `of`."""
    TARGET_TABLE = auto()
    """The address of the table of that piece."""


class Slot(NamedTuple):
    """What a place of a piece's table holds."""

    kind: Kind
    of: object = None


@dataclass(frozen=True)
class OwnNumber(Symbol):
    """A number of the piece, which its table has: the name says which operand it is."""

    @property
    def operand(self) -> int:
        """Its place among the operands."""
        return int(self.name)


@dataclass(frozen=True)
class Where:
    """Where a variable lies that a piece names.

    Attributes:
        address: in its own space; None for a module variable, which lies where the launch says.
        space: that it belongs to.
        parameter: its first byte among the kernel's parameters, or None.
    """

    address: int | None
    space: str
    parameter: int | None


class Onward(Enum):
    """When native code goes on to a block by itself."""

    NEVER = auto()
    TOGETHER = auto()
    """Where all lanes of the warp that have not exited are here, and races are looked for."""
    ALWAYS = auto()


@dataclass(frozen=True)
class Target:
    """A block that may come next.

    Attributes:
        goes_on: when native code goes on to it by itself.
        back: whether the edge goes back.
    """

    goes_on: Onward
    back: bool


@dataclass(frozen=True)
class Template:
    """What the code of a piece depends on, besides its table.

    Attributes:
        instructions: without lines; registers and variables have numbers for names.
        branch: the conditional branch at its end, or None.
        loads: registers that it reads before it writes them.
        stores: registers that it writes and that have homes.
        variables: where those lie that it names, by number.
        parameter_bytes: of the kernel, if it names a parameter.
        bounds: of each instruction, the part of shared memory in which its address has to stay, or None.
        moved: of each instruction, whether it has an address of a register and an offset, which the table has.
        products: of each instruction, the native code of a tensor-core instruction, or None.
        suspects: of each instruction, the branch included, the registers that it may read unwritten.
        targets: of a piece that is a whole block, where it may go on; else None.
        counted: instructions that it counts at its end, or None where Python counts them.
    """

    instructions: tuple[Instruction, ...]
    branch: Instruction | None
    loads: tuple[Register, ...]
    stores: tuple[Register, ...]
    variables: tuple[Where, ...]
    parameter_bytes: int
    bounds: tuple[Bounds | None, ...]
    moved: tuple[bool, ...]
    products: tuple[WarpMma | None, ...]
    suspects: tuple[tuple[str, ...], ...]
    targets: tuple[Target, ...] | None
    counted: int | None

    def key(self) -> str:
        """A digest of all of it."""
        return hashlib.sha256(repr(self).encode()).hexdigest()

    def where(self, name: str) -> Where:
        """Where a variable lies, by its name in the template."""
        return self.variables[int(name[1:])]


@dataclass(frozen=True)
class Instance:
    """A piece of an entry as a template, and what the template's names stand for.

    Attributes:
        piece: of the entry.
        template: the same for every piece that computes the same.
        registers: the piece's name of each register, by that of the template.
        variables: the piece's name of each variable, by number.
    """

    piece: Piece
    template: Template
    registers: Mapping[str, str]
    variables: tuple[str, ...]

    def variable(self, name: str) -> str:
        """The piece's name of a variable, by that of the template."""
        return self.variables[int(name[1:])]


class Templates:
    """Makes the templates of one entry.

    Args:
        program: the entry.
        homes: its pieces.
        layout: where variables lie.
        products: the native code of tensor-core instructions.
        unwritten: reads of registers that may be unwritten.
        chained: whether whole blocks count themselves and go on to others; if not, Python does both.
    """

    def __init__(
        self,
        program: Program,
        homes: Homes,
        layout: Layout,
        products: Mapping[Instruction, WarpMma],
        unwritten: UnwrittenReads,
        chained: bool,
    ) -> None:
        self._program, self._homes, self._layout = program, homes, layout
        self._products, self._unwritten, self._chained = products, unwritten, chained
        self._onward = {
            block.index: _onward(block) if native and chained else Onward.NEVER
            for block, native in zip(program.blocks, homes.native, strict=True)
        }

    def of(self, piece: Piece) -> Instance:
        """A native piece as a template."""
        names = _Names()
        instructions = tuple(_without_numbers(names.renamed(each)) for each in piece.instructions)
        branch = None if piece.branch is None else names.renamed(piece.branch)
        whole = (*piece.instructions, *(() if piece.branch is None else (piece.branch,)))
        begin = sum(len(each.instructions) for each in self._homes.pieces[piece.block][: piece.number])
        reads = self._unwritten.reads
        suspects = tuple(
            tuple(map(names.register, reads.get((piece.block, begin + number), ()))) for number in range(len(whole))
        )
        variables = tuple(map(self._where, names.variables))
        template = Template(
            instructions,
            branch,
            tuple(map(names.changed_register, piece.usage.loads.values())),
            tuple(
                names.changed_register(each)
                for each in piece.usage.writes.values()
                if each.name in self._homes.registers
            ),
            variables,
            self._layout.parameter_bytes if any(each.parameter is not None for each in variables) else 0,
            tuple(map(self._bounds, piece.instructions)),
            tuple(offset_of(each) != 0 for each in piece.instructions),
            tuple(map(self._products.get, piece.instructions)),
            suspects,
            *self._end(self._program.blocks[piece.block]),
        )
        return Instance(piece, template, {new: old for old, new in names.registers.items()}, tuple(names.variables))

    def _where(self, name: str) -> Where:
        layout = self._layout
        return Where(layout.addresses.get(name), layout.spaces.get(name, "global"), layout.parameters.get(name))

    def _bounds(self, instruction: Instruction) -> Bounds | None:
        found = self._layout.bounded(instruction) if instruction.opcode.startswith(("ld.", "st.")) else None
        return None if found is None else replace(found, name="")

    def _end(self, block: Block) -> tuple[tuple[Target, ...] | None, int | None]:
        """How a block ends that is one piece: `targets` and `counted`."""
        if not self._homes.native[block.index]:
            return None, None
        targets = tuple(self._target(block, target) for target in block.terminator.targets)
        length = len(block.instructions) + (block.terminator.instruction is not None)
        return targets, length if self._chained else None

    def _target(self, block: Block, target: int) -> Target:
        onward, back = self._onward[target], target in block.back_edges
        # A loop that begins with an access is gone round side by side. And in a cluster Python sees who exits.
        exits = self._program.blocks[target].terminator.kind == "exit"
        if target in block.polling_edges or ((back or exits) and onward is Onward.TOGETHER):
            onward = Onward.NEVER
        return Target(onward, back)


class _Names:
    """The names that a template has for those of its piece."""

    def __init__(self) -> None:
        # The flag of carries has one name everywhere.
        self.registers: dict[str, str] = {CARRY.name: CARRY.name}
        self.variables: dict[str, int] = {}

    def register(self, name: str) -> str:
        """The template's name of a register."""
        return self.registers.setdefault(name, f"r{len(self.registers)}")

    def changed_register(self, register: Register) -> Register:
        """A register by its name in the template."""
        return Register(self.register(register.name), register.kind)

    def renamed(self, instruction: Instruction) -> Instruction:
        """An instruction without its place in a text."""
        guard = instruction.guard
        return Instruction(
            instruction.opcode,
            tuple(mapped(each, self._changed) for each in instruction.operands),
            None if guard is None else self.changed_register(guard),
            instruction.negated,
            0,
            None,
            (),
            "",
        )

    def _changed(self, operand: Register | Symbol) -> Register | Symbol:
        if isinstance(operand, Register):
            return self.changed_register(operand)
        return Symbol(f"v{self.variables.setdefault(operand.name, len(self.variables))}", operand.offset)


def offset_of(instruction: Instruction) -> int:
    """What an access of memory adds to the register in its address; 0 if there is none."""
    if instruction.opcode.startswith(_ACCESSES):
        for operand in instruction.operands:
            if isinstance(operand, Address) and isinstance(operand.base, Register):
                return operand.offset
    return 0


def _without_numbers(instruction: Instruction) -> Instruction:
    """An instruction of a template without the numbers that the table has."""
    stem, *modifiers = instruction.opcode.split(".")
    operands = instruction.operands
    if offset_of(instruction):
        without = tuple(replace(each, offset=0) if isinstance(each, Address) else each for each in operands)
        return replace(instruction, operands=without)
    last = _NUMBERED.get(stem)
    if last is None or modifiers[-1] not in _NUMBERED_TYPES:
        return instruction
    own = {
        place: OwnNumber(str(place))
        for place, each in enumerate(operands[1 : last + 1], 1)
        if isinstance(each, Immediate) and not _shortens(stem, each)
    }
    if not own:
        return instruction
    return replace(instruction, operands=tuple(own.get(place, each) for place, each in enumerate(operands)))


def _shortens(stem: str, number: Immediate) -> bool:
    """Whether LLVM makes shorter code of an instruction if it knows this number."""
    value = number.value
    return number.form == "int" and (value in (-1, 0, 1) or (stem in ("mul", "mad") and value & (value - 1) == 0))


def _onward(block: Block) -> Onward:
    """When native code goes on to a block.

    Nobody can tell when lanes run a block that accesses no memory of others and waits for nobody. Of accesses, which
    are weak in native code, only those can tell who race with them, and that is found in whatever order they run. But
    lanes of a warp come together in front of such a block: it would run once for each part of them.
    """
    if block.gathers:
        return Onward.TOGETHER if _meets_all(block.instructions[0]) else Onward.NEVER
    return Onward.TOGETHER if any(map(_accesses, block.instructions)) else Onward.ALWAYS


def _accesses(instruction: Instruction) -> bool:
    stem, *parts = instruction.opcode.split(".")
    return stem in ("st", "ldmatrix", "stmatrix") or (stem == "ld" and parts[0] not in ("param", "const"))


def _meets_all(instruction: Instruction) -> bool:
    """Whether a warp-level instruction says that all lanes execute it, whoever they are."""
    mask = instruction.operands[-1]
    return (
        instruction.opcode.startswith(_MASKED) and isinstance(mask, Immediate) and mask.form == "int"
        and mask.value & _ALL_LANES == _ALL_LANES
    )  # fmt: skip
