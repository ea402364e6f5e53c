// What a token's row becomes on its way to its experts, for each output of expand but MXFP8:
//
//      Nvfp4Rows        packed E2M1, a UE4M3 scale for each block of 16, under a global scale that is given
//      ExpertNvfp4Rows  the same under a global scale of each expert
//      TensorFp8Rows    E4M3 under one factor for the tensor, which is given
//      TokenFp8Rows     E4M3 under one factor for each token, from its largest magnitude
//      CopiedRows       the bytes as they are
//
// A row type says what a lane reads (Chunk), what it writes (Codes), how many lanes look up destinations together
// (kGroupLanes), and which scales go out beside the codes. Rows of BF16 and FP16 may first be multiplied channel by
// channel (AWQ); the product is rounded to the row's own type, as a multiplication in PyTorch would.
#pragma once

#include "nvfp4_encode.cuh"

namespace refmoe {

enum class Scales { kNone, kOfBlocks, kOfRows };

struct NoTokenScale {};
struct NoExpertScale {};

/// What a lane writes of a row: its codes, and a scale for each block, for each row, or none. Rows whose tokens or
/// experts have scales of their own say so in place of `token_scale` and `expert_scale`.
template <class CodesType, class ScaleType, class EncodedType, Scales scales, int group_lanes>
struct RowOutput {
    using Codes = CodesType;
    using Scale = ScaleType;
    using Encoded = EncodedType;
    using TokenScale = NoTokenScale;
    using ExpertScale = NoExpertScale;
    static constexpr Scales kScales = scales;
    static constexpr bool kByExpert = false;  // whether the codes depend on the expert
    static constexpr int kGroupLanes = group_lanes;

    static __device__ __forceinline__ TokenScale token_scale(int, int) { return {}; }
    static __device__ __forceinline__ ExpertScale expert_scale(int) { return {}; }
};

/// What rows have that become MXFP8.
struct Mxfp8Output : RowOutput<uint4, uint8_t, Encoded, Scales::kOfBlocks, kGroupLanes> {
    static __device__ __forceinline__ uint32_t scale_word(uint32_t scale) { return group_scale_word(scale); }
};

/// What rows have that become NVFP4.
struct Nvfp4Output : RowOutput<uint2, uint8_t, Nvfp4Encoded, Scales::kOfBlocks, kNvfp4GroupLanes> {
    static __device__ __forceinline__ uint32_t scale_word(uint32_t scale) { return nvfp4_scale_word(scale); }
};

struct Fp8Encoded {
    uint4 codes;
};

/// What rows have whose codes are 16 bytes a lane.
template <Scales scales>
using BytesOutput = RowOutput<uint4, float, Fp8Encoded, scales, kGroupLanes>;

/// Two floats rounded to nearest even as the pair's type.
template <class Element>
__device__ __forceinline__ uint32_t rounded_pair(float2 values);

template <>
__device__ __forceinline__ uint32_t rounded_pair<Bf16>(float2 values) {
    return cvt_rn_bf16x2(values.y, values.x);
}

template <>
__device__ __forceinline__ uint32_t rounded_pair<Fp16>(float2 values) {
    return cvt_rn_f16x2(values.y, values.x);
}

/// 16 elements of a lane, as pairs.
struct LaneElements {
    uint32_t pairs[kLaneElements / 2];
};

/// Rows of BF16 or FP16. What a lane reads is two words of 16 bytes, and as many of the channels' factors.
template <class Element, bool prescaled>
struct Elements {
    const uint4* elements;  // [tokens, K]
    const uint4* prescale;  // [K]; unused unless prescaled

    struct Chunk {
        uint4 first, second, first_factors, second_factors;
    };

    __device__ __forceinline__ Chunk fetch(int token, int lane, int lanes) const {
        if (lane >= lanes) return {};
        const int64_t chunk = 2 * (static_cast<int64_t>(token) * lanes + lane);
        Chunk read{__ldg(elements + chunk), __ldg(elements + chunk + 1)};
        if constexpr (prescaled) {
            read.first_factors = __ldg(prescale + 2 * lane);
            read.second_factors = __ldg(prescale + 2 * lane + 1);
        }
        return read;
    }

    static __device__ __forceinline__ LaneElements pairs(const Chunk& chunk) {
        LaneElements lane{{chunk.first.x, chunk.first.y, chunk.first.z, chunk.first.w, chunk.second.x, chunk.second.y,
                           chunk.second.z, chunk.second.w}};
        if constexpr (prescaled) {
            const uint32_t factors[kLaneElements / 2] = {
                chunk.first_factors.x,  chunk.first_factors.y,  chunk.first_factors.z,  chunk.first_factors.w,
                chunk.second_factors.x, chunk.second_factors.y, chunk.second_factors.z, chunk.second_factors.w};
#pragma unroll
            for (int i = 0; i < kLaneElements / 2; ++i) {
                const float2 value = Element::to_float2(lane.pairs[i]), factor = Element::to_float2(factors[i]);
                lane.pairs[i] = rounded_pair<Element>({__fmul_rn(value.x, factor.x), __fmul_rn(value.y, factor.y)});
            }
        }
        return lane;
    }
};

/// NVFP4 under one global encode scale.
template <class Element, bool prescaled>
struct Nvfp4Rows : Elements<Element, prescaled>, Nvfp4Output {
    GlobalScale global;

    static __device__ __forceinline__ Nvfp4Rows of(const uint4* x, const float* encode_scale, const uint4* prescale) {
        return {{x, prescale}, {}, GlobalScale::of(__ldg(encode_scale))};
    }

