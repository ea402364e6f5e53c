"""Where questions are asked: the executor, or a GPU through the CUDA driver alone, without torch and without nvcc."""

from __future__ import annotations

import ctypes
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np

from refmoe.chips import TARGETS
from refmoe.errors import NO_DRIVER, RefmoeError
from refmoe.probe.instructions import Instruction
from refmoe.probe.kernels import ENTRY, MOST_TILES, QUESTIONS, answers, arguments, ptx_text, threads
from refmoe.probe.vectors import Batch, Vector

if TYPE_CHECKING:
    from refmoe import ptx

_NEEDED = "the cuda device needs cuda-python's core: pip install 'refmoe[probe]'"


class NoGpu(RefmoeError):
    """There is no GPU to ask, or nothing to ask it with; the message says what is missing."""


class Unanswered(RefmoeError):
    """A chip cannot run an instruction; the message has the driver's or the executor's words."""


class Box(Protocol):
    """A chip that runs kernels."""

    name: str
    target: str
    chip: str
    driver: str | None

    def run(self, instruction: Instruction, arrays: list[Any], tiles: int) -> Any:
        """The last of the arrays after a launch of `tiles` blocks."""


class ExecutorBox:
    """The executor, as a chip of `target`."""

    name = "ptx"
    driver: str | None = None

    def __init__(self, target: str) -> None:
        self.target, self.chip = target, f"executor, {target}"
        self._modules: dict[str, ptx.Module] = {}

    def run(self, instruction: Instruction, arrays: list[Any], tiles: int) -> Any:
        """The last of the arrays after a launch of `tiles` blocks."""
        from refmoe import ptx  # a GPU is asked without the executor and its compiler

        if instruction.name not in self._modules:
            text = ptx_text(instruction, self.target)
            self._modules[instruction.name] = ptx.Module.parse(text, name=f"{instruction.name}")
        checks = ptx.Checks(races=False)  # no block shares anything with another
        try:
            ptx.launch(
                self._modules[instruction.name],
                ENTRY,
                grid=(tiles, 1, 1),
                block=(threads(instruction), 1, 1),
                args=arrays,
                checks=checks,
            )
        except ptx.UnknownOpcode as error:
            raise Unanswered(f"the executor has no model of this instruction on {self.target}") from error
        except ptx.PtxError as error:
            raise Unanswered(str(error).splitlines()[0]) from error
        return arrays[-1]


class CudaBox:
    """The first GPU, through the driver's API."""

    name = "cuda"

    def __init__(self, driver: Any = None) -> None:
        self.api = _driver() if driver is None else driver
        self.status: Any = None  # of the last call
        try:
            self.call("cuInit", 0)
            if not self.call("cuDeviceGetCount"):
                raise NoGpu("the driver sees no GPU")
        except RuntimeError as error:
            # cuda-bindings's own sentence on a machine without libcuda.so.1 names no driver.
            raise NoGpu(NO_DRIVER) from error
        except Unanswered as error:
            raise NoGpu(f"the CUDA driver cannot be used: {error}") from error
        device = self.call("cuDeviceGet", 0)
        attribute = self.api.CUdevice_attribute
        major, minor = (
            self.call("cuDeviceGetAttribute", each, device)
            for each in (
                attribute.CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR,
                attribute.CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MINOR,
            )
        )
        self.target = target_of((major, minor))
        self.capability = (major, minor)
        self.chip = self.call("cuDeviceGetName", 256, device).split(b"\0")[0].decode()
        version = self.call("cuDriverGetVersion")
        self.driver: str | None = f"CUDA {version // 1000}.{version % 1000 // 10}"
        self._context = self.call("cuDevicePrimaryCtxRetain", device)
        self.call("cuCtxSetCurrent", self._context)
        self._functions: dict[str, Any] = {}

    def run(self, instruction: Instruction, arrays: list[Any], tiles: int) -> Any:
        """The last of the arrays after a launch of `tiles` blocks."""
        if instruction.name not in self._functions:
            # The driver compiles PTX itself; it wants a text that ends in a zero byte.
            image = ptx_text(instruction, self.target).encode() + b"\0"
            module = self._module(image)
            self._functions[instruction.name] = self.call("cuModuleGetFunction", module, ENTRY.encode())
        places = []
        try:
            for array in arrays:
                places.append(self.call("cuMemAlloc", array.nbytes))
                self.call("cuMemcpyHtoD", places[-1], array.ctypes.data, array.nbytes)
            values, types = tuple(int(place) for place in places), (ctypes.c_void_p,) * len(places)
            shape = (tiles, 1, 1, threads(instruction), 1, 1, 0)
            function = self._functions[instruction.name]
            self.call("cuLaunchKernel", function, *shape, 0, (values, types), 0)
            self.call("cuCtxSynchronize")
            result = np.empty_like(arrays[-1])
            self.call("cuMemcpyDtoH", result.ctypes.data, places[-1], result.nbytes)
        finally:
            for place in places:
                self.call("cuMemFree", place)
        return result

    def _module(self, image: bytes) -> Any:
        """The driver's form of a kernel.

        Raises:
            Unanswered: the driver cannot make it.
        """
        try:
            return self.call("cuModuleLoadData", image)
        except Unanswered as error:
            if self.status != self.api.CUresult.CUDA_ERROR_UNSUPPORTED_PTX_VERSION:
                raise
            version = TARGETS[self.target].ptx_version
            text = f"the driver runs {self.driver} and does not know PTX {version}, which {self.target} is asked in"
            raise Unanswered(f"{text}: update the driver") from error

    def call(self, name: str, *given: Any) -> Any:
        """A function of the driver by name; its result.

        Raises:
            Unanswered: it failed; the message has the driver's own words.
        """
        status, *results = getattr(self.api, name)(*given)
        self.status = status
        if status != self.api.CUresult.CUDA_SUCCESS:
            _, text = self.api.cuGetErrorString(status)
            raise Unanswered(f"{name} failed: {text.decode() if text else status}")
        return results[0] if results else None


def _driver() -> Any:
    """The bindings of the driver's API."""
    try:
        from cuda.bindings import driver
    except ImportError as error:
        raise NoGpu(f"{_NEEDED} ({error})") from error
    return driver


def target_of(capability: tuple[int, int]) -> str:
    """The PTX target as which a GPU of that compute capability is probed.

    Raises:
        NoGpu: it is older than all of them, or newer than this refmoe.
    """
    for target, each in TARGETS.items():
        if each.compute_capability == capability:
            return target
    raise NoGpu(f"a GPU of compute capability {capability[0]}.{capability[1]}; probed are {', '.join(TARGETS)}")


def ask_twice(box: Box, instruction: Instruction, vectors: Sequence[Vector]) -> tuple[list[int], list[int]]:
    """The answers of a chip to two asks.

    The operands are launched twice, and in each launch several rows hold the same ones. The second ask is an answer
    that differs from the first, if any row of any launch gave one.

    Raises:
        Unanswered: the chip cannot run the instruction.
    """
    one: list[int] = []
    two: list[int] = []
    most = QUESTIONS * MOST_TILES
    for first in range(0, len(vectors), most):
        batch = Batch.of(vectors[first : first + most])
        runs = []
        for _ in range(2):
            arrays, tiles = arguments(instruction, batch)
            runs.append(answers(instruction, box.run(instruction, arrays, tiles), len(batch)))
        rows = np.concatenate(runs, axis=1)
        other = (rows != rows[:, :1]).argmax(axis=1)
        one += rows[:, 0].tolist()
        two += rows[np.arange(len(rows)), other].tolist()
    return one, two
