"""Atomics in weak outcomes: which writes they read, where they come, and what their threads do before them."""

from __future__ import annotations

import itertools

import pytest
from support.litmus.notation import program
from support.selection.thinned import thinned

from refmoe.litmus.atomics import atomics
from refmoe.litmus.axioms import judge
from refmoe.litmus.program import Program
from refmoe.litmus.run import compare, observe


def holds(found: Program) -> None:
    verdict = judge(found)
    report = compare([(found, verdict)], schedules=16, walks=400)
    assert report.passed, report.document()["worst"]
    if not verdict.racy:
        assert report.seen == report.allowed, report.document()["worst"]


#: Whether a compare-and-swap that finds something else is a write, an acquire, and a release: threads, race.
SWAPS = [
    ("st.relaxed.cta x 2; atom.relaxed.gpu.cas r0 y 1 1 | ld.relaxed.cta r0 y", False),
    ("atom.relaxed.gpu.cas r0 y 1 1 | ld.weak r0 y", False),
    ("atom.relaxed.gpu.cas r0 y 0 1 | ld.weak r0 y", True),
    ("atom.relaxed.gpu.cas r0 y 1 1 | st.weak y 2", True),
    ("atom.relaxed.gpu.cas r0 y 1 1 | atom.relaxed.cta.cas r0 y 2 2", False),
    ("atom.relaxed.gpu.cas r0 y 0 1 | atom.relaxed.cta.cas r0 y 2 2", True),
    ("st.weak u 7; atom.release.gpu.cas r0 y 5 6 | ld.acquire.gpu r0 y; if r0 == 0 { ld.weak r1 u }", True),
    ("st.weak u 7; atom.release.gpu.cas r0 y 0 6 | ld.acquire.gpu r0 y; if r0 == 6 { ld.weak r1 u }", False),
    ("st.weak u 7; st.release.gpu y 2 | atom.acquire.gpu.cas r0 y 5 6; if r0 == 2 { ld.weak r1 u }", False),
    ("st.weak u 7; st.release.gpu y 2 | atom.release.gpu.cas r0 y 5 6; if r0 == 2 { ld.weak r1 u }", True),
    # What fails comes between nobody: the release is that of the store.
    (
        "st.weak u 7; st.release.gpu y 2 | atom.relaxed.gpu.cas r0 y 5 6 | "
        "ld.acquire.gpu r0 y; if r0 == 2 { ld.weak r1 u }",
        False,
    ),
]


@pytest.mark.parametrize(("threads", "racy"), SWAPS)
def test_a_swap_that_finds_something_else_is_a_read(threads: str, racy: bool) -> None:
    parts = threads.split(" | ")
    found = program(" | ".join(f"{cta}.0.0: {each}" for cta, each in enumerate(parts)))
    assert judge(found).racy is racy
    holds(found)


#: What an acquire has read of a location before is the begin of its pattern, too; and a swap writes behind its acquire.
ORDERED = [
    "ld.relaxed.gpu r1 y; ld.acquire.gpu r0 y; if r1 == 4 { ld.weak r2 z } | "
    "st.weak z 2; st.release.gpu y 4 | st.relaxed.gpu y 5",
    "ld.relaxed.gpu r1 y; ld.relaxed.gpu r0 y; fence.acq_rel.gpu; if r1 == 4 { ld.weak r2 z } | "
    "st.weak z 2; st.release.gpu y 4 | st.release.gpu y 5",
    "ld.weak r1 y; st.release.gpu y 1 | atom.acquire.gpu.cas r1 y 1 9",
    "atom.relaxed.cluster.cas r1 y 1 2; atom.release.gpu.add r0 y 1 | atom.acquire.gpu.cas r1 y 1 9",
    # More writes than are remembered, and an atomic behind the first of them.
    "; ".join(f"st.relaxed.gpu x {value}" for value in range(1, 10)) + " | atom.relaxed.gpu.add r0 x 100",
    "; ".join(f"st.relaxed.gpu x {value}" for value in range(1, 10)) + " | fence.sc.gpu; atom.relaxed.gpu.add r0 x 100",
]


