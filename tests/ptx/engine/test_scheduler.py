"""Which lanes run next: turns, places, budgets, and what is counted meanwhile."""

from __future__ import annotations

from types import SimpleNamespace

import numpy as np
import pytest
from support.ptx_kernel import run, text
from support.ptx_ways import Way, ways
from support.selection.thinned import thinned

from refmoe import ptx
from refmoe.ptx import launcher
from refmoe.ptx.engine.frame import Frame
from refmoe.ptx.native.scheduler import PATIENCE

NO_RACES = ptx.Checks(races=False)

# Lane 0 runs a loop; lane %r0, which may be one of another warp, waits behind it. Both take a ticket then.
TICKETS = """
    setp.ne.u32 %p1, %r1, 0;
    setp.ne.u32 %p2, %r1, %r0;
    and.pred %p3, %p1, %p2;
    @%p3 exit;
    mov.u32 %r3, 0;
    @%p1 bra TICKET;
{loop}
TICKET:
    atom.global.add.u32 %r4, [%d1], 1;
    st.global.u32 [%d2], %r4;
    ret;
"""
COUNT = "add.u32 %r3, %r3, 1; setp.lt.u32 %p4, %r3, {trips};"
PATIENT = {
    "one block": f"L: {COUNT} @%p4 bra L;",
    "two blocks": f"L: {COUNT} @!%p4 bra TICKET; M: add.u32 %r5, %r5, 1; bra L;",
    "falls into its head": f"bra HEAD; CHECK: @!%p4 bra TICKET; HEAD: {COUNT} bra CHECK;",
    "stores": f"L: {COUNT} st.global.u32 [%d2], %r3; @%p4 bra L;",
    "ends in Python": f"L: {COUNT} membar.cta; @%p4 bra L;",
}
POLLING = {
    "ends natively": f"L: ld.volatile.global.u32 %r5, [%d1]; {COUNT} @%p4 bra L;",
    "begins natively": f"L: {COUNT} M: ld.volatile.global.u32 %r5, [%d1]; add.u32 %r6, %r5, 1; @%p4 bra L;",
    "falls into its head": f"bra HEAD; CHECK: @!%p4 bra TICKET; HEAD: ld.volatile.u32 %r5, [%d1]; {COUNT} bra CHECK;",
    "two blocks": f"L: {COUNT} ld.volatile.global.u32 %r5, [%d1]; @!%p4 bra TICKET; add.u32 %r5, %r5, 1; bra L;",
    "ends in Python": f"L: {COUNT} ld.volatile.global.u32 %r5, [%d1]; @%p4 bra L;",
    "leaves by a branch": f"L: ld.volatile.global.u32 %r5, [%d1]; {COUNT} @!%p4 bra TICKET; bra L;",
}


def tickets(loop: str, trips: int, other: int) -> list[int]:
    """The tickets of lane 0 and of the other one."""
    out = np.zeros(64, np.uint32)
    body = TICKETS.format(loop=loop.format(trips=trips))
    run(body, out, np.zeros(1, np.uint32), n=other, block=(64, 1, 1))
    return out[[0, other]].tolist()


@pytest.mark.parametrize("other", [1, 32])
@pytest.mark.parametrize("loop", PATIENT)
@pytest.mark.parametrize(
    ("trips", "expected"), thinned([(PATIENCE, [0, 1]), (PATIENCE + 1, [1, 0]), (PATIENCE + 9, [1, 0])], 3)
)
def test_a_long_loop_loses_its_turn(loop: str, other: int, trips: int, expected: list[int]) -> None:
    # A loop of n trips takes its back edge n - 1 times.
    assert tickets(PATIENT[loop], trips, other) == expected


@pytest.mark.parametrize("body", ["", "st.global.u32 [%d2], %r3;"])
def test_who_lost_a_turn_goes_on_alone(body: str) -> None:
    # Nobody else may run meanwhile, natively or in Python.
    out = np.zeros(64, np.uint32)
    loop = f"mov.u32 %r3, 0; L: {COUNT.format(trips=3 * PATIENCE)} {body} @%p4 bra L; st.global.u32 [%d2], %r3; ret;"
    run(loop, out, block=(64, 1, 1))
    assert out.tolist() == [3 * PATIENCE] * 64


