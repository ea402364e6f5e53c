"""Reads and atomics that happen after a store of their own thread to the same bytes: they take what lies under it."""

from __future__ import annotations

import pytest
from support.litmus.notation import program

from refmoe.litmus.afterwards import overtaken, written_again
from refmoe.litmus.axioms import judge
from refmoe.litmus.program import Program
from refmoe.litmus.run import compare, observe


def spread(threads: str) -> Program:
    """Threads of a CTA each."""
    return program(" | ".join(f"{cta}.0.0: {each}" for cta, each in enumerate(threads.split(" | "))))


#: Each has outcomes that only such a read, or one of the others that wait behind it, can show.
SHOWN = {
    "a load, and a release behind the store": (
        "ld.relaxed.gpu r0 y; st.relaxed.gpu y 1; st.release.gpu x 3 | ld.relaxed.gpu r0 x; st.relaxed.gpu y r0"
    ),
    "an atomic, and a fence behind the store": (
        "atom.relaxed.gpu.add r0 y 2; st.relaxed.gpu y 1; fence.acq_rel.gpu; st.relaxed.gpu x 3 | "
        "ld.relaxed.gpu r0 x; st.relaxed.gpu y r0"
    ),
    "an atomic that acquires and releases": (
        "atom.acq_rel.gpu.add r0 y 2; st.relaxed.gpu y 1; st.release.gpu x 3 | "
        "atom.relaxed.gpu.exch r0 x 5; st.relaxed.gpu y r0"
    ),
    "the store itself releases": (
        "ld.relaxed.gpu r0 y; st.release.gpu y 1; st.relaxed.gpu x 3 | ld.relaxed.gpu r0 x; st.relaxed.gpu y r0"
    ),
    "two stores": (
        "ld.relaxed.gpu r0 y; st.relaxed.gpu y 1; st.relaxed.gpu y 4; st.release.gpu x 3 | "
        "ld.relaxed.gpu r0 x; st.relaxed.gpu y r0"
    ),
    "fences that acquire before and behind the store": (
        "ld.relaxed.gpu r0 y; fence.acq_rel.gpu; st.relaxed.gpu y 1; fence.acq_rel.gpu; st.relaxed.gpu x 3 | "
        "ld.relaxed.gpu r0 x; st.relaxed.gpu y r0"
    ),
    "a load behind a release of its own bytes, and a fence": (
        "st.release.gpu y 2; ld.relaxed.gpu r0 y; fence.acq_rel.gpu; st.relaxed.gpu x 3 | "
        "ld.relaxed.gpu r0 x; st.relaxed.gpu y r0"
    ),
    "an acquire behind a load": (
        "ld.relaxed.gpu r0 y; ld.acquire.gpu r1 y; st.release.gpu x 3 | ld.relaxed.gpu r0 x; st.relaxed.gpu y r0"
    ),
    "an atomic that acquires behind a load": (
        "ld.relaxed.gpu r0 y; atom.acquire.gpu.add r1 y 8; st.relaxed.gpu x 3 | "
        "ld.relaxed.gpu r0 x; st.relaxed.gpu y r0"
    ),
    "an acquire behind an atomic": (
        "atom.release.gpu.add r0 y 16; ld.acquire.gpu r1 y; st.release.gpu x 3 | "
        "ld.relaxed.gpu r0 x; st.relaxed.gpu y r0"
    ),
}


@pytest.mark.parametrize("name", SHOWN)
def test_what_is_overtaken_shows_every_outcome(name: str) -> None:
    found = spread(SHOWN[name])
    verdict = judge(found)
    report = compare([(found, verdict)], schedules=4, walks=600)
    assert report.passed, report.document()["worst"]
    assert verdict.outcomes is not None
    assert report.seen == len(verdict.outcomes)


def test_some_of_the_shapes() -> None:
    found = [(each, judge(each)) for each in list(overtaken())[::12]]
    report = compare(found, schedules=4, walks=600)
    assert report.passed, report.document()["worst"]
    assert len(found) == 20


def test_who_reads_what_was_written_again_acquires_what_was_released_there() -> None:
    found = [(each, judge(each)) for each in list(written_again())[::3]]
    report = compare(found, schedules=8, walks=400)
    assert report.passed, report.document()["worst"]
    assert len(found) == 32


#: What may not be seen. All are sound.
HELD = {
    "the store, which comes behind": "ld.relaxed.gpu r0 y; st.relaxed.gpu y 1; st.release.gpu x 3 | st.relaxed.gpu y 2",
    "the store, by an atomic": (
        "atom.relaxed.gpu.add r0 y 4; st.relaxed.gpu y 1; st.release.gpu x 3 | st.relaxed.gpu y 2"
    ),
    "a release of what the thread has done, by the load in front of an acquire": (
        "ld.relaxed.gpu r0 y; ld.acquire.gpu r1 y; st.relaxed.gpu x 3 | ld.relaxed.gpu r0 x; st.release.gpu y r0"
    ),
    "a release of what the thread has done, by the load in front of an atomic that acquires": (
        "ld.relaxed.gpu r0 y; atom.acquire.gpu.add r1 y 8; st.relaxed.gpu x 3 | "
        "ld.relaxed.gpu r0 x; st.release.gpu y r0"
    ),
    "what the atomic acquires, and then missed": (
        "ld.relaxed.gpu r0 y; atom.acquire.gpu.add r1 y 4; st.relaxed.gpu y 1; ld.relaxed.gpu r2 z | "
        "st.relaxed.gpu z 1; st.release.gpu y 2 | st.relaxed.gpu y 3"
    ),
    "what an atomic acquires that comes behind another one": (
        "st.relaxed.gpu y 5; atom.acquire.gpu.add r1 y 4; st.relaxed.gpu y 1; ld.relaxed.gpu r2 z | "
        "st.relaxed.gpu z 1; atom.release.gpu.add r0 y 16 | st.relaxed.gpu y 3"
    ),
    "what a later read of the thread did not see": (
        "ld.relaxed.gpu r0 y; ld.relaxed.gpu r1 y; st.relaxed.gpu x 3 | ld.relaxed.gpu r0 x; st.relaxed.gpu y r0"
    ),
    "what an atomic passes on that the store overtakes": (
        "st.weak u 1; atom.release.gpu.add r0 y 2; st.relaxed.gpu y 1; st.relaxed.gpu x 3 | "
        "ld.relaxed.gpu r0 x; st.relaxed.gpu z r0 | ld.acquire.gpu r0 y; if r0 == 1 { ld.weak r1 u }"
    ),
    "what comes behind an atomic that passes it on": (
        "st.weak u 1; atom.acq_rel.gpu.add r0 y 2; st.relaxed.gpu y 1; st.release.gpu x 3 | "
        "ld.acquire.gpu r0 y; st.relaxed.gpu y 7; if r0 == 1 { ld.weak r1 u }"
    ),
}


@pytest.mark.parametrize("name", HELD)
def test_what_is_overtaken_keeps_its_place(name: str) -> None:
    found = spread(HELD[name])
    verdict = judge(found)
    assert verdict.outcomes is not None
    assert not verdict.racy
    (seen,) = observe([found], 16, walks=3000)
    assert (seen.race, seen.error) == (None, None)
    assert seen.outcomes <= verdict.outcomes
