// Where the E8M0 scale of (row m, 32-element block b) lies in each scale layout.
//
// The tensor core reads scales four blocks at a time, so every swizzled layout keeps the four bytes of one K-group
// (128 elements) together in one aligned 32-bit word:
//
//      K-group g of row m:   | b = 4g | 4g+1 | 4g+2 | 4g+3 |      one word, block 4g in the low byte
//
// 128x4 (SM100, SM12x): atoms of 128 rows x one K-group, 512 bytes. Rows 32 apart are neighbours inside an atom:
//
//      byte   0      4      8      12     16             ...      496
//             row 0  row 32 row 64 row 96 row 1  row 33  ...      row 31 row 63 row 95 row 127
//
// 8x4 (low-latency kernels): atoms of 8 rows x one K-group, 32 bytes, rows in order.
#pragma once

#include <cstdint>

namespace refmoe {

enum class ScaleLayout { kLinear, k128x4, k8x4 };

constexpr int kBlockElements = 32;                                // elements that share one E8M0 scale
constexpr int kGroupBlocks = 4;                                   // scales in one word
constexpr int kGroupElements = kGroupBlocks * kBlockElements;     // 128: K is padded to a multiple of it

template <ScaleLayout layout>
struct Swizzle;

template <>
struct Swizzle<ScaleLayout::k128x4> {
    static constexpr int kRowsLog2 = 7;
    static constexpr int kAtomBytes = 512;
    static __device__ __forceinline__ int within_atom(int row) { return (row & 31) * 16 + ((row >> 5) & 3) * 4; }
};

template <>
struct Swizzle<ScaleLayout::k8x4> {
    static constexpr int kRowsLog2 = 3;
    static constexpr int kAtomBytes = 32;
    static __device__ __forceinline__ int within_atom(int row) { return (row & 7) * 4; }
};

/// Byte offset of the scale word of (row, K-group 0); K-group g lies g * Swizzle<layout>::kAtomBytes further.
template <ScaleLayout layout>
__device__ __forceinline__ int64_t row_scale_offset(int row, int groups) {
    using Atom = Swizzle<layout>;
    return static_cast<int64_t>(row >> Atom::kRowsLog2) * groups * Atom::kAtomBytes + Atom::within_atom(row);
}

template <ScaleLayout layout>
__device__ __forceinline__ void store_scale_word(uint8_t* scales, int row, int group, int groups, uint32_t word) {
    const int64_t offset = row_scale_offset<layout>(row, groups) + group * Swizzle<layout>::kAtomBytes;
    *reinterpret_cast<uint32_t*>(scales + offset) = word;
}

/// First scale row of an expert whose first token is `first_token`: a multiple of 128 for every expert, with no prefix
/// sum of aligned counts. The regions never overlap, since each expert gains at most 127 rows of padding.
__device__ __forceinline__ int expert_scale_row(int first_token, int expert) {
    constexpr int kAlignment = 128;
    return (first_token + expert * (kAlignment - 1) + kAlignment - 1) & -kAlignment;
}

}  // namespace refmoe
