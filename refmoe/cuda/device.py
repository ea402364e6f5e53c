"""Where a launch plan runs: on the executor, which needs no GPU, or on a GPU.

Both devices take the same plans of the same kernels. Only the compiled form differs: PTX text for the executor, and
for the GPU a cubin, which is assembled from that text.
"""

from __future__ import annotations

import ctypes
import hashlib
import re
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from functools import lru_cache
from pathlib import Path
from typing import Any, Protocol
from weakref import WeakValueDictionary

import numpy as np
import numpy.typing as npt

from refmoe import ptx
from refmoe.chips import CHIPS, DEFAULT_ARCH, KERNEL_ARCHS, kernel_chip
from refmoe.cuda.launch import Buffer, Entry, LaunchPlan, MatrixMap
from refmoe.cuda.toolchain import CSRC, Target, ToolchainError, build, entries_of, source_sha256
from refmoe.errors import ArgumentError, RefmoeError, describe
from refmoe.ptx.engine.machine import Observer

DEFAULT_SHARED_BYTES = 48 * 1024  # a CTA gets more only after asking for it
Index3 = tuple[int, int, int]


class DeviceUnavailable(RefmoeError):
    """The device asked for is not on this machine; the message says what is missing."""


@dataclass(frozen=True)
class LaunchRecord:
    """What ran: the entry, its grid and block, and on the executor its `ptx.LaunchResult`."""

    kernel: Entry
    grid: int
    block: int
    result: ptx.LaunchResult | None


class Device(Protocol):
    """A place to run launch plans. Buffers go in by `upload` and `output`, results come back by `download`."""

    name: str
    arch: str
    multiprocessors: int
    launches: list[LaunchRecord]

    def upload(self, name: str, array: npt.NDArray[Any]) -> Buffer:
        """A read-only buffer with the array's bytes."""

    def output(self, name: str, shape: tuple[int, ...], fill: int, *, initialised: bool = False) -> Buffer:
        """A uint8 buffer to be written by a kernel; every byte holds `fill` until then.

        `initialised` says that kernels may read what it holds before they write it.
        """

    def launch(self, plan: LaunchPlan) -> None:
        """Run a plan to its end."""

    def download(self, buffer: Buffer) -> npt.NDArray[Any]:
        """The buffer's bytes as an array."""


