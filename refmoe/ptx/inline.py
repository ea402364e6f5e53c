"""Direct calls replaced by the bodies they call, so that the machine needs no call stack.

nvcc inlines nearly every device function; what is left are calls of `noinline` functions.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from refmoe.ptx.errors import UnknownOpcode
from refmoe.ptx.syntax import (
    Function,
    Group,
    Instruction,
    Label,
    Operand,
    Register,
    Symbol,
    Variable,
    mapped,
)


def inline_calls(entry: Function, find: Callable[[str], Function | None]) -> Function:
    """`entry` without call instructions; `find` gives the function of a name.

    Raises:
        UnknownOpcode: an indirect or recursive call, or a call of a function without a body (`vprintf`).
    """
    assert entry.body is not None
    if not any(isinstance(statement, Instruction) and _is_call(statement) for statement in entry.body):
        return entry
    work = _Inliner(find, dict(entry.variables), dict(entry.tables))
    return replace(
        entry, body=tuple(work.expand(entry.body, (entry.name,))), variables=work.variables, tables=work.tables
    )


def _is_call(instruction: Instruction) -> bool:
    return instruction.opcode.split(".")[0] == "call"


class _Inliner:
    def __init__(
        self,
        find: Callable[[str], Function | None],
        variables: dict[str, Variable],
        tables: dict[str, tuple[str, ...]],
    ) -> None:
        self.find = find
        self.variables = variables
        self.tables = tables
        self.count = 0

    def expand(self, body: tuple[Instruction | Label, ...], stack: tuple[str, ...]) -> list[Instruction | Label]:
        result: list[Instruction | Label] = []
        for statement in body:
            if isinstance(statement, Instruction) and _is_call(statement):
                result.extend(self.call(statement, stack))
            else:
                result.append(statement)
        return result

    def call(self, instruction: Instruction, stack: tuple[str, ...]) -> list[Instruction | Label]:
        results, callee, arguments = self.parts(instruction)
        if callee.name in stack:
            raise _refused(instruction, "a recursive call")
        self.count += 1
        prefix = f"{callee.name}#{self.count}:"
        actual = {
            formal.name: symbol
            for formal, symbol in zip((*callee.results, *callee.parameters), (*results, *arguments), strict=True)
        }
        rename = _Renamer(prefix, callee, actual)
        for name, variable in callee.variables.items():
            self.variables[prefix + name] = replace(variable, name=prefix + name)
        for name, labels in callee.tables.items():
            self.tables[prefix + name] = tuple(prefix + label for label in labels)
        end = Label(prefix + "return")
        assert callee.body is not None
        body: list[Instruction | Label] = []
        for statement in callee.body:
            if isinstance(statement, Label):
                body.append(Label(prefix + statement.name))
            elif statement.opcode.split(".")[0] == "ret":
                body.append(rename.instruction(replace(statement, opcode="bra", operands=()), (Symbol(end.name),)))
            else:
                body.append(rename.instruction(statement))
        result = [*self.expand(tuple(body), (*stack, callee.name)), end]
        if instruction.guard is None:
            return result
        around = replace(instruction, opcode="bra", operands=(Symbol(end.name),), negated=not instruction.negated)
        return [around, *result]

    def parts(self, instruction: Instruction) -> tuple[tuple[Symbol, ...], Function, tuple[Symbol, ...]]:
        operands = list(instruction.operands)

        def group() -> tuple[Operand, ...]:
            first = operands.pop(0) if operands and isinstance(operands[0], Group) else None
            return first.elements if isinstance(first, Group) else ()

        results = group()
        target = operands.pop(0) if operands else None
        arguments = group()
        callee = self.find(target.name) if isinstance(target, Symbol) else None
        if callee is None or callee.body is None or operands:
            raise _refused(instruction, "an indirect call or a call of a function without a body")
        if (len(results), len(arguments)) != (len(callee.results), len(callee.parameters)):
            raise _refused(instruction, f"a call that does not fit {callee.name}")
        symbols = [operand for operand in (*results, *arguments) if isinstance(operand, Symbol)]
        if len(symbols) != len(results) + len(arguments):
            raise _refused(instruction, "a call whose arguments are not .param variables")
        return tuple(symbols[: len(results)]), callee, tuple(symbols[len(results) :])


def _refused(instruction: Instruction, what: str) -> UnknownOpcode:
    message = f"{instruction.opcode} at line {instruction.line} is {what}: {instruction.text}"
    return UnknownOpcode.of(instruction, message)


class _Renamer:
    def __init__(self, prefix: str, callee: Function, actual: dict[str, Symbol]) -> None:
        self.prefix = prefix
        self.actual = actual
        body = callee.body or ()
        labels = {statement.name for statement in body if isinstance(statement, Label)}
        self.own = labels | set(callee.variables) | set(callee.tables)

    def instruction(self, instruction: Instruction, extra: tuple[Operand, ...] = ()) -> Instruction:
        operands = tuple(self.operand(operand) for operand in instruction.operands) + extra
        guard = instruction.guard
        return replace(instruction, operands=operands, guard=None if guard is None else self.register(guard))

    def register(self, register: Register) -> Register:
        return Register(self.prefix + register.name, register.kind)

    def operand(self, operand: Operand) -> Operand:
        return mapped(operand, self.named)

    def named(self, operand: Register | Symbol) -> Register | Symbol:
        if isinstance(operand, Register):
            return self.register(operand)
        if operand.name in self.actual:
            target = self.actual[operand.name]
            return Symbol(target.name, target.offset + operand.offset)
        return Symbol(self.prefix + operand.name, operand.offset) if operand.name in self.own else operand
