"""What `__threadfence()` by all threads of many blocks costs under a schedule."""

from __future__ import annotations

import numpy as np
import pytest
from support.ptx_kernel import text

from refmoe import ptx
from refmoe.ptx.engine.order.knowledge import Knowledge, Pool

BODY = """
    mul.wide.u32 %d3, %r2, 4; add.s64 %d3, %d3, %d0;
    st.global.u32 [%d3], %r1;
    fence.sc.gpu;
    bar.sync 0;
    setp.ne.u32 %p1, %r1, 0;
    @%p1 ret;
    atom.global.add.u32 %r5, [%d1], 1;
    ret;
"""
BLOCKS, WARPS = 48, 2


@pytest.mark.parametrize("schedule", [1, 3])
def test_a_fence_looks_a_few_times_at_what_came_before(schedule: int, monkeypatch: pytest.MonkeyPatch) -> None:
    # What all fences know grows with the grid: a fence that joined it with its own older versions took that long each.
    joined = 0
    join = Pool.join

    def counted(self: Pool, one: Knowledge | None, other: Knowledge | None) -> Knowledge | None:
        nonlocal joined
        joined += one is not None and other is not None and one is not other
        return join(self, one, other)

    monkeypatch.setattr(Pool, "join", counted)
    threads = 32 * WARPS
    out, count = np.zeros(BLOCKS * threads, np.uint32), np.zeros(1, np.uint32)
    module = ptx.Module.parse(text(BODY), name="test.ptx")
    ptx.launch(module, "k", (BLOCKS, 1, 1), (threads, 1, 1), [out, count, 0], schedule=schedule)
    assert count.tolist() == [BLOCKS]
    assert joined <= 4 * BLOCKS * WARPS
