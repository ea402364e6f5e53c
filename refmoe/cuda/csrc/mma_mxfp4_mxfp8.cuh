// The tensor-core instruction of SM12x for MXFP4 weights and MXFP8 activations, D = A * B + C with
//
//      A  16 x 32  E2M1 (weights), one E8M0 scale a row
//      B  32 x 8   E4M3 (tokens), one E8M0 scale a column
//      C  16 x 8   FP32
//
// and the same arithmetic in software for chips that lack it. Fragments, with g = lane / 4 and t = lane % 4:
//
//      A  a[0], a[1]: row g, g + 8, k = 4t .. 4t+3       B  b[0]: column g, k = 4t .. 4t+3
//         a[2], a[3]: row g, g + 8, k = 16+4t .. 16+4t+3    b[1]: column g, k = 16+4t .. 16+4t+3
//      C  c[0], c[1]: row g,     columns 2t, 2t+1        each byte of A holds its E2M1 code in bits 2..5
//         c[2], c[3]: row g + 8, columns 2t, 2t+1
//      scales of A: row g in lane t = 0, row g + 8 in lane t = 1 of the quad; of B: column g in lane t = 0.
//      Each is one byte, chosen by `byte`, of a 32-bit word that holds four consecutive K-blocks.
//
// The order of k inside a block of 32 does not matter as long as A and B agree, because all products of a block are
// summed exactly after one common alignment. The kernel makes use of that.
#pragma once

#include <cstdint>

#if defined(__CUDA_ARCH_SPECIFIC__) && (__CUDA_ARCH_SPECIFIC__ == 1200 || __CUDA_ARCH_SPECIFIC__ == 1210)
#define REFMOE_HAS_BLOCK_SCALED_MMA 1
#else
#define REFMOE_HAS_BLOCK_SCALED_MMA 0
#endif

