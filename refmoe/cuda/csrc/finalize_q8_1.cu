// The last step of a mixture-of-experts layer whose output stays Q8_1: each token's rows gathered from its experts, biased,
// weighted and summed in the order of the ranks (token_sums.cuh), and the sums quantized as FP32 has them.
//
// Blocks of 32 columns need nothing of each other, so a row is cut into *slices* of 512 columns, and each is a CTA's: one
// token of 2,880 columns keeps six CTAs busy, not one. A thread has 4 neighbouring columns, eight threads a block.
//
//      token 0                                                      token 1
//      | slice 0: 512 columns | slice 1 | ... | slice 5: 320, 48 idle threads |  slice 6 ...
//        4 columns a thread
//
#include "dependent_launch.cuh"
#include "q8_1_encode.cuh"
#include "token_sums.cuh"

namespace refmoe {

constexpr int kThreads = 128;  // of a CTA: a slice of 512 columns

/// `quads` is a row's columns by four, a multiple of 8; `bias` is read if `choices.biased`.
template <class In, Q8Variant quantizer>
__device__ __forceinline__ void finalize_q8_1(const In* rows, const uint16_t* __restrict__ bias,
                                              const Choices& choices, uint32_t* __restrict__ codes,
                                              uint16_t* __restrict__ d, uint16_t* __restrict__ s, int quads) {
    launch_dependents();
    wait_for_launches();
    const int slices = (quads + kThreads - 1) / kThreads;
    for (int slice = blockIdx.x; slice < choices.tokens * slices; slice += gridDim.x) {
        const int token = slice / slices;
        const int quad = slice % slices * kThreads + threadIdx.x;
        const bool inside = quad < quads;
        const Rank mine = choices.load(token, threadIdx.x % kWarpLanes);
        float sums[kQuadElements] = {};
        sum_ranks(sums, rows, bias, choices, mine, quad * kQuadElements, quads * kQuadElements, inside);
        const float4 values{sums[0], sums[1], sums[2], sums[3]};
        store_q8_1<quantizer>(values, inside, token * quads + quad, codes, d, s);
    }
}

}  // namespace refmoe

// Entries: refmoe_finalize_q8_1_<rows>_<quantizer>, rows bf16 or f32. Every pointer is 16-byte aligned but d and s.
//   rows                    [tokens * top_k, width], sorted by expert; width a multiple of 32
//   unpermuted_to_permuted  [top_k, tokens] row of each choice, -1 for experts of other ranks
//   weights                 [tokens, top_k]
//   topk_ids                [tokens, top_k] global expert ids; may be null without a bias
//   bias                    [experts, width] BF16, or null
//   codes                   [tokens, width] int8
//   d, s                    [tokens, width / 32] FP16
//   quads                   width / 4
//   top_k is at most 32;  grid: any number of CTAs, one for each slice of 512 columns at most;  128 threads
#define REFMOE_ENTRY(in, In, quantizer, Quantizer)                                                                     \
    extern "C" __global__ void __launch_bounds__(refmoe::kThreads) refmoe_finalize_q8_1_##in##_##quantizer(            \
        const In* rows, const int* unpermuted_to_permuted, const float* weights, const int* topk_ids,                  \
        const uint16_t* bias, uint32_t* codes, uint16_t* d, uint16_t* s, int tokens, int top_k, int first_expert,      \
        int quads) {                                                                                                   \
        const refmoe::Choices choices{unpermuted_to_permuted, weights,      topk_ids,       tokens,                    \
                                      top_k,                  first_expert, bias != nullptr};                          \
        refmoe::finalize_q8_1<In, refmoe::Q8Variant::Quantizer>(rows, bias, choices, codes, d, s, quads);              \
    }
#define REFMOE_QUANTIZERS(...)                           \
    REFMOE_ENTRY(__VA_ARGS__, llama_cpp_mmvq, kMmvq)     \
    REFMOE_ENTRY(__VA_ARGS__, llama_cpp_mmq, kMmq)

REFMOE_QUANTIZERS(bf16, uint16_t)
REFMOE_QUANTIZERS(f32, float)
