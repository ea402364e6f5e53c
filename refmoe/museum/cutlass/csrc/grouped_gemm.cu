// The grouped GEMM of CUTLASS for SM12x, as servers instantiate it: MXFP4 weights by MXFP8 tokens, BF16 out.
//
// Nothing of the kernel is ours: it comes whole from the headers of CUTLASS. This file names its types and hands its
// host code the pointers. A build chooses, with -D:
//
//   REFMOE_SCHEDULE   KernelPtrArrayTmaWarpSpecializedCooperative or ...Pingpong
//   REFMOE_SWAPPED    1: weights on M, tokens on N, D column-major;  0: tokens on M, weights on N, D row-major
//   REFMOE_TILE_M, REFMOE_TILE_N, REFMOE_TILE_K
//
// Either way the output lies as [tokens, features]:
//
//   swapped      D[m = feature, n = token], column-major: features of a token are adjacent
//   unswapped    D[m = token, n = feature], row-major: the same bytes
//
// The file is compiled once: its PTX is what the executor runs, and its object holds the host code of CUTLASS, which is
// linked with the stand-in runtime of runtime_standin.cpp, or with the real one.

#include <cstddef>
#include <cstdint>

#include "cute/tensor.hpp"  // first: mma_traits_sm120.hpp needs its transform() and does not include it

#include "cutlass/cutlass.h"
#include "cutlass/version.h"
#include "cutlass/epilogue/collective/collective_builder.hpp"
#include "cutlass/gemm/collective/collective_builder.hpp"
#include "cutlass/gemm/device/gemm_universal_adapter.h"
#include "cutlass/gemm/group_array_problem_shape.hpp"
#include "cutlass/gemm/kernel/gemm_universal.hpp"
#include "cutlass/util/packed_stride.hpp"

namespace refmoe {

using namespace cute;

constexpr bool kSwapped = REFMOE_SWAPPED != 0;

using ProblemShape = cutlass::gemm::GroupProblemShape<Shape<int, int, int>>;
using TileShape = Shape<Int<REFMOE_TILE_M>, Int<REFMOE_TILE_N>, Int<REFMOE_TILE_K>>;
using ClusterShape = Shape<_1, _1, _1>;  // the chips of SM12x know no other
using Schedule = cutlass::gemm::REFMOE_SCHEDULE;

using Weight = cutlass::mx_float4_t<cutlass::float_e2m1_t>;
using Token = cutlass::mx_float8_t<cutlass::float_e4m3_t>;
using Output = cutlass::bfloat16_t;

// Elements that the tensor memory accelerator needs adjacent: 16 bytes, of FP4 unpacked on the way 128 elements.
constexpr int kWeightAlignment = 128;
constexpr int kTokenAlignment = 16;
constexpr int kOutputAlignment = 8;

using ElementA = std::conditional_t<kSwapped, Weight, Token>;
using ElementB = std::conditional_t<kSwapped, Token, Weight>;
constexpr int kAlignmentA = kSwapped ? kWeightAlignment : kTokenAlignment;
constexpr int kAlignmentB = kSwapped ? kTokenAlignment : kWeightAlignment;
using LayoutA = cutlass::layout::RowMajor;     // K adjacent
using LayoutB = cutlass::layout::ColumnMajor;  // K adjacent
using LayoutD = std::conditional_t<kSwapped, cutlass::layout::ColumnMajor, cutlass::layout::RowMajor>;

using Epilogue = typename cutlass::epilogue::collective::CollectiveBuilder<
    cutlass::arch::Sm120, cutlass::arch::OpClassBlockScaledTensorOp, TileShape, ClusterShape,
    cutlass::epilogue::collective::EpilogueTileAuto, float, float,
    void, LayoutD*, kOutputAlignment,  // no C: D = alpha * accumulator
    Output, LayoutD*, kOutputAlignment,
    cutlass::epilogue::collective::EpilogueScheduleAuto>::CollectiveOp;

using Mainloop = typename cutlass::gemm::collective::CollectiveBuilder<
    cutlass::arch::Sm120, cutlass::arch::OpClassBlockScaledTensorOp,
    ElementA, LayoutA*, kAlignmentA, ElementB, LayoutB*, kAlignmentB, float, TileShape, ClusterShape,
    cutlass::gemm::collective::StageCountAutoCarveout<static_cast<int>(sizeof(typename Epilogue::SharedStorage))>,
    Schedule>::CollectiveOp;

using GemmKernel = cutlass::gemm::kernel::GemmUniversal<ProblemShape, Mainloop, Epilogue>;
using Gemm = cutlass::gemm::device::GemmUniversalAdapter<GemmKernel>;

using Problem = typename ProblemShape::UnderlyingProblemShape;
using StrideA = typename GemmKernel::InternalStrideA;
using StrideB = typename GemmKernel::InternalStrideB;
using StrideD = typename GemmKernel::InternalStrideD;
using LayoutSFA = typename Mainloop::InternalLayoutSFA;
using LayoutSFB = typename Mainloop::InternalLayoutSFB;
using ScaleConfig = typename Mainloop::Sm1xxBlkScaledConfig;
using Scale = typename Mainloop::ElementSF;

// Bytes of one group in each of the arrays that the kernel reads, and what the kernel is.
struct Description {
  int32_t release;  // of CUTLASS: 100 * major + 10 * minor + patch
  int32_t stages, shared_bytes, threads;
  int32_t parameter_bytes;  // of the kernel's one parameter
  int32_t problem_bytes, stride_a_bytes, stride_b_bytes, stride_d_bytes, layout_sfa_bytes, layout_sfb_bytes;
};

// Device addresses; each array has one entry a group. `host_problems` lies on the host, or is null.
struct Operands {
  int64_t groups;
  uint64_t problems, host_problems;
  uint64_t ptr_a, stride_a, ptr_b, stride_b, ptr_sfa, layout_sfa, ptr_sfb, layout_sfb, ptr_d, stride_d;
  uint64_t ptr_alpha;  // an array of pointers to a float each, or null for 1
  uint64_t workspace;
};

template <class T>
T* pointer(uint64_t address) {
  return reinterpret_cast<T*>(address);
}

typename Gemm::Arguments arguments(Operands const& operands) {
  cutlass::KernelHardwareInfo hardware;
  hardware.sm_count = cutlass::KernelHardwareInfo::query_device_multiprocessor_count(hardware.device_id);

  typename Gemm::Arguments result{
      cutlass::gemm::GemmUniversalMode::kGrouped,
      {static_cast<int>(operands.groups), pointer<Problem>(operands.problems), pointer<Problem const>(operands.host_problems)},
      {pointer<typename Gemm::ElementA const*>(operands.ptr_a), pointer<StrideA>(operands.stride_a),
       pointer<typename Gemm::ElementB const*>(operands.ptr_b), pointer<StrideB>(operands.stride_b),
       pointer<Scale const*>(operands.ptr_sfa), pointer<LayoutSFA>(operands.layout_sfa),
       pointer<Scale const*>(operands.ptr_sfb), pointer<LayoutSFB>(operands.layout_sfb)},
      {{}, nullptr, nullptr, pointer<Output*>(operands.ptr_d), pointer<StrideD>(operands.stride_d)},
      hardware,
      {}};
  auto& fusion = result.epilogue.thread;
  fusion.alpha = 1.0f;
  fusion.beta = 0.0f;
  if (operands.ptr_alpha != 0) {
    fusion.alpha = 0.0f;
    fusion.alpha_ptr_array = pointer<float const* const>(operands.ptr_alpha);
    fusion.dAlpha = {_0{}, _0{}, 1};
  }
  return result;
}

template <class T>
void put(void* array, int group, T const& value) {
  static_cast<T*>(array)[group] = value;
}

}  // namespace refmoe

