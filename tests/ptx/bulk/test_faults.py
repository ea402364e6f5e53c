"""Faults in the use of bulk copies: every one is caught, whether or not it would have shown in the bytes."""

from __future__ import annotations

import numpy as np
import pytest
from support.ptx_bulk import COMMIT, FENCE, Tensor, dump, expect, fill, load, run, store, wait

from refmoe import ptx

TENSOR = Tensor("u8", 8, (64, 16), (64,), (64, 4), (1, 1))
BYTES = 256
PLAIN = "cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes"
DONE = "@%p0 cp.async.bulk.wait_group.read 0;"


def launch(body: str, start: tuple[int, int] = (0, 0), grid: int = 1, **more: object) -> tuple[np.ndarray, np.ndarray]:
    """(out, the tensor) after a body. `other` is the address of the tensor."""
    content = np.arange(1024, dtype=np.uint32).astype(np.uint8)
    out = np.zeros(4096, np.uint8)
    memory = ptx.DeviceMemory()
    address = memory.place(ptx.Buffer(content, "tensor"))
    run(body, out, TENSOR.encode(address), start, other=address, memory=memory, grid=grid, **more)  # type: ignore[arg-type]
    return out, content


# Loads


def test_a_load_is_there_after_its_wait() -> None:
    out, content = launch(expect(BYTES) + load(2) + wait() + dump(BYTES), (0, 3))
    np.testing.assert_array_equal(out[:BYTES], content[192:448])


def test_without_a_wait_nothing_is_there() -> None:
    with pytest.raises(ptx.MemoryFault, match=r"uninitialised.*an asynchronous copy that nobody has waited for"):
        launch(expect(BYTES) + load(2) + "bar.sync 0;" + dump(BYTES))


def test_without_a_wait_even_unchecked_reads_find_poison() -> None:
    body = expect(BYTES) + load(2) + "bar.sync 0;" + dump(BYTES) + "bar.sync 0;" + wait()
    out, _ = launch(body, checks=ptx.Checks(uninitialised=False, races=False))
    assert (out[:BYTES] == 0xCD).all()


def test_a_warp_that_waits_does_not_wait_for_others() -> None:
    # Warp 0 waits, warp 1 reads: landed or not, nothing orders the two.
    body = expect(BYTES) + load(2) + "@!%p1 bra READ;" + wait() + "bra END; READ: nanosleep.u32 9;"
    with pytest.raises(ptx.PtxError, match=r"uninitialised|a bulk copy that completes on the mbarrier at byte"):
        launch(body + dump(BYTES) + "END:")


@pytest.mark.parametrize("grid", [1, 7])
def test_too_few_bytes_arrive(grid: int) -> None:
    with pytest.raises(ptx.Deadlock, match=r"phase 0 .* 0 of 1 arrivals and 16 bytes pending.* threads 0-63"):
        launch(expect(BYTES + 16) + load(2) + wait() + dump(BYTES), grid=grid)


def test_too_many_bytes_arrive() -> None:
    with pytest.raises(ptx.Deadlock, match="-16 bytes pending"):
        launch(expect(BYTES - 16) + load(2) + wait() + dump(BYTES))


def test_a_phase_that_ends_between_two_copies() -> None:
    # The barrier owes one copy, and two are under way: the second is not there when the phase ends.
    second = load(2).replace("[%r8]", "[%r9]")
    body = "add.u32 %r9, %r8, 256;" + expect(BYTES) + load(2) + second + wait()
    with pytest.raises(ptx.MemoryFault, match=r"uninitialised.* at byte 256"):
        launch(body + dump(2 * BYTES))
    with pytest.raises(ptx.MisuseError, match="the block ends while 256 bytes are under way"):
        launch(body + dump(BYTES))


def test_nobody_expects_bytes() -> None:
    body = "@%p0 mbarrier.arrive.shared::cta.b64 _, [%r7];" + load(2) + wait() + dump(BYTES)
    with pytest.raises(ptx.MemoryFault, match="uninitialised"):
        launch(body)


def test_an_arrival_is_missing() -> None:
    body = "@%p0 mbarrier.expect_tx.relaxed.cta.shared::cta.b64 [%r7], 256;" + load(2) + wait() + dump(BYTES)
    with pytest.raises(
        ptx.Deadlock, match=r"1 of 1 arrivals and 256 bytes pending.*256 bytes by bulk copies under way"
    ):
        launch(body)


