"""Warp-level instructions against a direct statement of the PTX manual, one lane at a time."""

from __future__ import annotations

import numpy as np
import pytest
from support.ptx_kernel import line_of, run
from support.selection.thinned import thinned

from refmoe import ptx

FULL = 0xFFFFFFFF


def _shuffle(mode: str, values, b: int, c: int):
    """The manual's pseudo-code (PTX ISA, shfl.sync) for a whole warp."""
    results, predicates = [], []
    for lane in range(32):
        bval, cval, mask = b & 31, c & 31, (c >> 8) & 31
        max_lane = (lane & mask) | (cval & ~mask & 31)
        min_lane = lane & mask
        if mode == "up":
            j = lane - bval
            p = j >= max_lane
        elif mode == "down":
            j = lane + bval
            p = j <= max_lane
        elif mode == "bfly":
            j = lane ^ bval
            p = j <= max_lane
        else:
            j = min_lane | (bval & ~mask & 31)
            p = j <= max_lane
        if not p:
            j = lane
        results.append(values[j])
        predicates.append(p)
    return results, predicates


@pytest.mark.parametrize("mode", ["up", "down", "bfly", "idx"])
@pytest.mark.parametrize("c", thinned([0x001F, 0x0000, 0x181F, 0x1807, 0x1C03, 0x1000, 0x0F0F, 0x1F1F], 3))
def test_shuffle(mode: str, c: int) -> None:
    if mode == "up":
        c &= ~0x1F  # the clamp of .up is a lower bound
    values = np.random.default_rng(c).integers(0, 1 << 32, 32, dtype=np.uint32)
    body = f"""
        mul.wide.u32 %d3, %r1, 4; add.s64 %d3, %d3, %d1;
        ld.global.u32 %r3, [%d3];
        shfl.sync.{mode}.b32 %r4|%p1, %r3, %r0, {c}, -1;
        selp.u32 %r5, 1, 0, %p1;
        mul.wide.u32 %d4, %r1, 8; add.s64 %d4, %d4, %d0;
        st.global.v2.u32 [%d4], {{%r4, %r5}};
        ret;
    """
    for b in (0, 1, 2, 5, 16, 31, 33):
        out = np.zeros((32, 2), np.uint32)
        run(body, out, values, n=b)
        expected, predicates = _shuffle(mode, values, b, c)
        assert out[:, 0].tolist() == expected
        assert out[:, 1].tolist() == predicates


def test_shuffle_with_lane_dependent_source_in_two_warps_of_two_blocks() -> None:
    body = """
        xor.b32 %r3, %r1, 21;
        shfl.sync.idx.b32 %r4, %r2, %r3, 31, -1;
        st.global.u32 [%d2], %r4;
        ret;
    """
    out = np.zeros(128, np.uint32)
    run(body, out, block=(64, 1, 1), grid=(2, 1, 1))
    lane = np.arange(128)
    np.testing.assert_array_equal(out, (lane & ~31) | ((lane & 31) ^ 21))


