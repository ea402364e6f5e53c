// The asynchronous matrix instructions of sm_90a on E4M3, the tensor copies that feed them, and what warpgroups need.
//
// A warpgroup is four warps; the first warp's number is a multiple of four. It multiplies 64 rows of A by the columns
// of B, both in shared memory, in lines of 128 bytes along K whose 16-byte chunks are XORed with the line's number
// modulo 8. That is how a tensor copy with the swizzle 128B leaves them. With g = lane / 4 and t = lane % 4, a thread of
// warp w has
//
//      d[4j], d[4j + 1]      row 16w + g,     columns 8j + 2t, 8j + 2t + 1
//      d[4j + 2], d[4j + 3]  row 16w + g + 8, the same columns
#pragma once

#include <cstdint>

// Operands of a statement: the sums d[0] .. of a thread.
#define REFMOE_SUMS(i)                                                                                  \
    "+f"(d[i]), "+f"(d[i + 1]), "+f"(d[i + 2]), "+f"(d[i + 3]), "+f"(d[i + 4]), "+f"(d[i + 5]), "+f"(d[i + 6]), \
        "+f"(d[i + 7])
#define REFMOE_SUMS_32 REFMOE_SUMS(0), REFMOE_SUMS(8), REFMOE_SUMS(16), REFMOE_SUMS(24)
#define REFMOE_SUMS_64 REFMOE_SUMS_32, REFMOE_SUMS(32), REFMOE_SUMS(40), REFMOE_SUMS(48), REFMOE_SUMS(56)