@pytest.mark.parametrize("threads", ORDERED)
def test_what_is_ordered_is_no_race(threads: str) -> None:
    found = program(" | ".join(f"{cta}.0.0: {each}" for cta, each in enumerate(threads.split(" | "))))
    verdict = judge(found)
    assert not verdict.racy
    (seen,) = observe([found], 16, walks=300)
    assert (seen.race, seen.error) == (None, None)
    assert verdict.outcomes is not None
    assert seen.outcomes <= verdict.outcomes


#: No interleaving of these threads has all their outcomes.
WEAK = [
    # A swap reads what was there before a store that came, and its write lies under that.
    "atom.release.gpu.exch r0 x 1; atom.relaxed.gpu.cas r1 y 0 2 | "
    "st.relaxed.gpu y 3; atom.release.gpu.add r0 x 2; ld.relaxed.gpu r1 x",
    # An atomic passes a fence, an acquire, a release, and each of them what comes behind.
    "atom.relaxed.gpu.add r0 x 1; fence.acq_rel.gpu; st.relaxed.gpu y 1 | ld.relaxed.gpu r0 y; st.relaxed.gpu x r0",
    "atom.relaxed.gpu.add r0 x 1; ld.acquire.gpu r1 z; st.relaxed.gpu y 1 | ld.relaxed.gpu r0 y; st.relaxed.gpu x r0",
    "atom.acq_rel.gpu.add r0 x 2; atom.relaxed.gpu.exch r1 z 3 | atom.acq_rel.gpu.exch r0 z 2; "
    "atom.relaxed.gpu.cas r1 x 0 3",
    "ld.acquire.gpu r0 y; st.release.gpu x 3 | ld.relaxed.gpu r0 x; st.relaxed.gpu y r0",
    "atom.release.gpu.add r0 x 2; st.relaxed.gpu y 1 | ld.acquire.gpu r0 y; atom.relaxed.gpu.exch r1 x 5",
    # Two accesses of one place are put off, one behind the other.
    "ld.relaxed.gpu r0 x; ld.relaxed.gpu r1 x; st.relaxed.gpu y 1 | "
    "ld.relaxed.gpu r0 y; if r0 == 1 { st.relaxed.gpu x 1 }",
    # A load passes a fence .sc that nobody is in order with.
    "ld.relaxed.gpu r0 x; fence.sc.gpu; st.relaxed.gpu y 1 | ld.relaxed.gpu r0 y; st.relaxed.gpu x r0",
]


@pytest.mark.parametrize("threads", WEAK)
@pytest.mark.parametrize("places", ["0.0.0 0.0.1", "0.0.0 1.0.0"])
def test_every_outcome_of_an_atomic_shows_and_no_other(threads: str, places: str) -> None:
    parts = threads.split(" | ")
    holds(program(" | ".join(f"{place}: {each}" for place, each in zip(places.split(), parts, strict=True))))


#: Two fences .sc, of which each thread's load may pass one: both may not.
IN_ORDER = [
    ("fence.sc.gpu", "fence.sc.gpu"), ("fence.sc.gpu", "fence.acq_rel.gpu"), ("fence.sc.cta", "fence.sc.gpu"),
]  # fmt: skip


@pytest.mark.parametrize(("first", "second"), IN_ORDER)
def test_a_load_passes_no_more_of_a_fence_than_its_own_thread(first: str, second: str) -> None:
    message = f"0.0.0: ld.relaxed.gpu r0 x; {first}; st.relaxed.gpu y 1; ld.relaxed.gpu r1 z"
    holds(program(f"{message} | 1.0.0: st.relaxed.gpu z 1; ld.relaxed.gpu r0 y; {second}; st.relaxed.gpu x r0"))


