"""Barriers in shared memory: phases, counts, transactions, waits that park, and their misuse."""

from __future__ import annotations

import numpy as np
import pytest
from support.ptx_kernel import line_of, run

from refmoe import ptx
from refmoe.ptx.state.numbers import among

BAR = ".shared .align 8 .b64 bar[4]; .shared .align 16 .b8 cell[2048];"

# Thread 0 makes a barrier for `count` arrivals, then all threads meet.
INIT = """
    setp.ne.u32 %p9, %r1, 0;
    @!%p9 mbarrier.init.shared.b64 [bar], {count};
    bar.sync 0;
"""
STORE = "st.global.u32 [%d2], %r20; ret;"


def started(body: str, count: int = 32, threads: int = 32, **more: object) -> np.ndarray:
    """%r20 of each thread after a body that begins with a barrier for `count` arrivals."""
    out = np.zeros(threads, np.uint32)
    source = np.arange(1024, dtype=np.uint32)
    run(INIT.format(count=count) + body + STORE, out, source, block=(threads, 1, 1), declarations=BAR, **more)  # type: ignore[arg-type]
    return out


SEEN = "selp.u32 {register}, 1, 0, %p1;"


def parity(register: str, value: int, verb: str = "test_wait") -> str:
    return f"mbarrier.{verb}.parity.shared.b64 %p1, [bar], {value}; selp.u32 {register}, 1, 0, %p1;"


# Phases


@pytest.mark.parametrize(
    "arrive",
    [
        "mbarrier.arrive.shared.b64 %d5, [bar];",
        "mbarrier.arrive.shared.b64 _, [bar];",
        "mbarrier.arrive.shared::cta.b64 %d5, [bar], 1;",
        "mbarrier.arrive.release.cta.shared::cta.b64 %d5, [bar];",
        "mbarrier.arrive.relaxed.cta.shared::cta.b64 %d5, [bar];",
        "mbarrier.arrive.release.cluster.shared::cluster.b64 _, [bar];",
        "mov.u64 %d6, bar; cvta.shared.u64 %d6, %d6; mbarrier.arrive.b64 %d5, [%d6];",
    ],
)
def test_a_phase_ends_with_its_last_arrival(arrive: str) -> None:
    # Before any arrival the phase of parity 1, the one before the first, is complete; after 32 that of parity 0 is.
    body = f"""
        {parity("%r10", 1)} {parity("%r11", 0)} bar.sync 0;
        {arrive} bar.sync 0;
        {parity("%r12", 1)} {parity("%r13", 0)}
        shl.b32 %r11, %r11, 1; shl.b32 %r12, %r12, 2; shl.b32 %r13, %r13, 3;
        or.b32 %r20, %r10, %r11; or.b32 %r20, %r20, %r12; or.b32 %r20, %r20, %r13;
    """
    assert started(body).tolist() == [0b1001] * 32


def test_parities_alternate() -> None:
    # Five phases of one arrival each, seen by the one lane that arrives.
    body = "mov.u32 %r20, 0; @%p9 bra OUT;"
    for phase in range(5):
        body += f"mbarrier.arrive.shared.b64 _, [bar]; {parity('%r10', phase & 1)} {parity('%r11', ~phase & 1)}"
        body += "shl.b32 %r20, %r20, 2; shl.b32 %r10, %r10, 1; or.b32 %r20, %r20, %r10; or.b32 %r20, %r20, %r11;"
    assert started(body + "OUT:", count=1)[0] == 0b1010101010


def test_a_look_behind_a_wait_is_one_of_its_own() -> None:
    # The wait is for a phase that is complete; nobody arrives at the other barrier, for which the same lanes look next.
    body = f"""
        @!%p9 mbarrier.init.shared.b64 [bar+8], 1;
        bar.sync 0;
        mbarrier.arrive.shared.b64 _, [bar];
        {parity("%r10", 0, "try_wait")}
        mbarrier.test_wait.parity.shared.b64 %p1, [bar+8], 0; selp.u32 %r11, 2, 0, %p1;
        or.b32 %r20, %r10, %r11;
    """
    assert started(body).tolist() == [1] * 32


