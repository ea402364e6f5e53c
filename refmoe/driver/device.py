"""A GPU as the driver's API alone shows it, for a machine that lacks torch, nvcc or both."""

from __future__ import annotations

import contextlib
import importlib.util
import re
import weakref
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from refmoe import ptx
from refmoe.chips import KERNEL_ARCHS
from refmoe.cuda.device import (
    DEFAULT_SHARED_BYTES,
    CudaDevice,
    Device,
    DeviceUnavailable,
    Index3,
    LaunchRecord,
    PtxDevice,
    open_device,
)
from refmoe.cuda.launch import Buffer, Entry, LaunchPlan
from refmoe.cuda.toolchain import CSRC, Target, ToolchainError, build, find_toolchain
from refmoe.driver.packaged import compiler_line, entries_in, packaged_ptx, with_one_entry
from refmoe.errors import NO_DRIVER, RefmoeError

#: The stream that waits for all others, and they for it. No graph can be captured from it.
LEGACY_STREAM = 0
#: The source that is looked for first; it is small.
_FIRST = "quantize"


def opened(name: str, arch: str | None = None, csrc: Path = CSRC) -> Device:
    """The device `name`, as `open_device` gives it; where nvcc or torch is missing, one that does without.

    Args:
        name: "ptx" for the executor, "cuda" for the first GPU, or torch's current one.
        arch: what the kernels are compiled for; None for the device's own.
        csrc: the folder of the kernels' sources.

    Raises:
        ArgumentError: no such device or arch.
        DeviceUnavailable: no GPU, or one that the kernels are not built for.
        ToolchainError: neither nvcc nor PTX in the package.
    """
    lacks = _lacks_compiler()
    if name == "cuda" and (lacks or not _has_torch()):
        # The GPU first: without one, nobody misses a compiler.
        device = DriverDevice(arch, csrc)
        if lacks:
            with _saying(lacks):
                device.check_code()
        return device
    found = open_device(name, arch, csrc)
    if lacks and isinstance(found, PtxDevice):
        with _saying(lacks):
            packaged_ptx(csrc / f"{_FIRST}.cu", found.arch)
        return PackagedPtxDevice(found.arch, found.multiprocessors, csrc)
    return found


def _has_torch() -> bool:
    return importlib.util.find_spec("torch") is not None


def _lacks_compiler() -> str:
    """Why there is no compiler; empty if there is one."""
    try:
        find_toolchain()
    except ToolchainError as error:
        return str(error)
    return ""


@contextlib.contextmanager
def _saying(lacks: str) -> Iterator[None]:
    """Name the compiler that is not there in front of what is wrong with the package's PTX.

    Raises:
        ToolchainError: something is wrong with it.
    """
    try:
        yield
    except ToolchainError as error:
        raise ToolchainError(f"{lacks}. {error}") from error


class PackagedPtxDevice(PtxDevice):
    """The executor, on PTX of the package."""

    def _module(self, kernel: Entry) -> ptx.Module:
        source = kernel.path(self.csrc)
        target = self._targets.setdefault(kernel, Target(source, self.arch, "ptx"))
        if target not in self._modules:
            text = packaged_ptx(source, self.arch)
            self._modules[target] = ptx.Module.parse(text, name=f"{source.stem}.{self.arch}.ptx", strict=True)
        return self._modules[target]


class DriverMemory:
    """Bytes on the GPU, freed with this object.

    Attributes:
        shape: of the uint8 array that they are.
        nbytes: how many.
    """

    def __init__(self, device: DriverDevice, shape: tuple[int, ...]) -> None:
        """Take memory; what it holds is not defined."""
        self.shape, self.nbytes = shape, int(np.prod(shape, dtype=np.int64))
        # The driver gives no empty memory.
        self._place = int(device.call("cuMemAlloc", self.nbytes)) if self.nbytes else 0
        if self._place:
            weakref.finalize(self, device.driver.cuMemFree, self._place).atexit = False

    def data_ptr(self) -> int:
        """Where they lie, 256-byte aligned; 0 if there are none."""
        return self._place


