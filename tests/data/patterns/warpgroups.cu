// Products of warpgroups, the copies that feed them, and the barriers in memory between the two.
//
// NAME of each kernel stands behind //#, with what its launch needs. ⟨racy¦mended⟩ is what tells its two forms apart.
// A tile is A, 64 x 16, and behind it B, 8 x 16, both FP16 in core matrices of 128 bytes without a swizzle.
__device__ inline u64 matrix(const void* p) { return (u64)(sa(p) >> 4) | (u64)(128 >> 4) << 16 | (u64)(256 >> 4) << 32; }
// Accumulators have to lie in registers of their own before the fence: nvcc moves them where an instruction wants them.
#define HOLD(d) asm volatile("" : "+f"((d)[0]), "+f"((d)[1]), "+f"((d)[2]), "+f"((d)[3]) :: "memory")
__device__ inline void wg_fence(float (&d)[4]) { HOLD(d); asm volatile("wgmma.fence.sync.aligned;" ::: "memory"); }
__device__ inline void wg_fence(float (&d)[4], float (&e)[4]) { HOLD(e); wg_fence(d); }
__device__ inline void wg_commit() { asm volatile("wgmma.commit_group.sync.aligned;" ::: "memory"); }
template<int N> __device__ inline void wg_wait(float (&d)[4]) { asm volatile("wgmma.wait_group.sync.aligned %4;" : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3]) : "n"(N) : "memory"); }
__device__ inline void multiply(float (&d)[4], const u32* a, const u32* b) { asm volatile("wgmma.mma_async.sync.aligned.m64n8k16.f32.f16.f16 {%0, %1, %2, %3}, %4, %5, 1, 1, 1, 0, 0;" : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3]) : "l"(matrix(a)), "l"(matrix(b)) : "memory"); }
__device__ inline void multiply(float (&d)[4], const u32* tile) { multiply(d, tile, tile + 512); }
__device__ inline u32 bits(const float (&d)[4]) { return __float_as_uint(d[0] + d[1] + d[2] + d[3]); }
__device__ inline void mb_arrive_at(u64* b, u32 rank) { asm volatile("mbarrier.arrive.release.cluster.shared::cluster.b64 _, [%0];" :: "r"(mapa(b, rank)) : "memory"); }
__device__ inline void mb_wait_cluster(u64* b, u32 p) { asm volatile("{ .reg .pred q; L: mbarrier.try_wait.parity.acquire.cluster.shared::cta.b64 q, [%0], %1; @q bra D; bra L; D: }" :: "r"(sa(b)), "r"(p) : "memory"); }
__device__ inline void bulk_multicast(void* d, const void* s, u32 n, u64* b, unsigned short mask) { asm volatile("cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes.multicast::cluster [%0], [%1], %2, [%3], %4;" :: "r"(sa(d)), "l"(s), "r"(n), "r"(sa(b)), "h"(mask) : "memory"); }
#define TILE __align__(128) u32
#define FILL(t) for (int i = TID; i < 576; i += blockDim.x) (t)[i] = in[i] + 0x3c00
#define CSYNC() cg::this_cluster().sync()

//# operand_unfenced finds=RaceError:proxy b=128
KER NAME(ARGS) { __shared__ TILE t[576]; float d[4] = {}; FILL(t); ⟨¦fence_async();⟩ __syncthreads(); wg_fence(d);
    multiply(d, t); wg_commit(); wg_wait<0>(d); out[TID] = bits(d); }

//# operand_unsynced finds=RaceError:write-read b=128
KER NAME(ARGS) { __shared__ TILE t[576]; float d[4] = {}; FILL(t); fence_async(); ⟨¦__syncthreads();⟩ wg_fence(d);
    multiply(d, t); wg_commit(); wg_wait<0>(d); out[TID] = bits(d); }

