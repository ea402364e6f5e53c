"""What PTX allows and the default order never shows happens under some schedule, and what it forbids under none."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest
from support.ptx_kernel import text
from support.ptx_ways import Way, ways
from support.schedules.bodies import BRANCHES, POLL
from support.selection.thinned import thinned

from refmoe import ptx
from refmoe.ptx.engine.code import PLAIN

MANY = range(40)
NO_RACES = ptx.Checks(races=False)
UNCHECKED = ptx.Checks(races=False, uninitialised=False)


def outcomes(
    body: str,
    size: int,
    *,
    grid: int = 1,
    block: int = 32,
    source: Sequence[int] = (),
    n: int = 0,
    checks: ptx.Checks = NO_RACES,
    schedules: Sequence[int] = MANY,
    **options: Any,
) -> dict[int, tuple[int, ...]]:
    """What lies in the output under each schedule."""
    scopes = {name: options.pop(name) for name in ("declarations", "directives", "module_scope") if name in options}
    module = ptx.Module.parse(text(body, **scopes), name="test.ptx")
    found = {}
    for schedule in schedules:
        out = np.zeros(size, np.uint32)
        args = [out, np.array(source, np.uint32) if len(source) else None, n]
        ptx.launch(
            module, "k", (grid, 1, 1), (block, 1, 1), args, checks=checks, step_budget=20000, schedule=schedule,
            **options,
        )  # fmt: skip
        found[schedule] = tuple(out.tolist())
    return found


def seen(*arguments: Any, **options: Any) -> set[tuple[int, ...]]:
    return set(outcomes(*arguments, **options).values())


# Lanes and warps

SHARED = ".shared .align 16 .b8 cells[512];"


def test_half_a_warp_at_a_barrier_while_the_other_half_exits() -> None:
    # The barrier waits for lanes that have not exited, so it sees what the others wrote; who writes first is open.
    body = """
        setp.lt.u32 %p1, %r1, 16;
        @%p1 bra MEET;
        st.volatile.global.u32 [%d0], 2;
        st.volatile.global.u32 [%d0+4], 2;
        exit;
    MEET:
        st.volatile.global.u32 [%d0], 1;
        bar.sync 0;
        ld.volatile.global.u32 %r5, [%d0+4];
        st.volatile.global.u32 [%d0+8], %r5;
        ret;
    """
    found = outcomes(body, 3)
    assert found[0] == (1, 2, 2)
    assert set(found.values()) == {(1, 2, 2), (2, 2, 2)}


def test_a_barrier_in_a_loop_with_uneven_trips() -> None:
    # Warp w goes round w + 1 times and exits: in trip t any warp from t on may be the last to write.
    body = """
        shr.u32 %r3, %r1, 5;
        mov.u32 %r4, 0;
    L:
        bar.sync 0;
        mul.wide.u32 %d3, %r4, 4; add.s64 %d3, %d3, %d0;
        st.volatile.global.u32 [%d3], %r3;
        add.u32 %r4, %r4, 1;
        setp.le.u32 %p1, %r4, %r3;
        @%p1 bra L;
        ret;
    """
    found = outcomes(body, 4, block=128)
    assert found[0] == (3, 3, 3, 3)
    for trip in range(4):
        assert {outcome[trip] for outcome in found.values()} == set(range(trip, 4))


def test_store_buffering_has_its_three_interleavings() -> None:
    # x = 1; read y | y = 1; read x: both may see the other's store, or one of them; by interleaving never neither.
    body = """
        setp.eq.u32 %p1, %r1, 0;
        setp.eq.u32 %p2, %r1, 32;
        @%p1 bra ONE; @%p2 bra OTHER; exit;
    ONE: st.volatile.global.u32 [%d1], 1; ld.volatile.global.u32 %r5, [%d1+4]; st.global.u32 [%d0], %r5; ret;
    OTHER: st.volatile.global.u32 [%d1+4], 1; ld.volatile.global.u32 %r5, [%d1]; st.global.u32 [%d0+4], %r5; ret;
    """
    found = outcomes(body, 2, block=64, source=[0, 0])
    assert set(found.values()) == {(1, 1), (0, 1), (1, 0)}


@pytest.mark.parametrize("producer", thinned([0, 5, 16, 31, 32, 63], 2))
def test_nobody_starves(producer: int) -> None:
    # Everybody polls for what one lane of theirs, or of another warp, writes inside of the same loop.
    assert seen(POLL.format(producer=producer), 64, block=64, source=[0]) == {(1,) * 64}


CONSUMES = """
    CONSUMER:
        ld.relaxed.gpu.global.u32 %r5, [%d1];
        setp.eq.u32 %p2, %r5, 0;
        @%p2 bra CONSUMER;
        st.global.u32 [%d2], %r5;
        ret;
