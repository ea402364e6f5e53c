// What the grouped GEMMs of SM12x share: one problem an expert, weights of packed FP4 on the M side of the tensor-core
// instruction, tokens on its N side, so that at decode a tile can be 8 tokens narrow.
//
//      out[token, n] = alpha[e] * sum over k of weights[e, n, k] * tokens[token, k]  +  bias[e, n]
//
// for the tokens of expert e, rows offsets[e] .. offsets[e+1] of the expanded activations.
//
// A CTA walks over output tiles (persistent); for each it walks over K in steps of TileK. All its threads copy the next
// steps into a ring of stages in shared memory and compute on the oldest one:
//
//      full[s]    complete when every thread's copies into stage s have arrived: one arrival a thread
//      empty[s]   complete when every thread has read stage s: one arrival a thread, so that each vouches for itself
//
// The copies run ahead across tile borders, so the ring never drains. FP4 stays packed in shared memory:
//
//      stage:  | weights TileM x TileK / 2 | tokens TileN rows | weight scales | token scales |
//
// Scales arrive as whole atoms of the 128x4 layout, 512 bytes for 128 rows and 4 K-blocks, just as the expand kernel
// wrote them. Rows past the end of a problem and K past its end are filled with zeros, which take no part in a sum;
// scales of padded rows may hold anything, since each reaches only its own row, which is not stored.
//
// A kernel of this kind brings three things: `Tile`, a TileShape; `token_offset`, how its tokens lie in a stage; and
// `multiply_stage`, which knows the instruction.
#pragma once

#include "async_copy.cuh"
#include "instructions.cuh"
#include "block_scaled_mma.cuh"
#include "scale_layout.cuh"

namespace refmoe {

constexpr int kWarpSize = 32;
constexpr unsigned kWholeWarp = 0xFFFFFFFFu;
constexpr int kMmaM = 16, kMmaN = 8;
constexpr int kAtomRows = 128, kAtomBytes = Swizzle<ScaleLayout::k128x4>::kAtomBytes;
constexpr int kWarpM = 32;            // weight rows of a warp: two instructions
constexpr int kBarrierBytes = 1024;   // kept in front of the stages
constexpr int kMaxStages = 16;

/// Shape of the output tile of a CTA and of one step along K, and what follows from it. A byte holds `byte_tokens`
/// elements of a token, and `block` elements of K share a scale.
template <int tile_m, int tile_n, int tile_k, int byte_tokens, int block>
struct TileShape {
    static constexpr int kM = tile_m, kN = tile_n, kK = tile_k;
    static constexpr int kWarpsM = tile_m / kWarpM;
    static constexpr int kWarpsN = tile_n >= 64 ? 2 : 1;
    static constexpr int kWarpN = tile_n / kWarpsN;
    static constexpr int kThreads = kWarpsM * kWarpsN * kWarpSize;
    static constexpr int kFragmentsM = kWarpM / kMmaM, kFragmentsN = kWarpN / kMmaN;
    static constexpr int kByteTokens = byte_tokens;
    static constexpr int kGroupElements = kGroupBlocks * block;  // that share a word of scales
    static constexpr int kGroups = tile_k / kGroupElements;

    static constexpr int kWeightRowBytes = tile_k / 2, kTokenRowBytes = tile_k / byte_tokens;
    static constexpr int kWeightAtoms = tile_m / kAtomRows;
    static constexpr int kWeights = 0;
    static constexpr int kTokens = kWeights + tile_m * kWeightRowBytes;
    static constexpr int kWeightScales = kTokens + tile_n * kTokenRowBytes;
    static constexpr int kTokenScales = kWeightScales + kWeightAtoms * kGroups * kAtomBytes;
    static constexpr int kStageBytes = kTokenScales + kGroups * kAtomBytes;

