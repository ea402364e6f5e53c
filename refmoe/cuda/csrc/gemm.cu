// Grouped GEMM of a mixture-of-experts layer: MXFP4 weights times MXFP8 tokens, one problem an expert. What it shares
// with other grouped GEMMs, and how it works, is in grouped_gemm.cuh; here is what its instruction needs.
#include "grouped_gemm.cuh"
#include "mma_mxfp4_mxfp8.cuh"

namespace refmoe {

constexpr int kMmaK = 32;

template <int tile_m, int tile_n, int tile_k>
using Tile = TileShape<tile_m, tile_n, tile_k, 1, kBlockElements>;

/// Tokens are read 8 bytes a lane, 4 rows at 2 chunks each: XOR 2 * (row % 4).
template <int row_bytes>
__device__ __forceinline__ int token_offset(int row, int chunk) {
    return row * row_bytes + (chunk ^ (row % 4 * 2)) * kCopyBytes;
}

/// Eight packed E2M1 codes as the fragment's bytes: the even elements, and the odd ones.
__device__ __forceinline__ uint32_t even_codes(uint32_t packed) { return packed << 2 & 0x3C3C3C3Cu; }
__device__ __forceinline__ uint32_t odd_codes(uint32_t packed) { return packed >> 2 & 0x3C3C3C3Cu; }

/// Two K-blocks, number `block` and the next, of a group of four: one ldmatrix brings 16 weight rows of both.
template <class Tile, int block>
__device__ __forceinline__ void multiply_blocks(Accumulators<Tile>& sums, uint32_t stage, int group, int warp_m,
                                                int warp_n, const uint32_t (&scale_a)[Tile::kFragmentsM],
                                                const uint32_t (&scale_b)[Tile::kFragmentsN]) {
    const int lane = threadIdx.x % kWarpSize;
    const int first_block = group * kGroupBlocks + block;
    FragmentA weights[2][Tile::kFragmentsM];
#pragma unroll
    for (int i = 0; i < Tile::kFragmentsM; ++i) {
        // Matrices 0 and 1: rows 0..7 and 8..15 of the first block; 2 and 3: of the second.
        const int row = warp_m + i * kMmaM + lane % kMmaM;
        uint32_t packed[4];
        ldmatrix_x4(packed, stage + Tile::kWeights +
                                ldmatrix_offset<Tile::kWeightRowBytes>(row, first_block + lane / kMmaM));
#pragma unroll
        for (int b = 0; b < 2; ++b)
            weights[b][i] = {even_codes(packed[2 * b]), even_codes(packed[2 * b + 1]), odd_codes(packed[2 * b]),
                             odd_codes(packed[2 * b + 1])};
    }
#pragma unroll
    for (int j = 0; j < Tile::kFragmentsN; ++j) {
        const int row = warp_n + j * kMmaN + lane / 4;
        FragmentB tokens[2];
#pragma unroll
        for (int b = 0; b < 2; ++b) {
            const int byte = (first_block + b) * kMmaK + lane % 4 * 8;
            const uint2 codes =
                ld_shared_v2_u32(stage + Tile::kTokens + byte % kCopyBytes +
                                 token_offset<Tile::kTokenRowBytes>(row, byte / kCopyBytes));
            tokens[b] = {__byte_perm(codes.x, codes.y, 0x6420), __byte_perm(codes.x, codes.y, 0x7531)};
        }
#pragma unroll
        for (int i = 0; i < Tile::kFragmentsM; ++i) {
            mma_mxfp4_mxfp8<block>(sums.fragments[i][j], weights[0][i], tokens[0], scale_a[i], scale_b[j]);
            mma_mxfp4_mxfp8<block + 1>(sums.fragments[i][j], weights[1][i], tokens[1], scale_a[i], scale_b[j]);
        }
    }
}

/// Multiplies this warp's part of one stage, whose tokens start at row `atom_row` of the scales' atom.
///
/// In a K-block of 32, lane t of a quad holds elements 8t .. 8t+7 of a weight row, four bytes: the even ones become a[0]
/// and a[1], the odd ones a[2] and a[3]. The eight bytes of a token are split alike, so both sides agree on the order.
template <class Tile>
__device__ __forceinline__ void multiply_stage(Accumulators<Tile>& sums, uint32_t stage, int atom_row) {
    const int lane = threadIdx.x % kWarpSize, warp = threadIdx.x / kWarpSize;
    const int g = lane / 4, t = lane % 4;
    const int warp_m = warp % Tile::kWarpsM * kWarpM, warp_n = warp / Tile::kWarpsM * Tile::kWarpN;

#pragma unroll 1
    for (int group = 0; group < Tile::kGroups; ++group) {
        uint32_t scale_a[Tile::kFragmentsM], scale_b[Tile::kFragmentsN];
#pragma unroll
        for (int i = 0; i < Tile::kFragmentsM; ++i) {
            const int row = warp_m + i * kMmaM + g + t % 2 * 8;
            const int atom = row / kAtomRows * Tile::kGroups + group;
            scale_a[i] = ld_shared_u32(stage + Tile::kWeightScales + atom * kAtomBytes + scale_word(row % kAtomRows));
        }
#pragma unroll
        for (int j = 0; j < Tile::kFragmentsN; ++j) {
            const int row = atom_row + warp_n + j * kMmaN + g;
            scale_b[j] = ld_shared_u32(stage + Tile::kTokenScales + group * kAtomBytes + scale_word(row));
        }
        multiply_blocks<Tile, 0>(sums, stage, group, warp_m, warp_n, scale_a, scale_b);
        multiply_blocks<Tile, 2>(sums, stage, group, warp_m, warp_n, scale_a, scale_b);
    }
}

}  // namespace refmoe

// Entries: refmoe_sm12x_gemm_<TileM>x<TileN>x<TileK>_<bf16|f32>. K is a multiple of 32, n of 8.
#define REFMOE_TILE(m, n, k)                                         \
    REFMOE_GROUPED_GEMM(refmoe_sm12x_gemm, m, n, k, bf16, uint16_t) \
    REFMOE_GROUPED_GEMM(refmoe_sm12x_gemm, m, n, k, f32, float)

REFMOE_TILE(128, 8, 512)
REFMOE_TILE(128, 16, 256)
REFMOE_TILE(128, 32, 256)
REFMOE_TILE(128, 64, 128)
REFMOE_TILE(128, 128, 128)
REFMOE_TILE(128, 8, 256)
REFMOE_TILE(256, 8, 256)
REFMOE_TILE(128, 8, 128)
REFMOE_TILE(128, 16, 128)
