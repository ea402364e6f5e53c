// Patterns inside a block and inside a warp.
//
// NAME of each kernel stands behind //#, with what its launch needs. ⟨racy¦mended⟩ is what tells its two forms apart.

//# tree_nosync finds=RaceError:write-read b=128
KER NAME(ARGS) { __shared__ u32 s[128]; s[TID] = in[TID]; __syncthreads(); for (int d = 64; d; d >>= 1) { if (TID < d)
    s[TID] += s[TID + d]; ⟨if (d > 32) __syncthreads();¦__syncthreads();⟩ } if (TID == 0) out[0] = s[0]; }

//# tree_warp_vol finds=ScheduleError b=128
static __device__ void w(volatile u32* s, u32 t) { for (int d = 32; d; d >>= 1) { u32 v = s[t] + s[t + d]; ⟨s[t] =
    v;¦__syncwarp(); s[t] = v; __syncwarp();⟩ } } KER NAME(ARGS) { __shared__ u32 s[128]; s[TID] = in[TID];
    __syncthreads(); if (TID < 64) s[TID] += s[TID + 64]; __syncthreads(); if (TID < 32) w(s, TID); if (TID == 0) out[0]
    = s[0]; }

//# sync_divergent finds=RaceError:write-read b=64
KER NAME(ARGS) { __shared__ u32 s[64]; s[TID] = TID; ⟨if (TID < 32) __syncthreads(); else { out[TID + 64] = 1;
    }¦__syncthreads();⟩ out[TID] = s[TID ^ 32]; }

//# sync_half_warp finds=WarpError b=64
KER NAME(ARGS) { __shared__ u32 s[64]; s[TID] = TID; ⟨if (TID & 1) { asm volatile("bar.sync 0;" ::: "memory"); out[TID +
    64] = 1; } else { out[TID + 64] = 2; asm volatile("bar.sync 0;" ::: "memory"); }¦__syncthreads();⟩ out[TID] = s[TID
    ^ 33]; }

//# early_exit finds=MemoryFault:uninitialised b=100
KER NAME(ARGS) { __shared__ u32 s[128]; ⟨if (TID >= 90) return; s[TID] = TID;¦if (TID < 90) s[TID] = TID; else s[TID] =
    0;⟩ __syncthreads(); out[TID] = s[TID ^ 1] + s[(TID + 40) % ⟨100¦90⟩]; }

//# early_exit_loop finds=RaceError:write-read b=96
KER NAME(ARGS) { __shared__ u32 s[128]; s[TID] = TID; for (int i = 0; i < 4; i++) { ⟨if (TID >= 64 && i == 2) return;¦⟩
    __syncthreads(); u32 v = s[(TID + 32) % 96]; ⟨if (i == 0)¦⟩ __syncthreads(); s[TID] = v; } out[TID] = s[TID]; }

//# transpose finds=RaceError:write-read b=256
KER NAME(ARGS) { __shared__ u32 s[16][17]; u32 x = TID & 15, y = TID >> 4; s[y][x] = in[TID];
    ⟨__syncwarp();¦__syncthreads();⟩ out[TID] = s[x][y]; }

//# transpose_pad finds=MemoryFault:out-of-bounds b=256
KER NAME(ARGS) { __shared__ u32 s[16][⟨16¦17⟩]; u32 x = TID & 15, y = TID >> 4; s[y][x] = in[TID]; __syncthreads();
    out[TID] = (&s[0][0])[x * ⟨17¦17⟩ + y]; }

//# scan_inplace finds=RaceError:read-write b=64
KER NAME(ARGS) { __shared__ u32 s[64]; s[TID] = in[TID]; __syncthreads(); for (int d = 1; d < 64; d <<= 1) { u32 v = TID
    >= d ? s[TID - d] : 0; ⟨¦__syncthreads();⟩ s[TID] += v; __syncthreads(); } out[TID] = s[TID]; }

//# scan_double finds=RaceError:write-read b=64
KER NAME(ARGS) { __shared__ u32 s[2][64]; int p = 0; s[0][TID] = in[TID]; __syncthreads(); for (int d = 1; d < 64; d <<=
    1) { s[p ^ 1][TID] = s[p][TID] + (TID >= d ? s[p][TID - d] : 0); p ^= 1; ⟨if (d & 1)
    __syncthreads();¦__syncthreads();⟩ } out[TID] = s[p][TID]; }

