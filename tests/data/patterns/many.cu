// So many barriers, fences, readers or atomics that whoever remembers only some of them gives another verdict.
//
// NAME of each kernel stands behind //#, with what its launch needs. ⟨racy¦mended⟩ is what tells its two forms apart.
__device__ inline void bulk_add(void* d, const void* s, u32 n) { asm volatile("cp.reduce.async.bulk.global.shared::cta.bulk_group.add.u32 [%0], [%1], %2;" :: "l"(d), "r"(sa(s)), "r"(n) : "memory"); }
#define VOLATILE(x) (*(volatile u32*)&(x))

//# forty_barriers finds=RaceError:write-read b=64
KER NAME(ARGS) { __shared__ __align__(16) u32 t[40][4]; __shared__ u64 b[40]; __shared__ u32 flag; if (TID == 0) { flag =
    0; for (int i = 0; i < 40; i++) mb_init(&b[i], 1); } __syncthreads(); if (TID == 0) for (int i = 0; i < 40; i++) {
    mb_expect(&b[i], 16); bulk_load(t[i], in, 16, &b[i]); } if (TID == 32) { mb_wait(&b[38], 0); VOLATILE(flag) = 1; } if
    (TID == 0) { while (!VOLATILE(flag)) {} mb_wait(&b[⟨39¦38⟩], 0); out[0] = t[38][1]; mb_wait(&b[39], 0); for (int i =
    0; i < 38; i++) mb_wait(&b[i], 0); } }

//# forty_barriers_of_a_cluster finds=RaceError:write-read b=32 g=4 cluster=4
KER NAME(ARGS) { __shared__ __align__(16) u32 t[10][4]; __shared__ u64 b[10]; if (TID == 0) { for (int i = 0; i < 10;
    i++) { mb_init(&b[i], 1); mb_expect(&b[i], 16); bulk_load(t[i], in, 16, &b[i]); } } __syncwarp(); if (TID == 1) {
    mb_wait(&b[8], 0); st_rlx(cnt + BID, 1); } if (TID == 0) { while (!ld_rlx(cnt + BID)) {} mb_wait(&b[⟨9¦8⟩], 0);
    out[BID] = t[8][1]; for (int i = 0; i < 10; i++) mb_wait(&b[i], 0); } }

//# forty_barriers_of_a_warp finds=RaceError:write-read b=32
KER NAME(ARGS) { __shared__ __align__(16) u32 t[40][4]; __shared__ u64 b[40]; if (TID == 0) { for (int i = 0; i < 40;
    i++) { mb_init(&b[i], 1); mb_expect(&b[i], 16); bulk_load(t[i], in, 16, &b[i]); } } __syncwarp(); if (TID == 1) {
    mb_wait(&b[38], 0); st_rlx(cnt, 1); } if (TID == 0) { while (!ld_rlx(cnt)) {} mb_wait(&b[⟨39¦38⟩], 0); out[0] =
    t[38][1]; for (int i = 0; i < 40; i++) mb_wait(&b[i], 0); } }

//# forty_barriers_of_a_warp_in_phases finds=RaceError:write-write b=32
KER NAME(ARGS) { __shared__ __align__(16) u32 t[40][4]; __shared__ u64 full[40], empty[40]; if (TID == 0) for (int i =
    0; i < 40; i++) { mb_init(&full[i], 1); mb_init(&empty[i], 1); } fence_async(); __syncwarp(); if (TID == 0) for (int
    i = 0; i < 80; i++) { if (i >= 40⟨ && i != 60¦⟩) mb_wait(&empty[i - 40], 0); mb_expect(&full[i % 40], 16);
    bulk_load(t[i % 40], in, 16, &full[i % 40]); } else if (TID == 1) { u32 a = 0; for (int i = 0; i < 80; i++) {
    mb_wait(&full[i % 40], i / 40); a += t[i % 40][1]; mb_arrive(&empty[i % 40]); } out[0] = a; } }

