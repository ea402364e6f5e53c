// A tensor map in a format of ours, and the checks with which the driver's cuTensorMapEncodeTiled refuses one.
//
// The driver's 128 bytes are opaque; a kernel edits them only through tensormap.replace. So the executor is free to
// read this format instead (little endian, see also refmoe/ptx/state/tensormap.py):
//
//     0  char[8]  "refmoeTM"
//     8  u64      global address
//    16  u64[4]   strides in bytes of dimensions 1..4
//    48  u32[5]   extents, in elements
//    68  u32[5]   extents of the box, in elements
//    88  u32[5]   element strides
//   108  u8       data type          (this and the next ones: numbers of the driver's enums)
//   109  u8       rank
//   110  u8       interleave
//   111  u8       swizzle
//   112  u8       L2 promotion
//   113  u8       fill of what lies out of bounds
//   114  zeros
//
// The driver also takes an extent of 2^32, which has no room here and is refused.

#pragma once

#include <cuda.h>

#include <array>
#include <cstdint>
#include <cstring>
#include <string>

namespace refmoe {

struct TensorMapImage {
  char magic[8];
  uint64_t global_address;
  uint64_t global_stride[4];
  uint32_t global_dim[5];
  uint32_t box_dim[5];
  uint32_t element_stride[5];
  uint8_t data_type, rank, interleave, swizzle, l2_promotion, oob_fill;
  uint8_t zeros[14];
};
static_assert(sizeof(TensorMapImage) == 128 && sizeof(CUtensorMap) == 128);

// The arguments of cuTensorMapEncodeTiled; arrays as the caller passed them.
struct TensorMapArguments {
  CUtensorMap* map;
  CUtensorMapDataType data_type;
  uint32_t rank;
  uint64_t global_address;
  uint64_t const* global_dim;
  uint64_t const* global_strides;
  uint32_t const* box_dim;
  uint32_t const* element_strides;
  CUtensorMapInterleave interleave;
  CUtensorMapSwizzle swizzle;
  CUtensorMapL2promotion l2_promotion;
  CUtensorMapFloatOOBfill oob_fill;
};

constexpr uint32_t kMaxRank = 5;
constexpr uint64_t kMaxExtent = (1ull << 32) - 1;
constexpr uint64_t kStrideLimit = 1ull << 40;
constexpr uint32_t kMaxBox = 256;
constexpr uint32_t kMaxElementStride = 8;
constexpr uint32_t kPackedBox = 128;  // elements of a row of a box of the types that are unpacked to 16 bytes

// Bits of an element in global memory.
inline int element_bits(CUtensorMapDataType type) {
  switch (type) {
    case CU_TENSOR_MAP_DATA_TYPE_16U4_ALIGN8B:
    case CU_TENSOR_MAP_DATA_TYPE_16U4_ALIGN16B: return 4;
    case CU_TENSOR_MAP_DATA_TYPE_16U6_ALIGN16B: return 6;
    case CU_TENSOR_MAP_DATA_TYPE_UINT8: return 8;
    case CU_TENSOR_MAP_DATA_TYPE_UINT16:
    case CU_TENSOR_MAP_DATA_TYPE_FLOAT16:
    case CU_TENSOR_MAP_DATA_TYPE_BFLOAT16: return 16;
    case CU_TENSOR_MAP_DATA_TYPE_UINT64:
    case CU_TENSOR_MAP_DATA_TYPE_INT64:
    case CU_TENSOR_MAP_DATA_TYPE_FLOAT64: return 64;
    default: return 32;
  }
}

// Whether 16 packed elements take 16 bytes of shared memory, with a gap behind them.
inline bool unpacks_to_16_bytes(CUtensorMapDataType type) {
  return type == CU_TENSOR_MAP_DATA_TYPE_16U4_ALIGN16B || type == CU_TENSOR_MAP_DATA_TYPE_16U6_ALIGN16B;
}

inline bool is_floating(CUtensorMapDataType type) {
  return type >= CU_TENSOR_MAP_DATA_TYPE_FLOAT16 && type <= CU_TENSOR_MAP_DATA_TYPE_TFLOAT32_FTZ;
}

// Bytes of a row of the box in shared memory.
inline uint64_t box_row_bytes(CUtensorMapDataType type, uint32_t elements) {
  return unpacks_to_16_bytes(type) ? elements : uint64_t{elements} * element_bits(type) / 8;
}

// Widest row that a swizzle permutes, in bytes; 0 for no swizzle.
inline uint64_t swizzle_bytes(CUtensorMapSwizzle swizzle) {
  switch (swizzle) {
    case CU_TENSOR_MAP_SWIZZLE_NONE: return 0;
    case CU_TENSOR_MAP_SWIZZLE_32B: return 32;
    case CU_TENSOR_MAP_SWIZZLE_64B: return 64;
    default: return 128;
  }
}

inline bool swizzle_takes(CUtensorMapDataType type, CUtensorMapSwizzle swizzle) {
  if (!unpacks_to_16_bytes(type)) return true;
  return swizzle == CU_TENSOR_MAP_SWIZZLE_NONE || swizzle == CU_TENSOR_MAP_SWIZZLE_128B ||
         swizzle == CU_TENSOR_MAP_SWIZZLE_128B_ATOM_32B ||
         (swizzle == CU_TENSOR_MAP_SWIZZLE_128B_ATOM_64B && type == CU_TENSOR_MAP_DATA_TYPE_16U6_ALIGN16B);
}

// "name[i] = found; needed what"
inline std::string complaint(std::string const& name, uint64_t found, std::string const& needed) {
  return name + " = " + std::to_string(found) + "; needed " + needed;
}

inline std::string indexed(char const* name, uint32_t i) { return std::string(name) + "[" + std::to_string(i) + "]"; }

inline std::string check_enums(TensorMapArguments const& a) {
  if (a.data_type > CU_TENSOR_MAP_DATA_TYPE_16U6_ALIGN16B) return complaint("tensorDataType", a.data_type, "0 to 15");
  if (a.interleave > CU_TENSOR_MAP_INTERLEAVE_32B) return complaint("interleave", a.interleave, "0 to 2");
  if (a.swizzle > CU_TENSOR_MAP_SWIZZLE_128B_ATOM_64B) return complaint("swizzle", a.swizzle, "0 to 6");
  if (a.l2_promotion > CU_TENSOR_MAP_L2_PROMOTION_L2_256B) return complaint("l2Promotion", a.l2_promotion, "0 to 3");
  if (a.oob_fill > CU_TENSOR_MAP_FLOAT_OOB_FILL_NAN_REQUEST_ZERO_FMA) return complaint("oobFill", a.oob_fill, "0 or 1");
  if (a.oob_fill != CU_TENSOR_MAP_FLOAT_OOB_FILL_NONE && !is_floating(a.data_type))
    return complaint("oobFill", a.oob_fill, "0, the data type is no floating-point type");
  return "";
}

inline std::string check_pointers(TensorMapArguments const& a) {
  if (a.map == nullptr || reinterpret_cast<uintptr_t>(a.map) % 64 != 0)
    return complaint("tensorMap", reinterpret_cast<uintptr_t>(a.map), "an address that is a multiple of 64");
  if (a.rank == 0 || a.rank > kMaxRank) return complaint("tensorRank", a.rank, "1 to 5");
  if (a.interleave != CU_TENSOR_MAP_INTERLEAVE_NONE && a.rank < 3)
    return complaint("tensorRank", a.rank, "3 to 5 when interleaved");
  if (a.global_dim == nullptr || a.box_dim == nullptr || a.element_strides == nullptr ||
      (a.rank > 1 && a.global_strides == nullptr))
    return "an array is null; needed globalDim, globalStrides, boxDim and elementStrides";
  return "";
}

// What the global address and the strides have to be multiples of.
inline uint64_t global_alignment(TensorMapArguments const& a) {
  return a.interleave == CU_TENSOR_MAP_INTERLEAVE_32B || unpacks_to_16_bytes(a.data_type) ? 32 : 16;
}

inline std::string check_global(TensorMapArguments const& a) {
  uint64_t const alignment = global_alignment(a);
  std::string const multiple = "a multiple of " + std::to_string(alignment);
  if (a.global_address % alignment != 0) return complaint("globalAddress", a.global_address, multiple);
  for (uint32_t i = 0; i < a.rank; ++i)
    if (a.global_dim[i] == 0 || a.global_dim[i] > kMaxExtent)
      return complaint(indexed("globalDim", i), a.global_dim[i], "1 to 2^32 - 1");
  if (unpacks_to_16_bytes(a.data_type) && a.global_dim[0] % 128 != 0)
    return complaint("globalDim[0]", a.global_dim[0], "a multiple of 128 for 16U4_ALIGN16B and 16U6_ALIGN16B");
  if (a.data_type == CU_TENSOR_MAP_DATA_TYPE_16U4_ALIGN8B && a.global_dim[0] % 2 != 0)
    return complaint("globalDim[0]", a.global_dim[0], "a multiple of 2 for 16U4_ALIGN8B");
  for (uint32_t i = 0; i + 1 < a.rank; ++i)
    if (a.global_strides[i] % alignment != 0 || a.global_strides[i] >= kStrideLimit)
      return complaint(indexed("globalStrides", i), a.global_strides[i], multiple + " below 2^40");
  return "";
}

inline std::string check_box(TensorMapArguments const& a) {
  for (uint32_t i = 0; i < a.rank; ++i)
    if (a.box_dim[i] == 0 || a.box_dim[i] > kMaxBox) return complaint(indexed("boxDim", i), a.box_dim[i], "1 to 256");
  bool const plain = a.interleave == CU_TENSOR_MAP_INTERLEAVE_NONE;
  for (uint32_t i = plain ? 1 : 0; i < a.rank; ++i)  // the first one is ignored when nothing is interleaved
    if (a.element_strides[i] == 0 || a.element_strides[i] > kMaxElementStride)
      return complaint(indexed("elementStrides", i), a.element_strides[i], "1 to 8");
  uint64_t const row = box_row_bytes(a.data_type, a.box_dim[0]);
  if (unpacks_to_16_bytes(a.data_type) && a.box_dim[0] != kPackedBox)
    return complaint("boxDim[0]", a.box_dim[0], "128 for 16U4_ALIGN16B and 16U6_ALIGN16B");
  if (plain && row % 16 != 0) return complaint("boxDim[0] in bytes", row, "a multiple of 16");
  if (plain && a.swizzle != CU_TENSOR_MAP_SWIZZLE_NONE && row > swizzle_bytes(a.swizzle))
    return complaint("boxDim[0] in bytes", row, "at most " + std::to_string(swizzle_bytes(a.swizzle)) + " to swizzle it");
  return "";
}

inline std::string check_modes(TensorMapArguments const& a) {
  if (a.interleave == CU_TENSOR_MAP_INTERLEAVE_32B && a.swizzle != CU_TENSOR_MAP_SWIZZLE_32B)
    return complaint("swizzle", a.swizzle, "SWIZZLE_32B (1) with INTERLEAVE_32B");
  if (a.data_type == CU_TENSOR_MAP_DATA_TYPE_16U6_ALIGN16B && a.interleave != CU_TENSOR_MAP_INTERLEAVE_NONE)
    return complaint("interleave", a.interleave, "INTERLEAVE_NONE (0) for 16U6_ALIGN16B");
  if (!swizzle_takes(a.data_type, a.swizzle))
    return complaint("swizzle", a.swizzle, "one that the data type takes: none, 128B or 128B_ATOM_32B");
  return "";
}

// "" for arguments that the driver takes, else why it refuses them: the requirements of cuda.h, one by one. A driver
// may be more lenient, 580 in two of them: tests/ptx/test_tensormap_gpu.py holds this list against it.
inline std::string refusal(TensorMapArguments const& a) {
  for (auto check : {check_pointers, check_enums, check_global, check_box, check_modes})
    if (std::string why = check(a); !why.empty()) return why;
  return "";
}

inline TensorMapImage encoded(TensorMapArguments const& a) {
  TensorMapImage image{};
  std::memcpy(image.magic, "refmoeTM", sizeof image.magic);
  image.global_address = a.global_address;
  for (uint32_t i = 0; i < kMaxRank; ++i) {
    image.global_dim[i] = i < a.rank ? static_cast<uint32_t>(a.global_dim[i]) : 1;
    image.box_dim[i] = i < a.rank ? a.box_dim[i] : 1;
    image.element_stride[i] = i < a.rank ? a.element_strides[i] : 1;
  }
  for (uint32_t i = 0; i + 1 < a.rank; ++i) image.global_stride[i] = a.global_strides[i];
  image.data_type = static_cast<uint8_t>(a.data_type);
  image.rank = static_cast<uint8_t>(a.rank);
  image.interleave = static_cast<uint8_t>(a.interleave);
  image.swizzle = static_cast<uint8_t>(a.swizzle);
  image.l2_promotion = static_cast<uint8_t>(a.l2_promotion);
  image.oob_fill = static_cast<uint8_t>(a.oob_fill);
  return image;
}

}  // namespace refmoe
