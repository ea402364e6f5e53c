// SwiGLU to MXFP8 by an estimate with a certificate: the same bits as the written sequence, in fewer instructions.
//
// MXFP8 keeps four bits of a result. An estimate that is within kEstimateError of the defined result has the same code,
// unless a boundary between two codes lies between them. So each result is encoded twice, a little too small and a little
// too large. Equal codes are the code of the defined result, whatever a chip's ex2.approx and rcp.approx return within
// their documented errors. The block's scale is proved in the same way. What is not proved, some results of a thousand
// warps, is made once more by the written sequence.
//
// How far an estimate may be from the defined result, relative, in units of h = 2^-24, half a unit in the last place.
// X = -alpha * gate, exactly; the sums of the table are first order, and kSecondOrder is more than the rest.
//
//      defined                                        estimated
//      x = RN(X)                            1 |X|     k = RN(-alpha * kExpLog2e)               1.23 |X|
//                                                     t = RN(gate * k)                            1 |X|
//      e = exponential(x), 0.8914 ulp       1.79      e = ex2.approx(t), 2.5 ulp                  5
//      d = RN(1 + e)                        1         d = RN(1 + e)                               1
//      s = RN(1 / d)                        1         s = rcp.approx(d), 1 ulp                    2
//      RN(gate * s), RN(. * up)             2         RN(gate * s), RN(. * up)                    2
//
// PTX says of ex2.approx that it is within 2 ulp of the correctly rounded result, so within 2.5 of the exact one.
//
// An error of e counts e / (1 + e) times in d. For X < 0 that times |X| is below 0.28, so only a large X is a concern, and
// the sum of all e of a lane bounds it. Where a subnormal number arises, errors are absolute:
//
//      t, x                 2^-149, nothing beside h
//      ex2.approx.ftz       below 2^-126, nothing beside 1
//      gate * s             |up| is at most 2^60, so that the result is below 2^-65
//      (gate * s) * up      the result is below 2^-126
//
// With the block's largest result at least 2^-40, a result below 2^-65 is code 0 for any scale that the block may have.
// Its sign is exact: of a product, whatever it is, and e is not negative. NaN and Inf never pass: of a gate, an up, or a
// parameter, they make the largest result one of them, or the sum of e.
#pragma once

#include "exponential.cuh"
#include "mxfp8_encode.cuh"
#include "swiglu.cuh"

namespace refmoe {

constexpr float kMostExponentials = 0x1p+32f;  // a lane's sum of e
constexpr float kMostX = 22.19f;               // so that no X is larger: 32 ln 2 is 22.181
constexpr float kLeastAmax = 0x1p-40f, kMostAmax = 0x1p+120f;
constexpr float kMostUp = 0x1p+60f;
constexpr float kLeastAlpha = 0x1p-100f, kMostAlpha = 0x1p+100f;  // so that neither k nor what it is made of is subnormal

constexpr float kHalfUlp = 0x1p-24f;
constexpr float kSecondOrder = 1.001f;
constexpr float kEstimateError =
    kSecondOrder * kHalfUlp * (3.23f * kMostX + (1.79f + 5.0f) + (1.0f + 1.0f + 2.0f) + (1.0f + 2.0f + 2.0f));

// A product with one of these is rounded, too: a unit more than the error. Both are FP32 numbers.
constexpr float kBelow = 1.0f - 90.0f * kHalfUlp, kAbove = 1.0f + 90.0f * kHalfUlp;
static_assert(1.0f - kBelow >= kEstimateError + 2.0f * kHalfUlp && kAbove - 1.0f >= kEstimateError + 2.0f * kHalfUlp,
              "the certificate is wider than the error of an estimate");

/// 2^t within 2 units in the last place of the correctly rounded one; subnormal operands and results become zeros.
__device__ __forceinline__ float ex2_approx_ftz(float t) {
    float y;
    asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(t));
    return y;
}

/// 1 / d within 1 unit in the last place; subnormal operands and results become zeros.
__device__ __forceinline__ float rcp_approx_ftz(float d) {
    float r;
    asm("rcp.approx.ftz.f32 %0, %1;" : "=f"(r) : "f"(d));
    return r;
}

