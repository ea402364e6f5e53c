// Patterns between blocks: reductions, locks, queues, flags, and data of several widths.
//
// NAME of each kernel stands behind //#, with what its launch needs. ⟨racy¦mended⟩ is what tells its two forms apart.

//# last_plain finds=RaceError:write-read g=4
__device__ u32 c; KER NAME(ARGS) { __shared__ bool last; if (TID == 0) { in[BID] = BID + 7; ⟨¦__threadfence();⟩ last =
    atomicAdd(&c, 1) == gridDim.x - 1; } __syncthreads(); if (last && TID == 0) { __threadfence(); u32 s = 0; for (u32 i
    = 0; i < gridDim.x; i++) s += in[i]; out[0] = s; } }

//# last_noacq finds=warning g=4
__device__ u32 c; KER NAME(ARGS) { __shared__ bool last; if (TID == 0) { in[BID] = BID + 7; __threadfence(); last =
    atomicAdd(&c, 1) == gridDim.x - 1; } __syncthreads(); if (last && TID == 0) { ⟨¦__threadfence();⟩ u32 s = 0; for
    (u32 i = 0; i < gridDim.x; i++) s += in[i]; out[0] = s; } }

//# last_nosync finds=RaceError:write-read g=4
__device__ u32 c; KER NAME(ARGS) { __shared__ bool last; in[BID * 64 + TID] = BID + 7; __threadfence();
    ⟨¦__syncthreads();⟩ if (TID == 0) { last = atomicAdd(&c, 1) == gridDim.x - 1; } __syncthreads(); if (last) {
    __threadfence(); u32 s = 0; for (u32 i = 0; i < gridDim.x; i++) s += in[i * 64 + TID]; out[TID] = s; } }

//# last_ref_acqrel finds=warning g=4
__device__ u32 c; KER NAME(ARGS) { __shared__ bool last; in[BID * 64 + TID] = BID + 7; __syncthreads(); if (TID == 0) {
    cuda::atomic_ref<u32, cuda::thread_scope_device> r(c); last = r.fetch_add(1, cuda::memory_order_⟨release¦acq_rel⟩)
    == gridDim.x - 1; } __syncthreads(); if (last) { u32 s = 0; for (u32 i = 0; i < gridDim.x; i++) s += __ldcg(&in[i *
    64 + TID]); out[TID] = s; } }

//# last_ref_scope finds=RaceError:write-write g=4
__device__ u32 c; KER NAME(ARGS) { __shared__ bool last; in[BID * 64 + TID] = BID + 7; __syncthreads(); if (TID == 0) {
    cuda::atomic_ref<u32, cuda::thread_scope_⟨block¦device⟩> r(c); last = r.fetch_add(1, cuda::memory_order_acq_rel) ==
    gridDim.x - 1; } __syncthreads(); if (last) { u32 s = 0; for (u32 i = 0; i < gridDim.x; i++) s += __ldcg(&in[i * 64
    + TID]); out[TID] = s; } }

//# last_flagsync finds=MemoryFault:uninitialised g=4
__device__ u32 c; KER NAME(ARGS) { __shared__ bool last; if (TID == 0) { in[BID] = BID; __threadfence(); last =
    atomicAdd(&c, 1) == gridDim.x - 1; __threadfence(); } ⟨__syncwarp();¦__syncthreads();⟩ if (last && TID < gridDim.x)
    out[TID] = in[TID]; }

//# last_reset finds=RaceError:write-write g=4
__device__ u32 c; KER NAME(ARGS) { if (TID) return; in[BID] = BID + 1; __threadfence(); u32 t = atomicAdd(&c, 1); ⟨if (t
    == 0) c = 0;¦⟩ if (t == gridDim.x - 1) { __threadfence(); u32 s = 0; for (u32 i = 0; i < gridDim.x; i++) s += in[i];
    out[0] = s; c = 0; } }

