"""One instruction to one or a few Python statements."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import numpy as np

from refmoe.ptx import isa
from refmoe.ptx.emit import async_copies, bulk, call, cluster, tensor, video, wmma
from refmoe.ptx.engine import warp
from refmoe.ptx.engine.access import Load, Store, atomic
from refmoe.ptx.engine.cluster import is_own_shared
from refmoe.ptx.engine.mbarrier import Wait
from refmoe.ptx.engine.tensor.mma import Mma
from refmoe.ptx.isa import DTYPES
from refmoe.ptx.program.layout import Layout
from refmoe.ptx.program.registers import CARRY, destinations_and_sources
from refmoe.ptx.state.spaces import LOCAL_WINDOW, SHARED_WINDOW
from refmoe.ptx.state.specials import SPECIALS
from refmoe.ptx.text.memory_ops import MemoryOpcode, memory_opcode
from refmoe.ptx.text.parser import ParsedModule
from refmoe.ptx.text.spellings import synchronised
from refmoe.ptx.text.syntax import (
    Address,
    Immediate,
    Instruction,
    Not,
    Operand,
    Pair,
    Register,
    Sink,
    Special,
    Symbol,
    Vector,
)
from refmoe.ptx.text.values import BITS, literal_bits, select, widener

_FENCES = re.compile(
    r"membar\.(cta|gl|sys)|fence(\.(sc|acq_rel|acquire|release))?\.(cta|cluster|gpu|sys)|fence\.(sc|acq_rel)"
    r"|fence\.mbarrier_init\.release\.cluster"
)
_CVTA = re.compile(r"cvta(?P<to>\.to)?\.(?P<space>global|shared|shared::cta|shared::cluster|local|const|param)\.u64")
_ISSPACEP = re.compile(r"isspacep\.(?P<space>global|shared|shared::cta|shared::cluster|local)")
_ADVICE = ("prefetch", "prefetchu", "nanosleep", "createpolicy", "applypriority", "setmaxnreg", "griddepcontrol")
_TEXTURES = ("tex", "tld4", "txq", "suld", "sust", "sured", "suq", "istypep")
_WINDOWS = {"shared": SHARED_WINDOW, "local": LOCAL_WINDOW}


def matched(pattern: re.Pattern[str], instruction: Instruction) -> re.Match[str]:
    """The parts of a spelling; UnknownOpcode for another one."""
    match = pattern.fullmatch(instruction.opcode)
    if match is None:
        raise isa.UnknownOpcode(instruction.opcode)
    return match


class Emitter:
    """Collects the statements of a block and the objects they name.

    Attributes:
        lines: of the block begun last.
        names: globals of the generated functions.
        approximate, contractions: instructions met so far whose results, or whose SASS, may differ.
        block: the block begun last.
        waits: by block that begins with a wait for a barrier in memory: what it does, and its operands.
        has_mbarriers: whether there are barriers in memory.
        has_bulk: whether there are bulk copies or edits of tensor maps.
        models: accumulation models of the tensor-core instructions met so far, and what each rests on.
        products: what each of these instructions computes.
        refused: instructions that do not exist here.
    """

    def __init__(self, module: ParsedModule, layout: Layout) -> None:
        self.module = module
        self.layout = layout
        self.block = 0
        self.lines: list[str] = []
        self.waits: dict[int, tuple[Wait, str]] = {}
        self.has_mbarriers = False
        self.has_bulk = False
        self.models: dict[str, str] = {}
        self.products: dict[Instruction, Mma] = {}
        self.refused: set[Instruction] = set()
        self.names: dict[str, Any] = {"select": select, "not_": np.logical_not}
        self.approximate: list[Instruction] = []
        self.contractions: list[Instruction] = []
        self._locals: dict[str, str] = {}
        self._bound: dict[Any, str] = {}
        # Memory instructions and the like by stem; the rest is the instruction table's.
        self._owned: dict[str, Callable[[Instruction], None]] = {
            **dict.fromkeys(("ld", "ldu"), self._load),
            "st": self._store,
            **dict.fromkeys(("atom", "red"), self._atomic),
            "mov": self._mov,
            "cvta": self._cvta,
            "isspacep": self._isspacep,
            **dict.fromkeys(("membar", "fence"), self._fence),
            **dict.fromkeys(_ADVICE, partial(cluster.advise, self)),
            "mapa": partial(cluster.map_address, self),
            "getctarank": partial(cluster.rank_of, self),
            "activemask": self._activemask,
            "shfl": self._shuffle,
            "vote": self._vote,
            "match": self._match,
            "redux": self._redux,
            "elect": self._elect,
            "bar": self._warp_barrier,
            "mbarrier": partial(async_copies.mbarrier, self),
            "cp": partial(async_copies.copy, self),
            "tensormap": partial(bulk.tensor_map, self),
            "ldmatrix": partial(tensor.load_matrix, self),
            "stmatrix": partial(tensor.store_matrix, self),
            "mma": partial(tensor.multiply, self),
            "wmma": partial(wmma.move, self),
            "call": partial(call.call, self),
            **dict.fromkeys(isa.VIDEO, partial(video.video, self)),
            **dict.fromkeys(_TEXTURES, self._texture),
        }

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
            raise isa.UnknownOpcode(instruction.opcode)

    def instruction(self, instruction: Instruction) -> None:
        """Append the statements of one instruction.

        Raises:
            isa.UnknownOpcode: there is no such instruction.
            ValueError: its operands do not fit; the message says how.
        """
        owned = self._owned.get(instruction.opcode.split(".")[0])
        (owned or self._compute)(instruction)

    # Values

    def bind(self, prefix: str, value: Any) -> str:
        """A global name for `value`."""
        name = f"{prefix}{len(self.names)}"
        self.names[name] = value
        return name

    def _bind_once(self, prefix: str, value: Any, *parts: Any) -> str:
        """A global name for `value`, which `parts` tell from others of that prefix."""
        key = (prefix, *parts)
        if key not in self._bound:
            self._bound[key] = self.bind(prefix, value)
        return self._bound[key]

    def constant(self, bits: int, kind: str) -> str:
        """A global name for a constant of a register kind."""
        value = DTYPES[kind](bool(bits) if kind == "pred" else bits & ((1 << BITS[kind]) - 1))
        return self._bind_once("k", value, bits, kind)

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
            return self._narrow(self._address_of(operand), "b64", kind)
        if isinstance(operand, Special):
            if operand.name not in SPECIALS:
                raise isa.UnknownOpcode(operand.name, f"the register {operand.name} is not defined here")
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
                return f"{expression}.astype({self._dtype(want)})"
            raise ValueError(f"a register of {BITS[have]} bits where {BITS[want]} are needed")
        return f"{expression}.astype({self._dtype(want)})"

    def _dtype(self, kind: str) -> str:
        return self._bind_once("t", np.dtype(DTYPES[kind]), kind)

    def _address_of(self, symbol: Symbol) -> str:
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
            expression = f"{self._bind_once('w', widen, kind, destination.kind, signed)}({expression})"
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
        self.lines.append(
            f"F.note({len(self.approximate)}, {exact}({', '.join(arguments)}), {self.guard(instruction)})"
        )
        self.approximate.append(instruction)

    # The instruction table

    def _compute(self, instruction: Instruction) -> None:
        first = instruction.operands[0] if instruction.operands else None
        destinations, sources = destinations_and_sources(instruction)
        operation = isa.resolve(instruction.opcode, 2 if isinstance(first, Pair) else 1, len(sources))
        if len(sources) != len(operation.sources) or len(destinations) != len(operation.destinations):
            raise ValueError(f"{len(operation.sources)} sources and {len(operation.destinations)} destinations needed")
        if operation.contractible:
            self.contractions.append(instruction)
        arguments = [self.value(operand, kind) for operand, kind in zip(sources, operation.sources, strict=True)]
        carry = self.local(CARRY)
        if operation.exact_when is not None:
            self.note(instruction, operation.exact_when, arguments)
        if operation.carry_in:
            arguments.append(carry)
        function = self._bind_once("f", operation.function, operation.function)
        call = f"{function}({', '.join(arguments)})"
        targets = list(zip(destinations, operation.destinations, strict=True))
        if operation.carry_out:
            targets.append((CARRY, "pred"))
        if len(targets) == 1:
            self.assign(instruction, targets[0][0], call, targets[0][1], operation.sign_extend)
        else:
            self.assign_all(instruction, targets, call, operation.sign_extend)

    def _texture(self, instruction: Instruction) -> None:
        """Always raises isa.UnknownOpcode."""
        raise isa.UnknownOpcode(instruction.opcode, "there are no textures and no surfaces here")

    # Moves and addresses

    def _mov(self, instruction: Instruction) -> None:
        if len(instruction.operands) != 2:
            raise ValueError("two operands needed")
        destination, source = instruction.operands
        kind = instruction.opcode[4:] if instruction.opcode[4:] in ("b16", "b32", "b64") else None
        if isinstance(destination, Vector):
            if kind is None or not isinstance(source, Register | Immediate):
                raise ValueError("unpacking needs .b16, .b32 or .b64 and a register")
            self._unpack(instruction, destination, self.value(source, kind), kind)
        elif isinstance(source, Vector):
            if kind is None:
                raise ValueError("packing needs .b16, .b32 or .b64")
            self._pack(instruction, destination, source, kind)
        else:
            self._compute(instruction)

    def _unpack(self, instruction: Instruction, destination: Vector, value: str, kind: str) -> None:
        part = BITS[kind] // len(destination.elements)
        self.lines.append(f"v0 = {value}")
        for position, element in enumerate(destination.elements):
            if isinstance(element, Sink):
                continue
            if not isinstance(element, Register) or element.kind != f"b{part}":
                raise ValueError(f"elements of {part} bits needed")
            shifted = f"(v0 >> {self.constant(position * part, kind)})" if position else "v0"
            self.assign(instruction, element, f"{shifted}.astype({self._dtype(f'b{part}')})", f"b{part}")

    def _pack(self, instruction: Instruction, destination: Operand, source: Vector, kind: str) -> None:
        part = BITS[kind] // len(source.elements)
        parts = []
        for position, element in enumerate(source.elements):
            value = f"{self.value(element, f'b{part}')}.astype({self._dtype(kind)})"
            parts.append(f"({value} << {self.constant(position * part, kind)})" if position else value)
        self.assign(instruction, destination, " | ".join(parts), kind)

    def _cvta(self, instruction: Instruction) -> None:
        match = matched(_CVTA, instruction)
        destination, source = instruction.operands
        window = _WINDOWS.get(match["space"].split("::")[0], 0)
        expression = self.value(source, "b64")
        if window:
            expression = f"({expression} {'-' if match['to'] else '+'} {self.constant(window, 'b64')})"
        self.assign(instruction, destination, expression, "b64")

    def _isspacep(self, instruction: Instruction) -> None:
        space = matched(_ISSPACEP, instruction)["space"]
        destination, source = instruction.operands
        if space in ("shared", "shared::cta"):
            call = self.call(is_own_shared, self.value(source, "b64"))
            self.assign(instruction, destination, call, "pred")
            return
        space = space.split("::")[0]
        self.assign(instruction, destination, f"F.machine.in_space({space!r}, {self.value(source, 'b64')})", "pred")

    # Memory

    def _opcode(self, instruction: Instruction) -> MemoryOpcode:
        opcode = memory_opcode(instruction.opcode)
        if opcode is None:
            raise isa.UnknownOpcode(instruction.opcode)
        return opcode

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
            if space == "generic":
                window = _WINDOWS.get(lies_in, 0)
                return self._address_of(Symbol(base.name, base.offset + operand.offset + window)), space
            return self._address_of(Symbol(base.name, base.offset + operand.offset)), (
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

    def _load(self, instruction: Instruction) -> None:
        opcode = self._opcode(instruction)
        if len(instruction.operands) != 2 + opcode.hinted:
            raise ValueError("wrong number of operands")
        elements = self.elements(instruction.operands[0], opcode.count)
        address, space = self.address(instruction.operands[1], opcode.space)
        dtypes: list[Any] = []
        for element in elements:
            if isinstance(element, Register):
                if element.kind == "pred" or BITS[element.kind] < opcode.size * 8:
                    raise ValueError("a destination register narrower than the element")
                dtypes.append(np.dtype(DTYPES[element.kind]))
            elif isinstance(element, Sink):
                dtypes.append(None)
            else:
                raise ValueError("a destination that is no register")
        signed = opcode.type.startswith("s")
        load = Load(
            instruction, space, opcode.size, opcode.count, strong=opcode.strong, signed=signed, dtypes=tuple(dtypes)
        )
        call = self.call(load, address, self.guard(instruction))
        wanted = [(element, element.kind) for element in elements if isinstance(element, Register)]
        if wanted:
            self.assign_all(instruction, wanted, call)
        else:
            self.lines.append(call)

    def _store(self, instruction: Instruction) -> None:
        if instruction.opcode.startswith("st.async."):
            cluster.write_async(self, instruction)
            return
        opcode = self._opcode(instruction)
        if len(instruction.operands) != 2 + opcode.hinted:
            raise ValueError("wrong number of operands")
        address, space = self.address(instruction.operands[0], opcode.space)
        if space == "param":
            raise ValueError("a store to a kernel parameter")
        values = []
        for element in self.elements(instruction.operands[1], opcode.count):
            if isinstance(element, Register):
                if element.kind == "pred" or BITS[element.kind] < opcode.size * 8:
                    raise ValueError("a source register narrower than the element")
                values.append(self.local(element))
            else:
                values.append(self.value(element, f"b{opcode.size * 8}"))
        releases = opcode.semantics == "release"
        store = Store(instruction, space, opcode.size, opcode.count, strong=opcode.strong, releases=releases)
        self.run(store, address, self.guard(instruction), f"({', '.join(values)},)")

    def _atomic(self, instruction: Instruction) -> None:
        if instruction.opcode.startswith("red.async."):
            cluster.write_async(self, instruction)
            return
        opcode = self._opcode(instruction)
        operands = list(instruction.operands)
        destination = operands.pop(0) if opcode.stem == "atom" else None
        address, _ = self.address(operands.pop(0), opcode.space)
        count = 2 if opcode.operation == "cas" else 1
        sources = operands[:count]
        if len(operands) != count + opcode.hinted or (opcode.stem == "red" and opcode.operation in ("cas", "exch")):
            raise ValueError("wrong number of operands")
        kind = f"b{opcode.size * 8}"
        columns = [self.elements(source, opcode.count) for source in sources]
        values = [
            f"({', '.join(self.value(column[element], kind) for column in columns)},)"
            for element in range(opcode.count)
        ]
        call = self.call(atomic(instruction, opcode), address, self.guard(instruction), f"({', '.join(values)},)")
        if destination is None or isinstance(destination, Sink):
            self.lines.append(call)
            return
        targets = [(element, kind) for element in self.elements(destination, opcode.count)]
        self.assign_all(instruction, targets, call, opcode.type.startswith("s"))

    def _fence(self, instruction: Instruction) -> None:
        if bulk.proxy_fence(self, instruction):
            return
        matched(_FENCES, instruction)
        if instruction.operands:
            raise ValueError("no operands needed")
        self.lines.append(f"F.fence({self.guard(instruction)})")

    # Warp-level instructions: never guarded here, their guards are branches

    def _activemask(self, instruction: Instruction) -> None:
        self.spelled(instruction, "activemask.b32")
        if len(instruction.operands) != 1:
            raise ValueError("wrong number of operands")
        self.assign(instruction, instruction.operands[0], self.call(warp.active_mask), "b32")

    def _exchange(
        self, instruction: Instruction, work: Any, sources: tuple[str, ...], results: tuple[str, ...]
    ) -> None:
        """`d[|p] = work(sources)`; `results` are the kinds that `work` returns, of which the last may be left out."""
        destinations, operands = destinations_and_sources(instruction)
        if len(operands) != len(sources) or not 1 <= len(destinations) <= len(results):
            raise ValueError("wrong number of operands")
        call = self.call(work, *(self.value(operand, kind) for operand, kind in zip(operands, sources, strict=True)))
        if len(results) == 1:
            self.assign(instruction, destinations[0], call, results[0])
        else:
            # A predicate that nobody wants may be left out.
            wanted = (*destinations, Sink())[: len(results)]
            self.assign_all(instruction, list(zip(wanted, results, strict=True)), call)

    def _shuffle(self, instruction: Instruction) -> None:
        written, instruction = instruction, synchronised(instruction)
        mode = instruction.opcode.split(".")[2:3]
        self.spelled(instruction, *(f"shfl.sync.{name}.b32" for name in ("up", "down", "bfly", "idx")))
        work = warp.Shuffle(written, mode[0])
        self._exchange(instruction, work, ("b32", "b32", "b32", "b32"), ("b32", "pred"))

    def _vote(self, instruction: Instruction) -> None:
        instruction = synchronised(instruction)
        self.spelled(instruction, "vote.sync.ballot.b32", *(f"vote.sync.{m}.pred" for m in ("all", "any", "uni")))
        mode = instruction.opcode.split(".")[2]
        result = "b32" if mode == "ballot" else "pred"
        self._exchange(instruction, warp.Vote(mode), ("pred", "b32"), (result,))

    def _match(self, instruction: Instruction) -> None:
        self.spelled(instruction, *(f"match.{m}.sync.{t}" for m in ("any", "all") for t in ("b32", "b64")))
        _, mode, _, kind = instruction.opcode.split(".")
        if mode == "any" and isinstance(instruction.operands[0], Pair):
            raise ValueError("match.any has no predicate")
        self._exchange(instruction, warp.Match(mode), (kind, "b32"), ("b32", "pred"))

    def _redux(self, instruction: Instruction) -> None:
        self.spelled(
            instruction,
            *(f"redux.sync.{op}.{t}" for op in ("add", "min", "max") for t in ("u32", "s32")),
            *(f"redux.sync.{op}.b32" for op in ("and", "or", "xor")),
        )
        _, _, operation, kind = instruction.opcode.split(".")
        work = warp.Redux(isa.resolve_atomic(operation, kind))
        self._exchange(instruction, work, ("b32", "b32"), ("b32",))

    def _elect(self, instruction: Instruction) -> None:
        self.spelled(instruction, "elect.sync")
        self._exchange(instruction, warp.Elect(), ("b32",), ("b32", "pred"))

    def _warp_barrier(self, instruction: Instruction) -> None:
        self.spelled(instruction, "bar.warp.sync")
        if len(instruction.operands) != 1:
            raise ValueError("wrong number of operands")
        self.lines.append("F.warp_sync()")
