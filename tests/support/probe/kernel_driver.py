"""The functions of the CUDA driver that a `DriverDevice` calls, carried out on the executor."""

from __future__ import annotations

import ctypes
from typing import Any

from cuda.bindings import driver as bindings
from support.probe.executor_driver import ExecutorDriver, Status

from refmoe import ptx

__all__ = ["KernelDriver", "Status"]


class KernelDriver(ExecutorDriver):
    """A driver with one GPU, whose structures are cuda-bindings's own.

    Args:
        capability: the GPU's.
        version: the newest CUDA that it runs, 13000 for 13.0; it takes no PTX of a newer one.
        init: what `cuInit` answers.
    """

    CUdevice_attribute = bindings.CUdevice_attribute
    CUfunction_attribute = bindings.CUfunction_attribute
    CUlaunchConfig = bindings.CUlaunchConfig
    CUlaunchAttribute = bindings.CUlaunchAttribute
    CUlaunchAttributeID = bindings.CUlaunchAttributeID

    def __init__(
        self, capability: tuple[int, int] = (12, 0), version: int = 13000, init: Status = Status.CUDA_SUCCESS
    ) -> None:
        super().__init__(capability, "NVIDIA Toy")
        self.version, self.init = version, init
        self.loaded: list[str] = []
        self.shared: list[int] = []

    def cuInit(self, flags: int) -> tuple[Any, ...]:
        return (self.init,)

    def cuDeviceGetAttribute(self, attribute: Any, device: int) -> tuple[Any, ...]:
        names = bindings.CUdevice_attribute
        found = {
            names.CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR: self.capability[0],
            names.CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MINOR: self.capability[1],
            names.CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT: 48,
        }
        return Status.CUDA_SUCCESS, found[attribute]

    def cuDriverGetVersion(self) -> tuple[Any, ...]:
        return Status.CUDA_SUCCESS, self.version

    def cuModuleLoadData(self, image: bytes) -> tuple[Any, ...]:
        assert image.endswith(b"\0"), "the driver reads PTX up to a zero byte"
        text = image[:-1].decode()
        major, minor = map(int, text.partition(".version ")[2].split(maxsplit=1)[0].split("."))
        # PTX 9.0 came with CUDA 13.0, as 8.8 with 12.9.
        if (major, minor) > ((9, self.version % 1000 // 10) if self.version >= 13000 else (8, 8)):
            return (Status.CUDA_ERROR_UNSUPPORTED_PTX_VERSION,)
        self.loaded.append(text)
        return Status.CUDA_SUCCESS, ptx.Module.parse(text)

    def cuFuncSetAttribute(self, function: Any, attribute: Any, value: int) -> tuple[Any, ...]:
        self.shared.append(value)
        return (Status.CUDA_SUCCESS,)

    def cuMemsetD8(self, place: int, value: int, size: int) -> tuple[Any, ...]:
        self.memory[int(place)][:size] = value
        return (Status.CUDA_SUCCESS,)

    def cuLaunchKernelEx(self, config: Any, function: Any, arguments: Any, extra: int) -> tuple[Any, ...]:
        values, types = arguments
        assert config.numAttrs == len(config.attrs)
        given = [
            value if kind is ctypes.c_int else self.memory[value] if value else None
            for value, kind in zip(values, types, strict=True)
        ]
        module, entry = function
        try:
            ptx.launch(
                module,
                entry,
                grid=(config.gridDimX, config.gridDimY, config.gridDimZ),
                block=(config.blockDimX, config.blockDimY, config.blockDimZ),
                args=given,
                shared_bytes=config.sharedMemBytes,
            )
        except ptx.PtxError:
            return (Status.CUDA_ERROR_LAUNCH_FAILED,)
        return (Status.CUDA_SUCCESS,)
