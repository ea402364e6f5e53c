// The last step of a DeepSeek-V3 layer: each token's rows gathered from its experts, weighted and summed in the order of
// the ranks (token_sums.cuh), times a factor, and the shared expert's row added.
//
//      sum = RN(sum * scale);  sum = BF16(sum) if asked for;  out = RN(sum + shared)      all FP32
//
// A CTA takes one token at a time, a thread 8 neighbouring columns. The shared row is on its way while the ranks are added.
#include "instructions.cuh"
#include "token_sums.cuh"

namespace refmoe {

constexpr int kColumns = 8;  // of a thread: 16 bytes of BF16
constexpr int kMaxRowThreads = 512;

/// In which format the routed sum meets the shared expert's row.
enum class Order { kFp32, kBf16 };

__device__ __forceinline__ void store(uint16_t* columns, const float (&sums)[kColumns]) {
    *reinterpret_cast<uint4*>(columns) = {cvt_rn_bf16x2(sums[1], sums[0]), cvt_rn_bf16x2(sums[3], sums[2]),
                                          cvt_rn_bf16x2(sums[5], sums[4]), cvt_rn_bf16x2(sums[7], sums[6])};
}

__device__ __forceinline__ void store(float* columns, const float (&sums)[kColumns]) {
    reinterpret_cast<float4*>(columns)[0] = {sums[0], sums[1], sums[2], sums[3]};
    reinterpret_cast<float4*>(columns)[1] = {sums[4], sums[5], sums[6], sums[7]};
}

/// A number rounded to BF16; a NaN is 0x7FFF0000.
__device__ __forceinline__ float rounded_to_bf16(float x) { return __uint_as_float(cvt_rn_bf16x2(0.0f, x) << 16); }

/// `width` is a multiple of kColumns; `shared` may be null.
template <class In, class Out, Order order>
__device__ __forceinline__ void finalize(const In* __restrict__ rows, const Choices& choices,
                                         const In* __restrict__ shared, Out* __restrict__ out, int width, float scale) {
    const int lane = threadIdx.x % kWarpLanes;
    const int padded_threads = whole_warps(width / kColumns);
    for (int token = blockIdx.x; token < choices.tokens; token += gridDim.x) {
        const Rank mine = choices.load(token, lane);
        for (int thread = threadIdx.x; thread < padded_threads; thread += blockDim.x) {
            const int column = thread * kColumns;
            const bool inside = column < width;
            const int64_t place = static_cast<int64_t>(token) * width + column;
            Piece<In, kColumns> addend{};
            if (inside && shared) addend = Piece<In, kColumns>::load(shared + place);
            float sums[kColumns] = {};
            sum_ranks(sums, rows, nullptr, choices, mine, column, width, inside);
            if (!inside) continue;
#pragma unroll
            for (int i = 0; i < kColumns; ++i) {
                sums[i] = __fmul_rn(sums[i], scale);
                if constexpr (order == Order::kBf16) sums[i] = rounded_to_bf16(sums[i]);
                if (shared) sums[i] = __fadd_rn(sums[i], addend.column(i));
            }
            store(out + place, sums);
        }
    }
}

}  // namespace refmoe

// Entries: refmoe_deepseek_finalize_<rows>_<out>_<order>, rows and out bf16 or f32. Every pointer is 16-byte aligned.
//   rows                    [tokens * top_k, width], sorted by expert
//   unpermuted_to_permuted  [top_k, tokens] row of each choice, -1 for experts of other ranks
//   weights                 [tokens, top_k]
//   shared                  [tokens, width] as `rows`, or null
//   out                     [tokens, width]
//   scale                   the bits of an FP32
//   top_k is at most 32, width a multiple of 8
#define REFMOE_ENTRY(in, In, result, Result, order, Order_)                                                            \
    extern "C" __global__ void __launch_bounds__(refmoe::kMaxRowThreads)                                               \
        refmoe_deepseek_finalize_##in##_##result##_##order(                                                            \
            const In* rows, const int* unpermuted_to_permuted, const float* weights, const In* shared, Result* out,    \
            int tokens, int top_k, int width, uint32_t scale) {                                                        \
        const refmoe::Choices choices{unpermuted_to_permuted, weights, nullptr, tokens, top_k, 0, false};              \
        refmoe::finalize<In, Result, refmoe::Order::Order_>(rows, choices, shared, out, width,                         \
                                                            __uint_as_float(scale));                                   \
    }
#define REFMOE_ORDERS(...)                    \
    REFMOE_ENTRY(__VA_ARGS__, fp32, kFp32)    \
    REFMOE_ENTRY(__VA_ARGS__, bf16, kBf16)

REFMOE_ORDERS(bf16, uint16_t, bf16, uint16_t)
REFMOE_ORDERS(bf16, uint16_t, f32, float)
REFMOE_ORDERS(f32, float, bf16, uint16_t)
REFMOE_ORDERS(f32, float, f32, float)
