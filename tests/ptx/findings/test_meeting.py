"""A barrier is a remedy only if both threads of a race come to it, and all others of its block that are left."""

from __future__ import annotations

import numpy as np
import pytest
from support.findings.plain import CELLS
from support.ptx_kernel import line_of, text

from refmoe import ptx
from refmoe.ptx.engine import machine
from refmoe.ptx.engine.cluster.meetings import ClusterMeetings
from refmoe.ptx.findings.barriers import BARRIERS
from refmoe.ptx.findings.edits import PtxEdit
from refmoe.ptx.findings.finding import Finding
from refmoe.ptx.findings.meeting import exits_together, spare_barrier

# Each side has a barrier behind its access, and leaves. One before the load alone meets that of the writers, and the
# readers' own then meets nobody.
_SIDES = """
    mov.u32 %r3, cell; mad.lo.u32 %r4, %r1, 4, %r3;
    st.shared.u32 [%r4], 0;
    bar.sync 0;
    setp.ge.u32 %p1, %r1, {writers};
    @%p1 bra READ;
    st.shared.u32 [%r4], %r1;
    {barrier}
    {leave}
READ:
    ld.shared.u32 %r6, [%r4+{back}];
    {barrier}
    st.global.u32 [%d2], %r6;
    {leave}
"""
BLOCK = _SIDES.format(writers=32, back=-128, barrier="bar.sync 0;", leave="ret;")
EXITS = _SIDES.format(writers=32, back=-128, barrier="barrier.cta.sync 0;", leave="exit;")
WARP = _SIDES.format(writers=16, back=-64, barrier="bar.warp.sync 0xffffffff;", leave="ret;")
# The writers have a barrier that the readers lack.
TWIN = BLOCK.replace("bar.sync 0;\n    st.global", "st.global")
# Threads without work leave first, and all others meet.
FEW = """
    setp.ge.u32 %p1, %r1, 64;
    @%p1 ret;
    mov.u32 %r3, cell; mad.lo.u32 %r4, %r1, 4, %r3;
    xor.b32 %r5, %r1, 32; mad.lo.u32 %r6, %r5, 4, %r3;
    st.shared.u32 [%r4], 0;
    bar.sync 0;
    st.shared.u32 [%r4], %r1;
    ld.shared.u32 %r7, [%r6];
    st.global.u32 [%d2], %r7;
    ret;
"""
# A third warp has nothing to do but to meet the writers and the readers once.
IDLE = BLOCK.replace(
    "    setp.ge.u32 %p1",
    "    setp.ge.u32 %p2, %r1, 64;\n    @!%p2 bra WORK;\n    bar.sync 0;\n    ret;\nWORK:\n    setp.ge.u32 %p1",
)


def found(source: str, threads: int = 64) -> Finding:
    out, data = np.zeros(256, np.uint32), np.zeros(256, np.uint32)
    with pytest.raises(ptx.RaceError) as caught:
        ptx.launch(ptx.Module.parse(source), "k", (1, 1, 1), (threads, 1, 1), [out, data, 0])
    finding = caught.value.finding
    assert finding is not None
    return finding


@pytest.mark.parametrize("body", [BLOCK, EXITS], ids=["ret", "exit"])
def test_a_barrier_of_the_readers_alone_is_no_remedy(body: str) -> None:
    finding = found(text(body, CELLS))
    store, load = (line_of(body, each, module_scope=CELLS) for each in ("[%r4], %r1", "ld.shared"))
    assert finding.remedy == f"__syncthreads() (bar.sync 0) after line {store}, and before line {load}"
    assert (finding.clean, finding.same) == (True, True)


def test_a_barrier_of_some_lanes_alone_is_no_remedy() -> None:
    finding = found(text(WARP, CELLS), 32)
    assert "before" not in finding.remedy or "and before" in finding.remedy


def test_a_barrier_that_others_of_the_block_miss_is_no_remedy() -> None:
    finding = found(text(IDLE, CELLS), 96)
    assert not finding.clean, finding.remedy


def test_a_barrier_may_be_the_twin_of_one_that_is_there() -> None:
    finding = found(text(TWIN, CELLS))
    load = line_of(TWIN, "ld.shared", module_scope=CELLS)
    assert finding.remedy == f"__syncthreads() (bar.sync 0) before line {load}"
    assert finding.clean


def test_threads_that_left_before_need_not_come() -> None:
    finding = found(text(FEW, CELLS), 96)
    assert finding.remedy == f"__syncthreads() (bar.sync 0) before line {line_of(FEW, 'ld.shared', module_scope=CELLS)}"
    assert finding.clean


def test_a_barrier_that_nobody_names_is_spare() -> None:
    assert spare_barrier("bar.sync 0;\n barrier.cta.red.popc.u32 %r1, 15, 64, %p1; bar.arrive 14, 64;") == 13
    assert spare_barrier("".join(f"bar.sync {number};\n" for number in range(16))) is None