namespace refmoe {

constexpr int kWarpgroupThreads = 128;
constexpr int kWgmmaM = 64, kWgmmaK = 32;
constexpr int kLineBytes = 128, kAtomLines = 8;  // of the swizzle

/// The 128 bytes that a tensor copy is told of a tensor; the host makes them.
struct alignas(64) TensorMap {
    uint8_t bytes[128];
};

/// What tells an instruction where an operand lies: 64 or more lines at `address`, a multiple of the atom's 1024 bytes,
/// plus the bytes of K that earlier instructions have taken of each line.
__device__ __forceinline__ uint64_t matrix_descriptor(uint32_t address) {
    constexpr uint64_t kSwizzle128 = 1ull << 62;
    constexpr uint64_t kStride = static_cast<uint64_t>(kAtomLines * kLineBytes >> 4) << 32;  // from atom to atom
    constexpr uint64_t kLeading = 1ull << 16;  // of no meaning where a line has all of K that there is
    return kSwizzle128 | kStride | kLeading | (address & 0x3FFFF) >> 4;
}

/// Orders what this warp has done with the registers of the sums before the instructions that follow. The sums are
/// operands, so that the compiler writes none of them after.
__device__ __forceinline__ void wgmma_fence(float (&d)[32]) {
    asm volatile("wgmma.fence.sync.aligned;" : REFMOE_SUMS_32 : : "memory");
}

__device__ __forceinline__ void wgmma_fence(float (&d)[64]) {
    asm volatile("wgmma.fence.sync.aligned;" : REFMOE_SUMS_64 : : "memory");
}

/// Makes one group of the instructions since the last one.
__device__ __forceinline__ void wgmma_commit_group() { asm volatile("wgmma.commit_group.sync.aligned;" ::: "memory"); }

/// Waits until at most `pending` groups are not complete. The sums of the one that is waited for are operands, so that the
/// compiler reads none of them before.
template <int pending>
__device__ __forceinline__ void wgmma_wait_group(float (&d)[32]) {
    asm volatile("wgmma.wait_group.sync.aligned %32;" : REFMOE_SUMS_32 : "n"(pending) : "memory");
}

template <int pending>
__device__ __forceinline__ void wgmma_wait_group(float (&d)[64]) {
    asm volatile("wgmma.wait_group.sync.aligned %64;" : REFMOE_SUMS_64 : "n"(pending) : "memory");
}

/// d = a * b + d, or a * b where `add` is 0: 64 rows of A, 64 columns of B, 32 of K.
__device__ __forceinline__ void wgmma_e4m3(float (&d)[32], uint64_t a, uint64_t b, int add) {
    asm volatile(
        "{\n"
        " .reg .pred add;\n"
        " setp.ne.s32 add, %34, 0;\n"
        " wgmma.mma_async.sync.aligned.m64n64k32.f32.e4m3.e4m3 {"
        "%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15, "
        "%16, %17, %18, %19, %20, %21, %22, %23, %24, %25, %26, %27, %28, %29, %30, %31"
        "}, %32, %33, add, 1, 1;\n"
        "}"
        : REFMOE_SUMS_32
        : "l"(a), "l"(b), "r"(add)
        : "memory");
}

/// The same for 128 columns of B.
__device__ __forceinline__ void wgmma_e4m3(float (&d)[64], uint64_t a, uint64_t b, int add) {
    asm volatile(
        "{\n"
        " .reg .pred add;\n"
        " setp.ne.s32 add, %66, 0;\n"
        " wgmma.mma_async.sync.aligned.m64n128k32.f32.e4m3.e4m3 {"
        "%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15, "
        "%16, %17, %18, %19, %20, %21, %22, %23, %24, %25, %26, %27, %28, %29, %30, %31, "
        "%32, %33, %34, %35, %36, %37, %38, %39, %40, %41, %42, %43, %44, %45, %46, %47, "
        "%48, %49, %50, %51, %52, %53, %54, %55, %56, %57, %58, %59, %60, %61, %62, %63"
        "}, %64, %65, add, 1, 1;\n"
        "}"
        : REFMOE_SUMS_64
        : "l"(a), "l"(b), "r"(add)
        : "memory");
}

/// Gives registers of this warpgroup back, and takes some: `registers` is what a thread has from then on.
template <int registers>
__device__ __forceinline__ void setmaxnreg_dec() {
    asm volatile("setmaxnreg.dec.sync.aligned.u32 %0;" ::"n"(registers));
}

template <int registers>
__device__ __forceinline__ void setmaxnreg_inc() {
    asm volatile("setmaxnreg.inc.sync.aligned.u32 %0;" ::"n"(registers));
}

/// Waits for the threads of this warpgroup; `barrier` is one of its own, 1 to 15.
__device__ __forceinline__ void warpgroup_sync(int barrier) {
    asm volatile("bar.sync %0, %1;" ::"r"(barrier), "n"(kWarpgroupThreads) : "memory");
}

/// Starts the copy of a box of a matrix into shared memory, from column `x` and row `y` on; `barrier` counts its bytes.
__device__ __forceinline__ void tensor_load(uint32_t target, const TensorMap& map, int x, int y, uint32_t barrier) {
    asm volatile(
        "cp.async.bulk.tensor.2d.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1, {%2, %3}], [%4];" ::"r"(
            target),
        "l"(&map), "r"(x), "r"(y), "r"(barrier)
        : "memory");
}

/// The same into shared memory of every CTA of the cluster whose bit is set in `ctas`, at the same places.
__device__ __forceinline__ void tensor_load_multicast(uint32_t target, const TensorMap& map, int x, int y,
                                                      uint32_t barrier, uint16_t ctas) {
    asm volatile(
        "cp.async.bulk.tensor.2d.shared::cluster.global.mbarrier::complete_tx::bytes.multicast::cluster "
        "[%0], [%1, {%2, %3}], [%4], %5;" ::"r"(target),
        "l"(&map), "r"(x), "r"(y), "r"(barrier), "h"(ctas)
        : "memory");
}

/// Arrives on a barrier at the place of `barrier` in shared memory of a CTA of the cluster. It says no scope: what it
/// releases was read through the async proxy and waited for, and a scope beyond the CTA would cost a fence of the whole
/// GPU each time.
__device__ __forceinline__ void mbarrier_arrive_cluster(uint32_t barrier, int cta) {
    asm volatile(
        "{\n"
        " .reg .b32 remote;\n"
        " mapa.shared::cluster.u32 remote, %0, %1;\n"
        " mbarrier.arrive.shared::cluster.b64 _, [remote];\n"
        "}" ::"r"(barrier),
        "r"(cta)
        : "memory");
}

/// Waits for all threads of the cluster.
__device__ __forceinline__ void cluster_sync() {
    asm volatile(
        "barrier.cluster.arrive.release.aligned;\n"
        "barrier.cluster.wait.acquire.aligned;" ::
            : "memory");
}

/// Starts the copy of a box from shared memory into a matrix, in this thread's current group of such copies.
__device__ __forceinline__ void tensor_store(const TensorMap& map, int x, int y, uint32_t source) {
    asm volatile("cp.async.bulk.tensor.2d.global.shared::cta.bulk_group [%0, {%1, %2}], [%3];" ::"l"(&map), "r"(x),
                 "r"(y), "r"(source)
                 : "memory");
}

__device__ __forceinline__ void bulk_commit_group() { asm volatile("cp.async.bulk.commit_group;" ::: "memory"); }

/// Waits until this thread's groups of bulk copies have read their sources.
__device__ __forceinline__ void bulk_wait_read() { asm volatile("cp.async.bulk.wait_group.read 0;" ::: "memory"); }

/// Makes what this thread has written to shared memory visible to the copies that follow.
__device__ __forceinline__ void fence_proxy_async() { asm volatile("fence.proxy.async.shared::cta;" ::: "memory"); }

/// Four 8x8 matrices of 16-bit cells into shared memory: lane l passes the address of row l % 8 of matrix l / 8, and
/// has of each matrix two cells of row l / 4, at 2 * (l % 4).
__device__ __forceinline__ void stmatrix_x4(uint32_t row_address, const uint32_t (&cells)[4]) {
    asm volatile("stmatrix.sync.aligned.m8n8.x4.shared.b16 [%0], {%1, %2, %3, %4};" ::"r"(row_address), "r"(cells[0]),
                 "r"(cells[1]), "r"(cells[2]), "r"(cells[3])
                 : "memory");
}

}  // namespace refmoe