//# eighty_barriers_of_two_warps_of_a_cluster finds=RaceError:write-read b=32 g=2 cluster=2
KER NAME(ARGS) { __shared__ __align__(16) u32 t[40][4]; __shared__ u64 b[40]; if (TID == 0) { for (int i = 0; i < 40;
    i++) { mb_init(&b[i], 1); mb_expect(&b[i], 16); bulk_load(t[i], in, 16, &b[i]); } } __syncwarp(); if (TID == 1) {
    mb_wait(&b[38], 0); st_rlx(cnt + BID, 1); } if (TID == 0) { while (!ld_rlx(cnt + BID)) {} mb_wait(&b[⟨39¦38⟩], 0);
    out[BID] = t[38][1]; for (int i = 0; i < 40; i++) mb_wait(&b[i], 0); } }

//# two_hundred_barriers_of_a_cluster finds=RaceError:write-read b=128 g=8 cluster=4
KER NAME(ARGS) { __shared__ __align__(16) u32 t[50][4]; __shared__ u64 b[50]; __shared__ u32 flag; if (TID == 0) { flag =
    0; for (int i = 0; i < 50; i++) mb_init(&b[i], 1); } __syncthreads(); if (TID == 0) for (int i = 0; i < 50; i++) {
    mb_expect(&b[i], 16); bulk_load(t[i], in, 16, &b[i]); } if (TID == 32) { mb_wait(&b[48], 0); VOLATILE(flag) = 1; } if
    (TID == 0) { while (!VOLATILE(flag)) {} mb_wait(&b[⟨49¦48⟩], 0); out[BID] = t[48][1]; for (int i = 0; i < 50; i++)
    mb_wait(&b[i], 0); } __syncthreads(); }

//# forty_chunks_by_fences finds=RaceError:write-read g=2 b=64
KER NAME(ARGS) { for (int i = 0; i < 40; i++) { if (BID == 0) { out[64 * i + TID] = i; ⟨__threadfence_block();¦__threadfence();⟩
    __syncthreads(); if (TID == 0) VOLATILE(cnt[i]) = 1; } else { if (TID == 0) { while (!VOLATILE(cnt[i])) {}
    __threadfence(); } __syncthreads(); u32 v = out[64 * i + (TID ^ 33)]; if (v > 4000) cnt[200] = v; } } }

//# forty_chunks_by_copies finds=RaceError:proxy g=2 b=32
KER NAME(ARGS) { __shared__ __align__(16) u32 t[32]; __shared__ u64 b; if (TID == 0) mb_init(&b, 1); __syncthreads();
    for (int i = 0; i < 40; i++) { if (BID == 0) { out[32 * i + TID] = i; ⟨¦asm volatile("fence.proxy.async.global;" :::
    "memory");⟩ __syncthreads(); if (TID == 0) st_rel(cnt + i, 1); } else if (TID == 0) { while (!ld_rlx(cnt + 39)) {} while
    (!ld_acq(cnt + i)) {} mb_expect(&b, 128); bulk_load(t, out + 32 * i, 128, &b); mb_wait(&b, i & 1); } } }

//# forty_chunks_fenced_late finds=RaceError:proxy g=2 b=32
KER NAME(ARGS) { __shared__ __align__(16) u32 t[32]; __shared__ u64 b; if (TID == 0) mb_init(&b, 1); __syncthreads();
    for (int i = 0; i < 40; i++) { if (BID == 0) { out[32 * i + TID] = i; if (i != 20) asm volatile(
    "fence.proxy.async.global;" ::: "memory"); ⟨¦if (i == 20) asm volatile("fence.proxy.async.global;" ::: "memory");⟩
    __syncwarp(); if (TID == 0) st_rel(cnt + i, 1); } else if (TID == 0) { while (!ld_rlx(cnt + 39)) {} while
    (!ld_acq(cnt + i)) {} mb_expect(&b, 128); bulk_load(t, out + 32 * i, 128, &b); mb_wait(&b, i & 1); } } }

//# forty_chunks_in_shared_memory finds=RaceError:proxy b=64
KER NAME(ARGS) { __shared__ __align__(16) u32 t[40][32]; __shared__ u64 full[40]; if (TID == 0) for (int i = 0; i < 40;
    i++) mb_init(&full[i], 32); __syncthreads(); for (int i = 0; i < 40; i++) { if (TID < 32) { t[i][TID] = i;
    ⟨¦fence_async();⟩ mb_arrive(&full[i]); } else if (TID == 32) { mb_wait(&full[i], 0); bulk_store(out + 32 * i, t[i],
    128); bulk_commit(); } } if (TID == 32) bulk_wait(); }