//# lock_noacq finds=RaceError:write-read g=4
__device__ int m; KER NAME(ARGS) { if (TID) return; while (atomicCAS(&m, 0, 1)) {} ⟨¦__threadfence();⟩ out[0] = out[0] +
    1; __threadfence(); atomicExch(&m, 0); }

//# lock_norel finds=RaceError:write-read g=4
__device__ int m; KER NAME(ARGS) { if (TID) return; while (atomicCAS(&m, 0, 1)) {} __threadfence(); out[0] = out[0] + 1;
    ⟨¦__threadfence();⟩ atomicExch(&m, 0); }

//# lock_scope finds=RaceError:write-read g=4
__device__ int m; KER NAME(ARGS) { if (TID) return; while (atomicCAS(&m, 0, 1)) {} __threadfence(); out[0] = out[0] + 1;
    __threadfence⟨_block¦⟩(); atomicExch(&m, 0); }

//# lock_plainrel finds=RaceError:read-write g=4
__device__ int m; KER NAME(ARGS) { if (TID) return; while (atomicCAS(&m, 0, 1)) {} __threadfence(); out[0] = out[0] + 1;
    __threadfence(); ⟨m = 0;¦*(volatile int*)&m = 0;⟩ }

//# lock_lanes finds=RaceError:write-read g=1 b=32
__device__ int m; KER NAME(ARGS) { bool done = false; while (!done) { if (atomicCAS(&m, 0, 1) == 0) { __threadfence();
    out[0] = out[0] + 1; ⟨¦__threadfence();⟩ atomicExch(&m, 0); done = true; } } }

//# lock_ticket finds=RaceError:write-write g=4
__device__ u32 t, n; KER NAME(ARGS) { if (TID) return; u32 my = atomicAdd(&t, 1); while (ld_⟨rlx¦acq⟩(&n) != my) {}
    out[0] = out[0] * 3 + 1; st_rel(&n, my + 1); }

//# lock_ticket2 finds=RaceError:write-read g=4
__device__ u32 t, n; KER NAME(ARGS) { if (TID) return; u32 my = atomicAdd(&t, 1); while (ld_acq(&n) != my) {} out[0] =
    out[0] * 3 + 1; st_⟨rlx¦rel⟩(&n, my + 1); }

//# seqlock finds=RaceError:read-write g=2
__device__ u32 seq, d0, d1; KER NAME(ARGS) { if (TID) return; if (BID == 0) { st_rlx(&seq, 1); __threadfence(); ⟨d0 = 5;
    d1 = 6;¦st_rlx(&d0, 5); st_rlx(&d1, 5);⟩ __threadfence(); st_rlx(&seq, 2); } else { u32 a, b, x, y; do { a =
    ld_acq(&seq); ⟨x = d0; y = d1;¦x = ld_rlx(&d0); y = ld_rlx(&d1);⟩ __threadfence(); b = ld_rlx(&seq); } while (a != b
    || a != 2); out[0] = x; out[1] = y; } }

//# ring finds=RaceError:write-read g=2
__device__ u32 head, tail, q[4]; KER NAME(ARGS) { if (TID) return; if (BID == 0) { for (u32 i = 0; i < 12; i++) {
    ⟨¦while (i - ld_acq(&tail) >= 4) {}⟩ q[i & 3] = i * i; st_rel(&head, i + 1); } } else for (u32 i = 0; i < 12; i++) {
    while (ld_acq(&head) <= i) {} out[i] = q[i & 3]; st_rel(&tail, i + 1); } }

//# ring_tail finds=RaceError:write-read g=2
__device__ u32 head, tail, q[4]; KER NAME(ARGS) { if (TID) return; if (BID == 0) { for (u32 i = 0; i < 12; i++) { while
    (i - ld_acq(&tail) >= ⟨5¦4⟩) {} q[i & 3] = i * i; st_rel(&head, i + 1); } } else for (u32 i = 0; i < 12; i++) {
    while (ld_acq(&head) <= i) {} out[i] = q[i & 3]; st_rel(&tail, i + 1); } }

