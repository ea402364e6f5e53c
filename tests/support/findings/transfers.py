"""Random transfers through shared memory, whose order is a graph that no execution changes.

Every access, copy and signal is a node. Edges are the order of a thread, barriers, and what a wait waits for. Two
accesses of one word race if one of them writes and no path leads from the one to the other. So a verdict needs no
engine.
"""

from __future__ import annotations

import random
from dataclasses import dataclass, field

from support.findings.accesses import Program

_ISSUE = "cp.async.ca.shared.global"
_WAIT = "mbarrier.try_wait.parity.shared::cta.b64"
_SHARED = ".shared .align 16 .b8 cell[64]; .shared .align 8 .b64 full[8];"
_WORDS, _BARRIERS = 3, 8


@dataclass
class _Graph:
    """A program as it is written.

    Attributes:
        warps: of the block.
        lines: PTX.
        edges: by node, those behind it.
        last: the last node of each thread.
        accesses: (node, word, whether it writes).
        copies: by thread, (node, group).
        groups: by thread, that of its next copy.
        copied: nodes that are copies.
        waited: threads that have waited for one.
        complete: by barrier, the end of its phase.
        arrivals: by barrier, how many.
    """

    warps: int
    lines: list[str] = field(default_factory=list)
    edges: list[set[int]] = field(default_factory=list)
    last: list[int] = field(default_factory=list)
    accesses: list[tuple[int, int, bool]] = field(default_factory=list)
    copied: set[int] = field(default_factory=set)
    copies: dict[int, list[tuple[int, int]]] = field(default_factory=dict)
    groups: dict[int, int] = field(default_factory=dict)
    waited: set[int] = field(default_factory=set)
    arrivals: list[int] = field(default_factory=lambda: [0] * _BARRIERS)
    complete: list[int] = field(default_factory=list)

    def __post_init__(self) -> None:
        begin = self.node()
        self.last = [begin] * (32 * self.warps)
        self.complete = [self.node() for _ in range(_BARRIERS)]

    def node(self, *before: int) -> int:
        """A node behind others."""
        self.edges.append(set())
        for each in before:
            self.edges[each].add(len(self.edges) - 1)
        return len(self.edges) - 1

    def step(self, thread: int, text: str, *before: int) -> int:
        """The next instruction of a thread."""
        self.last[thread] = self.node(self.last[thread], *before)
        self.lines.append(f"setp.eq.u32 %p3, %r1, {thread}; {text}")
        return self.last[thread]

    def access(self, thread: int, word: int, writes: bool) -> None:
        """A plain load or store."""
        text = f"st.shared.u32 [%r30+{4 * word}], %r2;" if writes else f"ld.shared.u32 %r40, [%r30+{4 * word}];"
        self.accesses.append((self.step(thread, f"@%p3 {text}"), word, writes))

    def copy(self, thread: int, word: int) -> None:
        """`cp.async` into a word."""
        issue = self.step(thread, f"@%p3 {_ISSUE} [%r30+{4 * word}], [%d1], 4;")
        made = self.node(issue)
        self.copied.add(made)
        self.accesses.append((made, word, True))
        self.copies.setdefault(thread, []).append((made, self.groups.get(thread, 0)))

    def commit(self, thread: int) -> None:
        """`cp.async.commit_group`."""
        self.step(thread, "@%p3 cp.async.commit_group;")
        self.groups[thread] = self.groups.get(thread, 0) + 1

    def wait(self, thread: int, keep: int | None) -> None:
        """`cp.async.wait_group`, or `wait_all` for None."""
        limit = self.groups.get(thread, 0) - (keep or 0)
        if keep is None:
            limit = self.groups[thread] = limit + 1
        text = "wait_all" if keep is None else f"wait_group {keep}"
        done = [made for made, group in self.copies.get(thread, []) if group < limit]
        self.step(thread, f"@%p3 cp.async.{text};", *done)
        if done:
            self.waited.add(thread)

    def arrive(self, thread: int, barrier: int, for_copies: bool) -> None:
        """An arrival of a thread, or one for its copies alone.

        None for copies that the thread has waited for itself: the engine takes these for accesses of that moment.
        """
        if for_copies and thread in self.waited:
            return
        self.arrivals[barrier] += 1
        opcode = "cp.async.mbarrier.arrive.noinc" if for_copies else "mbarrier.arrive"
        state = "" if for_copies else "%d12, "
        here = self.step(thread, f"@%p3 {opcode}.shared::cta.b64 {state}[%r33+{8 * barrier}];")
        for each in [made for made, _ in self.copies.get(thread, [])] if for_copies else [here]:
            self.edges[each].add(self.complete[barrier])

    def poll(self, thread: int, barrier: int) -> None:
        """A wait for the first phase of a barrier."""
        label = len(self.lines)
        text = f"@!%p3 bra S{label}; W{label}: {_WAIT} %p9, [%r33+{8 * barrier}], 0; @!%p9 bra W{label}; S{label}:"
        self.step(thread, text, self.complete[barrier])

    def turns(self, thread: int, count: int) -> None:
        """Turns of other warps, which order nothing."""
        label = len(self.lines)
        self.step(
            thread,
            f"@!%p3 bra S{label}; mov.u32 %r10, 0; L{label}: ld.relaxed.gpu.global.u32 %r11, [%d1+8]; "
            f"add.u32 %r10, %r10, 1; setp.lt.u32 %p8, %r10, {count}; @%p8 bra L{label}; S{label}:",
        )

    def meet(self) -> None:
        """`bar.sync`."""
        self.last = [self.node(*set(self.last))] * len(self.last)
        self.lines.append("bar.sync 0;")

    def races(self) -> bool:
        """Whether two accesses race. What came before the issue of a copy does not come before what the copy orders."""
        reached = {}
        for begin, _, _ in self.accesses:
            seen, left = set[int](), [begin]
            while left:
                for each in self.edges[left.pop()] - seen:
                    seen.add(each)
                    if each not in self.copied:
                        left.append(each)
            reached[begin] = seen
        return any(
            word == other_word and (writes or other_writes) and other not in reached[one] and one not in reached[other]
            for number, (one, word, writes) in enumerate(self.accesses)
            for other, other_word, other_writes in self.accesses[:number]
        )