//# a_hundred_adders finds=RaceError:write-read b=160
KER NAME(ARGS) { __shared__ u32 x; if (TID == 0) x = 0; __syncthreads(); if (TID < 128) asm volatile(
    "red.relaxed.cta.shared.add.u32 [%0], 1;" :: "r"(sa(&x)) : "memory"); ⟨if (TID >= 32)¦⟩ BAR(1, ⟨128¦160⟩); if (TID
    == 128) out[0] = x; }

//# a_hundred_adding_blocks finds=RaceError:write-read g=100 b=32
KER NAME(ARGS) { __shared__ u32 last; if (TID == 0) { asm volatile("red.relaxed.gpu.global.add.u32 [%0], 1;" ::
    "l"(out) : "memory"); ⟨if (BID)¦⟩ { __threadfence(); last = atomicAdd(cnt, 1); if (last == ⟨98¦99⟩) {
    __threadfence(); cnt[5] = out[0]; } } } }

//# a_hundred_readers finds=RaceError:read-write g=100 b=32
KER NAME(ARGS) { if (TID == 0) { u32 v = out[7]; ⟨if (BID)¦⟩ { __threadfence(); u32 last = atomicAdd(cnt, 1); if (last
    == ⟨98¦99⟩) { __threadfence(); out[7] = 8; } } if (v > 9) cnt[200] = v; } }

//# readers_of_every_warp finds=RaceError:read-write b=1024
KER NAME(ARGS) { __shared__ u32 x; if (TID == 0) x = 5; __syncthreads(); u32 v = x; ⟨if (TID / 32 != 7)¦⟩ BAR(1,
    ⟨992¦1024⟩); if (TID == 64) x = 9; out[TID] = v; }

//# a_late_acquire_of_an_old_fence finds=RaceError:write-read g=2 b=32
KER NAME(ARGS) { if (TID == 0) { if (BID == 0) { out[0] = 5; ⟨¦__threadfence();⟩ VOLATILE(cnt[0]) = 1; for (int i = 0; i
    < 40; i++) { __threadfence(); VOLATILE(cnt[1 + i]) = 1; } } else { while (!VOLATILE(cnt[0])) {} __threadfence();
    out[1] = out[0]; } } }

//# an_old_fence_of_another_thread finds=RaceError:write-read g=2 b=64
KER NAME(ARGS) { if (BID == 0) { out[TID] = 5; ⟨if (TID < 32)¦⟩ __threadfence(); __syncthreads(); if (TID == 0)
    VOLATILE(cnt[0]) = 1; else for (int i = 0; i < 40; i++) __threadfence(); } else if (TID == 0) { while
    (!VOLATILE(cnt[0])) {} __threadfence(); out[100] = out[40]; } }

//# forty_rounds_of_a_ring finds=RaceError:read-write g=2 b=32
KER NAME(ARGS) { if (TID == 0) for (int i = 0; i < 40; i++) { u32* head = cnt; u32* tail = cnt + 1; if (BID == 0) {
    while (i - (int)⟨ld_rlx¦ld_acq⟩(tail) >= 4) {} out[i & 3] = i; st_rel(head, i + 1); } else { while ((int)ld_acq(head)
    <= i) {} u32 v = out[i & 3]; if (v > 100) cnt[200] = v; ⟨st_rlx¦st_rel⟩(tail, i + 1); } } }

//# a_chain_of_forty_blocks finds=RaceError:write-read g=40 b=32
KER NAME(ARGS) { if (TID == 0) { u32 v = 0; if (BID) { while (!ld_acq(cnt + BID - 1)) {} v = out[0] + out[BID - 1]; }
    out[BID] = v + 1; if (⟨BID != 20¦1⟩) st_rel(cnt + BID, 1); else st_rlx(cnt + BID, 1); } }

//# forty_phases_of_a_cluster finds=RaceError:write-read g=2 b=32 cluster=2
KER NAME(ARGS) { __shared__ u32 s[2][32]; auto c = cg::this_cluster(); u32 a = 0; for (int i = 0; i < 40; i++) { s[i &
    1][TID] = i; ⟨if (i != 30)¦⟩ c.sync(); a += c.map_shared_rank(s[i & 1], c.block_rank() ^ 1)[TID ^ 3]; } c.sync();
    out[BID * 32 + TID] = a; }