//# double_buffer finds=MemoryFault:uninitialised b=64
KER NAME(ARGS) { __shared__ u32 s[2][64]; u32 a = 0; s[0][TID] = in[TID]; for (int i = 0; i < 4; i++) { ⟨if (i == 0)¦⟩
    __syncthreads(); s[(i + 1) & 1][TID] = in[TID + i]; a += s[i & 1][TID ^ 40]; } out[TID] = a; }

//# triple_buffer finds=RaceError:read-write b=64
KER NAME(ARGS) { __shared__ u32 s[3][64]; u32 a = 0; for (int i = 0; i < 6; i++) { s[i % ⟨1¦3⟩][TID] = in[TID + i];
    __syncthreads(); a += s[i % ⟨1¦3⟩][TID ^ 40]; } out[TID] = a; }

//# halo finds=MemoryFault:uninitialised b=64
KER NAME(ARGS) { __shared__ u32 s[66]; s[TID + 1] = in[TID + 1]; if (TID == 0) { s[0] = in[0]; ⟨¦s[65] = in[65];⟩ }
    __syncthreads(); out[TID] = s[TID] + s[TID + 1] + s[TID + 2]; }

//# halo_oob finds=MemoryFault:out-of-bounds b=64
KER NAME(ARGS) { __shared__ u32 s[⟨65¦66⟩]; s[TID + 1] = in[TID + 1]; if (TID == 0) { s[0] = in[0]; s[65] = in[65]; }
    __syncthreads(); out[TID] = s[TID] + s[TID + 1] + s[TID + 2]; }

//# syncwarp_mask finds=RaceError:write-read b=32
KER NAME(ARGS) { __shared__ u32 s[32]; s[TID] = TID; ⟨if (TID < 16) __syncwarp(0xffff); else
    __syncwarp(0xffff0000);¦__syncwarp();⟩ out[TID] = s[TID ^ 16]; }

//# syncwarp_half finds=RaceError:write-read b=32
KER NAME(ARGS) { __shared__ u32 s[32]; s[TID] = TID; if (TID < 16) { __syncwarp(0xffff); out[TID] = s[TID ^ ⟨16¦8⟩]; } }

//# ballot_order finds=RaceError:write-read b=32
KER NAME(ARGS) { __shared__ u32 s[32]; s[TID] = TID; u32 m = __ballot_sync(~0u, TID & 1); ⟨¦__syncwarp();⟩ out[TID] =
    s[TID ^ 16] + m; }

//# shfl_order finds=RaceError:write-read b=32
KER NAME(ARGS) { __shared__ u32 s[32]; s[TID] = TID; u32 m = __shfl_sync(~0u, TID, 3); ⟨¦__syncwarp();⟩ out[TID] = s[TID
    ^ 16] + m; }

//# shfl_div finds=UndefinedError b=32
KER NAME(ARGS) { u32 v = TID; if (TID < 16) { v = __shfl_sync(⟨0xffffffff¦0xffff⟩, v, ⟨20¦3⟩); } out[TID] = v; }

//# shfl_exited finds=UndefinedError b=32
KER NAME(ARGS) { if (TID >= ⟨24¦32⟩) return; u32 v = __shfl_down_sync(0xffffffff, TID + 5, 8); out[TID] = v; }

//# shfl_partial_warp finds=UndefinedError b=48
KER NAME(ARGS) { u32 v = TID; for (int d = 16; d; d >>= 1) { u32 w = __shfl_down_sync(~0u, v, d); v += ⟨w¦((TID & 31) +
    d < (TID < 32 ? 32 : 16)) ? w : 0⟩; } out[TID] = v; }

//# shfl_mask_not_self finds=WarpError b=32
KER NAME(ARGS) { u32 v = TID; ⟨v = __shfl_sync(0xffff, v, 3);¦if (TID < 16) v = __shfl_sync(0xffff, v, 3);⟩ out[TID] =
    v; }

