"""A pipelined FP8 GEMM for sm_90a through the real compiler: bulk tensor copies, mbarriers, products of two warpgroups.

Of three warpgroups one copies, by one thread, and two multiply 64 rows each. A stage goes back to the copying thread by
one thread of each warpgroup, of any of its warps: having waited for a product, it has waited for all of it.
"""

from __future__ import annotations

import re

import numpy as np
import pytest
from support.ptx_kernel import cuda_ptx
from support.selection.thinned import thinned

from refmoe import ptx
from refmoe.reference.mma import tensor_core_mma

D = ", ".join(f"%{i}" for i in range(32))
TIED = ", ".join(f'"+f"(d[{i}])' for i in range(32))
SOURCE = r"""
#include <cstdint>
#include <cuda.h>
constexpr int STAGES = 3, BK = 128, BM = 128, BN = 64;
struct __align__(1024) Shared {
  uint8_t a[STAGES][BM * BK];
  uint8_t b[STAGES][BN * BK];
  uint64_t full[STAGES], empty[STAGES];
};
__device__ inline uint32_t addr(const void *p) { return (uint32_t)__cvta_generic_to_shared(p); }
__device__ inline void wait(uint64_t *bar, uint32_t parity) {
  asm volatile(
      "{\n.reg .pred p;\nL: mbarrier.try_wait.parity.shared::cta.b64 p, [%0], %1;\n@p bra D;\nbra L;\nD:\n}\n"
      ::"r"(addr(bar)), "r"(parity)
      : "memory");
}
__device__ inline void load(const CUtensorMap *map, void *to, uint64_t *bar, int x, int y) {
  asm volatile(
      "cp.async.bulk.tensor.2d.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1, {%3, %4}], [%2];"
      ::"r"(addr(to)), "l"(map), "r"(addr(bar)), "r"(x), "r"(y)
      : "memory");
}
__device__ inline uint64_t desc(const void *p) {
  return (uint64_t)((addr(p) & 0x3FFFF) >> 4) | (uint64_t)(1024 >> 4) << 32 | 1ull << 62;
}
__device__ inline void wgmma(float (&d)[32], uint64_t a, uint64_t b, int scale) {
  asm volatile("{\n.reg .pred p;\nsetp.ne.b32 p, %34, 0;\n"
    "wgmma.mma_async.sync.aligned.m64n64k32.f32.e4m3.e4m3 {@D@}, %32, %33, p, 1, 1;\n}\n"
    : @TIED@
    : "l"(a), "l"(b), "r"(scale));
}
extern "C" __global__ void __launch_bounds__(384, 1) gemm(
    const __grid_constant__ CUtensorMap ma, const __grid_constant__ CUtensorMap mb, float *c, int K, int N) {
  extern __shared__ uint8_t raw[];
  Shared &s = *(Shared *)(((uintptr_t)raw + 1023) & ~(uintptr_t)1023);
  int group = threadIdx.x / 128;
  if (threadIdx.x == 0) {
    for (int i = 0; i < STAGES; i++) {
      asm volatile("mbarrier.init.shared::cta.b64 [%0], 1;" ::"r"(addr(&s.full[i])));
      asm volatile("mbarrier.init.shared::cta.b64 [%0], 2;" ::"r"(addr(&s.empty[i])));
    }
    asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory");
    asm volatile("fence.proxy.async;" ::: "memory");
  }
  __syncthreads();
  int blocks = K / BK;
  if (group == 2) {
    asm volatile("setmaxnreg.dec.sync.aligned.u32 40;");
    if (threadIdx.x == 256) {
      for (int k = 0; k < blocks; k++) {
        int stage = k % STAGES, phase = k / STAGES & 1;
        wait(&s.empty[stage], phase ^ 1);
        asm volatile("mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;"
                     ::"r"(addr(&s.full[stage])), "r"((BM + BN) * BK) : "memory");
        load(&ma, s.a[stage], &s.full[stage], k * BK, blockIdx.x * BM);
        load(&mb, s.b[stage], &s.full[stage], k * BK, blockIdx.y * BN);
      }
    }
  } else {
    asm volatile("setmaxnreg.inc.sync.aligned.u32 232;");
    float d[32], total[32];
    for (int i = 0; i < 32; i++) total[i] = 0;
    for (int k = 0; k < blocks; k++) {
      int stage = k % STAGES, phase = k / STAGES & 1;
      wait(&s.full[stage], phase);
      asm volatile("wgmma.fence.sync.aligned;" ::: "memory");
      for (int i = 0; i < 32; i++) asm volatile("" : "+f"(d[i])::"memory");
#pragma unroll
      for (int j = 0; j < BK / 32; j++)
        wgmma(d, desc(s.a[stage] + group * 64 * BK + j * 32), desc(s.b[stage] + j * 32), j);
      asm volatile("wgmma.commit_group.sync.aligned;" ::: "memory");
      for (int i = 0; i < 32; i++) asm volatile("" : "+f"(d[i])::"memory");
      asm volatile("wgmma.wait_group.sync.aligned 0;" ::: "memory");
      for (int i = 0; i < 32; i++) asm volatile("" : "+f"(d[i])::"memory");
      // one thread of the warpgroup gives the stage back, not always of the same warp
      if (threadIdx.x % 128 == k % 4 * 32)
        asm volatile("mbarrier.arrive.shared::cta.b64 _, [%0];" ::"r"(addr(&s.empty[stage])) : "memory");
      for (int i = 0; i < 32; i++) total[i] = __fadd_rn(total[i], d[i]);
    }
    int lane = threadIdx.x % 32, warp = threadIdx.x / 32 % 4;
    for (int i = 0; i < 32; i++) {
      int row = group * 64 + warp * 16 + lane / 4 + i % 4 / 2 * 8, col = i / 4 * 8 + lane % 4 * 2 + i % 2;
      c[(blockIdx.x * BM + row) * N + blockIdx.y * BN + col] = total[i];
    }
  }
}
""".replace("@D@", D).replace("@TIED@", TIED)

