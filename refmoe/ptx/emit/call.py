"""Statements of the calls that are left: of functions that the driver has, and those that the executor refuses."""

from __future__ import annotations

from refmoe.ptx import isa
from refmoe.ptx.emit.builder import Builder
from refmoe.ptx.engine.driver.device_heap import Allocate, Free
from refmoe.ptx.engine.driver.device_print import AssertFail, Print
from refmoe.ptx.program.inline import ALLOCATING, BUILTINS, FREEING
from refmoe.ptx.text.syntax import Instruction, Register, Sink, Symbol

_EMITTER_OF = {"vprintf": Print, "__assertfail": AssertFail, FREEING: Free, **dict.fromkeys(ALLOCATING, Allocate)}
# Functions of the CUDA runtime that kernels may call.
_RUNTIME = "cuda"


def call(emitter: Builder, instruction: Instruction) -> None:
    """A call that is not inlined.

    Raises:
        isa.NoSuchInstruction: the executor does not have what it calls; the reason says why.
        ValueError: its operands do not fit.
    """
    operands = instruction.operands
    target = operands[1] if len(operands) > 1 else None
    if not isinstance(operands[0], Register | Sink) or not isinstance(target, Symbol) or target.name not in BUILTINS:
        raise isa.NoSuchInstruction(instruction.opcode, _reason(emitter, instruction))
    result, kinds = BUILTINS[target.name]
    values = [emitter.value(operand, kind) for operand, kind in zip(operands[2:], kinds, strict=True)]
    work = emitter.call(_EMITTER_OF[target.name](instruction), *values, emitter.guard(instruction))
    if result is None:
        emitter.lines.append(work)
    else:
        emitter.assign(instruction, operands[0], work, result)


def _reason(emitter: Builder, instruction: Instruction) -> str:
    """Why a call was not replaced by a body."""
    declared = emitter.module.declared
    named = [operand.name for operand in instruction.operands if isinstance(operand, Symbol)]
    called = next((name for name in named if name in declared), named[0] if named else "")
    if any(isinstance(operand, Register) for operand in instruction.operands):
        return "an indirect call of an address that is no known function's"
    function = emitter.module.function(called)
    assert function is None or function.body is None
    if called.startswith(_RUNTIME):
        return f"{called} in device code is of the CUDA runtime, and the executor has the runtime of no device"
    return f"{called} has no body in this module, and the executor links no other one"