//# named_count finds=Deadlock b=128
KER NAME(ARGS) { __shared__ u32 s[128]; s[TID] = TID; if (TID < 64) BAR(1, ⟨128¦64⟩); else BAR(2, 64); out[TID] = s[TID
    ^ 32]; }

//# named_same_id finds=RaceError:write-read b=128
KER NAME(ARGS) { __shared__ u32 s[128]; s[TID] = TID; if (TID < 64) BAR(1, 64); else BAR(⟨1¦2⟩, 64); out[TID] = s[TID ^
    32]; }

//# named_cross finds=RaceError:write-read b=128
KER NAME(ARGS) { __shared__ u32 s[128]; s[TID] = TID; if (TID < 64) BAR(1, 64); else BAR(2, 64); ⟨¦__syncthreads();⟩
    out[TID] = s[TID ^ 64]; }

//# prodcons_named finds=RaceError:read-write b=64
KER NAME(ARGS) { __shared__ u32 s[32]; if (TID < 32) { for (int i = 0; i < 3; i++) { ⟨¦BAR(2, 64);⟩ s[TID] = i * TID;
    ARRIVE(1, 64); } } else { for (int i = 0; i < 3; i++) { ⟨¦ARRIVE(2, 64);⟩ BAR(1, 64); out[i * 32 + TID] = s[TID -
    32]; } } }

//# prodcons_swapped finds=RaceError:write-read b=64
KER NAME(ARGS) { __shared__ u32 s[32]; if (TID < 32) { s[TID] = TID + 1; ⟨BAR(1, 64);¦ARRIVE(1, 64);⟩ } else {
    ⟨ARRIVE(1, 64);¦BAR(1, 64);⟩ out[TID] = s[TID - 32]; } }

//# arrive_then_write finds=MemoryFault:uninitialised b=64
KER NAME(ARGS) { __shared__ u32 s[32]; if (TID < 32) { ⟨ARRIVE(1, 64); s[TID] = TID + 1;¦s[TID] = TID + 1; ARRIVE(1,
    64);⟩ } else { BAR(1, 64); out[TID] = s[TID - 32]; } }

//# named_three_warps finds=RaceError:write-read b=96
KER NAME(ARGS) { __shared__ u32 s[96]; s[TID] = TID; if (TID < 64) BAR(1, 64); else if (TID >= 64) { ⟨¦⟩ }
    ⟨¦__syncthreads();⟩ out[TID] = s[(TID + 32) % 96]; }

//# red_pop finds=RaceError:write-read b=64
KER NAME(ARGS) { __shared__ u32 s[64]; s[TID] = TID; int n = __syncthreads_count(TID & 1); ⟨s[TID] = s[TID ^ 32] +
    n;¦u32 v = s[TID ^ 32] + n; __syncthreads(); s[TID] = v;⟩ out[TID] = s[TID]; }

//# red_or_div finds=RaceError:write-read b=64
KER NAME(ARGS) { __shared__ u32 s[64]; s[TID] = TID; ⟨if (TID < 32) { if (__syncthreads_or(TID == 3)) out[70] = 1; }¦if
    (__syncthreads_or(TID == 3) && TID == 0) out[70] = 1;⟩ out[TID] = s[TID ^ 32]; }

//# tile16 finds=RaceError:write-read b=64
KER NAME(ARGS) { __shared__ u32 s[64]; auto t = cg::tiled_partition<⟨16¦32⟩>(cg::this_thread_block()); s[TID] = TID;
    t.sync(); out[TID] = s[TID ^ 16]; }

//# tile_cross finds=RaceError:write-read b=64
KER NAME(ARGS) { __shared__ u32 s[64]; auto t = cg::tiled_partition<32>(cg::this_thread_block()); s[TID] = TID;
    t.sync(); out[TID] = s[TID ^ ⟨32¦8⟩]; }

//# tile_reduce finds=RaceError:write-read b=64
KER NAME(ARGS) { __shared__ u32 s[2]; auto b = cg::this_thread_block(); auto t = cg::tiled_partition<32>(b); u32 v =
    cg::reduce(t, TID, cg::plus<u32>()); if (t.thread_rank() == 0) s[t.meta_group_rank()] = v; ⟨t.sync();¦b.sync();⟩
    out[TID] = s[0] + s[1]; }

