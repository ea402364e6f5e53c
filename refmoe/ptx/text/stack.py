"""`alloca`, `stacksave` and `stackrestore`: a variable in local memory, and where its free part begins.

A call finds all of it free, and what it took is free again when it returns: each function that asks for memory has a
variable of its own. A pointer beyond the variable is a trap, as a stack that is full ends a kernel.
"""

from __future__ import annotations

from dataclasses import replace

from refmoe.ptx.text.syntax import Function, Immediate, Instruction, Label, Operand, Register, Symbol, Variable

# Bytes of a thread for each function. Memory that nobody touches costs nothing.
STACK_BYTES = 16384
_ALIGN = 1024
_NAME = "@stack"
_TOP, _BASE, _USED = (Register(f"{_NAME}.{part}", "b64") for part in ("top", "base", "used"))
_FULL = Register(f"{_NAME}.full", "pred")
# Bytes at whose multiples memory begins where the instruction does not say it.
_DEFAULT_ALIGN = 8


def with_stack(function: Function) -> Function:
    """A function whose instructions of this family are others that do the same; others stay as they are."""
    body = function.body or ()
    lowered = [_lowered(each) if isinstance(each, Instruction) else [each] for each in body]
    if all(len(each) == 1 and each[0] is old for each, old in zip(lowered, body, strict=True)):
        return function
    first = next(each for each in body if isinstance(each, Instruction))
    begin = replace(first, opcode="mov.u64", operands=(_TOP, Symbol(_NAME)), guard=None, negated=False)
    variables = {**function.variables, _NAME: Variable(_NAME, "local", STACK_BYTES, _ALIGN, "b8")}
    return replace(function, body=(begin, *(each for group in lowered for each in group)), variables=variables)


def _lowered(instruction: Instruction) -> list[Instruction | Label]:
    opcode, operands = instruction.opcode, instruction.operands
    if opcode == "stacksave.u64" and len(operands) == 1:
        return [replace(instruction, opcode="mov.u64", operands=(operands[0], _TOP))]
    if opcode == "stackrestore.u64" and len(operands) == 1:
        return [replace(instruction, opcode="mov.u64", operands=(_TOP, operands[0]))]
    if opcode != "alloca.u64" or len(operands) not in (2, 3):
        return [instruction]
    align = operands[2] if len(operands) == 3 else Immediate(_DEFAULT_ALIGN)
    if not isinstance(align, Immediate) or align.value not in (1 << bit for bit in range(_ALIGN.bit_length())):
        return [instruction]

    def step(opcode: str, *operands: Operand) -> Instruction:
        return replace(instruction, opcode=opcode, operands=operands)

    return [
        step("add.u64", _TOP, _TOP, Immediate(align.value - 1)),
        step("and.b64", _BASE, _TOP, Immediate(-align.value)),
        step("add.u64", _TOP, _BASE, operands[1]),
        step("mov.u64", operands[0], _BASE),
        replace(step("mov.u64", _USED, Symbol(_NAME)), guard=None, negated=False),
        replace(step("sub.u64", _USED, _TOP, _USED), guard=None, negated=False),
        replace(step("setp.gt.u64", _FULL, _USED, Immediate(STACK_BYTES)), guard=None, negated=False),
        replace(step("trap"), guard=_FULL, negated=False),
    ]
