// The product of MXFP4 weights and Q8_1 activations for a few tokens, each with its own experts:
//
//      out[row, n] = alpha[e] * sum over blocks b of  (d[b] * 2^(scale[e, n, b] - 127) / 2) * dot(e, n, b)  +  bias[e, n]
//
// dot is the exact int32 sum over a block's 32 elements of the FP4 numbers, doubled so that they are integers, times the
// activation's codes. The rest is FP32, every operation rounded to nearest, subnormals kept: scale byte 0 means 2^-128.
//
// What bounds this kernel is how many bytes of weights are on their way, and how few instructions a block takes. A CTA
// asks for all of its weights and scales at once by two bulk copies, which need no registers: with K = 2880 ten CTAs on a
// multiprocessor have 120 KB in flight, where 32 KB would hide a latency of a microsecond at 4 TB/s. Then each of its two
// warps takes whole rows, so that nothing is exchanged but inside a warp, and keeps the blocks of the activation in
// registers for all of its rows.
//
// The order of the FP32 sum is part of the contract. It is that of W warps that share a row, T = 32 W threads, of which
// thread t takes the blocks t, t + T, t + 2 T, ... in this order. Then lane l adds up what the lanes l of all warps have,
// warp by warp, and the 32 lanes add by xor 16, 8, 4, 2, 1.
//
//      block    0  1  2 ... 31 | 32 ... 63 | 64 ... 95 | 96 ... 127 | 128 ...
//      thread   0  1  2 ... 31 | 32 ... 63 | 64 ... 95 | 96 ... 127 |   0 ...          W = 4
//               warp 0           warp 1      warp 2      warp 3       warp 0
//
//      ((warp 0 + warp 1) + warp 2) + warp 3, lane by lane;  then  lane + lane ^ 16,  + ^ 8,  + ^ 4,  + ^ 2,  + ^ 1
//
// W follows llama.cpp's rule: 4 warps for up to 4 tokens, 2 for up to 8. So a token's sum depends on the size of its
// batch, but on nothing that the other tokens hold. Here one warp does the work of all W: a lane has W sums of a row, its
// *slots*, and adds them up itself.
#include "async_copy.cuh"
#include "bulk_copy.cuh"
#include "instructions.cuh"
#include "warp.cuh"

