// Patterns of roles: warps that produce and consume, blocks that hand on, locks and counters of several forms.
//
// NAME of each kernel stands behind //#, with what its launch needs. ⟨racy¦mended⟩ is what tells its two forms apart.

//# ring_full_parity finds=MemoryFault:uninitialised b=64
KER NAME(ARGS) { __shared__ u64 f[2], e[2]; __shared__ u32 s[2][32]; if (TID == 0) for (u32 k = 0; k < 2; k++) {
    mb_init(&f[k], 32); mb_init(&e[k], 32); } __syncthreads(); u32 l = TID & 31, a = 0; for (u32 i = 0; i < 6; i++) {
    u32 k = i & 1, p = i >> 1 & 1; if (TID >= 32) { mb_wait(&e[k], p ^ 1); s[k][l] = i * 32 + l; mb_arrive(&f[k]); }
    else { mb_wait(&f[k], p⟨ ^ 1¦⟩); a += s[k][l ^ 1]; mb_arrive(&e[k]); } } if (TID < 32) out[l] = a; }

//# ring_empty_parity finds=Deadlock b=64
KER NAME(ARGS) { __shared__ u64 f[2], e[2]; __shared__ u32 s[2][32]; if (TID == 0) for (u32 k = 0; k < 2; k++) {
    mb_init(&f[k], 32); mb_init(&e[k], 32); } __syncthreads(); u32 l = TID & 31, a = 0; for (u32 i = 0; i < 4; i++) {
    u32 k = i & 1, p = i >> 1 & 1; if (TID >= 32) { mb_wait(&e[k], ⟨1¦p ^ 1⟩); s[k][l] = i * 32 + l; mb_arrive(&f[k]);
    } else { mb_wait(&f[k], p); a += s[k][l ^ 1]; mb_arrive(&e[k]); } } if (TID < 32) out[l] = a; }

//# ring_full_count finds=RaceError:write-read b=64
KER NAME(ARGS) { __shared__ u64 f; __shared__ u32 s[32]; if (TID == 0) mb_init(&f, ⟨1¦32⟩); __syncthreads(); if (TID >=
    32) { s[TID - 32] = TID; ⟨if (TID == 32) ¦⟩mb_arrive(&f); } else { mb_wait(&f, 0); out[TID] = s[TID ^ 1]; } }

//# named_too_few finds=RaceError:write-read b=96
KER NAME(ARGS) { __shared__ u32 s[96]; s[TID] = TID; BAR(1, ⟨32¦96⟩); out[TID] = s[(TID + 32) % 96]; }

//# dsmem_copy_nofence finds=RaceError:proxy g=2 cluster=2
KER NAME(ARGS) { auto c = cg::this_cluster(); __shared__ __align__(128) u32 s[64], d[64]; __shared__ u64 b; if (TID ==
    0) { mb_init(&b, 1); mb_expect(&b, 256); } s[TID] = BID * 64 + TID; ⟨¦fence_async();⟩ c.sync(); u32 r =
    c.block_rank() ^ 1; if (TID == 0) asm
    volatile("cp.async.bulk.shared::cluster.shared::cta.mbarrier::complete_tx::bytes [%0], [%1], 256, [%2];" ::
    "r"(mapa(d, r)), "r"(sa(s)), "r"(mapa(&b, r)) : "memory"); mb_wait(&b, 0); out[BID * 64 + TID] = d[TID]; c.sync(); }

//# dsmem_count_exit finds=RaceError:exit g=2 cluster=2 b=32
KER NAME(ARGS) { auto c = cg::this_cluster(); __shared__ u32 n; if (TID == 0) n = 0; c.sync(); if (c.block_rank() == 0)
    atomicAdd(c.map_shared_rank(&n, 1), TID); ⟨¦c.sync();⟩ if (c.block_rank() == 1 && TID == 0) out[0] = ⟨1¦n⟩; }