//# forty_groups_of_copies finds=MemoryFault:uninitialised b=32
KER NAME(ARGS) { __shared__ __align__(16) u32 t[40][128]; u32 a = 0; for (int i = 0; i < 40; i++) { cpa(&t[i][4 * TID],
    in + 4 * TID); cpa_commit(); if (i >= 3) { cpa_wait<⟨4¦3⟩>(); a += t[i - 3][4 * TID]; } } cpa_wait<0>(); out[TID] =
    a; }

//# forty_stores_in_flight finds=RaceError:read-write b=32
KER NAME(ARGS) { __shared__ __align__(16) u32 t[4][32]; for (int i = 0; i < 40; i++) { if (TID == 0) asm volatile(
    "cp.async.bulk.wait_group.read %0;" :: "n"(⟨4¦3⟩) : "memory"); __syncwarp(); t[i & 3][TID] = i; fence_async();
    __syncwarp(); if (TID == 0) { bulk_store(out + 32 * i, t[i & 3], 128); bulk_commit(); } } if (TID == 0) bulk_wait();
    }

//# ten_chunks_polled_ahead finds=RaceError:write-read g=2 b=64
KER NAME(ARGS) { if (BID == 0) { for (int i = 0; i < 10; i++) { out[64 * i + TID] = i; __threadfence(); __syncthreads();
    if (TID == 0) VOLATILE(cnt[0]) = i + 1; } } else if (TID < 32) { for (int i = 0; i < 10; i++) { if (TID == 0) while
    (VOLATILE(cnt[0]) <= i) {} __syncwarp(); ARRIVE(1 + i, 64); } } else for (int i = 0; i < 10; i++) { BAR(1 + i, 64);
    ⟨__threadfence_block();¦__threadfence();⟩ u32 v = out[64 * i + (TID ^ 33)]; if (v > 100) cnt[200] = v; } }

//# a_thousand_releasing_blocks finds=RaceError:write-read g=1200 b=64
KER NAME(ARGS) { __shared__ u32 n; if (TID == 0) { out[BID] = 1; ⟨¦__threadfence();⟩ asm volatile(
    "red.relaxed.gpu.global.add.u32 [%0], 1;" :: "l"(cnt) : "memory"); } __syncthreads(); if (BID == 1199 && TID == 32)
    { do n = ld_rlx(cnt); while (n < 1200); __threadfence(); u32 a = 0; for (int i = 0; i < 1200; i++) a += out[i];
    out[2000] = a; } }

//# a_thousand_releases_and_a_narrow_acquire finds=RaceError:write-read g=1200 b=96
KER NAME(ARGS) { if (TID == 0) { out[BID] = 1; ⟨¦asm volatile("fence.acq_rel.gpu;" ::: "memory");⟩ asm volatile(
    "red.relaxed.gpu.global.add.u32 [%0], 1;" :: "l"(cnt) : "memory"); } if (BID == 1199 && TID == 64) { while
    (ld_rlx(cnt) < 1200) {} asm volatile("red.relaxed.gpu.global.add.u32 [%0], 1;" :: "l"(cnt) : "memory"); } if (BID ==
    1199 && TID == 32) { while (ld_rlx(cnt) < 1201) {} asm volatile("fence.acq_rel.cta;" ::: "memory"); out[2000] =
    out[BID]; } }

//# a_hundred_reducing_blocks finds=RaceError:write-read b=32 g=100
KER NAME(ARGS) { __shared__ __align__(128) u32 t[32]; t[TID] = TID; fence_async(); __syncwarp(); if (TID == 0) { bulk_add(out, t,
    128); bulk_commit(); bulk_wait(); ⟨if (BID)¦⟩ { asm volatile("fence.proxy.async.global;" ::: "memory");
    __threadfence(); if (atomicAdd(cnt, 1) == ⟨98¦99⟩) { __threadfence(); cnt[5] = out[3]; } } } }

//# counters_fenced_by_one_warp finds=RaceError:proxy b=64
KER NAME(ARGS) { __shared__ __align__(16) u32 s[4]; if (TID < 4) s[TID] = 0; __syncthreads(); if (TID % 32 == 0) atomicAdd_block(&s[TID / 32 & 0], 1 +
    TID); ⟨if (TID >= 32)¦⟩ fence_async(); __syncthreads(); if (TID == 32) { bulk_store(out, s, 16); bulk_commit(); bulk_wait(); } }