def test_a_fence_in_front_of_an_atomic_passes_on_what_came_before_the_fence() -> None:
    late = "0.0.0: atom.relaxed.gpu.add r0 x 7; fence.sc.gpu; st.relaxed.gpu y 1"
    holds(program(f"{late} | 1.0.0: fence.sc.gpu; until ld.relaxed.gpu r0 y == 1; atom.relaxed.gpu.add r1 x 5"))


def test_the_last_store_of_a_thread_comes_before_what_it_has_put_off() -> None:
    late = "0.0.0: red.relaxed.gpu.add x 7; st.relaxed.gpu y 1"
    holds(program(f"{late} | 1.0.0: until ld.relaxed.gpu r0 y == 1; atom.relaxed.gpu.add r1 x 5"))


SYSTEMATIC = list(itertools.islice(atomics(), 0, None, 29))


@pytest.mark.parametrize("number", thinned(range(len(SYSTEMATIC)), 24))
def test_shapes_with_atomics(number: int) -> None:
    holds(SYSTEMATIC[number])


#: What nobody sees where each mechanism of `refmoe.ptx.engine.order.outcomes` does its work.
NEVER = [
    "ld.relaxed.gpu r1 y; ld.acquire.gpu r0 y; ld.relaxed.gpu r2 z | "
    "st.relaxed.gpu z 2; st.release.gpu y 4 | st.relaxed.gpu y 5",
    # Who has read a release does not go on before its acquire of that.
    "ld.relaxed.gpu r0 y; ld.acquire.gpu r1 y; ld.relaxed.gpu r2 x; st.relaxed.gpu z 1 | "
    "st.relaxed.gpu x 1; st.release.gpu y 1",
    # Nor does an atomic find a release of which its thread would have had to know.
    "atom.acquire.gpu.add r0 x 4; ld.relaxed.gpu r1 u; st.relaxed.gpu y 1 | "
    "ld.relaxed.gpu r0 y; st.relaxed.gpu u 7; atom.release.gpu.exch r1 x 1",
    # A load passes a fence .sc, and then reads nothing that is behind a later one.
    "ld.relaxed.gpu r0 x; fence.sc.gpu; st.relaxed.gpu y 1; ld.relaxed.gpu r1 z | "
    "st.relaxed.gpu z 1; fence.sc.gpu; st.relaxed.gpu x 1",
]


@pytest.mark.parametrize("threads", NEVER)
def test_no_walk_has_another_outcome(threads: str) -> None:
    found = program(" | ".join(f"{cta}.0.0: {each}" for cta, each in enumerate(threads.split(" | "))))
    verdict = judge(found)
    (seen,) = observe([found], 16, walks=3000)
    assert seen.outcomes == verdict.outcomes, (seen.race, seen.error)


#: A read is where its thread came to it: what the thread has learned or released since then is not in front of it.
BEFORE = [
    "0.0.0: ld.relaxed.gpu r0 x; ld.acquire.gpu r1 z; st.relaxed.gpu y 1 | "
    "1.0.0: st.relaxed.gpu x 1; st.release.gpu z 1 | 2.0.0: ld.relaxed.gpu r0 y; if r0 == 1 { st.relaxed.gpu x 5 }",
    "0.0.0: atom.release.gpu.add r0 x 1; ld.acquire.gpu r1 z; if r1 == 1 { st.relaxed.gpu y 1 } | "
    "1.0.0: st.relaxed.gpu u 7; st.release.gpu z 1 | "
    "2.0.0: ld.relaxed.gpu r0 y; if r0 == 1 { st.relaxed.gpu x 4; ld.acquire.gpu r1 x; ld.relaxed.gpu r2 u }",
    "0.0.0: atom.relaxed.gpu.add r0 x 1; st.relaxed.gpu u 7; fence.acq_rel.gpu; st.relaxed.gpu y 1 | "
    "1.0.0: ld.relaxed.gpu r0 y; st.relaxed.gpu x r0; ld.acquire.gpu r1 x; ld.relaxed.gpu r2 u",
]


@pytest.mark.parametrize("threads", BEFORE)
def test_what_is_put_off_knows_what_its_thread_knew(threads: str) -> None:
    holds(program(threads))
