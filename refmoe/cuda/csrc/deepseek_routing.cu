// The router of a DeepSeek-V3 layer: each token's top-k experts out of its best groups, and their weights. The maps of
// rows are those of routing.cu, made of the ids by its refmoe_route_sort.
//
//      s = 1 / (1 + exp(-logit))     b = s + bias       FP32, each operation rounded
//      score of a group = the sum of its two largest b;  the top_groups largest groups are kept
//      of their experts the top_k largest b are chosen, of equal ones the lowest
//
// A warp takes a token. Lane l holds the experts l, l + 32, ...; groups are of neighbouring experts and of any one size,
// so that with DeepSeek-V3's 32 of them a slot is a group:
//
//      slot 0   experts   0 ..  31   group 0
//      slot 1   experts  32 ..  63   group 1
//      ...
//
// Lane g then holds the score of group g, and lane r the choice of rank r. Nothing depends on the order in which warps run.
#include "exponential.cuh"
#include "warp.cuh"

namespace refmoe {

constexpr int kGroupScores = 2;  // what ranks a group: its two largest
constexpr int kThreads = 256;
constexpr uint32_t kSignBit = 0x80000000u;
constexpr uint32_t kNanWeight = 0x7FFFFFFFu;
constexpr float kEpsilon = 1e-20f;

/// Keys: unsigned integers in the order of the scores they stand for. 0 is below all of them.
constexpr uint32_t kNoKey = 0;
constexpr uint32_t kNegativeInfinityKey = ~0xFF800000u;
constexpr uint32_t kInfinityKey = 0x7F800000u | kSignBit;  // NaN lies above

/// How a weight is made of the chosen scores.
enum class Rule {
    kDeepseek,  // RN(RN(s / S) * scale), S the sum in the order of the ranks plus 1e-20
    kTrtllm,    // RN(RN(s * scale) / S), S a butterfly over the lanes
};

/// All bits of a negative number are turned over, and the sign alone of another. A computed mask, since the compiler
/// makes `abs` and `neg` of `| kSignBit`, which leave the sign of a NaN open.
__device__ __forceinline__ uint32_t turned_bits(uint32_t sign) { return static_cast<int>(sign) >> 31 | kSignBit; }

/// Of the result of an operation: it is -0 for no score, since no sigmoid is, and its one NaN is the largest pattern.
__device__ __forceinline__ uint32_t key_of(float score) {
    const uint32_t bits = __float_as_uint(score);
    return bits ^ turned_bits(bits);
}

__device__ __forceinline__ float score_of(uint32_t key) { return __uint_as_float(key ^ turned_bits(~key)); }

__device__ __forceinline__ float load_logit(const float* logit) { return __ldg(logit); }
__device__ __forceinline__ float load_logit(const uint16_t* logit) {  // BF16: the upper half of an FP32
    return __uint_as_float(static_cast<uint32_t>(__ldg(logit)) << 16);
}

__device__ __forceinline__ float sigmoid(float x) { return __frcp_rn(one_plus_exponential(-x)); }

/// What the router reads and writes.
template <class Logit>
struct Router {
    const Logit* logits;  // [tokens, experts]
    const float* bias;    // [experts], or null
    int* topk_ids;        // [tokens, top_k]
    float* topk_weights;  // [tokens, top_k]
    uint32_t* refused;    // complement of the first token without an answer; 0 for none
    int tokens, experts, top_k, groups, top_groups;
    float scale;
};

/// The keys of a token's biased scores, those of one lane: expert `slot * 32 + lane` in slot `slot`.
template <int kSlots, class Logit>
__device__ __forceinline__ void load_keys(const Router<Logit>& router, const Logit* logits, int lane,
                                          uint32_t (&keys)[kSlots]) {
#pragma unroll
    for (int slot = 0; slot < kSlots; ++slot) {
        const int expert = slot * kWarpLanes + lane;
        keys[slot] = kNoKey;
        if (expert < router.experts) {
            float score = sigmoid(load_logit(logits + expert));
            if (router.bias) score = __fadd_rn(score, __ldg(router.bias + expert));
            keys[slot] = key_of(score);
        }
    }
}

/// The key of a group's score: the sum of its two largest. The same in all lanes.
template <int kSlots>
__device__ __forceinline__ uint32_t group_key(const uint32_t (&keys)[kSlots], const int (&group_of)[kSlots], int group) {
    uint32_t mine = kNoKey, my_second = kNoKey;  // the two largest that this lane has of the group
#pragma unroll
    for (int slot = 0; slot < kSlots; ++slot) {
        if (group_of[slot] != group) continue;
        my_second = max(my_second, min(mine, keys[slot]));
        mine = max(mine, keys[slot]);
    }
    const uint32_t largest = __reduce_max_sync(kFullWarp, mine);
    const bool has_it = mine == largest;
    // Two lanes that both have the largest: it is the second too.
    const bool twice = __popc(__ballot_sync(kFullWarp, has_it)) >= kGroupScores;
    const uint32_t second = __reduce_max_sync(kFullWarp, has_it ? my_second : mine);
    return key_of(__fadd_rn(score_of(largest), score_of(twice ? largest : second)));
}

/// The groups that are kept, a bit each. The same in all lanes.
template <int kSlots>
__device__ __forceinline__ uint32_t kept_groups(const uint32_t (&keys)[kSlots], const int (&group_of)[kSlots],
                                                int groups, int top_groups, int lane) {
    uint32_t mine = kNoKey;  // of group `lane`
    for (int group = 0; group < groups; ++group) {
        const uint32_t key = group_key<kSlots>(keys, group_of, group);
        if (lane == group) mine = key;
    }
    uint32_t kept = 0;
    for (int taken = 0; taken < top_groups; ++taken) {
        const uint32_t largest = __reduce_max_sync(kFullWarp, mine);
        const int group = __ffs(__ballot_sync(kFullWarp, mine == largest)) - 1;  // of equal ones the first
        kept |= 1u << group;
        if (lane == group) mine = kNoKey;
    }
    return kept;
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
        if (slot * kWarpLanes + lane == expert) keys[slot] = kNoKey;
    return {largest, expert};
}

/// The weight of this lane's score among those of the lanes below top_k; the other lanes hold +0.
template <Rule rule>
__device__ __forceinline__ float weight_of(float score, int top_k, float scale) {
    if constexpr (rule == Rule::kTrtllm) {
        float sum = score;
#pragma unroll
        for (int distance = kWarpLanes / 2; distance; distance /= 2)
            sum = __fadd_rn(sum, __shfl_xor_sync(kFullWarp, sum, distance));
        return __fdiv_rn(__fmul_rn(score, scale), sum);
    } else {
        float sum = __shfl_sync(kFullWarp, score, 0);
        for (int rank = 1; rank < top_k; ++rank) sum = __fadd_rn(sum, __shfl_sync(kFullWarp, score, rank));
        return __fmul_rn(__fdiv_rn(score, __fadd_rn(sum, kEpsilon)), scale);
    }
}

/// Chooses for one token, a warp together.
///
/// A score that is NaN or +Inf, or a choice of -Inf, has no answer: the token gets experts 0, 1, ... with NaN for
/// weights, so that no index is out of range, and is reported.
template <int kSlots, Rule rule, class Logit>
__device__ __forceinline__ void route_token(const Router<Logit>& router, int token) {
    const int lane = threadIdx.x % kWarpLanes;
    const Logit* logits = router.logits + static_cast<int64_t>(token) * router.experts;
    const int size = router.experts / router.groups;
    uint32_t keys[kSlots];
    int group_of[kSlots];
    load_keys<kSlots>(router, logits, lane, keys);
    bool refused = false;
#pragma unroll
    for (int slot = 0; slot < kSlots; ++slot) {
        group_of[slot] = (slot * kWarpLanes + lane) / size;  // at least `groups` past the last expert
        refused |= keys[slot] >= kInfinityKey;
    }
    const uint32_t kept = kept_groups<kSlots>(keys, group_of, router.groups, router.top_groups, lane);
#pragma unroll
    for (int slot = 0; slot < kSlots; ++slot)
        if (group_of[slot] < router.groups && !(kept >> group_of[slot] & 1)) keys[slot] = kNegativeInfinityKey;
    Choice mine{}, last{};
    for (int rank = 0; rank < router.top_k; ++rank) {
        last = take_largest<kSlots>(keys, lane);
        if (lane == rank) mine = last;
    }
    const bool chosen = lane < router.top_k;
    float weight = weight_of<rule>(chosen ? sigmoid(load_logit(logits + mine.expert)) : 0.0f, router.top_k, router.scale);
    if (__any_sync(kFullWarp, refused) || last.key <= kNegativeInfinityKey) {
        mine.expert = lane;
        weight = __uint_as_float(kNanWeight);
        // The complement of the first token is the largest: a maximum does not depend on who comes first.
        if (lane == 0) atomicMax(router.refused, ~static_cast<uint32_t>(token));
    }
    if (chosen) {
        router.topk_ids[token * router.top_k + lane] = mine.expert;
        router.topk_weights[token * router.top_k + lane] = weight;
    }
}

}  // namespace refmoe

