"""The last step of a page's reads spares a look at their records, and hides none that races."""

from __future__ import annotations

import re

import numpy as np
import pytest
from support.ptx_kernel import run
from support.selection.thinned import thinned

from refmoe import ptx

CELLS = ".shared .align 1024 .b8 cells[8192];"
#: Loads of a warp from the page at %r20, by lane %r1, and whether its granules are as wide as the load.
LOADS = {
    "words side by side": "mad.lo.u32 %r3, %r1, 4, %r20; ld.shared.u32 %r4, [%r3];",
    "16 bytes side by side": "mad.lo.u32 %r3, %r1, 16, %r20; ld.shared.v4.u32 {%r4, %r5, %r6, %r7}, [%r3];",
    "one lane": "setp.eq.u32 %p5, %r1, 0; @%p5 ld.shared.u32 %r4, [%r20+8];",
    "scattered": "mul.lo.u32 %r3, %r1, 36; add.u32 %r3, %r3, %r20; ld.shared.u32 %r4, [%r3];",
    "a matrix": "and.b32 %r3, %r1, 7; mad.lo.u32 %r3, %r3, 16, %r20;"
    "ldmatrix.sync.aligned.m8n8.x1.shared.b16 {%r4}, [%r3];",
    "a matrix of packed rows": "and.b32 %r3, %r1, 15; mad.lo.u32 %r3, %r3, 16, %r20;"
    "ldmatrix.sync.aligned.m8n16.x2.shared.b8x16.b4x16_p64 {%r4, %r5}, [%r3];",
    "pairs in chunks": "shr.u32 %r3, %r1, 1; xor.b32 %r3, %r3, 5; mad.lo.u32 %r3, %r3, 16, %r20; and.b32 %r4, %r1, 1;"
    "mad.lo.u32 %r3, %r4, 8, %r3; ld.shared.v2.u32 {%r5, %r6}, [%r3];",
    "volatile": "mad.lo.u32 %r3, %r1, 4, %r20; ld.volatile.shared.u32 %r4, [%r3];",
}
#: Writes of 512 bytes by a warp, and by lane 3 alone.
WRITES = {
    "stores": "mad.lo.u32 %r10, %r1, 16, %r20; add.u32 %r11, %r1, 7;st.shared.v4.u32 [%r10], {%r11, %r11, %r11, %r11};",
    "copies": "mul.lo.u32 %r11, %r1, 16; add.u32 %r10, %r11, %r20; cvt.u64.u32 %d10, %r11; add.u64 %d10, %d10, %d1;"
    "cp.async.cg.shared.global [%r10], [%d10], 16; cp.async.wait_all;",
    "a lane's store": "setp.eq.u32 %p6, %r1, 3; @%p6 st.shared.v4.u32 [%r20], {%r1, %r1, %r1, %r1};",
}
#: What makes a page's granules as small as words, before anybody looks.
FINE = "mad.lo.u32 %r3, %r1, 4, %r20; st.shared.u32 [%r3], 0;"
BODY = """
    mov.u32 %r20, cells;
    add.u32 %r20, %r20, {page};
    shr.u32 %r21, %r1, 5; and.b32 %r1, %r1, 31;
    setp.eq.u32 %p1, %r21, 1;
    @%p1 bra WRITER;
    mov.u32 %r22, 0;
CLEAR:
    mad.lo.u32 %r3, %r1, 16, %r20; mad.lo.u32 %r3, %r22, 512, %r3;
    st.shared.v4.u32 [%r3], {{%r22, %r22, %r22, %r22}};
    st.shared.u32 [cells+8188], 0;
    add.u32 %r22, %r22, 1; setp.lt.u32 %p2, %r22, 3;
    @%p2 bra CLEAR;
    bar.warp.sync -1;
    {fine}
    bar.warp.sync -1;
    {load}
    bar.sync 0;
    {load}
    {between}
    bra END;
WRITER:
    bar.sync 0;
    {between}
    // What is done in Python takes turns, so that the readers come first.
    ld.volatile.shared.u32 %r9, [cells+8188]; ld.volatile.shared.u32 %r9, [cells+8188];
    {write}
END:
    ret;
"""


