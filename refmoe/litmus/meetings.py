"""Barriers of a cluster, reductions at barriers of a block, and atomics of several scopes beside plain accesses.

Each comes in the right form and with one thing wrong.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from typing import get_args

from refmoe.litmus.passing import Several
from refmoe.litmus.program import (
    Address,
    Atomic,
    Barrier,
    ClusterArrive,
    ClusterWait,
    Fence,
    Instruction,
    Load,
    Program,
    Scope,
    Store,
    Thread,
    ThreadPlace,
)

X, A = Address.of("x"), Address.of("a")
#: Where two threads run, and the CTAs of a cluster.
_PAIRS: dict[str, tuple[tuple[ThreadPlace, ThreadPlace], int]] = {
    "lanes": ((ThreadPlace(0, 0, 0), ThreadPlace(0, 0, 5)), 1),
    "warps": ((ThreadPlace(0, 0), ThreadPlace(0, 1)), 1),
    "warps of a CTA of two": ((ThreadPlace(0, 0), ThreadPlace(0, 1)), 2),
    "CTAs": ((ThreadPlace(0), ThreadPlace(1)), 2),
}
_ACCESSES: tuple[tuple[Instruction, Instruction, str], ...] = (
    (Store(X, 7), Load("r0", X), "write-read"),
    (Load("r0", X), Store(X, 7), "read-write"),
    (Store(X, 7), Store(X, 8), "write-write"),
    (Atomic("add", X, 1, "relaxed", "gpu", "q0"), Load("r0", X), "strong and weak"),
    (Store(Address.of("x+1"), 7, 1), Load("r0", X, 4), "overlap"),
)
_SCOPES: tuple[Scope, ...] = get_args(Scope)


def meetings() -> Iterator[Program]:
    """All of them."""
    yield from cluster_barriers()
    yield from reductions_at_barriers()
    yield from scopes()


def _program(shape: str, cause: str, where: str, threads: tuple[Several, ...]) -> Program:
    places, cluster = _PAIRS[where]
    return Program(shape, cause, tuple(map(Thread, places, threads)), cluster=cluster)


def cluster_barriers() -> Iterator[Program]:
    """`barrier.cluster`, whose arrival may be relaxed, with a fence in front of it or without one."""
    arrive, relaxed, wait = ClusterArrive(), ClusterArrive(relaxed=True), ClusterWait()
    for where, (one, other, special) in itertools.product(_PAIRS, _ACCESSES):
        forms: list[tuple[str, tuple[Several, Several]]] = [
            ("in order", ((one, arrive, wait), (arrive, wait, other))),
            ("in order, the reader relaxed", ((one, arrive, wait), (relaxed, wait, other))),
            ("relaxed", ((one, relaxed, wait), (arrive, wait, other))),
            ("data behind the arrival", ((arrive, one, wait), (arrive, wait, other))),
            ("data before the wait", ((one, arrive, wait), (arrive, other, wait))),
            ("data behind the barrier", ((arrive, wait, one), (arrive, wait, other))),
            ("in order, twice", ((arrive, wait, one, arrive, wait), (arrive, wait, arrive, wait, other))),
            ("second arrival relaxed", ((arrive, wait, one, relaxed, wait), (arrive, wait, arrive, wait, other))),
            ("first arrival relaxed", ((one, relaxed, wait, arrive, wait), (arrive, wait, arrive, wait, other))),
        ]
        for order, scope in itertools.product(("acq_rel", "sc"), _SCOPES):
            fence = Fence(order, scope)  # type: ignore[arg-type]
            forms += [
                (f"relaxed behind a fence, {scope}", ((one, fence, relaxed, wait), (arrive, wait, other))),
                (f"fence before the data, {scope}", ((fence, one, relaxed, wait), (arrive, wait, other))),
                (f"fence behind the arrival, {scope}", ((one, relaxed, fence, wait), (arrive, wait, other))),
                (f"fence of the reader, {scope}", ((one, relaxed, wait), (fence, arrive, wait, fence, other))),
            ]
        for cause, threads in forms:
            yield _program("barrier.cluster", f"{cause} ({special})", where, threads)
    # What one warp wrote before a barrier of its block, another passes on by its arrival.
    places = (ThreadPlace(0, 0), ThreadPlace(0, 1), ThreadPlace(1, 0))
    for order, scope in itertools.product(("acq_rel", "sc"), _SCOPES):
        fence, meet = Fence(order, scope), Barrier(1, 2)  # type: ignore[arg-type]
        last = (arrive, wait, Load("r0", X))
        trios: list[tuple[str, tuple[Several, Several, Several]]] = [
            (f"passed on, {scope}", ((Store(X, 7), meet, relaxed, wait), (meet, fence, relaxed, wait), last)),
            (f"fenced too early, {scope}", ((Store(X, 7), meet, relaxed, wait), (fence, meet, relaxed, wait), last)),
        ]
        for cause, trio in trios:
            yield Program("barrier.cluster", cause, tuple(map(Thread, places, trio)), cluster=2)


def reductions_at_barriers() -> Iterator[Program]:
    """`bar.red` orders as `bar.sync` does, and takes turns with it at one barrier. That they come to it together, or
    `bar.red` and `bar.arrive`, PTX forbids."""
    red, sync = Barrier(1, 2, reduces=True), Barrier(1, 2)
    shared: tuple[tuple[Instruction, Instruction, str], ...] = (
        (Store(A, 7), Load("r0", A), "shared"),
        (Load("r0", A), Store(A, 7), "shared, read-write"),
    )
    for one, other, special in (*_ACCESSES, *shared):
        forms: list[tuple[str, tuple[Several, Several]]] = [
            ("in order", ((one, red), (red, other))),
            ("in order, both ways", ((one, red, red, one), (red, other, red))),
            ("barrier before the data", ((red, one), (red, other))),
            ("second barrier missing", ((one, red, one), (red, other))),
            ("two barriers", ((one, red), (Barrier(2, 1, reduces=True), red, other))),
            ("another barrier", ((one, Barrier(2, 1, reduces=True)), (Barrier(3, 1, reduces=True), other))),
            ("in order, sync and red in turns", ((one, red, sync), (red, sync, other))),
        ]
        for cause, threads in forms:
            yield _program("bar.red", f"{cause} ({special})", "warps", threads)
    # Of three warps, two count for one barrier.
    places = (ThreadPlace(0, 0), ThreadPlace(0, 1), ThreadPlace(0, 2))
    for one, other, special in _ACCESSES:
        all_three = Barrier(1, 3, reduces=True)
        trios: list[tuple[str, tuple[Several, Several, Several]]] = [
            ("in order, three warps", ((one, all_three), (all_three,), (all_three, other))),
            ("a third warp left out", ((one, red), (red,), (other,))),
        ]
        for cause, trio in trios:
            yield Program("bar.red", f"{cause} ({special})", tuple(map(Thread, places, trio)))


def scopes() -> Iterator[Program]:
    """Atomics of two scopes on one place, and beside relaxed and plain accesses of it."""
    for where, first, second in itertools.product(_PAIRS, _SCOPES, _SCOPES):
        one = Atomic("add", X, 1, "relaxed", first, "r0")
        others: list[tuple[str, Several]] = [
            ("atomics", (Atomic("add", X, 1, "relaxed", second, "r1"),)),
            ("red", (Atomic("add", X, 1, "relaxed", second),)),
            ("relaxed load", (Load("r1", X, order="relaxed", scope=second),)),
            ("relaxed store", (Store(X, 5, order="relaxed", scope=second),)),
            ("release and acquire", (Load("r1", X, order="acquire", scope=second), Load("r2", Address.of("y")))),
        ]
        for cause, rest in others:
            yield _program("scopes", f"{cause}, {first} and {second}", where, ((one,), rest))
        passes = (Store(Address.of("y"), 7), Atomic("add", X, 1, "release", first))
        yield _program("scopes", f"passed on, {first} and {second}", where, (passes, others[-1][1]))
        if first == second:
            yield _program("scopes", f"plain load beside an atomic, {first}", where, ((one,), (Load("r1", X),)))
            yield _program("scopes", f"plain store beside an atomic, {first}", where, ((one,), (Store(X, 5),)))
