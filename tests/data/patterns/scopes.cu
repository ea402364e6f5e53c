// Scopes, fences, partial masks and queues: what passes from thread to thread through others, and what does not.
//
// NAME of each kernel stands behind //#, with what its launch needs. ⟨racy¦mended⟩ is what tells its two forms apart.
#define VOLATILE(x) (*(volatile u32*)&(x))
#define FENCE(x) asm volatile("fence." x ";" ::: "memory")
template<class T> using block_ref = cuda::atomic_ref<T, cuda::thread_scope_block>;
template<class T> using device_ref = cuda::atomic_ref<T, cuda::thread_scope_device>;
template<class T> using system_ref = cuda::atomic_ref<T, cuda::thread_scope_system>;

//# pairs_in_a_row finds=RaceError:write-read b=32
KER NAME(ARGS) { __shared__ u32 s[4]; if (TID == 0) { s[in[0]] = 7; __syncwarp(3); } if (TID == 1) { ⟨__syncwarp(6);
    __syncwarp(3);¦__syncwarp(3); __syncwarp(6);⟩ } if (TID == 2) { __syncwarp(6); out[0] = s[cnt[0]]; } }

//# groups_of_eight_across finds=RaceError:write-read b=32
KER NAME(ARGS) { __shared__ u32 s[32]; u32 m = 0xffu << (TID & 24); s[TID] = TID; __syncwarp(m); u32 a = s[TID ^ 5];
    ⟨__syncwarp(m);¦__syncwarp();⟩ out[TID] = a + s[TID ^ 13]; }

//# half_matches finds=RaceError:write-read b=32
KER NAME(ARGS) { __shared__ u32 s[32]; if (TID < 16) { s[TID] = TID; u32 g = __match_any_sync(0xffff, TID / 4);
    ⟨¦__syncwarp(0xffff);⟩ out[TID] = g + s[TID ^ 9]; } }

//# half_reduces finds=RaceError:read-write b=32
KER NAME(ARGS) { __shared__ u32 s[32]; s[TID] = TID; __syncwarp(); if (TID >= 16) { u32 a = s[TID ^ 3]; u32 b =
    __reduce_add_sync(0xffff0000, a); ⟨¦__syncwarp(0xffff0000);⟩ s[TID] = b + 100; out[TID] = a; } }

//# match_all_of_a_part finds=RaceError:write-read b=32
KER NAME(ARGS) { __shared__ u32 s[8]; if (TID % 4 == 1) { s[TID / 4] = TID; int p; __match_all_sync(0x22222222, 5u, &p);
    ⟨¦__syncwarp(0x22222222);⟩ out[TID] = s[(TID / 4) ^ 7] + p; } }

//# leader_of_a_match_writes_for_all finds=MemoryFault:uninitialised b=32
KER NAME(ARGS) { __shared__ u32 s[4]; u32 g = __match_any_sync(~0u, TID % 4); if (TID == __ffs(g) - 1) s[TID % 4] =
    atomicAdd(cnt + TID % 4, __popc(g)); ⟨¦__syncwarp(g);⟩ out[TID] = s[TID % 4]; }

//# loop_left_in_turn finds=RaceError:write-read b=32
KER NAME(ARGS) { __shared__ u32 s[32]; u32 i = 0; for (; i <= TID % 4; i++) { s[TID] = i; } ⟨¦__syncwarp();⟩ u32 a =
    s[TID ^ 1]; out[TID] = a + i; }

//# fence_of_the_block_by_atomic_ref finds=RaceError:write-read g=2 b=32
KER NAME(ARGS) { if (TID) return; device_ref<u32> f(cnt[0]); if (BID == 0) { out[0] = 5; cuda::atomic_thread_fence(
    cuda::memory_order_release, ⟨cuda::thread_scope_block¦cuda::thread_scope_device⟩); f.store(1,
    cuda::memory_order_relaxed); } else { while (!f.load(cuda::memory_order_acquire)) {} out[1] = out[0]; } }

