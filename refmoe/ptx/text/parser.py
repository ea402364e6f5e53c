"""PTX text to a module of functions: declarations, instructions, and the scopes between them.

A module is read at once, the body of a function when it is first asked for: a file of many kernels costs no more than
those that run.
"""

from __future__ import annotations

import hashlib
import pickle
from collections.abc import Callable, Collection
from dataclasses import dataclass, field, replace
from functools import partial
from math import prod
from typing import cast

from refmoe.native import cache as kept
from refmoe.ptx.errors import ParseError
from refmoe.ptx.text import expressions, lexer
from refmoe.ptx.text.cursor import Cursor
from refmoe.ptx.text.legacy import modernised
from refmoe.ptx.text.literals import literal_bits
from refmoe.ptx.text.locations import Locations, Place
from refmoe.ptx.text.scopes import KINDS, Scope, type_bits
from refmoe.ptx.text.stack import with_stack
from refmoe.ptx.text.syntax import (
    Address,
    Function,
    Group,
    Immediate,
    Instruction,
    Label,
    Not,
    Operand,
    Pair,
    Register,
    Selected,
    Sink,
    Special,
    Symbol,
    Variable,
    Vector,
)
from refmoe.ptx.text.wide import found, narrowed, selected, vector_kind
from refmoe.ptx.text.wmma import lowered

_SPACES = ("global", "const", "shared", "local", "param")
_LINKAGE = (".visible", ".extern", ".weak", ".common")
# What begins the next statement of a module: a function that is only declared may have no semicolon behind it.
_OUTSIDE = frozenset(
    (*_LINKAGE, ".entry", ".func", ".file", ".loc", ".section", ".version", *(f".{space}" for space in _SPACES))
)
# Types whose values only the driver makes.
_OPAQUE = ("texref", "samplerref", "surfref")
# Operands of a branch in front of its label.
_BRANCHES = {"bra": 0, "brx": 1}


@dataclass
class ParsedModule:
    """A whole module.

    Attributes:
        name: for messages.
        digest: of the text.
        text: it.
        version: of PTX.
        target: as written, `"sm_120a"`.
        options: what stands behind the target.
        declared: every function, without its body as long as nobody asked for it.
        unread: what reads those bodies.
        variables: by name.
        files: names of source files by number.
    """

    name: str
    digest: str = ""
    text: str = field(default="", repr=False)
    version: str = ""
    target: str = ""
    options: tuple[str, ...] = ()
    declared: dict[str, Function] = field(default_factory=dict)
    unread: dict[str, Callable[[], Function]] = field(default_factory=dict)
    variables: dict[str, Variable] = field(default_factory=dict)
    files: dict[int, str] = field(default_factory=dict)

    def function(self, name: str) -> Function | None:
        """A function with its body, if it has one; None if there is no such function.

        Raises:
            ParseError: with the line of what is not PTX in its body.
        """
        if name in self.unread:
            self.declared[name] = self.unread[name]()
            del self.unread[name]
        return self.declared.get(name)


def parse(text: str, name: str) -> ParsedModule:
    """Parse a PTX module.

    Raises:
        ParseError: with the line of what is not PTX, or not of the PTX that the executor reads, outside of bodies.
    """
    tokens = lexer.tokenize(text, name, whole=lexer.outline(text))
    digest = hashlib.sha256(text.encode(errors="surrogatepass")).hexdigest()
    return _Parser(text, name, tokens, ParsedModule(name, digest, text)).module()


