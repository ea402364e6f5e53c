"""cp.async: what arrives, when it may arrive at the latest, and what is found when nobody waits for it."""

from __future__ import annotations

import numpy as np
import pytest
from support.ptx_kernel import line_of, run
from support.selection.thinned import thinned

from refmoe import ptx

CELLS = ".shared .align 16 .b8 cell[2048];"
WAIT = "cp.async.commit_group; cp.async.wait_group 0;"
SOURCE = np.arange(512, dtype=np.uint32) * np.uint32(0x01010101)

# %r3: this lane's cell, %d3: this lane's source, 16 bytes each.
PLACE = """
    mov.u32 %r3, cell; mad.lo.u32 %r3, %r1, 16, %r3;
    mul.wide.u32 %d3, %r1, 16; add.s64 %d3, %d3, %d1;
"""
STORE = """
    ld.shared.v4.u32 {%r10, %r11, %r12, %r13}, [%r3];
    mul.wide.u32 %d4, %r2, 16; add.s64 %d4, %d4, %d0;
    st.global.v4.u32 [%d4], {%r10, %r11, %r12, %r13};
    ret;
"""
NO_RACES = ptx.Checks(races=False)
NO_CHECKS = ptx.Checks(races=False, uninitialised=False)


def copied(
    body: str, source: np.ndarray | None = None, threads: int = 32, checks: ptx.Checks | None = None
) -> np.ndarray:
    """Rows of 16 bytes, one a lane, of a body between PLACE and STORE."""
    out = np.zeros(threads * 4, np.uint32)
    given = SOURCE if source is None else source
    run(PLACE + body + STORE, out, given, block=(threads, 1, 1), declarations=CELLS, checks=checks)
    return out.reshape(threads, 4)


@pytest.mark.parametrize("wait", thinned([WAIT, "cp.async.wait_all;", "cp.async.commit_group; cp.async.wait_all;"], 3))
@pytest.mark.parametrize("space", ["shared", "shared::cta"])
@pytest.mark.parametrize("hint", ["", ".L2::64B", ".L2::128B", ".L2::256B"])
def test_16_bytes_arrive(wait: str, space: str, hint: str) -> None:
    rows = copied(f"cp.async.cg.{space}.global{hint} [%r3], [%d3], 16; {wait}")
    np.testing.assert_array_equal(rows, SOURCE[:128].reshape(32, 4))


@pytest.mark.parametrize("hints", [".L2::cache_hint", ".L2::cache_hint.L2::128B", ".L2::64B.L2::cache_hint"])
@pytest.mark.parametrize("size", ["", ", 16", ", %p1"])
def test_a_cache_policy_changes_nothing(hints: str, size: str) -> None:
    rows = copied(f"setp.ne.u32 %p1, 0, 0; cp.async.ca.shared.global{hints} [%r3], [%d3], 16{size}, %d1; {WAIT}")
    np.testing.assert_array_equal(rows, SOURCE[:128].reshape(32, 4))


@pytest.mark.parametrize("size", [4, 8, 16])
def test_bytes_beyond_src_size_are_zeros(size: int) -> None:
    # Lane i copies min(i, size) bytes: none, parts and the whole.
    body = f"""
        mov.u32 %r20, 0;
        st.shared.v4.u32 [%r3], {{%r20, %r20, %r20, %r20}};
        min.u32 %r21, %r1, {size};
        cp.async.ca.shared.global [%r3], [%d3], {size}, %r21; {WAIT}
    """
    found = copied(body).view(np.uint8)
    source = SOURCE[:128].reshape(32, 4).view(np.uint8)
    expected = np.where(np.arange(16) < np.minimum(np.arange(32), size)[:, None], source, 0)
    np.testing.assert_array_equal(found, expected)


@pytest.mark.parametrize("operand", ["%p1", "!%p2"])
def test_an_ignored_source_is_not_read(operand: str) -> None:
    # Its address may be anything: here null.
    body = f"""
        setp.lt.u32 %p1, %r1, 16; setp.ge.u32 %p2, %r1, 16;
        selp.b64 %d3, 0, %d3, %p1;
        cp.async.cg.shared.global [%r3], [%d3], 16, {operand}; {WAIT}
    """
    expected = SOURCE[:128].reshape(32, 4).copy()
    expected[:16] = 0
    np.testing.assert_array_equal(copied(body), expected)


