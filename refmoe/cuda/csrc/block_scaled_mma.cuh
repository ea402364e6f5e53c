// What the block-scaled tensor-core instructions of SM12x have in common, and the frame of the same arithmetic in
// software for chips that lack them. An instruction computes D = A * B + C for 16 rows and 8 columns; in K it takes 32
// bytes of a row and of a column. Fragments, with g = lane / 4 and t = lane % 4:
//
//      A  a[0], a[1]: row g, g + 8, bytes 4t .. 4t+3         B  b[0]: column g, bytes 4t .. 4t+3
//         a[2], a[3]: row g, g + 8, bytes 16+4t .. 16+4t+3      b[1]: column g, bytes 16+4t .. 16+4t+3
//      C  c[0], c[1]: row g,     columns 2t, 2t+1
//         c[2], c[3]: row g + 8, columns 2t, 2t+1
//      scales of A: row g in lane t = 0, row g + 8 in lane t = 1 of the quad; of B: column g in lane t = 0.
#pragma once

#include <cstdint>

#if defined(__CUDA_ARCH_SPECIFIC__) && (__CUDA_ARCH_SPECIFIC__ == 1200 || __CUDA_ARCH_SPECIFIC__ == 1210)
#define REFMOE_HAS_BLOCK_SCALED_MMA 1
#else
#define REFMOE_HAS_BLOCK_SCALED_MMA 0
#endif

namespace refmoe {

struct FragmentA {
    uint32_t a[4];
};
struct FragmentB {
    uint32_t b[2];
};
struct FragmentC {
    float c[4];
};

#if !REFMOE_HAS_BLOCK_SCALED_MMA

namespace software {

// One output of an instruction: its terms and the accumulator, aligned to the largest exponent among those that are not
// zero, cut toward zero to multiples of 2^(exponent - alignment bits), summed exactly, and cut toward zero to FP32.
constexpr int kExponentFloor = -133;
constexpr int kNoExponent = -100000;
constexpr int kFloatBias = 127, kFloatFraction = 23, kFloatEmin = -126, kFloatEmax = 127;
constexpr uint32_t kFloatNan = 0x7FFFFFFFu, kFloatInfinity = 0x7F800000u;
constexpr int kWordsPerRow = 8, kBytesPerWord = 4;

/// sign * significand * 2^exponent; a subnormal keeps the least exponent, so that zero is significand 0.
struct Number {
    int significand, exponent;
};

/// value * 2^shift cut toward zero. A value that is not zero fits after the shift; a zero may come with any exponent.
/// The magnitude is shifted: a left shift of a negative number, or one by 64 and more, is undefined.
__device__ __forceinline__ int64_t shift_toward_zero(int64_t value, int shift) {
    constexpr int kLastBit = 63;
    const uint64_t magnitude = static_cast<uint64_t>(llabs(value));
    const uint64_t moved = shift >= 0 ? magnitude << min(shift, kLastBit) : magnitude >> min(-shift, kLastBit);
    return value < 0 ? -static_cast<int64_t>(moved) : static_cast<int64_t>(moved);
}

/// The accumulator as a term: its exponent, its significand in units of 2^-23, and what it is not.
struct Accumulator {
    int64_t significand;
    int exponent;
    bool zero, infinite, nan;

    __device__ __forceinline__ explicit Accumulator(float c) {
        const uint32_t bits = __float_as_uint(c), magnitude = bits & 0x7FFFFFFFu;
        const int64_t fraction = magnitude >> kFloatFraction ? (magnitude & 0x7FFFFFu) | 0x800000u : magnitude;
        significand = bits >> 31 ? -fraction : fraction;
        exponent = max(static_cast<int>(magnitude >> kFloatFraction), 1) - kFloatBias;
        zero = magnitude == 0;
        infinite = magnitude == kFloatInfinity;
        nan = magnitude > kFloatInfinity;
    }
};

/// sum * 2^(exponent - alignment_bits) cut toward zero to FP32; a zero is +0.
template <int alignment_bits>
__device__ __forceinline__ float to_float(int64_t sum, int exponent) {
    if (sum == 0) return 0.0f;
    const uint64_t magnitude = static_cast<uint64_t>(llabs(sum));
    const int lead = 63 - __clzll(magnitude);
    const int result_exponent = max(lead + exponent - alignment_bits, kFloatEmin);
    if (result_exponent > kFloatEmax)
        return __uint_as_float(kFloatInfinity | (sum < 0 ? 0x80000000u : 0));
    // The unit of the last place of the result, counted in units of the sum.
    const int cut = result_exponent - kFloatFraction - (exponent - alignment_bits);
    const uint32_t fraction = static_cast<uint32_t>(cut >= 0 ? magnitude >> min(cut, 63) : magnitude << -cut);
    const bool normal = fraction >> kFloatFraction;
    const uint32_t field = normal ? result_exponent + kFloatBias : 0;
    const uint32_t bits = field << kFloatFraction | (fraction & ((1u << kFloatFraction) - 1));
    // What underflows to zero has no sign either.
    return __uint_as_float(bits | (sum < 0 && bits != 0 ? 0x80000000u : 0));
}

/// An instruction for one warp; `Dot` computes one output from a row and a column, 32 bytes each in the order of K,
/// their scales and the accumulator. Not inlined: a kernel unrolls hundreds of them.
template <class Dot>
__device__ __noinline__ FragmentC mma(FragmentC d, FragmentA a, FragmentB b, uint32_t scale_a, uint32_t scale_b) {
    constexpr unsigned kAllLanes = 0xFFFFFFFFu;
    const int lane = threadIdx.x % 32, quad = lane & ~3, column = lane % 4 * 2;
    uint32_t rows[2][kWordsPerRow], columns[2][kWordsPerRow];
#pragma unroll
    for (int half = 0; half < 2; ++half) {
#pragma unroll
        for (int word = 0; word < kWordsPerRow; ++word) {
            const int t = word % 4, part = word / 4;
            rows[half][word] = __shfl_sync(kAllLanes, a.a[2 * part + half], quad + t);
            columns[half][word] = __shfl_sync(kAllLanes, b.b[part], (column + half) * 4 + t);
        }
    }
#pragma unroll
    for (int i = 0; i < 4; ++i) {
        const uint32_t row_scale = __shfl_sync(kAllLanes, scale_a, quad + i / 2);
        const uint32_t column_scale = __shfl_sync(kAllLanes, scale_b, (column + i % 2) * 4);
        d.c[i] = Dot::of(rows[i / 2], columns[i % 2], Accumulator(d.c[i]), row_scale, column_scale);
    }
    return d;
}

}  // namespace software

#endif

}  // namespace refmoe
