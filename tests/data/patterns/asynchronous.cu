// Asynchronous copies, barriers in memory, clusters, and dependent launches.
//
// NAME of each kernel stands behind //#, with what its launch needs. ⟨racy¦mended⟩ is what tells its two forms apart.

//# cpa_wait1 finds=MemoryFault:uninitialised b=32
KER NAME(ARGS) { __shared__ __align__(16) u32 s[3][128]; u32 a = 0; for (int i = 0; i < 2; i++) { cpa(&s[i][TID * 4],
    &in[i * 128 + TID * 4]); cpa_commit(); } for (int i = 0; i < 4; i++) { cpa_wait<⟨2¦1⟩>(); __syncthreads(); a += s[i
    % 3][TID ^ 8]; if (i + 2 < 4) cpa(&s[(i + 2) % 3][TID * 4], &in[(i + 2) * 128 + TID * 4]); cpa_commit(); } out[TID]
    = a; }

//# cpa_stage finds=RaceError:read-write b=32
KER NAME(ARGS) { __shared__ __align__(16) u32 s[3][128]; u32 a = 0; for (int i = 0; i < 2; i++) { cpa(&s[i][TID * 4],
    &in[i * 128 + TID * 4]); cpa_commit(); } for (int i = 0; i < 4; i++) { cpa_wait<1>(); __syncthreads(); a += s[i %
    ⟨2¦3⟩][TID ^ 8]; if (i + 2 < 4) cpa(&s[(i + 2) % ⟨2¦3⟩][TID * 4], &in[(i + 2) * 128 + TID * 4]); cpa_commit(); }
    out[TID] = a; }

//# cpa_tailwait finds=MemoryFault:uninitialised b=32
KER NAME(ARGS) { __shared__ __align__(16) u32 s[2][128]; u32 a = 0; cpa(&s[0][TID * 4], &in[TID * 4]); cpa_commit(); for
    (int i = 0; i < 3; i++) { if (i + 1 < 3) { cpa(&s[(i + 1) & 1][TID * 4], &in[(i + 1) * 128 + TID * 4]);
    ⟨cpa_commit();¦⟩ } ⟨¦cpa_commit();⟩ cpa_wait<1>(); __syncthreads(); a += s[i & 1][TID ^ 8]; __syncthreads(); }
    out[TID] = a; }

//# cpa_overrun finds=RaceError:read-write b=64
KER NAME(ARGS) { __shared__ __align__(16) u32 s[2][256]; u32 a = 0; cpa(&s[0][TID * 4], &in[TID * 4]); cpa_commit(); for
    (int i = 0; i < 4; i++) { if (i + 1 < 4) cpa(&s[(i + 1) & 1][TID * 4], &in[(i + 1) * 256 + TID * 4]); cpa_commit();
    cpa_wait<1>(); __syncthreads(); a += s[i & 1][TID ^ 40]; ⟨¦__syncthreads();⟩ } out[TID] = a; }

//# cpa_src_overwritten finds=RaceError:read-write b=32
KER NAME(ARGS) { __shared__ __align__(16) u32 s[128]; cpa(&s[TID * 4], &in[TID * 4]); cpa_commit(); ⟨in[TID * 4] = 9;
    cpa_wait<0>();¦cpa_wait<0>(); in[TID * 4] = 9;⟩ out[TID] = s[TID * 4]; }

//# cpa_nocommit finds=MemoryFault:uninitialised b=32
KER NAME(ARGS) { __shared__ __align__(16) u32 s[128]; cpa(&s[TID * 4], &in[TID * 4]); ⟨¦cpa_commit();⟩ cpa_wait<0>();
    out[TID] = s[TID * 4]; }

//# cpa_mbar_early finds=MemoryFault:uninitialised b=64
KER NAME(ARGS) { __shared__ __align__(16) u32 s[256]; __shared__ u64 b; if (TID == 0) mb_init(&b, 64); __syncthreads();
    ⟨mb_arrive(&b); cpa(&s[TID * 4], &in[TID * 4]);¦cpa(&s[TID * 4], &in[TID * 4]); asm
    volatile("cp.async.mbarrier.arrive.noinc.shared.b64 [%0];" :: "r"(sa(&b)) : "memory");⟩ mb_wait(&b, 0); out[TID] =
    s[TID ^ 40]; }

//# pipe_prior finds=MemoryFault:uninitialised b=32
KER NAME(ARGS) { __shared__ __align__(16) u32 s[2][32]; auto p = cuda::make_pipeline(); for (int i = 0; i < 2; i++) {
    p.producer_acquire(); cuda::memcpy_async(&s[i][TID], &in[i * 32 + TID], 4, p); p.producer_commit(); }
    ⟨cuda::pipeline_consumer_wait_prior<1>(p);¦cuda::pipeline_consumer_wait_prior<0>(p);⟩ out[TID] = s[0][TID] +
    s[1][TID]; }

//# pipe_nosync finds=RaceError:write-read b=64
KER NAME(ARGS) { __shared__ __align__(16) u32 s[64]; auto p = cuda::make_pipeline(); p.producer_acquire();
    cuda::memcpy_async(&s[TID], &in[TID], 4, p); p.producer_commit(); p.consumer_wait(); ⟨¦__syncthreads();⟩ out[TID] =
    s[TID ^ 40]; p.consumer_release(); }

