// Grouped GEMM of block FP8 tokens with block FP8 weights, by wgmma: for sm_90a alone.
//
//      out[row, n] = sum over blocks b of 128 elements of K, in FP32 and ascending, of
//                    token_scales[row, b] * weight_scales[e, n / 128, b] * (128 products summed by the tensor core)
//
// for the rows of expert e. The promotion is that of deepseek_gemm.cu: factor = RN(token scale * weight scale), and
// sum = RN(factor * partial + sum), from +0. The tensor core's own sum is another: four wgmma of 32 products, chained
// from zero, which keep 13 bits below their largest term.
//
// A CTA is three warpgroups. One thread of the last starts tensor copies; the others multiply and promote. A CTA walks
// over output tiles (persistent), and the copies run ahead across their borders, in a ring of stages of one block of K
// each:
//
//      full[s]    complete when all copies into stage s have landed
//      empty[s]   complete when every warp that multiplies what is copied into stage s has read it: one arrival a warp
//      stage:     | tokens tile_m x 128 | weights 128 x 128 |
//
// How the two warpgroups share a tile of tile_m tokens by 128 weight rows:
//
//      tile_m = 64     both have all tokens, and 64 weight rows each
//      tile_m = 128    64 tokens each, and all weight rows
//      tile_m = 256    two parts of 64 tokens each, and all weight rows
//
// While one warpgroup promotes, the tensor cores work for the other. The more tokens a tile has, the fewer bytes are copied
// and read from shared memory for each product: on an H200 that, not arithmetic, bounds the narrower tiles.
//
// Two CTAs may be a pair, a cluster with neighbouring weight rows and the same tokens: each copies half of the tokens, into
// both. A stage is then empty when the warps of both have read it.
//
// A box of tokens may reach into the rows of the next expert, or past the last; those sums are not stored. Scales come
// through the cache, a block ahead, two a thread.
#if defined(__CUDA_ARCH_FEAT_SM90_ALL)

#include "async_copy.cuh"
#include "bulk_copy.cuh"
#include "deepseek_groups.cuh"
#include "instructions.cuh"
#include "wgmma.cuh"

namespace refmoe {

constexpr int kTileN = 128;      // weight rows of a tile: those that share a scale
constexpr int kBlock = 128;      // elements of K that share a scale: bytes of a line
constexpr int kMultiplying = 2;  // warpgroups
constexpr int kThreads = (kMultiplying + 1) * kWarpgroupThreads;
constexpr int kMultiplyingWarps = kMultiplying * kWarpgroupThreads / kWarpLanes;
constexpr int kCopyRegisters = 40, kMultiplyRegisters = 232;
constexpr int kBarrier = 8;                        // bytes
constexpr int kStoreColumns = 64;                  // BF16 of a line of 128 bytes: of a box of the output
constexpr int kStoreBytes = kWgmmaM * kLineBytes;  // of such a box

/// What follows from the tokens of a tile, and the CTAs that share them, 1 or 2.
template <int tile_m, int ctas>
struct Tile {
    static constexpr int kM = tile_m, kCtas = ctas;
    static constexpr bool kSplitN = tile_m == kWgmmaM;
    static constexpr int kWgmmaN = kSplitN ? kTileN / kMultiplying : kTileN;
    static constexpr int kParts = kSplitN ? 1 : tile_m / (kMultiplying * kWgmmaM);  // of a warpgroup, 64 tokens each
    static constexpr int kSums = kWgmmaN / 2;                                       // of a thread and a part
    static constexpr int kStages = tile_m > 128 ? 4 : tile_m > 64 ? 6 : 8;

    static constexpr int kTokens = 0;
    static constexpr int kWeights = tile_m * kBlock;
    static constexpr int kStageBytes = kWeights + kTileN * kBlock;
    static constexpr int kStoreBoxes = kWgmmaN / kStoreColumns;  // of a warpgroup
    static constexpr int kScratch = kStages * kStageBytes;
    static constexpr int kBarriers = kScratch + kMultiplying * kStoreBoxes * kStoreBytes;
};

/// The operands beside the codes, which tensor maps tell of. Rows of tokens are numbered as `Groups` has them.
struct Operands {
    const float* weight_scales;  // [experts, n / 128, k / 128]
    const float* token_scales;   // of a row at row * scale_row + expert * scale_expert + block * scale_block
    int n, k;
    int scale_row, scale_expert, scale_block;
};

/// A place in the ring of stages: its index, and the parity of the phase that it is in.
template <int stages>
struct RingPosition {
    int stage = 0;
    uint32_t parity = 0;

