"""Reads that race: a warning where nothing depends on what was read, a fault as soon as something does."""

from __future__ import annotations

import io
from typing import Any

import numpy as np
import pytest
from support.ptx_kernel import line_of, run, text

from refmoe import ptx
from refmoe.ptx.device_memory import DeviceMemory
from refmoe.ptx.engine.order import racing_reads
from refmoe.ptx.engine.undefined.follower import UndefinedFollower
from refmoe.ptx.findings import unexplained

CELLS = ".shared .align 16 .b8 cells[1024];"
BLOCK = (64, 1, 1)
# %r8 is the cell of the thread, %r6 that of the thread in the other warp, %d4 and %d5 are likewise words of `out`, and
# %d3 is the thread's word of `in`.
PLACES = """
    mov.u32 %r9, cells;
    mad.lo.u32 %r8, %r1, 4, %r9;
    xor.b32 %r7, %r1, 32;
    mad.lo.u32 %r6, %r7, 4, %r9;
    mul.wide.u32 %d3, %r1, 4;
    add.s64 %d4, %d3, %d0;
    add.s64 %d3, %d3, %d1;
    mul.wide.u32 %d5, %r7, 4;
    add.s64 %d5, %d5, %d0;
    st.shared.u32 [%r8], %r1;
    bar.sync 0;
"""
# What races: %r5 is read, and written by another warp, in both orders.
READS = {
    "read first, shared": "ld.shared.u32 %r5, [%r6]; add.u32 %r10, %r1, 100; st.shared.u32 [%r8], %r10;",
    "write first, shared": "add.u32 %r10, %r1, 100; st.shared.u32 [%r8], %r10; ld.shared.u32 %r5, [%r6];",
    "read first, global": "ld.global.u32 %r5, [%d5]; add.u32 %r10, %r1, 100; st.global.u32 [%d4], %r10;",
    "write first, global": "add.u32 %r10, %r1, 100; st.global.u32 [%d4], %r10; ld.global.u32 %r5, [%d5];",
    "an atomic behind it": "ld.shared.u32 %r5, [%r6]; atom.shared.add.u32 %r10, [%r8], 100;",
    "a strong store behind it": "ld.shared.u32 %r5, [%r6]; st.relaxed.gpu.shared.u32 [%r8], 100;",
    "a copy over it": "ld.shared.u32 %r5, [%r6]; cp.async.ca.shared.global [%r8], [%d3], 4; cp.async.wait_all;",
    "a copy under way to it": "cp.async.ca.shared.global [%r8], [%d3], 4; ld.shared.u32 %r5, [%r6]; cp.async.wait_all;",
    "a vector": "ld.shared.u32 %r5, [%r6]; mov.u32 %r11, %r9; setp.eq.u32 %p5, %r1, 63;"
    "@%p5 st.shared.v4.u32 [%r11], {%r1, %r1, %r1, %r1};",
}  # fmt: skip
# Where what was read goes: what it reaches, or None.
USES: dict[str, tuple[str, str | None]] = {
    "nothing": ("", None),
    "a register": ("add.u32 %r5, %r5, 1; mul.lo.u32 %r12, %r5, %r5;", None),
    "no bit": ("and.b32 %r12, %r5, 0; st.global.u32 [%d3], %r12;", None),
    "a register that is set anew": ("add.u32 %r5, %r1, 1; st.global.u32 [%d3], %r5;", None),
    "a choice of the other one": ("setp.lt.u32 %p1, %r1, 99; selp.u32 %r12, %r1, %r5, %p1; st.global.u32 [%d3], %r12;",
        None),
    "a store that is off": ("setp.gt.u32 %p1, %r1, 99; @%p1 st.global.u32 [%d3], %r5;", None),
    "a byte that is overwritten": ("st.global.u32 [%d3], %r5; st.global.u32 [%d3], %r1;", None),
    "a lane that nobody asks": ("shfl.sync.idx.b32 %r12|%p2, %r5, %r1, 31, -1;", None),
    "shared memory that nobody reads": ("st.shared.u32 [%r8 + 512], %r5;", None),
    "an output byte": ("st.global.u32 [%d3], %r5;", "an output byte"),
    "an output byte, by a sum": ("add.u32 %r12, %r5, 1; st.global.u32 [%d3], %r12;", "an output byte"),
    "an output byte, of the upper bits alone": ("shr.u32 %r12, %r5, 24; st.global.u32 [%d3], %r12;", "an output byte"),
    "an output byte, by shared memory": ("st.shared.u32 [%r8 + 512], %r5; ld.shared.u32 %r12, [%r8 + 512];"
        "st.global.u32 [%d3], %r12;", "an output byte"),
    "an output byte, by another thread": ("st.shared.u32 [%r8 + 512], %r5; bar.sync 0; ld.shared.u32 %r12, [%r6 + 512];"
        "st.global.u32 [%d3], %r12;", "an output byte"),
    "an output byte, by a shuffle": ("shfl.sync.bfly.b32 %r12|%p2, %r5, 1, 31, -1; st.global.u32 [%d3], %r12;",
        "an output byte"),
    "an output byte, by a vote": ("setp.gt.u32 %p1, %r5, 200; vote.sync.ballot.b32 %r12, %p1, -1;"
        "st.global.u32 [%d3], %r12;", "an output byte"),
    "an output byte, by an atomic": ("red.global.add.u32 [%d3], %r5;", "an output byte"),
    "an output byte, by a choice": ("setp.gt.u32 %p1, %r5, 99; selp.u32 %r12, 1, 2, %p1; st.global.u32 [%d3], %r12;",
        "an output byte"),
    "an address": ("and.b32 %r12, %r5, 4; cvt.u64.u32 %d9, %r12; add.s64 %d9, %d9, %d1; ld.global.u32 %r12, [%d9];",
        "an address"),
    "a branch": ("setp.gt.u32 %p1, %r5, 99; @%p1 bra NEXT; st.global.u32 [%d3], 7; NEXT:", "a branch"),
    "a predicate": ("setp.gt.u32 %p1, %r5, 99; @%p1 st.global.u32 [%d3], 7;", "a predicate"),
    "the comparison of an atomic": ("atom.global.cas.b32 %r12, [%d3], %r5, 7;", "the comparison of an atomic"),
    "an operand of a barrier": ("setp.gt.u32 %p1, %r5, 99; bar.red.popc.u32 %r12, 0, %p1;", "an operand of a barrier"),
    "an operand of a copy": ("and.b32 %r12, %r5, 4; cp.async.ca.shared.global [%r8 + 512], [%d3], 4, %r12;"
        "cp.async.wait_all;", "an operand of a copy"),
}  # fmt: skip


