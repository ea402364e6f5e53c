"""Where undefined values come from, where they are used, and where they may go: PTX, each kernel bad and mended."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from support.ptx_kernel import line_of, run, text
from support.selection.thinned import thinned

from refmoe import ptx

CELLS = ".shared .align 16 .b8 cells[1024]; .local .align 16 .b8 own[64];"


def launched(body: str, checks: ptx.Checks | None = None, **options: Any) -> np.ndarray[Any, Any]:
    """What a body leaves of 64 zeros."""
    out = np.zeros(64, np.uint32)
    run(body, out, np.arange(64, dtype=np.uint32), declarations=CELLS, checks=checks, **options)
    return out


def refused(body: str, **options: Any) -> ptx.UndefinedError:
    with pytest.raises(ptx.UndefinedError) as caught:
        launched(body, **options)
    return caught.value


# What becomes of %r5, of which nothing is defined, and of %r4, of which everything is.
SINKS = {
    "an output byte": "st.global.u32 [%d2], {r};",
    "an address": "cvt.u64.u32 %d9, {r}; and.b64 %d9, %d9, 4; add.s64 %d9, %d9, %d0; st.global.u32 [%d9], 7;",
    "an address of a load": "and.b32 %r6, {r}, 4;"
    "cvt.u64.u32 %d9, %r6; add.s64 %d9, %d9, %d1; ld.global.u32 %r7, [%d9];",
    "an address of an atomic": "and.b32 %r6, {r}, 4; cvt.u64.u32 %d9, %r6; add.s64 %d9, %d9, %d0;"
    "red.global.add.u32 [%d9], 1;",
    "an address of a vector": "and.b32 %r6, {r}, 16; mov.u32 %r7, cells; add.u32 %r7, %r7, %r6;"
    "st.shared.v4.u32 [%r7], {{1, 2, 3, 4}};",
    "a branch": "setp.eq.u32 %p1, {r}, 3; @%p1 bra NEXT; st.global.u32 [%d2], 7; NEXT:",
    "a predicate": "setp.eq.u32 %p1, {r}, 3; @!%p1 st.global.u32 [%d2], 7;",
    "a predicate of a load": "setp.eq.u32 %p1, {r}, 3; @%p1 ld.global.u32 %r7, [%d1];",
    "an operand of a barrier": "bar.sync {r}, 32;",
    "an operand of a barrier, its count": "or.b32 %r6, {r}, 32; and.b32 %r6, %r6, 32; bar.sync 0, {r};",
    "an operand of a barrier, its vote": "setp.eq.u32 %p1, {r}, 3; bar.red.popc.u32 %r7, 0, %p1;",
    "the lane operand of a shuffle": "shfl.sync.idx.b32 %r6|%p2, %r1, {r}, 31, -1;",
    "the lane operand of a shuffle, its bound": "or.b32 %r7, {r}, 31; shfl.sync.idx.b32 %r6|%p2, %r1, 0, %r7, -1;",
    "a member mask": "or.b32 %r7, {r}, -2; shfl.sync.idx.b32 %r6|%p2, %r1, 0, 31, %r7;",
    "the comparison of an atomic": "atom.global.cas.b32 %r6, [%d2], {r}, 7;",
    "an operand of a copy": "mov.u32 %r7, cells; and.b32 %r6, {r}, 4; setp.eq.u32 %p1, %r1, 0;"
    "@%p1 cp.async.ca.shared.global [%r7], [%d1], 4, %r6; cp.async.wait_all;",
    "an operand of a barrier in memory": "mov.u32 %r7, cells; setp.ne.u32 %p1, %r1, 0; @%p1 bra NEXT;"
    "mbarrier.init.shared.b64 [%r7], {r}; NEXT:",
}  # fmt: skip
MENDED = {"an operand of a barrier": "mov.u32 %r4, 1;", "an operand of a barrier, its count": "mov.u32 %r4, 32;"}


@pytest.mark.parametrize("name", SINKS)
def test_every_use_of_an_undefined_value_is_found(name: str) -> None:
    sink = name.partition(",")[0].partition(" of a load")[0].partition(" of an atomic")[0].partition(" of a vector")[0]
    sink = {
        "the comparison": "the comparison of an atomic",
        "an operand of a barrier in memory": "an operand of a barrier",
    }.get(sink, sink)
    block = (32, 1, 1)
    found = refused(SINKS[name].format(r="%r5") + " ret;", block=block)
    assert (found.sink, found.register) == (sink, "%r5")
    assert found.block == found.origin_block == (0, 0, 0)
    assert found.thread == found.origin_thread == (0, 0, 0)
    assert found.origin_line is None
    body = MENDED.get(name, "mov.u32 %r4, 3;") + SINKS[name].format(r="%r4") + " ret;"
    launched(body, block=block)


def test_an_error_says_where_and_whose() -> None:
    body = """
        setp.lt.u32 %p1, %r1, 40;
        @%p1 mov.u32 %r5, 6;
        add.u32 %r6, %r5, 1;
        st.global.u32 [%d2], %r6;
        ret;
    """
    found = refused(body, block=(64, 1, 1))
    assert (found.thread, found.register, found.sink) == ((40, 0, 0), "%r5", "an output byte")
    assert (found.line, found.text) == (line_of(body, "[%d2]", declarations=CELLS), "st.global.u32 [%d2], %r6;")
    assert "byte 160 of argument 0" in str(found)
    assert "register %r5 of block (0, 0, 0) thread (40, 0, 0), which nothing has written" in str(found)


def test_threads_of_other_blocks_are_named() -> None:
    body = "setp.eq.u32 %p1, %r2, 41; @!%p1 mov.u32 %r5, 6; st.global.u32 [%d2], %r5; ret;"
    found = refused(body, grid=(2, 1, 1), block=(32, 1, 1))
    assert (found.block, found.thread, found.origin_block) == ((1, 0, 0), (9, 0, 0), (1, 0, 0))


HARMLESS = {
    "masked": "and.b32 %r6, %r5, 0; st.global.u32 [%d2], %r6;",
    "shifted out": "shl.b32 %r6, %r5, 16; shl.b32 %r6, %r6, 16; st.global.u32 [%d2], %r6;",
    "not chosen": "setp.lt.u32 %p1, %r1, 99; selp.b32 %r6, %r1, %r5, %p1; st.global.u32 [%d2], %r6;",
    "written where it is used": "setp.lt.u32 %p1, %r1, 16; @%p1 mov.u32 %r5, 7; selp.b32 %r6, %r5, 9, %p1;"
    "st.global.u32 [%d2], %r6;",
    "guarded use": "setp.lt.u32 %p1, %r1, 16; @%p1 mov.u32 %r5, 7; @%p1 st.global.u32 [%d2], %r5;",
    "moved about": "mov.b32 %r6, %r5; mov.b64 %d5, {%r6, %r1}; mov.b64 {%r7, %r8}, %d5; st.global.u32 [%d2], %r8;",
    "half of a word": "mov.b32 %r6, {%h1, %h2}; mov.u16 %h3, 7; mov.b32 %r6, {%h3, %h2}; and.b32 %r6, %r6, 65535;"
    "st.global.u32 [%d2], %r6;",
    "one bit of a predicate": "setp.ne.u32 %p1, %r5, 0; setp.lt.u32 %p2, %r1, 99; or.pred %p3, %p1, %p2;"
    "@%p3 st.global.u32 [%d2], %r1;",
    "never stored": "add.u32 %r6, %r5, 1; mul.lo.u32 %r7, %r6, %r6; st.global.u32 [%d2], %r1;",
    "stored and overwritten": "st.global.u32 [%d2], %r5; st.global.u32 [%d2], %r1;",
    "stored in shared memory alone": "mov.u32 %r7, cells; shl.b32 %r8, %r1, 2; add.u32 %r7, %r7, %r8;"
    "st.shared.u32 [%r7], %r5; st.global.u32 [%d2], %r1;",
    "a lane whose register nobody reads": "shfl.sync.idx.b32 %r6|%p2, %r1, 3, 31, -1; setp.eq.u32 %p1, %r1, 3;"
    "@!%p1 mov.u32 %r5, 9; setp.eq.u32 %p3, %r1, 0; @%p3 bra L; bra M; L: mov.u32 %r5, 1; M:"
    "shfl.sync.idx.b32 %r6|%p2, %r5, 4, 31, -1; st.global.u32 [%d2], %r6;",
    "decided without it": "setp.eq.u32 %p1, %r1, 3; selp.u32 %r4, 1, 0, %p1; or.b32 %r6, %r4, %r5;"
    "setp.eq.u32 %p4, %r1, 5; setp.ne.and.u32 %p2, %r5, 0, %p4; setp.ge.u32 %p3, %r1, 0;"
    "vote.sync.any.pred %p5, %p3, -1; @%p5 st.global.u32 [%d2], %r1;",
}  # fmt: skip


@pytest.mark.parametrize("name", HARMLESS)
def test_what_no_result_depends_on_is_no_error(name: str) -> None:
    launched(HARMLESS[name] + " ret;")


def test_undefined_values_are_not_looked_for_where_that_is_said() -> None:
    body = "add.u32 %r6, %r5, 1; st.global.u32 [%d2], %r6; ret;"
    assert launched(body, ptx.Checks(undefined=False))[:32].tolist() == [1] * 32
    # A predicate that nothing wrote is off.
    body = "@%p7 st.global.u32 [%d2], 3; @!%p7 st.global.u32 [%d2], 4; ret;"
    assert launched(body, ptx.Checks(undefined=False))[:32].tolist() == [4] * 32


def test_a_register_may_hold_what_unwritten_ones_begin_with() -> None:
    """Values are no proof: a register that was written is defined whatever it holds."""
    body = """
        setp.lt.u32 %p1, %r1, 99;
        @%p1 mov.u32 %r5, 0xB5C70F9D;
        @%p1 mov.u16 %h5, 0xB5C7;
        @%p1 mov.u64 %d5, 0xB5C70F9D2E68A341;
        cvt.u32.u16 %r6, %h5; cvt.u32.u64 %r7, %d5;
        xor.b32 %r6, %r6, %r5; xor.b32 %r6, %r6, %r7;
        st.global.u32 [%d2], %r6;
        ret;
    """
    assert launched(body)[:32].tolist() == [0xB5C70F9D ^ 0xB5C7 ^ 0x2E68A341] * 32


@pytest.mark.parametrize("kind", ["%p7", "%h7", "%r7", "%d7"])
@pytest.mark.parametrize("barrier", ["", "bar.sync 0;"])
def test_registers_of_every_kind(kind: str, barrier: str) -> None:
    """Read by native code, or in a block that waits and so is Python's."""
    widths = {"%h7": ("cvt.u32.u16", ""), "%r7": ("mov.u32", ""), "%d7": ("cvt.u32.u64", ""), "%p7": ("selp.u32", "9")}
    opcode, other = widths[kind]
    read = f"{opcode} %r6, {'5, 9, ' if other else ''}{kind};"
    write = {
        "%p7": "setp.eq.u32 %p7, %r1, 4;",
        "%h7": "mov.u16 %h7, 4;",
        "%r7": "mov.u32 %r7, 4;",
        "%d7": "mov.u64 %d7, 4;",
    }
    found = refused(f"{barrier} {read} {barrier} st.global.u32 [%d2], %r6; {barrier} ret;")
    assert found.register == kind
    launched(f"{write[kind]} {barrier} {read} {barrier} st.global.u32 [%d2], %r6; {barrier} ret;")


