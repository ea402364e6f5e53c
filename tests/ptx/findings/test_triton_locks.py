"""A lock as Triton's kernels have it: `tl.atomic_cas` takes it, `tl.atomic_xchg` gives it back, plain accesses between.

One thread issues each atomic, `.acq_rel.gpu`, and hands what it got to the block through shared memory and a barrier.
An atomic whose result nobody uses has no barrier beside it. So the block has to meet (`tl.debug_barrier()`) before it
gives the lock back, and before one thread overwrites what all have read.
"""

from __future__ import annotations

import numpy as np
import pytest
from support.selection.thinned import thinned

from refmoe import ptx

# As in Triton's layer norm: whoever comes first stores its part, the others add theirs; `count` says who is first.
TEXT = """
.version 8.4
.target sm_90a
.address_size 64
.extern .shared .align 16 .b8 global_smem[];
.visible .entry k(.param .u64 sums, .param .u64 lock, .param .u64 count)
.reqntid 128, 1, 1
{{
    .reg .pred %p<4>; .reg .b32 %r<24>; .reg .b64 %rd<8>;
    ld.param.u64 %rd1, [sums]; ld.param.u64 %rd2, [lock]; ld.param.u64 %rd3, [count];
    mov.u32 %r1, %tid.x; mul.wide.u32 %rd4, %r1, 4; add.s64 %rd5, %rd1, %rd4;
    setp.eq.s32 %p1, %r1, 0;
    mov.b32 %r2, 0; mov.b32 %r3, 1;
    mov.u32 %r20, global_smem;
TAKE:
    bar.sync 0;
    @%p1 atom.global.acq_rel.gpu.cas.b32 %r4, [%rd2 + 0], %r2, %r3;
    @%p1 st.shared.b32 [%r20 + 0], %r4;
    bar.sync 0;
    ld.shared.b32 %r5, [%r20];
    setp.eq.s32 %p2, %r5, 1;
    @%p2 bra TAKE;
    ld.global.b32 {{ %r8 }}, [%rd3 + 0];
    {meets_before_count}
    setp.ne.s32 %p3, %r8, 0;
    mov.b32 %r6, 0;
    @%p3 bra ADD;
    @%p1 atom.global.gpu.acq_rel.exch.b32 %r9, [%rd3 + 0], %r3;
    bra.uni STORE;
ADD:
    ld.global.b32 {{ %r6 }}, [%rd5 + 0];
STORE:
    add.s32 %r7, %r6, 1;
    st.global.b32 [%rd5 + 0], {{ %r7 }};
    {meets_before_release}
    @%p1 atom.global.gpu.acq_rel.exch.b32 %r10, [%rd2 + 0], %r2;
    ret;
}}
"""
MEETS = "bar.sync 0;"
BLOCKS = 4


def launch(before_count: str = MEETS, before_release: str = MEETS, **options: object) -> np.ndarray:
    text = TEXT.format(meets_before_count=before_count, meets_before_release=before_release)
    sums, lock, count = np.zeros(128, np.uint32), np.zeros(1, np.uint32), np.zeros(1, np.uint32)
    ptx.launch(
        ptx.Module.parse(text, "triton.ptx"), "k", (BLOCKS, 1, 1), (128, 1, 1), [sums, lock, count], 16,
        step_budget=100_000, **options,
    )  # fmt: skip
    return sums


def test_a_lock_around_which_the_block_meets_is_clean() -> None:
    assert launch(schedules=8).tolist() == [BLOCKS] * 128


@pytest.mark.parametrize("schedule", thinned([0, 1, 5], 3))
def test_a_lock_that_one_thread_gives_back_before_the_others_have_stored(schedule: int) -> None:
    with pytest.raises(ptx.RaceError) as caught:
        launch(before_release="", schedule=schedule)
    finding = caught.value.finding
    assert finding is not None
    assert (caught.value.kind, finding.section, finding.clean) == ("write-read", "one-thread-for-others", True)
    store = next(number for number, line in enumerate(TEXT.splitlines(), 1) if "st.global.b32" in line)
    assert finding.remedy == f"__syncthreads() (bar.sync 0) after line {store}"


def test_a_count_that_one_thread_overwrites_before_the_others_have_read_it() -> None:
    with pytest.raises(ptx.RaceError) as caught:
        launch(before_count="")
    finding = caught.value.finding
    assert finding is not None
    assert (caught.value.kind, caught.value.buffer, finding.clean) == ("read-write", "argument 2", True)
    # A strong load of the count could see either value: what is missing is an order.
    assert finding.orders
    assert finding.remedy.startswith("__syncthreads() (bar.sync 0) before line")
