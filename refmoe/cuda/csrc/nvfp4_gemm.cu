// Grouped GEMM of a mixture-of-experts layer: NVFP4 weights times NVFP4 tokens, one problem an expert. What it shares
// with other grouped GEMMs, and how it works, is in grouped_gemm.cuh; here is what its instruction needs.
//
// Both sides are packed E2M1 with a UE4M3 scale for every 16 elements, so one word of scales and 32 bytes of codes are
// what an instruction takes of a row. `alpha` is the product of both tensors' global scales.
#include "grouped_gemm.cuh"
#include "mma_nvfp4.cuh"

namespace refmoe {

constexpr int kNvfp4Block = 16;
constexpr int kMmaChunks = 2;  // of 16 bytes, that an instruction takes of a row: 64 elements
constexpr int kPair = 2;       // instructions along K that one ldmatrix serves on the tokens' side

template <int tile_m, int tile_n, int tile_k>
using Tile = TileShape<tile_m, tile_n, tile_k, 2, kNvfp4Block>;

/// Tokens are read by ldmatrix, as weights are.
template <int row_bytes>
__device__ __forceinline__ int token_offset(int row, int chunk) {
    return ldmatrix_offset<row_bytes>(row, chunk);
}

/// Multiplies this warp's part of one stage, whose tokens start at row `atom_row` of the scales' atom, 128 elements of K
/// at a time. The fragments are what ldmatrix brings, nothing is unpacked:
///
///      weights, one instruction   matrices 0, 1: rows 0..7 and 8..15, its first chunk     a[0], a[1]
///                                 matrices 2, 3: the same rows, its second chunk          a[2], a[3]
///      tokens, two instructions   matrices 0, 1: 8 rows, both chunks of the first         b[0], b[1]
///                                 matrices 2, 3: 8 rows, both chunks of the second        b[0], b[1]
template <class Tile>
__device__ __forceinline__ void multiply_stage(Accumulators<Tile>& sums, uint32_t stage, int atom_row) {
    static_assert(Tile::kGroups % kPair == 0);
    constexpr int kMatrixRows = 8;
    const int lane = threadIdx.x % kWarpSize, warp = threadIdx.x / kWarpSize;
    const int g = lane / 4, t = lane % 4;
    const int warp_m = warp % Tile::kWarpsM * kWarpM, warp_n = warp / Tile::kWarpsM * Tile::kWarpN;

#pragma unroll 1
    for (int first = 0; first < Tile::kGroups; first += kPair) {
        uint32_t scale_a[kPair][Tile::kFragmentsM];
        FragmentA weights[kPair][Tile::kFragmentsM];
#pragma unroll
        for (int p = 0; p < kPair; ++p) {
#pragma unroll
            for (int i = 0; i < Tile::kFragmentsM; ++i) {
                const int scale_row = warp_m + i * kMmaM + g + t % 2 * 8;
                const int atom = scale_row / kAtomRows * Tile::kGroups + first + p;
                scale_a[p][i] =
                    ld_shared_u32(stage + Tile::kWeightScales + atom * kAtomBytes + scale_word(scale_row % kAtomRows));
                const int row = warp_m + i * kMmaM + lane % kMmaM, chunk = (first + p) * kMmaChunks + lane / kMmaM;
                ldmatrix_x4(weights[p][i].a,
                            stage + Tile::kWeights + ldmatrix_offset<Tile::kWeightRowBytes>(row, chunk));
            }
        }
#pragma unroll
        for (int j = 0; j < Tile::kFragmentsN; ++j) {
            const int row = warp_n + j * kMmaN + lane % kMatrixRows, chunk = first * kMmaChunks + lane / kMatrixRows;
            uint32_t codes[2 * kPair];
            ldmatrix_x4(codes, stage + Tile::kTokens + token_offset<Tile::kTokenRowBytes>(row, chunk));
#pragma unroll
            for (int p = 0; p < kPair; ++p) {
                const int scale_row = atom_row + warp_n + j * kMmaN + g;
                const uint32_t scale_b = ld_shared_u32(stage + Tile::kTokenScales + (first + p) * kAtomBytes +
                                                       scale_word(scale_row));
                const FragmentB tokens{codes[2 * p], codes[2 * p + 1]};
#pragma unroll
                for (int i = 0; i < Tile::kFragmentsM; ++i)
                    mma_nvfp4(sums.fragments[i][j], weights[p][i], tokens, scale_a[p][i], scale_b);
            }
        }
    }
}

}  // namespace refmoe

// Entries: refmoe_sm12x_nvfp4_gemm_<TileM>x<TileN>x<TileK>_<bf16|f32>. K is a multiple of 32, n of 8; TileK counts
// elements.
#define REFMOE_TILE(m, n, k)                                               \
    REFMOE_GROUPED_GEMM(refmoe_sm12x_nvfp4_gemm, m, n, k, bf16, uint16_t) \
    REFMOE_GROUPED_GEMM(refmoe_sm12x_nvfp4_gemm, m, n, k, f32, float)

REFMOE_TILE(128, 8, 512)
REFMOE_TILE(128, 16, 256)
REFMOE_TILE(128, 32, 256)
REFMOE_TILE(128, 64, 256)
REFMOE_TILE(128, 128, 256)
REFMOE_TILE(128, 8, 128)
