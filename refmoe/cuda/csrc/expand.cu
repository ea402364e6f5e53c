// The expand step of a mixture-of-experts layer: every token's row is copied to one row for each expert that it goes
// to, rows sorted by expert: as MXFP8 or NVFP4 with the scales in the layout that the grouped GEMM reads, as plain FP8
// under one scale, or as it is.
//
// A CTA takes one token at a time: its row is read once and quantized once, then written top_k times. Only where every
// expert has a global scale of its own, the row is quantized for each of its experts. Each lane of a group (eight lanes,
// for NVFP4 four) looks up the destination of one rank; codes go out rank by rank, 16 bytes a lane (NVFP4: 8), and the
// group's scale word, which all its lanes hold, goes out to the ranks at once:
//
//      lane of the group     0        1        2       ...    7
//      holds destination     rank 0   rank 1   rank 2  ...    rank 7
//      writes scale word to  rank 0's, rank 1's, ...          rank 7's scale row
//
// A token alone is the work of top_k CTAs, one for each of its rows (expand_choice).
//
// Scale rows that no token fills (padding to 128 rows, experts without tokens) are not written.
//
// In 128x4 a sector of 32 bytes holds the scale words of eight rows of one expert, which come from tokens far apart. It
// has to stay in the L2 cache until the last of them is there, or it goes to memory in parts. So what passes through once,
// the codes and with many tokens the rows too, is marked to leave the cache first: on an H200 with 8192 tokens that takes
// 1.14 times a copy of the same bytes, where 1.36 were without it.
#include "expand_rows.cuh"
#include "expert_maps.cuh"
#include "mxfp8_encode.cuh"

namespace refmoe {

/// Where one token's row goes for one of its experts.
struct Destination {
    int row;        // row of the codes, or kNoRow
    int expert;     // of this rank, counted from 0
    int first_row;  // of that expert
};

/// The expert maps of one layer, as the routing step wrote them.
struct Permutation {
    const int* topk_ids;                // [tokens, top_k] global expert ids
    const int* unpermuted_to_permuted;  // [top_k, tokens], kNoRow for experts of other ranks
    const int64_t* offsets;             // [experts + 1] first row of each expert of this rank
    int tokens, top_k, first_expert;

    /// Loads without branches: a rank past top_k looks up the last one, an expert of another rank the first expert, and
    /// neither is used. So nothing waits for the maps before it needs them. A token alone is the only row of each of its
    /// experts, so that its row is the first: this saves a load that would wait for another one.
    __device__ __forceinline__ Destination destination(int token, int rank) const {
        const int known_rank = min(rank, top_k - 1);
        const int row = __ldg(unpermuted_to_permuted + known_rank * tokens + token);
        const int expert = __ldg(topk_ids + token * top_k + known_rank) - first_expert;
        const int known_expert = row == kNoRow ? 0 : expert;
        const int first_row = tokens == 1 ? row : static_cast<int>(__ldg(offsets + known_expert));
        return {rank < top_k ? row : kNoRow, known_expert, first_row};
    }
};

/// From so many tokens on, rows do not stay in the L1 cache. Below, the second of a lane's two loads finds there the sector
/// that the first one fetched, which counts where a launch is one latency long.
constexpr int kManyTokens = 64;

/// Rows of BF16 or FP16, quantized on the way.
template <class Element, ScaleMode mode, EdgePolicy edge>
struct HalfPrecisionRows : Mxfp8Output {
    const uint4* elements;  // [tokens, K]
    bool once;              // whether what is read leaves the caches at once

    struct Chunk {
        uint4 first, second;
    };

    __device__ __forceinline__ Chunk fetch(int token, int lane, int lanes) const {
        if (lane >= lanes) return {};
        const int64_t chunk = 2 * (static_cast<int64_t>(token) * lanes + lane);
        if (once) return {load_once(elements + chunk), load_once(elements + chunk + 1)};
        return {__ldg(elements + chunk), __ldg(elements + chunk + 1)};
    }

    static __device__ __forceinline__ Encoded encode(const Chunk& chunk, NoTokenScale) {
        return refmoe::encode<Element, mode, edge>(chunk.first, chunk.second);
    }
};

enum class InputScales { kNone, kLinear, k128x4 };

/// Rows that are MXFP8 already: codes and scales are copied; without scales, 0x00 stands for them.
template <InputScales kind>
struct Mxfp8Rows : Mxfp8Output {
    const uint4* codes;     // [tokens, K]
    const uint8_t* scales;  // linear [tokens, K / 32], or whole 128x4 atoms

    using Chunk = Encoded;

