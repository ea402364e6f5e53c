"""A parsed PTX module as data: variables, functions, instructions and their operands."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import cast

#: Opcode of an instruction that no lane may run. No text has it.
REFUSED = "@refused"


@dataclass(frozen=True)
class Register:
    """A virtual register; `name` is unique in its function, `kind` is `"pred" "b16" "b32" "b64"`."""

    name: str
    kind: str


@dataclass(frozen=True)
class Special:
    """A predefined register such as `%tid.x`."""

    name: str


@dataclass(frozen=True)
class Immediate:
    """A literal. `form` is `"int"` (any Python integer), `"f32"` or `"f64"` (the bits)."""

    value: int
    form: str = "int"


@dataclass(frozen=True)
class Symbol:
    """The name of a variable, label or function, plus a byte offset."""

    name: str
    offset: int = 0


@dataclass(frozen=True)
class Address:
    """A memory operand `[base + offset]`, or `[base + offset, {c0, c1, ...}]`: coordinates in a tensor."""

    base: Register | Symbol | Immediate
    offset: int = 0
    coordinates: tuple[Operand, ...] = ()


@dataclass(frozen=True)
class Vector:
    """`{a, b, ...}`."""

    elements: tuple[Operand, ...]


@dataclass(frozen=True)
class Sink:
    """`_`, a destination that nobody reads."""


@dataclass(frozen=True)
class Not:
    """`!p`."""

    operand: Register


@dataclass(frozen=True)
class Selected:
    """`r.b3`, `-r.h0`: parts of a register, as video instructions take and write them. `parts` is `""` for all."""

    operand: Register
    parts: str
    negated: bool = False


@dataclass(frozen=True)
class Pair:
    """`d|p`, two destinations."""

    first: Operand
    second: Operand


@dataclass(frozen=True)
class Group:
    """`(a, b)`, the arguments or results of a call."""

    elements: tuple[Operand, ...]


Operand = Register | Special | Immediate | Symbol | Address | Vector | Sink | Not | Selected | Pair | Group


def parts(operand: Operand) -> Iterator[Operand]:
    """An operand and all that stand inside it, in the order written."""
    yield operand
    inner: tuple[Operand, ...] = ()
    if isinstance(operand, Address):
        inner = (operand.base, *operand.coordinates)
    elif isinstance(operand, Vector | Group):
        inner = operand.elements
    elif isinstance(operand, Pair):
        inner = (operand.first, operand.second)
    elif isinstance(operand, Not | Selected):
        inner = (operand.operand,)
    for each in inner:
        yield from parts(each)


def mapped(operand: Operand, change: Callable[[Register | Symbol], Register | Symbol]) -> Operand:
    """An operand with `change` of every register and symbol inside it: whatever `parts` gives that has a name."""
    if isinstance(operand, Register | Symbol):
        return change(operand)
    if isinstance(operand, Address):
        base = cast("Register | Symbol | Immediate", mapped(operand.base, change))
        return replace(operand, base=base, coordinates=tuple(mapped(each, change) for each in operand.coordinates))
    if isinstance(operand, Vector | Group):
        return replace(operand, elements=tuple(mapped(each, change) for each in operand.elements))
    if isinstance(operand, Pair):
        return Pair(mapped(operand.first, change), mapped(operand.second, change))
    if isinstance(operand, Not):
        return Not(cast("Register", mapped(operand.operand, change)))
    if isinstance(operand, Selected):
        return replace(operand, operand=cast("Register", mapped(operand.operand, change)))
    return operand


@dataclass(frozen=True)
class Refused:
    """Why no lane may run an instruction.

    Attributes:
        opcode: as written, `""` where none can be told.
        reason: a clause.
        is_ptx: whether it could be read: then its operands do not fit its opcode.
    """

    opcode: str
    reason: str
    is_ptx: bool


def in_source(source: str | None, callers: Sequence[str]) -> str:
    """Where an `Instruction` comes from, in brackets.

    ` (kernel.cu:9)`, ` (wrapper.h:7, inlined at kernel.cu:9)`, and of a deeper call its first and its last place:
    ` (wrapper.h:7, inlined at library.h:30, called from kernel.cu:9)`.
    """
    if source is None:
        return ""
    inlined = f", inlined at {callers[0]}" if callers else ""
    called = f", called from {callers[-1]}" if len(callers) > 1 else ""
    return f" ({source}{inlined}{called})"


@dataclass(frozen=True)
class Instruction:
    """One instruction.

    Attributes:
        opcode: the full spelling.
        operands: in the order written.
        guard: predicate register, or None.
        negated: whether the guard is `@!p`.
        line: in the PTX text, 1-based.
        source: `file:line` of the `.loc` in force, or None.
        callers: where the function of `source` is inlined, the function there, and so on, in the same form, innermost
            first, as far as the text says; empty where it is not inlined.
        text: as written, white space normalised.
        refused: why it is an error of the lanes that reach it; then it has no operands, and `REFUSED` for its opcode.
    """

    opcode: str
    operands: tuple[Operand, ...]
    guard: Register | None
    negated: bool
    line: int
    source: str | None
    callers: tuple[str, ...]
    text: str
    refused: Refused | None = None

    @property
    def spelling(self) -> str:
        """The opcode as written."""
        return self.opcode if self.refused is None else self.refused.opcode

    def refuse(self, reason: str, is_ptx: bool = True) -> Instruction:
        """What stands in its place if no lane may run it."""
        return replace(self, opcode=REFUSED, operands=(), refused=Refused(self.opcode, reason, is_ptx))


@dataclass(frozen=True)
class Label:
    """A place in a function body; unique in its function."""

    name: str


@dataclass(frozen=True)
class Variable:
    """A declared piece of memory.

    Attributes:
        name: unique in the module (module scope) or in its function.
        space: `"global" "const" "shared" "local" "param"`.
        size: bytes; 0 for `name[]`.
        align: bytes.
        type: element type as written, `"b8"`, `"u64"`, ...
        pointer: declared `.ptr`.
        initial: the initialised leading bytes, or None.
        relocations: (byte offset, size, symbol, shift) of addresses inside `initial`: the low bytes of what is left of
            the address when that many bits are shifted out.
    """

    name: str
    space: str
    size: int
    align: int
    type: str
    pointer: bool = False
    initial: bytes | None = None
    relocations: tuple[tuple[int, int, Symbol, int], ...] = ()


@dataclass(frozen=True)
class Function:
    """An `.entry` or a `.func`. `body` is None for a declaration."""

    name: str
    is_entry: bool
    parameters: tuple[Variable, ...]
    results: tuple[Variable, ...]
    body: tuple[Instruction | Label, ...] | None
    variables: dict[str, Variable] = field(default_factory=dict)
    tables: dict[str, tuple[str, ...]] = field(default_factory=dict)
    directives: dict[str, tuple[int, ...]] = field(default_factory=dict)
    line: int = 0