//# operand_fenced_by_one finds=RaceError:proxy b=128
KER NAME(ARGS) { __shared__ TILE t[576]; float d[4] = {}; FILL(t); ⟨if (TID == 0)¦⟩ fence_async(); __syncthreads();
    wg_fence(d); multiply(d, t); wg_commit(); wg_wait<0>(d); out[TID] = bits(d); }

//# operand_fenced_too_early finds=RaceError:proxy b=128
KER NAME(ARGS) { __shared__ TILE t[576]; float d[4] = {}; FILL(t); fence_async(); if (TID == 5) t[5] = 0;
    ⟨¦fence_async();⟩ __syncthreads(); wg_fence(d); multiply(d, t); wg_commit(); wg_wait<0>(d); out[TID] = bits(d); }

//# operand_overwritten finds=RaceError:read-write b=128
KER NAME(ARGS) { __shared__ TILE t[576]; float d[4] = {}; FILL(t); fence_async(); __syncthreads(); wg_fence(d);
    multiply(d, t); wg_commit(); ⟨¦wg_wait<0>(d);⟩ t[TID] = 0; wg_wait<0>(d); out[TID] = bits(d); }

//# operand_overwritten_uncommitted finds=RaceError:read-write b=128
KER NAME(ARGS) { __shared__ TILE t[576]; float d[4] = {}, e[4] = {}; FILL(t); fence_async(); __syncthreads();
    wg_fence(d, e); ⟨wg_commit(); multiply(d, t);¦multiply(d, t); wg_commit();⟩ wg_wait<0>(e); t[TID] = 0; wg_commit();
    wg_wait<0>(d); out[TID] = bits(d); }

//# second_group_overwritten finds=RaceError:read-write b=128
KER NAME(ARGS) { __shared__ TILE t[2][576]; float d[4] = {}, e[4] = {}; FILL(t[0]); FILL(t[1]); fence_async();
    __syncthreads(); wg_fence(d, e); multiply(d, t[0]); wg_commit(); multiply(e, t[1]); wg_commit(); wg_wait<1>(d);
    t[⟨1¦0⟩][TID] = 0; wg_wait<0>(e); out[TID] = bits(d) + bits(e); }

//# shared_b_overwritten finds=RaceError:read-write b=128
KER NAME(ARGS) { __shared__ TILE t[2][576]; float d[4] = {}, e[4] = {}; FILL(t[0]); FILL(t[1]); fence_async();
    __syncthreads(); wg_fence(d, e); multiply(d, t[0], t[0] + 512); wg_commit(); multiply(e, t[1], t[0] + 512); wg_commit();
    wg_wait<1>(d); t[0][⟨512 + TID % 64¦TID⟩] = TID % 64; wg_wait<0>(e); out[TID] = bits(d) + bits(e); }

//# other_group_overwrites finds=RaceError:write-read b=256
KER NAME(ARGS) { __shared__ TILE t[576]; float d[4] = {}; FILL(t); fence_async(); __syncthreads(); if (TID < 128) {
    wg_fence(d); multiply(d, t); wg_commit(); wg_wait<0>(d); out[TID] = bits(d); } ⟨¦__syncthreads();⟩ if (TID >= 128)
    t[TID - 128] = 0; }

//# other_group_overwrites_copied finds=RaceError:write-read b=256
KER NAME(ARGS) { __shared__ TILE t[576]; __shared__ u64 b; float d[4] = {}; if (TID == 0) { mb_init(&b, 1);
    mb_expect(&b, 2304); bulk_load(t, in, 2304, &b); } __syncthreads(); mb_wait(&b, 0); if (TID < 128) { wg_fence(d);
    multiply(d, t); wg_commit(); wg_wait<0>(d); out[TID] = bits(d); } ⟨¦__syncthreads();⟩ if (TID >= 128) t[TID - 128]
    = 0; }

