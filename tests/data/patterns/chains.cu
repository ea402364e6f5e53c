// What asynchronous copies, remote accesses and proxies pass on to each other, and what they do not.
//
// NAME of each kernel stands behind //#, with what its launch needs. ⟨racy¦mended⟩ is what tells its two forms apart.
#define TILE __align__(128) u32
#define CSYNC() cg::this_cluster().sync()
__device__ inline void fence_async_global() { asm volatile("fence.proxy.async.global;" ::: "memory"); }
__device__ inline void bulk_add(void* d, const void* s, u32 n) { asm volatile("cp.reduce.async.bulk.global.shared::cta.bulk_group.add.u32 [%0], [%1], %2;" :: "l"(d), "r"(sa(s)), "r"(n) : "memory"); }
__device__ inline void st_peer(const void* p, u32 rank, u32 v) { asm volatile("st.shared::cluster.u32 [%0], %1;" :: "r"(mapa(p, rank)), "r"(v) : "memory"); }
__device__ inline u32 ld_peer(const void* p, u32 rank) { u32 v; asm volatile("ld.shared::cluster.u32 %0, [%1];" : "=r"(v) : "r"(mapa(p, rank)) : "memory"); return v; }
__device__ inline void arrive_peer(u64* b, u32 rank) { asm volatile("mbarrier.arrive.release.cluster.shared::cluster.b64 _, [%0];" :: "r"(mapa(b, rank)) : "memory"); }
__device__ inline void wait_cluster(u64* b, u32 p) { asm volatile("{ .reg .pred q; L: mbarrier.try_wait.parity.acquire.cluster.shared::cta.b64 q, [%0], %1; @q bra D; bra L; D: }" :: "r"(sa(b)), "r"(p) : "memory"); }
__device__ inline void st_async(const void* d, u32 rank, u32 v, u64* b) { asm volatile("st.async.shared::cluster.mbarrier::complete_tx::bytes.u32 [%0], %1, [%2];" :: "r"(mapa(d, rank)), "r"(v), "r"(mapa(b, rank)) : "memory"); }

//# issue_releases_nothing finds=RaceError:write-read b=64
KER NAME(ARGS) { __shared__ TILE t[64]; __shared__ u64 b; __shared__ u32 x; if (TID == 0) mb_init(&b, 1);
    __syncthreads(); if (TID == 0) { ⟨mb_expect(&b, 256); x = cnt[9];¦x = cnt[9]; mb_expect(&b, 256);⟩ bulk_load(t, in, 256, &b);
    } if (TID == 32) { mb_wait(&b, 0); out[0] = x + t[1]; } if (TID == 0) mb_wait(&b, 0); }

//# loads_into_one_place finds=RaceError:write-write b=32
KER NAME(ARGS) { __shared__ TILE t[128]; __shared__ u64 b; if (TID == 0) { mb_init(&b, 1); mb_expect(&b, 512);
    bulk_load(t, in, 256, &b); bulk_load(t + ⟨60¦64⟩, in + 64, 256, &b); mb_wait(&b, 0); } __syncwarp(); out[TID] =
    t[TID]; }

//# another_stage_waited_for finds=MemoryFault:uninitialised b=32
KER NAME(ARGS) { __shared__ TILE t[2][64]; __shared__ u64 b[2]; if (TID == 0) for (int i = 0; i < 2; i++) {
    mb_init(&b[i], 1); mb_expect(&b[i], 256); bulk_load(t[i], in, 256, &b[i]); } __syncwarp(); mb_wait(&b[⟨0¦1⟩], 0);
    out[TID] = t[1][TID]; mb_wait(&b[0], 0); mb_wait(&b[1], 0); }

//# slot_patched_by_the_consumer finds=RaceError:proxy b=64
KER NAME(ARGS) { __shared__ TILE t[64]; __shared__ u64 full, empty; if (TID == 0) { mb_init(&full, 1); mb_init(&empty,
    32); } __syncthreads(); if (TID == 32) for (int i = 0; i < 3; i++) { mb_wait(&empty, (i & 1) ^ 1); mb_expect(&full,
    256); bulk_load(t, in + 64 * i, 256, &full); } else if (TID < 32) for (int i = 0; i < 3; i++) { mb_wait(&full, i &
    1); t[TID] += 1; out[32 * i + TID] = t[TID]; ⟨¦fence_async();⟩ mb_arrive(&empty); } }

//# copies_through_global_memory finds=RaceError:write-read b=32
KER NAME(ARGS) { __shared__ TILE t[64], s[64]; __shared__ u64 b; s[TID] = TID; s[TID + 32] = 7; fence_async();
    __syncwarp(); if (TID == 0) { mb_init(&b, 1); bulk_store(out, s, 256); bulk_commit(); ⟨bulk_wait_read();¦bulk_wait();⟩
    mb_expect(&b, 256); bulk_load(t, out, 256, &b); mb_wait(&b, 0); bulk_wait(); } __syncwarp(); out[64 + TID] = t[TID];
    }

