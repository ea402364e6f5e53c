// Queues in software, copies, clusters and roles that a block divides its threads into: the hand-over is what is wrong.
//
// NAME of each kernel stands behind //#, with what its launch needs. ⟨racy¦mended⟩ is what tells its two forms apart.
#define VOLATILE(x) (*(volatile u32*)&(x))
template<class T> using block_ref = cuda::atomic_ref<T, cuda::thread_scope_block>;
template<class T> using device_ref = cuda::atomic_ref<T, cuda::thread_scope_device>;

//# ring_of_a_warp_and_a_block finds=RaceError:read-write b=64
KER NAME(ARGS) { __shared__ u32 ring[4], head, tail; if (TID == 0) head = tail = 0; __syncthreads(); block_ref<u32> h(head),
    t(tail); if (TID == 0) for (u32 i = 0; i < 9; i++) { while (i - t.load(⟨cuda::memory_order_relaxed¦cuda::memory_order_acquire⟩)
    >= 4) {} ring[i % 4] = in[i]; h.store(i + 1, cuda::memory_order_release); } else if (TID == 32) for (u32 i = 0; i < 9;
    i++) { while (h.load(cuda::memory_order_acquire) <= i) {} out[i] = ring[i % 4]; t.store(i + 1,
    cuda::memory_order_release); } }

//# two_producers_one_ring finds=RaceError:write-read b=96
KER NAME(ARGS) { __shared__ u32 ring[8], claim, done; if (TID == 0) claim = done = 0; __syncthreads(); block_ref<u32> c(claim),
    d(done); if (TID % 32 == 0 && TID < 64) for (u32 i = 0; i < 4; i++) { u32 at = c.fetch_add(1,
    cuda::memory_order_relaxed); ring[at] = TID + i; ⟨d.fetch_add(1, cuda::memory_order_relaxed)¦d.fetch_add(1,
    cuda::memory_order_release)⟩; } else if (TID == 64) { while (d.load(cuda::memory_order_acquire) < 8) {} u32 a = 0; for
    (int i = 0; i < 8; i++) a += ring[i]; out[0] = a; } }

//# warps_take_tiles_by_a_lane finds=RaceError:write-read g=1 b=64
KER NAME(ARGS) { __shared__ u32 s[2][32]; u32 w = TID / 32, l = TID % 32; for (;;) { u32 t = 0; if (l == 0) t =
    atomicAdd(cnt, 1); t = __shfl_sync(~0u, t, 0); if (t >= 7) return; s[w][l] = in[t * 32 + l]; ⟨¦__syncwarp();⟩ out[t * 32 + l]
    = s[w][l ^ 21]; __syncwarp(); } }

//# tile_by_one_thread_for_two_roles finds=RaceError:write-read b=128
KER NAME(ARGS) { __shared__ u32 tile[2]; __shared__ u64 full[2], empty[2]; if (TID == 0) for (int i = 0; i < 2; i++) {
    mb_init(&full[i], 1); mb_init(&empty[i], 96); } __syncthreads(); if (TID < 32) { if (TID == 0) for (u32 i = 0; i < 6;
    i++) { if (i >= 2) mb_wait(&empty[i & 1], (i / 2 - 1) & 1); u32 t = atomicAdd(cnt, 1); ⟨mb_arrive(&full[i & 1]); tile[i &
    1] = t;¦tile[i & 1] = t; mb_arrive(&full[i & 1]);⟩ } } else for (u32 i = 0; i < 6; i++) { mb_wait(&full[i & 1], (i / 2) &
    1); u32 t = tile[i & 1]; mb_arrive(&empty[i & 1]); out[t * 96 + TID - 32] = TID; } }

//# copy_of_a_table_that_is_still_written finds=RaceError:proxy b=64
KER NAME(ARGS) { __shared__ __align__(16) u32 t[64], d[64]; __shared__ u64 b; if (TID == 0) mb_init(&b, 1); t[TID] = TID;
    ⟨fence_async();¦⟩ out[TID] = TID; ⟨¦asm volatile("fence.proxy.async.global;" ::: "memory");⟩ __syncthreads(); if (TID == 0) {
    mb_expect(&b, 256); bulk_load(d, out, 256, &b); } mb_wait(&b, 0); out[100 + TID] = d[TID] + t[TID]; }

//# store_of_a_tile_two_warps_made finds=RaceError:write-read b=64
KER NAME(ARGS) { __shared__ __align__(16) u32 t[64]; t[TID] = TID; fence_async(); ⟨if (TID < 32) __syncwarp();¦__syncthreads();⟩ if
    (TID == 0) { bulk_store(out, t, 256); bulk_commit(); bulk_wait(); } }