namespace refmoe {

constexpr int kBlockBytes = 16;  // of a block's weights
constexpr int kWarps = 2;        // of a CTA
constexpr int kWarpRows = 4;     // weight rows of a warp
constexpr int kRows = kWarps * kWarpRows;
constexpr int kHeld = 4;         // blocks of an activation that a lane holds
constexpr int kCtas = 10;        // on a multiprocessor, which leaves a thread 96 registers

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

/// The low half of the table in a register that ptxas takes for any. What it knows to be the same in all lanes it keeps in
/// a uniform register, which prmt cannot read, and moves it back before every lookup.
__device__ __forceinline__ uint32_t table_of_magnitudes() {
    uint32_t table;
    asm volatile("shfl.sync.idx.b32 %0, %1, 0, 31, 0xffffffff;" : "=r"(table) : "r"(kMagnitudesLow));
    return table;
}

/// Four codes of FP4 as bytes: the magnitude of a code without a sign bit, 0 for one with it. prmt looks up the low three
/// bits of a selector; its fourth repeats the sign of the byte that it finds, and no magnitude has one.
__device__ __forceinline__ uint32_t unsigned_magnitudes(uint32_t table, uint32_t codes) {
    uint32_t bytes;
    asm("prmt.b32 %0, %1, %2, %3;" : "=r"(bytes) : "r"(table), "r"(kMagnitudesHigh), "r"(codes));
    return bytes;
}

/// Adds eight products: `codes` holds eight FP4 codes, the first in the low nibble, `low` and `high` eight int8.
__device__ __forceinline__ void dot8(int& positive, int& negative, uint32_t table, uint32_t codes, uint32_t low,
                                     uint32_t high) {
    const uint32_t turned = codes ^ kSigns;  // now the negative ones are those without a sign bit
    positive = __dp4a(static_cast<int>(unsigned_magnitudes(table, codes)), static_cast<int>(low), positive);
    positive = __dp4a(static_cast<int>(unsigned_magnitudes(table, codes >> 16)), static_cast<int>(high), positive);
    negative = __dp4a(static_cast<int>(unsigned_magnitudes(table, turned)), static_cast<int>(low), negative);
    negative = __dp4a(static_cast<int>(unsigned_magnitudes(table, turned >> 16)), static_cast<int>(high), negative);
}

/// A block of an activation.
struct Activation {
    uint4 low, high;  // elements 0..15 and 16..31
    float half_d;     // d / 2, exact: doubled FP4 counts half
};

__device__ __forceinline__ Activation load_activation(const Problem& problem, int row, int block) {
    const int64_t index = static_cast<int64_t>(row) * problem.blocks + block;
    const float d = cvt_f32_f16(__ldg(problem.d + index));
    return {__ldg(problem.codes + 2 * index), __ldg(problem.codes + 2 * index + 1), __fmul_rn(d, 0.5f)};
}

/// The exact sum of 32 products; each weight counts double.
__device__ __forceinline__ int block_dot(uint32_t table, const uint4& weights, const Activation& x) {
    int positive = 0, negative = 0;
    dot8(positive, negative, table, weights.x, x.low.x, x.low.y);
    dot8(positive, negative, table, weights.y, x.low.z, x.low.w);
    dot8(positive, negative, table, weights.z, x.high.x, x.high.y);
    dot8(positive, negative, table, weights.w, x.high.z, x.high.w);
    return positive - negative;
}

/// 2^(byte - 127): byte 0 gives a subnormal number, byte 255 a NaN. RN(d / 2 * 2^(byte - 127)) is RN(d * 2^(byte - 128)).
__device__ __forceinline__ float scale(uint32_t byte) {
    const uint32_t least = 0x00400000u, nan = 0x7FC00000u;
    return __uint_as_float(byte == 0xFF ? nan : max(byte << 23, least));
}

/// Whether an earlier choice names the same expert: its CTAs compute this one too.
__device__ __forceinline__ bool has_leader(const Problem& problem, int choice, int id) {
    for (int base = 0; base < choice; base += kWarpLanes) {
        const int other = base + threadIdx.x % kWarpLanes;
        const bool same = other < choice && __ldg(problem.topk_ids + other) == id && problem.output_row(other) >= 0;
        if (__any_sync(kFullWarp, same)) return true;
    }
    return false;
}

/// Of the choices from `base` on, those of the next 32 that name the expert `id` and have a row, a bit each.
__device__ __forceinline__ unsigned find_members(const Problem& problem, int base, int id) {
    const int other = base + threadIdx.x % kWarpLanes;
    const bool same = other < problem.tokens * problem.top_k && __ldg(problem.topk_ids + other) == id;
    return __ballot_sync(kFullWarp, same && problem.output_row(other) >= 0);
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

/// The weights of a CTA in shared memory, and the barrier that says when they are there.
struct Tile {
    const uint4* weights;   // [kRows, blocks]
    const uint8_t* scales;  // [kRows, blocks]
    uint32_t landed;
};

/// Asks for a tile of `rows` rows: bulk copies where addresses and sizes are multiples of 16 bytes, as all weights are, and
/// scales in most matrices; other scales byte by byte, ahead of the barrier of the CTA.
__device__ __forceinline__ void load_tile(const Problem& problem, const Tile& tile, int64_t first_row, int rows) {
    const uint8_t* const from = problem.weight_scales + first_row * problem.blocks;
    const int bytes = rows * problem.blocks * kBlockBytes, scale_bytes = rows * problem.blocks;
    const bool whole = (reinterpret_cast<uintptr_t>(from) | scale_bytes) % kCopyBytes == 0;
    if (threadIdx.x == 0) {
        mbarrier_init(tile.landed, 1);
        fence_mbarrier_init();
        mbarrier_arrive_expect_tx(tile.landed, bytes + (whole ? scale_bytes : 0));
        const uint8_t* const weights = problem.weights + first_row * problem.blocks * kBlockBytes;
        cp_async_bulk(shared_address(tile.weights), weights, bytes, tile.landed);
        if (whole) cp_async_bulk(shared_address(tile.scales), from, scale_bytes, tile.landed);
    }
    if (!whole) {
        uint8_t* const to = const_cast<uint8_t*>(tile.scales);
        for (int at = threadIdx.x; at < scale_bytes; at += kWarps * kWarpLanes) to[at] = __ldg(from + at);
    }
}

/// This lane's slots of its warp's rows, for one activation.
template <int warps>
using Sums = float[kWarpRows][warps];

/// Loads this lane's share of kHeld * 32 blocks from `start` on.
__device__ __forceinline__ void hold(Activation (&held)[kHeld], const Problem& problem, int input, int start) {
#pragma unroll
    for (int slot = 0; slot < kHeld; ++slot) {
        const int block = start + slot * kWarpLanes + threadIdx.x % kWarpLanes;
        if (block < problem.blocks) held[slot] = load_activation(problem, input, block);
    }
}

/// Adds the terms of the held blocks, whose first is `start`. Rows past the last repeat it; their sums go nowhere.
template <int warps>
__device__ __forceinline__ void accumulate(Sums<warps>& sums, const Activation (&held)[kHeld], const Problem& problem,
                                           const Tile& tile, uint32_t table, int first, int rows, int start) {
#pragma unroll
    for (int slot = 0; slot < kHeld; ++slot) {
        const int block = start + slot * kWarpLanes + threadIdx.x % kWarpLanes;
        if (block >= problem.blocks) continue;
#pragma unroll
        for (int row = 0; row < kWarpRows; ++row) {
            const int at = min(first + row, rows - 1) * problem.blocks + block;
            const float factor = __fmul_rn(held[slot].half_d, scale(tile.scales[at]));
            const int dot = block_dot(table, tile.weights[at], held[slot]);
            sums[row][slot % warps] = __fadd_rn(sums[row][slot % warps], __fmul_rn(factor, __int2float_rn(dot)));
        }
    }
}

/// The sum over slots, then over lanes by xor 16, 8, 4, 2, 1, of row lane / 8. While there is more than one row left, the
/// lanes of a pair share the work: each gives away the rows that it does not keep, and both add the same two numbers that
/// each would have added.
///
///      lanes     0..7   8..15  16..23  24..31
///      xor 16    0 1    0 1    2 3     2 3         rows that a lane has left
///      xor 8     0      1      2       3
template <int warps>
__device__ __forceinline__ float reduce(const Sums<warps>& sums) {
    float rows[kWarpRows];
#pragma unroll
    for (int row = 0; row < kWarpRows; ++row) {
        rows[row] = sums[row][0];
#pragma unroll
        for (int slot = 1; slot < warps; ++slot) rows[row] = __fadd_rn(rows[row], sums[row][slot]);
    }
    int distance = kWarpLanes / 2;
#pragma unroll
    for (int left = kWarpRows / 2; left > 0; left /= 2, distance /= 2) {
        const bool upper = threadIdx.x & distance;
#pragma unroll
        for (int row = 0; row < left; ++row) {
            const float given = upper ? rows[row] : rows[row + left], kept = upper ? rows[row + left] : rows[row];
            rows[row] = __fadd_rn(kept, __shfl_xor_sync(kFullWarp, given, distance));
        }
    }
    float sum = rows[0];
#pragma unroll
    for (; distance > 0; distance /= 2) sum = __fadd_rn(sum, __shfl_xor_sync(kFullWarp, sum, distance));
    return sum;
}

/// A CTA takes kRows rows of the expert that one choice names, for all choices that name it, one after the other.
template <int warps, class Out>
__device__ __forceinline__ void dp4a_gemv(const Problem& problem, Out* __restrict__ out) {
    static_assert(kHeld % warps == 0, "a round of held blocks is whole rounds of slots");
    extern __shared__ uint4 shared[];  // weights [kRows, blocks] of 16 bytes, then scales [kRows, blocks]
    __shared__ uint64_t barrier;
    const Tile tile{shared, reinterpret_cast<const uint8_t*>(shared + kRows * problem.blocks), shared_address(&barrier)};

    const int tiles = (problem.n + kRows - 1) / kRows;
    const int choice = blockIdx.x / tiles, first_n = blockIdx.x % tiles * kRows;
    const int id = __ldg(problem.topk_ids + choice), expert = id - problem.first_expert;
    Activation held[kHeld];
    int input = problem.input_by_choice ? -1 : choice / problem.top_k;  // whose first blocks are held; -1 for none
    if (input >= 0) hold(held, problem, input, 0);                      // on their way beside the expert's number
    if (expert < 0 || expert >= problem.experts || problem.output_row(choice) < 0) return;
    if (has_leader(problem, choice, id)) return;

    const int rows = min(kRows, problem.n - first_n);
    load_tile(problem, tile, static_cast<int64_t>(expert) * problem.n + first_n, rows);
    const uint32_t table = table_of_magnitudes();
    __syncthreads();

    const int lane = threadIdx.x % kWarpLanes, first = threadIdx.x / kWarpLanes * kWarpRows;
    for (int base = choice / kWarpLanes * kWarpLanes; base < problem.tokens * problem.top_k; base += kWarpLanes) {
        for (unsigned members = find_members(problem, base, id); members != 0; members &= members - 1) {
            const int member = base + __ffs(members) - 1;
            const int output = problem.output_row(member), wanted = problem.input_row(member, output);
            Sums<warps> sums = {};
            for (int start = 0; start < problem.blocks; start += kHeld * kWarpLanes) {
                if (start > 0 || input != wanted) hold(held, problem, wanted, start);
                input = start > 0 ? -1 : wanted;
                mbarrier_wait_parity(tile.landed, 0);
                accumulate<warps>(sums, held, problem, tile, table, first, rows, start);
            }
            const float sum = reduce<warps>(sums);
            constexpr int kLanesOfRow = kWarpLanes / kWarpRows;
            const int row = first + lane / kLanesOfRow, n = first_n + row;
            if (lane % kLanesOfRow == 0 && row < rows)
                store(out + static_cast<int64_t>(output) * problem.n + n, epilogue(problem, expert, n, sum));
        }
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
//   shared memory    kRows * (K / 2 + K / 32) bytes;  grid: for each choice a CTA for each kRows of n;  64 threads
#define REFMOE_ENTRY(warps, dtype, Out)                                                                                 \
    extern "C" __global__ void __launch_bounds__(refmoe::kWarps * refmoe::kWarpLanes, refmoe::kCtas) refmoe_dp4a_gemv_##warps##_##dtype(        \
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