def launched(body: str, checks: ptx.Checks | None = None, **options: Any) -> ptx.LaunchResult:
    """What became of a launch of two warps. One that fails leaves both of its arrays as they were."""
    # The launch works in arrays of this size themselves.
    out, given = np.zeros(2048, np.uint32), np.arange(2048, dtype=np.uint32)
    chosen = ptx.Checks(explain=False) if checks is None else checks
    options = {"block": BLOCK, "declarations": CELLS, **options}
    try:
        return run(body, out, given, checks=chosen, **options)
    except ptx.PtxError:
        assert not out.any()
        np.testing.assert_array_equal(given, np.arange(2048))
        raise


def warned(body: str, **options: Any) -> ptx.RaceError:
    """The one warning of a launch, which is of this class."""
    result = launched(body, **options)
    (warning,) = result.warnings
    assert warning.warning == racing_reads.UNUSED
    assert "nothing depends on the value that was read" in str(warning)
    return warning


def refused(body: str, **options: Any) -> ptx.RaceError:
    with pytest.raises(ptx.RaceError) as caught:
        launched(body, **options)
    assert not caught.value.warning
    return caught.value


@pytest.mark.parametrize("read", READS)
@pytest.mark.parametrize("use", [each for each, (_, sink) in USES.items() if sink is None])
def test_a_value_that_nobody_uses_is_a_warning(read: str, use: str) -> None:
    warned(PLACES + READS[read] + USES[use][0] + " ret;")


