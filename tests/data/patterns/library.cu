// What the library has: latches, semaphores, barriers of every scope, cub's block and warp primitives, groups.
#include <cub/block/block_adjacent_difference.cuh>
#include <cub/block/block_discontinuity.cuh>
#include <cub/block/block_exchange.cuh>
#include <cub/block/block_histogram.cuh>
#include <cub/block/block_load.cuh>
#include <cub/block/block_radix_sort.cuh>
#include <cub/block/block_reduce.cuh>
#include <cub/block/block_scan.cuh>
#include <cub/block/block_store.cuh>
#include <cub/warp/warp_merge_sort.cuh>
#include <cub/warp/warp_scan.cuh>
#include <cuda/latch>

//# latch_wait finds=RaceError:write-read b=64
KER NAME(ARGS) { __shared__ __align__(8) char raw[sizeof(cuda::latch<cuda::thread_scope_block>)]; __shared__ u32 s[64];
    auto* l = (cuda::latch<cuda::thread_scope_block>*)raw; if (TID == 0) new (l)
    cuda::latch<cuda::thread_scope_block>(64); s[TID] = 0; __syncthreads(); s[TID] = TID; l->count_down(); ⟨¦l->wait();⟩
    out[TID] = s[TID ^ 40]; }

//# latch_of_two_blocks finds=RaceError:write-write g=2 b=32
__device__ cuda::latch<cuda::thread_scope_⟨block¦device⟩> both(64);
KER NAME(ARGS) { u32 i = BID * 32 + TID; out[i] = i + 1; both.arrive_and_wait(); out[128 + i] = out[i ^ 32]; }

//# device_barrier finds=RaceError:write-read g=2 b=32
__device__ cuda::barrier<cuda::thread_scope_device> meet(64);
KER NAME(ARGS) { u32 i = BID * 32 + TID; out[i] = i + 1; auto t = meet.arrive(); ⟨¦meet.wait(std::move(t));⟩ out[128 +
    i] = out[i ^ 32]; }

//# barrier_drop finds=RaceError:write-read b=64
KER NAME(ARGS) { __shared__ cuda::barrier<cuda::thread_scope_block> b; __shared__ u32 s[64]; if (TID == 0) init(&b, 64);
    s[TID] = 0; __syncthreads(); s[TID] = TID; if (TID < 32) { ⟨s[TID] = 9; b.arrive_and_drop(); s[TID] = 5;¦s[TID] = 5;
    b.arrive_and_drop();⟩ return; } b.arrive_and_wait(); out[TID] = s[TID - 32]; b.arrive_and_wait(); }

//# barrier_completion finds=RaceError:write-read b=64
struct Sum { u32* s; u32* r; __device__ void operator()() noexcept { u32 a = 0; for (int i = 0; i < 64; i++) a += s[i];
    *r = a; } };
KER NAME(ARGS) { typedef cuda::barrier<cuda::thread_scope_block, Sum> B; __shared__ __align__(16) char raw[sizeof(B)];
    __shared__ u32 s[64], r; auto* b = (B*)raw; if (TID == 0) new (b) B(64, Sum{s, &r}); s[TID] = 0; if (TID == 0) r =
    0; __syncthreads(); s[TID] = TID; ⟨(void)b->arrive();¦b->arrive_and_wait();⟩ out[TID] = r; }

//# atomic_wait_notify finds=RaceError:write-read g=2 b=32
KER NAME(ARGS) { if (TID) return; cuda::atomic_ref<u32, cuda::thread_scope_device> f(cnt[0]); if (BID == 0) { out[8] =
    5; f.store(1, cuda::memory_order_⟨relaxed¦release⟩); f.notify_all(); } else { f.wait(0, cuda::memory_order_acquire);
    out[9] = out[8]; } }

//# system_scope finds=RaceError:write-read g=2 b=32
KER NAME(ARGS) { if (TID) return; cuda::atomic_ref<u32, cuda::thread_scope_system> f(cnt[0]); if (BID == 0) { out[8] =
    5; f.store(1, cuda::memory_order_⟨relaxed¦release⟩); } else { while (!f.load(cuda::memory_order_acquire)); out[9] =
    out[8]; } }

//# thread_scope_flag finds=RaceError:write-read g=1 b=64
KER NAME(ARGS) { if (TID % 32) return; cuda::atomic_ref<u32, cuda::thread_scope_block> f(cnt[0]); if (TID == 0) { out[8]
    = 5; f.fetch_or(1, cuda::memory_order_⟨acquire¦release⟩); } else { while (!f.load(cuda::memory_order_acquire));
    out[9] = out[8]; } }

