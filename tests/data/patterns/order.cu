// Who passes on what: chains of read-modify-writes, fences of other threads, proxies, and clusters.

//# fence_of_another_lane finds=warning g=2 b=32
KER NAME(ARGS) { if (BID == 0) { if (TID == 0) { out[8] = 5; st_rel(&cnt[0], 1); } return; } if (TID == 0) { while
    (!ld_rlx(&cnt[0])); ⟨¦__threadfence();⟩ } __syncwarp(); ⟨if (TID == 1) __threadfence();¦⟩ if (TID == 1) out[9] =
    out[8]; }

//# fence_for_others finds=RaceError:write-read g=2 b=64
KER NAME(ARGS) { if (BID == 0) { out[8 + TID] = TID; ⟨__syncwarp();¦__syncthreads();⟩ if (TID == 0) { __threadfence();
    st_rlx(&cnt[0], 1); } return; } if (TID == 0) while (!ld_acq(&cnt[0])); __syncthreads(); out[128 + TID] = out[8 +
    TID]; }

//# through_an_atomic finds=RaceError:write-read g=3 b=32
KER NAME(ARGS) { if (TID) return; if (BID == 0) { out[8] = 5; st_rel(&cnt[0], 1); } if (BID == 1) { while
    (ld_rlx(&cnt[0]) != 1); ⟨st_rlx(&cnt[0], 2);¦asm volatile("red.relaxed.gpu.global.add.u32 [%0], 1;" :: "l"(&cnt[0])
    : "memory");⟩ } if (BID == 2) { while (ld_acq(&cnt[0]) != 2); out[9] = out[8]; } }

//# through_two_atomics finds=RaceError:write-read g=4 b=32
KER NAME(ARGS) { if (TID) return; if (BID < 3) { out[8 + BID] = BID; asm
    volatile("red.⟨relaxed¦release⟩.gpu.global.add.u32 [%0], 1;" :: "l"(&cnt[0]) : "memory"); } else { while
    (ld_acq(&cnt[0]) != 3); for (int i = 0; i < 3; i++) out[16 + i] = out[8 + i]; } }

//# own_store_breaks_the_chain finds=RaceError:write-read g=2 b=32
KER NAME(ARGS) { if (TID) return; if (BID == 0) { st_rel(&cnt[0], 1); out[8] = 5; ⟨st_rlx(&cnt[0], 2);¦st_rel(&cnt[0],
    2);⟩ } else { while (ld_acq(&cnt[0]) != 2); out[9] = out[8]; } }

//# handed_round finds=RaceError:write-read g=3 b=32
KER NAME(ARGS) { if (TID) return; if (BID == 0) { out[8] = 5; st_rel(&cnt[0], 1); } if (BID == 1) { while
    (!⟨ld_rlx¦ld_acq⟩ (&cnt[0])); st_rel(&cnt[1], 1); } if (BID == 2) { while (!ld_acq(&cnt[1])); out[9] = out[8]; } }

//# bulk_reduce_and_flag finds=RaceError:write-read g=2 b=32
KER NAME(ARGS) { __shared__ __align__(128) u32 s[32]; if (BID == 0) { s[TID] = 1; fence_async(); __syncwarp(); if (TID
    == 0) { asm volatile("cp.reduce.async.bulk.global.shared::cta.bulk_group.add.u32 [%0], [%1], 128;" :: "l"(out +
    128), "r"(sa(s)) : "memory"); bulk_commit(); ⟨bulk_wait_read();¦bulk_wait();⟩ st_rel(&cnt[0], 1); } return; } if
    (TID == 0) while (!ld_acq(&cnt[0])); __syncwarp(); out[TID] = out[128 + TID]; }

//# bulk_load_of_published finds=RaceError:proxy g=2 b=32
KER NAME(ARGS) { __shared__ __align__(128) u32 s[32]; __shared__ u64 b; if (TID == 0) mb_init(&b, 1); __syncwarp(); if
    (BID == 0) { out[128 + TID] = TID; __syncwarp(); if (TID == 0) st_rel(&cnt[0], 1); return; } if (TID == 0) { while
    (!ld_acq(&cnt[0])); ⟨¦asm volatile("fence.proxy.async.global;" ::: "memory");⟩ mb_expect(&b, 128); bulk_load(s, out
    + 128, 128, &b); } mb_wait(&b, 0); out[TID] = s[TID]; }

//# cluster_relaxed_arrive finds=RaceError:write-read g=2 b=32 cluster=2
KER NAME(ARGS) { __shared__ u32 s[32]; auto c = cg::this_cluster(); s[TID] = 0; c.sync(); c.map_shared_rank(s,
    c.block_rank() ^ 1)[TID] = BID * 32 + TID; ⟨¦asm volatile("fence.acq_rel.cluster;" ::: "memory");⟩ asm
    volatile("barrier.cluster.arrive.relaxed.aligned; barrier.cluster.wait.acquire.aligned;" ::: "memory"); out[BID * 32
    + TID] = s[TID ^ 1]; c.sync(); }

