"""What a strong access takes the place of is not forgotten: it may race with what the strong one does not race with."""

from __future__ import annotations

import re

import numpy as np
import pytest
from support.findings.accesses import MODES, looking, random_program, verdict
from support.ptx_kernel import run

from refmoe import ptx
from refmoe.ptx.findings import unexplained

# Thread 0 of block 0, then thread 32 of block 0, then block 1: its thread 0, then its thread 32.
BODY = """
    setp.eq.u32 %p1, %r60, 0; setp.eq.u32 %p2, %r1, 0; setp.eq.u32 %p3, %r1, 32;
    mov.u32 %r3, 7; mov.u64 %d3, 9;
    @!%p1 bra other;
    {first}
    {meeting}
    {second}
    bra end;
other:
    {third}
end:
    {last}
    ret;
"""
PLAIN, RELAXED = "st.global.u32 [%d1], %r3;", "st.relaxed.gpu.global.u32 [%d1], %r3;"
LOAD = "ld.relaxed.gpu.global.u32 %r4, [%d1];"


def kernel(first: str, second: str, third: str, meeting: str = "bar.sync 0;", last: str = "") -> str:
    """The body of a launch of two blocks; each of the three is one instruction or several."""
    steps = {name: _of(step, guard) for name, step, guard in (
        ("first", first, "%p2"), ("second", second, "%p3"), ("third", third, "%p2"),
    )}  # fmt: skip
    return BODY.format(**steps, meeting=meeting, last=last)


def _of(step: str, guard: str) -> str:
    parts = [each.strip() for each in re.findall(r"[^;]+;", step)]
    return " ".join(each if each.startswith(("bar", "@")) else f"@{guard} {each}" for each in parts)


def launch(body: str, cluster: tuple[int, int, int] | None = None) -> ptx.LaunchResult:
    """Two blocks of 64 threads."""
    directives = "" if cluster is None else ".reqnctapercluster 2"
    with unexplained():
        return run(
            body, np.zeros(128, np.uint32), np.zeros(64, np.uint32), grid=(2, 1, 1), block=(64, 1, 1),
            directives=directives,
        )  # fmt: skip


RACY = {
    "a strong write of another warp": (PLAIN, RELAXED, LOAD, "write-read"),
    "its own strong write": (PLAIN + RELAXED, "", LOAD, "write-read"),
    "an atomic": (PLAIN, "red.relaxed.gpu.global.add.u32 [%d1], %r3;", LOAD, "write-read"),
    "of which a part is read": (
        "st.global.v2.u32 [%d1], {%r3, %r3};", "st.relaxed.gpu.global.u64 [%d1], %d3;",
        "ld.relaxed.gpu.global.u64 %d5, [%d1];", "write-read",
    ),
    "a byte of it": (
        "st.global.u8 [%d1+2], %r3;", RELAXED, LOAD, "write-read",
    ),
    "a strong write of the block alone": (
        "st.relaxed.cta.global.u32 [%d1], %r3;", RELAXED, LOAD, "write-read",
    ),
    "two strong writes": (PLAIN, RELAXED + RELAXED, LOAD, "write-read"),
    "who stores": (PLAIN, RELAXED, "st.relaxed.gpu.global.u32 [%d1], 3;", "write-write"),
    "who adds": (PLAIN, RELAXED, "atom.relaxed.gpu.global.add.u32 %r4, [%d1], 3;", "write-write"),
    "who acquires what released nothing": (PLAIN, RELAXED, "ld.acquire.gpu.global.u32 %r4, [%d1];", "write-read"),
    "who acquires in its block alone": (
        PLAIN, "st.release.gpu.global.u32 [%d1], %r3;", "ld.acquire.cta.global.u32 %r4, [%d1];", "write-read",
    ),
    "a read of another width between": (
        LOAD, "", "ld.relaxed.gpu.global.u64 %d5, [%d1]; bar.sync 0; @%p3 st.relaxed.gpu.global.u64 [%d1], %d3;",
        "read-write",
    ),
    "a write of another width between": (
        "st.relaxed.gpu.global.u64 [%d1], %d3;", "", "ld.relaxed.gpu.global.u32 %r4, [%d1];", "write-read",
    ),
}  # fmt: skip


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("name", RACY)
def test_what_a_strong_write_took_the_place_of_races(name: str, mode: str) -> None:
    first, second, third, kind = RACY[name]
    with looking(mode), pytest.raises(ptx.RaceError, match=f"^{kind} race on byte") as caught:
        launch(kernel(first, second, third))
    error = caught.value
    verb = {"write-read": "reads after a write by", "write-write": "writes after a write by"}.get(kind)
    if verb is not None:
        assert f"{verb} thread (0, 0, 0) of block (0, 0, 0)" in str(error)
        assert (error.block, error.other_block) == ((1, 0, 0), (0, 0, 0))