def test_a_count_arrives_several_times() -> None:
    # 4 lanes times 8 arrivals.
    body = f"""
        setp.lt.u32 %p2, %r1, 4;
        @%p2 mbarrier.arrive.shared.b64 _, [bar], 8;
        bar.sync 0; {parity("%r20", 0)}
    """
    assert (started(body) == 1).all()
    assert (started(body.replace("], 8", "], 7")) == 0).all()


def test_more_arrivals_of_one_step_than_a_phase_has() -> None:
    # 32 lanes at a barrier for 8: four phases, each arrival one of them.
    body = """
        mbarrier.arrive.shared.b64 %d5, [bar];
        mbarrier.pending_count.b64 %r20, %d5;
    """
    found = started(body, count=8)
    assert found.tolist() == [8, 7, 6, 5, 4, 3, 2, 1] * 4


def test_states_name_their_phase() -> None:
    # A state is of the phase in which its arrival found the barrier: 31 lanes come, then the last.
    body = """
        setp.lt.u32 %p2, %r1, 31;
        @%p2 mbarrier.arrive.shared.b64 %d5, [bar];
        @%p2 mbarrier.test_wait.shared.b64 %p3, [bar], %d5;
        selp.u32 %r10, 1, 0, %p3;
        bar.sync 0;
        @!%p2 mbarrier.arrive.shared.b64 %d5, [bar];
        bar.sync 0;
        mbarrier.test_wait.shared.b64 %p3, [bar], %d5;
        selp.u32 %r20, 2, 0, %p3;
        selp.u32 %r10, %r10, 0, %p2;
        or.b32 %r20, %r20, %r10;
    """
    assert started(body).tolist() == [2] * 32


def test_a_state_two_phases_old_is_no_state() -> None:
    body = """
        @%p9 bra OUT;
        mbarrier.arrive.shared.b64 %d5, [bar];
        mbarrier.arrive.shared.b64 _, [bar];
        mbarrier.test_wait.shared.b64 %p1, [bar], %d5;
        OUT: mov.u32 %r20, 0;
    """
    with pytest.raises(ptx.MisuseError, match="the state of phase 0, in phase 2"):
        started(body, count=1)


def test_arrive_drop_leaves_later_phases() -> None:
    # 16 lanes drop out in the first phase; the second is complete with the other 16.
    body = f"""
        setp.lt.u32 %p2, %r1, 16;
        @%p2 mbarrier.arrive_drop.shared.b64 _, [bar];
        @!%p2 mbarrier.arrive.shared.b64 _, [bar];
        bar.sync 0; {parity("%r10", 0)}
        @!%p2 mbarrier.arrive.shared.b64 _, [bar];
        bar.sync 0; {parity("%r11", 1)}
        shl.b32 %r11, %r11, 1; or.b32 %r20, %r10, %r11;
    """
    assert (started(body) == 3).all()
    kept = body.replace("arrive_drop", "arrive")
    assert (started(kept) == 1).all()


# Transactions


def test_a_phase_owes_its_bytes() -> None:
    body = f"""
        @!%p9 mbarrier.arrive.expect_tx.shared.b64 _, [bar], 48;
        bar.sync 0; {parity("%r10", 0)}
        @!%p9 mbarrier.complete_tx.relaxed.cta.shared.b64 [bar], 32;
        bar.sync 0; {parity("%r11", 0)}
        @!%p9 mbarrier.complete_tx.relaxed.cta.shared.b64 [bar], 16;
        bar.sync 0; {parity("%r12", 0)}
        shl.b32 %r11, %r11, 1; shl.b32 %r12, %r12, 2;
        or.b32 %r20, %r10, %r11; or.b32 %r20, %r20, %r12;
    """
    assert (started(body, count=1) == 0b100).all()


def test_bytes_may_come_before_they_are_expected() -> None:
    body = f"""
        @!%p9 mbarrier.complete_tx.shared.b64 [bar], 16;
        @!%p9 mbarrier.expect_tx.relaxed.cta.shared.b64 [bar], 16;
        @!%p9 mbarrier.arrive.shared.b64 _, [bar];
        bar.sync 0; {parity("%r20", 0)}
    """
    assert (started(body, count=1) == 1).all()


