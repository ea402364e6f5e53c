// Grouped GEMM of tokens in block FP8 with weights in block FP8 (DeepSeek-V3), by mma.sync: for every chip from sm_89 on.
//
//      out[row, n] = sum over blocks b of 128 elements of K, in FP32 and ascending, of
//                    token_scales[row, b] * weight_scales[e, n / 128, b] * (128 products summed by the tensor core)
//
// for the rows of expert e. The promotion has two roundings a block: factor = RN(token scale * weight scale), and
// sum = RN(factor * partial + sum), one FMA, from +0. What the tensor core makes of 128 products, four instructions
// chained from a zero accumulator, depends on the chip.
//
// A CTA computes a tile of 128 weight rows, which share a scale, by `tile_m` tokens. Weights are on the M side of the
// instruction, so that a tile can be 8 tokens narrow. A step along K is one block, a row of it 128 bytes:
//
//      stage:  | weights 128 x 128 | tokens tile_m x 128 | token scales, one a token | the weight scale |
//
// Copies are grouped, one group a stage, and run kStages - 1 blocks ahead. Rows past the end of an expert are zeros, and
// so are their scales; they are not stored.
#include "async_copy.cuh"
#include "deepseek_groups.cuh"
#include "instructions.cuh"

namespace refmoe {

constexpr int kTileN = 128;       // weight rows of a tile: those that share a scale
constexpr int kBlock = 128;       // elements of K that share a scale: bytes of a row in a stage
constexpr int kMmaM = 16, kMmaN = 8;
constexpr int kWarpN = 32;        // weight rows of a warp: two instructions
constexpr int kFragmentsN = kWarpN / kMmaM;
constexpr int kRowChunks = kBlock / kCopyBytes;
constexpr int kPair = 2;          // instructions along K that one ldmatrix serves on the tokens' side
constexpr int kMmaChunks = 2;     // of 16 bytes, that an instruction takes of a row
constexpr int kScaleBytes = 4;
constexpr int kScratchBytes = 8 * kWarpN * 2;  // of a warp, 8 tokens of BF16

/// What follows from the tokens of a tile.
template <int tile_m>
struct Tile {
    static constexpr int kM = tile_m;
    static constexpr int kWarpsN = kTileN / kWarpN, kWarpsM = tile_m >= 64 ? 2 : 1;
    static constexpr int kThreads = kWarpsN * kWarpsM * kWarpLanes;
    static constexpr int kWarpM = tile_m / kWarpsM, kFragmentsM = kWarpM / kMmaN;
    static constexpr int kStages = tile_m > 64 ? 3 : 4;

    static constexpr int kWeights = 0;
    static constexpr int kTokens = kTileN * kBlock;
    static constexpr int kTokenScales = kTokens + tile_m * kBlock;
    static constexpr int kWeightScale = kTokenScales + tile_m * kScaleBytes;
    static constexpr int kStageBytes = (kWeightScale + kScaleBytes + 127) / 128 * 128;

