"""The host code that CuTe DSL compiles, run with a stand-in of the CUDA runtime that records what it launches.

A function under `cute.jit` becomes code for the host: it computes grids, makes tensor maps, packs the parameters of its
kernels, and calls the CUDA runtime. That code runs here as it is. The functions of the runtime that it calls are those
below. They know one device, the chip that the code was compiled for, and they launch nothing: they take down what is
launched.
"""

from __future__ import annotations

import ctypes
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from refmoe.chips import Chip
from refmoe.cute.package import HostError, imported
from refmoe.cute.tensor_maps import MAP_BYTES
from refmoe.errors import ArgumentError, RefmoeError
from refmoe.ptx import Module
from refmoe.ptx.state.tensormap import DATA_TYPES, encode_tensor_map

Index3 = tuple[int, int, int]

# cudaError_t
_SUCCESS, _NOT_SUPPORTED, _INVALID_HANDLE = 0, 801, 400
# cudaDeviceAttr and CUdevice_attribute, which have the same numbers.
_ATTRIBUTES: dict[int, Callable[[Chip], int]] = {
    16: lambda chip: chip.multiprocessors,
    75: lambda chip: chip.compute_capability[0],
    76: lambda chip: chip.compute_capability[1],
    97: lambda chip: chip.shared_bytes,
}
# CUfunction_attribute: static shared memory. That of a module of CuTe DSL is all dynamic.
_STATIC_SHARED = 1
# cudaLaunchAttributeID
_COOPERATIVE, _CLUSTER = 2, 4
_SWIZZLES = ("none", "32B", "64B", "128B", "128B_atom_32B", "128B_atom_32B_flip_8B", "128B_atom_64B")
_INTERLEAVES, _PROMOTIONS, _FILLS = ("none", "16B", "32B"), ("none", "64B", "128B", "256B"), ("zeros", "nan")


@dataclass(frozen=True)
class HostLaunch:
    """One launch as the host code made it.

    Attributes:
        entry: the kernel.
        grid, block: blocks and threads (x, y, z).
        cluster: blocks of a cluster, None where the host code names none.
        shared_bytes: dynamic shared memory of a block.
        parameters: the bytes of each parameter of the kernel, in order; a tensor map is the hardware's, but for one
            that the driver was asked to make, which is the executor's.
        cooperative: whether all blocks have to be resident together.
    """

    entry: str
    grid: Index3
    block: Index3
    cluster: Index3 | None
    shared_bytes: int
    parameters: tuple[bytes, ...]
    cooperative: bool


class _Config(ctypes.Structure):
    """cudaLaunchConfig_t."""

    _fields_ = (
        ("grid", ctypes.c_uint32 * 3),
        ("block", ctypes.c_uint32 * 3),
        ("shared_bytes", ctypes.c_size_t),
        ("stream", ctypes.c_void_p),
        ("attributes", ctypes.c_void_p),
        ("attribute_count", ctypes.c_uint32),
    )


class _Attribute(ctypes.Structure):
    """cudaLaunchAttribute; its value begins with the numbers that matter here."""

    _fields_ = (("kind", ctypes.c_uint32), ("pad", ctypes.c_uint32), ("value", ctypes.c_uint32 * 16))