//# pipe_block finds=RaceError:read-write b=64
KER NAME(ARGS) { __shared__ __align__(16) u32 s[2][64]; __shared__ cuda::pipeline_shared_state<cuda::thread_scope_block,
    2> st; auto blk = cg::this_thread_block(); auto p = cuda::make_pipeline(blk, &st); u32 a = 0; p.producer_acquire();
    cuda::memcpy_async(blk, s[0], in, 256, p); p.producer_commit(); for (int i = 0; i < 4; i++) { if (i + 1 < 4) {
    p.producer_acquire(); cuda::memcpy_async(blk, s[(i + 1) & 1], in + 64 * (i + 1), 256, p); p.producer_commit(); }
    p.consumer_wait(); u32 v = s[i & 1][TID ^ 40]; ⟨p.consumer_release(); a += v + s[i & 1][TID ^ 41];¦a += v + s[i &
    1][TID ^ 41]; p.consumer_release();⟩ } out[TID] = a; }

//# pipe_block_nowait finds=MemoryFault:uninitialised b=64
KER NAME(ARGS) { __shared__ __align__(16) u32 s[64]; __shared__ cuda::pipeline_shared_state<cuda::thread_scope_block, 1>
    st; auto blk = cg::this_thread_block(); auto p = cuda::make_pipeline(blk, &st); p.producer_acquire();
    cuda::memcpy_async(blk, s, in, 256, p); p.producer_commit(); ⟨¦p.consumer_wait();⟩ out[TID] = s[TID ^ 40];
    p.consumer_release(); }

//# cg_memcpy finds=MemoryFault:uninitialised b=64
KER NAME(ARGS) { __shared__ __align__(16) u32 s[64]; auto blk = cg::this_thread_block(); cg::memcpy_async(blk, s, in,
    256); ⟨blk.sync();¦cg::wait(blk);⟩ out[TID] = s[TID ^ 40]; }

//# cg_memcpy_prior finds=MemoryFault:uninitialised b=64
KER NAME(ARGS) { __shared__ __align__(16) u32 s[2][64]; auto blk = cg::this_thread_block(); cg::memcpy_async(blk, s[0],
    in, 256); cg::memcpy_async(blk, s[1], in + 64, 256); cg::wait_prior<1>(blk); out[TID] = s[⟨1¦0⟩][TID ^ 40];
    cg::wait(blk); }

//# cg_memcpy_reuse finds=RaceError:read-write b=64
KER NAME(ARGS) { __shared__ __align__(16) u32 s[64]; auto blk = cg::this_thread_block(); for (int i = 0; i < 3; i++) {
    cg::memcpy_async(blk, s, in + i * 64, 256); cg::wait(blk); out[i * 64 + TID] = s[TID ^ 40]; ⟨¦blk.sync();⟩ } }

//# barrier_init finds=RaceError:write-read b=64
KER NAME(ARGS) { __shared__ cuda::barrier<cuda::thread_scope_block> bar; __shared__ u32 s[64]; if (TID == 0) init(&bar,
    64); ⟨__syncwarp();¦__syncthreads();⟩ s[TID] = TID; bar.arrive_and_wait(); out[TID] = s[TID ^ 32]; }

//# barrier_count finds=MisuseError b=64
KER NAME(ARGS) { __shared__ cuda::barrier<cuda::thread_scope_block> bar; __shared__ u32 s[64]; if (TID == 0) init(&bar,
    ⟨32¦64⟩); __syncthreads(); s[TID] = TID; bar.arrive_and_wait(); out[TID] = s[TID ^ 32]; }

//# barrier_split finds=RaceError:write-read b=64
KER NAME(ARGS) { __shared__ cuda::barrier<cuda::thread_scope_block> bar; __shared__ u32 s[64]; if (TID == 0) init(&bar,
    64); __syncthreads(); ⟨auto t = bar.arrive(); s[TID] = TID;¦s[TID] = TID; auto t = bar.arrive();⟩
    bar.wait(std::move(t)); out[TID] = s[TID ^ 32]; }

//# barrier_wait_missing finds=RaceError:write-read b=64
KER NAME(ARGS) { __shared__ cuda::barrier<cuda::thread_scope_block> bar; __shared__ u32 s[64]; if (TID == 0) init(&bar,
    64); __syncthreads(); s[TID] = TID; auto t = bar.arrive(); ⟨if (TID < 32)¦⟩ bar.wait(std::move(t)); out[TID] = s[TID
    ^ 32]; }

//# mbar_parity finds=Deadlock b=64
KER NAME(ARGS) { __shared__ u64 b; __shared__ u32 s[64]; if (TID == 0) mb_init(&b, 64); __syncthreads(); for (int i = 0;
    i < 3; i++) { s[TID] = TID * i; mb_arrive(&b); mb_wait(&b, ⟨0¦i & 1⟩); out[TID + 64 * i] = s[TID ^ 32];
    __syncthreads(); } }

//# mbar_parity1 finds=Deadlock b=64
KER NAME(ARGS) { __shared__ u64 b; __shared__ u32 s[64]; if (TID == 0) mb_init(&b, 64); __syncthreads(); s[TID] = TID;
    mb_arrive(&b); mb_wait(&b, ⟨1¦0⟩); out[TID] = s[TID ^ 32]; }

