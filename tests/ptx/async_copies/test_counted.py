"""Copies that a barrier counts: who comes after them by the barrier, and who by a wait of their lane."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from support.findings.accesses import verdict
from support.findings.transfers import random_transfers
from support.ptx_kernel import run

from refmoe import ptx
from refmoe.ptx.findings import unexplained

# Warp 0 copies, warp 1 waits for the barrier, warp 2 meets warp 0.
BODY = """
    mov.u32 %r3, cell; mov.u32 %r8, full; and.b32 %r9, %r1, 31; setp.eq.u32 %p0, %r1, 0; shr.u32 %r12, %r1, 5;
    setp.eq.u32 %p2, %r12, 1; setp.eq.u32 %p3, %r12, 2;
    @%p0 mbarrier.init.shared.b64 [%r8], 32;
    bar.sync 0;
    mad.lo.u32 %r4, %r9, 4, %r3;
    mov.u32 %r10, 0;
    @%p2 bra consumer;
    @%p3 bra third;
    {copies}
    bra end;
consumer:
    {delay}
    mbarrier.try_wait.parity.shared.b64 %p7, [%r8], 0;
    @!%p7 bra consumer;
    {reads}
    bra end;
third:
    {meets}
end:
    cp.async.wait_all;
    ret;
"""
FIRST = "cp.async.ca.shared.global [%r4], [%d1], 4;"
SECOND = "cp.async.ca.shared.global [%r4+128], [%d1], 4;"
COMMIT, COUNTED = "cp.async.commit_group;", "cp.async.mbarrier.arrive.noinc.shared.b64 [%r8];"
ARRIVE, ALL = "mbarrier.arrive.shared.b64 %d7, [%r8];", "cp.async.wait_all;"
READ_FIRST, READ_SECOND = "ld.shared.u32 %r5, [%r3+16];", "ld.shared.u32 %r6, [%r3+144];"
# So many turns that the others have come as far as they come.
TURNS = """
    {name}: ld.relaxed.gpu.global.u32 %r11, [%d1+64]; add.u32 %r10, %r10, 1; setp.lt.u32 %p8, %r10, 20; @%p8 bra {name};
