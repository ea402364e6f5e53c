"""A flag that is polled with plain loads: the compiler makes two of the one in the loop, and both have to be strong."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from support.ptx_kernel import compile_cuda

from refmoe import ptx

SOURCE = """
extern "C" __global__ void k(int* flag, int* data, int* out) {{
    if (threadIdx.x) return;
    if (blockIdx.x == 1) {{ data[0] = 42; __threadfence(); {signal}; }}
    else {{
        while (*flag == 0) {{ asm volatile("" ::: "memory"); }}
        __threadfence();
        out[0] = data[0];
    }}
}}
"""


@pytest.mark.parametrize("signal", ["atomicExch(flag, 1)", "flag[0] = 1"])
def test_both_loads_of_a_loop_that_was_turned_are_made_strong(signal: str, tmp_path: Path) -> None:
    module = compile_cuda(SOURCE.format(signal=signal), tmp_path)
    arrays = [np.zeros(1, np.int32) for _ in range(3)]
    with pytest.raises(ptx.RaceError) as caught:
        ptx.launch(module, "k", (2, 1, 1), (32, 1, 1), arrays)
    (said,) = [line for line in str(caught.value).splitlines() if "what lets them come in any order" in line]
    assert said.count("ld.relaxed.gpu.global") == 2
    assert said.count("st.relaxed.gpu.global") == ("flag[0]" in signal)
    assert "tried: this launch is then without a fault" in said


RESET = """
extern "C" __global__ void k(int* count) {
    if (blockIdx.x == 0) atomicAdd(count, 1);
    else if (threadIdx.x == 0) *count = 0;
}
"""


def test_a_strong_store_in_the_place_of_a_plain_one_may_undo_an_atomic(tmp_path: Path) -> None:
    with pytest.raises(ptx.RaceError) as caught:
        ptx.launch(compile_cuda(RESET, tmp_path), "k", (2, 1, 1), (32, 1, 1), [np.zeros(1, np.int32)])
    (said,) = [line for line in str(caught.value).splitlines() if line.lstrip().startswith("what ")]
    assert "st.relaxed.gpu.global" in said
    assert "if the store may undo what an atomic of another thread has just done" in said
