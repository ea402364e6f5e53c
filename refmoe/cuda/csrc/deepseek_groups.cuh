// The rows of the experts of a grouped GEMM in block FP8, contiguous or batched, and the walk over its output tiles.
//
//      contiguous   rows m_indptr[e] .. m_indptr[e+1] of the tokens are those of expert e
//      batched      rows e * rows_each .. e * rows_each + masked_m[e] are
//
// Tiles are numbered expert by expert, and within one expert in bands of up to kBand tiles of tokens: tiles of a band share
// their weight rows with their neighbours, and the CTAs that run together read few different rows of either side.
//
//      band of 3 tiles of tokens:    0  3  6  9 ..        ->  weight rows
//                                    1  4  7 10 ..
//                                    2  5  8 11 ..
//      the next band:                from 3 * (tiles of weight rows) on
#pragma once

#include <cstdint>

#include "warp.cuh"

namespace refmoe {

/// Which rows are whose. One of both pointers is null.
struct Groups {
    const int64_t* m_indptr;  // [experts + 1]
    const int32_t* masked_m;  // [experts]
    int experts, rows_each;   // `rows_each`: of a batch

    __device__ __forceinline__ int first_row(int expert) const {
        return m_indptr ? static_cast<int>(__ldg(m_indptr + expert)) : expert * rows_each;
    }
    __device__ __forceinline__ int rows(int expert) const {
        return m_indptr ? static_cast<int>(__ldg(m_indptr + expert + 1) - __ldg(m_indptr + expert))
                        : __ldg(masked_m + expert);
    }
};

/// An output tile: the expert, its rows, and the tile's first row of them and first weight row.
struct OutputTile {
    int expert, first_row, rows;
    int m, n;
};

constexpr int kBand = 8;

/// Finds tiles by their number, which must not fall from call to call. All lanes of a warp take part.
template <int tile_m, int tile_n>
class TileFinder {
  public:
    __device__ __forceinline__ TileFinder(const Groups& groups, int n) : groups_(groups), tiles_n_(n / tile_n) {}

    /// Whether there is a tile of that number; then it is `tile()`. Lanes look at 32 experts at once.
    __device__ __forceinline__ bool find(int number) {
        const int lane = threadIdx.x % kWarpLanes;
        for (; base_ < groups_.experts; base_ += kWarpLanes) {
            const int expert = base_ + lane;
            const int rows = expert < groups_.experts ? groups_.rows(expert) : 0;
            const int tiles = (rows + tile_m - 1) / tile_m * tiles_n_;
            int through = tiles;  // tiles of the lanes up to this one
#pragma unroll
            for (int distance = 1; distance < kWarpLanes; distance *= 2) {
                const int before = __shfl_up_sync(kFullWarp, through, distance);
                if (lane >= distance) through += before;
            }
            const unsigned reached = __ballot_sync(kFullWarp, number - before_ < through);
            if (reached) {
                const int owner = __ffs(reached) - 1;
                const int within = number - before_ - __shfl_sync(kFullWarp, through - tiles, owner);
                tile_.expert = base_ + owner;
                tile_.first_row = groups_.first_row(tile_.expert);
                tile_.rows = __shfl_sync(kFullWarp, rows, owner);
                const int band = within / (kBand * tiles_n_) * kBand;
                const int height = min(kBand, (tile_.rows + tile_m - 1) / tile_m - band);
                tile_.m = (band + within % (kBand * tiles_n_) % height) * tile_m;
                tile_.n = within % (kBand * tiles_n_) / height * tile_n;
                return true;
            }
            before_ += __shfl_sync(kFullWarp, through, kWarpLanes - 1);
        }
        return false;
    }

    __device__ __forceinline__ const OutputTile& tile() const { return tile_; }

  private:
    const Groups& groups_;
    OutputTile tile_{};
    int tiles_n_;
    int base_ = 0, before_ = 0;  // first expert of the lanes' window, and the tiles of all experts before it
};

}  // namespace refmoe
