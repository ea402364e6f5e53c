// The routing step of a mixture-of-experts layer: each token's top-k experts with their softmax weights, and the maps
// that sort all choices by expert.
//
// Choices are numbered choice = token + rank * tokens. Sorted by expert, and by that number within an expert, they are
// the rows of the layer; a choice of another rank's expert has no row. Nothing depends on the order in which CTAs or
// warps run.
//
// Few tokens take one launch of one CTA, a warp each. More tokens take two: a warp a token chooses, then a CTA an expert
// finds that expert's rows (chosen_rows.cuh). Choices that are given already take one launch: a CTA an expert, or one CTA
// where they are few.
#include "chosen_rows.cuh"
#include "dependent_launch.cuh"
#include "expert_maps.cuh"
#include "exponential.cuh"

namespace refmoe {

constexpr int kMaxTopK = kWarpLanes;          // a lane holds one choice
constexpr int kRouteThreads = 512;            // at most; so that 32 logits a lane stay in registers
constexpr int kFewTokens = kRouteThreads / kWarpLanes;  // what one CTA takes, a warp each
constexpr int kFewChoices = 64;               // given ones that one CTA sorts
constexpr int kChooseThreads = 256;           // of choices alone; eight CTAs of them fill a multiprocessor
constexpr int kHeldSteps = 8;   // of 32 tokens each: what a warp of the sort looks at together
constexpr int kLoads = 4;       // of them whose loads are under way together
constexpr int kIdsOfLoad = 4;   // of one 16-byte load
constexpr int kNoRank = -1;     // of a token that did not choose the expert
constexpr uint32_t kSignBit = 0x80000000u;
constexpr uint32_t kNanWeight = 0x7FFFFFFFu;

/// Keys: unsigned integers in the order of the logits they stand for. 0 is below all of them.
constexpr uint32_t kTaken = 0;
constexpr uint32_t kNegativeInfinityKey = ~0xFF800000u;
constexpr uint32_t kInfinityKey = 0x7F800000u | kSignBit;  // NaN lies above

/// What turns a float's bits into its key: all bits of a negative number, the sign alone of another. An exclusive or with
/// a mask that is computed, since the compiler makes `abs` and `neg` of `| kSignBit`, which leave the sign of a NaN open.
__device__ __forceinline__ uint32_t flipped_bits(uint32_t sign) { return static_cast<int>(sign) >> 31 | kSignBit; }

/// Adding +0 makes one value of the two zeros, and of every NaN the largest pattern.
__device__ __forceinline__ uint32_t key_of(float logit) {
    const uint32_t bits = __float_as_uint(__fadd_rn(logit, 0.0f));
    return bits ^ flipped_bits(bits);
}

__device__ __forceinline__ float logit_of(uint32_t key) { return __uint_as_float(key ^ flipped_bits(~key)); }

__device__ __forceinline__ float load_logit(const float* logit) { return __ldg(logit); }
__device__ __forceinline__ float load_logit(const uint16_t* logit) {  // BF16: the upper half of an FP32
    return __uint_as_float(static_cast<uint32_t>(__ldg(logit)) << 16);
}

/// What the softmax top-k reads and writes.
template <class Logit>
struct Router {
    const Logit* logits;  // [tokens, all_experts]
    const float* bias;    // [all_experts], or null
    int* topk_ids;        // [tokens, top_k]
    float* topk_weights;  // [tokens, top_k]
    uint32_t* refused;    // complement of the first token without an answer; 0 for none
    int tokens, all_experts, top_k;
};

/// The keys of a token's logits, those of one lane: expert `slot * 32 + lane` in slot `slot`.
template <int kSlots, class Logit>
__device__ __forceinline__ void load_keys(const Router<Logit>& router, int token, int lane, uint32_t (&keys)[kSlots]) {
    const Logit* own = router.logits + static_cast<int64_t>(token) * router.all_experts + lane;
    const int slots = (router.all_experts - lane + kWarpLanes - 1) / kWarpLanes;  // that this lane has a logit in
    float logits[kSlots];
#pragma unroll
    for (int slot = 0; slot < kSlots; ++slot)
        if (slot < slots) logits[slot] = load_logit(own + slot * kWarpLanes);
    if (router.bias) {
#pragma unroll
        for (int slot = 0; slot < kSlots; ++slot)
            if (slot < slots) logits[slot] = __fadd_rn(logits[slot], __ldg(router.bias + lane + slot * kWarpLanes));
    }
#pragma unroll
    for (int slot = 0; slot < kSlots; ++slot)
        keys[slot] = slot < slots ? key_of(logits[slot]) : kTaken;
}

struct Choice {
    uint32_t key;
    int expert;
};

/// The largest key of the warp, of equal ones that of the lowest expert, taken out of `keys`. The same in all lanes.
template <int kSlots>
__device__ __forceinline__ Choice take_largest(uint32_t (&keys)[kSlots], int lane) {
    Choice mine{keys[0], lane};
#pragma unroll
    for (int slot = 1; slot < kSlots; ++slot)
        if (keys[slot] > mine.key) mine = {keys[slot], slot * kWarpLanes + lane};
    const uint32_t largest = __reduce_max_sync(kFullWarp, mine.key);
    const unsigned candidate = mine.key == largest ? mine.expert : ~0u;
    const int expert = __reduce_min_sync(kFullWarp, candidate);
#pragma unroll
    for (int slot = 0; slot < kSlots; ++slot)
        if (slot * kWarpLanes + lane == expert) keys[slot] = kTaken;
    return {largest, expert};
}

/// Chooses for one token, a warp together. Returns in lane r the expert of rank r.
///
/// A NaN or +Inf among the logits, or a choice of -Inf, has no answer: the token gets experts 0, 1, ... with NaN for
/// weights, so that no index is out of range, and is reported.
template <int kSlots, class Logit>
__device__ __forceinline__ int route_token(const Router<Logit>& router, int token) {
    const int lane = threadIdx.x % kWarpLanes;
    uint32_t keys[kSlots];
    load_keys<kSlots>(router, token, lane, keys);
    Choice mine{}, first{}, last{};
    for (int rank = 0; rank < router.top_k; ++rank) {
        last = take_largest<kSlots>(keys, lane);
        if (rank == 0) first = last;
        if (lane == rank) mine = last;
    }
    const float numerator = exponential(__fsub_rn(logit_of(mine.key), logit_of(first.key)));
    float sum = __shfl_sync(kFullWarp, numerator, 0);
    for (int rank = 1; rank < router.top_k; ++rank) sum = __fadd_rn(sum, __shfl_sync(kFullWarp, numerator, rank));
    float weight = __fdiv_rn(numerator, sum);
    if (first.key >= kInfinityKey || last.key <= kNegativeInfinityKey) {
        mine.expert = lane;
        weight = __uint_as_float(kNanWeight);
        // The complement of the first token is the largest: a maximum does not depend on who comes first.
        if (lane == 0) atomicMax(router.refused, ~static_cast<uint32_t>(token));
    }
    if (lane < router.top_k) {
        router.topk_ids[token * router.top_k + lane] = mine.expert;
        router.topk_weights[token * router.top_k + lane] = weight;
    }
    return mine.expert;
}

/// Sorts the choices of a few tokens: one CTA, all choices in shared memory. A choice's row is the number of choices
/// that come before it, so every thread counts for itself. Experts of other ranks count as `experts`, behind all.
__device__ __forceinline__ void sort_few(const Maps& maps, const int* experts_of_choices, int choices) {
    for (int expert = threadIdx.x; expert <= maps.experts; expert += blockDim.x) {
        int rows = 0;
        for (int other = 0; other < choices; ++other) rows += experts_of_choices[other] < expert;
        maps.offsets[expert] = rows;
    }
    for (int choice = threadIdx.x; choice < choices; choice += blockDim.x) {
        const int expert = experts_of_choices[choice];
        int row = 0;
        for (int other = 0; other < choices; ++other) {
            const int other_expert = experts_of_choices[other];
            row += other_expert < expert || (other_expert == expert && other < choice);
        }
        const bool here = expert < maps.experts;
        maps.unpermuted_to_permuted[choice] = here ? row : kNoRow;
        maps.permuted_to_unpermuted[row] = here ? choice : kNoRow;
    }
}

/// Where choices of one expert are among the 32 tokens of a step, by rank: visit(rank, tokens) for each rank that some
/// token has, with a bit for each of these tokens. `my_rank` is kNoRank in lanes whose token is not there.
template <class Visit>
__device__ __forceinline__ void for_each_rank(int my_rank, const Visit& visit) {
    unsigned left = __ballot_sync(kFullWarp, my_rank != kNoRank);
    while (left != 0) {
        const int rank = __shfl_sync(kFullWarp, my_rank, __ffs(left) - 1);
        const unsigned found = __ballot_sync(kFullWarp, my_rank == rank);
        visit(rank, found);
        left &= ~found;
    }
}

/// What a lane knows of its tokens: of each the rank at which it chose the CTA's expert, and how many of their choices are
/// of lower experts of this rank, and of any.
struct Seen {
    int ranks[kHeldSteps];
    int lower, used;
};

/// Looks at the tokens of kHeldSteps steps: token first + 32 * step + lane.
__device__ __forceinline__ void look(Seen& seen, const Maps& maps, const int* topk_ids, int first, int end, int top_k) {
    const int expert = blockIdx.x, token = first + static_cast<int>(threadIdx.x) % kWarpLanes;
    const auto visit = [&](int step, int rank, int id) {
        const int chosen = maps.local(id);
        seen.lower += static_cast<unsigned>(chosen) < static_cast<unsigned>(expert);
        seen.used += maps.here(chosen);
        if (chosen == expert) seen.ranks[step] = rank;
    };
#pragma unroll
    for (int step = 0; step < kHeldSteps; ++step) seen.ranks[step] = kNoRank;
    if (top_k % kIdsOfLoad == 0) {
        for (int rank = 0; rank < top_k; rank += kIdsOfLoad) {
#pragma unroll
            for (int group = 0; group < kHeldSteps; group += kLoads) {
                int4 ids[kLoads];
#pragma unroll
                for (int i = 0; i < kLoads; ++i) {
                    const int here = min(token + (group + i) * kWarpLanes, end - 1);
                    ids[i] = __ldg(reinterpret_cast<const int4*>(topk_ids + here * top_k + rank));
                }
#pragma unroll
                for (int i = 0; i < kLoads; ++i) {
                    if (token + (group + i) * kWarpLanes >= end) continue;
                    visit(group + i, rank, ids[i].x);
                    visit(group + i, rank + 1, ids[i].y);
                    visit(group + i, rank + 2, ids[i].z);
                    visit(group + i, rank + 3, ids[i].w);
                }
            }
        }
    } else {
        for (int rank = 0; rank < top_k; ++rank) {
#pragma unroll
            for (int step = 0; step < kHeldSteps; ++step) {
                const int here = token + step * kWarpLanes;
                if (here < end) visit(step, rank, __ldg(topk_ids + here * top_k + rank));
            }
        }
    }
}

/// Sorts the choices of any number of tokens, a CTA for each expert. Each warp has a stretch of tokens. First it counts
/// the expert's choices by rank (lane r for rank r, since a token has an expert once at most), then, knowing from the
/// other warps' counts where its own begin, it hands out rows.
///
///      rows of the expert   | rank 0: warp 0, warp 1, ... | rank 1: warp 0, warp 1, ... | ...
///
/// A stretch of up to 32 * kHeldSteps tokens stays in registers from the one to the other; a longer one is read again.
/// The expert's first row is the number of choices of lower experts, which the CTA counts on the way: it needs nothing
/// from another CTA.
__device__ __forceinline__ void sort_many(const Maps& maps, const int* topk_ids, int tokens, int top_k) {
    __shared__ int counts[kMaxTopK][kSortWarps];
    __shared__ int lower_counts[kSortWarps], used_counts[kSortWarps];
    constexpr int kHeldTokens = kHeldSteps * kWarpLanes;
    const int expert = blockIdx.x;
    const int lane = threadIdx.x % kWarpLanes, warp = threadIdx.x / kWarpLanes, warps = blockDim.x / kWarpLanes;
    const int stretch = whole_warps((tokens + warps - 1) / warps);
    const int begin = min(warp * stretch, tokens), end = min(begin + stretch, tokens);

    Seen seen{};
    int count = 0;  // of rank `lane`
    for (int first = begin; first < end; first += kHeldTokens) {
        look(seen, maps, topk_ids, first, end, top_k);
#pragma unroll
        for (int step = 0; step < kHeldSteps; ++step)
            for_each_rank(seen.ranks[step], [&](int rank, unsigned found) { count += lane == rank ? __popc(found) : 0; });
    }
    const int lower_of_warp = __reduce_add_sync(kFullWarp, seen.lower);
    const int used_of_warp = __reduce_add_sync(kFullWarp, seen.used);
    if (lane < top_k) counts[lane][warp] = count;
    if (lane == 0) {
        lower_counts[warp] = lower_of_warp;
        used_counts[warp] = used_of_warp;
    }
    __syncthreads();

    // From here on a lane stands for a warp of the CTA where it reads counts, and for a rank where it holds a row.
    const int lower = __reduce_add_sync(kFullWarp, lane < warps ? lower_counts[lane] : 0);
    const int used = __reduce_add_sync(kFullWarp, lane < warps ? used_counts[lane] : 0);
    if (threadIdx.x == 0) {
        maps.offsets[expert] = lower;
        if (expert == maps.experts - 1) maps.offsets[maps.experts] = used;
    }
    int next_row = 0, first_row = lower;
    for (int rank = 0; rank < top_k; ++rank) {
        const int of_warp = lane < warps ? counts[rank][lane] : 0;
        const int before = __reduce_add_sync(kFullWarp, lane < warp ? of_warp : 0);
        if (lane == rank) next_row = first_row + before;
        first_row += __reduce_add_sync(kFullWarp, of_warp);
    }

    for (int first = begin; first < end; first += kHeldTokens) {
        if (end - begin > kHeldTokens) look(seen, maps, topk_ids, first, end, top_k);
#pragma unroll 1
        for (int step = 0; step < kHeldSteps; ++step) {
            const int my_rank = seen.ranks[step], token = first + step * kWarpLanes + lane;
            for_each_rank(my_rank, [&](int rank, unsigned found) {
                const int row = __shfl_sync(kFullWarp, next_row, rank) + __popc(found & ((1u << lane) - 1));
                if (my_rank == rank) {
                    const int choice = rank * tokens + token;
                    maps.permuted_to_unpermuted[row] = choice;
                    maps.unpermuted_to_permuted[choice] = row;
                }
                if (lane == rank) next_row += __popc(found);
            });
        }
    }

    // Choices and rows that no expert of this rank has are shared out over all CTAs.
    const int choices = tokens * top_k;
    if (used == choices) return;
    const int thread = blockIdx.x * blockDim.x + threadIdx.x, threads = gridDim.x * blockDim.x;
    for (int row = used + thread; row < choices; row += threads) maps.permuted_to_unpermuted[row] = kNoRow;
    for (int token = thread; token < tokens; token += threads)
        for (int rank = 0; rank < top_k; ++rank) {
            const bool here = maps.here(maps.local(__ldg(topk_ids + token * top_k + rank)));
            if (!here) maps.unpermuted_to_permuted[rank * tokens + token] = kNoRow;
        }
}

/// All of it for at most kFewTokens tokens: one CTA, a warp a token.
template <int kSlots, class Logit>
__device__ __forceinline__ void route_few(const Router<Logit>& router, const Maps& maps) {
    __shared__ int experts_of_choices[kFewTokens * kMaxTopK];
    const int lane = threadIdx.x % kWarpLanes, token = threadIdx.x / kWarpLanes;
    if (token < router.tokens) {
        const int expert = maps.local(route_token<kSlots>(router, token));
        if (lane < router.top_k)
            experts_of_choices[lane * router.tokens + token] = maps.here(expert) ? expert : maps.experts;
    }
    __syncthreads();
    sort_few(maps, experts_of_choices, router.tokens * router.top_k);
}

/// The maps of a few given choices, in one CTA: a tenth of the instructions that sorting many takes, which matters where
/// they come from memory.
__device__ __forceinline__ void sort_few_given(const Maps& maps, const int* topk_ids, int tokens, int top_k) {
    __shared__ int experts_of_choices[kFewChoices];
    const int choices = tokens * top_k;
    for (int at = threadIdx.x; at < choices; at += blockDim.x) {
        const int expert = maps.local(__ldg(topk_ids + at)), token = at / top_k;
        experts_of_choices[(at - token * top_k) * tokens + token] = maps.here(expert) ? expert : maps.experts;
    }
    __syncthreads();
    sort_few(maps, experts_of_choices, choices);
}

#if __CUDA_ARCH__ >= 1200
constexpr int kMultiprocessorThreads = 1536;
#else
constexpr int kMultiprocessorThreads = 2048;
#endif

/// CTAs of a multiprocessor that choose: as many as it has threads for, and as leave registers for the logits of a lane.
constexpr int choosing_ctas(int slots) {
    constexpr int kMost = kMultiprocessorThreads / kChooseThreads;
    const int ctas = slots <= 4 ? 8 : slots <= 8 ? 4 : 2;
    return ctas < kMost ? ctas : kMost;
}

/// Choices alone, a warp a token, and of each its expert for the launch that sorts.
template <int kSlots, class Logit>
__device__ __forceinline__ void choose(const Router<Logit>& router, const ChosenExperts& chosen) {
    const int token = (blockIdx.x * blockDim.x + threadIdx.x) / kWarpLanes, lane = threadIdx.x % kWarpLanes;
    launch_dependents();
    if (token >= router.tokens) return;
    const int expert = route_token<kSlots>(router, token);
    if (lane < router.top_k) chosen.store(lane * router.tokens + token, expert);
    if (token == 0) chosen.pad(router.tokens * router.top_k, lane);
}

}  // namespace refmoe

