"""A kernel of refmoe's in CuTe DSL: its device code as a package, compiled once for each variant, and its launches.

Device code lies in a folder `device` of an exhibit. NVIDIA's compiler reads it as Python, from its file, so that a copy
of the folder with a fault in it is another package.
"""

from __future__ import annotations

import hashlib
import importlib.util
import math
import sys
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any

import numpy as np

from refmoe.cuda.device import CudaDevice, Device, LaunchRecord, PtxDevice
from refmoe.cuda.launch import Buffer, Entry
from refmoe.cuda.toolchain import ToolchainError
from refmoe.cute import (
    PYPI_REQUIREMENT,
    CompileError,
    CuteMissing,
    GpuBuffer,
    GpuMemory,
    HostLaunch,
    Program,
    Tensor,
    check_package,
    execute,
    tensor,
)
from refmoe.cute import compile as compile_function
from refmoe.cute.package import HostError
from refmoe.cute.tensor_maps import is_of_executor
from refmoe.errors import ArgumentError
from refmoe.families.family import Case, Expectation, Inputs, Outputs
from refmoe.museum.edits import EditError
from refmoe.ptx import Buffer as PtxBuffer
from refmoe.ptx import DeviceMemory, LaunchResult
from refmoe.verify.kernel import Kernel, Place, Refusal
from refmoe.verify.source import kernel_sha256, python_text

#: What is said where the compiler is not installed.
NOT_INSTALLED = "not installed: make cute"


@dataclass(frozen=True)
class DeviceCode:
    """The device code of an exhibit.

    Attributes:
        folder: of the package.
        edit_ptx: changes the compiled text, for a planted fault.
    """

    folder: Path
    edit_ptx: Callable[[str], str] | None = None

    def load(self, module: str) -> Any:
        """A module of the package.

        Raises:
            CuteMissing: CuTe DSL is not installed.
        """
        check_package()
        return importlib.import_module(f"{_package(self.folder)}.{module}")

    @property
    def text(self) -> str:
        """All of it, without comments."""
        return "\0".join(
            f"{path.name}\0{python_text(path.read_text(encoding='utf-8'))}" for path in sorted(self.folder.glob("*.py"))
        )


@lru_cache(maxsize=64)
def _package(folder: Path) -> str:
    """The name under which a folder is imported, once for each folder. It becomes part of the names of kernels.

    Of an exhibit's own folder it is the exhibit's: the same in every process, so that machine code that the executor
    keeps on disk is found again.
    """
    name = f"refmoe_{folder.parent.name}".replace("-", "_")
    if folder.parent.parent != Path(__file__).parent:
        name += f"_{hashlib.sha256(str(folder).encode()).hexdigest()[:12]}"
    spec = importlib.util.spec_from_file_location(
        name, folder / "__init__.py", submodule_search_locations=[str(folder)]
    )
    assert spec is not None
    assert spec.loader is not None
    module = sys.modules[name] = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return name


#: Compiled functions by what they were compiled of.
_PROGRAMS: dict[tuple[Any, ...], Program] = {}


def launch(
    code: DeviceCode,
    device: Device,
    variant: tuple[Any, ...],
    make: Callable[[], Any],
    arguments: Sequence[Any],
    blocks: Sequence[Sequence[int]] | None = None,
) -> None:
    """Compile a function if need be, and execute what it launches; the records are in `device.launches`.

    Args:
        code: the device code.
        device: the executor, or a GPU.
        variant: what tells the compiled function from others of that code: everything that is compiled in.
        make: the function under `cute.jit`.
        arguments: of the function.
        blocks: those of the grid that the executor runs, all by default. A GPU always runs all.

    Raises:
        CuteMissing: CuTe DSL is not installed.
        ToolchainError: the function does not compile, or the text that it becomes cannot be edited.
        PtxError: what went wrong in a kernel.
        RefmoeError: what the driver of a GPU says.
    """
    program = _compiled(code, device.arch, variant, make, arguments)
    name = f"cute/{Path(code.folder).parent.name}"
    if isinstance(device, CudaDevice):
        for each in program.host_launches(*arguments, memory=GpuMemory()):
            _launch_on_gpu(device, Entry(name, each.entry), program, each)
        return
    assert isinstance(device, PtxDevice)
    memory = DeviceMemory()
    options = {
        **{"checks": device.checks, "step_budget": device.step_budget, "trace": device.trace, "watch": device.watch},
        **{"profile": device.observer, "blocks": blocks},
    }
    for each in program.host_launches(*arguments, memory=memory):
        result = execute(program.module, each, memory, options)
        device.launches.append(_record(Entry(name, each.entry), each, result))


