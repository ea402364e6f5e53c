"""What is proven where values may differ, but where nobody asks for them; and near misses."""

from __future__ import annotations

import pytest

from refmoe.mutation.proofs import bounds
from refmoe.mutation.proofs.bounds import HostBounds
from refmoe.mutation.proofs.equality import same_kernel
from tests.mutation.test_proofs import result, small

#: A lane loads a number of its own, and has a place of its own.
HEAD = (
    "mov.u32 %r7, %tid.x", "mul.wide.u32 %rd3, %r7, 4", "add.s64 %rd4, %rd1, %rd3", "add.s64 %rd5, %rd2, %rd3",
)  # fmt: skip


def lines(*body: str) -> str:
    """A kernel of some lines; one that ends in a colon is a label."""
    text = small(*HEAD, *(part.strip() for each in body for part in each.split(";")))
    return "\n".join(each[1:-1] if each.endswith(":;") else each for each in text.splitlines()) + "\n"


def same(one: str, other: str) -> bool:
    """Whether two texts are proven to be one kernel, in either order alike; what is proven computes the same."""
    found = [same_kernel(one, other) is not None, same_kernel(other, one) is not None]
    assert found[0] == found[1]
    assert not found[0] or all(result(one, number) == result(other, number) for number in (0, 5, 40))
    return found[0]


HALVES = (
    "ld.param.u32 %r8, [kernel_param_2]; setp.lt.s32 %p1, %r8, 4; @%p1 bra NEAR",
    "ld.global.L1::no_allocate.u32 %r1, [%rd4]; bra BEHIND",
    "NEAR:; add.s64 %rd6, %rd4, 0; ld.global.nc.u32 %r1, [%rd6]",
    "BEHIND:; st.global.u32 [%rd5], %r1",
)


@pytest.mark.parametrize(
    ("before", "after", "proven"),
    [
        ("setp.lt.s32 %p1, %r8, 4", "setp.ge.s32 %p1, %r8, 4", True),
        ("setp.lt.s32 %p1, %r8, 4", "setp.lt.s32 %p1, %r8, 5", True),
        ("@%p1 bra NEAR", "@!%p1 bra NEAR", True),
        ("%rd4, 0", "%rd4, 4", False),  # another place
        ("ld.global.nc.u32 %r1, [%rd6]", "ld.global.nc.u32 %r2, [%rd6]", False),  # into another register
        ("ld.global.nc.u32", "ld.volatile.global.u32", False),
        ("ld.global.nc.u32", "ld.global.nc.u16", False),
    ],
)
def test_which_of_two_loads_of_one_place_runs_is_of_no_account(before: str, after: str, proven: bool) -> None:
    one = lines(*HALVES)
    turned = one.replace("@%p1 bra NEAR", "@!%p1 bra NEAR")
    assert one.count(before) == 1
    if proven:
        assert same(one, one.replace(before, after))
    else:
        # The branch is turned round where the loads are two.
        other = one.replace(before, after)
        assert not same(other, turned.replace(before, after))
        assert not same(one, other)


def test_a_store_between_two_loads_of_one_place_is_seen() -> None:
    text = lines(
        "ld.param.u32 %r8, [kernel_param_2]; setp.lt.s32 %p1, %r8, 4; mov.u32 %r1, 0; @%p1 ld.global.u32 %r1, [%rd5]",
        "st.global.u32 [%rd5], %r7; @!%p1 ld.global.u32 %r1, [%rd5]; st.global.u32 [%rd5], %r1",
    )
    other = text.replace("@%p1 ld", "@%p3 ld").replace("@!%p1 ld", "@!%p3 ld")
    other = other.replace("mov.u32 %r1, 0;", "not.pred %p3, %p1;\n\tmov.u32 %r1, 0;")
    assert result(text, 0) != result(other, 0)
    assert not same(text, other)


@pytest.mark.parametrize(
    ("store", "proven"), [("st.global.u16", True), ("st.global.u8", True), ("st.global.u32", False)]
)
def test_of_a_narrow_store_the_lowest_bits_count(store: str, proven: bool) -> None:
    body = "ld.global.u32 %r1, [%rd4]; cvt.rn.bf16x2.f32 %r3, UPPER, %r1"
    one, other = (lines(body.replace("UPPER", upper), f"{store} [%rd5], %r3") for upper in ("0f00000000", "0f3F800000"))
    assert (result(one, 5) == result(other, 5)) is proven
    assert same(one, other) is proven