def test_a_copy_of_nothing_writes_zeros() -> None:
    # Nobody looks again at bytes that seem unwritten.
    checks = ptx.Checks(undefined=False)
    rows = copied(f"mov.u32 %r21, 0; cp.async.cg.shared.global [%r3], [%d3], 16, %r21; {WAIT}", checks=checks)
    assert rows.tolist() == [[0] * 4] * 32


def test_a_guarded_copy_leaves_the_rest_alone() -> None:
    body = f"""
        mov.u32 %r20, 7; st.shared.v4.u32 [%r3], {{%r20, %r20, %r20, %r20}};
        setp.lt.u32 %p1, %r1, 16;
        @%p1 cp.async.cg.shared.global [%r3], [%d3], 16; {WAIT}
    """
    expected = np.where(np.arange(32)[:, None] < 16, SOURCE[:128].reshape(32, 4), 7)
    np.testing.assert_array_equal(copied(body), expected)


# Late landing


def test_without_a_wait_the_bytes_are_not_there() -> None:
    body = "cp.async.cg.shared.global [%r3], [%d3], 16; cp.async.commit_group;"
    with pytest.raises(ptx.MemoryFault) as caught:
        copied(body)
    fault = caught.value
    assert (fault.kind, fault.space, fault.offset, fault.thread) == ("uninitialised", "shared", 0, (0, 0, 0))
    assert fault.line == line_of(PLACE + body + STORE, "ld.shared", declarations=CELLS)
    assert "an asynchronous copy that nobody has waited for is under way" in str(fault)
    # Unchecked, the kernel computes garbage: the copy has not landed, and what was there before is gone.
    filled = "mov.u32 %r20, 7; st.shared.v4.u32 [%r3], {%r20, %r20, %r20, %r20};" + body
    assert (copied(filled, checks=NO_CHECKS) == 0xCDCDCDCD).all()


@pytest.mark.parametrize(("keep", "arrived"), [(0, 3), (1, 2), (2, 1), (3, 0)])
def test_wait_group_lands_all_but_the_last_groups(keep: int, arrived: int) -> None:
    # Three groups; the third reads what the first `arrived` have brought.
    body = f"""
        cp.async.cg.shared.global [%r3], [%d3], 16; cp.async.commit_group;
        cp.async.cg.shared.global [%r3+512], [%d3], 16; cp.async.commit_group;
        cp.async.cg.shared.global [%r3+1024], [%d3], 16; cp.async.commit_group;
        cp.async.wait_group {keep};
        ld.shared.u32 %r20, [%r3]; ld.shared.u32 %r21, [%r3+512]; ld.shared.u32 %r22, [%r3+1024];
        mov.u32 %r4, cell; mad.lo.u32 %r4, %r1, 4, %r4;
        mad.lo.u32 %r5, %r1, 12, 0; cvt.u64.u32 %d5, %r5; add.s64 %d5, %d5, %d0;
        st.global.u32 [%d5], %r20; st.global.u32 [%d5+4], %r21; st.global.u32 [%d5+8], %r22;
        ret;
    """
    out = np.zeros(96, np.uint32)
    run(PLACE + body, out, SOURCE, declarations=CELLS, checks=NO_CHECKS)
    landed = out.reshape(32, 3) == SOURCE[:128:4, None]
    np.testing.assert_array_equal(landed, np.broadcast_to(np.arange(3) < arrived, (32, 3)))


def test_an_empty_group_counts() -> None:
    body = """
        cp.async.cg.shared.global [%r3], [%d3], 16; cp.async.commit_group;
        cp.async.commit_group;
        cp.async.wait_group 1;
    """
    np.testing.assert_array_equal(copied(body), SOURCE[:128].reshape(32, 4))


def test_copies_after_the_commit_are_in_the_next_group() -> None:
    body = """
        cp.async.commit_group;
        cp.async.cg.shared.global [%r3], [%d3], 16;
        cp.async.wait_group 0;
    """
    with pytest.raises(ptx.MemoryFault, match="uninitialised"):
        copied(body)


