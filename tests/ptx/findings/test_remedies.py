"""Where a change is looked for: at a branch around an access, behind a wait that is there, at a barrier by its name."""

from __future__ import annotations

import numpy as np
import pytest
from support.findings.plain import CELLS, ROWS
from support.ptx_kernel import line_of, text

from refmoe import ptx
from refmoe.ptx.findings.finding import Finding

# The sum of a block: the first lanes of two warps write once more what all have read.
TWICE = """
    mov.u32 %r3, cell; shr.u32 %r4, %r1, 5; mad.lo.u32 %r4, %r4, 4, %r3;
    and.b32 %r5, %r1, 31; setp.ne.u32 %p1, %r5, 0;
    @%p1 bra WRITTEN;
    st.shared.u32 [%r4], %r1;
WRITTEN:
    bar.sync 0;
    ld.shared.u32 %r6, [cell];
    ld.shared.u32 %r7, [cell+4];
    setp.ne.u32 %p2, %r5, 0;
    @%p2 bra AGAIN;
    st.shared.u32 [%r4], %r6;
AGAIN:
    add.u32 %r6, %r6, %r7;
    st.global.u32 [%d2], %r6;
    ret;
"""
# One thread has the address of the barrier in a register; all others have nothing there.
LOAD = """
    setp.ne.u32 %p1, %r1, 0;
    @%p1 bra STARTED;
    mov.u32 %r3, barriers; add.s32 %r4, %r3, 8; mov.u32 %r5, cell;
    mbarrier.init.shared::cta.b64 [%r4], 1;
    fence.proxy.async.shared::cta;
    mbarrier.arrive.expect_tx.shared::cta.b64 _, [%r4], 256;
    cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [%r5], [%d1], 256, [%r4];
STARTED:
    bar.sync 0;
    mul.wide.u32 %d3, %r1, 4; add.u64 %d3, %d3, %d1;
    st.global.u32 [%d3], %r1;
    WAIT: mbarrier.try_wait.parity.shared::cta.b64 %p2, [barriers+8], 0;
    @!%p2 bra WAIT;
    ret;
"""
BARRIERS = CELLS + ".shared .align 8 .b64 barriers[2];"
# Half of a word that is written as a whole is polled.
WIDTHS = """
    setp.ne.u32 %p1, %r1, 0;
    @%p1 bra DONE;
    setp.ne.u32 %p2, %r60, 0;
    @%p2 bra POLL;
    mov.u64 %d3, 0x100000007; st.relaxed.gpu.global.u64 [%d1], %d3;
    bra DONE;
POLL:
    ld.relaxed.gpu.global.u32 %r3, [%d1+4];
    setp.eq.u32 %p3, %r3, 0;
    @%p3 bra POLL;
DONE:
    ret;
"""
# One lane sets a flag for its warp, which another warp polls.
FLAG = """
    mov.u32 %r3, cell; mad.lo.u32 %r4, %r1, 4, %r3; setp.ne.u32 %p1, %r1, 0;
    @!%p1 st.shared.u32 [cell+512], 0;
    bar.sync 0;
    setp.ge.u32 %p2, %r1, 32;
    @%p2 bra POLL;
    st.shared.u32 [%r4], %r1;
    @%p1 bra DONE;
    st.release.cta.shared.u32 [cell+512], 1;
    bra DONE;
POLL:
    ld.acquire.cta.shared.u32 %r5, [cell+512];
    setp.eq.u32 %p3, %r5, 0;
    @%p3 bra POLL;
    ld.shared.u32 %r6, [%r4+-128];
    st.global.u32 [%d2], %r6;
DONE:
    ret;
"""


def found(source: str, grid: int = 1) -> Finding:
    out, data = np.zeros(256, np.uint32), np.zeros(256, np.uint32)
    with pytest.raises(ptx.RaceError) as caught:
        ptx.launch(ptx.Module.parse(source), "k", (grid, 1, 1), (64, 1, 1), [out, data, 0])
    finding = caught.value.finding
    assert finding is not None
    return finding


def test_a_barrier_stands_before_the_branch_around_the_access() -> None:
    finding = found(text(TWICE, CELLS))
    branch = line_of(TWICE, "@%p2 bra AGAIN", module_scope=CELLS)
    assert finding.remedy == f"__syncthreads() (bar.sync 0) before line {branch}"
    assert finding.clean
    assert finding.same


def test_a_wait_that_is_there_lacks_a_barrier_alone() -> None:
    (row,) = [row for row in ROWS if row.name == "copies of others"]
    with pytest.raises(ptx.RaceError) as caught:
        row.launch(row.text)
    finding = caught.value.finding
    assert finding is not None
    assert finding.missing == "a barrier behind the wait of the thread that copied: it waited for itself alone"
    assert "bar.warp.sync" in finding.remedy
    assert "cp.async.wait" not in finding.remedy


def test_a_barrier_in_memory_is_called_by_its_variable() -> None:
    finding = found(text(LOAD, BARRIERS))
    store = line_of(LOAD, "st.global.u32 [%d3]", module_scope=BARRIERS)
    expected = f"a wait for the phase of parity 0 of [barriers+8] (mbarrier.try_wait) before line {store}"
    assert (finding.remedy, finding.clean) == (expected, True)


def test_strong_accesses_of_two_widths_lack_one_width() -> None:
    finding = found(text(WIDTHS), grid=2)
    assert finding.missing == "one width: strong accesses excuse each other if they are of the very same bytes"
    assert {"one access is of 4 bytes", "one access is of 8 bytes"}.intersection([finding.why.split(" and")[0]])


