"""Calls replaced by the bodies they call, so that the machine needs no call stack.

nvcc inlines nearly every device function; what is left are calls of `noinline` functions, and calls through pointers.
An indirect call becomes a comparison of its address with those of the functions whose address the program takes: the
entry itself or, as far as there are not too many, the module.
`vprintf`, `__assertfail`, `malloc` and `free`, which have no body, become instructions of their own; every other call
that cannot be inlined stays, and is an error of the lanes that reach it.
"""

from __future__ import annotations

import re
from contextlib import suppress
from dataclasses import replace

from refmoe.ptx.errors import UnknownOpcode
from refmoe.ptx.text.literals import BITS
from refmoe.ptx.text.parser import ParsedModule
from refmoe.ptx.text.scopes import KINDS
from refmoe.ptx.text.syntax import (
    Address,
    Function,
    Group,
    Instruction,
    Label,
    Operand,
    Register,
    Sink,
    Symbol,
    Variable,
    Vector,
    mapped,
    parts,
)

Statement = Instruction | Label
# Functions that the driver has: (kind of the result or None, kinds of the arguments).
BUILTINS: dict[str, tuple[str | None, tuple[str, ...]]] = {
    "vprintf": ("b32", ("b64", "b64")),
    "__assertfail": (None, ("b64", "b64", "b32", "b64", "b64")),
    "malloc": ("b64", ("b64",)),
    "__nv_aligned_device_malloc": ("b64", ("b64", "b64")),
    "free": (None, ("b64",)),
}
# Those that take memory from the heap, and the one that gives it back.
ALLOCATING, FREEING = ("malloc", "__nv_aligned_device_malloc"), "free"
# Bodies that one entry may take in: nested indirect calls multiply.
_MOST = 4096
# Calls of a function within itself that are followed: the deepest with which an entry takes in so few bodies.
_DEPTHS = (64, 32, 16, 12, 10, 8, 7, 6, 5, 4, 3, 2, 1, 0)
_MOST_RECURSIVE = 256
# Bodies that an entry takes in beyond those that it needs itself, for addresses that other kernels stored.
_MOST_ELSEWHERE = 256
_MOVE = re.compile(r"\bmov\.[bus]64\s[^,;]*,\s*([\w$]+)\s*;")


def inline_calls(entry: Function, module: ParsedModule) -> Function:
    """`entry` without calls of functions that have a body.

    A call that does not fit the function that it names is an error of the lanes that reach it.

    Raises:
        ParseError: the body of a function that it may call has no end.
    """
    assert entry.body is not None
    if not any(isinstance(statement, Instruction) and _is_call(statement) for statement in entry.body):
        return entry
    work, body = _expanded(entry, module, elsewhere=False)
    if work.calls_addresses and not _addressed(module) <= {each.name for each in work.taken()}:
        wide: _Inliner | None = None
        # There may be too many calls within calls.
        with suppress(UnknownOpcode):
            wide, more = _expanded(entry, module, elsewhere=True)
        # An entry that can call what other kernels stored must not follow its own calls less deep for it.
        if wide is not None and wide.depth == work.depth and wide.bodies <= work.bodies + _MOST_ELSEWHERE:
            work, body = wide, more
    return replace(entry, body=body, variables=work.variables, tables=work.tables)


def _expanded(entry: Function, module: ParsedModule, elsewhere: bool) -> tuple[_Inliner, tuple[Statement, ...]]:
    """The body of an entry with its calls as deep as they are followed, and who expanded it."""
    for depth in _DEPTHS:
        work = _Inliner(entry, module, depth, elsewhere)
        body = tuple(work.expand(entry.body or (), (entry.name,)))
        if not work.recursive or work.bodies <= _MOST_RECURSIVE:
            break
    return work, body


def _addressed(module: ParsedModule) -> frozenset[str]:
    """Functions whose address the module takes anywhere: an object that one kernel makes has virtual functions for all.

    Bodies that nobody asked for are not read: a move of an address is looked for in the text.
    """
    tables = (symbol.name for each in module.variables.values() for _, _, symbol, _ in each.relocations)
    moves = (match[1] for match in _MOVE.finditer(module.text))
    return frozenset(name for name in (*tables, *moves) if name in module.declared)


