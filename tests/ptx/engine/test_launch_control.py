"""`clusterlaunchcontrol`: blocks that cancel the launch of others and do their work.

Each block adds to the word of the block whose work it does, first its own and then those that it cancelled.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from support.ptx_kernel import text
from support.selection.thinned import thinned

from refmoe import ptx

SHARED = ".shared .align 16 .b8 answer[16]; .shared .align 8 .b64 bar; .reg .b128 %q<2>;"
TRY = "clusterlaunchcontrol.try_cancel.async.shared::cta.mbarrier::complete_tx::bytes{multicast}.b128 [answer], [bar];"
IS_CANCELLED = "clusterlaunchcontrol.query_cancel.is_canceled.pred.b128 %p2, %q0;"
FIRST = "clusterlaunchcontrol.query_cancel.get_first_ctaid.v4.b32.b128 {%r10, %r11, %r12, _}, %q0;"
# %r10, %r11, %r12: whose work it is. Thread 0 asks, all threads wait, and thread 0 of each block works.
BODY = """
    mov.u32 %r10, %ctaid.x; mov.u32 %r11, %ctaid.y; mov.u32 %r12, %ctaid.z; mov.u32 %r13, 0;
    mov.u32 %r20, %cluster_ctarank; mov.u32 %r21, %nctaid.x; mov.u32 %r22, %nctaid.y;
    setp.eq.u32 %p1, %r1, 0;
    @%p1 mbarrier.init.shared.b64 [bar], 1;
    {begin}
WORK:
    @%p1 mbarrier.arrive.expect_tx.relaxed.cta.shared::cta.b64 _, [bar], 16;
    {before}
    setp.eq.and.u32 %p4, %r20, 0, %p1;
    @%p4 {ask}
    mad.lo.u32 %r14, %r12, %r22, %r11; mad.lo.u32 %r14, %r14, %r21, %r10;
    mul.wide.u32 %d5, %r14, 4; add.s64 %d5, %d5, %d0;
    @%p1 red.global.add.u32 [%d5], 1;
    mov.u32 %r15, %ctaid.x;
    {wait}
    ld.shared.b128 %q0, [answer];
    {query}
    @!%p2 bra DONE;
    {first}
    {joined}
    xor.b32 %r13, %r13, 1;
    bra WORK;
DONE:
    {end}
    ret;