// Entries, with <slots> logits a lane, so for at most 32 * <slots> experts:
//   refmoe_route_few_<dtype>_<slots>     all for at most 16 tokens: grid 1, at least 32 threads a token
//   refmoe_route_choose_<dtype>_<slots>  choices alone: 32 threads a token
//   refmoe_route_sort_chosen             maps of these choices: grid `experts`, whole warps
//   refmoe_route_sort                    maps of given choices: grid `experts`, whole warps
//   refmoe_route_sort_few                the same for at most 64 choices: grid 1
//
//   logits                  [tokens, all_experts] FP32 or BF16
//   bias                    [all_experts] FP32, or null
//   topk_ids, topk_weights  [tokens, top_k]; topk_ids 16-byte aligned
//   refused                 0 before the launch; the kernel raises it to the complement of the first token that has no
//                           answer: NaN or +Inf among its logits, or -Inf among its choices
//   chosen                  uint16 [tokens * top_k rounded up to 8], 16-byte aligned: see refmoe::ChosenExperts
//   offsets, permuted_to_unpermuted, unpermuted_to_permuted: see refmoe::Maps
#define REFMOE_ROUTER(Logit) \
    const refmoe::Router<Logit> router { logits, bias, topk_ids, topk_weights, refused, tokens, all_experts, top_k }
