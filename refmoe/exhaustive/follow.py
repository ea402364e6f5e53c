"""Follows what a kernel computes of its input, for every input at once: geometry with its values, input as terms.

Thread and block numbers, sizes, maps and addresses have values, which are computed as the executor computes them
(`refmoe.ptx.isa`). A word of the input is a term, and so is all that is computed of one. So one run of a launch speaks
for every input that the launch may get, and for every path that an input may choose:

- A branch by a value is taken, or not. Each thread has its own place in the code; the first place goes next.
- A branch by a term is taken and not taken: up to its target, registers keep what they held where it is taken, as a
  term that holds both and the predicate. It must lead forward.
- A predicate that is a term makes of its instruction's result such a term, too.
- An address that is a term, a loop or a shuffle under such a predicate, and every instruction that is not listed here
  (shared memory, atomics, barriers, votes) end the run: `NotFollowed` names it. What is not understood is refused.

Where an instruction's predicate has a value, the run notes which values it had: what no thread of any launch took is
nothing that a proof speaks of.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Any

import numpy as np
from numpy.typing import NDArray

from refmoe.errors import RefmoeError
from refmoe.exhaustive.terms import BLOCK_WORDS, Terms
from refmoe.ptx.isa import NoSuchInstruction, resolve
from refmoe.ptx.isa.operation import DTYPES
from refmoe.ptx.program.registers import destinations_and_sources
from refmoe.ptx.text.syntax import (
    Address,
    Function,
    Immediate,
    Instruction,
    Label,
    Not,
    Operand,
    Pair,
    Register,
    Sink,
    Special,
    Symbol,
    Vector,
)

_BLOCK_BYTES = 4 * BLOCK_WORDS
_WARP = 32
#: Buffers are this far apart, so that an address says which it is in.
_WINDOW = 40
#: What a load or store says to the caches, which decides no value.
_HINTS = frozenset({"ca", "cg", "cs", "lu", "wb", "wt", "L1::no_allocate", "L1::evict_first", "L1::evict_last"})
#: Steps after which a launch counts as endless.
_STEPS = 200_000

Array = NDArray[Any]


class NotFollowed(RefmoeError):
    """The kernel does what the proof does not understand, or must not do; the message names the instruction."""


@dataclass(frozen=True)
class Launch:
    """A launch of a kernel.

    Attributes:
        grid, block: CTAs, and threads of each.
        arguments: in order: a number, or the name of a buffer.
        input: name of the buffer of BF16 or FP16 that is followed, and its bytes.
        known: buffers whose values are known, by name.
        outputs: bytes of the buffers that are written, by name.
    """

    grid: int
    block: int
    arguments: tuple[int | str, ...]
    input: tuple[str, int]
    known: Mapping[str, Array]
    outputs: Mapping[str, int]


@dataclass
class Value:
    """A register of some threads: bits, or the term of each thread and the block that it is relative to.

    Attributes:
        bits: [n], of the register's type; of no meaning where there is a term.
        terms: int32 [n], 0 where the bits say all.
        blocks: int64 [n], the block of the input that block 0 of the term is.
    """

    bits: Array
    terms: Array
    blocks: Array

    def take(self, places: Array) -> Value:
        """Of the threads at `places`."""
        return Value(self.bits[places], self.terms[places], self.blocks[places])

    @classmethod
    def known(cls, bits: Array) -> Value:
        """One that depends on no input."""
        return cls(bits, np.zeros(bits.shape, np.int32), np.zeros(bits.shape, np.int64))


@dataclass(frozen=True)
class Stored:
    """A store of some threads: `size` bytes each at `offset` of a buffer.

    Attributes:
        instruction: that stores.
        buffer: its name.
        offset: int64 [n].
        size: bytes of one element, at most 4.
        value: what is stored.
    """

    instruction: Instruction
    buffer: str
    offset: Array
    size: int
    value: Value


@dataclass
class Seen:
    """Which instructions of an entry ran, and which values their predicates had, over several launches.

    Attributes:
        ran: places in the code.
        sides: (place, value) of each predicate that has a value; both where it is a term.
    """

    ran: set[int] = field(default_factory=set)
    sides: set[tuple[int, bool]] = field(default_factory=set)


@dataclass
class _Skip:
    """Threads that may have jumped over what stands before `target`: those for which the term is true."""

    target: Array  # int64 [n], 0 for none
    condition: Value


class Follower:
    """Follows some CTAs of a launch.

    Args:
        function: the entry.
        launch: how it is launched.
        ctas: which CTAs.
        terms: where terms are made.
        seen: what is noted of paths.
        store: is told of every store.
        forced: values that predicates are taken to have, by place in the code.
    """

    def __init__(
        self,
        function: Function,
        launch: Launch,
        ctas: range,
        terms: Terms,
        seen: Seen,
        store: Callable[[Stored], None],
        forced: Mapping[int, bool] = MappingProxyType({}),
    ) -> None:
        self.forced = forced
        self.launch, self.terms, self.seen, self.store = launch, terms, seen, store
        self.code = [each for each in function.body or () if isinstance(each, Instruction)]
        self.labels = _labels(function)
        if launch.block % _WARP:
            raise NotFollowed(f"{function.name}: a block of {launch.block} threads, which are no whole warps")
        count = len(ctas) * launch.block
        self.thread = np.arange(count) % launch.block
        self.cta = np.array(ctas)[np.arange(count) // launch.block]
        self.place = np.zeros(count, np.int64)
        self.registers: dict[str, Value] = {}
        self.skips: list[_Skip] = []
        names = [launch.input[0], *launch.known, *launch.outputs]
        self.window = {name: number + 1 for number, name in enumerate(names)}
        self.parameters = {
            parameter.name: (self.window[value] << _WINDOW) if isinstance(value, str) else value
            for parameter, value in zip(function.parameters, launch.arguments, strict=True)
        }

    def run(self, steps: int = _STEPS) -> None:
        """Follow all threads to their end, which takes at most `steps`.

        Raises:
            NotFollowed: see there.
        """
        end = len(self.code)
        for _ in range(steps):
            place = int(self.place.min())
            if place == end:
                return
            threads = np.flatnonzero(self.place == place)
            self._leave_skips(place)
            self.seen.ran.add(place)
            self.place[threads] = place + 1
            self._step(self.code[place], place, threads)
        raise NotFollowed(f"no end after {steps} steps")

    # Paths

    def _leave_skips(self, place: int) -> None:
        for skip in self.skips:
            skip.target[(skip.target <= place) & (self.place >= place)] = 0
        self.skips = [skip for skip in self.skips if skip.target.any()]

    def _skipping(self, threads: Array) -> list[tuple[_Skip, Array]]:
        """The skips under way of some threads, the oldest first, each with whose they are."""
        found = [(skip, skip.target[threads] > 0) for skip in self.skips]
        return [(skip, whose) for skip, whose in found if whose.any()]

    def _branch(self, instruction: Instruction, place: int, threads: Array) -> None:
        target = instruction.operands[-1]
        if not isinstance(target, Symbol) or target.name not in self.labels:
            raise self._refused(instruction, "no branch to a label")
        to = self.labels[target.name]
        taken = self._guard(instruction, place, threads)
        open_skips = self._skipping(threads)
        by_value = taken.terms == 0
        for _, whose in open_skips:
            by_value &= ~whose
        self.place[threads[by_value & taken.bits]] = to
        unclear = ~by_value & ((taken.terms != 0) | taken.bits)
        if not unclear.any():
            return
        if to <= place:
            raise self._refused(instruction, "a loop whose end depends on the input")
        self.seen.sides |= {(place, False), (place, True)}
        whose = np.flatnonzero(unclear)
        condition = taken.take(whose)
        for skip, of in open_skips:
            # Who jumped over this branch does not take it.
            before = skip.condition.take(threads[whose])
            condition = self._either(before, Value.known(np.zeros(whose.size, np.bool_)), condition, of[whose])
        everybody = Value.known(np.zeros(self.place.size, np.bool_))
        skip = _Skip(np.zeros(self.place.size, np.int64), everybody)
        skip.target[threads[whose]] = to
        _put(skip.condition, threads[whose], condition)
        self.skips.append(skip)

    def _either(self, condition: Value, yes: Value, no: Value, where: Array) -> Value:
        """`yes` where `condition`, else `no`; of the threads that are not in `where` it is `no`."""
        chosen = where & (condition.terms == 0) & condition.bits.astype(np.bool_)
        result = Value(no.bits.copy(), no.terms.copy(), no.blocks.copy())
        _put(result, np.flatnonzero(chosen), yes.take(np.flatnonzero(chosen)))
        unclear = np.flatnonzero(where & (condition.terms != 0))
        if unclear.size:
            sources = [each.take(unclear) for each in (yes, no, condition)]
            _put(result, unclear, self._made("either", sources, no.bits.dtype.type(0)))
        return result

    def _guard(self, instruction: Instruction, place: int, threads: Array) -> Value:
        """Whether each thread executes an instruction."""
        if instruction.guard is None:
            return Value.known(np.ones(threads.size, np.bool_))
        if place in self.forced:
            return self._side(place, threads)
        guard = self._read(instruction.guard, threads, instruction)
        if instruction.negated:
            negated = self._made("not.pred", [guard], np.bool_(False))
            guard = Value(~guard.bits, np.where(guard.terms != 0, negated.terms, 0), guard.blocks)
        self._note(place, guard)
        return guard

    def _side(self, place: int, threads: Array) -> Value:
        """A predicate that is taken to have a value."""
        side = self.forced[place]
        self.seen.sides.add((place, side))
        return Value.known(np.full(threads.size, side))

    def _note(self, place: int, predicate: Value) -> None:
        known = predicate.bits[predicate.terms == 0]
        if known.size < predicate.bits.size:
            self.seen.sides |= {(place, False), (place, True)}
        else:
            self.seen.sides |= {(place, bool(each)) for each in np.unique(known)}

    # Instructions

    def _step(self, instruction: Instruction, place: int, threads: Array) -> None:
        stem = instruction.opcode.split(".")[0]
        if stem == "bra":
            return self._branch(instruction, place, threads)
        guard = self._guard(instruction, place, threads)
        if not (guard.terms != 0).any() and not guard.bits.all():
            threads = threads[guard.bits]
            guard = guard.take(np.flatnonzero(guard.bits))
        if not threads.size:
            return None
        if stem in ("ret", "exit"):
            if self._skipping(threads) or (guard.terms != 0).any():
                raise self._refused(instruction, "an end that depends on the input")
            self.place[threads] = len(self.code)
            return None
        if stem == "st":
            return self._store(instruction, guard, threads)
        results = self._results(instruction, stem, threads, guard, place)
        for destination, result in results:
            self._write(destination, result, threads, guard, instruction)
        return None

    def _results(
        self, instruction: Instruction, stem: str, threads: Array, guard: Value, place: int
    ) -> list[tuple[Operand, Value]]:
        if stem == "ld":
            return self._load(instruction, threads)
        if stem == "shfl":
            if (guard.terms != 0).any() or self._skipping(threads):
                raise self._refused(instruction, "a shuffle whose lanes depend on the input")
            return self._shuffle(instruction, threads)
        if stem in ("mov", "cvta"):
            return self._move(instruction, threads)
        destinations, sources = destinations_and_sources(instruction)
        try:
            operation = resolve(instruction.opcode, len(destinations), len(sources))
        except NoSuchInstruction as error:
            raise self._refused(instruction, "an instruction that the proof does not follow") from error
        if operation.carry_in or operation.carry_out or len(operation.sources) != len(sources):
            raise self._refused(instruction, "an instruction that the proof does not follow")
        values = [
            self._read(each, threads, instruction, kind) for each, kind in zip(sources, operation.sources, strict=True)
        ]
        if stem == "selp" and place in self.forced:
            values[2] = self._side(place, threads)
        elif stem == "selp":
            self._note(place, values[2])
        known = np.ones(threads.size, np.bool_)
        for value in values:
            known &= value.terms == 0
        with np.errstate(all="ignore"):
            made = operation.function(*(value.bits for value in values))
        made = made if isinstance(made, tuple) else (made,)
        results = []
        for number, (destination, bits, kind) in enumerate(
            zip(destinations, made, operation.destinations, strict=True)
        ):
            bits = np.broadcast_to(np.asarray(bits, DTYPES[kind]), threads.shape).copy()
            result = Value.known(bits)
            if not known.all():
                name = instruction.opcode if len(destinations) == 1 else f"{instruction.opcode} #{number}"
                unknown = np.flatnonzero(~known)
                _put(result, unknown, self._made(name, [each.take(unknown) for each in values], bits.dtype.type(0)))
            results.append((destination, _sized(destination, result)))
        return results

    def _made(self, opcode: str, sources: Sequence[Value], zero: Any, *tail: str) -> Value:
        """The terms of an opcode of some values, of which each thread has at least one that is a term."""
        size = sources[0].terms.size
        blocks = np.zeros(size, np.int64)
        placed = np.zeros(size, np.bool_)
        for source in sources:
            first = ~placed & (source.terms != 0)
            blocks[first] = source.blocks[first]
            placed |= first
        columns = [self._as_terms(source, blocks) for source in sources]
        different, inverse = _different(columns)
        numbers = [self.terms.make(opcode, *map(int, row), *tail) for row in different]
        return Value(np.full(size, zero), np.array(numbers, np.int32)[inverse], blocks)

    def _as_terms(self, value: Value, blocks: Array) -> Array:
        """Terms relative to `blocks`, values that are known as terms too."""
        result = value.terms.astype(np.int64)
        known = value.terms == 0
        if known.any():
            bits, inverse = np.unique(value.bits[known].astype(np.uint64), return_inverse=True)
            result[known] = np.array([self.terms.value(int(each)) for each in bits], np.int64)[inverse]
        away = np.flatnonzero(~known & (value.blocks != blocks))
        if away.size:
            pairs, inverse = _different([result[away], value.blocks[away] - blocks[away]])
            result[away] = np.array([self.terms.moved(int(term), int(by)) for term, by in pairs], np.int64)[inverse]
        return result

    def _move(self, instruction: Instruction, threads: Array) -> list[tuple[Operand, Value]]:
        destination, source = instruction.operands
        if isinstance(destination, Vector):
            return self._unpacked(instruction, destination, source, threads)
        if isinstance(source, Vector):
            return [(destination, self._packed(instruction, source, threads))]
        if not isinstance(source, Register | Immediate | Special):
            raise self._refused(instruction, "an address of a variable")
        return [(destination, _sized(destination, self._read(source, threads, instruction, _kind_of(destination))))]

    def _unpacked(
        self, instruction: Instruction, destination: Vector, source: Operand, threads: Array
    ) -> list[tuple[Operand, Value]]:
        value = self._read(source, threads, instruction)
        width = 8 * value.bits.dtype.itemsize // len(destination.elements)
        if width != 16 or len(destination.elements) != 2:
            raise self._refused(instruction, "a register taken apart in another way than into halves")
        results: list[tuple[Operand, Value]] = []
        for number, element in enumerate(destination.elements):
            bits = (value.bits >> value.bits.dtype.type(width * number)).astype(np.uint16)
            result = Value.known(bits)
            unknown = np.flatnonzero(value.terms)
            if unknown.size:
                _put(result, unknown, self._made("part", [value.take(unknown)], np.uint16(0), f"#{number}"))
            results.append((element, result))
        return results

    def _packed(self, instruction: Instruction, source: Vector, threads: Array) -> Value:
        values = [self._read(each, threads, instruction) for each in source.elements]
        width = 8 * values[0].bits.dtype.itemsize
        dtype = {32: np.uint32, 64: np.uint64}.get(width * len(values))
        if dtype is None:
            raise self._refused(instruction, "a register put together in a way that the proof does not follow")
        bits = sum((value.bits.astype(dtype) << dtype(width * number) for number, value in enumerate(values)), dtype(0))
        result = Value.known(bits)
        unknown = np.flatnonzero(np.logical_or.reduce([value.terms != 0 for value in values]))
        if unknown.size:
            kind = f"pack.b{width * len(values)}"
            _put(result, unknown, self._made(kind, [value.take(unknown) for value in values], dtype(0)))
        return result

    def _shuffle(self, instruction: Instruction, threads: Array) -> list[tuple[Operand, Value]]:
        mode = instruction.opcode.split(".")[2] if instruction.opcode.startswith("shfl.sync.") else ""
        if mode not in ("bfly", "idx"):
            raise self._refused(instruction, "a shuffle that the proof does not follow")
        whole = threads.size % _WARP == 0 and threads.reshape(-1, _WARP)
        if whole is False or (whole != whole[:, :1] + np.arange(_WARP)).any() or (whole[:, 0] % _WARP).any():
            raise self._refused(instruction, "a shuffle without all lanes of the warp")
        destination, *operands = instruction.operands
        value, by, clamp, mask = (self._read(each, threads, instruction, "b32") for each in operands)
        if any((each.terms != 0).any() for each in (by, clamp, mask)):
            raise self._refused(instruction, "a shuffle whose lanes depend on the input")
        if (clamp.bits != _WARP - 1).any() or (mask.bits != 0xFFFFFFFF).any():
            raise self._refused(instruction, "a shuffle of parts of a warp")
        lane = np.arange(threads.size) % _WARP
        other = (lane ^ by.bits if mode == "bfly" else by.bits) & (_WARP - 1)
        moved = value.take(np.arange(threads.size) - lane + other.astype(np.int64))
        if isinstance(destination, Pair):
            within = Value.known(np.ones(threads.size, np.bool_))
            return [(destination.first, moved), (destination.second, within)]
        return [(destination, moved)]

    # Memory

    def _load(self, instruction: Instruction, threads: Array) -> list[tuple[Operand, Value]]:
        parts = instruction.opcode.split(".")
        destination, address = instruction.operands
        assert isinstance(address, Address)
        if parts[1] == "param":
            if not isinstance(address.base, Symbol) or address.base.name not in self.parameters or address.offset:
                raise self._refused(instruction, "a part of a parameter")
            bits = np.full(threads.size, self.parameters[address.base.name] & (1 << 64) - 1, np.uint64)
            return [(destination, _sized(destination, Value.known(bits)))]
        if parts[1] != "global" or not set(parts[2:-1]) <= {"nc", "v2", "v4"} | _HINTS:
            raise self._refused(instruction, "a load that the proof does not follow")
        elements = destination.elements if isinstance(destination, Vector) else (destination,)
        size = int(parts[-1][1:]) // 8
        name, offset = self._located(instruction, address, threads, size * len(elements))
        if name in self.launch.outputs:
            raise self._refused(instruction, f"a load from the output {name}")
        results: list[tuple[Operand, Value]] = []
        for number, element in enumerate(elements):
            at = offset + size * number
            if name == self.launch.input[0]:
                value = self._word(instruction, at, size)
            else:
                data = self.launch.known[name].reshape(-1).view(np.uint8)
                raw = np.stack([data[at + byte] for byte in range(size)], axis=1)
                value = Value.known(np.ascontiguousarray(raw).view(f"u{size}")[:, 0])
            results.append((element, _sized(element, value)))
        return results

    def _word(self, instruction: Instruction, offset: Array, size: int) -> Value:
        """Input words at byte offsets."""
        if size != 4 or (offset % 4).any():
            raise self._refused(instruction, f"a load of {size} bytes of the input at a time; needed words of 4")
        block, byte = np.divmod(offset, _BLOCK_BYTES)
        words = np.array([self.terms.word(0, word) for word in range(BLOCK_WORDS)], np.int32)
        return Value(np.zeros(offset.size, np.uint32), words[byte // 4], block)

    def _store(self, instruction: Instruction, guard: Value, threads: Array) -> None:
        parts = instruction.opcode.split(".")
        if parts[1] != "global" or not set(parts[2:-1]) <= {"v2", "v4"} | _HINTS:
            raise self._refused(instruction, "a store that the proof does not follow")
        address, source = instruction.operands
        assert isinstance(address, Address)
        elements = source.elements if isinstance(source, Vector) else (source,)
        size = int(parts[-1][1:]) // 8
        name, offset = self._located(instruction, address, threads, size * len(elements))
        if name not in self.launch.outputs:
            raise self._refused(instruction, f"a store to {name}, which is no output")
        if size > 4:
            raise self._refused(instruction, "a store of more than 4 bytes of one register")
        for number, element in enumerate(elements):
            value = self._read(element, threads, instruction)
            # Whether it is written at all depends on what the predicates depend on.
            before = Value(
                np.zeros_like(value.bits), np.full(threads.size, self.terms.undefined, np.int32), value.blocks
            )
            every = np.ones(threads.size, np.bool_)
            value = self._either(guard, value, before, every)
            for skip, whose in self._skipping(threads):
                value = self._either(skip.condition.take(threads), before, value, whose)
            self.store(Stored(instruction, name, offset + size * number, size, value))

    def _located(self, instruction: Instruction, address: Address, threads: Array, size: int) -> tuple[str, Array]:
        """The buffer of an access of `size` bytes, and where in it each thread's is."""
        if not isinstance(address.base, Register) or address.coordinates:
            raise self._refused(instruction, "an access of something else than a buffer")
        base = self._read(address.base, threads, instruction)
        if (base.terms != 0).any():
            raise self._refused(instruction, "an address that depends on the input")
        where = base.bits.astype(np.int64) + address.offset
        windows = np.unique(where >> _WINDOW)
        name = next((name for name, number in self.window.items() if number == windows[0]), None)
        if windows.size != 1 or name is None:
            raise self._refused(instruction, "an address outside of every buffer")
        offset = where & (1 << _WINDOW) - 1
        known = self.launch.known.get(name)
        whole = self.launch.input[1] if name == self.launch.input[0] else self.launch.outputs.get(name, 0)
        whole = whole if known is None else known.nbytes
        if (offset + size > whole).any():
            raise self._refused(instruction, f"an access past the end of {name}")
        return name, offset

    # Registers

    def _read(self, operand: Operand, threads: Array, instruction: Instruction, kind: str | None = None) -> Value:
        if isinstance(operand, Not):
            value = self._read(operand.operand, threads, instruction, "pred")
            negated = self._made("not.pred", [value], np.bool_(False))
            return Value(~value.bits, np.where(value.terms != 0, negated.terms, 0), value.blocks)
        if isinstance(operand, Register):
            value = self._register(operand).take(threads)
            # The youngest stands outside.
            for skip, whose in reversed(self._skipping(threads)):
                value = self._not_skipped(value, skip.condition.take(threads), whose)
            return _as_kind(value, kind)
        if isinstance(operand, Immediate):
            dtype = DTYPES[kind or "b32"]
            bits = operand.value & (1 << 8 * np.dtype(dtype).itemsize) - 1 if dtype is not np.bool_ else operand.value
            return Value.known(np.full(threads.size, bits, dtype))
        if isinstance(operand, Special):
            return Value.known(self._special(operand, threads, instruction).astype(DTYPES[kind or "b32"]))
        raise self._refused(instruction, "an operand that the proof does not follow")

    def _not_skipped(self, value: Value, condition: Value, whose: Array) -> Value:
        """What a register holds for an instruction that is jumped over where `condition`: it runs where it is false."""
        both = np.flatnonzero(whose & (value.terms != 0) & (condition.terms != 0))
        if not both.size:
            return value
        away = condition.blocks[both] - value.blocks[both]
        rows, inverse = _different([value.terms[both], condition.terms[both], away])
        left = [self.terms.unless(self.terms.moved(int(of), int(by)), int(term)) for term, of, by in rows]
        nodes = [self.terms.node(each) for each in left]
        # What is left may be known again.
        known = np.array([node[0] == "value" for node in nodes])[inverse]
        bits = np.array([node[1] if node[0] == "value" else 0 for node in nodes], np.uint64)[inverse]
        result = Value(value.bits.copy(), value.terms.copy(), value.blocks.copy())
        result.terms[both] = np.where(known, 0, np.array(left, np.int32)[inverse])
        result.bits[both] = np.where(known, bits.astype(value.bits.dtype), value.bits[both])
        return result

    def _special(self, operand: Special, threads: Array, instruction: Instruction) -> Array:
        launch, count = self.launch, threads.size
        values: dict[str, Callable[[], Array]] = {
            "%tid.x": lambda: self.thread[threads],
            "%ctaid.x": lambda: self.cta[threads],
            "%laneid": lambda: self.thread[threads] % _WARP,
            "%ntid.x": lambda: np.full(count, launch.block),
            "%nctaid.x": lambda: np.full(count, launch.grid),
        }
        if operand.name not in values:
            raise self._refused(instruction, f"{operand.name}, which the proof does not follow")
        return values[operand.name]()

    def _register(self, register: Register) -> Value:
        value = self.registers.get(register.name)
        if value is None:
            size = self.place.size
            unwritten = np.full(size, self.terms.undefined, np.int32)
            value = Value(np.zeros(size, DTYPES[register.kind]), unwritten, np.zeros(size, np.int64))
            self.registers[register.name] = value
        return value

    def _write(
        self, destination: Operand, result: Value, threads: Array, guard: Value, instruction: Instruction
    ) -> None:
        if isinstance(destination, Sink):
            return
        if not isinstance(destination, Register):
            raise self._refused(instruction, "a result that goes to no register")
        register = self._register(destination)
        result = Value(result.bits.astype(register.bits.dtype), result.terms, result.blocks)
        skips = self._skipping(threads)
        if skips or (guard.terms != 0).any():
            old = register.take(threads)
            result = self._either(guard, result, old, np.ones(threads.size, np.bool_))
            for skip, whose in skips:
                result = self._either(skip.condition.take(threads), old, result, whose)
        _put(register, threads, result)

    def _refused(self, instruction: Instruction, what: str) -> NotFollowed:
        source = f" ({instruction.source})" if instruction.source else ""
        return NotFollowed(f"line {instruction.line}{source}: {what}: {instruction.text}")