# A release and an acquire that reads from it, or barriers, between the plain write and whoever else accesses the place.
_WAIT = "wait: ld.acquire.gpu.global.u32 %r4, [%d1]; setp.ne.u32 %p6, %r4, 7; @%p6 bra wait;"
_FENCED = "wait: ld.relaxed.gpu.global.u32 %r4, [%d1]; setp.ne.u32 %p6, %r4, 7; @%p6 bra wait; fence.acq_rel.gpu;"
RIGHT = {
    "released": (PLAIN, "st.release.gpu.global.u32 [%d1+4], %r3;", _WAIT.replace("[%d1]", "[%d1+4]") + LOAD),
    "fenced": (
        PLAIN, RELAXED + "fence.acq_rel.gpu; st.relaxed.gpu.global.u32 [%d1+4], %r3;",
        _FENCED.replace("[%d1]", "[%d1+4]") + LOAD,
    ),
    "fenced, and stored": (
        PLAIN, RELAXED + "fence.acq_rel.gpu; st.relaxed.gpu.global.u32 [%d1+4], %r3;",
        _FENCED.replace("[%d1]", "[%d1+4]") + "st.relaxed.gpu.global.u32 [%d1], 3;",
    ),
    "strong from the start": (RELAXED, RELAXED, LOAD),
    "atomics alone": (
        "red.relaxed.gpu.global.add.u32 [%d1], %r3;", RELAXED, "atom.relaxed.gpu.global.add.u32 %r4, [%d1], 3;",
    ),
    "its own": (PLAIN + RELAXED + LOAD, "ld.relaxed.cta.global.u32 %r4, [%d1];", ""),
    "of other bytes": (PLAIN, RELAXED, "ld.relaxed.gpu.global.u32 %r4, [%d1+4];"),
}  # fmt: skip


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("name", RIGHT)
def test_what_is_ordered_or_strong_does_not_race(name: str, mode: str) -> None:
    first, second, third = RIGHT[name]
    # Loops stand in one thread's way alone.
    body = kernel(first, second, "").replace("other:", f"other: @!%p2 bra end; {third}")
    with looking(mode):
        assert not launch(body).warnings


@pytest.mark.parametrize("meets", [True, False], ids=["of one cluster that meets", "that nobody meets"])
def test_a_barrier_of_the_cluster_orders_the_plain_write(meets: bool) -> None:
    meeting = "barrier.cluster.arrive.aligned; barrier.cluster.wait.aligned;"
    # Block 1 reads behind the barrier, to which block 0 comes before or after its accesses.
    body = f"""
        setp.eq.u32 %p1, %r60, 0; setp.eq.u32 %p2, %r1, 0; setp.eq.u32 %p3, %r1, 32; mov.u32 %r3, 7;
        and.pred %p4, %p1, %p2; and.pred %p5, %p1, %p3; not.pred %p6, %p1; and.pred %p6, %p6, %p2;
        {"" if meets else meeting}
        @%p4 {PLAIN}
        bar.sync 0;
        @%p5 st.relaxed.cluster.global.u32 [%d1], %r3;
        {meeting if meets else ""}
        @%p6 ld.relaxed.cluster.global.u32 %r4, [%d1];
        ret;
    """
    if meets:
        assert not launch(body, (2, 1, 1)).warnings
        return
    with pytest.raises(ptx.RaceError, match="write-read race"):
        launch(body, (2, 1, 1))


