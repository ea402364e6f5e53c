"""The machine code of an entry: the pieces that have it, one object file, kept on disk by what it was made of."""

from __future__ import annotations

import hashlib
import json
import pickle
from collections.abc import Mapping, Sequence
from dataclasses import astuple, dataclass, field

from refmoe.native import cache as kept
from refmoe.native.compiler import LEVEL, Native, compiled, key_of
from refmoe.ptx.native.memory import Variant
from refmoe.ptx.native.mma import WarpMma
from refmoe.ptx.native.piece import Pieces, PieceWriter
from refmoe.ptx.program.blocks import Program
from refmoe.ptx.program.layout import Layout
from refmoe.ptx.program.pieces import Homes
from refmoe.ptx.program.unwritten import UnwrittenReads, instructions_of
from refmoe.ptx.text.syntax import Instruction

# Bytes of the length of a kernel's head in the cache.
_SIZE = 8


@dataclass(frozen=True)
class NativeKernel:
    """Native code of an entry.

    Attributes:
        functions: address of the code of each native piece, by (block, number).
        specials: predefined registers that it reads, whose values lie in the homes behind those of `homes`.
        symbols: module variables whose addresses it takes, in the order of the table.
        variants: addresses of the functions for memory, in the order of the table.
        sites: the instructions that native code may leave to Python, by number.
        suspects: the numbers of those before which lanes may hold a register that nothing wrote.
        kept: what keeps the pieces alive; what they call lives as long as the process.
    """

    functions: dict[tuple[int, int], int]
    specials: tuple[str, ...]
    symbols: tuple[str, ...]
    variants: tuple[int, ...]
    sites: tuple[Instruction, ...]
    suspects: frozenset[int]
    kept: Native = field(repr=False)


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
    instructions = [each for block in program.blocks for each in instructions_of(block)]
    name = key_of("kernel", content, level=LEVEL)
    held = kept.load(name)
    if held is None:
        held = _compiled(program, homes, layout, approximate, products, unwritten, chained)
        kept.store(name, held)
    size = int.from_bytes(held[:_SIZE], "little")
    head, native = json.loads(held[_SIZE : _SIZE + size]), Native(held[_SIZE + size :])
    functions = {
        (piece.block, piece.number): native.address(f"piece_{piece.block}_{piece.number}")
        for of_block in homes.pieces
        for piece in of_block
        if piece.native
    }
    called = [(WarpMma if kind == "mma" else Variant)(*fields) for kind, *fields in head["called"]]
    return NativeKernel(
        functions,
        tuple(head["specials"]),
        tuple(head["symbols"]),
        tuple(each.address for each in called),
        tuple(instructions[number] for number in head["sites"]),
        frozenset(head["suspects"]),
        native,
    )


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


def _compiled(
    program: Program,
    homes: Homes,
    layout: Layout,
    approximate: Sequence[Instruction],
    products: Mapping[Instruction, WarpMma],
    unwritten: UnwrittenReads,
    chained: bool,
) -> bytes:
    """An object file, and before it, behind its length, what `compile_pieces` must know of it."""
    made = Pieces(program, homes, layout, approximate, products, unwritten, chained)
    for of_block in homes.pieces:
        for piece in of_block:
            if piece.native:
                PieceWriter(made, piece).build()
    instructions = [each for block in program.blocks for each in instructions_of(block)]
    numbers = {id(each): number for number, each in enumerate(instructions)}
    head = json.dumps(
        {
            "specials": made.specials,
            "symbols": made.symbols,
            "called": [["mma" if isinstance(each, WarpMma) else "memory", *astuple(each)] for each in made.variants],
            "sites": [numbers[id(each)] for each in made.sites],
            "suspects": sorted(made.suspects.sites),
        }
    ).encode()
    return len(head).to_bytes(_SIZE, "little") + head + compiled(str(made.module))
