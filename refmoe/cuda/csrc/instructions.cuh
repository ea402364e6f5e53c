// One wrapper for each PTX instruction that C++ has no spelling for, named as the PTX ISA names it.
//
// Nothing here is approximate, and nothing depends on a build flag: an instruction that flushes subnormals says so.
#pragma once

#include <cstdint>

namespace refmoe {

/// Two E4M3 codes from two floats: round to nearest even, saturate at +-448, NaN becomes 0x7F. `low` takes the low byte.
__device__ __forceinline__ uint32_t cvt_rn_satfinite_e4m3x2(float high, float low) {
    uint16_t codes;
    asm("cvt.rn.satfinite.e4m3x2.f32 %0, %1, %2;" : "=h"(codes) : "f"(high), "f"(low));
    return codes;
}

/// The values of two E4M3 codes as FP16, exact; the low byte's in the low half.
__device__ __forceinline__ uint32_t cvt_rn_f16x2_e4m3x2(uint32_t codes) {
    uint32_t pair;
    asm("cvt.rn.f16x2.e4m3x2 %0, %1;" : "=r"(pair) : "h"(static_cast<uint16_t>(codes)));
    return pair;
}

/// Two floats rounded to nearest even as BF16, `low` in the low half; NaN becomes 0x7FFF.
__device__ __forceinline__ uint32_t cvt_rn_bf16x2(float high, float low) {
    uint32_t pair;
    asm("cvt.rn.bf16x2.f32 %0, %1, %2;" : "=r"(pair) : "f"(high), "f"(low));
    return pair;
}

/// Two floats rounded to nearest even as FP16, `low` in the low half; NaN becomes 0x7FFF.
__device__ __forceinline__ uint32_t cvt_rn_f16x2(float high, float low) {
    uint32_t pair;
    asm("cvt.rn.f16x2.f32 %0, %1, %2;" : "=r"(pair) : "f"(high), "f"(low));
    return pair;
}

/// The smaller of two floats, -0 below +0; a NaN stays one.
__device__ __forceinline__ float min_nan(float a, float b) {
    float smallest;
    asm("min.NaN.f32 %0, %1, %2;" : "=f"(smallest) : "f"(a), "f"(b));
    return smallest;
}

/// The larger of two floats, -0 below +0; a NaN stays one.
__device__ __forceinline__ float max_nan(float a, float b) {
    float largest;
    asm("max.NaN.f32 %0, %1, %2;" : "=f"(largest) : "f"(a), "f"(b));
    return largest;
}

/// a * b rounded to nearest; subnormal operands and results become zeros of their sign.
__device__ __forceinline__ float mul_rn_ftz(float a, float b) {
    float product;
    asm("mul.rn.ftz.f32 %0, %1, %2;" : "=f"(product) : "f"(a), "f"(b));
    return product;
}

/// Largest of each pair of unsigned halves.
__device__ __forceinline__ uint32_t max_u16x2(uint32_t a, uint32_t b) {
    uint32_t largest;
    asm("max.u16x2 %0, %1, %2;" : "=r"(largest) : "r"(a), "r"(b));
    return largest;
}

/// Largest of each pair of BF16 halves; a NaN gives way to a number.
__device__ __forceinline__ uint32_t max_bf16x2(uint32_t a, uint32_t b) {
    uint32_t largest;
    asm("max.bf16x2 %0, %1, %2;" : "=r"(largest) : "r"(a), "r"(b));
    return largest;
}

/// Largest of each pair of FP16 halves; a NaN gives way to a number.
__device__ __forceinline__ uint32_t max_f16x2(uint32_t a, uint32_t b) {
    uint32_t largest;
    asm("max.f16x2 %0, %1, %2;" : "=r"(largest) : "r"(a), "r"(b));
    return largest;
}

/// An FP16 bit pattern as a float; exact.
__device__ __forceinline__ float cvt_f32_f16(uint16_t half) {
    float value;
    asm("cvt.f32.f16 %0, %1;" : "=f"(value) : "h"(half));
    return value;
}

/// 16 bytes of memory, which do not stay in the L1 cache. Volatile, so that it stays behind a wait for another launch.
__device__ __forceinline__ uint4 load_once(const uint4* from) {
    uint4 value;
    asm volatile("ld.global.L1::no_allocate.v4.u32 {%0, %1, %2, %3}, [%4];"
        : "=r"(value.x), "=r"(value.y), "=r"(value.z), "=r"(value.w)
        : "l"(from));
    return value;
}

}  // namespace refmoe
