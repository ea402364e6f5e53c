"""Which lanes store, and which lane an exchange reads, where that is of no account; and near misses."""

from __future__ import annotations

import pytest

from refmoe.mutation.proofs import bounds
from refmoe.mutation.proofs.bounds import HostBounds
from refmoe.mutation.proofs.equality import same_kernel
from tests.mutation.test_proofs import result, small

#: A lane loads a number of its own, and takes the place of its group of eight.
HEAD = (
    "mov.u32 %r7, %tid.x", "mul.wide.u32 %rd3, %r7, 4", "add.s64 %rd4, %rd1, %rd3", "ld.global.nc.u32 %r1, [%rd4]",
    "shr.u32 %r8, %r7, 3", "mul.wide.u32 %rd3, %r8, 4", "add.s64 %rd5, %rd2, %rd3", "and.b32 %r9, %r7, 7",
)  # fmt: skip
GROUP = tuple(
    line
    for step in (4, 2, 1)
    for line in (f"shfl.sync.bfly.b32 %r2, %r1, {step}, 31, -1", "max.u32 %r1, %r1, %r2")
)  # fmt: skip
FIRST = ("setp.eq.u32 %p1, %r9, 0",)
STORE = ("@%p1 st.global.u32 [%rd5], %r1",)


def stores(
    guard: str, *, head: tuple[str, ...] = HEAD, group: tuple[str, ...] = GROUP, end: tuple[str, ...] = STORE
) -> str:
    return small(*head, *group, *(each.strip() for each in guard.split(";")), *end)


def replaced(lines: tuple[str, ...], before: str, after: str) -> tuple[str, ...]:
    assert any(before in each for each in lines)
    return tuple(each.replace(before, after) for each in lines)


OTHERS = [
    "setp.ne.u32 %p1, %r9, 0", "setp.eq.u32 %p1, %r9, 5", "setp.lt.u32 %p1, %r9, 3", "setp.eq.u32 %p1, %r7, %r7",
    "and.b32 %r9, %r7, 6; setp.eq.u32 %p1, %r9, 0",
]  # fmt: skip


@pytest.mark.parametrize("guard", OTHERS)
def test_another_lane_of_a_group_stores_the_same(guard: str) -> None:
    one, other = stores(FIRST[0]), stores(guard)
    assert result(one, 5) == result(other, 5)
    assert same_kernel(one, other) is not None
    assert same_kernel(other, one) is not None


@pytest.mark.parametrize(
    "guard",
    [
        "setp.eq.u32 %p1, %r9, 8",  # nobody
        "and.b32 %r9, %r7, 15; setp.eq.u32 %p1, %r9, 0",  # of every other group
        "setp.lt.u32 %p1, %r7, 32",  # of the first warp
        "setp.eq.u32 %p1, %r7, 5",
    ],
)
def test_a_group_of_which_nobody_stores_is_seen(guard: str) -> None:
    one, other = stores(FIRST[0]), stores(guard)
    assert result(one, 5) != result(other, 5)
    assert same_kernel(one, other) is None
    assert same_kernel(other, one) is None


@pytest.mark.parametrize(
    ("before", "after"),
    [
        ("%r1, 1, 31, -1", "%r1, 8, 31, -1"),  # neighbours have exchanged nothing
        ("max.u32", "sub.s32"),
        ("bfly", "down"),
        ("%r2, %r1, 1,", "%r2, %r7, 1,"),  # of another number than its own
        ("%r1, 1, 31, -1", "%r1, 1, 7199, -1"),  # parts of a warp of four lanes
        ("max.u32 %r1, %r1, %r2", "max.u32 %r1, %r7, %r2"),
    ],
)
def test_lanes_that_hold_different_values_are_told_apart(before: str, after: str) -> None:
    group = replaced(GROUP, before, after)
    one, other = stores(FIRST[0], group=group), stores("setp.eq.u32 %p1, %r9, 5", group=group)
    assert same_kernel(one, one) is not None
    assert same_kernel(one, other) is None