//# counters_fenced_by_the_other_warp finds=RaceError:proxy b=64
KER NAME(ARGS) { __shared__ __align__(16) u32 s[4]; if (TID < 4) s[TID] = 0; __syncthreads(); if (TID % 32 == 0) atomicAdd_block(&s[TID / 32 & 0], 1 +
    TID); ⟨if (TID < 32)¦⟩ fence_async(); __syncthreads(); if (TID == 32) { bulk_store(out, s, 16); bulk_commit(); bulk_wait(); } }

//# counters_of_lanes_fenced_by_one finds=RaceError:proxy b=32
KER NAME(ARGS) { __shared__ __align__(16) u32 s[4]; if (TID < 4) s[TID] = 0; __syncwarp(); if (TID < 3) atomicAdd_block(&s[1], 1 + TID);
    ⟨if (TID == 2)¦⟩ fence_async(); __syncwarp(); if (TID == 2) { bulk_store(out, s, 16); bulk_commit(); bulk_wait(); } }

//# counters_of_lanes_fenced_by_the_first finds=RaceError:proxy b=32
KER NAME(ARGS) { __shared__ __align__(16) u32 s[4]; if (TID < 4) s[TID] = 0; __syncwarp(); if (TID < 3) atomicAdd_block(&s[1], 1 + TID);
    ⟨if (TID == 0)¦⟩ fence_async(); __syncwarp(); if (TID == 2) { bulk_store(out, s, 16); bulk_commit(); bulk_wait(); } }

//# sums_in_memory_fenced_by_one_block finds=RaceError:proxy g=3 b=32
KER NAME(ARGS) { __shared__ __align__(16) u32 d[4]; __shared__ u64 b; if (TID) return; if (BID < 2) { atomicAdd(out, 5); ⟨if (BID == 1)¦⟩ asm volatile(
    "fence.proxy.async.global;" ::: "memory"); __threadfence(); atomicAdd(cnt, 1); } else { mb_init(&b, 1); while (ld_acq(cnt) < 2) {} mb_expect(&b,
    16); bulk_load(d, out, 16, &b); mb_wait(&b, 0); out[100] = d[0]; } }

//# sums_in_memory_fenced_by_the_first_block finds=RaceError:proxy g=3 b=32
KER NAME(ARGS) { __shared__ __align__(16) u32 d[4]; __shared__ u64 b; if (TID) return; if (BID < 2) { atomicAdd(out, 5); ⟨if (BID == 0)¦⟩ asm volatile(
    "fence.proxy.async.global;" ::: "memory"); __threadfence(); atomicAdd(cnt, 1); } else { mb_init(&b, 1); while (ld_acq(cnt) < 2) {} mb_expect(&b,
    16); bulk_load(d, out, 16, &b); mb_wait(&b, 0); out[100] = d[0]; } }

//# two_stores_of_one_word_fenced_once finds=RaceError:proxy b=64
KER NAME(ARGS) { __shared__ __align__(16) u32 s[4]; if (TID < 4) s[TID] = 0; fence_async(); __syncthreads(); if (TID == 0) { s[1] = 5; ⟨¦fence_async();⟩ } BAR(1,
    64); if (TID == 32) { s[2] = 6; ⟨asm volatile("fence.proxy.async.global;" ::: "memory");¦fence_async();⟩ bulk_store(out, s, 16); bulk_commit(); bulk_wait(); } }

//# overwritten_by_a_load_over_counters finds=RaceError:proxy b=64
KER NAME(ARGS) { __shared__ __align__(16) u32 s[4]; __shared__ u64 b; if (TID < 4) s[TID] = 0; if (TID == 0) mb_init(&b, 1); fence_async(); __syncthreads(); if
    (TID % 32 == 0) atomicAdd_block(s, 1); ⟨if (TID >= 32)¦⟩ fence_async(); __syncthreads(); if (TID == 32) { out[50] = s[0]; mb_expect(&b, 16); bulk_load(s,
    in, 16, &b); mb_wait(&b, 0); out[0] = s[1]; } }