#: The largest number of eight lanes, of which those past an end have one that nobody asks for.
GROUP = (
    "setp.lt.s32 %p1, %r7, END; mov.u32 %r1, OUTSIDE; @%p1 ld.global.nc.u32 %r1, [%rd4]; and.b32 %r1, %r1, 65535",
    "shfl.sync.bfly.b32 %r2, %r1, FIRST, 31, -1; max.u32 %r1, %r1, %r2",
    "shfl.sync.bfly.b32 %r2, %r1, 2, 31, -1; max.u32 %r1, %r1, %r2",
    "shfl.sync.bfly.b32 %r2, %r1, 1, 31, -1; max.u32 %r1, %r1, %r2",
    "STORE",
)
INSIDE = "@%p1 st.global.u32 [%rd5], %r1"
LOOP = (
    "mov.u32 %r4, 0; ROUND:; @%p1 st.global.u32 [%rd5], %r1; add.s64 %rd5, %rd5, 256; add.s32 %r4, %r4, 1; "
    "setp.lt.u32 %p2, %r4, 3; @%p2 bra ROUND"
)
BRANCH = "@!%p1 bra LEFT; st.global.u32 [%rd5], %r1; LEFT:; bar.sync 0"


def grouped(outside: str, end: str, first: str, store: str) -> str:
    words = {"OUTSIDE": outside, "END": end, "FIRST": first, "STORE": store}
    body = list(GROUP)
    for word, text in words.items():
        body = [each.replace(word, text) for each in body]
    return lines(*body)


@pytest.mark.parametrize(
    ("end", "first", "store", "proven"),
    [
        ("40", "4", INSIDE, True),
        ("40", "4", LOOP, True),
        ("40", "4", BRANCH, True),
        ("41", "4", INSIDE, False),  # a group of which some lanes are inside
        ("40", "8", INSIDE, False),  # of a lane of the next group
        ("48", "8", INSIDE, True),
        ("40", "4", "st.global.u32 [%rd5], %r1", False),
        ("40", "4", "@!%p1 st.global.u32 [%rd5], %r1", False),
        ("40", "4", "setp.lt.s32 %p2, %r7, 48; @%p2 st.global.u32 [%rd5], %r1", False),
        ("40", "4", "setp.lt.u32 %p2, %r1, 5; @%p2 bra LEFT; st.global.u32 [%rd5], 7; LEFT:; bar.sync 0", False),
        # All that a lane may have is below 66000, whatever those outside have.
        ("40", "4", "setp.lt.u32 %p2, %r1, 66000; @%p2 bra LEFT; st.global.u32 [%rd5], 7; LEFT:; bar.sync 0", True),
        ("40", "4", "mov.u32 %r4, %r1; " + LOOP.replace("add.s64", "setp.lt.s32 %p1, %r7, 64; add.s64"), False),
    ],
)
def test_what_lanes_outside_have_stays_among_them(end: str, first: str, store: str, proven: bool) -> None:
    one, other = (grouped(outside, end, first, store) for outside in ("0", "9"))
    assert same(one, other) is proven
    assert same_kernel(one, one) is not None


@pytest.mark.parametrize(
    ("leave", "proven"),
    [
        ("setp.eq.s32 %p1, %r2, -1", True),
        ("setp.lt.s32 %p1, %r2, 0", True),
        ("setp.eq.s32 %p1, %r2, 0", False),  # another number
        ("setp.ne.s32 %p1, %r2, -1", False),  # where it is negative
        ("setp.eq.s32 %p1, %r3, -1", False),  # of another one
        ("setp.eq.s32 %p1, %r2, 254", False),
    ],
)
def test_a_number_that_a_branch_has_taken_out(leave: str, proven: bool) -> None:
    body = (
        "ld.global.u32 %r1, [%rd4]; and.b32 %r3, %r1, 255; sub.s32 %r2, %r3, 1",
        f"{leave}; @%p1 bra LEFT; WIDE %rd6, %r2; shr.u64 %rd7, %rd6, 4; cvt.u32.u64 %r4, %rd7",
        "add.s32 %r4, %r4, 9; st.global.u32 [%rd5], %r4; LEFT:; bar.sync 0",
    )
    one, other = (lines(*(each.replace("WIDE", wide) for each in body)) for wide in ("cvt.s64.s32", "cvt.u64.u32"))
    assert same(one, other) is proven


