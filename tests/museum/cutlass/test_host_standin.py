"""The stand-in CUDA runtime alone: its tensor maps against the executor's, its refusals, the launch that it records."""

from __future__ import annotations

import ctypes
import subprocess
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from support.bulk.tensor_map_cases import BAD, BYTES, GOOD, Map
from support.selection.thinned import thinned

from refmoe.cuda.toolchain import ToolchainError, find_toolchain, include_directory
from refmoe.errors import ArgumentError
from refmoe.museum.cutlass.builds import STANDIN
from refmoe.ptx.state.tensormap import DATA_TYPES, encode_tensor_map

# What CUTLASS does, in C: it looks cuTensorMapEncodeTiled up, and launches through what nvcc puts behind <<<>>>.
CALLER = r"""
#include <cuda.h>
#include <cuda_runtime_api.h>

extern "C" {
extern void __cudaRegisterFunction(void**, char const*, char*, char const*, int, uint3*, uint3*, dim3*, dim3*, int*);
extern unsigned __cudaPushCallConfiguration(dim3, dim3, size_t, cudaStream_t);
extern cudaError_t __cudaPopCallConfiguration(dim3*, dim3*, size_t*, void*);
extern cudaError_t __cudaLaunchKernel(cudaKernel_t, dim3, dim3, void**, size_t, cudaStream_t);
extern cudaError_t __cudaGetKernel(cudaKernel_t*, void const*);

int refmoe_test_encode(void* map, int type, unsigned rank, void* address, cuuint64_t const* dim,
                       cuuint64_t const* strides, cuuint32_t const* box, cuuint32_t const* steps, int interleave,
                       int swizzle, int promotion, int fill) {
  void* function = nullptr;
  cudaDriverEntryPointQueryResult status;
  char const* name = "cuTensorMapEncodeTiled";
  if (cudaGetDriverEntryPointByVersion(name, &function, 12000, cudaEnableDefault, &status)) return -1;
  return reinterpret_cast<decltype(&cuTensorMapEncodeTiled)>(function)(
      static_cast<CUtensorMap*>(map), CUtensorMapDataType(type), rank, address, dim, strides, box, steps,
      CUtensorMapInterleave(interleave), CUtensorMapSwizzle(swizzle), CUtensorMapL2promotion(promotion),
      CUtensorMapFloatOOBfill(fill));
}

int refmoe_test_driver_entry(char const* name) {
  void* function = nullptr;
  return cudaGetDriverEntryPointByVersion(name, &function, 12000, cudaEnableDefault, nullptr);
}

int refmoe_test_attribute(int attribute, int* value) {
  return cudaDeviceGetAttribute(value, cudaDeviceAttr(attribute), 0);
}
int refmoe_test_last_error() { return cudaGetLastError(); }
int refmoe_test_occupancy() {
  int blocks;
  return cudaOccupancyMaxActiveBlocksPerMultiprocessorWithFlags(&blocks, nullptr, 32, 0, 0);
}

static char kernel_stub;
void refmoe_test_register() {
  char* stub = &kernel_stub;
  __cudaRegisterFunction(nullptr, stub, stub, "the_entry", -1, nullptr, nullptr, nullptr, nullptr, nullptr);
}

int refmoe_test_launch(int registered, unsigned grid, unsigned block, int opt_in, size_t shared, void* parameter) {
  void const* stub = registered ? static_cast<void const*>(&kernel_stub) : nullptr;
  if (opt_in) {
    cudaError_t const error = cudaFuncSetAttribute(stub, cudaFuncAttributeMaxDynamicSharedMemorySize, opt_in);
    if (error) return error;
  }
  cudaKernel_t kernel;
  __cudaGetKernel(&kernel, stub);
  __cudaPushCallConfiguration({grid, 1, 1}, {block, 1, 1}, shared, nullptr);
  dim3 grid_, block_;
  size_t shared_;
  cudaStream_t stream;
  __cudaPopCallConfiguration(&grid_, &block_, &shared_, &stream);
  void* arguments[] = {parameter};
  return __cudaLaunchKernel(kernel, grid_, block_, arguments, shared_, stream);
}
}
"""