@pytest.mark.parametrize("other", [1, 32])
@pytest.mark.parametrize("loop", POLLING)
@pytest.mark.parametrize(("trips", "expected"), [(1, [0, 1]), (2, [1, 0]), (3, [1, 0])])
def test_a_polling_loop_loses_its_turn_at_once(loop: str, other: int, trips: int, expected: list[int]) -> None:
    assert tickets(POLLING[loop], trips, other) == expected


def test_lanes_that_leave_a_polling_loop_keep_their_turn() -> None:
    # Lane 1 leaves the loop when lane 0 goes on: it has lost no turn, and comes first.
    loop = """
        selp.b32 %r7, 2, 1, %p1;
        sub.u32 %r7, 3, %r7;
    L:
        ld.volatile.global.u32 %r5, [%d1];
        add.u32 %r3, %r3, 1;
        setp.lt.u32 %p4, %r3, %r7;
        @%p4 bra L;
    """
    out = np.zeros(2, np.uint32)
    body = TICKETS.format(loop=loop).replace("@%p1 bra TICKET;", "")
    run(body, out, np.zeros(1, np.uint32), n=1, block=(2, 1, 1))
    assert out.tolist() == [1, 0]


@pytest.mark.parametrize("shift", [0, 5], ids=["lanes", "warps"])
@pytest.mark.parametrize("taken", [0, 1])
def test_the_lowest_place_runs_first(shift: int, taken: int) -> None:
    # The block behind the branch comes before the one that is branched to, whoever is where.
    body = f"""
        shr.u32 %r3, %r1, {shift};
        setp.gt.u32 %p1, %r3, 1;
        @%p1 exit;
        setp.eq.u32 %p2, %r3, {taken};
        @%p2 bra LATER;
        st.global.u32 [%d0], 100;
        ret;
    LATER:
        st.global.u32 [%d0], 200;
        ret;
    """
    out = np.zeros(1, np.uint32)
    run(body, out, block=(2 << shift, 1, 1), checks=NO_RACES)
    assert out.tolist() == [200]


def test_warps_store_together() -> None:
    # Warp 1 writes in the first block, warp 0 in the second, which no warp may enter before.
    body = """
        shr.u32 %r3, %r1, 5;
        setp.eq.u32 %p1, %r3, 1;
        @%p1 st.global.u32 [%d0], 1;
    SECOND:
        @!%p1 st.global.u32 [%d0], 2;
        bra.uni END;
    END:
        ret;
    """
    out = np.zeros(1, np.uint32)
    run(body, out, block=(64, 1, 1), checks=NO_RACES)
    assert out.tolist() == [2]


@pytest.mark.parametrize("before", ["", "bar.sync 0;"], ids=["at the start", "after Python's turn"])
@pytest.mark.parametrize("grid", [1, 3])
def test_warps_load_together(before: str, grid: int, monkeypatch: pytest.MonkeyPatch) -> None:
    # What warp 1 writes in the first block is there when warp 0 loads in the second.
    monkeypatch.setattr(launcher, "LANES_AT_ONCE", 64)
    body = f"""
        {before}
        shr.u32 %r3, %r1, 5;
        setp.eq.u32 %p1, %r3, 1;
        @%p1 st.global.u32 [%d1], 7;
    SECOND:
        ld.global.u32 %r4, [%d1];
    THIRD:
        st.global.u32 [%d2], %r4;
        ret;
    """
    out = np.zeros(64 * grid, np.uint32)
    run(body, out, np.zeros(1, np.uint32), block=(64, 1, 1), grid=(grid, 1, 1), checks=NO_RACES)
    assert out.tolist() == [7] * 64 * grid


def test_warps_take_turns_at_what_others_may_wait_for() -> None:
    # What warp 1 writes in the first block is there when warp 0 loads in the second.
    body = """
        shr.u32 %r3, %r1, 5;
        setp.eq.u32 %p1, %r3, 1;
        @%p1 st.relaxed.gpu.global.u32 [%d1], 7;
    SECOND:
        ld.relaxed.gpu.global.u32 %r4, [%d1];
        st.global.u32 [%d2], %r4;
        ret;
    """
    out = np.zeros(64, np.uint32)
    run(body, out, np.zeros(1, np.uint32), block=(64, 1, 1))
    assert out.tolist() == [7] * 64


