// The product of MXFP4 weights and Q8_1 activations for a few tokens, each with its own experts:
//
//      out[row, n] = alpha[e] * sum over blocks b of  (d[b] * 2^(scale[e, n, b] - 127) / 2) * dot(e, n, b)  +  bias[e, n]
//
// dot is the exact int32 sum over a block's 32 elements of the FP4 numbers, doubled so that they are integers, times the
// activation's codes. The rest is FP32, every operation rounded to nearest, subnormals kept: scale byte 0 means 2^-128.
//
// What bounds this kernel is how many bytes of weights are on their way. A CTA asks for all of its weights at once by one
// bulk copy, which needs no registers, and a multiprocessor holds ten CTAs or more: with K = 2880 about 100 KB in flight,
// where 32 KB would hide a latency of a microsecond at 4 TB/s.
//
// The order of the FP32 sum is part of the contract. A CTA of W warps has T = 32 W threads; thread t takes the blocks t,
// t + T, t + 2 T, ... of every row, in this order. Then lane l adds up what the lanes l of all warps have, warp by warp,
// and the 32 lanes add by xor 16, 8, 4, 2, 1.
//
//      block    0  1  2 ... 31 | 32 ... 63 | 64 ... 95 | 96 ... 127 | 128 ...
//      thread   0  1  2 ... 31 | 32 ... 63 | 64 ... 95 | 96 ... 127 |   0 ...          W = 4
//               warp 0           warp 1      warp 2      warp 3       warp 0
//
//      ((warp 0 + warp 1) + warp 2) + warp 3, lane by lane;  then  lane + lane ^ 16,  + ^ 8,  + ^ 4,  + ^ 2,  + ^ 1
//
// W follows llama.cpp's rule: 4 warps for up to 4 tokens, 2 for up to 8. So a token's sum depends on the size of its
// batch, but on nothing that the other tokens hold.
#include "async_copy.cuh"
#include "bulk_copy.cuh"
#include "instructions.cuh"
#include "warp.cuh"

namespace refmoe {

constexpr int kBlockBytes = 16;   // of a block's weights
constexpr int kMaxChoices = 256;  // tokens * top_k

constexpr int kRows = 8;          // weight rows of a CTA

struct Problem {
    const uint4* codes;            // [rows, K] int8
    const uint16_t* d;             // [rows, blocks] FP16
    const uint8_t* weights;        // [experts, n, K / 2]
    const uint8_t* weight_scales;  // [experts, n, blocks]
    const int* topk_ids;           // [tokens, top_k]
    const int* row_of_choice;      // [top_k, tokens], or null: choice (token, rank) has the row token + rank * tokens
    const float* alpha;            // [experts], or null for 1
    const uint16_t* bias;          // [experts, n] BF16, or null for none
    int tokens, top_k, experts, first_expert, n, blocks;
    bool input_by_choice;  // whether a choice has an activation of its own, in the row of its output

    /// The output row of a choice, below 0 if it has none.
    __device__ __forceinline__ int output_row(int choice) const {
        const int row = choice / top_k + choice % top_k * tokens;
        return row_of_choice ? __ldg(row_of_choice + row) : row;
    }

