"""Findings about kernels that nvcc compiled: both source lines are named, and the change makes them clean."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from support.ptx_kernel import compile_cuda
from support.selection.thinned import thinned

from refmoe import ptx

EXCHANGE = """
extern "C" __global__ void k(unsigned* out, unsigned* in) {
    __shared__ unsigned tile[64];
    tile[threadIdx.x ^ 33] = 0;
    __syncthreads();
    tile[threadIdx.x] = in[threadIdx.x];
    /*order*/
    out[threadIdx.x] = tile[threadIdx.x ^ 33];
}
"""
WARP = EXCHANGE.replace("33", "1")
LOOP = """
extern "C" __global__ void k(unsigned* out, unsigned* in) {
    __shared__ unsigned tile[64];
    unsigned sum = 0;
    #pragma unroll 1
    for (int step = 0; step < 5; step++) {
        tile[threadIdx.x] = in[threadIdx.x] + step;
        __syncthreads();
        sum += tile[63 - threadIdx.x];
        /*order*/
    }
    out[threadIdx.x] = sum;
}
"""
LAST_BLOCK = """
__device__ unsigned count;
extern "C" __global__ void k(unsigned* out, unsigned* in) {
    __shared__ bool last;
    if (threadIdx.x == 0) {
        in[blockIdx.x] = blockIdx.x + 7;
        /*order*/
        last = atomicAdd(&count, 1) == gridDim.x - 1;
    }
    __syncthreads();
    if (last && threadIdx.x == 0) {
        /*order*/
        unsigned sum = 0;
        for (unsigned i = 0; i < gridDim.x; i++) sum += in[i];
        out[0] = sum;
    }
}
"""
FLAG = """
extern "C" __global__ void k(unsigned* out, unsigned* in) {
    volatile unsigned* flag = in + 32;
    if (threadIdx.x) return;
    if (blockIdx.x == 0) {
        in[0] = 42;
        __threadfence/*scope*/();
        *flag = 1;
    } else {
        while (*flag == 0) {}
        __threadfence();
        out[blockIdx.x] = in[0];
    }
}
"""
PIPELINE = """
#include <cuda_pipeline.h>
extern "C" __global__ void k(unsigned* out, unsigned* in) {
    __shared__ __align__(16) unsigned tile[64];
    __pipeline_memcpy_async(&tile[threadIdx.x], &in[threadIdx.x], 4);
    __pipeline_commit();
    __pipeline_wait_prior(0);
    /*order*/
    out[threadIdx.x] = tile[threadIdx.x ^ 33];
}
"""
RESTRICT = """
extern "C" __global__ void k(unsigned* out, unsigned* in) {
    out[threadIdx.x + 64] = threadIdx.x;
    __syncthreads();
    out[threadIdx.x] = /*load*/(&out[threadIdx.x + 64]);
}
static __device__ unsigned plain(const unsigned* p) { return *p; }
"""
DEPENDENT = """
extern "C" __global__ void k(unsigned* out, unsigned* in) {
    /*order*/
    out[threadIdx.x] = in[threadIdx.x] + 1;
}
"""
CLUSTER = """
#include <cooperative_groups.h>
namespace cg = cooperative_groups;
extern "C" __global__ void __cluster_dims__(2, 1, 1) k(unsigned* out, unsigned* in) {
    __shared__ unsigned tile[64];
    cg::cluster_group cluster = cg::this_cluster();
    tile[threadIdx.x] = blockIdx.x * 100 + threadIdx.x;
    cluster.sync();
    out[blockIdx.x * 64 + threadIdx.x] = cluster.map_shared_rank(tile, cluster.block_rank() ^ 1)[threadIdx.x];
    /*order*/
}
"""


def launch(source: str, folder: Path, grid: int, **options) -> tuple[ptx.Module, np.ndarray]:
    module = compile_cuda(source, folder)
    return run(module, grid, **options)


def run(module: ptx.Module, grid: int, **options) -> tuple[ptx.Module, np.ndarray]:
    out, data = np.zeros(256, np.uint32), np.zeros(256, np.uint32)
    ptx.launch(module, "k", (grid, 1, 1), (64, 1, 1), [out, data], step_budget=20_000, **options)
    return module, out


ROWS = {
    "block": (EXCHANGE, "/*order*/", "", "__syncthreads();", "write-read", "bar.sync 0", 1, {}),
    "warp": (WARP, "/*order*/", "", "__syncwarp();", "write-read", "__syncwarp()", 1, {}),
    "loop": (LOOP, "/*order*/", "", "__syncthreads();", "read-write", "bar.sync 0", 1, {}),
    "last block": (LAST_BLOCK, "/*order*/", "", "__threadfence();", "write-read", "__threadfence()", 3, {}),
    "scope": (FLAG, "/*scope*/", "_block", "", "write-read", "membar.gl", 2, {}),
    "pipeline": (PIPELINE, "/*order*/", "", "__syncthreads();", "write-read", "bar.sync 0", 1, {}),
    "non-coherent": (RESTRICT, "/*load*/", "__ldg", "*", "non-coherent", "a plain ld.global", 1, {}),
    "dependent": (DEPENDENT, "/*order*/", "", "cudaGridDependencySynchronize();", "previous grid",
                  "griddepcontrol.wait", 1, {"previous_grid_writes": ["argument 1"]}),
    "exit": (CLUSTER, "/*order*/", "", "cluster.sync();", "exit", "cluster.sync()", 2, {}),
}  # fmt: skip


@pytest.mark.parametrize("name", thinned(ROWS, 6))
def test_a_kernel_of_nvcc(name: str, tmp_path: Path) -> None:
    source, place, racy, mended, kind, remedy, grid, options = ROWS[name]
    bad = source.replace(place, racy)
    with pytest.raises(ptx.RaceError) as caught:
        launch(bad, tmp_path, grid, **options)
    race = caught.value
    assert race.kind == kind
    finding = race.finding
    assert finding is not None
    assert remedy in finding.remedy
    assert finding.tried
    assert finding.clean
    for side in (finding.later, finding.earlier):
        if side is None:
            assert kind == "previous grid"
        elif side.kind != "exit" and "cuda_pipeline" not in str(side.source):
            assert side.source is not None
            assert side.source.rpartition(":")[0].endswith((".cu", ".h", ".hpp"))
    module = ptx.Module.parse(finding.edited, name="kernel.ptx")
    _, out = run(module, grid, **options)
    _, expected = launch(source.replace(place, mended), tmp_path, grid, **options)
    np.testing.assert_array_equal(out, expected)
    assert expected.any() or name in ("block", "warp", "pipeline")


def test_the_source_lines_of_both(tmp_path: Path) -> None:
    with pytest.raises(ptx.RaceError) as caught:
        launch(EXCHANGE, tmp_path, 1)
    finding = caught.value.finding
    assert finding is not None
    assert finding.earlier is not None
    lines = EXCHANGE.splitlines()
    for side, words in ((finding.later, "tile[threadIdx.x ^ 33]"), (finding.earlier, "tile[threadIdx.x] =")):
        assert side.source is not None
        assert words in lines[int(side.source.rpartition(":")[2]) - 1]