//# mbar_prodcons finds=Deadlock b=64
KER NAME(ARGS) { __shared__ u64 full[2], empty[2]; __shared__ u32 s[2][32]; if (TID == 0) for (int i = 0; i < 2; i++) {
    mb_init(&full[i], 32); mb_init(&empty[i], 32); } __syncthreads(); if (TID < 32) for (int i = 0; i < 6; i++) {
    mb_wait(&empty[i & 1], ((i >> 1) & 1) ^ ⟨0 ^ (i < 2)¦1⟩); s[i & 1][TID] = i * TID; mb_arrive(&full[i & 1]); } else
    for (int i = 0; i < 6; i++) { mb_wait(&full[i & 1], (i >> 1) & 1); out[i * 32 + TID] = s[i & 1][TID - 32];
    mb_arrive(&empty[i & 1]); } }

//# mbar_empty_lane0 finds=RaceError:read-write b=64
KER NAME(ARGS) { __shared__ u64 full[2], empty[2]; __shared__ u32 s[2][32]; if (TID == 0) for (int i = 0; i < 2; i++) {
    mb_init(&full[i], 32); mb_init(&empty[i], 1); } __syncthreads(); if (TID < 32) for (int i = 0; i < 6; i++) {
    mb_wait(&empty[i & 1], ((i >> 1) & 1) ^ 1); s[i & 1][TID] = i * TID; mb_arrive(&full[i & 1]); } else for (int i = 0;
    i < 6; i++) { mb_wait(&full[i & 1], (i >> 1) & 1); out[i * 32 + TID] = s[i & 1][TID - 32]; ⟨¦__syncwarp();⟩ if (TID
    == 32) mb_arrive(&empty[i & 1]); } }

//# mbar_phase_missed finds=RaceError:write-read b=64
KER NAME(ARGS) { __shared__ u64 b; __shared__ u32 s[32]; if (TID == 0) mb_init(&b, 32); __syncthreads(); if (TID < 32) {
    for (int i = 0; i < 2; i++) { s[TID] = i + TID; mb_arrive(&b); ⟨¦mb_wait(&b, i & 1); BAR(1, 64);⟩ } } else { for
    (int i = 0; i < 2; i++) { mb_wait(&b, i & 1); out[i * 32 + TID] = s[TID - 32]; ⟨¦BAR(1, 64);⟩ } } }

//# tma_plain finds=Deadlock b=32
KER NAME(ARGS) { __shared__ __align__(128) u32 s[128]; __shared__ u64 b; if (TID == 0) { mb_init(&b, 1); }
    __syncthreads(); if (TID == 0) { mb_expect(&b, ⟨508¦512⟩); bulk_load(s, in, 512, &b); } mb_wait(&b, 0); out[TID] =
    s[TID * 4]; }

//# tma_expect_more finds=Deadlock b=32
KER NAME(ARGS) { __shared__ __align__(128) u32 s[128]; __shared__ u64 b; if (TID == 0) { mb_init(&b, 1); }
    __syncthreads(); if (TID == 0) { mb_expect(&b, ⟨528¦512⟩); bulk_load(s, in, 512, &b); } mb_wait(&b, 0); out[TID] =
    s[TID * 4]; }

//# tma_expect_none finds=MemoryFault:uninitialised b=32
KER NAME(ARGS) { __shared__ __align__(128) u32 s[128]; __shared__ u64 b; if (TID == 0) { mb_init(&b, 1); }
    __syncthreads(); if (TID == 0) { ⟨mb_arrive(&b);¦mb_expect(&b, 512);⟩ bulk_load(s, in, 512, &b); } mb_wait(&b, 0);
    out[TID] = s[TID * 4]; }

//# tma_expect_late finds=MemoryFault:uninitialised b=32
KER NAME(ARGS) { __shared__ __align__(128) u32 s[128]; __shared__ u64 b; if (TID == 0) { mb_init(&b, 2); }
    __syncthreads(); if (TID == 0) { mb_arrive(&b); ⟨bulk_load(s, in, 512, &b); mb_arrive(&b); asm
    volatile("mbarrier.expect_tx.relaxed.cta.shared.b64 [%0], 512;" :: "r"(sa(&b)));¦bulk_load(s, in, 512, &b);
    mb_expect(&b, 512);⟩ } mb_wait(&b, 0); out[TID] = s[TID * 4]; }

//# tma_wait_by_one finds=MemoryFault:uninitialised b=64
KER NAME(ARGS) { __shared__ __align__(128) u32 s[128]; __shared__ u64 b; if (TID == 0) { mb_init(&b, 1); }
    __syncthreads(); if (TID == 0) { mb_expect(&b, 512); bulk_load(s, in, 512, &b); mb_wait(&b, 0); }
    ⟨__syncwarp();¦__syncthreads();⟩ out[TID] = s[TID]; }

//# tma_initfence finds=warning b=64
KER NAME(ARGS) { __shared__ __align__(128) u32 s[128]; __shared__ u64 b; if (TID == 0) { asm
    volatile("mbarrier.init.shared.b64 [%0], 1;" :: "r"(sa(&b)) : "memory"); ⟨¦asm
    volatile("fence.mbarrier_init.release.cluster;" ::: "memory");⟩ } __syncthreads(); if (TID == 0) { mb_expect(&b,
    512); bulk_load(s, in, 512, &b); } mb_wait(&b, 0); out[TID] = s[TID]; }

