"""CuTe DSL functions on the executor: compiled without a GPU, their host code run, their tensors lowered."""

from __future__ import annotations

import re
from importlib import metadata
from typing import Any

import ml_dtypes
import numpy as np
import pytest

import refmoe.cute
from refmoe.chips import CHIPS
from refmoe.cute import package
from refmoe.cute.host import HostCode
from refmoe.errors import ArgumentError
from refmoe.ptx import Buffer, Contraction, DeviceMemory, MemoryFault

try:
    refmoe.cute.check_package()
except refmoe.cute.CuteMissing as missing:
    pytest.skip(str(missing), allow_module_level=True)

import cuda.bindings.driver as driver
from cutlass import Float32, Int32
from support import cute_kernels as kernels

STREAM = driver.CUstream(0)


def numbers(*shape: int) -> np.ndarray[Any, Any]:
    return np.arange(np.prod(shape), dtype=np.float32).reshape(shape) - 3


def test_a_function_runs_on_arrays_of_any_size() -> None:
    x, y = numbers(300), np.zeros(300, np.float32)
    program = refmoe.cute.compile(kernels.scale, x, y, Float32(1.0), STREAM)
    (result,) = program.launch(x, y, 3.0, STREAM)
    assert y.tobytes() == (x * 3).tobytes()
    assert result.lane_instructions > 300
    # The sizes are dynamic: no other compilation, another grid.
    other, result_of_other = numbers(129), np.full(129, np.nan, np.float32)
    program.launch(other, result_of_other, factor=-1.0, stream=STREAM)
    assert result_of_other.tobytes() == (-other).tobytes()


def test_the_host_code_makes_the_launch() -> None:
    x, y = numbers(300), numbers(300)
    program = refmoe.cute.compile(kernels.scale, x, y, Float32(1.0), STREAM, arch="sm_90a")
    memory = DeviceMemory()
    (launch,) = program.host_launches(x, y, 2.0, STREAM, memory=memory)
    assert launch.entry == program.entries[0]
    assert (launch.grid, launch.block, launch.cluster, launch.cooperative) == ((3, 1, 1), (128, 1, 1), None, False)
    # A tensor of one mode: its address, its size. Both arrays are in the memory, in their order.
    pointer, size = (launch.parameters[1][:8], launch.parameters[1][8:12])
    assert int.from_bytes(pointer, "little") == memory.place(Buffer(y, "y"))
    assert int.from_bytes(size, "little") == 300
    assert launch.parameters[2] == np.float32(2).tobytes()
    assert ".target sm_90a" in program.ptx


def test_on_a_gpu_tensors_have_the_addresses_of_its_buffers() -> None:
    torch = pytest.importorskip("torch")
    x, y = numbers(12, 8), numbers(12, 8)
    # What the launch is made of does not depend on whose memory it is; here it is the host's.
    given, stored = (refmoe.cute.GpuBuffer.of(torch.zeros(12 * 8 * 4, dtype=torch.uint8)) for _ in range(2))

    def view(buffer: refmoe.cute.GpuBuffer) -> refmoe.cute.Tensor:
        return refmoe.cute.tensor(buffer.array.view(np.float32).reshape(12, 8)[2:7, 4:], buffer=buffer)

    program = refmoe.cute.compile(kernels.copy, x, y, arch="sm_90a")
    (launch,) = program.host_launches(view(given), view(stored), memory=refmoe.cute.GpuMemory())
    (same,) = program.host_launches(x[2:7, 4:], y[2:7, 4:], memory=DeviceMemory())
    assert (launch.grid, launch.block) == (same.grid, same.block)
    # A tensor is its address, then the sizes and strides that are not compiled in.
    assert [each[8:] for each in launch.parameters] == [each[8:] for each in same.parameters]
    found = [int.from_bytes(each[:8], "little") for each in launch.parameters]
    assert found == [buffer.tensor.data_ptr() + 2 * 32 + 16 for buffer in (given, stored)]
    with pytest.raises(ArgumentError, match=r"memory: found .*float32 \[12, 8\].*; needed a tensor with"):
        program.host_launches(x, view(stored), memory=refmoe.cute.GpuMemory())


