// Quantizes a matrix [rows, K] of BF16 or FP16 to MXFP8: codes [rows, K] and scales in a linear or a swizzled layout.
//
// A CTA takes one row at a time, a thread 16 elements of it. Scale rows past the last row are not written; the scale
// columns that pad K to a multiple of 128 are written as 0x00.
#include "mxfp8_encode.cuh"

namespace refmoe {

template <class Element, ScaleMode mode, EdgePolicy edge, ScaleLayout layout>
__device__ __forceinline__ void mxfp8_quantize(const uint4* __restrict__ x, uint4* __restrict__ codes,
                                               uint8_t* __restrict__ scales, int rows, int lanes, int groups) {
    const int padded_lanes = whole_warps(lanes);
    for (int row = blockIdx.x; row < rows; row += gridDim.x) {
        const int64_t row_start = static_cast<int64_t>(row) * lanes;
        for (int lane = threadIdx.x; lane < padded_lanes; lane += blockDim.x) {
            const bool inside = lane < lanes;
            uint4 first{}, second{};
            if (inside) {
                first = __ldg(x + 2 * (row_start + lane));
                second = __ldg(x + 2 * (row_start + lane) + 1);
            }
            const Encoded encoded = encode<Element, mode, edge>(first, second);
            if (inside) codes[row_start + lane] = encoded.codes;
            if constexpr (layout == ScaleLayout::kLinear) {
                if (inside && lane % kBlockLanes == 0) scales[(row_start + lane) / kBlockLanes] = encoded.scale;
            } else {
                const uint32_t word = group_scale_word(inside ? encoded.scale : 0);
                const int group = lane / kGroupLanes;
                if (lane % kGroupLanes == 0 && group < groups)
                    store_scale_word<layout>(scales, row, group, groups, word);
            }
        }
    }
}

}  // namespace refmoe

// A template has no C name, so the entries are stamped out: refmoe_mxfp8_quantize_<dtype>_<mode>_<edge>_<layout>.
//   x       [rows, K] BF16 or FP16, 16-byte aligned
//   codes   [rows, K] E4M3, 16-byte aligned
//   scales  E8M0: linear [rows, K / 32], or whole atoms of the swizzled layout
//   lanes   K / 16, what one row takes
//   groups  ceil(K / 128), the scale words of one row
#define REFMOE_ENTRY(dtype, Element, mode, Mode, edge, Edge, layout, Layout)                                           \
    extern "C" __global__ void __launch_bounds__(refmoe::kMaxRowThreads)                                                  \
        refmoe_mxfp8_quantize_##dtype##_##mode##_##edge##_##layout(                                                    \
            const uint4* x, uint4* codes, uint8_t* scales, int rows, int lanes, int groups) {                          \
        refmoe::mxfp8_quantize<refmoe::Element, refmoe::ScaleMode::Mode, refmoe::EdgePolicy::Edge,                     \
                               refmoe::ScaleLayout::Layout>(x, codes, scales, rows, lanes, groups);                    \
    }
#define REFMOE_LAYOUTS(...)                            \
    REFMOE_ENTRY(__VA_ARGS__, linear, kLinear)         \
    REFMOE_ENTRY(__VA_ARGS__, 128x4, k128x4)           \
    REFMOE_ENTRY(__VA_ARGS__, 8x4, k8x4)
#define REFMOE_POLICIES(...)                                          \
    REFMOE_LAYOUTS(__VA_ARGS__, rceil, kRceil, exact, kExact)         \
    REFMOE_LAYOUTS(__VA_ARGS__, rceil, kRceil, flashinfer, kFlashinfer) \
    REFMOE_LAYOUTS(__VA_ARGS__, floor, kFloor, exact, kExact)         \
    REFMOE_LAYOUTS(__VA_ARGS__, floor, kFloor, flashinfer, kFlashinfer)

REFMOE_POLICIES(bf16, Bf16)
REFMOE_POLICIES(fp16, Fp16)
