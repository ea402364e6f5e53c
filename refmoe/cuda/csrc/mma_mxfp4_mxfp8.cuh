// The tensor-core instruction of SM12x for MXFP4 weights and MXFP8 activations, D = A * B + C with
//
//      A  16 x 32  E2M1 (weights), one E8M0 scale a row; a byte of A holds its code in bits 2..5
//      B  32 x 8   E4M3 (tokens), one E8M0 scale a column
//      C  16 x 8   FP32
//
// and the same arithmetic in software for chips that lack it. block_scaled_mma.cuh draws the fragments. A scale is one
// byte, chosen by `byte`, of a 32-bit word that holds four consecutive K-blocks.
//
// The order of k inside a block of 32 does not matter as long as A and B agree, because all products of a block are
// summed exactly after one common alignment. The kernel makes use of that.
#pragma once

#include "block_scaled_mma.cuh"

namespace refmoe {

#if REFMOE_HAS_BLOCK_SCALED_MMA

template <int byte>
__device__ __forceinline__ void mma_mxfp4_mxfp8(FragmentC& d, const FragmentA& a, const FragmentB& b, uint32_t scale_a,
                                                uint32_t scale_b) {
    asm volatile(
        "mma.sync.aligned.kind::mxf8f6f4.block_scale.scale_vec::1X.m16n8k32.row.col.f32.e2m1.e4m3.f32.ue8m0 "
        "{%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, {%0, %1, %2, %3}, {%10}, {%12, %13}, {%11}, {%12, %13};"
        : "+f"(d.c[0]), "+f"(d.c[1]), "+f"(d.c[2]), "+f"(d.c[3])
        : "r"(a.a[0]), "r"(a.a[1]), "r"(a.a[2]), "r"(a.a[3]), "r"(b.b[0]), "r"(b.b[1]), "r"(scale_a), "r"(scale_b),
          "n"(byte), "n"(0));
}

#else

namespace software {

/// 32 products of an E2M1 row and an E4M3 column, and the accumulator; scales are one byte each.
struct DotE2m1E4m3 {
    static constexpr int kAlignmentBits = 25;
    static constexpr int kScaleBias = 127, kScaleNan = 0xFF;
    static constexpr int kProductFraction = 1 + 3;  // bits below the point of a product of significands

    /// An E2M1 code in bits 2..5 of a byte; significand in halves.
    static __device__ __forceinline__ Number decode_e2m1(uint32_t byte) {
        const int field = byte >> 3 & 3, fraction = byte >> 2 & 1;
        const int significand = field ? 2 + fraction : fraction;
        return {byte & 0x20 ? -significand : significand, max(field, 1) - 1};
    }

    /// An E4M3 code; significand in eighths.
    static __device__ __forceinline__ Number decode_e4m3(uint32_t byte) {
        const int field = byte >> 3 & 15, fraction = byte & 7;
        const int significand = field ? 8 + fraction : fraction;
        return {byte & 0x80 ? -significand : significand, max(field, 1) - 7};
    }

    static __device__ __forceinline__ bool is_nan_e4m3(uint32_t byte) { return (byte & 0x7F) == 0x7F; }

    static __device__ __forceinline__ float of(const uint32_t (&a)[kWordsPerRow], const uint32_t (&b)[kWordsPerRow],
                                               const Accumulator& c, uint32_t scale_a, uint32_t scale_b) {
        bool nan = scale_a == kScaleNan || scale_b == kScaleNan || c.nan;
        const int scale = static_cast<int>(scale_a + scale_b) - 2 * kScaleBias;
        int largest = c.zero ? kNoExponent : c.exponent;
#pragma unroll 1
        for (int i = 0; i < kWordsPerRow * kBytesPerWord; ++i) {
            const uint32_t shift = i % kBytesPerWord * 8;
            const Number x = decode_e2m1(a[i / kBytesPerWord] >> shift), y = decode_e4m3(b[i / kBytesPerWord] >> shift);
            nan |= is_nan_e4m3(b[i / kBytesPerWord] >> shift);
            if (x.significand && y.significand) largest = max(largest, x.exponent + y.exponent + scale);
        }
        if (nan) return __uint_as_float(kFloatNan);
        if (c.infinite) return __uint_as_float(kFloatInfinity | (c.significand < 0 ? 0x80000000u : 0));
        largest = max(largest, kExponentFloor);

        int64_t sum = shift_toward_zero(c.significand, c.exponent - kFloatFraction - (largest - kAlignmentBits));
#pragma unroll 1
        for (int i = 0; i < kWordsPerRow * kBytesPerWord; ++i) {
            const uint32_t shift = i % kBytesPerWord * 8;
            const Number x = decode_e2m1(a[i / kBytesPerWord] >> shift), y = decode_e4m3(b[i / kBytesPerWord] >> shift);
            sum += shift_toward_zero(x.significand * y.significand,
                                     x.exponent + y.exponent + scale - kProductFraction - (largest - kAlignmentBits));
        }
        return to_float<kAlignmentBits>(sum, largest);
    }
};

}  // namespace software

template <int byte>
__device__ __forceinline__ void mma_mxfp4_mxfp8(FragmentC& d, const FragmentA& a, const FragmentB& b, uint32_t scale_a,
                                                uint32_t scale_b) {
    d = software::mma<software::DotE2m1E4m3>(d, a, b, scale_a >> (8 * byte) & 0xFF, scale_b >> (8 * byte) & 0xFF);
}

#endif

}  // namespace refmoe
