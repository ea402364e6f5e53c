"""An instruction that the executor does not define: an error of the lanes that reach it, and of no others."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from refmoe.ptx.engine.frame import Frame
from refmoe.ptx.errors import ParseError, UnknownOpcode
from refmoe.ptx.text.syntax import Instruction

Array = Any


@dataclass(frozen=True)
class RefusedInstruction:
    """What stands in the place of an instruction. `reason`: what is wrong, where that is not the opcode itself."""

    instruction: Instruction
    reason: str

    def __call__(self, frame: Frame, guard: Array | None) -> None:
        """Raises if the guard of a lane is on: a ParseError where the text is no PTX, else an UnknownOpcode."""
        lane = frame.first_active(guard)
        if lane is None:
            return
        block, thread = frame.machine.place_of(lane)
        where = f"block {block} thread {thread}"
        described = frame.machine.describe(self.instruction)
        refused = self.instruction.refused
        if refused is not None and not refused.is_ptx:
            line = self.instruction.line
            message = f"{where}: {refused.reason}; {described}"
            raise ParseError(message, line=line, name=frame.machine.launch.name, block=block, thread=thread)
        opcode = self.instruction.spelling
        what = f"cannot execute {opcode} ({self.reason})" if self.reason else f"unknown opcode {opcode}"
        raise UnknownOpcode.of(self.instruction, f"{where}: {what}; {described}", block, thread)
