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
#include "mxfp8_encode.cuh"

namespace refmoe {

/// What becomes of tiles that are tiny or not finite.
enum class TilePolicy {
    kDeepgemm,  // amax is at least 1e-4; what is not finite goes through the same arithmetic
    kExact,     // the scale is at least 2^-126; NaN or Inf poisons its tile: scale and codes NaN
};

enum class TileScale {
    kFp32,
    kUe8m0,  // rounded up to a power of two, stored as FP32
};

constexpr int kTileColumns = 128;
constexpr int kTileRows = 128;
constexpr int kTileLanes = kTileColumns / kLaneElements;      // 8: across a tile
constexpr int kTileThreads = 256;
constexpr int kTileWarps = kTileThreads / kWarpLanes;         // 8
constexpr int kBandRows = kTileThreads / kTileLanes;          // 32: rows that the CTA holds one below the other
constexpr int kBands = kTileRows / kBandRows;                 // 4
constexpr uint32_t kDeepgemmFloorBits = 0x38D1B717u;          // FP32(1e-4)
constexpr uint32_t kLeastScaleBits = 0x00800000u;             // 2^-126, the least normal number
constexpr uint32_t kFloatMantissa = 0x007FFFFFu;
constexpr uint32_t kLeastField = 1, kLargestField = 254;      // exponents of what UE8M0 scales are clamped to

/// FP32 elements, beside Bf16 and Fp16.
struct Fp32 {};

/// 16 elements as FP32.
struct Elements {
    float values[kLaneElements];
};

template <class Element>
__device__ __forceinline__ Elements load_elements(const uint4* __restrict__ x, int64_t lane);

/// From two pieces of eight 16-bit elements.
template <class Element>
__device__ __forceinline__ Elements load_halves(const uint4* __restrict__ x, int64_t lane) {
    const uint4 first = __ldg(x + 2 * lane), second = __ldg(x + 2 * lane + 1);
    const uint32_t pairs[kLaneElements / 2] = {first.x,  first.y,  first.z,  first.w,
                                               second.x, second.y, second.z, second.w};
    Elements loaded;
#pragma unroll
    for (int i = 0; i < kLaneElements / 2; ++i) {
        const float2 pair = Element::to_float2(pairs[i]);
        loaded.values[2 * i] = pair.x;
        loaded.values[2 * i + 1] = pair.y;
    }
    return loaded;
}

template <>
__device__ __forceinline__ Elements load_elements<Bf16>(const uint4* __restrict__ x, int64_t lane) {
    return load_halves<Bf16>(x, lane);
}

template <>
__device__ __forceinline__ Elements load_elements<Fp16>(const uint4* __restrict__ x, int64_t lane) {
    return load_halves<Fp16>(x, lane);
}

/// From four pieces of four FP32 elements.
template <>
__device__ __forceinline__ Elements load_elements<Fp32>(const uint4* __restrict__ x, int64_t lane) {
    Elements loaded;
#pragma unroll
    for (int i = 0; i < kLaneElements / 4; ++i) {
        const uint4 piece = __ldg(x + kLaneElements / 4 * lane + i);
        loaded.values[4 * i] = __uint_as_float(piece.x);
        loaded.values[4 * i + 1] = __uint_as_float(piece.y);
        loaded.values[4 * i + 2] = __uint_as_float(piece.z);
        loaded.values[4 * i + 3] = __uint_as_float(piece.w);
    }
    return loaded;
}

/// Bits of the largest magnitude. As integers, NaN ranks above Inf above every number.
__device__ __forceinline__ uint32_t largest_magnitude(const Elements& elements) {
    uint32_t amax = 0;
#pragma unroll
    for (int i = 0; i < kLaneElements; ++i) amax = max(amax, __float_as_uint(elements.values[i]) & kFloatMagnitude);
    return amax;
}

/// The largest of a group of neighbouring lanes, a power of two of them. All lanes of the warp take part.
template <int lanes>
__device__ __forceinline__ uint32_t max_of_lanes(uint32_t value) {
#pragma unroll
    for (int step = 1; step < lanes; step *= 2) value = max(value, __shfl_xor_sync(kFullWarp, value, step));
    return value;
}

/// The least power of two that is not below a positive number, from 2^-126 to 2^127; of Inf and NaN 2^127.
__device__ __forceinline__ uint32_t power_of_two_above(uint32_t bits) {
    const uint32_t field = (bits + kFloatMantissa) >> kFloatMantissaBits;
    return min(max(field, kLeastField), kLargestField) << kFloatMantissaBits;
}

/// The scale of a tile with this largest magnitude.
template <TilePolicy policy, TileScale scale>
__device__ __forceinline__ float tile_scale(uint32_t amax) {
    if constexpr (policy == TilePolicy::kExact) {
        if (amax >= kInfinityBits) return __uint_as_float(kNanBits);
    } else {
        amax = max(amax, kDeepgemmFloorBits);
    }
    uint32_t bits = __float_as_uint(__fdiv_rn(__uint_as_float(amax), kE4m3Max));
    if constexpr (policy == TilePolicy::kExact) bits = max(bits, kLeastScaleBits);
    if constexpr (scale == TileScale::kUe8m0) bits = power_of_two_above(bits);
    return __uint_as_float(bits);
}

/// The codes of 16 elements of a tile, `inverse` being 1 / sf; a NaN factor makes every one a NaN.
__device__ __forceinline__ uint4 encode_elements(const Elements& elements, float inverse) {
    uint32_t codes[kLaneElements / 4];
#pragma unroll
    for (int i = 0; i < kLaneElements / 4; ++i) {
        const float* four = elements.values + 4 * i;
        const uint32_t low = encode_pair<EdgePolicy::kExact>({four[0], four[1]}, inverse);
        const uint32_t high = encode_pair<EdgePolicy::kExact>({four[2], four[3]}, inverse);
        codes[i] = low | high << 16;
    }
    return {codes[0], codes[1], codes[2], codes[3]};
}

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
