// Idioms of other people's code: warps, groups, flags, copies, bounds and values. See tests/support/findings/patterns.py.

//# shared_next_array finds=MemoryFault:out-of-bounds b=64
KER NAME(ARGS) { __shared__ u32 a[64], b[64]; b[TID] = TID; __syncthreads(); a[TID + ⟨1¦0⟩] = in[TID]; __syncthreads();
    out[TID] = a[63 - TID] + b[TID]; }

//# shared_next_read finds=MemoryFault:out-of-bounds b=64
KER NAME(ARGS) { __shared__ u32 a[64], b[64]; a[TID] = TID; b[TID] = in[TID]; __syncthreads();
    out[TID] = a[TID + ⟨1¦0⟩] + b[63 - TID]; }

//# shared_row_overflow finds=MemoryFault:out-of-bounds b=64
KER NAME(ARGS) { __shared__ u32 t[8][9], sums[8]; if (TID < 8) sums[TID] = 0; __syncthreads(); t[TID / 8 + ⟨1¦0⟩][TID % 8]
    = in[TID]; __syncthreads(); atomicAdd(&sums[TID / 8], 1u); __syncthreads(); out[TID] = sums[TID % 8] + t[TID / 8 +
    ⟨1¦0⟩][TID % 8]; }

//# shared_before finds=MemoryFault:out-of-bounds b=64
KER NAME(ARGS) { __shared__ u32 h[32], v[64]; if (TID < 32) h[TID] = 7; v[TID] = in[TID]; __syncthreads(); u32 left =
    ⟨v[(int)TID - 1]¦TID ? v[TID - 1] : 0⟩; out[TID] = left + v[TID] + h[TID % 32]; }

//# activemask_count finds=ScheduleError b=32
KER NAME(ARGS) { u32 m; ⟨if (in[TID] & 1) m = __activemask(); else m = 0;¦m = __ballot_sync(~0u, in[TID] & 1); if (!(in[TID]
    & 1)) m = 0;⟩ out[TID] = __popc(m); }

//# activemask_shfl finds=UndefinedError b=32
KER NAME(ARGS) { u32 v = in[TID]; if (TID >= 4) { u32 m = ⟨__activemask()¦~15u⟩; v = __shfl_sync(m, v, ⟨0¦4⟩); } out[TID] = v; }

//# activemask_aggregate finds=RaceError:read-write b=64
KER NAME(ARGS) { if (in[TID] % 3 == 0) { auto g = cg::coalesced_threads(); u32 base = 0; if (g.thread_rank() == 0) base =
    atomicAdd(&cnt[0], g.size()); base = g.shfl(base, 0); atomicAdd(&cnt[1], TID); } __syncthreads();
    ⟨out[0] = cnt[1]; if (TID == 63) cnt[1] = 0;¦if (TID == 0) out[0] = cnt[1];⟩ }

//# ballot_compact finds=RaceError:write-read b=64
KER NAME(ARGS) { __shared__ u32 n[2], s[64]; u32 w = TID / 32, l = TID % 32; bool k = in[TID] % 3 == 0; u32 m =
    __ballot_sync(~0u, k); if (l == 0) n[w] = __popc(m); ⟨__syncwarp()¦__syncthreads()⟩; u32 base = w ? n[0] : 0; if (k)
    s[base + __popc(m & ((1u << l) - 1))] = in[TID]; __syncthreads(); if (TID < n[0] + n[1]) out[TID] = s[TID]; }

//# shfl_exited finds=UndefinedError b=32
KER NAME(ARGS) { if (TID >= 20) return; u32 v = in[TID]; v += __shfl_down_sync(⟨~0u¦0xFFFFFu⟩, v, ⟨16¦0⟩); out[TID] = v; }

//# tiled_reduce finds=RaceError:write-read b=64
KER NAME(ARGS) { __shared__ u32 p[8]; auto b = cg::this_thread_block(); auto t = cg::tiled_partition<8>(b); u32 v =
    cg::reduce(t, in[TID], cg::plus<u32>()); if (t.thread_rank() == 0) p[t.meta_group_rank()] = v; ⟨t.sync()¦b.sync()⟩;
    if (TID < 8) out[TID] = p[TID]; }