def test_a_copy_that_nobody_waits_for() -> None:
    with pytest.raises(ptx.MisuseError, match="the block ends while 256 bytes are under way to it"):
        launch(expect(BYTES) + load(2))


def test_a_stage_is_used_twice_before_it_is_free() -> None:
    body = expect(BYTES) + load(2) + wait() + dump(BYTES) + expect(BYTES) + load(2) + wait(1, 1) + "bar.sync 0;"
    with pytest.raises(ptx.RaceError, match=r"read-write race .* writes after a read by"):
        launch(body)
    # With a barrier between, the second copy is right.
    launch(body.replace(expect(BYTES) + load(2) + wait(1, 1), "bar.sync 0;" + expect(BYTES) + load(2) + wait(1, 1)))


def test_two_copies_into_one_place() -> None:
    with pytest.raises(ptx.RaceError, match=r"write-write.*a bulk copy that completes on.*not known to be complete"):
        launch(expect(2 * BYTES) + load(2) + load(2) + wait())


def test_a_copy_over_what_lanes_wrote() -> None:
    body = "add.u32 %r21, %r8, %r1; st.shared.u8 [%r21], %r1; <meet>" + expect(BYTES) + load(2) + wait() + dump(BYTES)
    with pytest.raises(ptx.RaceError, match="write-write"):
        launch(body.replace("<meet>", ""))
    # Two writes through different proxies are ordered by a proxy fence alone (PTX ISA, "Causality order").
    with pytest.raises(ptx.RaceError, match="proxy race"):
        launch(body.replace("<meet>", "bar.sync 0;"))
    launch(body.replace("<meet>", "fence.proxy.async; bar.sync 0;"))


def test_lanes_write_where_a_copy_will_land() -> None:
    body = expect(BYTES) + load(2) + "bar.sync 0; @!%p1 st.shared.u8 [%r8], %r1; bar.sync 0;" + wait()
    with pytest.raises(ptx.RaceError, match=r"write-write.*a bulk copy"):
        launch(body)


def test_the_source_changes_while_a_copy_is_under_way() -> None:
    body = expect(BYTES) + load(2) + "bar.sync 0; @%p0 st.global.u8 [%d3], 77; bar.sync 0;" + wait() + dump(BYTES)
    with pytest.raises(ptx.RaceError, match=r"read-write race on byte 0 of tensor.*bulk copy"):
        launch(body)
    out, _ = launch(body, checks=ptx.Checks(races=False))
    assert out[0] == 77


def test_the_source_may_change_after_the_wait() -> None:
    write = "cvt.u64.u32 %d9, %r1; add.u64 %d9, %d9, %d3; st.global.u8 [%d9], 77;"
    out, content = launch(expect(BYTES) + load(2) + wait() + write + dump(BYTES))
    assert (content[:64] == 77).all()
    assert out[:64].tolist() == list(range(64))