    __device__ __forceinline__ Chunk fetch(int token, int lane, int lanes) const {
        if (lane >= lanes) return {};
        const uint4 chunk = __ldg(codes + static_cast<int64_t>(token) * lanes + lane);
        if constexpr (kind == InputScales::kNone) return {chunk, 0};
        return {chunk, __ldg(scales + scale_offset(token, lane / kBlockLanes, lanes / kBlockLanes))};
    }

    static __device__ __forceinline__ Encoded encode(const Chunk& chunk, NoTokenScale) { return chunk; }

    static __device__ __forceinline__ int64_t scale_offset(int token, int block, int blocks) {
        if constexpr (kind == InputScales::kLinear) return static_cast<int64_t>(token) * blocks + block;
        const int groups = (blocks + kGroupBlocks - 1) / kGroupBlocks;
        return row_scale_offset<ScaleLayout::k128x4>(token, groups) +
               block / kGroupBlocks * Swizzle<ScaleLayout::k128x4>::kAtomBytes + block % kGroupBlocks;
    }
};

template <ScaleLayout layout, class Rows>
__device__ __forceinline__ void expand(const Rows rows, const Permutation permutation,
                                       typename Rows::Codes* __restrict__ codes,
                                       typename Rows::Scale* __restrict__ scales, int lanes, int groups) {
    constexpr int kGroupLanes = Rows::kGroupLanes;
    const int padded_lanes = whole_warps(lanes);
    const int lane_in_group = threadIdx.x % kGroupLanes;
    for (int token = blockIdx.x; token < permutation.tokens; token += gridDim.x) {
        const typename Rows::TokenScale token_scale = rows.token_scale(token, lanes);
        for (int first_rank = 0; first_rank < permutation.top_k; first_rank += kGroupLanes) {
            const int ranks = min(permutation.top_k - first_rank, kGroupLanes);
            for (int lane = threadIdx.x; lane < padded_lanes; lane += blockDim.x) {
                // The row's loads and the maps' are under way together: at decode their latency is the whole kernel.
                const typename Rows::Chunk chunk = rows.fetch(token, lane, lanes);
                const Destination mine = permutation.destination(token, first_rank + lane_in_group);
                const typename Rows::ExpertScale mine_scale = rows.expert_scale(mine.expert);
                typename Rows::Encoded encoded;
                uint32_t word = 0;
                const auto store = [&](int row) {
                    if (row != kNoRow && lane < lanes)
                        __stcs(codes + static_cast<int64_t>(row) * lanes + lane, encoded.codes);
                };
                if constexpr (Rows::kScales == Scales::kOfBlocks && !Rows::kByExpert) {
                    // All rows are known before the codes are, so that these go out without waiting for each other.
                    int rows_of_ranks[kGroupLanes];
#pragma unroll
                    for (int rank = 0; rank < kGroupLanes; ++rank)
                        rows_of_ranks[rank] = __shfl_sync(kFullWarp, mine.row, rank);
                    encoded = rows.encode(chunk, token_scale);
#pragma unroll
                    for (int rank = 0; rank < kGroupLanes; ++rank) store(rows_of_ranks[rank]);
                    word = Rows::scale_word(encoded.scale);
                } else {
                    if constexpr (!Rows::kByExpert) encoded = rows.encode(chunk, token_scale);
                    for (int rank = 0; rank < ranks; ++rank) {
                        if constexpr (Rows::kByExpert) {
                            encoded = rows.encode(chunk, mine_scale, rank);
                            const uint32_t of_rank = Rows::scale_word(encoded.scale);
                            if (rank == lane_in_group) word = of_rank;
                        }
                        store(__shfl_sync(kFullWarp, mine.row, rank));
                    }
                }
                if constexpr (Rows::kScales == Scales::kOfBlocks) {
                    const int group = lane / kGroupLanes;
                    if (mine.row != kNoRow && group < groups) {
                        const int scale_row = expert_scale_row(mine.first_row, mine.expert) + mine.row - mine.first_row;
                        store_scale_word<layout>(scales, scale_row, group, groups, word);
                    }
                } else if constexpr (Rows::kScales == Scales::kOfRows) {
                    if (mine.row != kNoRow && lane < kGroupLanes) scales[mine.row] = token_scale.decode;
                }
            }
        }
    }
}

/// The row of a token alone, for the choice of this CTA. The launch is then as long as the instructions of one warp: each
/// CTA quantizes the row again, but it has one place to store to, and no row that another lane would have to tell it.
///
///      CTA                  0        1        ...   top_k - 1
///      writes the row of    rank 0   rank 1         the last rank
template <ScaleLayout layout, class Rows>
__device__ __forceinline__ void expand_choice(const Rows rows, const Permutation permutation,
                                              typename Rows::Codes* __restrict__ codes,
                                              typename Rows::Scale* __restrict__ scales, int lanes, int groups) {
    constexpr int kGroupLanes = Rows::kGroupLanes;
    const int padded_lanes = whole_warps(lanes);
    for (int lane = threadIdx.x; lane < padded_lanes; lane += blockDim.x) {
        const typename Rows::Chunk chunk = rows.fetch(0, lane, lanes);
        const Destination mine = permutation.destination(0, blockIdx.x);
        const typename Rows::Encoded encoded = rows.encode(chunk, NoTokenScale{});
        const uint32_t word = Rows::scale_word(encoded.scale);
        if (mine.row == kNoRow) return;
        if (lane < lanes) __stcs(codes + static_cast<int64_t>(mine.row) * lanes + lane, encoded.codes);
        const int group = lane / kGroupLanes;
        if (lane % kGroupLanes == 0 && group < groups)
            store_scale_word<layout>(scales, expert_scale_row(mine.first_row, mine.expert), group, groups, word);
    }
}

}  // namespace refmoe

