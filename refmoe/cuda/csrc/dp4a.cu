// The product of MXFP4 weights and Q8_1 activations for a few tokens, each with its own experts:
//
//      out[row, n] = alpha[e] * sum over blocks b of  (d[b] * 2^(scale[e, n, b] - 127) / 2) * dot(e, n, b)  +  bias[e, n]
//
// dot is the exact int32 sum over a block's 32 elements of the FP4 numbers, doubled so that they are integers, times the
// activation's codes. The rest is FP32, every operation rounded to nearest, subnormals kept: scale byte 0 means 2^-128.
//
// What bounds this kernel is how early its bytes are asked for, and how few instructions a block takes. A CTA asks for all
// of its weights by one bulk copy, which needs no registers: with K = 2880 seven CTAs on a multiprocessor have 81 KB in
// flight, where 32 KB would hide a latency of a microsecond at 4 TB/s. The copy engine of an H200 takes some 230 cycles for
// a copy, however small, so the scales come by plain loads, sent out at once so that they do not queue behind the weights.
// Then each warp takes two or four whole rows, so that nothing is exchanged but inside a warp, and keeps the blocks of the
// activation in registers for all of them.
//
// With four rows a multiprocessor asks for 147 KB at K = 2880 before any activation has to be there, and what a CTA does
// before and after its blocks is done half as often: a layer of gpt-oss takes less time that way for one token, for four
// and for eight, though a product of one token alone takes more. A longer K has two rows, or a CTA's rows would fill
// shared memory alone.
//
// Weights, scales, biases and ids depend on no launch in front of this one, and are asked for before it has ended
// (dependent_launch.cuh); activations and the rows of outputs come after.
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
#include "dependent_launch.cuh"
#include "instructions.cuh"
#include "warp.cuh"

namespace refmoe {

constexpr int kBlockBytes = 16;  // of a block's weights
constexpr int kWarps = 4;        // of a CTA, fewer where the weights of so many do not fit shared memory
template <int warp_rows>         // weight rows of a warp, 2 or 4
constexpr int kLanesOfRow = kWarpLanes / warp_rows;  // that end up with the sum of a row
constexpr int kHeld = 4;         // blocks of an activation that a lane holds
#if __CUDA_ARCH__ >= 1200
template <int warp_rows>         // on a multiprocessor: a seventh of two rows spills; more of four do not fit shared memory
constexpr int kCtas = warp_rows == 2 ? 6 : 4;
#else
template <int warp_rows>         // on a multiprocessor, which leaves a thread 72 or 80 registers
constexpr int kCtas = warp_rows == 2 ? 7 : 6;
#endif

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
    uint32_t tiles;        // of n, one for each CTA of a choice
    uint32_t inverse;      // 65536 / top_k + 1

    /// choice / top_k, exact for up to 256 of both.
    __device__ __forceinline__ int token(int choice) const { return static_cast<int>(choice * inverse >> 16); }

    /// The output row of a choice, below 0 if it has none.
    __device__ __forceinline__ int output_row(int choice) const {
        const int row = token(choice) + (choice - token(choice) * top_k) * tokens;
        return row_of_choice ? row_of_choice[row] : row;
    }

    __device__ __forceinline__ int input_row(int choice, int output) const {
        return input_by_choice ? output : token(choice);
    }
};

/// The magnitudes of doubled FP4, by code: 0 1 2 3 4 6 8 12.
constexpr uint32_t kMagnitudesLow = 0x03020100u, kMagnitudesHigh = 0x0C080604u;
constexpr uint32_t kSigns = 0x88888888u;

/// The low half of the table in a register that ptxas takes for any. What it knows to be the same in all lanes it keeps in
/// a uniform register, which prmt cannot read, and moves it back before every lookup. threadIdx.y is 0, but ptxas does not
/// know that.
__device__ __forceinline__ uint32_t table_of_magnitudes() { return kMagnitudesLow | threadIdx.y; }

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
    const float d = cvt_f32_f16(problem.d[index]);
    return {problem.codes[2 * index], problem.codes[2 * index + 1], __fmul_rn(d, 0.5f)};
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
    constexpr uint32_t kLeast = 0x00400000u;
    uint32_t bits;
    asm("max.u32 %0, %1, %2;" : "=r"(bits) : "r"(byte << 23), "r"(kLeast));  // max() becomes two instructions
    const float value = __uint_as_float(bits);                                // byte 255 gives infinity
    return __fmaf_rn(value, 0.0f, value);                                     // a NaN for infinity, else `value`
}