def _compiled(
    code: DeviceCode, arch: str, variant: tuple[Any, ...], make: Callable[[], Any], arguments: Sequence[Any]
) -> Program:
    """The compiled function; see `launch`."""
    key = (code, arch, *variant)
    if key not in _PROGRAMS:
        try:
            program = compile_function(make(), *arguments, arch=arch, strict=True)
            _PROGRAMS[key] = program if code.edit_ptx is None else program.edited(code.edit_ptx)
        except (CompileError, EditError, ImportError, SyntaxError) as error:
            # As of nvcc: what does not compile is no fault that a case could catch.
            raise ToolchainError(f"the device code in {code.folder}: {error}") from error
    return _PROGRAMS[key]


def _launch_on_gpu(device: CudaDevice, entry: Entry, program: Program, launch: HostLaunch) -> None:
    """Launch a kernel's own machine code with the bytes that its host code packed, and wait for its end.

    Raises:
        HostError: a tensor map that is not the hardware's.
        RefmoeError: what the driver says.
    """
    if program.cubin is None:
        raise ToolchainError("a kernel whose PTX was edited has no machine code: it runs on the executor")
    if any(map(is_of_executor, launch.parameters)):
        raise HostError("the host code had the driver make a tensor map, which refmoe does only for the executor")
    device.load(entry, program.cubin)
    device.enqueue_packed(
        entry,
        launch.grid,
        launch.block,
        launch.parameters,
        shared_bytes=launch.shared_bytes,
        cluster=launch.cluster,
        cooperative=launch.cooperative,
    )
    device.torch.cuda.current_stream().synchronize()
    device.launches.append(_record(entry, launch, None))


def _record(entry: Entry, launch: HostLaunch, result: LaunchResult | None) -> LaunchRecord:
    return LaunchRecord(entry, math.prod(launch.grid), math.prod(launch.block), result)


def held(buffer: Buffer) -> PtxBuffer | GpuBuffer:
    """A device's buffer with an array whose views say which part of it a tensor is."""
    return buffer if isinstance(buffer, PtxBuffer) else GpuBuffer.of(buffer)


def view_of(buffer: Buffer, dtype: Any, shape: Sequence[int], modes: Sequence[int], **options: Any) -> Tensor:
    """A device's buffer as a tensor whose modes are those of its shape in another order.

    Args:
        buffer: bytes.
        dtype: of the elements.
        shape: of the array that they hold.
        modes: of that shape, in the order of the tensor's.
        options: of `refmoe.cute.tensor`.
    """
    memory = held(buffer)
    array = memory.array.reshape(-1).view(np.uint8).view(dtype).reshape(shape)
    # A size may be 1 in one launch, and more in the next of the same code.
    innermost = list(modes).index(len(shape) - 1)
    return tensor(array.transpose(tuple(modes)), innermost=innermost, buffer=memory, **options)


def stream() -> Any:
    """The default stream of CUDA."""
    from refmoe.cute.package import imported

    return imported("cuda.bindings.driver").CUstream(0)


@dataclass
class CuteKernel(Kernel, ABC):
    """A kernel in CuTe DSL, its PTX unmodified and launched by the host code that its compiler made.

    A subclass says how a case is run, and where the device code lies.

    Attributes:
        code: the device code, that of a planted fault included.
    """

    code: DeviceCode | None = None

    #: The exhibit's device code, and the module that launches it.
    sound = DeviceCode(Path())
    host = ""

    @property
    def device_code(self) -> DeviceCode:
        """What is compiled."""
        return self.sound if self.code is None else self.code

    def missing(self, case: Case, place: Place) -> str | None:
        """Why the case cannot run here, in a sentence."""
        try:
            check_package()
        except CuteMissing as error:
            return f"{NOT_INSTALLED} ({error})"
        return super().missing(case, place)

    def run(self, case: Case, inputs: Inputs, expected: Expectation, place: Any) -> Outputs:
        """The kernel's buffers.

        Raises:
            Refusal: a case that the kernel does not take.
        """
        try:
            return self.execute(case, inputs, place)
        except ArgumentError as error:
            raise Refusal(str(error)) from error

    @abstractmethod
    def execute(self, case: Case, inputs: Inputs, device: Device) -> Outputs:
        """The kernel's buffers of a case.

        Raises:
            ArgumentError: it does not take the case.
        """

    def made_of(self, case: Case, inputs: Inputs, place: Place) -> str | None:
        """The compiler, and what of its output ran."""
        if place.name == "cuda":
            return f"CuTe DSL by {self.compiler()}: its cubin, launched with the bytes that its host code packed"
        return f"CuTe DSL by {self.compiler()}: its PTX and its host code were executed, its cubin was only compiled"

    def source_sha256(self) -> str:
        """The hash of the device code, of what launches it and hands it a case, and of the compiler's release."""
        return kernel_sha256((), (self.host,), (PYPI_REQUIREMENT, self.device_code.text), (type(self),))

    def compiler(self) -> str:
        """The release that the kernel is compiled with."""
        return PYPI_REQUIREMENT