# Waits that park

PINGPONG = """
    // Warp 0 writes, warp 1 reads: `full` at [bar], `empty` at [bar+8], eight rounds.
    setp.ne.u32 %p9, %r1, 0;
    @!%p9 mbarrier.init.shared.b64 [bar], 32;
    @!%p9 mbarrier.init.shared.b64 [bar+8], 32;
    {init}
    and.b32 %r3, %r1, 31; mov.u32 %r4, cell; mad.lo.u32 %r4, %r3, 4, %r4;
    mov.u32 %r5, 0; mov.u32 %r20, 0;
    setp.ge.u32 %p2, %r1, 32;
    @%p2 bra READER;
WRITER:
    and.b32 %r6, %r5, 1; xor.b32 %r7, %r6, 1;
    {empty_wait}
    mad.lo.u32 %r8, %r5, 100, %r3;
    st.shared.u32 [%r4], %r8;
    {full_arrive}
    add.u32 %r5, %r5, 1; setp.lt.u32 %p3, %r5, 8; @%p3 bra WRITER;
    bra OUT;
READER:
    and.b32 %r6, %r5, 1;
    {full_wait}
    xor.b32 %r9, %r3, 1; mov.u32 %r10, cell; mad.lo.u32 %r10, %r9, 4, %r10;
    ld.shared.u32 %r11, [%r10];
    mad.lo.u32 %r20, %r20, 3, %r11;
    {empty_arrive}
    add.u32 %r5, %r5, 1; setp.lt.u32 %p3, %r5, 8; @%p3 bra READER;
OUT:
    st.global.u32 [%d2], %r20; ret;
"""
PARTS = {
    "init": "bar.sync 0;",
    "empty_wait": "W1: mbarrier.try_wait.parity.shared.b64 %p4, [bar+8], %r7; @!%p4 bra W1;",
    "full_arrive": "mbarrier.arrive.shared.b64 _, [bar];",
    "full_wait": "W2: mbarrier.try_wait.parity.acquire.cta.shared::cta.b64 %p4, [bar], %r6, 1000; @!%p4 bra W2;",
    "empty_arrive": "mbarrier.arrive.release.cta.shared::cta.b64 _, [bar+8];",
}


def pingpong(**change: str) -> np.ndarray:
    out = np.zeros(128, np.uint32)
    body = PINGPONG.format(**{**PARTS, **change})
    run(body, out, block=(64, 1, 1), grid=(2, 1, 1), declarations=BAR)
    return out.reshape(2, 2, 32)


def pingpong_result() -> np.ndarray:
    value = np.zeros(32, np.uint32)
    for step in range(8):
        value = value * np.uint32(3) + np.uint32(100 * step) + (np.arange(32, dtype=np.uint32) ^ np.uint32(1))
    return np.array([[np.zeros(32, np.uint32), value]] * 2)


POLLED = {
    "empty_wait": "W1: mbarrier.test_wait.parity.shared.b64 %p4, [bar+8], %r7; @!%p4 bra W1;",
    "full_wait": "W2: mbarrier.test_wait.parity.shared.b64 %p4, [bar], %r6; @!%p4 bra W2;",
}


@pytest.mark.parametrize("change", [{}, POLLED], ids=["parked", "polled"])
def test_producer_and_consumer(change: dict[str, str]) -> None:
    np.testing.assert_array_equal(pingpong(**change), pingpong_result())