//# tma_reuse_generic finds=RaceError:read-write b=64
KER NAME(ARGS) { __shared__ __align__(128) u32 s[128]; __shared__ u64 b; if (TID == 0) { mb_init(&b, 1); }
    __syncthreads(); u32 a = 0; for (int i = 0; i < 2; i++) { if (TID == 0) { mb_expect(&b, 512); bulk_load(s, in + i *
    128, 512, &b); } mb_wait(&b, i); a += s[TID]; ⟨¦__syncthreads();⟩ } out[TID] = a; }

//# tma_over_written finds=RaceError:proxy b=64
KER NAME(ARGS) { __shared__ __align__(128) u32 s[128]; __shared__ u64 b; if (TID == 0) { mb_init(&b, 1); } s[TID] = 0;
    s[TID + 64] = 0; ⟨¦fence_async();⟩ __syncthreads(); if (TID == 0) { mb_expect(&b, 512); bulk_load(s, in, 512, &b); }
    mb_wait(&b, 0); out[TID] = s[TID]; }

//# tma_store_nofence finds=RaceError:proxy b=64
KER NAME(ARGS) { __shared__ __align__(128) u32 s[64]; s[TID] = TID; ⟨¦fence_async();⟩ __syncthreads(); if (TID == 0) {
    bulk_store(out, s, 256); bulk_commit(); bulk_wait(); } }

//# tma_store_fenceorder finds=RaceError:proxy b=64
KER NAME(ARGS) { __shared__ __align__(128) u32 s[64]; ⟨fence_async(); s[TID] = TID;¦s[TID] = TID; fence_async();⟩
    __syncthreads(); if (TID == 0) { bulk_store(out, s, 256); bulk_commit(); bulk_wait(); } }

//# tma_store_nosync finds=RaceError:write-read b=64
KER NAME(ARGS) { __shared__ __align__(128) u32 s[64]; s[TID] = TID; fence_async(); ⟨__syncwarp();¦__syncthreads();⟩ if
    (TID == 0) { bulk_store(out, s, 256); bulk_commit(); bulk_wait(); } }

//# tma_store_reuse finds=RaceError:read-write b=64
KER NAME(ARGS) { __shared__ __align__(128) u32 s[64]; for (int i = 0; i < 2; i++) { s[TID] = TID + i; fence_async();
    __syncthreads(); if (TID == 0) { bulk_store(out + i * 64, s, 256); bulk_commit(); ⟨¦bulk_wait_read();⟩ }
    __syncthreads(); } if (TID == 0) bulk_wait(); }

//# tma_store_reuse1 finds=RaceError:read-write b=64
KER NAME(ARGS) { __shared__ __align__(128) u32 s[2][64]; for (int i = 0; i < 4; i++) { if (TID == 0) asm
    volatile("cp.async.bulk.wait_group.read ⟨2¦1⟩;" ::: "memory"); __syncthreads(); s[i & 1][TID] = TID + i;
    fence_async(); __syncthreads(); if (TID == 0) { bulk_store(out + i * 64, s[i & 1], 256); bulk_commit(); } } if (TID
    == 0) bulk_wait(); }

//# tma_store_waitother finds=RaceError:read-write b=64
KER NAME(ARGS) { __shared__ __align__(128) u32 s[64]; s[TID] = TID; fence_async(); __syncthreads(); if (TID == 0) {
    bulk_store(out, s, 256); bulk_commit(); } if (TID == ⟨32¦0⟩) bulk_wait_read(); __syncthreads(); s[TID] = 5; if (TID
    == 0) bulk_wait(); }

//# tma_store_readback finds=RaceError:write-read b=64
KER NAME(ARGS) { __shared__ __align__(128) u32 s[64]; s[TID] = TID; fence_async(); __syncthreads(); if (TID == 0) {
    bulk_store(in, s, 256); bulk_commit(); ⟨bulk_wait_read();¦bulk_wait();⟩ } __syncthreads(); out[TID] = in[TID]; }

//# tma_store_exit finds=MisuseError b=64
KER NAME(ARGS) { __shared__ __align__(128) u32 s[64]; s[TID] = TID; fence_async(); __syncthreads(); if (TID == 0) {
    bulk_store(out, s, 256); bulk_commit(); ⟨¦bulk_wait_read();⟩ } }

//# tma_load_global_written finds=RaceError:proxy b=64
KER NAME(ARGS) { __shared__ __align__(128) u32 s[64]; __shared__ u64 b; if (TID == 0) mb_init(&b, 1); in[TID] = TID + 3;
    ⟨¦asm volatile("fence.proxy.async;" ::: "memory");⟩ __syncthreads(); if (TID == 0) { mb_expect(&b, 256);
    bulk_load(s, in, 256, &b); } mb_wait(&b, 0); out[TID] = s[TID]; }

//# tma_ring finds=MisuseError b=64
KER NAME(ARGS) { __shared__ __align__(128) u32 s[2][64]; __shared__ u64 full[2], empty[2]; if (TID == 0) for (int i = 0;
    i < 2; i++) { mb_init(&full[i], 1); mb_init(&empty[i], 32); } __syncthreads(); if (TID < 32) { if (TID == 0) for
    (int i = 0; i < 6; i++) { ⟨if (i < 2)¦⟩ mb_wait(&empty[i & 1], ((i >> 1) & 1) ^ 1); mb_expect(&full[i & 1], 256);
    bulk_load(s[i & 1], in + i * 64, 256, &full[i & 1]); } } else for (int i = 0; i < 6; i++) { mb_wait(&full[i & 1], (i
    >> 1) & 1); out[i * 32 + TID] = s[i & 1][TID]; mb_arrive(&empty[i & 1]); } }

