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

/// 2^exponent of a normal number, built from its bits.
__device__ __forceinline__ float power_of_two(int exponent) {
    constexpr int kBias = 127, kMantissaBits = 23;
    return __int_as_float((exponent + kBias) << kMantissaBits);
}

/// exp(x); above the overflow threshold +Inf, below the underflow threshold +0, of a NaN 0x7FFFFFFF.
__device__ __forceinline__ float exponential(float x) {
    const float shifted = __fmaf_rn(x, kExpLog2e, kExpMagic);
    const int n = __float_as_int(shifted) - static_cast<int>(kExpMagicBits);
    const float n_float = __fadd_rn(shifted, -kExpMagic);
    const float r = __fmaf_rn(n_float, -kExpLn2Low, __fmaf_rn(n_float, -kExpLn2High, x));
    float p = __fmaf_rn(kExpP6, r, kExpP5);
    p = __fmaf_rn(p, r, kExpP4);
    p = __fmaf_rn(p, r, kExpP3);
    p = __fmaf_rn(p, r, kExpP2);
    p = __fmaf_rn(p, r, 1.0f);
    p = __fmaf_rn(p, r, 1.0f);
    const int half = n >> 1;
    // Past the thresholds, and of a NaN, n is meaningless. A NaN stays one through p whatever the factors are.
    float y = __fmul_rn(__fmul_rn(p, power_of_two(half)), power_of_two(n - half));
    if (x > kExpOverflow) y = __int_as_float(0x7F800000);
    if (x < kExpUnderflow) y = 0.0f;
    return y;
}

}  // namespace refmoe