class _Parser(Cursor):
    def __init__(self, text: str, name: str, tokens: list[lexer.Token], result: ParsedModule) -> None:
        super().__init__(text, name, tokens)
        self.result = result
        self.locations = Locations()
        # Where the last `.loc` ends.
        self.located = -1

    # Module scope

    def module(self) -> ParsedModule:
        while self.token.kind != "end":
            self.top_level()
        return self.result

    def top_level(self) -> None:
        text = self.token.text
        if text == ".version":
            self.take()
            self.result.version = self.take().text
        elif text == ".target":
            self.take()
            self.result.target = self.word()
            while self.accept(","):
                self.result.options = (*self.result.options, self.word())
        elif text == ".address_size":
            self.take()
            if self.integer() != 64:
                self.fail("only .address_size 64 is supported")
        elif text == ".file":
            self.file()
        elif text == ".loc":
            self.loc()
        elif text in _LINKAGE:
            self.take()
        elif text in (".entry", ".func"):
            self.function()
        elif text == ".section":
            self.fail("a .section without braces")
        elif text == ".pragma":
            self.skip_to_semicolon()
        elif (text[1:] in _SPACES and text[0] == ".") or text == ".tex":
            for variable in self.variables(Scope()):
                self.result.variables[variable.name] = variable
        elif not self.accept(";"):
            self.fail(f"unexpected {text!r}")

    def skip_to_semicolon(self) -> None:
        while not self.at(";"):
            if self.token.kind == "end":
                self.fail("unexpected end of the text")
            self.take()
        self.take()

    def file(self) -> None:
        self.take()
        number = self.integer()
        if self.token.kind != "string":
            self.fail("expected a file name")
        self.result.files[number] = self.take().text[1:-1]
        while self.accept(","):
            self.integer()

    def loc(self) -> None:
        # .loc file line column [, function_name label {+ offset}, inlined_at file line column]
        follows = self.position == self.located
        self.take()
        place = self.integer(), self.integer(), self.integer()
        at: Place | None = None
        while self.accept(","):
            self.word()
            if self.token.kind == "word":
                self.take()
                if self.accept("+"):
                    self.integer()
            else:
                at = self.integer(), self.integer(), self.integer()
        self.locations.put(place, at, follows)
        self.located = self.position

    # Variables and parameters

    def variables(self, scope: Scope, owner: str = "") -> list[Variable]:
        space = self.take().text[1:]
        declared = [self.variable(space)]
        while self.accept(","):
            # `.global .u32 a, b;` shares the type of the first.
            first = declared[0]
            declared.append(self.declarator(space, first.align, first.type, first.pointer))
        self.expect(";")
        return [self.declare(variable, scope, owner) for variable in declared]

    def declare(self, variable: Variable, scope: Scope, owner: str = "") -> Variable:
        # What lies in device memory outlives the function, beside the variables of others.
        unique = scope.declare_symbol(variable.name, owner if variable.space in ("global", "const") else "")
        if unique is None:
            self.fail(f"{variable.name} is declared twice")
        return replace(variable, name=unique)

    def variable(self, space: str) -> Variable:
        align, pointer = 0, False
        kind = ""
        while self.token.kind == "directive":
            directive = self.take().text[1:]
            if directive == "align":
                align = self.integer() if not pointer else (self.integer(), align)[1]
            elif directive == "ptr":
                pointer = True
            elif directive in KINDS or directive in _OPAQUE:
                kind = "u64" if directive in _OPAQUE else directive
            elif directive == "attribute":
                self.expect("(")
                while not self.accept(")"):
                    self.take()
            elif directive in _SPACES or directive in ("managed", "unified"):
                continue
            else:
                self.fail(f"unsupported .{directive} in a declaration", self.tokens[self.position - 1].line)
        if not kind or kind == "pred":
            self.fail("expected the type of a variable")
        return self.declarator(space, align, kind, pointer)

    def declarator(self, space: str, align: int, kind: str, pointer: bool) -> Variable:
        name = self.word()
        element = type_bits(kind) // 8
        sizes: list[int] = []
        while self.accept("["):
            sizes.append(0 if self.at("]") else self.integer())
            self.expect("]")
        count = prod(sizes)
        strides = tuple(prod(sizes[place + 1 :]) for place in range(len(sizes)))
        initial, relocations = self.initialiser(kind, strides) if self.accept("=") else (None, ())
        size = max(count * element, len(initial or b""))
        return Variable(name, space, size, align or element, kind, pointer, initial, relocations)

    def initialiser(
        self, kind: str, strides: tuple[int, ...]
    ) -> tuple[bytes, tuple[tuple[int, int, Symbol, int], ...]]:
        """The first bytes of a variable, and the addresses in them. `strides`: elements of each part of an array."""
        size = type_bits(kind) // 8
        data = bytearray()
        relocations: list[tuple[int, int, Symbol, int]] = []

        def one(strides: tuple[int, ...]) -> None:
            if self.accept("{"):
                while not self.accept("}"):
                    start, is_row = len(data), self.at("{")
                    one(strides[1:])
                    if is_row and strides[1:]:
                        # It may not be written to its end.
                        data.extend(bytes(max(0, start + strides[0] * size - len(data))))
                    self.accept(",")
                return
            following = self.tokens[self.position + 1].text
            if self.token.kind == "word" and self.token.text != "WARP_SZ":
                relocations.append((len(data), size, self.addressed(), 0))
                data.extend(bytes(size))
            elif self.token.kind == "number" and following == "(":
                # `0xff00(name)`: one byte of an address.
                shift = self.masked(size)
                relocations.append((len(data), size, self.addressed(), shift))
                self.expect(")")
                data.extend(bytes(size))
            else:
                data.extend(self.number(kind).to_bytes(size, "little"))

        one(strides)
        return bytes(data), tuple(relocations)

    def addressed(self) -> Symbol:
        """`name`, `name+4` or `generic(name)+4`."""
        name = self.word()
        if name == "generic" and self.accept("("):
            name = self.word()
            self.expect(")")
        return Symbol(name, expressions.offset(self) if self.accept("+") else 0)

    def masked(self, size: int) -> int:
        """Take `0xff00(`: the place of the byte that it selects, as a shift."""
        mask = self.literal().value
        shift = max(mask.bit_length() - 8, 0)
        if mask != 0xFF << shift or shift % 8 or shift > 56:
            self.fail(f"a mask of one byte of an address needed, not 0x{mask:X}")
        self.expect("(")
        return shift

    def number(self, kind: str) -> int:
        """The bits of a constant expression of type `kind`."""
        bits = type_bits(kind)
        literal = expressions.expression(self)
        value = literal.value
        if literal.form != "int":
            try:
                value = literal_bits(literal, f"b{bits}")
            except ValueError as error:
                self.fail(str(error))
        return value & ((1 << bits) - 1)

    def parameters(self, scope: Scope) -> tuple[Variable, ...]:
        result: list[Variable] = []
        if not self.accept("("):
            return ()
        while not self.accept(")"):
            if self.accept(".reg"):
                result += self.register_parameters(scope)
            else:
                self.expect(".param")
                result.append(self.declare(self.variable("param"), scope))
            self.accept(",")
        return tuple(result)

    def register_parameters(self, scope: Scope) -> list[Variable]:
        """A parameter in a register; one in a vector register is as many as it has elements."""
        count = self.vector_length()
        kind = self.take().text[1:]
        if kind not in KINDS or KINDS[kind] in ("b8", "b128") or (count > 1 and kind == "pred"):
            self.fail(
                f"a parameter in a register of type .{kind} is not supported", self.tokens[self.position - 1].line
            )
        name = self.word()
        if not scope.declare_register(name, vector_kind(count, KINDS[kind]) if count > 1 else KINDS[kind]):
            self.fail(f"register {name} is declared twice")
        register = found(scope, name)
        elements = register.elements if isinstance(register, Vector) else (register,)
        size = type_bits(kind) // 8
        return [Variable(each.name, "reg", size, size, kind) for each in elements if isinstance(each, Register)]

    def vector_length(self) -> int:
        """The elements of each register of a declaration: `.v2`, `.v4` or `.v8`, or 1."""
        return int(self.take().text[2:]) if self.at(".v2", ".v4", ".v8") else 1

    # Functions

    def function(self) -> None:
        line = self.token.line
        is_entry = self.take().text == ".entry"
        scope = Scope()
        results = self.parameters(scope) if self.at("(") else ()
        name = self.word()
        parameters = self.parameters(scope)
        directives: dict[str, tuple[int, ...]] = {}
        while self.token.kind == "directive" and self.token.text not in _OUTSIDE:
            directive = self.take().text[1:]
            values = []
            while self.token.kind == "number" or self.at(","):
                if not self.accept(","):
                    values.append(self.integer())
            if directive == "pragma":
                self.skip_to_semicolon()
            directives[directive] = tuple(values)
        function = Function(name, is_entry, parameters, results, None, directives=directives, line=line)
        if self.token.kind == "body":
            self.result.declared[name] = function
            self.result.unread[name] = partial(self.body, function, scope, self.take())
            return
        if self.at("{"):
            self.fail("unexpected end of the text", self.tokens[-1].line)
        self.accept(";")
        self.result.declared.setdefault(name, function)

    def body(self, function: Function, scope: Scope, place: lexer.Token) -> Function:
        """`function` with the body that stands at `place`: as an earlier process read it, if one did."""
        text, files = self.text[place.start : place.end], self.result.files
        outside = " ".join((self.result.target, *self.result.options, *self.result.variables))
        key = kept.key_of("body", text, str(place.line), repr(function), repr(files), outside)
        held = kept.load(key)
        if held is not None:
            return cast("Function", pickle.loads(held))
        tokens = lexer.tokenize(self.text, self.name, place.line, place.start, place.end, strays=True)
        # A scope of its own: whoever asks again after an error finds no name declared twice.
        own = Scope(scope)
        own.reserve(self.result.variables)
        read = _Body(_Parser(self.text, self.name, tokens, self.result), function, own).parse()
        kept.store(key, pickle.dumps(read))
        return read