//# ring_relax finds=RaceError:read-write g=2
__device__ u32 head, tail, q[4]; KER NAME(ARGS) { if (TID) return; if (BID == 0) { for (u32 i = 0; i < 12; i++) { while
    (i - ld_acq(&tail) >= 4) {} q[i & 3] = i * i; st_rel(&head, i + 1); } } else for (u32 i = 0; i < 12; i++) { while
    (ld_acq(&head) <= i) {} out[i] = q[i & 3]; st_⟨rlx¦rel⟩(&tail, i + 1); } }

//# vol_flag finds=RaceError:write-read g=2
KER NAME(ARGS) { if (TID) return; volatile u32* f = cnt; if (BID == 0) { in[0] = 42; ⟨¦__threadfence();⟩ *f = 1; } else
    { while (*f == 0) {} __threadfence(); out[0] = in[0]; } }

//# atomic_flag finds=RaceError:write-read g=2
__device__ cuda::atomic<u32, cuda::thread_scope_device> f; KER NAME(ARGS) { if (TID) return; if (BID == 0) { in[0] = 42;
    f.store(1, cuda::memory_order_⟨relaxed¦release⟩); } else { while (f.load(cuda::memory_order_acquire) == 0) {} out[0]
    = in[0]; } }

//# atomic_flag_acq finds=warning g=2
__device__ cuda::atomic<u32, cuda::thread_scope_device> f; KER NAME(ARGS) { if (TID) return; if (BID == 0) { in[0] = 42;
    f.store(1, cuda::memory_order_release); } else { while (f.load(cuda::memory_order_⟨relaxed¦acquire⟩) == 0) {} out[0]
    = in[0]; } }

//# atomic_flag_wait finds=warning g=2
__device__ cuda::atomic<u32, cuda::thread_scope_device> f; KER NAME(ARGS) { if (TID) return; if (BID == 0) { in[0] = 42;
    f.store(1, cuda::memory_order_release); f.notify_all(); } else { f.wait(0, cuda::memory_order_⟨relaxed¦acquire⟩);
    out[0] = in[0]; } }

//# ldg_written finds=RaceError:non-coherent g=1
KER NAME(ARGS) { out[TID + 64] = TID; __syncthreads(); out[TID] = ⟨__ldg(&out[TID + 64])¦out[TID + 64]⟩; }

//# restrict_alias finds=RaceError:non-coherent g=1
KER NAME(ARGS) { static_assert(sizeof(u32) == 4); const u32* ⟨__restrict__¦⟩ a = out + 64; out[TID + 64] = TID;
    __syncthreads(); u32 v; asm volatile("ld.global⟨.nc¦⟩.u32 %0, [%1];" : "=r"(v) : "l"(a + (TID ^ 33))); out[TID] = v;
    }

//# atomic_plainread finds=RaceError:write-read g=4
KER NAME(ARGS) { if (TID) return; atomicAdd(cnt, 1); ⟨u32 v = cnt[0];¦u32 v = *(volatile u32*)cnt;⟩ out[BID] = v > 0; }

//# hist_zero finds=RaceError:write-write g=1 b=128
KER NAME(ARGS) { __shared__ u32 h[64]; if (TID < 64) h[TID] = 0; ⟨¦__syncthreads();⟩ atomicAdd(&h[(in[TID] * 7) & 63],
    1); __syncthreads(); if (TID < 64) out[TID] = h[TID]; }

//# hist_read finds=RaceError:write-read g=1 b=128
KER NAME(ARGS) { __shared__ u32 h[64]; if (TID < 64) h[TID] = 0; __syncthreads(); atomicAdd(&h[(in[TID] * 7) & 63], 1);
    ⟨__syncwarp();¦__syncthreads();⟩ if (TID < 64) out[TID] = h[TID]; }

