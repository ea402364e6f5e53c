// A warp: its size, its mask.
#pragma once

#include <cstdint>

namespace refmoe {

constexpr int kWarpLanes = 32;
constexpr unsigned kFullWarp = 0xFFFFFFFFu;

/// Lanes rounded up to whole warps: instructions that exchange values need every lane of a warp.
__device__ __forceinline__ int whole_warps(int lanes) { return (lanes + kWarpLanes - 1) & -kWarpLanes; }

}  // namespace refmoe
