"""Atomics of one instruction: which lanes meet at one address, who comes when, and who writes."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np

from refmoe.ptx import isa
from refmoe.ptx.engine.frame import Frame
from refmoe.ptx.engine.loads_and_stores import Access, pick, tell_watch
from refmoe.ptx.engine.races import shadow_of
from refmoe.ptx.native.turns import together
from refmoe.ptx.program.provenance import Bounds
from refmoe.ptx.state.in_turn import ContendedWords
from refmoe.ptx.state.memory import Region
from refmoe.ptx.state.records import STRENGTHS
from refmoe.ptx.text.memory_ops import MemoryOpcode
from refmoe.ptx.text.syntax import Instruction

Array = Any


@dataclass(frozen=True)
class _Given:
    """What the lanes of an instruction bring, and what they find.

    Attributes:
        lanes: [n], which.
        sources: of each element the operands of its operation, [n] each.
        old: of each element what was there, [n].
        stores: whether they write, bool [n]: one that compares may not.
    """

    lanes: Array
    sources: list[list[Array]]
    old: list[Array]
    stores: Array


@dataclass(frozen=True, kw_only=True)
class Atomic(Access):
    """`atom` and `red`: lanes that meet at one address take their turns in lane order, or as the schedule says.

    `function(old, b[, c]) -> new` is the arithmetic, `global_function` that in global memory. One that
    `compares` does so with all elements before it writes any, as the halves of `atom.cas.b128` are.
    With the operand `idle`, if there is one, it leaves what is there. `scan`, in global memory `global_scan`, does many
    turns at one word together.
    """

    function: Callable[..., Any]
    global_function: Callable[..., Any]
    dtype: Any
    compares: bool = False
    idle: int | None = None
    scan: Callable[..., Array] | None = None
    global_scan: Callable[..., Array] | None = None
    verb = "atomic"

    def __call__(
        self, frame: Frame, address: Array, guard: Array | None, operands: tuple[tuple[Array, ...], ...]
    ) -> tuple[Array, ...]:
        """Old values of the elements. `operands[element]` are the sources of that element's operation."""
        where, lanes, chosen = frame.select(address, guard)
        results = [np.zeros(frame.count, self.dtype) for _ in range(self.count)]
        if chosen.size == 0:
            return tuple(results)
        sources = [[np.broadcast_to(frame.spread(value), (frame.count,)) for value in element] for element in operands]
        if where is not None:
            sources = [[value[where] for value in element] for element in sources]
        old = [np.zeros(len(lanes), self.dtype) for _ in range(self.count)]
        given = _Given(lanes, sources, old, np.ones(len(lanes), np.bool_))
        machine, changed = frame.machine, False
        for region, which, index in self._parts(frame, chosen, lanes):
            theirs = pick(lanes, which)
            self._check_writable(frame, region, index, theirs)
            self._check_valid(frame, region, index, theirs)
            place = np.arange(len(lanes)) if which is None else np.flatnonzero(which)
            order = machine.lane_order(theirs)
            if order is not None:
                index, place = index[order], place[order]
            if region.shadow is None:
                changed |= self._apply(frame, region, index, given, place)
            elif machine.strong.chooses(self, region, index):
                for row in range(len(index)):
                    changed |= self._take(frame, region, index[row : row + 1], given, int(place[row]))
            else:
                changed |= self._take_turns(frame, region, index, given, place)
            tell_watch(machine, self.instruction, region, index, self.width, lanes[place])
        if changed:
            machine.progress()
        if machine.clocks is not None:
            machine.tick(machine.launch.clock + 1)
        for result, values in zip(results, old, strict=True):
            result[slice(None) if where is None else where] = values
        return tuple(results)

    # Lanes together

    def _take_turns(self, frame: Frame, region: Region, index: Array, given: _Given, place: Array) -> bool:
        """Lanes `place` [n] do their work, in this order, at byte `index` [n]. Returns whether a word changed."""
        strong = frame.machine.strong
        strong.remember(self, region, index, given.lanes[place], partial(self._records, region))
        if not self.compares:
            self._synchronise(frame, region, index, given, place)
        changed = self._apply(frame, region, index, given, place)
        if self.compares:
            # Which of them write is known now. Of one address they take their turns in this order.
            for which, writes in _alike(index, given.stores[place]):
                turn = self._synchronise if writes else self._look
                turn(frame, region, index[which], given, place[which])
        which = np.flatnonzero(given.stores[place])
        if which.size and strong.is_seen(region):
            values = self._after(region, given, place[which])
            records = self._records(region, index[which], given.lanes[place[which]]).reshape(len(which), -1)
            strong.modified(self, region, index[which], given.lanes[place[which]], records, values)
        return changed

    def _changes(self, given: _Given, place: Array) -> Array:
        """Whether each of some lanes may leave another value than it finds."""
        if self.idle is None:
            return np.ones(len(place), np.bool_)
        return np.any([element[0][place] != self.idle for element in given.sources], axis=0)

    def _synchronise(self, frame: Frame, region: Region, index: Array, given: _Given, place: Array) -> None:
        """Record the access, and pass on what it acquires and releases, as the lanes take their turns."""
        machine, lanes = frame.machine, given.lanes[place]
        busy = machine.strong.is_busy or self.releases
        before = self._records(region, index, lanes) if busy else None
        if busy and self.compares and self.acquires:
            # It writes what it has read and compared, so behind what it acquires.
            self._look(frame, region, index, given, place)
        shadow_of(region).atomic(frame, self, region, index, lanes)
        if busy:
            records = self._records(region, index, lanes)
            changes = np.repeat(self._changes(given, place), self.width // self.unit)
            elements, theirs = self.elements(index, lanes)
            machine.strong.modify(self, region, elements, theirs, before, records, changes, machine.alive)

    def _look(self, frame: Frame, region: Region, index: Array, given: _Given, place: Array) -> None:
        """Lanes have compared with something else than is there, and write nothing: each is a strong read."""
        machine, lanes = frame.machine, given.lanes[place]
        shadow_of(region).read(frame, self, region, index, lanes)
        if machine.strong.is_busy:
            records = self._records(region, index, lanes)
            machine.strong.read(self, region, *self.elements(index, lanes), records, machine.alive)

    def _groups(self) -> list[range]:
        """The elements that are compared, or changed, as one."""
        every = range(self.count)
        return [every] if self.compares else [range(each, each + 1) for each in every]

    def _apply(self, frame: Frame, region: Region, index: Array, given: _Given, place: Array) -> bool:
        """Read and write memory. Returns whether a word changed."""
        changed, at = False, index // self.size
        for group in self._groups():
            with self._undefined(frame, region, at, given, place, group):
                changed |= self._apply_to(region, at, group, given, place)
        return changed

    @contextmanager
    def _undefined(
        self, frame: Frame, region: Region, at: Array, given: _Given, place: Array, group: range
    ) -> Iterator[None]:
        """Around what is done to some elements: what of it is undefined."""
        undefined = frame.machine.undefined
        with ExitStack() as around:
            for element in group if undefined is not None else ():
                turns = (given.lanes, place, element, given.stores)
                around.enter_context(undefined.modified(self, region, at + element, *turns))
            yield

    # One lane, where others may tell which write it reads

    def _take(self, frame: Frame, region: Region, index: Array, given: _Given, number: int) -> bool:
        """Lane `number` does its work at byte `index` [1], under a schedule. Returns whether it changed the word."""
        machine, lanes, at = frame.machine, given.lanes[number : number + 1], int(index[0])
        before = self._records(region, index, lanes)
        where = (self, region, at, int(lanes[0]))
        machine.launch.single_stores += 1
        chosen, last = machine.strong.take(*where, before.tolist(), partial(self._writes, given, number))
        writes, place, shadow = self._writes(given, number, chosen.value), np.array([number]), shadow_of(region)
        given.stores[number] = writes
        # Of an older write nobody knows any more what was undefined, nor does memory get what comes behind it.
        with self._undefined(frame, region, index // self.size, given, place, range(self.count if last else 0)):
            for element, word in enumerate(np.frombuffer(chosen.value, self.dtype)):
                given.old[element][number] = word
            if not writes or (self.compares and self.acquires):
                shadow.read(frame, self, region, index, lanes)
                machine.strong.seen(*where, before.tolist(), chosen, machine.alive)
            if not writes:
                return False
            after = self._after(region, given, place)
            shadow.atomic(frame, self, region, index, lanes)
            records, changes = self._records(region, index, lanes), bool(self._changes(given, place)[0])
            machine.strong.replaced(*where, chosen, after.tobytes(), before, records, changes, machine.alive)
            for element in range(self.count if last else 0):
                region.write(self.size, index // self.size + element, after[:, element])
        return bool(after.tobytes() != chosen.value)

    def _writes(self, given: _Given, number: int, value: bytes) -> bool:
        """Whether a lane that finds a value, as bytes, writes one."""
        if not self.compares:
            return True
        words = np.frombuffer(value, self.dtype)
        return all(word == element[0][number] for word, element in zip(words, given.sources, strict=True))

    def _after(self, region: Region, given: _Given, place: Array) -> Array:
        """What lanes `place` [n] leave that write: [n, count]."""
        function = self.global_function if region.space == "global" else self.function
        made = [
            function(given.old[element][place], *(each[place] for each in given.sources[element]))
            for element in range(self.count)
        ]
        return np.ascontiguousarray(np.stack(made, axis=1).astype(self.dtype))

    def reduce(self, frame: Frame, region: Region, index: Array, lanes: Array, values: list[Array]) -> None:
        """Change memory alone, by one element of each of `lanes` [n] at byte `index` [n]; the caller tells of it."""
        place = np.arange(len(lanes))
        given = _Given(lanes, [values], [np.zeros(len(lanes), self.dtype)], np.ones(len(lanes), np.bool_))
        order = frame.machine.lane_order(lanes)
        if order is not None:
            index, place = index[order], place[order]
        self._apply_to(region, index // self.size, range(1), given, place)

    # The words

    def _apply_to(self, region: Region, at: Array, elements: range, given: _Given, place: Array) -> bool:
        """Some elements, all at once: `at` [n] are the word numbers of element 0. Whether a word changed.

        `stores` is cleared for those that find something else than they compare with.
        """
        function, scan = (
            (self.global_function, self.global_scan) if region.space == "global" else (self.function, self.scan)
        )
        changed, sources, old, stores = False, given.sources, given.old, given.stores
        words = {element: ContendedWords(at + element, partial(region.read, self.size)) for element in elements}
        turns: Iterable[Array] = ()
        if scan is not None and words[elements[0]].are_few:
            for element in elements:
                operands = [source[place].astype(self.dtype) for source in sources[element]]
                found, moved = words[element].scan(scan, *operands)
                old[element][place], changed = found, changed or moved
                if self.compares:
                    stores[place] &= found == operands[0]
        else:
            turns = turns_of(at)
        for turn in turns:
            who = place[turn]
            before = {element: words[element].held[words[element].of[turn]] for element in elements}
            for element in elements if self.compares else ():
                stores[who] &= before[element] == sources[element][0][who]
            for element in elements:
                old[element][who] = before[element]
                after = function(before[element], *(source[who] for source in sources[element]))
                if self.compares:
                    after = np.where(stores[who], after, before[element])
                changed = changed or bool((after != before[element]).any())
                words[element].held[words[element].of[turn]] = after
        for each in words.values():
            region.write(self.size, each.places, each.held)
        return changed


def _alike(at: Array, writes: Array) -> Iterator[tuple[Array, bool]]:
    """Groups of positions that all write, or all only read, and whether they write; at one address in their order."""
    order = np.argsort(at, kind="stable")
    begins = np.r_[True, at[order[1:]] != at[order[:-1]]]
    turns = np.cumsum(np.r_[False, writes[order[1:]] != writes[order[:-1]]] & ~begins)
    # How often what is done at an address has changed before.
    turns -= np.repeat(turns[begins], np.diff(np.r_[np.flatnonzero(begins), len(at)]))
    for turn in range(int(turns.max()) + 1):
        here = order[turns == turn]
        for kind in (True, False):
            which = here[writes[here] == kind]
            if which.size:
                yield which, kind


def turns_of(at: Array) -> Iterator[Array]:
    """Groups of positions without a repeated address; repeats of one address keep their order."""
    if len(at) == 1:
        # Under a schedule most atomics are of a lane alone.
        yield np.zeros(1, np.intp)
        return
    order = np.argsort(at, kind="stable")
    ordered = at[order]
    starts = np.flatnonzero(np.r_[True, ordered[1:] != ordered[:-1]])
    counts = np.diff(np.r_[starts, len(at)])
    rank = np.arange(len(at)) - np.repeat(starts, counts)
    if counts.max() == 1:
        yield order
        return
    by_rank = np.argsort(rank, kind="stable")
    ends = np.cumsum(np.bincount(rank))
    begin = 0
    for end in ends:
        yield order[by_rank[begin:end]]
        begin = int(end)


def atomic(instruction: Instruction, opcode: MemoryOpcode, bounds: Bounds | None = None) -> Atomic:
    """The access of an `atom` or `red`.

    Raises:
        isa.NoSuchInstruction: the operation does not exist for the type.
    """
    assert opcode.operation is not None
    operation, kind = opcode.operation, opcode.type
    if operation in ("min", "max") and kind == "f32":
        raise isa.NoSuchInstruction(instruction.opcode)
    # PTX ISA, "atom": on global memory atom.add.f32 flushes subnormal inputs and results, on shared it does not.
    flush = (operation, kind) == ("add", "f32")
    return Atomic(
        instruction,
        opcode.space,
        opcode.size,
        opcode.count,
        strength=STRENGTHS[opcode.scope],
        acquires=opcode.semantics in ("acquire", "acq_rel"),
        releases=opcode.semantics in ("release", "acq_rel"),
        observes=opcode.stem == "atom",
        bounds=bounds,
        function=isa.resolve_atomic(operation, kind),
        global_function=isa.resolve_atomic(operation, kind, flush),
        dtype=np.dtype(f"u{opcode.size}"),
        compares=operation == "cas",
        scan=together(operation, kind, opcode.count),
        global_scan=together(operation, kind, opcode.count, flush),
        idle={"add": 0, "or": 0, "xor": 0, "and": (1 << 8 * opcode.size) - 1}.get(operation),
    )