// Entries: refmoe_deepseek_route_<dtype>_<slots>_<rule>, with <slots> experts a lane, so at most 32 * <slots> of them.
//   logits                  [tokens, experts] FP32 or BF16
//   bias                    [experts] FP32, or null
//   topk_ids, topk_weights  [tokens, top_k]
//   refused                 0 before the launch; the kernel raises it to the complement of the first token that has no
//                           answer: NaN or +Inf among its biased scores, or -Inf among its choices
//   groups                  at most 32, of experts / groups neighbours each, at least 2
//   top_k                   at most 32, and as many as `top_groups` groups have
//   scale                   the bits of an FP32
// Grid: 32 threads a token, 256 a CTA.
#define REFMOE_ENTRY(dtype, Logit, slots, rule, Rule_)                                                                  \
    extern "C" __global__ void __launch_bounds__(refmoe::kThreads) refmoe_deepseek_route_##dtype##_##slots##_##rule(    \
        const Logit* logits, const float* bias, int* topk_ids, float* topk_weights, uint32_t* refused, int tokens,      \
        int experts, int top_k, int groups, int top_groups, uint32_t scale) {                                           \
        const refmoe::Router<Logit> router{logits,  bias,  topk_ids, topk_weights, refused,                             \
                                           tokens,  experts, top_k,  groups,       top_groups,                          \
                                           __uint_as_float(scale)};                                                     \
        const int token = (blockIdx.x * blockDim.x + threadIdx.x) / refmoe::kWarpLanes;                                 \
        if (token < tokens) refmoe::route_token<slots, refmoe::Rule::Rule_>(router, token);                             \
    }
#define REFMOE_RULES(...)                            \
    REFMOE_ENTRY(__VA_ARGS__, deepseek, kDeepseek)   \
    REFMOE_ENTRY(__VA_ARGS__, trtllm, kTrtllm)
#define REFMOE_DTYPES(slots)            \
    REFMOE_RULES(f32, float, slots)     \
    REFMOE_RULES(bf16, uint16_t, slots)

REFMOE_DTYPES(8)
REFMOE_DTYPES(16)
