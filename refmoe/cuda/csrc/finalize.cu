// The last step of a mixture-of-experts layer: each token's rows gathered from its experts, the experts' bias added,
// weighted, and summed in the order of the ranks (token_sums.cuh).
//
// A CTA takes one token at a time, a thread 8 neighbouring columns.
#include "instructions.cuh"
#include "token_sums.cuh"

namespace refmoe {

constexpr int kColumns = 8;  // of a thread: 16 bytes of BF16
constexpr int kMaxRowThreads = 512;

__device__ __forceinline__ void store(uint16_t* columns, const float (&sums)[kColumns]) {
    *reinterpret_cast<uint4*>(columns) = {cvt_rn_bf16x2(sums[1], sums[0]), cvt_rn_bf16x2(sums[3], sums[2]),
                                          cvt_rn_bf16x2(sums[5], sums[4]), cvt_rn_bf16x2(sums[7], sums[6])};
}

__device__ __forceinline__ void store(float* columns, const float (&sums)[kColumns]) {
    reinterpret_cast<float4*>(columns)[0] = {sums[0], sums[1], sums[2], sums[3]};
    reinterpret_cast<float4*>(columns)[1] = {sums[4], sums[5], sums[6], sums[7]};
}

/// `width` is a multiple of kColumns; `bias` is read if `choices.biased`.
template <class In, class Out>
__device__ __forceinline__ void finalize(const In* __restrict__ rows, const uint16_t* __restrict__ bias,
                                         const Choices& choices, Out* __restrict__ out, int width) {
    const int lane = threadIdx.x % kWarpLanes;
    const int padded_threads = whole_warps(width / kColumns);
    for (int token = blockIdx.x; token < choices.tokens; token += gridDim.x) {
        const Rank mine = choices.load(token, lane);
        for (int thread = threadIdx.x; thread < padded_threads; thread += blockDim.x) {
            const int column = thread * kColumns;
            const bool inside = column < width;
            float sums[kColumns] = {};
            sum_ranks(sums, rows, bias, choices, mine, column, width, inside);
            if (inside) store(out + static_cast<int64_t>(token) * width + column, sums);
        }
    }
}

}  // namespace refmoe

// Entries: refmoe_finalize_<rows>_<out>, each bf16 or f32. Every pointer is 16-byte aligned.
//   rows                    [tokens * top_k, width], sorted by expert
//   unpermuted_to_permuted  [top_k, tokens] row of each choice, -1 for experts of other ranks
//   weights                 [tokens, top_k]
//   topk_ids                [tokens, top_k] global expert ids; may be null without a bias
//   bias                    [experts, width] BF16, or null
//   out                     [tokens, width]
//   top_k is at most 32, width a multiple of 8
#define REFMOE_ENTRY(in, In, result, Result)                                                                           \
    extern "C" __global__ void __launch_bounds__(refmoe::kMaxRowThreads) refmoe_finalize_##in##_##result(              \
        const In* rows, const int* unpermuted_to_permuted, const float* weights, const int* topk_ids,                  \
        const uint16_t* bias, Result* out, int tokens, int top_k, int first_expert, int width) {                       \
        const refmoe::Choices choices{unpermuted_to_permuted, weights,      topk_ids,       tokens,                    \
                                      top_k,                  first_expert, bias != nullptr};                          \
        refmoe::finalize(rows, bias, choices, out, width);                                                             \
    }

REFMOE_ENTRY(bf16, uint16_t, bf16, uint16_t)
REFMOE_ENTRY(bf16, uint16_t, f32, float)
REFMOE_ENTRY(f32, float, bf16, uint16_t)
REFMOE_ENTRY(f32, float, f32, float)