@pytest.mark.parametrize(
    ("part", "instead", "error"),
    [
        ("init", "", ptx.RaceError),
        # The writer runs ahead, and the reader misses phases: no later one has the parity that it waits for.
        ("empty_wait", "", (ptx.RaceError, ptx.Deadlock)),
        ("full_wait", "", (ptx.RaceError, ptx.MemoryFault)),
        ("full_arrive", "", ptx.Deadlock),
        ("empty_arrive", "", ptx.Deadlock),
        # Outputs stay right here; only the order of memory accesses is lost.
        ("full_arrive", "mbarrier.arrive.relaxed.cta.shared.b64 _, [bar];", ptx.RaceError),
        ("empty_arrive", "mbarrier.arrive.relaxed.cta.shared.b64 _, [bar+8];", ptx.RaceError),
        (
            "full_wait",
            "W2: mbarrier.try_wait.parity.relaxed.cta.shared.b64 %p4, [bar], %r6; @!%p4 bra W2;",
            ptx.RaceError,
        ),
        # One lane arrives for its warp without the warp having met.
        (
            "full_arrive",
            "setp.eq.u32 %p5, %r3, 0; @%p5 mbarrier.arrive.shared.b64 _, [bar], 32;",
            ptx.RaceError,
        ),
    ],
)
def test_every_part_of_the_protocol_is_needed(part: str, instead: str, error: type[Exception]) -> None:
    with pytest.raises(error):
        pingpong(**{part: instead})


def test_one_lane_may_arrive_for_a_warp_that_has_met() -> None:
    met = "bar.warp.sync -1; setp.eq.u32 %p5, %r3, 0; @%p5 mbarrier.arrive.shared.b64 _, [bar], 32;"
    np.testing.assert_array_equal(pingpong(full_arrive=met), pingpong_result())


def test_lanes_that_arrive_one_after_another_stand_for_their_warp() -> None:
    # Both halves of the warp arrive in branches of their own: together they are all of it.
    halves = """
        setp.lt.u32 %p5, %r3, 16;
        @%p5 bra LOW; mbarrier.arrive.shared.b64 _, [bar]; bra BOTH;
        LOW: mbarrier.arrive.shared.b64 _, [bar]; BOTH:
    """
    np.testing.assert_array_equal(pingpong(full_arrive=halves), pingpong_result())


def test_a_wait_may_be_given_up() -> None:
    # Nobody arrives until the waiting lane itself does: try_wait must come back without the phase, as after its limit.
    body = """
        mov.u32 %r20, 0;
        @%p9 bra OUT;
    AGAIN:
        mbarrier.try_wait.parity.shared.b64 %p1, [bar], 0;
        @%p1 bra OUT;
        add.u32 %r20, %r20, 1;
        mbarrier.arrive.shared.b64 _, [bar];
        bra AGAIN;
    OUT:
    """
    assert started(body, count=3)[0] == 3


def test_a_deadlock_says_who_waits_for_what() -> None:
    body = """
        setp.lt.u32 %p2, %r1, 8;
        @%p2 mbarrier.arrive.expect_tx.shared.b64 _, [bar], 64;
        W: mbarrier.try_wait.parity.shared.b64 %p1, [bar], 0; @!%p1 bra W;
        mov.u32 %r20, 0;
    """
    with pytest.raises(ptx.Deadlock) as caught:
        started(body)
    (sentence,) = caught.value.waiting
    line = line_of(INIT.format(count=32) + body + STORE, "try_wait", declarations=BAR)
    for part in (
        "the mbarrier at byte 0 of shared memory", "of block (0, 0, 0)", "phase 0 (parity 0) is not complete",
        "24 of 32 arrivals and 512 bytes pending", "waiting for parity 0 are threads 0-31", f"test.ptx:{line}",
    ):  # fmt: skip
        assert part in sentence


def test_polling_for_what_nobody_will_do_is_a_deadlock() -> None:
    body = "W: mbarrier.test_wait.parity.shared.b64 %p1, [bar], 0; @!%p1 bra W; mov.u32 %r20, 0;"
    with pytest.raises(ptx.Deadlock):
        started(body, step_budget=None)


# Copies that arrive

COPY = """
    mov.u32 %r3, cell; mad.lo.u32 %r3, %r1, 16, %r3;
    mul.wide.u32 %d3, %r1, 16; add.s64 %d3, %d3, %d1;
    cp.async.cg.shared.global [%r3], [%d3], 16;
"""
NEIGHBOUR = "xor.b32 %r4, %r1, {distance}; mov.u32 %r5, cell; mad.lo.u32 %r5, %r4, 16, %r5; ld.shared.u32 %r20, [%r5];"
TRY = "W: mbarrier.try_wait.parity.shared.b64 %p1, [bar], 0; @!%p1 bra W;"