"""
LATER, EARLIER = TURNS.format(name="later"), TURNS.format(name="earlier")
MEET = "bar.sync 1, 64;"


def launch(copies: str, reads: str = "", meets: str = "", delay: str = "") -> None:
    """Run it with three warps."""
    body = BODY.format(copies=copies, reads=reads, meets=meets, delay=delay)
    # A read of bytes that are under way is another error.
    checks = ptx.Checks(uninitialised=False)
    with unexplained():
        run(
            body, np.zeros(96, np.uint32), np.zeros(64, np.uint32), block=(96, 1, 1), checks=checks, target="sm_90a",
            declarations=".shared .align 16 .b8 cell[256]; .shared .align 8 .b64 full;",
        )  # fmt: skip


@pytest.mark.parametrize("delay", ["", LATER], ids=["who waits first", "who waits last"])
@pytest.mark.parametrize("wait", ["", ALL], ids=["at the end", "at once"])
def test_who_comes_after_the_barrier_comes_after_copies_that_their_lane_has_waited_for(wait: str, delay: str) -> None:
    # The wait is the lane's own: nobody else comes after it, but after the copies.
    launch(FIRST + COUNTED + wait, READ_FIRST, delay=delay)
    with pytest.raises(ptx.RaceError, match="write-read race on byte 16"):
        launch(FIRST + ARRIVE + wait, READ_FIRST, delay=delay)


@pytest.mark.parametrize("delay", ["", LATER], ids=["who waits first", "who waits last"])
@pytest.mark.parametrize("wait", [ALL, COMMIT + "cp.async.wait_group 0;"], ids=["all", "the group"])
def test_the_barrier_counts_copies_that_their_lane_has_waited_for_before(wait: str, delay: str) -> None:
    # "Makes the mbarrier object track all prior cp.async operations initiated by the executing thread".
    launch(FIRST + wait + COUNTED, READ_FIRST, delay=delay)
    launch(FIRST + wait + SECOND + COUNTED, READ_FIRST + READ_SECOND, delay=delay)
    # It tracks copies alone: what the lane stored before is not passed on.
    with pytest.raises(ptx.RaceError, match="write-read race on byte 144"):
        launch(FIRST + wait + "st.shared.u32 [%r4+128], 7;" + COUNTED, READ_SECOND, delay=delay)


@pytest.mark.parametrize(("copies", "read", "races"), [
    (FIRST + COUNTED + SECOND, READ_FIRST, False),
    (FIRST + COUNTED + SECOND, READ_SECOND, True),
    (FIRST + COUNTED + SECOND + EARLIER, READ_SECOND, True),
    (FIRST + COUNTED + SECOND + ALL, READ_SECOND, True),
    (FIRST + SECOND + COUNTED, READ_SECOND, False),
])  # fmt: skip
def test_the_barrier_counts_what_was_issued_before(copies: str, read: str, races: bool) -> None:
    delay = "" if EARLIER in copies else LATER
    if not races:
        launch(copies, read, delay=delay)
        return
    with pytest.raises(ptx.RaceError, match="write-read race on byte 144"):
        launch(copies, read, delay=delay)


SECOND_PHASE = "second: mbarrier.try_wait.parity.shared.b64 %p7, [%r8], 1; @!%p7 bra second;"


@pytest.mark.parametrize("delay", ["", LATER], ids=["who waits first", "who waits last"])
def test_arrivals_of_two_phases_may_be_announced_at_once(delay: str) -> None:
    lanes = FIRST + COUNTED + SECOND + COUNTED
    launch(lanes, READ_FIRST, delay=delay)
    launch(lanes, SECOND_PHASE + READ_FIRST + READ_SECOND, delay=delay)
    with pytest.raises(ptx.RaceError, match="write-read race on byte 144"):
        launch(lanes, READ_SECOND, delay=delay)


@pytest.mark.parametrize(("keep", "reads", "byte"), [
    (0, READ_FIRST + READ_SECOND, None),
    (1, READ_FIRST, None),
    (1, READ_SECOND, 144),
    (2, READ_FIRST, 16),
])  # fmt: skip
def test_a_wait_orders_the_groups_that_it_is_for(keep: int, reads: str, byte: int | None) -> None:
    # The barrier has brought both copies before warp 0 waits; warp 2 does not wait for the barrier.
    lanes = FIRST + COMMIT + SECOND + COMMIT + COUNTED + EARLIER + f"cp.async.wait_group {keep};" + MEET
    if byte is None:
        launch(lanes, meets=MEET + reads)
        return
    with pytest.raises(ptx.RaceError, match=f"write-read race on byte {byte}"):
        launch(lanes, meets=MEET + reads)


# Every thread copies four words ahead, and a barrier for which nobody waits counts each turn. `open`: groups left open
PIPELINE = """
    mov.u32 %r3, cell; mov.u32 %r8, full; setp.eq.u32 %p0, %r1, 0;
    @%p0 mbarrier.init.shared.b64 [%r8], 1024;
    bar.sync 0;
    mad.lo.u32 %r4, %r1, 4, %r3; xor.b32 %r5, %r1, 32; mad.lo.u32 %r5, %r5, 4, %r3;
    mov.u32 %r10, 0; mov.u32 %r11, 0;
    mad.wide.u32 %d3, %r1, 4, %d1; mad.wide.u32 %d4, %r1, 4, %d0;