//# epilogue_over_shared_b finds=RaceError:write-read b=256
KER NAME(ARGS) { __shared__ TILE a[2][576]; __shared__ TILE b[64]; float d[4] = {}; FILL(a[0]); FILL(a[1]); if (TID <
    64) b[TID] = 0; fence_async(); __syncthreads(); wg_fence(d); multiply(d, a[TID / 128], b); wg_commit();
    wg_wait<0>(d); ⟨¦__syncthreads();⟩ if (TID < 64) b[TID] = bits(d); __syncthreads(); out[TID] = b[TID % 64]; }

//# result_read_early finds=MisuseError b=128
KER NAME(ARGS) { __shared__ TILE t[576]; float d[4] = {}; FILL(t); fence_async(); __syncthreads(); wg_fence(d);
    multiply(d, t); wg_commit(); ⟨out[TID] = bits(d);¦⟩ wg_wait<0>(d); out[TID] = bits(d); }

//# result_of_open_group finds=MisuseError b=128
KER NAME(ARGS) { __shared__ TILE t[576]; float d[4] = {}, e[4] = {}; FILL(t); fence_async(); __syncthreads();
    wg_fence(d, e); multiply(d, t); wg_commit(); multiply(e, t); wg_commit(); ⟨wg_wait<1>(e); out[TID] = bits(e);
    wg_wait<0>(d);¦wg_wait<1>(d); out[TID] = bits(d); wg_wait<0>(e);⟩ out[TID + 128] = bits(d) + bits(e); }

//# accumulators_unfenced finds=MisuseError b=128
KER NAME(ARGS) { __shared__ TILE t[576]; float d[4] = {1, 2, 3, 4}; FILL(t); fence_async(); __syncthreads();
    ⟨¦wg_fence(d);⟩ multiply(d, t); wg_commit(); wg_wait<0>(d); out[TID] = bits(d); }

//# accumulators_scaled_unfenced finds=MisuseError b=128
KER NAME(ARGS) { __shared__ TILE t[576]; float d[4] = {1, 2, 3, 4}; FILL(t); fence_async(); __syncthreads(); wg_fence(d);
    for (int k = 0; k < 3; k++) { ⟨¦wg_fence(d);⟩ multiply(d, t); wg_commit(); wg_wait<0>(d); for (int i = 0; i < 4; i++)
    d[i] *= 0.5f; } out[TID] = bits(d); }

//# exit_with_products finds=MisuseError b=128
KER NAME(ARGS) { __shared__ TILE t[576]; float d[4] = {}; FILL(t); fence_async(); __syncthreads(); wg_fence(d);
    multiply(d, t); wg_commit(); ⟨¦wg_wait<0>(d);⟩ out[TID] = TID; }

//# half_a_warpgroup finds=WarpError b=128
KER NAME(ARGS) { __shared__ TILE t[576]; float d[4] = {}; FILL(t); fence_async(); __syncthreads(); ⟨if (TID < 64)¦⟩ {
    wg_fence(d); multiply(d, t); wg_commit(); wg_wait<0>(d); out[TID] = bits(d); } }

//# operands_of_each_warp finds=MisuseError b=128
KER NAME(ARGS) { __shared__ TILE t[2][576]; float d[4] = {}; FILL(t[0]); FILL(t[1]); fence_async(); __syncthreads();
    wg_fence(d); multiply(d, t[⟨TID / 32 % 2¦1⟩]); wg_commit(); wg_wait<0>(d); out[TID] = bits(d); }

//# cp_async_operand finds=warning b=128
KER NAME(ARGS) { __shared__ TILE t[576]; float d[4] = {}; for (int i = TID; i < 144; i += 128) cpa(&t[4 * i], &in[4 *
    i]); cpa_commit(); cpa_wait<0>(); ⟨¦fence_async();⟩ __syncthreads(); wg_fence(d); multiply(d, t); wg_commit();
    wg_wait<0>(d); out[TID] = bits(d); }

