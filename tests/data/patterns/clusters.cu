// Clusters, what outlives a block, the grid before this one, and what single threads pass on while others go on.
//
// NAME of each kernel stands behind //#, with what its launch needs. ⟨racy¦mended⟩ is what tells its two forms apart.
#define VOLATILE(x) (*(volatile u32*)&(x))
#define REMOTE_ADD(p, r, how) asm volatile("red." how ".cluster.shared::cluster.add.u32 [%0], 1;" :: "r"(mapa(p, r)) : "memory")
__device__ inline u32 ld_cluster(u32* p) { u32 v; asm volatile("ld.acquire.cluster.shared::cta.u32 %0, [%1];" : "=r"(v) : "r"(sa(p)) : "memory"); return v; }

//# all_add_to_all finds=RaceError:exit g=4 b=64 cluster=4
KER NAME(ARGS) { __shared__ u32 n; auto c = cg::this_cluster(); if (TID == 0) n = 0; c.sync(); for (u32 r = 0; r < 4; r++)
    REMOTE_ADD(&n, r, "relaxed"); ⟨if (TID == 0) while (ld_cluster(&n) < 200) {}¦c.sync();⟩ if (TID == 0) out[BID] = ld_cluster(&n);
    ⟨¦c.sync();⟩ }

//# some_add_to_the_first finds=RaceError:write-read g=4 b=96 cluster=4
KER NAME(ARGS) { __shared__ u32 n, from[4]; auto c = cg::this_cluster(); u32 r = c.block_rank(); if (TID == 0) n = 0; if (TID < 4)
    from[TID] = 9; c.sync(); if (TID == 32 * (r % 3)) { c.map_shared_rank(from, 0)[r] = r; REMOTE_ADD(&n, 0,
    "⟨relaxed¦release⟩"); } if (r == 0 && TID == 64) { while (ld_cluster(&n) < 4) {} out[0] = from[0] + from[1] + from[2] +
    from[3]; } c.sync(); }

//# peers_read_in_a_ring finds=RaceError:read-write g=4 b=32 cluster=4
KER NAME(ARGS) { __shared__ u32 s[32]; auto c = cg::this_cluster(); s[TID] = BID * 32 + TID; c.sync(); u32 v = 0; for (u32 i = 1; i < 4;
    i++) { v += c.map_shared_rank(s, (c.block_rank() + i) % 4)[TID ^ i]; } ⟨__syncthreads();¦c.sync();⟩ s[TID] = v; c.sync();
    out[BID * 32 + TID] = c.map_shared_rank(s, c.block_rank() ^ 1)[TID]; c.sync(); }

//# split_barrier_of_a_cluster_reused finds=RaceError:write-read g=2 b=64 cluster=2
KER NAME(ARGS) { __shared__ u32 s[2][64]; auto c = cg::this_cluster(); u32 p = c.block_rank() ^ 1, a = 0; for (int i = 0; i < 4; i++) {
    ⟨c.barrier_arrive(); s[i & 1][TID] = i + TID;¦s[i & 1][TID] = i + TID; c.barrier_arrive();⟩ c.barrier_wait(); a +=
    c.map_shared_rank(s[i & 1], p)[TID ^ 5]; } c.sync(); out[BID * 64 + TID] = a; }

//# mbarrier_of_a_peer_by_all finds=RaceError:write-read g=2 b=64 cluster=2
KER NAME(ARGS) { __shared__ u32 s[64]; __shared__ u64 b; auto c = cg::this_cluster(); if (TID == 0) mb_init(&b, ⟨32¦64⟩); c.sync(); u32 p =
    c.block_rank() ^ 1; c.map_shared_rank(s, p)[TID] = TID; if (⟨TID < 32¦1⟩) asm volatile(
    "mbarrier.arrive.release.cluster.shared::cluster.b64 _, [%0];" :: "r"(mapa(&b, p)) : "memory"); u32 ok; do asm volatile(
    "{ .reg .pred q; mbarrier.try_wait.parity.acquire.cluster.shared::cta.b64 q, [%1], 0; selp.u32 %0, 1, 0, q; }" :
    "=r"(ok) : "r"(sa(&b)) : "memory"); while (!ok); out[BID * 64 + TID] = s[TID ^ 40]; c.sync(); }