def test_the_source_is_read_when_the_copy_lands() -> None:
    # The lane changes the source between issue and wait: a race, and unchecked it copies the new value.
    body = f"""
        cp.async.cg.shared.global [%r3], [%d3], 16;
        mov.u32 %r20, 5; st.global.u32 [%d3], %r20; {WAIT}
    """
    with pytest.raises(ptx.RaceError) as caught:
        copied(body, SOURCE.copy())
    race = caught.value
    assert (race.kind, race.space, race.other_thread) == ("read-write", "global", (0, 0, 0))
    assert "an asynchronous copy of thread" in str(race)
    assert (copied(body, SOURCE.copy(), checks=NO_RACES)[:, 0] == 5).all()
    # After the wait the source is free.
    after = f"cp.async.cg.shared.global [%r3], [%d3], 16; {WAIT} mov.u32 %r20, 5; st.global.u32 [%d3], %r20;"
    np.testing.assert_array_equal(copied(after, SOURCE.copy()), SOURCE[:128].reshape(32, 4))


def test_lanes_wait_for_their_own_copies_only() -> None:
    # Half of the lanes wait; the others' copies have not landed.
    body = """
        cp.async.cg.shared.global [%r3], [%d3], 16; cp.async.commit_group;
        setp.lt.u32 %p1, %r1, 16;
        @%p1 cp.async.wait_group 0;
    """
    landed = (copied(body, checks=NO_CHECKS) == SOURCE[:128].reshape(32, 4)).all(axis=1)
    np.testing.assert_array_equal(landed, np.arange(32) < 16)


# Races

EXCHANGE = """
    mov.u32 %r3, cell; mad.lo.u32 %r4, %r1, 16, %r3;
    mul.wide.u32 %d3, %r1, 16; add.s64 %d3, %d3, %d1;
    cp.async.cg.shared.global [%r4], [%d3], 16; cp.async.commit_group;
    cp.async.wait_group 0;
    {sync}
    xor.b32 %r5, %r1, {distance}; mad.lo.u32 %r6, %r5, 16, %r3;
    ld.shared.u32 %r7, [%r6]; st.global.u32 [%d2], %r7; ret;
"""


@pytest.mark.parametrize(
    ("distance", "sync", "races"),
    [
        (32, "bar.sync 0;", False),
        (32, "", True),
        (32, "bar.warp.sync -1;", True),
        (1, "bar.warp.sync -1;", False),
        (1, "", True),  # a wait makes copies visible to the lane that issued them, to no other
        (0, "", False),
    ],
)
def test_others_need_a_barrier_after_the_wait(distance: int, sync: str, races: bool) -> None:
    body = EXCHANGE.format(distance=distance, sync=sync)
    out = np.zeros(64, np.uint32)
    if races:
        with pytest.raises(ptx.RaceError) as caught:
            run(body, out, SOURCE, block=(64, 1, 1), declarations=CELLS)
        assert caught.value.kind == "write-read"
        return
    run(body, out, SOURCE, block=(64, 1, 1), declarations=CELLS)
    np.testing.assert_array_equal(out, SOURCE[4 * (np.arange(64) ^ distance)])


@pytest.mark.parametrize("before", ["ld.shared.u32 %r20, [%r5];", "st.shared.u32 [%r5], %r1;"])
@pytest.mark.parametrize("ordered", [False, True])
def test_a_copy_over_what_another_warp_uses(before: str, ordered: bool) -> None:
    body = f"""
        mov.u32 %r20, 7; st.shared.v4.u32 [%r3], {{%r20, %r20, %r20, %r20}};
        bar.sync 0;
        xor.b32 %r4, %r1, 32; mov.u32 %r5, cell; mad.lo.u32 %r5, %r4, 16, %r5;
        {before}
        {"bar.sync 0;" if ordered else ""}
        cp.async.cg.shared.global [%r3], [%d3], 16; {WAIT}
    """
    if ordered:
        np.testing.assert_array_equal(copied(body, threads=64), SOURCE[:256].reshape(64, 4))
        return
    with pytest.raises(ptx.RaceError) as caught:
        copied(body, threads=64)
    assert caught.value.kind == ("read-write" if before.startswith("ld") else "write-write")


