"""Clusters of one CTA, and instructions that change no result: against the manual's words."""

from __future__ import annotations

import numpy as np
import pytest
from support.ptx_kernel import line_of, run

from refmoe import ptx

CELL = ".shared .align 16 .b8 cell[256];"
SAVE = "st.global.u32 [%d2], %r20; ret;"


@pytest.mark.parametrize(
    "body",
    [
        "mov.u32 %r3, cell; mapa.shared::cluster.u32 %r4, %r3, 0; sub.u32 %r20, %r4, %r3;",
        "mov.u32 %r3, cell; mapa.shared::cluster.u32 %r4, cell, %r0; sub.u32 %r20, %r4, %r3;",
        "mov.u64 %d3, cell; mapa.shared::cluster.u64 %d4, %d3, %r0; sub.u64 %d4, %d4, %d3; cvt.u32.u64 %r20, %d4;",
        "mov.u64 %d3, cell; cvta.shared.u64 %d3, %d3; mapa.u64 %d4, %d3, 0; sub.u64 %d4, %d4, %d3;"
        "cvt.u32.u64 %r20, %d4;",
        "getctarank.shared::cluster.u32 %r20, cell;",
        "mov.u64 %d3, cell; getctarank.shared::cluster.u64 %r20, %d3;",
        "mov.u64 %d3, cell; cvta.shared.u64 %d3, %d3; getctarank.u64 %r20, %d3;",
    ],
)
def test_rank_0_is_the_block_itself(body: str) -> None:
    out = np.full(32, 99, np.uint32)
    run(body + SAVE, out, declarations=CELL)
    assert set(out.tolist()) == {0}


def test_a_mapped_address_is_that_memory() -> None:
    body = """
        mov.u32 %r3, cell; mad.lo.u32 %r3, %r1, 4, %r3; mapa.shared::cluster.u32 %r4, %r3, %r0;
        st.shared::cluster.u32 [%r4], %r1; ld.shared.u32 %r20, [%r3];
    """
    out = np.zeros(32, np.uint32)
    run(body + SAVE, out, declarations=CELL)
    assert out.tolist() == list(range(32))


@pytest.mark.parametrize(
    ("instruction", "what"),
    [
        ("mapa.shared::cluster.u32 %r4, cell, %r5;", "rank 1 of a cluster of one block"),
        ("@%p1 mapa.shared::cluster.u32 %r4, cell, 2;", "rank 2 of a cluster of one block"),
        ("mapa.u64 %d4, %d0, 0;", "not in shared memory"),
        ("@%p1 getctarank.u64 %r4, %d0;", "not in shared memory"),
    ],
)
def test_misuse(instruction: str, what: str) -> None:
    body = "setp.eq.u32 %p1, %r1, 9; selp.u32 %r5, 1, 0, %p1;" + f"\n{instruction}\n" + "mov.u32 %r20, 0;" + SAVE
    with pytest.raises(ptx.MisuseError, match=what) as caught:
        run(body, np.zeros(32, np.uint32), declarations=CELL)
    everyone = "%p1" not in instruction and "%r5" not in instruction
    assert caught.value.thread == ((0 if everyone else 9), 0, 0)
    assert caught.value.line == line_of(body, instruction, declarations=CELL)


def test_a_guard_keeps_a_lane_from_misuse() -> None:
    body = "setp.eq.u32 %p1, %r1, 32; @%p1 mapa.shared::cluster.u32 %r4, cell, 1; mov.u32 %r20, 5;" + SAVE
    out = np.zeros(32, np.uint32)
    run(body, out, declarations=CELL)
    assert set(out.tolist()) == {5}


@pytest.mark.parametrize(
    "instruction",
    [
        "createpolicy.fractional.L2::evict_first.b64 %d5, 1.0; ld.global.L2::cache_hint.u32 %r20, [%d3], %d5;",
        "createpolicy.fractional.L2::evict_last.L2::evict_unchanged.b64 %d5; ld.global.u32 %r20, [%d3];",
        "createpolicy.range.global.L2::evict_last.b64 %d5, [%d3], 128, 256; ld.global.u32 %r20, [%d3];",
        "setmaxnreg.dec.sync.aligned.u32 40; ld.global.u32 %r20, [%d3];",
        "setmaxnreg.inc.sync.aligned.u32 232; ld.global.u32 %r20, [%d3];",
        "griddepcontrol.wait; ld.global.u32 %r20, [%d3]; griddepcontrol.launch_dependents;",
        "prefetch.tensormap [%d3]; applypriority.global.L2::evict_normal [%d3], 128; ld.global.u32 %r20, [%d3];",
        "nanosleep.u32 20; prefetch.global.L2 [%d3]; ld.global.u32 %r20, [%d3];",
        "pmevent 7; pmevent.mask 0xff; ld.global.u32 %r20, [%d3];",
    ],
)
def test_advice_changes_nothing(instruction: str) -> None:
    source = np.arange(32, dtype=np.uint32) * 3
    out = np.zeros(32, np.uint32)
    run("mul.wide.u32 %d3, %r1, 4; add.s64 %d3, %d3, %d1;" + instruction + SAVE, out, source)
    assert (out == source).all()