/// Of the choices from `base` on, those of the next 32 that name the expert `id`, a bit each.
__device__ __forceinline__ unsigned find_members(const Problem& problem, int base, int id) {
    const int other = base + threadIdx.x % kWarpLanes;
    return __ballot_sync(kFullWarp, other < problem.tokens * problem.top_k && __ldg(problem.topk_ids + other) == id);
}

/// Whether an earlier choice names the same expert: its CTAs compute this one too. `members` are those among this
/// choice's 32.
__device__ __forceinline__ bool has_leader(const Problem& problem, int choice, int id, unsigned members) {
    for (int base = 0; base + kWarpLanes <= choice; base += kWarpLanes)
        if (find_members(problem, base, id) != 0) return true;
    return (members & ((1u << choice % kWarpLanes) - 1)) != 0;
}

/// RN(RN(alpha * sum) + bias), the factor and the term left out where there is none. Both are loaded long before.
struct Epilogue {
    bool scaled, biased;
    float alpha;
    uint32_t bias;  // BF16

    __device__ __forceinline__ float operator()(float sum) const {
        const float product = scaled ? __fmul_rn(alpha, sum) : sum;
        return biased ? __fadd_rn(product, __uint_as_float(bias << 16)) : product;
    }
};

__device__ __forceinline__ Epilogue load_epilogue(const Problem& problem, int expert, int n) {
    Epilogue loaded{problem.alpha != nullptr, problem.bias != nullptr, 0.0f, 0};
    if (loaded.scaled) loaded.alpha = __ldg(problem.alpha + expert);
    if (loaded.biased) loaded.bias = __ldg(problem.bias + static_cast<int64_t>(expert) * problem.n + n);
    return loaded;
}

__device__ __forceinline__ void store(float* out, float value) { *out = value; }
__device__ __forceinline__ void store(uint16_t* out, float value) {
    *out = static_cast<uint16_t>(cvt_rn_bf16x2(0.0f, value));
}

/// The weights of a CTA in shared memory, and the barrier that says when they are there.
struct Tile {
    uint4* weights;   // [rows of a CTA, blocks]
    uint8_t* scales;  // [rows of a CTA, blocks]
    uint32_t landed;
};

/// Asks for the weights of `rows` rows by one bulk copy: their addresses and sizes are multiples of 16 bytes.
__device__ __forceinline__ void load_weights(const Problem& problem, const Tile& tile, int64_t first_row, int rows) {
    if (threadIdx.x != 0) return;
    const int bytes = rows * problem.blocks * kBlockBytes;
    mbarrier_init(tile.landed, 1);
    fence_mbarrier_init();
    mbarrier_arrive_expect_tx(tile.landed, bytes);
    const uint8_t* const from = problem.weights + first_row * problem.blocks * kBlockBytes;
    cp_async_bulk(shared_address(tile.weights), from, bytes, tile.landed);
}

/// Copies the scales of `rows` rows, ahead of the barrier of the CTA: in pieces of 16 bytes where addresses and sizes are
/// multiples of that, as in most matrices, else byte by byte.
__device__ __forceinline__ void load_scales(const Problem& problem, const Tile& tile, int64_t first_row, int rows) {
    const uint8_t* const from = problem.weight_scales + first_row * problem.blocks;
    const int bytes = rows * problem.blocks, threads = blockDim.x;
    if ((reinterpret_cast<uintptr_t>(from) | bytes) % kCopyBytes == 0) {
        const uint4* const pieces = reinterpret_cast<const uint4*>(from);
#pragma unroll 1
        for (int at = threadIdx.x; at < bytes / kCopyBytes; at += threads)
            reinterpret_cast<uint4*>(tile.scales)[at] = __ldg(pieces + at);
    } else {
#pragma unroll 1
        for (int at = threadIdx.x; at < bytes; at += threads) tile.scales[at] = __ldg(from + at);
    }
}

/// This lane's slots of its warp's rows, for one activation.
template <int warps, int warp_rows>
using Sums = float[warp_rows][warps];