//# the_own_count_comes_last finds=RaceError:exit g=2 b=32 cluster=2
KER NAME(ARGS) { __shared__ u32 n; auto c = cg::this_cluster(); if (TID == 0) n = 0; c.sync(); if (TID == 0) { if (c.block_rank() == 1) { asm volatile(
    "red.relaxed.cluster.shared::cluster.add.u32 [%0], 1;" :: "r"(mapa(&n, 0)) : "memory"); st_rlx(cnt, 1); } else { while (!ld_rlx(cnt)) {}
    asm volatile("red.relaxed.cluster.shared::cta.add.u32 [%0], 1;" :: "r"(sa(&n)) : "memory"); } } ⟨¦c.sync();⟩ }

//# a_reader_who_said_nothing finds=RaceError:read-write g=3 b=32
KER NAME(ARGS) { if (TID) return; if (BID < 2) { u32 v = out[0]; __threadfence(); ⟨if (BID == 1)¦⟩ atomicAdd(cnt, 1); out[10 + BID] = v; } else { while
    (⟨ld_rlx¦ld_acq⟩(cnt) < ⟨1¦2⟩) {} out[0] = 9; } }

//# a_reader_who_said_nothing_in_a_block finds=RaceError:read-write b=96
KER NAME(ARGS) { __shared__ u32 s, n; if (TID == 0) { s = 5; n = 0; } __syncthreads(); if (TID % 32) return; if (TID < 64) { u32 v = s; __threadfence_block();
    ⟨if (TID == 32)¦⟩ atomicAdd_block(&n, 1); out[TID] = v; } else { while (VOLATILE(n) < ⟨1¦2⟩) {} ⟨¦__threadfence_block();⟩ s = 9; } }

//# a_writer_who_said_nothing finds=RaceError:write-read g=3 b=32
KER NAME(ARGS) { if (TID) return; if (BID < 2) { atomicAdd(out, 1 + BID); __threadfence(); ⟨if (BID == 1)¦⟩ atomicAdd(cnt, 1); } else { while
    (⟨ld_rlx¦ld_acq⟩(cnt) < ⟨1¦2⟩) {} out[10] = out[0]; } }

//# a_lane_who_said_nothing finds=RaceError:read-write b=64
KER NAME(ARGS) { __shared__ u32 s, n; if (TID == 0) { s = 5; n = 0; } __syncthreads(); if (TID < 2) { u32 v = s; __threadfence_block(); ⟨if (TID == 1)¦⟩
    atomicAdd_block(&n, 1); out[TID] = v; } else if (TID == 32) { while (VOLATILE(n) < ⟨1¦2⟩) {} ⟨¦__threadfence_block();⟩ s = 9; } }

//# sums_in_memory_fenced_by_one_warp finds=RaceError:proxy b=64
KER NAME(ARGS) { __shared__ __align__(16) u32 d[4]; __shared__ u64 b; if (TID == 0) mb_init(&b, 1); if (TID % 32 == 0) { atomicAdd(out, 5); ⟨if (TID == 32)¦⟩
    asm volatile("fence.proxy.async.global;" ::: "memory"); } __syncthreads(); if (TID == 32) { mb_expect(&b, 16); bulk_load(d, out, 16, &b); mb_wait(&b, 0);
    out[100] = d[0]; } }

//# sums_in_memory_fenced_by_a_lane finds=RaceError:proxy b=64
KER NAME(ARGS) { __shared__ __align__(16) u32 d[4]; __shared__ u64 b; if (TID == 0) mb_init(&b, 1); if (TID < 3) { atomicAdd(out, 5); ⟨if (TID == 2)¦⟩
    asm volatile("fence.proxy.async.global;" ::: "memory"); } __syncthreads(); if (TID == 32) { mb_expect(&b, 16); bulk_load(d, out, 16, &b); mb_wait(&b, 0);
    out[100] = d[0]; } }

//# source_of_a_load_read_and_overwritten finds=RaceError:read-write b=64
KER NAME(ARGS) { __shared__ __align__(16) u32 d[4]; __shared__ u64 b; if (TID == 0) mb_init(&b, 1); __syncthreads(); if (TID == 0) { mb_expect(&b, 16);
    bulk_load(d, out, 16, &b); } if (TID == 32) { mb_wait(&b, 0); st_rlx(cnt, 1); } if (TID < 32) { if (TID == 0) while (!ld_rlx(cnt)) {} __syncwarp(); u32 v
    = 0; if (TID == 5) v = out[1]; ⟨¦if (TID == 0) mb_wait(&b, 0);⟩ __syncwarp(); if (TID == 6) out[1] = 7; if (v > 9) cnt[9] = v; ⟨if (TID == 0) mb_wait(&b, 0);¦⟩
    } }

