// 16 elements as one NVFP4 block: E2M1 codes and a UE4M3 scale, under the FP32 scale g of the whole tensor.
//
// A lane owns a block: two 16-byte loads, one 8-byte store of codes. Four lanes share a scale word:
//
//      lane      0        1         2         3
//      elements  0..15    16..31    32..47    48..63
//      scales    | byte 0 | byte 1  | byte 2  | byte 3 |      one 32-bit word
//
// Codes are packed two a byte, the even element in the low nibble:
//
//      codes.x   | e0 e1 | e2 e3 | e4 e5 | e6 e7 |     codes.y: e8 .. e15; each digit four bits, e0 lowest
//
// The arithmetic is that of TransformerEngine's quantizer, FP32 rounded to nearest, nothing fused and nothing flushed:
//
//      scale  = E4M3(amax * (g * (1/6)))               the two products are rounded one after the other
//      factor = min(1 / (scale * (1/g)), FLT_MAX)
//      code   = E2M1(x * factor)                       so an element is rounded to FP32 first, then to its code
#pragma once

#include "mxfp8_encode.cuh"

#if defined(__CUDA_ARCH_SPECIFIC__) && (__CUDA_ARCH_SPECIFIC__ == 1200 || __CUDA_ARCH_SPECIFIC__ == 1210)
#define REFMOE_HAS_E2M1 1
#else
#define REFMOE_HAS_E2M1 0
#endif

namespace refmoe {

constexpr int kNvfp4BlockLanes = 1;
constexpr int kNvfp4GroupLanes = kGroupBlocks * kNvfp4BlockLanes;  // 4
constexpr float kLargestFloat = 3.402823466e38f;                   // FLT_MAX
constexpr float kSixth = 1.0f / 6.0f;                              // rounded to nearest, 0x3E2AAAAB
constexpr uint32_t kUe4m3Nan = 0x7F;

/// The 16 packed codes of a block and its scale byte.
struct Nvfp4Encoded {
    uint2 codes;
    uint32_t scale;
};

/// What every block takes from the global encode scale g.
struct GlobalScale {
    float sixth;   // g / 6
    float decode;  // 1 / g