def test_a_program_holds_its_machine_code_until_its_ptx_is_edited() -> None:
    x = numbers(10)
    program = refmoe.cute.compile(kernels.scale, x, x, Float32(1.0), STREAM, arch="sm_90a")
    assert program.cubin is not None
    assert program.cubin.startswith(b"\x7fELF")
    assert program.entries[0].encode() in program.cubin
    assert program.edited(lambda text: text.replace("mul.f32", "add.f32")).cubin is None


def test_what_is_outside_is_a_fault_that_leaves_the_arrays_alone() -> None:
    x, y = numbers(300), np.full(299, 7, np.float32)
    program = refmoe.cute.compile(kernels.scale_unchecked, x, y, Float32(1.0))
    with pytest.raises(MemoryFault, match="out of bounds: global write of 4 bytes at byte 1196"):
        program.launch(x, y, 2.0)
    assert (y == 7).all()


def test_a_function_may_launch_several_kernels() -> None:
    x, y = numbers(40), np.zeros(40, np.float32)
    expected = (x * 5)[::-1].copy()
    program = refmoe.cute.compile(kernels.scale_twice, x, y, Float32(1.0))
    assert len(program.entries) == 2
    assert len(program.launch(x, y, 5.0)) == 2
    assert x.tobytes() == expected.tobytes()


def test_views_have_the_strides_and_the_place_that_they_have_in_their_array() -> None:
    base = numbers(6, 8)
    view, result = base[1:5, 2:8:2].T, np.zeros((3, 4), np.float32)
    program = refmoe.cute.compile(kernels.copy, view, result)
    program.launch(view, result)
    assert result.tobytes() == np.ascontiguousarray(view).tobytes()


def test_values_in_tuples_constants_and_none() -> None:
    x, y = numbers(3, 5), np.zeros((3, 5), np.float32)
    program = refmoe.cute.compile(kernels.copy_pair, (x, y), 2, None)
    # What is a constant of the code is no argument of a launch.
    assert len(program.launch((x, y), None)) == 2
    assert y.tobytes() == x.tobytes()
    with pytest.raises(ArgumentError, match=r"extra: found .*; needed None, as it was compiled for"):
        program.launch((x, y), x)
    with pytest.raises(ArgumentError, match="needed 2 values, as it was compiled for"):
        program.launch((x,), None)


def test_an_array_stands_for_a_pointer() -> None:
    from cutlass.cute.runtime import make_ptr

    pointer = make_ptr(Float32, 16, package.imported("cutlass").AddressSpace.gmem, assumed_align=4)
    program = refmoe.cute.compile(kernels.by_pointer, pointer, pointer, Int32(1))
    x, y = numbers(9), np.zeros(9, np.float32)
    program.launch(x, y, 9)
    assert y.tobytes() == (x + 1).tobytes()


def test_clusters_are_those_of_the_launch() -> None:
    x = np.full(4, 9, np.int32)
    program = refmoe.cute.compile(kernels.in_clusters, x, arch="sm_90a")
    (launch,) = program.host_launches(x, memory=DeviceMemory())
    assert launch.cluster == (2, 1, 1)
    program.launch(x)
    assert x.tolist() == [0, 1, 0, 1]


def test_a_kernel_may_want_several_blocks_on_a_multiprocessor() -> None:
    x, y = numbers(3, 5), np.zeros((3, 5), np.float32)
    helpers = package.imported("cutlass.cutlass_dsl.cutlass").cuda_helpers
    asked = helpers.get_device_attribute
    program = refmoe.cute.compile(kernels.copy_crowded, x, y, arch="sm_90a")
    assert helpers.get_device_attribute is asked
    assert ".minnctapersm 2" in program.ptx
    program.launch(x, y)
    assert y.tobytes() == x.tobytes()


