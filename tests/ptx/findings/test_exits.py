"""A lane that has exited takes part in no barrier: what it did since the last one is ordered before nothing.

PTX ISA, "bar, barrier": each thread that executes one has its own accesses performed when the barrier completes. It
waits for those of the others that have not exited.
"""

from __future__ import annotations

import numpy as np
import pytest
from support.ptx_kernel import text
from support.selection.thinned import thinned

from refmoe import ptx

BARRIERS = {
    "sync": "bar.sync 0;",
    "red": "bar.red.popc.u32 %r9, 0, %p2;",
    "counted": "barrier.sync 3, 64;",
    "cluster": "barrier.cluster.arrive; barrier.cluster.wait;",
}
# Each thread writes its word, and then reads that of the thread of the same number in the other warp.
BODY = """
    mul.wide.u32 %d3, %r1, 4; add.s64 %d3, %d3, %d0;
    xor.b32 %r5, %r1, 32; mul.wide.u32 %d4, %r5, 4; add.s64 %d4, %d4, %d0;
    setp.gt.u32 %p1, %r1, {last};
    setp.eq.u32 %p2, %r1, 0;
    {steps}
    ret;
"""
STORE, LOAD = "st.global.u32 [%d3], %r1;", "ld.global.u32 %r4, [%d4]; st.global.u32 [%d3 + 512], %r4;"
schedules = pytest.mark.parametrize("schedule", [0, 1, 3])


def launch(*steps: str, schedule: int, last: int = 47) -> np.ndarray:
    """Run the steps by 64 threads, of which those behind `last` may leave at `EXIT`."""
    body = BODY.format(last=last, steps="\n".join(steps))
    out = np.zeros(256, np.uint32)
    ptx.launch(ptx.Module.parse(text(body)), "k", (1, 1, 1), (64, 1, 1), [out, None, 0], schedule=schedule)
    return out


EXIT = "@%p1 exit;"


@schedules
@pytest.mark.parametrize("barrier", thinned(BARRIERS.values(), 3), ids=BARRIERS)
def test_a_write_before_an_exit_is_not_ordered_by_a_barrier(barrier: str, schedule: int) -> None:
    with pytest.raises(ptx.RaceError) as caught:
        launch(STORE, EXIT, barrier, LOAD, schedule=schedule)
    assert (caught.value.kind, caught.value.thread, caught.value.other_thread) == ("write-read", (16, 0, 0), (48, 0, 0))


@schedules
@pytest.mark.parametrize("barrier", BARRIERS.values(), ids=BARRIERS)
def test_a_write_before_a_barrier_and_an_exit_is_ordered(barrier: str, schedule: int) -> None:
    out = launch(STORE, barrier, EXIT, barrier, LOAD, schedule=schedule)
    assert out[128:160].tolist() == list(range(32, 64))


@schedules
def test_the_accesses_of_those_who_stay_are_ordered(schedule: int) -> None:
    # All lanes of a warp that stay read a word: one record of several lanes, some of which have exited.
    reads = "ld.global.u32 %r6, [%d0 + 1020];"
    writes = "@%p2 st.global.u32 [%d0 + 1020], 7;"
    out = launch(STORE, "bar.sync 0;", EXIT, reads, "bar.sync 0;", LOAD, writes, schedule=schedule)
    assert (out[128:160].tolist(), out[255]) == (list(range(32, 64)), 7)


@schedules
def test_a_lane_that_has_exited_without_an_access_changes_nothing(schedule: int) -> None:
    body = [EXIT, STORE, "bar.sync 0;", "@!%p3 exit;", LOAD]
    # The other warp's lanes 48 to 63 wrote nothing: only those whose neighbour did read it.
    out = launch("setp.gt.u32 %p3, %r5, 15; setp.lt.and.u32 %p3, %r5, 48, %p3;", *body, schedule=schedule)
    assert out[128 + 16 : 128 + 32].tolist() == [0] * 16
    assert out[128 : 128 + 16].tolist() == list(range(32, 48))


@schedules
def test_a_whole_warp_that_has_exited_is_not_ordered_either(schedule: int) -> None:
    with pytest.raises(ptx.RaceError) as caught:
        launch(STORE, EXIT, "bar.sync 0;", LOAD, schedule=schedule, last=31)
    assert (caught.value.kind, caught.value.other_thread) == ("write-read", (32, 0, 0))