def random_transfers(seed: int) -> tuple[Program, bool]:
    """The program of a seed, and whether it races: some transfers, of some of which a step is left out."""
    rng = random.Random(seed)
    graph = _Graph(rng.choice((2, 2, 3)))
    threads = [each for each in (0, 1, 32, 33, 64) if each < 32 * graph.warps]
    left = [_transfer(graph, rng, threads, barrier) for barrier in range(rng.choice((1, 2, 2, 3)))]
    for steps in left:
        if rng.random() < 0.3:
            steps.pop(rng.randrange(len(steps)))
    while left := [each for each in left if each]:
        name, *given = rng.choice(left).pop(0)
        if name != "poll" or graph.arrivals[given[1]]:
            getattr(graph, name)(*given)
    counts = "\n".join(
        f"@%p6 mbarrier.init.shared::cta.b64 [%r33+{8 * number}], {max(count, 1)};"
        for number, count in enumerate(graph.arrivals)
    )
    begin = f"mov.u32 %r30, cell; mov.u32 %r33, full; mov.u32 %r32, 0; setp.eq.u32 %p6, %r1, 0;\n{counts}\n"
    begin += "@%p6 st.shared.v4.u32 [%r30], {%r32, %r32, %r32, %r32};\nbar.sync 0;\n"
    body = begin + "\n".join(graph.lines) + "\ncp.async.wait_all;\nret;"
    return Program(body, 1, graph.warps, 1, _SHARED), graph.races()


def _transfer(graph: _Graph, rng: random.Random, threads: list[int], barrier: int) -> list[tuple[object, ...]]:
    """Steps that bring a word from one thread to another: what each is called, and its arguments."""
    giver, taker = rng.sample(threads, 2)
    word = rng.choice((barrier, barrier, rng.randrange(_WORDS)))
    steps: list[tuple[object, ...]] = []
    copies = rng.random() < 0.75
    steps.append(("copy", giver, word) if copies else ("access", giver, word, True))
    if rng.random() < 0.4:
        steps.append(("commit", giver))
        if rng.random() < 0.5:
            steps += [("copy", giver, rng.randrange(_WORDS)), ("commit", giver)]
    ways = ("counted", "waited", "met") if copies else ("waited", "met")
    way = rng.choice(ways)
    if way == "counted":
        steps.append(("arrive", giver, barrier, True))
    elif copies:
        steps.append(("wait", giver, rng.choice((0, 0, 1, None, None))))
    if way == "waited":
        steps.append(("arrive", giver, barrier, False))
    late = [("turns", taker, 12)] if rng.random() < 0.5 else []
    after = [("wait", giver, rng.choice((0, 1, None)))] if rng.random() < 0.6 else []
    if rng.random() < 0.3:
        after.insert(0, ("turns", giver, 12))
    steps += [*after, *late]
    steps.append(("meet",) if way == "met" else ("poll", taker, barrier))
    if rng.random() < 0.2:
        steps.append(("meet",))
    steps.append(("access", taker, word, rng.random() < 0.4))
    return steps