    static __device__ __forceinline__ GlobalScale of(float g) { return {__fmul_rn(g, kSixth), __fdiv_rn(1.0f, g)}; }
};

#if REFMOE_HAS_E2M1

/// Eight E2M1 codes, the first element's in the low nibble: to nearest even, saturating at +-6.
__device__ __forceinline__ uint32_t encode_e2m1x8(const float (&x)[8]) {
    uint32_t codes;
    asm("{\n"
        ".reg .b8 b0, b1, b2, b3;\n"
        "cvt.rn.satfinite.e2m1x2.f32 b0, %2, %1;\n"
        "cvt.rn.satfinite.e2m1x2.f32 b1, %4, %3;\n"
        "cvt.rn.satfinite.e2m1x2.f32 b2, %6, %5;\n"
        "cvt.rn.satfinite.e2m1x2.f32 b3, %8, %7;\n"
        "mov.b32 %0, {b0, b1, b2, b3};\n"
        "}"
        : "=r"(codes)
        : "f"(x[0]), "f"(x[1]), "f"(x[2]), "f"(x[3]), "f"(x[4]), "f"(x[5]), "f"(x[6]), "f"(x[7]));
    return codes;
}

#else

/// One E2M1 code, for chips without the conversion; x is a number or an infinity.
///
///     |x| < 1    0, 0.5, 1: a multiple of 0.5, which is what 2^22 + |x| is rounded to; its last bits count halves
///     |x| >= 1   two significant bits: half a unit is added below them, less one bit if the last one kept is even
__device__ __forceinline__ uint32_t encode_e2m1(float x) {
    constexpr float kHalvesAreUnits = 4194304.0f;  // 2^22: an FP32 there has a last bit of 0.5
    constexpr float kE2m1Max = 6.0f;
    constexpr int kCutBits = kFloatMantissaBits - 1;          // E2M1 has one mantissa bit
    constexpr uint32_t kBelowHalf = (1u << (kCutBits - 1)) - 1;
    constexpr uint32_t kOneBits = 0x3F800000u, kOneCode = 2;
    const float magnitude = fminf(fabsf(x), kE2m1Max);
    const uint32_t bits = __float_as_uint(magnitude);
    const uint32_t halves = __float_as_uint(__fadd_rn(magnitude, kHalvesAreUnits)) & 3u;
    const uint32_t rounded = (bits + kBelowHalf + ((bits >> kCutBits) & 1u)) >> kCutBits;
    const uint32_t code = bits < kOneBits ? halves : rounded - (kOneBits >> kCutBits) + kOneCode;
    return code | (__float_as_uint(x) >> 31 << 3);
}

__device__ __forceinline__ uint32_t encode_e2m1x8(const float (&x)[8]) {
    uint32_t codes = 0;
#pragma unroll
    for (int i = 0; i < 8; ++i) codes |= encode_e2m1(x[i]) << (4 * i);
    return codes;
}

#endif

/// The value of a UE4M3 byte that is a number; exact.
__device__ __forceinline__ float decode_ue4m3(uint32_t byte) {
    return cvt_f32_f16(static_cast<uint16_t>(cvt_rn_f16x2_e4m3x2(byte)));
}

/// FP32 bits of the largest magnitude of a lane's elements. Bits are compared as integers, which ranks NaN above Inf
/// above every number.
template <class Element>
__device__ __forceinline__ uint32_t lane_amax(const uint32_t (&pairs)[kLaneElements / 2]) {
    uint32_t amax = pairs[0] & kMagnitudes;
#pragma unroll
    for (int i = 1; i < kLaneElements / 2; ++i) amax = max_u16x2(amax, pairs[i] & kMagnitudes);
    amax = max_u16x2(amax, amax >> 16);
    return Element::float_bits(amax & 0xFFFFu);
}

/// Encodes the 16 elements of this lane. A NaN or an infinity poisons its block: scale NaN, codes 0.
template <class Element>
__device__ __forceinline__ Nvfp4Encoded encode_nvfp4(const uint32_t (&pairs)[kLaneElements / 2], GlobalScale global) {
    const uint32_t amax = lane_amax<Element>(pairs);
    if (amax >= kInfinityBits) return {{0, 0}, kUe4m3Nan};
    const float wanted = __fmul_rn(__uint_as_float(amax), global.sixth);
    const uint32_t scale = cvt_rn_satfinite_e4m3x2(0.0f, wanted);
    // A scale of 0 gives an infinity here, so FLT_MAX: elements that are not zero become +-6, worth nothing.
    const float factor = fminf(__fdiv_rn(1.0f, __fmul_rn(decode_ue4m3(scale), global.decode)), kLargestFloat);
    float scaled[2][kLaneElements / 2];
#pragma unroll
    for (int i = 0; i < kLaneElements / 2; ++i) {
        const float2 pair = Element::to_float2(pairs[i]);
        scaled[i / 4][2 * (i % 4)] = __fmul_rn(pair.x, factor);
        scaled[i / 4][2 * (i % 4) + 1] = __fmul_rn(pair.y, factor);
    }
    return {{encode_e2m1x8(scaled[0]), encode_e2m1x8(scaled[1])}, scale};
}

/// The scale word of this lane's group of 64 elements, the same in its four lanes.
__device__ __forceinline__ uint32_t nvfp4_scale_word(uint32_t scale) {
    uint32_t word = scale << (8 * (threadIdx.x % kGroupBlocks));
#pragma unroll
    for (int lanes = 1; lanes < kNvfp4GroupLanes; lanes *= 2) word |= __shfl_xor_sync(kFullWarp, word, lanes);
    return word;
}

}  // namespace refmoe