@pytest.mark.parametrize("read", READS)
@pytest.mark.parametrize("use", [each for each, (_, sink) in USES.items() if sink is not None])
def test_a_use_is_a_fault(read: str, use: str) -> None:
    code, sink = USES[use]
    body = PLACES + READS[read] + code + " ret;"
    if read == "a copy under way to it":
        with pytest.raises(ptx.MemoryFault, match="nobody has waited for is under way"):
            launched(body)
        return
    assert refused(body).use.startswith(f"reaches {sink}")


def test_a_use_says_where() -> None:
    body = PLACES + READS["read first, shared"] + "\nst.global.u32 [%d3], %r5;\nret;"
    error = refused(body)
    line = line_of(body, "st.global.u32 [%d3]", declarations=CELLS)
    first, second = str(error).splitlines()
    assert first == error.message
    assert second.startswith("  the value that was read reaches an output byte (byte ")
    assert f"test.ptx:{line}: st.global.u32 [%d3], %r5;" in second


def test_the_bytes_are_there_and_each_line_is_printed_once() -> None:
    declared = ".extern .func (.param .b32 r) vprintf (.param .b64 f, .param .b64 a);"
    strings = f"{declared} .global .align 1 .b8 said[4] = {{104, 105, 10, 0}};"
    say = (
        "setp.ne.u32 %p9, %r1, 0; @%p9 bra QUIET; mov.u64 %d8, said; cvta.global.u64 %d8, %d8;"
        "{ .param .b64 f; .param .b64 a; .param .b32 r; st.param.b64 [f], %d8; st.param.b64 [a], 0;"
        "call.uni (r), vprintf, (f, a); } QUIET:"
    )
    body = PLACES + say + READS["write first, global"] + "ret;"
    module = ptx.Module.parse(text(body, declarations=CELLS, module_scope=strings), name="test.ptx")
    out, printed = np.zeros(256, np.uint32), io.StringIO()
    result = ptx.launch(module, "k", (1, 1, 1), BLOCK, [out, out.copy(), 0], stdout=printed)
    assert [each.warning for each in result.warnings] == [racing_reads.UNUSED]
    np.testing.assert_array_equal(out[:64], np.arange(100, 164))
    assert printed.getvalue() == "hi\n"


CHECKS = {
    "strict": ptx.Checks(strict=True, explain=False),
    "undefined values are not followed": ptx.Checks(undefined=False, explain=False),
    "memory counts as written": ptx.Checks(uninitialised=False, explain=False),
}


@pytest.mark.parametrize("name", CHECKS)
@pytest.mark.parametrize("read", ["read first, shared", "write first, global"])
def test_where_values_are_not_followed_it_is_a_fault(read: str, name: str) -> None:
    refused(PLACES + READS[read] + "ret;", checks=CHECKS[name])


def test_nothing_runs_again_where_nothing_is_explained() -> None:
    with unexplained():
        refused(PLACES + READS["read first, shared"] + "ret;")


@pytest.mark.parametrize(
    "look", ["ld.volatile.shared.u32 %r13, [%r9 + 512];", "atom.shared.or.b32 %r13, [%r9 + 512], 0;"]
)
@pytest.mark.parametrize("read", ["read first, shared", "write first, global"])
def test_what_another_schedule_may_use_is_a_fault(read: str, look: str) -> None:
    """As in a sequence lock: here the value is thrown away, because of a word that others may write."""
    words = f"st.volatile.shared.u32 [%r9 + 512], 1; {look} setp.eq.u32 %p1, %r13, 0; @%p1 st.global.u32 [%d3], %r5;"
    assert not refused(PLACES + READS[read] + words + "ret;").use
    warned(
        PLACES + READS[read] + words.replace("@%p1 st.global.u32 [%d3], %r5;", "").replace("%r13, 0", "%r1, 0") + "ret;"
    )


def test_what_a_look_at_an_mbarrier_may_let_through_is_a_fault() -> None:
    look = (
        "mov.u32 %r13, barrier; setp.eq.u32 %p2, %r1, 0; @%p2 mbarrier.init.shared.b64 [%r13], 1; bar.sync 0;"
        + READS["read first, shared"]
        + "mbarrier.test_wait.parity.shared.b64 %p1, [%r13], 0; @%p1 st.global.u32 [%d3], %r5; ret;"
    )
    assert not refused(PLACES + look, declarations=CELLS + ".shared .align 8 .b8 barrier[8];").use