def test_threads_exit_together_under_the_guard_of_their_exit() -> None:
    edits = exits_together(ptx.Module.parse(text(FEW, CELLS)), 15)
    assert edits is not None
    assert [each.text.split() for each in edits] == [["@%p1", "barrier.sync", "15;"], ["barrier.sync", "15;"]]
    assert all(isinstance(each, PtxEdit) and each.where == "before" for each in edits)
    assert exits_together(ptx.Module.parse(text("@%p1 ret;", CELLS)), 15) is None


# Two blocks of a cluster: each side has a barrier of the cluster behind its access, and leaves.
_CLUSTER = """
    mul.wide.u32 %d3, %r1, 4; add.s64 %d3, %d3, %d0;
    setp.ne.u32 %p1, %r60, 0;
    @%p1 bra READ;
    st.global.u32 [%d3], %r1;
    {writers}
    ret;
READ:
    ld.global.u32 %r6, [%d3];
    {readers}
    st.global.u32 [%d3+512], %r6;
    ret;
"""
MEET = "barrier.cluster.arrive; barrier.cluster.wait;"


def found_in_a_cluster(source: str) -> Finding:
    out = np.full(256, 9, np.uint32)
    with pytest.raises(ptx.RaceError) as caught:
        ptx.launch(ptx.Module.parse(source), "k", (2, 1, 1), (32, 1, 1), [out, None, 0], cluster=(2, 1, 1))
    finding = caught.value.finding
    assert finding is not None
    return finding


def test_a_barrier_of_a_cluster_that_one_side_alone_comes_to_is_none() -> None:
    # One before the load alone meets that of the writers, and the readers' own meets nobody who is left.
    source = text(_CLUSTER.format(writers=MEET, readers=MEET))
    finding = found_in_a_cluster(source)
    assert finding.tried
    assert finding.remedy is not None
    store, load = (line_of(_CLUSTER.format(writers=MEET, readers=MEET), each) for each in ("st.global", "ld.global"))
    assert finding.remedy == f"barrier.cluster (cluster.sync()) after line {store}, and before line {load}"


def test_a_barrier_of_a_cluster_that_is_the_twin_of_one_is_a_remedy() -> None:
    # The writers have one behind their store, which the readers lack.
    body = _CLUSTER.format(writers=MEET, readers="")
    finding = found_in_a_cluster(text(body))
    assert finding.tried
    assert finding.remedy is not None
    assert finding.remedy.count("barrier.cluster") == 1
    assert f"line {line_of(body, 'ld.global')}" in finding.remedy


def test_barriers_that_are_there_need_not_be_met_equally_often() -> None:
    # Block 0 has exited when block 1 comes to its own barrier, which is spelled as those that are inserted.
    body = f"""
        mov.u32 %r3, 7;
        setp.ne.u32 %p1, %r60, 0; setp.ne.u32 %p2, %r1, 0;
        @%p1 bra READ;
        @%p2 ret;
        st.global.u32 [%d0+512], %r3;
        st.relaxed.gpu.global.u32 [%d0], %r3;
        ret;
    READ:
        @%p2 bra MEET;
    WAIT:
        ld.acquire.gpu.global.u32 %r4, [%d0];
        setp.ne.u32 %p3, %r4, 7;
        @%p3 bra WAIT;
        ld.global.u32 %r5, [%d0+512];
        st.global.u32 [%d0+512], %r5;
    MEET:
        {BARRIERS["cluster"][1]}
        ret;
    """
    finding = found_in_a_cluster(text(body))
    assert finding.remedy == f"st.release.gpu.global.u32 at line {line_of(body, 'st.relaxed')}"
    assert (finding.tried, finding.clean) == (True, True)


def test_how_often_threads_came_to_the_barrier_of_their_cluster() -> None:
    body = f"""
        setp.ne.u32 %p1, %r60, 2;
        {MEET}
        @%p1 bra END;
        {MEET}
        st.global.u32 [%d0], 1;
    END: ret;
    """
    seen: list[ClusterMeetings] = []
    launched = machine.Launch.put_back

    def put_back(state: machine.Launch, *given: object) -> None:
        seen.append(state.meetings)
        launched(state, *given)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(machine.Launch, "put_back", put_back)
        module = ptx.Module.parse(text(body))
        ptx.launch(module, "k", (4, 2, 1), (16, 2, 1), [np.zeros(4, np.uint32), None, 0], cluster=(2, 1, 1))
    of = seen[-1].of
    for y in (0, 1):
        for thread in ((0, 0, 0), (15, 1, 0)):
            assert [of(((x, y, 0), thread)) for x in range(4)] == [1, 1, 2, 1]