CHIP = (48, 101_376, 12, 1, 13_000)


@pytest.fixture(scope="module")
def library(tmp_path_factory: pytest.TempPathFactory) -> ctypes.CDLL:
    try:
        include = include_directory(find_toolchain())
    except ToolchainError as error:
        pytest.skip(str(error))
    folder: Path = tmp_path_factory.mktemp("standin")
    (folder / "caller.cpp").write_text(CALLER)
    command = ["g++", "-std=c++17", "-Wall", "-Wextra", "-Werror", "-fPIC", "-shared", f"-I{include}"]
    command += [str(STANDIN[0]), str(folder / "caller.cpp"), "-o", str(folder / "standin.so"), "-Wl,-z,defs"]
    subprocess.run([*command, f"-Wl,--version-script={STANDIN[2]}"], check=True)
    loaded = ctypes.CDLL(str(folder / "standin.so"))
    loaded.refmoe_standin_complaint.restype = ctypes.c_char_p
    loaded.refmoe_standin_entry.restype = ctypes.c_char_p
    loaded.refmoe_standin_parameters.restype = ctypes.c_void_p
    loaded.refmoe_test_register()
    return loaded


@pytest.fixture
def runtime(library: ctypes.CDLL) -> ctypes.CDLL:
    """The library with nothing recorded."""
    reset(library)
    return library


def reset(library: ctypes.CDLL, chip: tuple[int, ...] = CHIP, parameter_bytes: int = 16) -> None:
    library.refmoe_standin_reset((ctypes.c_int32 * 5)(*chip), ctypes.c_uint64(parameter_bytes))


def complaint(library: ctypes.CDLL) -> str:
    return str(library.refmoe_standin_complaint().decode())


@pytest.mark.parametrize("name", thinned(GOOD, 2))
def test_a_tensor_map_has_the_bytes_that_the_executor_reads(runtime: ctypes.CDLL, name: str) -> None:
    status, content = GOOD[name].encode(runtime.refmoe_test_encode)
    assert (status, complaint(runtime)) == (0, "")
    assert content == by_the_executor(GOOD[name])


def by_the_executor(arguments: Map) -> bytes:
    return encode_tensor_map(
        arguments.address,
        list(DATA_TYPES)[arguments.data_type],
        arguments.dims,
        arguments.strides,
        arguments.box,
        arguments.steps,
        swizzle=("none", "32B", "64B", "128B", "128B_atom_32B", "128B_atom_32B_flip_8B", "128B_atom_64B")[
            arguments.swizzle
        ],
        interleave=("none", "16B", "32B")[arguments.interleave],
        l2_promotion=("none", "64B", "128B", "256B")[arguments.promotion],
        fill=("zeros", "nan")[arguments.fill],
    )


@pytest.mark.parametrize("name", BAD)
def test_what_the_driver_refuses_is_refused_by_name(runtime: ctypes.CDLL, name: str) -> None:
    base, change, named = BAD[name]
    arguments = replace(base, **change)
    status, content = arguments.encode(runtime.refmoe_test_encode)
    assert status == 1  # CUDA_ERROR_INVALID_VALUE
    assert complaint(runtime).startswith("cuTensorMapEncodeTiled: ")
    assert named in complaint(runtime)
    assert content == b"\xee" * 128


@pytest.mark.parametrize("name", ["address 16", "no extent", "fp4 extent", "stride 32", "no box", "fp4 box", "step"])
def test_the_executor_refuses_it_too(name: str) -> None:
    base, change, _ = BAD[name]
    with pytest.raises(ArgumentError):
        by_the_executor(replace(base, **change))


@pytest.mark.parametrize("change", [{"address": 0}, {"strides": (0,)}], ids=str)
def test_the_placeholders_of_cutlass_are_taken(runtime: ctypes.CDLL, change: dict[str, Any]) -> None:
    """As by the driver, see test_gpu_tensor_map: the kernel fills them in."""
    assert replace(BYTES, **change).encode(runtime.refmoe_test_encode)[0] == 0


