"""Rounds of a loop in which nothing is seen, parts of acts that PTX does not use; and near misses."""

from __future__ import annotations

import pytest

from refmoe.mutation.proofs import bounds
from refmoe.mutation.proofs.bounds import HostBounds
from refmoe.mutation.proofs.equality import same_kernel
from tests.mutation.test_lanes import replaced
from tests.mutation.test_proofs import result, small

pytest.importorskip("z3")

HEAD = (
    "ld.param.u32 %r6, [kernel_param_2]", "add.s32 %r9, %r6, 31", "and.b32 %r9, %r9, -32", "mov.u32 %r7, %tid.x",
    "mov.u32 %r8, %ctaid.x", "shl.b32 %r8, %r8, 6", "add.s32 %r8, %r8, %r7", "mov.u32 %r10, %nctaid.x",
    "shl.b32 %r10, %r10, 6", "setp.ge.s32 %p1, %r8, %r9", "@%p1 bra END",
)  # fmt: skip
#: A lane stores the sum of two lanes' numbers of elements, where its element is inside.
BODY = (
    "setp.lt.s32 %p2, %r8, %r6", "selp.b32 %r1, %r8, 0, %p2", "shfl.sync.bfly.b32 %r2, %r1, 1, 31, -1",
    "add.s32 %r1, %r1, %r2", "mul.wide.s32 %rd3, %r8, 4", "add.s64 %rd4, %rd2, %rd3", "@%p2 st.global.u32 [%rd4], %r1",
)  # fmt: skip
AGAIN = ("add.s32 %r8, %r8, %r10", "setp.lt.s32 %p3, %r8, %r9", "@%p3 bra AGAIN")


def walk(
    relation: str, *, head: tuple[str, ...] = HEAD, body: tuple[str, ...] = BODY, again: tuple[str, ...] = AGAIN
) -> str:
    again = replaced(again, "setp.lt", f"setp.{relation}")
    text = small(*head, "AGAIN:", *body, *again).replace("AGAIN:;", "AGAIN:")
    return text.replace("\tret;", "END:\n\tret;")


@pytest.fixture(autouse=True)
def bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(bounds, "BOUNDS", {"kernel": HostBounds({2: 1 << 20}, 1 << 16, apart=True)})


def test_a_round_in_which_nothing_is_stored_is_not_seen() -> None:
    for number in (0, 5, 64, 128):
        assert result(walk("lt"), number) == result(walk("le"), number)
    assert same_kernel(walk("lt"), walk("le")) is not None


@pytest.mark.parametrize(
    ("part", "before", "after"),
    [
        ("body", "@%p2 st", "st"),  # stores are seen
        ("body", "setp.lt.s32 %p2, %r8, %r6", "setp.le.s32 %p2, %r8, %r6"),
        ("body", "mul.wide.s32 %rd3", "bar.sync 0;\n\tmul.wide.s32 %rd3"),  # others wait at a barrier
        ("body", "mul.wide.s32 %rd3", "ld.global.u32 %r3, [%rd1];\n\tmul.wide.s32 %rd3"),
        ("head", "and.b32 %r9, %r9, -32", "and.b32 %r9, %r9, -16"),  # half a warp goes on
        ("head", "and.b32 %r9, %r9, -32", "and.b32 %r9, %r9, 2147483584"),  # ends below the last element
        ("head", "mov.u32 %r10, %nctaid.x", "mov.u32 %r10, 0"),  # goes on for ever
        ("again", "%r8, %r8, %r10", "%r8, %r8, %r7"),  # lanes do not take the same step
        ("again", "@%p3 bra AGAIN", "@%p3 bra AGAIN;\n\tst.global.u32 [%rd1], %r8"),
        ("again", "@%p3 bra AGAIN", "@%p3 bra AGAIN;\n\tbar.sync 0"),
    ],
)
def test_a_round_of_which_something_is_seen_is_no_proof(part: str, before: str, after: str) -> None:
    parts = {"head": HEAD, "body": BODY, "again": AGAIN}
    changed = {part: replaced(parts[part], before, after)}
    assert same_kernel(walk("lt", **changed), walk("lt", **changed)) is not None
    assert same_kernel(walk("lt", **changed), walk("le", **changed)) is None


