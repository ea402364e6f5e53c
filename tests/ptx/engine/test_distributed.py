"""Clusters of several blocks: who is who, shared memory of other blocks, and what orders it."""

from __future__ import annotations

import numpy as np
import pytest
from support.ptx_kernel import compile_cuda, line_of, text

from refmoe import ptx
from refmoe.ptx.findings import unexplained

CELL = ".shared .align 16 .b8 cell[256];"
SYNC = "barrier.cluster.arrive.aligned; barrier.cluster.wait.aligned;"
SAVE = "st.global.u32 [%d2], %r20;"
# %r3: the own cell of each lane; %r9: rank; %r10: the next rank in the cluster.
NEXT = """
    mov.u32 %r3, cell; mad.lo.u32 %r3, %r1, 4, %r3;
    mov.u32 %r9, %cluster_ctarank; mov.u32 %r8, %cluster_nctarank;
    add.u32 %r10, %r9, 1; rem.u32 %r10, %r10, %r8;
"""
# Every block writes its cells, and reads those of the next block of its cluster.
EXCHANGE = (
    NEXT
    + """
    mad.lo.u32 %r4, %r9, 1000, %r1; st.shared.u32 [%r3], %r4;
    {first}
    mapa.shared::cluster.u32 %r5, %r3, %r10; ld.shared::cluster.u32 %r20, [%r5];
    {second}
"""
    + SAVE
    + "ret;"
)


def run(
    body: str,
    blocks: int = 4,
    cluster: int = 2,
    source: np.ndarray | None = None,
    threads: int = 32,
    directives: str = "",
    **options,
) -> np.ndarray:
    """out [blocks, threads] of a body with the cells above."""
    out = np.zeros((blocks, threads), np.uint32)
    module = ptx.Module.parse(text(body, declarations=CELL, directives=directives), name="test.ptx")
    shape = None if directives else (cluster, 1, 1)
    arguments = [out, source, 0]
    ptx.launch(module, "k", (blocks, 1, 1), (threads, 1, 1), arguments, step_budget=20000, cluster=shape, **options)
    return out


# Who is who


def registers(names: list[str], grid, cluster) -> np.ndarray:
    """Values of predefined registers [z, y, x, name] of the blocks of a grid."""
    reads = "".join(
        f"mov.u32 %r{10 + i}, {name}; st.global.u32 [%d3+{4 * i}], %r{10 + i};" for i, name in enumerate(names)
    )
    body = f"""
        mov.u32 %r3, %ctaid.y; mov.u32 %r4, %ctaid.z; mov.u32 %r5, %nctaid.x; mov.u32 %r6, %nctaid.y;
        mad.lo.u32 %r7, %r4, %r6, %r3; mad.lo.u32 %r7, %r7, %r5, %r60;
        mul.wide.u32 %d3, %r7, {4 * len(names)}; add.s64 %d3, %d3, %d0; {reads} ret;
    """
    out = np.zeros((*grid[::-1], len(names)), np.uint32)
    ptx.launch(ptx.Module.parse(text(body)), "k", grid, (1, 1, 1), [out, None, 0], cluster=cluster)
    return out