//# cp_async_operand_open finds=RaceError:write-read b=128
KER NAME(ARGS) { __shared__ TILE t[576]; float d[4] = {}; for (int i = TID; i < 144; i += 128) cpa(&t[4 * i], &in[4 *
    i]); cpa_commit(); cpa_wait<⟨1¦0⟩>(); fence_async(); __syncthreads(); wg_fence(d); multiply(d, t); wg_commit();
    wg_wait<0>(d); out[TID] = bits(d); }

//# bulk_operand_waited_by_one finds=RaceError:write-read b=128
KER NAME(ARGS) { __shared__ TILE t[576]; __shared__ u64 b; float d[4] = {}; if (TID == 0) { mb_init(&b, 1);
    mb_expect(&b, 2304); bulk_load(t, in, 2304, &b); } __syncthreads(); ⟨if (TID >= 32)¦⟩ mb_wait(&b, 0); wg_fence(d);
    multiply(d, t); wg_commit(); wg_wait<0>(d); out[TID] = bits(d); }

//# bulk_operand_of_a_later_phase finds=RaceError:write-read b=128
KER NAME(ARGS) { __shared__ TILE t[2][576]; __shared__ u64 b; float d[4] = {}; if (TID == 0) { mb_init(&b, 1);
    mb_expect(&b, 2304); bulk_load(t[0], in, 2304, &b); } __syncthreads(); mb_wait(&b, 0); __syncthreads(); if (TID == 0) { mb_expect(&b,
    2304); bulk_load(t[1], in, 2304, &b); } ⟨¦mb_wait(&b, 1);⟩ wg_fence(d); multiply(d, t[1]); wg_commit(); wg_wait<0>(d);
    mb_wait(&b, 1); out[TID] = bits(d); }

//# slot_released_early finds=RaceError:read-write b=256
KER NAME(ARGS) { __shared__ TILE t[2][576]; __shared__ u64 full[2], empty[2]; float d[4] = {}; if (TID == 0) for (int i
    = 0; i < 2; i++) { mb_init(&full[i], 1); mb_init(&empty[i], 1); } __syncthreads(); if (TID == 128) for (int i = 0; i
    < 6; i++) { mb_wait(&empty[i & 1], ((i >> 1) & 1) ^ 1); mb_expect(&full[i & 1], 2304); bulk_load(t[i & 1], in + 64 *
    i, 2304, &full[i & 1]); } else if (TID < 128) { for (int i = 0; i < 6; i++) { mb_wait(&full[i & 1], (i >> 1) & 1);
    wg_fence(d); multiply(d, t[i & 1]); wg_commit(); ⟨if (TID == 0) mb_arrive(&empty[i & 1]); wg_wait<0>(d);¦wg_wait<0>(d);
    if (TID == 0) mb_arrive(&empty[i & 1]);⟩ } out[TID] = bits(d); } }

//# slot_of_the_open_group_released finds=RaceError:read-write b=256
KER NAME(ARGS) { __shared__ TILE t[2][576]; __shared__ u64 full[2], empty[2]; float d[4] = {}; if (TID == 0) for (int i
    = 0; i < 2; i++) { mb_init(&full[i], 1); mb_init(&empty[i], 1); } __syncthreads(); if (TID == 128) for (int i = 0; i
    < 6; i++) { mb_wait(&empty[i & 1], ((i >> 1) & 1) ^ 1); mb_expect(&full[i & 1], 2304); bulk_load(t[i & 1], in + 64 *
    i, 2304, &full[i & 1]); } else if (TID < 128) { for (int i = 0; i < 6; i++) { mb_wait(&full[i & 1], (i >> 1) & 1);
    wg_fence(d); multiply(d, t[i & 1]); wg_commit(); wg_wait<1>(d); if (TID == 0 ⟨¦&& i⟩) mb_arrive(&empty[⟨i¦i - 1⟩ &
    1]); } wg_wait<0>(d); out[TID] = bits(d); } }

