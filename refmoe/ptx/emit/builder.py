"""Statements in the making: what each family of instructions appends to, and the names that they use."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from refmoe.ptx import isa
from refmoe.ptx.engine.mbarrier import Wait
from refmoe.ptx.engine.tensor.mma import Mma
from refmoe.ptx.isa import DTYPES
from refmoe.ptx.program.layout import Layout
from refmoe.ptx.state.spaces import LOCAL_WINDOW, SHARED_WINDOW
from refmoe.ptx.state.special_registers import SPECIALS
from refmoe.ptx.text.literals import BITS, literal_bits, select, widener
from refmoe.ptx.text.parser import ParsedModule
from refmoe.ptx.text.syntax import (
    Address,
    Immediate,
    Instruction,
    Not,
    Operand,
    Register,
    Sink,
    Special,
    Symbol,
    Vector,
)

#: Where generic addresses of a state space begin.
WINDOWS = {"shared": SHARED_WINDOW, "local": LOCAL_WINDOW}


class Builder:
    """Collects the statements of a block and the objects they name.

    Attributes:
        lines: of the block begun last.
        names: globals of the generated functions.
        approximate, contractions: instructions met so far whose results, or whose SASS, may differ.
        block: the block begun last.
        waits: by block that begins with a wait for a barrier in memory: what it does, and its operands.
        has_mbarriers: whether there are barriers in memory.
        has_bulk: whether there are bulk copies, edits of tensor maps, or products of warpgroups.
        has_warpgroups: whether there are products of warpgroups.
        lanes_synchronise: whether single lanes may synchronise.
        fences_in_order: whether there are fences `.sc`.
        fences_inits: whether there are `fence.mbarrier_init`.
        strong_spaces: of strong loads and stores: these tell which write an atomic read.
        models: accumulation models of the tensor-core instructions met so far, and what each rests on.
        products: what each of these instructions computes.
        refused: instructions that do not exist here.
        misfits: those of them, without their guards, whose operands do not fit, and why.
        watched: instructions that report which registers they access, see `refmoe.ptx.program.warpgroup`.
    """

    def __init__(self, module: ParsedModule, layout: Layout) -> None:
        self.module = module
        self.layout = layout
        self.block = 0
        self.lines: list[str] = []
        self.waits: dict[int, tuple[Wait, str]] = {}
        self.has_mbarriers = False
        self.has_bulk = False
        self.lanes_synchronise = False
        self.fences_in_order = False
        self.fences_inits = False
        self.strong_spaces: set[str] = set()
        self.has_warpgroups = False
        self.models: dict[str, str] = {}
        self.products: dict[Instruction, Mma] = {}
        self.refused: set[Instruction] = set()
        self.misfits: dict[Instruction, str] = {}
        self.watched: frozenset[Instruction] = frozenset()
        self.names: dict[str, Any] = {"select": select, "not_": np.logical_not}
        self.approximate: list[Instruction] = []
        self.contractions: list[Instruction] = []
        self._locals: dict[str, str] = {}
        self._bound: dict[Any, str] = {}

    def start_block(self, block: int) -> None:
        """Begin a block."""
        self.block = block
        self.lines = []

    def local(self, register: Register) -> str:
        """The Python variable of a register."""
        return self._locals.setdefault(register.name, f"r{len(self._locals)}")

    def spelled(self, instruction: Instruction, *spellings: str) -> None:
        """Refuse an opcode that is none of `spellings`."""
        if instruction.opcode not in spellings:
            raise isa.NoSuchInstruction(instruction.opcode)

    # Values

    def bind(self, prefix: str, value: Any) -> str:
        """A global name for `value`."""
        name = f"{prefix}{len(self.names)}"
        self.names[name] = value
        return name

    def bind_once(self, prefix: str, value: Any, *parts: Any) -> str:
        """A global name for `value`, which `parts` tell from others of that prefix."""
        key = (prefix, *parts)
        if key not in self._bound:
            self._bound[key] = self.bind(prefix, value)
        return self._bound[key]

    def constant(self, bits: int, kind: str) -> str:
        """A global name for a constant of a register kind."""
        value = DTYPES[kind](bool(bits) if kind == "pred" else bits & ((1 << BITS[kind]) - 1))
        return self.bind_once("k", value, bits, kind)

    def predicate(self, register: Register, negated: bool) -> str:
        """A predicate register or its complement."""
        return f"not_({self.local(register)})" if negated else self.local(register)

    def value(self, operand: Operand, kind: str) -> str:
        """Expression for a source operand of a register kind; a wider register gives its low bits."""
        if isinstance(operand, Not):
            if kind != "pred":
                raise ValueError("'!' on an operand that is no predicate")
            return self.predicate(operand.operand, True)
        if isinstance(operand, Immediate):
            return self.constant(literal_bits(operand, kind), kind)
        if isinstance(operand, Symbol):
            return self._narrow(self.address_of(operand), "b64", kind)
        if isinstance(operand, Special):
            if operand.name not in SPECIALS:
                raise isa.NoSuchInstruction(operand.name, f"the register {operand.name} is not defined here")
            return self._narrow(f"F.special({operand.name!r})", SPECIALS[operand.name], kind)
        if isinstance(operand, Register):
            return self._narrow(self.local(operand), operand.kind, kind)
        raise ValueError("an operand of a form that it does not take")

    def _narrow(self, expression: str, have: str, want: str) -> str:
        if have == want:
            return expression
        if "pred" in (have, want):
            raise ValueError(f"an operand of kind {have} where {want} is needed")
        if BITS[have] < BITS[want]:
            if expression.startswith("F.special"):
                return f"{expression}.astype({self.dtype(want)})"
            raise ValueError(f"a register of {BITS[have]} bits where {BITS[want]} are needed")
        return f"{expression}.astype({self.dtype(want)})"

    def dtype(self, kind: str) -> str:
        """A global name for the NumPy type of a register kind."""
        return self.bind_once("t", np.dtype(DTYPES[kind]), kind)

    def address_of(self, symbol: Symbol) -> str:
        """Expression for the address of a variable, in its own space, as 64 bits."""
        if symbol.name in self.layout.addresses:
            return self.constant(self.layout.addresses[symbol.name] + symbol.offset, "b64")
        if any(variable.name == symbol.name for variable in self.layout.buffers):
            if symbol.offset:
                return f"(F.machine.addresses[{symbol.name!r}] + {self.constant(symbol.offset, 'b64')})"
            return f"F.machine.addresses[{symbol.name!r}]"
        raise ValueError(f"no variable {symbol.name}")

    def assign(
        self, instruction: Instruction, destination: Operand, expression: str, kind: str, signed: bool = False
    ) -> None:
        """`destination = expression`, extended to the register, where the guard is on."""
        if isinstance(destination, Sink):
            self.lines.append(expression)
            return
        if not isinstance(destination, Register):
            raise ValueError("a destination that is no register")
        if destination.kind != kind:
            if "pred" in (destination.kind, kind) or BITS[destination.kind] < BITS[kind]:
                raise ValueError(f"a destination of kind {destination.kind} for a result of kind {kind}")
            widen = widener(kind, destination.kind, signed)
            expression = f"{self.bind_once('w', widen, kind, destination.kind, signed)}({expression})"
        name = self.local(destination)
        if instruction.guard is not None:
            guard = self.predicate(instruction.guard, instruction.negated)
            expression = f"select({guard}, {expression}, {name})"
        self.lines.append(f"{name} = {expression}")

    def assign_all(
        self, instruction: Instruction, targets: Sequence[tuple[Operand, str]], call: str, signed: bool = False
    ) -> None:
        """Each target, an operand and its kind, gets its element of the tuple `call`, where the guard is on."""
        temporaries = [f"v{i}" for i in range(len(targets))]
        self.lines.append(f"{', '.join(temporaries)}, = {call}")
        # Its own guard comes last: every assignment still reads it.
        for (operand, kind), temporary in sorted(
            zip(targets, temporaries, strict=True), key=lambda item: item[0][0] == instruction.guard
        ):
            if not isinstance(operand, Sink):
                self.assign(instruction, operand, temporary, kind, signed)

    def call(self, work: Any, *arguments: str) -> str:
        """Expression for a call of `work` with the frame and more arguments."""
        return f"{self.bind('x', work)}({', '.join(('F', *arguments))})"

    def run(self, work: Any, *arguments: str) -> None:
        """Append a call whose value nobody needs."""
        self.lines.append(self.call(work, *arguments))

    def guard(self, instruction: Instruction) -> str:
        """Expression for the guard of an instruction."""
        return "None" if instruction.guard is None else self.predicate(instruction.guard, instruction.negated)

    def note(self, instruction: Instruction, exact_when: Callable[..., Any], arguments: Sequence[str]) -> None:
        """Remember an instruction if its result is not provably exact in every acting lane."""
        exact = self.bind("e", exact_when)
        # One that was compiled before has its number already.
        if instruction not in self.approximate:
            self.approximate.append(instruction)
        number = self.approximate.index(instruction)
        self.lines.append(f"F.note({number}, {exact}({', '.join(arguments)}), {self.guard(instruction)})")

    # Memory

    def address(self, operand: Operand, space: str) -> tuple[str, str]:
        """Expression for an address, and the space it is in."""
        if not isinstance(operand, Address):
            raise ValueError("a memory operand needed")
        if operand.coordinates:
            raise ValueError("coordinates of a tensor where an address is needed")
        base = operand.base
        if isinstance(base, Immediate):
            return self.constant(base.value + operand.offset, "b64"), space
        if isinstance(base, Symbol):
            lies_in = self.layout.spaces.get(base.name, "global")
            if space == "generic" and lies_in == "local":
                return self.address_of(Symbol(base.name, base.offset + operand.offset)), "local"
            if space == "generic":
                window = WINDOWS.get(lies_in, 0)
                return self.address_of(Symbol(base.name, base.offset + operand.offset + window)), space
            return self.address_of(Symbol(base.name, base.offset + operand.offset)), (
                "local" if space == "param" and lies_in == "local" else space
            )
        if base.kind not in ("b32", "b64"):
            raise ValueError("an address register needs 32 or 64 bits")
        if not operand.offset:
            return self.local(base), space
        return f"({self.local(base)} + {self.constant(operand.offset, base.kind)})", space

    def elements(self, operand: Operand, count: int) -> tuple[Operand, ...]:
        """The elements of an operand, which must be `count`."""
        elements = operand.elements if isinstance(operand, Vector) else (operand,)
        if len(elements) != count:
            raise ValueError(f"{count} elements needed")
        return elements