//# block_ref_in_one_block_and_another finds=RaceError:write-read g=2 b=64
KER NAME(ARGS) { block_ref<u32> mine(cnt[BID]); device_ref<u32> theirs(cnt[0]); if (BID == 0 && TID == 0) { out[0] = 5;
    ⟨mine¦theirs⟩.store(1, cuda::memory_order_release); } if (BID == 1 && TID == 0) { while (!theirs.load(
    cuda::memory_order_acquire)) {} out[1] = out[0]; } }

//# acquire_by_exchange finds=RaceError:write-read g=2 b=32
KER NAME(ARGS) { if (TID) return; device_ref<u32> f(cnt[0]); if (BID == 0) { out[0] = 5; f.store(1,
    cuda::memory_order_release); } else { u32 e; do e = 1; while (!f.compare_exchange_weak(e, 2,
    ⟨cuda::memory_order_release¦cuda::memory_order_acquire⟩, cuda::memory_order_relaxed)); out[1] = out[0]; } }

//# cache_operators_are_weak finds=RaceError:read-write g=2 b=32
KER NAME(ARGS) { if (TID) return; if (BID == 0) { out[0] = 5; __threadfence(); ⟨__stwt(cnt, 1);¦VOLATILE(cnt[0]) =
    1;⟩ } else { while (!⟨__ldcv(cnt)¦VOLATILE(cnt[0])⟩) {} __threadfence(); out[1] = out[0]; } }

//# volatile_data_plain_reader finds=RaceError:read-write g=2 b=32
KER NAME(ARGS) { if (TID) return; if (BID == 0) VOLATILE(cnt[0]) = 5; else { u32 v; do v = ⟨__ldcg(cnt)¦VOLATILE(cnt[0])⟩;
    while (!v); out[0] = v; } }

//# read_only_behind_a_grid_barrier finds=RaceError:non-coherent g=2 b=32 coop=1
KER NAME(ARGS) { out[BID * 32 + TID] = TID; cg::this_grid().sync(); u32 v = ⟨__ldg¦__ldcg⟩(out + ((BID ^ 1) * 32 + TID));
    out[100 + BID * 32 + TID] = v; }

//# tickets_and_turns finds=RaceError:write-read g=4 b=32
KER NAME(ARGS) { if (TID) return; device_ref<u32> ticket(cnt[0]), turn(cnt[1]); u32 t = ticket.fetch_add(1,
    cuda::memory_order_relaxed); while (turn.load(⟨cuda::memory_order_relaxed¦cuda::memory_order_acquire⟩) != t) {} out[0]
    += t; turn.store(t + 1, ⟨cuda::memory_order_relaxed¦cuda::memory_order_release⟩); }

//# slots_with_numbers finds=RaceError:write-read g=4 b=32
KER NAME(ARGS) { if (TID) return; if (BID < 2) { for (int i = 0; i < 4; i++) { u32 at = atomicAdd(cnt, 1); out[at] = BID
    * 10 + i; ⟨st_rlx¦st_rel⟩(cnt + 10 + at, 1); } } else for (int i = 0; i < 4; i++) { u32 at = atomicAdd(cnt + 1, 1);
    while (!ld_acq(cnt + 10 + at)) {} u32 v = out[at]; out[at] = 0; atomicAdd(out + 100, v); } }

//# slot_used_again finds=RaceError:read-write g=2 b=32
KER NAME(ARGS) { if (TID) return; for (u32 i = 0; i < 6; i++) { u32* seq = cnt + (i & 1); if (BID == 0) { while (ld_acq(seq) !=
    (i >> 1) * 2) {} out[i & 1] = i; st_rel(seq, (i >> 1) * 2 + 1); } else { while (ld_acq(seq) != (i >> 1) * 2 + 1) {}
    u32 v = out[i & 1]; ⟨st_rlx¦st_rel⟩(seq, (i >> 1) * 2 + 2); out[100 + i] = v; } } }

//# broadcast_by_a_lane_to_all_warps finds=RaceError:write-read b=128
KER NAME(ARGS) { __shared__ u32 v; if (TID < 32) { u32 a = in[TID]; a = __reduce_max_sync(~0u, a); if (cg::coalesced_threads()
    .thread_rank() == 0) v = a; ⟨__syncwarp();¦⟩ } ⟨¦__syncthreads();⟩ out[TID] = v; }