@dataclass
class PtxDevice:
    """Runs the compiler's PTX for `arch` on the executor, with all its checks on unless `checks` says otherwise.

    A launch in which a warp takes more than `step_budget` steps counts as endless: the kernels' take a few thousand.
    `trace` takes down who waited on which barrier, `watch` who writes some bytes of a buffer of each launch, and
    `observer` is told of each launch and its steps. A chain of programmatic launches runs one after the other, but what
    the launches before one of them write counts as not there yet until the kernel has waited.
    With `entry_by_entry`, a changed source is compiled for each entry that is launched, without its other entries.
    """

    arch: str
    multiprocessors: int
    csrc: Path = CSRC
    checks: ptx.Checks = field(default_factory=ptx.Checks)
    step_budget: int | None = 1_000_000
    trace: ptx.Trace | None = None
    watch: ptx.Watch | None = None
    observer: Observer | None = None
    entry_by_entry: bool = False
    name: str = "ptx"
    launches: list[LaunchRecord] = field(default_factory=list)
    _chain: tuple[ptx.Buffer, ...] = field(default=(), repr=False)  # what launches that may be under way can write
    _targets: dict[Entry, Target] = field(default_factory=dict, repr=False)
    _modules: dict[Target, ptx.Module] = field(default_factory=dict, repr=False)
    _failures: dict[Target, ToolchainError] = field(default_factory=dict, repr=False)

    def upload(self, name: str, array: npt.NDArray[Any]) -> Buffer:
        """A read-only buffer with the array's bytes."""
        return ptx.Buffer(array.view(np.uint8), name=name, initialised=True, writable=False)

    def output(self, name: str, shape: tuple[int, ...], fill: int, *, initialised: bool = False) -> Buffer:
        """A uint8 buffer whose bytes hold `fill`; unless `initialised`, each counts as unwritten until written."""
        array = np.full(shape, fill, np.uint8)
        # Kept up to date by launches: what one writes, the next may read.
        return ptx.Buffer(array, name, True if initialised else ptx.WrittenBytes(array.nbytes))

    def launch(self, plan: LaunchPlan) -> None:
        """Compile the plan's source to PTX if need be, and execute its entry."""
        arguments, memory = placed(plan.arguments)
        written = tuple(each for each in plan.arguments if isinstance(each, ptx.Buffer) and each.writable)
        under_way = self._chain if plan.programmatic else ()
        result = ptx.launch(
            self._module(plan.kernel),
            plan.kernel.entry,
            grid=(plan.grid, 1, 1),
            block=(plan.block, 1, 1),
            args=arguments,
            shared_bytes=plan.shared_bytes,
            checks=self.checks,
            step_budget=self.step_budget,
            trace=self.trace,
            watch=self.watch,
            profile=self.observer,
            blocks=plan.blocks,
            memory=memory,
            cluster=None if plan.cluster is None else (plan.cluster, 1, 1),
            previous_grid_writes=_both(under_way, written) if plan.programmatic else None,
        )
        if plan.programmatic and self.checks.races and not result.waited:
            raise RefmoeError(
                f"{plan.kernel.entry} ended without griddepcontrol.wait: the launch behind it would not know that "
                "those in front of it have ended"
            )
        self._chain = under_way + written
        self.launches.append(LaunchRecord(plan.kernel, plan.grid, plan.block, result))

    def download(self, buffer: Buffer) -> npt.NDArray[Any]:
        """The buffer's array."""
        array: npt.NDArray[Any] = buffer.array
        return array

    def _module(self, kernel: Entry) -> ptx.Module:
        if kernel not in self._targets:
            self._targets[kernel] = self._target(kernel)
        target = self._targets[kernel]
        if target in self._failures:
            # The next of many cases would wait for the compiler only to see it fail again.
            raise self._failures[target]
        if target not in self._modules:
            try:
                self._modules[target] = _parse(build([target])[target])
            except ToolchainError as error:
                self._failures[target] = error
                raise
        return self._modules[target]

    def _target(self, kernel: Entry) -> Target:
        """What to compile for a launch of `kernel`."""
        whole = Target(kernel.path(self.csrc), self.arch, "ptx")
        original = Target(kernel.path(), self.arch, "ptx")
        if not self.entry_by_entry or not original.source.is_file():
            return whole
        if source_sha256(whole.source) == source_sha256(original.source):
            return whole
        return replace(whole, left_out=entries_of(build([original])[original]) - {kernel.entry})