/// Loads this lane's share of kHeld * 32 blocks from `start` on.
__device__ __forceinline__ void hold(Activation (&held)[kHeld], const Problem& problem, int input, int start) {
#pragma unroll
    for (int slot = 0; slot < kHeld; ++slot) {
        const int block = start + slot * kWarpLanes + threadIdx.x % kWarpLanes;
        if (block < problem.blocks) held[slot] = load_activation(problem, input, block);
    }
}

/// Where this lane's blocks of its warp's rows are: block 0 + lane of each row.
template <int warp_rows>
struct Rows {
    const uint4* weights[warp_rows];
    const uint8_t* scales[warp_rows];
};

/// The rows from `first` on. Those past the last repeat it; their sums go nowhere.
template <int warp_rows>
__device__ __forceinline__ Rows<warp_rows> find_rows(const Problem& problem, const Tile& tile, int first, int rows) {
    Rows<warp_rows> found;
#pragma unroll
    for (int row = 0; row < warp_rows; ++row) {
        const int at = min(first + row, rows - 1) * problem.blocks + threadIdx.x % kWarpLanes;
        found.weights[row] = tile.weights + at;
        found.scales[row] = tile.scales + at;
    }
    return found;
}

/// Adds the terms of the held blocks, whose first is `start`.
template <int warps, int warp_rows>
__device__ __forceinline__ void accumulate(Sums<warps, warp_rows>& sums, const Activation (&held)[kHeld],
                                           const Rows<warp_rows>& rows, uint32_t table, int start, int blocks) {
#pragma unroll
    for (int slot = 0; slot < kHeld; ++slot) {
        const int at = start + slot * kWarpLanes;
        if (at + static_cast<int>(threadIdx.x) % kWarpLanes >= blocks) break;
#pragma unroll
        for (int row = 0; row < warp_rows; ++row) {
            const float factor = __fmul_rn(held[slot].half_d, scale(rows.scales[row][at]));
            const int dot = block_dot(table, rows.weights[row][at], held[slot]);
            sums[row][slot % warps] = __fadd_rn(sums[row][slot % warps], __fmul_rn(factor, __int2float_rn(dot)));
        }
    }
}