class HostCode:
    """The host code of one compiled function.

    Args:
        ir_module: what CuTe DSL lowered the function to, in MLIR's dialect of LLVM.
        function: the name of the host function in it.
        module: its kernels.
        chip: the device that the stand-in runtime knows.

    Raises:
        CuteMissing: CuTe DSL is not installed.
        HostError: the host code cannot be loaded.
    """

    def __init__(self, ir_module: Any, function: str, module: Module, chip: Chip) -> None:
        self._module = module
        self._chip = chip
        self._launches: list[HostLaunch] = []
        self._failures: list[str] = []
        self._entries: list[str] = []
        text = str(ir_module)
        self.parameter_types = _parameter_types(text, function)
        engine = imported("cutlass._mlir.execution_engine").ExecutionEngine(ir_module, opt_level=0, shared_libs=[])
        # Kept as long as the engine: the code calls them by their addresses.
        self._callbacks = [self._callback(name) for name in sorted(set(re.findall(_RUNTIME_FUNCTION, text)))]
        for name, callback in self._callbacks:
            engine.raw_register_runtime(name, ctypes.cast(callback, ctypes.c_void_p))
        self._engine = engine
        self._function = self._found(function)
        self._setup()

    def run(self, pointers: Sequence[int]) -> tuple[HostLaunch, ...]:
        """What the host function launches when it is called.

        Args:
            pointers: the address of each of its arguments, as they are lowered.

        Raises:
            HostError: it ended with an error.
        """
        self._launches.clear()
        status = self._call(self._function, pointers)
        if status or self._failures:
            raise self._error(status)
        return tuple(self._launches)

    def _setup(self) -> None:
        """Load the library of kernels and look up each kernel, as is done once before the first launch."""
        library, device = ctypes.c_void_p(), ctypes.c_int32(0)
        holder = ctypes.pointer(library)
        address = ctypes.addressof(holder)
        for name, pointers in (("cuda_init", [address]), ("cuda_load_to_device", [address, ctypes.addressof(device)])):
            # Without `llvm.emit_c_interface` these have packed wrappers under their own names.
            found = self._engine.raw_lookup(name)
            if not found:
                raise HostError(f"the host code has no {name}; its module may hold no kernel")
            status = self._call(ctypes.CFUNCTYPE(None, ctypes.c_void_p)(found), pointers)
            if status or self._failures:
                raise self._error(status)

    def _call(self, function: Any, pointers: Sequence[int]) -> int:
        """The status of a packed function: one pointer to each argument, and one to the result."""
        status = ctypes.c_int32(-1)
        packed = (ctypes.c_void_p * (len(pointers) + 1))(*pointers, ctypes.addressof(status))
        self._failures.clear()
        function(packed)
        return status.value

    def _found(self, name: str) -> Any:
        try:
            return self._engine.lookup(name)
        except RuntimeError as error:
            raise HostError(f"the host code has no function {name}: {error}") from error

    def _error(self, status: int) -> HostError:
        why = "; ".join(self._failures) or "no call of the CUDA runtime failed"
        return HostError(f"the host code ended with status {status}: {why}")

    # --- the runtime: addresses are integers, 0 or None for a null pointer ---------------------------------------

    def _callback(self, name: str) -> tuple[str, Any]:
        if name not in _STAND_INS:

            def refuse() -> int:
                self._failures.append(f"it calls {name[1:]}, which refmoe's stand-in of the CUDA runtime does not have")
                return _NOT_SUPPORTED

            return name, ctypes.CFUNCTYPE(ctypes.c_int32)(refuse)
        method, types = _STAND_INS[name]

        def call(*arguments: Any) -> int:
            # An exception would end in the foreign code that called.
            try:
                return int(method(self, *arguments))
            except Exception as error:
                self._failures.append(f"{name[1:]}: {error}")
                return _NOT_SUPPORTED

        return name, ctypes.CFUNCTYPE(ctypes.c_int32, *types)(call)

    def _load_library(self, library: int, *_: Any) -> int:
        _write(library, ctypes.c_uint64, 1)
        return _SUCCESS

    def _get_kernel(self, kernel: int, library: int, name: int) -> int:
        entry = ctypes.string_at(name).decode()
        if entry not in self._module.entries:
            raise RefmoeError(f"{entry} is none of the kernels {', '.join(self._module.entries)}")
        self._entries.append(entry)
        _write(kernel, ctypes.c_uint64, len(self._entries))
        return _SUCCESS

    def _get_device(self, device: int) -> int:
        _write(device, ctypes.c_int32, 0)
        return _SUCCESS

    def _device_attribute(self, value: int, attribute: int, device: int) -> int:
        if attribute not in _ATTRIBUTES:
            raise RefmoeError(f"attribute {attribute}, which refmoe does not know of {self._chip.arch}")
        _write(value, ctypes.c_int32, _ATTRIBUTES[attribute](self._chip))
        return _SUCCESS

    def _kernel_attribute(self, value: int, attribute: int, kernel: int, device: int) -> int:
        if attribute != _STATIC_SHARED:
            raise RefmoeError(f"attribute {attribute} of a kernel, which refmoe does not know")
        _write(value, ctypes.c_int32, 0)
        return _SUCCESS

    def _set_attribute(self, *_: Any) -> int:
        return _SUCCESS  # the most shared memory of a launch, which the executor checks, and larger clusters

    def _launch_ex(self, config: int, kernel: int, parameters: int) -> int:
        given = _Config.from_address(config)
        cluster, cooperative = None, False
        for number in range(given.attribute_count):
            attribute = _Attribute.from_address(given.attributes + number * ctypes.sizeof(_Attribute))
            if attribute.kind == _CLUSTER:
                cluster = _triple(attribute.value)
            elif attribute.kind == _COOPERATIVE:
                cooperative = bool(attribute.value[0])
        return self._launch(
            kernel, _triple(given.grid), _triple(given.block), cluster, given.shared_bytes, parameters, cooperative
        )

    def _launch_plain(self, kernel: int, *rest: int) -> int:
        *sizes, parameters, shared_bytes, _ = rest
        return self._launch(kernel, _triple(sizes[:3]), _triple(sizes[3:]), None, shared_bytes, parameters, False)

    def _launch(
        self,
        kernel: int,
        grid: Index3,
        block: Index3,
        cluster: Index3 | None,
        shared_bytes: int,
        parameters: int,
        cooperative: bool,
    ) -> int:
        if not 1 <= (kernel or 0) <= len(self._entries):
            self._failures.append(f"a launch of kernel {kernel}, which was not looked up")
            return _INVALID_HANDLE
        entry = self._entries[kernel - 1]
        variables = self._module.function(entry).parameters
        pointers = (ctypes.c_void_p * len(variables)).from_address(parameters) if variables else ()
        contents = tuple(ctypes.string_at(at, each.size) for at, each in zip(pointers, variables, strict=True))
        self._launches.append(HostLaunch(entry, grid, block, cluster, shared_bytes, contents, cooperative))
        return _SUCCESS

    def _encode_tensor_map(
        self,
        target: int,
        kind: int,
        rank: int,
        address: int,
        dims: int,
        strides: int,
        box: int,
        steps: int,
        *words: int,
    ) -> int:
        interleave, swizzle, promotion, fill = words
        try:
            content = encode_tensor_map(
                address,
                tuple(DATA_TYPES)[kind],
                list((ctypes.c_uint64 * rank).from_address(dims)),
                list((ctypes.c_uint64 * (rank - 1)).from_address(strides)) if rank > 1 else [],
                list((ctypes.c_uint32 * rank).from_address(box)),
                list((ctypes.c_uint32 * rank).from_address(steps)),
                swizzle=_SWIZZLES[swizzle],
                interleave=_INTERLEAVES[interleave],
                l2_promotion=_PROMOTIONS[promotion],
                fill=_FILLS[fill],
            )
        except ArgumentError as error:
            raise RefmoeError(f"a tensor map that the driver refuses: {error}") from error
        ctypes.memmove(target, content, MAP_BYTES)
        return _SUCCESS