def test_a_call_of_the_runtime_that_is_not_known_is_named() -> None:
    x = numbers(10)
    program = refmoe.cute.compile(kernels.scale, x, x, Float32(1.0), STREAM)
    text = str(program.compiled.ir_module)
    unknown = text.replace("_cudaGetDevice(", "_cudaGetDeviceOfMine(")
    assert unknown != text
    with program.compiled.ir_module.context as context:
        module = package.imported("cutlass._mlir.ir").Module.parse(unknown, context)
        # The host code that sets up its kernels asks for the device on one way of two.
        host = HostCode(module, program.compiled.function_name, program.module, CHIPS["sm_90a"])
    found = dict(host._callbacks)["_cudaGetDeviceOfMine"]()
    assert found == 801
    assert host._failures == ["it calls cudaGetDeviceOfMine, which refmoe's stand-in of the CUDA runtime does not have"]


def test_elements_of_eight_bits_are_bytes_with_a_name() -> None:
    codes = np.arange(24, dtype=np.uint8).reshape(4, 6)
    result = np.zeros((4, 6), ml_dtypes.float8_e4m3fn)
    named = refmoe.cute.tensor(codes, element="Float8E4M3FN")
    refmoe.cute.compile(kernels.copy, named, result).launch(named, result)
    assert result.tobytes() == codes.tobytes()


def test_a_fake_tensor_of_the_package_may_stand_for_what_is_launched() -> None:
    cute, runtime = package.imported("cutlass.cute"), package.imported("cutlass.cute.runtime")
    fake = runtime.make_fake_compact_tensor(Float32, (cute.sym_int(), 8), stride_order=(1, 0), assumed_align=16)
    program = refmoe.cute.compile(kernels.copy, fake, fake)
    x, y = numbers(5, 8), np.zeros((5, 8), np.float32)
    program.launch(x, y)
    assert y.tobytes() == x.tobytes()
    with pytest.raises(ArgumentError, match=r"x: found sizes \(5, 7\); needed 8 of mode 1, as it was compiled for"):
        program.launch(numbers(5, 7), y)
    with pytest.raises(ArgumentError, match="x: found 1 modes; needed 2"):
        program.launch(numbers(8), y)
    with pytest.raises(ArgumentError, match=r"x: found Int32, .*; needed elements of Float32"):
        program.launch(np.zeros((5, 8), np.int32), y)
    with pytest.raises(ArgumentError, match=r"x: found strides \(16, 2\); needed 8 of mode 0"):
        program.launch(numbers(5, 16)[:, ::2], y)


def test_a_size_has_to_be_as_divisible_as_it_was_said_to_be() -> None:
    x = refmoe.cute.tensor(numbers(3, 8), divisibility={1: 4})
    y = numbers(3, 8)
    program = refmoe.cute.compile(kernels.copy, x, y)
    program.launch(x, y)
    with pytest.raises(ArgumentError, match=r"x: found sizes \(3, 6\); needed a multiple of 4 of mode 1"):
        program.launch(numbers(3, 6), numbers(3, 6))
    with pytest.raises(ArgumentError, match="divisibility: found 3 of mode 1"):
        refmoe.cute.tensor(numbers(3, 8), divisibility={1: 3})


def test_an_address_has_to_be_as_aligned_as_it_was_said_to_be() -> None:
    base, result = numbers(3, 8), np.zeros((3, 4), np.float32)
    program = refmoe.cute.compile(kernels.copy, refmoe.cute.tensor(base[:, 4:], align=16), result)
    program.launch(base[:, :4], result)
    assert result.tobytes() == base[:, :4].tobytes()
    with pytest.raises(ArgumentError, match=r"x: found the address 0x.*4; needed a multiple of 16 bytes"):
        program.launch(base[:, 1:5], result)


def test_a_buffer_says_what_is_initialised() -> None:
    x = Buffer(np.zeros(10, np.float32), "x", initialised=False)
    y = np.zeros(10, np.float32)
    program = refmoe.cute.compile(kernels.scale, x, y, Float32(1.0), STREAM)
    with pytest.raises(MemoryFault, match="uninitialised: global read of 4 bytes at byte 0 of x"):
        program.launch(x, y, 1.0, STREAM)


