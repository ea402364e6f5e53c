"""A vector that is polled is as many strong loads as it has elements, each of which sees in the end what was stored."""

from __future__ import annotations

import numpy as np
import pytest
from support.ptx_kernel import text

from refmoe import ptx

# Each lane of block 0 stores the elements one by one, and a lane of block 1 polls all of them.
ELEMENTS = """
    mul.wide.u32 %d3, %r1, 16; add.u64 %d3, %d3, %d1;
    setp.ne.u32 %p1, %r60, 0;
    @%p1 bra POLL;
    {stores}
    ret;
POLL:
    ld.volatile.global.{vector} {{ {registers} }}, [%d3];
    setp.ne.u32 %p2, %r{last}, 1;
    @%p2 bra POLL;
    mul.wide.u32 %d4, %r1, 4; add.u64 %d4, %d4, %d0;
    st.global.u32 [%d4], %r{last};
    ret;
"""


@pytest.mark.parametrize("count", [2, 4])
def test_who_polls_a_vector_sees_the_element_that_is_stored_by_itself(count: int) -> None:
    body = ELEMENTS.format(
        stores=" ".join(f"st.volatile.global.u32 [%d3+{4 * each}], 1;" for each in range(count)),
        vector=f"v{count}.u32", registers=", ".join(f"%r{10 + each}" for each in range(count)), last=9 + count,
    )  # fmt: skip
    out, given = np.zeros(32, np.uint32), np.zeros(128, np.uint32)
    module = ptx.Module.parse(text(body))
    ptx.launch(module, "k", (2, 1, 1), (32, 1, 1), [out, given, 0], step_budget=100_000, schedules=12)
    assert out.tolist() == [1] * 32