    __device__ __forceinline__ Nvfp4Encoded encode(const typename Elements<Element, prescaled>::Chunk& chunk,
                                                   NoTokenScale) const {
        return encode_nvfp4<Element>(this->pairs(chunk).pairs, global);
    }
};

/// NVFP4 under a global encode scale for each expert of this rank, so that a token is encoded once for each choice.
template <class Element, bool prescaled>
struct ExpertNvfp4Rows : Elements<Element, prescaled>, Nvfp4Output {
    using ExpertScale = GlobalScale;
    static constexpr bool kByExpert = true;

    const float* encode_scales;  // [experts]

    static __device__ __forceinline__ ExpertNvfp4Rows of(const uint4* x, const float* encode_scales,
                                                         const uint4* prescale) {
        return {{x, prescale}, {}, encode_scales};
    }

    __device__ __forceinline__ GlobalScale expert_scale(int expert) const {
        return GlobalScale::of(__ldg(encode_scales + expert));
    }

    /// Under the scale that lane `rank` of the warp holds.
    __device__ __forceinline__ Nvfp4Encoded encode(const typename Elements<Element, prescaled>::Chunk& chunk,
                                                   const GlobalScale& mine, int rank) const {
        const GlobalScale global{__shfl_sync(kFullWarp, mine.sixth, rank), __shfl_sync(kFullWarp, mine.decode, rank)};
        return encode_nvfp4<Element>(this->pairs(chunk).pairs, global);
    }
};

/// Codes of 16 elements times a factor; a NaN factor makes all of them NaN.
template <class Element>
__device__ __forceinline__ Fp8Encoded encode_fp8(const LaneElements& lane, float factor) {
    uint32_t codes[kLaneElements / 4];
#pragma unroll
    for (int i = 0; i < kLaneElements / 4; ++i) {
        const float2 low = Element::to_float2(lane.pairs[2 * i]), high = Element::to_float2(lane.pairs[2 * i + 1]);
        codes[i] = cvt_rn_satfinite_e4m3x2(__fmul_rn(low.y, factor), __fmul_rn(low.x, factor)) |
                   cvt_rn_satfinite_e4m3x2(__fmul_rn(high.y, factor), __fmul_rn(high.x, factor)) << 16;
    }
    return {{codes[0], codes[1], codes[2], codes[3]}};
}

template <class Element, bool prescaled>
struct TensorFp8Rows : Elements<Element, prescaled>, BytesOutput<Scales::kNone> {
    float factor;

    static __device__ __forceinline__ TensorFp8Rows of(const uint4* x, const float* encode_scale,
                                                       const uint4* prescale) {
        return {{x, prescale}, {}, __ldg(encode_scale)};
    }

    __device__ __forceinline__ Fp8Encoded encode(const typename Elements<Element, prescaled>::Chunk& chunk,
                                                 NoTokenScale) const {
        return encode_fp8<Element>(this->pairs(chunk), factor);
    }
};

/// A token's factor into E4M3 and the one back, which the GEMM multiplies by.
struct Fp8TokenScale {
    float encode, decode;
};

template <class Element, bool prescaled>
struct TokenFp8Rows : Elements<Element, prescaled>, BytesOutput<Scales::kOfRows> {
    using TokenScale = Fp8TokenScale;

    static __device__ __forceinline__ TokenFp8Rows of(const uint4* x, const float*, const uint4* prescale) {
        return {{x, prescale}, {}};
    }

    /// The factor of a whole row: the CTA reads it a first time, and the first warps' maxima meet in shared memory. The
    /// second reading finds the row in the L1 cache.
    __device__ __forceinline__ TokenScale token_scale(int token, int lanes) const {
        __shared__ uint32_t warp_amax[kMaxRowThreads / kWarpLanes];
        uint32_t amax = 0;
        for (int lane = threadIdx.x; lane < lanes; lane += blockDim.x)
            amax = max(amax, lane_amax<Element>(this->pairs(this->fetch(token, lane, lanes)).pairs));
        amax = __reduce_max_sync(kFullWarp, amax);
        __syncthreads();  // every warp has read the maxima of the token before
        if (threadIdx.x % kWarpLanes == 0) warp_amax[threadIdx.x / kWarpLanes] = amax;
        __syncthreads();
        for (int warp = 0; warp < blockDim.x / kWarpLanes; ++warp) amax = max(amax, warp_amax[warp]);
        if (amax >= kInfinityBits) return {__uint_as_float(kNanBits), __uint_as_float(kNanBits)};
        const float encode = amax == 0 ? 1.0f : fminf(__fdiv_rn(kE4m3Max, __uint_as_float(amax)), kLargestFloat);
        return {encode, __fdiv_rn(1.0f, encode)};
    }

    __device__ __forceinline__ Fp8Encoded encode(const typename Elements<Element, prescaled>::Chunk& chunk,
                                                 Fp8TokenScale scale) const {
        return encode_fp8<Element>(this->pairs(chunk), scale.encode);
    }
};

struct CopiedRows : BytesOutput<Scales::kNone> {
    using Chunk = Fp8Encoded;

    const uint4* bytes;  // [tokens, lanes]

    static __device__ __forceinline__ CopiedRows of(const uint4* x, const float*, const uint4*) { return {{}, x}; }

    __device__ __forceinline__ Chunk fetch(int token, int lane, int lanes) const {
        if (lane >= lanes) return {};
        return {__ldg(bytes + static_cast<int64_t>(token) * lanes + lane)};
    }

    static __device__ __forceinline__ Fp8Encoded encode(const Chunk& chunk, NoTokenScale) { return chunk; }
};

}  // namespace refmoe
