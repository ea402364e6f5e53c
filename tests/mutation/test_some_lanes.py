"""Exchanges that give the same in some lanes alone, of which nobody asks the others; and near misses."""

from __future__ import annotations

import pytest

from refmoe.mutation.proofs.equality import same_kernel
from tests.mutation.test_proofs import result, small

HEAD = (
    "mov.u32 %r7, %tid.x", "mul.wide.u32 %rd3, %r7, 4", "add.s64 %rd4, %rd1, %rd3", "add.s64 %rd5, %rd2, %rd3",
    "ld.global.u32 %r1, [%rd4]",
)  # fmt: skip
STORE = ("and.b32 %r9, %r7, 7", "setp.eq.s32 %p1, %r9, 0", "@%p1 st.global.u32 [%rd5], %r1")


def summed(
    mode: str, *, steps: tuple[int, ...] = (4, 2, 1), end: tuple[str, ...] = STORE, clamp: str = "31, -1"
) -> str:
    """A kernel in which lanes add up what others have."""
    lines = [
        line
        for step in steps
        for line in (
            f"shfl.sync.{mode}.b32 %r2|%p2, %r1, {step}, {clamp}",
            "mul.lo.s32 %r3, %r2, 3",
            "xor.b32 %r1, %r1, %r3",
        )
    ]
    return small(*HEAD, *lines, *end)


def replaced(before: str, after: str) -> tuple[str, ...]:
    assert any(before in each for each in STORE)
    return tuple(each.replace(before, after) for each in STORE)


@pytest.mark.parametrize("steps", [(4, 2, 1), (1, 2, 4), (2,), (4, 4)])
def test_lanes_that_nobody_asks_may_read_others(steps: tuple[int, ...]) -> None:
    one, other = summed("bfly", steps=steps), summed("down", steps=steps)
    if steps == (4, 4):
        # The second exchange reads a lane that has read another one.
        assert result(one, 5) != result(other, 5)
        assert same_kernel(one, other) is None
        return
    assert result(one, 5) == result(other, 5)
    assert same_kernel(one, other) is not None
    assert same_kernel(other, one) is not None


@pytest.mark.parametrize(
    "end",
    [
        replaced("%r9, 0", "%r9, 1"),
        replaced("%r7, 7", "%r7, 3"),
        replaced("setp.eq.s32 %p1, %r9, 0", "setp.lt.s32 %p1, %r9, 2"),
        ("st.global.u32 [%rd5], %r1",),
        ("shfl.sync.idx.b32 %r1|%p3, %r1, 9, 31, -1", *STORE),  # what another lane has
        ("shfl.sync.bfly.b32 %r1|%p3, %r1, 1, 31, -1", *STORE),
        ("redux.sync.add.s32 %r1, %r1, -1", *STORE),
        ("setp.lt.s32 %p3, %r1, 9", "@%p3 st.global.u32 [%rd5+256], %r7", *STORE),
    ],
)
def test_a_lane_that_is_asked_is_told_apart(end: tuple[str, ...]) -> None:
    one, other = summed("bfly", end=end), summed("down", end=end)
    assert result(one, 5) != result(other, 5)
    assert same_kernel(one, other) is None
    assert same_kernel(other, one) is None


@pytest.mark.parametrize(
    ("steps", "clamp"), [((8, 4, 2, 1), "31, -1"), ((4, 2, 1), "7199, -1"), ((4, 2, 1), "31, 255")]
)
def test_a_distance_that_leaves_the_group_or_parts_of_a_warp_are_no_proof(steps: tuple[int, ...], clamp: str) -> None:
    assert same_kernel(summed("bfly", steps=steps, clamp=clamp), summed("down", steps=steps, clamp=clamp)) is None


def test_whether_the_lane_is_there_is_seen() -> None:
    end = ("@%p2 st.global.u32 [%rd5], %r7",)
    one, other = summed("bfly", steps=(4,), end=end), summed("down", steps=(4,), end=end)
    assert result(one, 5) != result(other, 5)
    assert same_kernel(one, other) is None
    # Lane 0 has a lane across in both.
    asked = ("setp.eq.s32 %p1, %r7, 0", "and.pred %p3, %p1, %p2", "@%p3 st.global.u32 [%rd5], %r7")
    one, other = summed("bfly", steps=(4,), end=asked), summed("down", steps=(4,), end=asked)
    assert result(one, 5) == result(other, 5)


def test_what_a_loop_exchanges_again_is_of_lanes_that_have_read_others() -> None:
    """The second round reads what lanes got in the first one."""

    def looped(mode: str) -> str:
        lines = (
            "mov.u32 %r8, 0", "bra HEAD", "HEAD: shfl.sync.MODE.b32 %r2|%p2, %r1, 4, 31, -1", "xor.b32 %r3, %r2, %r8",
            "add.s32 %r1, %r1, %r3", "add.s32 %r8, %r8, 1", "setp.lt.s32 %p3, %r8, 2", "@%p3 bra HEAD",
        )  # fmt: skip
        text = small(*HEAD, *(each.replace("MODE", mode) for each in lines), *STORE)
        return text.replace("\tHEAD: ", "HEAD:\n\t")

    assert result(looped("bfly"), 5) != result(looped("down"), 5)
    assert same_kernel(looped("bfly"), looped("down")) is None
