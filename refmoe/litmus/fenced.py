"""Strong accesses with fences between them, each thread with a fence of its own: of another scope, or with none.

A fence `.sc` is in order with another one only if each has the other's thread in its scope. So of two threads that each
write one location and then read the other's, both may read 0 unless both have such a fence between. Nothing of this
shows in an interleaving: an engine that tells these programs apart has weak outcomes, and the order of its fences.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence

from refmoe.litmus.program import Address, Fence, If, Instruction, Load, Program, Scope, Store, Thread, ThreadPlace
from refmoe.litmus.shapes import PLACES, SHAPES, Step, access, cluster_of

#: Fences of one thread: nothing, one that is not `.sc`, and each scope.
CHOICES: tuple[Fence | None, ...] = (
    None,
    Fence("acq_rel", "gpu"),
    Fence("sc", "cta"),
    Fence("sc", "cluster"),
    Fence("sc", "gpu"),
)
#: Of threads in shapes with three or four of them, which have more executions.
_FEWER: tuple[Fence | None, ...] = (None, Fence("sc", "cta"), Fence("sc", "gpu"))
#: Places of two to four threads. Clusters have two CTAs where some scope is the cluster.
_WHERE = ("lanes", "warps", "CTAs")
_X, _Y, _Z, _D = (Address.of(name) for name in "xyzu")


def fenced() -> Iterator[Program]:
    """All of them."""
    yield from shapes()
    yield from exclusions()
    yield from passed_on()


def _name(fences: Sequence[Fence | None]) -> str:
    """The key of fences: which scopes there are, and whether a thread has none."""
    return " and ".join(sorted({"none" if each is None else str(each) for each in fences}))


def _built(shape: str, fences: Sequence[Fence | None], where: str, threads: Sequence[Sequence[Instruction]]) -> Program:
    places: tuple[ThreadPlace, ...] = PLACES[where][: len(threads)]
    scopes: list[Scope] = [each.scope for each in fences if each is not None]
    made = tuple(Thread(place, tuple(each)) for place, each in zip(places, threads, strict=True))
    return Program(f"{shape} with fences", f"{where}: {_name(fences)}", made, cluster=cluster_of(places, scopes))


def _with_fence(steps: Sequence[Step], fence: Fence | None) -> Iterator[Instruction]:
    """Relaxed accesses with a fence between the first and the second one."""
    for number, step in enumerate(steps):
        if number and fence is not None:
            yield fence
        yield access(step, "relaxed", "gpu")


def shapes() -> Iterator[Program]:
    """The shapes that only fences `.sc` forbid, with every fence of each thread that has two accesses."""
    for shape in ("SB", "R", "2+2W", "3.SB", "RWC", "IRIW"):
        steps = SHAPES[shape]
        each = CHOICES if len(steps) == 2 else _FEWER
        choices = [each if len(thread) > 1 else (None,) for thread in steps]
        for where, fences in itertools.product(_WHERE, itertools.product(*choices)):
            threads = [list(_with_fence(thread, fence)) for thread, fence in zip(steps, fences, strict=True)]
            yield _built(shape, fences, where, threads)


def exclusions() -> Iterator[Program]:
    """Dekker's algorithm: whoever does not see the other one writes what both may write. With two fences no race."""
    both = (_X, _Y), (_Y, _X)
    for where, fences, scope in itertools.product(_WHERE, itertools.product(CHOICES, repeat=2), ("gpu", "cta")):
        threads: list[list[Instruction]] = []
        for number, ((mine, theirs), fence) in enumerate(zip(both, fences, strict=True)):
            thread: list[Instruction] = [Store(mine, 1, order="relaxed", scope=scope)]  # type: ignore[arg-type]
            thread += [] if fence is None else [fence]
            thread += [Load("r0", theirs, order="relaxed", scope=scope)]  # type: ignore[arg-type]
            threads.append([*thread, If("r0", 0, (Store(_D, number + 1),))])
        if scope == "gpu" or where != "CTAs":
            yield _built("Dekker", fences, where, threads)
    # A third thread has fences for reasons of its own.
    for where, fence in itertools.product(_WHERE, CHOICES):
        threads = [list(_with_fence(steps, None)) for steps in SHAPES["SB"]]
        third: list[Instruction] = [] if fence is None else [fence]
        yield _built("SB and a third thread", (None, None, fence), where, [*threads, [*third, Load("r0", _X)][:1]])


def passed_on() -> Iterator[Program]:
    """What is written before a fence and read behind another one, with relaxed accesses of a third thread between.

    The third thread's accesses are in no order, so neither are the fences, and the message is in a race.
    """
    for where, fences in itertools.product(_WHERE, itertools.product(_FEWER, repeat=3)):
        first, middle, last = fences
        threads: list[list[Instruction]] = [
            [Store(_D, 7), *_optional(first), Store(_X, 1, order="relaxed", scope="gpu")],
            [
                Load("r0", _X, order="relaxed", scope="gpu"),
                *_optional(middle),
                Store(_Y, 1, order="relaxed", scope="gpu"),
            ],
            [
                Load("r0", _Y, order="relaxed", scope="gpu"),
                *_optional(last),
                If("r0", 1, (Load("r1", _X, order="relaxed", scope="gpu"), If("r1", 1, (Load("r2", _D),)))),
            ],
        ]
        yield _built("relaxed chain", fences, where, threads)
        # The middle thread hands on only what it has seen.
        middle_reads: Instruction = If("r0", 1, (*_optional(middle), Store(_Y, 1, order="relaxed", scope="gpu")))
        conditional = [threads[0], [threads[1][0], middle_reads], [threads[2][0], *_optional(last)]]
        conditional[2] = [*conditional[2], If("r0", 1, (Load("r2", _D),))]
        yield _built("conditional chain", fences, where, conditional)


def _optional(fence: Fence | None) -> tuple[Instruction, ...]:
    return () if fence is None else (fence,)