# Of shared memory the reads of each warp have records of their own
SHARED = """
    mov.u32 %r3, cell; setp.eq.u32 %p1, %r1, 0; setp.eq.u32 %p2, %r1, 32; setp.eq.u32 %p3, %r1, 64;
    @%p1 st.shared.u32 [%r3], %r1;
    bar.sync 1, 64;
    @%p2 st.relaxed.cta.shared.u32 [%r3], 7;
    bra end;
third:
    {meeting}
    {access}
end:
    ret;
"""


@pytest.mark.parametrize("access", ["ld.relaxed.cta.shared.u32 %r4, [%r3];", "atom.shared.add.u32 %r4, [%r3], 1;"])
@pytest.mark.parametrize("meets", [True, False], ids=["behind a barrier", "that meets nobody"])
def test_shared_memory(access: str, meets: bool) -> None:
    count = 96 if meets else 64
    body = SHARED.format(meeting=f"bar.sync 1, {count};" if meets else "", access=f"@%p3 {access}")
    body = body.replace("bar.sync 1, 64;", f"setp.ge.u32 %p5, %r1, 64; @%p5 bra third; bar.sync 1, {count};")
    options = {"block": (96, 1, 1), "declarations": ".shared .align 4 .b8 cell[4];"}
    # Whoever comes too early would read bytes that nobody wrote.
    checks = ptx.Checks(uninitialised=False)
    if meets:
        run(body, np.zeros(96, np.uint32), checks=checks, **options)
        return
    with unexplained(), pytest.raises(ptx.RaceError, match=r"write-(read|write) race|read-write race"):
        run(body, np.zeros(96, np.uint32), checks=checks, **options)


def test_equal_values_are_a_warning_where_they_race_for_certain() -> None:
    # Thread 64 stores what is there already. One record stands for the strong reads of all, and for its own plain read.
    body = """
        setp.eq.u32 %p2, %r1, 64; mov.u32 %r3, 0;
        @%p2 ld.global.u32 %r4, [%d1];
        {reads}
        @%p2 st.volatile.global.u32 [%d1], %r3;
        ret;
    """
    out, source = np.zeros(96, np.uint32), np.zeros(4, np.uint32)
    strong, plain = ("ld.relaxed.gpu.global.u32 %r4, [%d1];", "ld.global.u32 %r4, [%d1];")
    assert not run(body.format(reads=strong), out, source, block=(96, 1, 1)).warnings
    (warning,) = run(body.format(reads=plain), out, source, block=(96, 1, 1)).warnings
    assert (warning.warning, warning.kind) == ("same value", "read-write")


@pytest.mark.parametrize("first", range(0, 240, 20))
def test_the_last_accesses_tell_what_all_of_them_tell(first: int) -> None:
    verdicts = {}
    for seed in range(first, first + 20):
        verdicts[seed] = [verdict(random_program(seed), mode) for mode in MODES]
    assert {seed: found for seed, found in verdicts.items() if len(set(found)) > 1} == {}
    assert {found[0] for found in verdicts.values()} >= {"race", "clean"}


# Bulk copies that combine take the place of a plain write, too

_TILE = ".shared .align 16 .b8 tile[16];"
COMBINED = """
    mov.u32 %r20, tile; setp.eq.u32 %p2, %r1, 0; setp.eq.u32 %p1, %r60, 0; mov.u32 %r3, 7;
    @!%p1 bra other;
    @!%p2 bra end;
    {first}
    st.shared.v4.u32 [%r20], {{%r3, %r3, %r3, %r3}};
    fence.proxy.async;
    cp.reduce.async.bulk.global.shared::cta.bulk_group.add.u32 [%d1], [%r20], 16;
    cp.async.bulk.commit_group; cp.async.bulk.wait_group 0;
    bra end;
other:
    @!%p2 bra end;
    {third}
end:
    ret;
"""
COPY = """
    st.shared.v4.u32 [%r20], {%r3, %r3, %r3, %r3};
    fence.proxy.async;
    cp.reduce.async.bulk.global.shared::cta.bulk_group.add.u32 [%d1], [%r20], 16;
    cp.async.bulk.commit_group; cp.async.bulk.wait_group 0;
"""


