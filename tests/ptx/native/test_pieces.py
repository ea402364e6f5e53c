"""What goes from one piece of a block to the next, and who may change it."""

from __future__ import annotations

import numpy as np
import pytest
from support.ptx_kernel import run, text
from support.ptx_ways import Way

from refmoe import ptx
from refmoe.ptx.engine.code import View

# Python code between two native pieces; it touches no memory that others use.
CUT = "membar.cta;"


@pytest.mark.parametrize("chain", ["u32", "u64"])
def test_the_carry_goes_on_in_the_next_piece(chain: str) -> None:
    kind = "r" if chain == "u32" else "d"
    body = f"""
        cvt.{chain}.u32 %{kind}10, %r1;
        mov.{chain} %{kind}11, -2;
        add.cc.{chain} %{kind}12, %{kind}11, %{kind}10;
        {CUT}
        addc.{chain} %{kind}13, 0, 0;
        cvt.u32.{chain} %r20, %{kind}13;
        st.global.u32 [%d2], %r20;
        ret;
    """
    out = np.zeros(4, np.uint32)
    run(body, out, block=(4, 1, 1))
    assert out.tolist() == [0, 0, 1, 1]


def test_a_guarded_carry_is_that_of_the_lanes_whose_guard_is_on() -> None:
    body = """
        setp.lt.u32 %p1, %r1, 2;
        mov.u32 %r3, -1;
        add.cc.u32 %r4, %r3, %r1;
        @%p1 add.cc.u32 %r4, %r3, 1;
        addc.u32 %r5, 0, 0;
        st.global.u32 [%d2], %r5;
        ret;
    """
    out = np.zeros(4, np.uint32)
    run(body, out, block=(4, 1, 1))
    assert out.tolist() == [1, 1, 1, 1]
    run(body.replace("%r3, 1;", "0, 0;"), out, block=(4, 1, 1))
    assert out.tolist() == [0, 0, 1, 1]


def test_registers_of_every_kind_have_homes_of_their_own() -> None:
    # Of each kind several, neighbours of other kinds, all of them different in each lane.
    body = f"""
        setp.gt.u32 %p1, %r1, 40;
        cvt.u16.u32 %h1, %r1;
        add.u32 %r3, %r1, 100000;
        mul.wide.u32 %d5, %r3, 65537;
        setp.lt.u32 %p2, %r1, 17;
        add.u16 %h2, %h1, 1000;
        mul.lo.u32 %r4, %r1, 12345;
        add.u64 %d6, %d5, 77;
        {CUT}
        cvt.u32.u16 %r10, %h1;
        cvt.u32.u16 %r11, %h2;
        selp.u32 %r12, 1, 0, %p1;
        selp.u32 %r13, 1, 0, %p2;
        cvt.u32.u64 %r14, %d5;
        shr.u64 %d7, %d6, 32;
        cvt.u32.u64 %r15, %d7;
        cvt.u32.u64 %r16, %d6;
        mul.wide.u32 %d8, %r2, 32;
        add.u64 %d8, %d8, %d0;
        st.global.v4.u32 [%d8], {{%r3, %r4, %r10, %r11}};
        st.global.v2.u32 [%d8+16], {{%r14, %r15}};
        st.global.u32 [%d8+24], %r16;
        shl.b32 %r13, %r13, 1;
        or.b32 %r13, %r13, %r12;
        st.global.u32 [%d8+28], %r13;
        ret;
    """
    out = np.zeros((192, 8), np.uint32)
    run(body, out, grid=(2, 1, 1), block=(96, 1, 1))
    t = np.tile(np.arange(96, dtype=np.uint64), 2)
    wide = (t + 100000) * 65537
    flags = ((t > 40) + 2 * (t < 17)).astype(np.uint64)
    expected = [t + 100000, t * 12345, t, t + 1000, wide, (wide + 77) >> np.uint64(32), wide + 77, flags]
    np.testing.assert_array_equal(out, (np.stack(expected, 1) & 0xFFFFFFFF).astype(np.uint32))