_POINTER, _INT, _UINT, _SIZE = ctypes.c_void_p, ctypes.c_int32, ctypes.c_uint32, ctypes.c_size_t
#: By the name that the host code calls: what answers, and the types of the arguments.
_STAND_INS: dict[str, tuple[Callable[..., int], tuple[Any, ...]]] = {
    "_cudaLibraryLoadData": (
        HostCode._load_library,
        (_POINTER, _POINTER, _POINTER, _POINTER, _UINT, _POINTER, _POINTER, _UINT),
    ),
    "_cudaLibraryGetKernel": (HostCode._get_kernel, (_POINTER, _POINTER, _POINTER)),
    "_cudaGetDevice": (HostCode._get_device, (_POINTER,)),
    "_cudaDeviceGetAttribute": (HostCode._device_attribute, (_POINTER, _INT, _INT)),
    "_cuKernelGetAttribute": (HostCode._kernel_attribute, (_POINTER, _INT, _POINTER, _INT)),
    "_cudaFuncSetAttribute": (HostCode._set_attribute, (_POINTER, _INT, _INT)),
    "_cudaKernelSetAttributeForDevice": (HostCode._set_attribute, (_POINTER, _INT, _INT, _INT)),
    "_cudaLaunchKernelEx": (HostCode._launch_ex, (_POINTER, _POINTER, _POINTER)),
    "_cudaLaunchKernel": (HostCode._launch_plain, (_POINTER, *[_UINT] * 6, _POINTER, _SIZE, _POINTER)),
    "_cuTensorMapEncodeTiled": (
        HostCode._encode_tensor_map,
        (_POINTER, _INT, _UINT, _POINTER, _POINTER, _POINTER, _POINTER, _POINTER, *[_INT] * 4),
    ),
}
_RUNTIME_FUNCTION = r"llvm\.func @(_cu[A-Za-z]+)\("


def _parameter_types(text: str, function: str) -> tuple[str, ...]:
    """The lowered types of the host function's parameters, without blanks: "i32", "!llvm.struct<(ptr<1>,...)>".

    Raises:
        HostError: no such function.
    """
    head = re.search(rf"llvm\.func @{re.escape(function)}\((.*?)\) -> i32 attributes", text)
    if head is None:
        raise HostError(f"the lowered code has no host function {function} that returns a status")
    parts = re.split(r"(?:^|, )%arg\d+: ", head[1])
    return tuple(part.replace(" ", "") for part in parts[1:])


def _triple(values: Sequence[int]) -> Index3:
    x, y, z = (int(each) for each in tuple(values)[:3])
    return x, y, z


def _write(address: int, kind: Any, value: int) -> None:
    kind.from_address(address).value = value