@pytest.mark.parametrize(
    "instruction",
    [
        "setmaxnreg.dec.sync.aligned.u32 41;",
        "setmaxnreg.dec.sync.aligned.u32 %r3;",
        "setmaxnreg.inc.sync.aligned.u32 264;",
        "griddepcontrol.stop;",
        "griddepcontrol.wait 7;",
        "nanosleep.u32;",
        "prefetch.global.L2;",
        "applypriority.global.L2::evict_normal [%d1];",
        "membar.gl 5;",
        "fence.acq_rel.gpu 1;",
        "activemask.b32 %r3, %r4;",
        "cp.async.wait_group -1;",
        "cp.async.bulk.wait_group -1;",
        "cp.async.bulk.prefetch.L2.global;",
        "createpolicy.fractional.L2::evict_never.b64 %d5, 1.0;",
        "mapa.u32 %r4, %r3, 0;",
        "mapa.shared.u32 %r4, %r3, 0;",
        "mapa.shared::cluster.u32 %r4, %r3;",
        "getctarank.shared::cluster.u32 %d4, cell, 0;",
    ],
)
def test_what_does_not_exist(instruction: str) -> None:
    with pytest.raises(ptx.UnknownOpcode):
        run(instruction + "ret;", np.zeros(1, np.uint32), declarations=CELL)


def test_setmaxnreg_needs_the_whole_warp() -> None:
    body = "setp.lt.u32 %p1, %r1, 5; @%p1 exit; setmaxnreg.dec.sync.aligned.u32 40; ret;"
    with pytest.raises(ptx.WarpError, match="27 lanes of its warp take part, 32 must"):
        run(body, np.zeros(1, np.uint32))


@pytest.mark.parametrize(
    ("roles", "threads", "missing"),
    [
        ("setp.lt.u32 %p1, %r1, 64; @%p1 setmaxnreg.dec.sync.aligned.u32 40;", 128, "thread (64, 0, 0)"),
        ("setp.lt.u32 %p1, %r1, 160; @%p1 setmaxnreg.dec.sync.aligned.u32 40;", 192, "thread (160, 0, 0)"),
        ("setp.lt.u32 %p1, %r1, 128; @%p1 setmaxnreg.dec.sync.aligned.u32 40;", 192, ""),
        # The roles of a warpgroup in branches of their own.
        ("setp.lt.u32 %p1, %r1, 32; @%p1 setmaxnreg.dec.sync.aligned.u32 24;"
         "@!%p1 setmaxnreg.dec.sync.aligned.u32 40;", 128, ""),
        ("setmaxnreg.dec.sync.aligned.u32 40; setp.eq.u32 %p1, %r1, 0; @!%p1 exit;", 96, ""),
    ],
)  # fmt: skip
def test_setmaxnreg_needs_the_whole_warpgroup(roles: str, threads: int, missing: str) -> None:
    def launch() -> None:
        run(roles + "ret;", np.zeros(1, np.uint32), grid=(2, 1, 1), block=(threads, 1, 1))

    if not missing:
        launch()
        return
    with pytest.raises(ptx.WarpError, match="not all warps of its warpgroup execute it") as caught:
        launch()
    assert missing in str(caught.value)


def test_registers_of_eight_bits() -> None:
    """What Triton writes around conversions of packed formats."""
    body = """
        ld.global.u32 %r3, [%d1];
        { .reg .b8 b<4>; mov.b32 {b0, b1, b2, b3}, %r3; mov.b32 %r20, {b3, b1, b2, b0}; }
    """
    out = np.zeros(32, np.uint32)
    run(body + SAVE, out, np.array([0x11223344], np.uint32))
    assert set(out.tolist()) == {0x44223311}