//# binary_parts finds=RaceError:write-read b=32
KER NAME(ARGS) { __shared__ u32 s[32]; auto w = cg::tiled_partition<32>(cg::this_thread_block()); auto h =
    cg::binary_partition(w, TID % 2 == 0); s[TID] = in[TID]; ⟨h¦w⟩.sync(); out[TID] = s[TID ^ 1]; }

//# labeled_parts finds=RaceError:write-read b=32
KER NAME(ARGS) { __shared__ u32 s[32]; auto w = cg::coalesced_threads(); auto h = cg::labeled_partition(w, TID % 4);
    s[TID] = in[TID]; ⟨h¦w⟩.sync(); out[TID] = s[TID ^ 1]; }

//# grid_two_phase finds=RaceError:write-read g=3 b=32 coop=1
KER NAME(ARGS) { auto g = cg::this_grid(); out[1024 + g.thread_rank()] = in[g.thread_rank()]; ⟨__threadfence();
    cg::this_thread_block().sync()¦g.sync()⟩; out[g.thread_rank()] = out[1024 + 95 - g.thread_rank()]; }

//# cuda_barrier_tokens finds=RaceError:write-read b=64
KER NAME(ARGS) { __shared__ cuda::barrier<cuda::thread_scope_block> bar; __shared__ u32 s[64]; if (TID == 0) init(&bar,
    64); __syncthreads(); s[TID] = in[TID]; auto t = bar.arrive(); ⟨¦bar.wait(std::move(t));⟩ out[TID] = s[63 - TID]; }

//# cuda_barrier_count finds=Deadlock b=64
KER NAME(ARGS) { __shared__ cuda::barrier<cuda::thread_scope_block> bar; if (TID == 0) init(&bar, ⟨65¦64⟩);
    __syncthreads(); bar.arrive_and_wait(); out[TID] = 1; }

//# pipeline_release_early finds=RaceError:write-write b=64
KER NAME(ARGS) { __shared__ u32 s[2][64]; __shared__ cuda::pipeline_shared_state<cuda::thread_scope_block, 2> st; auto b =
    cg::this_thread_block(); auto p = cuda::make_pipeline(b, &st); p.producer_acquire(); cuda::memcpy_async(b, s[0], in,
    256, p); p.producer_commit(); u32 a = 0; for (int i = 0; i < 6; i++) { if (i < 5) { p.producer_acquire();
    cuda::memcpy_async(b, s[(i + 1) ⟨* 0¦% 2⟩], in + 64 * i + 64, 256, p); p.producer_commit(); } p.consumer_wait(); a +=
    s[i ⟨* 0¦% 2⟩][63 - TID]; p.consumer_release(); } out[TID] = a; }

//# pipeline_no_wait finds=MemoryFault:uninitialised b=64
KER NAME(ARGS) { __shared__ u32 s[64]; __shared__ cuda::pipeline_shared_state<cuda::thread_scope_block, 1> st; auto b =
    cg::this_thread_block(); auto p = cuda::make_pipeline(b, &st); p.producer_acquire(); cuda::memcpy_async(b, s, in, 256,
    p); p.producer_commit(); ⟨__syncthreads()¦p.consumer_wait()⟩; out[TID] = s[63 - TID]; ⟨¦p.consumer_release();⟩ }

//# atomic_ref_scope finds=RaceError:read-write g=2 b=32
KER NAME(ARGS) { cuda::atomic_ref<u32, cuda::thread_scope_⟨block¦device⟩> f(cnt[0]); if (TID) return; if (BID == 0) { out[8] =
    in[3]; f.store(1, cuda::memory_order_release); } else { while (!f.load(cuda::memory_order_acquire)) {} out[0] = out[8];
    } }

//# atomic_ref_relaxed finds=RaceError:write-read g=2 b=32
KER NAME(ARGS) { cuda::atomic_ref<u32, cuda::thread_scope_device> f(cnt[0]); if (TID) return; if (BID == 0) { out[8] =
    in[3]; f.store(1, cuda::memory_order_⟨relaxed¦release⟩); } else { while (!f.load(cuda::memory_order_acquire)) {} out[0]
    = out[8]; } }

