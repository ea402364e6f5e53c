"""A ring of stages filled by asynchronous copies, as nvcc compiles it: right as it stands, and never without a part."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from support.ptx_kernel import compile_cuda
from support.selection.thinned import thinned

from refmoe import ptx

STEPS, BLOCKS, TILE = 8, 3, 128

# Warp 0 fills three stages, warps 1 and 2 read them: each thread its own element, and one of the other warp's share.
RING = r"""
#include <cstdint>
constexpr int kStages = 3, kTile = 128;
__device__ __forceinline__ void init(uint32_t b, int n) {
    asm volatile("mbarrier.init.shared.b64 [%0], %1;" ::"r"(b), "r"(n) : "memory");
}
__device__ __forceinline__ void arrive(uint32_t b) {
    asm volatile("{ .reg .b64 s; mbarrier.arrive.shared.b64 s, [%0]; }" ::"r"(b) : "memory");
}
__device__ __forceinline__ void wait(uint32_t b, uint32_t p) {
    asm volatile("{\n .reg .pred P;\nL:\n mbarrier.try_wait.parity.shared.b64 P, [%0], %1;\n @P bra D;\n bra L;\nD:\n}"
                 ::"r"(b), "r"(p) : "memory");
}
extern "C" __global__ void k(uint32_t* out, const uint32_t* in, uint32_t steps) {
    __shared__ __align__(16) uint32_t ring[kStages][kTile];
    __shared__ uint64_t bars[2 * kStages];
    uint32_t full = (uint32_t)__cvta_generic_to_shared(bars), empty = full + 8 * kStages;
    int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
    if (threadIdx.x == 0) for (int s = 0; s < kStages; s++) { init(full + 8 * s, 32); init(empty + 8 * s, 2); }
    <meet>
    if (warp == 0) {
        for (uint32_t i = 0; i < steps; i++) {
            uint32_t s = i % kStages, p = i / kStages & 1;
            <wait for empty>
            uint32_t to = (uint32_t)__cvta_generic_to_shared(&ring[s][lane * 4]);
            const uint32_t* from = in + (blockIdx.x * steps + i) * kTile + lane * 4;
            asm volatile("cp.async.cg.shared.global [%0], [%1], 16;" ::"r"(to), "l"(from) : "memory");
            <announce full>
            (void)p;
        }
    } else {
        uint32_t sum = 0;
        for (uint32_t i = 0; i < steps; i++) {
            uint32_t s = i % kStages, p = i / kStages & 1;
            <wait for full>
            sum = sum * 3 + ring[s][threadIdx.x - 32] + ring[s][64 + (threadIdx.x + 7) % 64];
            <meet in warp>
            <arrive at empty>
            (void)p;
        }
        out[blockIdx.x * 64 + threadIdx.x - 32] = sum;
    }
}
"""
PARTS = {
    "<meet>": "__syncthreads();",
    "<wait for empty>": "wait(empty + 8 * s, p ^ 1);",
    "<announce full>": """
            asm volatile("cp.async.mbarrier.arrive.noinc.shared.b64 [%0];" ::"r"(full + 8 * s) : "memory");""",
    "<wait for full>": "wait(full + 8 * s, p);",
    "<meet in warp>": "__syncwarp();",
    "<arrive at empty>": "if (lane == 0) arrive(empty + 8 * s);",
}


def run_ring(folder: Path, **change: str) -> tuple[np.ndarray, np.ndarray]:
    """(result, expected) of the kernel with some of its parts changed."""
    source = RING
    for name, text in PARTS.items():
        source = source.replace(name, change.get(name, text))
    module = compile_cuda(source, folder)
    data = np.random.default_rng(0).integers(0, 1 << 31, (BLOCKS, STEPS, TILE)).astype(np.uint32)
    out = np.zeros((BLOCKS, 64), np.uint32)
    arguments = [ptx.Buffer(out, "out", initialised=False), ptx.Buffer(data, "in", writable=False), STEPS]
    ptx.launch(module, "k", (BLOCKS, 1, 1), (96, 1, 1), arguments, step_budget=100_000)
    thread = np.arange(64)
    expected = np.zeros_like(out)
    for step in range(STEPS):
        # The reading thread is 32 + `thread`.
        expected = expected * np.uint32(3) + data[:, step, thread] + data[:, step, 64 + (thread + 39) % 64]
    return out, expected


def test_the_ring_is_right(tmp_path: Path) -> None:
    np.testing.assert_array_equal(*run_ring(tmp_path))


@pytest.mark.parametrize(
    ("part", "instead", "error"),
    thinned(
        [
            ("<meet>", "", ptx.RaceError),
            ("<wait for empty>", "", ptx.RaceError),
            ("<announce full>", "", ptx.Deadlock),
            ("<wait for full>", "", ptx.MemoryFault),
            ("<meet in warp>", "", ptx.RaceError),
            ("<arrive at empty>", "", ptx.Deadlock),
            # An arrival that does not wait for the copies.
            ("<announce full>", "arrive(full + 8 * s);", ptx.MemoryFault),
            # The parity of the wrong round: passes when it should wait.
            ("<wait for empty>", "wait(empty + 8 * s, p);", ptx.PtxError),
            ("<wait for full>", "wait(full + 8 * s, p ^ 1);", ptx.PtxError),
            # The stage before, which is complete but for the first.
            ("<wait for full>", "wait(full + 8 * ((i + 2) % kStages), (i + 2) / kStages - 1 & 1);", ptx.PtxError),
        ],
        3,
    ),
)
def test_no_part_can_be_left_out(tmp_path: Path, part: str, instead: str, error: type[Exception]) -> None:
    with pytest.raises(error):
        run_ring(tmp_path, **{part: instead})