//# byte_rmw finds=RaceError:read-write g=1 b=64
KER NAME(ARGS) { __shared__ u32 w[16]; if (TID < 16) w[TID] = 0; __syncthreads(); ⟨w[TID / 4] |= TID << (TID % 4 *
    8);¦((unsigned char*)w)[TID] = TID;⟩ __syncthreads(); if (TID < 16) out[TID] = w[TID]; }

//# half_rmw finds=RaceError:read-write g=1 b=64
KER NAME(ARGS) { __shared__ __half2 w[32]; if (TID < 32) w[TID] = __half2(); __syncthreads(); ⟨__half2 x = w[TID / 2];
    if (TID & 1) x.y = 1; else x.x = 1; w[TID / 2] = x;¦((__half*)w)[TID] = 1;⟩ __syncthreads(); if (TID < 32) out[TID]
    = *(u32*)&w[TID]; }

//# half_add finds=RaceError:write-read g=2 b=64
KER NAME(ARGS) { __half* h = (__half*)out; ⟨h[TID] = h[TID] + __half(1);¦h[BID * 64 + TID] = h[BID * 64 + TID] +
    __half(1);⟩ }

//# vec_overlap finds=RaceError:write-write g=1 b=32
KER NAME(ARGS) { __shared__ __align__(16) u32 s[160]; for (int i = TID; i < 160; i += 32) s[i] = 0; __syncthreads();
    *(uint2*)&s[TID * ⟨2 + (TID == 31 ? -2 : 0)¦2⟩] = make_uint2(TID, TID + 1); __syncthreads(); out[TID] = s[TID]; }

//# vec_overlap4 finds=RaceError:write-write g=2 b=32
KER NAME(ARGS) { u32 i = BID * 32 + TID; *(uint4*)&out[4 * i] = make_uint4(i, i, i, i); ⟨if (BID == 1 && TID == 0)
    out[127] = 5;¦if (BID == 0 && TID == 31) out[127] = 5;⟩ }

//# torn64 finds=RaceError:read-write g=2
KER NAME(ARGS) { if (TID) return; u64* p = (u64*)cnt; if (BID == 0) { ⟨((volatile u32*)p)[0] = 1; ((volatile u32*)p)[1]
    = 1;¦*(volatile u64*)p = 0x100000001ull;⟩ } else { u64 v; do v = *(volatile u64*)p; while (v == 0); out[0] = (u32)v;
    out[1] = v >> 32; } }

//# scope_mix finds=RaceError:write-write g=4
KER NAME(ARGS) { if (TID == 0) { if (BID & 1) ⟨atomicAdd_block¦atomicAdd⟩(cnt, 1); else atomicAdd(cnt, 1); } }

//# scope_sys finds=RaceError:write-write g=4
KER NAME(ARGS) { if (TID == 0) { if (BID & 1) ⟨atomicAdd_block¦atomicAdd_system⟩(cnt, 1); else atomicAdd(cnt, 1); } }

//# dekker finds=RaceError:write-write g=2
__device__ u32 a, b; KER NAME(ARGS) { if (TID) return; u32 *me = BID ? &b : &a, *ot = BID ? &a : &b; st_rlx(me, 1); ⟨asm
    volatile("fence.acq_rel.gpu;" ::: "memory");¦asm volatile("fence.sc.gpu;" ::: "memory");⟩ if (ld_rlx(ot) == 0) {
    in[0] = BID + 1; asm volatile("" ::: "memory"); in[0] = 0; } }

//# dekker_scope finds=RaceError:write-write g=2
__device__ u32 a, b; KER NAME(ARGS) { if (TID) return; u32 *me = BID ? &b : &a, *ot = BID ? &a : &b; st_rlx(me, 1);
    ⟨__threadfence_block()¦__threadfence()⟩; if (ld_rlx(ot) == 0) { in[0] = BID + 1; asm volatile("" ::: "memory"); in[0] =
    0; } }