def test_an_undefined_value_of_a_loop() -> None:
    """It is born in the first round, and used in a later block."""
    body = """
        mov.u32 %r3, 0;
    LOOP:
        add.u32 %r6, %r6, %r3;
        add.u32 %r3, %r3, 1;
        setp.lt.u32 %p1, %r3, 5;
        @%p1 bra LOOP;
        {after}
        st.global.u32 [%d2], %r6;
        ret;
    """
    assert refused(body.format(after="")).register == "%r6"
    launched(body.format(after="mov.u32 %r6, 2;"))
    launched("mov.u32 %r6, 0;" + body.format(after=""))


def test_a_register_that_is_written_again_is_defined_in_later_blocks() -> None:
    body = """
        add.u32 %r6, %r6, 1;
        bar.sync 0;
        {write}
        bar.sync 0;
        st.global.u32 [%d2], %r6;
        ret;
    """
    assert launched(body.format(write="mov.u32 %r6, 4;"))[:32].tolist() == [4] * 32
    assert refused(body.format(write="setp.ne.u32 %p1, %r1, 6; @%p1 mov.u32 %r6, 4;")).thread == (6, 0, 0)


# Shuffles

HALF = """
    setp.lt.u32 %p1, %r1, 16;
    @!%p1 bra END;
    shfl.sync.{mode}.b32 %r5|%p2, %r1, {amount}, 31, 0xFFFF;
    {use}
END:
    ret;
"""