# Several races


def test_a_write_that_races_with_a_write_is_a_fault_beside_it() -> None:
    # Threads 0 and 63, after and before what else races.
    both = "rem.u32 %r12, %r1, 63; setp.eq.u32 %p1, %r12, 0; @%p1 st.shared.u32 [%r9 + 768], %r1;"
    elsewhere = both.replace("shared", "global").replace("%r9 + 768", "%d0 + 512")
    assert refused(PLACES + READS["read first, shared"] + both + "ret;").kind == "write-write"
    assert refused(PLACES + both + READS["read first, shared"] + "ret;").kind == "write-write"
    assert refused(PLACES + READS["write first, global"] + elsewhere + "ret;").space == "global"


def test_of_two_races_that_which_is_used_is_the_fault() -> None:
    other = "ld.shared.u32 %r13, [%r6 + 512];\nst.shared.u32 [%r8 + 512], %r10;\nst.global.u32 [%d3], %r13;"
    body = PLACES + "st.shared.u32 [%r8 + 512], %r1; bar.sync 0;" + READS["read first, shared"] + "\n" + other + "ret;"
    assert refused(body).line == line_of(body, "st.shared.u32 [%r8 + 512], %r10", declarations=CELLS)
    result = launched(body.replace("st.global.u32 [%d3], %r13;", ""))
    assert [each.warning for each in result.warnings] == [racing_reads.UNUSED] * 2


def test_the_race_that_was_met_first_is_told_first() -> None:
    """Its value is used last."""
    body = (
        PLACES + "st.shared.u32 [%r8 + 512], %r1; bar.sync 0;\nld.shared.u32 %r5, [%r6]; st.shared.u32 [%r8], 777;\n"
        "ld.shared.u32 %r13, [%r6 + 512]; st.shared.u32 [%r8 + 512], 777; setp.gt.u32 %p1, %r13, 99; @%p1 bra NEXT;\n"
        "NEXT: st.global.u32 [%d3], %r5; ret;"
    )
    error = refused(body)
    assert error.line == line_of(body, "st.shared.u32 [%r8], 777", declarations=CELLS)
    assert error.use.startswith("reaches an output byte")
    error = refused(body.replace("%d3], %r5", "%d3], %r1"))
    assert error.line == line_of(body, "st.shared.u32 [%r8 + 512], 777", declarations=CELLS)
    assert error.use.startswith("reaches a branch")


@pytest.mark.parametrize("lane", [0, 1, 31, 32, 33, 63])
@pytest.mark.parametrize("read", ["read first, shared", "write first, global"])
def test_every_thread_that_races_counts(read: str, lane: int) -> None:
    refused(PLACES + READS[read] + f"setp.eq.u32 %p1, %r1, {lane}; @%p1 st.global.u32 [%d3], %r5; ret;")


def test_a_race_in_other_memory_is_looked_at_too() -> None:
    both = READS["read first, shared"] + READS["write first, global"].replace("%r5", "%r14")
    result = launched(PLACES + both + "ret;")
    assert sorted(each.space for each in result.warnings) == ["global", "shared"]
    refused(PLACES + both + "st.global.u32 [%d3], %r14; ret;")
    refused(PLACES + both + "st.global.u32 [%d3], %r5; ret;")


def test_behind_a_race_another_error_is_that_race() -> None:
    last = "setp.eq.u32 %p1, %r1, 63;"
    refused(PLACES + READS["read first, shared"] + last + "@%p1 trap; ret;")
    refused(PLACES + READS["read first, shared"] + last + "@%p1 ld.global.u32 %r12, [%d3 + 8192]; ret;")


def test_a_read_that_is_not_followed_is_a_fault(monkeypatch: pytest.MonkeyPatch) -> None:
    body = PLACES + READS["read first, shared"] + "ret;"
    warned(body)
    monkeypatch.setattr(UndefinedFollower, "raced", lambda *_: None)
    refused(body)


# One instruction that reads several times