//# dekker_one_side finds=RaceError:write-write g=2
__device__ u32 a, b; KER NAME(ARGS) { if (TID) return; u32 *me = BID ? &b : &a, *ot = BID ? &a : &b; st_rlx(me, 1);
    ⟨if (BID == 0) ¦⟩__threadfence(); if (ld_rlx(ot) == 0) { in[0] = BID + 1; asm volatile("" ::: "memory"); in[0] = 0; } }

//# split_k finds=RaceError:write-read g=3
KER NAME(ARGS) { if (TID) return; atomicAdd(in, BID); ⟨if (BID == 1)¦__threadfence(); u32 t = atomicAdd(cnt, 1);
    __threadfence(); if (t == gridDim.x - 1)⟩ out[0] = in[0]; }

//# sb_print finds=ScheduleError g=2
__device__ u32 a, b; KER NAME(ARGS) { if (TID) return; u32 *me = BID ? &b : &a, *ot = BID ? &a : &b; ⟨st_rlx(me, 1); ¦⟩
    out[BID] = ld_rlx(ot); }

//# float_atomic finds=ScheduleError g=8
__device__ float acc; __device__ u32 c; KER NAME(ARGS) { if (TID) return; ⟨atomicAdd(&acc, BID == 0 ? 1e8f : BID == 1 ?
    -1e8f : 1.f);¦atomicAdd(&acc, (float)BID);⟩ __threadfence(); if (atomicAdd(&c, 1) == gridDim.x - 1) {
    __threadfence(); *(float*)out = acc; } }

//# slot_atomic finds=ScheduleError g=8
KER NAME(ARGS) { if (TID) return; u32 s = atomicAdd(cnt, 1); out[⟨s¦BID⟩] = BID + (s > 100); }

//# cross_block_plain finds=RaceError:write-read g=2
KER NAME(ARGS) { u32 i = BID * 64 + TID; in[i] = i + 1; ⟨__syncthreads(); out[i] = in[i ^ 64];¦__syncthreads(); out[i] =
    in[i ^ 32];⟩ }

//# overlapping_tiles finds=RaceError:write-write g=2
KER NAME(ARGS) { u32 i = BID * ⟨63¦64⟩ + TID; out[i] = BID + 1; }

//# inplace_stencil finds=RaceError:read-write g=2
KER NAME(ARGS) { u32 i = BID * 64 + TID; u32 v = in[i] + in[i + 1]; __syncthreads(); ⟨in[i] = v;¦out[i] = v;⟩ }

//# workqueue finds=RaceError:read-write g=4
__device__ u32 next; KER NAME(ARGS) { __shared__ u32 job; for (;;) { if (TID == 0) job = atomicAdd(&next, 1);
    __syncthreads(); u32 j = job; ⟨¦__syncthreads();⟩ if (j >= 8) break; out[j * 64 + TID] = j; } }

//# lookback finds=RaceError:write-read g=4
__device__ u32 st[8]; KER NAME(ARGS) { if (TID) return; u32 v = BID + 1; if (BID == 0) { out[0] = v;
    ⟨st_rlx¦st_rel⟩(&st[0], 1); } else { while (ld_acq(&st[BID - 1]) == 0) {} out[BID] = out[BID - 1] + v;
    st_rel(&st[BID], 1); } }

//# packed_flag finds=StepBudgetExceeded g=4
__device__ u64 st[8]; KER NAME(ARGS) { if (TID) return; u32 v = BID + 1; volatile u64* s = st; if (BID == 0) s[0] = 1ull
    << 32 | v; else { ⟨u64 w; while (!((w = *(u64*)&st[BID - 1]) >> 32)) { __threadfence(); }¦u64 w; while (!((w = s[BID
    - 1]) >> 32)) {}⟩ s[BID] = 1ull << 32 | (u32)w + v; out[BID] = (u32)w + v; } }