//# slot_of_two_consumers finds=RaceError:read-write b=384
KER NAME(ARGS) { __shared__ TILE t[576]; __shared__ u64 full, empty; float d[4] = {}; if (TID == 0) { mb_init(&full, 1);
    mb_init(&empty, ⟨1¦2⟩); } __syncthreads(); if (TID == 256) for (int i = 0; i < 2; i++) { mb_wait(&empty, (i & 1) ^
    1); mb_expect(&full, 2304); bulk_load(t, in + 64 * i, 2304, &full); } else if (TID < 256) { for (int i = 0; i < 2;
    i++) { mb_wait(&full, i & 1); wg_fence(d); multiply(d, t); wg_commit(); wg_wait<0>(d); if (TID % 128 == 0 ⟨&& TID /
    128 == i¦⟩) mb_arrive(&empty); } out[TID] = bits(d); } }

//# slot_released_by_a_reader_of_scales finds=RaceError:read-write b=256
KER NAME(ARGS) { __shared__ TILE t[576]; __shared__ __align__(16) u32 s[128]; __shared__ u64 full, empty; float d[4] =
    {}; u32 a = 0; if (TID == 0) { mb_init(&full, 1); mb_init(&empty, 1); } __syncthreads(); if (TID == 128) for (int i
    = 0; i < 3; i++) { mb_wait(&empty, (i & 1) ^ 1); mb_expect(&full, 2816); bulk_load(t, in + 64 * i, 2304, &full);
    bulk_load(s, in, 512, &full); } else if (TID < 128) { for (int i = 0; i < 3; i++) { mb_wait(&full, i & 1); a +=
    s[TID ^ 33]; wg_fence(d); multiply(d, t); wg_commit(); wg_wait<0>(d); ⟨__syncwarp();¦BAR(1, 128);⟩ if (TID == 0)
    mb_arrive(&empty); } out[TID] = bits(d) + a; } }

//# producers_of_a_named_barrier finds=RaceError:proxy b=256
KER NAME(ARGS) { __shared__ TILE t[576]; float d[4] = {}; if (TID >= 128) { for (int i = TID - 128; i < 576; i += 128)
    t[i] = 0; ⟨¦fence_async();⟩ ARRIVE(1, 256); } else { BAR(1, 256); wg_fence(d); multiply(d, t); wg_commit();
    wg_wait<0>(d); out[TID] = bits(d); } }

//# fence_of_a_reader_group finds=RaceError:proxy b=256
KER NAME(ARGS) { __shared__ TILE t[576]; float d[4] = {}; if (TID >= 128) { for (int i = TID - 128; i < 576; i += 128)
    t[i] = 0; ARRIVE(1, 256); } else { ⟨fence_async(); BAR(1, 256);¦BAR(1, 256); fence_async();⟩ wg_fence(d); multiply(d,
    t); wg_commit(); wg_wait<0>(d); out[TID] = bits(d); } }

//# result_stored_by_a_copy finds=RaceError:proxy b=128
KER NAME(ARGS) { __shared__ TILE t[576]; float d[4] = {}; FILL(t); fence_async(); __syncthreads(); wg_fence(d);
    multiply(d, t); wg_commit(); wg_wait<0>(d); t[TID] = bits(d); ⟨¦fence_async();⟩ __syncthreads(); if (TID == 0) {
    bulk_store(out, t, 512); bulk_commit(); bulk_wait_read(); } }

//# tile_filled_again_over_a_store finds=RaceError:read-write b=128
KER NAME(ARGS) { __shared__ TILE t[576]; __shared__ u64 b; if (TID == 0) { mb_init(&b, 1); mb_expect(&b, 512);
    bulk_load(t, in, 512, &b); mb_wait(&b, 0); bulk_store(out, t, 512); bulk_commit(); ⟨¦bulk_wait_read();⟩ mb_expect(&b,
    512); bulk_load(t, in + 128, 512, &b); mb_wait(&b, 1); bulk_wait(); } __syncthreads(); out[128 + TID] = TID; }