@pytest.mark.parametrize(
    ("mode", "amount", "lanes"), [("idx", 20, range(16)), ("down", 4, range(12, 16)), ("bfly", 16, range(16))]
)
def test_a_lane_that_takes_no_part(mode: str, amount: int, lanes: range) -> None:
    """What is read from it is undefined; the lanes that read others may use what they get."""
    use = "st.global.u32 [%d2], %r5;"
    body = HALF.format(mode=mode, amount=amount, use=use)
    found = refused(body)
    assert (found.thread, found.origin_thread, found.register) == ((lanes[0], 0, 0), (lanes[0], 0, 0), None)
    assert found.origin_line == line_of(body, "shfl", declarations=CELLS)
    assert found.origin_text is not None
    assert found.origin_text.startswith(f"shfl.sync.{mode}.b32")
    assert "which does not take part" in str(found)
    launched(HALF.format(mode=mode, amount=amount, use=""))
    launched(HALF.format(mode=mode, amount=amount, use=f"setp.ge.u32 %p3, %r1, {lanes[0]}; @!%p3 {use}"))
    with pytest.raises(ptx.WarpError, match="does not take part"):
        launched(HALF.format(mode=mode, amount=amount, use=""), ptx.Checks(undefined=False))


def test_values_move_between_lanes_with_what_is_undefined_of_them() -> None:
    body = """
        setp.eq.u32 %p1, %r1, 3;
        @!%p1 mov.u32 %r5, 7;
        shfl.sync.{mode} %r6|%p2, %r5, {amount}, 31, -1;
        setp.eq.u32 %p3, %r1, {lane};
        @{not_}%p3 st.global.u32 [%d2], %r6;
        ret;
    """
    for mode, amount, lane in (("up.b32", 2, 5), ("down.b32", 2, 1), ("bfly.b32", 8, 11)):
        body_ = body.replace(", 31, -1", ", 0, -1") if mode.startswith("up") else body
        found = refused(body_.format(mode=mode, amount=amount, lane=lane, not_=""))
        assert (found.thread, found.origin_thread) == ((lane, 0, 0), (3, 0, 0))
        # Lane 3 itself may keep what it has.
        kept = body_.replace(
            "setp.eq.u32 %p3, %r1, {lane};", "setp.eq.u32 %p3, %r1, {lane}; setp.eq.or.u32 %p3, %r1, 3, %p3;"
        )
        launched(kept.format(mode=mode, amount=amount, lane=lane, not_="!"))