def test_parameters_by_address() -> None:
    """A parameter struct is read at run-time offsets, by the parameter space and by generic addresses."""
    text = """.version 9.0
    .target sm_120a
    .address_size 64
    .visible .entry k(.param .u64 out, .param .align 64 .b8 s[256]) {
        .reg .b32 %r<9>; .reg .b64 %d<9>;
        ld.param.u64 %d0, [out]; mov.u32 %r1, %tid.x; mul.wide.u32 %d2, %r1, 8; add.s64 %d0, %d0, %d2;
        mov.b64 %d1, s; add.s64 %d1, %d1, %d2; ld.param.u32 %r2, [%d1+4];
        cvta.param.u64 %d3, %d1; ld.u32 %r3, [%d3];
        st.global.v2.u32 [%d0], {%r2, %r3}; ret;
    }"""
    struct = np.random.default_rng(0).integers(0, 256, 256, np.uint8)
    out = np.zeros((32, 2), np.uint32)
    module = ptx.Module.parse(text)
    ptx.launch(module, "k", (1, 1, 1), (32, 1, 1), [out, struct.tobytes()])
    words = struct.view(np.uint32).reshape(32, 2)
    assert (out == words[:, ::-1]).all()
    with pytest.raises(ptx.MemoryFault):
        ptx.launch(module, "k", (1, 1, 1), (64, 1, 1), [np.zeros((64, 2), np.uint32), struct.tobytes()])


def test_elect_names_the_lowest_lane_of_the_mask() -> None:
    for mask in (0xFFFFFFFF, 0xFFFF0000, 0x00000400):
        body = f"""
            mov.u32 %r20, 7; mov.u32 %r5, {mask}; shr.u32 %r6, %r5, %r1; and.b32 %r6, %r6, 1; setp.eq.u32 %p1, %r6, 0;
            @%p1 bra OUT;
            elect.sync _|%p2, %r5; selp.u32 %r20, 1, 0, %p2;
        OUT: {SAVE}
        """
        out = np.zeros(32, np.uint32)
        run(body, out)
        lowest = (mask & -mask).bit_length() - 1
        assert out.tolist() == [7 if not mask >> i & 1 else int(i == lowest) for i in range(32)]


def test_elect_of_a_lane_that_is_no_member() -> None:
    body = "elect.sync _|%p2, 0x7FFFFFFF; selp.u32 %r20, 1, 0, %p2;" + SAVE
    with pytest.raises(ptx.WarpError, match="not in its own member mask") as caught:
        run(body, np.zeros(32, np.uint32))
    assert caught.value.thread == (31, 0, 0)


# Lane i writes cell i, and after the barrier reads the cell of the lane half the block away.
EXCHANGE = """
    mov.u32 %r3, cell; mad.lo.u32 %r4, %r1, 4, %r3;
    add.u32 %r5, %r1, 32; and.b32 %r5, %r5, 63; mad.lo.u32 %r5, %r5, 4, %r3;
    st.shared.u32 [%r4], %r1;
    {barrier}
    ld.shared.u32 %r20, [%r5];
"""


@pytest.mark.parametrize(
    "barrier",
    [
        "barrier.cluster.arrive; barrier.cluster.wait;",
        "barrier.cluster.arrive.release.aligned; add.u32 %r6, %r1, 1; barrier.cluster.wait.acquire.aligned;",
        "barrier.cluster.arrive; barrier.cluster.wait; barrier.cluster.arrive.relaxed; barrier.cluster.wait;",
    ],
)
def test_cluster_barrier_orders(barrier: str) -> None:
    for blocks in (1, 3):
        out = np.zeros(64 * blocks, np.uint32)
        body = EXCHANGE.format(barrier=barrier) + SAVE
        run(body, out, declarations=CELL, block=(64, 1, 1), grid=(blocks, 1, 1))
        assert out.tolist() == [(i + 32) % 64 for i in range(64)] * blocks


def test_arriving_alone_orders_nothing() -> None:
    body = EXCHANGE.format(barrier="barrier.cluster.arrive;") + "barrier.cluster.wait;" + SAVE
    with pytest.raises((ptx.RaceError, ptx.MemoryFault)):
        run(body, np.zeros(64, np.uint32), declarations=CELL, block=(64, 1, 1))


def test_a_write_behind_the_arrival_races() -> None:
    body = EXCHANGE.format(barrier="barrier.cluster.arrive; st.shared.u32 [%r4], %r1; barrier.cluster.wait;") + SAVE
    with pytest.raises(ptx.RaceError):
        run(body, np.zeros(64, np.uint32), declarations=CELL, block=(64, 1, 1))