    __device__ __forceinline__ void next() {
        if (++stage == stages) {
            stage = 0;
            parity ^= 1;
        }
    }
};

/// Finds this CTA's tiles: a pair of CTAs takes tiles of twice as many weight rows, half of them each.
template <class Tile>
class Tiles {
  public:
    __device__ __forceinline__ Tiles(const Groups& groups, int n)
        : finder_(groups, n), number_(blockIdx.x / Tile::kCtas) {}

    /// Whether there is a tile left; then it is `tile`.
    __device__ __forceinline__ bool next(OutputTile& tile) {
        if (!finder_.find(number_)) return false;
        number_ += gridDim.x / Tile::kCtas;
        tile = finder_.tile();
        tile.n += blockIdx.x % Tile::kCtas * kTileN;
        return true;
    }

  private:
    TileFinder<Tile::kM, Tile::kCtas * kTileN> finder_;
    int number_;
};

/// The copying warp: both operands of every block of every tile of this CTA.
template <class Tile>
__device__ __forceinline__ void copy_tiles(const TensorMap& tokens, const TensorMap& weights, const Operands& operands,
                                           const Groups& groups, uint32_t shared) {
    constexpr int kOwnTokens = Tile::kM / Tile::kCtas;  // that this CTA copies
    const int blocks = operands.k / kBlock, rank = blockIdx.x % Tile::kCtas;
    const uint32_t full = shared + Tile::kBarriers, empty = full + Tile::kStages * kBarrier;
    RingPosition<Tile::kStages> filling;
    filling.parity = 1;  // the wait for an empty stage passes in its first round: no phase is complete yet
    Tiles<Tile> tiles(groups, operands.n);
    for (OutputTile tile; tiles.next(tile);) {
        if (threadIdx.x % kWarpLanes == 0) {
            const int token_row = tile.first_row + tile.m + rank * kOwnTokens;
            const int weight_row = tile.expert * operands.n + tile.n;
            for (int block = 0; block < blocks; ++block) {
                mbarrier_wait_parity(empty + filling.stage * kBarrier, filling.parity);
                const uint32_t stage = shared + filling.stage * Tile::kStageBytes;
                const uint32_t barrier = full + filling.stage * kBarrier;
                const uint32_t own_tokens = stage + Tile::kTokens + rank * kOwnTokens * kLineBytes;
                mbarrier_arrive_expect_tx(barrier, Tile::kStageBytes);
                if (Tile::kCtas == 1)
                    tensor_load(own_tokens, tokens, block * kBlock, token_row, barrier);
                else
                    tensor_load_multicast(own_tokens, tokens, block * kBlock, token_row, barrier, 0b11);
                tensor_load(stage + Tile::kWeights, weights, block * kBlock, weight_row, barrier);
                filling.next();
            }
        }
        __syncwarp();
    }
}

/// The factors of a thread's rows, two of each part, block after block; what they are made of is loaded a block ahead.
template <int parts>
class Factors {
  public:
    static constexpr int kRows = 2 * parts;

    /// From a row of the tile on. Rows past the expert's take its last row's.
    __device__ __forceinline__ Factors(const Operands& operands, const OutputTile& tile, int row)
        : blocks_(operands.k / kBlock), step_(operands.scale_block) {
#pragma unroll
        for (int i = 0; i < kRows; ++i) {
            const int64_t at = tile.first_row + min(row + i / 2 * kWgmmaM + i % 2 * 8, tile.rows - 1);
            tokens_[i] = operands.token_scales + at * operands.scale_row +
                         static_cast<int64_t>(tile.expert) * operands.scale_expert;
        }
        const int64_t scale_row = (static_cast<int64_t>(tile.expert) * operands.n + tile.n) / kTileN;
        weights_ = operands.weight_scales + scale_row * blocks_;
        load(0);
    }

    /// RN(token scale * weight scale) of a block, which follows the last one that was taken.
    __device__ __forceinline__ void take(float (&factors)[kRows], int block) {
#pragma unroll
        for (int i = 0; i < kRows; ++i) factors[i] = __fmul_rn(token_[i], weight_);
        load(min(block + 1, blocks_ - 1));
    }