"""
WAIT = "WAIT: mbarrier.try_wait.parity.acquire.cta.shared::cta.b64 %p3, [bar], %r13; @!%p3 bra WAIT;"
ALONE = {
    "begin": "bar.sync 0;", "before": "", "ask": TRY.format(multicast=""), "wait": WAIT, "query": IS_CANCELLED,
    "first": FIRST, "joined": "fence.proxy.async.shared::cta; bar.sync 0;", "end": "",
}  # fmt: skip
CLUSTER = "barrier.cluster.arrive.aligned; barrier.cluster.wait.aligned;"
TOGETHER = {
    **ALONE,
    "begin": f"fence.mbarrier_init.release.cluster; {CLUSTER}",
    "before": CLUSTER,
    "ask": TRY.format(multicast=".multicast::cluster::all"),
    "wait": WAIT.replace("acquire.cta", "acquire.cluster"),
    # The answer names the first block of a cluster along x.
    "first": FIRST + "add.u32 %r10, %r10, %r20;",
    "joined": f"fence.proxy.async.shared::cta; {CLUSTER}",
    "end": CLUSTER,
}


def launch(
    parts: dict[str, str], grid: tuple[int, int, int], threads: int = 32, **options: Any
) -> tuple[np.ndarray, ptx.LaunchResult]:
    body = BODY
    for name, part in parts.items():
        body = body.replace(f"{{{name}}}", part)
    module = ptx.Module.parse(text(body, declarations=SHARED, target="sm_100a"), name="control.ptx")
    out = np.zeros(int(np.prod(grid)), np.uint32)
    result = ptx.launch(module, "k", grid, (threads, 1, 1), [out, None, 0], step_budget=20000, **options)
    return out, result


@pytest.mark.parametrize("grid", thinned(map(pytest.param, [(9, 1, 1), (3, 2, 2), (1, 1, 1)]), 2))
@pytest.mark.parametrize("threads", [32, 64])
def test_each_block_is_done_once_by_whomever(grid: tuple[int, int, int], threads: int) -> None:
    out, result = launch(ALONE, grid, threads, schedules=8)
    assert (out == 1).all()
    assert result.schedules == 8


@pytest.mark.parametrize("axis", "xyz")
def test_one_axis_of_the_answer(axis: str) -> None:
    grid = (5 if axis == "x" else 1, 5 if axis == "y" else 1, 5 if axis == "z" else 1)
    register = {"x": "%r10", "y": "%r11", "z": "%r12"}[axis]
    one = f"clusterlaunchcontrol.query_cancel.get_first_ctaid::{axis}.b32.b128 {register}, %q0;"
    out, _ = launch({**ALONE, "first": one}, grid, schedules=4)
    assert (out == 1).all()


def who(schedule: int) -> list[int]:
    """Blocks that do the work of nine."""
    body = ALONE["query"] + "mul.wide.u32 %d6, %r14, 4; add.s64 %d6, %d6, %d0; @%p1 st.global.u32 [%d6], %r15;"
    parts = {**ALONE, "query": body}
    module_body = BODY.replace("@%p1 red.global.add.u32 [%d5], 1;", "")
    for name, part in parts.items():
        module_body = module_body.replace(f"{{{name}}}", part)
    module = ptx.Module.parse(text(module_body, declarations=SHARED, target="sm_100a"))
    out = np.full(9, 99, np.uint32)
    ptx.launch(module, "k", (9, 1, 1), (32, 1, 1), [out, None, 0], schedule=schedule)
    return out.tolist()


def test_by_default_one_block_takes_all_that_others_have_not_begun() -> None:
    assert who(0) == [0] * 9


def test_where_all_blocks_have_started_nothing_is_left_to_cancel() -> None:
    assert who(1) == list(range(9))


def test_some_requests_are_declined_under_other_schedules() -> None:
    found = {tuple(who(schedule)) for schedule in range(2, 10)}
    assert len(found) > 1
    assert any(len(set(each)) not in (1, 9) for each in found)


@pytest.mark.parametrize("threads", [32, 64])
def test_all_blocks_of_a_cluster_get_the_answer(threads: int) -> None:
    out, _ = launch(TOGETHER, (8, 1, 1), threads, cluster=(2, 1, 1), schedules=8)
    assert (out == 1).all()


def test_without_multicast_the_other_block_waits_for_ever() -> None:
    with pytest.raises(ptx.Deadlock):
        launch({**TOGETHER, "ask": TRY.format(multicast="")}, (8, 1, 1), cluster=(2, 1, 1))


def test_blocks_that_do_not_run_are_not_cancelled() -> None:
    out, _ = launch(ALONE, (9, 1, 1), blocks=[2, 3, 7])
    assert out.tolist() == [0, 0, 1, 1, 0, 0, 0, 1, 0]


def test_an_answer_that_nobody_waited_for() -> None:
    with pytest.raises(ptx.RaceError, match=r"clusterlaunchcontrol|ld\.shared"):
        launch({**ALONE, "wait": ""}, (4, 1, 1))


def test_a_request_after_a_failure_that_was_seen() -> None:
    again = "@%p2 bra GO; @%p1 mbarrier.arrive.expect_tx.relaxed.cta.shared::cta.b64 _, [bar], 16; @%p4 " + ALONE["ask"]
    with pytest.raises(ptx.MisuseError, match="after one whose failure its cluster has seen") as caught:
        launch({**ALONE, "query": ALONE["query"] + again + "GO:"}, (3, 1, 1))
    assert caught.value.thread == (0, 0, 0)


def test_the_index_in_an_answer_that_failed_is_open() -> None:
    _, result = launch(ALONE, (3, 1, 1))
    assert [opcode for opcode, _ in result.approximate if "clusterlaunch" in opcode] == []
    _, result = launch({**ALONE, "query": ALONE["query"] + FIRST}, (3, 1, 1))
    assert [opcode for opcode, _ in result.approximate] == [FIRST.split()[0]]


@pytest.mark.parametrize(
    "instruction",
    [
        TRY.format(multicast="").replace(".async", ""),
        TRY.format(multicast=".multicast::cluster"),
        IS_CANCELLED.replace("%p2", "%r3"),
        FIRST.replace("v4", "v2"),
        FIRST.replace("%q0", "%d3"),
        FIRST.replace("get_first_ctaid", "get_first_ctaid::w"),
    ],
)
def test_other_spellings_are_unknown(instruction: str) -> None:
    with pytest.raises(ptx.UnknownOpcode):
        launch({**ALONE, "query": instruction}, (1, 1, 1))
