"""Launches of more warps than take single steps: schedules order whole warps, branches and parts of warps."""

from __future__ import annotations

import numpy as np
import pytest
from support.ptx_kernel import text
from support.schedules.bodies import BRANCHES, POLL

from refmoe import ptx
from refmoe.ptx.engine.thread_steps import MOST_WARPS

BLOCKS = MOST_WARPS + 1
# Only the first block does something: the others are there so that no thread takes single steps.
ONLY_THE_FIRST = "setp.ne.u32 %p31, %r60, 0; @%p31 exit;\n"


def seen(body: str, size: int, block: int = 32, schedules: int = 40, **scopes: str) -> set[tuple[int, ...]]:
    """What the first block leaves in the output under so many schedules."""
    module, found = ptx.Module.parse(text(ONLY_THE_FIRST + body, **scopes), name="test.ptx"), set()
    for schedule in range(schedules):
        out, given = np.zeros(size, np.uint32), np.zeros(1, np.uint32)
        ptx.launch(
            module, "k", (BLOCKS, 1, 1), (block, 1, 1), [out, given, 0], checks=ptx.Checks(races=False),
            step_budget=20_000, schedule=schedule,
        )  # fmt: skip
        found.add(tuple(out.tolist()))
    return found


def test_which_branch_comes_first() -> None:
    assert seen(BRANCHES, 1) == {(1,), (2,)}


def test_atomics_of_one_instruction_come_in_any_order() -> None:
    found = seen("atom.global.add.u32 %r4, [%d1], 1; st.global.u32 [%d2], %r4; ret;", 32)
    assert all(sorted(each) == list(range(32)) for each in found)
    # Parts of a warp that run apart are few: most of these are orders of one instruction.
    assert len(found) > 8
    assert tuple(range(31, -1, -1)) in found


def test_any_strong_store_of_one_instruction_may_be_the_last() -> None:
    found = seen("st.relaxed.gpu.global.u32 [%d0], %r1; ret;", 1)
    assert {(0,), (31,)} <= found
    assert len(found) > 3


# The one that the others wait for is at their own instruction.
POLL_BY_ATOMIC = """
    setp.eq.u32 %p1, %r1, {producer};
    selp.u32 %r4, 1, 0, %p1;
L:
    atom.global.or.b32 %r5, [%d1], %r4;
    setp.eq.u32 %p2, %r5, 0;
    @%p2 bra L;
    st.global.u32 [%d2], %r5;
    ret;
"""


@pytest.mark.parametrize("producer", [0, 31, 63])
@pytest.mark.parametrize("body", [POLL, POLL_BY_ATOMIC], ids=["load", "atomic"])
def test_nobody_starves(body: str, producer: int) -> None:
    assert seen(body.format(producer=producer), 64, block=64, schedules=16) == {(1,) * 64}


def test_lanes_that_lock_each_other_out_go_on() -> None:
    body = """
    TAKE:
        atom.global.cas.b32 %r4, [%d1], 0, 1;
        setp.ne.u32 %p1, %r4, 0;
        @%p1 bra TAKE;
        membar.gl;
        ld.global.u32 %r5, [%d0]; add.u32 %r5, %r5, 1; st.global.u32 [%d0], %r5;
        membar.gl;
        atom.global.exch.b32 %r4, [%d1], 0;
        ret;
    """
    assert seen(body, 1, schedules=16) == {(32,)}