    // A warp's scratch memory is where the first round of its own copies goes.
    static_assert(kWeights == 0 && kScratchBytes == kWarpLanes * kCopyBytes);
    static_assert(kThreads * kCopyBytes <= kTokens);
};

/// The operands. Rows of tokens are numbered as `Groups` has them; scales of tokens lie at any strides.
struct Operands {
    const uint8_t* weights;      // [experts, n, k] E4M3
    const float* weight_scales;  // [experts, n / 128, k / 128]
    const uint8_t* tokens;       // [rows, k] E4M3
    const float* token_scales;   // of a row at row * scale_row + expert * scale_expert + block * scale_block
    int n, k;
    int scale_row, scale_expert, scale_block;
};

/// Starts a copy of one scale; where `valid` is false nothing is read and a zero arrives.
__device__ __forceinline__ void cp_async_scale(uint32_t target, const float* source, bool valid) {
    const int bytes = valid ? kScaleBytes : 0;
    asm volatile("cp.async.ca.shared.global [%0], [%1], 4, %2;" ::"r"(target), "l"(source), "r"(bytes) : "memory");
}

__device__ __forceinline__ void cp_async_commit_group() { asm volatile("cp.async.commit_group;" ::: "memory"); }

/// Waits until at most `pending` of this thread's groups of copies are not complete.
template <int pending>
__device__ __forceinline__ void cp_async_wait_group() {
    asm volatile("cp.async.wait_group %0;" ::"n"(pending) : "memory");
}

/// Where a chunk of a row lies in its part of a stage: 8 rows at the same chunk, as ldmatrix reads them, fall into
/// different banks.
__device__ __forceinline__ int chunk_offset(int row, int chunk) {
    return row * kBlock + (chunk ^ row % 8) * kCopyBytes;
}

/// Starts this thread's share of the copies of one block of K of a tile.
template <class Tile>
__device__ __forceinline__ void start_copies(const Operands& operands, const OutputTile& tile, int block,
                                             uint32_t stage) {
    const int64_t from = static_cast<int64_t>(block) * kBlock;
    const uint8_t* weights =
        operands.weights + (static_cast<int64_t>(tile.expert) * operands.n + tile.n) * operands.k + from;
#pragma unroll
    for (int i = threadIdx.x; i < kTileN * kRowChunks; i += Tile::kThreads) {
        const int row = i / kRowChunks, chunk = i % kRowChunks;
        cp_async_16(stage + Tile::kWeights + chunk_offset(row, chunk),
                    weights + static_cast<int64_t>(row) * operands.k + chunk * kCopyBytes, true);
    }
    const uint8_t* tokens = operands.tokens + (static_cast<int64_t>(tile.first_row) + tile.m) * operands.k + from;
    for (int i = threadIdx.x; i < Tile::kM * kRowChunks; i += Tile::kThreads) {
        const int row = i / kRowChunks, chunk = i % kRowChunks;
        const bool valid = tile.m + row < tile.rows;
        cp_async_16(stage + Tile::kTokens + chunk_offset(row, chunk),
                    tokens + (valid ? static_cast<int64_t>(row) * operands.k + chunk * kCopyBytes : 0), valid);
    }
    const float* token_scales = operands.token_scales +
                                (static_cast<int64_t>(tile.first_row) + tile.m) * operands.scale_row +
                                static_cast<int64_t>(tile.expert) * operands.scale_expert +
                                static_cast<int64_t>(block) * operands.scale_block;
    for (int row = threadIdx.x; row < Tile::kM; row += Tile::kThreads) {
        const bool valid = tile.m + row < tile.rows;
        cp_async_scale(stage + Tile::kTokenScales + row * kScaleBytes,
                       token_scales + (valid ? static_cast<int64_t>(row) * operands.scale_row : 0), valid);
    }
    if (threadIdx.x == 0) {
        const int64_t scale_row = (static_cast<int64_t>(tile.expert) * operands.n + tile.n) / kTileN;
        cp_async_scale(stage + Tile::kWeightScale, operands.weight_scales + scale_row * (operands.k / kBlock) + block,
                       true);
    }
}

/// The tensor core's D = A * B + D of E4M3: 16 weight rows, 8 tokens, 32 of K. With g = lane / 4 and t = lane % 4:
///
///      A  a[0], a[1]: weight row g, g + 8, bytes 4t .. 4t+3        B  b[0]: token g, bytes 4t .. 4t+3
///         a[2], a[3]: the same, bytes 16+4t .. 16+4t+3                b[1]: token g, bytes 16+4t .. 16+4t+3
///      D  d[0], d[1]: weight row g,     tokens 2t, 2t+1
///         d[2], d[3]: weight row g + 8, tokens 2t, 2t+1
__device__ __forceinline__ void mma_e4m3(float (&d)[4], const uint32_t (&a)[4], uint32_t b0, uint32_t b1) {
    asm volatile(
        "mma.sync.aligned.m16n8k32.row.col.f32.e4m3.e4m3.f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, "
        "{%0, %1, %2, %3};"
        : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])
        : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
}

/// The sums of a warp: 32 weight rows by its tokens.
template <class Tile>
struct Sums {
    float of[kFragmentsN][Tile::kFragmentsM][4];

    __device__ __forceinline__ void clear() {
#pragma unroll
        for (auto& row : of)
#pragma unroll
            for (auto& fragment : row)
#pragma unroll
                for (float& sum : fragment) sum = 0.0f;
    }
};

/// A warp's place in a tile: its first weight row and its first token.
template <class Tile>
struct WarpPlace {
    int n, m;

    __device__ __forceinline__ WarpPlace()
        : n(threadIdx.x / kWarpLanes % Tile::kWarpsN * kWarpN),
          m(threadIdx.x / kWarpLanes / Tile::kWarpsN * Tile::kWarpM) {}
};

