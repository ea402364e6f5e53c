"""Bulk copies beside one another and beside other accesses: who comes before whom, and which proxy fence counts."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pytest
from support.selection.thinned import thinned

import refmoe
from refmoe import ptx

# %d0, %d1, %d2: three buffers of words; %r1: thread, %r2: block, %r3: the barrier, %r4: the tile; %d4: 4 * thread.
TEXT = """.version 8.7
.target sm_90a
.address_size 64
.visible .entry k(.param .u64 a, .param .u64 b, .param .u64 c)
{{
    .reg .pred %p<16>; .reg .b32 %r<32>; .reg .b64 %d<32>;
    .shared .align 128 .b8 tile[512];
    .shared .align 8 .b8 bar[16];
    ld.param.u64 %d0, [a]; ld.param.u64 %d1, [b]; ld.param.u64 %d2, [c];
    mov.u32 %r1, %tid.x; mov.u32 %r2, %ctaid.x; mov.u32 %r3, bar; mov.u32 %r4, tile;
    mul.wide.u32 %d4, %r1, 4; add.u64 %d5, %d0, %d4; cvt.u32.u64 %r5, %d4; add.u32 %r5, %r5, %r4;
    setp.eq.u32 %p0, %r1, 0; setp.eq.u32 %p1, %r1, 32; setp.ge.u32 %p2, %r1, 32; setp.eq.u32 %p3, %r2, 0;
    @%p0 mbarrier.init.shared::cta.b64 [%r3], 1;
    @%p0 mbarrier.init.shared::cta.b64 [%r3+8], 3;
    @%p0 fence.mbarrier_init.release.cluster;
    bar.sync 0;
{body}
END:
    ret;
}}
"""
EXPECT = "mbarrier.arrive.expect_tx.shared::cta.b64 _, [%r3], 128;"
LOAD = "cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [%r4], [%d0], 128, [%r3];"
WAIT = "{n}: mbarrier.try_wait.parity.shared::cta.b64 %p9, [%r3], 0; @!%p9 bra {n};"
GENERIC = "fence.proxy.async.shared::cta;"
GLOBAL = "fence.proxy.async.global;"
COMMIT = "cp.async.bulk.commit_group;"
READ, DONE = "cp.async.bulk.wait_group.read 0;", "cp.async.bulk.wait_group 0;"
SIGNAL = "st.release.gpu.global.u32 [%d1], 1;"
POLL = "POLL: ld.acquire.gpu.global.u32 %r9, [%d1]; setp.eq.u32 %p9, %r9, 0; @%p9 bra POLL;"


def store(register: str, guard: str = "@%p0") -> str:
    """Lane 0 stores the tile."""
    return f"{guard} cp.async.bulk.global.shared::cta.bulk_group [{register}], [%r4], 128; {guard} {COMMIT}"


def launch(body: str, grid: int = 1, block: int = 64, schedules: int | None = None) -> list[np.ndarray]:
    """What the three buffers hold afterwards."""
    buffers = [np.zeros(128, np.uint32) for _ in range(3)]
    refmoe.run_ptx(TEXT.format(body=body), grid=grid, block=block, args=buffers, schedules=schedules)
    return buffers


def refused(body: str, match: str, grid: int = 1, block: int = 64, schedules: int | None = None) -> ptx.RaceError:
    """The race of a launch."""
    with pytest.raises(ptx.RaceError, match=match) as caught:
        launch(body, grid, block, schedules)
    return caught.value


def loaded(guard: str = "@%p0") -> str:
    """One lane loads the first buffer into the tile."""
    return f"{guard} {EXPECT} {guard} {LOAD}"


# What a copy has written to global memory is copied on, or combined with

STORED = "st.shared.u32 [%r5], %r1;" + GENERIC + "bar.sync 0;" + store("%d0") + "@%p0 {wait}"


@pytest.mark.parametrize(("wait", "right"), [(DONE, True), (READ, False)])
def test_a_thread_loads_what_it_stored(wait: str, right: bool) -> None:
    body = STORED.format(wait=wait) + loaded() + WAIT.format(n="W") + f"@%p0 {DONE}"
    if right:
        assert launch(body)[0][:32].tolist() == list(range(32))
    else:
        refused(body, "write-read")


REDUCE = "@%p0 cp.reduce.async.bulk.global.shared::cta.bulk_group.add.u32 [%d0], [%r4], 128; @%p0 " + COMMIT


def test_blocks_reduce_one_after_another() -> None:
    body = "st.shared.u32 [%r5], 1;" + GENERIC + "bar.sync 0;" + REDUCE + "@%p0 " + DONE
    assert launch(body, grid=4, schedules=12)[0][:32].tolist() == [4] * 32


def test_a_reduction_over_what_lanes_wrote() -> None:
    body = "st.shared.u32 [%r5], 1; @!%p2 st.global.u32 [%d5], 1;{}bar.sync 0;" + REDUCE + "@%p0 " + DONE
    launch(body.format("fence.proxy.async;"))
    refused(body.format(GENERIC), "proxy")


def test_the_same_thread_writes_after_it_waited() -> None:
    # The plain store is not the copy's, though both are of one thread.
    body = STORED.format(wait=DONE) + "@%p0 st.global.u32 [%d0], 7;{}" + loaded() + WAIT.format(n="W")
    launch(body.format("@%p0 " + GLOBAL))
    refused(body.format(""), "proxy")


# Proxy fences for global memory

WRITTEN = "@!%p2 st.global.u32 [%d5], 5;"
TAKEN = WAIT.format(n="W") + "@!%p2 ld.shared.u32 %r9, [%r5];"


@pytest.mark.parametrize(
    ("between", "right"),
    thinned(
        [
            # By a third thread, after the writes and before the copy; by each writer; by the thread that copies.
            ("bar.sync 0; @%p1 fence.proxy.async; bar.sync 0;", True),
            (GLOBAL + "bar.sync 0;", True),
            ("bar.sync 0; @%p0 fence.proxy.async;", True),
            # Of shared memory, and by the thread that copies before the others' writes are known to it.
            (GENERIC + "bar.sync 0;", False),
            ("@%p0 fence.proxy.async; bar.sync 0;", False),
            # By a third thread, ordered before the writes.
            ("@%p1 fence.proxy.async; bar.sync 0;", False),
            # So many times that the first ones are forgotten: what is behind those is not fenced for that, and another
            # thread's fence is not forgotten for these.
            ("@%p1 fence.proxy.async;" * 20 + "bar.sync 0;", False),
            ("bar.sync 0; @%p0 fence.proxy.async; setp.eq.u32 %p10, %r1, 1;" + "@%p10 fence.proxy.async;" * 20, True),
        ],
        2,
    ),
)
def test_fences_of_global_memory(between: str, right: bool) -> None:
    body = WRITTEN + between + loaded() + TAKEN
    if right:
        launch(body, schedules=4)
    else:
        refused(body, "proxy")


def test_a_fence_that_nothing_orders_before_the_copy() -> None:
    # Warp 1 copies when warp 0, the writers, has executed its fence; but a relaxed signal orders nothing.
    polls = "POLL: ld.relaxed.gpu.global.u32 %r9, [%d1]; setp.eq.u32 %p9, %r9, 0; @%p9 bra POLL;"
    fenced = "@%p2 bra POLL; fence.proxy.async; bar.warp.sync -1; @%p0 st.relaxed.gpu.global.u32 [%d1], 1; bra END;"
    refused(WRITTEN + "bar.sync 0;" + fenced + polls + loaded("@%p1") + WAIT.format(n="W"), "proxy")


@pytest.mark.parametrize(
    ("writer", "signal", "reader", "right"),
    thinned(
        [
            ("fence.proxy.async;", "", "", True),
            ("", "@%p0 fence.proxy.async;", "", True),
            ("", "", "AFTER", True),
            ("", "", "BEFORE", False),
            ("", "", "", False),
        ],
        2,
    ),
)
def test_fences_of_another_block(writer: str, signal: str, reader: str, right: bool) -> None:
    early, late = (f"@%p0 {GLOBAL}" if reader == each else "" for each in ("BEFORE", "AFTER"))
    body = (
        f"@!%p3 bra OTHER; {WRITTEN} {writer} bar.sync 0; {signal} @%p0 {SIGNAL} bra END;"
        f"OTHER: @!%p0 bra JOINS; {early} {POLL} JOINS: bar.sync 0; {late} {loaded()} {TAKEN}"
    )
    if right:
        launch(body, grid=2, schedules=4)
    else:
        refused(body, "proxy", grid=2)


# Several copies out of the same shared memory

FILLED = "st.shared.u32 [%r5], %r1;" + GENERIC + "bar.sync 0;"
OVER = "bar.sync 0; st.shared.u32 [%r5], 9;"


@pytest.mark.parametrize(
    ("waits", "right"),
    [(("@%p0", "@%p1"), True), (("@%p0",), False), (("@%p1",), False)],
)
def test_copies_of_two_threads(waits: Sequence[str], right: bool) -> None:
    both = store("%d0") + store("%d1", "@%p1")
    body = FILLED + both + "".join(f"{each} {READ}" for each in waits) + OVER + READ
    if right:
        launch(body, schedules=4)
    else:
        refused(body, "read-write race .* not known to be complete")


@pytest.mark.parametrize("left", [0, 1])
def test_groups_of_one_thread(left: int) -> None:
    both = store("%d0") + store("%d1") + f"@%p0 cp.async.bulk.wait_group.read {left};"
    if left:
        refused(FILLED + both + OVER + READ, "read-write")
    else:
        launch(FILLED + both + OVER)


def test_a_second_copy_behind_the_wait_for_the_first() -> None:
    both = store("%d0") + f"@%p0 {READ} bar.sync 0;" + store("%d1", "@%p1") + f"@%p1 {READ}"
    launch(FILLED + both + OVER, schedules=4)


# What only a launch that keeps everything can tell, in a kernel with bulk copies

BROUGHT = loaded() + WAIT.format(n="W")
COUNTED = "bar.sync 0; @!%p0 bra END; atom.global.add.u32 %r9, [%d1], 1; setp.eq.u32 %p8, %r9, {last};"


@pytest.mark.parametrize(("last", "right"), [(3, True), (2, False)])
def test_the_last_block_resets_its_counter(last: int, right: bool) -> None:
    # It has observed the atomics of all others, each of which observed the one before.
    body = BROUGHT + COUNTED.format(last=last) + "@%p8 st.global.u32 [%d1], 0;"
    if right:
        assert launch(body, grid=4, schedules=4)[1][0] == 0
    else:
        refused(body, "race", grid=4)


@pytest.mark.parametrize(("before", "right"), [(96, True), (64, False)])
def test_readers_that_signal_one_by_one(before: int, right: bool) -> None:
    # A lane of each of three warps reads a word that the fourth warp writes when these have arrived. Those from thread
    # `before` on read behind their arrival.
    body = f"""{BROUGHT}
        and.b32 %r10, %r1, 31; setp.ne.u32 %p4, %r10, 5; @%p4 bra END;
        add.u64 %d6, %d2, %d4; setp.eq.u32 %p5, %r1, 101; @%p5 bra WRITES;
        setp.ge.u32 %p6, %r1, {before}; @%p6 bra ARRIVES;
        ld.global.u32 %r11, [%d0+4]; st.global.u32 [%d6], %r11;
    ARRIVES:
        mbarrier.arrive.shared::cta.b64 _, [%r3+8]; @!%p6 bra END;
        ld.global.u32 %r11, [%d0+4]; st.global.u32 [%d6], %r11; bra END;
    WRITES:
        mbarrier.try_wait.parity.shared::cta.b64 %p9, [%r3+8], 0; @!%p9 bra WRITES;
        st.global.u32 [%d0+4], 7;"""
    if right:
        launch(body, block=128, schedules=4)
    else:
        refused(body, "race", block=128)


def test_what_the_thread_stored_before_the_wait_is_not_the_copy_s() -> None:
    # Thread 0 stores a word beside those of its copy, waits for this one, and loads that word without a fence.
    body = STORED.format(wait="st.global.u32 [%d0+256], 7; @%p0 " + DONE) + loaded().replace("[%d0]", "[%d0+256]")
    refused(body + WAIT.format(n="W"), "proxy")


@pytest.mark.parametrize(("fence", "right"), [("fence.acq_rel.gpu;", True), ("", False)])
def test_counts_beside_copies_out_of_the_same_buffer(fence: str, right: bool) -> None:
    # Words 0 to 31 are loaded by each block, word 64 counts the blocks: the last one resets it, and writes word 0.
    counted = "bar.sync 0; @!%p0 bra END; {0} atom.global.add.u32 %r9, [%d0+256], 1; {0} setp.eq.u32 %p8, %r9, 3;"
    body = BROUGHT + counted.format(fence) + "@%p8 st.global.u32 [%d0+256], 0; @%p8 st.global.u32 [%d0], 9;"
    if right:
        assert launch(body, grid=4, schedules=4)[0][0] == 9
    else:
        refused(body, "race", grid=4)


FILL = f"st.shared.u32 [%r5], %r1; {GENERIC} bar.sync 0;"


def test_lanes_that_all_store_the_same_tile_are_warned_of() -> None:
    """As a warp does that elects nobody: whichever copy comes last, the bytes are the same."""
    buffers = [np.zeros(128, np.uint32) for _ in range(3)]
    text = TEXT.format(body=FILL + store("%d0", "") + DONE)
    result = refmoe.run_ptx(text, block=32, args=buffers)
    assert buffers[0][:32].tolist() == list(range(32))
    (warning,) = result.warnings
    assert warning.warning == "same value"
    with pytest.raises(ptx.RaceError, match="both write the same bytes"):
        refmoe.run_ptx(text, block=32, args=buffers, checks=ptx.Checks(strict=True))


@pytest.mark.parametrize(
    "apart",
    [
        "and.b32 %r6, %r1, 1; mad.lo.u32 %r4, %r6, 16, %r4;",  # from other bytes
        "@%p1 add.u64 %d0, %d0, 64;",  # to other places, which overlap
    ],
)
def test_lanes_that_store_other_bytes_race(apart: str) -> None:
    refused(FILL + apart + store("%d0", "") + DONE, "write-write race")