//# second_load_over_a_slow_reader finds=RaceError:read-write b=96
KER NAME(ARGS) { __shared__ __align__(16) u32 t[64]; __shared__ u64 b; if (TID == 0) mb_init(&b, 1); __syncthreads(); for (int i =
    0; i < 3; i++) { if (TID == 0) { mb_expect(&b, 256); bulk_load(t, in + 64 * i, 256, &b); } mb_wait(&b, i & 1); if (TID
    >= 32) out[i * 64 + TID - 32] = t[TID - 32]; ⟨if (TID < 64) BAR(1, 64);¦BAR(1, 96);⟩ } }

//# multicast_of_a_leader finds=MemoryFault:uninitialised g=2 b=32 cluster=2
KER NAME(ARGS) { __shared__ __align__(16) u32 t[32]; __shared__ u64 b; auto c = cg::this_cluster(); if (TID == 0) { mb_init(&b, 1);
    mb_expect(&b, 128); } c.sync(); if (c.block_rank() == 0 && TID == 0) asm volatile(
    "cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes.multicast::cluster [%0], [%1], 128, [%2], %3;" ::
    "r"(sa(t)), "l"(in), "r"(sa(&b)), "h"((short)3) : "memory"); ⟨if (c.block_rank() == 0) mb_wait(&b, 0); c.sync();¦mb_wait(&b,
    0);⟩ out[BID * 32 + TID] = t[TID ^ 1]; ⟨mb_wait(&b, 0);¦c.sync();⟩ }

//# chunks_of_two_groups finds=RaceError:write-read b=64
KER NAME(ARGS) { __shared__ u32 s[64]; u32 id = 1 + TID / 32; for (int i = 0; i < 3; i++) { s[TID] = in[i * 64 + TID]; BAR(id, 32);
    u32 v = s[TID ^ ⟨(i == 2 ? 32 : 1)¦1⟩]; BAR(id, 32); out[i * 64 + TID] = v; } }

//# exchange_of_halves_by_arrivals finds=RaceError:write-read b=64
KER NAME(ARGS) { __shared__ u32 a[32], c[32]; if (TID < 32) { a[TID] = TID; ARRIVE(1, 64); BAR(2, 64); out[TID] = c[TID ^ 3]; } else {
    c[TID - 32] = TID; ⟨ARRIVE(2, 64); c[TID - 32] = TID + 1;¦ARRIVE(2, 64);⟩ BAR(1, 64); out[TID] = a[(TID - 32) ^ 3]; } }

//# blocks_meet_by_a_generation finds=RaceError:write-read g=3 b=64
KER NAME(ARGS) { out[BID * 64 + TID] = TID; ⟨¦__threadfence();⟩ __syncthreads(); if (TID == 0) { device_ref<u32> n(cnt[0]), gen(cnt[1]);
    u32 g = gen.load(cuda::memory_order_relaxed); if (n.fetch_add(1, ⟨cuda::memory_order_relaxed¦cuda::memory_order_acq_rel⟩) ==
    2) { n.store(0, cuda::memory_order_relaxed); gen.store(g + 1, cuda::memory_order_release); } else while (gen.load(
    cuda::memory_order_acquire) == g) {} } __syncthreads(); out[1000 + BID * 64 + TID] = out[((BID + 1) % 3) * 64 + (TID ^ 33)]; }

//# fan_in_of_a_tree finds=warning g=7 b=32
KER NAME(ARGS) { if (TID) return; u32 v = BID + 1; u32 l = 2 * BID + 1; if (l < 7) { for (u32 k = l; k < l + 2; k++) { while
    (!⟨ld_rlx¦ld_acq⟩(cnt + k)) {} v += out[k]; } } out[BID] = v; st_rel(cnt + BID, 1); }

//# handed_down_a_tree finds=RaceError:write-read g=7 b=32
KER NAME(ARGS) { if (TID) return; if (BID) { u32 p = (BID - 1) / 2; while (!ld_acq(cnt + p)) {} out[BID] = out[0] + out[p]; } else
    out[0] = 3; ⟨st_rlx¦st_rel⟩(cnt + BID, 1); }

//# accumulates_in_turn_of_tiles finds=RaceError:write-read g=4 b=64
KER NAME(ARGS) { __shared__ u32 go; if (TID == 0) { while (ld_rlx(cnt) != BID) {} ⟨¦__threadfence();⟩ go = 1; } __syncthreads(); out[TID] =
    out[TID] * 2 + BID; __threadfence(); __syncthreads(); if (TID == 0) st_rlx(cnt, BID + go); }

//# counts_of_a_sort_added_early finds=RaceError:write-read g=2 b=64
KER NAME(ARGS) { __shared__ u32 h[16]; if (TID < 16) h[TID] = 0; __syncthreads(); atomicAdd_block(&h[in[TID] % 16], 1); ⟨__syncwarp();¦__syncthreads();⟩
    if (TID < 16) atomicAdd(out + TID, h[TID]); }