//# lookback finds=RaceError:write-read g=4 b=32
KER NAME(ARGS) { if (TID) return; u32 mine = in[BID + 1], sum = 0; out[64 + BID] = mine; ⟨¦__threadfence();⟩
    atomicExch(&cnt[BID], 1); for (int p = (int)BID - 1; p >= 0;) { u32 f = atomicAdd(&cnt[p], 0); if (!f) continue;
    __threadfence(); if (f == 2) { sum += out[128 + p]; break; } sum += out[64 + p]; p--; } out[128 + BID] = sum + mine;
    __threadfence(); atomicExch(&cnt[BID], 2); out[BID] = sum; }

//# stream_k_fixup finds=RaceError:write-read g=3 b=64
KER NAME(ARGS) { if (BID) { out[1024 + BID * 64 + TID] = in[TID] * BID; __syncthreads(); if (TID == 0) {
    ⟨¦__threadfence();⟩ atomicAdd(cnt, 1); } } else { if (TID == 0) { while (ld_acq(cnt) != 2) {} } __syncthreads(); out[TID] = out[1088 + TID]
    + out[1152 + TID]; } }

//# split_k_semaphore finds=RaceError:write-read g=3 b=64
KER NAME(ARGS) { if (TID == 0) while (ld_acq(cnt) != BID) {} ⟨__syncwarp()¦__syncthreads()⟩; out[TID] = (BID ? out[TID] : 0) +
    in[TID] * (BID + 1); __syncthreads(); if (TID == 0) { __threadfence(); st_rel(cnt, BID + 1); } }

//# persistent_tiles finds=RaceError:read-write g=2 b=64
KER NAME(ARGS) { __shared__ u32 tile; while (true) { if (TID == 0) tile = atomicAdd(cnt, 1); __syncthreads(); u32 t = tile;
    ⟨¦__syncthreads();⟩ if (t >= 5) break; out[t * 64 + TID] = in[TID] + t; } }

//# last_block finds=RaceError:write-read g=3 b=32
KER NAME(ARGS) { __shared__ bool last; if (TID == 0) { out[64 + BID] = in[BID]; ⟨¦__threadfence();⟩ last = atomicInc(cnt,
    2) == 2; } __syncthreads(); if (last && TID == 0) { __threadfence(); out[0] = out[64] + out[65] + out[66]; } }

//# histogram_private finds=RaceError:read-write b=64
KER NAME(ARGS) { __shared__ u32 h[2][16]; if (TID < 32) h[TID / 16][TID % 16] = 0; __syncthreads(); ⟨h[TID / 32][in[TID] %
    16]++¦atomicAdd(&h[TID / 32][in[TID] % 16], 1u)⟩; __syncthreads(); if (TID < 16) out[TID] = h[0][TID] + h[1][TID]; }

//# ring_queue finds=RaceError:write-read g=2 b=32
KER NAME(ARGS) { if (TID) return; for (u32 i = 0; i < 8; i++) { if (BID == 0) { ⟨¦while (i - ld_acq(cnt + 1) >= 4) {}⟩
    out[64 + i % 4] = in[i]; st_rel(cnt, i + 1); } else { while (ld_acq(cnt) <= i) {} out[i] = out[64 + i % 4];
    st_rel(cnt + 1, i + 1); } } }

//# three_threads finds=RaceError:write-read g=3 b=32
KER NAME(ARGS) { if (TID) return; if (BID == 0) { out[9] = in[7]; st_rel(cnt, 1); } if (BID == 1) { while
    (!⟨ld_rlx¦ld_acq⟩(cnt)) {} st_rel(cnt + 1, 1); } if (BID == 2) { while (!ld_acq(cnt + 1)) {} out[0] = out[9]; } }

//# seqlock finds=RaceError:write-read g=2 b=32
KER NAME(ARGS) { if (TID) return; u32* d = out + 64; if (BID == 0) { for (u32 i = 1; i < 3; i++) { st_rlx(cnt, 2 * i - 1);
    __threadfence(); ⟨d[0] = i; d[1] = i¦st_rlx(d, i); st_rlx(d + 1, i)⟩; st_rel(cnt, 2 * i); } } else { u32 a, b, s; do {
    s = ld_acq(cnt); a = ⟨d[0]¦ld_rlx(d)⟩; b = ⟨d[1]¦ld_rlx(d + 1)⟩; __threadfence(); } while ((s & 1) || ld_rlx(cnt) !=
    s); out[0] = a == b; } }

