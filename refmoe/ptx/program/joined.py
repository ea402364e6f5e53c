"""Instructions that exchange values, in several branches, at which the lanes of one member mask meet.

`shfl.sync` waits until all members of its mask have executed one with the same qualifiers and the same mask (PTX ISA,
"shfl.sync"; so do `vote`, `match`, `redux` and `elect`). Since sm_70 these may be several instructions. Each of them
then hands its operands to one that stands for all, and takes its result from there:

    mov    t1, a                     joint:  shfl   t0, t1, t2, t3, t4
    ...                                      brx    t5, {back0, back1}
    mov    t5, 0
    bra    joint
    back0: mov d, t0
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from refmoe.ptx.program.blocks import lower_guards
from refmoe.ptx.text.syntax import (
    Function,
    Immediate,
    Instruction,
    Label,
    Not,
    Operand,
    Pair,
    Register,
    Special,
    Symbol,
)


def joined(function: Function, groups: Sequence[Sequence[Instruction]]) -> Function:
    """A function, without calls, in which the instructions of each group are one; later groups may hold such a one."""
    for number, group in enumerate(groups):
        function = _join(function, group, f"@joint{number}")
    return function


def _join(function: Function, group: Sequence[Instruction], name: str) -> Function:
    """`group` becomes one instruction; the names of what it needs begin with `name`."""
    first = group[0]
    destinations, sources = _kinds(first)
    results = [Register(f"{name}.result{number}", kind) for number, kind in enumerate(destinations)]
    operands = [Register(f"{name}.operand{number}", kind) for number, kind in enumerate(sources)]
    back = Register(f"{name}.back", "b32")
    body: list[Instruction | Label] = []
    ways: list[str] = []
    for statement in lower_guards(function):
        if not isinstance(statement, Instruction) or statement not in group:
            body.append(statement)
            continue
        made = statement.operands
        into = (made[0].first, made[0].second) if isinstance(made[0], Pair) else (made[0],)
        body += [_moved(statement, to, operand) for to, operand in zip(operands, made[1:], strict=True)]
        body.append(_moved(statement, back, Immediate(len(ways))))
        body.append(replace(statement, opcode="bra", operands=(Symbol(name),)))
        ways.append(f"{name}.back{len(ways)}")
        body.append(Label(ways[-1]))
        taken = zip(into, results, strict=False)
        body += [_moved(statement, to, result) for to, result in taken if isinstance(to, Register)]
    together = Pair(*results) if len(results) == 2 else results[0]
    body += [
        # A body may end without one.
        replace(first, opcode="ret", operands=()),
        Label(name),
        replace(first, operands=(together, *operands)),
        replace(first, opcode="brx.idx", operands=(back, Symbol(f"{name}.ways"))),
    ]
    return replace(function, body=tuple(body), tables={**function.tables, f"{name}.ways": tuple(ways)})


def _kinds(instruction: Instruction) -> tuple[list[str], list[str]]:
    """Register kinds of the results and of the operands of an instruction that exchanges values."""
    stem, *parts = instruction.opcode.split(".")
    sources = ["b32"] * (len(instruction.operands) - 1)
    if stem == "vote":
        return ["b32" if "ballot" in parts else "pred"], ["pred", *sources[1:]]
    if stem == "match" and "b64" in parts:
        sources[0] = "b64"
    has_predicate = stem in ("shfl", "elect") or "all" in parts
    return ["b32", "pred"] if has_predicate else ["b32"], sources


def _moved(near: Instruction, to: Register, operand: Operand) -> Instruction:
    """An operand goes into a register, in the line of an instruction."""
    sources: tuple[Operand, ...] = (operand,)
    opcode = f"mov.{to.kind}"
    if isinstance(operand, Special):
        opcode = opcode.replace("b", "u")
    elif isinstance(operand, Not):
        opcode, sources = "not.pred", (operand.operand,)
    elif to.kind == "pred" and isinstance(operand, Immediate):
        opcode, sources = "setp.ne.s32", (operand, Immediate(0))
    return replace(near, opcode=opcode, operands=(to, *sources))