STAGES, BLOCK_M, BLOCK_N, BLOCK_K = 3, 128, 64, 128
SHARED_BYTES = STAGES * (BLOCK_M + BLOCK_N) * BLOCK_K + 2048


@pytest.fixture(scope="module")
def text(tmp_path_factory: pytest.TempPathFactory) -> str:
    return cuda_ptx(SOURCE, tmp_path_factory.mktemp("pipeline"), "sm_90a")


def operand(rng: np.random.Generator, rows: int, k: int) -> np.ndarray:
    """E4M3 codes of ordinary size, with zeros, subnormals and a few NaN."""
    codes = rng.integers(0x20, 0x50, (rows, k)) | rng.integers(0, 2, (rows, k)) << 7
    codes = np.where(rng.random((rows, k)) < 0.05, rng.integers(0, 8, (rows, k)), codes)
    codes[rng.integers(0, rows), rng.integers(0, k)] = 0x7F
    return codes.astype(np.uint8)


def multiply(module: ptx.Module, a: np.ndarray, b: np.ndarray) -> np.ndarray:
    (m, k), n = a.shape, b.shape[0]
    memory = ptx.DeviceMemory()
    maps = [
        ptx.encode_tensor_map(
            memory.place(ptx.Buffer(each, name, writable=False)), "u8", (k, len(each)), (k,), (BLOCK_K, rows), (1, 1),
            swizzle="128B",
        )
        for name, each, rows in (("A", a, BLOCK_M), ("B", b, BLOCK_N))
    ]  # fmt: skip
    c = np.zeros((m, n), np.float32)
    ptx.launch(
        module, "gemm", (-(-m // BLOCK_M), n // BLOCK_N, 1), (384, 1, 1), [*maps, c, k, n],
        shared_bytes=SHARED_BYTES, memory=memory, step_budget=200_000,
    )  # fmt: skip
    return c


def expected(a: np.ndarray, b: np.ndarray) -> np.ndarray:
    total = np.zeros((len(a), len(b)), np.float32)
    for k in range(0, a.shape[1], BLOCK_K):
        here = slice(k, k + BLOCK_K)
        part = tensor_core_mma(
            a[:, here], b[:, here], np.zeros_like(total), model="sm90_wgmma_fp8", a_format="e4m3", b_format="e4m3"
        )
        total = total + part
    total.view(np.uint32)[np.isnan(total)] = 0x7FFFFFFF
    return total


def test_the_pipeline_computes_what_the_reference_does(text: str) -> None:
    kernel = ptx.Module.parse(text, name="pipeline.ptx")
    rng = np.random.default_rng(0)
    a, b = operand(rng, 256, 5 * BLOCK_K), operand(rng, 192, 5 * BLOCK_K)
    np.testing.assert_array_equal(multiply(kernel, a, b).view(np.uint32), expected(a, b).view(np.uint32))


# Faults planted in the PTX of the kernel, behind the first words: (them, old, new, error, message)
CONSUMER = "setmaxnreg.inc"
FAULTS = {
    "no wait for the copies": (
        CONSUMER,
        r"try_wait(.*;)\n@p bra D",
        r"test_wait\1\nbra D",
        ptx.PtxError,
        "uninitialised|write-read race",
    ),
    "no wait for the products": (
        CONSUMER,
        "wgmma.wait_group.sync.aligned 0;",
        "",
        ptx.MisuseError,
        "nobody has waited for",
    ),
    "a wait that leaves a group": (CONSUMER, "aligned 0;", "aligned 1;", ptx.MisuseError, "nobody has waited for"),
    "no commit": (CONSUMER, "wgmma.commit_group.sync.aligned;", "", ptx.MisuseError, "nobody has waited for"),
    "no fence": (CONSUMER, "wgmma.fence.sync.aligned;", "", ptx.MisuseError, "no wgmma.fence before the first wgmma"),
    "a stage that one warpgroup gives back": (
        "mbarrier.init",
        r"\], 2;",
        "], 1;",
        ptx.PtxError,
        "a wgmma of warps|phase|expects",
    ),
    "a stage that is not given back": (
        CONSUMER,
        "mbarrier.arrive.shared::cta.b64 _",
        "// ",
        ptx.Deadlock,
        "no lane can run",
    ),
}


@pytest.mark.parametrize("name", thinned(FAULTS, 2))
def test_faults_of_the_pipeline_are_found(text: str, name: str) -> None:
    begin, old, new, error, message = FAULTS[name]
    head, found, rest = text.partition(begin)
    changed = re.sub(old, new, rest)
    assert found, name
    assert changed != rest, name
    broken = ptx.Module.parse(head + found + changed, name="broken.ptx")
    rng = np.random.default_rng(1)
    with pytest.raises(error, match=message):
        multiply(broken, operand(rng, 128, 6 * BLOCK_K), operand(rng, 64, 6 * BLOCK_K))