    static_assert(tile_m % kAtomRows == 0 && tile_k % kGroupElements == 0 && kWarpN % kMmaN == 0);
};

/// The layer's sizes and operands.
struct Problem {
    const uint8_t* weights;        // [experts, n, k / 2] E2M1, even element in the low nibble
    const uint8_t* weight_scales;  // experts x 128x4 atoms of [n, K-blocks]
    const uint8_t* tokens;         // [rows, k / elements a byte]
    const uint8_t* token_scales;   // 128x4 atoms, expert e from row align128(offsets[e] + 127 e)
    const int64_t* offsets;        // [experts + 1]
    const float* alpha;            // [experts], or null for 1
    const uint16_t* bias;          // [experts, n] BF16, or null for none
    int experts, n, k, groups;     // groups of four K-blocks in a row
};

/// One step of work: TileK elements of K of one output tile.
struct Step {
    int expert, first_row, rows;  // the expert's rows: first, and how many
    int m, n, k;                  // the tile's first weight row, first token of the expert, and first element of K
};

/// Walks over this CTA's tiles, numbered expert by expert and within one weight rows fastest, and over K in each.
template <class Tile>
class Walk {
  public:
    __device__ __forceinline__ explicit Walk(const Problem& problem) : problem_(problem), index_(blockIdx.x) {
        tiles_m_ = (problem.n + Tile::kM - 1) / Tile::kM;
        find();
    }

    __device__ __forceinline__ bool done() const { return done_; }
    __device__ __forceinline__ const Step& step() const { return step_; }
    __device__ __forceinline__ bool last_of_tile() const { return step_.k + Tile::kK >= problem_.k; }

    __device__ __forceinline__ void next() {
        step_.k += Tile::kK;
        if (step_.k >= problem_.k) {
            index_ += gridDim.x;
            find();
        }
    }

  private:
    /// The tile `index_`: lanes look at 32 experts at once, from the one reached last.
    __device__ __forceinline__ void find() {
        const int lane = threadIdx.x % kWarpSize;
        for (; base_ < problem_.experts; base_ += kWarpSize) {
            const int expert = base_ + lane;
            int first = 0, rows = 0;
            if (expert < problem_.experts) {
                first = static_cast<int>(__ldg(problem_.offsets + expert));
                rows = static_cast<int>(__ldg(problem_.offsets + expert + 1)) - first;
            }
            const int tiles = (rows + Tile::kN - 1) / Tile::kN * tiles_m_;
            int through = tiles;  // tiles of the lanes up to this one
#pragma unroll
            for (int distance = 1; distance < kWarpSize; distance *= 2) {
                const int before = __shfl_up_sync(kWholeWarp, through, distance);
                if (lane >= distance) through += before;
            }
            const unsigned reached = __ballot_sync(kWholeWarp, index_ - tiles_before_ < through);
            if (reached) {
                const int owner = __ffs(reached) - 1;
                const int tile = index_ - tiles_before_ - __shfl_sync(kWholeWarp, through - tiles, owner);
                step_.expert = base_ + owner;
                step_.first_row = __shfl_sync(kWholeWarp, first, owner);
                step_.rows = __shfl_sync(kWholeWarp, rows, owner);
                step_.m = tile % tiles_m_ * Tile::kM;
                step_.n = tile / tiles_m_ * Tile::kN;
                step_.k = 0;
                return;
            }
            tiles_before_ += __shfl_sync(kWholeWarp, through, kWarpSize - 1);
        }
        done_ = true;
    }

