// A stand-in for the CUDA runtime: enough of it for the host code of CUTLASS, on a machine without a GPU.
//
// Linked in place of libcudart, it answers questions about the chip from a table that the caller sets, encodes tensor
// maps in the format of tensor_map.hpp after the driver's own checks, and records a launch instead of starting it.
// It holds no device memory: addresses are the executor's, and only pass through.
//
// A function that is not here does not link, and the linker names it. A function that is here but cannot be answered
// without a chip, and an attribute or a driver entry that is not known, fails the call and says so in
// refmoe_standin_complaint(). CUTLASS built with NDEBUG carries on after a tensor map that was refused, so the caller
// looks at the complaint after every run.
//
// All state is of the calling thread, as the runtime's own last error and launch configuration are.

#include <cuda_runtime_api.h>

#include <cstdint>
#include <cstring>
#include <map>
#include <string>
#include <vector>

#include "tensor_map.hpp"

namespace refmoe {

// What the chip reports. Figures and sources: refmoe/chips.py.
struct Chip {
  int32_t multiprocessors;
  int32_t shared_bytes;  // that one block may opt in to
  int32_t major, minor;  // compute capability
  int32_t driver_version;
};

struct Launch {
  int32_t grid[3], block[3];
  uint64_t shared_bytes;
};

constexpr size_t kDefaultSharedBytes = 48 * 1024;  // of a kernel that did not opt in
constexpr unsigned kMaxThreads = 1024;

struct Configuration {
  dim3 grid, block;
  size_t shared_bytes;
  cudaStream_t stream;
};

struct State {
  Chip chip{};
  size_t parameter_bytes = 0;  // of the kernel's one parameter
  std::map<void const*, size_t> opted_in;  // kernel -> shared memory that it may have
  std::vector<Configuration> pushed;
  cudaError_t last_error = cudaSuccess;
  std::string complaint;
  int launches = 0;
  Launch launch{};
  std::string entry;
  std::vector<uint8_t> parameters;
};

State& state() {
  thread_local State instance;
  return instance;
}

// Kernels by the address of their host stub; filled while the library is loaded.
std::map<void const*, std::string>& entries() {
  static std::map<void const*, std::string> instance;
  return instance;
}

// The first complaint is the cause; what follows from it is not worth more.
cudaError_t refuse(cudaError_t error, std::string const& why) {
  if (state().complaint.empty()) state().complaint = why;
  state().last_error = error;
  return error;
}

cudaError_t needs_chip(char const* function) {
  return refuse(cudaErrorNotSupported, std::string(function) + " has no answer without a chip");
}

CUresult encode_tiled(CUtensorMap* map, CUtensorMapDataType type, cuuint32_t rank, void* address,
                      cuuint64_t const* dim, cuuint64_t const* strides, cuuint32_t const* box,
                      cuuint32_t const* element_strides, CUtensorMapInterleave interleave, CUtensorMapSwizzle swizzle,
                      CUtensorMapL2promotion promotion, CUtensorMapFloatOOBfill fill) {
  static_assert(sizeof(cuuint64_t) == sizeof(uint64_t));
  TensorMapArguments const arguments{map, type, rank, reinterpret_cast<uint64_t>(address),
                                     reinterpret_cast<uint64_t const*>(dim), reinterpret_cast<uint64_t const*>(strides),
                                     box, element_strides, interleave, swizzle, promotion, fill};
  if (std::string const why = refusal(arguments); !why.empty()) {
    if (state().complaint.empty()) state().complaint = "cuTensorMapEncodeTiled: " + why;
    return CUDA_ERROR_INVALID_VALUE;
  }
  TensorMapImage const image = encoded(arguments);
  std::memcpy(map, &image, sizeof image);
  return CUDA_SUCCESS;
}

cudaError_t driver_entry(char const* symbol, void** function, cudaDriverEntryPointQueryResult* status) {
  if (std::strcmp(symbol, "cuTensorMapEncodeTiled") == 0) {
    *function = reinterpret_cast<void*>(encode_tiled);
    if (status != nullptr) *status = cudaDriverEntryPointSuccess;
    return cudaSuccess;
  }
  *function = nullptr;
  if (status != nullptr) *status = cudaDriverEntryPointSymbolNotFound;
  return refuse(cudaErrorNotSupported, std::string("no driver function ") + symbol + " in the stand-in runtime");
}

unsigned threads(dim3 const& block) { return block.x * block.y * block.z; }

cudaError_t record(void const* kernel, dim3 grid, dim3 block, void** arguments, size_t shared_bytes) {
  State& s = state();
  auto const entry = entries().find(kernel);
  if (entry == entries().end()) return refuse(cudaErrorInvalidDeviceFunction, "launch of a kernel nobody registered");
  auto const opted_in = s.opted_in.find(kernel);
  size_t const allowed = opted_in == s.opted_in.end() ? kDefaultSharedBytes : opted_in->second;
  if (grid.x == 0 || grid.y == 0 || grid.z == 0 || threads(block) == 0 || threads(block) > kMaxThreads)
    return refuse(cudaErrorInvalidConfiguration,
                  "launch of " + std::to_string(grid.x) + "x" + std::to_string(grid.y) + "x" + std::to_string(grid.z) +
                      " blocks of " + std::to_string(threads(block)) + " threads; needed a block, and 1 to 1024 threads");
  if (shared_bytes > allowed)
    return refuse(cudaErrorInvalidValue, "launch with " + std::to_string(shared_bytes) +
                                             " bytes of shared memory; the kernel may have " + std::to_string(allowed));
  if (s.parameter_bytes == 0) return refuse(cudaErrorInvalidValue, "launch before the size of its parameter was set");
  s.launch = {{int32_t(grid.x), int32_t(grid.y), int32_t(grid.z)},
              {int32_t(block.x), int32_t(block.y), int32_t(block.z)},
              shared_bytes};
  s.entry = entry->second;
  auto const* first = static_cast<uint8_t const*>(arguments[0]);
  s.parameters.assign(first, first + s.parameter_bytes);
  ++s.launches;
  return cudaSuccess;
}

}  // namespace refmoe

