"""Every interleaving of a litmus program's instructions, on a memory that each of them reads and writes at once.

This is sequential consistency, which PTX does not promise: what it shows the model has to allow, but not the other
way round. It knows nothing of `refmoe.litmus.axioms`, and serves as its witness. It also says whether a program may
wait for ever. Copies happen at any time between their issue and their completion, each in one piece.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace

from refmoe.litmus.program import (
    Address,
    Arrive,
    AsyncArrive,
    AsyncCopy,
    Atomic,
    Barrier,
    BulkLoad,
    BulkStore,
    ClusterArrive,
    ClusterWait,
    CommitGroup,
    Fence,
    If,
    Instruction,
    Load,
    Program,
    ProxyFence,
    Store,
    Until,
    Wait,
    WaitGroup,
    WarpSync,
)

#: Stands for a CTA where memory belongs to none.
GLOBAL_CTA = -1
#: States of a program beyond which it counts as too large.
MOST_STATES = 30_000


class TooManyStates(Exception):
    """A program has more states than are worth visiting."""


@dataclass(frozen=True)
class _Jump:
    """Goes on elsewhere unless a register has a value (or, not `equal`, has not)."""

    register: str
    value: int
    equal: bool
    target: int


@dataclass(frozen=True)
class _Copy:
    """A copy, or an arrival of copies, under way: its thread, its number in the thread, and the group it is in."""

    thread: int
    number: int
    group: int
    what: AsyncCopy | BulkLoad | BulkStore | AsyncArrive


@dataclass(frozen=True)
class _State:
    """Everything about a moment.

    Attributes:
        at: of each thread, its next step.
        meets: of each thread, what it waits for at a barrier: (barrier, use), or None.
        registers: ((thread, register), value), sorted.
        memory: ((CTA or -1, space, offset), byte), sorted; bytes that are zero are left out.
        barriers: (barrier, uses that are over, arrivals at the present one), sorted.
        mbarriers: ((CTA, number), (phase, pending, bytes)), sorted.
        copies: under way.
        groups: of each thread, groups committed: of copies, of bulk copies.
        issued: of each thread, copies issued.
    """

    at: tuple[int, ...]
    meets: tuple[tuple[object, int] | None, ...]
    registers: tuple[tuple[tuple[int, str], int], ...]
    memory: tuple[tuple[tuple[int, str, int], int], ...]
    barriers: tuple[tuple[object, int, int], ...]
    mbarriers: tuple[tuple[tuple[int, int], tuple[int, int, int]], ...]
    copies: tuple[_Copy, ...]
    groups: tuple[tuple[int, int], ...]
    issued: tuple[int, ...]


@dataclass(frozen=True)
class Interleavings:
    """What all interleavings of a program come to.

    Attributes:
        outcomes: registers and cells of global memory as in `refmoe.litmus.axioms.Verdict`.
        may_hang: whether some interleaving comes to a point from which the program cannot end.
    """

    outcomes: frozenset[tuple[int, ...]]
    may_hang: bool


def interleavings(program: Program, cells: tuple[tuple[int, int], ...]) -> Interleavings:
    """Visit every state.

    Args:
        program: to run.
        cells: (offset, bytes) of global memory that outcomes tell of.

    Raises:
        TooManyStates: it has more than `MOST_STATES`.
    """
    return _Machine(program).run(cells)


def may_hang(program: Program) -> bool:
    """Whether a program may wait for ever, by `interleavings`, whose errors it raises."""
    return interleavings(program, ()).may_hang


class _Machine:
    """Runs one program."""

    def __init__(self, program: Program) -> None:
        self.program = program
        self.code = [self._flat(thread.instructions, 0) for thread in program.threads]

    def _flat(self, instructions: tuple[Instruction, ...], start: int) -> list[Instruction | _Jump]:
        flat: list[Instruction | _Jump] = []
        for each in instructions:
            if isinstance(each, If):
                body = self._flat(each.body, start + len(flat) + 1)
                flat.append(_Jump(each.register, each.value, each.equal, start + len(flat) + 1 + len(body)))
                flat += body
            else:
                flat.append(each)
        return flat

    def run(self, cells: tuple[tuple[int, int], ...]) -> Interleavings:
        """Visit every state."""
        count = len(self.program.threads)
        memory: dict[tuple[int, str, int], int] = {}
        for at, width, value in self.program.initial:
            for byte in range(width):
                memory[GLOBAL_CTA, "global", at.offset + byte] = value >> 8 * byte & 255
        mbarriers = {
            (thread.place.cta, number): (0, pending, 0)
            for thread in self.program.threads
            for number, pending in enumerate(self.program.mbarriers)
        }
        first = _State(
            (0,) * count,
            (None,) * count,
            (),
            _packed(memory),
            (),
            _packed(mbarriers),
            (),
            ((0, 0),) * count,
            (0,) * count,
        )
        before: dict[_State, list[_State]] = {first: []}
        ahead, ends = [first], []
        while ahead:
            state = ahead.pop()
            if len(before) > MOST_STATES:
                raise TooManyStates(f"more than {MOST_STATES} states")
            if not state.copies and all(at == len(code) for at, code in zip(state.at, self.code, strict=True)):
                ends.append(state)
            for following in self._next(state):
                if following not in before:
                    before[following] = []
                    ahead.append(following)
                before[following].append(state)
        reaching, ahead = set(ends), list(ends)
        while ahead:
            for earlier in before[ahead.pop()]:
                if earlier not in reaching:
                    reaching.add(earlier)
                    ahead.append(earlier)
        outcomes = frozenset(self._outcome(state, cells) for state in ends)
        return Interleavings(outcomes, len(reaching) < len(before))

    def _outcome(self, state: _State, cells: tuple[tuple[int, int], ...]) -> tuple[int, ...]:
        registers, memory = dict(state.registers), dict(state.memory)
        seen = [registers.get(key, 0) for key in self.program.registers]
        for start, width in cells:
            seen.append(sum(memory.get((GLOBAL_CTA, "global", start + n), 0) << 8 * n for n in range(width)))
        return tuple(seen)

    def _next(self, state: _State) -> Iterator[_State]:
        for thread in range(len(self.code)):
            if state.at[thread] < len(self.code[thread]):
                following = self._step(state, thread)
                if following is not None:
                    yield following
        for copy in state.copies:
            following = self._perform(state, copy)
            if following is not None:
                yield following

    # ---- memory ----------------------------------------------------------------------------------------------------

    def _key(self, at: Address, thread: int) -> tuple[int, str]:
        return (GLOBAL_CTA if at.space == "global" else self.program.threads[thread].place.cta), at.space

    def _read(self, state: _State, at: Address, width: int, thread: int) -> int:
        memory, key = dict(state.memory), self._key(at, thread)
        return sum(memory.get((*key, at.offset + n), 0) << 8 * n for n in range(width))

    def _written(self, state: _State, at: Address, width: int, thread: int, value: int) -> _State:
        memory, key = dict(state.memory), self._key(at, thread)
        memory |= {(*key, at.offset + n): value >> 8 * n & 255 for n in range(width)}
        return replace(state, memory=_packed({place: byte for place, byte in memory.items() if byte}))

    def _set(self, state: _State, thread: int, register: str | None, value: int) -> _State:
        if register is None:
            return state
        registers = dict(state.registers)
        registers[thread, register] = value
        return replace(state, registers=_packed(registers))

    def _arrived(self, state: _State, thread: int, number: int, arrivals: int, bytes_: int) -> _State:
        """A barrier in memory after arrivals and transaction bytes."""
        mbarriers = dict(state.mbarriers)
        key = (self.program.threads[thread].place.cta, number)
        phase, pending, open_ = mbarriers[key]
        pending, open_ = pending - arrivals, open_ + bytes_
        if pending == 0 and open_ == 0:
            phase, pending = phase + 1, self.program.mbarriers[number]
        mbarriers[key] = (phase, pending, open_)
        return replace(state, mbarriers=_packed(mbarriers))

    # ---- steps -----------------------------------------------------------------------------------------------------

    def _step(self, state: _State, thread: int) -> _State | None:
        """The state after the next step of a thread; None if it cannot go on, or only round a loop."""
        each = self.code[thread][state.at[thread]]
        if isinstance(each, _Jump):
            found = dict(state.registers).get((thread, each.register), 0)
            return _at(state, thread, state.at[thread] + 1 if (found == each.value) == each.equal else each.target)
        following = self._effect(state, thread, each)
        return None if following is None else _at(following, thread, following.at[thread] + 1)

    def _effect(self, state: _State, thread: int, each: Instruction) -> _State | None:
        if isinstance(each, Fence | ProxyFence):
            return state
        if isinstance(each, Load):
            return self._set(state, thread, each.register, self._read(state, each.at, each.width, thread))
        if isinstance(each, Store):
            value = each.value
            if isinstance(value, str):
                value = dict(state.registers).get((thread, value), 0)
            return self._written(state, each.at, each.width, thread, value)
        if isinstance(each, Atomic):
            return self._atomic(state, thread, each)
        if isinstance(each, Until):
            attempt = each.attempt
            following = self._effect(state, thread, attempt)
            found = self._read(state, attempt.at, attempt.width, thread)
            # An attempt that fails changes nothing that anybody sees but the register, which the next one sets again.
            return following if found == each.value else None
        if isinstance(each, Barrier | WarpSync):
            return self._meet(state, thread, each)
        if isinstance(each, ClusterArrive):
            return self._arrived_in_cluster(state, thread)
        if isinstance(each, ClusterWait):
            key, mine = self._cluster_barrier(thread)
            barriers = {name: over for name, over, _ in state.barriers}
            return state if barriers.get(key, 0) >= barriers[mine] else None
        if isinstance(each, Arrive):
            return self._arrived(state, thread, each.mbarrier, 1, each.expect_bytes)
        if isinstance(each, Wait):
            phase = dict(state.mbarriers)[self.program.threads[thread].place.cta, each.mbarrier][0]
            return state if phase & 1 != each.parity else None
        if isinstance(each, CommitGroup):
            groups = list(state.groups)
            plain, bulk = groups[thread]
            groups[thread] = (plain, bulk + 1) if each.bulk else (plain + 1, bulk)
            return replace(state, groups=tuple(groups))
        if isinstance(each, WaitGroup):
            done = state.groups[thread][each.bulk] - each.pending
            kind = BulkStore if each.bulk else AsyncCopy
            mine = (copy for copy in state.copies if copy.thread == thread and isinstance(copy.what, kind))
            return None if any(copy.group < done for copy in mine) else state
        assert isinstance(each, AsyncCopy | BulkLoad | BulkStore | AsyncArrive)
        issued = list(state.issued)
        issued[thread] += 1
        copy = _Copy(thread, issued[thread], state.groups[thread][isinstance(each, BulkStore)], each)
        return replace(state, issued=tuple(issued), copies=(*state.copies, copy))

    def _atomic(self, state: _State, thread: int, each: Atomic) -> _State:
        found = self._read(state, each.at, each.width, thread)
        mask = (1 << 8 * each.width) - 1
        new = found + each.operand & mask if each.operation == "add" else each.operand
        if each.operation == "cas" and found != each.compare:
            new = found
        return self._set(self._written(state, each.at, each.width, thread, new), thread, each.register, found)

    def _meet(self, state: _State, thread: int, each: Barrier | WarpSync) -> _State | None:
        place = self.program.threads[thread].place
        key: tuple[object, ...]
        if isinstance(each, Barrier):
            key, wanted, waits = ("bar", place.cta, each.number), each.warps, not each.arrive
        else:
            key, wanted, waits = ("warp", place.cta, place.warp, each.mask), each.mask.bit_count(), True
        barriers = {name: (over, arrived) for name, over, arrived in state.barriers}
        over, arrived = barriers.get(key, (0, 0))
        meets = list(state.meets)
        waiting = meets[thread]
        if waiting is not None:
            # It has arrived before, and goes on once that use is over.
            if over <= waiting[1]:
                return None
            meets[thread] = None
            return replace(state, meets=tuple(meets))
        barriers[key] = (over + 1, 0) if arrived + 1 == wanted else (over, arrived + 1)
        packed = tuple(sorted(((name, *counts) for name, counts in barriers.items()), key=str))
        state = replace(state, barriers=packed)
        if not waits:
            return state
        meets[thread] = (key, over)
        # One step back, so that the thread comes here again.
        return _at(replace(state, meets=tuple(meets)), thread, state.at[thread] - 1)

    def _cluster_barrier(self, thread: int) -> tuple[object, object]:
        """Names of the barrier of a thread's cluster, and of the uses that the thread made of it."""
        return ("cluster", self.program.threads[thread].place.cta // self.program.cluster), ("uses", thread)

    def _arrived_in_cluster(self, state: _State, thread: int) -> _State:
        key, mine = self._cluster_barrier(thread)
        cluster = self.program.threads[thread].place.cta // self.program.cluster
        wanted = sum(each.place.cta // self.program.cluster == cluster for each in self.program.threads)
        barriers = {name: (over, arrived) for name, over, arrived in state.barriers}
        over, arrived = barriers.get(key, (0, 0))
        barriers[key] = (over + 1, 0) if arrived + 1 == wanted else (over, arrived + 1)
        barriers[mine] = (barriers.get(mine, (0, 0))[0] + 1, 0)
        return replace(state, barriers=tuple(sorted(((name, *counts) for name, counts in barriers.items()), key=str)))

    def _perform(self, state: _State, copy: _Copy) -> _State | None:
        each, thread = copy.what, copy.thread
        left = tuple(other for other in state.copies if other != copy)
        if isinstance(each, AsyncArrive):
            earlier = (other for other in left if other.thread == thread and isinstance(other.what, AsyncCopy))
            if any(other.number < copy.number for other in earlier):
                return None
            return self._arrived(replace(state, copies=left), thread, each.mbarrier, 1, 0)
        value = self._read(state, each.source, each.width, thread)
        if isinstance(each, BulkStore) and each.adds:
            held = self._read(state, each.to, each.width, thread)
            words = ((held >> at) + (value >> at) & 0xFFFFFFFF for at in range(0, 8 * each.width, 32))
            value = sum(word << 32 * number for number, word in enumerate(words))
        state = self._written(replace(state, copies=left), each.to, each.width, thread, value)
        return self._arrived(state, thread, each.mbarrier, 0, -each.width) if isinstance(each, BulkLoad) else state


def _at(state: _State, thread: int, step: int) -> _State:
    at = list(state.at)
    at[thread] = step
    return replace(state, at=tuple(at))


def _packed(table: dict) -> tuple:  # type: ignore[type-arg]
    """A table as a tuple that can be compared."""
    return tuple(sorted(table.items()))