def _is_call(instruction: Instruction) -> bool:
    return instruction.opcode.split(".")[0] == "call"


class _Inliner:
    def __init__(self, entry: Function, module: ParsedModule, depth: int, elsewhere: bool) -> None:
        self.entry = entry
        self.module = module
        self.depth = depth
        # Whether functions count whose address another entry takes.
        self.elsewhere = elsewhere
        self.calls_addresses = False
        # Whether a function calls itself, and how many bodies were taken in.
        self.recursive = False
        self.bodies = 0
        self.variables = dict(entry.variables)
        self.tables = dict(entry.tables)
        self.count = 0
        self._taken: tuple[Function, ...] | None = None

    def expand(self, body: tuple[Statement, ...], stack: tuple[str, ...]) -> list[Statement]:
        result: list[Statement] = []
        for statement in body:
            if isinstance(statement, Instruction) and _is_call(statement):
                result.extend(self.call(statement, stack))
            else:
                result.append(statement)
        return result

    def call(self, instruction: Instruction, stack: tuple[str, ...]) -> list[Statement]:
        called = _parts(instruction)
        if called is None:
            return [instruction.refuse("no call of a function or of a register")]
        results, target, arguments = called
        if self.count >= _MOST:
            raise _refused(instruction, f"call number {_MOST + 1} of {stack[0]}, calls within calls included")
        if isinstance(target, Register):
            return self.around(instruction, self.indirect(instruction, results, target, arguments, stack))
        callee = self.module.function(target.name)
        if callee is None or callee.body is None:
            if target.name not in BUILTINS:
                return [instruction]
            return self.around(instruction, self.builtin(instruction, results, target, arguments))
        depth = stack.count(callee.name)
        self.recursive |= depth > 0
        if depth > self.depth or callee.name == self.entry.name:
            what = f"a recursive call of {callee.name}, of which the executor follows {self.depth} within one another"
            return [instruction.refuse(what)]
        if self.recursive and self.depth > 0 and self.bodies > _MOST_RECURSIVE:
            # This depth is too much: nothing of it is kept.
            return []
        self.bodies += 1
        if (len(results), len(arguments)) != (len(callee.results), len(callee.parameters)):
            return [instruction.refuse(f"a call that does not fit {callee.name}")]
        return self.around(instruction, self.direct(instruction, results, callee, arguments, stack))

    def around(self, instruction: Instruction, body: list[Statement]) -> list[Statement]:
        """The body of a call where its guard is on."""
        if instruction.guard is None:
            return body
        skip = self.fresh("skip")
        branch = replace(instruction, opcode="bra", operands=(Symbol(skip),), negated=not instruction.negated)
        return [branch, *body, Label(skip)]

    def fresh(self, name: str) -> str:
        self.count += 1
        return f"call#{self.count}:{name}"

    def direct(
        self,
        instruction: Instruction,
        results: tuple[Operand, ...],
        callee: Function,
        arguments: tuple[Operand, ...],
        stack: tuple[str, ...],
    ) -> list[Statement]:
        """The body of a function between moves of its arguments and of its results."""
        prefix = self.fresh(f"{callee.name}:")
        actual: dict[str, Symbol] = {}
        before: list[Statement] = []
        after: list[Statement] = []
        for formal, given in zip(callee.parameters, arguments, strict=True):
            before += self.passed(instruction, formal, given, prefix, actual, into=True)
        for formal, given in zip(callee.results, results, strict=True):
            after += self.passed(instruction, formal, given, prefix, actual, into=False)
        rename = _Renamer(prefix, callee, actual)
        for name, variable in callee.variables.items():
            unique = rename.variables[name]
            self.variables[unique] = replace(variable, name=unique)
        for name, labels in callee.tables.items():
            self.tables[prefix + name] = tuple(prefix + label for label in labels)
        end = Label(prefix + "return")
        assert callee.body is not None
        body: list[Statement] = []
        for statement in callee.body:
            if isinstance(statement, Label):
                body.append(Label(prefix + statement.name))
            elif statement.opcode.split(".")[0] == "ret":
                body.append(rename.instruction(replace(statement, opcode="bra", operands=()), (Symbol(end.name),)))
            else:
                body.append(rename.instruction(statement))
        return [*before, *self.expand(tuple(body), (*stack, callee.name)), end, *after]

    def passed(
        self,
        instruction: Instruction,
        formal: Variable,
        given: Operand,
        prefix: str,
        actual: dict[str, Symbol],
        into: bool,
    ) -> list[Statement]:
        """What moves one argument into a function, or one result out of it.

        A `.param` variable that is passed for another is that variable: `actual` says so.
        """
        kind = KINDS[formal.type]
        if formal.space == "reg":
            inside = Register(prefix + formal.name, kind)
            if isinstance(given, Symbol):
                return [_moved(instruction, inside, given, kind) if into else _stored(instruction, given, inside, kind)]
            what = (inside, given) if into else (given, inside)
            return [] if isinstance(what[0], Sink) else [_made(instruction, f"mov.{kind}", what)]
        if isinstance(given, Symbol):
            actual[formal.name] = given
            return []
        place = Symbol(prefix + formal.name)
        self.variables[place.name] = replace(formal, name=place.name)
        actual[formal.name] = place
        if into:
            return [_stored(instruction, place, given, kind)]
        return [] if isinstance(given, Sink) else [_moved(instruction, given, place, kind)]

    def indirect(
        self,
        instruction: Instruction,
        results: tuple[Operand, ...],
        address: Register,
        arguments: tuple[Operand, ...],
        stack: tuple[str, ...],
    ) -> list[Statement]:
        """A comparison with the address of each function that may be meant, and a direct call of the one it is."""
        self.calls_addresses = True
        end = self.fresh("end")
        tests: list[Statement] = []
        calls: list[Statement] = []
        for callee in self.taken():
            if not self.fits(callee, results, arguments):
                continue
            label = self.fresh(callee.name)
            here = Register(label + ":here", "pred")
            tests.append(_made(instruction, "setp.eq.u64", (here, address, Symbol(callee.name))))
            tests.append(replace(_made(instruction, "bra", (Symbol(label),)), guard=here))
            plain = (Group(results), Symbol(callee.name), Group(arguments))
            calls.append(Label(label))
            calls += self.call(replace(instruction, operands=plain, guard=None, negated=False), stack)
            calls.append(_made(instruction, "bra", (Symbol(end),)))
        # An address that is none of these stays a call, which is an error of the lanes that reach it.
        other = replace(instruction, guard=None, negated=False)
        return [*tests, other, _made(instruction, "bra", (Symbol(end),)), *calls, Label(end)]

    def fits(self, callee: Function, results: tuple[Operand, ...], arguments: tuple[Operand, ...]) -> bool:
        """Whether a function takes and gives values of these sizes."""
        formals, given = (*callee.results, *callee.parameters), (*results, *arguments)
        if (len(results), len(arguments)) != (len(callee.results), len(callee.parameters)):
            return False
        return all(size in (None, formal.size) for formal, size in zip(formals, map(self.size_of, given), strict=True))

    def size_of(self, operand: Operand) -> int | None:
        """Bytes of an argument, or None where that is not known."""
        if isinstance(operand, Register):
            return BITS.get(operand.kind, 0) // 8
        if isinstance(operand, Symbol) and operand.name in self.variables:
            return self.variables[operand.name].size
        return None

    def taken(self) -> tuple[Function, ...]:
        """Functions whose address the entry, or what it may call, takes: by a move or in a table that it names.

        Or whose address any part of the module takes.
        """
        if self._taken is None:
            self._taken = self._find_taken()
        return self._taken

    def _find_taken(self) -> tuple[Function, ...]:
        module = self.module
        addressed = dict.fromkeys(sorted(_addressed(module)) if self.elsewhere else ())
        reached = [self.entry.name, *addressed]
        tables: list[str] = []
        for name in reached:
            function = module.function(name)
            for statement in (function.body if function is not None else None) or ():
                if isinstance(statement, Label) or statement.opcode.split(".")[0] in ("bra", "brx"):
                    continue
                parts_of_call = _parts(statement) if _is_call(statement) else None
                called = None if parts_of_call is None else parts_of_call[1]
                for operand in statement.operands:
                    for part in parts(operand):
                        if not isinstance(part, Symbol):
                            continue
                        if part.name in module.variables and part.name not in tables:
                            tables.append(part.name)
                        elif part.name in module.declared:
                            if part != called:
                                addressed.setdefault(part.name)
                            if part.name not in reached:
                                reached.append(part.name)
            for table in tables:
                for _, _, symbol, _ in module.variables[table].relocations:
                    if symbol.name in module.variables and symbol.name not in tables:
                        tables.append(symbol.name)
                    elif symbol.name in module.declared:
                        addressed.setdefault(symbol.name)
                        if symbol.name not in reached:
                            reached.append(symbol.name)
        functions = [module.function(name) for name in addressed]
        return tuple(each for each in functions if each is not None and each.body is not None and not each.is_entry)

    def builtin(
        self, instruction: Instruction, results: tuple[Operand, ...], target: Symbol, arguments: tuple[Operand, ...]
    ) -> list[Statement]:
        """A call of a function of the driver: its operands in registers."""
        result, kinds = BUILTINS[target.name]
        if len(arguments) != len(kinds) or len(results) != (result is not None):
            return [instruction.refuse(f"a call that does not fit {target.name}")]
        before: list[Statement] = []
        after: list[Statement] = []
        operands: list[Operand] = []
        for given, kind in zip(arguments, kinds, strict=True):
            if isinstance(given, Symbol):
                register = Register(self.fresh("argument"), kind)
                before.append(_moved(instruction, register, given, kind))
                operands.append(register)
            else:
                operands.append(given)
        destination: Operand = Sink()
        if result is not None:
            destination = results[0]
            if isinstance(destination, Symbol):
                register = Register(self.fresh("result"), result)
                after.append(_stored(instruction, destination, register, result))
                destination = register
        made = replace(instruction, operands=(destination, target, *operands), guard=None, negated=False)
        return [*before, made, *after]