def test_copies_arrive_when_they_have_landed() -> None:
    # Every lane reads what a lane of the other warp copied: the barrier alone orders the two.
    body = COPY + "cp.async.mbarrier.arrive.noinc.shared.b64 [bar];" + TRY + NEIGHBOUR.format(distance=37)
    np.testing.assert_array_equal(started(body, count=64, threads=64), 4 * (np.arange(64) ^ 37))


def test_without_noinc_the_arrival_is_counted_on_top() -> None:
    # 64 announced arrivals change nothing on balance; the phase still needs the 64 that it was made for.
    body = COPY + "cp.async.mbarrier.arrive.shared.b64 [bar]; mbarrier.arrive.shared.b64 _, [bar];" + TRY
    body += NEIGHBOUR.format(distance=37)
    np.testing.assert_array_equal(started(body, count=64, threads=64), 4 * (np.arange(64) ^ 37))
    with pytest.raises(ptx.Deadlock, match="64 arrivals by copies under way"):
        started(body.replace("mbarrier.arrive.shared.b64 _, [bar];", ""), count=64, threads=64)


def test_the_wait_for_the_barrier_is_needed() -> None:
    body = COPY + "cp.async.mbarrier.arrive.noinc.shared.b64 [bar];" + NEIGHBOUR.format(distance=37)
    with pytest.raises(ptx.MemoryFault) as caught:
        started(body, count=64, threads=64)
    assert caught.value.kind == "uninitialised"
    assert "an asynchronous copy that nobody has waited for" in str(caught.value)


def test_who_did_not_wait_races_with_the_copy() -> None:
    # Warp 0 waits, so the copies have landed; warp 1 is told by a store, without a barrier, and must not read them.
    body = (
        COPY
        + """
        cp.async.mbarrier.arrive.noinc.shared.b64 [bar];
        mov.u32 %r9, cell; setp.ge.u32 %p2, %r1, 32; @%p2 bra OTHER;
    """
        + TRY
        + """
        st.volatile.shared.u32 [%r9+1024], 1; bra READ;
    OTHER:
        ld.volatile.shared.u32 %r8, [%r9+1024]; setp.eq.u32 %p3, %r8, 0; @%p3 bra OTHER;
    READ:
    """
        + NEIGHBOUR.format(distance=37)
    )
    body = "mov.u32 %r9, cell; @!%p9 st.volatile.shared.u32 [%r9+1024], 0; bar.sync 0;" + body
    with pytest.raises(ptx.RaceError) as caught:
        started(body, count=64, threads=64)
    assert caught.value.thread[0] >= 32
    assert "an asynchronous copy" in str(caught.value)


def test_an_arrival_covers_earlier_copies_only() -> None:
    body = (
        COPY
        + "cp.async.mbarrier.arrive.noinc.shared.b64 [bar];"
        + """
        cp.async.cg.shared.global [%r3+1024], [%d3], 16;
    """
        + TRY
        + "ld.shared.u32 %r20, [%r3+1024];"
    )
    with pytest.raises(ptx.MemoryFault, match="uninitialised"):
        started(body, count=64, threads=64)


def test_a_group_that_a_barrier_has_landed_may_still_be_waited_for() -> None:
    body = (
        COPY
        + """
        cp.async.mbarrier.arrive.noinc.shared.b64 [bar]; cp.async.commit_group;
        setp.ge.u32 %p2, %r1, 32; @%p2 bra OTHER;
    """
        + TRY
        + """
    OTHER:
        cp.async.wait_group 0;
        ld.shared.u32 %r20, [%r3];
    """
    )
    np.testing.assert_array_equal(started(body, count=64, threads=64), 4 * np.arange(64))


# Misuse