def test_lanes_that_left_are_not_waited_for() -> None:
    body = """
        setp.ge.u32 %p1, %r1, 40; @%p1 exit;
        barrier.cluster.arrive; barrier.cluster.wait; mov.u32 %r20, 3;
    """
    out = np.zeros(96, np.uint32)
    run(body + SAVE, out, block=(96, 1, 1))
    assert out.tolist() == [3] * 40 + [0] * 56


def test_a_loop_of_phases() -> None:
    body = """
        mov.u32 %r3, cell; mad.lo.u32 %r4, %r1, 4, %r3; mov.u32 %r20, 0; mov.u32 %r7, 0;
        add.u32 %r5, %r1, 32; and.b32 %r5, %r5, 63; mad.lo.u32 %r5, %r5, 4, %r3;
    NEXT: add.u32 %r6, %r1, %r7; st.shared.u32 [%r4], %r6;
        barrier.cluster.arrive; barrier.cluster.wait;
        ld.shared.u32 %r6, [%r5]; add.u32 %r20, %r20, %r6;
        barrier.cluster.arrive; barrier.cluster.wait;
        add.u32 %r7, %r7, 1; setp.lt.u32 %p1, %r7, 5; @%p1 bra NEXT;
    """
    out = np.zeros(64, np.uint32)
    run(body + SAVE, out, declarations=CELL, block=(64, 1, 1))
    assert out.tolist() == [5 * ((i + 32) % 64) + 10 for i in range(64)]
    one_phase_less = body[: body.rindex("barrier.cluster.arrive")] + body[body.rindex("add.u32 %r7") :]
    with pytest.raises(ptx.RaceError):
        run(one_phase_less + SAVE, out, declarations=CELL, block=(64, 1, 1))


@pytest.mark.parametrize(
    ("body", "what"),
    [
        ("barrier.cluster.wait;", "waits without having arrived"),
        ("barrier.cluster.arrive; barrier.cluster.arrive;", "arrives a second time without a wait"),
    ],
)
def test_turns_are_kept(body: str, what: str) -> None:
    with pytest.raises(ptx.MisuseError, match=what):
        run(body + "ret;", np.zeros(1, np.uint32))


def test_a_warp_that_never_comes_is_a_deadlock() -> None:
    body = """
        setp.ge.u32 %p1, %r1, 32; @%p1 bra OTHER;
        barrier.cluster.arrive; barrier.cluster.wait; ret;
    OTHER: bar.sync 1, 64; ret;
    """
    with pytest.raises(ptx.Deadlock, match="the cluster barrier of block"):
        run(body, np.zeros(1, np.uint32), block=(64, 1, 1))


# One thread of each block of two arrives at the other block's barrier.
ARRIVAL = """
.version 8.0
.target sm_90a
.address_size 64
.shared .align 8 .b64 bar;
.visible .entry k() .reqntid 64, 1, 1 .explicitcluster .reqnctapercluster 2, 1, 1
{{
    .reg .pred %p<4>; .reg .b32 %r<6>;
    mov.u32 %r1, %tid.x; mov.u32 %r2, %cluster_ctarank; mov.u32 %r3, bar; xor.b32 %r5, %r2, 1;
    mapa.shared::cluster.u32 %r4, %r3, %r5;
    setp.eq.u32 %p1, %r1, 0;
    @%p1 mbarrier.init.shared.b64 [%r3], 1;
    @%p1 fence.mbarrier_init.release.cluster;
    barrier.cluster.arrive.aligned; barrier.cluster.wait.aligned;
    @%p1 mbarrier.arrive{order}.shared::cluster.b64 _, [%r4];
    {end}
    ret;
}}
"""
SEEN = "WAIT: mbarrier.try_wait{order}.shared.b64 %p2, [%r3], 0; @!%p2 bra WAIT;"
SYNC = "barrier.cluster.arrive{order}.aligned; barrier.cluster.wait.aligned;"


def arrived(order: str, end: str) -> None:
    ptx.launch(ptx.Module.parse(ARRIVAL.format(order=order, end=end)), "k", (2, 1, 1), (64, 1, 1), [])


@pytest.mark.parametrize("order", [".release.cluster", ".relaxed.cluster"])
@pytest.mark.parametrize(
    "end",
    [
        SYNC.format(order=".release"),
        SEEN.format(order=""),
        # What is seen to have come has come, whatever it brings with it.
        SEEN.format(order=".relaxed.cluster"),
        # One thread's waiting is enough.
        "setp.ne.u32 %p3, %r1, 40; @%p3 exit;" + SEEN.format(order=""),
    ],
    ids=["cluster", "seen", "seen relaxed", "seen by one"],
)
def test_an_arrival_that_is_over_before_the_exit(order: str, end: str) -> None:
    arrived(order, end)


