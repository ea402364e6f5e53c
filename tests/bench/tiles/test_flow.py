"""The flow graph of machine code: dominators, loops, and how often blocks run."""

from __future__ import annotations

import pytest

from refmoe.bench.tiles.flow import FlowError, SassLoop, blocks_of, dominators, frequencies, loops


def _text(*lines: str) -> str:
    """Machine code as nvdisasm prints it: labels end in a colon."""
    return "\n".join(
        line if line.endswith(":") else f"        /*{number:04x}*/                   {line} ;"
        for number, line in enumerate(lines)
    )


#: A loop of a copy that half of the warps skip, an inner loop that products run in, and a wait that may fail.
LOOP = _text(
    "S2R R0, SR_TID.X",
    ".L_x_0:",
    "SYNCS.PHASECHK.TRANS64.TRYWAIT P1, [UR9], R10",
    "@!P1 BRA `(.L_x_4)",
    ".L_x_1:",
    "@P0 BRA `(.L_x_2)",
    "LDGSTS.E.BYPASS.128 [R19], desc[UR14][R14.64], P2",
    ".L_x_2:",
    "LDSM.16.M88.4 R28, [R43]",
    "QMMA.SF.16832 R36, R40, R72, R36, R92, R89, URZ",
    "BRA.U UP0, `(.L_x_2)",
    "@P3 BRA `(.L_x_0)",
    "EXIT",
    ".L_x_4:",
    "SYNCS.PHASECHK.TRANS64.TRYWAIT P1, [UR9], R10",
    "@!P1 BRA `(.L_x_4)",
    "BRA `(.L_x_1)",
)


def test_blocks_end_at_branches_and_begin_at_labels() -> None:
    blocks = blocks_of(LOOP)
    assert [len(block.operations) for block in blocks] == [1, 2, 1, 1, 3, 1, 1, 2, 1]
    assert [block.successors for block in blocks] == [(1,), (7, 2), (4, 3), (4,), (4, 5), (1, 6), (), (7, 8), (2,)]
    assert [block.polls for block in blocks] == [False, True, *[False] * 5, True, False]


def test_a_block_is_dominated_by_what_no_way_goes_around() -> None:
    found = dominators([block.successors for block in blocks_of(LOOP)])
    assert found[4] == {0, 1, 2, 4}  # neither the copy nor the failed wait is on every way
    assert found[8] == {0, 1, 7, 8}
    assert dominators([(1,), (), (1,)])[2] == set()  # no way leads there


def test_loops_are_those_of_back_edges_and_the_outermost_comes_first() -> None:
    found = loops([block.successors for block in blocks_of(LOOP)])
    assert found == [SassLoop(1, (1, 2, 3, 4, 5, 7, 8)), SassLoop(4, (4,)), SassLoop(7, (7,))]


def test_a_jump_into_the_middle_of_a_circle_makes_no_loop() -> None:
    # Neither 1 nor 2 dominates the other, since 0 goes to both.
    assert loops([(1, 2), (2,), (1,)]) == []


def test_counts_of_markers_give_the_counts_of_the_other_blocks() -> None:
    blocks = blocks_of(LOOP)
    outer = loops([block.successors for block in blocks])[0]
    # Four warps: all wait once, one copies, each runs the inner loop five times.
    times, open_ = frequencies(blocks, outer, {1: 4, 3: 1, 4: 20})
    assert times == pytest.approx({1: 4, 2: 4, 3: 1, 4: 20, 5: 4, 7: 0, 8: 0})
    assert open_ == set()


def test_what_the_counts_leave_open_is_said() -> None:
    blocks = blocks_of(LOOP)
    outer = loops([block.successors for block in blocks])[0]
    times, open_ = frequencies(blocks, outer, {1: 4})
    assert {3, 4} <= open_
    assert times[2] == pytest.approx(4)
    assert 2 not in open_
    assert min(times.values()) >= -1e-6


def test_counts_that_no_flow_has_are_refused() -> None:
    blocks = blocks_of(LOOP)
    outer = loops([block.successors for block in blocks])[0]
    with pytest.raises(FlowError, match="do not fit the flow"):
        frequencies(blocks, outer, {1: 4, 2: 3})
    with pytest.raises(FlowError, match="do not fit the flow"):
        frequencies(blocks, outer, {1: 4, 3: 5})  # more copies than ways past them


def test_an_indirect_branch_goes_where_nvdisasm_says() -> None:
    blocks = blocks_of(_text(".L_x_1:", 'BRX R6 -0x10 (*"BRANCH_TARGETS .L_x_1,.L_x_2"*)', ".L_x_2:", "EXIT"))
    assert blocks[0].successors == (0, 1)
    with pytest.raises(FlowError, match="does not say where 'BRX R6 -0x10' goes"):
        blocks_of(_text("BRX R6 -0x10", "EXIT"))


def test_text_without_instructions_or_with_a_lost_label_is_refused() -> None:
    with pytest.raises(FlowError, match="found no instruction"):
        blocks_of("nothing")
    with pytest.raises(FlowError, match=r"a branch goes to \.L_x_9; needed a label of the same entry"):
        blocks_of(_text("BRA `(.L_x_9)"))