//# multicast_unarmed finds=MemoryFault:uninitialised b=64 g=2 cluster=2
KER NAME(ARGS) { __shared__ TILE t[64]; __shared__ u64 b; u32 r = BID & 1; if (TID == 0) { mb_init(&b, 1); ⟨if (r ==
    0)¦⟩ mb_expect(&b, 256); ⟨if (r) mb_arrive(&b);¦⟩ } CSYNC(); if (r == 0 && TID == 0) bulk_multicast(t, in, 256, &b,
    3); mb_wait_cluster(&b, 0); out[BID * 64 + TID] = t[TID]; CSYNC(); }

//# multicast_slot_of_two_blocks finds=RaceError:write-write b=64 g=2 cluster=2
KER NAME(ARGS) { __shared__ TILE t[64]; __shared__ u64 full, empty; u32 r = BID & 1, a = 0; if (TID == 0) {
    mb_init(&full, 1); mb_init(&empty, ⟨64¦128⟩); } CSYNC(); for (int i = 0; i < 3; i++) { if (TID == 0)
    mb_expect(&full, 256); if (r == 0 && TID == 0) { if (i) mb_wait_cluster(&empty, (i - 1) & 1); bulk_multicast(t, in +
    64 * i, 256, &full, 3); } mb_wait_cluster(&full, i & 1); a += t[TID ^ 40]; ⟨if (r == 0)¦⟩ mb_arrive_at(&empty, 0); }
    out[BID * 64 + TID] = a; CSYNC(); }

//# multicast_into_an_exited_block finds=MemoryFault:gone b=32 g=2 cluster=2
KER NAME(ARGS) { __shared__ TILE t[64]; __shared__ u64 b; u32 r = BID & 1; if (TID == 0) { mb_init(&b, 1); mb_expect(&b,
    256); } CSYNC(); if (r == 0 && TID == 0) bulk_multicast(t, in, 256, &b, 3); ⟨if (r == 0)¦⟩ { mb_wait_cluster(&b, 0);
    out[BID * 32 + TID] = t[TID]; } }

//# multicast_before_the_peer_is_ready finds=MemoryFault:not-started b=32 g=2 cluster=2
KER NAME(ARGS) { __shared__ TILE t[64]; __shared__ u64 b; u32 r = BID & 1; if (TID == 0) { mb_init(&b, 1); mb_expect(&b,
    256); } ⟨__syncthreads();¦CSYNC();⟩ if (r == 0 && TID == 0) bulk_multicast(t, in, 256, &b, 3); mb_wait_cluster(&b,
    0); out[BID * 32 + TID] = t[TID]; CSYNC(); }

//# peer_slot_written_by_a_copy finds=RaceError:read-write b=64 g=2 cluster=2
KER NAME(ARGS) { __shared__ TILE t[64], s[64]; __shared__ u64 b; u32 r = BID & 1; t[TID] = 7; s[TID] = TID; if (TID ==
    0) { mb_init(&b, 1); mb_expect(&b, 256); } fence_async(); CSYNC(); u32 a = t[TID ^ 33]; ⟨¦CSYNC();⟩ if (TID == 0)
    asm volatile("cp.async.bulk.shared::cluster.shared::cta.mbarrier::complete_tx::bytes [%0], [%1], 256, [%2];" ::
    "r"(mapa(t, r ^ 1)), "r"(sa(s)), "r"(mapa(&b, r ^ 1)) : "memory"); mb_wait_cluster(&b, 0); out[BID * 64 + TID] = a
    + t[TID]; CSYNC(); }

