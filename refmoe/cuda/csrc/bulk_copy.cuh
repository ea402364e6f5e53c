// Bulk copies from global into shared memory, and the transaction count by which their barrier knows that they landed.
#pragma once

#include <cstdint>

namespace refmoe {

/// Makes barriers that this thread initialised visible to the copies that it starts.
__device__ __forceinline__ void fence_mbarrier_init() {
    asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory");
}

/// Arrives on `barrier`, whose phase then also waits for `bytes` bytes of copies.
__device__ __forceinline__ void mbarrier_arrive_expect_tx(uint32_t barrier, uint32_t bytes) {
    asm volatile("mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;" ::"r"(barrier), "r"(bytes) : "memory");
}

/// Starts a copy of `bytes` bytes, a multiple of 16 between addresses that are; `barrier` counts them as they land.
__device__ __forceinline__ void cp_async_bulk(uint32_t target, const void* source, uint32_t bytes, uint32_t barrier) {
    asm volatile(
        "cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1], %2, [%3];" ::"r"(target),
        "l"(source), "r"(bytes), "r"(barrier)
        : "memory");
}

}  // namespace refmoe
