"""What is stored over a barrier in shared memory is found at the store: `mbarrier.inval` has to come before."""

from __future__ import annotations

import numpy as np
import pytest
from support.ptx_kernel import line_of, run

from refmoe import ptx
from refmoe.ptx.engine import machine

CELLS = ".shared .align 128 .b64 bar[16]; .shared .align 8 .b64 done;"

# Thread 0 makes a barrier, at byte 8 of its array, then all threads of two warps meet. Thread 37 stores alone.
INIT = """
    setp.ne.u32 %p9, %r1, 0; setp.ne.u32 %p8, %r1, 37;
    @!%p9 mbarrier.init.shared.b64 [bar+8], 1;
    @!%p9 mbarrier.init.shared.b64 [done], 1;
    @!%p9 fence.mbarrier_init.release.cluster;
"""
INVAL = "@!%p9 mbarrier.inval.shared.b64 [bar+8]; bar.sync 0;"
END = "mov.u32 %r20, 0; st.global.u32 [%d2], %r20; ret;"
WAIT = "W: mbarrier.try_wait.parity.shared.b64 %p1, [done], 0; @!%p1 bra W;"
STORES = {
    "all of it": "@!%p8 st.shared.u64 [bar+8], %d1;",
    "its last byte": "@!%p8 st.shared.u8 [bar+15], %r1;",
    "a vector": "@!%p8 st.shared.v4.u32 [bar], {%r1, %r1, %r1, %r1};",
    "a generic address": "mov.u64 %d6, bar; cvta.shared.u64 %d6, %d6; @!%p8 st.u32 [%d6+12], %r1;",
    "a strong store": "@!%p8 st.relaxed.cta.shared.u32 [bar+8], %r1;",
    "the thread that made it": "@!%p9 st.shared.u32 [bar+8], %r1;",
    "a memset of all threads": "mov.u32 %r10, bar; mad.lo.u32 %r10, %r1, 2, %r10; st.shared.u16 [%r10], 0;",
    "a copy": "@!%p8 cp.async.ca.shared.global [bar+8], [%d1], 8; cp.async.wait_all;",
    "a bulk copy": f"""
        @%p9 bra {{label}}; fence.proxy.async.shared::cta;
        mbarrier.arrive.expect_tx.shared.b64 _, [done], 128;
        cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [bar], [%d1], 128, [done];
        {{label}}: {WAIT}
    """,
}  # fmt: skip


def launch(body: str, **more: object) -> None:
    out, source = np.zeros(64, np.uint32), np.arange(1024, dtype=np.uint32)
    run(INIT + body + END, out, source, block=(64, 1, 1), declarations=CELLS, **more)  # type: ignore[arg-type]


@pytest.mark.parametrize("store", STORES.values(), ids=STORES)
def test_it_is_found_at_the_store(store: str) -> None:
    store = store.format(label="L") if "{label}" in store else store
    with pytest.raises(ptx.MisuseError, match=r"at byte 8 .* is in use, and this overwrites it; mbarrier.inval"):
        launch("bar.sync 0;" + store)
    launch("bar.sync 0;" + INVAL + store)


def test_a_barrier_that_is_made_anew_is_kept_again() -> None:
    again = "@!%p9 mbarrier.init.shared.b64 [bar+8], 1; bar.sync 0;"
    with pytest.raises(ptx.MisuseError, match="this overwrites it"):
        launch("bar.sync 0;" + INVAL + again + STORES["all of it"])
    launch("bar.sync 0;" + INVAL + again + INVAL + STORES["all of it"])


def test_what_lies_beside_it_is_free() -> None:
    launch("bar.sync 0; @!%p8 st.shared.u64 [bar], %d1; @!%p8 st.shared.u64 [bar+16], %d1;")


def test_a_store_that_nothing_orders_is_a_race() -> None:
    with pytest.raises(ptx.RaceError, match=r"write-write race on byte 8 .* by thread \(0, 0, 0\)") as caught:
        launch("@!%p8 st.shared.u64 [bar+8], %d1; bar.sync 0;")
    assert caught.value.kind == "write-write"


def test_bytes_that_nobody_uses_may_be_loaded() -> None:
    launch("bar.sync 0; @!%p9 st.shared.u64 [bar], %d1; bar.sync 0; ld.shared.v4.u32 {%r10, %r11, %r12, %r13}, [bar];")


def test_a_bulk_copy_may_read_over_it() -> None:
    # What it takes there is opaque. Another store to the same line lets it look at each byte.
    body = """
        bar.sync 0; @!%p9 st.shared.u64 [bar], %d1; fence.proxy.async.shared::cta; bar.sync 0;
        @!%p8 st.shared.u64 [bar+64], %d1; @%p9 bra L;
        cp.async.bulk.global.shared::cta.bulk_group [%d1], [bar], 16; cp.async.bulk.commit_group;
        cp.async.bulk.wait_group 0;
        L:
    """
    launch(body, checks=ptx.Checks(uninitialised=False))