@pytest.mark.parametrize(
    ("body", "count", "message"),
    [
        ("mbarrier.arrive.shared.b64 _, [bar+8];", 1, "is not initialised"),
        ("mbarrier.test_wait.parity.shared.b64 %p1, [bar+8], 0;", 1, "is not initialised"),
        ("mbarrier.try_wait.parity.shared.b64 %p1, [bar+8], 0;", 1, "is not initialised"),
        ("mbarrier.expect_tx.shared.b64 [bar+8], 16;", 1, "is not initialised"),
        ("@!%p9 mbarrier.init.shared.b64 [bar+8], 0;", 1, "a count of 0, not 1 to 1048575"),
        ("@!%p9 mbarrier.init.shared.b64 [bar+8], 1048576;", 1, "a count of 1048576"),
        ("@!%p9 mbarrier.init.shared.b64 [bar], 1;", 1, "is initialised already"),
        ("mbarrier.init.shared.b64 [bar+8], 1;", 1, r"byte 8 .* is initialised by \d+ threads at once"),
        ("@!%p9 mbarrier.arrive.shared.b64 _, [bar], 5;", 3, "2 arrivals more than phase 0 of the mbarrier"),
        ("@!%p9 mbarrier.arrive.shared.b64 _, [bar], 0;", 3, "a count of 0"),
        ("@!%p9 mbarrier.arrive.noComplete.shared.b64 %d5, [bar], 3;", 3, "may not complete the phase"),
        ("@!%p9 mbarrier.expect_tx.shared.b64 [bar], 1048576;", 3, "a transaction count of 1048576"),
        ("mbarrier.test_wait.parity.shared.b64 %p1, [bar], 2;", 1, "a parity of 2"),
        ("@!%p9 st.shared.u64 [bar], %d1; @!%p9 mbarrier.arrive.shared.b64 _, [bar];", 1, "this overwrites it"),
        ("@!%p9 mbarrier.inval.shared.b64 [bar]; @!%p9 mbarrier.arrive.shared.b64 _, [bar];", 1, "not initialised"),
        ("mov.u64 %d6, %d1; mbarrier.arrive.b64 %d5, [%d6];", 1, "not in shared memory"),
    ],
)
def test_misuse(body: str, count: int, message: str) -> None:
    with pytest.raises(ptx.MisuseError, match=message):
        started(body + "mov.u32 %r20, 0;", count=count)


def test_a_barrier_that_is_waited_for_is_in_use() -> None:
    body = """
        @!%p9 bra END;
        W: mbarrier.try_wait.parity.shared.b64 %p1, [bar], 0; @!%p1 bra W;
        END: @!%p9 mbarrier.inval.shared.b64 [bar]; mov.u32 %r20, 0;
    """
    with pytest.raises(ptx.MisuseError, match="is in use"):
        started(body, count=1)


def test_one_instruction_arrives_elsewhere_at_each_turn() -> None:
    # Lane 0 arrives at one barrier twice, the others at one barrier and then at the next.
    body = f"""
        @!%p9 mbarrier.init.shared.b64 [bar+8], 31; @!%p9 mbarrier.init.shared.b64 [bar+16], 31; bar.sync 0;
        mov.u32 %r10, 0; min.u32 %r12, %r1, 1; mul.wide.u32 %d7, %r12, 8;
        mov.u64 %d6, bar; cvta.shared.u64 %d6, %d6; add.u64 %d6, %d6, %d7;
    AGAIN:
        mbarrier.arrive.b64 %d5, [%d6];
        add.u64 %d6, %d6, %d7;
        add.u32 %r10, %r10, 1; setp.lt.u32 %p3, %r10, 2; @%p3 bra AGAIN;
        bar.sync 0;
        {parity("%r20", 0)}
        mbarrier.test_wait.parity.shared.b64 %p1, [bar+8], 0; {SEEN.format(register="%r12")}
        mbarrier.test_wait.parity.shared.b64 %p1, [bar+16], 0; {SEEN.format(register="%r13")}
        shl.b32 %r12, %r12, 1; shl.b32 %r13, %r13, 2; or.b32 %r20, %r20, %r12; or.b32 %r20, %r20, %r13;
    """
    assert started(body, 2).tolist() == [7] * 32


