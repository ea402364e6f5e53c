// 1 / d as a sequence of exact operations, without a branch and without an estimate that a chip is free to choose.
//
//      r = kReciprocalGuess - bits of d     1 / d to 6 %: the exponent negated, the mantissa along a line
//      e = 1.5 - d r                        r * (e^2 + 0.75), a parabola through 1 / (d r):
//      r = r * (e^2 + 0.75)                 to 2^-11
//      r = r + r * (1 - d r)                Newton: to one unit in the last place
//      r = r + r * (1 - d r)                rounded to nearest
//
// That the last line rounds right is no theorem: for d just below a power of two it does not from every r (Markstein,
// "IA-64 and Elementary Functions"). The three constants, near those written above, were searched so that it does for
// all 2^23 mantissas. One exponent proves all: with d times 2, r is half at every step.
#pragma once

#include <cstdint>

namespace refmoe {

constexpr uint32_t kReciprocalGuess = 0x7EF2139Bu;
constexpr float kReciprocalCentre = 0x1.801cd6p+0f;
constexpr float kReciprocalOffset = 0x1.7fd658p-1f;

/// RN(1 / d), for 1 <= d <= 2^120: nine instructions.
__device__ __forceinline__ float reciprocal(float d) {
    float r = __uint_as_float(kReciprocalGuess - __float_as_uint(d));
    const float e = __fmaf_rn(-d, r, kReciprocalCentre);
    r = __fmul_rn(r, __fmaf_rn(e, e, kReciprocalOffset));
    r = __fmaf_rn(r, __fmaf_rn(-d, r, 1.0f), r);
    return __fmaf_rn(r, __fmaf_rn(-d, r, 1.0f), r);
}

}  // namespace refmoe