//# dekker finds=RaceError:write-read g=2 b=32
KER NAME(ARGS) { if (TID) return; st_rlx(cnt + BID, 1); ⟨asm volatile("fence.acq_rel.gpu;" ::: "memory")¦asm volatile(
    "fence.sc.gpu;" ::: "memory")⟩; if (ld_rlx(cnt + 1 - BID) == 0) out[8]
    += in[0]; }

//# volatile_poll finds=RaceError:write-read g=2 b=32
KER NAME(ARGS) { if (TID) return; volatile u32* f = cnt; if (BID == 0) { out[9] = in[1]; ⟨¦__threadfence();⟩ *f = 1; }
    else { while (!*f) {} __threadfence(); out[0] = out[9]; } }

//# cpasync_wait_count finds=MemoryFault:uninitialised b=32
KER NAME(ARGS) { __shared__ __align__(16) u32 s[2][128]; cpa(&s[0][4 * TID], in + 4 * TID); cpa_commit(); u32 a = 0; for
    (int i = 0; i < 4; i++) { if (i < 3) cpa(&s[(i + 1) % 2][4 * TID], in + 128 * (i + 1) + 4 * TID); cpa_commit();
    cpa_wait<⟨2¦1⟩>(); __syncwarp(); a += s[i % 2][127 - TID]; __syncwarp(); } out[TID] = a; }

//# cpasync_reuse finds=RaceError:read-write b=64
KER NAME(ARGS) { __shared__ __align__(16) u32 s[2][256]; cpa(&s[0][4 * TID], in + 4 * TID); cpa_commit(); u32 a = 0; for
    (int i = 0; i < 4; i++) { if (i < 3) cpa(&s[(i + 1) % 2][4 * TID], in + 256 * (i + 1) + 4 * TID); cpa_commit();
    cpa_wait<1>(); __syncthreads(); a += s[i % 2][255 - TID]; ⟨¦__syncthreads();⟩ } out[TID] = a; }

//# tma_bytes finds=Deadlock b=32
KER NAME(ARGS) { __shared__ __align__(128) u32 s[64]; __shared__ u64 b; if (TID == 0) { mb_init(&b, 1); mb_expect(&b,
    ⟨512¦256⟩); bulk_load(s, in, 256, &b); } __syncthreads(); mb_wait(&b, 0); out[TID] = s[TID]; }

//# tma_bytes_few finds=MemoryFault:uninitialised b=32
KER NAME(ARGS) { __shared__ __align__(128) u32 s[128]; __shared__ u64 b; if (TID == 0) { mb_init(&b, 1); mb_expect(&b,
    ⟨256¦512⟩); bulk_load(s, in, 256, &b); bulk_load(s + 64, in + 64, 256, &b); } __syncthreads(); mb_wait(&b, 0);
    out[TID] = s[TID] + s[64 + TID]; }

//# tma_parity finds=MemoryFault:uninitialised b=32
KER NAME(ARGS) { __shared__ __align__(128) u32 s[64]; __shared__ u64 b; if (TID == 0) { mb_init(&b, 1); mb_expect(&b, 256);
    bulk_load(s, in, 256, &b); } __syncthreads(); mb_wait(&b, ⟨1¦0⟩); out[TID] = s[TID]; }

//# tma_store_fence finds=RaceError:proxy b=64
KER NAME(ARGS) { __shared__ __align__(128) u32 s[64]; s[TID] = in[TID]; ⟨¦fence_async();⟩ __syncthreads(); if (TID == 0) {
    bulk_store(out, s, 256); bulk_commit(); bulk_wait_read(); } }

//# tma_store_reuse finds=RaceError:read-write b=64
KER NAME(ARGS) { __shared__ __align__(128) u32 s[64]; for (int i = 0; i < 2; i++) { s[TID] = in[TID] + i; fence_async();
    __syncthreads(); if (TID == 0) { bulk_store(out + 64 * i, s, 256); bulk_commit(); ⟨¦bulk_wait_read();⟩ }
    __syncthreads(); } if (TID == 0) bulk_wait(); }

//# mbarrier_no_sync finds=RaceError:write-read b=64
KER NAME(ARGS) { __shared__ u64 b; if (TID == 0) mb_init(&b, 64); ⟨¦__syncthreads();⟩ mb_arrive(&b); mb_wait(&b, 0);
    out[TID] = 1; }