def test_what_holds_in_one_round_is_not_taken_for_the_next() -> None:
    """The predicate is of this round; what is carried on was computed in the one before, under another."""
    body = (
        "mov.u32 %r1, 3; mov.u32 %r2, 0; mov.u32 %r3, 0; ROUND:; setp.eq.u32 %p1, %r2, 1",
        "@%p1 mov.u32 %r3, %r1; mov.u32 %r1, OTHER; @!%p1 mov.u32 %r1, 5; add.s32 %r2, %r2, 1",
        "setp.lt.u32 %p2, %r2, 3; @%p2 bra ROUND; st.global.u32 [%rd5], %r3",
    )
    texts = [lines(*(each.replace("OTHER", other) for each in body)) for other in ("6", "7")]
    assert same(*texts) is (result(texts[0], 5) == result(texts[1], 5) and same_kernel(*texts) is not None)
    late = [text.replace("setp.eq.u32 %p1, %r2, 1", "setp.ge.u32 %p1, %r2, 1") for text in texts]
    assert result(late[0], 5) != result(late[1], 5)
    assert not same(*late)


@pytest.mark.parametrize(("least", "proven"), [({2: 1}, True), ({2: 0}, False), ({1: 1}, False)])
def test_what_a_loop_without_a_round_gives_is_asked_by_nobody_if_there_is_one(
    least: dict[int, int], proven: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(bounds, "BOUNDS", {"kernel": HostBounds({}, least=least)})
    body = (
        "ld.param.u32 %r8, [kernel_param_2]; mov.u32 %r1, NOTHING; setp.lt.s32 %p1, %r8, 1; @%p1 bra BEHIND",
        "mov.u32 %r1, 0; ROUND:; add.s32 %r1, %r1, %r7; sub.s32 %r8, %r8, 1; setp.gt.s32 %p2, %r8, 0; @%p2 bra ROUND",
        "BEHIND:; st.global.u32 [%rd5], %r1",
    )
    one, other = (lines(*(each.replace("NOTHING", word) for each in body)) for word in ("0", "1"))
    assert result(one, 5) == result(other, 5)
    assert result(one, 0) != result(other, 0)
    assert (same_kernel(one, other) is not None) is proven


@pytest.mark.parametrize(
    ("made", "gives", "proven"),
    [
        ("and.b32 %r2, %r1, 65535", "shfl.sync.bfly.b32 %r3, %r2, 1, 31, -1", True),
        ("and.b32 %r2, %r1, 65535", "shfl.sync.down.b32 %r3, %r2, 1, 31, -1", True),
        ("and.b32 %r2, %r1, 65535", "redux.sync.add.s32 %r3, %r2, -1", True),
        ("and.b32 %r2, %r1, 65535", "redux.sync.max.u32 %r3, %r2, -1", True),
        ("mov.u32 %r2, %r1", "shfl.sync.bfly.b32 %r3, %r2, 1, 31, -1", False),
        ("mov.u32 %r2, %r1", "redux.sync.max.u32 %r3, %r2, -1", False),
        ("and.b32 %r2, %r1, 134217727", "redux.sync.add.s32 %r3, %r2, -1", False),  # 32 of them pass 2^31
    ],
)
def test_what_an_exchange_gives_is_within_what_lanes_offer(made: str, gives: str, proven: bool) -> None:
    body = ("ld.global.u32 %r1, [%rd4]", made, gives, "SHIFT %r4, %r3, 1", "st.global.u32 [%rd5], %r4")
    one, other = (lines(*(each.replace("SHIFT", shift) for each in body)) for shift in ("shr.u32", "shr.s32"))
    assert same(one, other) is proven


@pytest.mark.parametrize(
    ("wide", "cut", "proven"), [("cvt.s64.s32", "cvt.u32.u64", True), ("cvt.s64.s32", "cvt.u32.u16", False)]
)
def test_a_word_that_is_made_longer_and_cut_again_is_the_word(wide: str, cut: str, proven: bool) -> None:
    narrow = "cvt.u16.u64 %rs1, %rd6" if cut.endswith("u16") else "mov.u32 %r9, 0"
    source = "%rs1" if cut.endswith("u16") else "%rd6"
    one = lines(
        "ld.global.u32 %r1, [%rd4]", f"{wide} %rd6, %r1", narrow, f"{cut} %r3, {source}", "st.global.u32 [%rd5], %r3"
    )
    other = lines("ld.global.u32 %r1, [%rd4]", "st.global.u32 [%rd5], %r1")
    assert same(one, other) is proven
