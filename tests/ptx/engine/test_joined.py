"""Lanes of one member mask meet at several instructions that exchange values, since sm_70 (PTX ISA, "shfl.sync")."""

from __future__ import annotations

import numpy as np
import pytest
from support.ptx_kernel import run, text

from refmoe import ptx

LANE = np.arange(32, dtype=np.uint32)
LOW = LANE < 16
# Both halves of a warp exchange values in branches of their own, by other registers, and then go on differently.
BRANCHES = """
    add.u32 %r3, %r1, 100;
    and.b32 %r8, %r1, 1;
    setp.ne.u32 %p2, %r8, 0;
    setp.lt.u32 %p1, %r1, 16; @%p1 bra LOW;
    {high}
    add.u32 %r4, %r4, 1000; bra END;
LOW:
    {low}
    mov.u32 %r4, %r5;
END: st.global.u32 [%d2], %r4;
"""
EXCHANGES = {
    "shfl": (
        "shfl.sync.bfly.b32 %r4, %r3, 16, 31, -1;",
        "shfl.sync.bfly.b32 %r5|%p3, %r1, 16, 31, -1;",
        np.where(LOW, (LANE ^ 16) + 100, (LANE ^ 16) + 1000),
    ),
    "a lane of the other branch": (
        "shfl.sync.idx.b32 %r4, %laneid, 3, 31, -1;",
        "mov.u32 %r6, 29; shfl.sync.idx.b32 %r5, 7, %r6, 31, -1;",
        np.where(LOW, 29, 1007),
    ),
    "ballot": (
        "vote.sync.ballot.b32 %r4, !%p2, -1;",
        "vote.sync.ballot.b32 %r5, %p2, -1;",
        np.where(LOW, 0x5555AAAA, 0x5555AAAA + 1000),
    ),
    "any": (
        "vote.sync.any.pred %p3, %p1, -1; selp.u32 %r4, 1, 2, %p3;",
        "vote.sync.any.pred %p4, %p1, -1; selp.u32 %r5, 1, 2, %p4;",
        np.where(LOW, 1, 1001),
    ),
    "redux": (
        "redux.sync.add.s32 %r4, %r3, -1;",
        "redux.sync.add.s32 %r5, %r1, -1;",
        np.where(LOW, 496 + 1600, 496 + 2600),
    ),
    "match": (
        "match.all.sync.b32 %r4|%p3, %r8, -1;",
        "match.all.sync.b32 %r5, %r8, -1;",
        np.where(LOW, 0, 1000),
    ),
    "elect": (
        "elect.sync _|%p3, -1; selp.u32 %r4, 1, 2, %p3;",
        "elect.sync %r6|%p4, -1; selp.u32 %r5, 1, 2, %p4;",
        np.where(LOW, np.where(LANE == 0, 1, 2), 1002),
    ),
}


def ran(body: str, **options: object) -> np.ndarray:
    out = np.zeros(32, np.uint32)
    module = ptx.Module.parse(text(body), name="test.ptx")
    result = ptx.launch(module, "k", (1, 1, 1), (32, 1, 1), [out, None, 0], step_budget=20_000, **options)
    assert result.warnings == ()
    return out


@pytest.mark.parametrize("name", EXCHANGES)
def test_two_branches(name: str) -> None:
    high, low, expected = EXCHANGES[name]
    np.testing.assert_array_equal(ran(BRANCHES.format(high=high, low=low)), expected)


def test_every_schedule_gives_the_same() -> None:
    high, low, _ = EXCHANGES["shfl"]
    ran(BRANCHES.format(high=high, low=low), schedules=8)