//# remote_atomic_flag finds=RaceError:write-read g=2 b=32 cluster=2
KER NAME(ARGS) { __shared__ u32 f, s; auto c = cg::this_cluster(); if (TID == 0) { f = 0; s = 0; } c.sync(); if (TID ==
    0 && BID == 0) { *c.map_shared_rank(&s, 1) = 5; asm
    volatile("red.⟨relaxed¦release⟩.cluster.shared::cluster.add.u32 [%0], 1;" :: "r"(mapa(&f, 1)) : "memory"); } if (TID
    == 0 && BID == 1) { u32 v; do asm volatile("ld.acquire.cluster.shared.u32 %0, [%1];" : "=r"(v) : "r"(sa(&f)) :
    "memory"); while (!v); out[0] = s; } c.sync(); }

//# remote_atomic_of_the_block finds=RaceError:write-read g=2 b=32 cluster=2
KER NAME(ARGS) { __shared__ u32 f, s; auto c = cg::this_cluster(); if (TID == 0) { f = 0; s = 0; } c.sync(); if (TID ==
    0 && BID == 0) { *c.map_shared_rank(&s, 1) = 5; asm
    volatile("red.release.⟨cta¦cluster⟩.shared::cluster.add.u32 [%0], 1;" :: "r"(mapa(&f, 1)) : "memory"); } if (TID ==
    0 && BID == 1) { u32 v; do asm volatile("ld.acquire.cluster.shared.u32 %0, [%1];" : "=r"(v) : "r"(sa(&f)) :
    "memory"); while (!v); out[0] = s; } c.sync(); }

//# copy_to_another_block_again finds=RaceError:write-write g=2 b=32 cluster=2
KER NAME(ARGS) { __shared__ __align__(128) u32 s[32], d[32]; __shared__ u64 full, empty; auto c = cg::this_cluster(); if
    (TID == 0) { mb_init(&full, 1); mb_init(&empty, 1); asm volatile("fence.mbarrier_init.release.cluster;" :::
    "memory"); } s[TID] = TID; fence_async(); c.sync(); u32 a = 0; for (int i = 0; i < 2; i++) { if (BID == 0 && TID ==
    0) { ⟨¦if (i) mb_wait(&empty, 0);⟩ asm
    volatile("cp.async.bulk.shared::cluster.shared::cta.mbarrier::complete_tx::bytes [%0], [%1], 128, [%2];" ::
    "r"(mapa(d, 1)), "r"(sa(s)), "r"(mapa(&full, 1)) : "memory"); } if (BID == 1) { if (TID == 0) mb_expect(&full, 128);
    mb_wait(&full, i); a += d[TID]; __syncwarp(); if (TID == 0 && i == 0) asm
    volatile("mbarrier.arrive.release.cluster.shared::cluster.b64 _, [%0];" :: "r"(mapa(&empty, 0)) : "memory"); } } if
    (BID == 1) out[TID] = a; c.sync(); }

//# membar_and_volatile finds=warning g=2 b=32
KER NAME(ARGS) { if (TID) return; if (BID == 0) { out[8] = 5; asm volatile("membar.gl; st.volatile.global.u32 [%0], 1;"
    :: "l"(cnt) : "memory"); } else { u32 v; do asm volatile("ld.volatile.global.u32 %0, [%1];" : "=r"(v) : "l"(cnt) :
    "memory"); while (!v); ⟨¦asm volatile("membar.gl;" ::: "memory");⟩ out[9] = out[8]; } }

//# fence_of_the_cluster finds=RaceError:write-read g=4 b=32 cluster=2
KER NAME(ARGS) { if (TID) return; if (BID == 0) { out[8] = 5; asm volatile("fence.acq_rel.⟨cluster¦gpu⟩;" ::: "memory");
    st_rlx(&cnt[0], 1); } if (BID == 2) { while (!ld_acq(&cnt[0])); out[9] = out[8]; } }

//# two_elected finds=RaceError:write-read b=64
KER NAME(ARGS) { __shared__ u32 s; if (TID == 0) s = 0; __syncthreads(); if (TID < 32) { u32 p; asm
    volatile("{ .reg .pred q; elect.sync _|q, 0xffffffff; selp.u32 %0, 1, 0, q; }" : "=r"(p)); if (p) s = 7;
    ⟨¦__syncwarp();⟩ out[TID] = s; } }

//# mbarrier_of_two_phases finds=RaceError:write-read b=64
KER NAME(ARGS) { __shared__ u32 s[32]; __shared__ u64 full, empty; if (TID == 0) { mb_init(&full, 32); mb_init(&empty,
    32); } __syncthreads(); if (TID < 32) for (int i = 0; i < 4; i++) { ⟨if (i > 1) mb_wait(&empty, i & 1);¦if (i)
    mb_wait(&empty, (i - 1) & 1);⟩ s[TID] = i * 100 + TID; mb_arrive(&full); } else for (int i = 0; i < 4; i++) {
    mb_wait(&full, i & 1); out[i * 32 + TID] = s[(TID ^ 5) - 32]; mb_arrive(&empty); } }

//# arrival_of_a_reader finds=RaceError:read-write b=64
KER NAME(ARGS) { __shared__ u32 s[64]; __shared__ u64 b; if (TID == 0) mb_init(&b, 64); s[TID] = TID; __syncthreads();
    u32 a = s[TID ^ 33]; ⟨asm volatile("mbarrier.arrive.relaxed.cta.shared.b64 _, [%0];" :: "r"(sa(&b)) :
    "memory");¦mb_arrive(&b);⟩ mb_wait(&b, 0); s[TID] = a; out[TID] = a; }
