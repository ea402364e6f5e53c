// A row as MXFP8: E4M3 codes and one E8M0 scale for each block of 32 elements.
//
// A lane owns 16 consecutive elements: two 16-byte loads, one 16-byte store of codes. Two lanes share a block, eight
// lanes a K-group, whose four scale bytes they assemble into one word:
//
//      lane      0        1        2        3        4        5        6        7
//      elements  0..15    16..31   32..47   48..63   64..79   80..95   96..111  112..127
//                \___block 0____/  \___block 1____/  \___block 2____/  \___block 3____/
//      scales    \____________________________ one 32-bit word ______________________/
//
// Scale and codes are exact: the scale is decided on the bits of the block's largest magnitude, and the product
// x * 2^(127 - scale) is exact in FP32 (a result below 2^-126 may lose bits, but rounds to code 0 all the same), so
// the conversion to E4M3 is the only rounding.
#pragma once

#include "instructions.cuh"
#include "scale_layout.cuh"
#include "warp.cuh"

namespace refmoe {

constexpr int kLaneElements = 16;
constexpr int kBlockLanes = kBlockElements / kLaneElements;  // 2
constexpr int kGroupLanes = kGroupElements / kLaneElements;  // 8
constexpr int kMaxRowThreads = 512;                          // a wider row takes several rounds

/// How the scale is chosen from a block's largest magnitude (amax).
enum class ScaleMode {
    kRceil,  // smallest power of two >= amax / 448: no element saturates
    kFloor,  // 2^(floor(log2 amax) - 8), OCP MX 1.0: amax in (448, 512) * scale saturates
};

/// What happens to blocks that the OCP specification leaves open.
enum class EdgePolicy {
    kExact,       // Inf or NaN poisons its block (scale 0xFF, codes 0x7F); scale byte 0 stands for 2^-127
    kFlashinfer,  // subnormal inputs and blocks of scale byte 0 become signed zeros; NaN and Inf elements become +448
};

/// The codes of 16 elements in order, and their block's scale byte.
struct Encoded {
    uint4 codes;
    uint32_t scale;
};

constexpr uint32_t kMagnitudes = 0x7FFF7FFFu;  // two 16-bit floats without their signs
constexpr uint32_t kFloatMagnitude = 0x7FFFFFFFu;  // an FP32 without its sign
constexpr uint32_t kInfinityBits = 0x7F800000u;
constexpr uint32_t kNanBits = 0x7FFFFFFFu;
constexpr int kFloatMantissaBits = 23;
constexpr int kE4m3Emax = 8;                     // 448 = 1.75 * 2^8
constexpr uint32_t kRceilCarry = 0x001FFFFFu;    // carries into the exponent when the mantissa exceeds 1.75
constexpr float kE4m3Max = 448.0f;
constexpr uint32_t kScaleNan = 255, kScaleMax = 254;

struct Bf16 {
    /// The pair's elements as floats: a BF16 is the upper half of an FP32.
    static __device__ __forceinline__ float2 to_float2(uint32_t pair) {
        return {__uint_as_float(pair << 16), __uint_as_float(pair & 0xFFFF0000u)};
    }
    static __device__ __forceinline__ uint32_t float_bits(uint32_t bits) { return bits << 16; }
    static __device__ __forceinline__ uint32_t max_numbers(uint32_t a, uint32_t b) { return max_bf16x2(a, b); }
};

struct Fp16 {
    static __device__ __forceinline__ float2 to_float2(uint32_t pair) {
        return {cvt_f32_f16(static_cast<uint16_t>(pair)), cvt_f32_f16(static_cast<uint16_t>(pair >> 16))};
    }
    static __device__ __forceinline__ uint32_t float_bits(uint32_t bits) {
        return __float_as_uint(cvt_f32_f16(static_cast<uint16_t>(bits)));
    }
    static __device__ __forceinline__ uint32_t max_numbers(uint32_t a, uint32_t b) { return max_f16x2(a, b); }
};

/// The larger magnitude of each half. Under `exact` the bits are compared as integers, which ranks NaN above Inf above
/// every number: one maximum finds both. Under `flashinfer` a NaN takes no part unless there is nothing else.
template <class Element, EdgePolicy edge>
__device__ __forceinline__ uint32_t max_magnitudes(uint32_t a, uint32_t b) {
    if constexpr (edge == EdgePolicy::kExact) return max_u16x2(a, b);
    return Element::max_numbers(a, b);
}

/// FP32 bits of the largest magnitude of the block that this lane and its neighbour share.
template <class Element, EdgePolicy edge>
__device__ __forceinline__ uint32_t block_amax(const uint32_t (&pairs)[kLaneElements / 2]) {
    uint32_t amax = pairs[0] & kMagnitudes;
#pragma unroll
    for (int i = 1; i < kLaneElements / 2; ++i) amax = max_magnitudes<Element, edge>(amax, pairs[i] & kMagnitudes);
#pragma unroll
    for (int lanes = 1; lanes < kBlockLanes; lanes *= 2)
        amax = max_magnitudes<Element, edge>(amax, __shfl_xor_sync(kFullWarp, amax, lanes));
    amax = max_magnitudes<Element, edge>(amax, amax >> 16);
    return Element::float_bits(amax & 0xFFFFu);
}

/// The scale byte of a block and the factor 2^(127 - scale) that its elements are multiplied by.
struct BlockScale {
    uint32_t byte;
    float factor;
};

template <ScaleMode mode, EdgePolicy edge>
__device__ __forceinline__ BlockScale block_scale(uint32_t amax_bits) {
    constexpr uint32_t kCarry = mode == ScaleMode::kRceil ? kRceilCarry : 0;
    const int exponent = static_cast<int>((amax_bits + kCarry) >> kFloatMantissaBits);
    const uint32_t byte = max(exponent - kE4m3Emax, 0);
    const float factor = __uint_as_float((kScaleMax - byte) << kFloatMantissaBits);
    if constexpr (edge == EdgePolicy::kExact) {
        // A NaN factor makes every code of a poisoned block NaN.
        if (amax_bits >= kInfinityBits) return {kScaleNan, __uint_as_float(kNanBits)};
    } else {
        // A factor of 0 makes numbers signed zeros and an Inf a NaN, which encode_pair() turns into +448.
        if (amax_bits > kInfinityBits) return {kScaleNan, 0.0f};
        if (amax_bits == kInfinityBits) return {kScaleMax, 0.0f};
        if (byte == 0) return {0, 0.0f};
    }
    return {byte, factor};
}

/// Two codes of a block, the first element's in the low byte.
template <EdgePolicy edge>
__device__ __forceinline__ uint32_t encode_pair(float2 elements, float factor) {
    if constexpr (edge == EdgePolicy::kExact)
        return cvt_rn_satfinite_e4m3x2(__fmul_rn(elements.y, factor), __fmul_rn(elements.x, factor));
    // fminf returns the number when the other operand is NaN.
    return cvt_rn_satfinite_e4m3x2(fminf(mul_rn_ftz(elements.y, factor), kE4m3Max),
                                   fminf(mul_rn_ftz(elements.x, factor), kE4m3Max));
}

/// Encodes the 16 elements of this lane. All lanes of the warp take part; lanes past the end of a row pass zeros.
template <class Element, ScaleMode mode, EdgePolicy edge>
__device__ __forceinline__ Encoded encode(uint4 first, uint4 second) {
    const uint32_t pairs[kLaneElements / 2] = {first.x,  first.y,  first.z,  first.w,
                                               second.x, second.y, second.z, second.w};
    const BlockScale scale = block_scale<mode, edge>(block_amax<Element, edge>(pairs));
    uint32_t codes[kLaneElements / 4];
#pragma unroll
    for (int i = 0; i < kLaneElements / 4; ++i) {
        const uint32_t low = encode_pair<edge>(Element::to_float2(pairs[2 * i]), scale.factor);
        const uint32_t high = encode_pair<edge>(Element::to_float2(pairs[2 * i + 1]), scale.factor);
        codes[i] = low | high << 16;
    }
    return {{codes[0], codes[1], codes[2], codes[3]}, scale.byte};
}

/// The larger magnitude of two FP32 bit patterns without their signs; see max_magnitudes().
template <EdgePolicy edge>
__device__ __forceinline__ uint32_t max_float_magnitudes(uint32_t a, uint32_t b) {
    if constexpr (edge == EdgePolicy::kExact) return max(a, b);
    return __float_as_uint(fmaxf(__uint_as_float(a), __uint_as_float(b)));
}

/// Encodes 16 FP32 elements of this lane, which have been rounded to no 16-bit format. All lanes of the warp take part;
/// lanes past the end of a row pass zeros.
template <ScaleMode mode, EdgePolicy edge>
__device__ __forceinline__ Encoded encode(const float (&elements)[kLaneElements]) {
    // It starts with an element, not with 0: fmaxf drops a NaN beside any number, and a block may hold NaNs alone.
    uint32_t amax = __float_as_uint(elements[0]) & kFloatMagnitude;
#pragma unroll
    for (int i = 1; i < kLaneElements; ++i)
        amax = max_float_magnitudes<edge>(amax, __float_as_uint(elements[i]) & kFloatMagnitude);
#pragma unroll
    for (int lanes = 1; lanes < kBlockLanes; lanes *= 2)
        amax = max_float_magnitudes<edge>(amax, __shfl_xor_sync(kFullWarp, amax, lanes));
    const BlockScale scale = block_scale<mode, edge>(amax);
    uint32_t codes[kLaneElements / 4];
#pragma unroll
    for (int i = 0; i < kLaneElements / 4; ++i) {
        const uint32_t low = encode_pair<edge>({elements[4 * i], elements[4 * i + 1]}, scale.factor);
        const uint32_t high = encode_pair<edge>({elements[4 * i + 2], elements[4 * i + 3]}, scale.factor);
        codes[i] = low | high << 16;
    }
    return {{codes[0], codes[1], codes[2], codes[3]}, scale.byte};
}

/// The scale word of this lane's K-group, the same in its eight lanes.
__device__ __forceinline__ uint32_t group_scale_word(uint32_t scale) {
    const uint32_t block = threadIdx.x / kBlockLanes % kGroupBlocks;
    uint32_t word = scale << (8 * block);
#pragma unroll
    for (int lanes = kBlockLanes; lanes < kGroupLanes; lanes *= 2) word |= __shfl_xor_sync(kFullWarp, word, lanes);
    return word;
}

}  // namespace refmoe
