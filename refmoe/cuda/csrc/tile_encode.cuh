// Block FP8 of one tile whose elements are in registers: the scale of its largest magnitude, and the codes.
//
//      amax = the largest magnitude of the tile           deepgemm: at least 1e-4
//      sf   = amax / 448                                  exact: at least 2^-126; ue8m0: up to a power of two
//      code = E4M3(x * (1 / sf))
//
// Every operation is one FP32 operation rounded to nearest, in DeepGEMM's order; none is fused. A lane owns 16
// consecutive elements of a row, so eight lanes share 128 columns.
#pragma once

#include "mxfp8_encode.cuh"

namespace refmoe {

/// What becomes of tiles that are tiny or not finite.
enum class TilePolicy {
    kDeepgemm,  // amax is at least 1e-4; what is not finite goes through the same arithmetic
    kExact,     // the scale is at least 2^-126; NaN or Inf poisons its tile: scale and codes NaN
};

enum class TileScale {
    kFp32,
    kUe8m0,  // rounded up to a power of two, stored as FP32
};

constexpr int kTileColumns = 128;
constexpr int kTileLanes = kTileColumns / kLaneElements;      // 8: across a tile
constexpr uint32_t kDeepgemmFloorBits = 0x38D1B717u;          // FP32(1e-4)
constexpr uint32_t kLeastScaleBits = 0x00800000u;             // 2^-126, the least normal number
constexpr uint32_t kFloatMantissa = 0x007FFFFFu;
constexpr uint32_t kLeastField = 1, kLargestField = 254;      // exponents of what UE8M0 scales are clamped to

/// FP32 elements, beside Bf16 and Fp16.
struct Fp32 {};

/// 16 elements as FP32.
struct Elements {
    float values[kLaneElements];
};

template <class Element>
__device__ __forceinline__ Elements load_elements(const uint4* __restrict__ x, int64_t lane);

/// From two pieces of eight 16-bit elements.
template <class Element>
__device__ __forceinline__ Elements load_halves(const uint4* __restrict__ x, int64_t lane) {
    const uint4 first = __ldg(x + 2 * lane), second = __ldg(x + 2 * lane + 1);
    const uint32_t pairs[kLaneElements / 2] = {first.x,  first.y,  first.z,  first.w,
                                               second.x, second.y, second.z, second.w};
    Elements loaded;
#pragma unroll
    for (int i = 0; i < kLaneElements / 2; ++i) {
        const float2 pair = Element::to_float2(pairs[i]);
        loaded.values[2 * i] = pair.x;
        loaded.values[2 * i + 1] = pair.y;
    }
    return loaded;
}

template <>
__device__ __forceinline__ Elements load_elements<Bf16>(const uint4* __restrict__ x, int64_t lane) {
    return load_halves<Bf16>(x, lane);
}

template <>
__device__ __forceinline__ Elements load_elements<Fp16>(const uint4* __restrict__ x, int64_t lane) {
    return load_halves<Fp16>(x, lane);
}

/// From four pieces of four FP32 elements.
template <>
__device__ __forceinline__ Elements load_elements<Fp32>(const uint4* __restrict__ x, int64_t lane) {
    Elements loaded;
#pragma unroll
    for (int i = 0; i < kLaneElements / 4; ++i) {
        const uint4 piece = __ldg(x + kLaneElements / 4 * lane + i);
        loaded.values[4 * i] = __uint_as_float(piece.x);
        loaded.values[4 * i + 1] = __uint_as_float(piece.y);
        loaded.values[4 * i + 2] = __uint_as_float(piece.z);
        loaded.values[4 * i + 3] = __uint_as_float(piece.w);
    }
    return loaded;
}

/// Bits of the largest magnitude. As integers, NaN ranks above Inf above every number.
__device__ __forceinline__ uint32_t largest_magnitude(const Elements& elements) {
    uint32_t amax = 0;
#pragma unroll
    for (int i = 0; i < kLaneElements; ++i) amax = max(amax, __float_as_uint(elements.values[i]) & kFloatMagnitude);
    return amax;
}

/// The largest of a group of neighbouring lanes, a power of two of them. All lanes of the warp take part.
template <int lanes>
__device__ __forceinline__ uint32_t max_of_lanes(uint32_t value) {
#pragma unroll
    for (int step = 1; step < lanes; step *= 2) value = max(value, __shfl_xor_sync(kFullWarp, value, step));
    return value;
}

/// The least power of two that is not below a positive number, from 2^-126 to 2^127; of Inf and NaN 2^127.
__device__ __forceinline__ uint32_t power_of_two_above(uint32_t bits) {
    const uint32_t field = (bits + kFloatMantissa) >> kFloatMantissaBits;
    return min(max(field, kLeastField), kLargestField) << kFloatMantissaBits;
}

/// The scale of a tile with this largest magnitude.
template <TilePolicy policy, TileScale scale>
__device__ __forceinline__ float tile_scale(uint32_t amax) {
    if constexpr (policy == TilePolicy::kExact) {
        if (amax >= kInfinityBits) return __uint_as_float(kNanBits);
    } else {
        amax = max(amax, kDeepgemmFloorBits);
    }
    uint32_t bits = __float_as_uint(__fdiv_rn(__uint_as_float(amax), kE4m3Max));
    if constexpr (policy == TilePolicy::kExact) bits = max(bits, kLeastScaleBits);
    if constexpr (scale == TileScale::kUe8m0) bits = power_of_two_above(bits);
    return __uint_as_float(bits);
}

/// The codes of 16 elements of a tile, `inverse` being 1 / sf; a NaN factor makes every one a NaN.
__device__ __forceinline__ uint4 encode_elements(const Elements& elements, float inverse) {
    uint32_t codes[kLaneElements / 4];
#pragma unroll
    for (int i = 0; i < kLaneElements / 4; ++i) {
        const float* four = elements.values + 4 * i;
        const uint32_t low = encode_pair<EdgePolicy::kExact>({four[0], four[1]}, inverse);
        const uint32_t high = encode_pair<EdgePolicy::kExact>({four[2], four[3]}, inverse);
        codes[i] = low | high << 16;
    }
    return {codes[0], codes[1], codes[2], codes[3]};
}

}  // namespace refmoe
