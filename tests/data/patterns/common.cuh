// What the patterns have in common: names for PTX that CUDA C++ has no word for.
#pragma once
#include <cooperative_groups.h>
#include <cooperative_groups/reduce.h>
#include <cooperative_groups/memcpy_async.h>
#include <cooperative_groups/scan.h>
#include <cuda/atomic>
#include <cuda/barrier>
#include <cuda/pipeline>
#include <cuda/ptx>
#include <cuda/semaphore>
#include <cuda_fp16.h>
namespace cg = cooperative_groups;
typedef unsigned u32; typedef unsigned long long u64;
__device__ inline u32 sa(const void* p) { return (u32)__cvta_generic_to_shared(p); }
__device__ inline void mb_init(u64* b, u32 n) { asm volatile("mbarrier.init.shared.b64 [%0], %1; fence.proxy.async.shared::cta;" :: "r"(sa(b)), "r"(n) : "memory"); }
__device__ inline void mb_expect(u64* b, u32 n) { asm volatile("{ .reg .b64 s; mbarrier.arrive.expect_tx.shared.b64 s, [%0], %1; }" :: "r"(sa(b)), "r"(n) : "memory"); }
__device__ inline void mb_arrive(u64* b) { asm volatile("{ .reg .b64 s; mbarrier.arrive.shared.b64 s, [%0]; }" :: "r"(sa(b)) : "memory"); }
__device__ inline void mb_wait(u64* b, u32 p) { asm volatile("{ .reg .pred q; L: mbarrier.try_wait.parity.shared.b64 q, [%0], %1; @q bra D; bra L; D: }" :: "r"(sa(b)), "r"(p) : "memory"); }
__device__ inline void mb_wait_rlx(u64* b, u32 p) { asm volatile("{ .reg .pred q; L: mbarrier.try_wait.parity.relaxed.cta.shared.b64 q, [%0], %1; @q bra D; bra L; D: }" :: "r"(sa(b)), "r"(p) : "memory"); }
__device__ inline void fence_async() { asm volatile("fence.proxy.async.shared::cta;" ::: "memory"); }
__device__ inline void bulk_load(void* d, const void* s, u32 n, u64* b) { asm volatile("cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1], %2, [%3];" :: "r"(sa(d)), "l"(s), "r"(n), "r"(sa(b)) : "memory"); }
__device__ inline void bulk_store(void* d, const void* s, u32 n) { asm volatile("cp.async.bulk.global.shared::cta.bulk_group [%0], [%1], %2;" :: "l"(d), "r"(sa(s)), "r"(n) : "memory"); }
__device__ inline void bulk_commit() { asm volatile("cp.async.bulk.commit_group;" ::: "memory"); }
__device__ inline void bulk_wait() { asm volatile("cp.async.bulk.wait_group 0;" ::: "memory"); }
__device__ inline void bulk_wait_read() { asm volatile("cp.async.bulk.wait_group.read 0;" ::: "memory"); }
__device__ inline void cpa(void* d, const void* s) { asm volatile("cp.async.cg.shared.global [%0], [%1], 16;" :: "r"(sa(d)), "l"(s) : "memory"); }
__device__ inline void cpa_commit() { asm volatile("cp.async.commit_group;" ::: "memory"); }
template<int N> __device__ inline void cpa_wait() { asm volatile("cp.async.wait_group %0;" :: "n"(N) : "memory"); }
__device__ inline u32 ld_rlx(u32* p) { u32 v; asm volatile("ld.relaxed.gpu.global.u32 %0, [%1];" : "=r"(v) : "l"(p) : "memory"); return v; }
__device__ inline u32 ld_acq(u32* p) { u32 v; asm volatile("ld.acquire.gpu.global.u32 %0, [%1];" : "=r"(v) : "l"(p) : "memory"); return v; }
__device__ inline void st_rel(u32* p, u32 v) { asm volatile("st.release.gpu.global.u32 [%0], %1;" :: "l"(p), "r"(v) : "memory"); }
__device__ inline void st_rlx(u32* p, u32 v) { asm volatile("st.relaxed.gpu.global.u32 [%0], %1;" :: "l"(p), "r"(v) : "memory"); }
__device__ inline u32 mapa(const void* p, u32 r) { u32 v; asm volatile("mapa.shared::cluster.u32 %0, %1, %2;" : "=r"(v) : "r"(sa(p)), "r"(r)); return v; }
#define BAR(id, n) asm volatile("bar.sync %0, %1;" :: "r"(id), "r"(n) : "memory")
#define ARRIVE(id, n) asm volatile("bar.arrive %0, %1;" :: "r"(id), "r"(n) : "memory")
#define TID threadIdx.x
#define BID blockIdx.x
#define KER extern "C" __global__ void
#define ARGS u32* out, u32* in, u32* cnt
