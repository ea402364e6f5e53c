"""A plain read that races, and whose value a CAS of its place compares with what is there: a warning."""

from __future__ import annotations

import numpy as np
import pytest
from support.ptx_kernel import run

from refmoe import ptx

# Threads add what they have to a word: %d3 of global memory, or `cell`. %d4 is the thread's word of `in`.
START = """
    mov.u32 %r9, cell; mul.wide.u32 %d4, %r1, 4; add.s64 %d4, %d4, %d1; mov.u32 %r20, 0;
    setp.eq.u32 %p0, %r1, 0; @%p0 st.shared.u32 [%r9], 0; @%p0 st.shared.u32 [%r9+4], 0; bar.sync 0;
"""
LOOP = """
    ld{space}.u32 %r5, [{place}];
more:
    mov.u32 %r6, %r5;
    add.u32 %r7, %r6, 1;
    atom{space}.cas.b32 %r5, [{place}], %r6, %r7;
    setp.ne.u32 %p1, %r5, %r6;
    @%p1 bra more;
"""
GLOBAL, SHARED = {"space": ".global", "place": "%d0"}, {"space": ".shared", "place": "%r9"}
END = "bar.sync 0; @%p0 ld.shared.u32 %r21, [%r9]; @%p0 st.global.u32 [%d1], %r21; ret;"
CHECKED = "a CAS that compares it with what is there, and nothing else, depends on the value that was read"


def launch(body: str, threads: int = 6, schedules: int = 1) -> tuple[int, int, ptx.LaunchResult]:
    """The words after it, of global and of shared memory."""
    out, given = np.zeros(64, np.uint32), np.zeros(64, np.uint32)
    with ptx.under_schedules(schedules):
        result = run(
            START + body + END, out, given, block=(threads, 1, 1), declarations=".shared .align 8 .b8 cell[64];"
        )
    return int(out[0]), int(given[0]), result


@pytest.mark.parametrize("schedules", [1, 3])
@pytest.mark.parametrize("where", [GLOBAL, SHARED], ids=["global", "shared"])
def test_the_guides_loop_is_a_warning(where: dict[str, str], schedules: int) -> None:
    *words, result = launch(LOOP.format(**where), schedules=schedules)
    assert words[where is SHARED] == 6
    assert {each.warning for each in result.warnings} == {"unused value"}
    assert all(CHECKED in str(each) for each in result.warnings)


def test_strict_checks_refuse_it() -> None:
    with pytest.raises(ptx.RaceError):
        run(
            START + LOOP.format(**GLOBAL) + END, np.zeros(64, np.uint32), np.zeros(64, np.uint32), block=(6, 1, 1),
            declarations=".shared .align 8 .b8 cell[64];", checks=ptx.Checks(strict=True),
        )  # fmt: skip


PLAIN = LOOP.format(**GLOBAL)
OTHERS = "atom.global.add.u32 %r15, [%d0+4], 1;"


@pytest.mark.parametrize(("body", "use"), [
    # The value that was read first goes out, whether or not it was right.
    (PLAIN.replace("more:", "mov.u32 %r20, %r5; more:", 1) + "st.global.u32 [%d4], %r20;", "an output byte"),
    # What was computed of a value that was not right.
    (PLAIN.replace("@%p1 bra more;", "") + "st.global.u32 [%d4], %r7;", "an output byte"),
    # The very value that was compared, which was not right; and another comparison of it, or of a part of it.
    (PLAIN.replace("@%p1 bra more;", "") + "st.global.u32 [%d4], %r6;", "an output byte"),
    (PLAIN.replace("@%p1 bra more;", "") + "setp.eq.u32 %p2, %r6, 0; @%p2 bra end; end:", "a branch"),
    (PLAIN.replace("%p1, %r5, %r6", "%p1, %r5, %r6; setp.ge.u32 %p2, %r5, %r6; @%p2 bra end") + "end:", "a branch"),
    (PLAIN.replace("setp.ne.u32 %p1, %r5, %r6",
                   "cvt.u16.u32 %h1, %r5; cvt.u16.u32 %h2, %r6; setp.ne.u16 %p1, %h1, %h2"), "a branch"),
    # What the CAS found is no more what the register holds.
    (PLAIN.replace("setp.ne", "add.u32 %r5, %r5, 1; setp.ne").replace("bra more;", "bra end; end:"), "a branch"),
    # It is the value of another word, or of a part of it, which the CAS does not check.
    (PLAIN.replace("ld.global.u32 %r5, [%d0];", "ld.global.u32 %r5, [%d0+4];") + OTHERS, "the comparison of an atomic"),
    (PLAIN.replace("ld.global.u32 %r5", "ld.global.u16 %r5"), ""),
    # The new value is of another racing read, too.
    (PLAIN.replace("more:", "ld.global.u32 %r8, [%d0+4]; more:", 1).replace("%r6, 1", "%r6, %r8") + OTHERS, ""),
    # It decides on the way to the CAS.
    (PLAIN.replace("more:", "setp.gt.u32 %p2, %r5, 7; @%p2 bra end; more:", 1) + "end:", "a branch"),
], ids=["leaks", "leaks what it made", "leaks what it compared", "decides later", "another relation", "of a part",
        "of something else", "another word", "a part", "two reads", "a branch"])  # fmt: skip
def test_what_the_cas_does_not_check_is_a_fault(body: str, use: str) -> None:
    with pytest.raises(ptx.RaceError, match=f"the value that was read reaches {use}"):
        launch(body)


@pytest.mark.parametrize("loop", [
    PLAIN.replace("setp.ne.u32 %p1, %r5, %r6", "setp.ne.u32 %p1, %r6, %r5"),
    PLAIN.replace("setp.ne.u32 %p1, %r5, %r6;\n    @%p1", "setp.eq.s32 %p1, %r5, %r6;\n    @!%p1"),
    PLAIN.replace("setp.ne.u32 %p1, %r5, %r6", "mov.b32 %r8, %r6; setp.ne.b32 %p1, %r5, %r8"),
    # A loop that gives up after some turns: the comparison stands behind another branch.
    PLAIN.replace("setp.ne.u32", "add.u32 %r20, %r20, 1; setp.gt.u32 %p2, %r20, 99; @%p2 bra end; setp.ne.u32", 1)
    + "end:",
], ids=["swapped", "equal", "copy", "bounded"])  # fmt: skip
def test_that_the_cas_has_failed_is_no_use(loop: str) -> None:
    assert loop != PLAIN
    *_, result = launch(loop)
    assert {each.warning for each in result.warnings} == {"unused value"}


def test_a_value_that_another_thread_has_read_is_not_its_own() -> None:
    body = PLAIN.replace("more:", "shfl.sync.bfly.b32 %r5|%p2, %r5, 1, 31, -1; more:", 1)
    with pytest.raises(ptx.RaceError, match="the comparison of an atomic"):
        launch(body, threads=32)


def test_other_atomics_do_not_matter_where_each_value_is_checked() -> None:
    *_, result = launch(PLAIN + "atom.global.add.u32 %r15, [%d0+4], 1; setp.gt.u32 %p3, %r15, 99; @%p3 trap;")
    assert {each.warning for each in result.warnings} == {"unused value"}


def test_another_atomic_that_decides_keeps_the_fault() -> None:
    # It throws away what some threads have read. Under another schedule these are others.
    ticket = "atom.global.add.u32 %r15, [%d0+4], 1; setp.gt.u32 %p3, %r15, 3; @%p3 bra end; more:"
    with pytest.raises(ptx.RaceError):
        launch(PLAIN.replace("more:", ticket, 1) + "end:")