def _labels(function: Function) -> dict[str, int]:
    """The place in the code that each label stands before."""
    labels, place = {}, 0
    for each in function.body or ():
        if isinstance(each, Label):
            labels[each.name] = place
        else:
            place += 1
    return labels


def _put(target: Value, places: Array, source: Value) -> None:
    target.bits[places], target.terms[places], target.blocks[places] = source.bits, source.terms, source.blocks


def _kind_of(operand: Operand) -> str:
    return operand.kind if isinstance(operand, Register) else "b32"


def _as_kind(value: Value, kind: str | None) -> Value:
    """A register as an operand of a narrower kind."""
    dtype = None if kind is None else np.dtype(DTYPES[kind])
    if dtype is None or value.bits.dtype == dtype:
        return value
    if value.bits.dtype.itemsize < dtype.itemsize and value.terms.any():
        raise NotFollowed(f"an operand of {dtype.itemsize} bytes in a register of {value.bits.dtype.itemsize}")
    return Value(value.bits.astype(dtype), value.terms, value.blocks)


def _sized(destination: Operand, value: Value) -> Value:
    """A result in the type of its register."""
    dtype = DTYPES[_kind_of(destination)] if isinstance(destination, Register) else value.bits.dtype
    return Value(value.bits.astype(dtype), value.terms, value.blocks)


def _different(columns: Sequence[Array]) -> tuple[Array, Array]:
    """The different rows of some columns, and which of them each row is."""
    table = np.stack(columns, axis=1)
    # Warps mostly do the same: if all rows repeat those of the first warp, only these are looked at.
    if (
        len(table) > _WARP
        and len(table) % _WARP == 0
        and (table.reshape(-1, _WARP, table.shape[1]) == table[:_WARP]).all()
    ):
        rows, inverse = np.unique(table[:_WARP], axis=0, return_inverse=True)
        return rows, np.tile(inverse.reshape(-1), len(table) // _WARP)
    rows, inverse = np.unique(table, axis=0, return_inverse=True)
    return rows, inverse.reshape(-1)
