// Prints where CUTLASS puts things, from its own headers and without a GPU:
//
//   layouts scales M N K L     "sfa m k l offset" and "sfb n k l offset", one line for each scale of a block of 32
//   layouts fragments          "NAME lane value row column", one line for each value that a lane of a warp holds in the
//                              m16n8k32 instruction; NAME is A (16 x 32), B (8 x 32, by columns of B), C (16 x 8),
//                              SFA (16 x 1) or SFB (8 x 1)
//
// A plain host compiler builds it, with the headers of CUDA.

// Before anything of CUTLASS, as in grouped_gemm.cu.
#include "cute/tensor.hpp"

#include "cute/atom/mma_traits_sm120.hpp"
#include "cutlass/detail/sm100_blockscaled_layout.hpp"
#include "cutlass/numeric_types.h"

#include <cstdio>
#include <cstdlib>
#include <cstring>

namespace {

using namespace cute;

constexpr int kBlock = 32;  // elements that share a scale
using ScaleConfig = cutlass::detail::Sm1xxBlockScaledConfig<kBlock>;
using Traits = MMA_Traits<SM120::BLOCKSCALED::SM120_16x8x32_TN_VS<cutlass::float_e2m1_t, cutlass::float_e4m3_t, float,
                                                                  cutlass::float_ue8m0_t, kBlock>>;

template <class Layout>
void print_scales(char const* name, Layout const& layout, int rows, int k, int batches) {
  for (int l = 0; l < batches; ++l)
    for (int row = 0; row < rows; ++row)
      for (int block = 0; block < k / kBlock; ++block)
        std::printf("%s %d %d %d %lld\n", name, row, block, l,
                    static_cast<long long>(layout(row, block * kBlock, l)));
}

// A fragment layout maps (lane, value) to row + rows * column. Of scales, all 32 columns of a block are one value.
template <class Layout>
void print_fragment(char const* name, Layout const& layout, int rows, int columns, bool scales) {
  int const values = scales ? columns / kBlock : size<1>(layout);
  for (int lane = 0; lane < size<0>(layout); ++lane)
    for (int value = 0; value < values; ++value) {
      int const index = layout(lane, scales ? value * kBlock : value);
      std::printf("%s %d %d %d %d\n", name, lane, value, index % rows, index / rows);
    }
}

int print_all_scales(char** sizes) {
  int const m = std::atoi(sizes[0]), n = std::atoi(sizes[1]), k = std::atoi(sizes[2]), batches = std::atoi(sizes[3]);
  auto const shape = make_shape(m, n, k, batches);
  print_scales("sfa", ScaleConfig::tile_atom_to_shape_SFA(shape), m, k, batches);
  print_scales("sfb", ScaleConfig::tile_atom_to_shape_SFB(shape), n, k, batches);
  return 0;
}

int print_all_fragments() {
  constexpr int kM = size<0>(typename Traits::Shape_MNK{}), kN = size<1>(typename Traits::Shape_MNK{});
  constexpr int kK = size<2>(typename Traits::Shape_MNK{});
  print_fragment("A", typename Traits::ALayout{}, kM, kK, false);
  print_fragment("B", typename Traits::BLayout{}, kN, kK, false);
  print_fragment("C", typename Traits::CLayout{}, kM, kN, false);
  print_fragment("SFA", typename Traits::SFALayout{}, kM, kK, true);
  print_fragment("SFB", typename Traits::SFBLayout{}, kN, kK, true);
  return 0;
}

}  // namespace

int main(int count, char** arguments) {
  if (count == 6 && std::strcmp(arguments[1], "scales") == 0) return print_all_scales(arguments + 2);
  if (count == 2 && std::strcmp(arguments[1], "fragments") == 0) return print_all_fragments();
  std::fputs("usage: layouts scales M N K L | layouts fragments\n", stderr);
  return 2;
}