def test_a_barrier_that_is_made_anew_is_another_one() -> None:
    # Warp 1 has arrived at the first one. Nothing orders the second one before its next arrival.
    body = """
        shr.u32 %r12, %r1, 5; mov.u32 %r10, 0; and.b32 %r13, %r1, 31; setp.ne.u32 %p4, %r12, 0;
        setp.ne.u32 %p5, %r13, 0;
    AGAIN:
        setp.ne.u32 %p6, %r10, 1; @%p6 bra ARRIVE;
        bar.sync 0;
        @!%p9 mbarrier.inval.shared.b64 [bar]; @!%p9 mbarrier.init.shared.b64 [bar], 32;
        @!%p4 bra END;
    ARRIVE:
        @%p4 mbarrier.arrive.shared.b64 _, [bar];
        add.u32 %r10, %r10, 1; setp.lt.u32 %p3, %r10, 2; @%p3 bra AGAIN;
    END: mov.u32 %r20, 0;
    """
    with pytest.raises(ptx.RaceError, match="write-read race"):
        started(body, 32, 64)


def test_memory_of_a_barrier_is_free_after_inval() -> None:
    body = """
        @!%p9 mbarrier.inval.shared.b64 [bar];
        @!%p9 mbarrier.init.shared.b64 [bar], 2;
        @!%p9 mbarrier.inval.shared.b64 [bar];
        @!%p9 st.shared.u32 [bar], %r0;
        @!%p9 ld.shared.u32 %r20, [bar];
        @%p9 mov.u32 %r20, 0;
    """
    assert (started(body, count=1) == 0).all()


def test_the_bytes_of_a_barrier_are_opaque() -> None:
    with pytest.raises(ptx.MemoryFault, match="uninitialised"):
        started("ld.shared.u64 %d6, [bar]; cvt.u32.u64 %r20, %d6;")


def test_a_misaligned_barrier() -> None:
    with pytest.raises(ptx.MemoryFault, match="misaligned"):
        started("mbarrier.arrive.shared.b64 _, [bar+4]; mov.u32 %r20, 0;")


@pytest.mark.parametrize(
    "instruction",
    [
        "fence.mbarrier_init.release.cluster;",
        "fence.proxy.async;",
        "fence.proxy.async.shared::cta;",
        "fence.proxy.async.global;",
        "fence.acq_rel.cta;",
        "membar.cta;",
    ],
)
def test_fences_are_known(instruction: str) -> None:
    assert (started(instruction + "mov.u32 %r20, 1;") == 1).all()


@pytest.mark.parametrize(
    "instruction",
    [
        "mbarrier.init.global.b64 [bar], 1;",
        "mbarrier.arrive.shared.b32 _, [bar];",
        "mbarrier.arrive.acquire.cta.shared.b64 _, [bar];",
        "mbarrier.arrive.noComplete.shared.b64 %d5, [bar];",
        "mbarrier.arrive.release.shared.b64 _, [bar];",
        "mbarrier.init.shared::cluster.b64 [bar], 1;",
        "mbarrier.arrive.release.cta.expect_tx.shared.b64 _, [bar], 8;",
        "mbarrier.test_wait.parity.shared.b64 %p1, [bar], 0, 100;",
        "mbarrier.test_wait.parity.shared::cluster.b64 %p1, [bar], 0;",
        "mbarrier.try_wait.release.cta.shared.b64 %p1, [bar], %d5;",
        "fence.proxy.tensormap;",
        "cp.async.mbarrier.arrive.inc.shared.b64 [bar];",
    ],
)
def test_other_spellings_are_unknown(instruction: str) -> None:
    with pytest.raises(ptx.UnknownOpcode):
        started(instruction + "mov.u32 %r20, 0;")


@pytest.mark.parametrize("some", [[3], [3, 5], [5, 3, 3], [9], []])
@pytest.mark.parametrize("values", [[3], [4], [3, 4, 5], [3, 3], []])
def test_what_is_among_others_is_found_however_many_there_are(values: list[int], some: list[int]) -> None:
    found = among(np.array(values, np.int64), np.array(some, np.int64))
    assert found.tolist() == [value in some for value in values]