    const Problem& problem_;
    Step step_{};
    int tiles_m_, index_;
    int base_ = 0, tiles_before_ = 0;  // first expert of the lanes' window, and the tiles of all experts before it
    bool done_ = false;
};

// Rows lie in shared memory in 16-byte chunks whose number is XORed with the row's, so that the rows that one access
// touches together fall into different banks.
//
//      read by ldmatrix, as weights are, 8 rows at the same chunk: 8 chunks a row or more, XOR row % 8; with 4 chunks a
//      row (64 bytes) two rows share a line of 128 bytes, XOR row / 2 % 4

template <int row_bytes>
__device__ __forceinline__ int ldmatrix_offset(int row, int chunk) {
    const int turn = row_bytes >= 128 ? row % 8 : row / 2 % 4;
    return row * row_bytes + (chunk ^ turn) * kCopyBytes;
}

/// Where chunk `chunk` of a token lies in its part of a stage. Each kernel defines it.
template <int row_bytes>
__device__ __forceinline__ int token_offset(int row, int chunk);

/// Starts this thread's share of the copies of one step into the stage at shared address `stage`.
template <class Tile>
__device__ __forceinline__ void start_copies(const Problem& problem, const Step& step, uint32_t stage) {
    constexpr int kWeightChunks = Tile::kWeightRowBytes / kCopyBytes, kTokenChunks = Tile::kTokenRowBytes / kCopyBytes;
    constexpr int kAtomChunks = kAtomBytes / kCopyBytes;

    const int64_t weight_row_bytes = problem.k / 2;
    const uint8_t* weights =
        problem.weights + (static_cast<int64_t>(step.expert) * problem.n + step.m) * weight_row_bytes + step.k / 2;
    for (int i = threadIdx.x; i < Tile::kM * kWeightChunks; i += Tile::kThreads) {
        const int row = i / kWeightChunks, chunk = i % kWeightChunks;
        const bool valid = step.m + row < problem.n && step.k + chunk * 2 * kCopyBytes < problem.k;
        const int64_t from = valid ? row * weight_row_bytes + chunk * kCopyBytes : 0;
        cp_async_16(stage + Tile::kWeights + ldmatrix_offset<Tile::kWeightRowBytes>(row, chunk), weights + from, valid);
    }

    const int64_t token_row_bytes = problem.k / Tile::kByteTokens;
    const uint8_t* tokens = problem.tokens + (static_cast<int64_t>(step.first_row) + step.n) * token_row_bytes +
                            step.k / Tile::kByteTokens;
    for (int i = threadIdx.x; i < Tile::kN * kTokenChunks; i += Tile::kThreads) {
        const int row = i / kTokenChunks, chunk = i % kTokenChunks;
        const bool valid = step.n + row < step.rows && step.k + chunk * Tile::kByteTokens * kCopyBytes < problem.k;
        const int64_t from = valid ? row * token_row_bytes + chunk * kCopyBytes : 0;
        cp_async_16(stage + Tile::kTokens + token_offset<Tile::kTokenRowBytes>(row, chunk), tokens + from, valid);
    }

    const int first_group = step.k / Tile::kGroupElements;
    const int64_t atom_row_bytes = static_cast<int64_t>(problem.groups) * kAtomBytes;
    const int expert_atoms = (problem.n + kAtomRows - 1) / kAtomRows;
    const int64_t weight_atom = static_cast<int64_t>(step.expert) * expert_atoms + step.m / kAtomRows;
    const uint8_t* weight_scales = problem.weight_scales + weight_atom * atom_row_bytes + first_group * kAtomBytes;
    for (int i = threadIdx.x; i < Tile::kWeightAtoms * Tile::kGroups * kAtomChunks; i += Tile::kThreads) {
        const int atom = i / (Tile::kGroups * kAtomChunks), within = i % (Tile::kGroups * kAtomChunks);
        const bool valid =
            step.m + atom * kAtomRows < problem.n && first_group + within / kAtomChunks < problem.groups;
        const int64_t from = valid ? atom * atom_row_bytes + within * kCopyBytes : 0;
        cp_async_16(stage + Tile::kWeightScales + i * kCopyBytes, weight_scales + from, valid);
    }

    const int token_atom = (expert_scale_row(step.first_row, step.expert) + step.n) / kAtomRows;
    const uint8_t* token_scales = problem.token_scales + token_atom * atom_row_bytes + first_group * kAtomBytes;
    for (int i = threadIdx.x; i < Tile::kGroups * kAtomChunks; i += Tile::kThreads) {
        const bool valid = first_group + i / kAtomChunks < problem.groups;
        cp_async_16(stage + Tile::kTokenScales + i * kCopyBytes, token_scales + (valid ? i * kCopyBytes : 0), valid);
    }
}

/// Where in an atom the scale word of a row lies.
__device__ __forceinline__ int scale_word(int row) { return Swizzle<ScaleLayout::k128x4>::within_atom(row); }

template <class Tile>
struct Accumulators {
    FragmentC fragments[Tile::kFragmentsM][Tile::kFragmentsN];