VOTES = {
    # One lane's predicate is undefined: (vote, predicate of the others, whether the result is).
    "any, one is on": ("vote.sync.any.pred %p5, %p4, -1;", 1, False),
    "any, all others are off": ("vote.sync.any.pred %p5, %p4, -1;", 0, True),
    "all, one is off": ("vote.sync.all.pred %p5, %p4, -1;", 0, False),
    "all, all others are on": ("vote.sync.all.pred %p5, %p4, -1;", 1, True),
    "uni": ("vote.sync.uni.pred %p5, %p4, -1;", 1, True),
    "ballot": ("vote.sync.ballot.b32 %r9, %p4, -1; setp.ne.u32 %p5, %r9, 0xFFFFFFFF;", 1, True),
    "ballot, the bit masked": (
        "vote.sync.ballot.b32 %r9, %p4, -1; and.b32 %r9, %r9, 0xFFFFFFF7; setp.ne.u32 %p5, %r9, 0;", 1, False,
    ),
    "max": ("selp.u32 %r8, 1, 0, %p4; redux.sync.max.u32 %r9, %r8, -1; setp.ne.u32 %p5, %r9, 0;", 1, True),
    "or, one is on": ("selp.u32 %r8, 1, 0, %p4; redux.sync.or.b32 %r9, %r8, -1; setp.ne.u32 %p5, %r9, 0;", 1, False),
    "and, one is off": ("selp.u32 %r8, 1, 0, %p4; redux.sync.and.b32 %r9, %r8, -1; setp.ne.u32 %p5, %r9, 0;", 0, False),
    "xor": ("selp.u32 %r8, 1, 0, %p4; redux.sync.xor.b32 %r9, %r8, -1; setp.ne.u32 %p5, %r9, 0;", 1, True),
    "add, the bits below": (
        "selp.u32 %r8, 4, 0, %p4; redux.sync.add.u32 %r9, %r8, -1; and.b32 %r9, %r9, 3; setp.ne.u32 %p5, %r9, 0;",
        1,
        False,
    ),
    "add": ("selp.u32 %r8, 4, 0, %p4; redux.sync.add.u32 %r9, %r8, -1; setp.ne.u32 %p5, %r9, 0;", 1, True),
    "match": ("selp.u32 %r8, 4, 0, %p4; match.any.sync.b32 %r9, %r8, -1; setp.ne.u32 %p5, %r9, 0;", 1, True),
    "match all": ("selp.u32 %r8, 4, 0, %p4; match.all.sync.b32 %r9|%p6, %r8, -1; setp.ne.u32 %p5, %r9, 0;", 1, True),
    "elect": ("selp.u32 %r8, 4, 0, %p4; elect.sync %r9|%p5, -1;", 1, False),
    "activemask": ("selp.u32 %r8, 4, 0, %p4; activemask.b32 %r9; setp.ne.u32 %p5, %r9, 0;", 1, False),
}  # fmt: skip