class CudaDevice:
    """Runs cubins on the current CUDA device, on torch tensors and torch's current stream."""

    name = "cuda"

    def __init__(self, arch: str | None = None, csrc: Path = CSRC) -> None:
        try:
            import torch
            from cuda.bindings import driver
        except ImportError as error:
            needed = "the cuda device needs torch and cuda-python: pip install 'refmoe[cuda]'"
            raise DeviceUnavailable(f"{needed} ({error})") from error
        if not torch.cuda.is_available():
            raise DeviceUnavailable("torch sees no CUDA device")
        torch.cuda.synchronize()  # makes torch's context the current one, for the driver calls
        properties = torch.cuda.get_device_properties(torch.cuda.current_device())
        self.arch = f"sm_{properties.major}{properties.minor}a"
        if self.arch not in KERNEL_ARCHS:
            raise DeviceUnavailable(
                f"{properties.name} is {self.arch}; kernels are built for {', '.join(KERNEL_ARCHS)}"
            )
        if arch not in (None, self.arch):
            raise DeviceUnavailable(f"{properties.name} is {self.arch}; asked for {arch}")
        self.gpu_name: str = properties.name
        self.multiprocessors: int = properties.multi_processor_count
        self.launches: list[LaunchRecord] = []
        self.csrc = csrc
        self.torch = torch
        self.driver = driver
        self._modules: dict[Path | bytes, Any] = {}
        self._functions: dict[Entry, Any] = {}
        self._shared_limits: dict[Entry, int] = {}

    def upload(self, name: str, array: npt.NDArray[Any]) -> Buffer:
        """A tensor with the array's bytes."""
        return self.torch.from_numpy(np.array(array.view(np.uint8))).cuda()

    def output(self, name: str, shape: tuple[int, ...], fill: int, *, initialised: bool = False) -> Buffer:
        """A uint8 tensor whose bytes hold `fill`."""
        return self.torch.full(shape, fill, dtype=self.torch.uint8, device="cuda")

    def launch(self, plan: LaunchPlan) -> None:
        """Run a plan and wait for its end, so that its failure is not reported as a later one's."""
        self.enqueue(plan)
        self.torch.cuda.current_stream().synchronize()
        self.launches.append(LaunchRecord(plan.kernel, plan.grid, plan.block, None))

    def enqueue(self, plan: LaunchPlan) -> None:
        """Put a plan on torch's current stream, without waiting; capturable in a CUDA graph."""
        values = tuple(
            self._tensor_map(argument) if isinstance(argument, MatrixMap) else _kernel_argument(argument)
            for argument in plan.arguments
        )
        types = tuple(map(_argument_type, plan.arguments))
        cluster = None if plan.cluster is None else (plan.cluster, 1, 1)
        grid, block = (plan.grid, 1, 1), (plan.block, 1, 1)
        attributes = self._attributes(cluster, programmatic=plan.programmatic)
        self._start(plan.kernel, grid, block, (values, types), plan.shared_bytes, attributes)

    def enqueue_packed(
        self,
        kernel: Entry,
        grid: Index3,
        block: Index3,
        parameters: Sequence[bytes],
        *,
        shared_bytes: int = 0,
        cluster: Index3 | None = None,
        cooperative: bool = False,
    ) -> None:
        """Put a launch on torch's current stream whose parameters are bytes, such as another's host code packed them.

        Args:
            kernel: one that was given to `load`, or of a source of ours.
            grid: CTAs (x, y, z).
            block: threads (x, y, z).
            parameters: the bytes of each parameter; a tensor map is the hardware's.
            shared_bytes: dynamic shared memory of a CTA.
            cluster: CTAs of a cluster (x, y, z); None for what the kernel itself says.
            cooperative: whether all CTAs have to be resident together.

        Raises:
            RefmoeError: what the driver says.
        """
        values = tuple(map(_ParameterBytes, parameters))
        attributes = self._attributes(cluster, cooperative=cooperative)
        self._start(kernel, grid, block, (values, (None,) * len(values)), shared_bytes, attributes)

    def _start(
        self,
        kernel: Entry,
        grid: Index3,
        block: Index3,
        arguments: tuple[Sequence[Any], Sequence[Any]],
        shared_bytes: int,
        attributes: list[Any],
    ) -> None:
        """A launch whose arguments are values and their C types, as cuda-python takes them."""
        function = self.function(kernel)
        if shared_bytes > self._shared_limits.get(kernel, DEFAULT_SHARED_BYTES):
            attribute = self.driver.CUfunction_attribute.CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES
            self.call("cuFuncSetAttribute", function, attribute, shared_bytes)
            self._shared_limits[kernel] = shared_bytes
        config = self.driver.CUlaunchConfig()
        config.gridDimX, config.gridDimY, config.gridDimZ = grid
        config.blockDimX, config.blockDimY, config.blockDimZ = block
        config.sharedMemBytes, config.hStream = shared_bytes, self.torch.cuda.current_stream().cuda_stream
        config.attrs = attributes
        config.numAttrs = len(config.attrs)
        self.call("cuLaunchKernelEx", config, function, arguments, 0)

    def _attributes(
        self, cluster: Index3 | None, *, cooperative: bool = False, programmatic: bool = False
    ) -> list[Any]:
        """Those of a launch: CTAs of a cluster, whether all are resident together, whether it may start early."""
        attributes, names = [], self.driver.CUlaunchAttributeID
        if cluster is not None:
            attribute = self.driver.CUlaunchAttribute()
            attribute.id = names.CU_LAUNCH_ATTRIBUTE_CLUSTER_DIMENSION
            shape = attribute.value.clusterDim
            shape.x, shape.y, shape.z = cluster
            attributes.append(attribute)
        if cooperative:
            attribute = self.driver.CUlaunchAttribute()
            attribute.id = names.CU_LAUNCH_ATTRIBUTE_COOPERATIVE
            attribute.value.cooperative = 1
            attributes.append(attribute)
        if programmatic:
            attribute = self.driver.CUlaunchAttribute()
            attribute.id = names.CU_LAUNCH_ATTRIBUTE_PROGRAMMATIC_STREAM_SERIALIZATION
            attribute.value.programmaticStreamSerializationAllowed = 1
            attributes.append(attribute)
        return attributes

    def _tensor_map(self, argument: MatrixMap) -> Any:
        """The driver's form of a tensor map."""
        driver = self.driver
        types = driver.CUtensorMapDataType
        element = {
            "u8": types.CU_TENSOR_MAP_DATA_TYPE_UINT8,
            "bf16": types.CU_TENSOR_MAP_DATA_TYPE_BFLOAT16,
            "f32": types.CU_TENSOR_MAP_DATA_TYPE_FLOAT32,
        }[argument.element]
        number = driver.cuuint64_t
        return self.call(
            "cuTensorMapEncodeTiled",
            element,
            2,
            argument.buffer.data_ptr(),
            [number(argument.columns), number(argument.rows)],
            [number(argument.row_bytes)],
            [driver.cuuint32_t(argument.box[1]), driver.cuuint32_t(argument.box[0])],
            [driver.cuuint32_t(1), driver.cuuint32_t(1)],
            driver.CUtensorMapInterleave.CU_TENSOR_MAP_INTERLEAVE_NONE,
            getattr(driver.CUtensorMapSwizzle, f"CU_TENSOR_MAP_SWIZZLE_{argument.swizzle.upper()}"),
            driver.CUtensorMapL2promotion.CU_TENSOR_MAP_L2_PROMOTION_L2_256B,
            driver.CUtensorMapFloatOOBfill.CU_TENSOR_MAP_FLOAT_OOB_FILL_NONE,
        )

    def function(self, kernel: Entry) -> Any:
        """The driver's handle of an entry; its source is compiled and its module loaded once."""
        if kernel not in self._functions:
            source = kernel.path(self.csrc)
            if source not in self._modules:
                target = Target(source, self.arch, "cubin")
                self._modules[source] = self._loaded(build([target])[target])
            self._functions[kernel] = self.call("cuModuleGetFunction", self._modules[source], kernel.entry.encode())
        return self._functions[kernel]

    def load(self, kernel: Entry, cubin: Path | bytes) -> None:
        """Take a kernel from a cubin from now on, a file or its content, instead of from a source of ours."""
        if cubin not in self._modules:
            self._modules[cubin] = self._loaded(cubin)
        self._functions[kernel] = self.call("cuModuleGetFunction", self._modules[cubin], kernel.entry.encode())
        self._shared_limits.pop(kernel, None)

    def _loaded(self, cubin: Path | bytes) -> Any:
        return self.call("cuModuleLoadData", cubin if isinstance(cubin, bytes) else cubin.read_bytes())

    def download(self, buffer: Buffer) -> npt.NDArray[Any]:
        """The tensor's bytes."""
        array: npt.NDArray[Any] = buffer.cpu().numpy()
        return array

    def call(self, name: str, *arguments: Any) -> Any:
        """A function of the CUDA driver by name; its result, or a RefmoeError with the driver's own words."""
        status, *results = getattr(self.driver, name)(*arguments)
        if status != self.driver.CUresult.CUDA_SUCCESS:
            _, text = self.driver.cuGetErrorString(status)
            raise RefmoeError(f"{name} failed: {text.decode() if text else status}")
        return results[0] if results else None


