// Tokens to the rows of their experts, quantized to block FP8 on the way: E4M3 codes, and one FP32 scale for 128
// neighbouring elements (tile_encode.cuh).
//
// A CTA takes one token at a time, a lane 16 of its elements; eight lanes share a scale. The codes are made once and
// stored once for each expert of the token on this rank, and once more as they are, for the shared expert:
//
//      token t   | lane 0: 16 elements | lane 1 | ...  ->  codes, scale  ->  row of rank 0, row of rank 1, ..., row t
//
// Lane r of each warp knows the row of rank r. Rows that no choice has are not written.
#include "expert_maps.cuh"
#include "tile_encode.cuh"

namespace refmoe {

/// Codes and scales of some rows. `codes` is null if nobody wants them.
struct Destination {
    uint4* codes;   // [rows, K]
    float* scales;  // of (row, tile) at row * row_stride + tile * column_stride
    int row_stride, column_stride;

    __device__ __forceinline__ void store(int row, int lane, int lanes, const uint4& piece, float sf) const {
        codes[static_cast<int64_t>(row) * lanes + lane] = piece;
        if (lane % kTileLanes == 0)
            scales[static_cast<int64_t>(row) * row_stride +
                   static_cast<int64_t>(lane / kTileLanes) * column_stride] = sf;
    }
};

template <class Element, TilePolicy policy, TileScale scale>
__device__ __forceinline__ void expand(const uint4* __restrict__ x, const int* __restrict__ unpermuted_to_permuted,
                                       const Destination& rows, const Destination& as_they_are, int tokens, int top_k,
                                       int lanes) {
    const int rank_lane = threadIdx.x % kWarpLanes, padded_lanes = whole_warps(lanes);
    for (int token = blockIdx.x; token < tokens; token += gridDim.x) {
        const int my_row = rank_lane < top_k ? __ldg(unpermuted_to_permuted + rank_lane * tokens + token) : kNoRow;
        for (int lane = threadIdx.x; lane < padded_lanes; lane += blockDim.x) {
            const bool inside = lane < lanes;
            Elements elements{};
            if (inside) elements = load_elements<Element>(x, static_cast<int64_t>(token) * lanes + lane);
            const float sf = tile_scale<policy, scale>(max_of_lanes<kTileLanes>(largest_magnitude(elements)));
            const uint4 piece = encode_elements(elements, __frcp_rn(sf));
            if (inside && as_they_are.codes) as_they_are.store(token, lane, lanes, piece, sf);
            for (int rank = 0; rank < top_k; ++rank) {
                const int row = __shfl_sync(kFullWarp, my_row, rank);
                if (inside && row != kNoRow) rows.store(row, lane, lanes, piece, sf);
            }
        }
    }
}

}  // namespace refmoe

// Entries: refmoe_deepseek_expand_<dtype>_<policy>_<scales>. Tokens and codes are 16-byte aligned.
//   x                       [tokens, K] BF16 or FP32; K a multiple of 128
//   unpermuted_to_permuted  [top_k, tokens] row of each choice, -1 for experts of other ranks; top_k at most 32
//   codes, scales           of the rows, see refmoe::Destination
//   token_codes, token_scales  of the tokens as they are; null if there is no shared expert
//   lanes                   K / 16
#define REFMOE_ENTRY(dtype, Element, policy, Policy, scale, Scale)                                                     \
    extern "C" __global__ void __launch_bounds__(refmoe::kMaxRowThreads)                                               \
        refmoe_deepseek_expand_##dtype##_##policy##_##scale(                                                           \
            const uint4* x, const int* unpermuted_to_permuted, uint4* codes, float* scales, uint4* token_codes,        \
            float* token_scales, int tokens, int top_k, int lanes, int row_stride, int column_stride,                  \
            int token_row_stride, int token_column_stride) {                                                           \
        const refmoe::Destination rows{codes, scales, row_stride, column_stride};                                      \
        const refmoe::Destination as_they_are{token_codes, token_scales, token_row_stride, token_column_stride};       \
        refmoe::expand<refmoe::Element, refmoe::TilePolicy::Policy, refmoe::TileScale::Scale>(                         \
            x, unpermuted_to_permuted, rows, as_they_are, tokens, top_k, lanes);                                       \
    }
#define REFMOE_SCALES(...)                    \
    REFMOE_ENTRY(__VA_ARGS__, fp32, kFp32)    \
    REFMOE_ENTRY(__VA_ARGS__, ue8m0, kUe8m0)
#define REFMOE_POLICIES(...)                         \
    REFMOE_SCALES(__VA_ARGS__, deepgemm, kDeepgemm)  \
    REFMOE_SCALES(__VA_ARGS__, exact, kExact)

REFMOE_POLICIES(bf16, Bf16)
REFMOE_POLICIES(f32, Fp32)