// Entries: refmoe_expand_<dtype>_<mode>_<edge>_<layout> for BF16 and FP16 rows, and
// refmoe_expand_mxfp8_<input scales>_<layout> for rows that are MXFP8 already.
//   x             [tokens, K] BF16, FP16 or E4M3, 16-byte aligned
//   input_scales  of MXFP8 rows: E8M0, linear [tokens, K / 32] or whole 128x4 atoms; unused by the other entries
//   codes         [tokens * top_k, K] E4M3, 16-byte aligned
//   scales        E8M0, whole atoms of align128(tokens * top_k + 127 * experts) rows
//   lanes         K / 16, what one row takes
//   groups        ceil(K / 128), the scale words of one row
// refmoe_expand_choice_<the same> takes the same arguments of one token, and a grid of top_k CTAs.
#define REFMOE_ENTRY(name, layout, Layout, ...)                                                                        \
    extern "C" __global__ void __launch_bounds__(refmoe::kMaxRowThreads) refmoe_expand_##name##_##layout(              \
        const uint4* x, const uint8_t* input_scales, const int* topk_ids, const int* unpermuted_to_permuted,           \
        const int64_t* offsets, uint4* codes, uint8_t* scales, int tokens, int top_k, int first_expert, int lanes,     \
        int groups) {                                                                                                  \
        const refmoe::Permutation permutation{topk_ids, unpermuted_to_permuted, offsets, tokens, top_k, first_expert}; \
        const refmoe::__VA_ARGS__;                                                                                     \
        refmoe::expand<refmoe::ScaleLayout::Layout>(rows, permutation, codes, scales, lanes, groups);                  \
    }                                                                                                                  \
    extern "C" __global__ void __launch_bounds__(refmoe::kMaxRowThreads) refmoe_expand_choice_##name##_##layout(       \
        const uint4* x, const uint8_t* input_scales, const int* topk_ids, const int* unpermuted_to_permuted,           \
        const int64_t* offsets, uint4* codes, uint8_t* scales, int, int top_k, int first_expert, int lanes,            \
        int groups) {                                                                                                  \
        constexpr int tokens = 1;                                                                                      \
        const refmoe::Permutation permutation{topk_ids, unpermuted_to_permuted, offsets, tokens, top_k, first_expert}; \
        const refmoe::__VA_ARGS__;                                                                                     \
        refmoe::expand_choice<refmoe::ScaleLayout::Layout>(rows, permutation, codes, scales, lanes, groups);           \
    }
#define REFMOE_LAYOUTS(name, ...)                 \
    REFMOE_ENTRY(name, 128x4, k128x4, __VA_ARGS__) \
    REFMOE_ENTRY(name, 8x4, k8x4, __VA_ARGS__)
#define REFMOE_HALF_PRECISION(dtype, Element, mode, Mode, edge, Edge)                                                  \
    REFMOE_LAYOUTS(dtype##_##mode##_##edge,                                                                            \
                   HalfPrecisionRows<refmoe::Element, refmoe::ScaleMode::Mode, refmoe::EdgePolicy::Edge> rows{ \
                       {}, x, tokens >= refmoe::kManyTokens})