def test_a_ring_of_two_stages() -> None:
    # One thread fills, a warp reads and gives back; what is left out is missed.
    ring = """
        @%p0 mbarrier.init.shared::cta.b64 [%r7+8], 1;
        @%p0 mbarrier.init.shared::cta.b64 [%r7+16], 32;
        @%p0 mbarrier.init.shared::cta.b64 [%r7+24], 32;
        @%p0 fence.mbarrier_init.release.cluster;
        bar.sync 0;
        mov.u32 %r40, 0;
        @%p1 bra PRODUCE;
        mov.u32 %r50, 0;
    CONSUME:
        and.b32 %r41, %r40, 1; shr.u32 %r42, %r40, 1; and.b32 %r42, %r42, 1;
        shl.b32 %r43, %r41, 3; add.u32 %r43, %r43, %r7; shl.b32 %r44, %r41, 8; add.u32 %r44, %r44, %r8;
        {wait_full}
        sub.u32 %r45, %r1, 32; add.u32 %r45, %r45, %r44; ld.shared.u8 %r46, [%r45]; ld.shared.u8 %r47, [%r45+224];
        mad.lo.u32 %r50, %r50, 3, %r46; add.u32 %r50, %r50, %r47;
        {give_back}
        add.u32 %r40, %r40, 1; setp.lt.u32 %p5, %r40, 4; @%p5 bra CONSUME;
        sub.u32 %r45, %r1, 32; mul.wide.u32 %d9, %r45, 4; add.u64 %d9, %d9, %d0; st.global.u32 [%d9], %r50;
        ret;
    PRODUCE:
        and.b32 %r41, %r40, 1; shr.u32 %r42, %r40, 1; and.b32 %r42, %r42, 1; xor.b32 %r42, %r42, 1;
        shl.b32 %r43, %r41, 3; add.u32 %r43, %r43, %r7; shl.b32 %r44, %r41, 8; add.u32 %r44, %r44, %r8;
        {wait_empty}
        shl.b32 %r3, %r40, 2;
        @%p0 mbarrier.arrive.expect_tx.shared::cta.b64 _, [%r43], 256;
        @%p0 cp.async.bulk.tensor.2d.shared::cta.global.tile.mbarrier::complete_tx::bytes
            [%r44], [%d1, {{%r2, %r3}}], [%r43];
        add.u32 %r40, %r40, 1; setp.lt.u32 %p5, %r40, 4; @%p5 bra PRODUCE;
    """
    parts = {
        "wait_full": "F: mbarrier.try_wait.parity.shared::cta.b64 %p6, [%r43], %r42; @!%p6 bra F;",
        "give_back": "mbarrier.arrive.shared::cta.b64 _, [%r43+16];",
        "wait_empty": "E: mbarrier.try_wait.parity.shared::cta.b64 %p6, [%r43+16], %r42; @!%p6 bra E;",
    }
    out, content = launch(ring.format(**parts))
    tiles = content.reshape(4, 256).astype(np.uint32)
    total = np.zeros(32, np.uint32)
    for tile in tiles:
        total = total * np.uint32(3) + tile[:32] + tile[224:]
    np.testing.assert_array_equal(out[:128].view(np.uint32), total)
    errors = {"wait_full": ptx.PtxError, "give_back": ptx.Deadlock, "wait_empty": ptx.PtxError}
    for name, error in errors.items():
        with pytest.raises(error):
            launch(ring.format(**{**parts, name: ""}))
    # Every lane gives its own reads back: one for all is too early for the others.
    one = "setp.eq.u32 %p7, %r1, 32; @%p7 mbarrier.arrive.shared::cta.b64 _, [%r43+16], 32;"
    with pytest.raises(ptx.RaceError, match="read-write"):
        launch(ring.format(**{**parts, "give_back": one}))
    launch(ring.format(**{**parts, "give_back": "bar.warp.sync -1;" + one}))


# Stores


def stored(body: str, **more: object) -> np.ndarray:
    return launch(fill(BYTES) + body, **more)[1]  # type: ignore[arg-type]


GOOD = FENCE + "bar.sync 0;" + store(2) + COMMIT + DONE


def test_a_store_reads_when_it_is_waited_for() -> None:
    # What lanes write in between is what arrives.
    body = FENCE + "bar.sync 0;" + store(2) + COMMIT + "@%p0 st.shared.u8 [%r8], 99;" + DONE
    assert stored(body, checks=ptx.Checks(races=False))[0] == 99
    assert stored(GOOD)[0] == 0


def test_the_staging_buffer_is_overwritten_too_early() -> None:
    again = "{} bar.sync 0; @!%p1 st.shared.u8 [%r8], 99; bar.sync 0;"
    start = FENCE + "bar.sync 0;" + store(2) + COMMIT
    with pytest.raises(
        ptx.RaceError, match=r"read-write.*an asynchronous bulk copy of thread.*not known to be complete"
    ):
        stored(start + again.format("") + DONE)
    stored(start + again.format(DONE))
    with pytest.raises(ptx.RaceError, match="read-write"):
        stored(start + again.format("@%p0 cp.async.bulk.wait_group.read 1;") + DONE)


@pytest.mark.parametrize("end", ["", "@%p0 cp.async.bulk.wait_group.read 1;"])
def test_a_thread_exits_before_its_store_has_read(end: str) -> None:
    with pytest.raises(ptx.MisuseError, match="exits without having waited until its bulk copy has read"):
        stored(FENCE + "bar.sync 0;" + store(2) + COMMIT + end)


@pytest.mark.parametrize("end", ["", DONE])
def test_without_a_look_for_races_an_unread_store_finds_what_is_there(end: str) -> None:
    found = [
        stored(FENCE + "bar.sync 0;" + store(2) + COMMIT + each, checks=ptx.Checks(races=False)) for each in (end, DONE)
    ]
    np.testing.assert_array_equal(*found)


