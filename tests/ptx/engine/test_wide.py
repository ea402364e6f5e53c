"""Registers of 128 bits, and vector registers."""

from __future__ import annotations

import numpy as np
import pytest
from support.ptx_kernel import run, text

from refmoe import ptx

THREADS = np.arange(32, dtype=np.uint32)


def test_loads_and_stores_of_128_bits() -> None:
    body = """
        mul.wide.u32 %d3, %r1, 16;
        add.u64 %d4, %d3, %d1;
        add.u64 %d5, %d3, %d0;
        ld.global.b128 q1, [%d4];
        mov.b128 {%d6, %d7}, q1;
        mov.b128 q2, {%d7, %d6};
        mov.b128 q3, q2;
        and.b32 %r3, %r1, 1;
        setp.eq.u32 %p1, %r3, 1;
        @%p1 mov.b128 q3, q1;
        st.global.b128 [%d5], q3;
        ret;
    """
    source = np.arange(64, dtype=np.uint64).reshape(32, 2) * np.uint64(0x0102030405060708)
    out = np.zeros((32, 2), np.uint64)
    run(body, out, source, declarations=".reg .b128 q<4>;")
    np.testing.assert_array_equal(out, np.where((THREADS % 2 == 1)[:, None], source, source[:, ::-1]))


def test_128_bits_must_be_aligned() -> None:
    body = "add.u64 %d3, %d1, 8; ld.global.b128 q, [%d3]; ret;"
    with pytest.raises(ptx.MemoryFault, match="misaligned"):
        run(body, np.zeros(1, np.uint32), np.zeros(8, np.uint64), declarations=".reg .b128 q;")


def test_128_bits_that_are_swapped_with_themselves() -> None:
    body = """
        mov.b128 q, {3, 5};
        mov.b128 {%d4, %d5}, q;
        mov.b128 q, {%d5, %d4};
        mov.b128 {_, %d6}, q;
        cvt.u32.u64 %r3, %d6;
        st.global.u32 [%d2], %r3;
        ret;
    """
    out = np.zeros(32, np.uint32)
    run(body, out, declarations=".reg .b128 q;")
    assert (out == 3).all()


WIDE = (
    "st.relaxed.gpu.global.b128 [%d1], q;",
    "atom.relaxed.gpu.global.exch.b128 r, [%d1], q;",
    "ld.relaxed.gpu.global.b128 r, [%d1];",
)


@pytest.mark.parametrize("wide", WIDE)
@pytest.mark.parametrize(("other", "races"), [
    ("st.relaxed.gpu.global.u64 [%d1+8], 7;", False),
    ("st.relaxed.gpu.global.v2.u64 [%d1], {7, 7};", False),
    ("st.relaxed.gpu.global.u32 [%d1+4], 7;", True),
    ("st.relaxed.gpu.global.v4.u32 [%d1], {7, 7, 7, 7};", True),
])  # fmt: skip
def test_128_bits_are_two_accesses_of_64(wide: str, other: str, races: bool) -> None:
    """The memory model's scalars have 64 bits at most (PTX ISA, "Vector Data Types")."""
    body = f"setp.eq.u32 %p1, %r60, 0; mov.b128 q, {{3, 5}}; @%p1 bra WIDE; {other} ret; WIDE: {wide} ret;"
    module = ptx.Module.parse(text(body, declarations=".reg .b128 q, r;"))
    checks = ptx.Checks(explain=False, strict=True)
    arguments = [np.zeros(1, np.uint32), np.zeros(2, np.uint64), 0]
    if not races:
        ptx.launch(module, "k", (2, 1, 1), (1, 1, 1), arguments, checks=checks)
        return
    with pytest.raises(ptx.RaceError):
        ptx.launch(module, "k", (2, 1, 1), (1, 1, 1), arguments, checks=checks)


def test_what_does_not_take_128_bits_is_refused_where_it_is_reached() -> None:
    declarations = ".reg .b128 q, r;"
    for wrong in ("atom.global.and.b128 q, [%d1], r;", "xor.b128 q, q, r;"):
        run(f"ret; {wrong} ret;", np.zeros(1, np.uint32), declarations=declarations)
        with pytest.raises(ptx.UnknownOpcode):
            run(f"{wrong} ret;", np.zeros(1, np.uint32), declarations=declarations)


def test_vector_registers() -> None:
    body = """
        mul.wide.u32 %d3, %r1, 16;
        add.u64 %d4, %d3, %d1;
        add.u64 %d5, %d3, %d0;
        ld.global.v4.u32 v, [%d4];
        add.u32 v.x, v.y, v.z;
        mov.v4.u32 v, {v.w, v.x, v.y, v.z};
        mov.v4.u32 w1, v;
        mov.v2.u32 pair, {%r1, 9};
        add.u32 w1.a, w1.w, pair.y;
        add.u32 w1.g, w1.y, pair.r;
        st.global.v4.u32 [%d5], w1;
        ret;
    """
    source = np.arange(128, dtype=np.uint32).reshape(32, 4) ** 2
    out = np.zeros((32, 4), np.uint32)
    run(body, out, source, declarations=".reg .v4 .u32 v; .reg .v4 .b32 w<2>; .reg .v2 .b32 pair;")
    _, y, z, w = source.T
    np.testing.assert_array_equal(out, np.stack([w, y + z + THREADS, y, z + 9], axis=1))