class _Body:
    """The statements of one function."""

    def __init__(self, parser: _Parser, function: Function, scope: Scope) -> None:
        self.parser = parser
        self.function = function
        self.scope = scope
        self.statements: list[Instruction | Label] = []
        self.scopes: list[Scope] = []
        self.tables: dict[str, tuple[tuple[str, ...], Scope]] = {}
        self.places: set[str] = set()
        # Whether the instruction that is read takes lists of operands in parentheses.
        self.calls = False

    def parse(self) -> Function:
        parser = self.parser
        line = parser.token.line
        parser.expect("{")
        self.block(self.scope)
        self.places = {statement.name for statement in self.statements if isinstance(statement, Label)}
        body = tuple(
            _located(self.resolve(statement, scope), parser.result.files)
            if isinstance(statement, Instruction)
            else statement
            for statement, scope in zip(self.statements, self.scopes, strict=True)
        )
        tables = {
            name: tuple(self.label(label, scope, line, self.places) for label in labels)
            for name, (labels, scope) in self.tables.items()
        }
        return with_stack(replace(self.function, body=body, tables=tables))

    def label(self, name: str, scope: Scope, line: int, known: Collection[str]) -> str:
        unique = scope.symbol(name)
        if unique is None or unique not in known:
            self.parser.fail(f"no label {name}", line)
        return unique

    def resolve(self, instruction: Instruction, scope: Scope) -> Instruction:
        # A branch may name a label further down, so labels are looked up once all are known.
        stem = instruction.opcode.split(".")[0]
        if stem not in _BRANCHES:
            return instruction
        others, target = instruction.operands[:-1], instruction.operands[-1] if instruction.operands else None
        if not isinstance(target, Symbol) or len(others) != _BRANCHES[stem]:
            return instruction.refuse(f"not the operands of {stem}", is_ptx=False)
        unique = scope.symbol(target.name)
        if unique is None or unique not in (self.places if stem == "bra" else self.tables):
            return instruction.refuse(f"no label {target.name}", is_ptx=False)
        return replace(instruction, operands=(*others, Symbol(unique)))

    def add(self, statement: Instruction | Label, scope: Scope) -> None:
        if isinstance(statement, Instruction):
            module = self.parser.result
            if "map_f64_to_f32" in module.options and "f64" in statement.opcode.split("."):
                self.parser.fail("double precision in a module with map_f64_to_f32 is not supported", statement.line)
            today = modernised(statement, module.target)
            for each in (part for whole in lowered(today) for part in narrowed(whole)):
                self.statements.append(each)
                self.scopes.append(scope)
            return
        self.statements.append(statement)
        self.scopes.append(scope)

    def block(self, scope: Scope) -> None:
        parser = self.parser
        while not parser.accept("}"):
            token = parser.token
            if token.kind == "end":
                parser.fail("unexpected end of the text")
            if parser.accept("{"):
                self.block(Scope(scope))
            elif token.text == ".loc":
                parser.loc()
            elif token.text == ".file":
                parser.file()
            elif token.text == ".reg":
                self.registers(scope)
            elif token.text in (".pragma", ".callprototype", ".calltargets"):
                parser.skip_to_semicolon()
            elif token.kind == "directive" and token.text[1:] in _SPACES:
                for variable in parser.variables(scope, self.function.name):
                    self.function.variables[variable.name] = variable
            elif token.kind == "word" and parser.tokens[parser.position + 1].text == ":":
                self.labelled(scope)
            elif not parser.accept(";"):
                self.statement(scope)

    def registers(self, scope: Scope) -> None:
        parser = self.parser
        parser.take()
        count = parser.vector_length()
        kind = KINDS.get(parser.token.text[1:])
        if kind is None or (count > 1 and kind in ("pred", "b128")):
            parser.fail(f"registers of type {parser.token.text} are not supported")
        parser.take()
        if count > 1:
            kind = vector_kind(count, kind)
        while True:
            name = parser.word()
            if parser.accept("<"):
                fresh = scope.declare_family(name, parser.integer(), kind)
                parser.expect(">")
            else:
                fresh = scope.declare_register(name, kind)
            if not fresh:
                parser.fail(f"register {name} is declared twice")
            if parser.accept(";"):
                return
            parser.expect(",")

    def labelled(self, scope: Scope) -> None:
        parser = self.parser
        line = parser.token.line
        name = parser.word()
        parser.expect(":")
        unique = scope.declare_symbol(name)
        if unique is None:
            parser.fail(f"label {name} is defined twice", line)
        if parser.accept(".branchtargets"):
            labels = [parser.word()]
            while parser.accept(","):
                labels.append(parser.word())
            parser.expect(";")
            self.tables[unique] = (tuple(labels), scope)
        elif parser.at(".callprototype", ".calltargets"):
            parser.skip_to_semicolon()
        else:
            self.add(Label(unique), scope)

    def statement(self, scope: Scope) -> None:
        """Add an instruction. One that is no PTX is an error of the lanes that reach it, if it has an end."""
        parser = self.parser
        start, count = parser.position, len(self.statements)
        try:
            self.add(self.instruction(scope), scope)
        except ParseError as error:
            end = parser.end_of_statement(start)
            if end is None:
                raise
            parser.position = start
            del self.statements[count:], self.scopes[count:]
            self.statements.append(self.refused(scope, end, error))
            self.scopes.append(scope)

    def refused(self, scope: Scope, end: int, error: ParseError) -> Instruction:
        """What stands in the place of a statement that is no PTX: guarded as it is, if that can be told."""
        parser = self.parser
        first = parser.token
        try:
            guard, negated = self.guard(scope)
        except ParseError:
            guard, negated = None, False
        opcode = parser.token.text if parser.token.kind == "word" else ""
        parser.position = end + 1
        text = " ".join(parser.text[first.start : parser.tokens[end].end].split())
        reason = error.message.removeprefix(f"{parser.name}:{error.line}: ")
        found = Instruction(opcode, (), guard, negated, first.line, *self.origin(), text)
        return found.refuse(reason, is_ptx=False)

    def origin(self) -> tuple[str | None, tuple[str, ...]]:
        """File and line of the source, and of the callers, as numbers."""
        place = self.parser.locations.location
        callers = tuple(f"{file}:{line}" for file, line in self.parser.locations.callers)
        return None if place is None else f"{place[0]}:{place[1]}", callers

    def guard(self, scope: Scope) -> tuple[Register | None, bool]:
        parser = self.parser
        line = parser.token.line
        if not parser.accept("@"):
            return None, False
        negated = parser.accept("!")
        guard = self.register(scope)
        if guard.kind != "pred":
            parser.fail("a guard must be a predicate register", line)
        return guard, negated

    def instruction(self, scope: Scope) -> Instruction:
        parser = self.parser
        first = parser.token
        guard, negated = self.guard(scope)
        if parser.token.kind != "word":
            parser.fail(f"expected an instruction, found {parser.token.text!r}")
        opcode_token = parser.take()
        operands: list[Operand] = []
        self.calls = opcode_token.text.split(".")[0] == "call"
        branches = opcode_token.text.split(".")[0] in _BRANCHES
        while not parser.at(";"):
            if branches and parser.token.kind == "word" and scope.register(parser.token.text) is None:
                # A label: which one is meant is not known before the end of its scope.
                operands.append(Symbol(parser.word()))
            else:
                operands.append(self.sum(self.operand(scope), first.line, scope))
            # `[a].unified` is a hint on the operand.
            parser.accept(".unified")
            if not parser.accept(",") and not parser.at(";"):
                parser.fail(f"expected ',' or ';', found {parser.token.text!r}")
        last = parser.take()
        return Instruction(
            opcode_token.text,
            tuple(operands),
            guard,
            negated,
            opcode_token.line,
            *self.origin(),
            " ".join(parser.text[first.start : last.end].split()),
        )

    # Operands

    def register(self, scope: Scope) -> Register:
        name = self.parser.word()
        register = found(scope, name)
        if not isinstance(register, Register):
            self.parser.fail(f"{name} is no register")
        return register

    def sum(self, operand: Operand, line: int, scope: Scope) -> Operand:
        """A register, or one to which a constant is added where it is read: `r+4`."""
        if not self.parser.at("+", "-") or not isinstance(operand, Register) or not operand.kind.startswith("b"):
            return operand
        offset = expressions.offset(self.parser)
        result = replace(operand, name=f"{operand.name}@plus{len(self.statements)}")
        opcode, text = f"add.u{operand.kind[1:]}", f"{operand.name} + {offset}"
        self.add(Instruction(opcode, (result, operand, Immediate(offset)), None, False, line, None, (), text), scope)
        return result

    def operand(self, scope: Scope) -> Operand:
        parser = self.parser
        first = self.single(scope)
        if parser.accept("|"):
            return Pair(first, self.single(scope))
        return first

    def single(self, scope: Scope) -> Operand:
        parser = self.parser
        register: Register | Vector | Selected | None
        if parser.accept("["):
            return self.address(scope)
        if parser.accept("{"):
            return Vector(self.until("}", scope))
        if self.calls and parser.accept("("):
            return Group(self.until(")", scope))
        behind = parser.tokens[parser.position + 1]
        is_name = behind.kind == "word" and behind.text != "WARP_SZ"
        if parser.at("!") and is_name:
            parser.take()
            return Not(self.register(scope))
        if parser.at("-") and is_name:
            parser.take()
            name = parser.word()
            register = selected(scope, name) or scope.register(name)
            if isinstance(register, Selected):
                return replace(register, negated=True)
            if register is None:
                parser.fail(f"{name} is no register")
            return Selected(register, "", negated=True)
        if parser.token.kind == "number" or parser.at("-", "+", "~", "!", "(", "WARP_SZ"):
            return expressions.expression(parser)
        name = parser.word()
        if name == "_":
            return Sink()
        register = found(scope, name) or selected(scope, name)
        if register is not None:
            return register
        if name.startswith("%") and scope.symbol(name) is None and name not in parser.result.variables:
            return Special(name)
        return Symbol(scope.symbol(name) or name, expressions.offset(parser) if parser.at("+", "-") else 0)

    def until(self, closing: str, scope: Scope) -> tuple[Operand, ...]:
        elements: list[Operand] = []
        while not self.parser.accept(closing):
            elements.append(self.operand(scope))
            if not self.parser.accept(",") and not self.parser.at(closing):
                self.parser.fail(f"expected ',' or {closing!r}, found {self.parser.token.text!r}")
        return tuple(elements)

    def address(self, scope: Scope) -> Address:
        parser = self.parser
        base: Register | Symbol | Immediate
        if parser.token.kind == "number" or parser.at("-", "(", "~"):
            base = expressions.expression(parser)
            if base.form != "int":
                parser.fail("expected an integer")
        else:
            name = parser.word()
            base = scope.register(name) or Symbol(scope.symbol(name) or name)
        offset = expressions.offset(parser) if parser.at("+", "-") else 0
        coordinates: tuple[Operand, ...] = ()
        if parser.accept(","):
            # A texture may have its sampler in front of the coordinates.
            sampler = () if parser.at("{") else (self.single(scope),)
            if not sampler or parser.accept(","):
                parser.expect("{")
                coordinates = self.until("}", scope)
            coordinates = (*sampler, *coordinates)
        parser.expect("]")
        return Address(base, offset, coordinates)


def _located(statement: Instruction, files: dict[int, str]) -> Instruction:
    """An instruction with the name of its source file: the files stand behind the code that numbers them."""

    def named(place: str) -> str | None:
        number, line = place.split(":")
        return None if line == "0" or int(number) not in files else f"{files[int(number)]}:{line}"

    if statement.source is None:
        return statement
    source = named(statement.source)
    callers = () if source is None else tuple(filter(None, map(named, statement.callers)))
    return replace(statement, source=source, callers=callers)