def test_a_round_less_is_seen_and_so_are_two_that_may_leave_32_bits(monkeypatch: pytest.MonkeyPatch) -> None:
    assert same_kernel(walk("le"), walk("lt")) is None
    assert same_kernel(walk("lt"), walk("ne")) is None
    assert same_kernel(walk("lt"), walk("ge")) is None
    monkeypatch.setattr(bounds, "BOUNDS", {"kernel": HostBounds({}, apart=True)})
    assert same_kernel(walk("lt"), walk("le")) is None


def arrives(*front: str, order: str = "release", behind: str = "st.global.u32 [%rd2], %r1") -> str:
    lines = (*front, f"barrier.cluster.arrive.{order}.aligned", "barrier.cluster.wait.acquire.aligned", behind)
    text = small(
        "mov.u32 %r7, %tid.x", "mov.u32 %r1, 7", "setp.ne.s32 %p1, %r7, 0", "@%p1 bra MEET", "mov.u32 %r2, 1", *lines
    )
    return text.replace("\tMEET:;", "MEET:").replace("{\n", "{\n\t.shared .align 8 .b8 held[64];\n", 1)


INIT = "mbarrier.init.shared.b64 [held], %r2"
FENCE = "fence.mbarrier_init.release.cluster"


@pytest.mark.parametrize(
    ("front", "proven"),
    [
        ((INIT, FENCE, "MEET:"), True),
        ((INIT, INIT.replace("held", "held+8"), FENCE, "MEET:"), True),
        ((INIT, "MEET:"), False),
        ((FENCE, INIT, "MEET:"), False),
        (("st.shared.u32 [held], %r1", INIT, FENCE, "MEET:"), False),
        (("st.global.u32 [%rd1], %r1", FENCE, "MEET:"), False),
        (("ld.shared.u32 %r3, [held]", INIT, FENCE, "MEET:"), False),
        ((INIT, FENCE, "MEET:", "bar.sync 0"), False),
    ],
)
def test_an_arrival_need_not_order_what_a_fence_has(front: tuple[str, ...], proven: bool) -> None:
    assert (same_kernel(arrives(*front), arrives(*front, order="relaxed")) is not None) is proven
    assert same_kernel(arrives(*front, order="relaxed"), arrives(*front)) is None


def multiplies(one: int, other: int, *, tail: str = "") -> str:
    sums = ", ".join(f"%f{each}" for each in range(1, 5))
    text = small(
        "mov.u32 %r7, %tid.x", "and.b32 %r7, %r7, 1023", "cvt.u64.u32 %rd3, %r7", f"or.b64 %rd4, %rd3, {one}",
        f"or.b64 %rd5, %rd3, {other}", "wgmma.fence.sync.aligned",
        f"wgmma.mma_async.sync.aligned.m64n8k32.f32.e4m3.{tail or 'e4m3'} {{{sums}}}, %rd4, %rd5, 0, 1, 1",
        "wgmma.commit_group.sync.aligned", "wgmma.wait_group.sync.aligned 0", "st.global.f32 [%rd2], %f1",
    )  # fmt: skip
    return text.replace(".reg .b64", ".reg .f32 \t%f<9>;\n\t.reg .b64").replace("sm_120a", "sm_90a")


SWIZZLED, ROWS, LEADING = 1 << 62, 64 << 32, 1 << 16


def test_how_far_columns_are_apart_counts_only_where_lines_are_not_swizzled() -> None:
    sound = multiplies(SWIZZLED | ROWS | LEADING, SWIZZLED | ROWS | LEADING)
    for leading in (0, 2 << 16, 0x3FFF << 16):
        for pair in ((leading, LEADING), (LEADING, leading), (leading, leading)):
            assert same_kernel(sound, multiplies(*(SWIZZLED | ROWS | each for each in pair))) is not None
    for word in (ROWS | LEADING, SWIZZLED | LEADING, SWIZZLED | ROWS | LEADING | 1 << 14, SWIZZLED | ROWS | 1 << 30):
        assert same_kernel(sound, multiplies(word, SWIZZLED | ROWS | LEADING)) is None
    plain = [multiplies(ROWS | each, ROWS | LEADING) for each in (LEADING, 0)]
    assert same_kernel(*plain) is None