  private:
    __device__ __forceinline__ void load(int block) {
#pragma unroll
        for (int i = 0; i < kRows; ++i) token_[i] = __ldg(tokens_[i] + static_cast<int64_t>(block) * step_);
        weight_ = __ldg(weights_ + block);
    }

    const float* tokens_[kRows];
    const float* weights_;
    int blocks_, step_;
    float token_[kRows], weight_;
};

/// A warpgroup's way through the stages: what it multiplies, and what it has done with.
template <class Tile>
class Stages {
  public:
    __device__ __forceinline__ Stages(uint32_t shared, int first_row, int first_column)
        : shared_(shared),
          tokens_(shared + Tile::kTokens + first_row * kLineBytes),
          weights_(shared + Tile::kWeights + first_column * kLineBytes) {}

    /// Starts the products of a part of a block, as a group of its own: four instructions chained from zero.
    __device__ __forceinline__ void multiply(float (&partial)[Tile::kSums], int part = 0) {
        if (part == 0) await();
        const uint64_t tokens =
            matrix_descriptor(tokens_ + reading_.stage * Tile::kStageBytes + part * kWgmmaM * kLineBytes);
        const uint64_t weights = matrix_descriptor(weights_ + reading_.stage * Tile::kStageBytes);
        wgmma_fence(partial);
#pragma unroll
        for (int k = 0; k < kBlock / kWgmmaK; ++k)
            wgmma_e4m3(partial, tokens + k * (kWgmmaK >> 4), weights + k * (kWgmmaK >> 4), k);
        wgmma_commit_group();
    }

    /// Gives the stage of a block whose products are complete to whoever copies into it, and goes on to the next.
    __device__ __forceinline__ void release() {
        const uint32_t empty = shared_ + Tile::kBarriers + (Tile::kStages + reading_.stage) * kBarrier;
        const int lane = threadIdx.x % kWarpLanes;
        if (Tile::kCtas == 1) {
            if (lane == 0) mbarrier_arrive(empty);
        } else if (lane < Tile::kCtas) {
            mbarrier_arrive_cluster(empty, lane);
        }
        reading_.next();
    }

    /// Lets a block pass by, of which this warpgroup has no rows.
    __device__ __forceinline__ void skip() {
        await();
        release();
    }

  private:
    __device__ __forceinline__ void await() const {
        mbarrier_wait_parity(shared_ + Tile::kBarriers + reading_.stage * kBarrier, reading_.parity);
    }

