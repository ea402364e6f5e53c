"""Barriers of a cluster, reductions at barriers, and scopes: verdicts by hand, and the executor held against all."""

from __future__ import annotations

import pytest

from refmoe.litmus.axioms import judge
from refmoe.litmus.interleave import interleavings, may_hang
from refmoe.litmus.meetings import meetings
from refmoe.litmus.program import (
    Address,
    Barrier,
    ClusterArrive,
    ClusterWait,
    Fence,
    If,
    Load,
    Program,
    ProgramError,
    Store,
    Thread,
    ThreadPlace,
)
from refmoe.litmus.run import compare

X = Address.of("x")
ARRIVE, RELAXED, WAIT = ClusterArrive(), ClusterArrive(relaxed=True), ClusterWait()
FENCE, NARROW, RED = Fence("acq_rel", "cluster"), Fence("acq_rel", "cta"), Barrier(1, 2, reduces=True)
WARPS, BLOCKS = (ThreadPlace(0, 0), ThreadPlace(0, 1)), (ThreadPlace(0), ThreadPlace(1))


def pair(places: tuple[ThreadPlace, ThreadPlace], first: tuple, second: tuple, cluster: int = 2) -> Program:
    return Program("test", "test", tuple(map(Thread, places, (first, second))), cluster=cluster)


@pytest.mark.parametrize(
    ("places", "first", "racy"),
    [
        (BLOCKS, (Store(X, 7), ARRIVE, WAIT), False),
        (BLOCKS, (Store(X, 7), RELAXED, WAIT), True),
        (BLOCKS, (Store(X, 7), FENCE, RELAXED, WAIT), False),
        (BLOCKS, (Store(X, 7), NARROW, RELAXED, WAIT), True),
        (WARPS, (Store(X, 7), NARROW, RELAXED, WAIT), False),
        (BLOCKS, (FENCE, Store(X, 7), RELAXED, WAIT), True),
        (BLOCKS, (Store(X, 7), RELAXED, FENCE, WAIT), True),
        (BLOCKS, (ARRIVE, Store(X, 7), WAIT), True),
    ],
)
def test_what_an_arrival_in_a_cluster_orders(places: tuple[ThreadPlace, ThreadPlace], first: tuple, racy: bool) -> None:
    found = pair(places, first, (ARRIVE, WAIT, Load("r0", X)))
    found.check()
    assert judge(found).racy == racy
    assert not may_hang(found)
    assert interleavings(found, ()).outcomes == ({(7,)} if ARRIVE is not first[0] else {(0,), (7,)})


def test_another_cluster_is_not_waited_for() -> None:
    found = pair((ThreadPlace(0), ThreadPlace(2)), (Store(X, 7), ARRIVE, WAIT), (ARRIVE, WAIT, Load("r0", X)))
    assert judge(found).when == "always"
    assert not may_hang(found)


def test_a_reduction_orders_as_the_barrier_does() -> None:
    assert not judge(pair(WARPS, (Store(X, 7), RED), (RED, Load("r0", X)), 1)).racy
    assert judge(pair(WARPS, (RED, Store(X, 7)), (RED, Load("r0", X)), 1)).racy
    assert str(RED) == "bar.red.or.pred %p, 1, 64, %p"


@pytest.mark.parametrize(
    ("first", "what"),
    [
        ((ARRIVE,), "in turns"),
        ((WAIT, ARRIVE), "in turns"),
        ((ARRIVE, WAIT, ARRIVE, WAIT), "not all threads"),
        ((Load("r0", X), If("r0", 0, (ARRIVE, WAIT))), "under a condition"),
    ],
)
def test_programs_that_are_none(first: tuple, what: str) -> None:
    with pytest.raises(ProgramError, match=what):
        pair(BLOCKS, first, (ARRIVE, WAIT)).check()


def test_the_executor_agrees() -> None:
    programs = list({each.key: each for each in meetings()}.values())
    assert len(programs) > 1000
    chosen = programs[::9]
    assert {each.shape for each in chosen} == {"barrier.cluster", "bar.red", "scopes"}
    report = compare([(each, judge(each)) for each in chosen], schedules=2)
    assert report.kinds == {"agrees": len(chosen)}