def meet(load: str, write: str, fine: str = "", between: str = "", page: int = 0) -> None:
    """A warp reads a page, meets the other one, reads again, and the other one writes."""
    body = BODY.format(load=LOADS[load], write=WRITES[write], fine=fine, between=between, page=page)
    run(body, np.zeros(64, np.uint32), np.zeros(128, np.uint32), block=(64, 1, 1), declarations=CELLS)


@pytest.mark.parametrize("page", [0, 4096])
@pytest.mark.parametrize("fine", thinned(["", FINE], 3), ids=["wide granules", "words"])
@pytest.mark.parametrize("write", WRITES)
@pytest.mark.parametrize("load", LOADS)
def test_a_read_since_the_last_meeting_races(load: str, write: str, fine: str, page: int) -> None:
    with pytest.raises(ptx.RaceError, match="read-write race") as caught:
        meet(load, write, fine, page=page)
    assert re.match(r"cp\.async|@?%?p?6? ?st\.shared", caught.value.text)
    meet(load, write, fine, "bar.sync 0;", page)


def test_each_lane_asks_what_it_knows_itself() -> None:
    # Lane 0 of the writers waits for the readers, lane 1 does not: the copies of both are one instruction.
    body = """
        mov.u32 %r20, cells; mov.u32 %r30, flag;
        setp.eq.u32 %p9, %r1, 0;
        @%p9 mbarrier.init.shared.b64 [%r30], 32;
        shr.u32 %r21, %r1, 5; and.b32 %r1, %r1, 31;
        mad.lo.u32 %r3, %r1, 4, %r20; mad.lo.u32 %r3, %r21, 128, %r3;
        st.shared.u32 [%r3], %r1;
        bar.sync 0;
        setp.eq.u32 %p1, %r21, 1;
        @%p1 bra WRITER;
        mad.lo.u32 %r3, %r1, 4, %r20;
        ld.shared.u32 %r4, [%r3];
        mbarrier.arrive.shared.b64 %d11, [%r30];
        bra END;
    WRITER:
        setp.ge.u32 %p2, %r1, {waiting};
        @%p2 bra COPY;
    WAIT:
        mbarrier.try_wait.parity.shared.b64 %p3, [%r30], 0;
        @!%p3 bra WAIT;
    COPY:
        bar.warp.sync {together};
        setp.ge.u32 %p2, %r1, 2;
        @%p2 bra END;
        mul.lo.u32 %r11, %r1, 16; add.u32 %r10, %r11, %r20; cvt.u64.u32 %d10, %r11; add.u64 %d10, %d10, %d1;
        cp.async.cg.shared.global [%r10], [%d10], 16;
        cp.async.wait_all;
    END:
        ret;
    """
    options = {"block": (64, 1, 1), "declarations": CELLS + " .shared .align 8 .b64 flag;"}
    out, source = np.zeros(64, np.uint32), np.zeros(128, np.uint32)
    run(body.format(waiting=32, together="-1"), out, source, **options)
    run(body.format(waiting=2, together="%r12").replace("bar.warp.sync %r12;", ""), out, source, **options)
    with pytest.raises(ptx.RaceError, match="read-write race") as caught:
        run(body.format(waiting=1, together="%r12").replace("bar.warp.sync %r12;", ""), out, source, **options)
    assert caught.value.thread == (33, 0, 0)


