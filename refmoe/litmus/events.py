"""From programs to events: every way through a program, and the operations that a way consists of.

A *way* fixes which conditions hold, which compare-and-swaps write, and which attempts of a loop fail. So its events are
known, but not yet the values that they read: those come with a choice of writes to read from (`refmoe.litmus.axioms`),
and a way is possible with a choice only if all its `Condition`s hold.

Memory is cut into *cells*: bytes that every access of the program covers together or not at all. So an access is a list
of cells, and what holds of bytes in PTX's model holds of cells here.

A loop that waits is its last attempt, preceded by at most one that fails. More add nothing: a failing attempt writes
nothing, so without it all else stays possible, and what it races with one failing attempt alone races with, too. Where
it can race with nothing it is left out.

Numbers of sections are those of the PTX ISA manual, 9.0.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from typing import Literal

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
    Scope,
    Store,
    ThreadPlace,
    Until,
    Wait,
    WaitGroup,
    WarpSync,
    walk,
)

# Bytes of an element of a bulk copy that adds.
_WORD = 4
FenceOrder = Literal["", "acq_rel", "acquire", "release", "sc"]
Proxy = Literal["generic", "async", "texture"]


@dataclass(frozen=True, order=True)
class Cell:
    """Bytes of memory that are accessed together.

    Attributes:
        space: global, shared or mbarrier.
        cta: whose they are; -1 for global memory.
        start: offset of the first byte, or number of the barrier in memory.
        width: bytes.
    """

    space: str
    cta: int
    start: int
    width: int


@dataclass(frozen=True)
class Condition:
    """What a way takes for granted of the value that an event reads; an event of None is a register never written."""

    event: int | None
    holds: Callable[[int], bool]


@dataclass(frozen=True)
class Sum:
    """What an event reads itself, and a word of what another one read.

    Attributes:
        event: the other one.
        word: which of the words of 4 bytes that it read.
    """

    event: int
    word: int

    def of(self, mine: int, other: int) -> int:
        """The sum of both, modulo 2^32."""
        return mine + (other >> 8 * _WORD * self.word) & (1 << 8 * _WORD) - 1


#: What an event writes: a constant; what another event read; a function of what it read itself; a sum of both.
Written = int | tuple[Literal["read by"], int] | Callable[[int], int] | Sum


@dataclass(frozen=True)
class Event:
    """One operation.

    Attributes:
        index: its number in the way.
        thread: number of the thread that executes it, or on whose behalf it is performed.
        place: of that thread.
        step: number of its instruction in the thread, counted through conditions and loops; -1 for none.
        instruction: which it belongs to.
        cells: that it accesses, in the order of their addresses.
        reads, writes: whether it does.
        written: what it writes.
        strong: 8.4; a scope comes with it.
        scope: 8.5.
        acquire, release: 8.4, of memory operations.
        atomic: whether it is an atom or red, or works on a barrier in memory.
        reduction: whether it is a red, whose read makes no acquire pattern (8.11.1).
        fence: its order, if it is a memory fence.
        proxy_fence: whether it orders the generic and the asynchronous proxy.
        proxy: 8.6.
        asynchronous: whether it is no part of program order (8.9.1.1).
    """

    index: int
    thread: int
    place: ThreadPlace
    step: int
    instruction: Instruction
    cells: tuple[Cell, ...] = ()
    reads: bool = False
    writes: bool = False
    written: Written = 0
    strong: bool = False
    scope: Scope | None = None
    acquire: bool = False
    release: bool = False
    atomic: bool = False
    reduction: bool = False
    fence: FenceOrder = ""
    proxy_fence: bool = False
    proxy: Proxy = "generic"
    asynchronous: bool = False

    @property
    def acquires_before(self) -> bool:
        """Whether it is a fence that ends acquire patterns (8.8): not `fence.release`."""
        return self.fence not in ("", "release")

    @property
    def releases_behind(self) -> bool:
        """Whether it is a fence that begins release patterns (8.8): not `fence.acquire`."""
        return self.fence not in ("", "acquire")

    @property
    def memory(self) -> bool:
        """Whether it is a memory operation."""
        return self.reads or self.writes

    def __str__(self) -> str:
        return f"thread {self.thread}: {self.instruction}"


@dataclass
class Way:
    """One way through a program.

    Attributes:
        events: all of them; those of one thread that are part of program order come in that order.
        order: (earlier, later) beyond program order: what completes before what, and barriers. Transitive.
        issued: (issuing event, asynchronous event): what is ordered before the first is before the second; not
            transitive, see `Builder.asynchronous`.
        conditions: that must hold.
        controls: of each event, the events on whose values it depends whether it happens.
        registers: of each (thread, register), the event that wrote it last.
        possible: whether it is worth trying: not if some thread waits for ever at a numbered barrier, nor if conditions
            on one value contradict each other.
    """

    events: list[Event] = field(default_factory=list)
    order: list[tuple[int, int]] = field(default_factory=list)
    issued: list[tuple[int, int]] = field(default_factory=list)
    conditions: list[Condition] = field(default_factory=list)
    controls: list[frozenset[int]] = field(default_factory=list)
    registers: dict[tuple[int, str], int] = field(default_factory=dict)
    possible: bool = True


# ---- barriers in memory as integers: (phase, pending arrivals, transaction bytes) -----------------------------------

_TX_BIAS, _TX_BITS, _PENDING_BITS = 1 << 20, 21, 8


def mbarrier_state(phase: int, pending: int, tx: int) -> int:
    """The state of a barrier in memory as one integer."""
    return (phase << _PENDING_BITS | pending) << _TX_BITS | tx + _TX_BIAS


def mbarrier_phase(state: int) -> int:
    """Phases that are complete."""
    return state >> _TX_BITS + _PENDING_BITS


def _mbarrier_step(count: int, arrivals: int, tx: int) -> Callable[[int], int]:
    """What arrivals and transaction bytes make of a state (PTX ISA, mbarrier: phase completion)."""

    def after(state: int) -> int:
        phase, pending = mbarrier_phase(state), state >> _TX_BITS & (1 << _PENDING_BITS) - 1
        bytes_ = (state & (1 << _TX_BITS) - 1) - _TX_BIAS + tx
        pending -= arrivals
        if pending == 0 and bytes_ == 0:
            return mbarrier_state(phase + 1, count, 0)
        return mbarrier_state(phase, max(pending, 0), bytes_)

    return after


# ---- cells ----------------------------------------------------------------------------------------------------------


class Memory:
    """How a program cuts memory into cells.

    Attributes:
        initial: value of each cell before any thread starts.
    """

    def __init__(self, program: Program) -> None:
        self._cuts: dict[tuple[str, int], set[int]] = {}
        self._covered: dict[tuple[str, int], set[int]] = {}
        links: list[tuple[tuple[str, int], int, tuple[str, int], int, int]] = []
        ctas = {thread.place.cta for thread in program.threads}
        for at, width, _ in program.initial:
            self._cut(at, -1, width)
        for thread in program.threads:
            cta = thread.place.cta
            for each in walk(thread.instructions):
                if isinstance(each, Load | Store | Atomic):
                    self._cut(each.at, cta, each.width)
                elif isinstance(each, AsyncCopy | BulkLoad | BulkStore):
                    source, to = self._cut(each.source, cta, each.width), self._cut(each.to, cta, each.width)
                    links.append((source, each.source.offset, to, each.to.offset, each.width))
                    if isinstance(each, BulkStore) and each.adds:
                        # Each element is an operation of its own.
                        self._cuts[to].update(range(each.to.offset, each.to.offset + each.width, _WORD))
        changed = True
        while changed:
            # A cut in what a copy reads is a cut in what it writes, and the other way round.
            changed = False
            for one, start, other, begin, width in links:
                for cuts, base, others, shift in (
                    (self._cuts[one], start, self._cuts[other], begin - start),
                    (self._cuts[other], begin, self._cuts[one], start - begin),
                ):
                    new = {cut + shift for cut in cuts if base <= cut <= base + width} - others
                    others |= new
                    changed |= bool(new)
        self.initial: dict[Cell, int] = {}
        for (space, cta), cuts in self._cuts.items():
            for start, end in itertools.pairwise(sorted(cuts)):
                if start in self._covered[space, cta]:
                    self.initial[Cell(space, cta, start, end - start)] = 0
        for at, width, value in program.initial:
            self.initial |= dict(zip(cells := self.cells(at, -1, width), split(value, cells), strict=True))
        for number, count in enumerate(program.mbarriers):
            for cta in ctas:
                self.initial[Cell("mbarrier", cta, number, 8)] = mbarrier_state(0, count, 0)

    def _cut(self, at: Address, cta: int, width: int) -> tuple[str, int]:
        key = (at.space, -1 if at.space == "global" else cta)
        self._cuts.setdefault(key, set()).update((at.offset, at.offset + width))
        self._covered.setdefault(key, set()).update(range(at.offset, at.offset + width))
        return key

    def cells(self, at: Address, cta: int, width: int) -> tuple[Cell, ...]:
        """The cells of an access by a thread of a CTA."""
        key = (at.space, -1 if at.space == "global" else cta)
        cuts = sorted(cut for cut in self._cuts[key] if at.offset <= cut <= at.offset + width)
        return tuple(Cell(*key, start, end - start) for start, end in itertools.pairwise(cuts))

    @property
    def observed(self) -> tuple[Cell, ...]:
        """The cells whose last values can be seen: those of global memory."""
        return tuple(sorted(cell for cell in self.initial if cell.space == "global"))


def split(value: int, cells: tuple[Cell, ...]) -> list[int]:
    """What lies in each cell of a little-endian value."""
    if cells[0].space == "mbarrier":
        return [value]
    parts, shift = [], 0
    for cell in cells:
        parts.append(value >> shift & (1 << 8 * cell.width) - 1)
        shift += 8 * cell.width
    return parts


def join(parts: list[int], cells: tuple[Cell, ...]) -> int:
    """The inverse of `split`."""
    if cells[0].space == "mbarrier":
        return parts[0]
    value, shift = 0, 0
    for part, cell in zip(parts, cells, strict=True):
        value |= part << shift
        shift += 8 * cell.width
    return value


# ---- ways -----------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class _Step:
    """An instruction on a way: of a condition whether it holds, of an atomic whether it writes."""

    number: int
    instruction: Instruction
    taken: bool = True
    succeeds: bool = True
    must_read: int | None = None
    must_not_read: int | None = None


def ways(program: Program) -> Iterator[Way]:
    """Every way through a program in which no thread waits for ever at a numbered barrier."""
    memory = Memory(program)
    each_thread = [
        list(_steps(program, number, thread.instructions, itertools.count()))
        for number, thread in enumerate(program.threads)
    ]
    for combination in itertools.product(*each_thread):
        way = _Builder(program, memory).build(combination)
        if way.possible:
            yield way


def _steps(
    program: Program, thread: int, instructions: tuple[Instruction, ...], numbers: Iterator[int]
) -> Iterator[tuple[_Step, ...]]:
    """Every way through one thread."""
    choices: list[list[tuple[_Step, ...]]] = []
    for each in instructions:
        number = next(numbers)
        if isinstance(each, If):
            inner = list(_steps(program, thread, each.body, numbers))
            choices.append([(_Step(number, each, taken=False),)])
            choices[-1] += [(_Step(number, each), *way) for way in inner]
        elif isinstance(each, Until):
            cas = isinstance(each.attempt, Atomic)
            last = _Step(number, each.attempt, must_read=each.value)
            choices.append([(last,)])
            if _may_race(program, thread, each.attempt):
                failed = _Step(number, each.attempt, succeeds=not cas, must_not_read=each.value)
                choices[-1].append((failed, last))
        elif isinstance(each, Atomic) and each.operation == "cas":
            choices.append([(_Step(number, each),), (_Step(number, each, succeeds=False),)])
        else:
            choices.append([(_Step(number, each),)])
    for parts in itertools.product(*choices):
        yield tuple(itertools.chain.from_iterable(parts))


def _may_race(program: Program, thread: int, attempt: Load | Atomic) -> bool:
    """Whether a failing attempt could be in a data race: whether some other thread writes there otherwise."""
    mine = program.threads[thread].place
    for number, other in enumerate(program.threads):
        for each in walk(other.instructions):
            if isinstance(each, Store | Atomic):
                at, width = each.at, each.width
            elif isinstance(each, AsyncCopy | BulkLoad | BulkStore):
                at, width = each.to, each.width
            else:
                continue
            apart = number == thread or (at.space == "shared" and other.place.cta != mine.cta)
            overlap = at.space == attempt.at.space and (
                at.offset < attempt.at.offset + attempt.width and attempt.at.offset < at.offset + width
            )
            if apart or not overlap:
                continue
            if not isinstance(each, Store | Atomic) or (at, width) != (attempt.at, attempt.width):
                return True
            scopes = [_strength(one)[1] for one in (each, attempt)]
            if not all(
                scope and includes(program, scope, one, two)
                for scope, one, two in zip(scopes, (other.place, mine), (mine, other.place), strict=True)
            ):
                return True
    return False


def _strength(each: Load | Store | Atomic) -> tuple[bool, Scope | None]:
    """Whether an operation is strong, and its scope: a volatile one is relaxed with system scope (8.4.2)."""
    if each.order in ("weak", "nc"):
        return False, None
    return True, each.scope or "sys"


def includes(program: Program, scope: Scope, place: ThreadPlace, other: ThreadPlace) -> bool:
    """Whether a scope of an operation of a thread includes another thread, all on one device (8.5)."""
    if scope == "cta":
        return place.cta == other.cta
    if scope == "cluster":
        return place.cta // program.cluster == other.cta // program.cluster
    return True


class _Builder:
    """Builds one way."""

    def __init__(self, program: Program, memory: Memory) -> None:
        self.program = program
        self.memory = memory
        self.way = Way()
        self.program_order: list[list[int]] = [[] for _ in program.threads]
        # Arrivals at, and departures from, barriers: by (kind, CTA, warp, number or mask), then by thread.
        self.meetings: dict[tuple[str, int, int, int], dict[int, list[tuple[int, int | None]]]] = {}
        self.wanted: dict[tuple[str, int, int, int], int] = {}
        # Of each thread its arrivals at the barrier of its cluster, and its waits there.
        self.cluster_uses: dict[int, tuple[list[int], list[int]]] = {}

    def build(self, threads: tuple[tuple[_Step, ...], ...]) -> Way:
        """The way in which threads take these steps."""
        for number, steps in enumerate(threads):
            self._thread(number, steps)
        for chain in self.program_order:
            self.way.order += itertools.pairwise(chain)
        self._meet()
        self._meet_in_clusters()
        return self.way

    def _thread(self, number: int, steps: tuple[_Step, ...]) -> None:
        sources: dict[str, int] = {}
        control: frozenset[int] = frozenset()
        # Values that conditions have already said an event reads.
        known: dict[int | None, int] = {None: 0}
        self.copies: list[int] = []
        self.groups: dict[bool, list[list[tuple[int, int]]]] = {False: [[]], True: [[]]}
        for step in steps:
            each = step.instruction
            if isinstance(each, If):
                source = sources.get(each.register)
                holds = _equal(each.value) if each.equal == step.taken else _unequal(each.value)
                self.way.conditions.append(Condition(source, holds))
                if each.equal == step.taken:
                    self.way.possible &= known.setdefault(source, each.value) == each.value
                else:
                    self.way.possible &= known.get(source) != each.value
                control |= {source} if source is not None else set()
                continue
            event = self._event(number, step, sources, control)
            if isinstance(each, Load | Atomic) and each.register is not None and step.must_not_read is None:
                sources[each.register] = event.index
            if step.must_read is not None:
                self.way.conditions.append(Condition(event.index, _equal(step.must_read)))
                control |= {event.index}
            if step.must_not_read is not None:
                self.way.conditions.append(Condition(event.index, _unequal(step.must_not_read)))
                control |= {event.index}
            if isinstance(each, Wait):
                control |= {event.index}
        self.way.registers |= {(number, register): event for register, event in sources.items()}

    def _add(self, event: Event, control: frozenset[int]) -> Event:
        event = replace(event, index=len(self.way.events))
        self.way.events.append(event)
        self.way.controls.append(control)
        if not event.asynchronous:
            self.program_order[event.thread].append(event.index)
        return event

    def _event(self, number: int, step: _Step, sources: dict[str, int], control: frozenset[int]) -> Event:
        """Add what an instruction does; the last event that is part of program order is returned."""
        place = self.program.threads[number].place
        each = step.instruction
        plain = Event(0, number, place, step.number, each)
        if isinstance(each, Load | Store | Atomic):
            return self._access(each, step, plain, sources, control)
        if isinstance(each, Fence):
            # From sm_70 on, membar is a synonym of fence.sc (PTX ISA, membar / fence).
            order: FenceOrder = "sc" if each.order == "membar" else each.order
            return self._add(replace(plain, strong=True, scope=each.scope, fence=order), control)
        if isinstance(each, ProxyFence):
            return self._add(replace(plain, proxy_fence=True), control)
        if isinstance(each, Barrier):
            key = ("bar", place.cta, -1, each.number)
            self.wanted[key] = each.warps
            return self._arrival(plain, key, control, each.arrive)
        if isinstance(each, WarpSync):
            key = ("warp", place.cta, place.warp, each.mask)
            self.wanted[key] = each.mask.bit_count()
            return self._arrival(plain, key, control, False)
        if isinstance(each, ClusterArrive | ClusterWait):
            event = self._add(plain, control)
            uses = self.cluster_uses.setdefault(number, ([], []))
            uses[isinstance(each, ClusterWait)].append(event.index)
            return event
        if isinstance(each, Arrive):
            return self._add(self._on_mbarrier(plain, each.mbarrier, 1, each.expect_bytes), control)
        if isinstance(each, Wait):
            # PTX ISA, mbarrier.try_wait: .acquire, and .cta, by default.
            cells = (Cell("mbarrier", place.cta, each.mbarrier, 8),)
            event = replace(plain, cells=cells, reads=True, strong=True, scope="cta", acquire=True)
            event = self._add(event, control)
            self.way.conditions.append(Condition(event.index, _other_parity(each.parity)))
            return event
        if isinstance(each, AsyncCopy | BulkLoad | BulkStore | AsyncArrive):
            return self._asynchronous(each, plain, control)
        event = self._add(plain, control)
        if isinstance(each, CommitGroup):
            self.groups[each.bulk].append([])
        elif isinstance(each, WaitGroup):
            # PTX ISA, cp.async.wait_group: what is waited for is complete, and visible to the executing thread.
            committed = self.groups[each.bulk][:-1]
            for group in committed[: len(committed) - each.pending]:
                for read, write in group:
                    self.way.order += (
                        [(read, event.index)] if each.read else [(read, event.index), (write, event.index)]
                    )
        return event

    def _access(
        self, each: Load | Store | Atomic, step: _Step, plain: Event, sources: dict[str, int], control: frozenset[int]
    ) -> Event:
        strong, scope = _strength(each)
        event = replace(
            plain, cells=self.memory.cells(each.at, plain.place.cta, each.width), strong=strong, scope=scope
        )
        event = replace(
            event, acquire=each.order in ("acquire", "acq_rel"), release=each.order in ("release", "acq_rel")
        )
        if isinstance(each, Load):
            # ld.global.nc is an access of another kind than the generic one, and no fence joins the two (8.1, 8.6).
            return self._add(replace(event, reads=True, proxy="texture" if each.order == "nc" else "generic"), control)
        mask = (1 << 8 * each.width) - 1
        if isinstance(each, Store):
            written: Written = each.value & mask if isinstance(each.value, int) else 0
            if isinstance(each.value, str) and each.value in sources:
                written = ("read by", sources[each.value])
            return self._add(replace(event, writes=True, written=written), control)
        event = replace(event, reads=True, writes=True, atomic=True, reduction=each.register is None)
        operand = each.operand
        if each.operation == "add":
            event = replace(event, written=lambda value: value + operand & mask)
        else:
            event = replace(event, written=operand & mask)
        if each.operation == "cas":
            # An atomic operation is a write only if it results in one (8.4).
            holds = _equal(each.compare) if step.succeeds else _unequal(each.compare)
            event = replace(event, writes=step.succeeds)
            event = self._add(event, control)
            self.way.conditions.append(Condition(event.index, holds))
            return event
        return self._add(event, control)

    def _on_mbarrier(self, plain: Event, number: int, arrivals: int, tx: int) -> Event:
        """PTX ISA, mbarrier.arrive: .release, and .cta, by default; it is performed as a read-modify-write."""
        cells = (Cell("mbarrier", plain.place.cta, number, 8),)
        written = _mbarrier_step(self.program.mbarriers[number], arrivals, tx)
        event = replace(plain, cells=cells, reads=True, writes=True, written=written, atomic=True, reduction=True)
        return replace(event, strong=True, scope="cta", release=True)

    def _asynchronous(
        self, each: AsyncCopy | BulkLoad | BulkStore | AsyncArrive, plain: Event, control: frozenset[int]
    ) -> Event:
        """What is performed asynchronously.

        8.9.1.1: such an operation is ordered after prior instructions of its thread but is no part of program order. An
        arrival of `cp.async.mbarrier.arrive` is ordered after the thread's prior `cp.async` but not after other
        instructions, and the complete-tx of a bulk copy after that copy alone; "it does not transitively establish
        ordering with respect to prior instructions from the issuing thread". So being issued later is not transitive.
        """
        issue = self._add(plain, control)
        later = replace(plain, asynchronous=True)
        if isinstance(each, AsyncArrive):
            arrival = self._add(self._on_mbarrier(later, each.mbarrier, 1, 0), control)
            self.way.issued.append((issue.index, arrival.index))
            self.way.order += [(copy, arrival.index) for copy in self.copies]
            return issue
        cta = plain.place.cta
        source = self.memory.cells(each.source, cta, each.width)
        target = self.memory.cells(each.to, cta, each.width)
        # Bulk copies work in the asynchronous proxy, and cp.async in the generic one (PTX ISA, cp.async.bulk: Async
        # proxy; 8.6: other methods of access are other proxies).
        proxy: Proxy = "generic" if isinstance(each, AsyncCopy) else "async"
        read = self._add(replace(later, cells=source, reads=True, proxy=proxy), control)
        write = replace(later, cells=target, writes=True, written=("read by", read.index), proxy=proxy)
        writes = [write]
        if isinstance(each, BulkStore) and each.adds:
            # PTX ISA, cp.reduce.async.bulk: each of its operations has .relaxed.gpu by itself.
            words = (self.memory.cells(each.to.behind(at), cta, _WORD) for at in range(0, each.width, _WORD))
            adds = replace(write, reads=True, atomic=True, reduction=True, strong=True, scope="gpu")
            writes = [replace(adds, cells=cells, written=Sum(read.index, number)) for number, cells in enumerate(words)]
        writes = [self._add(each_, control) for each_ in writes]
        self.way.issued += [(issue.index, read.index), *((issue.index, each_.index) for each_ in writes)]
        # The loads and stores of one copy are ordered with respect to each other (8.9.1.1).
        self.way.order += [(read.index, each_.index) for each_ in writes]
        if isinstance(each, BulkLoad):
            (write,) = writes
            done = self._add(self._on_mbarrier(later, each.mbarrier, 0, -each.width), control)
            # PTX ISA, cp.async.bulk: the complete-tx has .release at .cluster scope.
            self.way.events[done.index] = replace(done, scope="cluster")
            self.way.issued.append((issue.index, done.index))
            self.way.order.append((write.index, done.index))
        else:
            if isinstance(each, AsyncCopy):
                self.copies += [read.index, writes[0].index]
            self.groups[isinstance(each, BulkStore)][-1] += [(read.index, each_.index) for each_ in writes]
        return issue

    def _arrival(self, plain: Event, key: tuple[str, int, int, int], control: frozenset[int], arrive: bool) -> Event:
        """Of a numbered barrier: an arrival, and unless it is `bar.arrive` a departure after it in program order."""
        first = last = self._add(plain, control)
        if not arrive:
            last = self._add(plain, control)
        meetings = self.meetings.setdefault(key, {}).setdefault(plain.thread, [])
        meetings.append((first.index, None if arrive else last.index))
        return last

    def _meet(self) -> None:
        """8.9.4: bar.sync and bar.arrive synchronize with bar.sync on the same barrier; likewise bar.warp.sync.

        The n-th arrival of each thread belongs to the n-th use of the barrier.
        """
        for key, by_thread in self.meetings.items():
            if len({len(each) for each in by_thread.values()}) > 1 or len(by_thread) != self.wanted[key]:
                self.way.possible = False
                return
            for meeting in zip(*by_thread.values(), strict=True):
                for arrival, _ in meeting:
                    for _, departure in meeting:
                        if departure is not None:
                            self.way.order.append((arrival, departure))

    def _meet_in_clusters(self) -> None:
        """8.9.4: barrier.cluster.arrive synchronizes with barrier.cluster.wait of the same use.

        An arrival that is `.relaxed` gives no order itself: fences have to stand before it (PTX ISA, barrier.cluster,
        whose example has fence.acq_rel.cluster there). Such a fence has to have the waiting thread in its scope (8.7).
        """
        for thread, (arrivals, _) in self.cluster_uses.items():
            for other, (_, waits) in self.cluster_uses.items():
                one, two = self.program.threads[thread].place, self.program.threads[other].place
                if not includes(self.program, "cluster", one, two):
                    continue
                for arrival, wait in zip(arrivals, waits, strict=True):
                    instruction = self.way.events[arrival].instruction
                    if isinstance(instruction, ClusterArrive) and not instruction.relaxed:
                        self.way.order.append((arrival, wait))
                        continue
                    for each in self.program_order[thread]:
                        fence = self.way.events[each]
                        covers = fence.scope is not None and includes(self.program, fence.scope, one, two)
                        if fence.releases_behind and covers and each < arrival:
                            self.way.order.append((each, wait))


def _equal(value: int) -> Callable[[int], bool]:
    return lambda found: found == value


def _unequal(value: int) -> Callable[[int], bool]:
    return lambda found: found != value


def _other_parity(parity: int) -> Callable[[int], bool]:
    """try_wait.parity: the phase of that parity is complete when the current one has the other parity."""
    return lambda state: mbarrier_phase(state) & 1 != parity