//# streamk_flags finds=RaceError:write-read g=4
KER NAME(ARGS) { if (BID) { in[BID * 64 + TID] = BID; __syncthreads(); if (TID == 0) st_rel(&cnt[BID], 1); return; } u32
    s = 0; for (u32 b = 1; b < gridDim.x; b++) { if (TID == 0) while (ld_acq(&cnt[b]) == 0) {} ⟨¦__syncthreads();⟩ s +=
    in[b * 64 + TID]; } out[TID] = s; }

//# splitk_turn finds=RaceError:write-read g=4
KER NAME(ARGS) { if (TID == 0) { while (ld_acq(cnt) != BID) {} } __syncthreads(); out[TID] = out[TID] * 2 + BID;
    __syncthreads(); if (TID == 0) { ⟨¦__threadfence();⟩ atomicExch(cnt, BID + 1); } }

//# lookback_halves finds=RaceError:read-write g=4
__device__ u64 st[8]; KER NAME(ARGS) { if (TID) return; u32 sum = 0; if (BID) { u32 lo, hi; do { ⟨lo =
    ld_rlx((u32*)&st[BID - 1]); hi = ld_rlx((u32*)&st[BID - 1] + 1);¦u64 v; asm
    volatile("ld.relaxed.gpu.global.u64 %0, [%1];" : "=l"(v) : "l"(&st[BID - 1]) : "memory"); lo = (u32)v; hi =
    (u32)(v >> 32);⟩ } while (hi == 0); sum = lo; }
    u64 mine = (u64)1 << 32 | (sum + BID + 1); asm volatile("st.relaxed.gpu.global.u64 [%0], %1;" :: "l"(&st[BID]),
    "l"(mine) : "memory"); out[BID] = sum; }

//# grid_sync_fence finds=RaceError:write-read g=4 coop=1
KER NAME(ARGS) { in[BID * 64 + TID] = BID; __syncthreads(); if (TID == 0) { ⟨¦__threadfence();⟩ atomicAdd(cnt, 1); while
    (ld_rlx(cnt) < gridDim.x) {} __threadfence(); } __syncthreads(); out[BID * 64 + TID] = in[(BID ^ 1) * 64 + TID]; }

//# grid_sync_meet finds=RaceError:write-read g=4 coop=1
KER NAME(ARGS) { in[BID * 64 + TID] = BID; ⟨¦__syncthreads();⟩ if (TID == 0) { __threadfence(); atomicAdd(cnt, 1); while
    (ld_rlx(cnt) < gridDim.x) {} __threadfence(); } __syncthreads(); out[BID * 64 + TID] = in[(BID ^ 1) * 64 + TID]; }

//# volatile_only finds=ScheduleError g=2
KER NAME(ARGS) { if (TID) return; volatile u32 *d = in, *f = cnt; if (BID == 0) { d[0] = 42; ⟨¦__threadfence();⟩ f[0] =
    1; } else { while (f[0] == 0) {} ⟨¦__threadfence();⟩ out[0] = d[0]; } }

//# pdl_named finds=RaceError:previous-grid g=2 prev=1
KER NAME(ARGS) { if (TID < 32) asm volatile("griddepcontrol.wait;" ::: "memory"); BAR(1, ⟨32¦64⟩); out[BID * 64 + TID] =
    in[TID]; }

//# pdl_nc finds=warning g=2 prev=1
KER NAME(ARGS) { asm volatile("griddepcontrol.wait;" ::: "memory"); u32 v; asm
    volatile("ld.global⟨.nc¦⟩.u32 %0, [%1];" : "=r"(v) : "l"(in + TID) : "memory"); out[BID * 64 + TID] = v; }

//# atomics_of_two_sizes finds=RaceError:write-write g=2
KER NAME(ARGS) { if (TID) return; if (BID) atomicAdd((u64*)cnt, 1ull); else atomicAdd(⟨cnt, 1¦(u64*)cnt, 1ull⟩); }