//# dsmem_exit finds=RaceError:exit g=2 b=32 cluster=2
KER NAME(ARGS) { __shared__ u32 s[32]; auto c = cg::this_cluster(); s[TID] = in[TID]; c.sync(); out[BID * 32 + TID] =
    *c.map_shared_rank(s + TID, BID ^ 1); ⟨¦c.sync();⟩ }

//# dsmem_no_sync finds=MemoryFault:not-started g=2 b=32 cluster=2
KER NAME(ARGS) { __shared__ u32 s[32]; auto c = cg::this_cluster(); ⟨¦c.sync();⟩ atomicExch(c.map_shared_rank(s + TID, BID
    ^ 1), TID); ⟨__syncthreads()¦c.sync()⟩; out[BID * 32 + TID] = s[TID]; c.sync(); }

//# named_count finds=Deadlock b=96
KER NAME(ARGS) { __shared__ u32 s[32]; if (TID < 32) { s[TID] = in[TID]; ARRIVE(1, ⟨96¦64⟩); } else if (TID < 64) { BAR(1,
    ⟨96¦64⟩); out[TID] = s[TID - 32]; } }

//# divergent_barrier finds=Deadlock b=64
KER NAME(ARGS) { __shared__ u32 s[64]; s[TID] = in[TID]; if (TID < ⟨32¦64⟩) __syncthreads(); else { BAR(3, 64); } out[TID]
    = s[63 - TID]; }

//# warp_tree finds=MemoryFault:uninitialised b=32
KER NAME(ARGS) { __shared__ volatile u32 s[32]; s[TID] = in[TID]; ⟨¦__syncwarp();⟩ for (int o = 16; o; o /= 2) { u32 v =
    TID < o ? s[TID + o] : 0; ⟨¦__syncwarp();⟩ if (TID < o) s[TID] = s[TID] + v; ⟨¦__syncwarp();⟩ } if (TID == 0) out[0] =
    s[0]; }

//# stack_index finds=MemoryFault:out-of-bounds b=32
KER NAME(ARGS) { u32 v[8]; for (int i = 0; i < 8; i++) v[i] = in[i]; for (u32 i = 0; i < in[4] ⟨+ 5¦+ 4⟩; i++) v[in[i]] +=
    i; out[TID] = v[in[TID % 8]]; }

//# vector_align finds=MemoryFault:misaligned b=32
KER NAME(ARGS) { uint4 v = *(uint4*)(in + TID * 4 + ⟨1¦4⟩); out[TID] = v.x + v.w; }

//# index_overflow finds=MemoryFault:out-of-bounds b=32
KER NAME(ARGS) { int n = in[1] << 16, row = in[4] << 14, at = ⟨n * row¦0⟩ + (int)TID; long long far = ⟨(long long)(n | 1) *
    (row | 1) + TID - 1¦at⟩; out[TID] = in[far]; }

//# uninit_shared finds=MemoryFault:uninitialised b=32
KER NAME(ARGS) { __shared__ u32 s[33]; s[TID] = in[TID]; ⟨¦if (TID == 0) s[32] = 0;⟩ __syncwarp(); out[TID] = s[TID + 1]; }

//# uninit_register finds=UndefinedError b=32
KER NAME(ARGS) { u32 v; asm("{ .reg .u32 t; .reg .pred p; setp.lt.u32 p, %1, 20; ⟨¦mov.u32 t, 0;⟩ @p mov.u32 t, 5; mov.u32 "
    "%0, t; }" : "=r"(v) : "r"(TID)); out[TID] = v; }

//# pdl_wait finds=RaceError:previous-grid b=32 prev=1
KER NAME(ARGS) { u32 v = TID; ⟨¦cudaGridDependencySynchronize();⟩ v += in[TID]; out[TID] = v; }

//# bulk_reduce finds=RaceError:read-write b=64
KER NAME(ARGS) { __shared__ __align__(128) u32 s[64]; s[TID] = in[TID]; fence_async(); __syncthreads(); if (TID == 0) { asm
    volatile("cp.reduce.async.bulk.global.shared::cta.bulk_group.add.u32 [%0], [%1], 256;" :: "l"(cnt), "r"(sa(s)) :
    "memory"); bulk_commit(); ⟨¦bulk_wait_read();⟩ } __syncthreads(); s[TID] = 0; if (TID == 0) bulk_wait(); out[TID] =
    s[TID]; }

