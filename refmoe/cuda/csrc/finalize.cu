// The last step of a mixture-of-experts layer: each token's rows gathered from its experts, the experts' bias added,
// weighted, and summed in the order of the ranks.
//
//      sum = +0;  for each rank with a row:  sum = RN(sum + RN(weight * RN(row + bias[expert])))      all FP32
//
// A CTA takes one token at a time, a thread 8 neighbouring columns. Each lane looks up one rank; all lanes then take the
// ranks one after the other, the rows of four of them being on their way at once. A token reads nothing of another's.
#include "expert_maps.cuh"
#include "instructions.cuh"

namespace refmoe {

constexpr int kColumns = 8;      // of a thread: 16 bytes of BF16
constexpr int kRanksAtOnce = 4;
constexpr int kMaxRowThreads = 512;

/// What is needed of one rank of a token.
struct Rank {
    int row;       // kNoRow for an expert of another rank of the machine
    int expert;    // of this rank of the machine
    float weight;
};

/// The maps and weights of one layer.
struct Choices {
    const int* unpermuted_to_permuted;  // [top_k, tokens]
    const float* weights;               // [tokens, top_k]
    const int* topk_ids;                // [tokens, top_k], read only for the bias
    int tokens, top_k, first_expert;
    bool biased;

    __device__ __forceinline__ Rank load(int token, int rank) const {
        if (rank >= top_k) return {kNoRow, 0, 0.0f};
        const int choice = token * top_k + rank;
        return {__ldg(unpermuted_to_permuted + rank * tokens + token),
                biased ? __ldg(topk_ids + choice) - first_expert : 0, __ldg(weights + choice)};
    }
};

__device__ __forceinline__ Rank shuffle(const Rank& rank, int lane) {
    return {__shfl_sync(kFullWarp, rank.row, lane), __shfl_sync(kFullWarp, rank.expert, lane),
            __shfl_sync(kFullWarp, rank.weight, lane)};
}

/// Eight columns as they lie in memory, BF16 or FP32.
template <class Element>
struct Piece;

template <>
struct Piece<uint16_t> {
    uint4 words;

    static __device__ __forceinline__ Piece load(const uint16_t* columns) {
        return {__ldg(reinterpret_cast<const uint4*>(columns))};
    }
    __device__ __forceinline__ float column(int i) const {
        const uint32_t pair = i < 2 ? words.x : i < 4 ? words.y : i < 6 ? words.z : words.w;
        return __uint_as_float(i % 2 == 0 ? pair << 16 : pair & 0xFFFF0000u);
    }
    static __device__ __forceinline__ void store(uint16_t* columns, const float (&sums)[kColumns]) {
        *reinterpret_cast<uint4*>(columns) = {cvt_rn_bf16x2(sums[1], sums[0]), cvt_rn_bf16x2(sums[3], sums[2]),
                                              cvt_rn_bf16x2(sums[5], sums[4]), cvt_rn_bf16x2(sums[7], sums[6])};
    }
};

template <>
struct Piece<float> {
    float4 low, high;

    static __device__ __forceinline__ Piece load(const float* columns) {
        return {__ldg(reinterpret_cast<const float4*>(columns)), __ldg(reinterpret_cast<const float4*>(columns) + 1)};
    }
    __device__ __forceinline__ float column(int i) const {
        const float4& half = i < 4 ? low : high;
        return i % 4 == 0 ? half.x : i % 4 == 1 ? half.y : i % 4 == 2 ? half.z : half.w;
    }
    static __device__ __forceinline__ void store(float* columns, const float (&sums)[kColumns]) {
        reinterpret_cast<float4*>(columns)[0] = {sums[0], sums[1], sums[2], sums[3]};
        reinterpret_cast<float4*>(columns)[1] = {sums[4], sums[5], sums[6], sums[7]};
    }
};

template <class Element>
__device__ __forceinline__ void accumulate(float (&sums)[kColumns], const Piece<Element>& row,
                                           const Piece<uint16_t>& bias, bool biased, float weight) {
#pragma unroll
    for (int i = 0; i < kColumns; ++i) {
        float value = row.column(i);
        if (biased) value = __fadd_rn(value, bias.column(i));
        sums[i] = __fadd_rn(sums[i], __fmul_rn(weight, value));
    }
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
            for (int first = 0; first < choices.top_k; first += kRanksAtOnce) {
                Rank ranks[kRanksAtOnce];
                Piece<In> pieces[kRanksAtOnce] = {};
                Piece<uint16_t> biases[kRanksAtOnce] = {};
#pragma unroll
                for (int i = 0; i < kRanksAtOnce; ++i) {
                    ranks[i] = shuffle(mine, first + i);  // lanes past top_k hold kNoRow
                    if (ranks[i].row == kNoRow || !inside) continue;
                    pieces[i] = Piece<In>::load(rows + static_cast<int64_t>(ranks[i].row) * width + column);
                    if (choices.biased)
                        biases[i] = Piece<uint16_t>::load(bias + static_cast<int64_t>(ranks[i].expert) * width + column);
                }
#pragma unroll
                for (int i = 0; i < kRanksAtOnce; ++i)
                    if (ranks[i].row != kNoRow)
                        accumulate(sums, pieces[i], biases[i], choices.biased, ranks[i].weight);
            }
            if (inside) Piece<Out>::store(out + static_cast<int64_t>(token) * width + column, sums);
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