"""
PRODUCES = """
    PRODUCER:
        mov.u32 %r3, 0;
    M:
        add.u32 %r3, %r3, 1; setp.lt.u32 %p3, %r3, 5000;
        @%p3 bra M;
        membar.gl;
        st.relaxed.gpu.global.u32 [%d1], 1;
        ret;
"""


@pytest.mark.parametrize("producer", thinned([0, 5, 31, 32, 63], 4))
@pytest.mark.parametrize("first", ["producer", "consumer"])
def test_nobody_starves_in_a_branch(first: str, producer: int) -> None:
    body = f"setp.eq.u32 %p1, %r1, {producer};"
    if first == "producer":
        body += f"@!%p1 bra CONSUMER; {PRODUCES} {CONSUMES}"
    else:
        body += f"@%p1 bra PRODUCER; {CONSUMES} {PRODUCES}"
    expected = tuple(int(thread != producer) for thread in range(64))
    assert seen(body, 64, block=64, source=[0]) == {expected}


# Split-K's blocks, as CUTLASS has them: thread 0 polls for its block's turn, in a loop in which the block meets.
TURN_OF_A_BLOCK = """
    mov.u32 %r3, %ctaid.x; {order} mov.u32 %r4, -1; setp.ne.u32 %p3, %r1, 0;
    mul.wide.u32 %d3, %r1, 4; add.u64 %d3, %d3, %d0;
AGAIN:
    setp.ne.u32 %p1, %r4, %r3;
    bar.red.and.pred %p2, 0, %p1;
    @!%p2 bra GO;
    @%p3 bra AGAIN;
    ld.acquire.gpu.global.u32 %r4, [%d1];
    bra AGAIN;
GO:
    bar.sync 0;
    ld.global.u32 %r5, [%d3]; mad.lo.u32 %r5, %r5, 10, %r3; add.u32 %r5, %r5, 1; st.global.u32 [%d3], %r5;
    bar.sync 0;
    add.u32 %r3, %r3, 1;
    @!%p3 st.release.gpu.global.u32 [%d1], %r3;
    ret;
"""


@pytest.mark.parametrize("order", ["", "sub.u32 %r3, 2, %r3;"], ids=["up", "down"])
def test_blocks_that_meet_while_they_poll_starve_nobody(order: str) -> None:
    body = TURN_OF_A_BLOCK.format(order=order)
    assert seen(body, 64, grid=3, block=64, source=[0], checks=ptx.Checks(), schedules=range(64)) == {(123,) * 64}


# A warp that has lost turns runs on beside two that meet while they poll for it.
BESIDE_A_MEETING = """
    setp.ge.u32 %p1, %r1, 64;
    @%p1 bra ALONE;
MEET:
    bar.sync 1, 64;
    ld.relaxed.gpu.global.u32 %r5, [%d1];
    setp.eq.u32 %p2, %r5, 0;
    bar.red.or.pred %p2, 1, 64, %p2;
    @%p2 bra MEET;
    st.global.u32 [%d2], %r5;
    ret;
ALONE:
    atom.global.inc.u32 %r6, [%d1+4], 1023;
    setp.lt.u32 %p3, %r6, 100;
    @%p3 bra ALONE;
    st.relaxed.gpu.global.u32 [%d1], 1;
    ret;
