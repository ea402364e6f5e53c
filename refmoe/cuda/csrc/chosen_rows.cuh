// The rows of choices that one launch makes and the next one sorts by expert. The first launch writes the expert of each
// choice in 16 bits. They lie in the order of choices, which is also the order of an expert's rows. So the second launch
// reads two bytes a choice and never asks for a rank.
//
//      choice               0 .. 7     8 .. 15    ...  248 .. 255 | 256 ..
//      lane of the warp     0          1          ...  31         | 0          a step: 16 bytes a lane
//
// A CTA finds the rows of one expert. A warp has a stretch of whole steps, and looks at four of them together, a *group*.
// Whether a choice is the expert's is one bit. A lane's eight bits of a step are a byte in shared memory, which the warp
// reads again by words, so that a lane has 32 choices that follow each other:
//
//      byte of the warp     0   1   2   3    4   5   6   7    ...       written by lane byte % 32, of step byte / 32
//      word                 0                1                ...       read by this lane: choices 32 * lane + bit
#pragma once

#include "expert_maps.cuh"
#include "warp.cuh"

namespace refmoe {

constexpr int kSortThreads = 1024, kSortWarps = kSortThreads / kWarpLanes;
constexpr int kLoadChoices = 8;                            // of one 16-byte load
constexpr int kStepChoices = kLoadChoices * kWarpLanes;    // of a warp's step
constexpr int kGroupSteps = 4;                             // so that a lane has a word of bits
constexpr int kGroupChoices = kGroupSteps * kStepChoices;
constexpr int kWordBits = 32;
constexpr uint32_t kElsewhere = 0x7FFF;                    // the expert of a choice that another rank has
constexpr uint32_t kHighBits = 0x80008000u;                // of two halves, which experts leave alone

/// What the sorting step writes.
struct Maps {
    int64_t* offsets;             // [experts + 1] first row of each expert of this rank, then the rows in use
    int* permuted_to_unpermuted;  // [tokens * top_k] choice of each row, kNoRow past the rows in use
    int* unpermuted_to_permuted;  // [tokens * top_k] row of each choice, kNoRow for experts of other ranks
    int experts, first_expert;    // of this rank

    /// Experts of this rank from 0 on; negative or at least `experts` for others.
    __device__ __forceinline__ int local(int expert) const { return expert - first_expert; }
    __device__ __forceinline__ bool here(int local_expert) const {
        return static_cast<unsigned>(local_expert) < static_cast<unsigned>(experts);
    }
};

/// The experts of all choices, in their order, up to whole loads.
struct ChosenExperts {
    uint16_t* experts_of_choices;
    int experts, first_expert;  // of this rank

    __device__ __forceinline__ void store(int choice, int expert) const {
        const int local = expert - first_expert;
        const bool here = static_cast<unsigned>(local) < static_cast<unsigned>(experts);
        experts_of_choices[choice] = static_cast<uint16_t>(here ? local : kElsewhere);
    }

