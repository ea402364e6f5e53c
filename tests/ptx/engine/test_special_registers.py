"""Predefined registers: clocks that go on, and what describes the chip."""

from __future__ import annotations

import numpy as np
import pytest
from support.ptx_kernel import run

from refmoe import ptx


@pytest.mark.parametrize(
    ("name", "bits"), [("%clock", 32), ("%clock64", 64), ("%globaltimer", 64), ("%globaltimer_lo", 32)]
)
def test_a_clock_goes_on(name: str, bits: int) -> None:
    r = "%r" if bits == 32 else "%d"
    body = f"""
        mov.u{bits} {r}10, {name};
        mov.u{bits} {r}11, {name};
        mov.u32 %r3, 0;
    SPIN:
        add.u32 %r3, %r3, 1;
        setp.lt.u32 %p1, %r3, 100;
        @%p1 bra SPIN;
        mov.u{bits} {r}12, {name};
        setp.ge.u{bits} %p1, {r}10, {r}11;
        @%p1 trap;
        sub.u{bits} {r}13, {r}12, {r}11;
        setp.lt.u{bits} %p1, {r}13, 100;
        @%p1 trap;
        cvt.u32.u{bits} %r4, {r}12;
        st.global.u32 [%d2], %r4;
        ret;
    """
    first, again = np.zeros(64, np.uint32), np.zeros(64, np.uint32)
    run(body, first, block=(64, 1, 1))
    run(body, again, block=(64, 1, 1))
    assert (first > 300).all()
    np.testing.assert_array_equal(first, again)


def test_the_high_word_of_a_clock() -> None:
    body = """
        mov.u32 %r3, %clock_hi; mov.u32 %r4, %globaltimer_hi; or.b32 %r3, %r3, %r4;
        st.global.u32 [%d2], %r3; ret;
    """
    out = np.ones(32, np.uint32)
    run(body, out)
    assert (out == 0).all()


def test_a_long_wait_by_the_clock_costs_few_steps() -> None:
    body = """
        mov.u64 %d3, %clock64;
    SPIN:
        mov.u64 %d4, %clock64;
        sub.u64 %d4, %d4, %d3;
        setp.lt.u64 %p1, %d4, 10000000000;
        @%p1 bra SPIN;
        st.global.u32 [%d2], 1;
        ret;
    """
    out = np.zeros(32, np.uint32)
    run(body, out, step_budget=100_000)
    assert (out == 1).all()


TIMEOUT = """
    mov.u64 %d3, %globaltimer;
POLL:
    ld.acquire.gpu.global.u32 %r3, [%d1];
    setp.eq.u32 %p1, %r3, 1;
    @%p1 bra THERE;
    mov.u64 %d4, %globaltimer;
    sub.u64 %d4, %d4, %d3;
    setp.lt.u64 %p2, %d4, 1000000;
    @%p2 bra POLL;
    st.global.u32 [%d2], 9;
    ret;
THERE:
    st.global.u32 [%d2], 1;
    ret;
"""


def test_a_poll_that_nobody_answers_times_out() -> None:
    out, flag = np.zeros(32, np.uint32), np.zeros(1, np.uint32)
    run(TIMEOUT, out, flag, step_budget=200_000)
    assert (out == 9).all()


def test_a_poll_that_is_answered_does_not_time_out() -> None:
    # The second block answers, which starts when the lanes of the first all wait.
    body = """
        setp.eq.u32 %p3, %r60, 0;
        @%p3 bra WAIT;
        setp.ne.u32 %p3, %r1, 0;
        @%p3 ret;
        st.release.gpu.global.u32 [%d1], 1;
        ret;
    WAIT:
    """
    out, flag = np.zeros(1024, np.uint32), np.zeros(1, np.uint32)
    run(body + TIMEOUT, out, flag, grid=(40, 1, 1), block=(1024, 1, 1), step_budget=200_000)
    assert (out == 1).all()


