"""The classical shapes of litmus tests, crossed with kinds of accesses, fences, scopes and places of the threads.

A shape is a few reads and writes of shared variables. Its variants give every access of a thread the same kind, and put
the same fence between all of them, so that what a variant may show depends on kind, fence, scope and place alone.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence

from refmoe.litmus.program import Address, Atomic, Fence, Instruction, Load, Program, Scope, Store, Thread, ThreadPlace

#: Places of two to four threads: lanes of a warp, warps of a CTA, CTAs of a grid, and both.
PLACES: dict[str, tuple[ThreadPlace, ...]] = {
    "lanes": tuple(ThreadPlace(0, 0, lane) for lane in (0, 1, 5, 31)),
    "warps": tuple(ThreadPlace(0, warp, 0) for warp in range(4)),
    "CTAs": tuple(ThreadPlace(cta) for cta in range(4)),
    "two CTAs": (ThreadPlace(0, 0), ThreadPlace(0, 1), ThreadPlace(1, 0), ThreadPlace(1, 1)),
}

#: Reads and writes by thread: ("W", variable, value) or ("R", variable, register).
Step = tuple[str, str, int | str]
SHAPES: dict[str, tuple[tuple[Step, ...], ...]] = {
    "MP": ((("W", "x", 1), ("W", "y", 1)), (("R", "y", "r0"), ("R", "x", "r1"))),
    "SB": ((("W", "x", 1), ("R", "y", "r0")), (("W", "y", 1), ("R", "x", "r0"))),
    "LB": ((("R", "x", "r0"), ("W", "y", 1)), (("R", "y", "r0"), ("W", "x", 1))),
    "S": ((("W", "x", 2), ("W", "y", 1)), (("R", "y", "r0"), ("W", "x", 1))),
    "R": ((("W", "x", 1), ("W", "y", 1)), (("W", "y", 2), ("R", "x", "r0"))),
    "2+2W": ((("W", "x", 1), ("W", "y", 2)), (("W", "y", 1), ("W", "x", 2))),
    "CoRR": ((("W", "x", 1),), (("R", "x", "r0"), ("R", "x", "r1"))),
    "CoWW": ((("W", "x", 1), ("W", "x", 2)), (("R", "x", "r0"), ("R", "x", "r1"))),
    "CoRW": ((("W", "x", 1),), (("R", "x", "r0"), ("W", "x", 2))),
    "CoWR": ((("W", "x", 1),), (("W", "x", 2), ("R", "x", "r0"))),
    "CoRR2": (
        (("W", "x", 1),),
        (("W", "x", 2),),
        (("R", "x", "r0"), ("R", "x", "r1")),
        (("R", "x", "r0"), ("R", "x", "r1")),
    ),
    "WRC": ((("W", "x", 1),), (("R", "x", "r0"), ("W", "y", 1)), (("R", "y", "r0"), ("R", "x", "r1"))),
    "ISA2": (
        (("W", "x", 1), ("W", "y", 1)),
        (("R", "y", "r0"), ("W", "z", 1)),
        (("R", "z", "r0"), ("R", "x", "r1")),
    ),
    "RWC": ((("W", "x", 1),), (("R", "x", "r0"), ("R", "y", "r1")), (("W", "y", 1), ("R", "x", "r0"))),
    "WWC": ((("W", "x", 2),), (("R", "x", "r0"), ("W", "y", 1)), (("R", "y", "r0"), ("W", "x", 1))),
    "WRW+WR": ((("W", "x", 1),), (("R", "x", "r0"), ("W", "y", 1)), (("W", "y", 2), ("R", "x", "r0"))),
    "Z6.3": ((("W", "x", 1), ("W", "y", 1)), (("W", "y", 2), ("W", "z", 1)), (("R", "z", "r0"), ("R", "x", "r1"))),
    "3.SB": (
        (("W", "x", 1), ("R", "y", "r0")),
        (("W", "y", 1), ("R", "z", "r0")),
        (("W", "z", 1), ("R", "x", "r0")),
    ),
    "3.LB": (
        (("R", "x", "r0"), ("W", "y", 1)),
        (("R", "y", "r0"), ("W", "z", 1)),
        (("R", "z", "r0"), ("W", "x", 1)),
    ),
    "IRIW": (
        (("W", "x", 1),),
        (("W", "y", 1),),
        (("R", "x", "r0"), ("R", "y", "r1")),
        (("R", "y", "r0"), ("R", "x", "r1")),
    ),
}

KINDS = ("weak", "volatile", "relaxed", "acquire and release", "atomic", "read-modify-write")
FENCES = ("none", "acq_rel", "sc", "membar")
SCOPES: tuple[Scope, ...] = ("cta", "cluster", "gpu", "sys")


def access(step: Step, kind: str, scope: Scope) -> Instruction:
    """A read or a write of a kind."""
    what, variable, value = step
    at = Address.of(variable)
    if what == "R":
        register = str(value)
        if kind in ("weak", "volatile"):
            return Load(register, at, order="weak" if kind == "weak" else "volatile")
        if kind in ("relaxed", "acquire and release"):
            return Load(register, at, order="relaxed" if kind == "relaxed" else "acquire", scope=scope)
        return Atomic("add", at, 0, "relaxed" if kind == "atomic" else "acq_rel", scope, register)
    number = int(value)
    if kind in ("weak", "volatile"):
        return Store(at, number, order="weak" if kind == "weak" else "volatile")
    if kind in ("relaxed", "acquire and release"):
        return Store(at, number, order="relaxed" if kind == "relaxed" else "release", scope=scope)
    return Atomic("exch", at, number, "relaxed" if kind == "atomic" else "acq_rel", scope, f"w{variable}")


def fence(name: str, scope: Scope) -> tuple[Instruction, ...]:
    """A fence of a name, or nothing."""
    if name == "none":
        return ()
    if name == "membar":
        return (Fence("membar", "gpu" if scope == "cluster" else scope),)
    return (Fence("sc" if name == "sc" else "acq_rel", scope),)


def cluster_of(places: Sequence[ThreadPlace], scopes: Sequence[Scope]) -> int:
    """CTAs of a cluster: two where the cluster is a scope and there are several CTAs, so that it includes some."""
    return 2 if "cluster" in scopes and any(place.cta for place in places) else 1


def variant(shape: str, kinds: Sequence[str], fences: Sequence[str], scopes: Sequence[Scope], where: str) -> Program:
    """A shape whose threads have each a kind of access, a fence between all accesses, and a scope."""
    places = PLACES[where][: len(SHAPES[shape])]
    threads = []
    for number, steps in enumerate(SHAPES[shape]):
        kind, name = kinds[number % len(kinds)], fences[number % len(fences)]
        scope = scopes[number % len(scopes)]
        done: list[Instruction] = []
        for step in steps:
            done += (*(fence(name, scope) if done else ()), access(step, kind, scope))
        threads.append(Thread(places[number], tuple(done)))
    cause = f"{', '.join(dict.fromkeys(kinds))}; fence {', '.join(dict.fromkeys(fences))}"
    return Program(shape, cause, tuple(threads), cluster=cluster_of(places, scopes))


def classical() -> Iterator[Program]:
    """Every shape in every variant in which all threads are alike, and many in which they are not.

    IRIW and CoRR2 as read-modify-writes have too many executions and are left out.
    """
    for shape, steps in SHAPES.items():
        large = len(steps) > 3
        for kind, name, scope, where in itertools.product(KINDS, FENCES, SCOPES, PLACES):
            if not (large and kind in ("atomic", "read-modify-write")):
                yield variant(shape, (kind,), (name,), (scope,), where)
        mixed = (("weak", "relaxed"), ("relaxed", "weak"), ("relaxed", "acquire and release"), ("volatile", "relaxed"))
        for kinds, name, where in itertools.product(mixed, ("none", "sc"), ("warps", "CTAs")):
            yield variant(shape, kinds, (name,), ("gpu",), where)
        two_scopes: tuple[tuple[Scope, Scope], ...] = (("gpu", "cta"), ("cta", "sys"))
        two_fences = (("sc", "none"), ("acq_rel", "sc"), ("sc", "membar"))
        for names, scopes, where in itertools.product(two_fences, two_scopes, ("CTAs", "two CTAs")):
            yield variant(shape, ("relaxed",), names, scopes, where)
