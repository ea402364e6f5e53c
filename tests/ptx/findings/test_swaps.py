"""A compare-and-swap of a whole warp beside a plain read: it races if a lane finds its value, and so writes."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from support.ptx_kernel import compile_cuda

from refmoe import ptx

GLOBAL = """
extern "C" __global__ void k(int* word, int* out) {{
    if (blockIdx.x == 0) out[threadIdx.x] = atomicCAS(word, {compare}, 9);
    else out[32 + threadIdx.x] = *word;
}}
"""
SHARED = """
extern "C" __global__ void k(int* word, int* out) {{
    __shared__ int copy;
    if (threadIdx.x == 0) copy = *word;
    __syncthreads();
    if (threadIdx.x < 32) out[threadIdx.x] = atomicCAS(&copy, {compare}, 9);
    else out[threadIdx.x] = copy;
}}
"""
#: What each lane compares with the word, which is 0; whether some lane writes.
COMPARES = [("5", False), ("0", True), ("threadIdx.x", True), ("threadIdx.x + 1", False), ("31 - threadIdx.x", True)]


@pytest.mark.parametrize("schedules", [1, 6])
@pytest.mark.parametrize(("compare", "writes"), COMPARES)
@pytest.mark.parametrize(("source", "grid", "block"), [(GLOBAL, 2, 32), (SHARED, 1, 64)])
def test_a_swap_races_with_a_read_if_it_writes(
    source: str, grid: int, block: int, compare: str, writes: bool, schedules: int, tmp_path: Path
) -> None:
    module = compile_cuda(source.format(compare=compare), tmp_path)
    word, out = np.zeros(1, np.int32), np.zeros(64, np.int32)

    def launch() -> None:
        checks = ptx.Checks(explain=False, strict=True)
        ptx.launch(module, "k", (grid, 1, 1), (block, 1, 1), [word, out], schedules=schedules, checks=checks)

    if writes:
        with pytest.raises(ptx.RaceError, match="race"):
            launch()
    else:
        launch()
        assert not out.any()


#: A flag beside the word, which makes it open what the swaps of other lanes read.
FLAGGED = """
extern "C" __global__ void k(int* word, int* out) {
    if (threadIdx.x == 0) out[64] = *(volatile int*)(word + 1);
    for (int turn = 0; turn < 3; turn++) atomicCAS(word, 5 + turn, 9);
    int seen = 0, found;
    while ((found = atomicCAS(word, seen, seen + 1)) != seen) seen = found;
}
"""


@pytest.mark.parametrize("schedule", range(6))
def test_lanes_none_of_which_writes(schedule: int, tmp_path: Path) -> None:
    word, out = np.zeros(2, np.int32), np.zeros(65, np.int32)
    module = compile_cuda(FLAGGED, tmp_path)
    ptx.launch(module, "k", (2, 1, 1), (160, 1, 1), [word, out], schedule=ptx.Schedule(schedule))
    assert word.tolist() == [320, 0]