using refmoe::needs_chip;
using refmoe::refuse;
using refmoe::state;

// What Python calls ------------------------------------------------------------------------------------------------

extern "C" {

// Before a run: the chip, and the bytes of the kernel's parameter. Forgets what was recorded.
void refmoe_standin_reset(refmoe::Chip const* chip, uint64_t parameter_bytes) {
  state() = refmoe::State{};
  state().chip = *chip;
  state().parameter_bytes = parameter_bytes;
}

// "" if every call was answered, else why the first one that was not, was not.
char const* refmoe_standin_complaint() { return state().complaint.c_str(); }

// How many launches were recorded since the reset; the accessors below speak of the last one.
int refmoe_standin_launches() { return state().launches; }
void refmoe_standin_launch(refmoe::Launch* out) { *out = state().launch; }
char const* refmoe_standin_entry() { return state().entry.c_str(); }
void const* refmoe_standin_parameters() { return state().parameters.data(); }

// The runtime: devices and errors ----------------------------------------------------------------------------------

cudaError_t cudaGetDevice(int* device) {
  *device = 0;
  return cudaSuccess;
}

cudaError_t cudaDriverGetVersion(int* version) {
  *version = state().chip.driver_version;
  return cudaSuccess;
}

cudaError_t cudaDeviceGetAttribute(int* value, cudaDeviceAttr attribute, int device) {
  if (device != 0) return refuse(cudaErrorInvalidDevice, "device " + std::to_string(device) + "; there is only 0");
  if (state().chip.multiprocessors == 0) return refuse(cudaErrorNoDevice, "asked about the chip before it was set");
  switch (attribute) {
    case cudaDevAttrMultiProcessorCount: *value = state().chip.multiprocessors; return cudaSuccess;
    case cudaDevAttrMaxSharedMemoryPerBlockOptin: *value = state().chip.shared_bytes; return cudaSuccess;
    case cudaDevAttrComputeCapabilityMajor: *value = state().chip.major; return cudaSuccess;
    case cudaDevAttrComputeCapabilityMinor: *value = state().chip.minor; return cudaSuccess;
    default:
      return refuse(cudaErrorInvalidValue, "cudaDeviceGetAttribute: the stand-in runtime has no attribute " +
                                               std::to_string(static_cast<int>(attribute)));
  }
}

cudaError_t cudaPeekAtLastError() { return state().last_error; }

cudaError_t cudaGetLastError() {
  cudaError_t const error = state().last_error;
  state().last_error = cudaSuccess;
  return error;
}

char const* cudaGetErrorString(cudaError_t error) {
  return error == cudaSuccess ? "no error" : "an error of the stand-in runtime: see its complaint";
}

char const* cudaGetErrorName(cudaError_t error) { return cudaGetErrorString(error); }

cudaError_t cudaGetDriverEntryPointByVersion(char const* symbol, void** function, unsigned, unsigned long long,
                                             cudaDriverEntryPointQueryResult* status) {
  return refmoe::driver_entry(symbol, function, status);
}

cudaError_t cudaGetDriverEntryPoint(char const* symbol, void** function, unsigned long long,
                                    cudaDriverEntryPointQueryResult* status) {
  return refmoe::driver_entry(symbol, function, status);
}

// The runtime: kernels ---------------------------------------------------------------------------------------------

cudaError_t cudaFuncSetAttribute(void const* kernel, cudaFuncAttribute attribute, int value) {
  if (attribute != cudaFuncAttributeMaxDynamicSharedMemorySize)
    return refuse(cudaErrorInvalidValue, "cudaFuncSetAttribute: the stand-in runtime has no attribute " +
                                             std::to_string(static_cast<int>(attribute)));
  if (value < 0 || value > state().chip.shared_bytes)
    return refuse(cudaErrorInvalidValue, "the kernel asks for " + std::to_string(value) +
                                             " bytes of shared memory; the chip has " +
                                             std::to_string(state().chip.shared_bytes) + " for a block");
  state().opted_in[kernel] = value;
  return cudaSuccess;
}

cudaError_t cudaLaunchKernel(void const* kernel, dim3 grid, dim3 block, void** arguments, size_t shared_bytes,
                             cudaStream_t) {
  return refmoe::record(kernel, grid, block, arguments, shared_bytes);
}

cudaError_t cudaLaunchKernelExC(cudaLaunchConfig_t const* config, void const* kernel, void** arguments) {
  for (unsigned i = 0; i < config->numAttrs; ++i) {
    auto const& attribute = config->attrs[i];
    dim3 const cluster{attribute.val.clusterDim.x, attribute.val.clusterDim.y, attribute.val.clusterDim.z};
    if (attribute.id == cudaLaunchAttributeClusterDimension && refmoe::threads(cluster) == 1) continue;
    return refuse(cudaErrorNotSupported, "cudaLaunchKernelExC: the stand-in runtime does not know launch attribute " +
                                             std::to_string(static_cast<int>(attribute.id)) + " with this value");
  }
  return refmoe::record(kernel, config->gridDim, config->blockDim, arguments, config->dynamicSmemBytes);
}

// Registers and blocks that fit depend on ptxas and the chip.
cudaError_t cudaOccupancyMaxActiveBlocksPerMultiprocessorWithFlags(int*, void const*, int, size_t, unsigned) {
  return needs_chip("cudaOccupancyMaxActiveBlocksPerMultiprocessorWithFlags");
}
cudaError_t cudaOccupancyMaxActiveClusters(int*, void const*, cudaLaunchConfig_t const*) {
  return needs_chip("cudaOccupancyMaxActiveClusters");
}
// Device memory is the executor's; the grouped GEMM needs neither of these.
cudaError_t cudaMemsetAsync(void*, int, size_t, cudaStream_t) { return needs_chip("cudaMemsetAsync"); }
cudaError_t cudaMemcpyAsync(void*, void const*, size_t, cudaMemcpyKind, cudaStream_t) {
  return needs_chip("cudaMemcpyAsync");
}

// What nvcc puts behind <<<>>> and into static initialisers --------------------------------------------------------

unsigned __cudaPushCallConfiguration(dim3 grid, dim3 block, size_t shared_bytes, cudaStream_t stream) {
  state().pushed.push_back({grid, block, shared_bytes, stream});
  return 0;
}

cudaError_t __cudaPopCallConfiguration(dim3* grid, dim3* block, size_t* shared_bytes, void* stream) {
  if (state().pushed.empty()) return refuse(cudaErrorMissingConfiguration, "a launch without its configuration");
  refmoe::Configuration const top = state().pushed.back();
  state().pushed.pop_back();
  *grid = top.grid;
  *block = top.block;
  *shared_bytes = top.shared_bytes;
  *static_cast<cudaStream_t*>(stream) = top.stream;
  return cudaSuccess;
}

// A kernel's handle is the address of its host stub.
cudaError_t __cudaGetKernel(cudaKernel_t* handle, void const* kernel) {
  *handle = static_cast<cudaKernel_t>(const_cast<void*>(kernel));
  return cudaSuccess;
}

cudaError_t __cudaLaunchKernel(cudaKernel_t kernel, dim3 grid, dim3 block, void** arguments, size_t shared_bytes,
                               cudaStream_t) {
  return refmoe::record(kernel, grid, block, arguments, shared_bytes);
}

void** __cudaRegisterFatBinary(void* binary) {
  static void* handle;
  handle = binary;
  return &handle;
}
void __cudaRegisterFatBinaryEnd(void**) {}
void __cudaUnregisterFatBinary(void**) {}
void __cudaRegisterFunction(void**, char const* kernel, char*, char const* name, int, uint3*, uint3*, dim3*, dim3*,
                            int*) {
  refmoe::entries()[kernel] = name;
}
// The executor finds module variables in the PTX.
void __cudaRegisterVar(void**, char*, char*, char const*, int, size_t, int, int) {}

}  // extern "C"
