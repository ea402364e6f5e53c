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