def test_lanes_of_one_store_need_the_choice_of_one() -> None:
    """Triton's sum of squares: the first addition of the butterfly is an fma, and leaves unlike sums in two lanes."""
    plain = """
        cvt.rn.f32.u32 %r2, %r1; fma.rn.f32 %r2, %r2, 0f3DCCCCCD, 0f3DCCCCCD; mul.rn.f32 %r3, %r2, %r2;
        shfl.sync.bfly.b32 %r4, %r3, 1, 31, 0xffffffff;
        add.rn.f32 %r5, %r3, %r4;
        shr.u32 %r6, %r1, 1; mul.wide.u32 %d4, %r6, 4; add.u64 %d4, %d4, %d0;
        st.global.f32 [%d4], %r5;
        ret;
    """
    data = np.zeros(256, np.uint32)
    result = ptx.launch(ptx.Module.parse(text(plain)), "k", (1, 1, 1), (64, 1, 1), [data.copy(), data, 0])
    assert result.warnings == ()
    finding = found(text(plain.replace("add.rn.f32 %r5, %r3, %r4;", "fma.rn.f32 %r5, %r2, %r2, %r4;")))
    assert finding.missing == (
        "the choice of one lane: several store unlike values at one place, and which of them stays is not defined"
    )
    assert (finding.section, finding.remedy) == ("lanes-of-one-store", "")


def test_lanes_that_store_in_turns_of_a_loop_need_an_order() -> None:
    """Lane n stores in turn n: one instruction, executed twice."""
    turns = """
        mov.u32 %r2, 0;
    TURN:
        setp.ne.u32 %p1, %r1, %r2;
        @%p1 bra NEXT;
        st.global.u32 [%d0], %r1;
    NEXT:
        add.u32 %r2, %r2, 1; setp.lt.u32 %p2, %r2, 2;
        @%p2 bra TURN;
        ret;
    """
    finding = found(text(turns))
    assert (finding.section, finding.clean) == ("two-lanes-of-a-warp", True)
    assert "bar.warp.sync" in finding.remedy


def test_a_warp_meets_before_one_lane_signals_for_it() -> None:
    finding = found(text(FLAG, CELLS))
    branch = line_of(FLAG, "@%p1 bra DONE", module_scope=CELLS)
    meeting = f"__syncwarp() (bar.warp.sync 0xffffffff) before line {branch}: one lane signals for its warp"
    assert (finding.remedy, finding.clean, finding.same) == (meeting, True, True)


def test_a_barrier_that_copies_do_not_know_lacks_a_fence_behind_its_init() -> None:
    body = LOAD.replace("fence.proxy.async.shared::cta;", "")
    body = body.replace("st.global.u32 [%d3], %r1;", "")
    data = np.zeros(256, np.uint32)
    result = ptx.launch(ptx.Module.parse(text(body, BARRIERS)), "k", (1, 1, 1), (64, 1, 1), [data.copy(), data, 0])
    (warning,) = result.warnings
    finding = warning.finding
    assert isinstance(finding, Finding)
    init = line_of(body, "mbarrier.init", module_scope=BARRIERS)
    assert finding.missing == "a fence between mbarrier.init and the copies that complete on the barrier"
    assert finding.remedy == (
        f"fence.proxy.async (cuda::ptx::fence_proxy_async) after line {init}, by the thread that wrote"
    )
    assert (finding.section, finding.clean) == ("barriers-that-copies-complete-on", True)


# The last block of a reduction. All threads of a block write and fence, and one counts the block in.
LAST = """
    mov.u32 %r3, %ctaid.x; mad.lo.u32 %r4, %r3, 64, %r1; mul.wide.u32 %d3, %r4, 4; add.s64 %d3, %d3, %d1;
    setp.ne.u32 %p1, %r1, 0;
    st.global.u32 [%d3], 7;
    membar.gl;
    bar.sync 0;
    @%p1 bra COUNTED;
    atom.global.add.u32 %r5, [%d1+1024], 1;
    st.shared.u32 [cell], %r5;
COUNTED:
    bar.sync 0;
    ld.shared.u32 %r5, [cell];
    setp.ne.u32 %p2, %r5, 1;
    @%p2 bra DONE;
    {fence}
    ld.global.u32 %r6, [%d2]; ld.global.u32 %r7, [%d2+256]; add.u32 %r6, %r6, %r7;
    mul.wide.u32 %d4, %r1, 4; add.s64 %d4, %d4, %d0;
    st.global.u32 [%d4], %r6;
DONE:
    ret;
"""


def test_one_fence_behind_the_atomic_is_enough_where_all_have_fenced_in_sequence() -> None:
    def launch(fence: str) -> ptx.LaunchResult:
        body = LAST.replace("[%d2", "[%d5").replace(
            "{fence}", fence + "mul.wide.u32 %d5, %r1, 4; add.s64 %d5, %d5, %d1;"
        )
        module = ptx.Module.parse(text(body, declarations=CELLS), "last.ptx")
        arguments = [np.zeros(64, np.uint32), np.zeros(320, np.uint32), 0]
        return ptx.launch(module, "k", (2, 1, 1), (64, 1, 1), arguments)

    assert launch("membar.gl;").warnings == ()
    with pytest.raises(ptx.RaceError) as caught:
        launch("")
    finding = caught.value.finding
    assert finding is not None
    assert finding.remedy.startswith("fence.sc.gpu (__threadfence()) after line")
    assert (finding.clean, finding.same) == (True, True)
    assert finding.section == "one-thread-for-others"