def test_lanes_elsewhere_keep_theirs() -> None:
    # Three warps; of the first all lanes leave, of the second the odd ones take another way.
    body = f"""
        setp.lt.u32 %p1, %r1, 32;
        @%p1 ret;
        add.u32 %r3, %r1, 1000;
        setp.ge.u32 %p4, %r1, 90;
        and.b32 %r4, %r1, 1;
        setp.eq.u32 %p2, %r4, 0;
        setp.lt.u32 %p3, %r1, 64;
        @!%p3 bra END;
        @%p2 bra END;
        add.u32 %r3, %r3, 5000;
        setp.ge.u32 %p4, %r1, 50;
        {CUT}
        add.u32 %r3, %r3, 20000;
    END:
        @%p4 add.u32 %r3, %r3, 1;
        st.global.u32 [%d2], %r3;
        ret;
    """
    out = np.zeros(96, np.uint32)
    run(body, out, block=(96, 1, 1))
    t = np.arange(96)
    odd = (t < 64) & (t % 2 == 1)
    expected = np.where(t < 32, 0, t + 1000 + 25000 * odd + np.where(odd, t >= 50, t >= 90))
    np.testing.assert_array_equal(out, expected)


def test_predefined_registers_lie_behind_the_homes() -> None:
    body = f"""
        add.u32 %r3, %r1, 3; setp.lt.u32 %p1, %r1, 5;
        {CUT}
        mov.u32 %r4, %laneid; mov.u32 %r5, %warpid; mov.u32 %r6, %lanemask_lt; mov.u32 %r7, %ctaid.x;
        @%p1 add.u32 %r3, %r3, 1;
        mul.wide.u32 %d8, %r2, 32;
        add.u64 %d8, %d8, %d0;
        st.global.v4.u32 [%d8], {{%r4, %r5, %r6, %r7}};
        st.global.u32 [%d8+16], %r3;
        ret;
    """
    out = np.zeros((128, 8), np.uint32)
    run(body, out, grid=(2, 1, 1), block=(64, 1, 1))
    t = np.arange(128)
    inside, lane = t % 64, t % 32
    expected = [lane, inside // 32, (1 << lane) - 1, t // 64, inside + 3 + (inside < 5)]
    np.testing.assert_array_equal(out[:, :5], np.stack(expected, 1))


def test_a_guarded_write_keeps_what_an_earlier_piece_wrote() -> None:
    body = f"""
        add.u32 %r3, %r1, 50; setp.lt.u32 %p1, %r1, 2;
        {CUT}
        @%p1 mov.u32 %r3, 9;
        st.global.u32 [%d2], %r3;
        ret;
    """
    out = np.zeros(4, np.uint32)
    run(body, out, block=(4, 1, 1))
    assert out.tolist() == [9, 9, 52, 53]


def test_warps_of_a_step_that_is_observed() -> None:
    # A step runs native code for some warps, not the first ones alone, and for other lanes of each.
    body = """
        shr.u32 %r3, %r1, 5;
        setp.eq.u32 %p1, %r3, 1;
        and.b32 %r4, %r1, 3;
        setp.gt.u32 %p2, %r4, %r3;
        or.pred %p1, %p1, %p2;
        mov.u32 %r5, 0;
        @%p1 bra END;
        mul.lo.u32 %r5, %r1, 3;
        add.u32 %r5, %r5, 1;
    END:
        st.global.u32 [%d2], %r5;
        ret;
    """
    observed = Way(View("observed", lambda _: True, False, lambda work: work))
    module = ptx.Module.parse(text(body))
    t = np.arange(128)
    for way in (None, observed):
        out = np.full(128, 77, np.uint32)
        ptx.launch(module, "k", (1, 1, 1), (128, 1, 1), [out, None, 0], profile=way)
        np.testing.assert_array_equal(out, np.where((t // 32 == 1) | (t % 4 > t // 32), 0, 3 * t + 1))
