"""More mbarriers than a cluster has threads: each is told apart from the others, or the launch is refused."""

from __future__ import annotations

import numpy as np
import pytest
from support.ptx_kernel import line_of, text

from refmoe import ptx
from refmoe.ptx.engine.bulk import agents
from refmoe.ptx.engine.order.clocks import Clocks
from refmoe.ptx.engine.order.knowledge import Pool
from refmoe.ptx.state.records import SEVERAL_SHIFT, STEP_SHIFT, Several

# Thread 0 brings 16 bytes by one mbarrier after another, and waits for each; then all threads write what they are.
BODY = """
    setp.ne.u32 %p1, %r1, 0;
    @%p1 bra MEET;
    mov.u32 %r3, 0;
    mov.u32 %r4, tile;
    mov.u32 %r5, barriers;
NEXT:
    mbarrier.init.shared.b64 [%r5], 1;
    fence.proxy.async.shared::cta;
    mbarrier.arrive.expect_tx.shared.b64 %d5, [%r5], 16;
    cp.async.bulk.shared::cta.global.mbarrier::complete_tx::bytes [%r4], [%d1], 16, [%r5];
WAIT:
    mbarrier.try_wait.parity.shared.b64 %p2, [%r5], 0;
    @!%p2 bra WAIT;
    add.u32 %r5, %r5, 8;
    add.u32 %r3, %r3, 1;
    setp.lt.u32 %p2, %r3, %r0;
    @%p2 bra NEXT;
MEET:
    bar.sync 0;
    ld.shared.u32 %r6, [tile];
    mov.u32 %r7, %nwarpid;
    mad.lo.u32 %r6, %r7, 1000, %r6;
    st.global.u32 [%d2], %r6;
    ret;
"""
SHARED = ".shared .align 16 .b8 tile[16]; .shared .align 8 .b8 barriers[8800];"


def launch(barriers: int, threads: int, blocks: int, cluster: int, **more: object) -> np.ndarray:
    """What all threads wrote: 1000 times the warps of their block, plus what was brought."""
    module = ptx.Module.parse(text(BODY, declarations=SHARED), name="many.ptx")
    out, given = np.zeros(threads * blocks, np.uint32), np.full(4, 7, np.uint32)
    ptx.launch(module, "k", (blocks, 1, 1), (threads, 1, 1), [out, given, barriers], cluster=(cluster, 1, 1), **more)
    return out


@pytest.mark.parametrize(
    ("barriers", "threads", "blocks", "cluster"),
    [(31, 32, 2, 1), (33, 32, 3, 1), (130, 160, 2, 1), (40, 20, 4, 2), (70, 64, 8, 4)],
)
def test_a_kernel_sees_its_own_warps_alone(barriers: int, threads: int, blocks: int, cluster: int) -> None:
    out = launch(barriers, threads, blocks, cluster)
    assert set(out.tolist()) == {1000 * -(-threads // 32) + 7}
    out = launch(barriers, threads, blocks, cluster, schedules=3)
    assert set(out.tolist()) == {1000 * -(-threads // 32) + 7}


def test_more_than_can_be_told_apart_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(agents, "MOST_AGENTS", 128)
    assert set(launch(128, 32, 1, 1).tolist()) == {1007}
    with pytest.raises(ptx.PtxError, match=r"more than 128 mbarriers of a cluster.*Checks\(races=False\)"):
        launch(129, 32, 1, 1)
    assert set(launch(129, 32, 1, 1, checks=ptx.Checks(races=False)).tolist()) == {1007}


# Of a grid of 2^20 blocks the first: 2^27 threads leave 128 to each.
FIRST, SIZE = [(0, 0, 0)], 1 << 20


def launch_in_a_large_grid(barriers: int, blocks: int = SIZE, **more: object) -> int:
    """What thread 0 wrote, see `launch`."""
    module = ptx.Module.parse(text(BODY, declarations=SHARED), name="many.ptx")
    out, given = np.zeros(32, np.uint32), np.full(4, 7, np.uint32)
    ptx.launch(module, "k", (blocks, 1, 1), (32, 1, 1), [out, given, barriers], blocks=FIRST, **more)
    return int(out[0])


def test_a_grid_that_leaves_room_for_few_is_launched() -> None:
    # What is asked for at once is four times as many as there is room for.
    assert launch_in_a_large_grid(128) == 1007
    assert launch_in_a_large_grid(150, 3 << 18) == 1007
    with pytest.raises(ptx.PtxError, match=r"more than 128 mbarriers of a cluster.* in a grid of 1048576 blocks"):
        launch_in_a_large_grid(129)
    assert launch_in_a_large_grid(129, checks=ptx.Checks(races=False)) == 1007
    # Without a warp more there is room for as many as a warp has lanes.
    assert launch_in_a_large_grid(32, 1 << 22) == 1007
    with pytest.raises(ptx.PtxError, match="more than 32 mbarriers of a cluster"):
        launch_in_a_large_grid(33, 1 << 22)
    with pytest.raises(ptx.ArgumentMismatch, match="too large"):
        launch_in_a_large_grid(1, (1 << 22) + 1)


@pytest.mark.parametrize(("barriers", "blocks"), [(100, 1 << 17), (100, SIZE)])
def test_a_debugger_takes_what_a_grid_leaves(barriers: int, blocks: int) -> None:
    module = ptx.Module.parse(text(BODY, declarations=SHARED), name="many.ptx")
    out, given = np.zeros(32, np.uint32), np.full(4, 7, np.uint32)
    with ptx.Debugger(module, "k", (blocks, 1, 1), (32, 1, 1), [out, given, barriers], blocks=FIRST) as debugger:
        debugger.stop_at(line=line_of(BODY, "mov.u32 %r5, barriers", declarations=SHARED))
        assert debugger.go() is not None
        # There is no second time.
        assert debugger.go() is None
    assert out[0] == 1007


def test_warps_without_lanes_did_nothing() -> None:
    # Two blocks of three warps each, the last of which has no lanes.
    clocks = Clocks(6, 1, 0, Pool(1), by_lane=True, bulk=True, absent=np.array([2, 5]))
    record = np.array([3 << STEP_SHIFT | int(Several.WARPS) << SEVERAL_SHIFT])
    clocks.now = 4
    for restarts in range(2):
        for warp in (0, 1, 3):
            clocks.seen[0, warp] = 3
        assert clocks.ordered(np.array([0]), record).tolist() == [False]
        clocks.seen[0, 4] = 3
        assert clocks.ordered(np.array([0]), record).tolist() == [True]
        assert clocks.ordered(np.array([33]), record).tolist() == [False]
        if not restarts:
            clocks.restart(1)
            record += 6 * 32