/// The sum over slots, then over lanes by xor 16, 8, 4, 2, 1, of row lane / kLanesOfRow. While there is more than one row
/// left, the lanes of a pair share the work: each gives away the row that it does not keep, and both add the same two
/// numbers that each would have added.
///
///      lanes     0..15   16..31
///      xor 16    row 0   row 1         the row that a lane has left
///
///      lanes     0..7   8..15   16..23   24..31
///      xor 16    rows 0 and 1   rows 2 and 3
///      xor 8     row 0  row 1   row 2    row 3
template <int warps, int warp_rows>
__device__ __forceinline__ float reduce(const Sums<warps, warp_rows>& sums) {
    float rows[warp_rows];
#pragma unroll
    for (int row = 0; row < warp_rows; ++row) {
        rows[row] = sums[row][0];
#pragma unroll
        for (int slot = 1; slot < warps; ++slot) rows[row] = __fadd_rn(rows[row], sums[row][slot]);
    }
    int distance = kWarpLanes / 2;
#pragma unroll
    for (int left = warp_rows / 2; left > 0; left /= 2, distance /= 2) {
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

/// A CTA takes warp_rows rows a warp of the expert that one choice names, for all choices that name it in turn.
template <int warps, int warp_rows, class Out>
__device__ __forceinline__ void dp4a_gemv(const Problem& problem, Out* __restrict__ out) {
    static_assert(kHeld % warps == 0, "a round of held blocks is whole rounds of slots");
    extern __shared__ uint4 shared[];  // weights [rows, blocks] of 16 bytes, then scales [rows, blocks]
    __shared__ uint64_t barrier;

    launch_dependents();
    const int most = blockDim.x / kWarpLanes * warp_rows;
    const int choice = blockIdx.x / problem.tiles, first_n = (blockIdx.x - choice * problem.tiles) * most;
    const int id = __ldg(problem.topk_ids + choice), expert = id - problem.first_expert;
    int base = choice & -kWarpLanes;
    unsigned members = find_members(problem, base, id);
    if (expert < 0 || expert >= problem.experts || has_leader(problem, choice, id, members)) {
        wait_for_launches();
        return;
    }

    const Tile tile{shared, reinterpret_cast<uint8_t*>(shared + most * problem.blocks), shared_address(&barrier)};
    const int rows = min(most, problem.n - first_n);
    const int64_t first_row = static_cast<int64_t>(expert) * problem.n + first_n;
    load_weights(problem, tile, first_row, rows);
    load_scales(problem, tile, first_row, rows);

    const int lane = threadIdx.x % kWarpLanes, first = threadIdx.x / kWarpLanes * warp_rows;
    const int mine_in_warp = lane / kLanesOfRow<warp_rows>, row = min(first + mine_in_warp, rows - 1), n = first_n + row;
    const bool stores = lane % kLanesOfRow<warp_rows> == 0 && first + mine_in_warp < rows;
    const Epilogue epilogue = load_epilogue(problem, expert, n);
    const uint32_t table = table_of_magnitudes();
    const Rows<warp_rows> mine = find_rows<warp_rows>(problem, tile, first, rows);

    wait_for_launches();
    Activation held[kHeld];
    int input = -1;  // whose first blocks are held; -1 for none. The first ones are asked for before the CTA meets.
    const int own_output = problem.output_row(choice);
    if (own_output >= 0) hold(held, problem, input = problem.input_row(choice, own_output), 0);
    __syncthreads();  // scales and `landed` are visible
    if (first >= rows) return;
    mbarrier_wait_parity(tile.landed, 0);
    while (true) {
        for (; members != 0; members &= members - 1) {
            const int member = base + __ffs(members) - 1, output = problem.output_row(member);
            if (output < 0) continue;
            const int wanted = problem.input_row(member, output);
            Sums<warps, warp_rows> sums = {};
            for (int start = 0; start < problem.blocks; start += kHeld * kWarpLanes) {
                if (start > 0 || input != wanted) hold(held, problem, wanted, start);
                input = start > 0 ? -1 : wanted;
                accumulate<warps, warp_rows>(sums, held, mine, table, start, problem.blocks);
            }
            const float sum = reduce<warps, warp_rows>(sums);
            if (stores) store(out + static_cast<int64_t>(output) * problem.n + n, epilogue(sum));
        }
        base += kWarpLanes;
        if (base >= problem.tokens * problem.top_k) return;
        members = find_members(problem, base, id);
    }
}

}  // namespace refmoe

// Entries: refmoe_dp4a_gemv_<warps>_<out>_<warp_rows>_rows. Every pointer is 16-byte aligned, but those to scales.
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
//   tiles            n / rows, rounded up
//   inverse          65536 / top_k + 1
//   shared memory    rows * (K / 2 + K / 32) bytes, rows = warp_rows for each warp of a CTA, kWarps at most
//   grid             for each choice `tiles` CTAs
#define REFMOE_ENTRY(warps, dtype, Out, warp_rows)                                                                      \
    extern "C" __global__ void __launch_bounds__(refmoe::kWarps * refmoe::kWarpLanes, refmoe::kCtas<warp_rows>)          \
        refmoe_dp4a_gemv_##warps##_##dtype##_##warp_rows##_rows(                                                        \
            const uint4* codes, const uint16_t* d, const uint8_t* weights, const uint8_t* weight_scales,                \
            const int* topk_ids, const int* row_of_choice, const float* alpha, const uint16_t* bias, Out* out,          \
            int tokens, int top_k, int experts, int first_expert, int n, int blocks, int input_by_choice, int tiles,   \
            int inverse) {                                                                                              \
        const refmoe::Problem problem{codes,  d,     weights, weight_scales, topk_ids, row_of_choice, alpha, bias,      \
                                      tokens, top_k, experts, first_expert,  n,        blocks,                          \
                                      input_by_choice != 0, static_cast<uint32_t>(tiles),                               \
                                      static_cast<uint32_t>(inverse)};                                                  \
        refmoe::dp4a_gemv<warps, warp_rows>(problem, out);                                                              \
    }
#define REFMOE_ROWS(warps, dtype, Out)   \
    REFMOE_ENTRY(warps, dtype, Out, 2)   \
    REFMOE_ENTRY(warps, dtype, Out, 4)

REFMOE_ROWS(4, bf16, uint16_t)
REFMOE_ROWS(4, f32, float)
REFMOE_ROWS(2, bf16, uint16_t)
REFMOE_ROWS(2, f32, float)