/// k, what a gate is multiplied by for the exponent of 2. A NaN, which no result survives, for a shape whose results no
/// estimate is known to be near to.
template <Variant variant>
__device__ __forceinline__ float exponent_factor(const Shape& shape) {
    if constexpr (variant == Variant::kSilu) return -kExpLog2e;
    const float alpha = fabsf(shape.alpha), half = 0.5f * kMostUp;
    const bool known = alpha >= kLeastAlpha && alpha <= kMostAlpha && shape.limit <= half && fabsf(shape.beta) <= half;
    return known ? __fmul_rn(-shape.alpha, kExpLog2e) : __uint_as_float(kNanBits);
}

/// What the certificate of a lane asks of its estimates.
struct Estimates {
    float exponentials;  // sum of all e
    float squares;       // of ups; 0 if a shape bounds them
    float amax;          // largest magnitude, a NaN if there is any
};

/// Estimates of several results, which `all` takes in.
template <Variant variant, int count>
__device__ __forceinline__ void estimate(float (&results)[count], Estimates& all, const float2 (&pairs)[count],
                                         const Shape& shape, float factor) {
#pragma unroll
    for (int i = 0; i < count; ++i) {
        const float g = clamped_gate<variant>(pairs[i].x, shape).g;
        const float up = clamped_up<variant>(pairs[i].y, shape);
        const float e = ex2_approx_ftz(__fmul_rn(g, factor));
        all.exponentials = __fadd_rn(all.exponentials, e);
        if constexpr (variant == Variant::kSilu) all.squares = __fmaf_rn(up, up, all.squares);
        results[i] = weighted(g, rcp_approx_ftz(__fadd_rn(1.0f, e)), up);
        all.amax = max_nan(all.amax, fabsf(results[i]));
    }
}

/// Exponent of a block's scale, as block_scale() has it, where it is neither the least nor the largest.
template <ScaleMode mode>
__device__ __forceinline__ uint32_t plain_exponent(float amax) {
    constexpr uint32_t kCarry = mode == ScaleMode::kRceil ? kRceilCarry : 0;
    return (__float_as_uint(amax) + kCarry) >> kFloatMantissaBits;
}

/// The codes of estimates that are a little too small and a little too large, and their block's scale.
struct Bracket {
    uint32_t below[kLaneElements / 4], above[kLaneElements / 4];
    BlockScale scale;
    bool scale_proved;  // else neither scale nor codes mean anything

    /// One bit for each word of four codes that is not proved.
    __device__ __forceinline__ uint32_t doubts() const {
        uint32_t bits = 0;
#pragma unroll
        for (int i = 0; i < kLaneElements / 4; ++i) bits |= (below[i] != above[i] ? 1u : 0u) << i;
        return bits;
    }
};

__device__ __forceinline__ uint32_t plain_codes(const float* elements, float factor) {
    const uint32_t low = encode_pair<EdgePolicy::kExact>({elements[0], elements[1]}, factor);
    const uint32_t high = encode_pair<EdgePolicy::kExact>({elements[2], elements[3]}, factor);
    return low | high << 16;
}

/// Encodes the estimates of this lane. Either edge policy gives what it gives: a block whose scale is proved has no
/// special element, and a subnormal one is code 0. All lanes of the warp take part.
template <ScaleMode mode>
__device__ __forceinline__ Bracket bracket(const float (&estimates)[kLaneElements], const Estimates& all) {
    float amax = all.amax;
#pragma unroll
    for (int lanes = 1; lanes < kBlockLanes; lanes *= 2)
        amax = max_nan(amax, __shfl_xor_sync(kFullWarp, amax, lanes));
    const float least = __fmul_rn(amax, kBelow), most = __fmul_rn(amax, kAbove);
    const uint32_t exponent = plain_exponent<mode>(least);
    Bracket found;
    found.scale_proved = exponent == plain_exponent<mode>(most) && least >= kLeastAmax && most <= kMostAmax &&
                         all.exponentials <= kMostExponentials && all.squares <= kMostUp * kMostUp;
    const uint32_t byte = exponent - kE4m3Emax;
    found.scale = {byte, __uint_as_float((kScaleMax - byte) << kFloatMantissaBits)};
    const float smaller = __fmul_rn(found.scale.factor, kBelow), larger = __fmul_rn(found.scale.factor, kAbove);
#pragma unroll
    for (int i = 0; i < kLaneElements / 4; ++i) {
        found.below[i] = plain_codes(estimates + 4 * i, smaller);
        found.above[i] = plain_codes(estimates + 4 * i, larger);
    }
    return found;
}

}  // namespace refmoe