@pytest.mark.parametrize("reads", ["", "ld.shared.u32 %r4, [%r3+128];"], ids=["and no more", "and reads the page"])
def test_a_weak_write_behind_a_strong_one_is_remembered(reads: str) -> None:
    # Warp 1 meets warp 0 and overwrites strongly what it wrote weakly; warp 2 meets nobody.
    body = """
        mov.u32 %r20, cells;
        shr.u32 %r21, %r1, 5; and.b32 %r1, %r1, 31; mad.lo.u32 %r3, %r1, 4, %r20;
        setp.eq.u32 %p1, %r21, 1; setp.eq.u32 %p2, %r21, 2;
        @%p1 bra SECOND;
        @%p2 bra THIRD;
        st.shared.u32 [%r3], %r1;
        st.shared.u32 [%r3+128], %r1;
        bar.sync 1, {met};
        bra END;
    SECOND:
        bar.sync 1, {met};
        st.relaxed.cta.shared.u32 [%r3], 7;
        {reads}
        bra END;
    THIRD:
        {meets}
        st.relaxed.cta.shared.u32 [%r3], 9;
    END:
        ret;
    """
    out = np.zeros(96, np.uint32)
    run(body.format(met=96, meets="bar.sync 1, 96;", reads=reads), out, block=(96, 1, 1), declarations=CELLS)
    with pytest.raises(ptx.RaceError, match=r"after a (read|write) by thread \(0, 0, 0\)") as caught:
        run(body.format(met=64, meets="", reads=reads), out, block=(96, 1, 1), declarations=CELLS)
    assert caught.value.thread == (64, 0, 0)


def test_a_copy_that_reads_is_not_forgotten_over_a_load_beside_it() -> None:
    # Thread 0 stores 128 bytes in bulk, and then its warp loads others of the same page.
    body = """
        mov.u32 %r20, cells; shr.u32 %r21, %r1, 5;
        mad.lo.u32 %r3, %r1, 4, %r20;
        st.shared.u32 [%r3], %r1;
        st.shared.u32 [%r3+256], %r1;
        fence.proxy.async.shared::cta;
        bar.sync 0;
        setp.eq.u32 %p1, %r21, 1; setp.ne.u32 %p2, %r1, 0;
        @%p1 bra SECOND;
        @%p2 bra LOAD;
        cp.async.bulk.global.shared::cta.bulk_group [%d0], [%r20], 128;
        cp.async.bulk.commit_group;
        {waits}
    LOAD:
        bar.warp.sync -1;
        ld.shared.u32 %r4, [%r3+256];
    SECOND:
        bar.sync 0;
        @!%p1 bra END;
        st.shared.u32 [%r3+-128], 5;
    END:
        ret;
    """
    options = {"block": (64, 1, 1), "declarations": CELLS}
    run(body.format(waits="cp.async.bulk.wait_group.read 0;"), np.zeros(64, np.uint32), **options)
    with pytest.raises(ptx.RaceError, match="thread \\(32, 0, 0\\) writes") as caught:
        run(body.format(waits=""), np.zeros(64, np.uint32), **options)
    assert caught.value.offset == 0


@pytest.mark.parametrize("meets", ["", "bar.warp.sync -1;"])
def test_a_lane_that_arrives_speaks_for_its_warp_if_they_met(meets: str) -> None:
    body = f"""
        mov.u32 %r20, cells; mov.u32 %r30, flag; shr.u32 %r21, %r1, 5; and.b32 %r22, %r1, 31;
        setp.eq.u32 %p9, %r1, 0; setp.eq.u32 %p1, %r21, 1; setp.ne.u32 %p2, %r22, 0;
        @%p9 mbarrier.init.shared.b64 [%r30], 1;
        mad.lo.u32 %r3, %r22, 4, %r20;
        @!%p1 st.shared.u32 [%r3], %r22;
        bar.sync 0;
        @%p1 bra WAIT;
        ld.shared.u32 %r4, [%r3];
        {meets}
        @%p2 bra END;
        mbarrier.arrive.shared.b64 %d11, [%r30];
        bra END;
    WAIT:
        mbarrier.try_wait.parity.shared.b64 %p3, [%r30], 0;
        @!%p3 bra WAIT;
        st.shared.u32 [%r3], 99;
    END:
        ret;
    """
    options = {"block": (64, 1, 1), "declarations": CELLS + " .shared .align 8 .b64 flag;"}
    if meets:
        run(body, np.zeros(64, np.uint32), **options)
        return
    with pytest.raises(ptx.RaceError, match="read-write race") as caught:
        run(body, np.zeros(64, np.uint32), **options)
    assert caught.value.thread == (33, 0, 0)
