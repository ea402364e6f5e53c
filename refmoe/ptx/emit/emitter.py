"""One instruction to one or a few Python statements."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import numpy as np

from refmoe.ptx import isa
from refmoe.ptx.emit import async_copies, bulk, call, cluster, tensor, textures, video, wgmma, wmma
from refmoe.ptx.emit.builder import WINDOWS, Builder
from refmoe.ptx.engine import warp
from refmoe.ptx.engine.atomics import atomic
from refmoe.ptx.engine.cluster.memory import is_own_shared
from refmoe.ptx.engine.loads_and_stores import Load, Store
from refmoe.ptx.engine.local_pointers import to_generic, to_local
from refmoe.ptx.engine.mbarrier import Publish
from refmoe.ptx.isa import DTYPES
from refmoe.ptx.program.layout import Layout
from refmoe.ptx.program.registers import CARRY, destinations_and_sources
from refmoe.ptx.state.records import STRENGTHS
from refmoe.ptx.text.literals import BITS
from refmoe.ptx.text.memory_ops import MemoryOpcode, memory_opcode
from refmoe.ptx.text.parser import ParsedModule
from refmoe.ptx.text.spellings import fence_order, fence_scope, synchronised
from refmoe.ptx.text.syntax import (
    Immediate,
    Instruction,
    Operand,
    Pair,
    Register,
    Sink,
    Vector,
)

_FENCES = re.compile(
    r"membar\.(cta|gl|sys)|fence(\.(sc|acq_rel|acquire|release))?\.(cta|cluster|gpu|sys)|fence\.(sc|acq_rel)"
    r"|fence\.mbarrier_init\.release\.cluster"
    r"|fence\.(acquire\.sync_restrict::shared::cluster|release\.sync_restrict::shared::cta)\.cluster"
)
_CVTA = re.compile(r"cvta(?P<to>\.to)?\.(?P<space>global|shared|shared::cta|shared::cluster|local|const|param)\.u64")
_ISSPACEP = re.compile(r"isspacep\.(?P<space>global|shared|shared::cta|shared::cluster|local|const|param|param::entry)")
_REDUX_OF_FLOATS = re.compile(r"redux\.sync\.(?P<operation>min|max)(\.abs(\.NaN)?|\.NaN(\.abs)?)?\.f32")
_HAS_REDUX_OF_FLOATS = ("sm_100", "sm_101", "sm_103")
_ADVICE = (
    "prefetch", "prefetchu", "nanosleep", "createpolicy", "applypriority", "setmaxnreg", "griddepcontrol",
    "pmevent",
)  # fmt: skip


def matched(pattern: re.Pattern[str], instruction: Instruction) -> re.Match[str]:
    """The parts of a spelling; isa.NoSuchInstruction for another one."""
    match = pattern.fullmatch(instruction.opcode)
    if match is None:
        raise isa.NoSuchInstruction(instruction.opcode)
    return match


def _check_constants(opcode: str, sources: Sequence[Operand]) -> None:
    """Refuse what ptxas refuses: a constant of another kind than the last type of an opcode, as in `mov.f32 f, 1`.

    Raises:
        ValueError: there is one.
    """
    stem, *parts = opcode.split(".")
    # These have sources of two types.
    if stem == "slct" or not parts or {"rs", "pack"} & set(parts):
        return
    floating, integer = parts[-1] in ("f32", "f64"), parts[-1] in ("u16", "u32", "u64", "s16", "s32", "s64")
    for each in sources:
        if isinstance(each, Immediate) and floating and each.form == "int":
            raise ValueError(f"an integer constant where .{parts[-1]} needs a floating-point one")
        if isinstance(each, Immediate) and integer and each.form != "int":
            raise ValueError(f"a floating-point constant where .{parts[-1]} needs an integer")


def _part_bits(kind: str, vector: Vector) -> int:
    """Bits of each element of a register that is packed or unpacked."""
    count, fitting = len(vector.elements), [2, 4][: 1 + (BITS[kind] > 16)]
    if count not in fitting:
        raise ValueError(f"{' or '.join(map(str, fitting))} elements needed, not {count}")
    return BITS[kind] // count


class Emitter(Builder):
    """Emits any instruction: the list of families."""

    def __init__(self, module: ParsedModule, layout: Layout) -> None:
        super().__init__(module, layout)
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
            "discard": partial(cluster.discard, self),
            "mapa": partial(cluster.map_address, self),
            "getctarank": partial(cluster.rank_of, self),
            "clusterlaunchcontrol": partial(cluster.launch_control, self),
            "activemask": self._activemask,
            "shfl": self._shuffle,
            "vote": self._vote,
            "match": self._match,
            "redux": self._redux,
            "elect": self._elect,
            "movmatrix": partial(tensor.move_matrix, self),
            "bar": self._warp_barrier,
            "mbarrier": partial(async_copies.mbarrier, self),
            "cp": partial(async_copies.copy, self),
            "tensormap": partial(bulk.tensor_map, self),
            "ldmatrix": partial(tensor.load_matrix, self),
            "stmatrix": partial(tensor.store_matrix, self),
            "mma": partial(tensor.multiply, self),
            "wmma": partial(wmma.move, self),
            "wgmma": partial(wgmma.warpgroup, self),
            "call": partial(call.call, self),
            **dict.fromkeys(isa.VIDEO, partial(video.video, self)),
            **dict.fromkeys(textures.STEMS, partial(textures.texture, self)),
        }

    def instruction(self, instruction: Instruction) -> None:
        """Append the statements of one instruction.

        Raises:
            isa.NoSuchInstruction: there is no such instruction.
            ValueError: its operands do not fit; the message says how.
        """
        if instruction in self.watched:
            wgmma.touch(self, instruction)
        owned = self._owned.get(instruction.opcode.split(".")[0])
        (owned or self._compute)(instruction)

    # The instruction table

    def _compute(self, instruction: Instruction) -> None:
        first = instruction.operands[0] if instruction.operands else None
        destinations, sources = destinations_and_sources(instruction)
        operation = isa.resolve(instruction.opcode, 2 if isinstance(first, Pair) else 1, len(sources))
        if len(sources) != len(operation.sources) or len(destinations) != len(operation.destinations):
            raise ValueError(f"{len(operation.sources)} sources and {len(operation.destinations)} destinations needed")
        if operation.contractible:
            self.contractions.append(instruction)
        _check_constants(operation.opcode, sources)
        arguments = [self.value(operand, kind) for operand, kind in zip(sources, operation.sources, strict=True)]
        carry = self.local(CARRY)
        if operation.exact_when is not None:
            self.note(instruction, operation.exact_when, arguments)
        if operation.carry_in:
            arguments.append(carry)
        function = self.bind_once("f", operation.function, operation.function)
        call = f"{function}({', '.join(arguments)})"
        targets = list(zip(destinations, operation.destinations, strict=True))
        if operation.carry_out:
            targets.append((CARRY, "pred"))
        if len(targets) == 1:
            self.assign(instruction, targets[0][0], call, targets[0][1], operation.sign_extend)
        else:
            self.assign_all(instruction, targets, call, operation.sign_extend)

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
        part = _part_bits(kind, destination)
        self.lines.append(f"v0 = {value}")
        for position, element in enumerate(destination.elements):
            if isinstance(element, Sink):
                continue
            if not isinstance(element, Register) or element.kind != f"b{part}":
                raise ValueError(f"elements of {part} bits needed")
            shifted = f"(v0 >> {self.constant(position * part, kind)})" if position else "v0"
            self.assign(instruction, element, f"{shifted}.astype({self.dtype(f'b{part}')})", f"b{part}")

    def _pack(self, instruction: Instruction, destination: Operand, source: Vector, kind: str) -> None:
        part = _part_bits(kind, source)
        parts = []
        for position, element in enumerate(source.elements):
            value = f"{self.value(element, f'b{part}')}.astype({self.dtype(kind)})"
            parts.append(f"({value} << {self.constant(position * part, kind)})" if position else value)
        self.assign(instruction, destination, " | ".join(parts), kind)

    def _cvta(self, instruction: Instruction) -> None:
        match = matched(_CVTA, instruction)
        destination, source = instruction.operands
        space = match["space"].split("::")[0]
        window, expression = WINDOWS.get(space, 0), self.value(source, "b64")
        if space == "local":
            expression = self.call(to_local if match["to"] else to_generic, expression)
        elif window:
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
            raise isa.NoSuchInstruction(instruction.opcode)
        return opcode

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
            instruction, space, opcode.size, opcode.count, signed=signed, dtypes=tuple(dtypes),
            bounds=self.layout.bounded(instruction), **self._order(opcode),
        )  # fmt: skip
        call = self.call(load, address, self.guard(instruction))
        wanted = [(element, element.kind) for element in elements if isinstance(element, Register)]
        if wanted:
            self.assign_all(instruction, wanted, call)
        else:
            self.lines.append(call)

    def _store(self, instruction: Instruction) -> None:
        if instruction.opcode.startswith(("st.async.", "st.bulk")):
            write = cluster.store_bulk if instruction.opcode.startswith("st.bulk") else cluster.write_async
            write(self, instruction)
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
        bounds = self.layout.bounded(instruction)
        store = Store(instruction, space, opcode.size, opcode.count, bounds=bounds, **self._order(opcode))
        self.run(store, address, self.guard(instruction), f"({', '.join(values)},)")

    def _order(self, opcode: MemoryOpcode) -> dict[str, Any]:
        """What orders a load or a store."""
        acquires, releases = opcode.semantics == "acquire", opcode.semantics == "release"
        self.lanes_synchronise |= acquires or releases
        if opcode.strong:
            self.strong_spaces.update(("global", "shared") if opcode.space == "generic" else (opcode.space,))
        strength = STRENGTHS[opcode.scope] if opcode.strong else 0
        return {"strength": strength, "acquires": acquires, "releases": releases, "coherent": opcode.coherent}

    def _atomic(self, instruction: Instruction) -> None:
        if instruction.opcode.startswith("red.async."):
            cluster.write_async(self, instruction)
            return
        opcode = self._opcode(instruction)
        self.lanes_synchronise |= opcode.semantics in ("acquire", "release", "acq_rel")
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
        work = atomic(instruction, opcode, self.layout.bounded(instruction))
        call = self.call(work, address, self.guard(instruction), f"({', '.join(values)},)")
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
        self.lanes_synchronise = True
        if instruction.opcode.startswith("fence.mbarrier_init"):
            # It orders the thread's own mbarrier.init and nothing else.
            self.has_mbarriers = self.fences_inits = True
            self.run(Publish(), self.guard(instruction))
            return
        scope, sequential = fence_scope(instruction.opcode)
        self.fences_in_order |= sequential
        order = fence_order(instruction.opcode)
        self.lines.append(f"F.fence({self.guard(instruction)}, {STRENGTHS[scope]}, {sequential}, {order!r})")

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
        if (match := _REDUX_OF_FLOATS.fullmatch(instruction.opcode)) is not None:
            target = self.module.target
            if not target.startswith(_HAS_REDUX_OF_FLOATS):
                raise isa.NoSuchInstruction(
                    instruction.opcode, f"redux of .f32 is of sm_100a and sm_103a, not of {target}"
                )
            nan = ".NaN" if "NaN" in instruction.opcode else ""
            function = isa.resolve(f"{match['operation']}{nan}.f32", 1, 2).function
            magnitude = np.uint32(0x7FFFFFFF if ".abs" in instruction.opcode else 0xFFFFFFFF)
            work = warp.Redux(function, lambda a: function(a & magnitude, a & magnitude))
            self._exchange(instruction, work, ("b32", "b32"), ("b32",))
            return
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
        self.lines.append(f"F.warp_sync({self.value(instruction.operands[0], 'b32')})")