//# tma_ring_early_release finds=RaceError:read-write b=64
KER NAME(ARGS) { __shared__ __align__(128) u32 s[2][64]; __shared__ u64 full[2], empty[2]; if (TID == 0) for (int i = 0;
    i < 2; i++) { mb_init(&full[i], 1); mb_init(&empty[i], 32); } __syncthreads(); if (TID < 32) { if (TID == 0) for
    (int i = 0; i < 6; i++) { mb_wait(&empty[i & 1], ((i >> 1) & 1) ^ 1); mb_expect(&full[i & 1], 256); bulk_load(s[i &
    1], in + i * 64, 256, &full[i & 1]); } } else for (int i = 0; i < 6; i++) { mb_wait(&full[i & 1], (i >> 1) & 1);
    ⟨mb_arrive(&empty[i & 1]); out[i * 32 + TID] = s[i & 1][TID];¦out[i * 32 + TID] = s[i & 1][TID]; mb_arrive(&empty[i
    & 1]);⟩ } }

//# mbar_relaxed_wait finds=RaceError:write-read b=64
KER NAME(ARGS) { __shared__ u64 b; __shared__ u32 s[64]; if (TID == 0) mb_init(&b, 64); __syncthreads(); s[TID] = TID;
    mb_arrive(&b); ⟨mb_wait_rlx(&b, 0);¦mb_wait(&b, 0);⟩ out[TID] = s[TID ^ 32]; }

//# mbar_relaxed_arrive finds=RaceError:write-read b=64
KER NAME(ARGS) { __shared__ u64 b; __shared__ u32 s[64]; if (TID == 0) mb_init(&b, 64); __syncthreads(); s[TID] = TID;
    asm volatile("{ .reg .b64 s; mbarrier.arrive.⟨relaxed¦release⟩.cta.shared.b64 s, [%0]; }" :: "r"(sa(&b)) :
    "memory"); mb_wait(&b, 0); out[TID] = s[TID ^ 32]; }

//# mbar_inval finds=RaceError:read-write b=64
KER NAME(ARGS) { __shared__ u64 b; __shared__ u32 s[64]; if (TID == 0) mb_init(&b, 64); __syncthreads(); s[TID] = TID;
    mb_arrive(&b); mb_wait(&b, 0); out[TID] = s[TID ^ 32]; ⟨¦__syncthreads();⟩ if (TID == 0) { asm
    volatile("mbarrier.inval.shared.b64 [%0];" :: "r"(sa(&b)) : "memory"); } }

//# mbar_reinit finds=MisuseError b=64
KER NAME(ARGS) { __shared__ u64 b; for (int i = 0; i < 2; i++) { if (TID == 0) { ⟨¦if (i) asm
    volatile("mbarrier.inval.shared.b64 [%0];" :: "r"(sa(&b)) : "memory");⟩ mb_init(&b, 64); } __syncthreads();
    mb_arrive(&b); mb_wait(&b, 0); ⟨¦__syncthreads();⟩ out[TID] = i; } }

//# dsmem_exit finds=RaceError:exit g=2 cluster=2
KER NAME(ARGS) { __shared__ u32 s[64]; auto c = cg::this_cluster(); s[TID] = BID * 100 + TID; c.sync(); out[BID * 64 +
    TID] = c.map_shared_rank(s, c.block_rank() ^ 1)[TID]; ⟨¦c.sync();⟩ }

//# dsmem_start finds=MemoryFault:not-started g=2 cluster=2
KER NAME(ARGS) { __shared__ u32 s[64]; auto c = cg::this_cluster(); ⟨¦c.sync();⟩ c.map_shared_rank(s, c.block_rank() ^
    1)[TID] = BID + TID; c.sync(); out[BID * 64 + TID] = s[TID]; }

//# dsmem_blocksync finds=MemoryFault:not-started g=2 cluster=2
KER NAME(ARGS) { __shared__ u32 s[64]; auto c = cg::this_cluster(); s[TID] = BID * 100 + TID;
    ⟨__syncthreads();¦c.sync();⟩ out[BID * 64 + TID] = c.map_shared_rank(s, c.block_rank() ^ 1)[TID]; c.sync(); }

//# dsmem_hist finds=MemoryFault:not-started g=2 cluster=2
KER NAME(ARGS) { __shared__ u32 h[32]; auto c = cg::this_cluster(); if (TID < 32) h[TID] = 0;
    ⟨__syncthreads();¦c.sync();⟩ u32 v = in[BID * 64 + TID] & 63; atomicAdd(&c.map_shared_rank(h, v >> 5)[v & 31], 1);
    c.sync(); if (TID < 32) out[BID * 32 + TID] = h[TID]; }

//# dsmem_relaxed finds=RaceError:write-read g=2 cluster=2
KER NAME(ARGS) { __shared__ u32 s[64]; auto c = cg::this_cluster(); s[TID] = BID * 100 + TID; asm
    volatile("barrier.cluster.arrive⟨.relaxed¦⟩.aligned;\nbarrier.cluster.wait.aligned;" ::: "memory"); out[BID * 64 +
    TID] = c.map_shared_rank(s, c.block_rank() ^ 1)[TID]; c.sync(); }