namespace refmoe {

struct FragmentA {
    uint32_t a[4];
};
struct FragmentB {
    uint32_t b[2];
};
struct FragmentC {
    float c[4];
};

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

// One output of the instruction: 32 products and the accumulator, aligned to the largest exponent among those that are
// not zero, cut toward zero to multiples of 2^(exponent - 25), summed exactly, and cut toward zero to FP32.
constexpr int kAlignmentBits = 25;
constexpr int kExponentFloor = -133;
constexpr int kNoExponent = -100000;
constexpr int kFloatBias = 127, kFloatFraction = 23, kFloatEmin = -126, kFloatEmax = 127;
constexpr uint32_t kFloatNan = 0x7FFFFFFFu, kFloatInfinity = 0x7F800000u;
constexpr int kScaleBias = 127, kScaleNan = 0xFF;
constexpr int kWordsPerRow = 8, kBytesPerWord = 4;

/// sign * significand * 2^exponent; a subnormal keeps the least exponent, so that zero is significand 0.
struct Number {
    int significand, exponent;
};

/// An E2M1 code in bits 2..5 of a byte; significand in halves.
__device__ __forceinline__ Number decode_e2m1(uint32_t byte) {
    const int field = byte >> 3 & 3, fraction = byte >> 2 & 1;
    const int significand = field ? 2 + fraction : fraction;
    return {byte & 0x20 ? -significand : significand, max(field, 1) - 1};
}

/// An E4M3 code; significand in eighths.
__device__ __forceinline__ Number decode_e4m3(uint32_t byte) {
    const int field = byte >> 3 & 15, fraction = byte & 7;
    const int significand = field ? 8 + fraction : fraction;
    return {byte & 0x80 ? -significand : significand, max(field, 1) - 7};
}
constexpr int kProductFraction = 1 + 3;  // bits below the point of a product of significands

__device__ __forceinline__ bool is_nan_e4m3(uint32_t byte) { return (byte & 0x7F) == 0x7F; }

/// value * 2^shift cut toward zero.
__device__ __forceinline__ int64_t shift_toward_zero(int64_t value, int shift) {
    if (shift >= 0) return value << shift;
    const int64_t magnitude = llabs(value) >> min(-shift, 63);
    return value < 0 ? -magnitude : magnitude;
}

/// sum * 2^(exponent - 25) cut toward zero to FP32; a zero is +0.
__device__ __forceinline__ float to_float(int64_t sum, int exponent) {
    if (sum == 0) return 0.0f;
    const uint64_t magnitude = static_cast<uint64_t>(llabs(sum));
    const int lead = 63 - __clzll(magnitude);
    const int result_exponent = max(lead + exponent - kAlignmentBits, kFloatEmin);
    if (result_exponent > kFloatEmax)
        return __uint_as_float(kFloatInfinity | (sum < 0 ? 0x80000000u : 0));
    // The unit of the last place of the result, counted in units of the sum.
    const int cut = result_exponent - kFloatFraction - (exponent - kAlignmentBits);
    const uint32_t fraction = static_cast<uint32_t>(cut >= 0 ? magnitude >> min(cut, 63) : magnitude << -cut);
    const bool normal = fraction >> kFloatFraction;
    const uint32_t field = normal ? result_exponent + kFloatBias : 0;
    const uint32_t bits = field << kFloatFraction | (fraction & ((1u << kFloatFraction) - 1));
    return __uint_as_float(bits | (sum < 0 ? 0x80000000u : 0));
}

__device__ __forceinline__ float dot(const uint32_t (&a)[kWordsPerRow], const uint32_t (&b)[kWordsPerRow], float c,
                                     uint32_t scale_a, uint32_t scale_b) {
    const uint32_t c_bits = __float_as_uint(c);
    const uint32_t c_magnitude = c_bits & 0x7FFFFFFFu;
    bool nan = scale_a == kScaleNan || scale_b == kScaleNan || c_magnitude > kFloatInfinity;
    const int scale = static_cast<int>(scale_a + scale_b) - 2 * kScaleBias;

    const int c_exponent = max(static_cast<int>(c_magnitude >> kFloatFraction), 1) - kFloatBias;
    int largest = c_magnitude ? c_exponent : kNoExponent;
#pragma unroll 1
    for (int i = 0; i < kWordsPerRow * kBytesPerWord; ++i) {
        const uint32_t shift = i % kBytesPerWord * 8;
        const Number x = decode_e2m1(a[i / kBytesPerWord] >> shift), y = decode_e4m3(b[i / kBytesPerWord] >> shift);
        nan |= is_nan_e4m3(b[i / kBytesPerWord] >> shift);
        if (x.significand && y.significand) largest = max(largest, x.exponent + y.exponent + scale);
    }
    if (nan) return __uint_as_float(kFloatNan);
    if (c_magnitude == kFloatInfinity) return c;
    largest = max(largest, kExponentFloor);

    const int64_t c_significand = c_magnitude >> kFloatFraction ? (c_magnitude & 0x7FFFFFu) | 0x800000u : c_magnitude;
    int64_t sum = shift_toward_zero(c_bits >> 31 ? -c_significand : c_significand,
                                    c_exponent - kFloatFraction - (largest - kAlignmentBits));
#pragma unroll 1
    for (int i = 0; i < kWordsPerRow * kBytesPerWord; ++i) {
        const uint32_t shift = i % kBytesPerWord * 8;
        const Number x = decode_e2m1(a[i / kBytesPerWord] >> shift), y = decode_e4m3(b[i / kBytesPerWord] >> shift);
        sum += shift_toward_zero(x.significand * y.significand,
                                 x.exponent + y.exponent + scale - kProductFraction - (largest - kAlignmentBits));
    }
    return to_float(sum, largest);
}

/// The instruction for one warp. Not inlined: a kernel unrolls hundreds of them.
__device__ __noinline__ FragmentC mma(FragmentC d, FragmentA a, FragmentB b, uint32_t scale_a, uint32_t scale_b) {
    constexpr unsigned kAllLanes = 0xFFFFFFFFu;
    const int lane = threadIdx.x % 32, quad = lane & ~3, column = lane % 4 * 2;
    uint32_t rows[2][kWordsPerRow], columns[2][kWordsPerRow];
#pragma unroll
    for (int half = 0; half < 2; ++half) {
#pragma unroll
        for (int word = 0; word < kWordsPerRow; ++word) {
            const int t = word / 2, part = word % 2;
            rows[half][word] = __shfl_sync(kAllLanes, a.a[2 * part + half], quad + t);
            columns[half][word] = __shfl_sync(kAllLanes, b.b[part], (column + half) * 4 + t);
        }
    }
#pragma unroll
    for (int i = 0; i < 4; ++i) {
        const uint32_t row_scale = __shfl_sync(kAllLanes, scale_a, quad + i / 2);
        const uint32_t column_scale = __shfl_sync(kAllLanes, scale_b, (column + i % 2) * 4);
        d.c[i] = dot(rows[i / 2], columns[i % 2], d.c[i], row_scale, column_scale);
    }
    return d;
}

}  // namespace software

template <int byte>
__device__ __forceinline__ void mma_mxfp4_mxfp8(FragmentC& d, const FragmentA& a, const FragmentB& b, uint32_t scale_a,
                                                uint32_t scale_b) {
    d = software::mma(d, a, b, scale_a >> (8 * byte) & 0xFF, scale_b >> (8 * byte) & 0xFF);
}

#endif

}  // namespace refmoe