@pytest.mark.parametrize("mode", MODES)
def test_a_copy_that_combines_takes_the_place_of_a_plain_write(mode: str) -> None:
    options = {"grid": (2, 1, 1), "declarations": _TILE, "target": "sm_90a"}
    with looking(mode), unexplained():
        run(COMBINED.format(first="", third=COPY), np.zeros(64, np.uint32), np.zeros(4, np.uint32), **options)
        with pytest.raises(ptx.RaceError, match=r"^write-write race on byte 0"):
            run(COMBINED.format(first=PLAIN, third=COPY), np.zeros(64, np.uint32), np.zeros(4, np.uint32), **options)


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize(
    ("third", "kind"),
    [
        (LOAD, "write-read"),
        ("red.relaxed.gpu.global.add.u32 [%d1], 1;", "write-write"),
        ("atom.relaxed.gpu.global.add.u32 %r4, [%d1], 1;", "write-write"),
        ("st.relaxed.gpu.global.u32 [%d1], %r60;", "write-write"),
    ],
)
def test_a_strong_access_is_of_another_proxy_than_a_copy_that_combines(third: str, kind: str, mode: str) -> None:
    options = {"grid": (2, 1, 1), "declarations": _TILE, "target": "sm_90a"}
    with looking(mode), unexplained(), pytest.raises(ptx.RaceError, match=f"^{kind} race on byte 0"):
        run(COMBINED.format(first="", third=third), np.zeros(64, np.uint32), np.zeros(4, np.uint32), **options)


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize(
    ("first", "kind"),
    [
        ("ld.relaxed.gpu.global.u32 %r4, [%d1];", "read-write"),
        ("red.relaxed.gpu.global.add.u32 [%d1], 1;", "write-write"),
    ],
)
def test_a_copy_that_combines_is_of_another_proxy_than_a_strong_access(first: str, kind: str, mode: str) -> None:
    # Block 1 comes second, since it polls without an acquire.
    turn = "st.relaxed.gpu.global.u32 [%d1+64], %r3; bra end;"
    polls = "again: ld.relaxed.gpu.global.u32 %r5, [%d1+64]; setp.ne.u32 %p3, %r5, 7; @%p3 bra again;"
    body = COMBINED.replace("{first}", first + turn).format(third=polls + COPY)
    options = {"grid": (2, 1, 1), "declarations": _TILE, "target": "sm_90a"}
    with looking(mode), unexplained(), pytest.raises(ptx.RaceError, match=f"^{kind} race on byte 0"):
        run(body, np.zeros(64, np.uint32), np.zeros(32, np.uint32), **options)


#: A thread that accesses a word by two proxies in order, and what another thread does that nothing orders. The access
#: that came last does not race with that, and the one before it does.
BY_TWO_PROXIES = {
    "an atomic behind the copy": (
        COPY + "red.relaxed.gpu.global.add.u32 [%d1], 1;",
        "red.relaxed.gpu.global.add.u32 [%d1], 1;",
    ),
    "a read of it": (COPY + "red.relaxed.gpu.global.add.u32 [%d1], 1;", LOAD),
    "a strong store behind it": (COPY + "st.relaxed.gpu.global.u32 [%d1], 3;", "st.relaxed.gpu.global.u32 [%d1], 4;"),
    "a copy behind an atomic": ("red.relaxed.gpu.global.add.u32 [%d1], 1;" + COPY, COPY),
    "a copy behind a read": (LOAD + COPY, COPY),
}


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("name", BY_TWO_PROXIES)
def test_of_two_proxies_the_access_that_came_first_counts_too(name: str, mode: str) -> None:
    mine, others = BY_TWO_PROXIES[name]
    body = f"""
        mov.u32 %r20, tile; setp.eq.u32 %p2, %r1, 0; setp.eq.u32 %p1, %r60, 0; mov.u32 %r3, 7;
        @!%p2 bra end; @!%p1 bra other; {mine} bra end; other: {others} end: ret;
    """
    options = {"grid": (2, 1, 1), "declarations": _TILE, "target": "sm_90a"}
    with looking(mode), unexplained(), pytest.raises(ptx.RaceError, match="race on byte 0 of argument 1"):
        run(body, np.zeros(64, np.uint32), np.zeros(4, np.uint32), **options)


