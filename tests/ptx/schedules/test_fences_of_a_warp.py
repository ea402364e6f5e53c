"""Each lane fences, a barrier unites them, and one signals for all: enough if the fences have one order."""

from __future__ import annotations

import numpy as np
import pytest
from support.ptx_kernel import text
from support.selection.thinned import thinned

from refmoe import ptx

# Block 0 writes and signals, block 1 waits and reads. `again`: what all lanes but the one that signals do in between.
SIGNALLED = """
    mul.wide.u32 %d3, %r1, 4; add.u64 %d4, %d3, %d1; add.u64 %d5, %d1, 1024;
    xor.b32 %r4, %r1, 31; mul.wide.u32 %d6, %r4, 4; add.u64 %d6, %d6, %d1;
    setp.ne.u32 %p1, %r1, 0;
    setp.ne.u32 %p2, %r60, 0;
    @%p2 bra WAITING;
    add.u32 %r5, %r1, 100;
    st.global.u32 [%d4], %r5;
    {fence}
    bar.warp.sync 0xffffffff;
    @!%p1 bra SIGNAL;
    {again}
SIGNAL:
    @!%p1 st.relaxed.gpu.global.u32 [%d5], 1;
    ret;
WAITING:
    @%p1 bra SEEN;
POLL:
    ld.relaxed.gpu.global.u32 %r6, [%d5];
    setp.eq.u32 %p3, %r6, 0;
    @%p3 bra POLL;
SEEN:
    bar.warp.sync 0xffffffff;
    {fence}
    ld.global.u32 %r7, [%d6];
    add.u64 %d7, %d3, %d0;
    st.global.u32 [%d7], %r7;
    ret;
"""
each_more = pytest.mark.parametrize("again", ["", "fence.sc.gpu;", "fence.sc.gpu; fence.sc.gpu;"])


def launch(fence: str, again: str) -> np.ndarray:
    out, given = np.zeros(32, np.uint32), np.zeros(1024, np.uint32)
    module = ptx.Module.parse(text(SIGNALLED.format(fence=fence, again=again)))
    result = ptx.launch(module, "k", (2, 1, 1), (32, 1, 1), [out, given, 0], step_budget=20_000, schedules=8)
    assert result.warnings == ()
    return out


@each_more
@pytest.mark.parametrize("fence", thinned(["fence.sc.gpu;", "membar.gl;"], 2))
def test_fences_of_all_lanes_reach_who_saw_the_signal_of_one(fence: str, again: str) -> None:
    assert launch(fence, again).tolist() == [131 - lane for lane in range(32)]


@each_more
@pytest.mark.parametrize("fence", thinned(["fence.acq_rel.gpu;", "fence.sc.cta;"], 2))
def test_fences_without_an_order_between_the_blocks_do_not(fence: str, again: str) -> None:
    with pytest.raises(ptx.RaceError, match="write-read"):
        launch(fence, again)


# As above with three warps. What the third wrote the second one's fences pass on, which met it before; so they know
# more than those of the first. Lane `left` of block 0 fences nothing.
OF_WARPS = """
    mul.wide.u32 %d3, %r1, 4; add.u64 %d4, %d3, %d1; add.u64 %d5, %d1, 1024;
    sub.u32 %r4, 95, %r1; mul.wide.u32 %d6, %r4, 4; add.u64 %d6, %d6, %d1;
    setp.ne.u32 %p1, %r1, 0;
    setp.ne.u32 %p2, %r60, 0;
    @%p2 bra WAITING;
    add.u32 %r5, %r1, 100;
    st.global.u32 [%d4], %r5;
    setp.ge.u32 %p3, %r1, 32;
    @%p3 bar.sync 1, 64;
    setp.ge.u32 %p3, %r1, 64;
    @%p3 ret;
    setp.eq.u32 %p3, %r1, {left};
    @%p3 bra MET;
    fence.sc.gpu;
MET:
    bar.sync 0, 64;
    @!%p1 st.relaxed.gpu.global.u32 [%d5], 1;
    ret;
WAITING:
    @%p1 bra SEEN;
POLL:
    ld.relaxed.gpu.global.u32 %r6, [%d5];
    setp.eq.u32 %p3, %r6, 0;
    @%p3 bra POLL;
SEEN:
    bar.sync 0, 96;
    fence.sc.gpu;
    ld.global.u32 %r7, [%d6];
    add.u64 %d7, %d3, %d0;
    st.global.u32 [%d7], %r7;
    ret;
"""


def launch_warps(left: int) -> np.ndarray:
    out, given = np.zeros(96, np.uint32), np.zeros(1024, np.uint32)
    module = ptx.Module.parse(text(OF_WARPS.format(left=left)))
    result = ptx.launch(module, "k", (2, 1, 1), (96, 1, 1), [out, given, 0], step_budget=20_000)
    assert result.warnings == ()
    return out


def test_fences_of_all_warps_reach_who_saw_the_signal_of_one() -> None:
    assert launch_warps(left=96).tolist() == [195 - lane for lane in range(96)]


@pytest.mark.parametrize("left", thinned([1, 17, 31], 2))
def test_what_one_lane_wrote_without_a_fence_reaches_nobody(left: int) -> None:
    with pytest.raises(ptx.RaceError, match=f"write by thread \\({left}, 0, 0\\) of block \\(0, 0, 0\\)"):
        launch_warps(left)
