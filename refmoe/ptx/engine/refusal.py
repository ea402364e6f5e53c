"""An instruction that the executor does not define: an error of the lanes that reach it, and of no others."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from refmoe.ptx.engine.frame import Frame
from refmoe.ptx.errors import UnknownOpcode
from refmoe.ptx.text.syntax import Instruction

Array = Any


@dataclass(frozen=True)
class RefusedInstruction:
    """What stands in the place of an instruction. `reason`: what is missing, where that is not the opcode itself."""

    instruction: Instruction
    reason: str

    def __call__(self, frame: Frame, guard: Array | None) -> None:
        """Raises UnknownOpcode if the guard of a lane is on."""
        lane = frame.first_active(guard)
        if lane is None:
            return
        block, thread = frame.machine.place_of(lane)
        detail = f" ({self.reason})" if self.reason else ""
        what = f"unknown opcode {self.instruction.opcode}{detail}"
        message = f"block {block} thread {thread}: {what}; {frame.machine.describe(self.instruction)}"
        raise UnknownOpcode.of(self.instruction, message, block, thread)