//# seq_cst_dekker finds=RaceError:write-write g=2 b=32
KER NAME(ARGS) { if (TID) return; cuda::atomic_ref<u32, cuda::thread_scope_device> mine(cnt[BID]), other(cnt[1 - BID]);
    mine.store(1, cuda::memory_order_⟨release¦seq_cst⟩); if (!other.load(cuda::memory_order_⟨acquire¦seq_cst⟩)) out[8] =
    BID; }

//# treiber_stack finds=RaceError:write-read g=2 b=32
KER NAME(ARGS) { if (TID) return; cuda::atomic_ref<u32, cuda::thread_scope_device> top(cnt[0]); if (BID == 0) for (u32 i
    = 1; i < 4; i++) { out[i * 2] = 10 + i; u32 t = top.load(cuda::memory_order_relaxed); do out[i * 2 + 1] = t; while
    (!top.compare_exchange_weak(t, i, cuda::memory_order_⟨relaxed¦release⟩, cuda::memory_order_relaxed)); } else { while
    (top.load(cuda::memory_order_relaxed) != 3); u32 t = top.exchange(0, cuda::memory_order_acquire), a = 0; while (t) {
    a += out[t * 2]; t = out[t * 2 + 1]; } out[9] = a; } }

//# reader_writer_lock finds=RaceError:read-write g=3 b=32
KER NAME(ARGS) { if (TID) return; cuda::atomic_ref<int, cuda::thread_scope_device> l(*(int*)&cnt[0]); if (BID == 0) {
    int e; do e = 0; while (!l.compare_exchange_weak(e, -1, cuda::memory_order_acquire, cuda::memory_order_relaxed));
    out[8] = 7; l.store(0, cuda::memory_order_release); } else { int e = l.load(cuda::memory_order_relaxed); do if (e <
    0) e = 0; while (!l.compare_exchange_weak(e, e + 1, cuda::memory_order_acquire, cuda::memory_order_relaxed));
    volatile u32 a = out[8]; (void)a; l.fetch_sub(1, cuda::memory_order_⟨relaxed¦release⟩); } }

//# volatile_message finds=warning g=2 b=32
KER NAME(ARGS) { if (TID) return; volatile u32* f = cnt; if (BID == 0) { out[8] = 5; __threadfence(); *f = 1; } else {
    while (!*f); ⟨¦__threadfence();⟩ out[9] = out[8]; } }

//# counting_semaphore finds=RaceError:write-read b=64
KER NAME(ARGS) { typedef cuda::counting_semaphore<cuda::thread_scope_block, 4> S; __shared__ __align__(8) char
    raw[sizeof(S)]; __shared__ u32 s[4]; auto* full = (S*)raw; if (TID == 0) new (full) S(0); if (TID < 4) s[TID] = 0;
    __syncthreads(); if (TID == 0) for (int i = 0; i < 4; i++) { ⟨full->release(); s[i] = i + 1;¦s[i] = i + 1;
    full->release();⟩ } if (TID == 32) for (int i = 0; i < 4; i++) { full->acquire(); out[i] = s[i]; } }

//# cub_scan_again finds=RaceError:read-write b=64
KER NAME(ARGS) { typedef cub::BlockScan<u32, 64, cub::BLOCK_SCAN_WARP_SCANS> S; __shared__ typename S::TempStorage t;
    u32 a = in[TID], b; S(t) .ExclusiveSum(a, b); ⟨¦__syncthreads();⟩ S(t).ExclusiveSum(b, a); out[TID] = a; }

//# cub_reduce_again finds=RaceError:read-write b=128
KER NAME(ARGS) { typedef cub::BlockReduce<u32, 128> R; __shared__ typename R::TempStorage t; u32 a = 0; for (int i = 0;
    i < 3; i++) { a += R(t).Sum(in[TID + i]); ⟨¦__syncthreads();⟩ } if (TID == 0) out[0] = a; }

//# cub_warp_storage finds=RaceError:write-write b=64
struct Less { __device__ bool operator()(u32 a, u32 b) const { return a < b; } };
KER NAME(ARGS) { typedef cub::WarpMergeSort<u32, 2> M; __shared__ typename M::TempStorage t[2]; u32 k[2] = {in[TID] ^
    21, in[TID + 64] ^ 9}; M(t[⟨0¦TID / 32⟩]).Sort(k, Less()); out[TID * 2] = k[0]; out[TID * 2 + 1] = k[1]; }