//# copied_out_of_what_a_peer_stored finds=RaceError:proxy b=32 g=2 cluster=2
KER NAME(ARGS) { __shared__ TILE t[32]; u32 r = BID & 1; CSYNC(); st_peer(t + TID, r ^ 1, TID); ⟨¦asm
    volatile("fence.proxy.async;" ::: "memory");⟩ CSYNC(); if (TID == 0) { bulk_store(out + 32 * BID, t, 128);
    bulk_commit(); bulk_wait(); } }

//# copied_out_of_asynchronous_stores finds=RaceError:write-read b=32 g=2 cluster=2
KER NAME(ARGS) { __shared__ TILE t[32]; __shared__ u64 b; u32 r = BID & 1; if (TID == 0) { mb_init(&b, 1); mb_expect(&b,
    128); } CSYNC(); st_async(t + TID, r ^ 1, TID, &b); ⟨¦wait_cluster(&b, 0); asm volatile("fence.proxy.async;" :::
    "memory"); __syncwarp();⟩ if (TID == 0) { bulk_store(out + 32 * BID, t, 128); bulk_commit(); bulk_wait(); }
    wait_cluster(&b, 0); CSYNC(); }

//# fence_of_the_other_space finds=RaceError:proxy b=64
KER NAME(ARGS) { __shared__ TILE t[64]; t[TID] = TID; ⟨fence_async_global();¦fence_async();⟩ __syncthreads(); if (TID
    == 0) { bulk_store(out, t, 256); bulk_commit(); bulk_wait(); } }

//# fence_of_the_other_space_global finds=RaceError:proxy b=64
KER NAME(ARGS) { __shared__ TILE t[64]; __shared__ u64 b; if (TID == 0) mb_init(&b, 1); out[TID] = TID;
    ⟨fence_async();¦fence_async_global();⟩ __syncthreads(); if (TID == 0) { mb_expect(&b, 256); bulk_load(t, out, 256,
    &b); } mb_wait(&b, 0); out[64 + TID] = t[TID]; }

//# peer_read_behind_the_release finds=RaceError:read-write b=32 g=2 cluster=2
KER NAME(ARGS) { __shared__ u32 s[32]; __shared__ u64 b; u32 r = BID & 1, a = 0; s[TID] = TID; if (TID == 0) mb_init(&b,
    32); CSYNC(); ⟨arrive_peer(&b, r ^ 1); a = ld_peer(s + TID, r ^ 1);¦a = ld_peer(s + TID, r ^ 1); arrive_peer(&b, r ^
    1);⟩ wait_cluster(&b, 0); s[TID] = 9; out[32 * BID + TID] = a + s[TID]; CSYNC(); }

//# reduction_counted_before_it_is_written finds=RaceError:write-read b=32 g=4
KER NAME(ARGS) { __shared__ TILE t[32]; t[TID] = TID; fence_async(); __syncwarp(); if (TID == 0) { bulk_add(out, t,
    128); bulk_commit(); ⟨bulk_wait_read();¦bulk_wait();⟩ __threadfence(); if (atomicAdd(cnt, 1) == 3) {
    __threadfence(); cnt[5] = out[3]; } } }

//# arrives_twice finds=RaceError:read-write b=96
KER NAME(ARGS) { __shared__ TILE t[64]; __shared__ u64 full, empty; if (TID == 0) { mb_init(&full, 1); mb_init(&empty,
    2); } __syncthreads(); if (TID == 64) for (int i = 0; i < 2; i++) { mb_wait(&empty, (i & 1) ^ 1); mb_expect(&full,
    256); bulk_load(t, in + 64 * i, 256, &full); } else if (TID == 0) { for (int i = 0; i < 2; i++) { mb_wait(&full, i);
    out[i] = t[1]; mb_arrive(&empty); ⟨if (i == 0) mb_arrive(&empty);¦⟩ } } else if (TID == 32) { for (int i = 0; i < 2;
    i++) { mb_wait(&full, i); out[i + 2] = t[2]; ⟨if (i)¦⟩ mb_arrive(&empty); } } }

//# barriers_swapped finds=Deadlock b=32
KER NAME(ARGS) { __shared__ TILE t[2][64]; __shared__ u64 b[2]; if (TID == 0) { for (int i = 0; i < 2; i++) {
    mb_init(&b[i], 1); mb_expect(&b[i], 256); } for (int i = 0; i < 2; i++) bulk_load(t[i], in, 256, &b[⟨0¦i⟩]);
    mb_wait(&b[0], 0); mb_wait(&b[1], 0); out[0] = t[1][2]; } }

//# waited_for_by_a_vote finds=RaceError:write-read b=32
KER NAME(ARGS) { __shared__ TILE t[64]; __shared__ u64 b; if (TID == 0) { mb_init(&b, 1); mb_expect(&b, 256);
    bulk_load(t, in, 256, &b); mb_wait(&b, 0); } ⟨u32 done = __ballot_sync(~0u, TID == 0); if (done)¦__syncwarp();⟩
    out[TID] = t[TID]; }