"""


def test_warps_that_meet_while_they_poll_starve_nobody_beside_them() -> None:
    assert seen(BESIDE_A_MEETING, 64, block=96, source=[0, 0], schedules=range(8)) == {(1,) * 64}


def test_blocks_that_meet_while_they_poll_for_nothing_are_a_deadlock() -> None:
    with pytest.raises(ptx.Deadlock, match="poll memory that nothing will change"):
        outcomes(TURN_OF_A_BLOCK.format(order="add.u32 %r3, %r3, 1;"), 64, grid=2, block=64, source=[0], schedules=[0])


# As Triton has it: what thread 0 polls goes to the others through shared memory, in a loop without an end of its own.
THROUGH_SHARED = """
    mov.u32 %r3, %ctaid.x; setp.ne.u32 %p3, %r1, 0;
AGAIN:
    bar.sync 0;
    @!%p3 ld.acquire.gpu.global.u32 %r4, [%d1];
    @!%p3 st.shared.u32 [cells], %r4;
    bar.sync 0;
    ld.shared.u32 %r5, [cells];
    setp.ne.u32 %p1, %r5, %r3; @%p1 bra AGAIN;
    st.global.u32 [%d2], %r5;
    bar.sync 0;
    add.u32 %r3, %r3, {step};
    @!%p3 st.release.gpu.global.u32 [%d1], %r3;
    ret;