def test_every_block_knows_its_place() -> None:
    grid, cluster = (4, 6, 2), (2, 3, 1)
    names = [
        f"%{name}.{axis}" for name in ("clusterid", "cluster_ctaid", "nclusterid", "cluster_nctaid") for axis in "xyz"
    ]
    found = registers([*names, "%cluster_ctarank", "%cluster_nctarank"], grid, cluster)
    for z, y, x in np.ndindex(2, 6, 4):
        expected = [x // 2, y // 3, z, x % 2, y % 3, 0, 2, 2, 2, 2, 3, 1, x % 2 + 2 * (y % 3), 6]
        assert found[z, y, x].tolist() == expected


def test_whether_a_cluster_was_asked_for() -> None:
    body = "selp.u32 %r20, 1, 0, %p1;" + SAVE + "ret;"
    body = "mov.pred %p1, %is_explicit_cluster;" + body
    assert run(body, blocks=2, cluster=1).tolist() == [[1] * 32] * 2
    assert run(body, blocks=2, cluster=2).tolist() == [[1] * 32] * 2
    out = np.zeros(32, np.uint32)
    ptx.launch(ptx.Module.parse(text(body)), "k", (1, 1, 1), (32, 1, 1), [out, None, 0])
    assert not out.any()


@pytest.mark.parametrize(
    ("directives", "cluster", "grid", "message"),
    [
        (".reqnctapercluster 2", (4, 1, 1), (8, 1, 1), r"cluster \(4, 1, 1\); .reqnctapercluster \(2, 1, 1\)"),
        (".reqnctapercluster 2, 2", None, (8, 1, 1), r"cluster \(2, 2, 1\): the grid \(8, 1, 1\) is no multiple"),
        ("", (3, 1, 1), (8, 1, 1), r"cluster \(3, 1, 1\): the grid \(8, 1, 1\) is no multiple"),
        ("", (17, 1, 1), (17, 1, 1), "has 17 blocks; k in module.ptx may have 16"),
        (".maxclusterrank 4", (8, 1, 1), (8, 1, 1), "has 8 blocks; k in module.ptx may have 4"),
        (".explicitcluster", None, (8, 1, 1), "a cluster is needed, and none is given"),
        ("", (2, 0, 1), (8, 1, 1), "three positive sizes needed"),
    ],
)
def test_clusters_that_do_not_fit(directives: str, cluster, grid, message: str) -> None:
    module = ptx.Module.parse(text("ret;", directives=directives))
    with pytest.raises(ptx.ArgumentMismatch, match=message):
        ptx.launch(module, "k", grid, (32, 1, 1), [None, None, 0], cluster=cluster)


def test_a_cluster_runs_as_a_whole() -> None:
    body = EXCHANGE.format(first=SYNC, second=SYNC)
    module = ptx.Module.parse(text(body, declarations=CELL))
    out = np.zeros((6, 32), np.uint32)
    ptx.launch(module, "k", (6, 1, 1), (32, 1, 1), [out, None, 0], cluster=(2, 1, 1), blocks=[3, 2])
    assert out.any(axis=1).tolist() == [False, False, True, True, False, False]
    with pytest.raises(ptx.ArgumentMismatch, match=r"1 of the 2 blocks of the cluster at \(4, 0, 0\)"):
        ptx.launch(module, "k", (6, 1, 1), (32, 1, 1), [out, None, 0], cluster=(2, 1, 1), blocks=[2, 3, 5])


# Memory of other blocks


@pytest.mark.parametrize("at_once", [24576, 32])
@pytest.mark.parametrize(("blocks", "cluster"), [(2, 2), (12, 4), (32, 16)])
def test_exchange(monkeypatch: pytest.MonkeyPatch, blocks: int, cluster: int, at_once: int) -> None:
    monkeypatch.setattr("refmoe.ptx.launcher.LANES_AT_ONCE", at_once)
    rank = np.arange(blocks) % cluster
    expected = (rank[:, None] + 1) % cluster * 1000 + np.arange(32)
    assert (run(EXCHANGE.format(first=SYNC, second=SYNC), blocks, cluster) == expected).all()
    unchecked = ptx.Checks(races=False, uninitialised=False)
    assert (run(EXCHANGE.format(first=SYNC, second=SYNC), blocks, cluster, checks=unchecked) == expected).all()
    required = f".reqnctapercluster {cluster}"
    assert (run(EXCHANGE.format(first=SYNC, second=SYNC), blocks, directives=required) == expected).all()


@pytest.mark.parametrize(
    "way",
    [
        "mapa.shared::cluster.u32 %r5, %r3, %r10; st.shared::cluster.u32 [%r5], %r4;",
        "mapa.shared::cluster.u32 %r5, %r3, %r10; st.shared::cluster.relaxed.cluster.u32 [%r5], %r4;",
        "cvt.u64.u32 %d4, %r3; cvta.shared.u64 %d4, %d4; mapa.u64 %d5, %d4, %r10; st.u32 [%d5], %r4;",
        "cvt.u64.u32 %d4, %r3; mapa.shared::cluster.u64 %d5, %d4, %r10; cvta.shared::cluster.u64 %d5, %d5;"
        "st.u32 [%d5], %r4;",
        "mapa.shared::cluster.u32 %r5, %r3, %r10; atom.shared::cluster.exch.b32 %r6, [%r5], %r4;",
        "mapa.shared::cluster.u32 %r5, %r3, %r10; red.shared::cluster.add.u32 [%r5], %r4;",
        "cvt.u64.u32 %d4, %r3; cvta.shared.u64 %d4, %d4; mapa.u64 %d5, %d4, %r10; red.add.u32 [%d5], %r4;",
    ],
)
def test_ways_to_write_there(way: str) -> None:
    body = f"""{NEXT} st.shared.u32 [%r3], 0; mad.lo.u32 %r4, %r9, 1000, %r1;
        {SYNC} {way} {SYNC} ld.shared.u32 %r20, [%r3]; {SAVE} ret;"""
    rank = (np.arange(6) + 2) % 3
    assert (run(body, blocks=6, cluster=3) == rank[:, None] * 1000 + np.arange(32)).all()


def test_addresses_say_whose_they_are() -> None:
    body = f"""{NEXT}
        cvt.u64.u32 %d4, %r3; cvta.shared.u64 %d4, %d4; mapa.u64 %d5, %d4, %r10; mapa.u64 %d6, %d4, %r9;
        mapa.shared::cluster.u32 %r5, %r3, %r10;
        getctarank.u64 %r11, %d4; getctarank.u64 %r12, %d5; getctarank.shared::cluster.u32 %r13, %r5;
        isspacep.shared::cta %p1, %d5; isspacep.shared::cluster %p2, %d5; isspacep.shared %p3, %d6;
        isspacep.shared::cta %p4, %d4; isspacep.global %p5, %d5;
        mad.lo.u32 %r20, %r11, 10, %r12; mad.lo.u32 %r20, %r20, 10, %r13;
        selp.u32 %r14, 1, 0, %p1; mad.lo.u32 %r20, %r20, 10, %r14; selp.u32 %r14, 1, 0, %p2;
        mad.lo.u32 %r20, %r20, 10, %r14; selp.u32 %r14, 1, 0, %p3; mad.lo.u32 %r20, %r20, 10, %r14;
        selp.u32 %r14, 1, 0, %p4; mad.lo.u32 %r20, %r20, 10, %r14; selp.u32 %r14, 1, 0, %p5;
        mad.lo.u32 %r20, %r20, 10, %r14; {SAVE} ret;"""
    assert run(body, blocks=3, cluster=3)[:, 0].tolist() == [1101110, 12201110, 20001110]


def test_a_rank_that_the_cluster_has_not() -> None:
    with pytest.raises(ptx.MisuseError, match="rank 3 of a cluster of 3 blocks") as caught:
        run(f"{NEXT} add.u32 %r10, %r9, 1; mapa.shared::cluster.u32 %r5, %r3, %r10; ret;", blocks=3, cluster=3)
    assert caught.value.block == (2, 0, 0)


def test_an_access_to_the_own_block_takes_no_address_of_another() -> None:
    map_it = "mapa.shared::cluster.u32 %r5, %r3, %r10;"
    body = f"{NEXT} st.shared.u32 [%r3], 0; {SYNC} {map_it} ld.shared.u32 %r20, [%r5]; ret;"
    with pytest.raises(ptx.MemoryFault, match="out of bounds: shared read"):
        run(body)


def test_memory_of_another_block_has_bounds_and_is_not_written_by_itself() -> None:
    load = "mapa.shared::cluster.u32 %r5, %r3, %r10; ld.shared::cluster.u32 %r20, [%r5{}];"
    body = f"{NEXT} {SYNC} {load} {SYNC} ret;"
    with pytest.raises(ptx.MemoryFault, match="out of bounds: shared read of 4 bytes at byte 256 of"):
        run(body.format("+256"))
    with pytest.raises(
        ptx.MemoryFault, match=r"uninitialised: .* of shared memory \(256 bytes\) of block \(1, 0, 0\), block"
    ):
        run(body.format(""), checks=ptx.Checks(strict=True))
    with pytest.raises(ptx.MemoryFault, match="misaligned"):
        run(body.format("+2"))


# Order


@pytest.mark.parametrize(
    ("first", "second"),
    [
        ("", SYNC),
        ("bar.sync 0;", SYNC),
        ("barrier.cluster.arrive.aligned;", "barrier.cluster.wait.aligned;" + SYNC),
    ],
)
def test_without_the_first_barrier_nothing_is_ordered(first: str, second: str) -> None:
    with pytest.raises((ptx.RaceError, ptx.MemoryFault)):
        run(EXCHANGE.format(first=first, second=second))


RELAXED = "barrier.cluster.arrive.relaxed.aligned; barrier.cluster.wait.acquire.aligned;"


@pytest.mark.parametrize("fence", ["fence.acq_rel.cluster;", "fence.sc.gpu;", "membar.gl;"])
def test_a_fence_before_a_relaxed_arrival_orders(fence: str) -> None:
    run(EXCHANGE.format(first=fence + RELAXED, second=SYNC))


@pytest.mark.parametrize(
    "first",
    [
        RELAXED,
        "fence.acq_rel.cta;" + RELAXED,
        "fence.mbarrier_init.release.cluster;" + RELAXED,
        RELAXED.replace("barrier.cluster.wait", "fence.acq_rel.cluster; barrier.cluster.wait"),
        "setp.eq.u32 %p1, %r1, 7; @%p1 fence.acq_rel.cluster;" + RELAXED,
    ],
)
def test_a_relaxed_arrival_alone_orders_nothing(first: str) -> None:
    with pytest.raises(ptx.RaceError, match="write-read"):
        run(EXCHANGE.format(first=first, second=SYNC))


@pytest.mark.parametrize("meet", ["", "bar.warp.sync -1;"])
def test_a_relaxed_arrival_does_not_unite_the_lanes_of_a_warp(meet: str) -> None:
    body = f"""{NEXT} st.shared.u32 [%r3], %r1; fence.acq_rel.cluster; st.shared.u32 [%r3+128], %r1;
        {RELAXED} {meet}
        xor.b32 %r5, %r1, 1; mov.u32 %r6, cell; mad.lo.u32 %r5, %r5, 4, %r6;
        ld.shared.u32 %r20, [%r5]; ld.shared.u32 %r21, [%r5+128]; {SAVE} ret;"""
    if meet:
        assert run(body).tolist() == [[lane ^ 1 for lane in range(32)]] * 4
        return
    with pytest.raises(ptx.RaceError) as caught:
        run(body)
    # What lies before the fence is ordered, and only that.
    assert "+128" in caught.value.text


# Rank 0 initialises the barrier of each block; all arrive at that of the next one.
INITIALISED = """
    {next} mov.u32 %r6, bar; setp.eq.u32 %p1, %r1, 0; setp.eq.u32 %p2, %r1, {fences};
    @%p1 mbarrier.init.shared.b64 [%r6], 32;
    @%p2 fence.mbarrier_init.release.cluster;
    {barrier}
    mapa.shared::cluster.u32 %r5, %r6, %r10;
    mbarrier.arrive.release.{scope}.shared::cluster.b64 _, [%r5];
    AGAIN: mbarrier.try_wait.parity.acquire.{waits}.shared::cta.b64 %p3, [%r6], 0; @!%p3 bra AGAIN;
    {sync} ret;
"""


def initialised(barrier: str = RELAXED, fences: int = 0, scope: str = "cluster", waits: str = "cluster") -> None:
    body = INITIALISED.format(next=NEXT, barrier=barrier, fences=fences, scope=scope, waits=waits, sync=SYNC)
    module = ptx.Module.parse(text(body, declarations=CELL + BAR), name="test.ptx")
    ptx.launch(module, "k", (2, 1, 1), (32, 1, 1), [None, None, 0], step_budget=20000, cluster=(2, 1, 1))


def test_a_fence_of_mbarrier_init_orders_that_of_its_own_thread() -> None:
    initialised()
    initialised(SYNC, fences=99)
    for fences in (99, 1):
        with pytest.raises(ptx.RaceError, match="write-read"):
            initialised(fences=fences)


@pytest.mark.parametrize("part", ["", "scope", "waits"])
def test_an_arrival_from_another_block_and_its_wait_need_the_scope_of_the_cluster(part: str) -> None:
    # The data is written into the next block, whose threads wait there.
    remote_write = "mapa.shared::cluster.u32 %r7, %r3, %r10; st.shared::cluster.u32 [%r7], %r1;"
    spelled = {"scope": "cluster", "waits": "cluster", **({part: "cta"} if part else {})}
    body = INITIALISED.format(next=NEXT, barrier=SYNC + remote_write, fences=0, sync="", **spelled)
    out = np.zeros((2, 32), np.uint32)
    source = text(body.replace("ret;", f"ld.shared.u32 %r20, [%r3]; {SAVE} {SYNC} ret;"), declarations=CELL + BAR)
    arguments = [out, None, 0]

    def launch() -> None:
        ptx.launch(ptx.Module.parse(source), "k", (2, 1, 1), (32, 1, 1), arguments, cluster=(2, 1, 1))

    if not part:
        launch()
        assert out.tolist() == [list(range(32))] * 2
        return
    with pytest.raises(ptx.RaceError, match="write-read"):
        launch()


@pytest.mark.parametrize("first", ["", "bar.sync 0;", "barrier.cluster.arrive.aligned;"])
def test_another_block_may_not_have_started(first: str) -> None:
    wait = "barrier.cluster.wait.aligned;" if "arrive" in first else ""
    write = "mapa.shared::cluster.u32 %r5, %r3, %r10; st.shared::cluster.u32 [%r5], %r1;"
    body = f"{NEXT} {first} {write} {wait} {SYNC} ld.shared.u32 %r20, [%r3]; {SAVE} ret;"
    if wait:
        # An arrival alone may be too early: it depends on the schedule.
        body = body.replace(first, f"{SYNC} {first}")
        assert run(body).tolist() == [list(range(32))] * 4
        return
    with pytest.raises(ptx.MemoryFault, match=r"not started: .* which may not have started"):
        run(body)
    assert run(body.replace(write, SYNC + write)).tolist() == [list(range(32))] * 4


def test_a_race_names_both_blocks() -> None:
    body = f"""{NEXT} st.shared.u32 [%r3], 7; {SYNC}
        setp.ne.u32 %p1, %r9, 0; @%p1 bra WRITE;
        mapa.shared::cluster.u32 %r5, %r3, 1; ld.shared::cluster.u32 %r20, [%r5]; bra DONE;
    WRITE: st.shared.u32 [%r3], 8;
    DONE: {SYNC} ret;"""
    with pytest.raises(
        ptx.RaceError, match=r"race on byte 0 of shared memory \(shared\) of block \(1, 0, 0\)"
    ) as caught:
        run(body)
    assert {caught.value.block, caught.value.other_block} == {(0, 0, 0), (1, 0, 0)}


def test_clusters_are_not_ordered_among_each_other() -> None:
    """Their barriers are apart: a word of global memory that two clusters write is a race."""
    body = f"setp.ne.u32 %p1, %r1, 0; @!%p1 st.global.u32 [%d0], %r60; {SYNC} @!%p1 st.global.u32 [%d0], %r60; ret;"
    with pytest.raises(ptx.RaceError) as caught:
        run(body)
    assert caught.value.block != caught.value.other_block


def test_global_memory_is_ordered_inside_a_cluster() -> None:
    body = f"""{NEXT} mad.lo.u32 %r4, %r60, 1000, %r1; st.global.u32 [%d2], %r4; {SYNC}
        sub.u32 %r5, %r60, %r9; add.u32 %r5, %r5, %r10; mad.lo.u32 %r5, %r5, 32, %r1;
        mul.wide.u32 %d3, %r5, 4; add.s64 %d3, %d3, %d0; ld.global.u32 %r20, [%d3]; {{}} {SAVE} ret;"""
    neighbour = np.arange(4) ^ 1
    assert (run(body.format(SYNC)) == neighbour[:, None] * 1000 + np.arange(32)).all()
    with pytest.raises(ptx.RaceError):
        run(body.format(""))


def test_a_block_that_leaves_too_early() -> None:
    """Reads of another block's memory must be over before that block ends."""
    body = EXCHANGE.format(first=SYNC, second="")
    with pytest.raises(ptx.RaceError, match="exits, and nothing orders an access to its shared memory") as caught:
        run(body)
    assert caught.value.kind == "exit"
    assert caught.value.line == line_of(body, "ret;", declarations=CELL)
    assert caught.value.block[0] // 2 == caught.value.other_block[0] // 2
    # Arriving is enough for the reader, waiting for the owner.
    halves = (
        "barrier.cluster.arrive.aligned; setp.ne.u32 %p1, %r9, 9; @!%p1 bra OUT; barrier.cluster.wait.aligned; OUT:"
    )
    assert run(EXCHANGE.format(first=SYNC, second=halves)).any()


@pytest.mark.parametrize("label", ["", "bra LAST; LAST:"], ids=["in its block", "in a block of its own"])
@pytest.mark.parametrize("last", ["st.global.u32 [%d2], %r20;", "st.global.u32 [%d2], 1; st.global.u32 [%d2], %r20;"])
def test_an_exit_behind_an_access_is_seen(label: str, last: str) -> None:
    body = f"""
        mov.u32 %r3, cell; mad.lo.u32 %r3, %r1, 4, %r3; st.shared.u32 [%r3], %r2; {SYNC}
        mov.u32 %r9, %cluster_ctarank; xor.b32 %r9, %r9, 1;
        mapa.shared::cluster.u32 %r6, %r3, %r9; ld.shared::cluster.u32 %r20, [%r6];
        {label} {last} ret;
    """
    module = ptx.Module.parse(text(body, declarations=CELL), name="test.ptx")
    with pytest.raises(ptx.RaceError) as caught:
        ptx.launch(module, "k", (2, 1, 1), (32, 1, 1), [np.zeros(64, np.uint32), None, 0], cluster=(2, 1, 1))
    assert caught.value.kind == "exit"


@pytest.mark.parametrize("waits", [0, 1])
def test_one_warp_of_a_block_may_wait_for_whoever_uses_its_memory(waits: int) -> None:
    """The warps of block 0 need not all know of the access of block 1: one is the last to leave."""
    program = f"""
        mov.u32 %r3, cell; mov.u32 %r4, bar; mov.u32 %r9, %cluster_ctarank; shr.u32 %r5, %r1, 5;
        setp.eq.u32 %p1, %r1, 0; @%p1 mbarrier.init.shared.b64 [%r4], 64;
        mad.lo.u32 %r3, %r1, 4, %r3; st.shared.u32 [%r3], 7; {SYNC}
        setp.eq.u32 %p1, %r9, 0; @%p1 bra OWNER;
        mapa.shared::cluster.u32 %r6, %r3, 0; ld.shared::cluster.u32 %r20, [%r6];
        mapa.shared::cluster.u32 %r7, %r4, 0; mbarrier.arrive.release.cluster.shared::cluster.b64 _, [%r7]; ret;
    OWNER: setp.ne.u32 %p2, %r5, {waits}; @%p2 bra OUT;
    {{wait}}
    OUT: ret;
    """
    wait = "AGAIN: mbarrier.try_wait.parity.acquire.cluster.shared::cta.b64 %p3, [%r4], 0; @!%p3 bra AGAIN;"

    def launch(wait: str) -> None:
        module = ptx.Module.parse(text(program.format(wait=wait), declarations=CELL + BAR), name="test.ptx")
        ptx.launch(module, "k", (2, 1, 1), (64, 1, 1), [None, None, 0], cluster=(2, 1, 1))

    launch(wait)
    with pytest.raises(ptx.MemoryFault, match="gone with block"):
        launch("")


def test_a_block_that_has_left() -> None:
    body = f"""{NEXT} st.shared.u32 [%r3], 7; {SYNC} setp.ne.u32 %p1, %r9, 0; @%p1 exit;
        mov.u32 %r11, 0;
    WAIT: add.u32 %r11, %r11, 1; setp.lt.u32 %p2, %r11, 100; @%p2 bra WAIT;
        mapa.shared::cluster.u32 %r5, %r3, %r10; ld.shared::cluster.u32 %r20, [%r5]; ret;"""
    with pytest.raises(ptx.MemoryFault, match=r"gone: .* gone with block \(1, 0, 0\), which has exited") as caught:
        run(body)
    assert (caught.value.kind, caught.value.block) == ("gone", (0, 0, 0))


# Barriers in memory

BAR = ".shared .align 8 .b64 bar;"
REMOTE = """
    mov.u32 %r3, cell; mad.lo.u32 %r3, %r1, 4, %r3; mov.u32 %r9, %cluster_ctarank;
    setp.ne.u32 %p1, %r1, 0; @!%p1 mbarrier.init.shared::cta.b64 [bar], 32;
    fence.mbarrier_init.release.cluster;
    barrier.cluster.arrive.aligned; barrier.cluster.wait.aligned;
    setp.eq.u32 %p2, %r9, 0; @%p2 bra CONSUME;
    mapa.shared::cluster.u32 %r5, %r3, 0; st.shared::cluster.u32 [%r5], %r1;
    mov.u32 %r6, bar; mapa.shared::cluster.u32 %r6, %r6, 0;
    {arrive}
    bra DONE;
CONSUME:
    mbarrier.try_wait.parity.acquire.cluster.shared::cta.b64 %p3, [bar], 0; @!%p3 bra CONSUME;
    ld.shared.u32 %r20, [%r3]; st.global.u32 [%d2], %r20;
DONE:
    barrier.cluster.arrive.aligned; barrier.cluster.wait.aligned; ret;
"""


def remote(arrive: str, **options) -> np.ndarray:
    out = np.zeros((2, 32), np.uint32)
    module = ptx.Module.parse(text(REMOTE.format(arrive=arrive), declarations=CELL + BAR), name="test.ptx")
    ptx.launch(module, "k", (2, 1, 1), (32, 1, 1), [out, None, 0], step_budget=20000, cluster=(2, 1, 1), **options)
    return out[0]


def test_arriving_at_the_barrier_of_another_block() -> None:
    arrive = "mbarrier.arrive.release.cluster.shared::cluster.b64 _, [%r6];"
    assert remote(arrive).tolist() == list(range(32))
    with pytest.raises(ptx.RaceError):
        remote("mbarrier.arrive.relaxed.cluster.shared::cluster.b64 _, [%r6];")
    with pytest.raises(ptx.Deadlock, match=r"31 of 32 arrivals|1 of 32 arrivals"):
        remote("@%p1 " + arrive)


def test_waiting_at_the_barrier_of_another_block() -> None:
    wait = """cvt.u64.u32 %d4, %r6; cvta.shared::cluster.u64 %d4, %d4;
        mbarrier.test_wait.parity.b64 %p3, [%d4], 0;"""
    with pytest.raises(ptx.MisuseError, match=r"a wait for the mbarrier .* of block \(0, 0, 0\), another block"):
        remote(wait)


def test_a_deadlock_of_a_cluster() -> None:
    body = f"{NEXT} setp.eq.u32 %p1, %r9, 0; @%p1 bra OTHER; {SYNC} ret; OTHER: bar.sync 1, 64; ret;"
    with pytest.raises(ptx.Deadlock, match=r"the cluster barrier of block \(1, 0, 0\)"):
        run(body)


def test_a_block_that_has_left_is_not_waited_for() -> None:
    body = f"{NEXT} mov.u32 %r20, 5; setp.eq.u32 %p1, %r9, 0; @%p1 exit; {SYNC} {SAVE} ret;"
    assert run(body).tolist() == [[0] * 32, [5] * 32] * 2


# As nvcc compiles it

HISTOGRAM = r"""
#include <cooperative_groups.h>
namespace cg = cooperative_groups;
extern "C" __global__ void k(int* bins, int nbins, int per_block, const int* in, int n) {
    extern __shared__ int smem[];
    auto cluster = cg::this_cluster();
    int tid = cg::this_grid().thread_rank();
    for (int i = threadIdx.x; i < per_block; i += blockDim.x) smem[i] = 0;
    cluster.sync();
    for (int i = tid; i < n; i += blockDim.x * gridDim.x) {
        int bin = min(max(in[i], 0), nbins - 1);
        int* there = cluster.map_shared_rank(smem, bin / per_block);
        atomicAdd(there + bin % per_block, 1);
    }
    cluster.sync();
    for (int i = threadIdx.x; i < per_block; i += blockDim.x)
        atomicAdd(bins + cluster.block_rank() * per_block + i, smem[i]);
}
"""


def test_a_histogram_in_distributed_shared_memory(tmp_path) -> None:
    """The example of the CUDA C++ Programming Guide."""
    source = np.random.default_rng(2).integers(0, 64, 2000).astype(np.int32)
    bins = np.zeros(64, np.int32)
    module = compile_cuda(HISTOGRAM, tmp_path)
    arguments = [bins, 64, 16, source, source.size]
    ptx.launch(module, "k", (8, 1, 1), (64, 1, 1), arguments, shared_bytes=64, cluster=(4, 1, 1))
    np.testing.assert_array_equal(bins, np.bincount(source, minlength=64))


@pytest.mark.parametrize("which", [0, 1])
def test_a_histogram_without_a_barrier(tmp_path, which: int) -> None:
    parts = HISTOGRAM.split("    cluster.sync();\n")
    body = parts[0] + ("" if which == 0 else "    cluster.sync();\n") + parts[1]
    body += ("" if which == 1 else "    cluster.sync();\n") + parts[2]
    source = np.random.default_rng(2).integers(0, 64, 2000).astype(np.int32)
    arguments = [np.zeros(64, np.int32), 64, 16, source, source.size]
    with unexplained(), pytest.raises((ptx.RaceError, ptx.MemoryFault)):
        ptx.launch(
            compile_cuda(body, tmp_path), "k", (8, 1, 1), (64, 1, 1), arguments, shared_bytes=64, cluster=(4, 1, 1)
        )


# Asynchronous stores

ASYNC = """
    mov.u32 %r3, cell; mad.lo.u32 %r3, %r1, 8, %r3; mov.u32 %r9, %cluster_ctarank;
    st.shared.v2.u32 [%r3], {{5, 5}};
    setp.ne.u32 %p1, %r1, 0; @!%p1 mbarrier.init.shared::cta.b64 [bar], 1;
    @!%p1 mbarrier.init.shared::cta.b64 [bar+8], 1;
    fence.mbarrier_init.release.cluster;
    barrier.cluster.arrive.aligned; barrier.cluster.wait.aligned;
    @!%p1 mbarrier.arrive.expect_tx.shared::cta.b64 _, [bar], {bytes};
    setp.eq.u32 %p2, %r9, 0; @%p2 bra CONSUME;
    mapa.shared::cluster.u32 %r5, %r3, 0; mov.u32 %r6, bar; mapa.shared::cluster.u32 %r7, %r6, {rank};
    add.u32 %r8, %r1, 100;
    {write}
    bra DONE;
CONSUME:
    {wait}
    ld.shared.u32 %r20, [%r3]; st.global.u32 [%d2], %r20;
DONE:
    barrier.cluster.arrive.aligned; barrier.cluster.wait.aligned; ret;
"""
WAIT = "mbarrier.try_wait.parity.acquire.cluster.shared::cta.b64 %p3, [bar], 0; @!%p3 bra CONSUME;"
BYTES = ".mbarrier::complete_tx::bytes"


def asynchronous(write: str, size: int, wait: str = WAIT, rank: int = 0) -> list[int]:
    out = np.zeros((2, 32), np.uint32)
    declarations = ".shared .align 16 .b8 cell[256]; .shared .align 8 .b64 bar[2];"
    body = ASYNC.format(write=write, bytes=32 * size, wait=wait, rank=rank)
    module = ptx.Module.parse(text(body, declarations=declarations), name="test.ptx")
    ptx.launch(module, "k", (2, 1, 1), (32, 1, 1), [out, None, 0], step_budget=20000, cluster=(2, 1, 1))
    return out[0].tolist()


@pytest.mark.parametrize(
    ("write", "size", "expected"),
    [
        (f"st.async.shared::cluster{BYTES}.u32 [%r5], %r8, [%r7];", 4, lambda i: i + 100),
        (f"st.async.weak.shared::cluster{BYTES}.v2.b32 [%r5], {{%r1, %r8}}, [%r7];", 8, lambda i: i),
        (f"mov.u64 %d5, 7; st.async.shared::cluster{BYTES}.b64 [%r5], %d5, [%r7];", 8, lambda i: 7),
        (f"red.async.relaxed.cluster.shared::cluster{BYTES}.add.u32 [%r5], %r8, [%r7];", 4, lambda i: i + 105),
        (f"red.async.relaxed.cluster.shared::cluster{BYTES}.max.s32 [%r5], -3, [%r7];", 4, lambda i: 5),
        (f"red.async.relaxed.cluster.shared::cluster{BYTES}.xor.b32 [%r5], %r1, [%r7];", 4, lambda i: i ^ 5),
    ],
)
def test_asynchronous_writes(write: str, size: int, expected) -> None:
    assert asynchronous(write, size) == [expected(i) for i in range(32)]
    with pytest.raises((ptx.RaceError, ptx.MemoryFault)):
        asynchronous(write, size, wait="")
    with pytest.raises(ptx.Deadlock, match="bytes pending"):
        asynchronous(write, size + 4)


def test_atomics_of_all_lanes_meet_at_one_word() -> None:
    write = f"""mapa.shared::cluster.u32 %r5, cell, 0;
        red.async.relaxed.cluster.shared::cluster{BYTES}.add.u32 [%r5], %r1, [%r7];"""
    assert asynchronous(write, 4) == [5 + 496] + [5] * 31


def test_the_writer_does_not_see_its_own_bytes_early() -> None:
    write = f"st.async.shared::cluster{BYTES}.u32 [%r5], %r8, [%r7]; ld.shared::cluster.u32 %r20, [%r5];"
    with pytest.raises(ptx.RaceError, match=r"an asynchronous copy of thread \(0, 0, 0\)"):
        asynchronous(write, 4)


def test_two_values_for_one_word_race() -> None:
    write = f"mapa.shared::cluster.u32 %r5, cell, 0; st.async.shared::cluster{BYTES}.u32 [%r5], %r8, [%r7];"
    with pytest.raises(ptx.RaceError, match="write-write race"):
        asynchronous(write, 4)


def test_the_barrier_lies_beside_the_bytes() -> None:
    write = f"st.async.shared::cluster{BYTES}.u32 [%r5], %r8, [%r7];"
    with pytest.raises(ptx.MisuseError, match=r"bytes of block \(0, 0, 0\), which complete on .* of block \(1, 0, 0\)"):
        asynchronous(write, 4, rank=1)


def test_a_wait_for_another_barrier_orders_nothing() -> None:
    write = f"""st.async.shared::cluster{BYTES}.u32 [%r5], %r8, [%r7];
        @!%p1 mbarrier.arrive.release.cluster.shared::cluster.b64 _, [%r7+8];"""
    with pytest.raises(ptx.RaceError, match="write-read"):
        asynchronous(write, 4, wait=WAIT.replace("[bar]", "[bar+8]"))


@pytest.mark.parametrize("threads", [224, 256])
@pytest.mark.parametrize("sync", ["", "bar.sync 0;"])
@pytest.mark.parametrize("stride", [4, 8])
def test_the_last_warps_of_a_large_cluster_are_watched_as_the_first(threads: int, sync: str, stride: int) -> None:
    # Of eight blocks with 256 threads the last warp is number 63 of its cluster. It reads; the one before it sleeps and
    # writes, so that the read is what has to be remembered.
    last = threads // 32 - 1
    body = f"""
        mov.u32 %r3, cell; and.b32 %r4, %r1, 31; mad.lo.u32 %r3, %r4, {stride}, %r3;
        mov.u32 %r9, %cluster_ctarank; shr.u32 %r5, %r1, 5;
        st.shared.u32 [%r3], 7;
        {SYNC}
        setp.ne.u32 %p1, %r9, 7; @%p1 bra END;
        setp.ne.u32 %p2, %r5, {last}; @%p2 bra READ;
        ld.shared.u32 %r20, [%r3];
    READ:
        {sync}
        setp.ne.u32 %p3, %r5, {last - 1}; @%p3 bra END;
        nanosleep.u32 1000;
        st.shared.u32 [%r3], 8;
    END:
        {SYNC}
        ret;
    """
    if sync:
        run(body, blocks=8, cluster=8, threads=threads)
        return
    with pytest.raises(ptx.RaceError) as caught:
        run(body, blocks=8, cluster=8, threads=threads)
    assert caught.value.kind in ("read-write", "write-read")