def open_device(name: str, arch: str | None = None, csrc: Path | None = None) -> Device:
    """The device `name`, "ptx" or "cuda".

    Args:
        name: "ptx" for the executor, "cuda" for the current GPU.
        arch: what to compile for; the executor's default is sm_120a, a GPU's is its own and can be no other.
        csrc: a folder to take the kernels' sources from instead of the package's, such as a changed copy.

    Raises:
        ArgumentError: no such device or arch.
        DeviceUnavailable: no GPU, or one that the kernels are not built for, or its Python packages are missing.
    """
    sources = CSRC if csrc is None else Path(csrc)
    chip = kernel_chip(DEFAULT_ARCH if arch is None else arch)
    if name == "ptx":
        # The executor has no multiprocessors of its own, but a grid depends on them.
        return PtxDevice(chip.arch, chip.multiprocessors, sources)
    if name == "cuda":
        return CudaDevice(arch, sources)
    raise ArgumentError("device", describe(name), "'ptx' or 'cuda'")


def placed(arguments: Sequence[Any]) -> tuple[list[Any], ptx.DeviceMemory | None]:
    """Arguments for the executor; and, if tensor maps are among them, the memory where their buffers have addresses."""
    if not any(isinstance(argument, MatrixMap) for argument in arguments):
        return list(arguments), None
    memory = ptx.DeviceMemory()
    return [_encoded(each, memory) if isinstance(each, MatrixMap) else each for each in arguments], memory