def test_the_first_step_is_ignored_without_interleave(runtime: ctypes.CDLL) -> None:
    assert replace(BYTES, steps=(0, 1)).encode(runtime.refmoe_test_encode)[0] == 0


def test_the_first_complaint_stays(runtime: ctypes.CDLL) -> None:
    replace(BYTES, box=(128, 0)).encode(runtime.refmoe_test_encode)
    replace(BYTES, steps=(1, 0)).encode(runtime.refmoe_test_encode)
    BYTES.encode(runtime.refmoe_test_encode)
    assert "boxDim[1]" in complaint(runtime)


def test_a_launch_is_recorded(runtime: ctypes.CDLL) -> None:
    parameter = bytes(range(16))
    assert runtime.refmoe_test_launch(1, 48, 384, 78_848, ctypes.c_size_t(78_848), parameter) == 0
    found = (ctypes.c_int32 * 8)()
    runtime.refmoe_standin_launch(ctypes.byref(found))
    assert runtime.refmoe_standin_launches() == 1
    assert list(found) == [48, 1, 1, 384, 1, 1, 78_848, 0]
    assert runtime.refmoe_standin_entry() == b"the_entry"
    assert ctypes.string_at(runtime.refmoe_standin_parameters(), 16) == parameter
    assert complaint(runtime) == ""


REFUSED: dict[str, tuple[Callable[[ctypes.CDLL], int], str]] = {
    "more than the chip has": (
        lambda r: launch(r, opt_in=101_377),
        "101377 bytes of shared memory; the chip has 101376",
    ),
    "more than asked for": (lambda r: launch(r, opt_in=65_536, shared=65_537), "the kernel may have 65536"),
    "more than 48 KiB unasked": (lambda r: launch(r, opt_in=0, shared=49_153), "the kernel may have 49152"),
    "no block": (lambda r: launch(r, grid=0), "0x1x1 blocks"),
    "too many threads": (lambda r: launch(r, block=1025), "1025 threads"),
    "a kernel nobody registered": (lambda r: launch(r, registered=0), "nobody registered"),
    "a driver function": (lambda r: r.refmoe_test_driver_entry(b"cuTensorMapEncodeIm2col"), "cuTensorMapEncodeIm2col"),
    "a device attribute": (lambda r: r.refmoe_test_attribute(1, ctypes.byref(ctypes.c_int())), "no attribute 1"),
    "occupancy": (lambda r: r.refmoe_test_occupancy(), "cudaOccupancyMaxActiveBlocks"),
}


def launch(
    runtime: ctypes.CDLL, registered: int = 1, grid: int = 1, block: int = 32, opt_in: int = 0, shared: int = 0
) -> int:
    status: int = runtime.refmoe_test_launch(registered, grid, block, opt_in, ctypes.c_size_t(shared), bytes(16))
    return status


@pytest.mark.parametrize("name", REFUSED)
def test_what_is_not_known_fails_by_name(runtime: ctypes.CDLL, name: str) -> None:
    call, named = REFUSED[name]
    assert call(runtime) != 0
    assert named in complaint(runtime)
    assert runtime.refmoe_standin_launches() == 0
    assert runtime.refmoe_test_last_error() != 0
    assert runtime.refmoe_test_last_error() == 0  # reading it clears it


def test_the_chip_is_what_the_caller_set(runtime: ctypes.CDLL) -> None:
    value = ctypes.c_int()
    for attribute, expected in ((16, 48), (97, 101_376), (75, 12), (76, 1)):  # cudaDeviceAttr
        assert runtime.refmoe_test_attribute(attribute, ctypes.byref(value)) == 0
        assert value.value == expected
    reset(runtime, (170, 101_376, 12, 0, 13_000))
    runtime.refmoe_test_attribute(16, ctypes.byref(value))
    assert value.value == 170


def test_without_a_chip_there_is_no_answer(library: ctypes.CDLL) -> None:
    reset(library, (0, 0, 0, 0, 0))
    assert library.refmoe_test_attribute(16, ctypes.byref(ctypes.c_int())) != 0
    assert "before it was set" in complaint(library)