//# fence_and_barrier_of_fewer finds=RaceError:write-read g=2 b=96
KER NAME(ARGS) { if (BID == 0) { if (TID < 64) out[TID] = 1; ⟨if (TID < 32 || TID >= 64) BAR(1, 64);¦BAR(1, 96);⟩ if (TID == 64)
    { __threadfence(); atomicAdd(cnt, 1); } } else if (TID == 0) { while (!ld_rlx(cnt)) {} __threadfence(); out[100] =
    out[40]; } }

//# flag_through_a_third_block finds=RaceError:write-read g=3 b=32
KER NAME(ARGS) { if (TID) return; if (BID == 0) { out[0] = 5; st_rel(cnt, 1); } if (BID == 1) { while (!⟨ld_rlx¦ld_acq⟩(cnt)) {}
    st_rel(cnt + 1, 1); } if (BID == 2) { while (!ld_acq(cnt + 1)) {} out[1] = out[0]; } }

//# cluster_release_to_another_cluster finds=RaceError:read-write g=4 b=32 cluster=2
KER NAME(ARGS) { if (TID) return; if (BID == 0) { out[0] = 5; asm volatile("st.release.⟨cluster¦gpu⟩.global.u32 [%0], 1;" ::
    "l"(cnt) : "memory"); } if (BID == 2) { while (!ld_acq(cnt)) {} out[1] = out[0]; } }

//# async_store_read_by_a_warp_that_did_not_wait finds=MemoryFault:uninitialised g=2 b=64 cluster=2
KER NAME(ARGS) { __shared__ u32 s[32]; __shared__ u64 b; if (TID == 0) { mb_init(&b, 1); mb_expect(&b, 128); }
    cg::this_cluster().sync(); if (TID < 32) asm volatile(
    "st.async.shared::cluster.mbarrier::complete_tx::bytes.u32 [%0], %1, [%2];" :: "r"(mapa(s + TID, BID ^ 1)),
    "r"(TID), "r"(mapa(&b, BID ^ 1)) : "memory"); if (TID < 32) mb_wait(&b, 0); ⟨¦__syncthreads();⟩ if (TID >= 32) out[BID
    * 32 + TID - 32] = s[TID - 32]; cg::this_cluster().sync(); }

//# async_sum_and_plain_read finds=RaceError:write-read g=2 b=32 cluster=2
KER NAME(ARGS) { __shared__ u32 s; __shared__ u64 b; if (TID == 0) { s = 0; mb_init(&b, 1); mb_expect(&b, 128); }
    cg::this_cluster().sync(); asm volatile(
    "red.async.relaxed.cluster.shared::cluster.mbarrier::complete_tx::bytes.add.u32 [%0], %1, [%2];" ::
    "r"(mapa(&s, BID ^ 1)), "r"(TID), "r"(mapa(&b, BID ^ 1)) : "memory"); ⟨if (TID == 1)¦⟩ mb_wait(&b, 0); if (TID == 0)
    out[BID] = s; ⟨mb_wait(&b, 0);¦⟩ cg::this_cluster().sync(); }

//# state_of_an_mbarrier_by_shuffle finds=RaceError:write-read b=32
KER NAME(ARGS) { __shared__ u32 s[32]; __shared__ u64 b; if (TID == 0) mb_init(&b, 31); __syncwarp(); u64 state = 0; if
    (TID) { s[TID] = TID; asm volatile("mbarrier.arrive.shared.b64 %0, [%1];" : "=l"(state) : "r"(sa(&b)) : "memory"); }
    u64 other = __shfl_sync(~0u, state, 5); if (TID == 0) { ⟨¦u32 ok; do asm volatile(
    "{ .reg .pred q; mbarrier.test_wait.shared.b64 q, [%1], %2; selp.u32 %0, 1, 0, q; }" : "=r"(ok) : "r"(sa(&b)),
    "l"(other) : "memory"); while (!ok);⟩ out[0] = s[7] + (other == 1); } }