//# source_of_a_load_overwritten finds=RaceError:read-write b=64
KER NAME(ARGS) { __shared__ __align__(16) u32 d[4]; __shared__ u64 b; if (TID == 0) mb_init(&b, 1); __syncthreads(); if (TID == 0) { mb_expect(&b, 16);
    bulk_load(d, out, 16, &b); } if (TID == 32) { mb_wait(&b, 0); st_rlx(cnt, 1); } if (TID < 32) { if (TID == 0) while (!ld_rlx(cnt)) {} __syncwarp();
    ⟨¦if (TID == 0) mb_wait(&b, 0);⟩ __syncwarp(); if (TID == 6) out[1] = 7; ⟨if (TID == 0) mb_wait(&b, 0);¦⟩ } }

//# source_of_a_load_read_by_the_writer finds=RaceError:read-write b=64
KER NAME(ARGS) { __shared__ __align__(16) u32 d[4]; __shared__ u64 b; if (TID == 0) mb_init(&b, 1); __syncthreads(); if (TID == 32) { mb_expect(&b, 16);
    bulk_load(d, out, 16, &b); mb_wait(&b, 0); st_rlx(cnt, 1); } if (TID == 0) { while (!ld_rlx(cnt)) {} ⟨¦mb_wait(&b, 0);⟩ u32 v = out[2]; out[2] = 7 + v;
    ⟨mb_wait(&b, 0);¦⟩ } }

//# source_of_a_load_read_by_another_warp finds=RaceError:read-write b=96
KER NAME(ARGS) { __shared__ __align__(16) u32 d[4]; __shared__ u64 b; if (TID == 0) mb_init(&b, 1); __syncthreads(); if (TID == 64) { mb_expect(&b, 16);
    bulk_load(d, out, 16, &b); mb_wait(&b, 0); st_rlx(cnt, 1); } if (TID == 0) { while (!ld_rlx(cnt)) {} ⟨¦mb_wait(&b, 0);⟩ u32 v = out[2]; __threadfence(); st_rlx(cnt +
    1, v + 1); ⟨mb_wait(&b, 0);¦⟩ } if (TID == 32) { while (!ld_rlx(cnt + 1)) {} __threadfence(); out[2] = 8; } }

//# source_of_a_copy_read_and_overwritten finds=RaceError:read-write b=64
KER NAME(ARGS) { __shared__ __align__(16) u32 d[4]; if (TID == 32) { cpa(d, out); cpa_commit(); ⟨¦cpa_wait<0>();⟩ st_rel(cnt, 1); } if (TID == 0) { while
    (!ld_acq(cnt)) {} u32 v = out[2]; out[2] = 8 + v; } if (TID == 32) { cpa_wait<0>(); out[9] = d[0]; } }

//# source_of_an_own_copy_read_and_overwritten finds=RaceError:read-write b=64
KER NAME(ARGS) { __shared__ __align__(16) u32 d[256]; cpa(d + 4 * TID, out + 4 * TID); cpa_commit(); u32 v = out[4 * TID]; ⟨¦cpa_wait<0>();⟩ out[4 * TID] = 8 + v;
    cpa_wait<0>(); out[512 + TID] = d[4 * TID]; }

//# source_of_a_neighbours_copy_read_and_overwritten finds=RaceError:read-write b=32
KER NAME(ARGS) { __shared__ __align__(16) u32 d[128]; cpa(d + 4 * TID, out + 4 * (TID ^ 1)); cpa_commit(); ⟨¦cpa_wait<0>();⟩ __syncwarp(); u32 v = out[4 * TID];
    out[4 * TID] = 8 + v; cpa_wait<0>(); out[512 + TID] = d[4 * TID]; }

