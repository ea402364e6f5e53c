"""Order that a launch only shows when its threads have gone on: no false alarm, and every outcome."""

from __future__ import annotations

import contextlib

import numpy as np
import pytest
from support.litmus.notation import program, spread

from refmoe import ptx
from refmoe.litmus.axioms import judge
from refmoe.litmus.run import compare, observe

#: The fence of one thread must have come before that of another, which has gone on when this shows. All are sound.
FORCED = {
    "a read misses a write behind whose fence its thread has gone on": (
        "st.weak u 1; fence.sc.gpu; ld.relaxed.gpu r0 x; if r0 == 0 { st.relaxed.gpu y 1 } | "
        "st.relaxed.gpu x 1; fence.sc.gpu; ld.relaxed.gpu r0 y; if r0 == 1 { ld.weak r1 u }"
    ),
    "a read misses a write that a third thread has read": (
        "st.weak u 1; fence.sc.gpu; ld.relaxed.gpu r0 x; if r0 == 0 { st.relaxed.gpu y 1 } | st.relaxed.gpu x 1 | "
        "until ld.relaxed.gpu r0 x == 1; fence.sc.gpu; ld.relaxed.gpu r2 y; if r2 == 1 { ld.weak r1 u }"
    ),
    "the thread behind the fence has released": (
        "st.weak u 1; fence.sc.gpu; ld.relaxed.gpu r0 x; if r0 == 0 { st.relaxed.gpu y 1 } | "
        "st.relaxed.gpu x 1; fence.sc.gpu; st.relaxed.gpu z 1 | "
        "until ld.acquire.gpu r0 z == 1; ld.relaxed.gpu r2 y; if r2 == 1 { ld.weak r1 u }"
    ),
    "an atomic comes before another one": (
        "st.weak u 1; fence.sc.gpu; ld.relaxed.gpu r0 x; if r0 == 0 { st.relaxed.gpu y 1 } | "
        "atom.relaxed.gpu.add r2 x 1; fence.sc.gpu; ld.relaxed.gpu r0 y; st.relaxed.gpu z 1; "
        "if r0 == 1 { ld.weak r1 u }"
    ),
    "a swap that finds something else misses a write": (
        "st.weak u 1; fence.sc.gpu; atom.relaxed.gpu.cas r0 x 5 1; if r0 == 0 { st.relaxed.gpu y 1 } | "
        "st.relaxed.gpu x 1; fence.sc.gpu; ld.relaxed.gpu r1 y; if r1 == 1 { ld.weak r2 u }"
    ),
    "a write comes under another one, which two reads show": (
        "st.weak u 1; fence.sc.gpu; st.relaxed.gpu x 1 | "
        "st.relaxed.gpu x 2; fence.sc.gpu; ld.relaxed.gpu r0 y; if r0 == 2 { ld.weak r1 u } | "
        "ld.relaxed.gpu r0 x; if r0 == 1 { ld.relaxed.gpu r1 x; st.relaxed.gpu y r1 }"
    ),
    "a load that has passed its fence reads a later write": (
        "st.weak u 1; fence.sc.gpu; st.relaxed.gpu x 1 | ld.relaxed.gpu r0 x; if r0 == 1 { st.relaxed.gpu x 2 } | "
        "ld.relaxed.gpu r0 x; fence.sc.gpu; st.relaxed.gpu z 1; if r0 == 2 { ld.weak r1 u }"
    ),
    "a read tells that an atomic came first, which its thread then puts off past a fence": (
        "st.weak u 1; fence.sc.gpu; ld.relaxed.gpu r0 x; if r0 == 0 { st.relaxed.gpu y 1 } | "
        "atom.relaxed.gpu.add r2 x 1; fence.sc.gpu; st.relaxed.gpu z 1; ld.relaxed.gpu r0 y; "
        "if r0 == 1 { ld.weak r1 u }; st.relaxed.gpu w 1"
    ),
    "an atomic that is put off can only come behind another one": (
        "atom.acquire.gpu.add r2 x 2; st.relaxed.gpu y 1; ld.relaxed.gpu r0 z; if r0 == 1 { ld.weak r1 u }; "
        "st.relaxed.gpu w 1 | "
        "st.weak u 1; atom.release.gpu.add r0 x 1; if r0 == 0 { st.relaxed.gpu z 1 }"
    ),
    "a late read acquires what has then come before who read a write behind it": (
        "0.0.0: ld.acquire.gpu r0 y; st.relaxed.gpu z 1; if r0 == 1 { st.relaxed.gpu w 1 } | "
        "1.0.0: st.weak u 1; fence.sc.gpu; st.release.gpu y 1 | "
        "2.0.0: until ld.relaxed.gpu r0 z == 1; fence.sc.gpu; ld.relaxed.gpu r1 w; if r1 == 1 { ld.weak r2 u }"
    ),
    "a narrow fence between two wide ones": (
        "0.0.0: st.weak u 1; fence.sc.gpu; ld.relaxed.gpu r0 y; if r0 == 0 { st.relaxed.gpu z 1 } | "
        "0.1.0: st.relaxed.gpu y 1; fence.sc.cta; st.relaxed.gpu w 1 | "
        "1.0.0: until ld.relaxed.gpu r0 w == 1; fence.sc.gpu; ld.relaxed.gpu r1 z; if r1 == 1 { ld.weak r2 u }"
    ),
    "the second of two fences": (
        "st.weak u 1; fence.sc.gpu; st.relaxed.gpu x 1; fence.sc.gpu; ld.relaxed.gpu r0 z; "
        "if r0 == 0 { st.relaxed.gpu y 1 } | "
        "st.relaxed.gpu z 1; fence.sc.gpu; ld.relaxed.gpu r1 y; if r1 == 1 { ld.weak r2 u }"
    ),
}  # fmt: skip

