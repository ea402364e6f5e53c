"""A region of which every access is kept: each lane is asked for what it knows itself."""

from __future__ import annotations

from contextlib import suppress
from typing import Any

import numpy as np
import pytest
from support.ptx_kernel import run
from support.selection.thinned import thinned

from refmoe import ptx
from refmoe.ptx import launcher
from refmoe.ptx.engine.exact_races import ExactShadow
from refmoe.ptx.findings import unexplained

# Atomics of all warps end in one record of several; whoever reads what they left is suspected, and looked at exactly.
COUNTED = """
    mov.u32 %r3, sh;
    and.b32 %r4, %r1, 3;
    shl.b32 %r4, %r4, 2;
    add.u32 %r4, %r4, %r3;
    mov.u32 %r5, 0;
    setp.gt.u32 %p1, %r1, 3;
    @%p1 bra counts;
    st.shared.u32 [%r4], %r5;
counts:
    bar.sync 0;
    shr.u32 %r6, %r1, 5;
    add.u32 %r6, %r6, 1;
again:
    atom.shared.add.u32 %r7, [%r4], 1;
    sub.u32 %r6, %r6, 1;
    setp.gt.u32 %p1, %r6, 0;
    @%p1 bra again;
    {meeting}
    ld.shared.u32 %r8, [%r4];
    st.global.u32 [%d2], %r8;
    ret;
"""
# To explain a race of these takes seconds: where the class is what is asked, `unexplained` leaves that out.
SHARED = ".shared .align 4 .b8 sh[16];"


def test_counts_of_all_warps_behind_a_barrier() -> None:
    out = np.zeros(128, np.uint32)
    run(COUNTED.format(meeting="bar.sync 0;"), out, block=(128, 1, 1), declarations=SHARED)
    assert out.tolist() == [8 * (1 + 2 + 3 + 4)] * 128


def test_one_warp_that_does_not_wait_for_the_counts() -> None:
    # Warps 1 to 3 meet, and warp 0 reads without them. Lanes of the others know what it does not.
    meeting = "setp.lt.u32 %p2, %r1, 32; @%p2 bra reads; bar.sync 1, 96; reads:"
    with unexplained(), pytest.raises(ptx.RaceError, match="write-read race"):
        run(COUNTED.format(meeting=meeting), np.zeros(128, np.uint32), block=(128, 1, 1), declarations=SHARED)


@pytest.mark.parametrize("reader", thinned([0, 1, 2, 3], 4))
def test_the_reader_alone_does_not_wait(reader: int) -> None:
    # All warps but one wait for all; the reader only says that it was there.
    meeting = f"""
        shr.u32 %r9, %r1, 5;
        setp.eq.u32 %p2, %r9, {reader};
        @%p2 bar.arrive 1, 128;
        @!%p2 bar.sync 1, 128;
    """
    with unexplained(), pytest.raises(ptx.RaceError, match="write-read race"):
        run(COUNTED.format(meeting=meeting), np.zeros(128, np.uint32), block=(128, 1, 1), declarations=SHARED)


# Wider atomics are no match for those that counted, and all warps make them in one step. Warp 3 counts last: what it
# has read from the others comes before what it does next.
WIDER = COUNTED.replace(
    "ld.shared.u32 %r8, [%r4];", "and.b32 %r8, %r4, -8; mov.u64 %d5, 0; atom.shared.add.u64 %d6, [%r8], %d5;"
).replace("st.global.u32 [%d2], %r8;", "st.global.u32 [%d2], %r1;")


def test_wider_atomics_behind_a_barrier() -> None:
    out = np.zeros(128, np.uint32)
    body = WIDER.format(meeting="bar.sync 0;")
    run(body, out, block=(128, 1, 1), declarations=SHARED)
    assert out.tolist() == list(range(128))


def _without(alone: int) -> str:
    """One warp does not wait for the others before its wider atomic."""
    meeting = f"""
        shr.u32 %r9, %r1, 5;
        setp.eq.u32 %p2, %r9, {alone};
        @%p2 bar.arrive 1, 128;
        @!%p2 bar.sync 1, 128;
    """
    return WIDER.format(meeting=meeting)


@pytest.mark.parametrize("alone", thinned([0, 1, 2], 3))
def test_one_warp_does_not_wait_before_a_wider_atomic(alone: int) -> None:
    with unexplained(), pytest.raises(ptx.RaceError) as caught:
        run(_without(alone), np.zeros(128, np.uint32), block=(128, 1, 1), declarations=SHARED)
    thread = caught.value.thread
    assert thread is not None
    assert thread[0] // 32 == alone