//# dsmem_split finds=RaceError:write-read g=2 cluster=2
KER NAME(ARGS) { __shared__ u32 s[64]; auto c = cg::this_cluster(); ⟨asm volatile("barrier.cluster.arrive.aligned;" :::
    "memory"); s[TID] = BID * 100 + TID;¦s[TID] = BID * 100 + TID; asm volatile("barrier.cluster.arrive.aligned;" :::
    "memory");⟩ asm volatile("barrier.cluster.wait.aligned;" ::: "memory"); out[BID * 64 + TID] = c.map_shared_rank(s,
    c.block_rank() ^ 1)[TID]; c.sync(); }

//# dsmem_wrongrank finds=MisuseError g=4 cluster=2
KER NAME(ARGS) { __shared__ u32 s[64]; auto c = cg::this_cluster(); s[TID] = BID * 100 + TID; c.sync(); out[BID * 64 +
    TID] = c.map_shared_rank(s, c.block_rank() + ⟨1¦0⟩)[TID]; c.sync(); }

//# dsmem_two_clusters finds=RaceError:write-read g=4 cluster=2
KER NAME(ARGS) { auto c = cg::this_cluster(); in[BID * 64 + TID] = BID + 5; c.sync(); out[BID * 64 + TID] = in[(BID ^
    ⟨2¦1⟩) * 64 + TID]; c.sync(); }

//# dsmem_reduce finds=MemoryFault:gone g=2 cluster=2
KER NAME(ARGS) { __shared__ u32 p; auto c = cg::this_cluster(); if (TID == 0) p = BID + 3; c.sync(); if (c.block_rank()
    == 0 && TID == 0) { u32 v = p; for (int r = 1; r < 2; r++) v += *c.map_shared_rank(&p, r); out[0] = v; } ⟨if
    (c.block_rank() == 0) {} ¦c.sync();⟩ }

//# stasync finds=RaceError:write-read g=2 cluster=2
KER NAME(ARGS) { __shared__ __align__(16) u32 s[64]; __shared__ u64 b; auto c = cg::this_cluster(); if (TID == 0) {
    mb_init(&b, 1); mb_expect(&b, 256); } c.sync(); u32 r = c.block_rank() ^ 1; asm
    volatile("st.async.weak.shared::cluster.mbarrier::complete_tx::bytes.u32 [%0], %1, [%2];" :: "r"(mapa(&s[TID], r)),
    "r"(TID + BID * 100), "r"(mapa(&b, r)) : "memory"); ⟨__syncthreads();¦mb_wait(&b, 0);⟩ out[BID * 64 + TID] = s[TID];
    c.sync(); }

//# stasync_expect finds=Deadlock g=2 cluster=2
KER NAME(ARGS) { __shared__ __align__(16) u32 s[64]; __shared__ u64 b; auto c = cg::this_cluster(); if (TID == 0) {
    mb_init(&b, 1); mb_expect(&b, ⟨252¦256⟩); } c.sync(); u32 r = c.block_rank() ^ 1; asm
    volatile("st.async.weak.shared::cluster.mbarrier::complete_tx::bytes.u32 [%0], %1, [%2];" :: "r"(mapa(&s[TID], r)),
    "r"(TID + BID * 100), "r"(mapa(&b, r)) : "memory"); mb_wait(&b, 0); out[BID * 64 + TID] = s[TID]; c.sync(); }

//# redasync finds=RaceError:write-read g=2 cluster=2
KER NAME(ARGS) { __shared__ u32 s; __shared__ u64 b; auto c = cg::this_cluster(); if (TID == 0) { s = 0; mb_init(&b, 1);
    mb_expect(&b, 256); } c.sync(); u32 r = c.block_rank() ^ 1; asm
    volatile("red.async.relaxed.cluster.shared::cluster.mbarrier::complete_tx::bytes.add.u32 [%0], %1, [%2];" ::
    "r"(mapa(&s, r)), "r"(TID), "r"(mapa(&b, r)) : "memory"); ⟨__syncthreads();¦mb_wait(&b, 0);⟩ if (TID == 0) out[BID]
    = s; c.sync(); }

//# remote_arrive finds=RaceError:write-read g=2 cluster=2
KER NAME(ARGS) { __shared__ u32 s[64]; __shared__ u64 b; auto c = cg::this_cluster(); if (TID == 0) mb_init(&b, 64);
    c.sync(); u32 r = c.block_rank() ^ 1; c.map_shared_rank(s, r)[TID] = TID + 7; asm
    volatile("mbarrier.arrive.release.⟨cta¦cluster⟩.shared::cluster.b64 _, [%0];" :: "r"(mapa(&b, r)) : "memory"); asm
    volatile("{ .reg .pred q; L: mbarrier.try_wait.parity.acquire.cluster.shared::cta.b64 q, [%0], 0; @q bra D; bra L; D: }"
    :: "r"(sa(&b)) : "memory"); out[BID * 64 + TID] = s[TID ^ 32]; c.sync(); }