extern "C" {

void refmoe_cutlass_describe(refmoe::Description* out) {
  using namespace refmoe;
  *out = {CUTLASS_VERSION,
          Mainloop::DispatchPolicy::Stages,
          GemmKernel::SharedStorageSize,
          static_cast<int32_t>(GemmKernel::MaxThreadsPerBlock),
          sizeof(typename GemmKernel::Params),
          sizeof(Problem), sizeof(StrideA), sizeof(StrideB), sizeof(StrideD), sizeof(LayoutSFA), sizeof(LayoutSFB)};
}

// Entry `group` of the arrays that describe the groups, host memory all of them: weights [features, k], tokens [rows, k].
void refmoe_cutlass_group(int group, int features, int rows, int k, void* problems, void* stride_a, void* stride_b,
                          void* stride_d, void* layout_sfa, void* layout_sfb) {
  using namespace refmoe;
  int const m = kSwapped ? features : rows;
  int const n = kSwapped ? rows : features;
  put(problems, group, Problem{m, n, k});
  put(stride_a, group, cutlass::make_cute_packed_stride(StrideA{}, {m, k, 1}));
  put(stride_b, group, cutlass::make_cute_packed_stride(StrideB{}, {n, k, 1}));
  put(stride_d, group, cutlass::make_cute_packed_stride(StrideD{}, {m, n, 1}));
  put(layout_sfa, group, ScaleConfig::tile_atom_to_shape_SFA(make_shape(m, n, k, 1)));
  put(layout_sfb, group, ScaleConfig::tile_atom_to_shape_SFB(make_shape(m, n, k, 1)));
}

// Bytes of device memory that the kernel wants for its own use, its tensor maps among them.
uint64_t refmoe_cutlass_workspace(refmoe::Operands const* operands) {
  return refmoe::Gemm::get_workspace_size(refmoe::arguments(*operands));
}

// 0, or the cutlass::Status with which CUTLASS refuses the problem; it looks at shapes only if it has them on the host.
int refmoe_cutlass_can_implement(refmoe::Operands const* operands) {
  return static_cast<int>(refmoe::Gemm::can_implement(refmoe::arguments(*operands)));
}

// Runs the kernel on `stream`: 0, or the cutlass::Status.
int refmoe_cutlass_run(refmoe::Operands const* operands, void* stream) {
  refmoe::Gemm gemm;
  return static_cast<int>(
      gemm.run(refmoe::arguments(*operands), refmoe::pointer<void>(operands->workspace), static_cast<cudaStream_t>(stream)));
}

char const* refmoe_cutlass_status(int status) {
  return cutlass::cutlassGetStatusString(static_cast<cutlass::Status>(status));
}

}  // extern "C"
