"""Reads of registers that may be unwritten, as native code sees them.

A register that something may read before anything has written it begins with a value that hardly any other has, see
`refmoe.ptx.program.unwritten`. In front of such a read native code compares; where a lane holds that value, or where
the register is a predicate, Python is told.
"""

from __future__ import annotations

from typing import Any, Protocol

from llvmlite import ir

from refmoe.ptx.native.context import Context
from refmoe.ptx.native.scalar import WARP_MASK, word
from refmoe.ptx.native.scalar import field as table_field
from refmoe.ptx.native.template import Kind, Template
from refmoe.ptx.ops.lanes import BITS, LaneBuilder, Value
from refmoe.ptx.program.unwritten import CANARIES
from refmoe.ptx.text.syntax import Instruction


class Writer(Protocol):
    """The writer of a piece.

    Attributes:
        template: of the piece.
        position: the number of the instruction that comes next.
        build_: where its code goes.
        context: pointer to the table of that name.
        mask: the acting lanes.
        lanes: makes vectors.
        values: of registers by name.
    """

    template: Template
    position: int
    build_: Any
    context: Value
    mask: Value
    lanes: LaneBuilder
    values: dict[str, Value]

    def python(self, bits: Value, values: Value | None = None, what: Kind = ...) -> None:
        """Let Python do the instruction for the lanes of a mask."""


class Looker:
    """Looks at the reads of one piece, instruction by instruction."""

    def __init__(self, writer: Writer) -> None:
        self._writer = writer
        self._kinds = {register.name: register.kind for register in writer.template.loads}
        # Registers that are known to be written in all acting lanes.
        self._written: set[str] = set()

    def look(self, instruction: Instruction) -> None:
        """Tell Python if an acting lane is about to read a register that may be unwritten."""
        writer, build = self._writer, self._writer.build_
        found = None
        for name in writer.template.suspects[writer.position]:
            if name in self._written:
                continue
            held, kind = writer.values[name], self._kinds[name]
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
            writer.python(bits, what=Kind.SUSPECT)