TURNS = """
    mov.u32 %r20, 0;
    mov.u32 %r21, 0;
TURN:
    ld.shared.u32 %r5, [%r6];
    {between}
    setp.{kept}.u32 %p3, %r20, 3;
    @%p3 add.u32 %r21, %r21, %r5;
    add.u32 %r20, %r20, 1;
    setp.lt.u32 %p4, %r20, 4;
    @%p4 bra TURN;
    st.global.u32 [%d3], %r21;
    ret;
"""
WRITTEN = "bar.sync 0; st.shared.u32 [%r8], %r20; setp.lt.u32 %p6, %r20, 2; @%p6 bar.sync 0;"


def test_only_the_last_read_of_a_loop_races_and_is_not_used() -> None:
    """A prefetch for the next turn, of which there is none: the turns before read in order, and are used."""
    warned(PLACES + TURNS.format(between=WRITTEN, kept="lt") + "ret;")
    refused(PLACES + TURNS.format(between=WRITTEN, kept="le") + "ret;")


def test_reads_that_come_before_the_write_are_used_freely() -> None:
    """A barrier lies behind each read but the last one, and the write behind all of them."""
    turn = TURNS.format(between="setp.lt.u32 %p6, %r20, 3; @%p6 bar.sync 0;", kept="{kept}")
    body = PLACES + turn.replace("ret;", "st.shared.u32 [%r8], 777; ret;")
    warned(body.format(kept="lt"))
    refused(body.format(kept="eq"))


def test_reads_before_the_last_one_race_too() -> None:
    """Nothing orders any of the four reads before the write; the shadow keeps the last one of a thread."""
    body = PLACES + TURNS.format(between="", kept="{kept}").replace("ret;", "st.shared.u32 [%r8], 777; ret;")
    warned(body.format(kept="gt"))
    refused(body.format(kept="eq"))
    refused(body.format(kept="lt"))


def test_a_read_that_nobody_uses_hides_no_non_coherent_one() -> None:
    body = PLACES + "ld.global.u32 %r5, [%d5]; {0} add.u32 %r10, %r1, 100; st.global.u32 [%d4], %r10; ret;"
    warned(body.format(""))
    refused(body.format("ld.global.nc.u32 %r13, [%d5]; st.global.u32 [%d3], %r13;"))


# Parts of what is read


def test_of_a_vector_the_elements_that_race_count() -> None:
    body = (
        PLACES + "ld.shared.v2.u32 {{%r13, %r14}}, [%r9 + 128];\n setp.ne.u32 %p5, %r1, 33; @%p5 bra NEXT;"
        "st.shared.u32 [%r8], 777; NEXT: setp.ge.u32 %p6, %r1, 32; @%p6 bra LAST; st.global.u32 [%d3], {used};"
        "LAST: ret;"
    )
    warned(body.format(used="%r13"))
    refused(body.format(used="%r14"))


def test_lanes_of_one_read_count_each_by_itself() -> None:
    """Threads 0 to 31 read what thread 32 writes, those behind it do not."""
    body = (
        PLACES + "ld.shared.u32 %r5, [%r9 + 128];\n setp.ne.u32 %p5, %r1, 32; @%p5 bra NEXT;"
        "st.shared.u32 [%r8], 777; NEXT: setp.{what}.u32 %p6, %r1, 32; @%p6 st.global.u32 [%d3], %r5; ret;"
    )
    warned(body.format(what="eq"))
    refused(body.format(what="lt"))
    refused(body.format(what="gt"))


MATRIX = (
    PLACES + "setp.ge.u32 %p5, %r1, 32; @%p5 bra WRITE;"
    "and.b32 %r10, %r1, 7; mad.lo.u32 %r10, %r10, 16, %r9;"
    "ldmatrix.sync.aligned.m8n8.x1{trans}.shared.b16 {{%r5}}, [%r10]; setp.{what}.u32 %p6, %r1, {lane};"
    "@%p6 st.global.u32 [%d3], %r5; bra DONE; WRITE: setp.ne.u32 %p7, %r1, 40; @%p7 bra DONE;"
    "st.shared.u32 [%r9 + 20], 777; DONE: ret;"
)


