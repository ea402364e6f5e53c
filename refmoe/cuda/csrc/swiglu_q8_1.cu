// SwiGLU between the two GEMMs of an expert, quantized to Q8_1 on the way: what a DP4A product takes next.
//
// Blocks need nothing of each other, so a row is cut into *slices* of 512 results, and each is a CTA's: four rows of 2,880
// keep 24 CTAs busy, not four. A lane takes 4 results and so 4 gates and 4 ups; eight lanes make a block:
//
//      gpt_oss   | g0 u0 g1 u1 g2 u2 g3 u3 |            8 neighbours
//      silu      | g0 g1 g2 g3 | ... | u0 u1 u2 u3 |    two times 4 neighbours, `width` elements apart
//
// Inputs are BF16, or FP32 as a product leaves them that never rounds to 16 bits. Rows that no expert has are neither read
// nor written.
#include "dependent_launch.cuh"
#include "expert_maps.cuh"
#include "q8_1_encode.cuh"
#include "swiglu.cuh"

namespace refmoe {

constexpr int kThreads = 128;  // of a CTA: a slice of 512 results

/// Four neighbours of a row as they lie in memory, and as floats.
struct Bf16Row {
    using Words = uint2;
    static __device__ __forceinline__ float4 widen(const uint2& words) {
        return {__uint_as_float(words.x << 16), __uint_as_float(words.x & 0xFFFF0000u), __uint_as_float(words.y << 16),
                __uint_as_float(words.y & 0xFFFF0000u)};
    }
};

struct Fp32Row {
    using Words = float4;
    static __device__ __forceinline__ float4 widen(const float4& words) { return words; }
};

/// The experts of the rows, and what shapes their gates.
struct RowExperts {
    const int64_t* offsets;  // [experts + 1] first row of each expert
    Shapes shapes;
    int experts;
};

/// The four results of lane `lane`; `row` points at the row, which has 2 * `lanes` words.
template <class Row, Variant variant>
__device__ __forceinline__ float4 results(const typename Row::Words* row, int lane, int lanes, const Shape& shape) {
    constexpr bool kPairs = variant == Variant::kGptOss;
    const float4 a = Row::widen(row[kPairs ? 2 * lane : lane]);
    const float4 b = Row::widen(row[kPairs ? 2 * lane + 1 : lanes + lane]);
    if constexpr (kPairs)
        return {swiglu<variant>({a.x, a.y}, shape), swiglu<variant>({a.z, a.w}, shape),
                swiglu<variant>({b.x, b.y}, shape), swiglu<variant>({b.z, b.w}, shape)};
    else
        return {swiglu<variant>({a.x, b.x}, shape), swiglu<variant>({a.y, b.y}, shape),
                swiglu<variant>({a.z, b.z}, shape), swiglu<variant>({a.w, b.w}, shape)};
}

template <class Row, Variant variant, Q8Variant quantizer>
__device__ __forceinline__ void swiglu_q8_1(const typename Row::Words* rows, const RowExperts& experts, uint32_t* codes,
                                            uint16_t* d, uint16_t* s, int row_count, int lanes) {
    launch_dependents();
    wait_for_launches();
    const int slices = (lanes + kThreads - 1) / kThreads;
    for (int slice = blockIdx.x; slice < row_count * slices; slice += gridDim.x) {
        const int row = slice / slices, lane = (slice - row * slices) * kThreads + threadIdx.x;
        const int expert = expert_of_row(experts.offsets, experts.experts, row);
        if (expert == experts.experts) return;  // nor has any later row an expert
        const Shape shape = experts.shapes.of(expert);
        const bool inside = lane < lanes;
        float4 values{};
        if (inside)
            values = results<Row, variant>(rows + static_cast<int64_t>(row) * 2 * lanes, lane, lanes, shape);
        store_q8_1<quantizer>(values, inside, row * lanes + lane, codes, d, s);
    }
}

}  // namespace refmoe

// Entries: refmoe_swiglu_q8_1_<variant>_<rows>_<quantizer>. Every pointer to rows or codes is 16-byte aligned.
//   rows                [row_count, 2 * width] BF16 or FP32, sorted by expert; width a multiple of 32
//   offsets             [experts + 1] first row of each expert, then the rows in use
//   alpha, beta, limit  [experts] FP32, or null for the figure of gpt-oss; not read by silu
//   codes               [row_count, width] int8
//   d, s                [row_count, width / 32] FP16
//   lanes               width / 4
//   grid: any number of CTAs, one for each slice of 512 results at most;  128 threads
#define REFMOE_ENTRY(variant, Variant_, rows_, Row, quantizer, Quantizer)                                               \
    extern "C" __global__ void __launch_bounds__(refmoe::kThreads)                                                      \
        refmoe_swiglu_q8_1_##variant##_##rows_##_##quantizer(                                                           \
            const refmoe::Row::Words* rows, const int64_t* offsets, const float* alpha, const float* beta,              \
            const float* limit, uint32_t* codes, uint16_t* d, uint16_t* s, int row_count, int experts, int lanes) {     \
        const refmoe::RowExperts all{offsets, {alpha, beta, limit}, experts};                                           \
        refmoe::swiglu_q8_1<refmoe::Row, refmoe::Variant::Variant_, refmoe::Q8Variant::Quantizer>(                      \
            rows, all, codes, d, s, row_count, lanes);                                                                  \
    }
#define REFMOE_QUANTIZERS(...)                           \
    REFMOE_ENTRY(__VA_ARGS__, llama_cpp_mmvq, kMmvq)     \
    REFMOE_ENTRY(__VA_ARGS__, llama_cpp_mmq, kMmq)
#define REFMOE_ROWS(...)                             \
    REFMOE_QUANTIZERS(__VA_ARGS__, bf16, Bf16Row)    \
    REFMOE_QUANTIZERS(__VA_ARGS__, f32, Fp32Row)

REFMOE_ROWS(gpt_oss, kGptOss)
REFMOE_ROWS(silu, kSilu)