def test_without_the_check_of_races_it_is_found_at_the_next_use() -> None:
    body = "bar.sync 0; @!%p9 st.shared.u64 [bar+8], %d1; @!%p9 mbarrier.arrive.shared.b64 _, [bar+8];"
    with pytest.raises(ptx.MisuseError, match="was overwritten by a store") as caught:
        launch(body, checks=ptx.Checks(races=False))
    assert caught.value.line == line_of(INIT + body + END, "mbarrier.arrive", declarations=CELLS)


def test_a_region_of_which_all_is_kept_has_it_too(monkeypatch: pytest.MonkeyPatch) -> None:
    # Such launches follow a suspicion; here each one is.
    monkeypatch.setattr(machine, "RaceShadow", machine.ExactShadow)
    monkeypatch.setattr(machine, "BulkShadow", machine.ExactBulkShadow)
    for store in (STORES["all of it"], STORES["a bulk copy"].format(label="L")):
        with pytest.raises(ptx.MisuseError, match="this overwrites it"):
            launch("bar.sync 0;" + store)


# `mbarrier.inval` by a thread that does not come after the others

ARRIVES = "@!%p9 mbarrier.arrive.shared.b64 _, [bar+8];"
COMPLETE = "C: mbarrier.try_wait.parity.shared.b64 %p1, [bar+8], 0; @!%p1 bra C;"
OTHER_INVAL = "@!%p8 mbarrier.inval.shared.b64 [bar+8];"
MEET = "bar.sync 0;"


@pytest.mark.parametrize("uses", [
    ARRIVES,
    ARRIVES + COMPLETE,
    "@!%p9 mbarrier.expect_tx.shared.b64 [bar+8], 4; @!%p9 mbarrier.complete_tx.shared.b64 [bar+8], 4;",
    "mbarrier.test_wait.parity.shared.b64 %p1, [bar+8], 0;",
], ids=["an arrival", "a wait", "bytes", "a question"])  # fmt: skip
def test_a_use_that_nothing_orders_before_inval_is_a_race(uses: str) -> None:
    with pytest.raises(ptx.RaceError, match=r"read-write race on byte 8 .* thread \(37, 0, 0\) writes after"):
        launch(MEET + uses + OTHER_INVAL)
    launch(MEET + uses + MEET + OTHER_INVAL)


def test_who_sees_the_phase_complete_comes_after_its_arrivals() -> None:
    launch(MEET + ARRIVES + "@%p8 bra E;" + COMPLETE + OTHER_INVAL + "E:")


def test_one_lane_counts_its_warp_out() -> None:
    # As libcu++'s pipelines do: the lanes of the first warp wait, meet by a collective, and one of them counts.
    body = """
        setp.ge.u32 %p3, %r1, 32; @%p3 bra OTHER;
        C: mbarrier.try_wait.parity.shared.b64 %p1, [bar+8], 0; @!%p1 bra C;
        match.any.sync.b32 %r10, 5, -1;
        @%p9 bra E;
        atom.acq_rel.cta.shared.add.u32 %r11, [bar+64], 1;
        bra E;
    OTHER:
        @%p8 bra E;
        mbarrier.arrive.shared.b64 _, [bar+8];
        COUNT: atom.acq_rel.cta.shared.add.u32 %r11, [bar+64], 0; setp.eq.u32 %p4, %r11, 0; @%p4 bra COUNT;
        mbarrier.inval.shared.b64 [bar+8];
    E:
    """
    start = "@!%p9 st.shared.u32 [bar+64], 0; bar.sync 0;"
    launch(start + body)
    with pytest.raises(ptx.RaceError, match="race on byte 8"):
        launch(
            start
            + body.replace(
                "atom.acq_rel.cta.shared.add.u32 %r11, [bar+64], 1", "atom.relaxed.cta.shared.add.u32 %r11, [bar+64], 1"
            )
        )


@pytest.mark.parametrize("store", ["@!%p9 st.shared.u64 [bar+8], %d1;", "@!%p9 mbarrier.init.shared.b64 [bar+8], 1;"])
def test_what_comes_next_comes_after_inval(store: str) -> None:
    # Thread 0 made the barrier, thread 37 gives it back.
    with pytest.raises(ptx.RaceError, match=r"write-write race on byte 8 .* by thread \(37, 0, 0\)"):
        launch(MEET + OTHER_INVAL + store)
    launch(MEET + OTHER_INVAL + MEET + store)