@pytest.mark.parametrize("name", VOTES)
def test_votes(name: str) -> None:
    vote, others, undefined = VOTES[name]
    body = f"""
        mov.u32 %r7, {others};
        setp.eq.u32 %p1, %r1, 3;
        @!%p1 mov.u32 %r5, 0;
        selp.u32 %r7, %r5, %r7, %p1;
        and.b32 %r7, %r7, 1;
        setp.ne.u32 %p4, %r7, 0;
        {vote}
        @%p5 st.global.u32 [%d2], 7;
        ret;
    """
    if undefined:
        found = refused(body)
        assert (found.sink, found.origin_thread) == ("a predicate", (3, 0, 0))
        launched("mov.u32 %r5, 0;" + body)
    else:
        launched(body)


# Memory

STORES = {
    "shared": "mov.u32 %r7, cells; shl.b32 %r8, %r1, 4; add.u32 %r7, %r7, %r8;",
    "local": "mov.u64 %d7, own;",
    "global": "mul.wide.u32 %d8, %r1, 16; add.s64 %d7, %d0, %d8;",
    "generic": "mov.u64 %d7, cells; cvta.shared.u64 %d7, %d7; mul.wide.u32 %d8, %r1, 16; add.s64 %d7, %d7, %d8;",
}
WIDE = {
    "u32": ("%r5", "%r6"), "u64": ("%d5", "%d6"), "u16": ("%h5", "%h6"), "u8": ("%h5", "%h6"),
    "v2.u32": ("{%r20, %r5}", "{%r9, %r6}"), "v4.u32": ("{%r20, %r20, %r20, %r5}", "{%r9, %r10, %r11, %r6}"),
}  # fmt: skip
SHOWN = {"%r6": "mov.u32 %r12, %r6;", "%d6": "cvt.u32.u64 %r12, %d6;", "%h6": "cvt.u32.u16 %r12, %h6;"}