//# coalesced finds=RaceError:write-read b=32
KER NAME(ARGS) { __shared__ u32 s[32]; s[TID] = 0; __syncwarp(); if (in[TID] & 1) { auto g = cg::coalesced_threads();
    s[TID] = TID; ⟨¦g.sync();⟩ out[TID] = s[TID ^ 2]; } }

//# coalesced_agg finds=ScheduleError b=32 g=2
KER NAME(ARGS) { if (in[TID] & 1) { auto g = cg::coalesced_threads(); u32 p = 0; if (g.thread_rank() == 0) p =
    atomicAdd(cnt, g.size()); p = g.shfl(p, 0); ⟨out[p + g.thread_rank()] = TID + BID * 32;¦out[BID * 32 + TID] = TID +
    (p > 1000);⟩ } }

//# labeled finds=RaceError:write-read b=32
KER NAME(ARGS) { __shared__ u32 s[32]; auto t = cg::tiled_partition<32>(cg::this_thread_block()); auto l =
    cg::labeled_partition(t, TID & 1); s[TID] = TID; l.sync(); out[TID] = s[TID ^ ⟨1¦2⟩]; }

//# binary_part finds=RaceError:write-read b=32
KER NAME(ARGS) { __shared__ u32 s[32]; auto t = cg::tiled_partition<32>(cg::this_thread_block()); auto l =
    cg::binary_partition(t, TID < 8); s[TID] = TID; l.sync(); out[TID] = s[TID ^ ⟨8¦1⟩]; }

//# cg_scan finds=RaceError:write-read b=64
KER NAME(ARGS) { __shared__ u32 s[2]; auto b = cg::this_thread_block(); auto t = cg::tiled_partition<32>(b); u32 v =
    cg::inclusive_scan(t, TID); if (t.thread_rank() == 31) s[t.meta_group_rank()] = v; ⟨__syncwarp();¦b.sync();⟩
    out[TID] = v + (TID < 32 ? 0 : s[0]); }

//# bcast_shared finds=RaceError:read-write b=64
KER NAME(ARGS) { __shared__ u32 x; for (int i = 0; i < 3; i++) { if (TID == 0) x = i * 5; __syncthreads(); out[i * 64 +
    TID] = x; ⟨¦__syncthreads();⟩ } }

//# smem_counter finds=RaceError:read-write b=64
KER NAME(ARGS) { __shared__ u32 n; if (TID == 0) n = 0; __syncthreads(); if (in[TID] & 1) ⟨n++;¦atomicAdd(&n, 1);⟩
    __syncthreads(); out[TID] = n; }

//# smem_counter_mixed finds=RaceError:write-read b=64
KER NAME(ARGS) { __shared__ u32 n; if (TID == 0) n = 0; __syncthreads(); atomicAdd(&n, 1); ⟨¦__syncthreads();⟩ if (TID
    == 0) out[0] = n; }

//# smem_compact finds=ScheduleError b=64
KER NAME(ARGS) { __shared__ u32 n, l[64]; if (TID == 0) n = 0; __syncthreads(); if (in[TID] & 1) l[atomicAdd(&n, 1)] =
    TID; __syncthreads(); ⟨if (TID < n) out[TID] = l[TID];¦if (TID < n) atomicAdd(out, l[TID]);⟩ }

//# uninit_shared finds=MemoryFault:uninitialised b=64
KER NAME(ARGS) { __shared__ u32 s[64]; if (TID < ⟨63¦64⟩) s[TID] = TID; __syncthreads(); out[TID] = s[63 - TID]; }

//# uninit_accum finds=MemoryFault:uninitialised b=64
KER NAME(ARGS) { __shared__ u32 s; ⟨¦if (TID == 0) s = 0; __syncthreads();⟩ atomicAdd(&s, TID); __syncthreads(); if (TID
    == 0) out[0] = s; }

//# misaligned finds=MemoryFault:misaligned b=32
KER NAME(ARGS) { *(uint4*)&out[TID * 4 + in[⟨2¦0⟩]] = make_uint4(1, 2, 3, 4); }