//# prefix_in_one_buffer finds=RaceError:read-write b=128
KER NAME(ARGS) { __shared__ u32 s[128]; s[TID] = in[TID]; __syncthreads(); for (int d = 1; d < 128; d *= 2) { u32 v = TID >= d ? s[TID -
    d] : 0; ⟨¦__syncthreads();⟩ s[TID] += v; __syncthreads(); } out[TID] = s[TID]; }

//# flags_of_warps_in_a_word finds=RaceError:write-read b=96
KER NAME(ARGS) { __shared__ u32 flags, part[3]; if (TID == 0) flags = 0; __syncthreads(); u32 w = TID / 32; if (TID % 32 == 0) { part[w] =
    in[TID]; ⟨¦__threadfence_block();⟩ atomicOr_block(&flags, 1u << w); if (w == 0) { while (VOLATILE(flags) != 7) {}
    __threadfence_block(); out[0] = part[0] + part[1] + part[2]; } } }

//# bytes_of_a_word_by_two_warps finds=RaceError:write-read b=64
KER NAME(ARGS) { __shared__ __align__(4) unsigned char s[256]; s[TID * 4] = TID; s[TID * 4 + 1] = 1; s[TID * 4 + 2] = 2; s[TID * 4 + 3] = 3;
    ⟨__syncwarp();¦__syncthreads();⟩ u32 v = *(u32*)&s[(TID ^ 40) * 4]; out[TID] = v; }

//# words_of_a_vector_by_two_warps finds=RaceError:write-read b=64
KER NAME(ARGS) { __shared__ __align__(16) u32 s[64]; s[TID] = in[TID]; ⟨__syncwarp();¦__syncthreads();⟩ if (TID < 16) { uint4 v =
    *(uint4*)&s[TID * 4]; out[TID] = v.x + v.y + v.z + v.w; } }

//# vector_over_words_that_are_read finds=RaceError:read-write b=64
KER NAME(ARGS) { __shared__ __align__(16) u32 s[64]; s[TID] = in[TID]; __syncthreads(); u32 v = s[TID ^ 33]; ⟨__syncwarp();¦__syncthreads();⟩
    if (TID < 16) *(uint4*)&s[TID * 4] = make_uint4(1, 2, 3, TID); out[TID] = v; __syncthreads(); out[64 + TID] = s[TID]; }

//# halves_of_a_register_pair finds=RaceError:write-read g=2 b=32
KER NAME(ARGS) { u64* o = (u64*)out; if (BID == 0) { o[TID] = TID; __threadfence(); __syncwarp(); if (TID == 0) VOLATILE(cnt[0]) = 1; }
    else { while (!VOLATILE(cnt[0])) {} ⟨¦__threadfence();⟩ out[200 + TID] = out[2 * TID] + out[2 * (TID ^ 1) + 1]; } }

//# grid_constant_of_the_last_block finds=RaceError:write-read g=5 b=32
KER NAME(ARGS) { __shared__ bool last; out[BID * 32 + TID] = TID; ⟨¦__threadfence();⟩ __syncthreads(); if (TID == 0) last =
    atomicInc(cnt, gridDim.x - 1) == gridDim.x - 1; __syncthreads(); if (last) { ⟨¦__threadfence();⟩ u32 a = 0; for (int i = 0; i < 5; i++) a +=
    out[i * 32 + (TID ^ 1)]; out[1000 + TID] = a; } }

//# lock_by_a_lane_for_its_warp finds=RaceError:write-read g=3 b=32
KER NAME(ARGS) { if (TID == 0) { while (atomicCAS(cnt, 0, 1)) {} __threadfence(); } __syncwarp(); out[TID] += BID + 1; ⟨__threadfence();¦__threadfence();
    __syncwarp();⟩ if (TID == 0) { atomicExch(cnt, 0); } }

//# try_lock_in_a_loop finds=RaceError:write-write g=2 b=32
KER NAME(ARGS) { for (int l = 0; l < 3; l++) if (TID == l) { bool done = false; while (!done) if (atomicCAS(cnt, 0, 1) == 0) {
    ⟨¦__threadfence();⟩ out[0] += 1; ⟨¦__threadfence();⟩ atomicExch(cnt, 0); done = true; } } }

//# epoch_of_two_buffers finds=RaceError:read-write g=2 b=32
KER NAME(ARGS) { for (u32 i = 0; i < 5; i++) { if (BID == 0) { if (TID == 0 && i >= ⟨3¦2⟩) while ((int)ld_acq(cnt + 1) < (int)i - ⟨2¦1⟩) {}
    __syncwarp(); out[(i & 1) * 32 + TID] = i * 100 + TID; __threadfence(); __syncwarp(); if (TID == 0) st_rel(cnt, i + 1); }
    else { if (TID == 0) while (ld_acq(cnt) <= i) {} __syncwarp(); u32 v = out[(i & 1) * 32 + (TID ^ 1)]; __syncwarp(); out[500 + i *
    32 + TID] = v; __threadfence(); __syncwarp(); if (TID == 0) st_rel(cnt + 1, i + 1); } } }