//# reductions_into_a_peer finds=RaceError:write-write b=32 g=2 cluster=2
KER NAME(ARGS) { __shared__ TILE t[32], s[32]; __shared__ u64 b; u32 r = BID & 1; ⟨¦t[TID] = 1;⟩ s[TID] = TID; if (TID
    == 0) { mb_init(&b, 1); mb_expect(&b, 128); } fence_async(); CSYNC(); ⟨t[TID] = 1;¦⟩ if (TID == 0) asm volatile(
    "cp.reduce.async.bulk.shared::cluster.shared::cta.mbarrier::complete_tx::bytes.add.u32 [%0], [%1], 128, [%2];" ::
    "r"(mapa(t, r ^ 1)), "r"(sa(s)), "r"(mapa(&b, r ^ 1)) : "memory"); mb_wait_cluster(&b, 0); out[BID * 32 + TID] =
    t[TID]; CSYNC(); }

//# expectation_of_a_peer_late finds=Deadlock b=32 g=2 cluster=2
KER NAME(ARGS) { __shared__ TILE t[64]; __shared__ u64 b; u32 r = BID & 1; if (TID == 0) { mb_init(&b, 1); mb_expect(&b,
    ⟨512¦256⟩); } CSYNC(); if (r == 0 && TID == 0) bulk_multicast(t, in, 256, &b, 3); mb_wait_cluster(&b, 0); out[BID *
    32 + TID] = t[TID]; CSYNC(); }

//# barrier_initialised_again finds=MisuseError b=64
KER NAME(ARGS) { __shared__ TILE t[64]; __shared__ u64 b; if (TID == 0) { mb_init(&b, 1); mb_expect(&b, 256);
    bulk_load(t, in, 256, &b); } __syncthreads(); ⟨¦mb_wait(&b, 0); __syncthreads();⟩ if (TID == 0) { asm
    volatile("mbarrier.inval.shared.b64 [%0];" :: "r"(sa(&b)) : "memory"); mb_init(&b, 64); } __syncthreads();
    mb_arrive(&b); mb_wait(&b, 0); out[TID] = TID; }

//# bytes_behind_a_store_of_the_reader finds=RaceError:write-read b=64 g=2
KER NAME(ARGS) { __shared__ TILE t[64]; if (BID == 0) { t[TID] = TID; fence_async(); __syncthreads(); if (TID == 0) {
    bulk_store(out, t, 256); bulk_commit(); ⟨bulk_wait_read();¦bulk_wait();⟩ st_rel(cnt, 1); } } else { while
    (!ld_acq(cnt)) {} out[64 + TID] = out[TID ^ 33]; } }

//# copy_issued_behind_a_wait finds=Deadlock b=64
KER NAME(ARGS) { __shared__ TILE t[64]; __shared__ u64 b; __shared__ u32 flag; if (TID == 0) { mb_init(&b, 1); flag = 0;
    } __syncthreads(); if (TID < 32) { mb_wait(&b, 0); if (TID == 0) *(volatile u32*)&flag = 1; out[TID] = t[TID]; }
    else if (TID == 32) { mb_expect(&b, ⟨512¦256⟩); bulk_load(t, in, 256, &b); while (!*(volatile u32*)&flag) {} } }

//# copy_issued_before_a_poll finds=Deadlock b=64
KER NAME(ARGS) { __shared__ TILE t[64]; __shared__ u64 b; __shared__ u32 flag; if (TID == 0) { mb_init(&b, 1); flag = 0;
    mb_expect(&b, ⟨512¦256⟩); bulk_load(t, in, 256, &b); } __syncthreads(); if (TID < 32) { u32 done = 0; while (!done)
    asm volatile("{ .reg .pred q; mbarrier.test_wait.parity.shared.b64 q, [%1], 0; selp.u32 %0, 1, 0, q; }" : "=r"(done)
    : "r"(sa(&b)) : "memory"); if (TID == 0) *(volatile u32*)&flag = 1; out[TID] = t[TID]; } else if (TID == 32) while
    (!*(volatile u32*)&flag) {} }