def test_a_wait_without_end_is_a_deadlock_though_it_looks_at_the_clock() -> None:
    body = TIMEOUT.replace("setp.lt.u64 %p2, %d4, 1000000", "setp.ge.u64 %p2, %d4, 0")
    with pytest.raises(ptx.Deadlock):
        run(body, np.zeros(32, np.uint32), np.zeros(1, np.uint32), step_budget=None)
    body = """
        setp.ne.u32 %p1, %r1, 0;
        @%p1 bra WAIT;
        mbarrier.init.shared.b64 [bar], 2;
        mbarrier.arrive.shared.b64 _, [bar];
    WAIT:
        bar.sync 0;
    LOOP:
        mov.u64 %d4, %clock64;
        mbarrier.try_wait.parity.shared.b64 %p2, [bar], 0;
        @!%p2 bra LOOP;
        st.global.u64 [%d0], %d4;
        ret;
    """
    with pytest.raises(ptx.Deadlock):
        run(body, np.zeros(32, np.uint32), step_budget=None, declarations=".shared .align 8 .b64 bar;")


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("%envreg0", 0), ("%envreg31", 0), ("%smid", 0), ("%nsmid", 1), ("%gridid", 1),
        ("%reserved_smem_offset_begin", 0), ("%reserved_smem_offset_end", 1024), ("%reserved_smem_offset_cap", 1024),
        ("%aggr_smem_size", 1024 + 64), ("%total_smem_size", 64),
    ],
)  # fmt: skip
def test_constants_of_the_chip(name: str, value: int) -> None:
    out = np.full(32, 77, np.uint32)
    run(f"mov.u32 %r3, {name}; st.global.u32 [%d2], %r3; ret;", out, shared_bytes=64)
    assert (out == value).all()


def test_the_block_lies_behind_the_reserved_shared_memory() -> None:
    body = """
        mov.u32 %r3, %reserved_smem_offset_end;
        mov.u32 %r4, cell;
        setp.lt.u32 %p1, %r4, %r3;
        @%p1 trap;
        st.shared.u32 [%r3+-4], %r4;
        ret;
    """
    with pytest.raises(ptx.MemoryFault, match="out of bounds"):
        run(body, np.zeros(1, np.uint32), declarations=".shared .b32 cell;")


@pytest.mark.parametrize("checks", [ptx.Checks(), ptx.Checks(uninitialised=False)], ids=["checked", "unchecked"])
def test_parts_of_the_reserved_shared_memory_can_be_used(checks: ptx.Checks) -> None:
    # As tiles of several warps use it: each block finds its part as nobody left it, apart from its variables.
    body = """
        mov.u32 %r3, %reserved_smem_offset_1;
        add.u32 %r4, %r1, 1;
        st.shared.u32 [cell], %r4;
        cvt.u64.u32 %d3, %r3;
        cvta.shared.u64 %d3, %d3;
        ld.u32 %r5, [%d3];
        st.u32 [%d3], %r5;
        st.shared.u32 [%r3+1020], %r5;
        ld.shared.u32 %r6, [cell];
        add.u32 %r5, %r5, %r6;
        mov.u32 %r7, %reserved_smem_offset_end;
        mov.u32 %r8, cell;
        setp.lt.u32 %p1, %r8, %r7;
        @%p1 trap;
        mov.u32 %r7, %total_smem_size;
        shl.b32 %r7, %r7, 8;
        add.u32 %r5, %r5, %r7;
        mov.u32 %r6, %ctaid.x;
        mul.wide.u32 %d4, %r6, 4;
        add.u64 %d4, %d0, %d4;
        st.global.u32 [%d4], %r5;
        ret;
    """
    out = np.zeros(3072, np.uint32)
    run(body, out, grid=(3072, 1, 1), block=(1, 1, 1), declarations=".shared .b32 cell;", checks=checks)
    assert (out == 1 + (4 << 8)).all()
    body = body.replace("ld.u32 %r5, [%d3];", "atom.or.acq_rel.cta.b32 %r5, [%d3], 5;")
    run(body, out, grid=(3072, 1, 1), block=(1, 1, 1), declarations=".shared .b32 cell;", checks=checks)
    assert (out == 1 + (4 << 8)).all()
