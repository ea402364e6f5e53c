"""Reads of registers that may be unwritten, as native code sees them.

A register that something may read before anything has written it begins with a value that hardly any other has, see
`refmoe.ptx.program.unwritten`. In front of such a read native code compares; where a lane holds that value, or where
the register is a predicate, Python is told.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Protocol

from llvmlite import ir

from refmoe.ptx.native.context import Context
from refmoe.ptx.native.scalar import WARP_MASK, word
from refmoe.ptx.native.scalar import field as table_field
from refmoe.ptx.ops.lanes import BITS, LaneBuilder, Value
from refmoe.ptx.program.pieces import Homes, Piece
from refmoe.ptx.program.unwritten import CANARIES, UnwrittenReads
from refmoe.ptx.text.syntax import Instruction

# Makes code that lets Python do an instruction for the lanes of a mask.
Python = Callable[[Instruction, Value], Any]


class Writer(Protocol):
    """The writer of a piece.

    Attributes:
        piece: which.
        build_: where its code goes.
        context: pointer to the table of that name.
        mask: the acting lanes.
        lanes: makes vectors.
        values: of registers by name.
    """

    piece: Piece
    build_: Any
    context: Value
    mask: Value
    lanes: LaneBuilder
    values: dict[str, Value]


class Suspects:
    """The reads of an entry that may be of an unwritten register.

    Attributes:
        unwritten: which they are.
        homes: number and kind of each register that lives across pieces.
        begins: number in its block of the first instruction of each piece, by (block, number of the piece).
        sites: numbers of the places where Python is told of one.
    """

    def __init__(self, homes: Homes, unwritten: UnwrittenReads) -> None:
        self.unwritten = unwritten
        self.homes = homes.registers
        self.begins = {
            (piece.block, piece.number): sum(len(each.instructions) for each in of_block[: piece.number])
            for of_block in homes.pieces
            for piece in of_block
        }
        self.sites: set[int] = set()


class Looker:
    """Looks at the reads of one piece, instruction by instruction."""

    def __init__(self, writer: Writer, suspects: Suspects, sites: list[Instruction], python: Python) -> None:
        self._writer, self._suspects, self._sites, self._python = writer, suspects, sites, python
        self._block = writer.piece.block
        self._number = suspects.begins[self._block, writer.piece.number]
        # Registers that are known to be written in all acting lanes.
        self._written: set[str] = set()

    def look(self, instruction: Instruction) -> None:
        """Tell Python if an acting lane is about to read a register that may be unwritten."""
        writer, build = self._writer, self._writer.build_
        names = self._suspects.unwritten.reads.get((self._block, self._number), ())
        self._number += 1
        found = None
        for name in names:
            if name in self._written:
                continue
            held, kind = writer.values[name], self._suspects.homes[name][1]
            hits = writer.mask
            if kind != "pred":
                canary = writer.lanes.constant(CANARIES[kind], BITS[kind])
                hits = build.and_(hits, build.icmp_unsigned("==", held, canary))
            if instruction.guard is None or name == instruction.guard.name:
                self._written.add(name)
            else:
                guard = writer.values[instruction.guard.name]
                hits = build.and_(hits, build.not_(guard) if instruction.negated else guard)
            found = hits if found is None else build.or_(found, hits)
        if found is None:
            return
        bits = build.bitcast(found, WARP_MASK)
        wanted = build.icmp_unsigned("!=", table_field(build, writer.context, Context.LOOK_UNWRITTEN), word(0))
        some = build.icmp_unsigned("!=", bits, ir.Constant(WARP_MASK, 0))
        with build.if_then(build.and_(some, wanted), likely=False):
            self._suspects.sites.add(len(self._sites))
            self._python(instruction, bits)
