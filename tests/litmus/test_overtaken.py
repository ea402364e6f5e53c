"""Reads and atomics that happen after a store of their own thread to the same bytes: they take what lies under it."""

from __future__ import annotations

import numpy as np
import pytest
from support.litmus.notation import program, spread

from refmoe import ptx
from refmoe.litmus.afterwards import overtaken, written_again
from refmoe.litmus.axioms import judge
from refmoe.litmus.run import compare, observe

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
    "a release that nobody acquires, and an acquire of another location": (
        "atom.relaxed.gpu.add r0 x 7; st.release.gpu y 1 | "
        "until ld.relaxed.gpu r0 y == 1; ld.acquire.gpu r2 z; atom.relaxed.gpu.add r1 x 5"
    ),
    "a release of another location than what is acquired": (
        "atom.relaxed.gpu.add r0 x 7; st.release.gpu z 1; st.relaxed.gpu y 1 | "
        "until ld.acquire.gpu r0 y == 1; atom.relaxed.gpu.add r1 x 5"
    ),
    "a fence that acquires what was read before it, behind a condition": (
        "ld.relaxed.gpu r0 x; ld.relaxed.gpu r1 y; if r1 == 1 { fence.acq_rel.gpu; st.relaxed.gpu z 1 } | "
        "st.release.gpu y 1 | ld.relaxed.gpu r0 z; st.relaxed.gpu x r0"
    ),
    "a fence that is in no order, and a late access that has passed one that is": (
        "ld.relaxed.gpu r0 x; fence.sc.gpu; st.relaxed.gpu y 1 | "
        "ld.relaxed.gpu r0 z; if r0 == 1 { fence.acq_rel.gpu; st.relaxed.gpu x 1 } | "
        "ld.relaxed.gpu r0 y; st.relaxed.gpu z r0"
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


@pytest.mark.parametrize("place", ["0.1.0", "1.0.0"])
def test_no_barrier_waits_for_what_another_thread_has_put_off(place: str) -> None:
    found = program(
        f"0.0.0: ld.relaxed.gpu r0 x; st.release.gpu y 1 | "
        f"{place}: ld.relaxed.gpu r0 y; arrive 0; wait 0 0; st.relaxed.gpu x r0",
        mbarriers=(1,),
    )
    verdict = judge(found)
    (seen,) = observe([found], 16, walks=2000, expected=[verdict.outcomes or frozenset()])
    assert (seen.race, seen.error) == (None, None)
    assert seen.outcomes == verdict.outcomes


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
    "what an atomic did not see whose release was acquired": (
        "atom.relaxed.gpu.add r0 x 7; st.release.gpu y 1 | ld.acquire.gpu r0 y; atom.relaxed.gpu.add r1 x 5"
    ),
    "what an atomic did not see whose release was acquired after a read": (
        "atom.relaxed.gpu.add r0 x 7; st.release.gpu y 1 | "
        "ld.relaxed.gpu r2 y; ld.acquire.gpu r0 y; atom.relaxed.gpu.add r1 x 5 | st.relaxed.gpu y 2"
    ),
    "what an atomic acquires behind a load that was put off with it": (
        "ld.relaxed.gpu r0 y; atom.relaxed.gpu.add r1 y 8; fence.acq_rel.gpu; ld.relaxed.gpu r2 z; "
        "st.relaxed.gpu x 1 | st.relaxed.gpu z 1; st.relaxed.gpu y 1; atom.release.gpu.add r0 y 16"
    ),
    "what an atomic acquires later that a fence of another thread would pass on": (
        "atom.acq_rel.gpu.add r0 y 2; st.relaxed.gpu y 1 | "
        "ld.relaxed.gpu r1 y; fence.acq_rel.gpu; ld.relaxed.gpu r2 z | st.relaxed.gpu z 1; st.release.gpu y 5"
    ),
    "what a store has released since then": (
        "atom.release.gpu.add r0 y 2; st.weak u 1; st.release.gpu y 1; st.relaxed.gpu y 5 | "
        "ld.acquire.gpu r0 y; if r0 == 5 { ld.weak r1 u }"
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


#: What CTA 0 does, which stores 1 behind its read, and CTA 1, which reads some of the bytes or more.
OTHERS = {
    "a vector over a scalar": (
        "ld.relaxed.gpu.global.u32 %r0, [%g]; st.relaxed.gpu.global.u32 [%g], %one;",
        "ld.relaxed.gpu.global.v2.u32 {%r1, %r2}, [%g];",
    ),
    "a scalar over a vector": (
        "ld.relaxed.gpu.global.v2.u32 {%r0, %r3}, [%g]; st.relaxed.gpu.global.v2.u32 [%g], {%one, %one};",
        "ld.relaxed.gpu.global.u32 %r1, [%g];",
    ),
    "a vector over an atomic": (
        "atom.relaxed.gpu.global.add.u32 %r0, [%g], 8; st.relaxed.gpu.global.u32 [%g], %one;",
        "ld.relaxed.gpu.global.v2.u32 {%r1, %r2}, [%g];",
    ),
    "a vector that is put off, too": (
        "ld.relaxed.gpu.global.u32 %r0, [%g]; st.relaxed.gpu.global.u32 [%g], %one;",
        "ld.relaxed.gpu.global.v2.u32 {%r1, %r2}, [%g]; st.relaxed.gpu.global.u32 [%g+8], %one; "
        "st.global.u32 [%o+4], %r1;",
    ),
    "a vector over an acquire": (
        "ld.acquire.gpu.global.u32 %r0, [%g]; st.relaxed.gpu.global.u32 [%g], %one;",
        "ld.acquire.gpu.global.v2.u32 {%r1, %r2}, [%g];",
    ),
}

KERNEL = """
.version 8.3
.target sm_90
.address_size 64
.visible .entry others(.param .u64 memory, .param .u64 results)
{{
    .reg .pred %p;
    .reg .b32 %cta, %one, %r0, %r1, %r2, %r3;
    .reg .b64 %g, %o;
    ld.param.u64 %g, [memory];
    ld.param.u64 %o, [results];
    mov.u32 %cta, %ctaid.x;
    mov.u32 %one, 1;
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


@pytest.mark.parametrize("name", OTHERS)
def test_nobody_reads_what_it_stores_next_whoever_reads_other_bytes_with_it(name: str) -> None:
    first, second = OTHERS[name]
    module = ptx.Module.parse(KERNEL.format(first=first, second=second), "others")
    for number in range(120):
        memory, results = np.zeros(16, np.uint8), np.zeros(2, np.uint32)
        arguments = [ptx.Buffer(memory, "memory"), ptx.Buffer(results, "results")]
        ptx.launch(module, "others", (2, 1, 1), (1, 1, 1), arguments, schedule=ptx.Schedule(number))
        assert (int(results[0]), int(memory.view(np.uint32)[0])) == (0, 1), number


#: What CTA 0 does in the shared memory of CTA 1, whose bytes have no name in CTA 0, and CTA 1.
REMOTE = {
    "a read of more bytes": (
        "ld.relaxed.cluster.shared::cluster.v2.u32 {%r0, %r3}, [%there]; "
        "st.relaxed.cluster.shared::cluster.u32 [%there], %one; st.global.u32 [%o], %r0;",
        "",
    ),
    "a release": (
        "st.global.u32 [%g], %one; atom.release.cluster.shared::cluster.add.u32 %r0, [%there], 2; "
        "st.relaxed.cluster.shared::cluster.u32 [%there], %one; st.global.u32 [%o], %r0;",
        "ld.acquire.cluster.shared.u32 %r1, [%here]; setp.ne.u32 %p, %r1, 1; @%p bra END; ld.global.u32 %r2, [%g]; "
        "st.global.u32 [%o+4], %r2;",
    ),
}

CLUSTER = """
.version 8.3
.target sm_90
.address_size 64
.visible .entry remote(.param .u64 memory, .param .u64 results)
.reqnctapercluster 2
{{
    .reg .pred %first, %p;
    .reg .b32 %rank, %one, %zero, %here, %there, %r<4>;
    .reg .b64 %g, %o;
    .shared .align 16 .b32 words[4];
    ld.param.u64 %g, [memory];
    ld.param.u64 %o, [results];
    mov.u32 %rank, %cluster_ctarank;
    mov.u32 %one, 1;
    mov.u32 %zero, 0;
    mov.u32 %here, words;
    mapa.shared::cluster.u32 %there, %here, 1;
    setp.eq.u32 %first, %rank, 0;
    @!%first st.shared.v4.u32 [%here], {{%zero, %zero, %zero, %zero}};
    barrier.cluster.arrive.release.aligned;
    barrier.cluster.wait.acquire.aligned;
    @!%first bra OTHER;
    {first}
    bra END;
OTHER:
    {second}
END:
    barrier.cluster.arrive.release.aligned;
    barrier.cluster.wait.acquire.aligned;
    ret;
}}
"""


@pytest.mark.parametrize("name", REMOTE)
def test_nothing_is_overtaken_in_the_shared_memory_of_another_block(name: str) -> None:
    first, second = REMOTE[name]
    module = ptx.Module.parse(CLUSTER.format(first=first, second=second), "remote")
    seen = set[tuple[int, int]]()
    for number in range(80):
        memory, results = np.zeros(16, np.uint8), np.zeros(2, np.uint32)
        arguments = [ptx.Buffer(memory, "memory"), ptx.Buffer(results, "results")]
        ptx.launch(module, "remote", (2, 1, 1), (1, 1, 1), arguments, schedule=ptx.Schedule(number))
        seen.add((int(results[0]), int(results[1])))
    assert {read for read, _ in seen} == {0}
    assert {told for _, told in seen} == ({0, 1} if second else {0})


@pytest.mark.parametrize("fence", ["acq_rel", "sc"])
@pytest.mark.parametrize("access", ["ld.relaxed", "atom.relaxed"])
def test_what_is_put_off_of_bytes_without_a_name_passes_no_fence(access: str, fence: str) -> None:
    """They may be any bytes, so that nobody can tell what the fence would acquire."""
    operands = "[%there], 2" if access == "atom.relaxed" else "[%there]"
    operation = ".add" if access == "atom.relaxed" else ""
    first = (
        f"{access}.cluster.shared::cluster{operation}.u32 %r0, {operands}; fence.{fence}.cluster; "
        "st.relaxed.gpu.global.u32 [%g], %one; st.global.u32 [%o], %r0;"
    )
    module = ptx.Module.parse(CLUSTER.format(first=first, second="st.relaxed.cluster.shared.u32 [%here], %one;"), "r")
    seen = set[int]()
    for number in range(40):
        memory, results = np.zeros(16, np.uint8), np.zeros(2, np.uint32)
        arguments = [ptx.Buffer(memory, "memory"), ptx.Buffer(results, "results")]
        ptx.launch(module, "remote", (2, 1, 1), (1, 1, 1), arguments, schedule=ptx.Schedule(number))
        seen.add(int(results[0]))
    assert seen == {0, 1}


CONTENDED = """
.version 8.3
.target sm_90
.address_size 64
.visible .entry contended(.param .u64 memory)
{
    .reg .pred %p;
    .reg .b32 %t, %c, %n, %i, %round, %r<4>;
    .reg .b64 %g, %m;
    ld.param.u64 %g, [memory];
    mov.u32 %t, %tid.x;
    mov.u32 %c, %ctaid.x;
    mov.u32 %n, %ntid.x;
    mad.lo.u32 %i, %c, %n, %t;
    and.b32 %r0, %i, 15;
    mul.wide.u32 %m, %r0, 4;
    add.u64 %m, %m, %g;
    mov.u32 %round, 0;
AGAIN:
    atom.relaxed.gpu.global.exch.b32 %r0, [%m], %i;
    st.relaxed.gpu.global.u32 [%m], %i;
    ld.acquire.gpu.global.u32 %r1, [%m];
    ld.acquire.gpu.global.u32 %r2, [%m];
    atom.acq_rel.gpu.global.add.u32 %r3, [%m+64], 1;
    st.release.gpu.global.u32 [%m+64], %i;
    add.u32 %round, %round, 1;
    setp.lt.u32 %p, %round, 3;
    @%p bra AGAIN;
    ret;
}
"""


@pytest.mark.parametrize("number", [2, 9])
def test_a_write_that_has_just_come_is_remembered_among_many(number: int) -> None:
    """While somebody may read late, histories keep more writes than else."""
    module = ptx.Module.parse(CONTENDED, "contended")
    memory = np.zeros(32, np.uint32)
    schedule = ptx.Schedule(number)
    ptx.launch(module, "contended", (2, 1, 1), (64, 1, 1), [ptx.Buffer(memory, "memory")], schedule=schedule)
    assert set(memory[:16].tolist()) <= set(range(128))