//# cub_radix_sort_union finds=RaceError:write-read b=64
KER NAME(ARGS) { typedef cub::BlockRadixSort<u32, 64, 2> R; __shared__ union { typename R::TempStorage t; u32 s[128]; }
    u; u.s[TID] = in[TID] * 7 % 64; u.s[TID + 64] = in[TID] * 11 % 64; __syncthreads(); u32 k[2] = {u.s[TID ^ 33],
    u.s[64 + (TID ^ 34)]}; ⟨¦__syncthreads();⟩ R(u.t).Sort(k); out[TID * 2] = k[0]; out[TID * 2 + 1] = k[1]; }

//# cub_load_twice finds=RaceError:read-write b=64
KER NAME(ARGS) { typedef cub::BlockLoad<u32, 64, 4, cub::BLOCK_LOAD_TRANSPOSE> L; __shared__ typename L::TempStorage t;
    u32 v[4], w[4]; L(t).Load(in, v); ⟨¦__syncthreads();⟩ L(t).Load(in + 256, w); for (int i = 0; i < 4; i++) out[TID *
    4 + i] = v[i] + w[i]; }

//# cub_load_and_store finds=RaceError:read-write b=64
KER NAME(ARGS) { typedef cub::BlockLoad<u32, 64, 4, cub::BLOCK_LOAD_TRANSPOSE> L; typedef cub::BlockStore<u32, 64, 4,
    cub::BLOCK_STORE_TRANSPOSE> S; __shared__ union { typename L::TempStorage l; typename S::TempStorage s; u32 x[256];
    } u; u32 v[4]; L(u.l).Load(in, v); ⟨u.x[TID ^ 9] = 0;¦⟩ S(u.s).Store(out, v); }

//# cub_exchange finds=RaceError:read-write b=64
KER NAME(ARGS) { typedef cub::BlockExchange<u32, 64, 4> X; __shared__ typename X::TempStorage t; u32 v[4]; for (int i =
    0; i < 4; i++) v[i] = in[TID * 4 + i]; X(t).BlockedToStriped(v); ⟨¦__syncthreads();⟩ X(t).BlockedToStriped(v); for
    (int i = 0; i < 4; i++) out[TID * 4 + i] = v[i]; }

//# cub_discontinuity finds=RaceError:read-write b=64
KER NAME(ARGS) { typedef cub::BlockDiscontinuity<u32, 64> D; __shared__ typename D::TempStorage t; int h[1]; u32 v[1] =
    {in[TID] / 3}; D(t).FlagHeads(h, v, cuda::std::not_equal_to<>()); ⟨¦__syncthreads();⟩ int h2[1]; v[0] = h[0];
    D(t).FlagHeads(h2, v, cuda::std::not_equal_to<>()); out[TID] = h2[0]; }

//# cub_histogram finds=RaceError:write-read b=64
KER NAME(ARGS) { typedef cub::BlockHistogram<unsigned char, 64, 4, 16, cub::BLOCK_HISTO_ATOMIC> H; __shared__ typename
    H::TempStorage t; __shared__ u32 h[16]; unsigned char v[4]; for (int i = 0; i < 4; i++) v[i] = in[TID + i] & 15;
    H(t).Histogram(v, h); ⟨¦__syncthreads();⟩ if (TID < 16) out[TID] = h[TID ^ 5]; }

//# tile_of_64 finds=RaceError:write-read b=128
KER NAME(ARGS) { __shared__ cg::block_tile_memory<128> m; __shared__ u32 s[128]; auto b = cg::this_thread_block(m); auto
    t = cg::tiled_partition<64>(b); s[TID] = TID; ⟨cg::tiled_partition<32>(b).sync();¦t.sync();⟩ out[TID] = s[TID ^ 32];
    }

//# cluster_split_barrier finds=RaceError:write-read g=2 b=32 cluster=2
KER NAME(ARGS) { __shared__ u32 s[32]; auto c = cg::this_cluster(); s[TID] = 0; c.sync(); u32* o = c.map_shared_rank(s,
    c.block_rank() ^ 1); ⟨auto t = c.barrier_arrive(); o[TID] = BID * 32 + TID;¦o[TID] = BID * 32 + TID; auto t =
    c.barrier_arrive();⟩ c.barrier_wait(std::move(t)); out[BID * 32 + TID] = s[TID ^ 1]; c.sync(); }

