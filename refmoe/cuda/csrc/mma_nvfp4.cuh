// The tensor-core instruction of SM12x for NVFP4 on both sides, D = A * B + C with
//
//      A  16 x 64  E2M1 (weights), one UE4M3 scale for every 16 elements of a row
//      B  64 x 8   E2M1 (tokens), one UE4M3 scale for every 16 elements of a column
//      C  16 x 8   FP32
//
// and the same arithmetic in software for chips that lack it. block_scaled_mma.cuh draws the fragments: a byte holds two
// elements, the even one in its low nibble. The scales of a row are the four bytes of a 32-bit word, the first 16
// elements' in the low one.
//
// Each group of 16 products is summed exactly; sum, times the significands of both scales, is a term whose exponent is
// that of the two scales. The four terms and C are then aligned once.
#pragma once

#include "block_scaled_mma.cuh"

namespace refmoe {

#if REFMOE_HAS_BLOCK_SCALED_MMA

__device__ __forceinline__ void mma_nvfp4(FragmentC& d, const FragmentA& a, const FragmentB& b, uint32_t scale_a,
                                          uint32_t scale_b) {
    constexpr int kByte = 0, kThread = 0;  // the selectors: all bytes, of the first lanes of a quad
    asm volatile(
        "mma.sync.aligned.m16n8k64.row.col.kind::mxf4nvf4.block_scale.scale_vec::4X.f32.e2m1.e2m1.f32.ue4m3 "
        "{%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, {%0, %1, %2, %3}, {%10}, {%12, %13}, {%11}, {%12, %13};"
        : "+f"(d.c[0]), "+f"(d.c[1]), "+f"(d.c[2]), "+f"(d.c[3])
        : "r"(a.a[0]), "r"(a.a[1]), "r"(a.a[2]), "r"(a.a[3]), "r"(b.b[0]), "r"(b.b[1]), "r"(scale_a), "r"(scale_b),
          "n"(kByte), "n"(kThread));
}

#else

namespace software {

/// Four groups of 16 products of E2M1, and the accumulator; scales are words of four UE4M3 bytes.
struct DotNvfp4 {
    static constexpr int kAlignmentBits = 35;
    static constexpr int kGroups = 4, kWordsPerGroup = kWordsPerRow / kGroups, kCodesPerWord = 8;
    static constexpr int kTermFraction = 1 + 1 + 3 + 3;  // bits below the point: two E2M1 values, two significands

    /// An E2M1 code in the low nibble, in halves.
    static __device__ __forceinline__ int halves(uint32_t code) {
        const int field = code >> 1 & 3, fraction = code & 1;
        const int magnitude = field ? (2 + fraction) << (field - 1) : fraction;
        return code & 8 ? -magnitude : magnitude;
    }

    /// A UE4M3 scale, its sign bit ignored; significand in eighths.
    static __device__ __forceinline__ Number decode_ue4m3(uint32_t byte) {
        const int field = byte >> 3 & 15, fraction = byte & 7;
        return {field ? 8 + fraction : fraction, max(field, 1) - 7};
    }

    static __device__ __forceinline__ bool is_nan_ue4m3(uint32_t byte) { return (byte & 0x7F) == 0x7F; }

    static __device__ __forceinline__ float of(const uint32_t (&a)[kWordsPerRow], const uint32_t (&b)[kWordsPerRow],
                                               const Accumulator& c, uint32_t scale_a, uint32_t scale_b) {
        bool nan = c.nan;
        int largest = c.zero ? kNoExponent : c.exponent;
        Number terms[kGroups];
#pragma unroll 1
        for (int group = 0; group < kGroups; ++group) {
            const uint32_t byte_a = scale_a >> (8 * group), byte_b = scale_b >> (8 * group);
            nan |= is_nan_ue4m3(byte_a) || is_nan_ue4m3(byte_b);
            int quarters = 0;
#pragma unroll 1
            for (int word = group * kWordsPerGroup; word < (group + 1) * kWordsPerGroup; ++word)
#pragma unroll
                for (int i = 0; i < kCodesPerWord; ++i)
                    quarters += halves(a[word] >> (4 * i)) * halves(b[word] >> (4 * i));
            const Number x = decode_ue4m3(byte_a), y = decode_ue4m3(byte_b);
            terms[group] = {quarters * x.significand * y.significand, x.exponent + y.exponent};
            if (terms[group].significand) largest = max(largest, terms[group].exponent);
        }
        if (nan) return __uint_as_float(kFloatNan);
        if (c.infinite) return __uint_as_float(kFloatInfinity | (c.significand < 0 ? 0x80000000u : 0));
        largest = max(largest, kExponentFloor);

        int64_t sum = shift_toward_zero(c.significand, c.exponent - kFloatFraction - (largest - kAlignmentBits));
#pragma unroll 1
        for (int group = 0; group < kGroups; ++group)
            sum += shift_toward_zero(terms[group].significand,
                                     terms[group].exponent - kTermFraction - (largest - kAlignmentBits));
        return to_float<kAlignmentBits>(sum, largest);
    }
};

}  // namespace software

__device__ __forceinline__ void mma_nvfp4(FragmentC& d, const FragmentA& a, const FragmentB& b, uint32_t scale_a,
                                          uint32_t scale_b) {
    d = software::mma<software::DotNvfp4>(d, a, b, scale_a, scale_b);
}

#endif

}  // namespace refmoe
