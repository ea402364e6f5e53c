// Asynchronous copies into shared memory and the barriers that announce them, one wrapper for each PTX instruction.
#pragma once

#include <cstdint>

namespace refmoe {

constexpr int kCopyBytes = 16;  // of one cp.async

/// A pointer into shared memory as the 32-bit address that shared-memory instructions take.
__device__ __forceinline__ uint32_t shared_address(const void* pointer) {
    return static_cast<uint32_t>(__cvta_generic_to_shared(pointer));
}

/// Starts a copy of 16 bytes past L1; where `valid` is false nothing is read and zeros arrive.
__device__ __forceinline__ void cp_async_16(uint32_t target, const void* source, bool valid) {
    const int bytes = valid ? kCopyBytes : 0;
    asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;" ::"r"(target), "l"(source), "r"(bytes) : "memory");
}

/// Arrives on `barrier` once all copies that this thread has started so far are complete. `noinc`: the arrival is one
/// of those that the barrier was initialised for.
__device__ __forceinline__ void cp_async_mbarrier_arrive_noinc(uint32_t barrier) {
    asm volatile("cp.async.mbarrier.arrive.noinc.shared.b64 [%0];" ::"r"(barrier) : "memory");
}

__device__ __forceinline__ void mbarrier_init(uint32_t barrier, int arrivals) {
    asm volatile("mbarrier.init.shared.b64 [%0], %1;" ::"r"(barrier), "r"(arrivals) : "memory");
}

__device__ __forceinline__ void mbarrier_arrive(uint32_t barrier) {
    asm volatile("{\n .reg .b64 state;\n mbarrier.arrive.shared.b64 state, [%0];\n}" ::"r"(barrier) : "memory");
}

/// Waits until the phase of the given parity is complete.
__device__ __forceinline__ void mbarrier_wait_parity(uint32_t barrier, uint32_t parity) {
    uint32_t complete = 0;
    while (!complete) {
        asm volatile(
            "{\n"
            " .reg .pred done;\n"
            " mbarrier.try_wait.parity.shared.b64 done, [%1], %2;\n"
            " selp.u32 %0, 1, 0, done;\n"
            "}"
            : "=r"(complete)
            : "r"(barrier), "r"(parity)
            : "memory");
    }
}

/// Four 8x8 matrices of 16-bit cells: lane l passes the address of row l % 8 of matrix l / 8, and receives of each
/// matrix the 4 bytes at 4 * (l % 4) of row l / 4.
__device__ __forceinline__ void ldmatrix_x4(uint32_t (&cells)[4], uint32_t row_address) {
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0, %1, %2, %3}, [%4];"
                 : "=r"(cells[0]), "=r"(cells[1]), "=r"(cells[2]), "=r"(cells[3])
                 : "r"(row_address)
                 : "memory");
}

/// The reverse of ldmatrix_x4, each matrix transposed on the way.
__device__ __forceinline__ void stmatrix_x4_trans(uint32_t row_address, const uint32_t (&cells)[4]) {
    asm volatile("stmatrix.sync.aligned.m8n8.x4.trans.shared.b16 [%0], {%1, %2, %3, %4};" ::"r"(row_address),
                 "r"(cells[0]), "r"(cells[1]), "r"(cells[2]), "r"(cells[3])
                 : "memory");
}

__device__ __forceinline__ uint32_t ld_shared_u32(uint32_t address) {
    uint32_t value;
    asm volatile("ld.shared.u32 %0, [%1];" : "=r"(value) : "r"(address) : "memory");
    return value;
}

__device__ __forceinline__ uint2 ld_shared_v2_u32(uint32_t address) {
    uint2 value;
    asm volatile("ld.shared.v2.u32 {%0, %1}, [%2];" : "=r"(value.x), "=r"(value.y) : "r"(address) : "memory");
    return value;
}

__device__ __forceinline__ uint4 ld_shared_v4_u32(uint32_t address) {
    uint4 value;
    asm volatile("ld.shared.v4.u32 {%0, %1, %2, %3}, [%4];"
                 : "=r"(value.x), "=r"(value.y), "=r"(value.z), "=r"(value.w)
                 : "r"(address)
                 : "memory");
    return value;
}

}  // namespace refmoe
