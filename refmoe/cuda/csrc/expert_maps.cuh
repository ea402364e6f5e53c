// The rows of a layer sorted by expert: what routing writes and the other steps read.
#pragma once

#include "warp.cuh"

namespace refmoe {

constexpr int kNoRow = -1;  // in a map: the expert belongs to another rank, or no token has the row

/// The expert of a row, or `experts` for a row that no expert has: how many experts end at or before it. A whole warp
/// asks for one row, its lanes look at different experts: the loads are under way together, where a binary search would
/// wait for each. The same in all lanes.
__device__ __forceinline__ int expert_of_row(const int64_t* offsets, int experts, int row) {
    int passed = 0;
#pragma unroll 4
    for (int expert = threadIdx.x % kWarpLanes; expert < experts; expert += kWarpLanes)
        passed += offsets[expert + 1] <= row;
    return __reduce_add_sync(kFullWarp, passed);
}

}  // namespace refmoe