    uint32_t shared_, tokens_, weights_;
    RingPosition<Tile::kStages> reading_;
};

/// total = RN(factor * partial + total), a factor for each of the thread's two rows of a part.
template <int sums>
__device__ __forceinline__ void promote(float (&total)[sums], const float (&partial)[sums], const float* factors) {
#pragma unroll
    for (int i = 0; i < sums; ++i) total[i] = __fmaf_rn(factors[i % 4 / 2], partial[i], total[i]);
}

/// The sums of a tile, block after block. The parts take turns with one set of partial sums: while a warpgroup promotes
/// them, the tensor cores work for the other one.
template <class Tile, int parts>
__device__ __forceinline__ void sum_blocks(float (&totals)[parts][Tile::kSums], Stages<Tile>& stages,
                                           Factors<parts>& factors, int blocks) {
    float partial[Tile::kSums], of_rows[Factors<parts>::kRows];
#pragma unroll
    for (int i = 0; i < Tile::kSums; ++i) {
        partial[i] = 0.0f;
#pragma unroll
        for (int part = 0; part < parts; ++part) totals[part][i] = 0.0f;
    }
#pragma unroll 1
    for (int block = 0; block < blocks; ++block) {
        factors.take(of_rows, block);
#pragma unroll
        for (int part = 0; part < parts; ++part) {
            stages.multiply(partial, part);
            wgmma_wait_group<0>(partial);
            if (part == parts - 1) stages.release();
            promote(totals[part], partial, of_rows + 2 * part);
        }
    }
}

/// Stores a warpgroup's sums as FP32, each thread its own. `row` and `column` are the first of the warpgroup's.
template <class Tile>
__device__ __forceinline__ void store_sums(const float (&total)[Tile::kSums], const OutputTile& tile, int row,
                                           int column, int n, const TensorMap&, uint32_t, float* out) {
    const int warp = threadIdx.x % kWarpgroupThreads / kWarpLanes, lane = threadIdx.x % kWarpLanes;
#pragma unroll
    for (int half = 0; half < 2; ++half) {
        const int local = row + warp * 16 + lane / 4 + half * 8;
        if (local >= tile.rows) continue;
        float* line = out + (static_cast<int64_t>(tile.first_row) + local) * n + column + lane % 4 * 2;
#pragma unroll
        for (int j = 0; j < Tile::kSums / 4; ++j)
            *reinterpret_cast<float2*>(line + j * 8) =
                make_float2(total[j * 4 + half * 2], total[j * 4 + half * 2 + 1]);
    }
}

/// Stores them as BF16, through this warpgroup's boxes in shared memory: 64 rows of 64 columns each, in lines of 128 bytes
/// with the swizzle 128B. Where all 64 rows are the expert's a tensor copy takes them, else its threads do, 16 bytes each.
template <class Tile>
__device__ __forceinline__ void store_sums(const float (&total)[Tile::kSums], const OutputTile& tile, int row,
                                           int column, int n, const TensorMap& map, uint32_t scratch, uint16_t* out) {
    constexpr int kLineChunks = kLineBytes / kCopyBytes;
    const int thread = threadIdx.x % kWarpgroupThreads, warp = thread / kWarpLanes, lane = thread % kWarpLanes;
    const int barrier = 1 + threadIdx.x / kWarpgroupThreads;
    const auto chunk_address = [scratch](int line, int chunk) {
        return scratch + chunk / kLineChunks * kStoreBytes + line * kLineBytes +
               (chunk % kLineChunks ^ line % kAtomLines) * kCopyBytes;
    };
    if (thread == 0) bulk_wait_read();
    warpgroup_sync(barrier);  // the boxes are free: the last tensor copy has read them, or the threads have
#pragma unroll
    for (int j = 0; j < Tile::kSums / 8; ++j) {
        // Matrices 0, 1: rows 0..7 and 8..15 of the warp's sixteen, 8 columns; 2, 3: the next 8 columns.
        const float* sums = total + j * 8;
        const uint32_t cells[4] = {cvt_rn_bf16x2(sums[1], sums[0]), cvt_rn_bf16x2(sums[3], sums[2]),
                                   cvt_rn_bf16x2(sums[5], sums[4]), cvt_rn_bf16x2(sums[7], sums[6])};
        stmatrix_x4(chunk_address(warp * 16 + lane % 16, j * 2 + lane / 16), cells);
    }
    if (row + kWgmmaM <= tile.rows) {
        fence_proxy_async();
        warpgroup_sync(barrier);
        if (thread == 0) {
#pragma unroll
            for (int box = 0; box < Tile::kStoreBoxes; ++box)
                tensor_store(map, column + box * kStoreColumns, tile.first_row + row, scratch + box * kStoreBytes);
            bulk_commit_group();
        }
        return;
    }
    warpgroup_sync(barrier);
    constexpr int kRowChunks = Tile::kStoreBoxes * kLineChunks;
    for (int i = thread; i < kWgmmaM * kRowChunks; i += kWarpgroupThreads) {
        const int line = i / kRowChunks, chunk = i % kRowChunks;
        if (row + line < tile.rows)
            *reinterpret_cast<uint4*>(out + (static_cast<int64_t>(tile.first_row) + row + line) * n + column +
                                      chunk * (kCopyBytes / 2)) = ld_shared_v4_u32(chunk_address(line, chunk));
    }
}

/// A multiplying warpgroup: its part of every tile of this CTA.
template <class Tile, class Out>
__device__ __forceinline__ void multiply_tiles(const TensorMap& out_map, const Operands& operands, const Groups& groups,
                                               uint32_t shared, Out* out) {
    // Told by one lane to all, so that the compiler knows that descriptors are the same in all of them.
    const int warpgroup = __shfl_sync(kFullWarp, threadIdx.x / kWarpgroupThreads, 0);
    const int first_row = Tile::kSplitN ? 0 : warpgroup * Tile::kParts * kWgmmaM;
    const int first_column = Tile::kSplitN ? warpgroup * Tile::kWgmmaN : 0;
    const int thread_row = threadIdx.x % kWarpgroupThreads / kWarpLanes * 16 + threadIdx.x % kWarpLanes / 4;
    const int blocks = operands.k / kBlock;
    const uint32_t scratch = shared + Tile::kScratch + warpgroup * Tile::kStoreBoxes * kStoreBytes;
    Stages<Tile> stages(shared, first_row, first_column);
    Tiles<Tile> tiles(groups, operands.n);
    for (OutputTile tile; tiles.next(tile);) {
        const int row = tile.m + first_row;
        if (row >= tile.rows) {
#pragma unroll 1
            for (int block = 0; block < blocks; ++block) stages.skip();
            continue;
        }
        Factors<Tile::kParts> factors(operands, tile, row + thread_row);
        float totals[Tile::kParts][Tile::kSums];
        sum_blocks<Tile>(totals, stages, factors, blocks);
#pragma unroll
        for (int part = 0; part < Tile::kParts; ++part)
            store_sums<Tile>(totals[part], tile, row + part * kWgmmaM, tile.n + first_column, operands.n, out_map,
                             scratch, out);
    }
    if (threadIdx.x % kWarpgroupThreads == 0) bulk_wait_read();  // shared memory ends with the CTA
}

template <class Tile, class Out>
__device__ __forceinline__ void deepseek_gemm(const TensorMap& tokens, const TensorMap& weights,
                                              const TensorMap& out_map, const Operands& operands, const Groups& groups,
                                              Out* out) {
    extern __shared__ __align__(1024) uint8_t shared_bytes[];
    const uint32_t shared = shared_address(shared_bytes);
    if (threadIdx.x == 0) {
        for (int stage = 0; stage < Tile::kStages; ++stage) {
            mbarrier_init(shared + Tile::kBarriers + stage * kBarrier, 1);
            mbarrier_init(shared + Tile::kBarriers + (Tile::kStages + stage) * kBarrier,
                          Tile::kCtas * kMultiplyingWarps);
        }
        fence_mbarrier_init();
    }
    if (Tile::kCtas == 1)
        __syncthreads();
    else
        cluster_sync();
    if (threadIdx.x / kWarpgroupThreads == kMultiplying) {
        setmaxnreg_dec<kCopyRegisters>();
        if (threadIdx.x / kWarpLanes == kMultiplyingWarps)
            copy_tiles<Tile>(tokens, weights, operands, groups, shared);
    } else {
        setmaxnreg_inc<kMultiplyRegisters>();
        multiply_tiles<Tile>(out_map, operands, groups, shared, out);
    }
    if (Tile::kCtas > 1) cluster_sync();  // the other CTA arrives on barriers of this one
}

}  // namespace refmoe