//# multi_cta_tail finds=RaceError:write-write g=2 b=64
KER NAME(ARGS) { u32 i = BID * ⟨63¦64⟩ + TID; out[i] = in[i] + BID; }

//# semaphore_binary finds=RaceError:write-read g=1 b=64
KER NAME(ARGS) { __shared__ cuda::std::aligned_storage<64, 64>::type raw; __shared__ u32 s; auto* sem =
    (cuda::binary_semaphore<cuda::thread_scope_block>*)&raw; if (TID == 0) { new (sem)
    cuda::binary_semaphore<cuda::thread_scope_block>(1); s = 0; } __syncthreads(); if (TID % 32 == 0) { ⟨¦sem->acquire();⟩
    s += in[TID] + 1; ⟨¦sem->release();⟩ } __syncthreads(); out[TID] = s; }

//# cpasync_past_array finds=MemoryFault:out-of-bounds b=32
KER NAME(ARGS) { __shared__ __align__(16) u32 a[128], b[128]; b[TID] = in[TID]; cpa(a + 4 * TID + ⟨4¦0⟩, in + 4 * TID);
    cpa_commit(); cpa_wait<0>(); __syncwarp(); out[TID] = a[127 - TID ⟨- 90¦⟩] + b[TID]; }

//# bulk_past_array finds=MemoryFault:out-of-bounds b=32
KER NAME(ARGS) { __shared__ __align__(128) u32 a[64], c[64]; __shared__ u64 b; if (TID == 0) { mb_init(&b, 1); mb_expect(&b,
    256); bulk_load(a + ⟨4¦0⟩, in, 256, &b); } c[TID] = TID; __syncthreads(); mb_wait(&b, 0); out[TID] = a[TID + 8] +
    c[TID ^ 1]; }

//# atomic_past_array finds=MemoryFault:out-of-bounds b=64
KER NAME(ARGS) { __shared__ u32 h[16], n[4]; if (TID < 16) h[TID] = 0; if (TID < 4) n[TID] = 0; __syncthreads();
    atomicAdd(&h[in[TID] % ⟨17¦16⟩], 1u); __syncthreads(); if (TID < 16) out[TID] = h[TID] + n[TID % 4]; }

//# static_into_dynamic finds=MemoryFault:out-of-bounds b=64 sm=512
KER NAME(ARGS) { extern __shared__ u32 d[]; __shared__ u32 a[64]; d[TID] = 1; a[TID] = in[TID]; __syncthreads(); u32 s = 0;
    for (u32 i = 0; i < in[⟨68¦64⟩]; i++) s += a[i]; out[TID] = s + d[TID ^ 32]; }

//# loop_pointer finds=MemoryFault:out-of-bounds b=32
KER NAME(ARGS) { __shared__ float w[32], x[64]; w[TID] = in[TID]; x[TID] = x[TID + 32] = 1; __syncwarp(); float s = 0, *p =
    w; for (u32 i = 0; i < in[⟨40¦32⟩]; i++, p++) s += *p * x[i]; out[TID] = s; }

//# two_arrays_by_choice finds=MemoryFault:uninitialised b=64
KER NAME(ARGS) { __shared__ u32 a[64], b[64]; u32 *from = a, *to = b; a[TID] = in[TID]; __syncthreads(); for (u32 i = 0; i <
    in[5]; i++) { to[TID] = from[63 - TID] + 1; ⟨¦__syncthreads();⟩ u32* t = from; from = to; to = t; } __syncthreads();
    out[TID] = from[TID]; }

//# struct_members finds=RaceError:write-write b=64
KER NAME(ARGS) { __shared__ struct { u32 a[64], b[64]; } s; s.a[TID + ⟨1¦0⟩] = in[TID]; if (TID == 1) s.b[0] = 3;
    __syncthreads(); out[TID] = s.a[63 - TID ⟨+ (TID == 63)¦⟩]; }

//# prefetch_overrun finds=MemoryFault:out-of-bounds b=32
KER NAME(ARGS) { u32 v = in[TID], s = 0; for (u32 i = 0; i < 128; i++) { u32 n = ⟨in[32 * (i + 1) + TID]¦i < 127 ? in[32 *
    (i + 1) + TID] : 0⟩; s += v; v = n; } out[TID] = s + v; }