//# remote_wait_in_the_wrong_scope finds=RaceError:write-read g=2 b=32 cluster=2
KER NAME(ARGS) { __shared__ u32 s; __shared__ u64 b; auto c = cg::this_cluster(); if (TID == 0) mb_init(&b, 1); c.sync(); u32 p =
    c.block_rank() ^ 1; if (TID == 0) { *c.map_shared_rank(&s, p) = BID + 5; asm volatile(
    "mbarrier.arrive.release.cluster.shared::cluster.b64 _, [%0];" :: "r"(mapa(&b, p)) : "memory"); u32 ok; do asm volatile(
    "{ .reg .pred q; mbarrier.try_wait.parity.acquire.⟨cta¦cluster⟩.shared::cta.b64 q, [%1], 0; selp.u32 %0, 1, 0, q; }" :
    "=r"(ok) : "r"(sa(&b)) : "memory"); while (!ok); out[BID] = s; } c.sync(); }

//# async_stores_of_two_peers finds=RaceError:write-write g=4 b=32 cluster=4
KER NAME(ARGS) { __shared__ u32 s[64]; __shared__ u64 b; auto c = cg::this_cluster(); u32 r = c.block_rank(); if (TID == 0) { mb_init(&b, 1);
    if (r == 0) mb_expect(&b, 256); } c.sync(); if (r == 1 || r == 2) asm volatile(
    "st.async.shared::cluster.mbarrier::complete_tx::bytes.u32 [%0], %1, [%2];" :: "r"(mapa(s + TID + ⟨0¦32 * (r - 1)⟩, 0)),
    "r"(TID + r), "r"(mapa(&b, 0)) : "memory"); if (r == 0) { mb_wait(&b, 0); out[TID] = s[TID]; ⟨¦out[TID + 32] = s[TID + 32];⟩ }
    c.sync(); }

//# copy_to_a_peer_read_by_its_source finds=MemoryFault:uninitialised g=2 b=32 cluster=2
KER NAME(ARGS) { __shared__ __align__(16) u32 a[32], d[32]; __shared__ u64 b; auto c = cg::this_cluster(); u32 p = c.block_rank() ^ 1; a[TID]
    = BID * 32 + TID; d[TID] = 0; fence_async(); if (TID == 0) { mb_init(&b, 1); mb_expect(&b, 128); } c.sync(); if (TID == 0) asm
    volatile("cp.async.bulk.shared::cluster.shared::cta.mbarrier::complete_tx::bytes [%0], [%1], 128, [%2];" ::
    "r"(mapa(d, p)), "r"(sa(a)), "r"(mapa(&b, p)) : "memory"); ⟨¦mb_wait(&b, 0);⟩ out[BID * 32 + TID] = d[TID]; ⟨mb_wait(&b, 0);¦⟩ c.sync();
    }

//# trigger_before_the_last_write finds=RaceError:previous-grid g=2 b=32 prev=1
KER NAME(ARGS) { u32 v = 0; ⟨v = in[TID];¦⟩ asm volatile("griddepcontrol.launch_dependents;"); asm volatile("griddepcontrol.wait;" :::
    "memory"); ⟨¦v = in[TID];⟩ out[BID * 32 + TID] = v; }

//# one_warp_waits_for_the_grid_before finds=RaceError:previous-grid g=1 b=64 prev=1
KER NAME(ARGS) { __shared__ u32 s[32]; if (TID < 32) { asm volatile("griddepcontrol.wait;" ::: "memory"); s[TID] = in[TID]; }
    ⟨¦__syncthreads();⟩ if (TID >= 32) out[TID] = in[TID] + ⟨0¦s[TID - 32]⟩; ⟨__syncthreads();¦⟩ }

