"""A convolution as an implicit GEMM for sm_90a, through the real compiler: im2col loads in, an im2col store out."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from support.ptx_kernel import compile_cuda

from refmoe import ptx

SOURCE = r"""
#include <cstdint>
#include <cuda.h>
constexpr int C = 8, K = 4, PIXELS = 64, STAGES = 2;
__device__ inline uint32_t addr(const void *p) { return (uint32_t)__cvta_generic_to_shared(p); }
__device__ inline void wait(uint64_t *bar, uint32_t parity) {
  asm volatile(
      "{\n.reg .pred p;\nL: mbarrier.try_wait.parity.shared::cta.b64 p, [%0], %1;\n@p bra D;\nbra L;\nD:\n}\n"
      ::"r"(addr(bar)), "r"(parity)
      : "memory");
}
__device__ inline void load(const CUtensorMap *map, void *to, uint64_t *bar, int w, int h, int n, int s, int r) {
  asm volatile("mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;" ::"r"(addr(bar)), "r"(PIXELS * C * 4));
  asm volatile(
      "cp.async.bulk.tensor.4d.shared::cluster.global.im2col.mbarrier::complete_tx::bytes"
      " [%0], [%1, {%3, %4, %5, %6}], [%2], {%7, %8};"
      ::"r"(addr(to)), "l"(map), "r"(addr(bar)), "r"(0), "r"(w), "r"(h), "r"(n), "h"((uint16_t)s), "h"((uint16_t)r)
      : "memory");
}
__device__ inline void store(const CUtensorMap *map, const void *from, int w, int h, int n) {
  asm volatile("fence.proxy.async.shared::cta;" ::: "memory");
  __syncthreads();
  if (threadIdx.x == 0) {
    asm volatile("cp.async.bulk.tensor.4d.global.shared::cta.im2col_no_offs.bulk_group [%0, {%2, %3, %4, %5}], [%1];"
      ::"l"(map), "r"(addr(from)), "r"(0), "r"(w), "r"(h), "r"(n) : "memory");
    asm volatile("cp.async.bulk.commit_group;\ncp.async.bulk.wait_group 0;" ::: "memory");
  }
}
// One block makes PIXELS positions of the output: p x q of them an image, of 3 x 3 filters at a padding of 1.
extern "C" __global__ void __launch_bounds__(PIXELS) conv(
    const __grid_constant__ CUtensorMap in, const __grid_constant__ CUtensorMap out, const float *filters, int p, int q,
    int stride) {
  __shared__ alignas(128) float column[STAGES][PIXELS][C];
  __shared__ alignas(128) float sums[PIXELS][K];
  __shared__ alignas(8) uint64_t full[STAGES];
  int first = blockIdx.x * PIXELS, n = first / (p * q), y = first / q % p, x = first % q, t = threadIdx.x;
  if (t == 0) {
    for (int i = 0; i < STAGES; i++)
      asm volatile("mbarrier.init.shared::cta.b64 [%0], 1;" ::"r"(addr(&full[i])));
    asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory");
    for (int i = 0; i < STAGES; i++) load(&in, column[i], &full[i], x * stride - 1, y * stride - 1, n, i % 3, i / 3);
  }
  __syncthreads();
  float sum[K] = {};
  for (int i = 0; i < 9; i++) {
    int stage = i % STAGES;
    wait(&full[stage], i / STAGES & 1);
    for (int c = 0; c < C; c++)
      for (int k = 0; k < K; k++) sum[k] = __fmaf_rn(column[stage][t][c], filters[(i * C + c) * K + k], sum[k]);
    __syncthreads();
    int next = i + STAGES;
    if (t == 0 && next < 9)
      load(&in, column[stage], &full[stage], x * stride - 1, y * stride - 1, n, next % 3, next / 3);
  }
  for (int k = 0; k < K; k++) sums[t][k] = sum[k];
  store(&out, sums, x, y, n);
}
"""


@pytest.fixture(scope="module")
def conv(tmp_path_factory: pytest.TempPathFactory) -> ptx.Module:
    return compile_cuda(SOURCE, tmp_path_factory.mktemp("conv"), "sm_90a")


@pytest.mark.parametrize(("n", "h", "w", "stride"), [(2, 8, 8, 1), (3, 9, 6, 1), (3, 10, 13, 2)])
def test_an_implicit_gemm(conv: ptx.Module, n: int, h: int, w: int, stride: int) -> None:
    rng = np.random.default_rng(n * h * w)
    p, q = (h - 1) // stride + 1, (w - 1) // stride + 1
    x = rng.integers(-4, 5, (n, h, w, 8)).astype(np.float32)
    filters = rng.integers(-3, 4, (3, 3, 8, 4)).astype(np.float32)
    y = np.full((n, p, q, 4), 77, np.float32)
    memory = ptx.DeviceMemory()
    source, target = memory.place(ptx.Buffer(x, "x", writable=False)), memory.place(ptx.Buffer(y, "y"))
    # A filter reaches two positions further than its first element, and may leave the image by one.
    padded = ptx.encode_tensor_map_im2col(
        source, "f32", (8, w, h, n), (32, 32 * w, 32 * w * h), (-1, -1), (-1, -1), 8, 64, (1, stride, stride, 1)
    )
    plain = ptx.encode_tensor_map_im2col(target, "f32", (4, q, p, n), (16, 16 * q, 16 * q * p), (0, 0), (0, 0), 4, 64)
    blocks = -(-n * p * q // 64)
    ptx.launch(conv, "conv", (blocks, 1, 1), (64, 1, 1), [padded, plain, filters, p, q, stride], memory=memory)
    around = np.pad(x, ((0, 0), (1, 1), (1, 1), (0, 0)))
    for image, row, column in np.ndindex(n, p, q):
        window = around[image, row * stride :, column * stride :][:3, :3]
        assert (np.einsum("rsc,rsck->k", window, filters) == y[image, row, column]).all()


def test_without_its_proxy_fence(tmp_path: Path) -> None:
    memory = ptx.DeviceMemory()
    x, y = np.zeros((1, 8, 8, 8), np.float32), np.zeros((1, 8, 8, 4), np.float32)
    maps = [
        ptx.encode_tensor_map_im2col(
            memory.place(ptx.Buffer(array, name)), "f32", (c, 8, 8, 1), (4 * c, 32 * c, 256 * c), corner, corner, c, 64
        )
        for array, name, c, corner in ((x, "x", 8, (-1, -1)), (y, "y", 4, (0, 0)))
    ]
    text = SOURCE.replace('asm volatile("fence.proxy.async.shared::cta;" ::: "memory");', "")
    assert text != SOURCE
    module = compile_cuda(text, tmp_path, "sm_90a")
    with pytest.raises(ptx.RaceError, match="proxy race"):
        ptx.launch(module, "conv", (1, 1, 1), (64, 1, 1), [*maps, np.zeros(288, np.float32), 8, 8, 1], memory=memory)
