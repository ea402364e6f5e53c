// Quantizes a matrix [rows, K] of BF16, FP16 or FP32 to block FP8: E4M3 codes, and one FP32 scale for each tile of
// 1x128 (activations) or 128x128 (weights).
//
//      amax = the largest magnitude of the tile           deepgemm: at least 1e-4
//      sf   = amax / 448                                  exact: at least 2^-126; ue8m0: up to a power of two
//      code = E4M3(x * (1 / sf))
//
// Every operation is one FP32 operation rounded to nearest, in DeepGEMM's order; none is fused. A lane owns 16
// consecutive elements of a row, so eight lanes share 128 columns:
//
//      lane      0        1        2        3        4        5        6        7     | 8 ...
//      elements  0..15    16..31   32..47   48..63   64..79   80..95   96..111  112..127
//      1x128     \_______________________ one scale of this row ______________________/
//
// A 128x128 tile is a CTA's: 8 lanes across, 32 rows at a time, 4 bands of rows. All of it stays in registers until
// its scale is known:
//
//               8 lanes = 128 columns
//      warp 0   rows 0..3     of band 0, 1, 2, 3 (32 rows apart)
//      warp 1   rows 4..7
//      ...
//      warp 7   rows 28..31
//
// A tile at the right or lower edge is what is left of it: what lies past the edge counts as zeros.
#include "tile_encode.cuh"

namespace refmoe {

constexpr int kTileRows = 128;
constexpr int kTileThreads = 256;
constexpr int kTileWarps = kTileThreads / kWarpLanes;         // 8
constexpr int kBandRows = kTileThreads / kTileLanes;          // 32: rows that the CTA holds one below the other
constexpr int kBands = kTileRows / kBandRows;                 // 4

/// Where the scale of (tile row, tile column) lies: K-major [tile rows, columns] or MN-major [columns, tile rows].
struct ScalePlace {
    int row_stride, column_stride;

    __device__ __forceinline__ int64_t operator()(int row, int column) const {
        return static_cast<int64_t>(row) * row_stride + static_cast<int64_t>(column) * column_stride;
    }
};

/// Tiles of 1x128: a CTA takes one row at a time.
template <class Element, TilePolicy policy, TileScale scale>
__device__ __forceinline__ void quantize_rows(const uint4* __restrict__ x, uint4* __restrict__ codes,
                                              float* __restrict__ scales, int rows, int lanes, ScalePlace place) {
    const int padded_lanes = whole_warps(lanes);
    for (int row = blockIdx.x; row < rows; row += gridDim.x) {
        const int64_t row_start = static_cast<int64_t>(row) * lanes;
        for (int lane = threadIdx.x; lane < padded_lanes; lane += blockDim.x) {
            const bool inside = lane < lanes;
            Elements elements{};
            if (inside) elements = load_elements<Element>(x, row_start + lane);
            const uint32_t amax = max_of_lanes<kTileLanes>(largest_magnitude(elements));
            const float sf = tile_scale<policy, scale>(amax);
            if (inside) {
                codes[row_start + lane] = encode_elements(elements, __frcp_rn(sf));
                if (lane % kTileLanes == 0) scales[place(row, lane / kTileLanes)] = sf;
            }
        }
    }
}

/// The largest of all threads of the CTA. Nobody may be reading `shared` any more.
__device__ __forceinline__ uint32_t max_of_threads(uint32_t value, uint32_t (&shared)[kTileWarps]) {
    value = max_of_lanes<kWarpLanes>(value);
    if (threadIdx.x % kWarpLanes == 0) shared[threadIdx.x / kWarpLanes] = value;
    __syncthreads();
    return max_of_lanes<kTileWarps>(shared[threadIdx.x % kTileWarps]);
}

/// Tiles of 128x128: a CTA of 256 threads takes one tile at a time, along K first.
template <class Element, TilePolicy policy, TileScale scale>
__device__ __forceinline__ void quantize_tiles(const uint4* __restrict__ x, uint4* __restrict__ codes,
                                               float* __restrict__ scales, int rows, int lanes, ScalePlace place) {
    __shared__ uint32_t warp_maxima[kTileWarps];
    const int tile_columns = (lanes + kTileLanes - 1) / kTileLanes;
    const int tiles = (rows + kTileRows - 1) / kTileRows * tile_columns;
    for (int tile = blockIdx.x; tile < tiles; tile += gridDim.x) {
        const int tile_row = tile / tile_columns, tile_column = tile % tile_columns;
        const int lane = tile_column * kTileLanes + threadIdx.x % kTileLanes;
        const int first_row = tile_row * kTileRows + threadIdx.x / kTileLanes;
        Elements bands[kBands] = {};
        uint32_t amax = 0;
#pragma unroll
        for (int band = 0; band < kBands; ++band) {
            const int row = first_row + band * kBandRows;
            if (row < rows && lane < lanes)
                bands[band] = load_elements<Element>(x, static_cast<int64_t>(row) * lanes + lane);
            amax = max(amax, largest_magnitude(bands[band]));
        }
        __syncthreads();  // the maxima of the tile before have been read
        const float sf = tile_scale<policy, scale>(max_of_threads(amax, warp_maxima));
        const float inverse = __frcp_rn(sf);
#pragma unroll
        for (int band = 0; band < kBands; ++band) {
            const int row = first_row + band * kBandRows;
            if (row < rows && lane < lanes)
                codes[static_cast<int64_t>(row) * lanes + lane] = encode_elements(bands[band], inverse);
        }
        if (threadIdx.x == 0) scales[place(tile_row, tile_column)] = sf;
    }
}

}  // namespace refmoe

// A template has no C name, so the entries are stamped out: refmoe_block_fp8_<block>_<dtype>_<policy>_<scales>.
//   x       [rows, K] BF16, FP16 or FP32, 16-byte aligned
//   codes   [rows, K] E4M3, 16-byte aligned
//   scales  FP32, one a tile, at tile row * row_stride + tile column * column_stride
//   lanes   K / 16, what one row takes
#define REFMOE_ENTRY(block, quantize, threads, dtype, Element, policy, Policy, scale, Scale)                           \
    extern "C" __global__ void __launch_bounds__(threads)                                                              \
        refmoe_block_fp8_##block##_##dtype##_##policy##_##scale(                                                       \
            const uint4* x, uint4* codes, float* scales, int rows, int lanes, int row_stride, int column_stride) {     \
        refmoe::quantize<refmoe::Element, refmoe::TilePolicy::Policy, refmoe::TileScale::Scale>(                       \
            x, codes, scales, rows, lanes, {row_stride, column_stride});                                               \
    }
#define REFMOE_SCALES(...)                    \
    REFMOE_ENTRY(__VA_ARGS__, fp32, kFp32)    \
    REFMOE_ENTRY(__VA_ARGS__, ue8m0, kUe8m0)
#define REFMOE_POLICIES(...)                             \
    REFMOE_SCALES(__VA_ARGS__, deepgemm, kDeepgemm)      \
    REFMOE_SCALES(__VA_ARGS__, exact, kExact)
#define REFMOE_DTYPES(...)                    \
    REFMOE_POLICIES(__VA_ARGS__, bf16, Bf16)  \
    REFMOE_POLICIES(__VA_ARGS__, fp16, Fp16)  \
    REFMOE_POLICIES(__VA_ARGS__, f32, Fp32)

REFMOE_DTYPES(1x128, quantize_rows, refmoe::kMaxRowThreads)
REFMOE_DTYPES(128x128, quantize_tiles, refmoe::kTileThreads)
