// exp(x) in FP32 as one written sequence of operations: that of refmoe/reference/exponential.py, bit for bit.
//
//      t = fma(x, 1 / ln 2, 1.5 * 2^23)      the last bits of t are n, x / ln 2 rounded to an integer
//      r = x - n * ln 2                      two FMAs: ln 2 is the sum of two floats
//      p = 1 + r + r^2 * (...)               six FMAs
//      y = (p * 2^floor(n / 2)) * 2^(n - floor(n / 2))
//
// Both factors of y are normal numbers and the first product is exact, so y is rounded once, also where it is subnormal.
#pragma once

#include <cstdint>

#include "instructions.cuh"

namespace refmoe {

constexpr float kExpLog2e = 0x1.715476p+0f;
constexpr float kExpMagic = 0x1.8p+23f;
constexpr uint32_t kExpMagicBits = 0x4B400000u;
constexpr float kExpLn2High = 0x1.62e430p-1f;
constexpr float kExpLn2Low = -0x1.05c610p-29f;
constexpr float kExpP6 = 0x1.6ac74cp-10f;
constexpr float kExpP5 = 0x1.123de0p-7f;
constexpr float kExpP4 = 0x1.555858p-5f;
constexpr float kExpP3 = 0x1.55548cp-3f;
constexpr float kExpP2 = 0x1.fffffcp-2f;
constexpr float kExpOverflow = 0x1.62e42ep+6f;    // the largest x with a finite result
constexpr float kExpUnderflow = -0x1.9fe368p+6f;  // the least x with a result that is not zero

/// 2^exponent of a normal number, built from its bits. Of `exponent` only the last nine bits count, so it may have an
/// offset that ends in nine zeros.
__device__ __forceinline__ float power_of_two(uint32_t exponent) {
    constexpr uint32_t kBias = 127, kMantissaBits = 23;
    return __uint_as_float((exponent << kMantissaBits) + (kBias << kMantissaBits));
}

/// x as n * ln 2 + r.
struct Reduced {
    uint32_t shifted;  // n + kExpMagicBits
    float r;
};

__device__ __forceinline__ Reduced reduce(float x) {
    const float shifted = __fmaf_rn(x, kExpLog2e, kExpMagic);
    const float n = __fadd_rn(shifted, -kExpMagic);
    return {__float_as_uint(shifted), __fmaf_rn(n, -kExpLn2Low, __fmaf_rn(n, -kExpLn2High, x))};
}

/// p times kScale, a power of two: bit for bit what p is, since every step is scaled by it exactly.
template <int kScale>
__device__ __forceinline__ float scaled_polynomial(float r) {
    float p = __fmaf_rn(kScale * kExpP6, r, kScale * kExpP5);
    p = __fmaf_rn(p, r, kScale * kExpP4);
    p = __fmaf_rn(p, r, kScale * kExpP3);
    p = __fmaf_rn(p, r, kScale * kExpP2);
    p = __fmaf_rn(p, r, kScale * 1.0f);
    return __fmaf_rn(p, r, kScale * 1.0f);
}

/// exp(x); above the overflow threshold +Inf, below the underflow threshold +0, of a NaN 0x7FFFFFFF.
__device__ __forceinline__ float exponential(float x) {
    const Reduced reduced = reduce(x);
    const int n = static_cast<int>(reduced.shifted - kExpMagicBits), half = n >> 1;
    // Past the thresholds, and of a NaN, n is meaningless. A NaN stays one through p whatever the factors are.
    float y = __fmul_rn(__fmul_rn(scaled_polynomial<1>(reduced.r), power_of_two(half)), power_of_two(n - half));
    if (x > kExpOverflow) y = __int_as_float(0x7F800000);
    if (x < kExpUnderflow) y = 0.0f;
    return y;
}

constexpr float kExpPlain = 64.0f;        // up to this magnitude 1 + exp(x) needs no clamps, and is below 2^93
constexpr float kExpNegligible = -64.0f;  // 1 + exp(x) is 1 from here downward, and from -17.4 on
constexpr float kExpInfinite = 89.0f;     // 1 + exp(x) is Inf from here upward, and from the overflow threshold on

/// RN(1 + exp(x)) for |x| <= kExpPlain: the bits of 1 + exponential(x) in 12 instructions instead of 24.
///
/// exp(x) = 2p * 2^(n - 1) exactly, and the second factor is a normal number as long as n is -125 to 128. So one FMA
/// rounds the sum as the addition does.
__device__ __forceinline__ float one_plus_plain_exponential(float x) {
    static_assert(kExpMagicBits % 512 == 0, "the magic number's bits do not touch the exponent");
    const Reduced reduced = reduce(x);
    return __fmaf_rn(scaled_polynomial<2>(reduced.r), power_of_two(reduced.shifted - 1), 1.0f);
}

/// RN(1 + exp(x)) for every x. Between the clamps n is -92 to 128; the sum overflows where the sequence does: with
/// n = 128, p is at least 1 from the first x above the threshold.
__device__ __forceinline__ float one_plus_exponential(float x) {
    return one_plus_plain_exponential(max_nan(min_nan(x, kExpInfinite), kExpNegligible));
}

}  // namespace refmoe