@pytest.mark.parametrize(
    "end", ["", "bar.sync 0;", SYNC.format(order=".relaxed")], ids=["nothing", "block", "relaxed cluster"]
)
def test_an_arrival_that_may_come_after_the_exit(end: str) -> None:
    with pytest.raises(ptx.RaceError, match=r"exits, and nothing orders an arrival at the mbarrier there") as caught:
        arrived(".release.cluster", end)
    assert (caught.value.kind, caught.value.other_thread) == ("exit", (0, 0, 0))
    assert caught.value.earlier is not None
    assert caught.value.earlier.opcode.startswith("mbarrier.arrive")


# Both blocks' threads 0 also add bytes at the other block's barrier, and take them again.
OWED = "@%p1 mbarrier.{name}.relaxed.cluster.shared::cluster.b64 [%r4], 16;"
BALANCED = OWED.format(name="expect_tx") + OWED.format(name="complete_tx")


def owing(before: str, end: str) -> None:
    text = ARRIVAL.format(order=".release.cluster", end=end).replace(
        "@%p1 mbarrier.arrive.", before + "\n@%p1 mbarrier.arrive."
    )
    ptx.launch(ptx.Module.parse(text), "k", (2, 1, 1), (64, 1, 1), [])


@pytest.mark.parametrize("seen", [SEEN.format(order=""), SEEN.format(order=".relaxed.cluster")], ids=["", "relaxed"])
def test_bytes_that_are_owed_in_front_of_an_arrival_are_over_with_it(seen: str) -> None:
    owing(BALANCED, seen)


@pytest.mark.parametrize("name", ["expect_tx", "complete_tx"])
def test_bytes_that_may_be_owed_after_the_exit(name: str) -> None:
    """The phase may complete without them: nobody who sees it complete knows that they have come."""
    first, last = ("complete_tx", "expect_tx") if name == "expect_tx" else ("expect_tx", "complete_tx")
    late = OWED.format(name=first) + OWED.format(name=last)
    owing("", late + SYNC.format(order=".release"))
    with pytest.raises(
        ptx.RaceError, match=rf"exits, and nothing orders mbarrier\.{name} at the mbarrier there"
    ) as caught:
        owing("", SEEN.format(order="") + late)
    assert (caught.value.kind, caught.value.other_thread) == ("exit", (0, 0, 0))
    assert caught.value.earlier is not None
    assert caught.value.earlier.opcode.startswith(f"mbarrier.{name}")


def test_bytes_that_may_come_late_in_a_phase() -> None:
    """Thread 1 owes bytes, thread 0 arrives: the phase may complete without the bytes."""
    balanced = BALANCED.replace("%p1", "%p3")
    text = ARRIVAL.format(order=".release.cluster", end="{end}").replace(
        "@%p1 mbarrier.arrive.", "setp.eq.u32 %p3, %r1, 1;\n" + balanced + "bar.sync 0;\n@%p1 mbarrier.arrive."
    )

    def launch(text: str) -> None:
        ptx.launch(ptx.Module.parse(text), "k", (2, 1, 1), (64, 1, 1), [])

    # The release of thread 0 orders what came before its barrier.
    launch(text.replace("{end}", SEEN.format(order="")))
    with pytest.raises(ptx.RaceError, match=r"nothing orders mbarrier\.complete_tx"):
        launch(text.replace("{end}", SEEN.format(order=".relaxed.cluster")))


def test_an_arrival_that_one_warp_knows_of() -> None:
    """Its phase does not end. The thread that arrived arrives at a second barrier, too, for which one warp waits."""
    text = ARRIVAL.replace(".b64 bar;", ".b64 bar[2];")
    text = text.replace("[%r3], 1;", "[%r3], 2;\n    @%p1 mbarrier.init.shared.b64 [%r3+8], 1;")
    end = "@%p1 mbarrier.arrive.release.cluster.shared::cluster.b64 _, [%r4+8]; setp.lt.u32 %p3, %r1, 32; @%p3 exit;"
    end += SEEN.format(order="").replace("[%r3]", "[%r3+8]")
    ptx.launch(ptx.Module.parse(text.format(order="", end=end)), "k", (2, 1, 1), (64, 1, 1), [])