#define REFMOE_MAPS \
    const refmoe::Maps maps { offsets, permuted_to_unpermuted, unpermuted_to_permuted, experts, first_expert }
#define REFMOE_ENTRIES(dtype, Logit, slots)                                                                            \
    extern "C" __global__ void __launch_bounds__(refmoe::kRouteThreads) refmoe_route_few_##dtype##_##slots(              \
        const Logit* logits, const float* bias, int* topk_ids, float* topk_weights, uint32_t* refused,                 \
        int64_t* offsets, int* permuted_to_unpermuted, int* unpermuted_to_permuted, int tokens, int all_experts,       \
        int top_k, int experts, int first_expert) {                                                                    \
        REFMOE_ROUTER(Logit);                                                                                          \
        REFMOE_MAPS;                                                                                                   \
        refmoe::route_few<slots>(router, maps);                                                                        \
    }                                                                                                                  \
    extern "C" __global__ void __launch_bounds__(refmoe::kChooseThreads, refmoe::choosing_ctas(slots))                 \
        refmoe_route_choose_##dtype##_##slots(                                                                         \
        const Logit* logits, const float* bias, int* topk_ids, float* topk_weights, uint32_t* refused,                 \
        uint16_t* chosen, int tokens, int all_experts, int top_k, int experts, int first_expert) {                     \
        REFMOE_ROUTER(Logit);                                                                                          \
        refmoe::choose<slots>(router, {chosen, experts, first_expert});                                                \
    }
