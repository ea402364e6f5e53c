// The last step of a mixture-of-experts layer: each token's rows gathered from its experts, the experts' bias added,
// weighted, and summed in the order of the ranks (token_sums.cuh).
//
// A warp takes a slice of 256 columns of one token at a time, a lane 8 neighbouring columns; all warps of a CTA take the
// same slice, each of other tokens:
//
//      columns     0..255          256..511        512..767        ...
//      CTA         0, S, 2S, ...   1, S + 1, ...   2, S + 2, ...          S slices
//
// So the biases that a CTA reads are a slice of each expert, which stay in the L1 cache: with 128 experts 64 KB, where
// whole rows would come from L2 every time, as many bytes as the rows themselves. The rows, which are read once, leave
// the cache to them. The maps of the next token are on their way while this one is summed.
#include "dependent_launch.cuh"
#include "instructions.cuh"
#include "token_sums.cuh"

namespace refmoe {

constexpr int kColumns = 8;  // of a lane: 16 bytes of BF16
constexpr int kSliceColumns = kColumns * kWarpLanes;
constexpr int kWarps = 4;    // of a CTA

/// CTAs on a multiprocessor, which leaves a thread 64 registers, or 80 for rows of FP32.
template <class In>
constexpr int kCtas = sizeof(In) == sizeof(float) ? 6 : 8;

__device__ __forceinline__ void store(uint16_t* columns, const float (&sums)[kColumns]) {
    *reinterpret_cast<uint4*>(columns) = {cvt_rn_bf16x2(sums[1], sums[0]), cvt_rn_bf16x2(sums[3], sums[2]),
                                          cvt_rn_bf16x2(sums[5], sums[4]), cvt_rn_bf16x2(sums[7], sums[6])};
}

__device__ __forceinline__ void store(float* columns, const float (&sums)[kColumns]) {
    reinterpret_cast<float4*>(columns)[0] = {sums[0], sums[1], sums[2], sums[3]};
    reinterpret_cast<float4*>(columns)[1] = {sums[4], sums[5], sums[6], sums[7]};
}

/// `width` is a multiple of kColumns, `slices` is width / kSliceColumns rounded up; `bias` is read if `choices.biased`.
template <class In, class Out>
__device__ __forceinline__ void finalize(const In* rows, const uint16_t* __restrict__ bias,
                                         const Choices& choices, Out* __restrict__ out, int width, int slices) {
    launch_dependents();
    wait_for_launches();
    const int lane = threadIdx.x % kWarpLanes, warp = threadIdx.x / kWarpLanes;
    const int slice = blockIdx.x % slices, column = slice * kSliceColumns + lane * kColumns;
    const bool inside = column < width;
    const int step = gridDim.x / slices * kWarps;
    int token = blockIdx.x / slices * kWarps + warp;
    if (token >= choices.tokens) return;
    for (Rank mine = choices.load(token, lane);;) {
        const int next_token = token + step;
        const bool last = next_token >= choices.tokens;
        const Rank next = last ? Rank{} : choices.load(next_token, lane);
        float sums[kColumns] = {};
        sum_ranks(sums, rows, bias, choices, mine, column, width, inside);
        if (inside) store(out + static_cast<int64_t>(token) * width + column, sums);
        if (last) return;
        token = next_token;
        mine = next;
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
//   slices                  width / 256, rounded up; the grid is a multiple of it
#define REFMOE_ENTRY(in, In, result, Result)                                                                           \
    extern "C" __global__ void __launch_bounds__(refmoe::kWarps * refmoe::kWarpLanes, refmoe::kCtas<In>)             \
        refmoe_finalize_##in##_##result(                                                                               \
            const In* rows, const int* unpermuted_to_permuted, const float* weights, const int* topk_ids,              \
            const uint16_t* bias, Result* out, int tokens, int top_k, int first_expert, int width, int slices) {       \
        const refmoe::Choices choices{unpermuted_to_permuted, weights,      topk_ids,       tokens,                    \
                                      top_k,                  first_expert, bias != nullptr};                          \
        refmoe::finalize(rows, bias, choices, out, width, slices);                                                     \
    }

REFMOE_ENTRY(bf16, uint16_t, bf16, uint16_t)
REFMOE_ENTRY(bf16, uint16_t, f32, float)
REFMOE_ENTRY(f32, float, bf16, uint16_t)
REFMOE_ENTRY(f32, float, f32, float)