//# semaphore_of_three finds=RaceError:write-read g=2 b=32
KER NAME(ARGS) { if (TID) return; auto* sem = (cuda::counting_semaphore<cuda::thread_scope_device>*)(cnt + 32); if (BID == 0) {
    new (sem) cuda::counting_semaphore<cuda::thread_scope_device>(0); st_rel(cnt, 1); for (int i = 0; i < 3; i++) { out[i]
    = i + 1; ⟨if (i < 2)¦⟩ sem->release(); } ⟨st_rlx(cnt + 1, 1);¦⟩ } else { while (!ld_acq(cnt)) {} for (int i = 0; i < 3;
    i++) { ⟨if (i < 2)¦⟩ sem->acquire(); ⟨if (i == 2) while (!ld_rlx(cnt + 1)) {}¦⟩ out[10 + i] = out[i]; } } }

//# arrival_token_of_the_phase_before finds=RaceError:write-read b=64
KER NAME(ARGS) { __shared__ cuda::barrier<cuda::thread_scope_block> b; __shared__ u32 s[64]; if (TID == 0) init(&b, 64);
    __syncthreads(); auto t0 = b.arrive(); s[TID] = TID; ⟨¦b.wait(std::move(t0)); auto t1 = b.arrive();⟩ b.wait(std::move(⟨t0¦t1⟩));
    out[TID] = s[TID ^ 40]; }

//# one_flag_for_two_writers finds=RaceError:write-read g=3 b=32
KER NAME(ARGS) { if (TID) return; if (BID < 2) { out[BID] = 5; __threadfence(); ⟨st_rlx(cnt, 1)¦atomicAdd(cnt, 1)⟩; } else {
    while (ld_acq(cnt) < ⟨1¦2⟩) {} out[10] = out[0] + out[1]; } }

//# leader_waits_for_its_warp finds=RaceError:write-read g=2 b=32
KER NAME(ARGS) { if (BID == 0) { out[TID] = TID; __threadfence(); __syncwarp(); if (TID == 0) VOLATILE(cnt[0]) = 1; } else { if
    (TID == 0) { while (!VOLATILE(cnt[0])) {} ⟨¦__threadfence();⟩ } __syncwarp(); ⟨if (TID == 0) __threadfence();¦⟩ u32 v =
    out[TID ^ 9]; out[100 + TID] = v; } }

//# persistent_roles finds=RaceError:read-write g=2 b=96
KER NAME(ARGS) { __shared__ u32 tile, work[64]; for (;;) { if (TID == 64) tile = atomicAdd(cnt, 1); __syncthreads(); u32 t
    = tile; if (t >= 6) break; if (TID < 64) work[TID] = in[t * 64 + TID]; ⟨if (TID < 64) BAR(1, 64);¦BAR(1, 96);⟩ if (TID
    < 64) out[t * 64 + TID] = work[TID ^ 63]; } }

//# deque_of_a_task finds=RaceError:write-read g=2 b=64
KER NAME(ARGS) { device_ref<u32> head(cnt[0]), tail(cnt[1]); if (BID == 0) { for (u32 i = 0; i < 3; i++) { out[i * 64 + TID]
    = TID + i; __threadfence(); ⟨¦__syncthreads();⟩ if (TID == 0) tail.store(i + 1, cuda::memory_order_release); ⟨__syncthreads();¦⟩
    } } else { __shared__ u32 got; for (u32 i = 0; i < 3; i++) { if (TID == 0) { while (tail.load(cuda::memory_order_acquire)
    <= i) {} got = head.fetch_add(1, cuda::memory_order_relaxed); } __syncthreads(); u32 at = got; u32 v = out[at * 64 +
    (TID ^ 33)]; __syncthreads(); out[500 + at * 64 + TID] = v; } } }

//# stop_flag_read_by_all finds=RaceError:write-read g=2 b=64
KER NAME(ARGS) { if (BID == 0) { if (TID < 32) out[TID] = TID; ⟨¦__syncthreads();⟩ if (TID == 32) { __threadfence();
    VOLATILE(cnt[0]) = 1; } } else { while (!VOLATILE(cnt[0])) __nanosleep(20); __threadfence(); u32 v = out[TID & 31]; out[100
    + TID] = v; } }

//# vote_of_a_part_orders_nothing finds=RaceError:write-read b=32
KER NAME(ARGS) { __shared__ u32 s[32]; if (TID < 8) { s[TID] = in[TID]; ⟨if (__any_sync(0xff, in[TID] > 3))¦__syncwarp(0xff);⟩
    out[TID] = s[TID ^ 7]; } else s[TID] = 1; }

