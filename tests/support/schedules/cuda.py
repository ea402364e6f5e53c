"""Kernels in CUDA C++, each right or wrong in what it takes for granted of a schedule."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from refmoe import ptx


@dataclass(frozen=True)
class Kernel:
    """One entry `k`, and how it is launched.

    Attributes:
        source: CUDA C++.
        grid, block: in x.
        args: makes the arguments, the first of which is the output.
        right: whether all legal schedules give one result.
        expected: that result, or None if the kernel is wrong.
        races: whether races are looked for: not where an alarm of theirs would come first.
        uninitialised: likewise.
    """

    source: str
    grid: int
    block: int
    args: Any
    right: bool
    expected: Any = None
    races: bool = True
    uninitialised: bool = True

    @property
    def checks(self) -> ptx.Checks:
        return ptx.Checks(races=self.races, uninitialised=self.uninitialised)


def _u32(*sizes: int) -> Any:
    """Makes arrays of zeros."""
    return lambda: [np.zeros(size, np.uint32) for size in sizes]


def _values() -> list[Any]:
    """Float32 whose sum depends on the order: 2^24 swallows what is added to it one by one."""
    values = np.full(96, 0.75, np.float32)
    values[::7] = np.float32(1 << 24)
    values[3::7] = -np.float32(1 << 24)
    return [np.zeros(1, np.float32), values]


def _whole_values() -> list[Any]:
    return [np.zeros(1, np.float32), np.arange(96, dtype=np.float32)]


FLOAT_ATOMICS = r"""
extern "C" __global__ void k(float* sum, const float* x) { atomicAdd(sum, x[blockIdx.x * blockDim.x + threadIdx.x]); }
"""

INTEGER_ATOMICS = r"""
extern "C" __global__ void k(unsigned* out) {
    unsigned i = blockIdx.x * blockDim.x + threadIdx.x;
    atomicAdd(out, i); atomicMax(out + 1, i * 37 % 101);
    atomicXor(out + 2, i * 0x9E3779B9u); atomicOr(out + 3, 1u << i % 32);
}
"""


def _integer_atomics() -> Any:
    i = np.arange(96, dtype=np.uint32)
    return [i.sum(), (i * 37 % 101).max(), np.bitwise_xor.reduce(i * np.uint32(0x9E3779B9)), 0xFFFFFFFF]


SLOTS = r"""
extern "C" __global__ void k(unsigned* out, unsigned* count) {
    unsigned i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i % 3 == 0) out[atomicAdd(count, 1)] = i;
}
"""

# The last block sorts what all have put into the slots.
SORTED_SLOTS = r"""
extern "C" __global__ void k(unsigned* out, unsigned* count, unsigned* done) {
    __shared__ unsigned last;
    unsigned i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i % 3 == 0) out[atomicAdd(count, 1)] = i;
    __threadfence();
    __syncthreads();
    if (threadIdx.x == 0) last = atomicAdd(done, 1) == gridDim.x - 1;
    __syncthreads();
    if (!last || threadIdx.x != 0) return;
    __threadfence();
    for (int a = 1; a < 32; ++a)
        for (int b = a; b > 0 && out[b] < out[b - 1]; --b) { unsigned t = out[b]; out[b] = out[b - 1]; out[b - 1] = t; }
}
"""

LAST_BLOCK = r"""
extern "C" __global__ void k(float* out, const float* x, float* part, unsigned* done) {
    __shared__ float sums[32];
    __shared__ bool last;
    int t = threadIdx.x;
    sums[t] = x[blockIdx.x * 32 + t];
    __syncthreads();
    for (int d = 16; d; d /= 2) { if (t < d) sums[t] += sums[t + d]; __syncthreads(); }
    if (t == 0) {
        part[ORDER] = sums[0];
        __threadfence();
        last = atomicAdd(done, 1) == gridDim.x - 1;
    }
    __syncthreads();
    if (last && t == 0) {
        __threadfence();
        float sum = 0;
        for (int b = 0; b < gridDim.x; ++b) sum += ((volatile float*)part)[b];
        *out = sum;
    }
}
"""


def _blocks_that_differ() -> list[Any]:
    x = np.repeat(np.array([1 << 24, 0.75, 0.75, -(1 << 24), 0.75, 3], np.float32) / 32, 32)
    return [np.zeros(1, np.float32), x, np.zeros(6, np.float32), np.zeros(1, np.uint32)]


def _last_block() -> Any:
    total = np.float32(0)
    for part in np.array([1 << 24, 0.75, 0.75, -(1 << 24), 0.75, 3], np.float32):
        total += part
    return [total]


BLOCK_ORDER = r"""
extern "C" __global__ void k(unsigned* out) { if (threadIdx.x == 0) atomic{how}(out, blockIdx.x + 1); }
"""

SPIN_LOCK = r"""
extern "C" __global__ void k(unsigned* out, int* lock) {
    if (threadIdx.x % 32 == 0) {
        while (atomicCAS(lock, 0, 1) != 0) {}
        __threadfence();
        volatile unsigned* x = out;
        *x = *x UPDATE;
        __threadfence();
        atomicExch(lock, 0);
    }
}
"""

# Lanes of one warp that contend for one lock.
LANES_LOCK = r"""
extern "C" __global__ void k(unsigned* out, int* lock) {
    bool done = false;
    while (!done) {
        if (atomicCAS(lock, 0, 1) == 0) {
            __threadfence();
            volatile unsigned* x = out;
            *x = *x + threadIdx.x + 1;
            __threadfence();
            atomicExch(lock, 0);
            done = true;
        }
    }
}
"""

DIVERGENT = r"""
extern "C" __global__ void k(unsigned* out) {
    __shared__ unsigned cells[32];
    unsigned t = threadIdx.x;
    cells[t] = 100 + t;
    __syncwarp();
    unsigned got = 0;
    if (t < 16) { cells[t] = t * t + 7; SYNC got = 1; }
    else { SYNC got = cells[t - 16]; }
    out[t] = got;
}
"""

# A warp's reduction that trusts in lanes running together, as was usual before sm_70.
WARP_SYNCHRONOUS = r"""
extern "C" __global__ void k(unsigned* out) {
    __shared__ volatile unsigned cells[64];
    unsigned t = threadIdx.x;
    cells[t] = t + 1;
    cells[t + 32] = 0;
    __syncwarp();
    for (int d = 16; d; d /= 2) {
        unsigned x = cells[t + d]; SYNC
        cells[t] = cells[t] + x; SYNC
    }
    if (t == 0) *out = cells[0];
}
"""

TRY_WAIT = r"""
__device__ bool try_wait(unsigned bar, unsigned parity) {
    unsigned ok;
    asm volatile("{ .reg .pred p; mbarrier.try_wait.parity.shared::cta.b64 p, [%1], %2; selp.u32 %0, 1, 0, p; }"
                 : "=r"(ok) : "r"(bar), "r"(parity) : "memory");
    return ok;
}
extern "C" __global__ void k(unsigned* out) {
    __shared__ alignas(8) unsigned long long object;
    __shared__ unsigned cells[64];
    unsigned t = threadIdx.x, bar = __cvta_generic_to_shared(&object);
    if (t == 0) asm volatile("mbarrier.init.shared::cta.b64 [%0], 32;" :: "r"(bar) : "memory");
    cells[t] = 5;
    __syncthreads();
    if (t < 32) {
        cells[t] = t + 1000;
        asm volatile("mbarrier.arrive.shared::cta.b64 _, [%0];" :: "r"(bar) : "memory");
    } else {
        WAIT
        out[t - 32] = cells[t - 32];
    }
}
"""

COPY = r"""
extern "C" __global__ void k(unsigned* out, const unsigned* in) {
    __shared__ alignas(16) unsigned cells[128];
    unsigned t = threadIdx.x, to = __cvta_generic_to_shared(cells + 4 * t);
    asm volatile("cp.async.ca.shared.global [%0], [%1], 16;" :: "r"(to), "l"(in + 4 * t) : "memory");
    asm volatile("cp.async.commit_group;" ::: "memory");
    WAIT
    for (int i = 0; i < 4; ++i) out[4 * t + i] = cells[4 * t + i];
    asm volatile("cp.async.wait_all;" ::: "memory");
}
"""

# The source is written again before, or after, the copy has been waited for.
COPY_SOURCE = r"""
extern "C" __global__ void k(unsigned* out, unsigned* in) {
    __shared__ alignas(16) unsigned cells[128];
    unsigned t = threadIdx.x, to = __cvta_generic_to_shared(cells + 4 * t);
    asm volatile("cp.async.ca.shared.global [%0], [%1], 16;" :: "r"(to), "l"(in + 4 * t) : "memory");
    EARLY
    asm volatile("cp.async.wait_all;" ::: "memory");
    LATE
    for (int i = 0; i < 4; ++i) out[4 * t + i] = cells[4 * t + i];
}
"""

BULK_STORE = r"""
extern "C" __global__ void k(unsigned* out) {
    __shared__ alignas(128) unsigned cells[128];
    unsigned t = threadIdx.x, from = __cvta_generic_to_shared(cells);
    for (int i = 0; i < 4; ++i) cells[4 * t + i] = 4 * t + i;
    asm volatile("fence.proxy.async.shared::cta;" ::: "memory");
    __syncwarp();
    if (t == 0) {
        asm volatile("cp.async.bulk.global.shared::cta.bulk_group [%0], [%1], 512;" :: "l"(out), "r"(from) : "memory");
        asm volatile("cp.async.bulk.commit_group;" ::: "memory");
        EARLY
        asm volatile("cp.async.bulk.wait_group.read 0;" ::: "memory");
        LATE
        asm volatile("cp.async.bulk.wait_group 0;" ::: "memory");
    }
}
"""

BULK_LOAD = r"""
extern "C" __global__ void k(unsigned* out, const unsigned* in) {
    __shared__ alignas(128) unsigned cells[128];
    __shared__ alignas(8) unsigned long long object;
    unsigned t = threadIdx.x, bar = __cvta_generic_to_shared(&object), to = __cvta_generic_to_shared(cells);
    if (t == 0) {
        asm volatile("mbarrier.init.shared::cta.b64 [%0], 1;" :: "r"(bar) : "memory");
        asm volatile("fence.proxy.async.shared::cta;" ::: "memory");
        FIRST
        asm volatile("cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1], 512, [%2];"
                     :: "r"(to), "l"(in), "r"(bar) : "memory");
        SECOND
    }
    __syncthreads();
    WAIT
    for (int i = 0; i < 4; ++i) out[4 * t + i] = cells[4 * t + i];
    __syncthreads();
    LATE
}
"""

# A single look at the barrier, without the loop that a wait needs.
ASK = r"""{ unsigned ok;
        asm volatile("{ .reg .pred p; mbarrier.test_wait.parity.shared::cta.b64 p, [%1], 0; selp.u32 %0, 1, 0, p; }"
                     : "=r"(ok) : "r"(bar) : "memory");
        if (!ok) { out[t] = 0xBAD; goto end; } }"""

EXPECT = 'asm volatile("mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], 512;" :: "r"(bar) : "memory");'
POLL = r"""for (unsigned ok = 0; !ok;)
        asm volatile("{ .reg .pred p; mbarrier.try_wait.parity.shared::cta.b64 p, [%1], 0; selp.u32 %0, 1, 0, p; }"
                     : "=r"(ok) : "r"(bar) : "memory");"""

STRONG_STORES = r"""
extern "C" __global__ void k(unsigned* out) {
    asm volatile("st.relaxed.gpu.global.u32 [%0], %1;" :: "l"(out), "r"(threadIdx.x VALUE) : "memory");
}
"""

ELECT = r"""
extern "C" __global__ void k(unsigned* out) {
    unsigned leads;
    asm volatile("{ .reg .pred p; elect.sync _|p, 0xffffffff; selp.u32 %0, 1, 0, p; }" : "=r"(leads));
    if (leads) out[0] = VALUE;
}
"""

PRINT = r"""
#include <cstdio>
extern "C" __global__ void k(unsigned* out) { printf("%u\n", VALUE); }
"""

CLOCK = r"""
extern "C" __global__ void k(unsigned* out) {
    unsigned begin = clock();
    __syncthreads();
    out[threadIdx.x] = VALUE;
}
"""

# Tiles are handed out by a counter, as persistent kernels do it.
TILES = r"""
extern "C" __global__ void k(unsigned* out, unsigned* next) {
    __shared__ unsigned tile;
    for (;;) {
        __syncthreads();
        if (threadIdx.x == 0) tile = atomicAdd(next, 1);
        __syncthreads();
        if (tile >= 20) break;
        if (threadIdx.x == 0) out[tile] = VALUE;
    }
}
"""

ODD = np.arange(0, 96, 3, dtype=np.uint32)
NUMBERS = np.arange(128, dtype=np.uint32)


def _copied() -> list[Any]:
    return [np.zeros(128, np.uint32), NUMBERS * np.uint32(3)]


def _kernel(source: str, grid: int, block: int, args: Any, expected: Any = None, **options: bool) -> Kernel:
    return Kernel(source, grid, block, args, expected is not None, expected, **options)


#: By name: "what: how".
KERNELS: dict[str, Kernel] = {
    "float atomics: rounded sums": _kernel(FLOAT_ATOMICS, 3, 32, _values),
    "float atomics: exact sums": _kernel(FLOAT_ATOMICS, 3, 32, _whole_values, [np.float32(95 * 48)]),
    "integer atomics": _kernel(INTEGER_ATOMICS, 3, 32, _u32(4), _integer_atomics()),
    "slots: as they come": _kernel(SLOTS, 3, 32, _u32(32, 1)),
    "slots: sorted": _kernel(SORTED_SLOTS, 3, 32, _u32(32, 1, 1), ODD, races=False),
    "last block: in order": _kernel(
        LAST_BLOCK.replace("ORDER", "blockIdx.x"), 6, 32, _blocks_that_differ, _last_block(), races=False
    ),
    "last block: in the order of arrival": _kernel(
        LAST_BLOCK.replace("ORDER", "atomicAdd(done + 1, 1)"), 6, 32,
        lambda: [*_blocks_that_differ()[:3], np.zeros(2, np.uint32)], races=False,
    ),
    "block order: the last one wins": _kernel(BLOCK_ORDER.replace("{how}", "Exch"), 7, 32, _u32(1)),
    "block order: the greatest wins": _kernel(BLOCK_ORDER.replace("{how}", "Max"), 7, 32, _u32(1), [7]),
    "spin lock: a sum": _kernel(
        SPIN_LOCK.replace("UPDATE", "+ threadIdx.x + blockIdx.x"), 4, 128, _u32(1, 1), [4 * 192 + 4 * 6], races=False
    ),
    "spin lock: in turn": _kernel(
        SPIN_LOCK.replace("UPDATE", "* 3 + threadIdx.x + blockIdx.x"), 4, 128, _u32(1, 1), races=False
    ),
    "spin lock: lanes of a warp": _kernel(LANES_LOCK, 1, 64, _u32(1, 1), [64 * 65 // 2], races=False),
    "divergent lanes: synchronised": _kernel(
        DIVERGENT.replace("SYNC", "__syncwarp();"), 1, 32, _u32(32),
        [1] * 16 + [t * t + 7 for t in range(16)],
    ),
    "divergent lanes: not synchronised": _kernel(DIVERGENT.replace("SYNC", ""), 1, 32, _u32(32), races=False),
    "warp reduction: synchronised": _kernel(
        WARP_SYNCHRONOUS.replace("SYNC", "__syncwarp();"), 1, 32, _u32(1), [32 * 33 // 2], races=False
    ),
    "warp reduction: not synchronised": _kernel(WARP_SYNCHRONOUS.replace("SYNC", ""), 1, 32, _u32(1), races=False),
    "try_wait: a loop": _kernel(
        TRY_WAIT.replace("WAIT", "while (!try_wait(bar, 0)) {}"), 1, 64, _u32(32), np.arange(1000, 1032)
    ),
    "try_wait: once": _kernel(TRY_WAIT.replace("WAIT", "try_wait(bar, 0);"), 1, 64, _u32(32), races=False),
    "cp.async: waited for": _kernel(
        COPY.replace("WAIT", 'asm volatile("cp.async.wait_group 0;" ::: "memory");'), 1, 32, _copied,
        NUMBERS * 3,
    ),
    "cp.async: not waited for": _kernel(
        COPY.replace("WAIT", ""), 1, 32, _copied, races=False, uninitialised=False
    ),
    "cp.async: its source changes after": _kernel(
        COPY_SOURCE.replace("EARLY", "").replace("LATE", "for (int i = 0; i < 4; ++i) in[4 * t + i] = 9;"), 1, 32,
        _copied, NUMBERS * 3,
    ),
    "cp.async: its source changes before": _kernel(
        COPY_SOURCE.replace("LATE", "").replace("EARLY", "for (int i = 0; i < 4; ++i) in[4 * t + i] = 9;"), 1, 32,
        _copied, races=False,
    ),
    "bulk store: its source changes after": _kernel(
        BULK_STORE.replace("EARLY", "").replace("LATE", "cells[5] = 77;"), 1, 32, _u32(128), NUMBERS
    ),
    "bulk store: its source changes before": _kernel(
        BULK_STORE.replace("LATE", "").replace("EARLY", "cells[5] = 77;"), 1, 32, _u32(128), races=False
    ),
    "bulk load: expected first": _kernel(
        BULK_LOAD.replace("FIRST", EXPECT).replace("SECOND", "").replace("WAIT", POLL).replace("LATE", ""), 1, 32,
        _copied, NUMBERS * 3,
    ),
    "bulk load: expected after": _kernel(
        BULK_LOAD.replace("FIRST", "").replace("SECOND", EXPECT).replace("WAIT", POLL).replace("LATE", ""), 1, 32,
        _copied, NUMBERS * 3,
    ),
    "bulk load: not waited for": _kernel(
        BULK_LOAD.replace("FIRST", EXPECT).replace("SECOND", "").replace("WAIT", "").replace("LATE", POLL), 1, 32,
        _copied, races=False, uninitialised=False,
    ),
    "test_wait: once": _kernel(
        BULK_LOAD.replace("FIRST", EXPECT).replace("SECOND", "").replace("WAIT", ASK).replace("LATE", "end: " + POLL),
        1, 32, _copied, races=False,
    ),
    "strong stores: of one value": _kernel(STRONG_STORES.replace("VALUE", "* 0 + 5"), 3, 64, _u32(1), [5]),
    "strong stores: of many": _kernel(STRONG_STORES.replace("VALUE", ""), 1, 32, _u32(1), races=False),
    "elect: any lane will do": _kernel(ELECT.replace("VALUE", "42"), 1, 32, _u32(1), [42]),
    "elect: this lane is meant": _kernel(ELECT.replace("VALUE", "threadIdx.x"), 1, 32, _u32(1)),
    "printf: numbers of threads": _kernel(
        PRINT.replace("VALUE", "threadIdx.x + 100 * blockIdx.x"), 3, 64, _u32(1), [0]
    ),
    "printf: tickets": _kernel(PRINT.replace("VALUE", "threadIdx.x * 64 + atomicAdd(out, 1)"), 1, 64, _u32(1)),
    "clock: time that passed": _kernel(CLOCK.replace("VALUE", "(unsigned)clock() - begin"), 1, 128, _u32(128)),
    "clock: that time passed": _kernel(
        CLOCK.replace("VALUE", "(unsigned)clock() - begin > 0"), 1, 128, _u32(128), [1] * 128
    ),
    "tiles: any block": _kernel(
        TILES.replace("VALUE", "tile * tile + 1"), 5, 64, _u32(20, 1), [t * t + 1 for t in range(20)]
    ),
    "tiles: of a block": _kernel(TILES.replace("VALUE", "blockIdx.x"), 5, 64, _u32(20, 1)),
}  # fmt: skip