def test_the_predefined_vectors() -> None:
    body = """
        mov.v4.u32 v, %tid;
        mad.lo.u32 v.x, v.y, 100, v.x;
        mad.lo.u32 v.x, v.w, 7, v.x;
        mov.u32 %r3, %tid.y;
        mad.lo.u32 %r3, %r3, 8, %r1;
        mul.wide.u32 %d3, %r3, 4;
        add.u64 %d3, %d3, %d0;
        st.global.u32 [%d3], v.x;
        ret;
    """
    out = np.zeros((4, 8), np.uint32)
    run(body, out, block=(8, 4, 1), declarations=".reg .v4 .u32 v;")
    np.testing.assert_array_equal(out, np.arange(8) + 100 * np.arange(4)[:, None])


@pytest.mark.parametrize("operand", ["v.z", "v.q", "%r1.x", "v.x.y"])
def test_elements_that_do_not_exist(operand: str) -> None:
    with pytest.raises(ptx.PtxError):
        run(f"add.u32 {operand}, %r1, 1; ret;", np.zeros(1, np.uint32), declarations=".reg .v2 .u32 v;")


def test_eight_elements_are_moved_together() -> None:
    body = """
        ld.global.v8.u8 {%h0, %h1, %h2, %h3, %h4, %h5, %h6, %h7}, [%d1];
        mov.v8.u16 {%h4, %h5, %h6, %h7, %h0, %h1, %h2, %h3}, {%h7, %h0, %h1, %h2, %h3, %h4, %h5, %h6};
        st.global.v8.u8 [%d0], {%h0, %h1, %h2, %h3, %h4, %h5, %h6, %h7};
        ret;
    """
    out = np.zeros(8, np.uint8)
    run(body, out, np.arange(8, dtype=np.uint8) + np.uint8(10), block=(1, 1, 1))
    # What stood at 7 is now first among those at 4 .. 7, and so on.
    assert out.tolist() == [13, 14, 15, 16, 17, 10, 11, 12]


def test_a_register_and_a_constant_are_added_where_they_are_read() -> None:
    body = """
        setp.gt.u32 %p1, %r1, 20;
        mov.u32 %r3, %r1+7;
        @%p1 add.u32 %r3, %r3 + -2, %r1-1;
        st.global.u32 [%d2], %r3+100;
        ret;
    """
    out = np.zeros(32, np.uint32)
    run(body, out)
    np.testing.assert_array_equal(out, np.where(THREADS > 20, 2 * THREADS + 4, THREADS + 7) + 100)


@pytest.mark.parametrize("schedule", [0, 5])
@pytest.mark.parametrize("space", ["global", "shared"])
def test_swaps_of_128_bits_lose_nothing(space: str, schedule: int) -> None:
    # Each lane that finds (n, 2n) puts (n + 1, 2n + 2) there, until it has done so.
    place = "%d0" if space == "global" else "cell"
    body = f"""
        mov.u64 %d3, 0;
        mov.b128 q0, {{%d3, %d3}};
        setp.eq.u32 %p2, %r1, 0;
        @%p2 st.{space}.b128 [{place}], q0;
        bar.sync 0;
    AGAIN:
        add.u64 %d4, %d3, %d3;
        mov.b128 q1, {{%d3, %d4}};
        add.u64 %d5, %d3, 1;
        add.u64 %d6, %d5, %d5;
        mov.b128 q2, {{%d5, %d6}};
        atom.relaxed.cta.{space}.cas.b128 q3, [{place}], q1, q2;
        mov.b128 {{%d7, %d8}}, q3;
        setp.ne.u64 %p1, %d7, %d3;
        mov.u64 %d3, %d7;
        @%p1 bra AGAIN;
        bar.sync 0;
        @!%p2 bra END;
        atom.{space}.exch.b128 q3, [{place}], q0;
        st.global.b128 [%d0+16], q3;
    END:
        ret;
    """
    out = np.zeros((2, 2), np.uint64)
    declarations = ".reg .b128 q<4>; .shared .align 16 .b8 cell[16];"
    module = ptx.Module.parse(text(body, declarations=declarations), name="test.ptx")
    ptx.launch(module, "k", (1, 1, 1), (64, 1, 1), [out, None, 0], schedule=schedule)
    assert out[1].tolist() == [64, 128]


@pytest.mark.parametrize(("low", "high", "stored"), [(1, 2, True), (1, 3, False), (3, 2, False)])
@pytest.mark.parametrize("undefined", [True, False])
def test_a_swap_of_128_bits_compares_both_halves(low: int, high: int, stored: bool, undefined: bool) -> None:
    body = f"""
        mov.u64 %d3, {low};
        mov.u64 %d4, {high};
        mov.b128 q0, {{%d3, %d4}};
        mov.u64 %d3, 7;
        mov.b128 q1, {{%d3, %d3}};
        atom.global.cas.b128 q2, [%d0], q0, q1;
        st.global.b128 [%d0+16], q2;
        ret;
    """
    out = np.array([[1, 2], [0, 0]], np.uint64)
    run(body, out, block=(1, 1, 1), checks=ptx.Checks(undefined=undefined), declarations=".reg .b128 q<3>;")
    assert out.tolist() == [[7, 7] if stored else [1, 2], [1, 2]]


def test_swaps_of_128_bits_must_be_aligned() -> None:
    body = "mov.b128 q, {%d0, %d0}; add.u64 %d3, %d0, 8; atom.global.exch.b128 q, [%d3], q; ret;"
    with pytest.raises(ptx.MemoryFault, match="misaligned"):
        run(body, np.zeros(8, np.uint64), declarations=".reg .b128 q;")