def test_places_that_differ_are_told_apart() -> None:
    head = replaced(HEAD, "shr.u32 %r8, %r7, 3", "shr.u32 %r8, %r7, 2")
    one, other = (stores(guard, head=head) for guard in (FIRST[0], "setp.eq.u32 %p1, %r9, 5"))
    assert result(one, 5) != result(other, 5)
    assert same_kernel(one, other) is None
    # The first four lanes of eight have one place.
    assert same_kernel(one, stores("setp.eq.u32 %p1, %r9, 3", head=head)) is None


@pytest.mark.parametrize(
    ("least", "proven"), [("16", True), ("13", False), ("%r3", False)]
)  # fmt: skip
def test_lanes_that_have_left_store_nothing(least: str, proven: bool) -> None:
    def text(lane: int) -> str:
        leave = ("ld.param.u32 %r3, [kernel_param_2]", f"setp.lt.u32 %p2, %r7, {least}", "@%p2 bra LEFT")
        made = small(*HEAD, *GROUP, *leave, f"setp.eq.u32 %p1, %r9, {lane}", "@%p1 bra STORE", "bra LEFT", "NAME")
        return made.replace("\tNAME;\n", "STORE:\n\tst.global.u32 [%rd5], %r1;\n").replace("\tret;", "LEFT:\n\tret;")

    assert (result(text(0), 13) == result(text(7), 13)) is proven
    assert (same_kernel(text(0), text(7)) is not None) is proven


@pytest.mark.parametrize(
    ("behind", "proven"),
    [
        ("st.global.u32 [%rd5+64], %r7", True),
        ("st.global.u32 [%rd5+2], %r7", False),  # over what was stored
        ("st.global.u32 [%rd5], %r7", False),
        ("ld.global.u32 %r1, [%rd5]", False),
        ("ld.global.u32 %r1, [%rd2+512]", False),
        ("ld.global.nc.u32 %r1, [%rd4]", True),  # of what no kernel writes
        ("ld.global.u32 %r1, [%rd4]", False),  # of another array, which may lie where the first one does
        ("membar.gl", False),
        ("red.global.add.u32 [%rd5], 1", False),
    ],
)
def test_what_else_touches_the_array_is_asked(behind: str, proven: bool) -> None:
    one, other = (stores(guard, end=(*STORE, behind)) for guard in (FIRST[0], "setp.eq.u32 %p1, %r9, 5"))
    assert (same_kernel(one, other) is not None) is proven


def test_arrays_that_lie_apart_may_be_read(monkeypatch: pytest.MonkeyPatch) -> None:
    end = (*STORE, "ld.global.u32 %r1, [%rd4]", "ld.global.u32 %r1, [PLACE]")
    for place, apart, proven in (("%rd4", True, True), ("%rd4", False, False), ("%rd5", True, False)):
        monkeypatch.setattr(bounds, "BOUNDS", {"kernel": HostBounds({}, apart=apart)})
        one, other = (stores(guard, end=replaced(end, "PLACE", place)) for guard in (FIRST[0], OTHERS[1]))
        assert (same_kernel(one, other) is not None) is proven


def test_a_place_that_is_stored_to_again_by_another_lane_is_a_race_that_the_executor_reports() -> None:
    """What a proof takes for granted of the sound kernel shows in a mutant that runs: here it stores in two rounds."""
    again = ("add.s32 %r3, %r1, 1", "setp.eq.u32 %p2, %r9, LANE", "@%p2 st.global.u32 [%rd5], %r3")
    one, other = (stores(FIRST[0], end=replaced((*STORE, *again), "LANE", lane)) for lane in ("0", "5"))
    assert len(result(one, 5)) > 100
    assert result(other, 5) == b"RaceError"
    assert same_kernel(one, other) is None
    # The same place in each round of a loop, of which the expressions tell.
    rounds = ("mov.u32 %r4, 0", "NAME", "add.s32 %r4, %r4, 1", "setp.lt.u32 %p2, %r4, 2", "@%p2 bra ROUND")
    two = [
        stores(guard, end=(*rounds[:2], "add.s32 %r5, %r1, %r4", "@%p1 st.global.u32 [%rd5], %r5", *rounds[2:]))
        .replace("\tNAME;", "ROUND:")
        for guard in (FIRST[0], OTHERS[1])
    ]  # fmt: skip
    assert same_kernel(two[0], two[0]) is not None
    assert same_kernel(two[0], two[1]) is None


