"""Whole synchronisation patterns, compiled by nvcc: right results, and no alarm from any check."""

from __future__ import annotations

import numpy as np
import pytest
from support.ptx_kernel import compile_cuda
from support.selection.thinned import thinned

from refmoe import ptx

SCAN = r"""
extern "C" __global__ void k(int* out, const int* in) {
    __shared__ int sums[32];
    int t = threadIdx.x, lane = t & 31, warp = t >> 5, v = in[blockIdx.x * blockDim.x + t];
    for (int d = 1; d < 32; d <<= 1) { int o = __shfl_up_sync(~0u, v, d); if (lane >= d) v += o; }
    if (lane == 31) sums[warp] = v;
    __syncthreads();
    if (warp == 0) {
        int s = sums[lane];
        for (int d = 1; d < 32; d <<= 1) { int o = __shfl_up_sync(~0u, s, d); if (lane >= d) s += o; }
        sums[lane] = s;
    }
    __syncthreads();
    if (warp) v += sums[warp - 1];
    out[blockIdx.x * blockDim.x + t] = v;
}
"""

GRID_BARRIER = r"""
__device__ unsigned count;
__device__ volatile unsigned generation;
__device__ void grid_sync() {
    __syncthreads();
    if (threadIdx.x == 0) {
        unsigned g = generation;
        __threadfence();
        if (atomicAdd(&count, 1) == gridDim.x - 1) { count = 0; __threadfence(); generation = g + 1; }
        else while (generation == g);
        __threadfence();
    }
    __syncthreads();
}
extern "C" __global__ void k(float* a, float* b, int steps) {
    int i = blockIdx.x * blockDim.x + threadIdx.x, n = gridDim.x * blockDim.x;
    for (int s = 0; s < steps; ++s) {
        float *x = s & 1 ? b : a, *y = s & 1 ? a : b;
        y[i] = x[i] + x[(i + 1) % n] * 0.5f;
        grid_sync();
    }
}
"""

LOCK = r"""
extern "C" __global__ void k(int* counter, int* lock, int n) {
    for (int i = 0; i < n; ++i) {
        bool done = false;
        while (!done)
            if (atomicCAS(lock, 0, 1) == 0) {
                __threadfence();
                *(volatile int*)counter = *(volatile int*)counter + 1;
                __threadfence();
                atomicExch(lock, 0);
                done = true;
            }
    }
}
"""

COMPACTION = r"""
extern "C" __global__ void k(int* out, const int* in, int n) {
    int i = blockIdx.x * blockDim.x + threadIdx.x, lane = threadIdx.x & 31;
    if (i < n && (in[i] & 1)) {
        unsigned m = __activemask();
        int leader = __ffs(m) - 1, old;
        if (lane == leader) old = atomicAdd(out, __popc(m));
        old = __shfl_sync(m, old, leader);
        out[1 + old + __popc(m & ((1u << lane) - 1))] = i;
    }
}
"""


@pytest.fixture(params=thinned([24576, 64, 200], 2))
def chunk(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> int:
    monkeypatch.setattr("refmoe.ptx.launcher.LANES_AT_ONCE", request.param)
    return int(request.param)


def test_block_scan(tmp_path, chunk: int) -> None:
    x = np.random.default_rng(7).integers(0, 100, (3, 1024)).astype(np.int32)
    out = np.zeros_like(x)
    ptx.launch(compile_cuda(SCAN, tmp_path), "k", (3, 1, 1), (1024, 1, 1), [out, x])
    np.testing.assert_array_equal(out, x.cumsum(axis=1))


def test_grid_barrier(tmp_path, chunk: int) -> None:
    # With small chunks blocks wait for blocks that have not started yet.
    a = np.random.default_rng(8).standard_normal(256).astype(np.float32)
    expected = a
    for _ in range(5):
        expected = expected + np.roll(expected, -1) * np.float32(0.5)
    b = np.zeros_like(a)
    ptx.launch(compile_cuda(GRID_BARRIER, tmp_path), "k", (4, 1, 1), (64, 1, 1), [a, b, 5])
    assert b.tobytes() == expected.tobytes()


def test_grid_barrier_left_out(tmp_path) -> None:
    source = GRID_BARRIER.replace("        grid_sync();\n    }\n}", "        __syncthreads();\n    }\n}")
    module = compile_cuda(source, tmp_path)
    with pytest.raises(ptx.RaceError) as caught:
        ptx.launch(module, "k", (4, 1, 1), (64, 1, 1), [np.zeros(256, np.float32), np.ones(256, np.float32), 5])
    assert caught.value.block != caught.value.other_block


def test_lock_taken_by_every_lane(tmp_path, chunk: int) -> None:
    counter = np.zeros(1, np.int32)
    ptx.launch(compile_cuda(LOCK, tmp_path), "k", (2, 1, 1), (40, 1, 1), [counter, np.zeros(1, np.int32), 2])
    assert counter[0] == 160


def test_warp_aggregated_compaction(tmp_path, chunk: int) -> None:
    source = np.random.default_rng(9).integers(0, 9, 300).astype(np.int32)
    out = np.zeros(400, np.int32)
    ptx.launch(compile_cuda(COMPACTION, tmp_path), "k", (3, 1, 1), (128, 1, 1), [out, source, 300])
    kept = np.flatnonzero(source & 1)
    assert out[0] == kept.size
    np.testing.assert_array_equal(np.sort(out[1 : 1 + kept.size]), kept)