//# gridbar finds=RaceError:write-read g=4
__device__ u32 c; KER NAME(ARGS) { in[BID * 64 + TID] = BID + 3; __syncthreads(); if (TID == 0) { __threadfence();
    atomicAdd(&c, 1); while (*(volatile u32*)&c < gridDim.x) {} __threadfence(); } ⟨__syncwarp();¦__syncthreads();⟩
    out[BID * 64 + TID] = in[((BID + 1) & 3) * 64 + TID]; }

//# gridbar_nofence finds=RaceError:write-read g=4
__device__ u32 c; KER NAME(ARGS) { in[BID * 64 + TID] = BID + 3; __syncthreads(); if (TID == 0) { ⟨¦__threadfence();⟩
    atomicAdd(&c, 1); while (*(volatile u32*)&c < gridDim.x) {} __threadfence(); } __syncthreads(); out[BID * 64 + TID]
    = in[((BID + 1) & 3) * 64 + TID]; }

//# gridbar_twice finds=RaceError:read-write g=4
__device__ u32 c; KER NAME(ARGS) { for (u32 k = 1; k < 3; k++) { in[BID * 64 + TID] = BID + 3 * k; __syncthreads(); if
    (TID == 0) { __threadfence(); atomicAdd(&c, 1); while (*(volatile u32*)&c < gridDim.x * ⟨k¦(2 * k - 1)⟩) {}
    __threadfence(); } __syncthreads(); out[BID * 64 + TID] += in[((BID + 1) & 3) * 64 + TID]; ⟨¦__syncthreads(); if
    (TID == 0) { __threadfence(); atomicAdd(&c, 1); while (*(volatile u32*)&c < gridDim.x * 2 * k) {} __threadfence(); }
    __syncthreads();⟩ } }

//# coop_grid finds=RaceError:write-read g=4 coop=1
KER NAME(ARGS) { in[BID * 64 + TID] = BID + 3; ⟨__syncthreads();¦cg::this_grid().sync();⟩ out[BID * 64 + TID] = in[((BID
    + 1) & 3) * 64 + TID]; }

//# minmax_atomic finds=RaceError:write-read g=4
KER NAME(ARGS) { if (TID) return; atomicMax(&cnt[0], BID * 5 % 7); ⟨out[0] = cnt[0];¦__threadfence(); if
    (atomicAdd(&cnt[1], 1) == 3) { __threadfence(); out[0] = cnt[0]; }⟩ }

//# cas_max_loop finds=warning g=4
KER NAME(ARGS) { if (TID) return; u32 old = ⟨cnt[0]¦*(volatile u32*)cnt⟩, as; do { as = old; old = atomicCAS(cnt, as,
    max(as, BID)); } while (old != as); }

//# linked_list finds=RaceError:write-read g=4
__device__ u32 headp, nxt[8], val[8]; KER NAME(ARGS) { if (TID) return; val[BID + 1] = BID * 3; u32 h = *(volatile
    u32*)&headp, a; do { a = h; nxt[BID + 1] = a; ⟨¦__threadfence();⟩ h = atomicCAS(&headp, a, BID + 1); } while (h !=
    a); if (BID == 3) { __threadfence(); u32 n = 0, p = *(volatile u32*)&headp; __threadfence(); while (p) { n += val[p]
    & 0; p = nxt[p]; } out[0] = n; } }

//# devvar_stale finds=RaceError:write-write g=2
__device__ u32 x[2]; KER NAME(ARGS) { if (TID) return; ⟨x[0] = BID;¦x[BID] = BID;⟩ }

//# same_value finds=RaceError:write-write g=2
KER NAME(ARGS) { if (TID) return; ⟨out[0] = 7 + BID;¦if (BID == 0) out[0] = 7;⟩ }