def shared(lane: int, before: str, behind: str) -> str:
    lines = (before, f"setp.eq.u32 %p1, %r9, {lane}", "mov.u32 %r3, held", "mad.lo.s32 %r3, %r8, 4, %r3")
    end = ("@%p1 st.shared.u32 [%r3], %r1", behind, "ld.shared.u32 %r4, [%r3]", "st.global.u32 [%rd5+64], %r4")
    text = small(*HEAD, *GROUP, *lines, *end)
    return text.replace("\tmov.u32 %r7", "\t.shared .align 4 .b8 held[32];\n\tmov.u32 %r7", 1)


def test_shared_memory_needs_a_barrier_behind_and_before() -> None:
    assert same_kernel(shared(0, "bar.sync 0", "bar.sync 0"), shared(5, "bar.sync 0", "bar.sync 0")) is not None
    assert same_kernel(shared(0, "bar.sync 0", "bar.warp.sync -1"), shared(5, "bar.sync 0", "bar.warp.sync -1")) is None
    assert same_kernel(shared(0, "bar.sync 0", "bar.sync 0, 32"), shared(5, "bar.sync 0", "bar.sync 0, 32")) is None
    early = "ld.shared.u32 %r6, [held]"
    assert same_kernel(shared(0, early, "bar.sync 0"), shared(5, early, "bar.sync 0")) is None


def test_a_number_below_a_multiple_is_so_in_a_whole_group(monkeypatch: pytest.MonkeyPatch) -> None:
    lines = (
        "ld.param.u32 %r3, [kernel_param_2]",
        "setp.lt.u32 %p2, %r7, %r3",
        "mov.u32 %r4, 0",
        "@%p2 mov.u32 %r4, %r1",
    )
    end = ("and.pred %p1, %p1, %p2", "@%p1 st.global.u32 [%rd5], %r1")
    one, other = (stores(guard, end=(*lines, *end)) for guard in (FIRST[0], "setp.eq.u32 %p1, %r9, 5"))
    assert result(one, 16) == result(other, 16)
    assert result(one, 13) != result(other, 13)
    assert same_kernel(one, other) is None
    for multiple, proven in ((4, False), (8, True)):
        monkeypatch.setattr(bounds, "BOUNDS", {"kernel": HostBounds({}, multiples={2: multiple})})
        assert (same_kernel(one, other) is not None) is proven


EXCHANGES = [
    ("shr.u32 %r3, %r7, 5", "idx.b32 %r2, %r3, 0, 31, -1", "idx.b32 %r2, %r3, 7, 31, -1", True),
    ("shr.u32 %r3, %r7, 5", "idx.b32 %r2, %r3, 0, 31, -1", "bfly.b32 %r2, %r3, 1, 31, -1", True),
    ("mov.u32 %r3, 5", "bfly.b32 %r2, %r3, 4, 31, -1", "idx.b32 %r2, %r3, 1, 31, -1", True),
    ("shr.u32 %r3, %r7, 4", "idx.b32 %r2, %r3, 0, 31, -1", "idx.b32 %r2, %r3, 16, 31, -1", False),
    ("shr.u32 %r3, %r7, 4", "idx.b32 %r2, %r3, 0, 31, -1", "bfly.b32 %r2, %r3, 16, 31, -1", False),
    ("mov.u32 %r3, %r1", "idx.b32 %r2, %r3, 29, 31, -1", "idx.b32 %r2, %r3, 29, 30, -1", True),
    ("mov.u32 %r3, %r1", "idx.b32 %r2, %r3, 29, 31, -1", "idx.b32 %r2, %r3, 29, 28, -1", False),
    ("mov.u32 %r3, %r1", "idx.b32 %r2, %r3, %r9, 31, -1", "idx.b32 %r2, %r3, %r9, 6, -1", False),
    ("mov.u32 %r3, %r1", "idx.b32 %r2, %r3, %r9, 31, -1", "idx.b32 %r2, %r3, %r9, 7, -1", True),
]  # fmt: skip


@pytest.mark.parametrize(("made", "before", "after", "proven"), EXCHANGES)
def test_an_exchange_whose_lanes_offer_one_value_may_read_any(made: str, before: str, after: str, proven: bool) -> None:
    end = (
        "add.s64 %rd5, %rd2, %rd3",
        "mul.wide.u32 %rd3, %r7, 4",
        "add.s64 %rd5, %rd2, %rd3",
        "st.global.u32 [%rd5], %r2",
    )
    one, other = (small(*HEAD, made, f"shfl.sync.{each}", *end) for each in (before, after))
    assert (result(one, 5) == result(other, 5)) is proven
    assert (same_kernel(one, other) is not None) is proven