//# remote_arrive_ctawait finds=RaceError:write-read g=2 cluster=2
KER NAME(ARGS) { __shared__ u32 s[64]; __shared__ u64 b; auto c = cg::this_cluster(); if (TID == 0) mb_init(&b, 64);
    c.sync(); u32 r = c.block_rank() ^ 1; c.map_shared_rank(s, r)[TID] = TID + 7; asm
    volatile("mbarrier.arrive.release.cluster.shared::cluster.b64 _, [%0];" :: "r"(mapa(&b, r)) : "memory"); asm
    volatile("{ .reg .pred q; L: mbarrier.try_wait.parity.acquire.⟨cta¦cluster⟩.shared::cta.b64 q, [%0], 0; @q bra D; bra L; D: }"
    :: "r"(sa(&b)) : "memory"); out[BID * 64 + TID] = s[TID ^ 32]; c.sync(); }

//# initfence_data finds=RaceError:write-read g=2 cluster=2
KER NAME(ARGS) { __shared__ u32 s[64]; __shared__ u64 b; auto c = cg::this_cluster(); s[TID] = TID + 9; if (TID == 0)
    mb_init(&b, 64); asm
    volatile("⟨fence.mbarrier_init.release.cluster¦fence.acq_rel.cluster⟩; barrier.cluster.arrive.relaxed.aligned; barrier.cluster.wait.acquire.aligned;"
    ::: "memory"); out[BID * 64 + TID] = c.map_shared_rank(s, c.block_rank() ^ 1)[TID]; c.sync(); }

