"""One block for the lanes of a frame, with what is undefined of each register.

In front of each instruction `before` is told the values of the registers that it reads; it raises where an undefined
one decides something, and works out what will be undefined of the results; `after` notes that.

What a guard does to a register is a choice between two values, and an undefined one makes the register undefined. In
front of what accesses memory, waits or branches it is a use, as are addresses and what barriers, copies and shuffles
are told. Values are moved and computed with freely: only what depends on them in the end counts.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from typing import Any, Protocol

import numpy as np

from refmoe.ptx import isa
from refmoe.ptx.engine.atomics import turns_of
from refmoe.ptx.engine.code import Code
from refmoe.ptx.engine.frame import Frame
from refmoe.ptx.engine.lanes import Lanes
from refmoe.ptx.engine.loads_and_stores import Access
from refmoe.ptx.engine.undefined import warps
from refmoe.ptx.engine.undefined.blocks import FollowedInstruction
from refmoe.ptx.engine.undefined.compared import Compared
from refmoe.ptx.engine.undefined.origins import Origins, Stored
from refmoe.ptx.engine.undefined.rules import everything, kinds_of, sum_mask, undefined_results, upward
from refmoe.ptx.engine.undefined.shades import Shade, blamed, masks_of, of_any, shade
from refmoe.ptx.isa import DTYPES
from refmoe.ptx.program.registers import CARRY, destinations_and_sources
from refmoe.ptx.state.memory import Region
from refmoe.ptx.state.special_registers import CLOCKS
from refmoe.ptx.text.literals import BITS, literal_bits
from refmoe.ptx.text.memory_ops import memory_opcode
from refmoe.ptx.text.syntax import (
    Address,
    Immediate,
    Instruction,
    Not,
    Operand,
    Pair,
    Register,
    Selected,
    Sink,
    Special,
    Vector,
)

Array = Any
# What computes a register and does nothing else.
_COMPUTED = frozenset((
    *isa.VIDEO, "mov", "cvta", "isspacep", "activemask", "mapa", "getctarank", "createpolicy", "abs", "add", "addc",
    "and", "bfe", "bfi", "bfind", "bmsk", "brev", "clz", "cnot", "copysign", "cos", "cvt", "div", "dp2a", "dp4a", "ex2",
    "fma", "fns", "lg2", "lop3", "mad", "mad24", "madc", "max", "min", "mul", "mul24", "neg", "not", "or", "popc",
    "prmt", "rcp", "rem", "rsqrt", "sad", "selp", "set", "setp", "shf", "shl", "shr", "sin", "slct", "sqrt", "sub",
    "subc", "szext", "tanh", "testp", "xor",
))  # fmt: skip
# What may be told anything.
_HINTS = ("prefetch", "prefetchu", "nanosleep", "pmevent", "applypriority")
# What the operands of an instruction reach, by its stem: of those that are not told apart more finely.
_SINKS = {
    "bar": "an operand of a barrier",
    "barrier": "an operand of a barrier",
    "mbarrier": "an operand of a barrier",
    "cp": "an operand of a copy",
    "call": "an argument of a function",
    "bra": "a branch",
    "brx": "a branch",
}


class Registers(Protocol):
    """What is undefined of a machine's registers and memory, see `refmoe.ptx.engine.undefined.follower`.

    Attributes:
        machine, code: whose.
    """

    machine: Lanes
    code: Code

    def shade_of(self, number: int, frame: Frame) -> Shade | None:
        """What is undefined of the register of a home."""
        ...

    def put(self, number: int, frame: Frame, held: Shade | None) -> None:
        """A register of the lanes of a frame was written."""
        ...

    def use(self, sink: str, instruction: Instruction, lanes: Array, masks: Array, origins: Array) -> None:
        """A result is about to depend on values."""
        ...

    def held_by(self, lanes: Array, names: frozenset[str]) -> Iterator[Array]:
        """Where undefined registers of lanes came from."""
        ...

    def sources(self, instruction: Instruction) -> frozenset[str]:
        """The registers of which what an instruction uses may be computed."""
        ...

    def trust(self, compared: Compared, lanes: Array, wrote: Array) -> None:
        """A CAS has checked what lanes had read."""
        ...

    def read(self, access: Access, region: Region, index: Array, lanes: Array) -> tuple[Array, Array]:
        """What is undefined of bytes that are read."""
        ...

    def write_bytes(self, region: Region, index: Array, bits: Array, origins: Array) -> None:
        """Undefined bytes were stored."""
        ...

    def pass_on(self, instruction: Instruction, lanes: Array, bits: Array, origins: Array) -> None:
        """Undefined bytes were stored by strong writes."""
        ...


class Execution:
    """A block that runs for a frame.

    Attributes:
        instruction: the one that runs now, or None.
        follower, origins: whose registers, and the numbers of the launch.
        frame, place: which lanes, which block.
    """

    def __init__(
        self,
        follower: Registers,
        origins: Origins,
        frame: Frame,
        place: int,
        instructions: Sequence[FollowedInstruction],
    ) -> None:
        self.follower, self.origins, self.frame, self.place = follower, origins, frame, place
        self._instructions = instructions
        self.instruction: Instruction | None = None
        active = frame.where(None)
        self._active = np.ones(frame.count, bool) if active is None else active
        self._followed: FollowedInstruction
        self._shades: dict[str, Shade | None] = {}
        self._values: Mapping[str, Any] = {}
        # What the running instruction leaves: shades of its destinations; made when it has run.
        self._results: Callable[[], None] | None = None
        # Of its loads: (undefined bits uint8 [n, width], origins) for each, over the lanes that acted.
        self._loads: list[tuple[Array, Array]] = []
        # Which of the lanes that act the last of them has.
        self._read: Array | None = None
        # Of its store: the same, as it will be; or bool [lanes], whether everything that a lane stores is undefined.
        self._stores: tuple[Array, Array] | None = None
        self._widely = False
        # Of its atomics: shades of operands and results by element.
        self._operands: list[list[Shade | None]] = []
        self._olds: list[tuple[Array, Array]] = []

    # Registers

    def held(self, register: Register) -> Shade | None:
        """What is undefined of a register."""
        if register.name not in self._shades:
            home = self.follower.code.homes.get(register.name)
            self._shades[register.name] = None if home is None else self.follower.shade_of(home[0], self.frame)
        return self._shades[register.name]

    def shade(self, operand: Operand, kind: str | None = None) -> Shade | None:
        """What is undefined of an operand, of its low bits if it is wider than its kind."""
        if isinstance(operand, Not | Selected):
            operand = operand.operand
        if isinstance(operand, Address):
            operand = operand.base
        if not isinstance(operand, Register):
            return None
        found = self.held(operand)
        return found if found is None or kind is None else found.narrowed(kind)

    def value(self, operand: Operand, kind: str) -> Array | None:
        """The value of an operand in all lanes; None where it is not known here."""
        dtype = np.dtype(DTYPES[kind])
        if isinstance(operand, Not):
            return ~np.broadcast_to(self._values[operand.operand.name], self.frame.count)
        if isinstance(operand, Register):
            held = np.asarray(self._values[operand.name])
            return np.array(np.broadcast_to(held.astype(dtype, copy=False), self.frame.count))
        if isinstance(operand, Immediate):
            bits = literal_bits(operand, kind)
            literal = bool(bits) if kind == "pred" else bits & ((1 << BITS[kind]) - 1)
            return np.full(self.frame.count, literal, dtype)
        if isinstance(operand, Special) and operand.name not in CLOCKS:
            return np.array(np.broadcast_to(self.frame.special(operand.name), self.frame.count).astype(dtype))
        return None

    def assign(self, operand: Operand, kind: str, made: Shade | None, signed: bool = False) -> None:
        """A destination of this kind gets a value, extended to its register, where the guard is on."""
        if isinstance(operand, Selected):
            operand = operand.operand
        if not isinstance(operand, Register):
            return
        assert self.instruction is not None
        if made is not None:
            made = made.widened(kind, operand.kind, signed)
        guard = self.instruction.guard
        if guard is not None:
            made = self._guarded(operand, made, guard)
        if made is not None:
            dtype = made.mask.dtype
            made = shade(np.where(self._active, made.mask, dtype.type(0)), made.origins)
        self._shades[operand.name] = made
        home = self.follower.code.homes.get(operand.name)
        if home is not None:
            self.follower.put(home[0], self.frame, made)

    def _guarded(self, register: Register, made: Shade | None, guard: Register) -> Shade | None:
        """The new value where the guard is on, else the old one; undefined where the guard is."""
        before, by = self.held(register), self._guard_shade
        if made is None and before is None and by is None:
            return None
        count = self.frame.count
        new, old = masks_of((made, before), (register.kind,) * 2, count)
        mask = np.where(self._guard, new, old)
        origins: Array = np.where(self._guard, blamed((made,), count), blamed((before,), count))
        if by is not None:
            mask = mask | everything(register.kind, by.open)
            origins = np.where(by.open, by.origins, origins)
        return shade(mask, origins)

    # Instructions

    def before(self, number: int, values: Mapping[str, Any]) -> None:
        """An instruction of the block is about to run.

        Args:
            number: of the instruction.
            values: of the registers that it reads, by name: [lanes], or one for all.

        Raises:
            UndefinedError: something that it does depends on an undefined value.
            MemoryFault: likewise, and the value came from bytes that nobody wrote.
        """
        followed = self._instructions[number]
        instruction, stem = followed.instruction, followed.stem
        self._followed, self.instruction, self._values = followed, instruction, values
        self._loads, self._stores, self._widely, self._operands, self._olds = [], None, False, [], []
        self._results = self._read = None
        guard = instruction.guard
        self._guard = self._active
        self._guard_shade = None
        if guard is not None:
            on = np.broadcast_to(np.asarray(values[guard.name]), self.frame.count)
            self._guard = ~on if instruction.negated else on
            self._guard_shade = self.held(guard)
        if followed.decided or (followed.quiet and all(self.held(register) is None for register in followed.uses)):
            self._results = self._define
            return
        if stem not in _COMPUTED and self._guard_shade is not None:
            self.use("a branch" if stem in ("bra", "brx") else "a predicate", self._guard_shade, guarded=False)
        rule = Execution._product_of_warpgroup if followed.product else _RULES.get(stem)
        if rule is not None and not instruction.opcode.startswith("st.bulk"):
            rule(self, instruction)
        elif stem in _COMPUTED:
            self._compute(instruction)
        elif stem in _HINTS or stem in ("createpolicy", "setmaxnreg"):
            self._results = self._define
        else:
            self._refuse(instruction, _SINKS.get(stem, f"an operand of {stem}"))
            self._results = self._define

    def after(self) -> None:
        """The instruction has run."""
        if self._results is not None:
            self._results()
        self.instruction = None

    def end(self, values: Mapping[str, Any]) -> None:
        """The block's terminator is about to run.

        Raises:
            UndefinedError: where lanes go on, or what a barrier is told, depends on an undefined value.
        """
        self.before(len(self._instructions) - 1, values)
        # What a barrier gives arrives later.
        self.instruction = None

    def use(self, sink: str, held: Shade | None, guarded: bool = True) -> None:
        """A value decides something in the lanes whose guard is on, or, not `guarded`, in all that act."""
        if held is None:
            return
        assert self.instruction is not None
        where = self._active & self._guard if guarded else self._active
        lanes = self.frame.lanes()
        self.follower.use(sink, self.instruction, lanes[where], held.mask[where], held.origins[where])

    def _define(self) -> None:
        """All results are defined."""
        for register in self._followed.results:
            self.assign(register, register.kind, None)

    def _refuse(self, instruction: Instruction, sink: str) -> None:
        """Every register that an instruction reads, but its guard, decides something."""
        for register in self._followed.uses:
            if register != instruction.guard:
                self.use(sink, self.held(register))

    # The instruction table

    def _compute(self, instruction: Instruction) -> None:
        destinations, sources = destinations_and_sources(instruction)
        first = instruction.operands[0]
        try:
            operation = isa.resolve(instruction.opcode, 2 if isinstance(first, Pair) else 1, len(sources))
        except isa.NoSuchInstruction:
            self._mixed(instruction)
            return
        kinds = [*operation.sources]
        operands: list[Operand] = list(sources)
        if operation.carry_in:
            kinds.append("pred")
            operands.append(CARRY)
        targets: list[Operand] = list(destinations)
        if operation.carry_out:
            targets.append(CARRY)
        shades = [self.shade(operand, kind) for operand, kind in zip(operands, kinds, strict=True)]
        values = [self.value(operand, kind) for operand, kind in zip(operands, kinds, strict=True)]
        masks = masks_of(shades, kinds, self.frame.count)
        results: list[Shade | None]
        if any(value is None for value in values):
            results = [of_any(shades, kind, self.frame.count) for kind in kinds_of(operation)]
        else:
            origins = blamed(shades, self.frame.count)
            results = [shade(mask, origins) for mask in undefined_results(operation, values, masks)]
        pairs = list(zip(targets, kinds_of(operation), results, strict=False))

        def assign() -> None:
            for target, kind, made in pairs:
                self.assign(target, kind, made, operation.sign_extend)

        self._results = assign

    def _mixed(self, instruction: Instruction) -> None:
        """Every result depends on all bits of all operands."""
        _, sources = destinations_and_sources(instruction)
        shades = [self.shade(operand) for operand in sources]
        made = {register: of_any(shades, register.kind, self.frame.count) for register in self._followed.results}

        def assign() -> None:
            for register, held in made.items():
                self.assign(register, register.kind, held)

        self._results = assign

    def _mov(self, instruction: Instruction) -> None:
        destination, source = instruction.operands
        if not isinstance(destination, Vector) and not isinstance(source, Vector):
            self._compute(instruction)
            return
        bits = int(instruction.opcode[5:])
        made: list[tuple[Operand, str, Shade | None]] = []
        if isinstance(destination, Vector):
            part, held = bits // len(destination.elements), self.shade(source, f"b{bits}")
            for number, element in enumerate(destination.elements):
                moved = None
                if held is not None:
                    mask = (held.mask >> held.mask.dtype.type(part * number)).astype(DTYPES[f"b{part}"])
                    moved = shade(mask, held.origins)
                made.append((element, f"b{part}", moved))
        else:
            assert isinstance(source, Vector)
            part = bits // len(source.elements)
            shades = [self.shade(element, f"b{part}") for element in source.elements]
            dtype = np.dtype(DTYPES[f"b{bits}"])
            whole = np.zeros(self.frame.count, dtype)
            for number, mask in enumerate(masks_of(shades, (f"b{part}",) * len(shades), self.frame.count)):
                whole |= mask.astype(dtype) << dtype.type(part * number)
            made.append((destination, f"b{bits}", shade(whole, blamed(shades, self.frame.count))))

        def assign() -> None:
            for element, kind, moved in made:
                self.assign(element, kind, moved)

        self._results = assign

    def _cvta(self, instruction: Instruction) -> None:
        """The window is added to the bits above all that an address in it has."""
        destination, source = instruction.operands
        held, value = self.shade(source, "b64"), self.value(source, "b64")
        made = None
        if held is not None and value is not None:
            nothing = np.zeros(self.frame.count, bool)
            window = np.full(self.frame.count, 1 << 56, np.uint64)
            mask, _ = sum_mask(value, window, held.mask, np.zeros_like(window), nothing, nothing)
            made = shade(upward(mask & ~np.uint64((1 << 56) - 1)) | held.mask, held.origins)
        self._results = lambda: self.assign(destination, "b64", made)

    # Memory

    def carries(self, access: Access) -> bool:
        """Whether an access is of the running instruction, and one of those whose values are followed."""
        if self.instruction is None or access.instruction is not self.instruction:
            return False
        stem = self.instruction.opcode.split(".")[0]
        return stem in ("ld", "ldu", "atom", "red", "ldmatrix", "wmma") and ".async" not in self.instruction.opcode

    def loaded(
        self, access: Access, region: Region, index: Array, lanes: Array, which: Array | None, total: int
    ) -> None:
        """Lanes have read: `which` of `total`, or None for all."""
        bits, origins = self.follower.read(access, region, index, lanes)
        if which is None:
            self._loads.append((bits, origins))
            self._read = None
            return
        # Lanes that address other memory come in calls of their own.
        if self._read is None or len(self._read) != total or self._read[which].any():
            self._loads.append((np.zeros((total, access.width), np.uint8), np.zeros(total, np.int64)))
            self._read = np.zeros(total, bool)
        self._loads[-1][0][which], self._loads[-1][1][which] = bits, origins
        self._read = self._read | which

    def stored(self, access: Access, region: Region, index: Array, lanes: Array, which: Array | None) -> None:
        """Lanes have stored: `which` of those that do, or None for all."""
        if self._stores is None or self.instruction is None or access.instruction is not self.instruction:
            return
        bits, origins = self._stores
        if which is not None:
            bits, origins = bits[which], origins[which]
        if self._widely:
            bits = np.repeat(bits, access.width, axis=1)
        self._write(region, index, bits, origins, lanes)

    def _write(self, region: Region, index: Array, bits: Array, origins: Array, lanes: Array) -> None:
        some = bits.any(axis=1)
        if some.any():
            assert self.instruction is not None
            opcode = memory_opcode(self.instruction.opcode)
            if opcode is not None and opcode.strong:
                self.follower.pass_on(self.instruction, lanes[some], bits[some], origins[some])
            threads = lanes[some] + self.follower.machine.first_thread
            marks = self.origins.add(Stored(self.instruction, origins[some]), threads)
            self.follower.write_bytes(region, index[some], bits[some], marks)

    def _chosen(self) -> Array:
        """The vector elements of lanes that act, int64 [n], in the order in which accesses have them."""
        return np.flatnonzero(self._active & self._guard)

    def _spread(self, mask: Array, origins: Array, where: Array) -> Shade | None:
        """A shade of lanes that act, over all of the frame."""
        whole, whence = np.zeros(self.frame.count, mask.dtype), np.zeros(self.frame.count, np.int64)
        if mask.size:
            whole[where], whence[where] = mask, origins
        return shade(whole, whence)

    def _load(self, instruction: Instruction) -> None:
        opcode = memory_opcode(instruction.opcode)
        if opcode is None:
            self._results = self._define
            return
        self.use("an address", self.shade(instruction.operands[1]))
        target = instruction.operands[0]
        elements = target.elements if isinstance(target, Vector) else (target,)
        where, kind = self._chosen(), f"b{8 * opcode.size}"

        def assign() -> None:
            bits, origins = (
                self._loads[0] if self._loads else (np.zeros((0, opcode.size * opcode.count), np.uint8),) * 2
            )
            for number, element in enumerate(elements):
                made = None
                if bits.any():
                    part = np.ascontiguousarray(bits[:, number * opcode.size : (number + 1) * opcode.size])
                    # One read may have been made for all lanes.
                    mask = np.broadcast_to(part.view(DTYPES[kind])[:, 0], where.size)
                    made = self._spread(mask, np.broadcast_to(origins, where.size), where)
                self.assign(element, kind, made, opcode.type.startswith("s"))

        self._results = assign

    def _store(self, instruction: Instruction) -> None:
        opcode = memory_opcode(instruction.opcode)
        if opcode is None:
            self._refuse(instruction, "an operand of a store")
            return
        self.use("an address", self.shade(instruction.operands[0]))
        source = instruction.operands[1]
        elements = source.elements if isinstance(source, Vector) else (source,)
        shades = [self.shade(element, f"b{8 * opcode.size}") for element in elements]
        where = self._chosen()
        if not where.size or all(each is None for each in shades):
            return
        masks = masks_of(shades, (f"b{8 * opcode.size}",) * len(shades), self.frame.count)
        bits = np.stack([mask[where] for mask in masks], axis=1)
        self._stores = bits.view(np.uint8).reshape(len(where), -1), blamed(shades, self.frame.count)[where]

    def _atomic(self, instruction: Instruction) -> None:
        opcode = memory_opcode(instruction.opcode)
        if opcode is None:
            self._refuse(instruction, "an operand of an atomic")
            self._results = self._define
            return
        operands = list(instruction.operands)
        destination = operands.pop(0) if opcode.stem == "atom" else Sink()
        self.use("an address", self.shade(operands.pop(0)))
        kind = f"b{8 * opcode.size}"
        count = 2 if opcode.operation == "cas" else 1
        columns = [each.elements if isinstance(each, Vector) else (each,) for each in operands[:count]]
        self._operands = [[self.shade(column[each], kind) for column in columns] for each in range(opcode.count)]
        targets = destination.elements if isinstance(destination, Vector) else (destination,)
        where = self._chosen()
        self._olds = [(np.zeros(where.size, DTYPES[kind]), np.zeros(where.size, np.int64)) for _ in self._operands]

        def assign() -> None:
            for target, (mask, origins) in zip(targets, self._olds, strict=False):
                self.assign(target, kind, self._spread(mask, origins, where), opcode.type.startswith("s"))

        self._results = assign

    @contextmanager
    def modified(
        self, access: Access, region: Region, at: Array, lanes: Array, place: Array, element: int, stores: Array
    ) -> Iterator[None]:
        """Around a read and write by an atomic: of word numbers `at` [n] by `lanes` [n], `place` [n] among those."""
        if self.instruction is None or access.instruction is not self.instruction or not self._operands:
            yield
            return
        opcode = memory_opcode(self.instruction.opcode)
        assert opcode is not None
        size, where = access.size, self._chosen()
        words, number = np.unique(at, return_inverse=True)
        one = replace(access, count=1)
        first = np.zeros(len(words), np.int64)
        first[number[::-1]] = lanes[::-1]
        bits, origins = self.follower.read(one, region, words * size, first)
        mask = np.ascontiguousarray(bits).view(f"u{size}")[:, 0]
        held = self._operands[element][-1]
        own = np.zeros(len(at), mask.dtype) if held is None else held.mask[where[place]].astype(mask.dtype)
        whence = np.zeros(len(at), np.int64) if held is None else held.origins[where[place]]
        compared = None
        if opcode.operation == "cas":
            compared = self._compare(region, at * size, size, lanes, where[place], element)
            # What would take the place of a value that the CAS checks is stored if that value was right.
            own = np.where(compared.of_reads(np.where(own != 0, whence, 0)), own.dtype.type(0), own)
        if opcode.operation == "cas" and mask.any():
            # Whether it stores is not known.
            open_ = mask[number]
            self.follower.use("the comparison of an atomic", self.instruction, lanes, open_, origins[number])
        olds, old_origins = self._olds[element]
        yield
        if compared is not None and compared.checked.any():
            self._trust(compared, lanes, where[place], stores[place])
        for turn in turns_of(at):
            who = number[turn]
            olds[place[turn]], old_origins[place[turn]] = mask[who], origins[who]
            made = _atomic_mask(opcode.operation or "", opcode.type, mask[who], own[turn])
            writes = stores[place[turn]]
            origins[who] = np.where(writes & (own[turn] != 0), whence[turn], origins[who])
            mask[who] = np.where(writes, made, mask[who])
        self._write(region, words * size, mask.view(np.uint8).reshape(-1, size), origins, first)

    def _compare(self, region: Region, begin: Array, size: int, lanes: Array, where: Array, element: int) -> Compared:
        """A CAS by `lanes` [n], at `where` [n] in the frame, of `size` bytes at `begin` [n].

        Raises:
            UndefinedError, RaceError: the value to compare with is undefined, and is none that the CAS itself checks.
        """
        assert self.instruction is not None
        machine, held = self.follower.machine, self._operands[element][0]
        numbers = np.zeros(len(lanes), np.int64)
        if held is not None:
            numbers = np.where(held.open[where], held.origins[where], 0)
        first = begin + machine.first_cta * region.stride
        found = Compared(self.origins, region.name, first, size, lanes + machine.first_thread, numbers)
        if held is not None:
            bad = (numbers != 0) & ~found.checked
            if found.checked.any():
                names = self.follower.sources(self.instruction)
                local = [
                    np.where(each.open[where], each.origins[where], 0)
                    for name, each in self._shades.items()
                    if each is not None and name in names
                ]
                for other in (*local, *self.follower.held_by(lanes, names)):
                    bad |= found.checked & found.differ(other)
            origins = held.origins[where[bad]]
            self.follower.use(
                "the comparison of an atomic", self.instruction, lanes[bad], held.mask[where[bad]], origins
            )
        return found

    def _trust(self, compared: Compared, lanes: Array, where: Array, wrote: Array) -> None:
        """`lanes` [n], at `where` [n] in the frame, have compared what they had read; bool [n]: and have stored."""
        for name, held in list(self._shades.items()):
            if held is not None:
                found = wrote & compared.of_reads(np.where(held.open[where], held.origins[where], 0))
                mask = held.mask.copy()
                mask[where[found]] = 0
                self._shades[name] = shade(mask, held.origins)
        self.follower.trust(compared, lanes, wrote)

    def _load_matrix(self, instruction: Instruction) -> None:
        self.use("an address", self.shade(instruction.operands[1]))
        target = instruction.operands[0]
        elements = target.elements if isinstance(target, Vector) else (target,)
        where = self._chosen()

        def assign() -> None:
            bits, origins = self._loads[0] if self._loads else (np.zeros((0, 16), np.uint8), np.zeros(0, np.int64))
            masks, whence = warps.matrix_loaded(instruction, bits, origins) if bits.any() else (None, None)
            for number, element in enumerate(elements):
                made = None
                if masks is not None and whence is not None:
                    made = self._spread(masks[number], whence[number], where)
                self.assign(element, "b32", made)

        self._results = assign

    def _store_matrix(self, instruction: Instruction) -> None:
        self.use("an address", self.shade(instruction.operands[0]))
        source = instruction.operands[1]
        elements = source.elements if isinstance(source, Vector) else (source,)
        shades = [self.shade(element, "b32") for element in elements]
        if all(each is None for each in shades):
            return
        where = self._chosen()
        masks = np.stack([mask[where] for mask in masks_of(shades, ("b32",) * len(shades), self.frame.count)])
        origins = blamed(shades, self.frame.count)[where]
        lanes = self.frame.lanes()[where]
        rows = warps.matrix_stored(instruction, masks)
        used = lanes % 32 < 8 * len(elements)
        # A row is of several lanes; the first of the warp with something undefined is named.
        by_warp = (masks != 0).any(axis=0).reshape(-1, 32)
        named = origins.reshape(-1, 32)[np.arange(len(by_warp)), np.argmax(by_warp, axis=1)]
        self._stores = rows, np.repeat(named, 32)[used]

    def _wmma(self, instruction: Instruction) -> None:
        """A fragment: a lane's registers are undefined if something is that the lane loads, and so for stores."""
        target, address, *rest = instruction.operands
        if not instruction.opcode.startswith("wmma.load"):
            target, address = address, target
        self.use("an address", self.shade(address))
        for operand in rest:
            self.use("an address", self.shade(operand))
        elements = target.elements if isinstance(target, Vector) else (target,)
        where = self._chosen()
        if not instruction.opcode.startswith("wmma.load"):
            shades = [self.shade(element) for element in elements]
            found = of_any(shades, "b8", self.frame.count)
            if found is not None:
                self._stores, self._widely = (found.mask[where, None], found.origins[where]), True
            return

        def assign() -> None:
            open_, origins = np.zeros(where.size, bool), np.zeros(where.size, np.int64)
            for bits, whence in self._loads:
                some = bits.any(axis=1)
                origins, open_ = np.where(some, whence, origins), open_ | some
            for element in elements:
                if isinstance(element, Register):
                    mask = everything(element.kind, open_)
                    self.assign(element, element.kind, self._spread(mask, origins, where))

        self._results = assign

    # Whole warps

    def _exchange(self, instruction: Instruction) -> None:
        self._results = warps.exchanged(self, instruction)

    def _product(self, instruction: Instruction) -> None:
        self._results = warps.multiplied(self, instruction)

    def _product_of_warpgroup(self, instruction: Instruction) -> None:
        # Where its operands lie, what is stored of A, and whether it adds: of all lanes of a warpgroup the same.
        self._refuse(instruction, "an operand of wgmma")
        self._results = warps.multiplied_by_warpgroup(self, instruction)


def _atomic_mask(operation: str, kind: str, old: Array, own: Array) -> Array:
    """What is undefined of memory after an atomic, of what was and of the operand."""
    if operation in ("exch", "cas"):
        return own
    together = old | own
    if operation in ("and", "or", "xor"):
        return together
    if operation == "add" and kind[0] in "us":
        return upward(together)
    return np.where(together != 0, ~np.zeros_like(together), np.zeros_like(together))


# What becomes of the results of instructions that are not computed operand by operand.
_RULES: Mapping[str, Callable[[Execution, Instruction], None]] = {
    "mov": Execution._mov, "cvta": Execution._cvta, "ld": Execution._load, "ldu": Execution._load,
    "st": Execution._store, "atom": Execution._atomic, "red": Execution._atomic, "mma": Execution._product,
    "ldmatrix": Execution._load_matrix, "stmatrix": Execution._store_matrix, "wmma": Execution._wmma,
    **dict.fromkeys(("shfl", "vote", "match", "redux", "elect", "movmatrix"), Execution._exchange),
}  # fmt: skip