def test_a_read_only_array_cannot_be_written() -> None:
    x, y = numbers(10), np.zeros(10, np.float32)
    y.flags.writeable = False
    program = refmoe.cute.compile(kernels.scale, x, y, Float32(1.0), STREAM)
    with pytest.raises(MemoryFault, match="read only: global write of 4 bytes at byte 0 of y"):
        program.launch(x, y, 1.0, STREAM)


def test_arithmetic_that_ptxas_may_fuse_is_refused_where_that_is_asked_for() -> None:
    x = numbers(10)
    assert not refmoe.cute.compile(kernels.scale, x, x, Float32(1.0), STREAM).module.strict
    pointer_kernels = refmoe.cute.compile(kernels.scale_twice, x, x, Float32(1.0), strict=True)
    assert pointer_kernels.module.strict
    mul = next(line for line in pointer_kernels.ptx.splitlines() if "mul.f32" in line)
    fused = pointer_kernels.edited(lambda text: text.replace(mul, f"{mul}\n{_added(mul)}"))
    with pytest.raises(Contraction):
        fused.launch(x, numbers(10), 2.0)


def _added(mul: str) -> str:
    """An addition without a rounding to the result of a multiplication."""
    result = re.findall(r"%r\d+", mul)[0]
    return f"add.f32 {result}, {result}, {result};"


@pytest.mark.parametrize(
    ("value", "words"),
    [(3, "x: found int 3; needed a NumPy array"), (np.float32(3), "x: found .*; needed a NumPy array")],
)
def test_what_is_no_tensor_is_refused(value: Any, words: str) -> None:
    x = numbers(10)
    program = refmoe.cute.compile(kernels.scale, x, x, Float32(1.0), STREAM)
    with pytest.raises(ArgumentError, match=words):
        program.launch(value, x, 1.0, STREAM)


def test_arguments_are_those_of_the_function() -> None:
    x = numbers(10)
    program = refmoe.cute.compile(kernels.scale, x, x, Float32(1.0), STREAM)
    with pytest.raises(
        ArgumentError, match=r"arguments: found missing a required argument: 'factor'; needed x, y, factor"
    ):
        program.launch(x, x)
    with pytest.raises(ArgumentError, match=r"factor: found float32 .*; needed a Float32"):
        program.launch(x, x, x, STREAM)


def test_what_cannot_be_compiled_says_why() -> None:
    x = numbers(10)
    with pytest.raises(ArgumentError, match="arch: found str 'sm_42'; needed one of sm_90a"):
        refmoe.cute.compile(kernels.scale, x, x, Float32(1.0), STREAM, arch="sm_42")
    with pytest.raises(refmoe.cute.CompileError, match="0 files of PTX"):
        refmoe.cute.compile(kernels.nothing, x)
    with pytest.raises(refmoe.cute.CompileError, match="CuTe DSL refuses refused"):
        refmoe.cute.compile(kernels.refused, x)


def test_a_layout_that_has_to_be_static_is_asked_for() -> None:
    x = numbers(2, 4)
    with pytest.raises(refmoe.cute.CompileError, match=r"sizes are dynamic by default.*static=\(0, 1\)"):
        refmoe.cute.compile(kernels.loads_whole, 1, x)
    program = refmoe.cute.compile(kernels.loads_whole, 1, refmoe.cute.tensor(x, static=(0, 1)))
    with pytest.raises(ArgumentError, match=r"needed x: what is compiled in.* is no argument of a launch"):
        program.launch(1, x)
    program.launch(x)
    assert x.tolist() == (numbers(2, 4) + 1).tolist()


def test_another_release_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(package, "version", lambda name: "4.2.0")
    with pytest.raises(refmoe.cute.CuteMissing, match=r"nvidia-cutlass-dsl is 4\.2\.0; refmoe runs kernels of 4\.8\.1"):
        refmoe.cute.compile(kernels.scale, numbers(3))

    def none(name: str) -> str:
        raise metadata.PackageNotFoundError(name)

    monkeypatch.setattr(package, "version", none)
    with pytest.raises(refmoe.cute.CuteMissing, match="CuTe DSL is not installed: pip install"):
        refmoe.cute.compile(kernels.scale, numbers(3))