//# remote_arrive_scope finds=RaceError:write-read g=2 b=32 cluster=2
KER NAME(ARGS) { __shared__ u64 b; __shared__ u32 s[32]; auto c = cg::this_cluster(); if (TID == 0) { mb_init(&b, 32);
    asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory"); } s[TID] = 0; c.sync(); if (BID == 0) {
    c.map_shared_rank(s, 1)[TID] = TID + 1; asm
    volatile("mbarrier.arrive.⟨relaxed¦release⟩.cluster.shared::cluster.b64 _, [%0];" :: "r"(mapa(&b, 1)) : "memory"); }
    else { asm
    volatile("{ .reg .pred q; L: mbarrier.try_wait.parity.acquire.cluster.shared.b64 q, [%0], 0; @!q bra L; }" ::
    "r"(sa(&b)) : "memory"); out[TID] = s[TID ^ 7]; } c.sync(); }

//# expect_behind_the_copy finds=MemoryFault:uninitialised b=32
KER NAME(ARGS) { __shared__ __align__(128) u32 s[128]; __shared__ u64 b; if (TID == 0) mb_init(&b, 2); __syncthreads();
    if (TID == 0) { mb_arrive(&b); bulk_load(s, in, 512, &b); asm
    volatile("mbarrier.expect_tx.relaxed.cta.shared.b64 [%0], ⟨256¦512⟩;" :: "r"(sa(&b)) : "memory"); ⟨asm
    volatile("mbarrier.complete_tx.relaxed.cta.shared.b64 [%0], 256;" :: "r"(sa(&b)) : "memory");¦⟩ mb_arrive(&b); }
    mb_wait(&b, 0); out[TID] = s[TID * 4]; }

//# pairs_of_lanes finds=RaceError:write-read b=32
KER NAME(ARGS) { __shared__ u32 s[32]; s[TID] = TID; u32 m = ⟨1u << TID¦3u << (TID & ~1u)⟩; __syncwarp(m); out[TID] =
    s[TID ^ 1]; }

//# match_groups finds=MemoryFault:uninitialised b=32
KER NAME(ARGS) { __shared__ u32 s[32]; u32 k = in[TID] % 5, m = __match_any_sync(~0u, k), l = __ffs(m) - 1; if (TID ==
    l) s[k] = TID; ⟨¦__syncwarp(m);⟩ out[TID] = s[k]; }

//# reduce_is_no_fence finds=RaceError:write-read b=32
KER NAME(ARGS) { __shared__ u32 s[32]; s[TID] = TID; u32 a = __reduce_add_sync(~0u, TID); ⟨¦__syncwarp();⟩ out[TID] =
    s[TID ^ 9] + a; }

//# syncthreads_or finds=RaceError:write-read b=64
KER NAME(ARGS) { __shared__ u32 s[64]; s[TID] = TID; int a = ⟨__any_sync(~0u, TID == 3)¦__syncthreads_or(TID == 3)⟩;
    out[TID] = s[TID ^ 36] + a; }

//# invoke_one finds=RaceError:write-read b=32
KER NAME(ARGS) { __shared__ u32 s; auto w = cg::tiled_partition<32>(cg::this_thread_block()); cg::invoke_one(w, [&] { s
    = in[3]; }); ⟨¦w.sync();⟩ out[TID] = s; }

//# memcpy_async_barrier finds=MemoryFault:uninitialised b=64
KER NAME(ARGS) { __shared__ cuda::barrier<cuda::thread_scope_block> b; __shared__ u32 s[64]; if (TID == 0) init(&b, 64);
    __syncthreads(); cuda::memcpy_async(&s[TID], &in[TID], sizeof(u32), b); ⟨(void)b.arrive();¦b.arrive_and_wait();⟩
    out[TID] = s[TID ^ 33]; }

//# grid_split_barrier finds=RaceError:write-read g=2 b=32 coop=1
KER NAME(ARGS) { auto g = cg::this_grid(); u32 i = BID * 32 + TID; ⟨auto t = g.barrier_arrive(); out[i] = i;¦out[i] = i;
    auto t = g.barrier_arrive();⟩ g.barrier_wait(std::move(t)); out[128 + i] = out[i ^ 32]; }

//# double_checked finds=warning g=4 b=32
KER NAME(ARGS) { if (TID) return; cuda::atomic_ref<u32, cuda::thread_scope_device> state(cnt[0]); u32 e = 0; if
    (state.load(cuda::memory_order_acquire) != 2) { if (state.compare_exchange_strong(e, 1, cuda::memory_order_relaxed))
    { out[8] = 5; state.store(2, cuda::memory_order_release); } else while
    (state.load(cuda::memory_order_⟨relaxed¦acquire⟩) != 2); } out[9 + BID] = out[8]; }