//# lanes_leave_one_by_one finds=RaceError:write-read b=32
KER NAME(ARGS) { __shared__ u32 s[32], n; if (TID == 0) n = 0; __syncwarp(); if (TID < 31) { s[TID] = TID; ⟨¦__threadfence_block();⟩
    atomicAdd_block(&n, 1); return; } while (VOLATILE(n) < 31) {} __threadfence_block(); u32 a = 0; for (int i = 0; i < 31; i++) a += s[i];
    out[0] = a; }

//# warps_leave_one_by_one finds=RaceError:write-read b=128
KER NAME(ARGS) { __shared__ u32 s[96], n; if (TID == 0) n = 0; __syncthreads(); if (TID < 96) { s[TID] = TID; ⟨¦__threadfence_block();⟩ __syncwarp();
    if (TID % 32 == 0) atomicAdd_block(&n, 1); return; } if (TID == 96) while (VOLATILE(n) < 3) {} __syncwarp(); __threadfence_block();
    out[TID] = s[TID - 32] + s[TID - 64]; }

//# barrier_of_those_who_stay finds=RaceError:write-read b=96
KER NAME(ARGS) { __shared__ u32 s[96]; s[TID] = in[TID]; if (TID >= 64) { ⟨¦ARRIVE(1, 96);⟩ return; } ⟨BAR(1, 64);¦BAR(1, 96);⟩ out[TID] =
    s[TID + 32]; }

//# switch_of_four_ways finds=RaceError:write-read b=32
KER NAME(ARGS) { __shared__ u32 s[32]; switch (TID & 3) { case 0: s[TID] = 1; break; case 1: s[TID] = in[TID]; break; case 2: s[TID] = TID * 3;
    break; default: for (u32 i = 0; i < TID; i++) s[TID] = i; } ⟨¦__syncwarp();⟩ out[TID] = s[TID ^ 1] + s[TID ^ 2]; }

//# inner_meeting_of_a_branch finds=RaceError:write-read b=64
KER NAME(ARGS) { __shared__ u32 s[64]; s[TID] = in[TID]; if (TID < 32) { ⟨__syncwarp();¦__syncthreads();⟩ out[TID] = s[TID + 32]; } else { ⟨__syncwarp();
    ¦__syncthreads();⟩ out[TID] = s[TID - 32]; } }

//# recursion_leaves_its_sum finds=RaceError:write-read b=64
__device__ __noinline__ u32 NAME_down(volatile u32* s, u32 n) { if (n == 0) return 0; s[TID] = n; return NAME_down(s, n - 1) + n; }
KER NAME(ARGS) { __shared__ u32 s[64]; u32 a = NAME_down(s, TID & 3); s[TID] = a; ⟨__syncwarp();¦__syncthreads();⟩ out[TID] = s[TID ^ 32]; }

//# shared_by_pointer_of_the_stack finds=RaceError:write-read b=64
__device__ __noinline__ void NAME_put(u32* p, u32 v) { *p = v; }
KER NAME(ARGS) { __shared__ u32 s[64]; u32 own; u32* p = in[TID] > 70 ? &own : &s[TID]; NAME_put(p, TID); ⟨__syncwarp();¦__syncthreads();⟩ out[TID] =
    *(in[TID] > 70 ? &own : &s[TID ^ 32]); }

//# volatile_struct_by_halves finds=RaceError:write-read g=2 b=32
KER NAME(ARGS) { struct S { u32 a, b; }; volatile S* p = (volatile S*)cnt; if (TID) return; if (BID == 0) { out[0] = 7; p->b = 5;
    ⟨p->a = 1; __threadfence();¦__threadfence(); p->a = 1;⟩ } else { while (!p->a) {} __threadfence(); out[1] = out[0] + p->b; } }

//# bit_fields_of_two_threads finds=RaceError:write-read b=64
KER NAME(ARGS) { struct F { u32 lo : 16, hi : 16; }; struct H { unsigned short lo, hi; }; __shared__ ⟨F¦H⟩ f[32]; u32 i = TID & 31; if (TID < 32) { f[i].lo =
    0; f[i].hi = 0; } __syncthreads(); if (TID < 32) f[i].lo = in[TID]; else f[i].hi = in[TID]; __syncthreads(); if (TID < 32) out[TID] =
    f[i].lo + f[i].hi; }