def test_lanes_come_together_in_front_of_an_access() -> None:
    # Each half runs one addition and a branch or none. What stands in front of a body is 9 instructions.
    body = """
        setp.lt.u32 %p1, %r1, 16;
        @%p1 bra LOW;
        add.u32 %r3, %r1, 1;
        bra.uni JOIN;
    LOW:
        add.u32 %r3, %r1, 2;
    JOIN:
        st.global.u32 [%d2], %r3;
        bra.uni END;
    END:
        ret;
    """
    out = np.zeros(32, np.uint32)
    result = run(body, out, block=(32, 1, 1))
    lanes = np.arange(32)
    assert out.tolist() == np.where(lanes < 16, lanes + 2, lanes + 1).tolist()
    assert result.instructions == 9 + 2 + 2 + 1 + 2 + 1


# Lanes of different trip counts, in a loop that does not leave native code's own chain, and in one that does.
COUNTED = """
    and.b32 %r3, %r1, 7;
L:
    setp.ne.u32 %p1, %r3, 0;
    {store}
    sub.u32 %r3, %r3, 1;
    @%p1 bra L;
    st.global.u32 [%d2], %r3;
    ret;
"""


@pytest.mark.parametrize("at_once", [64, 128, 100000])
@pytest.mark.parametrize(("store", "length"), [("", 3), ("st.global.u32 [%d2], %r3;", 4)])
def test_what_is_counted(store: str, length: int, at_once: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(launcher, "LANES_AT_ONCE", at_once)
    result = run(COUNTED.format(store=store), np.zeros(200, np.uint32), block=(40, 1, 1), grid=(5, 1, 1))
    trips = np.arange(40) % 8 + 1
    # What stands in front of a body is 9 instructions; the loop runs once for all lanes that are still in it.
    assert result.lane_instructions == 5 * int((9 + 1 + length * trips + 2).sum())
    assert result.instructions == 5 * 2 * (9 + 1 + length * 8 + 2)


# Each trip is one native block, or one of Python's and a native one.
NATIVE_TRIPS = "L: st.global.u32 [%d2], %r3; add.u32 %r3, %r3, 1; setp.lt.u32 %p1, %r3, 20; @%p1 bra L;"
NATIVE_CHAIN = "st.global.u32 [%d2], %r3; bra.uni A; A: st.global.u32 [%d2], 1; bra.uni B; B:"
PYTHON_TRIPS = "L: red.global.add.u32 [%d1], 1; add.u32 %r3, %r3, 1; setp.lt.u32 %p1, %r3, 20; @%p1 bra L;"


@pytest.mark.parametrize("at_once", [64, 100000])
@pytest.mark.parametrize("way", ["natively", "in a chain", "in Python"])
def test_the_budget_is_that_of_one_warp(way: str, at_once: int, monkeypatch: pytest.MonkeyPatch) -> None:
    trips, steps = {
        "natively": (NATIVE_TRIPS, 1 + 20 + 2),
        "in a chain": (NATIVE_CHAIN, 2 + 2),
        "in Python": (PYTHON_TRIPS, 1 + 2 * 20 + 2),
    }[way]
    monkeypatch.setattr(launcher, "LANES_AT_ONCE", at_once)

    def launch(budget: int) -> None:
        body = f"mov.u32 %r3, 0; {trips} st.global.u32 [%d2], %r3; bra.uni END; END: ret;"
        out = np.zeros(256, np.uint32)
        run(body, out, np.zeros(1, np.uint32), block=(64, 1, 1), grid=(4, 1, 1), step_budget=budget)

    launch(steps)
    with pytest.raises(ptx.StepBudgetExceeded, match=f"more than {steps - 1} steps"):
        launch(steps - 1)


@pytest.mark.parametrize("loop", ["ends natively", "ends in Python"])
def test_a_loop_that_polls_in_vain_is_no_matter_of_the_budget(loop: str) -> None:
    body = {
        "ends natively": "L: ld.volatile.global.u32 %r3, [%d1]; setp.eq.u32 %p1, %r3, 0; @%p1 bra L; ret;",
        "ends in Python": "setp.eq.u32 %p1, %r1, %r1; L: ld.volatile.global.u32 %r3, [%d1]; @%p1 bra L; ret;",
    }[loop]
    with pytest.raises(ptx.Deadlock, match="poll memory that nothing will change"):
        run(body, np.zeros(32, np.uint32), np.zeros(1, np.uint32))


# Meetings


@ways
def test_a_lane_that_waits_for_lanes_which_name_others(way: Way) -> None:
    # Lane 0 names all lanes; the others name each other, meet, and wait for lane 0 at the barrier.
    body = """
        setp.eq.u32 %p1, %r1, 0;
        selp.b32 %r3, 0xFFFFFFFF, 0xFFFFFFFE, %p1;
        shfl.sync.bfly.b32 %r4, %r1, 0, 31, %r3;
        bar.sync 0;
        ret;
    """
    module = ptx.Module.parse(text(body), name="test.ptx")
    with pytest.raises(ptx.Deadlock) as caught:
        ptx.launch(module, "k", (1, 1, 1), (32, 1, 1), [np.zeros(32, np.uint32), None, 0], profile=way)
    assert "1 lanes, the first block (0, 0, 0) thread (0, 0, 0)" in str(caught.value)


@pytest.mark.parametrize("leave", ["ret;", "membar.cta; ret;"], ids=["natively", "in Python"])
def test_lanes_that_wait_go_on_when_the_others_have_left(leave: str) -> None:
    body = f"""
        setp.ge.u32 %p1, %r1, 20;
        @%p1 bra OUT;
        shfl.sync.bfly.b32 %r4, %r1, 1, 31, -1;
        st.global.u32 [%d2], %r4;
        ret;
    OUT:
        {leave}
    """
    out = np.zeros(32, np.uint32)
    run(body, out)
    t = np.arange(32)
    np.testing.assert_array_equal(out, np.where(t < 20, t ^ 1, 0))


@pytest.mark.parametrize("mask", ["-1", "%r7"])
@pytest.mark.parametrize("factor", [1, 2])
def test_groups_come_to_a_meeting_one_after_another(factor: int, mask: str) -> None:
    # Lanes 0, 3, .. poll once and wait at the first meeting, where the others come turns later, in two groups.
    body = f"""
        mov.u32 %r7, -1;
        mul.lo.u32 %r3, %r1, {factor};
        rem.u32 %r3, %r3, 3;
        mov.u32 %r4, %r3;
    POLL:
        ld.volatile.global.u32 %r5, [%d1];
        setp.ne.u32 %p1, %r4, 0;
        sub.u32 %r4, %r4, 1;
        @%p1 bra POLL;
        add.u32 %r8, %r1, 1;
        redux.sync.add.u32 %r6, %r3, {mask};
        add.u32 %r6, %r6, %r8;
        redux.sync.min.u32 %r6, %r6, {mask};
        st.global.u32 [%d2], %r6;
        ret;
    """
    out = np.zeros(32, np.uint32)
    run(body, out, np.zeros(1, np.uint32))
    # No shuffle: one from a lane that is not there would have the launch run again, in Python.
    assert out.tolist() == [sum(factor * lane % 3 for lane in range(32)) + 1] * 32


def test_groups_of_a_warp_go_their_own_ways_after_a_meeting() -> None:
    # Four tiles of 8 lanes meet apart. No lane takes the branch behind, and its way goes on into blocks of their own.
    body = """
        and.b32 %r3, %r1, -8;
        mov.u32 %r4, 255;
        shl.b32 %r4, %r4, %r3;
        setp.eq.u32 %p1, %r1, %r3;
        vote.sync.ballot.b32 %r5, %p1, %r4;
        setp.eq.u32 %p2, %r5, 0;
        @%p2 bra NONE;
        bra.uni SOME;
    NONE:
        mov.u32 %r6, 2;
        bra.uni END;
    SOME:
        popc.b32 %r6, %r5;
    END:
        st.global.u32 [%d2], %r6;
        ret;
    """
    out = np.zeros(32, np.uint32)
    run(body, out, np.zeros(1, np.uint32))
    assert out.tolist() == [1] * 32


def test_every_warp_has_member_masks_of_its_own() -> None:
    # All lanes of warp 0 come to the first meeting; of warp 1 the upper half goes straight to the second one, which is
    # spelled in another way: lanes that wait in vain at two alike have the launch run again.
    body = """
        setp.lt.u32 %p1, %r1, 32;
        selp.b32 %r3, -1, 0x0000FFFF, %p1;
        mov.u32 %r4, %r1;
        setp.ge.u32 %p2, %r1, 48;
        @%p2 bra ALL;
        shfl.sync.bfly.b32 %r4, %r4, 1, 31, %r3;
    ALL:
        xor.b32 %r5, %r1, 2;
        shfl.sync.idx.b32 %r4, %r4, %r5, 31, -1;
        st.global.u32 [%d2], %r4;
        ret;
    """
    out = np.zeros(64, np.uint32)
    run(body, out, block=(64, 1, 1))
    t = np.arange(64)
    np.testing.assert_array_equal(out, np.where(t < 48, t ^ 3, t ^ 2))


@pytest.mark.parametrize(
    "lanes",
    [range(32, 96), [*range(32), *range(224, 256)], [*range(16, 80)], [5], range(64), range(1, 255), range(256)],
    ids=["two warps", "two apart", "half warps", "one lane", "the first", "nearly all", "all"],
)
def test_a_frame_holds_the_registers_of_its_lanes(lanes: list[int]) -> None:
    # Of each warp the registers lie one behind the other.
    block = np.arange(8 * 96, dtype=np.uint32).reshape(8, 96)
    registers = [block[:, 32 * number : 32 * number + 32] for number in range(3)]
    mask = np.zeros(256, bool)
    mask[list(lanes)] = True
    frame = Frame.of(SimpleNamespace(lanes=256), mask)  # type: ignore[arg-type]
    which = mask if frame.index is None else np.ones(frame.count, bool)
    found = frame.get(registers, 1)
    np.testing.assert_array_equal(found[which], registers[1].reshape(-1)[mask])
    found[:] = 0
    assert registers[1].all()
    wanted = block.copy()
    wanted[:, 64:][mask.reshape(8, 32)] = np.arange(7, 7 + len(lanes))
    value = np.zeros(frame.count, np.uint32)
    value[which] = np.arange(7, 7 + len(lanes))
    frame.put(registers, 2, value)
    wanted[:, :32][mask.reshape(8, 32)] = 9
    frame.put(registers, 0, np.uint32(9))
    np.testing.assert_array_equal(block, wanted)


def test_lanes_that_wait_for_a_phase_are_not_left_out() -> None:
    # The lower half of warp 0 waits for warp 1; the sum is of all 32 lanes all the same.
    body = """
        mov.u32 %r20, word;
        setp.ne.u32 %p3, %r1, 0;
        @%p3 bra I;
        mbarrier.init.shared.b64 [%r20], 32;
    I:
        bar.sync 0;
        setp.ge.u32 %p4, %r1, 32;
        @%p4 bra W1;
        mov.u32 %r10, %r1;
        setp.ge.u32 %p1, %r1, 16;
        @%p1 bra B;
    L:
        mbarrier.try_wait.parity.shared.b64 %p2, [%r20], 0;
        @!%p2 bra L;
        add.u32 %r10, %r10, 1000;
        bra.uni J;
    B:
        add.u32 %r10, %r10, 500;
    J:
        redux.sync.add.u32 %r11, %r10, 0xffffffff;
        bra.uni END;
    END:
        st.global.u32 [%d2], %r11;
        ret;
    W1:
        mbarrier.arrive.shared.b64 _, [%r20];
        mov.u32 %r11, 7;
        st.global.u32 [%d2], %r11;
        ret;
    """
    out = np.zeros(64, np.uint32)
    run(body, out, block=(64, 1, 1), declarations=".shared .align 8 .b64 word;")
    assert out.tolist() == [sum(range(32)) + 16 * 1500] * 32 + [7] * 32