//# vote_any_exit finds=RaceError:read-write b=64
KER NAME(ARGS) { __shared__ u32 go; if (TID == 0) go = 3; __syncthreads(); while (go) { ⟨¦__syncthreads();⟩ if (TID == 0)
    go--; __syncthreads(); out[TID] = go; } }

//# cg_reduce_stage finds=RaceError:read-write b=64
KER NAME(ARGS) { __shared__ u32 p[2]; auto b = cg::this_thread_block(); auto w = cg::tiled_partition<32>(b); for (u32 i = 0;
    i < 3; i++) { u32 v = cg::reduce(w, in[TID + i], cg::plus<u32>()); if (w.thread_rank() == 0) p[TID / 32] = v;
    b.sync(); out[i * 64 + TID] = p[0] + p[1]; ⟨w¦b⟩.sync(); } }

//# softmax_max finds=RaceError:read-write b=64
KER NAME(ARGS) { __shared__ float r[64]; r[TID] = in[TID]; __syncthreads(); for (int o = 32; o; o /= 2) { if (TID < o) r[TID]
    = fmaxf(r[TID], r[TID + o]); __syncthreads(); } float m = r[0]; ⟨¦__syncthreads();⟩ r[TID] = __expf(in[TID] - m);
    __syncthreads(); out[TID] = r[63 - TID] > 0; }

//# done_counter finds=RaceError:write-read g=3 b=64
KER NAME(ARGS) { __shared__ bool last; out[64 + BID * 64 + TID] = in[TID]; ⟨if (TID == 0) __threadfence();
    __syncthreads()¦__syncthreads(); if (TID == 0) __threadfence()⟩; if (TID == 0) last = atomicAdd(cnt, 1) == 2;
    __syncthreads(); if (last) { __threadfence(); out[TID] = out[64 + TID] + out[128 + TID] + out[192 + TID]; } }

//# thread_scope_wrong finds=RaceError:write-read g=2 b=32
KER NAME(ARGS) { if (TID) return; cuda::atomic_ref<u32, cuda::thread_scope_device> f(cnt[0]); if (BID == 0) { out[8] = 5;
    cuda::atomic_thread_fence(cuda::memory_order_release, cuda::thread_scope_⟨block¦device⟩); f.store(1,
    cuda::memory_order_relaxed); } else { while (!f.load(cuda::memory_order_relaxed)) {}
    cuda::atomic_thread_fence(cuda::memory_order_acquire, cuda::thread_scope_device); out[0] = out[8]; } }

//# shfl_width finds=UndefinedError b=32
KER NAME(ARGS) { u32 v = in[TID]; if (TID < 24) { for (int o = ⟨16¦4⟩; o; o /= 2) v += __shfl_xor_sync(0xFFFFFF, v, o);
    out[TID] = v; } }

//# reduce_partial finds=UndefinedError b=48
KER NAME(ARGS) { u32 v = in[TID]; u32 m = TID < 32 ? ~0u : 0xFFFF; for (int o = ⟨16¦TID < 32 ? 16 : 8⟩; o; o /= 2) v +=
    __shfl_down_sync(m, v, o); if (TID % 32 == 0) out[TID] = v; }

//# mbarrier_reinit_stage finds=Deadlock b=64
KER NAME(ARGS) { __shared__ u64 full; __shared__ u32 s; if (TID == 0) mb_init(&full, 1); __syncthreads(); for (u32 i = 0; i
    < 3; i++) { if (TID == 0) { s = in[i]; mb_arrive(&full); } mb_wait(&full, ⟨0¦i & 1⟩); out[i * 64 + TID] = s;
    __syncthreads(); if (⟨TID == 0 && i == 2¦false⟩) mb_wait(&full, 1); } }

//# setmaxnreg_roles finds=MemoryFault:uninitialised b=256
KER NAME(ARGS) { __shared__ u32 s[128]; if (TID < 128) { asm volatile("setmaxnreg.dec.sync.aligned.u32 40;"); s[TID] =
    in[TID]; ARRIVE(2, 256); } else { asm volatile("setmaxnreg.inc.sync.aligned.u32 232;"); ⟨BAR(3, 128)¦BAR(2, 256)⟩;
    out[TID] = s[255 - TID]; } }
