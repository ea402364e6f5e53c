"""Code of a block that follows undefined values: all in Python, with a call in front of and behind each instruction.

`shadowed_N(R, F, X)` does what the block does otherwise; `X` is what is undefined of the registers, see
`refmoe.ptx.engine.undefined.execution`.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from refmoe.ptx.emit.emitter import Emitter
from refmoe.ptx.emit.plan import Plan
from refmoe.ptx.engine.code import View
from refmoe.ptx.engine.machine import announce
from refmoe.ptx.program.blocks import Block
from refmoe.ptx.program.unwritten import uses_of
from refmoe.ptx.text.syntax import Instruction

# Of a block: the statements of each instruction, and the expression that it returns.
Checked = Callable[[Block], tuple[list[list[str]], str | None]]


class ShadowedBlocks:
    """The functions of an entry's blocks, each made when it is first asked for."""

    def __init__(self, plan: Plan, emitter: Emitter, view: View, name: str, checked: Checked) -> None:
        self._plan, self._emitter, self._view = plan, emitter, view
        self._name, self._checked = name, checked
        self._made: dict[int, Callable[..., Any]] = {}

    def __call__(self, block: int) -> Callable[..., Any]:
        """The function of a block."""
        if block not in self._made:
            source = self._source(self._plan.program.blocks[block])
            names = {name: self._view.seen(work) for name, work in self._emitter.names.items()}
            exec(compile(source, f"<{self._name}:{self._plan.entry.name}:{block}>", "exec"), names)
            self._made[block] = names[f"shadowed_{block}"]
        return self._made[block]

    def _source(self, block: Block) -> str:
        emitter, shared = self._emitter, self._plan.homes.registers
        statements, result = self._checked(block)
        lines = [f"def shadowed_{block.index}(R, F, X):"]
        number = 0
        for piece in self._plan.homes.pieces[block.index]:
            if self._view.alone and piece.instructions:
                lines.append(f"    {emitter.call(announce, emitter.bind('i', piece.instructions[0]))}")
            for register in piece.usage.loads.values():
                lines.append(f"    {emitter.local(register)} = F.get(R, {shared[register.name][0]})")
            for instruction in piece.instructions:
                if instruction is block.terminator.instruction:
                    continue
                # One that does not exist here is an error whatever it is told.
                known = instruction not in self._plan.refused
                before, after = f"X.before({number}, {self._values(instruction)})", "X.after()"
                body = [before, *statements[number], after] if known else statements[number]
                lines += [f"    {line}" for line in body]
                number += 1
            for register in piece.usage.writes.values():
                if register.name in shared:
                    lines.append(f"    F.put(R, {shared[register.name][0]}, {emitter.local(register)})")
        if block.terminator.instruction is not None:
            lines.append(f"    X.end({self._values(block.terminator.instruction)})")
        return "\n".join([*lines, f"    return {result}"]) + "\n"

    def _values(self, instruction: Instruction) -> str:
        """A dictionary of the registers that an instruction reads, by name."""
        held = {register.name: self._emitter.local(register) for register in uses_of(instruction)}
        return "{" + ", ".join(f"{name!r}: {local}" for name, local in held.items()) + "}"