/// The 128 products of a block, for this warp's part of a stage: four instructions chained from zero. The fragments are
/// what ldmatrix brings:
///
///      weights, one instruction    matrices 0, 1: rows 0..7 and 8..15, its first chunk     a[0], a[1]
///                                  matrices 2, 3: the same rows, its second chunk          a[2], a[3]
///      tokens, two instructions    matrices 0, 1: 8 rows, both chunks of the first         b[0], b[1]
///                                  matrices 2, 3: 8 rows, both chunks of the second        b[0], b[1]
template <class Tile>
__device__ __forceinline__ void multiply_block(Sums<Tile>& partial, uint32_t stage) {
    const WarpPlace<Tile> place;
    const int lane = threadIdx.x % kWarpLanes;
    partial.clear();
#pragma unroll 1
    for (int first = 0; first < kRowChunks; first += kPair * kMmaChunks) {
        uint32_t weights[kPair][kFragmentsN][4];
#pragma unroll
        for (int p = 0; p < kPair; ++p) {
#pragma unroll
            for (int i = 0; i < kFragmentsN; ++i) {
                const int row = place.n + i * kMmaM + lane % kMmaM, chunk = first + p * kMmaChunks + lane / kMmaM;
                ldmatrix_x4(weights[p][i], stage + Tile::kWeights + chunk_offset(row, chunk));
            }
        }
#pragma unroll
        for (int j = 0; j < Tile::kFragmentsM; ++j) {
            uint32_t tokens[2 * kPair];
            ldmatrix_x4(tokens, stage + Tile::kTokens +
                                    chunk_offset(place.m + j * kMmaN + lane % kMmaN, first + lane / kMmaN));
#pragma unroll
            for (int p = 0; p < kPair; ++p)
#pragma unroll
                for (int i = 0; i < kFragmentsN; ++i)
                    mma_e4m3(partial.of[i][j], weights[p][i], tokens[2 * p], tokens[2 * p + 1]);
        }
    }
}

/// total = RN(factor * partial + total), factor = RN(token scale * weight scale).
template <class Tile>
__device__ __forceinline__ void promote(Sums<Tile>& total, const Sums<Tile>& partial, uint32_t stage) {
    const WarpPlace<Tile> place;
    const float weight_scale = __uint_as_float(ld_shared_u32(stage + Tile::kWeightScale));
    const uint32_t token_scales = stage + Tile::kTokenScales + (place.m + threadIdx.x % 4 * 2) * kScaleBytes;
#pragma unroll
    for (int j = 0; j < Tile::kFragmentsM; ++j) {
        const uint2 pair = ld_shared_v2_u32(token_scales + j * kMmaN * kScaleBytes);
        const float factors[2] = {__fmul_rn(__uint_as_float(pair.x), weight_scale),
                                  __fmul_rn(__uint_as_float(pair.y), weight_scale)};
#pragma unroll
        for (int i = 0; i < kFragmentsN; ++i)
#pragma unroll
            for (int c = 0; c < 4; ++c)
                total.of[i][j][c] = __fmaf_rn(factors[c % 2], partial.of[i][j][c], total.of[i][j][c]);
    }
}

/// Stores a warp's part of a tile as FP32, each lane its own elements.
template <class Tile>
__device__ __forceinline__ void store_tile(const Sums<Tile>& total, const OutputTile& tile, int n, uint8_t*,
                                           float* out) {
    const WarpPlace<Tile> place;
    const int lane = threadIdx.x % kWarpLanes;
#pragma unroll
    for (int i = 0; i < kFragmentsN; ++i) {
#pragma unroll
        for (int j = 0; j < Tile::kFragmentsM; ++j) {
#pragma unroll
            for (int c = 0; c < 4; ++c) {
                const int row = tile.m + place.m + j * kMmaN + lane % 4 * 2 + c % 2;
                const int column = tile.n + place.n + i * kMmaM + lane / 4 + c / 2 * 8;
                if (row < tile.rows)
                    out[(static_cast<int64_t>(tile.first_row) + row) * n + column] = total.of[i][j][c];
            }
        }
    }
}