#define REFMOE_DTYPES(slots)              \
    REFMOE_ENTRIES(f32, float, slots)     \
    REFMOE_ENTRIES(bf16, uint16_t, slots)

REFMOE_DTYPES(4)
REFMOE_DTYPES(8)
REFMOE_DTYPES(32)

extern "C" __global__ void __launch_bounds__(refmoe::kRouteThreads)
    refmoe_route_sort_few(const int* topk_ids, int64_t* offsets, int* permuted_to_unpermuted, int* unpermuted_to_permuted,
                          int tokens, int top_k, int experts, int first_expert) {
    REFMOE_MAPS;
    refmoe::launch_dependents();
    refmoe::sort_few_given(maps, topk_ids, tokens, top_k);
}

extern "C" __global__ void __launch_bounds__(refmoe::kSortThreads)
    refmoe_route_sort(const int* topk_ids, int64_t* offsets, int* permuted_to_unpermuted, int* unpermuted_to_permuted,
                      int tokens, int top_k, int experts, int first_expert) {
    REFMOE_MAPS;
    refmoe::launch_dependents();
    refmoe::sort_many(maps, topk_ids, tokens, top_k);
}

extern "C" __global__ void __launch_bounds__(refmoe::kSortThreads)
    refmoe_route_sort_chosen(const uint16_t* chosen, int64_t* offsets, int* permuted_to_unpermuted,
                             int* unpermuted_to_permuted, int tokens, int top_k, int experts, int first_expert,
                             int all_experts) {
    REFMOE_MAPS;
    refmoe::launch_dependents();
    refmoe::wait_for_launches();
    refmoe::sort_chosen(maps, chosen, tokens * top_k, experts == all_experts);
}