//# cluster_barrier_for_a_copy finds=MemoryFault:uninitialised b=32 g=2 cluster=2
KER NAME(ARGS) { __shared__ TILE t[64], s[64]; __shared__ u64 b; u32 r = BID & 1; s[TID] = TID; s[TID + 32] = 3; if (TID
    == 0) { mb_init(&b, 1); mb_expect(&b, 256); } fence_async(); CSYNC(); if (TID == 0) asm volatile(
    "cp.async.bulk.shared::cluster.shared::cta.mbarrier::complete_tx::bytes [%0], [%1], 256, [%2];" :: "r"(mapa(t, r ^
    1)), "r"(sa(s)), "r"(mapa(&b, r ^ 1)) : "memory"); CSYNC(); ⟨¦wait_cluster(&b, 0);⟩ out[32 * BID + TID] = t[TID];
    wait_cluster(&b, 0); CSYNC(); }

//# source_of_a_copy_to_a_peer_reused finds=RaceError:read-write b=32 g=2 cluster=2
KER NAME(ARGS) { __shared__ TILE t[64], s[64]; __shared__ u64 b; u32 r = BID & 1; s[TID] = TID; s[TID + 32] = 3; if (TID
    == 0) { mb_init(&b, 1); mb_expect(&b, 256); } fence_async(); CSYNC(); if (TID == 0) asm volatile(
    "cp.async.bulk.shared::cluster.shared::cta.mbarrier::complete_tx::bytes [%0], [%1], 256, [%2];" :: "r"(mapa(t, r ^
    1)), "r"(sa(s)), "r"(mapa(&b, r ^ 1)) : "memory"); wait_cluster(&b, 0); ⟨¦CSYNC();⟩ s[TID] = 9; out[32 * BID + TID]
    = t[TID] + s[TID]; CSYNC(); }

//# own_copy_into_a_barrier finds=MisuseError b=32
KER NAME(ARGS) { __shared__ TILE t[64]; __shared__ __align__(16) u64 b[2]; if (TID == 0) { mb_init(&b[0], 1);
    mb_expect(&b[0], 16); bulk_load(⟨(void*)b¦(void*)t⟩, in, 16, &b[0]); mb_wait(&b[0], 0); out[0] = t[⟨4¦1⟩ & 3]; } }

//# load_and_generic_store_of_neighbours finds=RaceError:write-write b=32
KER NAME(ARGS) { __shared__ TILE t[64]; __shared__ u64 b; if (TID == 0) { mb_init(&b, 1); mb_expect(&b, 128);
    bulk_load(t, in, 128, &b); } __syncwarp(); t[⟨31¦32⟩ + TID % 2] = 5; mb_wait(&b, 0); out[TID] = t[TID % 31]; }

//# drain_before_reading_back finds=RaceError:read-write b=64
KER NAME(ARGS) { __shared__ TILE t[64]; t[TID] = TID; fence_async(); __syncthreads(); if (TID == 0) { bulk_store(out, t,
    256); bulk_commit(); bulk_wait(); } ⟨¦__syncthreads();⟩ out[64 + TID] = out[TID ^ 1]; }

//# two_issuers_one_waiter finds=RaceError:write-read b=64
KER NAME(ARGS) { __shared__ TILE t[64]; t[TID] = TID; fence_async(); __syncthreads(); if (TID % 32 == 0) {
    bulk_store(out + TID, t + TID, 128); bulk_commit(); ⟨if (TID == 0)¦⟩ bulk_wait(); ⟨if (TID) bulk_wait_read();¦⟩ }
    __syncthreads(); out[64 + TID] = out[TID]; if (TID % 32 == 0) bulk_wait(); }

//# asks_once finds=MemoryFault:uninitialised b=32
KER NAME(ARGS) { __shared__ TILE t[64]; __shared__ u64 b; if (TID == 0) { mb_init(&b, 1); mb_expect(&b, 256);
    bulk_load(t, in, 256, &b); } __syncwarp(); ⟨asm volatile("{ .reg .pred q; mbarrier.try_wait.parity.shared.b64 q, [%0], 0; }" :: "r"(sa(&b)) : "memory");¦⟩ ⟨¦mb_wait(&b, 0);⟩ out[TID] = t[TID]; mb_wait(&b, 0); }

//# asks_once_and_goes_on finds=ScheduleError b=32
KER NAME(ARGS) { __shared__ TILE t[64]; __shared__ u64 b; u32 done = 0; if (TID == 0) { mb_init(&b, 1); mb_expect(&b,
    256); bulk_load(t, in, 256, &b); } __syncwarp(); ⟨¦while (!done)⟩ asm volatile("{ .reg .pred q; mbarrier.try_wait.parity.shared.b64 q, [%1], 0; selp.u32 %0, 1, 0, q; }" : "=r"(done) : "r"(sa(&b)) : "memory");
    out[TID] = done ? t[TID] : 7; mb_wait(&b, 0); }