    __device__ __forceinline__ int input_row(int choice, int output) const {
        return input_by_choice ? output : choice / top_k;
    }
};

/// The magnitudes of doubled FP4, by code: 0 1 2 3 4 6 8 12.
constexpr uint32_t kMagnitudesLow = 0x03020100u, kMagnitudesHigh = 0x0C080604u;
constexpr uint32_t kSigns = 0x88888888u;

/// Four codes of FP4 as bytes: the magnitude of a code without a sign bit, 0 for one with it. prmt looks up the low three
/// bits of a selector; its fourth repeats the sign of the byte that it finds, and no magnitude has one.
__device__ __forceinline__ uint32_t unsigned_magnitudes(uint32_t codes) {
    uint32_t bytes;
    asm("prmt.b32 %0, %1, %2, %3;" : "=r"(bytes) : "r"(kMagnitudesLow), "r"(kMagnitudesHigh), "r"(codes));
    return bytes;
}

/// Adds eight products: `codes` holds eight FP4 codes, the first in the low nibble, `low` and `high` eight int8.
__device__ __forceinline__ void dot8(int& positive, int& negative, uint32_t codes, uint32_t low, uint32_t high) {
    const uint32_t turned = codes ^ kSigns;  // now the negative ones are those without a sign bit
    positive = __dp4a(static_cast<int>(unsigned_magnitudes(codes)), static_cast<int>(low), positive);
    positive = __dp4a(static_cast<int>(unsigned_magnitudes(codes >> 16)), static_cast<int>(high), positive);
    negative = __dp4a(static_cast<int>(unsigned_magnitudes(turned)), static_cast<int>(low), negative);
    negative = __dp4a(static_cast<int>(unsigned_magnitudes(turned >> 16)), static_cast<int>(high), negative);
}

/// A block of an activation.
struct Activation {
    uint4 low, high;  // elements 0..15 and 16..31
    float d;
};

__device__ __forceinline__ Activation load_activation(const Problem& problem, int row, int block) {
    const int64_t index = static_cast<int64_t>(row) * problem.blocks + block;
    return {__ldg(problem.codes + 2 * index), __ldg(problem.codes + 2 * index + 1), cvt_f32_f16(__ldg(problem.d + index))};
}

/// The exact sum of 32 products; each weight counts double.
__device__ __forceinline__ int block_dot(const uint4& weights, const Activation& x) {
    int positive = 0, negative = 0;
    dot8(positive, negative, weights.x, x.low.x, x.low.y);
    dot8(positive, negative, weights.y, x.low.z, x.low.w);
    dot8(positive, negative, weights.z, x.high.x, x.high.y);
    dot8(positive, negative, weights.w, x.high.z, x.high.w);
    return positive - negative;
}

/// 2^(byte - 127) / 2: bytes 0 and 1 give subnormal numbers, byte 255 a NaN.
__device__ __forceinline__ float halved_scale(uint32_t byte) {
    const uint32_t normal = (byte - 1) << 23, subnormal = 0x00200000u << (byte & 1), nan = 0x7FC00000u;
    return __uint_as_float(byte == 0xFF ? nan : byte < 2 ? subnormal : normal);
}

/// The choices that go to one expert. The CTAs of the first of them compute all; the others' have nothing to do.
struct Members {
    int choices[kMaxChoices];
    int count;
};

/// A warp fills `members`: those with a row among the choices that name the expert `id`; none if one of them comes before
/// `choice`. Their number is the result in all lanes.
__device__ __forceinline__ int find_members(const Problem& problem, int choice, int id, Members& members) {
    const int lane = threadIdx.x % kWarpLanes, choices = problem.tokens * problem.top_k;
    int count = 0;
    bool first = true;
    for (int base = 0; base < choices; base += kWarpLanes) {
        const int other = base + lane;
        const bool same = other < choices && __ldg(problem.topk_ids + other) == id && problem.output_row(other) >= 0;
        const unsigned found = __ballot_sync(kFullWarp, same);
        first = first && !__any_sync(kFullWarp, same && other < choice);
        if (same) members.choices[count + __popc(found & ((1u << lane) - 1))] = other;
        count += __popc(found);
    }
    if (!first) count = 0;
    if (lane == 0) members.count = count;
    return count;
}

/// RN(RN(alpha * sum) + bias), the factor and the term left out where there is none.
__device__ __forceinline__ float epilogue(const Problem& problem, int expert, int n, float sum) {
    const float scaled = problem.alpha ? __fmul_rn(__ldg(problem.alpha + expert), sum) : sum;
    if (!problem.bias) return scaled;
    const uint32_t term = __ldg(problem.bias + static_cast<int64_t>(expert) * problem.n + n);
    return __fadd_rn(scaled, __uint_as_float(term << 16));
}

__device__ __forceinline__ void store(float* out, float value) { *out = value; }
__device__ __forceinline__ void store(uint16_t* out, float value) {
    *out = static_cast<uint16_t>(cvt_rn_bf16x2(0.0f, value));
}

/// This thread's part of the sums of one activation with all rows of the CTA.
template <int threads>
__device__ __forceinline__ void accumulate(float (&sums)[kRows], const Problem& problem, const uint4* weights,
                                           int64_t first_row, int rows, int input, uint32_t landed) {
    for (int block = threadIdx.x; block < problem.blocks; block += threads) {
        float scales[kRows];
#pragma unroll
        for (int row = 0; row < kRows; ++row) {  // rows past the last repeat it; their sums go nowhere
            const int64_t from = (first_row + min(row, rows - 1)) * problem.blocks + block;
            scales[row] = halved_scale(__ldg(problem.weight_scales + from));
        }
        const Activation x = load_activation(problem, input, block);
        mbarrier_wait_parity(landed, 0);  // the weights; what is loaded above was on its way meanwhile
#pragma unroll
        for (int row = 0; row < kRows; ++row) {
            const int dot = block_dot(weights[min(row, rows - 1) * problem.blocks + block], x);
            sums[row] = __fadd_rn(sums[row], __fmul_rn(__fmul_rn(x.d, scales[row]), __int2float_rn(dot)));
        }
    }
}

/// A CTA takes kRows rows of the expert that one choice names, for all tokens that name it, one after the other.
template <int warps, class Out>
__device__ __forceinline__ void dp4a_gemv(const Problem& problem, Out* __restrict__ out) {
    extern __shared__ uint4 weights[];  // [kRows, blocks]
    __shared__ float partial[warps][kRows][kWarpLanes];
    __shared__ Members members;
    __shared__ uint64_t barrier;

    const int tiles = (problem.n + kRows - 1) / kRows;
    const int choice = blockIdx.x / tiles, first_n = blockIdx.x % tiles * kRows;
    const int id = __ldg(problem.topk_ids + choice), expert = id - problem.first_expert;
    if (expert < 0 || expert >= problem.experts || problem.output_row(choice) < 0) return;

    const int rows = min(kRows, problem.n - first_n);
    const int64_t first_row = static_cast<int64_t>(expert) * problem.n + first_n;
    const uint32_t landed = shared_address(&barrier);
    if (threadIdx.x < kWarpLanes && find_members(problem, choice, id, members) > 0 && threadIdx.x == 0) {
        const int row_bytes = problem.blocks * kBlockBytes;
        mbarrier_init(landed, 1);
        fence_mbarrier_init();
        mbarrier_arrive_expect_tx(landed, rows * row_bytes);
        cp_async_bulk(shared_address(weights), problem.weights + first_row * row_bytes, rows * row_bytes, landed);
    }
    __syncthreads();

    const int lane = threadIdx.x % kWarpLanes, warp = threadIdx.x / kWarpLanes;
    for (int member = 0; member < members.count; ++member) {
        const int output = problem.output_row(members.choices[member]);
        const int input = problem.input_row(members.choices[member], output);
        float sums[kRows] = {};
        accumulate<warps * kWarpLanes>(sums, problem, weights, first_row, rows, input, landed);
#pragma unroll
        for (int row = 0; row < kRows; ++row) partial[warp][row][lane] = sums[row];
        __syncthreads();
        for (int row = warp; row < rows; row += warps) {
            float sum = partial[0][row][lane];
#pragma unroll
            for (int other = 1; other < warps; ++other) sum = __fadd_rn(sum, partial[other][row][lane]);
#pragma unroll
            for (int distance = kWarpLanes / 2; distance > 0; distance /= 2)
                sum = __fadd_rn(sum, __shfl_xor_sync(kFullWarp, sum, distance));
            const int n = first_n + row;
            if (lane == 0) store(out + static_cast<int64_t>(output) * problem.n + n, epilogue(problem, expert, n, sum));
        }
        __syncthreads();  // the next member overwrites the partial sums
    }
}

}  // namespace refmoe