//# atomics_of_two_scopes finds=RaceError:write-write g=2
KER NAME(ARGS) { if (BID) atomicAdd(cnt, 1); else atomicAdd⟨_block¦⟩(cnt, 1); }

//# exit_of_half_a_warp finds=RaceError:write-read b=64
KER NAME(ARGS) { __shared__ u32 s[64]; s[TID] = TID; ⟨if (TID >= 48) return; __syncthreads();¦__syncthreads(); if (TID
    >= 48) return;⟩ out[TID] = s[TID + 16]; }

//# exit_in_turn finds=RaceError:write-read b=64
KER NAME(ARGS) { __shared__ u32 s[64]; for (u32 i = 0; i < 3; i++) { s[TID] = TID + i; ⟨if (TID == 63 && i == 1) return;
    __syncthreads();¦__syncthreads(); if (TID == 63 && i == 2) return;⟩ u32 v = s[TID ^ 32]; __syncthreads(); out[TID] =
    v; } }

//# half_published finds=RaceError:write-read g=2
KER NAME(ARGS) { if (TID) return; if (BID == 0) { in[0] = 1; ⟨st_rel(cnt, 1); in[1] = 2;¦in[1] = 2; st_rel(cnt, 1);⟩ }
    else { while (ld_acq(cnt) == 0) {} out[0] = in[0]; out[1] = in[1]; } }

//# queue_slot finds=RaceError:write-read g=2
__device__ u32 item[8], ready[8], head; KER NAME(ARGS) { if (TID) return; if (BID == 0) for (u32 i = 0; i < 4; i++) {
    item[i] = i + 1; st_rel(&ready[i], 1); atomicAdd(&head, 1); } else for (u32 i = 0; i < 4; i++) { while
    (⟨ld_rlx(&head) <= i¦ld_acq(&ready[i]) == 0⟩) {} ⟨__threadfence_block();¦⟩ out[i] = item[i]; } }

//# pointer_published finds=RaceError:write-read g=2
__device__ u32 node[4]; __device__ u32* list; KER NAME(ARGS) { if (TID) return; if (BID == 0) { node[0] = 7; asm
    volatile("st.⟨relaxed¦release⟩.gpu.global.u64 [%0], %1;" :: "l"(&list), "l"(node) : "memory"); } else { u32* p; do
    asm volatile("ld.acquire.gpu.global.u64 %0, [%1];" : "=l"(p) : "l"(&list) : "memory"); while (p == 0); out[0] =
    p[0]; } }

//# flag_of_the_block finds=RaceError:read-write g=2
KER NAME(ARGS) { if (TID) return; if (BID == 0) { in[0] = 42; st_rel(cnt, 1); } else { u32 v; do asm
    volatile("ld.acquire.⟨cta¦gpu⟩.global.u32 %0, [%1];" : "=r"(v) : "l"(cnt) : "memory"); while (v == 0); out[0] =
    in[0]; } }

//# histogram_merge finds=RaceError:write-read g=3
KER NAME(ARGS) { __shared__ u32 s[64]; s[TID] = 0; __syncthreads(); atomicAdd(&s[TID * 7 & 63], 1); __syncthreads();
    ⟨out[TID] += s[TID];¦atomicAdd(&out[TID], s[TID]);⟩ }

//# leader_by_shared finds=MemoryFault:uninitialised b=32
KER NAME(ARGS) { __shared__ u32 base; if (TID == 0) base = atomicAdd(cnt, 32); ⟨¦__syncwarp();⟩ out[base + TID] = TID; }

//# peterson finds=RaceError:write-read g=2
__device__ u32 want[2], turn; KER NAME(ARGS) { if (TID) return; u32 o = BID ^ 1; st_rlx(&want[BID], 1);
    ⟨st_rlx(&turn, o);¦__threadfence(); atomicExch(&turn, o);⟩ __threadfence(); while (ld_rlx(&want[o]) && ld_rlx(&turn)
    == o) {} __threadfence(); out[0] = out[0] + 1; __threadfence(); st_rlx(&want[BID], 0); }