//# initfence_bar finds=RaceError:write-read g=2 cluster=2
KER NAME(ARGS) { __shared__ u32 s[64]; __shared__ u64 b; auto c = cg::this_cluster(); if (TID == 0) { mb_init(&b, 64);
    ⟨¦asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory");⟩ } asm
    volatile("barrier.cluster.arrive.relaxed.aligned; barrier.cluster.wait.acquire.aligned;" ::: "memory"); u32 r =
    c.block_rank() ^ 1; asm volatile("mbarrier.arrive.release.cluster.shared::cluster.b64 _, [%0];" :: "r"(mapa(&b, r))
    : "memory"); asm
    volatile("{ .reg .pred q; L: mbarrier.try_wait.parity.acquire.cluster.shared::cta.b64 q, [%0], 0; @q bra D; bra L; D: }"
    :: "r"(sa(&b)) : "memory"); out[TID + 64 * BID] = 1; c.sync(); }

//# initfence_other finds=RaceError:write-read g=2 cluster=2
KER NAME(ARGS) { __shared__ u64 b; auto c = cg::this_cluster(); if (TID == 0) { mb_init(&b, 64); } if (TID == ⟨32¦0⟩) {
    asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory"); } asm
    volatile("barrier.cluster.arrive.relaxed.aligned; barrier.cluster.wait.acquire.aligned;" ::: "memory"); u32 r =
    c.block_rank() ^ 1; asm volatile("mbarrier.arrive.release.cluster.shared::cluster.b64 _, [%0];" :: "r"(mapa(&b, r))
    : "memory"); asm
    volatile("{ .reg .pred q; L: mbarrier.try_wait.parity.acquire.cluster.shared::cta.b64 q, [%0], 0; @q bra D; bra L; D: }"
    :: "r"(sa(&b)) : "memory"); out[TID + 64 * BID] = 1; c.sync(); }

//# dsmem_bulk finds=RaceError:proxy g=2 cluster=2
KER NAME(ARGS) { __shared__ __align__(128) u32 s[64], d[64]; __shared__ u64 b; auto c = cg::this_cluster(); s[TID] = BID
    * 64 + TID; if (TID == 0) { mb_init(&b, 1); mb_expect(&b, 256); } ⟨¦fence_async();⟩ c.sync(); u32 r = c.block_rank()
    ^ 1; if (TID == 0) asm
    volatile("cp.async.bulk.shared::cluster.shared::cta.mbarrier::complete_tx::bytes [%0], [%1], 256, [%2];" ::
    "r"(mapa(d, r)), "r"(sa(s)), "r"(mapa(&b, r)) : "memory"); mb_wait(&b, 0); out[BID * 64 + TID] = d[TID]; c.sync(); }

//# dsmem_bulk_exit finds=MisuseError g=2 cluster=2
KER NAME(ARGS) { __shared__ __align__(128) u32 s[64], d[64]; __shared__ u64 b; auto c = cg::this_cluster(); s[TID] = BID
    * 64 + TID; if (TID == 0) { mb_init(&b, 1); mb_expect(&b, 256); } fence_async(); c.sync(); u32 r = c.block_rank() ^
    1; if (TID == 0) asm
    volatile("cp.async.bulk.shared::cluster.shared::cta.mbarrier::complete_tx::bytes [%0], [%1], 256, [%2];" ::
    "r"(mapa(d, r)), "r"(sa(s)), "r"(mapa(&b, r)) : "memory"); ⟨¦mb_wait(&b, 0); out[BID * 64 + TID] = d[TID];⟩
    c.sync(); }

//# dsmem_bulk_srcreuse finds=RaceError:read-write g=2 cluster=2
KER NAME(ARGS) { __shared__ __align__(128) u32 s[64], d[64]; __shared__ u64 b; auto c = cg::this_cluster(); s[TID] = BID
    * 64 + TID; if (TID == 0) { mb_init(&b, 1); mb_expect(&b, 256); } fence_async(); c.sync(); u32 r = c.block_rank() ^
    1; if (TID == 0) asm
    volatile("cp.async.bulk.shared::cluster.shared::cta.mbarrier::complete_tx::bytes [%0], [%1], 256, [%2];" ::
    "r"(mapa(d, r)), "r"(sa(s)), "r"(mapa(&b, r)) : "memory"); mb_wait(&b, 0); out[BID * 64 + TID] = d[TID];
    ⟨¦c.sync();⟩ s[TID] = 4; c.sync(); }

//# pdl_nowait finds=RaceError:previous-grid g=2 prev=1
KER NAME(ARGS) { ⟨¦asm volatile("griddepcontrol.wait;" ::: "memory");⟩ out[BID * 64 + TID] = in[TID]; }

//# pdl_late finds=RaceError:previous-grid g=2 prev=1
KER NAME(ARGS) { u32 v = ⟨in[TID]¦TID⟩; asm volatile("griddepcontrol.wait;" ::: "memory"); out[BID * 64 + TID] = v +
    in[TID]; }

//# pdl_some finds=RaceError:previous-grid g=2 prev=1
KER NAME(ARGS) { if (TID < ⟨32¦64⟩) asm volatile("griddepcontrol.wait;" ::: "memory"); ⟨¦⟩ out[BID * 64 + TID] =
    in[TID]; }

//# pdl_write finds=RaceError:previous-grid g=2 prev=0
KER NAME(ARGS) { ⟨out[BID * 64 + TID] = 1; asm volatile("griddepcontrol.wait;" ::: "memory");¦asm
    volatile("griddepcontrol.wait;" ::: "memory"); out[BID * 64 + TID] = 1;⟩ }

//# pdl_tma finds=RaceError:previous-grid g=1 prev=1
KER NAME(ARGS) { __shared__ __align__(128) u32 s[64]; __shared__ u64 b; if (TID == 0) mb_init(&b, 1); __syncthreads();
    if (TID == 0) { ⟨¦asm volatile("griddepcontrol.wait;" ::: "memory");⟩ mb_expect(&b, 256); bulk_load(s, in, 256, &b);
    } mb_wait(&b, 0); out[TID] = s[TID]; }

//# pdl_cpa finds=RaceError:previous-grid g=1 prev=1 b=16
KER NAME(ARGS) { __shared__ __align__(128) u32 s[64]; ⟨cpa(&s[4 * TID], &in[4 * TID]); cpa_commit(); asm
    volatile("griddepcontrol.wait;" ::: "memory");¦asm volatile("griddepcontrol.wait;" ::: "memory"); cpa(&s[4 * TID],
    &in[4 * TID]); cpa_commit();⟩ cpa_wait<0>(); out[TID] = s[4 * TID]; }

//# pdl_atomic finds=RaceError:previous-grid g=2 prev=2
KER NAME(ARGS) { ⟨atomicAdd(cnt, 1); asm volatile("griddepcontrol.wait;" ::: "memory");¦asm
    volatile("griddepcontrol.wait;" ::: "memory"); atomicAdd(cnt, 1);⟩ }

//# mb_drop finds=Deadlock b=64
KER NAME(ARGS) { __shared__ u64 b; __shared__ u32 s[64]; if (TID == 0) mb_init(&b, 64); __syncthreads(); s[TID] = TID;
    if (TID < 32) { ⟨¦asm volatile("{ .reg .b64 s; mbarrier.arrive_drop.shared.b64 s, [%0]; }" :: "r"(sa(&b)) :
    "memory");⟩ return; } mb_arrive(&b); mb_wait(&b, 0); out[TID] = s[TID - 32]; }

//# tma_red finds=RaceError:write-write b=64
KER NAME(ARGS) { __shared__ __align__(128) u32 s[64]; s[TID] = TID; fence_async(); __syncthreads(); if (TID == 0) { asm
    volatile("cp.reduce.async.bulk.global.shared::cta.bulk_group.add.u32 [%0], [%1], 256;" :: "l"(out), "r"(sa(s)) :
    "memory"); bulk_commit(); bulk_wait_read(); } ⟨if (TID == 1) out[1] = 4;¦⟩ }

//# tma_red_two finds=RaceError:write-write g=2
KER NAME(ARGS) { __shared__ __align__(128) u32 s[64]; s[TID] = TID; fence_async(); __syncthreads(); if (TID == 0) {
    ⟨bulk_store(out, s, 256);¦asm volatile("cp.reduce.async.bulk.global.shared::cta.bulk_group.add.u32 [%0], [%1], 256;"
    :: "l"(out), "r"(sa(s)) : "memory");⟩ bulk_commit(); bulk_wait_read(); } }

//# tma_store_overlap finds=RaceError:write-write g=2
KER NAME(ARGS) { __shared__ __align__(128) u32 s[64]; s[TID] = TID + BID; fence_async(); __syncthreads(); if (TID == 0)
    { bulk_store(out + BID * ⟨60¦64⟩, s, 256); bulk_commit(); bulk_wait_read(); } }

//# tma_flag finds=RaceError:write-read g=2
KER NAME(ARGS) { __shared__ __align__(128) u32 s[64]; if (BID == 0) { s[TID] = TID; fence_async(); __syncthreads(); if
    (TID == 0) { bulk_store(in, s, 256); bulk_commit(); ⟨bulk_wait_read();¦bulk_wait();⟩ __threadfence(); st_rel(cnt,
    1); } } else { if (TID == 0) while (ld_acq(cnt) == 0) {} __syncthreads(); out[TID] = in[TID]; } }