# Thread 0 of block 0 writes its tile, and lets block 1 know, which adds to it: thread 32 of block 0 then comes, too.
PEERS = """
    mov.u32 %r20, tile; mov.u32 %r21, full; setp.eq.u32 %p1, %r60, 0; setp.eq.u32 %p2, %r1, 0; setp.eq.u32 %p3, %r1, 32;
    mov.u32 %r3, 7; mov.u32 %r4, 1;
    and.pred %p4, %p1, %p2; not.pred %p5, %p1; and.pred %p5, %p5, %p2; and.pred %p6, %p1, %p3;
    @%p4 mbarrier.init.shared.b64 [%r21], 1;
    @%p4 fence.mbarrier_init.release.cluster;
    @%p5 st.shared.v4.u32 [%r20], {{%r4, %r4, %r4, %r4}};
    {early}
    barrier.cluster.arrive.aligned; barrier.cluster.wait.aligned;
    @%p4 mbarrier.arrive.expect_tx.shared.b64 %d5, [%r21], {bytes};
    {late}
    @!%p4 bra peer;
    fence.proxy.async;
    st.release.cluster.global.u32 [%d1], %r3;
peer:
    @!%p5 bra reader;
wait:
    ld.acquire.cluster.global.u32 %r5, [%d1]; setp.ne.u32 %p7, %r5, 7; @%p7 bra wait;
    fence.proxy.async;
    mapa.shared::cluster.u32 %r22, %r20, 0; mapa.shared::cluster.u32 %r23, %r21, 0;
    cp.reduce.async.bulk.shared::cluster.shared::cta.mbarrier::complete_tx::bytes.add.u32 [%r22], [%r20], 16, [%r23];
reader:
    // Turns that say nothing: whoever looks before the copy is issued sees the plain store itself.
    @!%p6 bra end;
    mov.u32 %r8, 0;
turns:
    ld.relaxed.gpu.global.u32 %r6, [%d1+8]; add.u32 %r8, %r8, 1; setp.lt.u32 %p7, %r8, 30; @%p7 bra turns;
    {third}
end:
    @!%p1 bra out;
tried:
    mbarrier.try_wait.parity.acquire.cluster.shared::cta.b64 %p7, [%r21], 0; @!%p7 bra tried;
out:
    barrier.cluster.arrive.aligned; barrier.cluster.wait.aligned;
    ret;
"""


ADDS = """
    mov.u32 %r24, more; st.shared.v4.u32 [%r24], {%r4, %r4, %r4, %r4}; fence.proxy.async;
    mapa.shared::cluster.u32 %r22, %r20, 0; mapa.shared::cluster.u32 %r23, %r21, 0;
    cp.reduce.async.bulk.shared::cluster.shared::cta.mbarrier::complete_tx::bytes.add.u32 [%r22], [%r24], 16, [%r23];
"""
PEER_STORE = "@%p4 st.shared.v4.u32 [%r20], {%r3, %r3, %r3, %r3};"


def run_peers(late: str, third: str, size: int) -> None:
    run(
        PEERS.format(early=PEER_STORE, late=late, third=third, bytes=size), np.zeros(128, np.uint32),
        np.zeros(4, np.uint32), grid=(2, 1, 1), block=(64, 1, 1), target="sm_90a", directives=".reqnctapercluster 2",
        declarations=".shared .align 16 .b8 tile[16]; .shared .align 16 .b8 more[16]; .shared .align 8 .b64 full;",
    )  # fmt: skip


@pytest.mark.parametrize("mode", MODES)
def test_a_copy_that_adds_to_a_peer_takes_the_place_of_a_plain_write(mode: str) -> None:
    with looking(mode), unexplained():
        run_peers("", ADDS, 32)
        with pytest.raises(ptx.RaceError, match=r"^write-write race on byte 0 of shared memory"):
            run_peers(PEER_STORE, ADDS, 32)


@pytest.mark.parametrize("mode", MODES)
def test_a_strong_access_is_of_another_proxy_than_a_copy_that_adds_to_a_peer(mode: str) -> None:
    with looking(mode), unexplained(), pytest.raises(ptx.RaceError, match=r"^write-read race on byte 0 of shared"):
        run_peers("", "ld.relaxed.cluster.shared.u32 %r7, [%r20];", 16)


# Copies of one step, which nothing orders

