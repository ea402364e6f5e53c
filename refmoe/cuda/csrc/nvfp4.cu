// Quantizes a matrix [rows, K] of BF16 or FP16 to NVFP4: packed codes [rows, K / 2] and UE4M3 scales in a linear or a
// swizzled layout, under a global encode scale that is an input.
//
// A CTA takes one row at a time, a thread one block of it. Scale rows past the last row are not written; the scale
// columns that pad K to a multiple of 64 are written as 0x00.
#include "nvfp4_encode.cuh"

namespace refmoe {

template <class Element, ScaleLayout layout>
__device__ __forceinline__ void nvfp4_quantize(const uint4* __restrict__ x, const float* __restrict__ global_scale,
                                               uint2* __restrict__ codes, uint8_t* __restrict__ scales, int rows,
                                               int lanes, int groups) {
    const int padded_lanes = whole_warps(lanes);
    const GlobalScale global = GlobalScale::of(__ldg(global_scale));
    for (int row = blockIdx.x; row < rows; row += gridDim.x) {
        const int64_t row_start = static_cast<int64_t>(row) * lanes;
        for (int lane = threadIdx.x; lane < padded_lanes; lane += blockDim.x) {
            const bool inside = lane < lanes;
            uint4 first{}, second{};
            if (inside) {
                first = __ldg(x + 2 * (row_start + lane));
                second = __ldg(x + 2 * (row_start + lane) + 1);
            }
            const uint32_t pairs[kLaneElements / 2] = {first.x,  first.y,  first.z,  first.w,
                                                       second.x, second.y, second.z, second.w};
            const Nvfp4Encoded encoded = encode_nvfp4<Element>(pairs, global);
            if (inside) codes[row_start + lane] = encoded.codes;
            if constexpr (layout == ScaleLayout::kLinear) {
                if (inside) scales[row_start + lane] = encoded.scale;
            } else {
                const uint32_t word = nvfp4_scale_word(inside ? encoded.scale : 0);
                const int group = lane / kNvfp4GroupLanes;
                if (lane % kNvfp4GroupLanes == 0 && group < groups)
                    store_scale_word<layout>(scales, row, group, groups, word);
            }
        }
    }
}

}  // namespace refmoe

// A template has no C name, so the entries are stamped out: refmoe_nvfp4_quantize_<dtype>_<layout>.
//   x             [rows, K] BF16 or FP16, 16-byte aligned
//   global_scale  one FP32, the global encode scale
//   codes         [rows, K / 2] packed E2M1, 8-byte aligned
//   scales        UE4M3: linear [rows, K / 16], or whole atoms of 128x4
//   lanes         K / 16, what one row takes
//   groups        ceil(K / 64), the scale words of one row
#define REFMOE_ENTRY(dtype, Element, layout, Layout)                                                                   \
    extern "C" __global__ void __launch_bounds__(refmoe::kMaxRowThreads) refmoe_nvfp4_quantize_##dtype##_##layout(     \
        const uint4* x, const float* global_scale, uint2* codes, uint8_t* scales, int rows, int lanes, int groups) {   \
        refmoe::nvfp4_quantize<refmoe::Element, refmoe::ScaleLayout::Layout>(x, global_scale, codes, scales, rows,     \
                                                                             lanes, groups);                           \
    }
#define REFMOE_LAYOUTS(dtype, Element)             \
    REFMOE_ENTRY(dtype, Element, linear, kLinear)  \
    REFMOE_ENTRY(dtype, Element, 128x4, k128x4)

REFMOE_LAYOUTS(bf16, Bf16)
REFMOE_LAYOUTS(fp16, Fp16)