//# half_of_a_warp_at_a_time finds=RaceError:write-write b=32
KER NAME(ARGS) { __shared__ u32 s[16]; u32 m = TID < 16 ? 0xffff : 0xffff0000; if (TID < 16) { s[TID] = TID; __syncwarp(m);
    out[TID] = s[TID ^ 1]; } ⟨¦__syncwarp();⟩ if (TID >= 16) { s[TID - 16] = TID; __syncwarp(m); out[TID] = s[(TID - 16) ^ 1]; } }

//# cluster_fence_and_the_peers_flag finds=RaceError:write-read g=2 b=64 cluster=2
KER NAME(ARGS) { __shared__ u32 data[64], flag; auto c = cg::this_cluster(); if (TID == 0) flag = 0; data[TID] = 0; c.sync(); u32
    peer = c.block_rank() ^ 1; if (TID < 32) { c.map_shared_rank(data, peer)[TID] = TID + 1; __syncwarp(); if (TID == 0)
    { asm volatile("fence.acq_rel.⟨cta¦cluster⟩; st.relaxed.cluster.shared::cluster.u32 [%0], 1;" :: "r"(mapa(&flag, peer))
    : "memory"); } } if (TID == 32) { u32 v; do asm volatile("ld.acquire.cluster.shared::cta.u32 %0, [%1];" : "=r"(v) :
    "r"(sa(&flag)) : "memory"); while (!v); out[BID] = data[9]; } c.sync(); }

//# cluster_count_by_remote_atomics finds=RaceError:write-read g=4 b=32 cluster=4
KER NAME(ARGS) { __shared__ u32 count, row[4]; auto c = cg::this_cluster(); u32 r = c.block_rank(); if (TID == 0) { count = 0; }
    c.sync(); if (TID == 0) { c.map_shared_rank(row, 0)[r] = r + 5; asm volatile(
    "red.⟨relaxed¦release⟩.cluster.shared::cluster.add.u32 [%0], 1;" :: "r"(mapa(&count, 0)) : "memory"); if (r == 0) { u32
    v; do asm volatile("ld.acquire.cluster.shared::cta.u32 %0, [%1];" : "=r"(v) : "r"(sa(&count)) : "memory"); while (v <
    4); out[BID] = row[0] + row[1] + row[2] + row[3]; } } c.sync(); }

//# pointer_of_the_next_buffer finds=RaceError:write-read b=64
KER NAME(ARGS) { __shared__ u32 a[64], b[64]; u32 *now = a, *next = b; now[TID] = in[TID]; __syncthreads(); for (int i = 0; i < 3;
    i++) { next[TID] = now[(TID + 33) & 63] + 1; u32* t = now; now = next; next = t; ⟨if (i != 1)¦⟩ __syncthreads(); }
    out[TID] = now[TID ^ 33]; }

//# last_warp_by_a_shared_counter finds=RaceError:write-read b=128
KER NAME(ARGS) { __shared__ u32 n, part[4]; if (TID == 0) n = 0; __syncthreads(); u32 w = TID / 32, v = __reduce_add_sync(~0u,
    in[TID]); if (TID % 32 == 0) { part[w] = v; ⟨¦__threadfence_block();⟩ u32 k = atomicAdd_block(&n, 1); if (k == 3) {
    __threadfence_block(); out[0] = part[0] + part[1] + part[2] + part[3]; } } }

//# block_scope_atomics_of_two_blocks finds=RaceError:write-write g=2 b=32
KER NAME(ARGS) { if (TID == 0) ⟨atomicAdd_block¦atomicAdd⟩(out, 1); }

//# system_scope_pair_of_unlike_widths finds=RaceError:read-write g=2 b=32
KER NAME(ARGS) { if (TID) return; if (BID == 0) { out[0] = 5; system_ref<u64>(*(u64*)cnt).store(1,
    cuda::memory_order_release); } else { while (!⟨system_ref<u32>(cnt[0])¦system_ref<u64>(*(u64*)cnt)⟩.load(
    cuda::memory_order_acquire)) {} out[1] = out[0]; } }
