// The weighted sum of a token's rows, one row of each of its experts: what the last step of a layer computes.
//
//      sum = +0;  for each rank with a row:  sum = RN(sum + RN(weight * RN(row + bias[expert])))      all FP32
//
// A thread has some neighbouring columns. Each lane looks up one rank; all lanes then take the ranks one after the other,
// the rows of four of them being on their way at once. A token reads nothing of another's.
#pragma once

#include "expert_maps.cuh"
#include "instructions.cuh"

namespace refmoe {

constexpr int kRanksAtOnce = 4;

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
        return {unpermuted_to_permuted[rank * tokens + token],
                biased ? __ldg(topk_ids + choice) - first_expert : 0, __ldg(weights + choice)};
    }
};

__device__ __forceinline__ Rank shuffle(const Rank& rank, int lane) {
    return {__shfl_sync(kFullWarp, rank.row, lane), __shfl_sync(kFullWarp, rank.expert, lane),
            __shfl_sync(kFullWarp, rank.weight, lane)};
}

/// Neighbouring columns of a row as they lie in memory: BF16 (uint16_t) or FP32 (float), 8 bytes or a multiple of 16.
template <class Element, int columns>
struct Piece {
    static constexpr int kWords = static_cast<int>(columns * sizeof(Element) / sizeof(uint32_t));
    static_assert(kWords == 2 || kWords % 4 == 0);
    uint32_t words[kWords];

    /// What is read `once` leaves the L1 cache to the rest, and may be what the launch in front of this one wrote.
    template <bool once = false>
    static __device__ __forceinline__ Piece load(const Element* from) {
        Piece piece;
        if constexpr (kWords == 2) {
            const uint2* const place = reinterpret_cast<const uint2*>(from);
            const uint2 pair = once ? *place : __ldg(place);
            piece.words[0] = pair.x, piece.words[1] = pair.y;
        } else {
#pragma unroll
            for (int word = 0; word < kWords; word += 4) {
                const uint4* const place = reinterpret_cast<const uint4*>(from) + word / 4;
                const uint4 quad = once ? load_once(place) : __ldg(place);
                piece.words[word] = quad.x, piece.words[word + 1] = quad.y;
                piece.words[word + 2] = quad.z, piece.words[word + 3] = quad.w;
            }
        }
        return piece;
    }

    __device__ __forceinline__ float column(int i) const {
        if constexpr (sizeof(Element) == sizeof(float)) return __uint_as_float(words[i]);
        const uint32_t pair = words[i / 2];
        return __uint_as_float(i % 2 == 0 ? pair << 16 : pair & 0xFFFF0000u);
    }
};

template <class Element, int columns>
__device__ __forceinline__ void accumulate(float (&sums)[columns], const Piece<Element, columns>& row,
                                           const Piece<uint16_t, columns>& bias, bool biased, float weight) {
#pragma unroll
    for (int i = 0; i < columns; ++i) {
        float value = row.column(i);
        if (biased) value = __fadd_rn(value, bias.column(i));
        sums[i] = __fadd_rn(sums[i], __fmul_rn(weight, value));
    }
}

/// Adds up the columns from `column` on of one token's rows. Every lane of a warp calls it for the same token; `mine` is
/// what lane l loaded of rank l. Lanes that are not `inside` the row read nothing.
template <class In, int columns>
__device__ __forceinline__ void sum_ranks(float (&sums)[columns], const In* rows,
                                          const uint16_t* __restrict__ bias, const Choices& choices, const Rank& mine,
                                          int column, int width, bool inside) {
    for (int first = 0; first < choices.top_k; first += kRanksAtOnce) {
        Rank ranks[kRanksAtOnce];
        Piece<In, columns> pieces[kRanksAtOnce] = {};
        Piece<uint16_t, columns> biases[kRanksAtOnce] = {};
#pragma unroll
        for (int i = 0; i < kRanksAtOnce; ++i) {
            ranks[i] = shuffle(mine, first + i);  // lanes past top_k hold kNoRow
            if (ranks[i].row == kNoRow || !inside) continue;
            pieces[i] = Piece<In, columns>::template load<true>(rows + static_cast<int64_t>(ranks[i].row) * width + column);
            if (choices.biased)
                biases[i] =
                    Piece<uint16_t, columns>::load(bias + static_cast<int64_t>(ranks[i].expert) * width + column);
        }
#pragma unroll
        for (int i = 0; i < kRanksAtOnce; ++i)
            if (ranks[i].row != kNoRow) accumulate(sums, pieces[i], biases[i], choices.biased, ranks[i].weight);
    }
}

}  // namespace refmoe