more:
    and.b32 %r12, %r10, 7; mad.lo.u32 %r13, %r12, 4096, %r4;
    cp.async.ca.shared.global [%r13], [%d3], 4;
    cp.async.commit_group;
    cp.async.mbarrier.arrive.noinc.shared.b64 [%r8];
    add.s64 %d3, %d3, 4096; add.u32 %r10, %r10, 1;
    setp.lt.u32 %p1, %r10, 5;
    @%p1 bra more;
    cp.async.wait_group {open};
    bar.sync 0;
    sub.u32 %r12, %r10, 5; and.b32 %r12, %r12, 7; mad.lo.u32 %r13, %r12, 4096, %r5;
    ld.shared.u32 %r14, [%r13];
    add.u32 %r11, %r11, %r14;
    bar.sync 0;
    setp.lt.u32 %p1, %r10, 12;
    @%p1 bra more;
    st.global.u32 [%d4], %r11;
    cp.async.wait_all;
    ret;
"""


def pipeline(open_: int) -> Any:
    """Run it; what it leaves."""
    out, given = np.zeros(1024, np.uint32), np.arange(12 * 1024, dtype=np.uint32)
    with ptx.under_schedules(2):
        run(
            PIPELINE.format(open=open_), out, given, block=(1024, 1, 1), target="sm_90a",
            declarations=".shared .align 16 .b8 cell[32768]; .shared .align 8 .b64 full;",
        )  # fmt: skip
    assert np.array_equal(out, given.reshape(12, 1024)[:8, np.arange(1024) ^ 32].sum(axis=0, dtype=np.uint32))


def test_warps_that_issue_one_after_another_have_waited_for_their_groups() -> None:
    # Under schedule 1 the warps issue by themselves: 160 issues before the first of them is waited for.
    pipeline(4)
    with unexplained(), pytest.raises(ptx.MemoryFault, match="asynchronous copy that nobody has waited for"):
        pipeline(5)


@pytest.mark.parametrize("first", range(0, 160, 40))
def test_transfers_race_as_their_graph_says(first: int) -> None:
    wrong, found = [], set()
    for seed in range(first, first + 40):
        program, races = random_transfers(seed)
        said = verdict(program, "native")
        found.add((races, said))
        if (said != "clean") != races:
            wrong.append((seed, races, said))
    assert wrong == []
    assert {(True, "race"), (False, "clean")} <= found


# What cp.async has brought is copied out in bulk by another warp

COPIED_OUT = """
    mov.u32 %r3, cell; mov.u32 %r8, full; and.b32 %r9, %r1, 31; setp.eq.u32 %p0, %r1, 0; setp.eq.u32 %p1, %r1, 32;
    @%p0 mbarrier.init.shared.b64 [%r8], 32;
    bar.sync 0;
    setp.ge.u32 %p6, %r1, 32;
    @%p6 bra copies;
    mad.lo.u32 %r4, %r9, 4, %r3;
    cp.async.ca.shared.global [%r4], [%d1], 4;
    {arrive}
    bra end;
copies:
    mbarrier.try_wait.parity.shared.b64 %p7, [%r8], 0;
    @!%p7 bra copies;
    {fence}
    @%p1 cp.async.bulk.global.shared::cta.bulk_group [%d0], [%r3], 128;
    @%p1 cp.async.bulk.commit_group;
    @%p1 cp.async.bulk.wait_group 0;
end:
    cp.async.wait_all;
    ret;
"""


@pytest.mark.parametrize("arrive", [COUNTED, ALL + ARRIVE], ids=["counted", "waited for"])
def test_a_bulk_copy_of_what_copies_brought_needs_a_proxy_fence(arrive: str) -> None:
    out, given = np.zeros(64, np.uint32), np.arange(64, dtype=np.uint32) + 5
    options = {
        "block": (64, 1, 1), "target": "sm_90a",
        "declarations": ".shared .align 16 .b8 cell[128]; .shared .align 8 .b64 full;",
    }  # fmt: skip
    run(COPIED_OUT.format(arrive=arrive, fence="fence.proxy.async;"), out, given, **options)
    assert out[:32].tolist() == [5] * 32
    with unexplained(), pytest.raises(ptx.RaceError, match=r"^proxy race on byte 0 of shared memory"):
        run(COPIED_OUT.format(arrive=arrive, fence=""), out, given, **options)
