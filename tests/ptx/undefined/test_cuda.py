"""Undefined values in what nvcc makes of CUDA: found where a result depends on them, and nowhere else."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from support.ptx_kernel import compile_cuda

from refmoe import ptx

SUM = """
extern "C" __global__ void sum(const float* in, float* out) {
    float v = in[threadIdx.x];
    for (int offset = FIRST; offset > 0; offset >>= 1) v += __shfl_down_sync(0xFFFF, v, offset);
    if (threadIdx.x == 0) out[0] = v;
}
"""


def test_a_sum_over_half_a_warp(tmp_path: Path) -> None:
    """With 16 threads the upper lanes read lanes that do not exist, and nobody needs what they get."""
    values = np.arange(16, dtype=np.float32)
    out = np.zeros(1, np.float32)
    mended = compile_cuda(SUM.replace("FIRST", "8"), tmp_path)
    ptx.launch(mended, "sum", (1, 1, 1), (16, 1, 1), [values, out])
    assert out[0] == values.sum()
    bad = compile_cuda(SUM.replace("FIRST", "16"), tmp_path)
    with pytest.raises(ptx.UndefinedError, match="which does not take part") as caught:
        ptx.launch(bad, "sum", (1, 1, 1), (16, 1, 1), [values, out])
    assert caught.value.thread == (0, 0, 0)
    assert caught.value.origin_source is not None
    assert caught.value.source is not None
    assert caught.value.source.endswith("/kernel.cu:5")


TILE = """
extern "C" __global__ void tile(const float* in, float* out, int count) {
    __shared__ float held[64];
    int i = threadIdx.x;
    if (i < count) held[i] = in[i];
    PAD
    __syncthreads();
    float a = held[i], b = held[63 - i];
    out[i] = i < count && 63 - i < count ? a + b : USED;
}
"""


def test_a_tile_that_is_loaded_in_part(tmp_path: Path) -> None:
    """Every thread reads its two numbers; those beyond the end are not used."""
    values, out = np.arange(64, dtype=np.float32), np.zeros(64, np.float32)
    sound = compile_cuda(TILE.replace("PAD", "").replace("USED", "0.f"), tmp_path)
    ptx.launch(sound, "tile", (1, 1, 1), (64, 1, 1), [values, out, 40])
    inside = (np.arange(64) < 40) & (63 - np.arange(64) < 40)
    assert (out == np.where(inside, 63, 0)).all()
    bad = compile_cuda(TILE.replace("PAD", "").replace("USED", "a"), tmp_path)
    with pytest.raises(ptx.MemoryFault, match="uninitialised: shared read") as caught:
        ptx.launch(bad, "tile", (1, 1, 1), (64, 1, 1), [values, out, 40])
    assert "reaches an output byte" in caught.value.use
    mended = compile_cuda(TILE.replace("PAD", "else held[i] = 0;").replace("USED", "a"), tmp_path)
    ptx.launch(mended, "tile", (1, 1, 1), (64, 1, 1), [values, out, 40])


SCRATCH = """
extern "C" __global__ void histogram(const int* in, int* out, int rounds) {
    int seen[8];
    CLEAR
    #pragma unroll 1
    for (int i = 0; i < rounds; i++) seen[in[i] & 7] += 1;
    #pragma unroll 1
    for (int i = 0; i < 8; i++) if (USES) out[i] = seen[i];
}
"""


def test_an_array_of_a_thread_that_was_not_cleared(tmp_path: Path) -> None:
    numbers, out = np.array([1, 2, 2, 5], np.int32), np.zeros(8, np.int32)
    bad = compile_cuda(SCRATCH.replace("CLEAR", "").replace("USES", "true"), tmp_path)
    with pytest.raises(ptx.MemoryFault, match=r"uninitialised: local read.*reaches an output byte"):
        ptx.launch(bad, "histogram", (1, 1, 1), (1, 1, 1), [numbers, out, 4])
    mended = compile_cuda(
        SCRATCH.replace("CLEAR", "for (int i = 0; i < 8; i++) seen[i] = 0;").replace("USES", "true"), tmp_path
    )
    ptx.launch(mended, "histogram", (1, 1, 1), (1, 1, 1), [numbers, out, 4])
    assert out.tolist() == [0, 1, 2, 0, 0, 1, 0, 0]


SWITCHED = """
extern "C" __global__ void switched(const int* in, int* out, int limit) {
    int value, weight;
    bool known = in[threadIdx.x] < limit;
    if (known) { value = in[threadIdx.x] * 3; weight = __popc(value); }
    __syncthreads();
    int more = __shfl_xor_sync(0xFFFFFFFFu, known ? value : 0, 1);
    if (known) out[threadIdx.x] = value + weight + more;
}
"""


def test_variables_that_are_set_where_they_are_used(tmp_path: Path) -> None:
    """nvcc leaves registers unwritten on the other way, and reads them on it at times: no result depends on that."""
    values, out = np.arange(64, dtype=np.int32), np.zeros(64, np.int32)
    module = compile_cuda(SWITCHED, tmp_path)
    ptx.launch(module, "switched", (1, 1, 1), (64, 1, 1), [values, out, 33])
    others = values ^ 1
    wanted = values * 3 + np.bitwise_count(values * 3) + np.where(others < 33, others * 3, 0)
    assert (out == np.where(values < 33, wanted, 0)).all()


STRUCT = """
struct Pair { char tag; int number; };
extern "C" __global__ void pairs(Pair* out, int n) {
    __shared__ Pair held[32];
    held[threadIdx.x].tag = 1;
    held[threadIdx.x].number = n;
    __syncwarp();
    COPY
}
"""


def test_padding_of_a_struct(tmp_path: Path) -> None:
    """Copied as words it is left in the output; copied member by member it is not."""
    words = "((long long*)out)[threadIdx.x] = ((long long*)held)[threadIdx.x];"
    members = "out[threadIdx.x].tag = held[threadIdx.x].tag; out[threadIdx.x].number = held[threadIdx.x].number;"
    out = np.zeros(64, np.uint32)
    module = compile_cuda(
        STRUCT.replace("__shared__ Pair", "__shared__ __align__(8) Pair").replace("COPY", words), tmp_path
    )
    with pytest.raises(ptx.MemoryFault, match="uninitialised: shared read of 8 bytes at byte 1 of"):
        ptx.launch(module, "pairs", (1, 1, 1), (32, 1, 1), [out, 9])
    module = compile_cuda(STRUCT.replace("COPY", members), tmp_path)
    ptx.launch(module, "pairs", (1, 1, 1), (32, 1, 1), [out, 9])
    assert out.tolist() == [1, 9] * 32
