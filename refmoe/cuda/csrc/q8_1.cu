// Quantizes a matrix of BF16, FP16 or FP32 to Q8_1: int8 codes, FP16 scales and FP16 sums, each in a buffer of its own.
//
// The matrix is one run of blocks, since K is a multiple of 32: no lane needs to know its row. Nothing of a chain of
// launches writes the matrix, so that only the stores wait for the launches in front of this one.
#include "dependent_launch.cuh"
#include "instructions.cuh"
#include "q8_1_encode.cuh"

namespace refmoe {

constexpr int kThreads = 256;

/// Four neighbours as they lie in memory, and as floats; every conversion is exact.
struct Bf16 {
    using Words = uint2;
    static __device__ __forceinline__ float4 widen(const uint2& words) {
        return {__uint_as_float(words.x << 16), __uint_as_float(words.x & 0xFFFF0000u), __uint_as_float(words.y << 16),
                __uint_as_float(words.y & 0xFFFF0000u)};
    }
};

struct Fp16 {
    using Words = uint2;
    static __device__ __forceinline__ float4 widen(const uint2& words) {
        return {cvt_f32_f16(static_cast<uint16_t>(words.x)), cvt_f32_f16(static_cast<uint16_t>(words.x >> 16)),
                cvt_f32_f16(static_cast<uint16_t>(words.y)), cvt_f32_f16(static_cast<uint16_t>(words.y >> 16))};
    }
};

struct Fp32 {
    using Words = float4;
    static __device__ __forceinline__ float4 widen(const float4& words) { return words; }
};

template <class Element, Q8Variant variant>
__device__ __forceinline__ void q8_1_quantize(const typename Element::Words* __restrict__ x,
                                              uint32_t* __restrict__ codes, uint16_t* __restrict__ d,
                                              uint16_t* __restrict__ s, int quads) {
    launch_dependents();
    const int padded_quads = whole_warps(quads);
    for (int quad = blockIdx.x * kThreads + threadIdx.x; quad < padded_quads; quad += gridDim.x * kThreads) {
        const bool inside = quad < quads;
        float4 values{};
        if (inside) values = Element::widen(__ldg(x + quad));
        wait_for_launches();
        store_q8_1<variant>(values, inside, quad, codes, d, s);
    }
}

}  // namespace refmoe

// Entries: refmoe_q8_1_quantize_<dtype>_<variant>.
//   x      [rows, K] BF16, FP16 or FP32, 16-byte aligned
//   codes  [rows, K] int8, 4-byte aligned
//   d, s   [rows, K / 32] FP16
//   quads  rows * K / 4, a multiple of 8
#define REFMOE_ENTRY(dtype, Element, variant, Variant_)                                                          \
    extern "C" __global__ void __launch_bounds__(refmoe::kThreads) refmoe_q8_1_quantize_##dtype##_##variant(     \
        const refmoe::Element::Words* x, uint32_t* codes, uint16_t* d, uint16_t* s, int quads) {                 \
        refmoe::q8_1_quantize<refmoe::Element, refmoe::Q8Variant::Variant_>(x, codes, d, s, quads);                \
    }
#define REFMOE_VARIANTS(...)                              \
    REFMOE_ENTRY(__VA_ARGS__, llama_cpp_mmvq, kMmvq)      \
    REFMOE_ENTRY(__VA_ARGS__, llama_cpp_mmq, kMmq)

REFMOE_VARIANTS(bf16, Bf16)
REFMOE_VARIANTS(fp16, Fp16)
REFMOE_VARIANTS(f32, Fp32)
