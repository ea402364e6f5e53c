"""The machine code of an entry: the code of its pieces' templates, and the tables that make them its own."""

from __future__ import annotations

import hashlib
import pickle
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple, cast

import numpy as np

from refmoe.native import cache as kept
from refmoe.native.compiler import LEVEL, key_of
from refmoe.ptx.native import batch
from refmoe.ptx.native.batch import Batch
from refmoe.ptx.native.context import FIELD_BYTES, starts
from refmoe.ptx.native.memory import MatrixLoad, Variant
from refmoe.ptx.native.mma import WarpMma
from refmoe.ptx.native.scalar import PLACE_SHIFT
from refmoe.ptx.native.template import Instance, Kind, Slot, Templates, offset_of
from refmoe.ptx.ops.lanes import LANES
from refmoe.ptx.program.blocks import Program
from refmoe.ptx.program.layout import Layout
from refmoe.ptx.program.pieces import Homes
from refmoe.ptx.program.unwritten import UnwrittenReads, instructions_of
from refmoe.ptx.text.literals import literal_bits
from refmoe.ptx.text.syntax import Immediate, Instruction, Operand

# Bytes of a lane's value of a predefined register, whatever its kind.
_SPECIAL_BYTES = 4


class PieceCode(NamedTuple):
    """What runs a piece.

    Attributes:
        function: the address of its template's code, of type `PIECE`.
        table: the address of the table that the code is given.
    """

    function: int
    table: int


@dataclass(frozen=True)
class NativeKernel:
    """Native code of an entry.

    Attributes:
        pieces: the code of each native piece, by (block, number).
        specials: predefined registers that it reads, whose values lie in the homes behind those of `homes`.
        symbols: module variables whose addresses it takes, in the order of the table.
        sites: the instructions that native code may leave to Python, by number.
        suspects: the numbers of those before which lanes may hold a register that nothing wrote.
        kept: the tables and the batches, which live as long as this; what those call lives as long as the process.
    """

    pieces: dict[tuple[int, int], PieceCode]
    specials: tuple[str, ...]
    symbols: tuple[str, ...]
    sites: tuple[Instruction, ...]
    suspects: frozenset[int]
    kept: tuple[Any, ...] = field(repr=False)


@dataclass
class Image:
    """An entry's tables before anything has an address, as they are kept on disk.

    Attributes:
        pieces: of each native piece (block, number), the key of its template, and the first word of its table.
        words: of all tables, int64; what is an address is 0.
        functions: words that hold the address of a function.
        targets: words that hold the address of the code, or of the table, of a piece.
        specials, symbols, suspects: see `NativeKernel`.
        sites: numbers of instructions in the entry.
        batches: names of those that have the templates.
    """

    pieces: list[tuple[tuple[int, int], str, int]] = field(default_factory=list)
    words: list[int] = field(default_factory=list)
    functions: list[tuple[int, Variant | MatrixLoad | WarpMma]] = field(default_factory=list)
    targets: list[tuple[int, Kind, int]] = field(default_factory=list)
    specials: list[str] = field(default_factory=list)
    symbols: list[str] = field(default_factory=list)
    sites: list[int] = field(default_factory=list)
    suspects: set[int] = field(default_factory=set)
    batches: list[str] = field(default_factory=list)


def compile_pieces(
    content: str,
    program: Program,
    homes: Homes,
    layout: Layout,
    approximate: Sequence[Instruction],
    products: Mapping[Instruction, WarpMma],
    unwritten: UnwrittenReads,
    chained: bool,
) -> NativeKernel:
    """Native code of all pieces that are to be native.

    Args:
        content: their `content_of`.
        program: the entry.
        homes: its pieces.
        layout: where variables lie.
        approximate: the approximate instructions, in the order in which their use is noted.
        products: the native code of tensor-core instructions.
        unwritten: reads of registers that may be unwritten.
        chained: whether whole blocks count themselves and go on to others; if not, Python does both.
    """
    name = key_of("kernel", content, level=LEVEL)
    held = kept.load(name)
    if held is not None:
        image: Image = pickle.loads(held)
        batches = [each for each in map(batch.load, image.batches) if each is not None]
        if len(batches) == len(image.batches):
            return _linked(program, image, batches)
    templates = Templates(program, homes, layout, products, unwritten, chained)
    image, batches = _imaged(program, homes, templates, approximate)
    kept.store(name, pickle.dumps(image))
    return _linked(program, image, batches)


def content_of(
    program: Program,
    homes: Homes,
    layout: Layout,
    products: Mapping[Instruction, WarpMma],
    unwritten: UnwrittenReads,
    chained: bool,
) -> str:
    """A digest of all that the code of an entry depends on; lines are no part of it."""
    forms, blocks = [], []
    for block in program.blocks:
        end = block.terminator
        whole = (*block.instructions, *(() if end.instruction is None else (end.instruction,)))
        forms += [repr(products[each]) for each in whole if each in products]
        body = [(each.opcode, each.operands, each.guard, each.negated) for each in whole]
        edges = (end.kind, end.targets, sorted(block.back_edges), sorted(block.polling_edges), block.gathers)
        cuts = [(len(piece.instructions), piece.native) for piece in homes.pieces[block.index]]
        blocks.append((body, edges, cuts, homes.native[block.index]))
    reads = sorted(unwritten.reads.items())
    return hashlib.sha256(pickle.dumps((blocks, homes.registers, layout, forms, reads, chained))).hexdigest()