def _parts(instruction: Instruction) -> tuple[tuple[Operand, ...], Symbol | Register, tuple[Operand, ...]] | None:
    """(results, what is called, arguments) of a call; its list of targets or its prototype says nothing more.

    None if these are not the operands of a call.
    """
    operands = list(instruction.operands)

    def group() -> tuple[Operand, ...]:
        first = operands.pop(0) if operands and isinstance(operands[0], Group) else None
        elements = first.elements if isinstance(first, Group) else ()
        # A vector register is passed element by element.
        return tuple(each for one in elements for each in (one.elements if isinstance(one, Vector) else (one,)))

    results = group()
    target = operands.pop(0) if operands else None
    arguments = group()
    named = operands.pop(0) if operands and isinstance(target, Register) else None
    if not isinstance(target, Symbol | Register) or operands or not isinstance(named, Symbol | None):
        return None
    return results, target, arguments


def _made(instruction: Instruction, opcode: str, operands: tuple[Operand, ...]) -> Instruction:
    """An instruction that a call needs, at the call's place."""
    return replace(instruction, opcode=opcode, operands=operands, guard=None, negated=False)


def _moved(instruction: Instruction, register: Operand, variable: Symbol, kind: str) -> Instruction:
    return _made(instruction, f"ld.param.{kind}", (register, Address(variable)))


def _stored(instruction: Instruction, variable: Symbol, value: Operand, kind: str) -> Instruction:
    return _made(instruction, f"st.param.{kind}", (Address(variable), value))


def _refused(instruction: Instruction, what: str) -> UnknownOpcode:
    message = f"{instruction.opcode} at line {instruction.line} is {what}: {instruction.text}"
    return UnknownOpcode.of(instruction, message)


class _Renamer:
    def __init__(self, prefix: str, callee: Function, actual: dict[str, Symbol]) -> None:
        self.prefix = prefix
        self.actual = actual
        body = callee.body or ()
        labels = {statement.name for statement in body if isinstance(statement, Label)}
        self.own = labels | set(callee.tables)
        # What is on the stack is each call's own; the rest lies where it lay at the call before.
        self.variables = {
            name: f"{callee.name}:{name}" if variable.space == "shared" else prefix + name
            for name, variable in callee.variables.items()
        }
        # Those in device memory have names of their own already.
        self.variables |= {name: name for name, each in callee.variables.items() if each.space in ("global", "const")}

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
        if operand.name in self.variables:
            return Symbol(self.variables[operand.name], operand.offset)
        return Symbol(self.prefix + operand.name, operand.offset) if operand.name in self.own else operand