COPIES = """
    mov.u32 %r3, cell; and.b32 %r4, %r1, {mask}; mad.lo.u32 %r4, %r4, 4, %r3; mul.wide.u32 %d4, %r1, {source};
    add.s64 %d4, %d4, %d1;
    cp.async.ca.shared.global [%r4], [%d4], 4;
    cp.async.wait_all;
    ret;
"""


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize(
    ("threads", "mask", "source"),
    [(32, 15, 4), (32, 0, 0), (64, 31, 4), (64, 31, 0)],
    ids=["lanes of a warp", "lanes, the same bytes", "warps", "warps, the same bytes"],
)
def test_copies_into_one_place_race_though_nobody_reads_it(threads: int, mask: int, source: int, mode: str) -> None:
    options = {"block": (threads, 1, 1), "declarations": ".shared .align 4 .b8 cell[256];"}
    given = np.zeros(64, np.uint32)
    with looking(mode), unexplained():
        run(COPIES.format(mask=63, source=source), np.zeros(64, np.uint32), given, **options)
        with pytest.raises(ptx.RaceError, match=r"^write-write race .* asynchronous copy"):
            run(COPIES.format(mask=mask, source=source), np.zeros(64, np.uint32), given, **options)


# Two blocks of a cluster add to the tile of one of them in one step, each by a copy that completes on its own mbarrier.
SUMS = """
    mov.u32 %r20, tile; mov.u32 %r21, full; mov.u32 %r24, other; mov.u32 %r22, more; mov.u32 %r3, 7; mov.u32 %r4, 0;
    setp.eq.u32 %p1, %r60, 0; setp.eq.u32 %p2, %r1, 0; and.pred %p4, %p1, %p2;
    @%p2 mbarrier.init.shared.b64 [%r21], 1; @%p2 mbarrier.init.shared.b64 [%r24], 1;
    fence.mbarrier_init.release.cluster;
    @%p2 st.shared.v4.u32 [%r20], {{%r4, %r4, %r4, %r4}}; @%p2 st.shared.v4.u32 [%r22], {{%r3, %r3, %r3, %r3}};
    fence.proxy.async;
    barrier.cluster.arrive; barrier.cluster.wait;
    @%p4 mbarrier.arrive.expect_tx.shared.b64 %d5, [%r21], 16;
    @%p4 mbarrier.arrive.expect_tx.shared.b64 %d5, [%r24], 16;
    selp.u32 %r5, %r21, %r24, %p1;
    mapa.shared::cluster.u32 %r6, %r20, 0; mapa.shared::cluster.u32 %r7, %r5, 0;
    @%p2 cp.reduce.async.bulk.shared::cluster.shared::cta.mbarrier::complete_tx::bytes.add.u32 [%r6], [%r22], 16, [%r7];
    @!%p1 bra fin;
first: mbarrier.try_wait.parity.shared.b64 %p5, [{first}], 0; @!%p5 bra first;
    {between}
second: mbarrier.try_wait.parity.shared.b64 %p5, [{second}], 0; @!%p5 bra second;
    {behind}
fin:
    barrier.cluster.arrive; barrier.cluster.wait;
    ret;
"""


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("order", [("%r21", "%r24"), ("%r24", "%r21")])
@pytest.mark.parametrize("access", ["ld.shared.u32 %r8, [%r20];", "red.relaxed.cluster.shared.add.u32 [%r20], 1;"])
def test_of_two_copies_into_one_tile_each_is_waited_for(access: str, order: tuple[str, str], mode: str) -> None:
    def launch(**where: str) -> None:
        places = {"between": "", "behind": "", **where}
        run(
            SUMS.format(first=order[0], second=order[1], **places), np.zeros(128, np.uint32), np.zeros(4, np.uint32),
            grid=(2, 1, 1), block=(64, 1, 1), target="sm_90a", directives=".reqnctapercluster 2",
            declarations=".shared .align 16 .b8 tile[16]; .shared .align 16 .b8 more[16]; "
            ".shared .align 8 .b64 full; .shared .align 8 .b64 other;",
        )  # fmt: skip

    with looking(mode), unexplained():
        launch(behind=access)
        with pytest.raises(ptx.RaceError, match="race on byte 0 of shared memory"):
            launch(between=access)
