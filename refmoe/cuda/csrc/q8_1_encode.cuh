// Q8_1 of a block of 32 floats, bit for bit as llama.cpp's two kernels would with IEEE division: int8 codes, an FP16 scale
// d and the FP16 sum s of the elements.
//
//      mmvq:  d = amax / 127;  code = roundf(x / d), 0 if amax = 0
//      mmq:   r = 127 / amax;  code = roundf(x * r);  d = 1 / r
//
// A lane holds 4 neighbours, eight neighbouring lanes a block.
//
//      lane        0         1         2         3         4         5         6         7
//      elements    0..3      4..7      8..11     12..15    16..19    20..23    24..27    28..31
//
// The order of the sum s decides its bits. llama.cpp's mmvq kernel has an element a lane and adds by xor 16, 8, 4, 2, 1.
// Here xor 16, 8 and 4 of elements are xor 4, 2 and 1 of lanes for each of a lane's four; xor 2 and 1 stay in the lane.
// Its mmq kernel has four elements a lane as here, adds them from the left, then by xor 4, 2, 1 of lanes.
#pragma once

#include "warp.cuh"

namespace refmoe {

constexpr int kQuadElements = 4;        // elements of a lane
constexpr int kQ8BlockLanes = 8;  // lanes of a block
constexpr float kLargestCode = 127.0f;

/// A float rounded to nearest even as FP16, infinity from 65520 on; NaN becomes 0x7FFF.
__device__ __forceinline__ uint16_t cvt_rn_f16(float value) {
    uint16_t half;
    asm("cvt.rn.f16.f32 %0, %1;" : "=h"(half) : "f"(value));
    return half;
}

enum class Q8Variant { kMmvq, kMmq };

/// A block's scale: what its elements are divided by or multiplied with, and what is stored.
struct BlockScale {
    float factor;
    float d;
    bool zero;  // all elements are zeros
};

/// fmaxf drops a NaN; a block of NaNs alone has amax NaN.
__device__ __forceinline__ float largest_magnitude(const float4& x) {
    float largest = fmaxf(fmaxf(fmaxf(fabsf(x.x), fabsf(x.y)), fabsf(x.z)), fabsf(x.w));
#pragma unroll
    for (int distance = kQ8BlockLanes / 2; distance > 0; distance /= 2)
        largest = fmaxf(largest, __shfl_xor_sync(kFullWarp, largest, distance));
    return largest;
}

template <Q8Variant variant>
__device__ __forceinline__ BlockScale block_scale(float largest) {
    if constexpr (variant == Q8Variant::kMmvq) {
        const float d = __fdiv_rn(largest, kLargestCode);
        return {d, d, largest == 0.0f};
    } else {
        const float inverse = __fdiv_rn(kLargestCode, largest);
        return {inverse, __fdiv_rn(1.0f, inverse), false};
    }
}

/// The code in the low byte. An int32 in between, as llama.cpp has it: it saturates, and a NaN becomes 0.
template <Q8Variant variant>
__device__ __forceinline__ uint32_t code(float x, const BlockScale& scale) {
    if (scale.zero) return 0;
    const float quotient = variant == Q8Variant::kMmvq ? __fdiv_rn(x, scale.factor) : __fmul_rn(x, scale.factor);
    return static_cast<uint32_t>(__float2int_rz(roundf(quotient))) & 0xFFu;
}

/// The sum over a block's lanes, in all of them.
__device__ __forceinline__ float butterfly(float sum) {
#pragma unroll
    for (int distance = kQ8BlockLanes / 2; distance > 0; distance /= 2)
        sum = __fadd_rn(sum, __shfl_xor_sync(kFullWarp, sum, distance));
    return sum;
}

template <Q8Variant variant>
__device__ __forceinline__ float block_sum(const float4& x) {
    if constexpr (variant == Q8Variant::kMmvq) {
        const float4 sums{butterfly(x.x), butterfly(x.y), butterfly(x.z), butterfly(x.w)};
        return __fadd_rn(__fadd_rn(sums.x, sums.z), __fadd_rn(sums.y, sums.w));
    } else {
        return butterfly(__fadd_rn(__fadd_rn(__fadd_rn(x.x, x.y), x.z), x.w));
    }
}

/// The codes of a lane's four elements in one word, the first in the low byte.
template <Q8Variant variant>
__device__ __forceinline__ uint32_t code_word(const float4& x, const BlockScale& scale) {
    return code<variant>(x.x, scale) | code<variant>(x.y, scale) << 8 | code<variant>(x.z, scale) << 16 |
           code<variant>(x.w, scale) << 24;
}

/// Writes the block of the lanes around `quad`, the running number of these four elements. Every lane of the warp calls
/// it, those past the end with `inside` false.
template <Q8Variant variant>
__device__ __forceinline__ void store_q8_1(const float4& x, bool inside, int quad, uint32_t* codes, uint16_t* d,
                                           uint16_t* s) {
    const BlockScale scale = block_scale<variant>(largest_magnitude(x));
    const float sum = block_sum<variant>(x);
    if (!inside) return;
    codes[quad] = code_word<variant>(x, scale);
    if (quad % kQ8BlockLanes == 0) {
        d[quad / kQ8BlockLanes] = cvt_rn_f16(scale.d);
        s[quad / kQ8BlockLanes] = cvt_rn_f16(sum);
    }
}

}  // namespace refmoe