@pytest.mark.parametrize(("trans", "lane"), [("", 5), (".trans", 8)])
def test_matrices_are_followed_by_the_lanes_that_get_them(trans: str, lane: int) -> None:
    """Byte 20 is of row 1: words of lane 5, or, transposed, rows of lanes 8 and 12."""
    warned(MATRIX.format(trans=trans, what="gt", lane=31))
    refused(MATRIX.format(trans=trans, what="eq", lane=lane))
    warned(MATRIX.format(trans=trans, what="eq", lane=30))


# Asynchronous copies that read what is written

COPY = "cp.async.ca.shared.global [%r8 + 512], [%d5], 4{size};"
WRITE = "add.u32 %r10, %r1, 100; st.global.u32 [%d4], %r10;"
COPIES = {"read first": COPY + WRITE, "write first": WRITE + COPY}
BEHIND = {
    "nobody reads it": ("", False),
    "it is overwritten": ("st.shared.u32 [%r8 + 512], 7; ld.shared.u32 %r12, [%r8 + 512]; st.global.u32 [%d3], %r12;",
        False),
    "it is read": ("ld.shared.u32 %r12, [%r8 + 512]; st.global.u32 [%d3], %r12;", True),
    "another thread reads it": ("bar.sync 0; ld.shared.u32 %r12, [%r6 + 512]; st.global.u32 [%d3], %r12;", True),
}  # fmt: skip


@pytest.mark.parametrize("size", ["", ", 4"])
@pytest.mark.parametrize("order", COPIES)
@pytest.mark.parametrize("behind", BEHIND)
def test_what_a_copy_brings_is_followed(order: str, behind: str, size: str) -> None:
    code, used = BEHIND[behind]
    body = PLACES + COPIES[order].format(size=size) + "cp.async.wait_all;" + code + "ret;"
    if used:
        assert refused(body).use.startswith("reaches an output byte")
    else:
        warned(body)


def test_a_copy_of_less_than_it_writes() -> None:
    copy = "cp.async.ca.shared.global [%r9 + 512], [%d0 + 128], 8, 4;"
    body = (
        PLACES + "setp.ne.u32 %p5, %r1, 0; @%p5 bra NEXT; " + copy + "NEXT:"
        "setp.ne.u32 %p6, %r1, 32; @%p6 bra LAST; st.global.u32 [%d4], 777; LAST: cp.async.wait_all;"
        "@%p5 bra DONE; ld.shared.u32 %r12, [%r9 + {at}]; st.global.u32 [%d3], %r12; DONE: ret;"
    )
    warned(body.format(at=516))
    refused(body.format(at=512))


# Reads that stay faults


@pytest.mark.parametrize(
    "read",
    [
        "ld.relaxed.gpu.shared.u32 %r5, [%r6];", "ld.volatile.shared.u32 %r5, [%r6];",
        "ld.acquire.cta.shared.u32 %r5, [%r6];", "atom.shared.add.u32 %r5, [%r6], 0;",
    ],
)  # fmt: skip
@pytest.mark.parametrize("first", [True, False])
def test_strong_reads_are_not_followed(read: str, first: bool) -> None:
    write = "st.shared.u32 [%r8], 777;"
    refused(PLACES + (read + write if first else write + read) + "ret;")


def test_values_left_in_memory_that_lives_on() -> None:
    """No argument is the variable, but the next launch may read it."""
    body = PLACES + READS["read first, shared"] + "{mov} ret;"
    kept = "mov.u64 %d8, kept; st.global.u32 [%d8], %r5; {again}"

    def launch(code: str, memory: DeviceMemory | None) -> ptx.LaunchResult:
        scope = ".global .align 4 .b8 kept[64];"
        module = ptx.Module.parse(text(body.format(mov=code), declarations=CELLS, module_scope=scope), name="test.ptx")
        out = np.zeros(256, np.uint32)
        return ptx.launch(
            module, "k", (1, 1, 1), BLOCK, [out, out.copy(), 0], checks=ptx.Checks(explain=False), memory=memory
        )

    one = "setp.ne.u32 %p5, %r1, 3; @%p5 bra NEXT;{} NEXT:"
    with pytest.raises(ptx.RaceError, match=r"reaches an output byte \(byte 0 of kept\)"):
        launch(one.format(kept.format(again="")), DeviceMemory())
    launch(one.format(kept.format(again="st.global.u32 [%d8], 5;")), DeviceMemory())
    # Without a memory it ends with the launch.
    launch(one.format(kept.format(again="")), None)