def test_what_is_asked_at_once_is_what_each_lane_knows(monkeypatch: pytest.MonkeyPatch) -> None:
    asked_at_once, answers = ExactShadow._all_known, set()

    def held_against_one_by_one(self: ExactShadow, frame: Any, rows: Any, width: int, verb: Any) -> Any:
        found = asked_at_once(self, frame, rows, width, verb)
        for (_, lane, _), known in zip(rows, found, strict=True):
            for record, ordered in known.items():
                assert ordered == self._ordered(frame, lane, record)
                answers.add((len(rows), ordered))
        return found

    monkeypatch.setattr(ExactShadow, "_all_known", held_against_one_by_one)
    bodies = [WIDER.format(meeting="bar.sync 0;"), _without(1)]
    for body in bodies:
        with suppress(ptx.RaceError):
            run(body, np.zeros(128, np.uint32), block=(128, 1, 1), declarations=SHARED)
    # Steps of several warps, in which some lanes know what others do not.
    assert {True, False} <= {ordered for rows, ordered in answers if rows > 32}


# Copies of several warps out of one word, of which one record has to stand for two.
COPIED = """
    mov.u32 %r3, sh;
    and.b32 %r4, %r1, 31;
    setp.ne.u32 %p1, %r4, 0;
    shl.b32 %r5, %r1, 2;
    add.u32 %r5, %r5, %r3;
    setp.eq.u32 %p3, %r1, {alone};
    @%p1 bra met;
    {first}
    cp.async.ca.shared.global [%r5], [%d0], 4;
    @%p3 bra met;
    cp.async.wait_all;
met:
    bar.sync 0;
    setp.eq.u32 %p2, %r1, 64;
    @%p2 st.global.u32 [%d0], %r1;
    cp.async.wait_all;
    ret;
"""


@pytest.mark.parametrize("alone", [0, 32, 64, 999])
def test_one_of_three_does_not_wait_for_its_copy(alone: int) -> None:
    body, out = COPIED.format(alone=alone, first=""), np.zeros(128, np.uint32)
    shared = ".shared .align 4 .b8 sh[512];"
    if alone == 999:
        run(body, out, block=(96, 1, 1), declarations=shared)
        assert out[0] == 64
    else:
        with unexplained(), pytest.raises(ptx.RaceError, match=r"asynchronous copy|write-write|read-write"):
            run(body, out, block=(96, 1, 1), declarations=shared)


def test_a_copy_that_two_plain_readers_follow() -> None:
    # Thread 0 copies, and has not waited; the first lanes of two other warps read behind it.
    body = """
        mov.u32 %r3, sh;
        setp.ne.u32 %p0, %r1, 0;
        @!%p0 cp.async.ca.shared.global [%r3], [%d0], 4;
        bar.sync 0;
        and.b32 %r4, %r1, 31;
        setp.ne.u32 %p1, %r4, 0;
        @%p1 bra met;
        @!%p0 bra met;
        ld.global.u32 %r5, [%d0];
        st.global.u32 [%d2], %r5;
    met:
        bar.sync 0;
        setp.eq.u32 %p2, %r1, 64;
        @%p2 st.global.u32 [%d0], %r1;
        cp.async.wait_all;
        ret;
    """
    with unexplained(), pytest.raises(ptx.RaceError, match=r"read-write race .* asynchronous copy"):
        run(body, np.zeros(128, np.uint32), block=(96, 1, 1), declarations=".shared .align 4 .b8 sh[4];")


# Vectors and packed types are several accesses, which excuse others one by one

EACH = """
    setp.eq.u32 %p1, %r60, 0;
    mov.b32 %r3, 0x3C003C00;
    mov.b64 %d3, 1;
    mov.b16 %h1, 0x3C00;
    @!%p1 bra other;
    {one}
    ret;
other:
    {other}
    ret;
"""


@pytest.mark.parametrize(
    ("one", "other", "right"),
    [
        ("st.relaxed.gpu.v2.u32 [%d0], {%r3, %r3};", "ld.relaxed.gpu.u32 %r4, [%d0+4];", True),
        (
            "st.volatile.v4.u32 [%d0], {%r3, %r3, %r3, %r3};",
            "ld.volatile.v2.u32 {%r4, %r5}, [%d0+8];",
            True,
        ),
        ("red.relaxed.gpu.add.v2.f32 [%d0], {%r3, %r3};", "red.relaxed.gpu.add.f32 [%d0+4], %r3;", True),
        (
            "red.relaxed.gpu.add.noftz.f16x2 [%d0], %r3;",
            "red.relaxed.gpu.add.noftz.f16 [%d0+2], %h1;",
            True,
        ),
        ("st.relaxed.gpu.u64 [%d0], %d3;", "ld.relaxed.gpu.u32 %r4, [%d0+4];", False),
        (
            "st.relaxed.gpu.v2.u64 [%d0], {%d3, %d3};",
            "ld.relaxed.gpu.v4.u32 {%r4, %r5, %r6, %r7}, [%d0];",
            False,
        ),
        ("red.relaxed.gpu.add.noftz.f16x2 [%d0], %r3;", "ld.relaxed.gpu.u32 %r4, [%d0];", False),
        ("st.v2.u32 [%d0], {%r3, %r3};", "ld.relaxed.gpu.u32 %r4, [%d0+4];", False),
    ],
)
def test_elements_of_vectors(one: str, other: str, right: bool) -> None:
    body = EACH.replace("{one}", one).replace("{other}", other)
    if right:
        run(body, np.zeros(64, np.uint32), grid=(2, 1, 1), block=(1, 1, 1))
    else:
        with unexplained(), pytest.raises(ptx.RaceError):
            run(body, np.zeros(64, np.uint32), grid=(2, 1, 1), block=(1, 1, 1))