#define REFMOE_MXFP8(scales, Scales) \
    REFMOE_LAYOUTS(mxfp8_##scales, Mxfp8Rows<refmoe::InputScales::Scales> rows{{}, x, input_scales})

REFMOE_HALF_PRECISION(bf16, Bf16, rceil, kRceil, exact, kExact)
REFMOE_HALF_PRECISION(bf16, Bf16, rceil, kRceil, flashinfer, kFlashinfer)
REFMOE_HALF_PRECISION(bf16, Bf16, floor, kFloor, exact, kExact)
REFMOE_HALF_PRECISION(bf16, Bf16, floor, kFloor, flashinfer, kFlashinfer)
REFMOE_HALF_PRECISION(fp16, Fp16, rceil, kRceil, exact, kExact)
REFMOE_HALF_PRECISION(fp16, Fp16, rceil, kRceil, flashinfer, kFlashinfer)
REFMOE_HALF_PRECISION(fp16, Fp16, floor, kFloor, exact, kExact)
REFMOE_HALF_PRECISION(fp16, Fp16, floor, kFloor, flashinfer, kFlashinfer)
REFMOE_MXFP8(none, kNone)
REFMOE_MXFP8(linear, kLinear)
REFMOE_MXFP8(128x4, k128x4)

// Entries of the other outputs: refmoe_expand_<dtype>_<nvfp4|nvfp4_expert>_<plain|prescaled>_<layout>,
// refmoe_expand_<dtype>_<fp8_tensor|fp8_token>_<plain|prescaled> and refmoe_expand_copy. Where they differ from above:
//   encode_scale  one FP32: the global encode scale of NVFP4, the factor of FP8; of nvfp4_expert [experts]; unused by
//                 fp8_token
//   prescale      [K] of x's type, what each channel is multiplied by first; unused by "plain"
//   codes         NVFP4: [tokens * top_k, K / 2] packed E2M1, 8-byte aligned; copy: rows of x as they are
//   scales        NVFP4: UE4M3; fp8_token: FP32 [tokens * top_k], the factor back to x's values; else unused
//   lanes, groups NVFP4: groups of 64 elements; copy: lanes of 16 bytes
#define REFMOE_ROWS_ENTRY(name, Layout, ...)                                                                           \
    extern "C" __global__ void __launch_bounds__(refmoe::kMaxRowThreads, 1) refmoe_expand_##name(                      \
        const uint4* x, const float* encode_scale, const uint4* prescale, const int* topk_ids,                         \
        const int* unpermuted_to_permuted, const int64_t* offsets, void* codes, void* scales, int tokens, int top_k,   \
        int first_expert, int lanes, int groups) {                                                                     \
        using Rows = refmoe::__VA_ARGS__;                                                                              \
        const refmoe::Permutation permutation{topk_ids, unpermuted_to_permuted, offsets, tokens, top_k, first_expert}; \
        refmoe::expand<refmoe::ScaleLayout::Layout>(Rows::of(x, encode_scale, prescale), permutation,                  \
                                                    static_cast<Rows::Codes*>(codes),                                  \
                                                    static_cast<Rows::Scale*>(scales), lanes, groups);                 \
    }
#define REFMOE_OTHER_OUTPUTS(dtype, Element, word, prescaled)                                                          \
    REFMOE_ROWS_ENTRY(dtype##_nvfp4_##word##_128x4, k128x4, Nvfp4Rows<refmoe::Element, prescaled>)                     \
    REFMOE_ROWS_ENTRY(dtype##_nvfp4_##word##_8x4, k8x4, Nvfp4Rows<refmoe::Element, prescaled>)                         \
    REFMOE_ROWS_ENTRY(dtype##_nvfp4_expert_##word##_128x4, k128x4, ExpertNvfp4Rows<refmoe::Element, prescaled>)        \
    REFMOE_ROWS_ENTRY(dtype##_nvfp4_expert_##word##_8x4, k8x4, ExpertNvfp4Rows<refmoe::Element, prescaled>)            \
    REFMOE_ROWS_ENTRY(dtype##_fp8_tensor_##word, kLinear, TensorFp8Rows<refmoe::Element, prescaled>)                   \
    REFMOE_ROWS_ENTRY(dtype##_fp8_token_##word, kLinear, TokenFp8Rows<refmoe::Element, prescaled>)

REFMOE_OTHER_OUTPUTS(bf16, Bf16, plain, false)
REFMOE_OTHER_OUTPUTS(bf16, Bf16, prescaled, true)
REFMOE_OTHER_OUTPUTS(fp16, Fp16, plain, false)
REFMOE_OTHER_OUTPUTS(fp16, Fp16, prescaled, true)
REFMOE_ROWS_ENTRY(copy, kLinear, CopiedRows)