    __device__ __forceinline__ void clear() {
#pragma unroll
        for (auto& row : fragments)
#pragma unroll
            for (auto& fragment : row) fragment = {};
    }
};

/// Multiplies this warp's part of one stage, whose tokens start at row `atom_row` of the scales' atom. Each kernel
/// defines it.
template <class Tile>
__device__ __forceinline__ void multiply_stage(Accumulators<Tile>& sums, uint32_t stage, int atom_row);

/// out = RN(RN(alpha * sum) + bias), the factor and the term left out where there is none.
struct Epilogue {
    bool has_alpha;
    float alpha;
    const uint16_t* bias;  // of the expert, or null

    __device__ __forceinline__ float operator()(float sum, int n) const {
        const float scaled = has_alpha ? __fmul_rn(alpha, sum) : sum;
        return bias ? __fadd_rn(scaled, __uint_as_float(static_cast<uint32_t>(__ldg(bias + n)) << 16)) : scaled;
    }
};

/// Stores a tile as FP32, each lane its own elements.
template <class Tile>
__device__ __forceinline__ void store_tile(const Accumulators<Tile>& sums, const Problem& problem, const Step& step,
                                           const Epilogue& epilogue, uint32_t, float* out) {
    const int lane = threadIdx.x % kWarpSize, warp = threadIdx.x / kWarpSize;
    const int first_n = step.m + warp % Tile::kWarpsM * kWarpM + lane / 4;
    const int first_token = step.n + warp / Tile::kWarpsM * Tile::kWarpN + lane % 4 * 2;
#pragma unroll
    for (int i = 0; i < Tile::kFragmentsM; ++i) {
#pragma unroll
        for (int j = 0; j < Tile::kFragmentsN; ++j) {
#pragma unroll
            for (int c = 0; c < 4; ++c) {
                const int n = first_n + i * kMmaM + c / 2 * 8, token = first_token + j * kMmaN + c % 2;
                if (n < problem.n && token < step.rows)
                    out[(static_cast<int64_t>(step.first_row) + token) * problem.n + n] =
                        epilogue(sums.fragments[i][j].c[c], n);
            }
        }
    }
}

/// Stores a tile as BF16. Fragments hold neighbouring tokens, memory wants neighbouring weight rows: each warp turns 8
/// tokens by 32 weight rows at a time in its own 512 bytes of shared memory, and stores 16 bytes a lane.
///
///      stmatrix: matrix i / 8 of the four holds weight rows 8 (i / 8) ..+7; its row i % 8 is token i % 8
///      chunks of 16 bytes are XORed with token / 2, so that eight tokens fall into different banks
template <class Tile>
__device__ __forceinline__ void store_tile(const Accumulators<Tile>& sums, const Problem& problem, const Step& step,
                                           const Epilogue& epilogue, uint32_t scratch, uint16_t* out) {
    constexpr int kChunkElements = kCopyBytes / 2, kRowChunks = kWarpM / kChunkElements;
    static_assert(Tile::kFragmentsM == 2);  // two fragments of 16 rows make the four matrices
    const int lane = threadIdx.x % kWarpSize, warp = threadIdx.x / kWarpSize;
    const int warp_m = step.m + warp % Tile::kWarpsM * kWarpM;
    const int warp_n = step.n + warp / Tile::kWarpsM * Tile::kWarpN;
    const auto chunk_address = [scratch](int token, int chunk) {
        return scratch + token * kWarpM * 2 + (chunk ^ (token / 2)) * kCopyBytes;
    };
#pragma unroll
    for (int j = 0; j < Tile::kFragmentsN; ++j) {
        uint32_t cells[4];
#pragma unroll
        for (int matrix = 0; matrix < 4; ++matrix) {
            const int n = min(warp_m + matrix * 8 + lane / 4, problem.n - 1);  // rows past the end read some bias
            const FragmentC& sum = sums.fragments[matrix / 2][j];
            cells[matrix] = cvt_rn_bf16x2(epilogue(sum.c[matrix % 2 * 2 + 1], n), epilogue(sum.c[matrix % 2 * 2], n));
        }
        stmatrix_x4_trans(chunk_address(lane % 8, lane / 8), cells);
        __syncwarp();
        const int token = lane / kRowChunks, chunk = lane % kRowChunks;
        const uint4 values = ld_shared_v4_u32(chunk_address(token, chunk));
        const int n = warp_m + chunk * kChunkElements, row = warp_n + j * kMmaN + token;
        if (n < problem.n && row < step.rows)
            *reinterpret_cast<uint4*>(out + (static_cast<int64_t>(step.first_row) + row) * problem.n + n) = values;
        __syncwarp();
    }
}

/// A place in the ring of stages: its index, and the parity of the phase that it is in.
struct RingPosition {
    int stage = 0;
    uint32_t parity = 0;