    /// Fills the last load; a warp together.
    __device__ __forceinline__ void pad(int choices, int lane) const {
        const int end = (choices + kLoadChoices - 1) / kLoadChoices * kLoadChoices;
        if (choices + lane < end) experts_of_choices[choices + lane] = kElsewhere;
    }
};

/// The high bit of each half that is below that of `bound`; both have no high bit.
__device__ __forceinline__ uint32_t halves_below(uint32_t halves, uint32_t bound) {
    return ~((halves | kHighBits) - bound) & kHighBits;
}

/// The high bit of each half that equals that of `other`; both have no high bit.
__device__ __forceinline__ uint32_t equal_halves(uint32_t halves, uint32_t other) {
    return ~((halves ^ other) + ~kHighBits) & kHighBits;
}

__device__ __forceinline__ constexpr uint32_t twice(uint32_t half) { return half | half << 16; }

/// Adds kHighBit * `low` if the high bit of the lower half is set, and kHighBit * `high` for the upper one: dp4a multiplies
/// the bytes that hold these bits, where shifts and masks would take three instructions.
constexpr uint32_t kHighBit = 0x80;
__device__ __forceinline__ uint32_t add_high_bits(uint32_t bits, uint32_t low, uint32_t high, uint32_t sum) {
    return __dp4a(bits, low << 8 | high << 24, sum);
}

/// What a lane knows of its choices: how many are of lower experts of this rank, and of any of them.
struct Tally {
    int lower, used;
};

/// Looks at a group, of the choices from `first` on and before `end`: returns which of 32 that follow each other are the
/// CTA's expert's. `bits` is the warp's, of kGroupChoices bits.
__device__ __forceinline__ uint32_t look_at_group(Tally& tally, uint32_t* bits, const Maps& maps, const uint16_t* chosen,
                                                  int first, int end, bool whole) {
    const uint32_t expert = twice(blockIdx.x), experts = twice(maps.experts);
    const int lane = threadIdx.x % kWarpLanes, own = first + lane * kLoadChoices;
    uint32_t pairs[kGroupSteps][kLoadChoices / 2];
#pragma unroll
    for (int step = 0; step < kGroupSteps; ++step) {
        constexpr uint32_t kNobodys = twice(kElsewhere);
        const int at = own + step * kStepChoices;
        uint4 load{kNobodys, kNobodys, kNobodys, kNobodys};
        if (at < end) load = *reinterpret_cast<const uint4*>(chosen + at);
        pairs[step][0] = load.x, pairs[step][1] = load.y, pairs[step][2] = load.z, pairs[step][3] = load.w;
    }
    uint32_t lower = 0, used = 0;
    __syncwarp();  // all lanes have read the bits of the group in front
#pragma unroll
    for (int step = 0; step < kGroupSteps; ++step) {
        uint32_t found = 0;
#pragma unroll
        for (int pair = 0; pair < kLoadChoices / 2; ++pair) {
            const uint32_t equal = equal_halves(pairs[step][pair], expert);
            found = add_high_bits(equal, 1 << (2 * pair), 2 << (2 * pair), found);
            lower = add_high_bits(halves_below(pairs[step][pair], expert), 1, 1, lower);
        }
        reinterpret_cast<uint8_t*>(bits)[step * kWarpLanes + lane] = static_cast<uint8_t>(found / kHighBit);
    }
    if (!whole) {
#pragma unroll
        for (int step = 0; step < kGroupSteps; ++step)
#pragma unroll
            for (int pair = 0; pair < kLoadChoices / 2; ++pair)
                used = add_high_bits(halves_below(pairs[step][pair], experts), 1, 1, used);
    }
    tally.lower += static_cast<int>(lower / kHighBit);
    tally.used += static_cast<int>(used / kHighBit);
    __syncwarp();
    return bits[lane];
}

/// Hands out the rows from `row` on to a group's choices that are the expert's. Returns the first row behind them.
__device__ __forceinline__ int store_rows(const Maps& maps, uint32_t found, int first, int row) {
    if (!__any_sync(kFullWarp, found != 0)) return row;
    const int lane = threadIdx.x % kWarpLanes, own = __popc(found);
    int up_to = own;  // how many the lanes up to this one have
#pragma unroll
    for (int distance = 1; distance < kWarpLanes; distance *= 2) {
        const int before = __shfl_up_sync(kFullWarp, up_to, distance);
        if (lane >= distance) up_to += before;
    }
    int next = row + up_to - own;
    for (; found != 0; found &= found - 1, ++next) {
        const int choice = first + lane * kWordBits + __ffs(found) - 1;
        maps.permuted_to_unpermuted[next] = choice;
        maps.unpermuted_to_permuted[choice] = next;
    }
    return row + __shfl_sync(kFullWarp, up_to, kWarpLanes - 1);
}

/// Sorts any number of choices, a CTA for each expert. Each warp counts the expert's choices in its stretch; knowing from
/// the other warps' counts where its own begin, it then hands out rows. A stretch of one group stays in a register from
/// the one to the other; a longer one is read again. The expert's first row is the number of choices of lower experts,
/// which the CTA counts on the way: it needs nothing from another CTA. A `whole` layer has no experts elsewhere.
__device__ __forceinline__ void sort_chosen(const Maps& maps, const uint16_t* chosen, int choices, bool whole) {
    __shared__ int counts[kSortWarps], lower_counts[kSortWarps], used_counts[kSortWarps];
    __shared__ uint32_t bits[kSortWarps][kGroupChoices / kWordBits];
    const int expert = blockIdx.x;
    const int lane = threadIdx.x % kWarpLanes, warp = threadIdx.x / kWarpLanes, warps = blockDim.x / kWarpLanes;
    const int steps = (choices + kStepChoices - 1) / kStepChoices;
    const int stretch = (steps + warps - 1) / warps * kStepChoices;
    const int begin = min(warp * stretch, choices), end = min(begin + stretch, choices);

    Tally tally{};
    uint32_t found = 0;
    int count = 0;
    for (int first = begin; first < end; first += kGroupChoices) {
        found = look_at_group(tally, bits[warp], maps, chosen, first, end, whole);
        count += __popc(found);
    }
    count = __reduce_add_sync(kFullWarp, count);
    tally = {__reduce_add_sync(kFullWarp, tally.lower), __reduce_add_sync(kFullWarp, tally.used)};
    if (lane == 0) {
        counts[warp] = count;
        lower_counts[warp] = tally.lower;
        used_counts[warp] = tally.used;
    }
    __syncthreads();

    // Here a lane stands for a warp of the CTA.
    const int lower = __reduce_add_sync(kFullWarp, lane < warps ? lower_counts[lane] : 0);
    const int used = whole ? choices : __reduce_add_sync(kFullWarp, lane < warps ? used_counts[lane] : 0);
    int row = lower + __reduce_add_sync(kFullWarp, lane < warp ? counts[lane] : 0);
    if (threadIdx.x == 0) {
        maps.offsets[expert] = lower;
        if (expert == maps.experts - 1) maps.offsets[maps.experts] = used;
    }

    for (int first = begin; first < end; first += kGroupChoices) {
        if (end - begin > kGroupChoices) found = look_at_group(tally, bits[warp], maps, chosen, first, end, whole);
        row = store_rows(maps, found, first, row);
    }

    // Choices and rows that no expert of this rank has are shared out over all CTAs.
    if (used == choices) return;
    const int thread = blockIdx.x * blockDim.x + threadIdx.x, threads = gridDim.x * blockDim.x;
    for (int at = used + thread; at < choices; at += threads) maps.permuted_to_unpermuted[at] = kNoRow;
    for (int choice = thread; choice < choices; choice += threads)
        if (chosen[choice] == kElsewhere) maps.unpermuted_to_permuted[choice] = kNoRow;
}

}  // namespace refmoe