def test_a_launch_with_too_many_reads_is_not_followed(monkeypatch: pytest.MonkeyPatch) -> None:
    body = PLACES + "ld.shared.u32 %r5, [%r6]; ld.shared.u32 %r14, [%r6]; st.shared.u32 [%r8], 777;"
    assert {each.warning for each in launched(body + "ret;").warnings} == {racing_reads.UNUSED}
    monkeypatch.setattr(racing_reads, "_MOST", 64)
    refused(body + "ret;")
    refused(body + "st.global.u32 [%d3], %r14; ret;")


# Other kernels' own patterns


def test_threads_that_hold_the_same_elements_and_do_not_store_them() -> None:
    """A tensor smaller than the block, in place: both warps load it, as Triton does, and one stores it."""
    body = (
        "and.b32 %r7, %r1, 31; mul.wide.u32 %d3, %r7, 16; add.s64 %d3, %d3, %d0;"
        "ld.global.v4.u32 {{%r10, %r11, %r12, %r13}}, [%d3]; add.u32 %r10, %r10, %r7; add.u32 %r13, %r13, 1;"
        "setp.{what}.u32 %p1, %r1, {bound}; @%p1 st.global.v4.u32 [%d3], {{%r10, %r11, %r12, %r13}}; ret;"
    )
    out = np.zeros(128, np.uint32)
    result = run(body.format(what="lt", bound=32), out, None, block=BLOCK, checks=ptx.Checks(explain=False))
    assert [each.warning for each in result.warnings] == [racing_reads.UNUSED]
    np.testing.assert_array_equal(out.reshape(32, 4)[:, 0], np.arange(32))
    with pytest.raises(ptx.RaceError):
        run(body.format(what="lt", bound=64), out, None, block=BLOCK, checks=ptx.Checks(explain=False))


@pytest.mark.parametrize("schedule", range(1, 6))
def test_other_schedules_have_the_same_verdict(schedule: int) -> None:
    def launch(code: str) -> ptx.LaunchResult:
        module = ptx.Module.parse(text(PLACES + code + "ret;", declarations=CELLS), name="test.ptx")
        out = np.zeros(256, np.uint32)
        return ptx.launch(
            module, "k", (1, 1, 1), BLOCK, [out, out.copy(), 0], checks=ptx.Checks(explain=False), schedule=schedule
        )

    for read in ("read first, shared", "write first, global"):
        assert {each.warning for each in launch(READS[read]).warnings} == {racing_reads.UNUSED}
        with pytest.raises(ptx.RaceError):
            launch(READS[read] + "st.global.u32 [%d3], %r5;")


def test_under_a_schedule_a_strong_write_of_it_is_a_use() -> None:
    """A strong read may take an older value than the one whose bits are known."""
    code = READS["read first, shared"] + "st.relaxed.gpu.global.u32 [%d3], %r5; st.relaxed.gpu.global.u32 [%d3], 7;"
    module = ptx.Module.parse(text(PLACES + code + "ret;", declarations=CELLS), name="test.ptx")
    out = np.zeros(256, np.uint32)

    def launch(schedule: int) -> ptx.LaunchResult:
        return ptx.launch(
            module, "k", (1, 1, 1), BLOCK, [out, out.copy(), 0], checks=ptx.Checks(explain=False), schedule=schedule
        )

    assert [each.warning for each in launch(0).warnings] == [racing_reads.UNUSED]
    with pytest.raises(ptx.RaceError, match="reaches a strong write"):
        launch(3)


def test_the_finding_names_both_and_its_section() -> None:
    result = launched(PLACES + READS["read first, shared"] + "ret;", checks=ptx.Checks())
    (warning,) = result.warnings
    assert warning.finding is not None
    assert warning.finding.section == "values-that-nobody-uses"
    assert warning.finding.earlier is not None
    assert "__syncthreads()" in warning.finding.remedy
    assert warning.finding.clean