def test_a_store_to_the_destination_of_a_copy_under_way() -> None:
    body = f"cp.async.cg.shared.global [%r3], [%d3], 16; st.shared.u32 [%r3], %r0; {WAIT}"
    with pytest.raises(ptx.RaceError) as caught:
        copied(body)
    assert (caught.value.kind, caught.value.other_thread) == ("write-write", (0, 0, 0))


def test_two_copies_to_one_place() -> None:
    body = f"""
        cp.async.cg.shared.global [%r3], [%d3], 16;
        cp.async.cg.shared.global [%r3], [%d3+16], 16; {WAIT}
    """
    with pytest.raises(ptx.RaceError, match="write-write"):
        copied(body)


# Addresses


@pytest.mark.parametrize(
    ("copy", "kind", "space"),
    [
        ("cp.async.cg.shared.global [%r3+2048], [%d3], 16;", "out of bounds", "shared"),
        ("cp.async.cg.shared.global [%r3], [%d3+2048], 16;", "out of bounds", "global"),
        ("cp.async.ca.shared.global [%r3], [%d3+2048], 16, 1;", "out of bounds", "global"),
        ("cp.async.cg.shared.global [%r3+8], [%d3], 16;", "misaligned", "shared"),
        ("cp.async.cg.shared.global [%r3], [%d3+4], 16;", "misaligned", "global"),
        ("cp.async.ca.shared.global [%r3], [%d3+4], 8, 3;", "misaligned", "global"),
    ],
)
def test_addresses_are_checked_at_the_copy(copy: str, kind: str, space: str) -> None:
    with pytest.raises(ptx.MemoryFault) as caught:
        copied(copy + WAIT)
    fault = caught.value
    assert (fault.kind, fault.space, fault.thread) == (kind, space, (0, 0, 0))
    assert fault.line == line_of(PLACE + copy + WAIT + STORE, copy.split(";")[0], declarations=CELLS)


def test_src_size_counts_for_the_bounds() -> None:
    # The last lane's copy ends 8 bytes behind the buffer, but reads only the first 8.
    body = f"cp.async.ca.shared.global [%r3], [%d3], 16, 8; {WAIT}"
    source = np.arange(126, dtype=np.uint32)
    assert copied(body, source)[31].tolist() == [124, 125, 0, 0]
    with pytest.raises(ptx.MemoryFault) as caught:
        copied(body.replace(", 8;", ", 9;"), source)
    assert (caught.value.kind, caught.value.thread) == ("out of bounds", (31, 0, 0))


def test_an_uninitialised_source() -> None:
    mask = np.ones(512, bool)
    mask[7] = False
    buffer = ptx.Buffer(SOURCE.copy(), "in", initialised=mask, writable=False)
    body = f"cp.async.cg.shared.global [%r3], [%d3], 16; {WAIT}"
    with pytest.raises(ptx.MemoryFault) as caught:
        copied(body, buffer)  # type: ignore[arg-type]
    fault = caught.value
    assert (fault.kind, fault.buffer, fault.offset, fault.thread) == ("uninitialised", "in", 28, (1, 0, 0))


def test_a_src_size_beyond_the_copy() -> None:
    with pytest.raises(ptx.MisuseError, match="copies 17 of 16 bytes"):
        copied(f"cp.async.cg.shared.global [%r3], [%d3], 16, 17; {WAIT}")


@pytest.mark.parametrize(
    "copy",
    [
        "cp.async.cg.shared.global [%r3], [%d3], 8;",
        "cp.async.ca.shared.global [%r3], [%d3], 12;",
        "cp.async.shared.global [%r3], [%d3], 16;",
        "cp.async.ca.global.shared [%r3], [%d3], 16;",
        "cp.async.ca.shared.global.L2::32B [%r3], [%d3], 16;",
        "cp.async.bulk.shared::cluster.shared::cta.mbarrier::complete_tx::bytes.multicast::cluster "
        "[%r3], [%r3], 16, [%r3], 1;",
        "cp.async.ca.shared.global.L2::64B.L2::128B [%r3], [%d3], 16;",
        "cp.async.wait_group;",
        "cp.async.commit_group 1;",
    ],
)
def test_other_spellings_are_unknown(copy: str) -> None:
    with pytest.raises(ptx.UnknownOpcode):
        copied(copy)
