// SwiGLU between the two GEMMs of a DeepSeek-V3 expert, quantized on the way to block FP8: E4M3 codes, and one FP32 scale
// for 128 neighbouring results.
//
//      v = (g * RN(1 / (1 + exp(-g)))) * u      FP32, each operation rounded, and no 16-bit format in between
//      scale and codes of v                     tile_encode.cuh
//
// A CTA takes one row at a time, a lane 16 results and so 16 gates and 16 ups; eight lanes share a scale:
//
//      a row     | g0 g1 ... g15 | ... | u0 u1 ... u15 | ...      the ups lie I elements behind the gates
//      a lane      \___16 gates_/        \___16 ups____/
//
// Rows of an expert are a stretch of `capacity` rows of which some are in use: contiguous rows are one such stretch, of all
// rows and with offsets[experts] in use; masked rows are one for each expert. The others are neither read nor written.
#include "swiglu.cuh"
#include "tile_encode.cuh"

namespace refmoe {

/// Which rows there are.
struct Rows {
    const int64_t* offsets;  // [experts + 1], or null: then
    const int* masked_m;     // [experts]
    int experts, capacity;

    __device__ __forceinline__ bool in_use(int stretch, int row_of_stretch) const {
        return offsets ? row_of_stretch < __ldg(offsets + experts) : row_of_stretch < __ldg(masked_m + stretch);
    }
};

/// The results of lane `lane` of a row of `2 * lanes` lanes of input.
template <class Element>
__device__ __forceinline__ Elements results(const uint4* __restrict__ rows, int64_t row, int lane, int lanes) {
    const int64_t first = row * 2 * lanes;
    const Elements gates = load_elements<Element>(rows, first + lane);
    Elements values = load_elements<Element>(rows, first + lanes + lane);
    constexpr Shape kNone{};
#pragma unroll
    for (int i = 0; i < kLaneElements; ++i)
        values.values[i] = swiglu<Variant::kSilu>({gates.values[i], values.values[i]}, kNone);
    return values;
}

/// `row_stride` and `column_stride` of a stretch's scales: K-major (I / 128, 1), or MN-major (1, capacity).
template <class Element, TilePolicy policy, TileScale scale>
__device__ __forceinline__ void activate(const uint4* __restrict__ gate_up, const Rows& rows, uint4* __restrict__ codes,
                                         float* __restrict__ scales, int row_count, int lanes, int row_stride,
                                         int column_stride) {
    const int padded_lanes = whole_warps(lanes);
    for (int row = blockIdx.x; row < row_count; row += gridDim.x) {
        const int stretch = row / rows.capacity, row_of_stretch = row % rows.capacity;
        if (!rows.in_use(stretch, row_of_stretch)) continue;
        float* factors = scales + static_cast<int64_t>(stretch) * rows.capacity * (lanes / kTileLanes) +
                         static_cast<int64_t>(row_of_stretch) * row_stride;
        for (int lane = threadIdx.x; lane < padded_lanes; lane += blockDim.x) {
            const bool inside = lane < lanes;
            Elements values{};
            if (inside) values = results<Element>(gate_up, row, lane, lanes);
            const float sf = tile_scale<policy, scale>(max_of_lanes<kTileLanes>(largest_magnitude(values)));
            if (!inside) continue;
            codes[static_cast<int64_t>(row) * lanes + lane] = encode_elements(values, __frcp_rn(sf));
            if (lane % kTileLanes == 0) factors[static_cast<int64_t>(lane / kTileLanes) * column_stride] = sf;
        }
    }
}

}  // namespace refmoe

// Entries: refmoe_deepseek_activation_<dtype>_<policy>_<scales>. Rows and codes are 16-byte aligned.
//   gate_up   [row_count, 2 I] BF16 or FP32; I a multiple of 128
//   offsets   [experts + 1], the last one the rows in use; null if `masked_m` is given
//   masked_m  [experts] rows in use of each expert's `capacity`; null if `offsets` are given, and `capacity` is row_count
//   codes     [row_count, I] E4M3
//   scales    FP32, I / 128 a row; see refmoe::activate
//   lanes     I / 16
#define REFMOE_ENTRY(dtype, Element, policy, Policy, scale, Scale)                                                     \
    extern "C" __global__ void __launch_bounds__(refmoe::kMaxRowThreads)                                               \
        refmoe_deepseek_activation_##dtype##_##policy##_##scale(                                                       \
            const uint4* gate_up, const int64_t* offsets, const int* masked_m, uint4* codes, float* scales,            \
            int row_count, int experts, int capacity, int lanes, int row_stride, int column_stride) {                  \
        const refmoe::Rows rows{offsets, masked_m, experts, capacity};                                                 \
        refmoe::activate<refmoe::Element, refmoe::TilePolicy::Policy, refmoe::TileScale::Scale>(                       \
            gate_up, rows, codes, scales, row_count, lanes, row_stride, column_stride);                                \
    }
#define REFMOE_SCALES(...)                    \
    REFMOE_ENTRY(__VA_ARGS__, fp32, kFp32)    \
    REFMOE_ENTRY(__VA_ARGS__, ue8m0, kUe8m0)
#define REFMOE_POLICIES(...)                         \
    REFMOE_SCALES(__VA_ARGS__, deepgemm, kDeepgemm)  \
    REFMOE_SCALES(__VA_ARGS__, exact, kExact)

REFMOE_POLICIES(bf16, Bf16)
REFMOE_POLICIES(f32, Fp32)