def test_lanes_of_one_step_that_write_the_same() -> None:
    # The atomics are suspected, so that all accesses are kept; a warp then writes what one lane would.
    same = "bar.sync 0; setp.lt.u32 %p9, %r1, 96; @%p9 bra out; mov.u32 %r10, 3; st.shared.u32 [%r3], %r10; out: ret;"
    body = COUNTED.format(meeting="bar.sync 0;").replace("    ret;", same)
    run(body, np.zeros(128, np.uint32), block=(128, 1, 1), declarations=SHARED)


def looks(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """One entry for each two accesses that are looked at, to tell whether both are strong enough."""
    seen: list[int] = []
    excused = ExactShadow._excused

    def counted(self: ExactShadow, frame: Any, one: int, other: int) -> bool:
        seen.append(one)
        return excused(self, frame, one, other)

    monkeypatch.setattr(ExactShadow, "_excused", counted)
    return seen


def test_atomics_of_a_counter_are_not_looked_at_one_by_one(monkeypatch: pytest.MonkeyPatch) -> None:
    seen, threads = looks(monkeypatch), 256
    out = np.zeros(threads, np.uint32)
    run(COUNTED.format(meeting="bar.sync 0;"), out, block=(threads, 1, 1), declarations=SHARED)
    assert out.tolist() == [8 * sum(range(1, threads // 32 + 1))] * threads
    # Reads are held against the atomics before them, 64 at each of 4 words, and asked for ahead; no atomic is held
    # against atomics.
    assert 0 < len(seen) <= 3 * threads * 64


def test_of_many_that_race_one_is_enough(monkeypatch: pytest.MonkeyPatch) -> None:
    seen, threads = looks(monkeypatch), 512
    body = """
        ld.global.u32 %r8, [%d0];
        add.u32 %r8, %r8, 1;
        atom.global.add.u32 %r7, [%d0], %r8;
        ret;
    """
    with pytest.raises(ptx.RaceError, match="read-write"), unexplained():
        run(body, np.zeros(1, np.uint32), block=(threads, 1, 1), grid=(2, 1, 1))
    # Each lane is held against some of the reads before it, and not against all of 1,024.
    assert 0 < len(seen) <= 2 * threads * 96


@pytest.mark.parametrize(("scope", "blocks"), [("gpu", 2), ("cluster", 2), ("cta", 2), ("cta", 1)])
def test_atomics_of_two_blocks_have_a_scope(scope: str, blocks: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(launcher, "RaceShadow", ExactShadow)
    out, atom = np.zeros(1, np.uint32), f"atom.relaxed.{scope}.global.add.u32 %r7, [%d0], 1; ret;"
    # Not in one step, in which they would be held against each other at once.
    body = f"setp.ne.u32 %p1, %r60, 0; @%p1 bra other; {atom} other: {atom}"
    if scope == "gpu" or blocks == 1:
        run(body, out, block=(64, 1, 1), grid=(blocks, 1, 1))
        assert out.tolist() == [64 * blocks]
        return
    with pytest.raises(ptx.RaceError, match="write-write"), unexplained():
        run(body, out, block=(64, 1, 1), grid=(blocks, 1, 1))


@pytest.mark.parametrize("alone", [True, False])
def test_the_last_of_many_readers_does_not_wait(alone: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(launcher, "RaceShadow", ExactShadow)
    body = f"""
        ld.global.u32 %r8, [%d0];
        setp.gt.u32 %p1, %r1, {95 if alone else 127};
        @%p1 ret;
        bar.sync 1, {96 if alone else 128};
        setp.ne.u32 %p1, %r1, 0;
        @%p1 ret;
        atom.global.add.u32 %r7, [%d0], 1;
        ret;
    """
    if not alone:
        run(body, np.zeros(1, np.uint32), block=(128, 1, 1))
        return
    with pytest.raises(ptx.RaceError, match="read-write") as caught, unexplained():
        run(body, np.zeros(1, np.uint32), block=(128, 1, 1))
    assert caught.value.among is not None
    assert caught.value.among[0] >= 96