def _encoded(argument: MatrixMap, memory: ptx.DeviceMemory) -> bytes:
    """The executor's form of a tensor map, of a buffer that is placed in `memory`."""
    return ptx.encode_tensor_map(
        memory.place(argument.buffer),
        argument.element,
        dims=(argument.columns, argument.rows),
        strides=(argument.row_bytes,),
        box=(argument.box[1], argument.box[0]),
        swizzle=argument.swizzle,
    )


def _both(some: Sequence[ptx.Buffer], others: Sequence[ptx.Buffer]) -> list[ptx.Buffer]:
    """Those of some buffers that are among others: the buffers themselves, not what they hold."""
    return [one for one in some if any(one is other for other in others)]


class _ParameterBytes:
    """The bytes of a kernel's parameter, in the form in which cuda-python takes structs."""

    def __init__(self, content: bytes) -> None:
        self._content = ctypes.create_string_buffer(content, len(content))

    def getPtr(self) -> int:
        """Where they lie."""
        return ctypes.addressof(self._content)


def _argument_type(argument: Any) -> Any:
    """The C type of a kernel's argument; None for one that is passed by its own pointer."""
    if isinstance(argument, MatrixMap):
        return None
    return ctypes.c_int if isinstance(argument, int) else ctypes.c_void_p


def _kernel_argument(argument: Any) -> int:
    if argument is None:
        return 0
    return argument if isinstance(argument, int) else int(argument.data_ptr())


@lru_cache(maxsize=64)
def _parse(path: Path) -> ptx.Module:
    # Compiled files are named by their content, so one path never holds two modules. For SM120 and SM121, which have
    # the same limits and models, the compiler mostly writes the same text: that is parsed and translated once for both.
    text = path.read_text()
    key = hashlib.sha256(_TARGET.sub(_alike, text, 1).encode()).digest()
    module = _MODULES.get(key)
    if module is None:
        module = _MODULES[key] = ptx.Module.parse(text, name=path.name, strict=True)
    return module


_TARGET = re.compile(r"^\.target (\w+)", re.MULTILINE)


def _alike(target: re.Match[str]) -> str:
    """The target line for the first chip that does the same with the same code."""
    chip = CHIPS.get(target[1])
    same = [other.arch for other in CHIPS.values() if chip is not None and other.abilities == chip.abilities]
    return f".target {same[0]}" if same else target[0]


#: Those that `_parse` keeps, by the hash of their text.
_MODULES: WeakValueDictionary[bytes, ptx.Module] = WeakValueDictionary()
