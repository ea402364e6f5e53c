"""What PTX's memory consistency model says of a litmus program: which outcomes it may have, and what is in a race.

Written from the chapter "Memory Consistency Model" of the PTX ISA manual (numbers of sections are those of 9.0), beside
the formal models of Lustig, Sahasrabuddhe and Giroux (ASPLOS 2019; below: "2019") and of Lustig, Cooksey and Giroux
(ISCA 2022, proxies; below: "2022"). Slow and plain: every way through the program, every choice of the writes that
reads read from, every Fence-SC order and every coherence order is tried, and kept if it contradicts no axiom.

Where the manual leaves a verdict open, two *readings* of it are tried; if they differ the program is `open`, with the
reason, and its verdict is that of the reading that kernels in use rely on.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Literal

from refmoe.litmus import relations
from refmoe.litmus.events import Cell, Event, Memory, Sum, Way, join, split, ways
from refmoe.litmus.program import Program
from refmoe.litmus.relations import Relation, closed, closed_with, cyclic, has, members
from refmoe.litmus.strength import (
    acquire_patterns,
    morally_strong,
    overlap,
    overlap_completely,
    program_ordered,
    release_patterns,
)
from refmoe.litmus.verdict import ModelVerdict, Race, When

Axiom = Literal[
    "coherence",
    "fence-sc",
    "single-copy atomicity",
    "rmw atomicity",
    "no thin air",
    "sc per location",
    "causality",
]

#: 8.10.
AXIOMS: frozenset[Axiom] = frozenset(
    ("coherence", "fence-sc", "single-copy atomicity", "rmw atomicity", "no thin air", "sc per location", "causality")
)

#: Choices of writes to read from that are tried before a program counts as too large.
MOST_CANDIDATES = 20_000

#: Index of the write that was there before any thread (8.2.6), among those that a read may read from.
INITIAL = -1


class TooLarge(Exception):
    """A program has more candidate executions than are worth trying."""


@dataclass(frozen=True)
class Reading:
    """How the manual is read where it leaves something open.

    Attributes:
        read_then_bulk_write_needs_fence: whether a proxy fence is needed between a generic read and a bulk copy that
            overwrites what was read. By the letter of 8.9.5 it is, but no pipeline in use has it: the barrier of a
            free stage is all that orders its next copy after the reads.
        fence_by_any_thread: whether a proxy fence counts that a third thread of the CTA executes, neither the one of
            the generic access nor the one that issues the copy. 2022 says so ("same block"); the manual's text on
            proxy fences speaks of the executing thread.
    """

    read_then_bulk_write_needs_fence: bool = False
    fence_by_any_thread: bool = True


#: The readings that are tried beside the usual one, and what is open where they change a verdict.
OTHER_READINGS: tuple[tuple[Reading, str], ...] = (
    (
        Reading(read_then_bulk_write_needs_fence=True),
        "whether a proxy fence has to lie between a generic read and a bulk copy over it (8.9.5)",
    ),
    (
        Reading(fence_by_any_thread=False),
        "whether a proxy fence of a third thread counts (8.9.5 and membar/fence)",
    ),
)


def judge(program: Program, axioms: frozenset[Axiom] = AXIOMS) -> ModelVerdict:
    """The verdict on a program; with fewer axioms that of a weaker model.

    Raises:
        TooLarge: it has too many candidate executions.
    """
    found = [Judge(program, axioms, Reading())]
    if any(event.proxy == "async" for event in found[0].proxied):
        found += [Judge(program, axioms, reading) for reading, _ in OTHER_READINGS]
    verdicts = [each.verdict() for each in found]
    open_ = tuple(
        reason
        for (_, reason), other in zip(OTHER_READINGS, verdicts[1:], strict=False)
        if (other.racy, other.outcomes) != (verdicts[0].racy, verdicts[0].outcomes)
    )
    first = verdicts[0]
    return ModelVerdict(first.outcomes, first.races, first.when, open_, first.executions)


class Judge:
    """Tries every candidate execution of a program."""

    def __init__(self, program: Program, axioms: frozenset[Axiom], reading: Reading) -> None:
        self.program = program
        self.axioms = axioms
        self.reading = reading
        self.memory = Memory(program)
        self.ways = list(ways(program))
        self.candidates = 0

    @property
    def proxied(self) -> list[Event]:
        """Events in another proxy than the generic one."""
        return [event for way in self.ways for event in way.events if event.proxy != "generic"]

    def verdict(self) -> ModelVerdict:
        """What all ways together say."""
        outcomes: set[tuple[int, ...]] = set()
        races: dict[tuple[tuple[int, int, str], tuple[int, int, str]], Race] = {}
        executions, racing, interleaved, mixed = 0, 0, False, False
        for way in self.ways:
            attempt = _Attempt(self, way)
            for execution in attempt.executions():
                executions += 1
                outcomes |= execution.outcomes
                racing += bool(execution.races)
                interleaved |= bool(execution.races) and execution.interleaving
                mixed |= execution.mixed
                for race in execution.races:
                    races.setdefault((race.first, race.second), race)
        when: When = "never"
        if racing:
            when = "always" if racing == executions else "in some interleaving"
            when = when if interleaved else "in weak executions only"
        return ModelVerdict(None if mixed else frozenset(outcomes), tuple(sorted(races.values())), when, (), executions)


@dataclass(frozen=True)
class _Execution:
    """A consistent execution.

    Attributes:
        outcomes: what may be seen after it; several where writes in a race leave open which is the last.
        races: in it.
        mixed: whether a race is between accesses of different bytes.
        interleaving: whether its threads' instructions can be interleaved so that each read reads the last write.
    """

    outcomes: frozenset[tuple[int, ...]]
    races: tuple[Race, ...]
    mixed: bool
    interleaving: bool


class _Attempt:
    """Tries every candidate execution of one way."""

    def __init__(self, judge: Judge, way: Way) -> None:
        self.judge, self.way = judge, way
        self.program, self.axioms = judge.program, judge.axioms
        self.events = way.events
        size = len(way.events)
        self.order = closed(relations.of(size, way.order))
        self.strong = relations.of(
            size,
            (
                (one.index, other.index)
                for one, other in itertools.permutations(way.events, 2)
                if morally_strong(self.program, one, other)
            ),
        )
        self.writers: dict[Cell, list[int]] = {}
        for event in way.events:
            if event.writes:
                for cell in event.cells:
                    self.writers.setdefault(cell, []).append(event.index)
        # Pairs of memory operations that overlap, in both directions.
        self.overlapping = [
            (one.index, other.index)
            for one, other in itertools.permutations(way.events, 2)
            if one.memory and other.memory and overlap(one, other)
        ]
        self.releases = release_patterns(way, self.order)
        self.acquires = acquire_patterns(way, self.order)
        self.sc_pairs = [
            (one.index, other.index)
            for one, other in itertools.combinations(way.events, 2)
            if one.fence == other.fence == "sc" and has(self.strong, one.index, other.index)
        ]
        # What each event depends on: 8.10.4, chains of instruction dependencies.
        self.depends = [frozenset(control) for control in way.controls]
        for event in way.events:
            if isinstance(event.written, tuple):
                self.depends[event.index] |= {event.written[1]}
            elif isinstance(event.written, Sum):
                self.depends[event.index] |= {event.written.event}

    # ---- reads-from --------------------------------------------------------------------------------------------

    def executions(self) -> Iterator[_Execution]:
        """All consistent executions of the way, up to what cannot be told apart."""
        if cyclic(self.order):
            # A barrier completes after its arrivals: threads that wait for each other never go on.
            return
        reads = [(event.index, cell) for event in self.events if event.reads for cell in event.cells]
        static = self._preserved_order(self.order)
        choices = [self._sources(read, cell, static) for read, cell in reads]
        for sources in self._choose(reads, choices):
            self.judge.candidates += 1
            if self.judge.candidates > MOST_CANDIDATES:
                raise TooLarge(f"more than {MOST_CANDIDATES} candidate executions")
            values = self._values(sources)
            if values is not None:
                yield from self._with_sources(sources, values)

    def _sources(self, read: int, cell: Cell, static: Relation) -> list[int]:
        """The writes that a read may read a cell from.

        Those that program order and barriers alone forbid are left out: see `_with_coherence`, Causality.
        """
        writers = [write for write in self.writers.get(cell, []) if write != read]
        if not {"causality", "coherence"} <= self.axioms:
            return [INITIAL, *writers]
        before = [write for write in writers if has(static, write, read)]
        hidden = {write for write in before if any(has(static, write, later) for later in before)}
        sources = [write for write in writers if not has(static, read, write) and write not in hidden]
        return sources if before else [INITIAL, *sources]

    def _choose(self, reads: list[tuple[int, Cell]], choices: list[list[int]]) -> Iterator[dict[tuple[int, Cell], int]]:
        """Every choice of sources; those with which a condition cannot hold are left out early."""
        conditions: dict[int, list[int]] = {}
        for number, condition in enumerate(self.way.conditions):
            if condition.event is None:
                if not condition.holds(0):
                    return
            else:
                conditions.setdefault(condition.event, []).append(number)
        narrowed = []
        for (read, cell), sources in zip(reads, choices, strict=True):
            if len(self.events[read].cells) == 1:
                for number in conditions.get(read, []):
                    holds = self.way.conditions[number].holds
                    sources = [
                        source for source in sources if (known := self._constant(source, cell)) is None or holds(known)
                    ]
            narrowed.append(sources)
        chosen: list[int] = []

        def extend(depth: int) -> Iterator[dict[tuple[int, Cell], int]]:
            if depth == len(reads):
                yield dict(zip(reads, chosen, strict=True))
                return
            read, cell = reads[depth]
            for source in narrowed[depth]:
                if self._taken(reads, chosen, read, cell, source):
                    continue
                chosen.append(source)
                yield from extend(depth + 1)
                chosen.pop()

        yield from extend(0)

    def _constant(self, source: int, cell: Cell) -> int | None:
        """What a write puts into a cell, if that does not depend on what is read."""
        if source == INITIAL:
            return self.judge.memory.initial[cell]
        event = self.events[source]
        if not isinstance(event.written, int):
            return None
        return split(event.written, event.cells)[event.cells.index(cell)]

    def _taken(self, reads: list[tuple[int, Cell]], chosen: list[int], read: int, cell: Cell, source: int) -> bool:
        """Whether another read-modify-write reads there already, which atomicity forbids (8.10.3).

        Of two atomic operations that are morally strong with each other and with what they read, one would read a write
        that precedes the other in coherence order, and follow that other.
        """
        event = self.events[read]
        if not (event.atomic and event.writes) or not {"rmw atomicity", "sc per location"} <= self.axioms:
            return False
        if source != INITIAL and not has(self.strong, source, read):
            return False
        for (other, its_cell), its_source in zip(reads, chosen, strict=False):
            if its_cell == cell and its_source == source and has(self.strong, other, read):
                its_event = self.events[other]
                strong = source == INITIAL or has(self.strong, source, other)
                if its_event.atomic and its_event.writes and strong:
                    return True
        return False

    def _values(self, sources: dict[tuple[int, Cell], int]) -> list[int] | None:
        """What each event reads, or None if a condition of the way does not hold, or a value comes out of thin air.

        8.10.4, No Thin Air; 2019 and 2022: reads-from and dependencies together have no cycle.
        """
        size = len(self.events)
        from_ = relations.empty(size)
        for (read, _), source in sources.items():
            if source != INITIAL:
                from_[source] |= 1 << read
        if "no thin air" in self.axioms:
            dependency = relations.of(size, ((one, event) for event in range(size) for one in self.depends[event]))
            if cyclic(relations.union(from_, dependency)):
                return None
        read_values: dict[int, int] = {}
        under_way: set[int] = set()

        def read_value(index: int) -> int | None:
            if index in read_values:
                return read_values[index]
            if index in under_way:
                return None
            under_way.add(index)
            event = self.events[index]
            parts = []
            for cell in event.cells:
                source = sources[index, cell]
                part = self.judge.memory.initial[cell] if source == INITIAL else written(source, cell)
                if part is None:
                    return None
                parts.append(part)
            read_values[index] = join(parts, event.cells)
            return read_values[index]

        def written(index: int, cell: Cell) -> int | None:
            event = self.events[index]
            value = event.written
            if isinstance(value, tuple):
                found = read_value(value[1])
            elif isinstance(value, Sum):
                mine, other = read_value(index), read_value(value.event)
                found = None if mine is None or other is None else value.of(mine, other)
            else:
                found = value if isinstance(value, int) else read_value(index)
                if found is not None and not isinstance(value, int):
                    found = value(found)
            return None if found is None else split(found, event.cells)[event.cells.index(cell)]

        for event in self.events:
            if event.reads and read_value(event.index) is None:
                return None
        for condition in self.way.conditions:
            if not condition.holds(0 if condition.event is None else read_values[condition.event]):
                return None
        return [read_values.get(index, 0) for index in range(size)]

    # ---- synchronization and causality -------------------------------------------------------------------------

    def _observed(self, sources: dict[tuple[int, Cell], int]) -> dict[int, set[int]]:
        """8.9.2, Observation order: of each write the reads that it precedes, also through atomic operations."""
        direct: dict[int, set[int]] = {}
        for (read, _), source in sources.items():
            if source != INITIAL and has(self.strong, source, read):
                direct.setdefault(source, set()).add(read)
        observed: dict[int, set[int]] = {}
        for write in direct:
            found: set[int] = set()
            ahead = list(direct[write])
            while ahead:
                read = ahead.pop()
                if read not in found:
                    found.add(read)
                    event = self.events[read]
                    if event.atomic and event.writes:
                        ahead += direct.get(read, ())
            observed[write] = found
        return observed

    def _synchronized(self, observed: dict[int, set[int]]) -> set[tuple[int, int]]:
        """8.9.4: a release pattern synchronizes with an acquire pattern.

        A write in the first precedes a read in the second in observation order, and the first operation of the one and
        the last of the other are morally strong.
        """
        pairs = set()
        for first, write in self.releases:
            reads = observed.get(write)
            if reads:
                for read, last in self.acquires:
                    if read in reads and self._strong_ends(first, last):
                        pairs.add((first, last))
        return pairs

    def _strong_ends(self, first: int, last: int) -> bool:
        """Whether the ends of two patterns are morally strong; two operations of one thread are, and need no edge."""
        return first != last and has(self.strong, first, last)

    def _preserved_order(self, base: Relation) -> Relation:
        """8.9.5, Proxy-preserved base causality order between overlapping memory operations.

        `base` is base causality order, which is transitive.
        """
        base = self._with_issued(base)
        preserved = relations.empty(len(self.events))
        for one, other in self.overlapping:
            if has(base, one, other) and self._preserved(base, self.events[one], self.events[other]):
                preserved[one] |= 1 << other
        return preserved

    def _causality(self, preserved: Relation, observed: dict[int, set[int]]) -> Relation:
        """8.9.5, Causality order between overlapping memory operations.

        X precedes Y in proxy-preserved base causality order, or X precedes some Z in observation order and Z precedes
        Y in proxy-preserved base causality order.
        """
        causality = list(preserved)
        for write, reads in observed.items():
            for read in reads:
                causality[write] |= preserved[read] & ~(1 << write)
        return causality

    def _with_issued(self, base: Relation) -> Relation:
        """Base causality with what precedes asynchronous operations; not transitive, see `events`."""
        result = list(base)
        for issue, operation in self.way.issued:
            for index, row in enumerate(base):
                if row >> issue & 1:
                    result[index] |= 1 << operation
        return result

    def _preserved(self, base: Relation, one: Event, other: Event) -> bool:
        """8.9.5, Proxy-preserved base causality order, for operations of which the first precedes the second in base.

        Same address means overlapping: nothing here has an alias.
        """
        if one.proxy == other.proxy == "generic":
            return True
        if one.proxy == other.proxy:
            return one.place.cta == other.place.cta
        if "texture" in (one.proxy, other.proxy):
            # 8.1: ld.global.nc is outside of the model, and no fence of a kernel orders it.
            return False
        if one.proxy == "async":
            # PTX ISA, cp.async.bulk: its completion is followed by an implicit proxy fence, and nothing but the
            # completion orders a copy before anything.
            return True
        if not one.writes and not self.judge.reading.read_then_bulk_write_needs_fence:
            return True
        # 2022, `proxy_preserved_cause_base`: a proxy fence of the CTA of the operation in the other proxy lies between.
        return any(
            fence.proxy_fence
            and fence.place.cta == other.place.cta
            and has(base, one.index, fence.index)
            and has(base, fence.index, other.index)
            and (self.judge.reading.fence_by_any_thread or fence.thread in (one.thread, other.thread))
            for fence in self.events
        )

    def _with_sources(self, sources: dict[tuple[int, Cell], int], values: list[int]) -> Iterator[_Execution]:
        """Consistent executions with these sources: every Fence-SC order, and for each every coherence order."""
        observed = self._observed(sources)
        base = self.order
        for first, last in self._synchronized(observed):
            base = closed_with(base, first, last)
        tried = set()
        for with_fences in self._fence_orders(base):
            preserved = self._preserved_order(with_fences)
            causality = self._causality(preserved, observed)
            if (tuple(preserved), tuple(causality)) in tried:
                continue
            tried.add((tuple(preserved), tuple(causality)))
            # 8.10.6, Causality: a read cannot read from an overlapping write that it precedes in causality order. Of an
            # atomic operation it is the write that precedes others in observation order, not the read (2019).
            if "causality" in self.axioms and any(
                source != INITIAL and has(preserved, read, source) for (read, _), source in sources.items()
            ):
                continue
            yield from self._with_causality(sources, values, causality)

    def _fence_orders(self, base: Relation) -> Iterator[Relation]:
        """Base causality with every Fence-SC order.

        8.9.3: that order is acyclic and relates every pair of morally strong fence.sc operations. 8.9.4: the earlier
        one synchronizes with the later one. 8.10.2, Fence-SC: it does not contradict causality order; fences access no
        memory, so the causality order between them is the base one.
        """
        if "fence-sc" not in self.axioms:
            for directions in itertools.product((False, True), repeat=len(self.sc_pairs)):
                pairs = [(b, a) if turned else (a, b) for (a, b), turned in zip(self.sc_pairs, directions, strict=True)]
                if not cyclic(relations.of(len(self.events), pairs)):
                    yield closed(relations.union(base, relations.of(len(self.events), pairs)))
            return

        def decide(order: Relation, depth: int) -> Iterator[Relation]:
            if depth == len(self.sc_pairs):
                if not any(has(order, one, other) and has(order, other, one) for one, other in self.sc_pairs):
                    yield order
                return
            one, other = self.sc_pairs[depth]
            if not has(order, other, one):
                yield from decide(closed_with(order, one, other), depth + 1)
            if not has(order, one, other):
                yield from decide(closed_with(order, other, one), depth + 1)

        yield from decide(base, 0)

    # ---- coherence ---------------------------------------------------------------------------------------------

    def _with_causality(
        self, sources: dict[tuple[int, Cell], int], values: list[int], causality: Relation
    ) -> Iterator[_Execution]:
        """Every coherence order; of the executions, one for each that differs in what can be seen."""
        outcomes: set[tuple[int, ...]] = set()
        interleaving = False
        found = False
        for coherence in self._coherence_orders(causality):
            if self._consistent(sources, causality, coherence):
                found = True
                outcomes |= self._outcomes(values, coherence)
                interleaving = interleaving or self._interleaving(sources, coherence)
        if found:
            races, mixed = self._races(causality)
            yield _Execution(frozenset(outcomes), races, mixed, interleaving)

    def _coherence_orders(self, causality: Relation) -> Iterator[Relation]:
        """8.9.6: overlapping writes are related if they are morally strong or related in causality order; transitive.

        8.10.1, Coherence: where causality order relates two, coherence order agrees.
        """
        start = relations.empty(len(self.events))
        undecided = []
        for one, other in self.overlapping:
            if self.events[one].writes and self.events[other].writes:
                ordered = has(causality, one, other), has(causality, other, one)
                if "coherence" in self.axioms and any(ordered):
                    if ordered[0]:
                        start = closed_with(start, one, other)
                elif one < other and (any(ordered) or has(self.strong, one, other)):
                    undecided.append((one, other))

        def decide(order: Relation, depth: int) -> Iterator[Relation]:
            if any(row >> index & 1 for index, row in enumerate(order)):
                return
            if depth == len(undecided):
                yield order
                return
            one, other = undecided[depth]
            if has(order, one, other) or has(order, other, one):
                yield from decide(order, depth + 1)
            else:
                yield from decide(closed_with(order, one, other), depth + 1)
                yield from decide(closed_with(order, other, one), depth + 1)

        yield from decide(start, 0)

    def _read_before(self, sources: dict[tuple[int, Cell], int], coherence: Relation) -> Relation:
        """8.9.7: a read precedes a write if it reads a byte of it from one that precedes that in coherence order."""
        before = relations.empty(len(self.events))
        for (read, cell), source in sources.items():
            for write in self.writers.get(cell, []):
                if write != read and (source == INITIAL or (source != write and has(coherence, source, write))):
                    before[read] |= 1 << write
        return before

    def _consistent(self, sources: dict[tuple[int, Cell], int], causality: Relation, coherence: Relation) -> bool:
        """Whether no axiom that depends on coherence order is contradicted."""
        size = len(self.events)
        read_from = relations.empty(size)
        for (read, _), source in sources.items():
            if source != INITIAL:
                read_from[source] |= 1 << read
        read_before = self._read_before(sources, coherence)
        if "causality" in self.axioms:
            # 8.10.6: if a write precedes an overlapping read in causality order, then for any byte accessed by both the
            # read cannot read from a write that precedes it in coherence order.
            for read, row in enumerate(read_before):
                if any(has(causality, write, read) for write in members(row)):
                    return False
        if "single-copy atomicity" in self.axioms:
            # 8.10.3: a read does not read both from a write and from one that precedes it, if they are morally strong.
            for write, row in enumerate(read_from):
                for read in members(row & self.strong[write]):
                    if has(read_before, read, write):
                        return False
        if "rmw atomicity" in self.axioms:
            # 8.10.3: an atomic operation does not read from before a write, and follow it, if they are morally strong.
            for event in self.events:
                if event.atomic and event.writes:
                    for write in members(read_before[event.index] & self.strong[event.index]):
                        if has(coherence, write, event.index):
                            return False
        if "sc per location" in self.axioms:
            # 8.10.5: program order between overlapping operations, and morally strong communication, have no cycle.
            location = relations.empty(size)
            for one, other in self.overlapping:
                if program_ordered(self.events[one], self.events[other]) and has(self.order, one, other):
                    location[one] |= 1 << other
            communication = relations.union(read_from, read_before, self._overlapping_only(coherence))
            strong = [row & ms for row, ms in zip(communication, self.strong, strict=True)]
            if cyclic(relations.union(location, strong)):
                return False
        return True

    def _overlapping_only(self, coherence: Relation) -> Relation:
        pairs = ((one, other) for one, other in self.overlapping if has(coherence, one, other))
        return relations.of(len(self.events), pairs)

    def _interleaving(self, sources: dict[tuple[int, Cell], int], coherence: Relation) -> bool:
        """Whether all orders together have no cycle: some interleaving of the instructions gives the execution."""
        read_from = relations.empty(len(self.events))
        for (read, _), source in sources.items():
            if source != INITIAL:
                read_from[source] |= 1 << read
        issued = relations.of(len(self.events), self.way.issued)
        read_before = self._read_before(sources, coherence)
        return not cyclic(relations.union(self.order, issued, read_from, read_before, coherence))

    # ---- what is seen ------------------------------------------------------------------------------------------

    def _outcomes(self, values: list[int], coherence: Relation) -> set[tuple[int, ...]]:
        """Values of registers, then of the cells of global memory: of the writes that none follows in coherence order.

        Writes in a race may leave several such; any may be the last.
        """
        registers = [
            values[self.way.registers[key]] if key in self.way.registers else 0 for key in self.program.registers
        ]
        last: list[set[int]] = []
        for cell in self.judge.memory.observed:
            writers = self.writers.get(cell, [])
            final = [one for one in writers if not any(has(coherence, one, other) for other in writers)]
            last.append({self._final(one, cell, values) for one in final} or {self.judge.memory.initial[cell]})
        return {(*registers, *cells) for cells in itertools.product(*last)}

    def _final(self, index: int, cell: Cell, values: list[int]) -> int:
        event = self.events[index]
        written = event.written
        if isinstance(written, tuple):
            value = values[written[1]]
        elif isinstance(written, Sum):
            value = written.of(values[index], values[written.event])
        else:
            value = written if isinstance(written, int) else written(values[index])
        return split(value, event.cells)[event.cells.index(cell)]

    # ---- races -------------------------------------------------------------------------------------------------

    def _races(self, causality: Relation) -> tuple[tuple[Race, ...], bool]:
        """8.7.1: conflicting operations that are neither related in causality order nor morally strong."""
        races, mixed = [], False
        for one, other in self.overlapping:
            first, second = self.events[one], self.events[other]
            if one > other or not (first.writes or second.writes):
                continue
            if has(self.strong, one, other) or has(causality, one, other) or has(causality, other, one):
                continue
            mixed |= not overlap_completely(first, second)
            ends = sorted((each.thread, each.step, str(each.instruction)) for each in (first, second))
            races.append(Race(ends[0], ends[1], self._why(first, second)))
        return tuple(races), mixed

    def _why(self, one: Event, other: Event) -> str:
        """Why two operations are not morally strong."""
        if one.proxy != other.proxy:
            return "different proxies, and no order with a proxy fence"
        if one.asynchronous or other.asynchronous:
            return "an asynchronous copy that nothing waits for in between"
        if not overlap_completely(one, other):
            return "not the same bytes, and unordered"
        if not (one.strong and other.strong):
            return "not both strong, and unordered"
        return "a scope that leaves the other thread out, and unordered"