/// Stores it as BF16. Fragments hold neighbouring tokens, memory wants neighbouring weight rows: a warp turns 8 tokens
/// by 32 weight rows at a time in its own 512 bytes of shared memory, and stores 16 bytes a lane. Chunks of 16 bytes are
/// XORed with token / 2, so that the tokens of a fragment fall into different banks.
template <class Tile>
__device__ __forceinline__ void store_tile(const Sums<Tile>& total, const OutputTile& tile, int n, uint8_t* shared,
                                           uint16_t* out) {
    constexpr int kChunkElements = kCopyBytes / 2, kScratchChunks = kWarpN / kChunkElements;
    const WarpPlace<Tile> place;
    const int lane = threadIdx.x % kWarpLanes;
    uint8_t* scratch = shared + threadIdx.x / kWarpLanes * kScratchBytes;
    const auto chunk_at = [scratch](int token, int chunk) {
        return scratch + token * kWarpN * 2 + (chunk ^ (token / 2)) * kCopyBytes;
    };
#pragma unroll
    for (int j = 0; j < Tile::kFragmentsM; ++j) {
#pragma unroll
        for (int eight = 0; eight < kWarpN / 8; ++eight) {  // weight rows
            const float* sums = total.of[eight / 2][j] + eight % 2 * 2;
            const uint32_t pair = cvt_rn_bf16x2(sums[1], sums[0]);
            const int token = lane % 4 * 2;
            reinterpret_cast<uint16_t*>(chunk_at(token, eight))[lane / 4] = static_cast<uint16_t>(pair);
            reinterpret_cast<uint16_t*>(chunk_at(token + 1, eight))[lane / 4] = static_cast<uint16_t>(pair >> 16);
        }
        __syncwarp();
        const int token = lane / kScratchChunks, chunk = lane % kScratchChunks;
        const uint4 values = *reinterpret_cast<const uint4*>(chunk_at(token, chunk));
        const int row = tile.m + place.m + j * kMmaN + token, column = tile.n + place.n + chunk * kChunkElements;
        if (row < tile.rows)
            *reinterpret_cast<uint4*>(out + (static_cast<int64_t>(tile.first_row) + row) * n + column) = values;
        __syncwarp();
    }
}

template <class Tile, class Out>
__device__ __forceinline__ void deepseek_gemm(const Operands& operands, const Groups& groups, Out* out) {
    extern __shared__ __align__(1024) uint8_t shared[];
    const uint32_t first_stage = shared_address(shared);
    const int blocks = operands.k / kBlock;
    TileFinder<Tile::kM, kTileN> finder(groups, operands.n);
    for (int number = blockIdx.x; finder.find(number); number += gridDim.x) {
        const OutputTile tile = finder.tile();
        // A group for every block that there may be, so that counting groups is counting blocks.
        for (int block = 0; block < Tile::kStages - 1; ++block) {
            if (block < blocks) start_copies<Tile>(operands, tile, block, first_stage + block * Tile::kStageBytes);
            cp_async_commit_group();
        }
        Sums<Tile> total, partial;
        total.clear();
        int reading = 0, filling = Tile::kStages - 1;
#pragma unroll 1
        for (int block = 0; block < blocks; ++block) {
            cp_async_wait_group<Tile::kStages - 2>();
            __syncthreads();  // everybody's copies have landed, and everybody has read the stage that is filled next
            if (block + Tile::kStages - 1 < blocks)
                start_copies<Tile>(operands, tile, block + Tile::kStages - 1,
                                   first_stage + filling * Tile::kStageBytes);
            cp_async_commit_group();
            const uint32_t stage = first_stage + reading * Tile::kStageBytes;
            multiply_block<Tile>(partial, stage);
            promote<Tile>(total, partial, stage);
            reading = reading + 1 == Tile::kStages ? 0 : reading + 1;
            filling = filling + 1 == Tile::kStages ? 0 : filling + 1;
        }
        __syncthreads();  // the stages are read; the first is scratch from here on
        // No barrier behind it: the 512 bytes that a warp has as scratch memory are those that it copies to first.
        store_tile<Tile>(total, tile, operands.n, shared, out);
    }
}

}  // namespace refmoe

// Entries: refmoe_deepseek_gemm_<tokens of a tile>_<bf16|f32>. K and n are multiples of 128; weights, tokens and the
// output are 16-byte aligned. Of `m_indptr` and `masked_m` one is null. Dynamic shared memory: kStages * kStageBytes.
#define REFMOE_ENTRY(tile_m, dtype, Out)                                                                              \
    extern "C" __global__ void __launch_bounds__(refmoe::Tile<tile_m>::kThreads, 1)                                   \
        refmoe_deepseek_gemm_##tile_m##_##dtype(                                                                      \
            const uint8_t* weights, const float* weight_scales, const uint8_t* tokens, const float* token_scales,     \
            const int64_t* m_indptr, const int32_t* masked_m, Out* out, int experts, int rows_each, int n, int k,     \
            int scale_row, int scale_expert, int scale_block) {                                                       \
        refmoe::deepseek_gemm<refmoe::Tile<tile_m>>(                                                                  \
            {weights, weight_scales, tokens, token_scales, n, k, scale_row, scale_expert, scale_block},               \
            {m_indptr, masked_m, experts, rows_each}, out);                                                           \
    }
#define REFMOE_TILE(tile_m)              \
    REFMOE_ENTRY(tile_m, bf16, uint16_t) \
    REFMOE_ENTRY(tile_m, f32, float)

REFMOE_TILE(8)
REFMOE_TILE(16)
REFMOE_TILE(32)
REFMOE_TILE(64)
REFMOE_TILE(128)