//# source_of_a_store_read_and_overwritten finds=RaceError:read-write b=64
KER NAME(ARGS) { __shared__ __align__(16) u32 s[4]; if (TID < 4) s[TID] = TID; fence_async(); __syncthreads(); if (TID == 32) { bulk_store(out, s, 16); bulk_commit();
    ⟨¦bulk_wait_read();⟩ } ⟨if (TID == 32) st_rlx(cnt, 1); if (TID == 0) while (!ld_rlx(cnt)) {}¦__syncthreads();⟩ if (TID == 0) { u32 v = s[2]; s[2] = 9 + v; out[20] = v; }
    if (TID == 32) bulk_wait(); }

//# a_reader_beside_a_load finds=RaceError:read-write b=128
KER NAME(ARGS) { __shared__ __align__(16) u32 d[4]; __shared__ u64 b; if (TID == 0) mb_init(&b, 1); __syncthreads(); if (TID == 96) { u32 v = out[2];
    ⟨st_rlx¦st_rel⟩(cnt, 1 + v); } if (TID == 64) { while (!⟨ld_rlx¦ld_acq⟩(cnt)) {} mb_expect(&b, 16); bulk_load(d, out, 16, &b); mb_wait(&b, 0);
    st_rel(cnt + 1, 1); } if (TID == 0) { while (!ld_acq(cnt + 1)) {} u32 v = out[2]; st_rel(cnt + 2, 1 + v); } if (TID == 32) { while (!ld_acq(cnt + 2)) {}
    out[2] = 8; } }

//# a_plain_read_before_a_lanes_strong_one finds=RaceError:read-write g=2 b=32
KER NAME(ARGS) { if (BID == 0) { u32 v = 0; if (TID == 0) v = out[0]; __syncwarp(); if (TID == 1) v = ld_rlx(out); __syncwarp(); if (TID == 2)
    ⟨st_rlx¦st_rel⟩(cnt, 1); if (v > 90) cnt[9] = v; } else if (TID == 0) { while (!⟨ld_rlx¦ld_acq⟩(cnt)) {} st_rlx(out, 9); } }

//# a_plain_read_before_a_warps_strong_one finds=RaceError:read-write g=2 b=64
KER NAME(ARGS) { if (BID == 0) { u32 v = 0; if (TID == 0) v = out[0]; __syncthreads(); if (TID == 32) v = ld_rlx(out); __syncthreads(); if (TID == 2)
    ⟨st_rlx¦st_rel⟩(cnt, 1); if (v > 90) cnt[9] = v; } else if (TID == 0) { while (!⟨ld_rlx¦ld_acq⟩(cnt)) {} st_rlx(out, 9); } }

//# a_plain_read_before_two_strong_ones finds=RaceError:read-write g=2 b=96
KER NAME(ARGS) { if (BID == 0) { u32 v = 0; if (TID == 0) v = out[0]; __syncthreads(); if (TID == 32) v = ld_rlx(out); __syncthreads(); if (TID == 64) v =
    ld_rlx(out); __syncthreads(); if (TID == 2) ⟨st_rlx¦st_rel⟩(cnt, 1); if (v > 90) cnt[9] = v; } else if (TID == 0) { while
    (!⟨ld_rlx¦ld_acq⟩(cnt)) {} st_rlx(out, 9); } }

//# a_plain_write_before_an_atomic finds=RaceError:write-write g=2 b=64
KER NAME(ARGS) { if (BID == 0) { if (TID == 0) out[0] = 3; __syncthreads(); if (TID == 32) { atomicAdd(out, 1); ⟨st_rlx¦st_rel⟩(cnt, 1); } } else if (TID == 0) {
    while (!⟨ld_rlx¦ld_acq⟩(cnt)) {} atomicAdd(out, 5); } }

//# a_plain_read_of_shared_before_a_strong_one finds=RaceError:read-write b=96
KER NAME(ARGS) { __shared__ u32 s, n; if (TID == 0) { s = 5; n = 0; } __syncthreads(); u32 v = 0; if (TID < 32) { if (TID == 0) v = s; __syncwarp(); if (TID == 1) v =
    VOLATILE(s); __syncwarp(); ⟨¦if (TID == 1) __threadfence_block();⟩ if (TID == 1) VOLATILE(n) = 1; } else if (TID == 32) { while (!VOLATILE(n)) {}
    ⟨¦__threadfence_block();⟩ VOLATILE(s) = 9; } if (v > 90) cnt[9] = v; }