def _imaged(
    program: Program, homes: Homes, templates: Templates, approximate: Sequence[Instruction]
) -> tuple[Image, list[Batch]]:
    """The tables of an entry, and the batches that have its templates, compiled if they have to be."""
    instances = [templates.of(piece) for of_block in homes.pieces for piece in of_block if piece.native]
    keys = [each.template.key() for each in instances]
    found = batch.find({key: each.template for key, each in zip(keys, instances, strict=True)})
    tables = _Tables(program, homes, approximate)
    for key, instance in zip(keys, instances, strict=True):
        tables.add(instance, key, found[key].slots[key])
    batches = list(dict.fromkeys(found.values()))
    tables.image.batches = [each.name for each in batches]
    return tables.image, batches


class _Tables:
    """Makes the image of an entry, piece by piece."""

    def __init__(self, program: Program, homes: Homes, approximate: Sequence[Instruction]) -> None:
        self.image = Image()
        self._program, self._homes = program, homes
        # A warp's homes lie one behind the other: the bytes of those before, for one lane.
        self._starts = starts([kind for _, kind in homes.registers.values()])
        instructions = (each for block in program.blocks for each in instructions_of(block))
        self._numbers = {id(each): number for number, each in enumerate(instructions)}
        self._approximate = {each: number for number, each in enumerate(approximate)}

    def add(self, instance: Instance, key: str, slots: Sequence[Slot]) -> None:
        """Fill the table of a piece."""
        image, piece = self.image, instance.piece
        image.pieces.append(((piece.block, piece.number), key, len(image.words)))
        for slot in slots:
            image.words.append(self._word(instance, slot))

    def _word(self, instance: Instance, slot: Slot) -> int:
        """What a slot holds; 0 for an address, which is filled in when there is one."""
        image, piece, of = self.image, instance.piece, slot.of
        if slot.kind is Kind.BLOCK:
            return piece.block << PLACE_SHIFT
        if slot.kind is Kind.HOME:
            return LANES * self._starts[self._homes.registers[instance.registers[str(of)]][0]]
        if slot.kind is Kind.SPECIAL:
            return LANES * (self._starts[-1] + _SPECIAL_BYTES * _number(image.specials, str(of)))
        if slot.kind is Kind.SYMBOL:
            return FIELD_BYTES * _number(image.symbols, instance.variable(str(of)))
        if isinstance(of, Variant | MatrixLoad | WarpMma):
            image.functions.append((len(image.words), of))
            return 0
        if slot.kind is Kind.NUMBER:
            number, operand, kind = cast("tuple[int, int, str]", of)
            return _number_bits(piece.instructions[number].operands[operand], kind)
        assert isinstance(of, int)
        if slot.kind is Kind.OFFSET:
            return offset_of(piece.instructions[of])
        if slot.kind in (Kind.TARGET, Kind.TARGET_TABLE):
            target = self._program.blocks[piece.block].terminator.targets[of]
            image.targets.append((len(image.words), slot.kind, target))
            return 0
        instruction = (*piece.instructions, piece.branch)[of]
        assert instruction is not None
        if slot.kind is Kind.APPROXIMATE:
            return self._approximate[instruction]
        image.sites.append(self._numbers[id(instruction)])
        if slot.kind is Kind.SUSPECT:
            image.suspects.add(len(image.sites) - 1)
        return len(image.sites) - 1


def _number_bits(operand: Operand, kind: str) -> int:
    """What an operand that is a number is in a register, as an integer with a sign of 64 bits."""
    assert isinstance(operand, Immediate)
    return ((literal_bits(operand, kind) + (1 << 63)) & ((1 << 64) - 1)) - (1 << 63)


def _number(names: list[str], name: str) -> int:
    """The place of a name in a list, at whose end it goes if it is new."""
    if name not in names:
        names.append(name)
    return names.index(name)


def _linked(program: Program, image: Image, batches: Sequence[Batch]) -> NativeKernel:
    """An image with the addresses of this process."""
    of = {key: each for each in batches for key in each.slots}
    words = np.array(image.words, np.int64)
    pieces = {
        place: PieceCode(of[key].address(key), words.ctypes.data + FIELD_BYTES * first)
        for place, key, first in image.pieces
    }
    for word, called in image.functions:
        words[word] = called.address
    for word, kind, block in image.targets:
        target = pieces[block, 0]
        words[word] = target.function if kind is Kind.TARGET else target.table
    instructions = [each for block in program.blocks for each in instructions_of(block)]
    return NativeKernel(
        pieces,
        tuple(image.specials),
        tuple(image.symbols),
        tuple(instructions[number] for number in image.sites),
        frozenset(image.suspects),
        (words, *batches),
    )