// Entries: refmoe_deepseek_gemm_wgmma_<tokens of a tile>_<CTAs that share them>_<bf16|f32>. K and n are multiples of 128,
// n of 256 for a pair. The maps' boxes are [128 of K] x [tile_m / CTAs tokens], [128 of K] x [128 weight rows of all
// experts], and [64 columns] x [64 rows] of a BF16 output, all with the swizzle 128B; an FP32 output has none of its own
// and gives any. Of `m_indptr` and `masked_m` one is null. Dynamic shared memory: kBarriers + 2 * kStages * kBarrier.
#define REFMOE_ENTRY(tile_m, ctas, dtype, Out)                                                                        \
    extern "C" __global__ void __launch_bounds__(refmoe::kThreads, 1) __cluster_dims__(ctas, 1, 1)                    \
        refmoe_deepseek_gemm_wgmma_##tile_m##_##ctas##_##dtype(                                                       \
            const __grid_constant__ refmoe::TensorMap tokens, const __grid_constant__ refmoe::TensorMap weights,      \
            const __grid_constant__ refmoe::TensorMap out_map, const float* weight_scales, const float* token_scales, \
            const int64_t* m_indptr, const int32_t* masked_m, Out* out, int experts, int rows_each, int n, int k,     \
            int scale_row, int scale_expert, int scale_block) {                                                       \
        refmoe::deepseek_gemm<refmoe::Tile<tile_m, ctas>>(                                                            \
            tokens, weights, out_map, {weight_scales, token_scales, n, k, scale_row, scale_expert, scale_block},      \
            {m_indptr, masked_m, experts, rows_each}, out);                                                           \
    }
#define REFMOE_TILE(tile_m, ctas)              \
    REFMOE_ENTRY(tile_m, ctas, bf16, uint16_t) \
    REFMOE_ENTRY(tile_m, ctas, f32, float)

REFMOE_TILE(64, 1)
REFMOE_TILE(128, 1)
REFMOE_TILE(128, 2)
REFMOE_TILE(256, 1)

#endif
