"""Statements of the video instructions, whose operands say which of their parts are meant."""

from __future__ import annotations

from refmoe.ptx import isa
from refmoe.ptx.emit.builder import Builder
from refmoe.ptx.text.syntax import Instruction, Operand, Selected


def video(emitter: Builder, instruction: Instruction) -> None:
    """`vadd`, `vset4` and their kin.

    Raises:
        isa.NoSuchInstruction: another spelling.
        ValueError: its operands do not fit.
    """
    destination, *sources = instruction.operands
    chosen = [each.parts if isinstance(each, Selected) else "" for each in instruction.operands]
    negated = [isinstance(each, Selected) and each.negated for each in instruction.operands]
    if negated[0] or chosen[3:] not in ([], [""]):
        raise ValueError("a part or a minus where there is none")
    minus = (*negated[1:], False, False, False)
    d, a, b = (*chosen, "", "")[:3]
    selection = isa.Selection(d, a, b, (minus[0], minus[1], minus[2]))
    operation = isa.resolve_video(instruction.opcode, selection, len(sources))
    values = [emitter.value(_whole(each), kind) for each, kind in zip(sources, operation.sources, strict=True)]
    if operation.exact_when is not None:
        emitter.note(instruction, operation.exact_when, values)
    call = f"{emitter.bind('f', operation.function)}({', '.join(values)})"
    emitter.assign(instruction, _whole(destination), call, "b32")


def _whole(operand: Operand) -> Operand:
    return operand.operand if isinstance(operand, Selected) else operand