// Entries: refmoe_dp4a_gemv_<warps>_<out>. Every pointer is 16-byte aligned, but those to scales.
//   codes            [rows, K] int8, rows = tokens, or tokens * top_k with input_by_choice
//   d                [rows, K / 32] FP16
//   weights          [experts, n, K / 2] E2M1, the even element in the low nibble
//   weight_scales    [experts, n, K / 32] E8M0
//   topk_ids         [tokens, top_k] global expert ids; those of other ranks are left out
//   row_of_choice    [top_k, tokens] output rows, -1 for none, or null
//   alpha            [experts] FP32, or null
//   bias             [experts, n] BF16, or null
//   out              [tokens * top_k, n]
//   blocks           K / 32
//   shared memory    kRows * K / 2 bytes;  grid: for each choice a CTA for each kRows of n
#define REFMOE_ENTRY(warps, dtype, Out)                                                                                 \
    extern "C" __global__ void __launch_bounds__(warps * refmoe::kWarpLanes) refmoe_dp4a_gemv_##warps##_##dtype(        \
        const uint4* codes, const uint16_t* d, const uint8_t* weights, const uint8_t* weight_scales,                    \
        const int* topk_ids, const int* row_of_choice, const float* alpha, const uint16_t* bias, Out* out, int tokens,  \
        int top_k, int experts, int first_expert, int n, int blocks, int input_by_choice) {                             \
        const refmoe::Problem problem{codes,  d,     weights, weight_scales, topk_ids, row_of_choice, alpha, bias,      \
                                      tokens, top_k, experts, first_expert,  n,        blocks,        input_by_choice != 0}; \
        refmoe::dp4a_gemv<warps>(problem, out);                                                                         \
    }

REFMOE_ENTRY(4, bf16, uint16_t)
REFMOE_ENTRY(4, f32, float)
REFMOE_ENTRY(2, bf16, uint16_t)
REFMOE_ENTRY(2, f32, float)