@pytest.mark.parametrize("apart", [True, False])
@pytest.mark.parametrize(
    ("held", "proven"),
    [
        ({0: (64, 0, 2**31 - 1)}, True),
        ({0: (64, 0, 2**32 - 1)}, True),
        ({0: (64, 0, 2**32)}, False),
        ({0: (64, -1, 5)}, False),
        ({1: (64, 0, 5)}, False),  # of the other array
        ({0: (32, 0, 5)}, False),
        ({}, False),
    ],
)
def test_an_offset_is_all_in_its_lower_half(
    held: dict[int, tuple[int, int, int]], proven: bool, apart: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(bounds, "BOUNDS", {"kernel": HostBounds({}, holds=held, apart=apart)})
    body = ("mul.wide.u32 %rd3, %r7, 8", "add.s64 %rd4, %rd1, %rd3", "WIDE %rd6, [%rd4]", "shr.u64 %rd7, %rd6, 16")
    text = small("mov.u32 %r7, %tid.x", *body, "cvt.u32.u64 %r1, %rd7", "st.global.u32 [%rd2], %r1")
    one, other = (text.replace("WIDE", opcode) for opcode in ("ld.global.u64", "ld.global.u32"))
    assert (same_kernel(one, other) is not None) is (proven and apart)
    assert same_kernel(one, text.replace("WIDE", "ld.global.u16")) is None
    assert same_kernel(other, one) is None


#: A warp's number as the compiler writes it, of the lane that stores, and of any lane.
WARPS = ("mov.u32 %r7, %tid.x", "and.b32 %r9, %r7, 31", "redux.sync.max.u32 %r1, %r7, -1")


def of_warps(guard: str, place: str, word: str = "%r1") -> str:
    ends = ("cvt.u64.u32 %rd3, %r8", "add.s64 %rd5, %rd2, %rd3", f"@%p1 st.global.u32 [%rd5], {word}")
    return small(*WARPS, f"setp.{guard}.s32 %p1, %r9, 0", *(each.strip() for each in place.split(";")), *ends)


def test_another_lane_may_write_its_place_in_another_way() -> None:
    """Where the first lane stores, its number over eight is that of its warp times four."""
    pytest.importorskip("z3")
    sound, any_lane = of_warps("eq", "shr.u32 %r8, %r7, 3"), "shr.u32 %r8, %r7, 3; and.b32 %r8, %r8, 124"
    assert result(sound, 5) == result(of_warps("ne", any_lane), 5)
    assert same_kernel(sound, of_warps("ne", any_lane)) is not None
    assert same_kernel(of_warps("ne", any_lane), sound) is not None
    assert same_kernel(sound, of_warps("ne", any_lane.replace("124", "120"))) is None
    assert same_kernel(sound, of_warps("ne", any_lane, "%r7")) is None
    assert same_kernel(of_warps("eq", "shr.u32 %r8, %r7, 3", "%r7"), of_warps("ne", any_lane, "%r7")) is None
    assert same_kernel(sound, of_warps("ne", any_lane.replace("124", "127"))) is None


@pytest.mark.parametrize(("opcode", "mask", "proven"), [
    ("or", 65535, True), ("and", 65535, True), ("or", 65534, False), ("and", 65534, False), ("or", 131071, False),
])  # fmt: skip
def test_bits_that_no_lane_offers_are_in_no_union(opcode: str, mask: int, proven: bool) -> None:
    def text(*cut: str) -> str:
        union = f"redux.sync.{opcode}.b32 %r1, %r1, -1"
        lines = (f"and.b32 %r1, %r1, {mask}", "or.b32 %r1, %r1, 1", union, *cut, "st.global.u32 [%rd5], %r1")
        return small(*HEAD, *lines)

    changed = "and.b32 %r1, %r1, 65535" if mask != 65534 else "and.b32 %r1, %r1, 65533"
    assert (same_kernel(text(), text(changed)) is not None) is proven