class DriverDevice(CudaDevice):
    """Runs kernels on the first GPU. Memory is the driver's; the code is nvcc's, or PTX of the package.

    The driver assembles PTX itself, once for each entry that is launched.

    Attributes:
        stream: that launches go to. What is copied or filled before a launch is there when it starts.
    """

    def __init__(
        self, arch: str | None = None, csrc: Path = CSRC, driver: Any = None, stream: Any = LEGACY_STREAM
    ) -> None:
        """Open the GPU.

        Args:
            arch: the one that is wanted; None for any.
            csrc: the folder of the kernels' sources.
            driver: in place of cuda-bindings's module of the driver.
            stream: to launch on; it has to be one that waits for the legacy stream.

        Raises:
            DeviceUnavailable: no GPU, another one, or no bindings; the message says what is missing.
        """
        self.driver = _driver() if driver is None else driver
        try:
            self.call("cuInit", 0)
            if not self.call("cuDeviceGetCount"):
                raise DeviceUnavailable("the driver sees no GPU")
        except RuntimeError as error:
            # cuda-bindings's own sentence on a machine without libcuda.so.1 names no driver.
            raise DeviceUnavailable(NO_DRIVER) from error
        except DeviceUnavailable:
            raise
        except RefmoeError as error:
            raise DeviceUnavailable(f"the CUDA driver cannot be used: {error}") from error
        ordinal = self.call("cuDeviceGet", 0)
        names = self.driver.CUdevice_attribute
        major, minor, multiprocessors = (
            self.call("cuDeviceGetAttribute", each, ordinal)
            for each in (
                names.CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR,
                names.CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MINOR,
                names.CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT,
            )
        )
        self.gpu_name = self.call("cuDeviceGetName", 256, ordinal).split(b"\0")[0].decode()
        self.arch = f"sm_{major}{minor}a"
        if self.arch not in KERNEL_ARCHS:
            raise DeviceUnavailable(
                f"{self.gpu_name} is sm_{major}{minor}; kernels are built for {', '.join(KERNEL_ARCHS)}"
            )
        if arch not in (None, self.arch):
            raise DeviceUnavailable(f"{self.gpu_name} is {self.arch}; asked for {arch}")
        self.multiprocessors = multiprocessors
        self.call("cuCtxSetCurrent", self.call("cuDevicePrimaryCtxRetain", ordinal))
        self.launches: list[LaunchRecord] = []
        self.csrc, self.stream = csrc, stream
        self._modules: dict[Path | bytes, Any] = {}
        self._functions: dict[Entry, Any] = {}
        self._shared_limits: dict[Entry, int] = {}
        self._texts: dict[Path, str] = {}
        self._compiles = not _lacks_compiler()

    def launch_on_a_stream(self) -> None:
        """Make a stream for the launches from now on; graphs can be captured from it."""
        self.stream = self.call("cuStreamCreate", self.driver.CUstream_flags.CU_STREAM_DEFAULT)

    def beside(self, csrc: Path) -> DriverDevice:
        """The same GPU and stream with the kernels of another folder."""
        return DriverDevice(self.arch, csrc, self.driver, self.stream)

    @property
    def torch(self) -> Any:
        """Torch, for what cannot do without.

        Raises:
            DeviceUnavailable: always.
        """
        raise DeviceUnavailable("this needs torch, cuda-python and nvcc: pip install 'refmoe[cuda,nvcc]'")

    def upload(self, name: str, array: npt.NDArray[Any]) -> Buffer:
        """Memory with the array's bytes."""
        content = np.ascontiguousarray(array.view(np.uint8))
        memory = DriverMemory(self, content.shape)
        if memory.nbytes:
            self.call("cuMemcpyHtoD", memory.data_ptr(), content.ctypes.data, memory.nbytes)
        return memory

    def output(self, name: str, shape: tuple[int, ...], fill: int, *, initialised: bool = False) -> Buffer:
        """Memory whose bytes hold `fill`."""
        memory = DriverMemory(self, tuple(shape))
        if memory.nbytes:
            self.call("cuMemsetD8", memory.data_ptr(), fill, memory.nbytes)
        return memory

    def repeated(self, shape: tuple[int, ...], block: npt.NDArray[np.uint8]) -> Buffer:
        """Memory that holds a block of bytes over and over, and is copied from the host no more than once."""
        memory = DriverMemory(self, tuple(shape))
        content = np.ascontiguousarray(block).ravel()[: memory.nbytes]
        place, filled = memory.data_ptr(), content.nbytes
        if filled:
            self.call("cuMemcpyHtoD", place, content.ctypes.data, filled)
        while 0 < filled < memory.nbytes:
            size = min(filled, memory.nbytes - filled)
            self.call("cuMemcpyDtoD", place + filled, place, size)
            filled += size
        return memory

    def download(self, buffer: Buffer) -> npt.NDArray[Any]:
        """The bytes as an array."""
        array = np.empty(buffer.shape, np.uint8)
        if buffer.nbytes:
            self.call("cuMemcpyDtoH", array.ctypes.data, buffer.data_ptr(), buffer.nbytes)
        return array

    def launch(self, plan: LaunchPlan) -> None:
        """Run a plan and wait for its end, so that its failure is not reported as a later one's."""
        self.enqueue(plan)
        self.call("cuCtxSynchronize")
        self.launches.append(LaunchRecord(plan.kernel, plan.grid, plan.block, None))

    def function(self, kernel: Entry) -> Any:
        """The driver's handle of an entry; its module is loaded once."""
        if kernel not in self._functions:
            module = self._compiled(kernel) if self._compiles else self._assembled(kernel.path(self.csrc), kernel.entry)
            self._functions[kernel] = self.call("cuModuleGetFunction", module, kernel.entry.encode())
        return self._functions[kernel]

    def check_code(self) -> None:
        """Load one kernel of the package, so that not every case has to say why none can be.

        Raises:
            PackagedPtxError: the package has none, or a damaged one, or that of other sources.
            DeviceUnavailable: the driver is too old for it.
        """
        source = self.csrc / f"{_FIRST}.cu"
        self._assembled(source, entries_in(self._text(source))[0])

    def _compiled(self, kernel: Entry) -> Any:
        """The driver's module of a source that nvcc compiles."""
        source = kernel.path(self.csrc)
        if source not in self._modules:
            target = Target(source, self.arch, "cubin")
            self._modules[source] = self._loaded(build([target])[target])
        return self._modules[source]

    def _text(self, source: Path) -> str:
        """The package's PTX of a source, unpacked once."""
        if source not in self._texts:
            self._texts[source] = packaged_ptx(source, self.arch)
        return self._texts[source]

    def _assembled(self, source: Path, entry: str) -> Any:
        """The driver's module of one entry. It assembles the PTX itself, which takes seconds for all of a source."""
        # The driver reads a text up to a zero byte.
        image = with_one_entry(self._text(source), entry).encode() + b"\0"
        status, *module = self.driver.cuModuleLoadData(image)
        if status == self.driver.CUresult.CUDA_ERROR_UNSUPPORTED_PTX_VERSION:
            raise DeviceUnavailable(too_old_text(self.call("cuDriverGetVersion")))
        if status != self.driver.CUresult.CUDA_SUCCESS:
            _, said = self.driver.cuGetErrorString(status)
            raise RefmoeError(f"the driver cannot load the PTX of {entry}: {said.decode() if said else status}")
        return module[0]

    def _start(
        self,
        kernel: Entry,
        grid: Index3,
        block: Index3,
        arguments: tuple[Sequence[Any], Sequence[Any]],
        shared_bytes: int,
        attributes: list[Any],
    ) -> None:
        function = self.function(kernel)
        if shared_bytes > self._shared_limits.get(kernel, DEFAULT_SHARED_BYTES):
            attribute = self.driver.CUfunction_attribute.CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES
            self.call("cuFuncSetAttribute", function, attribute, shared_bytes)
            self._shared_limits[kernel] = shared_bytes
        config = self.driver.CUlaunchConfig()
        config.gridDimX, config.gridDimY, config.gridDimZ = grid
        config.blockDimX, config.blockDimY, config.blockDimZ = block
        config.sharedMemBytes, config.hStream = shared_bytes, self.stream
        config.attrs = attributes
        config.numAttrs = len(config.attrs)
        self.call("cuLaunchKernelEx", config, function, arguments, 0)


def too_old_text(version: int) -> str:
    """What is said of a driver that does not know the PTX of the package.

    Args:
        version: the newest CUDA that it runs, 12080 for 12.8.
    """
    release = re.search(r"cuda_(\d+\.\d+)", compiler_line() or "")
    needed = f"CUDA {release[1]}" if release else "a newer CUDA"
    return (
        f"the driver runs CUDA {version // 1000}.{version % 1000 // 10}, and the PTX in this package needs the driver "
        f"of {needed} or newer: update the driver"
    )


def _driver() -> Any:
    """The bindings of the driver's API.

    Raises:
        DeviceUnavailable: they are not installed.
    """
    try:
        from cuda.bindings import driver
    except ImportError as error:
        needed = "the cuda device needs cuda-bindings: pip install 'refmoe[probe]'"
        raise DeviceUnavailable(f"{needed} ({error})") from error
    return driver
