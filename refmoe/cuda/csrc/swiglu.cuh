// SwiGLU of pairs of gate and up in FP32, every operation rounded.
#pragma once

#include "exponential.cuh"
#include "instructions.cuh"
#include "reciprocal.cuh"

namespace refmoe {

enum class Variant { kGptOss, kSilu };

constexpr float kAlpha = 1.702f, kBeta = 1.0f, kLimit = 7.0f;  // of gpt-oss

/// What clamps and shapes an expert's gates; see the formula above.
struct Shape {
    float alpha, beta, limit;
};

/// Parameters by expert; a null pointer stands for the figure of gpt-oss.
struct Shapes {
    const float *alpha, *beta, *limit;

    __device__ __forceinline__ Shape of(int expert) const {
        return {alpha ? __ldg(alpha + expert) : kAlpha, beta ? __ldg(beta + expert) : kBeta,
                limit ? __ldg(limit + expert) : kLimit};
    }
};

/// A gate, clamped, and what its sigmoid takes: g / (1 + exp(negated)).
struct Gate {
    float g, negated;
};

template <Variant variant>
__device__ __forceinline__ Gate clamped_gate(float gate, const Shape& shape) {
    if constexpr (variant == Variant::kSilu) return {gate, -gate};
    const float g = min_nan(gate, shape.limit);
    return {g, __fmul_rn(g, -shape.alpha)};
}

template <Variant variant>
__device__ __forceinline__ float clamped_up(float up, const Shape& shape) {
    if constexpr (variant == Variant::kSilu) return up;
    return __fadd_rn(max_nan(min_nan(up, shape.limit), -shape.limit), shape.beta);
}

/// The product of one pair: the sigmoid is rounded first, then each product.
__device__ __forceinline__ float weighted(float g, float sigmoid, float up) {
    return __fmul_rn(__fmul_rn(g, sigmoid), up);
}

/// SwiGLU of one pair, whatever they are.
template <Variant variant>
__device__ __forceinline__ float swiglu(float2 gate_up, const Shape& shape) {
    const Gate gate = clamped_gate<variant>(gate_up.x, shape);
    return weighted(gate.g, __frcp_rn(one_plus_exponential(gate.negated)), clamped_up<variant>(gate_up.y, shape));
}

/// SwiGLU of several pairs, the same bits. A branch for each reciprocal costs more than the reciprocal, so there is one
/// for all of them: a network's gates are far from where 1 + exp(x) needs clamps. A sum of squares finds them, on the
/// units that multiply: those that compare are the busier ones.
template <Variant variant, int count>
__device__ __forceinline__ void swiglu(float (&results)[count], const float2 (&pairs)[count], const Shape& shape) {
    float squares = 0.0f;
#pragma unroll
    for (int i = 0; i < count; ++i) {
        const float x = clamped_gate<variant>(pairs[i].x, shape).negated;
        squares = __fmaf_rn(x, x, squares);
    }
    if (squares <= kExpPlain * kExpPlain) {  // so that no x is larger than kExpPlain, and none is a NaN
#pragma unroll
        for (int i = 0; i < count; ++i) {
            const Gate gate = clamped_gate<variant>(pairs[i].x, shape);
            results[i] = weighted(gate.g, reciprocal(one_plus_plain_exponential(gate.negated)),
                                  clamped_up<variant>(pairs[i].y, shape));
        }
    } else {
#pragma unroll
        for (int i = 0; i < count; ++i) results[i] = swiglu<variant>(pairs[i], shape);
    }
}

}  // namespace refmoe