#: Close to these, and racy: a fence whose scope leaves the other out, no miss, a read that proves nothing.
UNFORCED = {
    "the fence is of too narrow a scope": (
        "st.weak u 1; fence.sc.cta; ld.relaxed.gpu r0 x; if r0 == 0 { st.relaxed.gpu y 1 } | "
        "st.relaxed.gpu x 1; fence.sc.gpu; ld.relaxed.gpu r0 y; if r0 == 1 { ld.weak r1 u }"
    ),
    "the read need not have missed the write": (
        "st.weak u 1; fence.sc.gpu; ld.relaxed.gpu r0 x; st.relaxed.gpu y 1 | "
        "st.relaxed.gpu x 1; fence.sc.gpu; ld.relaxed.gpu r0 y; if r0 == 1 { ld.weak r1 u }"
    ),
    "the fence is before the write that was missed": (
        "st.weak u 1; fence.sc.gpu; ld.relaxed.gpu r0 x; if r0 == 0 { st.relaxed.gpu y 1 } | "
        "fence.sc.gpu; st.relaxed.gpu x 1; ld.relaxed.gpu r0 y; if r0 == 1 { ld.weak r1 u }"
    ),
    "the reader's fence is before its read": (
        "st.weak u 1; fence.sc.gpu; ld.relaxed.gpu r0 x; if r0 == 0 { st.relaxed.gpu y 1 } | st.relaxed.gpu x 1 | "
        "fence.sc.gpu; until ld.relaxed.gpu r0 x == 1; ld.relaxed.gpu r2 y; if r2 == 1 { ld.weak r1 u }"
    ),
    "the fence of who wrote what was missed is before that": (
        "st.weak u 1; fence.sc.gpu; until ld.relaxed.gpu r2 w == 1; ld.relaxed.gpu r0 x; "
        "if r0 == 0 { st.relaxed.gpu y 1 } | fence.sc.gpu; st.relaxed.gpu x 1; st.relaxed.gpu w 1; "
        "ld.relaxed.gpu r0 y; if r0 == 1 { ld.weak r1 u }"
    ),
    "a fence that acquires late is behind the release": (
        "ld.relaxed.gpu r0 y; st.release.gpu z 1; fence.acq_rel.gpu; st.relaxed.gpu v 1; "
        "if r0 == 2 { st.relaxed.gpu w 1 } | st.weak x 1; st.release.gpu y 1 | "
        "until ld.relaxed.gpu r1 v == 1; atom.relaxed.gpu.add r2 y 1 | "
        "until ld.acquire.gpu r1 z == 1; ld.relaxed.gpu r3 w; if r3 == 1 { ld.weak r4 x }"
    ),
    "an acquire and a release are no fences": (
        "st.weak u 1; fence.acq_rel.gpu; ld.relaxed.gpu r0 x; if r0 == 0 { st.relaxed.gpu y 1 } | "
        "st.relaxed.gpu x 1; fence.sc.gpu; ld.relaxed.gpu r0 y; if r0 == 1 { ld.weak r1 u }"
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", FORCED)
def test_a_fence_that_came_first_has_passed_on_what_it_knew(name: str) -> None:
    found = spread(FORCED[name])
    verdict = judge(found)
    assert verdict.outcomes is not None
    assert not verdict.racy
    (seen,) = observe([found], 16, walks=400)
    assert (seen.race, seen.error) == (None, None)
    assert seen.outcomes <= verdict.outcomes


@pytest.mark.parametrize("name", UNFORCED)
def test_fences_that_may_come_in_either_order_order_nothing(name: str) -> None:
    found = spread(UNFORCED[name])
    assert judge(found).racy
    (seen,) = observe([found], 16, walks=6000)
    assert seen.race is not None


#: Reads that happen late though a fence that they pass is in order with others, or though they acquire something.
LATE = {
    "an atomic passes a fence in order": (
        "atom.relaxed.gpu.add r0 x 1; fence.sc.gpu; st.relaxed.gpu y 1 | "
        "fence.sc.gpu; ld.relaxed.gpu r0 y; st.relaxed.gpu x r0"
    ),
    "an acquire of shared memory": (
        "0.0.0: ld.acquire.cta r0 a; st.relaxed.gpu y 1 | 0.1.0: ld.relaxed.gpu r0 y; st.relaxed.cta a r0"
    ),
    "a fence behind a read of shared memory": (
        "0.0.0: ld.relaxed.cta r0 a; fence.acq_rel.cta; st.relaxed.gpu y 1 | "
        "0.1.0: ld.relaxed.gpu r0 y; st.relaxed.cta a r0"
    ),
    "an atomic of shared memory acquires": (
        "0.0.0: atom.acquire.cta.add r0 a 1; st.relaxed.cta b 1 | 0.1.0: ld.relaxed.cta r0 b; st.relaxed.cta a r0"
    ),
    "an atomic reads what another one released": (
        "atom.acquire.gpu.add r0 x 2; st.relaxed.gpu y 1 | ld.relaxed.gpu r0 y; st.relaxed.gpu z r0 | "
        "ld.relaxed.gpu r0 z; atom.release.gpu.exch r1 x 1"
    ),
    "a write between the read and the fence that acquires": (
        "ld.relaxed.gpu r0 y; st.relaxed.gpu x 1; fence.acq_rel.gpu; st.relaxed.gpu v 1 | "
        "st.relaxed.gpu x 2; st.release.gpu y 1 | until ld.relaxed.gpu r1 v == 1; atom.relaxed.gpu.add r2 y 1"
    ),
    "a read past a branch, behind whose other end it is used": (
        "ld.relaxed.gpu r0 y; ld.relaxed.gpu r1 w; if r1 == 1 { st.relaxed.gpu v 1 } | st.relaxed.gpu w 1 | "
        "ld.relaxed.gpu r0 v; if r0 == 1 { st.relaxed.gpu y 3 }"
    ),
    "an acquire acquires something": (
        "ld.acquire.gpu r0 x; st.relaxed.gpu y 1 | ld.relaxed.gpu r0 y; st.relaxed.gpu z r0 | "
        "ld.relaxed.gpu r0 z; st.release.gpu x 1"
    ),
    "a fence acquires something": (
        "ld.relaxed.gpu r0 x; fence.acq_rel.gpu; st.relaxed.gpu y 1 | ld.relaxed.gpu r0 y; st.relaxed.gpu z r0 | "
        "ld.relaxed.gpu r0 z; st.release.gpu x 1"
    ),
    "an acquire acquires something, and a release is behind it": (
        "ld.acquire.gpu r0 x; st.release.gpu y 1 | ld.relaxed.gpu r0 y; st.relaxed.gpu z r0 | "
        "ld.relaxed.gpu r0 z; st.release.gpu x 1"
    ),
    "an atomic acquires and releases": (
        "atom.acq_rel.gpu.add r0 x 1; st.relaxed.gpu y 1 | ld.relaxed.gpu r0 y; st.relaxed.gpu z r0 | "
        "ld.relaxed.gpu r0 z; st.release.gpu x 1"
    ),
    "something to acquire is there, and something else": (
        "until ld.relaxed.gpu r1 z == 1; ld.acquire.gpu r0 x; st.relaxed.gpu y 1 | "
        "ld.relaxed.gpu r0 y; st.relaxed.gpu x r0 | "
        "st.release.gpu x 2; st.relaxed.gpu z 1"
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", LATE)
def test_a_read_that_comes_late_shows_every_outcome(name: str) -> None:
    found = spread(LATE[name])
    verdict = judge(found)
    report = compare([(found, verdict)], schedules=4, walks=600)
    assert report.passed, report.document()["worst"]
    assert verdict.outcomes is not None
    assert report.seen == len(verdict.outcomes)


#: What a late read has learned orders what its thread, and whoever learns of it, does then. All are sound.
LEARNED = {
    "by its own thread": (
        "ld.acquire.gpu r0 x; st.relaxed.gpu y 1; if r0 == 1 { ld.weak r1 u } | st.weak u 1; st.release.gpu x 1"
    ),
    "by a fence of its own thread": (
        "ld.relaxed.gpu r0 x; fence.acq_rel.gpu; st.relaxed.gpu y 1; if r0 == 1 { ld.weak r1 u } | "
        "st.weak u 1; st.release.gpu x 1"
    ),
    "by who acquires a release behind it": (
        "ld.acquire.gpu r0 x; st.release.gpu y 1; st.relaxed.gpu z r0 | st.weak u 1; st.release.gpu x 1 | "
        "until ld.acquire.gpu r1 y == 1; ld.relaxed.gpu r0 z; if r0 == 1 { ld.weak r2 u }"
    ),
    "by one that comes late of one that comes late": (
        "st.weak u 1; st.release.gpu x 1 | "
        "ld.relaxed.gpu r0 x; fence.acq_rel.gpu; st.relaxed.gpu z 1; st.relaxed.gpu y r0 | "
        "ld.relaxed.gpu r1 y; fence.acq_rel.gpu; st.relaxed.gpu w 1; if r1 == 1 { ld.weak r2 u }"
    ),
    "where there is nothing else to read, in the second block": (
        "1.1.0: st.weak u 1; st.release.cta a 1 | "
        "1.0.0: until ld.relaxed.cta r1 a == 1; ld.acquire.cta r0 a; st.relaxed.cta b 1; ld.weak r2 u; "
        "st.relaxed.cta c 1 | "
        "0.0.0: st.relaxed.gpu y 1"
    ),
    "by who follows an atomic that acquires and releases": (
        "atom.acq_rel.gpu.add r0 x 1; st.relaxed.gpu z 1 | st.weak u 1; st.release.gpu x 1 | "
        "ld.acquire.gpu r0 x; if r0 == 2 { ld.weak r1 u }"
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", LEARNED)
def test_what_comes_late_is_learned_all_the_same(name: str) -> None:
    found = spread(LEARNED[name])
    verdict = judge(found)
    assert verdict.outcomes is not None
    assert not verdict.racy
    (seen,) = observe([found], 16, walks=800)
    assert (seen.race, seen.error) == (None, None)
    assert seen.outcomes <= verdict.outcomes


#: What a late read may not see, or its thread not have done.
FORBIDDEN = {
    "a release behind what the thread has done": (
        "ld.acquire.gpu r0 x; st.relaxed.gpu y 1 | ld.relaxed.gpu r0 y; st.release.gpu x r0"
    ),
    "a release that a read passes, of what the thread has done": (
        "ld.acquire.gpu r0 x; st.relaxed.gpu y 1 | ld.relaxed.gpu r0 y; st.release.gpu x 1"
    ),
    "the same in a chain": (
        "ld.acquire.gpu r0 x; st.relaxed.gpu y 1 | ld.relaxed.gpu r0 y; st.release.gpu z 1 | "
        "ld.acquire.gpu r0 z; st.release.gpu x 1"
    ),
    "the same by fences": (
        "ld.relaxed.gpu r0 x; fence.acq_rel.gpu; st.relaxed.gpu y 1 | ld.relaxed.gpu r0 y; st.release.gpu x r0"
    ),
    "the same by atomics": (
        "atom.acquire.gpu.add r0 x 2; st.relaxed.gpu y 1 | ld.relaxed.gpu r0 y; atom.release.gpu.exch r1 x 1"
    ),
    "the same by atomics and fences": (
        "atom.acquire.gpu.add r0 x 2; st.relaxed.gpu y 1 | "
        "atom.relaxed.gpu.add r0 y 2; fence.acq_rel.gpu; atom.relaxed.gpu.add r1 x 1"
    ),
    "the same in shared memory": (
        "0.0.0: ld.acquire.cta r0 a; st.relaxed.cta b 1 | 0.1.0: ld.relaxed.cta r0 b; st.release.cta a 1"
    ),
    "an earlier write behind it": (
        "ld.acquire.gpu r0 x; st.relaxed.gpu y 1 | st.relaxed.gpu y 2; st.release.gpu x 1"
    ),
    "a read before that misses a write": (
        "ld.acquire.gpu r0 x; ld.relaxed.gpu r1 y; st.relaxed.gpu z 1 | st.relaxed.gpu y 1; st.release.gpu x 1"
    ),
    "a read afterwards that misses a write": (
        "ld.relaxed.gpu r0 x; fence.acq_rel.gpu; st.relaxed.gpu z 1; ld.relaxed.gpu r1 y | "
        "st.relaxed.gpu y 1; st.release.gpu x 1"
    ),
    "more writes than a history keeps, read by an atomic": (
        "atom.acquire.gpu.exch r0 y 10; st.relaxed.gpu x 1 | st.relaxed.gpu x 2; "
        + "; ".join(f"st.release.gpu y {value}" for value in range(1, 10))
    ),
    "more writes than a history keeps": (
        "ld.acquire.gpu r0 y; st.relaxed.gpu x 1 | st.relaxed.gpu x 2; "
        + "; ".join(f"st.release.gpu y {value}" for value in range(1, 10))
    ),
    "a read of another thread that misses it": (
        "ld.relaxed.gpu r0 x; fence.acq_rel.gpu; st.relaxed.gpu w 1 | st.relaxed.gpu y 1; st.release.gpu x 1 | "
        "ld.acquire.gpu r0 w; ld.relaxed.gpu r1 y"
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", FORBIDDEN)
def test_no_late_read_contradicts_what_was_done(name: str) -> None:
    found = spread(FORBIDDEN[name])
    verdict = judge(found)
    assert verdict.outcomes is not None
    (seen,) = observe([found], 16, walks=1200)
    assert (seen.race, seen.error) == (None, None)
    assert seen.outcomes == verdict.outcomes


#: The same with accesses of some of the bytes alone: T0 stores 1 where T1 has stored 2 before its release.
MIXED = {
    "a vector over a scalar": (
        "ld.acquire.gpu.global.u32 %r0, [%g+16]; st.relaxed.gpu.global.u32 [%g], %one;",
        "st.relaxed.gpu.global.v2.u32 [%g], {%two, %two}; st.release.gpu.global.u32 [%g+16], %one;",
    ),
    "a scalar over a vector": (
        "ld.acquire.gpu.global.u32 %r0, [%g+16]; st.relaxed.gpu.global.v2.u32 [%g], {%one, %one};",
        "st.relaxed.gpu.global.u32 [%g], %two; st.release.gpu.global.u32 [%g+16], %one;",
    ),
    "a scalar over the second element of a vector": (
        "ld.acquire.gpu.global.u32 %r0, [%g+16]; st.relaxed.gpu.global.v2.u32 [%g-8], {%one, %one};",
        "st.relaxed.gpu.global.u32 [%g-4], %two; st.release.gpu.global.u32 [%g+16], %one;",
    ),
    "a late vector": (
        "ld.acquire.gpu.global.v2.u32 {%r1, %r0}, [%g+16]; st.relaxed.gpu.global.u32 [%g], %one;",
        "st.relaxed.gpu.global.u32 [%g], %two; st.release.gpu.global.u32 [%g+20], %one;",
    ),
    "a late vector before a fence": (
        "ld.relaxed.gpu.global.v4.u32 {%r1, %r0, %r2, %r3}, [%g+16]; fence.acq_rel.gpu; "
        "st.relaxed.gpu.global.u32 [%g], %one;",
        "st.relaxed.gpu.global.u32 [%g], %two; fence.acq_rel.gpu; st.relaxed.gpu.global.u32 [%g+20], %one;",
    ),
}

KERNEL = """
.version 8.3
.target sm_90
.address_size 64
.visible .entry mixed(.param .u64 memory, .param .u64 results)
{{
    .reg .pred %p;
    .reg .b32 %cta, %one, %two, %r0, %r1, %r2, %r3;
    .reg .b64 %g, %o;
    ld.param.u64 %g, [memory];
    ld.param.u64 %o, [results];
    add.u64 %g, %g, 16;
    mov.u32 %cta, %ctaid.x;
    mov.u32 %one, 1;
    mov.u32 %two, 2;
    setp.ne.u32 %p, %cta, 0;
    @%p bra OTHER;
    {first}
    st.global.u32 [%o], %r0;
    ret;
OTHER:
    {second}
    ret;
}}
"""


@pytest.mark.parametrize("name", MIXED)
def test_no_late_read_contradicts_accesses_of_other_widths(name: str) -> None:
    first, second = MIXED[name]
    module = ptx.Module.parse(KERNEL.format(first=first, second=second), "mixed")
    seen = set[tuple[int, int]]()
    schedules = [*map(ptx.Schedule, range(200)), *(ptx.Schedule(walk=way) for way in ptx.every_walk(200))]
    for schedule in schedules:
        memory, results = np.zeros(64, np.uint8), np.zeros(1, np.uint32)
        arguments = [ptx.Buffer(memory, "memory"), ptx.Buffer(results, "results")]
        with contextlib.suppress(ptx.Redundant):
            ptx.launch(module, "mixed", (2, 1, 1), (1, 1, 1), arguments, schedule=schedule)
            seen.add((int(results[0]), int(memory.view(np.uint32)[3 if "[%g-4]" in second else 4])))
    # Whoever has read the release stores after what came before it.
    assert (1, 2) not in seen
    assert {(0, 1), (0, 2), (1, 1)} <= seen


def test_no_thread_of_a_cluster_ends_before_its_late_access() -> None:
    """In clusters Python runs the last block of a thread."""
    found = program(
        "0.0.0: ld.relaxed.sys r0 y; fence.sc.gpu; st.relaxed.gpu x 2; atom.relaxed.gpu.add r1 y 2 | "
        "1.0.0: atom.relaxed.cluster.exch r0 y 2; ld.relaxed.cluster r1 z; if r1 == 2 { st.relaxed.cluster z 4 }",
        cluster=2,
    )
    verdict = judge(found)
    assert verdict.outcomes is not None
    (seen,) = observe([found], 64, walks=400)
    assert (seen.race, seen.error) == (None, None)
    assert seen.outcomes <= verdict.outcomes