def test_a_store_in_no_group_is_never_waited_for() -> None:
    with pytest.raises(ptx.MisuseError, match="exits without having waited"):
        stored(FENCE + "bar.sync 0;" + store(2) + DONE)


def test_what_is_stored_may_be_read_only_after_the_writes() -> None:
    read = "bar.sync 0; ld.global.u8 %r30, [%d3];"
    stored(FENCE + "bar.sync 0;" + store(2) + COMMIT + "@%p0 cp.async.bulk.wait_group 0;" + read)
    with pytest.raises(ptx.RaceError, match=r"write-read race .* of tensor .*bulk copy"):
        stored(GOOD + read)


def test_two_stores_to_one_place() -> None:
    with pytest.raises(ptx.RaceError, match=r"write-write race .* of tensor"):
        stored(FENCE + "bar.sync 0;" + store(2) + store(2) + COMMIT + DONE)
    with pytest.raises(ptx.RaceError, match=r"write-write race .* of tensor"):
        stored(GOOD, grid=2)


def test_uninitialised_shared_memory_is_not_stored() -> None:
    with pytest.raises(ptx.MemoryFault, match="uninitialised: shared read"):
        launch(store(2) + COMMIT + DONE)


# Plain bulk copies


def plain(to: str, size: str) -> str:
    return f"@%p0 {PLAIN} [{to}], [%d3], {size}, [%r7];"


def test_plain_copies() -> None:
    out, content = launch(expect(128) + plain("%r8", "128") + wait() + dump(128))
    np.testing.assert_array_equal(out[:128], content[:128])
    copy = "@%p0 cp.async.bulk.global.shared::cta.bulk_group [%d3], [%r8], 64;"
    _, content = launch(fill(64) + FENCE + "bar.sync 0;" + copy + COMMIT + DONE)
    assert (content[:64] == 0).all()
    assert content[64] == 64


@pytest.mark.parametrize(
    ("body", "error", "message"),
    [
        (plain("%r8", "24"), ptx.MisuseError, "24 bytes, not a multiple of 16"),
        (plain("%r8", "0"), ptx.MisuseError, "0 bytes"),
        (plain("%r8+8", "16"), ptx.MemoryFault, "misaligned"),
        (plain("%r8", "2048"), ptx.MemoryFault, "out of bounds: global read"),
        (plain("%r8+16384", "64"), ptx.MemoryFault, "out of bounds: shared write"),
    ],
)
def test_plain_copies_that_do_not_fit(body: str, error: type[Exception], message: str) -> None:
    with pytest.raises(error, match=message):
        launch(expect(16) + body + wait())


def test_lanes_of_a_warp_copy_to_one_place() -> None:
    with pytest.raises(ptx.RaceError, match="write-write"):
        launch(expect(32 * 16) + f"@%p1 {PLAIN} [%r8], [%d3], 16, [%r7];" + wait())


def test_lanes_of_a_warp_copy_each_their_own() -> None:
    body = "shl.b32 %r20, %r1, 4; add.u32 %r21, %r8, %r20; cvt.u64.u32 %d9, %r20; add.u64 %d9, %d9, %d3;"
    body += expect(32 * 16) + f"@%p1 {PLAIN} [%r21], [%d9], 16, [%r7];" + wait() + dump(512)
    out, content = launch(body)
    np.testing.assert_array_equal(out[:512], content[:512])


@pytest.mark.parametrize("kind", ["st.shared.u64 [%r20], %d9;", "ld.shared.u64 %d9, [%r20];"], ids=["store", "load"])
@pytest.mark.parametrize("offset", [0, 128])
def test_a_bulk_copy_over_one_of_several_lines_of_a_warp(offset: int, kind: str) -> None:
    # Warp 1 accesses 256 bytes at once; nothing orders it before the copy into 128 of them.
    def body(sync: str) -> str:
        return f"""
            mov.u64 %d9, 0;
            sub.u32 %r19, %r1, 32;
            shl.b32 %r19, %r19, 3;
            add.u32 %r20, %r8, %r19;
            @!%p1 st.shared.u64 [%r20], %d9;
            @!%p1 {kind}
            {sync}
            add.u32 %r21, %r8, {offset};
            @%p0 mbarrier.arrive.expect_tx.shared::cta.b64 _, [%r7], 128;
            @%p0 {PLAIN} [%r21], [%d3], 128, [%r7];
            {wait()}
        """

    launch(body("fence.proxy.async; bar.sync 0;"))
    with pytest.raises(ptx.RaceError):
        launch(body(""))