@pytest.mark.parametrize("space", thinned(STORES, 3))
@pytest.mark.parametrize("width", WIDE)
def test_memory_keeps_what_is_undefined(space: str, width: str) -> None:
    spelled = "" if space == "generic" else f".{space}"
    place = "%r7" if space == "shared" else "%d7"
    held, loaded = WIDE[width]
    whole = next(name for name in SHOWN if name in loaded)
    load = f"ld{spelled}.{width} {loaded}, [{place}];"
    # Braces of vectors, not of what is filled in below.
    stored, load = (each.replace("{", "{{").replace("}", "}}") for each in (held, load))
    body = f"""
        mov.u32 %r20, 5;
        {STORES[space]}
        st{spelled}.{width} [{place}], {stored};
        {load}
        {{written}}
        {SHOWN[whole]}
        {{masked}}
        setp.eq.u32 %p1, %r12, 77;
        {{overwritten}}
        @%p1 st.global.u32 [%d2], 7;
        ret;
    """
    width_bytes = {"v2.u32": 8, "v4.u32": 16}.get(width, int(width[1:]) // 8 if width[0] == "u" else 0)
    zeros = "".join(f"st{spelled}.u8 [{place}+{byte}], 0;" for byte in range(width_bytes))
    found = refused(body.format(written="", masked="", overwritten=zeros), grid=(1, 1, 1), block=(4, 1, 1))
    assert found.sink == "a predicate"
    assert found.register in held
    launched(body.format(written="", masked="and.b32 %r12, %r12, 0;", overwritten=zeros), block=(4, 1, 1))
    again = f"{zeros} ld{spelled}.{width} {loaded}, [{place}];"
    launched(body.format(written=again, masked="", overwritten=""), block=(4, 1, 1))


def test_bits_of_a_byte_are_kept_apart() -> None:
    """The lower half of a byte is written, the upper one is not."""
    body = """
        mov.u32 %r7, cells; add.u32 %r7, %r7, %r1;
        mov.u32 %r6, 5;
        bfi.b32 %r8, %r5, %r6, 4, 4;
        st.shared.u8 [%r7], %r8;
        ld.shared.u8 %r9, [%r7];
        and.b32 %r9, %r9, {mask};
        st.global.u32 [%d2], %r9;
        ret;
    """
    assert launched(body.format(mask=15))[:32].tolist() == [5] * 32
    assert refused(body.format(mask=16)).bits == 16


def test_another_thread_that_uses_it_is_named() -> None:
    body = """
        mov.u32 %r7, cells; shl.b32 %r8, %r1, 2; add.u32 %r7, %r7, %r8;
        setp.eq.u32 %p1, %r1, 9;
        @!%p1 mov.u32 %r5, 7;
        st.shared.u32 [%r7], %r5;
        bar.sync 0;
        xor.b32 %r8, %r8, 16; mov.u32 %r7, cells; add.u32 %r7, %r7, %r8;
        ld.shared.u32 %r6, [%r7];
        st.global.u32 [%d2], %r6;
        ret;
    """
    found = refused(body)
    assert (found.thread, found.origin_thread, found.register) == ((13, 0, 0), (9, 0, 0), "%r5")


UNWRITTEN = """
    mov.u32 %r7, cells; shl.b32 %r8, %r1, 2; add.u32 %r7, %r7, %r8;
    setp.eq.u32 %p1, %r1, 5;
    @!%p1 st.shared.u32 [%r7], %r1;
    ld.shared.u32 %r6, [%r7];
    {use}
    ret;
"""


def test_bytes_that_nobody_wrote() -> None:
    """They may be read; it is their use that is the fault, which names the read."""
    launched(UNWRITTEN.format(use=""))
    launched(UNWRITTEN.format(use="@!%p1 st.global.u32 [%d2], %r6;"))
    body = UNWRITTEN.format(use="add.u32 %r9, %r6, 1; st.global.u32 [%d2], %r9;")
    with pytest.raises(ptx.MemoryFault) as caught:
        launched(body)
    fault = caught.value
    assert (fault.kind, fault.space, fault.offset, fault.thread) == ("uninitialised", "shared", 20, (5, 0, 0))
    assert fault.line == line_of(body, "ld.shared", declarations=CELLS)
    assert "reaches an output byte (byte 20 of argument 0)" in fault.use
    assert fault.use in str(fault)
    with pytest.raises(ptx.MemoryFault, match="uninitialised"):
        launched(UNWRITTEN.format(use=""), ptx.Checks(strict=True))
    with pytest.raises(ptx.MemoryFault, match="uninitialised"):
        launched(UNWRITTEN.format(use=""), ptx.Checks(undefined=False))
    launched(body, ptx.Checks(uninitialised=False))


def test_bytes_of_a_buffer_that_nobody_wrote() -> None:
    out = np.zeros(64, np.uint32)
    mask = np.ones(64, bool)
    mask[3] = False
    body = "mul.wide.u32 %d3, %r1, 4; add.s64 %d3, %d3, %d1; ld.global.nc.u32 %r3, [%d3]; {use} ret;"
    source = ptx.Buffer(np.arange(64, dtype=np.uint32), "source", initialised=mask, writable=False)
    run(body.format(use="setp.ne.u32 %p1, %r1, 3; @%p1 st.global.u32 [%d2], %r3;"), out, source)
    assert out[:5].tolist() == [0, 1, 2, 0, 4]
    with pytest.raises(ptx.MemoryFault) as caught:
        run(body.format(use="setp.lt.u32 %p1, %r3, 9; @%p1 bra L; L:"), out, source)
    assert (caught.value.buffer, caught.value.offset, caught.value.thread) == ("source", 12, (3, 0, 0))
    assert "reaches a branch" in caught.value.use


def test_an_output_that_is_initialised_by_the_launch() -> None:
    """A byte of an output that nobody wrote before is left undefined, and then in the array the caller sees nothing."""
    out = np.zeros(32, np.uint32)
    mask = np.zeros(32, bool)
    with pytest.raises(ptx.UndefinedError):
        run(
            "setp.eq.u32 %p1, %r1, 3; @!%p1 mov.u32 %r5, 8; st.global.u32 [%d2], %r5; ret;",
            ptx.Buffer(out, "out", mask),
        )
    assert not out.any()
    assert not mask.any()
    run("and.b32 %r5, %r5, 0; st.global.u32 [%d2], %r5; ret;", ptx.Buffer(out, "out", mask))
    assert mask.all()


def test_a_buffer_that_is_the_callers_own_array() -> None:
    """As large as is not copied."""
    out = np.full(4096, 7, np.uint32)
    with pytest.raises(ptx.UndefinedError) as caught:
        run("st.global.u32 [%d2], %r5; ret;", out)
    assert caught.value.thread == (0, 0, 0)
    assert (out == 7).all()
    run("st.global.u32 [%d2], %r5; st.global.u32 [%d2], 5; ret;", out)
    assert out[:33].tolist() == [5] * 32 + [7]


def test_asynchronous_copies_carry_nothing_undefined() -> None:
    """The bytes that `cp.async` copies have to be written: it is told where it lands."""
    out, mask = np.zeros(64, np.uint32), np.ones(64, bool)
    mask[1] = False
    source = ptx.Buffer(np.arange(64, dtype=np.uint32), "source", initialised=mask, writable=False)
    body = """
        mov.u32 %r7, cells; shl.b32 %r8, %r1, 2; add.u32 %r7, %r7, %r8;
        mul.wide.u32 %d3, %r1, 4; add.s64 %d3, %d3, %d1;
        cp.async.ca.shared.global [%r7], [%d3], 4;
        cp.async.wait_all;
        {use}
        ret;
    """
    with pytest.raises(ptx.MemoryFault, match="uninitialised"):
        run(body.format(use="ld.shared.u32 %r3, [%r7]; st.global.u32 [%d2], %r3;"), out, source, declarations=CELLS)


# Atomics

ATOMICS = {
    "add of an undefined number": ("red.shared.add.u32 [%r7], %r5;", True),
    "exchange for an undefined number": ("atom.shared.exch.b32 %r6, [%r7], %r5;", True),
    "and with it": ("red.shared.and.b32 [%r7], %r5;", True),
    "or with it": ("red.shared.or.b32 [%r7], %r5;", True),
    "compare and swap for it": ("atom.shared.cas.b32 %r6, [%r7], 0, %r5;", True),
    "compare and swap for it, of something else": ("atom.shared.cas.b32 %r6, [%r7], 4, %r5;", False),
    "max with it": ("red.shared.max.u32 [%r7], %r5;", True),
    "exchange for a known number": (
        "st.shared.u32 [%r7], %r5; atom.shared.exch.b32 %r6, [%r7], 4;", False,
    ),
    "add, what was there before": ("st.shared.u32 [%r7], %r5; atom.shared.add.u32 %r6, [%r7], 4;", True),
}  # fmt: skip


@pytest.mark.parametrize("name", ATOMICS)
def test_atomics(name: str) -> None:
    atomic, undefined = ATOMICS[name]
    body = f"""
        mov.u32 %r7, cells; shl.b32 %r8, %r1, 2; add.u32 %r7, %r7, %r8;
        st.shared.u32 [%r7], 0;
        {atomic}
        ld.shared.u32 %r9, [%r7];
        st.global.u32 [%d2], %r9;
        ret;
    """
    if undefined:
        assert refused(body).register == "%r5"
        launched("mov.u32 %r5, 1;" + body)
    else:
        launched(body)


def test_old_values_of_atomics() -> None:
    body = """
        mov.u32 %r7, cells; shl.b32 %r8, %r1, 2; add.u32 %r7, %r7, %r8;
        atom.shared.exch.b32 %r6, [%r7], 4;
        ld.shared.u32 %r9, [%r7];
        st.global.u32 [%d2], {register};
        ret;
    """
    assert launched(body.format(register="%r9"))[:32].tolist() == [4] * 32
    with pytest.raises(ptx.MemoryFault, match=r"uninitialised: shared atomic of 4 bytes.*an output byte"):
        launched(body.format(register="%r6"))


def test_lanes_that_meet_at_one_address() -> None:
    """In lane order: each gets what the one before it left."""
    body = """
        mov.u32 %r7, cells;
        setp.eq.u32 %p1, %r1, 7;
        @!%p1 mov.u32 %r5, 3;
        st.shared.u32 [%r7], 1;
        bar.warp.sync -1;
        atom.shared.exch.b32 %r6, [%r7], %r5;
        setp.eq.u32 %p2, %r1, 8;
        @{not_}%p2 st.global.u32 [%d2], %r6;
        ret;
    """
    found = refused(body.format(not_=""))
    assert (found.thread, found.origin_thread) == ((8, 0, 0), (7, 0, 0))
    launched(body.format(not_="!"))


# What else a launch has


def test_printed_numbers_are_results(capsys: pytest.CaptureFixture[str]) -> None:
    body = """
        st.local.u32 [own], {register};
        mov.u64 %d5, own; cvta.local.u64 %d5, %d5;
        mov.u64 %d6, said; cvta.global.u64 %d6, %d6;
        setp.ne.u32 %p1, %r1, 0;
        @%p1 bra END;
        {{ .param .b64 a; .param .b64 b; .param .b32 result;
        st.param.b64 [a], %d6; st.param.b64 [b], %d5;
        call.uni (result), vprintf, (a, b); }}
    END: ret;
    """
    scope = """
        .extern .func (.param .b32 result) vprintf (.param .b64 a, .param .b64 b);
        .global .align 1 .b8 said[4] = {37, 100, 10, 0};
    """
    launched(body.format(register="%r1"), module_scope=scope)
    assert capsys.readouterr().out == "0\n"
    with pytest.raises(ptx.PtxError, match=r"uninitialised|undefined"):
        launched(body.format(register="%r5"), module_scope=scope)


def test_what_is_printed_is_printed_once(capsys: pytest.CaptureFixture[str]) -> None:
    """A launch that runs again prints as if it had run once."""
    body = """
        mov.u64 %d5, own; cvta.local.u64 %d5, %d5; st.local.u32 [own], 3;
        mov.u64 %d6, said; cvta.global.u64 %d6, %d6;
        setp.ne.u32 %p1, %r1, 0;
        @%p1 bra END;
        { .param .b64 a; .param .b64 b; .param .b32 result;
        st.param.b64 [a], %d6; st.param.b64 [b], %d5;
        call.uni (result), vprintf, (a, b); }
    END: and.b32 %r6, %r5, 0; st.global.u32 [%d2], %r6; ret;
    """
    scope = """
        .extern .func (.param .b32 result) vprintf (.param .b64 a, .param .b64 b);
        .global .align 1 .b8 said[4] = {37, 100, 10, 0};
    """
    launched(body, module_scope=scope)
    assert capsys.readouterr().out == "3\n"


MASKED = "and.b32 %r6, %r5, 0; st.global.u32 [%d2], %r6; ret;"


def test_observers_see_one_launch() -> None:
    module = ptx.Module.parse(text(MASKED), name="test.ptx")
    plain = ptx.Module.parse(text(MASKED.replace("%r5,", "%r1,")), name="test.ptx")
    counted = []
    for each in (module, plain):
        profile, watch, trace = ptx.Profile(), ptx.Watch("argument 0", 0, 4), ptx.Trace()
        out = np.zeros(64, np.uint32)
        ptx.launch(each, "k", (1, 1, 1), (32, 1, 1), [out, None, 0], profile=profile, watch=watch, trace=trace)
        counted.append((profile.kernels[0].launches, len(watch.writes), len(trace.entries)))
    assert counted[0] == counted[1] == (1, 1, 1)


def test_a_launch_that_follows_counts_the_same_instructions() -> None:
    out = np.zeros(64, np.uint32)
    followed = run(MASKED, out)
    plain = run(MASKED.replace("%r5,", "%r1,"), out)
    assert followed.lane_instructions == plain.lane_instructions


def test_under_schedules() -> None:
    module = ptx.Module.parse(text(MASKED), name="test.ptx")
    out = np.zeros(64, np.uint32)
    assert ptx.launch(module, "k", (2, 1, 1), (32, 1, 1), [out, None, 0], schedules=3).schedules == 3


def test_errors_pickle_with_their_fields() -> None:
    import pickle

    found = refused("st.global.u32 [%d2], %r5; ret;")
    copy = pickle.loads(pickle.dumps(found))
    assert isinstance(copy, ptx.UndefinedError)
    assert (copy.sink, copy.register, str(copy)) == (found.sink, found.register, str(found))


@pytest.mark.parametrize("racing", [256, 0])
def test_a_race_elsewhere_is_told_too(racing: int) -> None:
    # Nobody uses what is read before anybody wrote it. Shared memory is one buffer, whatever lies in it.
    body = f"""
        mov.u32 %r3, sh;
        mov.u32 %r6, 0;
        ld.shared.u32 %r4, [%r3];
        mad.lo.u32 %r5, %r1, 4, %r3;
        setp.lt.u32 %p1, %r1, 32;
        @%p1 st.shared.u32 [%r5+{racing}], %r1;
        @!%p1 ld.shared.u32 %r6, [%r5+{racing - 128}];
        st.global.u32 [%d2], %r6;
        ret;
    """
    with pytest.raises(ptx.MemoryFault, match="uninitialised: shared read of 4 bytes at byte 0") as caught:
        run(body, np.zeros(64, np.uint32), block=(64, 1, 1), declarations=".shared .align 4 .b8 sh[512];")
    told = f"followed, there is a race: write-read race on byte {racing} of shared memory" in str(caught.value)
    assert told == (racing == 256)