//# misaligned_sh finds=MemoryFault:misaligned b=32
KER NAME(ARGS) { __shared__ __align__(16) u32 s[200]; for (int i = TID; i < 200; i += 32) s[i] = i; __syncwarp(); uint2
    v = *(uint2*)&s[TID * 2 + in[⟨1¦2⟩]]; out[TID] = v.x + v.y; }

//# local_uninit finds=MemoryFault:uninitialised b=32
KER NAME(ARGS) { u32 a[8]; for (int i = 0; i < ⟨7¦8⟩; i++) a[i] = in[i]; out[TID] = a[in[TID] & 7]; }

//# local_oob finds=MemoryFault:out-of-bounds b=32
KER NAME(ARGS) { u32 a[8]; for (int i = 0; i < 8; i++) a[i] = in[i]; out[TID] = a[in[TID] & ⟨15¦7⟩]; }

//# printf_race finds=RaceError:write-read b=64
KER NAME(ARGS) { __shared__ u32 s[64]; s[TID] = TID; ⟨¦__syncthreads();⟩ if (TID == 0) printf("%u\n", s[40]); }

//# warp_lane0_write finds=MemoryFault:uninitialised b=32
KER NAME(ARGS) { __shared__ u32 x; if (TID == 0) x = in[5]; ⟨¦__syncwarp();⟩ out[TID] = x; }

//# warp_lane0_reuse finds=RaceError:read-write b=32
KER NAME(ARGS) { __shared__ u32 x; for (int i = 0; i < 3; i++) { if (TID == 0) x = in[i]; __syncwarp(); out[i * 32 +
    TID] = x; ⟨¦__syncwarp();⟩ } }

//# smem_spin finds=RaceError:write-read b=64
KER NAME(ARGS) { __shared__ u32 f, d; if (TID == 0) f = 0; __syncthreads(); if (TID == 0) { *(u32*)(&d) = in[3]; ⟨asm
    volatile("" ::: "memory");¦__threadfence_block();⟩ *(volatile u32*)&f = 1; } if (TID == 32) { while (*(volatile
    u32*)&f == 0) {} __threadfence_block(); out[0] = d; } }

//# smem_spin_plain finds=RaceError:write-write b=64
KER NAME(ARGS) { __shared__ u32 f, d; if (TID == 0) { f = 0; d = 0; } ⟨¦__syncthreads();⟩ if (TID == 0) { d = 7;
    __threadfence_block(); atomicExch(&f, 1); } if (TID == 32) { while (atomicAdd(&f, 0) == 0) {} __threadfence_block();
    out[0] = d; } }

//# bool_flag_benign finds=warning b=64
KER NAME(ARGS) { __shared__ bool any; if (TID == 0) any = false; __syncthreads(); if (in[TID] == 9 ⟨|| in[TID] == 50¦⟩)
    any = true; __syncthreads(); out[TID] = any; }

//# dyn_shared_alias finds=RaceError:write-write b=64 sm=512
KER NAME(ARGS) { extern __shared__ u32 d[]; u32* a = d; u32* b = d + ⟨63¦64⟩; a[TID] = TID; b[TID] = 2 * TID;
    __syncthreads(); out[TID] = a[TID] + b[63 - TID]; }

//# dyn_shared_oob finds=MemoryFault:out-of-bounds b=64 sm=508
KER NAME(ARGS) { extern __shared__ u32 d[]; u32* b = d + ⟨64¦63⟩; b[TID] = 2 * TID; __syncthreads(); out[TID] = b[63 -
    TID]; }

//# union_reuse finds=RaceError:write-read b=64
KER NAME(ARGS) { __shared__ union { u32 a[64]; float f[64]; } u; u.a[TID] = TID; __syncthreads(); u32 v = u.a[TID ^ 32];
    ⟨¦__syncthreads();⟩ u.f[TID] = v; __syncthreads(); out[TID] = u.f[63 - TID]; }

//# setmask_any finds=RaceError:read-write b=64
KER NAME(ARGS) { __shared__ u32 s[64]; s[TID] = TID; __syncthreads(); u32 v = s[TID ^ 32]; ⟨if (__any_sync(~0u, v > 3))
    s[TID] = v;¦if (__syncthreads_or(v > 3)) s[TID] = v;⟩ out[TID] = s[TID]; }
