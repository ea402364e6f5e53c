// SwiGLU of one pair of gate and up in FP32, every operation rounded.
#pragma once

#include "exponential.cuh"
#include "instructions.cuh"

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

/// g / (1 + exp(negated)), the sigmoid rounded first.
__device__ __forceinline__ float gated(float g, float negated) {
    return __fmul_rn(g, __frcp_rn(one_plus_exponential(negated)));
}

template <Variant variant>
__device__ __forceinline__ float swiglu(float2 gate_up, const Shape& shape) {
    if constexpr (variant == Variant::kSilu) return __fmul_rn(gated(gate_up.x, -gate_up.x), gate_up.y);
    const float g = min_nan(gate_up.x, shape.limit);
    const float u = max_nan(min_nan(gate_up.y, shape.limit), -shape.limit);
    return __fmul_rn(gated(g, __fmul_rn(g, -shape.alpha)), __fadd_rn(u, shape.beta));
}

}  // namespace refmoe