    __device__ __forceinline__ void next(int stages) {
        if (++stage == stages) {
            stage = 0;
            parity ^= 1;
        }
    }
};

template <class Tile, class Out>
__device__ __forceinline__ void grouped_gemm(const Problem& problem, Out* out, int stages) {
    extern __shared__ __align__(1024) uint8_t shared[];
    constexpr int kBarrier = 8, kScratch = 512;
    const uint32_t full = shared_address(shared), empty = full + kMaxStages * kBarrier;
    const uint32_t first_stage = full + kBarrierBytes;
    const uint32_t scratch = first_stage + stages * Tile::kStageBytes + threadIdx.x / kWarpSize * kScratch;

    if (threadIdx.x == 0) {
        for (int stage = 0; stage < stages; ++stage) {
            mbarrier_init(full + stage * kBarrier, Tile::kThreads);
            mbarrier_init(empty + stage * kBarrier, Tile::kThreads);
        }
    }
    __syncthreads();

    Walk<Tile> copies(problem), products(problem);
    RingPosition filling, reading;
    filling.parity = 1;  // the wait for an empty stage passes in its first round: no phase is complete yet
    const auto fill = [&] {
        if (copies.done()) return;
        mbarrier_wait_parity(empty + filling.stage * kBarrier, filling.parity);
        start_copies<Tile>(problem, copies.step(), first_stage + filling.stage * Tile::kStageBytes);
        cp_async_mbarrier_arrive_noinc(full + filling.stage * kBarrier);
        filling.next(stages);
        copies.next();
    };
    for (int ahead = 1; ahead < stages; ++ahead) fill();

    Accumulators<Tile> sums;
    sums.clear();
    for (; !products.done(); products.next()) {
        fill();
        mbarrier_wait_parity(full + reading.stage * kBarrier, reading.parity);
        multiply_stage<Tile>(sums, first_stage + reading.stage * Tile::kStageBytes, products.step().n % kAtomRows);
        mbarrier_arrive(empty + reading.stage * kBarrier);
        reading.next(stages);
        if (products.last_of_tile()) {
            const Step& step = products.step();
            const Epilogue epilogue{problem.alpha != nullptr, problem.alpha ? __ldg(problem.alpha + step.expert) : 1.0f,
                                    problem.bias ? problem.bias + static_cast<int64_t>(step.expert) * problem.n
                                                 : nullptr};
            store_tile<Tile>(sums, problem, step, epilogue, scratch, out);
            sums.clear();
        }
    }
}

}  // namespace refmoe

// An entry of a kernel: K and the number of weight rows are multiples of what the kernel says; every pointer is 16-byte
// aligned. Dynamic shared memory: 1024 + stages * stage bytes + 512 a warp.
#define REFMOE_GROUPED_GEMM(name, m, n, k, dtype, Out)                                                            \
    extern "C" __global__ void __launch_bounds__((refmoe::Tile<m, n, k>::kThreads), 1)                            \
        name##_##m##x##n##x##k##_##dtype(                                                                         \
            const uint8_t* weights, const uint8_t* weight_scales, const uint8_t* tokens,                          \
            const uint8_t* token_scales, const int64_t* offsets, const float* alpha, const uint16_t* bias,        \
            Out* out, int experts, int n_rows, int k_elements, int groups, int stages) {                          \
        const refmoe::Problem problem{weights, weight_scales, tokens,  token_scales, offsets, alpha,              \
                                      bias,    experts,       n_rows, k_elements,   groups};                      \
        refmoe::grouped_gemm<refmoe::Tile<m, n, k>>(problem, out, stages);                                        \
    }