def test_three_branches_one_after_another() -> None:
    # The first two branches meet by themselves, and one of them with the third in a second round.
    body = """
    mov.u32 %r4, 0;
    setp.lt.u32 %p1, %r1, 16; @%p1 bra FIRST;
    setp.lt.u32 %p2, %r1, 24; @%p2 bra SECOND;
    shfl.sync.idx.b32 %r4, %r1, 16, 31, 0xFFFF0000;
    bra END;
SECOND:
    shfl.sync.idx.b32 %r4, %r1, 31, 31, 0xFFFF0000;
    shfl.sync.idx.b32 %r5, %r1, 5, 31, 0x00FFFFFF;
    mad.lo.u32 %r4, %r5, 100, %r4;
    bra END;
FIRST:
    shfl.sync.idx.b32 %r4, %r1, 17, 31, 0x00FFFFFF;
END: st.global.u32 [%d2], %r4;
    """
    expected = np.where(LANE < 16, 17, np.where(LANE < 24, 531, 16))
    np.testing.assert_array_equal(ran(body), expected)


def test_in_a_loop_while_another_warp_polls() -> None:
    out = np.zeros(64, np.uint32)
    run(
        """
    setp.ge.u32 %p5, %r1, 32; @%p5 bra POLL;
    mov.u32 %r4, %r1; mov.u32 %r7, 0;
AGAIN:
    and.b32 %r8, %r1, 1; setp.ne.u32 %p1, %r8, 0; @%p1 bra ODD;
    shfl.sync.bfly.b32 %r4, %r4, 1, 31, -1; bra NEXT;
ODD:
    shfl.sync.bfly.b32 %r4, %r4, 1, 31, -1; add.u32 %r4, %r4, 10;
NEXT:
    add.u32 %r7, %r7, 1; setp.lt.u32 %p2, %r7, 3; @%p2 bra AGAIN;
    st.global.u32 [%d2], %r4;
    bar.warp.sync -1;
    setp.ne.u32 %p3, %r1, 0; @%p3 bra DONE;
    st.release.cta.shared.u32 [flag], 1;
    bra DONE;
POLL:
    ld.acquire.cta.shared.u32 %r9, [flag];
    setp.eq.u32 %p4, %r9, 0; @%p4 bra POLL;
    st.global.u32 [%d2], 7;
DONE:
    ret;
    """.replace("    setp.ge.u32 %p5", "    st.volatile.shared.u32 [flag], 0; bar.sync 0;\n    setp.ge.u32 %p5", 1),
        out,
        block=(64, 1, 1),
        declarations=".shared .align 4 .u32 flag;",
        step_budget=None,
    )
    odd = LANE % 2 == 1
    np.testing.assert_array_equal(out[:32], np.where(odd, (LANE ^ 1) + 20, (LANE ^ 1) + 10))
    assert (out[32:] == 7).all()


def test_it_orders_no_memory() -> None:
    body = """
    mov.u32 %r3, cell; mad.lo.u32 %r4, %r1, 4, %r3;
    st.shared.u32 [%r4], %r1;
    setp.lt.u32 %p1, %r1, 16; @%p1 bra LOW;
    shfl.sync.bfly.b32 %r5, %r1, 16, 31, -1; bra END;
LOW:
    shfl.sync.bfly.b32 %r5, %r1, 16, 31, -1;
END:
    mad.lo.u32 %r4, %r5, 4, %r3;
    ld.shared.u32 %r6, [%r4];
    st.global.u32 [%d2], %r6;
    """
    with pytest.raises(ptx.RaceError, match="write-read race"):
        run(body, np.zeros(32, np.uint32), declarations=".shared .align 4 .b8 cell[128];")


def test_other_qualifiers_and_masks_do_not_meet() -> None:
    shuffle = "shfl.sync.bfly.b32 %r4, %r1, 16, 31, -1;"
    for other in ("vote.sync.ballot.b32 %r5, %p1, -1;", "shfl.sync.bfly.b32 %r5, %r1, 16, 31, 0xFFFFF;"):
        with pytest.raises(ptx.Deadlock, match="gathering for"):
            run(BRANCHES.format(high=shuffle, low=other), np.zeros(32, np.uint32))