"""


def test_blocks_that_poll_through_shared_memory() -> None:
    options = {"block": 64, "source": [0], "checks": ptx.Checks(), "declarations": SHARED}
    expected = (0,) * 64 + (1,) * 64 + (2,) * 64
    assert seen(THROUGH_SHARED.format(step=1), 192, grid=3, schedules=range(8), **options) == {expected}
    with pytest.raises(ptx.Deadlock, match="poll memory that nothing will change"):
        outcomes(THROUGH_SHARED.format(step=0), 192, grid=3, schedules=[0], **options)


def test_a_loop_that_counts_in_shared_memory_comes_to_its_end() -> None:
    # Nothing but shared memory changes between two laps at the same place.
    body = """
        st.shared.u32 [cells], 0;
    AGAIN:
        ld.volatile.global.u32 %r4, [%d1];
        ld.shared.u32 %r5, [cells]; add.u32 %r5, %r5, 1; st.shared.u32 [cells], %r5;
        setp.gt.u32 %p1, %r5, 3000; mov.u32 %r5, 0; @!%p1 bra AGAIN;
        st.global.u32 [%d2], 7;
    """
    assert seen(body, 1, block=1, source=[0], schedules=[0, 1], declarations=SHARED) == {(7,)}


def test_lanes_run_apart_where_nothing_keeps_them_together() -> None:
    # One instruction writes, the next reads the neighbour's: since sm_70 lanes need not run them together.
    body = """
        mov.u32 %r3, cells; shl.b32 %r4, %r1, 2; add.u32 %r5, %r3, %r4;
        xor.b32 %r6, %r1, 16; shl.b32 %r6, %r6, 2; add.u32 %r6, %r6, %r3;
        st.volatile.shared.u32 [%r5], 0;
        bar.warp.sync -1;
        add.u32 %r7, %r1, 1;
        st.volatile.shared.u32 [%r5], %r7;
        {sync}
        ld.volatile.shared.u32 %r8, [%r6];
        st.global.u32 [%d2], %r8;
        ret;
    """
    together = tuple((lane ^ 16) + 1 for lane in range(32))
    found = seen(body.format(sync=""), 32, declarations=SHARED)
    assert together in found
    # The first half sees nothing of the other one.
    assert tuple(0 if lane >= 16 else value for lane, value in enumerate(together)) in found
    assert seen(body.format(sync="bar.warp.sync -1;"), 32, declarations=SHARED) == {together}


def test_which_branch_comes_first() -> None:
    assert seen(BRANCHES, 1) == {(1,), (2,)}


def test_a_warp_runs_ahead_of_another() -> None:
    # Each warp takes six tickets: under some schedule one has them all before the other begins, under some they mix.
    body = "rem.u32 %r3, %r1, 32; setp.ne.u32 %p1, %r3, 0; @%p1 exit; mov.u32 %r9, 0;"
    body += "atom.global.add.u32 %r4, [%d1], 1; mad.lo.u32 %r9, %r9, 16, %r4;" * 6 + "st.global.u32 [%d2], %r9; ret;"
    found = {(outcome[0], outcome[32]) for outcome in seen(body, 64, block=64, source=[0])}
    early, late = 0x012345, 0x6789AB
    assert {(early, late), (late, early)} <= found
    assert len(found) > 4


# What is left to a single instruction


def test_atomics_and_strong_stores_of_one_instruction() -> None:
    ticket = "atom.global.add.u32 %r4, [%d1], 1; st.global.u32 [%d2], %r4; ret;"
    for found in seen(ticket, 32, source=[0]):
        assert sorted(found) == list(range(32))
    assert len(seen(ticket, 32, source=[0])) > 20
    exchange = "atom.global.exch.b32 %r4, [%d1], %r1; ld.volatile.global.u32 %r5, [%d1]; st.global.u32 [%d2], %r5; ret;"
    assert len({found[0] for found in seen(exchange, 32, source=[0])}) > 10
    assert len(seen("st.relaxed.gpu.global.u32 [%d0], %r1; ret;", 1)) > 10
    # Without a choice there is none.
    assert len(seen("atom.global.add.u32 %r4, [%d2], %r1; ret;", 32)) == 1


@ways
@pytest.mark.parametrize(("mask", "members"), [(-1, range(32)), (0xF0, range(4, 8)), (0x80000001, (0, 31)), (8, (3,))])
def test_one_mask_has_one_leader(way: Way, mask: int, members: Sequence[int]) -> None:
    body = f"""
        mov.b32 %r10, {mask & 0xFFFFFFFF:#x};
        shr.u32 %r3, %r10, %r1; and.b32 %r3, %r3, 1; setp.eq.u32 %p9, %r3, 0; @%p9 exit;
        elect.sync %r4|%p1, {mask};
        elect.sync %r5|%p2, {mask};
        selp.u32 %r6, 64, 0, %p1; or.b32 %r4, %r4, %r6;
        st.global.u32 [%d2], %r4; st.global.u32 [%d2+128], %r5;
        ret;
    """
    profile = None if way.view is PLAIN else way
    found = outcomes(body, 64, profile=profile)
    leaders = set()
    for outcome in found.values():
        values = [outcome[lane] for lane in members]
        (leader,) = {value & 31 for value in values}
        assert [value >> 6 for value in values] == [int(lane == leader) for lane in members]
        assert {outcome[32 + lane] for lane in members} == {leader}
        leaders.add(leader)
    assert found[0][members[0]] & 31 == members[0]
    assert leaders <= set(members)
    assert len(leaders) >= min(len(members), 2 if mask > 0 else 10)
    if profile is not None:
        assert found == outcomes(body, 64)


def test_the_lowest_lane_leads_where_a_launch_says_so() -> None:
    body = "elect.sync %r4|%p1, -1; @!%p1 exit; st.global.u32 [%d0], %r4; st.global.u32 [%d2+4], 7; ret;"
    found = outcomes(body, 40, lowest_leader=True)
    assert set(found.values()) == {(0, 7, *[0] * 38)}
    assert len(seen(body, 40)) > 10


# Barriers in memory

BAR = ".shared .align 16 .b8 cells[512]; .shared .align 8 .b64 bar;"
INIT = """
    setp.ne.u32 %p9, %r1, 0;
    @!%p9 mbarrier.init.shared.b64 [bar], {count};
    bar.sync 0;
"""


@pytest.mark.parametrize("wait", ["try_wait", "test_wait"])
def test_a_wait_fails_early_only_before_its_phase_is_complete(wait: str) -> None:
    body = (
        INIT.format(count=32)
        + f"""
        setp.lt.u32 %p1, %r1, 32;
        @%p1 mbarrier.arrive.shared.b64 _, [bar];
        @%p1 bra END;
        mbarrier.{wait}.parity.shared.b64 %p2, [bar], 0;
        selp.u32 %r4, 1, 0, %p2; st.global.u32 [%d0], %r4;
    END:
        bar.sync 0;
        mbarrier.{wait}.parity.shared.b64 %p2, [bar], 0;
        selp.u32 %r4, 1, 0, %p2; st.global.u32 [%d0+4], %r4;
        ret;
    """
    )
    # One thread waits: of several the last one that writes would decide.
    found = outcomes(body, 2, block=33, declarations=BAR)
    assert set(found.values()) == {(0, 1), (1, 1)}
    assert found[0] == (1, 1)


def test_a_barrier_that_never_completes_is_a_deadlock_under_every_schedule() -> None:
    body = (
        INIT.format(count=33)
        + """
        mbarrier.arrive.shared.b64 _, [bar];
    L:
        mbarrier.try_wait.parity.shared.b64 %p2, [bar], 0;
        @!%p2 bra L;
        ret;
    """
    )
    for schedule in range(12):
        with pytest.raises(ptx.Deadlock) as caught:
            outcomes(body, 1, declarations=BAR, schedules=[schedule])
        assert caught.value.schedule == schedule


# Copies

SOURCE = list(range(10, 10 + 128))


def test_each_copy_lands_at_once_or_late() -> None:
    # Two copies read two words that change after they are issued: all four outcomes are legal.
    body = """
        setp.ne.u32 %p1, %r1, 0; @%p1 exit;
        cp.async.ca.shared.global [cells], [%d1], 4;
        cp.async.ca.shared.global [cells+4], [%d1+4], 4;
        st.global.u32 [%d1], 1; st.global.u32 [%d1+4], 2;
        cp.async.wait_all;
        ld.shared.u32 %r4, [cells]; ld.shared.u32 %r5, [cells+4];
        st.global.u32 [%d0], %r4; st.global.u32 [%d0+4], %r5;
        ret;
    """
    found = outcomes(body, 2, source=SOURCE, declarations=SHARED)
    assert set(found.values()) == {(1, 2), (10, 2), (1, 11), (10, 11)}
    assert (found[0], found[1]) == ((1, 2), (10, 11))


def test_copies_of_a_group_land_in_any_order_those_of_an_earlier_group_first() -> None:
    body = """
        setp.ne.u32 %p1, %r1, 0; @%p1 exit;
        cp.async.ca.shared.global [cells], [%d1], 4;
        {commit}
        cp.async.ca.shared.global [cells], [%d1+4], 4;
        cp.async.wait_all;
        ld.shared.u32 %r4, [cells]; st.global.u32 [%d0], %r4;
        ret;
    """
    assert seen(body.format(commit=""), 1, source=SOURCE, declarations=SHARED) == {(10,), (11,)}
    late = "cp.async.commit_group;"
    found = outcomes(body.format(commit=late), 1, source=SOURCE, declarations=SHARED)
    assert found[0] == (11,)


def test_a_copy_that_landed_at_once_is_no_more_ordered_than_a_late_one() -> None:
    # Reading it without a wait stays a race, and overwriting it too.
    for touch in ("ld.shared.u32 %r4, [cells]; st.global.u32 [%d0], %r4;", "st.shared.u32 [cells], 5;"):
        body = f"""
            setp.ne.u32 %p1, %r1, 0; @%p1 exit;
            cp.async.ca.shared.global [cells], [%d1], 4;
            {touch}
            cp.async.wait_all;
            ret;
        """
        for schedule in range(8):
            with pytest.raises((ptx.RaceError, ptx.MemoryFault)) as caught:
                outcomes(body, 1, source=SOURCE, declarations=SHARED, checks=ptx.Checks(), schedules=[schedule])
            if schedule == 1:
                assert isinstance(caught.value, ptx.RaceError)


BULK_STORE = """
    mov.u32 %r3, cells; shl.b32 %r4, %r1, 2; add.u32 %r4, %r4, %r3;
    st.shared.u32 [%r4], 1; st.shared.u32 [%r4+128], 2;
    fence.proxy.async.shared::cta;
    bar.warp.sync -1;
    setp.ne.u32 %p1, %r1, 0; @%p1 exit;
    cp.async.bulk.global.shared::cta.bulk_group [%d0], [cells], 16;
    {commit}
    cp.async.bulk.global.shared::cta.bulk_group [%d0], [cells+128], 16;
    cp.async.bulk.commit_group;
    {touch}
    cp.async.bulk.wait_group 0;
    ret;
"""


def test_bulk_stores_of_a_group_are_carried_out_in_any_order() -> None:
    body = BULK_STORE.format(commit="", touch="")
    assert {found[0] for found in seen(body, 4, declarations=SHARED)} == {1, 2}


def test_a_bulk_store_reads_and_writes_early_or_late() -> None:
    # Its source changes after it was issued, and what it writes is read before anybody waits: it reads, then writes.
    touch = """
        st.shared.u32 [cells+128], 3;
        ld.volatile.global.u32 %r5, [%d0]; st.global.u32 [%d0+16], %r5;
    """
    body = BULK_STORE.format(commit="cp.async.bulk.commit_group;", touch=touch).replace(
        "[%d0], [cells], 16", "[%d0+32], [cells], 16"
    )
    found = {(outcome[0], outcome[4]) for outcome in seen(body, 12, declarations=SHARED)}
    assert found == {(3, 0), (2, 0), (2, 2)}


def test_a_bulk_store_writes_once() -> None:
    # What overwrites it stays, if it had written; else it writes over that.
    touch = "st.volatile.global.u32 [%d0], 9;"
    body = BULK_STORE.format(commit="cp.async.bulk.commit_group;", touch=touch)
    body = body.replace("[%d0], [cells], 16", "[%d0+32], [cells], 16")
    found = outcomes(body, 12, declarations=SHARED)
    assert {outcome[0] for outcome in found.values()} == {2, 9}
    assert found[1][0] == 9


BULK_LOAD = (
    INIT.format(count=1)
    + """
    @%p9 bra WAIT;
    mbarrier.arrive.expect_tx.shared.b64 _, [bar], 16;
    cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [cells], [%d1], 16, [bar];
    st.global.u32 [%d1], 1;
WAIT:
    mbarrier.try_wait.parity.shared.b64 %p2, [bar], 0;
    @!%p2 bra WAIT;
    ld.shared.u32 %r4, [cells];
    st.global.u32 [%d2], %r4;
    ret;
"""
)


def test_a_bulk_load_lands_at_once_or_late() -> None:
    found = outcomes(BULK_LOAD, 32, source=SOURCE, declarations=BAR)
    assert set(found.values()) == {(1,) * 32, (10,) * 32}
    assert (found[0], found[1]) == ((1,) * 32, (10,) * 32)


def test_bytes_that_come_before_they_are_expected_complete_no_phase() -> None:
    body = BULK_LOAD.replace("mbarrier.arrive.expect_tx.shared.b64 _, [bar], 16;", "").replace(
        "st.global.u32 [%d1], 1;", "mbarrier.arrive.expect_tx.shared.b64 _, [bar], 16;"
    )
    assert seen(body, 32, source=SOURCE, declarations=BAR) == {(10,) * 32}
    # One arrival more is missing: the bytes alone end nothing.
    with pytest.raises(ptx.Deadlock):
        outcomes(body.replace("[bar], 1;", "[bar], 2;", 1), 32, source=SOURCE, declarations=BAR, schedules=[1])


# Blocks


def test_blocks_start_in_another_order_and_run_together_or_not() -> None:
    body = """
        setp.ne.u32 %p1, %r1, 0; @%p1 exit;
        atom.global.add.u32 %r4, [%d1], 1;
        mul.wide.u32 %d3, %r4, 4; add.s64 %d3, %d3, %d0; st.global.u32 [%d3], %r60;
        ret;
    """
    found = seen(body, 3, grid=3, source=[0])
    assert len(found) == 6
    assert {tuple(sorted(outcome)) for outcome in found} == {(0, 1, 2)}


def test_the_blocks_of_a_cluster_stay_together() -> None:
    body = """
        setp.ne.u32 %p1, %r1, 0; @%p1 exit;
        mov.u32 %r3, %cluster_ctarank; mov.u32 %r4, %clusterid.x; mov.u32 %r5, %cluster_ctaid.x;
        shl.b32 %r4, %r4, 8; shl.b32 %r5, %r5, 16; or.b32 %r3, %r3, %r4; or.b32 %r3, %r3, %r5;
        mul.wide.u32 %d3, %r60, 4; add.s64 %d3, %d3, %d0; st.global.u32 [%d3], %r3;
        barrier.cluster.arrive; barrier.cluster.wait;
        ret;
    """
    expected = tuple((i % 4) | (i // 4) << 8 | (i % 4) << 16 for i in range(20))
    assert seen(body, 20, grid=20, cluster=(4, 1, 1), schedules=range(10)) == {expected}


def test_some_blocks_of_a_grid() -> None:
    body = "mul.wide.u32 %d3, %r60, 4; add.s64 %d3, %d3, %d0; st.global.u32 [%d3], 7; ret;"
    wanted = tuple(7 if block in (1, 4, 5, 8) else 0 for block in range(9))
    assert seen(body, 9, grid=9, blocks=[1, 8, 4, 5], schedules=range(10)) == {wanted}


def test_a_block_that_waits_for_one_that_starts_later() -> None:
    # Each block waits for the one before it. On a chip with room for all that ends under every schedule; where only
    # some are resident, nothing says that the first ones start first.
    body = """
        setp.ne.u32 %p1, %r1, 0; @%p1 exit;
        mul.wide.u32 %d3, %r60, 4; add.s64 %d3, %d3, %d1;
        setp.eq.u32 %p2, %r60, 0; @%p2 bra GO;
    L: ld.acquire.gpu.global.u32 %r4, [%d3+-4]; setp.eq.u32 %p3, %r4, 0; @%p3 bra L;
    GO: add.u32 %r5, %r60, 1; st.release.gpu.global.u32 [%d3], %r5; st.global.u32 [%d0], 1;
        ret;
    """
    body = body.replace("st.global.u32 [%d0], 1;", "")
    few = {"grid": 100, "source": [0] * 100, "multiprocessors": 1}
    assert seen(body, 1, grid=20, source=[0] * 20, schedules=range(12)) == {(0,)}
    outcomes(body, 1, **few, schedules=[0])
    with pytest.raises(ptx.CoResidencyError) as caught:
        outcomes(body, 1, **few, schedules=[1])
    assert caught.value.schedule == 1


# The same again


def test_a_schedule_is_reproducible_watched_or_not() -> None:
    body = """
        atom.global.add.u32 %r4, [%d1], 1;
        mul.wide.u32 %d3, %r4, 4; add.s64 %d3, %d3, %d0; st.global.u32 [%d3], %r2;
        bar.sync 0;
        atom.global.add.u32 %r4, [%d1], 1;
        add.s64 %d3, %d3, 1024; st.global.u32 [%d3], %r4;
        ret;
    """
    options: dict[str, Any] = {"grid": 2, "block": 64, "source": [0], "schedules": range(16)}
    one, other = outcomes(body, 1024, **options), outcomes(body, 1024, **options)
    assert one == other
    watched = outcomes(body, 1024, **options, watch=ptx.Watch("argument 0", 0, 4096))
    assert one == watched
    assert len(set(one.values())) > 12


def test_a_budget_ends_endless_loops_under_every_schedule() -> None:
    for schedule in range(8):
        with pytest.raises(ptx.StepBudgetExceeded) as caught:
            outcomes("L: st.global.u32 [%d2], %r1; bra L;", 32, schedules=[schedule])
        assert caught.value.schedule == schedule


LOCK = """
    mov.u32 %r5, 0;
AGAIN:
    atom.global.cas.b32 %r3, [%d1], 0, 1;
    setp.ne.u32 %p1, %r3, 0;
    @%p1 bra OVER;
    membar.gl;
    ld.global.u32 %r4, [%d0]; add.u32 %r4, %r4, 1; st.global.u32 [%d0], %r4;
    membar.gl;
    atom.global.exch.b32 %r6, [%d1], 0;
OVER:
    setp.ne.u32 %p1, %r3, 0;
    @%p1 bra AGAIN;
    ret;
"""


def test_lanes_that_lock_each_other_out_go_on_under_every_schedule() -> None:
    out, lock = np.zeros(1, np.uint32), np.zeros(1, np.uint32)
    module = ptx.Module.parse(text(LOCK))
    ptx.launch(module, "k", (1, 1, 1), (32, 1, 1), [out, lock, 0], step_budget=20_000, schedules=12)
    assert out.tolist() == [32]


# Each thread fences, one of each block counts, and the last block reads what all wrote.
COUNTED = """
    mul.wide.u32 %d4, %r2, 4; add.u64 %d4, %d4, %d1; add.u64 %d5, %d1, 1024;
    st.global.u32 [%d4], %r2;
    {fence}
    bar.sync 0;
    setp.ne.u32 %p1, %r1, 0;
    @%p1 bra JOIN;
    atom.global.add.u32 %r3, [%d5], 1;
    st.shared.u32 [last], %r3;
JOIN:
    bar.sync 0;
    ld.shared.u32 %r3, [last];
    setp.ne.u32 %p2, %r3, 2;
    @%p2 bra DONE;
    {fence}
    mul.wide.u32 %d6, %r1, 4; add.u64 %d7, %d6, %d1; add.u64 %d6, %d6, %d0;
    ld.global.u32 %r4, [%d7]; ld.global.u32 %r5, [%d7+256]; ld.global.u32 %r6, [%d7+512];
    add.u32 %r4, %r4, %r5; add.u32 %r4, %r4, %r6; st.global.u32 [%d6], %r4;
DONE:
    ret;
"""


@pytest.mark.parametrize("fence", ["fence.sc.gpu;", "fence.acq_rel.gpu;"])
def test_fences_of_all_threads_reach_the_last_block_if_they_have_one_order(fence: str) -> None:
    out, given = np.zeros(64, np.uint32), np.zeros(1024, np.uint32)
    module = ptx.Module.parse(text(COUNTED.format(fence=fence), declarations=".shared .u32 last;"))

    def launch() -> None:
        ptx.launch(module, "k", (3, 1, 1), (64, 1, 1), [out, given, 0], schedules=8)

    if "sc" in fence:
        launch()
        assert out.tolist() == [3 * lane + 192 for lane in range(64)]
        return
    with pytest.raises(ptx.RaceError, match="write-read"):
        launch()


TWO_FLAGS = """
    setp.ne.u32 %p1, %r1, 0; @%p1 bra END;
    setp.eq.u32 %p2, %r60, 1; @%p2 bra SECOND;
    setp.eq.u32 %p2, %r60, 2; @%p2 bra READER;
    st.global.u32 [%d1+64], 5;
    fence.sc.gpu;
    st.relaxed.gpu.global.u32 [%d1], 1;
    st.relaxed.gpu.global.u32 [%d1+32], 1;
    bra END;
SECOND:
    ld.relaxed.gpu.global.u32 %r5, [%d1+32]; setp.eq.u32 %p3, %r5, 0; @%p3 bra SECOND;
    st.relaxed.gpu.global.u32 [%d1], 2;
    bra END;
READER:
    ld.relaxed.gpu.global.u32 %r4, [%d1]; setp.ne.u32 %p3, %r4, 2; @%p3 bra READER;
    fence.sc.gpu;
    ld.global.u32 %r6, [%d1+64];
    st.global.u32 [%d0], %r6;
END: ret;
"""


@pytest.mark.parametrize("schedule", [0, 5])
def test_a_write_that_comes_before_another_one_passes_no_fence_of_that_on(schedule: int) -> None:
    # Nothing orders the two stores of the flag: 2 may come before 1, also if it is stored later. By the executor's own
    # schedule it comes behind, and so the reader of it behind the fence before 1. By schedule 5 it comes before.
    out, flags = np.zeros(64, np.uint32), np.zeros(64, np.uint32)
    module = ptx.Module.parse(text(TWO_FLAGS), name="test.ptx")
    arguments = module, "k", (3, 1, 1), (32, 1, 1), [out, flags, 0]
    if schedule == 0:
        ptx.launch(*arguments, schedule=0)
        assert out[0] == 5
        return
    with pytest.raises(ptx.RaceError, match="write-read"):
        ptx.launch(*arguments, checks=ptx.Checks(explain=False), schedule=schedule)