def test_shuffle_among_some_lanes() -> None:
    # Lanes 8-15 alone exchange, with their own mask; the others never come.
    body = """
        shr.u32 %r3, %r1, 3;
        setp.ne.u32 %p1, %r3, 1;
        mov.u32 %r4, %r1;
        @%p1 bra END;
        shfl.sync.bfly.b32 %r4, %r1, 1, 31, 0xFF00;
    END: st.global.u32 [%d2], %r4;
        ret;
    """
    out = np.zeros(32, np.uint32)
    run(body, out)
    t = np.arange(32)
    np.testing.assert_array_equal(out, np.where(t // 8 == 1, t ^ 1, t))


def test_halves_of_a_warp_with_their_own_masks() -> None:
    body = """
        setp.lt.u32 %p1, %r1, 16;
        selp.b32 %r3, 0x0000FFFF, 0xFFFF0000, %p1;
        shfl.sync.bfly.b32 %r4, %r1, 15, 31, %r3;
        vote.sync.ballot.b32 %r5, %p1, %r3;
        add.u32 %r4, %r4, %r5;
        st.global.u32 [%d2], %r4;
        ret;
    """
    out = np.zeros(32, np.uint32)
    run(body, out)
    t = np.arange(32)
    np.testing.assert_array_equal(out, (t ^ 15) + np.where(t < 16, 0xFFFF, 0))


def test_sync_waits_for_lanes_that_come_later() -> None:
    # Only lanes above 15 take a detour; the shuffle must still see all of them.
    body = """
        setp.lt.u32 %p1, %r1, 16;
        mov.u32 %r3, 5;
        @%p1 bra MEET;
        mul.lo.u32 %r3, %r1, 3;
    MEET:
        shfl.sync.bfly.b32 %r5, %r3, 16, 31, -1;
        st.global.u32 [%d2], %r5;
        ret;
    """
    out = np.zeros(32, np.uint32)
    run(body, out)
    t = np.arange(32)
    np.testing.assert_array_equal(out, np.where(t < 16, 3 * (t + 16), 5))


def test_exited_lanes_are_not_waited_for() -> None:
    body = """
        setp.ge.u32 %p1, %r1, 20;
        @%p1 exit;
        vote.sync.ballot.b32 %r3, %p1, -1;
        not.b32 %r4, %r3;
        vote.sync.all.pred %p2, !%p1, -1;
        selp.u32 %r4, %r4, 0, %p2;
        st.global.u32 [%d2], %r4;
        ret;
    """
    out = np.zeros(32, np.uint32)
    run(body, out)
    np.testing.assert_array_equal(out, np.where(np.arange(32) < 20, FULL, 0))


def test_inactive_source_is_an_error() -> None:
    body = """
        setp.ge.u32 %p1, %r1, 20;
        @%p1 exit;
        shfl.sync.bfly.b32 %r3, %r1, 16, 31, -1;
        ret;
    """
    with pytest.raises(ptx.WarpError, match="reads lane 20, which does not take part") as caught:
        run(body, np.zeros(32, np.uint32), checks=ptx.Checks(undefined=False))
    assert (caught.value.thread, caught.value.line) == ((4, 0, 0), line_of(body, "shfl"))


# A shuffle from an absent lane would have the launch run again, in Python; a vote has it found in the first run.
@pytest.mark.parametrize(
    "instruction",
    ["shfl.sync.bfly.b32 %r3, %r1, 1, 31, 0xFFFF;", "vote.sync.ballot.b32 %r3, 1, 0xFFFF;"],
    ids=["shfl", "vote"],
)
def test_lane_outside_its_own_mask_is_an_error(instruction: str) -> None:
    with pytest.raises(ptx.WarpError, match="not in its own member mask 0x0000FFFF") as caught:
        run(f"{instruction} bra.uni END; END: ret;", np.zeros(32, np.uint32))
    assert caught.value.thread == (16, 0, 0)


def test_a_member_that_never_comes_is_a_deadlock() -> None:
    body = """
        setp.eq.u32 %p1, %r1, 3;
        @%p1 bra OTHER;
        shfl.sync.bfly.b32 %r3, %r1, 1, 31, -1;
        ret;
    OTHER:
        shfl.sync.idx.b32 %r3, %r1, 2, 31, -1;
        ret;
    """
    with pytest.raises(ptx.Deadlock) as caught:
        run(body, np.zeros(32, np.uint32))
    assert len(caught.value.waiting) == 2
    assert any("31 lanes" in line for line in caught.value.waiting)


@pytest.mark.parametrize("bits", [0, FULL, 0x80000001, 0x00FFFF00])
def test_votes(bits: int) -> None:
    body = """
        shr.u32 %r3, %r0, %r1;
        and.b32 %r3, %r3, 1;
        setp.eq.u32 %p1, %r3, 1;
        vote.sync.ballot.b32 %r4, %p1, -1;
        vote.sync.all.pred %p2, %p1, -1;
        vote.sync.any.pred %p3, %p1, -1;
        vote.sync.uni.pred %p4, %p1, -1;
        vote.sync.any.pred %p5, !%p1, -1;
        selp.u32 %r5, 1, 0, %p2; selp.u32 %r6, 2, 0, %p3; selp.u32 %r7, 4, 0, %p4; selp.u32 %r8, 8, 0, %p5;
        add.u32 %r5, %r5, %r6; add.u32 %r5, %r5, %r7; add.u32 %r5, %r5, %r8;
        mul.wide.u32 %d4, %r1, 8; add.s64 %d4, %d4, %d0;
        st.global.v2.u32 [%d4], {%r4, %r5};
        ret;
    """
    out = np.zeros((32, 2), np.uint32)
    run(body, out, n=bits)
    uniform = bits in (0, FULL)
    flags = (bits == FULL) + 2 * (bits != 0) + 4 * uniform + 8 * (bits != FULL)
    assert (out == [bits, flags]).all()


def test_match() -> None:
    body = """
        mul.wide.u32 %d3, %r1, 4; add.s64 %d3, %d3, %d1;
        ld.global.u32 %r3, [%d3];
        match.any.sync.b32 %r4, %r3, -1;
        match.all.sync.b32 %r5|%p1, %r3, -1;
        mov.b64 %d4, {%r3, %r0};
        match.any.sync.b64 %r6, %d4, -1;
        selp.u32 %r7, 1, 0, %p1;
        mul.wide.u32 %d4, %r1, 16; add.s64 %d4, %d4, %d0;
        st.global.v4.u32 [%d4], {%r4, %r5, %r6, %r7};
        ret;
    """
    for values in (np.arange(32) % 5, np.full(32, 9)):
        source = values.astype(np.uint32)
        out = np.zeros((32, 4), np.uint32)
        run(body, out, source)
        expected = [sum(1 << j for j in range(32) if source[j] == source[i]) for i in range(32)]
        same = len(set(source.tolist())) == 1
        assert out[:, 0].tolist() == expected
        assert out[:, 2].tolist() == expected
        assert (out[:, 1] == (FULL if same else 0)).all()
        assert (out[:, 3] == same).all()


@pytest.mark.parametrize(
    ("operation", "reduce"),
    [
        ("add.u32", lambda v: int(v.sum()) & FULL),
        ("add.s32", lambda v: int(v.sum()) & FULL),
        ("min.u32", lambda v: int(v.min())),
        ("max.u32", lambda v: int(v.max())),
        ("min.s32", lambda v: int(v.astype(np.uint32).view(np.int32).min()) & FULL),
        ("max.s32", lambda v: int(v.astype(np.uint32).view(np.int32).max()) & FULL),
        ("and.b32", lambda v: int(np.bitwise_and.reduce(v))),
        ("or.b32", lambda v: int(np.bitwise_or.reduce(v))),
        ("xor.b32", lambda v: int(np.bitwise_xor.reduce(v))),
    ],
)
@pytest.mark.parametrize(("clear", "set_"), [(0, 0), (1 << 31, 0), (0, 1 << 31)], ids=["any", "positive", "negative"])
def test_redux_over_halves(operation: str, reduce, clear: int, set_: int) -> None:
    body = f"""
        mul.wide.u32 %d3, %r1, 4; add.s64 %d3, %d3, %d1;
        ld.global.u32 %r3, [%d3];
        setp.lt.u32 %p1, %r1, 10;
        selp.b32 %r4, 0x000003FF, 0xFFFFFC00, %p1;
        redux.sync.{operation} %r5, %r3, %r4;
        st.global.u32 [%d2], %r5;
        ret;
    """
    source = np.random.default_rng(4).integers(0, 1 << 32, 32, dtype=np.uint64) & (FULL ^ clear) | set_
    out = np.zeros(32, np.uint32)
    run(body, out, source.astype(np.uint32))
    low, high = reduce(source[:10]), reduce(source[10:])
    assert out.tolist() == [low] * 10 + [high] * 22


def test_elect() -> None:
    body = """
        setp.lt.u32 %p1, %r1, 6;
        @%p1 exit;
        elect.sync %r3|%p2, 0xFFFFFFC0;
        elect.sync _|%p3, 0xFFFFFFC0;
        selp.u32 %r4, 100, 0, %p2;
        selp.u32 %r5, 1000, 0, %p3;
        add.u32 %r4, %r4, %r3; add.u32 %r4, %r4, %r5;
        st.global.u32 [%d2], %r4;
        ret;
    """
    out = np.zeros(32, np.uint32)
    run(body, out)
    assert out.tolist() == [0] * 6 + [1106] + [6] * 25


def test_activemask_inside_a_branch() -> None:
    body = """
        and.b32 %r3, %r1, 1;
        setp.eq.u32 %p1, %r3, 1;
        mov.u32 %r4, 0;
        @%p1 bra END;
        activemask.b32 %r4;
    END: st.global.u32 [%d2], %r4;
        ret;
    """
    out = np.zeros(32, np.uint32)
    run(body, out)
    np.testing.assert_array_equal(out, np.where(np.arange(32) % 2, 0, 0x55555555))


def test_bar_warp_sync_at_different_places() -> None:
    # Both arms of a branch call __syncwarp(): they meet although the places differ.
    body = """
        setp.lt.u32 %p1, %r1, 16;
        mov.u32 %r5, cell;
        mad.lo.u32 %r6, %r1, 4, %r5;
        xor.b32 %r8, %r1, 16;
        mad.lo.u32 %r8, %r8, 4, %r5;
        st.shared.u32 [%r6], %r1;
        @%p1 bra LOW;
        bar.warp.sync -1;
        bra END;
    LOW:
        bar.warp.sync 0xFFFFFFFF;
    END:
        ld.shared.u32 %r7, [%r8];
        st.global.u32 [%d2], %r7;
        ret;
    """
    out = np.zeros(32, np.uint32)
    run(body, out, declarations=".shared .align 4 .b8 cell[128];")
    np.testing.assert_array_equal(out, np.arange(32) ^ 16)


@pytest.mark.parametrize("threads", [20, 45])
def test_partial_warps(threads: int) -> None:
    body = """
        vote.sync.ballot.b32 %r3, 1, -1;
        st.global.u32 [%d2], %r3;
        ret;
    """.replace("%r3, 1, -1", "%r3, %p1, -1").replace("vote", "setp.eq.u32 %p1, %r1, %r1;\n vote")
    out = np.zeros(2 * threads, np.uint32)
    run(body, out, block=(threads, 1, 1), grid=(2, 1, 1))
    per_block = [FULL if t < threads // 32 * 32 else (1 << threads % 32) - 1 for t in range(threads)]
    assert out.tolist() == per_block * 2


def test_votes_without_sync_ask_the_lanes_that_are_there() -> None:
    body = """
        setp.lt.u32 %p1, %r1, 20;
        setp.lt.u32 %p2, %r1, 10;
        mov.u32 %r4, 0;
        @!%p1 bra OTHERS;
        vote.ballot.b32 %r3, %p2;
        vote.all.pred %p3, %p1;
        vote.any.pred %p4, !%p1;
        vote.uni.pred %p5, %p2;
        bra STORE;
    OTHERS:
        vote.ballot.b32 %r3, !%p2;
        vote.all.pred %p3, %p2;
        vote.any.pred %p4, !%p2;
        vote.uni.pred %p5, %p2;
    STORE:
        @%p3 or.b32 %r4, %r4, 1;
        @%p4 or.b32 %r4, %r4, 2;
        @%p5 or.b32 %r4, %r4, 4;
        mul.wide.u32 %d4, %r1, 8; add.s64 %d4, %d4, %d0;
        st.global.v2.u32 [%d4], {%r3, %r4};
        ret;
    """
    out = np.zeros((32, 2), np.uint32)
    run(body, out)
    assert (out[:20] == [(1 << 10) - 1, 1]).all()
    assert (out[20:] == [0xFFF00000, 2 + 4]).all()


def test_a_guarded_vote_without_sync() -> None:
    body = """
        setp.lt.u32 %p1, %r1, 5; setp.ne.u32 %p2, %r1, 2; mov.u32 %r3, 77;
        @%p1 vote.ballot.b32 %r3, %p2;
        st.global.u32 [%d2], %r3; ret;
    """
    out = np.zeros(32, np.uint32)
    run(body, out)
    assert out.tolist() == [0b11011] * 5 + [77] * 27


@pytest.mark.parametrize("mode", ["up", "down", "bfly", "idx"])
@pytest.mark.parametrize("amount", ["3", "%r0"])
def test_shuffles_without_sync(mode: str, amount: str) -> None:
    body = f"""
        mul.lo.u32 %r3, %r1, %r1;
        shfl.{mode}.b32 %r4|%p1, %r3, {amount}, {"0" if mode == "up" else "31"};
        selp.u32 %r5, 1000, 0, %p1;
        add.u32 %r4, %r4, %r5;
        st.global.u32 [%d2], %r4; ret;
    """
    out = np.zeros(32, np.uint32)
    run(body, out, n=3)
    results, inside = _shuffle(mode, [t * t for t in range(32)], 3, 0 if mode == "up" else 31)
    assert out.tolist() == [value + 1000 * there for value, there in zip(results, inside, strict=True)]


def test_a_shuffle_without_sync_from_a_lane_that_is_not_there() -> None:
    body = "setp.lt.u32 %p1, %r1, 16; @%p1 shfl.down.b32 %r3, %r1, 1, 31; ret;"
    with pytest.raises(ptx.WarpError, match="reads lane 16, which does not take part") as caught:
        run(body, np.zeros(32, np.uint32), checks=ptx.Checks(undefined=False))
    assert (caught.value.thread, caught.value.line) == ((15, 0, 0), line_of(body, "shfl.down"))


def test_sync_may_stand_behind_the_mode() -> None:
    body = """
        setp.lt.u32 %p1, %r1, 5;
        vote.ballot.sync.b32 %r3, %p1, -1;
        shfl.idx.sync.b32 %r4, %r1, 3, 31, -1;
        mad.lo.u32 %r3, %r4, 1000, %r3;
        st.global.u32 [%d2], %r3;
        ret;
    """
    out = np.zeros(32, np.uint32)
    run(body, out)
    assert (out == 3031).all()


MEETING = """
    mov.u32 %r3, cell; mad.lo.u32 %r4, %r1, 4, %r3; xor.b32 %r5, %r1, {distance}; mad.lo.u32 %r5, %r5, 4, %r3;
    and.b32 %r6, %r1, 1; match.any.sync.b32 %r7, %r6, -1;
    st.shared.u32 [%r4], %r1;
    bar.warp.sync %r7;
    ld.shared.u32 %r20, [%r5]; st.global.u32 [%d2], %r20; ret;
"""


@pytest.mark.parametrize("distance", [1, 2, 3])
def test_groups_of_a_warp_meet_at_one_instruction_by_themselves(distance: int) -> None:
    # Even lanes meet even ones, and odd lanes odd ones.
    out = np.zeros(32, np.uint32)
    body, cells = MEETING.format(distance=distance), ".shared .align 4 .b8 cell[128];"
    if distance % 2 == 0:
        run(body, out, declarations=cells)
        assert out.tolist() == [lane ^ distance for lane in range(32)]
        return
    with pytest.raises(ptx.RaceError, match="write-read"):
        run(body, out, declarations=cells)


IN_EACH_BRANCH = """
    setp.lt.u32 %p1, %r1, 16; @%p1 bra LOW;
    {high}; bra END;
LOW: {low};
END: st.global.u32 [%d2], %r4;
"""


@pytest.mark.parametrize("exchange", ["shfl.sync.bfly.b32 %r4, %r1, 16, 31, -1", "redux.sync.add.s32 %r4, %r1, -1"])
def test_lanes_that_do_not_meet_at_two_instructions(exchange: str) -> None:
    # Those of a chip before sm_70 do not; it is not a deadlock.
    out = np.zeros(32, np.uint32)
    with pytest.raises(ptx.UnknownOpcode, match="for lanes of one member mask that are at several instructions"):
        run(IN_EACH_BRANCH.format(high=exchange, low=exchange), out, target="sm_60")
    # Other spellings never meet, and other masks need not.
    with pytest.raises(ptx.Deadlock, match="gathering for"):
        run(IN_EACH_BRANCH.format(high=exchange, low="vote.sync.ballot.b32 %r4, %p1, -1"), out, target="sm_60")
    with pytest.raises(ptx.Deadlock, match="gathering for"):
        run(IN_EACH_BRANCH.format(high=exchange, low=exchange.replace("-1", "0xFFFFF")), out, target="sm_60")
